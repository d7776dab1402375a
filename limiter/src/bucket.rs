//! Token buckets with debt. Consuming always succeeds: what was already read is charged in full, and the debt
//! delays later reads. A debt has no cap: whatever were forgiven of it would be let through above the rate. What must not last as long as a
//! debt may, such as the patience with a peer that a rate keeps from being heard, has a bound of its own where it is granted.
//!
//! A bucket of rate r holds at most r tokens, one second's worth. So it is kept as one moment, the time at which
//! the balance is zero: a balance is the time since then times r, capped at one second. Time needs no refill, so
//! nothing is rounded on the way and nothing drifts; a change of the rate needs no conversion.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::shared::SharedRate;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// Tokens appear at most this often (nanoseconds), so that waiters are released in groups and not one timer each.
/// Where a single token takes longer than this it appears on time: a bucket for one token would overflow meanwhile.
pub const STEP: u64 = 16_000_000;

/// Parts of a nanosecond in which buckets calculate.
const TICKS_PER_NANO: u64 = 16;
const TICKS_PER_SECOND: i64 = (SECOND * TICKS_PER_NANO) as i64;

/// How often tokens appear (nanoseconds).
fn step(rate: u64) -> u64 {
    if rate.saturating_mul(STEP) >= SECOND {
        STEP
    } else {
        1
    }
}

/// A moment on the virtual clock in ticks, rounded down to a step. 2^59 ns are 18 years; later is never.
pub(crate) fn ticks(rate: u64, now: u64) -> i64 {
    let nanos = now - now % step(rate);
    i64::try_from(nanos.saturating_mul(TICKS_PER_NANO)).unwrap_or(i64::MAX)
}

/// The moment of a zero balance of a bucket that is full at `now` (ticks).
pub(crate) fn full(now: i64) -> i64 {
    now.saturating_sub(TICKS_PER_SECOND)
}

/// What `tokens` cost at `rate`: whole ticks, and the rest of the division.
pub(crate) fn cost(rate: u64, tokens: u64, carried: u64) -> (i64, u64) {
    let rate = u128::from(rate.max(1));
    let sum =
        u128::from(tokens) * u128::from(TICKS_PER_SECOND.unsigned_abs()) + u128::from(carried);
    let ticks = i64::try_from(sum / rate).unwrap_or(i64::MAX);
    (ticks, u64::try_from(sum % rate).unwrap_or(0))
}

/// Whole tokens at `now`, if the balance is zero at `zero`.
pub(crate) fn balance(rate: u64, zero: i64, now: i64) -> i64 {
    let time = i128::from(now) - i128::from(zero);
    let tokens = (time * i128::from(rate)).div_euclid(i128::from(TICKS_PER_SECOND));
    let capacity = i128::from(rate);
    i64::try_from(tokens.min(capacity)).unwrap_or(if tokens < 0 { i64::MIN } else { i64::MAX })
}

/// Ticks in which an empty bucket fills so far that waiters are released: max(1, 1 % of the capacity) tokens.
pub(crate) fn release_mark(rate: u64) -> i64 {
    let rate = rate.max(1);
    let target = u128::from((rate / 100).max(1));
    let ticks = (target * u128::from(TICKS_PER_SECOND.unsigned_abs())).div_ceil(u128::from(rate));
    i64::try_from(ticks).unwrap_or(i64::MAX)
}

/// Nanoseconds from `now` (nanoseconds) until waiters may be released; 0: they may be now.
pub(crate) fn wait(rate: u64, zero: i64, now: u64) -> u64 {
    let at = zero.saturating_add(release_mark(rate));
    if at <= ticks(rate, now) {
        return 0;
    }
    // The first step that is not before `at`, which is after the start of the clock.
    let (at, step) = (at.unsigned_abs(), step(rate));
    let moment = at.div_ceil(step * TICKS_PER_NANO).saturating_mul(step);
    moment.saturating_sub(now)
}

/// A token bucket of one owner. Its clock is the caller's, in nanoseconds since a fixed moment, and must not
/// run backwards for the bucket to be exact.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: NonZeroU64,
    /// When the balance is zero, in ticks; in the future: debt.
    zero: i64,
    /// The rest of the last division, in tokens-ticks per second: what keeps even odd rates exact.
    rest: u64,
}

impl TokenBucket {
    /// A full bucket of `rate` tokens per second, which is also its capacity.
    #[must_use]
    pub fn new(rate: NonZeroU64, now: u64) -> Self {
        Self {
            rate,
            zero: full(ticks(rate.get(), now)),
            rest: 0,
        }
    }

    /// Tokens per second.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate.get()
    }

    /// Takes `tokens`, whatever is there. True: the balance is zero or less, so whoever consumed has to wait.
    pub fn consume(&mut self, now: u64, tokens: u64) -> bool {
        let now = ticks(self.rate(), now);
        if self.zero < full(now) {
            (self.zero, self.rest) = (full(now), 0);
        }
        let (cost, rest) = cost(self.rate(), tokens, self.rest);
        self.zero = self.zero.saturating_add(cost);
        self.rest = rest;
        balance(self.rate(), self.zero, now) <= 0
    }

    /// Whole tokens at `now`; negative: debt.
    #[must_use]
    pub fn balance(&self, now: u64) -> i64 {
        balance(self.rate(), self.zero, ticks(self.rate(), now))
    }

    /// Nanoseconds until the balance is max(1, 1 % of the capacity); 0: it is.
    #[must_use]
    pub fn wait(&self, now: u64) -> u64 {
        wait(self.rate(), self.zero, now)
    }

    /// Changes the rate. A higher one forgives the debt, so that waiters are free at once; a lower one keeps the
    /// *time* that the debt still takes.
    pub fn set_rate(&mut self, now: u64, rate: NonZeroU64) {
        if rate > self.rate {
            self.zero = self
                .zero
                .min(ticks(rate.get(), now).saturating_sub(release_mark(rate.get())));
        }
        if rate != self.rate {
            self.rest = 0;
        }
        self.rate = rate;
    }
}

/// A limit in two dimensions, messages and bytes, that publishes are charged to.
pub trait Pace {
    /// Charges a publish in full. True: a dimension is at zero or less, so the publisher has to wait.
    fn consume(&mut self, now: u64, messages: u64, bytes: u64) -> bool;
    /// Nanoseconds until publishers may be released: of two dimensions the longer wait. 0: now.
    fn wait(&self, now: u64) -> u64;
}

/// The publish rate of one owner: a topic, or a resource group on one core.
#[derive(Clone, Debug, Default)]
pub struct PublishRate {
    /// Messages per second, if limited.
    pub messages: Option<TokenBucket>,
    /// Bytes per second, if limited.
    pub bytes: Option<TokenBucket>,
}

impl PublishRate {
    /// Limits per second; 0: none.
    #[must_use]
    pub fn new(now: u64, messages: u64, bytes: u64) -> Self {
        let mut rate = Self::default();
        rate.set(now, messages, bytes);
        rate
    }

    /// Changes the limits (per second; 0: none). See [`TokenBucket::set_rate`]; a new limit starts full.
    pub fn set(&mut self, now: u64, messages: u64, bytes: u64) {
        let set =
            |bucket: &mut Option<TokenBucket>, rate: u64| match (NonZeroU64::new(rate), bucket) {
                (Some(rate), Some(bucket)) => bucket.set_rate(now, rate),
                (rate, bucket) => *bucket = rate.map(|rate| TokenBucket::new(rate, now)),
            };
        set(&mut self.messages, messages);
        set(&mut self.bytes, bytes);
    }

    /// Whether anything is limited.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.messages.is_some() || self.bytes.is_some()
    }
}

impl Pace for PublishRate {
    fn consume(&mut self, now: u64, messages: u64, bytes: u64) -> bool {
        let consume = |bucket: &mut Option<TokenBucket>, tokens| {
            bucket
                .as_mut()
                .is_some_and(|bucket| bucket.consume(now, tokens))
        };
        // Both are charged, whatever the first says.
        let by_messages = consume(&mut self.messages, messages);
        let by_bytes = consume(&mut self.bytes, bytes);
        by_messages || by_bytes
    }

    fn wait(&self, now: u64) -> u64 {
        let wait =
            |bucket: &Option<TokenBucket>| bucket.as_ref().map_or(0, |bucket| bucket.wait(now));
        wait(&self.messages).max(wait(&self.bytes))
    }
}

impl Pace for Arc<SharedRate> {
    fn consume(&mut self, now: u64, messages: u64, bytes: u64) -> bool {
        SharedRate::consume(self, now, messages, bytes)
    }

    fn wait(&self, now: u64) -> u64 {
        SharedRate::wait(self, now)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "bucket_tests.rs"]
mod tests;
