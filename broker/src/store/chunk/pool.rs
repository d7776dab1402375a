//! Page-aligned memory for blocks, kept and used again.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PAGE;

/// A page-aligned piece of memory.
pub(in crate::store) struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    pub(super) capacity: usize,
}

impl AlignedBuf {
    pub(in crate::store) fn new(capacity: usize) -> Self {
        let memory = vec![0u8; capacity + PAGE];
        // `align_offset` may answer "impossible"; unaligned memory is then merely refused by direct IO.
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self {
            memory,
            start,
            capacity,
        }
    }

    /// Bytes of memory it takes: its capacity, and what its alignment costs.
    pub(super) fn footprint(&self) -> usize {
        self.memory.len()
    }

    pub(in crate::store) fn bytes(&self) -> &[u8] {
        self.memory
            .get(self.start..self.start + self.capacity)
            .unwrap_or_default()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory
            .get_mut(self.start..self.start + self.capacity)
            .unwrap_or_default()
    }

    pub(in crate::store) fn put(&mut self, at: usize, data: &[u8]) {
        if let Some(target) = self.bytes_mut().get_mut(at..at + data.len()) {
            target.copy_from_slice(data);
        }
    }
}

/// The size of a buffer for `len` bytes: one of eight per power of two, in whole pages, so that little is wasted and what lies idle fits
/// the next block.
pub(super) fn size_class(len: usize) -> usize {
    let len = len.max(PAGE);
    len.next_multiple_of((len.next_power_of_two() / 16).max(PAGE))
}

/// Memory of finished blocks, kept for the next ones.
///
/// Giving pages back to the kernel and taking fresh ones for every block costs more than half of a lane's throughput.
/// Buffers come in a few sizes ([`size_class`]); at most `idle_bytes_max` bytes lie idle, anything above is freed.
#[derive(Clone)]
pub struct BufferPool {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    epoch: u64,
    idle_bytes_max: usize,
    salts: AtomicU64,
    /// Changed only under the lock.
    idle_bytes: AtomicUsize,
    idle: Mutex<Vec<AlignedBuf>>,
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("idle_bytes", &self.idle_bytes())
            .finish_non_exhaustive()
    }
}

impl BufferPool {
    /// A pool for one lane in one epoch. One pool per (lane, epoch): it also numbers the salts of its chunks.
    pub fn new(epoch: u64, idle_bytes_max: usize) -> Self {
        let inner = PoolInner {
            epoch,
            idle_bytes_max,
            salts: AtomicU64::new(0),
            idle_bytes: AtomicUsize::new(0),
            idle: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Bytes that lie idle now.
    pub fn idle_bytes(&self) -> usize {
        self.inner.idle_bytes.load(Ordering::Relaxed)
    }

    /// Gives idle memory back to the system, `bytes` of it if there is so much. Answers how much that was.
    pub fn shrink(&self, bytes: usize) -> usize {
        let mut freed = Vec::new();
        let mut sum = 0;
        {
            let mut idle = self.idle();
            while sum < bytes
                && let Some(buf) = idle.pop()
            {
                sum += buf.footprint();
                freed.push(buf);
            }
            self.inner.idle_bytes.fetch_sub(sum, Ordering::Relaxed);
        }
        sum
    }

    fn idle(&self) -> MutexGuard<'_, Vec<AlignedBuf>> {
        self.inner
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn salt(&self) -> u32 {
        let number = self.inner.salts.fetch_add(1, Ordering::Relaxed);
        crc32c::crc32c_append(
            crc32c::crc32c(&self.inner.epoch.to_le_bytes()),
            &number.to_le_bytes(),
        )
    }

    pub(super) fn take(&self, len: usize) -> AlignedBuf {
        let capacity = size_class(len);
        {
            let mut idle = self.idle();
            if let Some(at) = idle.iter().rposition(|b| b.capacity == capacity) {
                let buf = idle.swap_remove(at);
                self.inner
                    .idle_bytes
                    .fetch_sub(buf.footprint(), Ordering::Relaxed);
                return buf;
            }
        }
        AlignedBuf::new(capacity)
    }

    pub(super) fn give(&self, buf: AlignedBuf) {
        let mut idle = self.idle();
        if self.idle_bytes() + buf.footprint() <= self.inner.idle_bytes_max {
            self.inner
                .idle_bytes
                .fetch_add(buf.footprint(), Ordering::Relaxed);
            idle.push(buf);
        }
    }
}

/// Owner of a finished block's memory; gives it back to its pool when the last slice is gone.
pub(super) struct Pooled {
    pub(super) buf: Option<AlignedBuf>,
    pub(super) len: usize,
    pub(super) pool: BufferPool,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.buf
            .as_ref()
            .and_then(|b| b.bytes().get(..self.len))
            .unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.pool.give(buf);
        }
    }
}
