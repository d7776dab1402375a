//! Dispatch: which entry goes to which consumer, and what it costs.
//!
//! The dispatcher of the subscription's type decides who gets an entry; the rest is the same for all types. The entry's permits P are fixed, it is
//! admitted to the pending acks, P is booked on the consumer, and the MESSAGE says the same P ([`super::permits`]).

use bytes::Bytes;
use vela_codec::entry::Entry;

use super::chunks::Chunk;
use super::delayed::{self, Rule};
use super::dispatcher::{Candidate, Choice};
use super::lanes::LaneSeat;
use super::permits::Permits;
use super::sticky::key_hash;
use super::subscription::Subscription;
use super::unacked::CoreUnacked;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Delivery, Message};
use crate::engine::time::Now;
use crate::store::log::{AckedId, Position, Read, ReadHint, TopicState};

/// Entries that one subscription hands out before others have their turn.
const TURN_ENTRIES: usize = 4096;
/// Bookkeeping that a small entry costs on its way, counted against the consumer's window beside its bytes.
pub(in crate::engine) const ENTRY_COST: usize = 64;
/// Since this protocol version a peer verifies the checksum of a MESSAGE correctly; older ones get none.
const CHECKSUM_VERSION: i32 = 11;
/// Since this protocol version a peer understands batches.
const BATCH_VERSION: i32 = 4;

/// What the metadata of a stored entry means for dispatch.
pub(super) enum Content {
    /// Messages in the entry; `batch` = it is a batch, be it of one; `chunk` = it is a part of a message.
    Messages {
        count: u32,
        batch: bool,
        chunk: Option<Chunk>,
        /// The hash of its key, if that was asked for.
        key_hash: u32,
        /// When it wants to be delivered, milliseconds since the Unix epoch.
        deliver_at: Option<u64>,
    },
    /// Nothing a client may see: a marker, or metadata nobody can read. It is acknowledged on the spot.
    Hidden,
}

/// `keyed` = the key counts.
pub(super) fn content(data: &[u8], keyed: bool) -> Content {
    let Some(metadata) = Entry::parse(data)
        .ok()
        .and_then(|entry| entry.metadata_view())
    else {
        return Content::Hidden;
    };
    if metadata.marker_type.is_some() {
        return Content::Hidden;
    }
    let count = metadata.num_messages_in_batch;
    Content::Messages {
        count: count.unwrap_or(1).max(1) as u32,
        batch: count.is_some(),
        chunk: Chunk::of(&metadata),
        key_hash: if keyed { key_hash(&metadata) } else { 0 },
        deliver_at: metadata
            .deliver_at_time
            .and_then(|at| u64::try_from(at).ok()),
    }
}

/// Where an entry that is handed out comes from.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Source {
    /// The dispatcher had put it aside.
    Aside,
    /// It came back.
    Replay,
    /// Its time has come.
    Due,
    /// It was never read.
    New,
}

impl Topics {
    /// Hands out what consumers have credit for.
    pub(super) fn dispatch(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.is_volatile() {
            return topic.settle_volatile();
        }
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let mut again = false;
        let mut hidden_acked = false;
        let partition = topic.name.partition();
        let Topic {
            state,
            subs,
            confirmed,
            ..
        } = topic;
        let mut others = false;
        let limits = topic.limits.unwrap_or_default();
        let rule = Rule {
            enabled: limits.delayed,
            tick_ms: limits.delay_tick_ms.max(1),
            strict: cx.settings.is_delayed_delivery_deliver_at_time_strict,
            limit: delayed::limit(&self.delays, &cx.settings),
        };
        for (sub_slot, sub) in subs.iter_mut() {
            if sub.resetting || sub.roster.is_empty() {
                continue;
            }
            let key = (slot, sub_slot as u32);
            others |= self.unacked.settle(cx, key, sub);
            let mut run = Run {
                unacked: &mut self.unacked,
                key,
                state,
                seat,
                sub,
                confirmed: *confirmed,
                partition,
                hidden: Vec::new(),
                rule,
            };
            again |= run.dispatch(cx, slot, now);
            let hidden = std::mem::take(&mut run.hidden);
            sub.set_timer(&mut self.delays, key, &rule, now);
            if !hidden.is_empty() {
                acknowledge_hidden(state, seat, sub, &hidden);
                hidden_acked = true;
            }
        }
        if hidden_acked {
            topic.trim(seat, now);
        }
        if again {
            topic.mark_dirty(&mut self.dirty);
        }
        if others {
            self.wake_stopped();
        }
    }

    /// FLOW: credit in messages.
    pub(super) fn flow(&mut self, client: ClientRef, permits: u32) {
        let Some((slot, index, sub)) = self.subscription_of(client) else {
            // Credit for somebody who is gone is nobody's.
            return;
        };
        sub.roster.flow(index, permits);
        self.mark(slot);
    }

    /// The session has written delivered bytes: the consumer may be sent more.
    pub(super) fn written(&mut self, client: ClientRef, bytes: u32) {
        let Some((slot, index, sub)) = self.subscription_of(client) else {
            return;
        };
        if sub.roster.written(index, bytes as usize) {
            self.mark(slot);
        }
    }
}

/// Entries that no client may see count as acknowledged.
fn acknowledge_hidden(
    state: &mut TopicState,
    seat: &mut LaneSeat,
    sub: &mut Subscription,
    hidden: &[Position],
) {
    let ids: Vec<AckedId<'_>> = hidden.iter().copied().map(AckedId::whole).collect();
    match sub.cursor {
        Some(cursor) => {
            for id in &ids {
                state.ack(cursor, id);
            }
            seat.append_acks(state.id, cursor, &ids);
        }
        None => {
            for id in hidden {
                sub.own.ack(&state.ledgers, *id);
            }
        }
    }
}

/// An entry that goes to a consumer.
struct Chosen {
    data: Bytes,
    /// Messages in it.
    count: u32,
    batch: bool,
    /// What the delivery costs.
    permits: Permits,
    ack_set: Vec<i64>,
}

/// Messages in a stored entry, at least one.
pub(super) fn stored_messages(data: &[u8]) -> u32 {
    match content(data, false) {
        Content::Messages { count, .. } => count,
        Content::Hidden => 1,
    }
}

/// The batch size of a stored entry, if it is in memory and a batch.
pub(super) fn stored_batch_size(
    state: &TopicState,
    seat: &mut LaneSeat,
    position: Position,
) -> Option<u32> {
    let hint = &mut ReadHint::default();
    match seat
        .lane
        .read_entry(&state.ledgers, state.id, position, hint)
    {
        Read::Entry(data) => match content(&data, false) {
            Content::Messages { count, .. } => Some(count),
            Content::Hidden => None,
        },
        _ => None,
    }
}

/// One subscription's turn.
struct Run<'a> {
    state: &'a TopicState,
    seat: &'a mut LaneSeat,
    sub: &'a mut Subscription,
    unacked: &'a mut CoreUnacked,
    /// Topic and subscription.
    key: (u32, u32),
    confirmed: Position,
    partition: i32,
    hidden: Vec<Position>,
    /// What is delayed.
    rule: Rule,
}

impl Run<'_> {
    /// True if there is more to do and only the turn is over.
    fn dispatch(&mut self, cx: &mut Context, slot: u32, now: Now) -> bool {
        let searches = self.sub.dispatcher.tracks_pending() && self.look_for_due(slot, now);
        let sub = &mut *self.sub;
        let mark_delete = sub.acks(self.state).mark_delete();
        sub.dispatcher
            .begin_run(&sub.roster, mark_delete, &cx.settings);
        let full = self.sub.delayed.is_full(&self.rule);
        let more = self.hand_out(cx, slot, now);
        // What has come due meanwhile takes the place of what has gone.
        let room = full && !self.sub.delayed.is_full(&self.rule);
        self.sub.dispatcher.end_run();
        self.sub.roster.settle();
        more || searches || room
    }

    /// Finds what has come due. True if there is more to look at.
    fn look_for_due(&mut self, slot: u32, now: Now) -> bool {
        if self.sub.delayed.is_empty() {
            return false;
        }
        self.sub.delayed.promote(&self.rule, now.wall_ms);
        delayed::read_on(
            self.state,
            self.seat,
            self.sub,
            slot,
            &self.rule,
            now.wall_ms,
        )
    }

    fn hand_out(&mut self, cx: &mut Context, slot: u32, now: Now) -> bool {
        let keyed = self.sub.dispatcher.is_keyed();
        for _ in 0..TURN_ENTRIES {
            if !self.sub.dispatcher.is_ready(&self.sub.roster) {
                return false;
            }
            let Some((position, source)) = self.next() else {
                return false;
            };
            let hint = if source == Source::New {
                &mut self.sub.hint
            } else {
                &mut self.sub.replay_hint
            };
            let data = match self.seat.lane.read_entry(
                &self.state.ledgers,
                self.state.id,
                position,
                hint,
            ) {
                Read::Entry(data) => data,
                Read::Miss => {
                    self.seat.readers.insert(slot);
                    return false;
                }
                Read::Gone => {
                    self.taken(position, source);
                    self.sub.redelivered.remove(&position);
                    continue;
                }
                Read::Corrupt => {
                    // Never skipped silently: delivery stops here, the log says where, and a restart checks the file.
                    tracing::error!(topic = %self.state.name, %position, subscription = %self.sub.name, "a stored entry cannot be read");
                    return false;
                }
            };
            let Content::Messages {
                count,
                batch,
                chunk,
                key_hash,
                deliver_at,
            } = content(&data, keyed)
            else {
                self.taken(position, source);
                self.sub.redelivered.remove(&position);
                self.hidden.push(position);
                continue;
            };
            if !self.sub.dispatcher.wants(key_hash) {
                // Nobody's now, and not acknowledged: another consumer may want it.
                self.taken(position, source);
                continue;
            }
            if source == Source::New
                && let Some(at) = deliver_at
                && self.rule.delays(at, now.wall_ms)
                && self.sub.dispatcher.tracks_pending()
            {
                // It costs nothing, and what lies behind it goes on.
                self.taken(position, source);
                self.sub.delayed.put_aside(position, at, self.rule.limit);
                continue;
            }
            let ack_set = self
                .sub
                .acks(self.state)
                .ack_set(position)
                .map(<[i64]>::to_vec)
                .unwrap_or_default();
            let Some(permits) = Permits::finalize(count, &ack_set) else {
                self.taken(position, source);
                self.sub.redelivered.remove(&position);
                self.hidden.push(position);
                continue;
            };
            let candidate = Candidate {
                position,
                chunk,
                key_hash,
            };
            let sub = &mut *self.sub;
            let choice = sub
                .dispatcher
                .choose(&mut sub.roster, &candidate, &cx.settings);
            let index = match choice {
                Choice::Send(index) => index,
                Choice::Nobody => return false,
                Choice::Aside => {
                    if source != Source::Aside {
                        self.taken(position, source);
                    }
                    continue;
                }
            };
            self.taken(position, source);
            self.sub.dispatcher.sent(&candidate, index);
            let chosen = Chosen {
                data,
                count,
                batch,
                permits,
                ack_set,
            };
            self.send(cx, index, &candidate, chosen, now);
        }
        true
    }

    /// The next entry to hand out: what was put aside and can go now; what came back or has come due, in the order of the log; then what was
    /// never read.
    fn next(&mut self) -> Option<(Position, Source)> {
        if let Some(position) = self.aside() {
            return Some((position, Source::Aside));
        }
        let goes_on = !self.sub.blocked && !self.sub.stopped && self.sub.dispatcher.reads_on();
        let due = if goes_on { self.due() } else { None };
        while let Some(position) = self.sub.replay.first().copied() {
            if due.is_some_and(|due| due < position) {
                break;
            }
            if !self.sub.acks(self.state).is_acked(position) {
                return Some((position, Source::Replay));
            }
            self.sub.replay.pop_first();
            self.sub.redelivered.remove(&position);
        }
        if let Some(due) = due {
            return Some((due, Source::Due));
        }
        if !goes_on {
            return None;
        }
        let next = self
            .sub
            .acks(self.state)
            .next_unacked(&self.state.ledgers, self.sub.read)?;
        (next <= self.confirmed).then_some((next, Source::New))
    }

    /// The first entry that is due.
    fn due(&mut self) -> Option<Position> {
        while let Some(position) = self.sub.delayed.first_due() {
            if !self.sub.acks(self.state).is_acked(position) {
                return Some(position);
            }
            self.sub.delayed.take(position);
        }
        None
    }

    /// The first entry put aside that can go now.
    fn aside(&mut self) -> Option<Position> {
        loop {
            let position = self.sub.dispatcher.aside(&self.sub.roster)?;
            if !self.sub.acks(self.state).is_acked(position) {
                return Some(position);
            }
            self.sub.dispatcher.forget(position);
            self.sub.redelivered.remove(&position);
        }
    }

    fn taken(&mut self, position: Position, source: Source) {
        match source {
            Source::Aside => {
                self.sub.dispatcher.forget(position);
            }
            Source::Replay => {
                self.sub.replay.remove(&position);
            }
            Source::Due => self.sub.delayed.take(position),
            Source::New => self.sub.read = position,
        }
    }

    /// Admits an entry to the pending acks, books its permits, and posts it. An entry that is not admitted costs nothing.
    fn send(
        &mut self,
        cx: &mut Context,
        index: u32,
        candidate: &Candidate,
        chosen: Chosen,
        now: Now,
    ) {
        let position = candidate.position;
        let Chosen {
            data,
            count,
            batch,
            permits,
            ack_set,
        } = chosen;
        let tracks = self.sub.dispatcher.tracks_pending();
        let sub = &mut *self.sub;
        let slot = sub.dispatcher.slot(candidate);
        if !sub.can_read(cx, index, batch) {
            // It goes to whoever stays.
            if tracks {
                sub.put_back(position, slot);
            }
            return;
        }
        if tracks && !sub.pending.admit(position, index, permits, count, slot) {
            // Somebody holds it already, and it comes back if that one gives it back.
            return;
        }
        if !sub.dispatcher.admit(index, candidate) {
            sub.pending.take(position, index);
            return sub.put_back(position, slot);
        }
        let Some(consumer) = sub.roster.get(index) else {
            return;
        };
        let delivery = Delivery {
            position,
            partition: self.partition,
            redelivery_count: if tracks {
                sub.redelivered.get(&position).copied().unwrap_or(0)
            } else {
                0
            },
            ack_set,
            epoch: if tracks { None } else { consumer.epoch },
            permits: permits.get(),
            data,
        };
        sub.deliver(cx, index, permits, count, delivery, now);
        if tracks {
            let limit = u64::from(cx.settings.max_unacked_messages_per_consumer);
            if limit > 0 && sub.pending.unacked_of(index) >= limit {
                sub.roster.block(index);
            }
            let limit = u64::from(cx.settings.max_unacked_messages_per_subscription);
            if limit > 0 && sub.pending.unacked() >= limit {
                sub.blocked = true;
            }
            // More is out than before: that lets nobody go on.
            self.unacked.settle(cx, self.key, sub);
        }
    }
}

impl Subscription {
    /// Can a consumer's peer read the entry? One that cannot loses its connection.
    pub(super) fn can_read(&mut self, cx: &mut Context, index: u32, batch: bool) -> bool {
        let Some(consumer) = self.roster.get(index) else {
            return false;
        };
        if !batch || consumer.version >= BATCH_VERSION {
            return true;
        }
        let session = consumer.client.session;
        self.roster.bar(index);
        cx.post(session.core, Message::Disconnect { session });
        false
    }

    /// Books the permits of an entry of `count` messages, and posts it.
    pub(super) fn deliver(
        &mut self,
        cx: &mut Context,
        index: u32,
        permits: Permits,
        count: u32,
        mut delivery: Delivery,
        now: Now,
    ) {
        let Some(consumer) = self.roster.get_mut(index) else {
            return;
        };
        let client = consumer.client;
        if consumer.version < CHECKSUM_VERSION {
            delivery.data = strip_checksum(delivery.data);
        }
        let (messages, bytes) = (u64::from(permits.get()), delivery.data.len());
        consumer.sent.add(messages, now.ms);
        consumer.sent_bytes.add(bytes as u64, now.ms);
        if delivery.redelivery_count > 0 {
            consumer.redelivered.add(messages, now.ms);
        }
        self.roster
            .charge(index, permits, count, bytes + ENTRY_COST);
        self.roster.posted(index, permits.get());
        cx.post(client.session.core, Message::Deliver { client, delivery });
    }
}

fn strip_checksum(data: Bytes) -> Bytes {
    match Entry::parse(&data) {
        Ok(entry) => {
            let kept = entry.without_checksum().len();
            let from = data.len().saturating_sub(kept);
            data.slice(from..)
        }
        Err(_) => data,
    }
}
