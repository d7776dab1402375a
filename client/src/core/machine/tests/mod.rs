//! The machine against a broker that says what the test wants.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod broken;
mod connections;
mod hostile;
mod lookups;
mod questions;
mod sends;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use vela_codec::{FrameDecoder, decode_command, encode};
use vela_proto as proto;
use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, ServerError};

use super::super::connection::base;
use super::super::event::Event;
use super::super::{
    Batching, ConnKey, MILLIS, Machine, MachineConfig, Nanos, ProducerConfig, ProducerKey,
};
use crate::error::Error;
use crate::message::OutgoingMessage;

const URL: &str = "pulsar://service:6650";
const TOPIC: &str = "persistent://public/default/t";

/// A machine, and the other end of its connections.
struct Bench {
    machine: Machine<u64>,
    now: Nanos,
    decoders: BTreeMap<ConnKey, FrameDecoder>,
    /// What the machine said and the test has not looked at.
    said: VecDeque<(ConnKey, BaseCommand, Bytes)>,
    events: VecDeque<Event<u64>>,
    max_message_size: i32,
    features: proto::FeatureFlags,
}

impl Bench {
    fn new() -> Self {
        Self::with(MachineConfig::default())
    }

    fn with(config: MachineConfig) -> Self {
        let config = MachineConfig {
            service_urls: vec![URL.into()],
            wall_ms: 1_000_000,
            ..config
        };
        Self {
            machine: Machine::new(config).unwrap(),
            now: 0,
            decoders: BTreeMap::new(),
            said: VecDeque::new(),
            events: VecDeque::new(),
            max_message_size: 5 << 20,
            features: proto::FeatureFlags::default(),
        }
    }

    fn look(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            if !matches!(event, Event::Transmit { .. }) {
                self.events.push_back(event);
            }
        }
        while let Some((conn, bytes)) = self.machine.poll_transmit() {
            let decoder = self
                .decoders
                .entry(conn)
                .or_insert_with(|| FrameDecoder::new(1 << 30));
            decoder.push(bytes);
            while let Some(frame) = decoder.next_frame().unwrap() {
                let command = decode_command(frame.command()).unwrap();
                self.said.push_back((conn, command, frame.rest_bytes()));
            }
        }
        while let Some(event) = self.machine.poll_event() {
            if !matches!(event, Event::Transmit { .. }) {
                self.events.push_back(event);
            }
        }
    }

    /// The next event.
    fn event(&mut self) -> Event<u64> {
        self.look();
        self.events.pop_front().expect("an event")
    }

    fn silent(&mut self) {
        self.look();
        assert!(self.events.is_empty(), "{:?}", self.events);
        assert!(self.said.is_empty(), "{:?}", self.said);
    }

    /// The machine wants a connection to `url`, and gets it.
    fn connect(&mut self, url: &str) -> ConnKey {
        let (conn, hello) = self.greet(url);
        assert_eq!(hello.proxy_to_broker_url, None);
        self.welcome(conn);
        conn
    }

    fn greet(&mut self, url: &str) -> (ConnKey, proto::CommandConnect) {
        let conn = match self.event() {
            Event::Connect { conn, url: wanted } => {
                assert_eq!(wanted, url);
                conn
            }
            other => panic!("{other:?}"),
        };
        self.machine.connected(self.now, conn);
        (conn, self.hear(conn, Type::Connect).0.connect.unwrap())
    }

    fn welcome(&mut self, conn: ConnKey) {
        let connected = proto::CommandConnected {
            server_version: "test".into(),
            protocol_version: Some(21),
            max_message_size: Some(self.max_message_size),
            feature_flags: Some(self.features),
        };
        self.say(
            conn,
            BaseCommand {
                connected: Some(connected),
                ..base(Type::Connected)
            },
        );
    }

    /// The next command, which must be of this kind.
    fn hear(&mut self, conn: ConnKey, kind: Type) -> (BaseCommand, Bytes) {
        self.look();
        let (on, command, rest) = self.said.pop_front().expect("a command");
        assert_eq!((on, command.r#type), (conn, kind as i32), "{command:?}");
        (command, rest)
    }

    fn say(&mut self, conn: ConnKey, command: BaseCommand) {
        let mut bytes = BytesMut::new();
        encode::command(&command, &mut bytes);
        self.machine.handle_bytes(self.now, conn, bytes.freeze());
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now + ms * MILLIS;
        while let Some(at) = self.machine.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.now);
        }
        self.now = end;
        self.look();
    }

    /// A LOOKUP comes, and is answered: the broker at `url` serves it.
    fn locate(&mut self, conn: ConnKey, url: &str) {
        let lookup = self.hear(conn, Type::Lookup).0.lookup_topic.unwrap();
        self.located(conn, &lookup, url, |_| {});
    }

    fn located(
        &mut self,
        conn: ConnKey,
        lookup: &proto::CommandLookupTopic,
        url: &str,
        change: impl FnOnce(&mut proto::CommandLookupTopicResponse),
    ) {
        use proto::command_lookup_topic_response::LookupType;
        let mut answer = proto::CommandLookupTopicResponse {
            broker_service_url: Some(url.into()),
            response: Some(LookupType::Connect as i32),
            request_id: lookup.request_id,
            authoritative: Some(true),
            ..Default::default()
        };
        change(&mut answer);
        self.say(
            conn,
            BaseCommand {
                lookup_topic_response: Some(answer),
                ..base(Type::LookupResponse)
            },
        );
    }

    /// A PRODUCER comes, and is answered.
    fn accept(&mut self, conn: ConnKey) -> proto::CommandProducer {
        let producer = self.hear(conn, Type::Producer).0.producer.unwrap();
        self.produce(conn, &producer, |_| {});
        producer
    }

    fn produce(
        &mut self,
        conn: ConnKey,
        producer: &proto::CommandProducer,
        change: impl FnOnce(&mut proto::CommandProducerSuccess),
    ) {
        let given = producer.producer_name.clone();
        let mut success = proto::CommandProducerSuccess {
            request_id: producer.request_id,
            producer_name: given.unwrap_or_else(|| "given".into()),
            last_sequence_id: Some(-1),
            ..Default::default()
        };
        change(&mut success);
        self.say(
            conn,
            BaseCommand {
                producer_success: Some(success),
                ..base(Type::ProducerSuccess)
            },
        );
    }

    fn refuse(&mut self, conn: ConnKey, request_id: u64, error: ServerError) {
        let error = proto::CommandError {
            request_id,
            error: error as i32,
            message: "no".into(),
        };
        self.say(
            conn,
            BaseCommand {
                error: Some(error),
                ..base(Type::Error)
            },
        );
    }

    fn succeed(&mut self, conn: ConnKey, request_id: u64) {
        let success = proto::CommandSuccess {
            request_id,
            schema: None,
        };
        self.say(
            conn,
            BaseCommand {
                success: Some(success),
                ..base(Type::Success)
            },
        );
    }

    /// A producer that is open, and its connection.
    fn producer(&mut self, config: ProducerConfig) -> (ProducerKey, ConnKey) {
        let key = self.machine.open_producer(self.now, config).unwrap();
        let conn = self.connect(URL);
        self.locate(conn, URL);
        self.accept(conn);
        match self.event() {
            Event::ProducerOpened { producer, .. } => assert_eq!(producer, key),
            other => panic!("{other:?}"),
        }
        (key, conn)
    }

    fn send(&mut self, producer: ProducerKey, payload: &str, ticket: u64) {
        let message = OutgoingMessage::new(payload.to_owned());
        self.machine
            .send(self.now, producer, message, ticket)
            .unwrap();
    }

    fn receipt(&mut self, conn: ConnKey, producer: ProducerKey, sequence: u64, entry: u64) {
        let mut out = BytesMut::new();
        encode::send_receipt(&mut out, producer.0, sequence, u64::MAX, 7, entry);
        self.machine.handle_bytes(self.now, conn, out.freeze());
    }

    fn send_error(
        &mut self,
        conn: ConnKey,
        producer: ProducerKey,
        sequence: u64,
        error: ServerError,
    ) {
        let mut out = BytesMut::new();
        encode::send_error(&mut out, producer.0, sequence, error, "no");
        self.machine.handle_bytes(self.now, conn, out.freeze());
    }

    /// The next SEND: its sequence id, and the entry.
    fn sent(&mut self, conn: ConnKey) -> (proto::CommandSend, Bytes) {
        let (command, rest) = self.hear(conn, Type::Send);
        (command.send.unwrap(), rest)
    }

    /// The next event, which is the end of these sends.
    fn ends(&mut self) -> (Vec<u64>, Result<u64, Error>) {
        match self.event() {
            Event::Sends(done) => (done.sends, done.result.map(|receipt| receipt.entry)),
            other => panic!("{other:?}"),
        }
    }
}

/// One by one.
fn plain() -> ProducerConfig {
    ProducerConfig {
        batching: None,
        ..ProducerConfig::new(TOPIC)
    }
}

fn batched(max_messages: usize) -> ProducerConfig {
    let batching = Batching {
        max_messages,
        ..Batching::default()
    };
    ProducerConfig {
        batching: Some(batching),
        ..ProducerConfig::new(TOPIC)
    }
}
