//! `/admin/v2/namespaces`: namespaces as a whole. Their single policies are in `policies`.

use super::answer::{self, Refusal};
use super::clusters::document;
use super::params::Params;
use super::topics::is_system;
use super::{Answer, Shared};
use crate::engine::admin::{Answer as Reply, Ask};
use crate::engine::metadata::{NAMESPACE, TOPIC_POLICIES};
use crate::engine::name::TopicName;
use crate::engine::schema::SCHEMA;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, put};
use serde_json::{Map, Value, json};

/// Bundles of a namespace that says nothing else: Pulsar's `defaultNumberOfNamespaceBundles`.
const BUNDLES: u64 = 4;
/// Most bundles of a namespace.
const BUNDLES_MAX: u64 = 1 << 16;

pub(super) type Policies = Map<String, Value>;
type Name = Path<(String, String)>;

pub(super) fn routes() -> Router<Shared> {
    let one = "/admin/v2/namespaces/{tenant}/{namespace}";
    let at = |path: &str| format!("{one}/{path}");
    Router::new()
        .route("/admin/v2/namespaces/{tenant}", get(list))
        .route(one, get(policies).put(create).delete(remove))
        .route(&at("topics"), get(topics))
        .route(&at("bundles"), get(bundles))
        .route(&at("unload"), put(unload))
        .route(&at("{bundle}/unload"), put(unload_bundle))
}

/// All fields of the policies document that are kept.
pub(super) const FIELDS: [&str; 50] = [
    "auth_policies",
    "replication_clusters",
    "allowed_clusters",
    "bundles",
    "backlog_quota_map",
    "clusterDispatchRate",
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "persistence",
    "deduplicationEnabled",
    "autoTopicCreationOverride",
    "autoSubscriptionCreationOverride",
    "scalableTopicAutoScalePolicy",
    "publishMaxMessageRate",
    "latency_stats_sample_rate",
    "message_ttl_in_seconds",
    "subscription_expiration_time_minutes",
    "retention_policies",
    "deleted",
    "encryption_required",
    "delayed_delivery_policies",
    "inactive_topic_policies",
    "subscription_auth_mode",
    "max_producers_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_unacked_messages_per_consumer",
    "max_unacked_messages_per_subscription",
    "max_subscriptions_per_topic",
    "compaction_threshold",
    "offload_threshold",
    "offload_threshold_in_seconds",
    "offload_deletion_lag_ms",
    "max_topics_per_namespace",
    "schema_auto_update_compatibility_strategy",
    "schema_compatibility_strategy",
    "is_allow_auto_update_schema",
    "is_allow_auto_update_schema_with_replicator",
    "schema_validation_enforced",
    "offload_policies",
    "deduplicationSnapshotIntervalSeconds",
    "subscription_types_enabled",
    "allowed_topic_property_keys_for_metrics",
    "properties",
    "resource_group_name",
    "migrated",
    "dispatcherPauseOnAckStatePersistentEnabled",
    "entryFilters",
];

/// What a document says that says nothing.
fn defaults(cluster: &str) -> Policies {
    let defaults = json!({
        "auth_policies": { "namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {} },
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": false,
        "encryption_required": false,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema": true,
        "is_allow_auto_update_schema_with_replicator": true,
        "schema_validation_enforced": false,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": false,
    });
    match defaults {
        Value::Object(defaults) => defaults,
        _ => Policies::new(),
    }
}

fn missing(text: &str) -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, text).into()
}

impl Shared {
    /// What is stored of a namespace, `tenant/namespace`; none while it is being deleted.
    pub(super) async fn namespace(&self, name: &str) -> Result<Option<Policies>, Refusal> {
        let found = self.get(format!("{NAMESPACE}{name}")).await?;
        let stored = found.map(|stored| document(&stored));
        Ok(stored.filter(|stored| stored.get("deleted") != Some(&Value::Bool(true))))
    }

    /// Sets or takes back the mark of a namespace that is being deleted: no client makes a topic in it.
    async fn mark_deleted(&self, name: &str, deleted: bool) -> Result<bool, Refusal> {
        let key = format!("{NAMESPACE}{name}");
        let Some(found) = self.get(key.clone()).await? else {
            return Ok(false);
        };
        let mut stored = document(&found);
        match deleted {
            true => stored.insert("deleted".into(), Value::Bool(true)),
            false => stored.remove("deleted"),
        };
        let text = Value::Object(stored).to_string();
        Ok(self.put(key, text, Some(found.version)).await?)
    }

    /// Removes a namespace; with `force` its topics too. For who holds `changes`.
    pub(super) async fn remove_namespace(&self, name: &str, force: bool) -> Result<(), Refusal> {
        let full = || -> Refusal {
            let text = "Cannot delete non empty namespace";
            answer::reason(StatusCode::CONFLICT, text).into()
        };
        if !force && !self.is_empty(name).await? {
            return Err(full());
        }
        // Every core goes by the mark when this returns: what there is then is all there will be.
        if !self.mark_deleted(name, true).await? {
            return Err(missing(&format!("Namespace {name} does not exist.")));
        }
        if force {
            for domain in ["persistent", "non-persistent"] {
                for topic in self.partitioned_of(domain, name).await? {
                    if let Ok(topic) = TopicName::parse(&topic)
                        && let Some(partitions) = self.partitions(&topic).await?
                    {
                        self.remove_partitioned(&topic, &partitions, true).await?;
                    }
                }
            }
        }
        let mut topics = match self.topics_of(name).await {
            Ok(topics) => topics,
            Err(error) => {
                if !force {
                    self.mark_deleted(name, false).await?;
                }
                return Err(error);
            }
        };
        if !force && topics.iter().any(|topic| !is_system(topic)) {
            self.mark_deleted(name, false).await?;
            return Err(full());
        }
        topics.sort_unstable();
        let topics: Vec<TopicName> = topics
            .iter()
            .filter_map(|topic| TopicName::parse(topic).ok())
            .collect();
        for (topic, reply) in topics.iter().zip(
            self.ask_topics(&topics, || Ask::Delete { force: true })
                .await?,
        ) {
            match reply {
                Reply::Done | Reply::NoTopic => {}
                other => return Err(super::target::error(topic, "", other)),
            }
        }
        // What was said about topics that never were.
        let mut kept = self.list(format!("{SCHEMA}{name}/")).await?;
        for domain in ["persistent", "non-persistent"] {
            kept.extend(
                self.list(format!("{TOPIC_POLICIES}{domain}/{name}/"))
                    .await?,
            );
        }
        for (key, _) in kept {
            self.delete(key).await?;
        }
        self.delete(format!("{NAMESPACE}{name}")).await?;
        Ok(())
    }

    async fn is_empty(&self, name: &str) -> Result<bool, Refusal> {
        for domain in ["persistent", "non-persistent"] {
            if !self.partitioned_of(domain, name).await?.is_empty() {
                return Ok(false);
            }
        }
        let topics = self.topics_of(name).await?;
        Ok(topics.iter().all(|topic| is_system(topic)))
    }
}

async fn list(State(shared): State<Shared>, Path(tenant): Path<String>) -> Answer {
    if shared.tenant(&tenant).await?.is_none() {
        return Err(missing("Tenant not found"));
    }
    let found = shared.list(format!("{NAMESPACE}{tenant}/")).await?;
    let names = found
        .iter()
        .filter_map(|(key, _)| key.strip_prefix(NAMESPACE));
    Ok(answer::value(&names.map(Value::from).collect()))
}

async fn policies(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.namespace(&format!("{tenant}/{name}")).await?;
    let stored = stored.ok_or_else(|| missing("Namespace does not exist"))?;
    let mut all = defaults(&shared.cluster);
    all.insert("bundles".into(), bundles_json(&stored));
    all.extend(stored);
    all.retain(|field, value| FIELDS.contains(&field.as_str()) && !value.is_null());
    Ok(answer::value(&Value::Object(all)))
}

async fn create(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    let mut stored = match body {
        Value::Null => Policies::new(),
        Value::Object(given) => given,
        _ => return Err(answer::malformed("policies must be a JSON object").into()),
    };
    if !answer::is_name(&tenant) || !answer::is_name(&name) {
        return Err(answer::failed("Namespace name is not valid"));
    }
    stored.retain(|field, value| FIELDS.contains(&field.as_str()) && !value.is_null());
    stored.remove("deleted");
    let _one = shared.changes.lock().await;
    let Some(owner) = shared.tenant(&tenant).await? else {
        return Err(missing("Tenant does not exist"));
    };
    let clusters = stored.remove("replication_clusters").unwrap_or(Value::Null);
    let clusters = answer::strings(&clusters, "replication_clusters")?;
    if !clusters.is_empty() {
        let allowed = owner.get("allowedClusters").and_then(Value::as_array);
        let allows = |cluster: &&String| {
            let cluster = Value::from(cluster.as_str());
            allowed.is_some_and(|allowed| allowed.contains(&cluster))
        };
        if let Some(unknown) = clusters.iter().find(|cluster| !allows(cluster)) {
            let text = format!(
                "Cluster [{unknown}] is not in the list of allowed clusters list for tenant [{tenant}]"
            );
            return Ok(answer::reason(StatusCode::FORBIDDEN, &text));
        }
        stored.insert("replication_clusters".into(), Value::from(clusters));
    }
    match stored
        .get("bundles")
        .and_then(|b| b.get("numBundles"))
        .and_then(Value::as_i64)
    {
        None => {}
        Some(0) => {
            stored.remove("bundles");
        }
        Some(count) if count < 0 || count.unsigned_abs() > BUNDLES_MAX => {
            return Err(answer::failed(&format!(
                "Invalid number of bundles. Number of numBundles has to be in the range of (0, 2^32]; at most {BUNDLES_MAX} are taken"
            )));
        }
        Some(count) => {
            let bounds = even(count.unsigned_abs());
            stored.insert(
                "bundles".into(),
                json!({ "boundaries": bounds, "numBundles": count }),
            );
        }
    }
    let key = format!("{NAMESPACE}{tenant}/{name}");
    let text = Value::Object(stored).to_string();
    if !shared.put(key, text, Some(0)).await? {
        return Ok(answer::reason(
            StatusCode::CONFLICT,
            "Namespace already exists",
        ));
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    params: Params,
) -> Answer {
    let force = params.flag("force");
    if force && !shared.settings().force_delete_namespace_allowed {
        return Ok(answer::reason(
            StatusCode::METHOD_NOT_ALLOWED,
            "Broker doesn't allow forced deletion of namespaces",
        ));
    }
    let full = format!("{tenant}/{name}");
    let _one = shared.changes.lock().await;
    let found = shared.get(format!("{NAMESPACE}{full}")).await?;
    let Some(stored) = found.map(|stored| document(&stored)) else {
        return Err(missing(&format!("Namespace {full} does not exist.")));
    };
    let clusters = stored.get("replication_clusters").and_then(Value::as_array);
    if clusters.is_some_and(|clusters| clusters.len() > 1) {
        return Err(answer::failed(&format!(
            "Cannot delete the global namespace {full}. There are still more than one replication clusters configured or \
             replication clusters is empty."
        )));
    }
    shared.remove_namespace(&full, force).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn topics(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    params: Params,
) -> Answer {
    let (persistent, other) = match params.get("mode").unwrap_or("PERSISTENT") {
        "PERSISTENT" => (true, false),
        "NON_PERSISTENT" => (false, true),
        "ALL" => (true, true),
        _ => return Ok(answer::bare(StatusCode::NOT_FOUND)),
    };
    let full = format!("{tenant}/{name}");
    if shared.namespace(&full).await?.is_none() {
        return Err(missing("Namespace does not exist"));
    }
    let system = params.flag("includeSystemTopic");
    let mut names = shared.topics_of(&full).await?;
    names.retain(|topic| {
        let wanted = if topic.starts_with("persistent://") {
            persistent
        } else {
            other
        };
        wanted && (system || !is_system(topic))
    });
    // Persistent ones first, each in order.
    names.sort_by_key(|topic| topic.starts_with("non-persistent://"));
    Ok(answer::value(&Value::from(names)))
}

async fn bundles(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.namespace(&format!("{tenant}/{name}")).await?;
    let stored = stored.ok_or_else(|| missing("Namespace does not exist"))?;
    Ok(answer::value(&bundles_json(&stored)))
}

/// Bounds of `count` bundles of about the same size.
fn even(count: u64) -> Vec<String> {
    let bound = |index: u64| format!("0x{:08x}", (index * (1 << 32) / count).min(0xffff_ffff));
    (0..=count).map(bound).collect()
}

/// The bounds of a namespace's bundles.
pub(super) fn boundaries(stored: &Policies) -> Vec<String> {
    let bounds = stored.get("bundles").and_then(|b| b.get("boundaries"));
    let bounds = bounds
        .and_then(Value::as_array)
        .filter(|bounds| bounds.len() > 1);
    match bounds {
        Some(bounds) => bounds
            .iter()
            .filter_map(|bound| bound.as_str().map(str::to_owned))
            .collect(),
        None => even(BUNDLES),
    }
}

fn bundles_json(stored: &Policies) -> Value {
    let bounds = boundaries(stored);
    let count = bounds.len().saturating_sub(1);
    json!({ "boundaries": bounds, "numBundles": count })
}

/// The bundle that a topic falls into.
pub(super) fn bundle_of(boundaries: &[String], topic: &str) -> String {
    let hash = format!("0x{:08x}", crc32(topic.as_bytes()));
    let index = boundaries.partition_point(|bound| *bound <= hash);
    let index = index.clamp(1, boundaries.len().saturating_sub(1).max(1));
    match (boundaries.get(index - 1), boundaries.get(index)) {
        (Some(low), Some(high)) => format!("{low}_{high}"),
        _ => "0x00000000_0xffffffff".to_owned(),
    }
}

/// CRC-32 as in zip files: what Pulsar spreads topics over bundles with.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let carry = if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            (crc >> 1) ^ carry
        })
    })
}

async fn unload_topics(shared: &Shared, names: Vec<TopicName>) -> Answer {
    for (name, reply) in names
        .iter()
        .zip(shared.ask_topics(&names, || Ask::Unload).await?)
    {
        match reply {
            Reply::Done | Reply::NoTopic => {}
            other => return Err(super::target::error(name, "", other)),
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn parsed(names: &[String]) -> Vec<TopicName> {
    names
        .iter()
        .filter_map(|name| TopicName::parse(name).ok())
        .collect()
}

async fn unload(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let full = format!("{tenant}/{name}");
    if shared.namespace(&full).await?.is_none() {
        return Err(missing("Namespace does not exist"));
    }
    let names = shared.topics_of(&full).await?;
    unload_topics(&shared, parsed(&names)).await
}

async fn unload_bundle(
    State(shared): State<Shared>,
    Path((tenant, name, bundle)): Path<(String, String, String)>,
) -> Answer {
    let full = format!("{tenant}/{name}");
    let stored = shared.namespace(&full).await?;
    let stored = stored.ok_or_else(|| missing("Namespace does not exist"))?;
    let bounds = boundaries(&stored);
    let Some((low, high)) = bundle.split_once('_') else {
        return Ok(answer::internal("Invalid bundle range"));
    };
    let Some(at) = bounds.iter().position(|bound| bound == low) else {
        return Err(answer::failed(&format!(
            "Invalid lower boundary for bundle {full}/{bundle}."
        )));
    };
    match bounds.get(at + 1) {
        Some(upper) if upper == high => {}
        upper => {
            return Err(answer::failed(&format!(
                "Invalid upper boundary for bundle {full}/{bundle}. Expected upper boundary of {full}/{low}_{}",
                upper.map_or("0xffffffff", String::as_str)
            )));
        }
    }
    let mut names = shared.topics_of(&full).await?;
    names.retain(|topic| bundle_of(&bounds, topic) == bundle);
    unload_topics(&shared, parsed(&names)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_are_those_of_pulsar() {
        let bounds = even(4);
        assert_eq!(
            bounds,
            [
                "0x00000000",
                "0x40000000",
                "0x80000000",
                "0xc0000000",
                "0xffffffff"
            ]
        );
        // As Apache Pulsar 5.0.1 answered it.
        let bundle = bundle_of(&bounds, "persistent://op/ns1/t1");
        assert_eq!(bundle, "0x80000000_0xc0000000");
        assert_eq!(bundle_of(&even(1), "x"), "0x00000000_0xffffffff");
    }
}
