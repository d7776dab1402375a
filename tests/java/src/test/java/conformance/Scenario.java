package conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.fail;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.extension.ExtendWith;

/** What all scenarios share: a topic of their own, builders, and waiting that no slow machine makes fail. */
@ExtendWith(UnderTest.class)
abstract class Scenario {
    /** How long a scenario waits for what must come. Only a fault waits it out. */
    private static final Duration PATIENCE = Duration.ofSeconds(40);
    /** The same where the wait is expected to be in vain. */
    private static final Duration LATER_PATIENCE = Duration.ofSeconds(3);
    /** How long a scenario listens for what must not come. A slow machine can hide a fault in it, never make one. */
    static final int QUIET_MILLIS = 300;

    Broker broker;
    PulsarClient client;
    String topic;
    Duration patience;
    private final List<AutoCloseable> open = Collections.synchronizedList(new ArrayList<>());
    private final List<Broker> brokers = new ArrayList<>();

    @BeforeEach
    void prepare(TestInfo info) throws Exception {
        broker = UnderTest.shared.broker();
        boolean later = !UnderTest.EXTERNAL && info.getTestMethod().orElseThrow().isAnnotationPresent(Later.class);
        patience = later ? LATER_PATIENCE : PATIENCE;
        topic = "persistent://public/default/" + info.getTestMethod().orElseThrow().getName() + "-"
                + HexFormat.of().toHexDigits(ThreadLocalRandom.current().nextInt());
        // Not one for all: a broker closes the whole connection of a producer that was driven out.
        client = keep(client(broker));
    }

    @AfterEach
    void tidy() throws Exception {
        Collections.reverse(open);
        List<CompletableFuture<Void>> closing = new ArrayList<>();
        for (AutoCloseable each : open) {
            if (each instanceof Consumer<?> consumer) {
                closing.add(consumer.closeAsync());
            } else if (each instanceof Producer<?> producer) {
                closing.add(producer.closeAsync());
            } else {
                each.close();
            }
        }
        for (CompletableFuture<Void> each : closing) {
            each.handle((nothing, error) -> null).get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
        for (Broker each : brokers) {
            each.kill();
            each.remove();
        }
    }

    static PulsarClient client(Broker broker) throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(broker.url).operationTimeout((int) PATIENCE.toSeconds(), TimeUnit.SECONDS)
                .ioThreads(1).listenerThreads(1).build();
    }

    /** Points the scenario at a broker of its own with these settings, and starts it. */
    Broker ownBroker(int port, String... arguments) throws Exception {
        broker = Broker.own(port, arguments);
        brokers.add(broker);
        broker.start();
        client = keep(client(broker));
        return broker;
    }

    <T extends AutoCloseable> T keep(T resource) {
        open.add(resource);
        return resource;
    }

    /** Changes a builder. */
    interface With<B> {
        B apply(B builder) throws Exception;
    }

    /** A producer on the scenario's topic, not batching unless the option says so. */
    Producer<byte[]> producer(With<ProducerBuilder<byte[]>> option) throws Exception {
        return keep(option.apply(client.newProducer().topic(topic).enableBatching(false)).create());
    }

    Producer<byte[]> producer() throws Exception {
        return producer(builder -> builder);
    }

    /** Whole batches of n messages, sent when full or flushed. */
    static With<ProducerBuilder<byte[]>> batching(int n) {
        return builder -> builder.enableBatching(true).batchingMaxMessages(n).batchingMaxBytes(4 << 20).batchingMaxPublishDelay(1, TimeUnit.HOURS);
    }

    /** A consumer of subscription "sub" from the earliest message on, whose acks wait for their answer. */
    Consumer<byte[]> consumer(With<ConsumerBuilder<byte[]>> option) throws Exception {
        return keep(option.apply(client.newConsumer().topic(topic).subscriptionName("sub").isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)).subscribe());
    }

    Consumer<byte[]> consumer(SubscriptionType type) throws Exception {
        return consumer(builder -> builder.subscriptionType(type));
    }

    Consumer<byte[]> consumer() throws Exception {
        return consumer(builder -> builder);
    }

    /** A reader of the scenario's topic from a message on. */
    Reader<byte[]> reader(MessageId start, boolean inclusive) throws Exception {
        var builder = client.newReader().topic(topic).startMessageId(start);
        return keep((inclusive ? builder.startMessageIdInclusive() : builder).create());
    }

    static byte[] bytes(Object value) {
        return value.toString().getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    static List<String> texts(List<Message<byte[]>> messages) {
        return messages.stream().map(Scenario::text).toList();
    }

    /** Numbers from low to below high, as text. */
    static List<String> numbers(int low, int high) {
        return IntStream.range(low, high).mapToObj(String::valueOf).toList();
    }

    /** Publishes the numbers from low to below high without waiting in between, and returns their ids. */
    List<MessageId> sendNumbers(Producer<byte[]> producer, int low, int high) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int n = low; n < high; n++) {
            receipts.add(producer.sendAsync(bytes(n)));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> receipt : receipts) {
            ids.add(receipt.get(patience.toMillis(), TimeUnit.MILLISECONDS));
        }
        return ids;
    }

    /** Publishes rounds messages for each of keys "key-N", round by round; payloads are "key-N/round". */
    void sendKeyed(Producer<byte[]> producer, int keys, int rounds) throws Exception {
        List<CompletableFuture<MessageId>> receipts = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            for (int key = 0; key < keys; key++) {
                receipts.add(producer.newMessage().key("key-" + key).value(bytes("key-" + key + "/" + round)).sendAsync());
            }
        }
        producer.flush();
        for (CompletableFuture<MessageId> receipt : receipts) {
            receipt.get(patience.toMillis(), TimeUnit.MILLISECONDS);
        }
    }

    <T> Message<T> receive(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive((int) patience.toMillis(), TimeUnit.MILLISECONDS);
        assertNotNull(message, "no message within " + patience);
        return message;
    }

    List<Message<byte[]>> receive(Consumer<byte[]> consumer, int count) throws Exception {
        List<Message<byte[]>> messages = new ArrayList<>();
        while (messages.size() < count) {
            Message<byte[]> message = consumer.receive((int) patience.toMillis(), TimeUnit.MILLISECONDS);
            assertNotNull(message, messages.size() + " messages of " + count + " came");
            messages.add(message);
        }
        return messages;
    }

    /** Listens a while for a message that must not come. */
    void silent(Consumer<byte[]> consumer, String what) throws Exception {
        Message<byte[]> message = consumer.receive(QUIET_MILLIS, TimeUnit.MILLISECONDS);
        assertNull(message, () -> what + ": got " + text(message));
    }

    Message<byte[]> next(Reader<byte[]> reader) throws Exception {
        Message<byte[]> message = reader.readNext((int) patience.toMillis(), TimeUnit.MILLISECONDS);
        assertNotNull(message, "no message within " + patience);
        return message;
    }

    /** What a reader has until it says that there is nothing more. */
    List<String> read(Reader<byte[]> reader) throws Exception {
        List<String> got = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            got.add(text(next(reader)));
        }
        return got;
    }

    /** Polls until the condition holds. */
    void until(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + patience.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                fail("not within " + patience + ": " + what);
            }
            Thread.sleep(20);
        }
    }

    /** Bytes that no compression makes smaller. */
    static byte[] noise(int size) {
        byte[] content = new byte[size];
        new Random(size).nextBytes(content);
        return content;
    }

    /** Calls the admin API, which must say yes, and returns the body. */
    String admin(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(broker.admin + path)).header("Content-Type", "application/json")
                .timeout(PATIENCE).method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        assertEquals(2, answer.statusCode() / 100, () -> method + " " + path + " answered " + answer.statusCode() + " " + answer.body());
        return answer.body();
    }

    /** The admin path of the scenario's topic. */
    String path(String rest) {
        return "/admin/v2/" + topic.replace("://", "/") + rest;
    }

    /** The statistics of the scenario's topic. */
    JsonNode stats() throws Exception {
        return new ObjectMapper().readTree(admin("GET", path("/stats"), ""));
    }

    /** Makes a namespace with these policies and moves the scenario's topic into it. */
    String namespace(String policies) throws Exception {
        String name = topic.substring(topic.lastIndexOf('/') + 1);
        admin("PUT", "/admin/v2/namespaces/public/" + name, policies);
        topic = "persistent://public/" + name + "/topic";
        return name;
    }

    /** A schema's consumer of subscription "sub" from the earliest message on. */
    <T> Consumer<T> consumer(Schema<T> schema) throws Exception {
        return keep(client.newConsumer(schema).topic(topic).subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
    }

    <T> Producer<T> producer(Schema<T> schema) throws Exception {
        return keep(client.newProducer(schema).topic(topic).enableBatching(false).create());
    }
}
