"""Producers that want a topic for themselves, messages that are sent again, topics that end, and limits.

What a policy or a setting is needed for runs in a namespace of its own (Apache Pulsar) or on a broker of its own (Vela)."""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
import uuid

import pulsar
import pytest

from broker_process import free_port
from rawpulsar import NO_ID, ConnectionClosed, RawConnection, batch_payload, entry_bytes, send_frame

EXCLUSIVE, WAIT, FENCING = "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"
MODES = pulsar.ProducerAccessMode
READ = {"initial_position": pulsar.InitialPosition.Earliest}


def http(broker, method, path, body=None):
    """Status and text of an HTTP answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.admin + path, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def eventually(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def restricted(pytestconfig, request):
    """Where a policy is in force: `(broker, namespace)`, each made once."""
    made = {}

    def make(policy, body, setting, value):
        key = (policy, str(body), setting, value)
        if key not in made and pytestconfig.getoption("--broker"):
            broker = request.getfixturevalue("broker")
            namespace = f"public/producers-{uuid.uuid4().hex[:8]}"
            assert http(broker, "PUT", f"/admin/v2/namespaces/{namespace}", {})[0] == 204
            assert http(broker, "POST", f"/admin/v2/namespaces/{namespace}/{policy}", body)[0] == 204
            made[key] = broker, namespace
        elif key not in made:
            make_broker = request.getfixturevalue("make_broker")
            made[key] = make_broker(arguments=[setting, value]).start(), "public/default"
        broker, namespace = made[key]
        topic = f"persistent://{namespace}/t-{uuid.uuid4().hex[:8]}"
        with connected(broker) as raw:
            # Apache Pulsar serves a part of a new namespace only after a lookup in it.
            raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        return broker, topic

    return make


@contextlib.contextmanager
def connected(broker, **options):
    with RawConnection(broker.host, broker.port, **options) as raw:
        raw.connect()
        yield raw


@contextlib.contextmanager
def official(broker):
    client = pulsar.Client(broker.url, operation_timeout_seconds=20, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def everything(broker, topic):
    """All payloads of a topic."""
    with official(broker) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        payloads = []
        while reader.has_message_available():
            payloads.append(reader.read_next(10_000).data())
        return payloads


class TestAccessModes:
    def test_exclusive_producer(self, client, topic):
        first = client.create_producer(topic, access_mode=MODES.Exclusive)
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(topic)
        with pytest.raises(pulsar.ProducerFenced):
            client.create_producer(topic, access_mode=MODES.Exclusive)
        first.send(b"alone")
        first.close()
        shared = client.create_producer(topic)
        with pytest.raises(pulsar.ProducerFenced):
            client.create_producer(topic, access_mode=MODES.Exclusive)
        shared.close()
        client.create_producer(topic, access_mode=MODES.Exclusive).send(b"alone again")

    def test_wait_for_exclusive(self, make_client, topic):
        first = make_client().create_producer(topic, access_mode=MODES.Exclusive)
        second, done = [], threading.Event()
        # The broker counts who waits only when it has heard of it: a raw one shows when, below; here only the order is told.
        closed = threading.Event()
        client = make_client()

        def wait():
            producer = client.create_producer(topic, access_mode=MODES.WaitForExclusive)
            second.append((producer, closed.is_set()))
            done.set()

        threading.Thread(target=wait, daemon=True).start()
        first.send(b"first")
        assert not done.is_set()
        closed.set()
        first.close()
        assert done.wait(30)
        producer, after_close = second[0]
        assert after_close
        producer.send(b"second")

    def test_fencing(self, make_raw, topic):
        a, b = make_raw(), make_raw()
        assert a.producer(topic, producer_access_mode=EXCLUSIVE)["topic_epoch"] == 0
        a.publish(b"of a")
        assert b.producer(topic, producer_access_mode=FENCING)["topic_epoch"] == 1
        a.write(send_frame(entry_bytes(b"too late", sequence_id=1), producer_id=1, sequence_id=1, num_messages=1))
        a.expect_closed()
        back = make_raw()
        for mode in (EXCLUSIVE, FENCING):
            refused = back.request("PRODUCER", "ERROR", topic=topic, producer_id=1, producer_access_mode=EXCLUSIVE, topic_epoch=0)
            assert refused["error"] == "ProducerFenced", mode
        b.publish(b"of b")
        b.request("CLOSE_PRODUCER", producer_id=1)
        refused = back.request("PRODUCER", "ERROR", topic=topic, producer_id=1, producer_access_mode=EXCLUSIVE, topic_epoch=0)
        assert refused["error"] == "ProducerFenced"
        # Its own epoch is kept, and Shared producers hear of it.
        assert b.producer(topic, producer_access_mode=EXCLUSIVE, topic_epoch=1)["topic_epoch"] == 1
        b.request("CLOSE_PRODUCER", producer_id=1)
        assert back.producer(topic)["topic_epoch"] == 1

    def test_who_waits_gets_two_answers_of_one_request(self, make_raw, topic):
        a, b, c = make_raw(), make_raw(), make_raw()
        a.producer(topic, producer_access_mode=EXCLUSIVE)
        b.send("PRODUCER", topic=topic, producer_id=1, request_id=70, producer_access_mode=WAIT, producer_name="b")
        early = b.expect("PRODUCER_SUCCESS", request_id=70, producer_ready=False, producer_name="b")
        assert "topic_epoch" not in early.fields
        c.send("PRODUCER", topic=topic, producer_id=1, request_id=71, producer_access_mode=WAIT)
        c.expect("PRODUCER_SUCCESS", request_id=71, producer_ready=False)
        busy = a.request("PRODUCER", "ERROR", topic=topic, producer_id=2)
        assert busy["error"] == "ProducerBusy"
        a.publish(b"a")
        a.request("CLOSE_PRODUCER", producer_id=1)
        b.expect("PRODUCER_SUCCESS", request_id=70, producer_ready=True, producer_name="b", topic_epoch=1)
        b.publish(b"b")
        b.close()
        assert c.expect("PRODUCER_SUCCESS", request_id=71, producer_ready=True)["topic_epoch"] == 2
        c.publish(b"c")

    def test_fencing_refuses_those_who_wait(self, make_raw, topic):
        a, b, c = make_raw(), make_raw(), make_raw()
        a.producer(topic, producer_access_mode=EXCLUSIVE)
        b.send("PRODUCER", topic=topic, producer_id=1, request_id=70, producer_access_mode=WAIT)
        b.expect("PRODUCER_SUCCESS", request_id=70, producer_ready=False)
        c.producer(topic, producer_access_mode=FENCING)
        b.expect("ERROR", request_id=70, error="ProducerFenced")
        a.expect_silence(0.1)

    def test_a_send_of_one_that_waits_ends_its_connection(self, make_raw, topic):
        a, b = make_raw(), make_raw()
        a.producer(topic, producer_access_mode=EXCLUSIVE)
        b.send("PRODUCER", topic=topic, producer_id=1, request_id=70, producer_access_mode=WAIT)
        b.expect("PRODUCER_SUCCESS", request_id=70, producer_ready=False)
        b.write(send_frame(entry_bytes(b"too early"), producer_id=1, sequence_id=0, num_messages=1))
        b.expect_closed()

    def test_one_that_waits_may_leave(self, make_raw, topic):
        a, b = make_raw(), make_raw()
        a.producer(topic, producer_access_mode=EXCLUSIVE)
        b.send("PRODUCER", topic=topic, producer_id=1, request_id=70, producer_access_mode=WAIT)
        b.expect("PRODUCER_SUCCESS", request_id=70, producer_ready=False)
        b.request("CLOSE_PRODUCER", producer_id=1)
        b.expect_alive()

    def test_a_higher_epoch_is_taken_over(self, raw, topic):
        raw.producer(topic, producer_access_mode=EXCLUSIVE)
        raw.request("CLOSE_PRODUCER", producer_id=1)
        assert raw.producer(topic, producer_access_mode=EXCLUSIVE, topic_epoch=5)["topic_epoch"] == 5
        raw.request("CLOSE_PRODUCER", producer_id=1)
        assert raw.producer(topic, producer_access_mode=EXCLUSIVE)["topic_epoch"] == 6

    @pytest.mark.vela_only
    def test_its_own_dead_connection_does_not_keep_an_exclusive_producer_out(self, make_raw, topic):
        """Apache Pulsar fences it at once, whatever became of the holder."""
        dead, back = make_raw(pong=False), make_raw()
        dead.producer(topic, producer_access_mode=EXCLUSIVE, producer_name="me")
        back.send("PRODUCER", topic=topic, producer_id=1, request_id=70, producer_access_mode=EXCLUSIVE, producer_name="me", topic_epoch=0)
        assert back.expect("PRODUCER_SUCCESS", timeout=30, request_id=70)["topic_epoch"] == 0

    @pytest.mark.restart
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
    def test_epochs_survive(self, make_broker, topic, kill):
        broker = make_broker(port=free_port()).start()
        with connected(broker) as raw:
            assert raw.producer(topic, producer_access_mode=EXCLUSIVE)["topic_epoch"] == 0
        broker.kill() if kill else broker.stop()
        broker.start()
        with connected(broker) as raw:
            assert raw.producer(topic, producer_access_mode=EXCLUSIVE)["topic_epoch"] == 1
            raw.request("CLOSE_PRODUCER", producer_id=1)
            stale = raw.request("PRODUCER", "ERROR", topic=topic, producer_id=1, producer_access_mode=EXCLUSIVE, topic_epoch=0)
            assert stale["error"] == "ProducerFenced"


def send(raw, sequence, payload=None, highest=None, **metadata):
    """A message, or a batch of `highest` - `sequence` + 1, by producer 1 with the name "p"."""
    payload = payload or b"%d" % sequence
    fields = {"producer_id": 1, "sequence_id": sequence, "num_messages": 1}
    metadata.update(producer_name="p", sequence_id=sequence)
    if highest is not None:
        fields.update(highest_sequence_id=highest, num_messages=highest - sequence + 1)
        payload = batch_payload([b"%d" % n for n in range(sequence, highest + 1)], sequence)
        metadata.update(num_messages_in_batch=highest - sequence + 1, highest_sequence_id=highest)
    if "chunk_id" in metadata:
        fields["is_chunk"] = True
    raw.write(send_frame(entry_bytes(payload, **metadata), **fields))


def is_duplicate(receipt):
    return receipt.position == (NO_ID, NO_ID)


class TestDeduplication:
    @pytest.fixture
    def place(self, restricted):
        return restricted("deduplication", True, "--broker-deduplication-enabled", "true")

    def test_dedup_basic(self, place):
        broker, topic = place
        with official(broker) as client:
            producer = client.create_producer(topic, producer_name="p")
            for sequence in (0, 1, 2, 1, 3):
                producer.send(b"%d" % sequence, sequence_id=sequence)
            producer.close()
            assert client.create_producer(topic, producer_name="p").last_sequence_id() == 3
        assert everything(broker, topic) == [b"0", b"1", b"2", b"3"]

    def test_a_repeat_gets_a_receipt_without_a_position(self, place):
        broker, topic = place
        with connected(broker) as raw:
            assert raw.producer(topic, producer_name="p")["last_sequence_id"] == -1
            for sequence in (0, 1):
                send(raw, sequence)
                assert not is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=sequence))
            send(raw, 5, highest=9)
            assert not is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=5, highest_sequence_id=9))
            for sequence, highest in ((0, None), (1, None), (5, 9), (9, None)):
                send(raw, sequence, highest=highest)
                assert is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=sequence)), sequence
        with connected(broker) as raw:
            assert raw.producer(topic, producer_name="p")["last_sequence_id"] == 9
            send(raw, 7)
            assert is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=7))
            # Each name has its own ids, and one the broker makes has none before.
            raw.request("CLOSE_PRODUCER", producer_id=1)
            assert raw.producer(topic, producer_name="q")["last_sequence_id"] == -1
            raw.request("CLOSE_PRODUCER", producer_id=1)
            assert raw.producer(topic)["last_sequence_id"] == -1

    def test_of_a_chunked_message_the_last_chunk_counts(self, place):
        broker, topic = place
        with connected(broker) as raw:
            raw.producer(topic, producer_name="p")
            for again in (False, True):
                for chunk in range(3):
                    send(raw, 4, b"chunk", uuid="u", chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=15)
                    duplicate = is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=4))
                    assert duplicate == (again and chunk == 2)
            send(raw, 4)
            assert is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=4))

    def test_chunked_messages_of_an_official_client_arrive_once(self, place):
        broker, topic = place
        with official(broker) as client:
            bodies = [bytes([65 + n]) * 6_000_000 for n in range(2)]
            consumer = client.subscribe(topic, "s", **READ)
            producer = client.create_producer(topic, producer_name="p", chunking_enabled=True)
            for sequence in (0, 1, 1, 0):
                producer.send(bodies[sequence], sequence_id=sequence)
            for body in bodies:
                assert consumer.receive(30_000).data() == body
            producer.send(b"end", sequence_id=2)
            assert consumer.receive(30_000).data() == b"end"

    def test_batches_that_overlap(self, place):
        """apache/pulsar#6273: what has a receipt with a position is stored, once, and nothing else is."""
        broker, topic = place
        batches = [(0, 5), (6, 8), (7, 10), (12, 15)]
        answered = []
        with connected(broker) as raw:
            raw.producer(topic, producer_name="p")
            for lowest, highest in batches:
                send(raw, lowest, highest=highest)
            try:
                for _ in batches:
                    frame = raw.next()
                    if frame.type == "SEND_RECEIPT" and not is_duplicate(frame):
                        answered.append((frame["sequence_id"], frame["highest_sequence_id"]))
            except ConnectionClosed:
                pass
        with connected(broker) as raw:
            raw.producer(topic, producer_name="p")
            send(raw, 12, highest=15)
            repeat = raw.expect("SEND_RECEIPT", sequence_id=12)
            assert is_duplicate(repeat) == ((12, 15) in answered)
            send(raw, 16)
            assert not is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=16))
        numbers = [n for lowest, highest in answered for n in range(lowest, highest + 1)]
        assert everything(broker, topic) == [b"%d" % n for n in [*numbers, 16]]

    @pytest.mark.vela_only
    def test_a_batch_that_overlaps_is_refused_by_itself(self, place):
        """Apache Pulsar answers it as a duplicate: what is new in it is lost, and its producer does not learn it."""
        broker, topic = place
        with connected(broker) as raw:
            raw.producer(topic, producer_name="p")
            send(raw, 0, highest=8)
            raw.expect("SEND_RECEIPT", sequence_id=0)
            send(raw, 7, highest=10)
            raw.expect("SEND_ERROR", sequence_id=10, error="NotAllowedError")
            send(raw, 9, highest=10)
            assert not is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=9))

    @pytest.mark.vela_only
    def test_a_repeat_right_behind_its_original_is_no_error(self, place):
        """Apache Pulsar cannot tell before the original is stored, and answers PersistenceError: the client has to come back."""
        broker, topic = place
        with connected(broker) as raw:
            raw.producer(topic, producer_name="p")
            for _ in range(2):
                for sequence in range(50):
                    send(raw, sequence)
            answers = [raw.expect("SEND_RECEIPT") for _ in range(100)]
            assert [is_duplicate(answer) for answer in answers] == [False] * 50 + [True] * 50

    @pytest.mark.restart
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
    def test_dedup_restart(self, make_broker, topic, kill):
        broker = make_broker(port=free_port(), arguments=["--broker-deduplication-enabled", "true"]).start()
        for round in range(3):
            with connected(broker) as raw:
                last = raw.producer(topic, producer_name="p")["last_sequence_id"]
                assert last == round * 10 - 1
                for sequence in range(max(0, last - 3), last + 1):
                    send(raw, sequence)
                    assert is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=sequence))
                for sequence in range(last + 1, last + 11):
                    send(raw, sequence)
                    assert not is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=sequence))
            broker.kill() if kill else broker.stop()
            broker.start()
        assert everything(broker, topic) == [b"%d" % n for n in range(30)]

    @pytest.mark.restart
    def test_an_official_client_that_sends_again_over_kills_stores_nothing_twice(self, make_broker, topic):
        """The client keeps what has no receipt and sends it again: every message is there, once, in order."""
        broker = make_broker(port=free_port(), arguments=["--broker-deduplication-enabled", "true"]).start()
        with official(broker) as client:
            producer = client.create_producer(topic, producer_name="p", block_if_queue_full=True, send_timeout_millis=120_000,
                                              batching_enabled=False)
            results = []
            for round in range(4):
                for n in range(500):
                    producer.send_async(b"%d" % (round * 500 + n), lambda result, id: results.append(result))
                eventually(lambda: len(results) >= round * 500 + 100)
                broker.kill()
                broker.start()
            producer.flush()
            eventually(lambda: len(results) == 2000)
            assert set(results) == {pulsar.Result.Ok}
        assert everything(broker, topic) == [b"%d" % n for n in range(2000)]

    def test_without_it_a_repeat_is_a_message(self, raw, topic):
        assert raw.producer(topic, producer_name="p")["last_sequence_id"] == -1
        for _ in range(2):
            send(raw, 3)
            assert not is_duplicate(raw.expect("SEND_RECEIPT", sequence_id=3))


def terminate(broker, topic):
    """Ends a topic: its last position."""
    status, text = http(broker, "POST", f"/admin/v2/{topic.replace('://', '/')}/terminate")
    assert status == 200, text
    last = json.loads(text)
    return last["ledgerId"], last["entryId"]


class TestTermination:
    def test_producers_are_closed_and_refused(self, broker, make_raw, topic):
        raw, other = make_raw(), make_raw()
        raw.producer(topic, producer_name="p")
        last = raw.publish(b"last").position
        assert terminate(broker, topic) == last
        raw.expect("CLOSE_PRODUCER", producer_id=1)
        # What crosses the notice is dropped; the connection stays.
        raw.write(send_frame(entry_bytes(b"late", sequence_id=1), producer_id=1, sequence_id=1, num_messages=1))
        raw.expect_alive()
        for connection in (raw, other):
            refused = connection.request("PRODUCER", "ERROR", topic=topic, producer_id=1)
            assert refused["error"] == "TopicTerminatedError"
        assert terminate(broker, topic) == last

    def test_consumers_hear_of_the_end_when_they_have_everything(self, broker, raw, topic):
        raw.producer(topic)
        raw.publish(b"only")
        raw.subscribe(topic, "behind", "Shared", consumer_id=1)
        raw.subscribe(topic, "done", "Shared", consumer_id=2, position="Latest")
        raw.flow(10, consumer_id=1)
        message = raw.expect("MESSAGE")
        terminate(broker, topic)
        assert {raw.next().type, raw.next().type} == {"CLOSE_PRODUCER", "REACHED_END_OF_TOPIC"}
        request = next(raw.ids)
        raw.send("ACK", consumer_id=1, ack_type="Individual", request_id=request,
                 message_id=[{"ledgerId": message.position[0], "entryId": message.position[1]}])
        raw.expect("REACHED_END_OF_TOPIC", consumer_id=1)
        raw.expect("ACK_RESPONSE", request_id=request)
        # Again with credit, and for one that comes later.
        raw.flow(1, consumer_id=2)
        raw.expect("REACHED_END_OF_TOPIC", consumer_id=2)
        raw.subscribe(topic, "later", "Exclusive", consumer_id=3, position="Latest")
        raw.flow(1, consumer_id=3)
        raw.expect("REACHED_END_OF_TOPIC", consumer_id=3)

    def test_an_official_client_is_told(self, broker, client, topic):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", **READ)
        producer.send(b"last")
        terminate(broker, topic)
        with pytest.raises(pulsar.TopicTerminated):
            client.create_producer(topic)
        message = consumer.receive(60_000)
        assert message.data() == b"last"
        consumer.acknowledge(message)

    @pytest.mark.restart
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
    def test_it_stays_so(self, make_broker, topic, kill):
        broker = make_broker(port=free_port()).start()
        with connected(broker) as raw:
            raw.producer(topic)
            raw.publish(b"last")
        last = terminate(broker, topic)
        broker.kill() if kill else broker.stop()
        broker.start()
        with connected(broker) as raw:
            assert raw.request("PRODUCER", "ERROR", topic=topic, producer_id=1)["error"] == "TopicTerminatedError"
            raw.subscribe(topic)
            raw.flow(5)
            message = raw.expect("MESSAGE")
            assert (message.payload, message.position) == (b"last", last)


class TestEncryption:
    def test_encryption_required(self, restricted):
        broker, topic = restricted("encryptionRequired", True, "--encryption-require-on-producer", "true")
        with official(broker) as client, pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
        with connected(broker) as raw:
            refused = raw.request("PRODUCER", "ERROR", topic=topic, producer_id=1)
            assert refused["error"] == "MetadataError"
            assert "Encryption is required" in refused["message"]
            raw.producer(topic, encrypted=True)
            raw.write(send_frame(entry_bytes(b"plain"), producer_id=1, sequence_id=0, num_messages=1))
            raw.expect("SEND_ERROR", sequence_id=0, error="MetadataError")
            keys = [{"key": "k", "value": b"v"}]
            raw.publish(b"secret", sequence_id=1, encryption_keys=keys)


class TestLimits:
    def test_producers_of_a_topic(self, restricted):
        broker, topic = restricted("maxProducersPerTopic", 2, "--max-producers-per-topic", "2")
        with official(broker) as client:
            producers = [client.create_producer(topic) for _ in range(2)]
            with pytest.raises(pulsar.ProducerBusy):
                client.create_producer(topic)
            producers[0].close()
            client.create_producer(topic).send(b"m")

    def test_consumers_of_a_topic(self, restricted):
        broker, topic = restricted("maxConsumersPerTopic", 2, "--max-consumers-per-topic", "2")
        with connected(broker) as raw:
            raw.subscribe(topic, "a", "Shared", consumer_id=1)
            raw.subscribe(topic, "b", "Shared", consumer_id=2)
            refused = raw.request("SUBSCRIBE", "ERROR", topic=topic, subscription="c", subType="Shared", consumer_id=3)
            assert refused["error"] == "ConsumerBusy"
            raw.request("CLOSE_CONSUMER", consumer_id=1)
            raw.subscribe(topic, "c", "Shared", consumer_id=3)

    def test_consumers_of_a_subscription(self, restricted):
        broker, topic = restricted("maxConsumersPerSubscription", 1, "--max-consumers-per-subscription", "1")
        with connected(broker) as raw:
            raw.subscribe(topic, "a", "Shared", consumer_id=1)
            refused = raw.request("SUBSCRIBE", "ERROR", topic=topic, subscription="a", subType="Shared", consumer_id=2)
            assert refused["error"] == "ConsumerBusy"
            raw.subscribe(topic, "b", "Shared", consumer_id=2)

    def test_subscriptions_of_a_topic(self, restricted):
        broker, topic = restricted("maxSubscriptionsPerTopic", 1, "--max-subscriptions-per-topic", "1")
        with connected(broker) as raw:
            raw.subscribe(topic, "a", "Shared", consumer_id=1)
            refused = raw.request("SUBSCRIBE", "ERROR", topic=topic, subscription="b", subType="Shared", consumer_id=2)
            assert refused["error"] == "NotAllowedError"
            raw.subscribe(topic, "a", "Shared", consumer_id=2)

    @pytest.mark.vela_only
    def test_clients_of_a_connection(self, restricted):
        broker, topic = restricted(None, None, "--max-clients-per-connection", "3")
        with connected(broker) as raw, connected(broker) as other:
            raw.producer(topic, producer_id=1)
            raw.producer(topic, producer_id=2)
            raw.subscribe(topic)
            refused = raw.request("PRODUCER", "ERROR", topic=topic, producer_id=3)
            assert refused["error"] == "NotAllowedError"
            assert "maxClientsPerConnection is 3" in refused["message"]
            refused = raw.request("SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Shared", consumer_id=3)
            assert refused["error"] == "NotAllowedError"
            other.producer(topic)
            raw.request("CLOSE_PRODUCER", producer_id=1)
            raw.producer(topic, producer_id=3)

    @pytest.mark.vela_only
    def test_metadata_of_a_producer(self, raw, topic):
        large = [{"key": "k", "value": "v" * 9_000}]
        assert raw.request("PRODUCER", "ERROR", topic=topic, producer_id=1, metadata=large)["error"] == "MetadataError"
        raw.producer(topic, metadata=[{"key": "k", "value": "v" * 1000}])


def test_chunk_roundtrip(client, topic):
    body = bytes(range(256)) * 48_000
    exclusive = client.subscribe(topic, "exclusive", **READ)
    shared = [client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared, **READ) for _ in range(3)]
    producer = client.create_producer(topic, chunking_enabled=True)
    producer.send(body)
    assert exclusive.receive(30_000).data() == body
    got = []

    def look():
        for consumer in shared:
            with contextlib.suppress(pulsar.Timeout):
                got.append(consumer.receive(100).data())
        return got

    eventually(look)
    assert got == [body]
