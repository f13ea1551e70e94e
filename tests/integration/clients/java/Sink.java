import com.rabbitmq.client.*;
import java.io.FileInputStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;

/** Publishes as Debezium Server's RabbitMQ sink does: a batch of records, each with its key, and then their confirms. */
public class Sink {
    static final String PREFIX = "debezium.sink.rabbitmq.";
    static Properties properties = new Properties();

    /** The arguments are the file of properties, and then the key and the value of each record. */
    public static void main(String[] arguments) throws Exception {
        properties.load(new FileInputStream(arguments[0]));
        if (!told("routingKey.source").equals("key")) throw new Exception("a routing key that is not the record's key");
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(told("connection.host"));
        factory.setPort(Integer.parseInt(told("connection.port")));
        factory.setVirtualHost(told("connection.virtual.host"));
        factory.setUsername(told("connection.username"));
        factory.setPassword(told("connection.password"));
        AMQP.BasicProperties persistent = new AMQP.BasicProperties.Builder().deliveryMode(2).headers(Map.of()).build();
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            for (int i = 1; i < arguments.length; i += 2) {
                byte[] value = arguments[i + 1].getBytes(StandardCharsets.UTF_8);
                channel.basicPublish(told("exchange"), arguments[i], persistent, value);
            }
            channel.waitForConfirmsOrDie(30_000);
        }
        System.out.println("confirmed");
    }

    static String told(String name) {
        return properties.getProperty(PREFIX + name);
    }
}
