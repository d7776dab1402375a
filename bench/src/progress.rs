//! What is shown on standard error while a run goes on: one line that is written over on a terminal, else a plain line now and then. No colour.

use std::io::{IsTerminal as _, Write as _};

use crate::engine::{Phase, Sample};
use crate::measure::Latencies;
use crate::report::{grouped, mebibytes, time};

/// Cells of the bar.
const BAR: usize = 20;
/// Seconds between two lines where nothing can be written over.
const LINE_EVERY: u32 = 10;

/// The progress of a run.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    quiet: bool,
    /// Length of the line that stands there.
    width: usize,
    seconds: u32,
}

impl Progress {
    /// Shows nothing.
    pub(crate) fn quiet() -> Self {
        Self {
            terminal: false,
            quiet: true,
            width: 0,
            seconds: 0,
        }
    }

    pub(crate) fn new() -> Self {
        let stderr = std::io::stderr();
        Self {
            // A terminal that cannot move its cursor says so.
            terminal: stderr.is_terminal()
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            quiet: false,
            ..Self::quiet()
        }
    }

    /// Says what is being done.
    pub(crate) fn note(&mut self, text: &str) {
        self.show(text);
    }

    /// Shows a second of the run, whose measured window begins and ends so many nanoseconds after its start.
    pub(crate) fn second(
        &mut self,
        sample: &Sample,
        window: (u64, u64),
        latest: Option<&(Latencies, Latencies)>,
    ) {
        self.seconds += 1;
        if !self.terminal && self.seconds % LINE_EVERY != 1 {
            return;
        }
        self.show(&line(sample, window, latest));
    }

    /// Leaves the last line where it is.
    pub(crate) fn end(&mut self) {
        if self.terminal && self.width > 0 && !self.quiet {
            eprintln!();
        }
        self.width = 0;
    }

    fn show(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        if self.terminal {
            let mut stderr = std::io::stderr();
            // Nobody to show it to is no reason to stop.
            let _ = write!(stderr, "\r{text:width$}", width = self.width);
            let _ = stderr.flush();
            self.width = text.chars().count();
        } else {
            eprintln!("vela-bench: {text}");
        }
    }
}

fn line(
    sample: &Sample,
    (from, to): (u64, u64),
    latest: Option<&(Latencies, Latencies)>,
) -> String {
    let (from, to) = (from as f64 / 1e9, to as f64 / 1e9);
    let known_end = to < 1e9;
    let bar = if known_end {
        bar(sample.t / to.max(1e-9)) + " "
    } else {
        String::new()
    };
    let phase = match sample.phase {
        Phase::Warmup => format!("warm-up {:.0}/{from:.0} s", sample.t),
        Phase::Measured if known_end => {
            format!("measured {:.0}/{:.0} s", sample.t - from, to - from)
        }
        Phase::Measured => format!("{:.0} s", sample.t),
        Phase::Drain => "draining".into(),
    };
    let mut text = format!(
        "{bar}{phase}  out {}/s  in {}/s",
        grouped(sample.published_per_second),
        grouped(sample.delivered_per_second)
    );
    if let Some((publish, delivery)) = latest {
        let p99 = |latencies: &Latencies| time(latencies.summary().p99);
        text += &format!("  p99 {} / {}", p99(publish), p99(delivery));
    }
    if sample.backlog > 100_000 {
        text += &format!("  backlog {}", grouped(sample.backlog as f64));
    }
    if let Some(cores) = sample.broker_cpu_cores {
        text += &format!("  broker {:.0} %", 100.0 * cores);
    }
    if let Some(rss) = sample.broker_rss {
        text += &format!(" {}", mebibytes(rss));
    }
    text
}

fn bar(part: f64) -> String {
    let full = ((part.clamp(0.0, 1.0) * BAR as f64) as usize).min(BAR);
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Metrics;

    #[test]
    fn a_second_is_one_line_without_control_characters() {
        let sample = Sample {
            t: 30.0,
            phase: Phase::Measured,
            sent_per_second: 20_000.0,
            published_per_second: 20_000.0,
            delivered_per_second: 19_999.0,
            outstanding: 12,
            backlog: 200_000,
            broker_cpu_cores: Some(0.5),
            broker_rss: Some(83 << 20),
            metrics: Metrics::default(),
            own_cpu_cores: 0.2,
        };
        let text = line(&sample, (20_000_000_000, 80_000_000_000), None);
        assert_eq!(
            text,
            "[#######.............] measured 10/60 s  out 20 000/s  in 19 999/s  backlog 200 000  broker 50 % 83.0 MiB"
        );
        assert!(text.bytes().all(|byte| (32..127).contains(&byte)));
    }

    #[test]
    fn the_bar_stays_in_its_bounds() {
        assert_eq!(bar(-1.0), format!("[{}]", ".".repeat(BAR)));
        assert_eq!(bar(7.0), format!("[{}]", "#".repeat(BAR)));
    }
}
