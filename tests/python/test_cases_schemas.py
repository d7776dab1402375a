"""Schemas, patterns of topic names, and watchers of topic lists: the official client and raw frames.

Everything here that is not marked passes against Apache Pulsar 5.0.1 as well."""

import json
import struct
import threading
import time
import uuid

import _pulsar
import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from rawpulsar import RawConnection

NAMESPACE = "public/default"
EARLIEST = pulsar.InitialPosition.Earliest
LIMIT = 30


class Person(Record):
    name = String()
    age = Integer()


class PersonWithCity(Record):
    name = String()
    age = Integer()
    city = String(required_default=True)


class Stranger(Record):
    name = Integer()


def version(number):
    return struct.pack(">q", number)


def version_of(message):
    """The version that a message names. The official client hands its bytes out as text."""
    return message.schema_version().encode("latin-1")


def field(name, type_, **more):
    return {"name": name, "type": type_, **more}


def avro(*fields, type_="Avro", **more):
    definition = {"type": "record", "name": "R", "fields": list(fields), **more}
    return schema(type_, json.dumps(definition))


def schema(type_, data=b"", **properties):
    data = data.encode() if isinstance(data, str) else data
    pairs = [{"key": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"name": "s", "type": type_, "schema_data": data, **({"properties": pairs} if pairs else {})}


A = field("a", "string")
B = field("b", ["null", "int"], default=None)
C = field("c", "int")


@pytest.fixture
def bring(raw):
    """Opens a producer with a schema; the version it got, or the name of the error."""
    ids = iter(range(1, 1000))

    def bring(topic, given):
        raw.send("PRODUCER", request_id=next(raw.ids), producer_id=next(ids), topic=topic, **({"schema": given} if given else {}))
        answer = raw.next()
        return answer["schema_version"] if answer.type == "PRODUCER_SUCCESS" else answer["error"]

    return bring


@pytest.fixture
def read(raw):
    """Subscribes with a schema; None, or the name of the error."""
    ids = iter(range(1, 1000))

    def read(topic, given):
        number = next(ids)
        raw.send("SUBSCRIBE", request_id=next(raw.ids), consumer_id=number, topic=topic, subscription=f"s{number}", subType="Shared",
                 **({"schema": given} if given else {}))
        return raw.next().get("error")

    return read


@pytest.fixture
def get(raw):
    def get(topic, **fields):
        return raw.request("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic, **fields)

    return get


class TestOfficialClient:
    def test_json_records_go_through(self, client, topic):
        consumer = client.subscribe(topic, "sub", schema=JsonSchema(Person), initial_position=EARLIEST)
        producer = client.create_producer(topic, schema=JsonSchema(Person))
        for age in range(10):
            producer.send(Person(name="x", age=age))
        for age in range(10):
            message = consumer.receive(60_000)
            assert (message.value().name, message.value().age) == ("x", age)
            assert version_of(message) == version(0)
            consumer.acknowledge(message)

    def test_strings_go_through(self, client, topic):
        producer = client.create_producer(topic, schema=StringSchema())
        consumer = client.subscribe(topic, "sub", schema=StringSchema(), initial_position=EARLIEST)
        producer.send("größer")
        assert consumer.receive(60_000).value() == "größer"

    def test_a_record_that_grew_gets_a_new_version_and_old_messages_keep_theirs(self, client, topic):
        first = client.create_producer(topic, schema=JsonSchema(Person))
        first.send(Person(name="old", age=1))
        second = client.create_producer(topic, schema=JsonSchema(PersonWithCity))
        second.send(PersonWithCity(name="new", age=2, city="Ulm"))
        first.send(Person(name="old", age=3))
        consumer = client.subscribe(topic, "sub", initial_position=EARLIEST)
        versions = [version_of(consumer.receive(60_000)) for _ in range(3)]
        assert versions == [version(0), version(1), version(0)]

    def test_what_does_not_fit_is_refused(self, client, topic):
        client.create_producer(topic, schema=JsonSchema(Person))
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=JsonSchema(Stranger))
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=StringSchema())
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "sub", schema=JsonSchema(Stranger))
        # Bytes are no schema, and always welcome.
        client.create_producer(topic).send(b"{}")

    def test_a_partition_has_the_schema_of_its_topic(self, client, topic, get):
        producer = client.create_producer(topic, schema=JsonSchema(Person))
        producer.send(Person(name="x", age=1))
        assert get(f"{topic}-partition-0")["schema"] == get(topic)["schema"]


class TestVersions:
    def test_count_from_0_and_the_same_schema_keeps_its_own(self, bring, get, topic):
        assert bring(topic, avro(A)) == version(0)
        assert bring(topic, avro(A, B)) == version(1)
        assert bring(topic, avro(A)) == version(0)
        latest = get(topic)
        assert latest["schema_version"] == version(1)
        assert latest["schema"]["name"] == topic.split("://")[1]
        assert json.loads(latest["schema"]["schema_data"])["fields"] == [A, B]
        first = get(topic, schema_version=version(0))
        assert json.loads(first["schema"]["schema_data"])["fields"] == [A]

    def test_white_space_documentation_and_properties_make_no_new_one(self, bring, topic):
        assert bring(topic, avro(A)) == version(0)
        spaced = json.dumps({"type": "record", "name": "R", "fields": [A]}, indent=4)
        assert bring(topic, schema("Avro", spaced)) == version(0)
        assert bring(topic, avro({**A, "doc": "x"}, doc="y")) == version(0)
        assert bring(topic, {**avro(A), "properties": [{"key": "k", "value": "v"}]}) == version(0)
        assert bring(topic, avro(A, name="R2")) == version(1)
        assert bring(topic, avro({**A, "more": "x"}, name="R2")) == version(2)

    def test_without_a_schema_there_is_no_version(self, bring, get, topic):
        assert bring(topic, None) == b""
        assert get(topic)["error_code"] == "TopicNotFound"
        assert bring(topic, avro(A)) == version(0)
        assert bring(topic, None) == b""

    def test_type_none_is_a_schema(self, bring, read, topic):
        assert bring(topic, schema("None")) == version(0)
        assert bring(topic, schema("String")) == "IncompatibleSchema"
        assert read(topic, schema("None")) is None
        assert read(topic, schema("String")) == "IncompatibleSchema"


class TestWhatIsRefused:
    @pytest.mark.parametrize("kind", ["String", "Bool", "Int8", "Int64", "Double", "Date", "Instant", "LocalDateTime"])
    def test_primitives_with_a_definition(self, bring, topic, kind):
        assert bring(topic, schema(kind, b"abc")) == "IncompatibleSchema"
        assert bring(topic, schema(kind)) == version(0)

    @pytest.mark.parametrize("kind", ["Avro", "Json", "Protobuf"])
    @pytest.mark.parametrize("data", ["", "abc", "{}", '{"type":"nosuch"}'], ids=["empty", "text", "nothing", "unknown"])
    def test_records_without_one(self, bring, topic, kind, data):
        assert bring(topic, schema(kind, data)) == "IncompatibleSchema"

    def test_unions_and_types_of_the_client(self, bring, topic):
        assert bring(topic, schema("Avro", '["null","int"]')) == "IncompatibleSchema"
        assert bring(topic, schema("AutoConsume")) == "IncompatibleSchema"
        assert bring(topic, schema("ProtobufNative", "abc")) == "IncompatibleSchema"

    def test_another_type(self, bring, read, topic):
        assert bring(topic, avro(A)) == version(0)
        assert bring(topic, avro(A, type_="Json")) == "IncompatibleSchema"
        assert bring(topic, schema("String")) == "IncompatibleSchema"
        for other in (avro(A, type_="Json"), schema("None"), schema("String")):
            assert read(topic, other) == "IncompatibleSchema"

    def test_fields_without_default(self, bring, read, topic):
        assert bring(topic, avro(A)) == version(0)
        assert bring(topic, avro(A, C)) == "IncompatibleSchema"
        assert read(topic, avro(A, C)) == "IncompatibleSchema"
        # A consumer has to read what is there, not to be read.
        assert read(topic, avro(A, B)) is None

    def test_parts_of_key_value(self, bring, topic):
        def pair(key_type, value_type, value):
            data = struct.pack(">i", 0) + struct.pack(">i", len(value)) + value
            return schema("KeyValue", data, key__schema__type=key_type, value__schema__type=value_type, kv__encoding__type="INLINE")

        grown, other = avro(A, B)["schema_data"], avro(A, C)["schema_data"]
        assert bring(topic, pair("STRING", "AVRO", avro(A)["schema_data"])) == version(0)
        assert bring(topic, pair("STRING", "AVRO", grown)) == version(1)
        assert bring(topic, pair("STRING", "AVRO", other)) == "IncompatibleSchema"
        assert bring(topic, pair("STRING", "AVRO", b"{")) == "IncompatibleSchema"


class TestConsumers:
    def test_say_the_schema_of_a_topic_that_nobody_uses(self, read, get, topic):
        assert read(topic, schema("AutoConsume")) is None
        assert read(topic, avro(A)) is None
        assert get(topic)["schema_version"] == version(0)

    def test_do_not_where_another_reads_bytes(self, read, topic):
        assert read(topic, None) is None
        assert read(topic, avro(A)) == "IncompatibleSchema"

    def test_do_not_where_a_producer_writes_bytes(self, bring, read, topic):
        assert bring(topic, None) == b""
        assert read(topic, avro(A)) == "IncompatibleSchema"
        assert bring(topic, avro(A)) == version(0)
        assert read(topic, avro(A)) is None


class TestSchemaCommands:
    def test_versions_that_are_none(self, raw, bring, get, topic):
        bring(topic, avro(A))
        assert get(topic, schema_version=b"")["error_code"] == "IncompatibleSchema"
        assert get(topic, schema_version=version(1))["error_code"] == "TopicNotFound"
        assert get(topic, schema_version=version(-1))["error_code"] == "TopicNotFound"
        # Clients before 2.4 send 64 bytes.
        assert get(topic, schema_version=bytes(64))["schema_version"] == version(0)
        raw.send("GET_SCHEMA", request_id=1, topic=topic, schema_version=b"abc")
        raw.expect_closed()

    def test_get_or_create(self, raw, topic):
        def create(name, given):
            return raw.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", topic=name, schema=given)

        assert create(topic, avro(A))["error_code"] == "TopicNotFound"
        raw.producer(topic)
        assert create(topic, avro(A))["schema_version"] == version(0)
        assert create(topic, avro(A, B))["schema_version"] == version(1)
        assert create(topic, avro(A))["schema_version"] == version(0)
        assert create(topic, avro(C))["error_code"] == "IncompatibleSchema"
        assert create(topic, schema("AutoConsume"))["error_code"] == "IncompatibleSchema"
        assert create("a/b", avro(A))["error_code"] == "InvalidTopicName"

    def test_names(self, get, topic):
        assert get("a/b")["error_code"] == "InvalidTopicName"
        assert get(topic)["error_code"] == "TopicNotFound"

    @pytest.mark.vela_only
    def test_a_schema_that_is_too_large_is_refused(self, bring, topic):
        assert bring(topic, schema("None", bytes(1 << 20))) == version(0)
        assert bring(topic, schema("None", bytes((1 << 20) + 1))) == "IncompatibleSchema"


@pytest.fixture
def prefix():
    """The beginning of topics of this test's own, short enough for patterns."""
    return f"persistent://{NAMESPACE}/w{uuid.uuid4().hex[:6]}"


class TestPatterns:
    @pytest.fixture
    def matching(self, raw, prefix):
        self.names = [f"{prefix}-{local}" for local in ("a1", "a2", "b1")]
        for number, name in enumerate(self.names):
            raw.producer(name, producer_id=number)

        def matching(pattern):
            answer = raw.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace=NAMESPACE, topics_pattern=pattern)
            assert answer["filtered"] is True
            return answer.get("topics", [])

        return matching

    def test_mean_the_whole_name(self, matching, prefix):
        short = prefix.split("://")[1]
        assert matching(prefix + "-a.*") == self.names[:2]
        assert matching(f"^{prefix}-a.*$") == self.names[:2]
        assert matching(short + "-a.*") == self.names[:2]
        assert matching("non-" + prefix + "-.1") == [self.names[0], self.names[2]]
        assert matching(prefix + "-A1") == []
        assert matching("(?i)" + prefix + "-A1") == self.names[:1]
        assert matching(prefix) == []
        assert matching("") == []

    def test_the_hash_is_that_of_the_list(self, raw, matching, prefix):
        ask = {"namespace": NAMESPACE, "topics_pattern": prefix + "-a.*"}
        first = raw.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", **ask)
        again = raw.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", topics_hash=first["topics_hash"], **ask)
        assert (again.get("topics", []), again["changed"], again["topics_hash"]) == ([], False, first["topics_hash"])

    def test_system_topics_are_not_listed(self, raw, topic):
        own = topic + "__change_events"
        raw.producer(own)
        answer = raw.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace=NAMESPACE)
        assert own in answer["topics"]
        assert f"persistent://{NAMESPACE}/__change_events" not in answer["topics"]

    @pytest.mark.vela_only
    def test_what_only_the_client_can_apply_is_left_to_it(self, raw, matching, prefix):
        answer = raw.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace=NAMESPACE, topics_pattern=prefix + "-(?!b).*")
        assert answer["filtered"] is False and set(self.names) <= set(answer["topics"])

    def test_a_pattern_consumer_finds_topics_that_come_later(self, client, prefix):
        # The Python wrapper does not pass its pattern_auto_discovery_period on: this is the client beneath it.
        settings = _pulsar.ConsumerConfiguration()
        settings.consumer_type(pulsar.ConsumerType.Shared)
        settings.subscription_initial_position(EARLIEST)
        settings.pattern_auto_discovery_period(1)
        first = client.create_producer(f"{prefix}-a1")
        consumer = client._client.subscribe_pattern(f"{prefix}-a.*", "sub", settings)
        first.send(b"early")
        assert consumer.receive(LIMIT * 1000).data() == b"early"
        later = client.create_producer(f"{prefix}-a2")
        client.create_producer(f"{prefix}-b1").send(b"not this one")
        later.send(b"late")
        assert consumer.receive(LIMIT * 1000).data() == b"late"
        later.send(b"later")
        assert consumer.receive(LIMIT * 1000).data() == b"later"


class TestWatchers:
    @pytest.fixture
    def watch(self, raw, prefix):
        def watch(watcher_id=1, pattern=prefix + "-a.*", **fields):
            return raw.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", watcher_id=watcher_id, namespace=NAMESPACE, topics_pattern=pattern, **fields)

        return watch

    @pytest.fixture
    def other(self, make_raw):
        return make_raw()

    def test_are_offered(self, open_raw):
        flags = open_raw().connect()["feature_flags"]
        assert flags["supports_topic_watchers"] is True
        assert flags["supports_topic_watcher_reconcile"] is True

    def test_hear_of_new_topics(self, raw, other, watch, prefix):
        other.producer(f"{prefix}-a1")
        begun = watch()
        assert begun["topic"] == [f"{prefix}-a1"]
        other.producer(f"{prefix}-b1", producer_id=2)
        other.producer(f"{prefix}-a2", producer_id=3)
        update = raw.expect("WATCH_TOPIC_UPDATE", LIMIT, watcher_id=1)
        assert (update["new_topics"], update.get("deleted_topics", [])) == ([f"{prefix}-a2"], [])
        listed = other.request("GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace=NAMESPACE, topics_pattern=prefix + "-a.*")
        assert listed["topics_hash"] == update["topics_hash"] != begun["topics_hash"]
        raw.expect_silence(0.5)

    def test_begin_again_with_what_is_there(self, other, watch, prefix):
        other.producer(f"{prefix}-a1")
        first = watch()
        again = watch(pattern="something else")
        assert (again["topic"], again["topics_hash"]) == (first["topic"], first["topics_hash"])
        known = watch(topics_hash=first["topics_hash"])
        assert known.get("topic", []) == []
        assert watch(watcher_id=2, topics_hash=first["topics_hash"]).get("topic", []) == []

    def test_end_when_they_are_closed(self, raw, other, watch, prefix):
        watch(1)
        watch(2)
        raw.request("WATCH_TOPIC_LIST_CLOSE", watcher_id=1)
        raw.request("WATCH_TOPIC_LIST_CLOSE", watcher_id=77)
        other.producer(f"{prefix}-a1")
        raw.expect("WATCH_TOPIC_UPDATE", LIMIT, watcher_id=2)
        raw.expect_silence(0.5)

    @pytest.mark.parametrize("pattern, error", [("a[", "InvalidTopicName"), ("x" * 51, "NotAllowedError")], ids=["broken", "long"])
    def test_patterns_that_are_refused(self, raw, pattern, error):
        answer = raw.request("WATCH_TOPIC_LIST", "ERROR", watcher_id=1, namespace=NAMESPACE, topics_pattern=pattern)
        assert answer["error"] == error
        raw.expect_alive()

    def test_of_a_missing_namespace_see_nothing(self, raw):
        begun = raw.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", watcher_id=1, namespace="public/nowhere", topics_pattern=".*")
        assert (begun.get("topic", []), begun["topics_hash"]) == ([], "00000000")

    def test_of_a_namespace_that_is_none_close_the_connection(self, raw):
        raw.send("WATCH_TOPIC_LIST", request_id=1, watcher_id=1, namespace="nonsense", topics_pattern=".*")
        raw.expect_closed()

    def test_many_connections_hear_of_many_topics(self, broker, make_raw, other, prefix):
        watchers = [make_raw() for _ in range(8)]
        for connection in watchers:
            connection.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", watcher_id=1, namespace=NAMESPACE, topics_pattern=prefix + "-a.*")
        names = sorted(f"{prefix}-a{number:03}" for number in range(100))
        for number, name in enumerate(names):
            other.producer(name, producer_id=number)
        for connection in watchers:
            heard = []
            while len(heard) < len(names):
                heard += connection.expect("WATCH_TOPIC_UPDATE", LIMIT)["new_topics"]
            assert sorted(heard) == names


@pytest.mark.restart
class TestRestart:
    def test_versions_that_were_answered_survive_kill_9(self, make_broker):
        broker = make_broker(cores=2).start()
        answered = {}
        stop = threading.Event()

        def publish(worker):
            """Brings schema after schema, each one field longer, until the broker is gone."""
            try:
                with RawConnection(broker.host, broker.port) as connection:
                    connection.connect()
                    fields = [A]
                    for number in range(1000):
                        topic = f"persistent://{NAMESPACE}/crash-{worker}-{number // 20}"
                        fields = [A] if number % 20 == 0 else [*fields, field(f"f{number}", ["null", "int"], default=None)]
                        given = avro(*fields)
                        success = connection.producer(topic, producer_id=number, schema=given)
                        answered[topic, success["schema_version"]] = given["schema_data"]
                        if stop.is_set():
                            return
            except Exception:
                return

        for _ in range(3):
            before = len(answered)
            stop.clear()
            workers = [threading.Thread(target=publish, args=(f"{uuid.uuid4().hex[:6]}",)) for worker in range(4)]
            for worker in workers:
                worker.start()
            deadline = time.monotonic() + 60
            while len(answered) < before + 50:
                assert time.monotonic() < deadline, f"{len(answered) - before} schemas were answered"
                time.sleep(0.01)
            broker.kill()
            stop.set()
            for worker in workers:
                worker.join()
            broker.start()
            with RawConnection(broker.host, broker.port) as connection:
                connection.connect()
                for (topic, number), data in answered.items():
                    kept = connection.request("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic, schema_version=number)
                    assert kept["schema"]["schema_data"] == data, (topic, number)
        # And they count.
        topic, _ = next(iter(answered))
        with RawConnection(broker.host, broker.port) as connection:
            connection.connect()
            refused = connection.request("PRODUCER", "ERROR", topic=topic, producer_id=1, schema=schema("String"))
            assert refused["error"] == "IncompatibleSchema"
        assert broker.stop() == 0
