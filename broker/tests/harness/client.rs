//! A scripted client: says one thing at a time and checks the answer.

use bytes::BytesMut;
use vela_broker::engine::CoreId;
use vela_codec::{encode, entry};
use vela_proto::{self as proto, BaseCommand, base_command::Type};

use super::{Incoming, Peer, World};

/// Builds commands. The caller picks ids.
pub mod say {
    use super::*;

    pub fn base(kind: Type) -> BaseCommand {
        BaseCommand {
            r#type: kind as i32,
            ..Default::default()
        }
    }

    pub fn connect() -> BaseCommand {
        let connect = proto::CommandConnect {
            client_version: "test".into(),
            protocol_version: Some(21),
            ..Default::default()
        };
        BaseCommand {
            connect: Some(connect),
            ..base(Type::Connect)
        }
    }

    pub fn producer(topic: &str, id: u64, request_id: u64, name: Option<&str>) -> BaseCommand {
        let producer = proto::CommandProducer {
            topic: topic.into(),
            producer_id: id,
            request_id,
            producer_name: name.map(Into::into),
            ..Default::default()
        };
        BaseCommand {
            producer: Some(producer),
            ..base(Type::Producer)
        }
    }

    pub fn close_producer(id: u64, request_id: u64) -> BaseCommand {
        let close = proto::CommandCloseProducer {
            producer_id: id,
            request_id,
            ..Default::default()
        };
        BaseCommand {
            close_producer: Some(close),
            ..base(Type::CloseProducer)
        }
    }

    pub fn subscribe(
        topic: &str,
        subscription: &str,
        shared: bool,
        id: u64,
        request_id: u64,
    ) -> proto::CommandSubscribe {
        use proto::command_subscribe::{InitialPosition, SubType};
        proto::CommandSubscribe {
            topic: topic.into(),
            subscription: subscription.into(),
            sub_type: if shared {
                SubType::Shared
            } else {
                SubType::Exclusive
            } as i32,
            consumer_id: id,
            request_id,
            initial_position: Some(InitialPosition::Earliest as i32),
            ..Default::default()
        }
    }

    pub fn subscribe_command(subscribe: proto::CommandSubscribe) -> BaseCommand {
        BaseCommand {
            subscribe: Some(subscribe),
            ..base(Type::Subscribe)
        }
    }

    pub fn close_consumer(id: u64, request_id: u64) -> BaseCommand {
        let close = proto::CommandCloseConsumer {
            consumer_id: id,
            request_id,
            ..Default::default()
        };
        BaseCommand {
            close_consumer: Some(close),
            ..base(Type::CloseConsumer)
        }
    }

    pub fn flow(id: u64, permits: u32) -> BaseCommand {
        BaseCommand {
            flow: Some(proto::CommandFlow {
                consumer_id: id,
                message_permits: permits,
            }),
            ..base(Type::Flow)
        }
    }

    pub fn id(ledger: u64, entry: u64) -> proto::MessageIdData {
        proto::MessageIdData {
            ledger_id: ledger,
            entry_id: entry,
            ..Default::default()
        }
    }

    pub fn ack(
        consumer: u64,
        ids: Vec<proto::MessageIdData>,
        cumulative: bool,
        request_id: Option<u64>,
    ) -> BaseCommand {
        use proto::command_ack::AckType;
        let ack = proto::CommandAck {
            consumer_id: consumer,
            ack_type: if cumulative {
                AckType::Cumulative
            } else {
                AckType::Individual
            } as i32,
            message_id: ids,
            request_id,
            ..Default::default()
        };
        BaseCommand {
            ack: Some(ack),
            ..base(Type::Ack)
        }
    }

    pub fn redeliver(
        consumer: u64,
        ids: Vec<proto::MessageIdData>,
        epoch: Option<u64>,
    ) -> BaseCommand {
        let redeliver = proto::CommandRedeliverUnacknowledgedMessages {
            consumer_id: consumer,
            message_ids: ids,
            consumer_epoch: epoch,
        };
        BaseCommand {
            redeliver_unacknowledged_messages: Some(redeliver),
            ..base(Type::RedeliverUnacknowledgedMessages)
        }
    }

    pub fn unsubscribe(consumer: u64, request_id: u64, force: bool) -> BaseCommand {
        let unsubscribe = proto::CommandUnsubscribe {
            consumer_id: consumer,
            request_id,
            force: Some(force),
        };
        BaseCommand {
            unsubscribe: Some(unsubscribe),
            ..base(Type::Unsubscribe)
        }
    }

    pub fn seek_id(consumer: u64, request_id: u64, id: proto::MessageIdData) -> BaseCommand {
        let seek = proto::CommandSeek {
            consumer_id: consumer,
            request_id,
            message_id: Some(id),
            message_publish_time: None,
        };
        BaseCommand {
            seek: Some(seek),
            ..base(Type::Seek)
        }
    }

    pub fn seek_time(consumer: u64, request_id: u64, time: u64) -> BaseCommand {
        let seek = proto::CommandSeek {
            consumer_id: consumer,
            request_id,
            message_id: None,
            message_publish_time: Some(time),
        };
        BaseCommand {
            seek: Some(seek),
            ..base(Type::Seek)
        }
    }

    pub fn last_message_id(consumer: u64, request_id: u64) -> BaseCommand {
        let question = proto::CommandGetLastMessageId {
            consumer_id: consumer,
            request_id,
        };
        BaseCommand {
            get_last_message_id: Some(question),
            ..base(Type::GetLastMessageId)
        }
    }

    pub fn stats(consumer: u64, request_id: u64) -> BaseCommand {
        let question = proto::CommandConsumerStats {
            consumer_id: consumer,
            request_id,
        };
        BaseCommand {
            consumer_stats: Some(question),
            ..base(Type::ConsumerStats)
        }
    }

    pub fn ping() -> BaseCommand {
        BaseCommand {
            ping: Some(proto::CommandPing {}),
            ..base(Type::Ping)
        }
    }

    pub fn pong() -> BaseCommand {
        BaseCommand {
            pong: Some(proto::CommandPong {}),
            ..base(Type::Pong)
        }
    }

    /// A whole SEND frame; a batch if `batch` is given.
    pub fn send(
        producer: u64,
        sequence_id: u64,
        batch: Option<i32>,
        publish_time: u64,
        payload: &[u8],
    ) -> BytesMut {
        send_keyed(producer, sequence_id, batch, publish_time, None, payload)
    }

    /// The same with a partition key.
    pub fn send_keyed(
        producer: u64,
        sequence_id: u64,
        batch: Option<i32>,
        publish_time: u64,
        key: Option<&str>,
        payload: &[u8],
    ) -> BytesMut {
        let metadata = proto::MessageMetadata {
            producer_name: "p".into(),
            sequence_id,
            publish_time,
            num_messages_in_batch: batch,
            partition_key: key.map(str::to_owned),
            ..Default::default()
        };
        send_metadata(producer, metadata, payload)
    }

    /// A whole SEND frame with this metadata.
    pub fn send_metadata(
        producer: u64,
        metadata: proto::MessageMetadata,
        payload: &[u8],
    ) -> BytesMut {
        let command = proto::CommandSend {
            producer_id: producer,
            sequence_id: metadata.sequence_id,
            num_messages: metadata.num_messages_in_batch,
            ..Default::default()
        };
        let mut stored = BytesMut::new();
        entry::write(&metadata, payload, &mut stored);
        let mut out = BytesMut::new();
        encode::command_with_rest(
            &BaseCommand {
                send: Some(command),
                ..base(Type::Send)
            },
            stored.len(),
            &mut out,
        );
        out.extend_from_slice(&stored);
        out
    }

    /// The bytes of a command.
    pub fn bytes(command: &BaseCommand) -> BytesMut {
        let mut out = BytesMut::new();
        encode::command(command, &mut out);
        out
    }
}

/// A message as a consumer sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    pub consumer: u64,
    pub ledger: u64,
    pub entry: u64,
    pub redelivery_count: u32,
    pub ack_set: Vec<i64>,
    pub permits: Option<u32>,
    pub epoch: Option<u64>,
    pub payload: Vec<u8>,
    /// `num_messages_in_batch`.
    pub batch: Option<i32>,
}

impl Got {
    /// Reads a MESSAGE and checks its checksum.
    pub fn from(incoming: &Incoming) -> Option<Got> {
        let message = incoming.command.message.as_ref()?;
        let entry = entry::Entry::parse(&incoming.rest).unwrap();
        entry.verify_checksum().unwrap();
        let metadata = entry.decode_metadata().unwrap();
        Some(Got {
            consumer: message.consumer_id,
            ledger: message.message_id.ledger_id,
            entry: message.message_id.entry_id,
            redelivery_count: message.redelivery_count.unwrap_or(0),
            ack_set: message.ack_set.clone(),
            permits: message.message_permits,
            epoch: message.consumer_epoch,
            payload: entry.payload.to_vec(),
            batch: metadata.num_messages_in_batch,
        })
    }

    pub fn id(&self) -> proto::MessageIdData {
        say::id(self.ledger, self.entry)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// A client with one connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub peer: Peer,
    next_request: u64,
    /// Received, not asked for yet.
    pub inbox: Vec<Incoming>,
}

impl Client {
    /// Connects to a core and shakes hands.
    pub fn connect(world: &mut World, core: CoreId) -> Client {
        let mut client = Client {
            peer: world.open(core),
            next_request: 1,
            inbox: Vec::new(),
        };
        client.say(world, &say::connect());
        world.run_until_idle();
        client.expect(world, Type::Connected);
        client
    }

    /// The next request id.
    pub fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Sends a command and does not wait.
    pub fn say(&self, world: &mut World, command: &BaseCommand) {
        world.feed(self.peer, &say::bytes(command));
    }

    /// Collects what has come in.
    pub fn listen(&mut self, world: &mut World) {
        self.inbox.extend(world.take(self.peer));
    }

    /// Takes the first frame of a kind out of the inbox, wherever it stands.
    pub fn expect(&mut self, world: &mut World, kind: Type) -> Incoming {
        world.run_until_idle();
        self.listen(world);
        match self
            .inbox
            .iter()
            .position(|i| i.command.r#type == kind as i32)
        {
            Some(at) => self.inbox.remove(at),
            None => panic!("no {kind:?} among {:?}", self.kinds()),
        }
    }

    /// The very next frame.
    pub fn next(&mut self, world: &mut World) -> Incoming {
        world.run_until_idle();
        self.listen(world);
        assert!(!self.inbox.is_empty(), "nothing was received");
        self.inbox.remove(0)
    }

    /// Kinds of the frames received and not taken.
    pub fn kinds(&self) -> Vec<Type> {
        self.inbox
            .iter()
            .map(|i| Type::try_from(i.command.r#type).unwrap())
            .collect()
    }

    /// Nothing else has come in.
    pub fn expect_silence(&mut self, world: &mut World) {
        world.run_until_idle();
        self.listen(world);
        assert!(self.inbox.is_empty(), "unexpected: {:?}", self.inbox);
    }

    /// The SUCCESS of a request.
    pub fn success(&mut self, world: &mut World, request_id: u64) {
        let answer = self.expect(world, Type::Success);
        assert_eq!(answer.command.success.unwrap().request_id, request_id);
    }

    /// Opens a producer; answers its name.
    pub fn producer(&mut self, world: &mut World, topic: &str, id: u64) -> String {
        let request_id = self.request();
        self.say(world, &say::producer(topic, id, request_id, None));
        let answer = self
            .expect(world, Type::ProducerSuccess)
            .command
            .producer_success
            .unwrap();
        assert_eq!(answer.request_id, request_id);
        answer.producer_name
    }

    /// Sends a message and does not wait.
    pub fn send(&self, world: &mut World, producer: u64, sequence_id: u64, text: &str) {
        let time = world.now.wall_ms;
        world.feed(
            self.peer,
            &say::send(producer, sequence_id, None, time, text.as_bytes()),
        );
    }

    /// Sends a batch and does not wait.
    pub fn send_batch(
        &self,
        world: &mut World,
        producer: u64,
        sequence_id: u64,
        count: i32,
        text: &str,
    ) {
        let time = world.now.wall_ms;
        world.feed(
            self.peer,
            &say::send(producer, sequence_id, Some(count), time, text.as_bytes()),
        );
    }

    /// The next receipt: sequence id, ledger, entry.
    pub fn receipt(&mut self, world: &mut World) -> (u64, u64, u64) {
        let receipt = self
            .expect(world, Type::SendReceipt)
            .command
            .send_receipt
            .unwrap();
        let id = receipt.message_id.unwrap();
        (receipt.sequence_id, id.ledger_id, id.entry_id)
    }

    /// Subscribes from the earliest message on.
    pub fn subscribe(
        &mut self,
        world: &mut World,
        topic: &str,
        subscription: &str,
        shared: bool,
        id: u64,
    ) {
        let request_id = self.request();
        self.say(
            world,
            &say::subscribe_command(say::subscribe(topic, subscription, shared, id, request_id)),
        );
        self.success(world, request_id);
    }

    pub fn flow(&self, world: &mut World, consumer: u64, permits: u32) {
        self.say(world, &say::flow(consumer, permits));
    }

    /// Everything a consumer has received, in order; other frames stay.
    pub fn messages(&mut self, world: &mut World) -> Vec<Got> {
        world.run_until_idle();
        self.listen(world);
        let (messages, rest) = std::mem::take(&mut self.inbox)
            .into_iter()
            .partition(|i| i.command.message.is_some());
        self.inbox = rest;
        messages.iter().filter_map(Got::from).collect()
    }

    /// Payloads of everything a consumer has received.
    pub fn texts(&mut self, world: &mut World) -> Vec<String> {
        self.messages(world).iter().map(Got::text).collect()
    }

    /// Acknowledges with a request and checks that it succeeds.
    pub fn ack(
        &mut self,
        world: &mut World,
        consumer: u64,
        ids: Vec<proto::MessageIdData>,
        cumulative: bool,
    ) {
        let request_id = self.request();
        self.say(
            world,
            &say::ack(consumer, ids, cumulative, Some(request_id)),
        );
        let answer = self
            .expect(world, Type::AckResponse)
            .command
            .ack_response
            .unwrap();
        assert_eq!((answer.request_id, answer.error), (Some(request_id), None));
    }

    /// The ERROR of a request.
    pub fn error(&mut self, world: &mut World, request_id: u64) -> (proto::ServerError, String) {
        let error = self.expect(world, Type::Error).command.error.unwrap();
        assert_eq!(error.request_id, request_id);
        (
            proto::ServerError::try_from(error.error).unwrap(),
            error.message,
        )
    }
}
