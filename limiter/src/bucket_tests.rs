#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use super::*;
use proptest::prelude::*;

fn bucket(rate: u64) -> TokenBucket {
    TokenBucket::new(NonZeroU64::new(rate).unwrap(), 0)
}

fn rate(rate: u64) -> NonZeroU64 {
    NonZeroU64::new(rate).unwrap()
}

#[test]
fn starts_full_and_goes_into_debt() {
    let mut bucket = bucket(10);
    assert_eq!(bucket.balance(0), 10);
    assert!(!bucket.consume(0, 9));
    assert_eq!(bucket.wait(0), 0);
    assert!(bucket.consume(0, 1), "a balance of zero throttles");
    assert!(bucket.consume(0, 40));
    assert_eq!(bucket.balance(0), -40);
    // 41 tokens at 10/s.
    assert_eq!(bucket.wait(0), 4_100_000_000);
    assert_eq!(bucket.balance(4_099_999_999), 0);
    assert_eq!(bucket.balance(4_100_000_000), 1);
    assert_eq!(bucket.wait(4_100_000_000), 0);
}

#[test]
fn never_holds_more_than_a_second_of_tokens() {
    let mut bucket = bucket(100);
    bucket.consume(0, 250);
    assert_eq!(bucket.balance(3_600 * SECOND), 100);
    assert!(bucket.consume(3_600 * SECOND, 100));
    assert_eq!(bucket.balance(3_600 * SECOND), 0);
}

#[test]
fn tokens_appear_in_steps_of_16_ms() {
    let mut bucket = bucket(1_000);
    bucket.consume(0, 1_000);
    assert_eq!(bucket.balance(STEP - 1), 0);
    assert_eq!(bucket.balance(STEP), 16);
    assert_eq!(bucket.balance(2 * STEP - 1), 16);
}

/// Saturated for hours, in frames of every shape: what comes through is the rate, to 0.1 %.
#[test]
fn hours_do_not_drift() {
    for (per_second, frame) in [
        (1, 1),
        (3, 1),
        (7, 3),
        (10, 20),
        (999, 7),
        (12_345, 600),
        (1_000_003, 997),
        (700_000_001, 1_048_577),
        (5_000_000_000, 5_242_880),
    ] {
        let mut bucket = bucket(per_second);
        let hours = if frame * 20 > per_second { 3 } else { 1 };
        let (mut now, end, mut sent) = (0, hours * 3_600 * SECOND, 0_u64);
        while now < end {
            sent += frame;
            if bucket.consume(now, frame) {
                now += bucket.wait(now);
            }
        }
        let expected = (per_second * (now / SECOND)) as f64;
        // The first second's burst and the last frame's debt are no drift.
        let slack = (per_second + frame + per_second / 50) as f64;
        let error = (sent as f64 - expected).abs();
        assert!(
            error <= slack + expected * 0.000_001,
            "{per_second}/s in {frame}: {sent} of {expected}"
        );
        assert!(
            error / expected < 0.001 || error <= slack,
            "{per_second}/s: {error}"
        );
    }
}

/// Tokens that cost a third of a nanosecond each: what a division leaves over is carried to the next.
#[test]
fn fractions_of_a_tick_are_carried() {
    let mut bucket = bucket(3_000_000_000);
    for _ in 0..3_000_000 {
        bucket.consume(0, 1);
    }
    assert_eq!(bucket.balance(0), 3_000_000_000 - 3_000_000);
}

#[test]
fn a_higher_rate_frees_at_once_and_a_lower_one_keeps_the_time() {
    let mut bucket = bucket(10);
    bucket.consume(0, 110);
    let before = bucket.wait(0);
    bucket.set_rate(0, rate(11));
    assert_eq!(bucket.wait(0), 0);
    assert_eq!(bucket.balance(0), 1, "free, but no new burst");

    let mut bucket = self::bucket(10);
    bucket.consume(0, 110);
    assert!(before > 10 * SECOND);
    bucket.set_rate(0, rate(5));
    assert_eq!(bucket.balance(0), -50);
    assert!(bucket.wait(0) >= 10 * SECOND && bucket.wait(0) < 11 * SECOND);
    bucket.set_rate(0, rate(5));
    assert_eq!(bucket.balance(0), -50);
}

#[test]
fn the_longer_wait_wins() {
    let mut pace = PublishRate::new(0, 10, 100);
    assert!(pace.consume(0, 11, 300));
    assert_eq!(pace.wait(0), pace.bytes.as_ref().unwrap().wait(0));
    assert!(pace.wait(0) > pace.messages.as_ref().unwrap().wait(0));
    pace.set(0, 10, 0);
    assert_eq!(pace.wait(0), pace.messages.as_ref().unwrap().wait(0));
    assert!(pace.wait(0) > 0);
    pace.set(0, 0, 0);
    assert!(!pace.is_limited() && pace.wait(0) == 0 && !pace.consume(0, 1_000, 1_000));
}

/// Behaviour known of Pulsar: 10 msg/s and 100 B/s, one publish of (11, 110), then a higher rate.
#[test]
fn raising_both_limits_releases() {
    let mut pace = PublishRate::new(0, 10, 100);
    assert!(pace.consume(0, 11, 110));
    pace.set(0, 20, 100);
    assert!(pace.wait(0) > 0, "bytes still wait");
    pace.set(0, 20, 200);
    assert_eq!(pace.wait(0), 0);
}

#[test]
fn hostile_numbers_end_in_debt_and_not_in_overflow() {
    let mut bucket = bucket(1);
    assert!(bucket.consume(0, u64::MAX));
    assert!(bucket.consume(u64::MAX, u64::MAX));
    assert!(bucket.wait(5) > 0);
    let mut bucket = self::bucket(u64::MAX);
    bucket.consume(0, u64::MAX);
    assert_eq!(bucket.balance(0), 0);
    bucket.set_rate(u64::MAX, rate(1));
    let _ = (bucket.wait(u64::MAX), bucket.balance(u64::MAX));
}

proptest! {
    /// Against exact fractions: balance = min(capacity, balance + time * rate) - tokens, floored when read.
    #[test]
    fn agrees_with_exact_refill(
        per_second in 1..2_000_000_u64,
        steps in prop::collection::vec((0..2_000_000_000_u64, 0..3_000_000_u64), 1..60),
    ) {
        let mut bucket = bucket(per_second);
        // In billionths of a token.
        let (mut exact, mut last, mut now) = (i128::from(per_second) * 1_000_000_000, 0, 0);
        for (elapsed, tokens) in steps {
            now += elapsed;
            let step = now - now % step(per_second);
            let full = i128::from(per_second) * 1_000_000_000;
            exact = (exact + i128::from(step - last) * i128::from(per_second)).min(full);
            last = step;
            exact -= i128::from(tokens) * 1_000_000_000;
            let throttled = bucket.consume(now, tokens);
            let expected = exact.div_euclid(1_000_000_000);
            // Less than a tick of time is rounded: never more than a token.
            let difference = i128::from(bucket.balance(now)) - expected;
            prop_assert!((0..=1).contains(&difference), "{} instead of {expected}", bucket.balance(now));
            prop_assert_eq!(throttled, bucket.balance(now) <= 0);
            let wait = bucket.wait(now);
            let mark = i64::try_from((per_second / 100).max(1)).unwrap();
            prop_assert_eq!(wait == 0, bucket.balance(now) >= mark);
            prop_assert!(bucket.balance(now + wait) >= mark);
            if wait > 0 {
                prop_assert!(bucket.balance(now + wait - 1) < mark);
            }
        }
    }
}
