//! A broker in small, and what must hold whatever happens.
//!
//! Commands travel in two queues that move only when told, so everything that can cross does. A lost connection empties both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use proptest::prelude::*;
use vela_proto::CommandGetLastMessageIdResponse;

use super::build::{self, Damage};
use super::config::SECOND;
use super::*;

/// What an entry of the topic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Batch(u32),
    Bad(u32, Damage),
    /// Message number, chunk, of how many.
    Chunk(u32, i32, i32),
}

#[derive(Debug, Clone)]
struct Stored {
    kind: Kind,
    /// What the subscription has not acknowledged.
    left: AckSet,
    deliveries: u32,
    data: Bytes,
}

impl Stored {
    fn new(kind: Kind) -> Self {
        let (size, data) = match kind {
            Kind::Single => (1, build::single("x")),
            Kind::Batch(size) => (size, build::batch(size)),
            Kind::Bad(size, damage) => (size, build::damaged(size, damage)),
            Kind::Chunk(number, index, of) => {
                let uuid = format!("u{number}");
                (1, build::chunk(&uuid, index, of, of as usize * 2, b"ab"))
            }
        };
        Self {
            kind,
            left: AckSet::full(size),
            deliveries: 0,
            data,
        }
    }

    fn size(&self) -> u32 {
        match self.kind {
            Kind::Batch(size) | Kind::Bad(size, _) => size,
            _ => 1,
        }
    }
}

#[derive(Debug)]
enum ToClient {
    Message(CommandMessage, Bytes),
    Reply(u64, Box<Result<BaseCommand, Error>>),
    Closed,
}

/// The broker's side.
struct Broker {
    config: ConsumerConfig,
    message_permits: bool,
    entries: Vec<Stored>,
    /// Next entry to read.
    read: usize,
    pending: BTreeSet<usize>,
    replay: BTreeSet<usize>,
    attached: bool,
    balance: i64,
    granted: u64,
    charged: u64,
    epoch: u64,
    to_client: VecDeque<ToClient>,
}

impl Broker {
    fn attach(&mut self) {
        self.attached = true;
        (self.balance, self.granted, self.charged) = (0, 0, 0);
    }

    fn detach(&mut self) {
        self.attached = false;
        let pending = std::mem::take(&mut self.pending);
        self.replay.extend(pending);
    }

    fn acknowledge(&mut self, entry: usize, set: &[i64]) {
        let index_ack = self.config.batch_index_ack;
        let Some(stored) = self.entries.get_mut(entry) else {
            return;
        };
        if set.is_empty() {
            stored.left = AckSet::from_words(&[0]);
        } else if index_ack {
            stored.left.intersect(&AckSet::from_words(set));
        }
        if stored.left.is_empty() {
            self.pending.remove(&entry);
            self.replay.remove(&entry);
            stored.deliveries = 0;
        }
    }

    fn handle(&mut self, command: BaseCommand) {
        if let Some(subscribe) = command.subscribe {
            self.attach();
            self.epoch = subscribe.consumer_epoch();
            self.reply(subscribe.request_id, success());
            return;
        }
        // An acknowledgement of a consumer that is not there is not answered.
        if !self.attached {
            let request_id = match (&command.seek, &command.get_last_message_id) {
                (Some(seek), _) => seek.request_id,
                (_, Some(last)) => last.request_id,
                _ => return,
            };
            let error = Error::Broker {
                code: vela_proto::ServerError::MetadataError,
                message: "Consumer not found".to_owned(),
            };
            self.to_client
                .push_back(ToClient::Reply(request_id, Box::new(Err(error))));
            return;
        }
        if let Some(flow) = command.flow {
            assert!(flow.message_permits > 0);
            self.balance += i64::from(flow.message_permits);
            self.granted += u64::from(flow.message_permits);
        } else if let Some(ack) = command.ack {
            for id in &ack.message_id {
                let entry = id.entry_id as usize;
                if ack.ack_type == 0 {
                    self.acknowledge(entry, &id.ack_set);
                } else {
                    (0..entry).for_each(|before| self.acknowledge(before, &[]));
                    self.acknowledge(entry, &id.ack_set);
                }
            }
            if let Some(request_id) = ack.request_id {
                self.reply(request_id, success());
            }
        } else if let Some(again) = command.redeliver_unacknowledged_messages {
            self.epoch = self.epoch.max(again.consumer_epoch());
            let all = again.message_ids.is_empty();
            let named: BTreeSet<_> = again
                .message_ids
                .iter()
                .map(|id| id.entry_id as usize)
                .collect();
            for entry in std::mem::take(&mut self.pending) {
                if all || named.contains(&entry) {
                    self.replay.insert(entry);
                    self.entries[entry].deliveries += 1;
                } else {
                    self.pending.insert(entry);
                }
            }
        } else if let Some(seek) = command.seek {
            let target = seek.message_id.unwrap().entry_id;
            let target = if target == u64::MAX {
                0
            } else {
                target as usize
            };
            for (entry, stored) in self.entries.iter_mut().enumerate() {
                stored.deliveries = 0;
                stored.left = if entry < target {
                    AckSet::from_words(&[0])
                } else {
                    AckSet::full(stored.size())
                };
            }
            self.detach();
            self.replay.clear();
            self.read = target;
            self.to_client.push_back(ToClient::Closed);
            self.reply(seek.request_id, success());
        } else if let Some(last) = command.get_last_message_id {
            let mut answer = success();
            answer.get_last_message_id_response = Some(CommandGetLastMessageIdResponse {
                request_id: last.request_id,
                last_message_id: MessageIdData {
                    ledger_id: 1,
                    entry_id: self.entries.len() as u64 - 1,
                    ..MessageIdData::default()
                },
                consumer_mark_delete_position: None,
            });
            self.reply(last.request_id, answer);
        }
    }

    fn reply(&mut self, request_id: u64, command: BaseCommand) {
        self.to_client
            .push_back(ToClient::Reply(request_id, Box::new(Ok(command))));
    }

    /// Sends one entry, if it may.
    fn dispatch(&mut self) -> bool {
        if !self.attached || self.balance <= 0 {
            return false;
        }
        let entry = match self.replay.pop_first() {
            Some(entry) => entry,
            None if self.read < self.entries.len() => {
                self.read += 1;
                self.read - 1
            }
            None => return false,
        };
        let shared = self.config.subscription_type.is_shared();
        let stored = &self.entries[entry];
        if stored.left.is_empty() {
            return true;
        }
        let charge = stored.left.count();
        let partial = charge < stored.size();
        self.balance -= i64::from(charge);
        self.charged += u64::from(charge);
        self.pending.insert(entry);
        let command = CommandMessage {
            consumer_id: 7,
            message_id: MessageIdData {
                ledger_id: 1,
                entry_id: entry as u64,
                ..MessageIdData::default()
            },
            redelivery_count: shared.then_some(stored.deliveries),
            ack_set: if partial {
                stored.left.to_words()
            } else {
                Vec::new()
            },
            consumer_epoch: (!shared).then_some(self.epoch),
            message_permits: self.message_permits.then_some(charge),
        };
        self.to_client
            .push_back(ToClient::Message(command, stored.data.clone()));
        true
    }
}

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

#[derive(Debug, Clone)]
enum Step {
    Dispatch(u8),
    BrokerReads(u8),
    ClientReads(u8),
    Take(u8),
    Ack(u8),
    AckCumulative(u8),
    Nack(u8),
    RedeliverAll,
    Wait(u16),
    LoseConnection,
    BrokerCloses,
    Seek(u8),
    Pause,
    Resume,
    LastId,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (1u8..8).prop_map(Step::Dispatch),
        20 => (1u8..8).prop_map(Step::BrokerReads),
        20 => (1u8..8).prop_map(Step::ClientReads),
        20 => (1u8..12).prop_map(Step::Take),
        15 => any::<u8>().prop_map(Step::Ack),
        3 => any::<u8>().prop_map(Step::AckCumulative),
        5 => any::<u8>().prop_map(Step::Nack),
        1 => Just(Step::RedeliverAll),
        8 => (1u16..2000).prop_map(Step::Wait),
        1 => Just(Step::LoseConnection),
        1 => Just(Step::BrokerCloses),
        1 => any::<u8>().prop_map(Step::Seek),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => Just(Step::LastId),
    ]
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
                let entries = &self.broker.entries;
                let mut entry = usize::from(to) % entries.len();
                while matches!(entries[entry].kind, Kind::Chunk(_, index, _) if index > 0) {
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
            assert!(stored.left.is_empty(), "entry {entry} is left: {stored:?}");
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

fn kinds(message_permits: bool) -> impl Strategy<Value = Vec<Kind>> {
    let damage = if message_permits {
        prop_oneof![
            Just(Damage::Payload),
            Just(Damage::Metadata),
            Just(Damage::MetadataSigned),
            Just(Damage::Compression),
            Just(Damage::Batch),
        ]
        .boxed()
    } else {
        // Without the field a broker's charge for unreadable metadata cannot be known.
        prop_oneof![
            Just(Damage::Payload),
            Just(Damage::Compression),
            Just(Damage::Batch)
        ]
        .boxed()
    };
    let one = prop_oneof![
        4 => Just(vec![Kind::Single]),
        4 => (1u32..80).prop_map(|size| vec![Kind::Batch(size)]),
        2 => (2u32..20, damage).prop_map(|(size, damage)| vec![Kind::Bad(size, damage)]),
        2 => (2i32..5).prop_map(|of| (0..of).map(|index| Kind::Chunk(0, index, of)).collect()),
    ];
    prop::collection::vec(one, 1..25).prop_map(|groups| {
        let mut all = Vec::new();
        for (number, group) in (1..).zip(groups) {
            all.extend(group.into_iter().map(|kind| match kind {
                Kind::Chunk(_, index, of) => Kind::Chunk(number, index, of),
                other => other,
            }));
        }
        all
    })
}

fn config() -> impl Strategy<Value = ConsumerConfig> {
    (
        any::<bool>(),
        prop_oneof![Just(0u32), 1u32..4, 10u32..200],
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(0), Just(100 * MILLI)],
        prop::option::of(1u32..4),
    )
        .prop_map(
            |(shared, queue, receipts, index_ack, timeout, group, dead)| {
                let mut config = ConsumerConfig::new("t", "s");
                if shared {
                    config.subscription_type = SubscriptionType::Shared;
                    config.dead_letter = dead.map(DeadLetterPolicy::new);
                }
                config.start = StartPosition::Earliest;
                config.receiver_queue_size = queue;
                config.ack_receipt = receipts;
                config.batch_index_ack = index_ack;
                config.ack_timeout = if timeout { 10 * SECOND } else { 0 };
                config.ack_group_time = group;
                config.negative_ack_redelivery_delay = SECOND;
                config
            },
        )
}

fn case() -> impl Strategy<Value = (ConsumerConfig, bool, Vec<Kind>, Vec<Step>)> {
    any::<bool>().prop_flat_map(|message_permits| {
        (
            config(),
            Just(message_permits),
            kinds(message_permits),
            prop::collection::vec(step(), 0..250),
        )
    })
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
