//! The policies of a namespace and of a topic, one by one. All of a namespace are kept and given back; those that the engine reads take effect.

mod checks;
mod named;
mod quotas;
pub(super) mod topic;

use self::checks::*;
use self::named::*;
use self::quotas::*;

use crate::admin::answer::{self, Refusal};
use crate::admin::namespaces::Policies;
use crate::admin::{Answer, Shared};
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
pub(super) struct Policy {
    /// Behind the namespace or the topic.
    path: &'static str,
    /// In the document.
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
