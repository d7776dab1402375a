"""kill -9 in the middle of publishing and acknowledging, then the same data directory again.

What was acknowledged to a client is durable: a confirmed message is there, exactly once unless its producer had to send it
again, in order per producer; a message whose ack was answered never comes back. `VELA_CRASH_ROUNDS` is the number of
rounds (default 20), `VELA_CRASH_SEED` the seed of when to kill."""

import collections
import os
import random
import threading
import time

import pulsar
import pytest

from broker_process import free_port
from rawpulsar import ConnectionClosed, RawConnection, command_frame
from waiting import LIMIT_SECONDS, eventually

pytestmark = [pytest.mark.restart, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("VELA_CRASH_ROUNDS", 20))
SEED = int(os.environ.get("VELA_CRASH_SEED", 7))
TOPICS = 3


def official_client(broker):
    return pulsar.Client(
        broker.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def read_everything(broker, topic):
    """Every payload of a topic from its beginning, over a client of its own."""
    client = official_client(broker)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
        payloads = []
        while reader.has_message_available():
            payloads.append(reader.read_next(60_000).data())
        return payloads
    finally:
        client.close()


class Publisher(threading.Thread):
    """Keeps many sends in flight on one topic, over all restarts, with one producer of the official client."""

    def __init__(self, client, topic, batched):
        super().__init__(daemon=True)
        self.topic = topic
        self.producer = client.create_producer(
            topic, batching_enabled=batched, batching_max_publish_delay_ms=1, batching_max_messages=50,
            max_pending_messages=400, block_if_queue_full=True, send_timeout_millis=120_000)
        self.sent = 0
        self.confirmed = set()
        # Without a receipt when the broker was killed: the client sends these again, and without deduplication a message
        # that was already stored is then stored once more.
        self.in_doubt = set()
        self.failed = []
        self.running = threading.Event()
        self.running.set()
        self.stopping = False
        self.start()

    def run(self):
        while not self.stopping:
            self.running.wait()
            self.producer.send_async(b"%d" % self.sent, self._receipt(self.sent))
            self.sent += 1
            if self.sent % 20 == 0:
                time.sleep(0.002)

    def _receipt(self, number):
        def receipt(result, _):
            if result == pulsar.Result.Ok:
                self.confirmed.add(number)
            else:
                self.failed.append((number, result))
        return receipt

    def broker_was_killed(self):
        """Stands still until the check is done, and notes what has no receipt. A receipt that arrives a moment after the
        kill was on its way before it."""
        self.running.clear()
        time.sleep(0.05)
        self.in_doubt |= set(range(self.sent + 1)) - self.confirmed

    def check(self, broker, kills, where):
        """What the topic holds now against what was confirmed up to the last kill."""
        confirmed = set(self.confirmed)
        numbers = [int(payload) for payload in read_everything(broker, self.topic)]
        count = collections.Counter(numbers)
        where = f"{where} (seed {SEED}), {self.topic}"
        lost = sorted(confirmed - set(count))
        assert lost == [], f"{where}: {len(lost)} confirmed messages are lost, first {lost[:5]}"
        twice = sorted(number for number in confirmed - self.in_doubt if count[number] != 1)
        assert twice == [], f"{where}: confirmed once but stored again: {[(n, count[n]) for n in twice[:5]]}"
        most = max(count.values(), default=0)
        assert most <= 1 + kills, f"{where}: a message is stored {most} times after {kills} kills"
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"{where}: out of order"

    def finish(self):
        """Stops sending and waits for every receipt."""
        self.stopping = True
        self.running.set()
        self.join(2 * LIMIT_SECONDS)
        assert not self.is_alive(), f"{self.topic}: a send hangs"
        self.producer.flush()
        # The client ends the flush and tells the last receipts on different threads.
        eventually(lambda: len(self.confirmed) + len(self.failed) == self.sent, lambda: f"{len(self.confirmed)} of {self.sent} receipts")
        assert self.failed == []
        assert len(self.confirmed) == self.sent


def test_confirmed_messages_survive_in_order(make_broker):
    """The official client lives through all restarts: it reconnects to the same port and sends again what was not confirmed."""
    rng = random.Random(SEED)
    broker = make_broker(port=free_port()).start()
    client = official_client(broker)
    publishers = [
        Publisher(client, f"persistent://public/default/crash-{index}", batched=index % 2 == 0) for index in range(TOPICS)]
    for round_ in range(ROUNDS):
        targets = [len(publisher.confirmed) + rng.randint(1, 400) for publisher in publishers]
        deadline = time.monotonic() + 2 * LIMIT_SECONDS
        while not all(len(publisher.confirmed) >= target for publisher, target in zip(publishers, targets)):
            assert time.monotonic() < deadline, f"round {round_}: publishing does not go on after the restart"
            time.sleep(0.001)
        broker.kill()
        for publisher in publishers:
            publisher.broker_was_killed()
        broker.start()
        for publisher in publishers:
            publisher.check(broker, round_ + 1, f"round {round_}")
            publisher.running.set()
    for publisher in publishers:
        publisher.finish()
        publisher.check(broker, ROUNDS, "at the end")
    client.close()
    assert broker.stop() == 0


class Acker:
    """One topic and subscription whose messages are acknowledged by hand. An item is what one ack settles: an entry, or
    (entry, index) for acks of single messages of a batch. `settled` were answered, `in_doubt` only sent."""

    BATCH = 10

    def __init__(self, broker, mode, rng):
        self.broker, self.mode, self.rng = broker, mode, rng
        self.topic = f"persistent://public/default/crash-ack-{mode}"
        self.sub_type = "Exclusive" if mode == "cumulative" else "Shared"
        self.items, self.settled, self.in_doubt = [], set(), set()
        self.connection = None

    def open(self):
        self.connection = RawConnection(self.broker.host, self.broker.port)
        self.connection.connect()
        self.connection.request("LOOKUP", "LOOKUP_RESPONSE", topic=self.topic)

    def publish(self, count):
        connection = self.connection
        connection.producer(self.topic)
        for number in range(count):
            if self.mode == "batch-index":
                position = connection.publish_batch([b"%d" % n for n in range(self.BATCH)]).position
                self.items += [(position, index) for index in range(self.BATCH)]
            else:
                self.items.append(connection.publish(b"%d" % number).position)
        connection.request("CLOSE_PRODUCER", producer_id=1)

    def receive(self, where):
        """Subscribes and takes all that comes; it must be what is open, all of it and nothing else."""
        self.connection.subscribe(self.topic, "s", self.sub_type)
        self.connection.flow(1_000_000)
        required = set(self.items) - self.settled - self.in_doubt
        allowed = set(self.items) - self.settled
        seen, entries = set(), set()
        while True:
            try:
                message = self.connection.next(LIMIT_SECONDS if required - seen else 0.3)
            except TimeoutError:
                break
            assert message.type == "MESSAGE", f"{where}: {message}"
            position = message.position
            assert position not in entries, f"{where}: {position} was delivered twice"
            entries.add(position)
            if self.mode == "batch-index":
                bits = message.get("ack_set", [(1 << self.BATCH) - 1])[0]
                seen |= {(position, index) for index in range(self.BATCH) if bits >> index & 1}
            else:
                seen.add(position)
        back = sorted(seen - allowed)
        assert back == [], f"{where}: {len(back)} messages came back though their acks were answered, first {back[:5]}"
        missing = sorted(required - seen)
        assert missing == [], f"{where}: {len(missing)} messages that nobody acknowledged are gone, first {missing[:5]}"

    def send_acks(self, share):
        """Writes acks for a share of what is open, all in one go: request id -> items settled by its answer."""
        open_items = [item for item in self.items if item not in self.settled]
        waiting, frames = {}, []
        if self.mode == "cumulative":
            chosen = open_items[: int(len(open_items) * share)]
        else:
            chosen = self.rng.sample(open_items, int(len(open_items) * share))
        for item in chosen:
            request_id = next(self.connection.ids)
            position, index = item if self.mode == "batch-index" else (item, None)
            id = {"ledgerId": position[0], "entryId": position[1]}
            if index is not None:
                id |= {"ack_set": [(1 << self.BATCH) - 1 & ~(1 << index)], "batch_size": self.BATCH}
            kind = "Cumulative" if self.mode == "cumulative" else "Individual"
            frames.append(command_frame("ACK", consumer_id=1, ack_type=kind, message_id=[id], request_id=request_id))
            waiting[request_id] = [item]
        if self.mode == "cumulative":
            for at, request_id in enumerate(waiting):
                waiting[request_id] = chosen[: at + 1]
        self.in_doubt |= set(chosen)
        self.connection.write(b"".join(frames))
        return waiting

    def take_answers(self, waiting, most, timeout):
        """Reads up to `most` AckResponses and settles their items. Ends early when the broker is gone."""
        taken = 0
        try:
            while taken < most:
                answer = self.connection.next(timeout)
                assert answer.type == "ACK_RESPONSE" and "error" not in answer.fields, answer
                self.settled.update(waiting.pop(answer["request_id"]))
                taken += 1
        except (ConnectionClosed, TimeoutError):
            pass
        self.in_doubt -= self.settled
        return taken


def test_answered_acks_survive(make_broker):
    """While acks are on their way and other topics are published to, the broker is killed. The acks that were answered by
    then hold, and the messages that were never acknowledged all come back."""
    rng = random.Random(SEED + 1)
    broker = make_broker(port=free_port()).start()
    client = official_client(broker)
    noise = Publisher(client, "persistent://public/default/crash-noise", batched=False)
    ackers = [Acker(broker, mode, rng) for mode in ("individual", "cumulative", "batch-index")]
    for round_ in range(ROUNDS):
        work = []
        for acker in ackers:
            acker.open()
            acker.publish(20 if acker.mode == "batch-index" else 200)
            acker.receive(f"round {round_} (seed {SEED}), {acker.mode}")
        for acker in ackers:
            work.append((acker, acker.send_acks(rng.uniform(0.3, 0.9))))
        for acker, waiting in work:
            most = rng.randint(0, len(waiting))
            taken = acker.take_answers(waiting, most, LIMIT_SECONDS)
            assert taken == most, f"round {round_}, {acker.mode}: {taken} of {most} acks were answered in {LIMIT_SECONDS} s"
        broker.kill()
        noise.broker_was_killed()
        for acker, waiting in work:
            acker.take_answers(waiting, len(waiting), 0.05)
            acker.connection.close()
        broker.start()
        noise.running.set()
    for acker in ackers:
        assert acker.settled, f"{acker.mode}: no ack was answered in {ROUNDS} rounds"
        acker.open()
        acker.receive(f"at the end, {acker.mode}")
        acker.connection.close()
    noise.finish()
    noise.check(broker, ROUNDS, "at the end")
    client.close()
    assert broker.stop() == 0


def test_nothing_changes_over_an_orderly_restart(make_broker):
    """Stop and start: subscriptions, acks, partly acked batches and messages are as they were."""
    broker = make_broker(port=free_port()).start()
    rng = random.Random(SEED + 2)
    ackers = [Acker(broker, mode, rng) for mode in ("individual", "cumulative", "batch-index")]
    for round_ in range(3):
        for acker in ackers:
            acker.open()
            acker.publish(20)
            acker.receive(f"round {round_}, {acker.mode}")
            waiting = acker.send_acks(0.5)
            count = len(waiting)
            assert acker.take_answers(waiting, count, LIMIT_SECONDS) == count
            assert not acker.in_doubt
            acker.connection.close()
        assert broker.stop() == 0
        broker.start()
    for acker in ackers:
        acker.open()
        acker.receive(f"at the end, {acker.mode}")
        acker.connection.close()
    assert broker.stop() == 0
