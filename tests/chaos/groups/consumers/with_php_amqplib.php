<?php
// A member with php-amqplib. tests/chaos/groups/consumers/member.py says what it is told and what it writes.

require '/usr/share/php/PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPConnectionConfig;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;

const PAUSE = 0.1;
const CANCELLED_FOR = 0.5;
const MULTIPLE = 0.05;

function now(): float
{
    return hrtime(true) / 1e9;
}

function chance(): float
{
    return mt_rand() / mt_getrandmax();
}

/** What the member is told on its standard input, which it ends with. */
final class Commands
{
    public bool $holding = false;
    public bool $over = false;

    public function ending(): string
    {
        while (($line = fgets(STDIN)) !== false) {
            $told = trim($line);
            $this->holding = $told === 'hold' || $told === 'cancel';
            $this->over = $told === 'cancel' || $told === 'close';
            if ($this->over) {
                return $told;
            }
        }
        if (feof(STDIN)) {
            exit(0);
        }
        return '';
    }
}

final class Member
{
    public int $number = 0;
    /** When each message that is neither acked nor nacked is due, by tag. */
    private array $due = [];

    public function __construct(private object $task, private Commands $commands)
    {
    }

    public function write(string $what, ...$rest): void
    {
        fwrite(STDOUT, implode(' ', [$what, sprintf('%.6F', now()), $this->number, ...$rest]) . "\n");
    }

    private function delivered(AMQPMessage $message): void
    {
        $tag = $message->getDeliveryTag();
        $redelivered = $message->isRedelivered() ? 1 : 0;
        $exchange = $message->getExchange() ?: '-';
        $this->write('d', $tag, $redelivered, $exchange, $message->getRoutingKey() ?: '-', $message->getBody());
        $this->due[$tag] = now() + chance() * $this->task->ack_within;
    }

    private function settle($channel): void
    {
        foreach ($this->due as $tag => $due) {
            if ($due > now() || !isset($this->due[$tag])) {
                continue;
            }
            $drawn = chance();
            if ($drawn < $this->task->nacked) {
                unset($this->due[$tag]);
                $this->write('n', $tag);
                $channel->basic_nack($tag, false, true);
            } elseif ($drawn < $this->task->nacked + MULTIPLE) {
                $this->due = array_filter($this->due, fn ($other) => $other > $tag, ARRAY_FILTER_USE_KEY);
                $this->write('m', $tag);
                $channel->basic_ack($tag, true);
            } else {
                unset($this->due[$tag]);
                $this->write('a', $tag);
                $channel->basic_ack($tag);
            }
        }
    }

    /** Reads for a time; what is not there by then is no mistake. */
    private function read($channel, float $seconds): void
    {
        try {
            $channel->wait(null, false, $seconds);
        } catch (AMQPTimeoutException $nothing) {
        }
    }

    /** Consumes until the member is told to end; throws once the connection or the channel is gone. */
    public function consume(AMQPStreamConnection $connection): void
    {
        $this->due = [];
        $channel = $connection->channel();
        $channel->basic_qos(0, $this->task->prefetch, false);
        $consumers = [];
        foreach ($this->task->sources as $source) {
            $consumers[] = $channel->basic_consume($source, callback: $this->delivered(...));
        }
        $this->write('j');
        while (($ending = $this->commands->ending()) === '') {
            if (!$channel->is_consuming()) {
                throw new RuntimeException('consumer cancelled');
            }
            $this->read($channel, PAUSE / 10);
            if (!$this->commands->holding) {
                $this->settle($channel);
            }
        }
        if ($ending === 'cancel') {
            foreach ($consumers as $consumer) {
                $channel->basic_cancel($consumer);
            }
            usleep((int) (CANCELLED_FOR * 1e6));
        }
        $this->write('c');
        $channel->close();
        $connection->close();
    }
}

$task = json_decode($argv[1]);
mt_srand($task->seed);
stream_set_blocking(STDIN, false);
$commands = new Commands();
$config = new AMQPConnectionConfig();
$config->setConnectionName($task->name);
$member = new Member($task, $commands);
for ($next = 0; ; $next++) {
    try {
        $connection = new AMQPStreamConnection(
            '127.0.0.1', $task->ports[$next % count($task->ports)], 'guest', 'guest', '/',
            connection_timeout: 3, read_write_timeout: 2 * $task->heartbeat + 1, heartbeat: $task->heartbeat,
            config: $config
        );
    } catch (Exception $refused) {
        if ($commands->ending() !== '') {
            exit(0);
        }
        usleep((int) (PAUSE * 1e6));
        continue;
    }
    $member->number++;
    try {
        $member->consume($connection);
        exit(0);
    } catch (Exception $lost) {
        $member->write('l', str_replace("\n", ' ', get_class($lost) . ' ' . $lost->getMessage()));
        if ($commands->over) {
            exit(0);
        }
        try {
            $connection->close();
        } catch (Exception $gone) {
        }
        usleep((int) (PAUSE * 1e6));
    }
}
