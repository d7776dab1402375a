//! How consumers are made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client::{Client, nanos};
use crate::consumer::{Consumer, ConsumerCore};
use crate::core::consumer::{
    ConsumerConfig, CryptoFailureAction, DeadLetterPolicy, KeySharedPolicy, RedeliveryBackoff,
    SubscriptionType,
};
use crate::dead_letter::{DeadLetters, GivingUp, default_topic};
use crate::error::{Error, Result};
use crate::id::{InitialPosition, StartPosition};
use crate::multi::{Parts, watch_partitions};
use crate::part::DeadLetterSink;
use crate::pattern::{RegexSubscriptionMode, TopicPattern, keep, reconcile};
use crate::schema::Schema;
use crate::topic::TopicName;

/// Times a message is sent to the retry topic if nothing is said of dead letters.
const DEFAULT_RECONSUME_TIMES: u32 = 16;

/// A topic, or several.
pub trait IntoTopics {
    /// Their names.
    fn into_topics(self) -> Vec<String>;
}

impl IntoTopics for &str {
    fn into_topics(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl IntoTopics for String {
    fn into_topics(self) -> Vec<String> {
        vec![self]
    }
}

impl IntoTopics for &String {
    fn into_topics(self) -> Vec<String> {
        vec![self.clone()]
    }
}

impl<S: Into<String>, const N: usize> IntoTopics for [S; N] {
    fn into_topics(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<S: Into<String>> IntoTopics for Vec<S> {
    fn into_topics(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

/// What does not depend on the schema.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) config: ConsumerConfig,
    pub(crate) topics: Vec<String>,
    pub(crate) pattern: Option<String>,
    pub(crate) regex_mode: RegexSubscriptionMode,
    pub(crate) discovery_period: Duration,
    pub(crate) auto_update_partitions: Option<Duration>,
    pub(crate) max_total_queue: u32,
    pub(crate) enable_retry: bool,
}

/// Settings of a consumer, with Pulsar's names and defaults.
pub struct ConsumerBuilder<T> {
    pub(crate) client: Client,
    schema: Arc<dyn Schema<Value = T>>,
    pub(crate) settings: Settings,
}

impl ConsumerBuilder<Bytes> {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            schema: Arc::new(crate::schema::Bytes),
            settings: Settings {
                config: ConsumerConfig::new("", ""),
                topics: Vec::new(),
                pattern: None,
                regex_mode: RegexSubscriptionMode::default(),
                discovery_period: Duration::from_secs(60),
                auto_update_partitions: Some(Duration::from_secs(60)),
                max_total_queue: 50_000,
                enable_retry: false,
            },
        }
    }
}

impl<T: 'static> ConsumerBuilder<T> {
    fn set(mut self, set: impl FnOnce(&mut ConsumerConfig)) -> Self {
        set(&mut self.settings.config);
        self
    }

    /// How bytes become values, and what the broker is told about it.
    #[must_use]
    pub fn schema<S: Schema>(self, schema: S) -> ConsumerBuilder<S::Value> {
        ConsumerBuilder {
            client: self.client,
            schema: Arc::new(schema),
            settings: self.settings,
        }
    }

    /// Adds a topic, or several.
    #[must_use]
    pub fn topic(mut self, topics: impl IntoTopics) -> Self {
        self.settings.topics.extend(topics.into_topics());
        self
    }

    /// Adds topics.
    #[must_use]
    pub fn topics<S: Into<String>>(mut self, topics: impl IntoIterator<Item = S>) -> Self {
        self.settings
            .topics
            .extend(topics.into_iter().map(Into::into));
        self
    }

    /// Consumes all topics of a namespace whose names match: `tenant/namespace/regular expression`. Instead of topics.
    #[must_use]
    pub fn pattern(mut self, pattern: impl Into<String>) -> Self {
        self.settings.pattern = Some(pattern.into());
        self
    }

    /// Which topics a pattern is over. Persistent ones if not set.
    #[must_use]
    pub fn regex_subscription_mode(mut self, mode: RegexSubscriptionMode) -> Self {
        self.settings.regex_mode = mode;
        self
    }

    /// How often the broker is asked for topics that match, beside watching them. 60 s if not set.
    #[must_use]
    pub fn pattern_auto_discovery_period(mut self, period: Duration) -> Self {
        self.settings.discovery_period = period;
        self
    }

    /// How often the broker is asked for new partitions; `None`: never. 60 s if not set.
    #[must_use]
    pub fn auto_update_partitions(mut self, interval: Option<Duration>) -> Self {
        self.settings.auto_update_partitions = interval;
        self
    }

    /// Name of the subscription.
    #[must_use]
    pub fn subscription(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.set(|config| config.subscription = name)
    }

    /// How the subscription shares its messages among its consumers. Exclusive if not set.
    #[must_use]
    pub fn subscription_type(self, kind: SubscriptionType) -> Self {
        self.set(|config| config.subscription_type = kind)
    }

    /// Where the subscription begins if it is new. Behind the last message if not set.
    #[must_use]
    pub fn subscription_initial_position(self, position: InitialPosition) -> Self {
        self.set(|config| {
            config.start = match position {
                InitialPosition::Earliest => StartPosition::Earliest,
                InitialPosition::Latest => StartPosition::Latest,
            }
        })
    }

    /// A property stored with the subscription if it is new.
    #[must_use]
    pub fn subscription_property(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let pair = pair(name, value);
        self.set(|config| config.subscription_properties.push(pair))
    }

    /// Whether the subscription's position is copied to other clusters.
    #[must_use]
    pub fn replicate_subscription_state(self, replicate: bool) -> Self {
        self.set(|config| config.replicate_subscription_state = Some(replicate))
    }

    /// Name of the consumer. The broker chooses if not set.
    #[must_use]
    pub fn consumer_name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.set(|config| config.consumer_name = Some(name))
    }

    /// Consumers of the lowest level are served first. 0 if not set.
    #[must_use]
    pub fn priority_level(self, level: i32) -> Self {
        self.set(|config| config.priority_level = level)
    }

    /// A property of the consumer, shown in the broker's statistics.
    #[must_use]
    pub fn property(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let pair = pair(name, value);
        self.set(|config| config.properties.push(pair))
    }

    /// How keys are given to the consumers of a Key_Shared subscription.
    #[must_use]
    pub fn key_shared_policy(self, policy: KeySharedPolicy) -> Self {
        self.set(|config| config.key_shared = Some(policy))
    }

    /// Messages the broker may send ahead, for each topic and partition; 0: one for each call of `receive`. 1000 if not set.
    #[must_use]
    pub fn receiver_queue_size(self, messages: u32) -> Self {
        self.set(|config| config.receiver_queue_size = messages)
    }

    /// Messages that may be sent ahead for all topics and partitions together. 50,000 if not set.
    #[must_use]
    pub fn max_total_receiver_queue_size_across_partitions(mut self, messages: u32) -> Self {
        self.settings.max_total_queue = messages;
        self
    }

    /// Whether delivery waits for [`Consumer::resume`] at first.
    #[must_use]
    pub fn start_paused(self, paused: bool) -> Self {
        self.set(|config| config.start_paused = paused)
    }

    /// Longest time that acknowledgements are collected; zero: each is sent at once. 100 ms if not set.
    #[must_use]
    pub fn ack_group_time(self, time: Duration) -> Self {
        self.set(|config| config.ack_group_time = nanos(time))
    }

    /// Most acknowledgements that are collected. 1000 if not set.
    #[must_use]
    pub fn max_ack_group_size(self, messages: usize) -> Self {
        self.set(|config| config.ack_group_max = messages)
    }

    /// Whether acknowledging waits for the broker's answer. False if not set.
    #[must_use]
    pub fn ack_receipt(self, receipt: bool) -> Self {
        self.set(|config| config.ack_receipt = receipt)
    }

    /// Whether the single messages of a batch are acknowledged at the broker, else a batch is when all its messages are. True if not set.
    #[must_use]
    pub fn enable_batch_index_ack(self, enabled: bool) -> Self {
        self.set(|config| config.batch_index_ack = enabled)
    }

    /// Time from receiving a message to asking for it again, if it is not acknowledged; zero, as if not set: never.
    #[must_use]
    pub fn ack_timeout(self, time: Duration) -> Self {
        self.set(|config| config.ack_timeout = nanos(time))
    }

    /// Times that replace [`ack_timeout`](Self::ack_timeout), growing with each redelivery.
    #[must_use]
    pub fn ack_timeout_backoff(self, backoff: RedeliveryBackoff) -> Self {
        self.set(|config| config.ack_timeout_backoff = Some(backoff))
    }

    /// Time from a negative acknowledgement to asking for the message again. 60 s if not set.
    #[must_use]
    pub fn negative_ack_redelivery_delay(self, delay: Duration) -> Self {
        self.set(|config| config.negative_ack_redelivery_delay = nanos(delay))
    }

    /// Times that replace [`negative_ack_redelivery_delay`](Self::negative_ack_redelivery_delay), growing with each redelivery.
    #[must_use]
    pub fn negative_ack_backoff(self, backoff: RedeliveryBackoff) -> Self {
        self.set(|config| config.negative_ack_backoff = Some(backoff))
    }

    /// When messages are given up, and where they go. Only for Shared and Key_Shared. Never if not set.
    #[must_use]
    pub fn dead_letter_policy(self, policy: DeadLetterPolicy) -> Self {
        self.set(|config| config.dead_letter = Some(policy))
    }

    /// Whether the retry topic is consumed as well, for [`Consumer::reconsume_later`]. False if not set.
    #[must_use]
    pub fn enable_retry(mut self, enabled: bool) -> Self {
        self.settings.enable_retry = enabled;
        self
    }

    /// Reads the compacted view of the topic: of each key its last message. Only for Exclusive and Failover.
    #[must_use]
    pub fn read_compacted(self, compacted: bool) -> Self {
        self.set(|config| config.read_compacted = compacted)
    }

    /// Most messages of which some chunks are here and some are missing. 10 if not set.
    #[must_use]
    pub fn max_pending_chunked_messages(self, messages: usize) -> Self {
        self.set(|config| config.max_pending_chunked_messages = messages)
    }

    /// Longest time from the first chunk of a message to its last. 60 s if not set.
    #[must_use]
    pub fn expire_time_of_incomplete_chunked_message(self, time: Duration) -> Self {
        self.set(|config| config.expire_incomplete_chunked_message = nanos(time))
    }

    /// Whether incomplete messages beyond these limits are acknowledged, else they are asked for again. False if not set.
    #[must_use]
    pub fn auto_ack_oldest_chunked_message_on_queue_full(self, acknowledge: bool) -> Self {
        self.set(|config| config.auto_ack_oldest_chunked_message = acknowledge)
    }

    /// What becomes of encrypted messages.
    #[must_use]
    pub fn crypto_failure_action(self, action: CryptoFailureAction) -> Self {
        self.set(|config| config.crypto_failure_action = action)
    }

    /// Largest payload after decompression, in bytes; a larger one counts as damaged. 256 MiB if not set.
    #[must_use]
    pub fn max_uncompressed_size(self, bytes: usize) -> Self {
        self.set(|config| config.max_uncompressed_size = bytes)
    }

    fn check(&self) -> Result<()> {
        let (settings, config) = (&self.settings, &self.settings.config);
        let invalid = |setting, value: String, reason: &str| {
            Err(Error::Config {
                setting,
                value,
                reason: reason.to_owned(),
            })
        };
        if config.subscription.trim().is_empty() {
            return invalid("subscription", String::new(), "a consumer needs one");
        }
        if settings.topics.is_empty() == settings.pattern.is_none() {
            return invalid(
                "topic",
                settings.topics.join(","),
                "a consumer needs topics or a pattern, and not both",
            );
        }
        let shared = config.subscription_type.is_shared();
        let kind = format!("{:?}", config.subscription_type);
        if let Some(policy) = &config.dead_letter {
            if !shared {
                return invalid(
                    "dead_letter_policy",
                    kind,
                    "only Shared and Key_Shared subscriptions count redeliveries",
                );
            }
            if policy.max_redeliver_count == 0 {
                return invalid(
                    "max_redeliver_count",
                    "0".to_owned(),
                    "it must be at least 1",
                );
            }
        }
        if config.read_compacted && shared {
            return invalid(
                "read_compacted",
                kind,
                "only Exclusive and Failover subscriptions can read the compacted view",
            );
        }
        if settings.enable_retry && !shared {
            return invalid(
                "enable_retry",
                kind,
                "messages come later only in Shared and Key_Shared subscriptions",
            );
        }
        if config.max_pending_chunked_messages == 0 {
            return invalid(
                "max_pending_chunked_messages",
                "0".to_owned(),
                "it must be at least 1",
            );
        }
        Ok(())
    }

    /// Opens the consumer.
    ///
    /// # Errors
    /// If a setting cannot be, or the broker refuses.
    pub async fn build(mut self) -> Result<Consumer<T>> {
        self.check()?;
        let Self {
            client,
            schema,
            settings,
        } = &mut self;
        settings.config.schema = schema.info().map(|info| info.to_proto());
        let mut topics = Vec::new();
        for topic in &settings.topics {
            topics.push(TopicName::parse(topic)?);
        }
        let pattern = match &settings.pattern {
            Some(pattern) => Some(TopicPattern::parse(pattern, settings.regex_mode)?),
            None => None,
        };
        let subscription = settings.config.subscription.clone();
        if settings.enable_retry
            && let Some(first) = topics.first().cloned()
        {
            let policy = settings
                .config
                .dead_letter
                .get_or_insert_with(|| DeadLetterPolicy::new(DEFAULT_RECONSUME_TIMES));
            let retry = policy
                .retry_letter_topic
                .get_or_insert_with(|| default_topic(&first, &subscription, "RETRY"));
            topics.push(TopicName::parse(retry)?);
            policy
                .dead_letter_topic
                .get_or_insert_with(|| default_topic(&first, &subscription, "DLQ"));
        }
        let letters = settings
            .config
            .dead_letter
            .clone()
            .map(|policy| Arc::new(DeadLetters::new(client, &subscription, policy)));
        let sink = letters
            .clone()
            .map(|letters| Arc::new(GivingUp(letters)) as Arc<dyn DeadLetterSink>);
        let parts = Arc::new(Parts::new(
            client,
            settings.config.clone(),
            settings.max_total_queue,
            sink,
            pattern.is_none(),
        ));
        let mut tasks = Vec::new();
        match pattern {
            Some(pattern) => {
                reconcile(client, &parts, &pattern, false).await?;
                tasks.push(keep(client, &parts, pattern, settings.discovery_period));
            }
            None => {
                for topic in &topics {
                    parts.add(topic, true, false).await?;
                }
            }
        }
        if let Some(period) = settings.auto_update_partitions {
            tasks.push(watch_partitions(&parts, period));
        }
        let core = ConsumerCore {
            client: client.clone(),
            parts,
            settings: settings.clone(),
            letters,
            tasks,
        };
        Ok(Consumer::new(Arc::new(core), self.schema))
    }
}

fn pair(name: impl Into<String>, value: impl Into<String>) -> vela_proto::KeyValue {
    vela_proto::KeyValue {
        key: name.into(),
        value: value.into(),
    }
}

impl<T> fmt::Debug for ConsumerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
