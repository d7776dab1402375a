//! What is printed: a table for people, or a line of JSON.

use serde::Serialize;

use crate::error::{Context as _, Result};
use crate::measure::{Cost, LatencySummary};

/// A result that can be shown both ways.
pub(crate) trait Report: Serialize {
    fn rows(&self, table: &mut Table);

    fn print(&self, json: bool) -> Result<()> {
        if json {
            println!(
                "{}",
                serde_json::to_string(self).context(|| "cannot write the report".into())?
            );
        } else {
            let mut table = Table::default();
            self.rows(&mut table);
            print!("{}", table.text());
        }
        Ok(())
    }
}

/// Names and values below each other.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<(String, String)>);

impl Table {
    pub(crate) fn row(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Whether the run counts, and if not, why.
    pub(crate) fn verdict(&mut self, fault: Option<&str>) {
        let verdict = fault.map(|fault| format!("INVALID: {fault}"));
        self.row("run", verdict.unwrap_or_else(|| "valid".into()));
    }

    /// Rates and costs of a number of messages.
    pub(crate) fn work(&mut self, work: &Work) {
        self.row("messages", grouped(work.messages as f64));
        self.row("messages/s", grouped(work.messages_per_second));
        self.row("payload MB/s", format!("{:.1}", work.megabytes_per_second));
    }

    pub(crate) fn cost(&mut self, cost: &Cost, per_million: PerMillion) {
        self.row("measured seconds", format!("{:.3}", cost.seconds));
        let share = |seconds: f64| 100.0 * seconds / cost.seconds.max(1e-9);
        if let (Some(cpu), Some(million)) = (cost.broker_cpu_seconds, per_million.broker) {
            self.row(
                "broker CPU",
                format!("{million:.3} s per million messages ({:.0} %)", share(cpu)),
            );
        }
        self.row(
            "own CPU",
            format!(
                "{:.3} s per million messages ({:.0} %)",
                per_million.own,
                share(cost.own_cpu_seconds)
            ),
        );
        if let Some(rss) = &cost.broker_rss {
            self.row(
                "broker RSS",
                format!(
                    "{} median, {} to {}",
                    mebibytes(rss.median),
                    mebibytes(rss.min),
                    mebibytes(rss.max)
                ),
            );
        }
    }

    pub(crate) fn latency(&mut self, name: &str, latency: &LatencySummary) {
        self.row(
            name,
            format!(
                "p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
                time(latency.p50),
                time(latency.p90),
                time(latency.p99),
                time(latency.p999),
                time(latency.max)
            ),
        );
    }

    fn text(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        self.0
            .iter()
            .map(|(name, value)| format!("{name:width$}  {value}\n"))
            .collect()
    }
}

/// Messages of the measured window.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Work {
    pub(crate) messages: u64,
    pub(crate) messages_per_second: f64,
    /// Of payload, in 10^6 bytes.
    pub(crate) megabytes_per_second: f64,
}

impl Work {
    pub(crate) fn new(messages: u64, payload_bytes: f64, cost: &Cost) -> Self {
        let seconds = cost.seconds.max(1e-9);
        Self {
            messages,
            messages_per_second: messages as f64 / seconds,
            megabytes_per_second: payload_bytes / 1e6 / seconds,
        }
    }
}

/// Processor seconds per million messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct PerMillion {
    pub(crate) broker: Option<f64>,
    pub(crate) own: f64,
}

impl PerMillion {
    pub(crate) fn new(messages: u64, cost: &Cost) -> Self {
        let each = |seconds: f64| seconds * 1e6 / messages.max(1) as f64;
        Self {
            broker: cost.broker_cpu_seconds.map(each),
            own: each(cost.own_cpu_seconds),
        }
    }
}

/// Microseconds, in the unit that reads best.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Bytes in MiB.
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

/// A whole number with its thousands set apart.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(999.6), "1 000");
        assert_eq!(grouped(1_234_567.0), "1 234 567");
        assert_eq!(time(999.0), "999 us");
        assert_eq!(time(1500.0), "1.50 ms");
        assert_eq!(time(2_500_000.0), "2.50 s");
        assert_eq!(mebibytes(3 << 20), "3.0 MiB");
    }

    #[test]
    fn costs_are_per_million_messages() {
        let cost = Cost {
            seconds: 2.0,
            own_cpu_seconds: 1.0,
            broker_cpu_seconds: Some(1.5),
            broker_rss: None,
        };
        let per = PerMillion::new(500_000, &cost);
        assert_eq!((per.own, per.broker), (2.0, Some(3.0)));
        let work = Work::new(500_000, 5e6, &cost);
        assert_eq!(
            (work.messages_per_second, work.megabytes_per_second),
            (250_000.0, 2.5)
        );
    }
}
