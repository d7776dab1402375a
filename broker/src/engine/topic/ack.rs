//! Acknowledgment and redelivery.

use vela_proto::ServerError;

use super::Topics;
use super::dispatch::stored_batch_size;
use super::openings::ConsumerSeat;
use super::pending::Held;
use super::subscription::{Subscription, mark_delete};
use crate::engine::context::Context;
use crate::engine::message::{AckedId, ClientRef, Message};
use crate::engine::session::throttling::hold;
use crate::engine::time::Now;
use crate::store::log::{self, Position, Record, TopicState};
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

/// Is this a part of a batch, where only whole entries are acknowledged?
fn is_partial(cx: &Context, ack_set: &[i64]) -> bool {
    !cx.settings.acknowledgment_at_batch_index_level_enabled
        && ack_set.iter().any(|word| *word != 0)
}

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
        cx.counters.acks += ids.len() as u64;
        if topic.is_volatile() {
            return self.ack_volatile(cx, client, ids.len(), request_id, now);
        }
        let lane = topic.lane;
        let Some(sub) = topic.subs.get(sub_slot as usize) else {
            return;
        };
        let refusal = if sub.resetting {
            Some((ServerError::UnknownError, RESETTING))
        } else if cumulative {
            // Anything but one id, and any id on a Shared subscription, is accepted and means nothing.
            match ids.as_slice() {
                [id] if !sub.dispatcher.tracks_pending() => {
                    self.ack_cumulative(cx, slot, sub_slot, id, now)
                }
                _ => None,
            }
        } else {
            let refusal = self.ack_individually(cx, slot, sub_slot, consumer, ids, now);
            self.settle_unacked(cx, slot, sub_slot);
            refusal
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

    fn ack_cumulative(
        &mut self,
        cx: &Context,
        slot: u32,
        sub_slot: u32,
        id: &AckedId,
        now: Now,
    ) -> Refusal {
        let topic = self.topics.get_mut(slot as usize)?;
        let seat = self.lanes.get_mut(topic.lane)?;
        let sub = topic.subs.get_mut(sub_slot as usize)?;
        if id.position > topic.confirmed {
            return Some((ServerError::UnknownError, BEYOND));
        }
        let words = id.ack_set.len();
        let wide = words > UNCHECKED_WORDS
            && (words > MAX_WORDS
                || stored_batch_size(&topic.state, seat, id.position)
                    .is_none_or(|size| words > size.div_ceil(64) as usize));
        let wide = wide.then_some((ServerError::UnknownError, WIDE_SET));
        let before = mark_delete(&topic.state, sub);
        let id = if wide.is_some() || is_partial(cx, &id.ack_set) {
            // Without acknowledgment of batch indexes the batch stays, and what is in front of it goes. Likewise if its set is not taken.
            let position = topic.state.ledgers.prev(id.position);
            if position <= before {
                return wide;
            }
            &AckedId {
                position,
                ack_set: Vec::new(),
            }
        } else {
            id
        };
        let in_part =
            |state: &TopicState, sub: &Subscription| sub.acks(state).ack_set(id.position).is_some();
        let was_in_part = in_part(&topic.state, sub);
        let outcome = match sub.cursor {
            Some(cursor) => {
                let outcome = topic
                    .state
                    .ack_cumulative(cursor, id.position, &id.ack_set)?;
                // A first set is kept whatever it counts as cleared: the size of the batch is not known here.
                let first_set = !was_in_part && in_part(&topic.state, sub);
                if outcome.is_ok_and(|o| o.newly_acked || o.cleared > 0 || first_set) {
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
        let behind = outcome.err().map(|_| (ServerError::UnknownError, BEHIND));
        behind.or(wide)
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
        let mut owners = Vec::new();
        let mut unblocked = false;
        for id in ids {
            if id.position > topic.confirmed {
                refusal = Some((ServerError::UnknownError, BEYOND));
                continue;
            }
            if is_partial(cx, &id.ack_set) {
                continue;
            }
            let batch_size = match id.ack_set.len() {
                0 => None,
                words if words > MAX_WORDS => {
                    refusal = Some((ServerError::UnknownError, WIDE_SET));
                    continue;
                }
                words => {
                    let size = sub.pending.get(id.position).map(|held| held.batch);
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
            // What a reader holds of a ledger that is gone is done with.
            let done = outcome.newly_acked
                || (sub.pending.get(id.position).is_some()
                    && !topic.state.ledgers.contains(id.position));
            let released = sub.release(id.position, done, open.as_deref());
            messages += u64::from(released.messages);
            unblocked |= released.lets_go;
            if let Some(owner) = released.holder
                && (owners.last() != Some(&owner))
            {
                owners.push(owner);
            }
            if outcome.newly_acked || !id.ack_set.is_empty() {
                changed.push(id);
            }
        }
        if let Some(entry) = sub.roster.get_mut(consumer) {
            entry.acked.add(messages, now.ms);
        }
        if let Some(cursor) = sub.cursor
            && !changed.is_empty()
        {
            seat.append_acks(topic.state.id, cursor, &changed);
        }
        for owner in owners {
            unblocked |= sub.unblock(cx, Some(owner));
        }
        let after = mark_delete(&topic.state, sub);
        sub.read = sub.read.max(after);
        if before.ledger != after.ledger {
            topic.trim(seat, now);
        }
        if unblocked {
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
        if topic.is_volatile() {
            // Nothing is kept that could come again.
            return;
        }
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        if sub.dispatcher.tracks_pending() {
            sub.give_back(consumer, ids);
            sub.unblock(cx, Some(consumer));
            // Who gives something back goes on at once, not at half the limit only.
            let limit = u64::from(cx.settings.max_unacked_messages_per_consumer);
            if sub.pending.unacked_of(consumer) < limit {
                sub.roster.unblock(consumer);
            }
        } else {
            // Everything unacknowledged comes again, stamped with the new epoch so that older deliveries can be told apart.
            if let Some(entry) = sub.roster.get_mut(consumer)
                && epoch.is_some()
            {
                if epoch < entry.epoch {
                    // Overtaken by a later one.
                    return;
                }
                entry.epoch = epoch;
            }
            if !sub.dispatcher.is_served(consumer) {
                // A Failover consumer that waits has nothing to give back, and a change on its way starts over anyway.
                return;
            }
            let from = mark_delete(&topic.state, sub);
            sub.rewind(from);
        }
        topic.mark_dirty(&mut self.dirty);
        self.settle_unacked(cx, slot, sub_slot);
    }
}

/// What an acknowledgment has done to what is held.
#[derive(Default)]
struct Released {
    /// Who held the entry.
    holder: Option<u32>,
    /// The messages it concerned.
    messages: u32,
    /// Something that waits can go now.
    lets_go: bool,
}

impl Subscription {
    /// Takes an acknowledged entry, or the acknowledged part of it, off whoever holds it.
    fn release(&mut self, position: Position, whole: bool, open: Option<&[i64]>) -> Released {
        self.redelivered.remove(&position);
        if !self.dispatcher.tracks_pending() {
            return Released {
                messages: u32::from(whole),
                ..Released::default()
            };
        }
        let left = match open {
            _ if whole => 0,
            Some(set) => set.iter().map(|word| word.count_ones()).sum(),
            // Nothing changed: acknowledged before, or no entry at all.
            None => u32::MAX,
        };
        match self.pending.shrink(position, left) {
            Some((held, messages)) => Released {
                holder: Some(held.owner),
                messages,
                lets_go: held.open == 0 && self.dispatcher.released(held.owner, held.slot),
            },
            None => {
                if whole {
                    self.replay.remove(&position);
                    self.delayed.take(position);
                }
                Released {
                    holder: None,
                    messages: u32::from(whole),
                    lets_go: whole && self.dispatcher.forget(position),
                }
            }
        }
    }

    /// Puts entries that a consumer holds back into the replay set; `None` = all of them.
    fn give_back(&mut self, consumer: u32, ids: Option<Vec<Position>>) {
        let back: Vec<(Position, Held)> = match ids {
            None => self.pending.take_all(consumer),
            Some(ids) => ids
                .into_iter()
                .filter_map(|id| self.pending.take(id, consumer).map(|held| (id, held)))
                .collect(),
        };
        for (position, held) in back {
            self.dispatcher.released(consumer, held.slot);
            self.put_back(position, held.slot);
            *self.redelivered.entry(position).or_insert(0) += 1;
        }
    }
}
