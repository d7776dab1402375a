//! Topics that nobody uses go: persistent and non-persistent ones (Pulsar's `brokerDeleteInactiveTopics*`, and the policies
//! `inactive_topic_policies` of namespaces and `inactiveTopicPolicies` of topics).
//!
//! A topic is in use while it has producers, consumers, somebody who waits to be one of them, or subscriptions - in the mode
//! `delete_when_subscriptions_caught_up`: subscriptions with a backlog. One that was seen unused at two looks, far enough apart, and not in
//! between, is deleted, subscriptions and all. Nothing of this is stored: after a restart all topics count as used a moment ago.

use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::metadata::{InactivePolicy, NamespacePolicy, TopicPolicy};
use crate::engine::settings::Settings;
use crate::engine::time::Now;

/// Topics looked at in one turn.
const PER_TURN: usize = 1000;
/// Deletions under way at which the look waits.
const MAX_DELETIONS: usize = 64;
/// For how long, milliseconds.
const BUSY_MS: u64 = 100;

/// When a core looks for unused topics.
#[derive(Default, Debug)]
pub(super) struct Inactive {
    /// When it goes on, monotonic milliseconds; `None` = there is no reason to.
    at: Option<u64>,
    /// Where it goes on; 0 = at the beginning.
    slot: usize,
}

impl Inactive {
    pub(super) fn next_wakeup(&self) -> Option<u64> {
        self.at
    }
}

/// Milliseconds between two looks; `None` = there are none. Without the setting, policies still may want them.
fn every(cx: &Context) -> Option<u64> {
    let settings = &cx.settings;
    let wanted = settings.broker_delete_inactive_topics_enabled || cx.metadata.has_inactive();
    wanted.then(|| settings.broker_delete_inactive_topics_frequency_ms.max(1))
}

/// What the broker's settings say.
fn by_settings(settings: &Settings) -> InactivePolicy {
    InactivePolicy {
        delete: settings.broker_delete_inactive_topics_enabled,
        caught_up: settings.broker_delete_inactive_topics_when_caught_up,
        after_ms: match settings.broker_delete_inactive_topics_max_inactive_duration_ms {
            0 => settings.broker_delete_inactive_topics_frequency_ms.max(1),
            after => after,
        },
    }
}

/// How long a topic stays unused before it goes, milliseconds, and whether subscriptions may go with it; `None` = it stays.
fn rule(cx: &Context, topic: &Topic) -> Option<(u64, bool)> {
    let none = NamespacePolicy::default();
    let namespace = cx.metadata.namespace(topic.name.namespace());
    let namespace = namespace.unwrap_or(&none);
    let plain = TopicPolicy::default();
    let own = cx.metadata.topic_policy(&topic.name).unwrap_or(&plain);
    let policy = own.inactive.or(namespace.inactive);
    let policy = policy.unwrap_or_else(|| by_settings(&cx.settings));
    // Below 0: for good.
    let retained = u64::try_from(namespace.retention_minutes.unwrap_or(0)).ok()?;
    let after = policy.after_ms.max(retained.saturating_mul(60_000));
    policy.delete.then_some((after, policy.caught_up))
}

impl Topic {
    /// Nobody uses it. `caught_up` = subscriptions without backlog do not count.
    fn is_unused(&self, caught_up: bool) -> bool {
        if !self.producers.is_empty() || !self.access.queue.is_empty() {
            return false;
        }
        if self.subs.is_empty() {
            return true;
        }
        caught_up
            && !self.is_volatile()
            && self.operations.is_empty()
            && self.inquiries.is_empty()
            && self.subs.iter().all(|(_, sub)| {
                let acks = sub.acks(&self.state);
                // A reader that a seek sent away comes back.
                sub.cursor.is_some()
                    && sub.roster.is_empty()
                    && sub.waiting.is_empty()
                    && !sub.resetting
                    && acks
                        .next_unacked(&self.state.ledgers, acks.mark_delete())
                        .is_none()
            })
    }
}

impl Topics {
    /// There may be something to look at from now on: a new topic, other settings or policies.
    pub(super) fn reconsider_inactive(&mut self, cx: &Context, now: Now) {
        let wanted = every(cx).filter(|_| !self.topics.is_empty());
        self.inactive.at = wanted.map(|every| {
            let at = now.ms.saturating_add(every);
            self.inactive.at.map_or(at, |planned| planned.min(at))
        });
    }

    /// Goes on looking for topics that nobody uses.
    pub(super) fn look_for_inactive(&mut self, cx: &mut Context, now: Now) {
        if self.inactive.at.is_none_or(|at| at > now.ms) {
            return;
        }
        let Some(every) = every(cx).filter(|_| !self.topics.is_empty()) else {
            self.inactive = Inactive::default();
            return;
        };
        let end = (self.inactive.slot + PER_TURN).min(self.topics.capacity());
        while self.inactive.slot < end {
            if self.deletions.len() >= MAX_DELETIONS {
                self.inactive.at = Some(now.ms + BUSY_MS);
                return;
            }
            let slot = self.inactive.slot;
            self.inactive.slot += 1;
            if self.is_inactive(cx, slot, now) {
                self.delete(cx, None, slot as u32, now);
            }
        }
        if end < self.topics.capacity() {
            // The rest in the next turn.
            self.inactive.at = Some(now.ms);
        } else {
            self.inactive.slot = 0;
            self.inactive.at = Some(now.ms.saturating_add(every));
        }
    }

    /// Has nobody used the topic for long enough?
    fn is_inactive(&mut self, cx: &Context, slot: usize, now: Now) -> bool {
        let Some(topic) = self.topics.get_mut(slot) else {
            return false;
        };
        let rule = rule(cx, topic).filter(|_| !topic.deleted && topic.deletion.is_none());
        let Some((after, _)) = rule.filter(|(_, caught_up)| topic.is_unused(*caught_up)) else {
            topic.unused_since = None;
            return false;
        };
        let since = *topic.unused_since.get_or_insert(now.ms);
        now.ms.saturating_sub(since) >= after
    }
}
