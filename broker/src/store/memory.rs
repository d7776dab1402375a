//! A log in memory for tests and the simulator. It follows the same rules as the file engine, deterministically: nothing
//! becomes durable, and no read is answered, until the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

mod front;

use super::chunk::{BufferPool, Chunk, ChunkBuilder, padded};
use super::tail::{self, End, Seen};
use super::wal::{
    Checkpoint, ChunkSource, Recovery, Segment, Space, TornTail, Wake, WalError, WalEvent,
};

/// Bounds of a [`MemoryWal`].
#[derive(Debug, Clone, Copy)]
pub struct MemoryOptions {
    /// Budget of un-acknowledged bytes.
    pub unacked_bytes_max: usize,
    /// Reads that may wait.
    pub reads_max: usize,
    /// Bytes per segment.
    pub segment_bytes: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            unacked_bytes_max: 32 << 20,
            reads_max: 64,
            segment_bytes: 64 << 20,
        }
    }
}

/// What a crash leaves of a write that was not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// The first so many bytes.
    Prefix(usize),
    /// All of it: durable, though nobody was told.
    All,
}

/// A handle of a log in memory. Clones share it: give one to the broker and control it through the other.
#[derive(Clone)]
pub struct MemoryWal {
    state: Arc<Mutex<State>>,
}

/// What survives a crash, see [`MemoryWal::crash`].
#[derive(Debug, Clone)]
pub struct MemoryDisk {
    lane: u32,
    epoch: u64,
    options: MemoryOptions,
    chunks: BTreeMap<u64, Bytes>,
    sealed: u64,
    segments: Vec<Segment>,
    /// Runs of dropped chunks, first and last.
    holes: Vec<(u64, u64)>,
    checkpoint: Option<Checkpoint>,
}

struct State {
    disk: MemoryDisk,
    wake: Option<Wake>,
    next_seq: u64,
    acked: u64,
    reported: u64,
    /// Submitted, not complete.
    pending: VecDeque<Chunk>,
    /// Complete, above a gap.
    complete: BTreeSet<u64>,
    unacked: BTreeMap<u64, usize>,
    reads: VecDeque<(u64, u64)>,
    checkpoints: VecDeque<(u64, Checkpoint)>,
    events: Vec<WalEvent>,
    fail_next: Option<WalError>,
    failed: Option<WalError>,
    space: Space,
    sealing: bool,
    sealed: bool,
    closed: bool,
}

impl std::fmt::Debug for MemoryWal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("MemoryWal")
            .field("next_seq", &state.next_seq)
            .field("acked", &state.acked)
            .finish_non_exhaustive()
    }
}

impl MemoryDisk {
    /// An empty disk.
    pub fn new(lane: u32, options: MemoryOptions) -> Self {
        Self {
            lane,
            epoch: 0,
            options,
            chunks: BTreeMap::new(),
            sealed: 0,
            segments: Vec::new(),
            holes: Vec::new(),
            checkpoint: None,
        }
    }

    /// Opens the lane in a new epoch, which must be above all before (`Fenced` otherwise). Applies the torn-tail rule:
    /// `Corrupt` when a durable chunk is damaged.
    pub fn reopen(
        mut self,
        epoch: u64,
        wake: Option<Wake>,
    ) -> Result<(MemoryWal, Recovery), WalError> {
        if epoch <= self.epoch {
            return Err(WalError::Fenced);
        }
        let torn = self.cut()?;
        let last_seq = self.sealed;
        self.epoch = epoch;
        let first_seq = self.chunks.keys().next().copied().unwrap_or(last_seq + 1);
        let partial = torn.as_ref().is_some_and(|t| t.seq == last_seq);
        self.checkpoint
            .take_if(|c| c.upto > last_seq || (partial && c.upto == last_seq));
        self.segments.retain_mut(|s| {
            s.open = false;
            s.last_seq = s.last_seq.min(last_seq);
            s.first_seq <= s.last_seq
        });
        let source = Box::new(MemorySource {
            lane: self.lane,
            chunks: self.chunks.clone(),
        });
        let recovery = Recovery {
            first_seq,
            last_seq,
            checkpoint: self.checkpoint.clone(),
            torn,
            source,
        };
        Ok((
            MemoryWal {
                state: Arc::new(Mutex::new(State::new(self, wake))),
            },
            recovery,
        ))
    }

    /// Bytes of a stored chunk, to damage them.
    pub fn chunk_mut(&mut self, seq: u64) -> Option<&mut Bytes> {
        self.chunks.get_mut(&seq)
    }

    /// Where the unsealed part ends; makes the cut.
    fn cut(&mut self) -> Result<Option<TornTail>, WalError> {
        let mut seen = Vec::new();
        for (seq, bytes) in self.chunks.range(self.sealed + 1..) {
            if let Ok(parsed) = Chunk::parse(bytes.clone()) {
                let header = *parsed.chunk.header();
                let (payload_len, whole) = (header.payload_len, parsed.is_whole());
                seen.push(Seen {
                    seq: *seq,
                    durable: header.durable,
                    payload_len,
                    whole,
                });
            }
        }
        let (last, payload_len, bad) =
            match tail::end(self.sealed + 1, self.sealed, &self.holes, &seen) {
                End::Whole { last } => (last, None, None),
                End::Torn {
                    last,
                    payload_len,
                    bad,
                } => (last, payload_len, Some(bad)),
                End::Corrupt { seq } => {
                    return Err(damage(self.lane, seq, "a durable chunk is damaged"));
                }
            };
        let given_up: usize = self.chunks.range(last + 1..).map(|(_, b)| b.len()).sum();
        // A bad chunk at the very end that left no readable header is a torn tail too.
        let bad = bad.or((given_up > 0).then_some(last + 1));
        self.chunks.split_off(&(last + 1));
        if let (Some(len), Some(bytes)) = (payload_len, self.chunks.get(&last)) {
            let mut chunk = Chunk::parse(bytes.clone())
                .map_err(|e| damage(self.lane, last, &e.to_string()))?
                .chunk;
            chunk.truncate(len);
            let kept = rebuild(&chunk);
            self.chunks.insert(last, kept);
        }
        self.sealed = last.max(self.sealed);
        Ok(bad.map(|seq| TornTail {
            file: PathBuf::from(format!("lane-{}", self.lane)),
            offset: u64::from(payload_len.unwrap_or(0)),
            seq,
            bytes: given_up as u64,
            what: "the last write is not complete".into(),
        }))
    }
}

/// The same chunk with exactly the records it was cut to.
fn rebuild(chunk: &Chunk) -> Bytes {
    let header = chunk.header();
    // What is left of the write need not be whole pages; the block that takes its records must.
    let mut builder = ChunkBuilder::new(
        &BufferPool::new(header.epoch, 0),
        padded(chunk.bytes().len()),
    );
    for (_, body) in chunk.records() {
        builder.append(&[chunk.bytes().get(body).unwrap_or_default()]);
    }
    builder
        .seal(header.epoch, header.lane, header.seq, header.durable)
        .bytes()
        .clone()
}

fn damage(lane: u32, seq: u64, what: &str) -> WalError {
    WalError::Corrupt {
        file: PathBuf::from(format!("lane-{lane}")),
        offset: 0,
        seq,
        what: what.into(),
    }
}

struct MemorySource {
    lane: u32,
    chunks: BTreeMap<u64, Bytes>,
}

impl ChunkSource for MemorySource {
    fn next(&mut self, seq: u64) -> Option<Result<Chunk, WalError>> {
        let (seq, bytes) = self.chunks.range(seq..).next()?;
        Some(parse_whole(self.lane, *seq, bytes))
    }
}

fn parse_whole(lane: u32, seq: u64, bytes: &Bytes) -> Result<Chunk, WalError> {
    let parsed = Chunk::parse(bytes.clone()).map_err(|e| damage(lane, seq, &e.to_string()))?;
    match parsed.damage {
        None => Ok(parsed.chunk),
        Some(d) => Err(damage(lane, seq, &d.what.to_string())),
    }
}

impl State {
    fn new(disk: MemoryDisk, wake: Option<Wake>) -> Self {
        let acked = disk.sealed;
        Self {
            disk,
            wake,
            next_seq: acked + 1,
            acked,
            reported: acked,
            pending: VecDeque::new(),
            complete: BTreeSet::new(),
            unacked: BTreeMap::new(),
            reads: VecDeque::new(),
            checkpoints: VecDeque::new(),
            events: Vec::new(),
            fail_next: None,
            failed: None,
            space: Space::Ok,
            sealing: false,
            sealed: false,
            closed: false,
        }
    }

    fn unacked_bytes(&self) -> usize {
        self.unacked.values().sum()
    }

    fn chunk_len_max(&self) -> usize {
        self.disk
            .options
            .segment_bytes
            .min(self.disk.options.unacked_bytes_max)
    }

    /// The write at `at` of the pending ones ends.
    fn complete(&mut self, at: usize) -> bool {
        if self.failed.is_some() || self.closed || at >= self.pending.len() {
            return false;
        }
        if let Some(error) = self.fail_next.take() {
            match &error {
                error if error.heals() => self.space = Space::Full,
                _ => self.failed = Some(error.clone()),
            }
            self.events.push(WalEvent::Failed { error });
            return true;
        }
        if self.space == Space::Full {
            return false;
        }
        if let Some(chunk) = self.pending.remove(at) {
            self.complete.insert(chunk.seq());
            self.disk.chunks.insert(chunk.seq(), chunk.bytes().clone());
        }
        while self.complete.remove(&(self.acked + 1)) {
            self.acked += 1;
            self.unacked.remove(&self.acked);
        }
        if self.acked > self.reported {
            self.reported = self.acked;
            self.events.push(WalEvent::Durable { upto: self.acked });
        }
        self.settle();
        true
    }

    fn settle(&mut self) {
        if self.sealing && !self.sealed && self.acked + 1 == self.next_seq {
            self.sealed = true;
            self.disk.sealed = self.acked;
            self.events.push(WalEvent::Sealed {
                last_seq: self.acked,
            });
        }
    }

    fn place(&mut self, seq: u64, len: usize) {
        let limit = self.disk.options.segment_bytes as u64;
        if let Some(open) = self.disk.segments.last_mut().filter(|s| s.open) {
            if open.bytes + len as u64 <= limit {
                open.bytes += len as u64;
                open.last_seq = seq;
                return;
            }
            open.open = false;
        }
        let id = self.disk.segments.last().map_or(1, |s| s.id + 1);
        self.disk.segments.push(Segment {
            id,
            first_seq: seq,
            last_seq: seq,
            bytes: len as u64,
            open: true,
        });
    }

    fn drop_segment(&mut self, id: u64) -> Result<(), WalError> {
        let at = self
            .disk
            .segments
            .iter()
            .position(|s| s.id == id)
            .ok_or(WalError::Absent)?;
        let segment = self.disk.segments.get(at).ok_or(WalError::Absent)?;
        if segment.open || segment.last_seq > self.acked {
            return Err(WalError::Backpressure);
        }
        let segment = self.disk.segments.remove(at);
        self.disk.holes.push((segment.first_seq, segment.last_seq));
        self.disk.holes.sort_unstable();
        self.disk
            .chunks
            .retain(|seq, _| *seq < segment.first_seq || *seq > segment.last_seq);
        Ok(())
    }

    fn wake(&self) -> Option<Wake> {
        self.wake.clone()
    }
}

impl MemoryWal {
    /// A new, empty lane.
    pub fn new(lane: u32, epoch: u64, options: MemoryOptions, wake: Option<Wake>) -> Self {
        let mut disk = MemoryDisk::new(lane, options);
        disk.epoch = epoch;
        Self {
            state: Arc::new(Mutex::new(State::new(disk, wake))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, wake) = {
            let mut state = self.lock();
            (change(&mut state), state.wake())
        };
        if let Some(wake) = wake {
            wake();
        }
        result
    }

    /// Numbers of the writes that are not complete, oldest first.
    pub fn pending_writes(&self) -> Vec<u64> {
        self.lock().pending.iter().map(Chunk::seq).collect()
    }

    /// Completes the oldest write. `false` when there is none or writing has stopped.
    pub fn complete_one(&self) -> bool {
        self.change(|s| s.complete(0))
    }

    /// Completes the write at `at` of [`MemoryWal::pending_writes`], so that writes end out of order.
    pub fn complete_at(&self, at: usize) -> bool {
        self.change(|s| s.complete(at))
    }

    /// Completes all writes, reads and checkpoints. Answers how many there were.
    pub fn complete_all(&self) -> usize {
        let mut done = 0;
        while self.complete_one() || self.complete_read() || self.complete_checkpoint() {
            done += 1;
        }
        done
    }

    /// Answers the oldest read.
    pub fn complete_read(&self) -> bool {
        self.change(|s| {
            let Some((token, seq)) = s.reads.pop_front() else {
                return false;
            };
            let result = match s.disk.chunks.get(&seq) {
                Some(bytes) => parse_whole(s.disk.lane, seq, bytes),
                None => Err(WalError::Trimmed),
            };
            s.events.push(WalEvent::Read { token, seq, result });
            true
        })
    }

    /// Makes the oldest checkpoint durable.
    pub fn complete_checkpoint(&self) -> bool {
        self.change(|s| {
            let Some((token, checkpoint)) = s.checkpoints.pop_front() else {
                return false;
            };
            s.disk.checkpoint = Some(checkpoint);
            s.events.push(WalEvent::Checkpoint {
                token,
                result: Ok(()),
            });
            true
        })
    }

    /// The next write to complete fails with `error` instead. `Full` keeps it until `retry`; anything else
    /// stops the lane.
    pub fn fail_next(&self, error: WalError) {
        self.lock().fail_next = Some(error);
    }

    /// Says how much room there is, as a full disk would.
    pub fn set_space(&self, space: Space) {
        self.change(|s| {
            s.space = space;
            s.events.push(WalEvent::Space(space));
        });
    }

    /// The machine dies: complete writes are kept, the others as `keep` says for each number. All handles are dead.
    pub fn crash(&self, mut keep: impl FnMut(u64) -> Kept) -> MemoryDisk {
        let mut state = self.lock();
        state.closed = true;
        let pending = std::mem::take(&mut state.pending);
        for chunk in pending {
            let bytes = chunk.bytes();
            let kept = match keep(chunk.seq()) {
                Kept::Nothing => continue,
                Kept::Prefix(len) => bytes.slice(..len.min(bytes.len())),
                Kept::All => bytes.clone(),
            };
            state.disk.chunks.insert(chunk.seq(), kept);
        }
        state.disk.clone()
    }
}

#[cfg(test)]
mod tests;
