//! What sessions and topics say to each other.
//!
//! A session lives on the core that accepted its socket, a topic on the core its name falls to. Whether that is one core or two, they exchange
//! exactly these messages. Messages from one core to another arrive in the order they were sent, and that order is the order in which the
//! commands of a connection take effect: a SEND behind a PRODUCER, a FLOW behind a SUBSCRIBE need no answer in between.

use std::sync::Arc;

use bytes::Bytes;
use vela_codec::Frame;
use vela_limiter::Reason;
use vela_proto::{BaseCommand, ServerError};

use super::admin::{Answer, Asker, Request};
use super::name::TopicName;
use super::schema::Schema;
use super::schema::registry::{Ask, Decided};
use crate::store::log::Position;

/// A core's number, from 0.
pub type CoreId = u16;

/// One session, on any core. The generation tells a connection from the later ones in its slot.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct SessionRef {
    /// Where the session lives.
    pub core: CoreId,
    /// Its slot there.
    pub slot: u32,
    /// Which tenant of the slot it is.
    pub generation: u32,
}

/// One producer or consumer of a session.
///
/// The incarnation is the session's own running number, so an id that was closed and opened again is somebody else.
#[derive(Copy, Clone, Debug)]
pub struct ClientRef {
    /// Its session.
    pub session: SessionRef,
    /// The session's running number.
    pub incarnation: u32,
    /// The producer or consumer id that the client chose.
    pub id: u64,
}

/// What identifies a [`ClientRef`]: nothing in it is chosen by the peer.
pub type ClientKey = (SessionRef, u32);

impl ClientRef {
    /// Its identity.
    pub fn key(&self) -> ClientKey {
        (self.session, self.incarnation)
    }
}

/// One SEND, as its answer names it.
#[derive(Copy, Clone, Debug)]
pub struct SendId {
    /// Its producer.
    pub client: ClientRef,
    /// The (lowest) sequence id.
    pub sequence_id: u64,
    /// The highest one of a batch, if the client named it.
    pub highest_sequence_id: Option<u64>,
    /// Bytes behind the command: what it weighs until it is answered.
    pub bytes: u32,
    /// What it says that it is.
    pub kind: SendKind,
    /// It counts among its connection's unanswered SENDs to non-persistent topics.
    pub volatile: bool,
}

impl SendId {
    /// The sequence id that SEND_ERROR carries: the highest.
    pub fn error_sequence(&self) -> u64 {
        self.highest_sequence_id.unwrap_or(0).max(self.sequence_id)
    }
}

/// What a SEND says of itself that matters for limits and deduplication.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SendKind {
    /// A message or a batch.
    Message,
    /// A part of a message that is too large for one entry.
    Chunk,
    /// Not for consumers.
    Marker,
}

/// How a producer shares its topic (PIP-68).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AccessMode {
    /// With others.
    Shared,
    /// Alone, or not at all.
    Exclusive,
    /// Alone; it waits until it can.
    WaitForExclusive,
    /// Alone; whoever is there is fenced.
    ExclusiveWithFencing,
}

/// The fields of PRODUCER that a topic looks at.
#[derive(Debug)]
pub struct OpenProducer {
    /// The topic.
    pub topic: TopicName,
    /// Request to answer.
    pub request_id: u64,
    /// The client's name for it; absent = the broker makes one.
    pub name: Option<String>,
    /// Rises with every reconnect of the client.
    pub epoch: u64,
    /// How it shares the topic.
    pub access: AccessMode,
    /// The topic's epoch when it had the topic for itself before.
    pub topic_epoch: Option<u64>,
    /// It promises to encrypt its messages.
    pub encrypted: bool,
    /// The client's user chose the name.
    pub user_named: bool,
    /// Kept for statistics.
    pub metadata: Vec<(String, String)>,
    /// `host:port` of the client.
    pub address: String,
    /// Wall clock when it asked, milliseconds since 1970.
    pub asked_ms: u64,
    /// The topic may be created.
    pub create: bool,
    /// A subscription to create from the earliest message, if it is missing.
    pub initial_subscription: Option<String>,
    /// Its schema.
    pub schema: OpenSchema,
}

/// The schema of a producer or consumer that is being opened.
#[derive(Debug)]
pub enum OpenSchema {
    /// The client sent none, or one that takes whatever the topic has.
    Absent,
    /// To be looked at by the core that answers for the topic's schema.
    Given(Schema),
    /// It was: its version, if it is kept under one.
    Decided(Option<u64>),
}

/// The type of a subscription.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SubType {
    /// One consumer.
    Exclusive,
    /// Any number; each message goes to one of them.
    Shared,
    /// One of several is served, and another one if it leaves.
    Failover,
    /// As Shared, and the messages of a key go to one of them in order.
    KeyShared,
}

impl SubType {
    /// As the protocol spells it.
    pub fn name(self) -> &'static str {
        match self {
            SubType::Exclusive => "Exclusive",
            SubType::Shared => "Shared",
            SubType::Failover => "Failover",
            SubType::KeyShared => "Key_Shared",
        }
    }
}

/// How a Key_Shared consumer wants keys to be shared out, or which keys an Exclusive one wants at all.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct KeySharedMeta {
    /// It names its own ranges; otherwise the broker divides the hashes.
    pub sticky: bool,
    /// Messages of a key may be delivered out of order while its consumer changes.
    pub allow_out_of_order: bool,
    /// Ranges of hashes, both ends included. An Exclusive consumer that names any, in whatever mode, is sent only what lies in them.
    pub ranges: Vec<(i32, i32)>,
}

/// The fields of SUBSCRIBE that a topic looks at.
#[derive(Debug)]
pub struct OpenConsumer {
    /// The topic.
    pub topic: TopicName,
    /// Request to answer.
    pub request_id: u64,
    /// The subscription.
    pub subscription: String,
    /// How messages are shared out.
    pub sub_type: SubType,
    /// What a Key_Shared consumer said about keys.
    pub key_shared: Option<KeySharedMeta>,
    /// The client's name for it, possibly empty.
    pub name: String,
    /// 0 is served first.
    pub priority: i32,
    /// A cursor that outlives its consumers.
    pub durable: bool,
    /// Where a non-durable cursor starts: ledger, entry. `None` = latest.
    pub start: Option<Position>,
    /// Start this many seconds back.
    pub rollback_seconds: u64,
    /// A new durable cursor starts at the first message instead of behind the last.
    pub earliest: bool,
    /// The topic may be created.
    pub create_topic: bool,
    /// The subscription may be created.
    pub create_subscription: bool,
    /// Kept with a new subscription.
    pub properties: Vec<(String, String)>,
    /// The redelivery epoch of Exclusive consumers.
    pub epoch: Option<u64>,
    /// What the client says of it, for statistics. Each key once.
    pub metadata: Vec<(String, String)>,
    /// `host:port` of the client, for statistics.
    pub address: String,
    /// Consumers that its connection has already.
    pub siblings: u32,
    /// Protocol version of the client.
    pub version: i32,
    /// Its schema.
    pub schema: OpenSchema,
    /// It takes messages of any schema (AUTO_CONSUME).
    pub any_schema: bool,
}

/// One acknowledged id.
#[derive(Debug, Clone)]
pub struct AckedId {
    /// The entry.
    pub position: Position,
    /// For a part of a batch: bit 1 = still not acknowledged. Empty = the whole entry.
    pub ack_set: Vec<i64>,
}

/// Where SEEK goes.
#[derive(Debug, Clone)]
pub enum SeekTarget {
    /// The next message is this entry; the set says which of its messages are already acknowledged (bit 0).
    Position(Position, Vec<i64>),
    /// The next message is the first one published at this time or later, milliseconds since the Unix epoch.
    PublishTime(u64),
}

/// Why a topic could not be terminated.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum TerminateError {
    /// There is no such topic.
    #[error("the topic does not exist")]
    NotFound,
    /// It has no log, so no end of it could be kept.
    #[error("the topic is not persistent")]
    NotPersistent,
    /// The log cannot be written, now and until the broker is restarted.
    #[error("the log cannot be written; the broker's own log names the cause")]
    Log,
}

/// One entry on its way to a consumer.
#[derive(Debug)]
pub struct Delivery {
    /// The entry.
    pub position: Position,
    /// Index of the topic in its partitioned topic, or -1.
    pub partition: i32,
    /// How often it was handed out before.
    pub redelivery_count: u32,
    /// Messages of the batch that are still to be delivered (bit 1); empty = all.
    pub ack_set: Vec<i64>,
    /// The consumer's redelivery epoch, if it has one.
    pub epoch: Option<u64>,
    /// What the delivery costs, fixed once (PIP-491).
    pub permits: u32,
    /// The stored bytes.
    pub data: Bytes,
}

/// A message between a session and a topic, or between two cores.
#[derive(Debug)]
#[allow(missing_docs)] // Each variant says what it is; its fields are the protocol's.
pub enum Message {
    // Session to topic.
    /// PRODUCER.
    OpenProducer {
        client: ClientRef,
        open: Box<OpenProducer>,
    },
    /// SEND. `refused` = the session found it wrong; the error takes its turn among the receipts.
    Publish {
        send: SendId,
        num_messages: u32,
        /// The session holds itself for [`Reason::TopicRate`] until the publish is charged: to be released once.
        awaits: bool,
        /// Its topic is non-persistent, and too many such SENDs of the connection are unanswered: it is dropped, with a receipt.
        surplus: bool,
        refused: Option<(ServerError, &'static str)>,
        frame: Frame,
    },
    /// CLOSE_PRODUCER, or the connection is gone (no request).
    CloseProducer {
        client: ClientRef,
        request_id: Option<u64>,
    },
    /// SUBSCRIBE.
    OpenConsumer {
        client: ClientRef,
        open: Box<OpenConsumer>,
    },
    /// FLOW.
    Flow { client: ClientRef, permits: u32 },
    /// ACK.
    Ack {
        client: ClientRef,
        ids: Vec<AckedId>,
        cumulative: bool,
        request_id: Option<u64>,
    },
    /// REDELIVER_UNACKNOWLEDGED_MESSAGES; `None` = all.
    Redeliver {
        client: ClientRef,
        ids: Option<Vec<Position>>,
        epoch: Option<u64>,
    },
    /// UNSUBSCRIBE.
    Unsubscribe {
        client: ClientRef,
        request_id: u64,
        force: bool,
    },
    /// CLOSE_CONSUMER, or the connection is gone (no request).
    CloseConsumer {
        client: ClientRef,
        request_id: Option<u64>,
    },
    /// SEEK.
    Seek {
        client: ClientRef,
        request_id: u64,
        target: SeekTarget,
    },
    /// GET_LAST_MESSAGE_ID.
    LastMessageId { client: ClientRef, request_id: u64 },
    /// CONSUMER_STATS.
    ConsumerStats { client: ClientRef, request_id: u64 },
    /// Delivered bytes have left the session's buffer.
    Written { client: ClientRef, bytes: u32 },
    /// Answer to [`Message::Probe`].
    Probed { probe: u64, alive: bool },
    /// Is the topic there? Answered by [`Message::TopicExists`].
    FindTopic {
        session: SessionRef,
        request_id: u64,
        topic: TopicName,
    },
    /// The topics of a namespace on this core. Answered by [`Message::Topics`].
    ListTopics {
        session: SessionRef,
        request_id: u64,
        namespace: String,
        persistent: bool,
        non_persistent: bool,
    },
    /// How many topics of a namespace another core has now.
    TopicCount {
        /// Who.
        from: CoreId,
        /// The namespace.
        namespace: String,
        /// Its persistent topics there.
        count: u32,
    },
    /// One watcher more, or less, of the persistent topics of a namespace: a core wants a [`Message::TopicChanged`] for each change.
    WatchTopics {
        core: CoreId,
        namespace: String,
        on: bool,
    },
    /// GET_OR_CREATE_SCHEMA, by way of the topic: it must exist.
    SchemaOfTopic { topic: TopicName, ask: Box<Ask> },
    /// What became of the schema of a producer or consumer.
    SchemaDecided { client: ClientRef, decided: Decided },

    // To the core that answers for a schema.
    /// A question about a schema. Answered by [`Message::SchemaDecided`] or [`Message::SchemaAnswer`].
    AskSchema(Box<Ask>),
    /// End a topic. Answered by [`Message::Terminated`] to core `from`.
    Terminate {
        from: CoreId,
        token: u64,
        topic: TopicName,
    },

    // Topic to core.
    /// Answer to [`Message::Terminate`], once it is durable: the topic's last position, or why it did not end.
    Terminated {
        token: u64,
        topic: TopicName,
        result: Result<Position, TerminateError>,
    },

    // Administration.
    /// A question of HTTP. Answered by an effect, or by [`Message::AdminAnswer`].
    Admin { asker: Asker, request: Box<Request> },
    /// The answer to [`Message::Admin`], once what it waited for is durable.
    AdminAnswer { asker: Asker, answer: Box<Answer> },

    // Topic to session.
    /// The producer is open.
    ProducerOpened {
        client: ClientRef,
        request_id: u64,
        name: String,
        last_sequence_id: i64,
        schema_version: Option<u64>,
        topic_epoch: Option<u64>,
    },
    /// The producer waits for its turn; [`Message::ProducerOpened`] follows, or a refusal.
    ProducerQueued {
        client: ClientRef,
        request_id: u64,
        name: String,
    },
    /// The producer was refused.
    ProducerRefused {
        client: ClientRef,
        request_id: u64,
        error: ServerError,
        message: String,
    },
    /// Everything the producer had sent is answered, and it is gone. `request_id` = answer this; `by_broker` = tell the client.
    ProducerClosed {
        client: ClientRef,
        request_id: Option<u64>,
        by_broker: bool,
    },
    /// A SEND is durable.
    Receipt { send: SendId, position: Position },
    /// A SEND was refused.
    SendRefused {
        send: SendId,
        error: ServerError,
        message: &'static str,
    },
    /// A SEND came for a producer that is not there.
    NoSuchProducer {
        /// The SEND, which gets no answer.
        send: SendId,
    },
    /// The consumer is registered.
    ConsumerOpened { client: ClientRef, request_id: u64 },
    /// The consumer was refused.
    ConsumerRefused {
        client: ClientRef,
        request_id: u64,
        error: ServerError,
        message: String,
    },
    /// The consumer is gone. `request_id` = answer this; `by_broker` = tell the client.
    ConsumerClosed {
        client: ClientRef,
        request_id: Option<u64>,
        by_broker: bool,
    },
    /// The consumer has everything that a finished topic has.
    EndOfTopic { client: ClientRef },
    /// ACTIVE_CONSUMER_CHANGE.
    ActiveConsumerChange { client: ClientRef, active: bool },
    /// ACK_RESPONSE.
    Acked {
        client: ClientRef,
        request_id: u64,
        error: Option<(ServerError, &'static str)>,
    },
    /// The peer cannot be served: close its connection.
    Disconnect { session: SessionRef },
    /// MESSAGE.
    Deliver {
        client: ClientRef,
        delivery: Delivery,
    },
    /// Any other answer, ready to be sent.
    Reply {
        session: SessionRef,
        command: Box<BaseCommand>,
    },
    /// Send a PING and say whether anything came back in time.
    Probe {
        session: SessionRef,
        probe: u64,
        from: CoreId,
    },
    /// Hold the connection for a reason, until as many [`Message::Release`]s.
    Hold { session: SessionRef, reason: Reason },
    /// Takes one [`Message::Hold`] back.
    Release { session: SessionRef, reason: Reason },
    /// Answer to [`Message::FindTopic`].
    TopicExists {
        session: SessionRef,
        request_id: u64,
        topic: TopicName,
        exists: bool,
        /// Its namespace has no room for the partitions that a first use would make.
        full: bool,
    },
    /// Answer to [`Message::ListTopics`].
    Topics {
        session: SessionRef,
        request_id: u64,
        names: Vec<Arc<str>>,
    },
    /// A persistent topic was created or deleted in a namespace that this core watches.
    TopicChanged {
        namespace: String,
        name: Arc<str>,
        created: bool,
    },
    /// The answer to the GET_SCHEMA or GET_OR_CREATE_SCHEMA that the session's frames wait for.
    SchemaAnswer {
        session: SessionRef,
        command: Box<BaseCommand>,
    },
}

impl Message {
    /// True for what a session handles, false for what a topic handles.
    pub fn is_for_session(&self) -> bool {
        matches!(
            self,
            Message::ProducerOpened { .. }
                | Message::ProducerQueued { .. }
                | Message::ProducerRefused { .. }
                | Message::ProducerClosed { .. }
                | Message::Receipt { .. }
                | Message::SendRefused { .. }
                | Message::NoSuchProducer { .. }
                | Message::ConsumerOpened { .. }
                | Message::ConsumerRefused { .. }
                | Message::ConsumerClosed { .. }
                | Message::EndOfTopic { .. }
                | Message::ActiveConsumerChange { .. }
                | Message::Acked { .. }
                | Message::Disconnect { .. }
                | Message::Deliver { .. }
                | Message::Reply { .. }
                | Message::Probe { .. }
                | Message::Hold { .. }
                | Message::Release { .. }
                | Message::TopicExists { .. }
                | Message::Topics { .. }
                | Message::TopicChanged { .. }
                | Message::SchemaAnswer { .. }
        )
    }
}
