"""A soak: consumers of every subscription type come, seek, give back and go at random, and everything ends in a state that drains."""

import collections
import random
import threading
import time

import pulsar

from publishing import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, numbers, publish
from waiting import LIMIT_SECONDS, drain

# What a consumer meets that comes while another one is there, or is sent away by the seek of another one (a SEEK of its own then finds no consumer).
EXPECTED = pulsar.ConsumerBusy, pulsar.BrokerMetadataError, pulsar.UnknownError, pulsar.NotConnected, pulsar.AlreadyClosed, pulsar.Timeout, pulsar.ConnectError


def test_any_mix_of_comings_and_goings_ends_in_a_state_that_drains(make_client, topic):
    """BC-47 (apache/pulsar#26454): a subscription stood still for ever, the broker believed in a read that nobody did."""
    seed = 26454
    subscriptions = {"shared": SHARED, "exclusive": EXCLUSIVE, "failover": FAILOVER, "key-shared": KEY_SHARED}
    for name, kind in subscriptions.items():
        make_client().subscribe(topic, name, kind).close()
    stop = threading.Event()
    failures = []

    def produce(batched):
        client = make_client()
        producer = client.create_producer(topic, batching_enabled=batched)
        while not stop.is_set():
            producer.send_async(b"x", lambda result, id: None)
            time.sleep(0.003)
        producer.flush()

    done = collections.Counter()

    def disturb(number):
        rng = random.Random(seed + number)
        client = make_client()
        while not stop.is_set() and not failures:
            name, kind = rng.choice(list(subscriptions.items()))
            consumer = None
            try:
                consumer = client.subscribe(topic, name, kind, receiver_queue_size=rng.choice([1, 10, 1000]), negative_ack_redelivery_delay_ms=100)
                for _ in range(rng.randrange(30)):
                    try:
                        message = consumer.receive(30)
                    except pulsar.Timeout:
                        break
                    (consumer.acknowledge if rng.random() < 0.8 else consumer.negative_acknowledge)(message)
                if rng.random() < 0.3:
                    consumer.seek(rng.choice([pulsar.MessageId.earliest, pulsar.MessageId.latest]))
                done[name] += 1
            except EXPECTED:
                done["refused"] += 1
            except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test
                failures.append(f"{name}: {error!r}")
            finally:
                if consumer:
                    try:
                        consumer.close()
                    except pulsar.PulsarException:
                        pass
        client.close()  # a consumer whose seek failed may still be connecting

    threads = [threading.Thread(target=produce, args=(batched,)) for batched in (False, True)]
    threads += [threading.Thread(target=disturb, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(6)
    stop.set()
    for thread in threads:
        thread.join(2 * LIMIT_SECONDS)
        assert not thread.is_alive(), f"seed {seed}: a client hangs"
    assert failures == [], f"seed {seed}"
    # Everybody was at work, not only those who were refused.
    assert all(done[name] for name in subscriptions), f"seed {seed}: {done}"
    for index, (name, kind) in enumerate(subscriptions.items()):
        consumer = make_client().subscribe(topic, name, kind)
        for round_ in range(2):
            # Behind what is left of the disturbance, in order and once.
            wanted = numbers(10, 1000 * (2 * index + round_ + 1))
            publish(make_client(), topic, wanted)
            got = drain(consumer, lambda got: wanted[-1] in got, ack=True)
            assert [payload for payload in got if payload in wanted] == wanted, f"seed {seed}"
