//! Consumers: of one topic, of several, of partitions, or of all that match a pattern.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use tokio::task::AbortHandle;

use crate::builder::Settings;
use crate::client::Client;
use crate::core::consumer::{ConsumerAnswer, ConsumerStats, ReceivedMessage};
use crate::dead_letter::DeadLetters;
use crate::error::{Error, Result};
use crate::id::{MessageId, StartPosition};
use crate::message::{AsMessageId, Message};
use crate::multi::Parts;
use crate::part::Part;
use crate::schema::Schema;

/// Bytes after which [`Consumer::batch_receive`] takes no more.
const BATCH_RECEIVE_BYTES: usize = 10 << 20;

/// A consumer without its schema.
pub(crate) struct ConsumerCore {
    pub(crate) client: Client,
    pub(crate) parts: Arc<Parts>,
    pub(crate) settings: Settings,
    pub(crate) letters: Option<Arc<DeadLetters>>,
    pub(crate) tasks: Vec<AbortHandle>,
}

impl Drop for ConsumerCore {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl ConsumerCore {
    fn poll_receive(&self, context: &mut Context<'_>) -> Poll<Result<ReceivedMessage>> {
        self.parts
            .inbox()
            .poll_take(context, || self.parts.try_take())
    }

    fn part(&self, message: &impl AsMessageId) -> Result<Arc<Part>> {
        self.parts.of(&message.message_id(), message.topic_name())
    }

    pub(crate) async fn seek(&self, position: StartPosition) -> Result<()> {
        let parts = match position {
            StartPosition::Message { id, .. }
                if id != MessageId::EARLIEST && id != MessageId::LATEST =>
            {
                vec![self.parts.of(&id, None)?]
            }
            _ => self.parts.all(),
        };
        self.parts.inbox().clear_stash();
        for part in parts {
            part.call(|consumer, now, call, wire| consumer.seek(now, position, call, wire))
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn has_message_available(&self) -> Result<bool> {
        for part in self.parts.all() {
            let asked = part
                .call(|consumer, now, call, wire| consumer.has_message_available(now, call, wire));
            if asked.await? == ConsumerAnswer::HasMessage(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) async fn close(&self) -> Result<()> {
        for task in &self.tasks {
            task.abort();
        }
        let mut result = Ok(());
        for part in self.parts.all() {
            let closed = part.close().await;
            result = result.and(closed);
        }
        self.parts.inbox().end(Error::Closed("the consumer"));
        result
    }
}

type Next<T> = Pin<Box<dyn Future<Output = Result<Message<T>>> + Send>>;

/// Receives messages of a subscription. Clones are the same consumer; it is closed with the last one.
///
/// It is a [`Stream`] as well, which ends with the consumer.
pub struct Consumer<T> {
    pub(crate) core: Arc<ConsumerCore>,
    pub(crate) schema: Arc<dyn Schema<Value = T>>,
    /// The next message of the stream, when its schema has to be fetched first.
    next: Mutex<Option<Next<T>>>,
}

impl<T: 'static> Consumer<T> {
    pub(crate) fn new(core: Arc<ConsumerCore>, schema: Arc<dyn Schema<Value = T>>) -> Self {
        Self {
            core,
            schema,
            next: Mutex::default(),
        }
    }

    /// The next message. Dropping the future loses nothing.
    ///
    /// # Errors
    /// If the consumer is closed, or has come to its end.
    pub async fn receive(&self) -> Result<Message<T>> {
        let mut tried = None;
        loop {
            let message = poll_fn(|context| self.core.poll_receive(context)).await?;
            let version = match self.unknown_version(&message) {
                Some(version) if tried.as_ref() != Some(&version) => version,
                // Without its schema the value cannot be decoded, which is said where it is asked for.
                _ => return Ok(Message::new(message, Arc::clone(&self.schema))),
            };
            tried = Some(version.clone());
            let topic = Arc::clone(&message.topic);
            // Kept while the schema is fetched, in case nobody waits for that any more.
            self.core.parts.inbox().put_back(message);
            self.learn(&topic, version).await;
        }
    }

    fn unknown_version(&self, message: &ReceivedMessage) -> Option<Bytes> {
        let version = message.schema_version()?;
        self.schema.wants_version(version).then(|| version.clone())
    }

    /// Fetches the schema of a writer.
    async fn learn(&self, topic: &str, version: Bytes) {
        let info = self.core.client.schema(topic, Some(version.clone())).await;
        let learnt = info.and_then(|(info, _)| self.schema.learn(&version, &info));
        if let Err(error) = learnt {
            tracing::debug!(topic, %error, "the schema of a message");
        }
    }

    /// The next message if one is here.
    ///
    /// # Errors
    /// If the consumer is closed.
    pub fn try_receive(&self) -> Result<Option<Message<T>>> {
        match self.core.parts.try_take() {
            Some(message) => Ok(Some(Message::new(message, Arc::clone(&self.schema)))),
            None => self.core.parts.inbox().ended().map_or(Ok(None), Err),
        }
    }

    /// Messages that come within a time, at most so many and about 10 MiB; none if none comes.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub async fn batch_receive(
        &self,
        max_messages: usize,
        timeout: Duration,
    ) -> Result<Vec<Message<T>>> {
        let end = Instant::now() + timeout;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while messages.len() < max_messages && bytes < BATCH_RECEIVE_BYTES {
            match tokio::time::timeout_at(end.into(), self.receive()).await {
                Ok(Ok(message)) => {
                    bytes += message.payload().len();
                    messages.push(message);
                }
                // What is here is not given up for it; it comes again.
                Ok(Err(error)) if messages.is_empty() => return Err(error),
                Ok(Err(_)) | Err(_) => break,
            }
        }
        Ok(messages)
    }

    /// Acknowledges a message: it will not be delivered to this subscription again.
    ///
    /// With `ack_receipt` it waits for the broker's answer, else acknowledgements are collected and sent soon.
    ///
    /// A message that came in chunks is acknowledged with all of them. Which they are is known of the messages that this consumer
    /// delivered. By an id from elsewhere, of an earlier process say, such a message is acknowledged when it comes to this consumer again,
    /// which does not deliver it then.
    ///
    /// # Errors
    /// If the consumer is closed, the message is not its own, or the broker refuses; with `ack_receipt` also if the chunks of the message
    /// are not known.
    pub async fn ack(&self, message: impl AsMessageId) -> Result<()> {
        let part = self.core.part(&message)?;
        let receipt = self.core.settings.config.ack_receipt;
        part.acknowledge(&[message.message_id()], receipt).await
    }

    /// Acknowledges several messages at once.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn ack_all<M: AsMessageId>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<()> {
        let mut parts: Vec<(Arc<Part>, Vec<MessageId>)> = Vec::new();
        for message in messages {
            let part = self.core.part(&message)?;
            let id = message.message_id();
            match parts
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, &part))
            {
                Some((_, ids)) => ids.push(id),
                None => parts.push((part, vec![id])),
            }
        }
        let receipt = self.core.settings.config.ack_receipt;
        for (part, ids) in parts {
            part.acknowledge(&ids, receipt).await?;
        }
        Ok(())
    }

    /// Acknowledges all messages up to this one, itself included; of several topics or partitions, those of its own.
    /// Messages in chunks count by their last chunk: one that ends behind this message is not acknowledged, as long as it is awaited
    /// (`expire_incomplete_chunked_message`, which an outage counts towards).
    ///
    /// # Errors
    /// As [`ack`](Self::ack); on Shared and Key_Shared always.
    pub async fn ack_cumulative(&self, message: impl AsMessageId) -> Result<()> {
        let (part, id) = (self.core.part(&message)?, message.message_id());
        part.call(|consumer, now, call, wire| {
            consumer.acknowledge_cumulative(now, &id, Some(call), wire);
        })
        .await
        .map(drop)
    }

    /// Says that a message could not be handled: it comes again after `negative_ack_redelivery_delay`.
    ///
    /// On Exclusive and Failover everything that is not acknowledged comes again with it.
    ///
    /// # Errors
    /// If the consumer is closed, or the message is not its own.
    pub async fn nack(&self, message: &Message<T>) -> Result<()> {
        self.nack_id(message, message.redelivery_count())
    }

    /// The same by id. The wait is that of a message redelivered so many times.
    ///
    /// # Errors
    /// As [`nack`](Self::nack).
    pub fn nack_id(&self, message: impl AsMessageId, redelivery_count: u32) -> Result<()> {
        let (part, id) = (self.core.part(&message)?, message.message_id());
        part.with(|consumer, now, _| consumer.negative_acknowledge(now, &id, redelivery_count))
            .ok_or(Error::Closed("the consumer"))
    }

    /// Sends the message to the retry topic, from where it comes again after this time, and acknowledges it; once that was done
    /// `max_redeliver_count` times it goes to the dead-letter topic. Needs `enable_retry`.
    ///
    /// # Errors
    /// If it cannot be stored there; it is not acknowledged then.
    pub async fn reconsume_later(&self, message: &Message<T>, delay: Duration) -> Result<()> {
        let letters = match &self.core.letters {
            Some(letters) if self.core.settings.enable_retry => letters,
            _ => {
                return Err(Error::Config {
                    setting: "enable_retry",
                    value: "false".to_owned(),
                    reason: "reconsume_later needs it, so that the retry topic is consumed"
                        .to_owned(),
                });
            }
        };
        letters.reconsume_later(message.raw(), delay).await?;
        self.ack(message).await
    }

    /// Asks for everything again that was not acknowledged.
    ///
    /// # Errors
    /// If the consumer is closed.
    pub async fn redeliver_unacknowledged_messages(&self) -> Result<()> {
        self.core.parts.inbox().clear_stash();
        for part in self.core.parts.all() {
            part.with(|consumer, _, wire| consumer.redeliver_unacknowledged(wire))
                .ok_or(Error::Closed("the consumer"))?;
        }
        Ok(())
    }

    /// Moves the subscription. Of several topics or partitions: to an end or a time all, to a message its own.
    ///
    /// # Errors
    /// If the broker refuses, or the consumer is closed.
    pub async fn seek(&self, position: StartPosition) -> Result<()> {
        self.core.seek(position).await
    }

    /// Whether something is there behind what was received.
    ///
    /// # Errors
    /// If the broker refuses, or the consumer is closed.
    pub async fn has_message_available(&self) -> Result<bool> {
        self.core.has_message_available().await
    }

    /// The last message of each topic or partition that holds any.
    ///
    /// # Errors
    /// If the broker refuses, or the consumer is closed.
    pub async fn last_message_ids(&self) -> Result<Vec<(String, MessageId)>> {
        let mut ids = Vec::new();
        for part in self.core.parts.all() {
            let asked =
                part.call(|consumer, now, call, wire| consumer.last_message_id(now, call, wire));
            if let ConsumerAnswer::LastMessageId { last: Some(id), .. } = asked.await? {
                ids.push((part.topic.to_string(), id));
            }
        }
        Ok(ids)
    }

    /// The broker sends no more than it has permits for, until [`resume`](Self::resume).
    pub fn pause(&self) {
        for part in self.core.parts.all() {
            part.with(|consumer, _, _| consumer.pause());
        }
    }

    /// Ends [`pause`](Self::pause).
    pub fn resume(&self) {
        for part in self.core.parts.all() {
            part.with(|consumer, _, wire| consumer.resume(wire));
        }
    }

    /// Removes the subscription, and closes the consumer.
    ///
    /// # Errors
    /// If the broker refuses, as it does while others are connected.
    pub async fn unsubscribe(&self) -> Result<()> {
        self.unsubscribe_all(false).await
    }

    /// Removes the subscription even if others are connected, who are closed by it.
    ///
    /// # Errors
    /// If the broker refuses.
    pub async fn force_unsubscribe(&self) -> Result<()> {
        self.unsubscribe_all(true).await
    }

    async fn unsubscribe_all(&self, force: bool) -> Result<()> {
        for part in self.core.parts.all() {
            part.call(|consumer, now, call, wire| consumer.unsubscribe(now, force, call, wire))
                .await?;
        }
        self.core.close().await
    }

    /// Sends what was acknowledged, and closes the consumer. Whoever waits for messages is told.
    ///
    /// # Errors
    /// If the connection broke meanwhile.
    pub async fn close(&self) -> Result<()> {
        self.core.close().await
    }

    /// Name of the subscription.
    #[must_use]
    pub fn subscription(&self) -> &str {
        &self.core.settings.config.subscription
    }

    /// The topics it consumes now, each partitioned one by its own name.
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        self.core.parts.topics()
    }

    /// Whether it is connected now, for all topics and partitions.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let parts = self.core.parts.all();
        !parts.is_empty() && parts.iter().all(|part| part.is_connected())
    }

    /// Whether it is the active consumer of a Failover subscription, of one topic or partition at least.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.core.parts.all().iter().any(|part| part.is_active())
    }

    /// Whether all topics are terminated and everything was delivered.
    #[must_use]
    pub fn has_reached_end_of_topic(&self) -> bool {
        let parts = self.core.parts.all();
        !parts.is_empty() && parts.iter().all(|part| part.has_reached_end())
    }

    /// Counts of each topic or partition.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, ConsumerStats)> {
        let parts = self.core.parts.all();
        parts
            .iter()
            .filter_map(|part| Some((part.topic.to_string(), part.stats()?)))
            .collect()
    }

    /// The client it belongs to.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }
}

impl<T: 'static> Stream for Consumer<T>
where
    T: Send + Sync,
{
    type Item = Result<Message<T>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let result = loop {
            let waiting = this.next.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(next) = waiting {
                match next.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(result) => {
                        *waiting = None;
                        break result;
                    }
                }
            }
            match this.core.poll_receive(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => break Err(error),
                Poll::Ready(Ok(message)) => {
                    if this.unknown_version(&message).is_none() {
                        break Ok(Message::new(message, Arc::clone(&this.schema)));
                    }
                    this.core.parts.inbox().put_back(message);
                    let consumer = this.clone();
                    let next: Next<T> = Box::pin(async move { consumer.receive().await });
                    this.next = Mutex::new(Some(next));
                }
            }
        };
        Poll::Ready(match result {
            Err(Error::Closed(_)) => None,
            other => Some(other),
        })
    }
}

impl<T> Clone for Consumer<T> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            schema: Arc::clone(&self.schema),
            next: Mutex::default(),
        }
    }
}

impl<T> Unpin for Consumer<T> {}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("subscription", &self.core.settings.config.subscription)
            .field("topics", &self.core.parts.topics())
            .finish_non_exhaustive()
    }
}
