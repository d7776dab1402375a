//! `/admin/v2/clusters`: what is known of clusters. A broker is a cluster of its own; the rest is kept for clients that ask.

use super::answer::{self, Refusal};
use super::{Answer, Shared};
use crate::store::meta::Versioned;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Map, Value, json};

/// Keys of clusters in the metadata store: `cluster/NAME`, a JSON document.
pub(crate) const CLUSTER: &str = "cluster/";
/// Failure domains: `failure-domain/CLUSTER/NAME`.
const DOMAIN: &str = "failure-domain/";

const NO_CLUSTER: &str = "Cluster does not exist";

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/admin/v2/clusters", get(list))
        .route(
            "/admin/v2/clusters/{cluster}",
            get(cluster).put(create).post(update).delete(remove),
        )
        .route(
            "/admin/v2/clusters/{cluster}/peers",
            get(peers).post(set_peers),
        )
        .route("/admin/v2/clusters/{cluster}/failureDomains", get(domains))
        .route(
            "/admin/v2/clusters/{cluster}/failureDomains/{domain}",
            get(domain).post(set_domain).delete(remove_domain),
        )
}

/// The fields of a cluster that always have a value, and theirs.
fn defaults() -> Map<String, Value> {
    let defaults = json!({
        "brokerClientTlsEnabled": false,
        "tlsAllowInsecureConnection": false,
        "brokerClientTlsEnabledWithKeyStore": false,
    });
    match defaults {
        Value::Object(defaults) => defaults,
        _ => Map::new(),
    }
}

/// All fields, in Pulsar's order.
const FIELDS: [&str; 22] = [
    "serviceUrl",
    "serviceUrlTls",
    "brokerServiceUrl",
    "brokerServiceUrlTls",
    "proxyServiceUrl",
    "authenticationPlugin",
    "authenticationParameters",
    "proxyProtocol",
    "peerClusterNames",
    "brokerClientTlsEnabled",
    "tlsAllowInsecureConnection",
    "brokerClientTlsEnabledWithKeyStore",
    "brokerClientTlsTrustStoreType",
    "brokerClientTlsTrustStore",
    "brokerClientTlsTrustStorePassword",
    "brokerClientTlsKeyStoreType",
    "brokerClientTlsKeyStore",
    "brokerClientTlsKeyStorePassword",
    "brokerClientTrustCertsFilePath",
    "brokerClientKeyFilePath",
    "brokerClientCertificateFilePath",
    "listenerName",
];

pub(super) fn document(stored: &Versioned) -> Map<String, Value> {
    match serde_json::from_slice(&stored.value) {
        Ok(Value::Object(document)) => document,
        _ => Map::new(),
    }
}

fn missing(text: &str) -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, text).into()
}

impl Shared {
    /// The names of all clusters.
    pub(super) async fn clusters(&self) -> Result<Vec<String>, Refusal> {
        let found = self.list(CLUSTER.to_owned()).await?;
        let names = found
            .iter()
            .filter_map(|(key, _)| key.strip_prefix(CLUSTER));
        Ok(names.map(str::to_owned).collect())
    }
}

async fn list(State(shared): State<Shared>) -> Answer {
    Ok(answer::value(&Value::from(shared.clusters().await?)))
}

async fn cluster(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let found = shared.get(format!("{CLUSTER}{name}")).await?;
    let stored = document(&found.ok_or_else(|| missing(NO_CLUSTER))?);
    let mut all = defaults();
    if name.as_str() == shared.cluster.as_ref() {
        // Ports may change with each start.
        let urls = shared.urls(&headers);
        all.insert("serviceUrl".into(), urls.http.into());
        all.insert("brokerServiceUrl".into(), urls.broker.into());
        for store in [
            "brokerClientTlsTrustStoreType",
            "brokerClientTlsKeyStoreType",
        ] {
            all.insert(store.into(), "JKS".into());
        }
    }
    all.extend(stored);
    let mut ordered = Map::new();
    for field in FIELDS {
        if let Some(value) = all.remove(field).filter(|value| !value.is_null()) {
            ordered.insert(field.to_owned(), value);
        }
    }
    Ok(answer::value(&Value::Object(ordered)))
}

/// What may be stored of a body.
fn checked(body: &Value) -> Result<Map<String, Value>, Refusal> {
    let bad = |text: &str| -> Refusal { answer::reason(StatusCode::BAD_REQUEST, text).into() };
    let given = match body {
        Value::Null => return Err(bad("cluster data is required")),
        Value::Object(given) => given,
        _ => return Err(answer::malformed("a cluster must be a JSON object").into()),
    };
    let schemes = [
        (
            "serviceUrl",
            "http",
            "Illegal service url, example: http://pulsar.example.com:8080",
        ),
        (
            "serviceUrlTls",
            "https",
            "Illegal service tls url, example: https://pulsar.example.com:8443",
        ),
        (
            "brokerServiceUrl",
            "pulsar",
            "Illegal broker service url, example: pulsar://pulsar.example.com:6650",
        ),
        (
            "brokerServiceUrlTls",
            "pulsar+ssl",
            "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651",
        ),
    ];
    for (field, scheme, text) in schemes {
        let url = given.get(field).and_then(Value::as_str).unwrap_or_default();
        let fits = url.split(',').all(|url| {
            url.split_once("://")
                .is_some_and(|(given, _)| given == scheme)
        });
        if !url.is_empty() && !fits {
            return Err(bad(text));
        }
    }
    let field = |field: &&str| Some(((*field).to_owned(), given.get(*field)?.clone()));
    Ok(FIELDS.iter().filter_map(field).collect())
}

async fn create(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let data = checked(&body)?;
    if !answer::is_name(&name) {
        return Err(answer::failed("Cluster name is not valid"));
    }
    let text = Value::Object(data).to_string();
    if !shared
        .put(format!("{CLUSTER}{name}"), text, Some(0))
        .await?
    {
        return Ok(answer::reason(
            StatusCode::CONFLICT,
            "Cluster already exists",
        ));
    }
    Ok(StatusCode::OK.into_response())
}

async fn update(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let data = checked(&body)?;
    let _one = shared.changes.lock().await;
    let key = format!("{CLUSTER}{name}");
    let found = shared.get(key.clone()).await?;
    found.ok_or_else(|| missing(NO_CLUSTER))?;
    shared
        .put(key, Value::Object(data).to_string(), None)
        .await?;
    Ok(StatusCode::OK.into_response())
}

async fn remove(State(shared): State<Shared>, Path(name): Path<String>) -> Answer {
    let _one = shared.changes.lock().await;
    if !shared.delete(format!("{CLUSTER}{name}")).await? {
        return Err(missing(NO_CLUSTER));
    }
    for (key, _) in shared.list(format!("{DOMAIN}{name}/")).await? {
        shared.delete(key).await?;
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn peers(State(shared): State<Shared>, Path(name): Path<String>) -> Answer {
    let found = shared.get(format!("{CLUSTER}{name}")).await?;
    let stored = document(&found.ok_or_else(|| missing(NO_CLUSTER))?);
    Ok(answer::value(
        stored.get("peerClusterNames").unwrap_or(&Value::Null),
    ))
}

async fn set_peers(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let peers = answer::strings(&body, "peer clusters")?;
    let _one = shared.changes.lock().await;
    let known = shared.clusters().await?;
    for peer in &peers {
        if *peer == name {
            return Err(answer::failed("Cluster itself can't be part of peer-list"));
        }
        if !known.contains(peer) {
            return Err(answer::failed(&format!(
                "Peer cluster {peer} does not exist"
            )));
        }
    }
    let key = format!("{CLUSTER}{name}");
    let found = shared.get(key.clone()).await?;
    let mut stored = document(&found.ok_or_else(|| missing(NO_CLUSTER))?);
    stored.insert("peerClusterNames".into(), Value::from(peers));
    shared
        .put(key, Value::Object(stored).to_string(), None)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn known(shared: &Shared, name: &str) -> Result<(), Refusal> {
    let found = shared.get(format!("{CLUSTER}{name}")).await?;
    found.map(drop).ok_or_else(|| missing(NO_CLUSTER))
}

async fn domains(State(shared): State<Shared>, Path(name): Path<String>) -> Answer {
    known(&shared, &name).await?;
    let prefix = format!("{DOMAIN}{name}/");
    let found = shared.list(prefix.clone()).await?;
    let domains: Map<String, Value> = found
        .iter()
        .filter_map(|(key, stored)| {
            let domain = key.strip_prefix(&prefix)?;
            Some((domain.to_owned(), Value::Object(document(stored))))
        })
        .collect();
    Ok(answer::value(&Value::Object(domains)))
}

async fn domain(
    State(shared): State<Shared>,
    Path((name, domain)): Path<(String, String)>,
) -> Answer {
    known(&shared, &name).await?;
    let found = shared.get(format!("{DOMAIN}{name}/{domain}")).await?;
    let stored = found.ok_or_else(|| {
        missing(&format!(
            "Domain {domain} for cluster {name} does not exist"
        ))
    })?;
    Ok(answer::value(&Value::Object(document(&stored))))
}

async fn set_domain(
    State(shared): State<Shared>,
    Path((name, domain)): Path<(String, String)>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let brokers = answer::strings(body.get("brokers").unwrap_or(&Value::Null), "brokers")?;
    let _one = shared.changes.lock().await;
    known(&shared, &name).await?;
    let text = json!({ "brokers": brokers }).to_string();
    shared
        .put(format!("{DOMAIN}{name}/{domain}"), text, None)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove_domain(
    State(shared): State<Shared>,
    Path((name, domain)): Path<(String, String)>,
) -> Answer {
    known(&shared, &name).await?;
    if !shared.delete(format!("{DOMAIN}{name}/{domain}")).await? {
        return Err(missing(&format!(
            "Domain {domain} for cluster {name} does not exist"
        )));
    }
    Ok(StatusCode::OK.into_response())
}
