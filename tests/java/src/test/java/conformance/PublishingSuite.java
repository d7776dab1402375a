package conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

class PublishingSuite extends Scenario {
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void messageCarriesEverything(boolean batched) throws Exception {
        Producer<byte[]> producer = producer(builder -> batching(3).apply(builder).enableBatching(batched).producerName("the-producer"));
        Map<String, String> properties = Map.of("colour", "blau", "größe", "5 €", "empty", "");
        long before = System.currentTimeMillis() - 1000;
        CompletableFuture<MessageId> receipt = producer.newMessage().value(bytes("payload")).key("the key").orderingKey(bytes("the order"))
                .eventTime(1234567890123L).sequenceId(41).properties(properties).sendAsync();
        producer.flush();
        MessageIdAdv id = (MessageIdAdv) receipt.get(patience.toMillis(), TimeUnit.MILLISECONDS);
        Message<byte[]> message = receive(consumer());
        assertEquals("payload", text(message));
        assertEquals("the key", message.getKey());
        assertArrayEquals(bytes("the order"), message.getOrderingKey());
        assertEquals(1234567890123L, message.getEventTime());
        assertEquals(properties, message.getProperties());
        assertEquals("the-producer", message.getProducerName());
        assertEquals(41, message.getSequenceId());
        assertEquals(topic, message.getTopicName());
        assertEquals(0, message.getRedeliveryCount());
        assertEquals(id.getLedgerId(), ((MessageIdAdv) message.getMessageId()).getLedgerId());
        assertEquals(id.getEntryId(), ((MessageIdAdv) message.getMessageId()).getEntryId());
        assertTrue(message.getPublishTime() >= before && message.getPublishTime() <= System.currentTimeMillis() + 1000);
        // Without a value and without a key.
        producer.sendAsync(new byte[0]);
        producer.flush();
    }

    @Test
    void batchesKeepOrderAndShareAnEntry() throws Exception {
        List<MessageId> ids = sendNumbers(producer(batching(10)), 0, 100);
        int n = 0;
        for (Message<byte[]> message : receive(consumer(), 100)) {
            MessageIdAdv id = (MessageIdAdv) message.getMessageId();
            assertEquals("" + n, text(message));
            assertEquals(n % 10, id.getBatchIndex());
            assertEquals(10, id.getBatchSize());
            assertEquals(((MessageIdAdv) ids.get(n / 10 * 10)).getEntryId(), id.getEntryId());
            n++;
        }
    }

    @Test
    void keyBasedBatches() throws Exception {
        List<Consumer<byte[]>> consumers = List.of(
                consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).consumerName("one")),
                consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).consumerName("two")));
        sendKeyed(producer(builder -> batching(200).apply(builder).batcherBuilder(BatcherBuilder.KEY_BASED)), 20, 10);
        Map<String, List<String>> payloads = new HashMap<>();
        Map<String, Set<Integer>> owners = new HashMap<>();
        Map<MessageId, String> entries = new HashMap<>();
        long deadline = System.nanoTime() + patience.toNanos();
        for (int got = 0; got < 200; ) {
            for (int index = 0; index < 2; index++) {
                Message<byte[]> message = consumers.get(index).receive(5, TimeUnit.MILLISECONDS);
                if (message != null) {
                    got++;
                    payloads.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(text(message));
                    owners.computeIfAbsent(message.getKey(), key -> new HashSet<>()).add(index);
                    assertEquals(10, ((MessageIdAdv) message.getMessageId()).getBatchSize());
                }
            }
            assertTrue(System.nanoTime() < deadline, got + " messages came");
        }
        payloads.forEach((key, got) -> assertEquals(IntStream.range(0, 10).mapToObj(round -> key + "/" + round).toList(), got));
        owners.forEach((key, who) -> assertEquals(1, who.size(), key));
    }

    @ParameterizedTest
    @EnumSource(CompressionType.class)
    void compressions(CompressionType compression) throws Exception {
        Consumer<byte[]> consumer = consumer();
        for (int size : new int[] {1, 25}) {
            Producer<byte[]> producer = producer(builder -> batching(size).apply(builder).enableBatching(size > 1).compressionType(compression));
            for (int n = 0; n < 50; n++) {
                byte[] content = new byte[n * 40];
                Arrays.fill(content, (byte) ('a' + n % 26));
                producer.sendAsync(content);
            }
            producer.flush();
            int n = 0;
            for (Message<byte[]> message : receive(consumer, 50)) {
                byte[] content = new byte[n * 40];
                Arrays.fill(content, (byte) ('a' + n % 26));
                assertArrayEquals(content, message.getData(), "message " + n + " in batches of " + size);
                n++;
            }
        }
    }

    @Test
    void largestMessage() throws Exception {
        // The client counts the message's metadata, less than 100 bytes here.
        int limit = 5 << 20;
        int largest = limit - 100;
        Producer<byte[]> producer = producer();
        Consumer<byte[]> consumer = consumer();
        assertThrows(PulsarClientException.InvalidMessageException.class, () -> producer.send(noise(limit + 1)));
        for (int size : new int[] {largest, 0, 1, largest - 1}) {
            producer.send(noise(size));
            assertTrue(Arrays.equals(noise(size), receive(consumer).getData()), "a message of " + size + " bytes");
        }
    }

    @ParameterizedTest
    @EnumSource(value = SubscriptionType.class, names = {"Exclusive", "Shared"})
    void chunkedMessages(SubscriptionType type) throws Exception {
        Consumer<byte[]> consumer = consumer(type);
        // Two producers at once: their chunks are interleaved.
        int[] sizes = {1_500_000, 99_000, 350_001};
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int n = 0; n < 2; n++) {
            Producer<byte[]> producer = producer(builder -> builder.enableChunking(true).chunkMaxMessageSize(100_000));
            for (int size : sizes) {
                receipts.add(producer.newMessage().value(noise(size)).property("size", "" + size).sendAsync());
            }
        }
        for (CompletableFuture<MessageId> receipt : receipts) {
            receipt.get(patience.toMillis(), TimeUnit.MILLISECONDS);
        }
        Map<Integer, Integer> count = new HashMap<>();
        for (Message<byte[]> message : receive(consumer, 6)) {
            int size = message.getData().length;
            assertTrue(Arrays.equals(noise(size), message.getData()), "a message of " + size + " bytes");
            assertEquals("" + size, message.getProperty("size"));
            count.merge(size, 1, Integer::sum);
            consumer.acknowledge(message);
        }
        assertEquals(Map.of(1_500_000, 2, 99_000, 2, 350_001, 2), count);
        // Acknowledging a message acknowledged all its chunks.
        consumer.close();
        silent(consumer(type), "after everything was acknowledged");
    }

    @Test
    void manyMessagesInOrder() throws Exception {
        int total = 20_000;
        Consumer<byte[]> consumer = consumer();
        Producer<byte[]> producer = producer(builder -> batching(500).apply(builder).blockIfQueueFull(true));
        CompletableFuture<Void> sent = CompletableFuture.runAsync(() -> {
            try {
                for (int n = 0; n < total; n++) {
                    producer.sendAsync(bytes(n));
                    if (n % 500 == 499) {
                        producer.flush();
                    }
                }
            } catch (PulsarClientException error) {
                throw new IllegalStateException(error);
            }
        }, task -> new Thread(task, "sender").start());
        for (int n = 0; n < total; n++) {
            Message<byte[]> message = receive(consumer);
            assertEquals("" + n, text(message));
            if (n % 1000 == 999) {
                consumer.acknowledgeCumulative(message);
            }
        }
        sent.get(patience.toMillis(), TimeUnit.MILLISECONDS);
    }

    @Test
    void producerNames() throws Exception {
        Producer<byte[]> first = producer(builder -> builder.producerName("taken"));
        assertThrows(PulsarClientException.ProducerBusyException.class, () -> producer(builder -> builder.producerName("taken")));
        first.close();
        producer(builder -> builder.producerName("taken")).send(bytes("x"));
        assertNotEquals(producer().getProducerName(), producer().getProducerName());
    }

    @Test
    void exclusiveProducer() throws Exception {
        Producer<byte[]> only = producer(builder -> builder.accessMode(ProducerAccessMode.Exclusive));
        assertThrows(PulsarClientException.ProducerFencedException.class, () -> producer(builder -> builder.accessMode(ProducerAccessMode.Exclusive)));
        assertThrows(PulsarClientException.ProducerBusyException.class, this::producer);
        only.send(bytes("x"));
        only.close();
        producer();
        assertThrows(PulsarClientException.ProducerFencedException.class, () -> producer(builder -> builder.accessMode(ProducerAccessMode.Exclusive)));
    }

    @Test
    void producersWaitForExclusive() throws Exception {
        Producer<byte[]> holder = producer(builder -> builder.accessMode(ProducerAccessMode.WaitForExclusive));
        CompletableFuture<Producer<byte[]>> waiting = client.newProducer().topic(topic).enableBatching(false)
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        holder.send(bytes("holder"));
        Thread.sleep(QUIET_MILLIS);
        assertFalse(waiting.isDone(), "two producers are exclusive at once");
        holder.close();
        Producer<byte[]> next = keep(waiting.get(patience.toMillis(), TimeUnit.MILLISECONDS));
        next.send(bytes("waiter"));
        assertEquals(List.of("holder", "waiter"), texts(receive(consumer(), 2)));
    }

    @Test
    void fencingDrivesTheOthersOut() throws Exception {
        Producer<byte[]> shared = producer();
        shared.send(bytes("shared"));
        Producer<byte[]> fencing = producer(builder -> builder.accessMode(ProducerAccessMode.ExclusiveWithFencing));
        fencing.send(bytes("fencing"));
        assertThrows(PulsarClientException.ProducerBusyException.class, this::producer);
        Producer<byte[]> later = producer(builder -> builder.accessMode(ProducerAccessMode.ExclusiveWithFencing));
        later.send(bytes("later"));
        // The fenced one is out for good.
        ExecutionException error = assertThrows(ExecutionException.class,
                () -> fencing.sendAsync(bytes("fenced")).get(patience.toMillis(), TimeUnit.MILLISECONDS));
        assertTrue(error.getCause() instanceof PulsarClientException.ProducerFencedException, error.toString());
        assertEquals(List.of("shared", "fencing", "later"), texts(receive(consumer(), 3)));
    }

    @Test
    void deduplication() throws Exception {
        if (UnderTest.EXTERNAL) {
            namespace("{\"deduplicationEnabled\":true}");
        } else {
            ownBroker(0, "--broker-deduplication-enabled", "true");
        }
        Producer<byte[]> producer = producer(builder -> builder.producerName("once").sendTimeout(0, TimeUnit.SECONDS));
        assertEquals(-1, producer.getLastSequenceId());
        sendSequences(producer, 0, 10);
        sendSequences(producer, 5, 12);
        producer.close();
        producer = producer(builder -> batching(5).apply(builder).producerName("once").sendTimeout(0, TimeUnit.SECONDS));
        assertEquals(11, producer.getLastSequenceId());
        sendSequences(producer, 12, 17);
        producer.close();
        producer = producer(builder -> builder.producerName("once").sendTimeout(0, TimeUnit.SECONDS));
        assertEquals(16, producer.getLastSequenceId());
        sendSequences(producer, 10, 20);
        assertEquals(numbers(0, 20), texts(receive(consumer(), 20)));
        sendSequences(producer(builder -> builder.producerName("another").sendTimeout(0, TimeUnit.SECONDS)), 3, 4);
        List<String> all = new ArrayList<>(numbers(0, 20));
        all.add("3");
        assertEquals(all, texts(receive(consumer(builder -> builder.subscriptionName("all")), 21)));
    }

    private void sendSequences(Producer<byte[]> producer, int low, int high) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int n = low; n < high; n++) {
            receipts.add(producer.newMessage().sequenceId(n).value(bytes(n)).sendAsync());
        }
        producer.flush();
        for (CompletableFuture<MessageId> receipt : receipts) {
            receipt.get(patience.toMillis(), TimeUnit.MILLISECONDS);
        }
    }

    @ParameterizedTest
    @EnumSource(value = SubscriptionType.class, names = {"Shared", "Key_Shared"})
    void delayedDelivery(SubscriptionType type) throws Exception {
        Consumer<byte[]> consumer = consumer(type);
        Producer<byte[]> producer = producer();
        long due = System.currentTimeMillis() + 4000;
        producer.newMessage().value(bytes("at")).deliverAt(due).send();
        producer.newMessage().value(bytes("after")).deliverAfter(4, TimeUnit.SECONDS).send();
        producer.send(bytes("now"));
        Set<String> seen = new HashSet<>();
        for (int n = 0; n < 3; n++) {
            Message<byte[]> message = receive(consumer);
            seen.add(text(message));
            // May come up to one tick (1 s) early.
            assertTrue(text(message).equals("now") || System.currentTimeMillis() >= due - 1000, text(message) + " came too early");
            consumer.acknowledge(message);
        }
        assertEquals(3, seen.size());
    }

    @Test
    void onlySharedSubscriptionsDelay() throws Exception {
        Consumer<byte[]> consumer = consumer();
        producer().newMessage().value(bytes("delayed")).deliverAfter(1, TimeUnit.HOURS).send();
        assertEquals("delayed", text(receive(consumer)));
    }
}
