"""Faults that users of Pulsar and its relatives reported in public; each test names the report it comes from.

The steps are ours and small. What the reports say about limits and rates that are not served here is left out."""

import collections
import random
import socket
import struct
import threading
import time
from pathlib import Path

import pulsar
import pytest

from publishing import EARLIEST, EXCLUSIVE, SHARED, numbers, publish, take
from rawpulsar import ConnectionClosed, RawConnection, batch_payload, command_frame, entry_bytes, send_frame
from waiting import LIMIT_SECONDS, drain, eventually, gather


def batches(raw, topic, count, size):
    raw.producer(topic, producer_id=50)
    return [raw.publish_batch([b"x"] * size, sequence_id=n * size, producer_id=50).position for n in range(count)]


class TestPermitsStayExact:
    def test_over_rounds_of_half_acked_batches(self, raw, topic):
        """apache/pulsar#22091: each redelivery of a half-acked batch handed out more credit."""
        (ledger, entry), = batches(raw, topic, 1, 100)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(1000)
        raw.expect("MESSAGE")
        left = 100
        for round_ in range(9):
            left -= 10
            low = ((1 << left) - 1) & (2**64 - 1)
            high = (1 << max(0, left - 64)) - 1
            signed = [word - 2**64 if word >> 63 else word for word in (low, high)]
            raw.ack({"ledgerId": ledger, "entryId": entry, "ack_set": signed, "batch_size": 100})
            raw.flow(10)
            before = raw.stats()["availablePermits"]
            raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
            raw.expect("MESSAGE")
            assert raw.stats()["availablePermits"] == before - left
            raw.flow(left)
        assert raw.stats()["availablePermits"] == 1000 - left
        assert raw.stats()["unackedMessages"] == left

    def test_when_consumers_come_flow_and_go(self, raw, make_raw, topic):
        """apache/pulsar#26416: credit not yet booked was charged when its consumer left; the subscription slowed down for good."""
        raw.producer(topic, producer_id=50)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(1000)
        other = make_raw()
        for number in range(300):
            other.write(
                command_frame("SUBSCRIBE", topic=topic, subscription="s", subType="Shared", consumer_id=number, request_id=number)
                + command_frame("FLOW", consumer_id=number, messagePermits=1000)
                + command_frame("CLOSE_CONSUMER", consumer_id=number, request_id=1000 + number))
            while other.next().get("request_id") != 1000 + number:
                pass
        other.close()
        assert raw.stats()["availablePermits"] == 1000
        for n in range(100):
            raw.publish(b"%d" % n, sequence_id=n, producer_id=50) if n < 1 else raw.write(
                send_frame(entry_bytes(b"%d" % n, sequence_id=n), producer_id=50, sequence_id=n, num_messages=1))
        got = []
        while len(got) < 100:
            frame = raw.next()
            if frame.type == "MESSAGE":
                got.append(int(frame.payload))
        assert got == list(range(100))
        assert raw.stats()["availablePermits"] == 900

    @pytest.mark.parametrize("queue", [10, 100, 1000])
    def test_after_a_seek_of_a_full_queue(self, client, topic, queue):
        """apache/pulsar#5278: the client forgets its queue on a seek, so must the broker."""
        publish(client, topic, numbers(300))
        consumer = client.subscribe(topic, "s", receiver_queue_size=queue, initial_position=EARLIEST)
        for round_ in range(5):
            time.sleep(0.05)
            consumer.seek(pulsar.MessageId.earliest if round_ % 2 else 0)
        assert [m.data() for m in take(consumer, 300)] == numbers(300)

    def test_of_the_others_when_one_is_in_debt(self, make_client, topic):
        """apache/pulsar#6054: a consumer below zero starved those with credit."""
        slow, *healthy = [make_client().subscribe(topic, "s", SHARED, receiver_queue_size=10) for _ in range(3)]
        total = 5000
        publish(make_client(), topic, numbers(total), batching_enabled=True, batching_max_messages=100)
        # The slow one has room for ten messages and for the batch that goes beyond.
        first = [m.data() for messages in gather(healthy, total - 110) for m in messages]
        slow.close()
        gather(healthy, lambda rest: set(first + rest) == set(numbers(total)))

    def test_when_the_same_consumer_subscribes_twice(self, raw, make_raw, topic):
        """apache/pulsar#20591: a second SUBSCRIBE of one consumer is the first one still; its FLOWs add up, messages are not lost."""
        raw.producer(topic, producer_id=50)
        for n in range(60):
            raw.publish(b"%d" % n, sequence_id=n, producer_id=50)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(20)
        assert len(raw.messages(20)) == 20
        raw.subscribe(topic, "s", "Shared")
        raw.expect_silence(0.1)
        raw.flow(20)
        assert [int(m.payload) for m in raw.messages(20)] == list(range(20, 40))
        assert (raw.stats()["availablePermits"], raw.stats()["unackedMessages"]) == (0, 40)
        other = make_raw()
        other.subscribe(topic, "s", "Shared")
        other.flow(100)
        raw.close()
        assert sorted(int(m.payload) for m in other.messages(60)) == list(range(60))


class TestBatchesAndAcks:
    @pytest.mark.parametrize("index_acks", [True, False])
    def test_a_nack_brings_back_no_acked_neighbour(self, client, topic, index_acks):
        """apache/pulsar#5969."""
        consumer = client.subscribe(
            topic, "s", SHARED, negative_ack_redelivery_delay_ms=300, batch_index_ack_enabled=index_acks)
        publish(client, topic, numbers(100), batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1000)
        for message in take(consumer, 100, ack=False):
            number = int(message.data())
            if number % 20 == 0:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
        nacked = {b"%d" % n for n in range(0, 100, 20)}
        again, end = [], time.monotonic() + LIMIT_SECONDS
        while True:
            seen = {m.data() for m in again}
            try:
                again.append(consumer.receive(1500))
                consumer.acknowledge(again[-1])
            except pulsar.Timeout:
                if nacked <= seen:
                    break
                assert time.monotonic() < end, f"only {seen} of {nacked} came again"
        if index_acks:
            assert sorted(m.data() for m in again) == sorted(nacked)
            assert {m.redelivery_count() for m in again} == {1}
        else:
            # Whole batches come again, but none that was fully acked.
            assert all(int(payload) // 10 % 2 == 0 for payload in seen)
        consumer.close()
        assert drain(client.subscribe(topic, "s", SHARED), 0, 300) == []

    def test_each_round_brings_only_what_is_left_of_a_batch(self, raw, topic):
        """apache/pulsar#26135: where the broker names the wrong rest, an acked message becomes a dead letter. (The C++ client
        makes dead letters of whole batches, so the rounds are looked at here.)"""
        (ledger, entry), = batches(raw, topic, 1, 10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        left = (1 << 10) - 1
        for acked in (range(5), range(5, 8), (8,)):
            left &= ~sum(1 << n for n in acked)
            raw.ack({"ledgerId": ledger, "entryId": entry, "ack_set": [left], "batch_size": 10})
            raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=[{"ledgerId": ledger, "entryId": entry}])
            message = raw.expect("MESSAGE")
            assert (message["ack_set"], message["redelivery_count"]) == ([left], 1)
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=[{"ledgerId": ledger, "entryId": entry}])
        assert raw.expect("MESSAGE")["redelivery_count"] == 2

    def test_each_message_is_a_dead_letter_once(self, make_client, topic):
        """apache/pulsar#6960: one message came twice into the dead letter topic."""
        dead = make_client().subscribe(topic + "-dead", "d")
        consumers = [make_client().subscribe(
            topic, "s", SHARED, receiver_queue_size=10, negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, topic + "-dead", "keep")) for _ in range(3)]
        publish(make_client(), topic, numbers(30))
        seen, stop = collections.Counter(), threading.Event()

        def nack(consumer):
            while not stop.is_set():
                try:
                    message = consumer.receive(100)
                except pulsar.Timeout:
                    continue
                seen[message.data()] += 1
                consumer.negative_acknowledge(message)

        threads = [threading.Thread(target=nack, args=(consumer,)) for consumer in consumers]
        for thread in threads:
            thread.start()
        try:
            letters = [m.data() for m in take(dead, 30)]
            letters += drain(dead, 0, 700)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert sorted(letters) == sorted(numbers(30))
        assert max(seen.values()) <= 4


class TestNobodyIsForgotten:
    def test_a_consumer_that_vanishes_while_it_subscribes(self, broker, make_raw, topic):
        """apache/pulsar#13196: it stayed as a ghost, Exclusive was busy for ever."""
        rng = random.Random(13196)
        before = broker.metric("vela_consumers")
        for round_ in range(60):
            gone = RawConnection(broker.host, broker.port)
            gone.connect()
            gone.send("SUBSCRIBE", topic=topic, subscription="s", subType="Exclusive", consumer_id=1, request_id=1)
            if round_ % 3 == 1:
                time.sleep(rng.random() * 0.004)
            if round_ % 3 == 2:
                gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
        raw = make_raw()
        raw.subscribe(topic, "s")
        if before is not None:
            # The one that is there now, and no ghosts.
            eventually(lambda: broker.metric("vela_consumers") <= before + 1, lambda: f"{broker.metric('vela_consumers')}, before {before}")
        raw.request("UNSUBSCRIBE", consumer_id=1)

    def test_messages_of_vanished_shared_consumers_come_to_those_who_stay(self, broker, raw, topic):
        raw.producer(topic, producer_id=50)
        for n in range(50):
            raw.publish(b"%d" % n, sequence_id=n, producer_id=50)
        for round_ in range(40):
            gone = RawConnection(broker.host, broker.port)
            gone.connect()
            gone.subscribe(topic, "s", "Shared")
            gone.flow(100)
            if round_ % 2:
                gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        assert sorted(int(m.payload) for m in raw.messages(50)) == list(range(50))

    def test_every_send_of_many_producers_is_answered_once(self, raw, topic):
        """apache/pulsar#5770."""
        for number in range(8):
            raw.producer(f"{topic}-{number}", producer_id=number)
        body = batch_payload([b"x"] * 5)
        sent = set()
        for sequence in range(0, 200, 5):
            frames = b""
            for number in range(8):
                entry = entry_bytes(body, sequence_id=sequence, num_messages_in_batch=5, uncompressed_size=len(body))
                frames += send_frame(entry, producer_id=number, sequence_id=sequence, num_messages=5)
                sent.add((number, sequence))
            raw.write(frames)
        last = {}
        while sent:
            receipt = raw.expect("SEND_RECEIPT")
            key = receipt["producer_id"], receipt["sequence_id"]
            sent.remove(key)
            assert last.get(key[0], -1) < key[1]
            last[key[0]] = key[1]
        raw.expect_silence(0.1)

    def test_a_send_behind_a_close_is_not_stored_and_the_client_learns_it(self, raw, make_raw, topic):
        """Apache Pulsar refuses it while the close waits for receipts and closes the connection afterwards; Vela always closes it."""
        raw.producer(topic)
        raw.write(
            send_frame(entry_bytes(b"kept"), producer_id=1, sequence_id=0, num_messages=1)
            + command_frame("CLOSE_PRODUCER", producer_id=1, request_id=5)
            + send_frame(entry_bytes(b"late", sequence_id=1), producer_id=1, sequence_id=1, num_messages=1))
        refused = False
        while not refused:
            try:
                frame = raw.next()
            except ConnectionClosed:
                refused = True
                continue
            if frame.type == "SEND_ERROR":
                assert (frame["sequence_id"], frame["error"]) == (1, "PersistenceError")
                refused = True
            else:
                assert frame.type == "SUCCESS" or frame["sequence_id"] == 0
        other = make_raw()
        other.subscribe(topic)
        other.flow(10)
        assert other.expect("MESSAGE").payload == b"kept"
        other.expect_silence(0.1)


class TestSizes:
    @pytest.mark.parametrize("size", [-100, -1, 0, 1])
    def test_a_message_at_the_limit_does_not_poison_its_producer(self, make_client, topic, size):
        """apache/pulsar#7115."""
        client = make_client()
        producer = client.create_producer(topic, send_timeout_millis=30_000)
        bystander = client.create_producer(topic + "-other")
        try:
            producer.send(b"x" * (5 * 1024 * 1024 + size))
        except pulsar.PulsarException:
            pass
        # A poisoned producer sends what is too large again and again, and this runs out of time behind it.
        producer.send(b"small")
        bystander.send(b"small")

    def test_properties_larger_than_a_message(self, make_client, topic):
        client = make_client()
        producer = client.create_producer(topic, send_timeout_millis=3000)
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"x", properties={"k": "v" * (10 * 1024 * 1024)})
        client.create_producer(topic + "-other").send(b"small")


class TestSeeking:
    @pytest.mark.parametrize("inclusive", [True, False])
    def test_into_a_batch(self, client, topic, inclusive):
        """apache/pulsar#11825: earlier messages of the batch came."""
        ids = publish(client, topic, numbers(10), batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1000)
        consumer = client.subscribe(
            topic, "s", receiver_queue_size=100, batch_index_ack_enabled=True, start_message_id_inclusive=inclusive)
        for _ in range(15):
            consumer.seek(ids[b"6"])
            expected = numbers(4, 6) if inclusive else numbers(3, 7)
            assert [m.data() for m in take(consumer, len(expected), ack=False)] == expected

    def test_many_times_without_being_busy(self, client, topic):
        """apache/pulsar#23163: the consumer fenced itself out."""
        ids = publish(client, topic, numbers(200))
        consumer = client.subscribe(topic, "s", receiver_queue_size=100, start_message_id_inclusive=True)
        for at in range(0, 200, 10):
            consumer.seek(ids[b"%d" % at])
            assert consumer.receive(60_000).data() == b"%d" % at

    def test_of_two_consumers_at_once_leaves_all_alive(self, make_client, topic):
        publish(make_client(), topic, numbers(50))
        consumers = [make_client().subscribe(topic, "s", SHARED, initial_position=EARLIEST) for _ in range(3)]

        def seek(consumer):
            try:
                consumer.seek(pulsar.MessageId.earliest)
            except pulsar.PulsarException:
                pass

        threads = [threading.Thread(target=seek, args=(consumer,)) for consumer in consumers[:2]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * LIMIT_SECONDS)
            assert not thread.is_alive(), "a seek hangs"
        publish(make_client(), topic, numbers(300, 1000))
        gather(consumers, lambda got: set(numbers(300, 1000)) <= set(got))
        consumers[2].close()
        consumers[1].close()
        publish(make_client(), topic, [b"end"])
        gather(consumers[:1], lambda got: b"end" in got)


class TestReadersAtTheEnd:
    """apache/pulsar#4912, #9330, #10483."""

    @pytest.mark.parametrize("inclusive", [True, False])
    @pytest.mark.parametrize("count, batched", [(10, False), (10, True), (1, False), (0, False)])
    def test_of_the_latest(self, client, topic, count, batched, inclusive):
        if count:
            publish(client, topic, numbers(count), batching_enabled=batched, batching_max_messages=max(2, count), batching_max_publish_delay_ms=1000)
        reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=inclusive)
        if inclusive and count:
            assert reader.has_message_available()
            assert reader.read_next(60_000).data() == b"%d" % (count - 1)
        assert not reader.has_message_available()
        publish(client, topic, [b"new"])
        assert reader.has_message_available()
        assert reader.read_next(60_000).data() == b"new"

    @pytest.mark.parametrize("inclusive", [True, False])
    @pytest.mark.parametrize("batched", [True, False])
    def test_of_the_last_id(self, client, topic, batched, inclusive):
        ids = publish(client, topic, numbers(10), batching_enabled=batched, batching_max_messages=10, batching_max_publish_delay_ms=1000)
        reader = client.create_reader(topic, ids[b"9"], start_message_id_inclusive=inclusive)
        assert reader.has_message_available() is inclusive
        if inclusive:
            assert reader.read_next(60_000).data() == b"9"
        publish(client, topic, [b"new"])
        assert reader.read_next(60_000).data() == b"new"


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE], ids=str)
def test_damaged_messages_between_good_ones_do_not_take_a_consumer_down(raw, client, topic, kind):
    """apache/pulsar#21961."""
    raw.producer(topic)
    bad = [
        entry_bytes(b"x", "bad"), entry_bytes(b"x", metadata=b"\xff\xff\xff"), entry_bytes(b"", "none", metadata=b"")[:-4] + b"\0\0\xff\xff",
        entry_bytes(b"y", "none", metadata=b"\x08\x01"),
    ]
    for n in range(12):
        raw.publish(b"%d" % n, sequence_id=2 * n)
        raw.write(send_frame(bad[n % 4], producer_id=1, sequence_id=2 * n + 1, num_messages=1))
        assert raw.next().type == ("SEND_ERROR" if n % 4 == 0 else "SEND_RECEIPT")
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    assert [m.data() for m in take(consumer, 12)] == numbers(12)
    assert drain(consumer, 0, 300) == []


def test_a_batch_whose_inner_sizes_are_wrong_costs_itself_only(raw, client, topic):
    raw.producer(topic)
    raw.publish(b"before")
    body = struct.pack(">I", 4) + b"\x18\xff\xff\x03" + b"short"
    raw.write(send_frame(
        entry_bytes(body, sequence_id=1, num_messages_in_batch=3, uncompressed_size=len(body)), producer_id=1, sequence_id=1, num_messages=3))
    raw.expect("SEND_RECEIPT")
    raw.publish(b"after", sequence_id=2)
    raw.subscribe(topic, "s", "Shared")
    raw.flow(10)
    assert [m.payload for m in raw.messages(3)] == [b"before", body, b"after"]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_redelivery_of_chosen_ids(raw, topic, kind):
    """apache/pulsar#5004: Shared brings exactly the ids asked for, Exclusive everything from the first unacked one."""
    raw.producer(topic, producer_id=50)
    positions = [raw.publish(b"%d" % n, sequence_id=n, producer_id=50).position for n in range(100)]
    raw.subscribe(topic, "s", kind)
    raw.flow(300)
    raw.messages(100)
    raw.ack(*positions[:90])
    ids = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in positions[91:96]]
    raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=ids)
    expected = range(91, 96) if kind == "Shared" else range(90, 100)
    assert [int(m.payload) for m in raw.messages(len(expected))] == list(expected)
    raw.expect_silence(0.1)


@pytest.mark.restart
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_acks_with_many_holes_and_parts_of_batches_survive_a_restart(make_broker, topic, kill):
    """apache/pulsar#25540: beyond a limit the ranges were only in memory."""
    total = 4000
    broker = make_broker()
    broker.start()
    with RawConnection(broker.host, broker.port) as raw:
        raw.connect()
        raw.producer(topic, producer_id=50)
        raw.write(b"".join(
            send_frame(entry_bytes(b"%d" % n, sequence_id=n), producer_id=50, sequence_id=n, num_messages=1) for n in range(total)))
        positions = [raw.expect("SEND_RECEIPT", sequence_id=n).position for n in range(total)]
        batch = raw.publish_batch([b"x"] * 70, sequence_id=total, producer_id=50).position
        raw.subscribe(topic, "s", "Shared")
        raw.ack(*positions[::2])
        raw.ack({"ledgerId": batch[0], "entryId": batch[1], "ack_set": [-2, 3], "batch_size": 70})
    if kill:
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    with RawConnection(broker.host, broker.port) as raw:
        raw.connect()
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10_000)
        assert [int(m.payload) for m in raw.messages(total // 2)] == list(range(1, total, 2))
        last = raw.expect("MESSAGE")
        assert (last.position, last["ack_set"]) == (batch, [-2, 3])
        raw.expect_silence(0.1)


def test_flow_for_an_unknown_consumer_and_too_much_of_it_touch_nobody_else(raw, topic):
    """apache/pulsar#10506, #10507. (FLOW of 0 closes the connection, as Apache Pulsar does: test_dispatch.py.)"""
    raw.subscribe(topic, "one", "Shared", consumer_id=1)
    raw.subscribe(topic, "two", "Shared", consumer_id=2)
    raw.producer(topic)
    raw.flow(5, consumer_id=99)
    for _ in range(3):
        raw.flow(2**31 - 1, consumer_id=2)
    raw.flow(10, consumer_id=1)
    raw.expect_alive()
    got = collections.Counter()
    for number in range(20):
        entry = entry_bytes(b"%d" % number, sequence_id=number)
        raw.write(send_frame(entry, producer_id=1, sequence_id=number, num_messages=1))
    while got["SEND_RECEIPT"] < 20 or got[1] < 10 or got[2] < 20:
        frame = raw.next()
        got[frame["consumer_id"] if frame.type == "MESSAGE" else frame.type] += 1
    raw.expect_silence(0.2)
    assert (got[1], got[2]) == (10, 20)
    # (One that overflowed would be negative.)
    assert raw.stats(1)["availablePermits"] == 0
    assert raw.stats(2)["availablePermits"] > 0


@pytest.mark.restart
def test_idle_half_open_and_reset_connections_stop_neither_old_clients_nor_new_ones(make_broker, topic):
    """apache/pulsar#14826, #22894: out of file descriptors the broker accepted nobody any more, even after the flood."""
    process = make_broker()
    process.command = ["sh", "-c", 'ulimit -n 400; exec "$@"', "sh", *process.command]
    process.start()
    files = Path(f"/proc/{process.process.pid}/fd")

    with RawConnection(process.host, process.port) as producer:
        producer.connect()
        producer.producer(topic)
        producer.publish(b"before")
        base = len(list(files.iterdir()))

        def works_again():
            """The old producer does all the time, a new client a moment later."""
            producer.publish(b"during")
            end = time.monotonic() + LIMIT_SECONDS
            while True:
                try:
                    with RawConnection(process.host, process.port, timeout=10) as fresh:
                        fresh.connect()
                        return
                except (AssertionError, ConnectionClosed, OSError):
                    assert time.monotonic() < end, "nobody can connect after the flood"
                    time.sleep(0.05)

        for connects in (False, True):
            flood = []
            for _ in range(600):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex((process.host, process.port))
                flood.append(sock)
            if connects:
                for sock in flood[:300]:
                    try:
                        sock.send(command_frame("CONNECT", client_version="silent", protocol_version=21))
                    except OSError:
                        pass
            for number in range(10):
                producer.publish(b"%d" % number)
                time.sleep(0.02)
            assert len(list(files.iterdir())) <= 400
            for sock in flood:
                sock.close()
            works_again()
        for _ in range(2000):
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.connect_ex((process.host, process.port))
        works_again()
        eventually(lambda: len(list(files.iterdir())) <= base + 10, lambda: (len(list(files.iterdir())), base))
    assert process.stop() == 0


@pytest.mark.restart
@pytest.mark.parametrize("zeros", [1, 100, 4096, 10_000])
def test_zeros_behind_the_log_swallow_nothing_that_is_written_next(make_broker, topic, zeros):
    """cloudamqp/lavinmq#387: what a session wrote behind a zero-filled tail was lost by the next start."""
    broker = make_broker()
    data = broker.command[broker.command.index("--data-dir") + 1]
    positions = []
    for session in range(3):
        broker.start()
        with RawConnection(broker.host, broker.port) as raw:
            raw.connect()
            raw.subscribe(topic, "s", "Shared")
            if session == 2:
                raw.flow(1000)
                expected = [n for n in range(100) if n % 50 >= 10]
                assert [int(m.payload) for m in raw.messages(len(expected))] == expected
                raw.expect_silence(0.1)
                break
            raw.producer(topic, producer_id=50)
            numbers_ = range(50 * session, 50 * session + 50)
            positions += [raw.publish(b"%d" % n, sequence_id=n, producer_id=50).position for n in numbers_]
            raw.ack(*positions[50 * session : 50 * session + 10])
        broker.kill()
        segments = [path for path in Path(data).rglob("*") if path.is_file() and path.suffix in (".log", ".seg", ".wal")]
        assert segments, f"no log files in {sorted(Path(data).rglob('*'))}"
        with open(max(segments, key=lambda path: path.stat().st_mtime), "ab") as log:
            log.write(bytes(zeros))


def test_a_prefetched_message_that_nobody_took_was_not_redelivered(make_client, topic):
    """apache/pulsar#17060."""
    publish(make_client(), topic, numbers(50))
    first = make_client().subscribe(topic, "s", SHARED, receiver_queue_size=100, initial_position=EARLIEST)
    time.sleep(0.3)
    first.close()
    messages = take(make_client().subscribe(topic, "s", SHARED), 50)
    assert {m.redelivery_count() for m in messages} == {0}
