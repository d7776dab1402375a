"""Starting and stopping the broker binary under test."""

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

READY = re.compile(r"vela is ready: (pulsar://\S+) (http://\S+)")
START_LIMIT_SECONDS = 120
STOP_LIMIT_SECONDS = 60


# Becomes the broker, which the kernel kills should the test run itself be killed (prctl PR_SET_PDEATHSIG). A process of its own and no
# `preexec_fn`: between fork and exec Python code may wait for ever for a lock that a thread of the client under test held at the fork.
_DIE_WITH_THE_TEST_RUN = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)}); os.execvp(sys.argv[1], sys.argv[1:])"
)


def free_port():
    """A port that nothing listens on right now, for restarts on the same port; everything else lets the broker choose. It is not one
    that the kernel gives out by itself, so nobody gets it by chance while the broker is down."""
    given_out = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    candidates = [port for port in range(10_000, 60_000) if not int(given_out[0]) <= port <= int(given_out[1])]
    candidates = candidates or list(range(10_000, 60_000))
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


class Broker:
    """Where a broker is reached: `url` and `admin`, and the parts of `url`."""

    def __init__(self, url, admin):
        self.url, self.admin = url, admin
        parts = urlparse(url)
        self.host, self.port = parts.hostname, parts.port or 6650

    def http(self, path, method="GET", timeout=60):
        """The text of an HTTP answer of the web port."""
        request = urllib.request.Request(self.admin + path, method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read().decode()

    def metric(self, name):
        """The value of a metric, summed over its labels; None when the broker does not publish it or has no /metrics."""
        try:
            text = self.http("/metrics")
        except urllib.error.URLError:
            return None
        values = [float(line.split()[-1]) for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
        return sum(values) if values else None

    def throttled(self, reason):
        """(times that connections began to be held for a reason, times that they were let go) since the start: counters, for whoever
        looks at what holds now looks too early or too late. They are a heartbeat old."""
        text = self.http("/metrics")
        return tuple(
            int(line.split()[-1]) for kind in ("holds", "releases") for line in text.splitlines()
            if line.startswith(f'vela_throttle_{kind}_total{{reason="{reason}"}} '))


class BrokerProcess(Broker):
    """A broker of our own. `start` and `kill` may be repeated on one data directory; with a fixed port clients find it again."""

    def __init__(self, binary, data_dir, log_path, cores=1, port=0, web_port=0, arguments=()):
        self.log_path = log_path
        self.process = None
        self.command = [
            str(binary), "broker", "--bind", "127.0.0.1", "--port", str(port), "--web-port", str(web_port),
            "--data-dir", str(data_dir), "--cores", str(cores), *arguments,
        ]

    def start(self):
        """Starts the broker and returns when it has said on standard output that it accepts connections."""
        with open(self.log_path, "ab") as log:
            # A session of its own, so that an interrupt of the test run does not reach it before the fixtures do.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_THE_TEST_RUN, *self.command],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )
        deadline = time.monotonic() + START_LIMIT_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                raise RuntimeError(f"the broker was not ready within {START_LIMIT_SECONDS} s\n{self.log()}")
            if not select.select([self.process.stdout], [], [], left)[0]:
                continue
            byte = os.read(self.process.stdout.fileno(), 1)
            if not byte:
                code = self.process.wait(STOP_LIMIT_SECONDS)
                raise RuntimeError(f"the broker ended with {code} before it was ready\n{' '.join(self.command)}\n{self.log()}")
            line += byte
        match = READY.match(line.decode(errors="replace"))
        if not match:
            self.kill()
            raise RuntimeError(f"the broker's first line must be 'vela is ready: pulsar://… http://…', it is {line!r}")
        super().__init__(*match.groups())
        return self

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """kill -9: nothing in the process can still write after this returns."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_LIMIT_SECONDS)
            self.process.stdout.close()
            self.process = None

    def stop(self):
        """An orderly stop, and the exit code. A broker that does not end in time is killed and reported."""
        if self.process is None:
            return None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the broker did not stop within {STOP_LIMIT_SECONDS} s\n{self.log()}") from error
        finally:
            self.kill()

    def log(self, lines=60):
        """The end of what the broker wrote to standard error."""
        try:
            with open(self.log_path, errors="replace") as log:
                return f"--- {self.log_path}\n" + "".join(log.readlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"
