//! Publishing: what is checked before an entry is stored, and answers in order.

use vela_codec::Frame;
use vela_codec::entry::Entry;
use vela_proto::ServerError;

use super::dedup::{DUPLICATE, Judgment};
use super::lanes::Pending;
use super::limits::Limits;
use super::terminate::TERMINATED;
use super::{Seat, Topics};
use crate::engine::context::Context;
use crate::engine::message::{Message, SendId, SendKind};
use crate::engine::session::throttling::hold;
use crate::engine::time::Now;
use crate::store::log::{Position, Record};
use vela_limiter::Reason;

type Refusal = (ServerError, &'static str);

/// What a producer is told behind a message of it that could not be stored. Clients come back on this error, and send again in order.
const BEHIND_LOST: Refusal = (
    ServerError::PersistenceError,
    "a message before this one could not be stored: open the producer again and send from there on",
);

impl Limits {
    /// What a topic demands of an entry beside its session's checks.
    pub(super) fn refusal(&self, kind: SendKind, data: &[u8]) -> Option<Refusal> {
        if !self.encryption && self.delay_ms == 0 && self.message_size == 0 {
            return None;
        }
        let entry = Entry::parse(data).ok();
        let metadata = entry.and_then(|entry| entry.metadata_view());
        if self.encryption && metadata.is_none_or(|metadata| metadata.encryption_keys == 0) {
            return Some((ServerError::MetadataError, "Messages must be encrypted"));
        }
        if self.message_size > 0
            && kind != SendKind::Chunk
            && data.len() > self.message_size as usize
        {
            let text = "the message exceeds the maximum message size of its topic";
            return Some((ServerError::NotAllowedError, text));
        }
        let delay = metadata.and_then(|metadata| {
            let at = u64::try_from(metadata.deliver_at_time?).ok()?;
            Some(at.saturating_sub(metadata.publish_time))
        });
        if self.delay_ms > 0 && delay.is_some_and(|delay| delay > self.delay_ms) {
            let text =
                "the message exceeds the longest delivery delay, delayedDeliveryMaxDelayInMillis";
            return Some((ServerError::NotAllowedError, text));
        }
        None
    }
}

impl Topics {
    /// Appends one SEND and remembers whom to tell when it is durable. `surplus` concerns non-persistent topics only.
    #[allow(
        clippy::too_many_arguments,
        reason = "they are the fields of one message"
    )]
    pub(super) fn publish(
        &mut self,
        cx: &mut Context,
        send: SendId,
        num_messages: u32,
        surplus: bool,
        refused: Option<Refusal>,
        frame: &Frame,
        now: Now,
    ) {
        let client = send.client;
        let Some(Seat::Producer {
            topic: slot,
            producer,
        }) = self.clients.get(&client.key())
        else {
            return cx.post(client.session.core, Message::NoSuchProducer { send });
        };
        let (slot, producer) = (*slot, *producer);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.is_volatile() {
            return self.publish_volatile(
                cx,
                slot,
                producer,
                send,
                num_messages,
                surplus,
                refused,
                frame,
                now,
            );
        }
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let data = frame.rest();
        let failed = topic
            .producers
            .get(producer as usize)
            .is_some_and(|producer| producer.failed);
        let refused = refused
            .or_else(|| failed.then(|| seat.refusal().unwrap_or(BEHIND_LOST)))
            .or_else(|| topic.limits?.refusal(send.kind, data))
            .or_else(|| {
                let terminated = (ServerError::TopicTerminatedError, TERMINATED);
                topic.state.terminated.map(|_| terminated)
            })
            .or_else(|| seat.refusal());
        if refused.is_none()
            && let Err(error) = topic.roll_if_due(seat, cx, now)
        {
            return self.refuse_send(cx, slot, producer, send, error);
        }
        if let Some(error) = refused {
            return self.refuse_send(cx, slot, producer, send, error);
        }
        let judgment = topic.judge(producer, &send, data);
        match judgment {
            Judgment::Plain | Judgment::New(..) => {}
            Judgment::Duplicate => {
                return self.answer_duplicate(cx, slot, producer, send, num_messages, now);
            }
            Judgment::Overlap => {
                let text = "a part of the batch was stored before: send its new messages alone";
                return self.refuse_send(
                    cx,
                    slot,
                    producer,
                    send,
                    (ServerError::NotAllowedError, text),
                );
            }
        }
        let Some(ledger) = topic
            .state
            .ledgers
            .current()
            .map(|ledger| (ledger.id, ledger.entries))
        else {
            return;
        };
        let position = Position::new(ledger.0, ledger.1);
        let id = topic.state.id;
        let appended = match judgment {
            Judgment::New(sequence, highest) => seat
                .lane
                .append_sequenced(id, position, sequence, highest, data),
            _ => seat
                .lane
                .append_entry(id, position.ledger, position.entry, data),
        };
        let appended = match appended {
            Ok(appended) => appended,
            Err(_) => {
                let error = (
                    ServerError::NotAllowedError,
                    "the message is larger than the log takes: maxMessageSize is smaller than it",
                );
                return self.refuse_send(cx, slot, producer, send, error);
            }
        };
        if let Err(damage) =
            topic
                .state
                .ledgers
                .push(position, data.len() as u32, appended.seq, appended.offset)
        {
            tracing::error!(topic = %topic.name, %position, ?damage, "an entry does not follow its ledger");
        }
        if let Judgment::New(sequence, highest) = judgment
            && let Err(damage) = topic.state.sequences.store(id, sequence, highest)
        {
            tracing::error!(topic = %topic.name, %damage, "a sequence id is of nobody");
        }
        cx.counters.messages_in += u64::from(num_messages);
        cx.counters.bytes_in += data.len() as u64;
        let (messages, size) = (u64::from(num_messages), data.len() as u64);
        topic.inbound.add(messages, size, now);
        topic.entries_added += 1;
        if let Some(producer) = topic.producers.get_mut(producer as usize) {
            producer.pending += 1;
            producer.inbound.add(messages, size, now);
        }
        seat.push(
            appended.seq,
            Pending::Receipt {
                send,
                topic: slot,
                producer,
                position,
            },
        );
        let bytes = data.len();
        if seat.is_full() && seat.hold(client.session) {
            cx.post(
                client.session.core,
                hold(client.session, Reason::PendingBytes),
            );
        }
        self.charge(cx, slot, client.session, num_messages, bytes, now);
    }

    /// A SEND that was stored before gets its receipt behind that of the original.
    fn answer_duplicate(
        &mut self,
        cx: &mut Context,
        slot: u32,
        producer: u32,
        send: SendId,
        num_messages: u32,
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let position = DUPLICATE;
        match topic.producers.get_mut(producer as usize) {
            Some(entry) if !seat.everything_durable() => {
                entry.pending += 1;
                seat.push_behind(Pending::Receipt {
                    send,
                    topic: slot,
                    producer,
                    position,
                });
            }
            _ => cx.post(
                send.client.session.core,
                Message::Receipt { send, position },
            ),
        }
        let bytes = send.bytes as usize;
        self.charge(cx, slot, send.client.session, num_messages, bytes, now);
    }

    /// The error takes its turn among the receipts, unless nothing becomes durable for now.
    fn refuse_send(
        &mut self,
        cx: &mut Context,
        slot: u32,
        producer: u32,
        send: SendId,
        error: Refusal,
    ) {
        cx.counters.publish_errors += 1;
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let client = send.client;
        if error.0 == ServerError::PersistenceError
            && let Some(producer) = topic.producers.get_mut(producer as usize)
        {
            producer.failed = true;
        }
        let message = Message::SendRefused {
            send,
            error: error.0,
            message: error.1,
        };
        match topic.producers.get_mut(producer as usize) {
            Some(entry) if !seat.everything_durable() && !seat.is_stuck() => {
                entry.pending += 1;
                let message = Box::new(message);
                seat.push_behind(Pending::Refused {
                    topic: slot,
                    producer,
                    client,
                    message,
                });
            }
            _ => cx.post(client.session.core, message),
        }
    }

    /// A SEND is durable: the topic's confirmed position moves, the session gets its receipt.
    pub(super) fn confirm(
        &mut self,
        cx: &mut Context,
        send: SendId,
        slot: u32,
        producer: u32,
        position: Position,
    ) {
        let client = send.client;
        cx.post(client.session.core, Message::Receipt { send, position });
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if position != DUPLICATE {
            topic.confirmed = position;
            topic.mark_dirty(&mut self.dirty);
        }
        self.producer_answered(cx, client, slot, producer);
    }
}

impl super::Topic {
    /// Opens a ledger where there is none, or a new one where the current one is full, large or old.
    pub(super) fn roll_if_due(
        &mut self,
        seat: &mut super::lanes::LaneSeat,
        cx: &Context,
        now: Now,
    ) -> Result<(), (ServerError, &'static str)> {
        let policy = crate::store::log::RollPolicy {
            entries: u64::from(cx.settings.managed_ledger_max_entries_per_ledger),
            bytes: cx.settings.managed_ledger_max_size_per_ledger,
            age_ms: cx.settings.managed_ledger_max_ledger_rollover_time_ms,
        };
        // A ledger belongs to one start of the broker: what an earlier one lost of its end is never written again
        // under the same ids.
        let current = self.state.ledgers.current();
        if current.is_some_and(|ledger| seat.lane.is_own_ledger(ledger.id))
            && !self.state.ledgers.should_roll(&policy, now.wall_ms)
        {
            return Ok(());
        }
        let Ok(ledger) = seat.lane.new_ledger() else {
            return Err((
                ServerError::PersistenceError,
                "ledger numbers of this start are used up; restart the broker",
            ));
        };
        let record = Record::LedgerOpened {
            topic: self.state.id,
            ledger,
            opened_ms: now.wall_ms,
        };
        seat.append(&record);
        if let Err(damage) = self.state.ledgers.open(ledger, now.wall_ms) {
            tracing::error!(topic = %self.name, ledger, ?damage, "a ledger number does not follow the ones before");
            return Err((
                ServerError::PersistenceError,
                "the topic cannot open a new ledger; the broker's own log names the cause",
            ));
        }
        self.trim(seat, now);
        Ok(())
    }
}
