//! Pending acks: who holds which entry, and how many of its messages are open.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::permits::Permits;
use super::sticky::Slot;
use crate::store::log::Position;

/// An entry that a consumer holds.
#[derive(Copy, Clone, Debug)]
pub(super) struct Held {
    /// The consumer.
    pub(super) owner: u32,
    /// Messages of it that are not acknowledged.
    pub(super) open: u32,
    /// Messages in it.
    pub(super) batch: u32,
    /// Key_Shared: the slot of its key, else 0.
    pub(super) slot: Slot,
}

#[derive(Default, Debug)]
struct Share {
    entries: BTreeSet<Position>,
    /// An entry alone may claim `i32::MAX` messages, so they do not fit in 32 bits.
    unacked: u64,
}

/// The entries of a subscription that consumers hold. An entry has one holder at most.
///
/// Bounded by the unacknowledged messages that a subscription and a consumer may have.
#[derive(Default, Debug)]
pub(super) struct Pending {
    entries: BTreeMap<Position, Held>,
    shares: FxHashMap<u32, Share>,
    unacked: u64,
}

impl Pending {
    /// Gives an entry to a consumer. False, and nothing changes, if somebody holds it already.
    pub(super) fn admit(
        &mut self,
        position: Position,
        owner: u32,
        permits: Permits,
        batch: u32,
        slot: Slot,
    ) -> bool {
        let std::collections::btree_map::Entry::Vacant(entry) = self.entries.entry(position) else {
            return false;
        };
        let open = permits.get();
        entry.insert(Held {
            owner,
            open,
            batch,
            slot,
        });
        let share = self.shares.entry(owner).or_default();
        share.entries.insert(position);
        share.unacked += u64::from(open);
        self.unacked += u64::from(open);
        true
    }

    /// Who holds an entry.
    pub(super) fn get(&self, position: Position) -> Option<&Held> {
        self.entries.get(&position)
    }

    /// Everything that is held.
    pub(super) fn held(&self) -> impl Iterator<Item = &Held> {
        self.entries.values()
    }

    /// Leaves at most `open` messages of an entry open; none = nobody holds it any more. Answers the holder and how many messages that freed.
    pub(super) fn shrink(&mut self, position: Position, open: u32) -> Option<(Held, u32)> {
        let held = self.entries.get_mut(&position)?;
        let freed = held.open.saturating_sub(open);
        held.open -= freed;
        let held = *held;
        let share = self.shares.entry(held.owner).or_default();
        share.unacked -= u64::from(freed);
        self.unacked -= u64::from(freed);
        if held.open == 0 {
            share.entries.remove(&position);
            if share.entries.is_empty() {
                self.shares.remove(&held.owner);
            }
            self.entries.remove(&position);
        }
        Some((held, freed))
    }

    /// Takes an entry off a consumer, if that one holds it.
    pub(super) fn take(&mut self, position: Position, owner: u32) -> Option<Held> {
        let held = *self
            .entries
            .get(&position)
            .filter(|held| held.owner == owner)?;
        self.shrink(position, 0);
        Some(held)
    }

    /// Takes everything off a consumer, in order.
    pub(super) fn take_all(&mut self, owner: u32) -> Vec<(Position, Held)> {
        let Some(share) = self.shares.remove(&owner) else {
            return Vec::new();
        };
        self.unacked -= share.unacked;
        let entries = share.entries.into_iter();
        entries
            .filter_map(|position| self.entries.remove(&position).map(|held| (position, held)))
            .collect()
    }

    /// Unacknowledged messages of a consumer.
    pub(super) fn unacked_of(&self, owner: u32) -> u64 {
        self.shares.get(&owner).map_or(0, |share| share.unacked)
    }

    /// Unacknowledged messages of all.
    pub(super) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Pending::default();
    }

    /// What does not add up, if anything.
    pub(super) fn audit(&self) -> Result<(), String> {
        let mut sums: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
        for held in self.entries.values() {
            if held.open == 0 || held.open > held.batch {
                return Err(format!("{held:?} is held"));
            }
            let sum = sums.entry(held.owner).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(held.open));
        }
        let shares: BTreeMap<u32, (usize, u64)> = self
            .shares
            .iter()
            .map(|(owner, share)| (*owner, (share.entries.len(), share.unacked)))
            .collect();
        let total: u64 = sums.values().map(|(_, unacked)| unacked).sum();
        if sums != shares || total != self.unacked {
            return Err(format!(
                "pending acks by entry are {sums:?}, by consumer {shares:?}, together {}",
                self.unacked
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn permits(count: u32) -> Permits {
        Permits::finalize(count, &[]).unwrap()
    }

    #[test]
    fn one_holder_each_and_sums_that_agree() {
        let mut pending = Pending::default();
        let at = |entry| Position::new(1, entry);
        assert!(pending.admit(at(0), 1, permits(10), 10, 0));
        assert!(!pending.admit(at(0), 2, permits(10), 10, 0));
        assert!(pending.admit(at(1), 2, permits(3), 5, 0));
        assert_eq!(pending.unacked(), 13);
        assert_eq!(pending.shrink(at(0), 4).unwrap().1, 6);
        // An older set that leaves more open changes nothing.
        assert_eq!(pending.shrink(at(0), 8).unwrap().1, 0);
        assert_eq!((pending.unacked_of(1), pending.unacked_of(2)), (4, 3));
        pending.audit().unwrap();
        assert!(pending.take(at(1), 1).is_none());
        assert!(pending.take(at(1), 2).is_some());
        assert_eq!(pending.take_all(1).len(), 1);
        assert_eq!(pending.unacked(), 0);
        pending.audit().unwrap();
    }
}
