# frozen_string_literal: true

# What tests/integration/test_clients.py asks of each client, done with bunny.

require "bunny"
require "json"

QUEUES = %w[orders.1 orders.2 orders.3].freeze
COUNT = 300
PROPERTIES = %i[
  content_type delivery_mode priority correlation_id reply_to expiration message_id timestamp type app_id
].freeze

def body_of(number)
  { 0 => "", 1 => "x" * 200_000 }.fetch(number, "order #{number}")
end

def options_of(number)
  options = {
    content_type: "text/plain", persistent: true, priority: 3, correlation_id: "c-#{number}", reply_to: "answers",
    expiration: "600000", message_id: "id-#{number}", timestamp: 1_700_000_000 + number, type: "order",
    app_id: "clients", routing_key: "customer-#{number}"
  }
  return options if number.odd?

  headers = { "number" => number, "name" => "Žofie #{number}", "first" => number.zero?, "more" => { "deep" => [1, "two"] } }
  options.merge(headers: headers)
end

def seen(queue, delivery, properties, body)
  set = properties.to_hash.slice(*PROPERTIES)
  set[:timestamp] = set[:timestamp].to_i if set[:timestamp]
  {
    queue: queue, exchange: delivery.exchange, routing_key: delivery.routing_key, redelivered: delivery.redelivered?,
    properties: set, headers: properties.headers || {}, body: body.dup.force_encoding("UTF-8")
  }
end

def consume_all(channel)
  messages = Queue.new
  channel.prefetch(20)
  consumers = QUEUES.map do |name|
    channel.queue(name, durable: true).subscribe(manual_ack: true) do |delivery, properties, body|
      channel.ack(delivery.delivery_tag)
      messages << seen(name, delivery, properties, body)
    end
  end
  taken = Array.new(COUNT) { messages.pop }
  consumers.each(&:cancel)
  taken
end

# The code and the text that a channel ends with over a mistake.
def closed_by(connection)
  channel = connection.create_channel
  begin
    yield channel
  rescue Bunny::NotFound
    # Kept by the channel, too.
  end
  sleep 0.01 until channel.closed?
  # After a publish, which has no answer, no public method tells of it.
  close = channel.instance_variable_get(:@last_channel_error).channel_close
  [close.reply_code, close.reply_text]
end

host, port, user, password, vhost = ARGV
connection = Bunny.new(host: host, port: port.to_i, user: user, password: password, vhost: vhost)
connection.start
channel = connection.create_channel
channel.confirm_select
orders = channel.exchange("orders", type: "x-consistent-hash", durable: true)
QUEUES.each { |name| channel.queue(name, durable: true).bind(orders, routing_key: "1") }
audit = channel.queue("audit", durable: true).bind("amq.direct", routing_key: "audit")

returned = Queue.new
nowhere = channel.default_exchange
nowhere.on_return do |back, properties, body|
  returned << {
    code: back.reply_code, text: back.reply_text, exchange: back.exchange, routing_key: back.routing_key,
    message_id: properties.message_id, body: body
  }
end
COUNT.times { |number| orders.publish(body_of(number), options_of(number)) }
channel.direct("amq.direct", durable: true).publish("noted", routing_key: "audit", message_id: "audit")
nowhere.publish("lost", routing_key: "no such queue", message_id: "lost", mandatory: true)
confirmed = channel.wait_for_confirms

delivery, properties, body = audit.pop(manual_ack: true)
channel.ack(delivery.delivery_tag)
got = seen("audit", delivery, properties, body)
empty = audit.pop.all?(&:nil?)
messages = consume_all(channel)
missing_queue = closed_by(connection) { |other| other.queue_declare("no such queue", passive: true) }
missing_exchange = closed_by(connection) { |other| other.basic_publish("", "no such exchange", "k") }
deleted = [*QUEUES, "audit"].to_h { |name| [name, channel.queue_delete(name).message_count] }
channel.exchange_delete("orders")
channel.close
product = connection.server_properties["product"]
connection.close
print JSON.generate(
  product: product, acked: confirmed, nacked: channel.nacked_set.size, unconfirmed: channel.unconfirmed_set.size,
  returned: [returned.pop], got: got, empty: empty, messages: messages, missing_queue: missing_queue,
  missing_exchange: missing_exchange, deleted: deleted, closed: connection.closed?
)
