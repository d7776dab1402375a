"""Observed behaviour of Apache Pulsar 5.0.1, producers: opening, names, sends, receipts and errors."""

import time

import pulsar
import pytest

from rawpulsar import NO_ID, batch_payload, encode, entry_bytes, send_frame


def send(raw, entry, sequence_id=0, num_messages=1, **fields):
    raw.write(send_frame(entry, producer_id=1, sequence_id=sequence_id, num_messages=num_messages, **fields))


class TestOpening:
    def test_the_answer_is_complete(self, raw, topic):
        success = raw.producer(topic)
        assert success["producer_name"]
        assert success["last_sequence_id"] == -1
        assert success["schema_version"] == b""
        assert success["producer_ready"] is True
        assert "topic_epoch" not in success.fields

    def test_an_empty_name_is_a_name(self, raw, topic):
        assert raw.producer(topic, producer_id=1, producer_name="")["producer_name"] == ""
        assert raw.request("PRODUCER", "ERROR", topic=topic, producer_id=2, producer_name="")["error"] == "ProducerBusy"

    @pytest.mark.parametrize("other", [
        {"producer_name": "another"}, {"epoch": 7}, {"topic": "persistent://public/default/elsewhere"},
        {"producer_access_mode": "Exclusive"}, {"encrypted": True},
    ], ids=lambda other: next(iter(other)))
    def test_repeating_an_id_is_answered_with_the_first_ones_success(self, raw, topic, other):
        raw.producer(topic, producer_name="first")
        assert raw.producer(**{"topic": topic, **other})["producer_name"] == "first"
        raw.publish(b"m")
        raw.subscribe(topic)
        raw.flow(1)
        raw.expect("MESSAGE")

    def test_a_taken_name_on_the_same_connection_is_refused_at_once(self, raw, topic):
        raw.producer(topic, producer_name="x")
        raw.send("PRODUCER", topic=topic, producer_id=2, request_id=5, producer_name="x")
        # Not asked for a sign of life first.
        refused = raw.receive()
        assert (refused.type, refused["request_id"]) == ("ERROR", 5)
        assert refused["error"] == "ProducerBusy"
        assert "'x'" in refused["message"] and topic in refused["message"]

    def test_a_live_holder_elsewhere_is_pinged_and_stays(self, make_raw, topic):
        holder, other = make_raw(pong=False), make_raw()
        holder.producer(topic, producer_name="x")
        other.send("PRODUCER", topic=topic, producer_id=1, request_id=5, producer_name="x")
        assert holder.receive().type == "PING"
        holder.send("PONG")
        other.expect("ERROR", request_id=5, error="ProducerBusy")
        holder.publish(b"still here")

    def test_a_refused_id_may_be_used_again(self, raw, topic):
        raw.producer(topic, producer_id=1, producer_name="x")
        for _ in range(2):
            assert raw.request("PRODUCER", "ERROR", topic=topic, producer_id=2, producer_name="x")["error"] == "ProducerBusy"
        raw.producer(topic, producer_id=2, producer_name="y")
        raw.publish(b"m", producer_id=2)

    def test_the_same_name_on_two_topics_is_fine(self, raw, topic):
        raw.producer(topic, producer_id=1, producer_name="x")
        raw.producer(topic + "-2", producer_id=2, producer_name="x")

    def test_an_unknown_access_mode_counts_as_shared(self, raw, topic):
        raw.producer(topic, producer_id=1, producer_access_mode=9)
        raw.producer(topic, producer_id=2)

    def test_a_socket_that_goes_takes_its_producers_with_it(self, make_raw, topic):
        for _ in range(20):
            with make_raw() as gone:
                gone.producer(topic, producer_name="x")
        make_raw().producer(topic, producer_name="x")


class TestTheInitialSubscription:
    def test_is_made_at_the_earliest_message(self, raw, topic):
        raw.producer(topic, initial_subscription_name="made-by-producer")
        raw.publish(b"m")
        raw.subscribe(topic, "made-by-producer", "Shared", position="Latest")
        raw.flow(1)
        assert raw.expect("MESSAGE").payload == b"m"

    def test_an_empty_name_makes_none(self, raw, topic):
        raw.producer(topic, initial_subscription_name="")
        raw.publish(b"m")


METADATA = {
    "required-fields-missing": entry_bytes(b"body", metadata=encode("MessageMetadata", {})),
    "length-beyond-the-frame": entry_bytes(b"", checksum="none", metadata=b"")[:-4] + b"\0\0\xff\xff" + b"abc",
    "unparsable": entry_bytes(b"body", metadata=b"\x0a\xff\xff\xff\x0f"),
    "only-a-length-without-checksum": b"\0\0\0\0",
    "unparsable-without-checksum": entry_bytes(b"body", checksum="none", metadata=b"\xff\xff\xff"),
}


class TestEntriesNobodyCanRead:
    @pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
    @pytest.mark.parametrize("bad", METADATA.values(), ids=METADATA)
    def test_are_stored_and_passed_over(self, raw, topic, bad, kind):
        raw.producer(topic)
        raw.publish(b"before", sequence_id=0)
        send(raw, bad, 1)
        raw.expect("SEND_RECEIPT", sequence_id=1)
        raw.publish(b"after", sequence_id=2)
        raw.subscribe(topic, "s", kind)
        raw.flow(10)
        messages = raw.messages(2)
        assert [m.payload for m in messages] == [b"before", b"after"]
        raw.ack(*[m.position for m in messages])
        raw.expect_silence(0.1)
        stats = raw.stats()
        assert (stats["availablePermits"], stats["msgBacklog"]) == (8, 0)


class TestReceiptsAndErrors:
    def test_a_receipt_names_ledger_and_entry_only(self, raw, topic):
        raw.producer(topic)
        assert set(raw.publish(b"m")["message_id"]) <= {"ledgerId", "entryId", "partition", "batch_index"}
        first, second = raw.publish(b"m", 1).position, raw.publish(b"m", 2).position
        assert first < second

    def test_a_highest_id_of_a_single_message_is_repeated(self, raw, topic):
        raw.producer(topic)
        send(raw, entry_bytes(b"m", sequence_id=3), 3, highest_sequence_id=8)
        raw.expect("SEND_RECEIPT", sequence_id=3, highest_sequence_id=8)

    def test_a_highest_id_below_the_lowest_is_not_a_range(self, raw, topic):
        raw.producer(topic)
        send(raw, entry_bytes(b"m", sequence_id=9), 9, highest_sequence_id=3)
        assert raw.expect("SEND_RECEIPT", sequence_id=9)["highest_sequence_id"] in (NO_ID, 0)

    @pytest.mark.parametrize("number", [0, -1])
    def test_senseless_counts_are_accepted(self, raw, topic, number):
        raw.producer(topic)
        send(raw, entry_bytes(b"m"), 0, num_messages=number)
        raw.expect("SEND_RECEIPT", sequence_id=0)
        raw.subscribe(topic)
        raw.flow(5)
        assert raw.expect("MESSAGE").payload == b"m"
        assert raw.stats()["availablePermits"] == 4

    def test_a_batch_needs_no_highest_id(self, raw, topic):
        raw.producer(topic)
        body = batch_payload([b"a", b"b", b"c"])
        send(raw, entry_bytes(body, num_messages_in_batch=3, uncompressed_size=len(body)), 0, num_messages=3)
        raw.expect("SEND_RECEIPT", sequence_id=0)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        raw.expect("MESSAGE")
        stats = raw.stats()
        assert (stats["availablePermits"], stats["unackedMessages"], stats["msgBacklog"]) == (7, 3, 1)

    def test_a_refused_batch_is_named_by_its_highest_id(self, raw, topic):
        raw.producer(topic)
        send(raw, entry_bytes(b"m", "bad", sequence_id=5), 5, num_messages=10, highest_sequence_id=14)
        assert "hecksum" in raw.expect("SEND_ERROR", sequence_id=14, error="ChecksumError")["message"]
        raw.publish(b"m", 15)

    def test_an_explicit_message_id_is_not_allowed(self, raw, topic):
        raw.producer(topic)
        send(raw, entry_bytes(b"m"), 4, message_id={"ledgerId": 5, "entryId": 5})
        assert "shadow topic" in raw.expect("SEND_ERROR", sequence_id=4, error="NotAllowedError")["message"]
        raw.publish(b"m", 5)

    def test_each_of_many_good_and_bad_sends_has_one_answer_in_order_of_its_kind(self, raw, topic):
        raw.producer(topic)
        bad = {n for n in range(200) if n % 7 == 3}
        raw.write(b"".join(
            send_frame(entry_bytes(b"m", "bad" if n in bad else "good", sequence_id=n), producer_id=1, sequence_id=n, num_messages=1)
            for n in range(200)))
        answers = [raw.next() for _ in range(200)]
        assert [a["sequence_id"] for a in answers if a.type == "SEND_RECEIPT"] == [n for n in range(200) if n not in bad]
        assert {a["sequence_id"] for a in answers if a.type == "SEND_ERROR"} == bad
        raw.expect_silence(0.1)


class TestChunks:
    def test_each_is_an_entry_with_a_receipt_of_its_own(self, raw, topic):
        raw.producer(topic)
        positions = []
        for chunk in range(3):
            entry = entry_bytes(
                b"part%d" % chunk, sequence_id=4, uuid="u-4", chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=15)
            send(raw, entry, 4, is_chunk=True)
            positions.append(raw.expect("SEND_RECEIPT", sequence_id=4).position)
        assert positions == sorted(set(positions))
        raw.subscribe(topic)
        raw.flow(10)
        assert [m.payload for m in raw.messages(3)] == [b"part0", b"part1", b"part2"]

    @pytest.mark.parametrize("kind, consumers", [(pulsar.ConsumerType.Exclusive, 1), (pulsar.ConsumerType.Shared, 3)])
    def test_of_a_large_message_come_to_one_consumer(self, make_client, topic, kind, consumers):
        members = [make_client().subscribe(topic, "s", kind) for _ in range(consumers)]
        producer = make_client().create_producer(topic, chunking_enabled=True)
        bodies = [bytes([65 + n]) * 12_000_000 for n in range(2)]
        for body in bodies:
            producer.send(body)
        got, deadline = [], time.monotonic() + 60
        while len(got) < len(bodies) and time.monotonic() < deadline:
            for member in members:
                try:
                    message = member.receive(200)
                except pulsar.Timeout:
                    continue
                got.append(message.data())
                member.acknowledge(message)
        assert sorted(got) == bodies
