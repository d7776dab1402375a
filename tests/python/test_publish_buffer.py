"""Unanswered publishes on a running broker: their bytes and their number are bounded, nothing is lost, and all goes on in order."""

import time

import pytest

from publishing_load import Load
from rawpulsar import RawConnection

CONFIGURATION = "/admin/v2/brokers/configuration"
MIB = 1 << 20


def held(broker, reason):
    """Connections that `reason` holds now."""
    name = f'vela_throttled_connections{{reason="{reason}"}} '
    line = next(line for line in broker.http("/metrics").splitlines() if line.startswith(name))
    return int(float(line.split()[-1]))


def watch(broker, reason, load, count, seconds):
    """(seconds since the load's start, connections held, receipts) until `count` receipts are there."""
    samples = []
    end = time.monotonic() + seconds
    while len(load.receipts) < count:
        assert time.monotonic() < end and not load.errors, (len(load.receipts), load.errors[:3])
        receipts = len(load.receipts)
        samples.append((time.monotonic() - load.start, held(broker, reason), receipts))
        time.sleep(0.02)
    return samples


def none_is_held(broker):
    end = time.monotonic() + 3
    while broker.metric("vela_throttled_connections"):
        assert time.monotonic() < end, broker.http("/metrics")
        time.sleep(0.02)


@pytest.fixture
def slow_broker(make_broker):
    """Makes brokers whose every log write of the first four seconds takes so long."""
    started = []

    def make(millis, *arguments):
        process = make_broker(cores=1, arguments=["--fault-sync-delay-millis", str(millis), "--fault-sync-delay-seconds", "4", *arguments]).start()
        started.append(process)
        return process

    yield make
    for process in started:
        assert process.stop() == 0, process.log()


@pytest.fixture
def load_on():
    """Makes a load with producer 1 on a topic of the given broker."""
    loads = []

    def make(broker, topic):
        connection = RawConnection(broker.host, broker.port, timeout=60)
        connection.connect()
        connection.producer(topic)
        loads.append(Load(connection))
        return loads[-1]

    yield make
    for load in loads:
        load.stop()


@pytest.mark.restart
class TestBytes:
    def test_beyond_the_limit_hold_every_connection_of_the_core(self, slow_broker, load_on, topic):
        """1 MiB of buffer, a slow write, four messages of 1 MiB: held until the storage answers, then all go through."""
        broker = slow_broker(
            1000, "--max-message-publish-buffer-size-in-mb", "1", "--in-progress-request-frame-memory-limit-enabled", "enabled")
        load, other = load_on(broker, topic), load_on(broker, topic + "-other")
        load.start = time.monotonic()
        load.publish([1], 4, size=MIB, together=1)
        time.sleep(0.4)
        assert not load.receipts
        assert held(broker, "pending-bytes") == 2, "the core's connections, not only the one that publishes"
        assert broker.metric("pulsar_broker_throttled_connections") >= 2
        # What a held connection sends is not processed, so neither is it answered.
        other.publish([1], 1)
        time.sleep(0.3)
        assert not other.receipts
        samples = watch(broker, "pending-bytes", load, 4, 30)
        first = load.receipts[0][0]
        assert all(count == 2 for at, count, receipts in samples if at < first - 0.1 and not receipts), samples
        assert load.ids() == [0, 1, 2, 3]
        other.wait_for(1, 10)
        none_is_held(broker)
        assert broker.metric("pulsar_broker_publish_in_progress_buffer_memory_throttled") == 0

    def test_without_a_limit_hold_nobody(self, slow_broker, load_on, topic):
        broker = slow_broker(1000, "--max-message-publish-buffer-size-in-mb", "-1")
        load = load_on(broker, topic)
        load.publish([1], 10, size=MIB, together=1)
        samples = watch(broker, "pending-bytes", load, 10, 30)
        assert samples and all(count == 0 for _, count, _ in samples), samples
        assert load.ids() == list(range(10))

    def test_are_let_go_at_once_when_the_limit_goes(self, slow_broker, load_on, topic):
        broker = slow_broker(1000, "--max-message-publish-buffer-size-in-mb", "1")
        load = load_on(broker, topic)
        load.publish([1], 4, size=MIB, together=1)
        time.sleep(0.4)
        assert held(broker, "pending-bytes") == 1
        broker.http(f"{CONFIGURATION}/maxMessagePublishBufferSizeInMB/-1", method="POST")
        time.sleep(0.2)
        assert held(broker, "pending-bytes") == 0
        load.wait_for(4, 20)
        assert load.ids() == [0, 1, 2, 3]


@pytest.mark.restart
class TestRequests:
    def test_a_thousand_unanswered_hold_the_connection_and_all_come_in_order(self, slow_broker, load_on, topic):
        """2,000 small sends at once: held at 1,000, on again at 500, and a receipt for each in the order of sending."""
        broker = slow_broker(600)
        load, quiet = load_on(broker, topic), load_on(broker, topic + "-quiet")
        load.publish([1], 2000)
        samples = watch(broker, "pending-requests", load, 2000, 30)
        assert {count for _, count, _ in samples} == {0, 1}, "the one that publishes, and at times"
        assert load.ids() == list(range(2000))
        none_is_held(broker)
        quiet.publish([1], 1)
        quiet.wait_for(1, 10)

    def test_no_more_than_the_limit_are_unanswered(self, slow_broker, load_on, topic):
        """The first write takes longer than the sending: what is processed until then is the limit."""
        broker = slow_broker(1200)
        broker.http(f"{CONFIGURATION}/maxPendingPublishRequestsPerConnection/400", method="POST")
        load = load_on(broker, topic)
        before = broker.metric("vela_messages_in_total")
        load.publish([1], 1000)
        time.sleep(0.6)
        assert held(broker, "pending-requests") == 1
        assert not load.receipts
        load.wait_for(1000, 20)
        assert load.ids() == list(range(1000))
        # Figures are a heartbeat old.
        end = time.monotonic() + 3
        while broker.metric("vela_messages_in_total") - before < 1000:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert broker.metric("vela_messages_in_total") - before == 1000


    def test_a_raised_limit_lets_go_at_once(self, slow_broker, load_on, topic):
        broker = slow_broker(1500)
        name = f"{CONFIGURATION}/maxPendingPublishRequestsPerConnection"
        broker.http(f"{name}/100", method="POST")
        load = load_on(broker, topic)
        load.publish([1], 1000)
        time.sleep(0.6)
        assert held(broker, "pending-requests") == 1 and not load.receipts
        broker.http(f"{name}/2000", method="POST")
        # Figures are a heartbeat old.
        time.sleep(0.4)
        assert held(broker, "pending-requests") == 0 and not load.receipts
        load.wait_for(1000, 20)
        assert load.ids() == list(range(1000))


@pytest.mark.vela_only
def test_two_thousand_sends_come_in_order(broker, load_on, topic):
    """The same on storage as quick as it is, again and again on one connection."""
    load = load_on(broker, topic)
    for round in range(3):
        load.publish([1], 2000, first=round * 2000, together=2000)
        load.wait_for((round + 1) * 2000, 20)
    assert load.ids() == list(range(6000))
    none_is_held(broker)
