"""Load on raw connections for tests of limits: many SENDs written without waiting, and their receipts with the time they came."""

import threading
import time

from rawpulsar import ConnectionClosed, entry_bytes, send_frame
from waiting import LIMIT_SECONDS


def exceeds(times, rate, burst):
    """The first (number, seconds) that a rate per second behind a burst does not allow, or None."""
    return next(((n, at) for n, at in enumerate(sorted(times), 1) if n > burst + rate * at), None)


class Load:
    """Writes SENDs on a raw connection from a thread of its own, and reads everything that comes from another.

    `receipts` are (seconds since the start, producer, sequence id) in the order of their coming; `pongs` the times of PONGs;
    `errors` what else came."""

    def __init__(self, connection):
        self.connection = connection
        self.receipts, self.pongs, self.errors = [], [], []
        self.closed = False
        self.writing = threading.Lock()
        self.start = time.monotonic()
        self._threads = []
        self._stop = threading.Event()
        self._run(self._read)

    def _run(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _read(self):
        while not self._stop.is_set():
            try:
                frame = self.connection.receive(0.2)
            except TimeoutError:
                continue
            except (ConnectionClosed, OSError, ValueError) as error:
                if not self._stop.is_set():
                    self.errors.append(repr(error))
                    self.closed = True
                return
            at = time.monotonic() - self.start
            if frame.type == "SEND_RECEIPT":
                self.receipts.append((at, frame["producer_id"], frame["sequence_id"]))
            elif frame.type == "PONG":
                self.pongs.append(at)
            elif frame.type == "PING":
                self.say("PONG")
            else:
                self.errors.append(repr(frame))

    def say(self, command, **fields):
        with self.writing:
            self.connection.send(command, **fields)

    def publish(self, producers, count, size=20, first=0, together=50):
        """Writes `count` SENDs of `size` bytes for each of `producers`, in turns, with sequence ids from `first` on."""
        # Checksums are slow here: large entries go without.
        entry = entry_bytes(b"x" * size, checksum="good" if size <= 64 * 1024 else "none")
        return self._run(self._write, producers, count, entry, first, together)

    def _write(self, producers, count, entry, first, together):
        try:
            for start in range(first, first + count, together):
                ids = range(start, min(start + together, first + count))
                frames = b"".join(
                    send_frame(entry, producer_id=producer, sequence_id=id, num_messages=1) for id in ids for producer in producers
                )
                with self.writing:
                    self.connection.write(frames)
        except (ConnectionClosed, OSError) as error:
            if not self._stop.is_set():
                self.errors.append(repr(error))

    def ids(self, producer=1):
        return [id for _, of, id in self.receipts if of == producer]

    def wait_for(self, count, seconds=LIMIT_SECONDS):
        """Waits for so many receipts in all, and says when the last of them came."""
        end = time.monotonic() + seconds
        while len(self.receipts) < count:
            assert not self.errors, self.errors[:3]
            assert time.monotonic() < end, f"{len(self.receipts)} of {count} receipts after {seconds} s"
            time.sleep(0.01)
        return self.receipts[count - 1][0]

    def exceeds(self, rate, burst, producer=None):
        """The first receipt that came too early for a rate per second behind a burst, or None. Counted from the start of the load, so
        that a pause of anybody moves receipts only to where more of them are allowed."""
        times = [at for at, of, _ in self.receipts if producer in (None, of)]
        return exceeds(times, rate, burst)

    def stop(self):
        self._stop.set()
        self.connection.close()
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
