//! Properties of selectors and of the keys behind them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::keys::Draining;
use super::*;
use crate::engine::murmur::murmur3;
use crate::store::log::Position;

fn selector(kind: u8) -> Selector {
    match kind {
        0 => Selector::new(Mode::AutoSplit, Some(100)),
        1 => Selector::new(Mode::AutoSplit, None),
        _ => Selector::new(Mode::Sticky, None),
    }
}

fn owners(selector: &Selector) -> Vec<Option<Member>> {
    (0..=LAST_SLOT).map(|slot| selector.owner(slot)).collect()
}

fn covers(moved: &[Slots], slot: usize) -> bool {
    moved
        .iter()
        .any(|slots| (usize::from(slots.first)..=usize::from(slots.last)).contains(&slot))
}

/// What statistics say is what dispatch does.
fn check_shares(selector: &Selector, owners: &[Option<Member>]) {
    let mut told = vec![None; owners.len()];
    for (slots, member) in selector.shares() {
        for slot in slots.first..=slots.last {
            assert_eq!(told[usize::from(slot)], None, "two owners of {slot}");
            told[usize::from(slot)] = Some(member);
        }
    }
    assert_eq!(told[1..], owners[1..]);
}

/// Checks, then joins.
fn join(
    selector: &mut Selector,
    member: Member,
    name: &str,
    ranges: &[(i32, i32)],
) -> Result<Vec<Slots>, Refused> {
    selector.check(ranges)?;
    Ok(selector.join(member, name, ranges))
}

/// A range of its own for each consumer of a STICKY subscription.
fn range_of(member: Member) -> Vec<(i32, i32)> {
    let first = member as i32 * 3000;
    vec![(first, first + 999), (first + 2000, first + 2999)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every slot has one owner while anybody is there; who joins or leaves takes or gives slots, and no others move; what is said to
    /// have moved covers what did.
    #[test]
    fn joining_and_leaving_move_only_slots_of_whoever_does(
        kind in 0_u8..3,
        steps in prop::collection::vec((0_u32..20, 0_u8..3), 1..30),
    ) {
        let mut selector = selector(kind);
        let mut present = BTreeSet::new();
        let mut before = owners(&selector);
        for (member, name) in steps {
            let joins = present.insert(member);
            let moved = if joins {
                // Some have the same name.
                join(&mut selector, member, &format!("consumer-{name}"), &range_of(member)).unwrap()
            } else {
                present.remove(&member);
                selector.leave(member)
            };
            let after = owners(&selector);
            let mut changed = 0;
            for (slot, (was, is)) in before.iter().copied().zip(after.iter().copied()).enumerate().skip(1) {
                if kind < 2 {
                    prop_assert_eq!(is.is_some(), !present.is_empty());
                }
                if let Some(owner) = is {
                    prop_assert!(present.contains(&owner));
                }
                if was == is {
                    continue;
                }
                changed += 1;
                prop_assert!(covers(&moved, slot), "slot {} moved from {:?} to {:?} unsaid", slot, was, is);
                prop_assert_eq!(if joins { is } else { was }, Some(member), "slot {}", slot);
            }
            let said: usize = moved.iter().map(|slots| usize::from(slots.last - slots.first) + 1).sum();
            prop_assert!(said <= changed + 1, "{} said to move, {} did", said, changed);
            check_shares(&selector, &after);
            before = after;
        }
    }
}

/// With 100 points the shares of a ring differ, but not wildly.
#[test]
fn a_ring_is_balanced() {
    let mut selector = selector(0);
    for member in 0..10 {
        join(&mut selector, member, &format!("consumer-{member}"), &[]).unwrap();
    }
    let mut share = BTreeMap::new();
    for owner in owners(&selector).into_iter().skip(1).flatten() {
        *share.entry(owner).or_insert(0_u32) += 1;
    }
    assert_eq!(share.len(), 10);
    for (member, slots) in share {
        assert!((4000..10_000).contains(&slots), "{member}: {slots}");
    }
}

/// Halving leaves nobody with more than twice what another one has.
#[test]
fn halves_are_balanced_and_run_out() {
    let mut selector = selector(1);
    for member in 0..1000 {
        join(&mut selector, member, "", &[]).unwrap();
    }
    let sizes: Vec<u32> = selector
        .shares()
        .iter()
        .map(|(slots, _)| u32::from(slots.last - slots.first) + 1)
        .collect();
    assert_eq!(sizes.len(), 1000);
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(*most <= 2 * least + 1, "{least} to {most}");
    for member in 1000..65_536 {
        join(&mut selector, member, "", &[]).unwrap();
    }
    let refused = join(&mut selector, 65_536, "", &[]);
    assert_eq!(refused, Err(Refused::Full { consumers: 65_536 }));
    selector.leave(7);
    join(&mut selector, 65_536, "", &[]).unwrap();
}

/// A thousand consumers, as many as have more points than the ring has slots.
#[test]
fn a_thousand_consumers_share_a_ring_and_leave_nothing_behind() {
    let mut selector = selector(0);
    for member in 0..1000 {
        join(&mut selector, member, &format!("consumer-{member}"), &[]).unwrap();
    }
    let owned: BTreeSet<_> = owners(&selector).into_iter().skip(1).collect();
    assert!(!owned.contains(&None));
    assert!(owned.len() > 990, "{}", owned.len());
    for member in 0..1000 {
        selector.leave(member);
    }
    assert_eq!(selector.owner(1), None);
    assert_eq!(selector.shares(), vec![]);
}

/// What Pulsar 5.0.1 tells of three consumers with these names, two of them equal.
#[test]
fn a_ring_is_divided_as_pulsar_does() {
    let mut selector = selector(0);
    for (member, name) in ["alpha", "beta", "beta"].into_iter().enumerate() {
        join(&mut selector, member as Member, name, &[]).unwrap();
    }
    let mut told: BTreeMap<Member, Vec<(Slot, Slot)>> = BTreeMap::new();
    for (slots, member) in selector.shares() {
        told.entry(member)
            .or_default()
            .push((slots.first, slots.last));
    }
    let sum = |member: Member| -> u32 {
        let ranges = told[&member].iter();
        ranges
            .map(|(first, last)| u32::from(last - first) + 1)
            .sum()
    };
    assert_eq!((told[&0].len(), sum(0)), (62, 21_152));
    assert_eq!((told[&1].len(), sum(1)), (68, 20_975));
    assert_eq!((told[&2].len(), sum(2)), (69, 23_408));
    assert_eq!(told[&0][..2], [(426, 1121), (1271, 1584)]);
    assert_eq!(told[&1][..2], [(1122, 1127), (1875, 1972)]);
    assert_eq!(told[&2][..2], [(1, 425), (1128, 1270)]);
    assert_eq!(told[&2].last(), Some(&(65_519, 65_535)));
}

#[test]
fn equal_names_are_told_apart_and_their_numbers_used_again() {
    let mut selector = selector(0);
    for member in 0..3 {
        join(&mut selector, member, "same", &[]).unwrap();
    }
    let first = owners(&selector);
    selector.leave(1);
    join(&mut selector, 7, "same", &[]).unwrap();
    let again: Vec<_> = owners(&selector)
        .into_iter()
        .map(|owner| owner.map(|owner| if owner == 7 { 1 } else { owner }))
        .collect();
    assert!(first == again, "the newcomer has the number that was free");
}

#[test]
fn ranges_that_cannot_be_had_are_refused_and_change_nothing() {
    let mut selector = selector(2);
    assert_eq!(join(&mut selector, 1, "", &[]), Err(Refused::NoRanges));
    assert_eq!(
        join(&mut selector, 1, "", &[(5, 4)]),
        Err(Refused::Backwards { first: 5, last: 4 })
    );
    assert_eq!(
        join(&mut selector, 1, "", &[(0, 9), (20, 30), (9, 12)]),
        Err(Refused::Overlapping {
            left: (0, 9),
            right: (9, 12)
        })
    );
    let many: Vec<_> = (0..5000).map(|at| (at * 2, at * 2)).collect();
    assert_eq!(
        join(&mut selector, 1, "", &many),
        Err(Refused::TooMany { ranges: 5000 })
    );
    join(&mut selector, 1, "", &[(0, 99), (70_000, 80_000)]).unwrap();
    for asked in [(50, 150), (0, 0), (99, 99), (-5, 20_000), (75_000, 75_001)] {
        let refused = join(&mut selector, 2, "", &[(30_000, 30_001), asked]);
        assert!(
            matches!(refused, Err(Refused::Taken { holder: 1, .. })),
            "{asked:?}: {refused:?}"
        );
        assert_eq!(selector.owner(30_000), None);
    }
    join(&mut selector, 2, "", &[(100, 150)]).unwrap();
    assert_eq!(selector.owner(99), Some(1));
    assert_eq!(selector.owner(100), Some(2));
    assert_eq!(selector.owner(151), None);
    let text = join(&mut selector, 3, "", &[(40, 60)])
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "the hash range [40, 60] overlaps [0, 99] of another consumer"
    );
}

/// A subscription as the rules have it, to compare with: no indexes, everything looked up.
#[derive(Default)]
struct Model {
    /// Entry -> slot; all that were ever published.
    slots: BTreeMap<i64, Slot>,
    read: i64,
    acked: BTreeSet<i64>,
    /// Entry -> who has it.
    out: BTreeMap<i64, Member>,
    credit: BTreeMap<Member, u32>,
    /// What went out before.
    sent: BTreeSet<i64>,
    /// The last entry of a slot that went out for the first time.
    last: BTreeMap<Slot, i64>,
}

struct World {
    keys: Keys,
    model: Model,
    ordered: bool,
}

impl World {
    fn position(entry: i64) -> Position {
        Position::new(1, entry)
    }

    fn send(&mut self, entry: i64, slot: Slot, member: Member) {
        assert!(self.keys.admit(member, slot, None), "{entry} to {member}");
        let model = &mut self.model;
        *model.credit.get_mut(&member).unwrap() -= 1;
        if self.ordered {
            for (other, holder) in &model.out {
                assert!(
                    model.slots[other] != slot || *holder == member,
                    "slot {slot}: {holder} holds {other}, {member} gets {entry}"
                );
            }
        }
        if model.sent.insert(entry) && self.ordered {
            let last = model.last.insert(slot, entry);
            assert!(
                last.is_none_or(|last| last < entry),
                "{entry} after {last:?}"
            );
        }
        assert_eq!(model.out.insert(entry, member), None);
        self.audit();
    }

    /// Hands out what can be, as dispatch does: what waits, then what was never read, up to a bound.
    fn dispatch(&mut self, bound: usize) {
        loop {
            let credit = self.model.credit.clone();
            let available = |member: Member| credit.get(&member).is_some_and(|n| *n > 0);
            if let Some((position, slot, member)) = self.keys.next(available) {
                assert_eq!(self.model.slots[&position.entry], slot);
                assert!(self.keys.take(position));
                self.send(position.entry, slot, member);
                continue;
            }
            if !credit.values().any(|n| *n > 0) || self.keys.waiting() >= bound {
                break;
            }
            let entry = self.model.read + 1;
            let Some(slot) = self.model.slots.get(&entry).copied() else {
                break;
            };
            self.model.read = entry;
            match self.keys.route(slot) {
                Route::To(member) if available(member) => self.send(entry, slot, member),
                _ => self.keys.wait(World::position(entry), slot),
            }
        }
        self.audit();
        self.check(bound);
    }

    fn audit(&self) {
        let model = &self.model;
        let out = model.out.iter();
        self.keys
            .audit(out.map(|(entry, member)| (model.slots[entry], *member)))
            .unwrap();
    }

    /// Nothing is lost, and nothing that could go is left.
    fn check(&self, bound: usize) {
        let model = &self.model;
        let mut line = BTreeMap::new();
        for (entry, slot) in model.slots.range(..=model.read) {
            let waits = self.keys.waits(World::position(*entry));
            let places = usize::from(waits)
                + usize::from(model.acked.contains(entry))
                + usize::from(model.out.contains_key(entry));
            assert_eq!(places, 1, "{entry} is in {places} places");
            if waits {
                line.entry(*slot).or_insert(*entry);
            }
        }
        let has_credit = |member: Member| model.credit.get(&member).is_some_and(|n| *n > 0);
        let owner = |slot: Slot| self.keys.selector_owner(slot);
        for (slot, entry) in &line {
            let Some(owner) = owner(*slot) else { continue };
            let elsewhere = self.ordered
                && model
                    .out
                    .iter()
                    .any(|(other, holder)| model.slots[other] == *slot && *holder != owner);
            assert!(
                !has_credit(owner) || elsewhere,
                "{entry} could go to {owner} and does not"
            );
        }
        if self.keys.waiting() < bound && model.credit.values().any(|n| *n > 0) {
            assert!(
                !model.slots.contains_key(&(model.read + 1)),
                "not all was read"
            );
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<u8>),
    Join(Member),
    Leave(Member),
    Flow(Member, u32),
    /// The n-th of what is out.
    Ack(usize),
    Nack(usize),
    /// An entry that waits is acknowledged, as by somebody who knew its id.
    AckWaiting(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec(0_u8..12, 1..12).prop_map(Step::Publish),
        2 => (0_u32..6).prop_map(Step::Join),
        1 => (0_u32..6).prop_map(Step::Leave),
        4 => (0_u32..6, 1_u32..6).prop_map(|(member, n)| Step::Flow(member, n)),
        6 => any::<prop::sample::Index>().prop_map(|n| Step::Ack(n.index(1000))),
        1 => any::<prop::sample::Index>().prop_map(|n| Step::Nack(n.index(1000))),
        1 => any::<prop::sample::Index>().prop_map(|n| Step::AckWaiting(n.index(1000))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Random consumers, credit and acknowledgments: a key never has two holders, its entries go out in order the first time, nothing is
    /// lost, and nothing that may go stays.
    #[test]
    fn no_key_has_two_holders_and_nothing_stands_still(
        kind in 0_u8..3,
        ordered in prop::bool::weighted(0.8),
        bound in 1_usize..20,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World {
            keys: Keys::new(selector(kind), ordered),
            model: Model { read: -1, ..Model::default() },
            ordered,
        };
        for step in steps {
            match step {
                Step::Publish(keys) => for key in keys {
                    let slot = world.keys.slot(murmur3(&[key]));
                    let entry = world.model.slots.len() as i64;
                    world.model.slots.insert(entry, slot);
                },
                Step::Join(member) => if !world.model.credit.contains_key(&member) {
                    let width = (member as i32 * 11_000, member as i32 * 11_000 + 10_999);
                    world.keys.join(member, &format!("c{member}"), &[width]);
                    world.model.credit.insert(member, 0);
                },
                Step::Leave(member) => if world.model.credit.remove(&member).is_some() {
                    let held: Vec<i64> = world.model.out.iter().filter(|(_, m)| **m == member).map(|(e, _)| *e).collect();
                    for entry in &held {
                        world.model.out.remove(entry);
                    }
                    let model = &world.model;
                    let held: Vec<_> = held.into_iter().map(|e| (World::position(e), model.slots[&e])).collect();
                    world.keys.leave(member, held);
                },
                Step::Flow(member, n) => if let Some(credit) = world.model.credit.get_mut(&member) {
                    *credit += n;
                    world.keys.wake(member);
                },
                Step::Ack(n) | Step::Nack(n) => {
                    let Some((entry, member)) = world.model.out.iter().nth(n % world.model.out.len().max(1)).map(|(e, m)| (*e, *m)) else {
                        continue;
                    };
                    world.model.out.remove(&entry);
                    let slot = world.model.slots[&entry];
                    world.keys.released(member, slot);
                    if matches!(step, Step::Nack(_)) {
                        world.keys.wait(World::position(entry), slot);
                    } else {
                        world.model.acked.insert(entry);
                    }
                }
                Step::AckWaiting(n) => {
                    let waiting: Vec<i64> = (0..=world.model.read).filter(|e| world.keys.waits(World::position(*e))).collect();
                    if let Some(entry) = waiting.get(n % waiting.len().max(1)) {
                        prop_assert!(world.keys.take(World::position(*entry)));
                        world.model.acked.insert(*entry);
                    }
                }
            }
            world.dispatch(bound);
            if world.model.out.is_empty() && world.keys.waiting() == 0 {
                prop_assert_eq!(world.keys.slots_known(), 0, "slots that nobody needs are forgotten");
            }
        }
    }
}

fn two_keys(keys: &mut Keys) -> (Slot, Slot) {
    // One slot that moves when 1 joins, and one that stays with 0.
    keys.join(0, "first", &[]);
    let slots: Vec<Slot> = (0..50).map(|n| keys.slot(murmur3(&[n]))).collect();
    keys.join(1, "second", &[]);
    let moves = *slots
        .iter()
        .find(|slot| keys.selector_owner(**slot) == Some(1))
        .unwrap();
    let stays = *slots
        .iter()
        .find(|slot| keys.selector_owner(**slot) == Some(0))
        .unwrap();
    keys.leave(1, []);
    (moves, stays)
}

#[test]
fn a_slot_that_moves_drains_first_and_is_told_in_statistics() {
    let mut keys = Keys::new(selector(0), true);
    let (moves, stays) = two_keys(&mut keys);
    let at = World::position;
    assert!(keys.admit(0, moves, None) && keys.admit(0, moves, None) && keys.admit(0, stays, None));
    keys.join(1, "second", &[]);
    assert_eq!(keys.route(moves), Route::Wait);
    assert_eq!(keys.route(stays), Route::To(0));
    assert!(
        !keys.admit(1, moves, None),
        "refused at the last moment too"
    );
    keys.wait(at(3), moves);
    keys.wait(at(4), moves);
    assert_eq!(keys.next(|_| true), None);
    let draining = Draining {
        slot: moves,
        holder: 0,
        unacked: 2,
        blocked: 2,
    };
    assert_eq!(keys.draining(), vec![draining]);
    keys.released(0, moves);
    assert_eq!(keys.next(|_| true), None);
    assert_eq!(keys.drained().count(), 0);
    keys.released(0, moves);
    assert_eq!(keys.drained().collect::<Vec<_>>(), [(0, 1)]);
    assert_eq!(keys.next(|_| true), Some((at(3), moves, 1)));
    assert_eq!(keys.draining(), vec![]);
}

#[test]
fn a_slot_that_comes_back_to_its_holder_just_goes_on() {
    let mut keys = Keys::new(selector(0), true);
    let (moves, _) = two_keys(&mut keys);
    assert!(keys.admit(0, moves, None));
    keys.join(1, "second", &[]);
    keys.wait(World::position(3), moves);
    keys.leave(1, []);
    assert_eq!(keys.draining(), vec![]);
    assert_eq!(keys.next(|_| true), Some((World::position(3), moves, 0)));
    assert_eq!(keys.drained().count(), 0);
}

#[test]
fn out_of_order_delivery_waits_for_nobody() {
    let mut keys = Keys::new(selector(0), false);
    let (moves, _) = two_keys(&mut keys);
    assert!(keys.admit(0, moves, None));
    keys.join(1, "second", &[]);
    assert_eq!(keys.route(moves), Route::To(1));
    assert!(keys.admit(1, moves, None));
    assert_eq!(keys.draining(), vec![]);
}

#[test]
fn a_chunked_message_keeps_its_slot_until_its_last_chunk_is_out() {
    let mut keys = Keys::new(selector(0), true);
    let (moves, _) = two_keys(&mut keys);
    assert!(keys.admit(0, moves, Some(true)));
    keys.join(1, "second", &[]);
    assert_eq!(
        keys.route(moves),
        Route::To(0),
        "only 0 can put it together"
    );
    keys.wait(World::position(2), moves);
    assert_eq!(keys.next(|_| true), Some((World::position(2), moves, 0)));
    keys.take(World::position(2));
    assert!(keys.admit(0, moves, Some(false)));
    assert_eq!(keys.route(moves), Route::Wait);
    keys.released(0, moves);
    keys.released(0, moves);
    assert_eq!(keys.route(moves), Route::To(1));
}

#[test]
fn what_lies_behind_the_mark_delete_position_waits_no_longer() {
    let mut keys = Keys::new(selector(2), true);
    keys.join(0, "", &[(0, 99)]);
    for entry in 0..6 {
        // Two lines: one of them has nobody.
        keys.wait(World::position(entry), [1, 500][entry as usize % 2]);
    }
    keys.take_through(World::position(3));
    assert_eq!(keys.waiting(), 2);
    keys.audit([]).unwrap();
    assert_eq!(keys.next(|_| true), Some((World::position(4), 1, 0)));
}

#[test]
fn consumers_take_turns() {
    let mut keys = Keys::new(selector(2), true);
    for member in 0..3 {
        keys.join(member, "", &range_of(member));
    }
    let slot = |member: Member| member as Slot * 3000 + 1;
    for entry in 0..9 {
        keys.wait(World::position(entry), slot((entry / 3) as Member));
    }
    let mut got = Vec::new();
    while let Some((position, slot, member)) = keys.next(|member| member != 1) {
        keys.take(position);
        keys.admit(member, slot, None);
        keys.pass_turn();
        got.push(position.entry);
    }
    assert_eq!(got, vec![0, 6, 1, 7, 2, 8]);
    assert_eq!(
        keys.next(|_| true),
        None,
        "nobody told that 1 can take entries again"
    );
    keys.wake(1);
    assert_eq!(keys.next(|_| true), Some((World::position(3), slot(1), 1)));
}
