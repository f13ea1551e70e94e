package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func consume(ctx context.Context) error {
	connection, err := amqp.Dial("amqp://billing:PASSWORD@localhost:5673/shop")
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(10, 0, false); err != nil {
		return err
	}
	messages, err := channel.Consume("orders", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case message, open := <-messages:
			if !open {
				return amqp.ErrClosed
			}
			if charge(message.RoutingKey, string(message.Body)) == nil {
				err = message.Ack(false)
			} else {
				err = message.Nack(false, true)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func main() {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	for ctx.Err() == nil {
		if err := consume(ctx); err != nil {
			log.Print(err)
			time.Sleep(time.Second)
		}
	}
}
