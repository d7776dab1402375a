"""The admin API on topics and subscriptions, with clients at work: what it says, what it changes, and that a change survives kill -9."""

import concurrent.futures
import json
import time
import urllib.error
import urllib.request
import uuid

import pulsar
import pytest

LIMIT = 30


class Admin:
    def __init__(self, broker):
        self.broker = broker

    def call(self, method, path, body=None):
        """Status and JSON (or None) of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        request = urllib.request.Request(self.broker.admin + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, None

    def does(self, method, path, body=None, status=204):
        got, answer = self.call(method, path, body)
        assert got == status, f"{method} {path}: {got} {answer}"
        return answer

    def get(self, path):
        return self.does("GET", path, status=200)


@pytest.fixture
def admin(broker):
    return Admin(broker)


@pytest.fixture
def path(topic):
    return "/admin/v2/" + topic.replace("://", "/")


def until(what, check):
    """Polls until `check` is true."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {LIMIT} s: {what}")


def payloads(consumer, count):
    got = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=LIMIT * 1000)
        got.append(message.data().decode())
        consumer.acknowledge(message)
    return got


def fill(client, topic, count, start=0):
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(start, start + count):
        producer.send(f"m{i}".encode())
    return producer


def test_of_concurrent_creations_one_succeeds(admin, topic, path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = sorted(status for status, _ in pool.map(lambda _: admin.call("PUT", path), range(8)))
    assert statuses == [204] + [409] * 7
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = pool.map(lambda _: admin.call("PUT", f"{path}-p/partitions", 2), range(8))
        statuses = sorted(status for status, _ in calls)
    assert statuses == [204] + [409] * 7
    admin.does("DELETE", path)
    admin.does("DELETE", f"{path}-p/partitions")


def test_statistics_count_what_clients_did(admin, topic, path, make_client):
    client = make_client()
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="c")
    producer = fill(client, topic, 10)
    assert payloads(consumer, 4) == ["m0", "m1", "m2", "m3"]
    stats = until("four acknowledged", lambda: (s := admin.get(f"{path}/stats"))["subscriptions"]["s"]["msgBacklog"] == 6 and s)
    assert (stats["msgInCounter"], stats["subscriptions"]["s"]["type"]) == (10, "Shared")
    assert [p["producerName"] for p in stats["publishers"]] == [producer.producer_name()]
    assert stats["publishers"][0]["address"].startswith("/127.0.0.1:")
    assert stats["publishers"][0]["clientVersion"].startswith("Pulsar-CPP")
    assert [c["consumerName"] for c in stats["subscriptions"]["s"]["consumers"]] == ["c"]
    assert stats["subscriptions"]["s"]["msgOutCounter"] == 10
    without = admin.get(f"{path}/stats?excludePublishers=true&excludeConsumers=true")
    assert without["publishers"] == [] and without["subscriptions"]["s"]["consumers"] == []
    internal = admin.get(f"{path}/internalStats")
    assert (internal["numberOfEntries"], internal["entriesAddedCounter"]) == (10, 10)


def test_a_topic_with_clients_is_deleted_by_force_only(admin, topic, path, make_client):
    client = make_client()
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = fill(client, topic, 3)
    status, answer = admin.call("DELETE", path)
    assert (status, answer["reason"]) == (
        412, "Topic has 2 clients connected Including 1 consumers, 1 producers, and 0 replicators.",
    )
    before = admin.get(f"{path}/stats")
    admin.does("DELETE", f"{path}?force=true")
    # The clients come back and make the topic anew: it is another one, and empty.
    stats = until("the clients are back", lambda: back(admin, path))
    assert stats["msgInCounter"] == 0 and stats["publishers"][0]["producerName"] == producer.producer_name()
    assert stats["topicCreationTimeStamp"] >= before["topicCreationTimeStamp"]
    fill(client, topic, 1, start=100)
    deadline = time.monotonic() + LIMIT
    while (message := consumer.receive(timeout_millis=LIMIT * 1000)).data() != b"m100":
        # Messages that the client had in hand before.
        assert time.monotonic() < deadline
        consumer.acknowledge(message)


def back(admin, path):
    status, stats = admin.call("GET", f"{path}/stats")
    if status == 200 and stats["publishers"] and stats["subscriptions"].get("s", {}).get("consumers"):
        return stats
    return None


def test_an_unloaded_topic_serves_the_same_clients(admin, topic, path, make_client):
    client = make_client()
    consumer = client.subscribe(topic, "s")
    producer = fill(client, topic, 2)
    assert payloads(consumer, 2) == ["m0", "m1"]
    # What the client has not sent yet of its acks is lost with the consumer.
    until("acknowledged", lambda: admin.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0)
    admin.does("PUT", f"{path}/unload")
    producer.send(b"after")
    assert payloads(consumer, 1) == ["after"]
    assert admin.get(f"{path}/stats")["msgInCounter"] == 1


def test_cursors_move_where_they_are_told(admin, topic, path, make_client):
    client = make_client()
    fill(client, topic, 10)
    sub = f"{path}/subscription/s"
    admin.does("PUT", sub, "earliest")
    peek = lambda n: admin.broker.http(f"{sub}/position/{n}")
    assert (peek(1), peek(10)) == ("m0", "m9")
    assert admin.call("GET", f"{sub}/position/11")[0] == 404
    admin.does("POST", f"{sub}/skip/3")
    assert peek(1) == "m3"
    ledger = admin.get(f"{path}/lastMessageId")["ledgerId"]
    admin.does("POST", f"{sub}/resetcursor", {"ledgerId": ledger, "entryId": 1, "partitionIndex": -1})
    assert peek(1) == "m1"
    admin.does("POST", f"{sub}/resetcursor", {"ledgerId": ledger, "entryId": 1, "partitionIndex": -1, "excluded": True})
    assert peek(1) == "m2"
    admin.does("POST", f"{sub}/expireMessages", {"ledgerId": ledger, "entryId": 4, "partitionIndex": -1})
    assert peek(1) == "m5"
    admin.does("POST", f"{sub}/skip_all")
    assert admin.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0
    admin.does("POST", f"{sub}/resetcursor/0")
    assert peek(1) == "m0"
    # A client reads from there, and an attached one is moved.
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert payloads(consumer, 10) == [f"m{i}" for i in range(10)]
    admin.does("POST", f"{sub}/resetcursor", "earliest")
    assert sorted(set(payloads(consumer, 10))) == [f"m{i}" for i in range(10)]
    admin.does("DELETE", sub, status=412)
    admin.does("DELETE", f"{sub}?force=true")


def test_holes_are_skipped_over(admin, topic, path, make_client):
    client = make_client()
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    fill(client, topic, 6)
    messages = [consumer.receive(timeout_millis=LIMIT * 1000) for _ in range(6)]
    for i in (1, 2, 4):
        consumer.acknowledge(messages[i])
    sub = f"{path}/subscription/s"
    until("acknowledged", lambda: admin.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 3)
    consumer.close()
    peek = lambda n: admin.broker.http(f"{sub}/position/{n}")
    assert [peek(1), peek(2), peek(3)] == ["m0", "m3", "m5"]
    admin.does("POST", f"{sub}/skip/2")
    assert peek(1) == "m5"


def test_a_reset_into_a_batch_delivers_the_rest_of_it(admin, topic, path, make_client):
    client = make_client()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
    sub = f"{path}/subscription/s"
    admin.does("PUT", sub, "earliest")
    for i in range(5):
        producer.send_async(f"m{i}".encode(), None)
    producer.flush()
    last = admin.get(f"{path}/lastMessageId")
    assert last["batchIndex"] == 4, "the client made no batch"
    at = {"ledgerId": last["ledgerId"], "entryId": last["entryId"], "partitionIndex": -1, "batchIndex": 2}
    admin.does("POST", f"{sub}/resetcursor", at)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert payloads(consumer, 3) == ["m2", "m3", "m4"]


def test_a_truncated_topic_is_empty(admin, topic, path, make_client):
    client = make_client()
    fill(client, topic, 5)
    admin.does("PUT", f"{path}/subscription/s", "earliest")
    admin.does("DELETE", f"{path}/truncate")
    internal = admin.get(f"{path}/internalStats")
    assert internal["numberOfEntries"] == 0
    assert admin.get(f"{path}/stats")["subscriptions"]["s"]["msgBacklog"] == 0
    fill(client, topic, 1, start=7)
    assert admin.broker.http(f"{path}/subscription/s/position/1") == "m7"


def test_a_terminated_topic_takes_no_message(admin, topic, path, make_client):
    client = make_client()
    producer = fill(client, topic, 2)
    last = admin.does("POST", f"{path}/terminate", status=200)
    assert last["entryId"] == 1
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
        client.create_producer(topic)


def test_a_deleted_namespace_serves_nobody(admin, make_client):
    name = f"public/n{uuid.uuid4().hex[:8]}"
    client = make_client()
    admin.does("PUT", f"/admin/v2/namespaces/{name}")
    admin.does("PUT", f"/admin/v2/namespaces/{name}", status=409)
    topic = f"persistent://{name}/t"
    producer = client.create_producer(topic)
    assert admin.get(f"/admin/v2/namespaces/{name}/topics") == [topic]
    admin.does("DELETE", f"/admin/v2/namespaces/{name}", status=409)
    producer.close()
    admin.does("DELETE", f"/admin/v2/persistent/{name}/t")
    admin.does("DELETE", f"/admin/v2/namespaces/{name}")
    with pytest.raises(pulsar.PulsarException):
        make_client(operation_timeout_seconds=3).create_producer(topic)


@pytest.mark.restart
def test_what_was_answered_survives_kill(make_broker):
    broker = make_broker().start()
    admin = Admin(broker)
    client = pulsar.Client(broker.url)
    base = "/admin/v2/persistent/public/default"
    for name in ("made", "gone", "ended"):
        admin.does("PUT", f"{base}/{name}", {"k": name})
        fill(client, f"persistent://public/default/{name}", 5).close()
        admin.does("PUT", f"{base}/{name}/subscription/s", "earliest")
    admin.does("PUT", f"{base}/parts/partitions", 3)
    admin.does("POST", f"{base}/made/subscription/s/skip/2")
    last = admin.does("POST", f"{base}/ended/terminate", status=200)
    admin.does("DELETE", f"{base}/gone")
    admin.does("PUT", "/admin/v2/tenants/new", {"allowedClusters": ["standalone"]})
    admin.does("PUT", "/admin/v2/namespaces/new/ns", {"message_ttl_in_seconds": 7})
    admin.does("DELETE", "/admin/v2/namespaces/public/functions")
    broker.kill()
    client.close()
    broker.start()
    assert broker.http(f"{base}/made/subscription/s/position/1") == "m2"
    assert admin.get(f"{base}/made/properties") == {"k": "made"}
    assert admin.call("GET", f"{base}/gone/stats")[0] == 404
    assert admin.does("POST", f"{base}/ended/terminate", status=200) == last
    assert admin.get(f"{base}/parts/partitions")["partitions"] == 3
    assert admin.get("/admin/v2/namespaces/new/ns/messageTTL") == 7
    assert admin.get("/admin/v2/namespaces/public") == ["public/default"]
    # What a deleted topic had is not there for a new one of its name.
    admin.does("PUT", f"{base}/gone")
    assert admin.get(f"{base}/gone/subscriptions") == []
    assert admin.get(f"{base}/gone/internalStats")["numberOfEntries"] == 0
    broker.stop()


@pytest.mark.restart
def test_space_of_deleted_topics_is_used_again(make_broker):
    broker = make_broker(arguments=["--segment-size-mb", "8", "--spare-segments-max-mb", "16"]).start()
    admin = Admin(broker)
    client = pulsar.Client(broker.url)
    data = broker.log_path.parent / "data"
    used = lambda: sum(file.stat().st_blocks * 512 for file in data.rglob("*") if file.is_file())
    payload = b"x" * 100_000
    for round in range(4):
        topic = f"persistent://public/default/big-{round}"
        producer = client.create_producer(topic, batching_enabled=False)
        admin.does("PUT", f"/admin/v2/persistent/public/default/big-{round}/subscription/s", "earliest")
        for _ in range(400):
            producer.send_async(payload, None)
        producer.flush()
        producer.close()
        admin.does("DELETE", f"/admin/v2/persistent/public/default/big-{round}")
    client.close()
    broker.stop()
    # A clean stop leaves a checkpoint that no deleted topic is in; the next start needs nothing of them.
    broker.start()
    assert admin.get("/admin/v2/persistent/public/default") == []
    broker.stop()
    assert used() < 160_000_000
