//! [`Wal`] for the embedded log: checks, bounds and bookkeeping on the executor.

use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;

use super::super::chunk::{BufferPool, CHUNK_LEN_MAX, Chunk, ChunkBuilder, PAGE};
use super::super::wal::{Checkpoint, Segment, Space, Wal, WalError, WalEvent};
use super::helpers::ReadJob;
use super::housekeeper::Chore;
use super::manifest::Hole;
use super::segment::SEGMENT_HEADER_LEN;
use super::{FileWal, Known, SyncMode, Unacked};

impl Wal for FileWal {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn lane(&self) -> u32 {
        self.lane
    }

    fn next_seq(&self) -> u64 {
        self.next_seq
    }

    fn acked(&self) -> u64 {
        self.acked
    }

    fn durable(&self) -> u64 {
        match self.options.sync {
            SyncMode::Always => self.acked,
            _ => self.shared.synced.load(Ordering::Acquire).min(self.acked),
        }
    }

    fn room(&self) -> usize {
        self.options
            .unacked_bytes_max
            .saturating_sub(self.unacked_bytes)
    }

    fn chunk_len_max(&self) -> usize {
        let segment = self.segment_len as usize - SEGMENT_HEADER_LEN;
        segment
            .min(self.options.unacked_bytes_max)
            .min(CHUNK_LEN_MAX)
    }

    fn submit(&mut self, chunk: Chunk) -> Result<(), WalError> {
        self.usable()?;
        let (header, len) = (*chunk.header(), chunk.bytes().len());
        if self.sealing || header.epoch != self.epoch || header.lane != self.lane {
            return Err(WalError::Fenced);
        }
        match header.seq.cmp(&self.next_seq) {
            std::cmp::Ordering::Less => return Err(WalError::Exists),
            std::cmp::Ordering::Greater => return Err(WalError::Absent),
            std::cmp::Ordering::Equal => {}
        }
        let max = self.chunk_len_max();
        if len > max {
            return Err(WalError::TooLarge { bytes: len, max });
        }
        if len > self.room() {
            return Err(WalError::Backpressure);
        }
        self.next_seq += 1;
        self.unacked_bytes += len;
        self.unacked.insert(
            header.seq,
            Unacked {
                chunk,
                job: None,
                written: false,
            },
        );
        self.queue.push_back(header.seq);
        self.pump();
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<WalEvent>) {
        self.take_in();
        events.append(&mut self.events);
    }

    fn read(&mut self, token: u64, seq: u64) -> Result<(), WalError> {
        if self.closed {
            return Err(WalError::Closed);
        }
        if seq > self.acked {
            return Err(WalError::Absent);
        }
        let known = self.find(seq).ok_or(WalError::Trimmed)?;
        if self.reads >= self.options.reads_max {
            return Err(WalError::Backpressure);
        }
        let Segment { id, first_seq, .. } = known.segment;
        let page = known.pages.get((seq - first_seq) as usize);
        let offset = page.map(|p| u64::from(*p) * PAGE as u64);
        let job = ReadJob::Chunk {
            token,
            seq,
            segment: id,
            epoch: known.epoch,
            first_seq,
            offset,
        };
        let reader = self.reader.as_ref().ok_or(WalError::Closed)?;
        reader.send(job).map_err(|_| WalError::Closed)?;
        self.reads += 1;
        Ok(())
    }

    fn retry(&mut self) {
        self.write_refused();
        self.chore(Chore::Retry);
    }

    fn space(&self) -> Space {
        self.space
    }

    fn seal(&mut self) {
        self.sealing = true;
        if !self.seal_sent && self.failed.is_none() && self.acked + 1 == self.next_seq {
            self.send_seal();
        }
    }

    fn delete(&mut self, below_seq: u64) {
        let old = self
            .segments
            .iter()
            .map(|k| &k.segment)
            .filter(|s| !s.open && s.last_seq < below_seq);
        for id in old.map(|s| s.id).collect::<Vec<_>>() {
            // One with chunks that are not durable yet is dropped by a later call.
            let _ = self.drop_segment(id);
        }
    }

    fn segments(&self) -> Vec<Segment> {
        self.segments.iter().map(|k| k.segment.clone()).collect()
    }

    fn drop_segment(&mut self, id: u64) -> Result<(), WalError> {
        if self.closed {
            return Err(WalError::Closed);
        }
        let at = self
            .segments
            .iter()
            .position(|k| k.segment.id == id)
            .ok_or(WalError::Absent)?;
        let dropped = self
            .segments
            .get(at)
            .map(|k| &k.segment)
            .ok_or(WalError::Absent)?;
        if dropped.open || dropped.last_seq > self.durable() {
            return Err(WalError::Backpressure);
        }
        let Known { segment, .. } = self.segments.remove(at);
        if let Some(reader) = &self.reader {
            // It ends only after this sender is gone.
            let _ = reader.send(ReadJob::Forget { segment: id });
        }
        let (first_seq, last_seq) = (segment.first_seq, segment.last_seq);
        self.chore(Chore::Drop(Hole {
            first_id: id,
            last_id: id,
            first_seq,
            last_seq,
        }));
        Ok(())
    }

    fn put_checkpoint(&mut self, token: u64, upto: u64, data: Bytes) -> Result<(), WalError> {
        self.usable()?;
        if upto > self.acked {
            return Err(WalError::Absent);
        }
        if self.checkpointing {
            return Err(WalError::Backpressure);
        }
        self.checkpointing = true;
        self.chore(Chore::Checkpoint {
            token,
            checkpoint: Checkpoint { upto, data },
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), WalError> {
        if self.closed {
            return Ok(());
        }
        let deadline = Instant::now() + self.options.close_wait;
        self.wait(deadline, |w| w.unacked.is_empty());
        if self.failed.is_none() && self.unacked.is_empty() && !self.sealing {
            let pool = BufferPool::new(self.epoch, 0);
            let last = ChunkBuilder::new(&pool, PAGE).seal(
                self.epoch,
                self.lane,
                self.next_seq,
                self.durable(),
            );
            self.submit(last)?;
            self.wait(deadline, |w| w.unacked.is_empty());
        }
        if self.unacked.is_empty() {
            self.seal();
            self.wait(deadline, |w| w.sealed);
        }
        self.closed = true;
        self.stop(deadline);
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.sealed => Ok(()),
            None => Err(WalError::Unavailable(
                "not everything could be written before the end".into(),
            )),
        }
    }
}

impl Drop for FileWal {
    /// Writes what was submitted (waiting no longer than closing does) but does not seal: the next opening looks for the end.
    fn drop(&mut self) {
        if !self.closed {
            let deadline = Instant::now() + self.options.close_wait;
            self.wait(deadline, |w| w.unacked.is_empty());
            self.closed = true;
            self.stop(deadline);
        }
    }
}
