//! Publishing: a window of outstanding sends over all connections, or a fixed rate, with every receipt matched.

use bytes::BytesMut;
use serde::Serialize;
use vela_codec::{decode_command, encode};
use vela_proto::base_command::Type;

use crate::args::PublishArgs;
use crate::connection::{Address, Connection, describe};
use crate::consume::{Consumers, Counts};
use crate::error::{Context as _, Failure, Result, fail};
use crate::measure::{self, Cost, Latencies, LatencySummary, Meter, monotonic_ns, ns, unix_ms};
use crate::message::{FIRST_SEQUENCE, LAST_SEQUENCE, Template};
use crate::net::{Net, READ_SIZE};
use crate::pending::Pending;
use crate::report::{PerMillion, Report, Table, Work};
use crate::schedule::Schedule;
use crate::wire::{RawFrame, Receipt};

/// A connection with more than this to write takes no more sends, in bytes: the socket is full, and the broker decides.
const MAX_BACKLOG: usize = 512 * 1024;
/// Sends between two looks at the clock while a window is filled.
const SENDS_PER_LOOK: u32 = 32;
/// Longest wait for events, in nanoseconds: how late the end of a phase may be noticed.
const MAX_WAIT: u64 = 10_000_000;

struct Producer {
    /// Index of the connection.
    link: usize,
    template: Template,
    pending: Pending,
    next_sequence: u64,
}

/// All producers of a run. Their ids are their indexes.
struct Publisher {
    producers: Vec<Producer>,
    /// The producer to send next.
    turn: usize,
    window: usize,
    batch: u64,
    schedule: Option<Schedule>,
    /// SENDs without receipt.
    outstanding: usize,
    /// Messages with receipt.
    settled: u64,
    latencies: Latencies,
    measured: std::ops::Range<u64>,
}

impl Publisher {
    /// Opens the connections and makes the producers: as many as the larger number of connections and topics, dealt out in turn.
    fn open(net: &mut Net, args: &PublishArgs, run: u32) -> Result<Self> {
        let service = Address::resolve(&args.target.url)?;
        let mut seeker = Connection::open(&service, 4096)?;
        let topics = args
            .topic
            .names()
            .into_iter()
            .map(|topic| Ok((seeker.lookup(&service, &topic)?, topic)))
            .collect::<Result<Vec<_>>>()?;
        // A connection for each slot and address: one per slot, unless a slot's topics live at different addresses.
        let slots = args.connections as usize;
        let mut connections: Vec<(usize, Address, Connection)> = Vec::new();
        let mut producers = Vec::new();
        for id in 0..slots.max(topics.len()) {
            let Some((address, topic)) = topics.get(id % topics.len().max(1)) else {
                return fail("no topics");
            };
            let slot = id % slots;
            let known = connections
                .iter()
                .position(|(s, a, _)| *s == slot && a == address);
            let at = match known {
                Some(at) => at,
                None => {
                    let connection = Connection::open(address, READ_SIZE)?;
                    connections.push((slot, address.clone(), connection));
                    connections.len() - 1
                }
            };
            let Some((_, _, connection)) = connections.get_mut(at) else {
                return fail("no connections");
            };
            let name = connection.producer(topic, id as u64)?;
            let template = Template::new(
                id as u64,
                &name,
                (run, id as u32),
                args.size as usize,
                args.batch as usize,
                unix_ms(),
            )?;
            producers.push((at, template));
        }
        let mut links = Vec::new();
        for (_, _, connection) in connections {
            links.push(net.add(connection)?);
        }
        let window = args.window as usize;
        let batch = u64::from(args.batch);
        let producers = producers
            .into_iter()
            .map(|(at, template)| Producer {
                link: links.get(at).copied().unwrap_or_default(),
                template,
                pending: Pending::new(FIRST_SEQUENCE, batch, window),
                next_sequence: FIRST_SEQUENCE,
            })
            .collect();
        Ok(Self {
            producers,
            turn: 0,
            window,
            batch,
            schedule: None,
            outstanding: 0,
            settled: 0,
            latencies: Latencies::new()?,
            measured: 0..0,
        })
    }

    /// Sends what the window, the schedule and the sockets allow.
    fn fill(&mut self, net: &mut Net) -> Result<()> {
        let mut now = monotonic_ns();
        let mut now_ms = unix_ms();
        let mut looks = SENDS_PER_LOOK;
        let mut skipped = 0;
        while self.outstanding < self.window && skipped < self.producers.len() {
            let Some(producer) = self.producers.get_mut(self.turn) else {
                self.turn = 0;
                continue;
            };
            if net.backlog(producer.link) + producer.template.len()
                > MAX_BACKLOG.max(2 * producer.template.len())
            {
                skipped += 1;
                self.turn += 1;
                continue;
            }
            if producer.next_sequence + self.batch - 1 > LAST_SEQUENCE {
                return fail(format!(
                    "a producer can send {} messages; ask for a shorter run or more connections",
                    LAST_SEQUENCE - FIRST_SEQUENCE + 1
                ));
            }
            let time = match &mut self.schedule {
                None => now,
                Some(schedule) => match schedule.take_group(self.batch, now) {
                    Some(due) => due,
                    None => break,
                },
            };
            let Some(out) = net.output(producer.link) else {
                return fail("a connection is gone");
            };
            producer
                .template
                .write(producer.next_sequence, now_ms, time, out);
            producer.next_sequence += self.batch;
            producer.pending.push(time);
            self.outstanding += 1;
            self.turn += 1;
            skipped = 0;
            looks -= 1;
            if looks == 0 {
                (now, now_ms, looks) = (monotonic_ns(), unix_ms(), SENDS_PER_LOOK);
            }
        }
        Ok(())
    }

    /// A frame of a publishing connection.
    ///
    /// # Errors
    /// If it is a receipt that does not match, or an error.
    fn handle(&mut self, frame: RawFrame<'_>, out: &mut BytesMut, now: u64) -> Result<()> {
        let Some(receipt) = Receipt::parse(frame.command) else {
            return other_command(frame, out);
        };
        let Some(producer) = self.producers.get_mut(receipt.producer_id as usize) else {
            return fail(format!(
                "a receipt came for the unknown producer {}",
                receipt.producer_id
            ));
        };
        let time = producer
            .pending
            .settle(&receipt)
            .context(|| format!("producer {}", receipt.producer_id))?;
        self.outstanding -= 1;
        self.settled += self.batch;
        if self.measured.contains(&time) {
            self.latencies.record(now.saturating_sub(time), self.batch);
        }
        Ok(())
    }

    /// How long to wait for events when nothing can be sent, in nanoseconds.
    fn wait(&self) -> u64 {
        match &self.schedule {
            Some(schedule) if self.outstanding < self.window => schedule
                .group_due(self.batch)
                .saturating_sub(monotonic_ns())
                .min(MAX_WAIT),
            _ => MAX_WAIT,
        }
    }

    fn missing(&self) -> usize {
        self.producers.iter().map(|p| p.pending.len()).sum()
    }
}

fn other_command(frame: RawFrame<'_>, out: &mut BytesMut) -> Result<()> {
    let command = decode_command(frame.command)
        .context(|| "a producer's connection carries a damaged command".into())?;
    match command.r#type() {
        Type::Ping => encode::pong(out),
        Type::Pong => {}
        _ => return fail(format!("a producer got {}", describe(&command))),
    }
    Ok(())
}

/// The result of a publishing run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PublishReport {
    kind: &'static str,
    pub(crate) valid: bool,
    pub(crate) fault: Option<String>,
    connections: u32,
    topics: u32,
    producers: usize,
    size: u32,
    window: u32,
    batch: u32,
    rate: Option<u64>,
    /// Messages with receipt in the measured window.
    pub(crate) work: Work,
    cpu_seconds_per_million: PerMillion,
    cost: Cost,
    /// From send, or with a rate from when it was due, to receipt, of the messages sent or due in the measured window.
    pub(crate) receipt_us: LatencySummary,
    delivered: Option<Delivered>,
}

/// The consuming side of a round trip.
#[derive(Debug, Clone, Serialize)]
struct Delivered {
    consumers: usize,
    /// Messages delivered in the measured window.
    work: Work,
    counts: Counts,
    /// From send, or with a rate from when it was due, to delivery.
    delivery_us: LatencySummary,
}

impl Report for PublishReport {
    fn rows(&self, table: &mut Table) {
        table.verdict(self.fault.as_deref());
        let rate = self.rate.map_or_else(
            || "as fast as the window allows".into(),
            |rate| format!("{rate} messages/s, open loop"),
        );
        table.row(
            "load",
            format!(
                "{} producers on {} connections and {} topics, {} B, batch {}, window {}, {rate}",
                self.producers, self.connections, self.topics, self.size, self.batch, self.window
            ),
        );
        table.work(&self.work);
        table.cost(&self.cost, self.cpu_seconds_per_million);
        table.latency("receipt latency", &self.receipt_us);
        if let Some(delivered) = &self.delivered {
            table.row(
                "delivered/s",
                crate::report::grouped(delivered.work.messages_per_second),
            );
            table.latency("delivery latency", &delivered.delivery_us);
            if delivered.counts.redelivered > 0 || delivered.counts.foreign > 0 {
                table.row(
                    "besides",
                    format!(
                        "{} redelivered, {} of other runs",
                        delivered.counts.redelivered, delivered.counts.foreign
                    ),
                );
            }
        }
    }
}

/// Publishes; answers whether the run is valid.
pub(crate) fn run(args: &PublishArgs) -> Result<bool> {
    if let Some(list) = &args.target.cpu {
        measure::pin(list)?;
    }
    let report = measured(args)?;
    report.print(args.target.json)?;
    Ok(report.valid)
}

/// What was counted when measuring began or ended.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    settled: u64,
    delivered: Counts,
}

/// Publishes and measures.
pub(crate) fn measured(args: &PublishArgs) -> Result<PublishReport> {
    let consumers_per_topic = if args.consume {
        args.subscription.consumers
    } else {
        0
    };
    let sockets = u64::from(args.connections.max(args.topic.topics))
        + u64::from(args.topic.topics) * u64::from(consumers_per_topic);
    measure::raise_open_files(sockets + 64)?;

    let run = monotonic_ns() as u32 ^ std::process::id().rotate_left(16);
    let mut net = Net::new()?;
    // Subscriptions first: what is published is delivered from the first message on.
    let mut consumers = match args.consume {
        true => Some(Consumers::subscribe(
            &mut net,
            &args.target.url,
            &args.topic,
            &args.subscription,
            false,
            Some(run),
        )?),
        false => None,
    };
    let mut publisher = Publisher::open(&mut net, args, run)?;
    if let Some(consumers) = &mut consumers {
        consumers.begin(&mut net);
    }

    let outcome = drive(args, &mut net, &mut publisher, consumers.as_mut())?;
    let mut fault = outcome.fault;
    if let Some(consumers) = &mut consumers
        && let Err(Failure(reason)) = consumers.end(&mut net, true)
    {
        fault.get_or_insert(reason);
    }

    let cost = outcome.cost;
    let messages = outcome.to.settled - outcome.from.settled;
    let delivered = consumers.map(|consumers| {
        let (from, to) = (outcome.from.delivered, outcome.to.delivered);
        Delivered {
            consumers: consumers.len(),
            work: Work::new(
                to.received - from.received,
                (to.payload_bytes - from.payload_bytes) as f64,
                &cost,
            ),
            counts: consumers.counts,
            delivery_us: consumers.latencies.summary(),
        }
    });
    Ok(PublishReport {
        kind: "publish",
        valid: fault.is_none(),
        fault,
        connections: args.connections,
        topics: args.topic.topics,
        producers: publisher.producers.len(),
        size: args.size,
        window: args.window,
        batch: args.batch,
        rate: args.rate,
        work: Work::new(messages, messages as f64 * f64::from(args.size), &cost),
        cpu_seconds_per_million: PerMillion::new(messages, &cost),
        cost,
        receipt_us: publisher.latencies.summary(),
        delivered,
    })
}

struct Outcome {
    from: Mark,
    to: Mark,
    cost: Cost,
    fault: Option<String>,
}

/// Warm-up, the measured window, and the wait for what is outstanding then.
fn drive(
    args: &PublishArgs,
    net: &mut Net,
    publisher: &mut Publisher,
    mut consumers: Option<&mut Consumers>,
) -> Result<Outcome> {
    let start = monotonic_ns();
    let from = start + ns(args.time.warmup);
    let to = from + ns(args.time.duration);
    let patience = ns(args.time.patience);
    publisher.schedule = args.rate.map(|rate| Schedule::new(start, rate));
    publisher.measured = from..to;
    if let Some(consumers) = consumers.as_deref_mut() {
        consumers.measure(from..to);
    }
    let mut meter: Option<(Meter, Mark)> = None;
    let mut outcome: Option<Outcome> = None;
    let mut progress = (0, start);
    let fault = loop {
        let now = monotonic_ns();
        let mark = Mark {
            settled: publisher.settled,
            delivered: consumers
                .as_deref()
                .map_or_else(Counts::default, |c| c.counts),
        };
        let received = mark.delivered.received;
        if mark.settled + received != progress.0 {
            progress = (mark.settled + received, now);
        }
        let undelivered = match consumers {
            Some(_) => publisher.settled.saturating_sub(received),
            None => 0,
        };
        match &mut meter {
            None if outcome.is_none() && now >= from => {
                meter = Some((Meter::start(args.target.broker_pid)?, mark));
            }
            Some((meter, _)) => meter.sample(now)?,
            None => {}
        }
        if now >= to
            && let Some((meter, began)) = meter.take()
        {
            outcome = Some(Outcome {
                from: began,
                to: mark,
                cost: meter.finish()?,
                fault: None,
            });
        }
        let sending = outcome.is_none();
        let waiting = publisher.outstanding > 0 || undelivered > 0;
        if !sending && !waiting {
            break None;
        }
        if waiting && now > progress.1 + patience {
            break Some(format!(
                "{} receipts and {undelivered} deliveries are missing: none came for {} s",
                publisher.missing(),
                args.time.patience
            ));
        }
        if sending && let Err(Failure(fault)) = publisher.fill(net) {
            break Some(fault);
        }
        if let Some(consumers) = consumers.as_deref_mut() {
            consumers.tick(net, now);
        }
        net.flush();
        let polled = net.poll(publisher.wait(), |link, frame, out, now| {
            match consumers.as_deref_mut() {
                Some(consumers) if consumers.owns(link) => consumers.handle(frame, out, now),
                _ => publisher.handle(frame, out, now),
            }
        });
        if let Err(Failure(fault)) = polled {
            break Some(fault);
        }
        if let Some((index, reason)) = net.closed.first() {
            break Some(format!("connection {index} ended: {reason}"));
        }
    };
    let mark = Mark {
        settled: publisher.settled,
        delivered: consumers.map_or_else(Counts::default, |c| c.counts),
    };
    Ok(match (outcome, meter) {
        (Some(outcome), _) => Outcome { fault, ..outcome },
        (None, Some((meter, began))) => Outcome {
            from: began,
            to: mark,
            cost: meter.finish()?,
            fault,
        },
        (None, None) => Outcome {
            from: mark,
            to: mark,
            cost: Cost::default(),
            fault,
        },
    })
}

#[cfg(test)]
mod tests;
