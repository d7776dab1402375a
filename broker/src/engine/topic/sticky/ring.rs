//! Consistent hashing: every consumer has points on a ring of slots, and a slot belongs to the next point.

use std::collections::{BTreeMap, BTreeSet};

use super::hash::ring_slot;
use super::{LAST_SLOT, Member, Slot, Slots};
use crate::engine::murmur::murmur3;

/// A place on the ring. Of several at one slot the consumer that came first has it, and the others queue.
type Point = (Slot, u64, Member);

#[derive(Debug)]
struct Seat {
    name: String,
    /// Tells consumers of one name apart: the smallest number that none of them had.
    index: u32,
    /// When it came.
    turn: u64,
}

/// The ring.
///
/// A consumer that joins or leaves moves slots to or from itself only. Work per join or leave: one step per point, each
/// logarithmic in the points there are.
#[derive(Debug)]
pub(in super::super) struct Ring {
    points_each: u32,
    points: BTreeSet<Point>,
    seats: BTreeMap<Member, Seat>,
    indexes: BTreeMap<String, BTreeSet<u32>>,
    turns: u64,
}

impl Ring {
    /// A ring with this many points per consumer, at least 1.
    pub(super) fn new(points_each: u32) -> Self {
        Ring {
            points_each: points_each.max(1),
            points: BTreeSet::new(),
            seats: BTreeMap::new(),
            indexes: BTreeMap::new(),
            turns: 0,
        }
    }

    /// Who a slot belongs to; `None` only when nobody is there, or slot is 0.
    pub(super) fn owner(&self, slot: Slot) -> Option<Member> {
        let next = self.points.range((slot, 0, 0)..).next();
        next.or_else(|| self.points.first())
            .map(|(_, _, member)| *member)
    }

    /// Adds a consumer. Returns the slots that are its now.
    pub(super) fn join(&mut self, member: Member, name: &str) -> Vec<Slots> {
        self.leave(member);
        let used = self.indexes.entry(name.to_owned()).or_default();
        // In order, so the first one that is not its own number is the gap.
        let index = used
            .iter()
            .zip(0..)
            .find(|(used, free)| **used != *free)
            .map_or(used.len() as u32, |(_, free)| free);
        used.insert(index);
        self.turns += 1;
        let seat = Seat {
            name: name.to_owned(),
            index,
            turn: self.turns,
        };
        let mut moved = Vec::new();
        for slot in points(&seat, self.points_each) {
            if self.owner(slot) == Some(member) {
                // A point of its own lies behind; it has the slots up to here already.
                self.points.insert((slot, seat.turn, member));
                continue;
            }
            let taken = self.holder(slot).is_some();
            self.points.insert((slot, seat.turn, member));
            if !taken {
                self.before(slot, &mut moved);
            }
        }
        self.seats.insert(member, seat);
        moved
    }

    /// Takes a consumer out. Returns the slots that were its.
    pub(super) fn leave(&mut self, member: Member) -> Vec<Slots> {
        let Some(seat) = self.seats.remove(&member) else {
            return Vec::new();
        };
        if let Some(used) = self.indexes.get_mut(&seat.name) {
            used.remove(&seat.index);
            if used.is_empty() {
                self.indexes.remove(&seat.name);
            }
        }
        let mut moved = Vec::new();
        for slot in points(&seat, self.points_each) {
            let held = self.holder(slot) == Some(member);
            let removed = self.points.remove(&(slot, seat.turn, member));
            if held && removed && self.owner(slot) != Some(member) {
                self.before(slot, &mut moved);
            }
        }
        moved
    }

    /// The first of those with a point at exactly this slot.
    fn holder(&self, slot: Slot) -> Option<Member> {
        let (at, _, member) = self.points.range((slot, 0, 0)..).next()?;
        (*at == slot).then_some(*member)
    }

    /// The slots between the point before this slot and this slot, around the end if need be.
    fn before(&self, slot: Slot, out: &mut Vec<Slots>) {
        if let Some((previous, _, _)) = self.points.range(..(slot, 0, 0)).next_back() {
            out.extend(Slots::new(previous.saturating_add(1), slot));
            return;
        }
        out.extend(Slots::new(1, slot));
        let last = self.points.last().map_or(0, |(last, _, _)| *last).max(slot);
        if last < LAST_SLOT {
            out.extend(Slots::new(last + 1, LAST_SLOT));
        }
    }

    /// Every slot with its owner, in order; neighbours of one owner are joined.
    pub(super) fn shares(&self) -> Vec<(Slots, Member)> {
        let mut shares: Vec<(Slots, Member)> = Vec::new();
        let mut from = 1;
        let mut push = |slots: Option<Slots>, member: Member| {
            let Some(slots) = slots else { return };
            match shares.last_mut() {
                Some((last, owner)) if *owner == member => last.last = slots.last,
                _ => shares.push((slots, member)),
            }
        };
        for (slot, _, member) in &self.points {
            // Whoever queues at a slot finds it given away already.
            push(Slots::new(from, *slot), *member);
            from = slot.saturating_add(1).max(from);
            if *slot == LAST_SLOT {
                return shares;
            }
        }
        if let Some((_, _, first)) = self.points.first() {
            push(Slots::new(from, LAST_SLOT), *first);
        }
        shares
    }
}

/// The points of a consumer: the hashes of `name NUL index NUL number`, as in Pulsar, so that both give a key to the same consumer.
fn points(seat: &Seat, count: u32) -> impl Iterator<Item = Slot> + use<> {
    let prefix = format!("{}\0{}\0", seat.name, seat.index);
    (0..count).map(move |number| ring_slot(murmur3(format!("{prefix}{number}").as_bytes())))
}
