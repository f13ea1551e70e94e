const { once } = require("node:events");
const amqp = require("amqplib");
const { charge } = require("./shop");

const atWork = new Set();
let channel;

async function work(channel, message) {
  const isDone = await charge(message.fields.routingKey, message.content.toString()).then(() => true, () => false);
  try {
    if (isDone) channel.ack(message);
    else channel.nack(message);
  } catch (error) { // the connection is lost
    console.error(error.message);
  }
}

async function setup(connection) {
  connection.on("error", console.error);
  channel = await connection.createChannel();
  channel.on("error", () => connection.close());
  await channel.prefetch(50);
  const deliver = (message) => {
    const done = work(channel, message).finally(() => atWork.delete(done));
    atWork.add(done);
  };
  await channel.consume("orders", deliver, { consumerTag: "orders" });
}

async function main() {
  const connection = await amqp.connect("amqp://billing:PASSWORD@localhost:5673/shop", { recovery: { setup } });
  connection.on("error", console.error);
  await once(process, "SIGTERM");
  try {
    await channel.cancel("orders");
    await Promise.all(atWork);
    channel.close().catch(console.error);
    await once(channel, "close"); // or connection.close() overtakes the acks
  } catch (error) { // the connection is lost
    console.error(error.message);
  }
  await connection.close();
}

main();
