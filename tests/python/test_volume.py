"""Many messages: every subscription gets each exactly once, an Exclusive one in order."""

import os
import threading
import time

import pulsar
import pytest

TOPICS = 4
SIZE = 128
FULL = int(os.environ.get("VELA_VOLUME_MESSAGES", 100_000))
NONE, LZ4, ZLIB, ZSTD, SNAPPY = (
    pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
)
TIME_LIMIT_SECONDS = 300


FILLERS = [(bytes((n + at) & 0xFF for at in range(16)) * 8)[: SIZE - 11] for n in range(256)]


def payload(topic, number):
    return b"%d:%08d:" % (topic, number) + FILLERS[number & 0xFF]


class Collector:
    """Receives with a listener, acknowledges, and keeps the numbers in the order of their arrival."""

    def __init__(self, topic, expected):
        self.topic, self.expected = topic, expected
        self.numbers = []
        self.damaged = []
        self.done = threading.Event()

    def __call__(self, consumer, message):
        data = message.data()
        number = int(data[2:10])
        if data != payload(self.topic, number):
            self.damaged.append(data)
        self.numbers.append(number)
        consumer.acknowledge(message)
        if len(self.numbers) >= self.expected:
            self.done.set()


CASES = [
    pytest.param(True, NONE, FULL, id="batched-full"),
    pytest.param(False, NONE, FULL, id="unbatched-full"),
    *[pytest.param(True, compression, FULL // 10, id=f"batched-{compression.name}") for compression in (LZ4, ZLIB, ZSTD, SNAPPY)],
    *[pytest.param(False, compression, FULL // 20, id=f"unbatched-{compression.name}") for compression in (LZ4, ZLIB, ZSTD, SNAPPY)],
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("batched, compression, total", CASES)
def test_every_message_arrives_exactly_once_per_subscription(make_client, topic, batched, compression, total):
    each = total // TOPICS
    names = [f"{topic}-{index}" for index in range(TOPICS)]
    collectors = {}
    consumer_client = make_client(message_listener_threads=2)
    for index, name in enumerate(names):
        for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
            collector = collectors[index, kind.name] = Collector(index, each)
            consumer_client.subscribe(name, kind.name, kind, message_listener=collector, receiver_queue_size=5000)
    producer_client = make_client()
    producers = [
        producer_client.create_producer(
            name, batching_enabled=batched, batching_max_publish_delay_ms=5, compression_type=compression,
            max_pending_messages=5000, block_if_queue_full=True)
        for name in names
    ]
    failures = []
    receipts = [0] * TOPICS

    def produce(index):
        def receipt(result, _):
            if result != pulsar.Result.Ok:
                failures.append((index, result))
            receipts[index] += 1

        for number in range(each):
            producers[index].send_async(payload(index, number), receipt)
        producers[index].flush()

    threads = [threading.Thread(target=produce, args=(index,), daemon=True) for index in range(TOPICS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    for collector in collectors.values():
        collector.done.wait(max(0, deadline - time.monotonic()))
    time.sleep(0.3)  # Room for messages that should not come.

    assert failures == []
    assert receipts == [each] * TOPICS
    for (index, kind), collector in collectors.items():
        where = f"{kind} subscription of topic {index}"
        assert collector.damaged == [], where
        assert len(collector.numbers) == each, f"{where}: {len(collector.numbers)} of {each} messages"
        if kind == "Exclusive":
            assert collector.numbers == list(range(each)), f"{where}: not in order"
        else:
            assert sorted(collector.numbers) == list(range(each)), f"{where}: not each exactly once"

    # Everything was acknowledged: after closing, nothing comes back.
    consumer_client.close()
    checking = make_client()
    left = [checking.subscribe(names[index], kind, getattr(pulsar.ConsumerType, kind)) for index, kind in collectors]
    time.sleep(0.5)
    for consumer in left:
        with pytest.raises(pulsar.Timeout):
            consumer.receive(10)
