//! A broker in small, and what must hold whatever happens.
//!
//! Commands travel in two queues that move only when told, so everything that can cross does. A lost connection empties both.

mod broker;
mod cases;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::build::Damage;
use super::*;
use broker::{Broker, Kind, Stored, ToClient};
use cases::{Step, case};

/// What the application knows of a message.
#[derive(Debug, Default)]
struct Known {
    taken: u32,
    /// Acknowledged and told so, since the last seek.
    confirmed: bool,
    ended: bool,
}

struct World {
    broker: Broker,
    bench: Bench,
    to_broker: VecDeque<BaseCommand>,
    hand: Vec<ReceivedMessage>,
    known: BTreeMap<(u64, i32), Known>,
    sent: BTreeMap<u64, u32>,
    calls: BTreeMap<Call, Vec<MessageId>>,
    next_call: Call,
    /// Entry from which everything must have arrived in the end.
    from: u64,
    seeks: usize,
    fail_dead_letters: bool,
}

impl World {
    fn new(config: ConsumerConfig, entries: Vec<Kind>, message_permits: bool) -> Self {
        let mut bench = Bench::new(|old| *old = config.clone());
        bench.wire.sent.clear();
        // Begin anew, with the model on the other side.
        bench.consumer = Consumer::new(7, config.clone());
        let mut world = Self {
            broker: Broker {
                config,
                message_permits,
                entries: entries.into_iter().map(Stored::new).collect(),
                read: 0,
                pending: BTreeSet::new(),
                replay: BTreeSet::new(),
                attached: false,
                balance: 0,
                granted: 0,
                charged: 0,
                epoch: 0,
                to_client: VecDeque::new(),
            },
            bench,
            to_broker: VecDeque::new(),
            hand: Vec::new(),
            known: BTreeMap::new(),
            sent: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            from: 0,
            seeks: 0,
            fail_dead_letters: false,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let now = self.bench.now;
        self.bench.consumer.subscribe(now, &mut self.bench.wire);
        self.settle();
    }

    /// Moves what the consumer sent to the network, and looks at what it says.
    fn settle(&mut self) {
        self.to_broker.extend(self.bench.wire.sent.drain(..));
        self.bench.audit();
        for event in self.bench.events() {
            match event {
                ConsumerEvent::Answer { call, result } => {
                    let ids = self.calls.remove(&call);
                    if let Some(ids) = ids {
                        result.unwrap();
                        for id in ids {
                            self.known_of(&id).confirmed = true;
                        }
                    }
                }
                ConsumerEvent::DeadLetters(messages) => {
                    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
                    self.hand.retain(|message| !ids.contains(&message.id));
                    self.fail_dead_letters = !self.fail_dead_letters;
                    let (now, bench) = (self.bench.now, &mut self.bench);
                    if self.fail_dead_letters {
                        bench.consumer.dead_letters_failed(&ids, &mut bench.wire);
                    } else {
                        bench.consumer.acknowledge(now, &ids, None, &mut bench.wire);
                        for id in ids {
                            self.known_of(&id).ended = true;
                        }
                    }
                    self.to_broker.extend(self.bench.wire.sent.drain(..));
                }
                _ => {}
            }
        }
    }

    fn known_of(&mut self, id: &MessageId) -> &mut Known {
        self.known.entry((id.entry, id.batch_index)).or_default()
    }

    fn receive(&mut self) -> bool {
        let Some(next) = self.broker.to_client.pop_front() else {
            return false;
        };
        let now = self.bench.now;
        match next {
            ToClient::Message(command, data) => {
                *self.sent.entry(command.message_id.entry_id).or_default() += 1;
                let bench = &mut self.bench;
                bench
                    .consumer
                    .handle_message(now, command, data, &mut bench.wire)
                    .unwrap();
            }
            ToClient::Reply(request_id, result) => {
                let bench = &mut self.bench;
                bench
                    .consumer
                    .handle_answer(now, request_id, *result, &mut bench.wire);
            }
            ToClient::Closed => {
                self.bench.consumer.detached(now, Detached::ClosedByBroker);
                self.connect();
            }
        }
        self.settle();
        true
    }

    fn take(&mut self) -> bool {
        let Some(message) = self.bench.take() else {
            self.settle();
            return false;
        };
        self.settle();
        let entry = message.id.entry;
        let sent = self.sent.get(&entry).copied().unwrap_or(0);
        let receipts = self.broker.config.ack_receipt;
        let reader = !self.broker.config.durable;
        let seeks = self.seeks;
        let known = self.known_of(&message.id);
        known.taken += 1;
        assert!(
            known.taken <= sent,
            "{} was taken {} times and sent {sent} times",
            message.id,
            known.taken
        );
        assert!(
            !(receipts && known.confirmed),
            "{} came again after its acknowledgement was answered",
            message.id
        );
        if reader {
            // As a reader does, which keeps its place by itself.
            known.ended = true;
            let again = known.taken > 1 && seeks == 0;
            assert!(!again, "{} was read twice", message.id);
            let bench = &mut self.bench;
            bench
                .consumer
                .acknowledge_cumulative(bench.now, &message.id, None, &mut bench.wire);
            self.settle();
            return true;
        }
        self.hand.push(message);
        true
    }

    fn ack(&mut self, index: usize) {
        if self.hand.is_empty() {
            return;
        }
        let message = self.hand.swap_remove(index % self.hand.len());
        self.next_call += 1;
        let call = self.next_call;
        self.calls.insert(call, vec![message.id]);
        self.known_of(&message.id).ended = true;
        self.bench.ack(&message.id, Some(call));
        self.settle();
    }

    fn lose_connection(&mut self) {
        self.to_broker.clear();
        self.broker.to_client.clear();
        self.broker.detach();
        let now = self.bench.now;
        self.bench.consumer.detached(now, Detached::ConnectionLost);
        self.connect();
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Dispatch(n) => (0..n).for_each(|_| {
                self.broker.dispatch();
            }),
            Step::BrokerReads(n) => (0..n).for_each(|_| {
                if let Some(command) = self.to_broker.pop_front() {
                    self.broker.handle(command);
                }
            }),
            Step::ClientReads(n) => (0..n).for_each(|_| {
                self.receive();
            }),
            Step::Take(n) => (0..n).for_each(|_| {
                self.take();
            }),
            Step::Ack(index) => self.ack(usize::from(index)),
            Step::AckCumulative(index) => {
                if self.broker.config.subscription_type.is_shared() || self.hand.is_empty() {
                    return;
                }
                let id = self.hand[usize::from(index) % self.hand.len()].id;
                let through = (id.entry, id.batch_index);
                // All before it were taken, or are acknowledged with it unseen, as the application wants.
                self.hand
                    .retain(|m| (m.id.entry, m.id.batch_index) > through);
                self.from = self.from.max(id.entry + 1);
                let bench = &mut self.bench;
                bench
                    .consumer
                    .acknowledge_cumulative(bench.now, &id, None, &mut bench.wire);
                // The rest of its own batch stays to be checked by what is in hand or comes.
                self.settle();
            }
            Step::Nack(index) => {
                if self.hand.is_empty() {
                    return;
                }
                let message = self.hand.swap_remove(usize::from(index) % self.hand.len());
                let (now, count) = (self.bench.now, message.redelivery_count);
                self.bench
                    .consumer
                    .negative_acknowledge(now, &message.id, count);
            }
            Step::RedeliverAll => {
                let bench = &mut self.bench;
                bench.consumer.redeliver_unacknowledged(&mut bench.wire);
                self.settle();
            }
            Step::Wait(millis) => {
                self.bench.advance(u64::from(millis) * MILLI);
                self.settle();
            }
            Step::LoseConnection => self.lose_connection(),
            Step::BrokerCloses => {
                if self.broker.attached {
                    self.broker.detach();
                    self.broker.to_client.push_back(ToClient::Closed);
                }
            }
            Step::Seek(to) => {
                // Not into the middle of a chunked message: that one would rightly not come.
                let kinds: Vec<_> = self.broker.entries.iter().map(|e| e.kind).collect();
                let mut entry = usize::from(to) % kinds.len();
                let begun = |entry: usize, number: u32| {
                    let mut before = kinds.iter().take(entry);
                    before.any(|kind| matches!(kind, Kind::Chunk(n, ..) if *n == number))
                };
                let splits = |entry: usize| {
                    let mut rest = kinds.iter().skip(entry);
                    rest.any(|kind| matches!(kind, Kind::Chunk(n, ..) if begun(entry, *n)))
                };
                while splits(entry) {
                    entry -= 1;
                }
                self.seek(entry as u64);
            }
            Step::Pause => self.bench.consumer.pause(),
            Step::Resume => {
                let bench = &mut self.bench;
                bench.consumer.resume(&mut bench.wire);
                self.settle();
            }
            Step::LastId => {
                let bench = &mut self.bench;
                bench
                    .consumer
                    .last_message_id(bench.now, Call::MAX, &mut bench.wire);
                self.settle();
            }
        }
    }

    fn seek(&mut self, entry: u64) {
        let id = MessageId {
            batch_index: -1,
            batch_size: 0,
            ..MessageId::entry(1, entry)
        };
        let target = StartPosition::at(id);
        self.next_call += 1;
        self.hand.clear();
        let (now, call, bench) = (self.bench.now, self.next_call, &mut self.bench);
        bench.consumer.seek(now, target, call, &mut bench.wire);
        self.settle();
        // Answered or not, nothing acknowledged before counts any more.
        self.calls.clear();
        self.known.clear();
        self.sent.clear();
        self.from = entry;
        self.seeks += 1;
    }

    /// Lets everything happen that can, until nothing does.
    fn drain(&mut self) {
        self.run(Step::Resume);
        for _ in 0..200 {
            let mut moved = true;
            while moved {
                moved = false;
                while let Some(command) = self.to_broker.pop_front() {
                    self.broker.handle(command);
                    moved = true;
                }
                while self.broker.dispatch() {}
                while self.receive() {
                    moved = true;
                }
                while self.take() {
                    moved = true;
                }
                // A take that found nothing may have asked for more.
                moved |= !self.to_broker.is_empty();
                while !self.hand.is_empty() {
                    self.ack(0);
                    moved = true;
                }
            }
            self.run(Step::Wait(u16::MAX));
        }
    }

    fn check_drained(&self) {
        let audit = self.bench.audit();
        let window = u64::from(self.broker.config.receiver_queue_size.max(1));
        assert_eq!(audit.held, 0);
        assert!(self.calls.is_empty(), "unanswered: {:?}", self.calls);
        assert_eq!(audit.received, self.broker.charged, "charged");
        assert_eq!(audit.granted, self.broker.granted, "granted");
        // What the broker has, and what will come with the next FLOW, is the window again.
        assert_eq!(self.broker.balance + audit.pending as i64, window as i64);
        for (entry, stored) in self.broker.entries.iter().enumerate() {
            // What a reader passed by is not kept for it anyway.
            let left = self.broker.config.durable && !stored.left.is_empty();
            assert!(!left, "entry {entry} is left: {stored:?}");
            let indexes = match stored.kind {
                Kind::Single => vec![-1],
                Kind::Batch(size) => (0..size as i32).collect(),
                // All but the last, which is cut.
                Kind::Bad(size, Damage::Batch) => (0..size as i32 - 1).collect(),
                Kind::Chunk(_, index, of) if index + 1 == of => vec![-1],
                Kind::Bad(..) | Kind::Chunk(..) => vec![],
            };
            for index in indexes {
                let key = (entry as u64, index);
                let ended = self.known.get(&key).is_some_and(|known| known.ended);
                assert!(
                    ended || (entry as u64) < self.from,
                    "{key:?} was lost, from {}",
                    self.from
                );
            }
        }
    }
}

/// Found by the test below: of the acknowledgement of a message whose chunks lie behind one that was left out, one chunk is lost with the
/// connection and the other is sent again. What is left can never be whole.
#[test]
fn what_is_left_of_an_acknowledged_message_ends_in_time() {
    let mut config = ConsumerConfig::new("t", "s");
    config.start = StartPosition::Earliest;
    config.receiver_queue_size = 10;
    config.ack_group_time = 100 * MILLI;
    let entries = vec![
        Kind::Chunk(2, 0, 2),
        Kind::Chunk(1, 0, 2),
        Kind::Chunk(1, 1, 2),
        Kind::Batch(9),
        Kind::Chunk(2, 1, 2),
        Kind::Single,
    ];
    let mut world = World::new(config, entries, true);
    for step in [
        Step::BrokerReads(1),
        Step::ClientReads(1),
        Step::Pause,
        Step::BrokerReads(1),
        Step::Dispatch(4),
        Step::ClientReads(4),
        Step::Take(1),
        Step::AckCumulative(0),
        Step::Take(2),
        Step::Nack(0),
        Step::BrokerCloses,
        Step::RedeliverAll,
        Step::AckCumulative(0),
        Step::Dispatch(1),
    ] {
        world.run(step);
    }
    world.drain();
    world.check_drained();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// All permits return, nothing is lost, nothing comes twice without the broker having sent it twice, nothing comes again after
    /// its acknowledgement was answered.
    #[test]
    fn whatever_happens((config, message_permits, entries, steps) in case()) {
        let mut world = World::new(config, entries, message_permits);
        for step in steps {
            world.run(step);
        }
        world.drain();
        world.check_drained();
    }
}
