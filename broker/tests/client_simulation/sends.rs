//! Sends of several producers over a bad network: each has one end, what it carries comes back, the order of each producer is kept, and with
//! deduplication nothing is lost and nothing is there twice.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use vela_client::core::consumer::{ConsumerConfig, ConsumerEvent};
use vela_client::core::{
    Batching, ConsumerKey, Event, MILLIS, MachineConfig, ProducerConfig, ProducerKey, Ticket,
};
use vela_client::{Error, OutgoingMessage, StartPosition};
use vela_proto::CompressionType;

use crate::harness::WorldConfig;
use crate::network::{Network, Weather};
use crate::rng::{Rng, seeds};

/// What a send carries: it counts as long as it exists.
#[derive(Debug)]
struct Token {
    producer: usize,
    number: u64,
    gone: Rc<Cell<bool>>,
    alive: Rc<Cell<i64>>,
}

impl Token {
    fn new(producer: usize, number: u64, alive: &Rc<Cell<i64>>) -> (Token, Rc<Cell<bool>>) {
        alive.set(alive.get() + 1);
        let gone = Rc::new(Cell::new(false));
        let token = Token {
            producer,
            number,
            gone: gone.clone(),
            alive: alive.clone(),
        };
        (token, gone)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

impl Ticket for Token {
    fn abandoned(&self) -> bool {
        self.gone.get()
    }
}

struct Writer {
    key: ProducerKey,
    topic: usize,
    sent: u64,
    /// Ends by number.
    ends: BTreeMap<u64, Result<(), Error>>,
    waiting: BTreeMap<u64, Rc<Cell<bool>>>,
    opened: bool,
    failed: Option<Error>,
}

struct Run {
    network: Network<Token>,
    writers: Vec<Writer>,
    topics: Vec<String>,
    alive: Rc<Cell<i64>>,
    got: BTreeMap<ConsumerKey, Vec<Vec<u8>>>,
    cancelled: u64,
}

fn compression(rng: &mut Rng) -> CompressionType {
    let all = [
        CompressionType::None,
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ];
    rng.pick(&all).unwrap()
}

impl Run {
    fn new(seed: u64, weather: Weather, send_timeout: u64) -> Run {
        let mut rng = Rng::new(seed ^ 0xc11e);
        let mut world = WorldConfig::default();
        world.cores = rng.range(1, 3) as u16;
        world.shards = u32::from(world.cores) * rng.range(1, 2) as u32;
        world.settings.broker_deduplication_enabled = true;
        world.settings.max_message_size = 16 << 10;
        world.settings.max_pending_publish_requests_per_connection = rng.range(2, 1_000) as u32;
        world.lane.chunk_bytes = 4096 << rng.below(4);
        let client = MachineConfig {
            seed,
            connections_per_broker: rng.range(1, 3),
            ..MachineConfig::default()
        };
        let mut network = Network::new(world, client, rng, weather);
        let topics: Vec<String> = (0..network.rng.range(1, 3))
            .map(|i| format!("persistent://public/default/c{i}-{seed}"))
            .collect();
        let mut writers = Vec::new();
        for number in 0..network.rng.range(1, 4) {
            let rng = &mut network.rng;
            let topic = rng.below(topics.len() as u64) as usize;
            let chunking = rng.one_in(4);
            let batching = (!chunking && !rng.one_in(4)).then(|| Batching {
                max_messages: rng.range(1, 50) as usize,
                max_bytes: rng.range(100, 10_000) as usize,
                max_publish_delay: rng.range(1, 10) * MILLIS,
                by_key: rng.one_in(3),
            });
            let config = ProducerConfig {
                name: Some(format!("writer-{number}")),
                batching,
                chunking,
                compression: compression(rng),
                send_timeout,
                ..ProducerConfig::new(topics[topic].clone())
            };
            let now = network.now;
            writers.push(Writer {
                key: network.machine.open_producer(now, config).unwrap(),
                topic,
                sent: 0,
                ends: BTreeMap::new(),
                waiting: BTreeMap::new(),
                opened: false,
                failed: None,
            });
        }
        Run {
            network,
            writers,
            topics,
            alive: Rc::new(Cell::new(0)),
            got: BTreeMap::new(),
            cancelled: 0,
        }
    }

    fn send(&mut self) {
        let rng = &mut self.network.rng;
        let index = rng.below(self.writers.len() as u64) as usize;
        let writer = &mut self.writers[index];
        if writer.failed.is_some() {
            return;
        }
        let number = writer.sent;
        let mut payload = format!("{index} {number} ").into_bytes();
        let more = if rng.one_in(30) { 40_000 } else { 300 };
        payload.resize(payload.len() + rng.below(more) as usize, b'x');
        let mut message = OutgoingMessage::new(payload);
        if rng.one_in(2) {
            message.key = Some(vela_client::MessageKey::text(format!("k{}", rng.below(3))));
        }
        if rng.one_in(4) {
            message.properties.push(("n".into(), number.to_string()));
        }
        let (token, gone) = Token::new(index, number, &self.alive);
        let now = self.network.now;
        match self.network.machine.send(now, writer.key, message, token) {
            Ok(()) => {
                writer.sent += 1;
                writer.waiting.insert(number, gone);
            }
            Err(refused) => {
                assert!(
                    matches!(refused.error, Error::MessageTooLarge { .. }),
                    "{:?}",
                    refused.error
                );
                writer.sent += 1;
                writer.ends.insert(number, Err(refused.error));
            }
        }
    }

    fn cancel(&mut self) {
        let rng = &mut self.network.rng;
        let index = rng.below(self.writers.len() as u64) as usize;
        let writer = &self.writers[index];
        let waiting: Vec<_> = writer.waiting.values().collect();
        if let Some(gone) = rng.pick(&waiting) {
            gone.set(true);
            self.cancelled += 1;
            if rng.one_in(2) {
                self.network.machine.sweep(None);
            }
        }
    }

    fn hear(&mut self) {
        while let Some(event) = self.network.events.pop_front() {
            match event {
                Event::Sends(done) => {
                    let key = done.producer;
                    for (token, result) in done.each() {
                        let writer = &mut self.writers[token.producer];
                        assert_eq!(writer.key, key);
                        let end = writer.ends.insert(token.number, result.map(|_| ()));
                        assert!(end.is_none(), "send {} has two ends", token.number);
                        writer.waiting.remove(&token.number);
                    }
                }
                Event::ProducerOpened { producer, .. } => {
                    let writer = self.writers.iter_mut().find(|w| w.key == producer);
                    writer.unwrap().opened = true;
                }
                Event::ProducerFailed { producer, error } => {
                    let writer = self.writers.iter_mut().find(|w| w.key == producer);
                    writer.unwrap().failed = Some(error);
                }
                Event::Consumer {
                    consumer,
                    event: ConsumerEvent::MessagesReady,
                } => self.take(consumer),
                Event::ConsumerFailed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    }

    fn take(&mut self, consumer: ConsumerKey) {
        let now = self.network.now;
        let got = self.got.entry(consumer).or_default();
        self.network
            .machine
            .with_consumer(now, consumer, |consumer, wire| {
                while let Some(message) = consumer.take(now, wire) {
                    got.push(message.payload.to_vec());
                }
                consumer.audit().unwrap();
            });
    }

    /// Traffic, then quiet, then what is in the topics.
    fn go(&mut self, steps: u64) {
        for _ in 0..steps {
            let rng = &mut self.network.rng;
            match rng.below(20) {
                0..4 => self.send(),
                4 if rng.one_in(5) => self.cancel(),
                5 if rng.one_in(20) => {
                    let writer = self.network.rng.below(self.writers.len() as u64) as usize;
                    // A producer that failed is forgotten, and says so.
                    drop(self.network.machine.flush(self.writers[writer].key));
                }
                6 if rng.one_in(4) => {
                    let ms = rng.below(30);
                    self.network.advance(ms);
                }
                _ => {
                    self.network.step();
                }
            }
            self.hear();
        }
        self.network.weather = Weather::FINE;
        self.quiet();
        self.read();
        self.check();
    }

    fn quiet(&mut self) {
        for patience in 0.. {
            assert!(
                patience < 2_000_000,
                "sends without an end: {:?}",
                self.open_ends()
            );
            if self.writers.iter().all(|w| w.waiting.is_empty()) {
                break;
            }
            if !self.network.step() {
                self.network.advance(1);
            } else if self.network.rng.one_in(100) {
                self.network.advance(5);
            }
            self.hear();
        }
        assert_eq!(self.alive.get(), 0, "what the sends carried");
        for writer in &self.writers {
            assert_eq!(self.network.machine.pending(writer.key), 0);
            assert_eq!(writer.ends.len() as u64, writer.sent);
        }
    }

    fn open_ends(&self) -> Vec<(usize, Vec<u64>)> {
        let waiting = |w: &Writer| w.waiting.keys().copied().take(5).collect();
        self.writers.iter().map(waiting).enumerate().collect()
    }

    /// Everything in the topics, by the client's own consumers.
    fn read(&mut self) {
        for topic in self.topics.clone() {
            let mut config = ConsumerConfig::new(topic.as_str(), "check");
            config.start = StartPosition::Earliest;
            let now = self.network.now;
            let consumer = self.network.machine.open_consumer(now, config);
            self.got.insert(consumer, Vec::new());
        }
        // Until nothing has come for a while.
        let mut silence = 0;
        while silence < 300 {
            if self.network.step() {
                silence = 0;
            } else {
                self.network.advance(20);
                silence += 1;
            }
            self.hear();
        }
    }

    fn check(&self) {
        let topics = self.got.values();
        for (topic, got) in topics.enumerate() {
            let mut last: BTreeMap<usize, u64> = BTreeMap::new();
            let mut all = BTreeSet::new();
            for payload in got {
                let text = String::from_utf8_lossy(payload);
                let mut words = text.split(' ');
                let writer: usize = words.next().unwrap().parse().unwrap();
                let number: u64 = words.next().unwrap().parse().unwrap();
                assert!(
                    all.insert((writer, number)),
                    "{writer} {number} is there twice"
                );
                let by_key = self.by_key(writer);
                let before = last.insert(writer, number);
                assert!(
                    by_key || before.is_none_or(|before| before < number),
                    "{writer}: {number} behind {before:?}"
                );
            }
            for (index, writer) in self.writers.iter().enumerate() {
                for (number, end) in &writer.ends {
                    if writer.topic == topic && end.is_ok() {
                        assert!(all.contains(&(index, *number)), "{index} {number} is lost");
                    }
                }
            }
        }
    }

    /// Batches by key are sent one behind the other, so only each key's order is kept.
    fn by_key(&self, writer: usize) -> bool {
        self.network
            .machine
            .producer_config(self.writers[writer].key)
            .is_some_and(|config| config.batching.is_some_and(|batching| batching.by_key))
    }

    fn ends(&self) -> (usize, usize) {
        let all = self.writers.iter().flat_map(|w| w.ends.values());
        let (good, bad): (Vec<_>, Vec<_>) = all.partition(|end| end.is_ok());
        (good.len(), bad.len())
    }
}

#[test]
fn in_fine_weather_everything_arrives_in_order() {
    let mut good = 0;
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut run = Run::new(seed, Weather::FINE, 0);
        run.go(1_500);
        for writer in &run.writers {
            assert!(
                writer.opened && writer.failed.is_none(),
                "{:?}",
                writer.failed
            );
            for (number, end) in &writer.ends {
                if let Err(error) = end {
                    // Cancelled, or larger than may be.
                    let fine = matches!(error, Error::Closed(_) | Error::MessageTooLarge { .. });
                    assert!(fine, "{number}: {error}");
                }
            }
        }
        good += run.ends().0;
    }
    assert!(good > 1_000, "{good} sends succeeded");
}

#[test]
fn over_a_bad_network_nothing_is_lost_or_doubled() {
    let (mut good, mut cut, mut crashed) = (0, 0, 0);
    for seed in seeds(60) {
        println!("seed {seed}");
        let weather = Weather {
            cuts: 150,
            refusals: 4,
            crashes: if seed % 3 == 0 { 1_500 } else { 0 },
        };
        let mut run = Run::new(seed, weather, 0);
        run.go(3_000);
        good += run.ends().0;
        cut += run.network.cut;
        crashed += run.network.crashed;
    }
    println!("{good} sends over {cut} cuts and {crashed} crashes");
    assert!(good > 1_000 && cut > 60);
}

#[test]
fn sends_that_time_out_end_once_and_give_back_what_they_hold() {
    let mut bad = 0;
    for seed in seeds(30) {
        println!("seed {seed}");
        let weather = Weather {
            cuts: 60,
            refusals: 2,
            crashes: 0,
        };
        let mut run = Run::new(seed ^ 0x7177, weather, 40 * MILLIS);
        run.go(3_000);
        bad += run.ends().1;
    }
    assert!(bad > 0, "none timed out");
}
