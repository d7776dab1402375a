"""PIP-434 on a running broker: a peer that does not read its output stops its own requests, and once it has caught up they are taken
slowly for a while. Settings: pulsarChannelPauseReceivingRequestsIfUnwritable and those beside it."""

import socket
import time

import pytest

from rawpulsar import RawConnection, frames
from waiting import eventually

MIB = 1 << 20
FULL, COOLDOWN = "outbound-full", "outbound-cooldown"
PERIOD_MS, PERMITS = 1000, 5


def lookups(connection, count):
    """Sends requests in one write and reads their answers."""
    connection.write(b"".join(
        frames.command_frame("LOOKUP", topic="persistent://public/default/anything", request_id=1000 + n) for n in range(count)))
    for n in range(count):
        connection.expect("LOOKUP_RESPONSE", request_id=1000 + n)


@pytest.fixture
def broker(make_broker):
    """A cooldown that lasts as long as the test, so that nothing depends on when its requests come."""
    broker = make_broker(cores=1, arguments=[
        "--pulsar-channel-pause-receiving-requests-if-unwritable", "true",
        "--pulsar-channel-write-buffer-high-water-mark", str(64 * 1024),
        "--pulsar-channel-write-buffer-low-water-mark", str(32 * 1024),
        "--pulsar-channel-pause-receiving-cooldown-ms", "3600000",
        "--pulsar-channel-pause-receiving-cooldown-rate-limit-permits", str(PERMITS),
        "--pulsar-channel-pause-receiving-cooldown-rate-limit-period-ms", str(PERIOD_MS),
    ]).start()
    yield broker
    assert broker.stop() == 0, broker.log()


@pytest.fixture
def connect(broker):
    """Makes connections that are through with CONNECT."""
    made = []

    def make():
        made.append(RawConnection(broker.host, broker.port))
        made[-1].connect()
        return made[-1]

    yield make
    for connection in made:
        connection.close()


@pytest.mark.restart
def test_who_did_not_read_is_served_slowly_afterwards_and_nobody_else(broker, connect, topic):
    count = 24
    slow, other = connect(), connect()
    # A buffer of this size stays as it is; without, the kernel might take all there is to send.
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
    slow.subscribe(topic)
    other.producer(topic)
    for n in range(count):
        other.publish(bytes(MIB), sequence_id=n)

    # More than the kernel keeps for a peer that does not read.
    slow.flow(count)
    eventually(lambda: broker.throttled(FULL)[0] > 0, lambda: broker.http("/metrics"))
    assert broker.throttled(COOLDOWN) == (0, 0), "the cooldown begins when the peer has caught up"
    lookups(other, 4 * PERMITS)

    slow.messages(count)
    eventually(lambda: len(set(broker.throttled(FULL))) == 1, lambda: f"let go: {broker.throttled(FULL)}")
    began = time.monotonic()
    lookups(slow, 4 * PERMITS)
    # The last of them come three periods after the first; how much later than that, nobody knows.
    assert time.monotonic() - began >= 3 * PERIOD_MS / 1000 - 0.1
    eventually(lambda: broker.throttled(COOLDOWN)[0] >= 3, lambda: f"{broker.throttled(COOLDOWN)}")
    lookups(other, 4 * PERMITS)
    eventually(lambda: len(set(broker.throttled(COOLDOWN))) == 1, lambda: f"each pause ends: {broker.throttled(COOLDOWN)}")

    # PING is no request.
    pauses = broker.throttled(COOLDOWN)
    slow.write(frames.command_frame("PING") * (3 * PERMITS))
    for _ in range(3 * PERMITS):
        slow.expect("PONG")
    time.sleep(0.6)
    assert broker.throttled(COOLDOWN) == pauses


@pytest.mark.restart
def test_without_the_setting_there_is_no_cooldown(make_broker, topic):
    """The bound of 8 MiB of output holds in any case; what a consumer may have unwritten is far below it."""
    broker = make_broker(cores=1).start()
    with RawConnection(broker.host, broker.port) as slow, RawConnection(broker.host, broker.port) as other:
        slow.connect()
        other.connect()
        slow.subscribe(topic)
        other.producer(topic)
        for n in range(12):
            other.publish(bytes(MIB), sequence_id=n)
        slow.flow(12)
        lookups(other, 20)
        slow.messages(12)
        lookups(slow, 20)
        time.sleep(0.6)
        assert broker.throttled(COOLDOWN) == (0, 0) and broker.throttled(FULL) == (0, 0)
    assert broker.stop() == 0, broker.log()
