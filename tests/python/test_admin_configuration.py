"""The settings over HTTP: names, values, what is in force, and that a change counts at once, on every connection."""

import json
import time
import urllib.error
import urllib.request
import uuid

import pulsar
import pytest

from rawpulsar import RawConnection
from waiting import LIMIT_SECONDS, eventually

CONFIGURATION = "/admin/v2/brokers/configuration"
NAMESPACE = "/admin/v2/namespaces/public/default"
GROUPS = "/admin/v2/resourcegroups"
JSON = "application/json"


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def type(self):
        return self.headers.get("Content-Type")

    @property
    def json(self):
        return json.loads(self.body)


@pytest.fixture
def call(broker):
    """Calls the broker's HTTP; an error status is an answer as well."""

    def call(method, path, body=None, **headers):
        data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        if data is not None:
            headers.setdefault("Content-Type", JSON)
        request = urllib.request.Request(broker.admin + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read().decode())

    return call


@pytest.fixture
def setting(call):
    """Sets dynamic settings, and deletes them at the end."""
    names = set()

    def set_one(name, value):
        names.add(name)
        answer = call("POST", f"{CONFIGURATION}/{name}/{value}")
        assert answer.status == 200, answer.body

    yield set_one
    for name in names:
        assert call("DELETE", f"{CONFIGURATION}/{name}").status == 200


def runtime(call, name):
    return call("GET", f"{CONFIGURATION}/runtime").json[name]


def within(seconds, condition):
    """Whether the condition holds soon: Apache Pulsar takes a change over a moment after it has answered."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_the_names_of_dynamic_settings(call):
    answer = call("GET", CONFIGURATION)
    assert (answer.status, answer.type) == (200, JSON)
    assert {
        "maxPublishRatePerTopicInMessages",
        "maxPublishRatePerTopicInBytes",
        "brokerPublisherThrottlingMaxMessageRate",
        "brokerPublisherThrottlingMaxByteRate",
        "dispatcherMaxRoundRobinBatchSize",
        "preciseDispatcherFlowControl",
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "defaultNumPartitions",
        "allowAutoSubscriptionCreation",
    } <= set(answer.json)
    assert "clusterName" not in answer.json


@pytest.mark.vela_only
def test_settings_that_only_vela_changes_while_running(call):
    names = set(call("GET", CONFIGURATION).json)
    assert {
        "maxPendingPublishRequestsPerConnection",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesPerSubscription",
        "maxConsumerMetadataSize",
        "managedLedgerCacheCopyEntries",
        "logLevel",
    } <= names


def test_a_slash_at_the_end_makes_no_difference(call):
    for path in (CONFIGURATION, f"{CONFIGURATION}/runtime", GROUPS):
        assert call("GET", path + "/").status == call("GET", path).status == 200


def test_set_show_and_delete(call, setting):
    name = "dispatcherMaxRoundRobinBatchSize"
    before = runtime(call, name)
    answer = call("POST", f"{CONFIGURATION}/{name}/33")
    assert (answer.status, answer.type, answer.body) == (200, None, "")
    setting(name, "34")
    values = call("GET", f"{CONFIGURATION}/values")
    assert (values.status, values.type) == (200, JSON)
    assert values.json[name] == "34"
    assert within(LIMIT_SECONDS, lambda: runtime(call, name) == "34")
    for _ in range(2):
        answer = call("DELETE", f"{CONFIGURATION}/{name}")
        assert (answer.status, answer.type, answer.body) == (200, None, "")
    assert name not in call("GET", f"{CONFIGURATION}/values").json
    assert within(LIMIT_SECONDS, lambda: runtime(call, name) == before)


def test_a_value_that_does_not_parse_is_shown_and_changes_nothing(call, setting):
    name = "dispatcherMaxRoundRobinBatchSize"
    setting(name, "33")
    assert within(LIMIT_SECONDS, lambda: runtime(call, name) == "33")
    setting(name, "abc")
    assert call("GET", f"{CONFIGURATION}/values").json[name] == "abc"
    time.sleep(0.3)
    assert runtime(call, name) == "33"


@pytest.mark.parametrize("name", ["clusterName", "noSuchSetting"])
def test_what_is_not_dynamic_is_refused(call, name):
    for method, path, word in (("POST", f"{name}/x", "update"), ("DELETE", name, "delete")):
        answer = call(method, f"{CONFIGURATION}/{path}")
        assert (answer.status, answer.type) == (412, JSON)
        assert answer.json == {"reason": f"Can't {word} non-dynamic configuration"}


def test_wrong_method_and_unknown_path(call):
    answer = call("POST", f"{CONFIGURATION}/dispatcherMaxRoundRobinBatchSize")
    assert (answer.status, answer.headers["Allow"]) == (405, "DELETE,OPTIONS")
    assert answer.type.startswith("text/html")
    answer = call("GET", f"{CONFIGURATION}/dispatcherMaxRoundRobinBatchSize", Accept=JSON)
    assert (answer.status, answer.type) == (405, JSON)
    assert {key: answer.json[key] for key in ("message", "status")} == {"message": "Method Not Allowed", "status": "405"}
    answer = call("PUT", f"{CONFIGURATION}/dispatcherMaxRoundRobinBatchSize/5")
    assert (answer.status, answer.body) == (405, "")
    answer = call("GET", "/admin/v2/nosuchresource", Accept=JSON)
    assert answer.status == 404
    assert answer.json["url"].endswith("/admin/v2/nosuchresource")
    answer = call("OPTIONS", f"{CONFIGURATION}/values")
    assert answer.status == 200
    assert set(answer.headers["Allow"].split(",")) == {"HEAD", "GET", "OPTIONS"}
    answer = call("GET", f"{CONFIGURATION}/values", Accept="text/plain")
    assert answer.status == 406


def test_health_and_readiness(call):
    for path in ("health", "health?topicVersion=V2", "ready"):
        answer = call("GET", f"/admin/v2/brokers/{path}")
        assert (answer.status, answer.type, answer.body) == (200, JSON, "ok")


def test_auto_creation_off_counts_for_open_connections(call, setting, make_raw, topic):
    raw = make_raw()
    raw.producer(topic, 1)
    setting("allowAutoTopicCreation", "false")
    assert within(LIMIT_SECONDS, lambda: runtime(call, "allowAutoTopicCreation") == "false")
    raw.request("PRODUCER", "ERROR", topic=topic + "-other", producer_id=2)
    assert call("DELETE", f"{CONFIGURATION}/allowAutoTopicCreation").status == 200
    assert within(LIMIT_SECONDS, lambda: runtime(call, "allowAutoTopicCreation") == "true")
    raw.producer(topic + "-third", 3)


@pytest.fixture
def clean_namespace(call):
    yield
    call("DELETE", f"{NAMESPACE}/publishRate")
    call("DELETE", f"{NAMESPACE}/resourcegroup")


LARGE = 2_000_000_000


def test_publish_rate_of_a_namespace(call, clean_namespace):
    path = f"{NAMESPACE}/publishRate"
    answer = call("GET", path)
    assert (answer.status, answer.type, answer.body) == (200, None, "")
    for body, expected in (
        ({"publishThrottlingRateInMsg": LARGE, "publishThrottlingRateInByte": 5 * LARGE}, [LARGE, 5 * LARGE]),
        ({"publishThrottlingRateInMsg": LARGE}, [LARGE, -1]),
        ({"publishThrottlingRateInByte": LARGE + 0.7, "unknown": 1}, [-1, LARGE]),
        ({"publishThrottlingRateInMsg": str(LARGE)}, [LARGE, -1]),
        ({}, [-1, -1]),
    ):
        answer = call("POST", path, body)
        assert (answer.status, answer.type, answer.body) == (204, None, "")
        answer = call("GET", path)
        assert (answer.status, answer.type) == (200, JSON)
        assert answer.json == dict(zip(("publishThrottlingRateInMsg", "publishThrottlingRateInByte"), expected))
    for body in ("{bad", "[]", "5", '{"publishThrottlingRateInMsg":"a"}', '{"publishThrottlingRateInMsg":3000000000}'):
        answer = call("POST", path, body)
        assert answer.status == 400, body
        assert answer.type.startswith("text/plain")
    assert call("POST", path, "{}", **{"Content-Type": "text/plain"}).status == 415
    for remove in (lambda: call("POST", path, "null"), lambda: call("DELETE", path), lambda: call("DELETE", path)):
        answer = remove()
        assert (answer.status, answer.body) == (204, "")
        assert call("GET", path).body == ""


def test_policies_of_a_missing_namespace(call):
    path = "/admin/v2/namespaces/public/no-such-namespace"
    for answer in (
        call("GET", f"{path}/publishRate"),
        call("POST", f"{path}/publishRate", {}),
        call("DELETE", f"{path}/publishRate"),
        call("GET", f"{path}/resourcegroup"),
    ):
        assert (answer.status, answer.type, answer.json) == (404, JSON, {"reason": "Namespace does not exist"})
    answer = call("DELETE", f"{path}/resourcegroup")
    assert (answer.status, answer.json) == (404, {"reason": "Namespace policies does not exist"})


def test_resource_groups(call, clean_namespace):
    group = f"group-{uuid.uuid4().hex[:8]}"
    path = f"{GROUPS}/{group}"
    names = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")
    missing = {"reason": "ResourceGroup does not exist"}
    answer = call("GET", path)
    assert (answer.status, answer.type, answer.json) == (404, JSON, missing)
    for body, expected in (
        ({"publishRateInMsgs": LARGE}, (LARGE, -1, -1, -1)),
        ({"publishRateInBytes": 5 * LARGE, "publishRateInMsgs": None}, (LARGE, 5 * LARGE, -1, -1)),
        ({}, (LARGE, 5 * LARGE, -1, -1)),
    ):
        answer = call("PUT", path, body)
        assert (answer.status, answer.body) == (204, "")
        assert call("GET", path).json == dict(zip(names, expected))
    assert call("PUT", path, "{bad").status == 400
    assert call("PUT", path, {"publishRateInMsgs": 99999999999}).status == 400
    assert group in call("GET", GROUPS).json

    of = f"{NAMESPACE}/resourcegroup"
    answer = call("POST", f"{of}/no-such-group")
    assert (answer.status, answer.json) == (412, missing)
    answer = call("POST", f"{of}/{group}")
    assert (answer.status, answer.body) == (204, "")
    answer = call("GET", of)
    assert (answer.status, answer.type, answer.body) == (200, JSON, group)
    answer = call("DELETE", path)
    assert (answer.status, answer.json) == (412, {"reason": "ResourceGroup is in use"})
    assert call("DELETE", of).status == 204
    answer = call("GET", of)
    assert (answer.status, answer.type, answer.body) == (200, None, "")
    assert call("DELETE", path).status == 204
    assert call("DELETE", path).status == 500
    assert call("GET", path).status == 404


def publish_for(producer, seconds):
    """Messages acknowledged per second over `seconds`, with up to 200 in flight."""
    done = []
    flying = [0]

    def acknowledged(result, _):
        flying[0] -= 1
        if result == pulsar.Result.Ok:
            done.append(time.monotonic())

    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if flying[0] < 200:
            flying[0] += 1
            producer.send_async(b"x" * 100, acknowledged)
        else:
            time.sleep(0.001)
    producer.flush()
    return len(done) / (time.monotonic() - start)


def publish_freely(broker, producer, reason):
    """Many messages, for none of which a rate holds anybody: at 100 per second they took 50 seconds."""
    eventually(lambda: len(set(broker.throttled(reason))) == 1, lambda: f"still held: {broker.throttled(reason)}")
    holds, _ = broker.throttled(reason)
    done = []
    for number in range(5000):
        eventually(lambda: number - len(done) < 500, lambda: f"{len(done)} receipts")
        producer.send_async(b"x" * 100, lambda result, _: done.append(result))
    producer.flush()
    eventually(lambda: len(done) == 5000, lambda: f"{len(done)} receipts")
    assert set(done) == {pulsar.Result.Ok}
    messages = broker.metric("vela_messages_in_total")
    # Figures are a heartbeat old: the next ones are younger than all of this.
    producer.send(b"x")
    eventually(lambda: broker.metric("vela_messages_in_total") > messages)
    assert broker.throttled(reason)[0] == holds


RATES = [("maxPublishRatePerTopicInMessages", "topic-rate"), ("brokerPublisherThrottlingMaxMessageRate", "broker-rate")]


@pytest.mark.parametrize("name, reason", RATES)
@pytest.mark.vela_only
def test_a_rate_holds_open_producers_and_its_end_frees_them(broker, call, setting, client, topic, name, reason):
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    publish_for(producer, 0.2)
    setting(name, "100")
    # The first second has a second's worth to spend at once.
    publish_for(producer, 1)
    assert publish_for(producer, 3) < 200
    # Still in debt, and free at once when the limit goes.
    producer.send_async(b"x", lambda *_: None)
    assert call("DELETE", f"{CONFIGURATION}/{name}").status == 200
    publish_freely(broker, producer, reason)


@pytest.mark.vela_only
def test_the_rate_of_a_namespace_counts_at_once(broker, call, client, topic, clean_namespace):
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    assert call("POST", f"{NAMESPACE}/publishRate", {"publishThrottlingRateInMsg": 100}).status == 204
    publish_for(producer, 1)
    assert publish_for(producer, 3) < 200
    assert call("DELETE", f"{NAMESPACE}/publishRate").status == 204
    publish_freely(broker, producer, "topic-rate")


@pytest.mark.restart
def test_values_survive_a_kill(make_broker):
    process = make_broker().start()
    name = "dispatcherMaxRoundRobinBatchSize"
    for one, value in ((name, "77"), ("defaultNumPartitions", "none"), ("maxConsumerMetadataSize", "2048")):
        assert process.http(f"{CONFIGURATION}/{one}/{value}", method="POST") == ""
    process.http(f"{CONFIGURATION}/maxConsumerMetadataSize", method="DELETE")
    process.kill()
    process.start()
    values = json.loads(process.http(f"{CONFIGURATION}/values"))
    assert values == {name: "77", "defaultNumPartitions": "none"}
    running = json.loads(process.http(f"{CONFIGURATION}/runtime"))
    assert (running[name], running["defaultNumPartitions"], running["maxConsumerMetadataSize"]) == ("77", "1", "1024")
    process.stop()


@pytest.mark.vela_only
def test_the_memory_limiter_follows_its_settings(call, setting, broker):
    setting("maxMessagePublishBufferSizeInMB", "3")
    assert broker.metric("vela_memory_limit_bytes") == 3 << 20
    setting("maxMessagePublishBufferSizeInMB", "auto")
    setting("bufferMemory", "400")
    assert broker.metric("vela_buffer_memory_budget_bytes") == 400 << 20
    assert broker.metric("vela_memory_limit_bytes") == 200 << 20
    for said, meant in (("true", "enabled"), ("false", "auto"), ("tracking", "tracking"), ("disabled", "disabled")):
        setting("inProgressRequestFrameMemoryLimitEnabled", said)
        assert runtime(call, "inProgressRequestFrameMemoryLimitEnabled") == meant


@pytest.mark.restart
def test_the_log_level_changes_while_running(make_broker):
    process = make_broker(arguments=["--log-level", "error"]).start()
    path = f"{CONFIGURATION}/defaultNumPartitions"
    process.http(f"{path}/3", method="POST")
    assert "defaultNumPartitions" not in process.log()
    process.http(f"{CONFIGURATION}/logLevel/info", method="POST")
    process.http(f"{path}/4", method="POST")
    eventually(lambda: 'setting="defaultNumPartitions" value="4" before="3"' in process.log(), process.log)
    process.stop()


@pytest.mark.restart
def test_the_connection_limit_changes_while_running(make_broker, topic):
    process = make_broker().start()
    process.http(f"{CONFIGURATION}/brokerMaxConnections/1", method="POST")
    first = RawConnection(process.host, process.port)
    first.connect()
    second = RawConnection(process.host, process.port)
    second.expect("ERROR", message="Reached the maximum number of connections")
    process.http(f"{CONFIGURATION}/brokerMaxConnections", method="DELETE")
    third = RawConnection(process.host, process.port)
    third.connect()
    for connection in (first, second, third):
        connection.close()
    process.stop()


@pytest.mark.restart
def test_rates_of_namespaces_and_groups_survive_a_kill(make_broker):
    process = make_broker().start()

    def send(method, path, body):
        request = urllib.request.Request(process.admin + path, json.dumps(body).encode(), {"Content-Type": JSON}, method=method)
        urllib.request.urlopen(request, timeout=60).close()

    send("PUT", f"{GROUPS}/g", {"publishRateInMsgs": 50})
    process.http(f"{NAMESPACE}/resourcegroup/g", method="POST")
    process.kill()
    process.start()
    assert process.http(f"{NAMESPACE}/resourcegroup") == "g"
    assert json.loads(process.http(f"{GROUPS}/g"))["publishRateInMsgs"] == 50
    client = pulsar.Client(process.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("after-the-kill", batching_enabled=False, send_timeout_millis=0)
    publish_for(producer, 1)
    assert publish_for(producer, 3) < 100
    send("PUT", f"{GROUPS}/g", {"publishRateInMsgs": -1})
    publish_freely(process, producer, "resource-group-rate")
    client.close()
    process.stop()


@pytest.mark.vela_only
def test_metrics_name_what_holds_connections(broker):
    text = broker.http("/metrics")
    for line in (
        'pulsar_broker_throttled_connections{cluster="standalone"} ',
        'pulsar_broker_publish_in_progress_buffer_memory_usage{cluster="standalone"} ',
        'pulsar_broker_publish_in_progress_buffer_memory_throttled{cluster="standalone"} ',
        'vela_throttled_connections{reason="topic-rate"} ',
        'vela_throttled_connections{reason="memory"} ',
        'vela_buffer_memory_bytes{holder="inbound"} ',
        "vela_memory_throttles_total ",
        'vela_throttle_holds_total{reason="pending-bytes"} ',
        'vela_throttle_releases_total{reason="memory"} ',
        'pulsar_broker_connection_rate_limit_count_total{cluster="standalone",pulsar_connection_rate_limit_operation_name="paused"} ',
    ):
        assert line in text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    described = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP ")}
    assert families and families <= described
