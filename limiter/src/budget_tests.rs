#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use proptest::prelude::*;

fn granted(budget: &mut Budget<u32>) -> Vec<u32> {
    std::iter::from_fn(|| budget.next_granted()).collect()
}

#[test]
fn first_come_first_served_within_the_limit() {
    let mut budget = Budget::new(100);
    assert_eq!(budget.admit(1, 60), Admission::Granted);
    assert_eq!(budget.admit(2, 50), Admission::Waits);
    assert_eq!(
        budget.admit(3, 40),
        Admission::Waits,
        "it would fit, but 2 came first"
    );
    assert_eq!((budget.used(), budget.waiting()), (60, 2));
    assert_eq!(budget.release(1), 60);
    assert_eq!(granted(&mut budget), [2, 3]);
    assert_eq!(budget.used(), 90);
    assert_eq!(
        (budget.release(2), budget.release(3), budget.release(3)),
        (50, 40, 0)
    );
    assert_eq!(budget.used(), 0);
}

#[test]
fn who_closes_while_waiting_lets_the_next_one_pass() {
    let mut budget = Budget::new(100);
    assert_eq!(budget.admit(1, 60), Admission::Granted);
    assert_eq!(budget.admit(2, 50), Admission::Waits);
    assert_eq!(budget.admit(3, 40), Admission::Waits);
    assert_eq!(budget.release(2), 0);
    assert_eq!(granted(&mut budget), [3]);
}

#[test]
fn what_is_larger_than_everything_is_served_alone() {
    let mut budget = Budget::new(100);
    assert_eq!(budget.admit(1, 10), Admission::Granted);
    assert_eq!(budget.admit(2, 500), Admission::Waits);
    assert_eq!(budget.admit(3, 10), Admission::Waits);
    budget.release(1);
    assert_eq!(granted(&mut budget), [2]);
    budget.release(2);
    assert_eq!(granted(&mut budget), [3]);
}

#[test]
fn growing_goes_first_and_never_locks_up() {
    let mut budget = Budget::new(100);
    assert_eq!(budget.admit(1, 50), Admission::Granted);
    assert_eq!(budget.admit(2, 50), Admission::Granted);
    assert_eq!(budget.admit(3, 20), Admission::Waits);
    assert_eq!(budget.grow(1, 30), Admission::Waits, "2 may still end");
    assert_eq!(budget.grow(2, 40), Admission::Waits);
    // Both wait for each other: the first passes, and it alone.
    assert_eq!(granted(&mut budget), [1]);
    assert_eq!(budget.used(), 130);
    assert_eq!(
        budget.grow(1, 10),
        Admission::Granted,
        "the same one again: nobody else would ever release"
    );
    budget.release(1);
    assert_eq!(granted(&mut budget), [2]);
    budget.release(2);
    assert_eq!(granted(&mut budget), [3]);
}

#[test]
fn a_new_limit_applies_to_who_waits() {
    let mut budget = Budget::new(10);
    assert_eq!(budget.admit(1, 10), Admission::Granted);
    assert_eq!(budget.admit(2, 10), Admission::Waits);
    budget.set_limit(20);
    assert_eq!(granted(&mut budget), [2]);
    budget.set_limit(5);
    assert_eq!((budget.used(), budget.limit()), (20, 5));
    assert_eq!(budget.admit(3, 1), Admission::Waits);
    budget.release(1);
    assert_eq!(granted(&mut budget), []);
    budget.release(2);
    assert_eq!(granted(&mut budget), [3]);
}

#[test]
fn ten_thousand_silent_announcements_stay_inside() {
    let mut budget = Budget::new(256 << 20);
    for owner in 0..10_000 {
        let _ = budget.admit(owner, 5 << 20);
    }
    assert!(budget.used() <= 256 << 20);
    assert_eq!(budget.used(), 51 * (5 << 20));
    assert_eq!(budget.waiting(), 10_000 - 51);
    // As they are closed, everyone has a turn, in order.
    for owner in 0..10_000 {
        assert_eq!(budget.held_by(owner), 5 << 20);
        budget.release(owner);
        granted(&mut budget);
    }
    assert_eq!(
        (budget.used(), budget.waiting(), budget.accounts.len()),
        (0, 0, 0)
    );
}

#[test]
fn a_share_counts_only_while_memory_is_crowded() {
    assert!(!over_share(1_000, 1, 100, false));
    assert!(!over_share(25, 4, 100, true));
    assert!(over_share(26, 4, 100, true));
    assert!(!over_share(1_000, 4, 0, true) && !over_share(1_000, 4, -1, true));
    assert!(over_share(101, 0, 100, true));
    assert!(over_share(u64::MAX, usize::MAX, i64::MAX, true));
    assert!(!over_share(0, 4, 100, true));
}

proptest! {
    #[test]
    fn sums_agree_order_holds_and_everyone_has_a_turn(
        steps in prop::collection::vec((0..4_u8, 0..8_u32, 0..70_u64), 1..150)
    ) {
        let mut budget = Budget::new(100);
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        let mut wanted: Vec<(u32, u64)> = Vec::new();
        for (kind, owner, bytes) in steps {
            match kind {
                0 | 1 => {
                    let admission = budget.admit(owner, bytes);
                    match wanted.iter_mut().find(|(other, _)| *other == owner) {
                        Some((_, more)) => {
                            *more += bytes;
                            prop_assert_eq!(admission, Admission::Waits);
                        }
                        None if admission == Admission::Granted => {
                            if bytes > 0 { *held.entry(owner).or_default() += bytes; }
                        }
                        None => wanted.push((owner, bytes)),
                    }
                }
                2 => {
                    let had = held.remove(&owner).unwrap_or(0);
                    wanted.retain(|(other, _)| *other != owner);
                    prop_assert_eq!(budget.release(owner), had);
                }
                _ => budget.set_limit(bytes + 50),
            }
            while let Some(owner) = budget.next_granted() {
                let at = wanted.iter().position(|(other, _)| *other == owner).unwrap();
                let (_, bytes) = wanted.remove(at);
                let fresh = !held.contains_key(&owner);
                if fresh {
                    let before = wanted.iter().take(at).filter(|(other, _)| !held.contains_key(other)).count();
                    prop_assert_eq!(before, 0, "fresh owners in their order");
                }
                *held.entry(owner).or_default() += bytes;
            }
            prop_assert_eq!(budget.used(), held.values().sum::<u64>());
            prop_assert_eq!(budget.waiting(), wanted.len());
            // Progress: somebody holds memory and does not wait, or nobody waits.
            let can_end = held.keys().any(|owner| wanted.iter().all(|(other, _)| other != owner));
            prop_assert!(can_end || wanted.is_empty());
        }
        // If whoever can end does, everyone has had a turn.
        for _ in 0..40 {
            let Some(owner) = held.keys().copied().find(|owner| wanted.iter().all(|(other, _)| other != owner)) else { break };
            budget.release(owner);
            held.remove(&owner);
            while let Some(owner) = budget.next_granted() {
                let at = wanted.iter().position(|(other, _)| *other == owner).unwrap();
                *held.entry(owner).or_default() += wanted.remove(at).1;
            }
        }
        prop_assert!(held.is_empty() && wanted.is_empty());
        prop_assert_eq!((budget.used(), budget.accounts.len()), (0, 0));
    }

    /// Without growth after the first reservation and without a lowered limit, at most one owner is past it.
    #[test]
    fn the_limit_is_passed_by_one_owner_at_most(
        steps in prop::collection::vec((any::<bool>(), 0..8_u32, 1..150_u64), 1..150)
    ) {
        let mut budget = Budget::new(100);
        for (admit, owner, bytes) in steps {
            if admit {
                let _ = budget.admit(owner, bytes);
            } else {
                budget.release(owner);
            }
            granted(&mut budget);
            let most = budget.accounts.values().map(|account| account.granted).max().unwrap_or(0);
            prop_assert!(budget.used() <= 100 + most, "{} used", budget.used());
            let favourite = budget.favourite.map_or(0, |owner| budget.held_by(owner));
            prop_assert!(budget.used() - favourite <= 100);
        }
    }
}
