//! Ranges that are halved: a newcomer gets one half of the largest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{LAST_SLOT, Member, Refused, Slot, Slots};

/// The end of the last range: one more than the largest slot, so that halves come out even.
const END: u32 = LAST_SLOT as u32 + 1;

/// Ranges by halving. Joining and leaving are logarithmic.
#[derive(Default, Debug)]
pub(in super::super) struct Halves {
    /// Ranges by their ends; each begins behind the one before.
    ends: BTreeMap<u32, Member>,
    of: BTreeMap<Member, u32>,
    /// Largest first, then the lowest.
    sizes: BTreeSet<(Reverse<u32>, u32)>,
}

impl Halves {
    /// Who a slot belongs to.
    pub(super) fn owner(&self, slot: Slot) -> Option<Member> {
        self.ends
            .range(u32::from(slot)..)
            .next()
            .map(|(_, member)| *member)
    }

    /// The end of the range before the one that ends here.
    fn start(&self, end: u32) -> u32 {
        self.ends
            .range(..end)
            .next_back()
            .map_or(0, |(before, _)| *before)
    }

    /// Is there anything left to halve?
    ///
    /// # Errors
    /// There is not.
    pub(super) fn check(&self) -> Result<(), Refused> {
        match self.sizes.first() {
            Some((Reverse(0..=1), _)) => Err(Refused::Full {
                consumers: self.of.len(),
            }),
            _ => Ok(()),
        }
    }

    /// Adds a consumer. Returns the slots that are its now: none if there is nothing left to halve.
    pub(super) fn join(&mut self, member: Member) -> Vec<Slots> {
        self.leave(member);
        let Some((Reverse(size), end)) = self.sizes.first().copied() else {
            self.insert(0, END, member);
            return vec![Slots::ALL];
        };
        if size <= 1 {
            return Vec::new();
        }
        let start = end - size;
        let middle = end - size / 2;
        self.sizes.remove(&(Reverse(size), end));
        self.sizes.insert((Reverse(end - middle), end));
        self.insert(start, middle, member);
        between(start, middle)
    }

    /// Takes a consumer out. Returns the slots that were its.
    pub(super) fn leave(&mut self, member: Member) -> Vec<Slots> {
        let Some(end) = self.of.remove(&member) else {
            return Vec::new();
        };
        let start = self.start(end);
        self.ends.remove(&end);
        self.sizes.remove(&(Reverse(end - start), end));
        if let Some(heir_end) = self.ends.range(end..).next().map(|(end, _)| *end) {
            // The range behind begins earlier now.
            self.sizes.remove(&(Reverse(heir_end - end), heir_end));
            self.sizes.insert((Reverse(heir_end - start), heir_end));
        } else if let Some((before, heir)) = self.ends.pop_last() {
            // It was the last one: the range before it goes on to the end.
            let first = self.start(before);
            self.sizes.remove(&(Reverse(before - first), before));
            self.insert(first, end, heir);
        }
        between(start, end)
    }

    fn insert(&mut self, start: u32, end: u32, member: Member) {
        self.ends.insert(end, member);
        self.of.insert(member, end);
        self.sizes.insert((Reverse(end - start), end));
    }

    /// Every slot with its owner, in order.
    pub(super) fn shares(&self) -> Vec<(Slots, Member)> {
        let mut start = 0;
        let mut shares = Vec::new();
        for (end, member) in &self.ends {
            shares.extend(
                between(start, *end)
                    .into_iter()
                    .map(|slots| (slots, *member)),
            );
            start = *end;
        }
        shares
    }
}

/// The slots behind `start` up to `end`.
fn between(start: u32, end: u32) -> Vec<Slots> {
    let slot = |at: u32| Slot::try_from(at).unwrap_or(LAST_SLOT);
    if start >= u32::from(LAST_SLOT) {
        return Vec::new();
    }
    Slots::new(slot(start + 1), slot(end)).into_iter().collect()
}
