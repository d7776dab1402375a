//! Disks that are full, nearly full, or broken.

use rustix::io::Errno;

use super::*;

/// Makes an error.
pub(super) type Make = fn() -> io::Error;

/// Fails chosen operations while `on`.
pub(super) struct Broken {
    pub(super) on: AtomicBool,
    pub(super) error: Make,
    pub(super) hits: fn(Operation) -> bool,
    /// How often it failed something.
    pub(super) count: AtomicU64,
}

impl Faults for Broken {
    fn before(&self, operation: Operation) -> io::Result<()> {
        match self.on.load(Ordering::SeqCst) && (self.hits)(operation) {
            true => {
                self.count.fetch_add(1, Ordering::SeqCst);
                Err((self.error)())
            }
            false => Ok(()),
        }
    }
}

pub(super) fn broken(error: Make, hits: fn(Operation) -> bool) -> (Arc<Broken>, FileOptions) {
    let broken = Arc::new(Broken {
        on: AtomicBool::new(true),
        error,
        hits,
        count: AtomicU64::new(0),
    });
    (
        broken.clone(),
        FileOptions {
            faults: Some(broken),
            ..small()
        },
    )
}

#[test]
fn a_full_disk_keeps_chunks_and_goes_on_when_there_is_room() {
    let (faults, options) = broken(
        || io::ErrorKind::StorageFull.into(),
        |o| matches!(o, Operation::Write { seq: 2 }),
    );
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, options);
    for i in 0..5 {
        let chunk = chunk(&wal, &[vec![i; 10]]);
        wal.submit(chunk).unwrap();
    }
    event(&mut wal, |e| {
        matches!(
            e,
            WalEvent::Failed {
                error: WalError::Full(_)
            }
        )
    });
    until(&mut wal, |w| w.acked() == 1 && w.space() == Space::Full);
    assert!(read(&mut wal, 1).is_ok());
    faults.on.store(false, Ordering::SeqCst);
    wal.retry();
    until(&mut wal, |w| w.acked() == 5 && w.space() == Space::Ok);
    drop(wal);
    assert_eq!(recover(data.path(), 2).unwrap().0.len(), 5);
}

#[test]
fn no_room_for_segments_is_said_early_and_ends_by_itself() {
    let (faults, options) = broken(
        || io::ErrorKind::StorageFull.into(),
        |o| o == Operation::NewSegment,
    );
    faults.on.store(false, Ordering::SeqCst);
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, options);
    put(&mut wal, &[vec![0; 10]]);
    // The next spare is made right after the first was taken.
    let spare = || {
        fs::read_dir(lane_dir(data.path(), 0))
            .unwrap()
            .flatten()
            .any(|e| e.path().extension().is_some_and(|x| x == "spare"))
    };
    until(&mut wal, |_| spare());
    faults.on.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let chunk = chunk(&wal, &[vec![0; 5000]]);
        wal.submit(chunk).unwrap();
    }
    let mut low = false;
    event(&mut wal, |e| {
        low |= matches!(e, WalEvent::Space(Space::Low));
        matches!(
            e,
            WalEvent::Failed {
                error: WalError::Full(_)
            }
        )
    });
    assert!(
        low,
        "there was room for acks, and a warning, before there was none"
    );
    assert_eq!(wal.space(), Space::Full);
    assert!(wal.acked() < 21);
    faults.on.store(false, Ordering::SeqCst);
    until(&mut wal, |w| w.acked() == 21 && w.space() == Space::Ok);
}

/// What the system says when it has nothing left to give, and nothing is wrong with the disk.
const EXHAUSTED: [(Make, &str); 4] = [
    (|| Errno::MFILE.into(), "ulimit -n"),
    (|| Errno::NFILE.into(), "fs.file-max"),
    (|| Errno::NOMEM.into(), "memory"),
    (|| Errno::INTR.into(), "nterrupted"),
];

#[test]
fn a_lane_out_of_open_files_keeps_chunks_and_goes_on_by_itself() {
    for operation in [Operation::NewSegment, Operation::UseSegment] {
        for (error, advice) in EXHAUSTED {
            let (faults, options) = match operation {
                Operation::NewSegment => broken(error, |o| o == Operation::NewSegment),
                _ => broken(error, |o| o == Operation::UseSegment),
            };
            let data = tempfile::tempdir().unwrap();
            let (mut wal, _) = open(data.path(), 1, options);
            for i in 0..5 {
                let chunk = chunk(&wal, &[vec![i; 10]]);
                wal.submit(chunk).unwrap();
            }
            let failed = event(&mut wal, |e| matches!(e, WalEvent::Failed { .. }));
            let WalEvent::Failed { error } = failed else {
                unreachable!()
            };
            assert!(matches!(error, WalError::Exhausted(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(advice) && !text.contains("full"), "{text}");
            until(&mut wal, |w| w.space() == Space::Full);
            // A second attempt says nothing new.
            wal.retry();
            faults.on.store(false, Ordering::SeqCst);
            let events = until(&mut wal, |w| w.acked() == 5 && w.space() == Space::Ok);
            let again = |e: &WalEvent| matches!(e, WalEvent::Failed { .. });
            assert!(!events.iter().any(again), "{events:?}");
            drop(wal);
            assert_eq!(recover(data.path(), 2).unwrap().0.len(), 5);
        }
    }
}

#[test]
fn a_spare_that_could_not_be_opened_is_not_lost() {
    let (faults, options) = broken(|| Errno::MFILE.into(), |o| o == Operation::UseSegment);
    faults.on.store(false, Ordering::SeqCst);
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, options);
    put(&mut wal, &[vec![0; 10]]);
    let spares = || {
        let files = fs::read_dir(lane_dir(data.path(), 0)).unwrap().flatten();
        files
            .filter(|e| e.path().extension().is_some_and(|x| x == "spare"))
            .count()
    };
    until(&mut wal, |_| spares() == 1);
    faults.on.store(true, Ordering::SeqCst);
    for _ in 0..15 {
        let chunk = chunk(&wal, &[vec![0; 5000]]);
        wal.submit(chunk).unwrap();
    }
    until(&mut wal, |w| w.space() == Space::Full);
    let hits = faults.count.load(Ordering::SeqCst);
    // It tries again and again.
    until(&mut wal, |_| faults.count.load(Ordering::SeqCst) > hits + 1);
    assert_eq!(spares(), 1);
    faults.on.store(false, Ordering::SeqCst);
    until(&mut wal, |w| w.acked() == 16 && w.space() == Space::Ok);
}

#[test]
fn checkpoints_and_dropped_segments_wait_for_open_files_too() {
    let (faults, options) = broken(
        || Errno::MFILE.into(),
        |o| matches!(o, Operation::Checkpoint | Operation::Manifest),
    );
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, options);
    for _ in 0..30 {
        put(&mut wal, &[vec![3; 5000]]);
    }
    let result = |wal: &mut FileWal| {
        wal.put_checkpoint(1, 30, Bytes::new()).unwrap();
        match event(wal, |e| matches!(e, WalEvent::Checkpoint { .. })) {
            WalEvent::Checkpoint { result, .. } => result,
            _ => unreachable!(),
        }
    };
    assert!(matches!(result(&mut wal), Err(WalError::Exhausted(_))));
    let first = wal.segments()[0].id;
    wal.drop_segment(first).unwrap();
    // The manifest was tried and failed.
    assert!(matches!(result(&mut wal), Err(WalError::Exhausted(_))));
    assert!(segment(data.path(), first).exists());
    faults.on.store(false, Ordering::SeqCst);
    until(&mut wal, |_| !segment(data.path(), first).exists());
    assert_eq!(result(&mut wal), Ok(()));
}

/// A disk that has room for checkpoints and the manifest only when the reserve is given up.
struct Crammed {
    reserve: PathBuf,
}

impl Faults for Crammed {
    fn before(&self, operation: Operation) -> io::Result<()> {
        let small = matches!(operation, Operation::Checkpoint | Operation::Manifest);
        match small && self.reserve.exists() {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

#[test]
fn the_reserve_lets_a_full_disk_drop_segments() {
    let data = tempfile::tempdir().unwrap();
    let reserve = lane_dir(data.path(), 0).join("reserve");
    let faults: Arc<dyn Faults> = Arc::new(Crammed {
        reserve: reserve.clone(),
    });
    let (mut wal, _) = open(
        data.path(),
        1,
        FileOptions {
            faults: Some(faults),
            ..small()
        },
    );
    for _ in 0..30 {
        put(&mut wal, &[vec![3; 5000]]);
    }
    until(&mut wal, |_| reserve.exists());
    wal.put_checkpoint(1, 30, Bytes::from_static(b"all"))
        .unwrap();
    event(&mut wal, |e| {
        matches!(e, WalEvent::Checkpoint { result: Ok(()), .. })
    });
    // It comes back as soon as there is room again.
    until(&mut wal, |_| reserve.exists());
    let first = wal.segments()[0].id;
    wal.drop_segment(first).unwrap();
    until(&mut wal, |_| !segment(data.path(), first).exists());
    until(&mut wal, |_| reserve.exists());
}

#[test]
fn an_io_error_stops_the_lane_for_good() {
    let (_, options) = broken(
        || io::ErrorKind::Other.into(),
        |o| matches!(o, Operation::Write { seq: 2 }),
    );
    let data = tempfile::tempdir().unwrap();
    let (mut wal, _) = open(data.path(), 1, options);
    put(&mut wal, &[vec![9]]);
    for i in 0..4 {
        let chunk = chunk(&wal, &[vec![i; 10]]);
        wal.submit(chunk).unwrap();
    }
    event(&mut wal, |e| {
        matches!(
            e,
            WalEvent::Failed {
                error: WalError::Unavailable(_)
            }
        )
    });
    assert_eq!(wal.acked(), 1);
    assert!(matches!(
        wal.submit(chunk(&wal, &[])),
        Err(WalError::Unavailable(_))
    ));
    assert!(matches!(wal.close(), Err(WalError::Unavailable(_))));
}

/// On a real full file system: `VELA_TEST_SMALL_DISK` names an empty one of about a MiB.
#[test]
#[ignore = "needs a small file system of its own"]
fn a_really_full_disk_recovers_by_itself_once_segments_are_dropped() {
    let Some(disk) = std::env::var_os("VELA_TEST_SMALL_DISK") else {
        return;
    };
    let data = tempfile::tempdir_in(disk).unwrap();
    let (mut wal, _) = open(data.path(), 1, small());
    let mut body = 0u8;
    let mut low = None;
    loop {
        body = body.wrapping_add(1);
        let chunk = chunk(&wal, &[vec![body; 5000]]);
        wal.submit(chunk).unwrap();
        let mut events = Vec::new();
        std::thread::sleep(Duration::from_millis(1));
        wal.poll(&mut events);
        low = low.or(events
            .iter()
            .any(|e| matches!(e, WalEvent::Space(Space::Low)))
            .then_some(wal.acked()));
        if events.iter().any(|e| {
            matches!(
                e,
                WalEvent::Failed {
                    error: WalError::Full(_)
                }
            )
        }) {
            break;
        }
    }
    let (acked, last) = (wal.acked(), wal.next_seq() - 1);
    assert!(low.is_some_and(|l| l < acked) && acked < last);
    assert!(read(&mut wal, 1).is_ok());
    wal.put_checkpoint(1, acked, Bytes::from(vec![1; 30_000]))
        .unwrap();
    event(&mut wal, |e| {
        matches!(e, WalEvent::Checkpoint { result: Ok(()), .. })
    });
    let below = wal.segments()[2].first_seq;
    wal.delete(below);
    until(&mut wal, |w| w.acked() == last);
    drop(wal);
    let (got, torn, wal) = recover(data.path(), 2).unwrap();
    assert_eq!((got[0].0, got.last().unwrap().0, torn), (below, last, None));
    drop(wal);
}
