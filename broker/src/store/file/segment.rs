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

/// How segment files are opened and written. A test plays file systems of other kinds with it.
#[derive(Debug, Clone, Copy)]
struct Calls {
    /// Path, flags, and whether the file is made if it is missing.
    open: fn(&Path, OFlags, bool) -> io::Result<File>,
    write: fn(&File, &[u8], u64) -> io::Result<()>,
}

impl Calls {
    const SYSTEM: Self = Self {
        open: |path, flags, create| {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .read(true)
                .create(create)
                .truncate(false);
            options.custom_flags(flags.bits() as i32).open(path)
        },
        write: FileExt::write_all_at,
    };

    /// With direct IO, if the file system knows it.
    fn open_direct(self, path: &Path, flags: OFlags, create: bool) -> io::Result<File> {
        match (self.open)(path, flags | OFlags::DIRECT, create) {
            Err(e) if is_invalid(&e) => (self.open)(path, flags, create),
            other => other,
        }
    }

    /// Opens a file and does `first` with it: with direct IO, or else, if the file system has it with another granularity than ours or not at
    /// all, without. The other `flags` hold in either case.
    fn open_for(
        self,
        path: &Path,
        flags: OFlags,
        create: bool,
        first: impl Fn(&File) -> io::Result<()>,
    ) -> io::Result<File> {
        let file = self.open_direct(path, flags, create)?;
        match first(&file) {
            Err(e) if is_invalid(&e) => {
                let file = (self.open)(path, flags, create)?;
                first(&file).map(|()| file)
            }
            other => other.map(|()| file),
        }
    }
}

/// What the kernel says to direct IO that it cannot do.
fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Turns the spare at `from` into the segment `header` names: header first, durable, then the name. So a file with a
/// segment's name always had an intact header.
pub(super) fn put_in_service(
    dir: &Path,
    from: &Path,
    header: &SegmentHeader,
    dsync: bool,
) -> io::Result<SegmentFile> {
    put_in_service_by(Calls::SYSTEM, dir, from, header, dsync)
}

fn put_in_service_by(
    calls: Calls,
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
    let file = calls.open_for(from, flags, false, |file| {
        (calls.write)(file, page.bytes(), 0)
    })?;
    file.sync_data()?;
    let direct = rustix::fs::fcntl_getfl(&file)?.contains(OFlags::DIRECT);
    let plain = match dsync && direct {
        true => Some(calls.open_direct(from, OFlags::empty(), false)?),
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
    zeroed_by(Calls::SYSTEM, path, len, stop)
}

fn zeroed_by(calls: Calls, path: &Path, len: u64, stop: &AtomicBool) -> io::Result<()> {
    let zeros = AlignedBuf::new(STEP);
    let fill = |file: &File| {
        let mut at = 0;
        while at < len {
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let step = (len - at).min(STEP as u64) as usize;
            (calls.write)(file, zeros.bytes().get(..step).unwrap_or_default(), at)?;
            at += step as u64;
        }
        Ok(())
    };
    calls
        .open_for(path, OFlags::empty(), true, fill)?
        .sync_all()
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

    fn direct(file: &File) -> bool {
        rustix::fs::fcntl_getfl(file)
            .unwrap()
            .contains(OFlags::DIRECT)
    }

    /// No direct IO at all, as on some overlay and network file systems.
    const NONE: Calls = Calls {
        open: |path, flags, create| match flags.contains(OFlags::DIRECT) {
            true => Err(Errno::INVAL.into()),
            false => (Calls::SYSTEM.open)(path, flags, create),
        },
        write: Calls::SYSTEM.write,
    };

    /// Direct IO, but not with pages of 4096 bytes.
    const OTHER: Calls = Calls {
        open: Calls::SYSTEM.open,
        write: |file, data, at| match direct(file) {
            true => Err(Errno::INVAL.into()),
            false => (Calls::SYSTEM.write)(file, data, at),
        },
    };

    #[test]
    fn without_our_direct_io_writes_are_still_durable_when_they_return() {
        let dir = tempfile::tempdir().unwrap();
        let (spare, len) = (dir.path().join("spare"), 4 * STEP as u64);
        for (id, (calls, dsync)) in [NONE, OTHER, Calls::SYSTEM]
            .into_iter()
            .flat_map(|calls| [(calls, true), (calls, false)])
            .enumerate()
        {
            zeroed_by(calls, &spare, len, &AtomicBool::new(false)).unwrap();
            assert_eq!(std::fs::read(&spare).unwrap(), vec![0; len as usize]);
            let header = SegmentHeader {
                lane: 0,
                id: id as u64,
                epoch: 1,
                first_seq: 1,
            };
            let segment = put_in_service_by(calls, dir.path(), &spare, &header, dsync).unwrap();
            let flags = rustix::fs::fcntl_getfl(&segment.file).unwrap();
            assert_eq!(flags.contains(OFlags::DSYNC), dsync, "case {id}");
            // The first four cases are made without; whether the system has it is its own affair.
            assert!(id >= 4 || !direct(&segment.file), "case {id}");
            // A second descriptor would sync, and answer for, what the other writer has in the page cache.
            let plain = segment.plain.as_ref();
            assert_eq!(plain.is_some(), dsync && direct(&segment.file), "case {id}");
            if let Some(plain) = plain {
                let flags = rustix::fs::fcntl_getfl(plain).unwrap();
                assert!(flags.contains(OFlags::DIRECT) && !flags.contains(OFlags::DSYNC));
            }
            let mut buf = AlignedBuf::new(2 * STEP);
            buf.put(0, &vec![id as u8 + 1; 2 * STEP]);
            segment.write(buf.bytes(), PAGE as u64).unwrap();
            let path = segment_path(dir.path(), header.id);
            let raw = std::fs::read(&path).unwrap();
            assert_eq!(raw.get(PAGE..PAGE + 2 * STEP).unwrap(), buf.bytes());
            let read = SegmentHeader::read(&File::open(&path).unwrap());
            assert_eq!(read, Ok(header));
        }
    }
}
