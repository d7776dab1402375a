//! Acknowledgment and redelivery.

use vela_proto::ServerError;

use super::Topics;
use super::dispatch::stored_batch_size;
use super::openings::ConsumerSeat;
use super::subscription::{Held, Subscription, mark_delete};
use crate::engine::context::Context;
use crate::engine::message::{AckedId, ClientRef, Message};
use crate::engine::session::throttling::hold;
use crate::engine::time::Now;
use crate::store::log::{self, Position, Record};
use vela_limiter::Reason;

type Refusal = Option<(ServerError, &'static str)>;

const BEYOND: &str = "the position is beyond the last message of the topic";
const BEHIND: &str = "the position is behind the mark-delete position of the subscription";
const WIDE_SET: &str = "the ack set is wider than the batch can be";
/// Words of an ack set that are taken for an entry whose batch size is not at hand: twice the batch that clients make by
/// default. What a set may hold on to in memory is bounded by it.
const UNCHECKED_WORDS: usize = 32;
/// Words of an ack set that are taken at all, 65,536 messages: an entry may claim far more messages than it holds, and what
/// it claims must not decide how much memory and log a set takes.
pub(super) const MAX_WORDS: usize = 1024;
const RESETTING: &str = "the subscription is being reset";

impl Topics {
    /// ACK. The answer, if one was asked for, says that the acknowledgment is on disk.
    pub(super) fn ack(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        ids: Vec<AckedId>,
        cumulative: bool,
        request_id: Option<u64>,
        now: Now,
    ) {
        let Some(ConsumerSeat {
            topic: slot,
            sub: sub_slot,
            consumer,
        }) = self.consumer_seat(client)
        else {
            return;
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let lane = topic.lane;
        let Some(sub) = topic.subs.get(sub_slot as usize) else {
            return;
        };
        cx.counters.acks += ids.len() as u64;
        let refusal = if sub.resetting {
            Some((ServerError::UnknownError, RESETTING))
        } else if cumulative {
            // Anything but one id, and any id on a Shared subscription, is accepted and means nothing.
            match ids.as_slice() {
                [id] if !sub.shared => self.ack_cumulative(slot, sub_slot, id, now),
                _ => None,
            }
        } else {
            self.ack_individually(cx, slot, sub_slot, consumer, ids, now)
        };
        self.announce_end(cx, slot, sub_slot);
        if let Some(seat) = self.lanes.get_mut(lane)
            && seat.is_full()
            && seat.hold(client.session)
        {
            let session = client.session;
            cx.post(session.core, hold(session, Reason::PendingBytes));
        }
        if let Some(request_id) = request_id {
            self.after_log(
                cx,
                lane,
                client.session.core,
                Message::Acked {
                    client,
                    request_id,
                    error: refusal,
                },
            );
        }
    }

    fn ack_cumulative(&mut self, slot: u32, sub_slot: u32, id: &AckedId, now: Now) -> Refusal {
        let topic = self.topics.get_mut(slot as usize)?;
        let seat = self.lanes.get_mut(topic.lane)?;
        let sub = topic.subs.get_mut(sub_slot as usize)?;
        if id.position > topic.confirmed {
            return Some((ServerError::UnknownError, BEYOND));
        }
        if id.ack_set.len() > UNCHECKED_WORDS {
            return Some((ServerError::UnknownError, WIDE_SET));
        }
        let before = mark_delete(&topic.state, sub);
        let outcome = match sub.cursor {
            Some(cursor) => {
                let outcome = topic
                    .state
                    .ack_cumulative(cursor, id.position, &id.ack_set)?;
                if outcome.is_ok_and(|outcome| outcome.newly_acked || outcome.cleared > 0) {
                    seat.append(&Record::MarkDeleted {
                        topic: topic.state.id,
                        cursor,
                        to: id.position,
                        ack_set: id.ack_set.as_slice().into(),
                    });
                }
                outcome
            }
            None => sub
                .own
                .ack_cumulative(&topic.state.ledgers, id.position, &id.ack_set),
        };
        let after = mark_delete(&topic.state, sub);
        sub.read = sub.read.max(after);
        if before.ledger != after.ledger {
            topic.trim(seat, now);
        }
        outcome.err().map(|_| (ServerError::UnknownError, BEHIND))
    }

    fn ack_individually(
        &mut self,
        cx: &Context,
        slot: u32,
        sub_slot: u32,
        consumer: u32,
        ids: Vec<AckedId>,
        now: Now,
    ) -> Refusal {
        let topic = self.topics.get_mut(slot as usize)?;
        let seat = self.lanes.get_mut(topic.lane)?;
        let sub = topic.subs.get_mut(sub_slot as usize)?;
        let before = mark_delete(&topic.state, sub);
        let mut refusal = None;
        let mut changed = Vec::new();
        let mut messages = 0_u64;
        for id in ids {
            if id.position > topic.confirmed {
                refusal = Some((ServerError::UnknownError, BEYOND));
                continue;
            }
            let batch_size = match id.ack_set.len() {
                0 => None,
                words if words > MAX_WORDS => {
                    refusal = Some((ServerError::UnknownError, WIDE_SET));
                    continue;
                }
                words => {
                    let size = sub.batch_size(id.position, consumer);
                    let size = size.or_else(|| stored_batch_size(&topic.state, seat, id.position));
                    if size.is_none() && words > UNCHECKED_WORDS {
                        refusal = Some((ServerError::UnknownError, WIDE_SET));
                        continue;
                    }
                    size
                }
            };
            let id = log::AckedId {
                position: id.position,
                ack_set: id.ack_set.into(),
                batch_size,
            };
            let outcome = match sub.cursor {
                Some(cursor) => topic.state.ack(cursor, &id).unwrap_or_default(),
                None if id.ack_set.is_empty() => sub.own.ack(&topic.state.ledgers, id.position),
                None => {
                    sub.own
                        .ack_partial(&topic.state.ledgers, id.position, &id.ack_set, batch_size)
                }
            };
            let open = sub
                .acks(&topic.state)
                .ack_set(id.position)
                .map(<[i64]>::to_vec);
            messages +=
                u64::from(sub.release(id.position, consumer, outcome.newly_acked, open.as_deref()));
            if outcome.newly_acked || !id.ack_set.is_empty() {
                changed.push(id);
            }
        }
        if let Some(entry) = sub.consumers.get_mut(consumer as usize) {
            entry.acked.add(messages, now.ms);
        }
        if let Some(cursor) = sub.cursor
            && !changed.is_empty()
        {
            seat.append_acks(topic.state.id, cursor, &changed);
        }
        let freed = sub.unblock(cx);
        let after = mark_delete(&topic.state, sub);
        sub.read = sub.read.max(after);
        if before.ledger != after.ledger {
            topic.trim(seat, now);
        }
        if freed {
            topic.mark_dirty(&mut self.dirty);
        }
        refusal
    }

    /// REDELIVER_UNACKNOWLEDGED_MESSAGES.
    pub(super) fn redeliver(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        ids: Option<Vec<Position>>,
        epoch: Option<u64>,
    ) {
        let Some(ConsumerSeat {
            topic,
            sub,
            consumer,
        }) = self.consumer_seat(client)
        else {
            return;
        };
        let Some(topic) = self.topics.get_mut(topic as usize) else {
            return;
        };
        let Some(sub) = topic.subs.get_mut(sub as usize) else {
            return;
        };
        let index = consumer as usize;
        if sub.shared {
            sub.give_back(index, ids);
            sub.unblock(cx);
        } else {
            // Exclusive: everything unacknowledged comes again, stamped with the new epoch so that older deliveries can be told apart.
            sub.read = mark_delete(&topic.state, sub);
            if let Some(entry) = sub.consumers.get_mut(index)
                && epoch.is_some()
            {
                entry.epoch = epoch;
            }
        }
        topic.mark_dirty(&mut self.dirty);
    }
}

impl Subscription {
    /// The batch size of an entry that a consumer holds.
    fn batch_size(&self, position: Position, consumer: u32) -> Option<u32> {
        let held = |consumer: &super::subscription::Consumer| {
            consumer.pending.get(&position).map(|held| held.batch)
        };
        let own = self.consumers.get(consumer as usize).and_then(held);
        own.or_else(|| {
            self.consumers
                .iter()
                .find_map(|(_, consumer)| held(consumer))
        })
    }

    /// Takes an acknowledged entry, or the acknowledged part of it, off whoever holds it. Returns the messages this concerned.
    fn release(
        &mut self,
        position: Position,
        consumer: u32,
        whole: bool,
        open: Option<&[i64]>,
    ) -> u32 {
        self.redelivered.remove(&position);
        if !self.shared {
            return u32::from(whole);
        }
        let own = self
            .consumers
            .get(consumer as usize)
            .is_some_and(|c| c.pending.contains_key(&position));
        let holder = if own {
            self.consumers.get_mut(consumer as usize)
        } else {
            self.consumers
                .iter_mut()
                .map(|(_, c)| c)
                .find(|c| c.pending.contains_key(&position))
        };
        let Some(holder) = holder else {
            if whole {
                self.replay.remove(&position);
                self.chunks.unpark(position);
            }
            return u32::from(whole);
        };
        let Some(held) = holder
            .pending
            .get_mut(&position)
            .map(|held| &mut held.permits)
        else {
            return 0;
        };
        let left = match open {
            Some(set) if !whole => set
                .iter()
                .map(|word| word.count_ones())
                .sum::<u32>()
                .min(*held),
            _ if whole => 0,
            // Nothing changed: acknowledged before, or no entry at all.
            _ => *held,
        };
        let freed = *held - left;
        *held = left;
        if left == 0 {
            holder.pending.remove(&position);
        }
        holder.unacked = holder.unacked.saturating_sub(u64::from(freed));
        self.unacked = self.unacked.saturating_sub(u64::from(freed));
        freed
    }

    /// Puts entries that a consumer holds back into the replay set; `None` = all of them.
    fn give_back(&mut self, index: usize, ids: Option<Vec<Position>>) {
        let Some(consumer) = self.consumers.get_mut(index) else {
            return;
        };
        let back: Vec<(Position, Held)> = match ids {
            None => std::mem::take(&mut consumer.pending).into_iter().collect(),
            Some(ids) => ids
                .into_iter()
                .filter_map(|id| consumer.pending.remove(&id).map(|held| (id, held)))
                .collect(),
        };
        for (position, held) in back {
            let messages = held.permits;
            consumer.unacked = consumer.unacked.saturating_sub(u64::from(messages));
            self.unacked = self.unacked.saturating_sub(u64::from(messages));
            self.replay.insert(position);
            *self.redelivered.entry(position).or_insert(0) += 1;
        }
    }
}
