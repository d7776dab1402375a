"""Frames that are too large, damaged or out of place close their own connection and no other."""

import struct

import pytest

from rawpulsar import MAX_TOTAL_SIZE, command_frame, encode
from rawpulsar.frames import base_command, frame
from rawpulsar.wire import varint


def test_the_largest_frame_is_accepted(raw):
    ping = base_command("PING", {})
    body = struct.pack(">I", len(ping)) + ping
    raw.write(struct.pack(">I", MAX_TOTAL_SIZE) + body.ljust(MAX_TOTAL_SIZE, b"\0"))
    raw.expect("PONG")
    raw.expect_alive()


def test_one_byte_more_closes_the_connection_at_its_size_field(raw, make_raw):
    bystander = make_raw()
    raw.write(struct.pack(">I", MAX_TOTAL_SIZE + 1))
    raw.expect_closed()
    bystander.expect_alive()


def _unknown_type():
    return frame(b"\x08" + varint(1000) + varint(1000 << 3 | 2) + b"\0")


GARBAGE = {
    "random command bytes": frame(bytes.fromhex("ff13c2a7900158de6b2f")),
    "total size 0": struct.pack(">I", 0),
    "total size 2": struct.pack(">I", 2) + b"\0\0",
    "command larger than the frame": struct.pack(">II", 10, 500) + b"\x08\x12\x92\x01\0\0",
    "unknown command number": _unknown_type(),
    "type without its sub-message": frame(b"\x08\x05"),
    "required field missing": frame(base_command("PRODUCER", encode("CommandProducer", {"topic": "t"}))),
    "text of another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a command only brokers send": command_frame("CONNECTED", server_version="me", protocol_version=21),
    "a receipt": command_frame("SEND_RECEIPT", producer_id=1, sequence_id=1),
    "a message": frame(base_command("MESSAGE", {"consumer_id": 1, "message_id": {"ledgerId": 1, "entryId": 1}})),
}


@pytest.mark.parametrize("bytes_", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_closes_only_its_own_connection(raw, make_raw, bytes_):
    bystander = make_raw()
    raw.write(bytes_)
    raw.expect_closed()
    bystander.expect_alive()
    make_raw()


def test_bytes_behind_a_plain_command_are_ignored(raw):
    raw.write(frame(base_command("PING", {}), b"trailing bytes"))
    raw.expect("PONG")
    raw.expect_alive()


def test_unknown_fields_of_a_command_are_ignored(raw):
    body = encode("CommandLookupTopic", {"topic": "persistent://public/default/extra", "request_id": 7})
    body += varint(1900 << 3 | 2) + varint(3) + b"new" + varint(1901 << 3) + varint(5)
    raw.write(frame(base_command("LOOKUP", body)))
    raw.expect("LOOKUP_RESPONSE", request_id=7, response="Connect")
