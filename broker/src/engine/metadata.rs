//! This core's copy of the metadata that requests look at: which namespaces there are, which topics are partitioned.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::message::SubType;
use super::name::TopicName;
use super::schema::{SchemaId, SchemaRules, Strategy};

/// Keys of namespaces: `namespace/TENANT/NAMESPACE`.
pub const NAMESPACE: &str = "namespace/";
/// Keys of partitioned topics: `partitioned/DOMAIN/TENANT/NAMESPACE/TOPIC`, the value is a [`PartitionedTopic`].
pub const PARTITIONED: &str = "partitioned/";

/// Keys of topics' own policies: `topic-policies/DOMAIN/TENANT/NAMESPACE/TOPIC`, a JSON document with Pulsar's names. The partitions of a topic
/// share those of its base name.
pub const TOPIC_POLICIES: &str = "topic-policies/";

/// The key of a topic's own policies.
pub fn topic_policies_key(name: &TopicName) -> String {
    format!("{TOPIC_POLICIES}{}", strip_scheme(name.base()))
}

/// The mode of inactive topics in which subscriptions without backlog do not keep a topic.
const CAUGHT_UP: &str = "delete_when_subscriptions_caught_up";

/// Keys of resource groups: `resource-group/NAME`, a JSON document.
pub const RESOURCE_GROUP: &str = "resource-group/";

/// A publish rate per second; 0 = no limit in that dimension.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Rate {
    /// Messages per second.
    pub messages: u64,
    /// Bytes per second.
    pub bytes: u64,
}

/// Which topics go that nobody uses, and when.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct InactivePolicy {
    /// They go at all.
    pub delete: bool,
    /// Those too whose subscriptions have no backlog; else only those without subscriptions.
    pub caught_up: bool,
    /// After how long, milliseconds.
    pub after_ms: u64,
}

/// What the engine reads of a namespace's policies.
#[derive(Clone, Debug, Default)]
pub struct NamespacePolicy {
    /// Publish rate of each topic; `None` = the broker's default.
    pub publish_rate: Option<Rate>,
    /// The resource group that the namespace belongs to.
    pub resource_group: Option<String>,
    /// It is being deleted.
    pub deleted: bool,
    /// Deduplication; `None` = the broker's default. So for the limits below.
    pub deduplication: Option<bool>,
    /// Messages must be encrypted.
    pub encryption_required: bool,
    /// Producers of a topic; 0 = no limit.
    pub max_producers_per_topic: Option<u32>,
    /// Consumers of a topic; 0 = no limit.
    pub max_consumers_per_topic: Option<u32>,
    /// Consumers of a subscription; 0 = no limit.
    pub max_consumers_per_subscription: Option<u32>,
    /// Subscriptions of a topic; 0 = no limit.
    pub max_subscriptions_per_topic: Option<u32>,
    /// Longest delay of a message, milliseconds; 0 = no limit.
    pub max_delivery_delay_ms: Option<u64>,
    /// Messages are delayed that want to be.
    pub delayed_delivery: Option<bool>,
    /// How exactly, milliseconds.
    pub delayed_delivery_tick_ms: Option<u64>,
    /// Which schemas its topics take.
    pub schema: SchemaRules,
    /// Subscriptions appear on first use.
    pub auto_subscriptions: Option<bool>,
    /// Types that subscriptions may have; none = all.
    pub subscription_types: SubTypes,
    /// Topics; 0 = no limit.
    pub max_topics: Option<u32>,
    /// What becomes of topics that nobody uses.
    pub inactive: Option<InactivePolicy>,
    /// How long what was acknowledged is to stay, minutes; below 0 = for good.
    pub retention_minutes: Option<i64>,
}

/// A partitioned topic as the metadata store has it: the number of partitions in decimal, or a JSON document
/// `{"partitions":N,"properties":{...}}` if it has properties, with `"unfinished":true` while its partitions are being made.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PartitionedTopic {
    /// Number of partitions.
    pub count: u32,
    /// Properties that it was given.
    pub properties: BTreeMap<String, String>,
    /// Not all partitions are made yet that somebody asked for over HTTP.
    pub unfinished: bool,
}

impl PartitionedTopic {
    /// Reads a stored value; `None` if it makes no sense.
    pub fn read(value: &Bytes) -> Option<PartitionedTopic> {
        let text = std::str::from_utf8(value).ok()?;
        if let Ok(count) = text.parse() {
            return Some(PartitionedTopic {
                count,
                ..PartitionedTopic::default()
            });
        }
        let document = document(value);
        let count = document.get("partitions")?.as_u64()?;
        let properties = document.get("properties").and_then(|p| p.as_object());
        let properties = properties.into_iter().flatten();
        Some(PartitionedTopic {
            count: u32::try_from(count).ok()?,
            unfinished: flag(&document, "unfinished").unwrap_or(false),
            properties: properties
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
        })
    }

    /// The value to store.
    pub fn write(&self) -> String {
        if self.properties.is_empty() && !self.unfinished {
            return self.count.to_string();
        }
        let (count, properties) = (self.count, &self.properties);
        match self.unfinished {
            true => serde_json::json!({
                "partitions": count, "properties": properties, "unfinished": true,
            }),
            false => serde_json::json!({ "partitions": count, "properties": properties }),
        }
        .to_string()
    }
}

/// What the engine reads of a topic's own policies; `None` = what its namespace says.
#[derive(Clone, Debug, Default)]
pub struct TopicPolicy {
    /// Deduplication.
    pub deduplication: Option<bool>,
    /// Producers; 0 = no limit.
    pub max_producers: Option<u32>,
    /// Consumers; 0 = no limit.
    pub max_consumers: Option<u32>,
    /// Consumers of a subscription; 0 = no limit.
    pub max_consumers_per_subscription: Option<u32>,
    /// Subscriptions; 0 = no limit.
    pub max_subscriptions: Option<u32>,
    /// Bytes of one entry; 0 = no limit but the broker's.
    pub max_message_size: Option<u32>,
    /// What becomes of it when nobody uses it.
    pub inactive: Option<InactivePolicy>,
    /// Publish rate.
    pub publish_rate: Option<Rate>,
    /// Longest delay of a message, milliseconds; 0 = no limit.
    pub max_delivery_delay_ms: Option<u64>,
    /// Messages are delayed that want to be.
    pub delayed_delivery: Option<bool>,
    /// How exactly, milliseconds.
    pub delayed_delivery_tick_ms: Option<u64>,
    /// Which schemas may follow one another.
    pub schema_strategy: Option<Strategy>,
    /// Producers without a schema are refused if it has one.
    pub schema_enforced: Option<bool>,
    /// Subscriptions appear on first use.
    pub auto_subscriptions: Option<bool>,
    /// Types that subscriptions may have; none = what the namespace says.
    pub subscription_types: SubTypes,
}

/// Types of subscriptions that are allowed; none at all = no type is forbidden.
#[derive(Copy, Clone, Default, Eq, PartialEq, Debug)]
pub struct SubTypes(u8);

impl SubTypes {
    fn bit(kind: SubType) -> u8 {
        match kind {
            SubType::Exclusive => 1,
            SubType::Shared => 2,
            SubType::Failover => 4,
            SubType::KeyShared => 8,
        }
    }

    fn read(policies: &serde_json::Value, name: &str) -> SubTypes {
        let all = [
            SubType::Exclusive,
            SubType::Shared,
            SubType::Failover,
            SubType::KeyShared,
        ];
        let listed = policies.get(name).and_then(serde_json::Value::as_array);
        let listed = listed
            .into_iter()
            .flatten()
            .filter_map(|kind| kind.as_str());
        SubTypes(listed.fold(0, |bits, name| {
            let found = all.into_iter().find(|kind| kind.name() == name);
            bits | found.map_or(0, SubTypes::bit)
        }))
    }

    /// Is a type allowed?
    pub fn allow(self, kind: SubType) -> bool {
        self.0 == 0 || self.0 & SubTypes::bit(kind) != 0
    }

    /// These, or if none are named, others.
    pub fn or(self, others: SubTypes) -> SubTypes {
        if self.0 == 0 { others } else { self }
    }
}

/// A replica of the metadata store's small tables, kept up to date by change notifications.
#[derive(Default, Clone, Debug)]
pub struct Metadata {
    namespaces: BTreeMap<String, NamespacePolicy>,
    /// Publish rates by resource group.
    groups: BTreeMap<String, Rate>,
    /// By key behind [`PARTITIONED`].
    partitioned: BTreeMap<String, u32>,
    /// By key behind [`TOPIC_POLICIES`].
    topics: BTreeMap<String, TopicPolicy>,
}

impl Metadata {
    /// Takes over one key of the metadata store; keys of other tables and values that make no sense are left alone. True if policies may be
    /// others now.
    pub fn apply(&mut self, key: &str, value: Option<&Bytes>) -> bool {
        if let Some(namespace) = key.strip_prefix(NAMESPACE) {
            // One that is being deleted is there no more, for clients.
            let policy = value.map(NamespacePolicy::read);
            match policy.filter(|policy| !policy.deleted) {
                Some(policy) => self.namespaces.insert(namespace.to_owned(), policy),
                None => self.namespaces.remove(namespace),
            };
        } else if let Some(group) = key.strip_prefix(RESOURCE_GROUP) {
            match value {
                Some(value) => self.groups.insert(
                    group.to_owned(),
                    read_rate(&document(value), "publishRateInMsgs", "publishRateInBytes"),
                ),
                None => self.groups.remove(group),
            };
        } else if let Some(topic) = key.strip_prefix(TOPIC_POLICIES) {
            match value {
                Some(value) => self
                    .topics
                    .insert(topic.to_owned(), TopicPolicy::read(value)),
                None => self.topics.remove(topic),
            };
        } else if let Some(topic) = key.strip_prefix(PARTITIONED) {
            match value.and_then(PartitionedTopic::read) {
                Some(found) => self.partitioned.insert(topic.to_owned(), found.count),
                None => self.partitioned.remove(topic),
            };
            return false;
        } else {
            return false;
        }
        true
    }

    /// Does `tenant/namespace` exist?
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// The policies of `tenant/namespace`.
    pub fn namespace(&self, namespace: &str) -> Option<&NamespacePolicy> {
        self.namespaces.get(namespace)
    }

    /// Is any namespace limited, by a rate of its own or by its resource group, or any topic?
    pub fn has_rates(&self) -> bool {
        let limited = |policy: &NamespacePolicy| {
            policy
                .publish_rate
                .is_some_and(|rate| rate != Rate::default())
                || policy.resource_group.is_some()
        };
        let own = |policy: &TopicPolicy| {
            let rate = policy.publish_rate;
            rate.is_some_and(|rate| rate != Rate::default())
        };
        self.namespaces.values().any(limited) || self.topics.values().any(own)
    }

    /// Does any policy want topics to go that nobody uses?
    pub fn has_inactive(&self) -> bool {
        let wants = |policy: &Option<InactivePolicy>| policy.is_some_and(|policy| policy.delete);
        self.namespaces
            .values()
            .any(|policy| wants(&policy.inactive))
            || self.topics.values().any(|policy| wants(&policy.inactive))
    }

    /// A topic's own policies.
    pub fn topic_policy(&self, name: &TopicName) -> Option<&TopicPolicy> {
        if self.topics.is_empty() {
            return None;
        }
        self.topics.get(&strip_scheme(name.base()))
    }

    /// Which schemas the topics of an id take.
    pub fn schema_rules(&self, id: &SchemaId) -> SchemaRules {
        let namespace = id.as_str().rsplit_once('/').map(|(namespace, _)| namespace);
        let namespace = namespace.and_then(|namespace| self.namespace(namespace));
        let mut policy = namespace.map(|policy| policy.schema).unwrap_or_default();
        if !self.topics.is_empty()
            && let Some(own) = self.topics.get(&format!("persistent/{}", id.as_str()))
        {
            policy.strategy = own.schema_strategy.or(policy.strategy);
            policy.enforced = own.schema_enforced.unwrap_or(policy.enforced);
        }
        policy
    }

    /// The publish rate of a resource group.
    pub fn resource_group(&self, name: &str) -> Option<Rate> {
        self.groups.get(name).copied()
    }

    /// The number of partitions of a partitioned topic, by its base name.
    pub fn partitions(&self, base: &str) -> Option<u32> {
        self.partitioned.get(&strip_scheme(base)).copied()
    }

    /// The key and value that make `name` a topic of `count` partitions.
    pub fn partitioned_entry(name: &TopicName, count: u32) -> (String, Bytes) {
        (
            format!("{PARTITIONED}{}", strip_scheme(name.base())),
            Bytes::from(count.to_string()),
        )
    }
}

impl NamespacePolicy {
    /// Reads what is understood; a document that is none has no policies.
    fn read(value: &Bytes) -> NamespacePolicy {
        let policies = document(value);
        // By cluster; a broker is one cluster, so the first entry is its own.
        let rates = policies
            .get("publishMaxMessageRate")
            .and_then(|rates| rates.as_object());
        let rate = rates.and_then(|rates| rates.values().next());
        NamespacePolicy {
            schema: SchemaRules::read(&policies),
            auto_subscriptions: policies
                .get("autoSubscriptionCreationOverride")
                .and_then(|policy| flag(policy, "allowAutoSubscriptionCreation")),
            subscription_types: SubTypes::read(&policies, "subscription_types_enabled"),
            max_topics: limit(&policies, "max_topics_per_namespace"),
            inactive: inactive(&policies, "inactive_topic_policies"),
            retention_minutes: retention(&policies, "retention_policies"),
            publish_rate: rate.map(|rate| {
                read_rate(
                    rate,
                    "publishThrottlingRateInMsg",
                    "publishThrottlingRateInByte",
                )
            }),
            deleted: policies.get("deleted") == Some(&serde_json::Value::Bool(true)),
            resource_group: policies
                .get("resource_group_name")
                .and_then(|name| name.as_str())
                .map(str::to_owned),
            deduplication: flag(&policies, "deduplicationEnabled"),
            encryption_required: flag(&policies, "encryption_required").unwrap_or(false),
            max_producers_per_topic: limit(&policies, "max_producers_per_topic"),
            max_consumers_per_topic: limit(&policies, "max_consumers_per_topic"),
            max_consumers_per_subscription: limit(&policies, "max_consumers_per_subscription"),
            max_subscriptions_per_topic: limit(&policies, "max_subscriptions_per_topic"),
            max_delivery_delay_ms: policies
                .get("delayed_delivery_policies")
                .and_then(|delayed| delayed.get("maxDeliveryDelayInMillis"))
                .and_then(serde_json::Value::as_u64),
            delayed_delivery: policies
                .get("delayed_delivery_policies")
                .and_then(|delayed| flag(delayed, "active")),
            delayed_delivery_tick_ms: policies
                .get("delayed_delivery_policies")
                .and_then(|delayed| delayed.get("tickTime"))
                .and_then(serde_json::Value::as_u64)
                .filter(|tick| *tick > 0),
        }
    }
}

impl TopicPolicy {
    /// Reads what is understood; a document that is none has no policies.
    fn read(value: &Bytes) -> TopicPolicy {
        let policies = document(value);
        let delayed = policies.get("delayedDelivery").cloned().unwrap_or_default();
        TopicPolicy {
            deduplication: flag(&policies, "deduplicationEnabled"),
            max_producers: limit(&policies, "maxProducers"),
            max_consumers: limit(&policies, "maxConsumers"),
            max_consumers_per_subscription: limit(&policies, "maxConsumersPerSubscription"),
            max_subscriptions: limit(&policies, "maxSubscriptionsPerTopic"),
            max_message_size: limit(&policies, "maxMessageSize"),
            inactive: inactive(&policies, "inactiveTopicPolicies"),
            publish_rate: policies.get("publishRate").map(|rate| {
                read_rate(
                    rate,
                    "publishThrottlingRateInMsg",
                    "publishThrottlingRateInByte",
                )
            }),
            max_delivery_delay_ms: number(&delayed, "maxDeliveryDelayInMillis"),
            delayed_delivery: flag(&delayed, "active"),
            delayed_delivery_tick_ms: number(&delayed, "tickTime").filter(|tick| *tick > 0),
            schema_strategy: policies
                .get("schemaCompatibilityStrategy")
                .and_then(serde_json::Value::as_str)
                .and_then(Strategy::from_name),
            schema_enforced: flag(&policies, "schemaValidationEnforced"),
            auto_subscriptions: policies
                .get("autoSubscriptionCreation")
                .and_then(|policy| flag(policy, "allowAutoSubscriptionCreation")),
            subscription_types: SubTypes::read(&policies, "subscriptionTypesEnabled"),
        }
    }
}

/// A policy of inactive topics. A mode that is none is the default one.
fn inactive(policies: &serde_json::Value, name: &str) -> Option<InactivePolicy> {
    let policy = policies.get(name).filter(|policy| policy.is_object())?;
    let mode = policy.get("inactiveTopicDeleteMode");
    let seconds = policy.get("maxInactiveDurationSeconds");
    let seconds = seconds.and_then(serde_json::Value::as_u64).unwrap_or(0);
    Some(InactivePolicy {
        delete: flag(policy, "deleteWhileInactive").unwrap_or(false),
        caught_up: mode.and_then(serde_json::Value::as_str) == Some(CAUGHT_UP),
        after_ms: seconds.saturating_mul(1000),
    })
}

fn retention(policies: &serde_json::Value, name: &str) -> Option<i64> {
    policies.get(name)?.get("retentionTimeInMinutes")?.as_i64()
}

fn number(policies: &serde_json::Value, name: &str) -> Option<u64> {
    policies.get(name).and_then(serde_json::Value::as_u64)
}

fn flag(policies: &serde_json::Value, name: &str) -> Option<bool> {
    policies.get(name).and_then(serde_json::Value::as_bool)
}

/// A limit in a document; absent, null and negative numbers are none.
fn limit(policies: &serde_json::Value, name: &str) -> Option<u32> {
    let number = policies.get(name).and_then(serde_json::Value::as_u64)?;
    Some(u32::try_from(number).unwrap_or(u32::MAX))
}

fn document(value: &Bytes) -> serde_json::Value {
    serde_json::from_slice(value).unwrap_or_default()
}

/// A rate in a document: absent and negative numbers are no limit.
fn read_rate(document: &serde_json::Value, messages: &str, bytes: &str) -> Rate {
    let number = |name| {
        document
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or(0)
    };
    Rate {
        messages: number(messages),
        bytes: number(bytes),
    }
}

fn strip_scheme(full: &str) -> String {
    full.replacen("://", "/", 1)
}

/// What a topic's partitions say about a name that PRODUCER or SUBSCRIBE uses.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PartitionCheck {
    /// A plain topic.
    Plain,
    /// A partition within the count: it may be created even if auto-creation is off.
    Partition,
    /// The base name of a partitioned topic.
    IsPartitioned,
    /// A partition of a topic that is not partitioned.
    NotPartitioned,
    /// An index at or above the count.
    Beyond,
}

impl Metadata {
    /// Checks a name against the partitioned topics (rules of apache/pulsar #24118).
    pub fn check_partition(&self, name: &TopicName) -> PartitionCheck {
        match (self.partitions(name.base()), name.partition()) {
            (None, -1) => PartitionCheck::Plain,
            (None, _) => PartitionCheck::NotPartitioned,
            (Some(_), -1) => PartitionCheck::IsPartitioned,
            (Some(count), index) if (index as u32) < count => PartitionCheck::Partition,
            (Some(_), _) => PartitionCheck::Beyond,
        }
    }
}

/// May a first use make this a partitioned topic? Dead-letter and retry topics never are.
pub(crate) fn may_be_partitioned(name: &TopicName) -> bool {
    name.partition() < 0 && !name.local().ends_with("-DLQ") && !name.local().ends_with("-RETRY")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_partitioned_topic_is_read_as_it_was_written() {
        for value in [
            "3",
            r#"{"partitions":3,"properties":{"a":"b"}}"#,
            r#"{"partitions":3,"properties":{},"unfinished":true}"#,
        ] {
            let topic = PartitionedTopic::read(&Bytes::from(value)).unwrap();
            assert_eq!((topic.count, topic.write().as_str()), (3, value));
        }
        for value in ["", "-1", "{}", r#"{"partitions":4294967296}"#] {
            assert_eq!(PartitionedTopic::read(&Bytes::from(value)), None, "{value}");
        }
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_gone() {
        let mut metadata = Metadata::default();
        metadata.apply("namespace/a/b", Some(&Bytes::from_static(b"{}")));
        assert!(metadata.has_namespace("a/b"));
        let deleted = Bytes::from_static(b"{\"deleted\":true}");
        metadata.apply("namespace/a/b", Some(&deleted));
        assert!(!metadata.has_namespace("a/b"));
    }

    #[test]
    fn partitions_are_checked_by_base_and_index() {
        let mut metadata = Metadata::default();
        let name = |text: &str| TopicName::parse(text).unwrap();
        let (key, value) = Metadata::partitioned_entry(&name("t"), 3);
        assert_eq!(key, "partitioned/persistent/public/default/t");
        metadata.apply(&key, Some(&value));
        let check = |text: &str| metadata.check_partition(&name(text));
        assert_eq!(check("u"), PartitionCheck::Plain);
        assert_eq!(check("t"), PartitionCheck::IsPartitioned);
        assert_eq!(check("t-partition-2"), PartitionCheck::Partition);
        assert_eq!(check("t-partition-3"), PartitionCheck::Beyond);
        assert_eq!(check("u-partition-0"), PartitionCheck::NotPartitioned);
        let mut gone = metadata.clone();
        gone.apply(&key, None);
        assert_eq!(gone.check_partition(&name("t")), PartitionCheck::Plain);
    }
}
