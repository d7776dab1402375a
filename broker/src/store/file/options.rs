//! Settings of the embedded log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::super::wal::Wake;

/// When a chunk counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// When it is on the device: written and synced. Survives loss of power.
    Always,
    /// When it is written; synced every so often. Survives `kill -9`; loss of power may take the last interval.
    Interval(Duration),
    /// When it is written. Survives `kill -9`, not loss of power.
    Never,
}

/// Something a helper is about to do, for [`Faults`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Write chunk `seq`.
    Write {
        /// Number of the chunk.
        seq: u64,
    },
    /// Read chunk `seq`.
    Read {
        /// Number of the chunk.
        seq: u64,
    },
    /// Make a new segment file.
    NewSegment,
    /// Write a checkpoint.
    Checkpoint,
    /// Write the manifest.
    Manifest,
}

/// Makes operations fail, for tests of what happens then.
pub trait Faults: Send + Sync {
    /// An error is taken for the operation's own.
    fn before(&self, operation: Operation) -> io::Result<()>;
}

/// Settings of a [`FileWal`](super::FileWal).
#[derive(Clone)]
pub struct FileOptions {
    /// Size of a segment file in bytes; rounded up to whole pages, at least 8192.
    pub segment_bytes: usize,
    /// Budget of chunks that are submitted and not acknowledged, in bytes.
    pub unacked_bytes_max: usize,
    /// Reads that may wait.
    pub reads_max: usize,
    /// Dropped segment files kept to be used again; more are removed.
    pub spares_max: usize,
    /// When a chunk counts as durable.
    pub sync: SyncMode,
    /// How long closing waits for writes and for threads, which a slow disk may hold up.
    pub close_wait: Duration,
    /// Called when there is something to poll.
    pub wake: Option<Wake>,
    /// Failures to inject, for tests.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            unacked_bytes_max: 32 << 20,
            reads_max: 256,
            spares_max: 2,
            sync: SyncMode::Always,
            close_wait: Duration::from_secs(1),
            wake: None,
            faults: None,
        }
    }
}

impl std::fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileOptions")
            .field("segment_bytes", &self.segment_bytes)
            .field("unacked_bytes_max", &self.unacked_bytes_max)
            .field("sync", &self.sync)
            .finish_non_exhaustive()
    }
}
