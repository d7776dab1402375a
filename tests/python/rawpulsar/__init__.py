"""A small raw client for the Pulsar binary protocol: frames by hand, for what no official client can be made to send."""

from .connection import ConnectionClosed, Frame, RawConnection, UnexpectedFrame
from .frames import MAX_TOTAL_SIZE, batch_payload, command_frame, entry_bytes, parse_entry, send_frame, split_batch
from .wire import NO_ID, decode, encode

__all__ = [
    "ConnectionClosed", "Frame", "RawConnection", "UnexpectedFrame", "MAX_TOTAL_SIZE", "NO_ID",
    "batch_payload", "command_frame", "decode", "encode", "entry_bytes", "parse_entry", "send_frame", "split_batch",
]
