//! How far it is, on standard error, and the summary at the end.

use serde_json::json;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

/// Counts messages and says so once a second.
pub(super) struct Progress {
    verb: &'static str,
    quiet: bool,
    json: bool,
    begun: Instant,
    told: Instant,
    told_messages: u64,
    told_bytes: u64,
    /// Messages that are done.
    pub(super) messages: u64,
    /// Their bytes, decoded.
    pub(super) bytes: u64,
    /// Messages that failed.
    pub(super) failed: u64,
}

impl Progress {
    pub(super) fn new(verb: &'static str, quiet: bool, json: bool) -> Self {
        let now = Instant::now();
        Self {
            verb,
            quiet,
            json,
            begun: now,
            told: now,
            told_messages: 0,
            told_bytes: 0,
            messages: 0,
            bytes: 0,
            failed: 0,
        }
    }

    /// One more is done.
    pub(super) fn done(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    /// Says how fast it goes, if it is time.
    pub(super) fn tick(&mut self) {
        let passed = self.told.elapsed();
        if self.quiet || passed < EVERY {
            return;
        }
        let line = rates(
            self.messages - self.told_messages,
            self.bytes - self.told_bytes,
            passed,
        );
        let mut out = std::io::stderr().lock();
        // A terminal keeps one line that changes; a file gets them all.
        let (begin, end) = if out.is_terminal() {
            ("\r", "\x1b[K")
        } else {
            ("", "\n")
        };
        let _ = write!(
            out,
            "{begin}{} {} messages, {line}{end}",
            self.verb, self.messages
        );
        let _ = out.flush();
        self.told = Instant::now();
        (self.told_messages, self.told_bytes) = (self.messages, self.bytes);
    }

    /// The summary.
    pub(super) fn finish(&self, interrupted: bool) {
        let passed = self.begun.elapsed();
        if self.json {
            let summary = json!({ "summary": {
                "action": self.verb,
                "messages": self.messages,
                "bytes": self.bytes,
                "failed": self.failed,
                "seconds": (passed.as_secs_f64() * 1e6).round() / 1e6,
                "messages_per_second": (per_second(self.messages, passed) * 10.0).round() / 10.0,
                "interrupted": interrupted,
            }});
            let _ = writeln!(std::io::stdout().lock(), "{summary}");
        }
        if self.quiet {
            return;
        }
        let mut out = std::io::stderr().lock();
        let begin = if out.is_terminal() { "\r\x1b[K" } else { "" };
        let failed = match self.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        let line = rates(self.messages, self.bytes, passed);
        let _ = writeln!(
            out,
            "{begin}{} {} messages in {:.3} s{failed}, {line}",
            self.verb,
            self.messages,
            passed.as_secs_f64()
        );
    }
}

fn per_second(count: u64, passed: Duration) -> f64 {
    count as f64 / passed.as_secs_f64().max(1e-9)
}

fn rates(messages: u64, bytes: u64, passed: Duration) -> String {
    format!(
        "{:.0} msg/s, {:.2} MiB/s",
        per_second(messages, passed),
        per_second(bytes, passed) / f64::from(1 << 20)
    )
}

/// Says when the next message may go, at so many per second; never if there is no rate.
pub(super) struct Pace {
    interval: Option<Duration>,
    begun: Instant,
    count: u32,
}

impl Pace {
    pub(super) fn new(rate: f64) -> Self {
        let interval =
            (rate > 0.0).then(|| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX));
        Self {
            interval,
            begun: Instant::now(),
            count: 0,
        }
    }

    /// When the next one may go. Kept from the beginning, so that a late one is made up for.
    pub(super) fn next(&mut self) -> Option<Instant> {
        let interval = self.interval?;
        if self.count == 1 << 20 {
            self.begun = self
                .begun
                .checked_add(interval.saturating_mul(self.count))
                .unwrap_or(self.begun);
            self.count = 0;
        }
        let at = self.begun.checked_add(interval.saturating_mul(self.count));
        self.count += 1;
        at
    }
}
