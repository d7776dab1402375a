//! The consuming side of one executor: every delivery is verified, acknowledged, and its permit given back.

mod consumer;

use std::sync::Arc;

use bytes::BytesMut;
use serde::Serialize;
use vela_codec::batch::BatchReader;
use vela_codec::entry::Entry;
use vela_codec::{decode_command, encode};
use vela_proto::MessageIdData;
use vela_proto::base_command::Type;

use self::consumer::{Consumer, end, flow, new_ack};
use crate::connection::describe;
use crate::error::{Context as _, Result, fail};
use crate::links::Links;
use crate::measure::Recorder;
use crate::message::{Header, Payload};
use crate::scenario::Settings;
use crate::setup::{ConsumerPart, Plan};
use crate::verify::{Book, Kind, Offence, Seen, Verification};
use crate::wire::{Delivery, RawFrame};

/// Acknowledgements wait at most this long for others, in nanoseconds.
const ACK_EVERY: u64 = 100_000_000;
/// Between two looks at what waits, in nanoseconds.
const TICK_EVERY: u64 = 10_000_000;

/// One subscription of one topic.
#[derive(Debug)]
struct Subscribed {
    book: Book,
    topic: u32,
    subscription: u32,
    slow: bool,
}

/// Messages counted over all consumers of an executor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Each first delivery of this run.
    pub(crate) received: u64,
    /// Those of subscriptions that are not slow, and the bytes of their payloads.
    pub(crate) timely: u64,
    pub(crate) payload_bytes: u64,
}

/// What consumers do, apart from who they are.
#[derive(Debug, Clone)]
pub(crate) struct Conduct {
    /// Only messages of this run count, if given.
    pub(crate) run: Option<u32>,
    pub(crate) ordered: bool,
    pub(crate) queue: u64,
    pub(crate) ack_group: usize,
    pub(crate) topics: Arc<[String]>,
    pub(crate) subscriptions: Arc<[String]>,
    /// The subscriptions before this one are not slow; the others take so many messages per second.
    pub(crate) slow_from: u32,
    pub(crate) slow_rate: u64,
}

impl Conduct {
    pub(crate) fn new(settings: &Settings, plan: &Plan, run: Option<u32>) -> Self {
        Self {
            run,
            ordered: settings.ordered(),
            queue: settings.receiver_queue.into(),
            ack_group: settings.ack_group as usize,
            topics: Arc::clone(&plan.topics),
            subscriptions: Arc::clone(&plan.subscriptions),
            slow_from: settings.subscriptions - settings.slow_subscriptions,
            slow_rate: settings.slow_rate.into(),
        }
    }
}

/// All consumers of an executor. Their ids are their indexes.
pub(crate) struct Consumers {
    consumers: Vec<Consumer>,
    subscribed: Vec<Subscribed>,
    conduct: Conduct,
    pub(crate) counts: Counts,
    /// From send or due time to delivery.
    pub(crate) latencies: Recorder,
    pub(crate) verification: Verification,
    began: u64,
    next_tick: u64,
}

impl Consumers {
    pub(crate) fn new(parts: &[ConsumerPart], conduct: Conduct) -> Result<Self> {
        let mut subscribed: Vec<Subscribed> = Vec::new();
        let mut known = rustc_hash::FxHashMap::default();
        let mut consumers = Vec::with_capacity(parts.len());
        for (part, id) in parts.iter().zip(0..) {
            let slow = part.subscription >= conduct.slow_from;
            let book = *known
                .entry((part.topic, part.subscription))
                .or_insert_with(|| {
                    subscribed.push(Subscribed {
                        book: Book::new(conduct.run.is_none()),
                        topic: part.topic,
                        subscription: part.subscription,
                        slow,
                    });
                    subscribed.len() - 1
                });
            consumers.push(Consumer {
                link: part.link,
                book,
                owed: 0,
                slow: if slow { conduct.slow_rate.max(1) } else { 0 },
                given: 0,
                ack: new_ack(id),
                acked_at: 0,
                closing: false,
                closed: false,
            });
        }
        Ok(Self {
            consumers,
            subscribed,
            conduct,
            counts: Counts::default(),
            latencies: Recorder::new()?,
            verification: Verification::default(),
            began: 0,
            next_tick: 0,
        })
    }

    /// Gives each consumer its permits.
    pub(crate) fn begin(&mut self, links: &mut Links, now: u64) {
        self.began = now;
        for (id, consumer) in self.consumers.iter_mut().enumerate() {
            if let Some(out) = links.output(consumer.link) {
                let permits = match consumer.slow {
                    0 => self.conduct.queue,
                    slow => self.conduct.queue.min(slow),
                };
                consumer.given = permits;
                consumer.owed = self.conduct.queue - permits;
                flow(id as u64, permits, out);
            }
        }
    }

    /// Slow consumers take what there is from now on.
    pub(crate) fn catch_up(&mut self) {
        for consumer in &mut self.consumers {
            consumer.slow = 0;
        }
        self.next_tick = 0;
    }

    /// A frame for a consumer.
    ///
    /// # Errors
    /// If the broker reports an error, or what came makes no sense.
    pub(crate) fn handle(
        &mut self,
        frame: RawFrame<'_>,
        out: &mut BytesMut,
        now: u64,
    ) -> Result<()> {
        if let Some(delivery) = Delivery::parse(frame.command) {
            return self.deliver(&delivery, frame.rest, out, now);
        }
        let command = decode_command(frame.command)
            .context(|| "a consumer's connection carries a damaged command".into())?;
        match command.r#type() {
            Type::Ping => encode::pong(out),
            Type::Pong | Type::ActiveConsumerChange => {}
            Type::Success => {
                let request = command.success.map_or(0, |success| success.request_id);
                if let Some(consumer) = self.consumers.get_mut(request as usize) {
                    consumer.closed = true;
                }
            }
            _ => return fail(format!("a consumer got {}", describe(&command))),
        }
        Ok(())
    }

    /// Sends acknowledgements that waited long enough, and permits of slow consumers whose time has come.
    pub(crate) fn tick(&mut self, links: &mut Links, now: u64) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK_EVERY;
        let elapsed = now.saturating_sub(self.began);
        for (id, consumer) in self.consumers.iter_mut().enumerate() {
            if consumer.acks() > 0
                && now >= consumer.acked_at + ACK_EVERY
                && let Some(out) = links.output(consumer.link)
            {
                consumer.send_ack(out, now);
            }
            let due = consumer.permits_due(self.conduct.queue, elapsed);
            if due > 0
                && let Some(out) = links.output(consumer.link)
            {
                consumer.give(id as u64, due, out);
            }
        }
    }

    /// Sends what is left to acknowledge and closes the consumers: at first all but one of each subscription, and with the second call, when
    /// they are closed, the others. With `unsubscribe` the latter remove their subscriptions. True: both have been done.
    pub(crate) fn close(&mut self, links: &mut Links, unsubscribe: bool) -> bool {
        let mut last = vec![None; self.subscribed.len()];
        for (id, consumer) in self.consumers.iter().enumerate() {
            if let Some(last) = last.get_mut(consumer.book) {
                *last = Some(id);
            }
        }
        let is_last = |id: usize, book: usize| last.get(book).is_some_and(|last| *last == Some(id));
        let others_closed = self
            .consumers
            .iter()
            .enumerate()
            .all(|(id, consumer)| consumer.closed || is_last(id, consumer.book));
        for (id, consumer) in self.consumers.iter_mut().enumerate() {
            let last = is_last(id, consumer.book);
            if consumer.closing || (last && !others_closed) {
                continue;
            }
            let Some(out) = links.output(consumer.link) else {
                continue;
            };
            consumer.closing = true;
            consumer.send_ack(out, 0);
            end(id as u64, last && unsubscribe, out);
        }
        others_closed
    }

    /// Whether the broker has confirmed every close.
    pub(crate) fn closed(&self) -> bool {
        self.consumers.iter().all(|consumer| consumer.closed)
    }

    /// Messages missing between the first and the last of each device: what a reader of unknown messages can know.
    pub(crate) fn missing_inside(&self) -> u64 {
        self.subscribed
            .iter()
            .map(|each| each.book.missing_inside())
            .sum()
    }

    /// Counts what a device's messages, acknowledged to their publisher, left missing in each subscription of its topic as lost.
    pub(crate) fn count_lost(&mut self, devices: impl Iterator<Item = (u32, u64, u32)> + Clone) {
        let Some(run) = self.conduct.run else {
            let missing = self.missing_inside();
            if missing > 0 {
                self.verification.lost += missing;
                let offence =
                    self.offence(Kind::Lost, 0, None, None, "between others of their devices");
                self.verification.name(|| offence);
            }
            return;
        };
        for book in 0..self.subscribed.len() {
            for (device, settled, topic) in devices.clone() {
                let Some(subscribed) = self.subscribed.get(book) else {
                    continue;
                };
                if subscribed.topic != topic {
                    continue;
                }
                let (missing, first) = subscribed.book.missing((run, device), settled);
                if missing > 0 {
                    self.verification.lost += missing;
                    let why = format!("{missing} of {settled} missing");
                    let offence = self.offence(Kind::Lost, book, Some((device, first)), None, &why);
                    self.verification.name(|| offence);
                }
            }
        }
    }

    fn deliver(
        &mut self,
        delivery: &Delivery,
        entry: &[u8],
        out: &mut BytesMut,
        now: u64,
    ) -> Result<()> {
        let id = delivery.consumer_id;
        let Some(book) = self
            .consumers
            .get(id as usize)
            .map(|consumer| consumer.book)
        else {
            return fail(format!(
                "message {}:{} is for the unknown consumer {id}",
                delivery.ledger, delivery.entry
            ));
        };
        let messages = self.entry(book, delivery, entry, now);
        let queue = self.conduct.queue;
        let elapsed = now.saturating_sub(self.began);
        let Some(consumer) = self.consumers.get_mut(id as usize) else {
            return Ok(());
        };
        consumer.owed += delivery.permits.unwrap_or(messages);
        let due = consumer.permits_due(queue, elapsed);
        if due > 0 {
            consumer.give(id, due, out);
        }
        if let Some(ack) = &mut consumer.ack.ack {
            if ack.message_id.is_empty() {
                consumer.acked_at = now;
            }
            ack.message_id.push(MessageIdData {
                ledger_id: delivery.ledger,
                entry_id: delivery.entry,
                ..MessageIdData::default()
            });
        }
        if consumer.acks() >= self.conduct.ack_group {
            consumer.send_ack(out, now);
        }
        Ok(())
    }

    /// Verifies an entry; answers how many messages it holds.
    fn entry(&mut self, book: usize, delivery: &Delivery, bytes: &[u8], now: u64) -> u64 {
        let altered =
            |what: String| format!("message {}:{}: {what}", delivery.ledger, delivery.entry);
        let entry = match Entry::parse(bytes) {
            Ok(entry) => entry,
            Err(error) => {
                self.corrupt(book, None, &altered(error.to_string()));
                return 1;
            }
        };
        if let Err(error) = entry.verify_checksum() {
            // The payload may be whole, and tell which device's message this is.
            let header = match Payload::read(entry.payload) {
                Payload::Whole(header) | Payload::Altered(header) => Some(header),
                Payload::Short => None,
            };
            self.corrupt(book, header, &altered(error.to_string()));
            return 1;
        }
        let Some(metadata) = entry.metadata_view() else {
            self.corrupt(book, None, &altered("its metadata is unreadable".into()));
            return 1;
        };
        let redelivered = delivery.redelivery_count > 0;
        let Some(count) = metadata.num_messages_in_batch else {
            self.message(
                book,
                metadata.sequence_id,
                entry.payload,
                redelivered,
                now,
                delivery,
            );
            return 1;
        };
        let mut messages = 0;
        for message in BatchReader::new(entry.payload, count) {
            let sequence = metadata.sequence_id + messages;
            messages += 1;
            match message {
                Ok(message) => {
                    self.message(book, sequence, message.payload, redelivered, now, delivery);
                }
                Err(error) => self.corrupt(book, None, &altered(error.to_string())),
            }
        }
        messages.max(1)
    }

    /// One message: is it ours, whole, and the next of its device?
    fn message(
        &mut self,
        book: usize,
        sequence: u64,
        payload: &[u8],
        redelivered: bool,
        now: u64,
        delivery: &Delivery,
    ) {
        let header = match Payload::read(payload) {
            Payload::Whole(header) if header.sequence == sequence => header,
            Payload::Whole(header) => {
                let what = format!(
                    "the metadata has sequence id {sequence}, the payload {}",
                    header.sequence
                );
                return self.corrupt(book, Some(header), &what);
            }
            Payload::Altered(header) => {
                let what = format!(
                    "message {}:{}: the payload's checksum is wrong",
                    delivery.ledger, delivery.entry
                );
                return self.corrupt(book, Some(header), &what);
            }
            Payload::Short => {
                let what = format!(
                    "message {}:{}: {} bytes",
                    delivery.ledger,
                    delivery.entry,
                    payload.len()
                );
                return self.corrupt(book, None, &what);
            }
        };
        if self.conduct.run.is_some_and(|run| run != header.run) {
            self.verification.foreign += 1;
            return;
        }
        self.verification.checked += 1;
        self.verification.redelivered += u64::from(redelivered);
        let Some(subscribed) = self.subscribed.get_mut(book) else {
            return;
        };
        let slow = subscribed.slow;
        let seen = subscribed
            .book
            .enter((header.run, header.device), header.device_sequence);
        let offence = match seen {
            Seen::Next => None,
            // Whether it is lost or late shows later.
            Seen::Ahead(_) => None,
            Seen::Late(expected) if self.conduct.ordered => Some((Kind::OutOfOrder, expected)),
            Seen::Late(_) => None,
            Seen::Again(expected) if redelivered => Some((Kind::Redelivered, expected)),
            Seen::Again(expected) => Some((Kind::Duplicate, expected)),
        };
        if let Some((kind, expected)) = offence {
            match kind {
                Kind::OutOfOrder => self.verification.out_of_order += 1,
                Kind::Duplicate => self.verification.duplicates += 1,
                _ => {}
            }
            let device = Some((header.device, Some(header.device_sequence)));
            let offence = self.offence(kind, book, device, Some(expected), &position(delivery));
            self.verification.name(|| offence);
        } else if redelivered {
            let device = Some((header.device, Some(header.device_sequence)));
            let offence = self.offence(Kind::Redelivered, book, device, None, &position(delivery));
            self.verification.name(|| offence);
        }
        if matches!(seen, Seen::Again(_)) {
            return;
        }
        self.counts.received += 1;
        if slow {
            return;
        }
        self.counts.timely += 1;
        self.counts.payload_bytes += payload.len() as u64;
        self.latencies.record(header.time, now, 1);
    }

    /// Counts an altered message. If its header is believable, the message counts as delivered, not as lost too.
    fn corrupt(&mut self, book: usize, header: Option<Header>, what: &str) {
        self.verification.checked += 1;
        self.verification.corrupt += 1;
        let believable = header.filter(|header| {
            self.conduct.run.is_none_or(|run| run == header.run)
                && self.subscribed.get(book).is_some_and(|each| {
                    each.book
                        .is_next((header.run, header.device), header.device_sequence)
                })
        });
        if let (Some(header), Some(subscribed)) = (believable, self.subscribed.get_mut(book)) {
            subscribed
                .book
                .enter((header.run, header.device), header.device_sequence);
            self.counts.received += 1;
        }
        let device = believable.map(|header| (header.device, Some(header.device_sequence)));
        let offence = self.offence(Kind::Corrupt, book, device, None, what);
        self.verification.name(|| offence);
    }

    fn offence(
        &self,
        kind: Kind,
        book: usize,
        device: Option<(u32, Option<u64>)>,
        expected: Option<u64>,
        detail: &str,
    ) -> Offence {
        let (topic, subscription) = match self.subscribed.get(book) {
            Some(each) => (each.topic as usize, each.subscription as usize),
            None => (usize::MAX, usize::MAX),
        };
        Offence {
            kind,
            topic: self.conduct.topics.get(topic).cloned().unwrap_or_default(),
            subscription: self.conduct.subscriptions.get(subscription).cloned(),
            device: device.map(|(device, _)| device),
            sequence: device.and_then(|(_, sequence)| sequence),
            expected,
            detail: detail.to_owned(),
        }
    }
}

fn position(delivery: &Delivery) -> String {
    format!("message {}:{}", delivery.ledger, delivery.entry)
}

#[cfg(test)]
mod tests;
