package conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class SchemaSuite extends Scenario {
    /** A first version of a type. */
    static class First {
        public static class Person {
            public String name;
            public int age;
        }
    }

    /** A version that both sides of the first one can live with. */
    static class WithCity {
        public static class Person {
            public String name;
            public int age;
            public String city;
        }
    }

    /** A version that none can. */
    static class Shoe {
        public static class Person {
            public int name;
            public long[] size;
        }
    }

    private static <T> Schema<T> schema(String kind, Class<T> type) {
        return kind.equals("json") ? Schema.JSON(type) : Schema.AVRO(type);
    }

    private static long version(Message<?> message) {
        return ByteBuffer.wrap(message.getSchemaVersion()).getLong();
    }

    @ParameterizedTest
    @ValueSource(strings = {"json", "avro"})
    void evolve(String kind) throws Exception {
        Consumer<First.Person> consumer = consumer(schema(kind, First.Person.class));
        First.Person person = new First.Person();
        person.name = "Ada";
        person.age = 36;
        producer(schema(kind, First.Person.class)).send(person);
        Message<First.Person> message = receive(consumer);
        assertEquals("Ada", message.getValue().name);
        assertEquals(36, message.getValue().age);
        assertEquals(0, version(message));
        WithCity.Person second = new WithCity.Person();
        second.name = "Zuse";
        second.age = 40;
        second.city = "Berlin";
        producer(schema(kind, WithCity.Person.class)).send(second);
        message = receive(consumer);
        assertEquals("Zuse", message.getValue().name);
        assertEquals(1, version(message));
        // A known version is not registered again.
        producer(schema(kind, First.Person.class)).send(person);
        assertEquals(0, version(receive(consumer)));
        assertThrows(PulsarClientException.IncompatibleSchemaException.class, () -> producer(schema(kind, Shoe.Person.class)));
        assertThrows(PulsarClientException.IncompatibleSchemaException.class, () -> producer(Schema.STRING));
        assertThrows(PulsarClientException.IncompatibleSchemaException.class, () -> keep(client.newConsumer(schema(kind, Shoe.Person.class))
                .topic(topic).subscriptionName("other").subscribe()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"json", "avro"})
    void unknownTypes(String kind) throws Exception {
        First.Person person = new First.Person();
        person.name = "Ada";
        person.age = 36;
        producer(schema(kind, First.Person.class)).send(person);
        Consumer<GenericRecord> consumer = consumer(Schema.AUTO_CONSUME());
        GenericRecord record = receive(consumer).getValue();
        assertEquals("Ada", record.getField("name"));
        assertEquals(36, record.getField("age"));
        // What is published as bytes has to fit the topic's schema.
        Producer<byte[]> raw = producer(Schema.AUTO_PRODUCE_BYTES());
        raw.send(schema(kind, First.Person.class).encode(person));
        assertEquals("Ada", receive(consumer).getValue().getField("name"));
    }

    @Test
    void primitives() throws Exception {
        Consumer<String> texts = consumer(Schema.STRING);
        producer(Schema.STRING).send("größer");
        assertEquals("größer", receive(texts).getValue());
        topic += "-number";
        Consumer<Long> numbers = consumer(Schema.INT64);
        producer(Schema.INT64).send(-5L);
        assertEquals(-5L, receive(numbers).getValue());
        assertThrows(PulsarClientException.IncompatibleSchemaException.class, () -> producer(Schema.STRING));
        // Without a schema anything goes, unless validation is enforced.
        byte[] content = {1, 2, 3, 4, 5, 6, 7, 8};
        producer().send(content);
        assertArrayEquals(content, receive(numbers).getData());
    }
}
