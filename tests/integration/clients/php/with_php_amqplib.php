<?php
// What tests/integration/test_clients.py asks of each client, done with php-amqplib.

require '/usr/share/php/PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

const QUEUES = ['orders.1', 'orders.2', 'orders.3'];
const COUNT = 300;

function message_of(int $number): AMQPMessage
{
    $properties = [
        'content_type' => 'text/plain',
        'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT,
        'priority' => 3,
        'correlation_id' => "c-$number",
        'reply_to' => 'answers',
        'expiration' => '600000',
        'message_id' => "id-$number",
        'timestamp' => 1700000000 + $number,
        'type' => 'order',
        'app_id' => 'clients',
    ];
    if ($number % 2 == 0) {
        $properties['application_headers'] = new AMQPTable([
            'number' => $number, 'name' => "Žofie $number", 'first' => $number == 0, 'more' => ['deep' => [1, 'two']],
        ]);
    }
    return new AMQPMessage([0 => '', 1 => str_repeat('x', 200000)][$number] ?? "order $number", $properties);
}

function seen(string $queue, AMQPMessage $message): array
{
    $properties = $message->get_properties();
    $headers = $properties['application_headers'] ?? null;
    unset($properties['application_headers']);
    return [
        'queue' => $queue,
        'exchange' => $message->getExchange(),
        'routing_key' => $message->getRoutingKey(),
        'redelivered' => (bool) $message->isRedelivered(),
        'properties' => (object) $properties,
        'headers' => (object) ($headers ? $headers->getNativeData() : []),
        'body' => $message->getBody(),
    ];
}

/** The code and the text that a channel ends with over a mistake. */
function closed_by(AMQPStreamConnection $connection, callable $mistake): array
{
    $channel = $connection->channel();
    try {
        $mistake($channel);
        $channel->wait(null, false, 30);
    } catch (AMQPProtocolChannelException $closed) {
        return [$closed->amqp_reply_code, $closed->amqp_reply_text];
    }
    return [];
}

[, $host, $port, $user, $password, $vhost] = $argv;
$connection = new AMQPStreamConnection($host, (int) $port, $user, $password, $vhost);
$channel = $connection->channel();
$channel->confirm_select();
$acked = $nacked = 0;
$channel->set_ack_handler(function () use (&$acked) { $acked++; });
$channel->set_nack_handler(function () use (&$nacked) { $nacked++; });
$returned = [];
$channel->set_return_listener(function ($code, $text, $exchange, $key, AMQPMessage $message) use (&$returned) {
    $returned[] = [
        'code' => $code, 'text' => $text, 'exchange' => $exchange, 'routing_key' => $key,
        'message_id' => $message->get('message_id'), 'body' => $message->getBody(),
    ];
});

$channel->exchange_declare('orders', 'x-consistent-hash', false, true, false);
foreach (QUEUES as $queue) {
    $channel->queue_declare($queue, false, true, false, false);
    $channel->queue_bind($queue, 'orders', '1');
}
$channel->queue_declare('audit', false, true, false, false);
$channel->queue_bind('audit', 'amq.direct', 'audit');

for ($number = 0; $number < COUNT; $number++) {
    $channel->basic_publish(message_of($number), 'orders', "customer-$number");
}
$channel->basic_publish(new AMQPMessage('noted', ['message_id' => 'audit']), 'amq.direct', 'audit');
$channel->basic_publish(new AMQPMessage('lost', ['message_id' => 'lost']), '', 'no such queue', true);
$channel->wait_for_pending_acks_returns(30);

$got = $channel->basic_get('audit');
$got->ack();
$empty = $channel->basic_get('audit') === null;

$messages = [];
$channel->basic_qos(0, 20, false);
foreach (QUEUES as $queue) {
    $channel->basic_consume($queue, '', false, false, false, false, function ($message) use (&$messages, $queue) {
        $messages[] = seen($queue, $message);
        $message->ack();
    });
}
while (count($messages) < COUNT) {
    $channel->wait(null, false, 30);
}

$missing_queue = closed_by($connection, fn ($other) => $other->queue_declare('no such queue', true));
$missing_exchange = closed_by(
    $connection,
    fn ($other) => $other->basic_publish(new AMQPMessage(''), 'no such exchange', 'k')
);
$deleted = [];
foreach ([...QUEUES, 'audit'] as $queue) {
    $deleted[$queue] = $channel->queue_delete($queue);
}
$channel->exchange_delete('orders');
$channel->close();
$product = $connection->getServerProperties()['product'][1];
$connection->close();
echo json_encode([
    'product' => $product, 'acked' => $acked, 'nacked' => $nacked, 'returned' => $returned,
    'got' => seen('audit', $got), 'empty' => $empty, 'messages' => $messages, 'missing_queue' => $missing_queue,
    'missing_exchange' => $missing_exchange, 'deleted' => $deleted, 'closed' => !$connection->isConnected(),
], JSON_THROW_ON_ERROR);
