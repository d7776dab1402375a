//! The small files of a lane that say what the segments cannot say themselves: where earlier epochs ended, which
//! segments were dropped, and the checkpoints.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::chunk::{u32_at, u64_at};
use super::super::regular;
use super::super::wal::{Checkpoint, WalError};
use super::segment::{numbered, sync_dir};

const MANIFEST: &str = "manifest";
const MANIFEST_MAGIC: u32 = u32::from_le_bytes(*b"VMAN");
const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"VCKP");
const CHECKPOINT_SUFFIX: &str = ".checkpoint";
const CHECKPOINTS_KEPT: usize = 2;
const VERSION: u32 = 1;
/// Stands for "the last chunk is whole".
const UNCUT: u64 = u64::MAX;

/// Where an epoch ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) epoch: u64,
    pub(super) last_seq: u64,
    /// Bytes of payload of the last chunk that count, when its tail was cut.
    pub(super) cut: Option<u32>,
}

/// A run of dropped segments with live ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) first_id: u64,
    pub(super) last_id: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// A lane's durable bookkeeping. Replaced as a whole, atomically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) lane: u32,
    /// The newest epoch that opened the lane.
    pub(super) epoch: u64,
    /// Segments below are deleted.
    pub(super) start_id: u64,
    /// Chunks below are deleted.
    pub(super) start_seq: u64,
    /// Ascending; one per epoch that wrote anything still there, and always the newest.
    pub(super) seals: Vec<Seal>,
    /// Ascending, never touching each other.
    pub(super) holes: Vec<Hole>,
}

impl Manifest {
    pub(super) fn new(lane: u32) -> Self {
        Self {
            lane,
            epoch: 0,
            start_id: 1,
            start_seq: 1,
            seals: Vec::new(),
            holes: Vec::new(),
        }
    }

    /// `None` when the lane has none yet; an error says what is wrong with it.
    pub(super) fn load(dir: &Path) -> Result<Option<Self>, WalError> {
        let path = dir.join(MANIFEST);
        let raw = match regular::read(&path) {
            Ok(raw) => raw,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                return Err(WalError::Unavailable(format!(
                    "reading {}: {e}",
                    path.display()
                )));
            }
        };
        let parsed = Self::decode(&raw).ok_or_else(|| {
            let version = u32_at(&raw, 4);
            let what = match u32_at(&raw, 0) == MANIFEST_MAGIC && version > VERSION && sound(&raw) {
                true => format!(
                    "it has version {version}, this build reads version {VERSION}: use the build that made it"
                ),
                false => "the lane's manifest does not match its checksum".into(),
            };
            WalError::Corrupt { file: path, offset: 0, seq: 0, what }
        });
        parsed.map(Some)
    }

    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join(MANIFEST)
    }

    /// Makes this the lane's manifest, durably.
    pub(super) fn store(&self, dir: &Path) -> io::Result<()> {
        write_atomically(dir, MANIFEST, &[&self.encode()])
    }

    pub(super) fn seal_of(&self, epoch: u64) -> Option<&Seal> {
        self.seals.iter().find(|s| s.epoch == epoch)
    }

    /// Number of the last chunk of all sealed epochs.
    pub(super) fn sealed_upto(&self) -> u64 {
        self.seals
            .last()
            .map_or(0, |s| s.last_seq)
            .max(self.start_seq - 1)
    }

    /// Whether the segment `id` was dropped.
    pub(super) fn dropped(&self, id: u64) -> bool {
        id < self.start_id
            || self
                .holes
                .iter()
                .any(|h| (h.first_id..=h.last_id).contains(&id))
    }

    /// Notes the end of an epoch.
    pub(super) fn seal(&mut self, seal: Seal) {
        if self.seal_of(seal.epoch).is_none() {
            self.seals.push(seal);
        }
        self.tidy();
    }

    /// Notes dropped segments.
    pub(super) fn drop_run(&mut self, run: Hole) {
        self.holes.push(run);
        self.tidy();
    }

    fn tidy(&mut self) {
        self.holes.sort_by_key(|h| h.first_id);
        let mut holes: Vec<Hole> = Vec::new();
        for hole in self.holes.drain(..) {
            if hole.first_id <= self.start_id {
                self.start_id = self.start_id.max(hole.last_id + 1);
                self.start_seq = self.start_seq.max(hole.last_seq + 1);
                continue;
            }
            match holes.last_mut() {
                Some(last) if last.last_id + 1 >= hole.first_id => {
                    last.last_id = last.last_id.max(hole.last_id);
                    last.last_seq = last.last_seq.max(hole.last_seq);
                }
                _ => holes.push(hole),
            }
        }
        self.holes = holes;
        let newest = self.seals.last().map_or(0, |s| s.epoch);
        let start = self.start_seq;
        self.seals
            .retain(|s| s.last_seq >= start || s.epoch == newest);
    }

    fn encode(&self) -> Vec<u8> {
        let mut raw = Vec::new();
        let head = [MANIFEST_MAGIC, VERSION, 0, self.lane];
        head.iter()
            .for_each(|v| raw.extend_from_slice(&v.to_le_bytes()));
        let mut put = |v: u64| raw.extend_from_slice(&v.to_le_bytes());
        [self.epoch, self.start_id, self.start_seq]
            .into_iter()
            .for_each(&mut put);
        put(self.seals.len() as u64);
        for s in &self.seals {
            [s.epoch, s.last_seq, s.cut.map_or(UNCUT, u64::from)]
                .into_iter()
                .for_each(&mut put);
        }
        put(self.holes.len() as u64);
        for h in &self.holes {
            [h.first_id, h.last_id, h.first_seq, h.last_seq]
                .into_iter()
                .for_each(&mut put);
        }
        let crc = crc32c::crc32c(&raw);
        super::super::chunk::put_at(&mut raw, 8, &crc.to_le_bytes());
        raw
    }

    fn decode(raw: &[u8]) -> Option<Self> {
        let known = u32_at(raw, 0) == MANIFEST_MAGIC && u32_at(raw, 4) == VERSION;
        if !known || !sound(raw) {
            return None;
        }
        let mut words = raw.get(16..)?.chunks_exact(8).map(|w| u64_at(w, 0));
        let (epoch, start_id, start_seq) = (words.next()?, words.next()?, words.next()?);
        let mut seals = Vec::new();
        for _ in 0..words.next()? {
            let (epoch, last_seq, cut) = (words.next()?, words.next()?, words.next()?);
            seals.push(Seal {
                epoch,
                last_seq,
                cut: u32::try_from(cut).ok(),
            });
        }
        let mut holes = Vec::new();
        for _ in 0..words.next()? {
            let (first_id, last_id) = (words.next()?, words.next()?);
            holes.push(Hole {
                first_id,
                last_id,
                first_seq: words.next()?,
                last_seq: words.next()?,
            });
        }
        Some(Self {
            lane: u32_at(raw, 12),
            epoch,
            start_id,
            start_seq: start_seq.max(1),
            seals,
            holes,
        })
    }
}

/// Whether a manifest matches its checksum.
fn sound(raw: &[u8]) -> bool {
    let mut zeroed = raw.to_vec();
    super::super::chunk::put_at(&mut zeroed, 8, &[0; 4]);
    raw.len() >= 16 && u32_at(raw, 8) == crc32c::crc32c(&zeroed)
}

/// Replaces `dir/name` by the concatenation of `parts`: all of it or nothing, durable on return.
pub(in crate::store) fn write_atomically(
    dir: &Path,
    name: &str,
    parts: &[&[u8]],
) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp"));
    let write = || {
        regular::check(&temporary)?;
        let mut file = File::create(&temporary)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join(name))?;
        sync_dir(dir)
    };
    write().inspect_err(|_| {
        // Gives the room back; a leftover is harmless and removed at the next start.
        let _ = fs::remove_file(&temporary);
    })
}

/// Writes a checkpoint as number `number` and removes all but the newest two.
pub(super) fn store_checkpoint(
    dir: &Path,
    lane: u32,
    number: u64,
    checkpoint: &Checkpoint,
) -> io::Result<()> {
    let mut head = Vec::new();
    [CHECKPOINT_MAGIC, VERSION, 0, lane]
        .iter()
        .for_each(|v| head.extend_from_slice(&v.to_le_bytes()));
    head.extend_from_slice(&checkpoint.upto.to_le_bytes());
    head.extend_from_slice(&(checkpoint.data.len() as u64).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head), &checkpoint.data);
    super::super::chunk::put_at(&mut head, 8, &crc.to_le_bytes());
    write_atomically(
        dir,
        &format!("{number:08}{CHECKPOINT_SUFFIX}"),
        &[&head, &checkpoint.data],
    )?;
    for (_, old) in checkpoint_files(dir)?.into_iter().skip(CHECKPOINTS_KEPT) {
        fs::remove_file(old)?;
    }
    Ok(())
}

/// The newest intact checkpoint, and the number for the next one. Damaged ones are passed over.
///
/// Checkpoints cover only what is durable, so the log must reach as far: see `recover::open`.
pub(super) fn load_checkpoint(
    dir: &Path,
    lane: u32,
) -> Result<(Option<(PathBuf, Checkpoint)>, u64), WalError> {
    let fail = |path: &Path, e: io::Error| {
        WalError::Unavailable(format!("reading {}: {e}", path.display()))
    };
    let files = match checkpoint_files(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        files => files.map_err(|e| fail(dir, e))?,
    };
    let next = files.first().map_or(1, |f| f.0.saturating_add(1));
    for (_, path) in files {
        let raw = regular::read(&path).map_err(|e| fail(&path, e))?;
        match decode_checkpoint(raw.into(), lane) {
            Some(checkpoint) => return Ok((Some((path, checkpoint)), next)),
            None => tracing::warn!(file = %path.display(), "checkpoint is damaged and is not used"),
        }
    }
    Ok((None, next))
}

fn decode_checkpoint(raw: Bytes, lane: u32) -> Option<Checkpoint> {
    let head = raw.get(..32)?;
    let mut zeroed = head.to_vec();
    super::super::chunk::put_at(&mut zeroed, 8, &[0; 4]);
    let data = raw.slice(32..);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&zeroed), &data);
    let known = u32_at(head, 0) == CHECKPOINT_MAGIC
        && u32_at(head, 4) == VERSION
        && u32_at(head, 12) == lane;
    let whole = crc == u32_at(head, 8) && u64_at(head, 24) == data.len() as u64;
    (known && whole).then(|| Checkpoint {
        upto: u64_at(head, 16),
        data,
    })
}

/// Checkpoint files, newest first.
fn checkpoint_files(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|n| numbered(n, CHECKPOINT_SUFFIX))
        {
            files.push((number, entry.path()));
        }
    }
    files.sort_by(|a, b| b.cmp(a));
    Ok(files)
}
