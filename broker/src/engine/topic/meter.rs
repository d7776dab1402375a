//! Rates for statistics.

/// Length of a measuring window, milliseconds.
const WINDOW_MS: u64 = 60_000;

/// Counts events and knows the rate of the last whole window.
#[derive(Default, Debug, Clone)]
pub(super) struct Meter {
    since_ms: u64,
    count: u64,
    rate: f64,
}

impl Meter {
    pub(super) fn add(&mut self, n: u64, now_ms: u64) {
        self.turn(now_ms);
        self.count += n;
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

#[cfg(test)]
mod tests {
    use super::*;

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
