//! The token bucket that all cores share, without a lock: its balance is one atomic moment (see
//! [`bucket`](crate::bucket)), so every charge is one compare-and-swap and none is lost.

use crate::bucket::{balance, cost, full, release_mark, ticks, wait};
use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// A token bucket shared by all cores. All cores must use one clock.
///
/// A charge is rounded up to 1/16 ns of the rate's time, so the long-run rate is below the setting by less than
/// 0.1 % as long as it admits fewer than 16 million charges a second.
#[derive(Debug)]
pub struct SharedBucket {
    /// Tokens per second; 0: no limit.
    rate: AtomicU64,
    /// When the balance is zero, in ticks.
    zero: AtomicI64,
}

impl SharedBucket {
    /// A full bucket of `rate` tokens per second; 0: no limit.
    #[must_use]
    pub fn new(rate: u64, now: u64) -> Self {
        Self {
            rate: AtomicU64::new(rate),
            zero: AtomicI64::new(full(ticks(now))),
        }
    }

    /// Tokens per second; 0: no limit.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Acquire)
    }

    /// Takes `tokens`, whatever is there. True: the balance is zero or less, so whoever consumed has to wait.
    pub fn consume(&self, now: u64, tokens: u64) -> bool {
        let rate = self.rate();
        if rate == 0 {
            return false;
        }
        let now = ticks(now);
        let (ticks, rest) = cost(rate, tokens, 0);
        let cost = ticks.saturating_add(i64::from(rest > 0));
        let mut zero = self.zero.load(Ordering::Acquire);
        loop {
            let after = zero.max(full(now)).saturating_add(cost);
            match self
                .zero
                .compare_exchange_weak(zero, after, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return balance(rate, after, now) <= 0,
                Err(newer) => zero = newer,
            }
        }
    }

    /// Whole tokens at `now`; negative: debt; `None`: no limit.
    #[must_use]
    pub fn balance(&self, now: u64) -> Option<i64> {
        let rate = self.rate();
        (rate > 0).then(|| balance(rate, self.zero.load(Ordering::Acquire), ticks(now)))
    }

    /// Nanoseconds until the balance is max(1, 1 % of the capacity); 0: it is, or there is no limit.
    #[must_use]
    pub fn wait(&self, now: u64) -> u64 {
        match self.rate() {
            0 => 0,
            rate => wait(rate, self.zero.load(Ordering::Acquire), now),
        }
    }

    /// Changes the rate (0: no limit). A higher one forgives the debt; a lower one keeps the *time* that the debt
    /// still takes; a new one starts full. The caller then has every core release its waiters.
    pub fn set_rate(&self, now: u64, rate: u64) {
        let before = self.rate.swap(rate, Ordering::AcqRel);
        // Only ever earlier, so this can race with charges and with other changes without losing a charge that
        // comes after it.
        if rate > 0 && before == 0 {
            self.zero.fetch_min(full(ticks(now)), Ordering::AcqRel);
        } else if rate > before {
            let free = ticks(now).saturating_sub(release_mark(rate));
            self.zero.fetch_min(free, Ordering::AcqRel);
        }
    }
}

/// The broker-wide publish rate, in messages and bytes.
#[derive(Debug)]
pub struct SharedRate {
    /// Messages per second (`brokerPublisherThrottlingMaxMessageRate`).
    pub messages: SharedBucket,
    /// Bytes per second (`brokerPublisherThrottlingMaxByteRate`).
    pub bytes: SharedBucket,
}

impl SharedRate {
    /// Limits per second; 0: none.
    #[must_use]
    pub fn new(now: u64, messages: u64, bytes: u64) -> Self {
        Self {
            messages: SharedBucket::new(messages, now),
            bytes: SharedBucket::new(bytes, now),
        }
    }

    /// Changes the limits (per second; 0: none). The caller then has every core release its waiters.
    pub fn set(&self, now: u64, messages: u64, bytes: u64) {
        self.messages.set_rate(now, messages);
        self.bytes.set_rate(now, bytes);
    }

    /// Charges a publish in full. True: a dimension is at zero or less, so the publisher has to wait.
    pub fn consume(&self, now: u64, messages: u64, bytes: u64) -> bool {
        // Both are charged, whatever the first says.
        let by_messages = self.messages.consume(now, messages);
        let by_bytes = self.bytes.consume(now, bytes);
        by_messages || by_bytes
    }

    /// Nanoseconds until publishers may be released: of two dimensions the longer wait. 0: now.
    #[must_use]
    pub fn wait(&self, now: u64) -> u64 {
        self.messages.wait(now).max(self.bytes.wait(now))
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
