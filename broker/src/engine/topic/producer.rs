//! Producers of a topic: names, publishing, receipts in order.

use vela_codec::Frame;
use vela_proto::ServerError;

use super::lanes::Pending;
use super::meter::Traffic;
use super::{ProbeFor, Seat, Topics, subscription};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, OpenProducer, SendId};
use crate::engine::session::throttling::hold;
use crate::engine::time::Now;
use crate::store::log::{Position, Record};
use vela_limiter::Reason;

/// A producer that is connected.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) client: ClientRef,
    pub(super) name: String,
    /// SENDs that are not durable yet.
    pub(super) pending: u32,
    /// The client closed it: answer this when `pending` is 0.
    pub(super) closing: Option<u64>,
    /// Wall clock when it was opened, milliseconds.
    pub(super) connected_ms: u64,
    /// What it published.
    pub(super) inbound: Traffic,
}

impl Topics {
    pub(super) fn open_producer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenProducer>,
        now: Now,
    ) {
        let request_id = open.request_id;
        let refuse = |cx: &mut Context, error, message: String| {
            cx.post(
                client.session.core,
                Message::ProducerRefused {
                    client,
                    request_id,
                    error,
                    message,
                },
            );
        };
        let Some(slot) = self.find_or_create(cx, &open.topic, open.create, now) else {
            self.drop_seat(cx, client, now);
            return refuse(
                cx,
                ServerError::TopicNotFound,
                format!("Topic {} does not exist", open.topic),
            );
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.state.terminated.is_some() {
            let text = format!("Topic {} was terminated", topic.name);
            self.drop_seat(cx, client, now);
            return refuse(cx, ServerError::TopicTerminatedError, text);
        }
        if let Some(name) = &open.name
            && let Some(holder) = topic
                .producer_names
                .get(name)
                .and_then(|index| topic.producers.get(*index as usize))
        {
            let holder = holder.client;
            let text = format!("Producer name '{name}' is in use on topic {}", topic.name);
            if holder.session == client.session {
                self.drop_seat(cx, client, now);
                return refuse(cx, ServerError::ProducerBusy, text);
            }
            return self.probe(cx, client, holder.session, ProbeFor::Producer(open, text));
        }
        if let Some(subscription) = &open.initial_subscription
            && !topic.sub_names.contains_key(subscription)
            && let Some(seat) = self.lanes.get_mut(topic.lane)
        {
            subscription::create_durable(topic, seat, subscription, Position::EARLIEST, &[]);
        }
        let name = match open.name {
            Some(name) => name,
            None => {
                topic.names_made += 1;
                // The epoch is unique per start of the broker, the topic and counter within it.
                let epoch = self
                    .lanes
                    .get(topic.lane)
                    .map_or(0, |seat| seat.lane.epoch());
                format!(
                    "{}-{epoch}-{}-{}-{}",
                    cx.settings.cluster_name, cx.core, topic.state.id, topic.names_made
                )
            }
        };
        let producer = topic.producers.insert(Producer {
            client,
            name: name.clone(),
            pending: 0,
            closing: None,
            connected_ms: now.wall_ms,
            inbound: Traffic::default(),
        }) as u32;
        topic.producer_names.insert(name.clone(), producer);
        let lane = topic.lane;
        let waiting = self.clients.insert(
            client.key(),
            Seat::Producer {
                topic: slot,
                producer,
            },
        );
        self.after_log(
            cx,
            lane,
            client.session.core,
            Message::ProducerOpened {
                client,
                request_id,
                name,
                last_sequence_id: -1,
            },
        );
        self.replay_waiting(cx, waiting, now);
    }

    /// Appends one SEND and remembers whom to tell when it is durable.
    pub(super) fn publish(
        &mut self,
        cx: &mut Context,
        send: SendId,
        num_messages: u32,
        refused: Option<(ServerError, &'static str)>,
        frame: &Frame,
        now: Now,
    ) {
        let client = send.client;
        let Some(Seat::Producer {
            topic: slot,
            producer,
        }) = self.clients.get(&client.key())
        else {
            return cx.post(client.session.core, Message::NoSuchProducer { client });
        };
        let (slot, producer) = (*slot, *producer);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let refused = refused
            .or_else(|| {
                topic.state.terminated.map(|_| {
                    (
                        ServerError::TopicTerminatedError,
                        "the topic was terminated",
                    )
                })
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
        let data = frame.rest();
        let Some(ledger) = topic
            .state
            .ledgers
            .current()
            .map(|ledger| (ledger.id, ledger.entries))
        else {
            return;
        };
        let position = Position::new(ledger.0, ledger.1);
        let appended = match seat.lane.append_entry(
            topic.state.id,
            position.ledger,
            position.entry,
            data,
        ) {
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
        cx.counters.messages_in += u64::from(num_messages);
        cx.counters.bytes_in += data.len() as u64;
        let (messages, bytes) = (u64::from(num_messages), data.len() as u64);
        topic.inbound.add(messages, bytes, now);
        topic.entries_added += 1;
        if let Some(producer) = topic.producers.get_mut(producer as usize) {
            producer.pending += 1;
            producer.inbound.add(messages, bytes, now);
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

    /// The error takes its turn among the receipts, unless nothing becomes durable for now.
    fn refuse_send(
        &mut self,
        cx: &mut Context,
        slot: u32,
        producer: u32,
        send: SendId,
        error: (ServerError, &'static str),
    ) {
        cx.counters.publish_errors += 1;
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let client = send.client;
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
        topic.confirmed = position;
        topic.mark_dirty(&mut self.dirty);
        self.producer_answered(cx, client, slot, producer);
    }

    pub(super) fn producer_answered(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        slot: u32,
        producer: u32,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(entry) = topic
            .producers
            .get_mut(producer as usize)
            .filter(|p| p.client.key() == client.key())
        else {
            return;
        };
        entry.pending = entry.pending.saturating_sub(1);
        if entry.pending == 0
            && let Some(request_id) = entry.closing
        {
            let lane = topic.lane;
            topic.remove_producer(producer);
            self.clients.remove(&client.key());
            self.producer_closed(cx, Some(lane), client, request_id);
        }
    }

    /// Answers CLOSE_PRODUCER, behind what is still queued for the producer: its own opening, and refusals that wait for their turn.
    fn producer_closed(
        &mut self,
        cx: &mut Context,
        lane: Option<usize>,
        client: ClientRef,
        request_id: u64,
    ) {
        let message = Message::ProducerClosed {
            client,
            request_id: Some(request_id),
            by_broker: false,
        };
        match lane.and_then(|lane| self.lanes.get(lane).map(|seat| (lane, seat))) {
            Some((lane, seat)) if seat.refusal().is_none() => {
                self.after_log(cx, lane, client.session.core, message)
            }
            _ => cx.post(client.session.core, message),
        }
    }

    /// CLOSE_PRODUCER waits for what the producer has sent; a lost connection does not.
    pub(super) fn close_producer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        request_id: Option<u64>,
    ) {
        let mut lane = None;
        if let Some(Seat::Producer { topic, producer }) = self.clients.get(&client.key()) {
            let (topic, producer) = (*topic, *producer);
            lane = self.topics.get(topic as usize).map(|topic| topic.lane);
            if let Some(entry) = self
                .topics
                .get_mut(topic as usize)
                .and_then(|topic| topic.producers.get_mut(producer as usize))
            {
                if entry.pending > 0 && request_id.is_some() {
                    entry.closing = request_id;
                    return;
                }
                if let Some(topic) = self.topics.get_mut(topic as usize) {
                    topic.remove_producer(producer);
                }
            }
        }
        self.clients.remove(&client.key());
        if let Some(request_id) = request_id {
            self.producer_closed(cx, lane, client, request_id);
        }
    }
}

impl super::Topic {
    fn remove_producer(&mut self, index: u32) {
        if let Some(gone) = self.producers.try_remove(index as usize)
            && self.producer_names.get(&gone.name) == Some(&index)
        {
            self.producer_names.remove(&gone.name);
        }
    }

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
