//! The embedded log of one lane: segment files written with direct IO by helper threads, group-committed.
//!
//! `DATA/lane-N/` holds `00000001.seg` (chunks), `*.spare` (zeroed or recycled files waiting to become segments), `*.removing` (on their way out),
//! `*.checkpoint` and `manifest` (ends of earlier epochs, dropped segments). Two writes may be in flight; what is
//! acknowledged is always a contiguous prefix.
//!
//! A segment is a 4096-byte header, then chunks back to back. Files are never cleared when used again: a chunk belongs to
//! a segment only if it has the segment's epoch and a number from the segment's first on, and numbers of an epoch are
//! never given twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

mod front;
mod helpers;
mod housekeeper;
mod manifest;
mod need;
mod options;
mod recover;
mod removal;
mod segment;
mod source;
#[cfg(test)]
mod tests;

use self::helpers::{Done, ReadJob, Shared, WriteJob};
use self::housekeeper::{Chore, Housekeeper};
use self::manifest::Seal;
pub(super) use self::manifest::write_atomically;
pub use self::options::{Faults, FileOptions, Operation, SyncMode};
use self::segment::{SEGMENT_HEADER_LEN, SegmentFile};
use super::chunk::{Chunk, PAGE, padded};
use super::wal::{Recovery, Segment, Space, WalError, WalEvent};

const WRITERS: usize = 2;
/// Segments whose chunk offsets are kept from writing; of older ones the reader finds them again.
const TABLES_MAX: usize = 4;

/// A segment as the front knows it.
#[derive(Debug)]
struct Known {
    segment: Segment,
    epoch: u64,
    /// Page numbers of its chunks; empty when they have to be found by reading.
    pages: Vec<u32>,
}

/// The segment that takes chunks now.
struct Active {
    file: Arc<SegmentFile>,
    next: u64,
}

/// A chunk on its way. The memory is held until it is acknowledged, so that it can be written again.
struct Unacked {
    chunk: Chunk,
    /// Where it was sent to, once it was.
    job: Option<WriteJob>,
    written: bool,
}

/// The log of one lane in files.
pub struct FileWal {
    lane: u32,
    epoch: u64,
    options: FileOptions,
    segment_len: u64,
    shared: Arc<Shared>,
    writers: Option<Sender<WriteJob>>,
    reader: Option<Sender<ReadJob>>,
    housekeeper: Option<Sender<Chore>>,
    syncer: Option<Sender<()>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,

    next_seq: u64,
    acked: u64,
    reported: u64,
    unacked: BTreeMap<u64, Unacked>,
    unacked_bytes: usize,
    /// Not sent to the writers yet.
    queue: VecDeque<u64>,
    /// To be written again once there is room.
    refused: BTreeSet<u64>,
    segments: Vec<Known>,
    active: Option<Active>,
    next_id: u64,
    opening: bool,
    reads: usize,
    checkpointing: bool,
    space: Space,
    sealing: bool,
    sealed: bool,
    seal_sent: bool,
    failed: Option<WalError>,
    closed: bool,
    events: Vec<WalEvent>,
}

impl std::fmt::Debug for FileWal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWal")
            .field("lane", &self.lane)
            .field("epoch", &self.epoch)
            .field("next_seq", &self.next_seq)
            .field("acked", &self.acked)
            .finish_non_exhaustive()
    }
}

/// The directory of a lane.
pub fn lane_dir(data: &Path, lane: u32) -> PathBuf {
    data.join(format!("lane-{lane}"))
}

impl FileWal {
    /// Whether the lane was ever opened in this data directory.
    pub fn exists(data: &Path, lane: u32) -> bool {
        // Not `exists`, which is also false for a link that leads nowhere: that is for opening to tell.
        manifest::Manifest::path(&lane_dir(data, lane))
            .symlink_metadata()
            .is_ok()
    }

    /// Opens lane `lane` of the data directory in `epoch`, which must be above all earlier ones (`Fenced` otherwise).
    ///
    /// A torn tail is cut for good and reported in the answer. Damage found at the end of the lane is `Corrupt` here;
    /// damage further back shows when [`Recovery::chunks`] comes to it. Blocks on disk.
    pub fn open(
        data: &Path,
        lane: u32,
        epoch: u64,
        options: FileOptions,
    ) -> Result<(Self, Recovery), WalError> {
        let dir = lane_dir(data, lane);
        let segment_len = padded(options.segment_bytes).max(2 * PAGE) as u64;
        let spares_max = need::spares_max(options.spares_bytes_max, segment_len);
        let (checkpoint, next_checkpoint) = manifest::load_checkpoint(&dir, lane)?;
        let covered = checkpoint.as_ref().map(|(path, c)| recover::Covered {
            by: path,
            upto: c.upto,
        });
        let opened = recover::open(&dir, lane, epoch, segment_len, spares_max, covered)?;
        let checkpoint = checkpoint.map(|(_, checkpoint)| checkpoint);
        let upto = opened.last_seq;
        if let Some(torn) = &opened.torn {
            tracing::warn!(
                file = %torn.file.display(), offset = torn.offset, bytes = torn.bytes, chunk = torn.seq, found = %torn.what,
                "cut a torn end off the log; nothing behind it was acknowledged"
            );
        }
        let seals = opened.manifest.seals.clone();
        let source = source::FileSource::new(&dir, lane, opened.live.clone(), seals.clone());
        let recovery = Recovery {
            first_seq: opened.manifest.start_seq,
            last_seq: upto,
            checkpoint,
            torn: opened.torn,
            source: Box::new(source),
        };
        let (done_tx, done) = unbounded();
        let shared = Arc::new(Shared {
            dir,
            lane,
            epoch,
            sync: options.sync,
            segment_len,
            spares_max,
            spares_half_life: options.spares_half_life,
            remove_step: options.remove_step,
            remove_pause: options.remove_pause,
            faults: options.faults.clone(),
            done: done_tx,
            wake: options.wake.clone(),
            stop: AtomicBool::new(false),
            acked: AtomicU64::new(upto),
            synced: AtomicU64::new(upto),
            dirty: Mutex::default(),
            syncing: Mutex::default(),
            sync_failed: AtomicBool::new(false),
        });
        let known = |s: recover::LiveSegment| Known {
            segment: Segment {
                id: s.id,
                first_seq: s.first_seq,
                last_seq: s.last_seq,
                bytes: s.len.saturating_sub(SEGMENT_HEADER_LEN as u64),
                open: false,
            },
            epoch: s.epoch,
            pages: Vec::new(),
        };
        let mut wal = Self {
            lane,
            epoch,
            options,
            segment_len,
            shared,
            writers: None,
            reader: None,
            housekeeper: None,
            syncer: None,
            done,
            threads: Vec::new(),
            next_seq: upto + 1,
            acked: upto,
            reported: upto,
            unacked: BTreeMap::new(),
            unacked_bytes: 0,
            queue: VecDeque::new(),
            refused: BTreeSet::new(),
            segments: opened.live.into_iter().map(known).collect(),
            active: None,
            next_id: opened.next_id,
            opening: false,
            reads: 0,
            checkpointing: false,
            space: Space::Ok,
            sealing: false,
            sealed: false,
            seal_sent: false,
            failed: None,
            closed: false,
            events: Vec::new(),
        };
        wal.start(opened.manifest, opened.spares, next_checkpoint, seals)?;
        Ok((wal, recovery))
    }

    /// Starts the helpers. Their queues are unbounded channels, bounded by what the front lets in.
    fn start(
        &mut self,
        manifest: manifest::Manifest,
        spares: Vec<PathBuf>,
        next_checkpoint: u64,
        seals: Vec<Seal>,
    ) -> Result<(), WalError> {
        let (jobs, receiver) = unbounded();
        self.writers = Some(jobs);
        for _ in 0..WRITERS {
            let receiver: Receiver<WriteJob> = receiver.clone();
            self.threads
                .push(helpers::spawn(&self.shared, "wal-write", move |s| {
                    helpers::writer(s, &receiver)
                })?);
        }
        let (jobs, receiver) = unbounded();
        self.reader = Some(jobs);
        self.threads
            .push(helpers::spawn(&self.shared, "wal-read", move |s| {
                helpers::reader(s, &seals, &receiver)
            })?);
        let (chores, receiver) = unbounded();
        self.housekeeper = Some(chores);
        let keep =
            move |s: &Shared| Housekeeper::new(s, manifest, spares, next_checkpoint).run(&receiver);
        self.threads
            .push(helpers::spawn(&self.shared, "wal-keep", keep)?);
        if let SyncMode::Interval(interval) = self.options.sync {
            let (front, receiver) = unbounded();
            self.syncer = Some(front);
            self.threads
                .push(helpers::spawn(&self.shared, "wal-sync", move |s| {
                    helpers::syncer(s, interval, &receiver)
                })?);
        }
        Ok(())
    }

    fn usable(&self) -> Result<(), WalError> {
        match &self.failed {
            _ if self.closed => Err(WalError::Closed),
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn chore(&self, chore: Chore) {
        if let Some(housekeeper) = &self.housekeeper {
            // It ends only after this sender is gone.
            let _ = housekeeper.send(chore);
        }
    }

    /// Sends queued chunks to the writers, as far as the segment at hand takes them.
    fn pump(&mut self) {
        while self.failed.is_none() && self.refused.is_empty() && !self.opening {
            let Some(&seq) = self.queue.front() else {
                return;
            };
            let Some(unacked) = self.unacked.get_mut(&seq) else {
                return;
            };
            let len = unacked.chunk.bytes().len() as u64;
            let Some(active) = self
                .active
                .as_mut()
                .filter(|a| a.next + len <= self.segment_len)
            else {
                self.roll(seq);
                return;
            };
            let bytes = unacked.chunk.bytes().clone();
            let job = WriteJob {
                seq,
                file: active.file.clone(),
                offset: active.next,
                bytes,
            };
            if let Some(known) = self.segments.last_mut() {
                known.pages.push((active.next / PAGE as u64) as u32);
                known.segment.last_seq = seq;
                known.segment.bytes += len;
            }
            active.next += len;
            unacked.job = Some(job.clone());
            self.queue.pop_front();
            self.send(job);
        }
    }

    fn send(&self, job: WriteJob) {
        if let Some(writers) = &self.writers {
            // They end only after this sender is gone.
            let _ = writers.send(job);
        }
    }

    /// Closes the segment at hand and asks for the next, whose first chunk is `seq`.
    fn roll(&mut self, seq: u64) {
        self.active = None;
        if let Some(known) = self.segments.last_mut() {
            known.segment.open = false;
        }
        let old = self.segments.len().saturating_sub(TABLES_MAX);
        for known in self.segments.iter_mut().take(old) {
            known.pages = Vec::new();
        }
        if self.options.sync == SyncMode::Never {
            self.chore(Chore::Sync);
        }
        self.opening = true;
        self.chore(Chore::Open {
            id: self.next_id,
            first_seq: seq,
        });
    }

    fn fail(&mut self, error: WalError) {
        if self.failed.is_none() {
            tracing::error!(lane = self.lane, error = %error, "the log stops");
            self.failed = Some(error.clone());
            self.queue.clear();
            self.events.push(WalEvent::Failed { error });
        }
    }

    /// Nothing can be written for now.
    fn stall(&mut self, error: WalError) {
        if self.space != Space::Full {
            self.set_space(Space::Full);
            self.events.push(WalEvent::Failed { error });
        }
    }

    fn set_space(&mut self, space: Space) {
        if self.space != space {
            self.space = space;
            self.events.push(WalEvent::Space(space));
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Written {
                seq,
                result: Ok(()),
            } => self.on_written(seq),
            Done::Written {
                seq,
                result: Err(error),
            } if error.heals() => {
                if self.refused.is_empty() {
                    self.chore(Chore::RetryLater);
                }
                self.refused.insert(seq);
                self.stall(error);
            }
            Done::Written {
                result: Err(error), ..
            }
            | Done::SyncFailed { error } => self.fail(error),
            Done::Opened { id, file } => {
                self.opening = false;
                self.next_id = id + 1;
                self.active = Some(Active {
                    file,
                    next: SEGMENT_HEADER_LEN as u64,
                });
                let first_seq = self.queue.front().copied().unwrap_or(self.next_seq);
                let segment = Segment {
                    id,
                    first_seq,
                    last_seq: first_seq - 1,
                    bytes: 0,
                    open: true,
                };
                self.segments.push(Known {
                    segment,
                    epoch: self.epoch,
                    pages: Vec::new(),
                });
                if self.refused.is_empty() {
                    self.set_space(Space::Ok);
                }
            }
            Done::OpenFailed { error } if error.heals() => self.stall(error),
            Done::OpenFailed { error } => self.fail(error),
            Done::Space(space) if self.space != Space::Full || self.can_write() => {
                self.set_space(space)
            }
            Done::Space(_) => {}
            Done::Retry => self.write_refused(),
            Done::Read {
                token,
                seq,
                segment,
                result,
            } => {
                self.reads = self.reads.saturating_sub(1);
                // A segment that is dropped while a read waits leaves anything in its place.
                let gone = !self.segments.iter().any(|k| k.segment.id == segment);
                let result = if gone { Err(WalError::Trimmed) } else { result };
                self.events.push(WalEvent::Read { token, seq, result });
            }
            Done::Checkpoint { token, result } => {
                self.checkpointing = false;
                self.events.push(WalEvent::Checkpoint { token, result });
            }
            Done::Sealed { result: Ok(()) } => {
                self.sealed = true;
                self.events.push(WalEvent::Sealed {
                    last_seq: self.acked,
                });
            }
            Done::Sealed { result: Err(error) } => self.fail(error),
        }
        self.pump();
        if self.sealing
            && !self.seal_sent
            && self.failed.is_none()
            && self.acked + 1 == self.next_seq
        {
            self.send_seal();
        }
    }

    fn can_write(&self) -> bool {
        self.refused.is_empty() && !self.opening
    }

    fn send_seal(&mut self) {
        self.seal_sent = true;
        self.chore(Chore::Seal(Seal {
            epoch: self.epoch,
            last_seq: self.acked,
            cut: None,
        }));
    }

    fn on_written(&mut self, seq: u64) {
        if self.failed.is_some() {
            return;
        }
        if let Some(unacked) = self.unacked.get_mut(&seq) {
            unacked.written = true;
        }
        while self
            .unacked
            .first_key_value()
            .is_some_and(|(_, u)| u.written)
        {
            if let Some((seq, unacked)) = self.unacked.pop_first() {
                self.acked = seq;
                self.unacked_bytes -= unacked.chunk.bytes().len();
            }
        }
        self.shared.acked.store(self.acked, Ordering::Release);
        if self.space == Space::Full && self.can_write() {
            self.set_space(Space::Ok);
        }
    }

    fn write_refused(&mut self) {
        if self.failed.is_some() || self.refused.is_empty() {
            return;
        }
        for seq in std::mem::take(&mut self.refused) {
            if let Some(job) = self.unacked.get(&seq).and_then(|u| u.job.clone()) {
                self.send(job);
            }
        }
    }

    fn report_acked(&mut self) {
        if self.acked > self.reported {
            self.reported = self.acked;
            self.events.push(WalEvent::Durable { upto: self.acked });
        }
    }

    fn take_in(&mut self) {
        while let Ok(done) = self.done.try_recv() {
            self.on_done(done);
        }
        self.report_acked();
    }

    /// Waits until `ready`, a failure or the deadline.
    fn wait(&mut self, deadline: Instant, ready: impl Fn(&Self) -> bool) {
        self.take_in();
        while !ready(self) && self.failed.is_none() {
            match self.done.recv_deadline(deadline) {
                Ok(done) => self.on_done(done),
                Err(_) => break,
            }
        }
        self.report_acked();
    }

    /// Ends the helpers; one that hangs on the disk is left behind.
    fn stop(&mut self, deadline: Instant) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.writers = None;
        self.reader = None;
        self.housekeeper = None;
        self.syncer = None;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!(lane = self.lane, "a helper thread of the log panicked");
            }
        }
        self.take_in();
    }

    fn find(&self, seq: u64) -> Option<&Known> {
        let after = self
            .segments
            .partition_point(|k| k.segment.first_seq <= seq);
        self.segments
            .get(after.checked_sub(1)?)
            .filter(|k| seq <= k.segment.last_seq)
    }
}
