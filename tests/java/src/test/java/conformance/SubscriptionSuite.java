package conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMessageId;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class SubscriptionSuite extends Scenario {
    @Test
    void exclusiveAdmitsOneConsumer() throws Exception {
        Consumer<byte[]> first = consumer();
        assertThrows(PulsarClientException.ConsumerBusyException.class, this::consumer);
        assertThrows(PulsarClientException.ConsumerBusyException.class, () -> consumer(SubscriptionType.Shared));
        first.close();
        Consumer<byte[]> second = consumer(SubscriptionType.Shared);
        sendNumbers(producer(), 0, 3);
        assertEquals(numbers(0, 3), texts(receive(second, 3)));
    }

    @Test
    void sharedGivesEachMessageToOneConsumer() throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            consumers.add(consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(20)));
        }
        sendNumbers(producer(), 0, 60);
        // Nobody has room for more than 20, so each has to get 20.
        Set<String> seen = new HashSet<>();
        for (Consumer<byte[]> consumer : consumers) {
            seen.addAll(texts(receive(consumer, 20)));
        }
        assertEquals(60, seen.size());
    }

    @Test
    void sharedServesBetterPrioritiesFirst() throws Exception {
        Consumer<byte[]> worse = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(100).priorityLevel(1));
        Consumer<byte[]> better = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(10).priorityLevel(0));
        sendNumbers(producer(), 0, 30);
        List<String> first = texts(receive(worse, 20));
        List<String> all = new ArrayList<>(texts(receive(better, 10)));
        all.addAll(first);
        assertEquals(30, new HashSet<>(all).size());
    }

    @Test
    void failoverHandsOverByPriority() throws Exception {
        Map<String, Boolean> active = new ConcurrentHashMap<>();
        class Activity implements ConsumerEventListener {
            final String name;

            Activity(String name) {
                this.name = name;
            }

            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                active.put(name, true);
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                active.put(name, false);
            }
        }
        Consumer<byte[]> second = consumer(builder -> builder.subscriptionType(SubscriptionType.Failover).consumerName("second")
                .priorityLevel(1).consumerEventListener(new Activity("second")));
        until("the only consumer is active", () -> active.getOrDefault("second", false));
        Consumer<byte[]> third = consumer(builder -> builder.subscriptionType(SubscriptionType.Failover).consumerName("third")
                .priorityLevel(2).consumerEventListener(new Activity("third")));
        Producer<byte[]> producer = producer();
        sendNumbers(producer, 0, 10);
        List<Message<byte[]>> messages = receive(second, 10);
        assertEquals(numbers(0, 10), texts(messages));
        silent(third, "the standby");
        second.acknowledgeCumulative(messages.get(4));
        // A better priority takes over; what was not acknowledged comes again.
        Consumer<byte[]> first = consumer(builder -> builder.subscriptionType(SubscriptionType.Failover).consumerName("first")
                .priorityLevel(0).consumerEventListener(new Activity("first")));
        until("the better one is active", () -> active.getOrDefault("first", false) && !active.get("second"));
        messages = receive(first, 5);
        assertEquals(numbers(5, 10), texts(messages));
        first.acknowledgeCumulative(messages.get(1));
        first.close();
        assertEquals(numbers(7, 10), texts(receive(second, 3)));
        second.close();
        assertEquals(numbers(7, 10), texts(receive(third, 3)));
        sendNumbers(producer, 10, 12);
        assertEquals(numbers(10, 12), texts(receive(third, 2)));
    }

    /** Receives total messages, acknowledges them, and requires that each key has one consumer and its order. */
    private Map<String, Integer> collect(List<Consumer<byte[]>> consumers, int keys, int rounds) throws Exception {
        Map<String, Integer> owner = new HashMap<>();
        Map<String, List<String>> payloads = new HashMap<>();
        long deadline = System.nanoTime() + patience.toNanos();
        for (int got = 0; got < keys * rounds; ) {
            for (int index = 0; index < consumers.size(); index++) {
                Message<byte[]> message;
                while ((message = consumers.get(index).receive(5, TimeUnit.MILLISECONDS)) != null) {
                    Integer before = owner.put(message.getKey(), index);
                    assertTrue(before == null || before == index, message.getKey() + " went to two consumers");
                    payloads.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(text(message));
                    consumers.get(index).acknowledgeAsync(message);
                    got++;
                    deadline = System.nanoTime() + patience.toNanos();
                }
            }
            assertTrue(System.nanoTime() < deadline, got + " messages of " + keys * rounds + " came");
        }
        assertEquals(keys, payloads.size());
        payloads.forEach((key, got) -> assertEquals(IntStream.range(0, rounds).mapToObj(round -> key + "/" + round).toList(), got));
        return owner;
    }

    @Test
    void keySharedKeepsAKeyOnOneConsumer() throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            String name = "consumer-" + n;
            consumers.add(consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).consumerName(name)));
        }
        sendKeyed(producer(), 60, 10);
        assertEquals(3, new HashSet<>(collect(consumers, 60, 10).values()).size());
    }

    @Test
    void keySharedHoldsAMovedKeyUntilItsMessagesAreAcked() throws Exception {
        Consumer<byte[]> first = consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).consumerName("first"));
        Producer<byte[]> producer = producer();
        sendKeyed(producer, 30, 1);
        List<Message<byte[]>> held = receive(first, 30);
        Consumer<byte[]> second = consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).consumerName("second"));
        sendKeyed(producer, 30, 1);
        silent(second, "while the old owner holds a message of every key");
        for (Message<byte[]> message : held) {
            first.acknowledge(message);
        }
        assertEquals(2, new HashSet<>(collect(List.of(first, second), 30, 1).values()).size());
    }

    @Test
    void keySharedStickyRanges() throws Exception {
        Consumer<byte[]> low = sticky(Range.of(0, 32767));
        Consumer<byte[]> high = sticky(Range.of(32768, 65535));
        assertThrows(PulsarClientException.ConsumerAssignException.class, () -> sticky(Range.of(30000, 40000)));
        assertThrows(PulsarClientException.ConsumerBusyException.class, () -> consumer(SubscriptionType.Key_Shared));
        // Murmur3 slots: "key1" 293, "hello" 64071.
        Producer<byte[]> producer = producer();
        for (int n = 0; n < 10; n++) {
            producer.newMessage().key("key1").value(bytes("low" + n)).send();
            producer.newMessage().key("other").orderingKey(bytes("hello")).value(bytes("high" + n)).send();
            producer.newMessage().keyBytes(bytes("hello")).value(bytes("bytes" + n)).send();
        }
        for (int n = 0; n < 10; n++) {
            assertEquals("low" + n, text(receive(low)));
            assertEquals("high" + n, text(receive(high)));
            assertEquals("bytes" + n, text(receive(high)));
        }
    }

    private Consumer<byte[]> sticky(Range range) throws Exception {
        return consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range)));
    }

    @Test
    void keySharedOutOfOrderIsAnotherPolicy() throws Exception {
        KeySharedPolicy loose = KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(true);
        Consumer<byte[]> first = consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).keySharedPolicy(loose).consumerName("first"));
        assertThrows(PulsarClientException.ConsumerBusyException.class, () -> consumer(SubscriptionType.Key_Shared));
        Producer<byte[]> producer = producer();
        sendKeyed(producer, 30, 1);
        receive(first, 30);
        Consumer<byte[]> second = consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).keySharedPolicy(loose).consumerName("second"));
        // Nothing is held back for what the first consumer has not acknowledged.
        sendKeyed(producer, 30, 1);
        collect(List.of(first, second), 30, 1);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 1000})
    void receiverQueues(int size) throws Exception {
        Consumer<byte[]> consumer = consumer(builder -> builder.receiverQueueSize(size));
        sendNumbers(producer(), 0, 300);
        assertEquals(numbers(0, 300), texts(receive(consumer, 300)));
    }

    @Test
    void withoutAReceiverQueueNothingIsTakenInAdvance() throws Exception {
        Consumer<byte[]> none = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(0));
        sendNumbers(producer(), 0, 10);
        // Without a limit: a receive that ends early would leave its permit behind.
        Set<String> seen = new HashSet<>(Set.of(text(none.receive())));
        seen.addAll(texts(receive(consumer(SubscriptionType.Shared), 9)));
        assertEquals(new HashSet<>(numbers(0, 10)), seen);
    }

    @Test
    void pausedConsumersGetNoMore() throws Exception {
        Consumer<byte[]> consumer = consumer(builder -> builder.receiverQueueSize(1));
        Producer<byte[]> producer = producer();
        consumer.pause();
        sendNumbers(producer, 0, 10);
        List<String> got = new ArrayList<>();
        Message<byte[]> message;
        // What was asked for before the pause may still come.
        while ((message = consumer.receive(QUIET_MILLIS, TimeUnit.MILLISECONDS)) != null) {
            got.add(text(message));
        }
        assertTrue(got.size() <= 2, "a paused consumer with a queue of 1 got " + got);
        consumer.resume();
        got.addAll(texts(receive(consumer, 10 - got.size())));
        assertEquals(numbers(0, 10), got);
    }

    @Test
    void messagesInBulkAndByListener() throws Exception {
        Producer<byte[]> producer = producer();
        sendNumbers(producer, 0, 20);
        Consumer<byte[]> bulk = consumer(builder -> builder.batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(20).timeout(-1, TimeUnit.SECONDS).build()));
        List<String> got = new ArrayList<>();
        var messages = bulk.batchReceiveAsync().get(patience.toMillis(), TimeUnit.MILLISECONDS);
        messages.forEach(message -> got.add(text(message)));
        assertEquals(numbers(0, 20), got);
        bulk.acknowledge(messages);
        bulk.close();
        LinkedBlockingQueue<String> heard = new LinkedBlockingQueue<>();
        consumer(builder -> builder.messageListener((consumer, message) -> {
            heard.add(text(message));
            consumer.acknowledgeAsync(message);
        }));
        sendNumbers(producer, 20, 40);
        for (String number : numbers(20, 40)) {
            assertEquals(number, heard.poll(patience.toMillis(), TimeUnit.MILLISECONDS));
        }
    }

    @Test
    void severalTopicsInOneConsumer() throws Exception {
        List<String> topics = List.of(topic + "-a", topic + "-b", topic + "-c");
        Consumer<byte[]> consumer = keep(client.newConsumer().topics(topics).subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
        for (String each : topics) {
            sendNumbers(producer(builder -> builder.topic(each)), 0, 10);
        }
        Map<String, List<String>> got = new HashMap<>();
        for (Message<byte[]> message : receive(consumer, 30)) {
            got.computeIfAbsent(message.getTopicName(), name -> new ArrayList<>()).add(text(message));
            consumer.acknowledge(message);
        }
        topics.forEach(each -> assertEquals(numbers(0, 10), got.get(each)));
    }

    @Test
    void patternConsumerFindsNewTopics() throws Exception {
        producer(builder -> builder.topic(topic + "-early")).send(bytes("early"));
        Consumer<byte[]> consumer = keep(client.newConsumer().topicsPattern(Pattern.compile(topic + "-.*")).subscriptionName("sub")
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
        assertEquals("early", text(receive(consumer)));
        producer(builder -> builder.topic(topic + "-late")).send(bytes("late"));
        assertEquals("late", text(receive(consumer)));
    }

    @Test
    void unsubscribe() throws Exception {
        Consumer<byte[]> one = consumer(SubscriptionType.Shared);
        Consumer<byte[]> two = consumer(SubscriptionType.Shared);
        Producer<byte[]> producer = producer();
        sendNumbers(producer, 0, 5);
        assertThrows(PulsarClientException.class, one::unsubscribe);
        two.close();
        one.unsubscribe();
        // The subscription is a new one: it starts where it says, not where the old one stood.
        Consumer<byte[]> again = consumer(builder -> builder.subscriptionInitialPosition(SubscriptionInitialPosition.Latest));
        sendNumbers(producer, 5, 6);
        assertEquals("5", text(receive(again)));
    }

    @Test
    void subscriptionsOutliveTheirConsumersUnlessTheyAreNotDurable() throws Exception {
        Producer<byte[]> producer = producer();
        sendNumbers(producer, 0, 50);
        Consumer<byte[]> durable = consumer();
        durable.acknowledgeCumulative(receive(durable, 30).get(19));
        durable.close();
        assertEquals(numbers(20, 50), texts(receive(consumer(), 30)));
        Consumer<byte[]> passing = consumer(builder -> builder.subscriptionName("passing").subscriptionMode(SubscriptionMode.NonDurable));
        passing.acknowledgeCumulative(receive(passing, 30).get(19));
        passing.close();
        passing = consumer(builder -> builder.subscriptionName("passing").subscriptionMode(SubscriptionMode.NonDurable));
        assertEquals(numbers(0, 50), texts(receive(passing, 50)));
    }

    @Test
    void consumersSeek() throws Exception {
        Producer<byte[]> producer = producer();
        Consumer<byte[]> consumer = consumer(builder -> builder.startMessageIdInclusive());
        List<MessageId> ids = sendNumbers(producer, 0, 20);
        List<Message<byte[]>> messages = receive(consumer, 20);
        consumer.acknowledgeCumulative(messages.get(19));
        consumer.seek(ids.get(12));
        assertEquals(numbers(12, 20), texts(receive(consumer, 8)));
        consumer.seek(MessageId.earliest);
        assertEquals(numbers(0, 20), texts(receive(consumer, 20)));
        consumer.seek(messages.get(7).getPublishTime());
        Message<byte[]> first = receive(consumer);
        assertEquals(messages.get(7).getPublishTime(), first.getPublishTime());
        assertTrue(Integer.parseInt(text(first)) <= 7, "the first message of that time, not " + text(first));
        consumer.seek(MessageId.latest);
        sendNumbers(producer, 20, 21);
        until("the first message after a seek to the end", () -> text(receive(consumer)).equals("20"));
    }

    @Test
    void lastMessageId() throws Exception {
        Consumer<byte[]> consumer = consumer();
        List<MessageId> ids = sendNumbers(producer(batching(5)), 0, 10);
        List<TopicMessageId> last = consumer.getLastMessageIds();
        assertEquals(1, last.size());
        assertEquals(topic, last.get(0).getOwnerTopic());
        assertEquals(0, ids.get(9).compareTo(last.get(0)));
        assertEquals(4, ((MessageIdAdv) last.get(0)).getBatchIndex());
        assertNotEquals(0, ids.get(8).compareTo(last.get(0)));
    }
}
