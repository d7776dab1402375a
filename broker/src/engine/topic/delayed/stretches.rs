//! Stretches of the log in which entries stand that are due some time.

use std::collections::{BTreeMap, VecDeque};

use crate::store::log::Position;

/// Stretches that are kept at most. One more, and neighbours become one.
pub(super) const MAX: usize = 8192;
/// How long a stretch becomes at first, entries.
const SPAN: i64 = 1024;

/// Where a stretch ends, and how many entries of it are meant.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Stretch {
    pub(super) last: Position,
    pub(super) count: u64,
}

/// Stretches that do not overlap.
#[derive(Debug)]
pub(super) struct Stretches {
    /// By their first entries.
    by_first: BTreeMap<Position, Stretch>,
    count: u64,
    span: i64,
}

impl Default for Stretches {
    fn default() -> Self {
        Stretches {
            by_first: BTreeMap::new(),
            count: 0,
            span: SPAN,
        }
    }
}

impl Stretches {
    pub(super) fn is_empty(&self) -> bool {
        self.by_first.is_empty()
    }

    /// Stretches.
    pub(super) fn len(&self) -> usize {
        self.by_first.len()
    }

    /// Entries.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// One more entry, which was not added before.
    pub(super) fn add(&mut self, position: Position) {
        self.count += 1;
        if let Some((first, stretch)) = self.by_first.range_mut(..=position).next_back() {
            let within = position <= stretch.last;
            let near = first.ledger == position.ledger
                && position.entry.saturating_sub(first.entry) < self.span;
            if within || near {
                stretch.last = stretch.last.max(position);
                stretch.count += 1;
                return;
            }
        }
        let last = position;
        self.by_first.insert(position, Stretch { last, count: 1 });
        if self.by_first.len() > MAX {
            self.join_neighbours();
        }
    }

    /// Everything, in order; nothing is left.
    pub(super) fn take(&mut self) -> VecDeque<(Position, Stretch)> {
        std::mem::take(self).by_first.into_iter().collect()
    }

    fn join_neighbours(&mut self) {
        let mut joined: BTreeMap<Position, Stretch> = BTreeMap::new();
        let mut pair: Option<(Position, Stretch)> = None;
        for (first, stretch) in std::mem::take(&mut self.by_first) {
            match pair.take() {
                Some((start, before)) => {
                    let (last, count) = (stretch.last, before.count + stretch.count);
                    joined.insert(start, Stretch { last, count });
                }
                None => pair = Some((first, stretch)),
            }
        }
        joined.extend(pair);
        self.by_first = joined;
        self.span = self.span.saturating_mul(2);
    }
}
