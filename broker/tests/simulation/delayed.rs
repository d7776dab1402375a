//! Delayed delivery: when messages go out that are to be delivered later, and what else happens to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vela_broker::engine::Settings;
use vela_broker::store::memory::Kept;
use vela_proto::MessageMetadata;
use vela_proto::command_subscribe::SubType;

use super::rng::{Rng, seeds};
use crate::harness::client::{Client, Got, say};
use crate::harness::{World, WorldConfig};

const BOTH: [SubType; 2] = [SubType::Shared, SubType::KeyShared];

fn world(change: impl Fn(&mut Settings)) -> (World, String, Client) {
    let mut config = WorldConfig::default();
    // Time passes here without anybody to answer a PING.
    config.settings.keep_alive_interval_seconds = 1_000_000;
    change(&mut config.settings);
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    (world, topic, client)
}

fn strict(settings: &mut Settings) {
    settings.is_delayed_delivery_deliver_at_time_strict = true;
}

fn configure(world: &mut World, change: impl Fn(&mut Settings)) {
    change(&mut world.config.settings);
    for core in 0..world.config.cores {
        let settings = Arc::new(world.config.settings.clone());
        let now = world.now;
        world.engine_mut(core).configure(settings, now);
    }
}

/// Publishes a message that is due in `after` milliseconds.
fn send(client: &mut Client, world: &mut World, number: u64, after: u64, key: &str) -> u64 {
    let due = world.now.wall_ms + after;
    let metadata = MessageMetadata {
        producer_name: "p".into(),
        sequence_id: number,
        publish_time: world.now.wall_ms,
        deliver_at_time: (after > 0).then_some(due as i64),
        partition_key: Some(key.into()),
        ..Default::default()
    };
    let text = number.to_string();
    world.feed(
        client.peer,
        &say::send_metadata(1, metadata, text.as_bytes()),
    );
    client.receipt(world);
    due
}

fn join(client: &mut Client, world: &mut World, topic: &str, id: u64, kind: SubType) {
    let request = client.request();
    let mut subscribe = say::subscribe(topic, "s", true, id, request);
    subscribe.sub_type = kind as i32;
    subscribe.consumer_name = Some(format!("c{id}"));
    client.say(world, &say::subscribe_command(subscribe));
    client.success(world, request);
}

/// Available permits of a consumer.
fn permits(client: &mut Client, world: &mut World, consumer: u64) -> i64 {
    let request = client.request();
    client.say(world, &say::stats(consumer, request));
    let kind = vela_proto::base_command::Type::ConsumerStatsResponse;
    let answer = client.expect(world, kind).command;
    let stats = answer.consumer_stats_response.unwrap();
    stats.available_permits.unwrap() as i64
}

#[test]
fn a_delayed_message_costs_nothing_until_its_time_and_lets_others_pass() {
    for kind in BOTH {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, 7, kind);
        client.flow(&mut world, 7, 10);
        send(&mut client, &mut world, 0, 5_000, "k");
        send(&mut client, &mut world, 1, 0, "k");
        assert_eq!(client.texts(&mut world), ["1"]);
        assert_eq!(permits(&mut client, &mut world, 7), 9);
        world.advance(4_999);
        client.expect_silence(&mut world);
        world.advance(126);
        assert_eq!(client.texts(&mut world), ["0"]);
        assert_eq!(permits(&mut client, &mut world, 7), 8);
        world.advance(100_000);
        client.expect_silence(&mut world);
    }
}

#[test]
fn with_one_consumer_for_all_nothing_is_delayed() {
    for kind in [SubType::Exclusive, SubType::Failover] {
        let (mut world, topic, mut client) = world(strict);
        join(&mut client, &mut world, &topic, 7, kind);
        world.advance(1000);
        client.flow(&mut world, 7, 10);
        send(&mut client, &mut world, 0, 3_600_000, "k");
        assert_eq!(client.texts(&mut world), ["0"]);
    }
}

#[test]
fn what_is_due_within_a_tick_goes_at_once_unless_the_time_is_strict() {
    for kind in BOTH {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, 7, kind);
        client.flow(&mut world, 7, 10);
        send(&mut client, &mut world, 0, 1_000, "k");
        send(&mut client, &mut world, 1, 1_001, "k");
        assert_eq!(client.texts(&mut world), ["0"]);
        configure(&mut world, strict);
        send(&mut client, &mut world, 2, 1, "k");
        client.expect_silence(&mut world);
        world.advance(125);
        assert_eq!(client.texts(&mut world), ["2"]);
    }
}

#[test]
fn what_is_due_goes_in_the_order_of_the_log() {
    for kind in BOTH {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, 7, kind);
        client.flow(&mut world, 7, 1);
        for number in 0..20 {
            send(
                &mut client,
                &mut world,
                number,
                30_000 - number * 1_000,
                "k",
            );
        }
        // Nobody could take them until all are due.
        send(&mut client, &mut world, 20, 0, "k");
        assert_eq!(client.texts(&mut world), ["20"]);
        world.advance(30_000);
        client.expect_silence(&mut world);
        client.flow(&mut world, 7, 5);
        assert_eq!(client.texts(&mut world), ["0", "1", "2", "3", "4"]);
        client.flow(&mut world, 7, 100);
        let rest: Vec<String> = (5..20).map(|n| n.to_string()).collect();
        assert_eq!(client.texts(&mut world), rest);
    }
}

/// BC-56 on the virtual clock: a restart, an empty room, and acknowledged ones.
#[test]
fn restarts_and_empty_rooms_lose_nothing_and_hurry_nothing() {
    for kind in BOTH {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, 7, kind);
        client.flow(&mut world, 7, 100);
        for number in 0..20 {
            let after = if number < 10 { 2_000 } else { 8_000 };
            send(&mut client, &mut world, number, after, "k");
        }
        world.advance(2_125);
        let got = client.messages(&mut world);
        assert_eq!(got.len(), 10);
        client.ack(&mut world, 7, got.iter().map(Got::id).collect(), false);
        world.crash(|_, _| Kept::Nothing);
        let mut client = Client::connect(&mut world, 1);
        join(&mut client, &mut world, &topic, 7, kind);
        client.flow(&mut world, 7, 100);
        client.expect_silence(&mut world);
        world.advance(4_000);
        client.expect_silence(&mut world);
        // They fall due while nobody is there.
        client.say(&mut world, &say::close_consumer(7, 900));
        client.success(&mut world, 900);
        world.advance(5_000);
        client.expect_silence(&mut world);
        join(&mut client, &mut world, &topic, 8, kind);
        client.flow(&mut world, 8, 100);
        let rest: Vec<String> = (10..20).map(|n| n.to_string()).collect();
        assert_eq!(client.texts(&mut world), rest);
    }
}

#[test]
fn a_seek_forgets_what_was_delayed() {
    let (mut world, topic, mut client) = world(|_| {});
    join(&mut client, &mut world, &topic, 7, SubType::Shared);
    client.flow(&mut world, 7, 100);
    send(&mut client, &mut world, 0, 5_000, "k");
    send(&mut client, &mut world, 1, 0, "k");
    let got = client.messages(&mut world);
    let request = client.request();
    client.say(&mut world, &say::seek_id(7, request, got[0].id()));
    client.success(&mut world, request);
    client.listen(&mut world);
    client.inbox.clear();
    join(&mut client, &mut world, &topic, 8, SubType::Shared);
    client.flow(&mut world, 8, 100);
    assert_eq!(client.texts(&mut world), ["1"]);
    world.advance(10_000);
    client.expect_silence(&mut world);
}

#[test]
fn an_acknowledged_message_does_not_come_when_it_is_due() {
    for kind in BOTH {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, 7, kind);
        client.flow(&mut world, 7, 100);
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            publish_time: world.now.wall_ms,
            deliver_at_time: Some(world.now.wall_ms as i64 + 5_000),
            ..Default::default()
        };
        world.feed(client.peer, &say::send_metadata(1, metadata, b"0"));
        let (_, ledger, entry) = client.receipt(&mut world);
        client.expect_silence(&mut world);
        client.ack(&mut world, 7, vec![say::id(ledger, entry)], false);
        world.advance(10_000);
        client.expect_silence(&mut world);
    }
}

#[test]
fn switched_off_everything_goes_at_once() {
    let (mut world, topic, mut client) = world(|_| {});
    join(&mut client, &mut world, &topic, 7, SubType::Shared);
    client.flow(&mut world, 7, 100);
    send(&mut client, &mut world, 0, 3_600_000, "k");
    client.expect_silence(&mut world);
    configure(&mut world, |settings| {
        settings.delayed_delivery_enabled = false
    });
    assert_eq!(client.texts(&mut world), ["0"]);
    send(&mut client, &mut world, 1, 3_600_000, "k");
    assert_eq!(client.texts(&mut world), ["1"]);
    // A namespace may have it otherwise.
    world.put_metadata(
        "namespace/public/default",
        br#"{"delayed_delivery_policies": {"active": true, "tickTime": 8, "maxDeliveryDelayInMillis": 0}}"#,
    );
    world.run_until_idle();
    send(&mut client, &mut world, 2, 8, "k");
    assert_eq!(client.texts(&mut world), ["2"]);
    send(&mut client, &mut world, 3, 9, "k");
    client.expect_silence(&mut world);
    world.advance(9);
    assert_eq!(client.texts(&mut world), ["3"]);
}

/// What is delivered at all is within the limit of unacknowledged messages, due or not.
#[test]
fn what_is_due_respects_the_limit_of_a_subscription() {
    let (mut world, topic, mut client) = world(|settings| {
        settings.max_unacked_messages_per_subscription = 2;
    });
    join(&mut client, &mut world, &topic, 7, SubType::Shared);
    client.flow(&mut world, 7, 100);
    for number in 0..4 {
        send(&mut client, &mut world, number, 2_000, "k");
    }
    world.advance(3_000);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 2);
    client.ack(&mut world, 7, got.iter().map(Got::id).collect(), false);
    assert_eq!(client.texts(&mut world), ["2", "3"]);
}

/// More than fit in memory, all with one time, and with times in the reverse order of the log.
#[test]
fn more_than_memory_has_room_for() {
    for kind in BOTH {
        for together in [true, false] {
            let (mut world, topic, mut client) = world(|settings| {
                strict(settings);
                settings.delayed_delivery_max_entries_in_memory = 8;
            });
            join(&mut client, &mut world, &topic, 7, kind);
            client.flow(&mut world, 7, 10_000);
            let mut due: BTreeMap<u64, u64> = BTreeMap::new();
            for number in 0..300 {
                let after = if together {
                    60_000
                } else {
                    400_000 - number * 1_000
                };
                due.insert(number, send(&mut client, &mut world, number, after, "k"));
            }
            client.expect_silence(&mut world);
            while !due.is_empty() {
                world.advance(500);
                for got in client.messages(&mut world) {
                    let number = got.text().parse().unwrap();
                    let at = due.remove(&number).expect("delivered once");
                    assert!(at <= world.now.wall_ms, "{number} comes early");
                }
                let late = due.values().any(|at| at + 125 <= world.now.wall_ms);
                assert!(!late, "{due:?} at {}", world.now.wall_ms);
            }
        }
    }
}

struct Model {
    rng: Rng,
    world: World,
    topic: String,
    kind: SubType,
    producer: Client,
    consumers: BTreeMap<u64, Client>,
    next_consumer: u64,
    /// When each message is due; 0 = at once.
    due: Vec<u64>,
    acked: BTreeSet<u64>,
    held: BTreeMap<u64, (u64, Got)>,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = Rng::new(seed);
        let kind = BOTH[rng.below(2) as usize];
        let (memory, tick, is_strict) =
            (rng.range(1, 30) as u32, rng.range(1, 2_000), rng.one_in(2));
        let (world, topic, producer) = world(|settings| {
            settings.delayed_delivery_max_entries_in_memory = memory;
            settings.delayed_delivery_tick_time_millis = tick;
            settings.is_delayed_delivery_deliver_at_time_strict = is_strict;
            settings.managed_ledger_max_entries_per_ledger = 20;
            settings.max_unacked_messages_per_subscription = 0;
        });
        let mut model = Model {
            rng,
            world,
            topic,
            kind,
            producer,
            consumers: BTreeMap::new(),
            next_consumer: 100,
            due: Vec::new(),
            acked: BTreeSet::new(),
            held: BTreeMap::new(),
        };
        // The subscription is there from the first message on.
        model.join();
        model.leave();
        model
    }

    fn tick(&self) -> u64 {
        self.world.config.settings.delayed_delivery_tick_time_millis
    }

    fn join(&mut self) {
        let mut client = Client::connect(&mut self.world, self.rng.below(2) as u16);
        self.next_consumer += 1;
        let id = self.next_consumer;
        join(&mut client, &mut self.world, &self.topic, id, self.kind);
        client.flow(&mut self.world, id, 1_000_000);
        self.consumers.insert(id, client);
    }

    fn leave(&mut self) {
        let ids: Vec<u64> = self.consumers.keys().copied().collect();
        if let Some(id) = self.rng.pick(&ids) {
            self.listen();
            let client = self.consumers.remove(&id).unwrap();
            self.world.cut(client.peer);
            self.held.retain(|_, (holder, _)| *holder != id);
        }
    }

    fn listen(&mut self) {
        let settings = &self.world.config.settings;
        let early = match settings.is_delayed_delivery_deliver_at_time_strict {
            true => 0,
            false => settings.delayed_delivery_tick_time_millis,
        };
        let now = self.world.now.wall_ms;
        for (id, client) in &mut self.consumers {
            for got in client.messages(&mut self.world) {
                let number: u64 = got.text().parse().unwrap();
                let due = self.due[number as usize];
                assert!(
                    due <= now + early,
                    "{number} is due at {due}, comes at {now}"
                );
                assert!(!self.acked.contains(&number), "{number} was acknowledged");
                let before = self.held.insert(number, (*id, got));
                assert!(before.is_none(), "{number} is held by {before:?}");
            }
        }
    }

    /// Nothing that is due is missing.
    fn check(&mut self) {
        self.listen();
        let one = self.kind == SubType::Shared || self.consumers.len() == 1;
        if self.consumers.is_empty() || !one {
            // Which keys may move to whom is told elsewhere.
            return;
        }
        let now = self.world.now.wall_ms;
        let late = (self.tick() / 8).max(1);
        for (number, due) in (0..).zip(&self.due) {
            let known = self.acked.contains(&number) || self.held.contains_key(&number);
            assert!(
                known || due + late > now,
                "{number} was due at {due} and is not there at {now}"
            );
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=39 => {
                let number = self.due.len() as u64;
                let after = match self.rng.below(4) {
                    0 => 0,
                    1 => self.rng.range(1, 3) * 5_000,
                    2 => self.rng.range(1, 3_000),
                    _ => self.rng.range(1, 60_000),
                };
                let key = format!("k{}", number % 5);
                let due = send(&mut self.producer, &mut self.world, number, after, &key);
                self.due.push(if after == 0 { 0 } else { due });
            }
            40..=64 => {
                let ms = match self.rng.below(3) {
                    0 => self.rng.range(1, 50),
                    1 => self.rng.range(1, 1_000),
                    _ => self.rng.range(1, 9_000),
                };
                self.listen();
                self.world.advance(ms);
            }
            65..=79 => {
                let some: Vec<u64> = self.held.keys().copied().collect();
                for number in some {
                    if self.rng.one_in(2) {
                        let (id, got) = self.held.remove(&number).unwrap();
                        let client = self.consumers.get_mut(&id).unwrap();
                        client.ack(&mut self.world, id, vec![got.id()], false);
                        self.acked.insert(number);
                    }
                }
            }
            80..=87 => {
                let some: Vec<u64> = self.held.keys().copied().collect();
                if let Some(number) = self.rng.pick(&some) {
                    let (id, got) = self.held.remove(&number).unwrap();
                    let client = &self.consumers[&id];
                    client.say(&mut self.world, &say::redeliver(id, vec![got.id()], None));
                }
            }
            88..=92 if self.consumers.len() < 3 => self.join(),
            93..=96 => self.leave(),
            97 => self.crash(),
            _ => {}
        }
        self.check();
    }

    fn crash(&mut self) {
        self.listen();
        self.world.crash(|_, _| Kept::Nothing);
        self.consumers.clear();
        self.held.clear();
        self.producer = Client::connect(&mut self.world, 0);
        self.producer.producer(&mut self.world, &self.topic, 1);
    }

    fn finish(&mut self) {
        self.listen();
        let ids: Vec<u64> = self.consumers.keys().copied().collect();
        for id in ids {
            let client = self.consumers.remove(&id).unwrap();
            self.world.cut(client.peer);
        }
        self.held.clear();
        self.join();
        self.world.advance(1);
        for _ in 0..70 {
            self.check();
            self.world.advance(1_000);
        }
        self.check();
        let there = self.acked.len() + self.held.len();
        assert_eq!(there, self.due.len(), "some never came");
    }
}

/// Random delays, acknowledgments, consumers and restarts against what the clients know: nothing early, nothing lost, nothing twice, and what is
/// due is there. Which seeds: [`seeds`].
#[test]
fn random_delays_keep_every_promise() {
    for seed in seeds(60) {
        let found = std::panic::catch_unwind(|| {
            let mut model = Model::new(seed);
            for _ in 0..300 {
                model.step();
            }
            model.finish();
        });
        assert!(found.is_ok(), "seed {seed}");
    }
}
