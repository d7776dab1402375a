//! Publish rates: of a topic, of a resource group, of the whole broker.
//!
//! A publish that has been read is charged in full and goes on; a balance at zero or below holds its connection until the debt is paid.
//! Hold and release come in pairs (one ticket per connection and limiter), so the late release of an earlier burst never clears a newer hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vela_limiter::{PublishRate, RateLimiter, Reason, SharedRate};

use super::Topics;
use crate::engine::context::Context;
use crate::engine::message::SessionRef;
use crate::engine::metadata::Rate;
use crate::engine::session::throttling::{hold, release};
use crate::engine::time::Now;

/// Connections that one limiter lets go on within one millisecond. They are charged when their publishes come, so what this exceeds is paid
/// back as debt.
const RELEASES_PER_TICK: usize = 64;
const NANOS_PER_MS: u64 = 1_000_000;

/// Rates that all cores of a broker share.
pub trait SharedRates: Send + Sync {
    /// The broker's own.
    fn broker(&self) -> Arc<SharedRate>;
    /// A resource group's, by name; always the same one for a name.
    fn group(&self, name: &str) -> Arc<SharedRate>;
}

/// A topic's own limiter.
pub(super) type TopicRate = RateLimiter<PublishRate, SessionRef>;
type Shared = RateLimiter<Arc<SharedRate>, SessionRef>;

/// What connections may wait for.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
enum Key {
    Broker,
    /// Index in `groups`.
    Group(u32),
    Topic(u32),
}

/// The rates of a core.
pub(super) struct Rates {
    shared: Arc<dyn SharedRates>,
    broker: Shared,
    groups: Vec<(String, Shared)>,
    group_index: BTreeMap<String, u32>,
    /// When to look again at who waits, monotonic milliseconds.
    due: BTreeSet<(u64, Key)>,
    /// Topics whose rate has held a connection.
    limited: BTreeSet<u32>,
}

impl Rates {
    pub(super) fn new(shared: Arc<dyn SharedRates>) -> Self {
        Rates {
            broker: RateLimiter::new(shared.broker()),
            shared,
            groups: Vec::new(),
            group_index: BTreeMap::new(),
            due: BTreeSet::new(),
            limited: BTreeSet::new(),
        }
    }

    pub(super) fn next_wakeup(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The index of a resource group, known from now on.
    fn group(&mut self, name: &str) -> u32 {
        if let Some(index) = self.group_index.get(name) {
            return *index;
        }
        let index = self.groups.len() as u32;
        let limiter = RateLimiter::new(self.shared.group(name));
        self.groups.push((name.to_owned(), limiter));
        self.group_index.insert(name.to_owned(), index);
        index
    }
}

fn nanos(now: Now) -> u64 {
    now.ms.saturating_mul(NANOS_PER_MS)
}

/// The millisecond at which to look again, given the nanoseconds to wait.
fn due_at(now: Now, wait: u64) -> u64 {
    now.ms + wait.div_ceil(NANOS_PER_MS).max(1)
}

impl Topics {
    /// Charges one publish to every rate that concerns it.
    pub(super) fn charge(
        &mut self,
        cx: &mut Context,
        slot: u32,
        session: SessionRef,
        messages: u32,
        bytes: usize,
        now: Now,
    ) {
        let (time, messages, bytes) = (nanos(now), u64::from(messages), bytes as u64);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if let Some(rate) = &mut topic.rate
            && let Some(_ticket) = rate.charge(time, session, messages, bytes)
        {
            let wait = rate.wait(time).unwrap_or(0);
            self.rates.due.insert((due_at(now, wait), Key::Topic(slot)));
            if topic.rate_limited == 0 {
                self.rates.limited.insert(slot);
            }
            topic.rate_limited += 1;
            cx.counters.topic_rate_holds += 1;
            cx.post(session.core, hold(session, Reason::TopicRate));
        }
        if let Some(index) = topic.group
            && let Some((_, rate)) = self.rates.groups.get_mut(index as usize)
            && let Some(_ticket) = rate.charge(time, session, messages, bytes)
        {
            let wait = rate.wait(time).unwrap_or(0);
            self.rates
                .due
                .insert((due_at(now, wait), Key::Group(index)));
            cx.post(session.core, hold(session, Reason::ResourceGroupRate));
        }
        if let Some(_ticket) = self.rates.broker.charge(time, session, messages, bytes) {
            let wait = self.rates.broker.wait(time).unwrap_or(0);
            self.rates.due.insert((due_at(now, wait), Key::Broker));
            cx.post(session.core, hold(session, Reason::BrokerRate));
        }
    }

    /// Topics whose own rate has held a connection, and how often.
    pub(in crate::engine) fn rate_limited(&self) -> Vec<(String, u64)> {
        let topics = self.rates.limited.iter().filter_map(|slot| {
            let topic = self.topics.get(*slot as usize)?;
            (topic.rate_limited > 0).then(|| (topic.name.to_string(), topic.rate_limited))
        });
        topics.collect()
    }

    /// Lets go on whoever a balance suffices for.
    pub(super) fn tick_rates(&mut self, cx: &mut Context, now: Now) {
        while let Some(&(at, key)) = self.rates.due.first() {
            if at > now.ms {
                break;
            }
            self.rates.due.pop_first();
            self.release_rate(cx, key, RELEASES_PER_TICK, now);
        }
    }

    /// Releases up to `most` connections of one limiter and sets its next look.
    fn release_rate(&mut self, cx: &mut Context, key: Key, most: usize, now: Now) {
        let time = nanos(now);
        let (next, reason, wait) = match key {
            Key::Topic(slot) => {
                let topic = self.topics.get_mut(slot as usize);
                let Some(rate) = topic.and_then(|topic| topic.rate.as_mut()) else {
                    return;
                };
                (
                    take(most, || rate.release(time)),
                    Reason::TopicRate,
                    rate.wait(time),
                )
            }
            Key::Group(index) => {
                let Some((_, rate)) = self.rates.groups.get_mut(index as usize) else {
                    return;
                };
                (
                    take(most, || rate.release(time)),
                    Reason::ResourceGroupRate,
                    rate.wait(time),
                )
            }
            Key::Broker => {
                let rate = &mut self.rates.broker;
                (
                    take(most, || rate.release(time)),
                    Reason::BrokerRate,
                    rate.wait(time),
                )
            }
        };
        for session in next {
            cx.post(session.core, release(session, reason));
        }
        if let Some(wait) = wait {
            self.rates.due.insert((due_at(now, wait), key));
        }
    }

    /// Takes over rates from settings and policies; removing or raising one lets its waiters go on at once.
    pub(crate) fn reconfigure(&mut self, cx: &mut Context, now: Now) {
        self.reconsider_unacked(cx);
        self.reconsider_inactive(cx, now);
        let time = nanos(now);
        let (messages, bytes) = (
            cx.settings.broker_publisher_throttling_max_message_rate,
            cx.settings.broker_publisher_throttling_max_byte_rate,
        );
        self.rates.broker.shared().set(time, messages, bytes);
        self.release_rate(cx, Key::Broker, usize::MAX, now);
        for slot in self
            .topics
            .iter()
            .map(|(slot, _)| slot as u32)
            .collect::<Vec<_>>()
        {
            self.take_limits(cx, slot, now);
            self.configure_rate(cx, slot, now);
            self.release_rate(cx, Key::Topic(slot), usize::MAX, now);
        }
        for index in 0..self.rates.groups.len() {
            if let Some((name, rate)) = self.rates.groups.get(index) {
                let set = cx.metadata.resource_group(name).unwrap_or_default();
                rate.shared().set(time, set.messages, set.bytes);
            }
            self.release_rate(cx, Key::Group(index as u32), usize::MAX, now);
        }
    }

    /// Lets go on whoever waits for the rate of a topic that goes.
    pub(super) fn forget_rate(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let topic = self.topics.get_mut(slot as usize);
        if let Some(rate) = topic.and_then(|topic| topic.rate.as_mut()) {
            rate.set(nanos(now), 0, 0);
            self.release_rate(cx, Key::Topic(slot), usize::MAX, now);
        }
        self.rates.limited.remove(&slot);
    }

    /// Sets a topic's rate and group from policies and settings.
    pub(super) fn configure_rate(&mut self, cx: &Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.deleted {
            return;
        }
        let policy = cx.metadata.namespace(topic.name.namespace());
        let own = cx.metadata.topic_policy(&topic.name);
        let rate = own
            .and_then(|own| own.publish_rate)
            .or_else(|| policy.and_then(|policy| policy.publish_rate))
            .unwrap_or(Rate {
                messages: cx.settings.max_publish_rate_per_topic_in_messages,
                bytes: cx.settings.max_publish_rate_per_topic_in_bytes,
            });
        match &mut topic.rate {
            Some(limiter) => limiter.set(nanos(now), rate.messages, rate.bytes),
            None if rate == Rate::default() => {}
            None => {
                let pace = PublishRate::new(nanos(now), rate.messages, rate.bytes);
                topic.rate = Some(Box::new(RateLimiter::new(pace)));
            }
        }
        topic.group = policy
            .and_then(|policy| policy.resource_group.as_deref())
            .map(|name| {
                let index = self.rates.group(name);
                if let Some((_, rate)) = self.rates.groups.get(index as usize) {
                    let set = cx.metadata.resource_group(name).unwrap_or_default();
                    rate.shared().set(nanos(now), set.messages, set.bytes);
                }
                index
            });
    }
}

fn take<T>(most: usize, mut release: impl FnMut() -> Option<(SessionRef, T)>) -> Vec<SessionRef> {
    let mut released = Vec::new();
    while released.len() < most
        && let Some((session, _ticket)) = release()
    {
        released.push(session);
    }
    released
}
