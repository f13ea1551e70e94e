'use strict';
// What both of node's clients publish, and how they tell what they saw.

const QUEUES = ['orders.1', 'orders.2', 'orders.3'];
const COUNT = 300;

function bodyOf(number) {
  return { 0: '', 1: 'x'.repeat(200000) }[number] ?? `order ${number}`;
}

function headersOf(number) {
  if (number % 2) return undefined;
  return { number, name: `Žofie ${number}`, first: number === 0, more: { deep: [1, 'two'] } };
}

function propertiesOf(number) {
  return {
    contentType: 'text/plain',
    priority: 3,
    correlationId: `c-${number}`,
    replyTo: 'answers',
    expiration: '600000',
    messageId: `id-${number}`,
    timestamp: 1700000000 + number,
    type: 'order',
    appId: 'clients',
    headers: headersOf(number),
  };
}

const NAMES = {
  content_type: 'contentType', delivery_mode: 'deliveryMode', priority: 'priority', correlation_id: 'correlationId',
  reply_to: 'replyTo', expiration: 'expiration', message_id: 'messageId', timestamp: 'timestamp', type: 'type',
  app_id: 'appId',
};

function seen(queue, fields, properties, body) {
  const set = Object.entries(NAMES).map(([name, here]) => [name, properties[here]]);
  return {
    queue,
    exchange: fields.exchange,
    routing_key: fields.routingKey,
    redelivered: fields.redelivered,
    properties: Object.fromEntries(set.filter(([, value]) => value !== undefined && value !== null)),
    headers: properties.headers ?? {},
    body: body.toString(),
  };
}

module.exports = { QUEUES, COUNT, bodyOf, headersOf, propertiesOf, seen };
