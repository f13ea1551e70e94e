'use strict';
// A member with amqplib. tests/chaos/groups/consumers/member.py says what it is told and what it writes.

const fs = require('fs');
const readline = require('readline');
const amqp = require('amqplib');

const PAUSE = 100;
const CANCELLED_FOR = 500;
const MULTIPLE = 0.05;

const todo = JSON.parse(process.argv[2]);
const sleep = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });
const told = [];
let number = 0;
let holding = false;
let over = false;

function write(what, ...rest) {
  const now = (Number(process.hrtime.bigint()) / 1e9).toFixed(6);
  fs.writeSync(1, `${[what, now, number, ...rest].join(' ')}\n`);
}

// Small and seeded: Math.random cannot be.
let state = todo.seed >>> 0;
function random() {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
}

function ending() {
  while (told.length) {
    const command = told.shift();
    holding = command === 'hold' || command === 'cancel';
    over = command === 'cancel' || command === 'close';
    if (over) return command;
  }
  return '';
}

function settle(channel, unsettled) {
  for (const [tag, { message, due }] of [...unsettled]) {
    if (due > Date.now() || !unsettled.has(tag)) continue;
    const drawn = random();
    if (drawn < todo.nacked) {
      unsettled.delete(tag);
      write('n', tag);
      channel.nack(message, false, true);
    } else if (drawn < todo.nacked + MULTIPLE) {
      for (const other of [...unsettled.keys()]) if (other <= tag) unsettled.delete(other);
      write('m', tag);
      channel.ack(message, true);
    } else {
      unsettled.delete(tag);
      write('a', tag);
      channel.ack(message);
    }
  }
}

// Resolves once the member is told to end; rejects once the connection or the channel is gone.
async function consume(connection) {
  const unsettled = new Map();
  let gone = null;
  const lost = (why) => (error) => { gone = gone || new Error(`${why} ${error ? error.message : ''}`); };
  connection.on('error', lost('connection'));
  connection.on('close', lost('connection closed'));
  const channel = await connection.createChannel();
  channel.on('error', lost('channel'));
  channel.on('close', lost('channel closed'));
  await channel.prefetch(todo.prefetch);
  const consumers = [];
  for (const source of todo.sources) {
    consumers.push(await channel.consume(source, (message) => {
      if (!message) {
        lost('consumer cancelled')();
        return;
      }
      const { deliveryTag: tag, redelivered, exchange, routingKey: key } = message.fields;
      write('d', tag, redelivered ? 1 : 0, exchange || '-', key || '-', message.content.toString());
      unsettled.set(tag, { message, due: Date.now() + random() * todo.ack_within * 1000 });
    }));
  }
  write('j');
  let command = '';
  while (!command) {
    await sleep(PAUSE / 10);
    if (gone) throw gone;
    command = ending();
    // amqplib may send connection.close before acks of the same turn, which the broker then never gets.
    if (!holding && !command) settle(channel, unsettled);
  }
  if (command === 'cancel') {
    for (const { consumerTag } of consumers) await channel.cancel(consumerTag);
    await sleep(CANCELLED_FOR);
  }
  write('c');
  // close() never settles if the connection is lost before the answer comes.
  const closed = new Promise((done) => { connection.once('close', done); });
  await Promise.race([connection.close(), closed]);
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin });
  lines.on('line', (line) => told.push(line.trim()));
  lines.on('close', () => process.exit(0));
  for (let next = 0; ; next += 1) {
    let connection;
    try {
      const port = todo.ports[next % todo.ports.length];
      const url = `amqp://guest:guest@127.0.0.1:${port}/?heartbeat=${todo.heartbeat}`;
      connection = await amqp.connect(url, { timeout: 5000, clientProperties: { connection_name: todo.name } });
    } catch (error) {
      await sleep(PAUSE);
      continue;
    }
    number += 1;
    try {
      await consume(connection);
      process.exit(0);
    } catch (error) {
      write('l', error.message);
      if (over) process.exit(0);
      connection.close().catch(() => {});
      await sleep(PAUSE);
    }
  }
}

main();
