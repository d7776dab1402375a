#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::super::chunk::PAGE;
use super::super::cache::SLOT_COST;
use super::super::testing::{CONFIG, lane_ops, run};
use super::*;

fn p(ledger: i64, entry: i64) -> Position {
    Position::new(ledger, entry)
}

/// Bytes that a durable chunk with one entry of `len` bytes takes, if it is small.
const fn durable(len: usize) -> usize {
    SLOT_COST + HEADER_LEN + FRAME_LEN + ENTRY_HEAD + len
}

/// Bytes that a block of one page takes.
const BLOCK: usize = 2 * PAGE;

/// A lane with one ledger 1 of topic 0.
struct One {
    lane: Lane,
    ledgers: Ledgers,
}

impl One {
    fn new(config: LaneConfig) -> Self {
        let mut ledgers = Ledgers::new();
        ledgers.open(1, 0).unwrap();
        Self {
            lane: Lane::new(0, 1, 1, config),
            ledgers,
        }
    }

    fn publish(&mut self, data: &[u8]) -> Appended {
        let at = self.ledgers.next_position().unwrap();
        let place = self
            .lane
            .append_entry(0, at.ledger, at.entry, data)
            .unwrap();
        self.ledgers
            .push(at, data.len() as u32, place.seq, place.offset)
            .unwrap();
        place
    }

    fn read(&mut self, entry: i64) -> Read {
        self.lane
            .read_entry(&self.ledgers, 0, p(1, entry), &mut ReadHint::default())
    }
}

#[test]
fn chunks_fill_while_the_disk_is_busy() {
    let mut one = One::new(CONFIG);
    assert!(one.lane.is_idle());
    one.lane.end_tick();
    assert!(one.lane.next_write().is_none());
    // The first two ticks go out at once, the third waits open.
    for tick in 1..=3 {
        assert_eq!(one.publish(b"x").seq, tick);
        one.lane.end_tick();
        assert_eq!(
            one.lane.next_write().map(|c| c.seq()),
            (tick < 3).then_some(tick)
        );
    }
    assert_eq!(one.publish(b"y").seq, 3);
    assert_eq!(
        (
            one.lane.open_seq(),
            one.lane.durable_seq(),
            one.lane.is_idle()
        ),
        (3, 0, false)
    );
    // Full chunks queue behind those in flight.
    while one.publish(&[0; 1000]).seq == 3 {}
    assert!(one.lane.next_write().is_none());
    one.lane.durable(1);
    assert_eq!(one.lane.next_write().unwrap().seq(), 3);
    // Durable never passes what was given out, nor goes back.
    one.lane.durable(99);
    assert_eq!(one.lane.durable_seq(), 3);
    one.lane.durable(1);
    assert_eq!(one.lane.durable_seq(), 3);
    one.lane.end_tick();
    let chunk = one.lane.next_write().unwrap();
    assert_eq!(
        (chunk.seq(), chunk.header().durable, chunk.header().epoch),
        (4, 3, 1)
    );
    one.lane.durable(4);
    assert!(one.lane.is_idle() && one.lane.unacked_bytes() == 0);
}

#[test]
fn budget() {
    let mut one = One::new(LaneConfig {
        budget_bytes: 3 * 4096,
        ..CONFIG
    });
    while !one.lane.is_full() {
        one.publish(&[1; 900]);
    }
    assert!((3 * 4096..5 * 4096).contains(&one.lane.unacked_bytes()));
    // Acks always go on.
    assert!(one.lane.append(&Record::TopicDeleted { topic: 0 }).is_ok());
    one.lane.cut();
    while one.lane.next_write().is_some() {
        one.lane.durable(u64::MAX);
    }
    assert!(!one.lane.is_full() && one.lane.is_idle());
}

#[test]
fn large_entries_stand_alone_and_too_large_ones_are_refused() {
    let mut one = One::new(CONFIG);
    one.publish(b"a");
    let big = vec![7; 10_000];
    assert_eq!(one.publish(&big).seq, 2);
    // What is left of its last page is used.
    assert_eq!(one.publish(b"b").seq, 2);
    assert_eq!(one.publish(&[0; 3000]).seq, 3);
    let error = one.lane.append_entry(0, 1, 4, &[0; 10_001]).unwrap_err();
    assert_eq!((error.bytes, error.max), (10_022, 10_021));
    assert_eq!(one.lane.append_entry(0, 1, 4, b"c").unwrap().seq, 3);
    one.lane.cut();
    assert_eq!(one.read(1), Read::Entry(big.into()));
    assert_eq!(one.read(2), Read::Entry(Bytes::from_static(b"b")));
}

#[test]
fn ledger_ids_rise_and_end() {
    let mut lane = Lane::new(0, 5, 1, CONFIG);
    assert_eq!(lane.new_ledger(), Ok(5 << 24));
    assert_eq!(lane.new_ledger(), Ok((5 << 24) + 1));
    lane.roll = 1 << 24;
    assert_eq!(lane.new_ledger(), Err(Full { epoch: 5 }));
    assert!(Lane::new(0, 6, 1, CONFIG).new_ledger().unwrap() > (5 << 24 | 0xff_ffff));
    assert!(Lane::new(0, 1 << 39, 1, CONFIG).new_ledger().is_err());
    assert!(Lane::new(0, (1 << 39) - 1, 1, CONFIG).new_ledger().unwrap() > 0);
}

#[test]
fn checkpoints_reset_the_count() {
    let mut one = One::new(CONFIG);
    one.publish(b"a");
    assert_eq!(one.lane.bytes_since_checkpoint(), 64 + 8 + 21 + 1);
    let cut = one.lane.cut();
    assert_eq!((cut, one.lane.bytes_since_checkpoint()), (1, 4096));
    one.publish(b"b");
    one.lane.cut();
    one.lane.checkpoint_done(cut);
    assert_eq!(one.lane.bytes_since_checkpoint(), 4096);
    one.lane.checkpoint_done(99);
    assert_eq!(one.lane.bytes_since_checkpoint(), 0);
}

#[test]
fn reads_are_bounded_and_failures_told_apart() {
    let mut one = One::new(LaneConfig {
        cache_bytes: 0,
        ..CONFIG
    });
    let mut chunks = Vec::new();
    for n in 0..40u8 {
        one.publish(&[n]);
        assert_eq!(
            one.read(i64::from(n)),
            Read::Miss,
            "an open chunk is no reading matter"
        );
        one.lane.end_tick();
        chunks.push(one.lane.next_write().unwrap());
        one.lane.durable(u64::MAX);
    }
    assert!(one.lane.take_reads().is_empty());
    for entry in 0..39 {
        assert_eq!(one.read(entry), Read::Miss);
        assert_eq!(one.read(entry), Read::Miss);
    }
    assert!(one.lane.has_reads());
    let reads = one.lane.take_reads();
    assert_eq!(reads, (1..=32).collect::<Vec<_>>());
    assert!(one.lane.take_reads().is_empty() && !one.lane.has_reads());
    let corrupt = WalError::Corrupt {
        file: PathBuf::new(),
        offset: 0,
        seq: 1,
        what: String::new(),
    };
    one.lane.loaded(1, Err(corrupt));
    one.lane.loaded(2, Err(WalError::Trimmed));
    one.lane.loaded(3, Err(WalError::Backpressure));
    one.lane.loaded(4, Ok(chunks[4].clone()));
    one.lane.loaded(5, Ok(chunks[4].clone()));
    assert_eq!(
        (one.read(0), one.read(1), one.read(2)),
        (Read::Corrupt, Read::Gone, Read::Miss)
    );
    assert_eq!(
        (one.read(3), one.read(4)),
        (Read::Corrupt, Read::Entry(Bytes::from_static(&[4])))
    );
    assert_eq!(one.lane.take_reads(), [33, 34, 35, 36, 37]);
    for seq in 6..=37 {
        one.lane.loaded(seq, Ok(chunks[seq as usize - 1].clone()));
        // However small the cache, whoever is served right away gets what it asked for.
        assert_eq!(
            one.read(seq as i64 - 1),
            Read::Entry(Bytes::copy_from_slice(&[seq as u8 - 1]))
        );
        assert!(one.lane.cache().len() <= 2);
    }
    assert_eq!(one.read(40), Read::Gone);
    // A chunk that does not hold what the index says.
    one.ledgers.push(p(1, 40), 1, 38, 64).unwrap();
    one.lane.loaded(38, Ok(chunks[37].clone()));
    assert_eq!(one.read(40), Read::Corrupt);
    one.lane.loaded(39, Ok(chunks[38].clone()));
    one.ledgers.push(p(1, 41), 1, 39, u32::MAX).unwrap();
    assert_eq!(one.read(41), Read::Corrupt);
}

#[test]
fn unacked_chunks_are_pinned_and_the_rest_is_bounded() {
    let mut one = One::new(LaneConfig {
        cache_bytes: 3 * durable(2000),
        in_flight: 100,
        ..CONFIG
    });
    for n in 0..50u8 {
        one.publish(&[n; 2000]);
    }
    one.lane.cut();
    for n in 0..50u8 {
        assert_eq!(one.read(n.into()), Read::Entry(vec![n; 2000].into()));
    }
    assert!(one.lane.cache().len() >= 25 && one.lane.cache().bytes() >= 50 * 2000);
    while one.lane.next_write().is_some() {}
    one.lane.durable(u64::MAX);
    assert_eq!(
        (one.lane.cache().len(), one.lane.cache().bytes()),
        (3, 3 * durable(2000))
    );
    assert_eq!(one.read(49), Read::Entry(vec![49; 2000].into()));
    assert_eq!(one.read(0), Read::Miss);
}

#[test]
fn a_cache_gives_way_and_what_it_gave_up_is_read_again() {
    let mut one = One::new(LaneConfig {
        cache_bytes: 1 << 20,
        in_flight: 100,
        ..CONFIG
    });
    let mut chunks = Vec::new();
    for n in 0..10u8 {
        one.publish(&[n; 3500]);
        one.lane.cut();
        chunks.extend(one.lane.next_write());
    }
    assert_eq!(one.lane.spare_bytes(), 0, "nothing of it is durable");
    assert_eq!(one.lane.shrink(usize::MAX), 0);
    for n in 0..10 {
        assert!(matches!(one.read(n), Read::Entry(_)), "and so it stays");
    }
    one.lane.durable(8);
    assert_eq!(one.lane.spare_bytes(), 8 * durable(3500));
    one.lane.shrink(1);
    assert!(matches!(one.read(0), Read::Miss), "the oldest goes first");
    assert_eq!(one.lane.spare_bytes(), 7 * durable(3500));
    assert!(matches!(one.read(1), Read::Entry(_)));
    one.lane.shrink(2 * durable(3500));
    assert!(
        matches!(one.read(1), Read::Entry(_)),
        "what was read goes last"
    );
    assert!(matches!(one.read(2), Read::Miss) && matches!(one.read(3), Read::Miss));
    assert_eq!(one.lane.shrink(usize::MAX), 5 * durable(3500));
    assert_eq!((one.lane.spare_bytes(), one.lane.cache().len()), (0, 2));
    assert!(matches!(one.read(9), Read::Entry(_)), "not durable yet");
    one.lane.loaded(1, Ok(chunks[0].clone()));
    assert_eq!(one.read(0), Read::Entry(vec![0; 3500].into()));
}

#[test]
fn small_durable_chunks_take_what_they_hold_and_idle_memory_counts() {
    let mut one = One::new(LaneConfig {
        pool_bytes: 3 * BLOCK,
        cache_bytes: 1 << 20,
        ..CONFIG
    });
    for n in 0..100u8 {
        one.publish(&[n; 50]);
        one.lane.cut();
        assert!(one.lane.next_write().is_some());
        assert!(one.lane.unacked_bytes() >= BLOCK);
        one.lane.durable(u64::MAX);
    }
    let cached = one.lane.cache().durable_bytes();
    assert!(cached < 100 * (200 + SLOT_COST), "{cached}");
    for n in 0..100u8 {
        assert_eq!(one.read(n.into()), Read::Entry(vec![n; 50].into()));
    }
    let idle = one.lane.spare_bytes() - cached;
    assert!((BLOCK..=3 * BLOCK).contains(&idle), "{idle}");
    one.lane.shrink(1);
    assert!(one.lane.spare_bytes() < cached + idle);
    assert_eq!(
        one.lane.cache().durable_bytes(),
        cached,
        "idle memory first"
    );
}

/// Chunks of one small entry each take more room in the cache's books than they hold: that counts, and goes with them.
#[test]
fn the_places_of_small_chunks_count() {
    const LIMIT: usize = 1 << 20;
    let mut one = One::new(LaneConfig {
        cache_bytes: LIMIT,
        ..CONFIG
    });
    for n in 0..20_000u32 {
        one.publish(&n.to_le_bytes());
        one.lane.cut();
        assert!(one.lane.next_write().is_some());
        one.lane.durable(u64::MAX);
    }
    let cache = one.lane.cache();
    assert!(cache.durable_bytes() <= LIMIT && cache.len() > 1000);
    let held = cache.len() * 100 + cache.table_bytes();
    assert!(held < LIMIT, "{} chunks take {held} bytes", cache.len());
    one.lane.shrink(usize::MAX);
    let (left, table) = (one.lane.cache().len(), one.lane.cache().table_bytes());
    assert!(left <= 1 && table < 300_000, "{left} chunks, {table} bytes");
}

/// A chunk of many topics is indexed instead of walked for each of them; in order, at random, and with other records between.
#[test]
fn shared_chunks() {
    const TOPICS: u32 = 300;
    let mut lane = Lane::new(0, 1, 1, LaneConfig::default());
    let mut topics: Vec<Ledgers> = (0..TOPICS).map(|_| Ledgers::new()).collect();
    topics.iter_mut().for_each(|t| t.open(7, 0).unwrap());
    for entry in 0..20 {
        for topic in 0..TOPICS {
            let place = lane
                .append_entry(topic, 7, entry, &topic.to_le_bytes())
                .unwrap();
            topics[topic as usize]
                .push(p(7, entry), 4, place.seq, place.offset)
                .unwrap();
        }
        lane.append(&Record::TopicDeleted { topic: 999 }).unwrap();
    }
    lane.cut();
    let before = lane.cache().bytes();
    for topic in (0..TOPICS).rev() {
        let mut hint = ReadHint::default();
        for entry in 0..20 {
            let read = lane.read_entry(&topics[topic as usize], topic, p(7, entry), &mut hint);
            assert_eq!(
                read,
                Read::Entry(Bytes::copy_from_slice(&topic.to_le_bytes()))
            );
        }
        let read = lane.read_entry(&topics[topic as usize], topic, p(7, 3), &mut hint);
        assert_eq!(
            read,
            Read::Entry(Bytes::copy_from_slice(&topic.to_le_bytes()))
        );
    }
    // The index counts.
    assert!(lane.cache().bytes() >= before + 20 * TOPICS as usize * 24);
}

proptest! {
    /// Every entry reads back as it was appended: in order through a hint, at random, from memory and from the log.
    #[test]
    fn reads_give_what_was_appended(ops in lane_ops(200), picks in vec(any::<Index>(), 0..60), readers in 1usize..4) {
        let mut run = run(&ops);
        let mut loads = 0;
        let lane = &mut run.lane;
        let mut read = |ledgers: &Ledgers, topic, at, hint: &mut ReadHint| loop {
            match lane.read_entry(ledgers, topic, at, hint) {
                Read::Miss => {
                    let reads = lane.take_reads();
                    assert_eq!(reads.len(), 1, "one miss wants one chunk");
                    loads += 1;
                    let parsed = Chunk::parse(run.chunks[&reads[0]].bytes().clone()).unwrap();
                    lane.loaded(reads[0], Ok(parsed.chunk));
                }
                Read::Entry(data) => return Some(data),
                Read::Gone => return None,
                Read::Corrupt => panic!("{topic} {at}"),
            }
        };
        let mut existing = Vec::new();
        for topic in run.state.topics.values() {
            let mut hint = ReadHint::default();
            let mut at = Position::EARLIEST;
            while let Some(next) = topic.ledgers.next(at) {
                let data = read(&topic.ledgers, topic.id, next, &mut hint);
                prop_assert_eq!(data.as_deref(), Some(&run.entries[&(topic.id, next)][..]));
                existing.push((topic.id, next));
                at = next;
            }
        }
        // Readers that jump about, each with one hint for all topics.
        let mut hints = vec![ReadHint::default(); readers];
        for (n, pick) in picks.iter().enumerate() {
            if existing.is_empty() {
                break;
            }
            let (topic, at) = *pick.get(&existing);
            let data = read(&run.state.topics[&topic].ledgers, topic, at, &mut hints[n % readers]);
            prop_assert_eq!(data.as_deref(), Some(&run.entries[&(topic, at)][..]));
        }
        // What was trimmed or never was is gone.
        for (topic, at) in run.entries.keys().filter(|key| !existing.contains(key)) {
            let data = read(&run.state.topics[topic].ledgers, *topic, *at, &mut ReadHint::default());
            prop_assert_eq!(data, None);
        }
    }
}
