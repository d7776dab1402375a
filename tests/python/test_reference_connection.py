"""Observed behaviour of Apache Pulsar 5.0.1, connections: states, unknown ids, keep-alive, lookups, listings and names."""

import struct
import time
import uuid

import pytest

from rawpulsar import NO_ID, ConnectionClosed, RawConnection, command_frame, entry_bytes, send_frame
from rawpulsar.frames import frame
from rawpulsar.wire import COMMANDS, varint

NAMESPACE = "public/default"


class TestFramesThatCloseTheConnection:
    @pytest.mark.parametrize("name", [
        "CONNECTED", "SEND_RECEIPT", "MESSAGE", "ACTIVE_CONSUMER_CHANGE", "AUTH_CHALLENGE", "PRODUCER_SUCCESS", "LOOKUP_RESPONSE"])
    def test_commands_only_a_broker_sends(self, raw, name):
        fields = {
            "CONNECTED": {"server_version": "x"}, "SEND_RECEIPT": {"producer_id": 1, "sequence_id": 1},
            "MESSAGE": {"consumer_id": 1, "message_id": {"ledgerId": 1, "entryId": 1}},
            "ACTIVE_CONSUMER_CHANGE": {"consumer_id": 1, "is_active": True}, "AUTH_CHALLENGE": {},
            "PRODUCER_SUCCESS": {"request_id": 1, "producer_name": "x"}, "LOOKUP_RESPONSE": {"request_id": 1},
        }[name]
        raw.send(name, **fields)
        raw.expect_closed()

    @pytest.mark.parametrize("name", ["PRODUCER", "SUBSCRIBE", "LOOKUP", "FLOW", "ACK", "SEEK", "PARTITIONED_METADATA"])
    def test_a_type_without_its_command(self, raw, name):
        raw.write(frame(b"\x08" + varint(COMMANDS[name][0])))
        raw.expect_closed()

    @pytest.mark.parametrize("data", [
        struct.pack(">I", 0), struct.pack(">IH", 2, 0), struct.pack(">II", 8, 100) + b"\x08\x12\x92\x01",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", frame(b"\x08\xe7\x07"),
    ], ids=["size-0", "size-2", "command-larger-than-frame", "http", "unknown-type"])
    def test_damaged_frames(self, raw, data):
        raw.write(data)
        raw.expect_closed()

    def test_flow_beyond_a_signed_number(self, raw, topic):
        raw.subscribe(topic, "s", "Shared")
        raw.flow(2**32 - 1)
        raw.expect_closed()


class TestConnecting:
    @pytest.mark.parametrize("version", [None, 0, -5])
    def test_versions_are_not_checked_below_the_brokers_own(self, open_raw, version):
        connected = open_raw().connect(protocol_version=version)
        assert connected["protocol_version"] == (version or 0)
        assert connected["max_message_size"] == 5 * 1024 * 1024
        assert connected["server_version"].startswith("Pulsar Server")

    @pytest.mark.parametrize("method", ["", "none", "token", "no-such-method"])
    def test_credentials_are_ignored_without_authentication(self, open_raw, method):
        connection = open_raw()
        connection.connect(auth_method_name=method, auth_data=b"whatever")
        connection.expect_alive()

    def test_a_target_broker_in_connect_is_accepted(self, open_raw, broker, topic):
        connection = open_raw()
        connection.connect(proxy_to_broker_url=f"{broker.host}:{broker.port}")
        connection.producer(topic)

    def test_pong_is_swallowed_in_any_state(self, open_raw):
        connection = open_raw()
        connection.send("PONG")
        connection.connect()
        connection.send("PONG")
        connection.expect_silence(0.1)
        connection.expect_alive()

    @pytest.mark.parametrize("connected", [False, True])
    def test_an_unexpected_auth_response_fails_authentication(self, open_raw, connected):
        connection = open_raw()
        if connected:
            connection.connect()
        connection.send(
            "AUTH_RESPONSE", client_version="x", response={"auth_method_name": "token", "auth_data": b"x"}, protocol_version=21)
        connection.expect("ERROR", request_id=NO_ID, error="AuthenticationError")
        connection.expect_closed()

    def test_an_auth_response_without_data_closes_the_connection(self, raw):
        raw.send("AUTH_RESPONSE", client_version="x", protocol_version=21)
        raw.expect_closed()


class TestOldPeers:
    @pytest.mark.parametrize("version", [5, 4])
    def test_a_consumer_is_closed_by_a_command_from_version_5_on(self, open_raw, topic, version):
        connection = open_raw()
        connection.connect(protocol_version=version)
        connection.subscribe(topic, "s", "Shared")
        connection.send("SEEK", consumer_id=1, request_id=900, message_publish_time=0)
        if version == 5:
            connection.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_ID)
            connection.expect("SUCCESS", request_id=900)
        else:
            connection.expect_closed()

    @pytest.mark.parametrize("version", [4, 3])
    def test_batches_go_to_version_4_and_later(self, open_raw, raw, topic, version):
        raw.producer(topic)
        raw.publish_batch([b"a", b"b"])
        old = open_raw()
        old.connect(protocol_version=version)
        old.subscribe(topic, "s", "Shared")
        old.flow(10)
        if version == 4:
            old.expect("MESSAGE")
        else:
            old.expect_closed()

    def test_a_batch_that_one_may_not_get_goes_to_the_next(self, open_raw, raw, topic):
        raw.producer(topic)
        raw.publish_batch([b"a", b"b"])
        raw.publish(b"single", sequence_id=2)
        old = open_raw()
        old.connect(protocol_version=3)
        old.subscribe(topic, "s", "Shared")
        raw.subscribe(topic, "s", "Shared")
        old.flow(10)
        old.expect_closed()
        raw.flow(10)
        assert raw.expect("MESSAGE").entry[1]["num_messages_in_batch"] == 2
        assert raw.expect("MESSAGE").payload == b"single"

    @pytest.mark.parametrize("version", [6, 10, 11])
    def test_the_checksum_goes_to_version_11_and_later(self, open_raw, raw, topic, version):
        raw.producer(topic)
        raw.publish(b"m")
        old = open_raw()
        old.connect(protocol_version=version)
        old.subscribe(topic, "s", "Shared")
        old.flow(10)
        assert old.expect("MESSAGE").entry[0] is (True if version >= 11 else None)


class TestUnknownConsumersAndProducers:
    def test_an_ack_with_a_request_id_gets_no_answer(self, raw):
        raw.send("ACK", consumer_id=99, ack_type="Individual", message_id=[{"ledgerId": 1, "entryId": 1}], request_id=5)
        raw.expect_silence(0.2)
        raw.expect_alive()

    @pytest.mark.parametrize("command, fields", [
        ("UNSUBSCRIBE", {}), ("GET_LAST_MESSAGE_ID", {}), ("SEEK", {"message_publish_time": 1})])
    def test_requests_say_that_the_consumer_is_not_found(self, raw, topic, command, fields):
        raw.subscribe(topic)
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        for consumer in (1, 99):
            answer = raw.request(command, "ERROR", consumer_id=consumer, **fields)
            assert answer["error"] == "MetadataError" and answer["message"].startswith("Consumer not found")

    def test_stats_of_a_closed_consumer_close_the_connection(self, raw, topic):
        raw.subscribe(topic)
        raw.request("CLOSE_CONSUMER", consumer_id=1)
        raw.send("CONSUMER_STATS", consumer_id=1, request_id=5)
        raw.expect_closed()

    def test_after_unsubscribe_the_id_is_unknown(self, raw, topic):
        raw.subscribe(topic)
        raw.request("UNSUBSCRIBE", consumer_id=1)
        assert raw.request("UNSUBSCRIBE", "ERROR", consumer_id=1)["error"] == "MetadataError"
        raw.request("CLOSE_CONSUMER", consumer_id=1)


@pytest.fixture(scope="module")
def quick(make_broker):
    return make_broker(arguments=["--keep-alive-interval-seconds", "1"]).start()


class TestKeepAlive:
    """On a broker of our own whose interval is one second."""

    pytestmark = pytest.mark.restart

    @pytest.fixture
    def connect(self, quick):
        opened = []

        def make(**options):
            opened.append(RawConnection(quick.host, quick.port, pong=False))
            opened[-1].connect(**options)
            return opened[-1]

        yield make
        for connection in opened:
            connection.close()

    def test_a_silent_peer_is_asked_and_then_dropped(self, connect):
        began = time.monotonic()
        connection = connect()
        assert connection.receive().type == "PING"
        assert time.monotonic() - began >= 0.9
        connection.expect_closed()
        # After its own intervals of a second, not after those of 30 that are usual.
        assert 1.9 <= time.monotonic() - began < 25

    @staticmethod
    def live(connect, say):
        """Says something every half second, four times as long as silence is suffered. A machine that stops this test makes its peer
        silent: then it is played again."""
        for _ in range(20):
            connection, longest = connect(), 0
            last = time.monotonic()
            try:
                for number in range(8):
                    say(connection, number)
                    longest = max(longest, time.monotonic() - last)
                    last = time.monotonic()
                    time.sleep(0.5)
                connection.expect_alive()
                return
            except (ConnectionClosed, AssertionError):
                if max(longest, time.monotonic() - last) < 0.9:
                    raise
        raise AssertionError("the machine never let this test run for four seconds")

    def test_any_command_counts_as_life(self, connect):
        def say(connection, number):
            connection.request("LOOKUP", "LOOKUP_RESPONSE", topic="persistent://public/default/alive")

        self.live(connect, say)

    def test_pongs_keep_it_open(self, connect):
        def say(connection, number):
            try:
                while True:
                    assert connection.receive(0.01).type == "PING"
                    connection.send("PONG")
            except TimeoutError:
                pass

        self.live(connect, say)

    def test_version_0_is_neither_asked_nor_dropped(self, connect):
        connection = connect(protocol_version=0)
        with pytest.raises(TimeoutError):
            connection.receive(4)
        connection.send("PING")
        assert connection.receive().type == "PONG"


@pytest.mark.restart
def test_without_a_liveness_check_the_newcomer_is_refused_at_once(make_broker, topic):
    broker = make_broker(arguments=["--connection-liveness-check-timeout-millis", "0"]).start()
    with RawConnection(broker.host, broker.port) as holder, RawConnection(broker.host, broker.port) as other:
        for connection in (holder, other):
            connection.connect()
        holder.subscribe(topic)
        holder.producer(topic, producer_name="x")
        refused = other.request("SUBSCRIBE", "ERROR", topic=topic, subscription="sub", subType="Exclusive", consumer_id=1)
        assert refused["error"] == "ConsumerBusy"
        assert other.request("PRODUCER", "ERROR", topic=topic, producer_id=1, producer_name="x")["error"] == "ProducerBusy"
        # The holder was not asked: nothing came before the answer to this.
        holder.send("PING")
        assert holder.receive().type == "PONG"


@pytest.mark.restart
def test_one_connection_too_many_is_told_so_and_closed(make_broker):
    broker = make_broker(arguments=["--broker-max-connections", "2"]).start()
    with RawConnection(broker.host, broker.port) as one, RawConnection(broker.host, broker.port) as two:
        one.connect()
        two.connect()
        with RawConnection(broker.host, broker.port) as three:
            three.expect("ERROR", request_id=NO_ID, error="NotAllowedError")
            three.expect_closed()
        one.expect_alive()
        two.close()
        deadline = time.monotonic() + 60
        while True:
            with RawConnection(broker.host, broker.port) as again:
                again.send("CONNECT", client_version="x", protocol_version=21)
                if again.next().type == "CONNECTED":
                    break
            assert time.monotonic() < deadline, "the place of a connection that left is not free again"
            time.sleep(0.05)


class TestLookups:
    def test_go_through_the_service_url_on_loopback(self, raw, topic):
        assert raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)["proxy_through_service_url"] is True

    def test_a_missing_namespace_is_named(self, raw):
        answer = raw.request("LOOKUP", "LOOKUP_RESPONSE", topic="persistent://public/nowhere/t")
        assert (answer["response"], answer["error"]) == ("Failed", "TopicNotFound")
        assert answer["message"].startswith("Namespace ")

    def test_opening_in_a_missing_namespace_asks_for_another_lookup(self, raw):
        name = "persistent://public/nowhere/t"
        answers = [
            raw.request("PRODUCER", "ERROR", topic=name, producer_id=1),
            raw.request("SUBSCRIBE", "ERROR", topic=name, subscription="s", subType="Shared", consumer_id=1),
        ]
        assert [a["error"] for a in answers] == ["ServiceNotReady"] * 2
        raw.expect_alive()

    def test_neither_lookup_nor_partitioned_metadata_creates_a_topic(self, raw, topic):
        raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
        raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic, metadata_auto_creation_enabled=True)
        answer = raw.request(
            "SUBSCRIBE", "ERROR", topic=topic, subscription="s", subType="Shared", consumer_id=1, force_topic_creation=False)
        assert answer["error"] == "TopicNotFound"

    def test_metadata_without_leave_to_create_fails_until_the_topic_is_there(self, raw, topic):
        ask = dict(topic=topic, metadata_auto_creation_enabled=False)
        answer = raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **ask)
        assert (answer["response"], answer["error"]) == ("Failed", "TopicNotFound")
        raw.producer(topic)
        answer = raw.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **ask)
        assert (answer["response"], answer["partitions"]) == ("Success", 0)


class TestTopicsOfANamespace:
    @pytest.fixture
    def ask(self, raw):
        return lambda namespace=NAMESPACE, **fields: raw.request(
            "GET_TOPICS_OF_NAMESPACE", "GET_TOPICS_OF_NAMESPACE_RESPONSE", namespace=namespace, **{"mode": "PERSISTENT", **fields})

    @pytest.fixture
    def few(self, raw):
        """Three topics, and a pattern that means two of them."""
        prefix = f"persistent://public/default/gt{uuid.uuid4().hex[:6]}"
        names = [f"{prefix}-a", f"{prefix}-b", f"{prefix}z"]
        for number, name in enumerate(names):
            raw.producer(name, producer_id=number)
        return names, prefix + "-.*"

    def test_are_listed_with_a_hash_and_not_again(self, few, ask):
        first = ask()
        assert first["changed"] is True
        assert [name for name in first["topics"] if name in few[0]] == few[0]
        again = ask(topics_hash=first["topics_hash"])
        # Another test may make a topic in between, so only a hash that stayed the same must bring nothing.
        if again["topics_hash"] == first["topics_hash"]:
            assert (again.get("topics", []), again["changed"]) == ([], False)

    def test_a_pattern_is_applied(self, few, ask):
        names, pattern = few
        answer = ask(topics_pattern=pattern)
        assert (answer["filtered"], answer["topics"]) == (True, names[:2])

    def test_without_a_pattern_all_come(self, raw, topic, ask):
        raw.producer(topic)
        answer = ask()
        assert topic in answer["topics"] and answer["filtered"] is False

    def test_a_long_pattern_filters_nothing(self, raw, topic, ask):
        raw.producer(topic)
        answer = ask(topics_pattern="persistent://public/default/" + "z" * 60)
        assert topic in answer["topics"] and answer["filtered"] is False

    def test_a_missing_namespace_has_none(self, ask):
        answer = ask("public/nowhere")
        assert (answer.get("topics", []), answer["topics_hash"]) == ([], "00000000")

    def test_a_broken_pattern_is_refused(self, raw):
        answer = raw.request("GET_TOPICS_OF_NAMESPACE", "ERROR", namespace=NAMESPACE, mode="PERSISTENT", topics_pattern="a[")
        assert answer["error"] == "MetadataError"
        raw.expect_alive()

    def test_a_namespace_without_a_slash_closes_the_connection(self, raw):
        raw.send("GET_TOPICS_OF_NAMESPACE", request_id=1, namespace="nonsense", mode="PERSISTENT")
        raw.expect_closed()


class TestNames:
    @pytest.mark.parametrize("ending", ["-partition-01", "-partition-x", "-partition-", "-partition--1", "-partition-1x"])
    def test_that_only_look_like_a_partition_are_ordinary(self, raw, topic, ending):
        raw.producer(topic + ending)
        raw.publish(b"m")

    def test_a_partition_without_a_partitioned_topic_is_refused(self, raw, topic):
        assert raw.request("PRODUCER", "ERROR", topic=topic + "-partition-0", producer_id=1)["error"] == "NotAllowedError"
        answer = raw.request(
            "SUBSCRIBE", "ERROR", topic=topic + "-partition-3", subscription="s", subType="Shared", consumer_id=1)
        assert answer["error"] == "NotAllowedError"

    @pytest.mark.parametrize("local", ["ünïcode", "a b", "with%20percent", "q?x=1&y=2#z", "a:b;c,d", "..", "*", "\u4e16\u754c", " leading"])
    def test_may_hold_almost_any_character(self, raw, topic, local):
        name = topic.replace("default/", "default/" + local, 1) if local == " leading" else topic + local
        raw.producer(name)
        raw.publish(local.encode())
        raw.subscribe(name)
        raw.flow(1)
        assert raw.expect("MESSAGE").payload == local.encode()

    def test_a_trailing_blank_is_not_created(self, raw, topic):
        assert raw.request("PRODUCER", "ERROR", topic=topic + " ", producer_id=1)["error"] == "TopicNotFound"

    @pytest.mark.parametrize("name", ["persistent://public/default/ ", "persistent://public/default/a/b", "topic/", "", "persistent://"])
    def test_invalid_ones_say_so(self, raw, name):
        answer = raw.request("LOOKUP", "LOOKUP_RESPONSE", topic=name)
        assert (answer["response"], answer["error"]) == ("Failed", "InvalidTopicName")
        assert answer["message"].startswith("Invalid topic name: ")
        answer = raw.request("PRODUCER", "ERROR", topic=name, producer_id=1)
        assert answer["message"].startswith("Invalid topic name: ")

    def test_a_short_name_is_the_same_topic(self, raw, topic):
        raw.producer(topic.rsplit("/", 1)[1])
        position = raw.publish(b"m").position
        raw.subscribe(topic)
        raw.flow(1)
        assert raw.expect("MESSAGE").position == position


def test_send_behind_a_closed_connection_state_does_not_reach_others(raw, make_raw, topic):
    """The frames behind the one that closed the connection are not handled."""
    raw.producer(topic)
    raw.write(command_frame("CONNECTED", server_version="x") + send_frame(entry_bytes(b"late"), producer_id=1, sequence_id=0, num_messages=1))
    raw.expect_closed()
    other = make_raw()
    other.subscribe(topic)
    other.flow(1)
    other.expect_silence(0.2)


@pytest.fixture(scope="module")
def slow_topics(make_broker):
    return make_broker(cores=2, arguments=["--keep-alive-interval-seconds", "3", "--max-publish-rate-per-topic-in-messages", "1"]).start()


@pytest.mark.restart
def test_a_rate_that_holds_a_connection_does_not_make_it_silent(slow_topics, topic):
    with RawConnection(slow_topics.host, slow_topics.port, pong=False) as connection:
        connection.connect()
        connection.producer(topic)
        # Eleven seconds' worth, and behind it more than is read ahead: no PONG is seen before those are over.
        connection.socket.sendall(send_frame(entry_bytes(b"x", num_messages_in_batch=12), producer_id=1, sequence_id=0, num_messages=12))
        connection.socket.sendall(send_frame(entry_bytes(bytes(200_000)), producer_id=1, sequence_id=1))
        seen = []
        while seen.count("SEND_RECEIPT") < 2:
            seen.append(connection.receive(60).type)
            if seen[-1] == "PING":
                connection.send("PONG")
        assert seen.count("PING") >= 3
        connection.expect_alive()


@pytest.mark.restart
def test_a_rate_does_not_excuse_a_peer_of_which_all_is_read(slow_topics, topic):
    with RawConnection(slow_topics.host, slow_topics.port, pong=False) as connection:
        connection.connect()
        connection.producer(topic)
        # An hour's worth, and one behind it that is read ahead. A PONG would be seen; none comes.
        connection.socket.sendall(send_frame(entry_bytes(b"x", num_messages_in_batch=3600), producer_id=1, sequence_id=0, num_messages=3600))
        connection.socket.sendall(send_frame(entry_bytes(b"x"), producer_id=1, sequence_id=1))
        assert connection.receive().type == "SEND_RECEIPT"
        with pytest.raises(ConnectionClosed):
            for _ in range(8):
                assert connection.receive(25).type == "PING"


@pytest.mark.restart
def test_a_rate_on_another_core_leaves_pings_answered(slow_topics, topic):
    """Eight topics, so that some live on another core than their connection."""
    for number in range(8):
        with RawConnection(slow_topics.host, slow_topics.port) as connection:
            connection.connect()
            connection.producer(f"{topic}-{number}")
            first = send_frame(entry_bytes(b"x", num_messages_in_batch=3600), producer_id=1, sequence_id=0, num_messages=3600)
            connection.socket.sendall(first)
            assert connection.receive().type == "SEND_RECEIPT"
            connection.socket.sendall(send_frame(entry_bytes(b"x"), producer_id=1, sequence_id=1))
            connection.send("PING")
            assert connection.receive().type == "PONG"
