"""Waiting for what must come. Nobody knows how slow the machine is, so nothing here looks at a moment: a state is polled for until it
is there, and only what nobody should ever see is waited for by the clock."""

import time

import pulsar

# For whatever the broker owes: far beyond what a busy machine with a stalling disk takes.
LIMIT_SECONDS = 60
LIMIT_MS = LIMIT_SECONDS * 1000


def eventually(condition, what="", seconds=LIMIT_SECONDS):
    """Polls until `condition` answers something true, and answers that."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.01)
    return answer


def drain(consumer, enough, quiet_ms=500, ack=False):
    """What an official consumer receives: as much as makes `enough` (a number, or a question about the payloads so far), however long
    it takes, and what comes behind it until nothing comes for a while."""
    payloads = []
    is_enough = enough if callable(enough) else lambda got: len(got) >= enough
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        owed = not is_enough(payloads)
        try:
            message = consumer.receive(quiet_ms)
        except pulsar.Timeout:
            if not owed:
                return payloads
            assert time.monotonic() < end, f"{len(payloads)} messages in {LIMIT_SECONDS} s, more are owed: {payloads[-10:]}"
            continue
        payloads.append(message.data())
        if ack:
            consumer.acknowledge(message)


def gather(consumers, enough, ack=True):
    """The messages of several official consumers by consumer, until `enough` says of all payloads that it is."""
    got = [[] for _ in consumers]
    end = time.monotonic() + LIMIT_SECONDS
    is_enough = enough if callable(enough) else lambda payloads: len(payloads) >= enough
    while not is_enough(payloads := [message.data() for messages in got for message in messages]):
        assert time.monotonic() < end, f"{len(payloads)} messages in {LIMIT_SECONDS} s, more are owed: {payloads[-10:]}"
        for consumer, messages in zip(consumers, got):
            while True:
                try:
                    messages.append(consumer.receive(50))
                except pulsar.Timeout:
                    break
                if ack:
                    consumer.acknowledge(messages[-1])
    return got


def collect(connections, count, quiet=0.3):
    """MESSAGE frames of several raw connections by connection: `count` in all, however long it takes, and what comes behind them."""
    got = [[] for _ in connections]
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        came = False
        for connection, messages in zip(connections, got):
            while True:
                try:
                    frame = connection.next(quiet / len(connections))
                except TimeoutError:
                    break
                assert frame.type == "MESSAGE", frame
                messages.append(frame)
                came = True
        total = sum(map(len, got))
        if not came and total >= count:
            return got
        assert time.monotonic() < end, f"{total} of {count} messages in {LIMIT_SECONDS} s"
