//! What the application acknowledges: of single messages, of batches, and of everything up to a message.

use std::collections::BTreeSet;

use super::acks::{Cumulative, position};
use super::batches::Left;
use super::message::index_of;
use super::{Call, Consumer, ConsumerAnswer, EntryId, Nanos, State, Wire};
use crate::{Error, MessageId};

impl Consumer {
    /// Acknowledges messages one by one. `call` is answered when the broker answered, or at once without `ack_receipt`.
    ///
    /// A message that came in chunks is acknowledged with all its chunks, never with some: what is left of a message stays in the
    /// subscription for ever. Which chunks it has is known of the messages this consumer delivered
    /// ([`max_tracked_batches`](super::ConsumerConfig::max_tracked_batches)), and for a while after they were acknowledged. By another id,
    /// one that was stored and read again by the next process, say, nothing is acknowledged yet: when the message comes to this consumer
    /// it is acknowledged and not delivered. Until then it is not, wherever it comes to; with `ack_receipt` the call fails for it.
    pub fn acknowledge(
        &mut self,
        now: Nanos,
        ids: &[MessageId],
        call: Option<Call>,
        wire: &mut impl Wire,
    ) {
        if let Some(result) = self.refuse_acks(ids, false) {
            return self.end(call, result);
        }
        let mut unknown = None;
        for id in ids {
            if !self.acknowledge_one(id) {
                unknown = Some(id);
            }
            if self.copies.contains_key(&EntryId::from(*id)) {
                self.drop_queued(|message| message.id == *id);
            }
        }
        let call = match unknown {
            Some(id) if self.config.ack_receipt => {
                self.end(call, Err(unknown_chunks(id)));
                None
            }
            _ => call,
        };
        self.acknowledged(now, call, wire);
    }

    /// Acknowledges everything up to a message, itself included. Messages in chunks count by their last chunk: the chunks before it of a
    /// message that ends behind it are not acknowledged, as long as that message is awaited or not acknowledged
    /// ([`expire_incomplete_chunked_message`](super::ConsumerConfig::expire_incomplete_chunked_message)).
    pub fn acknowledge_cumulative(
        &mut self,
        now: Nanos,
        id: &MessageId,
        call: Option<Call>,
        wire: &mut impl Wire,
    ) {
        if let Some(result) = self.refuse_acks(std::slice::from_ref(id), true) {
            return self.end(call, result);
        }
        let entry = EntryId::from(*id);
        let whole = Cumulative { entry, left: None };
        let cumulative = match self.known_index(id) {
            None => Some(whole),
            Some((index, size)) => match self.batches.done_through(entry, index, size) {
                Left::Nothing => Some(whole),
                Left::Some(left) if self.config.batch_index_ack => Some(Cumulative {
                    entry,
                    left: Some(left),
                }),
                // The batch has to wait for its last message; everything before it has not.
                Left::Some(_) => entry.entry.checked_sub(1).map(|before| Cumulative {
                    entry: EntryId {
                        ledger: entry.ledger,
                        entry: before,
                    },
                    left: None,
                }),
            },
        };
        let whole = cumulative
            .as_ref()
            .is_some_and(|c| c.entry == entry && c.left.is_none());
        self.batches.forget_before(entry, whole);
        // Of this message itself nothing is left out, though a copy of it may be on its way.
        let known = self.joined.get(entry).and_then(|chunks| chunks.first());
        let named = id
            .first_chunk
            .map(|(ledger, entry)| EntryId { ledger, entry });
        if let Some(first) = known.copied().or(named) {
            self.chunks.forget_from(first);
        }
        let left_out = self.unended_before(entry);
        self.joined.end_before(entry, whole);
        if whole {
            self.nacks.remove_through(entry);
            self.ack_timeouts.remove_through(entry);
        }
        self.dead_letters.forget(id);
        // A batch that is done is done as a whole.
        let batch_index = if whole { -1 } else { id.batch_index };
        self.acks
            .add_cumulative(MessageId { batch_index, ..*id }, cumulative, left_out);
        if !self.copies.is_empty() {
            let through = position(id);
            self.drop_queued(|message| position(&message.id) <= through);
        }
        self.acknowledged(now, call, wire);
    }

    fn refuse_acks(&self, ids: &[MessageId], cumulative: bool) -> Option<Result<(), Error>> {
        if self.state == State::Closed {
            return Some(Err(Error::Closed("the consumer")));
        }
        if cumulative && self.config.subscription_type.is_shared() {
            return Some(Err(Error::Config {
                setting: "subscription_type",
                value: format!("{:?}", self.config.subscription_type),
                reason: "its messages are acknowledged one by one, not cumulatively".to_owned(),
            }));
        }
        let bad = ids
            .iter()
            .find(|id| id.batch_index >= 0 && id.batch_size <= id.batch_index);
        if let Some(bad) = bad {
            return Some(Err(Error::Config {
                setting: "message id",
                value: bad.to_string(),
                reason: "its batch is smaller than its index; use the id as it was received"
                    .to_owned(),
            }));
        }
        ids.is_empty().then_some(Ok(()))
    }

    /// Chunks before an entry whose messages end behind it, or are not whole yet.
    pub(super) fn unended_before(&self, entry: EntryId) -> BTreeSet<EntryId> {
        let mut found = self.joined.ending_behind(entry);
        for chunks in self.chunks.begun_before(entry) {
            // An earlier copy may have shown where it ends.
            if !self.joined.ends_by(chunks, entry) {
                found.extend(chunks.iter().filter(|&&chunk| chunk <= entry));
            }
        }
        found
    }

    fn known_index(&self, id: &MessageId) -> Option<(u32, u32)> {
        Some((index_of(id)?, u32::try_from(id.batch_size).unwrap_or(0)))
    }

    /// Adds the acknowledgement of a message; `false` if its chunks are not known.
    fn acknowledge_one(&mut self, id: &MessageId) -> bool {
        let entry = EntryId::from(*id);
        self.dead_letters.forget(id);
        if let Some((index, size)) = self.known_index(id) {
            match self.batches.done(entry, index, size) {
                Left::Nothing => {}
                Left::Some(left) => {
                    if self.config.batch_index_ack {
                        self.acks.add(entry, Some(left));
                    }
                    return true;
                }
            }
        }
        self.nacks.remove(entry);
        self.ack_timeouts.remove(entry);
        match self.joined.end(entry) {
            Some(chunks) => {
                // If it is on its way again, it need not become whole.
                if let Some(&first) = chunks.first() {
                    self.chunks.forget_from(first);
                }
                self.acks.add_whole(&chunks);
            }
            None if id.first_chunk.is_some() => {
                self.joined.end_unknown(entry);
                return false;
            }
            None => self.acks.add(entry, None),
        }
        true
    }

    fn acknowledged(&mut self, now: Nanos, call: Option<Call>, wire: &mut impl Wire) {
        match call {
            // With nothing to send there is nothing to wait for.
            Some(call) if self.config.ack_receipt && self.acks.has_pending() => {
                self.acks.wait(call);
                self.call_waits(now, call);
            }
            call => self.end(call, Ok(())),
        }
        self.collect_acks(now, wire);
        self.flow(wire);
    }

    /// Starts the clock of what was added to the acknowledgements, or sends them at once.
    pub(super) fn collect_acks(&mut self, now: Nanos, wire: &mut impl Wire) {
        if self.state != State::Ready || !self.acks.has_pending() {
            return;
        }
        if self.config.ack_group_time == 0 || self.acks.len() >= self.config.ack_group_max {
            self.flush_acks(wire);
        } else {
            self.acks
                .due_by(now.saturating_add(self.config.ack_group_time));
        }
    }

    pub(super) fn flush_acks(&mut self, wire: &mut impl Wire) {
        if self.state == State::Ready {
            for call in self.acks.flush(wire) {
                self.answer(call, Ok(ConsumerAnswer::Done));
            }
        }
    }
}

fn unknown_chunks(id: &MessageId) -> Error {
    Error::Config {
        setting: "message id",
        value: id.to_string(),
        reason: "its chunks are not known to this consumer, so it is not acknowledged yet; it will be when it is delivered here again"
            .to_owned(),
    }
}
