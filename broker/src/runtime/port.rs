//! What the runtime asks of an engine, so that it can be proven by itself: the broker's engine is one
//! implementation, the tests' engines are others.

use crate::store::chunk::Chunk;
use crate::store::wal::{Segment, WalError};
use bytes::Bytes;
use std::io::IoSlice;
use std::net::SocketAddr;
use vela_codec::Frame;

/// Number of a core, from 0.
pub type CoreId = u16;

/// The time of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the process started; never goes back.
    pub ms: u64,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// A connection of one core. Slots are used again, each time with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Index in the engine's table; small numbers first.
    pub slot: u32,
    /// Tells one user of the slot from the next.
    pub generation: u32,
}

/// Bytes that wait to be sent on one connection.
pub trait Output {
    /// Whether nothing waits.
    fn is_empty(&self) -> bool;
    /// Fills `into` with the first waiting pieces and answers how many there are.
    fn io_slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize;
    /// The first `n` waiting bytes were sent.
    fn consume(&mut self, n: usize);
}

/// What an engine wants done with sockets and mailboxes.
#[derive(Debug)]
pub struct NetworkEffects<M> {
    /// Connections that have output, each at most once.
    pub dirty: Vec<ConnId>,
    /// Connections whose frames are wanted again.
    pub resumed: Vec<ConnId>,
    /// Connections to close after what they have to send.
    pub close: Vec<ConnId>,
    /// Messages to other cores, by core.
    pub mail: Vec<Vec<M>>,
}

impl<M> Default for NetworkEffects<M> {
    fn default() -> Self {
        Self {
            dirty: Vec::new(),
            resumed: Vec::new(),
            close: Vec::new(),
            mail: Vec::new(),
        }
    }
}

impl<M> NetworkEffects<M> {
    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.dirty.is_empty()
            && self.resumed.is_empty()
            && self.close.is_empty()
            && self.mail.iter().all(Vec::is_empty)
    }
}

/// A change of one metadata key.
#[derive(Debug, Clone)]
pub struct MetadataRequest {
    /// Returned with the outcome.
    pub token: u64,
    /// The key.
    pub key: String,
    /// The new value; none deletes the key.
    pub value: Option<Bytes>,
    /// The version the key must have; none: any.
    pub expected: Option<u64>,
}

/// What an engine wants done with the log and the metadata.
#[derive(Debug, Default)]
pub struct StorageEffects {
    /// Chunks to write, by lane.
    pub writes: Vec<(u32, Chunk)>,
    /// Chunks to read, by lane and number.
    pub reads: Vec<(u32, u64)>,
    /// Checkpoints: lane, last chunk covered, content.
    pub checkpoints: Vec<(u32, u64, Bytes)>,
    /// Segments to drop, by lane.
    pub drop_segments: Vec<(u32, Vec<u64>)>,
    /// Changes of metadata.
    pub metadata: Vec<MetadataRequest>,
}

impl StorageEffects {
    /// Whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.reads.is_empty()
            && self.checkpoints.is_empty()
            && self.drop_segments.is_empty()
            && self.metadata.is_empty()
    }
}

/// What `/metrics` shows of one core's engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Open connections.
    pub connections: u64,
    /// Open producers.
    pub producers: u64,
    /// Open consumers.
    pub consumers: u64,
    /// Topics this core owns.
    pub topics: u64,
    /// Subscriptions of these topics.
    pub subscriptions: u64,
    /// Messages published since the start.
    pub messages_in: u64,
    /// Messages dispatched since the start.
    pub messages_out: u64,
    /// Bytes of messages published since the start.
    pub bytes_in: u64,
    /// Bytes of messages dispatched since the start.
    pub bytes_out: u64,
}

/// One core's broker logic: single-threaded, without IO, driven by events and the time.
pub trait CoreEngine: 'static {
    /// What cores send each other.
    type Message: Send + 'static;
    /// Output of one connection.
    type Out: Output;

    /// A connection came in.
    fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now: Now) -> ConnId;
    /// Largest frame accepted, its size field included, in bytes.
    fn max_frame(&self) -> usize;
    /// Whether the next frame of this connection may be handed over.
    fn wants_frames(&self, conn: ConnId) -> bool;
    /// One frame of a connection whose frames are wanted.
    fn frame(&mut self, conn: ConnId, frame: Frame, now: Now);
    /// The connection is gone.
    fn closed(&mut self, conn: ConnId, now: Now);
    /// What waits to be sent; none for a connection that is gone.
    fn output(&mut self, conn: ConnId) -> Option<&mut Self::Out>;
    /// Some of the output was sent.
    fn sent(&mut self, conn: ConnId, now: Now);
    /// Messages of another core, in the order in which it sent them.
    fn mail(&mut self, from: CoreId, batch: Vec<Self::Message>, now: Now);

    /// All chunks of a lane up to this number are durable.
    fn durable(&mut self, lane: u32, upto: u64, now: Now);
    /// Writing to a lane failed. After [`WalError::Full`] the log tries again by itself; all else is final.
    fn write_failed(&mut self, lane: u32, error: WalError, now: Now);
    /// Answer to a read.
    fn chunk_read(&mut self, lane: u32, seq: u64, chunk: Result<Chunk, WalError>, now: Now);
    /// A checkpoint is durable; these are the lane's segments now.
    fn checkpoint_done(&mut self, lane: u32, segments: Vec<Segment>, now: Now);

    /// Something that [`CoreEngine::next_wakeup`] named is due.
    fn tick(&mut self, now: Now);
    /// When [`CoreEngine::tick`] is due next, in milliseconds of [`Now::ms`].
    fn next_wakeup(&self) -> Option<u64>;
    /// The events of this turn are in: dispatch, seal what is to be written.
    fn end_of_turn(&mut self, now: Now);
    /// Begin to end: finish what is in flight, take nothing new.
    fn shutdown(&mut self, now: Now);
    /// After [`CoreEngine::shutdown`]: everything given to the log is durable and answered.
    fn is_quiet(&self) -> bool;

    /// Moves what is wanted of sockets and mailboxes into `into`, whose lists are empty.
    fn take_network(&mut self, into: &mut NetworkEffects<Self::Message>);
    /// Moves what is wanted of log and metadata into `into`, whose lists are empty.
    fn take_storage(&mut self, into: &mut StorageEffects);
    /// Figures for `/metrics`.
    fn figures(&self) -> Figures;
}

/// One core's way to the disk. It never blocks the core: helpers do the work, and wake the core when done.
pub trait Storage<E>: 'static {
    /// Carries out and empties `effects`.
    fn submit(&mut self, effects: &mut StorageEffects, engine: &mut E, now: Now);
    /// Hands outcomes to the engine. True if there were any.
    fn poll(&mut self, engine: &mut E, now: Now) -> bool;
    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;
    /// Ends cleanly; nothing is submitted afterwards.
    fn close(&mut self);
}
