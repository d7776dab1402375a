//! The machine against a broker that answers at random: valid answers, valid ones with wrong numbers, and damaged bytes.
//!
//! Whatever it says, nothing panics, every send has exactly one end, the account of permits holds, what is held is bounded, and no step
//! asks to be called again at once for ever.

use std::collections::BTreeSet;

use vela_codec::batch::BatchWriter;
use vela_codec::compress::compress;
use vela_codec::entry;
use vela_proto::{CompressionType, MessageIdData, MessageMetadata, SingleMessageMetadata};

use super::super::super::backoff::Rng;
use super::super::super::connection::MAX_UNSENT_COMMANDS;
use super::super::super::consumer::{
    ConsumerConfig, DeadLetterPolicy, ReceivedMessage, SubscriptionType,
};
use super::super::super::{AccessMode, AuthData, ConsumerKey};
use super::*;

const URLS: [&str; 6] = [
    URL,
    "pulsar://other:6650",
    "",
    "no url at all",
    "pulsar+ssl://secure:6651",
    "pulsar://:0/\u{0}",
];

/// Numbers that somebody might not have thought of.
const ODD: [u64; 12] = [
    0,
    1,
    2,
    63,
    64,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

struct World {
    machine: Machine<u64>,
    rng: Rng,
    now: Nanos,
    decoders: BTreeMap<ConnKey, FrameDecoder>,
    conns: Vec<ConnKey>,
    producers: Vec<ProducerKey>,
    consumers: Vec<ConsumerKey>,
    taken: Vec<(ConsumerKey, ReceivedMessage)>,
    open: BTreeSet<u64>,
    sent: u64,
    calls: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = MachineConfig {
            service_urls: vec![URL.into(), "pulsar+ssl://service:6651".into()],
            authentication: rng.below(3) == 0,
            max_message_size: 5 << 20,
            seed,
            ..MachineConfig::default()
        };
        let mut world = Self {
            machine: Machine::new(config).unwrap(),
            rng,
            now: 0,
            decoders: BTreeMap::new(),
            conns: Vec::new(),
            producers: Vec::new(),
            consumers: Vec::new(),
            taken: Vec::new(),
            open: BTreeSet::new(),
            sent: 0,
            calls: 0,
        };
        for _ in 0..3 {
            world.open_producer();
            world.open_consumer();
        }
        world
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.rng.below(from.len() as u64);
        from.get(at as usize).copied()
    }

    /// `fine`, or something else.
    fn number(&mut self, fine: u64) -> u64 {
        match self.rng.below(8) {
            0 => self.pick(&ODD).unwrap(),
            1 => fine.wrapping_add(1),
            2 => fine.wrapping_sub(1),
            _ => fine,
        }
    }

    fn url(&mut self) -> Option<String> {
        let odd = self.pick(&URLS).unwrap();
        match self.rng.below(4) {
            0 => Some(odd.into()),
            1 => None,
            _ => Some(URL.into()),
        }
    }

    fn open_producer(&mut self) {
        let chunking = self.one_in(3);
        let modes = [
            AccessMode::Shared,
            AccessMode::Exclusive,
            AccessMode::WaitForExclusive,
        ];
        let config = ProducerConfig {
            access_mode: self.pick(&modes).unwrap(),
            batching: (!chunking && self.one_in(2)).then(Batching::default),
            chunking,
            compression: self
                .pick(&[CompressionType::None, CompressionType::Lz4])
                .unwrap(),
            ..ProducerConfig::new(TOPIC)
        };
        let key = self.machine.open_producer(self.now, config).unwrap();
        self.producers.push(key);
    }

    fn open_consumer(&mut self) {
        let mut config = ConsumerConfig::new(TOPIC, "s");
        let types = [
            SubscriptionType::Exclusive,
            SubscriptionType::Shared,
            SubscriptionType::Failover,
            SubscriptionType::KeyShared,
        ];
        config.subscription_type = self.pick(&types).unwrap();
        config.receiver_queue_size = self.pick(&[0, 1, 10, 1000]).unwrap();
        config.ack_receipt = self.one_in(2);
        config.batch_index_ack = self.one_in(2);
        config.durable = !self.one_in(3);
        config.ack_timeout = if self.one_in(2) { 0 } else { 50 * MILLIS };
        config.max_pending_chunked_messages = 2;
        config.max_tracked_batches = 8;
        // What a bomb may take up; the real limit would make the test slow, not different.
        config.max_uncompressed_size = 1 << 16;
        if config.subscription_type.is_shared() && self.one_in(2) {
            config.dead_letter = Some(DeadLetterPolicy::new(1));
        }
        let key = self.machine.open_consumer(self.now, config);
        self.consumers.push(key);
    }

    /// What the application does.
    fn act(&mut self) {
        let now = self.now;
        let producer = self.pick(&self.producers.clone());
        let consumer = self.pick(&self.consumers.clone());
        let call = self.calls;
        self.calls += 1;
        match self.rng.below(14) {
            0..4 => {
                let Some(producer) = producer else { return };
                let size = self.pick(&[0, 1, 10, 10, 10, 70_000]).unwrap();
                let mut message = OutgoingMessage::new(vec![7; size]);
                if self.one_in(10) {
                    let sequence = self.number(3);
                    message.sequence_id = Some(sequence);
                }
                let ticket = self.sent;
                self.sent += 1;
                if self.machine.send(now, producer, message, ticket).is_ok() {
                    self.open.insert(ticket);
                }
            }
            4 => {
                if let Some(producer) = producer {
                    drop(self.machine.flush(producer));
                }
            }
            5 if self.one_in(4) => {
                if let Some(producer) = producer {
                    self.machine.close_producer(now, producer);
                    self.open_producer();
                }
            }
            6 => drop(self.machine.partitions(now, TOPIC, true)),
            7 => drop(self.machine.get_schema(now, TOPIC, None)),
            8 => drop(self.machine.watch_topics(now, "public/default", ".*", None)),
            9 => drop(self.machine.lookup(now, TOPIC)),
            10 if self.one_in(4) => {
                let Some(consumer) = consumer else { return };
                self.machine
                    .with_consumer(now, consumer, |c, wire| match call % 4 {
                        0 => c.close(now, call, wire),
                        1 => c.seek(now, crate::StartPosition::Earliest, call, wire),
                        2 => c.has_message_available(now, call, wire),
                        _ => c.unsubscribe(now, false, call, wire),
                    });
                if self.machine.consumer(consumer).is_none() {
                    self.open_consumer();
                }
            }
            11 => {
                let Some((consumer, message)) = self.taken.pop() else {
                    return;
                };
                let id = message.id;
                self.machine
                    .with_consumer(now, consumer, |c, wire| match call % 4 {
                        0 => c.negative_acknowledge(now, &id, message.redelivery_count),
                        1 => c.acknowledge_cumulative(now, &id, Some(call), wire),
                        2 => c.redeliver_unacknowledged(wire),
                        _ => c.acknowledge(now, &[id], Some(call), wire),
                    });
            }
            _ => {
                let Some(consumer) = consumer else { return };
                let message = self
                    .machine
                    .with_consumer(now, consumer, |c, wire| c.take(now, wire));
                if let Some(message) = message.flatten() {
                    self.taken.push((consumer, message));
                    self.taken.truncate(50);
                }
            }
        }
    }

    /// Events, and answers to what was said.
    fn serve(&mut self) {
        let mut heard = Vec::new();
        for _ in 0..100_000 {
            if let Some(event) = self.machine.poll_event() {
                self.event(event);
                continue;
            }
            let Some((conn, bytes)) = self.machine.poll_transmit() else {
                break;
            };
            let decoder = self
                .decoders
                .entry(conn)
                .or_insert_with(|| FrameDecoder::new(1 << 30));
            decoder.push(bytes);
            while let Some(frame) = decoder.next_frame().unwrap() {
                heard.push((conn, decode_command(frame.command()).unwrap()));
            }
        }
        for (conn, command) in heard {
            if !self.one_in(8) {
                self.answer(conn, &command);
            }
        }
    }

    fn event(&mut self, event: Event<u64>) {
        match event {
            Event::Connect { conn, .. } => {
                if self.one_in(5) {
                    self.machine.connection_lost(self.now, conn, "no");
                } else {
                    self.conns.push(conn);
                    self.machine.connected(self.now, conn);
                }
            }
            Event::Disconnect { conn, .. } => self.conns.retain(|&other| other != conn),
            Event::Authenticate { conn, .. } => {
                let auth = AuthData {
                    method: "token".into(),
                    data: "x".into(),
                };
                self.machine.authenticate(self.now, conn, Ok(auth));
            }
            Event::Sends(done) => {
                for (ticket, result) in done.each() {
                    assert!(
                        self.open.remove(&ticket),
                        "{ticket} ended twice: {result:?}"
                    );
                }
            }
            Event::ProducerFailed { producer, .. } | Event::ProducerClosed { producer } => {
                self.producers.retain(|&other| other != producer);
            }
            Event::ConsumerFailed { consumer, .. } => {
                self.consumers.retain(|&other| other != consumer);
            }
            _ => {}
        }
    }

    fn answer(&mut self, conn: ConnKey, command: &BaseCommand) {
        let kind = Type::try_from(command.r#type).unwrap();
        let mut answer: BaseCommand;
        let id = |id: u64, world: &mut Self| world.number(id);
        match kind {
            Type::Connect => {
                answer = base(Type::Connected);
                answer.connected = Some(proto::CommandConnected {
                    server_version: "x".into(),
                    protocol_version: Some(self.number(21) as i32),
                    max_message_size: Some(self.number(5 << 20) as i32),
                    feature_flags: Some(proto::FeatureFlags {
                        supports_topic_watchers: Some(true),
                        ..Default::default()
                    }),
                });
            }
            Type::Lookup => {
                use proto::command_lookup_topic_response::LookupType;
                let lookup = command.lookup_topic.as_ref().unwrap();
                let types = [
                    LookupType::Connect,
                    LookupType::Connect,
                    LookupType::Redirect,
                    LookupType::Failed,
                ];
                answer = base(Type::LookupResponse);
                answer.lookup_topic_response = Some(proto::CommandLookupTopicResponse {
                    broker_service_url: self.url(),
                    broker_service_url_tls: self.url(),
                    response: self.pick(&types).map(|kind| kind as i32),
                    request_id: id(lookup.request_id, self),
                    proxy_through_service_url: Some(self.one_in(4)),
                    ..Default::default()
                });
            }
            Type::Producer => {
                let producer = command.producer.as_ref().unwrap();
                answer = base(Type::ProducerSuccess);
                answer.producer_success = Some(proto::CommandProducerSuccess {
                    request_id: id(producer.request_id, self),
                    producer_name: "n".repeat(self.number(3).min(9_000) as usize),
                    last_sequence_id: Some(self.number(0) as i64),
                    producer_ready: Some(!self.one_in(6)),
                    ..Default::default()
                });
            }
            Type::Subscribe => {
                let request_id = command.subscribe.as_ref().unwrap().request_id;
                answer = base(Type::Success);
                answer.success = Some(proto::CommandSuccess {
                    request_id: id(request_id, self),
                    schema: None,
                });
            }
            Type::Send => {
                let send = command.send.as_ref().unwrap();
                let sequence = self.number(send.sequence_id);
                let highest = self.number(send.highest_sequence_id());
                let mut out = BytesMut::new();
                if self.one_in(6) {
                    let errors = [
                        ServerError::ChecksumError,
                        ServerError::PersistenceError,
                        ServerError::NotAllowedError,
                        ServerError::TopicTerminatedError,
                    ];
                    let error = self.pick(&errors).unwrap();
                    encode::send_error(&mut out, send.producer_id, sequence, error, "no");
                } else {
                    let entry = self.number(3);
                    encode::send_receipt(&mut out, send.producer_id, sequence, highest, 7, entry);
                }
                return self.say(conn, out);
            }
            Type::Ack => {
                let ack = command.ack.as_ref().unwrap();
                answer = base(Type::AckResponse);
                answer.ack_response = Some(proto::CommandAckResponse {
                    consumer_id: self.number(ack.consumer_id),
                    request_id: ack.request_id,
                    error: self.one_in(4).then_some(1),
                    ..Default::default()
                });
            }
            Type::PartitionedMetadata => {
                answer = base(Type::PartitionedMetadataResponse);
                answer.partition_metadata_response =
                    Some(proto::CommandPartitionedTopicMetadataResponse {
                        partitions: Some(self.number(4) as u32),
                        request_id: id(
                            command.partition_metadata.as_ref().unwrap().request_id,
                            self,
                        ),
                        ..Default::default()
                    });
            }
            Type::GetLastMessageId => {
                let request_id = command.get_last_message_id.as_ref().unwrap().request_id;
                answer = base(Type::GetLastMessageIdResponse);
                answer.get_last_message_id_response =
                    Some(proto::CommandGetLastMessageIdResponse {
                        last_message_id: self.message_id(),
                        request_id: id(request_id, self),
                        consumer_mark_delete_position: Some(self.message_id()),
                    });
            }
            _ => {
                // Whatever it was: it may be refused.
                let request = command
                    .close_producer
                    .as_ref()
                    .map(|c| c.request_id)
                    .or(command.close_consumer.as_ref().map(|c| c.request_id))
                    .or(command.seek.as_ref().map(|c| c.request_id))
                    .or(command.unsubscribe.as_ref().map(|c| c.request_id))
                    .or(command.watch_topic_list.as_ref().map(|c| c.request_id))
                    .or(command.get_schema.as_ref().map(|c| c.request_id));
                let Some(request_id) = request else { return };
                if self.one_in(3) {
                    answer = base(Type::Error);
                    answer.error = Some(proto::CommandError {
                        request_id: id(request_id, self),
                        error: self.rng.below(30) as i32,
                        message: "no".repeat(self.number(3).min(20_000) as usize),
                    });
                } else if kind == Type::WatchTopicList {
                    answer = base(Type::WatchTopicListSuccess);
                    answer.watch_topic_list_success = Some(proto::CommandWatchTopicListSuccess {
                        request_id: id(request_id, self),
                        watcher_id: self.number(1),
                        topic: vec!["x".into(); self.number(2).min(100) as usize],
                        topics_hash: "h".into(),
                    });
                } else {
                    answer = base(Type::Success);
                    answer.success = Some(proto::CommandSuccess {
                        request_id: id(request_id, self),
                        schema: None,
                    });
                }
            }
        }
        let mut out = BytesMut::new();
        encode::command(&answer, &mut out);
        self.say(conn, out);
    }

    /// Sends bytes as they are, twice, cut, damaged, or on another connection.
    fn say(&mut self, conn: ConnKey, mut bytes: BytesMut) {
        let mut to = conn;
        match self.rng.below(24) {
            0 => {
                let twice = bytes.clone();
                bytes.extend_from_slice(&twice);
            }
            1 => bytes.truncate(self.rng.below(bytes.len() as u64) as usize),
            2..5 => {
                for _ in 0..=self.rng.below(3) {
                    let at = self.rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << self.rng.below(8);
                }
            }
            5 => to = self.pick(&self.conns.clone()).unwrap_or(conn),
            6 if self.one_in(4) => {
                self.conns.retain(|&other| other != conn);
                return self.machine.connection_lost(self.now, conn, "gone");
            }
            _ => {}
        }
        self.machine.handle_bytes(self.now, to, bytes.freeze());
    }

    fn message_id(&mut self) -> MessageIdData {
        MessageIdData {
            ledger_id: self.number(1),
            entry_id: self.rng.below(20),
            partition: Some(self.number(0) as i32),
            batch_index: self.one_in(3).then(|| self.number(2) as i32),
            ..Default::default()
        }
    }

    /// A MESSAGE, with anything in it.
    fn deliver(&mut self) {
        let Some(consumer) = self.pick(&self.consumers.clone()) else {
            return;
        };
        let Some(conn) = self.pick(&self.conns.clone()) else {
            return;
        };
        let count = self.pick(&[1, 1, 2, 70]).unwrap();
        let mut batch = BatchWriter::new(usize::MAX, usize::MAX);
        for index in 0..count {
            let single = SingleMessageMetadata {
                compacted_out: Some(self.one_in(9)),
                ..Default::default()
            };
            batch.push(single, &[index as u8; 5]).unwrap();
        }
        let mut payload = batch.finish().to_vec();
        let mut metadata = MessageMetadata {
            producer_name: "p".into(),
            sequence_id: self.number(1),
            publish_time: self.number(1),
            ..Default::default()
        };
        if self.one_in(2) {
            metadata.num_messages_in_batch = Some(self.number(count) as i32);
            if self.one_in(3) {
                metadata.compacted_batch_indexes = vec![self.number(0) as i32; 3];
            }
        }
        if self.one_in(3) {
            let chunks = self.pick(&[2, 3, 3, 3, i32::MAX]).unwrap();
            metadata.uuid = self.pick(&["u", "v", "w", ""]).map(str::to_owned);
            metadata.chunk_id = Some(self.number(self.rng.clone().below(3)) as i32);
            metadata.num_chunks_from_msg = Some(chunks);
            let total = payload.len() as u64 * chunks as u64;
            metadata.total_chunk_msg_size = Some(self.number(total) as i32);
        }
        if self.one_in(3) {
            let kinds = [
                CompressionType::Lz4,
                CompressionType::Zlib,
                CompressionType::Zstd,
                CompressionType::Snappy,
            ];
            let kind = self.pick(&kinds).unwrap();
            if self.one_in(4) {
                payload = vec![0; 1 << 17];
            }
            metadata.uncompressed_size = Some(self.number(payload.len() as u64) as u32);
            metadata.compression = Some(self.number(kind as u64) as i32);
            payload = compress(kind, &payload).unwrap();
        }
        let mut rest = BytesMut::new();
        entry::write(&metadata, &payload, &mut rest);
        let ack_set = (0..self.pick(&[0, 0, 0, 1, 2, 5]).unwrap())
            .map(|_| self.number(u64::MAX) as i64)
            .collect();
        let message = proto::CommandMessage {
            consumer_id: self.number(consumer.0),
            message_id: self.message_id(),
            redelivery_count: Some(self.number(0) as u32),
            ack_set,
            consumer_epoch: self.one_in(9).then(|| self.number(0)),
            message_permits: self.one_in(3).then(|| self.number(count) as u32),
        };
        let command = BaseCommand {
            message: Some(message),
            ..base(Type::Message)
        };
        let mut out = BytesMut::new();
        encode::command_with_rest(&command, rest.len(), &mut out);
        out.extend_from_slice(&rest);
        self.say(conn, out);
    }

    /// What a broker says without being asked.
    fn disturb(&mut self) {
        let Some(conn) = self.pick(&self.conns.clone()) else {
            return;
        };
        let producer = self.pick(&self.producers.clone()).map_or(1, |key| key.0);
        let consumer = self.pick(&self.consumers.clone()).map_or(1, |key| key.0);
        let mut command = match self.rng.below(9) {
            0 => base(Type::Ping),
            1 => base(Type::AuthChallenge),
            2 => base(Type::CloseProducer),
            3 => base(Type::CloseConsumer),
            4 => base(Type::TopicMigrated),
            5 => base(Type::ActiveConsumerChange),
            6 => base(Type::ReachedEndOfTopic),
            7 => base(Type::WatchTopicUpdate),
            _ => base(Type::Connected),
        };
        // All of them: what does not belong to the type is to be overlooked.
        let id = self.number(1_000);
        command.close_producer = Some(proto::CommandCloseProducer {
            producer_id: self.number(producer),
            request_id: id,
            assigned_broker_service_url: self.url(),
            assigned_broker_service_url_tls: self.url(),
        });
        command.close_consumer = Some(proto::CommandCloseConsumer {
            consumer_id: self.number(consumer),
            request_id: id,
            assigned_broker_service_url: self.url(),
            assigned_broker_service_url_tls: self.url(),
        });
        command.topic_migrated = Some(proto::CommandTopicMigrated {
            resource_id: self.number(producer),
            resource_type: self.rng.below(2) as i32,
            broker_service_url: self.url(),
            broker_service_url_tls: self.url(),
        });
        command.active_consumer_change = Some(proto::CommandActiveConsumerChange {
            consumer_id: consumer,
            is_active: Some(true),
        });
        command.reached_end_of_topic = Some(proto::CommandReachedEndOfTopic {
            consumer_id: consumer,
        });
        let mut out = BytesMut::new();
        encode::command(&command, &mut out);
        self.say(conn, out);
    }

    fn check(&mut self) {
        for &key in &self.consumers {
            if let Some(consumer) = self.machine.consumer(key) {
                consumer.audit().unwrap();
            }
        }
        for &conn in &self.conns {
            let unsent = self.machine.unsent(conn);
            assert!(unsent <= MAX_UNSENT_COMMANDS + (8 << 20), "{unsent}");
        }
    }

    fn pass(&mut self) {
        self.now += self.pick(&[1, 10, 200, 5_000, 31_000]).unwrap() * MILLIS;
        let mut again = 0;
        while self.machine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.machine.handle_timeout(self.now);
            again += 1;
            assert!(again < 5, "it asks to be called again at once for ever");
        }
    }
}

#[test]
fn whatever_a_broker_says_nothing_is_lost_and_nothing_grows() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            match world.rng.below(10) {
                0..4 => world.act(),
                4..7 => world.deliver(),
                7 => world.disturb(),
                8 if world.one_in(3) => world.pass(),
                _ => {}
            }
            world.serve();
            world.check();
        }
        world.machine.close(world.now);
        world.serve();
        assert!(
            world.open.is_empty(),
            "seed {seed}: {:?} have no end",
            world.open
        );
    }
}
