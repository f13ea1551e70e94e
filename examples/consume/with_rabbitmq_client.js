const { Connection } = require("rabbitmq-client");
const { charge } = require("./shop");

const connection = new Connection("amqp://billing:PASSWORD@localhost:5673/shop");
connection.on("error", console.error);
const consumer = connection.createConsumer({ queue: "orders", qos: { prefetchCount: 50 } }, (message) =>
  charge(message.routingKey, message.body.toString()),
);
consumer.on("error", console.error);
process.once("SIGTERM", async () => {
  await consumer.close();
  await connection.close();
});
