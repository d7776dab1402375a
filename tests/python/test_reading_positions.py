"""Readers, seek and the last message id."""

import time

import pulsar
import pytest

from rawpulsar import NO_ID

EARLIEST = pulsar.InitialPosition.Earliest


def publish(client, topic, payloads, batched=False):
    """The message ids of the payloads; `batched` puts all of them into one entry."""
    producer = client.create_producer(
        topic, batching_enabled=batched, batching_max_messages=max(2, len(payloads)), batching_max_publish_delay_ms=2000)
    ids = {}
    for payload in payloads:
        producer.send_async(payload, lambda result, id, payload=payload: ids.__setitem__(payload, id))
    producer.flush()
    deadline = time.monotonic() + 60
    while len(ids) < len(payloads):
        assert time.monotonic() < deadline, "the receipts did not come"
        time.sleep(0.005)
    producer.close()
    return [ids[payload] for payload in payloads]


def read_all(reader):
    payloads = []
    while reader.has_message_available():
        payloads.append(reader.read_next(60_000).data())
    return payloads


NUMBERS = [b"%d" % n for n in range(10)]


class TestReadersStart:
    def test_at_the_earliest_message(self, client, topic):
        publish(client, topic, NUMBERS)
        assert read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == NUMBERS

    def test_behind_the_latest_message(self, client, topic):
        publish(client, topic, NUMBERS)
        reader = client.create_reader(topic, pulsar.MessageId.latest)
        assert not reader.has_message_available()
        publish(client, topic, [b"new"])
        assert reader.has_message_available()
        assert reader.read_next(60_000).data() == b"new"

    @pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
    @pytest.mark.parametrize("batched", [False, True], ids=["of-single-messages", "in-the-middle-of-a-batch"])
    def test_at_an_id(self, client, topic, inclusive, batched):
        ids = publish(client, topic, NUMBERS, batched)
        assert len({id.entry_id() for id in ids}) == (1 if batched else 10)
        reader = client.create_reader(topic, ids[5], start_message_id_inclusive=inclusive)
        assert read_all(reader) == NUMBERS[5 if inclusive else 6 :]


class TestSeek:
    def test_by_id(self, client, topic):
        ids = publish(client, topic, NUMBERS)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        for _ in NUMBERS:
            consumer.acknowledge(consumer.receive(60_000))
        # The official client passes over the message it seeks to, as a reader that starts behind it.
        consumer.seek(ids[3])
        assert [consumer.receive(60_000).data() for _ in range(6)] == NUMBERS[4:]

    def test_by_id_inclusive(self, client, topic):
        ids = publish(client, topic, NUMBERS)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=True)
        consumer.receive(60_000)
        consumer.seek(ids[3])
        assert [consumer.receive(60_000).data() for _ in range(7)] == NUMBERS[3:]

    def test_to_the_earliest(self, client, topic):
        publish(client, topic, NUMBERS)
        consumer = client.subscribe(topic, "s")
        consumer.seek(pulsar.MessageId.earliest)
        assert [consumer.receive(60_000).data() for _ in NUMBERS] == NUMBERS

    def test_to_the_latest(self, client, topic):
        publish(client, topic, NUMBERS)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        consumer.receive(60_000)
        consumer.seek(pulsar.MessageId.latest)
        publish(client, topic, [b"new"])
        assert consumer.receive(60_000).data() == b"new"

    def test_by_time(self, client, topic):
        publish(client, topic, NUMBERS[:4])
        time.sleep(0.05)
        between = int(time.time() * 1000)
        time.sleep(0.05)
        publish(client, topic, NUMBERS[4:])
        consumer = client.subscribe(topic, "s")
        consumer.seek(between)
        assert [consumer.receive(60_000).data() for _ in range(6)] == NUMBERS[4:]
        consumer.seek(0)
        assert [consumer.receive(60_000).data() for _ in NUMBERS] == NUMBERS

    def test_closes_the_consumer_first_and_then_succeeds(self, raw, topic):
        raw.producer(topic)
        positions = [raw.publish(b"%d" % n, sequence_id=n).position for n in range(5)]
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        raw.messages(5)
        raw.send("SEEK", consumer_id=1, request_id=900, message_id={"ledgerId": positions[3][0], "entryId": positions[3][1]})
        raw.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_ID)
        raw.expect("SUCCESS", request_id=900)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        assert [m.payload for m in raw.messages(2)] == [b"3", b"4"]

    def test_without_id_and_time_fails(self, raw, topic):
        raw.subscribe(topic)
        assert raw.request("SEEK", "ERROR", consumer_id=1)["error"] == "MetadataError"

    def test_of_a_reader(self, client, topic):
        ids = publish(client, topic, NUMBERS)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert read_all(reader) == NUMBERS
        reader.seek(ids[7])
        assert read_all(reader) == NUMBERS[8:]


class TestTheLastMessageId:
    def test_is_that_of_the_last_message(self, client, topic):
        ids = publish(client, topic, NUMBERS)
        last = client.subscribe(topic, "s").get_last_message_id()
        assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())

    def test_names_the_last_index_of_a_batch(self, raw, topic):
        raw.producer(topic)
        position = raw.publish_batch([b"a", b"b", b"c"]).position
        raw.subscribe(topic)
        answer = raw.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
        last = answer["last_message_id"]
        assert (last["ledgerId"], last["entryId"], last["batch_index"]) == (*position, 2)

    def test_of_an_empty_topic_is_no_entry(self, raw, topic):
        raw.subscribe(topic)
        answer = raw.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
        assert answer["last_message_id"]["entryId"] == NO_ID

    def test_comes_with_the_mark_delete_position(self, raw, topic):
        raw.producer(topic)
        positions = [raw.publish(b"%d" % n, sequence_id=n).position for n in range(4)]
        raw.subscribe(topic)
        raw.flow(10)
        raw.messages(4)
        raw.ack(positions[1], ack_type="Cumulative")
        answer = raw.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
        mark = answer["consumer_mark_delete_position"]
        assert (mark["ledgerId"], mark["entryId"]) == positions[1]
        assert answer["last_message_id"]["entryId"] == positions[3][1]

    def test_an_empty_topic_has_no_message_available(self, client, topic):
        assert not client.create_reader(topic, pulsar.MessageId.earliest).has_message_available()
