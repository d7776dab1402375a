//! Reading a lane's chunks in order, for recovery.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::super::chunk::Chunk;
use super::super::regular;
use super::super::wal::{ChunkSource, WalError};
use super::manifest::Seal;
use super::recover::{LiveSegment, corrupt};
use super::segment::{Expected, SEGMENT_HEADER_LEN, read_chunk, read_header, segment_path};

/// Chunks of a lane, read from its files in order.
pub(super) struct FileSource {
    dir: PathBuf,
    lane: u32,
    segments: Vec<LiveSegment>,
    seals: Vec<Seal>,
    /// The segment being read, and where its next chunk lies.
    at: Option<Reading>,
}

struct Reading {
    file: File,
    path: PathBuf,
    segment: LiveSegment,
    offset: u64,
    next: u64,
}

impl FileSource {
    pub(super) fn new(dir: &Path, lane: u32, segments: Vec<LiveSegment>, seals: Vec<Seal>) -> Self {
        Self {
            dir: dir.to_path_buf(),
            lane,
            segments,
            seals,
            at: None,
        }
    }

    fn read(&mut self, seq: u64) -> Result<Option<Chunk>, WalError> {
        let Some(segment) = self
            .segments
            .iter()
            .find(|s| s.last_seq >= seq && s.last_seq >= s.first_seq)
        else {
            return Ok(None);
        };
        let seq = seq.max(segment.first_seq);
        let resumed = self
            .at
            .take()
            .filter(|r| r.segment.id == segment.id && r.next <= seq);
        let mut reading = match resumed {
            Some(reading) => reading,
            None => {
                let path = segment_path(&self.dir, segment.id);
                let file = regular::open(&path).map_err(|e| {
                    WalError::Unavailable(format!("reading {}: {e}", path.display()))
                })?;
                let (offset, next) = (SEGMENT_HEADER_LEN as u64, segment.first_seq);
                Reading {
                    file,
                    path,
                    segment: segment.clone(),
                    offset,
                    next,
                }
            }
        };
        while reading.next < seq {
            let step = match read_header(&reading.file, reading.offset) {
                Ok(h) if h.seq == reading.next && h.epoch == reading.segment.epoch => {
                    h.padded_len() as u64
                }
                Ok(_) => {
                    return Err(corrupt(
                        &reading.path,
                        reading.offset,
                        reading.next,
                        "another chunk lies there".into(),
                    ));
                }
                Err(Ok(e)) => {
                    return Err(corrupt(
                        &reading.path,
                        reading.offset,
                        reading.next,
                        e.to_string(),
                    ));
                }
                Err(Err(io)) => {
                    return Err(WalError::Unavailable(format!(
                        "reading {}: {io}",
                        reading.path.display()
                    )));
                }
            };
            reading.offset += step;
            reading.next += 1;
        }
        let epoch = reading.segment.epoch;
        let cut = cut_of(&self.seals, epoch, seq);
        let want = Expected {
            lane: self.lane,
            epoch,
            seq,
            cut,
        };
        let chunk = read_chunk(&reading.file, &reading.path, reading.offset, want)?;
        reading.offset += chunk.bytes().len() as u64;
        reading.next += 1;
        self.at = Some(reading);
        Ok(Some(chunk))
    }
}

/// How much of chunk `seq` counts, when it is the cut end of its epoch.
pub(super) fn cut_of(seals: &[Seal], epoch: u64, seq: u64) -> Option<u32> {
    seals
        .iter()
        .find(|s| s.epoch == epoch && s.last_seq == seq)
        .and_then(|s| s.cut)
}

impl ChunkSource for FileSource {
    fn next(&mut self, seq: u64) -> Option<Result<Chunk, WalError>> {
        self.read(seq).transpose()
    }
}
