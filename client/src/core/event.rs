//! What the machine tells whoever drives it.

use bytes::Bytes;
use vela_proto as proto;

use super::consumer::ConsumerEvent;
use super::{CallKey, ConnKey, ConsumerKey, ProducerKey, WatchKey};
use crate::error::{Error, Result};
use crate::id::MessageId;

/// Something happened, or must be done. `S` is what travels with a send, see [`Ticket`](super::Ticket).
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<S> {
    /// Connect a socket to `url`, then call [`Machine::connected`](super::Machine::connected), or
    /// [`connection_lost`](super::Machine::connection_lost) if that fails.
    Connect {
        /// The connection.
        conn: ConnKey,
        /// `pulsar://host:port` or `pulsar+ssl://host:port`.
        url: String,
    },
    /// Close the socket; the machine has already forgotten the connection. What it still had to write is lost.
    Disconnect {
        /// The connection.
        conn: ConnKey,
        /// Why.
        why: String,
    },
    /// There is something to write on this connection where there was nothing before.
    Transmit {
        /// The connection.
        conn: ConnKey,
    },
    /// Credentials are needed: answer with [`Machine::authenticate`](super::Machine::authenticate).
    Authenticate {
        /// The connection.
        conn: ConnKey,
        /// The broker's challenge; `None` at first.
        challenge: Option<Bytes>,
    },
    /// A producer is open for the first time.
    ProducerOpened {
        /// The producer.
        producer: ProducerKey,
        /// Its name.
        name: String,
        /// The last sequence id the broker knows of this name; -1 if none.
        last_sequence_id: i64,
        /// The version of its schema; empty without.
        schema_version: Bytes,
    },
    /// A producer could not be opened, or has come to an end by itself. All its sends have had theirs; the machine has forgotten it.
    ProducerFailed {
        /// The producer.
        producer: ProducerKey,
        /// Why.
        error: Error,
    },
    /// A producer is closed as asked. All its sends have had their ends; the machine has forgotten it.
    ProducerClosed {
        /// The producer.
        producer: ProducerKey,
    },
    /// Sends have come to their end.
    Sends(SendsDone<S>),
    /// All that was sent before a [`flush`](super::Machine::flush) has come to its end.
    Flushed {
        /// The producer.
        producer: ProducerKey,
        /// What `flush` answered.
        flush: u64,
    },
    /// Something happened to a consumer. It is forgotten after [`ConsumerEvent::Closed`].
    Consumer {
        /// The consumer.
        consumer: ConsumerKey,
        /// What happened.
        event: ConsumerEvent,
    },
    /// A consumer could not be opened, or has come to an end by itself. The machine has forgotten it, and its unanswered calls with it.
    ConsumerFailed {
        /// The consumer.
        consumer: ConsumerKey,
        /// Why.
        error: Error,
    },
    /// The answer to a question.
    Answer {
        /// The question.
        call: CallKey,
        /// Its answer.
        result: Result<Answer>,
    },
    /// The topics that a watch is over have changed.
    Topics {
        /// The watch.
        watch: WatchKey,
        /// What changed.
        change: TopicsChanged,
    },
    /// The broker watches no topics, or not these: ask for the list now and then instead. The watch is over.
    WatchFailed {
        /// The watch.
        watch: WatchKey,
        /// Why.
        error: Error,
    },
}

/// Sends of one entry that have ended together.
#[derive(Debug)]
pub struct SendsDone<S> {
    /// Of which producer.
    pub producer: ProducerKey,
    /// Where they lie, or why they do not.
    pub result: Result<Receipt>,
    /// What came with them, in the order of sending.
    pub sends: Vec<S>,
}

impl<S> SendsDone<S> {
    /// Each send with its own result.
    pub fn each(self) -> impl Iterator<Item = (S, Result<MessageId>)> {
        let Self { result, sends, .. } = self;
        (0..).zip(sends).map(move |(index, send)| {
            let result = match &result {
                Ok(receipt) => Ok(receipt.message_id(index)),
                Err(error) => Err(error.clone()),
            };
            (send, result)
        })
    }
}

/// Where an entry lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Ledger; `u64::MAX` if the broker had the message already (deduplication) or keeps none.
    pub ledger: u64,
    /// Entry in the ledger.
    pub entry: u64,
    /// Partition of the topic; -1 if it has none.
    pub partition: i32,
    /// Messages in the entry if it is a batch, else 0.
    pub batch_size: i32,
    /// Ledger and entry of the first chunk, if it was sent in chunks; `ledger` and `entry` are the last one's.
    pub first_chunk: Option<(u64, u64)>,
}

impl Receipt {
    /// The identity of message `index` of the entry.
    #[must_use]
    pub fn message_id(&self, index: i32) -> MessageId {
        MessageId {
            ledger: self.ledger,
            entry: self.entry,
            batch_index: if self.batch_size > 0 { index } else { -1 },
            partition: self.partition,
            batch_size: self.batch_size,
            first_chunk: self.first_chunk,
        }
    }
}

/// What a question was answered.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// Partitions of a topic; 0 if it has none.
    Partitions(u32),
    /// Topics of a namespace, partitions one by one.
    Topics {
        /// Full names; empty if unchanged.
        topics: Vec<String>,
        /// The broker applied the pattern.
        filtered: bool,
        /// Hash of the list.
        hash: Option<String>,
        /// The list differs from the one whose hash was given.
        changed: bool,
    },
    /// A schema of a topic.
    Schema {
        /// The schema.
        schema: proto::Schema,
        /// Its version, opaque.
        version: Bytes,
    },
    /// The version under which a schema is registered, opaque.
    SchemaVersion(Bytes),
    /// The broker that serves a topic.
    Broker(String),
}

/// A change in the topics that a watch is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicsChanged {
    /// All topics: the first answer, and after a reconnect if the list had changed meanwhile.
    All(Vec<String>),
    /// Topics that came and went.
    Some {
        /// New.
        added: Vec<String>,
        /// Gone.
        removed: Vec<String>,
    },
}
