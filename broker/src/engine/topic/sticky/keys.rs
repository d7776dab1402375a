//! Who holds entries of a slot, and which entries wait.
//!
//! The rule (PIP-379): an entry goes to the consumer its slot belongs to, unless another one still holds unacknowledged entries of
//! that slot. Then the slot is *draining*: it waits until the holder has acknowledged them, gave them back, or left. What is
//! kept is the holder of a slot and a count, nothing per change of the mapping: a slot drains for as long as its holder is not its owner,
//! so a slot that comes back to its holder in time just goes on.
//!
//! What waits stands in a *line* per slot, in the order of the log: an entry never overtakes another one of its slot that waits. A line whose
//! first entry may go is *ready*. To find the next entry nobody looks at lines that are not, so what is blocked costs nothing while
//! others go on.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::{Member, Refused, Selector, Slot, Slots};
use crate::store::log::Position;

const FIRST: Position = Position::new(i64::MIN, i64::MIN);

/// What is known of a slot that has entries out or waiting.
#[derive(Default, Debug)]
struct State {
    /// Who has its entries; means something while `count` is above 0.
    holder: Member,
    /// Entries that are out.
    count: u32,
    /// Chunked messages whose last chunk is not out. Only the holder can complete them, so the slot stays with it until then.
    unfinished: u16,
    /// Entries that had to wait because the slot was draining.
    blocked: u32,
    /// Its entry in `ready`.
    ready: Option<(Member, Position)>,
    /// Entries that wait.
    waiting: u32,
}

/// What becomes of an entry that was just read.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in super::super) enum Route {
    /// It may go to this consumer.
    To(Member),
    /// It has to wait in its line.
    Wait,
}

/// A slot that waits for its holder, for statistics.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in super::super) struct Draining {
    pub(in super::super) slot: Slot,
    pub(in super::super) holder: Member,
    /// Entries the holder has of it.
    pub(in super::super) unacked: u32,
    /// Entries that had to wait for it.
    pub(in super::super) blocked: u32,
}

/// The keys of a Key_Shared subscription.
///
/// Bounds: at most 65,535 slots; waiting entries are the caller's to bound ([`Keys::waiting`]).
#[derive(Debug)]
pub(in super::super) struct Keys {
    selector: Selector,
    /// Keys wait for their holders.
    ordered: bool,
    slots: FxHashMap<Slot, State>,
    waiting: BTreeMap<Position, Slot>,
    lines: BTreeSet<(Slot, Position)>,
    /// Lines whose first entry may go to this consumer, lowest first.
    ready: BTreeSet<(Member, Position, Slot)>,
    /// Everybody who may be able to take something from `ready`, and perhaps others.
    woken: BTreeSet<Member>,
    /// Whose turn is over.
    turn: Member,
    /// Drained slots, by who held them.
    drained: BTreeMap<Member, u64>,
}

impl Keys {
    /// Without consumers. `ordered` = keys wait for their holders.
    pub(in super::super) fn new(selector: Selector, ordered: bool) -> Self {
        Keys {
            selector,
            ordered,
            slots: FxHashMap::default(),
            waiting: BTreeMap::new(),
            lines: BTreeSet::new(),
            ready: BTreeSet::new(),
            woken: BTreeSet::new(),
            turn: 0,
            drained: BTreeMap::new(),
        }
    }

    /// The slot that a key's hash falls into.
    pub(in super::super) fn slot(&self, hash: u32) -> Slot {
        self.selector.slot(hash)
    }

    /// May a consumer join?
    ///
    /// # Errors
    /// The selector has no slots for it.
    pub(in super::super) fn check(&self, ranges: &[(i32, i32)]) -> Result<(), Refused> {
        self.selector.check(ranges)
    }

    /// A consumer that was [checked](Keys::check) joins.
    pub(in super::super) fn join(&mut self, member: Member, name: &str, ranges: &[(i32, i32)]) {
        let moved = self.selector.join(member, name, ranges);
        self.moved(&moved);
    }

    /// A consumer leaves. What it held waits for the next owner, in its line.
    pub(in super::super) fn leave(
        &mut self,
        member: Member,
        held: impl IntoIterator<Item = (Position, Slot)>,
    ) {
        let moved = self.selector.leave(member);
        for (position, slot) in held {
            self.released(member, slot);
            self.wait(position, slot);
        }
        self.moved(&moved);
        self.woken.remove(&member);
        self.drained.remove(&member);
    }

    /// Where an entry that was read for the first time goes.
    pub(in super::super) fn route(&self, slot: Slot) -> Route {
        let owner = self.selector.owner(slot);
        let to = match self.slots.get(&slot) {
            Some(state) if state.waiting > 0 => None,
            Some(state) => free(state, owner),
            None => owner,
        };
        to.map_or(Route::Wait, Route::To)
    }

    /// An entry has to wait: it cannot go now, or it came back.
    pub(in super::super) fn wait(&mut self, position: Position, slot: Slot) {
        if self.waiting.insert(position, slot).is_some() {
            return;
        }
        self.lines.insert((slot, position));
        let owner = self.selector.owner(slot);
        let state = self.slots.entry(slot).or_default();
        state.waiting += 1;
        if state.count > 0 && Some(state.holder) != owner {
            state.blocked = state.blocked.saturating_add(1);
        }
        self.refresh(slot);
    }

    /// Entries that wait.
    pub(in super::super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Does this entry wait?
    pub(in super::super) fn waits(&self, position: Position) -> bool {
        self.waiting.contains_key(&position)
    }

    /// Who an entry may go to that stands first in its line.
    pub(in super::super) fn first_of_line(&self, position: Position) -> Option<Member> {
        let slot = self.waiting.get(&position)?;
        let (member, first) = self.slots.get(slot)?.ready?;
        (first == position).then_some(member)
    }

    /// An entry waits no longer: it goes out, or was acknowledged. False if it did not wait.
    pub(in super::super) fn take(&mut self, position: Position) -> bool {
        let Some(slot) = self.waiting.remove(&position) else {
            return false;
        };
        self.lines.remove(&(slot, position));
        if let Some(state) = self.slots.get_mut(&slot) {
            state.waiting = state.waiting.saturating_sub(1);
        }
        self.refresh(slot);
        true
    }

    /// Entries up to the mark-delete position wait no longer: somebody else saw to it that they are done with.
    pub(in super::super) fn take_through(&mut self, mark_delete: Position) {
        while let Some((position, _)) = self.waiting.first_key_value()
            && *position <= mark_delete
        {
            let position = *position;
            self.take(position);
        }
    }

    /// The next waiting entry that may go to somebody who can take it: consumers in turns, each from its lowest position on.
    pub(in super::super) fn next(
        &mut self,
        available: impl Fn(Member) -> bool,
    ) -> Option<(Position, Slot, Member)> {
        loop {
            let member = self.woken.range(self.turn..).next();
            let member = *member.or_else(|| self.woken.first())?;
            let next = self.ready.range((member, FIRST, 0)..).next();
            match next {
                Some((owner, position, slot)) if *owner == member && available(member) => {
                    self.turn = member;
                    return Some((*position, *slot, member));
                }
                _ => {
                    self.woken.remove(&member);
                    self.turn = member.saturating_add(1);
                }
            }
        }
    }

    /// The turn of whoever had the last entry of [`Keys::next`] is over.
    pub(in super::super) fn pass_turn(&mut self) {
        self.turn = self.turn.saturating_add(1);
    }

    /// Who has lines whose first entry may go; once for each line.
    pub(in super::super) fn ready(&self) -> impl Iterator<Item = Member> + '_ {
        self.ready.iter().map(|(member, _, _)| *member)
    }

    /// A consumer can take entries again.
    pub(in super::super) fn wake(&mut self, member: Member) {
        let first = self.ready.range((member, FIRST, 0)..).next();
        if first.is_some_and(|(owner, _, _)| *owner == member) {
            self.woken.insert(member);
        }
    }

    /// An entry goes out to a consumer. `unfinished` = it is a chunk, and says whether more are to come behind it.
    ///
    /// False if another one holds entries of the slot: it must not go, and nothing changed.
    pub(in super::super) fn admit(
        &mut self,
        member: Member,
        slot: Slot,
        unfinished: Option<bool>,
    ) -> bool {
        if !self.ordered {
            return true;
        }
        let state = self.slots.entry(slot).or_default();
        if state.count > 0 && state.holder != member {
            return false;
        }
        state.holder = member;
        state.count += 1;
        match unfinished {
            Some(true) => state.unfinished = state.unfinished.saturating_add(1),
            Some(false) => state.unfinished = 0,
            None => return true,
        }
        self.refresh(slot);
        true
    }

    /// A consumer no longer holds an entry: acknowledged, or given back (then it [waits](Keys::wait) next). True if an entry that waits can go now.
    pub(in super::super) fn released(&mut self, member: Member, slot: Slot) -> bool {
        if !self.ordered {
            return false;
        }
        let Some(state) = self.slots.get_mut(&slot) else {
            return false;
        };
        if state.count == 0 || state.holder != member {
            return false;
        }
        state.count -= 1;
        if state.count > 0 {
            return false;
        }
        state.unfinished = 0;
        state.blocked = 0;
        if self.selector.owner(slot) != Some(member) {
            *self.drained.entry(member).or_insert(0) += 1;
        }
        self.refresh(slot)
    }

    /// Forgets what is out and what waits; consumers stay.
    pub(in super::super) fn clear(&mut self) {
        self.slots.clear();
        self.waiting.clear();
        self.lines.clear();
        self.ready.clear();
        self.woken.clear();
    }

    /// The slots that wait for their holders, by slot. It looks at every slot that is out: for statistics.
    pub(in super::super) fn draining(&self) -> Vec<Draining> {
        let mut draining: Vec<Draining> = self
            .slots
            .iter()
            .filter(|(slot, state)| {
                state.count > 0 && self.selector.owner(**slot) != Some(state.holder)
            })
            .map(|(slot, state)| Draining {
                slot: *slot,
                holder: state.holder,
                unacked: state.count,
                blocked: state.blocked,
            })
            .collect();
        draining.sort_unstable_by_key(|draining| draining.slot);
        draining
    }

    /// How many slots consumers drained until others could go on.
    pub(in super::super) fn drained(&self) -> impl Iterator<Item = (Member, u64)> + '_ {
        self.drained
            .iter()
            .map(|(member, drained)| (*member, *drained))
    }

    /// What does not add up, if anything. `held` = the entries that are out, by slot and consumer.
    pub(in super::super) fn audit(
        &self,
        held: impl IntoIterator<Item = (Slot, Member)>,
    ) -> Result<(), String> {
        let mut out: BTreeMap<Slot, (Member, u32)> = BTreeMap::new();
        for (slot, member) in held.into_iter().filter(|_| self.ordered) {
            let (holder, count) = out.entry(slot).or_insert((member, 0));
            if *holder != member {
                return Err(format!("{holder} and {member} hold entries of slot {slot}"));
            }
            *count += 1;
        }
        let mut lines: BTreeMap<Slot, (u32, Position)> = BTreeMap::new();
        for (position, slot) in &self.waiting {
            lines.entry(*slot).or_insert((0, *position)).0 += 1;
        }
        if self.lines.len() != self.waiting.len() {
            return Err(format!(
                "{} of {} stand in lines",
                self.lines.len(),
                self.waiting.len()
            ));
        }
        let mut ready = 0;
        for (slot, state) in &self.slots {
            let (holder, count) = out.remove(slot).unwrap_or((state.holder, 0));
            let (waiting, first) = match lines.remove(slot) {
                Some((waiting, first)) => (waiting, Some(first)),
                None => (0, None),
            };
            let is = (state.holder, state.count, state.waiting);
            let should = (holder, count, waiting);
            if is != should || (count == 0 && waiting == 0) {
                return Err(format!("slot {slot} has {is:?}, should be {should:?}"));
            }
            let goes = first.and_then(|first| {
                free(state, self.selector.owner(*slot)).map(|member| (member, first))
            });
            if state.ready != goes {
                return Err(format!(
                    "slot {slot}: {:?} is ready, not {goes:?}",
                    state.ready
                ));
            }
            if let Some((member, first)) = goes {
                ready += 1;
                if !self.ready.contains(&(member, first, *slot)) {
                    return Err(format!("slot {slot} is not among the ready ones"));
                }
            }
        }
        if ready != self.ready.len() || !out.is_empty() || !lines.is_empty() {
            return Err(format!(
                "{ready} of {} are ready; unknown: {out:?} out, {lines:?} waiting",
                self.ready.len()
            ));
        }
        Ok(())
    }

    /// The slots with their owners.
    pub(in super::super) fn shares(&self) -> Vec<(Slots, Member)> {
        self.selector.shares()
    }

    /// Slots have other owners now.
    fn moved(&mut self, moved: &[Slots]) {
        if self.waiting.is_empty() {
            return;
        }
        for slots in moved {
            let mut from = slots.first;
            while let Some((slot, _)) = self.lines.range((from, FIRST)..).next()
                && *slot <= slots.last
            {
                let slot = *slot;
                self.refresh(slot);
                let Some(next) = slot.checked_add(1) else {
                    break;
                };
                from = next;
            }
        }
    }

    /// Makes `ready` say of a slot what is true. True if that lets an entry go.
    fn refresh(&mut self, slot: Slot) -> bool {
        let Some(state) = self.slots.get_mut(&slot) else {
            return false;
        };
        let first = match state.waiting {
            0 => None,
            _ => self.lines.range((slot, FIRST)..).next(),
        };
        let ready = first
            .filter(|(of, _)| *of == slot)
            .and_then(|(_, position)| {
                free(state, self.selector.owner(slot)).map(|member| (member, *position))
            });
        let changed = ready != state.ready;
        if changed {
            if let Some((member, position)) = state.ready {
                self.ready.remove(&(member, position, slot));
            }
            if let Some((member, position)) = ready {
                self.ready.insert((member, position, slot));
                self.woken.insert(member);
            }
            state.ready = ready;
        }
        if state.count == 0 && state.waiting == 0 {
            self.slots.remove(&slot);
        }
        changed && ready.is_some()
    }
}

/// Who may have the next entry of a slot, if anybody.
fn free(state: &State, owner: Option<Member>) -> Option<Member> {
    if state.count == 0 {
        return owner;
    }
    let stays = state.unfinished > 0 || owner == Some(state.holder);
    stays.then_some(state.holder)
}

#[cfg(test)]
impl Keys {
    /// Who a slot belongs to, draining or not.
    pub(super) fn selector_owner(&self, slot: Slot) -> Option<Member> {
        self.selector.owner(slot)
    }

    /// Slots that something is known of.
    pub(super) fn slots_known(&self) -> usize {
        self.slots.len()
    }
}
