//! What the page shows, apart from the form in which runs are kept in files.

use serde_json::Value;

/// All there is to show.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) title: String,
    /// When, where, by which program.
    pub(crate) facts: Vec<(String, String)>,
    pub(crate) runs: Vec<Run>,
    /// Runs that do not count: which, and why.
    pub(crate) excluded: Vec<(String, String)>,
    /// What has to be known to read the figures.
    pub(crate) notes: Vec<String>,
    pub(crate) manifest: Value,
}

/// One run that counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub(crate) variant: String,
    /// Messages per second offered; `None`: as many as the window allows.
    pub(crate) rate: Option<f64>,
    /// Values by name; see [`FIGURES`].
    pub(crate) figures: Vec<(&'static str, f64)>,
    /// Percentile, 0 to 100, and latency in milliseconds, ascending.
    pub(crate) publish: Vec<(f64, f64)>,
    pub(crate) delivery: Vec<(f64, f64)>,
    pub(crate) samples: Vec<Sample>,
    /// Seconds of load before the measured window.
    pub(crate) warmup: Option<f64>,
    /// Who was saturated; empty: nobody.
    pub(crate) saturated: String,
}

impl Run {
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }
}

/// What was looked at once a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Seconds since the first one.
    pub(crate) time: f64,
    pub(crate) published: Option<f64>,
    pub(crate) delivered: Option<f64>,
    /// Processors' worth of time the broker used.
    pub(crate) broker_cpu: Option<f64>,
    pub(crate) load_cpu: Option<f64>,
    /// Bytes.
    pub(crate) rss: Option<f64>,
    pub(crate) retained: Option<f64>,
    /// 1 while the memory limiter throttles, else 0.
    pub(crate) throttled: Option<f64>,
}

/// Figures of the table: name, title, unit, divisor, digits.
pub(crate) const FIGURES: [(&str, &str, &str, f64, usize); 10] = [
    ("achieved", "Throughput", "msg/s", 1.0, 0),
    ("broker_cpu", "Broker CPU", "s per million", 1.0, 2),
    ("publish_p50", "Publish p50", "ms", 1.0, 2),
    ("publish_p99", "Publish p99", "ms", 1.0, 2),
    ("publish_p999", "Publish p99.9", "ms", 1.0, 2),
    ("delivery_p50", "Delivery p50", "ms", 1.0, 2),
    ("delivery_p99", "Delivery p99", "ms", 1.0, 2),
    ("rss", "Memory (RSS)", "MiB", 1_048_576.0, 0),
    ("load_cpu", "Load's own CPU", "s per million", 1.0, 2),
    ("throttled_samples", "Throttled samples", "", 1.0, 0),
];

/// Median, least and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<_> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Self {
            median: f64::midpoint(lower, upper),
            low: *sorted.first()?,
            high: *sorted.last()?,
        })
    }
}

impl Report {
    /// Names of what is compared, in the order of their first run.
    pub(crate) fn variants(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.variant.as_str()) {
                names.push(&run.variant);
            }
        }
        names
    }

    /// The rates that were offered, ascending, "as fast as possible" last.
    pub(crate) fn rates(&self) -> Vec<Option<f64>> {
        let mut rates: Vec<_> = self.runs.iter().map(|run| run.rate).collect();
        rates.sort_by(|a, b| a.unwrap_or(f64::MAX).total_cmp(&b.unwrap_or(f64::MAX)));
        rates.dedup();
        rates
    }

    pub(crate) fn of(&self, variant: &str, rate: Option<f64>) -> impl Iterator<Item = &Run> {
        self.runs
            .iter()
            .filter(move |run| run.variant == variant && run.rate == rate)
    }
}

/// Latency at a percentile, between the points of a curve along the axis of nines.
pub(crate) fn latency_at(curve: &[(f64, f64)], percentile: f64) -> Option<f64> {
    let after = curve.iter().position(|(at, _)| *at >= percentile)?;
    let (right, high) = *curve.get(after)?;
    let Some((left, low)) = after.checked_sub(1).and_then(|i| curve.get(i)).copied() else {
        return Some(high);
    };
    let nines = |p: f64| -(1.0 - p / 100.0).max(1e-9).log10();
    let part = (nines(percentile) - nines(left)) / (nines(right) - nines(left)).max(1e-12);
    Some(low + (high - low) * part.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        let even = spread(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((even.median, even.low, even.high), (2.5, 1.0, 4.0));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn between_points_a_curve_is_straight_on_the_axis_of_nines() {
        let curve = [(0.0, 1.0), (90.0, 2.0), (99.0, 4.0)];
        assert_eq!(latency_at(&curve, 90.0), Some(2.0));
        let between = latency_at(&curve, 96.837_722_34).unwrap();
        assert!((between - 3.0).abs() < 1e-6, "{between}");
        assert_eq!(latency_at(&curve, 99.9), None);
    }

    #[test]
    fn rates_ascend_with_the_unbounded_one_last() {
        let run = |rate| Run {
            rate,
            ..Run::default()
        };
        let report = Report {
            runs: vec![run(None), run(Some(2.0)), run(Some(1.0)), run(Some(2.0))],
            ..Report::default()
        };
        assert_eq!(report.rates(), [Some(1.0), Some(2.0), None]);
    }
}
