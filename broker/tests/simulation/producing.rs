//! Random runs of producers: names that deduplicate and send again what has no answer, owners that fence each other, a topic that ends; over
//! crashes, lost connections and full disks. What must hold is read from the topics themselves at the end.

use std::collections::{BTreeMap, VecDeque};

use vela_broker::engine::Now;
use vela_broker::store::memory::Kept;
use vela_proto::{ServerError, base_command::Type};

use super::access::{EXCLUSIVE, FENCING, WAIT};
use super::rng::{Rng, seeds};
use crate::harness::client::{Got, say};
use crate::harness::{Incoming, Peer, World, WorldConfig};

/// A producer with a name that must never lose a message nor store one twice.
struct Named {
    name: String,
    topic: usize,
    /// Its peer, and whether its PRODUCER was answered.
    conn: Option<(Peer, bool)>,
    next: u64,
    /// Sent and not answered, lowest first: sequence ids of entries, lowest and highest.
    open: VecDeque<(u64, u64)>,
    /// Of `open`, how many were sent on this connection.
    sent: usize,
    /// Highest sequence id that was answered with a receipt.
    receipted: Option<u64>,
    /// It gave its connection up.
    hung_up: bool,
}

/// A producer that wants a topic for itself.
struct Owner {
    conn: Option<Peer>,
    mode: i32,
    /// Its epoch, once it is the owner.
    epoch: Option<u64>,
    sent: u64,
}

struct Run {
    world: World,
    rng: Rng,
    /// Topics 0 and 1 are of named producers, 2 of owners.
    topics: Vec<String>,
    named: Vec<Named>,
    owners: Vec<Owner>,
    /// Who was granted which epoch.
    epochs: BTreeMap<u64, usize>,
    /// Topic 1 was to end: a crash may have taken the answer, and not the end.
    ending: bool,
    /// Topic 1 has ended, at this ledger and entry.
    ended: Option<(i64, i64)>,
    done: Done,
}

#[derive(Default, Debug)]
struct Done {
    receipts: u64,
    duplicates: u64,
    epochs: u64,
    fenced: u64,
    crashes: u64,
    ends: u64,
}

fn config(rng: &mut Rng) -> WorldConfig {
    let mut config = WorldConfig::default();
    config.cores = rng.range(1, 3) as u16;
    config.shards = u32::from(config.cores);
    config.now = Now {
        ms: 1_000,
        wall_ms: 1_700_000_000_000,
    };
    config.settings.broker_deduplication_enabled = true;
    config.settings.managed_ledger_max_entries_per_ledger = rng.range(1, 20) as u32;
    config.settings.checkpoint_interval_bytes = rng.range(4 << 10, 64 << 10);
    config.settings.keep_alive_interval_seconds = 0;
    config.lane.chunk_bytes = 4096 << rng.below(3);
    config.wal.segment_bytes = 256 << 10;
    config.wal.unacked_bytes_max = 512 << 10;
    config
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let world = World::new(config(&mut rng));
        let topics: Vec<String> = (0..3)
            .map(|i| format!("persistent://public/default/p{i}-{seed}"))
            .collect();
        let named = (0..4)
            .map(|i| Named {
                name: format!("named-{i}"),
                topic: i % 2,
                conn: None,
                next: 0,
                open: VecDeque::new(),
                sent: 0,
                receipted: None,
                hung_up: false,
            })
            .collect();
        let owners = [EXCLUSIVE, WAIT, WAIT, FENCING]
            .map(|mode| Owner {
                conn: None,
                mode,
                epoch: None,
                sent: 0,
            })
            .into_iter()
            .collect();
        let mut run = Run {
            world,
            rng,
            topics,
            named,
            owners,
            epochs: BTreeMap::new(),
            ending: false,
            ended: None,
            done: Done::default(),
        };
        // A subscription each, so that nothing is trimmed.
        let peer = run.connect();
        for (id, topic) in (0..).zip(run.topics.clone()) {
            let subscribe = say::subscribe(&topic, "keeper", false, id, 100 + id);
            let bytes = say::bytes(&say::subscribe_command(subscribe));
            run.world.feed(peer, &bytes);
        }
        run.world.run_until_idle();
        run.world.cut(peer);
        run
    }

    fn connect(&mut self) -> Peer {
        let core = self.rng.below(u64::from(self.world.config.cores)) as u16;
        let peer = self.world.open(core);
        self.world.feed(peer, &say::bytes(&say::connect()));
        peer
    }

    fn step(&mut self) {
        let steps = self.world.steps();
        if self.rng.below(100) < 70
            && let Some(step) = self.rng.pick(&steps)
        {
            let size = if self.rng.one_in(3) { 30 } else { usize::MAX };
            self.world.apply(step, size);
            return self.listen();
        }
        match self.rng.below(300) {
            0 => self.crash(),
            1..=3 => {
                let shard = self.rng.below(u64::from(self.world.config.shards)) as u32;
                self.world.fill_disk(shard);
            }
            4..=20 => self.free(),
            21..=24 => self.cut(),
            25 if self.ended.is_none() && self.rng.one_in(4) => {
                let name = vela_broker::engine::name::TopicName::parse(&self.topics[1]).unwrap();
                self.ending = true;
                self.world.engine_mut(0).terminate(1, name);
            }
            26..=120 => self.own(),
            _ => self.send(),
        }
        self.listen();
    }

    fn free(&mut self) {
        for shard in 0..self.world.config.shards {
            self.world.free_disk(shard);
        }
    }

    fn cut(&mut self) {
        let peers: Vec<Peer> = self
            .named
            .iter()
            .filter_map(|n| n.conn.map(|(peer, _)| peer))
            .chain(self.owners.iter().filter_map(|owner| owner.conn))
            .collect();
        if let Some(peer) = self.rng.pick(&peers) {
            self.world.cut(peer);
        }
    }

    fn crash(&mut self) {
        self.done.crashes += 1;
        let rng = &mut self.rng;
        self.world.crash(|_, _| match rng.below(3) {
            0 => Kept::All,
            1 => Kept::Prefix(rng.below(20_000) as usize),
            _ => Kept::Nothing,
        });
        self.world.terminated.clear();
        self.listen();
    }

    /// A named producer says something: it connects, sends again what has no answer, then new messages.
    fn send(&mut self) {
        let index = self.rng.below(self.named.len() as u64) as usize;
        let named = &self.named[index];
        if named.topic == 1 && self.ended.is_some() {
            return;
        }
        let Some((peer, answered)) = named.conn else {
            let peer = self.connect();
            let named = &mut self.named[index];
            let command = say::producer(&self.topics[named.topic], 1, 7, Some(&named.name));
            self.world.feed(peer, &say::bytes(&command));
            named.conn = Some((peer, false));
            named.sent = 0;
            return;
        };
        // Mostly it waits for the answer, as clients do.
        if !answered && !self.rng.one_in(20) {
            return;
        }
        let named = &mut self.named[index];
        if named.sent == named.open.len() && named.open.len() < 40 {
            let count = if self.rng.one_in(3) {
                self.rng.range(1, 5)
            } else {
                1
            };
            named.open.push_back((named.next, named.next + count - 1));
            named.next += count;
        }
        let Some((lowest, highest)) = named.open.get(named.sent).copied() else {
            return;
        };
        named.sent += 1;
        let mut payload = [lowest.to_le_bytes(), highest.to_le_bytes()].concat();
        payload.extend_from_slice(named.name.as_bytes());
        payload.resize(payload.len() + self.rng.below(2000) as usize, 0);
        let bytes = super::dedup::range((lowest, highest), &payload, self.world.now.wall_ms);
        self.world.feed(peer, &bytes);
    }

    /// An owner says something: it asks for the topic, sends what names its epoch, or leaves.
    fn own(&mut self) {
        let index = self.rng.below(self.owners.len() as u64) as usize;
        let Some(peer) = self.owners[index].conn else {
            let peer = self.connect();
            let owner = &mut self.owners[index];
            let mut command = say::producer(&self.topics[2], 1, 7, None);
            let producer = command.producer.as_mut().unwrap();
            producer.producer_access_mode = Some(owner.mode);
            // One that comes back names its epoch, as clients do, until it is told that it is over.
            producer.topic_epoch = owner.epoch;
            self.world.feed(peer, &say::bytes(&command));
            owner.conn = Some(peer);
            owner.sent = 0;
            return;
        };
        let owner = &mut self.owners[index];
        let Some(epoch) = owner.epoch.filter(|_| owner.sent > 0) else {
            return;
        };
        if self.rng.one_in(12) {
            self.world.cut(peer);
            return;
        }
        owner.sent += 1;
        let payload = epoch.to_le_bytes();
        let bytes = say::send(1, owner.sent, None, self.world.now.wall_ms, &payload);
        self.world.feed(peer, &bytes);
    }

    fn listen(&mut self) {
        for (_, result) in std::mem::take(&mut self.world.terminated) {
            let at = result.unwrap();
            let at = (at.ledger, at.entry);
            assert!(self.ended.is_none_or(|before| before == at), "{at:?}");
            self.ended = Some(at);
            self.done.ends += 1;
        }
        for index in 0..self.named.len() {
            let Some((peer, _)) = self.named[index].conn else {
                continue;
            };
            for incoming in self.world.take(peer) {
                // What comes behind the answer that made the client hang up is not heard.
                if self.world.is_open(peer) || !self.named[index].hung_up {
                    self.hear(index, &incoming);
                }
            }
            if !self.world.is_open(peer) {
                self.named[index].conn = None;
                self.named[index].hung_up = false;
            }
        }
        for index in 0..self.owners.len() {
            let Some(peer) = self.owners[index].conn else {
                continue;
            };
            for incoming in self.world.take(peer) {
                self.hear_owner(index, peer, &incoming);
            }
            if !self.world.is_open(peer) {
                self.owners[index].conn = None;
            }
        }
    }

    fn hear(&mut self, index: usize, incoming: &Incoming) {
        let named = &mut self.named[index];
        let command = &incoming.command;
        match Type::try_from(command.r#type).unwrap() {
            Type::ProducerSuccess => {
                let last = command.producer_success.as_ref().unwrap();
                let last = last.last_sequence_id.unwrap();
                let last = u64::try_from(last).ok();
                assert!(
                    last >= named.receipted,
                    "{}: {last:?} is known, {:?} has its receipt",
                    named.name,
                    named.receipted
                );
                if let Some((peer, _)) = named.conn {
                    named.conn = Some((peer, true));
                }
            }
            Type::SendReceipt => {
                let receipt = command.send_receipt.as_ref().unwrap();
                let (lowest, highest) = named.open.pop_front().expect("an answer to a SEND");
                assert_eq!(receipt.sequence_id, lowest, "{}", named.name);
                named.sent -= 1;
                named.receipted = Some(highest);
                let duplicate = receipt.message_id.as_ref().unwrap().ledger_id == u64::MAX;
                self.done.duplicates += u64::from(duplicate);
                self.done.receipts += 1;
            }
            // The disk is full, or the topic has ended: the client comes back and sends again.
            Type::SendError | Type::Error | Type::CloseProducer => {
                if let Some((peer, _)) = named.conn {
                    named.hung_up = true;
                    self.world.cut(peer);
                }
            }
            _ => {}
        }
    }

    fn hear_owner(&mut self, index: usize, peer: Peer, incoming: &Incoming) {
        let command = &incoming.command;
        let owner = &mut self.owners[index];
        match Type::try_from(command.r#type).unwrap() {
            Type::ProducerSuccess => {
                let success = command.producer_success.as_ref().unwrap();
                if success.producer_ready == Some(false) {
                    return;
                }
                let epoch = success.topic_epoch.unwrap();
                owner.epoch = Some(epoch);
                let granted = *self.epochs.entry(epoch).or_insert(index);
                assert_eq!(granted, index, "epoch {epoch} is granted twice");
                // What it sends first is no message: it may send from now on.
                owner.sent = 1;
                self.done.epochs += 1;
            }
            Type::Error => {
                let error = command.error.as_ref().unwrap().error;
                if error == ServerError::ProducerFenced as i32 {
                    owner.epoch = None;
                    self.done.fenced += 1;
                }
                self.world.cut(peer);
            }
            Type::SendError => self.world.cut(peer),
            _ => {}
        }
    }

    /// Everything that a topic holds.
    fn stored(&mut self, topic: usize) -> Vec<Got> {
        let peer = self.connect();
        let mut subscribe = say::subscribe(&self.topics[topic], "reader", false, 9, 5);
        subscribe.durable = Some(false);
        subscribe.start_message_id = Some(say::id(u64::MAX, u64::MAX));
        let bytes = say::bytes(&say::subscribe_command(subscribe));
        self.world.feed(peer, &bytes);
        self.world.feed(peer, &say::bytes(&say::flow(9, 1_000_000)));
        self.world.run_until_idle();
        let got = self.world.take(peer).iter().filter_map(Got::from).collect();
        self.world.cut(peer);
        got
    }

    fn finish(&mut self) {
        self.free();
        self.world.run_until_idle();
        self.listen();
        // Everybody gets an answer to everything in the end.
        for _ in 0..2_000 {
            self.send();
            self.free();
            self.world.run_until_idle();
            self.listen();
        }
        self.crash();
        for topic in 0..2 {
            let stored = self.stored(topic);
            let mut next: BTreeMap<String, u64> = BTreeMap::new();
            for got in &stored {
                let number =
                    |at: usize| u64::from_le_bytes(got.payload[at..at + 8].try_into().unwrap());
                let (lowest, highest) = (number(0), number(8));
                let name = String::from_utf8_lossy(&got.payload[16..23]).into_owned();
                // Each once, in order, and none is missing.
                let expected = next.insert(name.clone(), highest + 1).unwrap_or(0);
                assert_eq!(lowest, expected, "{name} in {}", self.topics[topic]);
            }
            for named in self.named.iter().filter(|named| named.topic == topic) {
                let stored = next.get(&named.name).copied().unwrap_or(0);
                let receipted = named.receipted.map_or(0, |highest| highest + 1);
                assert!(
                    stored >= receipted,
                    "{}: {receipted} have receipts, {stored} are stored",
                    named.name
                );
                if topic == 0 || !self.ending {
                    assert!(named.open.len() < 2, "{} is never answered", named.name);
                }
            }
            if let Some(end) = self.ended.filter(|_| topic == 1) {
                let last = stored
                    .last()
                    .map(|got| (got.ledger as i64, got.entry as i64));
                assert!(
                    last.is_none_or(|last| last <= end),
                    "{last:?} behind {end:?}"
                );
            }
        }
        let mut epoch = 0;
        for got in self.stored(2) {
            let of = u64::from_le_bytes(got.payload[..8].try_into().unwrap());
            assert!(
                of >= epoch,
                "a message of epoch {of} stands behind one of {epoch}"
            );
            epoch = of;
        }
    }
}

fn run(seed: u64) -> Done {
    let mut run = Run::new(seed);
    for _ in 0..run.rng.range(300, 1500) {
        run.step();
    }
    run.finish();
    run.done
}

/// Which seeds: [`seeds`].
#[test]
fn nothing_is_stored_twice_and_nobody_writes_after_its_epoch() {
    let seeds = seeds(60);
    let many = seeds.end - seeds.start >= 60;
    let mut total = Done::default();
    for seed in seeds {
        println!("seed {seed}");
        let done = run(seed);
        total.receipts += done.receipts;
        total.duplicates += done.duplicates;
        total.epochs += done.epochs;
        total.fenced += done.fenced;
        total.crashes += done.crashes;
        total.ends += done.ends;
    }
    println!("{total:?}");
    if many {
        let done = [
            total.receipts,
            total.duplicates,
            total.epochs,
            total.fenced,
            total.crashes,
        ];
        assert!(done.iter().all(|n| *n > 50), "{total:?}");
        assert!(total.ends > 5, "{total:?}");
    }
}
