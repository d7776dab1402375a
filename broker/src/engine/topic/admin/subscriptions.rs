//! Subscriptions: made, deleted, moved.

use super::super::joining::Expel;
use super::super::subscription::{Subscription, create_durable, mark_delete};
use super::super::{Topic, Topics};
use super::inquiries::{Reading, Then};
use super::reply;
use crate::engine::admin::{Answer, Asker, CursorTarget, SubscriptionAsk};
use crate::engine::context::Context;
use crate::engine::time::Now;
use crate::store::log::{Position, Record, TopicState};

impl Topics {
    pub(super) fn subscription(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        name: String,
        ask: SubscriptionAsk,
        now: Now,
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let found = topic.sub_names.get(&name).copied();
        let sub_slot = match (&ask, found) {
            (SubscriptionAsk::Create { .. }, Some(_)) => return reply(cx, asker, Answer::Exists),
            (SubscriptionAsk::Create { .. }, None) => 0,
            // As Pulsar has it: who looks at a subscription that is not there makes it.
            (SubscriptionAsk::Peek(_), None) => self.create(slot, &name, Position::EARLIEST, &[]),
            (_, None) => return reply(cx, asker, Answer::NoSubscription),
            (_, Some(sub)) => sub,
        };
        match ask {
            SubscriptionAsk::Create { at, properties, .. } => {
                self.take_limits(cx, slot, now);
                if let Some(topic) = self.topics.get(slot as usize)
                    && let Err(text) = topic.check_subscription_limit()
                {
                    return reply(cx, asker, Answer::Conflict(text));
                }
                self.create_subscription(cx, asker, slot, name, at, &properties);
            }
            SubscriptionAsk::Delete { force } => {
                self.delete_subscription(cx, asker, slot, sub_slot, force, now);
            }
            SubscriptionAsk::Skip(entries) => {
                let to = self.nth_unacked(slot, sub_slot, entries, true);
                self.move_on(cx, asker, slot, sub_slot, to, now);
            }
            SubscriptionAsk::SkipAll => {
                let end = self.topics.get(slot as usize).map(|topic| topic.confirmed);
                self.move_on(cx, asker, slot, sub_slot, end, now);
            }
            SubscriptionAsk::ResetToTime(time) => {
                let subscription = name;
                self.search(cx, asker, slot, time, Then::Reset { subscription });
            }
            SubscriptionAsk::ResetTo(target) => {
                let subscription = name;
                self.inquire(
                    cx,
                    asker,
                    slot,
                    Reading::Reset {
                        subscription,
                        target,
                    },
                );
            }
            SubscriptionAsk::ExpireBefore(time) => {
                let subscription = Some(name);
                self.search(cx, asker, slot, time, Then::Expire { subscription });
            }
            SubscriptionAsk::ExpireTo(target) => {
                let Some(topic) = self.topics.get(slot as usize) else {
                    return reply(cx, asker, Answer::NoTopic);
                };
                let to = topic.start(target);
                let to = match target.excluded {
                    true => topic.state.ledgers.prev(target.position).min(to),
                    false => to.max(target.position.min(topic.confirmed)),
                };
                self.move_on(cx, asker, slot, sub_slot, Some(to), now);
            }
            SubscriptionAsk::Peek(number) => {
                let position = self.nth_unacked(slot, sub_slot, number, false);
                self.read_or_none(cx, asker, slot, position);
            }
            SubscriptionAsk::Properties => {
                let properties = self.topics.get(slot as usize).and_then(|topic| {
                    let sub = topic.subs.get(sub_slot as usize)?;
                    Some(properties_of(&topic.state, sub))
                });
                let properties = properties.unwrap_or_default().into_iter().collect();
                reply(cx, asker, Answer::Properties(properties));
            }
        }
    }

    fn create(
        &mut self,
        slot: u32,
        name: &str,
        mark_delete: Position,
        properties: &[(&str, &str)],
    ) -> u32 {
        match self.topics.get_mut(slot as usize) {
            Some(topic) => match self.lanes.get_mut(topic.lane) {
                Some(seat) => create_durable(topic, seat, name, mark_delete, properties),
                None => 0,
            },
            None => 0,
        }
    }

    fn create_subscription(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        name: String,
        at: CursorTarget,
        properties: &[(String, String)],
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let (lane, mark_delete) = (topic.lane, topic.start(at));
        let properties: Vec<(&str, &str)> = properties
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        self.create(slot, &name, mark_delete, &properties);
        if at.batch_index >= 0 {
            // Within a batch: its size has to be known.
            let (subscription, target) = (name, at);
            return self.inquire(
                cx,
                asker,
                slot,
                Reading::Reset {
                    subscription,
                    target,
                },
            );
        }
        self.reply_durable(cx, asker, lane, Answer::Done);
    }

    fn delete_subscription(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        sub_slot: u32,
        force: bool,
        now: Now,
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let Some(sub) = topic.subs.get(sub_slot as usize) else {
            return reply(cx, asker, Answer::NoSubscription);
        };
        let (lane, name, cursor) = (topic.log(), sub.name.clone(), sub.cursor);
        let consumers = sub.roster.len();
        if consumers > 0 && !force {
            let producers = 0;
            return reply(
                cx,
                asker,
                Answer::Clients {
                    producers,
                    consumers,
                },
            );
        }
        self.expel(cx, slot, sub_slot, None, Expel::End, now);
        if let Some(topic) = self.topics.get_mut(slot as usize)
            && let Some(cursor) = cursor
        {
            if let Some(seat) = self.lanes.get_mut(topic.lane) {
                seat.append(&Record::CursorDeleted {
                    topic: topic.state.id,
                    cursor,
                });
            }
            topic.state.delete_cursor(cursor);
        }
        // A non-durable one went with its last consumer; who waited for it may have made another one of its name by now.
        let still = self.topics.get(slot as usize).is_some_and(|topic| {
            topic.sub_names.get(&name) == Some(&sub_slot)
                && topic
                    .subs
                    .get(sub_slot as usize)
                    .is_some_and(|sub| sub.roster.is_empty())
        });
        if still {
            self.drop_subscription(cx, slot, sub_slot, now);
        }
        self.reply_durable(cx, asker, lane, Answer::Done);
    }

    /// Acknowledges everything up to `to`, and answers.
    fn move_on(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        sub_slot: u32,
        to: Option<Position>,
        now: Now,
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let lane = topic.lane;
        if let Some(sub) = topic.subs.get(sub_slot as usize).filter(|s| s.resetting) {
            let subscription = sub.name.clone();
            return reply(cx, asker, Answer::Busy { subscription });
        }
        if let Some(to) = to {
            self.advance(cx, slot, sub_slot, to, now);
        }
        self.reply_durable(cx, asker, lane, Answer::Done);
    }

    /// Acknowledges everything up to `to`. Consumers that are connected are closed, and come back: what they hold
    /// may be acknowledged now. False if there was nothing to acknowledge.
    pub(super) fn advance(
        &mut self,
        cx: &mut Context,
        slot: u32,
        sub_slot: u32,
        to: Position,
        now: Now,
    ) -> bool {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return false;
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return false;
        };
        let to = to.min(topic.confirmed);
        if to <= mark_delete(&topic.state, sub) {
            return false;
        }
        self.expel(cx, slot, sub_slot, None, Expel::Seek, now);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return false;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return false;
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return false;
        };
        match sub.cursor {
            Some(cursor) => {
                seat.append(&Record::MarkDeleted {
                    topic: topic.state.id,
                    cursor,
                    to,
                    ack_set: (&[][..]).into(),
                });
                // It is not behind: that was asked above.
                let _ = topic.state.ack_cumulative(cursor, to, &[]);
            }
            None => {
                let _ = sub.own.ack_cumulative(&topic.state.ledgers, to, &[]);
            }
        }
        let at = mark_delete(&topic.state, sub);
        sub.rewind(at);
        topic.trim(seat, now);
        topic.mark_dirty(&mut self.dirty);
        self.settle_unacked(cx, slot, sub_slot);
        true
    }

    /// The n-th entry that a subscription has not acknowledged, from 1; the last one, if `last` and there are fewer.
    fn nth_unacked(&self, slot: u32, sub_slot: u32, number: u64, last: bool) -> Option<Position> {
        let topic = self.topics.get(slot as usize)?;
        let sub = topic.subs.get(sub_slot as usize)?;
        let acks = sub.acks(&topic.state);
        let ledgers = &topic.state.ledgers;
        if number == 0 {
            return None;
        }
        if number > acks.backlog(ledgers, topic.confirmed) {
            return last.then_some(topic.confirmed);
        }
        let rank = |at| ledgers.entries_between(Position::EARLIEST, at);
        // Ranks count from 0; entries acknowledged in front of the one wanted push it back.
        let mut wanted = rank(acks.mark_delete()) + number - 1;
        for (first, end) in acks.ranges() {
            let first = rank(first).saturating_sub(1);
            if first > wanted {
                break;
            }
            wanted += rank(end) - first;
        }
        topic.position_at(wanted)
    }
}

impl Topic {
    /// The mark-delete position of a cursor that is to start at `target`.
    pub(super) fn start(&self, target: CursorTarget) -> Position {
        match target.position {
            Position::LATEST => self.confirmed,
            at if at < Position::new(0, 0) => self.seek_position(at),
            at if target.excluded && self.state.ledgers.contains(at) => at.min(self.confirmed),
            at => self.seek_position(at),
        }
    }
}

/// The properties of a subscription.
pub(super) fn properties_of(state: &TopicState, sub: &Subscription) -> Vec<(String, String)> {
    sub.cursor
        .and_then(|cursor| state.cursors.get(&cursor))
        .map(|cursor| cursor.properties.clone())
        .unwrap_or_default()
}
