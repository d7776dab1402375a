//! The write-ahead log of one lane: numbered chunks, group-committed, in a stream `(epoch, lane)`.
//!
//! A [`Wal`] belongs to one executor and never blocks it: work goes to helpers, outcomes come back through
//! [`Wal::poll`], and the [`Wake`] given at opening is called after each outcome.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::chunk::Chunk;

/// Called, from any thread, when [`Wal::poll`] has something new. Must be cheap and must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Everything that can go wrong with a log. The set is closed: every engine maps its failures onto it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalError {
    /// The stream is sealed or another owner has taken it; nothing is acknowledged through this handle any more.
    #[error("the log is sealed: a newer epoch owns this lane")]
    Fenced,
    /// The outcome of the last operations is unknown (an IO error). The lane stops until the broker is restarted.
    #[error("the log is not available: {0}")]
    Unavailable(String),
    /// A bounded queue is full; try again after the next events.
    #[error("the log has too much work in flight")]
    Backpressure,
    /// A chunk of that number was already submitted.
    #[error("the log already has a chunk of that number")]
    Exists,
    /// No such chunk, segment or checkpoint (yet), or a number was left out.
    #[error("the log has no such chunk")]
    Absent,
    /// The chunk was deleted.
    #[error("the chunk was deleted from the log")]
    Trimmed,
    /// Durable data is damaged.
    #[error("{} is damaged at byte {offset} (chunk {seq}): {what}. Move the data directory away and restore a backup \
             of it, or start with an empty one", file.display())]
    Corrupt {
        /// The damaged file.
        file: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// Number of the chunk that should be there.
        seq: u64,
        /// What is wrong.
        what: String,
    },
    /// The chunk can never be taken.
    #[error(
        "a chunk of {bytes} bytes is larger than the log takes ({max} bytes): raise the segment size or lower the message size"
    )]
    TooLarge {
        /// Size of the chunk, padding included.
        bytes: usize,
        /// The most this log takes.
        max: usize,
    },
    /// No room on the device. What was submitted is kept and written when there is room.
    #[error("the disk is full: {0}. Free some space: the log goes on by itself")]
    Full(String),
    /// The system has no more open files or memory to give, or broke a call off; nothing is wrong with the disk. As with [`WalError::Full`],
    /// what was submitted is kept and written when it can be. The text says what to do.
    #[error("the broker is short of a resource of the system: {0}")]
    Exhausted(String),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

impl WalError {
    /// Whether the log goes on by itself: it keeps what was submitted and tries again every second.
    pub fn heals(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Exhausted(_))
    }
}

/// How much room the log has, see [`Wal::space`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Space {
    /// The next segment is ready or being made ready.
    #[default]
    Ok,
    /// No further segment could be made. What is left of the current one still takes chunks: the layer above should
    /// refuse publishes and keep the rest for acks and cursor changes, which are what frees segments.
    Low,
    /// Submitted chunks wait for room.
    Full,
}

/// An outcome, in the order it became known.
#[derive(Debug, Clone)]
pub enum WalEvent {
    /// All chunks up to and including this number are durable. Rises strictly.
    Durable {
        /// The contiguous durable prefix.
        upto: u64,
    },
    /// Answer to [`Wal::read`].
    Read {
        /// As given to `read`.
        token: u64,
        /// Number of the chunk.
        seq: u64,
        /// The verified chunk, or why there is none.
        result: Result<Chunk, WalError>,
    },
    /// Answer to [`Wal::put_checkpoint`].
    Checkpoint {
        /// As given to `put_checkpoint`.
        token: u64,
        /// Whether the checkpoint is durable.
        result: Result<(), WalError>,
    },
    /// Writing stopped. If the error [heals](WalError::heals), chunks are kept and written when it has, see [`Wal::retry`].
    /// Anything else is final: nothing more is acknowledged.
    Failed {
        /// Why.
        error: WalError,
    },
    /// The room changed, see [`Wal::space`].
    Space(Space),
    /// Answer to [`Wal::seal`]: the stream ends here for good.
    Sealed {
        /// Number of the last chunk.
        last_seq: u64,
    },
}

/// A part of the log that is deleted as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Identity within the lane; rises.
    pub id: u64,
    /// Number of its first chunk.
    pub first_seq: u64,
    /// Number of its last chunk; `first_seq - 1` when it has none yet.
    pub last_seq: u64,
    /// Bytes of its chunks; for segments of earlier epochs the room of the file.
    pub bytes: u64,
    /// Whether chunks are still added. Such a segment cannot be dropped.
    pub open: bool,
}

/// State of the layer above as of a chunk: recovery starts behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// All chunks up to this number are reflected in `data`.
    pub upto: u64,
    /// Opaque to the log.
    pub data: Bytes,
}

/// The log of one lane in one epoch.
///
/// Bounds: un-acknowledged chunks by a byte budget, reads by a queue length, one checkpoint at a time; each answers
/// [`WalError::Backpressure`] at its bound. Events are bounded by these.
pub trait Wal {
    /// The epoch this stream is written in.
    fn epoch(&self) -> u64;

    /// The lane.
    fn lane(&self) -> u32;

    /// The number the next chunk must have.
    fn next_seq(&self) -> u64;

    /// The contiguous durable prefix: every chunk up to this number is on disk (as far as the sync mode promises).
    /// Never goes back.
    fn acked(&self) -> u64;

    /// The prefix that survives loss of power: what the next chunk's header has to state as `durable`. The same as
    /// [`Wal::acked`] when every write is synced, behind it otherwise.
    fn durable(&self) -> u64;

    /// Bytes of chunks that could be submitted now without `Backpressure`.
    fn room(&self) -> usize;

    /// The largest chunk, padding included, that the log takes, in bytes.
    fn chunk_len_max(&self) -> usize;

    /// Hands in the chunk numbered [`Wal::next_seq`]. `Exists` or `Absent` for another number, `Fenced` for another
    /// epoch or lane or after a seal, `Backpressure` when the byte budget is used, `TooLarge` above
    /// [`Wal::chunk_len_max`].
    fn submit(&mut self, chunk: Chunk) -> Result<(), WalError>;

    /// Appends what became known since the last call to `events`. Never blocks.
    fn poll(&mut self, events: &mut Vec<WalEvent>);

    /// Asks for one acknowledged chunk; answered by [`WalEvent::Read`]. `Backpressure` when too many reads wait,
    /// `Absent` above the durable prefix, `Trimmed` when deleted.
    fn read(&mut self, token: u64, seq: u64) -> Result<(), WalError>;

    /// Tries writing again now after an error that [heals](WalError::heals). Without it the log tries again by itself every second.
    fn retry(&mut self);

    /// The room for new segments.
    fn space(&self) -> Space;

    /// Ends the stream: nothing can be submitted any more. Once everything submitted is durable the end is recorded and
    /// answered by one [`WalEvent::Sealed`]. Idempotent.
    fn seal(&mut self);

    /// Drops all closed segments whose chunks are all below `below_seq`.
    fn delete(&mut self, below_seq: u64);

    /// The segments, oldest first, without dropped ones.
    fn segments(&self) -> Vec<Segment>;

    /// Drops one closed segment wherever it lies. Its chunks are `Trimmed` from now on and recovery steps over them.
    /// `Absent` for an unknown one, `Backpressure` for one that is still open or has chunks above [`Wal::durable`].
    /// A crash soon after may bring the segment back; dropping it again is harmless.
    fn drop_segment(&mut self, id: u64) -> Result<(), WalError>;

    /// Stores a checkpoint covering all chunks up to `upto`, which must be acknowledged (`Absent` otherwise); answered
    /// by [`WalEvent::Checkpoint`]. `Backpressure` while another one is being written.
    fn put_checkpoint(&mut self, token: u64, upto: u64, data: Bytes) -> Result<(), WalError>;

    /// Ends cleanly: waits (at most about a second) until all that was submitted is written, adds an empty chunk whose
    /// `durable` covers everything before, and seals the stream. Further calls answer `Closed`.
    fn close(&mut self) -> Result<(), WalError>;
}

/// What was cut off at the end of a lane when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The file, or the lane's name for a log without files.
    pub file: PathBuf,
    /// Where the cut is, in bytes from the start of the file.
    pub offset: u64,
    /// Number of the chunk the cut is in, or where a chunk is missing.
    pub seq: u64,
    /// Bytes of chunks behind the cut that were found and given up. None of them was acknowledged.
    pub bytes: u64,
    /// What was found at the cut.
    pub what: String,
}

/// What is on disk when a lane is opened: the newest checkpoint and all chunks.
pub struct Recovery {
    /// Number of the oldest chunk that was not deleted.
    pub first_seq: u64,
    /// Number of the last chunk; `first_seq - 1` when there is none.
    pub last_seq: u64,
    /// The newest intact checkpoint that does not state more than the log holds.
    pub checkpoint: Option<Checkpoint>,
    /// What was cut off, if anything.
    pub torn: Option<TornTail>,
    pub(super) source: Box<dyn ChunkSource>,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovery")
            .field("first_seq", &self.first_seq)
            .field("last_seq", &self.last_seq)
            .field("torn", &self.torn)
            .finish_non_exhaustive()
    }
}

/// Where recovery takes chunks from.
pub(super) trait ChunkSource: Send {
    /// The first chunk whose number is at least `seq`; `None` at the end.
    fn next(&mut self, seq: u64) -> Option<Result<Chunk, WalError>>;
}

impl Recovery {
    /// All chunks from number `from` on, in order; numbers of dropped segments are left out. An error is the last item:
    /// durable data is damaged and the broker must not start on it. Blocks on disk reads. Finish before dropping
    /// segments.
    pub fn chunks(&mut self, from: u64) -> Chunks<'_> {
        Chunks {
            source: self.source.as_mut(),
            next: from.max(self.first_seq),
            last: self.last_seq,
        }
    }
}

/// Iterator of [`Recovery::chunks`].
pub struct Chunks<'a> {
    source: &'a mut dyn ChunkSource,
    next: u64,
    last: u64,
}

impl std::fmt::Debug for Chunks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunks")
            .field("next", &self.next)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl Iterator for Chunks<'_> {
    type Item = Result<Chunk, WalError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next > self.last {
            return None;
        }
        let item = self.source.next(self.next);
        self.next = match &item {
            Some(Ok(chunk)) => chunk.seq() + 1,
            _ => self.last.saturating_add(1),
        };
        item
    }
}
