//! The way of messages into the dead-letter and the retry topic.
//!
//! What is sent there is accounted for like every send, but never refused or kept waiting: it is what frees the consumer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::admission::as_client_task;
use crate::client::Client;
use crate::core::consumer::{
    DeadLetterPolicy, REAL_TOPIC, ReceivedMessage, origin_properties, reconsume_times,
};
use crate::error::Result;
use crate::message::{OutgoingMessage, key_of, millis_of};
use crate::part::{DeadLetterSink, Part};
use crate::producer::Producer;
use crate::topic::TopicName;

/// Wait before messages that could not be stored as dead letters are asked for again.
const PAUSE: Duration = Duration::from_secs(1);

/// Sends messages to the dead-letter and the retry topic of one subscription.
pub(crate) struct DeadLetters {
    client: Client,
    subscription: String,
    policy: DeadLetterPolicy,
    /// By topic; one that could not be opened is not remembered.
    producers: tokio::sync::Mutex<HashMap<String, Producer<Bytes>>>,
}

/// The topic of default name for what was sent to `topic`.
pub(crate) fn default_topic(topic: &TopicName, subscription: &str, suffix: &str) -> String {
    format!("{}-{subscription}-{suffix}", topic.base().as_str())
}

impl DeadLetters {
    pub(crate) fn new(client: &Client, subscription: &str, policy: DeadLetterPolicy) -> Self {
        Self {
            client: client.clone(),
            subscription: subscription.to_owned(),
            policy,
            producers: tokio::sync::Mutex::default(),
        }
    }

    /// The topic it was sent to at first.
    fn origin(&self, message: &ReceivedMessage) -> Result<TopicName> {
        let topic = TopicName::parse(&message.topic)?;
        let is_retry = match &self.policy.retry_letter_topic {
            Some(retry) => TopicName::parse(retry)?.base() == topic.base(),
            None => {
                let suffix = format!("-{}-RETRY", self.subscription);
                topic.base().as_str().ends_with(&suffix)
            }
        };
        match message.property(REAL_TOPIC) {
            Some(origin) if is_retry => TopicName::parse(origin),
            _ => Ok(topic),
        }
    }

    async fn send(&self, topic: String, message: OutgoingMessage) -> Result<()> {
        let receipt = {
            let mut producers = self.producers.lock().await;
            let producer = match producers.get(&topic) {
                Some(producer) => producer.clone(),
                None => {
                    let mut builder = self
                        .client
                        .producer(&topic)
                        .batching(false)
                        .block_if_queue_full(false);
                    if let Some(name) = &self.policy.initial_subscription_name {
                        builder = builder.initial_subscription_name(name);
                    }
                    let producer = builder.build().await?;
                    producers.insert(topic.clone(), producer.clone());
                    producer
                }
            };
            let sent = producer.send_accounted(message);
            if sent.is_err() {
                producers.remove(&topic);
            }
            sent?
        };
        receipt.await.map(drop)
    }

    fn outgoing(
        &self,
        message: &ReceivedMessage,
        reconsumed: Option<u32>,
        delay: Option<Duration>,
    ) -> OutgoingMessage {
        let millis = delay.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        let properties = origin_properties(message, &self.subscription, reconsumed, millis);
        OutgoingMessage {
            payload: message.payload.clone(),
            null_value: message.is_null(),
            key: key_of(message),
            ordering_key: message.ordering_key().cloned(),
            properties: properties
                .into_iter()
                .map(|pair| (pair.key, pair.value))
                .collect(),
            event_time: message.event_time(),
            deliver_at: millis.map(|millis| millis_of(SystemTime::now()).saturating_add(millis)),
            ..OutgoingMessage::default()
        }
    }

    async fn give_up_one(&self, message: &ReceivedMessage, reconsumed: Option<u32>) -> Result<()> {
        let topic = match &self.policy.dead_letter_topic {
            Some(topic) => topic.clone(),
            None => default_topic(&self.origin(message)?, &self.subscription, "DLQ"),
        };
        let outgoing = self.outgoing(message, reconsumed, None);
        self.send(topic, outgoing).await
    }

    /// Sends a message to the retry topic, or to the dead-letter topic if that was done often enough.
    pub(crate) async fn reconsume_later(
        &self,
        message: &ReceivedMessage,
        delay: Duration,
    ) -> Result<()> {
        let times = reconsume_times(message).saturating_add(1);
        if times > self.policy.max_redeliver_count {
            return self.give_up_one(message, Some(times)).await;
        }
        let topic = match &self.policy.retry_letter_topic {
            Some(topic) => topic.clone(),
            None => default_topic(&self.origin(message)?, &self.subscription, "RETRY"),
        };
        let outgoing = self.outgoing(message, Some(times), Some(delay));
        self.send(topic, outgoing).await
    }
}

/// What the consumer's parts give their messages to.
pub(crate) struct GivingUp(pub(crate) Arc<DeadLetters>);

impl DeadLetterSink for GivingUp {
    /// The messages are not acknowledged yet, so the broker's limit on those bounds what is under way here.
    fn give_up(&self, part: &Arc<Part>, messages: Vec<ReceivedMessage>) {
        let (letters, part) = (Arc::clone(&self.0), Arc::downgrade(part));
        let runtime = letters.client.shared().runtime.clone();
        runtime.spawn(as_client_task(async move {
            let (mut stored, mut failed) = (Vec::new(), Vec::new());
            for message in &messages {
                match letters.give_up_one(message, None).await {
                    Ok(()) => stored.push(message.id),
                    Err(error) => {
                        tracing::warn!(topic = %message.topic, id = %message.id, %error, "a dead letter could not be stored");
                        failed.push(message.id);
                    }
                }
            }
            if let Some(part) = part.upgrade() {
                // It may be closed by now; then everything comes again elsewhere.
                let _ = part.acknowledge_unasked(&stored);
            }
            if failed.is_empty() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
            if let Some(part) = part.upgrade() {
                part.with(|consumer, _, wire| consumer.dead_letters_failed(&failed, wire));
            }
        }));
    }
}
