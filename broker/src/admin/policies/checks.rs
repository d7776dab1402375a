//! What a policy may say, and the form in which it is stored.

use super::Policy;
use crate::admin::answer::{self, Refusal};
use axum::http::StatusCode;
use serde_json::{Map, Value, json};

pub(super) fn invalid(text: &str) -> Refusal {
    answer::reason(StatusCode::BAD_REQUEST, text).into()
}

pub(super) fn whole(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    Ok(answer::integer(value, policy.path)?.into())
}

pub(super) fn at_least_0(value: &Value, name: &str, text: &str) -> Result<Value, Refusal> {
    match answer::integer(value, name)? {
        number if number < 0 => Err(answer::failed(text)),
        number => Ok(number.into()),
    }
}

pub(super) fn not_negative(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        &format!("{} must be 0 or more", policy.path),
    )
}

pub(super) fn ttl(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        "Invalid value for message TTL, message TTL must >= 0",
    )
}

pub(super) fn expiration(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        "Invalid value for subscription expiration time",
    )
}

pub(super) fn interval(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    at_least_0(
        value,
        policy.path,
        "interval must be greater than or equal to 0",
    )
}

pub(super) fn boolean(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    Ok(answer::boolean(value, policy.path)?.into())
}

pub(super) fn fields<'a>(
    policy: &Policy,
    value: &'a Value,
) -> Result<&'a Map<String, Value>, Refusal> {
    let wrong = || answer::malformed(&format!("{} must be a JSON object", policy.path));
    Ok(value.as_object().ok_or_else(wrong)?)
}

/// A whole number of an object; absent ones are `default`.
pub(super) fn number(
    fields: &Map<String, Value>,
    name: &str,
    default: i64,
) -> Result<i64, Refusal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => answer::integer(value, name),
    }
}

pub(super) fn truth(fields: &Map<String, Value>, name: &str) -> Result<bool, Refusal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => answer::boolean(value, name),
    }
}

pub(super) fn retention(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn dispatch_rate(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({
        "dispatchThrottlingRateInMsg": number(given, "dispatchThrottlingRateInMsg", 0)?,
        "dispatchThrottlingRateInByte": number(given, "dispatchThrottlingRateInByte", 0)?,
        "relativeToPublishRate": truth(given, "relativeToPublishRate")?,
        "ratePeriodInSecond": number(given, "ratePeriodInSecond", 0)?,
    }))
}

pub(super) fn subscribe_rate(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({
        "subscribeThrottlingRatePerConsumer": number(given, "subscribeThrottlingRatePerConsumer", -1)?,
        "ratePeriodInSecond": number(given, "ratePeriodInSecond", 30)?,
    }))
}

pub(super) fn persistence(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn auto_topic_creation(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn auto_subscription_creation(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({ "allowAutoSubscriptionCreation": truth(given, "allowAutoSubscriptionCreation")? }))
}

pub(super) fn delayed_delivery(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    Ok(json!({
        "tickTime": number(given, "tickTime", 0)?,
        "active": truth(given, "active")?,
        "maxDeliveryDelayInMillis": number(given, "maxDeliveryDelayInMillis", 0)?,
    }))
}

/// A word that is one of a list; any other is none, as in Pulsar.
pub(super) fn one_of(value: Option<&Value>, words: &[&str]) -> Value {
    let word = value
        .and_then(Value::as_str)
        .filter(|word| words.contains(word));
    word.map_or(Value::Null, Value::from)
}

pub(super) fn inactive_topics(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn strategy(_: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn old_strategy(_: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn auth_mode(_: &Policy, value: &Value) -> Result<Value, Refusal> {
    Ok(one_of(Some(value), &["None", "Prefix"]))
}

pub(super) fn subscription_types(_: &Policy, value: &Value) -> Result<Value, Refusal> {
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

pub(super) fn entry_filters(policy: &Policy, value: &Value) -> Result<Value, Refusal> {
    let given = fields(policy, value)?;
    let names = given.get("entryFilterNames").and_then(Value::as_str);
    // There are none here, so every name is unknown, and none at all says nothing.
    let text = match names.and_then(|names| names.split(',').map(str::trim).find(|n| !n.is_empty()))
    {
        Some(name) => format!(
            "Entry filter '{name}' not found: this broker has no entry filters, remove the policy"
        ),
        None => "entryFilterNames names no entry filter: remove the policy instead".to_owned(),
    };
    Err(invalid(&text))
}
