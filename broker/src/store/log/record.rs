//! Every record kind of the log, in one binary format.
//!
//! A record is a kind byte and fixed little-endian fields; text and lists carry a 32-bit length. A kind this version does
//! not know is [`Malformed`], so an older broker refuses a newer log instead of misreading it. The payload of an entry
//! (or the value of a property) stands last, without a length: the frame around a record knows where it ends. So a
//! record is written as a small head, and a payload that is copied once.

use std::ops::Deref;

use super::Position;
use super::sequences::SequenceId;

mod encoding;
mod entry;
#[cfg(test)]
mod tests;

pub use entry::{ENTRY_HEAD, SEQUENCED_HEAD, entry_data, entry_head, entry_of, sequenced_head};

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
}
