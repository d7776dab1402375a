//! What a namespace has by name: properties, permissions, and the few policies without a form of their own.

use super::checks::one_of;
use super::{NO_NAMESPACE, Name};
use crate::admin::answer::{self, Refusal};
use crate::admin::namespaces::Policies;
use crate::admin::{Answer, Shared};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

impl Shared {
    async fn own_properties(
        &self,
        tenant: &str,
        name: &str,
    ) -> Result<Map<String, Value>, Refusal> {
        match self.policies(tenant, name).await?.remove("properties") {
            Some(Value::Object(properties)) => Ok(properties),
            _ => Ok(Map::new()),
        }
    }

    async fn change_properties(
        &self,
        tenant: &str,
        name: &str,
        change: impl Fn(&mut Map<String, Value>),
    ) -> Answer {
        let _one = self.changes.lock().await;
        let change = |policies: &mut Policies| {
            let mut properties = match policies.remove("properties") {
                Some(Value::Object(properties)) => properties,
                _ => Map::new(),
            };
            change(&mut properties);
            policies.insert("properties".into(), Value::Object(properties));
        };
        self.change_policies(tenant, name, NO_NAMESPACE, change)
            .await
    }
}

pub(super) async fn properties(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let properties = shared.own_properties(&tenant, &name).await?;
    Ok(answer::value(&Value::Object(properties)))
}

pub(super) async fn set_properties(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let given = answer::string_map(&body)?;
    let change = |properties: &mut Map<String, Value>| {
        let given = given.iter();
        properties.extend(given.map(|(key, value)| (key.clone(), Value::from(value.as_str()))));
    };
    shared.change_properties(&tenant, &name, change).await
}

pub(super) async fn remove_properties(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
) -> Answer {
    shared.change_properties(&tenant, &name, Map::clear).await
}

pub(super) async fn property(
    State(shared): State<Shared>,
    Path((tenant, name, key)): Path<(String, String, String)>,
) -> Answer {
    let properties = shared.own_properties(&tenant, &name).await?;
    Ok(match properties.get(&key).and_then(Value::as_str) {
        Some(value) => answer::text(value.to_owned()),
        None => StatusCode::OK.into_response(),
    })
}

pub(super) async fn set_property(
    State(shared): State<Shared>,
    Path((tenant, name, key, value)): Path<(String, String, String, String)>,
) -> Answer {
    let change = |properties: &mut Map<String, Value>| {
        properties.insert(key.clone(), Value::from(value.as_str()));
    };
    shared.change_properties(&tenant, &name, change).await
}

/// Answers the value there was.
pub(super) async fn remove_property(
    State(shared): State<Shared>,
    Path((tenant, name, key)): Path<(String, String, String)>,
) -> Answer {
    let before = shared.own_properties(&tenant, &name).await?.remove(&key);
    let change = |properties: &mut Map<String, Value>| {
        properties.remove(&key);
    };
    shared.change_properties(&tenant, &name, change).await?;
    Ok(match before.as_ref().and_then(Value::as_str) {
        Some(value) => answer::text(value.to_owned()),
        None => StatusCode::OK.into_response(),
    })
}

/// Not part of the document that clients see.
pub(super) const AFFINITY: &str = "antiAffinity";
/// Longest text of it, bytes.
pub(super) const AFFINITY_MAX: usize = 4096;

pub(super) async fn affinity(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(match stored.get(AFFINITY).and_then(Value::as_str) {
        Some(text) => answer::text(text.to_owned()),
        None => StatusCode::OK.into_response(),
    })
}

/// Kept as it was sent, as in Pulsar.
pub(super) async fn set_affinity(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    bytes: Bytes,
) -> Answer {
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    if text.trim().is_empty() || text.len() > AFFINITY_MAX {
        return Err(answer::failed(
            "anti-affinity-group can't be empty or longer than 4096 bytes",
        ));
    }
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.insert(AFFINITY.to_owned(), Value::from(text));
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

pub(super) async fn remove_affinity(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.remove(AFFINITY);
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

pub(super) const PAUSE: &str = "dispatcherPauseOnAckStatePersistentEnabled";

pub(super) async fn pause(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(answer::value(stored.get(PAUSE).unwrap_or(&false.into())))
}

pub(super) async fn set_pause(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.insert(PAUSE.to_owned(), true.into());
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

pub(super) async fn remove_pause(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.insert(PAUSE.to_owned(), false.into());
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

pub(super) const AUTH: &str = "auth_policies";
pub(super) const GRANTS: &str = "namespace_auth";

pub(super) async fn permissions(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    let grants = stored.get(AUTH).and_then(|auth| auth.get(GRANTS));
    Ok(answer::value(grants.unwrap_or(&json!({}))))
}

pub(super) async fn change_grants(
    shared: &Shared,
    tenant: &str,
    name: &str,
    change: impl Fn(&mut Map<String, Value>),
) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        let mut auth = match policies.remove(AUTH) {
            Some(Value::Object(auth)) => auth,
            _ => Map::new(),
        };
        for part in [GRANTS, "destination_auth", "subscription_auth_roles"] {
            auth.entry(part).or_insert_with(|| json!({}));
        }
        if let Some(Value::Object(grants)) = auth.get_mut(GRANTS) {
            change(grants);
        }
        policies.insert(AUTH.to_owned(), Value::Object(auth));
    };
    shared
        .change_policies(tenant, name, NO_NAMESPACE, change)
        .await
}

pub(super) async fn grant(
    State(shared): State<Shared>,
    Path((tenant, name, role)): Path<(String, String, String)>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let words = [
        "produce",
        "consume",
        "functions",
        "sources",
        "sinks",
        "packages",
    ];
    let given = answer::strings(&body, "permissions")?;
    let mut actions: Vec<Value> = Vec::new();
    for action in given {
        let action = one_of(Some(&Value::from(action)), &words);
        if !actions.contains(&action) {
            actions.push(action);
        }
    }
    let change = |grants: &mut Map<String, Value>| {
        grants.insert(role.clone(), Value::from(actions.as_slice()));
    };
    change_grants(&shared, &tenant, &name, change).await
}

pub(super) async fn revoke(
    State(shared): State<Shared>,
    Path((tenant, name, role)): Path<(String, String, String)>,
) -> Answer {
    let change = |grants: &mut Map<String, Value>| {
        grants.remove(&role);
    };
    change_grants(&shared, &tenant, &name, change).await
}
