//! Every record kind of the log, in one binary format.
//!
//! A record is a kind byte and fixed little-endian fields; text and lists carry a 32-bit length. A kind this version does
//! not know is [`Malformed`], so an older broker refuses a newer log instead of misreading it. The payload of an entry
//! (or the value of a property) stands last, without a length: the frame around a record knows where it ends. So a
//! record is written as a small head, and a payload that is copied once.

use std::ops::Deref;

use super::Position;
use super::fields::{
    Reader, put_i64, put_len, put_position, put_text, put_u32, put_u64, put_words,
};
use super::sequences::SequenceId;

/// A topic's number in its lane: unique, rising, never reused.
pub type TopicId = u32;
/// A cursor's number in its topic: unique, rising, never reused.
pub type CursorId = u32;

/// One change of a lane's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Record<'a> {
    /// A topic exists from here on.
    TopicCreated {
        /// The new topic.
        topic: TopicId,
        /// Its full name.
        name: &'a str,
        /// Wall clock, milliseconds since 1970.
        created_ms: u64,
    },
    /// A topic is gone with everything in it.
    TopicDeleted {
        /// The topic.
        topic: TopicId,
    },
    /// A ledger begins; the one before is closed.
    LedgerOpened {
        /// The topic.
        topic: TopicId,
        /// The new ledger's id, above all ids before it in this topic.
        ledger: i64,
        /// Wall clock, milliseconds since 1970.
        opened_ms: u64,
    },
    /// One entry of the open ledger.
    Entry {
        /// The topic.
        topic: TopicId,
        /// The open ledger.
        ledger: i64,
        /// The entry's number, the next one of the ledger.
        entry: i64,
        /// The entry as published.
        data: &'a [u8],
    },
    /// One entry of the open ledger, of a topic with deduplication.
    Sequenced {
        /// The topic.
        topic: TopicId,
        /// The open ledger.
        ledger: i64,
        /// The entry's number, the next one of the ledger.
        entry: i64,
        /// Who stored it.
        producer: SequenceId,
        /// Its highest sequence id.
        highest: i64,
        /// The entry as published.
        data: &'a [u8],
    },
    /// Deduplication knows a producer from here on.
    SequenceOpened {
        /// The topic.
        topic: TopicId,
        /// The new number.
        producer: SequenceId,
        /// The producer's name.
        name: &'a str,
    },
    /// Deduplication has forgotten a producer.
    SequenceClosed {
        /// The topic.
        topic: TopicId,
        /// Its number.
        producer: SequenceId,
    },
    /// A durable cursor exists from here on.
    CursorCreated {
        /// The topic.
        topic: TopicId,
        /// The new cursor.
        cursor: CursorId,
        /// The subscription's name.
        name: &'a str,
        /// Everything up to here counts as acknowledged.
        mark_delete: Position,
        /// The subscription's properties.
        properties: List<'a, (&'a str, &'a str)>,
    },
    /// A cursor is gone.
    CursorDeleted {
        /// The topic.
        topic: TopicId,
        /// The cursor.
        cursor: CursorId,
    },
    /// Entries, or batch indexes of entries, were acknowledged one by one.
    Acked {
        /// The topic.
        topic: TopicId,
        /// The cursor.
        cursor: CursorId,
        /// What was acknowledged.
        ids: List<'a, AckedId<'a>>,
    },
    /// Everything up to a position was acknowledged.
    MarkDeleted {
        /// The topic.
        topic: TopicId,
        /// The cursor.
        cursor: CursorId,
        /// The last entry acknowledged, whole if `ack_set` is empty.
        to: Position,
        /// What of entry `to` is still unacknowledged (bit 1).
        ack_set: List<'a, i64>,
    },
    /// The cursor was set to a position (seek, expiry, skip).
    CursorReset {
        /// The topic.
        topic: TopicId,
        /// The cursor.
        cursor: CursorId,
        /// The new mark-delete position.
        to: Position,
        /// What of the next entry is to be delivered (bit 1); empty is all of it.
        ack_set_of_next: List<'a, i64>,
    },
    /// Closed ledgers up to an id were removed.
    Trimmed {
        /// The topic.
        topic: TopicId,
        /// The last ledger removed.
        through_ledger: i64,
    },
    /// The topic takes no entry any more.
    Terminated {
        /// The topic.
        topic: TopicId,
        /// Its last position.
        at: Position,
    },
    /// A small named value of the topic. An empty value removes it.
    TopicProperty {
        /// The topic.
        topic: TopicId,
        /// Its name.
        key: &'a str,
        /// Its value.
        value: &'a [u8],
    },
}

/// A list that is borrowed when a record is written and owned when it was read. (A `Cow` of a slice would tie the
/// lifetimes of everything in a record together.)
#[derive(Clone, Debug)]
pub enum List<'a, T> {
    /// To be written.
    Borrowed(&'a [T]),
    /// Was read.
    Owned(Vec<T>),
}

impl<T> Deref for List<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Borrowed(items) => items,
            Self::Owned(items) => items,
        }
    }
}

impl<T: PartialEq> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for List<'_, T> {}

impl<T> From<Vec<T>> for List<'_, T> {
    fn from(items: Vec<T>) -> Self {
        Self::Owned(items)
    }
}

impl<'a, T> From<&'a [T]> for List<'a, T> {
    fn from(items: &'a [T]) -> Self {
        Self::Borrowed(items)
    }
}

/// One id of [`Record::Acked`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AckedId<'a> {
    /// The entry.
    pub position: Position,
    /// What of it is still unacknowledged (bit 1); empty acknowledges the whole entry.
    pub ack_set: List<'a, i64>,
    /// Messages in the entry, if they are known and `ack_set` is not empty.
    pub batch_size: Option<u32>,
}

impl AckedId<'_> {
    /// A whole entry.
    pub const fn whole(position: Position) -> Self {
        Self {
            position,
            ack_set: List::Borrowed(&[]),
            batch_size: None,
        }
    }
}

/// Bytes that are not a record of this version.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// The kind byte is none of ours.
    #[error(
        "record kind {0} is unknown to this version: the log was written by a newer version, or is damaged"
    )]
    UnknownKind(u8),
    /// The bytes end before the record does.
    #[error("the record ends too early")]
    Short,
    /// Bytes follow after the record's end.
    #[error("{0} bytes follow after the record's end")]
    Trailing(usize),
    /// Text is not UTF-8.
    #[error("text of the record is not UTF-8")]
    NotText,
    /// The magic or version of a checkpoint is not ours.
    #[error("not a checkpoint of this version (format {0})")]
    Version(u32),
    /// The checksum does not fit the bytes.
    #[error("checksum mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    Checksum {
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// Fields contradict each other.
    #[error("inconsistent: {0}")]
    Inconsistent(&'static str),
}

/// Length of an entry's head in bytes.
pub const ENTRY_HEAD: usize = 21;

const TOPIC_CREATED: u8 = 1;
const TOPIC_DELETED: u8 = 2;
const LEDGER_OPENED: u8 = 3;
const ENTRY: u8 = 4;
const CURSOR_CREATED: u8 = 5;
const CURSOR_DELETED: u8 = 6;
const ACKED: u8 = 7;
const MARK_DELETED: u8 = 8;
const CURSOR_RESET: u8 = 9;
const TRIMMED: u8 = 10;
const TERMINATED: u8 = 11;
const TOPIC_PROPERTY: u8 = 12;
const SEQUENCED: u8 = 13;
const SEQUENCE_OPENED: u8 = 14;
const SEQUENCE_CLOSED: u8 = 15;

/// Length in bytes of the head of an entry with a sequence id: an entry's head, producer and highest id.
pub const SEQUENCED_HEAD: usize = ENTRY_HEAD + 12;

/// The head of an entry record; the entry's bytes follow it.
#[inline]
pub fn entry_head(topic: TopicId, ledger: i64, entry: i64) -> [u8; ENTRY_HEAD] {
    let [t0, t1, t2, t3] = topic.to_le_bytes();
    let [l0, l1, l2, l3, l4, l5, l6, l7] = ledger.to_le_bytes();
    let [e0, e1, e2, e3, e4, e5, e6, e7] = entry.to_le_bytes();
    [
        ENTRY, t0, t1, t2, t3, l0, l1, l2, l3, l4, l5, l6, l7, e0, e1, e2, e3, e4, e5, e6, e7,
    ]
}

/// The head of the record of an entry with a sequence id; the entry's bytes follow it.
#[inline]
pub fn sequenced_head(
    topic: TopicId,
    at: Position,
    producer: SequenceId,
    highest: i64,
) -> [u8; SEQUENCED_HEAD] {
    let mut head = [0; SEQUENCED_HEAD];
    let fields = entry_head(topic, at.ledger, at.entry)
        .into_iter()
        .chain(producer.to_le_bytes())
        .chain(highest.to_le_bytes());
    for (byte, field) in head.iter_mut().zip(fields) {
        *byte = field;
    }
    if let Some(kind) = head.first_mut() {
        *kind = SEQUENCED;
    }
    head
}

/// Where in the body of a record the bytes of a certain entry begin, given what [`entry_head`] makes of it; `None` if the record is not that entry.
#[inline]
pub fn entry_data(body: &[u8], head: &[u8; ENTRY_HEAD]) -> Option<usize> {
    let (kind, rest) = body.split_first()?;
    let (_, wanted) = head.split_first()?;
    match *kind {
        _ if !rest.starts_with(wanted) => None,
        ENTRY => Some(ENTRY_HEAD),
        SEQUENCED if body.len() >= SEQUENCED_HEAD => Some(SEQUENCED_HEAD),
        _ => None,
    }
}

/// Whose entry a record is, read from its head without decoding the rest: `None` for every other kind.
#[inline]
pub fn entry_of(bytes: &[u8]) -> Option<(TopicId, Position)> {
    let (head, _) = bytes.split_first_chunk::<ENTRY_HEAD>()?;
    let (kind, rest) = head.split_first()?;
    if !matches!(*kind, ENTRY | SEQUENCED) {
        return None;
    }
    let (topic, rest) = rest.split_first_chunk::<4>()?;
    let (ledger, rest) = rest.split_first_chunk::<8>()?;
    let (entry, _) = rest.split_first_chunk::<8>()?;
    Some((
        u32::from_le_bytes(*topic),
        Position::new(i64::from_le_bytes(*ledger), i64::from_le_bytes(*entry)),
    ))
}

impl<'a> Record<'a> {
    /// The topic this record is about.
    pub fn topic(&self) -> TopicId {
        match *self {
            Self::TopicCreated { topic, .. }
            | Self::TopicDeleted { topic }
            | Self::LedgerOpened { topic, .. }
            | Self::Entry { topic, .. }
            | Self::Sequenced { topic, .. }
            | Self::SequenceOpened { topic, .. }
            | Self::SequenceClosed { topic, .. }
            | Self::CursorCreated { topic, .. }
            | Self::CursorDeleted { topic, .. }
            | Self::Acked { topic, .. }
            | Self::MarkDeleted { topic, .. }
            | Self::CursorReset { topic, .. }
            | Self::Trimmed { topic, .. }
            | Self::Terminated { topic, .. }
            | Self::TopicProperty { topic, .. } => topic,
        }
    }

    /// Appends everything but the payload to `head`. The record's bytes are the head and then [`Self::payload`].
    pub fn encode_head(&self, head: &mut Vec<u8>) {
        match self {
            Self::TopicCreated {
                topic,
                name,
                created_ms,
            } => {
                put_kind(head, TOPIC_CREATED, *topic);
                put_text(head, name);
                put_u64(head, *created_ms);
            }
            Self::TopicDeleted { topic } => put_kind(head, TOPIC_DELETED, *topic),
            Self::LedgerOpened {
                topic,
                ledger,
                opened_ms,
            } => {
                put_kind(head, LEDGER_OPENED, *topic);
                put_i64(head, *ledger);
                put_u64(head, *opened_ms);
            }
            Self::Entry {
                topic,
                ledger,
                entry,
                ..
            } => head.extend_from_slice(&entry_head(*topic, *ledger, *entry)),
            Self::Sequenced {
                topic,
                ledger,
                entry,
                producer,
                highest,
                ..
            } => head.extend_from_slice(&sequenced_head(
                *topic,
                Position::new(*ledger, *entry),
                *producer,
                *highest,
            )),
            Self::SequenceOpened {
                topic,
                producer,
                name,
            } => {
                put_kind(head, SEQUENCE_OPENED, *topic);
                put_u32(head, *producer);
                put_text(head, name);
            }
            Self::SequenceClosed { topic, producer } => {
                put_kind(head, SEQUENCE_CLOSED, *topic);
                put_u32(head, *producer);
            }
            Self::CursorCreated {
                topic,
                cursor,
                name,
                mark_delete,
                properties,
            } => {
                put_kind(head, CURSOR_CREATED, *topic);
                put_u32(head, *cursor);
                put_text(head, name);
                put_position(head, *mark_delete);
                put_len(head, properties.len());
                for (key, value) in properties.iter() {
                    put_text(head, key);
                    put_text(head, value);
                }
            }
            Self::CursorDeleted { topic, cursor } => {
                put_kind(head, CURSOR_DELETED, *topic);
                put_u32(head, *cursor);
            }
            Self::Acked { topic, cursor, ids } => {
                put_kind(head, ACKED, *topic);
                put_u32(head, *cursor);
                put_len(head, ids.len());
                for id in ids.iter() {
                    put_position(head, id.position);
                    put_words(head, &id.ack_set);
                    if !id.ack_set.is_empty() {
                        put_u32(head, id.batch_size.unwrap_or(0));
                    }
                }
            }
            Self::MarkDeleted {
                topic,
                cursor,
                to,
                ack_set,
            } => {
                put_kind(head, MARK_DELETED, *topic);
                put_u32(head, *cursor);
                put_position(head, *to);
                put_words(head, ack_set);
            }
            Self::CursorReset {
                topic,
                cursor,
                to,
                ack_set_of_next,
            } => {
                put_kind(head, CURSOR_RESET, *topic);
                put_u32(head, *cursor);
                put_position(head, *to);
                put_words(head, ack_set_of_next);
            }
            Self::Trimmed {
                topic,
                through_ledger,
            } => {
                put_kind(head, TRIMMED, *topic);
                put_i64(head, *through_ledger);
            }
            Self::Terminated { topic, at } => {
                put_kind(head, TERMINATED, *topic);
                put_position(head, *at);
            }
            Self::TopicProperty { topic, key, .. } => {
                put_kind(head, TOPIC_PROPERTY, *topic);
                put_text(head, key);
            }
        }
    }

    /// The bytes that follow the head: an entry's data, a property's value, otherwise nothing.
    pub fn payload(&self) -> &'a [u8] {
        match self {
            Self::Entry { data, .. } | Self::Sequenced { data, .. } => data,
            Self::TopicProperty { value, .. } => value,
            _ => &[],
        }
    }

    /// The whole record in a vector of its own. The log's own path is [`Self::encode_head`].
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode_head(&mut bytes);
        bytes.extend_from_slice(self.payload());
        bytes
    }

    /// Reads one record that fills `bytes` exactly. Never panics, and allocates no more than a small multiple of
    /// `bytes.len()`.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        if !(TOPIC_CREATED..=SEQUENCE_CLOSED).contains(&kind) {
            return Err(Malformed::UnknownKind(kind));
        }
        let topic = r.u32()?;
        let record = match kind {
            TOPIC_CREATED => Self::TopicCreated {
                topic,
                name: r.text()?,
                created_ms: r.u64()?,
            },
            TOPIC_DELETED => Self::TopicDeleted { topic },
            LEDGER_OPENED => Self::LedgerOpened {
                topic,
                ledger: r.i64()?,
                opened_ms: r.u64()?,
            },
            ENTRY => Self::Entry {
                topic,
                ledger: r.i64()?,
                entry: r.i64()?,
                data: r.rest(),
            },
            SEQUENCED => Self::Sequenced {
                topic,
                ledger: r.i64()?,
                entry: r.i64()?,
                producer: r.u32()?,
                highest: r.i64()?,
                data: r.rest(),
            },
            SEQUENCE_OPENED => Self::SequenceOpened {
                topic,
                producer: r.u32()?,
                name: r.text()?,
            },
            SEQUENCE_CLOSED => Self::SequenceClosed {
                topic,
                producer: r.u32()?,
            },
            CURSOR_CREATED => {
                let (cursor, name, mark_delete) = (r.u32()?, r.text()?, r.position()?);
                let count = r.count(8)?;
                let mut properties = Vec::with_capacity(count);
                for _ in 0..count {
                    properties.push((r.text()?, r.text()?));
                }
                Self::CursorCreated {
                    topic,
                    cursor,
                    name,
                    mark_delete,
                    properties: properties.into(),
                }
            }
            CURSOR_DELETED => Self::CursorDeleted {
                topic,
                cursor: r.u32()?,
            },
            ACKED => {
                let cursor = r.u32()?;
                let count = r.count(20)?;
                let mut ids = Vec::with_capacity(count);
                for _ in 0..count {
                    let (position, ack_set) = (r.position()?, r.words()?);
                    let batch_size = if ack_set.is_empty() { 0 } else { r.u32()? };
                    let batch_size = (batch_size != 0).then_some(batch_size);
                    ids.push(AckedId {
                        position,
                        ack_set: ack_set.into(),
                        batch_size,
                    });
                }
                Self::Acked {
                    topic,
                    cursor,
                    ids: ids.into(),
                }
            }
            MARK_DELETED => Self::MarkDeleted {
                topic,
                cursor: r.u32()?,
                to: r.position()?,
                ack_set: r.words()?.into(),
            },
            CURSOR_RESET => Self::CursorReset {
                topic,
                cursor: r.u32()?,
                to: r.position()?,
                ack_set_of_next: r.words()?.into(),
            },
            TRIMMED => Self::Trimmed {
                topic,
                through_ledger: r.i64()?,
            },
            TERMINATED => Self::Terminated {
                topic,
                at: r.position()?,
            },
            TOPIC_PROPERTY => Self::TopicProperty {
                topic,
                key: r.text()?,
                value: r.rest(),
            },
            other => return Err(Malformed::UnknownKind(other)),
        };
        r.end()?;
        Ok(record)
    }
}

fn put_kind(out: &mut Vec<u8>, kind: u8, topic: TopicId) {
    out.push(kind);
    put_u32(out, topic);
}

#[cfg(test)]
mod tests;
