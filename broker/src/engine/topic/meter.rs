//! Rates for statistics.

use crate::engine::time::Now;

/// Length of a measuring window, milliseconds.
const WINDOW_MS: u64 = 60_000;

/// Counts events and knows the rate of the last whole window.
#[derive(Default, Debug, Clone)]
pub(super) struct Meter {
    since_ms: u64,
    count: u64,
    rate: f64,
    /// Events since the beginning.
    total: u64,
    /// When the first and the last event came, monotonic milliseconds; 0: none.
    first_ms: u64,
    last_ms: u64,
}

impl Meter {
    pub(super) fn add(&mut self, n: u64, now_ms: u64) {
        self.turn(now_ms);
        self.count += n;
        if n > 0 {
            self.total += n;
            self.last_ms = now_ms.max(1);
            if self.first_ms == 0 {
                self.first_ms = self.last_ms;
            }
        }
    }

    /// Events since the beginning.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Wall clock of the first event, milliseconds since 1970; 0: there was none.
    pub(super) fn first_wall_ms(&self, now: Now) -> u64 {
        wall(self.first_ms, now)
    }

    /// Wall clock of the last event, milliseconds since 1970; 0: there was none.
    pub(super) fn last_wall_ms(&self, now: Now) -> u64 {
        wall(self.last_ms, now)
    }

    /// Events per second in the last whole window; 0 before there was one.
    pub(super) fn rate(&mut self, now_ms: u64) -> f64 {
        self.turn(now_ms);
        self.rate
    }

    fn turn(&mut self, now_ms: u64) {
        if self.since_ms == 0 {
            self.since_ms = now_ms.max(1);
        }
        let elapsed = now_ms.saturating_sub(self.since_ms);
        if elapsed >= WINDOW_MS {
            self.rate = self.count as f64 * 1000.0 / elapsed as f64;
            self.count = 0;
            self.since_ms = now_ms;
        }
    }
}

fn wall(at_ms: u64, now: Now) -> u64 {
    match at_ms {
        0 => 0,
        at => now.wall_ms.saturating_sub(now.ms.saturating_sub(at)),
    }
}

/// Messages and bytes of one kind.
#[derive(Default, Debug, Clone)]
pub(super) struct Traffic {
    pub(super) messages: Meter,
    pub(super) bytes: Meter,
}

impl Traffic {
    pub(super) fn add(&mut self, messages: u64, bytes: u64, now: Now) {
        self.messages.add(messages, now.ms);
        self.bytes.add(bytes, now.ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_and_times_outlive_the_window() {
        let at = |ms| Now {
            ms,
            wall_ms: 1_000_000 + ms,
        };
        let mut traffic = Traffic::default();
        assert_eq!(traffic.messages.last_wall_ms(at(5)), 0);
        traffic.add(3, 30, at(10));
        traffic.add(4, 40, at(100_000));
        assert_eq!((traffic.messages.total(), traffic.bytes.total()), (7, 70));
        assert_eq!(traffic.messages.first_wall_ms(at(200_000)), 1_000_010);
        assert_eq!(traffic.bytes.last_wall_ms(at(200_000)), 1_100_000);
    }

    #[test]
    fn the_rate_is_that_of_the_last_window() {
        let mut meter = Meter::default();
        meter.add(0, 1000);
        meter.add(600, 2000);
        assert_eq!(meter.rate(3000), 0.0);
        assert_eq!(meter.rate(61_000), 10.0);
        assert_eq!(meter.rate(61_001), 10.0);
        assert_eq!(meter.rate(121_001), 0.0);
    }
}
