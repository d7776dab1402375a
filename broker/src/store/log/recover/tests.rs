#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::super::chunk::{BufferPool, ChunkBuilder, PAGE};
use super::super::super::memory::{Kept, MemoryOptions, MemoryWal};
use super::super::super::wal::{Wal, WalEvent};
use super::super::testing::{LaneOp, Run, lane_ops, run};
use super::super::{Position, Read, ReadHint, TopicState};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Replaying the log, from its beginning or from any checkpoint, gives the state the broker had.
    #[test]
    fn replay_is_the_live_state(ops in lane_ops(250)) {
        let run = run(&ops);
        let last = run.chunks.keys().next_back().copied().unwrap_or(0);
        let chunks = |from: u64, to: u64| {
            let within = move |seq: &&u64| (from..=to).contains(*seq);
            run.chunks.keys().filter(within).map(|seq| Ok(run.chunks[seq].clone()))
        };
        prop_assert_eq!(recover(None, chunks(1, last)), Ok((run.state.clone(), last)));
        for (seq, bytes) in &run.checkpoints {
            let (covered, then) = checkpoint::decode(bytes).unwrap();
            prop_assert_eq!(covered, *seq);
            prop_assert_eq!(&recover(None, chunks(1, *seq)), &Ok((then, *seq)));
            prop_assert_eq!(&recover(Some(bytes), chunks(seq + 1, last)), &Ok((run.state.clone(), last)));
            prop_assert_eq!(&recover(Some(bytes), chunks(1, last)), &Ok((run.state.clone(), last)));
            if *seq + 2 <= last {
                let gap = Err(RecoverError::Gap { expected: seq + 1, found: seq + 2 });
                prop_assert_eq!(&recover(Some(bytes), chunks(seq + 2, last)), &gap);
            }
        }
    }

    /// What comes back from a parse of the written bytes replays to the same state.
    #[test]
    fn replay_from_the_disk(ops in lane_ops(60)) {
        let run = run(&ops);
        let parsed = run.chunks.values().map(|chunk| Ok(Chunk::parse(chunk.bytes().clone()).unwrap().chunk));
        let (state, _) = recover(None, parsed).unwrap();
        prop_assert_eq!(state, run.state);
    }

    /// Records that are intact but wrong stop recovery or change the state; they never panic.
    #[test]
    fn wrong_records(ops in lane_ops(60), hits in vec((any::<Index>(), any::<Index>(), any::<u8>()), 1..6)) {
        let run = run(&ops);
        let mut bodies: Vec<Vec<u8>> = Vec::new();
        for chunk in run.chunks.values() {
            bodies.extend(chunk.records().map(|(_, body)| chunk.bytes()[body].to_vec()));
        }
        if bodies.is_empty() {
            return Ok(());
        }
        for (record, at, byte) in hits {
            let n = bodies.len();
            let body = &mut bodies[record.index(n)];
            // Hit the head, where it matters.
            let n = body.len().min(40);
            body[at.index(n)] = byte;
        }
        let mut builder = ChunkBuilder::new(&BufferPool::new(1, 0), 1 << 20);
        for body in &bodies {
            builder.append(&[body]).unwrap();
        }
        let result = recover(None, [Ok(builder.seal(1, 0, 1, 0))]);
        if let Ok((state, seq)) = result {
            let bytes = checkpoint::encode(seq, state.next_topic, state.topics.values());
            prop_assert_eq!(checkpoint::decode(&bytes), Ok((seq, state)));
        }
    }
}

#[test]
fn failures_are_named() {
    assert_eq!(recover(None, []), Ok((LaneState::default(), 0)));
    let bytes = checkpoint::encode(4, 0, []);
    assert_eq!(recover(Some(&bytes), []), Ok((LaneState::default(), 4)));
    assert!(matches!(
        recover(Some(&bytes[1..]), []),
        Err(RecoverError::Checkpoint(_))
    ));
    assert_eq!(
        recover(None, [Err(WalError::Closed)]),
        Err(RecoverError::Log(WalError::Closed))
    );
    let chunk = |seq, bodies: &[&[u8]]| {
        let mut builder = ChunkBuilder::new(&BufferPool::new(1, 0), 4096);
        for body in bodies {
            builder.append(&[body]).unwrap();
        }
        builder.seal(1, 0, seq, 0)
    };
    assert_eq!(
        recover(None, [Ok(chunk(2, &[]))]),
        Err(RecoverError::Gap {
            expected: 1,
            found: 2
        })
    );
    // Covered chunks may have holes.
    assert_eq!(
        recover(Some(&bytes), [1, 3, 5].map(|seq| Ok(chunk(seq, &[]))))
            .unwrap()
            .1,
        5
    );
    let error = recover(
        None,
        [Ok(chunk(1, &[&Record::TopicDeleted { topic: 2 }.to_vec()]))],
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "chunk 1 of the log, byte 64: topic number 2 is out of order (the next new topic is 0). \
         Move the data directory away and restore a backup of it, or start with an empty one",
    );
    let error = recover(None, [Ok(chunk(1, &[&[99]]))]).unwrap_err();
    assert!(error.to_string().contains("kind 99"), "{error}");
    let topic = TopicState::new(0, "t", 0);
    let bytes = checkpoint::encode(1, 1, [&topic]);
    let entry = Record::Entry {
        topic: 0,
        ledger: 5,
        entry: 0,
        data: b"",
    }
    .to_vec();
    let Err(RecoverError::Damage {
        seq: 2,
        offset: 64,
        damage,
    }) = recover(Some(&bytes), [Ok(chunk(2, &[&entry]))])
    else {
        panic!("an entry without a ledger was taken")
    };
    assert_eq!(
        damage,
        Damage::EntryOrder {
            entry: Position::new(5, 0),
            expected: None
        }
    );
}

/// A lane's changes written to a log that can crash.
struct Life {
    run: Run,
    wal: MemoryWal,
    events: Vec<WalEvent>,
}

impl Life {
    fn live(&mut self, ops: &[LaneOp]) {
        for (n, op) in ops.iter().enumerate() {
            match op {
                LaneOp::Durable => {
                    self.run.write();
                    self.submit();
                    self.complete();
                }
                other => self.run.step(n as u64, other),
            }
            self.submit();
        }
    }

    fn submit(&mut self) {
        while let Some(chunk) = self.run.chunks.get(&self.wal.next_seq()) {
            self.wal.submit(chunk.clone()).unwrap();
        }
    }

    fn complete(&mut self) {
        self.wal.complete_one();
        let acked = self.wal.acked();
        self.run.lane.durable(acked);
        while let Some((seq, _)) = self.run.checkpoints.first()
            && *seq <= acked
        {
            let (seq, data) = self.run.checkpoints.remove(0);
            self.wal.put_checkpoint(0, seq, data.into()).unwrap();
            assert!(self.wal.complete_checkpoint());
            self.run.lane.checkpoint_done(seq);
        }
        self.wal.poll(&mut self.events);
        self.events.clear();
    }

    fn finish(&mut self) {
        self.run.lane.cut();
        while !self.run.lane.is_idle() {
            self.run.write();
            self.submit();
            self.complete();
        }
    }

    /// Every entry there is, read through the lane from the log.
    fn read_all(&mut self) {
        let Self { run, wal, events } = self;
        for topic in run.state.topics.values() {
            let (mut at, mut hint) = (Position::EARLIEST, ReadHint::default());
            while let Some(next) = topic.ledgers.next(at) {
                match run
                    .lane
                    .read_entry(&topic.ledgers, topic.id, next, &mut hint)
                {
                    Read::Entry(data) => {
                        assert_eq!(&data[..], &run.entries[&(topic.id, next)][..], "{next}");
                        at = next;
                    }
                    Read::Miss => {
                        for seq in run.lane.take_reads() {
                            wal.read(0, seq).unwrap();
                        }
                        assert!(wal.complete_read());
                        wal.poll(events);
                        for event in events.drain(..) {
                            if let WalEvent::Read { seq, result, .. } = event {
                                run.lane.loaded(seq, result);
                            }
                        }
                    }
                    other => panic!("{next}: {other:?}"),
                }
            }
        }
    }
}

fn kept() -> impl Strategy<Value = Kept> {
    prop_oneof![
        Just(Kept::Nothing),
        Just(Kept::All),
        (0usize..3).prop_map(|pages| Kept::Prefix(pages * PAGE))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Lives that end in a crash: each begins with everything that was durable, from whatever checkpoint there was.
    #[test]
    fn crashes(lives in vec((lane_ops(120), vec(kept(), 2)), 1..4), last in lane_ops(60)) {
        let wal = MemoryWal::new(3, 1, MemoryOptions::default(), None);
        let mut life = Life { run: Run::new(LaneState::default(), 1, 1), wal, events: Vec::new() };
        for (epoch, (ops, kept)) in (2..).zip(&lives) {
            life.live(ops);
            let acked = life.wal.acked();
            let mut kept = kept.iter();
            let disk = life.wal.crash(|_| *kept.next().unwrap());
            let (_, mut again) = disk.clone().reopen(epoch, None).unwrap();
            let replayed = recover(None, again.chunks(1)).unwrap();
            let (wal, mut recovery) = disk.reopen(epoch, None).unwrap();
            let (state, last_seq) = recover_lane(&mut recovery).unwrap();
            prop_assert_eq!((&state, last_seq), (&replayed.0, replayed.1));
            prop_assert!(last_seq >= acked);
            // What the topics held in durable chunks and still hold live is there.
            let live = &life.run.state;
            for topic in live.topics.values() {
                for at in life.run.entries.keys().filter(|key| key.0 == topic.id).map(|key| key.1) {
                    if topic.ledgers.locate(at).is_some_and(|place| place.seq <= acked) {
                        prop_assert!(state.topics[&topic.id].ledgers.contains(at));
                    }
                }
            }
            let mut run = Run::new(state, epoch, wal.next_seq());
            run.entries = std::mem::take(&mut life.run.entries);
            // Deleted live, but the deletion was lost: not of interest here.
            run.state.topics.retain(|id, _| live.topics.contains_key(id));
            life = Life { run, wal, events: Vec::new() };
            life.read_all();
            // The log must agree that they are gone.
            for topic in replayed.0.topics.keys().filter(|id| !life.run.state.topics.contains_key(id)) {
                life.run.lane.append(&Record::TopicDeleted { topic: *topic }).unwrap();
            }
        }
        life.live(&last);
        life.finish();
        life.read_all();
        let (_, mut recovery) = life.wal.crash(|_| Kept::Nothing).reopen(99, None).unwrap();
        prop_assert_eq!(recover_lane(&mut recovery).unwrap().0, life.run.state);
    }
}
