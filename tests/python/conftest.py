"""Options and fixtures: which broker the suite drives, and clients for it."""

import re
import threading
import time
import uuid
from pathlib import Path

import pulsar
import pytest

from broker_process import Broker, BrokerProcess
from rawpulsar import RawConnection
from rawpulsar.connection import ConnectionClosed

ROOT = Path(__file__).resolve().parents[2]
BUILDS = [ROOT / "target/x86_64-unknown-linux-gnu" / profile / "vela" for profile in ("ci", "release", "debug")]


def pytest_collection_modifyitems(config, items):
    if config.getoption("--broker"):
        skips = {
            "vela_only": pytest.mark.skip(reason="only Vela does this"),
            "restart": pytest.mark.skip(reason="needs a broker that the suite may kill"),
        }
        for item in items:
            for name, skip in skips.items():
                if item.get_closest_marker(name):
                    item.add_marker(skip)
    else:
        # Strict: the day it works, the mark has to go.
        for item in items:
            if mark := item.get_closest_marker("later"):
                item.add_marker(pytest.mark.xfail(strict=True, reason=f"not served by Vela yet: {mark.args[0]}"))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for process in getattr(item.config, "broker_processes", []):
            state = "running" if process.running else "not running"
            report.sections.append((f"broker ({state})", process.log()))
    return report


@pytest.fixture(scope="session")
def vela_binary(pytestconfig):
    """The binary under test. A missing one is an error, not a skip: a suite that tests nothing must not be green."""
    named = pytestconfig.getoption("--vela")
    found = [path for path in ([Path(named)] if named else BUILDS) if path.is_file()]
    if not found:
        raise pytest.UsageError(f"no Vela binary at {named or BUILDS}: build it, or use --vela PATH, or --broker URL --admin URL")
    return found[0]


@pytest.fixture(scope="session")
def make_broker(pytestconfig, tmp_path_factory, vela_binary):
    """Makes broker processes of our own, not started yet; all are killed at the end."""
    processes = pytestconfig.broker_processes = []

    def make(**options):
        directory = tmp_path_factory.mktemp("broker")
        arguments = list(options.pop("arguments", ()))
        if pytestconfig.getoption("--sync"):
            arguments += ["--sync", pytestconfig.getoption("--sync")]
        options.setdefault("cores", pytestconfig.getoption("--cores"))
        process = BrokerProcess(vela_binary, directory / "data", directory / "broker.log", arguments=arguments, **options)
        processes.append(process)
        return process

    yield make
    for process in processes:
        process.kill()


def load_namespace_bundles(running):
    """Looks up topics all over public/default. A freshly started Apache Pulsar serves a part of a namespace only after a
    lookup in it; official clients always look up first, the raw client of these tests does not."""
    with RawConnection(running.host, running.port) as connection:
        connection.connect()
        for number in range(64):
            connection.request("LOOKUP", "LOOKUP_RESPONSE", topic=f"persistent://public/default/load-{number}")


@pytest.fixture(scope="session")
def broker(pytestconfig, request):
    """The broker under test: the one named by --broker, or a Vela started for the whole session."""
    url, admin = pytestconfig.getoption("--broker"), pytestconfig.getoption("--admin")
    if url:
        if not admin:
            raise pytest.UsageError("--broker needs --admin http://HOST:PORT as well")
        running = Broker(url, admin.rstrip("/"))
        load_namespace_bundles(running)
        yield running
        return
    process = request.getfixturevalue("make_broker")().start()
    yield process
    ended = None if process.running else process.process.returncode
    assert ended is None, f"the broker ended by itself with {ended}\n{process.log()}"
    assert process.stop() == 0, f"an orderly stop must end with 0\n{process.log()}"


@pytest.fixture
def topic(request):
    """A topic of this test's own."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[:60]
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_client(broker):
    """Makes official clients, closed at the end of the test."""
    clients = []

    def make(url=None, **options):
        options.setdefault("operation_timeout_seconds", 60)
        client = pulsar.Client(url or broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        try:
            client.close()
        except pulsar.AlreadyClosed:
            pass


@pytest.fixture
def client(make_client):
    """One official client."""
    return make_client()


@pytest.fixture
def open_raw(broker):
    """Opens raw connections without CONNECT, closed at the end of the test."""
    connections = []

    def open_one(**options):
        connections.append(RawConnection(broker.host, broker.port, **options))
        return connections[-1]

    yield open_one
    for connection in connections:
        connection.close()


@pytest.fixture
def make_raw(open_raw):
    """Opens raw connections that have said CONNECT."""

    def make(**options):
        connection = open_raw(**options)
        connection.connect()
        return connection

    return make


@pytest.fixture
def raw(make_raw):
    """One connected raw connection."""
    return make_raw()


class SilentSocket(threading.Thread):
    """A connection that says `first` and then nothing, and remembers what came and after how many seconds it was closed."""

    def __init__(self, broker, first):
        super().__init__(daemon=True)
        self.connection = RawConnection(broker.host, broker.port, pong=False)
        self.opened = time.monotonic()
        self.closed_after = None
        self.received = []
        first(self.connection)
        self.start()

    def run(self):
        try:
            while True:
                frame = self.connection.receive(150)
                self.received.append((round(time.monotonic() - self.opened, 1), frame.type))
        except ConnectionClosed:
            self.closed_after = time.monotonic() - self.opened
        except TimeoutError:
            pass
        finally:
            self.connection.close()


@pytest.fixture(scope="session")
def silent_sockets(broker):
    """Sockets that go silent when the session begins, so that waiting for their end costs the suite little."""
    return {
        "nothing": SilentSocket(broker, lambda connection: None),
        "only a ping": SilentSocket(broker, lambda connection: connection.send("PING")),
        "connected": SilentSocket(broker, lambda connection: connection.connect()),
    }


@pytest.fixture(scope="session", autouse=True)
def _go_silent_early(request):
    """Opens the silent sockets before the first test, but only when a test that waits for them was selected."""
    if any("silent_sockets" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("silent_sockets")
