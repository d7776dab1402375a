"""Acknowledgements, redelivery and what a subscription remembers."""

import pulsar
import pytest

from waiting import drain

EARLIEST = pulsar.InitialPosition.Earliest
SHARED, EXCLUSIVE = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive
NUMBERS = [b"%d" % n for n in range(10)]


@pytest.fixture
def filled(raw, topic):
    """A topic with ten single messages and their positions."""
    raw.producer(topic, producer_id=9)
    return [raw.publish(payload, sequence_id=n, producer_id=9).position for n, payload in enumerate(NUMBERS)]


class TestWhatIsAckedDoesNotComeBack:
    @pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=str)
    def test_individually(self, client, topic, kind):
        producer = client.create_producer(topic)
        for payload in NUMBERS:
            producer.send(payload)
        consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
        for message in [consumer.receive(60_000) for _ in NUMBERS]:
            if int(message.data()) % 2 == 0:
                consumer.acknowledge(message)
        consumer.close()
        assert drain(client.subscribe(topic, "s", kind), 5) == NUMBERS[1::2]

    def test_cumulatively(self, client, topic):
        producer = client.create_producer(topic)
        for payload in NUMBERS:
            producer.send(payload)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        messages = [consumer.receive(60_000) for _ in NUMBERS]
        consumer.acknowledge_cumulative(messages[6])
        consumer.close()
        assert drain(client.subscribe(topic, "s"), 3) == NUMBERS[7:]

    def test_a_batch_once_all_of_it_is_acked(self, client, topic):
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
        consumer = client.subscribe(topic, "s")
        for round_ in range(2):
            for payload in NUMBERS:
                producer.send_async(payload, lambda result, id: None)
            producer.flush()
        messages = [consumer.receive(60_000) for _ in range(20)]
        for message in messages[:10] + messages[10:15]:
            consumer.acknowledge(message)
        consumer.close()
        assert drain(client.subscribe(topic, "s"), 10) == NUMBERS

    def test_single_messages_of_a_batch(self, client, topic):
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
        consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
        for payload in NUMBERS:
            producer.send_async(payload, lambda result, id: None)
        producer.flush()
        for message in [consumer.receive(60_000) for _ in NUMBERS][:4]:
            consumer.acknowledge(message)
        consumer.close()
        assert drain(client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True), 6) == NUMBERS[4:]


class TestAckResponses:
    def test_an_ack_with_a_request_id_is_answered(self, raw, topic, filled):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        raw.messages(10)
        answer = raw.ack(filled[0])
        assert answer["consumer_id"] == 1
        assert "error" not in answer.fields
        assert "error" not in raw.ack(*filled[1:5]).fields

    def test_an_ack_without_one_is_not(self, raw, topic, filled):
        raw.subscribe(topic)
        raw.flow(10)
        raw.messages(10)
        raw.ack(filled[0], receipt=False)
        raw.expect_silence(0.3)

    def test_acking_twice_is_no_error(self, raw, topic, filled):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        raw.messages(10)
        assert "error" not in raw.ack(filled[3]).fields
        assert "error" not in raw.ack(filled[3]).fields

    def test_a_position_beyond_the_end_is_an_error_and_the_others_of_the_list_count(self, raw, topic, filled):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        raw.messages(10)
        ledger, entry = filled[-1]
        answer = raw.ack(filled[0], (ledger, entry + 100))
        assert answer["error"] == "UnknownError"
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        assert [m.payload for m in raw.messages(9)] == NUMBERS[1:]

    def test_a_cumulative_ack_on_shared_does_nothing(self, raw, topic, filled):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        raw.messages(10)
        assert "error" not in raw.ack(filled[5], ack_type="Cumulative").fields
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        assert [m.payload for m in raw.messages(10)] == NUMBERS

    def test_an_empty_list_is_answered(self, raw, topic):
        raw.subscribe(topic)
        assert "error" not in raw.ack().fields

    def test_an_ack_of_another_consumers_message_counts(self, make_raw, raw, topic, filled):
        holder = make_raw()
        holder.subscribe(topic, "s", "Shared")
        holder.flow(10)
        holder.messages(10)
        raw.subscribe(topic, "s", "Shared")
        raw.ack(*filled[:4])
        assert holder.stats()["unackedMessages"] == 6
        holder.close()
        raw.flow(20)
        assert sorted(m.payload for m in raw.messages(6)) == NUMBERS[4:]
        raw.expect_silence(0.2)


class TestPartlyAckedBatches:
    def test_a_set_bit_means_not_acked_and_sets_are_combined(self, raw, topic):
        raw.producer(topic)
        ledger, entry = raw.publish_batch(NUMBERS).position
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        all_bits = (1 << 10) - 1
        for index in (0, 5, 9):
            raw.ack({"ledgerId": ledger, "entryId": entry, "ack_set": [all_bits & ~(1 << index)], "batch_size": 10})
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        message = raw.expect("MESSAGE")
        assert message["ack_set"] == [all_bits & ~(1 << 0) & ~(1 << 5) & ~(1 << 9)]
        raw.ack({"ledgerId": ledger, "entryId": entry, "ack_set": [0b1000100001], "batch_size": 10})
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        raw.expect_silence(0.3)
        assert raw.stats()["msgBacklog"] == 0


class TestRedelivery:
    def test_the_count_of_a_nacked_message_rises_and_others_are_untouched(self, client, topic):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", SHARED, negative_ack_redelivery_delay_ms=100)
        for payload in (b"bad", b"good 1", b"good 2"):
            producer.send(payload)
        others = []
        counts = []
        while len(counts) < 4 or len(others) < 2:
            message = consumer.receive(60_000)
            if message.data() == b"bad":
                counts.append(message.redelivery_count())
                if len(counts) < 4:
                    consumer.negative_acknowledge(message)
            else:
                others.append((message.data(), message.redelivery_count()))
        assert counts == [0, 1, 2, 3]
        assert others == [(b"good 1", 0), (b"good 2", 0)]

    def test_a_disconnect_does_not_count(self, make_raw, raw, topic, filled):
        leaver = make_raw()
        leaver.subscribe(topic, "s", "Shared")
        leaver.flow(10)
        assert len(leaver.messages(10)) == 10
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        leaver.request("CLOSE_CONSUMER", consumer_id=1)
        messages = raw.messages(10)
        assert sorted(m.payload for m in messages) == NUMBERS
        assert [m.get("redelivery_count", 0) for m in messages] == [0] * 10

    def test_of_chosen_ids_on_shared(self, raw, topic, filled):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.messages(10)
        ids = [{"ledgerId": ledger, "entryId": entry} for ledger, entry in (filled[2], filled[7])]
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=ids)
        again = raw.messages(2)
        assert sorted(m.payload for m in again) == [b"2", b"7"]
        assert [m["redelivery_count"] for m in again] == [1, 1]
        raw.expect_silence(0.2)

    @pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=str)
    def test_of_everything_unacked(self, client, topic, kind):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", kind)
        for payload in NUMBERS:
            producer.send(payload)
        messages = [consumer.receive(60_000) for _ in NUMBERS]
        for message in messages[:3]:
            consumer.acknowledge(message)
        consumer.redeliver_unacknowledged_messages()
        again = drain(consumer, lambda got: set(NUMBERS[3:]) <= set(got), 1000)
        # The client groups acks for up to 100 ms, so a redelivery right behind them may still bring the acked ones.
        assert sorted(set(again) | set(NUMBERS[:3])) == NUMBERS
        assert set(NUMBERS[3:]) <= set(again)
