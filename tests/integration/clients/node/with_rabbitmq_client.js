'use strict';
// What tests/integration/test_clients.py asks of each client, done with rabbitmq-client.

const { Connection } = require('rabbitmq-client');
const { QUEUES, COUNT, bodyOf, propertiesOf, seen } = require('./messages.js');

async function publishAll(channel) {
  const publishes = [];
  for (let number = 0; number < COUNT; number += 1) {
    const envelope = { ...propertiesOf(number), exchange: 'orders', routingKey: `customer-${number}`, durable: true };
    publishes.push(channel.basicPublish(envelope, bodyOf(number)));
  }
  const noted = { exchange: 'amq.direct', routingKey: 'audit', messageId: 'audit', timestamp: 1700000000 };
  publishes.push(channel.basicPublish(noted, 'noted'));
  publishes.push(channel.basicPublish({ routingKey: 'no such queue', mandatory: true, messageId: 'lost' }, 'lost'));
  const settled = await Promise.allSettled(publishes);
  const acked = settled.filter(({ status }) => status === 'fulfilled').length;
  return { acked, nacked: settled.length - acked };
}

async function consumeAll(channel) {
  const messages = [];
  let consumers;
  await channel.basicQos({ prefetchCount: 20 });
  await new Promise((done) => {
    consumers = QUEUES.map((queue) => channel.basicConsume({ queue }, (message) => {
      messages.push(seen(queue, message, message, message.body));
      channel.basicAck({ deliveryTag: message.deliveryTag });
      if (messages.length === COUNT) done();
    }));
  });
  for (const { consumerTag } of await Promise.all(consumers)) await channel.basicCancel({ consumerTag });
  return messages;
}

// What a channel ends with over a mistake: this client's name of the code, and the text.
async function closedBy(connection, mistake) {
  const channel = await connection.acquire();
  await channel.confirmSelect();
  try {
    await mistake(channel);
  } catch (error) {
    return [error.code, error.message];
  }
  return [];
}

async function main() {
  const [hostname, port, username, password, vhost] = process.argv.slice(2);
  const connection = new Connection({ hostname, port: Number(port), username, password, vhost });
  await new Promise((connected, failed) => {
    connection.on('connection', connected);
    connection.on('error', failed);
  });
  const channel = await connection.acquire();
  const returned = [];
  channel.on('basic.return', (message) => returned.push({
    code: message.replyCode, text: message.replyText, exchange: message.exchange, routing_key: message.routingKey,
    message_id: message.messageId, body: message.body.toString(),
  }));
  await channel.confirmSelect();
  await channel.exchangeDeclare({ exchange: 'orders', type: 'x-consistent-hash', durable: true });
  for (const queue of QUEUES) {
    await channel.queueDeclare({ queue, durable: true });
    await channel.queueBind({ queue, exchange: 'orders', routingKey: '1' });
  }
  await channel.queueDeclare({ queue: 'audit', durable: true });
  await channel.queueBind({ queue: 'audit', exchange: 'amq.direct', routingKey: 'audit' });
  const counts = await publishAll(channel);
  const got = await channel.basicGet({ queue: 'audit' });
  channel.basicAck({ deliveryTag: got.deliveryTag });
  const empty = (await channel.basicGet({ queue: 'audit' })) === undefined;
  const messages = await consumeAll(channel);
  const missingQueue = await closedBy(connection, (other) => other.queueDeclare({ queue: 'no such queue', passive: true }));
  const missingExchange = await closedBy(
    connection, (other) => other.basicPublish({ exchange: 'no such exchange', routingKey: 'k' }, ''),
  );
  const deleted = {};
  for (const queue of [...QUEUES, 'audit']) deleted[queue] = (await channel.queueDelete({ queue })).messageCount;
  await channel.exchangeDelete({ exchange: 'orders' });
  await channel.close();
  await connection.close();
  process.stdout.write(JSON.stringify({
    ...counts, returned, got: seen('audit', got, got, got.body), empty, messages,
    missing_queue: missingQueue, missing_exchange: missingExchange, deleted, closed: !channel.active,
  }));
}

main();
