//! Partitioned topics: their count and properties in the metadata store, their partitions on the cores.

use super::answer::{self, Refusal};
use super::params::Params;
use super::target::{self, Target};
use super::topics::exists;
use super::{Answer, Shared};
use crate::engine::TOO_MANY;
use crate::engine::admin::{Answer as Reply, Ask, CursorTarget, SubscriptionAsk};
use crate::engine::metadata::{Metadata, PARTITIONED, PartitionedTopic, topic_policies_key};
use crate::engine::name::{Domain, TopicName};
use crate::store::log::Position;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::future::Future;

/// Most partitions of one topic: each is a topic that takes memory.
pub(super) const PARTITIONS_MAX: u32 = 10_000;

pub(super) fn routes(base: &str) -> Router<Shared> {
    let create =
        |shared, target, headers, bytes| to_the_end(create(shared, target, headers, bytes));
    let update =
        |shared, target, headers, bytes| to_the_end(update(shared, target, headers, bytes));
    Router::new().route(
        &format!("{base}/{{topic}}/partitions"),
        get(partitions).put(create).post(update).delete(remove),
    )
}

/// Goes on when the peer does not wait for the answer, which would leave half of the work undone.
async fn to_the_end(work: impl Future<Output = Answer> + Send + 'static) -> Answer {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|error| Err(answer::internal(&error.to_string()).into()))
}

fn partition(base: &TopicName, index: u32) -> Option<TopicName> {
    TopicName::parse(&format!("{base}-partition-{index}")).ok()
}

/// A partitioned topic as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Partitions {
    pub(super) topic: PartitionedTopic,
    pub(super) version: u64,
}

impl Partitions {
    pub(super) fn names(&self, base: &TopicName) -> Vec<TopicName> {
        let names = 0..self.topic.count;
        names.filter_map(|index| partition(base, index)).collect()
    }

    /// As clients see it.
    pub(super) fn json(&self) -> Value {
        let mut metadata = Map::new();
        metadata.insert("partitions".into(), self.topic.count.into());
        metadata.insert("deleted".into(), false.into());
        if !self.topic.properties.is_empty() {
            let properties = self.topic.properties.iter();
            let properties =
                properties.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
            metadata.insert("properties".into(), properties.collect());
        }
        Value::Object(metadata)
    }
}

impl Shared {
    /// Whether a name is that of a partitioned topic.
    pub(super) async fn partitions(&self, name: &TopicName) -> Result<Option<Partitions>, Refusal> {
        self.partitions_of(name.as_str()).await
    }

    async fn partitions_of(&self, full: &str) -> Result<Option<Partitions>, Refusal> {
        let key = format!("{PARTITIONED}{}", full.replacen("://", "/", 1));
        let found = self.get(key).await?;
        Ok(found.and_then(|stored| {
            Some(Partitions {
                topic: PartitionedTopic::read(&stored.value)?,
                version: stored.version,
            })
        }))
    }

    /// The partitioned topic that a name is a partition of, by the name's form.
    pub(super) async fn parent(&self, name: &TopicName) -> Result<Option<Partitions>, Refusal> {
        if name.partition() < 0 {
            return Ok(None);
        }
        self.partitions_of(name.base()).await
    }

    /// Whether a name is that of a partition behind the last one of its topic: nobody makes it.
    pub(super) async fn is_beyond(&self, name: &TopicName) -> Result<bool, Refusal> {
        let parent = self.parent(name).await?;
        Ok(parent
            .is_some_and(|parent| i64::from(name.partition()) >= i64::from(parent.topic.count)))
    }

    pub(super) async fn put_partitions(
        &self,
        name: &TopicName,
        topic: &PartitionedTopic,
        expected: u64,
    ) -> Result<bool, Refusal> {
        let (key, _) = Metadata::partitioned_entry(name, topic.count);
        Ok(self.put(key, topic.write(), Some(expected)).await?)
    }

    /// Full names of the partitioned topics of a namespace.
    pub(super) async fn partitioned_of(
        &self,
        domain: &str,
        namespace: &str,
    ) -> Result<Vec<String>, Refusal> {
        let prefix = format!("{PARTITIONED}{domain}/{namespace}/");
        let found = self.list(prefix.clone()).await?;
        let names = found
            .iter()
            .filter_map(|(key, _)| key.strip_prefix(&prefix));
        Ok(names
            .map(|local| format!("{domain}://{namespace}/{local}"))
            .collect())
    }

    /// Stores a partitioned topic and makes the partitions there are not yet; false if it is not as expected. Those of non-persistent topics
    /// come with their first client. A stop in between is made good at the next start, a failure with the next request. `before`: how many
    /// there are, if it grows.
    async fn put_and_make(
        &self,
        name: &TopicName,
        topic: &PartitionedTopic,
        expected: u64,
        before: u32,
    ) -> Result<bool, Refusal> {
        let mut topic = topic.clone();
        topic.unfinished = name.domain() == Domain::Persistent;
        // Asked before clients can find them: what they publish is for the subscriptions too.
        let fresh = match before > 0 && topic.unfinished {
            true => self.absent(name, before, topic.count).await?,
            false => BTreeSet::new(),
        };
        if !self.put_partitions(name, &topic, expected).await? {
            return Ok(false);
        }
        if topic.unfinished
            && let Some(stored) = self.partitions(name).await?
        {
            self.finish_partitions(name, stored, &fresh).await?;
        }
        Ok(true)
    }

    /// Names of the partitions from `from` to below `to` that are no topics yet.
    async fn absent(
        &self,
        name: &TopicName,
        from: u32,
        to: u32,
    ) -> Result<BTreeSet<String>, Refusal> {
        let names: Vec<_> = (from..to).filter_map(|n| partition(name, n)).collect();
        let replies = self.ask_topics(&names, || Ask::Clients).await?;
        let absent = names.iter().zip(replies);
        let absent = absent.filter(|(_, reply)| matches!(reply, Reply::NoTopic));
        Ok(absent.map(|(name, _)| name.as_str().to_owned()).collect())
    }

    /// Makes the missing partitions of a topic that was left unfinished. For who holds `changes`. `fresh`: those that were missing before
    /// clients could find them.
    async fn finish_partitions(
        &self,
        name: &TopicName,
        stored: Partitions,
        fresh: &BTreeSet<String>,
    ) -> Result<(), Refusal> {
        if !stored.topic.unfinished {
            return Ok(());
        }
        let names = stored.names(name);
        let mut existed = self.create_topics(names.clone(), &[]).await?;
        existed.retain(|name| !fresh.contains(name));
        self.spread_subscriptions(&names, &existed).await?;
        let mut topic = stored.topic;
        topic.unfinished = false;
        // Whoever changes it otherwise leaves a mark of his own.
        self.put_partitions(name, &topic, stored.version).await?;
        Ok(())
    }

    /// Gives every partition the durable subscriptions of the first, as Pulsar does whenever somebody sets the number of partitions: who is
    /// away while a topic grows misses nothing of its new partitions.
    async fn spread_subscriptions(
        &self,
        names: &[TopicName],
        existed: &[String],
    ) -> Result<(), Refusal> {
        let Some((first, others)) = names.split_first() else {
            return Ok(());
        };
        let wanted: Vec<_> = match self.ask(first, Ask::Stats).await? {
            Reply::Stats(stats) => stats.subscriptions.into_iter(),
            Reply::NoTopic => return Ok(()),
            other => return Err(target::error(first, "", other)),
        }
        .filter(|(_, stats)| stats.durable)
        .map(|(name, stats)| (name, stats.properties))
        .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let existed: BTreeSet<&str> = existed.iter().map(String::as_str).collect();
        let has = self.ask_topics(others, || Ask::Subscriptions).await?;
        let has: Vec<BTreeSet<String>> = has
            .into_iter()
            .map(|reply| match reply {
                Reply::Names(names) => names.into_iter().collect(),
                _ => BTreeSet::new(),
            })
            .collect();
        for (subscription, properties) in wanted {
            // A new partition from its first message on: clients may have found it before us.
            for fresh in [true, false] {
                let missing = others.iter().zip(&has).filter(|(name, has)| {
                    !has.contains(&subscription) && existed.contains(name.as_str()) != fresh
                });
                let missing: Vec<TopicName> = missing.map(|(name, _)| name.clone()).collect();
                let at = CursorTarget {
                    position: match fresh {
                        true => Position::EARLIEST,
                        false => Position::LATEST,
                    },
                    batch_index: -1,
                    excluded: false,
                };
                let ask = || Ask::Subscription {
                    name: subscription.clone(),
                    ask: SubscriptionAsk::Create {
                        at,
                        properties: properties.clone(),
                        create_topic: false,
                    },
                };
                let replies = self.ask_topics(&missing, ask).await?;
                for (name, reply) in missing.iter().zip(replies) {
                    match reply {
                        // Its own client may be quicker.
                        Reply::Done | Reply::Exists | Reply::NoTopic => {}
                        // It has subscriptions of its own, up to its limit: no reason to undo the partitions.
                        Reply::Conflict(text) => {
                            tracing::warn!(%name, %subscription, %text, "a partition lacks a subscription of its topic");
                        }
                        other => return Err(target::error(name, &subscription, other)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Finishes what a stop of the broker left unfinished. True if nothing is left.
    pub(super) async fn finish_all(&self) -> Result<bool, Refusal> {
        let mut all = true;
        for (key, stored) in self.list(PARTITIONED.to_owned()).await? {
            if !PartitionedTopic::read(&stored.value).is_some_and(|topic| topic.unfinished) {
                continue;
            }
            let full = key.strip_prefix(PARTITIONED).unwrap_or_default();
            let Ok(name) = TopicName::parse(&full.replacen('/', "://", 1)) else {
                continue;
            };
            let _one = self.changes.lock().await;
            if let Some(stored) = self.partitions(&name).await? {
                all &= self
                    .finish_partitions(&name, stored, &BTreeSet::new())
                    .await
                    .is_ok();
            }
        }
        Ok(all)
    }

    /// Removes a partitioned topic and its partitions.
    pub(super) async fn remove_partitioned(
        &self,
        name: &TopicName,
        partitions: &Partitions,
        force: bool,
    ) -> Result<(), Refusal> {
        let names = partitions.names(name);
        if !force {
            let replies = self.ask_topics(&names, || Ask::Clients).await?;
            for (partition, reply) in names.iter().zip(replies) {
                match reply {
                    Reply::NoTopic => {}
                    Reply::Clients {
                        producers: 0,
                        consumers: 0,
                    } => {}
                    busy => return Err(target::error(partition, "", busy)),
                }
            }
        }
        // First the topic, so that no client makes a partition anew.
        let (key, _) = Metadata::partitioned_entry(name, 0);
        self.delete(key).await?;
        let replies = self.ask_topics(&names, || Ask::Delete { force }).await?;
        for (partition, reply) in names.iter().zip(replies) {
            match reply {
                Reply::Done | Reply::NoTopic => {}
                refused => {
                    // Somebody connected in between: the topic stays, without the partitions that are gone by now.
                    self.put_and_make(name, &partitions.topic, 0, 0).await?;
                    return Err(target::error(partition, "", refused));
                }
            }
        }
        // What the partitions had in common.
        self.delete(topic_policies_key(name)).await?;
        self.forget_schema(name).await
    }
}

async fn partitions(State(shared): State<Shared>, target: Target, params: Params) -> Answer {
    if let Some(partitions) = &target.partitions {
        return Ok(answer::value(&partitions.json()));
    }
    let plain = Partitions {
        topic: PartitionedTopic::default(),
        version: 0,
    };
    match shared.ask(&target.name, Ask::Clients).await? {
        Reply::Clients { .. } => return Ok(answer::value(&plain.json())),
        Reply::NoTopic => {}
        other => return Err(target.error(other)),
    }
    let settings = shared.settings();
    if shared.is_beyond(&target.name).await? {
        return Err(target.missing());
    }
    if !(params.flag("checkAllowAutoCreation") && settings.allow_auto_topic_creation) {
        return Err(target.missing());
    }
    let topic = PartitionedTopic {
        count: match settings.allow_auto_topic_creation_type {
            crate::config::TopicType::Partitioned => settings.default_num_partitions,
            crate::config::TopicType::NonPartitioned => 0,
        },
        ..PartitionedTopic::default()
    };
    Ok(answer::value(&Partitions { topic, version: 0 }.json()))
}

/// A count, or with a content type of its own a count and properties.
fn wanted(headers: &HeaderMap, bytes: &[u8]) -> Result<PartitionedTopic, Refusal> {
    const METADATA: &str = "application/vnd.partitioned-topic-metadata+json";
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let (body, properties) = if kind.starts_with(METADATA) {
        let body: Value =
            serde_json::from_slice(bytes).map_err(|error| answer::malformed(&error.to_string()))?;
        let properties = answer::string_map(body.get("properties").unwrap_or(&Value::Null))?;
        (
            body.get("partitions").cloned().unwrap_or(Value::Null),
            properties,
        )
    } else {
        (answer::body(headers, bytes)?, Default::default())
    };
    if body.is_null() {
        return Err(answer::bare(StatusCode::INTERNAL_SERVER_ERROR).into());
    }
    let count = answer::integer(&body, "the number of partitions")?;
    Ok(PartitionedTopic {
        // Negative counts are refused like 0.
        count: u32::try_from(count).unwrap_or(0),
        properties,
        unfinished: false,
    })
}

fn check_count(count: u32) -> Result<(), Refusal> {
    let refuse = |text: &str| Err(answer::reason(StatusCode::NOT_ACCEPTABLE, text).into());
    match count {
        0 => refuse("Number of partitions should be more than 0"),
        1..=PARTITIONS_MAX => Ok(()),
        _ => refuse(&format!(
            "Number of partitions should be less than or equal to {PARTITIONS_MAX}"
        )),
    }
}

async fn create(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let topic = wanted(&headers, &bytes)?;
    if target.name.local().contains("-partition-") {
        return Err(answer::failed(
            "Partitioned Topic Name should not contain '-partition-'",
        ));
    }
    check_count(topic.count)?;
    let _one = shared.changes.lock().await;
    if let Reply::Clients { .. } = shared.ask(&target.name, Ask::Clients).await? {
        return Err(exists());
    }
    if let Some(stored) = shared.partitions(&target.name).await? {
        shared
            .finish_partitions(&target.name, stored, &BTreeSet::new())
            .await?;
        return Err(exists());
    }
    if shared.is_full(&target.name, topic.count).await? {
        return Err(answer::failed(TOO_MANY));
    }
    if !shared.put_and_make(&target.name, &topic, 0, 0).await? {
        return Err(exists());
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn update(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let wanted = wanted(&headers, &bytes)?.count;
    let _one = shared.changes.lock().await;
    let Some(stored) = shared.partitions(&target.name).await? else {
        let text = format!("Topic {} is not the partitioned topic.", target.name);
        return Ok(answer::reason(StatusCode::CONFLICT, &text));
    };
    let now = stored.topic.count;
    let refuse = |text: String| answer::reason(StatusCode::UNPROCESSABLE_ENTITY, &text);
    if wanted < now {
        return Ok(refuse(format!(
            "Desired partitions {wanted} can't be less than the current partitions {now}."
        )));
    }
    if wanted > PARTITIONS_MAX {
        return Ok(refuse(format!(
            "Desired partitions {wanted} can't be greater than the maximum partitions per topic {PARTITIONS_MAX}."
        )));
    }
    let mut topic = stored.topic.clone();
    topic.count = wanted;
    if !shared
        .put_and_make(&target.name, &topic, stored.version, now)
        .await?
    {
        return Ok(answer::reason(
            StatusCode::CONFLICT,
            "Concurrent modification",
        ));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove(State(shared): State<Shared>, target: Target, params: Params) -> Answer {
    let _one = shared.changes.lock().await;
    let name = &target.name;
    let Some(partitions) = shared.partitions(name).await? else {
        return Err(match shared.ask(name, Ask::Clients).await? {
            Reply::Clients { .. } => {
                let text = format!(
                    "{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic please call delete."
                );
                answer::reason(StatusCode::CONFLICT, &text).into()
            }
            _ => {
                let text = format!("Topic {name} not found.");
                answer::reason(StatusCode::NOT_FOUND, &text).into()
            }
        });
    };
    shared
        .remove_partitioned(name, &partitions, params.flag("force"))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
