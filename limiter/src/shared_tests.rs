#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use super::*;
use std::sync::Arc;

#[cfg(not(loom))]
mod plain {
    use super::*;
    use crate::bucket::{SECOND, TokenBucket};
    use proptest::prelude::*;
    use std::num::NonZeroU64;

    #[test]
    fn no_limit_charges_nothing_and_a_new_one_starts_full() {
        let rate = SharedRate::new(0, 0, 0);
        assert!(!rate.consume(0, 1_000, 1_000));
        assert_eq!((rate.wait(0), rate.messages.balance(0)), (0, None));
        rate.set(SECOND, 10, 0);
        assert_eq!(rate.messages.balance(SECOND), Some(10));
        assert!(rate.consume(SECOND, 30, 1));
        rate.set(SECOND, 0, 0);
        assert_eq!(rate.wait(SECOND), 0);
        rate.set(SECOND, 10, 0);
        assert_eq!(rate.messages.balance(SECOND), Some(10));
    }

    #[test]
    fn a_higher_rate_frees_at_once() {
        let bucket = SharedBucket::new(10, 0);
        assert!(bucket.consume(0, 500));
        bucket.set_rate(0, 5);
        assert!(bucket.wait(0) > 40 * SECOND);
        bucket.set_rate(0, 6);
        assert_eq!((bucket.wait(0), bucket.balance(0)), (0, Some(1)));
    }

    proptest! {
        /// One core alone sees the bucket of one owner.
        #[test]
        fn agrees_with_the_bucket_of_one_owner(
            rate in 1..2_000_000_u64,
            steps in prop::collection::vec((0..2_000_000_000_u64, 0..3_000_000_u64), 1..60),
        ) {
            let shared = SharedBucket::new(rate, 0);
            let mut owned = TokenBucket::new(NonZeroU64::new(rate).unwrap(), 0);
            let mut now = 0;
            for (elapsed, tokens) in steps {
                now += elapsed;
                shared.consume(now, tokens);
                owned.consume(now, tokens);
                let difference = owned.balance(now) - shared.balance(now).unwrap();
                prop_assert!((0..=1).contains(&difference));
            }
        }
    }

    /// Eight threads at once, no time passing: every charge counts, and exactly the last ones are told to wait.
    #[test]
    fn concurrent_charges_are_all_made() {
        let bucket = Arc::new(SharedBucket::new(1_000_000, 0));
        let throttled: u64 = (0..8)
            .map(|_| {
                let bucket = Arc::clone(&bucket);
                std::thread::spawn(move || (0..20_000).filter(|_| bucket.consume(0, 10)).count())
            })
            .collect::<Vec<_>>()
            .into_iter()
            .map(|thread| u64::try_from(thread.join().unwrap()).unwrap())
            .sum();
        assert_eq!(bucket.balance(0), Some(1_000_000 - 8 * 20_000 * 10));
        // 100,000 charges empty it; the one that does is throttled too.
        assert_eq!(throttled, 8 * 20_000 - 100_000 + 1);
    }

    /// Cores that take turns, each waiting as told, for an hour: the rate to 0.1 %.
    #[test]
    fn an_hour_of_several_cores_does_not_drift() {
        for (rate, frame) in [(500, 1), (333, 7), (70_001, 600)] {
            let bucket = SharedBucket::new(rate, 0);
            let mut next = [0_u64, 3, 5, 7];
            let mut sent = 0;
            let end = 3_600 * SECOND;
            while let Some(core) = (0..next.len()).min_by_key(|core| next.get(*core)) {
                let now = *next.get(core).unwrap();
                if now >= end {
                    break;
                }
                sent += frame;
                let after = if bucket.consume(now, frame) {
                    bucket.wait(now)
                } else {
                    1_000_000
                };
                *next.get_mut(core).unwrap() += after;
            }
            let (sent, expected) = (sent as f64, (rate * 3_600) as f64);
            assert!(
                (sent - expected).abs() / expected < 0.001,
                "{sent} of {expected}"
            );
        }
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p vela-limiter --release loom`.
#[cfg(loom)]
mod loom_models {
    use super::*;
    use loom::thread;

    #[test]
    fn no_charge_is_lost_and_the_one_that_empties_is_told() {
        loom::model(|| {
            let bucket = Arc::new(SharedBucket::new(10, 0));
            let others: Vec<_> = [4, 7]
                .map(|tokens| {
                    let bucket = Arc::clone(&bucket);
                    thread::spawn(move || bucket.consume(0, tokens))
                })
                .into_iter()
                .collect();
            let mut throttled = usize::from(bucket.consume(0, 5));
            for other in others {
                throttled += usize::from(other.join().unwrap());
            }
            assert_eq!(bucket.balance(0), Some(-6));
            // 4 + 5 leave one token; any other two are too much already.
            assert!((1..=2).contains(&throttled), "{throttled}");
        });
    }

    #[test]
    fn a_full_bucket_is_capped_once() {
        loom::model(|| {
            let bucket = Arc::new(SharedBucket::new(10, 0));
            let now = 3_600_000_000_000;
            let other = {
                let bucket = Arc::clone(&bucket);
                thread::spawn(move || bucket.consume(now, 6))
            };
            let first = bucket.consume(now, 6);
            let second = other.join().unwrap();
            assert_eq!(bucket.balance(now), Some(-2));
            assert!(first != second, "exactly the later one waits");
        });
    }

    #[test]
    fn a_rate_raised_during_a_charge_loses_no_later_charge() {
        loom::model(|| {
            let bucket = Arc::new(SharedBucket::new(10, 0));
            bucket.consume(0, 30);
            let other = {
                let bucket = Arc::clone(&bucket);
                thread::spawn(move || bucket.set_rate(0, 20))
            };
            bucket.consume(0, 10);
            other.join().unwrap();
            // Before the change: forgiven. After it: charged, on top of what the change left.
            let free = 1;
            let balance = bucket.balance(0).unwrap();
            assert!(
                balance == free || balance == free - 10 || balance == free - 20,
                "{balance}"
            );
            bucket.consume(0, 5);
            assert_eq!(bucket.balance(0), Some(balance - 5));
        });
    }

    #[test]
    fn removing_the_limit_during_a_charge_frees() {
        loom::model(|| {
            let bucket = Arc::new(SharedBucket::new(10, 0));
            let other = {
                let bucket = Arc::clone(&bucket);
                thread::spawn(move || bucket.set_rate(0, 0))
            };
            bucket.consume(0, 100);
            other.join().unwrap();
            assert_eq!(bucket.wait(0), 0);
        });
    }
}
