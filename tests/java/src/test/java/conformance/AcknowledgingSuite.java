package conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class AcknowledgingSuite extends Scenario {
    @ParameterizedTest
    @EnumSource(value = SubscriptionType.class, names = {"Exclusive", "Shared"})
    void individualAcks(SubscriptionType type) throws Exception {
        sendNumbers(producer(), 0, 40);
        Consumer<byte[]> consumer = consumer(type);
        List<String> left = new ArrayList<>();
        for (Message<byte[]> message : receive(consumer, 40)) {
            if (Integer.parseInt(text(message)) % 3 == 0) {
                consumer.acknowledge(message);
            } else {
                left.add(text(message));
            }
        }
        consumer.close();
        consumer = consumer(type);
        assertEquals(left, texts(receive(consumer, left.size())));
        silent(consumer, "acknowledged messages");
    }

    @Test
    void cumulativeAcks() throws Exception {
        sendNumbers(producer(batching(10)), 0, 40);
        With<ConsumerBuilder<byte[]>> option = builder -> builder.enableBatchIndexAcknowledgment(true);
        Consumer<byte[]> consumer = consumer(option);
        consumer.acknowledgeCumulative(receive(consumer, 40).get(24));
        consumer.close();
        assertEquals(numbers(25, 40), texts(receive(consumer(option), 15)));
    }

    @ParameterizedTest
    @EnumSource(value = SubscriptionType.class, names = {"Exclusive", "Shared"})
    void batchIndexAcks(SubscriptionType type) throws Exception {
        With<ConsumerBuilder<byte[]>> option = builder -> builder.subscriptionType(type).enableBatchIndexAcknowledgment(true);
        sendNumbers(producer(batching(10)), 0, 30);
        Consumer<byte[]> consumer = consumer(option);
        List<String> left = new ArrayList<>();
        for (Message<byte[]> message : receive(consumer, 30)) {
            int n = Integer.parseInt(text(message));
            if (n % 4 == 1 || n / 10 == 1) {
                consumer.acknowledge(message);
            } else {
                left.add(text(message));
            }
        }
        consumer.close();
        consumer = consumer(option);
        List<Message<byte[]>> again = receive(consumer, left.size());
        assertEquals(left, texts(again));
        for (Message<byte[]> message : again) {
            consumer.acknowledge(message);
        }
        sendNumbers(producer(), 30, 31);
        assertEquals("30", text(receive(consumer)));
    }

    @Test
    void ackOfAList() throws Exception {
        sendNumbers(producer(), 0, 30);
        Consumer<byte[]> consumer = consumer(SubscriptionType.Shared);
        consumer.acknowledge(receive(consumer, 30).subList(5, 30).stream().map(Message::getMessageId).toList());
        consumer.close();
        consumer = consumer(SubscriptionType.Shared);
        assertEquals(numbers(0, 5), texts(receive(consumer, 5)));
        silent(consumer, "acknowledged messages");
    }

    @Test
    void nackRedeliversWithACount() throws Exception {
        Consumer<byte[]> consumer = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS));
        sendNumbers(producer(), 0, 6);
        Map<String, List<Integer>> seen = new HashMap<>();
        // Even numbers are refused twice, odd ones are taken at once.
        for (int n = 0; n < 3 + 3 * 3; n++) {
            Message<byte[]> message = receive(consumer);
            seen.computeIfAbsent(text(message), key -> new ArrayList<>()).add(message.getRedeliveryCount());
            if (Integer.parseInt(text(message)) % 2 == 0 && message.getRedeliveryCount() < 2) {
                consumer.negativeAcknowledge(message);
            } else {
                consumer.acknowledge(message);
            }
        }
        for (int n = 0; n < 6; n++) {
            assertEquals(n % 2 == 0 ? List.of(0, 1, 2) : List.of(0), seen.get("" + n), "redelivery counts of message " + n);
        }
        silent(consumer, "after everything was acknowledged");
    }

    @Test
    void ackTimeoutRedelivers() throws Exception {
        Consumer<byte[]> consumer = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared)
                .ackTimeout(1, TimeUnit.SECONDS).ackTimeoutTickTime(100, TimeUnit.MILLISECONDS));
        sendNumbers(producer(), 0, 2);
        Map<String, List<Integer>> seen = new HashMap<>();
        // Message 0 is left alone twice.
        while (seen.getOrDefault("0", List.of()).size() < 3) {
            Message<byte[]> message = receive(consumer);
            seen.computeIfAbsent(text(message), key -> new ArrayList<>()).add(message.getRedeliveryCount());
            if (text(message).equals("1") || message.getRedeliveryCount() == 2) {
                consumer.acknowledge(message);
            }
        }
        assertEquals(List.of(0, 1, 2), seen.get("0"));
    }

    @ParameterizedTest
    @EnumSource(value = SubscriptionType.class, names = {"Exclusive", "Shared"})
    void redeliverEverything(SubscriptionType type) throws Exception {
        Consumer<byte[]> consumer = consumer(type);
        sendNumbers(producer(), 0, 20);
        List<Message<byte[]>> messages = receive(consumer, 20);
        for (Message<byte[]> message : messages.subList(0, 5)) {
            consumer.acknowledge(message);
        }
        consumer.acknowledge(messages.get(10));
        consumer.redeliverUnacknowledgedMessages();
        Set<String> want = new HashSet<>(numbers(5, 20));
        want.remove("10");
        List<Message<byte[]>> again = receive(consumer, 14);
        assertEquals(want, new HashSet<>(texts(again)));
        // Only shared subscriptions count.
        assertEquals(type == SubscriptionType.Shared ? 1 : 0, again.get(0).getRedeliveryCount());
    }

    @Test
    void deadLetterTopic() throws Exception {
        Consumer<byte[]> dead = consumer(builder -> builder.topic(topic + "-sub-DLQ").subscriptionName("mourner"));
        Consumer<byte[]> consumer = keep(client.newConsumer().topic(topic).subscriptionName("sub").subscriptionType(SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe());
        producer().newMessage().value(bytes("poison")).key("k").property("p", "v").send();
        for (int count = 0; count < 3; count++) {
            Message<byte[]> message = receive(consumer);
            assertEquals(count, message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
        }
        Message<byte[]> message = receive(dead);
        assertEquals("poison", text(message));
        assertEquals("k", message.getKey());
        assertEquals("v", message.getProperty("p"));
    }

    @Test
    void retryTopic() throws Exception {
        Consumer<byte[]> dead = consumer(builder -> builder.topic(topic + "-sub-DLQ").subscriptionName("mourner"));
        Consumer<byte[]> consumer = keep(client.newConsumer().topic(topic).subscriptionName("sub").subscriptionType(SubscriptionType.Shared)
                .enableRetry(true).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe());
        producer().send(bytes("again"));
        List<String> times = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            Message<byte[]> message = receive(consumer);
            assertEquals("again", text(message));
            times.add(message.getProperty("RECONSUMETIMES"));
            consumer.reconsumeLater(message, 200, TimeUnit.MILLISECONDS);
        }
        assertEquals(java.util.Arrays.asList(null, "1", "2"), times);
        assertEquals("again", text(receive(dead)));
    }

    @Test
    void unackedMessagesGoToTheOthers() throws Exception {
        Consumer<byte[]> one = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(100));
        sendNumbers(producer(), 0, 30);
        receive(one, 30);
        Consumer<byte[]> two = consumer(SubscriptionType.Shared);
        silent(two, "while the first consumer holds everything");
        one.close();
        List<Message<byte[]>> messages = receive(two, 30);
        assertEquals(new HashSet<>(numbers(0, 30)), new HashSet<>(texts(messages)));
        // Leaving is no refusal: the count does not rise.
        assertTrue(messages.stream().allMatch(message -> message.getRedeliveryCount() == 0));
    }
}
