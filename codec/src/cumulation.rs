//! The receive buffer of one core: every socket of the core is read into it, one read at a time.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::root::{Accounting, Root};

/// Reads that leave three quarters of the buffer unused, in a row, before it is halved.
const SMALL_READS_BEFORE_SHRINK: u32 = 8;

/// Sizes of the receive buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Never smaller than this.
    pub min: usize,
    /// First size.
    pub initial: usize,
    /// Never larger than this.
    pub max: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            min: 1024,
            initial: 16_384,
            max: 1_048_576,
        }
    }
}

/// Bytes that were just read, and the capacity of the root they keep alive.
#[derive(Debug, Clone)]
pub struct Received {
    /// What was read.
    pub bytes: Bytes,
    /// Capacity of the [`Root`] that any slice of `bytes` keeps alive.
    pub root_capacity: usize,
}

impl From<Bytes> for Received {
    fn from(bytes: Bytes) -> Self {
        let root_capacity = bytes.len();
        Self {
            bytes,
            root_capacity,
        }
    }
}

/// The receive buffer of one core.
///
/// The root is reused in place as long as nobody holds a slice of it, so a core whose frames are handled at once allocates nothing.
pub struct Cumulation {
    sizes: Sizes,
    size: usize,
    small_reads: u32,
    root: Option<Root>,
    accounting: Option<Arc<dyn Accounting>>,
}

impl Cumulation {
    /// A buffer that allocates nothing yet. Sizes are forced into order: 1 ≤ min ≤ initial ≤ max.
    #[must_use]
    pub fn new(sizes: Sizes, accounting: Option<Arc<dyn Accounting>>) -> Self {
        let min = sizes.min.max(1);
        let max = sizes.max.max(min);
        let initial = sizes.initial.clamp(min, max);
        Self {
            sizes: Sizes { min, initial, max },
            size: initial,
            small_reads: 0,
            root: None,
            accounting,
        }
    }

    /// Where to read next: never empty. A fresh root is allocated if slices of the last one are still alive or the size changed.
    pub fn space(&mut self) -> &mut [u8] {
        let size = self.size;
        let reusable = self
            .root
            .as_mut()
            .is_some_and(|root| root.capacity() == size && root.writable().is_some());
        if !reusable {
            // First let go of the old root, so that both are not counted at once without need.
            self.root = None;
            self.root = Some(Root::new(size, self.accounting.clone()));
        }
        self.root
            .as_mut()
            .and_then(Root::writable)
            .unwrap_or_default()
    }

    /// The first `n` bytes of the last [`space`](Self::space), which a read has filled. `n` also tells how large the next space should be.
    pub fn read(&mut self, n: usize) -> Received {
        let Some(root) = &self.root else {
            return Received::from(Bytes::new());
        };
        let capacity = root.capacity();
        let received = match n {
            0 => Bytes::new(),
            n => root.slice(n),
        };
        self.adapt(n, capacity);
        Received {
            bytes: received,
            root_capacity: capacity,
        }
    }

    /// Forgets the current root. Its memory is freed now, or with its last slice. To be called when a core has nothing to read.
    pub fn release_idle(&mut self) {
        self.root = None;
    }

    /// Counts the next roots in `accounting`. Memory already allocated stays with the accounting it was allocated under.
    pub fn set_accounting(&mut self, accounting: Option<Arc<dyn Accounting>>) {
        self.accounting = accounting;
        self.root = None;
    }

    /// Whether the next roots are counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.accounting.is_some()
    }

    /// Capacity of the root held now, in bytes: 0 if none is.
    #[must_use]
    pub fn held(&self) -> usize {
        self.root.as_ref().map_or(0, Root::capacity)
    }

    /// Capacity of the next root to be allocated, in bytes.
    #[must_use]
    pub fn next_size(&self) -> usize {
        self.size
    }

    fn adapt(&mut self, n: usize, capacity: usize) {
        if n >= capacity {
            self.size = capacity
                .saturating_mul(2)
                .clamp(self.sizes.min, self.sizes.max);
            self.small_reads = 0;
        } else if n <= capacity / 4 {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS_BEFORE_SHRINK {
                self.size = (capacity / 2).clamp(self.sizes.min, self.sizes.max);
                self.small_reads = 0;
            }
        } else {
            self.small_reads = 0;
        }
    }
}

impl fmt::Debug for Cumulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cumulation")
            .field("size", &self.size)
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
