"""Key_Shared: who gets a key, what waits while it moves, and what is refused."""

import base64
import collections
import random
import threading
import time

import pulsar
import pytest

from keyhash import Ring, keys_of, murmur3, range_slot, ring_slot
from rawpulsar import UnexpectedFrame, batch_payload, entry_bytes, send_frame

EARLIEST = pulsar.InitialPosition.Earliest


def test_hashes_are_those_of_the_facts():
    assert murmur3(b"key1") == 462881061 and murmur3(b"hello") == 0x248BFA47
    assert (range_slot(b"key1"), ring_slot(b"key1"), range_slot(b"hello"), ring_slot(b"hello")) == (293, 7357, 64071, 7892)


@pytest.fixture
def publish(make_raw, topic):
    """Publishes one message: publish(b"text", key=b"key"), or other fields of its metadata. Answers its position."""
    connection = make_raw()
    connection.producer(topic)
    sequence = iter(range(0, 1_000_000))

    def publish(payload, key=None, **metadata):
        if key is not None:
            metadata["partition_key"] = key.decode()
        return connection.publish(payload, sequence_id=next(sequence), **metadata).position

    return publish


@pytest.fixture
def join(make_raw, topic):
    """A Key_Shared consumer with this name on a connection of its own, or as one more on another's; credit only if asked for."""

    others = iter(range(2, 100))

    def join(name="", permits=0, ranges=None, out_of_order=None, mode=None, on=None, **fields):
        connection = on or make_raw()
        if on:
            fields["consumer_id"] = next(others)
        if ranges is not None or out_of_order is not None or mode:
            meta = {"keySharedMode": mode or ("AUTO_SPLIT" if ranges is None else "STICKY")}
            if ranges is not None:
                meta["hashRanges"] = [{"start": first, "end": last} for first, last in ranges]
            if out_of_order is not None:
                meta["allowOutOfOrderDelivery"] = out_of_order
            fields["keySharedMeta"] = meta
        connection.subscribe(topic, "s", "Key_Shared", consumer_name=name, **fields)
        if permits:
            connection.flow(permits)
        return connection

    return join


def texts(consumer, count):
    return [frame.payload for frame in consumer.messages(count)]


def refused(join, error, **fields):
    with pytest.raises(UnexpectedFrame, match=error):
        join(**fields)


class TestWhoGetsAKey:
    def test_the_ring_gives_each_key_to_its_consumer(self, join, publish):
        names = ["red", "green", "blue"]
        ring = Ring(*names)
        consumers = {name: join(name, 1000) for name in names}
        keys = [b"key-%d" % n for n in range(60)]
        for number in range(180):
            publish(b"%d" % number, keys[number % 60])
        for name, consumer in consumers.items():
            mine = [b"%d" % n for n in range(180) if ring.owner(keys[n % 60]) == name]
            assert len(mine) > 15
            assert texts(consumer, len(mine)) == mine
            consumer.expect_silence(0.1)

    def test_the_ordering_key_counts_first_then_the_partition_key_then_producer_and_number(self, join, publish):
        ring = Ring("red", "green")
        mine = keys_of(ring, "red", 4)
        others = keys_of(ring, "green", 4)
        red, green = join("red", 100), join("green", 100)
        expected = {"red": [], "green": []}

        def send(text, owner, **metadata):
            expected[owner].append(text)
            publish(text, **metadata)

        send(b"partition key", "red", key=mine[0])
        send(b"ordering key", "red", key=others[0], ordering_key=mine[1])
        send(b"ordering key 2", "green", key=mine[0], ordering_key=others[1])
        encoded = base64.b64encode(mine[2])
        send(b"base64", "red", key=encoded, partition_key_b64_encoded=True)
        send(b"not base64", ring.owner(encoded), key=encoded)
        for number in range(5, 15):
            send(b"no key %d" % number, ring.owner(b"raw-%d" % number))
        assert texts(red, len(expected["red"])) == expected["red"]
        assert texts(green, len(expected["green"])) == expected["green"]

    def test_a_batch_goes_where_its_own_key_says(self, join, make_raw, topic):
        ring = Ring("red", "green")
        red, green = join("red", 100), join("green", 100)
        producer = make_raw()
        producer.producer(topic)
        for number, key in enumerate(keys_of(ring, "red", 2) + keys_of(ring, "green", 2)):
            body = batch_payload([b"a", b"b", b"c"], number * 3)
            entry = entry_bytes(
                body, sequence_id=number * 3, num_messages_in_batch=3, uncompressed_size=len(body), partition_key=key.decode())
            producer.write(send_frame(entry, producer_id=1, sequence_id=number * 3, num_messages=3))
            producer.expect("SEND_RECEIPT")
        for consumer in (red, green):
            assert [frame.entry[1]["num_messages_in_batch"] for frame in consumer.messages(2)] == [3, 3]
            assert consumer.stats()["availablePermits"] == 94
            assert consumer.stats()["unackedMessages"] == 6

    def test_equal_names_and_no_names_share_keys_too(self, join, publish):
        consumers = [join("", 1000) for _ in range(4)]
        for number in range(400):
            publish(b"%d" % number, b"key-%d" % number)
        got = []
        for consumer in consumers:
            mine = []
            while True:
                try:
                    mine.append(consumer.next(0.5 if mine else 5).payload)
                except TimeoutError:
                    break
            assert len(mine) > 40
            got += mine
        assert sorted(got, key=int) == [b"%d" % n for n in range(400)]

    def test_a_single_consumer_gets_everything_in_order(self, join, publish):
        for number in range(50):
            publish(b"%d" % number, b"key-%d" % (number % 7))
        assert texts(join("one", 100), 50) == [b"%d" % n for n in range(50)]

    def test_a_key_based_batcher_keeps_keys_apart(self, make_client, topic):
        consumers = [
            make_client().subscribe(topic, "s", pulsar.ConsumerType.KeyShared, initial_position=EARLIEST) for _ in range(3)]
        producer = make_client().create_producer(
            topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_messages=100,
            batching_max_publish_delay_ms=50)
        for number in range(600):
            producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"key-{number % 30}")
        producer.flush()
        owner, seen = {}, collections.defaultdict(list)
        for index, message in receive_all(consumers, 600):
            assert owner.setdefault(message.partition_key(), index) == index
            seen[message.partition_key()].append(int(message.data()))
        assert len(seen) == 30 and all(numbers == sorted(numbers) for numbers in seen.values())


def receive_all(consumers, count, seconds=30):
    """(consumer's index, message) of `count` messages of several official consumers, each acknowledged."""
    got, deadline = [], time.monotonic() + seconds
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} messages came"
        for index, consumer in enumerate(consumers):
            try:
                while True:
                    message = consumer.receive(20)
                    consumer.acknowledge(message)
                    got.append((index, message))
            except pulsar.Timeout:
                pass
    return got


class TestStickyRanges:
    """K 53."""

    KEYS = [b"key-%d" % n for n in range(400)]

    def test_overlapping_ranges_are_refused_and_others_are_not(self, join):
        holder = join(ranges=[(0, 99)])
        for ranges in ([(50, 150)], [(99, 99)], [(200, 300), (0, 0)]):
            # On the holder's own connection: that one has to be asked for a sign of life, and answers here.
            refused(join, "ConsumerAssignError", ranges=ranges, on=holder)
        join(ranges=[(100, 150)])

    @pytest.mark.parametrize("ranges", [[], [(5, 4)], [(0, 10), (10, 20)]])
    def test_ranges_that_make_no_sense_are_refused(self, join, ranges):
        refused(join, "ConsumerAssignError", ranges=ranges)

    def test_ranges_beyond_the_last_hash_are_accepted(self, join):
        holder = join(ranges=[(65_000, 70_000)])
        refused(join, "ConsumerAssignError", ranges=[(69_000, 69_001)], on=holder)

    def test_a_key_that_nobody_covers_waits_until_somebody_does(self, join, publish):
        low = [key for key in self.KEYS if range_slot(key) < 30_000]
        high = [key for key in self.KEYS if range_slot(key) >= 30_000]
        first = join(ranges=[(0, 29_999)], permits=1000)
        for low_key, high_key in zip(low[:20], high[:20]):
            publish(low_key, low_key)
            publish(high_key, high_key)
        assert texts(first, 20) == low[:20]
        first.expect_silence(0.2)
        second = join(ranges=[(30_000, 65_535)], permits=1000)
        assert texts(second, 20) == high[:20]
        first.expect_silence(0.1)

    def test_a_range_is_free_when_its_holder_has_left(self, join, publish):
        first = join(ranges=[(0, 65_535)], permits=2)
        for number in range(4):
            publish(b"%d" % number, b"key")
        assert texts(first, 2) == [b"0", b"1"]
        refused(join, "ConsumerAssignError", ranges=[(0, 65_535)], on=first)
        first.request("CLOSE_CONSUMER", consumer_id=1)
        second = join(ranges=[(0, 65_535)], permits=100)
        assert texts(second, 4) == [b"0", b"1", b"2", b"3"]


class TestWhoMayJoin:
    def test_all_consumers_have_one_mode(self, join):
        join("a")
        refused(join, "ConsumerBusy", ranges=[(0, 99)])
        join("b", mode="AUTO_SPLIT")

    def test_all_consumers_have_one_opinion_on_order(self, join):
        join("a", out_of_order=True)
        refused(join, "ConsumerBusy", name="b")
        refused(join, "ConsumerBusy", name="b", out_of_order=False)
        join("b", out_of_order=True)

    @pytest.mark.parametrize("other", ["Shared", "Exclusive", "Failover"])
    def test_types_do_not_mix(self, join, raw, topic, other):
        first = join("a")
        with pytest.raises(UnexpectedFrame, match="ConsumerBusy"):
            raw.subscribe(topic, "s", other)
        first.request("CLOSE_CONSUMER", consumer_id=1)
        raw.subscribe(topic, "s", other)
        refused(join, "ConsumerBusy", name="b")

    def test_the_next_first_consumer_may_choose_anew(self, join, publish):
        publish(b"0", b"key")
        first = join("a", 10)
        assert texts(first, 1) == [b"0"]
        first.request("CLOSE_CONSUMER", consumer_id=1)
        second = join(ranges=[(0, 65_535)], permits=10)
        assert texts(second, 1) == [b"0"]


class TestAKeyThatMoves:
    """K 52: a key goes to its new consumer when the old one has nothing of it any more."""

    @pytest.fixture
    def keys(self):
        """A key that moves from "old" to "new" when that one joins, and one that stays."""
        ring = Ring("old", "new")
        return keys_of(ring, "new", 1)[0], keys_of(ring, "old", 1)[0]

    @pytest.fixture
    def moved(self, join, publish, keys):
        """old holds two messages of the key that moves; new has joined; two more of it and one of the other were published."""
        moves, stays = keys
        old = join("old", 1000)
        publish(b"0", moves)
        publish(b"1", moves)
        held = old.messages(2)
        new = join("new", 1000)
        publish(b"2", moves)
        publish(b"stays", stays)
        publish(b"3", moves)
        assert texts(old, 1) == [b"stays"]
        new.expect_silence(0.3)
        return old, new, held

    def test_waits_until_all_is_acknowledged(self, moved):
        old, new, held = moved
        old.ack(held[0].position)
        new.expect_silence(0.2)
        old.ack(held[1].position)
        assert texts(new, 2) == [b"2", b"3"]
        old.expect_silence(0.1)

    def test_goes_on_in_order_when_the_old_consumer_leaves(self, moved):
        old, new, _ = moved
        old.close()
        frames = new.messages(5)
        of_key = [frame.payload for frame in frames if frame.payload != b"stays"]
        assert of_key == [b"0", b"1", b"2", b"3"]
        assert all(not frame.get("redelivery_count") for frame in frames)

    def test_goes_on_when_the_old_consumer_gives_everything_back(self, moved):
        old, new, held = moved
        ids = [frame["message_id"] for frame in held]
        old.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=ids)
        frames = new.messages(4)
        assert sorted(frame.payload for frame in frames) == [b"0", b"1", b"2", b"3"]
        counts = {frame.payload: frame.get("redelivery_count", 0) for frame in frames}
        assert counts == {b"0": 1, b"1": 1, b"2": 0, b"3": 0}

    def test_may_be_acknowledged_by_anybody(self, moved):
        _, new, held = moved
        new.send("ACK", consumer_id=1, ack_type="Individual", message_id=[frame["message_id"] for frame in held])
        assert texts(new, 2) == [b"2", b"3"]

    def test_stays_if_it_comes_back_in_time(self, moved, publish, keys):
        old, new, _ = moved
        new.request("CLOSE_CONSUMER", consumer_id=1)
        assert texts(old, 2) == [b"2", b"3"]
        publish(b"4", keys[0])
        assert texts(old, 1) == [b"4"]

    def test_costs_permits_only_where_it_goes(self, moved):
        old, new, held = moved
        assert (old.stats()["availablePermits"], new.stats()["availablePermits"]) == (997, 1000)
        old.ack(*[frame.position for frame in held])
        new.messages(2)
        assert (old.stats()["availablePermits"], new.stats()["availablePermits"]) == (997, 998)
        assert (old.stats()["unackedMessages"], new.stats()["unackedMessages"]) == (1, 2)

    def test_does_not_wait_where_order_does_not_matter(self, join, publish, keys):
        old = join("old", 1000, out_of_order=True)
        publish(b"0", keys[0])
        assert texts(old, 1) == [b"0"]
        new = join("new", 1000, out_of_order=True)
        publish(b"1", keys[0])
        assert texts(new, 1) == [b"1"]

    def test_waits_for_a_batch_until_its_last_message(self, join, make_raw, topic, keys, publish):
        old = join("old", 1000)
        producer = make_raw()
        producer.producer(topic)
        body = batch_payload([b"a", b"b", b"c"])
        entry = entry_bytes(body, num_messages_in_batch=3, uncompressed_size=len(body), partition_key=keys[0].decode())
        producer.write(send_frame(entry, producer_id=1, sequence_id=0, num_messages=3))
        producer.expect("SEND_RECEIPT")
        ledger, entry = old.expect("MESSAGE").position
        new = join("new", 1000)
        publish(b"after", keys[0])
        id = {"ledgerId": ledger, "entryId": entry, "batch_size": 3}
        old.ack(id | {"ack_set": [0b100]})
        new.expect_silence(0.2)
        old.ack(id | {"ack_set": [0b011]})
        assert texts(new, 1) == [b"after"]


class TestProgress:
    def test_a_consumer_without_credit_holds_nobody_else_up(self, join, publish):
        ring = Ring("red", "green")
        red_keys, green_keys = keys_of(ring, "red", 5), keys_of(ring, "green", 5)
        red, green = join("red"), join("green", 1000)
        for number in range(100):
            publish(b"red %d" % number, red_keys[number % 5])
        for number in range(10):
            publish(b"green %d" % number, green_keys[number % 5])
        assert texts(green, 10) == [b"green %d" % n for n in range(10)]
        for number in range(0, 100, 20):
            red.flow(20)
            assert texts(red, 20) == [b"red %d" % n for n in range(number, number + 20)]

    def test_credit_of_one_at_a_time(self, join, publish):
        ring = Ring("red", "green")
        keys = [b"key-%d" % n for n in range(20)]
        consumers = {name: join(name) for name in ("red", "green")}
        for number in range(60):
            publish(b"%d" % number, keys[number % 20])
        for name, consumer in consumers.items():
            mine = [b"%d" % n for n in range(60) if ring.owner(keys[n % 20]) == name]
            for text in mine:
                consumer.flow(1)
                assert texts(consumer, 1) == [text]
            assert consumer.stats()["availablePermits"] == 0

    def test_a_nacked_message_comes_back_to_the_owner_of_its_key(self, join, publish):
        ring = Ring("red", "green")
        key = keys_of(ring, "red", 1)[0]
        red, green = join("red", 1000), join("green", 1000)
        publish(b"0", key)
        publish(b"1", key)
        first, _ = red.messages(2)
        for count in (1, 2, 3):
            red.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=[first["message_id"]])
            frame = red.expect("MESSAGE")
            assert (frame.payload, frame["redelivery_count"]) == (b"0", count)
        green.expect_silence(0.1)

    def test_of_several_only_those_that_were_asked_for_come_back(self, join, publish):
        consumer = join("one", 1000)
        for number in range(10):
            publish(b"%d" % number, b"key-%d" % (number % 3))
        frames = consumer.messages(10)
        wanted = [frames[n]["message_id"] for n in (2, 5, 7)]
        consumer.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=wanted)
        assert texts(consumer, 3) == [b"2", b"5", b"7"]
        consumer.expect_silence(0.2)

    def test_a_seek_begins_anew(self, make_client, topic):
        consumer = make_client().subscribe(
            topic, "s", pulsar.ConsumerType.KeyShared, initial_position=EARLIEST, receiver_queue_size=5)
        producer = make_client().create_producer(topic)
        for number in range(30):
            producer.send(b"%d" % number, partition_key=f"key-{number % 3}")
        for _ in range(7):
            consumer.acknowledge(consumer.receive(60_000))
        consumer.seek(pulsar.MessageId.earliest)
        got = [message.data() for _, message in receive_all([consumer], 30)]
        assert got == [b"%d" % n for n in range(30)]

    def test_cumulative_acks_mean_nothing(self, join, publish):
        consumer = join("one", 1000)
        positions = [publish(b"%d" % n, b"key") for n in range(3)]
        consumer.messages(3)
        consumer.ack(positions[2], ack_type="Cumulative")
        assert consumer.stats()["unackedMessages"] == 3

    def test_a_subscription_without_a_cursor_of_its_own(self, join, publish):
        start = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
        red, green = (join(name, 1000, durable=False, start_message_id=start) for name in ("red", "green"))
        ring = Ring("red", "green")
        for number in range(20):
            publish(b"%d" % number, b"key-%d" % number)
        for name, consumer in (("red", red), ("green", green)):
            mine = [b"%d" % n for n in range(20) if ring.owner(b"key-%d" % n) == name]
            assert texts(consumer, len(mine)) == mine


class Watch:
    """Records what consumers hold, and that no two hold a key at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.holders = collections.defaultdict(collections.Counter)
        self.seen = collections.defaultdict(list)
        self.acked = set()
        self.faults = []

    def received(self, who, message):
        key, number = message.partition_key(), int(message.data())
        with self.lock:
            others = {other: count for other, count in self.holders[key].items() if other != who and count > 0}
            if others:
                self.faults.append(f"{who} got {number} of {key} while {others} held some of it")
            self.holders[key][who] += 1
            if number not in self.seen[key]:
                self.seen[key].append(number)

    def acknowledging(self, who, message):
        with self.lock:
            self.acked.add(int(message.data()))
            self.holders[message.partition_key()][who] -= 1

    def left(self, who):
        with self.lock:
            for counter in self.holders.values():
                counter.pop(who, None)


class Worker(threading.Thread):
    """An official consumer that acknowledges after a random delay of up to 20 ms, and closes when it is told to."""

    def __init__(self, client, topic, name, watch, seed):
        super().__init__(daemon=True)
        self.consumer = client.subscribe(
            topic, "s", pulsar.ConsumerType.KeyShared, consumer_name=name, initial_position=EARLIEST, receiver_queue_size=1)
        self.name_, self.watch, self.random = name, watch, random.Random(seed)
        self.stop = threading.Event()
        self.start()

    def run(self):
        while not self.stop.is_set():
            try:
                message = self.consumer.receive(50)
            except pulsar.Timeout:
                continue
            except pulsar.AlreadyClosed:
                return
            self.watch.received(self.name_, message)
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.02)
            self.watch.acknowledging(self.name_, message)
            self.consumer.acknowledge(message)
        self.consumer.close()
        self.watch.left(self.name_)


def test_keys_keep_their_order_while_consumers_come_and_go(make_client, topic):
    """K 51. What a consumer has in its queue when it closes was never seen here, so it comes in order all the same."""
    client, watch, rng = make_client(), Watch(), random.Random(51)
    workers = [Worker(client, topic, f"w{n}", watch, n) for n in range(3)]
    producer = make_client().create_producer(topic, max_pending_messages=10_000, batching_enabled=False)
    total, names = 3000, 3
    for number in range(total):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"key-{number % 60}")
        if number % 200 == 199:
            producer.flush()
            if rng.random() < 0.5 and len(workers) > 1:
                worker = workers.pop(rng.randrange(len(workers)))
                worker.stop.set()
                worker.join()
            else:
                workers.append(Worker(client, topic, f"w{names}", watch, names))
                names += 1
    producer.flush()
    deadline = time.monotonic() + 60
    while len(watch.acked) < total:
        assert time.monotonic() < deadline, f"{len(watch.acked)} of {total} were acknowledged"
        time.sleep(0.02)
    for worker in workers:
        worker.stop.set()
        worker.join()
    assert watch.faults == []
    assert len(watch.seen) == 60
    for key, numbers in watch.seen.items():
        assert numbers == sorted(numbers), key


class TestExclusiveConsumerOfSomeKeys:
    """An Exclusive consumer that names hash ranges is sent only what lies in them, and pays for nothing else."""

    @pytest.mark.parametrize("mode", ["STICKY", "AUTO_SPLIT"])
    def test_gets_only_those(self, make_raw, topic, publish, mode):
        keys = [b"key1" if n % 2 == 0 else b"hello" for n in range(10)]
        positions = [publish(b"%d" % n, key) for n, key in enumerate(keys)]
        low = {"keySharedMode": mode, "hashRanges": [{"start": 0, "end": 32767}]}
        reader = make_raw()
        reader.subscribe(topic, "s", keySharedMeta=low)
        # Five messages wanted, and as many permits.
        reader.flow(5)
        assert texts(reader, 5) == [b"0", b"2", b"4", b"6", b"8"]
        assert reader.stats()["availablePermits"] == 0
        reader.ack(positions[8], ack_type="Cumulative")
        positions.append(publish(b"next", b"key1"))
        reader.flow(1)
        assert texts(reader, 1) == [b"next"]
