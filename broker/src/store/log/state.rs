//! The state of a lane's topics, and how each record of the log changes it.
//!
//! The engine owns the [`TopicState`]s and calls their methods as it appends the matching records; recovery calls
//! [`LaneState::apply`], which calls the same methods. Calls in the order of the records give the same state.

use std::collections::BTreeMap;

use super::record::{AckedId, CursorId, List, Malformed, Record, TopicId};
use super::{AckState, Behind, Ledgers, Outcome, Position, Sequences, Trimmed};

/// A record that does not fit the state before it: the log is damaged, or was not written by one owner.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Damage {
    /// Not a record.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The topic's number was never given, or is given twice.
    #[error("topic number {topic} is out of order (the next new topic is {next})")]
    Topic {
        /// The number.
        topic: TopicId,
        /// The next one to be given.
        next: TopicId,
    },
    /// The cursor's number was never given, or is given twice.
    #[error(
        "cursor number {cursor} of topic {topic} is out of order (the next new cursor is {next})"
    )]
    Cursor {
        /// The topic.
        topic: TopicId,
        /// The number.
        cursor: CursorId,
        /// The next one to be given.
        next: CursorId,
    },
    /// The number of a producer that deduplication knows was never given, or is given twice.
    #[error(
        "producer number {sequence} of topic {topic} is out of order (the next new one is {next})"
    )]
    Sequence {
        /// The topic.
        topic: TopicId,
        /// The number.
        sequence: u32,
        /// The next one to be given.
        next: u32,
    },
    /// A ledger's id does not rise.
    #[error("ledger {ledger} is opened after ledger {last}")]
    LedgerOrder {
        /// The ledger.
        ledger: i64,
        /// The newest ledger before it.
        last: i64,
    },
    /// An entry is not the next one.
    #[error("entry {entry} is out of order (the next one is {})", Expected(*expected))]
    EntryOrder {
        /// The entry.
        entry: Position,
        /// The position the next entry must have; `None` if no ledger is open.
        expected: Option<Position>,
    },
    /// A ledger of a checkpoint whose entries and places contradict each other.
    #[error("the places of ledger {ledger} contradict its entries")]
    LedgerRuns {
        /// The ledger.
        ledger: i64,
    },
}

struct Expected(Option<Position>);

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(at) => at.fmt(f),
            None => f.write_str("none: no ledger is open"),
        }
    }
}

/// A durable subscription's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CursorState {
    /// The subscription's name.
    pub name: String,
    /// Its properties, as they were given.
    pub properties: Vec<(String, String)>,
    /// What it has acknowledged.
    pub acks: AckState,
}

/// A topic's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TopicState {
    /// Its number.
    pub id: TopicId,
    /// Its full name.
    pub name: String,
    /// Wall clock when it was created, milliseconds since 1970.
    pub created_ms: u64,
    /// Its entries.
    pub ledgers: Ledgers,
    /// Its durable cursors.
    pub cursors: BTreeMap<CursorId, CursorState>,
    /// The number the next cursor gets.
    pub next_cursor: CursorId,
    /// The last position, once the topic takes no entry any more.
    pub terminated: Option<Position>,
    /// Small named values.
    pub properties: BTreeMap<String, Vec<u8>>,
    /// What deduplication knows.
    pub sequences: Sequences,
}

impl TopicState {
    /// A new, empty topic.
    pub fn new(id: TopicId, name: &str, created_ms: u64) -> Self {
        Self {
            id,
            name: name.to_owned(),
            created_ms,
            ledgers: Ledgers::new(),
            cursors: BTreeMap::new(),
            next_cursor: 0,
            terminated: None,
            properties: BTreeMap::new(),
            sequences: Sequences::default(),
        }
    }

    /// Adds a cursor ([`Record::CursorCreated`]). Live, `cursor` is [`Self::next_cursor`]. A mark-delete position ahead of
    /// the last entry is moved back to it: entries to come are never acknowledged beforehand.
    ///
    /// # Errors
    /// [`Damage::Cursor`] if the number was given before.
    pub fn create_cursor(
        &mut self,
        cursor: CursorId,
        name: &str,
        mark_delete: Position,
        properties: &[(&str, &str)],
    ) -> Result<(), Damage> {
        let damage = Damage::Cursor {
            topic: self.id,
            cursor,
            next: self.next_cursor,
        };
        if cursor < self.next_cursor {
            return Err(damage);
        }
        self.next_cursor = cursor.checked_add(1).ok_or(damage)?;
        let properties = properties
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let state = CursorState {
            name: name.to_owned(),
            properties,
            acks: AckState::new(mark_delete.min(self.ledgers.end())),
        };
        self.cursors.insert(cursor, state);
        Ok(())
    }

    /// Removes a cursor ([`Record::CursorDeleted`]).
    pub fn delete_cursor(&mut self, cursor: CursorId) -> Option<CursorState> {
        self.cursors.remove(&cursor)
    }

    /// Acknowledges one id of [`Record::Acked`]. `None` if there is no such cursor.
    pub fn ack(&mut self, cursor: CursorId, id: &AckedId<'_>) -> Option<Outcome> {
        let acks = &mut self.cursors.get_mut(&cursor)?.acks;
        Some(if id.ack_set.is_empty() {
            acks.ack(&self.ledgers, id.position)
        } else {
            acks.ack_partial(&self.ledgers, id.position, &id.ack_set, id.batch_size)
        })
    }

    /// Acknowledges up to a position ([`Record::MarkDeleted`]). `None` if there is no such cursor.
    pub fn ack_cumulative(
        &mut self,
        cursor: CursorId,
        to: Position,
        ack_set: &[i64],
    ) -> Option<Result<Outcome, Behind>> {
        Some(
            self.cursors
                .get_mut(&cursor)?
                .acks
                .ack_cumulative(&self.ledgers, to, ack_set),
        )
    }

    /// Sets a cursor ([`Record::CursorReset`]); `ack_set_of_next` is about the first entry behind `to`. As for
    /// [`Self::create_cursor`], `to` is moved back if it is ahead. False if there is no such cursor.
    pub fn reset_cursor(
        &mut self,
        cursor: CursorId,
        to: Position,
        ack_set_of_next: &[i64],
    ) -> bool {
        let to = to.min(self.ledgers.end());
        let next = self.ledgers.next(to).map(|next| (next, ack_set_of_next));
        let Some(state) = self.cursors.get_mut(&cursor) else {
            return false;
        };
        state.acks.reset(to, next);
        true
    }

    /// Removes closed ledgers ([`Record::Trimmed`]) and tells the cursors.
    pub fn trim(&mut self, through_ledger: i64) -> Trimmed {
        let trimmed = self.ledgers.trim(through_ledger);
        if trimmed.ledgers > 0 {
            for cursor in self.cursors.values_mut() {
                cursor.acks.trimmed(&self.ledgers);
            }
        }
        trimmed
    }

    /// Sets a named value ([`Record::TopicProperty`]); an empty one removes it.
    pub fn set_property(&mut self, key: &str, value: &[u8]) {
        if value.is_empty() {
            self.properties.remove(key);
        } else if let Some(stored) = self.properties.get_mut(key) {
            stored.clear();
            stored.extend_from_slice(value);
        } else {
            self.properties.insert(key.to_owned(), value.to_owned());
        }
    }

    /// The mark-delete position of the slowest cursor, which holds ledgers back; [`Position::LATEST`] without cursors.
    pub fn slowest(&self) -> Position {
        self.cursors
            .values()
            .map(|cursor| cursor.acks.mark_delete())
            .min()
            .unwrap_or(Position::LATEST)
    }

    /// Does what a record of this topic says; `seq` and `offset` are where it stands in the log. Records about the
    /// topic's own beginning and end belong to [`LaneState::apply`] and change nothing here.
    ///
    /// # Errors
    /// [`Damage`] if the record does not fit; nothing changes then.
    pub fn apply(&mut self, record: &Record<'_>, seq: u64, offset: u32) -> Result<(), Damage> {
        match record {
            Record::TopicCreated { .. } | Record::TopicDeleted { .. } => {}
            Record::LedgerOpened {
                ledger, opened_ms, ..
            } => self.ledgers.open(*ledger, *opened_ms)?,
            Record::Entry {
                ledger,
                entry,
                data,
                ..
            } => {
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                self.ledgers
                    .push(Position::new(*ledger, *entry), len, seq, offset)?;
            }
            Record::Sequenced {
                ledger,
                entry,
                producer,
                highest,
                data,
                ..
            } => {
                self.sequences.given(self.id, *producer)?;
                let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
                self.ledgers
                    .push(Position::new(*ledger, *entry), len, seq, offset)?;
                self.sequences.store(self.id, *producer, *highest)?;
            }
            Record::SequenceOpened { producer, name, .. } => {
                self.sequences.open(self.id, *producer, name, -1)?;
            }
            Record::SequenceClosed { producer, .. } => {
                self.sequences.given(self.id, *producer)?;
                self.sequences.close(*producer);
            }
            Record::CursorCreated {
                cursor,
                name,
                mark_delete,
                properties,
                ..
            } => {
                self.create_cursor(*cursor, name, *mark_delete, properties)?;
            }
            Record::CursorDeleted { cursor, .. } => {
                self.known(*cursor)?;
                self.delete_cursor(*cursor);
            }
            Record::Acked { cursor, ids, .. } => {
                self.known(*cursor)?;
                for id in ids.iter() {
                    self.ack(*cursor, id);
                }
            }
            Record::MarkDeleted {
                cursor,
                to,
                ack_set,
                ..
            } => {
                self.known(*cursor)?;
                // One that is behind changed nothing live either.
                let _ = self.ack_cumulative(*cursor, *to, ack_set);
            }
            Record::CursorReset {
                cursor,
                to,
                ack_set_of_next,
                ..
            } => {
                self.known(*cursor)?;
                self.reset_cursor(*cursor, *to, ack_set_of_next);
            }
            Record::Trimmed { through_ledger, .. } => {
                self.trim(*through_ledger);
            }
            Record::Terminated { at, .. } => self.terminated = Some(*at),
            Record::TopicProperty { key, value, .. } => self.set_property(key, value),
        }
        Ok(())
    }

    /// A number that was given once may be gone by now; one that never was is damage.
    fn known(&self, cursor: CursorId) -> Result<(), Damage> {
        if cursor < self.next_cursor {
            return Ok(());
        }
        Err(Damage::Cursor {
            topic: self.id,
            cursor,
            next: self.next_cursor,
        })
    }
}

/// The topics of one lane.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LaneState {
    /// Those that exist.
    pub topics: BTreeMap<TopicId, TopicState>,
    /// The number the next topic gets.
    pub next_topic: TopicId,
}

impl LaneState {
    /// Does what a record says; `seq` and `offset` are where it stands in the log. A record of a topic or cursor that is
    /// gone changes nothing.
    ///
    /// # Errors
    /// [`Damage`] if the record does not fit what is there; nothing changes then.
    pub fn apply(&mut self, record: Record<'_>, seq: u64, offset: u32) -> Result<(), Damage> {
        let topic = record.topic();
        let damage = Damage::Topic {
            topic,
            next: self.next_topic,
        };
        match record {
            Record::TopicCreated {
                topic,
                name,
                created_ms,
            } => {
                if topic < self.next_topic {
                    return Err(damage);
                }
                self.next_topic = topic.checked_add(1).ok_or(damage)?;
                self.topics
                    .insert(topic, TopicState::new(topic, name, created_ms));
            }
            _ if topic >= self.next_topic => return Err(damage),
            Record::TopicDeleted { topic } => {
                self.topics.remove(&topic);
            }
            ref other => {
                if let Some(state) = self.topics.get_mut(&topic) {
                    state.apply(other, seq, offset)?;
                }
            }
        }
        Ok(())
    }
}

/// Ids of whole entries as [`Record::Acked`] takes them.
pub fn whole_ids(positions: impl IntoIterator<Item = Position>) -> List<'static, AckedId<'static>> {
    List::Owned(positions.into_iter().map(AckedId::whole).collect())
}

#[cfg(test)]
mod tests;
