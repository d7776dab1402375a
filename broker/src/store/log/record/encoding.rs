//! Records as bytes.

use super::super::Position;
use super::super::fields::{
    Reader, put_i64, put_len, put_position, put_text, put_u32, put_u64, put_words,
};
use super::{AckedId, Malformed, Record, TopicId, entry_head, sequenced_head};

const TOPIC_CREATED: u8 = 1;
const TOPIC_DELETED: u8 = 2;
const LEDGER_OPENED: u8 = 3;
pub(super) const ENTRY: u8 = 4;
const CURSOR_CREATED: u8 = 5;
const CURSOR_DELETED: u8 = 6;
const ACKED: u8 = 7;
const MARK_DELETED: u8 = 8;
const CURSOR_RESET: u8 = 9;
const TRIMMED: u8 = 10;
const TERMINATED: u8 = 11;
const TOPIC_PROPERTY: u8 = 12;
pub(super) const SEQUENCED: u8 = 13;
const SEQUENCE_OPENED: u8 = 14;
const SEQUENCE_CLOSED: u8 = 15;

impl<'a> Record<'a> {
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
