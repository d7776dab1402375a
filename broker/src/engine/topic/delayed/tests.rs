#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::stretches::{MAX, Stretches};
use super::*;

const RULE: Rule = Rule {
    enabled: true,
    tick_ms: 1000,
    strict: true,
    limit: 65_536,
};

fn at(entry: u64) -> Position {
    Position::new(1 + (entry / 50_000) as i64, (entry % 50_000) as i64)
}

/// A million entries, due at times that are spread over a month, in an order that is not the log's.
#[test]
fn a_million_delays_take_a_bounded_memory() {
    let mut delayed = Delayed::default();
    for n in 0..1_000_000_u64 {
        let due = 1_000_000 + n.wrapping_mul(2_654_435_761) % 2_592_000_000;
        delayed.put_aside(at(n), due, RULE.limit);
        assert!(delayed.soon.len() <= RULE.limit);
    }
    assert_eq!(delayed.waiting(), 1_000_000);
    assert!(delayed.far.len() <= 1_000_000 / 1024 * 2);
    // What is documented: 8 MiB for one subscription.
    assert!(delayed.memory() < 4 << 20, "{}", delayed.memory());
    assert!(Delayed::memory_max(RULE.limit) <= 8 << 20);
    assert!(size_of::<(u64, Position)>() * 2 <= BYTES_PER_TIME);
    assert!(size_of::<Position>() * 2 <= BYTES_PER_DUE);
    assert!(size_of::<(Position, Stretch)>() * 2 <= BYTES_PER_STRETCH);
    delayed.audit(|_| false).unwrap();
    // Those that are kept are the ones that are due first.
    let horizon = delayed.horizon;
    let before = (0..1_000_000_u64)
        .filter(|n| 1_000_000 + n.wrapping_mul(2_654_435_761) % 2_592_000_000 < horizon);
    assert_eq!(before.count(), delayed.soon.len());
    assert!(delayed.soon.len() >= RULE.limit / 2);
}

#[test]
fn stretches_never_become_too_many() {
    let mut stretches = Stretches::default();
    let entries = 10_000_000_u64;
    for n in (0..entries).step_by(331) {
        stretches.add(at(n * 40));
        assert!(stretches.len() <= MAX);
    }
    let added = entries.div_ceil(331);
    assert_eq!(stretches.count(), added);
    let all = stretches.take();
    assert_eq!(all.iter().map(|(_, s)| s.count).sum::<u64>(), added);
    for ((first, stretch), (next, _)) in all.iter().zip(all.iter().skip(1)) {
        assert!(*first <= stretch.last && stretch.last < *next);
    }
    assert!(stretches.is_empty() && stretches.count() == 0);
}

#[test]
fn many_with_one_time_are_found_when_it_has_come() {
    let mut delayed = Delayed::default();
    let rule = Rule { limit: 10, ..RULE };
    for n in 0..100 {
        delayed.put_aside(at(n), 5_000_000, rule.limit);
    }
    assert_eq!(delayed.waiting(), 100);
    // Once ahead of the time, for all that is known; then when it has come.
    assert_eq!(delayed.next_look(&rule, 1_000_000), Some(4_990_000));
    assert!(!delayed.searches(&rule, 4_989_999));
    assert!(delayed.searches(&rule, 4_990_000));
    delayed.search = None;
    for n in 0..100 {
        delayed.put_aside(at(n), 5_000_000, rule.limit);
    }
    assert!(!delayed.searches(&rule, 4_999_999));
    assert_eq!(delayed.next_look(&rule, 4_990_000), Some(5_000_000));
    assert!(delayed.searches(&rule, 5_000_000));
}

proptest! {
    /// Against a list: what is before the horizon is known exactly, and everything else is in a stretch.
    #[test]
    fn nothing_is_forgotten(
        limit in 1_usize..20,
        entries in prop::collection::btree_map(0_u64..5_000, 1_u64..200, 1..300),
        upto in prop::collection::vec(0_u64..250, 1..10),
    ) {
        let rule = Rule { limit, ..RULE };
        let mut delayed = Delayed::default();
        let mut model: BTreeMap<Position, u64> = BTreeMap::new();
        for (entry, due) in entries {
            delayed.put_aside(at(entry), due, limit);
            model.insert(at(entry), due);
        }
        prop_assert!(delayed.soon.len() <= limit);
        for now in upto {
            delayed.promote(&rule, now);
            prop_assert!(delayed.due.len() <= limit);
            while let Some(position) = delayed.first_due() {
                delayed.take(position);
                let due = model.remove(&position).unwrap();
                prop_assert!(due <= now && due < delayed.horizon);
                if delayed.due.is_empty() {
                    delayed.promote(&rule, now);
                }
            }
            let left = model.values().filter(|due| **due <= now.min(delayed.horizon - 1));
            prop_assert_eq!(left.count(), 0);
        }
        prop_assert_eq!(delayed.waiting(), model.len() as u64);
        let stretches = delayed.far.take();
        for (position, due) in model {
            let known = delayed.soon.contains(&(due, position));
            let within = stretches.iter().any(|(first, s)| *first <= position && position <= s.last);
            prop_assert!(known || due >= delayed.horizon && within);
        }
    }
}
