"""Observed behaviour of Apache Pulsar 5.0.1, acknowledgments: what counts, what is refused, what comes back."""

import pytest

from rawpulsar import NO_ID

EVERYTHING = (1 << 10) - 1


@pytest.fixture
def fill(make_raw, topic):
    writer = make_raw()
    writer.producer(topic)

    def fill(count, batch=0):
        if batch:
            return [writer.publish_batch([b"%d" % n] * batch, sequence_id=n * batch).position for n in range(count)]
        return [writer.publish(b"%d" % n, sequence_id=n).position for n in range(count)]

    return fill


def part(position, ack_set, batch_size=10):
    return {"ledgerId": position[0], "entryId": position[1], "ack_set": ack_set, "batch_size": batch_size}


def again(raw, topic, kind="Exclusive", permits=1000):
    """Closes the consumer and subscribes anew."""
    raw.request("CLOSE_CONSUMER", consumer_id=1, skip=("MESSAGE",))
    raw.subscribe(topic, "s", kind)
    raw.flow(permits)


def mark_delete(raw):
    answer = raw.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
    mark = answer["consumer_mark_delete_position"]
    return mark["ledgerId"], mark["entryId"]


@pytest.fixture(params=["Exclusive", "Shared"])
def consumer(request, raw, topic, fill):
    """(connection, positions, type): a consumer that has received ten single messages."""
    positions = fill(10)
    raw.subscribe(topic, "s", request.param)
    raw.flow(10)
    raw.messages(10)
    return raw, positions, request.param


class TestAnswers:
    def test_success_is_only_the_ids(self, consumer):
        raw, positions, _ = consumer
        assert set(raw.ack(positions[0]).fields) == {"consumer_id", "request_id"}

    @pytest.mark.parametrize("ack_type", ["Individual", "Cumulative"])
    def test_an_empty_list_succeeds(self, consumer, ack_type):
        raw, _, _ = consumer
        assert "error" not in raw.ack(ack_type=ack_type).fields

    def test_a_cumulative_ack_of_two_ids_succeeds_and_does_nothing(self, consumer, topic):
        raw, positions, kind = consumer
        assert "error" not in raw.ack(positions[2], positions[5], ack_type="Cumulative").fields
        assert raw.stats()["msgBacklog"] == 10

    @pytest.mark.parametrize("ahead", [(0, 1), (0, 100), (1, 0), (1000, 5)], ids=str)
    def test_a_position_beyond_the_end_is_refused(self, consumer, ahead):
        raw, positions, kind = consumer
        ledger, entry = positions[-1]
        beyond = (ledger + ahead[0], ahead[1] + (0 if ahead[0] else entry))
        assert raw.ack(beyond)["error"] == "UnknownError"
        if kind == "Exclusive":
            assert raw.ack(beyond, ack_type="Cumulative")["error"] == "UnknownError"
        raw.ack(beyond, receipt=False)
        raw.expect_silence(0.1)
        assert raw.stats()["msgBacklog"] == 10

    def test_a_ledger_that_is_gone_succeeds(self, consumer):
        raw, positions, _ = consumer
        assert "error" not in raw.ack((0, 0)).fields
        assert raw.stats()["msgBacklog"] == 10


class TestCumulative:
    @pytest.fixture
    def reader(self, raw, topic, fill):
        positions = fill(10)
        raw.subscribe(topic, "s", "Exclusive")
        raw.flow(10)
        raw.messages(10)
        return positions

    def test_to_the_same_place_succeeds_and_behind_it_is_refused(self, raw, reader):
        assert "error" not in raw.ack(reader[5], ack_type="Cumulative").fields
        assert "error" not in raw.ack(reader[5], ack_type="Cumulative").fields
        assert raw.ack(reader[3], ack_type="Cumulative")["error"] == "UnknownError"
        assert mark_delete(raw) == reader[5]

    def test_an_individual_ack_behind_it_succeeds(self, raw, reader):
        raw.ack(reader[5], ack_type="Cumulative")
        assert "error" not in raw.ack(reader[3]).fields

    def test_passes_what_was_acked_individually(self, raw, topic, reader):
        raw.ack(*reader[3:6])
        raw.ack(reader[1], ack_type="Cumulative")
        assert mark_delete(raw) == reader[1]
        raw.ack(reader[2])
        assert mark_delete(raw) == reader[5]
        again(raw, topic)
        assert [int(m.payload) for m in raw.messages(4)] == [6, 7, 8, 9]

    def test_to_a_place_ahead_of_what_was_read(self, raw, topic, fill):
        positions = fill(10)
        raw.subscribe(topic, "s", "Exclusive")
        raw.flow(2)
        raw.messages(2)
        raw.ack(positions[6], ack_type="Cumulative")
        raw.flow(10)
        assert [int(m.payload) for m in raw.messages(3)] == [7, 8, 9]
        raw.expect_silence(0.1)

    def test_into_a_batch_keeps_the_rest_of_it(self, raw, topic, fill):
        positions = fill(3, batch=10)
        raw.subscribe(topic, "s", "Exclusive")
        raw.flow(100)
        raw.messages(3)
        assert "error" not in raw.ack(part(positions[1], [EVERYTHING & ~0b1111]), ack_type="Cumulative").fields
        assert mark_delete(raw) == positions[0]
        # A set that is less far does not take anything back.
        raw.ack(part(positions[1], [EVERYTHING & ~0b11]), ack_type="Cumulative")
        again(raw, topic)
        first, second = raw.messages(2)
        assert (first.position, first["ack_set"]) == (positions[1], [EVERYTHING & ~0b1111])
        assert second.position == positions[2] and "ack_set" not in second.fields
        raw.ack(part(positions[1], [0]), ack_type="Cumulative")
        assert mark_delete(raw) == positions[1]


class TestMarkDelete:
    def test_waits_for_the_lowest_hole(self, consumer, topic):
        raw, positions, kind = consumer
        start = mark_delete(raw)
        raw.ack(*positions[1:9])
        assert mark_delete(raw) == start
        raw.ack(positions[0])
        assert mark_delete(raw) == positions[8]
        again(raw, topic, kind)
        assert [int(m.payload) for m in raw.messages(1)] == [9]
        raw.expect_silence(0.1)

    @pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
    def test_many_holes_are_remembered_exactly(self, raw, topic, fill, kind):
        positions = fill(200)
        raw.subscribe(topic, "s", kind)
        raw.flow(1000)
        raw.messages(200)
        raw.ack(*positions[::2])
        assert raw.stats()["msgBacklog"] == 100
        again(raw, topic, kind)
        assert [int(m.payload) for m in raw.messages(100)] == list(range(1, 200, 2))
        raw.expect_silence(0.1)


class TestPartlyAckedBatches:
    @pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
    def test_cost_their_rest_to_whoever_gets_them_next(self, raw, topic, fill, kind):
        position, = fill(1, batch=10)
        raw.subscribe(topic, "s", kind)
        raw.flow(100)
        raw.expect("MESSAGE")
        raw.ack(part(position, [0b0000001111]))
        again(raw, topic, kind, permits=50)
        assert raw.expect("MESSAGE")["ack_set"] == [0b0000001111]
        stats = raw.stats()
        assert stats["availablePermits"] == 46
        assert stats["unackedMessages"] == (4 if kind == "Shared" else 0)

    def test_sets_are_combined_and_unacked_falls_by_what_is_new(self, raw, topic, fill):
        position, = fill(1, batch=10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        for ack_set, left in [(0b1111100000, 5), (0b1111100000, 5), (0b0111111111, 4), (0b0000111111, 1), (EVERYTHING, 1), (0, 0)]:
            raw.ack(part(position, [ack_set]))
            assert raw.stats()["unackedMessages"] == left
        assert raw.stats()["msgBacklog"] == 0

    @pytest.mark.parametrize("ack_set, left", [([-2], list(range(1, 64))), ([-1], list(range(64))), ([0], [])], ids=str)
    def test_words_that_are_missing_from_a_set_count_as_acked(self, raw, topic, fill, ack_set, left):
        position, = fill(1, batch=70)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        raw.ack(part(position, ack_set, 70))
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        if not left:
            raw.expect_silence(0.2)
            return
        words = raw.expect("MESSAGE")["ack_set"]
        bits = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
        assert bits == left
        assert raw.stats()["availablePermits"] == 100 - 70 - len(left)

    def test_one_list_may_name_an_entry_many_times(self, raw, topic, fill):
        position, = fill(1, batch=10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        raw.ack(*[part(position, [EVERYTHING & ~(1 << n)]) for n in range(10)])
        assert raw.stats()["msgBacklog"] == 0
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        raw.expect_silence(0.1)

    @pytest.mark.vela_only
    def test_and_nothing_of_it_stays_counted(self, raw, topic, fill):
        """Apache Pulsar 5.0.1 counts only the first item of such a list: 9 messages stay unacked."""
        position, = fill(1, batch=10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        raw.ack(*[part(position, [EVERYTHING & ~(1 << n)]) for n in range(10)])
        assert raw.stats()["unackedMessages"] == 0

    def test_a_whole_ack_behind_a_part_is_the_end_of_it(self, raw, topic, fill):
        position, = fill(1, batch=10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        raw.expect("MESSAGE")
        raw.ack(part(position, [0b1]))
        raw.ack(position)
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        raw.expect_silence(0.2)
        assert (raw.stats()["unackedMessages"], raw.stats()["msgBacklog"]) == (0, 0)

    def test_another_consumer_may_ack_a_part(self, make_raw, topic, fill):
        holder, other = make_raw(), make_raw()
        position, = fill(1, batch=10)
        holder.subscribe(topic, "s", "Shared")
        holder.flow(100)
        holder.expect("MESSAGE")
        other.subscribe(topic, "s", "Shared")
        other.ack(part(position, [0b1110000000]))
        assert holder.stats()["unackedMessages"] == 3
        other.flow(100)
        holder.close()
        assert other.expect("MESSAGE")["ack_set"] == [0b1110000000]


class TestOwnership:
    def test_an_ack_of_what_nobody_holds_counts(self, raw, topic, fill):
        positions = fill(5)
        raw.subscribe(topic, "s", "Shared")
        raw.ack(positions[0], positions[3])
        raw.flow(10)
        assert [int(m.payload) for m in raw.messages(3)] == [1, 2, 4]
        assert raw.stats()["unackedMessages"] == 3

    def test_a_late_ack_of_what_was_handed_on_counts(self, make_raw, topic, fill):
        positions = fill(4)
        one, two = make_raw(), make_raw()
        one.subscribe(topic, "s", "Shared")
        one.flow(4)
        one.messages(4)
        two.subscribe(topic, "s", "Shared")
        two.flow(10)
        one.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        assert len(two.messages(4)) == 4
        one.ack(*positions)
        assert (two.stats()["unackedMessages"], two.stats()["msgBacklog"]) == (0, 0)


def test_the_mark_delete_of_an_untouched_subscription_is_before_the_first_message(raw, topic, fill):
    first = fill(1)[0]
    raw.subscribe(topic)
    answer = raw.request("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=1)
    mark = answer.get("consumer_mark_delete_position")
    assert mark is None or (mark["ledgerId"], mark["entryId"]) in ((first[0], NO_ID), (NO_ID, NO_ID))
