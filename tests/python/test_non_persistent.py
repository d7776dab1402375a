"""Non-persistent topics: nothing is kept. Who can take a message gets it, and nobody else; acks, seeks and redelivery mean nothing."""

import re
import time

import pulsar
import pytest

from rawpulsar import NO_ID, RawConnection, frames
from waiting import LIMIT_MS, eventually

KINDS = ["Exclusive", "Failover", "Shared", "Key_Shared"]
NOTICE = ("ACTIVE_CONSUMER_CHANGE",)


@pytest.fixture
def topic(topic):
    return "non-" + topic


@pytest.fixture
def writer(make_raw, topic):
    """A connection with producer 1 of the topic."""
    connection = make_raw()
    connection.producer(topic)
    return connection


def join(connection, topic, kind="Shared", consumer_id=1, permits=0, subscription="s", **fields):
    """Subscribes, and is sure that the permits have arrived."""
    answer = connection.request(
        "SUBSCRIBE", skip=NOTICE, topic=topic, subscription=subscription, subType=kind, consumer_id=consumer_id,
        force_topic_creation=True, **fields)
    grant(connection, permits, consumer_id)
    return answer


def grant(connection, permits, consumer_id=1):
    if permits:
        connection.flow(permits, consumer_id)
    return stats(connection, consumer_id)


def stats(connection, consumer_id=1):
    frame = connection.request(
        "CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", skip=("MESSAGE", *NOTICE), consumer_id=consumer_id)
    permits = frame["availablePermits"]
    frame.fields["availablePermits"] = permits - 2**64 if permits >> 63 else permits
    return frame


def bodies(connection, count):
    return [int(connection.expect("MESSAGE", skip=NOTICE).payload) for _ in range(count)]


def refused(connection, topic, kind="Shared", consumer_id=9, **fields):
    answer = connection.request(
        "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType=kind, consumer_id=consumer_id,
        **{"force_topic_creation": True, **fields})
    return answer["error"]


class TestDelivery:
    @pytest.mark.parametrize("kind", KINDS)
    def test_two_permits_and_four_messages(self, raw, topic, writer, kind):
        join(raw, topic, kind, permits=2)
        for n in range(4):
            receipt = writer.publish(b"%d" % n, sequence_id=n)
            assert receipt.position == (0, 0)
        for n in range(2):
            message = raw.expect("MESSAGE", skip=NOTICE)
            assert (int(message.payload), message.position, message.get("redelivery_count", 0)) == (n, (0, 0), 0)
        now = grant(raw, 10)
        assert (now["availablePermits"], now["unackedMessages"], now["msgBacklog"]) == (10, 0, 0)
        # What was dropped does not come later.
        writer.publish(b"9", sequence_id=9)
        assert bodies(raw, 1) == [9]

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_batch_larger_than_the_credit_is_owed(self, raw, topic, writer, kind):
        join(raw, topic, kind, permits=5)
        for n in range(2):
            assert writer.publish_batch([b"x"] * 10, sequence_id=10 * n).position == (0, 0)
        raw.expect("MESSAGE", skip=NOTICE)
        assert stats(raw)["availablePermits"] == -5
        grant(raw, 6)
        writer.publish(b"7", sequence_id=30)
        assert bodies(raw, 1) == [7]

    def test_before_the_first_subscription_and_between_two(self, raw, topic, writer):
        writer.publish(b"0")
        join(raw, topic, "Exclusive", permits=10, initialPosition="Earliest")
        writer.publish(b"1")
        assert bodies(raw, 1) == [1]
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        writer.publish(b"2")
        join(raw, topic, "Exclusive", permits=10, initialPosition="Earliest")
        writer.publish(b"3")
        assert bodies(raw, 1) == [3]

    def test_every_subscription_has_its_own(self, make_raw, topic, writer):
        readers = [make_raw() for _ in range(3)]
        for n, reader in enumerate(readers):
            join(reader, topic, KINDS[n], subscription=f"s{n}", permits=n)
        for n in range(3):
            writer.publish(b"%d" % n, sequence_id=n)
        for n, reader in enumerate(readers):
            assert bodies(reader, n) == list(range(n))
            assert stats(reader)["availablePermits"] == 0

    def test_shared_consumers_take_turns_message_by_message(self, make_raw, topic, writer):
        one, two = make_raw(), make_raw()
        join(one, topic, permits=3)
        join(two, topic, permits=100)
        for n in range(8):
            writer.publish(b"%d" % n, sequence_id=n)
        first, second = bodies(one, 3), bodies(two, 5)
        assert first in ([0, 2, 4], [1, 3, 5])
        assert sorted(first + second) == list(range(8))

    def test_a_key_is_one_consumers_whoever_has_credit(self, make_raw, topic, writer):
        one, two = make_raw(), make_raw()
        join(one, topic, "Key_Shared", consumer_name="one", permits=1000)
        join(two, topic, "Key_Shared", consumer_name="two", permits=1000)
        keys = [f"key-{n}" for n in range(40)]
        for n in range(120):
            writer.publish(b"%d" % (n % 40), sequence_id=n, partition_key=keys[n % 40])
        used = [1000 - stats(reader)["availablePermits"] for reader in (one, two)]
        assert sum(used) == 120 and all(used)
        # (Statistics skipped the messages; the credit tells how many there were, and the same keys go the same way again.)
        for n in range(40):
            writer.publish(b"%d" % n, sequence_id=200 + n, partition_key=keys[n])
        again = [1000 - stats(reader)["availablePermits"] - before for reader, before in zip((one, two), used)]
        assert [3 * n for n in again] == used

    def test_failover_changes_at_once(self, make_raw, topic, writer):
        one, two = make_raw(), make_raw()
        join(one, topic, "Failover", permits=100, priority_level=0)
        join(two, topic, "Failover", permits=100, priority_level=1)
        writer.publish(b"0")
        assert bodies(one, 1) == [0]
        one.request("CLOSE_CONSUMER", consumer_id=1, skip=NOTICE)
        two.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
        writer.publish(b"1", sequence_id=1)
        assert bodies(two, 1) == [1]

    def test_a_delay_is_not_kept(self, raw, topic, writer):
        join(raw, topic, permits=10)
        writer.publish(b"5", deliver_at_time=int(time.time() * 1000) + 3_600_000)
        assert bodies(raw, 1) == [5]

    def test_a_wrong_checksum_is_refused(self, raw, topic, writer):
        join(raw, topic, permits=10)
        entry = frames.entry_bytes(b"1", checksum="bad", sequence_id=4)
        writer.write(frames.send_frame(entry, producer_id=1, sequence_id=4, num_messages=1))
        writer.expect("SEND_ERROR", producer_id=1, sequence_id=4, error="ChecksumError")
        writer.publish(b"2", sequence_id=5)
        assert bodies(raw, 1) == [2]

    def test_a_consumer_that_does_not_read_holds_nobody_up(self, make_raw, topic, writer):
        slow, other = make_raw(), make_raw()
        join(slow, topic, subscription="slow", permits=1_000_000)
        join(other, topic, subscription="other", permits=1_000_000)
        count, payload = 400, b"." * 100_000
        for n in range(count):
            assert writer.publish(payload, sequence_id=n).position == (0, 0)
            other.messages(1)
        # It missed some, and gets what comes when it has caught up.
        numbers = iter(range(count, 1_000_000))

        def caught_up():
            writer.publish(b"last", sequence_id=next(numbers))
            try:
                while (frame := slow.next(0.05)).payload != b"last":
                    received.append(frame)
                return True
            except TimeoutError:
                return False

        received = []
        eventually(caught_up)
        assert 0 < len(received) < count
        assert all(frame.payload == payload for frame in received)


class TestWhatMeansNothing:
    @pytest.mark.parametrize("kind", KINDS)
    def test_acks_and_redelivery(self, raw, topic, writer, kind):
        join(raw, topic, kind, permits=10)
        for n in range(2):
            writer.publish(b"%d" % n, sequence_id=n)
        assert bodies(raw, 2) == [0, 1]
        assert set(raw.ack((0, 0)).fields) == {"consumer_id", "request_id"}
        assert "error" not in raw.ack((7, 3), ack_type="Cumulative").fields
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=[{"ledgerId": 0, "entryId": 0}])
        raw.expect_silence(0.2)
        assert stats(raw)["availablePermits"] == 8

    def test_seek_and_last_id(self, raw, topic, writer):
        join(raw, topic, "Exclusive", permits=10)
        raw.request("SEEK", consumer_id=1, message_publish_time=5)
        raw.request("SEEK", consumer_id=1, message_id={"ledgerId": NO_ID, "entryId": NO_ID})
        answer = raw.request("GET_LAST_MESSAGE_ID", "ERROR", consumer_id=1)
        assert answer["error"] == "UnknownError"
        writer.publish(b"1")
        assert bodies(raw, 1) == [1]

    def test_a_sequence_id_that_was_there_before(self, raw, topic, writer):
        join(raw, topic, permits=10)
        for _ in range(2):
            assert writer.publish(b"3", sequence_id=3).position == (0, 0)
        assert bodies(raw, 2) == [3, 3]


class TestWhoMay:
    def test_types_do_not_mix_until_the_last_has_gone(self, raw, topic):
        join(raw, topic, "Exclusive")
        assert refused(raw, topic, "Exclusive") == "ConsumerBusy"
        assert refused(raw, topic, "Shared") == "ConsumerBusy"
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        join(raw, topic, "Key_Shared")

    def test_readers_and_consumers_share_a_name(self, make_raw, topic):
        join(make_raw(), topic, durable=True)
        join(make_raw(), topic, durable=False)

    def test_the_compacted_view_does_not_exist(self, raw, topic):
        assert refused(raw, topic, "Exclusive", read_compacted=True) == "NotAllowedError"

    def test_a_missing_topic_is_made_for_those_who_ask(self, raw, topic):
        assert refused(raw, topic, force_topic_creation=False) == "TopicNotFound"
        join(raw, topic)
        raw.request("SUBSCRIBE", topic=topic, subscription="t", subType="Shared", consumer_id=2, force_topic_creation=False)

    def test_unsubscribe(self, raw, topic):
        for consumer_id in (1, 2):
            join(raw, topic, consumer_id=consumer_id)
        assert raw.request("UNSUBSCRIBE", "ERROR", consumer_id=1)["error"] == "MetadataError"
        raw.send("UNSUBSCRIBE", consumer_id=1, request_id=900, force=True)
        raw.expect("CLOSE_CONSUMER", consumer_id=2, request_id=NO_ID)
        raw.expect("SUCCESS", request_id=900)
        join(raw, topic, "Exclusive", consumer_id=3)

    def test_exclusive_producers_have_epochs(self, raw, topic):
        first = raw.producer(topic, 1, producer_access_mode="Exclusive")
        assert first["topic_epoch"] == 0
        assert raw.request("PRODUCER", "ERROR", topic=topic, producer_id=2)["error"] == "ProducerBusy"
        raw.request("CLOSE_PRODUCER", producer_id=1)
        assert raw.producer(topic, 3, producer_access_mode="Exclusive")["topic_epoch"] == 1


class TestNames:
    def test_partitions(self, raw, topic):
        def partitions(**fields):
            answer = raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic, **fields)
            return answer["response"], answer.get("partitions"), answer.get("error")

        assert partitions() == ("Success", 0, None)
        assert partitions(metadata_auto_creation_enabled=False)[::2] == ("Failed", "TopicNotFound")
        raw.producer(topic)
        assert partitions(metadata_auto_creation_enabled=False) == ("Success", 0, None)
        answer = raw.request("PRODUCER", "ERROR", topic=f"{topic}-partition-0", producer_id=2)
        assert answer["error"] == "NotAllowedError"

    def test_lookup(self, raw, topic):
        answer = raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        assert answer["response"] == "Connect"

    @pytest.mark.parametrize("mode, listed", [("PERSISTENT", False), ("NON_PERSISTENT", True), ("ALL", True)])
    def test_lists(self, raw, topic, mode, listed):
        raw.producer(topic)
        answer = raw.request(
            "GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace="public/default", mode=mode)
        assert (topic in answer.get("topics", [])) is listed


class TestOfficialClient:
    @pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    def test_messages_arrive(self, client, topic, kind, batched):
        consumer = client.subscribe(topic, "s", getattr(pulsar.ConsumerType, kind))
        producer = client.create_producer(topic, batching_enabled=batched)

        def through():
            producer.send(b"probe")
            try:
                consumer.acknowledge(consumer.receive(100))
                return True
            except pulsar.Timeout:
                return False

        # Until the consumer's permits have arrived messages are dropped.
        eventually(through)
        for n in range(200):
            producer.send_async(b"%d" % n, None)
        producer.flush()
        got = []
        while len(got) < 200:
            message = consumer.receive(LIMIT_MS)
            if message.data() != b"probe":
                got.append(int(message.data()))
            consumer.acknowledge(message)
        assert got == list(range(200))

    def test_a_pattern_that_means_all_topics(self, client, make_client, topic):
        name = topic.split("://")[1]
        producer = client.create_producer(topic)
        consumer = make_client().subscribe(
            re.compile(f"non-persistent://{name}.*"), "s", regex_subscription_mode=pulsar.RegexSubscriptionMode.AllTopics)

        def through():
            producer.send(b"probe")
            try:
                consumer.receive(100)
                return True
            except pulsar.Timeout:
                return False

        eventually(through)


@pytest.mark.vela_only
class TestSettings:
    def test_either_kind_can_be_switched_off(self, make_broker, topic):
        process = make_broker(arguments=["--enable-non-persistent-topics", "false"]).start()
        with RawConnection(process.host, process.port) as raw:
            raw.connect()
            raw.producer(topic.removeprefix("non-"))
            answer = raw.request("PRODUCER", "ERROR", topic=topic, producer_id=2)
            assert answer["error"] == "NotAllowedError" and "enableNonPersistentTopics" in answer["message"]


@pytest.mark.restart
def test_nothing_is_left_after_a_restart(make_broker, topic):
    process = make_broker().start()
    with RawConnection(process.host, process.port) as raw:
        raw.connect()
        join(raw, topic, permits=10)
        raw.producer(topic)
        raw.producer(topic.removeprefix("non-"), producer_id=2)
    process.kill()
    process.start()
    with RawConnection(process.host, process.port) as raw:
        raw.connect()
        answer = raw.request(
            "GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace="public/default", mode="ALL")
        assert answer["topics"] == [topic.removeprefix("non-")]
