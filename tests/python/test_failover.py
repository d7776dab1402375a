"""Failover subscriptions: who is served, when a change takes effect, what the next one gets. The delay is Pulsar's default, one second."""

import time

import pulsar
import pytest

from publishing import admin, admin_path

DELAY = 1.0
# A busy machine may be late, never early.
LATE = 30


@pytest.fixture
def publish(make_raw, topic):
    connection = make_raw()
    connection.producer(topic)
    sequence = iter(range(0, 1_000_000))

    def publish(*payloads):
        for payload in payloads:
            connection.publish(payload, sequence_id=next(sequence))

    return publish


def join(raw, topic, consumer_id, name, priority=0, skip=("ACTIVE_CONSUMER_CHANGE",)):
    """Subscribes. A newcomer that is not chosen is told so before it is answered."""
    raw.request(
        "SUBSCRIBE", topic=topic, subscription="s", subType="Failover", consumer_id=consumer_id, consumer_name=name,
        priority_level=priority, initialPosition="Earliest", force_topic_creation=True, skip=skip,
    )


def active(raw, count):
    """Awaits an election that `count` consumers of this connection are told of: the one that was chosen."""
    chosen = None
    told = set()
    while chosen is None or len(told) < count:
        change = raw.expect("ACTIVE_CONSUMER_CHANGE", LATE)
        told.add(change["consumer_id"])
        if change.get("is_active"):
            chosen = change["consumer_id"]
    return chosen


def test_a_lone_consumer_waits_for_the_delay_each_time(raw, topic, publish):
    publish(b"0")
    for _ in range(2):
        started = time.monotonic()
        join(raw, topic, 1, "a")
        raw.flow(10)
        raw.expect("ACTIVE_CONSUMER_CHANGE", LATE, consumer_id=1, is_active=True)
        raw.expect("MESSAGE", LATE)
        assert time.monotonic() - started >= 0.9 * DELAY
        raw.request("CLOSE_CONSUMER", consumer_id=1)


def test_the_next_one_gets_in_order_what_is_not_acknowledged(raw, topic, publish):
    publish(*(b"%d" % number for number in range(6)))
    join(raw, topic, 1, "a", priority=0)
    raw.flow(10, 1)
    join(raw, topic, 2, "b", priority=1)
    raw.flow(10, 2)
    assert active(raw, 2) == 1
    got = raw.messages(6, LATE, consumer_id=1)
    raw.ack(got[1]["message_id"], ack_type="Cumulative", consumer_id=1)
    raw.ack(got[3]["message_id"], consumer_id=1)
    raw.request("CLOSE_CONSUMER", consumer_id=1)
    started = time.monotonic()
    raw.expect("ACTIVE_CONSUMER_CHANGE", LATE, consumer_id=2, is_active=True)
    again = raw.messages(3, LATE, consumer_id=2)
    assert time.monotonic() - started >= 0.9 * DELAY
    assert [(message.payload, message.get("redelivery_count", 0)) for message in again] == [(b"2", 0), (b"4", 0), (b"5", 0)]


def test_a_better_priority_takes_over_and_a_worse_one_does_not(raw, topic, publish):
    publish(b"0")
    join(raw, topic, 1, "a", priority=1)
    raw.flow(10, 1)
    assert active(raw, 1) == 1
    raw.messages(1, LATE, consumer_id=1)
    join(raw, topic, 2, "z", priority=0)
    raw.flow(10, 2)
    assert active(raw, 2) == 2
    raw.messages(1, LATE, consumer_id=2)
    join(raw, topic, 3, "b", priority=2)
    raw.expect_silence(1.5 * DELAY)


@pytest.mark.parametrize("names", [["a", "b"], ["c", "a", "b"], [f"consumer-{number}" for number in range(8)]])
def test_the_ring_of_hashes_chooses_as_documented(raw, topic, names):
    """On a topic without partitions: the consumer whose point follows the topic's hash. Said here once more, independently."""

    def murmur3(data):
        def scramble(word):
            word = word * 0xCC9E2D51 & 0xFFFFFFFF
            word = (word << 15 | word >> 17) & 0xFFFFFFFF
            return word * 0x1B873593 & 0xFFFFFFFF

        value, whole = 0, len(data) // 4 * 4
        for at in range(0, whole, 4):
            value ^= scramble(int.from_bytes(data[at : at + 4], "little"))
            value = (value << 13 | value >> 19) & 0xFFFFFFFF
            value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
        if data[whole:]:
            value ^= scramble(int.from_bytes(data[whole:], "little"))
        value ^= len(data)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            value = (value ^ value >> shift) * factor & 0xFFFFFFFF
        return (value ^ value >> 16) & 0x7FFFFFFF

    ring = {murmur3(f"{name}{point}".encode()): number for number, name in enumerate(sorted(names)) for point in range(100)}
    here = murmur3(topic.encode())
    chosen = sorted(names)[ring[min((point for point in ring if point >= here), default=min(ring))]]
    for number, name in enumerate(names):
        join(raw, topic, number, name)
    # Newcomers that take over share the time of the first change.
    deadline = time.monotonic() + LATE
    told = {}
    while len(told) < len(names) or list(told.values()).count(True) != 1:
        assert time.monotonic() < deadline, told
        change = raw.expect("ACTIVE_CONSUMER_CHANGE", LATE)
        told[change["consumer_id"]] = bool(change.get("is_active"))
    assert names[next(number for number, is_active in told.items() if is_active)] == chosen


def test_types_do_not_mix_while_somebody_is_connected(raw, topic):
    raw.subscribe(topic, "s", "Shared", consumer_id=1)
    busy = raw.request(
        "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Failover", consumer_id=2, force_topic_creation=True
    )
    assert busy["error"] == "ConsumerBusy"
    raw.request("CLOSE_CONSUMER", consumer_id=1)
    join(raw, topic, 2, "a")
    busy = raw.request(
        "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Exclusive", consumer_id=3, force_topic_creation=True,
        skip=("ACTIVE_CONSUMER_CHANGE",),
    )
    assert busy["error"] == "ConsumerBusy"


def test_a_seek_closes_the_active_one_only(raw, topic, publish):
    publish(b"0", b"1", b"2")
    join(raw, topic, 1, "a", priority=0)
    raw.flow(10, 1)
    join(raw, topic, 2, "b", priority=1)
    raw.flow(10, 2)
    assert active(raw, 2) == 1
    got = raw.messages(3, LATE, consumer_id=1)
    raw.ack(got[2]["message_id"], ack_type="Cumulative", consumer_id=1)
    raw.send("SEEK", request_id=900, consumer_id=1, message_id=got[1]["message_id"])
    raw.expect("CLOSE_CONSUMER", consumer_id=1)
    raw.expect("SUCCESS", request_id=900)
    # Clients come back at once, and this one has the better priority.
    join(raw, topic, 1, "a", priority=0)
    raw.flow(10, 1)
    assert active(raw, 2) == 1
    assert [message.payload for message in raw.messages(2, LATE, consumer_id=1)] == [b"1", b"2"]


def test_redelivery_for_the_active_one_carries_its_epoch(raw, topic, publish):
    publish(b"0", b"1")
    raw.request(
        "SUBSCRIBE", topic=topic, subscription="s", subType="Failover", consumer_id=1, consumer_name="a",
        initialPosition="Earliest", force_topic_creation=True, consumer_epoch=0,
    )
    raw.flow(10)
    assert active(raw, 1) == 1
    raw.messages(2, LATE)
    raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, consumer_epoch=1)
    assert [(message.payload, message.get("consumer_epoch")) for message in raw.messages(2, LATE)] == [(b"0", 1), (b"1", 1)]
    stats = raw.stats()
    assert (stats["availablePermits"], stats["type"], stats.get("unackedMessages", 0)) == (6, "Failover", 0)


def test_peers_before_version_12_are_not_told(open_raw, topic, publish):
    publish(b"0")
    old = open_raw()
    old.connect(protocol_version=11)
    join(old, topic, 1, "a", skip=())
    old.flow(1)
    old.expect("MESSAGE", LATE)


def test_official_consumers_hand_over(make_client, topic):
    """One after the other leaves; nothing is lost and each starts with what is not acknowledged, in order."""
    consumers = [
        make_client().subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=f"c{number}", receiver_queue_size=10)
        for number in range(3)
    ]
    producer = make_client().create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number)
    seen = []
    deadline = time.monotonic() + 3 * LATE
    while len(seen) < 30:
        assert time.monotonic() < deadline, seen
        for consumer in list(consumers):
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            seen.append(int(message.data()))
            consumer.acknowledge(message)
            if len(seen) in (10, 20):
                consumer.close()
                consumers.remove(consumer)
            break
    # What a consumer had prefetched and acknowledged late may come again; order and completeness hold.
    assert sorted(set(seen)) == list(range(30))


def test_an_unload_closes_those_that_wait_too(broker, raw, topic, publish):
    publish(b"0")
    for consumer_id, name in (1, "a"), (2, "b"), (3, "c"):
        join(raw, topic, consumer_id, name)
    active(raw, 3)
    assert admin(broker, "PUT", admin_path(topic) + "/unload")[0] == 204
    closed = {raw.expect("CLOSE_CONSUMER", LATE, skip=("ACTIVE_CONSUMER_CHANGE",))["consumer_id"] for _ in range(3)}
    assert closed == {1, 2, 3}
