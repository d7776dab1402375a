"""Publish rates on a running broker: what a burst may have, the rate after it, who waits with whom, and the end of a limit.

A rate is an upper bound whatever the machine does: the n-th receipt cannot come before the bucket and the time since the start allow it,
and a pause of the broker, the disk or this test only moves receipts later. So that bound is held against every receipt. That a rate is
*used*, too, is seen only on a machine that does not pause for long; there a second try is as good as the first (`uses_its_rate`).
What must happen at once is told from what happens by rate by numbers: what is left would take far longer than any pause."""

import json
import socket
import struct
import time
import urllib.request

import pytest

from publishing_load import Load, exceeds
from rawpulsar import entry_bytes, send_frame
from waiting import LIMIT_SECONDS, eventually

CONFIGURATION = "/admin/v2/brokers/configuration"
TOPIC_RATE = "maxPublishRatePerTopicInMessages"
TOPIC_BYTES = "maxPublishRatePerTopicInBytes"
BROKER_RATE = "brokerPublisherThrottlingMaxMessageRate"


@pytest.fixture
def setting(broker):
    """Sets dynamic settings; None deletes one, as does the end of the test."""
    names = set()

    def apply(name, value):
        if value is None:
            broker.http(f"{CONFIGURATION}/{name}", method="DELETE")
            names.discard(name)
        else:
            names.add(name)
            broker.http(f"{CONFIGURATION}/{name}/{value}", method="POST")

    yield apply
    for name in list(names):
        apply(name, None)


@pytest.fixture
def limit_topic(pytestconfig, broker, setting):
    """Limits a topic's messages per second; None takes the limit away. A shared broker gets a policy for that topic only, Vela
    its default for all topics."""

    def limit(topic, rate):
        if not pytestconfig.getoption("--broker"):
            setting(TOPIC_RATE, rate)
            return
        path = topic.replace("://", "/")
        body = {"publishThrottlingRateInMsg": rate or -1, "publishThrottlingRateInByte": -1}
        request = urllib.request.Request(
            f"{broker.admin}/admin/v2/{path}/publishRate", json.dumps(body).encode(), {"Content-Type": "application/json"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=60).close()
        # The policy is taken over a moment after the answer.
        time.sleep(1)

    return limit


@pytest.fixture
def make_load(make_raw):
    """A load on a connection of its own, with producers 1, 2, … on the named topics."""
    loads = []

    def make(*topics):
        connection = make_raw()
        for producer, topic in enumerate(topics, 1):
            connection.producer(topic, producer)
        loads.append(Load(connection))
        return loads[-1]

    yield make
    for load in loads:
        load.stop()


def begin(loads, producers, count, **options):
    """Loads start to publish side by side."""
    for load in loads:
        load.start = time.monotonic()
        load.publish(producers, count, **options)


def times_of(loads):
    """When the receipts of several loads came, in order, in seconds since the first of them started."""
    origin = min(load.start for load in loads)
    return sorted(load.start - origin + at for load in loads for at, _, _ in list(load.receipts))


def uses_its_rate(start, rate, burst, count, tolerance, check=lambda loads: None, tries=6):
    """Runs loads that `start` starts, until `count` receipts are there behind the burst: never sooner than the rate allows, and in one
    try at least not later either. Several tries, for a machine that pauses; `check` looks at the loads of such a try."""
    took = []
    for number in range(tries):
        loads = start(number)
        eventually(lambda: len(times_of(loads)) >= 2 * burst + count, lambda: f"{len(times_of(loads))} receipts", 4 * LIMIT_SECONDS)
        times = times_of(loads)
        # Connections are held by the message that goes beyond, and those that are let go together send one each before they are charged.
        assert exceeds(times, rate * (1 + tolerance), burst + 2 * len(loads) + 2) is None
        for load in loads:
            load.stop()
            assert not load.closed and not load.errors, load.errors[:3]
        # Behind what the burst has, and as much again to come to rest.
        first = 2 * burst
        took.append(times[first + count - 1] - times[first - 1])
        if took[-1] <= count / rate * (1 + tolerance):
            return check(loads)
    raise AssertionError(f"{count} at {rate} per second took {took} seconds")


def test_a_burst_then_the_rate_and_all_at_once_when_the_limit_goes(make_load, make_raw, limit_topic, topic):
    """1,000 sends at 10 per second: the bucket's ten, then ten per second; the rest as soon as there is no limit."""
    make_raw().producer(topic)  # The topic is there before its policy.
    limit_topic(topic, 10)
    load = make_load(topic)
    begin([load], [1], 1000)
    load.wait_for(35)
    assert load.exceeds(10, burst=14) is None
    removed = time.monotonic() - load.start
    limit_topic(topic, None)
    # By rate it were 90 seconds and more.
    assert load.wait_for(1000) - removed < LIMIT_SECONDS
    assert load.ids() == list(range(1000))


def test_a_raised_limit_counts_at_once(make_load, make_raw, limit_topic, topic):
    make_raw().producer(topic)
    limit_topic(topic, 1)
    load = make_load(topic)
    begin([load], [1], 150)
    load.wait_for(3)
    assert load.exceeds(1, burst=4) is None
    limit_topic(topic, 1000)
    # By rate it were more than two minutes.
    load.wait_for(150)


def test_the_rate_of_the_broker(make_load, setting, topic):
    """3,000 messages at 500 per second over the whole broker: a second's worth is free, then 500 per second."""
    load = make_load(topic)
    setting(BROKER_RATE, 500)
    time.sleep(1)
    begin([load], [1], 3000, together=100)
    load.wait_for(3000)
    assert load.exceeds(500, burst=550) is None
    assert load.ids() == list(range(3000))


@pytest.mark.vela_only
def test_the_long_run_keeps_the_rate_within_2_percent(make_load, setting, topic):
    """Three producers on three connections, one topic, 200 per second for 10 seconds behind the burst."""
    setting(TOPIC_RATE, 200)

    def start(number):
        loads = [make_load(f"{topic}-{number}") for _ in range(3)]
        begin(loads, [1], 1500)
        return loads

    def fair(loads):
        counts = [len(load.receipts) for load in loads]
        assert min(counts) > sum(counts) / 3 / 2, f"nobody is far from a third: {counts}"

    uses_its_rate(start, rate=200, burst=200, count=2000, tolerance=0.02, check=fair)


def test_two_limited_topics_of_one_connection(make_load, make_raw, limit_topic, topic):
    """A connection goes on only when the limits of all its topics allow it: both run at the pace of the slower one."""
    slow, fast = topic, topic + "-too"
    other = make_raw()
    other.producer(slow, 1)
    other.producer(fast, 2)
    limit_topic(slow, 10)
    limit_topic(fast, 10)
    load = make_load(slow, fast)
    begin([load], [1, 2], 60)
    eventually(lambda: min(len(load.ids(producer)) for producer in (1, 2)) >= 30, lambda: load.receipts)
    for producer in (1, 2):
        assert load.exceeds(10, burst=20, producer=producer) is None
        ids = load.ids(producer)
        assert ids == list(range(len(ids)))
    # In turns, as they were sent.
    assert abs(len(load.ids(1)) - len(load.ids(2))) <= 25
    limit_topic(slow, None)
    limit_topic(fast, None)
    load.wait_for(120)
    assert load.ids(1) == load.ids(2) == list(range(60))


@pytest.mark.vela_only
def test_ping_passes_a_connection_that_a_rate_holds(make_load, make_raw, setting, topic):
    """apache/pulsar#23398: one throttled topic must not stop heartbeats, nor other connections."""
    watcher = make_raw()
    watcher.producer(topic + "-cold", 7)
    load = make_load(topic, topic + "-cold")
    setting(TOPIC_RATE, 10)
    total = 400
    load.start = time.monotonic()
    load.publish([1], total).join(LIMIT_SECONDS)
    for number in range(5):
        load.say("PING")
        # In front of SENDs that were sent before it.
        eventually(lambda: len(load.pongs) > number, "a PONG while the rate holds the connection")
        assert len(load.receipts) < total
    assert len(load.pongs) == 5
    # A connection of its own is not slowed at all: its topic has a bucket of its own.
    watcher.publish(b"cold", producer_id=7)
    assert len(load.receipts) < total and not load.closed
    assert load.exceeds(10, burst=12) is None


class TestNoLimitIsNoLimit:
    """apache/pulsar#10603: "no limit" was read as "nothing left", so that nobody could publish."""

    @pytest.mark.parametrize("value", [None, 0, -1])
    @pytest.mark.vela_only
    def test_for_messages_and_bytes(self, broker, make_load, setting, topic, value):
        """A negative number is refused, and what was in force stays: no limit."""
        for name in (TOPIC_RATE, TOPIC_BYTES):
            setting(name, 5)
            setting(name, None)
            setting(name, value)
        holds, _ = broker.throttled("topic-rate")
        load = make_load(topic)
        begin([load], [1], 1000, size=1024)
        # By the old rates it were more than three minutes.
        load.wait_for(1000)
        assert broker.throttled("topic-rate")[0] == holds

    @pytest.mark.vela_only
    def test_of_the_other_kind(self, make_load, setting, topic):
        """Messages only, then bytes only: the rate of the one that is set."""
        loads = []

        def start(number):
            loads.append(make_load(f"{topic}-{number}-{len(loads)}"))
            begin(loads[-1:], [1], 400, size=1024)
            return loads[-1:]

        setting(TOPIC_RATE, 50)
        uses_its_rate(start, rate=50, burst=50, count=100, tolerance=0.1)
        setting(TOPIC_RATE, None)
        setting(TOPIC_BYTES, 100 * 1024)
        # What is charged is the entry, a little more than the payload.
        uses_its_rate(start, rate=100, burst=100, count=150, tolerance=0.1)


@pytest.mark.vela_only
def test_a_tiny_limit_is_not_exceeded_between_two_ticks(make_load, setting, topic):
    """apache/pulsar#6975: 161 to 214 messages per second passed where 10 were allowed."""
    setting(TOPIC_RATE, 10)
    setting(TOPIC_BYTES, 10_240)
    load = make_load(topic)
    begin([load], [1], 5000, size=1024, together=500)
    load.wait_for(45)
    # 1,024 bytes of payload and the headers: the byte limit is the tighter one.
    assert load.exceeds(10, burst=11) is None


@pytest.mark.vela_only
def test_the_rate_does_not_drift_with_connections_and_topics(make_load, setting, topic):
    """apache/pulsar#6550: each connection was stopped only after one message more. 20 connections with a topic each."""
    setting("brokerPublisherThrottlingMaxByteRate", 1_000_000)

    def start(number):
        # The bucket fills up again between two tries.
        time.sleep(1.5 if number else 0)
        loads = [make_load(f"{topic}-{number}-{index}") for index in range(20)]
        begin(loads, [1], 100, size=10_000, together=10)
        return loads

    def fair(loads):
        counts = [len(load.receipts) for load in loads]
        assert min(counts) >= sum(counts) / len(counts) / 2, counts

    uses_its_rate(start, rate=100, burst=100, count=400, tolerance=0.05, check=fair)


@pytest.mark.vela_only
def test_producers_that_leave_while_throttled_are_noticed_at_once(broker, make_raw, setting, topic):
    """apache/pulsar#15038: the socket is not read, so its end was not seen. Orderly and by reset; the names are free at once."""
    setting(TOPIC_RATE, 1)
    before = broker.metric("vela_connections")
    holds, _ = broker.throttled("topic-rate")
    entry = entry_bytes(b"x" * 10_240)
    frames = b"".join(send_frame(entry, producer_id=1, sequence_id=id, num_messages=1) for id in range(100))
    connections = []
    for number in range(40):
        connection = make_raw()
        connection.producer(topic, producer_name=f"name-{number}")
        connection.socket.setblocking(False)
        try:
            connection.socket.send(frames)
        except BlockingIOError:
            pass
        connections.append(connection)
    eventually(lambda: broker.throttled("topic-rate")[0] - holds >= 40, lambda: broker.throttled("topic-rate"))
    assert broker.metric("vela_throttled_connections") >= 30
    for number, connection in enumerate(connections):
        if number % 2:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    # At one message per second it were more than an hour.
    eventually(lambda: broker.metric("vela_connections") <= before, lambda: f"{broker.metric('vela_connections')} connections, before {before}")
    newcomer = make_raw()
    for number in range(40):
        newcomer.producer(topic, number + 1, producer_name=f"name-{number}")
    eventually(lambda: broker.metric("vela_throttled_connections") == 0, lambda: broker.http("/metrics"))
    eventually(lambda: len(set(broker.throttled("topic-rate"))) == 1, lambda: broker.throttled("topic-rate"))


@pytest.mark.vela_only
def test_the_hits_of_a_limit_are_counted_by_topic(broker, make_raw, setting, topic):
    setting(TOPIC_RATE, 10)
    raw = make_raw()
    raw.producer(topic, 1)
    raw.producer(topic + "-free", 2)
    raw.publish(b"free", producer_id=2)
    # One SEND that says it holds more than there is.
    raw.write(send_frame(entry_bytes(b"x"), producer_id=1, sequence_id=0, num_messages=100))
    raw.expect("SEND_RECEIPT", producer_id=1)

    def hits(name):
        labels = f'namespace="public/default",topic="{name}"'
        lines = [line for line in broker.http("/metrics").splitlines() if line.startswith("pulsar_publish_rate_limit_times{") and labels in line]
        return [int(line.split()[-1]) for line in lines]

    eventually(lambda: hits(topic) == [1], lambda: f"{hits(topic)} hits")
    assert hits(topic + "-free") == []
