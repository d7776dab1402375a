//! Which chunks the messages were made of that came in chunks.
//!
//! The broker acknowledges entries. A message of which one chunk is acknowledged alone is never whole again, and its other chunks
//! stay in the subscription for ever. So all its chunks are acknowledged together, or none.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use super::message::EntryId;

/// Most chunks whose entries are kept of messages that ended: 16 bytes each. The oldest message is forgotten first.
const MAX_ENDED_CHUNKS: usize = 65_536;

/// Most messages remembered that were acknowledged by an id whose chunks are not known. The oldest is forgotten first, and is delivered
/// if it comes.
const MAX_ENDED_UNKNOWN: usize = 1000;

#[derive(Debug)]
struct Ended {
    chunks: Vec<EntryId>,
    age: u64,
    /// Whether it was acknowledged; else the subscription was moved since.
    acknowledged: bool,
}

/// The messages of one consumer that were whole, each by its last chunk.
#[derive(Debug)]
pub(super) struct Joined {
    /// Delivered and not acknowledged.
    open: BTreeMap<EntryId, Vec<EntryId>>,
    max_open: usize,
    /// Not awaited any more. The application may hold another copy of each, and acknowledge that one too: the acknowledgement of the
    /// first may have been lost with its connection.
    ended: BTreeMap<EntryId, Ended>,
    by_age: BTreeMap<u64, EntryId>,
    next_age: u64,
    ended_chunks: usize,
    max_ended_chunks: usize,
    ended_unknown: VecDeque<EntryId>,
}

impl Joined {
    /// Keeps the chunks of `max_open` messages that were not acknowledged. Beyond, the lowest is forgotten.
    pub(super) fn new(max_open: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            max_open: max_open.max(1),
            ended: BTreeMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
            ended_chunks: 0,
            max_ended_chunks: MAX_ENDED_CHUNKS,
            ended_unknown: VecDeque::new(),
        }
    }

    /// A message is whole and will be delivered.
    pub(super) fn delivered(&mut self, last: EntryId, chunks: Vec<EntryId>) {
        self.forget_ended(last);
        self.open.insert(last, chunks);
        while self.open.len() > self.max_open {
            self.open.pop_first();
        }
    }

    /// The chunks of a message, in order.
    pub(super) fn get(&self, last: EntryId) -> Option<&[EntryId]> {
        let open = self.open.get(&last);
        let chunks = open.or_else(|| self.ended.get(&last).map(|ended| &ended.chunks));
        chunks.map(Vec::as_slice)
    }

    /// A message was acknowledged; its chunks, if they are known.
    pub(super) fn end(&mut self, last: EntryId) -> Option<Vec<EntryId>> {
        let chunks = match self.open.remove(&last) {
            Some(chunks) => chunks,
            None => self.ended.get(&last)?.chunks.clone(),
        };
        self.keep_ended(last, chunks.clone(), true);
        Some(chunks)
    }

    /// A message was acknowledged together with its chunks before it was delivered.
    pub(super) fn ended(&mut self, last: EntryId, chunks: Vec<EntryId>) {
        self.open.remove(&last);
        self.keep_ended(last, chunks, true);
    }

    /// Everything before `entry` was acknowledged; with `itself`, that too.
    pub(super) fn end_before(&mut self, entry: EntryId, itself: bool) {
        while let Some(lowest) = self.open.first_entry()
            && (*lowest.key() < entry || itself && *lowest.key() == entry)
        {
            let (last, chunks) = lowest.remove_entry();
            self.keep_ended(last, chunks, true);
        }
    }

    /// Chunks up to this entry of the messages that end behind it and were not acknowledged.
    pub(super) fn ending_behind(&self, entry: EntryId) -> BTreeSet<EntryId> {
        let behind = self.open.range((Bound::Excluded(entry), Bound::Unbounded));
        let begun =
            behind.filter(|(_, chunks)| chunks.first().is_some_and(|&first| first <= entry));
        let chunks = begun.flat_map(|(_, chunks)| chunks.iter().copied());
        chunks.filter(|&chunk| chunk <= entry).collect()
    }

    /// Whether a message that begins with these chunks is known to end up to this entry.
    pub(super) fn ends_by(&self, begin: &[EntryId], entry: EntryId) -> bool {
        let Some(&first) = begin.first().filter(|&&first| first <= entry) else {
            return false;
        };
        let open = self.open.range(first..=entry).map(|(_, chunks)| chunks);
        let ended = self.ended.range(first..=entry);
        open.chain(ended.map(|(_, ended)| &ended.chunks))
            .any(|chunks| chunks.first() == Some(&first))
    }

    /// The other chunks of an acknowledged message to which this one belongs.
    pub(super) fn ended_with(&self, chunk: EntryId) -> Option<Vec<EntryId>> {
        let mut later = self.ended.range(chunk..).map(|(_, ended)| ended);
        let found = later.find(|ended| ended.acknowledged && ended.chunks.contains(&chunk));
        found.map(|ended| ended.chunks.clone())
    }

    /// A message was acknowledged whose chunks are not known: all will be when it is whole.
    pub(super) fn end_unknown(&mut self, last: EntryId) {
        if self.ended_unknown.contains(&last) {
            return;
        }
        if self.ended_unknown.len() >= MAX_ENDED_UNKNOWN {
            self.ended_unknown.pop_front();
        }
        self.ended_unknown.push_back(last);
    }

    /// Forgets that a message was acknowledged whose chunks are not known; whether it was.
    pub(super) fn take_unknown(&mut self, last: EntryId) -> bool {
        let at = self.ended_unknown.iter().position(|&ended| ended == last);
        at.is_some_and(|at| self.ended_unknown.remove(at).is_some())
    }

    /// The subscription was moved: what was acknowledged is not any more. Which chunks make a message stays true, and copies that the
    /// application holds may still be acknowledged.
    pub(super) fn moved(&mut self) {
        for (last, chunks) in std::mem::take(&mut self.open) {
            self.keep_ended(last, chunks, false);
        }
        for ended in self.ended.values_mut() {
            ended.acknowledged = false;
        }
        self.ended_unknown.clear();
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.ended.clear();
        self.by_age.clear();
        self.ended_chunks = 0;
        self.ended_unknown.clear();
    }

    fn keep_ended(&mut self, last: EntryId, chunks: Vec<EntryId>, acknowledged: bool) {
        self.forget_ended(last);
        let age = self.next_age;
        self.next_age += 1;
        self.ended_chunks += chunks.len();
        self.by_age.insert(age, last);
        let ended = Ended {
            chunks,
            age,
            acknowledged,
        };
        self.ended.insert(last, ended);
        while self.ended_chunks > self.max_ended_chunks
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.forget_ended(oldest);
        }
    }

    fn forget_ended(&mut self, last: EntryId) {
        if let Some(ended) = self.ended.remove(&last) {
            self.by_age.remove(&ended.age);
            self.ended_chunks -= ended.chunks.len();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn at(entry: u64) -> EntryId {
        EntryId { ledger: 1, entry }
    }

    fn pair(joined: &mut Joined, last: u64) {
        joined.delivered(at(last), vec![at(last - 1), at(last)]);
    }

    #[test]
    fn the_oldest_that_ended_are_forgotten_and_none_that_did_not() {
        let mut joined = Joined::new(100);
        joined.max_ended_chunks = 6;
        for last in [11, 9, 7, 5, 3] {
            pair(&mut joined, last);
        }
        for last in [9, 3, 11, 5] {
            assert_eq!(joined.end(at(last)).unwrap().len(), 2);
        }
        assert_eq!(joined.get(at(9)), None);
        for last in [3, 5, 7, 11] {
            assert_eq!(joined.get(at(last)), Some(&[at(last - 1), at(last)][..]));
        }
        assert_eq!((joined.ended_chunks, joined.by_age.len()), (6, 3));
        // To end again is to be young again.
        joined.end(at(3));
        joined.end(at(7));
        assert_eq!(
            (joined.get(at(11)), joined.get(at(5)).is_some()),
            (None, true)
        );
        // One larger than all there is room for is not kept at all.
        joined.ended(at(50), (40..=50).map(at).collect());
        assert_eq!((joined.ended_chunks, joined.ended.len()), (0, 0));
        assert!(joined.by_age.is_empty());
    }

    #[test]
    fn those_that_did_not_end_are_bounded_too() {
        let mut joined = Joined::new(2);
        for last in [1, 5, 3] {
            pair(&mut joined, last);
        }
        assert_eq!((joined.get(at(1)), joined.open.len()), (None, 2));
    }

    #[test]
    fn a_moved_subscription_keeps_the_chunks_but_not_that_they_ended() {
        let mut joined = Joined::new(100);
        pair(&mut joined, 1);
        pair(&mut joined, 3);
        joined.end_before(at(1), false);
        assert_eq!(joined.ended_with(at(0)), None);
        joined.end_before(at(1), true);
        assert_eq!(joined.ended_with(at(0)), Some(vec![at(0), at(1)]));
        assert_eq!(joined.ended_with(at(2)), None);
        joined.end_unknown(at(9));
        joined.moved();
        assert!(joined.get(at(1)).is_some() && joined.get(at(3)).is_some());
        assert_eq!(joined.ended_with(at(0)), None);
        assert!(!joined.take_unknown(at(9)));
    }

    #[test]
    fn ids_of_unknown_chunks_are_bounded() {
        let mut joined = Joined::new(100);
        for entry in 0..=MAX_ENDED_UNKNOWN as u64 {
            joined.end_unknown(at(entry));
            joined.end_unknown(at(entry));
        }
        assert_eq!(joined.ended_unknown.len(), MAX_ENDED_UNKNOWN);
        assert!(!joined.take_unknown(at(0)));
        assert!(joined.take_unknown(at(1)) && !joined.take_unknown(at(1)));
    }
}
