//! [`Wal`] for the log in memory.

use bytes::Bytes;

use super::super::chunk::Chunk;
use super::super::wal::{Checkpoint, Segment, Space, Wal, WalError, WalEvent};
use super::MemoryWal;

impl Wal for MemoryWal {
    fn epoch(&self) -> u64 {
        self.lock().disk.epoch
    }

    fn lane(&self) -> u32 {
        self.lock().disk.lane
    }

    fn next_seq(&self) -> u64 {
        self.lock().next_seq
    }

    fn acked(&self) -> u64 {
        self.lock().acked
    }

    fn durable(&self) -> u64 {
        self.acked()
    }

    fn room(&self) -> usize {
        let state = self.lock();
        state
            .disk
            .options
            .unacked_bytes_max
            .saturating_sub(state.unacked_bytes())
    }

    fn chunk_len_max(&self) -> usize {
        self.lock().chunk_len_max()
    }

    fn submit(&mut self, chunk: Chunk) -> Result<(), WalError> {
        let mut state = self.lock();
        let (header, len) = (*chunk.header(), chunk.bytes().len());
        if state.closed {
            return Err(WalError::Closed);
        }
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.sealing || header.epoch != state.disk.epoch || header.lane != state.disk.lane {
            return Err(WalError::Fenced);
        }
        match header.seq.cmp(&state.next_seq) {
            std::cmp::Ordering::Less => return Err(WalError::Exists),
            std::cmp::Ordering::Greater => return Err(WalError::Absent),
            std::cmp::Ordering::Equal => {}
        }
        let max = state.chunk_len_max();
        if len > max {
            return Err(WalError::TooLarge { bytes: len, max });
        }
        if state.unacked_bytes() + len > state.disk.options.unacked_bytes_max {
            return Err(WalError::Backpressure);
        }
        state.next_seq += 1;
        state.unacked.insert(header.seq, len);
        state.place(header.seq, len);
        state.pending.push_back(chunk);
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<WalEvent>) {
        events.append(&mut self.lock().events);
    }

    fn read(&mut self, token: u64, seq: u64) -> Result<(), WalError> {
        let mut state = self.lock();
        if state.closed {
            return Err(WalError::Closed);
        }
        if seq > state.acked {
            return Err(WalError::Absent);
        }
        if !state.disk.chunks.contains_key(&seq) {
            return Err(WalError::Trimmed);
        }
        if state.reads.len() >= state.disk.options.reads_max {
            return Err(WalError::Backpressure);
        }
        state.reads.push_back((token, seq));
        Ok(())
    }

    fn retry(&mut self) {
        let mut state = self.lock();
        if state.space == Space::Full {
            state.space = Space::Ok;
        }
    }

    fn space(&self) -> Space {
        self.lock().space
    }

    fn seal(&mut self) {
        self.change(|s| {
            s.sealing = true;
            s.settle();
        });
    }

    fn delete(&mut self, below_seq: u64) {
        let ids = self.segments();
        let ids = ids.iter().filter(|s| s.last_seq < below_seq).map(|s| s.id);
        let mut state = self.lock();
        for id in ids {
            // One that is still open, or not durable, is dropped by a later call.
            let _ = state.drop_segment(id);
        }
    }

    fn segments(&self) -> Vec<Segment> {
        self.lock().disk.segments.clone()
    }

    fn drop_segment(&mut self, id: u64) -> Result<(), WalError> {
        self.lock().drop_segment(id)
    }

    fn put_checkpoint(&mut self, token: u64, upto: u64, data: Bytes) -> Result<(), WalError> {
        let mut state = self.lock();
        if state.closed {
            return Err(WalError::Closed);
        }
        if upto > state.acked {
            return Err(WalError::Absent);
        }
        if !state.checkpoints.is_empty() {
            return Err(WalError::Backpressure);
        }
        state
            .checkpoints
            .push_back((token, Checkpoint { upto, data }));
        Ok(())
    }

    fn close(&mut self) -> Result<(), WalError> {
        while self.complete_one() {}
        let mut state = self.lock();
        if state.closed {
            return Ok(());
        }
        state.closed = true;
        match (&state.failed, state.pending.is_empty()) {
            (Some(error), _) => Err(error.clone()),
            (None, false) => Err(WalError::Full("chunks are still waiting for room".into())),
            (None, true) => {
                state.disk.sealed = state.acked;
                Ok(())
            }
        }
    }
}
