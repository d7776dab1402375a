package conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;

class RestartSuite extends Scenario {
    @Test
    void clientsSurviveAKilledBroker() throws Exception {
        assumeFalse(UnderTest.EXTERNAL, "needs a broker that may be killed");
        Broker own = ownBroker(Broker.freePort());
        Producer<byte[]> producer = producer(builder -> builder.sendTimeout(0, TimeUnit.SECONDS));
        Consumer<byte[]> consumer = consumer(SubscriptionType.Shared);
        Reader<byte[]> reader = reader(MessageId.earliest, true);
        sendNumbers(producer, 0, 30);
        List<Message<byte[]>> messages = receive(consumer, 30);
        for (int n = 0; n < 30; n += 2) {
            consumer.acknowledge(messages.get(n));
        }
        assertEquals(numbers(0, 30), read(reader));
        own.kill();
        // Sent while nobody is there: it waits in the client.
        CompletableFuture<MessageId> waiting = producer.sendAsync(bytes(30));
        own.start();
        waiting.get(patience.toMillis(), TimeUnit.MILLISECONDS);
        sendNumbers(producer, 31, 40);
        Set<String> want = new HashSet<>(numbers(30, 40));
        for (int n = 1; n < 30; n += 2) {
            want.add("" + n);
        }
        while (!want.isEmpty()) {
            Message<byte[]> message = receive(consumer);
            assertTrue(want.remove(text(message)), "message " + text(message) + " came, it was acknowledged or came twice");
            consumer.acknowledge(message);
        }
        for (String number : numbers(30, 40)) {
            assertEquals(number, text(next(reader)));
        }
    }
}
