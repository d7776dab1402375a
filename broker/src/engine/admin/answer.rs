//! What topics answer to administration.

use bytes::Bytes;
use std::collections::BTreeMap;

use crate::engine::message::SessionRef;
use crate::store::log::Position;

/// The answer to a [`super::Request`].
#[derive(Debug)]
pub enum Answer {
    /// It was done, and is durable.
    Done,
    /// There is no such topic.
    NoTopic,
    /// There is no such subscription.
    NoSubscription,
    /// What was to be made is there.
    Exists,
    /// There is no such message.
    NoMessage,
    /// Who is connected.
    Clients {
        /// Producers.
        producers: usize,
        /// Consumers.
        consumers: usize,
    },
    /// Topics were made; those listed were there before.
    Created {
        /// Full names.
        existed: Vec<String>,
    },
    /// Nothing of this subscription is old enough.
    NothingToExpire {
        /// The subscription.
        subscription: String,
    },
    /// The cursor is being moved by somebody else.
    Busy {
        /// The subscription.
        subscription: String,
    },
    /// It cannot be done, and why.
    Failed(String),
    /// What was asked is not for topics of this kind, and why.
    NotAllowed(String),
    /// It would be more than is allowed, and why.
    TooLarge(String),
    /// Too much else is under way: it may be asked again.
    Crowded(String),
    /// It cannot be done now, because of something else that is being done, and why.
    Conflict(String),
    /// Names.
    Names(Vec<String>),
    /// Small named values.
    Properties(BTreeMap<String, String>),
    /// A message id.
    Id {
        /// The entry; entry -1 of a ledger stands before its first.
        position: Position,
        /// Messages in the entry, if it is a batch.
        batch: Option<i32>,
    },
    /// A stored entry.
    Entry {
        /// Where it is.
        position: Position,
        /// Its bytes as published.
        data: Bytes,
    },
    /// Counters and rates.
    Stats(Box<TopicStats>),
    /// The log behind the topic.
    Internal(Box<InternalStats>),
    /// Peers of sessions; `None`: it is gone.
    Sessions(Vec<Option<SessionInfo>>),
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Default)]
pub struct SessionInfo {
    /// Address and port.
    pub address: String,
    /// What the client says it is.
    pub client_version: String,
}

/// Counters and rates of a topic. Rates are per second over the last whole window.
#[derive(Debug, Clone, Default)]
pub struct TopicStats {
    /// Messages published per second.
    pub rate_in: f64,
    /// Bytes published per second.
    pub throughput_in: f64,
    /// Messages per second that nobody could take, of a non-persistent topic.
    pub drop_rate: f64,
    /// Messages published since the topic was loaded.
    pub messages_in: u64,
    /// Bytes published since the topic was loaded.
    pub bytes_in: u64,
    /// Bytes stored.
    pub storage_size: u64,
    /// Times the publish rate held a connection.
    pub rate_limited: u64,
    /// Wall clock when it was created, milliseconds.
    pub created_ms: u64,
    /// Wall clock of the last publish, milliseconds; 0: none since it was loaded.
    pub last_publish_ms: u64,
    /// A part of a large message was published.
    pub chunked: bool,
    /// Deduplication is on.
    pub deduplication: bool,
    /// Connected producers.
    pub publishers: Vec<ProducerStats>,
    /// The topic's epoch, if a producer ever had it for itself.
    pub epoch: Option<u64>,
    /// Producers that wait for exclusive access.
    pub waiting_publishers: u64,
    /// Subscriptions by name.
    pub subscriptions: BTreeMap<String, SubscriptionStats>,
}

/// One producer.
#[derive(Debug, Clone)]
pub struct ProducerStats {
    /// Its connection.
    pub session: SessionRef,
    /// The id that the client gave it.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The name is its client's choice, not ours.
    pub user_named: bool,
    /// What its client says of itself.
    pub metadata: Vec<(String, String)>,
    /// As Pulsar names it.
    pub access_mode: &'static str,
    /// Messages per second.
    pub rate_in: f64,
    /// Bytes per second.
    pub throughput_in: f64,
    /// Messages per second that were dropped because too many of its connection were unanswered.
    pub drop_rate: f64,
    /// Wall clock when it was opened, milliseconds.
    pub connected_ms: u64,
}

/// One subscription.
#[derive(Debug, Clone, Default)]
pub struct SubscriptionStats {
    /// As Pulsar names it; `None` until a consumer was connected.
    pub kind: &'static str,
    /// Its cursor outlives consumers.
    pub durable: bool,
    /// Messages per second that none of its consumers could take, on a non-persistent topic.
    pub drop_rate: f64,
    /// Messages delivered per second.
    pub rate_out: f64,
    /// Bytes delivered per second.
    pub throughput_out: f64,
    /// Messages delivered.
    pub messages_out: u64,
    /// Bytes delivered.
    pub bytes_out: u64,
    /// Messages delivered again per second.
    pub redeliver_rate: f64,
    /// Messages acknowledged per second.
    pub ack_rate: f64,
    /// Entries not acknowledged.
    pub backlog: u64,
    /// Their bytes, about.
    pub backlog_size: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Memory that keeping them takes, bytes.
    pub delayed_memory: u64,
    /// Entries that wait to be delivered again.
    pub in_replay: u64,
    /// Messages delivered and not acknowledged.
    pub unacked: u64,
    /// Nothing is delivered because of that.
    pub blocked: bool,
    /// Ranges of acknowledged entries behind the mark-delete position.
    pub ack_ranges: u64,
    /// The consumer that gets the messages, where only one does.
    pub active_consumer: Option<String>,
    /// Wall clock of the last delivery, milliseconds; 0: none.
    pub last_consumed_ms: u64,
    /// Wall clock of the last acknowledgment, milliseconds; 0: none.
    pub last_acked_ms: u64,
    /// Keys may be delivered out of order.
    pub allow_out_of_order: bool,
    /// `AUTO_SPLIT` or `STICKY` for Key_Shared.
    pub key_shared_mode: Option<&'static str>,
    /// Its properties.
    pub properties: Vec<(String, String)>,
    /// Connected consumers.
    pub consumers: Vec<ConsumerStats>,
}

/// One consumer.
#[derive(Debug, Clone)]
pub struct ConsumerStats {
    /// Its connection.
    pub session: SessionRef,
    /// Its name.
    pub name: String,
    /// What its client says of it.
    pub metadata: Vec<(String, String)>,
    /// Messages delivered per second.
    pub rate_out: f64,
    /// Bytes delivered per second.
    pub throughput_out: f64,
    /// Messages delivered.
    pub messages_out: u64,
    /// Bytes delivered.
    pub bytes_out: u64,
    /// Messages delivered again per second.
    pub redeliver_rate: f64,
    /// Messages acknowledged per second.
    pub ack_rate: f64,
    /// Its balance.
    pub permits: i64,
    /// Messages delivered and not acknowledged.
    pub unacked: u64,
    /// Messages per entry on average.
    pub messages_per_entry: u64,
    /// It gets nothing because of what it has not acknowledged.
    pub blocked: bool,
    /// Wall clock when it was opened, milliseconds.
    pub connected_ms: u64,
    /// Wall clock of the first delivery, milliseconds; 0: none.
    pub first_sent_ms: u64,
    /// Wall clock of the last delivery, milliseconds; 0: none.
    pub last_consumed_ms: u64,
    /// Wall clock of the last acknowledgment, milliseconds; 0: none.
    pub last_acked_ms: u64,
    /// Hash ranges it owns, Key_Shared.
    pub key_ranges: Option<Vec<(u32, u32)>>,
    /// Hashes it holds messages of that are another consumer's by now: hash, unacknowledged messages, attempts that waited.
    pub draining: Vec<(u32, u32, u32)>,
    /// Hashes can come to be such: new owners of keys wait for it.
    pub drains: bool,
    /// Hashes that it held so and that are free.
    pub drained: u64,
}

/// The log behind a topic.
#[derive(Debug, Clone, Default)]
pub struct InternalStats {
    /// Entries published since the topic was loaded.
    pub entries_added: u64,
    /// Entries stored.
    pub entries: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// Entries that are not durable yet.
    pub pending: u64,
    /// The last durable entry.
    pub last_confirmed: Option<Position>,
    /// It takes no more entries.
    pub terminated: bool,
    /// Oldest first; the last one is open.
    pub ledgers: Vec<LedgerStats>,
    /// Durable subscriptions by name.
    pub cursors: BTreeMap<String, CursorStats>,
    /// Properties of the topic.
    pub properties: BTreeMap<String, String>,
}

/// One ledger.
#[derive(Debug, Clone, Default)]
pub struct LedgerStats {
    /// Its id.
    pub id: i64,
    /// Entries in it.
    pub entries: i64,
    /// Their bytes.
    pub bytes: u64,
    /// Wall clock when it was opened, milliseconds.
    pub opened_ms: u64,
}

/// One cursor.
#[derive(Debug, Clone)]
pub struct CursorStats {
    /// Everything up to here is acknowledged.
    pub mark_delete: Position,
    /// The next entry to be read.
    pub read: Position,
    /// Consumers are connected.
    pub active: bool,
    /// Everything was read, and somebody could be sent the next entry.
    pub waiting: bool,
    /// Entries wait to be delivered again.
    pub replay: bool,
    /// Entries acknowledged, since the first one there is.
    pub consumed: u64,
    /// Entries between the mark-delete and the read position.
    pub since_first_unacked: u64,
    /// Ranges of acknowledged entries behind the mark-delete position, at most
    /// [`CursorStats::RANGES_MAX`].
    pub ranges: Vec<(Position, Position)>,
    /// How many there are.
    pub ranges_total: u64,
}

impl CursorStats {
    /// Ranges that are listed; a cursor may have millions.
    pub const RANGES_MAX: usize = 1000;
}
