//! Readers: consumers that keep their position themselves.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;

use crate::builder::ConsumerBuilder;
use crate::client::Client;
use crate::consumer::Consumer;
use crate::core::consumer::CryptoFailureAction;
use crate::error::Result;
use crate::id::{MessageId, StartPosition};
use crate::message::Message;
use crate::schema::Schema;

/// Settings of a reader.
pub struct ReaderBuilder<T> {
    consumer: ConsumerBuilder<T>,
    start: StartPosition,
    subscription: Option<String>,
}

impl ReaderBuilder<Bytes> {
    pub(crate) fn new(client: Client, topic: String) -> Self {
        Self {
            consumer: ConsumerBuilder::new(client).topic(topic),
            start: StartPosition::Latest,
            subscription: None,
        }
    }
}

impl<T: 'static> ReaderBuilder<T> {
    fn set(mut self, set: impl FnOnce(ConsumerBuilder<T>) -> ConsumerBuilder<T>) -> Self {
        self.consumer = set(self.consumer);
        self
    }

    /// How bytes become values.
    #[must_use]
    pub fn schema<S: Schema>(self, schema: S) -> ReaderBuilder<S::Value> {
        ReaderBuilder {
            consumer: self.consumer.schema(schema),
            start: self.start,
            subscription: self.subscription,
        }
    }

    /// Where it begins. Behind the last message if not set. A message of one partition says nothing of the others: they are read from
    /// their beginning.
    #[must_use]
    pub fn start(mut self, start: StartPosition) -> Self {
        self.start = start;
        self
    }

    /// Begins with what was published this long ago, to the second.
    #[must_use]
    pub fn start_from_rollback_duration(mut self, duration: Duration) -> Self {
        self.start = StartPosition::Earliest;
        self.consumer.settings.config.start_rollback_seconds = duration.as_secs();
        self
    }

    /// Messages the broker may send ahead. 1000 if not set.
    #[must_use]
    pub fn receiver_queue_size(self, messages: u32) -> Self {
        self.set(|consumer| consumer.receiver_queue_size(messages))
    }

    /// Reads the compacted view of the topic: of each key its last message.
    #[must_use]
    pub fn read_compacted(self, compacted: bool) -> Self {
        self.set(|consumer| consumer.read_compacted(compacted))
    }

    /// Name of the reader, shown in the broker's statistics.
    #[must_use]
    pub fn reader_name(self, name: impl Into<String>) -> Self {
        self.set(|consumer| consumer.consumer_name(name))
    }

    /// Name of its subscription; `reader-` and a number by chance if not set.
    #[must_use]
    pub fn subscription_name(mut self, name: impl Into<String>) -> Self {
        self.subscription = Some(name.into());
        self
    }

    /// A property of the reader, shown in the broker's statistics.
    #[must_use]
    pub fn property(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|consumer| consumer.property(name, value))
    }

    /// Hash ranges of keys to read, both ends included; all if not set.
    #[must_use]
    pub fn key_hash_ranges(self, ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        self.set(|consumer| {
            consumer.key_shared_policy(crate::KeySharedPolicy {
                sticky_ranges: ranges.into_iter().collect(),
                allow_out_of_order_delivery: false,
            })
        })
    }

    /// What becomes of encrypted messages.
    #[must_use]
    pub fn crypto_failure_action(self, action: CryptoFailureAction) -> Self {
        self.set(|consumer| consumer.crypto_failure_action(action))
    }

    /// Most messages of which some chunks are here and some are missing. 10 if not set.
    #[must_use]
    pub fn max_pending_chunked_messages(self, messages: usize) -> Self {
        self.set(|consumer| consumer.max_pending_chunked_messages(messages))
    }

    /// Opens the reader.
    ///
    /// # Errors
    /// If a setting cannot be, or the broker refuses.
    pub async fn build(mut self) -> Result<Reader<T>> {
        let name = self.subscription.take().unwrap_or_else(|| {
            let number = self.consumer.client.shared().draw();
            format!("reader-{:010x}", number & 0xff_ffff_ffff)
        });
        let config = &mut self.consumer.settings.config;
        config.durable = false;
        config.start = self.start;
        let consumer = self.consumer.subscription(name).build().await?;
        if let StartPosition::Time(_) = self.start {
            consumer.seek(self.start).await?;
        }
        Ok(Reader { consumer })
    }
}

impl<T> fmt::Debug for ReaderBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderBuilder")
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

/// Reads a topic from a position of its own. It leaves nothing behind at the broker when it is dropped.
///
/// It is a [`Stream`] as well, which ends with the reader.
pub struct Reader<T> {
    consumer: Consumer<T>,
}

impl<T: 'static> Reader<T> {
    /// The next message. Dropping the future loses nothing.
    ///
    /// # Errors
    /// If the reader is closed, or has come to its end.
    pub async fn next(&mut self) -> Result<Message<T>> {
        let message = self.consumer.receive().await?;
        self.passed(&message);
        Ok(message)
    }

    /// The broker need not keep what was read.
    fn passed(&self, message: &Message<T>) {
        let id = message.id();
        if let Ok(part) = self.consumer.core.parts.of(&id, Some(message.topic())) {
            part.with(|consumer, now, wire| {
                consumer.acknowledge_cumulative(now, &id, None, wire);
            });
        }
    }

    /// Whether there is a message that was not read.
    ///
    /// # Errors
    /// If the broker refuses, or the reader is closed.
    pub async fn has_message_available(&self) -> Result<bool> {
        self.consumer.has_message_available().await
    }

    /// Goes on elsewhere. Of partitions: to an end or a time all, to a message its own.
    ///
    /// # Errors
    /// If the broker refuses, or the reader is closed.
    pub async fn seek(&mut self, position: StartPosition) -> Result<()> {
        self.consumer.seek(position).await
    }

    /// The last message of the topic, or of each partition that holds any.
    ///
    /// # Errors
    /// If the broker refuses, or the reader is closed.
    pub async fn last_message_ids(&self) -> Result<Vec<(String, MessageId)>> {
        self.consumer.last_message_ids().await
    }

    /// Whether the topic is terminated and everything was read.
    #[must_use]
    pub fn has_reached_end_of_topic(&self) -> bool {
        self.consumer.has_reached_end_of_topic()
    }

    /// Whether it is connected now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.consumer.is_connected()
    }

    /// The topics, one but for partitions by their own names.
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        self.consumer.topics()
    }

    /// Closes the reader.
    ///
    /// # Errors
    /// If the connection broke meanwhile.
    pub async fn close(&self) -> Result<()> {
        self.consumer.close().await
    }
}

impl<T: Send + Sync + 'static> Stream for Reader<T> {
    type Item = Result<Message<T>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.consumer).poll_next(context);
        if let Poll::Ready(Some(Ok(message))) = &next {
            self.passed(message);
        }
        next
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reader").field(&self.consumer).finish()
    }
}
