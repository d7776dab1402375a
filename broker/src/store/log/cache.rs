//! Chunks in memory: those still to become durable, and those read last.

use std::collections::VecDeque;
use std::mem::size_of;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::super::chunk::{Chunk, FRAME_LEN, HEADER_LEN, u32_at};
use super::Position;
use super::record::{TopicId, entry_data, entry_head, entry_of};

/// Records a read steps over before it asks the chunk's index instead.
const SCAN_MAX: usize = 64;
/// The same when the index is there already.
const SCAN_INDEXED: usize = 4;

/// What a chunk in the cache takes beside its own memory, in bytes: its place in the table, of which up to half is free, and in the queue; the
/// count of those who share its memory, and what the allocator adds. For chunks of one small entry that is more than they hold.
pub(super) const SLOT_COST: usize = 2 * size_of::<(u64, Slot)>() + 2 * size_of::<u64>() + 48;
/// Places that the table keeps whatever it holds.
const PLACES_MIN: usize = 1024;

/// Where one entry of a chunk stands: topic, position, offset of its record.
type Place = (TopicId, Position, u32);

/// An entry found in a chunk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Found {
    /// The entry's bytes in the chunk.
    pub(super) data: Range<usize>,
    /// Where the following record begins.
    pub(super) behind: u32,
}

/// A chunk in the cache.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) chunk: Chunk,
    /// Every entry of the chunk, in order; made when a read had to step over many records. A chunk shared by many topics
    /// would otherwise be walked from end to end for each of them.
    index: Vec<Place>,
    pinned: bool,
    /// Read (or new) since it was last due for eviction.
    used: bool,
}

impl Slot {
    fn bytes(&self) -> usize {
        SLOT_COST + self.chunk.retained() + self.index.capacity() * size_of::<Place>()
    }

    /// The body of the record whose frame begins at `offset`.
    fn body(&self, offset: u32) -> Option<Range<usize>> {
        let bytes = self.chunk.bytes();
        let end = bytes
            .len()
            .min(HEADER_LEN + self.chunk.payload_len() as usize);
        let start = (offset as usize)
            .checked_add(FRAME_LEN)
            .filter(|start| *start <= end)?;
        let stop = start.checked_add(u32_at(bytes, offset as usize) as usize)?;
        (offset as usize >= HEADER_LEN && stop <= end).then_some(start..stop)
    }

    /// The entry, if its record is at `offset` or one of the next `steps`.
    #[inline]
    fn scan(&self, mut offset: u32, steps: usize, topic: TopicId, at: Position) -> Option<Found> {
        let head = entry_head(topic, at.ledger, at.entry);
        for _ in 0..=steps {
            let body = self.body(offset)?;
            offset = u32::try_from(body.end).ok()?;
            if let Some(begin) = self
                .chunk
                .bytes()
                .get(body.clone())
                .and_then(|bytes| entry_data(bytes, &head))
            {
                return Some(Found {
                    data: body.start + begin..body.end,
                    behind: offset,
                });
            }
        }
        None
    }

    fn make_index(&mut self) {
        let bytes = self.chunk.bytes();
        let places = self.chunk.records().filter_map(|(offset, body)| {
            let (topic, at) = entry_of(bytes.get(body)?)?;
            Some((topic, at, offset))
        });
        self.index = places.collect();
        self.index.sort_unstable();
        self.index.shrink_to_fit();
    }

    fn look_up(&self, topic: TopicId, at: Position) -> Option<Found> {
        let place = self
            .index
            .partition_point(|place| (place.0, place.1) < (topic, at));
        let offset = self
            .index
            .get(place)
            .filter(|place| (place.0, place.1) == (topic, at))?
            .2;
        self.scan(offset, 0, topic, at)
    }
}

/// Chunks by number. Chunks that are not durable are pinned; of the others, those used last are kept within a number of
/// bytes, by second chance. The chunk that came last is kept whatever its size, so that whoever asked for it can be served.
#[derive(Debug)]
pub struct ChunkCache {
    slots: FxHashMap<u64, Slot>,
    /// Evictable chunks, the next to go in front.
    queue: VecDeque<u64>,
    bytes: usize,
    /// Those of `bytes` that are of pinned chunks; they do not count against `bytes_max`.
    pinned_bytes: usize,
    bytes_max: usize,
}

impl ChunkCache {
    /// An empty cache for at most `bytes_max` bytes beside pinned chunks and the last one.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            slots: FxHashMap::default(),
            queue: VecDeque::new(),
            bytes: 0,
            pinned_bytes: 0,
            bytes_max,
        }
    }

    /// Puts a chunk in. A pinned one stays until [`Self::unpin`].
    pub fn insert(&mut self, chunk: Chunk, pinned: bool) {
        let seq = chunk.seq();
        if self.slots.contains_key(&seq) {
            return;
        }
        let slot = Slot {
            chunk,
            index: Vec::new(),
            pinned,
            used: true,
        };
        self.bytes += slot.bytes();
        if pinned {
            self.pinned_bytes += slot.bytes();
        }
        self.slots.insert(seq, slot);
        if !pinned {
            self.queue.push_back(seq);
        }
        self.evict();
    }

    /// The chunk is durable: it may be evicted from now on, and a small one no longer needs memory that can be written to disk.
    pub fn unpin(&mut self, seq: u64) {
        if let Some(slot) = self.slots.get_mut(&seq)
            && slot.pinned
        {
            slot.pinned = false;
            self.pinned_bytes -= slot.bytes();
            self.bytes -= slot.bytes();
            if let Some(small) = slot.chunk.compact() {
                slot.chunk = small;
            }
            self.bytes += slot.bytes();
            self.queue.push_back(seq);
            self.evict();
        }
    }

    /// Whether the chunk is here.
    pub fn contains(&self, seq: u64) -> bool {
        self.slots.contains_key(&seq)
    }

    /// Bytes of memory of all chunks here, their indexes and their places, pinned ones included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Those of [`Self::bytes`] that are of durable chunks.
    pub fn durable_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.pinned_bytes)
    }

    /// Bytes of memory that the places of chunks take.
    #[cfg(test)]
    pub(super) fn table_bytes(&self) -> usize {
        self.slots.capacity() * 8 / 7 * (size_of::<(u64, Slot)>() + 1)
            + self.queue.capacity() * size_of::<u64>()
    }

    /// Number of chunks here.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no chunk is here.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The chunk, and the entry in it; searched from the record at `offset`, then everywhere. `None` if the chunk is not
    /// here.
    #[inline]
    pub(super) fn find(
        &mut self,
        seq: u64,
        offset: u32,
        topic: TopicId,
        at: Position,
    ) -> Option<(&Chunk, Option<Found>)> {
        let slot = self.slots.get_mut(&seq)?;
        slot.used = true;
        let steps = if slot.index.is_empty() {
            SCAN_MAX
        } else {
            SCAN_INDEXED
        };
        let mut found = slot.scan(offset, steps, topic, at);
        if found.is_none() {
            if slot.index.is_empty() {
                slot.make_index();
                let index = slot.index.capacity() * size_of::<Place>();
                self.bytes += index;
                if slot.pinned {
                    self.pinned_bytes += index;
                }
            }
            found = slot.look_up(topic, at);
        }
        Some((&slot.chunk, found))
    }

    fn evict(&mut self) {
        self.evict_to(self.bytes_max, 1);
    }

    /// Gives up `bytes` of durable chunks, all of them if there are not so many; those read last go last. Answers how much that was.
    pub fn shrink(&mut self, bytes: usize) -> usize {
        let before = self.durable_bytes();
        self.evict_to(before.saturating_sub(bytes), 0);
        before - self.durable_bytes()
    }

    /// Evicts until durable chunks take at most `bytes_max`, or so many of them are left.
    fn evict_to(&mut self, bytes_max: usize, left: usize) {
        // Every turn either removes a chunk or takes back a chance; new chances are only given by reads.
        while self.durable_bytes() > bytes_max && self.queue.len() > left {
            let Some(seq) = self.queue.pop_front() else {
                return;
            };
            let Some(slot) = self.slots.get_mut(&seq) else {
                continue;
            };
            if std::mem::take(&mut slot.used) {
                self.queue.push_back(seq);
            } else if let Some(slot) = self.slots.remove(&seq) {
                self.bytes -= slot.bytes();
            }
        }
        let places = self.slots.len().saturating_mul(4).max(PLACES_MIN);
        if self.slots.capacity() > places {
            self.slots.shrink_to(places / 2);
            self.queue.shrink_to(places / 2);
        }
    }
}
