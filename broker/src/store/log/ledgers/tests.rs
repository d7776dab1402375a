#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn p(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

/// Ledgers with the given ids and entry counts; each chunk takes three entries of 10 bytes.
fn topic(shape: &[(i64, i64)]) -> Ledgers {
    let (mut ledgers, mut n) = (Ledgers::new(), 0u32);
    for &(id, entries) in shape {
        ledgers.open(id, 1000).unwrap();
        for entry in 0..entries {
            ledgers
                .push(p(id, entry), 10, 1 + u64::from(n / 3), 100 * (n % 3))
                .unwrap();
            n += 1;
        }
    }
    ledgers
}

#[test]
fn empty() {
    let mut t = Ledgers::new();
    assert_eq!(
        (
            t.first(),
            t.last(),
            t.next(Position::EARLIEST),
            t.next_position()
        ),
        (None, None, None, None)
    );
    assert_eq!(
        (
            t.entries_after(Position::EARLIEST),
            t.trimmable(Position::LATEST)
        ),
        (0, None)
    );
    assert!(t.push(p(1, 0), 1, 1, 0).is_err());
    assert!(t.open(-1, 0).is_err());
    assert!(!t.should_roll(&RollPolicy::default(), u64::MAX));
}

#[test]
fn order_is_checked() {
    let mut t = topic(&[(5, 2)]);
    let before = t.clone();
    assert_eq!(
        t.open(5, 0),
        Err(Damage::LedgerOrder { ledger: 5, last: 5 })
    );
    for wrong in [p(5, 1), p(5, 3), p(4, 2), p(6, 0), p(5, -1)] {
        assert_eq!(
            t.push(wrong, 1, 9, 0),
            Err(Damage::EntryOrder {
                entry: wrong,
                expected: Some(p(5, 2))
            })
        );
    }
    assert_eq!(t, before);
}

#[test]
fn hops() {
    let t = topic(&[(2, 3), (4, 0), (7, 2), (9, 0)]);
    assert_eq!(t.ledgers().map(|l| l.id).collect::<Vec<_>>(), [2, 7, 9]);
    for (after, next) in [
        (Position::EARLIEST, Some(p(2, 0))),
        (p(2, 1), Some(p(2, 2))),
        (p(2, 2), Some(p(7, 0))),
        (p(2, i64::MAX), Some(p(7, 0))),
        (p(4, -1), Some(p(7, 0))),
        (p(7, -1), Some(p(7, 0))),
        (p(7, 1), None),
        (p(9, -1), None),
        (Position::LATEST, None),
        (p(i64::MIN, i64::MIN), Some(p(2, 0))),
    ] {
        assert_eq!(t.next(after), next, "after {after}");
    }
    assert_eq!((t.first(), t.last()), (Some(p(2, 0)), Some(p(7, 1))));
    assert_eq!(t.prev(p(7, 0)), p(7, -1));
    assert_eq!(
        (t.end(), topic(&[(2, 3)]).end(), Ledgers::new().end()),
        (p(9, -1), p(2, 2), Position::EARLIEST)
    );
}

#[test]
fn trimming() {
    let mut t = topic(&[(1, 3), (2, 3), (3, 3), (5, 0)]);
    assert_eq!(t.trimmable(p(1, 1)), None);
    assert_eq!(t.trimmable(p(1, 2)), Some(1));
    assert_eq!(t.trimmable(p(2, -1)), Some(1));
    assert_eq!(t.trimmable(p(3, 2)), Some(3));
    assert_eq!(t.trimmable(Position::LATEST), Some(3));
    assert!(t.uses_segment(1, 1) && t.uses_segment(0, 99) && !t.uses_segment(4, 9));
    assert_eq!(
        t.trim(2),
        Trimmed {
            ledgers: 2,
            entries: 6,
            bytes: 60
        }
    );
    assert!(!t.uses_segment(1, 2) && t.uses_segment(2, 3));
    assert_eq!((t.entries(), t.bytes(), t.first()), (3, 30, Some(p(3, 0))));
    assert_eq!(
        (
            t.entries_after(Position::EARLIEST),
            t.entries_between(p(1, 0), p(3, 0))
        ),
        (3, 1)
    );
    assert!(!t.contains(p(1, 0)) && t.locate(p(1, 0)).is_none());
    // The newest ledger stays, and numbers go on from it.
    assert_eq!(t.trim(i64::MAX).entries, 3);
    assert_eq!((t.entries(), t.next_position()), (0, Some(p(5, 0))));
}

#[test]
fn rolling() {
    let policy = RollPolicy {
        entries: 3,
        bytes: 1000,
        age_ms: 500,
    };
    assert!(!topic(&[(1, 2)]).should_roll(&policy, 1499));
    assert!(topic(&[(1, 2)]).should_roll(&policy, 1500));
    assert!(topic(&[(1, 3)]).should_roll(&policy, 1000));
    assert!(topic(&[(1, 2)]).should_roll(
        &RollPolicy {
            bytes: 20,
            ..policy
        },
        0
    ));
    assert!(!topic(&[(1, 2), (2, 0)]).should_roll(&policy, u64::MAX));
}

proptest! {
    /// Every question answered as a plain list of the entries would.
    #[test]
    fn like_a_list(
        gaps in vec((1i64..4, 0i64..8), 1..8),
        trim in proptest::option::of(0i64..20),
        asks in vec((-2i64..25, -2i64..10), 1..20),
        segment in (0u64..15, 0u64..4),
    ) {
        let mut id = 0;
        let shape: Vec<_> = gaps.iter().map(|&(gap, entries)| { id += gap; (id, entries) }).collect();
        let mut t = topic(&shape);
        let mut list: Vec<(Position, u64, u32)> = Vec::new();
        for &(id, entries) in &shape {
            for entry in 0..entries {
                let n = list.len() as u32;
                list.push((p(id, entry), 1 + u64::from(n / 3), 100 * (n % 3)));
            }
        }
        if let Some(through) = trim {
            t.trim(through);
            list.retain(|(at, ..)| at.ledger > through || at.ledger == id);
        }
        prop_assert_eq!(t.entries(), list.len() as u64);
        prop_assert_eq!(t.first(), list.first().map(|x| x.0));
        prop_assert_eq!(t.last(), list.last().map(|x| x.0));
        prop_assert_eq!(
            t.uses_segment(segment.0, segment.0 + segment.1),
            list.iter().any(|x| (segment.0..=segment.0 + segment.1).contains(&x.1))
        );
        for (i, &(l, e)) in asks.iter().enumerate() {
            let at = p(l, e);
            prop_assert_eq!(t.next(at), list.iter().map(|x| x.0).find(|x| *x > at));
            prop_assert_eq!(t.contains(at), list.iter().any(|x| x.0 == at));
            prop_assert_eq!(t.entries_after(at), list.iter().filter(|x| x.0 > at).count() as u64);
            let (l, e) = asks[(i + 1) % asks.len()];
            let to = p(l, e);
            prop_assert_eq!(t.entries_between(at, to), list.iter().filter(|x| x.0 > at && x.0 <= to).count() as u64);
            let place = t.locate(at);
            prop_assert_eq!(place.is_some(), t.contains(at));
            if let Some(place) = place {
                let first = list.iter().find(|x| x.0 == p(at.ledger, place.first)).unwrap();
                prop_assert_eq!((place.seq, place.offset), (first.1, first.2));
                for entry in place.first..place.end {
                    prop_assert!(list.iter().any(|x| x.0 == p(at.ledger, entry) && x.1 == place.seq));
                }
                prop_assert!(!list.iter().any(|x| x.0 == p(at.ledger, place.end) && x.1 == place.seq));
            }
            let done = t.trimmable(at);
            let model = t.ledgers().take(t.ledgers().len() - 1).take_while(|ledger| ledger.last() <= at).last();
            prop_assert_eq!(done, model.map(|ledger| ledger.id));
        }
    }
}
