import { setTimeout as sleep } from 'node:timers/promises';
import amqp from 'amqplib';

const TIME_LIMIT = 20_000; // ms to wait for a confirm; an alarm of the broker does not count

// A message is refused for good, or the last attempt failed. With outcome "unknown" it may be in a queue.
export class PublishError extends Error {
  constructor(outcome, detail) {
    super(`${outcome}: ${detail}`);
    this.outcome = outcome;
  }
}

// Publishes any number of messages at a time on one connection, each on a channel of its own.
export class Publisher {
  #url;
  #connecting; // the promise of the connection; undefined when there is none
  #blocked = false; // whether the broker takes no publishes, because of an alarm
  #free = []; // open channels without a publish

  constructor(url) {
    this.#url = url;
  }

  // Resolves once the message is in a queue. Throws a PublishError otherwise.
  async publish(exchange, key, body, messageId, attempts = 8) {
    let mayBeThere = false;
    for (let attempt = 1; ; attempt += 1) {
      const { outcome, detail } = await this.#tryOnce(exchange, key, body, messageId);
      if (outcome === 'confirmed') return;
      mayBeThere ||= outcome === 'unknown';
      if (outcome === 'invalid' || attempt === attempts) {
        throw new PublishError(mayBeThere ? 'unknown' : outcome, `${messageId}: ${detail}`);
      }
      await sleep(1000 * Math.min(30, 0.1 * 2 ** attempt) * (1 + Math.random() / 2));
    }
  }

  async close() {
    const connection = await this.#connecting;
    await connection?.close();
  }

  async #tryOnce(exchange, key, body, messageId) {
    let opened;
    try {
      opened = this.#free.pop() ?? (await this.#open());
    } catch (error) { // nothing was sent
      return { outcome: /by server: 403/.test(error.message) ? 'invalid' : 'unavailable', detail: error.message };
    }
    let timer;
    const answered = new Promise((resolve) => {
      const giveUp = () => {
        if (this.#blocked) {
          timer = setTimeout(giveUp, TIME_LIMIT); // the message is on its way, and arrives after the alarm
        } else {
          resolve({ outcome: 'unknown', detail: 'no confirm in time' });
          opened.channel.close().catch(() => {}); // it may be closed already
        }
      };
      timer = setTimeout(giveUp, TIME_LIMIT);
      opened.returned = false;
      const options = { messageId, mandatory: true, persistent: true, contentType: 'application/json' };
      const onAnswer = (error) => { // of this publish, or of the end of its channel
        resolve(outcomeOf(error, opened));
        if (!opened.isClosed) this.#free.push(opened);
      };
      try {
        opened.channel.publish(exchange, key, Buffer.from(body), options, onAnswer);
      } catch (error) { // the channel was closed before
        resolve({ outcome: 'unavailable', detail: error.message });
      }
    });
    return answered.finally(() => clearTimeout(timer));
  }

  async #open() {
    this.#connecting ??= this.#connect();
    const connection = await this.#connecting;
    const channel = await connection.createConfirmChannel();
    const opened = { channel, isClosed: false, closedBy: undefined, returned: false };
    channel.on('error', (error) => { opened.closedBy = error; });
    channel.on('return', () => { opened.returned = true; }); // of the only publish on this channel
    channel.prependListener('close', () => {
      opened.isClosed = true;
      this.#free = this.#free.filter((other) => other !== opened);
    });
    return opened;
  }

  async #connect() {
    try {
      const connection = await amqp.connect(this.#url, { timeout: TIME_LIMIT });
      this.#blocked = false;
      connection.on('error', () => {}); // 'close' follows
      connection.on('close', () => { this.#connecting = undefined; });
      connection.on('blocked', () => { this.#blocked = true; });
      connection.on('unblocked', () => { this.#blocked = false; });
      return connection;
    } catch (error) {
      this.#connecting = undefined;
      throw error;
    }
  }
}

// What became of the only publish on a channel.
function outcomeOf(error, { closedBy, returned }) {
  if (!error) return { outcome: returned ? 'unroutable' : 'confirmed', detail: 'returned' };
  if (error.message === 'message nacked') return { outcome: 'nacked', detail: error.message };
  const outcomes = { 403: 'invalid', 404: 'invalid', 541: 'unavailable' };
  return { outcome: outcomes[closedBy?.code] ?? 'unknown', detail: (closedBy ?? error).message };
}
