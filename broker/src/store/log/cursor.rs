//! The cursor algebra: what of a topic one subscription has acknowledged.
//!
//! A cursor is a mark-delete position (everything up to it is acknowledged), the acknowledged entries beyond it as
//! ranges, and for entries that are acknowledged in part the set of batch indexes still open. All methods take the
//! topic's [`Ledgers`], because only they know which entry follows which. Calls must come in the order of the log's
//! records; then replaying the records gives the same state.

use std::collections::BTreeMap;

use super::{Ledgers, Position};

/// Batch indexes of an entry: bit 1 is still unacknowledged, as `CommandAck.message_id.ack_set` counts them. Zero words
/// at the end are left out.
pub type AckSet = Box<[i64]>;

/// What an acknowledgment changed.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// Something became acknowledged for good: the entry, or for a cumulative acknowledgment at least one position.
    pub newly_acked: bool,
    /// Batch indexes that this call cleared in an entry acknowledged in part; the rest of the batch when it became
    /// whole by [`AckState::ack_partial`].
    pub cleared: u32,
}

/// A cumulative acknowledgment behind the mark-delete position.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "Mark deleting an already mark-deleted position. Current mark-delete: {mark_delete} -- attempted mark delete: {to}"
)]
pub struct Behind {
    /// Where the cursor stands.
    pub mark_delete: Position,
    /// What was asked for.
    pub to: Position,
}

/// What one cursor has acknowledged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AckState {
    mark_delete: Position,
    /// First entry of a range beyond the mark-delete position -> the last entry, in the same ledger. Ranges neither
    /// overlap nor touch within a ledger, and every entry in them exists.
    acked: BTreeMap<Position, i64>,
    /// Entries in `acked`.
    acked_entries: u64,
    /// Open batch indexes of entries beyond the mark-delete position that are in no range.
    partial: BTreeMap<Position, AckSet>,
}

impl AckState {
    /// A cursor that has acknowledged everything up to `mark_delete` and nothing else.
    pub const fn new(mark_delete: Position) -> Self {
        Self {
            mark_delete,
            acked: BTreeMap::new(),
            acked_entries: 0,
            partial: BTreeMap::new(),
        }
    }

    /// Everything up to here is acknowledged.
    pub const fn mark_delete(&self) -> Position {
        self.mark_delete
    }

    /// Acknowledges one entry. The mark-delete position moves over everything that touches it, over ledger ends and
    /// trimmed gaps. A position that is no entry changes nothing.
    pub fn ack(&mut self, ledgers: &Ledgers, at: Position) -> Outcome {
        if at <= self.mark_delete || !ledgers.contains(at) {
            return Outcome::default();
        }
        // In order, nothing beyond: the common case touches no map.
        let newly_acked = if ledgers.next(self.mark_delete) == Some(at) {
            self.mark_delete = at;
            self.settle(ledgers);
            true
        } else {
            self.insert(at)
        };
        Outcome {
            newly_acked,
            cleared: 0,
        }
    }

    /// Acknowledges batch indexes of one entry: what is open afterwards is what was open *and* is set in `ack_set`, whose
    /// missing words count as zero. With nothing left open the entry is acknowledged.
    ///
    /// `batch_size` is the number of messages in the entry; bits beyond it are ignored. Give it for
    /// whatever a client sent: it also bounds the memory the set takes. Without it a first set counts as
    /// cleared only what lies below its highest open bit.
    pub fn ack_partial(
        &mut self,
        ledgers: &Ledgers,
        at: Position,
        ack_set: &[i64],
        batch_size: Option<u32>,
    ) -> Outcome {
        if at <= self.mark_delete || !ledgers.contains(at) || self.in_range(at).is_some() {
            return Outcome::default();
        }
        let (open, cleared) = match self.partial.get(&at) {
            Some(stored) => {
                let open = clip(stored.iter().zip(ack_set).map(|(a, b)| a & b), batch_size);
                let cleared = count(stored).saturating_sub(count(&open));
                (open, cleared)
            }
            None => {
                let open = clip(ack_set.iter().copied(), batch_size);
                let all = batch_size.map_or_else(|| bit_len(&open), u64::from);
                let cleared = all.saturating_sub(count(&open));
                (open, cleared)
            }
        };
        let newly_acked = if open.is_empty() {
            self.ack(ledgers, at).newly_acked
        } else {
            // A set that clears nothing is not worth keeping.
            if cleared > 0 || batch_size.is_none() {
                self.partial.insert(at, open.into());
            }
            false
        };
        Outcome {
            newly_acked,
            cleared: u32::try_from(cleared).unwrap_or(u32::MAX),
        }
    }

    /// Acknowledges everything up to `to`; of entry `to` itself only what `ack_set` leaves out, if it is not empty.
    ///
    /// The mark-delete position never moves past the last entry there is: entries to come are not acknowledged by a
    /// position that is ahead of them.
    ///
    /// # Errors
    /// [`Behind`] if `to` is behind the mark-delete position. The mark-delete position again is no error, no change.
    pub fn ack_cumulative(
        &mut self,
        ledgers: &Ledgers,
        to: Position,
        ack_set: &[i64],
    ) -> Result<Outcome, Behind> {
        if to < self.mark_delete {
            return Err(Behind {
                mark_delete: self.mark_delete,
                to,
            });
        }
        if to == self.mark_delete {
            return Ok(Outcome::default());
        }
        let mut outcome = Outcome::default();
        let whole = ack_set.iter().all(|word| *word == 0);
        let mark = if whole { to } else { to.before() };
        let mark = mark.min(ledgers.end());
        if mark > self.mark_delete {
            self.mark_delete = mark;
            self.settle(ledgers);
            outcome.newly_acked = true;
        }
        if !whole {
            let partial = self.ack_partial(ledgers, to, ack_set, None);
            outcome.newly_acked |= partial.newly_acked;
            outcome.cleared = partial.cleared;
        }
        Ok(outcome)
    }

    /// Sets the cursor: everything up to `mark_delete` is acknowledged, nothing else is, and of `next_entry` only the
    /// set bits are open. A set without open bits counts as none.
    pub fn reset(&mut self, mark_delete: Position, next_entry: Option<(Position, &[i64])>) {
        *self = Self::new(mark_delete);
        if let Some((at, ack_set)) = next_entry
            && at > mark_delete
        {
            let open = clip(ack_set.iter().copied(), None);
            if !open.is_empty() {
                self.partial.insert(at, open.into());
            }
        }
    }

    /// To be called after ledgers were trimmed: drops what was known of entries that are gone.
    pub fn trimmed(&mut self, ledgers: &Ledgers) {
        self.settle(ledgers);
    }

    /// Whether the whole entry is acknowledged.
    pub fn is_acked(&self, at: Position) -> bool {
        at <= self.mark_delete || self.in_range(at).is_some()
    }

    /// The open batch indexes of an entry acknowledged in part.
    pub fn ack_set(&self, at: Position) -> Option<&[i64]> {
        if self.partial.is_empty() {
            return None;
        }
        self.partial.get(&at).map(AsRef::as_ref)
    }

    /// The first entry behind `after` that is not acknowledged as a whole.
    pub fn next_unacked(&self, ledgers: &Ledgers, after: Position) -> Option<Position> {
        let mut at = ledgers.next(after.max(self.mark_delete))?;
        while let Some(last) = self.in_range(at) {
            at = ledgers.next(Position::new(at.ledger, last))?;
        }
        Some(at)
    }

    /// Entries up to and with `last_confirmed` that are not acknowledged as a whole.
    pub fn backlog(&self, ledgers: &Ledgers, last_confirmed: Position) -> u64 {
        let beyond: u64 = self
            .acked
            .iter()
            .rev()
            .map_while(|(first, last)| {
                let last = Position::new(first.ledger, *last);
                (last > last_confirmed).then(|| {
                    last.entry
                        .abs_diff(last_confirmed.max(first.before()).entry)
                })
            })
            .sum();
        ledgers
            .entries_between(self.mark_delete, last_confirmed)
            .saturating_sub(self.acked_entries.saturating_sub(beyond))
    }

    /// The acknowledged ranges beyond the mark-delete position, in order: first and last entry of each, in one ledger.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (Position, Position)> {
        self.acked
            .iter()
            .map(|(first, last)| (*first, Position::new(first.ledger, *last)))
    }

    /// The entries acknowledged in part, in order, with their open batch indexes.
    pub fn partials(&self) -> impl ExactSizeIterator<Item = (Position, &[i64])> {
        self.partial.iter().map(|(at, open)| (*at, open.as_ref()))
    }

    /// Rebuilds a state read from a checkpoint; `None` if its parts contradict each other or the ledgers.
    pub(super) fn restore(
        ledgers: &Ledgers,
        mark_delete: Position,
        ranges: impl Iterator<Item = (Position, i64)>,
        partials: impl Iterator<Item = (Position, Vec<i64>)>,
    ) -> Option<Self> {
        let mut state = Self::new(mark_delete);
        let mut before: Option<Position> = None;
        for (first, last) in ranges {
            let end = Position::new(first.ledger, last);
            let apart = before.is_none_or(|before| {
                before < first
                    && (before.ledger != first.ledger
                        || before.entry.saturating_add(1) < first.entry)
            });
            if !apart
                || first <= mark_delete
                || end < first
                || !ledgers.contains(first)
                || !ledgers.contains(end)
            {
                return None;
            }
            state.acked.insert(first, last);
            state.acked_entries += last.abs_diff(first.entry) + 1;
            before = Some(end);
        }
        for (at, open) in partials {
            if state.is_acked(at)
                || open.last().is_none_or(|word| *word == 0)
                || !ledgers.contains(at)
            {
                return None;
            }
            state.partial.insert(at, open.into());
        }
        state.settle(ledgers);
        Some(state)
    }

    /// The last entry of the range that `at` is in.
    fn in_range(&self, at: Position) -> Option<i64> {
        if self.acked.is_empty() {
            return None;
        }
        let (first, last) = self.acked.range(..=at).next_back()?;
        (first.ledger == at.ledger && at.entry <= *last).then_some(*last)
    }

    /// Adds an existing entry beyond the mark-delete position to the ranges. False if it was in one.
    fn insert(&mut self, at: Position) -> bool {
        let follows = self
            .acked
            .range(Position::new(at.ledger, at.entry + 1)..)
            .next();
        let joins = follows.filter(|(first, _)| **first == Position::new(at.ledger, at.entry + 1));
        let joined = joins.map(|(first, last)| (*first, *last));
        if let Some((first, last)) = self.acked.range_mut(..=at).next_back()
            && first.ledger == at.ledger
            && *last >= at.entry - 1
        {
            if *last >= at.entry {
                return false;
            }
            *last = joined.map_or(at.entry, |(_, last)| last);
        } else {
            self.acked
                .insert(at, joined.map_or(at.entry, |(_, last)| last));
        }
        if let Some((first, _)) = joined {
            self.acked.remove(&first);
        }
        self.acked_entries += 1;
        if !self.partial.is_empty() {
            self.partial.remove(&at);
        }
        true
    }

    /// Moves the mark-delete position over the ranges that touch it and drops whatever it has passed or is gone.
    fn settle(&mut self, ledgers: &Ledgers) {
        while let Some((&first, &last)) = self.acked.first_key_value() {
            // The first entry that is not known to be acknowledged.
            let Some(next) = ledgers.next(self.mark_delete) else {
                self.acked.clear();
                self.acked_entries = 0;
                break;
            };
            if next < first {
                break;
            }
            let end = Position::new(first.ledger, last);
            if end >= next {
                self.mark_delete = end;
            }
            self.acked.pop_first();
            self.acked_entries -= last.abs_diff(first.entry) + 1;
        }
        if self.partial.is_empty() {
            return;
        }
        let next = ledgers.next(self.mark_delete);
        while let Some(entry) = self.partial.first_entry() {
            if next.is_some_and(|next| *entry.key() >= next) {
                break;
            }
            entry.remove();
        }
    }
}

/// Drops the bits from `batch_size` on, and zero words at the end.
fn clip(words: impl Iterator<Item = i64>, batch_size: Option<u32>) -> Vec<i64> {
    let mut left = batch_size.map_or(u64::MAX, u64::from);
    let mut open = Vec::new();
    for word in words {
        if left == 0 {
            break;
        }
        let mask = if left >= 64 { -1 } else { !(-1_i64 << left) };
        open.push(word & mask);
        left = left.saturating_sub(64);
    }
    while open.last() == Some(&0) {
        open.pop();
    }
    open
}

/// Open bits.
fn count(words: &[i64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Bits up to and with the highest open one.
fn bit_len(words: &[i64]) -> u64 {
    words.last().map_or(0, |word| {
        words.len() as u64 * 64 - u64::from(word.leading_zeros())
    })
}

#[cfg(test)]
mod tests;
