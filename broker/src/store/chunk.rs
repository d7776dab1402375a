//! The chunk: what one group commit writes.
//!
//! A chunk is one 4096-aligned block: a 64-byte header, then framed records, then zeros up to the next page.
//!
//! ```text
//! header  magic u32 | version u16 | 0 u16 | header crc u32 | lane u32 | epoch u64 | seq u64 | durable u64
//!         | payload_len u32 | record_count u32 | salt u32 | zeros up to 64
//! record  len u32 | crc32c u32 | body (len bytes)
//! ```
//! All numbers are little endian. A record's checksum covers its length and its body and starts from the chunk's salt.
//! Segment files are recycled, so a chunk that was only partly written can be followed by records of an older chunk
//! at the very same offsets: the salt, new for every chunk, is what keeps those from passing for its own.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

mod pool;

pub(super) use pool::AlignedBuf;
pub use pool::BufferPool;
use pool::{Pooled, size_class};

/// Alignment and size granularity of chunks, in bytes: the page of direct IO.
pub const PAGE: usize = 4096;
/// Bytes of a chunk's header.
pub const HEADER_LEN: usize = 64;
/// Bytes that frame one record.
pub const FRAME_LEN: usize = 8;
/// The largest chunk, padding included, in bytes.
pub const CHUNK_LEN_MAX: usize = 256 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"VCHK");
const VERSION: u16 = 1;
const FIRST_CAPACITY: usize = 64 << 10;
/// Chunks that take more memory than this are never copied, in bytes.
const COMPACT_MAX: usize = 16 * PAGE;

/// Rounds `len` up to whole pages.
pub const fn padded(len: usize) -> usize {
    len.div_ceil(PAGE) * PAGE
}

/// Why bytes are not a chunk, or where a chunk stops being intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Fewer bytes than a header or than the header promises.
    #[error("the file ends inside the chunk")]
    Short,
    /// The first bytes are not a chunk's.
    #[error("no chunk begins here")]
    Magic,
    /// Written by another version of the format.
    #[error("chunk format version {0} is not known (this build reads version {VERSION})")]
    Version(u16),
    /// The header's checksum does not match.
    #[error("the chunk header's checksum does not match")]
    HeaderChecksum,
    /// The header states a size above [`CHUNK_LEN_MAX`].
    #[error("the chunk header states an impossible size")]
    Size,
    /// A record's length leads out of the payload.
    #[error("a record's length leads out of its chunk")]
    RecordLength,
    /// A record's checksum does not match.
    #[error("a record's checksum does not match")]
    RecordChecksum,
    /// The number of records is not the one in the header.
    #[error("the chunk holds another number of records than its header states")]
    RecordCount,
    /// The bytes after the last record are not zero.
    #[error("the padding of the chunk is not zero")]
    Padding,
    /// No record begins at the offset asked for.
    #[error("no record begins at offset {0} of the chunk")]
    NoRecord(u32),
}

/// The open block: records are copied in until it is sealed into a [`Chunk`].
pub struct ChunkBuilder {
    pool: BufferPool,
    buf: Option<AlignedBuf>,
    capacity: usize,
    len: usize,
    max: usize,
    records: u32,
    salt: u32,
}

impl fmt::Debug for ChunkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkBuilder")
            .field("len", &self.len)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

impl ChunkBuilder {
    /// An empty block that may grow to `len_max` bytes, header and padding included (at most [`CHUNK_LEN_MAX`], at
    /// least one page). Memory is taken at the first record, 64 KiB first and then doubling.
    pub fn new(pool: &BufferPool, len_max: usize) -> Self {
        let max = len_max.clamp(PAGE, CHUNK_LEN_MAX) / PAGE * PAGE;
        let pool = pool.clone();
        let salt = pool.salt();
        Self {
            pool,
            buf: None,
            capacity: 0,
            len: HEADER_LEN,
            max,
            records: 0,
            salt,
        }
    }

    /// Copies one record in, its body given in parts. Answers the record's offset in the chunk, or `None` when it does
    /// not fit any more (see [`ChunkBuilder::fits`]); the block is then unchanged.
    pub fn append(&mut self, parts: &[&[u8]]) -> Option<u32> {
        let body: usize = parts.iter().map(|p| p.len()).sum();
        if !self.fits(body) {
            return None;
        }
        let offset = self.len;
        let end = offset + FRAME_LEN + body;
        self.reserve(end);
        let buf = self.buf.as_mut()?;
        let len = (body as u32).to_le_bytes();
        let mut crc = crc32c::crc32c_append(self.salt, &len);
        let mut at = offset + FRAME_LEN;
        for part in parts {
            crc = crc32c::crc32c_append(crc, part);
            buf.put(at, part);
            at += part.len();
        }
        buf.put(offset, &len);
        buf.put(offset + 4, &crc.to_le_bytes());
        self.len = end;
        self.records += 1;
        Some(offset as u32)
    }

    /// Whether a record with a body of `body` bytes still fits.
    pub fn fits(&self, body: usize) -> bool {
        body.saturating_add(FRAME_LEN).saturating_add(self.len) <= self.max
    }

    /// Bytes used so far, header included, padding not.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no record was appended yet.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Records appended so far.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Bytes of memory the open block holds.
    pub fn retained(&self) -> usize {
        self.buf.as_ref().map_or(0, AlignedBuf::footprint)
    }

    /// Finishes the block: writes the header and zeroes the padding.
    ///
    /// `seq` is the chunk's number in its lane (first is 1), `durable` the durable prefix at this moment, see
    /// [`super::wal::Wal::durable`].
    /// A block that uses less than half of its memory moves to a smaller piece, so that small chunks hold little.
    pub fn seal(mut self, epoch: u64, lane: u32, seq: u64, durable: u64) -> Chunk {
        let whole = padded(self.len);
        let mut buf = match self.buf.take() {
            Some(buf) if size_class(whole) <= buf.capacity / 2 => {
                let mut small = self.pool.take(whole);
                small.put(0, buf.bytes().get(..self.len).unwrap_or_default());
                self.pool.give(buf);
                small
            }
            Some(buf) => buf,
            None => self.pool.take(whole),
        };
        let header = ChunkHeader {
            lane,
            epoch,
            seq,
            durable,
            payload_len: (self.len - HEADER_LEN) as u32,
            records: self.records,
            salt: self.salt,
        };
        buf.put(0, &header.encode());
        if let Some(padding) = buf.bytes_mut().get_mut(self.len..whole) {
            padding.fill(0);
        }
        let retained = buf.footprint();
        let bytes = Bytes::from_owner(Pooled {
            buf: Some(buf),
            len: whole,
            pool: self.pool.clone(),
        });
        Chunk {
            bytes,
            header,
            retained,
        }
    }

    fn reserve(&mut self, end: usize) {
        if end <= self.capacity {
            return;
        }
        // A record that begins a block has it as large as it needs; more records double it.
        let wanted = match self.capacity {
            0 => end,
            _ => end.next_power_of_two().min(self.max.max(end)),
        };
        let mut larger = self.pool.take(wanted.max(FIRST_CAPACITY.min(self.max)));
        if let Some(old) = self.buf.take() {
            larger.put(0, old.bytes().get(..self.len).unwrap_or_default());
            self.pool.give(old);
        }
        self.capacity = larger.capacity;
        self.buf = Some(larger);
    }
}

impl Drop for ChunkBuilder {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.pool.give(buf);
        }
    }
}

/// What a chunk's first 64 bytes state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Lane the chunk belongs to.
    pub lane: u32,
    /// Epoch it was written in.
    pub epoch: u64,
    /// Its number in the lane, from 1, contiguous over all epochs.
    pub seq: u64,
    /// The contiguous durable prefix of the lane when it was submitted.
    pub durable: u64,
    /// Bytes of framed records after the header.
    pub payload_len: u32,
    /// Number of records.
    pub records: u32,
    /// Start value of the records' checksums.
    pub salt: u32,
}

impl ChunkHeader {
    /// Reads and verifies the header at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, ChunkError> {
        let raw: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(ChunkError::Short)?;
        if u32_at(raw, 0) != MAGIC {
            return Err(ChunkError::Magic);
        }
        let version = u32_at(raw, 4) as u16;
        if version != VERSION {
            return Err(ChunkError::Version(version));
        }
        if u32_at(raw, 8) != header_crc(raw) {
            return Err(ChunkError::HeaderChecksum);
        }
        let header = Self {
            lane: u32_at(raw, 12),
            epoch: u64_at(raw, 16),
            seq: u64_at(raw, 24),
            durable: u64_at(raw, 32),
            payload_len: u32_at(raw, 40),
            records: u32_at(raw, 44),
            salt: u32_at(raw, 48),
        };
        if header.padded_len() > CHUNK_LEN_MAX {
            return Err(ChunkError::Size);
        }
        Ok(header)
    }

    /// Bytes of the whole chunk, header and padding included.
    pub fn padded_len(&self) -> usize {
        padded(HEADER_LEN + self.payload_len as usize)
    }

    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut raw = [0u8; HEADER_LEN];
        put_at(&mut raw, 0, &MAGIC.to_le_bytes());
        put_at(&mut raw, 4, &VERSION.to_le_bytes());
        put_at(&mut raw, 12, &self.lane.to_le_bytes());
        put_at(&mut raw, 16, &self.epoch.to_le_bytes());
        put_at(&mut raw, 24, &self.seq.to_le_bytes());
        put_at(&mut raw, 32, &self.durable.to_le_bytes());
        put_at(&mut raw, 40, &self.payload_len.to_le_bytes());
        put_at(&mut raw, 44, &self.records.to_le_bytes());
        put_at(&mut raw, 48, &self.salt.to_le_bytes());
        let crc = header_crc(&raw);
        put_at(&mut raw, 8, &crc.to_le_bytes());
        raw
    }
}

fn header_crc(raw: &[u8; HEADER_LEN]) -> u32 {
    let before = crc32c::crc32c(raw.get(..8).unwrap_or_default());
    crc32c::crc32c_append(before, raw.get(12..).unwrap_or_default())
}

/// The little-endian u32 at `at`; zero when `raw` is too short.
pub(crate) fn u32_at(raw: &[u8], at: usize) -> u32 {
    raw.get(at..)
        .and_then(|r| r.first_chunk())
        .map_or(0, |r| u32::from_le_bytes(*r))
}

/// The little-endian u64 at `at`; zero when `raw` is too short.
pub(crate) fn u64_at(raw: &[u8], at: usize) -> u64 {
    raw.get(at..)
        .and_then(|r| r.first_chunk())
        .map_or(0, |r| u64::from_le_bytes(*r))
}

/// Copies `data` to `at`; nothing when it does not fit.
pub(crate) fn put_at(raw: &mut [u8], at: usize, data: &[u8]) {
    if let Some(target) = raw.get_mut(at..at + data.len()) {
        target.copy_from_slice(data);
    }
}

/// A finished chunk. Cloning it, and slicing records out of it, shares the block.
#[derive(Debug, Clone)]
pub struct Chunk {
    bytes: Bytes,
    header: ChunkHeader,
    retained: usize,
}

/// The outcome of reading a chunk: its intact records, and what is wrong after them, if anything.
#[derive(Debug, Clone)]
pub struct ParsedChunk {
    /// The chunk, cut to its longest intact run of records.
    pub chunk: Chunk,
    /// Where and why the intact part ends; `None` when the chunk is whole.
    pub damage: Option<Damage>,
}

/// The first thing wrong inside a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// Offset in the chunk, in bytes.
    pub offset: u32,
    /// What is wrong there.
    pub what: ChunkError,
}

impl ParsedChunk {
    /// Whether nothing is wrong with the chunk.
    pub fn is_whole(&self) -> bool {
        self.damage.is_none()
    }
}

impl Chunk {
    /// Reads a chunk from the start of `bytes`, which may be longer or shorter than it. Every record's checksum is
    /// verified. An error means that not even the header can be trusted.
    pub fn parse(bytes: Bytes) -> Result<ParsedChunk, ChunkError> {
        let header = ChunkHeader::decode(&bytes)?;
        let whole = header.padded_len();
        let end = HEADER_LEN + header.payload_len as usize;
        let bytes = bytes.slice(..whole.min(bytes.len()));
        let (mut at, mut records, mut damage) = (HEADER_LEN, 0u32, None);
        while at < end {
            match check_record(&bytes, at, end, header.salt) {
                Ok(next) => {
                    at = next;
                    records += 1;
                }
                Err(what) => {
                    damage = Some(Damage {
                        offset: at as u32,
                        what,
                    });
                    break;
                }
            }
        }
        if damage.is_none() {
            let what = if records != header.records {
                Some(ChunkError::RecordCount)
            } else if bytes.len() < whole {
                Some(ChunkError::Short)
            } else if bytes.get(end..).is_some_and(|p| p.iter().any(|b| *b != 0)) {
                Some(ChunkError::Padding)
            } else {
                None
            };
            damage = what.map(|what| Damage {
                offset: at as u32,
                what,
            });
        }
        let retained = bytes.len();
        let header = ChunkHeader {
            payload_len: (at - HEADER_LEN) as u32,
            records,
            ..header
        };
        Ok(ParsedChunk {
            chunk: Chunk {
                bytes,
                header,
                retained,
            },
            damage,
        })
    }

    /// The whole block as it is on disk, padding included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The header. After a cut, `payload_len` and `records` state what was kept.
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// The chunk's number in its lane.
    pub fn seq(&self) -> u64 {
        self.header.seq
    }

    /// Bytes of framed records.
    pub fn payload_len(&self) -> u32 {
        self.header.payload_len
    }

    /// Number of records.
    pub fn record_count(&self) -> u32 {
        self.header.records
    }

    /// Bytes of memory that the chunk keeps alive as long as one slice of it lives.
    pub fn retained(&self) -> usize {
        self.retained
    }

    /// The same records in memory of their own, without padding, if the chunk is small and that takes less than half: one that only has
    /// to be read needs neither the alignment nor the whole pages of one that is to be written.
    pub fn compact(&self) -> Option<Self> {
        let len = HEADER_LEN + self.header.payload_len as usize;
        let pays = self.retained <= COMPACT_MAX && len < self.retained / 2;
        let bytes = self.bytes.get(..len).filter(|_| pays)?;
        Some(Self {
            bytes: Bytes::copy_from_slice(bytes),
            header: self.header,
            retained: len,
        })
    }

    /// The body of the record whose frame begins at `offset`, as a slice of the block. The offset must be one that
    /// [`ChunkBuilder::append`] or [`Chunk::records`] gave; checksums were verified when the chunk was read.
    pub fn record(&self, offset: u32) -> Result<Bytes, ChunkError> {
        let range = self
            .frame(offset as usize)
            .ok_or(ChunkError::NoRecord(offset))?;
        Ok(self.bytes.slice(range))
    }

    /// All records in order: offset of the frame, and where the body lies in [`Chunk::bytes`].
    pub fn records(&self) -> Records<'_> {
        Records {
            chunk: self,
            at: HEADER_LEN,
        }
    }

    /// Keeps only the records within the first `payload_len` bytes of payload.
    pub fn truncate(&mut self, payload_len: u32) {
        let limit = HEADER_LEN + payload_len as usize;
        let (mut end, mut records) = (HEADER_LEN, 0);
        for (_, body) in self.records() {
            if body.end > limit {
                break;
            }
            end = body.end;
            records += 1;
        }
        self.header.payload_len = (end - HEADER_LEN) as u32;
        self.header.records = records;
    }

    fn frame(&self, at: usize) -> Option<Range<usize>> {
        let end = HEADER_LEN + self.header.payload_len as usize;
        let body = at.checked_add(FRAME_LEN)?;
        if at < HEADER_LEN || body > end.min(self.bytes.len()) {
            return None;
        }
        let stop = body + u32_at(&self.bytes, at) as usize;
        (stop <= end.min(self.bytes.len())).then_some(body..stop)
    }
}

/// Iterator over a chunk's records, see [`Chunk::records`].
#[derive(Debug, Clone)]
pub struct Records<'a> {
    chunk: &'a Chunk,
    at: usize,
}

impl Iterator for Records<'_> {
    type Item = (u32, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let body = self.chunk.frame(self.at)?;
        let offset = self.at as u32;
        self.at = body.end;
        Some((offset, body))
    }
}

/// Verifies the record at `at` and answers where the next begins.
fn check_record(bytes: &[u8], at: usize, end: usize, salt: u32) -> Result<usize, ChunkError> {
    let body = at + FRAME_LEN;
    if body > end {
        return Err(ChunkError::RecordLength);
    }
    let frame = bytes.get(at..body).ok_or(ChunkError::Short)?;
    let stop = body + u32_at(frame, 0) as usize;
    if stop > end {
        return Err(ChunkError::RecordLength);
    }
    let crc = crc32c::crc32c_append(salt, frame.get(..4).unwrap_or_default());
    let crc = crc32c::crc32c_append(crc, bytes.get(body..stop).ok_or(ChunkError::Short)?);
    if crc != u32_at(frame, 4) {
        return Err(ChunkError::RecordChecksum);
    }
    Ok(stop)
}

#[cfg(test)]
mod tests;
