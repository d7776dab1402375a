//! The result file of `run`: its fields are stated in the crate's README.

use std::time::SystemTime;

use serde::Serialize;

use crate::engine::{Drain, Outcome, Phase, Spec};
use crate::error::{Context as _, Result};
use crate::measure::{Latencies, RssSummary, own_rss_max};
use crate::report::{Report, Table, grouped, mebibytes, time};
use crate::scenario::Settings;
use crate::verify::Verification;

/// Version of the file's layout.
const SCHEMA: u32 = 1;
/// A rate is not reached below this part of it.
const REACHED: f64 = 0.99;
/// A due message that left later than this, in nanoseconds, shows that the broker did not keep up.
const LATE: u64 = 1_000_000_000;

/// Latencies in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    mean: f64,
    pub(crate) p50: f64,
    p75: f64,
    p90: f64,
    pub(crate) p99: f64,
    p999: f64,
    p9999: f64,
    pub(crate) max: f64,
}

impl Latency {
    fn of(latencies: &Latencies) -> Option<Self> {
        let summary = latencies.summary();
        (summary.messages > 0).then_some(Self {
            count: summary.messages,
            mean: summary.mean,
            p50: summary.p50,
            p75: summary.p75,
            p90: summary.p90,
            p99: summary.p99,
            p999: summary.p999,
            p9999: summary.p9999,
            max: summary.max,
        })
    }
}

/// What one side did in the measured window.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Side {
    pub(crate) messages: u64,
    pub(crate) messages_per_second: f64,
    megabytes_per_second: f64,
    pub(crate) latency_us: Option<Latency>,
}

impl Side {
    fn new(messages: u64, bytes: f64, seconds: f64, latencies: &Latencies) -> Self {
        let seconds = seconds.max(1e-9);
        Self {
            messages,
            messages_per_second: messages as f64 / seconds,
            megabytes_per_second: bytes / 1e6 / seconds,
            latency_us: Latency::of(latencies),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
struct Publish {
    #[serde(flatten)]
    side: Side,
    sent: u64,
    acknowledged: u64,
    unsent: u64,
    late_max_us: f64,
}

/// A gauge of the broker, looked at each second.
#[derive(Debug, Clone, Serialize)]
struct Gauge {
    max: f64,
    median: f64,
    last: f64,
    samples: usize,
}

impl Gauge {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        let last = *values.last()?;
        values.sort_by(f64::total_cmp);
        Some(Self {
            max: *values.last()?,
            median: *values.get(values.len() / 2)?,
            last,
            samples: values.len(),
        })
    }
}

#[derive(Debug, Clone, Serialize)]
struct Throttled {
    samples: usize,
    nonzero: usize,
}

#[derive(Debug, Clone, Serialize)]
struct Broker {
    pid: Option<u32>,
    cgroup: Option<String>,
    cpu_seconds: Option<f64>,
    cpu_seconds_per_million: Option<f64>,
    cpu_cores: Option<f64>,
    rss: Option<RssSummary>,
    retained: Option<Gauge>,
    throttled: Option<Throttled>,
}

#[derive(Debug, Clone, Serialize)]
struct Own {
    cpu_seconds: f64,
    cpu_seconds_per_million: Option<f64>,
    rss_max: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
struct Saturation {
    rate_reached: Option<f64>,
    saturated: Option<bool>,
}

#[derive(Debug, Clone, Serialize)]
struct Second {
    t: f64,
    phase: Phase,
    sent_per_second: f64,
    published_per_second: f64,
    delivered_per_second: f64,
    outstanding: u64,
    backlog: u64,
    publish_p50_us: Option<f64>,
    publish_p99_us: Option<f64>,
    publish_max_us: Option<f64>,
    delivery_p50_us: Option<f64>,
    delivery_p99_us: Option<f64>,
    delivery_max_us: Option<f64>,
    broker_cpu_cores: Option<f64>,
    broker_rss: Option<u64>,
    retained: Option<f64>,
    throttled: Option<f64>,
    own_cpu_cores: f64,
}

/// The whole file.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunResult {
    schema: u32,
    kind: &'static str,
    generator: &'static str,
    scenario: String,
    url: String,
    label: Option<String>,
    started: String,
    command: Vec<String>,
    settings: Settings,
    cpus: Option<Vec<usize>>,
    pub(crate) valid: bool,
    interrupted: bool,
    pub(crate) faults: Vec<String>,
    seconds: f64,
    publish: Publish,
    delivery: Option<Side>,
    drain: Option<Drain>,
    verification: Verification,
    broker: Broker,
    own: Own,
    saturation: Saturation,
    series: Vec<Second>,
}

/// What a run is called.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) scenario: String,
    pub(crate) label: Option<String>,
}

impl RunResult {
    pub(crate) fn new(spec: &Spec, names: Names, outcome: &Outcome) -> Result<Self> {
        let settings = &spec.settings;
        let (from, to, cost) = (&outcome.from, &outcome.to, &outcome.cost);
        let published = to.settled - from.settled;
        let publish_bytes = published as f64 * f64::from(settings.size);
        let publish = Side::new(published, publish_bytes, cost.seconds, &outcome.publish);
        let delivered = to.counts.timely - from.counts.timely;
        let delivered_bytes = (to.counts.payload_bytes - from.counts.payload_bytes) as f64;
        let delivery = Side::new(delivered, delivered_bytes, cost.seconds, &outcome.delivery);
        // Without publishing it is the deliveries that cost.
        let messages = if published > 0 { published } else { delivered };
        let million = |seconds: f64| (messages > 0).then(|| seconds * 1e6 / messages as f64);
        let measured = || {
            outcome
                .samples
                .iter()
                .filter(|sample| sample.phase == Phase::Measured)
        };
        let throttled: Vec<_> = measured()
            .filter_map(|sample| sample.metrics.throttled)
            .collect();
        let reached =
            (settings.rate > 0).then(|| publish.messages_per_second / settings.rate as f64);
        let late = outcome.late_max > LATE || outcome.unsent > 0;
        Ok(Self {
            schema: SCHEMA,
            kind: "run",
            generator: concat!("vela-bench ", env!("CARGO_PKG_VERSION")),
            scenario: names.scenario,
            url: spec.place.url.clone(),
            label: names.label,
            started: utc(outcome.started)?,
            command: std::env::args().collect(),
            settings: settings.clone(),
            cpus: spec.cpus.clone(),
            valid: outcome.faults.is_empty(),
            interrupted: outcome.interrupted,
            faults: outcome.faults.clone(),
            seconds: cost.seconds,
            publish: Publish {
                side: publish,
                sent: outcome.end.sent,
                acknowledged: outcome.end.settled,
                unsent: outcome.unsent,
                late_max_us: outcome.late_max as f64 / 1e3,
            },
            delivery: (settings.subscriptions > 0).then_some(delivery),
            drain: outcome.drain,
            verification: outcome.verification.clone(),
            broker: Broker {
                pid: spec.sources.pid,
                cgroup: spec
                    .sources
                    .cgroup
                    .as_ref()
                    .map(|path| path.display().to_string()),
                cpu_seconds: cost.broker_cpu_seconds,
                cpu_seconds_per_million: cost.broker_cpu_seconds.and_then(million),
                cpu_cores: cost
                    .broker_cpu_seconds
                    .map(|cpu| cpu / cost.seconds.max(1e-9)),
                rss: cost.broker_rss.clone(),
                retained: Gauge::of(
                    measured()
                        .filter_map(|sample| sample.metrics.retained)
                        .collect(),
                ),
                throttled: (!throttled.is_empty()).then(|| Throttled {
                    samples: throttled.len(),
                    nonzero: throttled.iter().filter(|value| **value > 0.0).count(),
                }),
            },
            own: Own {
                cpu_seconds: cost.own_cpu_seconds,
                cpu_seconds_per_million: million(cost.own_cpu_seconds),
                rss_max: own_rss_max(),
            },
            saturation: Saturation {
                rate_reached: reached,
                saturated: reached.map(|reached| reached < REACHED || late),
            },
            series: series(outcome),
        })
    }
}

fn series(outcome: &Outcome) -> Vec<Second> {
    outcome
        .samples
        .iter()
        .map(|sample| {
            // The interval of a second begins a second before its sample.
            let interval = outcome
                .intervals
                .get(&((sample.t.round() as u64).saturating_sub(1)));
            let publish = interval.and_then(|(publish, _)| Latency::of(publish));
            let delivery = interval.and_then(|(_, delivery)| Latency::of(delivery));
            Second {
                t: sample.t,
                phase: sample.phase,
                sent_per_second: sample.sent_per_second,
                published_per_second: sample.published_per_second,
                delivered_per_second: sample.delivered_per_second,
                outstanding: sample.outstanding,
                backlog: sample.backlog,
                publish_p50_us: publish.as_ref().map(|latency| latency.p50),
                publish_p99_us: publish.as_ref().map(|latency| latency.p99),
                publish_max_us: publish.as_ref().map(|latency| latency.max),
                delivery_p50_us: delivery.as_ref().map(|latency| latency.p50),
                delivery_p99_us: delivery.as_ref().map(|latency| latency.p99),
                delivery_max_us: delivery.as_ref().map(|latency| latency.max),
                broker_cpu_cores: sample.broker_cpu_cores,
                broker_rss: sample.broker_rss,
                retained: sample.metrics.retained,
                throttled: sample.metrics.throttled,
                own_cpu_cores: sample.own_cpu_cores,
            }
        })
        .collect()
}

impl Report for RunResult {
    fn rows(&self, table: &mut Table) {
        match self.faults.split_first() {
            None => table.verdict(None),
            Some((first, rest)) => {
                table.verdict(Some(first));
                for fault in rest {
                    table.row("", fault.clone());
                }
            }
        }
        table.row("scenario", self.scenario.clone());
        let side = |table: &mut Table, name: &str, side: &Side| {
            table.row(
                format!("{name}/s"),
                format!(
                    "{} ({:.1} MB/s)",
                    grouped(side.messages_per_second),
                    side.megabytes_per_second
                ),
            );
            if let Some(us) = &side.latency_us {
                table.row(
                    format!("{name} latency"),
                    format!(
                        "p50 {}  p75 {}  p90 {}  p99 {}  p99.9 {}  p99.99 {}  max {}",
                        time(us.p50),
                        time(us.p75),
                        time(us.p90),
                        time(us.p99),
                        time(us.p999),
                        time(us.p9999),
                        time(us.max)
                    ),
                );
            }
        };
        side(table, "published", &self.publish.side);
        if let Some(delivery) = &self.delivery {
            side(table, "delivered", delivery);
        }
        if let Some(drain) = &self.drain {
            table.row(
                "backlog",
                format!(
                    "caught up in {:.2} s, {} messages/s",
                    drain.seconds,
                    grouped(drain.messages_per_second)
                ),
            );
        }
        if self.saturation.saturated == Some(true) {
            let reached = self.saturation.rate_reached.unwrap_or(0.0);
            let late = time(self.publish.late_max_us);
            table.row(
                "saturated",
                format!(
                    "{:.1} % of the rate, messages left up to {late} late",
                    100.0 * reached
                ),
            );
        }
        let per_million = |value: Option<f64>| {
            value.map_or("-".into(), |value| {
                format!("{value:.3} s per million messages")
            })
        };
        let broker = &self.broker;
        if let Some(cores) = broker.cpu_cores {
            let each = per_million(broker.cpu_seconds_per_million);
            table.row("broker CPU", format!("{each} ({:.0} %)", 100.0 * cores));
        }
        let share = 100.0 * self.own.cpu_seconds / self.seconds.max(1e-9);
        table.row(
            "own CPU",
            format!(
                "{} ({share:.0} %)",
                per_million(self.own.cpu_seconds_per_million)
            ),
        );
        if let Some(rss) = &broker.rss {
            table.row(
                "broker RSS",
                format!(
                    "{} median, {} max",
                    mebibytes(rss.median),
                    mebibytes(rss.max)
                ),
            );
        }
        if let Some(retained) = &broker.retained {
            let (median, max) = (retained.median as u64, retained.max as u64);
            table.row(
                "retained",
                format!("{} median, {} max", mebibytes(median), mebibytes(max)),
            );
        }
        if let Some(throttled) = &broker.throttled {
            let text = match throttled.nonzero {
                0 => format!("not observed in {} samples", throttled.samples),
                some => format!("in {some} of {} samples", throttled.samples),
            };
            table.row("throttled", text);
        }
        let verified = &self.verification;
        table.row(
            "verified",
            format!(
                "{} deliveries; {} redelivered, {} of other runs",
                grouped(verified.checked as f64),
                verified.redelivered,
                verified.foreign
            ),
        );
    }
}

/// A moment as `2026-01-31T12:00:00Z`.
fn utc(at: SystemTime) -> Result<String> {
    let seconds = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .context(|| "the clock stands before 1970".into())?
        .as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 to a date of the Gregorian calendar, by 400-year eras that begin on 1 March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    Ok(format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_045_445, "2026-11-30T13:30:45Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(at).unwrap(), text);
        }
    }

    #[test]
    fn a_gauge_that_was_not_seen_is_none() {
        assert!(Gauge::of(Vec::new()).is_none());
        let gauge = Gauge::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (gauge.max, gauge.median, gauge.last, gauge.samples),
            (3.0, 2.0, 2.0, 3)
        );
        assert!(Latency::of(&Latencies::new().unwrap()).is_none());
    }
}
