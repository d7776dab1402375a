#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use super::*;
use crate::store::chunk::{FRAME_LEN, HEADER_LEN};
use crate::store::wal::Wal;

fn chunk(wal: &MemoryWal, bodies: &[&[u8]]) -> Chunk {
    let mut builder = ChunkBuilder::new(&BufferPool::new(wal.epoch(), 0), 1 << 20);
    for body in bodies {
        builder.append(&[body]).unwrap();
    }
    builder.seal(wal.epoch(), wal.lane(), wal.next_seq(), wal.acked())
}

fn put(wal: &mut MemoryWal, bodies: &[&[u8]]) {
    wal.submit(chunk(wal, bodies)).unwrap();
}

fn wal(options: MemoryOptions) -> MemoryWal {
    MemoryWal::new(0, 1, options, None)
}

fn events(wal: &mut MemoryWal) -> Vec<String> {
    let mut events = Vec::new();
    wal.poll(&mut events);
    events.iter().map(|e| format!("{e:?}")).collect()
}

#[test]
fn nothing_is_acknowledged_across_a_gap() {
    let mut w = wal(MemoryOptions::default());
    put(&mut w, &[b"a"]);
    put(&mut w, &[b"b"]);
    put(&mut w, &[b"c"]);
    w.complete_at(1);
    assert_eq!((w.acked(), events(&mut w).len()), (0, 0));
    w.complete_one();
    assert_eq!(events(&mut w), ["Durable { upto: 2 }"]);
    w.complete_one();
    assert_eq!(w.acked(), 3);
}

#[test]
fn numbers_and_bounds_are_enforced() {
    let mut w = wal(MemoryOptions {
        unacked_bytes_max: 8192,
        reads_max: 1,
        segment_bytes: 8192,
    });
    let first = chunk(&w, &[b"a"]);
    w.submit(first.clone()).unwrap();
    assert_eq!(w.submit(first), Err(WalError::Exists));
    let mut later = ChunkBuilder::new(&BufferPool::new(1, 0), 1 << 20);
    later.append(&[b"z"]);
    assert_eq!(w.submit(later.seal(1, 0, 9, 0)), Err(WalError::Absent));
    let big = chunk(&w, &[&[0; 8192]]);
    assert_eq!(
        w.submit(big),
        Err(WalError::TooLarge {
            bytes: 12288,
            max: 8192
        })
    );
    put(&mut w, &[b"b"]);
    assert_eq!(w.room(), 0);
    assert_eq!(w.submit(chunk(&w, &[b"c"])), Err(WalError::Backpressure));
    assert_eq!(w.read(1, 1), Err(WalError::Absent));
    w.complete_all();
    w.read(1, 1).unwrap();
    assert_eq!(w.read(2, 2), Err(WalError::Backpressure));
}

#[test]
fn a_crash_keeps_what_was_acknowledged_and_cuts_the_rest_at_a_record() {
    let mut w = wal(MemoryOptions::default());
    put(&mut w, &[b"a"]);
    w.complete_all();
    put(&mut w, &[&[1; 3000], &[2; 3000]]);
    put(&mut w, &[b"c"]);
    w.complete_at(1);
    let disk = w.crash(|_| Kept::Prefix(HEADER_LEN + FRAME_LEN + 3000 + 50));
    let (mut again, mut recovery) = disk.reopen(2, None).unwrap();
    assert_eq!(
        (recovery.last_seq, recovery.torn.as_ref().unwrap().seq),
        (2, 2)
    );
    let chunks: Vec<_> = recovery.chunks(0).map(Result::unwrap).collect();
    assert_eq!(
        chunks
            .iter()
            .map(|c| (c.seq(), c.record_count()))
            .collect::<Vec<_>>(),
        [(1, 1), (2, 1)]
    );
    assert_eq!(again.next_seq(), 3);
    put(&mut again, &[b"d"]);
    again.complete_all();
    let (_, recovery) = again.crash(|_| Kept::Nothing).reopen(3, None).unwrap();
    assert_eq!((recovery.last_seq, recovery.torn), (3, None));
}

#[test]
fn damage_in_a_durable_chunk_stops_the_opening() {
    let mut w = wal(MemoryOptions::default());
    put(&mut w, &[b"a"]);
    w.complete_all();
    put(&mut w, &[b"b"]);
    w.complete_all();
    let mut disk = w.crash(|_| Kept::Nothing);
    let bytes = disk.chunk_mut(1).unwrap();
    *bytes = bytes.slice(..70);
    assert!(matches!(
        disk.reopen(2, None),
        Err(WalError::Corrupt { seq: 1, .. })
    ));
}

#[test]
fn a_full_disk_holds_chunks_until_retry_and_other_errors_are_final() {
    let mut w = wal(MemoryOptions::default());
    put(&mut w, &[b"a"]);
    w.fail_next(WalError::Full("test".into()));
    w.complete_one();
    assert!(!w.complete_one());
    assert_eq!((w.acked(), w.space()), (0, Space::Full));
    w.retry();
    w.complete_one();
    assert_eq!(w.acked(), 1);
    put(&mut w, &[b"b"]);
    w.fail_next(WalError::Unavailable("test".into()));
    w.complete_all();
    assert_eq!(w.acked(), 1);
    assert!(matches!(
        w.submit(chunk(&w, &[b"c"])),
        Err(WalError::Unavailable(_))
    ));
}

#[test]
fn dropped_segments_are_stepped_over_and_sealing_ends_the_stream_once() {
    let mut w = wal(MemoryOptions {
        segment_bytes: 8192,
        ..MemoryOptions::default()
    });
    for _ in 0..8 {
        put(&mut w, &[b"x"]);
    }
    w.complete_all();
    w.drop_segment(2).unwrap();
    w.delete(3);
    w.read(1, 3).unwrap_err();
    w.put_checkpoint(9, 8, Bytes::from_static(b"state"))
        .unwrap();
    w.seal();
    w.seal();
    w.complete_all();
    assert_eq!(
        events(&mut w)
            .iter()
            .filter(|e| e.starts_with("Sealed"))
            .count(),
        1
    );
    assert_eq!(w.submit(chunk(&w, &[b"y"])), Err(WalError::Fenced));
    let disk = w.crash(|_| Kept::Nothing);
    assert!(matches!(
        disk.clone().reopen(1, None),
        Err(WalError::Fenced)
    ));
    let (_, mut recovery) = disk.reopen(2, None).unwrap();
    assert_eq!(recovery.checkpoint.as_ref().unwrap().upto, 8);
    assert_eq!(
        recovery
            .chunks(0)
            .map(|c| c.unwrap().seq())
            .collect::<Vec<_>>(),
        [5, 6, 7, 8]
    );
}
