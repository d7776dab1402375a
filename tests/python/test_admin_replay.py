"""Calls of the admin API as they were recorded with Apache Pulsar 5.0.1, replayed in their order: same status, same body.

tests/data/admin/observed.jsonl has the calls; `before` names what clients do before a call. What depends on the moment or on the
broker (addresses, times, ledger ids, rates) is compared by shape only.
"""

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pulsar
import pytest

OBSERVED = Path(__file__).resolve().parents[1] / "data/admin/observed.jsonl"
RECORDED_WEB, RECORDED_BINARY = "127.0.0.1:8280", "127.0.0.1:6850"
LEDGER, NOW = 5, 1796020870234  # As they were when the calls were recorded.

TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}

# Calls that are not served in this version: 501.
NOT_SERVED = {
    **{n: "isolation policies" for n in (54, 55, 56, 57, 58, 59, 60)},
    61: "migration of a cluster",
    355: "offload policies",
    **{n: "permissions of a subscription" for n in (369, 370, 371)},
    483: "internal-info",
    520: "backlog size",
    **{n: "analyzing a backlog" for n in (521, 522, 523)},
    593: "changing properties of a subscription",
    596: "changing properties of a subscription",
    **{n: "replicated subscriptions" for n in (597, 598)},
    **{n: "policies of a topic that nothing goes by" for numbers in (
        range(612, 632), range(637, 657), range(663, 668), range(703, 718), range(738, 747), range(911, 914),
    ) for n in numbers},
    **{n: "permissions of a topic" for n in range(747, 752)},
    **{n: "compaction, offload, trim" for n in (757, 758, 759, 760, 761, 762)},
    **{n: "splitting bundles" for n in (775, 776)},
    **{n: "clearing and unsubscribing a whole namespace" for n in (778, 779, 780, 781, 782)},
}
# Calls whose status is the same and whose body differs, and why.
DIFFERS = {
    361: "offload thresholds are kept where they were set, not in offload policies",
    446: "Vela has no system topics",
    481: "ledgers have no metadata of their own",
    589: "subscriptions are looked at in the order of their names: another one is named",
    496: "partitions of a non-persistent topic come with their first client",
    590: "another partition may be named",
    591: "another partition may be named",
    594: "follows 593",
    777: "follows 775",
    799: "says what is wrong in words of its own",
    860: "clients make topics again at once, sooner or later than this call",
}
# Calls whose status differs, and why.
STATUS_DIFFERS = {
    918: (204, "replication_clusters null counts as not given; Pulsar fails"),
}

# Fields that depend on the moment, the client or the way of storing: of the same type, whatever their value.
VOLATILE = {
    "address", "connectedSince", "clientVersion", "timestamp", "topicCreationTimeStamp", "lastPublishTimeStamp",
    "lastConsumedTimestamp", "lastAckedTimestamp", "lastConsumedFlowTimestamp", "firstConsumedFlowTimestamp",
    "firstMessagesSentTimestamp", "lastMarkDeleteAdvancedTimestamp", "lastAckedTime", "lastConsumedTime", "lastExpireTimestamp",
    "lastLedgerCreatedTimestamp", "lastLedgerSwitchTimestamp", "producerId", "ledgerId", "cursorLedger", "cursorLedgerLastEntry",
    "state", "markDeletePosition", "readPosition", "lastConfirmedEntry", "waitingReadOp", "active", "waitingCursorsCount",
    "subscriptionHavePendingRead", "numberOfEntriesSinceFirstNotAckedMessage", "compactedLedger", "ownerBroker",
    "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "averageMsgSize", "messageAckRate", "oldestBacklogMessageAgeSeconds",
    "messagesConsumedCounter", "totalSize", "currentLedgerSize", "bytesInCounter", "bytesOutCounter", "storageSize", "backlogSize",
    "avgMessagesPerEntry", "activeConsumerName", "drainingHashesClearedTotal", "topicEpoch", "managedLedgerMaxMarkDeleteRate",
    "lastCompactionSucceedTimestamp",
    # Vela is one broker: nothing is replicated.
    "replicated", "isReplicated",
}


class Clients:
    """What the recording did over the binary protocol."""

    def __init__(self, broker):
        self.client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.open = {}

    def do(self, action):
        verb, *words = action.split()
        if verb == "sleep":
            time.sleep(float(words[0]))
        elif verb == "producer":
            name, topic, producer_name, *batch = words
            self.open[name] = self.client.create_producer(
                topic, producer_name=producer_name, batching_enabled=bool(batch), batching_max_publish_delay_ms=500,
                batching_max_messages=1000,
            )
        elif verb == "send":
            name, count, prefix = words
            for i in range(int(count)):
                self.open[name].send(f"{prefix}{i}".encode(), properties={"k": str(i)}, partition_key=f"key{i % 5}")
        elif verb == "sendbatch":
            name, count, prefix = words
            for i in range(int(count)):
                self.open[name].send_async(f"{prefix}{i}".encode(), None, properties={"k": str(i)})
            self.open[name].flush()
        elif verb == "consumer":
            name, topic, subscription, kind, *earliest = words
            start = pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest
            self.open[name] = self.client.subscribe(
                topic, subscription, consumer_type=TYPES[kind], consumer_name=name, receiver_queue_size=100, initial_position=start,
            )
        elif verb in ("receive", "receive-ack"):
            name, count = words
            for _ in range(int(count)):
                message = self.open[name].receive(timeout_millis=20000)
                if verb == "receive-ack":
                    self.open[name].acknowledge(message)
        elif verb == "close":
            self.open.pop(words[0]).close()
        else:
            raise AssertionError(f"unknown action {action!r}")


def differences(expected, got, path=""):
    """What differs, as a list of texts."""
    key = path.rsplit(".", 1)[-1]
    if key in VOLATILE:
        number = isinstance(expected, (int, float)) and isinstance(got, (int, float))
        return [] if number or type(expected) is type(got) else [f"{path}: {got!r} is no {type(expected).__name__}"]
    if isinstance(expected, dict) and isinstance(got, dict):
        optional = {"activeConsumerName"}
        found = [f"{path}: lacks {name}" for name in expected.keys() - got.keys() - optional]
        found += [f"{path}: has {name}" for name in got.keys() - expected.keys() - optional]
        for name in expected.keys() & got.keys():
            found += differences(expected[name], got[name], f"{path}.{name}")
        return found
    if isinstance(expected, list) and isinstance(got, list):
        if key == "ledgers" and not got:
            # An empty topic has no ledger yet.
            return []
        if len(expected) != len(got):
            return [f"{path}: {len(got)} items, not {len(expected)}: {got!r}"]
        if all(isinstance(item, (str, type(None))) for item in expected):
            # Most of Pulsar's lists are sets.
            return [] if sorted(map(str, expected)) == sorted(map(str, got)) else [f"{path}: {got!r}, not {expected!r}"]
        return [text for i, pair in enumerate(zip(expected, got)) for text in differences(*pair, f"{path}[{i}]")]
    return [] if expected == got else [f"{path}: {got!r}, not {expected!r}"]


class Replay:
    def __init__(self, broker):
        self.broker, self.clients, self.ledger, self.now = broker, Clients(broker), None, None
        self.partition = 1

    def ours(self, text):
        """A recorded text with our addresses, ledger and time."""
        text = text.replace(RECORDED_WEB, self.broker.admin.removeprefix("http://"))
        text = text.replace(RECORDED_BINARY, self.broker.url.removeprefix("pulsar://"))
        if self.partition != 1:
            swap = {"1": str(self.partition), str(self.partition): "1"}
            text = re.sub(r"(/pt-partition-)(\d)", lambda found: found[1] + swap.get(found[2], found[2]), text)
        if self.ledger is not None:
            text = re.sub(rf'("ledgerId": ?){LEDGER}\b', rf"\g<1>{self.ledger}", text)
            text = re.sub(rf"\b{LEDGER}:(\d+)", rf"{self.ledger}:\1", text)
        return text

    def send(self, call):
        path = call["path"]
        if "template" in call:
            path = call["template"].replace("{$L}", str(self.ledger)).replace("{$now}", str(self.now))
        headers = {"Accept": call.get("accept", "*/*")}
        body = call.get("body")
        kind = call.get("request_content_type", "application/json" if body is not None else None)
        if kind:
            headers["Content-Type"] = kind
        for header in call.get("request_headers", []):
            name, value = header.split(": ")
            headers[name] = value
        data = None if body is None else self.ours(body).encode()
        request = urllib.request.Request(self.broker.admin + self.ours(path), data=data, method=call["method"], headers=headers)
        if kind == "":
            # urllib would set a type of its own.
            request.add_unredirected_header("Content-Type", "application/x-www-form-urlencoded")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def prepare(self, call):
        failed = []
        for action in call.get("before", []):
            try:
                self.clients.do(action)
            except (pulsar.PulsarException, KeyError) as error:
                failed.append(f"{call['n']} before: {action}: {error!r}")
        if call["n"] == 474:
            internal = json.loads(self.broker.http("/admin/v2/persistent/op/ns1/t1/internalStats"))
            self.ledger = int(internal["lastConfirmedEntry"].split(":")[0])
        if call["n"] == 484:
            # Which partition a client begins with is its own choice.
            stats = json.loads(self.broker.http("/admin/v2/persistent/op/ns1/pt/partitioned-stats"))["partitions"]
            self.partition = next(int(name[-1]) for name, each in stats.items() if each["msgInCounter"])
        if call["n"] == 503:
            self.now = int(time.time() * 1000) + 1
        return failed

    def compare(self, call):
        """What differs between the recorded and the given answer."""
        status, headers, body = self.send(call)
        if status != call["status"]:
            return [f"status {status}, not {call['status']}: {body[:300]!r}"]
        kind, recorded_kind = headers.get("Content-Type"), call["content_type"]
        found = []
        if (kind or "").split(";")[0] != (recorded_kind or "").split(";")[0]:
            found.append(f"type {kind}, not {recorded_kind}")
        for name, value in call.get("headers", {}).items():
            if name == "x-pulsar-message-id":
                value = self.ours(value) if value.startswith(f"{LEDGER}:") else headers.get(name)
            elif name == "x-pulsar-publish-time":
                value = headers.get(name)
            elif name == "allow":
                if set(value.replace(" ", "").split(",")) - {"OPTIONS"} - set((headers.get(name) or "").replace(" ", "").split(",")):
                    found.append(f"Allow {headers.get(name)}, not {value}")
                continue
            if name == "x-pulsar-batch-size" or headers.get(name) == value:
                continue
            found.append(f"{name}: {headers.get(name)}, not {value}")
        if "response" in call:
            expected = json.loads(self.ours(json.dumps(call["response"])))
            try:
                got = json.loads(body)
            except ValueError:
                return found + [f"no JSON: {body[:300]!r}"]
            if call["status"] == 500 and isinstance(expected, dict) and "reason" in expected:
                # Stack traces and the words of a runtime are Pulsar's own; the form is the same.
                form = "\n --- An unexpected error occurred in the server ---\n\nMessage: "
                return found if got["reason"].startswith(form) else found + [f"reason {got!r}"]
            if not call.get("shortened"):
                found += differences(expected, got)
            elif not isinstance(got, type(expected)):
                found.append(f"is {got!r}")
        elif "response_text" in call:
            text = call["response_text"]
            if recorded_kind == "application/json" and text.encode() != body and not text.startswith("{"):
                found.append(f"text {body[:200]!r}, not {text!r}")
        elif recorded_kind is None and body:
            found.append(f"body {body[:200]!r}, not empty")
        return found


@pytest.mark.vela_only
def test_recorded_calls_are_answered_as_recorded(make_broker):
    calls = [json.loads(line) for line in OBSERVED.read_text().splitlines()]
    broker = make_broker().start()
    failures, compared, again = [], 0, False
    replay = Replay(broker)
    for call in calls:
        if call["n"] >= 874 and not again:
            # The recording goes on with an empty broker.
            again = True
            replay.clients.client.close()
            broker.stop()
            broker = make_broker().start()
            replay = Replay(broker)
            for method, path, body in [
                ("PUT", "/admin/v2/tenants/op", '{"adminRoles":[],"allowedClusters":["standalone"]}'),
                ("PUT", "/admin/v2/namespaces/op/ns1", None),
                ("PUT", "/admin/v2/persistent/op/ns1/t1", None),
            ]:
                status, _, text = replay.send({"method": method, "path": path, "body": body, "n": 0})
                assert status == 204, text
        number = call["n"]
        failures += replay.prepare(call)
        if number in NOT_SERVED:
            status, _, body = replay.send(call)
            if status != 501 or "not served" not in json.loads(body)["reason"]:
                failures.append(f"{number} {call['method']} {call['path']}: {status}, not 501: {body[:100]!r}")
            continue
        if number in STATUS_DIFFERS:
            status = replay.send(call)[0]
            assert status == STATUS_DIFFERS[number][0], f"{number}: {status}"
            status = replay.send({"method": "DELETE", "path": call["path"], "n": 0})[0]
            assert status == 204, "what only Vela makes must go again"
            continue
        found = replay.compare(call)
        if number in DIFFERS:
            failures += [f"{number} {call['path']}: {text}" for text in found if text.startswith("status")]
            continue
        compared += 1
        failures += [f"{number} {call['method']} {call['path']} {call.get('body', '')[:80]}: {text}" for text in found]
    replay.clients.client.close()
    print(f"{compared} calls compared")
    assert not failures, f"{len(failures)} differences:\n" + "\n".join(failures)
    assert compared > 550
