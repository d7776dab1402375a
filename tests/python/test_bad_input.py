"""Damaged and hostile input: it costs its own connection, and nobody else notices.

`VELA_BAD_FRAMES` is the number of mutated frames in all (default 100000), `VELA_BAD_SEED` the seed."""

import errno
import os
import random
import socket
import struct
import threading
import time

import pytest

from rawpulsar import MAX_TOTAL_SIZE, ConnectionClosed, RawConnection, batch_payload, command_frame, entry_bytes, send_frame
from rawpulsar.frames import base_command, frame
from rawpulsar.mutate import CONNECT, mutate, mutate_entry, seed_frames, wild
from waiting import LIMIT_SECONDS

FRAMES = int(os.environ.get("VELA_BAD_FRAMES", 100_000))
SEED = int(os.environ.get("VELA_BAD_SEED", 20_261_130))
MUTANT_TOPIC = "persistent://public/default/mutants"


class HealthyClients:
    """A raw connection and an official client that publish and consume all the time and check every message.

    The raw one sees what the official client would repair by itself: a closed connection."""

    def __init__(self, broker, make_client, topic):
        self.stopping = threading.Event()
        self.failures = []
        self.rounds = {"raw": 0, "official": 0}
        self.broker, self.topic = broker, topic
        self.client = make_client()
        self.threads = [
            threading.Thread(target=self._guard, args=(work,), daemon=True) for work in (self._raw, self._official)]
        for thread in self.threads:
            thread.start()

    def _guard(self, work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test, whatever it is
            self.failures.append(f"{work.__name__}: {error!r}")

    def _raw(self):
        with RawConnection(self.broker.host, self.broker.port) as connection:
            connection.connect()
            connection.producer(self.topic + "-raw")
            connection.subscribe(self.topic + "-raw", "s", "Exclusive")
            while not self.stopping.is_set():
                number = self.rounds["raw"]
                receipt = connection.publish(b"%d" % number, sequence_id=number)
                connection.flow(1)
                message = connection.expect("MESSAGE")
                assert (message.position, message.payload) == (receipt.position, b"%d" % number)
                connection.ack(message.position)
                self.rounds["raw"] += 1
                time.sleep(0.002)

    def _official(self):
        consumer = self.client.subscribe(self.topic + "-official", "s")
        producer = self.client.create_producer(self.topic + "-official")
        while not self.stopping.is_set():
            number = self.rounds["official"]
            producer.send(b"%d" % number)
            message = consumer.receive(60_000)
            assert message.data() == b"%d" % number
            consumer.acknowledge(message)
            self.rounds["official"] += 1
            time.sleep(0.002)

    def check(self):
        """They still work: nothing failed, and both make progress from here."""
        before = dict(self.rounds)
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self.failures and not all(self.rounds[who] > before[who] + 3 for who in before):
            assert time.monotonic() < deadline, f"a healthy client makes no progress: {before} -> {self.rounds}"
            time.sleep(0.01)
        assert self.failures == []

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(LIMIT_SECONDS)


@pytest.fixture
def healthy(broker, make_client, topic):
    """Healthy clients beside the test; they must not have noticed anything when it ends."""
    clients = HealthyClients(broker, make_client, topic)
    clients.check()
    yield clients
    try:
        clients.check()
    finally:
        clients.stop()
    assert clients.failures == []


def pour(broker, data, connect=True, abrupt=False):
    """Writes bytes over a connection of their own and ends it: by a half-close, after which the broker must read all that
    was sent and then close within the time limit, or by dropping it with answers unread, which resets it."""
    with socket.create_connection((broker.host, broker.port), timeout=LIMIT_SECONDS) as connection:
        try:
            connection.sendall((CONNECT if connect else b"") + data)
            if abrupt:
                return
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except TimeoutError:
            raise AssertionError("the broker kept a connection open that its client had ended") from None
        except OSError as error:
            # The broker was faster and closed or reset the connection.
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise


def test_random_bytes(broker, healthy):
    rng = random.Random(SEED)
    for size in [1, 3, 4, 7, 8, 9, 100, 5000, 200_000] * 6:
        pour(broker, rng.randbytes(size), connect=rng.random() < 0.5)


def test_frames_that_announce_more_than_is_allowed(broker, healthy, open_raw):
    for size in (MAX_TOTAL_SIZE + 1, 2**31 - 1, 2**31, 2**32 - 1):
        connection = open_raw()
        connection.connect()
        connection.write(struct.pack(">I", size) + b"x" * 10_000)
        connection.expect_closed()


def test_large_frames_that_never_end(broker, healthy, make_raw):
    """Each holds almost 5 MiB of an unfinished frame, then goes away."""
    whole = send_frame(entry_bytes(b"x", metadata=b"m" * 100) + b"y" * 5_000_000, producer_id=1, sequence_id=0, num_messages=1)
    connections = [make_raw() for _ in range(8)]
    for connection in connections:
        connection.write(whole[:-1])
    healthy.check()
    for connection in connections:
        connection.expect_silence(0.01)
        connection.close()


# Apache Pulsar 5.0.1 reads a number that is cut off at the end of its command on into what lies behind it in memory.
@pytest.mark.parametrize("cut", [pytest.param(1, marks=pytest.mark.vela_only), 4, 7, 11, 20])
def test_truncated_commands_with_right_sizes(broker, healthy, open_raw, cut):
    command = base_command("PRODUCER", {"topic": MUTANT_TOPIC, "producer_id": 1, "request_id": 1})[:-cut]
    connection = open_raw()
    connection.connect()
    connection.write(frame(command))
    connection.expect_closed()


@pytest.mark.parametrize("rest", [b"", b"\x0e", b"\x0e\x01", b"\x0e\x01\0\0"], ids=["empty", "half-a-magic", "magic", "cut-checksum"])
def test_sends_whose_entry_is_cut_close_the_connection(healthy, raw, topic, rest):
    raw.producer(topic)
    raw.write(frame(base_command("SEND", {"producer_id": 1, "sequence_id": 0, "num_messages": 1}), rest))
    raw.expect_closed()


WRONG_STATE = {
    "send without a producer": send_frame(entry_bytes(b"x"), producer_id=9, sequence_id=0, num_messages=1),
    "a message to the broker": frame(base_command("MESSAGE", {"consumer_id": 1, "message_id": {"ledgerId": 1, "entryId": 1}}), b"x"),
    "connect again": CONNECT,
    "stats of nobody": command_frame("CONSUMER_STATS", consumer_id=9, request_id=1),
    "success to the broker": command_frame("SUCCESS", request_id=1),
    "error to the broker": command_frame("ERROR", request_id=1, error="UnknownError", message="you are wrong"),
    "an unknown subscription type": command_frame(
        "SUBSCRIBE", topic=MUTANT_TOPIC, subscription="s", subType=9, consumer_id=1, request_id=1),
}


@pytest.mark.parametrize("name", WRONG_STATE)
def test_commands_in_the_wrong_state_close_the_connection(healthy, raw, name):
    raw.write(WRONG_STATE[name])
    raw.expect_closed()


def pour_into_open_session(broker, topic, data_for):
    """A connection with a producer and a consumer that are ready, then what `data_for(positions)` makes."""
    with RawConnection(broker.host, broker.port) as connection:
        connection.connect()
        connection.producer(topic)
        positions = [connection.publish(b"one").position, connection.publish_batch([b"a", b"b", b"c"]).position]
        connection.subscribe(topic, "mutants", "Shared")
        connection.flow(10)
        try:
            connection.write(data_for(positions))
            connection.socket.shutdown(socket.SHUT_WR)
            while True:
                connection.next()
        except (ConnectionClosed, OSError) as error:
            assert not isinstance(error, TimeoutError), "the broker kept a connection open that its client had ended"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_mutated_frames(broker, healthy, topic, part):
    """Damaged frames on fresh connections, and damaged frames, damaged entries and absurd values in ready sessions, until
    the broker or the script ends the connection. Every frame the broker answers with must be whole."""
    rng = random.Random(SEED * 10 + part)
    weighted = seed_frames(topic)
    weights, frames_ = [weight for weight, _ in weighted], [data for _, data in weighted]
    batch = batch_payload([b"a", b"bb", b"ccc"])
    entries = [
        entry_bytes(b"payload" * 5), entry_bytes(b"payload", "none"),
        entry_bytes(batch, num_messages_in_batch=3, highest_sequence_id=2, uncompressed_size=len(batch)),
    ]
    left = FRAMES // 4
    while left > 0:
        count = min(left, rng.randint(1, 30))
        left -= count

        def mutants(n):
            return b"".join(mutate(rng, data) for data in rng.choices(frames_, weights, k=n))

        if rng.random() < 0.5:
            pour(broker, mutants(count), connect=rng.random() < 0.9, abrupt=rng.random() < 0.1)
        else:
            def in_session(positions):
                # The frames that leave the connection open come first, or the later ones would never be read.
                mild = [
                    mutate_entry(rng, rng.choice(entries)) if rng.random() < 0.5 else wild(rng, positions)
                    for _ in range(count * 3 // 4)]
                return b"".join(mild) + mutants(count - len(mild))

            pour_into_open_session(broker, topic, in_session)
        assert healthy.failures == [], f"seed {SEED} part {part}, {left} frames before the end"


def test_a_client_that_reads_nothing(healthy, make_raw, broker, topic):
    """A consumer takes 32 MiB of permits and never reads its socket."""
    writer, sleeper = make_raw(), make_raw()
    writer.producer(topic)
    sleeper.subscribe(topic, "s", "Shared")
    sleeper.flow(1000)
    entry = entry_bytes(b"z" * 1_000_000, "none")
    for sequence in range(32):
        writer.write(send_frame(entry, producer_id=1, sequence_id=sequence, num_messages=1))
    for sequence in range(32):
        writer.expect("SEND_RECEIPT", sequence_id=sequence)
    healthy.check()
    assert len(sleeper.messages(32)) == 32


@pytest.mark.last
@pytest.mark.vela_only
def test_no_memory_is_retained_when_everybody_has_left(broker):
    """Runs last on the session's broker, so behind everything that was poured into it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        retained = broker.metric("vela_retained_bytes")
        if retained is None:
            pytest.skip("the broker publishes no vela_retained_bytes")
        if retained == 0:
            return
        assert time.monotonic() < deadline, f"{retained:.0f} bytes of inbound frames are still kept alive"
        time.sleep(0.1)
