//! Opening a lane: what its files hold, where it ends, and making that end permanent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::chunk::{Chunk, ChunkError, PAGE};
use super::super::regular;
use super::super::tail::{self, End, Seen};
use super::super::wal::{TornTail, WalError};
use super::helpers::{is_full, wal_error};
use super::manifest::{Manifest, Seal};
use super::removal::REMOVING_SUFFIX;
use super::segment::{
    SEGMENT_HEADER_LEN, SegmentHeader, numbered, read_at, read_header, segment_path, sync_dir,
};

/// A live segment found at opening.
#[derive(Debug, Clone)]
pub(super) struct LiveSegment {
    pub(super) id: u64,
    pub(super) epoch: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
    /// Size of the file.
    pub(super) len: u64,
}

/// What opening a lane's directory found, after the cut was made permanent.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) manifest: Manifest,
    pub(super) live: Vec<LiveSegment>,
    /// Files ready to be used again.
    pub(super) spares: Vec<PathBuf>,
    pub(super) next_id: u64,
    pub(super) last_seq: u64,
    pub(super) torn: Option<TornTail>,
}

/// What the newest checkpoint says of the log. Only durable chunks are covered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Covered<'a> {
    /// Its file.
    pub(super) by: &'a Path,
    /// The last chunk it covers.
    pub(super) upto: u64,
}

/// A readable chunk header met while scanning a segment.
#[derive(Debug, Clone, Copy)]
struct Spot {
    segment: usize,
    offset: u64,
    end: u64,
    seen: Seen,
    bad: Option<(u32, ChunkError)>,
}

/// Name of the spare that the segment `id` becomes.
pub(super) fn spare_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:08}.spare"))
}

/// The file that keeps room for checkpoints and the manifest on a full disk.
pub(super) fn reserve_path(dir: &Path) -> PathBuf {
    dir.join("reserve")
}

/// Opens the directory in `epoch`. `spare_len` is the size of segment files now: spares of another size are removed.
pub(super) fn open(
    dir: &Path,
    lane: u32,
    epoch: u64,
    spare_len: u64,
    spares_max: usize,
    covered: Option<Covered<'_>>,
) -> Result<Opened, WalError> {
    let fail = |e: io::Error| WalError::Unavailable(format!("opening {}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(fail)?;
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        sync_dir(parent).map_err(fail)?;
    }
    let (ids, mut spares) = list(dir)?;
    let mut manifest = match Manifest::load(dir)? {
        Some(manifest) if manifest.lane == lane => manifest,
        Some(manifest) => {
            let what = format!("it belongs to lane {}, not to lane {lane}", manifest.lane);
            return Err(corrupt(&Manifest::path(dir), 0, 0, what));
        }
        None if ids.is_empty() && covered.is_none() => Manifest::new(lane),
        None => {
            return Err(corrupt(
                &Manifest::path(dir),
                0,
                0,
                "the lane has segments or checkpoints but no manifest".into(),
            ));
        }
    };
    if epoch <= manifest.epoch {
        return Err(WalError::Fenced);
    }
    let (mut live, mut unused) = classify(dir, &ids, &manifest)?;
    check_complete(dir, &live, &manifest)?;
    let tail_epoch = manifest.epoch;
    let mut torn = None;
    if manifest.seal_of(tail_epoch).is_none() {
        let from = live
            .iter()
            .position(|s| s.epoch == tail_epoch)
            .unwrap_or(live.len());
        let end = find_end(
            dir,
            live.get(from..).unwrap_or_default(),
            &manifest,
            spare_len,
            covered,
        )?;
        torn = end.torn;
        live.iter()
            .skip(from)
            .try_for_each(|s| sync_file(&segment_path(dir, s.id)))
            .map_err(fail)?;
        manifest.seal(Seal {
            epoch: tail_epoch,
            last_seq: end.last_seq,
            cut: end.cut,
        });
        let behind = live
            .iter()
            .position(|s| s.epoch == tail_epoch && s.first_seq > end.last_seq);
        unused.extend(
            live.split_off(behind.unwrap_or(live.len()))
                .into_iter()
                .map(|s| s.id),
        );
    } else {
        check_sealed_end(dir, &live, &manifest)?;
    }
    if let Some(covered) = covered.filter(|c| c.upto > manifest.sealed_upto()) {
        let id = live.last().map_or(manifest.start_id, |s| s.id + 1);
        let file = segment_path(dir, id);
        return Err(ends_early(&file, 0, manifest.sealed_upto() + 1, covered));
    }
    manifest.epoch = epoch;
    while let Err(e) = manifest.store(dir) {
        // On a full disk what is only kept for later makes room.
        let freed = fs::remove_file(reserve_path(dir)).is_ok()
            || spares
                .pop()
                .is_some_and(|spare| fs::remove_file(spare).is_ok());
        if !is_full(&e) || !freed {
            return Err(wal_error("opening", dir, &e));
        }
    }
    set_ends(&mut live, &manifest);
    for id in unused {
        fs::rename(segment_path(dir, id), spare_path(dir, id)).map_err(fail)?;
        spares.push(spare_path(dir, id));
    }
    spares.sort();
    spares.dedup();
    let spares = keep_spares(spares, spare_len, spares_max)?;
    sync_dir(dir).map_err(fail)?;
    let highest = live
        .last()
        .map_or(0, |s| s.id)
        .max(manifest.holes.last().map_or(0, |h| h.last_id));
    let next_id = manifest.start_id.max(highest + 1);
    let last_seq = manifest.sealed_upto();
    Ok(Opened {
        manifest,
        live,
        spares,
        next_id,
        last_seq,
        torn,
    })
}

pub(super) fn corrupt(file: &Path, offset: u64, seq: u64, what: String) -> WalError {
    WalError::Corrupt {
        file: file.to_path_buf(),
        offset,
        seq,
        what,
    }
}

/// The log does not reach as far as its newest checkpoint does.
fn ends_early(file: &Path, offset: u64, seq: u64, covered: Covered<'_>) -> WalError {
    let what = format!(
        "the log ends before it, but {} was made when there were chunks up to {}: the end of the log was lost, or comes from \
         an older backup than the rest",
        covered.by.display(),
        covered.upto
    );
    corrupt(file, offset, seq, what)
}

fn sync_file(path: &Path) -> io::Result<()> {
    regular::open(path)?.sync_data()
}

/// Segment numbers, ascending, and spare files. Leftovers of ours are removed, anything else is left alone.
fn list(dir: &Path) -> Result<(Vec<u64>, Vec<PathBuf>), WalError> {
    let fail = |path: &Path, e: io::Error| {
        WalError::Unavailable(format!("opening {}: {e}", path.display()))
    };
    let (mut ids, mut spares) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(|e| fail(dir, e))? {
        let entry = entry.map_err(|e| fail(dir, e))?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if let Some(id) = numbered(&name, ".seg") {
            regular::check(&path).map_err(|e| fail(&path, e))?;
            ids.push(id);
        } else if numbered(&name, ".spare").is_some() {
            spares.push(path);
        } else if name.ends_with(".checkpoint.tmp")
            || name == "manifest.tmp"
            || name == "reserve.tmp"
            || numbered(&name, ".zeroing").is_some()
            || numbered(&name, REMOVING_SUFFIX).is_some()
        {
            fs::remove_file(&path).map_err(|e| fail(&path, e))?;
        }
    }
    ids.sort_unstable();
    Ok((ids, spares))
}

/// Sorts segments into live ones and those that only wait to be used again.
fn classify(
    dir: &Path,
    ids: &[u64],
    manifest: &Manifest,
) -> Result<(Vec<LiveSegment>, Vec<u64>), WalError> {
    let (mut live, mut unused): (Vec<LiveSegment>, _) = (Vec::new(), Vec::new());
    for &id in ids {
        let path = segment_path(dir, id);
        if manifest.dropped(id) {
            unused.push(id);
            continue;
        }
        let fail = |e: io::Error| WalError::Unavailable(format!("opening {}: {e}", path.display()));
        let file = regular::open(&path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        let expected = live.last().map_or(manifest.start_seq, |s| s.first_seq);
        let header =
            SegmentHeader::read(&file).map_err(|what| corrupt(&path, 0, expected, what))?;
        if header.id != id || header.lane != manifest.lane {
            let what = format!(
                "its header names segment {} of lane {}",
                header.id, header.lane
            );
            return Err(corrupt(&path, 0, expected, what));
        }
        if header.epoch > manifest.epoch || live.last().is_some_and(|s| s.epoch > header.epoch) {
            return Err(corrupt(
                &path,
                0,
                expected,
                format!("its epoch {} is out of order", header.epoch),
            ));
        }
        match manifest.seal_of(header.epoch) {
            Some(seal) if header.first_seq > seal.last_seq => unused.push(id),
            None if header.epoch != manifest.epoch => {
                let what = format!(
                    "it belongs to epoch {}, whose end is not known",
                    header.epoch
                );
                return Err(corrupt(&path, 0, expected, what));
            }
            _ => {
                let (epoch, first_seq) = (header.epoch, header.first_seq);
                live.push(LiveSegment {
                    id,
                    epoch,
                    first_seq,
                    last_seq: u64::MAX,
                    len,
                });
            }
        }
    }
    Ok((live, unused))
}

/// Every segment from the first one on must be there, but for dropped ones.
fn check_complete(dir: &Path, live: &[LiveSegment], manifest: &Manifest) -> Result<(), WalError> {
    let mut next = manifest.start_id;
    let missing = |id: u64, seq: u64| {
        Err(corrupt(
            &segment_path(dir, id),
            0,
            seq,
            "the segment file is missing".into(),
        ))
    };
    for segment in live {
        while next < segment.id {
            match manifest
                .holes
                .iter()
                .find(|h| (h.first_id..=h.last_id).contains(&next))
            {
                Some(hole) => next = hole.last_id + 1,
                None => return missing(next, manifest.start_seq),
            }
        }
        next = segment.id + 1;
    }
    let sealed = manifest.seals.last().map_or(0, |s| s.last_seq);
    let covered = manifest
        .holes
        .iter()
        .any(|h| (h.first_seq..=h.last_seq).contains(&sealed));
    let first = live.first().map_or(u64::MAX, |s| s.first_seq);
    if sealed >= manifest.start_seq && !covered && first > sealed {
        return missing(manifest.start_id, manifest.start_seq);
    }
    Ok(())
}

/// The newest segment of a closed log must hold its last chunk: a file that is missing behind it shows nowhere else.
fn check_sealed_end(dir: &Path, live: &[LiveSegment], manifest: &Manifest) -> Result<(), WalError> {
    let last = manifest.sealed_upto();
    let mut holes = manifest.holes.iter();
    if last < manifest.start_seq || holes.any(|h| (h.first_seq..=h.last_seq).contains(&last)) {
        return Ok(());
    }
    let Some(segment) = live.last() else {
        return Ok(());
    };
    let path = segment_path(dir, segment.id);
    let fail = |e: io::Error| WalError::Unavailable(format!("reading {}: {e}", path.display()));
    let file = regular::open(&path).map_err(fail)?;
    let mut offset = SEGMENT_HEADER_LEN as u64;
    let mut end = offset;
    while offset < segment.len {
        match read_header(&file, offset) {
            Ok(h)
                if h.epoch == segment.epoch
                    && h.lane == manifest.lane
                    && h.seq >= segment.first_seq =>
            {
                if h.seq == last {
                    return Ok(());
                }
                offset += h.padded_len() as u64;
                end = offset;
            }
            Ok(_) | Err(Ok(_)) => offset += PAGE as u64,
            Err(Err(io)) => return Err(fail(io)),
        }
    }
    let what = format!(
        "the log was closed with chunk {last}, which is in no segment file: the end of this one, or a file behind it, was lost"
    );
    Err(corrupt(&path, end, last, what))
}

/// Fills in the last chunk of each segment: it ends where the next, a dropped run, or its epoch's end begins.
fn set_ends(live: &mut [LiveSegment], manifest: &Manifest) {
    let starts: Vec<u64> = live.iter().map(|s| s.first_seq).collect();
    for segment in live {
        let first = segment.first_seq;
        let seal = manifest
            .seal_of(segment.epoch)
            .map_or(u64::MAX, |s| s.last_seq);
        let next = starts
            .iter()
            .copied()
            .filter(|s| *s > first)
            .min()
            .unwrap_or(u64::MAX);
        let hole = manifest
            .holes
            .iter()
            .map(|h| h.first_seq)
            .filter(|s| *s > first)
            .min()
            .unwrap_or(u64::MAX);
        segment.last_seq = seal.min(next - 1).min(hole - 1);
    }
}

/// Keeps up to `max` spares of the right size. Links are removed: they lead to somebody else's file.
fn keep_spares(spares: Vec<PathBuf>, len: u64, max: usize) -> Result<Vec<PathBuf>, WalError> {
    let mut kept = Vec::new();
    for path in spares {
        let fits = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() && m.len() == len);
        if kept.len() < max && fits {
            kept.push(path);
        } else {
            fs::remove_file(&path).map_err(|e| {
                let what = "removing the spare, which is not one of ours,";
                WalError::Unavailable(format!("{what} {}: {e}", path.display()))
            })?;
        }
    }
    Ok(kept)
}

struct Ending {
    last_seq: u64,
    cut: Option<u32>,
    torn: Option<TornTail>,
}

/// Where the unsealed epoch, whose segments are `segments`, ends.
///
/// Reads from the back only as far as needed: the newest header that can be read states a durable prefix, everything
/// behind it is verified here. What lies before is durable and is verified when it is read.
fn find_end(
    dir: &Path,
    segments: &[LiveSegment],
    manifest: &Manifest,
    full_len: u64,
    covered: Option<Covered<'_>>,
) -> Result<Ending, WalError> {
    let proven = manifest
        .sealed_upto()
        .max(manifest.holes.last().map_or(0, |h| h.last_seq))
        .max(covered.map_or(0, |c| c.upto));
    let mut spots: Vec<Spot> = Vec::new();
    let mut from = segments.len();
    while from > 0 {
        let durable = spots.iter().map(|s| s.seen.durable).max();
        if durable.is_some_and(|d| {
            segments
                .get(from)
                .is_some_and(|s| s.first_seq <= d.max(proven) + 1)
        }) {
            break;
        }
        from -= 1;
        let mut earlier = scan(dir, segments, from, manifest.lane)?;
        earlier.append(&mut spots);
        spots = earlier;
    }
    let expected = match segments.get(from) {
        Some(segment) if from > 0 => segment.first_seq,
        _ => manifest.sealed_upto() + 1,
    };
    let holes: Vec<_> = manifest
        .holes
        .iter()
        .map(|h| (h.first_seq, h.last_seq))
        .collect();
    let seen: Vec<_> = spots.iter().map(|s| s.seen).collect();
    let tail = Tail {
        dir,
        segments,
        spots: &spots,
    };
    match tail::end(expected, proven, &holes, &seen) {
        End::Whole { last } => {
            let torn = tail.unreadable_end(last, full_len)?;
            Ok(Ending {
                last_seq: last,
                cut: None,
                torn,
            })
        }
        End::Torn {
            last,
            payload_len,
            bad,
        } => {
            let torn = Some(tail.describe(last, payload_len, bad));
            Ok(Ending {
                last_seq: last,
                cut: payload_len,
                torn,
            })
        }
        End::Corrupt { seq } => {
            let (file, offset, what) = tail.place(seq);
            let ends = spots.iter().all(|s| s.seen.seq < seq);
            match covered.filter(|_| ends) {
                // Of several files the one that is missing comes first.
                Some(c) if segments.is_empty() && c.upto > manifest.sealed_upto() => Ok(Ending {
                    last_seq: manifest.sealed_upto(),
                    cut: None,
                    torn: None,
                }),
                Some(covered) => Err(ends_early(&file, offset, seq, covered)),
                None => Err(corrupt(&file, offset, seq, what)),
            }
        }
    }
}

/// All readable chunk headers of segment `at`, verified. Behind bytes that are no chunk the search goes on page by page.
fn scan(dir: &Path, segments: &[LiveSegment], at: usize, lane: u32) -> Result<Vec<Spot>, WalError> {
    let Some(segment) = segments.get(at) else {
        return Ok(Vec::new());
    };
    let path = segment_path(dir, segment.id);
    let fail = |e: io::Error| WalError::Unavailable(format!("reading {}: {e}", path.display()));
    let file = regular::open(&path).map_err(fail)?;
    let mut spots = Vec::new();
    let mut offset = SEGMENT_HEADER_LEN as u64;
    while offset < segment.len {
        let header = match read_header(&file, offset) {
            // Chunks of an earlier use of the file have another epoch or lower numbers.
            Ok(h) if h.epoch == segment.epoch && h.lane == lane && h.seq >= segment.first_seq => h,
            Ok(_) | Err(Ok(_)) => {
                offset += PAGE as u64;
                continue;
            }
            Err(Err(io)) => return Err(fail(io)),
        };
        let raw = read_at(&file, offset, header.padded_len()).map_err(fail)?;
        let end = offset + header.padded_len() as u64;
        if let Ok(parsed) = Chunk::parse(raw) {
            let payload_len = parsed.chunk.payload_len();
            let whole = parsed.is_whole();
            let seen = Seen {
                seq: header.seq,
                durable: header.durable,
                payload_len,
                whole,
            };
            let bad = parsed.damage.map(|d| (d.offset, d.what));
            spots.push(Spot {
                segment: at,
                offset,
                end,
                seen,
                bad,
            });
        }
        offset = end;
    }
    Ok(spots)
}

/// What the scan of an unsealed epoch's end found.
struct Tail<'a> {
    dir: &'a Path,
    segments: &'a [LiveSegment],
    spots: &'a [Spot],
}

impl Tail<'_> {
    fn path(&self, segment: usize) -> PathBuf {
        self.segments
            .get(segment)
            .map_or(self.dir.to_path_buf(), |s| segment_path(self.dir, s.id))
    }

    /// Where chunk `seq` lies or should lie, and what is wrong there.
    fn place(&self, seq: u64) -> (PathBuf, u64, String) {
        if let Some(spot) = self.spots.iter().find(|s| s.seen.seq == seq) {
            let (offset, what) = spot.bad.unwrap_or((0, ChunkError::Short));
            return (
                self.path(spot.segment),
                spot.offset + u64::from(offset),
                what.to_string(),
            );
        }
        let (segment, offset) = self.behind(seq);
        let what = match regular::open(&self.path(segment)).map(|f| read_header(&f, offset)) {
            Ok(Err(Ok(error))) => error.to_string(),
            _ => "another chunk lies there".into(),
        };
        (self.path(segment), offset, what)
    }

    /// Where a chunk `seq` that left no header should begin: first of its segment, or behind its predecessor.
    fn behind(&self, seq: u64) -> (usize, u64) {
        if let Some(segment) = self.segments.iter().position(|s| s.first_seq == seq) {
            return (segment, SEGMENT_HEADER_LEN as u64);
        }
        let before = self.spots.iter().rev().find(|s| s.seen.seq < seq);
        let segment = self
            .segments
            .iter()
            .rposition(|s| s.first_seq <= seq)
            .unwrap_or(0);
        before.map_or((segment, SEGMENT_HEADER_LEN as u64), |s| (s.segment, s.end))
    }

    /// Reports a cut behind `last`, or inside it.
    fn describe(&self, last: u64, payload_len: Option<u32>, bad: u64) -> TornTail {
        let (file, offset, what) = self.place(bad);
        let given_up: u64 = self
            .spots
            .iter()
            .filter(|s| s.seen.seq > last)
            .map(|s| s.end - s.offset)
            .sum();
        let partial = payload_len.and_then(|_| self.spots.iter().find(|s| s.seen.seq == last));
        let partial = partial.map_or(0, |s| {
            let len = self.segments.get(s.segment).map_or(s.end, |g| g.len);
            s.end.min(len).saturating_sub(offset)
        });
        TornTail {
            file,
            offset,
            seq: bad,
            bytes: given_up + partial,
            what,
        }
    }

    /// A last chunk of which not even the header can be read is a torn tail as well: worth a report.
    fn unreadable_end(&self, last: u64, full_len: u64) -> Result<Option<TornTail>, WalError> {
        let (segment, offset) = self.behind(last + 1);
        let Some(len) = self.segments.get(segment).map(|s| s.len) else {
            return Ok(None);
        };
        let file = self.path(segment);
        let fail = |e: io::Error| WalError::Unavailable(format!("reading {}: {e}", file.display()));
        let header = read_header(&regular::open(&file).map_err(fail)?, offset);
        let what = match header {
            Err(Ok(
                error @ (ChunkError::HeaderChecksum | ChunkError::Version(_) | ChunkError::Size),
            )) => error,
            Err(Ok(error @ ChunkError::Short)) if len > offset && len < full_len => error,
            Err(Err(io)) => return Err(fail(io)),
            _ => return Ok(None),
        };
        let bytes = len.saturating_sub(offset).min(PAGE as u64);
        Ok(Some(TornTail {
            file,
            offset,
            seq: last + 1,
            bytes,
            what: what.to_string(),
        }))
    }
}
