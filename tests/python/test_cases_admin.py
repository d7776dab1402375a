"""Behaviour and public reports that need the admin API or a broker of one's own: topics that are unloaded, deleted or stopped under their
clients, settings of topics, and what of a subscription is left behind. Each test says what it shows."""

import signal
import threading

import pulsar
import pytest

from keyhash import Ring, keys_of
from publishing import admin, admin_path, make_partitions, publish, publish_raw, take, topic_stats
from rawpulsar import ConnectionClosed, RawConnection, entry_bytes, send_frame
from waiting import LIMIT_SECONDS, eventually


def connected(broker):
    raw = RawConnection(broker.host, broker.port)
    raw.connect()
    return raw


def official(broker):
    return pulsar.Client(broker.url, operation_timeout_seconds=30, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def subscriptions(broker, topic):
    status, names = admin(broker, "GET", admin_path(topic) + "/subscriptions")
    assert status == 200, names
    return names


class TestSendsAroundAnEnd:
    def test_what_crosses_the_notice_of_an_unload_is_ignored(self, broker, raw, topic):
        """K 15: the connection stays, and a new producer works."""
        raw.producer(topic, producer_name="p")
        kept = raw.publish(b"kept").position
        assert admin(broker, "PUT", admin_path(topic) + "/unload")[0] == 204
        raw.expect("CLOSE_PRODUCER", producer_id=1)
        for sequence in range(1, 6):
            raw.write(send_frame(entry_bytes(b"late", sequence_id=sequence), producer_id=1, sequence_id=sequence, num_messages=1))
        raw.expect_alive()
        raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        raw.producer(topic, producer_id=2, producer_name="p")
        raw.publish(b"after", producer_id=2)
        raw.subscribe(topic)
        raw.flow(10)
        first, second = raw.messages(2)
        assert (first.position, first.payload, second.payload) == (kept, b"kept", b"after")
        raw.expect_silence(0.2)

    @staticmethod
    def send_and_end(raw, topic, end, count=2000):
        """Sends, ends the topic somewhere among them: sequence ids with a receipt, ids with an error, and whether the end was told."""
        raw.producer(topic)
        receipts, errors, ended, started = [], [], False, False
        sent = 0
        ender = threading.Thread(target=end)
        try:
            while not ended and len(receipts) + len(errors) < count:
                if sent < count:
                    raw.write(b"".join(
                        send_frame(entry_bytes(b"%d" % n, sequence_id=n), producer_id=1, sequence_id=n, num_messages=1)
                        for n in range(sent, sent + 50)))
                    sent += 50
                if sent == 500:
                    ender.start()
                    started = True
                while len(receipts) + len(errors) <= sent - 50 and not ended:
                    frame = raw.next()
                    if frame.type == "SEND_RECEIPT":
                        receipts.append(frame["sequence_id"])
                    elif frame.type == "SEND_ERROR":
                        errors.append(frame["sequence_id"])
                    else:
                        assert frame.type == "CLOSE_PRODUCER", frame
                        ended = True
        except ConnectionClosed:
            ended = True
        finally:
            if started:
                ender.join(LIMIT_SECONDS)
        return receipts, errors, ended

    def test_each_send_is_answered_or_the_producer_closed_when_its_topic_is_deleted(self, broker, make_raw, topic):
        """BC-28 (apache/pulsar#5770, #21134): sends without any answer; only the client's own timeout ended them."""
        answers = []
        receipts, errors, ended = self.send_and_end(
            make_raw(), topic, lambda: answers.append(admin(broker, "DELETE", admin_path(topic) + "?force=true")))
        assert answers and answers[0][0] == 204
        assert receipts == list(range(len(receipts)))
        assert ended or len(receipts) + len(errors) == 2000
        assert not set(receipts) & set(errors) and len(errors) == len(set(errors))

    @pytest.mark.restart
    def test_each_send_with_a_receipt_is_there_after_an_orderly_stop(self, make_broker, topic):
        broker = make_broker().start()
        raw = connected(broker)
        process = broker.process
        receipts, errors, ended = self.send_and_end(raw, topic, lambda: process.send_signal(signal.SIGTERM), 100_000)
        assert ended and not errors
        assert receipts == list(range(len(receipts)))
        raw.close()
        assert broker.stop() == 0
        broker.start()
        with connected(broker) as raw:
            raw.subscribe(topic)
            raw.flow(200_000)
            assert [int(message.payload) for message in raw.messages(len(receipts))] == receipts


def test_a_topic_limits_the_size_of_its_messages(broker, client, raw, topic):
    """K 27: one that is larger is refused by itself; chunks pass."""
    raw.producer(topic)
    raw.publish(b"x" * 2048)
    status, text = admin(broker, "POST", admin_path(topic) + "/maxMessageSize", 1024)
    assert status == 204, text
    sequence = iter(range(1, 1_000_000))

    def limited():
        number = next(sequence)
        raw.write(send_frame(entry_bytes(b"x" * 2048, sequence_id=number), producer_id=1, sequence_id=number, num_messages=1))
        answer = raw.next()
        return answer.type == "SEND_ERROR" and answer["error"] == "NotAllowedError"

    eventually(limited)
    raw.publish(b"x" * 900, sequence_id=next(sequence))
    client.create_producer(topic, chunking_enabled=True).send(b"y" * (6 * 1024 * 1024))


@pytest.mark.restart
def test_without_creation_of_topics_only_those_that_exist_are_served(make_broker, topic):
    """K 29."""
    broker = make_broker(arguments=["--allow-auto-topic-creation", "false"]).start()
    client = official(broker)
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)
    make_partitions(broker, topic, 2)
    consumer = client.subscribe(f"{topic}-partition-1", "s")
    client.create_producer(f"{topic}-partition-1").send(b"m")
    assert take(consumer, 1)[0].data() == b"m"
    with connected(broker) as raw:
        assert raw.request("SUBSCRIBE", "ERROR", topic=f"{topic}-partition-2", subscription="s", subType="Shared", consumer_id=1)
    assert admin(broker, "PUT", admin_path(topic + "-plain"))[0] == 204
    client.create_producer(topic + "-plain").send(b"m")
    client.close()


@pytest.mark.restart
def test_a_topic_that_nobody_uses_goes_and_one_with_a_subscription_stays(make_broker, topic):
    """K 30."""
    broker = make_broker(arguments=[
        "--broker-delete-inactive-topics-enabled", "true", "--broker-delete-inactive-topics-frequency-seconds", "1",
        "--broker-delete-inactive-topics-max-inactive-duration-seconds", "1"]).start()
    with connected(broker) as raw:
        raw.producer(topic, producer_id=1)
        raw.producer(topic + "-subscribed", producer_id=2)
        raw.subscribe(topic + "-subscribed", "s")
        raw.request("CLOSE_CONSUMER", consumer_id=1)
    listed = lambda: admin(broker, "GET", "/admin/v2/persistent/public/default")[1]  # noqa: E731
    eventually(lambda: topic not in listed())
    assert topic + "-subscribed" in listed()


def test_statistics_show_the_hashes_that_drain(broker, make_raw, topic):
    """K 52: a key whose old consumer still holds messages of it is shown there, until they are acknowledged."""
    moves, = keys_of(Ring("old", "new"), "new", 1)
    old, new, producer = make_raw(), make_raw(), make_raw()
    producer.producer(topic)
    old.subscribe(topic, "s", "Key_Shared", consumer_name="old")
    old.flow(100)
    producer.publish(b"0", partition_key=moves.decode())
    held = old.expect("MESSAGE")
    new.subscribe(topic, "s", "Key_Shared", consumer_name="new")
    new.flow(100)
    producer.publish(b"1", sequence_id=1, partition_key=moves.decode())
    new.expect_silence(0.2)

    def draining():
        consumers = {c["consumerName"]: c for c in topic_stats(broker, topic)["subscriptions"]["s"]["consumers"]}
        assert consumers["new"]["drainingHashesCount"] == 0
        return consumers["old"]

    shown = eventually(lambda: (c := draining())["drainingHashesCount"] and c)
    assert (shown["drainingHashesCount"], shown["drainingHashesUnackedMessages"]) == (1, 1)
    hash_, = shown["drainingHashes"]
    assert hash_["unackMsgs"] == 1 and hash_["blockedAttempts"] >= 1
    old.ack(held.position)
    assert new.expect("MESSAGE").payload == b"1"
    shown = draining()
    assert (shown["drainingHashesCount"], shown["drainingHashesClearedTotal"]) == (0, 1)


def test_only_keys_that_can_drain_are_shown_to_drain(broker, make_raw, topic):
    """Sticky ranges and delivery out of order wait for nobody; nothing of it is told of a topic without storage."""
    kinds = {
        "split": {"keySharedMode": "AUTO_SPLIT"},
        "sticky": {"keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 65535}]},
    }
    volatile = topic.replace("persistent://", "non-persistent://", 1)
    raw = make_raw()
    for number, (name, meta) in enumerate(kinds.items()):
        raw.subscribe(topic, name, "Key_Shared", consumer_id=number, keySharedMeta=meta)
        raw.subscribe(volatile, name, "Key_Shared", consumer_id=10 + number, keySharedMeta=meta)
    raw.subscribe(volatile, "one", "Exclusive", consumer_id=20)
    shown = topic_stats(broker, topic)["subscriptions"]
    assert shown["split"]["keySharedMode"] == "AUTO_SPLIT" and shown["sticky"]["keySharedMode"] == "STICKY"
    assert shown["split"]["consumers"][0]["drainingHashes"] == []
    assert "drainingHashes" not in shown["sticky"]["consumers"][0]
    assert all("keyHashRangeArrays" in shown[name]["consumers"][0] for name in kinds)
    shown = topic_stats(broker, volatile)["subscriptions"]
    assert not {"keySharedMode", "activeConsumerName"} & set().union(*shown.values())
    assert not {"drainingHashes", "keyHashRangeArrays"} & set().union(*(sub["consumers"][0] for sub in shown.values()))


def test_a_read_waits_only_at_the_end_with_permits(broker, raw, topic):
    def waits():
        status, stats = admin(broker, "GET", admin_path(topic) + "/internalStats")
        assert status == 200, stats
        cursor = stats["cursors"]["s"]
        assert cursor["active"] is True
        return cursor["waitingReadOp"], stats["waitingCursorsCount"]

    raw.subscribe(topic, "s", "Shared")
    raw.expect_alive()
    assert waits() == (False, 0)
    raw.flow(1)
    eventually(lambda: waits() == (True, 1))
    publish_raw(raw, topic, 2)
    raw.expect("MESSAGE")
    # There is more to read, and nobody to read it for.
    assert waits() == (False, 0)
    raw.flow(2)
    raw.expect("MESSAGE")
    eventually(lambda: waits() == (True, 1))


@pytest.mark.vela_only
def test_ranges_of_acknowledged_entries_have_a_size(broker, raw, topic):
    """Vela keeps a range in 24 bytes; Pulsar's size depends on its own encoding and on when it stored them last."""
    positions = publish_raw(raw, topic, 5)
    raw.subscribe(topic, "s", "Shared")
    raw.flow(10)
    raw.messages(5)
    raw.ack(positions[1], positions[3])
    stats = topic_stats(broker, topic)
    for shown in stats, stats["subscriptions"]["s"]:
        assert shown["nonContiguousDeletedMessagesRanges"] == 2
        assert shown["nonContiguousDeletedMessagesRangesSerializedSize"] == 48


class TestUnsubscribing:
    """BC-64 (apache/pulsar#13787, #21451, apache/pulsar-client-go#283): a refused one broke its consumer; a deleted subscription was
    still listed with dead consumers, or came back."""

    @pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared"])
    def test_with_others_connected_changes_nothing_and_alone_leaves_nothing(self, broker, make_raw, topic, kind):
        producer, *consumers = [make_raw() for _ in range(4)]
        publish_raw(producer, topic, 50)
        skip = ("ACTIVE_CONSUMER_CHANGE",)

        def subscribe(raw, name, subscription="s", position="Earliest"):
            raw.request(
                "SUBSCRIBE", topic=topic, subscription=subscription, subType=kind, consumer_id=1, consumer_name=name,
                initialPosition=position, force_topic_creation=True, skip=skip)
            raw.flow(1000)

        def receive(raw, count):
            return [raw.expect("MESSAGE", LIMIT_SECONDS, skip=skip) for _ in range(count)]

        subscribe(consumers[0], "a")
        held = receive(consumers[0], 50)
        for number, consumer in enumerate(consumers[1:]):
            subscribe(consumer, "bc"[number])
        refused = consumers[0].request("UNSUBSCRIBE", "ERROR", consumer_id=1, skip=skip)
        assert refused["error"] == "MetadataError"
        # It still acknowledges, and all of it counts.
        consumers[0].ack(*[message.position for message in held])
        for consumer in consumers[1:]:
            consumer.request("CLOSE_CONSUMER", consumer_id=1, skip=("ACTIVE_CONSUMER_CHANGE", "MESSAGE"))
        publish_raw(producer, topic, 10, start=50)
        left = [int(message.payload) for message in receive(consumers[0], 10)]
        assert sorted(left) == list(range(50, 60))
        consumers[0].request("UNSUBSCRIBE", consumer_id=1, skip=skip)
        assert subscriptions(broker, topic) == []
        subscribe(consumers[1], "b", position="Latest")
        publish_raw(producer, topic, 1, start=60)
        assert receive(consumers[1], 1)[0].payload == b"60"
        consumers[1].request("UNSUBSCRIBE", consumer_id=1, skip=skip)
        subscribe(consumers[2], "c")
        assert [int(message.payload) for message in receive(consumers[2], 61)] == list(range(61))

    @pytest.mark.restart
    @pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
    @pytest.mark.parametrize("kind", ["Shared", "Exclusive", "Failover", "Key_Shared"])
    def test_is_for_good(self, make_broker, topic, kind, kill):
        broker = make_broker().start()
        with connected(broker) as raw:
            positions = publish_raw(raw, topic, 100)
            raw.request(
                "SUBSCRIBE", topic=topic, subscription="s", subType=kind, consumer_id=1, initialPosition="Earliest",
                skip=("ACTIVE_CONSUMER_CHANGE",))
            raw.flow(100)
            for _ in range(100):
                raw.expect("MESSAGE", LIMIT_SECONDS, skip=("ACTIVE_CONSUMER_CHANGE",))
            raw.ack(*positions[:50])
            raw.request("UNSUBSCRIBE", consumer_id=1)
        broker.kill() if kill else broker.stop()
        broker.start()
        assert subscriptions(broker, topic) == []
        with connected(broker) as raw:
            raw.subscribe(topic, "s")
            raw.flow(1000)
            assert [int(message.payload) for message in raw.messages(100)] == list(range(100))


class TestReadersLeftOver:
    """BC-57 (apache/pulsar#5621, #6021): readers that were gone kept their subscription, and those that stood still kept all data."""

    def test_are_not_listed(self, broker, make_raw, topic):
        readers = [make_raw() for _ in range(6)]
        for number, reader in enumerate(readers):
            reader.subscribe(topic, f"reader-{number}", durable=False)
        assert len(topic_stats(broker, topic)["subscriptions"]) == 6
        for reader in readers[:3]:
            reader.request("CLOSE_CONSUMER", consumer_id=1)
        for reader in readers[3:]:
            reader.close()
        eventually(lambda: topic_stats(broker, topic)["subscriptions"] == {})

    @pytest.mark.restart
    def test_do_not_keep_what_all_subscriptions_have_read(self, make_broker, topic):
        broker = make_broker(arguments=["--managed-ledger-max-entries-per-ledger", "10"]).start()
        ledgers = lambda: len(admin(broker, "GET", admin_path(topic) + "/internalStats")[1]["ledgers"])  # noqa: E731
        client = official(broker)
        consumer = client.subscribe(topic, "s", receiver_queue_size=100)
        producer = client.create_producer(topic)
        readers = [client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1) for _ in range(5)]
        for _ in range(10):
            for _ in range(20):
                producer.send_async(b"x", lambda *_: None)
            producer.flush()
            take(consumer, 20)
        eventually(lambda: ledgers() <= 2, lambda: f"{ledgers()} ledgers are left")
        # They skip forward, without an error.
        producer.send(b"last")
        for reader in readers:
            while reader.read_next(LIMIT_SECONDS * 1000).data() != b"last":
                pass
        client.close()


@pytest.mark.restart
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_thirty_thousand_holes_survive(make_broker, topic, kill):
    """BC-11 (apache/pulsar#25540, #25992, #22709) at its full size: every second of 60,000 messages is acknowledged."""
    total = 60_000
    broker = make_broker().start()
    with connected(broker) as raw:
        positions = publish_raw(raw, topic, 1)
        for start in range(1, total, 1000):
            positions += publish_raw(raw, topic, min(1000, total - start), start=start)
        raw.subscribe(topic, "s", "Shared")
        for start in range(0, total, 2000):
            raw.ack(*positions[start : start + 2000 : 2])
    if kill:
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    with connected(broker) as raw:
        raw.subscribe(topic, "s", "Shared")
        raw.flow(total)
        assert [int(message.payload) for message in raw.messages(total // 2)] == list(range(1, total, 2))
        raw.expect_silence(0.2)


@pytest.mark.restart
def test_messages_larger_than_the_largest_arrive_in_chunks_and_batches_are_cut(make_broker, topic):
    """BC-32 (apache/pulsar#7115, #16643, #13560): what is too large goes in parts, and the producer works on."""
    largest = 100_000
    broker = make_broker(arguments=["--max-message-size", str(largest)]).start()
    client = official(broker)
    consumer = client.subscribe(topic, "s")
    chunked = client.create_producer(topic, chunking_enabled=True)
    body = bytes(range(250)) * (largest * 7 // 2 // 250)
    chunked.send(body)
    chunked.send(b"small")
    assert [message.data() for message in take(consumer, 2)] == [body, b"small"]
    tenths = [b"%d" % n + b"." * (largest // 10) for n in range(30)]
    publish(client, topic, tenths, batching_enabled=True, batching_max_messages=30, batching_max_allowed_size_in_bytes=largest - 5000,
            batching_max_publish_delay_ms=100)
    assert [message.data() for message in take(consumer, 30)] == tenths
    plain = client.create_producer(topic, send_timeout_millis=30_000)
    for size in (largest - 100, largest, largest + 1, largest + 9000):
        try:
            plain.send(b"x" * size)
            take(consumer, 1)
        except pulsar.PulsarException:
            pass
        plain.send(b"small")
        while take(consumer, 1)[0].data() != b"small":
            pass
    client.close()
