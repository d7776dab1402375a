//! Reading frames and the commands that arrive per message, in place and without allocating.
//!
//! Only the form that encoders write is read here: the type first, then its body. Anything else goes through
//! [`vela_codec::decode_command`], which reads every form.

use vela_proto::base_command::Type;

use crate::error::{Result, fail};

/// Largest frame taken, in bytes: the default `maxMessageSize` and its padding, with room for larger settings.
const MAX_FRAME: usize = 64 * 1024 * 1024;

/// Bytes up to which an input grows just because its connection is busy.
const BUSY_MAX: usize = 256 * 1024;

/// A frame, borrowed from the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawFrame<'a> {
    /// The encoded `BaseCommand`.
    pub(crate) command: &'a [u8],
    /// What follows it: the entry of a SEND or MESSAGE.
    pub(crate) rest: &'a [u8],
}

impl RawFrame<'_> {
    /// The command's type, if it stands first; all types are below 128.
    pub(crate) fn type_is(&self, wanted: Type) -> bool {
        matches!(self.command, [0x08, number, ..] if i32::from(*number) == wanted as i32)
    }
}

/// Bytes received of one connection and not yet used up.
#[derive(Debug)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    capacity: usize,
    start: usize,
    end: usize,
    /// The last read filled all there was: the peer has more to say at a time.
    busy: bool,
}

impl Input {
    /// Takes `capacity` bytes at a time at first; busy connections and longer frames make it grow. Nothing is allocated before the
    /// first byte.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            buffer: Vec::new(),
            capacity,
            start: 0,
            end: 0,
            busy: false,
        }
    }

    /// Where the next bytes go: never empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            self.buffer.resize(self.capacity, 0);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.end < self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() || (self.busy && self.buffer.len() < BUSY_MAX) {
            self.busy = false;
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// `n` bytes were put into the space.
    pub(crate) fn filled(&mut self, n: usize) {
        self.end = (self.end + n).min(self.buffer.len());
        self.busy = self.end == self.buffer.len();
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<RawFrame<'_>>> {
        let bytes = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((total, body)) = split_u32(bytes) else {
            return Ok(None);
        };
        if !(4..=MAX_FRAME).contains(&total) {
            return fail(format!(
                "a frame announces {total} bytes, possible are 4 to {MAX_FRAME}"
            ));
        }
        let Some(body) = body.get(..total) else {
            return Ok(None);
        };
        let parts = split_u32(body).and_then(|(size, rest)| rest.split_at_checked(size));
        let Some((command, rest)) = parts else {
            return fail("a frame is shorter than its command");
        };
        self.start += 4 + total;
        Ok(Some(RawFrame { command, rest }))
    }
}

fn split_u32(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (size, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*size) as usize, rest))
}

/// A SEND_RECEIPT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) producer_id: u64,
    pub(crate) sequence_id: u64,
    /// Ledger and entry.
    pub(crate) position: Option<(u64, u64)>,
}

impl Receipt {
    /// Reads an encoded `BaseCommand`; `None` if it is no SEND_RECEIPT of the usual form.
    pub(crate) fn parse(command: &[u8]) -> Option<Self> {
        let (mut producer_id, mut sequence_id, mut position) = (None, None, None);
        fields(body(command, Type::SendReceipt)?, |number, value| {
            match (number, value) {
                (1, Value::Uint(id)) => producer_id = Some(id),
                (2, Value::Uint(id)) => sequence_id = Some(id),
                (3, Value::Bytes(id)) => position = read_position(id),
                _ => {}
            }
        })?;
        Some(Self {
            producer_id: producer_id?,
            sequence_id: sequence_id?,
            position,
        })
    }
}

/// What a MESSAGE says about the entry behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) consumer_id: u64,
    pub(crate) ledger: u64,
    pub(crate) entry: u64,
    pub(crate) redelivery_count: u64,
    /// What the broker debited, if it says so (PIP-491).
    pub(crate) permits: Option<u64>,
}

impl Delivery {
    /// Reads an encoded `BaseCommand`; `None` if it is no MESSAGE of the usual form.
    pub(crate) fn parse(command: &[u8]) -> Option<Self> {
        let (mut consumer_id, mut position) = (None, None);
        let (mut redelivery_count, mut permits) = (0, None);
        fields(body(command, Type::Message)?, |number, value| {
            match (number, value) {
                (1, Value::Uint(id)) => consumer_id = Some(id),
                (2, Value::Bytes(id)) => position = read_position(id),
                (3, Value::Uint(count)) => redelivery_count = count,
                (6, Value::Uint(count)) => permits = Some(count),
                _ => {}
            }
        })?;
        let (ledger, entry) = position?;
        Some(Self {
            consumer_id: consumer_id?,
            ledger,
            entry,
            redelivery_count,
            permits,
        })
    }
}

fn read_position(id: &[u8]) -> Option<(u64, u64)> {
    let (mut ledger, mut entry) = (None, None);
    fields(id, |number, value| match (number, value) {
        (1, Value::Uint(id)) => ledger = Some(id),
        (2, Value::Uint(id)) => entry = Some(id),
        _ => {}
    })?;
    Some((ledger?, entry?))
}

/// The body of a command of the wanted type: the field whose number is the type's.
fn body(command: &[u8], wanted: Type) -> Option<&[u8]> {
    let (&[0x08, number], mut rest) = command.split_first_chunk()? else {
        return None;
    };
    if i32::from(number) != wanted as i32 || varint(&mut rest)? != u64::from(number) << 3 | 2 {
        return None;
    }
    let len = usize::try_from(varint(&mut rest)?).ok()?;
    (rest.len() == len).then_some(rest)
}

enum Value<'a> {
    Uint(u64),
    Bytes(&'a [u8]),
}

/// Calls `field` with each field; `None` if the bytes are malformed or use a fixed-size type, which these commands do not.
#[inline]
fn fields<'a>(mut bytes: &'a [u8], mut field: impl FnMut(u64, Value<'a>)) -> Option<()> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        match key & 7 {
            0 => field(key >> 3, Value::Uint(varint(&mut bytes)?)),
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(len)?;
                bytes = rest;
                field(key >> 3, Value::Bytes(value));
            }
            _ => return None,
        }
    }
    Some(())
}

#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use bytes::BytesMut;
    use vela_codec::encode::{self, MessageHead};

    use super::*;

    fn input_of(bytes: &[u8]) -> Input {
        let mut input = Input::new(16);
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = input.space();
            let n = space.len().min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            input.filled(n);
            rest = &rest[n..];
        }
        input
    }

    #[test]
    fn receipts_are_read_as_the_codec_writes_them() {
        let mut out = BytesMut::new();
        encode::send_receipt(&mut out, 3, 300, u64::MAX, 70_000, 9);
        let mut input = input_of(&out);
        let frame = input.next().unwrap().unwrap();
        assert!(frame.type_is(Type::SendReceipt));
        let expected = Receipt {
            producer_id: 3,
            sequence_id: 300,
            position: Some((70_000, 9)),
        };
        assert_eq!(Receipt::parse(frame.command), Some(expected));
        assert!(input.next().unwrap().is_none());
    }

    #[test]
    fn deliveries_are_read_as_the_codec_writes_them() {
        let mut out = BytesMut::new();
        let head = MessageHead {
            consumer_id: 2,
            ledger: 7,
            entry: 1 << 40,
            partition: -1,
            redelivery_count: 1,
            ack_set: &[-1],
            consumer_epoch: Some(4),
            permits: 10,
        };
        encode::message_head(&mut out, &head, 3);
        out.extend_from_slice(b"abc");
        let mut input = input_of(&out);
        let frame = input.next().unwrap().unwrap();
        let delivery = Delivery::parse(frame.command).unwrap();
        assert_eq!(
            (delivery.consumer_id, delivery.ledger, delivery.entry),
            (2, 7, 1 << 40)
        );
        assert_eq!((delivery.redelivery_count, delivery.permits), (1, Some(10)));
        assert_eq!(frame.rest, b"abc");
    }

    #[test]
    fn other_commands_and_damage_are_not_taken_for_receipts() {
        let mut out = BytesMut::new();
        encode::send_receipt(&mut out, 3, 300, 0, 7, 9);
        let whole = &out[8..];
        for cut in 0..whole.len() {
            assert_eq!(Receipt::parse(&whole[..cut]), None, "{cut}");
        }
        out.clear();
        encode::ping(&mut out);
        assert_eq!(Receipt::parse(&out[8..]), None);
    }

    #[test]
    fn frames_in_any_pieces() {
        let mut bytes = BytesMut::new();
        for sequence in 0..100 {
            encode::send_receipt(&mut bytes, 1, sequence, 0, 5, sequence);
        }
        for piece in [1, 3, 7, 64, 4096] {
            let (mut input, mut seen) = (Input::new(32), 0);
            for chunk in bytes.chunks(piece) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    let space = input.space();
                    let n = space.len().min(rest.len());
                    space[..n].copy_from_slice(&rest[..n]);
                    input.filled(n);
                    rest = &rest[n..];
                    while let Some(frame) = input.next().unwrap() {
                        assert_eq!(Receipt::parse(frame.command).unwrap().sequence_id, seen);
                        seen += 1;
                    }
                }
            }
            assert_eq!(seen, 100);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(input_of(&[0, 0, 0, 3, 0, 0, 0]).next().is_err());
        assert!(input_of(&[0xff; 8]).next().is_err());
        assert!(input_of(&[0, 0, 0, 4, 0, 0, 0, 1]).next().is_err());
    }
}
