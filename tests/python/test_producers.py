"""Producers: names, ids, epochs."""

import pulsar
import pytest

from rawpulsar import command_frame, entry_bytes, send_frame


class TestProducersWithoutANameGetOneEach:
    def test_two_producers_have_two_names(self, client, topic):
        first, second = client.create_producer(topic), client.create_producer(topic)
        assert first.producer_name() and second.producer_name()
        assert first.producer_name() != second.producer_name()

    def test_the_name_can_be_kept_over_a_reconnect(self, make_raw, topic):
        before = make_raw()
        name = before.producer(topic)["producer_name"]
        before.close()
        again = make_raw().producer(topic, producer_name=name, user_provided_producer_name=False, epoch=1)
        assert again["producer_name"] == name


def test_a_producer_starts_without_a_sequence_id(raw, topic):
    success = raw.producer(topic)
    assert success["last_sequence_id"] == -1
    assert success.get("producer_ready", True) is True


def test_a_taken_name_is_busy_until_its_holder_closes(make_client, topic):
    holder = make_client().create_producer(topic, producer_name="the-name")
    other = make_client()
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer(topic, producer_name="the-name")
    holder.close()
    other.create_producer(topic, producer_name="the-name").send(b"mine now")


def test_a_dead_holder_of_the_name_gives_way(make_raw, client, topic):
    """The holder does not answer the broker's PING, so that after the liveness check (5 s) its connection is closed."""
    holder = make_raw(pong=False)
    holder.producer(topic, producer_name="the-name")
    client.create_producer(topic, producer_name="the-name").send(b"took over")
    assert holder.receive().type == "PING"
    holder.expect_closed()


def test_the_same_id_may_come_again_with_a_higher_epoch_but_no_other_id_may(raw, topic):
    first = raw.producer(topic, producer_id=1, producer_name="x", epoch=0)
    again = raw.producer(topic, producer_id=1, producer_name="x", epoch=1)
    assert first["producer_name"] == again["producer_name"] == "x"
    for epoch in (1, 2):
        busy = raw.request(
            "PRODUCER", "ERROR", topic=topic, producer_id=2, producer_name="x", epoch=epoch, user_provided_producer_name=True)
        assert busy["error"] == "ProducerBusy"
    raw.publish(b"the first one still works")


def test_repeating_producer_with_the_same_id_is_answered_again(raw, topic):
    first = raw.producer(topic, producer_id=5)
    second = raw.producer(topic, producer_id=5)
    assert first["producer_name"] == second["producer_name"]
    raw.publish(b"still one producer", producer_id=5)


class TestSendWithoutAProducerClosesTheConnection:
    def test_for_an_id_never_created(self, raw, make_raw):
        bystander = make_raw()
        raw.write(send_frame(entry_bytes(b"lost"), producer_id=77, sequence_id=0, num_messages=1))
        raw.expect_closed()
        bystander.expect_alive()

    def test_for_an_id_the_client_closed(self, raw, topic):
        raw.producer(topic)
        raw.publish(b"kept")
        raw.request("CLOSE_PRODUCER", producer_id=1)
        raw.write(send_frame(entry_bytes(b"lost"), producer_id=1, sequence_id=1, num_messages=1))
        raw.expect_closed()


class TestClosing:
    def test_close_waits_for_the_receipts_of_what_was_sent(self, raw, topic):
        raw.producer(topic)
        for sequence in range(50):
            raw.write(send_frame(entry_bytes(b"x", sequence_id=sequence), producer_id=1, sequence_id=sequence, num_messages=1))
        raw.send("CLOSE_PRODUCER", producer_id=1, request_id=99)
        for sequence in range(50):
            raw.expect("SEND_RECEIPT", sequence_id=sequence)
        raw.expect("SUCCESS", request_id=99)

    def test_an_id_may_be_used_again_after_its_close(self, raw, topic):
        raw.producer(topic)
        raw.publish(b"one")
        raw.request("CLOSE_PRODUCER", producer_id=1)
        raw.producer(topic)
        raw.publish(b"two")

    @pytest.mark.parametrize("kind", ["producer", "consumer"])
    def test_closing_an_unknown_id_succeeds(self, raw, kind):
        raw.request(f"CLOSE_{kind.upper()}", **{f"{kind}_id": 1234})


@pytest.mark.vela_only
class TestPipelining:
    """Apache Pulsar closes the connection, or drops the FLOW: a client that waits for each answer sees no difference."""

    def test_send_behind_producer_in_one_write(self, raw, topic):
        sends = b"".join(
            send_frame(entry_bytes(b"m%d" % n, sequence_id=n), producer_id=1, sequence_id=n, num_messages=1) for n in range(5))
        raw.write(command_frame("PRODUCER", topic=topic, producer_id=1, request_id=900) + sends)
        raw.expect("PRODUCER_SUCCESS", request_id=900)
        for n in range(5):
            raw.expect("SEND_RECEIPT", sequence_id=n)

    def test_flow_behind_subscribe_in_one_write(self, raw, topic):
        raw.producer(topic)
        for n in range(3):
            raw.publish(b"m%d" % n, sequence_id=n)
        raw.write(
            command_frame("SUBSCRIBE", topic=topic, subscription="s", subType="Shared", consumer_id=1, request_id=901,
                          initialPosition="Earliest") + command_frame("FLOW", consumer_id=1, messagePermits=10))
        raw.expect("SUCCESS", request_id=901)
        assert [frame.payload for frame in raw.messages(3)] == [b"m0", b"m1", b"m2"]

    def test_close_and_open_of_a_producer_id_in_one_write(self, raw, topic):
        raw.producer(topic)
        sends = [send_frame(entry_bytes(b"m", sequence_id=n), producer_id=1, sequence_id=n, num_messages=1) for n in range(2)]
        raw.write(
            sends[0] + command_frame("CLOSE_PRODUCER", producer_id=1, request_id=902)
            + command_frame("PRODUCER", topic=topic, producer_id=1, request_id=903) + sends[1])
        raw.expect("SEND_RECEIPT", sequence_id=0)
        raw.expect("SUCCESS", request_id=902)
        raw.expect("PRODUCER_SUCCESS", request_id=903)
        raw.expect("SEND_RECEIPT", sequence_id=1)

    def test_close_and_open_of_a_consumer_id_in_one_write(self, raw, topic):
        raw.producer(topic)
        raw.publish(b"m")
        raw.subscribe(topic, "s", "Exclusive")
        raw.flow(10)
        raw.expect("MESSAGE")
        raw.write(
            command_frame("CLOSE_CONSUMER", consumer_id=1, request_id=904)
            + command_frame("SUBSCRIBE", topic=topic, subscription="s", subType="Exclusive", consumer_id=1, request_id=905)
            + command_frame("FLOW", consumer_id=1, messagePermits=10))
        raw.expect("SUCCESS", request_id=904)
        raw.expect("SUCCESS", request_id=905)
        assert raw.expect("MESSAGE").payload == b"m"
