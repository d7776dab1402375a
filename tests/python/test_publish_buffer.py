"""Unanswered publishes on a running broker: their bytes and their number are bounded, nothing is lost, and all goes on in order.

Storage stands still for as long as a test wants (faultSyncHoldFile), so that nothing depends on how fast anything is."""

import time
from types import SimpleNamespace

import pytest

from publishing_load import Load
from rawpulsar import RawConnection
from waiting import eventually

CONFIGURATION = "/admin/v2/brokers/configuration"
MIB = 1 << 20
REQUESTS, BYTES = "pending-requests", "pending-bytes"


def stays(value, look):
    """A value is what it should be, and still is a few heartbeats later."""
    eventually(lambda: look() == value, lambda: f"{look()}, not {value}")
    time.sleep(0.6)
    assert look() == value


def all_are_let_go(broker, *reasons):
    """Nobody is held any more, and each hold had its end."""
    for reason in reasons:
        eventually(lambda: len(set(broker.throttled(reason))) == 1, lambda: f"{reason}: {broker.throttled(reason)}")
    eventually(lambda: broker.metric("vela_throttled_connections") == 0, lambda: broker.http("/metrics"))


def operations(broker):
    """(times that reads were paused, times that they were resumed), by the name that Pulsar has for it."""
    text = broker.http("/metrics")
    return tuple(
        int(line.split()[-1]) for name in ("paused", "resumed") for line in text.splitlines()
        if line.startswith("pulsar_broker_connection_rate_limit_count_total{") and f'operation_name="{name}"' in line)


@pytest.fixture
def storage(tmp_path):
    """Lets storage stand still and go on."""
    file = tmp_path / "hold"
    return SimpleNamespace(file=file, stop=file.touch, go_on=lambda: file.unlink(missing_ok=True))


@pytest.fixture
def slow_broker(make_broker, storage):
    """Makes brokers whose log writes wait while `storage` stands still."""
    started = []

    def make(*arguments):
        process = make_broker(cores=1, arguments=["--fault-sync-hold-file", str(storage.file), *arguments]).start()
        started.append(process)
        return process

    yield make
    storage.go_on()
    for process in started:
        assert process.stop() == 0, process.log()


@pytest.fixture
def load_on():
    """Makes a load with producer 1 on a topic of the given broker."""
    loads = []

    def make(broker, topic):
        connection = RawConnection(broker.host, broker.port)
        connection.connect()
        connection.producer(topic)
        loads.append(Load(connection))
        return loads[-1]

    yield make
    for load in loads:
        load.stop()


@pytest.mark.restart
class TestBytes:
    def test_beyond_the_limit_hold_every_connection_of_the_core(self, slow_broker, storage, load_on, topic):
        """1 MiB of buffer, storage that stands still, four messages of 1 MiB: held until the storage answers, then all go through."""
        broker = slow_broker(
            "--max-message-publish-buffer-size-in-mb", "1", "--in-progress-request-frame-memory-limit-enabled", "enabled")
        load, other = load_on(broker, topic), load_on(broker, topic + "-other")
        storage.stop()
        load.publish([1], 4, size=MIB, together=1)
        eventually(lambda: broker.throttled(BYTES) == (2, 0), lambda: f"the core's connections, not only the one that publishes: {broker.throttled(BYTES)}")
        taken = broker.metric("vela_messages_in_total")
        assert 1 <= taken < 4
        assert broker.metric("pulsar_broker_throttled_connections") >= 2
        # What a held connection sends is not processed, so neither is it answered.
        other.publish([1], 1)
        stays(taken, lambda: broker.metric("vela_messages_in_total"))
        assert broker.throttled(BYTES) == (2, 0)
        assert operations(broker)[0] >= 2
        assert not load.receipts and not other.receipts
        storage.go_on()
        load.wait_for(4)
        other.wait_for(1)
        assert load.ids() == [0, 1, 2, 3]
        all_are_let_go(broker, BYTES)
        eventually(lambda: len(set(operations(broker))) == 1, lambda: operations(broker))
        eventually(lambda: broker.metric("pulsar_broker_publish_in_progress_buffer_memory_throttled") == 0)

    def test_without_a_limit_hold_nobody(self, slow_broker, storage, load_on, topic):
        broker = slow_broker("--max-message-publish-buffer-size-in-mb", "-1")
        load = load_on(broker, topic)
        storage.stop()
        load.publish([1], 10, size=MIB, together=1)
        eventually(lambda: broker.metric("vela_messages_in_total") == 10)
        assert not load.receipts
        storage.go_on()
        load.wait_for(10)
        assert load.ids() == list(range(10))
        assert broker.throttled(BYTES) == (0, 0)

    def test_are_let_go_at_once_when_the_limit_goes(self, slow_broker, storage, load_on, topic):
        broker = slow_broker("--max-message-publish-buffer-size-in-mb", "1")
        load = load_on(broker, topic)
        storage.stop()
        load.publish([1], 4, size=MIB, together=1)
        eventually(lambda: broker.throttled(BYTES) == (1, 0))
        broker.http(f"{CONFIGURATION}/maxMessagePublishBufferSizeInMB/-1", method="POST")
        eventually(lambda: broker.throttled(BYTES) == (1, 1))
        eventually(lambda: broker.metric("vela_messages_in_total") == 4)
        assert not load.receipts
        storage.go_on()
        load.wait_for(4)
        assert load.ids() == [0, 1, 2, 3]


@pytest.mark.restart
class TestRequests:
    def test_a_thousand_unanswered_hold_the_connection_and_all_come_in_order(self, slow_broker, storage, load_on, topic):
        """2,000 small sends at once: held at 1,000, on again at 500, and a receipt for each in the order of sending."""
        broker = slow_broker()
        load, quiet = load_on(broker, topic), load_on(broker, topic + "-quiet")
        storage.stop()
        load.publish([1], 2000)
        eventually(lambda: broker.throttled(REQUESTS) == (1, 0), lambda: f"the one that publishes, and it alone: {broker.throttled(REQUESTS)}")
        stays(1000, lambda: broker.metric("vela_messages_in_total"))
        assert not load.receipts
        storage.go_on()
        load.wait_for(2000)
        assert load.ids() == list(range(2000))
        all_are_let_go(broker, REQUESTS)
        # 500 after each time it was let go: the second thousand fills it up two times more at most.
        assert 1 <= broker.throttled(REQUESTS)[0] <= 3
        quiet.publish([1], 1)
        quiet.wait_for(1)

    def test_no_more_than_the_limit_are_unanswered(self, slow_broker, storage, load_on, topic):
        """While storage stands still: what is processed until then is the limit."""
        broker = slow_broker()
        broker.http(f"{CONFIGURATION}/maxPendingPublishRequestsPerConnection/400", method="POST")
        load = load_on(broker, topic)
        storage.stop()
        load.publish([1], 1000)
        stays(400, lambda: broker.metric("vela_messages_in_total"))
        assert broker.throttled(REQUESTS) == (1, 0)
        assert not load.receipts
        storage.go_on()
        load.wait_for(1000)
        assert load.ids() == list(range(1000))
        eventually(lambda: broker.metric("vela_messages_in_total") == 1000)

    def test_a_raised_limit_lets_go_at_once(self, slow_broker, storage, load_on, topic):
        broker = slow_broker()
        name = f"{CONFIGURATION}/maxPendingPublishRequestsPerConnection"
        broker.http(f"{name}/100", method="POST")
        load = load_on(broker, topic)
        storage.stop()
        load.publish([1], 1000)
        eventually(lambda: broker.throttled(REQUESTS) == (1, 0))
        broker.http(f"{name}/2000", method="POST")
        eventually(lambda: broker.throttled(REQUESTS) == (1, 1))
        eventually(lambda: broker.metric("vela_messages_in_total") == 1000)
        assert not load.receipts
        storage.go_on()
        load.wait_for(1000)
        assert load.ids() == list(range(1000))


@pytest.mark.vela_only
def test_two_thousand_sends_come_in_order(broker, load_on, topic):
    """The same on storage as quick as it is, again and again on one connection."""
    load = load_on(broker, topic)
    for round in range(3):
        load.publish([1], 2000, first=round * 2000, together=2000)
        load.wait_for((round + 1) * 2000)
    assert load.ids() == list(range(6000))
    all_are_let_go(broker, REQUESTS)
