//! Waiting longer after each failure, by chance a little less, so that many clients do not come back at once.

use super::{MILLIS, Nanos};

/// How long to wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffConfig {
    /// Before the second attempt.
    pub initial: Nanos,
    /// At most.
    pub max: Nanos,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            initial: 100 * MILLIS,
            max: 60_000 * MILLIS,
        }
    }
}

/// The waits of one thing that is tried again and again: doubled each time, less up to a tenth.
#[derive(Debug, Clone)]
pub struct Backoff {
    config: BackoffConfig,
    next: Nanos,
}

impl Backoff {
    /// Starts with the initial wait.
    #[must_use]
    pub fn new(config: BackoffConfig) -> Self {
        Self {
            config,
            next: config.initial.max(1),
        }
    }

    /// The next wait.
    pub fn next(&mut self, rng: &mut Rng) -> Nanos {
        let wait = self.next.min(self.config.max.max(1));
        self.next = wait.saturating_mul(2);
        wait - rng.below(wait / 10 + 1)
    }

    /// It worked: start small again.
    pub fn reset(&mut self) {
        self.next = self.config.initial.max(1);
    }
}

/// Numbers from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit_and_starts_again() {
        let config = BackoffConfig {
            initial: 100,
            max: 1_000,
        };
        let (mut backoff, mut rng) = (Backoff::new(config), Rng::new(7));
        for upper in [100, 200, 400, 800, 1_000, 1_000] {
            let wait = backoff.next(&mut rng);
            assert!(
                wait <= upper && wait >= upper - upper / 10,
                "{wait} of {upper}"
            );
            // The jitter of one wait does not shrink the next: it is the wait before jitter that doubles.
        }
        backoff.reset();
        assert!(backoff.next(&mut rng) <= 100);
    }
}
