//! Failover: who is active, and when a change takes effect.
//!
//! The consumer that stops being served may still be working on what it has, so the next one is served a while later
//! (`activeConsumerFailoverDelayTimeMillis`), from the mark-delete position on; then every consumer is told who is active. A change while
//! another is on its way shares its time. The first consumer of a subscription waits as well.

use super::Topics;
use super::single::Elected;
use super::subscription::mark_delete;
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message};
use crate::engine::time::Now;

impl Topics {
    /// Decides anew who is active, after a consumer has come (`newcomer`) or gone.
    pub(super) fn elect(
        &mut self,
        cx: &mut Context,
        slot: u32,
        sub_slot: u32,
        newcomer: Option<ClientRef>,
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let partition = topic.name.partition();
        // Without a cursor there is nothing that the one before could still be working on.
        let delay = match topic.is_volatile() {
            true => 0,
            false => cx.settings.active_consumer_failover_delay_time_millis,
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        let Some(single) = sub.dispatcher.failover() else {
            return;
        };
        let before = single.takeover_at();
        match single.elect(partition, &cx.settings) {
            Elected::Same => {
                if let Some(client) = newcomer {
                    tell(cx, client, false);
                }
            }
            Elected::Changed => {
                let at = before.unwrap_or_else(|| now.ms.saturating_add(delay));
                single.set_takeover(Some(at));
                if before.is_none() {
                    self.takeovers.insert((at, slot, sub_slot));
                }
                if delay == 0 {
                    self.tick_failover(cx, now);
                }
            }
        }
    }

    /// Serves the active consumers whose time has come.
    pub(super) fn tick_failover(&mut self, cx: &mut Context, now: Now) {
        while let Some(&(at, slot, sub_slot)) = self.takeovers.first() {
            if at > now.ms {
                break;
            }
            self.takeovers.pop_first();
            let Some(topic) = self.topics.get_mut(slot as usize) else {
                continue;
            };
            let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
                continue;
            };
            // The subscription may be another one in the slot, or may have been left by everybody meanwhile.
            let Some(single) = sub
                .dispatcher
                .failover()
                .filter(|single| single.takeover_at() == Some(at))
            else {
                continue;
            };
            single.set_takeover(None);
            let active = single.active();
            let from = mark_delete(&topic.state, sub);
            sub.rewind(from);
            for (index, consumer) in sub.roster.iter() {
                tell(cx, consumer.client, Some(index) == active);
            }
            topic.mark_dirty(&mut self.dirty);
        }
    }
}

fn tell(cx: &mut Context, client: ClientRef, active: bool) {
    cx.post(
        client.session.core,
        Message::ActiveConsumerChange { client, active },
    );
}
