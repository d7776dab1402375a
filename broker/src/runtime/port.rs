//! What the runtime asks of an engine, so that it can be proven by itself: the broker's engine is one
//! implementation, the tests' engines are others.

pub(super) use crate::engine::ReadRule;
pub(super) use crate::engine::{ConnId, CoreId, Now};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use vela_codec::{Accounting, Frame};
use vela_limiter::{HoldCounts, Reason};

/// Bytes that wait to be sent on one connection.
pub(super) trait Output {
    /// Fills `into` with the first waiting pieces and answers how many there are.
    fn io_slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize;
    /// The first `n` waiting bytes were sent.
    fn consume(&mut self, n: usize);
    /// Bytes that wait.
    fn queued(&self) -> usize;
}

/// What an engine wants done with sockets and mailboxes.
#[derive(Debug)]
pub(super) struct NetworkEffects<M> {
    /// Connections that have output, each at most once.
    pub(super) dirty: Vec<ConnId>,
    /// Connections whose frames are wanted again.
    pub(super) resumed: Vec<ConnId>,
    /// Connections to close after what they have to send.
    pub(super) close: Vec<ConnId>,
    /// Messages to other cores, by core.
    pub(super) mail: Vec<Vec<M>>,
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
    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty()
            && self.resumed.is_empty()
            && self.close.is_empty()
            && self.mail.iter().all(Vec::is_empty)
    }
}

/// What `/metrics` shows of one core's engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Open connections.
    pub(super) connections: u64,
    /// Open producers.
    pub(super) producers: u64,
    /// Open consumers.
    pub(super) consumers: u64,
    /// Topics this core owns.
    pub(super) topics: u64,
    /// Subscriptions of these topics.
    pub(super) subscriptions: u64,
    /// Messages published since the start.
    pub(super) messages_in: u64,
    /// Messages dispatched since the start.
    pub(super) messages_out: u64,
    /// Bytes of messages published since the start.
    pub(super) bytes_in: u64,
    /// Bytes of messages dispatched since the start.
    pub(super) bytes_out: u64,
    /// Acknowledged message ids since the start.
    pub(super) acks: u64,
    /// Messages of non-persistent topics that nobody could take, since the start.
    pub(super) messages_dropped: u64,
    /// Publishes refused since the start.
    pub(super) publish_errors: u64,
    /// Connections closed because of what they sent, since the start.
    pub(super) protocol_errors: u64,
    /// Connections held now, by throttle reason.
    pub(super) held: [u64; Reason::ALL.len()],
    /// Connections held now for at least one reason.
    pub(super) throttled: u64,
    /// Times a topic's publish rate held a connection, since the start.
    pub(super) rate_limited: u64,
    /// The same by topic, for those with any. Only the runtime's copy has it.
    pub(super) rate_limited_topics: Arc<[(String, u64)]>,
    /// Holds of connections and their ends, since the start.
    pub(super) holds: HoldCounts,
}

/// Buffer memory of one core's engine, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Log chunks that are not durable.
    pub(super) log: usize,
    /// What is kept only to be quicker.
    pub(super) cache: usize,
    /// Bytes queued to sockets.
    pub(super) outbound: usize,
}

/// One core's broker logic: single-threaded, without IO, driven by events and the time.
pub(super) trait CoreEngine: 'static {
    /// What cores send each other.
    type Message: Send + 'static;
    /// Output of one connection.
    type Out: Output;

    /// What copies of receive memory are to be counted in.
    fn count_in(&mut self, _accounting: Option<&Arc<dyn Accounting>>) {}
    /// A connection came in.
    fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now: Now) -> ConnId;
    /// Largest frame accepted, its size field included, in bytes.
    fn max_frame(&self) -> usize;
    /// Whether the next frame of this connection may be handed over.
    fn wants_frames(&mut self, conn: ConnId) -> bool;
    /// While no frames are wanted: which of those that wait may go on all the same.
    fn passing(&mut self, _conn: ConnId, _frames: &VecDeque<Frame>) -> Option<usize> {
        None
    }
    /// Whether the socket is to be read.
    fn read_rule(&mut self, conn: ConnId) -> ReadRule {
        if self.wants_frames(conn) {
            ReadRule::Read
        } else {
            ReadRule::Stop
        }
    }
    /// Whether several connections keep the core busy, so that none is to be served long before the others.
    fn serves_in_small_parts(&self) -> bool {
        false
    }
    /// The peer is not silent: more of a frame has come, or its socket is not being read so far that a sign of life would be seen.
    fn excused(&mut self, _conn: ConnId, _now: Now) {}
    /// Whether a sign of life may stand among the frames of a connection that wait, of which none goes on.
    fn may_hide_life(&self, _frames: &VecDeque<Frame>) -> bool {
        false
    }
    /// One frame of a connection whose frames are wanted.
    fn frame(&mut self, conn: ConnId, frame: Frame, now: Now);
    /// The connection is gone.
    fn closed(&mut self, conn: ConnId, now: Now);
    /// What waits to be sent; none for a connection that is gone.
    fn output(&mut self, conn: ConnId) -> Option<&mut Self::Out>;
    /// Some of the output was sent.
    fn sent(&mut self, conn: ConnId, now: Now);
    /// The socket took nothing more of the output, or not all of it.
    fn blocked(&mut self, _: ConnId, _: Now) {}
    /// Messages of another core, in the order in which it sent them.
    fn mail(&mut self, from: CoreId, batch: Vec<Self::Message>, now: Now);

    /// Something that [`CoreEngine::next_wakeup`] named is due.
    fn tick(&mut self, now: Now);
    /// When [`CoreEngine::tick`] is due next, in milliseconds of [`Now::ms`].
    fn next_wakeup(&self) -> Option<u64>;
    /// The events of this turn are in: dispatch, seal what is to be written. True: work is left for the next
    /// turn, which must not wait for an event.
    fn end_of_turn(&mut self, now: Now) -> bool;
    /// Clean stop, first part: take nothing new, finish what is in flight.
    fn shutdown(&mut self, now: Now);
    /// Whether everything given to the log is durable and answered.
    fn is_quiet(&self) -> bool;
    /// Clean stop, last part, when all cores are quiet: write what makes the next start quick.
    fn checkpoint(&mut self, now: Now);

    /// Moves what is wanted of sockets and mailboxes into `into`, whose lists are empty.
    fn take_network(&mut self, into: &mut NetworkEffects<Self::Message>);
    /// The buffers it holds, but for the output of connections, which the runtime adds up. Asked at the end of each turn.
    fn buffer_memory(&self) -> Held {
        Held::default()
    }
    /// Memory is short: so many bytes, or all, of what is kept only to be quicker have to go.
    fn shrink_cache(&mut self, _bytes: u64) {}
    /// Figures for `/metrics`.
    fn figures(&self) -> Figures;
    /// Topics whose publish rate has held a connection, and how often. Asked when the sum of it has changed.
    fn rate_limited_topics(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// One core's way to the disk. It never blocks the core: helpers do the work, and wake the core when done.
pub(super) trait Storage<E>: 'static {
    /// Carries out what the engine wants of log and metadata. True if it wanted anything.
    fn carry_out(&mut self, engine: &mut E, now: Now) -> bool;
    /// Hands outcomes to the engine. True if there were any.
    fn poll(&mut self, engine: &mut E, now: Now) -> bool;
    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;
    /// Ends cleanly. What the engine wants afterwards is not carried out.
    fn close(&mut self);
}
