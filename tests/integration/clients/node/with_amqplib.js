'use strict';
// What tests/integration/test_clients.py asks of each client, done with amqplib.

const amqp = require('amqplib');
const { QUEUES, COUNT, bodyOf, propertiesOf, seen } = require('./messages.js');

function publishAll(channel) {
  const counts = { acked: 0, nacked: 0 };
  const count = (error) => { counts[error ? 'nacked' : 'acked'] += 1; };
  for (let number = 0; number < COUNT; number += 1) {
    const properties = { ...propertiesOf(number), persistent: true };
    channel.publish('orders', `customer-${number}`, Buffer.from(bodyOf(number)), properties, count);
  }
  channel.publish('amq.direct', 'audit', Buffer.from('noted'), { messageId: 'audit' }, count);
  channel.publish('', 'no such queue', Buffer.from('lost'), { messageId: 'lost', mandatory: true }, count);
  return channel.waitForConfirms().then(() => counts);
}

async function consumeAll(channel) {
  const messages = [];
  let consumers;
  await channel.prefetch(20);
  await new Promise((done) => {
    consumers = QUEUES.map((queue) => channel.consume(queue, (message) => {
      messages.push(seen(queue, message.fields, message.properties, message.content));
      channel.ack(message);
      if (messages.length === COUNT) done();
    }));
  });
  for (const { consumerTag } of await Promise.all(consumers)) await channel.cancel(consumerTag);
  return messages;
}

// The code and the text that a channel ends with over a mistake.
async function closedBy(connection, mistake) {
  const channel = await connection.createChannel();
  return new Promise((done) => {
    channel.on('error', (error) => done([error.code, error.message]));
    Promise.resolve(mistake(channel)).catch(() => {});
  });
}

async function main() {
  const [hostname, port, username, password, vhost] = process.argv.slice(2);
  const connection = await amqp.connect({ protocol: 'amqp', hostname, port: Number(port), username, password, vhost });
  const { product } = connection.connection.serverProperties;
  const channel = await connection.createConfirmChannel();
  const returned = [];
  channel.on('return', ({ fields, properties, content }) => returned.push({
    code: fields.replyCode, text: fields.replyText, exchange: fields.exchange, routing_key: fields.routingKey,
    message_id: properties.messageId, body: content.toString(),
  }));
  await channel.assertExchange('orders', 'x-consistent-hash', { durable: true });
  for (const queue of QUEUES) {
    await channel.assertQueue(queue, { durable: true });
    await channel.bindQueue(queue, 'orders', '1');
  }
  await channel.assertQueue('audit', { durable: true });
  await channel.bindQueue('audit', 'amq.direct', 'audit');
  const counts = await publishAll(channel);
  const got = await channel.get('audit');
  channel.ack(got);
  const empty = (await channel.get('audit')) === false;
  const messages = await consumeAll(channel);
  const missingQueue = await closedBy(connection, (other) => other.checkQueue('no such queue'));
  const missingExchange = await closedBy(connection, (other) => other.publish('no such exchange', 'k', Buffer.from('')));
  const deleted = {};
  for (const queue of [...QUEUES, 'audit']) deleted[queue] = (await channel.deleteQueue(queue)).messageCount;
  await channel.deleteExchange('orders');
  await channel.close();
  let closed = false;
  connection.on('close', () => { closed = true; });
  await connection.close();
  process.stdout.write(JSON.stringify({
    product, ...counts, returned, got: seen('audit', got.fields, got.properties, got.content), empty, messages,
    missing_queue: missingQueue, missing_exchange: missingExchange, deleted, closed,
  }));
}

main();
