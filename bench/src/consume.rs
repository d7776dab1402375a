//! Consuming: every delivery is verified, acknowledged, and its permit given back.

use std::collections::hash_map::Entry as Slot;

use bytes::BytesMut;
use rustc_hash::FxHashMap;
use serde::Serialize;
use vela_codec::batch::BatchReader;
use vela_codec::entry::Entry;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;
use vela_proto::command_ack::AckType;
use vela_proto::command_subscribe::{InitialPosition, SubType};
use vela_proto::{
    BaseCommand, CommandAck, CommandCloseConsumer, CommandFlow, CommandUnsubscribe, MessageIdData,
};

use crate::args::{ConsumeArgs, SubscriptionArgs, SubscriptionType, TopicArgs};
use crate::connection::{Address, Connection, describe};
use crate::error::{Context as _, Failure, Result, fail};
use crate::measure::{self, Cost, Latencies, LatencySummary, Meter, monotonic_ns, ns};
use crate::message::{Header, pattern};
use crate::net::{Net, READ_SIZE};
use crate::report::{PerMillion, Report, Table, Work};
use crate::wire::{Delivery, RawFrame};

/// Acknowledgements wait at most this long for others, in nanoseconds.
const ACK_EVERY: u64 = 100_000_000;
/// Longest payload whose pattern is known.
const PATTERN_LEN: usize = 5_242_880;
/// How long the end of a run waits for the broker to confirm it, in nanoseconds.
const CLOSE_PATIENCE: u64 = 5_000_000_000;

/// What one consumer has seen of one producer.
#[derive(Debug, Clone, Copy)]
struct Seen {
    first: u64,
    /// Highest sequence id.
    last: u64,
}

/// Which producer of which run.
type ProducerKey = (u32, u32);

#[derive(Debug)]
struct Consumer {
    /// Index of the connection.
    link: usize,
    /// Messages delivered and not yet given back as permits.
    owed: u64,
    /// The ACK in the making, used again for each.
    ack: BaseCommand,
    acked_at: u64,
    producers: FxHashMap<ProducerKey, Seen>,
    closed: bool,
}

/// Messages counted over all consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Of this run, each first delivery.
    pub(crate) received: u64,
    /// Bytes of their payloads.
    pub(crate) payload_bytes: u64,
    /// Delivered again, and said so.
    pub(crate) redelivered: u64,
    /// Of another run: left over in the subscription. Acknowledged, not counted.
    pub(crate) foreign: u64,
}

/// All consumers of a run.
pub(crate) struct Consumers {
    consumers: Vec<Consumer>,
    /// Only messages of this run count, if given.
    run: Option<u32>,
    ordered: bool,
    queue: u64,
    ack_group: usize,
    pattern: Vec<u8>,
    pub(crate) counts: Counts,
    /// Received per producer over all consumers, for finding what is missing at the end.
    totals: FxHashMap<ProducerKey, (u64, Seen)>,
    /// Time from send to delivery of what was sent in the measured window.
    pub(crate) latencies: Latencies,
    measured: std::ops::Range<u64>,
}

impl Consumers {
    /// Subscribes consumers of every topic, each on a connection of its own. Nothing is delivered before [`Consumers::begin`].
    pub(crate) fn subscribe(
        net: &mut Net,
        url: &str,
        topics: &TopicArgs,
        args: &SubscriptionArgs,
        earliest: bool,
        run: Option<u32>,
    ) -> Result<Self> {
        let kind = match args.subscription_type {
            SubscriptionType::Exclusive if args.consumers > 1 => {
                return fail(format!(
                    "--consumers {} of each topic need --subscription-type shared or key-shared: an exclusive subscription has one",
                    args.consumers
                ));
            }
            SubscriptionType::Exclusive => SubType::Exclusive,
            SubscriptionType::Shared => SubType::Shared,
            SubscriptionType::KeyShared => SubType::KeyShared,
        };
        let position = if earliest {
            InitialPosition::Earliest
        } else {
            InitialPosition::Latest
        };
        let service = Address::resolve(url)?;
        let mut seeker = Connection::open(&service, 4096)?;
        let mut consumers = Vec::new();
        for topic in topics.names() {
            let address = seeker.lookup(&service, &topic)?;
            for _ in 0..args.consumers {
                let id = consumers.len() as u64;
                let mut connection = Connection::open(&address, READ_SIZE)?;
                connection.subscribe(&topic, &args.subscription, kind, position, id)?;
                consumers.push(Consumer::new(id, net.add(connection)?));
            }
        }
        Self::new(consumers, args, run)
    }

    fn new(consumers: Vec<Consumer>, args: &SubscriptionArgs, run: Option<u32>) -> Result<Self> {
        Ok(Self {
            consumers,
            run,
            ordered: args.subscription_type == SubscriptionType::Exclusive,
            queue: u64::from(args.receiver_queue),
            ack_group: args.ack_group as usize,
            pattern: pattern(PATTERN_LEN),
            counts: Counts::default(),
            totals: FxHashMap::default(),
            latencies: Latencies::new()?,
            measured: 0..0,
        })
    }

    /// Number of consumers.
    pub(crate) fn len(&self) -> usize {
        self.consumers.len()
    }

    /// Gives each consumer its permits.
    pub(crate) fn begin(&mut self, net: &mut Net) {
        for (id, consumer) in self.consumers.iter().enumerate() {
            if let Some(out) = net.output(consumer.link) {
                flow(id as u64, self.queue, out);
            }
        }
    }

    /// Messages sent in this range of time have their latency recorded.
    pub(crate) fn measure(&mut self, range: std::ops::Range<u64>) {
        self.measured = range;
    }

    /// Whether the connection belongs to a consumer.
    pub(crate) fn owns(&self, link: usize) -> bool {
        // Consumers' connections were added one after the other.
        match (self.consumers.first(), self.consumers.last()) {
            (Some(first), Some(last)) => (first.link..=last.link).contains(&link),
            _ => false,
        }
    }

    /// A frame for a consumer.
    ///
    /// # Errors
    /// If a message is altered, lost, repeated or out of order, or the broker reports an error.
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

    /// Sends acknowledgements that waited long enough.
    pub(crate) fn tick(&mut self, net: &mut Net, now: u64) {
        for consumer in &mut self.consumers {
            if consumer.acks() > 0
                && now >= consumer.acked_at + ACK_EVERY
                && let Some(out) = net.output(consumer.link)
            {
                consumer.send_ack(out, now);
            }
        }
    }

    /// Sends what is left to acknowledge and closes the consumers; waits until the broker confirms. With `unsubscribe`,
    /// subscriptions with one consumer are removed.
    pub(crate) fn end(&mut self, net: &mut Net, unsubscribe: bool) -> Result<()> {
        let unsubscribe = unsubscribe && self.ordered;
        for (id, consumer) in self.consumers.iter_mut().enumerate() {
            let id = id as u64;
            let Some(out) = net.output(consumer.link) else {
                continue;
            };
            consumer.send_ack(out, 0);
            let command = if unsubscribe {
                BaseCommand {
                    r#type: Type::Unsubscribe as i32,
                    unsubscribe: Some(CommandUnsubscribe {
                        consumer_id: id,
                        request_id: id,
                        ..CommandUnsubscribe::default()
                    }),
                    ..BaseCommand::default()
                }
            } else {
                BaseCommand {
                    r#type: Type::CloseConsumer as i32,
                    close_consumer: Some(CommandCloseConsumer {
                        consumer_id: id,
                        request_id: id,
                        ..CommandCloseConsumer::default()
                    }),
                    ..BaseCommand::default()
                }
            };
            encode::command(&command, out);
        }
        let until = monotonic_ns() + CLOSE_PATIENCE;
        while self.consumers.iter().any(|consumer| !consumer.closed) {
            if monotonic_ns() > until {
                return fail("the broker did not confirm the closing of all consumers within 5 s");
            }
            net.flush();
            net.poll(10_000_000, |link, frame, out, _| {
                // Deliveries still under way are not wanted any more.
                if self.owns(link) && !frame.type_is(Type::Message) {
                    self.handle(frame, out, 0)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    /// Messages missing between the first and the last of each producer.
    pub(crate) fn missing(&self) -> u64 {
        self.totals
            .values()
            .map(|(count, seen)| (seen.last - seen.first + 1).saturating_sub(*count))
            .sum()
    }

    fn deliver(
        &mut self,
        delivery: &Delivery,
        entry: &[u8],
        out: &mut BytesMut,
        now: u64,
    ) -> Result<()> {
        let id = delivery.consumer_id;
        let position = || format!("message {}:{}", delivery.ledger, delivery.entry);
        let entry = Entry::parse(entry).context(position)?;
        entry.verify_checksum().context(position)?;
        let Some(metadata) = entry.metadata_view() else {
            return fail(format!("{} has no readable metadata", position()));
        };
        let redelivered = delivery.redelivery_count > 0;
        let messages = match metadata.num_messages_in_batch {
            None => {
                self.message(id, metadata.sequence_id, entry.payload, redelivered, now)
                    .context(position)?;
                1
            }
            Some(count) => {
                let mut messages = 0;
                for message in BatchReader::new(entry.payload, count) {
                    let message = message.context(position)?;
                    let sequence = metadata.sequence_id + messages;
                    self.message(id, sequence, message.payload, redelivered, now)
                        .context(position)?;
                    messages += 1;
                }
                messages
            }
        };
        let Some(consumer) = self.consumers.get_mut(id as usize) else {
            return fail(format!("{} is for the unknown consumer {id}", position()));
        };
        consumer.owed += delivery.permits.unwrap_or(messages);
        if consumer.owed * 2 >= self.queue {
            flow(id, consumer.owed, out);
            consumer.owed = 0;
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
        if consumer.acks() >= self.ack_group {
            consumer.send_ack(out, now);
        }
        Ok(())
    }

    /// One message: is it ours, whole, and the next of its producer?
    fn message(
        &mut self,
        consumer: u64,
        sequence: u64,
        payload: &[u8],
        redelivered: bool,
        now: u64,
    ) -> Result<()> {
        let header = Header::read(payload, &self.pattern).ok_or_else(|| {
            Failure("its payload is not one of this program's, or was altered".into())
        })?;
        if header.sequence != sequence {
            return fail(format!(
                "its payload has sequence id {}, its metadata {sequence}",
                header.sequence
            ));
        }
        if self.run.is_some_and(|run| run != header.run) {
            self.counts.foreign += 1;
            return Ok(());
        }
        if redelivered {
            self.counts.redelivered += 1;
            return Ok(());
        }
        let key = (header.run, header.producer);
        let Some(consumer) = self.consumers.get_mut(consumer as usize) else {
            return fail("it is for an unknown consumer");
        };
        match consumer.producers.entry(key) {
            Slot::Vacant(slot) => {
                slot.insert(Seen {
                    first: sequence,
                    last: sequence,
                });
            }
            Slot::Occupied(mut slot) => {
                let last = &mut slot.get_mut().last;
                if sequence <= *last {
                    return fail(format!(
                        "sequence id {sequence} of producer {} came behind {last}: repeated or out of order",
                        header.producer
                    ));
                }
                if self.ordered && sequence != *last + 1 {
                    return fail(format!(
                        "sequence id {sequence} of producer {} came behind {last}: {} lost or out of order",
                        header.producer,
                        sequence - *last - 1
                    ));
                }
                *last = sequence;
            }
        }
        let (count, seen) = self.totals.entry(key).or_insert((
            0,
            Seen {
                first: sequence,
                last: sequence,
            },
        ));
        *count += 1;
        seen.first = seen.first.min(sequence);
        seen.last = seen.last.max(sequence);
        self.counts.received += 1;
        self.counts.payload_bytes += payload.len() as u64;
        if self.measured.contains(&header.time) {
            self.latencies.record(now.saturating_sub(header.time), 1);
        }
        Ok(())
    }
}

impl Consumer {
    fn new(id: u64, link: usize) -> Self {
        Self {
            link,
            owed: 0,
            ack: new_ack(id),
            acked_at: 0,
            producers: FxHashMap::default(),
            closed: false,
        }
    }

    fn acks(&self) -> usize {
        self.ack.ack.as_ref().map_or(0, |ack| ack.message_id.len())
    }

    fn send_ack(&mut self, out: &mut BytesMut, now: u64) {
        if self.acks() > 0 {
            encode::command(&self.ack, out);
        }
        if let Some(ack) = &mut self.ack.ack {
            ack.message_id.clear();
        }
        self.acked_at = now;
    }
}

fn new_ack(consumer_id: u64) -> BaseCommand {
    BaseCommand {
        r#type: Type::Ack as i32,
        ack: Some(CommandAck {
            consumer_id,
            ack_type: AckType::Individual as i32,
            ..CommandAck::default()
        }),
        ..BaseCommand::default()
    }
}

fn flow(consumer_id: u64, permits: u64, out: &mut BytesMut) {
    encode::command(
        &BaseCommand {
            r#type: Type::Flow as i32,
            flow: Some(CommandFlow {
                consumer_id,
                message_permits: u32::try_from(permits).unwrap_or(u32::MAX),
            }),
            ..BaseCommand::default()
        },
        out,
    );
}

/// The result of a consuming run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ConsumeReport {
    kind: &'static str,
    valid: bool,
    fault: Option<String>,
    topics: u32,
    consumers: usize,
    work: Work,
    cpu_seconds_per_million: PerMillion,
    cost: Cost,
    counts: Counts,
    /// Age of messages at delivery, from their send: only of messages sent on this machine.
    age_us: LatencySummary,
}

impl Report for ConsumeReport {
    fn rows(&self, table: &mut Table) {
        table.verdict(self.fault.as_deref());
        table.row(
            "load",
            format!(
                "consume, {} consumers of {} topics",
                self.consumers, self.topics
            ),
        );
        table.work(&self.work);
        table.cost(&self.cost, self.cpu_seconds_per_million);
        table.latency("age at delivery", &self.age_us);
        table.row("redelivered", self.counts.redelivered.to_string());
    }
}

/// Consumes; answers whether the run is valid.
pub(crate) fn run(args: &ConsumeArgs) -> Result<bool> {
    if let Some(list) = &args.target.cpu {
        measure::pin(list)?;
    }
    let sockets = u64::from(args.topic.topics) * u64::from(args.subscription.consumers);
    measure::raise_open_files(sockets + 64)?;
    let mut net = Net::new()?;
    let mut consumers = Consumers::subscribe(
        &mut net,
        &args.target.url,
        &args.topic,
        &args.subscription,
        args.earliest,
        None,
    )?;
    consumers.begin(&mut net);
    // Whatever was sent whenever: this is the age.
    consumers.measure(0..u64::MAX);
    let (before, cost, fault) = run_measured(args, &mut net, &mut consumers)?;
    let after = consumers.counts;
    let fault = match (fault, consumers.end(&mut net, false)) {
        (None, Err(Failure(fault))) => Some(fault),
        (fault, _) => fault,
    };
    let messages = after.received - before.received;
    let report = ConsumeReport {
        kind: "consume",
        valid: fault.is_none(),
        fault,
        topics: args.topic.topics,
        consumers: consumers.len(),
        work: Work::new(
            messages,
            (after.payload_bytes - before.payload_bytes) as f64,
            &cost,
        ),
        cpu_seconds_per_million: PerMillion::new(messages, &cost),
        cost,
        counts: after,
        age_us: consumers.latencies.summary(),
    };
    report.print(args.target.json)?;
    Ok(report.valid)
}

/// Until the time is over, or the number of messages is there: the counts when measuring began, the cost, and what went wrong.
fn run_measured(
    args: &ConsumeArgs,
    net: &mut Net,
    consumers: &mut Consumers,
) -> Result<(Counts, Cost, Option<String>)> {
    // A given number of messages is measured from the first on.
    let warmup = if args.messages.is_some() {
        0.0
    } else {
        args.time.warmup
    };
    let from = monotonic_ns() + ns(warmup);
    let to = from + ns(args.time.duration);
    let patience = ns(args.time.patience);
    let mut meter: Option<(Meter, Counts)> = None;
    let mut progress = (0, monotonic_ns());
    let fault = loop {
        let now = monotonic_ns();
        if now >= from && meter.is_none() {
            meter = Some((Meter::start(args.target.broker_pid)?, consumers.counts));
        }
        if let Some((meter, _)) = &mut meter {
            meter.sample(now)?;
        }
        if consumers.counts.received != progress.0 {
            progress = (consumers.counts.received, now);
        }
        match args.messages {
            // Consumers that share a subscription may be a few messages apart.
            Some(wanted) if progress.0 >= wanted && consumers.missing() == 0 => break None,
            Some(wanted) if now > progress.1 + patience => {
                break Some(format!(
                    "{} of {wanted} messages came, {} between them are missing, then none came for {} s",
                    progress.0,
                    consumers.missing(),
                    args.time.patience
                ));
            }
            None if now >= to => break None,
            _ => {}
        }
        consumers.tick(net, now);
        net.flush();
        let polled = net.poll(20_000_000, |_, frame, out, now| {
            consumers.handle(frame, out, now)
        });
        if let Err(Failure(fault)) = polled {
            break Some(fault);
        }
        if let Some((index, reason)) = net.closed.first() {
            break Some(format!("connection {index} ended: {reason}"));
        }
    };
    match meter {
        Some((meter, before)) => Ok((before, meter.finish()?, fault)),
        None => Ok((consumers.counts, Cost::default(), fault)),
    }
}

#[cfg(test)]
mod tests;
