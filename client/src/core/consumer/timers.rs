//! Entries that are to be asked for again at some time: negatively acknowledged ones, and those not acknowledged in time.

use std::collections::{BTreeSet, HashMap};

use super::Nanos;
use super::message::EntryId;

/// Entries by the time they are due. Each entry has one time.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(Nanos, EntryId)>,
    due: HashMap<EntryId, Nanos>,
}

impl Timers {
    /// Sets the time of an entry, instead of any before.
    pub(super) fn set(&mut self, entry: EntryId, due: Nanos) {
        if let Some(old) = self.due.insert(entry, due) {
            self.by_time.remove(&(old, entry));
        }
        self.by_time.insert((due, entry));
    }

    /// Sets the time of an entry unless it has one that is earlier.
    pub(super) fn set_earlier(&mut self, entry: EntryId, due: Nanos) {
        if self.due.get(&entry).is_none_or(|&old| due < old) {
            self.set(entry, due);
        }
    }

    pub(super) fn remove(&mut self, entry: EntryId) {
        if let Some(old) = self.due.remove(&entry) {
            self.by_time.remove(&(old, entry));
        }
    }

    /// Forgets all entries up to this one.
    pub(super) fn remove_through(&mut self, last: EntryId) {
        let ended: Vec<_> = self.due.keys().copied().filter(|&e| e <= last).collect();
        for entry in ended {
            self.remove(entry);
        }
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Takes out what is due.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<EntryId> {
        let mut expired = Vec::new();
        while let Some(&(due, entry)) = self.by_time.first()
            && due <= now
        {
            self.remove(entry);
            expired.push(entry);
        }
        expired
    }

    pub(super) fn clear(&mut self) {
        self.by_time.clear();
        self.due.clear();
    }
}
