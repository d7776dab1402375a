"""Subscriptions: who may join, where they start, what leaving does."""

import pulsar
import pytest

from waiting import drain

EARLIEST, LATEST = pulsar.InitialPosition.Earliest, pulsar.InitialPosition.Latest


class TestAnExclusiveSubscriptionHasOneConsumer:
    def test_the_second_is_refused(self, make_client, topic):
        first = make_client().subscribe(topic, "s")
        with pytest.raises(pulsar.ConsumerBusy):
            make_client().subscribe(topic, "s")
        first.close()
        make_client().subscribe(topic, "s")

    def test_another_subscription_is_free(self, client, topic):
        client.subscribe(topic, "one")
        client.subscribe(topic, "two")

    def test_a_dead_one_gives_way(self, make_raw, client, topic):
        holder = make_raw(pong=False)
        holder.subscribe(topic, "s", "Exclusive")
        client.subscribe(topic, "s")
        assert holder.receive().type == "PING"
        holder.expect_closed()


def test_types_do_not_mix_while_a_consumer_is_connected(make_raw, topic):
    shared, other = make_raw(), make_raw()
    shared.subscribe(topic, "s", "Shared")
    refused = other.request("SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Exclusive", consumer_id=1)
    assert refused["error"] == "ConsumerBusy"
    shared.request("CLOSE_CONSUMER", consumer_id=1)
    other.subscribe(topic, "s", "Exclusive")


def test_subscribing_again_with_the_same_consumer_id_succeeds(raw, topic):
    raw.subscribe(topic)
    raw.subscribe(topic)
    raw.producer(topic)
    raw.publish(b"once")
    raw.flow(10)
    assert raw.expect("MESSAGE").payload == b"once"
    raw.expect_silence(0.2)


class TestTheInitialPosition:
    def test_decides_where_a_new_subscription_starts_and_nothing_later(self, client, topic):
        producer = client.create_producer(topic)
        for n in range(10):
            producer.send(b"%d" % n)
        early = client.subscribe(topic, "early", initial_position=EARLIEST)
        late = client.subscribe(topic, "late", initial_position=LATEST)
        assert [early.receive(60_000).data() for _ in range(10)] == [b"%d" % n for n in range(10)]
        assert drain(early, 0, 200) == drain(late, 0, 200) == []
        late.close()
        producer.send(b"10")
        late = client.subscribe(topic, "late", initial_position=EARLIEST)
        assert drain(late, 1) == [b"10"]

    def test_is_latest_by_default(self, client, topic):
        producer = client.create_producer(topic)
        producer.send(b"before")
        consumer = client.subscribe(topic, "s")
        producer.send(b"after")
        assert drain(consumer, 1) == [b"after"]


class TestLeaving:
    def test_closing_keeps_the_subscription(self, client, topic):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s")
        consumer.close()
        producer.send(b"while away")
        assert drain(client.subscribe(topic, "s"), 1) == [b"while away"]

    def test_unsubscribing_removes_it(self, client, topic):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s")
        producer.send(b"seen")
        consumer.unsubscribe()
        producer.send(b"while gone")
        again = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert drain(again, 2) == [b"seen", b"while gone"]

    def test_unsubscribing_is_refused_while_others_are_connected(self, make_raw, topic):
        one, two = make_raw(), make_raw()
        one.subscribe(topic, "s", "Shared")
        two.subscribe(topic, "s", "Shared")
        assert one.request("UNSUBSCRIBE", "ERROR", consumer_id=1)["error"] == "MetadataError"
        two.request("CLOSE_CONSUMER", consumer_id=1)
        one.request("UNSUBSCRIBE", consumer_id=1)

    def test_a_vanished_connection_leaves_its_messages_to_the_next_one(self, make_raw, topic):
        gone = make_raw()
        gone.producer(topic)
        for n in range(5):
            gone.publish(b"%d" % n, sequence_id=n)
        gone.subscribe(topic, "s", "Exclusive")
        gone.flow(10)
        gone.ack(gone.messages(5)[0].position)
        gone.close()
        back = make_raw()
        back.subscribe(topic, "s", "Exclusive")
        back.flow(10)
        assert [m.payload for m in back.messages(4)] == [b"1", b"2", b"3", b"4"]


class TestANonDurableSubscription:
    def test_starts_at_its_id_and_is_forgotten(self, make_raw, topic):
        raw = make_raw()
        raw.producer(topic)
        positions = [raw.publish(b"%d" % n, sequence_id=n).position for n in range(5)]
        start = {"ledgerId": positions[2][0], "entryId": positions[2][1]}
        for _ in range(2):
            raw.subscribe(topic, "reader", "Exclusive", durable=False, start_message_id=start)
            raw.flow(10)
            assert [m.payload for m in raw.messages(3)] == [b"2", b"3", b"4"]
            raw.ack(positions[3], ack_type="Cumulative")
            raw.request("CLOSE_CONSUMER", consumer_id=1)

    def test_does_not_share_a_name_with_a_durable_one(self, make_raw, topic):
        raw = make_raw()
        raw.subscribe(topic, "s", "Exclusive")
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        refused = raw.request(
            "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Exclusive", consumer_id=2, durable=False)
        assert refused["error"] == "NotAllowedError"


class TestUnknownConsumers:
    @pytest.mark.parametrize("command", ["UNSUBSCRIBE", "GET_LAST_MESSAGE_ID"])
    def test_requests_fail(self, raw, command):
        assert raw.request(command, "ERROR", consumer_id=99)["error"] == "MetadataError"
        raw.expect_alive()

    def test_seek_fails(self, raw):
        answer = raw.request("SEEK", "ERROR", consumer_id=99, message_id={"ledgerId": 1, "entryId": 1})
        assert answer["error"] == "MetadataError"

    def test_flow_ack_and_redeliver_are_ignored(self, raw):
        raw.flow(10, consumer_id=99)
        raw.ack((1, 1), consumer_id=99, receipt=False)
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=99)
        raw.expect_alive()
