//! A whole broker in one thread, without sockets, disks or clocks: the engines of all its cores, and a driver that carries out what they
//! ask for, one small step at a time and in whatever order the test wants.
//!
//! [`World::steps`] lists what could happen next and [`World::apply`] makes one of it happen; [`World::run_until_idle`] does whatever there
//! is until nothing is left, for tests that do not care about the order. Nothing here is random and nothing reads a clock, so a run is
//! repeated exactly by repeating the calls.

#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod client;
mod drive;

use std::collections::{BTreeMap, VecDeque};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::{Bytes, BytesMut};
use vela_broker::engine::admin::{Answer, Ask, Asker, Request};
use vela_broker::engine::{
    ConnId, CoreId, Engine, EngineConfig, Message, Metadata, MetadataRequest, Now, ServiceAddress,
    Settings, TerminateError,
};
use vela_broker::store::chunk::Chunk;
use vela_broker::store::log::{Lane, LaneConfig, LaneState, Position, Record, recover_lane};
use vela_broker::store::memory::{Kept, MemoryOptions, MemoryWal};
use vela_broker::store::wal::{Recovery, Space, Wal, WalError};
use vela_codec::{Accounting, Cumulation, Frame, FrameDecoder, Sizes};
use vela_proto::BaseCommand;

/// Receive memory that is alive, counted where it is allocated.
#[derive(Default, Debug)]
pub struct Retained {
    bytes: AtomicI64,
    /// Sum of everything that was ever allocated.
    total: AtomicI64,
}

impl Retained {
    /// Bytes alive.
    pub fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes ever allocated.
    pub fn total(&self) -> i64 {
        self.total.load(Ordering::Relaxed)
    }
}

impl Accounting for Retained {
    fn allocated(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        self.total.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    fn released(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

/// A mistake planted between the engine and what drives it, to see that the tests would find it. Only the harness knows of them.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// Chunks are reported durable when they are handed in, not when they are written.
    ReceiptBeforeSync,
    /// Every second `Release` between cores is lost.
    DropRelease,
    /// Every `Written` between cores is lost.
    DropWritten,
    /// Every third `Flow` between cores counts twice.
    DoubleFlow,
    /// Every third `Flow` between cores is lost.
    DropFlow,
    /// A `Flow` between cores may be for the consumer that its session has opened next.
    StaleFlow,
    /// One frame in sixty-four is never freed.
    LeakRoot,
    /// Now and then two neighbouring messages from one core to another change places.
    ReorderMail,
    /// What dispatch takes for the time is two seconds ahead: delayed messages come early.
    EarlyDelayed,
}

/// How the world is set up.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    pub cores: CoreId,
    pub shards: u32,
    pub settings: Settings,
    pub service: ServiceAddress,
    /// Its `budget_bytes` is the engine's `log_budget` too.
    pub lane: LaneConfig,
    pub wal: MemoryOptions,
    pub sizes: Sizes,
    pub namespaces: Vec<String>,
    pub fault: Fault,
    /// Both clocks at the start.
    pub now: Now,
}

impl Default for WorldConfig {
    fn default() -> Self {
        WorldConfig {
            cores: 2,
            shards: 2,
            settings: Settings::default(),
            service: ServiceAddress {
                advertised: None,
                port: 6650,
                core_ports: Vec::new(),
            },
            lane: LaneConfig::default(),
            wal: MemoryOptions::default(),
            sizes: Sizes::default(),
            namespaces: vec!["public/default".into()],
            fault: Fault::None,
            now: Now {
                ms: 1_000,
                wall_ms: 1_700_000_000_000,
            },
        }
    }
}

/// A connection of the world, for as long as the world exists.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct Peer(pub usize);

/// One frame from the broker.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub command: BaseCommand,
    /// Behind the command: of a MESSAGE, the entry.
    pub rest: Bytes,
}

/// One connection, both ends.
pub struct Conn {
    pub core: CoreId,
    pub id: ConnId,
    /// Sent by the client, not read by the broker.
    to_broker: BytesMut,
    decoder: FrameDecoder,
    /// Decoded while the session took none.
    frames: VecDeque<Frame>,
    from_broker: FrameDecoder,
    /// What the client got and has not looked at.
    pub received: VecDeque<Incoming>,
    /// The engine said there is output.
    dirty: bool,
    close_asked: bool,
    /// Its socket was found not to be read: as in the runtime it is looked at again when the session says so.
    asleep: bool,
    /// Decoded frames were left over, which go on when the session says so.
    left_over: bool,
    /// The engine knows this connection.
    pub open: bool,
    /// The client's end does not read.
    pub stuck: bool,
}

struct Core {
    engine: Engine,
    cumulation: Cumulation,
    /// Something happened since the last turn.
    awake: bool,
    /// Notices of the metadata store.
    notices: VecDeque<(String, Option<Bytes>)>,
}

struct Shard {
    wal: MemoryWal,
    /// Writing stopped for good.
    broken: bool,
    /// Given out by the lane, not taken by the log.
    queue: VecDeque<Chunk>,
    reads: VecDeque<u64>,
    checkpoints: VecDeque<(u64, Bytes)>,
}

/// What a core asked the metadata store.
enum Asked {
    Change(MetadataRequest),
    Read(u64, String),
}

/// Something that can happen next.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub enum Step {
    /// The broker reads a socket.
    Read(Peer),
    /// Frames that were decoded go on.
    Frames(Peer),
    /// A core ends its turn.
    Turn(CoreId),
    /// A batch of messages arrives: from, to.
    Mail(CoreId, CoreId),
    /// Output goes to a client.
    Output(Peer),
    /// A connection that the engine gave up is closed.
    Close(Peer),
    /// The oldest write of a shard ends.
    Write(u32),
    /// A younger write of a shard ends before the oldest.
    WriteYounger(u32),
    /// The oldest read of a shard ends.
    ReadBack(u32),
    /// A checkpoint of a shard is safe.
    Checkpoint(u32),
    /// The metadata store answers its oldest request.
    Metadata,
    /// A core hears of a metadata change.
    Notice(CoreId),
}

/// The broker and everything around it.
pub struct World {
    pub config: WorldConfig,
    pub retained: Arc<Retained>,
    pub now: Now,
    pub conns: Vec<Conn>,
    pub epoch: u64,
    cores: Vec<Core>,
    shards: Vec<Shard>,
    /// By from * cores + to; each a batch of one turn.
    mail: Vec<VecDeque<Vec<Message>>>,
    metadata: BTreeMap<String, (u64, Bytes)>,
    /// Changes of metadata so far: the version of the newest.
    revision: u64,
    requests: VecDeque<(CoreId, Asked)>,
    leaked: Vec<Frame>,
    /// Counts what a planted fault could have hit.
    chances: u64,
    /// How often the planted fault struck.
    pub struck: u64,
    /// No write ends while this is set.
    pub disk_paused: bool,
    /// Steps done.
    pub step_count: u64,
    /// Segments dropped.
    pub dropped_segments: u64,
    pub checkpoints_done: u64,
    /// Answers to terminations, by token.
    pub terminated: Vec<(u64, Result<Position, TerminateError>)>,
    /// Reads that went to the log because the entry was not in memory.
    pub reads_done: u64,
}

impl World {
    /// A new broker with empty shards.
    pub fn new(config: WorldConfig) -> World {
        let retained = Arc::new(Retained::default());
        let mut metadata = BTreeMap::new();
        for namespace in &config.namespaces {
            metadata.insert(
                format!("namespace/{namespace}"),
                (1, Bytes::from_static(b"{}")),
            );
        }
        let mut world = World {
            now: config.now,
            mail: Vec::new(),
            conns: Vec::new(),
            cores: Vec::new(),
            shards: (0..config.shards)
                .map(|shard| Shard {
                    wal: MemoryWal::new(shard, 1, config.wal, None),
                    broken: false,
                    queue: VecDeque::new(),
                    reads: VecDeque::new(),
                    checkpoints: VecDeque::new(),
                })
                .collect(),
            epoch: 1,
            retained,
            metadata,
            revision: 1,
            requests: VecDeque::new(),
            leaked: Vec::new(),
            chances: 0,
            struck: 0,
            disk_paused: false,
            step_count: 0,
            dropped_segments: 0,
            checkpoints_done: 0,
            terminated: Vec::new(),
            reads_done: 0,
            config,
        };
        let states = (0..world.config.shards)
            .map(|_| LaneState::default())
            .collect();
        world.start(states);
        world
    }

    /// Starts the engines on the lanes' states.
    fn start(&mut self, states: Vec<LaneState>) {
        let cores = self.config.cores;
        let mut lanes: Vec<Vec<(u32, Lane, LaneState)>> = (0..cores).map(|_| Vec::new()).collect();
        for (shard, state) in (0..).zip(states) {
            let lane = Lane::new(
                shard,
                self.epoch,
                self.shards[shard as usize].wal.next_seq(),
                self.config.lane,
            );
            lanes[(shard % u32::from(cores)) as usize].push((shard, lane, state));
        }
        let mut metadata = Metadata::default();
        for (key, (_, value)) in &self.metadata {
            metadata.apply(key, Some(value));
        }
        let accounting: Arc<dyn Accounting> = self.retained.clone();
        let rates = Arc::new(vela_broker::runtime::RateTable::default());
        self.mail = (0..cores * cores).map(|_| VecDeque::new()).collect();
        self.cores = (0..cores)
            .zip(lanes)
            .map(|(core, lanes)| {
                let config = EngineConfig {
                    core,
                    cores,
                    shards: self.config.shards,
                    settings: Arc::new(self.config.settings.clone()),
                    service: self.config.service.clone(),
                    log_budget: self.config.lane.budget_bytes,
                    rates: rates.clone(),
                };
                let mut engine = Engine::new(config, lanes, metadata.clone());
                engine.count_in(Some(accounting.clone()));
                Core {
                    engine,
                    cumulation: Cumulation::new(self.config.sizes, Some(accounting.clone())),
                    awake: false,
                    notices: VecDeque::new(),
                }
            })
            .collect();
    }

    /// A client connects to a core.
    pub fn open(&mut self, core: CoreId) -> Peer {
        let peer = SocketAddr::from(([127, 0, 0, 1], 40_000 + (self.conns.len() % 20_000) as u16));
        let local = SocketAddr::from(([127, 0, 0, 1], self.config.service.port));
        let now = self.now;
        let engine = &mut self.cores[usize::from(core)].engine;
        let id = engine.accept(peer, local, now);
        let max = engine.max_frame();
        self.conns.push(Conn {
            core,
            id,
            to_broker: BytesMut::new(),
            decoder: FrameDecoder::new(max),
            frames: VecDeque::new(),
            from_broker: FrameDecoder::new(64 << 20),
            received: VecDeque::new(),
            dirty: false,
            close_asked: false,
            asleep: false,
            left_over: false,
            open: true,
            stuck: false,
        });
        Peer(self.conns.len() - 1)
    }

    /// The client sends bytes; the broker reads them later.
    pub fn feed(&mut self, peer: Peer, bytes: &[u8]) {
        if self.conns[peer.0].open {
            self.conns[peer.0].to_broker.extend_from_slice(bytes);
        }
    }

    /// The client's end is gone: what the broker has not read is lost.
    pub fn cut(&mut self, peer: Peer) {
        let conn = &mut self.conns[peer.0];
        if conn.open {
            conn.to_broker.clear();
            self.hang_up(peer);
        }
    }

    /// The broker's end of a connection goes.
    pub fn hang_up(&mut self, peer: Peer) {
        let now = self.now;
        let conn = &mut self.conns[peer.0];
        conn.open = false;
        conn.dirty = false;
        conn.to_broker.clear();
        conn.frames.clear();
        conn.decoder = FrameDecoder::new(1024);
        let core = &mut self.cores[usize::from(conn.core)];
        core.engine.closed(conn.id, now);
        core.awake = true;
    }

    /// Takes everything that a client has received.
    pub fn take(&mut self, peer: Peer) -> Vec<Incoming> {
        self.conns[peer.0].received.drain(..).collect()
    }

    /// Is the connection there, seen from the broker?
    pub fn is_open(&self, peer: Peer) -> bool {
        self.conns[peer.0].open
    }

    /// Bytes of frames that wait in front of the sessions, and of bytes that were not read.
    pub fn unread(&self, peer: Peer) -> usize {
        self.conns[peer.0].to_broker.len()
    }

    /// Decoded frames that wait for a session.
    pub fn waiting_frames(&self, peer: Peer) -> usize {
        self.conns[peer.0].frames.len()
    }

    /// Output that has not left.
    pub fn output_len(&mut self, peer: Peer) -> usize {
        let conn = &self.conns[peer.0];
        if !conn.open {
            return 0;
        }
        self.cores[usize::from(conn.core)]
            .engine
            .output(conn.id)
            .map_or(0, |out| out.len())
    }

    pub fn wants_frames(&mut self, peer: Peer) -> bool {
        let conn = &self.conns[peer.0];
        conn.open
            && self.cores[usize::from(conn.core)]
                .engine
                .wants_frames(conn.id)
    }

    /// What the runtime says while it does not read a socket, or not so far that it would see a sign of life.
    pub fn excuse(&mut self, peer: Peer) {
        let conn = &self.conns[peer.0];
        self.cores[usize::from(conn.core)]
            .engine
            .excused(conn.id, self.now);
    }

    pub fn engine(&self, core: CoreId) -> &Engine {
        &self.cores[usize::from(core)].engine
    }

    pub fn engine_mut(&mut self, core: CoreId) -> &mut Engine {
        self.cores[usize::from(core)].awake = true;
        &mut self.cores[usize::from(core)].engine
    }

    pub fn wal(&self, shard: u32) -> &MemoryWal {
        &self.shards[shard as usize].wal
    }

    /// Every core has a turn next.
    pub fn wake_all(&mut self) {
        for core in &mut self.cores {
            core.awake = true;
        }
    }

    /// Time passes; what is due is carried out.
    pub fn advance(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.wall_ms += ms;
        for core in &mut self.cores {
            if core
                .engine
                .next_wakeup()
                .is_some_and(|at| at <= self.now.ms)
            {
                core.engine.tick(self.now);
                core.awake = true;
            }
        }
    }

    /// The next write of a shard fails, for good or until [`Self::free_disk`].
    pub fn fail_disk(&mut self, shard: u32, error: WalError) {
        self.shards[shard as usize].wal.fail_next(error);
    }

    /// The disk of a shard has no room for the next write.
    pub fn fill_disk(&mut self, shard: u32) {
        self.fail_disk(shard, WalError::Full("no space left on device".into()));
    }

    /// There is room again.
    pub fn free_disk(&mut self, shard: u32) {
        self.shards[shard as usize].wal.retry();
    }

    /// Does the disk of a shard refuse writes?
    pub fn disk_full(&self, shard: u32) -> bool {
        self.shards[shard as usize].wal.space() == Space::Full
    }

    /// The next write of a shard fails for good.
    pub fn break_disk(&mut self, shard: u32) {
        self.shards[shard as usize]
            .wal
            .fail_next(WalError::Unavailable("input/output error".into()));
    }

    /// Terminates a topic through the engine of `core`, and does whatever there is to do.
    pub fn terminate(
        &mut self,
        core: CoreId,
        topic: &str,
    ) -> Option<Result<Position, TerminateError>> {
        let name = vela_broker::engine::name::TopicName::parse(topic).unwrap();
        let token = self.step_count + 1;
        self.engine_mut(core).terminate(token, name);
        self.run_until_idle();
        let at = self.terminated.iter().position(|(t, _)| *t == token)?;
        Some(self.terminated.remove(at).1)
    }

    /// Asks about a topic as HTTP does, and does whatever there is to do. `None`: no answer came.
    pub fn ask(&mut self, topic: &str, ask: Ask) -> Option<Answer> {
        let (core, _) = self.home(topic);
        let name = vela_broker::engine::name::TopicName::parse(topic).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let message = Message::Admin {
            asker: Asker::new(move |answer| drop(sender.send(answer))),
            request: Box::new(Request::Topic { name, ask }),
        };
        let now = self.now;
        self.engine_mut(core).mail(core, vec![message], now);
        self.run_until_idle();
        receiver.try_recv().ok()
    }

    /// Changes the metadata store from outside the broker.
    pub fn put_metadata(&mut self, key: &str, value: &[u8]) {
        let value = Bytes::copy_from_slice(value);
        self.revision += 1;
        self.metadata
            .insert(key.to_owned(), (self.revision, value.clone()));
        for core in &mut self.cores {
            core.notices
                .push_back((key.to_owned(), Some(value.clone())));
        }
    }

    /// What the metadata store holds.
    pub fn metadata(&self, key: &str) -> Option<Bytes> {
        self.metadata.get(key).map(|(_, value)| value.clone())
    }

    /// Is a change of this key on its way to the metadata store?
    pub fn stores(&self, key: &str) -> bool {
        self.requests
            .iter()
            .any(|(_, asked)| matches!(asked, Asked::Change(change) if change.key == key))
    }

    /// Bytes of output that wait for clients.
    pub fn totals_output(&mut self) -> usize {
        let conns: Vec<(CoreId, ConnId)> = self.conns.iter().map(|c| (c.core, c.id)).collect();
        let output = |(core, id): (CoreId, ConnId)| {
            let core = self.cores.get_mut(usize::from(core))?;
            core.engine.output(id).map(|output| output.len())
        };
        conns.into_iter().filter_map(output).sum()
    }

    /// The machine dies and the broker starts again on what the disks kept; `keep` says for each shard and chunk what is left of a write
    /// that had not ended. Every connection is gone.
    pub fn crash(&mut self, mut keep: impl FnMut(u32, u64) -> Kept) {
        for conn in &mut self.conns {
            conn.open = false;
            conn.to_broker.clear();
            conn.frames.clear();
            conn.decoder = FrameDecoder::new(1024);
        }
        self.cores.clear();
        self.mail.clear();
        self.requests.clear();
        self.epoch += 1;
        let mut states = Vec::new();
        for (index, shard) in (0..).zip(&mut self.shards) {
            let disk = shard.wal.crash(|seq| keep(index, seq));
            let (wal, mut recovery) = disk
                .reopen(self.epoch, None)
                .expect("a disk that only lost what was not synced opens");
            let (state, last_seq) = match recover_lane(&mut recovery) {
                Ok(recovered) => recovered,
                Err(error) => {
                    dump(&mut recovery);
                    panic!("the log of shard {index} cannot be recovered: {error}");
                }
            };
            assert_eq!(
                last_seq + 1,
                wal.next_seq(),
                "recovery ends where the log goes on"
            );
            *shard = Shard {
                wal,
                broken: false,
                queue: VecDeque::new(),
                reads: VecDeque::new(),
                checkpoints: VecDeque::new(),
            };
            states.push(state);
        }
        self.start(states);
    }

    /// A clean stop and a new start.
    pub fn restart(&mut self) {
        for core in 0..self.config.cores {
            self.engine_mut(core).shutdown();
        }
        self.run_until_idle();
        for core in 0..self.config.cores {
            assert!(
                self.engine(core).is_quiet(),
                "everything given to the log is durable"
            );
            self.engine_mut(core).checkpoint();
        }
        self.run_until_idle();
        self.crash(|_, _| Kept::Nothing);
    }

    /// Receive memory alive beside the receive buffers themselves, which are let go of first.
    pub fn retained_bytes(&mut self) -> i64 {
        for core in &mut self.cores {
            core.cumulation.release_idle();
        }
        self.retained.bytes()
    }

    /// Bytes that wait in the log and in front of it, by shard.
    pub fn log_queue(&self, shard: u32) -> usize {
        self.shards[shard as usize].queue.len()
    }

    /// Messages on their way between cores.
    pub fn mail_len(&self) -> usize {
        self.mail.iter().flatten().map(Vec::len).sum()
    }

    /// The core and shard of a topic.
    pub fn home(&self, topic: &str) -> (CoreId, u32) {
        let name = vela_broker::engine::name::TopicName::parse(topic).unwrap();
        let shard = name.shard(self.config.shards);
        ((shard % u32::from(self.config.cores)) as CoreId, shard)
    }

    /// The first of `base-0`, `base-1`, … that lives on `core`.
    pub fn topic_on(&self, core: CoreId, base: &str) -> String {
        (0..)
            .map(|i| format!("persistent://public/default/{base}-{i}"))
            .find(|name| self.home(name).0 == core)
            .unwrap()
    }

    /// Numbers of the engines together.
    pub fn totals(&self) -> vela_broker::engine::EngineStats {
        let mut sum = vela_broker::engine::EngineStats::default();
        for core in &self.cores {
            let stats = core.engine.stats();
            sum.connections += stats.connections;
            sum.topics += stats.topics;
            sum.subscriptions += stats.subscriptions;
            sum.producers += stats.producers;
            sum.consumers += stats.consumers;
            sum.counters.protocol_errors += stats.counters.protocol_errors;
            sum.counters.messages_dropped += stats.counters.messages_dropped;
            sum.counters.messages_in += stats.counters.messages_in;
            sum.counters.messages_out += stats.counters.messages_out;
        }
        sum
    }
}

/// Prints what a log holds: for a failure that must be understood.
fn dump(recovery: &mut Recovery) {
    let Some(upto) = std::env::var_os("VELA_SIM_DUMP")
        .map(|_| recovery.checkpoint.as_ref().map_or(0, |c| c.upto))
    else {
        return;
    };
    println!("checkpoint {upto}, torn {:?}", recovery.torn);
    for chunk in recovery.chunks(1).flatten() {
        println!("chunk {} of epoch {}", chunk.seq(), chunk.header().epoch);
        for (offset, body) in chunk.records() {
            match Record::decode(&chunk.bytes()[body]) {
                Ok(Record::Entry {
                    topic,
                    ledger,
                    entry,
                    ..
                }) => println!("  {offset}: entry {ledger}:{entry} of {topic}"),
                record => println!("  {offset}: {record:?}"),
            }
        }
    }
}
