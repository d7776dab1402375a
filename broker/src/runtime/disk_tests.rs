#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::engine::{self, EngineConfig, Metadata, ServiceAddress};
use crate::store::chunk::{BufferPool, ChunkBuilder};
use crate::store::memory::{MemoryOptions, MemoryWal};
use crate::store::meta::MemoryMeta;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const NOW: Now = Now { ms: 1, wall_ms: 1 };
const EPOCH: u64 = 3;
const LANE: u32 = 0;
/// For what another thread does sooner or later.
const LIMIT: Duration = Duration::from_secs(60);

/// An engine without topics: it takes outcomes and wants nothing by itself.
fn engine() -> Engine {
    let config = EngineConfig {
        core: 0,
        cores: 1,
        shards: 1,
        settings: Arc::new(engine::Settings::default()),
        service: ServiceAddress::default(),
        log_budget: 1 << 20,
        rates: Arc::new(crate::runtime::RateTable::default()),
    };
    Engine::new(config, Vec::new(), Metadata::default())
}

fn chunk(seq: u64) -> Chunk {
    let pool = BufferPool::new(EPOCH, 1 << 20);
    let mut builder = ChunkBuilder::new(&pool, 8192);
    builder.append(&[&seq.to_le_bytes()]).unwrap();
    builder.seal(EPOCH, LANE, seq, seq - 1)
}

/// A disk whose log takes one page at a time, and the handle that completes its work.
fn disk() -> (Disk<MemoryWal>, MemoryWal, Engine) {
    let options = MemoryOptions {
        unacked_bytes_max: 4096,
        reads_max: 1,
        ..MemoryOptions::default()
    };
    let wal = MemoryWal::new(LANE, EPOCH, options, None);
    let (_, mut meta) = meta_ends(1);
    let disk = Disk::new(vec![LaneIo::new(wal.clone())], meta.remove(0));
    (disk, wal, engine())
}

fn meta_ends(cores: usize) -> (Vec<Arc<AtomicUsize>>, Vec<MetaEnd>) {
    let counts: Vec<Arc<AtomicUsize>> = (0..cores).map(|_| Arc::default()).collect();
    let wakes: Vec<Wake> = counts
        .iter()
        .map(|count| {
            let count = Arc::clone(count);
            Arc::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            }) as Wake
        })
        .collect();
    let service = MetaService::spawn(Box::new(MemoryMeta::default()), 16).unwrap();
    let dynamic = Dynamic::new(config::Settings::default(), BTreeMap::new());
    (
        counts,
        SharedMeta::share(service, Arc::new(dynamic), &wakes).1,
    )
}

#[test]
fn what_the_log_cannot_take_yet_waits_in_order() {
    let (mut disk, wal, mut engine) = disk();
    for seq in 1..=4 {
        engine.effects().writes.push((LANE, chunk(seq)));
    }
    assert!(disk.carry_out(&mut engine, NOW));
    assert_eq!(wal.pending_writes(), [1]);
    assert!(!disk.is_idle());
    for seq in 2..=4 {
        assert!(wal.complete_one());
        assert!(disk.poll(&mut engine, NOW));
        assert_eq!(wal.pending_writes(), [seq]);
    }
    wal.complete_all();
    assert!(disk.poll(&mut engine, NOW));
    assert!(disk.is_idle());
    assert!(!disk.poll(&mut engine, NOW), "nothing is told twice");
}

#[test]
fn a_checkpoint_waits_for_the_chunks_that_it_covers() {
    let (mut disk, wal, mut engine) = disk();
    engine.effects().writes.push((LANE, chunk(1)));
    let data = Bytes::from_static(b"index");
    engine.effects().checkpoints.push((LANE, 1, data));
    disk.carry_out(&mut engine, NOW);
    assert!(!wal.complete_checkpoint(), "too early");
    wal.complete_all();
    disk.poll(&mut engine, NOW);
    assert!(!disk.is_idle());
    assert!(wal.complete_checkpoint());
    disk.poll(&mut engine, NOW);
    assert!(disk.is_idle());
}

#[test]
fn more_reads_than_the_log_takes_are_all_answered() {
    let (mut disk, wal, mut engine) = disk();
    for seq in 1..=3 {
        engine.effects().writes.push((LANE, chunk(seq)));
        disk.carry_out(&mut engine, NOW);
        wal.complete_all();
        disk.poll(&mut engine, NOW);
    }
    for seq in 1..=3 {
        engine.effects().reads.push((LANE, seq));
    }
    disk.carry_out(&mut engine, NOW);
    for _ in 0..3 {
        assert!(wal.complete_read());
        assert!(disk.poll(&mut engine, NOW));
    }
    assert!(!wal.complete_read());
}

#[test]
fn after_the_end_nothing_is_carried_out() {
    let (mut disk, wal, mut engine) = disk();
    disk.close();
    engine.effects().writes.push((LANE, chunk(1)));
    assert!(!disk.carry_out(&mut engine, NOW));
    assert!(engine.effects().writes.is_empty());
    assert!(wal.pending_writes().is_empty());
}

fn eventually(mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_core_hears_of_a_change_and_the_asking_one_of_the_outcome() {
    let (wakes, mut ends) = meta_ends(2);
    let mut engine = engine();
    let request = |token, expected| MetadataRequest {
        token,
        key: "partitioned/persistent/public/default/t".to_owned(),
        value: Some(Bytes::from_static(b"3")),
        expected,
    };
    ends[0].request(request(1, Some(0)), &mut engine, NOW);
    // Fails, for the key is there now: nobody else hears of that.
    ends[0].request(request(2, Some(0)), &mut engine, NOW);
    eventually(|| ends[0].answers.len() == 2);
    let answers: Vec<_> = ends[0].answers.try_iter().collect();
    assert_eq!(answers, [(1, Ok(true)), (2, Ok(false))]);
    for end in &ends {
        let changes: Vec<_> = end.changes.try_iter().collect();
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].value.as_deref(), Some(&b"3"[..]));
    }
    // A wake follows what it is for.
    eventually(|| wakes[0].load(Ordering::SeqCst) >= 2);
    eventually(|| wakes[1].load(Ordering::SeqCst) == 1);
}

/// A shared store, both its ends, and where answers to [`SharedMeta::request`] go.
fn shared() -> (Arc<SharedMeta>, Vec<MetaEnd>, Arc<Dynamic>) {
    let service = MetaService::spawn(Box::new(MemoryMeta::default()), 16).unwrap();
    let dynamic = Arc::new(Dynamic::new(config::Settings::default(), BTreeMap::new()));
    let wakes: [Wake; 2] = [Arc::new(|| ()), Arc::new(|| ())];
    let (shared, ends) = SharedMeta::share(service, Arc::clone(&dynamic), &wakes);
    (shared, ends, dynamic)
}

fn put(key: &str, value: &'static [u8], expected: Option<u64>) -> MetaRequest {
    MetaRequest::Put {
        key: key.to_owned(),
        value: Bytes::from_static(value),
        expected,
    }
}

#[test]
fn a_change_from_outside_is_answered_when_every_core_goes_by_it() {
    let (shared, mut ends, dynamic) = shared();
    let (answer, answers) = bounded(16);
    let ask = |request| {
        let answer = answer.clone();
        shared.request(
            request,
            Box::new(move |result| answer.send(result).unwrap()),
        );
    };
    ask(put("config/maxConsumerMetadataSize", b"7", None));
    eventually(|| ends.iter().all(|end| end.changes.len() == 1));
    assert_eq!(dynamic.engine().max_consumer_metadata_size, 7);
    let mut engine = engine();
    assert!(ends[0].poll(&mut engine, NOW));
    assert!(answers.is_empty());
    assert!(ends[1].poll(&mut engine, NOW));
    let first = answers.recv_timeout(LIMIT).unwrap();
    assert!(matches!(first, Ok(MetaReply::Version(_))));

    // A core that has ended is waited for no longer.
    ask(put("config/maxConsumerMetadataSize", b"8", None));
    eventually(|| ends.iter().all(|end| end.changes.len() == 1));
    ends[0].poll(&mut engine, NOW);
    ends.pop();
    assert!(answers.recv_timeout(LIMIT).unwrap().is_ok());

    // What fails, and what is only read, concerns no core.
    ask(put("config/maxConsumerMetadataSize", b"9", Some(0)));
    let refused = answers.recv_timeout(LIMIT).unwrap();
    assert!(matches!(refused, Err(MetaError::Conflict { .. })));
    ask(MetaRequest::Get {
        key: "config/maxConsumerMetadataSize".to_owned(),
    });
    let read = answers.recv_timeout(LIMIT).unwrap();
    assert!(matches!(read, Ok(MetaReply::Value(Some(found))) if found.value.as_ref() == b"8"));
    assert_eq!(dynamic.engine().max_consumer_metadata_size, 8);
    assert!(ends[0].changes.is_empty());
}

#[test]
fn requests_beyond_the_bound_are_refused_at_once() {
    let (_, mut ends) = meta_ends(1);
    let mut engine = engine();
    ends[0].under_way = ANSWERS;
    let request = MetadataRequest {
        token: 1,
        key: "k".to_owned(),
        value: None,
        expected: None,
    };
    ends[0].request(request, &mut engine, NOW);
    assert_eq!(ends[0].under_way, ANSWERS);
    assert!(ends[0].answers.is_empty());
}
