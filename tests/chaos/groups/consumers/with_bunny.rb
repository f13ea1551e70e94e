# frozen_string_literal: true

# A member with bunny. tests/chaos/groups/consumers/member.py says what it is told and what it writes.

require "bunny"
require "json"

PAUSE = 0.1
CANCELLED_FOR = 0.5
MULTIPLE = 0.05

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# What the member is told on its standard input, which it ends with.
class Commands
  attr_reader :holding, :over

  def initialize
    @told = Queue.new
    @holding = @over = false
    Thread.new do
      $stdin.each_line { |line| @told << line.strip }
      exit!(0)
    end
  end

  def ending
    until @told.empty?
      told = @told.pop
      @holding = %w[hold cancel].include?(told)
      @over = %w[cancel close].include?(told)
      return told if @over
    end
    nil
  end
end

# Keeps the error that bunny would else raise in the main thread, whatever that is at.
class Failure
  attr_reader :error

  def raise(*error)
    @error ||= error.join(" ")
  end
end

# Writes lines, and acks what is due, on one connection after the other.
class Member
  attr_accessor :number

  def initialize(task, commands)
    @task, @commands, @number = task, commands, 0
    @chance, @lock = Random.new(task["seed"]), Mutex.new
  end

  def write(what, *rest)
    @lock.synchronize { $stdout.write([what, format("%.6f", now), @number, *rest].join(" ") + "\n") }
  end

  # Returns once the member is told to end; raises once the connection or the channel is gone.
  def consume(connection, failure)
    @due = {}
    channel = connection.create_channel
    channel.prefetch(@task["prefetch"])
    cancelled = false
    consumers = @task["sources"].map do |source|
      queue = channel.queue(source, no_declare: true)
      queue.subscribe(manual_ack: true, on_cancellation: ->(_) { cancelled = true }) do |info, _, body|
        delivered(info, body)
      end
    end
    write("j")
    until (ending = @commands.ending)
      sleep(PAUSE / 10)
      raise "consumer cancelled" if cancelled
      raise failure.error if failure.error
      raise "closed" unless connection.open? && channel.open?

      settle(channel) unless @commands.holding
    end
    if ending == "cancel"
      consumers.each(&:cancel)
      sleep(CANCELLED_FOR)
    end
    write("c")
    connection.close
  end

  private

  # Runs in the library's thread.
  def delivered(info, body)
    exchange, key = [info.exchange, info.routing_key].map { |name| name.empty? ? "-" : name }
    write("d", info.delivery_tag.to_i, info.redelivered? ? 1 : 0, exchange, key, body)
    @lock.synchronize { @due[info.delivery_tag.to_i] = now + @chance.rand * @task["ack_within"] }
  end

  def settle(channel)
    due = @lock.synchronize { @due.select { |_, time| time <= now }.keys }
    due.each do |tag|
      next unless @due.key?(tag)

      drawn = @chance.rand
      if drawn < @task["nacked"]
        @lock.synchronize { @due.delete(tag) }
        write("n", tag)
        channel.nack(tag, false, true)
      elsif drawn < @task["nacked"] + MULTIPLE
        @lock.synchronize { @due.delete_if { |other, _| other <= tag } }
        write("m", tag)
        channel.ack(tag, true)
      else
        @lock.synchronize { @due.delete(tag) }
        write("a", tag)
        channel.ack(tag)
      end
    end
  end
end

$stdout.sync = true
task = JSON.parse(ARGV.fetch(0))
commands = Commands.new
member = Member.new(task, commands)
(0..).each do |following|
  begin
    failure = Failure.new
    port = task["ports"][following % task["ports"].size]
    connection = Bunny.new(
      host: "127.0.0.1", port: port, heartbeat: task["heartbeat"], connection_name: task["name"],
      automatically_recover: false, recover_from_connection_close: false, session_error_handler: failure,
      connection_timeout: 3, continuation_timeout: 4_000, read_timeout: 2 * task["heartbeat"] + 1, log_level: Logger::FATAL
    )
    connection.start
  rescue StandardError
    sleep(PAUSE)
    next
  end
  member.number += 1
  begin
    member.consume(connection, failure)
    exit!(0)
  rescue StandardError => error
    member.write("l", "#{error.class} #{error.message.tr("\n", " ")}")
    exit!(0) if commands.over
    sleep(PAUSE)
  end
end
