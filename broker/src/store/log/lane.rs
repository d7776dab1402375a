//! The writing side of a lane: records go into the open chunk, chunks go out to be written, entries are read back.
//!
//! A lane does no IO. The runtime takes chunks from [`Lane::next_write`] and tells [`Lane::durable`]; it takes numbers
//! from [`Lane::take_reads`] and answers each with [`Lane::loaded`].

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::chunk::{
    BufferPool, CHUNK_LEN_MAX, Chunk, ChunkBuilder, FRAME_LEN, HEADER_LEN, padded,
};
use super::super::wal::WalError;
use super::cache::ChunkCache;
use super::record::{ENTRY_HEAD, Record, SEQUENCED_HEAD, TopicId, entry_head, sequenced_head};
use super::sequences::SequenceId;
use super::{Ledgers, Position};

/// Reads asked for and not yet answered.
pub const READS_MAX: usize = 32;
/// Chunks wanted beside those; further wants are forgotten, the next [`Lane::read_entry`] repeats them.
const WANTED_MAX: usize = 4096;
/// Chunks remembered as unreadable; the memory is emptied when full, the next read finds out again.
const BAD_MAX: usize = 1024;
/// Cuts remembered for [`Lane::bytes_since_checkpoint`].
const CUTS_MAX: usize = 4;
/// The largest record beside entries that is taken however small the largest entry is, bytes: the properties of a topic are 1 MiB at most,
/// what one ACK brings is less.
const RECORD_MAX: usize = 2 << 20;
/// Bits of a ledger id below the epoch.
const ROLL_BITS: u32 = 24;

/// Sizes of a lane, all in bytes but `in_flight`.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct LaneConfig {
    /// A chunk is sealed at this size. A record larger than that gets a chunk of its own.
    pub chunk_bytes: usize,
    /// The largest entry. Other records may be as large, and 2 MiB in any case.
    pub max_entry: usize,
    /// Memory of chunks that are not durable at which the lane is full.
    pub budget_bytes: usize,
    /// Memory for chunks that are durable.
    pub cache_bytes: usize,
    /// Idle memory kept for the next chunks.
    pub pool_bytes: usize,
    /// Chunks being written at once.
    pub in_flight: usize,
}

impl Default for LaneConfig {
    fn default() -> Self {
        Self {
            chunk_bytes: 1 << 20,
            max_entry: (5 << 20) + 10_240,
            budget_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            pool_bytes: 16 << 20,
            in_flight: 2,
        }
    }
}

/// Where a record went.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Appended {
    /// The chunk's number. The record is durable when the chunk is.
    pub seq: u64,
    /// Where in the chunk the record begins, bytes.
    pub offset: u32,
}

/// A record above the lane's limit. Nothing was appended.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "a log record of {bytes} bytes is larger than the limit of {max} bytes: raise maxMessageSize or send less at once"
)]
pub struct TooLarge {
    /// Its size.
    pub bytes: usize,
    /// The limit.
    pub max: usize,
}

/// The epoch has no ledger ids left.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("epoch {epoch} has used all {} ledger ids: restart the broker to begin a new epoch", 1u32 << ROLL_BITS)]
pub struct Full {
    /// The epoch.
    pub epoch: u64,
}

/// What reading an entry gave.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Read {
    /// The entry as published, a slice of its chunk.
    Entry(Bytes),
    /// Not in memory. The chunk is wanted; try again after the next [`Lane::loaded`]. (An entry of the open chunk is
    /// a miss too: only what is durable should be read.)
    Miss,
    /// There is no such entry (any more).
    Gone,
    /// The chunk is damaged, or the entry is not where it should be.
    Corrupt,
}

/// Where the last read of a reader ended; makes reading in order cheap. One per reader, [`Default`] at first.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct ReadHint {
    topic: TopicId,
    ledger: i64,
    seq: u64,
    /// Where the record behind the last one read begins.
    offset: u32,
    /// The entry behind the last one read.
    entry: i64,
    /// Entries below this one are in the same chunk.
    end: i64,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Bad {
    Gone,
    Corrupt,
}

/// A chunk on its way to the disk.
#[derive(Copy, Clone, Debug)]
struct Unacked {
    seq: u64,
    retained: usize,
}

/// The writing side of one lane, and its chunks in memory.
#[derive(Debug)]
pub struct Lane {
    index: u32,
    epoch: u64,
    config: LaneConfig,
    pool: BufferPool,
    open: Option<ChunkBuilder>,
    /// Number of the open chunk, or of the next one.
    open_seq: u64,
    /// Sealed, not given out.
    ready: VecDeque<Chunk>,
    /// Sealed, not durable.
    unacked: VecDeque<Unacked>,
    unacked_bytes: usize,
    /// The last chunk given out.
    given: u64,
    durable: u64,
    /// What chunk headers may claim to be safe from a power failure; behind `durable` when writes are not synced.
    synced: u64,
    roll: i64,
    /// Bytes of all chunks ever sealed here.
    sealed_bytes: u64,
    /// Chunk number and `sealed_bytes` at the last cuts.
    cuts: VecDeque<(u64, u64)>,
    checkpoint_bytes: u64,
    cache: ChunkCache,
    wanted: VecDeque<u64>,
    wanted_set: FxHashSet<u64>,
    asked: FxHashSet<u64>,
    bad: FxHashMap<u64, Bad>,
    head: Vec<u8>,
}

impl Lane {
    /// The lane `index` in `epoch`, whose next chunk is number `next_seq` (from 1); everything before is durable.
    pub fn new(index: u32, epoch: u64, next_seq: u64, config: LaneConfig) -> Self {
        let before = next_seq.saturating_sub(1);
        Self {
            index,
            epoch,
            config,
            pool: BufferPool::new(epoch, config.pool_bytes),
            open: None,
            open_seq: next_seq,
            ready: VecDeque::new(),
            unacked: VecDeque::new(),
            unacked_bytes: 0,
            given: before,
            durable: before,
            synced: before,
            roll: 0,
            sealed_bytes: 0,
            cuts: VecDeque::new(),
            checkpoint_bytes: 0,
            cache: ChunkCache::new(config.cache_bytes),
            wanted: VecDeque::new(),
            wanted_set: FxHashSet::default(),
            asked: FxHashSet::default(),
            bad: FxHashMap::default(),
            head: Vec::new(),
        }
    }

    /// Copies a record into the open chunk; seals the chunk before if it has no room left.
    ///
    /// Never refuses for a full budget, so that acks and cursor changes, which free memory, always go on: publishes ask
    /// [`Self::is_full`] first.
    ///
    /// # Errors
    /// [`TooLarge`] above `max_entry` and 2 MiB.
    pub fn append(&mut self, record: &Record<'_>) -> Result<Appended, TooLarge> {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        record.encode_head(&mut head);
        let entry = matches!(record, Record::Entry { .. } | Record::Sequenced { .. });
        let max = match entry {
            true => self.config.max_entry,
            false => self.config.max_entry.max(RECORD_MAX),
        };
        let appended = self.place(&head, record.payload(), max);
        self.head = head;
        appended
    }

    /// [`Self::append`] of an entry: its bytes are copied once, here.
    ///
    /// # Errors
    /// [`TooLarge`] above `max_entry`.
    #[inline]
    pub fn append_entry(
        &mut self,
        topic: TopicId,
        ledger: i64,
        entry: i64,
        data: &[u8],
    ) -> Result<Appended, TooLarge> {
        let head = entry_head(topic, ledger, entry);
        self.place(&head, data, self.config.max_entry)
    }

    /// [`Self::append_entry`] with the sequence id that deduplication remembers.
    ///
    /// # Errors
    /// [`TooLarge`] above `max_entry`.
    #[inline]
    pub fn append_sequenced(
        &mut self,
        topic: TopicId,
        at: Position,
        producer: SequenceId,
        highest: i64,
        data: &[u8],
    ) -> Result<Appended, TooLarge> {
        let head = sequenced_head(topic, at, producer, highest);
        self.place(&head, data, self.config.max_entry)
    }

    /// `max` is the largest payload.
    fn place(&mut self, head: &[u8], payload: &[u8], max: usize) -> Result<Appended, TooLarge> {
        if let Some(open) = &mut self.open
            && let Some(offset) = open.append(&[head, payload])
        {
            return Ok(Appended {
                seq: self.open_seq,
                offset,
            });
        }
        self.place_in_new(head, payload, max)
    }

    #[cold]
    fn place_in_new(
        &mut self,
        head: &[u8],
        payload: &[u8],
        max: usize,
    ) -> Result<Appended, TooLarge> {
        let body = head.len().saturating_add(payload.len());
        let whole = padded(body.saturating_add(HEADER_LEN + FRAME_LEN));
        let max = max
            .saturating_add(head.len().clamp(ENTRY_HEAD, SEQUENCED_HEAD))
            .min(CHUNK_LEN_MAX - HEADER_LEN - FRAME_LEN);
        if body > max {
            return Err(TooLarge { bytes: body, max });
        }
        self.seal();
        let mut open = ChunkBuilder::new(&self.pool, self.config.chunk_bytes.max(whole));
        let offset = open
            .append(&[head, payload])
            .ok_or(TooLarge { bytes: body, max })?;
        self.open = Some(open);
        Ok(Appended {
            seq: self.open_seq,
            offset,
        })
    }

    fn seal(&mut self) {
        let Some(open) = self.open.take().filter(|open| !open.is_empty()) else {
            return;
        };
        let chunk = open.seal(self.epoch, self.index, self.open_seq, self.synced);
        self.unacked.push_back(Unacked {
            seq: self.open_seq,
            retained: chunk.retained(),
        });
        self.unacked_bytes += chunk.retained();
        self.sealed_bytes += chunk.bytes().len() as u64;
        self.cache.insert(chunk.clone(), true);
        self.ready.push_back(chunk);
        self.open_seq += 1;
    }

    /// The number of the chunk that is open, or opens next: the next record goes there, or into a later one.
    pub fn open_seq(&self) -> u64 {
        self.open_seq
    }

    /// Ends a tick: seals the open chunk if it could be written at once. While the disk is busy the chunk keeps filling.
    pub fn end_tick(&mut self) {
        if self.ready.is_empty() && self.out() < self.config.in_flight {
            self.seal();
        }
    }

    /// Seals the open chunk whatever the disk does, and answers the number of the last sealed chunk: the state of this
    /// moment is what a checkpoint covering that number holds.
    pub fn cut(&mut self) -> u64 {
        self.seal();
        let last = self.open_seq.saturating_sub(1);
        if self.cuts.len() >= CUTS_MAX {
            self.cuts.pop_front();
        }
        self.cuts.push_back((last, self.sealed_bytes));
        last
    }

    /// The next chunk to write, while fewer than `in_flight` are out and not durable.
    pub fn next_write(&mut self) -> Option<Chunk> {
        if self.out() >= self.config.in_flight {
            return None;
        }
        let chunk = self.ready.pop_front()?;
        self.given = chunk.seq();
        Some(chunk)
    }

    /// Chunks given out and not durable.
    fn out(&self) -> usize {
        usize::try_from(self.given.saturating_sub(self.durable)).unwrap_or(usize::MAX)
    }

    /// All chunks up to `upto` are durable. Never goes back, nor beyond what was given out.
    pub fn durable(&mut self, upto: u64) {
        self.written(upto, upto);
    }

    /// All chunks up to `upto` are acknowledged as durable, those up to `synced` even survive a power failure. Chunk
    /// headers claim only the latter, so that a torn end is not taken for damage where writes are not synced.
    pub fn written(&mut self, upto: u64, synced: u64) {
        self.synced = self.synced.max(synced.min(upto).min(self.given));
        let upto = upto.min(self.given);
        while let Some(chunk) = self.unacked.front().filter(|chunk| chunk.seq <= upto) {
            self.unacked_bytes -= chunk.retained;
            self.cache.unpin(chunk.seq);
            self.unacked.pop_front();
        }
        self.durable = self.durable.max(upto);
    }

    /// The last chunk that is durable.
    pub fn durable_seq(&self) -> u64 {
        self.durable
    }

    /// Memory of all chunks that are not durable, the open one included, in bytes.
    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes + self.open.as_ref().map_or(0, ChunkBuilder::retained)
    }

    /// Whether publishes must wait.
    pub fn is_full(&self) -> bool {
        self.unacked_bytes() >= self.config.budget_bytes
    }

    /// Whether everything appended is durable.
    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.unacked.is_empty()
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Was this ledger opened by this start of the broker?
    pub fn is_own_ledger(&self, ledger: i64) -> bool {
        u64::try_from(ledger >> ROLL_BITS) == Ok(self.epoch)
    }

    /// The chunks in memory.
    pub fn cache(&self) -> &ChunkCache {
        &self.cache
    }

    /// Bytes that are kept only to be quicker: durable chunks for reads, idle memory for the next chunks.
    pub fn spare_bytes(&self) -> usize {
        self.cache.durable_bytes() + self.pool.idle_bytes()
    }

    /// Gives up so many of [`Self::spare_bytes`], idle memory first. What is given up comes back as it is needed: chunks are read
    /// from the log again. Answers how much that was; memory that somebody still points into is free only after that.
    pub fn shrink(&mut self, bytes: usize) -> usize {
        let idle = self.pool.shrink(bytes);
        let cached = self.cache.shrink(bytes.saturating_sub(idle));
        // The blocks of what was evicted lie idle now.
        self.pool.shrink(cached);
        idle + cached
    }

    /// A ledger id never given before: `epoch << 24 | roll`. Ids rise over restarts.
    ///
    /// # Errors
    /// [`Full`] after 2^24 ledgers of this lane in one epoch.
    pub fn new_ledger(&mut self) -> Result<i64, Full> {
        let full = Full { epoch: self.epoch };
        let epoch = i64::try_from(self.epoch)
            .ok()
            .filter(|epoch| *epoch < 1 << (63 - ROLL_BITS))
            .ok_or(full)?;
        if self.roll >= 1 << ROLL_BITS {
            return Err(full);
        }
        let id = epoch << ROLL_BITS | self.roll;
        self.roll += 1;
        Ok(id)
    }

    /// Reads one entry of a topic. `hint` is the reader's own; reads in order then step from record to record.
    #[inline]
    pub fn read_entry(
        &mut self,
        ledgers: &Ledgers,
        topic: TopicId,
        at: Position,
        hint: &mut ReadHint,
    ) -> Read {
        let ours = hint.topic == topic && hint.ledger == at.ledger && hint.entry <= at.entry;
        let (seq, offset, end) = if ours && at.entry < hint.end {
            (hint.seq, hint.offset, hint.end)
        } else {
            let Some(place) = ledgers.locate(at) else {
                return Read::Gone;
            };
            let ours = ours && hint.seq == place.seq;
            (
                place.seq,
                if ours { hint.offset } else { place.offset },
                place.end,
            )
        };
        let Some((chunk, found)) = self.cache.find(seq, offset, topic, at) else {
            return self.want(seq);
        };
        let Some(found) = found else {
            return Read::Corrupt;
        };
        *hint = ReadHint {
            topic,
            ledger: at.ledger,
            seq,
            offset: found.behind,
            entry: at.entry + 1,
            end,
        };
        Read::Entry(chunk.bytes().slice(found.data))
    }

    #[cold]
    fn want(&mut self, seq: u64) -> Read {
        match self.bad.get(&seq) {
            Some(Bad::Gone) => return Read::Gone,
            Some(Bad::Corrupt) => return Read::Corrupt,
            None => {}
        }
        let waits = self.asked.contains(&seq) || self.wanted_set.contains(&seq);
        if !waits && seq <= self.durable && self.wanted.len() < WANTED_MAX {
            self.wanted.push_back(seq);
            self.wanted_set.insert(seq);
        }
        Read::Miss
    }

    /// Numbers of chunks to read from the log, each to be answered by [`Self::loaded`]. At most [`READS_MAX`] are out at
    /// once, the rest waits.
    pub fn take_reads(&mut self) -> Vec<u64> {
        let mut reads = Vec::new();
        while self.asked.len() < READS_MAX {
            let Some(seq) = self.wanted.pop_front() else {
                break;
            };
            self.wanted_set.remove(&seq);
            self.asked.insert(seq);
            reads.push(seq);
        }
        reads
    }

    /// Whether [`Self::take_reads`] would give something.
    pub fn has_reads(&self) -> bool {
        !self.wanted.is_empty() && self.asked.len() < READS_MAX
    }

    /// The answer to a read. A chunk that is gone or damaged is remembered as such; after any other error the next
    /// [`Self::read_entry`] wants it again.
    pub fn loaded(&mut self, seq: u64, result: Result<Chunk, WalError>) {
        self.asked.remove(&seq);
        let bad = match result {
            Ok(chunk) if chunk.seq() == seq => {
                self.cache.insert(chunk, false);
                return;
            }
            Ok(_) | Err(WalError::Corrupt { .. }) => Bad::Corrupt,
            Err(WalError::Trimmed | WalError::Absent) => Bad::Gone,
            Err(_) => return,
        };
        if self.bad.len() >= BAD_MAX {
            self.bad.clear();
        }
        self.bad.insert(seq, bad);
    }

    /// Bytes of log written since the last checkpoint, or since this lane began.
    pub fn bytes_since_checkpoint(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.len() as u64);
        self.sealed_bytes + open - self.checkpoint_bytes
    }

    /// A checkpoint covering chunk `seq`, a number that [`Self::cut`] gave, is durable.
    pub fn checkpoint_done(&mut self, seq: u64) {
        while let Some(&(cut, bytes)) = self.cuts.front()
            && cut <= seq
        {
            self.checkpoint_bytes = bytes;
            self.cuts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
