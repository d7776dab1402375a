//! ACK commands: any number of positions, read one by one without a list.

use vela_proto::base_command::Type;
use vela_proto::command_ack::AckType;
use vela_proto::tables;

use super::{FIRST, IN_BODY, SECOND, envelope};
use crate::required::{check_field, check_seen};
use crate::wire::{LEN, Malformed, NESTING, Reader, VARINT, key};

/// Key of `BaseCommand.ack`.
const ACK: u32 = key(Type::Ack as u32, LEN);
/// Key of `CommandAck.message_id`.
const MESSAGE_ID: u32 = key(3, LEN);
/// `MessageIdData.ack_set`, one element per key, and packed.
const ACK_SET: u32 = key(5, VARINT);
const ACK_SET_PACKED: u32 = key(5, LEN);

/// An ACK command.
#[derive(Debug, Clone, Copy)]
pub struct AckView<'a> {
    /// Consumer, as numbered by the client on this connection.
    pub consumer_id: u64,
    /// Individual or cumulative.
    pub ack_type: AckType,
    /// Present if the client wants an ACK_RESPONSE.
    pub request_id: Option<u64>,
    /// Both halves of a transaction id are present.
    pub has_txn: bool,
    /// Number of a `CommandAck.ValidationError`, which may be unknown: why the client discards the message.
    pub validation_error: Option<i32>,
    command: &'a [u8],
    ids: usize,
}

impl<'a> AckView<'a> {
    /// Reads an encoded `BaseCommand`.
    ///
    /// # Errors
    /// If it is no well-formed ACK.
    pub fn parse(command: &'a [u8]) -> Result<Self, Malformed> {
        const CONSUMER_ID: u32 = key(1, VARINT);
        const ACK_TYPE: u32 = key(2, VARINT);
        const VALIDATION_ERROR: u32 = key(4, VARINT);
        const TXN_LEAST: u32 = key(6, VARINT);
        const TXN_MOST: u32 = key(7, VARINT);
        const REQUEST_ID: u32 = key(8, VARINT);
        let mut view = Self {
            consumer_id: 0,
            ack_type: AckType::Individual,
            request_id: None,
            has_txn: false,
            validation_error: None,
            command,
            ids: 0,
        };
        let (mut least, mut most) = (false, false);
        envelope(command, Type::Ack, |body| {
            let mut reader = Reader::new(body);
            let mut seen = 0;
            while let Some(key) = reader.key()? {
                match key {
                    MESSAGE_ID => {
                        check_id(reader.bytes()?)?;
                        view.ids += 1;
                    }
                    CONSUMER_ID => {
                        view.consumer_id = reader.varint()?;
                        seen |= FIRST;
                    }
                    ACK_TYPE => {
                        let value = reader.varint()? as i32;
                        view.ack_type =
                            AckType::try_from(value).map_err(|_| Malformed::UnknownEnum {
                                message: "CommandAck",
                                field: "ack_type",
                                value,
                            })?;
                        seen |= SECOND;
                    }
                    VALIDATION_ERROR => view.validation_error = Some(reader.varint()? as i32),
                    REQUEST_ID => view.request_id = Some(reader.varint()?),
                    TXN_LEAST => {
                        reader.varint()?;
                        least = true;
                    }
                    TXN_MOST => {
                        reader.varint()?;
                        most = true;
                    }
                    other => {
                        check_field(&tables::COMMAND_ACK, other, &mut reader, IN_BODY)?;
                    }
                }
            }
            check_seen(&tables::COMMAND_ACK, seen)
        })?;
        view.has_txn = least && most;
        Ok(view)
    }

    /// How many positions are acknowledged.
    #[must_use]
    pub fn ids_len(&self) -> usize {
        self.ids
    }

    /// The positions, in the order sent.
    #[must_use]
    pub fn ids(&self) -> AckIds<'a> {
        AckIds {
            command: Reader::new(self.command),
            body: Reader::new(&[]),
            left: self.ids,
        }
    }
}

/// Nesting left inside a `MessageIdData` of the body.
const IN_ID: u32 = IN_BODY - 1;

/// Keys of `MessageIdData`.
const LEDGER: u32 = key(1, VARINT);
const ENTRY: u32 = key(2, VARINT);
const PARTITION: u32 = key(3, VARINT);
const BATCH_INDEX: u32 = key(4, VARINT);
const BATCH_SIZE: u32 = key(6, VARINT);

fn check_id(id: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(id);
    let mut seen = 0;
    while let Some(key) = reader.key()? {
        match key {
            LEDGER => {
                reader.varint()?;
                seen |= FIRST;
            }
            ENTRY => {
                reader.varint()?;
                seen |= SECOND;
            }
            PARTITION | BATCH_INDEX | ACK_SET | BATCH_SIZE => {
                reader.varint()?;
            }
            other => {
                check_field(&tables::MESSAGE_ID_DATA, other, &mut reader, IN_ID)?;
            }
        }
    }
    check_seen(&tables::MESSAGE_ID_DATA, seen)
}

/// A position in an ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckId<'a> {
    /// Ledger of the entry.
    pub ledger: u64,
    /// Entry in the ledger.
    pub entry: u64,
    /// Partition of the topic, −1 if absent. The broker has no use for it.
    pub partition: i32,
    /// Message in the batch, −1 if absent.
    pub batch_index: i32,
    /// Messages in the batch, as the client counts them.
    pub batch_size: Option<i32>,
    /// Bits of the messages of the batch that are **not** acknowledged.
    pub ack_set: AckSet<'a>,
}

impl<'a> AckId<'a> {
    /// Reads an id that was checked before; what cannot be read any more is left at its default.
    fn read(id: &'a [u8]) -> Self {
        let mut out = Self {
            ledger: 0,
            entry: 0,
            partition: -1,
            batch_index: -1,
            batch_size: None,
            ack_set: AckSet::default(),
        };
        // Checked by `check_id` when the command was parsed.
        let _ = out.fill(id);
        out
    }

    fn fill(&mut self, id: &'a [u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(id);
        while let Some(key) = reader.key()? {
            match key {
                LEDGER => self.ledger = reader.varint()?,
                ENTRY => self.entry = reader.varint()?,
                PARTITION => self.partition = reader.varint()? as i32,
                BATCH_INDEX => self.batch_index = reader.varint()? as i32,
                BATCH_SIZE => self.batch_size = Some(reader.varint()? as i32),
                ACK_SET | ACK_SET_PACKED => {
                    self.ack_set = AckSet { id };
                    reader.skip(key, NESTING)?;
                }
                other => reader.skip(other, NESTING)?,
            }
        }
        Ok(())
    }
}

/// Positions of an ACK, read one by one.
#[derive(Debug, Clone)]
pub struct AckIds<'a> {
    command: Reader<'a>,
    body: Reader<'a>,
    left: usize,
}

impl<'a> AckIds<'a> {
    fn advance(&mut self) -> Result<Option<AckId<'a>>, Malformed> {
        loop {
            while let Some(key) = self.body.key()? {
                if key == MESSAGE_ID {
                    return Ok(Some(AckId::read(self.body.bytes()?)));
                }
                self.body.skip(key, NESTING)?;
            }
            match self.command.key()? {
                None => return Ok(None),
                Some(ACK) => self.body = Reader::new(self.command.bytes()?),
                Some(key) => self.command.skip(key, NESTING)?,
            }
        }
    }
}

impl<'a> Iterator for AckIds<'a> {
    type Item = AckId<'a>;

    fn next(&mut self) -> Option<AckId<'a>> {
        // The command was checked when parsed, so there is no error to report.
        let id = self.advance().ok().flatten()?;
        self.left = self.left.saturating_sub(1);
        Some(id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for AckIds<'_> {}

/// Words of 64 bits, lowest message first; a set bit is a message that is **not** acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AckSet<'a> {
    /// The `MessageIdData` that holds it, or nothing.
    id: &'a [u8],
}

impl<'a> AckSet<'a> {
    /// No ack set was sent: the whole entry is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The words.
    #[must_use]
    pub fn iter(&self) -> AckSetWords<'a> {
        AckSetWords {
            id: Reader::new(self.id),
            packed: Reader::new(&[]),
        }
    }
}

impl<'a> IntoIterator for AckSet<'a> {
    type Item = i64;
    type IntoIter = AckSetWords<'a>;

    fn into_iter(self) -> AckSetWords<'a> {
        self.iter()
    }
}

/// Iterator of [`AckSet`].
#[derive(Debug, Clone)]
pub struct AckSetWords<'a> {
    id: Reader<'a>,
    packed: Reader<'a>,
}

impl AckSetWords<'_> {
    fn advance(&mut self) -> Result<Option<i64>, Malformed> {
        loop {
            if !self.packed.is_empty() {
                return self.packed.varint().map(|word| Some(word as i64));
            }
            match self.id.key()? {
                None => return Ok(None),
                Some(ACK_SET) => return self.id.varint().map(|word| Some(word as i64)),
                Some(ACK_SET_PACKED) => self.packed = Reader::new(self.id.bytes()?),
                Some(key) => self.id.skip(key, NESTING)?,
            }
        }
    }
}

impl Iterator for AckSetWords<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        self.advance().ok().flatten()
    }
}
