"""Observed behaviour of Apache Pulsar 5.0.1, seek, unsubscribe and last id."""

import time

import pytest

from rawpulsar import NO_ID

EARLIEST = {"ledgerId": NO_ID, "entryId": NO_ID}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


@pytest.fixture
def fill(make_raw, topic):
    writer = make_raw()
    writer.producer(topic)

    def fill(count, batch=0, start=0, **metadata):
        if batch:
            return [writer.publish_batch([b"%d" % n] * batch, sequence_id=n * batch).position for n in range(start, start + count)]
        return [writer.publish(b"%d" % n, sequence_id=n, **metadata).position for n in range(start, start + count)]

    return fill


def id_of(position, **more):
    return {"ledgerId": position[0], "entryId": position[1], **more}


def seek(raw, topic, kind="Exclusive", subscribe=True, **target):
    raw.request("SEEK", skip=("MESSAGE", "CLOSE_CONSUMER"), consumer_id=1, **target)
    if subscribe:
        raw.subscribe(topic, "s", kind)
        raw.flow(1000)


def bodies(raw, count):
    return [int(m.payload) for m in raw.messages(count)]


@pytest.fixture(params=["Exclusive", "Shared"])
def consumer(request, raw, topic, fill):
    """(positions, type): a consumer that has received ten single messages and acked the even ones."""
    positions = fill(10)
    raw.subscribe(topic, "s", request.param)
    raw.flow(10)
    raw.messages(10)
    raw.ack(*positions[::2])
    return positions, request.param


class TestTargets:
    @pytest.mark.parametrize("at", [0, 4, 9])
    def test_an_id_is_delivered_itself_and_acks_are_forgotten(self, raw, topic, consumer, at):
        positions, kind = consumer
        seek(raw, topic, kind, message_id=id_of(positions[at]))
        assert bodies(raw, 10 - at) == list(range(at, 10))
        raw.expect_silence(0.1)
        stats = raw.stats()
        assert stats["msgBacklog"] == 10 - at
        assert stats["unackedMessages"] == (10 - at if kind == "Shared" else 0)

    @pytest.mark.parametrize("marker, expected", [(EARLIEST, list(range(10))), (LATEST, [])], ids=["earliest", "latest"])
    def test_markers(self, raw, topic, consumer, fill, marker, expected):
        positions, kind = consumer
        seek(raw, topic, kind, message_id=marker)
        assert bodies(raw, len(expected)) == expected
        raw.expect_silence(0.1)
        fill(1, start=77)
        assert bodies(raw, 1) == [77]

    @pytest.mark.parametrize("ahead", [(0, 1), (0, 50), (5, 3)], ids=str)
    def test_beyond_the_end_means_latest(self, raw, topic, consumer, fill, ahead):
        positions, kind = consumer
        ledger, entry = positions[-1]
        seek(raw, topic, kind, message_id=id_of((ledger + ahead[0], ahead[1] + (0 if ahead[0] else entry))))
        raw.expect_silence(0.1)
        fill(1, start=77)
        assert bodies(raw, 1) == [77]

    def test_a_ledger_that_is_gone_means_the_next_that_is_there(self, raw, topic, consumer):
        positions, kind = consumer
        seek(raw, topic, kind, message_id=id_of((0, 3)))
        assert bodies(raw, 10) == list(range(10))

    def test_forward_counts_what_lies_between_as_acked(self, raw, topic, consumer):
        positions, kind = consumer
        seek(raw, topic, kind, message_id=id_of(positions[7]))
        assert bodies(raw, 3) == [7, 8, 9]
        assert raw.stats()["msgBacklog"] == 3

    def test_an_ack_set_is_kept_for_the_first_delivery(self, raw, topic, fill):
        positions = fill(3, batch=10)
        raw.subscribe(topic, "s", "Shared")
        seek(raw, topic, "Shared", message_id=id_of(positions[1], ack_set=[0b1111000000]))
        first, second = raw.messages(2)
        assert (first.position, first["ack_set"]) == (positions[1], [0b1111000000])
        assert "ack_set" not in second.fields
        assert raw.stats()["availablePermits"] == 1000 - 4 - 10


class TestByTime:
    @pytest.mark.parametrize("time_, expected", [
        (0, 0), (1, 0), (999, 0), (1000, 0), (1001, 1), (1500, 1), (2000, 1), (4999, 4), (5000, 4), (5001, 5), (99999, 5)])
    def test_the_first_message_at_or_after_it(self, raw, topic, fill, time_, expected):
        for n in range(5):
            fill(1, start=n, publish_time=1000 * (n + 1))
        raw.subscribe(topic, "s")
        seek(raw, topic, message_publish_time=time_)
        assert bodies(raw, 5 - expected) == list(range(expected, 5))
        raw.expect_silence(0.1)

    def test_of_now_is_the_end(self, raw, topic, fill):
        fill(5)
        raw.subscribe(topic, "s")
        seek(raw, topic, message_publish_time=int(time.time() * 1000) + 60_000)
        raw.expect_silence(0.1)
        fill(1, start=9)
        assert bodies(raw, 1) == [9]

    def test_on_an_empty_topic(self, raw, topic, fill):
        raw.subscribe(topic, "s")
        seek(raw, topic, message_publish_time=5)
        fill(1)
        assert bodies(raw, 1) == [0]


class TestWhoIsDisconnected:
    def test_all_consumers_of_a_shared_subscription_before_the_success(self, make_raw, topic, fill):
        fill(3)
        one, two, elsewhere = make_raw(), make_raw(), make_raw()
        one.subscribe(topic, "s", "Shared")
        two.subscribe(topic, "s", "Shared")
        elsewhere.subscribe(topic, "other", "Shared")
        one.send("SEEK", consumer_id=1, request_id=900, message_id=EARLIEST)
        one.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_ID)
        one.expect("SUCCESS", request_id=900)
        two.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_ID)
        elsewhere.expect_silence(0.1)
        two.subscribe(topic, "s", "Shared")
        one.subscribe(topic, "s", "Shared")
        one.flow(10)
        assert bodies(one, 3) == [0, 1, 2]

    def test_a_reader_that_seeks_comes_back_where_it_sought(self, raw, topic, fill):
        positions = fill(5)
        raw.subscribe(topic, "r", durable=False, start_message_id=EARLIEST)
        raw.flow(10)
        raw.messages(5)
        raw.send("SEEK", consumer_id=1, request_id=900, message_id=id_of(positions[3]))
        raw.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_ID)
        raw.expect("SUCCESS", request_id=900)
        raw.subscribe(topic, "r", durable=False, start_message_id=EARLIEST)
        raw.flow(10)
        assert bodies(raw, 2) == [3, 4]
        raw.expect_silence(0.1)

    @pytest.mark.parametrize("same", [True, False], ids=["same-connection", "two-connections"])
    def test_seeks_at_the_same_time_are_each_answered(self, make_raw, topic, fill, same):
        positions = fill(10)
        one = make_raw()
        two = one if same else make_raw()
        one.subscribe(topic, "s", "Shared", consumer_id=1)
        two.subscribe(topic, "s", "Shared", consumer_id=2)
        one.send("SEEK", consumer_id=1, request_id=901, message_id=id_of(positions[4]))
        two.send("SEEK", consumer_id=2, request_id=902, message_id=id_of(positions[4]))
        answers = {}
        for connection, number in ((one, 901), (two, 902)):
            while number not in answers:
                frame = connection.next()
                if frame.type != "CLOSE_CONSUMER":
                    answers[frame["request_id"]] = frame
        kinds = sorted((frame.type, frame.get("error")) for frame in answers.values())
        assert ("SUCCESS", None) in kinds
        # The loser finds the subscription being reset, or its consumer already closed.
        assert {kind for kind in kinds} <= {("SUCCESS", None), ("ERROR", "UnknownError"), ("ERROR", "MetadataError")}
        last = make_raw()
        last.subscribe(topic, "s", "Shared", consumer_id=3)
        last.flow(100, consumer_id=3)
        assert [int(m.payload) for m in last.messages(6, consumer_id=3)] == [4, 5, 6, 7, 8, 9]

    def test_many_in_a_row(self, raw, topic, fill):
        positions = fill(10)
        raw.subscribe(topic, "s")
        for at in [n % 10 for n in range(0, 210, 7)]:
            seek(raw, topic, message_id=id_of(positions[at]))
            assert bodies(raw, 10 - at)[0] == at


class TestUnsubscribe:
    def test_by_force_tells_the_others(self, make_raw, topic, fill):
        fill(2)
        one, two = make_raw(), make_raw()
        one.subscribe(topic, "s", "Shared")
        two.subscribe(topic, "s", "Shared")
        one.request("UNSUBSCRIBE", consumer_id=1, force=True)
        two.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_ID)
        assert one.request("UNSUBSCRIBE", "ERROR", consumer_id=1)["error"] == "MetadataError"
        two.subscribe(topic, "s", "Shared", position="Latest")
        two.flow(5)
        two.expect_silence(0.2)

    def test_a_refused_one_changes_nothing(self, make_raw, topic, fill):
        positions = fill(10)
        group = [make_raw() for _ in range(3)]
        for member in group:
            member.subscribe(topic, "s", "Shared")
        assert group[0].request("UNSUBSCRIBE", "ERROR", consumer_id=1)["error"] == "MetadataError"
        group[0].flow(10)
        assert bodies(group[0], 10) == list(range(10))
        group[0].ack(*positions[:5])
        for member in group[1:]:
            member.request("CLOSE_CONSUMER", consumer_id=1)
        group[0].request("UNSUBSCRIBE", consumer_id=1)
        group[0].subscribe(topic, "s", "Shared")
        group[0].flow(20)
        assert bodies(group[0], 10) == list(range(10))


class TestTheLastId:
    def ask(self, raw):
        return raw.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)

    def test_of_a_single_message(self, raw, topic, fill):
        position = fill(3)[-1]
        raw.subscribe(topic)
        assert self.ask(raw)["last_message_id"] == {**id_of(position), "partition": -1, "batch_index": -1}

    def test_of_an_empty_topic(self, raw, topic):
        raw.subscribe(topic)
        last = self.ask(raw)["last_message_id"]
        assert (last["entryId"], last["partition"], last["batch_index"]) == (NO_ID, -1, -1)

    def test_the_mark_delete_has_no_batch_and_no_partition(self, raw, topic, fill):
        position = fill(1)[0]
        raw.subscribe(topic)
        raw.ack(position)
        mark = self.ask(raw)["consumer_mark_delete_position"]
        assert mark == id_of(position)

    def test_stays_when_everything_is_acked(self, raw, topic, fill):
        position = fill(1)[0]
        raw.subscribe(topic)
        raw.ack(position)
        last = self.ask(raw)["last_message_id"]
        assert (last["ledgerId"], last["entryId"]) == position

    def test_moves_with_every_message(self, raw, topic, fill):
        raw.subscribe(topic)
        for n in range(5):
            position = fill(1, start=n)[0]
            last = self.ask(raw)["last_message_id"]
            assert (last["ledgerId"], last["entryId"]) == position
