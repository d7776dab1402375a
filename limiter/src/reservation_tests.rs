#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use super::*;
use std::task::Wake;

#[cfg(not(loom))]
mod plain {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll(future: &mut Reserve, count: &Arc<Count>) -> Option<Reservation> {
        let waker = Waker::from(Arc::clone(count));
        match Pin::new(future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(reservation) => Some(reservation),
            Poll::Pending => None,
        }
    }

    #[test]
    fn room_is_counted_to_the_byte() {
        let limit = MemoryLimit::new(100);
        let first = limit.try_reserve(60).unwrap();
        let second = limit.try_reserve(40).unwrap();
        let full = limit.try_reserve(1).unwrap_err();
        assert_eq!((full.used, full.limit, full.wanted), (100, 100, 1));
        drop(first);
        assert_eq!(limit.used(), 40);
        drop(second);
        assert_eq!((limit.used(), limit.peak()), (0, 100));
    }

    #[test]
    fn one_larger_than_the_limit_is_granted_alone() {
        let limit = MemoryLimit::new(100);
        let count = Arc::new(Count::default());
        let small = limit.try_reserve(1).unwrap();
        let mut large = limit.reserve(1000);
        assert!(poll(&mut large, &count).is_none());
        drop(small);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        let large = poll(&mut large, &count).unwrap();
        assert_eq!((large.bytes(), limit.used()), (1000, 1000));
        limit.try_reserve(1).unwrap_err();
        drop(large);
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn nobody_overtakes_who_waits() {
        let limit = MemoryLimit::new(100);
        let count = Arc::new(Count::default());
        let held = limit.try_reserve(50).unwrap();
        let mut large = limit.reserve(80);
        assert!(poll(&mut large, &count).is_none());
        // There is room for this one, but somebody came first.
        limit.try_reserve(10).unwrap_err();
        let mut small = limit.reserve(10);
        assert!(poll(&mut small, &count).is_none());
        drop(held);
        assert!(poll(&mut small, &count).is_some());
        assert!(poll(&mut large, &count).is_some());
        assert_eq!(limit.used(), 0);
        assert!(limit.try_reserve(10).is_ok(), "the fast path is open again");
    }

    #[test]
    fn who_leaves_lets_the_next_one_by() {
        let limit = MemoryLimit::new(100);
        let count = Arc::new(Count::default());
        let _held = limit.try_reserve(50).unwrap();
        let mut large = limit.reserve(80);
        let mut small = limit.reserve(10);
        assert!(poll(&mut large, &count).is_none());
        assert!(poll(&mut small, &count).is_none());
        drop(large);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(poll(&mut small, &count).is_some());
    }

    #[test]
    fn a_grant_nobody_took_goes_on() {
        let limit = MemoryLimit::new(100);
        let count = Arc::new(Count::default());
        let held = limit.try_reserve(100).unwrap();
        let mut first = limit.reserve(100);
        let mut second = limit.reserve(100);
        assert!(poll(&mut first, &count).is_none());
        assert!(poll(&mut second, &count).is_none());
        drop(held);
        assert_eq!(limit.used(), 100);
        drop(first);
        assert!(poll(&mut second, &count).is_some());
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn what_is_forced_counts_against_the_others() {
        let limit = MemoryLimit::new(100);
        let first = limit.try_reserve(90).unwrap();
        let forced = limit.force_reserve(50);
        assert_eq!(limit.used(), 140);
        drop(first);
        assert!(limit.try_reserve(60).is_err());
        assert!(limit.try_reserve(50).is_ok());
        drop(forced);
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn no_limit_admits_everything() {
        let limit = MemoryLimit::new(0);
        let all: Vec<_> = (0..8)
            .map(|_| limit.try_reserve(u64::MAX).unwrap())
            .collect();
        assert!(limit.used() > 0);
        drop(all);
        assert_eq!(limit.used(), 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Try(u64),
        Wait(u64),
        Poll(usize),
        Cancel(usize),
        Release(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = prop_oneof![8 => 1..60u64, 1 => 90..150u64];
        prop::collection::vec(
            prop_oneof![
                size.clone().prop_map(Step::Try),
                size.prop_map(Step::Wait),
                any::<usize>().prop_map(Step::Poll),
                any::<usize>().prop_map(Step::Cancel),
                any::<usize>().prop_map(Step::Release),
            ],
            0..200,
        )
    }

    proptest! {
        /// Never above the limit but for one that is alone; grants in the order of arrival; nobody sleeps who has been
        /// granted; nobody waits who would fit; nothing is left at the end.
        #[test]
        fn the_rules_hold_in_every_order(steps in steps()) {
            let limit = MemoryLimit::new(100);
            let mut held: Vec<Reservation> = Vec::new();
            let mut waiting: Vec<(Reserve, u64, Arc<Count>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Try(bytes) => {
                        let fits = limit.used() == 0 || limit.used() + bytes <= 100;
                        let nobody = limit.waiting() == 0;
                        let got = limit.try_reserve(bytes);
                        prop_assert_eq!(got.is_ok(), fits && nobody);
                        held.extend(got);
                    }
                    Step::Wait(bytes) => {
                        let count = Arc::new(Count::default());
                        let mut future = limit.reserve(bytes);
                        match poll(&mut future, &count) {
                            Some(reservation) => held.push(reservation),
                            None => waiting.push((future, bytes, count)),
                        }
                    }
                    Step::Poll(at) if !waiting.is_empty() => {
                        let at = at % waiting.len();
                        let (future, _, count) = &mut waiting[at];
                        let woken = count.0.load(Ordering::SeqCst) > 0;
                        let got = poll(future, &count.clone());
                        prop_assert_eq!(got.is_some(), woken);
                        if let Some(got) = got {
                            held.push(got);
                            drop(waiting.remove(at));
                        }
                    }
                    Step::Cancel(at) if !waiting.is_empty() => {
                        let at = at % waiting.len();
                        drop(waiting.remove(at));
                    }
                    Step::Release(at) if !held.is_empty() => {
                        let at = at % held.len();
                        drop(held.swap_remove(at));
                    }
                    _ => {}
                }
                let granted: Vec<bool> =
                    waiting.iter().map(|(_, _, count)| count.0.load(Ordering::SeqCst) > 0).collect();
                prop_assert!(granted.windows(2).all(|pair| pair[0] || !pair[1]), "first come, first served");
                let of_granted: u64 =
                    waiting.iter().zip(&granted).filter(|(_, granted)| **granted).map(|((_, bytes, _), _)| bytes).sum();
                let sum = held.iter().map(Reservation::bytes).sum::<u64>() + of_granted;
                prop_assert_eq!(limit.used(), sum);
                prop_assert!(sum <= 100 || held.len() + granted.iter().filter(|g| **g).count() == 1);
                if let Some(first) = granted.iter().position(|granted| !granted) {
                    prop_assert!(sum != 0 && sum + waiting[first].1 > 100, "the first one would fit");
                }
            }
            drop(waiting);
            drop(held);
            prop_assert_eq!(limit.used(), 0);
            prop_assert_eq!(limit.waiting(), 0);
            prop_assert!(limit.try_reserve(1000).is_ok());
        }
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p vela-limiter --profile ci --lib loom`.
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::sync::Notify;

    struct Bell(Notify);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    /// What a thread of the blocking API does. A wake-up that gets lost is a deadlock, which loom reports.
    fn block_on(mut future: Reserve) -> Reservation {
        let bell = Arc::new(Bell(Notify::new()));
        let waker = Waker::from(Arc::clone(&bell));
        loop {
            match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(reservation) => return reservation,
                Poll::Pending => bell.0.wait(),
            }
        }
    }

    #[test]
    fn no_wake_up_is_lost_between_a_release_and_one_who_queues() {
        loom::model(|| {
            let limit = MemoryLimit::new(10);
            let held = limit.try_reserve(10).unwrap();
            let other = limit.clone();
            let waiter = loom::thread::spawn(move || {
                let reservation = block_on(other.reserve(6));
                assert!(other.used() <= 10);
                drop(reservation);
            });
            drop(held);
            waiter.join().unwrap();
            assert_eq!(limit.used(), 0);
            assert!(limit.try_reserve(10).is_ok());
        });
    }

    #[test]
    fn two_who_wait_and_one_who_only_tries_never_pass_the_limit() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let limit = MemoryLimit::new(10);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let limit = limit.clone();
                    loom::thread::spawn(move || {
                        let reservation = block_on(limit.reserve(6));
                        assert!(limit.used() <= 10);
                        drop(reservation);
                    })
                })
                .collect();
            if let Ok(reservation) = limit.try_reserve(4) {
                assert!(limit.used() <= 10);
                drop(reservation);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(limit.used(), 0);
            assert_eq!(limit.waiting(), 0);
        });
    }

    #[test]
    fn one_who_leaves_while_granted_gives_it_on() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let limit = MemoryLimit::new(10);
            let held = limit.try_reserve(10).unwrap();
            let mut leaver = limit.reserve(10);
            let bell = Arc::new(Bell(Notify::new()));
            let waker = Waker::from(bell);
            assert!(
                Pin::new(&mut leaver)
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            let other = limit.clone();
            let waiter = loom::thread::spawn(move || drop(block_on(other.reserve(10))));
            let releaser = loom::thread::spawn(move || drop(held));
            drop(leaver);
            waiter.join().unwrap();
            releaser.join().unwrap();
            assert_eq!(limit.used(), 0);
        });
    }
}
