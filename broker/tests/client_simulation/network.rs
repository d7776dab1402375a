//! One client, one broker, and what is between them.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use vela_broker::store::memory::Kept;
use vela_client::core::{ConnKey, Event, MILLIS, Machine, MachineConfig, Nanos, Ticket};
use vela_codec::encode;

use crate::harness::{Peer, World, WorldConfig};
use crate::rng::Rng;

/// A connection: what is on its way in either direction.
struct Link {
    /// `None`: not connected yet.
    peer: Option<Peer>,
    up: BytesMut,
    down: VecDeque<Bytes>,
}

/// How bad the network is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weather {
    /// One step in so many cuts a connection; 0: none.
    pub cuts: u64,
    /// One connection in so many is refused; 0: none.
    pub refusals: u64,
    /// One step in so many kills the broker; 0: none.
    pub crashes: u64,
}

impl Weather {
    pub const FINE: Weather = Weather {
        cuts: 0,
        refusals: 0,
        crashes: 0,
    };
}

pub struct Network<S> {
    pub world: World,
    pub machine: Machine<S>,
    pub rng: Rng,
    pub weather: Weather,
    pub now: Nanos,
    /// Events that are not about connections.
    pub events: VecDeque<Event<S>>,
    links: BTreeMap<ConnKey, Link>,
    pub connections: u64,
    pub cut: u64,
    pub crashed: u64,
}

impl<S: Ticket> Network<S> {
    pub fn new(world: WorldConfig, client: MachineConfig, rng: Rng, weather: Weather) -> Self {
        let world = World::new(world);
        let config = MachineConfig {
            service_urls: vec!["pulsar://127.0.0.1:6650".into()],
            wall_ms: world.now.wall_ms,
            ..client
        };
        Self {
            world,
            machine: Machine::new(config).unwrap(),
            rng,
            weather,
            now: 0,
            events: VecDeque::new(),
            links: BTreeMap::new(),
            connections: 0,
            cut: 0,
            crashed: 0,
        }
    }

    /// Takes what the client wants to be done.
    fn heed(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Connect { conn, .. } => {
                    let link = Link {
                        peer: None,
                        up: BytesMut::new(),
                        down: VecDeque::new(),
                    };
                    self.links.insert(conn, link);
                }
                Event::Disconnect { conn, .. } => {
                    if let Some(peer) = self.links.remove(&conn).and_then(|link| link.peer) {
                        self.world.cut(peer);
                    }
                }
                Event::Transmit { .. } => {}
                other => self.events.push_back(other),
            }
        }
    }

    /// One small thing happens. Answers whether there was anything but time to pass.
    pub fn step(&mut self) -> bool {
        self.heed();
        let weather = self.weather;
        let chance = |rng: &mut Rng, n: u64| n > 0 && rng.one_in(n);
        if chance(&mut self.rng, weather.crashes) {
            self.crash();
        }
        if chance(&mut self.rng, weather.cuts) {
            let all: Vec<ConnKey> = self.links.keys().copied().collect();
            if let Some(conn) = self.rng.pick(&all) {
                self.cut(conn);
            }
        }
        let mut choices = Vec::new();
        let broker = self.world.steps();
        if !broker.is_empty() {
            choices.push(Choice::Broker);
            choices.push(Choice::Broker);
        }
        let conns: Vec<ConnKey> = self.links.keys().copied().collect();
        for conn in conns {
            let unsent = self.machine.unsent(conn) > 0;
            let link = &self.links[&conn];
            let Some(peer) = link.peer else {
                choices.push(Choice::Connect(conn));
                continue;
            };
            if !self.world.is_open(peer)
                && link.down.is_empty()
                && self.world.conns[peer.0].received.is_empty()
            {
                choices.push(Choice::Lost(conn));
                continue;
            }
            if unsent {
                choices.push(Choice::Write(conn));
            }
            if !link.up.is_empty() {
                choices.push(Choice::Up(conn));
            }
            if !self.world.conns[peer.0].received.is_empty() {
                choices.push(Choice::Fetch(conn));
            }
            if !link.down.is_empty() {
                choices.push(Choice::Down(conn));
            }
        }
        let Some(choice) = self.rng.pick(&choices) else {
            return false;
        };
        self.make(choice);
        self.heed();
        true
    }

    fn make(&mut self, choice: Choice) {
        match choice {
            Choice::Broker => {
                let steps = self.world.steps();
                let step = self.rng.pick(&steps).unwrap();
                let size = self.rng.range(1, 4_000) as usize;
                self.world.apply(step, size);
            }
            Choice::Connect(conn) => {
                if self.weather.refusals > 0 && self.rng.one_in(self.weather.refusals) {
                    self.links.remove(&conn);
                    self.machine.connection_lost(self.now, conn, "refused");
                    return;
                }
                let core = self.rng.below(u64::from(self.world.config.cores)) as u16;
                let peer = self.world.open(core);
                self.links.get_mut(&conn).unwrap().peer = Some(peer);
                self.connections += 1;
                self.machine.connected(self.now, conn);
            }
            Choice::Lost(conn) => {
                self.links.remove(&conn);
                self.machine
                    .connection_lost(self.now, conn, "the broker closed it");
            }
            Choice::Write(conn) => {
                let mut pieces = Vec::new();
                let most = self.rng.range(1, 64_000) as usize;
                self.machine.transmit(conn, most, &mut pieces);
                let link = self.links.get_mut(&conn).unwrap();
                for piece in pieces {
                    link.up.extend_from_slice(&piece);
                }
            }
            Choice::Up(conn) => {
                let link = self.links.get_mut(&conn).unwrap();
                let n = self.rng.range(1, 30_000).min(link.up.len() as u64) as usize;
                let bytes = link.up.split_to(n);
                self.world.feed(link.peer.unwrap(), &bytes);
            }
            Choice::Fetch(conn) => {
                let link = self.links.get_mut(&conn).unwrap();
                for incoming in self.world.take(link.peer.unwrap()) {
                    let mut frame = BytesMut::new();
                    encode::command_with_rest(&incoming.command, incoming.rest.len(), &mut frame);
                    frame.extend_from_slice(&incoming.rest);
                    link.down.push_back(frame.freeze());
                }
            }
            Choice::Down(conn) => {
                let link = self.links.get_mut(&conn).unwrap();
                let mut bytes = link.down.pop_front().unwrap();
                let n = self.rng.range(1, 2_000).min(bytes.len() as u64) as usize;
                let part = bytes.split_to(n);
                if bytes.has_remaining() {
                    link.down.push_front(bytes);
                }
                self.machine.handle_bytes(self.now, conn, part);
            }
        }
    }

    /// A connection breaks; the two ends may learn of it at different times, and what was under way is lost.
    fn cut(&mut self, conn: ConnKey) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        self.cut += 1;
        if let Some(peer) = link.peer {
            if self.rng.one_in(2) {
                // What had arrived is still worked on.
                let n = self.rng.below(link.up.len() as u64 + 1) as usize;
                let bytes = link.up.split_to(n);
                self.world.feed(peer, &bytes);
                let mut patience = 200;
                while patience > 0 && self.world.unread(peer) > 0 {
                    let steps = self.world.steps();
                    let Some(step) = self.rng.pick(&steps) else {
                        break;
                    };
                    self.world.apply(step, 4_000);
                    patience -= 1;
                }
            }
            self.world.cut(peer);
        }
        self.links.remove(&conn);
        self.machine.connection_lost(self.now, conn, "cut");
        self.heed();
    }

    /// The broker dies and starts again on what its disks kept.
    fn crash(&mut self) {
        self.crashed += 1;
        let rng = &mut self.rng;
        self.world.crash(|_, _| {
            if rng.one_in(2) {
                Kept::Nothing
            } else {
                Kept::All
            }
        });
        for (conn, _) in std::mem::take(&mut self.links) {
            self.machine
                .connection_lost(self.now, conn, "the broker died");
        }
        self.heed();
    }

    /// Time passes on both sides.
    pub fn advance(&mut self, ms: u64) {
        self.world.advance(ms);
        self.now += ms * MILLIS;
        self.machine.handle_timeout(self.now);
        self.heed();
    }

    /// Goes on until `done`, or fails if that does not come.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..2_000_000_u64 {
            if done(self) {
                return;
            }
            if !self.step() {
                self.advance(1);
            } else if self.rng.one_in(50) {
                let ms = self.rng.below(20);
                self.advance(ms);
            }
        }
        panic!("it never came: {what}");
    }
}

#[derive(Clone, Copy)]
enum Choice {
    Broker,
    Connect(ConnKey),
    Lost(ConnKey),
    Write(ConnKey),
    Up(ConnKey),
    Fetch(ConnKey),
    Down(ConnKey),
}
