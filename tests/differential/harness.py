"""Runs one scenario against two brokers step by step and keeps what a user would see differently."""

import json
import logging
import random
import re
import threading
import time
import traceback
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import pulsar

EVENTUALLY_SECONDS = 8
# The clients of one run log thousands of refusals that the scenarios ask for.
_SILENT = logging.getLogger("pulsar-differential")
_SILENT.setLevel(logging.CRITICAL + 1)


class Side:
    """One broker as a scenario sees it: a client, the admin API, and `keep` for what the scenario made there."""

    def __init__(self, name, url, admin, process=None):
        self.name, self.url, self.admin, self.process = name, url, admin.rstrip("/"), process

    def scope(self):
        return Scope(self)

    def restart(self):
        """kill -9 and the same data, if the broker is ours; whether it is not."""
        if self.process is None:
            return False
        self.process.kill()
        self.process.start()
        return True


class Scope:
    """What one scenario has of one side."""

    def __init__(self, side):
        self.side, self.url = side, side.url
        self.keep = {}
        self.clients = []
        self.client = self.another_client()

    def another_client(self, **options):
        options.setdefault("operation_timeout_seconds", 20)
        client = pulsar.Client(self.url, logger=_SILENT, **options)
        self.clients.append(client)
        return client

    @staticmethod
    def client_logger():
        return _SILENT

    def rest(self, method, path, body=None, content_type="application/json", parse=True, raw=None):
        """(status, JSON or text) of a call of the web port."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.side.admin + path, method=method, data=data)
        request.add_header("Accept", "application/json")
        if data is not None or method in ("POST", "PUT"):
            request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode(errors="replace")
        try:
            return status, json.loads(text) if text else None
        except ValueError:
            return status, text

    def raw(self, **options):
        from rawpulsar import RawConnection
        host, port = re.match(r"pulsar://(.*):(\d+)", self.url).groups()
        connection = RawConnection(host, int(port), **options)
        connection.connect()
        return connection

    def close(self):
        for client in self.clients:
            try:
                client.close()
            except Exception:
                pass


class Both:
    """Two sides in lock-step. `do` runs a step on both and compares what it returns or raises."""

    def __init__(self, sides, seed, name, kill=False):
        self.kill = kill
        self.random = random.Random(f"{name}-{seed}")
        self.name, self.seed = name, seed
        self.unique = uuid.uuid4().hex[:8]
        self.topic = f"persistent://public/default/{name}-{seed}-{self.unique}"
        self.scopes = [side.scope() for side in sides]
        self.pool = ThreadPoolExecutor(2)
        self.steps, self.differences, self.trail = 0, [], []

    def path(self, topic=None):
        return "/admin/v2/" + (topic or self.topic).replace("://", "/")

    def _one(self, step, scope):
        try:
            return step(scope)
        except Exception as error:
            kind = type(error).__name__
            if not isinstance(error, pulsar.PulsarException) and not isinstance(error, (ValueError, TypeError)):
                traceback.print_exc()
                return f"!! {kind}: {error}"
            return f"! {kind}"

    def do(self, label, step, eventually=False, compare=True):
        """Both results; with `eventually` the step is repeated until they are equal or the time is over."""
        deadline = time.monotonic() + (EVENTUALLY_SECONDS if eventually else 0)
        while True:
            results = list(self.pool.map(lambda scope: self._one(step, scope), self.scopes))
            if not compare or results[0] == results[1] or time.monotonic() >= deadline:
                break
            time.sleep(0.25)
        self.steps += 1
        same = not compare or results[0] == results[1]
        self.trail.append(f"{'  ' if same else '≠ '}{label}: {str(results[0])[:160]}")
        if not same:
            self.differences.append((label, results[0], results[1], self.trail[-6:-1]))
        return results

    def disturb(self):
        """kill -9 of a broker of ours, an unload of the topic elsewhere. In this thread: a broker dies with the one that started it."""
        for scope in self.scopes:
            if not scope.side.restart():
                scope.rest("PUT", self.path() + "/unload")

    def close(self):
        for scope in self.scopes:
            threading.Thread(target=scope.close, daemon=True).start()
        self.pool.shutdown(wait=False)


def seen(message, *, count=True, topic=False):
    """What a user reads off a message, ids and times aside."""
    raw = message
    return (
        raw.data()[:60], len(raw.data()), tuple(sorted(raw.properties().items())), raw.partition_key(), raw.ordering_key(), raw.event_timestamp(),
        raw.publish_timestamp() > 0, raw.redelivery_count() if count else None, raw.schema_version(), raw.message_id().batch_index(),
        bool(raw.has_null_value()),
        raw.message_id().partition() if topic else None,
    )


def drain(consumer, quiet=900, most=10_000, first=2500):
    """Everything that comes until nothing has for `quiet` milliseconds; the first may take longer."""
    got = []
    receive = getattr(consumer, "receive", None) or consumer.read_next
    while len(got) < most:
        try:
            got.append(receive(timeout_millis=quiet if got else max(quiet, first)))
        except pulsar.Timeout:
            return got
    return got


def shape(value, path=""):
    """Names and types of a JSON document."""
    if isinstance(value, dict):
        return {key: shape(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return type(value).__name__


def diff_json(left, right, path=""):
    """Paths at which two documents differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        out = []
        for key in sorted(set(left) | set(right), key=str):
            if key not in left:
                out.append(f"{path}.{key}: only right {str(right[key])[:80]}")
            elif key not in right:
                out.append(f"{path}.{key}: only left {str(left[key])[:80]}")
            else:
                out += diff_json(left[key], right[key], f"{path}.{key}")
        return out
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)) and len(left) == len(right):
        return [line for n, (a, b) in enumerate(zip(left, right)) for line in diff_json(a, b, f"{path}[{n}]")]
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        head = next((n for n, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
        return [f"{path}: {len(left)} items ≠ {len(right)} items; at {head}: {str(left[head:head+2])[:240]} ≠ {str(right[head:head+2])[:240]}"]
    return [] if left == right else [f"{path}: {str(left)[:300]!r} ≠ {str(right)[:300]!r}"]
