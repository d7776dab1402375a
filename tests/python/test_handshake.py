"""Connecting: versions, states, keep-alive."""

import pytest

from rawpulsar import command_frame


class TestConnectNegotiatesTheProtocolVersion:
    @pytest.mark.parametrize("offered, agreed", [(10, 10), (20, 20), (21, 21), (0, 0)])
    def test_the_lower_of_both_versions_is_used(self, open_raw, offered, agreed):
        connected = open_raw().connect(protocol_version=offered)
        assert connected["protocol_version"] == agreed

    def test_a_version_from_the_future_gets_the_brokers_own(self, open_raw):
        assert open_raw().connect(protocol_version=30)["protocol_version"] == 21

    def test_the_answer_is_complete(self, open_raw):
        connected = open_raw().connect()
        assert connected["server_version"]
        assert connected["max_message_size"] == 5 * 1024 * 1024
        assert "feature_flags" in connected.fields


class TestCommandsBeforeConnectCloseTheConnection:
    @pytest.mark.parametrize("command", [
        command_frame("PRODUCER", topic="persistent://public/default/early", producer_id=1, request_id=1),
        command_frame("SUBSCRIBE", topic="persistent://public/default/early", subscription="s", subType="Shared", consumer_id=1, request_id=1),
        command_frame("LOOKUP", topic="persistent://public/default/early", request_id=1),
        command_frame("FLOW", consumer_id=1, messagePermits=1),
    ], ids=["producer", "subscribe", "lookup", "flow"])
    def test_without_a_reply(self, open_raw, command):
        connection = open_raw()
        connection.write(command)
        connection.expect_closed()


def test_a_second_connect_closes_the_connection(open_raw):
    connection = open_raw()
    connection.connect()
    connection.send("CONNECT", client_version="again", protocol_version=21)
    connection.expect_closed()


def test_ping_is_answered_before_connect_and_after(open_raw):
    connection = open_raw()
    connection.expect_alive()
    connection.connect()
    connection.expect_alive()


def test_frames_that_arrive_byte_by_byte_and_all_at_once_are_the_same(open_raw):
    connection = open_raw()
    connect = command_frame("CONNECT", client_version="slow", protocol_version=21)
    for byte in connect:
        connection.write(bytes([byte]))
    connection.expect("CONNECTED")
    connection.write(command_frame("PING") * 500)
    for _ in range(500):
        connection.expect("PONG")


@pytest.mark.last
class TestSilentConnectionsAreClosed:
    """The sockets went silent when the session began (see conftest)."""

    @pytest.mark.parametrize("socket", ["nothing", "only a ping"])
    def test_without_connect_after_30_seconds(self, silent_sockets, socket):
        silent = silent_sockets[socket]
        silent.join(120)
        assert silent.closed_after is not None, "still open"
        # Before the interval after the next.
        assert 25 <= silent.closed_after < 60
        assert [kind for _, kind in silent.received] == ([] if socket == "nothing" else ["PONG"])

    def test_after_connect_a_ping_comes_at_30_seconds_and_the_close_by_60(self, silent_sockets):
        silent = silent_sockets["connected"]
        silent.join(150)
        assert silent.closed_after is not None, "still open"
        (at, kind), = silent.received
        assert kind == "PING" and 25 <= at < 60
        assert at < silent.closed_after and 30 <= silent.closed_after < 90
