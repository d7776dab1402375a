//! Producers of a topic: who they are, how they come and go.

use vela_proto::ServerError;

use super::access::Verdict;
use super::limits::host;
use super::meter::{Meter, Traffic};
use super::openings::Refusal;
use super::{ProbeFor, Seat, TOO_MANY, Topic, Topics, subscription};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, OpenProducer, OpenSchema};
use crate::engine::time::Now;
use crate::store::log::{Position, SequenceId};

/// A producer that is connected.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) client: ClientRef,
    pub(super) name: String,
    /// SENDs that are not durable yet.
    pub(super) pending: u32,
    /// The client closed it: answer this when `pending` is 0.
    pub(super) closing: Option<u64>,
    /// What it published.
    pub(super) inbound: Traffic,
    /// Messages of it that were dropped, because its connection had too many unanswered on non-persistent topics.
    pub(super) dropped: Meter,
    /// A message of it could not be stored: nothing behind that is, or it would stand before what the client sends again.
    pub(super) failed: bool,
    /// Its number in the topic's sequences, with deduplication.
    pub(super) sequence: Option<SequenceId>,
    /// It promised to encrypt.
    pub(super) encrypted: bool,
    /// How it came, for statistics: address, metadata, access mode, whether the client chose the name.
    pub(super) open: Box<OpenProducer>,
}

impl Topics {
    pub(super) fn open_producer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenProducer>,
        now: Now,
    ) {
        if let Err(refusal) = self.try_open_producer(cx, client, open, now) {
            self.refuse_producer(cx, client, refusal, now);
        }
    }

    /// Checks in the order of Pulsar 5.0.1: existence, limit, encryption, schema, access mode, end, address, name.
    fn try_open_producer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenProducer>,
        now: Now,
    ) -> Result<(), Refusal> {
        let request_id = open.request_id;
        let refuse = |error, message: String| Err((request_id, error, message));
        if open.create && self.is_full(cx, &open.topic, 1) {
            return refuse(ServerError::NotAllowedError, TOO_MANY.into());
        }
        let Some(slot) = self.find_or_create(cx, &open.topic, open.create, now) else {
            return refuse(
                ServerError::TopicNotFound,
                format!("Topic {} does not exist", open.topic),
            );
        };
        self.take_limits(cx, slot, now);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return Ok(());
        };
        if let Some(text) = topic.fence() {
            return refuse(ServerError::ServiceNotReady, text);
        }
        let limits = topic.limits.unwrap_or_default();
        let holder = open.name.as_ref().and_then(|name| {
            let index = topic.producer_names.get(name)?;
            Some(topic.producers.get(*index as usize)?.client)
        });
        if limits.producers > 0
            && holder.is_none()
            && topic.producers.len() >= limits.producers as usize
        {
            let text = format!(
                "Topic {} reached max producers limit: maxProducersPerTopic is {}",
                topic.name, limits.producers
            );
            return refuse(ServerError::ProducerBusy, text);
        }
        if limits.encryption && !open.encrypted {
            let text = format!("Encryption is required in {}", topic.name);
            return refuse(ServerError::MetadataError, text);
        }
        let Some(mut open) = self.with_schema(cx, client, open) else {
            return Ok(());
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return Ok(());
        };
        if topic.state.terminated.is_some() {
            let text = format!("Topic {} was terminated", topic.name);
            return refuse(ServerError::TopicTerminatedError, text);
        }
        let verdict = topic
            .access
            .decide(open.access, open.topic_epoch, topic.producers.len());
        let conflict = match &verdict {
            Verdict::Refuse(error, text) => Some((*error, format!("Topic {} {text}", topic.name))),
            Verdict::Share if holder.is_some() => Some((
                ServerError::ProducerBusy,
                format!(
                    "Producer with name '{}' is already connected to topic '{}'",
                    open.name.as_deref().unwrap_or_default(),
                    topic.name
                ),
            )),
            _ => None,
        };
        match (conflict, holder) {
            // It may be the newcomer's own former connection: whose peer is gone makes room.
            (Some(refusal), Some(holder)) if holder.session != client.session => {
                self.probe(
                    cx,
                    client,
                    holder.session,
                    ProbeFor::Producer(open, refusal),
                );
                return Ok(());
            }
            (Some((error, text)), _) => return refuse(error, text),
            (None, _) => {}
        }
        let same = cx.settings.max_same_address_producers_per_topic;
        if same > 0 {
            let from = host(&open.address);
            let theirs = topic.producers.iter();
            let theirs = theirs.filter(|(_, producer)| host(&producer.open.address) == from);
            if theirs.count() >= same as usize {
                let text = format!(
                    "Topic {} has reached its limit of producers of the address {from}: maxSameAddressProducersPerTopic is {same}",
                    topic.name
                );
                return refuse(ServerError::ProducerBusy, text);
            }
        }
        if let Some(subscription) = &open.initial_subscription
            && !topic.is_volatile()
            && !topic.sub_names.contains_key(subscription)
            && let Some(seat) = self.lanes.get_mut(topic.lane)
        {
            subscription::create_durable(topic, seat, subscription, Position::EARLIEST, &[]);
        }
        if open.name.is_none() {
            topic.names_made += 1;
            // The epoch is unique per start of the broker, the topic and counter within it.
            let epoch = self
                .lanes
                .get(topic.lane)
                .map_or(0, |seat| seat.lane.epoch());
            open.user_named = false;
            open.name = Some(format!(
                "{}-{epoch}-{}-{}-{}",
                cx.settings.cluster_name, cx.core, topic.state.id, topic.names_made
            ));
        }
        let waiting = match verdict {
            Verdict::Refuse(..) => return Ok(()),
            Verdict::Queue => {
                let lane = topic.log();
                let name = open.name.clone().unwrap_or_default();
                topic.access.queue.push_back((client, open));
                let seat = Seat::Queued { topic: slot };
                let waiting = self.clients.insert(client.key(), seat);
                let queued = Message::ProducerQueued {
                    client,
                    request_id,
                    name,
                };
                self.after_log(cx, lane, client.session.core, queued);
                waiting
            }
            Verdict::Share | Verdict::Own(_) => {
                let waiting = self.clients.remove(&client.key());
                let epoch = match verdict {
                    Verdict::Own(epoch) => Some(epoch),
                    _ => None,
                };
                if epoch.is_some() {
                    self.fence_producers(cx, slot);
                }
                if let Err(refusal) = self.admit(cx, slot, client, open, epoch) {
                    if let Some(seat) = waiting {
                        self.clients.insert(client.key(), seat);
                    }
                    return Err(refusal);
                }
                waiting
            }
        };
        self.replay_waiting(cx, waiting, now);
        Ok(())
    }

    /// Makes a producer one of the topic's; with an epoch it has the topic for itself. Its name is set.
    pub(super) fn admit(
        &mut self,
        cx: &mut Context,
        slot: u32,
        client: ClientRef,
        mut open: Box<OpenProducer>,
        epoch: Option<u64>,
    ) -> Result<(), Refusal> {
        let request_id = open.request_id;
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return Ok(());
        };
        let lane = topic.log();
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return Ok(());
        };
        let name = open.name.take().unwrap_or_default();
        let schema_version = match open.schema {
            OpenSchema::Decided(version) => version,
            _ => None,
        };
        let mut sequence = None;
        if topic.limits.is_some_and(|limits| limits.dedup) {
            let max = cx.settings.broker_deduplication_max_number_of_producers;
            sequence = topic.sequence(seat, &name, max);
            if sequence.is_none() {
                let text = format!(
                    "Topic {} deduplicates {max} connected producers, no more are taken: brokerDeduplicationMaxNumberOfProducers is {max}",
                    topic.name
                );
                return Err((request_id, ServerError::ProducerBusy, text));
            }
        }
        if let Some(epoch) = epoch {
            topic.begin_epoch(seat, epoch);
        }
        let producer = topic.producers.insert(Producer {
            client,
            name: name.clone(),
            pending: 0,
            closing: None,
            inbound: Traffic::default(),
            dropped: Meter::default(),
            failed: false,
            sequence,
            encrypted: open.encrypted,
            open,
        }) as u32;
        topic.producer_names.insert(name.clone(), producer);
        let opened = Message::ProducerOpened {
            client,
            request_id,
            name,
            last_sequence_id: sequence
                .and_then(|id| topic.state.sequences.highest(id))
                .unwrap_or(-1),
            schema_version,
            topic_epoch: topic.access.epoch,
        };
        let seat = Seat::Producer {
            topic: slot,
            producer,
        };
        self.clients.insert(client.key(), seat);
        self.after_log(cx, lane, client.session.core, opened);
        Ok(())
    }

    /// Takes a producer out of its topic. [`Topics::promote`] is to follow.
    fn remove_producer(&mut self, slot: u32, index: u32) -> Option<Producer> {
        let topic = self.topics.get_mut(slot as usize)?;
        let gone = topic.producers.try_remove(index as usize)?;
        if topic.producer_names.get(&gone.name) == Some(&index) {
            topic.producer_names.remove(&gone.name);
        }
        self.clients.remove(&gone.client.key());
        if let Some(id) = gone.sequence {
            self.sequence_idle(slot, id);
        }
        Some(gone)
    }

    /// Closes producers from this side, and tells their clients or not.
    pub(super) fn close_producers(
        &mut self,
        cx: &mut Context,
        slot: u32,
        tell: bool,
        which: impl Fn(&Producer) -> bool,
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return;
        };
        let gone: Vec<u32> = topic
            .producers
            .iter()
            .filter(|(_, producer)| which(producer))
            .map(|(index, _)| index as u32)
            .collect();
        for index in gone {
            let Some(producer) = self.remove_producer(slot, index) else {
                continue;
            };
            let client = producer.client;
            // One that its client is closing just gets its answer.
            let message = Message::ProducerClosed {
                client,
                request_id: producer.closing,
                by_broker: tell && producer.closing.is_none(),
            };
            cx.post(client.session.core, message);
        }
        self.promote(cx, slot);
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
            let lane = topic.log();
            self.remove_producer(slot, producer);
            self.producer_closed(cx, lane, client, request_id);
            self.promote(cx, slot);
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
        let mut left = None;
        match self.clients.get(&client.key()) {
            Some(Seat::Producer { topic, producer }) => {
                let (slot, producer) = (*topic, *producer);
                if let Some(topic) = self.topics.get_mut(slot as usize) {
                    lane = topic.log();
                    if let Some(entry) = topic.producers.get_mut(producer as usize)
                        && entry.pending > 0
                        && request_id.is_some()
                    {
                        entry.closing = request_id;
                        return;
                    }
                }
                self.remove_producer(slot, producer);
                left = Some(slot);
            }
            Some(Seat::Queued { topic }) => {
                let slot = *topic;
                lane = self.topics.get(slot as usize).and_then(Topic::log);
                self.leave_queue(slot, client);
            }
            _ => {}
        }
        self.clients.remove(&client.key());
        if let Some(request_id) = request_id {
            self.producer_closed(cx, lane, client, request_id);
        }
        if let Some(slot) = left {
            self.promote(cx, slot);
        }
    }
}
