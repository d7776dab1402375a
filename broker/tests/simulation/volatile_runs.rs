//! Random runs over non-persistent topics from a seed: subscriptions of every type, clients that come, go, stop reading and are cut, in whatever
//! order chance says. The engines audit their books after every turn and clients compare them with their own; nothing is delivered twice or out of
//! its producer's order, and at rest no receive memory is left. What is dropped is not predicted here, only counted (`volatile.rs`).

use std::collections::{BTreeMap, BTreeSet};

use vela_proto::base_command::Type;
use vela_proto::command_subscribe::SubType;

use super::rng::{Rng, seeds};
use crate::harness::client::{Client, Got, say};
use crate::harness::{World, WorldConfig};

const KINDS: [SubType; 4] = [
    SubType::Exclusive,
    SubType::Failover,
    SubType::Shared,
    SubType::KeyShared,
];

/// A consumer as its client knows it.
#[derive(Default)]
struct Consumer {
    sub: usize,
    granted: i64,
    taken: i64,
    /// The last number that it got of each producer: they come in order.
    last: BTreeMap<u64, u64>,
}

struct Actor {
    client: Option<Client>,
    /// Topics by the ids of producers.
    producers: BTreeMap<u64, usize>,
    consumers: BTreeMap<u64, Consumer>,
}

#[derive(Default, Debug)]
struct Outcome {
    published: u64,
    receipts: u64,
    delivered: u64,
    dropped: u64,
    steps: u64,
}

struct Run {
    world: World,
    rng: Rng,
    topics: Vec<String>,
    /// Topic and type.
    subs: Vec<(usize, SubType)>,
    actors: Vec<Actor>,
    next_id: u64,
    next_number: u64,
    /// Messages in each entry, by number.
    counts: BTreeMap<u64, u64>,
    /// Who had what: subscription, number.
    seen: BTreeSet<(usize, u64)>,
    done: Outcome,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let mut config = WorldConfig {
            cores: rng.range(1, 3) as u16,
            ..WorldConfig::default()
        };
        config.shards = u32::from(config.cores);
        config.settings.precise_dispatcher_flow_control = rng.one_in(2);
        config.settings.max_pending_publish_requests_per_connection = rng.range(2, 40) as u32;
        config
            .settings
            .max_concurrent_non_persistent_message_per_connection = rng.range(0, 60) as u32;
        config.sizes.min = 64;
        config.sizes.initial = 1 << rng.range(8, 13);
        config.sizes.max = 1 << 16;
        let world = World::new(config);
        let topics: Vec<String> = (0..rng.range(1, 3))
            .map(|i| format!("non-persistent://public/default/r{seed}-{i}"))
            .collect();
        let subs = (0..rng.range(1, 5))
            .map(|_| {
                let topic = rng.below(topics.len() as u64) as usize;
                (topic, KINDS[rng.below(4) as usize])
            })
            .collect();
        let actors = (0..rng.range(2, 4))
            .map(|_| Actor {
                client: None,
                producers: BTreeMap::new(),
                consumers: BTreeMap::new(),
            })
            .collect();
        Run {
            world,
            rng,
            topics,
            subs,
            actors,
            next_id: 1,
            next_number: 0,
            counts: BTreeMap::new(),
            seen: BTreeSet::new(),
            done: Outcome::default(),
        }
    }

    fn step(&mut self) {
        self.done.steps += 1;
        if self.rng.below(100) < 70 {
            let steps = self.world.steps();
            if let Some(step) = self.rng.pick(&steps) {
                let size = match self.rng.below(4) {
                    0 => self.rng.range(1, 40) as usize,
                    1 => self.rng.range(1, 5000) as usize,
                    _ => usize::MAX,
                };
                self.world.apply(step, size);
                return;
            }
        }
        let actor = self.rng.below(self.actors.len() as u64) as usize;
        if self.actors[actor].client.is_none() {
            let core = self.rng.below(u64::from(self.world.config.cores)) as u16;
            self.actors[actor].client = Some(Client::connect(&mut self.world, core));
            return;
        }
        self.listen(actor);
        if self.actors[actor].client.is_none() {
            // It was silent for too long.
            return;
        }
        match self.rng.below(100) {
            0..=44 => self.publish(actor),
            45..=64 => self.flow(actor),
            65..=74 => self.subscribe(actor),
            75..=79 => self.produce(actor),
            80..=84 => self.close_consumer(actor),
            85..=88 => self.noise(actor),
            89..=93 => {
                let peer = self.peer(actor);
                let stuck = &mut self.world.conns[peer].stuck;
                *stuck = !*stuck;
            }
            94 => {
                let ms = self.rng.range(1, 20_000);
                self.world.advance(ms);
            }
            95..=96 => self.cut(actor),
            _ => self.rest(),
        }
    }

    fn peer(&self, actor: usize) -> usize {
        self.actors[actor].client.as_ref().unwrap().peer.0
    }

    /// Says something, and does not wait.
    fn say(&mut self, actor: usize, command: &vela_proto::BaseCommand) {
        let client = self.actors[actor].client.as_ref().unwrap();
        client.say(&mut self.world, command);
    }

    fn produce(&mut self, actor: usize) {
        let topic = self.rng.below(self.topics.len() as u64) as usize;
        let id = self.next_id;
        self.next_id += 1;
        self.say(
            actor,
            &say::producer(&self.topics[topic].clone(), id, id, None),
        );
        self.actors[actor].producers.insert(id, topic);
    }

    fn publish(&mut self, actor: usize) {
        let producers: Vec<u64> = self.actors[actor].producers.keys().copied().collect();
        let Some(producer) = self.rng.pick(&producers) else {
            return self.produce(actor);
        };
        let burst = if self.rng.one_in(10) { 30 } else { 1 };
        for _ in 0..burst {
            let number = self.next_number;
            self.next_number += 1;
            let batch = self.rng.one_in(3).then(|| self.rng.range(1, 10) as i32);
            self.counts.insert(number, batch.unwrap_or(1) as u64);
            let size = match self.rng.below(20) {
                0 => self.rng.range(20_000, 200_000),
                1..=4 => self.rng.range(1_000, 9_000),
                _ => self.rng.range(0, 100),
            };
            let mut payload = format!("{number}:{producer}:").into_bytes();
            payload.resize(payload.len() + size as usize, b'.');
            let key = format!("k{}", self.rng.below(20));
            let time = self.world.now.wall_ms;
            let peer = self.actors[actor].client.as_ref().unwrap().peer;
            let frame = say::send_keyed(producer, number, batch, time, Some(&key), &payload);
            self.world.feed(peer, &frame);
            self.done.published += 1;
        }
    }

    fn subscribe(&mut self, actor: usize) {
        let sub = self.rng.below(self.subs.len() as u64) as usize;
        let (topic, kind) = self.subs[sub];
        let id = self.next_id;
        self.next_id += 1;
        let mut subscribe = say::subscribe(&self.topics[topic], &format!("s{sub}"), false, id, id);
        subscribe.sub_type = kind as i32;
        subscribe.consumer_name = Some(format!("c{id}"));
        subscribe.priority_level = Some(self.rng.below(2) as i32);
        subscribe.durable = Some(self.rng.one_in(2));
        self.say(actor, &say::subscribe_command(subscribe));
        self.actors[actor].consumers.insert(
            id,
            Consumer {
                sub,
                ..Consumer::default()
            },
        );
    }

    fn a_consumer(&mut self, actor: usize) -> Option<u64> {
        let ids: Vec<u64> = self.actors[actor].consumers.keys().copied().collect();
        self.rng.pick(&ids)
    }

    fn flow(&mut self, actor: usize) {
        let Some(id) = self.a_consumer(actor) else {
            return self.subscribe(actor);
        };
        let permits = match self.rng.below(3) {
            0 => self.rng.range(1, 3),
            _ => self.rng.range(1, 100),
        };
        self.say(actor, &say::flow(id, permits as u32));
        if let Some(consumer) = self.actors[actor].consumers.get_mut(&id) {
            consumer.granted += permits as i64;
        }
    }

    fn close_consumer(&mut self, actor: usize) {
        if let Some(id) = self.a_consumer(actor) {
            // What it was sent before is known to its client first.
            self.rest();
            if self.actors[actor].client.is_some() {
                self.say(actor, &say::close_consumer(id, 1_000_000 + id));
                self.actors[actor].consumers.remove(&id);
                self.world.run_until_idle();
            }
        }
    }

    /// What means nothing on these topics.
    fn noise(&mut self, actor: usize) {
        let Some(id) = self.a_consumer(actor) else {
            return;
        };
        let request = 2_000_000 + self.done.steps;
        let command = match self.rng.below(5) {
            0 => say::ack(id, vec![say::id(0, 0)], self.rng.one_in(2), Some(request)),
            1 => say::redeliver(id, vec![], Some(1)),
            2 => say::redeliver(id, vec![say::id(0, 0)], None),
            3 => say::seek_time(id, request, 0),
            _ => say::last_message_id(id, request),
        };
        self.say(actor, &command);
    }

    fn cut(&mut self, actor: usize) {
        self.listen(actor);
        if let Some(client) = self.actors[actor].client.take() {
            self.world.cut(client.peer);
        }
        self.actors[actor].producers.clear();
        self.actors[actor].consumers.clear();
    }

    /// Looks at what has come to a client.
    fn listen(&mut self, actor: usize) {
        let Some(client) = &mut self.actors[actor].client else {
            return;
        };
        client.listen(&mut self.world);
        let open = self.world.is_open(client.peer);
        for incoming in std::mem::take(&mut client.inbox) {
            if let Some(got) = Got::from(&incoming) {
                self.delivered(actor, &got);
                continue;
            }
            let kind = Type::try_from(incoming.command.r#type).unwrap();
            match kind {
                Type::SendReceipt => {
                    let receipt = incoming.command.send_receipt.unwrap();
                    let id = receipt.message_id.unwrap();
                    assert!([0, u64::MAX].contains(&id.entry_id));
                    self.done.receipts += 1;
                }
                Type::Error => {
                    // The consumer or producer was refused: an exclusive one is there.
                    let id = incoming.command.error.unwrap().request_id;
                    self.actors[actor].consumers.remove(&id);
                    self.actors[actor].producers.remove(&id);
                }
                Type::CloseConsumer => {
                    let id = incoming.command.close_consumer.unwrap().consumer_id;
                    self.actors[actor].consumers.remove(&id);
                }
                Type::SendError => panic!("{incoming:?}"),
                Type::Ping => {
                    let client = self.actors[actor].client.as_ref().unwrap();
                    client.say(&mut self.world, &say::pong());
                }
                _ => {}
            }
        }
        if !open {
            let actor = &mut self.actors[actor];
            actor.client = None;
            actor.producers.clear();
            actor.consumers.clear();
        }
    }

    fn delivered(&mut self, actor: usize, got: &Got) {
        let text = got.text();
        let mut parts = text.split(':').map(|part| part.parse::<u64>());
        let (number, producer) = (
            parts.next().unwrap().unwrap(),
            parts.next().unwrap().unwrap(),
        );
        let permits = got.permits.unwrap();
        assert_eq!(u64::from(permits), self.counts[&number]);
        assert_eq!((got.ledger, got.entry, got.redelivery_count), (0, 0, 0));
        self.done.delivered += u64::from(permits);
        let Some(consumer) = self.actors[actor].consumers.get_mut(&got.consumer) else {
            return;
        };
        consumer.taken += i64::from(permits);
        assert!(
            self.seen.insert((consumer.sub, number)),
            "{number} was delivered twice"
        );
        // Numbers rise with every SEND, and those of one producer come in order.
        let last = consumer.last.insert(producer, number);
        assert!(last < Some(number), "{number} behind {last:?}");
    }

    /// Everything comes to rest; then the books are compared.
    fn rest(&mut self) {
        for actor in 0..self.actors.len() {
            if self.actors[actor].client.is_some() {
                let peer = self.peer(actor);
                self.world.conns[peer].stuck = false;
            }
        }
        // Clients answer PINGs, and what waited for that goes on.
        loop {
            self.world.run_until_idle();
            for actor in 0..self.actors.len() {
                self.listen(actor);
            }
            if self.world.steps().is_empty() {
                break;
            }
        }
        assert_eq!(self.world.retained_bytes(), 0, "at rest");
        let mut theirs = Vec::new();
        for core in 0..self.world.config.cores {
            let books = self.world.engine(core).audit().unwrap();
            theirs.extend(books.iter().map(|b| {
                let balance = b.granted as i64 - b.delivered as i64;
                assert_eq!((balance, b.reclaimed), (b.balance, 0), "{b:?}");
                (b.client.id, b.granted as i64, b.delivered as i64)
            }));
        }
        let consumers = self.actors.iter().flat_map(|actor| &actor.consumers);
        let mut ours: Vec<(u64, i64, i64)> =
            consumers.map(|(id, c)| (*id, c.granted, c.taken)).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(theirs, ours, "the broker's books, and the clients'");
    }

    fn finish(mut self) -> Outcome {
        self.rest();
        for actor in 0..self.actors.len() {
            if self.actors[actor].client.is_some() {
                self.cut(actor);
            }
        }
        self.world.run_until_idle();
        let stats = self.world.totals();
        assert_eq!(
            (stats.subscriptions, stats.consumers, stats.producers),
            (0, 0, 0)
        );
        assert_eq!(self.world.retained_bytes(), 0);
        for _ in 0..2 {
            self.world.advance(60_000);
            self.world.run_until_idle();
        }
        assert_eq!(self.world.totals().topics, 0, "nobody uses them");
        self.done.dropped = stats.counters.messages_dropped;
        self.done
    }
}

fn run(seed: u64) -> Outcome {
    let mut run = Run::new(seed);
    for _ in 0..600 {
        run.step();
    }
    run.finish()
}

/// Which seeds: [`seeds`].
#[test]
fn seeds_without_a_log() {
    let seeds = seeds(60);
    let count = seeds.end - seeds.start;
    let mut all = Outcome::default();
    for seed in seeds {
        let caught = std::panic::catch_unwind(|| run(seed));
        let outcome = caught.unwrap_or_else(|panic| {
            println!("seed {seed} failed: VELA_SIM_SEED={seed} repeats it");
            std::panic::resume_unwind(panic);
        });
        all.published += outcome.published;
        all.receipts += outcome.receipts;
        all.delivered += outcome.delivered;
        all.dropped += outcome.dropped;
        all.steps += outcome.steps;
    }
    // The runs do what they are about.
    assert!(
        all.published > 50 * count && all.receipts > 40 * count,
        "{all:?}"
    );
    assert!(
        all.delivered > 20 * count && all.dropped > 20 * count,
        "{all:?}"
    );
}
