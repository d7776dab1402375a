"""Sends, their checksums and receipts, and what consumers get of them."""

import threading

import pulsar
import pytest

from rawpulsar import NO_ID, batch_payload, entry_bytes, send_frame, split_batch

COMPRESSIONS = [
    pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
EARLIEST = pulsar.InitialPosition.Earliest


class TestChecksums:
    def test_a_wrong_one_fails_the_send_and_stores_nothing(self, raw, topic):
        raw.producer(topic)
        raw.write(send_frame(entry_bytes(b"damaged", "bad", sequence_id=3), producer_id=1, sequence_id=3, num_messages=1))
        raw.expect("SEND_ERROR", producer_id=1, sequence_id=3, error="ChecksumError")
        raw.publish(b"whole", sequence_id=4)
        raw.subscribe(topic)
        raw.flow(10)
        assert raw.expect("MESSAGE").payload == b"whole"
        raw.expect_silence(0.3)

    def test_none_is_accepted_and_the_same_bytes_are_delivered(self, raw, topic):
        raw.producer(topic)
        sent = entry_bytes(b"unprotected", "none", sequence_id=0)
        raw.write(send_frame(sent, producer_id=1, sequence_id=0, num_messages=1))
        raw.expect("SEND_RECEIPT", sequence_id=0)
        raw.subscribe(topic)
        raw.flow(1)
        assert raw.expect("MESSAGE").rest == sent

    def test_a_right_one_is_delivered_with_the_message(self, raw, topic):
        raw.producer(topic)
        sent = entry_bytes(b"protected", sequence_id=0)
        raw.write(send_frame(sent, producer_id=1, sequence_id=0, num_messages=1))
        raw.expect("SEND_RECEIPT")
        raw.subscribe(topic)
        raw.flow(1)
        message = raw.expect("MESSAGE")
        assert message.rest == sent
        assert message.entry[0] is True


def test_unreadable_metadata_is_stored_but_never_delivered(raw, topic):
    raw.producer(topic)
    raw.write(send_frame(entry_bytes(b"", metadata=b"\xff\xff\xff\xff"), producer_id=1, sequence_id=0, num_messages=1))
    raw.expect("SEND_RECEIPT", sequence_id=0)
    raw.publish(b"good", sequence_id=1)
    raw.subscribe(topic, sub_type="Shared")
    raw.flow(10)
    message = raw.expect("MESSAGE")
    assert message.payload == b"good"
    raw.ack(message.position)
    stats = raw.stats()
    assert (stats["availablePermits"], stats["msgBacklog"]) == (9, 0)


class TestReceipts:
    def test_come_in_send_order_with_rising_ids(self, client, topic):
        producer = client.create_producer(topic, max_pending_messages=6000)
        seen, done = [], threading.Event()

        def receipt(index):
            def callback(result, message_id):
                seen.append((index, result, (message_id.ledger_id(), message_id.entry_id())))
                if len(seen) == 5000:
                    done.set()
            return callback

        for index in range(5000):
            producer.send_async(b"%d" % index, receipt(index))
        assert done.wait(60), f"{len(seen)} of 5000 receipts"
        assert [index for index, _, _ in seen] == list(range(5000))
        assert all(result == pulsar.Result.Ok for _, result, _ in seen)
        ids = [id for _, _, id in seen]
        assert all(earlier < later for earlier, later in zip(ids, ids[1:]))

    def test_a_batch_gets_one_and_is_one_entry(self, raw, client, topic):
        raw.producer(topic)
        payload = batch_payload([b"m%d" % n for n in range(10)], 5)
        entry = entry_bytes(
            payload, sequence_id=5, num_messages_in_batch=10, highest_sequence_id=14, uncompressed_size=len(payload))
        raw.write(send_frame(entry, producer_id=1, sequence_id=5, num_messages=10, highest_sequence_id=14))
        receipt = raw.expect("SEND_RECEIPT", producer_id=1, sequence_id=5, highest_sequence_id=14)
        raw.expect_silence(0.2)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        messages = [consumer.receive(60_000) for _ in range(10)]
        assert [message.data() for message in messages] == [b"m%d" % n for n in range(10)]
        assert [message.message_id().batch_index() for message in messages] == list(range(10))
        assert {(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages} == {receipt.position}

    def test_a_plain_message_has_no_highest_sequence_id(self, raw, topic):
        raw.producer(topic)
        for sequence in range(3):
            receipt = raw.publish(b"m", sequence_id=sequence)
            # Apache Pulsar 5.0 sends 0 for the first receipts of a broker's life, the absent value afterwards.
            assert receipt["highest_sequence_id"] in (NO_ID, 0)

    def test_sequence_ids_may_go_backwards_without_deduplication(self, raw, topic):
        raw.producer(topic)
        for sequence in (5, 4, 4, 5):
            raw.publish(b"%d" % sequence, sequence_id=sequence)
        raw.subscribe(topic)
        raw.flow(10)
        assert [m.payload for m in raw.messages(4)] == [b"5", b"4", b"4", b"5"]


@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
class TestRoundTrips:
    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
    def test_every_payload_comes_back(self, client, topic, batched, compression):
        # The C++ client cannot inflate an empty ZLib message that it has deflated itself.
        empty = [] if compression == pulsar.CompressionType.ZLib and not batched else [b""]
        payloads = empty + [b"x", bytes(range(256)) * 40, b"repeated " * 3000] + [b"%d" % n for n in range(100)]
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(
            topic, batching_enabled=batched, compression_type=compression, batching_max_publish_delay_ms=20)
        for payload in payloads:
            producer.send_async(payload, lambda result, id: None)
        producer.flush()
        assert [consumer.receive(60_000).data() for _ in payloads] == payloads

    def test_properties_keys_and_event_time_survive(self, client, topic, batched):
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=batched, producer_name="named", properties={"p": "q"})
        properties = {"plain": "value", "": "empty key", "empty value": "", "ünïcödé": "żółć \u4e16\u754c \U0001f30d", "long": "x" * 5000}
        producer.send_async(
            b"payload", lambda result, id: None, properties=properties, partition_key="the \u00e9 key", ordering_key="the order",
            event_timestamp=1_234_567_890_123)
        producer.send_async(b"plain", lambda result, id: None)
        producer.flush()
        message = consumer.receive(60_000)
        assert message.properties() == properties
        assert message.partition_key() == "the \u00e9 key"
        assert message.ordering_key() == "the order"
        assert message.event_timestamp() == 1_234_567_890_123
        assert message.producer_name() == "named"
        assert message.topic_name() == topic
        plain = consumer.receive(60_000)
        assert (plain.properties(), plain.partition_key(), plain.ordering_key(), plain.event_timestamp()) == ({}, "", "", 0)

    def test_messages_of_five_mebibytes(self, client, topic, batched):
        """As large as fits under max_message_size beside the metadata."""
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=batched)
        payloads = [bytes([65 + n]) * (5 * 1024 * 1024 - 512) for n in range(3)]
        for payload in payloads:
            producer.send(payload)
        for payload in payloads:
            data = consumer.receive(60_000).data()
            assert len(data) == len(payload) and data == payload


def test_a_batch_of_our_own_is_delivered_byte_for_byte(raw, topic):
    raw.producer(topic)
    raw.publish_batch([b"one", b"", b"three"], sequence_id=7)
    raw.subscribe(topic)
    raw.flow(3)
    verdict, metadata, payload = raw.expect("MESSAGE").entry
    assert verdict is True
    assert (metadata["num_messages_in_batch"], metadata["sequence_id"], metadata["highest_sequence_id"]) == (3, 7, 9)
    assert [body for _, body in split_batch(payload, 3)] == [b"one", b"", b"three"]


def test_many_producers_and_topics_share_one_connection(raw, topic):
    for number in range(20):
        raw.producer(f"{topic}-{number % 5}", producer_id=number)
    for sequence in range(5):
        for number in range(20):
            raw.publish(b"%d/%d" % (number, sequence), sequence_id=sequence, producer_id=number)
    for number in range(5):
        raw.subscribe(f"{topic}-{number}", consumer_id=number)
        raw.flow(100, consumer_id=number)
        got = [m.payload for m in raw.messages(20, consumer_id=number)]
        for producer in range(number, 20, 5):
            mine = [p for p in got if p.startswith(b"%d/" % producer)]
            assert mine == [b"%d/%d" % (producer, sequence) for sequence in range(5)]
