//! Policies that are more than one value: backlog quotas and clusters.

use super::checks::{invalid, number, one_of};
use super::{NO_NAMESPACE, Name};
use crate::admin::answer::{self, Refusal};
use crate::admin::namespaces::Policies;
use crate::admin::params::Params;
use crate::admin::{Answer, Shared};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

/// Whether a backlog may grow beyond what is retained.
pub(super) fn exceeds(quota: &Value, retention: &Value) -> bool {
    let number = |value: &Value, name| value.get(name).and_then(Value::as_i64).unwrap_or(0);
    let size = number(retention, "retentionSizeInMB");
    let time = number(retention, "retentionTimeInMinutes");
    size > 0
        && time > 0
        && (number(quota, "limitSize") >= size.saturating_mul(1 << 20)
            || number(quota, "limitTime") >= time.saturating_mul(60))
}

pub(super) const QUOTAS: &str = "backlog_quota_map";

pub(super) async fn quotas(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(answer::value(stored.get(QUOTAS).unwrap_or(&json!({}))))
}

pub(super) fn quota_type(params: &Params) -> Result<String, Refusal> {
    match params
        .get("backlogQuotaType")
        .unwrap_or("destination_storage")
    {
        kind @ ("destination_storage" | "message_age") => Ok(kind.to_owned()),
        _ => Err(answer::bare(StatusCode::NOT_FOUND).into()),
    }
}

pub(super) async fn set_quota(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    params: Params,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let kind = quota_type(&params)?;
    let body = answer::body(&headers, &bytes)?;
    if body.is_null() {
        return store_quota(&shared, &tenant, &name, &kind, None).await;
    }
    let given = body
        .as_object()
        .ok_or_else(|| answer::malformed("a backlog quota must be a JSON object"))?;
    let words = [
        "producer_request_hold",
        "producer_exception",
        "consumer_backlog_eviction",
    ];
    let policy = one_of(given.get("policy"), &words);
    if policy.is_null() {
        return Err(invalid(&format!(
            "Set namespace[{tenant}/{name}] backlog quota failed because the data validation failed. the attribute policy \
             cannot be null"
        )));
    }
    let size = number(given, "limitSize", number(given, "limit", 0)?)?;
    let quota = json!({
        "limit": size, "limitSize": size, "limitTime": number(given, "limitTime", 0)?, "policy": policy,
    });
    let stored = shared.policies(&tenant, &name).await?;
    if let Some(retention) = stored.get("retention_policies")
        && exceeds(&quota, retention)
    {
        return Err(answer::failed(
            "Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota and retry",
        ));
    }
    store_quota(&shared, &tenant, &name, &kind, Some(quota)).await
}

pub(super) async fn remove_quota(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    params: Params,
) -> Answer {
    let kind = quota_type(&params)?;
    store_quota(&shared, &tenant, &name, &kind, None).await
}

pub(super) async fn store_quota(
    shared: &Shared,
    tenant: &str,
    name: &str,
    kind: &str,
    quota: Option<Value>,
) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        let mut quotas = match policies.remove(QUOTAS) {
            Some(Value::Object(quotas)) => quotas,
            _ => Map::new(),
        };
        match &quota {
            Some(quota) => quotas.insert(kind.to_owned(), quota.clone()),
            None => quotas.remove(kind),
        };
        policies.insert(QUOTAS.to_owned(), Value::Object(quotas));
    };
    shared
        .change_policies(tenant, name, NO_NAMESPACE, change)
        .await
}

pub(super) async fn replication(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    let own = json!([shared.cluster.as_ref()]);
    Ok(answer::value(
        stored.get("replication_clusters").unwrap_or(&own),
    ))
}

pub(super) async fn allowed(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(answer::value(
        stored.get("allowed_clusters").unwrap_or(&json!([])),
    ))
}

pub(super) async fn set_clusters(
    shared: &Shared,
    tenant: &str,
    name: &str,
    field: &str,
    body: &Value,
) -> Answer {
    let clusters = answer::strings(body, "clusters")?;
    if clusters.is_empty() {
        return Err(answer::failed("ClusterIds should not be null or empty"));
    }
    let known = shared.clusters().await?;
    if let Some(unknown) = clusters.iter().find(|cluster| !known.contains(cluster)) {
        let text = format!("Invalid cluster id: {unknown}");
        return Ok(answer::reason(StatusCode::FORBIDDEN, &text));
    }
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.insert(field.to_owned(), Value::from(clusters.as_slice()));
    };
    shared
        .change_policies(tenant, name, NO_NAMESPACE, change)
        .await?;
    Ok(StatusCode::OK.into_response())
}

pub(super) async fn set_replication(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    set_clusters(&shared, &tenant, &name, "replication_clusters", &body).await
}

pub(super) async fn set_allowed(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    set_clusters(&shared, &tenant, &name, "allowed_clusters", &body).await
}
