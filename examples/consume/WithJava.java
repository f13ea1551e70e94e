import com.rabbitmq.client.*;
import java.util.concurrent.*;

public class WithJava {
    static volatile boolean ending;

    public static void main(String[] arguments) throws Exception {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ending = true;
            try {
                main.join();
            } catch (InterruptedException ignored) {
            }
        }));
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://billing:PASSWORD@localhost:5673/shop");
        factory.setAutomaticRecoveryEnabled(false); // it does not open a closed channel again
        while (!ending) {
            try (Connection connection = factory.newConnection()) {
                consume(connection.createChannel());
            } catch (Exception error) {
                System.err.println(error);
                Thread.sleep(1000);
            }
        }
    }

    static void consume(Channel channel) throws Exception {
        BlockingQueue<Delivery> orders = new LinkedBlockingQueue<>();
        channel.basicQos(10);
        channel.basicConsume("orders", false, (tag, order) -> orders.add(order), tag -> {});
        while (!ending && channel.isOpen()) {
            Delivery order = orders.poll(1, TimeUnit.SECONDS);
            if (order != null) {
                long tag = order.getEnvelope().getDeliveryTag();
                if (Shop.charge(order.getEnvelope().getRoutingKey(), new String(order.getBody()))) {
                    channel.basicAck(tag, false);
                } else {
                    channel.basicNack(tag, false, true);
                }
            }
        }
    }
}
