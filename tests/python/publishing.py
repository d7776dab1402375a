"""What tests publish, and how they take it: by official clients and by raw connections."""

import json
import time
import urllib.error
import urllib.request

import pulsar

from rawpulsar import entry_bytes, send_frame
from waiting import LIMIT_MS, LIMIT_SECONDS

EARLIEST = pulsar.InitialPosition.Earliest
SHARED, EXCLUSIVE = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive
FAILOVER, KEY_SHARED = pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared


def publish(client, topic, payloads, **options):
    """Ids by payload."""
    producer = client.create_producer(topic, max_pending_messages=20_000, **options)
    ids = {}
    for payload in payloads:
        producer.send_async(payload, lambda result, id, payload=payload: ids.__setitem__(payload, id))
    producer.flush()
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(ids) < len(payloads):
        assert time.monotonic() < deadline, f"{len(ids)} of {len(payloads)} receipts"
        time.sleep(0.005)
    producer.close()
    return ids


def numbers(count, start=0):
    return [b"%d" % n for n in range(start, start + count)]


def take(consumer, count, timeout_ms=LIMIT_MS, ack=True):
    messages = []
    for _ in range(count):
        messages.append(consumer.receive(timeout_ms))
        if ack:
            consumer.acknowledge(messages[-1])
    return messages


def publish_raw(raw, topic, count, start=0, producer_id=50, **metadata):
    """Single messages with their numbers as payloads, all in one go, by a raw producer that is left open. Their positions."""
    if not start:
        raw.producer(topic, producer_id=producer_id)
    sequence = range(start, start + count)
    raw.write(b"".join(
        send_frame(entry_bytes(b"%d" % n, sequence_id=n, **metadata), producer_id=producer_id, sequence_id=n, num_messages=1)
        for n in sequence))
    return [raw.expect("SEND_RECEIPT", producer_id=producer_id, sequence_id=n).position for n in sequence]


def message_ids(positions):
    return [{"ledgerId": ledger, "entryId": entry} for ledger, entry in positions]


def admin(broker, method, path, body=None):
    """Status and JSON (or text) of an answer of the web port."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.admin + path, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def admin_path(topic):
    return "/admin/v2/" + topic.replace("://", "/")


def topic_stats(broker, topic):
    status, stats = admin(broker, "GET", admin_path(topic) + "/stats")
    assert status == 200, stats
    return stats


def make_partitions(broker, topic, count):
    status, text = admin(broker, "PUT", admin_path(topic) + "/partitions", count)
    assert status == 204, text
