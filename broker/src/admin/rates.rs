//! Publish rates of namespaces, and resource groups that namespaces share.

use super::answer::{self, Refusal, failed, is_name};
use super::clusters::document as policies;
use super::namespaces::Policies;
use super::policies::Policy;
use super::{Answer, Shared};
use crate::engine::metadata::{NAMESPACE, RESOURCE_GROUP};
use crate::store::meta::Versioned;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::{Map, Value};

/// Fields as the policies of a namespace name them.
pub(super) const PUBLISH_RATES: &str = "publishMaxMessageRate";
const GROUP: &str = "resource_group_name";
/// How often a change is tried again because somebody else changed the same value.
const TRIES: usize = 16;

/// A number of a body: its name, and whether it has 64 bits.
type Number = (&'static str, bool);
const PUBLISH_RATE: [Number; 2] = [
    ("publishThrottlingRateInMsg", false),
    ("publishThrottlingRateInByte", true),
];
const RESOURCE_GROUP_RATES: [Number; 4] = [
    ("publishRateInMsgs", false),
    ("publishRateInBytes", true),
    ("dispatchRateInMsgs", false),
    ("dispatchRateInBytes", true),
];

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route(
            "/admin/v2/namespaces/{tenant}/{namespace}/publishRate",
            get(show_rate)
                .post(set_publish_rate)
                .delete(remove_publish_rate),
        )
        .route(
            "/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup",
            get(group_of).delete(leave_group),
        )
        .route(
            "/admin/v2/namespaces/{tenant}/{namespace}/resourcegroup/{group}",
            post(join_group),
        )
        .route("/admin/v2/resourcegroups", get(groups))
        .route(
            "/admin/v2/resourcegroups/{group}",
            get(group).put(set_group).delete(remove_group),
        )
}

fn missing(reason: &str) -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, reason).into()
}

const NO_NAMESPACE: &str = "Namespace does not exist";
const NO_GROUP: &str = "ResourceGroup does not exist";

impl Shared {
    /// The policies of a namespace.
    pub(super) async fn policies(&self, tenant: &str, name: &str) -> Result<Policies, Refusal> {
        let found = self.namespace(&format!("{tenant}/{name}")).await?;
        found.ok_or_else(|| missing(NO_NAMESPACE))
    }

    /// Changes the policies of a namespace; all of them that this code does not know stay as they are.
    pub(super) async fn change_policies(
        &self,
        tenant: &str,
        name: &str,
        absent: &str,
        change: impl Fn(&mut Policies),
    ) -> Answer {
        let key = format!("{NAMESPACE}{tenant}/{name}");
        for _ in 0..TRIES {
            let found = self
                .get(key.clone())
                .await?
                .ok_or_else(|| missing(absent))?;
            let mut policies = policies(&found);
            change(&mut policies);
            let text = Value::Object(policies).to_string();
            if self.put(key.clone(), text, Some(found.version)).await? {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
        }
        Ok(answer::reason(
            StatusCode::CONFLICT,
            "Concurrent modification",
        ))
    }
}

/// A number as Pulsar's parser takes it: whole, cut to whole, or such a number as text. `None`: it is null.
fn number(value: &Value, (name, long): Number) -> Result<Option<i64>, Refusal> {
    let number = match value {
        Value::Null => return Ok(None),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Some(whole),
            // Within ±2^63 the cast only cuts what is behind the point.
            (None, Some(real)) if real.abs() < 9.2e18 => Some(real.trunc() as i64),
            _ => None,
        },
        Value::String(text) if text.trim().is_empty() => Some(0),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number
        .filter(|number| long || i32::try_from(*number).is_ok())
        .map(Some)
        .ok_or_else(|| {
            let kind = if long {
                "a 64-bit integer"
            } else {
                "a 32-bit integer"
            };
            answer::malformed(&format!("{name} must be {kind}, not {value}")).into()
        })
}

fn object<'a>(body: &'a Value, what: &str) -> Result<&'a Policies, Refusal> {
    body.as_object()
        .ok_or_else(|| answer::malformed(&format!("{what} must be a JSON object")).into())
}

type Namespace = Path<(String, String)>;

async fn show_rate(State(shared): State<Shared>, Path((tenant, name)): Namespace) -> Answer {
    let policies = shared.policies(&tenant, &name).await?;
    let rate = policies
        .get(PUBLISH_RATES)
        .and_then(|rates| rates.get(shared.cluster.as_ref()));
    Ok(answer::value(rate.unwrap_or(&Value::Null)))
}

/// A publish rate in the form that is stored. A number that is not given is -1: no limit.
fn check_rate(body: &Value) -> Result<Value, Refusal> {
    let given = object(body, "a publish rate")?;
    let mut rate = Map::new();
    for field in PUBLISH_RATE {
        let value = match given.get(field.0) {
            Some(value) => number(value, field)?.unwrap_or(0),
            None => -1,
        };
        rate.insert(field.0.to_owned(), Value::from(value));
    }
    Ok(Value::Object(rate))
}

/// The same for a topic's own policy.
pub(super) fn publish_rate(_: &Policy, body: &Value) -> Result<Value, Refusal> {
    check_rate(body)
}

/// No body, or `null`, removes the rate.
async fn set_publish_rate(
    State(shared): State<Shared>,
    Path((tenant, name)): Namespace,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let rate = match body {
        Value::Null => None,
        body => Some(check_rate(&body)?),
    };
    store_rate(&shared, &tenant, &name, rate).await
}

async fn remove_publish_rate(
    State(shared): State<Shared>,
    Path((tenant, name)): Namespace,
) -> Answer {
    store_rate(&shared, &tenant, &name, None).await
}

async fn store_rate(shared: &Shared, tenant: &str, name: &str, rate: Option<Value>) -> Answer {
    let _one = shared.changes.lock().await;
    let cluster = shared.cluster.as_ref();
    let change = |policies: &mut Policies| {
        let mut rates = match policies.remove(PUBLISH_RATES) {
            Some(Value::Object(rates)) => rates,
            _ => Map::new(),
        };
        match &rate {
            Some(rate) => rates.insert(cluster.to_owned(), rate.clone()),
            None => rates.remove(cluster),
        };
        policies.insert(PUBLISH_RATES.to_owned(), Value::Object(rates));
    };
    shared
        .change_policies(tenant, name, NO_NAMESPACE, change)
        .await
}

async fn group_of(State(shared): State<Shared>, Path((tenant, name)): Namespace) -> Answer {
    let policies = shared.policies(&tenant, &name).await?;
    Ok(match policies.get(GROUP) {
        Some(Value::String(group)) => answer::text(group.clone()),
        _ => StatusCode::OK.into_response(),
    })
}

async fn join_group(
    State(shared): State<Shared>,
    Path((tenant, name, group)): Path<(String, String, String)>,
) -> Answer {
    let _one = shared.changes.lock().await;
    let found = shared.get(format!("{RESOURCE_GROUP}{group}")).await?;
    found.ok_or_else(|| failed(NO_GROUP))?;
    let join = |policies: &mut Policies| {
        policies.insert(GROUP.to_owned(), Value::from(group.as_str()));
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, join)
        .await
}

async fn leave_group(State(shared): State<Shared>, Path((tenant, name)): Namespace) -> Answer {
    let _one = shared.changes.lock().await;
    let leave = |policies: &mut Policies| {
        policies.remove(GROUP);
    };
    shared
        .change_policies(&tenant, &name, "Namespace policies does not exist", leave)
        .await
}

async fn groups(State(shared): State<Shared>) -> Answer {
    let found = shared.list(RESOURCE_GROUP.to_owned()).await?;
    let names = found
        .iter()
        .filter_map(|(key, _)| key.strip_prefix(RESOURCE_GROUP))
        .map(Value::from);
    Ok(answer::value(&Value::Array(names.collect())))
}

async fn group(State(shared): State<Shared>, Path(group): Path<String>) -> Answer {
    let found = shared.get(format!("{RESOURCE_GROUP}{group}")).await?;
    let stored = policies(&found.ok_or_else(|| missing(NO_GROUP))?);
    Ok(answer::value(&Value::Object(stored)))
}

/// Makes a group or changes it: a rate that is not given stays, in a new group it is -1, no limit.
async fn set_group(
    State(shared): State<Shared>,
    Path(group): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    if !is_name(&group) {
        return Err(failed("Invalid resource group name"));
    }
    let body = answer::body(&headers, &bytes)?;
    let given = object(&body, "a resource group")?;
    let mut changes = Vec::new();
    for field in RESOURCE_GROUP_RATES {
        let value = given.get(field.0).unwrap_or(&Value::Null);
        changes.push((field.0, number(value, field)?));
    }
    let _one = shared.changes.lock().await;
    let key = format!("{RESOURCE_GROUP}{group}");
    let mut stored = shared
        .get(key.clone())
        .await?
        .map_or_else(Map::new, |found| policies(&found));
    for (name, change) in changes {
        let value = match (change, stored.remove(name)) {
            (Some(new), _) => Value::from(new),
            (None, Some(old)) => old,
            (None, None) => Value::from(-1),
        };
        stored.insert(name.to_owned(), value);
    }
    // Only requests change groups, and they wait for each other.
    shared
        .put(key, Value::Object(stored).to_string(), None)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove_group(State(shared): State<Shared>, Path(group): Path<String>) -> Answer {
    let _one = shared.changes.lock().await;
    let namespaces = shared.list(NAMESPACE.to_owned()).await?;
    let uses = |stored: &Versioned| {
        policies(stored).get(GROUP).and_then(Value::as_str) == Some(group.as_str())
    };
    if namespaces.iter().any(|(_, stored)| uses(stored)) {
        return Err(failed("ResourceGroup is in use"));
    }
    if !shared.delete(format!("{RESOURCE_GROUP}{group}")).await? {
        return Ok(answer::internal(&format!(
            "path /admin/resourcegroups/{group} not found."
        )));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
