//! The raw command `consume`: the engine without publishers, for whatever messages of this program there are.

use serde::Serialize;

use crate::args::ConsumeArgs;
use crate::engine::{self, Spec};
use crate::error::Result;
use crate::measure::{Cost, LatencySummary};
use crate::observer::Sources;
use crate::progress::Progress;
use crate::report::{PerMillion, Report, Table, Work};
use crate::scenario::{Settings, SubscriptionType};
use crate::setup::Place;
use crate::verify::Verification;

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
    /// Messages of the whole run.
    received: u64,
    verification: Verification,
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
        table.row("redelivered", self.verification.redelivered.to_string());
    }
}

/// Consumes; answers whether the run is valid.
pub(crate) fn run(args: &ConsumeArgs) -> Result<bool> {
    let report = measured(args)?;
    report.print(args.target.json)?;
    Ok(report.valid)
}

/// Consumes and measures.
fn measured(args: &ConsumeArgs) -> Result<ConsumeReport> {
    let subscription = &args.subscription;
    let spec = Spec {
        settings: Settings {
            topics: args.topic.topics,
            topic_prefix: args.topic.topic_prefix.clone(),
            clients: 0,
            devices: 0,
            rate: 0,
            subscriptions: 1,
            subscription_type: subscription.subscription_type,
            consumers: subscription.consumers,
            applications: 0,
            receiver_queue: subscription.receiver_queue,
            ack_group: subscription.ack_group,
            warmup: args.time.warmup,
            duration: args.time.duration,
            patience: args.time.patience,
            expect_redelivered: true,
            ..Settings::default()
        },
        place: Place {
            url: args.target.url.clone(),
            run: 0,
            subscription: subscription.subscription.clone(),
            earliest: args.earliest,
        },
        any_run: true,
        messages: args.messages,
        // Others may share the subscription, and what this one misses be theirs.
        complete: args.messages.is_some()
            || subscription.subscription_type == SubscriptionType::Exclusive,
        unsubscribe: false,
        cpus: args.target.cpus(),
        sources: Sources {
            pid: args.target.broker_pid,
            ..Sources::default()
        },
        interruptible: false,
    };
    let outcome = engine::run(&spec, &mut Progress::quiet())?;
    let cost = outcome.cost;
    let (from, to) = (outcome.from.counts, outcome.to.counts);
    let messages = to.received - from.received;
    Ok(ConsumeReport {
        kind: "consume",
        valid: outcome.faults.is_empty(),
        fault: outcome.faults.into_iter().next(),
        topics: args.topic.topics,
        consumers: outcome.consumers,
        work: Work::new(
            messages,
            (to.payload_bytes - from.payload_bytes) as f64,
            &cost,
        ),
        cpu_seconds_per_million: PerMillion::new(messages, &cost),
        cost,
        received: outcome.end.counts.received,
        verification: outcome.verification,
        age_us: outcome.delivery.summary(),
    })
}
