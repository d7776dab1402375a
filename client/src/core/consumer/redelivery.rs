//! Asking for messages again: negative acknowledgement, time-out, and all at once.

use std::collections::HashSet;

use super::{
    Consumer, ConsumerEvent, EntryId, Nanos, Queued, ReceivedMessage, State, Wire, commands,
};
use crate::MessageId;

/// Most entries one REDELIVER names.
const MAX_IDS: usize = 1000;

impl Consumer {
    /// The application could not handle a message: it is asked for again after the delay for its redelivery count.
    ///
    /// The broker redelivers entries, so a batch comes back but for what was acknowledged of it. On Exclusive and Failover
    /// everything not acknowledged comes back. A message in chunks comes back with all its chunks. If they are not known here (see
    /// [`acknowledge`](Self::acknowledge)) it is not asked for: it was not delivered since, and comes anyway.
    pub fn negative_acknowledge(&mut self, now: Nanos, id: &MessageId, redelivery_count: u32) {
        // Of an incarnation that is gone everything comes back anyway.
        if self.state != State::Ready {
            return;
        }
        let entry = EntryId::from(*id);
        self.ack_timeouts.remove(entry);
        self.dead_letters.nack(id);
        if id.first_chunk.is_some() && self.joined.get(entry).is_none() {
            self.joined.take_unknown(entry);
            // One chunk alone completes nothing.
            if self.config.subscription_type.is_shared() && !self.dead_letters.holds(entry) {
                return;
            }
        }
        let due = now.saturating_add(self.config.nack_delay(redelivery_count));
        self.nacks.set_earlier(entry, due);
    }

    /// Asks for everything that was not acknowledged. The receiver queue is emptied.
    pub fn redeliver_unacknowledged(&mut self, wire: &mut impl Wire) {
        // A new incarnation is sent everything anyway.
        if self.state != State::Ready {
            return;
        }
        self.asked_again = true;
        let shared = self.config.subscription_type.is_shared();
        if !shared {
            // Whatever is under way belongs to the epoch before.
            self.epoch += 1;
        }
        self.clear_queue();
        self.chunks.come_again();
        self.nacks.clear();
        self.ack_timeouts.clear();
        self.dead_letters.detached();
        self.flush_acks(wire);
        wire.command(commands::redeliver(
            self.id,
            &[],
            (!shared).then_some(self.epoch),
        ));
        self.flow(wire);
    }

    /// Messages could not be stored as dead letters: they are asked for again.
    pub fn dead_letters_failed(&mut self, ids: &[MessageId], wire: &mut impl Wire) {
        let mut entries: Vec<EntryId> = Vec::new();
        for id in ids {
            self.dead_letters.forget(id);
            entries.push(EntryId::from(*id));
        }
        entries.sort_unstable();
        entries.dedup();
        self.redeliver(entries, wire);
    }

    /// What is due by now: given up, or asked for again.
    pub(super) fn redeliver_due(&mut self, now: Nanos, wire: &mut impl Wire) {
        // What the broker may not send is not late: the application takes nothing.
        if self.state == State::Ready && self.ledger.is_spent() {
            self.chunks.postpone(now);
        }
        let incomplete = self.chunks.expired(now);
        if self.state != State::Ready {
            return;
        }
        let mut again = Vec::new();
        for (timed_out, entries) in [
            (false, self.nacks.expired(now)),
            (true, self.ack_timeouts.expired(now)),
        ] {
            for entry in entries {
                if timed_out {
                    self.nacks.remove(entry);
                }
                if self.dead_letters.holds(entry) {
                    let given_up = self.dead_letters.give_up(entry, timed_out);
                    self.given_up(given_up);
                } else {
                    again.push(entry);
                }
            }
        }
        self.abandon_chunks(now, incomplete, wire);
        self.redeliver(again, wire);
    }

    pub(super) fn given_up(&mut self, messages: Vec<ReceivedMessage>) {
        if !messages.is_empty() {
            self.stats.given_up += messages.len() as u64;
            self.events.push_back(ConsumerEvent::DeadLetters(messages));
        }
    }

    /// Chunks of messages that were given up incomplete.
    pub(super) fn abandon_chunks(
        &mut self,
        now: Nanos,
        entries: Vec<EntryId>,
        wire: &mut impl Wire,
    ) {
        // What is left of a message that was acknowledged: the acknowledgement reached some of its chunks.
        let (ended, entries): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|&entry| self.joined.ended_with(entry).is_some());
        self.acks.add_whole(&ended);
        if self.config.auto_ack_oldest_chunked_message {
            self.acks.add_whole(&entries);
        } else if self.config.subscription_type.is_shared() {
            // Elsewhere everything would have to come again, and be given up again, until its last chunk comes.
            let due = now.saturating_add(self.config.nack_delay(0));
            for entry in entries {
                self.nacks.set_earlier(entry, due);
            }
        }
        self.collect_acks(now, wire);
    }

    fn redeliver(&mut self, entries: Vec<EntryId>, wire: &mut impl Wire) {
        if entries.is_empty() || self.state != State::Ready {
            return;
        }
        if !self.config.subscription_type.is_shared() {
            return self.redeliver_unacknowledged(wire);
        }
        // What was acknowledged of a batch must not come back with the rest.
        self.flush_acks(wire);
        let gone: HashSet<_> = entries.iter().copied().collect();
        self.drop_queued(|message| gone.contains(&message.entry()));
        let mut all = Vec::with_capacity(entries.len());
        for entry in entries {
            // Kept: the application may still acknowledge what it holds.
            match self.joined.get(entry) {
                Some(chunks) => all.extend(chunks),
                None => all.push(entry),
            }
        }
        for some in all.chunks(MAX_IDS) {
            wire.command(commands::redeliver(self.id, some, None));
        }
        self.flow(wire);
    }

    /// Drops all messages that were not taken; their permits go back.
    pub(super) fn clear_queue(&mut self) {
        self.drop_queued(|_| true);
    }

    pub(super) fn drop_queued(&mut self, gone: impl Fn(&ReceivedMessage) -> bool) {
        let queue = std::mem::take(&mut self.queue);
        for queued in queue {
            if gone(&queued.message) {
                let Queued {
                    message,
                    permit,
                    copy,
                } = queued;
                self.left_queue(message.entry(), copy);
                self.ledger.give_back(permit);
            } else {
                self.queue.push_back(queued);
            }
        }
    }
}
