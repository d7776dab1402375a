//! The commands that arrive most often, read in place and without allocating.
//!
//! Every view accepts exactly the commands that [`decode_command`](crate::decode_command) accepts, and agrees with it on every
//! value. Fields a view has no use for are still checked, by the tables of the schema.

mod ack;
mod metadata;
#[cfg(test)]
mod tests;

pub use ack::{AckId, AckIds, AckSet, AckSetWords, AckView};
pub use metadata::MetadataView;
use vela_proto::base_command::Type;
use vela_proto::tables;

use crate::required::{MISSING_TYPE, TYPE_KEY, check_field, check_seen, read_type};
use crate::wire::{LEN, Malformed, NESTING, Reader, VARINT, key};

/// Type of a command.
///
/// The whole command is not checked: that is for the reader of that type to do.
///
/// # Errors
/// If the type is absent or unknown, or the bytes in front of it are not readable.
#[inline]
pub fn command_type(command: &[u8]) -> Result<Type, Malformed> {
    let mut reader = Reader::new(command);
    while let Some(key) = reader.key()? {
        if key == TYPE_KEY {
            return read_type(&mut reader);
        }
        reader.skip(key, NESTING)?;
    }
    Err(MISSING_TYPE)
}

/// Walks the envelope: checks the type, hands every occurrence of the body to `body`, and checks everything else.
///
/// Protobuf merges a message that occurs twice, hence "every occurrence".
#[inline]
fn envelope<'a>(
    command: &'a [u8],
    expected: Type,
    mut body: impl FnMut(&'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let body_key = key(expected as u32, LEN);
    let mut reader = Reader::new(command);
    let mut command_type = None;
    let mut present = false;
    while let Some(key) = reader.key()? {
        if key == body_key {
            body(reader.bytes()?)?;
            present = true;
        } else if key == TYPE_KEY {
            command_type = Some(read_type(&mut reader)?);
        } else {
            check_field(&tables::BASE_COMMAND, key, &mut reader, NESTING)?;
        }
    }
    let command_type = command_type.ok_or(MISSING_TYPE)?;
    if command_type != expected {
        return Err(Malformed::UnexpectedType(command_type as i32));
    }
    if !present {
        return Err(Malformed::MissingBody(expected as i32));
    }
    Ok(())
}

/// Nesting left inside the body of a command.
const IN_BODY: u32 = NESTING - 1;

/// Required-field bits: the n-th required field of a message has the n-th bit.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const THIRD: u64 = 4;

/// A SEND command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendView {
    /// Producer, as numbered by the client on this connection.
    pub producer_id: u64,
    /// Sequence id of the message, or of the first of a batch.
    pub sequence_id: u64,
    /// Messages in the entry; 1 if absent. Not checked: a peer may send 0 or less.
    pub num_messages: i32,
    /// Sequence id of the last message of a batch.
    pub highest_sequence_id: Option<u64>,
    /// Both halves of a transaction id are present.
    pub has_txn: bool,
    /// The entry is one chunk of a larger message.
    pub is_chunk: bool,
    /// The entry is a marker.
    pub marker: bool,
    /// The producer names the position, as the writer of a shadow topic does.
    pub has_message_id: bool,
}

impl SendView {
    /// Reads an encoded `BaseCommand`.
    ///
    /// # Errors
    /// If it is no well-formed SEND.
    #[inline]
    pub fn parse(command: &[u8]) -> Result<Self, Malformed> {
        const PRODUCER_ID: u32 = key(1, VARINT);
        const SEQUENCE_ID: u32 = key(2, VARINT);
        const NUM_MESSAGES: u32 = key(3, VARINT);
        const TXN_LEAST: u32 = key(4, VARINT);
        const TXN_MOST: u32 = key(5, VARINT);
        const HIGHEST_SEQUENCE_ID: u32 = key(6, VARINT);
        const IS_CHUNK: u32 = key(7, VARINT);
        const MARKER: u32 = key(8, VARINT);
        const MESSAGE_ID: u32 = key(9, LEN);
        let mut view = Self {
            producer_id: 0,
            sequence_id: 0,
            num_messages: 1,
            highest_sequence_id: None,
            has_txn: false,
            is_chunk: false,
            marker: false,
            has_message_id: false,
        };
        let (mut least, mut most) = (false, false);
        envelope(command, Type::Send, |body| {
            let mut reader = Reader::new(body);
            let mut seen = 0;
            while let Some(key) = reader.key()? {
                match key {
                    PRODUCER_ID => {
                        view.producer_id = reader.varint()?;
                        seen |= FIRST;
                    }
                    SEQUENCE_ID => {
                        view.sequence_id = reader.varint()?;
                        seen |= SECOND;
                    }
                    NUM_MESSAGES => view.num_messages = reader.varint()? as i32,
                    TXN_LEAST => {
                        reader.varint()?;
                        least = true;
                    }
                    TXN_MOST => {
                        reader.varint()?;
                        most = true;
                    }
                    HIGHEST_SEQUENCE_ID => view.highest_sequence_id = Some(reader.varint()?),
                    IS_CHUNK => view.is_chunk = reader.varint()? != 0,
                    MARKER => view.marker = reader.varint()? != 0,
                    other => {
                        check_field(&tables::COMMAND_SEND, other, &mut reader, IN_BODY)?;
                        view.has_message_id |= other == MESSAGE_ID;
                    }
                }
            }
            check_seen(&tables::COMMAND_SEND, seen)
        })?;
        view.has_txn = least && most;
        Ok(view)
    }
}

/// A FLOW command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowView {
    /// Consumer, as numbered by the client on this connection.
    pub consumer_id: u64,
    /// Permits added, in messages. Not checked: a peer may send 0.
    pub permits: u32,
}

impl FlowView {
    /// Reads an encoded `BaseCommand`.
    ///
    /// # Errors
    /// If it is no well-formed FLOW.
    #[inline]
    pub fn parse(command: &[u8]) -> Result<Self, Malformed> {
        const CONSUMER_ID: u32 = key(1, VARINT);
        const PERMITS: u32 = key(2, VARINT);
        let mut view = Self {
            consumer_id: 0,
            permits: 0,
        };
        envelope(command, Type::Flow, |body| {
            let mut reader = Reader::new(body);
            let mut seen = 0;
            while let Some(key) = reader.key()? {
                match key {
                    CONSUMER_ID => {
                        view.consumer_id = reader.varint()?;
                        seen |= FIRST;
                    }
                    PERMITS => {
                        view.permits = reader.varint()? as u32;
                        seen |= SECOND;
                    }
                    other => {
                        check_field(&tables::COMMAND_FLOW, other, &mut reader, IN_BODY)?;
                    }
                }
            }
            check_seen(&tables::COMMAND_FLOW, seen)
        })?;
        Ok(view)
    }
}
