//! When subscriptions have to be looked at because something comes due.

use super::super::Topics;
use super::super::subscription::Subscription;
use super::Rule;
use crate::engine::settings::Settings;
use crate::engine::time::Now;
use std::collections::BTreeSet;

/// The wall clock may be set: whoever waits for it looks at it again after this time, milliseconds.
const LOOK_AGAIN_MS: u64 = 60_000;
/// Entries of all subscriptions of a core whose times are kept one by one, and as many that are due; but each may have [`LEAST`].
const CORE_ENTRIES: usize = 1 << 20;
const LEAST: usize = 256;

/// Timers of subscriptions that have delayed entries: when, topic, subscription.
pub(in super::super) type Timers = BTreeSet<(u64, u32, u32)>;

/// Entries that one subscription may keep of [`CORE_ENTRIES`], as many as are delayed.
pub(in super::super) fn limit(timers: &Timers, settings: &Settings) -> usize {
    let share = CORE_ENTRIES / timers.len().max(1);
    share
        .min(settings.delayed_delivery_max_entries_in_memory as usize)
        .max(LEAST.min(settings.delayed_delivery_max_entries_in_memory as usize))
}

impl Subscription {
    /// Sets the subscription's timer for what comes due next.
    pub(in super::super) fn set_timer(
        &mut self,
        timers: &mut Timers,
        (slot, sub_slot): (u32, u32),
        rule: &Rule,
        now: Now,
    ) {
        let at = self.delayed.next_look(rule, now.wall_ms).map(|at| {
            let ahead = at.saturating_sub(now.wall_ms).clamp(1, LOOK_AGAIN_MS);
            now.ms.saturating_add(ahead)
        });
        if at != self.delayed.timer {
            self.stop_timer(timers, slot, sub_slot);
            self.delayed.timer = at;
            timers.extend(at.map(|at| (at, slot, sub_slot)));
        }
    }

    pub(in super::super) fn stop_timer(&mut self, timers: &mut Timers, slot: u32, sub_slot: u32) {
        if let Some(at) = self.delayed.timer.take() {
            timers.remove(&(at, slot, sub_slot));
        }
    }
}

impl Topics {
    /// Looks at the subscriptions in which something may have come due.
    pub(in super::super) fn tick_delayed(&mut self, now: Now) {
        while let Some(&(at, slot, sub_slot)) = self.delays.first() {
            if at > now.ms {
                break;
            }
            self.delays.pop_first();
            let Some(topic) = self.topics.get_mut(slot as usize) else {
                continue;
            };
            if let Some(sub) = topic.subs.get_mut(sub_slot as usize)
                && sub.delayed.timer == Some(at)
            {
                sub.delayed.timer = None;
                topic.mark_dirty(&mut self.dirty);
            }
        }
    }
}
