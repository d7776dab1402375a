//! For tests: random changes made live, through a lane, as the engine makes them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::chunk::Chunk;
use super::record::List;
use super::*;

/// One change of a lane. Indexes choose among what exists at that moment.
#[derive(Clone, Debug)]
pub(super) enum LaneOp {
    CreateTopic,
    DeleteTopic(Index),
    Roll(Index),
    Publish(Index, u16),
    /// By a producer that deduplication knows, or gets to know.
    Sequenced(Index, u8, u16),
    Forget(Index, Index),
    CreateCursor(Index, Index),
    DeleteCursor(Index, Index),
    Ack(Index, Index, Vec<(Index, Vec<i64>, bool)>),
    Cumulative(Index, Index, Index, Vec<i64>),
    Reset(Index, Index, Index, Vec<i64>),
    Trim(Index, Index),
    Terminate(Index),
    Property(Index, u8, Vec<u8>),
    Tick,
    Durable,
    Checkpoint,
}

pub(super) fn lane_ops(max: usize) -> impl Strategy<Value = Vec<LaneOp>> {
    let i = any::<Index>;
    let set =
        || prop_oneof![3 => Just(vec![]), 2 => vec(0i64..16, 1..2), 1 => vec(any::<i64>(), 0..3)];
    let op = prop_oneof![
        2 => Just(LaneOp::CreateTopic),
        1 => i().prop_map(LaneOp::DeleteTopic),
        2 => i().prop_map(LaneOp::Roll),
        24 => (i(), prop_oneof![20 => 0u16..300, 1 => 3000u16..9000]).prop_map(|(t, n)| LaneOp::Publish(t, n)),
        8 => (i(), 0u8..4, 0u16..300).prop_map(|(t, p, n)| LaneOp::Sequenced(t, p, n)),
        1 => (i(), i()).prop_map(|(t, p)| LaneOp::Forget(t, p)),
        3 => (i(), i()).prop_map(|(t, at)| LaneOp::CreateCursor(t, at)),
        1 => (i(), i()).prop_map(|(t, c)| LaneOp::DeleteCursor(t, c)),
        10 => (i(), i(), vec((i(), set(), any::<bool>()), 0..4)).prop_map(|(t, c, ids)| LaneOp::Ack(t, c, ids)),
        2 => (i(), i(), i(), set()).prop_map(|(t, c, at, s)| LaneOp::Cumulative(t, c, at, s)),
        1 => (i(), i(), i(), set()).prop_map(|(t, c, at, s)| LaneOp::Reset(t, c, at, s)),
        2 => (i(), i()).prop_map(|(t, at)| LaneOp::Trim(t, at)),
        1 => i().prop_map(LaneOp::Terminate),
        2 => (i(), 0u8..3, vec(any::<u8>(), 0..3)).prop_map(|(t, k, v)| LaneOp::Property(t, k, v)),
        4 => Just(LaneOp::Tick),
        4 => Just(LaneOp::Durable),
        2 => Just(LaneOp::Checkpoint),
    ];
    vec(op, 0..max)
}

/// What came of a run.
pub(super) struct Run {
    pub(super) lane: Lane,
    pub(super) state: LaneState,
    /// Every chunk, by number.
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// Covered chunk and bytes.
    pub(super) checkpoints: Vec<(u64, Vec<u8>)>,
    /// Every entry ever appended.
    pub(super) entries: BTreeMap<(TopicId, Position), Vec<u8>>,
}

pub(super) const CONFIG: LaneConfig = LaneConfig {
    chunk_bytes: 4096,
    max_entry: 10_000,
    budget_bytes: 1 << 20,
    cache_bytes: 20_000,
    pool_bytes: 0,
    in_flight: 2,
};

/// Makes the changes. At the end everything is durable.
pub(super) fn run(ops: &[LaneOp]) -> Run {
    let mut run = Run::new(LaneState::default(), 9, 1);
    for (n, op) in ops.iter().enumerate() {
        run.step(n as u64, op);
    }
    run.lane.cut();
    while !run.lane.is_idle() {
        run.write();
        run.lane.durable(u64::MAX);
    }
    run
}

impl Run {
    /// A lane that goes on from `state`.
    pub(super) fn new(state: LaneState, epoch: u64, next_seq: u64) -> Self {
        Self {
            lane: Lane::new(3, epoch, next_seq, CONFIG),
            state,
            chunks: BTreeMap::new(),
            checkpoints: Vec::new(),
            entries: BTreeMap::new(),
        }
    }

    pub(super) fn write(&mut self) {
        while let Some(chunk) = self.lane.next_write() {
            assert!(self.chunks.insert(chunk.seq(), chunk).is_none());
        }
    }

    pub(super) fn step(&mut self, n: u64, op: &LaneOp) {
        let Self {
            lane,
            state,
            entries,
            ..
        } = self;
        let ids: Vec<TopicId> = state.topics.keys().copied().collect();
        let id = |i: &Index| {
            if ids.is_empty() {
                None
            } else {
                Some(*i.get(&ids))
            }
        };
        match op {
            LaneOp::CreateTopic => {
                let topic = state.next_topic;
                let name = format!("persistent://public/default/t{topic}");
                lane.append(&Record::TopicCreated {
                    topic,
                    name: &name,
                    created_ms: n,
                })
                .unwrap();
                state.topics.insert(topic, TopicState::new(topic, &name, n));
                state.next_topic += 1;
            }
            LaneOp::DeleteTopic(t) => {
                let Some(topic) = id(t) else { return };
                lane.append(&Record::TopicDeleted { topic }).unwrap();
                state.topics.remove(&topic);
                entries.retain(|(t, _), _| *t != topic);
            }
            LaneOp::Tick => {
                lane.end_tick();
                self.write();
            }
            LaneOp::Durable => {
                self.write();
                let upto = self.lane.durable_seq() + 1;
                self.lane.durable(upto);
            }
            LaneOp::Checkpoint => {
                let seq = lane.cut();
                let bytes = checkpoint::encode(seq, state.next_topic, state.topics.values());
                self.checkpoints.push((seq, bytes));
            }
            LaneOp::Roll(t)
            | LaneOp::Publish(t, _)
            | LaneOp::Sequenced(t, ..)
            | LaneOp::Forget(t, _)
            | LaneOp::CreateCursor(t, _)
            | LaneOp::DeleteCursor(t, _)
            | LaneOp::Ack(t, ..)
            | LaneOp::Cumulative(t, ..)
            | LaneOp::Reset(t, ..)
            | LaneOp::Trim(t, _)
            | LaneOp::Terminate(t)
            | LaneOp::Property(t, ..) => {
                let Some(topic) = id(t) else { return };
                topic_step(lane, state.topics.get_mut(&topic).unwrap(), entries, n, op);
            }
        }
    }
}

fn topic_step(
    lane: &mut Lane,
    state: &mut TopicState,
    entries: &mut BTreeMap<(TopicId, Position), Vec<u8>>,
    n: u64,
    op: &LaneOp,
) {
    let topic = state.id;
    let all: Vec<Position> = state
        .ledgers
        .ledgers()
        .flat_map(|l| (0..l.entries).map(|e| Position::new(l.id, e)))
        .collect();
    let cursors: Vec<CursorId> = state.cursors.keys().copied().collect();
    let cursor = |c: &Index| {
        if cursors.is_empty() {
            None
        } else {
            Some(*c.get(&cursors))
        }
    };
    let entry = |at: &Index| {
        if all.is_empty() {
            None
        } else {
            Some(*at.get(&all))
        }
    };
    let roll = |lane: &mut Lane, state: &mut TopicState| {
        let ledger = lane.new_ledger().unwrap();
        lane.append(&Record::LedgerOpened {
            topic,
            ledger,
            opened_ms: n,
        })
        .unwrap();
        state.ledgers.open(ledger, n).unwrap();
    };
    match op {
        LaneOp::Roll(_) => roll(lane, state),
        LaneOp::Publish(_, len) => {
            if state.ledgers.current().is_none() {
                roll(lane, state);
            }
            let at = state.ledgers.next_position().unwrap();
            let data: Vec<u8> = (0..*len).map(|i| (u64::from(i) * 7 + n) as u8).collect();
            let place = lane
                .append_entry(topic, at.ledger, at.entry, &data)
                .unwrap();
            state
                .ledgers
                .push(at, u32::from(*len), place.seq, place.offset)
                .unwrap();
            entries.insert((topic, at), data);
        }
        LaneOp::Sequenced(_, name, len) => {
            if state.ledgers.current().is_none() {
                roll(lane, state);
            }
            let name = format!("p{name}");
            let producer = match state.sequences.find(&name) {
                Some(producer) => producer,
                None => {
                    let producer = state.sequences.next();
                    lane.append(&Record::SequenceOpened {
                        topic,
                        producer,
                        name: &name,
                    })
                    .unwrap();
                    state.sequences.open(topic, producer, &name, -1).unwrap();
                    producer
                }
            };
            let at = state.ledgers.next_position().unwrap();
            let data: Vec<u8> = (0..*len).map(|i| (u64::from(i) * 5 + n) as u8).collect();
            let place = lane
                .append_sequenced(topic, at, producer, n as i64, &data)
                .unwrap();
            let len = u32::from(*len);
            state
                .ledgers
                .push(at, len, place.seq, place.offset)
                .unwrap();
            state.sequences.store(topic, producer, n as i64).unwrap();
            entries.insert((topic, at), data);
        }
        LaneOp::Forget(_, p) => {
            let known: Vec<_> = state.sequences.iter().map(|(id, _)| id).collect();
            if known.is_empty() {
                return;
            }
            let producer = *p.get(&known);
            lane.append(&Record::SequenceClosed { topic, producer })
                .unwrap();
            state.sequences.close(producer);
        }
        LaneOp::CreateCursor(_, at) => {
            let mark_delete = entry(at).unwrap_or(Position::EARLIEST);
            let (cursor, name) = (state.next_cursor, format!("s{n}"));
            let properties = [("k", name.as_str())];
            let properties = if n.is_multiple_of(2) {
                &properties[..]
            } else {
                &[]
            };
            lane.append(&Record::CursorCreated {
                topic,
                cursor,
                name: &name,
                mark_delete,
                properties: properties.into(),
            })
            .unwrap();
            state
                .create_cursor(cursor, &name, mark_delete, properties)
                .unwrap();
        }
        LaneOp::DeleteCursor(_, c) => {
            let Some(cursor) = cursor(c) else { return };
            lane.append(&Record::CursorDeleted { topic, cursor })
                .unwrap();
            state.delete_cursor(cursor);
        }
        LaneOp::Ack(_, c, ids) => {
            let Some(cursor) = cursor(c) else { return };
            let ids: Vec<AckedId<'_>> = ids
                .iter()
                .filter_map(|(at, set, known)| {
                    let batch_size = (*known && !set.is_empty()).then_some(70);
                    Some(AckedId {
                        position: entry(at)?,
                        ack_set: set.as_slice().into(),
                        batch_size,
                    })
                })
                .collect();
            lane.append(&Record::Acked {
                topic,
                cursor,
                ids: List::Borrowed(&ids),
            })
            .unwrap();
            for id in &ids {
                state.ack(cursor, id).unwrap();
            }
        }
        LaneOp::Cumulative(_, c, at, set) => {
            let (Some(cursor), Some(to)) = (cursor(c), entry(at)) else {
                return;
            };
            if state.ack_cumulative(cursor, to, set).unwrap().is_ok() {
                lane.append(&Record::MarkDeleted {
                    topic,
                    cursor,
                    to,
                    ack_set: List::Borrowed(set),
                })
                .unwrap();
            }
        }
        LaneOp::Reset(_, c, at, set) => {
            let (Some(cursor), Some(next)) = (cursor(c), entry(at)) else {
                return;
            };
            let to = state.ledgers.prev(next);
            lane.append(&Record::CursorReset {
                topic,
                cursor,
                to,
                ack_set_of_next: List::Borrowed(set),
            })
            .unwrap();
            assert!(state.reset_cursor(cursor, to, set));
        }
        LaneOp::Trim(_, at) => {
            // Mostly what no cursor needs, sometimes more than that.
            let slowest = if n.is_multiple_of(4) {
                entry(at).unwrap_or(Position::EARLIEST)
            } else {
                state.slowest()
            };
            let Some(through_ledger) = state.ledgers.trimmable(slowest) else {
                return;
            };
            lane.append(&Record::Trimmed {
                topic,
                through_ledger,
            })
            .unwrap();
            state.trim(through_ledger);
        }
        LaneOp::Terminate(_) => {
            let at = state.ledgers.last().unwrap_or(Position::EARLIEST);
            lane.append(&Record::Terminated { topic, at }).unwrap();
            state.terminated = Some(at);
        }
        LaneOp::Property(_, key, value) => {
            let key = format!("p{key}");
            lane.append(&Record::TopicProperty {
                topic,
                key: &key,
                value,
            })
            .unwrap();
            state.set_property(&key, value);
        }
        _ => {}
    }
}
