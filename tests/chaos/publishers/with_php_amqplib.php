<?php
// Publishes with php-amqplib, many messages at once, with confirms, every other one mandatory.
// tests/chaos/publishers/notes.py says what it is given and what it writes.

require '/usr/share/php/PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;

const KEYS = 53;
const AT_ONCE = 800;
const PAUSE_MICROSECONDS = 100000;
const ANSWER_SECONDS = 20;

function now(): float
{
    return hrtime(true) / 1e9;
}

/** Publishes until the connection is lost, which throws, or it is time to end; `number` counts on. */
function publish(AMQPStreamConnection $connection, object $task, $notes, int $incarnation, int &$number): void
{
    $unsettled = [];
    $settle = function (string $id, string $outcome) use (&$unsettled, $notes, $incarnation) {
        // A message that came back is acked, too.
        if (isset($unsettled[$id])) {
            [$key, $sent] = $unsettled[$id];
            unset($unsettled[$id]);
            fprintf($notes, "%d %s %s %.6F %.6F %s\n", $incarnation, $id, $key, $sent, now(), $outcome);
        }
    };
    $settled_as = fn (string $outcome) => fn (AMQPMessage $m) => $settle(explode(' ', $m->getBody())[1], $outcome);
    try {
        $channel = $connection->channel();
        $channel->confirm_select();
        $channel->set_ack_handler($settled_as('confirmed'));
        $channel->set_nack_handler($settled_as('nacked'));
        $returned = $settled_as('returned');
        $channel->set_return_listener(fn ($code, $text, $exchange, $key, $message) => $returned($message));
        while (!file_exists($task->stop)) {
            $begun = now();
            for ($count = 0; $count < AT_ONCE; $count++) {
                $number++;
                $key = $task->name . '-' . $number % KEYS;
                $message = new AMQPMessage("$task->name $number", ['delivery_mode' => 2]);
                $unsettled[$number] = [$key, now()];
                $channel->basic_publish($message, $task->exchange, $key, $number % 2 == 0);
            }
            $channel->wait_for_pending_acks_returns(ANSWER_SECONDS);
            usleep((int) (max(0, AT_ONCE / $task->rate - (now() - $begun)) * 1e6));
        }
    } finally {
        foreach (array_keys($unsettled) as $id) {
            $settle((string) $id, 'unknown');
        }
    }
}

$task = json_decode($argv[1]);
$notes = fopen($task->notes, 'w');
$number = 0;
for ($incarnation = 1; !file_exists($task->stop); $incarnation++) {
    try {
        $port = $task->ports[$incarnation % count($task->ports)];
        $connection = new AMQPStreamConnection(
            '127.0.0.1', $port, 'guest', 'guest', '/',
            connection_timeout: 3, read_write_timeout: 4, heartbeat: 2
        );
        publish($connection, $task, $notes, $incarnation, $number);
        $connection->close();
    } catch (Exception | Error $lost) {
        // Every client library of this suite raises what it likes where a connection is lost.
        if ($lost instanceof TypeError || $lost instanceof ParseError) {
            throw $lost;
        }
        usleep(PAUSE_MICROSECONDS);
    }
}
fclose($notes);
