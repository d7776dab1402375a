//! The raw command `publish`: the engine with every figure given as a flag, and a short report.

use serde::Serialize;

use crate::args::PublishArgs;
use crate::engine::{self, Outcome, Spec};
use crate::error::Result;
use crate::measure::{Cost, LatencySummary, monotonic_ns};
use crate::observer::Sources;
use crate::progress::Progress;
use crate::report::{PerMillion, Report, Table, Work, grouped};
use crate::scenario::Settings;
use crate::setup::Place;
use crate::verify::Verification;

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
    verification: Verification,
}

/// The consuming side of a round trip.
#[derive(Debug, Clone, Serialize)]
struct Delivered {
    consumers: usize,
    /// Messages delivered in the measured window.
    work: Work,
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
            table.row("delivered/s", grouped(delivered.work.messages_per_second));
            table.latency("delivery latency", &delivered.delivery_us);
            let (redelivered, foreign) = (self.verification.redelivered, self.verification.foreign);
            if redelivered > 0 || foreign > 0 {
                table.row(
                    "besides",
                    format!("{redelivered} redelivered, {foreign} of other runs"),
                );
            }
        }
    }
}

/// Publishes; answers whether the run is valid.
pub(crate) fn run(args: &PublishArgs) -> Result<bool> {
    let report = measured(args)?;
    report.print(args.target.json)?;
    Ok(report.valid)
}

/// A number that tells this run's messages from those of others.
pub(crate) fn run_id() -> u32 {
    monotonic_ns() as u32 ^ std::process::id().rotate_left(16)
}

/// What the flags ask of the engine.
fn spec(args: &PublishArgs) -> Spec {
    let settings = Settings {
        topics: args.topic.topics,
        topic_prefix: args.topic.topic_prefix.clone(),
        clients: args.connections,
        devices: 0,
        size: args.size,
        rate: args.rate.unwrap_or(0),
        window: args.window,
        batch: args.batch,
        subscriptions: u32::from(args.consume),
        subscription_type: args.subscription.subscription_type,
        consumers: args.subscription.consumers,
        applications: 0,
        receiver_queue: args.subscription.receiver_queue,
        ack_group: args.subscription.ack_group,
        warmup: args.time.warmup,
        duration: args.time.duration,
        patience: args.time.patience,
        tick_us: args.tick_us,
        expect_redelivered: true,
        ..Settings::default()
    };
    Spec {
        settings,
        place: Place {
            url: args.target.url.clone(),
            run: run_id(),
            subscription: args.subscription.subscription.clone(),
            earliest: false,
        },
        any_run: false,
        messages: None,
        complete: true,
        unsubscribe: true,
        cpus: args.target.cpus(),
        sources: Sources {
            pid: args.target.broker_pid,
            ..Sources::default()
        },
        interruptible: false,
    }
}

/// Publishes and measures.
pub(crate) fn measured(args: &PublishArgs) -> Result<PublishReport> {
    let outcome = engine::run(&spec(args), &mut Progress::quiet())?;
    Ok(report(args, outcome))
}

fn report(args: &PublishArgs, outcome: Outcome) -> PublishReport {
    let cost = outcome.cost;
    let (from, to) = (outcome.from, outcome.to);
    let messages = to.settled - from.settled;
    PublishReport {
        kind: "publish",
        valid: outcome.faults.is_empty(),
        fault: outcome.faults.into_iter().next(),
        connections: args.connections,
        topics: args.topic.topics,
        producers: outcome.producers,
        size: args.size,
        window: args.window,
        batch: args.batch,
        rate: args.rate,
        work: Work::new(messages, messages as f64 * f64::from(args.size), &cost),
        cpu_seconds_per_million: PerMillion::new(messages, &cost),
        receipt_us: outcome.publish.summary(),
        delivered: args.consume.then(|| Delivered {
            consumers: outcome.consumers,
            work: Work::new(
                to.counts.timely - from.counts.timely,
                (to.counts.payload_bytes - from.counts.payload_bytes) as f64,
                &cost,
            ),
            delivery_us: outcome.delivery.summary(),
        }),
        cost,
        verification: outcome.verification,
    }
}

#[cfg(test)]
mod tests;
