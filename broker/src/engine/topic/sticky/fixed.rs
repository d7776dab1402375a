//! Ranges that consumers ask for (STICKY).

use std::collections::BTreeMap;

use super::{LAST_SLOT, Member, Refused, Slot, Slots};

/// Ranges of one consumer. Far more than a person writes, and few enough to keep.
pub(super) const MAX_RANGES: usize = 4096;

/// Ranges that do not overlap. Work per join or leave: one step per range, each logarithmic in the ranges there are.
#[derive(Default, Debug)]
pub(in super::super) struct Fixed {
    /// By their first hash.
    ranges: BTreeMap<i32, (i32, Member)>,
    of: BTreeMap<Member, Vec<i32>>,
}

impl Fixed {
    /// Who a slot belongs to; `None` = nobody asked for it.
    pub(in super::super) fn owner(&self, slot: Slot) -> Option<Member> {
        let slot = i32::from(slot);
        let (_, (last, member)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then_some(*member)
    }

    /// Would a consumer with these ranges get them?
    ///
    /// # Errors
    /// No ranges, too many, one that is backwards, or one that overlaps another.
    pub(in super::super) fn check(&self, ranges: &[(i32, i32)]) -> Result<(), Refused> {
        if ranges.is_empty() {
            return Err(Refused::NoRanges);
        }
        if ranges.len() > MAX_RANGES {
            return Err(Refused::TooMany {
                ranges: ranges.len(),
            });
        }
        let mut own: Vec<(i32, i32)> = ranges.to_vec();
        own.sort_unstable();
        for (first, last) in &own {
            if first > last {
                return Err(Refused::Backwards {
                    first: *first,
                    last: *last,
                });
            }
        }
        for (left, right) in own.iter().zip(own.iter().skip(1)) {
            if right.0 <= left.1 {
                return Err(Refused::Overlapping {
                    left: *left,
                    right: *right,
                });
            }
        }
        for (first, last) in own {
            // The last range that begins before this one ends is the only one that can reach into it, and not be all within.
            if let Some((start, (end, holder))) = self.ranges.range(..=last).next_back()
                && *end >= first
            {
                return Err(Refused::Taken {
                    asked: (first, last),
                    held: (*start, *end),
                    holder: *holder,
                });
            }
        }
        Ok(())
    }

    /// Adds a consumer whose ranges were [checked](Fixed::check). Returns the slots that are its now.
    pub(in super::super) fn join(&mut self, member: Member, ranges: &[(i32, i32)]) -> Vec<Slots> {
        self.leave(member);
        for (first, last) in ranges {
            self.ranges.insert(*first, (*last, member));
        }
        self.of
            .insert(member, ranges.iter().map(|(first, _)| *first).collect());
        ranges.iter().filter_map(|range| slots(*range)).collect()
    }

    /// Takes a consumer out. Returns the slots that were its.
    pub(super) fn leave(&mut self, member: Member) -> Vec<Slots> {
        let mut moved = Vec::new();
        for first in self.of.remove(&member).unwrap_or_default() {
            if let Some((last, _)) = self.ranges.remove(&first) {
                moved.extend(slots((first, last)));
            }
        }
        moved
    }

    /// The slots that have an owner, in order. Ranges are told as they were asked for, as far as hashes reach.
    pub(super) fn shares(&self) -> Vec<(Slots, Member)> {
        self.ranges
            .iter()
            .filter_map(|(first, (last, member))| {
                let last = Slot::try_from((*last).min(i32::from(LAST_SLOT))).ok()?;
                let first = Slot::try_from((*first).max(0)).ok()?;
                Some((Slots { first, last }, *member))
            })
            .collect()
    }
}

/// The slots of a range of hashes: what no hash reaches is accepted, and means nothing.
fn slots((first, last): (i32, i32)) -> Option<Slots> {
    let last = Slot::try_from(last.min(i32::from(LAST_SLOT))).ok()?;
    Slots::new(Slot::try_from(first.max(0)).ok()?, last)
}
