//! `/admin/v2/brokers/configuration`: the settings, and those that change while the broker runs.

use super::{Answer, Shared, answer};
use crate::config::{DEFINITIONS, DYNAMIC, definition};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use serde_json::{Map, Value};

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/admin/v2/brokers/configuration", get(names))
        .route("/admin/v2/brokers/configuration/values", get(values))
        .route("/admin/v2/brokers/configuration/runtime", get(runtime))
        .route("/admin/v2/brokers/configuration/{name}", delete(unset))
        .route("/admin/v2/brokers/configuration/{name}/{value}", post(set))
}

/// The names of all settings that may change.
async fn names() -> Answer {
    let names = DEFINITIONS
        .iter()
        .filter(|definition| definition.dynamic)
        .map(|definition| Value::from(definition.name));
    Ok(answer::value(&Value::Array(names.collect())))
}

/// What was set and not deleted since, as it was said.
async fn values(State(shared): State<Shared>) -> Answer {
    let values = shared.broker.configuration().overrides;
    let values: Map<String, Value> = values
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    Ok(answer::value(&Value::Object(values)))
}

/// Every setting as the broker goes by it now.
async fn runtime(State(shared): State<Shared>) -> Answer {
    let settings = shared.broker.configuration().settings;
    let all: Map<String, Value> = DEFINITIONS
        .iter()
        .map(|definition| {
            (
                definition.name.to_owned(),
                Value::from(definition.get(&settings)),
            )
        })
        .collect();
    Ok(answer::value(&Value::Object(all)))
}

fn is_dynamic(name: &str) -> bool {
    definition(name).is_some_and(|definition| definition.dynamic)
}

/// Any text is taken, as in Pulsar: one that the setting cannot have is kept and shown, and changes nothing.
async fn set(State(shared): State<Shared>, Path((name, value)): Path<(String, String)>) -> Answer {
    if !is_dynamic(&name) {
        return Ok(answer::reason(
            StatusCode::PRECONDITION_FAILED,
            "Can't update non-dynamic configuration",
        ));
    }
    let _one = shared.changes.lock().await;
    shared.put(format!("{DYNAMIC}{name}"), value, None).await?;
    Ok(StatusCode::OK.into_response())
}

async fn unset(State(shared): State<Shared>, Path(name): Path<String>) -> Answer {
    if !is_dynamic(&name) {
        return Ok(answer::reason(
            StatusCode::PRECONDITION_FAILED,
            "Can't delete non-dynamic configuration",
        ));
    }
    let _one = shared.changes.lock().await;
    shared.delete(format!("{DYNAMIC}{name}")).await?;
    Ok(StatusCode::OK.into_response())
}
