//! `/admin/v2/brokers`: this broker, which is all brokers there are.

use super::{Answer, Shared, answer};
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::get;
use serde_json::json;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/admin/v2/brokers", get(list))
        .route("/admin/v2/brokers/{cluster}", get(list))
        // Not clusters of these names.
        .route(
            "/admin/v2/brokers/internal-configuration",
            get(answer::unrouted),
        )
        .route(
            "/admin/v2/brokers/backlog-quota-check",
            get(answer::unrouted),
        )
        .route("/admin/v2/brokers/leaderBroker", get(leader))
        .route("/admin/v2/brokers/version", get(version))
}

async fn list(State(shared): State<Shared>, headers: HeaderMap) -> Answer {
    Ok(answer::value(&json!([shared.urls(&headers).broker_id])))
}

async fn leader(State(shared): State<Shared>, headers: HeaderMap) -> Answer {
    let urls = shared.urls(&headers);
    Ok(answer::value(&json!({
        "serviceUrl": urls.http,
        "brokerId": urls.broker_id,
    })))
}

async fn version() -> Answer {
    Ok(answer::text(env!("CARGO_PKG_VERSION").to_owned()))
}
