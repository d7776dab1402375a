"""Publish rates on a running broker: what a burst may have, the rate after it, who waits with whom, and the end of a limit."""

import json
import socket
import struct
import time
import urllib.request

import pytest

from publishing_load import Load
from rawpulsar import entry_bytes, send_frame

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
        urllib.request.urlopen(request, timeout=20).close()
        # The policy is taken over a moment after the answer.
        time.sleep(1)

    return limit


@pytest.fixture
def make_load(make_raw):
    """A load on a connection of its own, with producers 1, 2, … on the named topics."""
    loads = []

    def make(*topics):
        connection = make_raw(timeout=60)
        for producer, topic in enumerate(topics, 1):
            connection.producer(topic, producer)
        loads.append(Load(connection))
        return loads[-1]

    yield make
    for load in loads:
        load.stop()


def test_a_burst_then_the_rate_and_all_at_once_when_the_limit_goes(make_load, make_raw, limit_topic, topic):
    """60 sends at 10 per second: the bucket's ten, then ten per second; the rest as soon as there is no limit."""
    make_raw().producer(topic)  # The topic is there before its policy.
    limit_topic(topic, 10)
    load = make_load(topic)
    load.publish([1], 60)
    time.sleep(3)
    assert 10 <= load.between(0, 0.3) <= 14
    assert 30 <= load.between(0, 3) <= 45
    removed = time.monotonic() - load.start
    limit_topic(topic, None)
    assert load.wait_for(60, 5) - removed < 1.5
    assert load.ids() == list(range(60))


def test_a_raised_limit_counts_at_once(make_load, make_raw, limit_topic, topic):
    make_raw().producer(topic)
    limit_topic(topic, 1)
    load = make_load(topic)
    load.publish([1], 100)
    time.sleep(1)
    assert load.between(0, 1) <= 4
    raised = time.monotonic() - load.start
    limit_topic(topic, 1000)
    assert load.wait_for(100, 5) - raised < 1.5


def test_the_rate_of_the_broker(make_load, setting, topic):
    """3,000 messages at 500 per second over the whole broker: after the first window, whose burst is free, 500 per window."""
    load = make_load(topic)
    setting(BROKER_RATE, 500)
    time.sleep(1)
    load.start = time.monotonic()
    load.publish([1], 3000, together=100)
    load.wait_for(3000, 10)
    windows = [load.between(second, second + 1) for second in range(6)]
    assert 500 <= windows[0] <= 1100, windows
    for window in windows[1:4]:
        assert 440 <= window <= 560, windows
    assert load.ids() == list(range(3000))


@pytest.mark.vela_only
def test_the_long_run_keeps_the_rate_within_2_percent(make_load, setting, topic):
    """Three producers on three connections, one topic, 200 per second for 10 seconds behind the burst."""
    setting(TOPIC_RATE, 200)
    loads = [make_load(topic) for _ in range(3)]
    for load in loads:
        load.publish([1], 1500)
    time.sleep(12.3)
    start = loads[0].start + 2
    counts = [load.between(start - load.start, start + 10 - load.start) for load in loads]
    assert sum(counts) == pytest.approx(2000, rel=0.02), counts
    # The turns are fair: nobody is far from a third.
    assert min(counts) > 2000 / 3 / 2, counts


def test_two_limited_topics_of_one_connection(make_load, make_raw, limit_topic, topic):
    """A connection goes on only when the limits of all its topics allow it: both run at the pace of the slower one."""
    slow, fast = topic, topic + "-too"
    other = make_raw()
    other.producer(slow, 1)
    other.producer(fast, 2)
    limit_topic(slow, 10)
    limit_topic(fast, 10)
    load = make_load(slow, fast)
    load.publish([1, 2], 60)
    time.sleep(4)
    for producer in (1, 2):
        assert 10 <= load.between(0, 1, producer) <= 30
        assert 20 <= load.between(1, 4, producer) <= 40
        ids = load.ids(producer)
        assert ids == list(range(len(ids)))
    limit_topic(slow, None)
    limit_topic(fast, None)
    load.wait_for(120, 10)
    assert load.ids(1) == load.ids(2) == list(range(60))


@pytest.mark.vela_only
def test_ping_passes_a_connection_that_a_rate_holds(make_load, make_raw, setting, topic):
    """apache/pulsar#23398: one throttled topic must not stop heartbeats, nor other connections."""
    watcher = make_raw()
    watcher.producer(topic + "-cold", 7)
    load = make_load(topic, topic + "-cold")
    setting(TOPIC_RATE, 10)
    load.publish([1], 400)
    time.sleep(0.5)
    for _ in range(5):
        said = time.monotonic() - load.start
        load.say("PING")
        time.sleep(0.3)
        assert load.pongs and load.pongs[-1] >= said, "no PONG within 0.3 s while the rate holds the connection"
    assert len(load.pongs) == 5
    # A connection of its own is not slowed at all: its topic has a bucket of its own.
    watcher.publish(b"cold", producer_id=7)
    assert not load.closed
    assert load.between(0, 2) <= 40


class TestNoLimitIsNoLimit:
    """apache/pulsar#10603: "no limit" was read as "nothing left", so that nobody could publish."""

    @pytest.mark.parametrize("value", [None, 0, -1])
    @pytest.mark.vela_only
    def test_for_messages_and_bytes(self, make_load, setting, topic, value):
        """A negative number is refused, and what was in force stays: no limit."""
        for name in (TOPIC_RATE, TOPIC_BYTES):
            setting(name, 5)
            setting(name, None)
            setting(name, value)
        load = make_load(topic)
        load.publish([1], 1000, size=1024)
        assert load.wait_for(1000, 10) < 2

    @pytest.mark.vela_only
    def test_of_the_other_kind(self, make_load, setting, topic):
        """Messages only, then bytes only: the rate of the one that is set."""
        setting(TOPIC_RATE, 50)
        load = make_load(topic)
        load.publish([1], 400, size=1024)
        time.sleep(2.6)
        assert load.between(1, 2.5) == pytest.approx(75, abs=8)
        setting(TOPIC_RATE, None)
        load.wait_for(400, 5)
        setting(TOPIC_BYTES, 100 * 1024)
        load = make_load(topic)
        load.publish([1], 600, size=1024)
        time.sleep(2.6)
        # What is charged is the entry, a little more than the payload.
        assert 125 <= load.between(1, 2.5) <= 160


@pytest.mark.vela_only
def test_a_tiny_limit_is_not_exceeded_between_two_ticks(make_load, setting, topic):
    """apache/pulsar#6975: 161 to 214 messages per second passed where 10 were allowed."""
    setting(TOPIC_RATE, 10)
    setting(TOPIC_BYTES, 10_240)
    load = make_load(topic)
    load.publish([1], 5000, size=1024, together=500)
    time.sleep(5.1)
    seconds = [load.between(second, second + 1) for second in range(5)]
    assert max(seconds) <= 21, seconds
    # 1,024 bytes of payload and the headers: the byte limit is the tighter one.
    assert 8 <= sum(seconds[2:]) / 3 <= 10.5, seconds


@pytest.mark.vela_only
def test_the_rate_does_not_drift_with_connections_and_topics(make_load, setting, topic):
    """apache/pulsar#6550: each connection was stopped only after one message more. 20 connections with a topic each."""
    setting("brokerPublisherThrottlingMaxByteRate", 4_000_000)
    loads = [make_load(f"{topic}-{number}") for number in range(20)]
    for load in loads:
        load.publish([1], 400, size=10_000, together=10)
    time.sleep(4.6)
    origin = loads[0].start
    counts = [load.between(origin + 1.5 - load.start, origin + 4.5 - load.start) for load in loads]
    assert sum(counts) * 10_000 == pytest.approx(12_000_000, rel=0.05), counts
    assert min(counts) >= sum(counts) / len(counts) / 2, counts


@pytest.mark.vela_only
def test_producers_that_leave_while_throttled_are_noticed_at_once(broker, make_raw, setting, topic):
    """apache/pulsar#15038: the socket is not read, so its end was not seen. Orderly and by reset; the names are free at once."""
    setting(TOPIC_RATE, 1)
    before = broker.metric("vela_connections")
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
    time.sleep(0.5)
    assert broker.metric("vela_throttled_connections") >= 30
    for number, connection in enumerate(connections):
        if number % 2:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    end = time.monotonic() + 2
    while broker.metric("vela_connections") > before:
        assert time.monotonic() < end, f"{broker.metric('vela_connections')} connections, before {before}"
        time.sleep(0.05)
    newcomer = make_raw()
    start = time.monotonic()
    for number in range(40):
        newcomer.producer(topic, number + 1, producer_name=f"name-{number}")
    assert time.monotonic() - start < 2
    assert broker.metric("vela_throttled_connections") == 0
