//! `/admin/v2/tenants`.

use super::answer::{self, Refusal};
use super::clusters::document;
use super::params::Params;
use super::{Answer, Shared};
use crate::engine::metadata::NAMESPACE;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Map, Value};

/// Keys of tenants in the metadata store: `tenant/NAME`, a JSON document.
pub(crate) const TENANT: &str = "tenant/";

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/admin/v2/tenants", get(list)).route(
        "/admin/v2/tenants/{tenant}",
        get(tenant).put(create).post(update).delete(remove),
    )
}

fn missing(text: &str) -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, text).into()
}

impl Shared {
    /// What is stored of a tenant.
    pub(super) async fn tenant(&self, name: &str) -> Result<Option<Map<String, Value>>, Refusal> {
        let found = self.get(format!("{TENANT}{name}")).await?;
        Ok(found.map(|stored| document(&stored)))
    }
}

async fn list(State(shared): State<Shared>) -> Answer {
    let found = shared.list(TENANT.to_owned()).await?;
    let names = found.iter().filter_map(|(key, _)| key.strip_prefix(TENANT));
    Ok(answer::value(&names.map(Value::from).collect()))
}

async fn tenant(State(shared): State<Shared>, Path(name): Path<String>) -> Answer {
    let stored = shared.tenant(&name).await?;
    let stored = stored.ok_or_else(|| missing("Tenant does not exist"))?;
    Ok(answer::value(&Value::Object(stored)))
}

/// What is to be stored of a body.
async fn checked(shared: &Shared, body: &Value) -> Result<Map<String, Value>, Refusal> {
    let given = match body {
        Value::Null => return Err(answer::failed("TenantInfo is null")),
        Value::Object(given) => given,
        _ => return Err(answer::malformed("a tenant must be a JSON object").into()),
    };
    let mut stored = Map::new();
    match given.get("adminRoles") {
        None | Some(Value::Null) => {}
        Some(roles) => {
            let roles = answer::strings(roles, "adminRoles")?;
            stored.insert("adminRoles".into(), Value::from(unique(roles)));
        }
    }
    let clusters = match given.get("allowedClusters") {
        None | Some(Value::Null) => return Err(answer::failed("Clusters cannot be null")),
        Some(clusters) => unique(answer::strings(clusters, "allowedClusters")?),
    };
    if clusters.is_empty() || clusters.iter().any(|cluster| cluster.trim().is_empty()) {
        return Err(answer::failed("Clusters cannot be empty or blank"));
    }
    let known = shared.clusters().await?;
    if clusters.iter().any(|cluster| !known.contains(cluster)) {
        return Err(answer::failed("Clusters do not exist"));
    }
    stored.insert("allowedClusters".into(), Value::from(clusters));
    Ok(stored)
}

/// Each once, in the order given.
fn unique(names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    let mut names = names;
    names.retain(|name| seen.insert(name.clone()));
    names
}

async fn create(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    if !answer::is_name(&name) {
        return Err(answer::failed("Tenant name is not valid"));
    }
    let _one = shared.changes.lock().await;
    let stored = checked(&shared, &body).await?;
    let text = Value::Object(stored).to_string();
    if !shared.put(format!("{TENANT}{name}"), text, Some(0)).await? {
        return Ok(answer::reason(StatusCode::CONFLICT, "Tenant already exist"));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn update(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let _one = shared.changes.lock().await;
    let stored = checked(&shared, &body).await?;
    if shared.tenant(&name).await?.is_none() {
        return Err(missing(&format!("Tenant {name} not found")));
    }
    let text = Value::Object(stored).to_string();
    shared.put(format!("{TENANT}{name}"), text, None).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove(State(shared): State<Shared>, Path(name): Path<String>, params: Params) -> Answer {
    let force = params.flag("force");
    if force && !shared.settings().force_delete_tenant_allowed {
        return Ok(answer::reason(
            StatusCode::METHOD_NOT_ALLOWED,
            "Broker doesn't allow forced deletion of tenants",
        ));
    }
    let _one = shared.changes.lock().await;
    if shared.tenant(&name).await?.is_none() {
        return Err(missing("Tenant doesn't exist"));
    }
    let prefix = format!("{NAMESPACE}{name}/");
    let namespaces = shared.list(prefix.clone()).await?;
    if !namespaces.is_empty() && !force {
        return Ok(answer::reason(
            StatusCode::CONFLICT,
            "The tenant still has active namespaces",
        ));
    }
    for (key, _) in namespaces {
        let namespace = key.strip_prefix(NAMESPACE).unwrap_or_default();
        shared.remove_namespace(namespace, true).await?;
    }
    shared.delete(format!("{TENANT}{name}")).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
