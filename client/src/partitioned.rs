//! A producer of all partitions of a topic.
//!
//! A send is admitted before its partition is chosen; the producers of partitions only carry what was admitted. What was reserved travels
//! with the message, also from a producer that has ended to the one that takes its place, and is given back where the send ends.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::client::Client;
use crate::core::{ProducerConfig, Refused};
use crate::error::{Error, Result};
use crate::message::OutgoingMessage;
use crate::producer::Opened;
use crate::producer_builder::Settings;
use crate::routing::Router;
use crate::send::SendTicket;
use crate::topic::TopicName;

/// Attempts to send one message, each with a producer opened anew.
const ATTEMPTS: usize = 3;

struct Inner {
    client: Client,
    topic: TopicName,
    settings: Settings,
    /// By partition; `None` while nothing was sent there, or its producer has ended.
    partitions: RwLock<Vec<Option<Arc<Opened>>>>,
    router: Mutex<Router>,
}

pub(crate) struct Partitioned {
    inner: Arc<Inner>,
    updates: Option<AbortHandle>,
}

impl Partitioned {
    pub(crate) fn new(
        client: &Client,
        topic: &TopicName,
        settings: Settings,
        partitions: u32,
    ) -> Result<Self> {
        let delay = settings.config.batching.map(|b| b.max_publish_delay);
        // The lower half of a draw.
        let seed = (client.shared().draw() & u64::from(u32::MAX)) as u32;
        let router = Router::new(settings.routing.clone(), settings.hashing, delay, seed);
        let interval = settings.auto_update_partitions;
        let inner = Arc::new(Inner {
            client: client.clone(),
            topic: topic.clone(),
            settings,
            partitions: RwLock::new(Vec::new()),
            router: Mutex::new(router),
        });
        inner.grow(partitions)?;
        let updates = interval.map(|interval| {
            let watched = Arc::downgrade(&inner);
            let task = async move {
                loop {
                    tokio::time::sleep(interval.max(Duration::from_millis(10))).await;
                    let Some(inner) = watched.upgrade() else {
                        return;
                    };
                    inner.update().await;
                }
            };
            client.shared().runtime.spawn(task).abort_handle()
        });
        Ok(Self { inner, updates })
    }

    /// Until all partitions that were opened are open.
    pub(crate) async fn ready(&self) -> Result<()> {
        for opened in self.opened() {
            opened.ready().await?;
        }
        Ok(())
    }

    /// Sends a message that was admitted. `Err` gives nothing back twice: the ticket is dropped with what it reserved.
    pub(crate) fn send(&self, message: OutgoingMessage, ticket: SendTicket) -> Result<()> {
        let inner = &self.inner;
        let shared = inner.client.shared();
        let now = shared.now();
        let count = self.count();
        let chosen = {
            let mut router = inner.router.lock().unwrap_or_else(PoisonError::into_inner);
            router.route(&message, count, now)
        };
        let partition = chosen.ok_or_else(|| Error::Config {
            setting: "message_routing_mode",
            value: "a partition that is not there".into(),
            reason: format!(
                "the topic has the partitions 0 to {}",
                count.saturating_sub(1)
            ),
        })?;
        let (mut message, mut ticket) = (message, ticket);
        let mut last = Error::Closed("the producer");
        for _ in 0..ATTEMPTS {
            let opened = inner.partition(partition)?;
            let sent = shared.with(|all, now| all.machine.send(now, opened.key, message, ticket));
            let Err(refused) = sent else {
                return Ok(());
            };
            let Refused {
                message: back,
                ticket: held,
                error,
            } = *refused;
            match error {
                // It ended a moment ago. What is reserved stays with the send; a producer that failed is not kept.
                Error::Closed(_) if !shared.is_closed() => {
                    last = opened.ended().unwrap_or(Error::Closed("the producer"));
                    if !matches!(
                        last,
                        Error::Closed(_) | Error::Connection(_) | Error::Timeout { .. }
                    ) {
                        inner.forget(partition, &opened);
                        return Err(last);
                    }
                    inner.forget(partition, &opened);
                    (message, ticket) = (back, held);
                }
                error => return Err(error),
            }
        }
        Err(last)
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        // All at once: the last batch of each is on its way before the first is waited for.
        let mut flushes: Vec<_> = self
            .opened()
            .into_iter()
            .map(|opened| {
                Box::pin(async move {
                    if opened.ended().is_some() {
                        return Ok(());
                    }
                    opened.flush().await
                })
            })
            .collect();
        let started = std::future::poll_fn(|context| {
            let mut results = Vec::new();
            flushes.retain_mut(|flush| match flush.as_mut().poll(context) {
                std::task::Poll::Ready(result) => {
                    results.push(result);
                    false
                }
                std::task::Poll::Pending => true,
            });
            std::task::Poll::Ready(results)
        });
        for result in started.await {
            result?;
        }
        for flush in flushes {
            flush.await?;
        }
        Ok(())
    }

    pub(crate) async fn close(&self) {
        for opened in self.opened() {
            opened.close().await;
        }
    }

    pub(crate) fn count(&self) -> u32 {
        let partitions = self.inner.read();
        u32::try_from(partitions.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn first(&self) -> Option<Arc<Opened>> {
        self.opened().into_iter().next()
    }

    pub(crate) fn opened(&self) -> Vec<Arc<Opened>> {
        self.inner.read().iter().flatten().cloned().collect()
    }
}

impl Drop for Partitioned {
    fn drop(&mut self) {
        if let Some(updates) = &self.updates {
            updates.abort();
        }
    }
}

impl Inner {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Option<Arc<Opened>>>> {
        self.partitions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the producer of a partition.
    fn open(&self, partition: u32) -> Result<Arc<Opened>> {
        let config = ProducerConfig {
            topic: self.topic.partition(partition).as_str().to_owned(),
            partition: i32::try_from(partition).unwrap_or(-1),
            admitted_upstream: true,
            ..self.settings.config.clone()
        };
        Opened::new(&self.client, config).map(Arc::new)
    }

    /// More partitions have come.
    fn grow(&self, count: u32) -> Result<()> {
        let known = u32::try_from(self.read().len()).unwrap_or(u32::MAX);
        let lazy = self.settings.lazy_partitions;
        let mut new = Vec::new();
        for partition in known..count {
            new.push(if lazy {
                None
            } else {
                Some(self.open(partition)?)
            });
        }
        let mut partitions = self
            .partitions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        partitions.extend(new);
        Ok(())
    }

    async fn update(&self) {
        match self.client.partitions_of(self.topic.as_str(), false).await {
            Ok(count) => {
                if let Err(error) = self.grow(count) {
                    tracing::warn!(topic = %self.topic.as_str(), %error, "new partitions");
                }
            }
            Err(error) => {
                tracing::debug!(topic = %self.topic.as_str(), %error, "asking for partitions");
            }
        }
    }

    /// The producer of a partition, opened now if there is none that works.
    fn partition(&self, partition: u32) -> Result<Arc<Opened>> {
        let at = partition as usize;
        let there = self.read().get(at).cloned().flatten();
        if let Some(opened) = there
            && opened.ended().is_none()
        {
            return Ok(opened);
        }
        // Opened without the lock, behind which the drop of another could close it again.
        let new = self.open(partition)?;
        let mut partitions = self
            .partitions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let slot = partitions.get_mut(at);
        let slot = slot.ok_or(Error::Closed("the partition"))?;
        if let Some(other) = slot.as_ref().filter(|opened| opened.ended().is_none()) {
            return Ok(Arc::clone(other));
        }
        let old = slot.replace(Arc::clone(&new));
        drop(partitions);
        drop(old);
        Ok(new)
    }

    /// This producer has ended: the next send opens another.
    fn forget(&self, partition: u32, ended: &Arc<Opened>) {
        let mut partitions = self
            .partitions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let old = partitions
            .get_mut(partition as usize)
            .and_then(|slot| slot.take_if(|opened| Arc::ptr_eq(opened, ended)));
        drop(partitions);
        drop(old);
    }
}
