//! What becomes of dropped segments: spares, and files that are removed step by step.

use std::sync::Mutex;

use super::*;

const NEVER: Duration = Duration::from_secs(1 << 20);
const LEN: u64 = 64 << 10;

/// Segments of 64 KiB that are removed in four steps; no more spares than must be.
fn few_spares() -> FileOptions {
    FileOptions {
        spares_bytes_max: 0,
        spares_half_life: NEVER,
        remove_step: LEN / 4,
        remove_pause: Duration::ZERO,
        ..small()
    }
}

/// Names in the lane's directory that end so.
fn named(data: &Path, suffix: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(lane_dir(data, 0)).unwrap();
    let files = files.map(|e| e.unwrap().path());
    files
        .filter(|p| p.to_string_lossy().ends_with(suffix))
        .collect()
}

/// Segment files that are there and hold nothing any more.
fn dropped(data: &Path, wal: &FileWal) -> usize {
    let live: Vec<_> = wal.segments().iter().map(|s| segment(data, s.id)).collect();
    let all = named(data, ".seg");
    all.iter().filter(|path| !live.contains(path)).count()
}

fn body(seq: u64) -> Vec<u8> {
    vec![seq as u8; 5000]
}

/// Appends chunks until there are `count` segments more.
fn fill(wal: &mut FileWal, count: usize) {
    let wanted = wal.segments().len() + count;
    while wal.segments().len() < wanted {
        let body = body(wal.next_seq());
        put(wal, &[body]);
    }
}

/// Drops all segments but the newest one.
fn drop_old(wal: &mut FileWal) -> u64 {
    let first = wal.segments().last().unwrap().first_seq;
    wal.delete(first);
    assert_eq!(wal.segments().len(), 1);
    first
}

/// The chunks of a directory are those from `first` to `last`.
fn holds(data: &Path, epoch: u64, first: u64, last: u64) -> FileWal {
    let (got, torn, wal) = recover(data, epoch).unwrap();
    assert_eq!(torn, None);
    let want: Contents = (first..=last).map(|seq| (seq, vec![body(seq)])).collect();
    assert_eq!(got, want);
    wal
}

#[test]
fn what_is_not_kept_goes_step_by_step_until_nothing_is_left() {
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, few_spares());
    fill(&mut wal, 12);
    let first = drop_old(&mut wal);
    until(&mut wal, |w| {
        dropped(data.path(), w) == 0
            && named(data.path(), ".removing").is_empty()
            && named(data.path(), ".spare").len() == 2
    });
    let last = wal.acked();
    drop(wal);
    drop(holds(data.path(), 2, first, last));
}

#[test]
fn a_busy_lane_uses_what_it_drops_again_and_an_idle_one_gives_it_back() {
    let data = tempfile::tempdir().unwrap();
    let (made, options) = Count::options(FileOptions {
        spares_bytes_max: 64 * LEN,
        ..few_spares()
    });
    let (mut wal, _) = open(data.path(), 1, options.clone());
    fill(&mut wal, 12);
    let first = drop_old(&mut wal);
    let spares = || named(data.path(), ".spare").len();
    until(&mut wal, |w| dropped(data.path(), w) == 0 && spares() >= 12);
    assert_eq!(named(data.path(), ".removing"), [] as [PathBuf; 0]);
    let before = made.load(Ordering::SeqCst);
    fill(&mut wal, 11);
    assert_eq!(
        made.load(Ordering::SeqCst),
        before,
        "segments were made anew"
    );
    let last = wal.acked();
    drop(wal);
    // A restart keeps them; time takes them.
    let wal = holds(data.path(), 2, first, last);
    let there = spares();
    assert!(there >= 1, "{there}");
    drop(wal);
    let (mut wal, _) = open(data.path(), 3, options.clone());
    drop_old_when(&mut wal, 1);
    let idle = FileOptions {
        spares_half_life: Duration::from_millis(1),
        ..options
    };
    drop(wal);
    let (mut wal, _) = open(data.path(), 4, idle);
    until(&mut wal, |_| {
        spares() <= 2 && named(data.path(), ".removing").is_empty()
    });
}

/// Drops old segments once there are more than `keep`.
fn drop_old_when(wal: &mut FileWal, keep: usize) {
    fill(wal, keep);
    drop_old(wal);
}

/// Counts segments that are made anew, and says how much room is free.
struct Count {
    made: Arc<AtomicU64>,
    free: AtomicU64,
}

impl Count {
    fn options(options: FileOptions) -> (Arc<AtomicU64>, FileOptions) {
        let made = Arc::new(AtomicU64::new(0));
        let faults = Arc::new(Self {
            made: made.clone(),
            free: AtomicU64::new(u64::MAX),
        });
        let faults = Some(faults as Arc<dyn Faults>);
        (made, FileOptions { faults, ..options })
    }
}

impl Faults for Count {
    fn before(&self, operation: Operation) -> io::Result<()> {
        if operation == Operation::NewSegment {
            self.made.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.free.load(Ordering::SeqCst))
    }
}

#[test]
fn spares_give_way_when_the_disk_gets_full() {
    let data = tempfile::tempdir().unwrap();
    let faults = Arc::new(Count {
        made: Arc::default(),
        free: AtomicU64::new(u64::MAX),
    });
    let options = FileOptions {
        spares_bytes_max: 64 * LEN,
        // Nothing would ever be removed, were there room.
        remove_pause: NEVER,
        faults: Some(faults.clone()),
        ..few_spares()
    };
    let (mut wal, _) = open(data.path(), 1, options);
    fill(&mut wal, 12);
    drop_old(&mut wal);
    let spares = || named(data.path(), ".spare").len();
    until(&mut wal, |w| dropped(data.path(), w) == 0 && spares() >= 12);
    // Room for four segments beside what others need: four are kept, the rest waits to be removed.
    faults.free.store(8 * 4 * LEN, Ordering::SeqCst);
    until(&mut wal, |_| !named(data.path(), ".removing").is_empty());
    // No room at all: no more waiting.
    faults.free.store(LEN - 1, Ordering::SeqCst);
    until(&mut wal, |_| {
        spares() <= 2 && named(data.path(), ".removing").is_empty()
    });
}

#[test]
fn a_full_disk_gets_everything_at_once() {
    let data = tempfile::tempdir().unwrap();
    let (faults, options) = broken(
        || io::ErrorKind::StorageFull.into(),
        |o| matches!(o, Operation::Checkpoint | Operation::NewSegment),
    );
    faults.on.store(false, Ordering::SeqCst);
    let options = FileOptions {
        remove_pause: NEVER,
        remove_step: LEN / 4,
        spares_bytes_max: 0,
        ..options
    };
    let (mut wal, _) = open(data.path(), 1, options);
    fill(&mut wal, 12);
    let first = drop_old(&mut wal);
    // It has begun, and would wait for ever.
    until(&mut wal, |_| !named(data.path(), ".removing").is_empty());
    assert!(dropped(data.path(), &wal) > 0);
    faults.on.store(true, Ordering::SeqCst);
    let acked = wal.acked();
    wal.put_checkpoint(1, acked, Bytes::new()).unwrap();
    event(&mut wal, |e| {
        matches!(
            e,
            WalEvent::Checkpoint {
                result: Err(WalError::Full(_)),
                ..
            }
        )
    });
    assert_eq!(dropped(data.path(), &wal), 0);
    assert!(named(data.path(), ".removing").is_empty());
    faults.on.store(false, Ordering::SeqCst);
    let last = wal.acked();
    drop(wal);
    drop(holds(data.path(), 2, first, last));
}

#[test]
fn whoever_waits_is_answered_while_files_are_still_to_be_removed() {
    let data = tempfile::tempdir().unwrap();
    let (made, options) = Count::options(FileOptions {
        remove_pause: NEVER,
        ..few_spares()
    });
    let (mut wal, _) = open(data.path(), 1, options);
    fill(&mut wal, 20);
    drop_old(&mut wal);
    until(&mut wal, |_| !named(data.path(), ".removing").is_empty());
    let before = made.load(Ordering::SeqCst);
    // Files that wait become segments again, before any is made anew.
    fill(&mut wal, 6);
    assert_eq!(made.load(Ordering::SeqCst), before);
    let acked = wal.acked();
    wal.put_checkpoint(1, acked, Bytes::from_static(b"all"))
        .unwrap();
    event(&mut wal, |e| {
        matches!(e, WalEvent::Checkpoint { result: Ok(()), .. })
    });
    let first = drop_old(&mut wal);
    let last = wal.acked();
    wal.close().unwrap();
    assert!(!named(data.path(), ".removing").is_empty());
    // What is left goes at the next start.
    let (wal, mut recovery) = open(data.path(), 2, few_spares());
    let got = contents(&mut recovery).unwrap();
    assert!(got.iter().map(|c| c.0).eq(first..=last + 1));
    assert!(named(data.path(), ".removing").is_empty());
    assert_eq!(dropped(data.path(), &wal), 0);
}

/// Copies the lane's directory before every step: what a `kill -9` there leaves.
struct Killed {
    from: PathBuf,
    on: AtomicBool,
    left: Mutex<Vec<(Operation, TempDir)>>,
}

impl Faults for Killed {
    fn before(&self, operation: Operation) -> io::Result<()> {
        if self.on.load(Ordering::SeqCst) {
            let left = (operation, copy(&self.from));
            self.left.lock().unwrap().push(left);
        }
        Ok(())
    }
}

#[test]
fn a_kill_at_any_step_is_harmless() {
    let data = tempfile::tempdir().unwrap();
    let faults = Arc::new(Killed {
        from: data.path().to_path_buf(),
        on: AtomicBool::new(false),
        left: Mutex::default(),
    });
    let options = FileOptions {
        faults: Some(faults.clone()),
        spares_bytes_max: 3 * LEN,
        ..few_spares()
    };
    let (mut wal, _) = open(data.path(), 1, options);
    fill(&mut wal, 6);
    until(&mut wal, |_| !named(data.path(), ".spare").is_empty());
    faults.on.store(true, Ordering::SeqCst);
    let (before, last) = (1, wal.acked());
    let first = drop_old(&mut wal);
    until(&mut wal, |w| {
        dropped(data.path(), w) == 0 && named(data.path(), ".removing").is_empty()
    });
    drop(wal);
    let left = std::mem::take(&mut *faults.left.lock().unwrap());
    let steps = |wanted| left.iter().filter(|(step, _)| *step == wanted).count();
    assert!(steps(Operation::Manifest) >= 1);
    assert!(steps(Operation::Recycle) >= 1);
    // Each file: its name, and four steps.
    assert!(steps(Operation::Remove) >= 2 * 5);
    let mut halves = 0;
    for (step, left) in &left {
        halves += named(left.path(), ".removing")
            .iter()
            .filter(|path| fs::metadata(path).unwrap().len() < LEN)
            .count();
        // Until the manifest says so nothing is dropped; segments may be dropped in several goes.
        let (got, torn, mut wal) = recover(left.path(), 2).unwrap();
        assert_eq!(torn, None, "killed before {step:?}");
        let start = got[0].0;
        assert!((before..=first).contains(&start), "killed before {step:?}");
        let want: Contents = (start..=last).map(|seq| (seq, vec![body(seq)])).collect();
        assert!(got == want, "killed before {step:?}");
        assert!(named(left.path(), ".removing").is_empty());
        assert_eq!(dropped(left.path(), &wal), 0);
        for spare in named(left.path(), ".spare") {
            assert_eq!(fs::metadata(spare).unwrap().len(), LEN);
        }
        fill(&mut wal, 3);
        let last = wal.acked();
        drop(wal);
        drop(holds(left.path(), 3, start, last));
    }
    assert!(halves > 0);
}

#[test]
fn a_file_that_cannot_be_shortened_is_removed_at_once() {
    let data = tempfile::tempdir().unwrap();
    let (_, options) = broken(|| io::ErrorKind::Other.into(), |o| o == Operation::Remove);
    let options = FileOptions {
        faults: options.faults,
        ..few_spares()
    };
    let (mut wal, _) = open(data.path(), 1, options);
    fill(&mut wal, 8);
    drop_old(&mut wal);
    until(&mut wal, |w| {
        dropped(data.path(), w) == 0 && named(data.path(), ".removing").is_empty()
    });
}
