"""Who gets what and what it costs: faults that users of Pulsar and its relatives reported in public, and behaviour that is told apart by
several consumers at once. Each test names the report or says what it shows."""

import collections
import itertools
import time

import pulsar
import pytest

from publishing import EARLIEST, SHARED, make_partitions, message_ids, numbers, publish, publish_raw, take, topic_stats
from rawpulsar import RawConnection, entry_bytes, send_frame
from waiting import LIMIT_SECONDS, collect, drain, eventually, gather


def join_failover(raw, topic, consumer_id, name, subscription="s", priority=0, permits=100, told=None):
    """Subscribes with credit; changes of the active consumer that come before the answer are noted in `told`."""
    request_id = next(raw.ids)
    raw.send(
        "SUBSCRIBE", topic=topic, subscription=subscription, subType="Failover", consumer_id=consumer_id, consumer_name=name,
        priority_level=priority, initialPosition="Earliest", force_topic_creation=True, request_id=request_id)
    while (frame := raw.next(LIMIT_SECONDS)).type != "SUCCESS":
        note(frame, told)
    assert frame["request_id"] == request_id
    raw.flow(permits, consumer_id)


def note(frame, told):
    assert frame.type == "ACTIVE_CONSUMER_CHANGE", frame
    if told is not None:
        told[frame["consumer_id"]] = bool(frame.get("is_active"))


def hear(raw, told, expected):
    """Reads changes of the active consumer until `told` says that exactly `expected` are active."""
    end = time.monotonic() + LIMIT_SECONDS
    while {consumer for consumer, active in told.items() if active} != set(expected):
        assert time.monotonic() < end, f"active are {told}, expected {expected}"
        note(raw.next(LIMIT_SECONDS), told)


def receive(raw, count, told):
    """The next messages. Changes of the active consumer, which Apache Pulsar may tell late and twice, are noted."""
    got = []
    while len(got) < count:
        frame = raw.next(LIMIT_SECONDS)
        got.append(frame) if frame.type == "MESSAGE" else note(frame, told)
    return got


class TestPartitionsOfAFailoverSubscription:
    """K 34, BC-46 (apache/pulsar#7864, #3504): partition p goes to the consumer of rank p by name, among those of the best priority."""

    def topic_of(self, broker, raw, topic, count=4):
        make_partitions(broker, topic, count)
        for partition in range(count):
            raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=f"{topic}-partition-{partition}")

    def test_each_goes_to_the_consumer_of_its_rank(self, broker, raw, make_raw, topic):
        self.topic_of(broker, raw, topic)
        told, names = {}, ["b", "c", "a"]
        for partition in range(4):
            for index, name in enumerate(names):
                join_failover(raw, f"{topic}-partition-{partition}", 10 * partition + index, name, told=told)
        ranked = sorted(names)
        expected = {10 * partition + names.index(ranked[partition % 3]) for partition in range(4)}
        hear(raw, told, expected)
        producer = make_raw()
        for partition in range(4):
            producer.producer(f"{topic}-partition-{partition}", producer_id=partition)
            producer.publish(b"%d" % partition, producer_id=partition)
        got = {message["consumer_id"]: message.payload for message in receive(raw, 4, told)}
        assert got == {consumer: b"%d" % (consumer // 10) for consumer in expected}

    def test_only_the_best_priority_counts(self, broker, raw, topic):
        self.topic_of(broker, raw, topic)
        told, members = {}, [("a", 1), ("b", 0), ("c", 1), ("d", 0)]
        for partition in range(4):
            for index, (name, priority) in enumerate(members):
                join_failover(raw, f"{topic}-partition-{partition}", 10 * partition + index, name, priority=priority, told=told)
        hear(raw, told, {10 * partition + (1, 3)[partition % 2] for partition in range(4)})

    def test_the_order_of_joining_does_not_matter_and_a_group_that_died_comes_back(self, broker, make_raw, topic):
        raw = make_raw()
        self.topic_of(broker, raw, topic, 1)
        partition = f"{topic}-partition-0"
        orders = list(itertools.permutations("abc"))

        def group(raw):
            told = {}
            for number, order in enumerate(orders):
                for name in order:
                    join_failover(raw, partition, 10 * number + "abc".index(name), name, f"s{number}", told=told)
            hear(raw, told, {10 * number for number in range(len(orders))})
            return told

        producer = make_raw()
        producer.producer(partition)

        def everyone_gets(raw, told, sequence, who):
            producer.publish(b"%d" % sequence, sequence_id=sequence)
            got = receive(raw, len(orders), told)
            assert {m["consumer_id"]: m.payload for m in got} == {10 * n + who: b"%d" % sequence for n in range(len(orders))}
            for message in got:
                raw.send("ACK", consumer_id=message["consumer_id"], ack_type="Individual", message_id=message_ids([message.position]))

        told = group(raw)
        everyone_gets(raw, told, 0, 0)
        for number in range(len(orders)):
            told.pop(10 * number)
            request_id = next(raw.ids)
            raw.send("CLOSE_CONSUMER", consumer_id=10 * number, request_id=request_id)
            while (frame := raw.next(LIMIT_SECONDS)).type != "SUCCESS":
                note(frame, told)
        hear(raw, told, {10 * number + 1 for number in range(len(orders))})
        everyone_gets(raw, told, 1, 1)
        for number in range(len(orders)):
            join_failover(raw, partition, 10 * number, "a", f"s{number}", told=told)
        hear(raw, told, {10 * number for number in range(len(orders))})
        everyone_gets(raw, told, 2, 0)
        raw.close()
        again = make_raw()
        told = group(again)
        everyone_gets(again, told, 3, 0)


class TestJoiningAFailoverSubscription:
    """BC-52 (apache/pulsar#6535, #749): the one that joins was given what the active one still held, more than once."""

    @pytest.fixture
    def working(self, broker, make_raw, topic):
        """A consumer of rank 0 that got ten messages and has acknowledged five."""
        raw = make_raw()
        make_partitions(broker, topic, 1)
        partition = f"{topic}-partition-0"
        raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=partition)
        positions = publish_raw(raw, partition, 10)
        told = {}
        join_failover(raw, partition, 1, "m", told=told)
        hear(raw, told, {1})
        assert [message.payload for message in raw.messages(10, LIMIT_SECONDS)] == numbers(10)
        raw.ack(*positions[:5])
        return raw, partition, positions, told

    def test_behind_the_active_one_changes_nothing(self, working, make_raw):
        raw, partition, positions, told = working
        other = make_raw()
        join_failover(other, partition, 2, "z", told=told)
        publish_raw(raw_producer := make_raw(), partition, 1, producer_id=7)
        assert raw.expect("MESSAGE", LIMIT_SECONDS, consumer_id=1).payload == b"0"
        while True:
            try:
                note(other.next(1.5), told)
            except TimeoutError:
                break
        assert (told[1], told.get(2, False)) == (True, False)
        raw.ack(*positions[5:])
        raw_producer.close()

    def test_before_it_takes_over_what_is_not_acknowledged_and_late_acks_count(self, working, make_raw):
        raw, partition, positions, told = working
        other = make_raw()
        heard = {}
        join_failover(other, partition, 2, "a", told=heard)
        hear(other, heard, {2})
        again = other.messages(5, LIMIT_SECONDS, consumer_id=2)
        assert [message.payload for message in again] == numbers(5, 5)
        raw.ack(*positions[5:], receipt=False)
        end = time.monotonic() + LIMIT_SECONDS
        raw.send("PING")
        while (frame := raw.next()).type != "PONG":
            assert time.monotonic() < end
            note(frame, told)
        # None of them a third time, whoever asks.
        other.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=2)
        other.expect_silence(0.3)
        publish_raw(make_raw(), partition, 1, producer_id=7)
        assert other.expect("MESSAGE", LIMIT_SECONDS, consumer_id=2).payload == b"0"


class TestPermits:
    def test_of_mixed_batches_come_back(self, broker, make_client, raw, topic):
        """K 39: batches of 100 and 350 and 50 single messages; when all is acknowledged the consumer has credit again."""
        consumer = make_client().subscribe(topic, "s", SHARED, receiver_queue_size=1000, initial_position=EARLIEST)
        raw.producer(topic)
        sequence = 0
        for _ in range(5):
            for size in (100, 350, *[1] * 50):
                raw.publish_batch([b"x"] * size, sequence_id=sequence) if size > 1 else raw.publish(b"x", sequence_id=sequence)
                sequence += size
            take(consumer, 500)
        assert drain(consumer, 0, 300) == []

        def settled():
            subscription = topic_stats(broker, topic)["subscriptions"]["s"]
            return subscription["consumers"][0]["availablePermits"] > 0 and subscription["unackedMessages"] == 0

        eventually(settled)

    @pytest.mark.vela_only
    def test_of_batches_that_no_client_can_read_are_named_in_each_message(self, raw, topic):
        """K 43 (PIP-491): 99 permits of 100 were lost with each such batch, for the client cannot count what it cannot read."""
        raw.producer(topic)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        for number in range(20):
            entry = entry_bytes(b"\xff" * 50, "none", sequence_id=number, num_messages_in_batch=100, uncompressed_size=50)
            raw.write(send_frame(entry, producer_id=1, sequence_id=number, num_messages=100))
            frames = {frame.type: frame for frame in (raw.next(), raw.next())}
            message = frames["MESSAGE"]
            assert message["message_permits"] == 100
            raw.send("ACK", consumer_id=1, ack_type="Individual", validation_error="BatchDeSerializeError",
                     message_id=message_ids([message.position]))
            raw.flow(message["message_permits"])
            stats = raw.stats()
            assert (stats["availablePermits"], stats["unackedMessages"]) == (100, 0)

    @pytest.mark.vela_only
    def test_an_official_client_that_returns_whole_batches_gains_no_credit(self, broker, make_client, topic):
        """BC-01 (apache/pulsar#22091): with each round of half-acked batches the credit of a C++ consumer grew by half a batch."""
        consumer = make_client().subscribe(
            topic, "s", SHARED, receiver_queue_size=1000, batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=100)
        publish(make_client(), topic, numbers(100), batching_enabled=True, batching_max_messages=100, batching_max_publish_delay_ms=5000)
        for number, message in enumerate(take(consumer, 100, ack=False)):
            consumer.acknowledge(message) if number < 50 else consumer.negative_acknowledge(message)
        for _ in range(20):
            again = take(consumer, 50, ack=False)
            assert [message.data() for message in again] == numbers(50, 50)
            for message in again:
                consumer.negative_acknowledge(message)
        stats = lambda: topic_stats(broker, topic)["subscriptions"]["s"]["consumers"][0]  # noqa: E731
        assert stats()["availablePermits"] <= 1000
        publish(make_client(), topic, numbers(5000, 1000))
        eventually(lambda: stats()["availablePermits"] <= 0, lambda: stats())
        assert stats()["unackedMessages"] <= 1000 + 100

    @pytest.mark.restart
    def test_given_while_blocked_go_with_their_consumer(self, make_broker, topic):
        """BC-02 (apache/pulsar#26416), the form with a limit of unacknowledged messages: credit that was not booked yet was charged."""
        broker = make_broker(arguments=["--max-unacked-messages-per-consumer", "10"]).start()
        stays, producer = (RawConnection(broker.host, broker.port) for _ in range(2))
        stays.connect()
        producer.connect()
        positions = publish_raw(producer, topic, 20)
        stays.subscribe(topic, "s", "Shared")
        stays.flow(200)
        got = [message.position for message in stays.messages(10)]
        for round_ in range(10):
            leaves = RawConnection(broker.host, broker.port)
            leaves.connect()
            leaves.subscribe(topic, "s", "Shared")
            leaves.flow(100)
            leaves.messages(10)
            leaves.flow(1000)
            assert leaves.stats()["blockedConsumerOnUnackedMsgs"] is True
            leaves.close()
        assert stays.stats()["availablePermits"] == 190
        stays.ack(*got, receipt=False)
        rest = [message.position for message in stays.messages(10)]
        assert sorted(got + rest) == positions
        stays.ack(*rest)
        assert stays.stats()["availablePermits"] == 180
        publish_raw(producer, topic, 180, start=20)
        for _ in range(180):
            stays.send("ACK", consumer_id=1, ack_type="Individual", message_id=message_ids([stays.expect("MESSAGE").position]))
        assert (stays.stats()["availablePermits"], stays.stats()["unackedMessages"]) == (0, 0)
        for connection in (stays, producer):
            connection.close()

    def test_of_a_consumer_that_comes_again_on_a_new_connection_start_anew(self, open_raw, make_raw, topic):
        """BC-18 (apache/pulsar#20591, apache/pulsar-client-go#155), across a cut: the old connection is not noticed dead yet."""
        producer, old = make_raw(), open_raw(pong=False)
        publish_raw(producer, topic, 300)
        old.connect()
        old.subscribe(topic, "s", "Shared", consumer_name="c")
        old.flow(100)
        old.messages(70)
        new = make_raw()
        new.subscribe(topic, "s", "Shared", consumer_name="c")
        new.flow(100)
        assert [int(message.payload) for message in new.messages(100)] == list(range(100, 200))
        assert (new.stats()["availablePermits"], new.stats()["unackedMessages"]) == (0, 100)
        old.close()
        new.flow(1000)
        assert sorted(int(message.payload) for message in new.messages(200)) == [*range(100), *range(200, 300)]
        assert (new.stats()["availablePermits"], new.stats()["unackedMessages"]) == (800, 300)

    def test_are_there_again_after_an_ack_timeout_of_what_nobody_took(self, make_client, topic):
        """BC-33 (apache/pulsar#100, #380): messages that timed out in the queue of a slow consumer came again and cost credit for good."""
        slow, active = [make_client().subscribe(
            topic, "s", SHARED, receiver_queue_size=1000, unacked_messages_timeout_ms=10_000, initial_position=EARLIEST) for _ in range(2)]
        publish(make_client(), topic, numbers(3000))
        first = take(slow, 1)
        end, got = time.monotonic() + 12, []
        while time.monotonic() < end:
            got += [message.data() for message in gather([active], 0)[0]]
        got.append(first[0].data())
        gather([slow, active], lambda more: len(set(more) | set(got)) == 3000)


def test_a_dead_letter_comes_once_and_says_where_it_was(make_client, topic):
    """K 48: delivered three times with a count of 0, 1, 2, then once in the dead letter topic."""
    client = make_client()
    dead = client.subscribe(f"{topic}-s-DLQ", "d", initial_position=EARLIEST)
    consumer = client.subscribe(
        topic, "s", SHARED, negative_ack_redelivery_delay_ms=100, dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2))
    producer = client.create_producer(topic)
    id = producer.send(b"m", properties={"mine": "yes"}, partition_key="key")
    for count in range(3):
        message = consumer.receive(LIMIT_SECONDS * 1000)
        assert (message.data(), message.redelivery_count()) == (b"m", count)
        consumer.negative_acknowledge(message)
    letter, = take(dead, 1)
    assert (letter.data(), letter.partition_key(), letter.properties()["mine"]) == (b"m", "key", "yes")
    assert letter.properties()["REAL_TOPIC"] == topic
    assert str(id.entry_id()) in letter.properties()["ORIGIN_MESSAGE_ID"]
    assert drain(dead, 0, 700) == []
    consumer.close()
    assert drain(client.subscribe(topic, "s", SHARED), 0, 300) == []


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
def test_redelivery_of_chosen_ids(raw, topic, kind):
    """BC-65 (apache/pulsar#5004, #6721): Key_Shared brings exactly the ids asked for, Failover all from the first unacked one."""
    raw.producer(topic)
    positions = [raw.publish(b"%d" % n, sequence_id=n, partition_key=f"key-{n % 7}").position for n in range(100)]
    if kind == "Failover":
        join_failover(raw, topic, 1, "a", permits=1000, told={})
        raw.expect("ACTIVE_CONSUMER_CHANGE", LIMIT_SECONDS, consumer_id=1, is_active=True)
    else:
        raw.subscribe(topic, "s", kind)
        raw.flow(1000)
    raw.messages(100, LIMIT_SECONDS)
    raw.ack(*positions[:90])
    raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=message_ids(positions[91:96]))
    expected = range(91, 96) if kind == "Key_Shared" else range(90, 100)
    assert [int(message.payload) for message in raw.messages(len(expected))] == list(expected)
    raw.expect_silence(0.1)
    for count in range(2, 6):
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=message_ids(positions[91:92]))
        got = raw.messages(1 if kind == "Key_Shared" else 10)
        # Only the shared types count.
        assert {message.get("redelivery_count", 0) for message in got} == ({count} if kind == "Key_Shared" else {0})


@pytest.mark.restart
def test_no_more_is_out_than_the_limits_of_unacknowledged_messages_allow(make_broker, topic):
    """BC-58 (apache/pulsar#22534, #17483, nats-io/nats-server#4112, #6093): far more than the limit was out, or dispatch ended at it."""
    per_consumer, per_subscription, batch = 100, 1000, 300
    broker = make_broker(arguments=[
        "--max-unacked-messages-per-consumer", str(per_consumer), "--max-unacked-messages-per-subscription", str(per_subscription)]).start()
    producer, stays, leaves = (RawConnection(broker.host, broker.port) for _ in range(3))
    for connection in (producer, stays, leaves):
        connection.connect()
    positions = publish_raw(producer, topic, 2000)
    positions += [producer.publish_batch([b"x"] * batch, sequence_id=10_000 + batch * n, producer_id=50).position for n in range(20)]
    positions += publish_raw(producer, topic, 500, start=20_000)
    out = collections.defaultdict(list)
    home = {consumer: stays if consumer % 2 else leaves for consumer in range(1, 21)}

    def unacked(consumers):
        return {consumer: home[consumer].stats(consumer)["unackedMessages"] for consumer in consumers}

    def receive(connections, count):
        for frames in collect(connections, count):
            for frame in frames:
                out[frame["consumer_id"]].append(frame)

    def size(frames):
        return sum(frame.entry[1].get("num_messages_in_batch", 1) for frame in frames)

    for consumer, connection in home.items():
        connection.subscribe(topic, "s", "Shared", consumer_id=consumer)
    for consumer, connection in home.items():
        connection.flow(500, consumer)
    receive([stays, leaves], per_subscription)
    counts = unacked(home)
    assert counts == {consumer: size(out[consumer]) for consumer in home}
    assert max(counts.values()) < per_consumer + batch
    assert per_subscription <= sum(counts.values()) <= per_subscription + 20 * batch
    leaves.close()
    home = {consumer: connection for consumer, connection in home.items() if connection is stays}
    for consumer in list(out):
        if consumer not in home:
            del out[consumer]
    done = set()
    end = time.monotonic() + 2 * LIMIT_SECONDS
    while len(done) < len(positions):
        assert time.monotonic() < end, f"{len(done)} of {len(positions)}, unacknowledged {unacked(home)}"
        receive([stays], 0)
        counts = unacked(home)
        assert counts == {consumer: size(frames) for consumer, frames in out.items()} | {c: 0 for c in home if not out[c]}
        assert max(counts.values()) < per_consumer + batch
        assert sum(counts.values()) <= per_subscription + 10 * batch
        for consumer, frames in out.items():
            if frames:
                stays.send("ACK", consumer_id=consumer, ack_type="Individual", message_id=message_ids([f.position for f in frames]))
                stays.flow(size(frames), consumer)
                done |= {frame.position for frame in frames}
                frames.clear()
    receive([stays], 0)
    assert not any(out.values()) and set(unacked(home).values()) == {0}
    for connection in (producer, stays):
        connection.close()
