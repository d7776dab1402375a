#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

fn p(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

fn topic(shape: &[(i64, i64)]) -> Ledgers {
    let mut ledgers = Ledgers::new();
    for &(id, entries) in shape {
        ledgers.open(id, 0).unwrap();
        for entry in 0..entries {
            ledgers.push(p(id, entry), 1, 1, 64).unwrap();
        }
    }
    ledgers
}

fn positions(ledgers: &Ledgers) -> Vec<Position> {
    ledgers
        .ledgers()
        .flat_map(|l| (0..l.entries).map(|e| p(l.id, e)))
        .collect()
}

#[test]
fn holes_close_over_ledger_ends() {
    let t = topic(&[(1, 3), (4, 2), (6, 1)]);
    let mut c = AckState::new(Position::EARLIEST);
    assert!(
        c.ack(&t, p(4, 0)).newly_acked
            && c.ack(&t, p(1, 2)).newly_acked
            && c.ack(&t, p(1, 1)).newly_acked
    );
    assert_eq!(
        c.ranges().collect::<Vec<_>>(),
        [(p(1, 1), p(1, 2)), (p(4, 0), p(4, 0))]
    );
    assert_eq!(
        (c.mark_delete(), c.backlog(&t, p(6, 0))),
        (Position::EARLIEST, 3)
    );
    assert_eq!(c.next_unacked(&t, p(1, 0)), Some(p(4, 1)));
    assert!(c.ack(&t, p(1, 0)).newly_acked);
    assert_eq!(
        (c.mark_delete(), c.ranges().len(), c.backlog(&t, p(6, 0))),
        (p(4, 0), 0, 2)
    );
    assert_eq!(c.ack(&t, p(1, 0)), Outcome::default());
    assert_eq!(c.ack(&t, p(9, 0)), Outcome::default());
    assert_eq!(c.ack(&t, p(4, -1)), Outcome::default());
}

#[test]
fn sets_are_anded_until_empty() {
    let t = topic(&[(1, 3)]);
    let mut c = AckState::new(Position::EARLIEST);
    assert_eq!(
        c.ack_partial(&t, p(1, 1), &[0b1110], Some(4)),
        Outcome {
            newly_acked: false,
            cleared: 1
        }
    );
    assert_eq!(
        c.ack_partial(&t, p(1, 1), &[0b1110], Some(4)),
        Outcome::default()
    );
    assert_eq!(
        c.ack_partial(&t, p(1, 1), &[0b0111], Some(4)),
        Outcome {
            newly_acked: false,
            cleared: 1
        }
    );
    assert_eq!(c.ack_set(p(1, 1)), Some(&[0b0110][..]));
    // Bits beyond the batch keep nothing open.
    assert_eq!(
        c.ack_partial(&t, p(1, 1), &[1 << 40], Some(4)),
        Outcome {
            newly_acked: true,
            cleared: 2
        }
    );
    assert_eq!((c.ack_set(p(1, 1)), c.is_acked(p(1, 1))), (None, true));
    // Nothing cleared, nothing kept.
    assert_eq!(
        c.ack_partial(&t, p(1, 0), &[0b11], Some(2)),
        Outcome::default()
    );
    assert_eq!(c.partials().len(), 0);
    // Without the size, what lies below the highest open bit counts.
    assert_eq!(c.ack_partial(&t, p(1, 0), &[0, 0b100], None).cleared, 66);
    // A whole ack ends the set.
    assert!(c.ack(&t, p(1, 0)).newly_acked);
    assert_eq!((c.partials().len(), c.mark_delete()), (0, p(1, 1)));
}

#[test]
fn an_ack_set_is_cut_at_every_size_of_batch() {
    for size in 2..=200_u32 {
        let t = topic(&[(1, 1)]);
        let mut c = AckState::new(Position::EARLIEST);
        let mut set = [-1_i64; 4];
        set[0] = -2;
        let cleared = c.ack_partial(&t, p(1, 0), &set, Some(size)).cleared;
        let open = c.ack_set(p(1, 0)).unwrap();
        assert_eq!((cleared, count(open)), (1, u64::from(size) - 1), "{size}");
    }
}

#[test]
fn cumulative() {
    let mut t = topic(&[(1, 5)]);
    let mut c = AckState::new(p(1, 0));
    c.ack(&t, p(1, 3));
    assert_eq!(c.ack_cumulative(&t, p(1, 0), &[]), Ok(Outcome::default()));
    assert_eq!(
        c.ack_cumulative(&t, p(0, 7), &[]),
        Err(Behind {
            mark_delete: p(1, 0),
            to: p(0, 7)
        })
    );
    let outcome = c.ack_cumulative(&t, p(1, 2), &[0b10]).unwrap();
    assert_eq!(
        (outcome.newly_acked, c.mark_delete(), c.ack_set(p(1, 2))),
        (true, p(1, 1), Some(&[2][..]))
    );
    assert!(c.ack_cumulative(&t, p(1, 2), &[0]).unwrap().newly_acked);
    assert_eq!(c.mark_delete(), p(1, 3));
    // What is still to come is never acknowledged ahead.
    c.ack_cumulative(&t, Position::LATEST, &[]).unwrap();
    assert_eq!(c.mark_delete(), p(1, 4));
    t.push(p(1, 5), 1, 1, 64).unwrap();
    assert_eq!(c.next_unacked(&t, Position::EARLIEST), Some(p(1, 5)));
}

#[test]
fn reset_with_a_set() {
    let t = topic(&[(1, 5)]);
    let mut c = AckState::new(p(1, 3));
    c.ack(&t, p(1, 4));
    c.reset(p(1, 0), Some((p(1, 1), &[6, 0])));
    assert_eq!(
        (
            c.ack_set(p(1, 1)),
            c.backlog(&t, p(1, 4)),
            c.next_unacked(&t, p(1, 0))
        ),
        (Some(&[6][..]), 4, Some(p(1, 1)))
    );
    c.reset(Position::EARLIEST, Some((p(1, 0), &[0])));
    assert_eq!(c, AckState::new(Position::EARLIEST));
}

#[test]
fn many_holes() {
    let t = topic(&[(1, 120_000)]);
    let mut c = AckState::new(Position::EARLIEST);
    for entry in (1..120_000).step_by(2) {
        assert!(c.ack(&t, p(1, entry)).newly_acked);
    }
    assert_eq!(
        (c.ranges().len(), c.backlog(&t, t.last().unwrap())),
        (60_000, 60_000)
    );
    for entry in (0..120_000).step_by(2) {
        assert_eq!(c.next_unacked(&t, p(1, entry - 1)), Some(p(1, entry)));
        assert!(c.ack(&t, p(1, entry)).newly_acked);
        assert_eq!(c.mark_delete(), p(1, entry + 1));
    }
    assert_eq!((c.ranges().len(), c.backlog(&t, t.last().unwrap())), (0, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Ack(Index),
    AckAt(i64, i64),
    Partial(Index, Vec<i64>, bool),
    Cumulative(Index, Vec<i64>),
    Reset(Index, Vec<i64>),
    Trim(i64),
    Push(u8),
    Open,
}

fn set() -> impl Strategy<Value = Vec<i64>> {
    prop_oneof![Just(vec![]), vec(0i64..16, 1..2), vec(any::<i64>(), 0..4)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => any::<Index>().prop_map(Op::Ack),
        1 => (-1i64..12, -2i64..8).prop_map(|(l, e)| Op::AckAt(l, e)),
        4 => (any::<Index>(), set(), any::<bool>()).prop_map(|(i, s, known)| Op::Partial(i, s, known)),
        1 => (any::<Index>(), set()).prop_map(|(i, s)| Op::Cumulative(i, s)),
        1 => (any::<Index>(), set()).prop_map(|(i, s)| Op::Reset(i, s)),
        1 => (0i64..8).prop_map(Op::Trim),
        3 => (1u8..6).prop_map(Op::Push),
        1 => Just(Op::Open),
    ]
}

/// The cursor as plain sets: what is acknowledged is listed entry by entry.
struct Model {
    mark: Position,
    acked: BTreeSet<Position>,
    open: BTreeMap<Position, Vec<bool>>,
}

const BATCH: usize = 100;

fn bits(set: &[i64], n: usize) -> Vec<bool> {
    (0..n)
        .map(|i| set.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1))
        .collect()
}

impl Model {
    fn tidy(&mut self, all: &[Position]) {
        while let Some(next) = all.iter().find(|at| **at > self.mark)
            && self.acked.contains(next)
        {
            self.mark = *next;
        }
        let exists = |at: &Position, mark: Position| *at > mark && all.contains(at);
        self.acked.retain(|at| exists(at, self.mark));
        let (acked, mark) = (&self.acked, self.mark);
        self.open
            .retain(|at, _| exists(at, mark) && !acked.contains(at));
    }

    fn partial(&mut self, at: Position, set: &[i64], known: bool) {
        if at <= self.mark || self.acked.contains(&at) {
            return;
        }
        let n = if known { BATCH } else { 256 };
        let mut given = bits(set, n);
        given.resize(256, false);
        let first = !self.open.contains_key(&at);
        if first && known && given.iter().filter(|b| **b).count() == BATCH {
            return;
        }
        let now: Vec<bool> = match self.open.get(&at) {
            Some(stored) => stored.iter().zip(&given).map(|(a, b)| *a && *b).collect(),
            None => given,
        };
        if now.contains(&true) {
            self.open.insert(at, now);
        } else {
            self.acked.insert(at);
            self.open.remove(&at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn like_plain_sets(
        shape in vec(0i64..7, 1..4),
        start in any::<Index>(),
        ops in vec(op(), 1..60),
        ask in any::<Index>(),
    ) {
        let mut id = 0;
        let shape: Vec<_> = shape.iter().map(|entries| { id += 2; (id, *entries) }).collect();
        let mut t = topic(&shape);
        let mut marks = positions(&t);
        marks.push(Position::EARLIEST);
        let mark = *start.get(&marks);
        let mut c = AckState::new(mark);
        let mut m = Model { mark, acked: BTreeSet::new(), open: BTreeMap::new() };
        for op in ops {
            let all = positions(&t);
            let some = |i: &Index| if all.is_empty() { None } else { Some(*i.get(&all)) };
            let was_backlog = c.backlog(&t, Position::LATEST);
            match op {
                Op::Ack(i) => {
                    let Some(at) = some(&i) else { continue };
                    let fresh = at > m.mark && m.acked.insert(at);
                    prop_assert_eq!(c.ack(&t, at).newly_acked, fresh);
                    prop_assert_eq!(was_backlog - c.backlog(&t, Position::LATEST), u64::from(fresh));
                }
                Op::AckAt(l, e) => {
                    let exists = all.contains(&p(l, e));
                    let fresh = exists && p(l, e) > m.mark && m.acked.insert(p(l, e));
                    prop_assert_eq!(c.ack(&t, p(l, e)).newly_acked, fresh);
                }
                Op::Partial(i, set, known) => {
                    let Some(at) = some(&i) else { continue };
                    let before = m.open.get(&at).map(|b| b.iter().filter(|b| **b).count());
                    let was = m.acked.contains(&at) || at <= m.mark;
                    m.partial(at, &set, known);
                    let out = c.ack_partial(&t, at, &set, known.then_some(BATCH as u32));
                    prop_assert_eq!(out.newly_acked, !was && m.acked.contains(&at));
                    if known && !was {
                        let open = m.open.get(&at).map_or(0, |b| b.iter().filter(|b| **b).count());
                        let untouched = !m.acked.contains(&at) && !m.open.contains_key(&at);
                        let cleared = if untouched { 0 } else { before.unwrap_or(BATCH) - open };
                        prop_assert_eq!(out.cleared as usize, cleared);
                    }
                }
                Op::Cumulative(i, set) => {
                    let Some(to) = some(&i) else { continue };
                    let result = c.ack_cumulative(&t, to, &set);
                    prop_assert_eq!(result.is_err(), to < m.mark);
                    if to > m.mark {
                        let whole = set.iter().all(|w| *w == 0);
                        let mark = if whole { to } else { to.before() };
                        m.mark = m.mark.max(mark);
                        if !whole {
                            m.tidy(&all);
                            m.partial(to, &set, false);
                        }
                    }
                }
                Op::Reset(i, set) => {
                    let Some(next) = some(&i) else { continue };
                    c.reset(next.before(), Some((next, &set)));
                    m = Model { mark: next.before(), acked: BTreeSet::new(), open: BTreeMap::new() };
                    if set.iter().any(|w| *w != 0) {
                        m.open.insert(next, bits(&set, 256));
                    }
                }
                Op::Trim(through) => {
                    t.trim(through);
                    c.trimmed(&t);
                }
                Op::Push(n) => {
                    for _ in 0..n {
                        t.push(t.next_position().unwrap(), 1, 1, 64).unwrap();
                    }
                }
                Op::Open => {
                    id += 1;
                    t.open(id, 0).unwrap();
                }
            }
            let all = positions(&t);
            m.tidy(&all);
            prop_assert_eq!(c.mark_delete(), m.mark);
            let acked: BTreeSet<_> = all.iter().copied().filter(|at| *at > m.mark && c.is_acked(*at)).collect();
            prop_assert_eq!(&acked, &m.acked);
            prop_assert_eq!(c.acked_entries, acked.len() as u64);
            let open: BTreeMap<_, _> = c.partials().map(|(at, s)| (at, bits(s, 256))).collect();
            prop_assert_eq!(&open, &m.open);
            for (at, set) in c.partials() {
                prop_assert_eq!(c.ack_set(at), Some(set));
                prop_assert!(set.last() != Some(&0));
            }
            let unacked = |at: &&Position| **at > m.mark && !m.acked.contains(at);
            for lac in [Position::LATEST, if all.is_empty() { Position::EARLIEST } else { *ask.get(&all) }] {
                let n = all.iter().filter(|at| **at <= lac).filter(unacked).count() as u64;
                prop_assert_eq!(c.backlog(&t, lac), n, "up to {}", lac);
                let after = all.iter().filter(|at| **at > lac).find(unacked).copied();
                prop_assert_eq!(c.next_unacked(&t, lac), after);
            }
            let again = AckState::restore(
                &t,
                c.mark_delete(),
                c.ranges().map(|(first, last)| (first, last.entry)),
                c.partials().map(|(at, set)| (at, set.to_vec())),
            );
            prop_assert_eq!(again.as_ref(), Some(&c));
        }
    }
}
