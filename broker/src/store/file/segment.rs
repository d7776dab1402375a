//! Segment files: their names, their header, and how they are opened, zeroed and read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::super::chunk::{
    AlignedBuf, Chunk, ChunkError, ChunkHeader, HEADER_LEN, PAGE, put_at, u32_at, u64_at,
};
use super::super::wal::WalError;

/// Bytes before the first chunk of a segment file.
pub(super) const SEGMENT_HEADER_LEN: usize = PAGE;
const MAGIC: u32 = u32::from_le_bytes(*b"VSEG");
const VERSION: u32 = 1;
/// Bytes that are written at once. A disk takes up what it is given in turn, so a small write, of another lane or of the next chunk,
/// waits behind what was given in one piece before it, and its flush waits so once more.
const STEP: usize = 256 << 10;

/// What a segment file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) lane: u32,
    pub(super) id: u64,
    pub(super) epoch: u64,
    pub(super) first_seq: u64,
}

impl SegmentHeader {
    fn encode(&self) -> [u8; 64] {
        let mut raw = [0u8; 64];
        put_at(&mut raw, 0, &MAGIC.to_le_bytes());
        put_at(&mut raw, 4, &VERSION.to_le_bytes());
        put_at(&mut raw, 12, &self.lane.to_le_bytes());
        put_at(&mut raw, 16, &self.id.to_le_bytes());
        put_at(&mut raw, 24, &self.epoch.to_le_bytes());
        put_at(&mut raw, 32, &self.first_seq.to_le_bytes());
        let crc = crc32c::crc32c(&raw);
        put_at(&mut raw, 8, &crc.to_le_bytes());
        raw
    }

    /// Reads the header of an open segment file; an error says what is wrong with it.
    pub(super) fn read(file: &File) -> Result<Self, String> {
        let mut raw = [0u8; 64];
        file.read_exact_at(&mut raw, 0)
            .map_err(|e| format!("its header cannot be read ({e})"))?;
        let crc = u32_at(&raw, 8);
        put_at(&mut raw, 8, &[0; 4]);
        if u32_at(&raw, 0) != MAGIC || crc != crc32c::crc32c(&raw) {
            return Err("it does not begin with an intact segment header".into());
        }
        if u32_at(&raw, 4) != VERSION {
            return Err(format!(
                "its format version is {}, this build reads version {VERSION}",
                u32_at(&raw, 4)
            ));
        }
        Ok(Self {
            lane: u32_at(&raw, 12),
            id: u64_at(&raw, 16),
            epoch: u64_at(&raw, 24),
            first_seq: u64_at(&raw, 32),
        })
    }
}

/// `00000001.seg` of a lane's directory.
pub(super) fn segment_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:08}.seg"))
}

/// The number in `00000001.seg`; `None` for any other name.
pub(super) fn numbered(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let plain = digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit());
    // Only the spelling we write ourselves.
    let id = digits.parse().ok().filter(|_| plain)?;
    (format!("{id:08}") == digits).then_some(id)
}

/// A segment file open for writing.
#[derive(Debug)]
pub(super) struct SegmentFile {
    /// With O_DSYNC if writes are to be durable when they return.
    file: File,
    /// The same file without O_DSYNC, for large writes that are to be durable. Only with direct IO: else a sync would write, and answer for,
    /// what the other writer has in the page cache.
    plain: Option<File>,
    dirty: AtomicBool,
}

impl SegmentFile {
    /// Writes `data`, aligned and whole pages, at `offset`. What is small is written and synced in one call, what is large in pieces with
    /// one sync behind them, or with one each where there is no second descriptor.
    pub(super) fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if data.len() <= STEP {
            return self.file.write_all_at(data, offset);
        }
        let file = self.plain.as_ref().unwrap_or(&self.file);
        let mut at = offset;
        for piece in data.chunks(STEP) {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        self.plain.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Notes a write that is not synced yet; `true` for the first since the last sync.
    pub(super) fn soil(&self) -> bool {
        !self.dirty.swap(true, Ordering::AcqRel)
    }

    /// Makes all finished writes durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.dirty.store(false, Ordering::Release);
        self.file.sync_data()
    }
}

fn open_direct(path: &Path, flags: OFlags, create: bool) -> io::Result<File> {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .read(true)
            .create(create)
            .truncate(false);
        options.custom_flags(flags.bits() as i32).open(path)
    };
    match open(flags | OFlags::DIRECT) {
        // The file system does not know direct IO.
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => open(flags),
        other => other,
    }
}

/// Turns the spare at `from` into the segment `header` names: header first, durable, then the name. So a file with a
/// segment's name always had an intact header.
pub(super) fn put_in_service(
    dir: &Path,
    from: &Path,
    header: &SegmentHeader,
    dsync: bool,
) -> io::Result<SegmentFile> {
    let flags = if dsync {
        OFlags::DSYNC
    } else {
        OFlags::empty()
    };
    let mut page = AlignedBuf::new(SEGMENT_HEADER_LEN);
    page.put(0, &header.encode());
    let mut file = open_direct(from, flags, false)?;
    if let Err(e) = file.write_all_at(page.bytes(), 0) {
        if e.raw_os_error() != Some(Errno::INVAL.raw_os_error()) {
            return Err(e);
        }
        // Direct IO with another granularity than ours.
        file = OpenOptions::new()
            .write(true)
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(from)?;
        file.write_all_at(page.bytes(), 0)?;
    }
    file.sync_data()?;
    let direct = rustix::fs::fcntl_getfl(&file)?.contains(OFlags::DIRECT);
    let plain = match dsync && direct {
        true => Some(open_direct(from, OFlags::empty(), false)?),
        false => None,
    };
    std::fs::rename(from, segment_path(dir, header.id))?;
    sync_dir(dir)?;
    Ok(SegmentFile {
        file,
        plain,
        dirty: AtomicBool::new(false),
    })
}

/// Makes a file of `len` zero bytes at `path`: really written, so that later writes neither extend it nor convert
/// extents. Stops early, with an error, when `stop` says so.
pub(super) fn zeroed(path: &Path, len: u64, stop: &AtomicBool) -> io::Result<()> {
    let file = open_direct(path, OFlags::empty(), true)?;
    let zeros = AlignedBuf::new(STEP);
    let mut at = 0;
    while at < len {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let step = (len - at).min(STEP as u64) as usize;
        file.write_all_at(zeros.bytes().get(..step).unwrap_or_default(), at)?;
        at += step as u64;
    }
    file.sync_all()
}

/// Makes renames and new names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Which chunk is expected somewhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) lane: u32,
    pub(super) epoch: u64,
    pub(super) seq: u64,
    /// Bytes of payload to keep, when recovery has cut the chunk.
    pub(super) cut: Option<u32>,
}

/// Reads and verifies one chunk of a segment file.
pub(super) fn read_chunk(
    file: &File,
    path: &Path,
    offset: u64,
    want: Expected,
) -> Result<Chunk, WalError> {
    let corrupt = |at: u64, what: String| WalError::Corrupt {
        file: path.to_path_buf(),
        offset: offset + at,
        seq: want.seq,
        what,
    };
    let header = read_header(file, offset).map_err(|e| match e {
        Ok(what) => corrupt(0, what.to_string()),
        Err(io) => WalError::Unavailable(format!("reading {}: {io}", path.display())),
    })?;
    if (header.lane, header.epoch, header.seq) != (want.lane, want.epoch, want.seq) {
        let what = format!(
            "chunk {} of lane {} epoch {} lies where chunk {} of lane {} epoch {} should be",
            header.seq, header.lane, header.epoch, want.seq, want.lane, want.epoch
        );
        return Err(corrupt(0, what));
    }
    let raw = read_at(file, offset, header.padded_len())
        .map_err(|e| WalError::Unavailable(format!("reading {}: {e}", path.display())))?;
    let parsed = Chunk::parse(raw).map_err(|e| corrupt(0, e.to_string()))?;
    let mut chunk = parsed.chunk;
    match (want.cut, parsed.damage) {
        (Some(len), _) if chunk.payload_len() >= len => chunk.truncate(len),
        (None, None) => {}
        (_, damage) => {
            let what = damage.map_or(ChunkError::Short, |d| d.what);
            return Err(corrupt(
                damage.map_or(0, |d| u64::from(d.offset)),
                what.to_string(),
            ));
        }
    }
    Ok(chunk)
}

/// The chunk header at `offset`. `Err(Ok(_))`: none is there; `Err(Err(_))`: the disk failed.
pub(super) fn read_header(
    file: &File,
    offset: u64,
) -> Result<ChunkHeader, Result<ChunkError, io::Error>> {
    let raw = read_at(file, offset, HEADER_LEN).map_err(Err)?;
    ChunkHeader::decode(&raw).map_err(Ok)
}

/// Up to `len` bytes at `offset`: fewer only at the end of the file.
pub(super) fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let mut raw = vec![0u8; len];
    let mut have = 0;
    while let Some(rest) = raw.get_mut(have..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, offset + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    raw.truncate(have);
    Ok(raw.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_chunk_in_pieces_lies_where_one_write_would_put_it() {
        let dir = tempfile::tempdir().unwrap();
        let len = 8 * STEP as u64;
        for (id, dsync) in [(1, true), (2, false)] {
            let spare = dir.path().join("spare");
            zeroed(&spare, len, &AtomicBool::new(false)).unwrap();
            let header = SegmentHeader {
                lane: 0,
                id,
                epoch: 1,
                first_seq: 1,
            };
            let segment = put_in_service(dir.path(), &spare, &header, dsync).unwrap();
            let mut wanted = std::fs::read(segment_path(dir.path(), id)).unwrap();
            let mut at = SEGMENT_HEADER_LEN;
            for pages in [1, STEP / PAGE, STEP / PAGE + 1, 3 * STEP / PAGE - 1] {
                let mut buf = AlignedBuf::new(pages * PAGE);
                let bytes: Vec<u8> = (0..pages * PAGE).map(|n| (n / 7 + pages) as u8).collect();
                buf.put(0, &bytes);
                segment.write(buf.bytes(), at as u64).unwrap();
                wanted.splice(at..at + bytes.len(), bytes);
                at += pages * PAGE;
            }
            assert_eq!(std::fs::read(segment_path(dir.path(), id)).unwrap(), wanted);
        }
    }
}
