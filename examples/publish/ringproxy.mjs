import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

const URL_OF_SIDECAR = process.env.SIDECAR_URL ?? 'http://127.0.0.1:15680';
const TOKEN = process.env.SIDECAR_TOKEN; // where the sidecar asks for one
const TIME_LIMIT = 20_000; // ms, more than the sidecar's lookup_timeout and confirm_timeout together

// One request. Returns the parsed answer. Without a connection nothing was sent; without an answer the outcome is unknown.
export async function post(path, headers, body) {
  const authorization = TOKEN ? { Authorization: `Bearer ${TOKEN}` } : {};
  // Not AbortSignal.timeout(): Node does not wait for its timer, and can end while a publish is under way.
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(new Error('no answer in time')), TIME_LIMIT);
  try {
    const response = await fetch(URL_OF_SIDECAR + path, {
      method: 'POST',
      headers: { ...headers, ...authorization },
      body,
      signal: limit.signal,
    });
    return { ...(await response.json()), ok: response.ok, wait: Number(response.headers.get('Retry-After') ?? 0) };
  } catch (error) {
    const outcome = error.cause?.code === 'ECONNREFUSED' ? 'unavailable' : 'unknown';
    return { ok: false, outcome, retryable: true, wait: 0, detail: String(error.cause ?? error) };
  } finally {
    clearTimeout(timer);
  }
}

// Wait before the next attempt: at least as long as the sidecar asks, twice as long each time, at most about 30 s.
export function pause(attempt, wait) {
  const seconds = Math.max(wait, Math.min(30, 0.1 * 2 ** attempt));
  return sleep(1000 * seconds * (1 + Math.random() / 2));
}

// Publish an object as JSON. Returns the receipt. Throws an error with `outcome` when the message is refused for good,
// or after the last attempt. If that outcome is "unknown", the message may be in a queue.
export async function publish(exchange, key, message, { id = randomUUID(), attempts = 8 } = {}) {
  const path = `/v1/exchanges/${encodeURIComponent(exchange)}/publish?key=${encodeURIComponent(key)}`;
  const headers = { 'Content-Type': 'application/json', 'Amqp-Message-Id': id }; // the same id at each attempt
  let mayBeThere = false;
  for (let attempt = 1; ; attempt += 1) {
    const answer = await post(path, headers, JSON.stringify(message));
    if (answer.ok) return answer;
    mayBeThere ||= answer.outcome === 'unknown';
    if (!answer.retryable || attempt === attempts) {
      const outcome = mayBeThere ? 'unknown' : answer.outcome;
      throw Object.assign(new Error(`${id}: ${answer.detail}`), { id, outcome });
    }
    await pause(attempt, answer.wait);
  }
}
