package conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.junit.jupiter.api.Test;

class ReadingSuite extends Scenario {
    @Test
    void readerStartsWhereItSays() throws Exception {
        Producer<byte[]> producer = producer();
        List<MessageId> ids = sendNumbers(producer, 0, 20);
        assertEquals(numbers(0, 20), read(reader(MessageId.earliest, false)));
        assertEquals(numbers(8, 20), read(reader(ids.get(7), false)));
        assertEquals(numbers(7, 20), read(reader(ids.get(7), true)));
        assertEquals(numbers(19, 20), read(reader(MessageId.latest, true)));
        Reader<byte[]> end = reader(MessageId.latest, false);
        assertFalse(end.hasMessageAvailable());
        sendNumbers(producer, 20, 21);
        assertEquals("20", text(next(end)));
        assertEquals(numbers(11, 21), read(reader(MessageId.fromByteArray(ids.get(11).toByteArray()), true)));
    }

    @Test
    void readerStartsInsideABatch() throws Exception {
        sendNumbers(producer(batching(10)), 0, 30);
        List<MessageId> ids = new ArrayList<>();
        Reader<byte[]> all = reader(MessageId.earliest, false);
        while (ids.size() < 30) {
            ids.add(next(all).getMessageId());
        }
        for (int n : new int[] {0, 4, 9, 10, 19, 28}) {
            assertEquals(numbers(n, 30), read(reader(ids.get(n), true)), "from message " + n);
            assertEquals(numbers(n + 1, 30), read(reader(ids.get(n), false)), "behind message " + n);
        }
    }

    @Test
    void readerSeeks() throws Exception {
        Producer<byte[]> producer = producer();
        List<MessageId> ids = sendNumbers(producer, 0, 5);
        // A time that lies between two messages for certain.
        long last = System.currentTimeMillis();
        until("the clock moves on", () -> System.currentTimeMillis() > last + 5);
        long between = System.currentTimeMillis();
        until("the clock moves on", () -> System.currentTimeMillis() > between + 5);
        sendNumbers(producer, 5, 10);
        Reader<byte[]> reader = reader(MessageId.earliest, true);
        assertEquals(numbers(0, 10), read(reader));
        reader.seek(between);
        assertEquals(numbers(5, 10), read(reader));
        reader.seek(ids.get(3));
        assertEquals(numbers(3, 10), read(reader));
        reader.seek(MessageId.earliest);
        assertEquals(numbers(0, 10), read(reader));
        reader.seek(MessageId.latest);
        sendNumbers(producer, 10, 11);
        until("the first message after a seek to the end", () -> text(next(reader)).equals("10"));
    }

    @Test
    void readerGoesBackInTime() throws Exception {
        sendNumbers(producer(), 0, 5);
        // An hour ago there was nothing: all of it comes.
        Reader<byte[]> reader = keep(client.newReader().topic(topic).startMessageFromRollbackDuration(1, TimeUnit.HOURS).create());
        for (String number : numbers(0, 5)) {
            assertEquals(number, text(next(reader)));
        }
    }

    @Test
    void readerOfSomeKeys() throws Exception {
        Producer<byte[]> producer = producer();
        // Murmur3 slots: "key1" 293, "hello" 64071.
        for (int n = 0; n < 10; n++) {
            producer.newMessage().key(n % 2 == 0 ? "key1" : "hello").value(bytes(n)).send();
        }
        Reader<byte[]> reader = keep(client.newReader().topic(topic).startMessageId(MessageId.earliest).keyHashRange(Range.of(0, 32767)).create());
        for (int n = 0; n < 10; n += 2) {
            assertEquals("" + n, text(next(reader)));
        }
    }

    @Test
    void readerOfTheCompactedView() throws Exception {
        sendKeyed(producer(), 3, 2);
        // Nothing was compacted: the view is the topic.
        Reader<byte[]> reader = keep(client.newReader().topic(topic).startMessageId(MessageId.earliest).readCompacted(true).create());
        assertEquals(6, read(reader).size());
        assertThrows(PulsarClientException.class, () -> consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).readCompacted(true)));
    }

    @Test
    void tableView() throws Exception {
        Producer<byte[]> producer = producer();
        producer.newMessage().key("a").value(bytes("1")).send();
        producer.newMessage().key("b").value(bytes("2")).send();
        producer.newMessage().key("a").value(bytes("3")).send();
        TableView<byte[]> view = keep(client.newTableView(Schema.BYTES).topic(topic).create());
        until("the view shows the topic", () -> view.size() == 2 && new String(view.get("a")).equals("3") && new String(view.get("b")).equals("2"));
        producer.newMessage().key("b").value(bytes("4")).send();
        producer.newMessage().key("a").value(null).send();
        until("the view follows the topic", () -> view.size() == 1 && new String(view.get("b")).equals("4"));
        assertTrue(view.containsKey("b"));
    }

    @Test
    void seekByPublishTimeOfEachMessage() throws Exception {
        List<Message<byte[]>> messages = new ArrayList<>();
        sendNumbers(producer(batching(4)), 0, 20);
        Reader<byte[]> reader = reader(MessageId.earliest, true);
        while (messages.size() < 20) {
            messages.add(next(reader));
        }
        for (int n : new int[] {0, 8, 16}) {
            reader.seek(messages.get(n).getPublishTime());
            Message<byte[]> first = next(reader);
            assertEquals(messages.get(n).getPublishTime(), first.getPublishTime());
            assertTrue(Integer.parseInt(text(first)) <= n);
        }
    }
}
