//! The parts of a consumer: one for each of its topics, and of their partitions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::client::Client;
use crate::core::consumer::{ConsumerConfig, ReceivedMessage};
use crate::error::{Error, Result};
use crate::id::{MessageId, StartPosition};
use crate::inbox::Inbox;
use crate::part::{DeadLetterSink, Part};
use crate::topic::TopicName;

/// Shortest time between two questions for new partitions or topics.
pub(crate) const SHORTEST_PERIOD: Duration = Duration::from_millis(10);

/// The parts, by topic or partition.
pub(crate) struct Parts {
    client: Client,
    /// What all have in common.
    config: ConsumerConfig,
    /// Most messages that all receiver queues hold together.
    max_total_queue: u32,
    inbox: Arc<Inbox>,
    dead_letters: Option<Arc<dyn DeadLetterSink>>,
    parts: RwLock<BTreeMap<Arc<str>, Arc<Part>>>,
    /// Topics as they were named, and how many partitions each has.
    topics: RwLock<BTreeMap<String, u32>>,
    /// Whether the end of one part ends the whole.
    essential: bool,
}

impl Parts {
    pub(crate) fn new(
        client: &Client,
        config: ConsumerConfig,
        max_total_queue: u32,
        dead_letters: Option<Arc<dyn DeadLetterSink>>,
        essential: bool,
    ) -> Self {
        Self {
            client: client.clone(),
            config,
            max_total_queue,
            inbox: Arc::default(),
            dead_letters,
            parts: RwLock::default(),
            topics: RwLock::default(),
            essential,
        }
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    pub(crate) fn all(&self) -> Vec<Arc<Part>> {
        let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
        parts.values().cloned().collect()
    }

    pub(crate) fn topics(&self) -> Vec<String> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.keys().cloned().collect()
    }

    fn partitions_known(&self, topic: &str) -> Option<u32> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(topic).copied()
    }

    /// Opens the parts of a topic, and waits for them. `later`: the topic was found after the consumer was made, so that nothing in it may be
    /// missed.
    pub(crate) async fn add(&self, topic: &TopicName, create: bool, later: bool) -> Result<()> {
        let count = match topic.partition_index() {
            // A partition by its own name is a topic without partitions.
            Some(_) => 0,
            None => self.client.partitions_of(topic.as_str(), create).await?,
        };
        self.grow(topic, count, later).await
    }

    /// Opens what is not open of `count` partitions.
    async fn grow(&self, topic: &TopicName, count: u32, later: bool) -> Result<()> {
        let names: Vec<TopicName> = if count == 0 {
            vec![topic.clone()]
        } else {
            (0..count).map(|index| topic.partition(index)).collect()
        };
        let known = self.all().len() + names.len();
        let share = self.max_total_queue / u32::try_from(known).unwrap_or(u32::MAX).max(1);
        let mut opened = Vec::new();
        for name in names {
            let there = {
                let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
                parts
                    .get(name.as_str())
                    .is_some_and(|part| part.ended().is_none())
            };
            if there {
                continue;
            }
            let mut config = ConsumerConfig {
                topic: name.shared(),
                ..self.config.clone()
            };
            if config.receiver_queue_size > 0 {
                config.receiver_queue_size = config.receiver_queue_size.min(share.max(1));
            }
            if later {
                config.start = StartPosition::Earliest;
            } else if let StartPosition::Message { id, .. } = config.start
                && let Some(index) = name.partition_index()
                && i64::from(id.partition) != i64::from(index)
                && id != MessageId::EARLIEST
                && id != MessageId::LATEST
            {
                // The id says nothing of the other partitions.
                config.start = StartPosition::Earliest;
            }
            let part = Part::open(
                &self.client,
                config,
                &self.inbox,
                self.essential,
                self.dead_letters.clone(),
            )?;
            opened.push(part);
        }
        for part in &opened {
            part.ready().await?;
        }
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        for part in opened {
            parts.insert(Arc::clone(&part.topic), part);
        }
        drop(parts);
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.insert(topic.as_str().to_owned(), count);
        Ok(())
    }

    /// Asks for partitions that were added to the topics.
    pub(crate) async fn update(&self) {
        for name in self.topics() {
            let Ok(topic) = TopicName::parse(&name) else {
                continue;
            };
            let known = self.partitions_known(&name).unwrap_or(0);
            if known == 0 {
                continue;
            }
            let grown = match self.client.partitions_of(&name, false).await {
                Ok(count) if count > known => self.grow(&topic, count, true).await,
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = grown {
                tracing::debug!(topic = %name, %error, "new partitions");
            }
        }
    }

    /// Closes the parts of a topic.
    pub(crate) fn remove(&self, topic: &TopicName) {
        let gone: Vec<Arc<Part>> = {
            let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
            let base = |part: &str| TopicName::parse(part).map(|name| name.base());
            let names: Vec<Arc<str>> = parts
                .keys()
                .filter(|name| {
                    name.as_ref() == topic.as_str()
                        || base(name).is_ok_and(|base| base.as_str() == topic.as_str())
                })
                .cloned()
                .collect();
            names.iter().filter_map(|name| parts.remove(name)).collect()
        };
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.remove(topic.as_str());
        drop(topics);
        // Dropping closes them, behind all locks.
        drop(gone);
    }

    /// Forgets parts that have come to an end by themselves, and their topics.
    pub(crate) fn drop_ended(&self) {
        let ended: Vec<_> = self
            .all()
            .into_iter()
            .filter(|part| part.ended().is_some())
            .collect();
        for part in ended {
            if let Ok(topic) = TopicName::parse(&part.topic) {
                self.remove(&topic.base());
            }
        }
    }

    /// The part a message came from.
    pub(crate) fn of(&self, id: &MessageId, topic: Option<&str>) -> Result<Arc<Part>> {
        let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topic {
            return parts.get(topic).cloned().ok_or_else(|| Error::Config {
                setting: "message",
                value: topic.to_owned(),
                reason: "it is from a topic that this consumer does not have (any more)".to_owned(),
            });
        }
        let mut fitting = parts.values().filter(|part| {
            parts.len() == 1
                || TopicName::parse(&part.topic)
                    .ok()
                    .and_then(|name| name.partition_index())
                    .is_some_and(|index| i64::from(index) == i64::from(id.partition))
        });
        match (fitting.next(), fitting.next()) {
            (Some(part), None) => Ok(Arc::clone(part)),
            _ => Err(Error::Config {
                setting: "message id",
                value: id.to_string(),
                reason:
                    "of a consumer of several topics an id does not tell which; pass the message"
                        .to_owned(),
            }),
        }
    }

    /// Takes the next message there is, asking for one where the receiver queues are of size 0.
    pub(crate) fn try_take(&self) -> Option<ReceivedMessage> {
        let message = self.inbox.try_take();
        if message.is_some() || self.config.receiver_queue_size > 0 {
            return message;
        }
        self.all().iter().find_map(|part| part.take())
    }
}

/// Asks for new partitions now and then, until the consumer is gone.
pub(crate) fn watch_partitions(parts: &Arc<Parts>, period: Duration) -> tokio::task::AbortHandle {
    let watched = Arc::downgrade(parts);
    let task = async move {
        loop {
            tokio::time::sleep(period.max(SHORTEST_PERIOD)).await;
            let Some(parts) = watched.upgrade() else {
                return;
            };
            parts.update().await;
        }
    };
    parts.client.shared().runtime.spawn(task).abort_handle()
}
