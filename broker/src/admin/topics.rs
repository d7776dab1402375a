//! `/admin/v2/persistent` and `/admin/v2/non-persistent`: topics as a whole.

use super::answer::{self, Refusal};
use super::params::Params;
use super::target::{Place, Target};
use super::{Answer, Shared};
use crate::engine::TOO_MANY;
use crate::engine::admin::{Answer as Reply, Ask};
use crate::engine::name::{Domain, TopicName};
use crate::engine::watch::is_system_topic;
use crate::store::log::Position;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub(super) fn routes(base: &str) -> Router<Shared> {
    let at = |path: &str| format!("{base}/{path}");
    Router::new()
        .route(base, get(list))
        .route(&at("partitioned"), get(list_partitioned))
        .route(&at("{topic}"), put(create).delete(remove))
        .route(&at("{topic}/unload"), put(unload))
        .route(&at("{topic}/truncate"), delete(truncate))
        .route(&at("{topic}/terminate"), post(terminate))
        .route(
            &at("{topic}/terminate/partitions"),
            post(terminate_partitions),
        )
        .route(&at("{topic}/lastMessageId"), get(last_message_id))
        .route(&at("{topic}/messageid/{timestamp}"), get(message_id))
        .route(
            &at("{topic}/properties"),
            get(properties).put(set_properties).delete(remove_property),
        )
}

/// Whether a name is one of Pulsar's own topics.
pub(super) fn is_system(full: &str) -> bool {
    let local = full.rsplit('/').next().unwrap_or_default();
    local.starts_with("__")
}

async fn list(State(shared): State<Shared>, place: Place, params: Params) -> Answer {
    let prefix = format!("{}://", place.domain);
    let system = params.flag("includeSystemTopic");
    let mut names = shared.topics_of(&place.namespace).await?;
    names.retain(|name| name.starts_with(&prefix) && (system || !is_system(name)));
    Ok(answer::value(&Value::from(names)))
}

async fn list_partitioned(State(shared): State<Shared>, place: Place) -> Answer {
    let names = shared.partitioned_of(place.domain, &place.namespace);
    Ok(answer::value(&Value::from(names.await?)))
}

impl Shared {
    /// Would the namespace of a topic have too many with so many more? One that is there does not count as one more. Non-persistent topics
    /// do not count, but partitioned ones are refused like others, as in Pulsar.
    pub(super) async fn is_full(&self, name: &TopicName, more: u32) -> Result<bool, Refusal> {
        let namespace = self.namespace(name.namespace()).await?.unwrap_or_default();
        let limit = namespace.get("max_topics_per_namespace");
        let limit = limit
            .and_then(Value::as_u64)
            .unwrap_or_else(|| self.settings().max_topics_per_namespace);
        if limit == 0
            || is_system_topic(name.local())
            || name.domain() == Domain::NonPersistent && more == 1
        {
            return Ok(false);
        }
        let topics = self.topics_of(name.namespace()).await?;
        if topics.iter().any(|topic| topic == name.as_str()) {
            return Ok(false);
        }
        let local = |topic: &str| topic.rsplit('/').next().map(str::to_owned);
        let counted = topics
            .iter()
            .filter(|topic| topic.starts_with("persistent://"))
            .filter(|topic| !local(topic).is_some_and(|local| is_system_topic(&local)));
        let after = counted.count() as u64 + u64::from(more);
        Ok(after > limit)
    }
}

pub(super) fn exists() -> Refusal {
    answer::reason(StatusCode::CONFLICT, "This topic already exists").into()
}

async fn create(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let properties: Vec<_> = answer::string_map(&body)?.into_iter().collect();
    let name = &target.name;
    let _one = shared.changes.lock().await;
    if shared.partitions(name).await?.is_some() {
        return Err(exists());
    }
    if name.partition() >= 0 {
        let local = name.local();
        let base = name.base().rsplit('/').next().unwrap_or_default();
        match shared.parent(name).await? {
            None => {
                return Err(answer::failed(&format!(
                    "Can't create topic {local} with \"-partition-\" followed by numeric value if there isn't a partitioned \
                     topic {base} created."
                )));
            }
            Some(parent) if name.partition().unsigned_abs() >= parent.topic.count => {
                return Err(answer::failed(&format!(
                    "Can't create topic {local} with \"-partition-\" followed by a number smaller than number of partition of \
                     partitioned topic {base}"
                )));
            }
            Some(_) => {}
        }
    }
    if name.partition() < 0 && shared.is_full(name, 1).await? {
        // 409 here, as in Pulsar.
        return Ok(answer::reason(StatusCode::CONFLICT, TOO_MANY));
    }
    let before = shared
        .create_topics(vec![name.clone()], &properties)
        .await?;
    if !before.is_empty() {
        return Err(exists());
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove(State(shared): State<Shared>, target: Target, params: Params) -> Answer {
    let name = &target.name;
    if target.partitions.is_some() {
        let text = format!(
            "{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
        );
        return Ok(answer::reason(StatusCode::CONFLICT, &text));
    }
    let force = params.flag("force");
    match shared.ask(name, Ask::Delete { force }).await? {
        // Its schemas and its policies have gone with it, whatever `deleteSchema` says, as in Pulsar.
        Reply::Done => Ok(StatusCode::NO_CONTENT.into_response()),
        // As Pulsar has it: nothing is stored of such a topic that could be missing.
        Reply::NoTopic if name.domain() == Domain::NonPersistent => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        other => Err(target.error(other)),
    }
}

/// Asks every topic behind a name for a change.
pub(super) async fn change(
    shared: &Shared,
    target: &Target,
    ask: impl Fn() -> Ask,
) -> Result<Response, Refusal> {
    let names = target.topics();
    let replies = shared.ask_topics(&names, ask).await?;
    for (name, reply) in names.iter().zip(replies) {
        match reply {
            Reply::Done => {}
            // Partitions come with their first client.
            Reply::NoTopic if target.partitions.is_some() => {}
            other => {
                return Err(super::target::error(
                    name,
                    target.part("subscription"),
                    other,
                ));
            }
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn unload(State(shared): State<Shared>, target: Target) -> Answer {
    change(&shared, &target, || Ask::Unload).await
}

async fn truncate(State(shared): State<Shared>, target: Target) -> Answer {
    change(&shared, &target, || Ask::Truncate).await
}

async fn terminate(State(shared): State<Shared>, target: Target) -> Answer {
    if !target.is_persistent() {
        let text = "Need to provide a persistent topic name";
        return Ok(answer::reason(StatusCode::NOT_ACCEPTABLE, text));
    }
    target.one("Termination of a partitioned topic is not allowed")?;
    match shared.ask(&target.name, Ask::Terminate).await? {
        Reply::Id { position, .. } => {
            let partition = target.name.partition();
            Ok(answer::value(&id(position, partition, None)))
        }
        other => Err(target.error(other)),
    }
}

async fn terminate_partitions(State(shared): State<Shared>, target: Target) -> Answer {
    if target.partitions.is_none() {
        let text =
            "Termination of a non-partitioned topic using partitioned-terminate is not allowed";
        return Ok(answer::reason(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let names = target.topics();
    let mut last = Map::new();
    for (name, reply) in names
        .iter()
        .zip(shared.ask_topics(&names, || Ask::Terminate).await?)
    {
        match reply {
            Reply::Id { position, .. } => {
                let index = name.partition();
                // As recorded: Pulsar gives -1 here.
                last.insert(index.to_string(), id(position, -1, None));
            }
            other => return Err(super::target::error(name, "", other)),
        }
    }
    Ok(answer::value(&Value::Object(last)))
}

/// A message id as JSON.
pub(super) fn id(position: Position, partition: i32, batch: Option<i32>) -> Value {
    match batch {
        None => json!({
            "ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": partition,
            "batchSize": 0, "batchIndex": -1,
        }),
        Some(count) => json!({
            "ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": partition,
            "batchIndex": count.max(1) - 1, "batchSize": 0, "outstandingAcksInSameBatch": 0, "originalBatchSize": 0,
        }),
    }
}

async fn answer_id(shared: &Shared, target: &Target, ask: Ask, what: &str) -> Answer {
    if !target.is_persistent() {
        let text = format!("{what} on a non-persistent topic is not allowed");
        return Ok(answer::reason(StatusCode::METHOD_NOT_ALLOWED, &text));
    }
    if target.partitions.is_some() {
        return Err(target.missing());
    }
    match shared.ask(&target.name, ask).await? {
        Reply::Id { position, batch } => {
            let partition = target.name.partition();
            Ok(answer::value(&id(position, partition, batch)))
        }
        other => Err(target.error(other)),
    }
}

async fn last_message_id(State(shared): State<Shared>, target: Target) -> Answer {
    answer_id(&shared, &target, Ask::LastMessageId, "GetLastMessageId").await
}

async fn message_id(State(shared): State<Shared>, target: Target) -> Answer {
    let time: i64 = target.number("timestamp")?;
    if time <= 0 && target.is_persistent() && target.partitions.is_none() {
        // Before everything.
        return match shared.ask(&target.name, Ask::Clients).await? {
            Reply::Clients { .. } => Ok(answer::value(&id(Position::EARLIEST, -1, None))),
            other => Err(target.error(other)),
        };
    }
    let ask = Ask::MessageIdByTime(time.unsigned_abs());
    answer_id(&shared, &target, ask, "GetMessageId").await
}

fn as_object(properties: &BTreeMap<String, String>) -> Value {
    let properties = properties.iter();
    let properties: Map<String, Value> = properties
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    Value::Object(properties)
}

async fn properties(State(shared): State<Shared>, target: Target) -> Answer {
    if let Some(partitions) = &target.partitions {
        return Ok(answer::value(&as_object(&partitions.topic.properties)));
    }
    match shared.ask(&target.name, Ask::Properties).await? {
        Reply::Properties(properties) => Ok(answer::value(&as_object(&properties))),
        other => Err(target.error(other)),
    }
}

async fn set_properties(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let changes = answer::string_map(&body)?;
    let changes = changes.into_iter().map(|(key, value)| (key, Some(value)));
    store_properties(&shared, &target, changes.collect()).await
}

async fn remove_property(State(shared): State<Shared>, target: Target, params: Params) -> Answer {
    let key = params.get("key").unwrap_or_default().to_owned();
    store_properties(&shared, &target, vec![(key, None)]).await
}

async fn store_properties(
    shared: &Shared,
    target: &Target,
    changes: Vec<(String, Option<String>)>,
) -> Answer {
    if target.partitions.is_none() {
        return match shared
            .ask(&target.name, Ask::SetProperties(changes))
            .await?
        {
            Reply::Done => Ok(StatusCode::NO_CONTENT.into_response()),
            other => Err(target.error(other)),
        };
    }
    let _one = shared.changes.lock().await;
    let Some(mut stored) = shared.partitions(&target.name).await? else {
        return Err(target.missing());
    };
    for (key, value) in changes {
        match value {
            Some(value) => stored.topic.properties.insert(key, value),
            None => stored.topic.properties.remove(&key),
        };
    }
    let done = shared
        .put_partitions(&target.name, &stored.topic, stored.version)
        .await?;
    if !done {
        return Ok(answer::reason(
            StatusCode::CONFLICT,
            "Concurrent modification",
        ));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
