package conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRouter;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMetadata;
import org.junit.jupiter.api.Test;

class TopicSuite extends Scenario {
    private Map<Integer, Integer> spread(Consumer<byte[]> consumer, int total) throws Exception {
        Map<Integer, Integer> count = new TreeMap<>();
        for (Message<byte[]> message : receive(consumer, total)) {
            count.merge(((MessageIdAdv) message.getMessageId()).getPartitionIndex(), 1, Integer::sum);
            consumer.acknowledge(message);
        }
        return count;
    }

    @Test
    void partitionedTopic() throws Exception {
        admin("PUT", path("/partitions"), "4");
        assertEquals(List.of(topic + "-partition-0", topic + "-partition-1", topic + "-partition-2", topic + "-partition-3"),
                client.getPartitionsForTopic(topic).get(patience.toMillis(), TimeUnit.MILLISECONDS));
        Consumer<byte[]> consumer = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS));
        sendNumbers(producer(), 0, 40);
        assertEquals(Map.of(0, 10, 1, 10, 2, 10, 3, 10), spread(consumer, 40));
        sendNumbers(producer(builder -> builder.messageRoutingMode(MessageRoutingMode.SinglePartition)), 0, 10);
        assertEquals(1, spread(consumer, 10).size());
        MessageRouter router = new MessageRouter() {
            @Override
            public int choosePartition(Message<?> message, TopicMetadata metadata) {
                return Integer.parseInt(new String(message.getData())) % 2 * (metadata.numPartitions() - 1);
            }
        };
        sendNumbers(producer(builder -> builder.messageRoutingMode(MessageRoutingMode.CustomPartition).messageRouter(router)), 0, 20);
        assertEquals(Map.of(0, 10, 3, 10), spread(consumer, 20));
        sendKeyed(producer(), 10, 5);
        Map<String, Integer> where = new HashMap<>();
        for (Message<byte[]> message : receive(consumer, 50)) {
            int partition = ((MessageIdAdv) message.getMessageId()).getPartitionIndex();
            Integer before = where.put(message.getKey(), partition);
            assertTrue(before == null || before == partition, message.getKey() + " went to two partitions");
        }
        assertEquals(10, where.size());
        // More partitions: those who are connected find them.
        Producer<byte[]> producer = producer(builder -> builder.autoUpdatePartitionsInterval(1, TimeUnit.SECONDS));
        admin("POST", path("/partitions"), "6");
        until("a message in a new partition", () -> {
            producer.send(bytes("more"));
            return ((MessageIdAdv) receive(consumer).getMessageId()).getPartitionIndex() == 5;
        });
    }

    @Test
    void autoCreatedPartitions() throws Exception {
        if (UnderTest.EXTERNAL) {
            String name = namespace("");
            admin("POST", "/admin/v2/namespaces/public/" + name + "/autoTopicCreation",
                    "{\"allowAutoTopicCreation\":true,\"topicType\":\"partitioned\",\"defaultNumPartitions\":3}");
        } else {
            ownBroker(0, "--allow-auto-topic-creation-type", "partitioned", "--default-num-partitions", "3");
        }
        Consumer<byte[]> consumer = consumer(SubscriptionType.Shared);
        sendNumbers(producer(), 0, 30);
        assertEquals(Map.of(0, 10, 1, 10, 2, 10), spread(consumer, 30));
    }

    @Test
    void terminatedTopic() throws Exception {
        Producer<byte[]> producer = producer();
        Consumer<byte[]> consumer = consumer();
        MessageIdAdv last = (MessageIdAdv) sendNumbers(producer, 0, 5).get(4);
        JsonNode answer = new ObjectMapper().readTree(admin("POST", path("/terminate"), ""));
        assertEquals(last.getLedgerId(), answer.get("ledgerId").asLong());
        assertEquals(last.getEntryId(), answer.get("entryId").asLong());
        assertThrows(PulsarClientException.TopicTerminatedException.class, this::producer);
        assertThrows(Exception.class, () -> producer.sendAsync(bytes("more")).get(patience.toMillis(), TimeUnit.MILLISECONDS));
        List<Message<byte[]>> messages = receive(consumer, 5);
        assertEquals(numbers(0, 5), texts(messages));
        assertFalse(consumer.hasReachedEndOfTopic());
        consumer.acknowledgeCumulative(messages.get(4));
        until("the consumer is told of the end", consumer::hasReachedEndOfTopic);
        assertEquals(numbers(0, 5), read(reader(MessageId.earliest, true)));
    }

    @Test
    void statistics() throws Exception {
        Consumer<byte[]> consumer = consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(100)
                .consumerName("the-consumer").enableBatchIndexAcknowledgment(true));
        sendNumbers(producer(batching(10)), 0, 60);
        for (Message<byte[]> message : receive(consumer, 60).subList(0, 25)) {
            consumer.acknowledge(message);
        }
        JsonNode stats = stats();
        assertEquals(60, stats.get("msgInCounter").asInt());
        assertEquals(60, stats.get("msgOutCounter").asInt());
        assertTrue(stats.get("bytesInCounter").asInt() > 60);
        assertEquals(1, stats.get("publishers").size());
        JsonNode subscription = stats.get("subscriptions").get("sub");
        assertEquals("Shared", subscription.get("type").asText());
        assertEquals(35, subscription.get("unackedMessages").asInt());
        assertEquals(4, subscription.get("msgBacklog").asInt(), "backlog, in entries");
        assertEquals(1, subscription.get("consumers").size());
        assertEquals("the-consumer", subscription.get("consumers").get(0).get("consumerName").asText());
        assertEquals(10, subscription.get("consumers").get(0).get("avgMessagesPerEntry").asInt());
    }

    @Test
    void nonPersistentTopic() throws Exception {
        topic = topic.replace("persistent://", "non-persistent://");
        Producer<byte[]> producer = producer();
        Consumer<byte[]> consumer = consumer();
        // Until the consumer's permits have arrived messages are dropped.
        until("a first message gets through", () -> {
            producer.send(bytes("probe"));
            return consumer.receive(50, TimeUnit.MILLISECONDS) != null;
        });
        sendNumbers(producer, 0, 50);
        List<String> got = new ArrayList<>();
        while (got.size() < 50) {
            Message<byte[]> message = receive(consumer);
            if (!text(message).equals("probe")) {
                got.add(text(message));
                consumer.acknowledge(message);
            }
        }
        assertEquals(numbers(0, 50), got);
        consumer.close();
        sendNumbers(producer, 50, 51);
        silent(consumer(), "a message that nobody listened to");
    }

    @Test
    void clientStatistics() throws Exception {
        Producer<byte[]> producer = producer();
        Consumer<byte[]> consumer = consumer();
        sendNumbers(producer, 0, 10);
        for (Message<byte[]> message : receive(consumer, 10)) {
            consumer.acknowledge(message);
        }
        assertEquals(9, producer.getLastSequenceId());
        assertTrue(producer.isConnected() && consumer.isConnected());
        assertEquals("sub", consumer.getSubscription());
        assertEquals(topic, consumer.getTopic());
    }
}
