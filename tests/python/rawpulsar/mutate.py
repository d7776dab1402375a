"""Damaged frames from a seed: real frames with their bytes, lengths and order changed."""

import struct

from .frames import MAX_TOTAL_SIZE, batch_payload, command_frame, crc32c, entry_bytes, send_frame

CONNECT = command_frame("CONNECT", client_version="mutant", protocol_version=21)


def seed_frames(topic):
    """One good frame of every command a client sends, (weight, frame). Commands that create topics are rare on purpose:
    a damaged name makes a new topic each time."""
    id = {"ledgerId": 3, "entryId": 4, "partition": -1, "batch_index": 2, "ack_set": [7, -1]}
    batch = entry_bytes(batch_payload([b"a", b"bb", b"ccc"]), num_messages_in_batch=3, highest_sequence_id=2)
    return [
        (4, CONNECT),
        (1, command_frame("PRODUCER", topic=topic, producer_id=1, request_id=1, producer_name="mutant", epoch=0)),
        (1, command_frame("SUBSCRIBE", topic=topic, subscription="mutants", subType="Shared", consumer_id=1, request_id=2,
                          initialPosition="Earliest", metadata=[{"key": "k", "value": "v"}])),
        (8, send_frame(entry_bytes(b"payload" * 20), producer_id=1, sequence_id=0, num_messages=1)),
        (8, send_frame(batch, producer_id=1, sequence_id=0, num_messages=3, highest_sequence_id=2)),
        (4, send_frame(entry_bytes(b"payload", "none"), producer_id=1, sequence_id=1, num_messages=1)),
        (4, command_frame("FLOW", consumer_id=1, messagePermits=100)),
        (6, command_frame("ACK", consumer_id=1, ack_type="Individual", message_id=[id, id], request_id=3)),
        (3, command_frame("ACK", consumer_id=1, ack_type="Cumulative", message_id=[id], request_id=4)),
        (3, command_frame("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=[id])),
        (2, command_frame("SEEK", consumer_id=1, request_id=5, message_id=id)),
        (2, command_frame("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=6)),
        (2, command_frame("CONSUMER_STATS", consumer_id=1, request_id=7)),
        (1, command_frame("UNSUBSCRIBE", consumer_id=1, request_id=8)),
        (2, command_frame("CLOSE_PRODUCER", producer_id=1, request_id=9)),
        (2, command_frame("CLOSE_CONSUMER", consumer_id=1, request_id=10)),
        (2, command_frame("LOOKUP", topic=topic, request_id=11, authoritative=False)),
        (2, command_frame("PARTITIONED_METADATA", topic=topic, request_id=12)),
        (2, command_frame("GET_TOPICS_OF_NAMESPACE", namespace="public/mutants", request_id=13, mode="ALL")),
        (2, command_frame("GET_SCHEMA", topic=topic, request_id=14)),
        (1, command_frame("WATCH_TOPIC_LIST", namespace="public/mutants", request_id=15, watcher_id=1, topics_pattern=".*")),
        (2, command_frame("AUTH_RESPONSE", client_version="mutant", response={"auth_method_name": "none", "auth_data": b"x"})),
        (2, command_frame("PING")),
        (2, command_frame("PONG")),
    ]


def _flip_bits(rng, data):
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)


def _overwrite(rng, data):
    at = rng.randrange(len(data))
    count = rng.randint(1, 12)
    data[at : at + count] = rng.randbytes(count)


def _cut(rng, data):
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 12)]


def _insert(rng, data):
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice([rng.randbytes(rng.randint(1, 12)), b"\xff" * 10, b"\x80" * 11, b"\0" * 8])


def _duplicate(rng, data):
    start = rng.randrange(len(data))
    data[start:start] = data[start : start + rng.randint(1, 40)]


def _wrong_total_size(rng, data):
    size = rng.choice([0, 1, 3, 4, 5, len(data) - 5, len(data) + 7, MAX_TOTAL_SIZE, MAX_TOTAL_SIZE + 1, 2**31, 2**32 - 1])
    data[0:4] = struct.pack(">I", size & 0xFFFFFFFF)


def _wrong_command_size(rng, data):
    size = rng.choice([0, 1, len(data), len(data) - 9, MAX_TOTAL_SIZE, 2**31 - 1, 2**31, 2**32 - 1])
    data[4:8] = struct.pack(">I", size & 0xFFFFFFFF)


def _wrong_magic(rng, data):
    at = data.find(b"\x0e\x01")
    if at >= 0:
        data[at : at + 2] = rng.choice([b"\x0e\x02", b"\x0e\x00", b"\x0f\x01", b"\xff\xff", b"\x00\x00"])


def _other_type(rng, data):
    if len(data) > 9:
        data[9] = rng.randrange(128)


IN_PLACE = [_flip_bits, _overwrite, _wrong_command_size, _wrong_magic, _other_type]
RESIZING = [_cut, _insert, _duplicate]


def mutate(rng, frame):
    """A damaged copy of a frame. Half the time the total size is put right again, so that the damage reaches the parser."""
    data = bytearray(frame)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.08:
            _wrong_total_size(rng, data)
            return bytes(data)
        rng.choice(IN_PLACE + RESIZING)(rng, data)
        if len(data) < 10:
            return bytes(data)
    if rng.random() < 0.75:
        data[0:4] = struct.pack(">I", len(data) - 4)
    return bytes(data)


def mutate_entry(rng, entry):
    """A SEND to producer 1 whose command is good and whose entry is damaged; now and then under a right checksum, so
    that the damage is stored and dispatched."""
    data = bytearray(entry)
    for _ in range(rng.choice([1, 1, 2])):
        rng.choice([_flip_bits, _overwrite, _wrong_magic, *RESIZING])(rng, data)
    if rng.random() < 0.4 and len(data) > 6:
        data[0:6] = b"\x0e\x01" + struct.pack(">I", crc32c(data[6:]))
    sequence = _number(rng)
    return send_frame(bytes(data), producer_id=1, sequence_id=sequence, num_messages=rng.choice([1, 1, 3, 0, -1, 2**31 - 1]),
                      highest_sequence_id=rng.choice([None, sequence + 2 & 2**64 - 1, _number(rng)]))


def _number(rng):
    return rng.choice([0, 1, 2, rng.randrange(100), rng.randrange(2**32), 2**31 - 1, 2**63 - 1, 2**63, 2**64 - 1, rng.randrange(2**64)])


def wild(rng, positions):
    """A well-formed command with absurd values, for consumer 1 or 2."""
    def id():
        ledger, entry = rng.choice(positions) if positions and rng.random() < 0.6 else (_number(rng), _number(rng))
        return {
            "ledgerId": ledger, "entryId": entry,
            "batch_index": rng.choice([None, -1, 0, 5, 2**31 - 1, -(2**31)]),
            "batch_size": rng.choice([None, 0, 3, -1, 2**31 - 1]),
            "ack_set": rng.choice([[], [], [0], [-1], [5], [_number(rng) for _ in range(rng.randint(1, 40))]]),
        }

    consumer = rng.choice([1, 1, 1, 2])
    kind = rng.randrange(8)
    if kind <= 2:
        return command_frame("ACK", consumer_id=consumer, ack_type=rng.choice(["Individual", "Individual", "Cumulative"]),
                             message_id=[id() for _ in range(rng.choice([0, 1, 1, 2, 30]))],
                             request_id=rng.choice([None, _number(rng)]), validation_error=rng.choice([None, 0, 2, 4]))
    if kind == 3:
        return command_frame("FLOW", consumer_id=consumer, messagePermits=rng.choice([1, 5, 1000, 2**31 - 1, 2**31, 0]))
    if kind == 4:
        return command_frame("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=consumer,
                             message_ids=[id() for _ in range(rng.choice([0, 1, 3]))],
                             consumer_epoch=rng.choice([None, _number(rng)]))
    if kind == 5:
        return command_frame("SEEK", consumer_id=consumer, request_id=_number(rng), message_id=rng.choice([None, id()]),
                             message_publish_time=rng.choice([None, _number(rng)]))
    if kind == 6:
        return command_frame("GET_LAST_MESSAGE_ID", consumer_id=consumer, request_id=_number(rng))
    return command_frame("CONSUMER_STATS", consumer_id=1, request_id=_number(rng))
