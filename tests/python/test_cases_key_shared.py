"""Faults of Key_Shared that users of Pulsar reported in public; each test names the report it comes from."""

import collections
import random
import threading
import time

import pulsar
import pytest

from keyhash import Ring, keys_of, range_slot
from rawpulsar import UnexpectedFrame, batch_payload, entry_bytes, send_frame

EARLIEST = pulsar.InitialPosition.Earliest
KEY_SHARED = pulsar.ConsumerType.KeyShared


def sticky(*ranges):
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))


def subscribe(client, topic, queue=1000, **options):
    return client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST, receiver_queue_size=queue, **options)


def publish(client, topic, keyed, **options):
    """Publishes (key, payload) pairs in order."""
    producer = client.create_producer(topic, max_pending_messages=50_000, block_if_queue_full=True, **options)
    failed = []
    for key, payload in keyed:
        producer.send_async(payload, lambda result, _: result == pulsar.Result.Ok or failed.append(result), partition_key=key)
    producer.flush()
    assert not failed
    producer.close()


class Collector(threading.Thread):
    """Receives and acknowledges until it is stopped, or its client is closed: (time, key, payload)."""

    def __init__(self, consumer, delay=lambda: 0, log=None, name=None):
        super().__init__(daemon=True)
        self.consumer, self.delay, self.log, self.name_ = consumer, delay, log, name
        self.got, self.stopped = [], threading.Event()
        self.start()

    def run(self):
        while not self.stopped.is_set():
            try:
                message = self.consumer.receive(50)
            except pulsar.Timeout:
                continue
            except pulsar.AlreadyClosed:
                return
            self.got.append((time.monotonic(), message.partition_key(), message.data()))
            if self.log:
                self.log.received(self.name_, message)
            if delay := self.delay():
                time.sleep(delay)
            if self.log:
                self.log.acknowledging(self.name_, message)
            self.consumer.acknowledge(message)

    def stop(self):
        self.stopped.set()
        self.join()
        return self.got


class Holders:
    """Who holds which key, and the order in which its messages were first seen."""

    def __init__(self):
        self.lock = threading.Lock()
        self.held, self.seen, self.faults = collections.defaultdict(collections.Counter), collections.defaultdict(list), []

    def received(self, who, message):
        with self.lock:
            key, number = message.partition_key(), int(message.data())
            others = [other for other, count in self.held[key].items() if other != who and count]
            if others:
                self.faults.append(f"{who} got {number} of {key}, of which {others} hold messages")
            self.held[key][who] += 1
            if number not in self.seen[key]:
                self.seen[key].append(number)

    def acknowledging(self, who, message):
        with self.lock:
            self.held[message.partition_key()][who] -= 1

    def left(self, who):
        with self.lock:
            for counter in self.held.values():
                counter.pop(who, None)

    def check(self, total):
        assert self.faults == []
        assert sum(len(numbers) for numbers in self.seen.values()) == total
        for key, numbers in self.seen.items():
            assert numbers == sorted(numbers), key


def wait_for(state, seconds=60, what="the state"):
    deadline = time.monotonic() + seconds
    while not state():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.02)


def test_bc_15_one_of_two_consumers_has_sent_flow(make_raw, topic):
    """apache/pulsar#10284: the head of the backlog belonged to a consumer without credit, and nobody got anything."""
    ring = Ring("one", "two")
    keys = [b"key-%d" % n for n in range(100)]
    producer = make_raw()
    producer.producer(topic)
    # The head is the second consumer's.
    order = sorted(range(1000), key=lambda n: ring.owner(keys[n % 100]) == "one")
    for number in order:
        entry = entry_bytes(b"%d" % number, sequence_id=number, partition_key=keys[number % 100].decode())
        producer.write(send_frame(entry, producer_id=1, sequence_id=number, num_messages=1))
        producer.expect("SEND_RECEIPT")
    one, two = make_raw(), make_raw()
    two.subscribe(topic, "s", "Key_Shared", consumer_name="two")
    one.subscribe(topic, "s", "Key_Shared", consumer_name="one")
    one.flow(1000)
    mine = {name: [b"%d" % n for n in order if ring.owner(keys[n % 100]) == name] for name in ("one", "two")}
    assert [frame.payload for frame in one.messages(len(mine["one"]))] == mine["one"]
    two.expect_silence(0.1)
    two.flow(1000)
    assert [frame.payload for frame in two.messages(len(mine["two"]))] == mine["two"]


def test_bc_21_gaps_between_sticky_ranges(make_client, topic):
    """apache/pulsar#24730, #7217: a consumer got what lay in the gaps between its ranges, and interleaved ranges were refused."""
    first_ranges = [(0, 9999), (20000, 29999), (40000, 49999)]
    mine = lambda key: any(first <= range_slot(key.encode()) <= last for first, last in first_ranges)  # noqa: E731
    first = Collector(subscribe(make_client(), topic, key_shared_policy=sticky(*first_ranges)))
    pairs = [(f"key-{n % 2000}", b"%d" % n) for n in range(4000)]
    publish(make_client(), topic, pairs)
    expected = [payload for key, payload in pairs if mine(key)]
    wait_for(lambda: len(first.got) >= len(expected), what="the first consumer's share")
    second = Collector(subscribe(
        make_client(), topic, key_shared_policy=sticky((10000, 19999), (30000, 39999), (50000, 65535))))
    wait_for(lambda: len(first.got) + len(second.got) >= len(pairs), what="the rest")
    assert [payload for _, _, payload in first.stop()] == expected
    assert [payload for _, _, payload in second.stop()] == [payload for key, payload in pairs if not mine(key)]


def resident_kib(broker):
    """Memory of a broker that this suite started; None of another one."""
    process = getattr(broker, "process", None)
    if process is None:
        return None
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_bc_23_a_slow_consumer_costs_bounded_memory(broker, make_client, topic):
    """apache/pulsar#21045, #26677: to keep the others busy the broker parked every message of one slow consumer's keys."""
    total, resident = 60_000, resident_kib(broker)
    slow = subscribe(make_client(), topic, queue=100)
    others = [Collector(subscribe(make_client(), topic, queue=100)) for _ in range(11)]
    pairs = [(f"key-{n % 1000}", b"%d" % n + b"." * 90) for n in range(total)]
    publish(make_client(), topic, pairs, batching_enabled=False)
    seen = lambda: sum(len(other.got) for other in others)  # noqa: E731
    # The others have all of theirs, or stand at the bound; then the slow one begins.
    wait_for(lambda: seen() > total // 100, what="a hundredth of all at the others")
    before = -1
    while before != seen():
        before = seen()
        time.sleep(1)
    if resident is not None:
        assert resident_kib(broker) - resident < 64 * 1024
    last = Collector(slow)
    wait_for(lambda: seen() + len(last.got) >= total, 120, "the end")
    everything = collections.defaultdict(list)
    for collector in [*others, last]:
        for _, key, payload in collector.stop():
            everything[key].append(int(payload.split(b".")[0]))
    assert sum(len(numbers) for numbers in everything.values()) == total
    assert all(numbers == sorted(numbers) for numbers in everything.values())


def test_bc_29_consumers_join_and_leave_under_load(make_client, topic):
    """apache/pulsar#10167: when a consumer joined, the old one froze and the new one got nothing."""
    log, clients = Holders(), [make_client() for _ in range(3)]
    delay = lambda: 0.01  # noqa: E731
    workers = [Collector(subscribe(clients[0], topic), delay, log, "c1")]
    producer = make_client().create_producer(topic, batching_enabled=False)
    total = 400
    for number in range(total):
        producer.send(b"%d" % number, partition_key=f"key-{number % 2}")
        time.sleep(0.005)
        if number == 100:
            workers.append(Collector(subscribe(clients[1], topic), delay, log, "c2"))
        elif number == 200:
            workers.append(Collector(subscribe(clients[2], topic), delay, log, "c3"))
        elif number == 300:
            workers[1].stop()
            workers[1].consumer.close()
            log.left("c2")
    wait_for(lambda: sum(len(numbers) for numbers in log.seen.values()) == total, what="all messages")
    for worker in workers:
        worker.stop()
    log.check(total)


class TestBC38:
    """apache/pulsar#8292, #7455: messages held back for a second consumer went to a third while older ones of their keys were out."""

    def test_small(self, make_raw, topic):
        ring = Ring("c0", "c1"), Ring("c0", "c1", "c2")
        moved_twice = keys_of_both(ring, "c1", "c2", 2)
        producer, c0, c1, c2 = (make_raw() for _ in range(4))
        producer.producer(topic)

        def send(number, key):
            producer.publish(b"%d" % number, sequence_id=number, partition_key=key.decode())

        c0.subscribe(topic, "s", "Key_Shared", consumer_name="c0")
        c0.flow(2)
        send(0, moved_twice[0])
        send(1, moved_twice[1])
        held = c0.messages(2)
        c0.flow(100)
        c0.ack(held[1].position)
        c1.subscribe(topic, "s", "Key_Shared", consumer_name="c1")
        c1.flow(100)
        send(2, moved_twice[0])
        c1.expect_silence(0.2)
        c2.subscribe(topic, "s", "Key_Shared", consumer_name="c2")
        c2.flow(100)
        send(3, moved_twice[0])
        send(4, moved_twice[1])
        assert c2.expect("MESSAGE").payload == b"4", "nobody held any of this key"
        c2.expect_silence(0.2)
        c0.ack(held[0].position)
        assert [frame.payload for frame in c2.messages(2)] == [b"2", b"3"]
        c1.expect_silence(0.1)

    @pytest.mark.parametrize("seed", range(3))
    def test_large(self, make_client, topic, seed):
        rng, log, client = random.Random(seed), Holders(), make_client()
        delay = lambda: rng.random() * 0.01 if rng.random() < 0.2 else 0  # noqa: E731
        names = iter(f"c{n}" for n in range(1000))

        def start():
            name = next(names)
            consumer = subscribe(client, topic, queue=1, consumer_name=name)
            return Collector(consumer, delay, log, name)

        workers = [start() for _ in range(5)]
        producer = make_client().create_producer(topic, batching_enabled=False, max_pending_messages=10_000)
        total = 3000
        for number in range(total):
            producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"key-{rng.randrange(50)}")
            if number % 150 == 149:
                producer.flush()
                worker = workers.pop(rng.randrange(len(workers)))
                worker.stop()
                worker.consumer.close()
                log.left(worker.name_)
                workers.append(start())
        producer.flush()
        wait_for(lambda: sum(len(numbers) for numbers in log.seen.values()) == total, 60, "all messages")
        for worker in workers:
            worker.stop()
        log.check(total)


def keys_of_both(rings, first, second, count):
    keys = (b"key-%d" % n for n in range(1_000_000))
    both = (key for key in keys if rings[0].owner(key) == first and rings[1].owner(key) == second)
    return [next(both) for _ in range(count)]


class TestBC48:
    """apache/pulsar#7444, #20026: a refused sticky consumer stayed registered, and a dead one kept its ranges."""

    def test_a_refused_consumer_leaves_no_trace(self, make_client, topic):
        holder = subscribe(make_client(), topic, key_shared_policy=sticky((0, 65535)))
        client = make_client()
        for _ in range(50):
            with pytest.raises(pulsar.ConsumerAssignError):
                subscribe(client, topic, key_shared_policy=sticky((100, 200)))
        with pytest.raises(pulsar.PulsarException):
            # Refused because there is another one, and only because of that.
            client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        holder.close()
        alone = Collector(subscribe(client, topic, key_shared_policy=sticky((0, 65535))))
        publish(client, topic, [(f"key-{n}", b"%d" % n) for n in range(100)])
        wait_for(lambda: len(alone.got) >= 100, what="100 messages")
        assert [payload for _, _, payload in alone.stop()] == [b"%d" % n for n in range(100)]

    def test_a_silent_holder_is_found_out(self, open_raw, make_raw, topic):
        meta = {"keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 65535}]}
        silent = open_raw(pong=False)
        silent.connect()
        silent.subscribe(topic, "s", "Key_Shared", keySharedMeta=meta)
        other = make_raw(timeout=30)
        other.subscribe(topic, "s", "Key_Shared", keySharedMeta=meta)
        other.flow(10)
        other.producer(topic, producer_id=7)
        other.publish(b"0", producer_id=7, partition_key="key")
        assert other.expect("MESSAGE").payload == b"0"

    def test_a_holder_that_answers_keeps_its_ranges(self, make_client, make_raw, topic):
        holder = subscribe(make_client(), topic, key_shared_policy=sticky((0, 65535)))
        with pytest.raises(UnexpectedFrame, match="ConsumerAssignError"):
            make_raw(timeout=30).subscribe(
                topic, "s", "Key_Shared", keySharedMeta={"keySharedMode": "STICKY", "hashRanges": [{"start": 9, "end": 9}]})
        holder.close()


class TestBC64:
    """apache/pulsar#13787, #21451: a failed unsubscribe broke its consumer, and a subscription that was deleted came back."""

    def test_is_refused_and_works_when_alone(self, make_client, topic):
        consumers = [subscribe(make_client(), topic) for _ in range(3)]
        with pytest.raises(pulsar.PulsarException):
            consumers[0].unsubscribe()
        publish(make_client(), topic, [(f"key-{n}", b"%d" % n) for n in range(50)])
        collectors = [Collector(consumer) for consumer in consumers]
        wait_for(lambda: sum(len(collector.got) for collector in collectors) >= 50, what="50 messages")
        for collector in collectors:
            collector.stop()
        for consumer in consumers[1:]:
            consumer.close()
        consumers[0].unsubscribe()


def test_bc_67_forms_of_one_key(make_client, make_raw, topic):
    """apache/pulsar#7107, apache/pulsar-client-go#175: the key of a batch of one was not seen, and everything went to one consumer."""
    consumers = [Collector(subscribe(make_client(), topic, queue=100, consumer_name=f"c{n}")) for n in range(4)]
    client = make_client()
    keys = [f"key-{n % 100}" for n in range(1000)]
    forms = {
        "singles": dict(batching_enabled=False),
        "batches by key": dict(
            batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_messages=50,
            batching_max_publish_delay_ms=20),
    }
    expected = 0
    for form, options in forms.items():
        publish(client, topic, [(key, form.encode()) for key in keys], **options)
        expected += 1000
    raw = make_raw()
    raw.producer(topic)
    for number in range(200):
        body = batch_payload([b"batch of one"], number)
        entry = entry_bytes(
            body, sequence_id=number, num_messages_in_batch=1, uncompressed_size=len(body), partition_key=keys[number])
        raw.write(send_frame(entry, producer_id=1, sequence_id=number, num_messages=1))
        raw.expect("SEND_RECEIPT")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(200):
        producer.send(b"ordered", partition_key=f"other-{number}", ordering_key=keys[number])
        producer.send(b"no key")
    mixed = client.create_producer(topic, batching_enabled=True, batching_max_messages=50, batching_max_publish_delay_ms=20)
    for key in keys:
        mixed.send_async(b"mixed", lambda *_: None, partition_key=key)
    mixed.flush()
    expected += 200 + 400 + 1000
    wait_for(lambda: sum(len(collector.got) for collector in consumers) >= expected, 60, "everything")
    owner, counts = {}, collections.Counter()
    for index, collector in enumerate(consumers):
        for _, key, payload in collector.stop():
            counts[payload.decode()] += 1
            if payload == b"batch of one":
                continue  # Its message carries no key of its own: who got it shows below.
            if payload.decode() in forms:
                assert owner.setdefault(key, index) == index, f"{key} in {payload}"
    shares = collections.Counter(owner.values())
    assert len(owner) == 100 and len(shares) == 4 and min(shares.values()) >= 10, shares
    assert counts == {"batch of one": 200, **{form: 1000 for form in forms}, "ordered": 200, "no key": 200, "mixed": 1000}
    # The ring, computed here, says the same.
    ring = Ring("c0", "c1", "c2", "c3")
    assert all(ring.owner(key.encode()) == f"c{index}" for key, index in owner.items())
    for index, collector in enumerate(consumers):
        ones = sum(payload == b"batch of one" for _, _, payload in collector.got)
        assert ones == sum(owner[key] == index for key in keys[:200])
