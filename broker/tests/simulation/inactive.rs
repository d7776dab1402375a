//! Topics that nobody uses go, and nothing that was acknowledged to somebody who comes at that moment goes with them.

use std::collections::{BTreeMap, BTreeSet};

use vela_broker::engine::admin::{Answer, Ask};
use vela_broker::store::memory::Kept;
use vela_proto::{ServerError, base_command::Type};

use super::rng::{Rng, seeds};
use crate::harness::client::{Client, Got, say};
use crate::harness::{Peer, Step, World, WorldConfig};

const NAMESPACE: &str = "namespace/public/default";
/// Between two looks, and how long a topic has to have been unused.
const EVERY: u64 = 200;
const AFTER: u64 = 300;

fn config() -> WorldConfig {
    let mut config = WorldConfig::default();
    let settings = &mut config.settings;
    settings.broker_delete_inactive_topics_frequency_ms = EVERY;
    settings.broker_delete_inactive_topics_max_inactive_duration_ms = AFTER;
    config
}

fn exists(world: &mut World, topic: &str) -> bool {
    !matches!(world.ask(topic, Ask::Clients), Some(Answer::NoTopic))
}

/// Long enough for a topic to go.
fn wait(world: &mut World) {
    for _ in 0..5 {
        world.advance(EVERY);
        world.run_until_idle();
    }
}

fn key_of(topic: &str) -> String {
    format!("topic-policies/{}", topic.replacen("://", "/", 1))
}

#[test]
fn a_topic_without_clients_and_subscriptions_goes_for_good() {
    let mut world = World::new(config());
    let (used, plain, subscribed) = (
        world.topic_on(0, "used"),
        world.topic_on(1, "plain"),
        world.topic_on(1, "subscribed"),
    );
    let mut client = Client::connect(&mut world, 0);
    let mut other = Client::connect(&mut world, 1);
    client.producer(&mut world, &used, 1);
    other.producer(&mut world, &plain, 1);
    other.send(&mut world, 1, 0, "gone");
    other.receipt(&mut world);
    other.subscribe(&mut world, &subscribed, "s", true, 1);
    wait(&mut world);
    assert!(exists(&mut world, &plain), "it has a producer");
    world.cut(other.peer);
    world.run_until_idle();
    wait(&mut world);
    assert!(exists(&mut world, &used) && exists(&mut world, &subscribed));
    assert!(!exists(&mut world, &plain));
    world.crash(|_, _| Kept::Nothing);
    assert!(!exists(&mut world, &plain));
    assert!(exists(&mut world, &subscribed));
    // Whoever comes finds an empty topic.
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &plain, "s", true, 1);
    client.flow(&mut world, 1, 10);
    assert!(client.texts(&mut world).is_empty());
}

/// Being used between two looks counts, however short.
#[test]
fn a_topic_that_is_used_now_and_then_stays() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    for round in 0..10 {
        client.producer(&mut world, &topic, 1);
        client.say(&mut world, &say::close_producer(1, 1000 + round));
        client.success(&mut world, 1000 + round);
        world.advance(EVERY);
        world.run_until_idle();
        assert!(exists(&mut world, &topic));
    }
    wait(&mut world);
    assert!(!exists(&mut world, &topic));
}

#[test]
fn subscriptions_without_backlog_go_in_the_mode_that_says_so() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let policy = br#"{"inactive_topic_policies": {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 0, "deleteWhileInactive": true}}"#;
    world.put_metadata(NAMESPACE, policy);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", true, 1);
    client.send(&mut world, 1, 0, "a");
    client.receipt(&mut world);
    world.cut(client.peer);
    wait(&mut world);
    assert!(exists(&mut world, &topic), "it has a backlog");
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", true, 1);
    client.flow(&mut world, 1, 10);
    let got = client.messages(&mut world);
    client.ack(&mut world, 1, vec![got[0].id()], false);
    wait(&mut world);
    assert!(exists(&mut world, &topic), "it has a consumer");
    world.cut(client.peer);
    wait(&mut world);
    assert!(!exists(&mut world, &topic));
}

/// The topic's policy wins over the namespace's, and that over the settings; retention keeps what is old.
#[test]
fn policies_win() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let client = |world: &mut World| {
        let mut client = Client::connect(world, 0);
        client.producer(world, &topic, 1);
        world.cut(client.peer);
        world.run_until_idle();
        wait(world);
        exists(world, &topic)
    };
    assert!(!client(&mut world));
    world.put_metadata(
        NAMESPACE,
        br#"{"inactive_topic_policies": {"deleteWhileInactive": false}}"#,
    );
    assert!(client(&mut world));
    let own = br#"{"inactiveTopicPolicies": {"deleteWhileInactive": true, "maxInactiveDurationSeconds": 0}}"#;
    world.put_metadata(&key_of(&topic), own);
    assert!(!client(&mut world));
    assert_eq!(world.metadata(&key_of(&topic)), None, "its policies go too");
    for (minutes, after) in [(2, false), (-1, true)] {
        let retention =
            format!(r#"{{"retention_policies": {{"retentionTimeInMinutes": {minutes}}}}}"#);
        world.put_metadata(NAMESPACE, retention.as_bytes());
        assert!(client(&mut world), "{minutes} minutes");
        world.advance(120_000);
        world.run_until_idle();
        assert_eq!(exists(&mut world, &topic), after, "{minutes} minutes");
    }
}

#[test]
fn the_settings_switch_it_off_and_policies_on() {
    let mut config = config();
    config.settings.broker_delete_inactive_topics_enabled = false;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    world.cut(client.peer);
    world.run_until_idle();
    wait(&mut world);
    assert!(exists(&mut world, &topic));
    world.put_metadata(
        NAMESPACE,
        br#"{"inactive_topic_policies": {"deleteWhileInactive": true}}"#,
    );
    world.run_until_idle();
    wait(&mut world);
    assert!(!exists(&mut world, &topic));
}

/// While the store forgets the topic's schemas and policies, nobody joins, and nothing of it is changed.
#[test]
fn who_comes_while_a_topic_goes_is_told_to_come_again() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    world.put_metadata(&key_of(&topic), br#"{"maxProducers": 7}"#);
    let schema = topic.replacen("persistent://", "schema/", 1);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    world.put_metadata(&schema, b"left alone until it goes");
    world.cut(client.peer);
    world.run_until_idle();
    let mut client = Client::connect(&mut world, 0);
    // Everything but the metadata store goes on.
    let run = |world: &mut World| {
        loop {
            let steps = world.steps();
            let step = steps.into_iter().find(|step| *step != Step::Metadata);
            match step {
                Some(step) => world.apply(step, usize::MAX),
                None => break,
            }
        }
    };
    while !world.stores(&key_of(&topic)) {
        world.advance(EVERY);
        run(&mut world);
    }
    client.say(&mut world, &say::producer(&topic, 1, 90, None));
    let subscribe = say::subscribe(&topic, "s", true, 1, 91);
    client.say(&mut world, &say::subscribe_command(subscribe));
    run(&mut world);
    for request in [90, 91] {
        let (error, text) = client.error(&mut world, request);
        assert_eq!(error, ServerError::ServiceNotReady, "{text}");
        assert!(text.contains("is being deleted"), "{text}");
    }
    world.run_until_idle();
    assert_eq!(world.metadata(&key_of(&topic)), None);
    assert_eq!(world.metadata(&schema), None);
    assert!(!exists(&mut world, &topic));
    client.producer(&mut world, &topic, 2);
    assert!(exists(&mut world, &topic));
}

/// A client of the random runs.
#[derive(Default)]
struct Actor {
    peer: Option<Peer>,
    next: u64,
    /// What each request asked for: the topic, and whether it is a producer.
    asked: BTreeMap<u64, (usize, bool)>,
    /// Topics by producer id, and whether it is open.
    producers: BTreeMap<u64, (usize, bool)>,
    consumers: BTreeMap<u64, (usize, bool)>,
    sequence: u64,
    /// Sequence ids and numbers of messages without a receipt, by producer.
    sent: BTreeMap<(u64, u64), u64>,
    acks: BTreeMap<u64, (usize, u64)>,
}

#[derive(Default)]
struct Of {
    /// A SUBSCRIBE was answered, and no crash or loss has made that uncertain since.
    subscribed: bool,
    /// Messages that were acknowledged to their producer while the subscription could not go.
    owed: BTreeSet<u64>,
    /// Messages that a consumer has acknowledged, perhaps before their producer read the receipt.
    acked: BTreeSet<u64>,
}

#[derive(Default, Debug)]
struct Done {
    receipts: u64,
    delivered: u64,
    gone: u64,
    fenced: u64,
}

struct Run {
    world: World,
    rng: Rng,
    topics: Vec<String>,
    of: Vec<Of>,
    actors: Vec<Actor>,
    caught_up: bool,
    numbers: u64,
    done: Done,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let caught_up = rng.one_in(2);
        let mut config = config();
        config.cores = rng.range(1, 3) as u16;
        config.shards = u32::from(config.cores);
        config.settings.broker_delete_inactive_topics_when_caught_up = caught_up;
        Run {
            world: World::new(config),
            rng,
            topics: (0..3)
                .map(|i| format!("persistent://public/default/i{i}-{seed}"))
                .collect(),
            of: (0..3).map(|_| Of::default()).collect(),
            actors: (0..3).map(|_| Actor::default()).collect(),
            caught_up,
            numbers: 0,
            done: Done::default(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=54 => {
                let steps = self.world.steps();
                if let Some(step) = self.rng.pick(&steps) {
                    self.world.apply(step, usize::MAX);
                }
            }
            55..=79 => self.act(),
            80..=97 => {
                let ms = self.rng.range(1, EVERY);
                self.world.advance(ms);
            }
            98 => {
                let actor = self.rng.below(3) as usize;
                self.cut(actor);
            }
            _ if self.rng.one_in(10) => {
                self.world.crash(|_, _| Kept::Nothing);
                (0..3).for_each(|actor| self.lost(actor));
            }
            _ => {}
        }
        (0..3).for_each(|actor| self.listen(actor));
    }

    fn lost(&mut self, actor: usize) {
        // What it acknowledged may have been taken without its hearing of it.
        for (topic, number) in self.actors[actor].acks.values() {
            self.of[*topic].owed.remove(number);
        }
        self.actors[actor] = Actor {
            next: self.actors[actor].next,
            sequence: self.actors[actor].sequence,
            ..Actor::default()
        };
    }

    fn cut(&mut self, actor: usize) {
        if let Some(peer) = self.actors[actor].peer {
            self.world.cut(peer);
            self.lost(actor);
        }
    }

    fn act(&mut self) {
        let Run {
            world,
            rng,
            topics,
            actors,
            numbers,
            ..
        } = self;
        let actor = &mut actors[rng.below(3) as usize];
        let Some(peer) = actor.peer else {
            let core = rng.below(u64::from(world.config.cores)) as u16;
            let peer = world.open(core);
            world.feed(peer, &say::bytes(&say::connect()));
            actor.peer = Some(peer);
            return;
        };
        actor.next += 1;
        let request = actor.next;
        let topic = rng.below(3) as usize;
        let id = topic as u64 + 1;
        match rng.below(10) {
            0..=2 if !actor.producers.contains_key(&id) => {
                actor.producers.insert(id, (topic, false));
                actor.asked.insert(request, (topic, true));
                let producer = say::producer(&topics[topic], id, request, None);
                world.feed(peer, &say::bytes(&producer));
            }
            0..=4 if actor.producers.get(&id).is_some_and(|(_, open)| *open) => {
                actor.sequence += 1;
                *numbers += 1;
                actor.sent.insert((id, actor.sequence), *numbers);
                let text = numbers.to_string();
                let frame = say::send(id, actor.sequence, None, 1, text.as_bytes());
                world.feed(peer, &frame);
            }
            5 if actor.producers.get(&id).is_some_and(|(_, open)| *open) => {
                // What it has sent is answered before.
                actor.producers.remove(&id);
                world.feed(peer, &say::bytes(&say::close_producer(id, request)));
            }
            6 if !actor.consumers.contains_key(&id) => {
                actor.consumers.insert(id, (topic, false));
                actor.asked.insert(request, (topic, false));
                let subscribe = say::subscribe(&topics[topic], "s", true, id, request);
                world.feed(peer, &say::bytes(&say::subscribe_command(subscribe)));
                world.feed(peer, &say::bytes(&say::flow(id, 1000)));
            }
            7 if actor.consumers.get(&id).is_some_and(|(_, open)| *open) => {
                actor.consumers.remove(&id);
                world.feed(peer, &say::bytes(&say::close_consumer(id, request)));
            }
            _ => {}
        }
    }

    fn listen(&mut self, index: usize) {
        let Some(peer) = self.actors[index].peer else {
            return;
        };
        assert!(self.world.is_open(peer), "the broker closed a connection");
        for incoming in self.world.take(peer) {
            let kind = Type::try_from(incoming.command.r#type).unwrap();
            let actor = &mut self.actors[index];
            let command = incoming.command.clone();
            if let Some(got) = Got::from(&incoming) {
                self.done.delivered += 1;
                let number: u64 = got.text().parse().unwrap();
                actor.next += 1;
                let request = actor.next;
                if let Some((topic, _)) = actor.consumers.get(&got.consumer) {
                    actor.acks.insert(request, (*topic, number));
                    self.of[*topic].acked.insert(number);
                    let ack = say::ack(got.consumer, vec![got.id()], false, Some(request));
                    self.world.feed(peer, &say::bytes(&ack));
                }
                continue;
            }
            match kind {
                Type::ProducerSuccess => {
                    let request = command.producer_success.unwrap().request_id;
                    if let Some((topic, _)) = actor.asked.remove(&request)
                        && let Some(producer) = actor.producers.get_mut(&(topic as u64 + 1))
                    {
                        producer.1 = true;
                    }
                }
                Type::Success => {
                    let request = command.success.unwrap().request_id;
                    if let Some((topic, false)) = actor.asked.remove(&request) {
                        if let Some(consumer) = actor.consumers.get_mut(&(topic as u64 + 1)) {
                            consumer.1 = true;
                        }
                        self.of[topic].subscribed = true;
                    }
                }
                Type::Error => {
                    let error = command.error.unwrap();
                    assert_eq!(
                        error.error,
                        ServerError::ServiceNotReady as i32,
                        "{}",
                        error.message
                    );
                    self.done.fenced += 1;
                    match actor.asked.remove(&error.request_id) {
                        Some((topic, true)) => actor.producers.remove(&(topic as u64 + 1)),
                        Some((topic, false)) => actor.consumers.remove(&(topic as u64 + 1)),
                        None => panic!("{}", error.message),
                    };
                }
                Type::SendReceipt => {
                    let receipt = command.send_receipt.unwrap();
                    let key = (receipt.producer_id, receipt.sequence_id);
                    let number = actor.sent.remove(&key).unwrap();
                    let topic = receipt.producer_id as usize - 1;
                    self.done.receipts += 1;
                    // Of a producer that has closed, the topic may have gone before this was read.
                    let open = actor.producers.contains_key(&receipt.producer_id);
                    if open && self.is_kept(topic) && !self.of[topic].acked.contains(&number) {
                        self.of[topic].owed.insert(number);
                    }
                }
                Type::AckResponse => {
                    let request = command.ack_response.unwrap().request_id.unwrap();
                    if let Some((topic, number)) = actor.acks.remove(&request) {
                        self.of[topic].owed.remove(&number);
                    }
                }
                Type::Connected | Type::Ping => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Can the subscription not have gone by now? The mode without subscriptions keeps it for good; in the other mode a backlog does, or a
    /// consumer that has been there since it was answered.
    fn is_kept(&self, topic: usize) -> bool {
        let of = &self.of[topic];
        let consumed = || {
            let mut consumers = self
                .actors
                .iter()
                .flat_map(|actor| actor.consumers.values());
            consumers.any(|(of, open)| *of == topic && *open)
        };
        match self.caught_up {
            false => of.subscribed,
            true => !of.owed.is_empty() || consumed(),
        }
    }

    fn finish(&mut self) {
        for actor in 0..3 {
            // Everything that was acknowledged has been told.
            self.world.run_until_idle();
            self.listen(actor);
        }
        self.world.run_until_idle();
        (0..3).for_each(|actor| self.listen(actor));
        (0..3).for_each(|actor| self.cut(actor));
        self.world.run_until_idle();
        wait(&mut self.world);
        for topic in 0..3 {
            let name = self.topics[topic].clone();
            let of = &self.of[topic];
            if !exists(&mut self.world, &name) {
                assert!(of.owed.is_empty(), "{:?} are lost with {name}", of.owed);
                assert!(!of.subscribed || self.caught_up, "a subscription is lost");
                self.done.gone += 1;
                continue;
            }
            let mut client = Client::connect(&mut self.world, 0);
            client.subscribe(&mut self.world, &name, "s", true, 1);
            client.flow(&mut self.world, 1, 100_000);
            let got = client.texts(&mut self.world);
            let got: BTreeSet<u64> = got.iter().map(|text| text.parse().unwrap()).collect();
            let lost: Vec<_> = of.owed.difference(&got).collect();
            assert!(lost.is_empty(), "{lost:?} are lost on {name}");
        }
    }
}

#[test]
fn nothing_acknowledged_goes_with_a_topic() {
    let seeds = seeds(200);
    let many = seeds.end - seeds.start >= 200;
    let mut total = Done::default();
    for seed in seeds {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..run.rng.range(500, 2500) {
            run.step();
        }
        run.finish();
        total.receipts += run.done.receipts;
        total.delivered += run.done.delivered;
        total.gone += run.done.gone;
        total.fenced += run.done.fenced;
    }
    println!("{total:?}");
    if many {
        let done = [total.receipts, total.delivered, total.gone, total.fenced];
        assert!(done.iter().all(|n| *n > 20), "{total:?}");
    }
}
