"""Processes that are started, waited for and stopped by their id. None outlives this program, however it ends."""

import ctypes
import os
import re
import signal
import subprocess
import time

STOP_SECONDS = 40
READY = re.compile(r"^\S+ is ready: (pulsar:\S+)(?: (http:\S+))?(?: pid (\d+))?", re.MULTILINE)


class Unable(Exception):
    """Something could not be carried out; its text says what."""


def cpu_list(text):
    """The processors of a list such as 0,2-3."""
    cpus = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            cpus.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise Unable(f"'{text}' is not a list of processors such as 0 or 0,2-3") from None
    return cpus


class Process:
    """A child in a session of its own, so that Ctrl-C reaches us alone. Output goes to files beside each other."""

    def __init__(self, command, output, cpus=None):
        self.command, self.output = [str(part) for part in command], output
        libc = ctypes.CDLL(None)

        def child():
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with us even after kill -9
            if cpus:
                os.sched_setaffinity(0, cpus)

        with open(f"{output}.out", "wb") as out, open(f"{output}.err", "wb") as err:
            try:
                self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, preexec_fn=child)
            except OSError as error:
                raise Unable(f"cannot start {self.command[0]}: {error.strerror}") from None

    def running(self):
        return self.child.poll() is None

    def said(self):
        with open(f"{self.output}.out", errors="replace") as out:
            return out.read()

    def last_words(self, lines=8):
        text = self.said()
        with open(f"{self.output}.err", errors="replace") as err:
            text += err.read()
        return "\n".join(text.strip().splitlines()[-lines:])

    def wait(self, seconds):
        """Exit code; None if it still runs after so long."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, first=signal.SIGTERM):
        """Asks it to end, waits, and ends it if it does not."""
        if self.running():
            self.child.send_signal(first)
            if self.wait(STOP_SECONDS) is None:
                self.child.kill()
        self.child.wait()


class Server(Process):
    """A process that prints `NAME is ready: pulsar://... [http://...] [pid N]`. `metrics`: /metrics is read each second of a run."""

    def __init__(self, command, output, cpus=None, metrics=True, patience=200):
        super().__init__(command, output, cpus)
        self.metrics = metrics
        try:
            self._await_ready(patience)
        except BaseException:
            self.stop()
            raise

    def _await_ready(self, patience):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = READY.search(self.said())
            if found:
                self.url, self.web_url = found[1], found[2]
                self.pid = int(found[3] or self.child.pid)
                return
            if not self.running():
                raise Unable(f"{self.command[0]} ended with {self.child.returncode} before it was ready:\n{self.last_words()}")
            time.sleep(0.05)
        raise Unable(f"{self.command[0]} was not ready after {patience} s:\n{self.last_words()}")


class External:
    """A broker that somebody else runs."""

    def __init__(self, url, web_url=None, pid=None):
        self.url, self.web_url, self.pid, self.metrics = url, web_url, pid, bool(web_url)

    def running(self):
        return True

    def stop(self):
        pass
