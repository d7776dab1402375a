//! Writing frames. The replies sent most often are written straight into the output, without building a message first; their
//! bytes are the same.

use bytes::{BufMut, BytesMut};
use prost::Message as _;
use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, ServerError};

/// Writes a frame that holds just `command`.
pub fn command(command: &BaseCommand, out: &mut BytesMut) {
    command_with_rest(command, 0, out);
}

/// Writes the head of a frame: `rest_len` bytes, which the caller appends, follow the command.
///
/// The caller keeps frames within the limit the peer was told; sizes are 32 bits on the wire.
pub fn command_with_rest(command: &BaseCommand, rest_len: usize, out: &mut BytesMut) {
    let len = command.encoded_len();
    sizes(out, len, rest_len);
    // BytesMut grows, so writing cannot fail.
    let _ = command.encode(out);
}

/// What a MESSAGE command says about the entry behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHead<'a> {
    /// Consumer, as numbered by the client on this connection.
    pub consumer_id: u64,
    /// Ledger of the entry.
    pub ledger: u64,
    /// Entry in the ledger.
    pub entry: u64,
    /// Partition of the topic, −1 if it has none. Always written.
    pub partition: i32,
    /// Times the entry was redelivered; written if above 0.
    pub redelivery_count: u32,
    /// Bits of the messages of a batch that are still to be consumed; written if not empty.
    pub ack_set: &'a [i64],
    /// Epoch of the consumer, if it sent one.
    pub consumer_epoch: Option<u64>,
    /// Permits this delivery takes, in messages. Always written (PIP-491).
    pub permits: u32,
}

/// Writes everything of a MESSAGE frame in front of the entry, `rest_len` bytes, which the caller appends.
pub fn message_head(out: &mut BytesMut, head: &MessageHead<'_>, rest_len: usize) {
    let partition = i64::from(head.partition) as u64;
    let id_len = uint_len(head.ledger) + uint_len(head.entry) + uint_len(partition);
    let mut len =
        uint_len(head.consumer_id) + nested_len(id_len) + uint_len(u64::from(head.permits));
    if head.redelivery_count > 0 {
        len += uint_len(u64::from(head.redelivery_count));
    }
    len += head
        .ack_set
        .iter()
        .map(|&word| uint_len(word as u64))
        .sum::<usize>();
    len += head.consumer_epoch.map_or(0, uint_len);

    body(out, Type::Message, len, rest_len);
    uint(out, 1, head.consumer_id);
    nested(out, 2, id_len);
    uint(out, 1, head.ledger);
    uint(out, 2, head.entry);
    uint(out, 3, partition);
    if head.redelivery_count > 0 {
        uint(out, 3, u64::from(head.redelivery_count));
    }
    for &word in head.ack_set {
        uint(out, 4, word as u64);
    }
    if let Some(epoch) = head.consumer_epoch {
        uint(out, 5, epoch);
    }
    uint(out, 6, u64::from(head.permits));
}

/// Writes a SEND_RECEIPT: the entry is stored at `ledger`:`entry`.
pub fn send_receipt(
    out: &mut BytesMut,
    producer_id: u64,
    sequence_id: u64,
    highest_sequence_id: u64,
    ledger: u64,
    entry: u64,
) {
    let id_len = uint_len(ledger) + uint_len(entry);
    let len = uint_len(producer_id)
        + uint_len(sequence_id)
        + nested_len(id_len)
        + uint_len(highest_sequence_id);
    body(out, Type::SendReceipt, len, 0);
    uint(out, 1, producer_id);
    uint(out, 2, sequence_id);
    nested(out, 3, id_len);
    uint(out, 1, ledger);
    uint(out, 2, entry);
    uint(out, 4, highest_sequence_id);
}

/// Writes a SEND_ERROR: the entry is not stored.
pub fn send_error(
    out: &mut BytesMut,
    producer_id: u64,
    sequence_id: u64,
    error: ServerError,
    message: &str,
) {
    let code = error as u64;
    let len =
        uint_len(producer_id) + uint_len(sequence_id) + uint_len(code) + nested_len(message.len());
    body(out, Type::SendError, len, 0);
    uint(out, 1, producer_id);
    uint(out, 2, sequence_id);
    uint(out, 3, code);
    text(out, 4, message);
}

/// Writes an ACK_RESPONSE: the acknowledgement is durable, or failed with `error`.
pub fn ack_response(
    out: &mut BytesMut,
    consumer_id: u64,
    request_id: Option<u64>,
    error: Option<(ServerError, &str)>,
) {
    let mut len = uint_len(consumer_id) + request_id.map_or(0, uint_len);
    if let Some((code, message)) = error {
        len += uint_len(code as u64) + nested_len(message.len());
    }
    body(out, Type::AckResponse, len, 0);
    uint(out, 1, consumer_id);
    if let Some((code, message)) = error {
        uint(out, 4, code as u64);
        text(out, 5, message);
    }
    if let Some(request_id) = request_id {
        uint(out, 6, request_id);
    }
}

/// Writes a SUCCESS.
pub fn success(out: &mut BytesMut, request_id: u64) {
    body(out, Type::Success, uint_len(request_id), 0);
    uint(out, 1, request_id);
}

/// Writes an ERROR.
pub fn error(out: &mut BytesMut, request_id: u64, error: ServerError, message: &str) {
    let code = error as u64;
    body(
        out,
        Type::Error,
        uint_len(request_id) + uint_len(code) + nested_len(message.len()),
        0,
    );
    uint(out, 1, request_id);
    uint(out, 2, code);
    text(out, 3, message);
}

/// Writes a PING.
pub fn ping(out: &mut BytesMut) {
    body(out, Type::Ping, 0, 0);
}

/// Writes a PONG.
pub fn pong(out: &mut BytesMut) {
    body(out, Type::Pong, 0, 0);
}

/// Both size fields. Room for the command is made here, once.
fn sizes(out: &mut BytesMut, command_len: usize, rest_len: usize) {
    out.reserve(8 + command_len);
    out.put_u32(size(4 + command_len + rest_len));
    out.put_u32(size(command_len));
}

/// A frame cannot be longer than its size field can say; such a one would be refused by every peer long before.
fn size(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Everything of a frame up to the fields of the command's body, which the caller writes: `len` bytes.
fn body(out: &mut BytesMut, command_type: Type, len: usize, rest_len: usize) {
    let number = command_type as u32;
    let key = u64::from(number << 3 | 2);
    // The type's field has a key of one byte, and all types are below 128.
    sizes(
        out,
        2 + varint_len(key) + varint_len(len as u64) + len,
        rest_len,
    );
    uint(out, 1, u64::from(number));
    varint(out, key);
    varint(out, len as u64);
}

/// Fields of these helpers have numbers below 16: their key is one byte.
fn uint(out: &mut BytesMut, field: u8, value: u64) {
    out.put_u8(field << 3);
    varint(out, value);
}

fn uint_len(value: u64) -> usize {
    1 + varint_len(value)
}

fn nested(out: &mut BytesMut, field: u8, len: usize) {
    out.put_u8(field << 3 | 2);
    varint(out, len as u64);
}

fn nested_len(len: usize) -> usize {
    uint_len(len as u64) + len
}

fn text(out: &mut BytesMut, field: u8, text: &str) {
    nested(out, field, text.len());
    out.put_slice(text.as_bytes());
}

pub(crate) fn varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn varint_len(value: u64) -> usize {
    // Seven bits a byte, and 0 takes one too.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests;
