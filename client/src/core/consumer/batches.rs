//! What this client acknowledged of each batch.
//!
//! A batch is one entry to the broker. Without batch-index acknowledgement it is acknowledged when all its messages are; in any
//! case the messages acknowledged here are not delivered again when the rest of the batch comes back.

use std::collections::BTreeMap;

use super::ackset::AckSet;
use super::message::EntryId;

/// Bounded: beyond `max` the lowest batch is forgotten, whose acknowledged messages may then come again.
#[derive(Debug)]
pub(super) struct Batches {
    remaining: BTreeMap<EntryId, AckSet>,
    max: usize,
}

/// What an acknowledgement of one message leaves of its batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing: the entry as a whole is acknowledged.
    Nothing,
    /// These.
    Some(AckSet),
}

impl Batches {
    pub(super) fn new(max: usize) -> Self {
        Self {
            remaining: BTreeMap::new(),
            max: max.max(1),
        }
    }

    /// A batch was delivered; of its messages the broker holds `from_broker` (all if `None`) for not acknowledged.
    pub(super) fn delivered(&mut self, entry: EntryId, size: u32, from_broker: Option<&AckSet>) {
        let set = self
            .remaining
            .entry(entry)
            .or_insert_with(|| AckSet::full(size));
        if let Some(from_broker) = from_broker {
            set.intersect(from_broker);
        }
        while self.remaining.len() > self.max {
            // Never the one just delivered.
            let lowest = self.remaining.keys().find(|&&other| other != entry);
            let Some(&lowest) = lowest else { break };
            self.remaining.remove(&lowest);
        }
    }

    /// Whether that message is still to be delivered; of an unknown batch, all are.
    pub(super) fn contains(&self, entry: EntryId, index: u32) -> bool {
        self.remaining
            .get(&entry)
            .is_none_or(|set| set.contains(index))
    }

    /// A message ended. A finished batch is forgotten.
    pub(super) fn done(&mut self, entry: EntryId, index: u32, size: u32) -> Left {
        let set = self
            .remaining
            .entry(entry)
            .or_insert_with(|| AckSet::full(size));
        set.clear(index);
        self.left(entry)
    }

    /// A message of a batch that is being delivered will not be: nothing is forgotten yet.
    pub(super) fn skip(&mut self, entry: EntryId, index: u32) {
        if let Some(set) = self.remaining.get_mut(&entry) {
            set.clear(index);
        }
    }

    /// All up to `index` ended.
    pub(super) fn done_through(&mut self, entry: EntryId, index: u32, size: u32) -> Left {
        let set = self
            .remaining
            .entry(entry)
            .or_insert_with(|| AckSet::full(size));
        set.clear_through(index);
        self.left(entry)
    }

    /// What is left of a batch that was delivered.
    pub(super) fn left(&mut self, entry: EntryId) -> Left {
        match self.remaining.get(&entry) {
            Some(set) if !set.is_empty() => Left::Some(set.clone()),
            _ => {
                self.remaining.remove(&entry);
                Left::Nothing
            }
        }
    }

    /// Everything before `entry` ended; with `itself`, that too.
    pub(super) fn forget_before(&mut self, entry: EntryId, itself: bool) {
        let mut kept = self.remaining.split_off(&entry);
        if itself {
            kept.remove(&entry);
        }
        self.remaining = kept;
    }

    /// Keeps only what `kept` says.
    pub(super) fn retain(&mut self, kept: impl Fn(EntryId) -> bool) {
        self.remaining.retain(|&entry, _| kept(entry));
    }

    pub(super) fn forget(&mut self, entry: EntryId) {
        self.remaining.remove(&entry);
    }

    pub(super) fn clear(&mut self) {
        self.remaining.clear();
    }
}
