//! The policies of a namespace, one by one. All are kept and given back; those that the engine reads take effect.

use super::answer::{self, Refusal};
use super::namespaces::Policies;
use super::params::Params;
use super::{Answer, Shared};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post, put};
use serde_json::{Map, Value, json};

const NO_NAMESPACE: &str = "Namespace does not exist";
const NO_POLICIES: &str = "Namespace policies does not exist";

type Name = Path<(String, String)>;
type Check = fn(&Policy, &Value) -> Result<Value, Refusal>;

/// What a policy answers that is not set.
#[derive(Clone, Copy)]
enum Unset {
    /// 200 without a body.
    Empty,
    /// 204.
    Nothing,
    Number(i64),
    Flag(bool),
    Word(&'static str),
    List,
}

/// One policy that has a path of its own.
struct Policy {
    /// Behind the namespace.
    path: &'static str,
    /// In the policies document.
    field: &'static str,
    /// Brings a body into the form that is stored.
    check: Check,
    /// Set by PUT rather than POST.
    put: bool,
    /// DELETE removes it.
    delete: bool,
    unset: Unset,
    /// The document has it by cluster.
    by_cluster: bool,
    /// What a set answers.
    done: StatusCode,
}

const fn policy(path: &'static str, field: &'static str, check: Check) -> Policy {
    Policy {
        path,
        field,
        check,
        put: false,
        delete: true,
        unset: Unset::Empty,
        by_cluster: false,
        done: StatusCode::NO_CONTENT,
    }
}

const fn limit(path: &'static str, field: &'static str) -> Policy {
    policy(path, field, not_negative)
}

const fn rate(path: &'static str, field: &'static str, check: Check) -> Policy {
    Policy {
        by_cluster: true,
        ..policy(path, field, check)
    }
}

const fn flag(path: &'static str, field: &'static str, unset: bool) -> Policy {
    Policy {
        delete: false,
        unset: Unset::Flag(unset),
        ..policy(path, field, boolean)
    }
}

static POLICIES: [Policy; 33] = [
    policy("retention", "retention_policies", retention),
    policy("messageTTL", "message_ttl_in_seconds", ttl),
    policy(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        expiration,
    ),
    rate("dispatchRate", "topicDispatchRate", dispatch_rate),
    rate(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        dispatch_rate,
    ),
    rate(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        dispatch_rate,
    ),
    rate("subscribeRate", "clusterSubscribeRate", subscribe_rate),
    policy("persistence", "persistence", persistence),
    policy("deduplication", "deduplicationEnabled", boolean),
    Policy {
        delete: false,
        ..policy(
            "deduplicationSnapshotInterval",
            "deduplicationSnapshotIntervalSeconds",
            interval,
        )
    },
    policy(
        "autoTopicCreation",
        "autoTopicCreationOverride",
        auto_topic_creation,
    ),
    policy(
        "autoSubscriptionCreation",
        "autoSubscriptionCreationOverride",
        auto_subscription_creation,
    ),
    policy(
        "delayedDelivery",
        "delayed_delivery_policies",
        delayed_delivery,
    ),
    policy(
        "inactiveTopicPolicies",
        "inactive_topic_policies",
        inactive_topics,
    ),
    limit("maxProducersPerTopic", "max_producers_per_topic"),
    limit("maxConsumersPerTopic", "max_consumers_per_topic"),
    limit(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
    ),
    limit(
        "maxUnackedMessagesPerConsumer",
        "max_unacked_messages_per_consumer",
    ),
    limit(
        "maxUnackedMessagesPerSubscription",
        "max_unacked_messages_per_subscription",
    ),
    limit("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    Policy {
        unset: Unset::Number(0),
        ..limit("maxTopicsPerNamespace", "max_topics_per_namespace")
    },
    Policy {
        put: true,
        ..limit("compactionThreshold", "compaction_threshold")
    },
    Policy {
        put: true,
        delete: false,
        unset: Unset::Number(-1),
        ..policy("offloadThreshold", "offload_threshold", whole)
    },
    Policy {
        put: true,
        delete: false,
        unset: Unset::Number(-1),
        done: StatusCode::OK,
        ..policy(
            "offloadThresholdInSeconds",
            "offload_threshold_in_seconds",
            whole,
        )
    },
    Policy {
        put: true,
        ..policy("offloadDeletionLagMs", "offload_deletion_lag_ms", whole)
    },
    Policy {
        put: true,
        delete: false,
        unset: Unset::Word("UNDEFINED"),
        ..policy(
            "schemaCompatibilityStrategy",
            "schema_compatibility_strategy",
            strategy,
        )
    },
    Policy {
        put: true,
        delete: false,
        unset: Unset::Nothing,
        ..policy(
            "schemaAutoUpdateCompatibilityStrategy",
            "schema_auto_update_compatibility_strategy",
            old_strategy,
        )
    },
    flag(
        "schemaValidationEnforced",
        "schema_validation_enforced",
        false,
    ),
    flag(
        "isAllowAutoUpdateSchema",
        "is_allow_auto_update_schema",
        true,
    ),
    flag("encryptionRequired", "encryption_required", false),
    Policy {
        delete: false,
        unset: Unset::Word("None"),
        ..policy("subscriptionAuthMode", "subscription_auth_mode", auth_mode)
    },
    Policy {
        unset: Unset::List,
        ..policy(
            "subscriptionTypesEnabled",
            "subscription_types_enabled",
            subscription_types,
        )
    },
    policy("entryFilters", "entryFilters", entry_filters),
];

const BASE: &str = "/admin/v2/namespaces/{tenant}/{namespace}";

pub(super) fn routes() -> Router<Shared> {
    let at = |path: &str| format!("{BASE}/{path}");
    let mut router = Router::new();
    for policy in &POLICIES {
        router = router.route(&at(policy.path), methods(policy));
    }
    router
        .route(&at("backlogQuotaMap"), get(quotas))
        .route(&at("backlogQuota"), post(set_quota).delete(remove_quota))
        .route(&at("replication"), get(replication).post(set_replication))
        .route(&at("allowedClusters"), get(allowed).post(set_allowed))
        .route(
            &at("properties"),
            get(properties)
                .put(set_properties)
                .delete(remove_properties),
        )
        .route(&at("property/{key}"), get(property).delete(remove_property))
        .route(&at("property/{key}/{value}"), put(set_property))
        .route(
            &at("antiAffinity"),
            get(affinity).post(set_affinity).delete(remove_affinity),
        )
        .route(
            &at("dispatcherPauseOnAckStatePersistent"),
            get(pause).post(set_pause).delete(remove_pause),
        )
        .route(&at("permissions"), get(permissions))
        .route(&at("permissions/{role}"), post(grant).delete(revoke))
}

fn methods(policy: &'static Policy) -> MethodRouter<Shared> {
    let show = move |State(shared): State<Shared>, Path((tenant, name)): Name| async move {
        let stored = shared.policies(&tenant, &name).await?;
        Ok::<_, Refusal>(policy.show(&stored, &shared.cluster))
    };
    let set = move |State(shared): State<Shared>,
                    Path((tenant, name)): Name,
                    headers: HeaderMap,
                    bytes: Bytes| async move {
        let body = answer::body(&headers, &bytes)?;
        let value = match body {
            Value::Null => None,
            body => Some((policy.check)(policy, &body)?),
        };
        policy.store(&shared, &tenant, &name, value).await
    };
    let remove = move |State(shared): State<Shared>, Path((tenant, name)): Name| async move {
        policy.store(&shared, &tenant, &name, None).await
    };
    let methods = get(show);
    let methods = if policy.put {
        methods.put(set)
    } else {
        methods.post(set)
    };
    if policy.delete {
        methods.delete(remove)
    } else {
        methods.delete(move || no_bundle(policy.path))
    }
}

/// A policy that cannot be removed: DELETE takes its name for a bundle's, as in Pulsar.
async fn no_bundle(name: &str) -> Answer {
    Err(answer::failed(&format!("Invalid bundle range: {name}")))
}

impl Policy {
    fn show(&self, stored: &Policies, cluster: &str) -> axum::response::Response {
        let value = stored.get(self.field).filter(|value| !value.is_null());
        let value = match self.by_cluster {
            true => value.and_then(|by_cluster| by_cluster.get(cluster)),
            false => value,
        };
        match (value, self.unset) {
            (Some(value), _) => answer::value(value),
            (None, Unset::Empty) => StatusCode::OK.into_response(),
            (None, Unset::Nothing) => StatusCode::NO_CONTENT.into_response(),
            (None, Unset::Number(number)) => answer::value(&number.into()),
            (None, Unset::Flag(flag)) => answer::value(&flag.into()),
            (None, Unset::Word(word)) => answer::value(&word.into()),
            (None, Unset::List) => answer::value(&json!([])),
        }
    }

    async fn store(
        &self,
        shared: &Shared,
        tenant: &str,
        name: &str,
        value: Option<Value>,
    ) -> Answer {
        let _one = shared.changes.lock().await;
        let absent = if self.path == "retention" {
            NO_POLICIES
        } else {
            NO_NAMESPACE
        };
        if self.path == "retention"
            && let Some(retention) = &value
        {
            let stored = shared
                .policies(tenant, name)
                .await
                .map_err(|_| missing(absent))?;
            let quotas = stored.get("backlog_quota_map").and_then(Value::as_object);
            if quotas
                .into_iter()
                .flatten()
                .any(|(_, quota)| exceeds(quota, retention))
            {
                return Err(answer::failed(
                    "Retention Quota must exceed configured backlog quota for namespace.",
                ));
            }
        }
        let cluster = shared.cluster.as_ref();
        let change = |policies: &mut Policies| {
            if !self.by_cluster {
                match &value {
                    Some(value) if !value.is_null() => {
                        policies.insert(self.field.to_owned(), value.clone());
                    }
                    _ => {
                        policies.remove(self.field);
                    }
                }
                return;
            }
            let mut by_cluster = match policies.remove(self.field) {
                Some(Value::Object(by_cluster)) => by_cluster,
                _ => Map::new(),
            };
            match &value {
                Some(value) => by_cluster.insert(cluster.to_owned(), value.clone()),
                None => by_cluster.remove(cluster),
            };
            policies.insert(self.field.to_owned(), Value::Object(by_cluster));
        };
        shared.change_policies(tenant, name, absent, change).await?;
        Ok(self.done.into_response())
    }
}

fn missing(text: &str) -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, text).into()
}

fn invalid(text: &str) -> Refusal {
    answer::reason(StatusCode::BAD_REQUEST, text).into()
}

fn whole(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    Ok(answer::integer(value, policy.path)?.into())
}

fn at_least_0(value: &Value, name: &str, text: &str) -> Result<Value, Refusal> {
    match answer::integer(value, name)? {
        number if number < 0 => Err(answer::failed(text)),
        number => Ok(number.into()),
    }
}

fn not_negative(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        &format!("{} must be 0 or more", policy.path),
    )
}

fn ttl(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        "Invalid value for message TTL, message TTL must >= 0",
    )
}

fn expiration(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        "Invalid value for subscription expiration time",
    )
}

fn interval(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        "interval must be greater than or equal to 0",
    )
}

fn boolean(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    Ok(answer::boolean(value, policy.path)?.into())
}

fn fields<'a>(policy: &Policy, value: &'a Value) -> Result<&'a Map<String, Value>, Refusal> {
    let wrong = || answer::malformed(&format!("{} must be a JSON object", policy.path));
    Ok(value.as_object().ok_or_else(wrong)?)
}

/// A whole number of an object; absent ones are `default`.
fn number(fields: &Map<String, Value>, name: &str, default: i64) -> Result<i64, Refusal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => answer::integer(value, name),
    }
}

fn truth(fields: &Map<String, Value>, name: &str) -> Result<bool, Refusal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => answer::boolean(value, name),
    }
}

fn retention(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    let time = number(given, "retentionTimeInMinutes", 0)?;
    let size = number(given, "retentionSizeInMB", 0)?;
    if time < -1 {
        return Err(invalid(
            "Invalid retention policy: time limit must be >= -1",
        ));
    }
    if size < -1 {
        return Err(invalid(
            "Invalid retention policy: size limit must be >= -1",
        ));
    }
    if (time == 0) != (size == 0) {
        return Err(invalid(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a \
             non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits \
             must be set to 0.",
        ));
    }
    Ok(json!({ "retentionTimeInMinutes": time, "retentionSizeInMB": size }))
}

fn dispatch_rate(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({
        "dispatchThrottlingRateInMsg": number(given, "dispatchThrottlingRateInMsg", 0)?,
        "dispatchThrottlingRateInByte": number(given, "dispatchThrottlingRateInByte", 0)?,
        "relativeToPublishRate": truth(given, "relativeToPublishRate")?,
        "ratePeriodInSecond": number(given, "ratePeriodInSecond", 0)?,
    }))
}

fn subscribe_rate(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({
        "subscribeThrottlingRatePerConsumer": number(given, "subscribeThrottlingRatePerConsumer", -1)?,
        "ratePeriodInSecond": number(given, "ratePeriodInSecond", 30)?,
    }))
}

fn persistence(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    let ensemble = number(given, "bookkeeperEnsemble", 0)?;
    let write = number(given, "bookkeeperWriteQuorum", 0)?;
    let ack = number(given, "bookkeeperAckQuorum", 0)?;
    let rate = match given.get("managedLedgerMaxMarkDeleteRate") {
        None | Some(Value::Null) => 0.0,
        Some(value) => value
            .as_f64()
            .ok_or_else(|| answer::malformed("managedLedgerMaxMarkDeleteRate must be a number"))?,
    };
    for (name, value) in [
        ("Ensemble", ensemble),
        ("WriteQuorum", write),
        ("AckQuorum", ack),
    ] {
        if !(1..=5).contains(&value) {
            return Err(invalid(&format!("Bookkeeper-{name} must be <= 5 and > 0.")));
        }
    }
    if ensemble < write || write < ack {
        return Err(invalid(&format!(
            "Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})"
        )));
    }
    Ok(json!({
        "bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": write, "bookkeeperAckQuorum": ack,
        "managedLedgerMaxMarkDeleteRate": rate,
    }))
}

fn auto_topic_creation(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    let refuse = |detail: &str| {
        Err(answer::failed(&format!(
            "Invalid configuration for autoTopicCreationOverride. the detail is {detail}"
        )))
    };
    let mut stored = Map::new();
    stored.insert(
        "allowAutoTopicCreation".into(),
        truth(given, "allowAutoTopicCreation")?.into(),
    );
    let count = match given.get("defaultNumPartitions") {
        None | Some(Value::Null) => None,
        Some(value) => Some(answer::integer(value, "defaultNumPartitions")?),
    };
    match given.get("topicType").and_then(Value::as_str) {
        None if truth(given, "allowAutoTopicCreation")? => {
            return refuse("[topicType] cannot be null when [allowAutoTopicCreation] is true.");
        }
        None => {}
        Some("partitioned") if count.is_none() => {
            return refuse("[defaultNumPartitions] cannot be null when the type is partitioned.");
        }
        Some("partitioned") if count < Some(1) => {
            return refuse("[defaultNumPartitions] cannot be less than 1 for partition type.");
        }
        Some("non-partitioned") if count > Some(1) => {
            return refuse(
                "[defaultNumPartitions] must be null, 0 or 1 when the type is non-partitioned.",
            );
        }
        Some(kind @ ("partitioned" | "non-partitioned")) => {
            stored.insert("topicType".into(), kind.into());
        }
        Some(other) => return refuse(&format!("Unknown topic type [{other}]")),
    }
    if let Some(count) = count {
        stored.insert("defaultNumPartitions".into(), count.into());
    }
    Ok(Value::Object(stored))
}

fn auto_subscription_creation(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({ "allowAutoSubscriptionCreation": truth(given, "allowAutoSubscriptionCreation")? }))
}

fn delayed_delivery(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({
        "tickTime": number(given, "tickTime", 0)?,
        "active": truth(given, "active")?,
        "maxDeliveryDelayInMillis": number(given, "maxDeliveryDelayInMillis", 0)?,
    }))
}

/// A word that is one of a list; any other is none, as in Pulsar.
fn one_of(value: Option<&Value>, words: &[&str]) -> Value {
    let word = value
        .and_then(Value::as_str)
        .filter(|word| words.contains(word));
    word.map_or(Value::Null, Value::from)
}

fn inactive_topics(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    let modes = [
        "delete_when_no_subscriptions",
        "delete_when_subscriptions_caught_up",
    ];
    let mut stored = Map::new();
    let mode = one_of(given.get("inactiveTopicDeleteMode"), &modes);
    if !mode.is_null() {
        stored.insert("inactiveTopicDeleteMode".into(), mode);
    }
    let seconds = number(given, "maxInactiveDurationSeconds", 0)?;
    stored.insert("maxInactiveDurationSeconds".into(), seconds.into());
    stored.insert(
        "deleteWhileInactive".into(),
        truth(given, "deleteWhileInactive")?.into(),
    );
    Ok(Value::Object(stored))
}

fn strategy(_: &Policy, value: &Value) -> Result<Value, Refusal> {
    let words = [
        "UNDEFINED",
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    ];
    Ok(one_of(Some(value), &words))
}

fn old_strategy(_: &Policy, value: &Value) -> Result<Value, Refusal> {
    let words = [
        "AutoUpdateDisabled",
        "Backward",
        "Forward",
        "Full",
        "AlwaysCompatible",
        "BackwardTransitive",
        "ForwardTransitive",
        "FullTransitive",
    ];
    Ok(one_of(Some(value), &words))
}

fn auth_mode(_: &Policy, value: &Value) -> Result<Value, Refusal> {
    Ok(one_of(Some(value), &["None", "Prefix"]))
}

fn subscription_types(_: &Policy, value: &Value) -> Result<Value, Refusal> {
    let known = ["Exclusive", "Failover", "Key_Shared", "Shared"];
    let given = answer::strings(value, "subscription types")?;
    if given.iter().any(|kind| !known.contains(&kind.as_str())) {
        return Err(answer::page_of(StatusCode::INTERNAL_SERVER_ERROR, "Request failed.").into());
    }
    let kinds = known
        .into_iter()
        .filter(|kind| given.iter().any(|given| given == kind));
    Ok(kinds.map(Value::from).collect())
}

fn entry_filters(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(
        json!({ "entryFilterNames": given.get("entryFilterNames").and_then(Value::as_str).unwrap_or_default() }),
    )
}

/// Whether a backlog may grow beyond what is retained.
fn exceeds(quota: &Value, retention: &Value) -> bool {
    let number = |value: &Value, name| value.get(name).and_then(Value::as_i64).unwrap_or(0);
    let size = number(retention, "retentionSizeInMB");
    let time = number(retention, "retentionTimeInMinutes");
    size > 0
        && time > 0
        && (number(quota, "limitSize") >= size.saturating_mul(1 << 20)
            || number(quota, "limitTime") >= time.saturating_mul(60))
}

const QUOTAS: &str = "backlog_quota_map";

async fn quotas(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(answer::value(stored.get(QUOTAS).unwrap_or(&json!({}))))
}

fn quota_type(params: &Params) -> Result<String, Refusal> {
    match params
        .get("backlogQuotaType")
        .unwrap_or("destination_storage")
    {
        kind @ ("destination_storage" | "message_age") => Ok(kind.to_owned()),
        _ => Err(answer::bare(StatusCode::NOT_FOUND).into()),
    }
}

async fn set_quota(
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

async fn remove_quota(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    params: Params,
) -> Answer {
    let kind = quota_type(&params)?;
    store_quota(&shared, &tenant, &name, &kind, None).await
}

async fn store_quota(
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

async fn replication(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    let own = json!([shared.cluster.as_ref()]);
    Ok(answer::value(
        stored.get("replication_clusters").unwrap_or(&own),
    ))
}

async fn allowed(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(answer::value(
        stored.get("allowed_clusters").unwrap_or(&json!([])),
    ))
}

async fn set_clusters(
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

async fn set_replication(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    set_clusters(&shared, &tenant, &name, "replication_clusters", &body).await
}

async fn set_allowed(
    State(shared): State<Shared>,
    Path((tenant, name)): Name,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let body = answer::body(&headers, &bytes)?;
    set_clusters(&shared, &tenant, &name, "allowed_clusters", &body).await
}

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

async fn properties(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let properties = shared.own_properties(&tenant, &name).await?;
    Ok(answer::value(&Value::Object(properties)))
}

async fn set_properties(
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

async fn remove_properties(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    shared.change_properties(&tenant, &name, Map::clear).await
}

async fn property(
    State(shared): State<Shared>,
    Path((tenant, name, key)): Path<(String, String, String)>,
) -> Answer {
    let properties = shared.own_properties(&tenant, &name).await?;
    Ok(match properties.get(&key).and_then(Value::as_str) {
        Some(value) => answer::text(value.to_owned()),
        None => StatusCode::OK.into_response(),
    })
}

async fn set_property(
    State(shared): State<Shared>,
    Path((tenant, name, key, value)): Path<(String, String, String, String)>,
) -> Answer {
    let change = |properties: &mut Map<String, Value>| {
        properties.insert(key.clone(), Value::from(value.as_str()));
    };
    shared.change_properties(&tenant, &name, change).await
}

/// Answers the value there was.
async fn remove_property(
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
const AFFINITY: &str = "antiAffinity";
/// Longest text of it, bytes.
const AFFINITY_MAX: usize = 4096;

async fn affinity(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(match stored.get(AFFINITY).and_then(Value::as_str) {
        Some(text) => answer::text(text.to_owned()),
        None => StatusCode::OK.into_response(),
    })
}

/// Kept as it was sent, as in Pulsar.
async fn set_affinity(
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

async fn remove_affinity(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.remove(AFFINITY);
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

const PAUSE: &str = "dispatcherPauseOnAckStatePersistentEnabled";

async fn pause(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    Ok(answer::value(stored.get(PAUSE).unwrap_or(&false.into())))
}

async fn set_pause(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.insert(PAUSE.to_owned(), true.into());
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

async fn remove_pause(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let _one = shared.changes.lock().await;
    let change = |policies: &mut Policies| {
        policies.insert(PAUSE.to_owned(), false.into());
    };
    shared
        .change_policies(&tenant, &name, NO_NAMESPACE, change)
        .await
}

const AUTH: &str = "auth_policies";
const GRANTS: &str = "namespace_auth";

async fn permissions(State(shared): State<Shared>, Path((tenant, name)): Name) -> Answer {
    let stored = shared.policies(&tenant, &name).await?;
    let grants = stored.get(AUTH).and_then(|auth| auth.get(GRANTS));
    Ok(answer::value(grants.unwrap_or(&json!({}))))
}

async fn change_grants(
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

async fn grant(
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

async fn revoke(
    State(shared): State<Shared>,
    Path((tenant, name, role)): Path<(String, String, String)>,
) -> Answer {
    let change = |grants: &mut Map<String, Value>| {
        grants.remove(&role);
    };
    change_grants(&shared, &tenant, &name, change).await
}
