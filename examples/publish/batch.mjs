import { pause, post } from './ringproxy.mjs';

// Publish messages {id, key, payload}. Returns those that are not confirmed at the end, each with its outcome. When a
// message fails for good, the later ones of its key are not sent again, and are returned, too.
export async function publishBatch(exchange, messages, attempts = 8) {
  const path = `/v1/exchanges/${encodeURIComponent(exchange)}/publish/batch`;
  const headers = { 'Content-Type': 'application/x-ndjson' };
  const failed = [];
  const mayBeThere = new Set();
  for (let attempt = 1; messages.length > 0; attempt += 1) {
    const lines = messages.map((message) => JSON.stringify({ ...message, properties: { message_id: message.id } }));
    const answer = await post(path, headers, lines.join('\n'));
    if (answer.ok) break;
    const again = [];
    const stopped = new Set(); // keys of which a message has failed for good just now
    messages.forEach((message, index) => {
      // Where there are no results, or fewer than messages, the answer to the whole request counts.
      const result = answer.results?.[index] ?? answer;
      if (result.outcome === 'confirmed' || result.outcome === 'passed') return;
      if (result.outcome === 'unknown') mayBeThere.add(message);
      if (result.retryable && attempt < attempts && !stopped.has(message.key)) {
        again.push(message);
      } else {
        stopped.add(message.key);
        failed.push({ message, outcome: mayBeThere.has(message) ? 'unknown' : result.outcome, detail: result.detail });
      }
    });
    messages = again;
    if (messages.length > 0) await pause(attempt, answer.wait);
  }
  return failed;
}

const failed = await publishBatch('orders', [
  { id: 'order-15', key: 'customer-4711', payload: 'fifteen' },
  { id: 'order-16', key: 'customer-6', payload: 16 },
  { id: 'order-17', key: 'customer-6', payload: 'seventeen' },
]);
for (const { message, outcome, detail } of failed) console.log(message.id, outcome, detail);
