//! The policies of a topic, one by one: those that the engine goes by. They are kept in one document per topic, partitions share that of
//! their partitioned topic. What a topic does not say its namespace says, and then the broker's settings.

use super::checks::*;
use super::{Policy, Unset, policy};
use crate::admin::answer::{self, Refusal};
use crate::admin::clusters::document;
use crate::admin::params::Params;
use crate::admin::rates::{PUBLISH_RATES, publish_rate};
use crate::admin::target::Target;
use crate::admin::{Answer, Shared};
use crate::config::Settings;
use crate::engine::admin::{Answer as Reply, Ask};
use crate::engine::metadata::topic_policies_key;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, delete, get};
use serde_json::{Map, Value, json};

/// How often a change is tried again because somebody else changed the same document.
const TRIES: usize = 16;

/// A policy that a topic may have.
struct Own {
    policy: Policy,
    /// The same in the namespace's document, empty if there is none.
    namespace: &'static str,
    /// What the broker's settings say; `null` = GET does not say what counts (`applied`), as in Pulsar.
    broker: fn(&Settings) -> Value,
}

static POLICIES: [Own; 13] = [
    Own {
        policy: Policy {
            unset: Unset::Nothing,
            ..policy("publishRate", "publishRate", publish_rate)
        },
        namespace: PUBLISH_RATES,
        broker: |_| Value::Null,
    },
    Own {
        policy: policy("deduplicationEnabled", "deduplicationEnabled", boolean),
        namespace: "deduplicationEnabled",
        broker: |settings| settings.broker_deduplication_enabled.into(),
    },
    Own {
        policy: policy("delayedDelivery", "delayedDelivery", delayed_delivery),
        namespace: "delayed_delivery_policies",
        broker: |settings| {
            json!({
                "tickTime": settings.delayed_delivery_tick_time_millis,
                "active": settings.delayed_delivery_enabled,
                "maxDeliveryDelayInMillis": settings.delayed_delivery_max_delay_in_millis,
            })
        },
    },
    Own {
        policy: policy(
            "inactiveTopicPolicies",
            "inactiveTopicPolicies",
            inactive_topics,
        ),
        namespace: "inactive_topic_policies",
        broker: |settings| {
            let after = match settings.broker_delete_inactive_topics_max_inactive_duration_seconds {
                0 => settings.broker_delete_inactive_topics_frequency_seconds,
                after => after,
            };
            json!({
                "inactiveTopicDeleteMode": settings.broker_delete_inactive_topics_mode.name(),
                "maxInactiveDurationSeconds": after,
                "deleteWhileInactive": settings.broker_delete_inactive_topics_enabled,
            })
        },
    },
    Own {
        policy: policy("maxProducers", "maxProducers", not_negative),
        namespace: "max_producers_per_topic",
        broker: |settings| settings.max_producers_per_topic.into(),
    },
    Own {
        policy: policy("maxConsumers", "maxConsumers", not_negative),
        namespace: "max_consumers_per_topic",
        broker: |settings| settings.max_consumers_per_topic.into(),
    },
    Own {
        policy: Policy {
            unset: Unset::Nothing,
            ..policy(
                "maxConsumersPerSubscription",
                "maxConsumersPerSubscription",
                not_negative,
            )
        },
        namespace: "",
        broker: |_| Value::Null,
    },
    Own {
        policy: Policy {
            unset: Unset::Nothing,
            ..policy(
                "maxSubscriptionsPerTopic",
                "maxSubscriptionsPerTopic",
                not_negative,
            )
        },
        namespace: "",
        broker: |_| Value::Null,
    },
    Own {
        policy: Policy {
            unset: Unset::Nothing,
            ..policy("maxMessageSize", "maxMessageSize", whole)
        },
        namespace: "",
        broker: |_| Value::Null,
    },
    Own {
        policy: Policy {
            put: true,
            ..policy(
                "schemaCompatibilityStrategy",
                "schemaCompatibilityStrategy",
                strategy,
            )
        },
        namespace: "schema_compatibility_strategy",
        broker: |settings| settings.schema_compatibility_strategy.name().into(),
    },
    Own {
        policy: Policy {
            unset: Unset::Flag(false),
            delete: false,
            ..policy(
                "schemaValidationEnforced",
                "schemaValidationEnforced",
                boolean,
            )
        },
        namespace: "schema_validation_enforced",
        broker: |_| false.into(),
    },
    Own {
        policy: Policy {
            unset: Unset::List,
            ..policy(
                "subscriptionTypesEnabled",
                "subscriptionTypesEnabled",
                subscription_types,
            )
        },
        namespace: "",
        broker: |_| Value::Null,
    },
    Own {
        policy: policy(
            "autoSubscriptionCreation",
            "autoSubscriptionCreation",
            auto_subscription_creation,
        ),
        namespace: "autoSubscriptionCreationOverride",
        broker: |settings| json!({ "allowAutoSubscriptionCreation": settings.allow_auto_subscription_creation }),
    },
];

pub(in crate::admin) fn routes(base: &str) -> Router<Shared> {
    let at = |path: &str| format!("{base}/{{topic}}/{path}");
    let mut router = Router::new().route(&at("policies"), delete(remove_all));
    for own in &POLICIES {
        router = router.route(&at(own.policy.path), methods(own));
    }
    router
}

fn methods(own: &'static Own) -> MethodRouter<Shared> {
    let show = move |State(shared): State<Shared>, target: Target, params: Params| async move {
        own.show(&shared, &target, params.flag("applied")).await
    };
    let set = move |State(shared): State<Shared>,
                    target: Target,
                    headers: HeaderMap,
                    bytes: Bytes| async move {
        let body = answer::body(&headers, &bytes)?;
        own.set(&shared, &target, &body).await
    };
    let remove = move |State(shared): State<Shared>, target: Target| async move {
        own.store(&shared, &target, None).await
    };
    let methods = get(show);
    let methods = match own.policy.put {
        true => methods.put(set),
        false => methods.post(set),
    };
    match own.policy.delete {
        true => methods.delete(remove),
        false => methods,
    }
}

impl Shared {
    /// What is stored of a topic's policies, and the version; 404 if there is no such topic.
    async fn own_policies(&self, target: &Target) -> Result<(Map<String, Value>, u64), Refusal> {
        let is_there = target.partitions.is_some()
            || match self.ask(&target.name, Ask::Clients).await? {
                Reply::NoTopic => false,
                Reply::Clients { .. } => true,
                other => return Err(target.error(other)),
            };
        if !is_there {
            return Err(target.missing());
        }
        let found = self.get(topic_policies_key(&target.name)).await?;
        Ok(found.map_or_else(Default::default, |found| (document(&found), found.version)))
    }

    /// A topic's own policies as they are stored, whether it is there or not.
    pub(in crate::admin) async fn policies_of_topic(
        &self,
        key: String,
    ) -> Result<Map<String, Value>, Refusal> {
        let found = self.get(key).await?;
        Ok(found.map_or_else(Map::new, |found| document(&found)))
    }
}

impl Own {
    /// With `applied`: what counts, be it the namespace's or the broker's.
    async fn show(&self, shared: &Shared, target: &Target, applied: bool) -> Answer {
        let (own, _) = shared.own_policies(target).await?;
        let settings = shared.settings();
        let broker = (self.broker)(&settings);
        if !applied || broker.is_null() || own.contains_key(self.policy.field) {
            return Ok(self.policy.show(&own, &shared.cluster));
        }
        let namespace = shared.namespace(target.name.namespace()).await?;
        let namespace = namespace.unwrap_or_default();
        let value = namespace.get(self.namespace).filter(|value| match value {
            Value::Null => false,
            Value::String(word) => word != "UNDEFINED",
            _ => true,
        });
        Ok(answer::value(value.unwrap_or(&broker)))
    }

    async fn set(&self, shared: &Shared, target: &Target, body: &Value) -> Answer {
        let value = match body {
            Value::Null => None,
            body => Some((self.policy.check)(&self.policy, body)?),
        };
        if self.policy.path == "maxMessageSize"
            && let Some(size) = value.as_ref().and_then(Value::as_i64)
        {
            let most = shared.settings().max_message_size;
            if u64::try_from(size).is_ok_and(|size| size <= most) {
                return self.store(shared, target, value).await;
            }
            shared.own_policies(target).await?;
            return Err(answer::failed(
                "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that in the broker-level",
            ));
        }
        self.store(shared, target, value).await
    }

    async fn store(&self, shared: &Shared, target: &Target, value: Option<Value>) -> Answer {
        let value = value.filter(|value| !value.is_null());
        let _one = shared.changes.lock().await;
        for _ in 0..TRIES {
            let (mut own, version) = shared.own_policies(target).await?;
            match &value {
                Some(value) => own.insert(self.policy.field.to_owned(), value.clone()),
                None => own.remove(self.policy.field),
            };
            let key = topic_policies_key(&target.name);
            let done = match (own.is_empty(), version) {
                (true, 0) => true,
                (true, _) => {
                    shared.delete(key).await?;
                    true
                }
                (false, version) => {
                    let text = Value::Object(own).to_string();
                    shared.put(key, text, Some(version)).await?
                }
            };
            if done {
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
        }
        Ok(answer::reason(
            StatusCode::CONFLICT,
            "Concurrent modification",
        ))
    }
}

/// Everything that a topic says itself goes.
async fn remove_all(State(shared): State<Shared>, target: Target) -> Answer {
    let _one = shared.changes.lock().await;
    shared.own_policies(&target).await?;
    shared.delete(topic_policies_key(&target.name)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
