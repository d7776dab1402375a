//! What settings and policies say about one topic, and what happens when they change: a topic's own policy wins over its namespace's, and that
//! over the broker's setting.

use vela_proto::ServerError;

use super::producer::Producer;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::metadata::{NamespacePolicy, SubTypes, TopicPolicy};
use crate::engine::name::{Domain, TopicName};
use crate::engine::time::Now;

/// Limits and switches of a topic. 0 = no limit.
#[derive(Copy, Clone, Default, Eq, PartialEq, Debug)]
pub(super) struct Limits {
    /// Messages are told apart by their sequence ids.
    pub(super) dedup: bool,
    /// Messages must be encrypted.
    pub(super) encryption: bool,
    /// Producers at once.
    pub(super) producers: u32,
    /// Consumers at once.
    pub(super) consumers: u32,
    /// Consumers of one subscription at once.
    pub(super) consumers_per_subscription: u32,
    /// Subscriptions.
    pub(super) subscriptions: u32,
    /// Bytes of one entry, checksum and metadata included.
    pub(super) message_size: u32,
    /// How far in the future a message may be delivered, milliseconds.
    pub(super) delay_ms: u64,
    /// The types that subscriptions may have.
    pub(super) subscription_types: SubTypes,
    /// Messages are delayed.
    pub(super) delayed: bool,
    /// How exactly, milliseconds.
    pub(super) delay_tick_ms: u64,
}

impl Limits {
    fn of(cx: &Context, name: &TopicName) -> Limits {
        let settings = &cx.settings;
        let none = NamespacePolicy::default();
        let namespace = cx.metadata.namespace(name.namespace()).unwrap_or(&none);
        let plain = TopicPolicy::default();
        let topic = cx.metadata.topic_policy(name).unwrap_or(&plain);
        let volatile = name.domain() == Domain::NonPersistent;
        let limit = |topic: Option<u32>, namespace: Option<u32>, broker: u32| {
            topic.or(namespace).unwrap_or(broker)
        };
        Limits {
            dedup: !volatile
                && topic
                    .deduplication
                    .or(namespace.deduplication)
                    .unwrap_or(settings.broker_deduplication_enabled),
            encryption: namespace.encryption_required || settings.encryption_require_on_producer,
            producers: limit(
                topic.max_producers,
                namespace.max_producers_per_topic,
                settings.max_producers_per_topic,
            ),
            consumers: limit(
                topic.max_consumers,
                namespace.max_consumers_per_topic,
                settings.max_consumers_per_topic,
            ),
            consumers_per_subscription: limit(
                topic.max_consumers_per_subscription,
                namespace.max_consumers_per_subscription,
                settings.max_consumers_per_subscription,
            ),
            subscriptions: limit(
                topic.max_subscriptions,
                namespace.max_subscriptions_per_topic,
                settings.max_subscriptions_per_topic,
            ),
            message_size: topic.max_message_size.unwrap_or(0),
            delay_ms: match volatile {
                true => 0,
                false => topic
                    .max_delivery_delay_ms
                    .or(namespace.max_delivery_delay_ms)
                    .unwrap_or(settings.delayed_delivery_max_delay_in_millis),
            },
            subscription_types: topic.subscription_types.or(namespace.subscription_types),
            delayed: !volatile
                && topic
                    .delayed_delivery
                    .or(namespace.delayed_delivery)
                    .unwrap_or(settings.delayed_delivery_enabled),
            delay_tick_ms: topic
                .delayed_delivery_tick_ms
                .or(namespace.delayed_delivery_tick_ms)
                .unwrap_or(settings.delayed_delivery_tick_time_millis),
        }
    }
}

impl Topics {
    /// Takes over what settings and policies say about a topic now.
    pub(super) fn take_limits(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let limits = Limits::of(cx, &topic.name);
        let before = topic.limits.replace(limits);
        if before == Some(limits) {
            return;
        }
        // What is delayed may be due now.
        topic.mark_dirty(&mut self.dirty);
        if before.is_none_or(|before| before.dedup != limits.dedup) {
            self.switch_dedup(cx, slot, limits.dedup, now);
        }
        if limits.encryption {
            // A producer that does not encrypt is told to come back, and is refused then.
            self.close_producers(cx, slot, true, |producer: &Producer| !producer.encrypted);
        }
    }

    /// May a consumer join? `sub` is its subscription, if that exists already.
    pub(super) fn check_consumer_limits(
        &mut self,
        cx: &mut Context,
        slot: u32,
        subscription: &str,
        address: &str,
        now: Now,
    ) -> Result<(), (ServerError, String)> {
        self.take_limits(cx, slot, now);
        let Some(topic) = self.topics.get(slot as usize) else {
            return Ok(());
        };
        let limits = topic.limits.unwrap_or_default();
        let busy = |text: String| Err((ServerError::ConsumerBusy, text));
        let connected = || topic.subs.iter().map(|(_, sub)| sub.roster.len()).sum();
        if limits.consumers > 0 && over(connected(), limits.consumers) {
            return busy(format!(
                "Topic {} has reached its limit of consumers: maxConsumersPerTopic is {}",
                topic.name, limits.consumers
            ));
        }
        let same = cx.settings.max_same_address_consumers_per_topic;
        if same > 0 {
            let from = host(address);
            let consumers = topic.subs.iter().flat_map(|(_, sub)| sub.roster.iter());
            let theirs = consumers.filter(|(_, c)| host(&c.address) == from).count();
            if over(theirs, same) {
                return busy(format!(
                    "Topic {} has reached its limit of consumers of the address {from}: maxSameAddressConsumersPerTopic is {same}",
                    topic.name
                ));
            }
        }
        let sub = topic.sub_names.get(subscription);
        match sub.and_then(|sub| topic.subs.get(*sub as usize)) {
            Some(sub) if over(sub.roster.len(), limits.consumers_per_subscription) => {
                busy(format!(
                    "Subscription '{subscription}' of {} has reached its limit of consumers: maxConsumersPerSubscription is {}",
                    topic.name, limits.consumers_per_subscription
                ))
            }
            None => topic
                .check_subscription_limit()
                .map_err(|text| (ServerError::NotAllowedError, text)),
            _ => Ok(()),
        }
    }
}

impl Topic {
    /// May it have one more subscription? For who has taken the limits over.
    pub(super) fn check_subscription_limit(&self) -> Result<(), String> {
        let limit = self.limits.unwrap_or_default().subscriptions;
        if over(self.sub_names.len(), limit) {
            return Err(format!(
                "Topic {} has reached its limit of subscriptions: maxSubscriptionsPerTopic is {limit}",
                self.name
            ));
        }
        Ok(())
    }
}

fn over(count: usize, limit: u32) -> bool {
    limit > 0 && count >= limit as usize
}

/// The host of `host:port`.
pub(super) fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}
