//! The broker's limit of unacknowledged messages (`maxUnackedMessagesPerBroker`).
//!
//! While as many are out, a subscription that holds more than its share (`maxUnackedMessagesPerSubscriptionOnBrokerBlocked` of the limit) reads
//! nothing new. It goes on when it holds less than half its share, and all go on when less than half the limit is out. Each core counts its own
//! subscriptions against its part of the limit: there is no state that cores share.

use std::collections::BTreeSet;

use super::Topics;
use super::subscription::Subscription;
use crate::engine::context::Context;

/// What the subscriptions of a core have out.
#[derive(Default, Debug)]
pub(super) struct CoreUnacked {
    total: u64,
    over: bool,
    /// Subscriptions that read nothing new because of it: topic, subscription.
    blocked: BTreeSet<(u32, u32)>,
}

impl CoreUnacked {
    /// Takes in what a subscription has out now, and decides whether it may read. True if others that were stopped may go on.
    pub(super) fn settle(&mut self, cx: &Context, key: (u32, u32), sub: &mut Subscription) -> bool {
        let now = sub.pending.unacked();
        self.total = self.total.saturating_sub(sub.counted) + now;
        sub.counted = now;
        let limit = match u64::from(cx.settings.max_unacked_messages_per_broker) {
            0 => 0,
            limit => (limit / u64::from(cx.cores.max(1))).max(1),
        };
        let was_over = self.over;
        self.over = match limit {
            0 => false,
            _ if self.total >= limit => true,
            _ => self.over && self.total >= (limit / 2).max(1),
        };
        let fraction = cx
            .settings
            .max_unacked_messages_per_subscription_on_broker_blocked;
        let share = (limit as f64 * fraction) as u64;
        sub.stopped = self.over
            && if sub.stopped {
                now >= (share / 2).max(1)
            } else {
                now > share
            };
        if sub.stopped {
            self.blocked.insert(key);
        } else if !self.blocked.is_empty() {
            self.blocked.remove(&key);
        }
        was_over && !self.over && !self.blocked.is_empty()
    }

    /// A subscription goes.
    pub(super) fn forget(&mut self, key: (u32, u32), sub: &Subscription) {
        self.total = self.total.saturating_sub(sub.counted);
        self.blocked.remove(&key);
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

impl Topics {
    /// Has a subscription's unacknowledged messages counted after a change, and whoever may go on looked at.
    pub(super) fn settle_unacked(&mut self, cx: &Context, slot: u32, sub_slot: u32) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        let stopped = sub.stopped;
        let others = self.unacked.settle(cx, (slot, sub_slot), sub);
        if stopped && !sub.stopped {
            topic.mark_dirty(&mut self.dirty);
        }
        if others {
            self.wake_stopped();
        }
    }

    /// Has the subscriptions looked at that the broker's limit has stopped.
    pub(super) fn wake_stopped(&mut self) {
        let stopped: Vec<u32> = self.unacked.blocked.iter().map(|(slot, _)| *slot).collect();
        for slot in stopped {
            self.mark(slot);
        }
    }

    /// Settings have changed: whoever was stopped under the old ones is looked at again.
    pub(super) fn reconsider_unacked(&mut self, cx: &Context) {
        for (_, topic) in &mut self.topics {
            let mut freed = false;
            for (_, sub) in &mut topic.subs {
                freed |= sub.unblock(cx, None);
                // The look-ahead may be another one.
                freed |= sub.dispatcher.keys().is_some();
            }
            if freed {
                topic.mark_dirty(&mut self.dirty);
            }
        }
        self.wake_stopped();
    }
}
