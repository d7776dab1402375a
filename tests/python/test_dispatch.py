"""Permits and who gets which message."""

import itertools

import pulsar
import pytest

from rawpulsar import entry_bytes, send_frame
from waiting import collect, gather


@pytest.fixture
def publish(make_raw, topic):
    """Publishes on a connection of its own: publish(count) singles, publish(batch=n) one batch."""
    connection = make_raw()
    connection.producer(topic)
    sequence = iter(range(0, 1_000_000))

    def publish(count=1, batch=None):
        for _ in range(count):
            number = next(sequence)
            if batch:
                connection.publish_batch([b"%d" % number] * batch, sequence_id=number)
            else:
                connection.publish(b"%d" % number, sequence_id=number)

    return publish


class TestPermits:
    @pytest.mark.parametrize("kind", ["Shared", "Exclusive", "Key_Shared"])
    def test_exactly_as_many_messages_come_as_were_allowed(self, raw, topic, publish, kind):
        publish(10)
        raw.subscribe(topic, "s", kind)
        raw.expect_silence(0.2)
        raw.flow(3)
        raw.messages(3)
        raw.expect_silence(0.3)
        assert raw.stats()["availablePermits"] == 0
        raw.flow(2)
        raw.messages(2)
        raw.expect_silence(0.3)

    @pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
    def test_a_batch_goes_out_whole_and_its_debt_is_worked_off(self, raw, topic, publish, kind):
        publish(batch=10)
        publish(1)
        raw.subscribe(topic, "s", kind)
        raw.flow(1)
        assert raw.expect("MESSAGE").entry[1]["num_messages_in_batch"] == 10
        raw.expect_silence(0.2)
        assert raw.stats()["availablePermits"] == -9
        raw.flow(9)
        raw.expect_silence(0.2)
        assert raw.stats()["availablePermits"] == 0
        raw.flow(1)
        assert raw.expect("MESSAGE").payload == b"1"
        assert raw.stats()["availablePermits"] == 0

    def test_permits_wait_for_messages(self, raw, topic, publish):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(5)
        publish(7)
        raw.messages(5)
        raw.expect_silence(0.2)

    def test_acks_return_no_permits(self, raw, topic, publish):
        publish(5)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(2)
        for message in raw.messages(2):
            raw.ack(message.position)
        raw.expect_silence(0.2)
        assert raw.stats()["availablePermits"] == 0

    @pytest.mark.parametrize("permits", [0, 2**31])
    def test_an_impossible_flow_closes_the_connection(self, raw, topic, permits):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(permits)
        raw.expect_closed()

    def test_a_partly_acked_batch_costs_what_is_left_of_it(self, raw, topic, publish):
        publish(batch=10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        ledger, entry = raw.expect("MESSAGE").position
        raw.ack({"ledgerId": ledger, "entryId": entry, "ack_set": [0b1111110000], "batch_size": 10})
        for _ in range(20):
            raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
            assert raw.expect("MESSAGE")["ack_set"] == [0b1111110000]
            assert raw.stats()["availablePermits"] == 84
            raw.flow(6)
            assert raw.stats()["availablePermits"] == 90


@pytest.mark.vela_only
class TestMessagesCarryTheirPermits:
    """PIP-491: the broker says in each MESSAGE how many permits it cost."""

    def test_one_for_a_single_message(self, raw, topic, publish):
        publish(3)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(10)
        assert [m["message_permits"] for m in raw.messages(3)] == [1, 1, 1]

    @pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
    def test_the_size_of_a_batch(self, raw, topic, publish, kind):
        publish(batch=10)
        raw.subscribe(topic, "s", kind)
        raw.flow(1)
        assert raw.expect("MESSAGE")["message_permits"] == 10
        assert raw.stats()["availablePermits"] == -9

    def test_what_is_left_of_a_partly_acked_batch(self, raw, topic, publish):
        publish(batch=10)
        raw.subscribe(topic, "s", "Shared")
        raw.flow(100)
        ledger, entry = raw.expect("MESSAGE").position
        raw.ack({"ledgerId": ledger, "entryId": entry, "ack_set": [0b1111110000], "batch_size": 10})
        raw.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        assert raw.expect("MESSAGE")["message_permits"] == 6
        assert raw.stats()["availablePermits"] == 84


class TestConsumerStats:
    def test_tell_permits_unacked_backlog_and_who(self, raw, topic, publish):
        publish(10)
        raw.subscribe(topic, "s", "Shared", consumer_name="the consumer")
        raw.flow(7)
        messages = raw.messages(7)
        raw.ack(*[m.position for m in messages[:3]])
        stats = raw.stats()
        assert stats["consumerName"] == "the consumer"
        assert stats["availablePermits"] == 0
        assert stats["unackedMessages"] == 4
        assert stats["msgBacklog"] == 7
        assert stats["blockedConsumerOnUnackedMsgs"] is False
        assert stats["type"] == "Shared"
        host, port = raw.socket.getsockname()
        assert stats["address"] == f"/{host}:{port}"
        assert stats["connectedSince"]
        for rate in ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "msgRateExpired", "messageAckRate"):
            assert stats[rate] >= 0

    def test_exclusive_counts_no_unacked(self, raw, topic, publish):
        publish(2)
        raw.subscribe(topic, "s", "Exclusive")
        raw.flow(2)
        raw.messages(2)
        stats = raw.stats()
        assert (stats["type"], stats["unackedMessages"], stats["msgBacklog"]) == ("Exclusive", 0, 2)


class TestShared:
    def test_two_consumers_share_the_messages_each_once(self, client, topic):
        consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared) for _ in range(2)]
        producer = client.create_producer(topic)
        for number in range(200):
            producer.send_async(b"%d" % number, lambda result, id: None)
        producer.flush()
        got = [[int(message.data()) for message in messages] for messages in gather(consumers, 200)]
        assert sorted(got[0] + got[1]) == list(range(200))
        assert got[0] and got[1]

    def test_consumers_take_turns_of_at_most_twenty_entries(self, make_raw, raw, topic):
        consumers = [make_raw() for _ in range(3)]
        for number, consumer in enumerate(consumers):
            consumer.subscribe(topic, "s", "Shared", consumer_name=f"c{number}")
            consumer.flow(1000)
            assert consumer.stats()["availablePermits"] == 1000
        raw.producer(topic)
        raw.write(b"".join(
            send_frame(entry_bytes(b"%d" % n, sequence_id=n), producer_id=1, sequence_id=n, num_messages=1) for n in range(300)))
        for sequence in range(300):
            raw.expect("SEND_RECEIPT", sequence_id=sequence)
        owners = {}
        for number, messages in enumerate(collect(consumers, 300)):
            for message in messages:
                owners.setdefault(int(message.payload), []).append(number)
        assert sorted(owners) == list(range(300)) and all(len(who) == 1 for who in owners.values())
        turns = [len(list(turn)) for _, turn in itertools.groupby(owners[n][0] for n in range(300))]
        assert max(turns) <= 20
        assert {who[0] for who in owners.values()} == {0, 1, 2}

    def test_the_messages_of_a_leaver_go_to_those_who_stay(self, make_raw, topic, publish):
        leaver, stayer = make_raw(), make_raw()
        leaver.subscribe(topic, "s", "Shared")
        leaver.flow(50)
        publish(50)
        leaver.messages(50)
        stayer.subscribe(topic, "s", "Shared")
        stayer.flow(100)
        stayer.expect_silence(0.2)
        leaver.close()
        assert sorted(int(m.payload) for m in stayer.messages(50)) == list(range(50))


class TestUnsupportedCommands:
    def test_end_of_a_transaction_command_leaves_the_connection_usable(self, raw):
        raw.send("NEW_TXN", request_id=1, txn_ttl_millis=1000, tc_id=0)
        answer = raw.next()
        assert answer.type in ("ERROR", "NEW_TXN_RESPONSE") and answer["request_id"] == 1
        raw.expect_alive()

    @pytest.mark.vela_only
    @pytest.mark.parametrize("command, fields", [
        ("TC_CLIENT_CONNECT_REQUEST", {"tc_id": 0}),
        ("NEW_TXN", {"txn_ttl_millis": 1000, "tc_id": 0}),
    ])
    def test_transactions_are_not_allowed(self, raw, command, fields):
        """As Apache Pulsar with transactions switched off."""
        assert raw.request(command, "ERROR", **fields)["error"] == "NotAllowedError"
        raw.expect_alive()

    @pytest.mark.vela_only
    def test_a_send_in_a_transaction_is_not_allowed(self, raw, topic):
        raw.producer(topic)
        raw.write(send_frame(
            entry_bytes(b"m"), producer_id=1, sequence_id=0, num_messages=1, txnid_least_bits=1, txnid_most_bits=1))
        raw.expect("SEND_ERROR", sequence_id=0, error="NotAllowedError")
