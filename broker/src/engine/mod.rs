//! The engine: what a broker *does*, with no IO in it.
//!
//! One [`Engine`] per core. It takes events and the time, changes its state, and leaves effects for whoever drives it: the runtime carries them
//! out on sockets and disks, the simulator on imagined ones. It never waits, locks, reads a clock or draws a random number.

pub mod admin;
pub mod context;
pub mod message;
pub mod metadata;
mod murmur;
pub mod name;
pub mod output;
mod reply;
pub mod schema;
mod session;
pub mod settings;
pub mod time;
mod topic;
pub mod watch;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use vela_codec::{Accounting, FRAME_PADDING, Frame};

pub use self::context::{ConnId, Context, Counters, Effects, MetadataRequest};
pub use self::message::{CoreId, Message, TerminateError};
pub use self::metadata::Metadata;
use self::name::TopicName;
pub use self::output::OutBuf;
use self::schema::registry::{self, Registry};
use self::session::Sessions;
pub use self::session::throttling::ReadRule;
pub use self::settings::{AutoTopicType, PublishPacing, ServiceAddress, Settings};
pub use self::time::Now;
pub use self::topic::Books;
pub(crate) use self::topic::TOO_MANY;
pub use self::topic::rates::SharedRates;
use self::topic::{DELETION_TOKEN, Topics};
use self::watch::WatchIndex;
use crate::store::chunk::Chunk;
use crate::store::log::{Lane, LaneState};
use crate::store::wal::{Segment, WalError};

/// How one core's engine is set up.
#[derive(Clone)]
pub struct EngineConfig {
    /// This core.
    pub core: CoreId,
    /// How many cores there are.
    pub cores: CoreId,
    /// Shards of the data directory; shard `s` lives on core `s % cores`.
    pub shards: u32,
    /// Settings.
    pub settings: Arc<Settings>,
    /// What lookups answer.
    pub service: ServiceAddress,
    /// Un-acknowledged log bytes of a lane at which publishing sessions wait.
    pub log_budget: usize,
    /// Rates shared with the other cores.
    pub rates: Arc<dyn SharedRates>,
}

/// What an engine holds at the moment, for metrics.
#[derive(Default, Clone, Debug)]
pub struct EngineStats {
    /// Connections.
    pub connections: usize,
    /// Topics.
    pub topics: usize,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Connected producers.
    pub producers: usize,
    /// Connected consumers.
    pub consumers: usize,
    /// Counters since the start.
    pub counters: Counters,
}

/// Memory of buffers that an engine keeps, bytes.
#[derive(Default, Copy, Clone, Eq, PartialEq, Debug)]
pub struct BufferMemory {
    /// Log chunks that are not durable, the open ones included.
    pub log: usize,
    /// What is kept only to be quicker: durable chunks for reads, idle blocks for the next ones.
    pub cache: usize,
}

/// One core's broker.
pub struct Engine {
    cx: Context,
    sessions: Sessions,
    topics: Topics,
    schemas: Registry,
}

/// Rounds of dispatch and messages in one turn; what is left is for the next turn.
const ROUNDS: usize = 16;

impl Engine {
    /// An engine with the lanes of its shards, in the order of the shards.
    pub fn new(
        config: EngineConfig,
        lanes: Vec<(u32, Lane, LaneState)>,
        metadata: Metadata,
    ) -> Engine {
        let mail = (0..config.cores).map(|_| Vec::new()).collect();
        let mut engine = Engine {
            topics: Topics::new(lanes, config.log_budget, config.rates),
            sessions: Sessions::default(),
            schemas: Registry::default(),
            cx: Context {
                core: config.core,
                cores: config.cores,
                shards: config.shards,
                pending_bytes_limit: 0,
                pending_bytes: 0,
                bytes_held: false,
                publishers: context::Publishers::default(),
                rate_limited: false,
                settings: Arc::clone(&config.settings),
                service: config.service,
                metadata,
                effects: Effects {
                    mail,
                    ..Effects::default()
                },
                accounting: None,
                counters: Counters::default(),
                policies_changed: true,
                turn_units: session::turns::UNITS,
                watch: WatchIndex::default(),
                local: VecDeque::new(),
            },
        };
        engine.cx.configure(config.settings);
        engine.topics.tell_counts(&mut engine.cx);
        engine
    }

    /// What copies of receive memory are to be counted in; without this they are counted nowhere.
    pub fn count_in(&mut self, accounting: Option<Arc<dyn Accounting>>) {
        self.cx.accounting = accounting;
    }

    /// A socket was accepted.
    pub fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now: Now) -> ConnId {
        self.sessions.accept(&mut self.cx, peer, local, now)
    }

    /// Largest frame a client may send, bytes with the size field (protocol, "Message size": the message and 10 KiB).
    pub fn max_frame(&self) -> usize {
        self.cx.settings.max_message_size as usize + FRAME_PADDING
    }

    /// Does the connection take frames? If not, the runtime keeps what it has decoded and reads no more of this socket.
    pub fn wants_frames(&mut self, conn: ConnId) -> bool {
        self.sessions.wants_frames(&self.cx, conn)
    }

    /// While the connection wants no frames: which of those that wait may go on all the same, if any.
    pub fn passing(&mut self, conn: ConnId, frames: &VecDeque<Frame>) -> Option<usize> {
        self.sessions.passing(conn, frames)
    }

    /// May the connection's socket be read? The runtime adds its own reason, memory.
    pub fn read_rule(&mut self, conn: ConnId) -> ReadRule {
        self.sessions.read_rule(conn)
    }

    /// Whether several connections publish, so that none is to be served long at a time.
    pub fn several_publish(&self) -> bool {
        self.cx.several_publish()
    }

    /// Connections held, by [`vela_limiter::Reason`].
    pub fn held(&self) -> [u64; vela_limiter::Reason::ALL.len()] {
        let counts = &self.cx.counters.holds;
        vela_limiter::Reason::ALL.map(|reason| counts.holds(reason) - counts.releases(reason))
    }

    /// Connections held for at least one reason.
    pub fn held_connections(&self) -> u64 {
        self.cx.counters.holds.paused - self.cx.counters.holds.resumed
    }

    /// Topics whose own publish rate has held a connection, by full name, and how often. Looks at each of them.
    pub fn rate_limited_topics(&self) -> Vec<(String, u64)> {
        self.topics.rate_limited()
    }

    /// Takes over settings that changed while running; whoever waits because of an old one is looked at again at once.
    pub fn configure(&mut self, settings: Arc<Settings>, now: Now) {
        self.cx.configure(settings);
        self.sessions.reconsider_bytes(&mut self.cx, now);
        self.sessions.reconsider_requests(&mut self.cx, now);
        self.topics.reconfigure(&mut self.cx, now);
    }

    /// An index checkpoint could not be written; it is tried again when the log has grown some more.
    pub fn checkpoint_failed(&mut self, shard: u32, _now: Now) {
        self.topics.checkpoint_failed(&self.cx, shard);
    }

    /// The peer of a connection is not silent, though no frame came: part of one did, or its socket is not being read, or not so far that
    /// its PONG would be seen. To be called every quarter of a second while that is so.
    pub fn excused(&mut self, conn: ConnId, now: Now) {
        self.sessions.excused(&self.cx, conn, now);
    }

    /// While a rate holds a connection: may a sign of life stand among the frames that wait, behind one that nothing passes?
    pub fn may_hide_life(&self, frames: &VecDeque<Frame>) -> bool {
        session::throttling::may_hide_life(frames)
    }

    /// What its buffers take, but for those of the connections ([`output`](Self::output)). Looks at every lane.
    pub fn buffer_memory(&self) -> BufferMemory {
        let (log, cache) = self.topics.chunk_memory();
        BufferMemory { log, cache }
    }

    /// Buffer memory is short: gives up so many bytes of what it keeps only to be quicker ([`BufferMemory::cache`]), or all of it.
    pub fn shrink_cache(&mut self, bytes: u64) {
        self.topics
            .shrink(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// One frame of a connection that wants frames.
    pub fn frame(&mut self, conn: ConnId, frame: Frame, now: Now) {
        self.sessions.frame(&mut self.cx, conn, frame, now);
        // Where a rate may hold the connection, it is to do so before the next frame. (For a topic on another core the session holds itself
        // until that core has charged the publish.)
        if self.cx.rate_limited {
            self.run_messages(now);
        }
    }

    /// The socket is gone.
    pub fn closed(&mut self, conn: ConnId, _now: Now) {
        self.sessions.closed(&mut self.cx, conn);
    }

    /// Bytes to send on a connection.
    pub fn output(&mut self, conn: ConnId) -> Option<&mut OutBuf> {
        self.sessions.output(conn)
    }

    /// Output was consumed, all or a part.
    pub fn sent(&mut self, conn: ConnId, now: Now) {
        self.sessions.sent(&mut self.cx, conn, now);
    }

    /// The socket took nothing more of the output, or not all of it; it is tried again when there is room.
    pub fn blocked(&mut self, conn: ConnId, now: Now) {
        self.sessions.blocked(&mut self.cx, conn, now);
    }

    /// Messages from another core, in its order. `from` is that core.
    pub fn mail(&mut self, _from: CoreId, batch: Vec<Message>, _now: Now) {
        self.cx.local.extend(batch);
    }

    /// Chunks of a lane up to `upto` are durable.
    pub fn durable(&mut self, shard: u32, upto: u64, _now: Now) {
        self.topics.durable(&mut self.cx, shard, upto, upto);
    }

    /// Chunks of a lane up to `upto` were written and count as durable; those up to `synced` survive a power failure.
    pub fn written(&mut self, shard: u32, upto: u64, synced: u64, _now: Now) {
        self.topics.durable(&mut self.cx, shard, upto, synced);
    }

    /// Writing a lane failed.
    pub fn write_failed(&mut self, shard: u32, error: WalError, _now: Now) {
        self.topics.write_failed(&mut self.cx, shard, error);
    }

    /// A chunk was read back, or could not be.
    pub fn chunk_read(&mut self, shard: u32, seq: u64, chunk: Result<Chunk, WalError>, _now: Now) {
        self.topics.chunk_read(&mut self.cx, shard, seq, chunk);
    }

    /// The index checkpoint that covers `seq` is safe; `segments` are the lane's sealed segments.
    pub fn checkpoint_done(&mut self, shard: u32, seq: u64, segments: &[Segment], _now: Now) {
        self.topics
            .checkpoint_done(&mut self.cx, shard, seq, segments);
    }

    /// The answer to a metadata request: `Ok(false)` = the expected version was not there.
    pub fn metadata_done(&mut self, token: u64, result: Result<bool, String>, now: Now) {
        if token & registry::TOKEN != 0 {
            return self.schemas.store_done(&mut self.cx, token, result, now);
        }
        if token & DELETION_TOKEN != 0 {
            return self.topics.metadata_done(&mut self.cx, token, result, now);
        }
        self.sessions.metadata_done(&mut self.cx, token, result);
    }

    /// What a metadata key holds, and its version; `Ok(None)` = there is none. Changes that the store made before it read were announced
    /// before this, by [`Engine::metadata_changed`].
    pub fn metadata_read(
        &mut self,
        token: u64,
        result: Result<Option<(Bytes, u64)>, String>,
        now: Now,
    ) {
        self.schemas.read_done(&mut self.cx, token, result, now);
    }

    /// Somebody changed the metadata store.
    pub fn metadata_changed(&mut self, key: &str, value: Option<&Bytes>) {
        if key.starts_with(schema::SCHEMA) {
            return self.schemas.changed(key, value);
        }
        // Policies concern every topic; that a topic has partitions concerns no other one.
        if self.cx.metadata.apply(key, value) {
            self.cx.look_for_rates();
            self.cx.policies_changed = true;
        }
    }

    /// Terminates a topic, on whatever core it lives: it takes no message any more. The answer, once that is durable, comes with the token in
    /// [`Effects::terminated`] of this engine: the topic's last position (the same again for a topic that has ended already), or why not.
    pub fn terminate(&mut self, token: u64, topic: TopicName) {
        let core = self.cx.core_of_shard(topic.shard(self.cx.shards));
        let from = self.cx.core;
        self.cx
            .post(core, Message::Terminate { from, token, topic });
    }

    /// Carries out what is due.
    pub fn tick(&mut self, now: Now) {
        self.sessions.tick(&mut self.cx, now);
        self.topics.tick(&mut self.cx, now);
    }

    /// When [`Engine::tick`] is due next, monotonic milliseconds.
    pub fn next_wakeup(&self) -> Option<u64> {
        match (self.sessions.next_wakeup(), self.topics.next_wakeup()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends a turn: carries messages to their ends, dispatches, seals the open chunks. True if work is left that the next turn should take up
    /// without waiting for an event.
    pub fn end_of_turn(&mut self, now: Now) -> bool {
        let mut more = false;
        for _ in 0..ROUNDS {
            self.run_messages(now);
            more = self.topics.dispatch_dirty(&mut self.cx, now);
            if !more && self.cx.local.is_empty() {
                break;
            }
        }
        self.run_messages(now);
        if std::mem::take(&mut self.cx.policies_changed) {
            self.topics.reconfigure(&mut self.cx, now);
            self.run_messages(now);
        }
        self.sessions.tell_watchers(&mut self.cx, now);
        let waits = self.sessions.next_turn(&mut self.cx, now);
        self.topics.end_of_turn(&mut self.cx);
        more || waits || !self.cx.local.is_empty()
    }

    fn run_messages(&mut self, now: Now) {
        // Bounded by what the turn's events brought: a message leads to answers, never to itself.
        while let Some(message) = self.cx.local.pop_front() {
            let message = match message {
                Message::Admin { asker, request } => {
                    self.admin(asker, *request, now);
                    continue;
                }
                Message::AdminAnswer { asker, answer } => {
                    self.cx.effects.admin.push((asker, *answer));
                    continue;
                }
                Message::AskSchema(ask) => {
                    self.schemas.ask(&mut self.cx, *ask, now);
                    continue;
                }
                message => message,
            };
            if message.is_for_session() {
                self.sessions.message(&mut self.cx, message, now);
            } else {
                self.topics.message(&mut self.cx, message, now);
            }
        }
    }

    fn admin(&mut self, asker: admin::Asker, request: admin::Request, now: Now) {
        match request {
            admin::Request::Sessions(sessions) => {
                let answer = admin::Answer::Sessions(self.sessions.describe(&sessions));
                self.cx.effects.admin.push((asker, answer));
            }
            request => self.topics.admin(&mut self.cx, asker, request, now),
        }
    }

    /// What every consumer was granted and sent. An error says what does not add up: balances, totals, pending acks, ready lists, times of
    /// sessions that are gone. For tests: it looks at everything.
    pub fn audit(&self) -> Result<Vec<Books>, String> {
        self.sessions.audit()?;
        self.topics.audit()
    }

    /// The effects of the turn.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.cx.effects
    }

    /// Clean stop, first part: every connection is closed.
    pub fn shutdown(&mut self) {
        self.sessions.close_all(&mut self.cx);
    }

    /// True when everything given to the log is durable and answered.
    pub fn is_quiet(&self) -> bool {
        self.cx.local.is_empty() && self.topics.is_quiet()
    }

    /// Clean stop, last part: an index checkpoint of every lane, so that the next start replays nothing.
    pub fn checkpoint(&mut self) {
        self.topics.checkpoint_all(&mut self.cx);
    }

    /// What the engine holds.
    pub fn stats(&self) -> EngineStats {
        let (producers, consumers) = self.topics.clients();
        EngineStats {
            connections: self.sessions.len(),
            topics: self.topics.topics(),
            subscriptions: self.topics.subscriptions(),
            producers,
            consumers,
            counters: self.cx.counters.clone(),
        }
    }
}
