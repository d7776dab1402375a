//! The threads of a lane that touch its files: two writers, a reader, a housekeeper and, for `--sync interval`, a syncer.
//! None of them decides anything: the front ([`super::FileWal`]) does, on its executor.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustix::io::Errno;

use super::super::chunk::{Chunk, PAGE};
use super::super::regular;
use super::super::wal::{Space, Wake, WalError};
use super::manifest::Seal;
use super::segment::{
    Expected, SEGMENT_HEADER_LEN, SegmentFile, read_chunk, read_header, segment_path,
};
use super::source::cut_of;
use super::{Faults, Operation, SyncMode};

/// Segments whose chunk offsets a reader remembers (64 KiB each at most, for 64 MiB segments).
const TABLES_MAX: usize = 32;

/// What helpers report. Bounded by what they were asked: chunks by the byte budget, reads by their limit, one open, one
/// checkpoint, one seal.
#[derive(Debug)]
pub(super) enum Done {
    Written {
        seq: u64,
        result: Result<(), WalError>,
    },
    Read {
        token: u64,
        seq: u64,
        segment: u64,
        result: Result<Chunk, WalError>,
    },
    Opened {
        id: u64,
        file: Arc<SegmentFile>,
    },
    OpenFailed {
        error: WalError,
    },
    Space(Space),
    Retry,
    Checkpoint {
        token: u64,
        result: Result<(), WalError>,
    },
    Sealed {
        result: Result<(), WalError>,
    },
    SyncFailed {
        error: WalError,
    },
}

/// One chunk to write.
#[derive(Debug, Clone)]
pub(super) struct WriteJob {
    pub(super) seq: u64,
    pub(super) file: Arc<SegmentFile>,
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
}

/// One chunk to read.
#[derive(Debug)]
pub(super) enum ReadJob {
    Chunk {
        token: u64,
        seq: u64,
        segment: u64,
        epoch: u64,
        first_seq: u64,
        offset: Option<u64>,
    },
    Forget {
        segment: u64,
    },
}

/// What all helpers of a lane share.
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) lane: u32,
    pub(super) epoch: u64,
    pub(super) sync: SyncMode,
    pub(super) segment_len: u64,
    /// Spares, at most.
    pub(super) spares_max: usize,
    pub(super) spares_half_life: Duration,
    /// Bytes.
    pub(super) remove_step: u64,
    pub(super) remove_pause: Duration,
    pub(super) faults: Option<Arc<dyn Faults>>,
    pub(super) done: Sender<Done>,
    pub(super) wake: Option<Wake>,
    pub(super) stop: AtomicBool,
    /// The front's acknowledged prefix.
    pub(super) acked: AtomicU64,
    /// The prefix that was synced; unused with [`SyncMode::Always`], where it is the acknowledged one.
    pub(super) synced: AtomicU64,
    /// Files with writes that are not synced (never with [`SyncMode::Always`]).
    pub(super) dirty: Mutex<Vec<Arc<SegmentFile>>>,
    /// Held while files are synced.
    pub(super) syncing: Mutex<()>,
    /// A sync has failed: nothing may be called durable any more.
    pub(super) sync_failed: AtomicBool,
}

impl Shared {
    pub(super) fn report(&self, done: Done) {
        // The front is gone: nobody wants to know any more.
        let _ = self.done.send(done);
        if let Some(wake) = &self.wake {
            wake();
        }
    }

    pub(super) fn fault(&self, operation: Operation) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |f| f.before(operation))
    }

    /// Room that is free for us on the lane's file system, bytes; 0 if it does not say.
    pub(super) fn free_bytes(&self) -> u64 {
        let told = self.faults.as_ref().and_then(|f| f.free_bytes());
        told.unwrap_or_else(|| {
            rustix::fs::statvfs(&self.dir).map_or(0, |s| s.f_bavail.saturating_mul(s.f_frsize))
        })
    }

    /// Syncs all that was acknowledged before the call.
    ///
    /// # Errors
    /// If it cannot, now or ever before, for good: what was not synced may be gone from the page cache, and no second attempt can tell. The
    /// front is told the first time.
    pub(super) fn sync_dirty(&self) -> Result<(), WalError> {
        let _one_at_a_time = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sync_failed.load(Ordering::Relaxed) {
            let text = format!("a sync of a segment in {} has failed", self.dir.display());
            return Err(WalError::Unavailable(text));
        }
        // In this order: an acknowledged write noted its file first.
        let upto = self.acked.load(Ordering::Acquire);
        let files = std::mem::take(&mut *self.dirty.lock().unwrap_or_else(PoisonError::into_inner));
        for file in files {
            if let Err(e) = file.sync() {
                self.sync_failed.store(true, Ordering::Relaxed);
                let text = format!("syncing a segment in {}: {e}", self.dir.display());
                let error = WalError::Unavailable(text);
                self.report(Done::SyncFailed {
                    error: error.clone(),
                });
                return Err(error);
            }
        }
        self.synced.fetch_max(upto, Ordering::AcqRel);
        Ok(())
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Maps an IO error onto the log's errors.
pub(super) fn wal_error(what: &str, path: &Path, error: &io::Error) -> WalError {
    let text = format!("{what} {}: {error}", path.display());
    match remedy(error) {
        _ if is_full(error) => WalError::Full(text),
        Some(remedy) => WalError::Exhausted(format!("{text}. {remedy}")),
        None => WalError::Unavailable(text),
    }
}

/// What helps where the system, not the disk, refused; `None` for any other error.
fn remedy(error: &io::Error) -> Option<String> {
    match error.raw_os_error().map(Errno::from_raw_os_error)? {
        Errno::MFILE => Some(format!(
            "Raise the broker's limit of open files (`ulimit -n` before it starts, `prlimit --pid {} --nofile=NUMBER` now) or close \
             connections",
            std::process::id()
        )),
        Errno::NFILE => Some("Raise the system's limit of open files (sysctl fs.file-max)".into()),
        Errno::NOMEM => Some("Free some memory on this machine".into()),
        Errno::INTR => Some("The call was interrupted and is tried again".into()),
        _ => None,
    }
}

/// Whether there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Starts a thread named after its lane.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    name: &str,
    body: impl FnOnce(&Shared) + Send + 'static,
) -> Result<JoinHandle<()>, WalError> {
    let shared = shared.clone();
    std::thread::Builder::new()
        .name(format!("{name}-{}", shared.lane))
        .spawn(move || body(&shared))
        .map_err(|e| WalError::Unavailable(format!("starting a helper thread: {e}")))
}

/// Writes chunks until the front is gone; what was handed in before is written first.
pub(super) fn writer(shared: &Shared, jobs: &Receiver<WriteJob>) {
    for job in jobs {
        let result = shared
            .fault(Operation::Write { seq: job.seq })
            .and_then(|()| job.file.write(&job.bytes, job.offset))
            .map_err(|e| wal_error("writing a chunk in", &shared.dir, &e));
        if result.is_ok() && shared.sync != SyncMode::Always && job.file.soil() {
            shared
                .dirty
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(job.file.clone());
        }
        // The memory may go before the news does.
        let seq = job.seq;
        drop(job);
        shared.report(Done::Written { seq, result });
    }
}

/// Syncs what was written, every `interval`; a last time when the front is gone.
pub(super) fn syncer(shared: &Shared, interval: Duration, front: &Receiver<()>) {
    loop {
        let last = !matches!(front.recv_timeout(interval), Err(RecvTimeoutError::Timeout));
        // The front hears of a failure.
        let _ = shared.sync_dirty();
        if last {
            return;
        }
    }
}

/// A segment as the reader knows it.
struct Table {
    segment: u64,
    file: File,
    path: PathBuf,
    /// Page numbers of its chunks from `first_seq` on, as far as they were walked.
    pages: Vec<u32>,
    /// Where the walk goes on.
    next: u64,
}

/// Answers reads.
pub(super) fn reader(shared: &Shared, seals: &[Seal], jobs: &Receiver<ReadJob>) {
    let mut tables: VecDeque<Table> = VecDeque::new();
    for job in jobs {
        match job {
            ReadJob::Forget { segment } => tables.retain(|t| t.segment != segment),
            ReadJob::Chunk {
                token,
                seq,
                segment,
                epoch,
                first_seq,
                offset,
            } => {
                let want = Expected {
                    lane: shared.lane,
                    epoch,
                    seq,
                    cut: cut_of(seals, epoch, seq),
                };
                let result = match shared.stopping() {
                    true => Err(WalError::Closed),
                    false => read_one(shared, &mut tables, segment, first_seq, offset, want),
                };
                shared.report(Done::Read {
                    token,
                    seq,
                    segment,
                    result,
                });
            }
        }
    }
}

fn read_one(
    shared: &Shared,
    tables: &mut VecDeque<Table>,
    segment: u64,
    first_seq: u64,
    offset: Option<u64>,
    want: Expected,
) -> Result<Chunk, WalError> {
    let path = segment_path(&shared.dir, segment);
    shared
        .fault(Operation::Read { seq: want.seq })
        .map_err(|e| wal_error("reading", &path, &e))?;
    let mut table = match tables
        .iter()
        .position(|t| t.segment == segment)
        .and_then(|at| tables.remove(at))
    {
        Some(table) => table,
        None => {
            let file = regular::open(&path).map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => WalError::Trimmed,
                _ => wal_error("reading", &path, &e),
            })?;
            Table {
                segment,
                file,
                path,
                pages: Vec::new(),
                next: SEGMENT_HEADER_LEN as u64,
            }
        }
    };
    let result = match offset {
        Some(offset) => read_chunk(&table.file, &table.path, offset, want),
        None => walk(&mut table, first_seq, want)
            .and_then(|at| read_chunk(&table.file, &table.path, at, want)),
    };
    tables.push_back(table);
    if tables.len() > TABLES_MAX {
        tables.pop_front();
    }
    result
}

/// Where the wanted chunk lies, walking from header to header. Over a damaged one the walk goes page by page.
fn walk(table: &mut Table, first_seq: u64, want: Expected) -> Result<u64, WalError> {
    let at = (want.seq - first_seq) as usize;
    let len = table
        .file
        .metadata()
        .map_err(|e| wal_error("reading", &table.path, &e))?
        .len();
    while table.pages.len() <= at && table.next < len {
        let known = first_seq + table.pages.len() as u64;
        match read_header(&table.file, table.next) {
            Ok(h)
                if h.epoch == want.epoch
                    && h.lane == want.lane
                    && h.seq >= known
                    && h.seq - known < len =>
            {
                let page = (table.next / PAGE as u64) as u32;
                // Damaged ones in between are looked for, and reported, where they should begin.
                let lost = table.pages.last().map_or(1, |p| p + 1);
                table.pages.extend((known..h.seq).map(|_| lost));
                table.pages.push(page);
                table.next += h.padded_len() as u64;
            }
            Ok(_) | Err(Ok(_)) => table.next += PAGE as u64,
            Err(Err(e)) => return Err(wal_error("reading", &table.path, &e)),
        }
    }
    match table.pages.get(at) {
        Some(page) => Ok(u64::from(*page) * PAGE as u64),
        None => Err(WalError::Corrupt {
            file: table.path.clone(),
            offset: table
                .pages
                .last()
                .map_or(0, |p| u64::from(*p) * PAGE as u64),
            seq: want.seq,
            what: "no chunk of that number is left in the file".into(),
        }),
    }
}
