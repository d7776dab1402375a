//! Settings of producers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use vela_proto::CompressionType;

use crate::client::{Client, nanos};
use crate::core::{AccessMode, Batching, ProducerConfig};
use crate::error::Result;
use crate::partitioned::Partitioned;
use crate::producer::{Opened, Producer, ProducerCore, Target};
use crate::routing::{HashingScheme, RoutingMode};
use crate::schema::Schema;
use crate::topic::TopicName;

/// Settings of a producer, with Pulsar's names and defaults.
pub struct ProducerBuilder<T> {
    client: Client,
    topic: String,
    schema: Arc<dyn Schema<Value = T>>,
    pub(crate) settings: Settings,
}

/// What does not depend on the schema.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) config: ProducerConfig,
    pub(crate) max_pending_messages: usize,
    pub(crate) block_if_queue_full: bool,
    pub(crate) routing: RoutingMode,
    pub(crate) hashing: HashingScheme,
    pub(crate) lazy_partitions: bool,
    pub(crate) auto_update_partitions: Option<Duration>,
}

impl ProducerBuilder<Bytes> {
    pub(crate) fn new(client: Client, topic: String) -> Self {
        let settings = Settings {
            config: ProducerConfig::new(""),
            max_pending_messages: 0,
            block_if_queue_full: true,
            routing: RoutingMode::default(),
            hashing: HashingScheme::default(),
            lazy_partitions: false,
            auto_update_partitions: Some(Duration::from_secs(60)),
        };
        Self {
            client,
            topic,
            schema: Arc::new(crate::schema::Bytes),
            settings,
        }
    }
}

impl<T: 'static> ProducerBuilder<T> {
    /// How values become bytes, and what the broker is told about it.
    #[must_use]
    pub fn schema<S: Schema>(self, schema: S) -> ProducerBuilder<S::Value> {
        ProducerBuilder {
            client: self.client,
            topic: self.topic,
            schema: Arc::new(schema),
            settings: self.settings,
        }
    }

    /// Name of the producer, unique on the topic; the broker gives one if not set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.config.name = Some(name.into());
        self
    }

    /// Whether others may produce at the same time. Shared if not set.
    #[must_use]
    pub fn access_mode(mut self, mode: AccessMode) -> Self {
        self.settings.config.access_mode = mode;
        self
    }

    /// A property, shown in the broker's statistics.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let pair = (name.into(), value.into());
        self.settings.config.properties.push(pair);
        self
    }

    /// Whether messages are sent in batches. True if not set.
    #[must_use]
    pub fn batching(mut self, enabled: bool) -> Self {
        let batching = self.settings.config.batching.unwrap_or_default();
        self.settings.config.batching = enabled.then_some(batching);
        self
    }

    /// Most messages in a batch. 1000 if not set.
    #[must_use]
    pub fn batching_max_messages(self, messages: usize) -> Self {
        self.batches(|batching| batching.max_messages = messages)
    }

    /// Most bytes in a batch. 128 KiB if not set.
    #[must_use]
    pub fn batching_max_bytes(self, bytes: usize) -> Self {
        self.batches(|batching| batching.max_bytes = bytes)
    }

    /// Longest wait of a message for others to share its batch. 1 ms if not set.
    #[must_use]
    pub fn batching_max_publish_delay(self, delay: Duration) -> Self {
        self.batches(|batching| batching.max_publish_delay = nanos(delay))
    }

    /// Whether a batch holds messages of one key only, as Key_Shared subscriptions need it.
    #[must_use]
    pub fn batching_by_key(self, by_key: bool) -> Self {
        self.batches(|batching| batching.by_key = by_key)
    }

    fn batches(mut self, set: impl FnOnce(&mut Batching)) -> Self {
        let mut batching = self.settings.config.batching.unwrap_or_default();
        set(&mut batching);
        self.settings.config.batching = Some(batching);
        self
    }

    /// How payloads are compressed. Not at all if not set.
    #[must_use]
    pub fn compression(mut self, compression: CompressionType) -> Self {
        self.settings.config.compression = compression;
        self
    }

    /// Whether messages larger than the broker takes are sent in chunks. Not together with batching.
    #[must_use]
    pub fn chunking(mut self, enabled: bool) -> Self {
        self.settings.config.chunking = enabled;
        self
    }

    /// Most bytes of payload in a chunk; what the broker takes if not set.
    #[must_use]
    pub fn chunk_max_message_size(mut self, bytes: usize) -> Self {
        self.settings.config.chunk_max_message_size = bytes;
        self
    }

    /// Time until a send without receipt fails; zero: never. 30 s if not set.
    #[must_use]
    pub fn send_timeout(mut self, time: Duration) -> Self {
        self.settings.config.send_timeout = nanos(time);
        self
    }

    /// Most messages without receipt, over all partitions; 0, as if not set: only the client's memory limits them.
    #[must_use]
    pub fn max_pending_messages(mut self, messages: usize) -> Self {
        self.settings.max_pending_messages = messages;
        self
    }

    /// Whether a send waits for room where there is none, or fails with [`Error::MemoryBufferIsFull`](crate::Error::MemoryBufferIsFull) or
    /// [`Error::ProducerQueueIsFull`](crate::Error::ProducerQueueIsFull). True if not set. In the client's own callbacks no send waits, whatever is set.
    #[must_use]
    pub fn block_if_queue_full(mut self, block: bool) -> Self {
        self.settings.block_if_queue_full = block;
        self
    }

    /// Sequence id of the first message; behind the last that the broker knows if not set.
    #[must_use]
    pub fn initial_sequence_id(mut self, sequence_id: u64) -> Self {
        self.settings.config.initial_sequence_id = Some(sequence_id);
        self
    }

    /// A subscription that is made along with the producer.
    #[must_use]
    pub fn initial_subscription_name(mut self, name: impl Into<String>) -> Self {
        self.settings.config.initial_subscription = Some(name.into());
        self
    }

    /// Which partition messages go to.
    #[must_use]
    pub fn routing_mode(mut self, mode: RoutingMode) -> Self {
        self.settings.routing = mode;
        self
    }

    /// How keys choose partitions.
    #[must_use]
    pub fn hashing_scheme(mut self, scheme: HashingScheme) -> Self {
        self.settings.hashing = scheme;
        self
    }

    /// Whether producers of partitions are opened when the first message goes there. False if not set.
    #[must_use]
    pub fn lazy_start_partitioned_producers(mut self, lazy: bool) -> Self {
        self.settings.lazy_partitions = lazy;
        self
    }

    /// How often the broker is asked for new partitions; `None`: never. 60 s if not set.
    #[must_use]
    pub fn auto_update_partitions(mut self, interval: Option<Duration>) -> Self {
        self.settings.auto_update_partitions = interval;
        self
    }

    /// Opens the producer. With [`AccessMode::WaitForExclusive`] that lasts until it is its turn.
    ///
    /// # Errors
    /// If a setting cannot be, or the broker refuses. A later attempt starts anew.
    pub async fn build(mut self) -> Result<Producer<T>> {
        let topic = TopicName::parse(&self.topic)?;
        self.settings.config.schema = self.schema.info().map(|info| info.to_proto());
        self.settings.config.check()?;
        let partitions = match topic.partition_index() {
            // A partition by its own name is a topic without partitions.
            Some(_) => 0,
            None => self.client.partitions(topic.as_str()).await?,
        };
        let limit = self.settings.max_pending_messages;
        let places = (limit > 0).then(|| Arc::new(Semaphore::new(limit)));
        let target = if partitions == 0 {
            let config = ProducerConfig {
                topic: topic.as_str().to_owned(),
                partition: topic
                    .partition_index()
                    .and_then(|index| i32::try_from(index).ok())
                    .unwrap_or(-1),
                ..self.settings.config.clone()
            };
            Target::Single(Opened::new(&self.client, config)?)
        } else {
            Target::Partitioned(Partitioned::new(
                &self.client,
                &topic,
                self.settings.clone(),
                partitions,
            )?)
        };
        // From here on dropping it closes what is open.
        let core = Arc::new(ProducerCore {
            client: self.client,
            topic,
            target,
            places,
            limit,
            block: self.settings.block_if_queue_full,
        });
        match &core.target {
            Target::Single(opened) => opened.ready().await?,
            Target::Partitioned(partitioned) => partitioned.ready().await?,
        }
        Ok(Producer {
            core,
            schema: self.schema,
        })
    }
}

impl<T> fmt::Debug for ProducerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}
