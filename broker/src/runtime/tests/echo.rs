//! An engine that answers frames by their first command byte, and a harness that runs it.

use crate::runtime::clock::Clock;
use crate::runtime::cluster::{Cluster, Common};
use crate::runtime::guests::Limits;
use crate::runtime::listen::{self, Door};
use crate::runtime::memory::Intake;
use crate::runtime::port::*;
use crate::runtime::post::Post;
use crate::runtime::preflight;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vela_codec::{Frame, Sizes};
use vela_limiter::{BufferMemory, MemoryLimiter, Mode};

/// Largest frame.
pub(super) const MAX_FRAME: usize = 5 * 1024 * 1024 + 10 * 1024;

/// Answers the frame.
pub(super) const ECHO: u8 = b'e';
/// Sends the frame round all other cores before it is answered.
pub(super) const ROUND: u8 = b'r';
/// Answers, and wants no frames for 20 ms.
pub(super) const HOLD: u8 = b'h';
/// Answers and closes.
pub(super) const CLOSE: u8 = b'c';
/// Answers with so many MiB as the second command byte says.
pub(super) const MUCH: u8 = b'm';
/// Blocks the core for so many tenths of a second.
pub(super) const STALL: u8 = b's';

/// Ends the one stall there is.
pub(super) static STALL_ENDS: AtomicBool = AtomicBool::new(false);

/// For what must come sooner or later: nobody knows how slow the machine is.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Out(VecDeque<Bytes>);

impl Output for Out {
    fn io_slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        into.iter_mut()
            .zip(&self.0)
            .map(|(slot, piece)| *slot = IoSlice::new(piece))
            .count()
    }

    fn queued(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn consume(&mut self, mut n: usize) {
        while n > 0 {
            let front = &mut self.0[0];
            let step = n.min(front.len());
            let _ = front.split_to(step);
            n -= step;
            if front.is_empty() {
                self.0.pop_front();
            }
        }
    }
}

#[derive(Default)]
struct Peer {
    generation: u32,
    open: bool,
    closing: bool,
    out: Out,
    dirty: bool,
    held_until: Option<u64>,
}

pub(super) struct Traveller {
    home: CoreId,
    conn: ConnId,
    frame: Bytes,
    left: u16,
}

pub(super) struct Echo {
    core: CoreId,
    cores: u16,
    peers: Vec<Peer>,
    network: NetworkEffects<Traveller>,
    holds: BTreeMap<u64, Vec<ConnId>>,
    pub(super) frames: u64,
}

impl Echo {
    pub(super) fn new(core: CoreId, cores: u16) -> Self {
        let network = NetworkEffects {
            mail: (0..cores).map(|_| Vec::new()).collect(),
            ..NetworkEffects::default()
        };
        Self {
            core,
            cores,
            peers: Vec::new(),
            network,
            holds: BTreeMap::new(),
            frames: 0,
        }
    }

    fn peer(&mut self, conn: ConnId) -> Option<&mut Peer> {
        self.peers
            .get_mut(conn.slot as usize)
            .filter(|peer| peer.open && peer.generation == conn.generation)
    }

    fn answer(&mut self, conn: ConnId, bytes: Bytes) {
        let Some(peer) = self.peer(conn) else {
            return;
        };
        peer.out.0.push_back(bytes);
        if !std::mem::replace(&mut peer.dirty, true) {
            self.network.dirty.push(conn);
        }
    }

    fn travel(&mut self, mut traveller: Traveller) {
        if traveller.left == 0 && traveller.home == self.core {
            self.answer(traveller.conn, traveller.frame);
            return;
        }
        traveller.left = traveller.left.saturating_sub(1);
        let next = (self.core + 1) % self.cores;
        self.network.mail[next as usize].push(traveller);
    }
}

impl CoreEngine for Echo {
    type Message = Traveller;
    type Out = Out;

    fn accept(&mut self, _: SocketAddr, _: SocketAddr, _: Now) -> ConnId {
        let slot = self
            .peers
            .iter()
            .position(|peer| !peer.open)
            .unwrap_or_else(|| {
                self.peers.push(Peer::default());
                self.peers.len() - 1
            });
        let generation = self.peers[slot].generation + 1;
        self.peers[slot] = Peer {
            generation,
            open: true,
            ..Peer::default()
        };
        ConnId {
            slot: slot as u32,
            generation,
        }
    }

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn wants_frames(&mut self, conn: ConnId) -> bool {
        let peer = &self.peers[conn.slot as usize];
        peer.open
            && !peer.closing
            && peer.generation == conn.generation
            && peer.held_until.is_none()
    }

    fn frame(&mut self, conn: ConnId, frame: Frame, now: Now) {
        assert!(self.wants_frames(conn), "frame that is not wanted");
        self.frames += 1;
        let whole = encode(frame.command(), frame.rest());
        match frame.command()[0] {
            ROUND => {
                let left = self.cores;
                self.travel(Traveller {
                    home: self.core,
                    conn,
                    frame: whole,
                    left,
                });
            }
            HOLD => {
                self.answer(conn, whole);
                let until = now.ms + 20;
                self.peer(conn).unwrap().held_until = Some(until);
                self.holds.entry(until).or_default().push(conn);
            }
            CLOSE => {
                self.answer(conn, whole);
                self.peer(conn).unwrap().closing = true;
                self.network.close.push(conn);
            }
            MUCH => {
                for _ in 0..frame.command()[1] {
                    self.answer(conn, Bytes::from(vec![7; 1 << 20]));
                }
            }
            STALL => {
                let deadline = Instant::now() + LIMIT;
                while !STALL_ENDS.load(Ordering::Acquire) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.answer(conn, whole);
            }
            _ => self.answer(conn, whole),
        }
    }

    fn closed(&mut self, conn: ConnId, _: Now) {
        let peer = self.peer(conn).expect("closed once");
        peer.open = false;
        peer.out = Out::default();
    }

    fn output(&mut self, conn: ConnId) -> Option<&mut Out> {
        self.peer(conn).map(|peer| {
            peer.dirty = false;
            &mut peer.out
        })
    }

    fn sent(&mut self, _: ConnId, _: Now) {}

    fn mail(&mut self, _: CoreId, batch: Vec<Traveller>, _: Now) {
        batch
            .into_iter()
            .for_each(|traveller| self.travel(traveller));
    }

    fn tick(&mut self, now: Now) {
        while let Some(entry) = self.holds.first_entry()
            && *entry.key() <= now.ms
        {
            for conn in entry.remove() {
                if let Some(peer) = self.peer(conn) {
                    peer.held_until = None;
                    self.network.resumed.push(conn);
                }
            }
        }
    }

    fn next_wakeup(&self) -> Option<u64> {
        self.holds.keys().next().copied()
    }

    fn end_of_turn(&mut self, _: Now) -> bool {
        false
    }

    fn shutdown(&mut self, _: Now) {}
    fn checkpoint(&mut self, _: Now) {}

    fn is_quiet(&self) -> bool {
        true
    }

    fn take_network(&mut self, into: &mut NetworkEffects<Traveller>) {
        into.dirty.append(&mut self.network.dirty);
        into.resumed.append(&mut self.network.resumed);
        into.close.append(&mut self.network.close);
        into.mail.resize_with(self.cores as usize, Vec::new);
        for (to, from) in into.mail.iter_mut().zip(&mut self.network.mail) {
            to.append(from);
        }
    }

    fn figures(&self) -> Figures {
        Figures {
            connections: self.peers.iter().filter(|peer| peer.open).count() as u64,
            messages_in: self.frames,
            ..Figures::default()
        }
    }
}

pub(super) struct NoStorage;

impl<E> Storage<E> for NoStorage {
    fn carry_out(&mut self, _: &mut E, _: Now) -> bool {
        false
    }
    fn poll(&mut self, _: &mut E, _: Now) -> bool {
        false
    }
    fn is_idle(&self) -> bool {
        true
    }
    fn close(&mut self) {}
}

/// A running broker that echoes.
pub(super) type Server = Running<Traveller>;

/// A running broker.
pub(super) struct Running<M> {
    pub(super) addr: SocketAddr,
    pub(super) core_addrs: Vec<SocketAddr>,
    pub(super) intake: Arc<Intake>,
    pub(super) cluster: Cluster<M>,
    stop: UnixStream,
    acceptor: JoinHandle<()>,
}

impl Server {
    /// `cores` may be more than there are CPUs: several then share one.
    pub(super) fn start(cores: u16, tick_us: u64) -> Self {
        Self::with(cores, tick_us, Self::intake(Mode::Tracking, 0, 30_000))
    }

    /// The memory of a server: mode and limit in bytes, time for an unfinished frame in milliseconds.
    pub(super) fn intake(mode: Mode, limit: i64, frame_timeout_ms: u64) -> Arc<Intake> {
        let memory = Arc::new(BufferMemory::new(0));
        let limiter = Arc::new(MemoryLimiter::new(mode, limit, memory));
        let sizes = Sizes::default();
        Arc::new(Intake::new(limiter, sizes, true, frame_timeout_ms))
    }

    pub(super) fn with(cores: u16, tick_us: u64, intake: Arc<Intake>) -> Self {
        Self::of(cores, tick_us, intake, move |core| {
            (Echo::new(core, cores), NoStorage)
        })
    }
}

impl<M: Send + 'static> Running<M> {
    /// With the engines and storages that `parts` makes.
    pub(super) fn of<E, S, F>(cores: u16, tick_us: u64, intake: Arc<Intake>, parts: F) -> Self
    where
        E: CoreEngine<Message = M>,
        S: Storage<E>,
        F: Fn(CoreId) -> (E, S) + Clone + Send + 'static,
    {
        let allowed = preflight::cpus(0).unwrap();
        let cpus = (0..cores as usize)
            .map(|n| allowed[n % allowed.len()])
            .collect();
        let common = Common {
            cpus,
            io_memory: 64 << 10,
            tick_us,
            clock: Clock::start(),
            intake: Arc::clone(&intake),
        };
        let post = Arc::new(Post::new(cores));
        let parts = (0..cores)
            .map(|core| {
                let parts = parts.clone();
                move || parts(core)
            })
            .collect();
        let cluster = Cluster::start(&common, post, parts).unwrap();
        let local = "127.0.0.1".parse().unwrap();
        let mut doors = vec![Door {
            listener: listen::listen(local, 0).unwrap(),
            core: None,
        }];
        for core in 0..cores {
            doors.push(Door {
                listener: listen::listen(local, 0).unwrap(),
                core: Some(core),
            });
        }
        let addrs: Vec<SocketAddr> = doors
            .iter()
            .map(|door| door.listener.local_addr().unwrap())
            .collect();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let post = Arc::clone(&cluster.post);
        let acceptor = std::thread::spawn(move || {
            listen::accept_until(&doors, &post, &Limits::default, &stopped).unwrap();
        });
        Self {
            addr: addrs[0],
            core_addrs: addrs[1..].to_vec(),
            intake,
            cluster,
            stop,
            acceptor,
        }
    }

    pub(super) fn connect(&self) -> Client {
        Client::to(self.addr)
    }

    /// Bytes that inbound frames keep alive.
    pub(super) fn retained(&self) -> u64 {
        self.intake.limiter.retained()
    }

    /// Connections over all cores.
    pub(super) fn connections(&self) -> u64 {
        (0..self.cluster.post.cores())
            .map(|core| self.cluster.post.connections(core))
            .sum()
    }

    pub(super) fn stop(mut self) {
        self.stop.write_all(&[1]).unwrap();
        self.acceptor.join().unwrap();
        assert!(self.cluster.stop(), "cores did not end");
    }
}

pub(super) fn encode(command: &[u8], rest: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u32((4 + command.len() + rest.len()) as u32);
    bytes.put_u32(command.len() as u32);
    bytes.put_slice(command);
    bytes.put_slice(rest);
    bytes.freeze()
}

/// A blocking client with a time limit on everything.
pub(super) struct Client(pub(super) TcpStream);

impl Client {
    pub(super) fn to(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(super) fn send(&mut self, kind: u8, rest: &[u8]) {
        self.0.write_all(&encode(&[kind, 0], rest)).unwrap();
    }

    /// The next frame's command and rest.
    pub(super) fn receive(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut size = [0; 4];
        self.0.read_exact(&mut size).expect("an answer in time");
        let mut body = vec![0; u32::from_be_bytes(size) as usize];
        self.0.read_exact(&mut body).expect("the whole answer");
        let command = u32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
        (body[4..4 + command].to_vec(), body[4 + command..].to_vec())
    }

    pub(super) fn call(&mut self, kind: u8, rest: &[u8]) {
        self.send(kind, rest);
        let (command, back) = self.receive();
        assert_eq!(command[0], kind);
        assert!(back == rest, "the same bytes come back");
    }
}
