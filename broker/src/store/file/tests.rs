#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::collections::HashMap;
use std::fs;
use std::io;

use proptest::prelude::*;
use tempfile::TempDir;

use bytes::Bytes;

use super::super::chunk::{BufferPool, ChunkBuilder, ChunkHeader, HEADER_LEN};
use super::super::wal::{TornTail, Wake, Wal};
use super::*;

mod crash;
mod faults;
mod removal;

use faults::broken;

/// Numbers of chunks and the bodies of their records.
type Contents = Vec<(u64, Vec<Vec<u8>>)>;

/// For what comes sooner or later: nobody knows how slow the machine is.
const LIMIT: Duration = Duration::from_secs(60);

fn small() -> FileOptions {
    FileOptions {
        segment_bytes: 64 << 10,
        // A test waits for a slow disk.
        close_wait: LIMIT,
        ..FileOptions::default()
    }
}

fn open(data: &Path, epoch: u64, options: FileOptions) -> (FileWal, Recovery) {
    FileWal::open(data, 0, epoch, options).unwrap()
}

fn chunk(wal: &FileWal, bodies: &[Vec<u8>]) -> Chunk {
    let mut builder = ChunkBuilder::new(&BufferPool::new(wal.epoch(), 0), 1 << 20);
    for body in bodies {
        builder.append(&[body]).unwrap();
    }
    builder.seal(wal.epoch(), wal.lane(), wal.next_seq(), wal.durable())
}

/// Appends one chunk and waits for it.
fn put(wal: &mut FileWal, bodies: &[Vec<u8>]) -> u64 {
    let chunk = chunk(wal, bodies);
    let seq = chunk.seq();
    wal.submit(chunk).unwrap();
    until(wal, |w| w.acked() >= seq);
    seq
}

/// Polls until `ready`; answers the events.
fn until(wal: &mut FileWal, ready: impl Fn(&FileWal) -> bool) -> Vec<WalEvent> {
    let mut events = Vec::new();
    let deadline = Instant::now() + LIMIT;
    loop {
        wal.poll(&mut events);
        if ready(wal) {
            return events;
        }
        assert!(Instant::now() < deadline, "no progress: {events:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn event(wal: &mut FileWal, mut wanted: impl FnMut(&WalEvent) -> bool) -> WalEvent {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut events = Vec::new();
        wal.poll(&mut events);
        if let Some(event) = events.into_iter().find(&mut wanted) {
            return event;
        }
        assert!(Instant::now() < deadline, "the event did not come");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn read(wal: &mut FileWal, seq: u64) -> Result<Chunk, WalError> {
    wal.read(77, seq)?;
    match event(wal, |e| matches!(e, WalEvent::Read { token: 77, .. })) {
        WalEvent::Read { result, .. } => result,
        _ => unreachable!(),
    }
}

fn contents(recovery: &mut Recovery) -> Result<Contents, WalError> {
    let all = recovery.chunks(0).collect::<Result<Vec<_>, _>>()?;
    Ok(all
        .iter()
        .map(|c| {
            (
                c.seq(),
                c.records().map(|(_, r)| c.bytes()[r].to_vec()).collect(),
            )
        })
        .collect())
}

/// Opens a copy of the directory and reads it all.
fn recover(data: &Path, epoch: u64) -> Result<(Contents, Option<TornTail>, FileWal), WalError> {
    let (wal, mut recovery) = FileWal::open(data, 0, epoch, small())?;
    Ok((contents(&mut recovery)?, recovery.torn, wal))
}

fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    fs::create_dir(lane_dir(to.path(), 0)).unwrap();
    for entry in fs::read_dir(lane_dir(from, 0)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), lane_dir(to.path(), 0).join(entry.file_name())).unwrap();
    }
    to
}

fn segment(data: &Path, id: u64) -> PathBuf {
    segment::segment_path(&lane_dir(data, 0), id)
}

/// Offset and header of each chunk in a segment file.
fn layout(path: &Path) -> Vec<(usize, ChunkHeader)> {
    let raw = fs::read(path).unwrap();
    let (mut at, mut chunks) = (SEGMENT_HEADER_LEN, Vec::new());
    while let Some(Ok(header)) = raw.get(at..).map(ChunkHeader::decode) {
        if chunks
            .last()
            .is_some_and(|(_, h): &(usize, ChunkHeader)| h.seq + 1 != header.seq)
        {
            break;
        }
        chunks.push((at, header));
        at += header.padded_len();
    }
    chunks
}

#[test]
fn everything_acknowledged_is_there_after_a_restart_across_segments() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, recovery) = open(data.path(), 1, small());
    assert_eq!((recovery.first_seq, recovery.last_seq), (1, 0));
    let mut want = Vec::new();
    for i in 0..60u64 {
        let bodies: Vec<_> = (0..i % 5)
            .map(|r| vec![i as u8; 100 * (r as usize + i as usize)])
            .collect();
        want.push((put(&mut wal, &bodies), bodies));
    }
    assert!(wal.segments().len() > 3);
    for seq in [1, 17, 60] {
        let got = read(&mut wal, seq).unwrap();
        assert_eq!(got.record_count() as usize, want[seq as usize - 1].1.len());
    }
    drop(wal);
    let (got, torn, mut wal) = recover(data.path(), 2).unwrap();
    assert_eq!((got, torn), (want.clone(), None));
    // Reads of older segments find their way without the writer's tables.
    for seq in [60, 1, 33] {
        assert_eq!(
            read(&mut wal, seq).unwrap().record_count() as usize,
            want[seq as usize - 1].1.len()
        );
    }
    assert_eq!(put(&mut wal, &[b"next".to_vec()]), 61);
    want.push((61, vec![b"next".to_vec()]));
    wal.close().unwrap();
    assert_eq!(wal.submit(chunk(&wal, &[])), Err(WalError::Closed));
    want.push((62, vec![]));
    assert_eq!(recover(data.path(), 3).unwrap().0, want);
    assert!(matches!(
        FileWal::open(data.path(), 0, 3, small()),
        Err(WalError::Fenced)
    ));
}

#[test]
fn many_chunks_in_flight_are_acknowledged_in_order() {
    for sync in [
        SyncMode::Always,
        SyncMode::Interval(Duration::from_millis(5)),
        SyncMode::Never,
    ] {
        let data = tempfile::tempdir().unwrap();
        let (mut wal, _) = open(data.path(), 1, FileOptions { sync, ..small() });
        for i in 0..200 {
            let chunk = chunk(&wal, &[vec![i as u8; 3000]]);
            wal.submit(chunk).unwrap();
        }
        let events = until(&mut wal, |w| w.acked() == 200);
        let durable: Vec<_> = events
            .iter()
            .filter_map(|e| match e {
                WalEvent::Durable { upto } => Some(*upto),
                _ => None,
            })
            .collect();
        assert!(durable.is_sorted() && durable.last() == Some(&200));
        assert_eq!(wal.room(), small().unacked_bytes_max);
        if sync == SyncMode::Interval(Duration::from_millis(5)) {
            until(&mut wal, |w| w.durable() == 200);
        }
        wal.close().unwrap();
        assert_eq!(recover(data.path(), 2).unwrap().0.len(), 201);
    }
}

#[test]
fn a_last_chunk_cut_at_any_byte_keeps_its_earlier_records_and_starts() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    put(&mut wal, &[b"first".to_vec()]);
    put(&mut wal, &[vec![1; 700], vec![2; 700], vec![3; 300]]);
    drop(wal);
    let (at, header) = layout(&segment(data.path(), 1))[1];
    let end = at + HEADER_LEN + header.payload_len as usize;
    for cut in (end - 308..end).chain([at, at + 1, at + 63, at + 64, at + 800]) {
        let data = copy(data.path());
        let file = fs::OpenOptions::new()
            .write(true)
            .open(segment(data.path(), 1))
            .unwrap();
        file.set_len(cut as u64).unwrap();
        let (got, torn, mut wal) = recover(data.path(), 2).unwrap();
        let kept = [HEADER_LEN + 708, HEADER_LEN + 1416]
            .iter()
            .filter(|e| at + **e <= cut)
            .count();
        assert_eq!(got[0], (1, vec![b"first".to_vec()]));
        assert_eq!(got.get(1).map_or(0, |c| c.1.len()), kept, "cut at {cut}");
        assert_eq!(torn.is_some(), cut > at);
        let next = put(&mut wal, &[b"more".to_vec()]);
        assert_eq!(next, if kept > 0 { 3 } else { 2 });
        drop(wal);
        // The cut is made for good: the next opening does not meet it again.
        let (got, torn, _) = recover(data.path(), 3).unwrap();
        assert_eq!((got.len() as u64, torn), (next, None));
        assert_eq!(got.last().unwrap().1, vec![b"more".to_vec()]);
    }
}

#[test]
fn a_flipped_byte_in_an_earlier_chunk_names_file_and_offset() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    for i in 0..20 {
        put(&mut wal, &[vec![i; 2000], vec![i; 3000]]);
    }
    drop(wal);
    let (first, second) = (
        layout(&segment(data.path(), 1)),
        layout(&segment(data.path(), 2)),
    );
    assert!(second.len() > 3);
    let cases = [
        (1, first[0].0 + 30),
        (1, first[2].0 + 5000),
        (1, first[3].0 + 8191),
        (2, second[0].0),
        (2, second[1].0 + 100),
    ];
    for (id, at) in cases {
        let data = copy(data.path());
        let path = segment(data.path(), id);
        let mut raw = fs::read(&path).unwrap();
        raw[at] ^= 0x10;
        fs::write(&path, raw).unwrap();
        match recover(data.path(), 2) {
            Err(error @ WalError::Corrupt { .. }) => {
                let text = error.to_string();
                let WalError::Corrupt { file, offset, .. } = error else {
                    unreachable!()
                };
                assert_eq!(file, path);
                assert!(
                    offset as usize <= at && at - (offset as usize) < 8192,
                    "{offset} for {at}"
                );
                assert!(
                    text.contains("restore a backup") && text.contains(".seg"),
                    "{text}"
                );
            }
            other => panic!(
                "damage at {at} of segment {id} was not noticed: {:?}",
                other.map(|r| r.1)
            ),
        }
    }
}

#[test]
fn damage_anywhere_after_a_clean_end_is_no_torn_tail() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    put(&mut wal, &[b"a".to_vec()]);
    put(&mut wal, &[b"b".to_vec()]);
    wal.close().unwrap();
    for (at, _) in layout(&segment(data.path(), 1)) {
        let data = copy(data.path());
        let file = fs::OpenOptions::new()
            .write(true)
            .open(segment(data.path(), 1))
            .unwrap();
        file.set_len(at as u64 + 10).unwrap();
        assert!(
            matches!(recover(data.path(), 2), Err(WalError::Corrupt { .. })),
            "cut at {at}"
        );
    }
}

#[test]
fn strange_files_and_leftovers_are_harmless() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    put(&mut wal, &[b"a".to_vec()]);
    drop(wal);
    let dir = lane_dir(data.path(), 0);
    for name in [
        ".DS_Store",
        "notes.txt",
        "1.seg",
        "x.seg",
        "00000009.spare",
        "00000003.zeroing",
        "manifest.tmp",
    ] {
        fs::write(dir.join(name), b"").unwrap();
    }
    fs::create_dir(dir.join("lost+found")).unwrap();
    fs::remove_file(
        fs::read_dir(&dir)
            .unwrap()
            .flatten()
            .find(|e| {
                e.path().extension().is_some_and(|x| x == "spare")
                    && e.metadata().unwrap().len() > 0
            })
            .unwrap()
            .path(),
    )
    .unwrap();
    // Garbage behind the end, in the room that is left.
    let path = segment(data.path(), 1);
    let mut raw = fs::read(&path).unwrap();
    raw[SEGMENT_HEADER_LEN + PAGE..]
        .iter_mut()
        .enumerate()
        .for_each(|(i, b)| *b = (i * 31 % 251) as u8);
    fs::write(&path, raw).unwrap();
    let (got, torn, mut wal) = recover(data.path(), 2).unwrap();
    assert_eq!((got.len(), torn), (1, None));
    put(&mut wal, &[b"b".to_vec()]);
    assert!(dir.join("notes.txt").exists() && dir.join("1.seg").exists());
}

#[test]
fn a_missing_segment_or_manifest_is_named() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    for _ in 0..40 {
        put(&mut wal, &[vec![1; 5000]]);
    }
    drop(wal);
    for name in ["00000001.seg", "00000002.seg", "manifest"] {
        let data = copy(data.path());
        fs::remove_file(lane_dir(data.path(), 0).join(name)).unwrap();
        let Err(WalError::Corrupt { file, .. }) = recover(data.path(), 2) else {
            panic!("{name}")
        };
        assert!(file.ends_with(name));
    }
}

#[test]
fn dropped_segments_are_recycled_and_their_old_chunks_never_come_back() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    let mut live: HashMap<u64, Vec<u8>> = HashMap::new();
    let fill = |wal: &mut FileWal, live: &mut HashMap<u64, Vec<u8>>, n: u64| {
        for _ in 0..n {
            let body = vec![wal.next_seq() as u8; 5000];
            live.insert(put(wal, std::slice::from_ref(&body)), body);
        }
    };
    fill(&mut wal, &mut live, 40);
    let ids: Vec<_> = wal.segments().iter().map(|s| s.id).collect();
    assert_eq!(
        wal.drop_segment(*ids.last().unwrap()),
        Err(WalError::Backpressure)
    );
    assert_eq!(wal.drop_segment(99), Err(WalError::Absent));
    // One from the middle, then all old ones.
    let middle = wal.segments()[2].clone();
    wal.drop_segment(middle.id).unwrap();
    live.retain(|seq, _| !(middle.first_seq..=middle.last_seq).contains(seq));
    assert_eq!(
        read(&mut wal, middle.first_seq).unwrap_err(),
        WalError::Trimmed
    );
    fill(&mut wal, &mut live, 20);
    let below = wal.segments()[1].last_seq + 1;
    wal.delete(below);
    live.retain(|seq, _| *seq >= below);
    fill(&mut wal, &mut live, 9);
    let expect = |live: &HashMap<u64, Vec<u8>>| {
        let mut all: Vec<_> = live.iter().map(|(s, b)| (*s, vec![b.clone()])).collect();
        all.sort();
        all
    };
    drop(wal);
    let files = fs::read_dir(lane_dir(data.path(), 0)).unwrap().count();
    let (got, torn, mut wal) = recover(data.path(), 2).unwrap();
    assert_eq!((got, torn), (expect(&live), None));
    fill(&mut wal, &mut live, 3);
    drop(wal);
    assert_eq!(recover(data.path(), 3).unwrap().0, expect(&live));
    assert!(fs::read_dir(lane_dir(data.path(), 0)).unwrap().count() <= files + 2);
}

#[test]
fn the_newest_intact_checkpoint_is_found() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    assert_eq!(
        wal.put_checkpoint(1, 5, Bytes::new()),
        Err(WalError::Absent)
    );
    for i in 1..=4u64 {
        put(&mut wal, &[vec![1]]);
        wal.put_checkpoint(i, i, Bytes::from(vec![i as u8; 10_000]))
            .unwrap();
        assert_eq!(
            wal.put_checkpoint(9, 1, Bytes::new()),
            Err(WalError::Backpressure)
        );
        event(&mut wal, |e| {
            matches!(e, WalEvent::Checkpoint { result: Ok(()), .. })
        });
    }
    wal.close().unwrap();
    let (wal, mut recovery) = open(data.path(), 2, small());
    let found = recovery.checkpoint.take().unwrap();
    assert_eq!((found.upto, &found.data[..]), (4, &[4u8; 10_000][..]));
    assert_eq!(recovery.chunks(found.upto + 1).count(), 1);
    drop(wal);
    let path = lane_dir(data.path(), 0).join("00000004.checkpoint");
    let mut raw = fs::read(&path).unwrap();
    raw[5000] ^= 1;
    fs::write(path, raw).unwrap();
    assert_eq!(open(data.path(), 3, small()).1.checkpoint.unwrap().upto, 3);
}

/// A checkpoint covers only what is durable, so a log that does not reach as far has lost something.
#[test]
fn a_log_that_ends_before_its_checkpoint_is_refused() {
    type Damage = fn(&Path);
    const ONE_CHUNK: &str = "its only chunk is damaged";
    let cases: [(&str, Damage, &str); 6] = [
        (
            "last segment gone",
            |dir| fs::remove_file(last_segment(dir)).unwrap(),
            ".seg",
        ),
        (
            "it is cut",
            |dir| cut(&last_segment(dir), SEGMENT_HEADER_LEN as u64),
            ".seg",
        ),
        ("it is empty", |dir| cut(&last_segment(dir), 0), ".seg"),
        (
            ONE_CHUNK,
            |dir| flip(&last_segment(dir), SEGMENT_HEADER_LEN + HEADER_LEN + 3),
            ".seg",
        ),
        (
            "all segments gone",
            |dir| {
                segments(dir)
                    .iter()
                    .for_each(|p| fs::remove_file(p).unwrap())
            },
            "00000001.seg",
        ),
        (
            "and the manifest",
            |dir| {
                segments(dir)
                    .iter()
                    .for_each(|p| fs::remove_file(p).unwrap());
                fs::remove_file(dir.join("manifest")).unwrap();
            },
            "manifest",
        ),
    ];
    let syncs = [SyncMode::Always, SyncMode::Never, SyncMode::Interval(LIMIT)];
    for (sync, closed) in syncs.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        for (name, damage, file) in cases {
            if closed && name == ONE_CHUNK {
                // Found when it is read, as any that is further back.
                continue;
            }
            let data = tempfile::tempdir().unwrap();
            let options = FileOptions { sync, ..small() };
            let (mut wal, _) = open(data.path(), 1, options.clone());
            let mut seq = put(&mut wal, &[vec![1; 10]]);
            // The last one has one chunk, which the checkpoint covers.
            while wal.segments().len() < 3
                || wal.segments().last().is_none_or(|s| s.first_seq != seq)
            {
                seq = put(&mut wal, &[vec![1; 30_000]]);
            }
            wal.put_checkpoint(1, seq, Bytes::from_static(b"state"))
                .unwrap();
            event(&mut wal, |e| {
                matches!(e, WalEvent::Checkpoint { result: Ok(()), .. })
            });
            if closed {
                wal.close().unwrap();
            }
            drop(wal);
            let dir = lane_dir(data.path(), 0);
            damage(&dir);
            for epoch in [2, 3] {
                // Again and again: refusing changes nothing.
                let error = FileWal::open(data.path(), 0, epoch, options.clone()).unwrap_err();
                assert!(
                    matches!(&error, WalError::Corrupt { file: at, .. } if at.to_string_lossy().ends_with(file)),
                    "{name}: {error}"
                );
            }
        }
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|p| p.extension().is_some_and(|e| e == "seg"))
        .collect();
    files.sort();
    files
}

fn last_segment(dir: &Path) -> PathBuf {
    segments(dir).pop().unwrap()
}

fn cut(path: &Path, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

fn flip(path: &Path, at: usize) {
    let mut raw = fs::read(path).unwrap();
    raw[at] ^= 1;
    fs::write(path, raw).unwrap();
}

#[test]
fn bounds_and_numbers_are_enforced_and_sealing_ends_the_stream() {
    let data = tempfile::tempdir().unwrap();
    let (faults, options) = broken(
        || io::ErrorKind::StorageFull.into(),
        |o| matches!(o, Operation::Write { .. }),
    );
    let (mut wal, _) = open(
        data.path(),
        1,
        FileOptions {
            unacked_bytes_max: 16384,
            reads_max: 1,
            ..options
        },
    );
    let first = chunk(&wal, &[vec![0; 5000]]);
    wal.submit(first.clone()).unwrap();
    assert_eq!(wal.submit(first), Err(WalError::Exists));
    let other = ChunkBuilder::new(&BufferPool::new(1, 0), PAGE);
    assert_eq!(wal.submit(other.seal(1, 0, 7, 0)), Err(WalError::Absent));
    let other = ChunkBuilder::new(&BufferPool::new(1, 0), PAGE);
    assert_eq!(wal.submit(other.seal(9, 0, 2, 0)), Err(WalError::Fenced));
    assert!(matches!(
        wal.submit(chunk(&wal, &[vec![0; 17000]])),
        Err(WalError::TooLarge { .. })
    ));
    assert_eq!(
        wal.submit(chunk(&wal, &[vec![0; 9000]])),
        Err(WalError::Backpressure)
    );
    assert_eq!(wal.read(1, 1), Err(WalError::Absent));
    faults.on.store(false, Ordering::SeqCst);
    wal.retry();
    until(&mut wal, |w| w.acked() == 1);
    wal.read(1, 1).unwrap();
    assert_eq!(wal.read(1, 1), Err(WalError::Backpressure));
    wal.seal();
    wal.seal();
    event(&mut wal, |e| matches!(e, WalEvent::Sealed { last_seq: 1 }));
    assert_eq!(wal.submit(chunk(&wal, &[])), Err(WalError::Fenced));
    wal.close().unwrap();
    assert_eq!(recover(data.path(), 2).unwrap().0.len(), 1);
}

#[test]
fn outcomes_wake_the_executor_and_helpers_end_with_the_log() {
    let data = tempfile::tempdir().unwrap();
    let (woken, wakes) = crossbeam_channel::bounded(1);
    let wake: Wake = Arc::new(move || {
        let _ = woken.try_send(());
    });
    let (mut wal, _) = open(
        data.path(),
        1,
        FileOptions {
            wake: Some(wake),
            ..small()
        },
    );
    let chunk = chunk(&wal, &[vec![1]]);
    wal.submit(chunk).unwrap();
    while wal.acked() < 1 {
        wakes.recv_timeout(LIMIT).unwrap();
        wal.poll(&mut Vec::new());
    }
    drop(wal);
    // The last holder of the wake function is gone with the threads.
    while wakes.try_recv().is_ok() {}
    assert_eq!(
        wakes.try_recv(),
        Err(crossbeam_channel::TryRecvError::Disconnected)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    /// A power cut at the end: the last `lost` chunks lose everything from some byte on, or one byte in the middle, in
    /// any combination that two writes in flight can leave. Whatever was acknowledged stays.
    #[test]
    fn a_torn_tail_never_takes_what_was_acknowledged(
        before in prop::collection::vec(prop::collection::vec(1usize..4000, 0..4), 1..12),
        tail in prop::collection::vec((prop::collection::vec(1usize..4000, 0..4), 0u8..3, any::<prop::sample::Index>()), 1..3),
    ) {
        let data = tempfile::tempdir().unwrap();
        let (mut wal, _) = open(data.path(), 1, small());
        let bodies = |lens: &[usize]| lens.iter().enumerate().map(|(i, l)| vec![i as u8 + 1; *l]).collect::<Vec<_>>();
        let mut want = Vec::new();
        for lens in &before {
            want.push((put(&mut wal, &bodies(lens)), bodies(lens)));
        }
        let acked = wal.acked();
        // Sent side by side: none of them states another one durable.
        let durable = wal.durable();
        let mut sent = Vec::new();
        for (lens, _, _) in &tail {
            let mut builder = ChunkBuilder::new(&BufferPool::new(2, 0), 1 << 20);
            bodies(lens).iter().for_each(|b| { builder.append(&[b]).unwrap(); });
            sent.push((wal.next_seq(), bodies(lens)));
            wal.submit(builder.seal(1, 0, wal.next_seq(), durable)).unwrap();
        }
        until(&mut wal, |w| w.acked() == acked + tail.len() as u64);
        let ids: Vec<_> = wal.segments().iter().map(|s| s.id).collect();
        drop(wal);
        let mut places = HashMap::new();
        for id in ids {
            let path = segment(data.path(), id);
            places.extend(layout(&path).into_iter().map(|c| (c.1.seq, (path.clone(), c))));
        }
        let mut intact = true;
        for ((seq, bodies), (_, how, at)) in sent.into_iter().zip(&tail) {
            let (path, (offset, header)) = places.remove(&seq).unwrap();
            let mut raw = fs::read(&path).unwrap();
            let len = header.padded_len();
            let hurt = match how {
                0 => len,
                1 => { let at = at.index(len); raw[offset + at] ^= 0x55; at }
                _ => { let at = at.index(len / 512) * 512; raw[offset + at..offset + len].fill(0xee); at }
            };
            fs::write(&path, raw).unwrap();
            let mut at = HEADER_LEN;
            let ends: Vec<_> = bodies.iter().map(|b| { at += 8 + b.len(); at }).collect();
            let kept = match hurt { h if h < HEADER_LEN => 0, h => ends.iter().filter(|e| **e <= h).count() };
            if intact && (kept > 0 || hurt == len) {
                want.push((seq, bodies[..kept].to_vec()));
            }
            intact &= hurt == len;
        }
        let (got, torn, mut wal) = recover(data.path(), 2).unwrap();
        prop_assert_eq!(&got, &want);
        prop_assert!(torn.is_none() || !intact);
        want.push((put(&mut wal, &[b"after".to_vec()]), vec![b"after".to_vec()]));
        drop(wal);
        let (got, torn, _) = recover(data.path(), 3).unwrap();
        prop_assert_eq!((got, torn), (want, None));
    }
}
