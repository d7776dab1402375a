//! Non-persistent topics: an entry goes to the consumers that can take it now, and to nobody else.
//!
//! Nothing of them is in the log: not the topic, not its subscriptions, not its epoch. So no answer waits for a disk, a receipt says
//! only that the entry was handed on, and the topic is gone after a restart. Subscriptions, consumers, their credit and who is chosen are
//! those of persistent topics. What is missing is everything that needs an entry twice: no cursor, no pending acks, no redelivery,
//! no limit of unacknowledged messages. Every entry has the id 0:0.
//!
//! What nobody can take is dropped and counted: the chosen consumer has no credit, or its connection has not taken what it was sent
//! before. So entries are held in nothing but the windows of consumers. A subscription ends with its last consumer, a topic when it has
//! had neither producer nor subscription for a while.

use std::collections::BTreeSet;

use bytes::Bytes;
use vela_codec::Frame;
use vela_proto::ServerError;

use super::dedup::DUPLICATE;
use super::dispatch::{Content, content};
use super::dispatcher::{Candidate, Choice};
use super::permits::Permits;
use super::subscription::Subscription;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Delivery, Message, SendId};
use crate::engine::name::{Domain, TopicName};
use crate::engine::output::COPY_LIMIT;
use crate::engine::settings::Settings;
use crate::engine::time::Now;
use crate::store::log::{Position, TopicId, TopicState};

/// The id of every entry.
const ID: Position = Position::new(0, 0);
/// What a question for the last message id is told, as by Pulsar 5.0.1: there is no log that could be asked.
const NO_LAST_ID: &str = "Failed to recover Transaction Buffer.";

/// What one core knows of its non-persistent topics as a whole.
#[derive(Default, Debug)]
pub(super) struct Volatile {
    /// Their slots.
    topics: BTreeSet<u32>,
    /// Topics made since the start.
    made: TopicId,
}

impl Topic {
    /// Is it non-persistent?
    pub(super) fn is_volatile(&self) -> bool {
        self.name.domain() == Domain::NonPersistent
    }

    /// The lane whose log its answers wait for; `None` = they wait for nothing.
    pub(super) fn log(&self) -> Option<usize> {
        (!self.is_volatile()).then_some(self.lane)
    }
}

impl Topics {
    /// Makes a non-persistent topic.
    pub(super) fn create_volatile(
        &mut self,
        cx: &mut Context,
        name: &TopicName,
        lane: usize,
        now: Now,
    ) -> u32 {
        // From the other end than the ids in the log: the id is a part of the producer names that the broker makes.
        self.volatile.made = self.volatile.made.wrapping_add(1);
        let id = TopicId::MAX.wrapping_sub(self.volatile.made);
        let state = TopicState::new(id, name.as_str(), now.wall_ms);
        let slot = self.insert(name.clone(), state, lane);
        self.volatile.topics.insert(slot);
        self.configure_rate(cx, slot, now);
        self.reconsider_inactive(cx, now);
        slot
    }

    /// Answers one SEND of a non-persistent topic and hands its entry on. `surplus` = its connection has too many of them unanswered.
    #[allow(clippy::too_many_arguments, reason = "as Topics::publish")]
    pub(super) fn publish_volatile(
        &mut self,
        cx: &mut Context,
        slot: u32,
        producer: u32,
        send: SendId,
        num_messages: u32,
        surplus: bool,
        refused: Option<(ServerError, &'static str)>,
        frame: &Frame,
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let session = send.client.session;
        let messages = u64::from(num_messages);
        if surplus {
            if let Some(producer) = topic.producers.get_mut(producer as usize) {
                producer.dropped.add(messages, now.ms);
            }
            cx.counters.messages_dropped += messages;
            let position = DUPLICATE;
            return cx.post(session.core, Message::Receipt { send, position });
        }
        let data = frame.rest();
        let limits = topic.limits;
        if let Some((error, message)) =
            refused.or_else(|| limits.and_then(|limits| limits.refusal(send.kind, data)))
        {
            cx.counters.publish_errors += 1;
            let refused = Message::SendRefused {
                send,
                error,
                message,
            };
            return cx.post(session.core, refused);
        }
        cx.counters.messages_in += messages;
        cx.counters.bytes_in += data.len() as u64;
        topic.inbound.add(messages, data.len() as u64, now);
        topic.entries_added += 1;
        if let Some(producer) = topic.producers.get_mut(producer as usize) {
            producer.inbound.add(messages, data.len() as u64, now);
        }
        let position = ID;
        cx.post(session.core, Message::Receipt { send, position });
        topic.hand_on(cx, frame, now);
        self.charge(cx, slot, session, num_messages, frame.rest().len(), now);
    }

    /// An ACK is taken and means nothing.
    pub(super) fn ack_volatile(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        ids: usize,
        request_id: Option<u64>,
        now: Now,
    ) {
        if let Some((_, index, sub)) = self.subscription_of(client)
            && let Some(consumer) = sub.roster.get_mut(index)
        {
            consumer.acked.add(ids as u64, now.ms);
        }
        if let Some(request_id) = request_id {
            let error = None;
            let acked = Message::Acked {
                client,
                request_id,
                error,
            };
            cx.post(client.session.core, acked);
        }
    }

    /// GET_LAST_MESSAGE_ID has no answer here.
    pub(super) fn no_last_id(&mut self, cx: &mut Context, client: ClientRef, request_id: u64) {
        let error = ServerError::UnknownError;
        self.reply_error(cx, client, request_id, error, NO_LAST_ID);
    }

    /// A topic was retired. If it is non-persistent, nothing in the log names its slot: that is free.
    pub(super) fn volatile_gone(&mut self, slot: u32) {
        if self.volatile.topics.remove(&slot) {
            self.vacate(slot);
        }
    }
}

/// The entry of a frame, in the frame's own memory, or in a copy if that keeps alive much that was received with it. (Small entries are
/// copied by the sessions of their consumers at once.)
fn kept(cx: &Context, frame: &Frame) -> Bytes {
    if frame.pins_much() && frame.rest().len() > COPY_LIMIT {
        frame.compact(cx.accounting.clone()).rest_bytes()
    } else {
        frame.rest_bytes()
    }
}

impl Topic {
    /// Hands an entry to one consumer of each subscription.
    fn hand_on(&mut self, cx: &mut Context, frame: &Frame, now: Now) {
        let partition = self.name.partition();
        let keyed = self.subs.iter().any(|(_, sub)| sub.dispatcher.is_keyed());
        let Content::Messages {
            count,
            batch,
            chunk,
            key_hash,
            // Nothing is kept here, so nothing is delayed.
            deliver_at: _,
        } = content(frame.rest(), keyed)
        else {
            // Nothing that a client may see.
            return;
        };
        let Some(permits) = Permits::finalize(count, &[]) else {
            return;
        };
        let candidate = Candidate {
            position: ID,
            chunk,
            key_hash,
        };
        let mut data = None;
        for (_, sub) in &mut self.subs {
            if !sub.dispatcher.wants(key_hash) {
                continue;
            }
            let taker = sub
                .taker(&candidate, &cx.settings)
                .filter(|index| sub.can_read(cx, *index, batch));
            let Some(index) = taker else {
                sub.dropped.add(u64::from(count), now.ms);
                cx.counters.messages_dropped += u64::from(count);
                continue;
            };
            sub.dispatcher.sent(&candidate, index);
            let delivery = Delivery {
                position: ID,
                partition,
                redelivery_count: 0,
                ack_set: Vec::new(),
                epoch: None,
                permits: permits.get(),
                data: data.get_or_insert_with(|| kept(cx, frame)).clone(),
            };
            sub.deliver(cx, index, permits, count, delivery, now);
            sub.settle_volatile();
        }
    }

    /// Consumers have come, gone, or got credit: there is nothing to hand out, but the books of the last entry are closed.
    pub(super) fn settle_volatile(&mut self) {
        for (_, sub) in &mut self.subs {
            sub.settle_volatile();
        }
    }
}

impl Subscription {
    /// Who can take an entry now, if anybody: the dispatcher's choice, and nothing waits for a consumer that is not ready.
    fn taker(&mut self, candidate: &Candidate, settings: &Settings) -> Option<u32> {
        if !self.dispatcher.is_ready(&self.roster) {
            return None;
        }
        match self
            .dispatcher
            .choose(&mut self.roster, candidate, settings)
        {
            Choice::Send(index) => Some(index),
            Choice::Aside => {
                self.dispatcher.forget(candidate.position);
                None
            }
            Choice::Nobody => None,
        }
    }

    /// Each entry is a run of its own: credit is looked at before every one, consumers of a level take turns entry by entry.
    fn settle_volatile(&mut self) {
        self.dispatcher.end_run();
        self.roster.end_turn();
        self.roster.settle();
    }
}
