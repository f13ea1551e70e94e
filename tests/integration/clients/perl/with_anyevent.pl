# What tests/integration/test_clients.py asks of each client, done with AnyEvent::RabbitMQ.

use strict;
use warnings;
use utf8;

use AnyEvent;
use AnyEvent::RabbitMQ;
use Encode qw(decode_utf8 encode_utf8);
use JSON::PP;

my @QUEUES = qw(orders.1 orders.2 orders.3);
my $COUNT  = 300;
my @PROPERTIES = qw(
    content_type delivery_mode priority correlation_id reply_to expiration message_id timestamp type user_id app_id
);

# Numbers in deep headers are left out: this client takes what looks like a number for one, and shows it as text.
sub header_of {
    my ($number) = @_;
    my $header = {
        content_type => 'text/plain', delivery_mode => 2, priority => 3, correlation_id => "c-$number",
        reply_to     => 'answers', expiration => '600000', message_id => "id-$number",
        timestamp    => 1_700_000_000 + $number, type => 'order', app_id => 'clients',
    };
    my $name = encode_utf8("Žofie $number");
    $header->{headers} = { number => $number, name => $name, more => { deep => 'two' } } if $number % 2 == 0;
    return $header;
}

sub body_of {
    my ($number) = @_;
    return $number == 0 ? '' : $number == 1 ? 'x' x 200_000 : "order $number";
}

sub text { my ($value) = @_; return ref $value ? $value : decode_utf8($value) }

sub seen {
    my ($queue, $method, $message) = @_;
    my $header  = $message->{header};
    my %set     = map { defined $header->$_ ? ($_ => $header->$_) : () } @PROPERTIES;
    my $headers = $header->headers || {};
    $set{$_} = text($set{$_}) for keys %set;
    return {
        queue       => $queue,
        exchange    => $method->exchange,
        routing_key => $method->routing_key,
        redelivered => $method->redelivered ? JSON::PP::true : JSON::PP::false,
        properties  => \%set,
        headers     => { map { $_ => text($headers->{$_}) } keys %$headers },
        body        => $message->{body} ? $message->{body}->payload : '',
    };
}

# Calls a method and waits for its success.
sub done {
    my ($what, $method, %arguments) = @_;
    my $done = AnyEvent->condvar;
    $what->$method(
        %arguments,
        on_success => sub { $done->send(@_) },
        on_failure => sub { $done->croak("$method: " . join ' ', map { ref $_ ? $_->method_frame->reply_text : $_ } @_) },
    );
    my ($first) = $done->recv;
    return $first;
}

# The code and the text that a channel ends with over a mistake.
sub closed_by {
    my ($connection, $mistake) = @_;
    my $closed  = AnyEvent->condvar;
    my $channel = done($connection, 'open_channel', on_close => sub { $closed->send($_[0]->method_frame) });
    $mistake->($channel);
    my $close = $closed->recv;
    return [ $close->reply_code, $close->reply_text ];
}

sub publish_all {
    my ($channel, $counts, $returned) = @_;
    my $settled = AnyEvent->condvar;
    my $publish = sub {
        my ($exchange, $key, %arguments) = @_;
        $settled->begin;
        $channel->publish(
            exchange => $exchange, routing_key => $key, %arguments,
            on_ack  => sub { $counts->{acked}++;  $settled->end },
            on_nack => sub { $counts->{nacked}++; $settled->end },
        );
    };
    for my $number (0 .. $COUNT - 1) {
        $publish->('orders', "customer-$number", header => header_of($number), body => body_of($number));
    }
    $publish->('amq.direct', 'audit', header => { message_id => 'audit', timestamp => 1_700_000_000 }, body => 'noted');
    $publish->(
        '', 'no such queue', header => { message_id => 'lost' }, body => 'lost', mandatory => 1,
        on_return => sub {
            # Which publish it was, this client tells by a header of its own, that must come back for this to be called.
            my $method = $_[0]->method_frame;
            push @$returned, {
                code        => $method->reply_code, text => $method->reply_text, exchange => $method->exchange,
                routing_key => $method->routing_key,
            };
        },
    );
    $settled->recv;
}

sub consume_all {
    my ($channel) = @_;
    my (@messages, $all);
    $all = AnyEvent->condvar;
    done($channel, 'qos', prefetch_count => 20);
    for my $queue (@QUEUES) {
        my $take = sub {
            my ($message) = @_;
            my $method = $message->{deliver}->method_frame;
            push @messages, seen($queue, $method, $message);
            $channel->ack(delivery_tag => $method->delivery_tag);
            $all->send if @messages == $COUNT;
        };
        done($channel, 'consume', queue => $queue, no_ack => 0, on_consume => $take);
    }
    $all->recv;
    return \@messages;
}

my ($host, $port, $user, $password, $vhost) = @ARGV;
my $client     = AnyEvent::RabbitMQ->new->load_xml_spec;
my $ended      = AnyEvent->condvar;
my $connection = done(
    $client, 'connect',
    host => $host, port => $port, user => $user, pass => $password, vhost => $vhost, timeout => 10,
    on_read_failure => sub { die @_ }, on_close => sub { $ended->send(@_) },
);
my $product = $connection->server_properties->{product};
my $channel = done($connection, 'open_channel');
done($channel, 'confirm');
done($channel, 'declare_exchange', exchange => 'orders', type => 'x-consistent-hash', durable => 1);
for my $queue (@QUEUES) {
    done($channel, 'declare_queue', queue => $queue, durable => 1, auto_delete => 0);
    done($channel, 'bind_queue', queue => $queue, exchange => 'orders', routing_key => '1');
}
done($channel, 'declare_queue', queue => 'audit', durable => 1, auto_delete => 0);
done($channel, 'bind_queue', queue => 'audit', exchange => 'amq.direct', routing_key => 'audit');
my %counts = (acked => 0, nacked => 0);
my @returned;
publish_all($channel, \%counts, \@returned);

my $taken = done($channel, 'get', queue => 'audit', no_ack => 0);
$channel->ack(delivery_tag => $taken->{ok}->method_frame->delivery_tag);
my $got      = seen('audit', $taken->{ok}->method_frame, $taken);
my $empty    = exists done($channel, 'get', queue => 'audit')->{empty} ? JSON::PP::true : JSON::PP::false;
my $messages = consume_all($channel);
my $missing_queue = closed_by(
    $connection,
    sub { $_[0]->declare_queue(queue => 'no such queue', passive => 1, on_success => sub { }, on_failure => sub { }) },
);
my $missing_exchange = closed_by($connection, sub { $_[0]->publish(exchange => 'no such exchange', routing_key => 'k') });
my %deleted = map { $_ => done($channel, 'delete_queue', queue => $_)->method_frame->message_count } @QUEUES, 'audit';
done($channel, 'delete_exchange', exchange => 'orders');
done($channel, 'close');
done($connection, 'close');

my $json = JSON::PP->new->utf8->canonical->allow_blessed->convert_blessed;
print $json->encode({
    product => $product, %counts, returned => \@returned, got => $got, empty => $empty, messages => $messages,
    missing_queue => $missing_queue, missing_exchange => $missing_exchange, deleted => \%deleted,
    closed => $connection->is_open ? JSON::PP::false : JSON::PP::true,
});
