//! Settings of a consumer, with Pulsar's names and defaults.

use std::sync::Arc;

use vela_proto::command_subscribe::SubType;
use vela_proto::{KeyValue, Schema};

use super::Nanos;
use crate::StartPosition;

pub(crate) const MILLI: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000 * MILLI;

/// How the messages of a subscription are given to its consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubscriptionType {
    /// One consumer only.
    #[default]
    Exclusive,
    /// Any number, each message to one of them.
    Shared,
    /// One active consumer, the others stand by.
    Failover,
    /// As [`Shared`](Self::Shared), but all messages of a key go to the same consumer.
    KeyShared,
}

impl SubscriptionType {
    /// The protocol's number.
    #[must_use]
    pub fn wire(self) -> SubType {
        match self {
            Self::Exclusive => SubType::Exclusive,
            Self::Shared => SubType::Shared,
            Self::Failover => SubType::Failover,
            Self::KeyShared => SubType::KeyShared,
        }
    }

    /// Whether several consumers get messages at once: then acknowledgements are individual and there are no epochs.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Shared | Self::KeyShared)
    }
}

/// How keys are given to the consumers of a Key_Shared subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySharedPolicy {
    /// Fixed hash ranges, both ends included, 0..=65535; empty: the broker splits.
    pub sticky_ranges: Vec<(u16, u16)>,
    /// Whether messages of a key may overtake each other when consumers come and go.
    pub allow_out_of_order_delivery: bool,
}

/// What becomes of a message this client cannot decrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CryptoFailureAction {
    /// It is not delivered and stays unacknowledged; its permits go back.
    #[default]
    Fail,
    /// It is acknowledged as undecryptable and dropped.
    Discard,
    /// The encrypted payload is delivered as it is, a batch as one message.
    Consume,
}

/// Growing waits: `min · multiplier^n`, at most `max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RedeliveryBackoff {
    /// First wait, in nanoseconds.
    pub min: Nanos,
    /// Longest wait, in nanoseconds.
    pub max: Nanos,
    /// Factor from one redelivery to the next; at least 1.
    pub multiplier: f64,
}

impl RedeliveryBackoff {
    /// The wait before redelivery number `count` (from 0).
    #[must_use]
    pub fn delay(&self, count: u32) -> Nanos {
        let factor = self.multiplier.max(1.0).powf(f64::from(count.min(1024)));
        let wait = self.min as f64 * factor;
        if wait >= self.max as f64 {
            self.max
        } else {
            wait as Nanos
        }
    }
}

/// When a message is given up, and where it goes then. Only for Shared and Key_Shared: the others have no redelivery counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterPolicy {
    /// Redeliveries after which a message is given up, at least 1.
    pub max_redeliver_count: u32,
    /// Topic of the messages given up; `<topic>-<subscription>-DLQ` if not set.
    pub dead_letter_topic: Option<String>,
    /// Topic of `reconsume_later`; `<topic>-<subscription>-RETRY` if not set.
    pub retry_letter_topic: Option<String>,
    /// A subscription to create with the dead-letter topic, so that nothing sent to it is lost.
    pub initial_subscription_name: Option<String>,
}

impl DeadLetterPolicy {
    /// Gives a message up after so many redeliveries, to the topics of default name.
    #[must_use]
    pub fn new(max_redeliver_count: u32) -> Self {
        Self {
            max_redeliver_count,
            dead_letter_topic: None,
            retry_letter_topic: None,
            initial_subscription_name: None,
        }
    }
}

/// Everything a consumer of one topic (or partition) is told.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Full name of the topic or partition.
    pub topic: Arc<str>,
    /// Subscription.
    pub subscription: String,
    /// Its type.
    pub subscription_type: SubscriptionType,
    /// Name of the consumer; the broker chooses if not set.
    pub consumer_name: Option<String>,
    /// 0 is served first.
    pub priority_level: i32,
    /// Whether the broker keeps the position when all consumers are gone.
    pub durable: bool,
    /// Where a reader, or a new durable subscription, begins; the latter only at one of the two ends.
    pub start: StartPosition,
    /// For readers: begin so many seconds before now; 0: not.
    pub start_rollback_seconds: u64,
    /// Read the compacted view of the topic.
    pub read_compacted: bool,
    /// Schema of the consumer, checked by the broker.
    pub schema: Option<Schema>,
    /// Properties of the consumer, shown in the broker's statistics.
    pub properties: Vec<KeyValue>,
    /// Properties stored with a new subscription.
    pub subscription_properties: Vec<KeyValue>,
    /// Whether the subscription's position is copied to other clusters.
    pub replicate_subscription_state: Option<bool>,
    /// For Key_Shared.
    pub key_shared: Option<KeySharedPolicy>,
    /// Messages the broker may send ahead; 0: one per call, none ahead.
    pub receiver_queue_size: u32,
    /// Whether delivery waits for `resume` at first.
    pub start_paused: bool,
    /// Longest time acknowledgements are collected; 0: each is sent at once.
    pub ack_group_time: Nanos,
    /// Most acknowledgements collected.
    pub ack_group_max: usize,
    /// Whether acknowledging waits for the broker's answer.
    pub ack_receipt: bool,
    /// Whether single messages of a batch are acknowledged at the broker; else a batch is when all its messages are.
    pub batch_index_ack: bool,
    /// After this long without acknowledgement a message is asked for again; 0: never.
    pub ack_timeout: Nanos,
    /// Waits that replace [`ack_timeout`](Self::ack_timeout), by redelivery count.
    pub ack_timeout_backoff: Option<RedeliveryBackoff>,
    /// From a negative acknowledgement to asking for the message again.
    pub negative_ack_redelivery_delay: Nanos,
    /// Waits that replace it, by redelivery count.
    pub negative_ack_backoff: Option<RedeliveryBackoff>,
    /// Most messages of which some chunks are there and some are missing.
    pub max_pending_chunked_messages: usize,
    /// Longest time from the first chunk to the last. It does not end while the broker has no permits to send with.
    pub expire_incomplete_chunked_message: Nanos,
    /// Whether incomplete messages beyond these two limits are acknowledged instead of asked for again.
    pub auto_ack_oldest_chunked_message: bool,
    /// For encrypted messages.
    pub crypto_failure_action: CryptoFailureAction,
    /// When messages are given up.
    pub dead_letter: Option<DeadLetterPolicy>,
    /// Largest payload after decompression, in bytes; a larger one counts as damaged.
    pub max_uncompressed_size: usize,
    /// Most batches whose single acknowledgements are remembered; the oldest is forgotten, its messages may come again. As many messages
    /// in chunks that were not acknowledged; of one that is forgotten the chunks are not known any more.
    pub max_tracked_batches: usize,
}

impl ConsumerConfig {
    /// Pulsar's defaults.
    #[must_use]
    pub fn new(topic: impl Into<Arc<str>>, subscription: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            subscription: subscription.into(),
            subscription_type: SubscriptionType::Exclusive,
            consumer_name: None,
            priority_level: 0,
            durable: true,
            start: StartPosition::Latest,
            start_rollback_seconds: 0,
            read_compacted: false,
            schema: None,
            properties: Vec::new(),
            subscription_properties: Vec::new(),
            replicate_subscription_state: None,
            key_shared: None,
            receiver_queue_size: 1000,
            start_paused: false,
            ack_group_time: 100 * MILLI,
            ack_group_max: 1000,
            ack_receipt: false,
            batch_index_ack: true,
            ack_timeout: 0,
            ack_timeout_backoff: None,
            negative_ack_redelivery_delay: 60 * SECOND,
            negative_ack_backoff: None,
            max_pending_chunked_messages: 10,
            expire_incomplete_chunked_message: 60 * SECOND,
            auto_ack_oldest_chunked_message: false,
            crypto_failure_action: CryptoFailureAction::Fail,
            dead_letter: None,
            max_uncompressed_size: 256 << 20,
            max_tracked_batches: 65_536,
        }
    }

    pub(crate) fn nack_delay(&self, redelivery_count: u32) -> Nanos {
        self.negative_ack_backoff
            .map_or(self.negative_ack_redelivery_delay, |b| {
                b.delay(redelivery_count)
            })
    }

    pub(crate) fn ack_timeout_of(&self, redelivery_count: u32) -> Option<Nanos> {
        match self.ack_timeout_backoff {
            Some(backoff) => Some(backoff.delay(redelivery_count)),
            None => (self.ack_timeout > 0).then_some(self.ack_timeout),
        }
    }
}
