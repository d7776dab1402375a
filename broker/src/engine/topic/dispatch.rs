//! Dispatch: which entry goes to which consumer, and what it costs.
//!
//! An entry is decided on, admitted to the consumer's pending acks, and then gets its permits P: the messages in it that are still to be
//! delivered, fixed once. That P leaves the consumer's balance, counts as unacknowledged, and is written into the MESSAGE (PIP-491). Nothing
//! computes it again. Balances go below zero where a batch is larger than the credit, and are never clamped.

use bytes::Bytes;
use vela_codec::entry::Entry;

use super::chunks::Chunk;
use super::lanes::LaneSeat;
use super::subscription::{Held, Subscription};
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientKey, ClientRef, Delivery, Message};
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
enum Content {
    /// Messages in the entry; `batch` = it is a batch, be it of one; `chunk` = it is a part of a message.
    Messages {
        count: u32,
        batch: bool,
        chunk: Option<Chunk>,
    },
    /// Nothing a client may see: a marker, or metadata nobody can read. It is acknowledged on the spot.
    Hidden,
}

fn content(data: &[u8]) -> Content {
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
    }
}

/// Messages of a batch of `count` that a set leaves open (bit 1).
fn open_messages(ack_set: &[i64], count: u32) -> u32 {
    let mut left = u64::from(count);
    let mut open = 0;
    for word in ack_set {
        let bits = left.min(64);
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1_u64 << bits) - 1
        };
        open += (*word as u64 & mask).count_ones();
        left -= bits;
    }
    open
}

impl Subscription {
    /// The consumer that the next entry goes to: of the best priority that has one with permits, in turns.
    fn pick(&mut self, turn_size: u32) -> Option<usize> {
        let available = |sub: &Subscription, at: usize| {
            sub.order
                .get(at)
                .and_then(|index| sub.consumers.get(*index))
                .filter(|c| c.available())
                .map(|c| c.priority)
        };
        let count = self.order.len();
        let mut best: Option<(i32, usize)> = None;
        // From the consumer whose turn it is; if its turn is over, from the next one.
        let first = if self.turn_left > 0 {
            self.turn
        } else {
            self.turn + 1
        };
        for step in 0..count {
            let at = (first + step) % count;
            if let Some(priority) = available(self, at)
                && best.is_none_or(|(p, _)| priority < p)
            {
                best = Some((priority, at));
            }
        }
        let (_, at) = best?;
        if at != self.turn || self.turn_left == 0 {
            self.turn = at;
            self.turn_left = turn_size.max(1);
        }
        self.turn_left -= 1;
        self.order.get(at).copied()
    }
}

/// Where an entry that is handed out comes from.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Source {
    /// A chunk that waited for its consumer.
    Parked,
    /// It came back.
    Replay,
    /// It was never read.
    New,
}

/// What becomes of an entry.
enum Choice {
    /// It goes to this consumer.
    Send(usize),
    /// It is a chunk whose consumer cannot take it now.
    Wait(ClientKey),
    /// Nobody can take it.
    Nobody,
}

impl Subscription {
    /// Who gets the next entry. A chunk follows the chunks before it, whoever's turn it is.
    fn choose(&mut self, chunk: Option<Chunk>, turn_size: u32) -> Choice {
        if let Some(owner) = chunk.and_then(|chunk| self.chunks.owner(chunk))
            && let Some((index, consumer)) = self
                .consumers
                .iter()
                .find(|(_, consumer)| consumer.client.key() == owner)
        {
            return if consumer.available() {
                Choice::Send(index)
            } else {
                Choice::Wait(owner)
            };
        }
        match self.pick(turn_size) {
            Some(index) => Choice::Send(index),
            None => Choice::Nobody,
        }
    }
}

impl Topics {
    /// Hands out what consumers have credit for.
    pub(super) fn dispatch(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
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
        for (_, sub) in subs.iter_mut() {
            if sub.resetting || sub.consumers.is_empty() {
                continue;
            }
            let mut run = Run {
                state,
                seat,
                sub,
                confirmed: *confirmed,
                partition,
                hidden: Vec::new(),
            };
            again |= run.dispatch(cx, slot, now);
            let hidden = std::mem::take(&mut run.hidden);
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
    }

    /// FLOW: credit in messages.
    pub(super) fn flow(&mut self, client: ClientRef, permits: u32) {
        let Some((slot, consumer)) = self.consumer_mut(client) else {
            return;
        };
        if consumer.blocked {
            consumer.parked += i64::from(permits);
        } else {
            consumer.permits += i64::from(permits);
        }
        self.mark(slot);
    }

    /// The session has written delivered bytes: the consumer may be sent more.
    pub(super) fn written(&mut self, client: ClientRef, bytes: u32) {
        let Some((slot, consumer)) = self.consumer_mut(client) else {
            return;
        };
        let was_full = consumer.unwritten >= consumer.window;
        consumer.unwritten = consumer.unwritten.saturating_sub(bytes as usize);
        if was_full && consumer.available() {
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
    position: Position,
    data: Bytes,
    /// Messages in it.
    count: u32,
    batch: bool,
    /// What the delivery costs.
    permits: u32,
    ack_set: Vec<i64>,
}

/// Messages in a stored entry, at least one.
pub(super) fn stored_messages(data: &[u8]) -> u32 {
    match content(data) {
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
        Read::Entry(data) => match content(&data) {
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
    confirmed: Position,
    partition: i32,
    hidden: Vec<Position>,
}

impl Run<'_> {
    /// True if there is more to do and only the turn is over.
    fn dispatch(&mut self, cx: &mut Context, slot: u32, now: Now) -> bool {
        let turn_size = cx.settings.dispatcher_max_round_robin_batch_size;
        for _ in 0..TURN_ENTRIES {
            if !self.sub.consumers.iter().any(|(_, c)| c.available()) {
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
            } = content(&data)
            else {
                self.taken(position, source);
                self.hidden.push(position);
                continue;
            };
            let ack_set = self
                .sub
                .acks(self.state)
                .ack_set(position)
                .map(<[i64]>::to_vec)
                .unwrap_or_default();
            let permits = if ack_set.is_empty() {
                count
            } else {
                open_messages(&ack_set, count)
            };
            if permits == 0 {
                self.taken(position, source);
                self.hidden.push(position);
                continue;
            }
            let chunk = chunk.filter(|_| self.sub.shared);
            let index = match self.sub.choose(chunk, turn_size) {
                Choice::Send(index) => index,
                Choice::Nobody => return false,
                Choice::Wait(owner) => {
                    if !self.sub.chunks.park(position, owner) {
                        return false;
                    }
                    if source != Source::Parked {
                        self.taken(position, source);
                    }
                    continue;
                }
            };
            self.taken(position, source);
            if let Some(chunk) = chunk
                && let Some(consumer) = self.sub.consumers.get(index)
            {
                let client = consumer.client.key();
                self.sub.chunks.sent(chunk, client);
            }
            let chosen = Chosen {
                position,
                data,
                count,
                batch,
                permits,
                ack_set,
            };
            self.send(cx, index, chosen, now);
        }
        true
    }

    /// The next entry to hand out: chunks whose consumer has room again, what came back, then what was never read.
    fn next(&mut self) -> Option<(Position, Source)> {
        if let Some(position) = self.parked() {
            return Some((position, Source::Parked));
        }
        while let Some(position) = self.sub.replay.first().copied() {
            if !self.sub.acks(self.state).is_acked(position) {
                return Some((position, Source::Replay));
            }
            self.sub.replay.pop_first();
            self.sub.redelivered.remove(&position);
        }
        if self.sub.blocked {
            return None;
        }
        let next = self
            .sub
            .acks(self.state)
            .next_unacked(&self.state.ledgers, self.sub.read)?;
        (next <= self.confirmed).then_some((next, Source::New))
    }

    /// The first parked chunk that its consumer can take.
    fn parked(&mut self) -> Option<Position> {
        loop {
            let consumers = &self.sub.consumers;
            let position = self.sub.chunks.parked().find_map(|(position, owner)| {
                consumers
                    .iter()
                    .any(|(_, c)| c.client.key() == owner && c.available())
                    .then_some(position)
            })?;
            if !self.sub.acks(self.state).is_acked(position) {
                return Some(position);
            }
            self.sub.chunks.unpark(position);
        }
    }

    fn taken(&mut self, position: Position, source: Source) {
        match source {
            Source::Parked => self.sub.chunks.unpark(position),
            Source::Replay => {
                self.sub.replay.remove(&position);
            }
            Source::New => self.sub.read = position,
        }
    }

    fn send(&mut self, cx: &mut Context, index: usize, chosen: Chosen, now: Now) {
        let Chosen {
            position,
            data,
            count,
            batch,
            permits,
            ack_set,
        } = chosen;
        let sub = &mut *self.sub;
        let Some(consumer) = sub.consumers.get_mut(index) else {
            return;
        };
        let client = consumer.client;
        if batch && consumer.version < BATCH_VERSION {
            consumer.blocked = true;
            sub.blocked_consumers += 1;
            // It goes to whoever stays.
            sub.replay.insert(position);
            return cx.post(
                client.session.core,
                Message::Disconnect {
                    session: client.session,
                },
            );
        }
        let redelivery_count = if sub.shared {
            sub.redelivered.get(&position).copied().unwrap_or(0)
        } else {
            0
        };
        if sub.shared {
            consumer.pending.insert(
                position,
                Held {
                    permits,
                    batch: count,
                },
            );
            consumer.unacked += u64::from(permits);
            sub.unacked += u64::from(permits);
            let limit = u64::from(cx.settings.max_unacked_messages_per_consumer);
            if limit > 0 && consumer.unacked >= limit {
                consumer.blocked = true;
                sub.blocked_consumers += 1;
            }
            let limit = u64::from(cx.settings.max_unacked_messages_per_subscription);
            if limit > 0 && sub.unacked >= limit {
                sub.blocked = true;
            }
        }
        consumer.permits -= i64::from(permits);
        let data = if consumer.version < CHECKSUM_VERSION {
            strip_checksum(data)
        } else {
            data
        };
        consumer.unwritten += data.len() + ENTRY_COST;
        consumer.sent.add(u64::from(permits), now.ms);
        consumer.sent_bytes.add(data.len() as u64, now.ms);
        if redelivery_count > 0 {
            consumer.redelivered.add(u64::from(permits), now.ms);
        }
        let epoch = if sub.shared { None } else { consumer.epoch };
        let delivery = Delivery {
            position,
            partition: self.partition,
            redelivery_count,
            ack_set,
            epoch,
            permits,
            data,
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_bits_within_the_batch_count() {
        assert_eq!(open_messages(&[0b10101], 5), 3);
        assert_eq!(open_messages(&[-1], 5), 5);
        assert_eq!(open_messages(&[-1, -1], 70), 70);
        assert_eq!(open_messages(&[-2], 70), 63);
        assert_eq!(open_messages(&[0], 3), 0);
        assert_eq!(open_messages(&[0, 0, -1], 70), 0);
    }
}
