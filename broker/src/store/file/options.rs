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
    /// Open a segment file for writing and give it its name.
    UseSegment,
    /// Make a spare of a dropped segment.
    Recycle,
    /// A step of removing a file.
    Remove,
    /// Write a checkpoint.
    Checkpoint,
    /// Write the manifest.
    Manifest,
}

/// Makes operations fail, for tests of what happens then.
pub trait Faults: Send + Sync {
    /// An error is taken for the operation's own.
    fn before(&self, operation: Operation) -> io::Result<()>;

    /// What to take for the room that is free, bytes; `None`: what the file system says.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
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
    /// Dropped segment files kept to be used again, bytes, at most: as many as the lane has opened of late, but always two. More are removed.
    pub spares_bytes_max: u64,
    /// Time after which a segment that was opened counts half as much for that.
    pub spares_half_life: Duration,
    /// Bytes of a file that are removed in one step.
    pub remove_step: u64,
    /// Pause behind each step, so that the disk gets on with other things.
    pub remove_pause: Duration,
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
            spares_bytes_max: 2 << 30,
            // Ledgers are rolled, and so dropped, every ten minutes at the earliest by default.
            spares_half_life: Duration::from_secs(300),
            remove_step: 4 << 20,
            remove_pause: Duration::from_millis(20),
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
