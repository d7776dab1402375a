//! Random runs from a seed: several cores, clients, disks and restarts in whatever order chance says, and what must hold all the same.

use vela_broker::engine::{CoreId, Now};
use vela_broker::store::memory::Kept;

use super::actor::{Actor, Consumer, MAX_DELAY_MS, Shared};
use super::model::{Keys, Published, Sub};
use super::rng::Rng;
use crate::harness::{Fault, Step, World, WorldConfig};

/// What a run did, to see that runs do something.
#[derive(Default, Debug, Clone, Copy)]
pub struct Outcome {
    pub steps: u64,
    pub published: u64,
    pub receipts: u64,
    pub deliveries: u64,
    pub acks: u64,
    pub crashes: u64,
    pub checkpoints: u64,
    pub dropped_segments: u64,
    pub reads: u64,
    pub seeks: u64,
    pub stats: u64,
    /// How often a planted fault struck.
    pub struck: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.published += other.published;
        self.receipts += other.receipts;
        self.deliveries += other.deliveries;
        self.acks += other.acks;
        self.crashes += other.crashes;
        self.checkpoints += other.checkpoints;
        self.dropped_segments += other.dropped_segments;
        self.reads += other.reads;
        self.seeks += other.seeks;
        self.stats += other.stats;
        self.struck += other.struck;
    }
}

fn config(rng: &mut Rng, fault: Fault) -> WorldConfig {
    let mut config = WorldConfig {
        fault,
        ..WorldConfig::default()
    };
    config.cores = rng.range(1, 3) as u16;
    config.shards = u32::from(config.cores) * rng.range(1, 2) as u32;
    config.now = Now {
        ms: 1_000,
        wall_ms: 1_700_000_000_000,
    };
    let settings = &mut config.settings;
    settings.managed_ledger_max_entries_per_ledger = rng.range(1, 20) as u32;
    settings.managed_ledger_max_size_per_ledger = if rng.one_in(2) { 20_000 } else { 1 << 30 };
    settings.max_pending_publish_requests_per_connection = rng.range(2, 40) as u32;
    settings.max_unacked_messages_per_consumer = if rng.one_in(2) {
        0
    } else {
        rng.range(1, 20) as u32
    };
    settings.max_unacked_messages_per_subscription = if rng.one_in(2) {
        0
    } else {
        rng.range(1, 40) as u32
    };
    settings.dispatcher_max_round_robin_batch_size = rng.range(1, 20) as u32;
    settings.precise_dispatcher_flow_control = rng.one_in(2);
    settings.subscription_key_shared_use_consistent_hashing = rng.one_in(2);
    settings.subscription_key_shared_consistent_hashing_replica_points = rng.range(1, 100) as u32;
    settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer = if rng.one_in(2) {
        0
    } else {
        rng.range(1, 10) as u32
    };
    settings.is_delayed_delivery_deliver_at_time_strict = rng.one_in(2);
    settings.delayed_delivery_tick_time_millis = rng.range(1, 1000);
    settings.delayed_delivery_max_entries_in_memory = if rng.one_in(2) {
        rng.range(1, 8) as u32
    } else {
        65_536
    };
    settings.checkpoint_interval_bytes = rng.range(4 << 10, 64 << 10);
    // Their names are new each time, so nothing is a repeat; but the log has records of another kind.
    settings.broker_deduplication_enabled = rng.one_in(4);
    config.lane.chunk_bytes = 4096 << rng.below(4);
    config.lane.budget_bytes = 8 << (10 + rng.below(7));
    config.lane.cache_bytes = 8 << (10 + rng.below(5));
    config.lane.pool_bytes = 64 << 10;
    config.lane.in_flight = rng.range(1, 3) as usize;
    config.wal.segment_bytes = 256 << 10;
    config.wal.unacked_bytes_max = 512 << 10;
    config.sizes.min = 64;
    config.sizes.initial = 1 << rng.range(8, 13);
    config.sizes.max = 1 << 14;
    config
}

struct Run {
    world: World,
    rng: Rng,
    shared: Shared,
    actors: Vec<Actor>,
    crashes: u64,
    seeks: u64,
    /// Payload bytes of large messages; 0 = this run has none.
    large: u64,
}

impl Run {
    fn new(seed: u64, fault: Fault) -> Run {
        let mut rng = Rng::new(seed);
        let world = World::new(config(&mut rng, fault));
        let topics: Vec<String> = (0..rng.range(1, 3))
            .map(|i| format!("persistent://public/default/t{i}-{seed}"))
            .collect();
        let mut subs = Vec::new();
        for topic in 0..topics.len() {
            for name in 0..rng.range(1, 2) {
                let keys = rng.one_in(3).then(|| Keys::new(!rng.one_in(4)));
                let shared = keys.is_some() || rng.one_in(2);
                subs.push(Sub {
                    topic,
                    name: format!("s{name}"),
                    shared,
                    keys,
                    failover: !shared && rng.one_in(2),
                    ..Sub::default()
                });
            }
        }
        let shared = Shared {
            precise: world.config.settings.precise_dispatcher_flow_control,
            early: match world
                .config
                .settings
                .is_delayed_delivery_deliver_at_time_strict
            {
                true => 0,
                false => world.config.settings.delayed_delivery_tick_time_millis,
            },
            topics,
            subs,
            published: Published::default(),
            next_key: 0,
            next_stream: 0,
            broken: false,
            receipts: 0,
            deliveries: 0,
            acks_confirmed: 0,
        };
        let actors = (0..rng.range(2, 5)).map(|_| Actor::default()).collect();
        let large = if rng.one_in(8) { 120_000 } else { 0 };
        let mut run = Run {
            world,
            rng,
            shared,
            actors,
            crashes: 0,
            seeks: 0,
            large,
        };
        // Subscriptions first: what nobody subscribes to may be trimmed.
        run.actors[0].connect(&mut run.world, &mut run.rng);
        run.rest();
        for sub in 0..run.shared.subs.len() {
            run.actors[0].subscribe(&mut run.world, &mut run.shared, 100 + sub as u64, sub);
        }
        run.rest();
        run.cut(0);
        run
    }

    /// One thing happens: mostly the world goes on, sometimes a client or fate does something.
    fn step(&mut self) {
        if self.rng.below(100) < 65 {
            let steps = self.world.steps();
            if let Some(step) = self.rng.pick(&steps) {
                let size = match self.rng.below(4) {
                    0 => self.rng.range(1, 40) as usize,
                    1 => self.rng.range(1, 5000) as usize,
                    _ => usize::MAX,
                };
                self.world.apply(step, size);
                self.after(step);
                return;
            }
        }
        match self.rng.below(400) {
            0 => self.crash(),
            1..=2 => self.rest(),
            3..=5 => {
                let shard = self.rng.below(u64::from(self.world.config.shards)) as u32;
                self.world.fill_disk(shard);
            }
            6..=12 => (0..self.world.config.shards).for_each(|shard| self.world.free_disk(shard)),
            13..=22 => {
                let ms = self.rng.range(1, 300);
                self.world.advance(ms);
            }
            23 => {
                let ms = self.rng.range(300, 31_000);
                self.world.advance(ms);
            }
            24..=27 => {
                let actor = self.rng.below(self.actors.len() as u64) as usize;
                self.cut(actor);
            }
            28..=33 => self.toggle_stuck(),
            34 if self.rng.one_in(3) => {
                let shard = self.rng.below(u64::from(self.world.config.shards)) as u32;
                self.world.break_disk(shard);
                self.shared.broken = true;
            }
            35..=37 => self.press(),
            _ => self.act(),
        }
        self.listen();
    }

    /// Memory is short on a core: it gives up some of its cache, or all.
    fn press(&mut self) {
        let core = self.rng.below(u64::from(self.world.config.cores)) as CoreId;
        let bytes = match self.rng.below(3) {
            0 => u64::MAX,
            _ => self.rng.range(1, 50_000),
        };
        let engine = self.world.engine_mut(core);
        let before = engine.buffer_memory();
        engine.shrink_cache(bytes);
        let after = engine.buffer_memory();
        assert_eq!(after.log, before.log, "what is not durable stays");
        let most = (before.cache as u64).saturating_sub(bytes);
        assert!(
            after.cache as u64 <= most,
            "{before:?} - {bytes} -> {after:?}"
        );
    }

    fn after(&mut self, step: Step) {
        match step {
            Step::Output(_) | Step::Close(_) | Step::Read(_) => self.listen(),
            _ => {}
        }
    }

    fn listen(&mut self) {
        // First who lost its connection: what it held may be somebody else's by now.
        for actor in &mut self.actors {
            actor.listen_before_loss(&mut self.world, &mut self.shared);
        }
        for actor in &mut self.actors {
            actor.listen(&mut self.world, &mut self.shared);
        }
    }

    fn toggle_stuck(&mut self) {
        let actor = self.rng.below(self.actors.len() as u64) as usize;
        if let Some(peer) = self.actors[actor].peer {
            self.world.conns[peer.0].stuck ^= true;
        }
    }

    fn cut(&mut self, actor: usize) {
        if let Some(peer) = self.actors[actor].peer {
            self.world.cut(peer);
            self.actors[actor].lost(&mut self.shared);
        }
    }

    /// A client says something.
    fn act(&mut self) {
        let Run {
            world,
            rng,
            shared,
            actors,
            seeks,
            large,
            ..
        } = self;
        let index = rng.below(actors.len() as u64) as usize;
        let actor = &mut actors[index];
        if actor.peer.is_none() {
            return actor.connect(world, rng);
        }
        let peer = actor.peer.unwrap();
        // A client that was not heard yet does not go on talking for ever.
        if world.unread(peer) > 100_000 + 3 * *large as usize {
            return;
        }
        let producers: Vec<u64> = actor.producers.keys().copied().collect();
        let consumers: Vec<u64> = actor.consumers.keys().copied().collect();
        match rng.below(100) {
            0..=34 => match rng.pick(&producers) {
                Some(id) if actor.producers[&id].failed => actor.close_producer(world, id),
                Some(id) => {
                    for _ in 0..rng.range(1, 6) {
                        let size = match rng.below(8) {
                            0 => rng.below(6000),
                            1 | 2 if *large > 0 => rng.below(*large),
                            _ => rng.below(100),
                        };
                        actor.send(world, shared, rng, id, size as usize);
                    }
                }
                None => actor.open_producer(
                    world,
                    shared,
                    1,
                    rng.below(shared.topics.len() as u64) as usize,
                ),
            },
            35..=37 => {
                let id = rng.range(1, 2);
                if actor.producers.contains_key(&id) {
                    actor.close_producer(world, id);
                }
                // Often right behind the close.
                if rng.one_in(2) {
                    actor.open_producer(
                        world,
                        shared,
                        id,
                        rng.below(shared.topics.len() as u64) as usize,
                    );
                    actor.send(world, shared, rng, id, 10);
                }
            }
            38..=45 => {
                let sub = rng.below(shared.subs.len() as u64) as usize;
                let id = rng.range(1, 4);
                if actor.consumers.contains_key(&id) {
                    if rng.one_in(3) {
                        actor.close_consumer(world, shared, id);
                    } else {
                        return;
                    }
                }
                actor.subscribe(world, shared, id, sub);
                if rng.one_in(2) {
                    actor.flow(world, id, rng.range(1, 50) as u32);
                }
            }
            46..=65 => {
                if let Some(id) = rng.pick(&consumers) {
                    actor.flow(world, id, rng.range(1, 30) as u32);
                }
            }
            66..=88 => {
                if let Some(id) = rng.pick(&consumers) {
                    let all = rng.one_in(3);
                    actor.ack(world, shared, rng, id, all);
                }
            }
            89..=93 => {
                if let Some(id) = rng.pick(&consumers) {
                    actor.redeliver(world, shared, rng, id);
                }
            }
            94..=95 => {
                if let Some(id) = rng.pick(&consumers) {
                    actor.close_consumer(world, shared, id);
                }
            }
            96 => {
                if let Some(id) = rng.pick(&consumers) {
                    *seeks += 1;
                    actor.seek(world, shared, rng, id);
                }
            }
            _ => actor.ask_stats(world, shared, false),
        }
    }

    /// What holds at any moment.
    fn check(&mut self) {
        let max_read = self.world.config.sizes.max;
        for index in 0..self.actors.len() {
            let Some(peer) = self.actors[index].peer else {
                continue;
            };
            // A frame on the wire is no shorter than 10 bytes; those that wait came with one read.
            assert!(
                self.world.waiting_frames(peer) <= max_read / 10,
                "frames wait beyond one read"
            );
            // Output: 8 MiB of answers at which reading stops, and a window of deliveries for each consumer.
            assert!(
                self.world.output_len(peer) < 16 << 20,
                "output grows without bound"
            );
        }
        assert!(self.world.retained.bytes() >= 0);
        for shard in 0..self.world.config.shards {
            assert!(
                self.world.log_queue(shard) <= self.world.config.lane.in_flight,
                "more chunks are given out than may be"
            );
        }
    }

    /// Lets everything that is under way end, disks and readers included, and checks what must hold then.
    fn rest(&mut self) {
        if self.shared.broken {
            // Nothing comes to rest on a broken disk: the broker is started anew.
            self.crash();
        }
        for shard in 0..self.world.config.shards {
            self.world.free_disk(shard);
        }
        for conn in &mut self.world.conns {
            conn.stuck = false;
        }
        self.settle();
        // Changes of active consumers take effect.
        self.world.advance(1000);
        self.settle();
        for index in 0..self.actors.len() {
            self.actors[index].ask_stats(&mut self.world, &self.shared, true);
        }
        for sub in &mut self.shared.subs {
            if sub.seeks_open > 0 {
                sub.skipped_numbers = self.shared.published.sent.len() as u64;
                sub.seeks_open = 0;
            }
        }
        self.settle();
        for sub in &mut self.shared.subs {
            sub.loose = false;
            sub.at_rest();
        }
        self.check_progress();
        self.check_books();
        for actor in &self.actors {
            assert!(actor.is_idle(), "no answer came: {actor:?}");
            if let Some(peer) = actor.peer {
                assert_eq!(
                    (self.world.unread(peer), self.world.waiting_frames(peer)),
                    (0, 0),
                    "a connection is held for ever"
                );
            }
        }
        for core in 0..self.world.config.cores {
            assert!(
                self.world.engine(core).is_quiet(),
                "core {core} is not quiet"
            );
            let (held, counts) = (
                self.world.engine(core).held(),
                self.world.engine(core).stats().counters.holds,
            );
            for (reason, held) in vela_limiter::Reason::ALL.into_iter().zip(held) {
                assert_eq!(
                    counts.holds(reason) - counts.releases(reason),
                    held,
                    "holds of {} do not pair up with their ends",
                    reason.name()
                );
            }
            assert!(counts.paused - counts.resumed <= self.world.engine(core).held_connections());
        }
        assert_eq!(self.world.mail_len(), 0);
        assert_eq!(
            self.world.retained_bytes(),
            0,
            "receive memory is alive, and nothing is under way"
        );
        assert_eq!(
            self.world.totals().counters.protocol_errors,
            0,
            "a well-behaved client was cut off"
        );
        let mine: usize = self.actors.iter().filter(|a| a.peer.is_some()).count();
        assert_eq!(self.world.totals().connections, mine);
        let producers: usize = self.actors.iter().map(|a| a.producers.len()).sum();
        let consumers: usize = self.actors.iter().map(|a| a.consumers.len()).sum();
        assert_eq!(
            (self.world.totals().producers, self.world.totals().consumers),
            (producers, consumers)
        );
    }

    /// Whoever has credit has got everything that nobody holds and nobody acknowledged.
    fn check_progress(&self) {
        let settings = &self.world.config.settings;
        let limits = settings
            .max_unacked_messages_per_consumer
            .max(settings.max_unacked_messages_per_subscription);
        if limits > 0 {
            return;
        }
        for (index, sub) in self.shared.subs.iter().enumerate() {
            let mut consumers = self
                .actors
                .iter()
                .flat_map(|actor| actor.consumers.values());
            // Up to `suspect` of what it has given may have been taken back.
            let has_credit = |c: &Consumer| {
                c.opening.is_none() && c.given > c.taken + c.suspect && (c.active || !sub.failover)
            };
            if sub.holders_unknown || !consumers.any(|c| c.sub == index && has_credit(c)) {
                continue;
            }
            // What the one that is served was sent is on its way through it, whoever else was sent it and heard of it later.
            let served: Vec<&Consumer> = self
                .actors
                .iter()
                .flat_map(|actor| actor.consumers.values())
                .filter(|c| c.sub == index && c.active && sub.failover)
                .collect();
            if let Some(keys) = &sub.keys {
                // Whose key it is, is the broker's to say: everybody has to have credit. What waits may use up the look-ahead.
                let mut consumers = self
                    .actors
                    .iter()
                    .flat_map(|actor| actor.consumers.values());
                let far = settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer == 0;
                if !consumers.all(|c| c.sub != index || has_credit(c)) || !(far || keys.are_free())
                {
                    continue;
                }
            }
            for (number, sent) in (0..).zip(&self.shared.published.sent) {
                if sent.topic == sub.topic && sent.receipt {
                    let at = sent.at.unwrap();
                    let late = settings.delayed_delivery_tick_time_millis / 8 + 1;
                    let waits = sub.shared && sent.due + late > self.world.now.wall_ms;
                    let drains = sub.keys.as_ref().is_some_and(|k| k.may_drain(number));
                    assert!(
                        drains
                            || waits
                            || !sub.is_loose_end(number, at)
                            || served.iter().any(|c| c.holds.contains_key(&at)),
                        "message {number} at {at:?} is held by nobody on {}, and a consumer has credit: {:?}",
                        sub.name,
                        (sub.shared, sub.failover, &sub.keys)
                    );
                }
            }
        }
    }

    /// At rest, the broker's books of every consumer say what its client knows: what it has granted, and what it was sent.
    fn check_books(&self) {
        let mut theirs: Vec<(u64, i64, i64)> = Vec::new();
        for core in 0..self.world.config.cores {
            let books = self.world.engine(core).audit().unwrap();
            theirs.extend(
                books
                    .iter()
                    .map(|b| (b.client.id, b.granted as i64, b.delivered as i64)),
            );
        }
        let consumers = self.actors.iter().flat_map(|actor| &actor.consumers);
        let mut ours: Vec<(u64, i64, i64)> =
            consumers.map(|(id, c)| (*id, c.given, c.taken)).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(theirs, ours, "the broker's books, and the clients'");
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.world.run_until_idle();
            self.listen();
            // Freed in between: a planted write failure may only just have struck.
            for shard in 0..self.world.config.shards {
                self.world.free_disk(shard);
            }
            if self.world.steps().is_empty() {
                return;
            }
        }
        panic!("clients and broker do not come to rest");
    }

    fn crash(&mut self) {
        self.shared.broken = false;
        self.crashes += 1;
        let rng = &mut self.rng;
        self.world.crash(|_, _| match rng.below(4) {
            0 => Kept::All,
            1 => Kept::Prefix(rng.below(20_000) as usize),
            2 => Kept::Prefix(4096 * rng.below(4) as usize),
            _ => Kept::Nothing,
        });
        for actor in &mut self.actors {
            actor.lost(&mut self.shared);
        }
        let published = self.shared.published.sent.len() as u64;
        for sub in &mut self.shared.subs {
            if sub.seeks_open > 0 {
                sub.skipped_numbers = published;
                sub.seeks_open = 0;
            }
            sub.loose = false;
            sub.holders_unknown = false;
            sub.at_rest();
            assert!(sub.held.is_empty());
        }
        assert_eq!(
            self.world.retained_bytes(),
            0,
            "receive memory outlives the engines"
        );
    }

    /// Faults end; everything is delivered and acknowledged, and nothing comes back.
    fn finish(&mut self) {
        self.rest();
        for actor in 0..self.actors.len() {
            self.cut(actor);
        }
        self.rest();
        self.drain();
        for (number, sent) in (0..).zip(&self.shared.published.sent) {
            for sub in self
                .shared
                .subs
                .iter()
                .filter(|sub| sub.topic == sent.topic)
            {
                if sent.receipt {
                    let at = sent.at.unwrap();
                    assert!(
                        !sub.owed(number, at),
                        "message {number} at {at:?} has its receipt and was never delivered on {}",
                        sub.name
                    );
                }
            }
        }
        self.crash();
        let before = self.shared.deliveries;
        self.drain();
        assert_eq!(
            self.shared.deliveries, before,
            "something comes back although all is acknowledged"
        );
    }

    /// One client subscribes to everything, takes all there is and acknowledges it.
    fn drain(&mut self) {
        self.cut(0);
        // Everything comes due.
        for _ in 0..=MAX_DELAY_MS / 5_000 {
            self.world.advance(5_000);
            self.settle();
        }
        self.actors[0].connect(&mut self.world, &mut self.rng);
        for sub in 0..self.shared.subs.len() {
            self.actors[0].subscribe(&mut self.world, &mut self.shared, 100 + sub as u64, sub);
            self.actors[0].flow(&mut self.world, 100 + sub as u64, 1_000_000);
        }
        for _ in 0..10_000 {
            self.rest();
            let mut any = false;
            for sub in 0..self.shared.subs.len() {
                let id = 100 + sub as u64;
                any |= !self.actors[0].consumers[&id].holds.is_empty();
                self.actors[0].ack(&mut self.world, &mut self.shared, &mut self.rng, id, true);
            }
            if !any {
                self.cut(0);
                self.rest();
                return;
            }
        }
        panic!("the backlog never ends");
    }
}

/// One run.
pub fn run(seed: u64, fault: Fault) -> Outcome {
    let mut run = Run::new(seed, fault);
    let steps = run.rng.range(200, 1500);
    for step in 0..steps {
        run.step();
        if step % 8 == 0 {
            run.check();
        }
    }
    run.finish();
    Outcome {
        steps: run.world.step_count,
        published: run.shared.published.sent.len() as u64,
        receipts: run.shared.receipts,
        deliveries: run.shared.deliveries,
        acks: run.shared.acks_confirmed,
        crashes: run.crashes,
        checkpoints: run.world.checkpoints_done,
        dropped_segments: run.world.dropped_segments,
        reads: run.world.reads_done,
        seeks: run.seeks,
        stats: run.actors.iter().map(|a| a.stats_seen).sum(),
        struck: run.world.struck,
    }
}
