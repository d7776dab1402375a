"""One TCP connection that speaks frames, with helpers that say what they expected and what they got."""

import itertools
import select
import socket
import struct
import time

from . import frames, wire


class ConnectionClosed(Exception):
    """The broker closed the connection."""


class UnexpectedFrame(AssertionError):
    """A frame arrived that the test did not expect."""


class Frame:
    """A received frame: `type` is the command's name, `fields` its set fields, `rest` the bytes behind the command."""

    def __init__(self, data):
        (size,) = struct.unpack_from(">I", data)
        if size > len(data) - 4:
            raise ValueError(f"command_size {size} in a frame of {len(data)} bytes")
        command, self.rest = data[4 : 4 + size], bytes(data[4 + size :])
        key, at = wire.read_varint(command, 0)
        number, at = wire.read_varint(command, at)
        if key != 8 or number not in wire.COMMAND_BY_NUMBER:
            raise ValueError(f"not a command this client knows: {bytes(command).hex()}")
        self.type, message = wire.COMMAND_BY_NUMBER[number]
        key, at = wire.read_varint(command, at)
        length, at = wire.read_varint(command, at)
        if key != number << 3 | 2 or at + length != len(command):
            raise ValueError(f"{self.type} without its sub-message: {bytes(command).hex()}")
        self.fields = wire.decode(message, command[at:])

    def __getitem__(self, name):
        return self.fields[name]

    def get(self, name, default=None):
        return self.fields.get(name, default)

    @property
    def position(self):
        """(ledger, entry) of a MESSAGE or SEND_RECEIPT."""
        return self["message_id"]["ledgerId"], self["message_id"]["entryId"]

    @property
    def entry(self):
        """(checksum verdict, metadata, payload) of a MESSAGE."""
        return frames.parse_entry(self.rest)

    @property
    def payload(self):
        return self.entry[2]

    def __repr__(self):
        return f"{self.type} {self.fields}" + (f" + {len(self.rest)} bytes" if self.rest else "")


class RawConnection:
    """A blocking connection. Every wait has a time limit in seconds; PINGs are answered while waiting unless `pong` is off."""

    def __init__(self, host, port, pong=True, timeout=60):
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self.pong = pong
        self.buffer = bytearray()
        self.ids = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    # --- frames -----------------------------------------------------------------------------------------------------

    def write(self, data):
        """Writes bytes as they are, in one piece."""
        try:
            self.socket.settimeout(self.timeout)
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionClosed(str(error)) from error

    def send(self, command_type, **fields):
        self.write(frames.command_frame(command_type, **fields))

    def receive(self, timeout=None):
        """The next frame, PINGs included. Raises TimeoutError or ConnectionClosed."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            if len(self.buffer) >= 4:
                (total,) = struct.unpack_from(">I", self.buffer)
                if len(self.buffer) >= 4 + total:
                    data = bytes(self.buffer[4 : 4 + total])
                    del self.buffer[: 4 + total]
                    return Frame(data)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError("no frame came in time")
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError as error:
                raise ConnectionClosed("reset by the broker") from error
            if not data:
                raise ConnectionClosed(f"closed by the broker, {len(self.buffer)} bytes of a frame pending")
            self.buffer += data

    def next(self, timeout=None):
        """The next frame that is not a PING; those are answered."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            frame = self.receive(max(0.0, deadline - time.monotonic()))
            if frame.type != "PING":
                return frame
            if self.pong:
                self.send("PONG")

    def expect(self, command_type, timeout=None, skip=(), **fields):
        """The next frame, which must be of this type and carry these fields. Types in `skip` are passed over."""
        while True:
            try:
                frame = self.next(timeout)
            except (TimeoutError, ConnectionClosed) as error:
                raise UnexpectedFrame(f"expected {command_type} {fields}, but: {error}") from error
            if frame.type not in skip:
                break
        wrong = {name: frame.get(name) for name, value in fields.items() if frame.get(name) != value}
        if frame.type != command_type or wrong:
            raise UnexpectedFrame(f"expected {command_type} {fields}, got {frame}")
        return frame

    def expect_silence(self, seconds):
        """Nothing but PINGs may come for this long, and the connection must stay open."""
        try:
            frame = self.next(seconds)
        except TimeoutError:
            return
        except ConnectionClosed as error:
            raise UnexpectedFrame(f"expected silence, but: {error}") from error
        raise UnexpectedFrame(f"expected silence, got {frame}")

    def expect_closed(self, timeout=25):
        """The broker must close the connection without another frame. The limit is below the 30 seconds after which a broker closes a
        connection that has not said CONNECT anyway."""
        try:
            frame = self.next(timeout)
        except ConnectionClosed:
            return
        except TimeoutError as error:
            raise UnexpectedFrame("expected the broker to close the connection; it stayed open") from error
        raise UnexpectedFrame(f"expected the broker to close the connection, got {frame}")

    def expect_alive(self):
        """The broker must still answer a PING."""
        self.send("PING")
        self.expect("PONG")

    def messages(self, count, timeout=None, **fields):
        """The next `count` MESSAGE frames."""
        return [self.expect("MESSAGE", timeout, **fields) for _ in range(count)]

    # --- conversations ----------------------------------------------------------------------------------------------

    def connect(self, protocol_version=21, **fields):
        """CONNECT and its CONNECTED."""
        fields.setdefault("client_version", "rawpulsar")
        self.send("CONNECT", protocol_version=protocol_version, **fields)
        return self.expect("CONNECTED")

    def request(self, command_type, answer="SUCCESS", skip=(), **fields):
        """A command with a fresh request id and the answer that carries it."""
        request_id = next(self.ids)
        self.send(command_type, request_id=request_id, **fields)
        return self.expect(answer, request_id=request_id, skip=skip)

    def producer(self, topic, producer_id=1, **fields):
        return self.request("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=producer_id, **fields)

    def subscribe(self, topic, subscription="sub", sub_type="Exclusive", consumer_id=1, position="Earliest", **fields):
        fields.setdefault("force_topic_creation", True)
        return self.request(
            "SUBSCRIBE", topic=topic, subscription=subscription, subType=sub_type, consumer_id=consumer_id,
            initialPosition=position, **fields,
        )

    def flow(self, permits, consumer_id=1):
        self.send("FLOW", consumer_id=consumer_id, messagePermits=permits)

    def publish(self, payload, sequence_id=0, producer_id=1, checksum="good", **metadata):
        """One plain message and its receipt."""
        entry = frames.entry_bytes(payload, checksum=checksum, sequence_id=sequence_id, **metadata)
        self.write(frames.send_frame(entry, producer_id=producer_id, sequence_id=sequence_id, num_messages=1))
        return self.expect("SEND_RECEIPT", producer_id=producer_id, sequence_id=sequence_id)

    def publish_batch(self, payloads, sequence_id=0, producer_id=1):
        """One batch as one entry and its receipt."""
        highest = sequence_id + len(payloads) - 1
        body = frames.batch_payload(payloads, sequence_id)
        entry = frames.entry_bytes(
            body, sequence_id=sequence_id, num_messages_in_batch=len(payloads), uncompressed_size=len(body),
            highest_sequence_id=highest,
        )
        self.write(frames.send_frame(
            entry, producer_id=producer_id, sequence_id=sequence_id, num_messages=len(payloads), highest_sequence_id=highest,
        ))
        return self.expect("SEND_RECEIPT", producer_id=producer_id, sequence_id=sequence_id)

    def ack(self, *ids, consumer_id=1, ack_type="Individual", receipt=True):
        """Acknowledges positions (pairs or ready MessageIdData); with `receipt` waits for the AckResponse and returns it."""
        ids = [id if isinstance(id, dict) else {"ledgerId": id[0], "entryId": id[1]} for id in ids]
        fields = {"consumer_id": consumer_id, "ack_type": ack_type, "message_id": ids}
        if not receipt:
            return self.send("ACK", **fields)
        return self.request("ACK", "ACK_RESPONSE", skip=("MESSAGE",), **fields)

    def stats(self, consumer_id=1):
        """CONSUMER_STATS_RESPONSE of a consumer, with the permits as the signed number they mean."""
        frame = self.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=consumer_id)
        permits = frame["availablePermits"]
        frame.fields["availablePermits"] = permits - 2**64 if permits >> 63 else permits
        return frame
