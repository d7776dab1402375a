//! Subscriptions of a topic: made, listed, deleted, moved.

use super::answer::{self, Refusal};
use super::params::Params;
use super::target::{self, Target};
use super::topics::change;
use super::{Answer, Shared};
use crate::engine::admin::{Answer as Reply, Ask, CursorTarget, SubscriptionAsk};
use crate::store::log::Position;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a subscription's properties, as for clients.
const PROPERTIES_MAX: usize = 64 << 10;

pub(super) fn routes(base: &str) -> Router<Shared> {
    let one = format!("{base}/{{topic}}/subscription/{{subscription}}");
    let at = |path: &str| format!("{one}/{path}");
    Router::new()
        .route(&format!("{base}/{{topic}}/subscriptions"), get(list))
        .route(&one, put(create).delete(remove))
        .route(&at("skip_all"), post(skip_all))
        .route(&at("skip/{count}"), post(skip))
        .route(&at("resetcursor"), post(reset_to))
        .route(&at("resetcursor/{timestamp}"), post(reset_to_time))
        .route(&at("expireMessages"), post(expire_to))
        .route(&at("expireMessages/{seconds}"), post(expire))
        .route(
            &format!("{base}/{{topic}}/all_subscription/expireMessages/{{seconds}}"),
            post(expire_all),
        )
        .route(&at("properties"), get(properties))
}

fn about(target: &Target, ask: SubscriptionAsk) -> Ask {
    Ask::Subscription {
        name: target.part("subscription").to_owned(),
        ask,
    }
}

async fn list(State(shared): State<Shared>, target: Target) -> Answer {
    let names = target.topics();
    let mut all = BTreeSet::new();
    for (name, reply) in names
        .iter()
        .zip(shared.ask_topics(&names, || Ask::Subscriptions).await?)
    {
        match reply {
            Reply::Names(subscriptions) => all.extend(subscriptions),
            Reply::NoTopic if target.partitions.is_some() => {}
            other => return Err(target::error(name, "", other)),
        }
    }
    Ok(answer::value(&all.into_iter().map(Value::from).collect()))
}

/// A position, and the properties beside it.
type Place = (CursorTarget, Map<String, Value>);

/// What a body says about a position, and properties that it may have.
///
/// # Errors
/// 400 if it is none.
fn cursor_target(body: &Value) -> Result<Option<Place>, Refusal> {
    let at = |position| CursorTarget {
        position,
        batch_index: -1,
        excluded: false,
    };
    match body {
        Value::Null => Ok(None),
        Value::String(text) if text == "latest" => Ok(Some((at(Position::LATEST), Map::new()))),
        Value::String(text) if text == "earliest" => Ok(Some((at(Position::EARLIEST), Map::new()))),
        Value::String(text) => Err(answer::malformed(&format!(
            "Invalid value {text} for the position. Allowed values are [latest, earliest]"
        ))
        .into()),
        Value::Object(fields) => {
            let number = |name: &str, default: i64| match fields.get(name) {
                None | Some(Value::Null) => Ok(default),
                Some(value) => answer::integer(value, name),
            };
            let mut target = at(Position::new(number("ledgerId", 0)?, number("entryId", 0)?));
            target.batch_index = i32::try_from(number("batchIndex", -1)?).unwrap_or(-1);
            target.excluded = fields
                .get("excluded")
                .and_then(Value::as_bool)
                .unwrap_or(false);
            let properties = match fields.get("properties") {
                Some(Value::Object(properties)) => properties.clone(),
                _ => Map::new(),
            };
            Ok(Some((target, properties)))
        }
        _ => Err(
            answer::malformed("a position must be a JSON object, \"latest\" or \"earliest\"")
                .into(),
        ),
    }
}

async fn create(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let latest = CursorTarget {
        position: Position::LATEST,
        batch_index: -1,
        excluded: false,
    };
    let (at, properties) = cursor_target(&body)?.unwrap_or((latest, Map::new()));
    if !target.is_persistent() {
        return Ok(answer::reason(
            StatusCode::BAD_REQUEST,
            "Create subscription on non-persistent topic can only be done through client",
        ));
    }
    let properties: Vec<_> = answer::string_map(&Value::Object(properties))?
        .into_iter()
        .collect();
    let size = |(key, value): &(String, String)| key.len() + value.len();
    let size: usize = properties.iter().map(size).sum();
    if size > PROPERTIES_MAX {
        return Err(answer::failed(&format!(
            "The properties of a subscription may have {PROPERTIES_MAX} bytes, these have {size}"
        )));
    }
    let in_partitioned =
        target.partitions.is_some() || shared.parent(&target.name).await?.is_some();
    let create_topic = in_partitioned
        || target.name.partition() < 0 && shared.settings().allow_auto_topic_creation;
    let names = target.topics();
    let ask = || {
        let (properties, at) = (properties.clone(), at);
        about(
            &target,
            SubscriptionAsk::Create {
                at,
                properties,
                create_topic,
            },
        )
    };
    let replies = shared.ask_topics(&names, ask).await?;
    let (mut made, mut existed) = (false, false);
    for (name, reply) in names.iter().zip(replies) {
        match reply {
            Reply::Done => made = true,
            Reply::Exists => existed = true,
            Reply::NoTopic => {
                return Err(answer::failed(
                    "Topic does not exist and cannot be auto-created",
                ));
            }
            other => return Err(target::error(name, target.part("subscription"), other)),
        }
    }
    if existed && !made {
        return Ok(answer::reason(
            StatusCode::CONFLICT,
            "Subscription already exists for topic",
        ));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove(State(shared): State<Shared>, target: Target, params: Params) -> Answer {
    let force = params.flag("force");
    let names = target.topics();
    let ask = || about(&target, SubscriptionAsk::Delete { force });
    let replies = shared.ask_topics(&names, ask).await?;
    let mut gone = false;
    let mut missing = None;
    for (name, reply) in names.iter().zip(replies) {
        match reply {
            Reply::Done => gone = true,
            Reply::Clients { .. } => {
                return Err(answer::failed(
                    "Subscription has active connected consumers",
                ));
            }
            Reply::NoTopic | Reply::NoSubscription if target.partitions.is_some() => {
                missing = Some(reply);
            }
            other => return Err(target::error(name, target.part("subscription"), other)),
        }
    }
    match missing {
        Some(missing) if !gone => Err(target.error(missing)),
        _ => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

async fn skip_all(State(shared): State<Shared>, target: Target) -> Answer {
    change(&shared, &target, || {
        about(&target, SubscriptionAsk::SkipAll)
    })
    .await
}

async fn skip(State(shared): State<Shared>, target: Target) -> Answer {
    let count: i32 = target.number("count")?;
    target.one("Skip messages on a partitioned topic is not allowed")?;
    let count = u64::try_from(count).unwrap_or(0);
    change(&shared, &target, || {
        about(&target, SubscriptionAsk::Skip(count))
    })
    .await
}

async fn reset_to_time(State(shared): State<Shared>, target: Target) -> Answer {
    let time: i64 = target.number("timestamp")?;
    let time = u64::try_from(time).unwrap_or(0);
    change(&shared, &target, || {
        about(&target, SubscriptionAsk::ResetToTime(time))
    })
    .await
}

async fn reset_to(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    target.one("Reset-cursor at position is not allowed for partitioned-topic")?;
    let Some((at, _)) = cursor_target(&body)? else {
        return Ok(answer::internal("the request says no position"));
    };
    change(&shared, &target, || {
        about(&target, SubscriptionAsk::ResetTo(at))
    })
    .await
}

/// The time before which messages expire that are to live `seconds`.
fn before(seconds: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
    // Below 0 nothing is old enough, as in Pulsar.
    match u64::try_from(seconds) {
        Ok(_) => u64::try_from(now.saturating_sub(seconds.saturating_mul(1000))).unwrap_or(0),
        Err(_) => 0,
    }
}

async fn expire(State(shared): State<Shared>, target: Target) -> Answer {
    let before = before(target.number("seconds")?);
    change(&shared, &target, || {
        about(&target, SubscriptionAsk::ExpireBefore(before))
    })
    .await
}

async fn expire_all(State(shared): State<Shared>, target: Target) -> Answer {
    let before_ms = before(target.number("seconds")?);
    change(&shared, &target, || Ask::ExpireAll { before_ms }).await
}

async fn expire_to(
    State(shared): State<Shared>,
    target: Target,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    target.one("Expire message at position is not supported for partitioned-topic")?;
    let Some((at, _)) = cursor_target(&body)? else {
        return Ok(answer::internal("the request says no position"));
    };
    change(&shared, &target, || {
        about(&target, SubscriptionAsk::ExpireTo(at))
    })
    .await
}

async fn properties(State(shared): State<Shared>, target: Target) -> Answer {
    let names = target.topics();
    let ask = || about(&target, SubscriptionAsk::Properties);
    let mut all = Map::new();
    for (name, reply) in names.iter().zip(shared.ask_topics(&names, ask).await?) {
        match reply {
            Reply::Properties(properties) => {
                let properties = properties.into_iter();
                all.extend(properties.map(|(key, value)| (key, Value::from(value))));
            }
            other => return Err(target::error(name, target.part("subscription"), other)),
        }
    }
    Ok(answer::value(&Value::Object(all)))
}
