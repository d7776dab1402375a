//! `/lookup/v2/topic`: which broker serves a topic. There is one.

use super::answer;
use super::params::Params;
use super::target::Target;
use super::{Answer, Shared};
use crate::engine::admin::{Answer as Reply, Ask};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use serde_json::json;

const LISTENER: &str = "x-pulsar-listenername";

pub(super) fn routes() -> Router<Shared> {
    let topic = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}";
    Router::new()
        .route(topic, get(lookup))
        .route(&format!("{topic}/bundle"), get(bundle))
}

async fn lookup(
    State(shared): State<Shared>,
    target: Target,
    params: Params,
    headers: HeaderMap,
) -> Answer {
    let urls = shared.urls(&headers);
    let header = headers.get(LISTENER).and_then(|name| name.to_str().ok());
    if let Some(listener) = params.get("listenerName").or(header)
        && !listener.is_empty()
    {
        return Ok(answer::internal(&format!(
            "The broker '{}' does not have '{listener}' listener configured.",
            urls.broker_id
        )));
    }
    let name = &target.name;
    let creatable = shared.settings().allow_auto_topic_creation;
    if target.partitions.is_none()
        && (!creatable && shared.parent(name).await?.is_none() || shared.is_beyond(name).await?)
        && let Reply::NoTopic = shared.ask(name, Ask::Clients).await?
    {
        let text = format!("Topic not found {name}");
        return Ok(answer::reason(StatusCode::NOT_FOUND, &text));
    }
    let broker = urls.broker_of(shared.core_of(name));
    Ok(answer::value(&json!({
        "brokerId": urls.broker_id,
        "brokerUrl": broker,
        "httpUrl": urls.http,
        "nativeUrl": broker,
        "brokerUrlSsl": "",
    })))
}

async fn bundle(State(shared): State<Shared>, target: Target) -> Answer {
    let stored = shared.namespace(target.name.namespace()).await?;
    let boundaries = super::namespaces::boundaries(&stored.unwrap_or_default());
    Ok(answer::text(super::namespaces::bundle_of(
        &boundaries,
        target.name.as_str(),
    )))
}
