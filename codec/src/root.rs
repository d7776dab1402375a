//! One receive allocation, counted from its birth until its last slice is gone.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Told about every byte of receive memory when it is allocated and when it is freed.
///
/// Both are called on whatever thread allocates or drops, so they must be cheap and must not block.
pub trait Accounting: Send + Sync {
    /// `bytes` more are alive.
    fn allocated(&self, bytes: usize);
    /// `bytes` that [`allocated`](Self::allocated) announced are gone.
    fn released(&self, bytes: usize);
}

/// The memory itself. Its drop, wherever it happens, is the one place that subtracts.
struct Memory {
    data: Box<[u8]>,
    accounting: Option<Arc<dyn Accounting>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(accounting) = &self.accounting {
            accounting.released(self.data.len());
        }
    }
}

/// Keeps the memory alive for the slices of a [`Bytes`].
struct Hold(Arc<Memory>);

impl AsRef<[u8]> for Hold {
    fn as_ref(&self) -> &[u8] {
        &self.0.data
    }
}

/// One receive allocation: zeroed memory of fixed capacity whose slices keep all of it alive.
///
/// The *capacity*, not what was filled, is what the machine pays, so that is what is counted: added when allocated, subtracted
/// when the root and the last slice of it are gone.
pub struct Root {
    memory: Arc<Memory>,
}

impl Root {
    /// Allocates `capacity` zeroed bytes and counts them in `accounting`; `None` counts them nowhere.
    #[must_use]
    pub fn new(capacity: usize, accounting: Option<Arc<dyn Accounting>>) -> Self {
        let data = vec![0; capacity].into_boxed_slice();
        if let Some(accounting) = &accounting {
            accounting.allocated(capacity);
        }
        Self {
            memory: Arc::new(Memory { data, accounting }),
        }
    }

    /// Bytes allocated.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.data.len()
    }

    /// The first `len` bytes (at most the capacity), sharing the memory. Costs one small allocation; slices of the result cost none.
    #[must_use]
    pub fn slice(&self, len: usize) -> Bytes {
        let mut bytes = Bytes::from_owner(Hold(Arc::clone(&self.memory)));
        bytes.truncate(len);
        bytes
    }

    /// The whole memory for writing, or `None` while a slice of it is alive.
    pub fn writable(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.memory).map(|memory| &mut *memory.data)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
