"""Chunked messages: faults that users of Pulsar reported in public; each test names the report it comes from."""

import collections

import pytest

from publishing import SHARED, numbers, publish, publish_raw, take
from rawpulsar import RawConnection, entry_bytes, send_frame
from waiting import collect


class TestChunkedMessages:
    @staticmethod
    def chunk(raw, uuid, number, of, producer_id=50, body=b"part"):
        entry = entry_bytes(
            body, sequence_id=number, uuid=uuid, chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of * len(body))
        raw.write(send_frame(entry, producer_id=producer_id, sequence_id=number, num_messages=1, is_chunk=True))
        return raw.expect("SEND_RECEIPT").position

    def singles(self, raw, count):
        for n in range(count):
            raw.publish(b"%d" % n, sequence_id=100 + n, producer_id=50)

    @pytest.mark.vela_only
    @pytest.mark.parametrize("published", [(0, 1, 2), (1, 2), (2,)], ids=["first-two-acked", "first-never-published", "last-only"])
    def test_a_leftover_chunk_does_not_stop_a_subscription(self, raw, make_raw, topic, published):
        """BC-13 (apache/pulsar#26395). Apache Pulsar 5.0.1 keeps a chunk whose first chunk it did not see to itself."""
        raw.producer(topic, producer_id=50)
        positions = [self.chunk(raw, "u", number, 3) for number in published]
        self.singles(raw, 50)
        first = make_raw()
        first.subscribe(topic, "s", "Shared")
        first.flow(len(positions))
        first.messages(len(positions))
        first.ack(*positions[:-1])
        first.close()
        second = make_raw()
        second.subscribe(topic, "s", "Shared")
        second.flow(100)
        got = [m.payload for m in second.messages(51)]
        assert got[0] == b"part" and got[1:] == numbers(50)

    def test_all_chunks_of_a_message_go_to_one_consumer(self, raw, make_raw, topic):
        consumers = [make_raw() for _ in range(3)]
        for consumer in consumers:
            consumer.subscribe(topic, "s", "Shared")
            consumer.flow(1000)
            consumer.stats()
        raw.producer(topic, producer_id=50)
        for number in range(40):
            for message in range(6):
                self.chunk(raw, f"uuid-{message}", number, 40, body=b"%d/%d" % (message, number))
        owners, chunks = collections.defaultdict(set), collections.defaultdict(list)
        for index, messages in enumerate(collect(consumers, 240)):
            for frame in messages:
                message, number = frame.payload.split(b"/")
                owners[message].add(index)
                chunks[message].append(int(number))
        assert {len(who) for who in owners.values()} == {1}
        assert all(numbers_ == list(range(40)) for numbers_ in chunks.values()) and len(chunks) == 6

    @pytest.mark.vela_only
    def test_a_consumer_that_cannot_take_the_rest_does_not_hold_back_others(self, raw, make_raw, topic):
        one, two = make_raw(), make_raw()
        one.subscribe(topic, "s", "Shared")
        one.flow(2)
        raw.producer(topic, producer_id=50)
        for number in range(2):
            self.chunk(raw, "u", number, 4)
        one.messages(2)
        two.subscribe(topic, "s", "Shared")
        two.flow(100)
        two.stats()
        for number in range(2, 4):
            self.chunk(raw, "u", number, 4)
        self.singles(raw, 30)
        assert [m.payload for m in two.messages(30)] == numbers(30)
        two.expect_silence(0.2)
        one.flow(10)
        assert [m.payload for m in one.messages(2)] == [b"part"] * 2

    def test_a_consumer_that_leaves_hands_over_all_of_its_chunks(self, raw, make_raw, topic):
        one, two = make_raw(), make_raw()
        one.subscribe(topic, "s", "Shared")
        one.flow(2)
        raw.producer(topic, producer_id=50)
        for number in range(4):
            self.chunk(raw, "u", number, 4, body=b"part%d" % number)
        one.messages(2)
        two.subscribe(topic, "s", "Shared")
        two.flow(100)
        two.expect_silence(0.2)
        one.close()
        assert [m.payload for m in two.messages(4)] == [b"part%d" % n for n in range(4)]

    def test_discarded_chunks_cost_no_credit_for_good(self, make_client, topic):
        """BC-63 (apache/pulsar#26675, apache/pulsar-client-go#833): with few pending messages allowed the consumer ran dry."""
        client = make_client()
        consumer = client.subscribe(topic, "s", SHARED, receiver_queue_size=20)
        bodies = [bytes([65 + n]) * 115_000 for n in range(4)]
        producers = [make_client().create_producer(topic, chunking_enabled=True) for _ in range(2)]
        for body in bodies:
            for producer in producers:
                producer.send(body)
        publish(client, topic, numbers(200))
        got = [m.data() for m in take(consumer, 208)]
        assert sorted(got) == sorted(bodies * 2 + numbers(200))


@pytest.mark.restart
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_leftover_chunk_does_not_stop_a_subscription_after_a_restart(make_broker, make_client, topic, kill):
    """BC-13 (apache/pulsar#26395), with a restart in place of the disconnect."""
    broker = make_broker().start()
    with RawConnection(broker.host, broker.port) as raw:
        raw.connect()
        raw.producer(topic, producer_id=50)
        positions = []
        for number in range(3):
            entry = entry_bytes(
                b"part", sequence_id=number, uuid="u", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=12)
            raw.write(send_frame(entry, producer_id=50, sequence_id=number, num_messages=1, is_chunk=True))
            positions.append(raw.expect("SEND_RECEIPT").position)
        publish_raw(raw, topic, 100, start=1)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(3)
        raw.messages(3)
        raw.ack(*positions[:2])
    broker.kill() if kill else broker.stop()
    broker.start()
    client = make_client(broker.url)
    consumer = client.subscribe(topic, "s", SHARED, receiver_queue_size=100)
    assert [message.data() for message in take(consumer, 100)] == numbers(100, 1)
