"""Frames of the Pulsar binary protocol: plain commands, SEND with and without a checksum, entries and batches."""

import struct
import time

from . import wire

#: The largest total_size a broker with the default 5 MiB message limit accepts: 5 MiB + 10 KiB, less the size field itself.
MAX_TOTAL_SIZE = 5 * 1024 * 1024 + 10 * 1024 - 4
CHECKSUM_MAGIC = b"\x0e\x01"


def _crc_table():
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        rows.append(byte)
    return rows


_CRC = _crc_table()


def crc32c(data):
    """CRC-32C (Castagnoli). The check value of b"123456789" is 0xE3069283."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def base_command(command_type, body):
    """The bytes of a BaseCommand: its type and the matching sub-message, given as a dictionary or as ready bytes."""
    number, message = wire.COMMANDS[command_type]
    if not isinstance(body, bytes):
        body = wire.encode(message, body)
    return b"\x08" + wire.varint(number) + wire.varint(number << 3 | 2) + wire.varint(len(body)) + body


def frame(command, rest=b""):
    """A whole frame around a ready BaseCommand and what follows it."""
    return struct.pack(">II", len(command) + len(rest) + 4, len(command)) + command + rest


def command_frame(command_type, **fields):
    """A frame that is only a command."""
    return frame(base_command(command_type, fields))


def entry_bytes(payload, checksum="good", metadata=None, **metadata_fields):
    """What a SEND carries behind its command. `checksum` is "good", "bad" or "none"; `metadata` replaces the
    encoded MessageMetadata by bytes of the caller's."""
    if metadata is None:
        metadata_fields.setdefault("producer_name", "raw")
        metadata_fields.setdefault("sequence_id", 0)
        metadata_fields.setdefault("publish_time", int(time.time() * 1000))
        metadata = wire.encode("MessageMetadata", metadata_fields)
    body = struct.pack(">I", len(metadata)) + metadata + payload
    if checksum == "none":
        return body
    value = crc32c(body) ^ (0xDEADBEEF if checksum == "bad" else 0)
    return CHECKSUM_MAGIC + struct.pack(">I", value) + body


def send_frame(entry, **send_fields):
    """A SEND frame with ready entry bytes."""
    return frame(base_command("SEND", send_fields), entry)


def batch_payload(payloads, first_sequence_id=0):
    """The uncompressed payload of a batch: each message behind its SingleMessageMetadata."""
    out = bytearray()
    for index, payload in enumerate(payloads):
        fields = {"payload_size": len(payload), "sequence_id": first_sequence_id + index}
        single = wire.encode("SingleMessageMetadata", fields)
        out += struct.pack(">I", len(single)) + single + payload
    return bytes(out)


def split_batch(payload, count):
    """The (metadata, payload) pairs of an uncompressed batch."""
    messages, at = [], 0
    for _ in range(count):
        (size,) = struct.unpack_from(">I", payload, at)
        single = wire.decode("SingleMessageMetadata", payload[at + 4 : at + 4 + size])
        at += 4 + size
        messages.append((single, payload[at : at + single["payload_size"]]))
        at += single["payload_size"]
    assert at == len(payload), f"{len(payload) - at} bytes behind the last message of the batch"
    return messages


def parse_entry(entry):
    """(checksum verdict, metadata, payload) of entry bytes. The verdict is True, False, or None without a checksum."""
    verdict = None
    if entry[:2] == CHECKSUM_MAGIC:
        (value,) = struct.unpack_from(">I", entry, 2)
        entry = entry[6:]
        verdict = value == crc32c(entry)
    (size,) = struct.unpack_from(">I", entry)
    return verdict, wire.decode("MessageMetadata", entry[4 : 4 + size]), bytes(entry[4 + size :])
