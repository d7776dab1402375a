#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;

fn limiter(mode: Mode, limit: i64, budget: u64) -> Arc<MemoryLimiter> {
    Arc::new(MemoryLimiter::new(
        mode,
        limit,
        Arc::new(BufferMemory::new(budget)),
    ))
}

/// What must be true when nobody is between two steps.
fn at_rest(limiter: &MemoryLimiter) {
    let state = limiter.state();
    let retained = i64::try_from(limiter.retained()).unwrap();
    assert!(
        !(state.throttled && retained <= state.limit / 2),
        "stuck: {state:?} with {retained}"
    );
    assert!(!state.throttled || state.crowded);
    assert!(!state.active || state.pressed);
    if state.mode == Mode::Enabled && state.limit > 0 {
        assert!(
            state.throttled || retained <= state.limit,
            "missed: {state:?} with {retained}"
        );
        assert!(state.crowded || retained < crowded_mark(state.limit));
    } else if state.limit == 0 || matches!(state.mode, Mode::Disabled | Mode::Tracking) {
        assert!(!state.throttled && !state.crowded && !state.active);
    }
}

#[cfg(not(loom))]
mod plain {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn modes_and_their_aliases() {
        for mode in [Mode::Disabled, Mode::Tracking, Mode::Auto, Mode::Enabled] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(mode.name().to_uppercase().parse(), Ok(mode));
        }
        assert_eq!("False".parse(), Ok(Mode::Auto));
        assert_eq!(" TRUE ".parse(), Ok(Mode::Enabled));
        let error = "on".parse::<Mode>().unwrap_err().to_string();
        assert!(
            error.contains("'on'") && error.contains("tracking"),
            "{error}"
        );
        assert_eq!(Mode::default(), Mode::Auto);
    }

    #[test]
    fn enabled_throttles_above_the_limit_and_clears_at_half() {
        let limiter = limiter(Mode::Enabled, 100, 0);
        limiter.allocated(74);
        assert!(!limiter.is_crowded());
        limiter.allocated(1);
        assert!(limiter.is_crowded() && !limiter.is_throttled());
        limiter.allocated(25);
        assert!(!limiter.is_throttled(), "exactly L is allowed");
        limiter.allocated(1);
        assert!(limiter.is_throttled());
        limiter.released(50);
        assert!(limiter.is_throttled(), "51 is more than half");
        limiter.released(1);
        assert!(!limiter.is_throttled() && !limiter.is_crowded());
        let transitions = limiter.transitions();
        assert_eq!((transitions.throttled, transitions.cleared), (1, 1));
        assert_eq!((transitions.activated, transitions.stood_down), (0, 0));
    }

    #[test]
    fn disabled_and_tracking_decide_nothing() {
        for mode in [Mode::Disabled, Mode::Tracking] {
            let limiter = limiter(mode, 10, 10);
            assert_eq!(limiter.counts(), mode == Mode::Tracking);
            limiter.allocated(1_000);
            assert!(!limiter.is_throttled());
            assert_eq!(limiter.state().generation, 0);
            assert_eq!(limiter.retained(), 1_000);
        }
    }

    #[test]
    fn what_was_counted_before_disabled_is_subtracted_after_it() {
        let limiter = limiter(Mode::Enabled, 10, 0);
        limiter.allocated(20);
        limiter.set_mode(Mode::Disabled);
        assert!(!limiter.counts() && !limiter.is_throttled());
        limiter.released(20);
        assert_eq!(limiter.retained(), 0);
    }

    #[test]
    fn auto_needs_pressure_and_one_and_a_half_limits() {
        let limiter = limiter(Mode::Auto, 100, 1_000);
        limiter.allocated(150);
        limiter.memory().allocated(Holder::Cache, 700);
        limiter.released(1);
        limiter.allocated(1);
        assert!(!limiter.state().active, "150 is not more than 1.5 L");
        limiter.memory().released(Holder::Cache, 2);
        limiter.allocated(1);
        assert!(!limiter.state().active, "849 of 1000");
        limiter.allocated(1);
        assert!(limiter.state().active && limiter.is_throttled());
        assert_eq!(limiter.transitions().activated, 1);

        // The same L and L/2 marks while active.
        limiter.released(101);
        assert!(limiter.is_throttled(), "51");
        limiter.released(1);
        assert!(limiter.state().active && !limiter.is_throttled(), "50");
        limiter.allocated(51);
        assert!(limiter.is_throttled(), "101 while active");

        // 65 % exactly is not below it.
        limiter.memory().released(Holder::Cache, 149);
        assert_eq!(limiter.memory().in_use(), 650);
        limiter.reconsider();
        assert!(limiter.state().active && limiter.is_throttled());
        limiter.released(1);
        let state = limiter.state();
        assert!(!state.active && !state.throttled && !state.crowded);
        assert_eq!(limiter.transitions().stood_down, 1);
    }

    #[test]
    fn auto_stands_down_when_another_holder_lets_go() {
        let limiter = limiter(Mode::Auto, 100, 1_000);
        limiter.memory().allocated(Holder::Log, 800);
        limiter.allocated(200);
        assert!(limiter.is_throttled());
        limiter.memory().released(Holder::Log, 800);
        limiter.reconsider();
        assert!(!limiter.is_throttled() && !limiter.state().active);
    }

    #[test]
    fn pressure_lasts_from_its_mark_until_below_the_other_in_every_mode() {
        for mode in [Mode::Disabled, Mode::Tracking, Mode::Auto, Mode::Enabled] {
            let limiter = limiter(mode, 100, 1_000);
            let memory = Arc::clone(limiter.memory());
            let cores = Arc::new(AtomicUsize::new(0));
            let told = Arc::clone(&cores);
            let listener = limiter.register(move || {
                told.fetch_add(1, Ordering::SeqCst);
            });
            assert!(listener.begin());
            memory.allocated(Holder::Cache, 849);
            limiter.reconsider();
            assert!(!limiter.state().pressed && limiter.excess() == 0);
            memory.allocated(Holder::Cache, 1);
            limiter.reconsider();
            assert!(
                limiter.state().pressed && listener.begin(),
                "cores learn of it"
            );
            assert_eq!(limiter.excess(), 201);
            memory.released(Holder::Cache, 200);
            limiter.reconsider();
            assert!(limiter.state().pressed, "65 % exactly is not below it");
            assert_eq!(limiter.excess(), 1);
            memory.released(Holder::Cache, 1);
            assert_eq!(limiter.excess(), 0);
            limiter.reconsider();
            assert!(!limiter.state().pressed && listener.begin());
            memory.allocated(Holder::Cache, 200);
            limiter.reconsider();
            assert!(!limiter.state().pressed, "849 again");
            assert!(!limiter.is_throttled() && !limiter.is_crowded());
        }
    }

    /// What gives way is told to as long as `auto` is active, so it alone cannot keep it so.
    #[test]
    fn whoever_keeps_auto_active_is_asked_for_memory() {
        let limiter = limiter(Mode::Auto, 100, 1_000);
        limiter.memory().allocated(Holder::Cache, 690);
        limiter.allocated(160);
        assert!(limiter.state().active && limiter.state().pressed);
        limiter.released(160);
        assert!(limiter.state().active, "690 of 1000");
        let excess = usize::try_from(limiter.excess()).unwrap();
        limiter.memory().released(Holder::Cache, excess);
        limiter.reconsider();
        assert!(!limiter.state().active && !limiter.state().pressed);
        assert_eq!(limiter.transitions().stood_down, 1);
    }

    #[test]
    fn stale_activity_of_auto_never_throttles_without_pressure() {
        let limiter = limiter(Mode::Auto, 100, 1_000);
        limiter.memory().allocated(Holder::Log, 800);
        limiter.allocated(200);
        limiter.released(200);
        assert!(limiter.state().active && !limiter.is_throttled());
        limiter.memory().released(Holder::Log, 800);
        limiter.allocated(120);
        assert!(!limiter.is_throttled() && !limiter.state().active);
    }

    #[test]
    fn changes_of_mode_limit_and_budget_apply_at_once() {
        let limiter = limiter(Mode::Tracking, 100, 1_000);
        limiter.allocated(200);
        limiter.set_mode(Mode::Enabled);
        assert!(limiter.is_throttled());
        limiter.set_limit(400);
        assert!(!limiter.is_throttled(), "200 is half of 400");
        limiter.set_limit(199);
        assert!(limiter.is_throttled());
        limiter.set_limit(0);
        assert!(!limiter.is_throttled());
        limiter.set_limit(-5);
        assert_eq!(limiter.limit(), 0);
        limiter.set_limit(100);
        assert!(limiter.is_throttled());
        limiter.set_mode(Mode::Auto);
        assert!(!limiter.is_throttled());
        limiter.set_budget(230);
        assert!(limiter.state().active && limiter.is_throttled());
        limiter.set_budget(1_000_000);
        assert!(!limiter.is_throttled());
        limiter.set_limit(i64::MAX);
        assert_eq!(limiter.limit(), MAX_LIMIT);
    }

    #[test]
    fn one_pending_notification_and_the_latest_state() {
        let limiter = limiter(Mode::Enabled, 10, 0);
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&wakes);
        let listener = limiter.register(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(wakes.load(Ordering::Relaxed), 1, "told once at the start");
        for _ in 0..3 {
            limiter.allocated(11);
            limiter.released(11);
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        assert!(listener.begin());
        assert!(!limiter.is_throttled());
        assert!(!listener.begin());
        limiter.allocated(11);
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
        assert!(listener.begin() && limiter.is_throttled());
        limiter.set_mode(Mode::Enabled);
        assert!(!listener.is_notified(), "nothing changed");
        limiter.set_limit(9);
        assert!(listener.is_notified(), "a share depends on the limit");
        drop(listener);
        limiter.released(11);
        assert_eq!(wakes.load(Ordering::Relaxed), 3);
    }

    /// A listener that uses the limiter would deadlock if it were called inside a lock.
    #[test]
    fn listeners_may_use_the_limiter() {
        let limiter = limiter(Mode::Enabled, 10, 0);
        let inner = Arc::downgrade(&limiter);
        let _listener = limiter.register(move || {
            let limiter = inner.upgrade().unwrap();
            drop(limiter.register(|| {}));
            limiter.set_limit(limiter.limit() + 1);
        });
        limiter.allocated(20);
        assert_eq!(limiter.limit(), 11);
        assert!(limiter.is_throttled());
    }

    #[test]
    fn threads_leave_nothing_stuck() {
        let limiter = limiter(Mode::Enabled, 5_000, 20_000);
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let limiter = Arc::clone(&limiter);
                std::thread::spawn(move || {
                    let mut random = thread * 7 + 1;
                    let mut held = Vec::new();
                    for round in 0..20_000 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let size = usize::try_from(random >> 54).unwrap();
                        limiter.allocated(size);
                        held.push(size);
                        if held.len() > 8 {
                            held.drain(..7).for_each(|size| limiter.released(size));
                        }
                        if thread == 0 && round % 500 == 0 {
                            limiter.set_limit(i64::try_from(2_000 + random % 6_000).unwrap());
                        }
                        if thread == 1 && round % 700 == 0 {
                            limiter.set_mode(Mode::from_bits(random >> 40));
                        }
                    }
                    held.into_iter().for_each(|size| limiter.released(size));
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(limiter.retained(), 0);
        at_rest(&limiter);
        let transitions = limiter.transitions();
        assert!(transitions.throttled > 0);
        assert_eq!(transitions.throttled, transitions.cleared);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u16),
        Release,
        Other(u16),
        OtherRelease,
        Mode(u8),
        Limit(i16),
        Budget(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1..400_u16).prop_map(Step::Allocate),
            6 => Just(Step::Release),
            1 => (1..2_000_u16).prop_map(Step::Other),
            1 => Just(Step::OtherRelease),
            1 => (0..4_u8).prop_map(Step::Mode),
            1 => (-10..800_i16).prop_map(Step::Limit),
            1 => (0..3_000_u16).prop_map(Step::Budget),
        ]
    }

    proptest! {
        #[test]
        fn words_keep_their_state(
            mode in 0..4_u64, limit in 0..=MAX_LIMIT, active: bool, crowded: bool, throttled: bool, pressed: bool, generation in 0..2_048_u16
        ) {
            let state = State { mode: Mode::from_bits(mode), limit, active, crowded, throttled, pressed, generation };
            prop_assert_eq!(State::unpack(state.pack()), state);
        }

        /// The quick looks of the steady path miss nothing: after every step the state is one the policy would not
        /// change, and it is what a direct reading of the rules says.
        #[test]
        fn the_steady_path_agrees_with_the_rules(steps in prop::collection::vec(step(), 1..200)) {
            let limiter = limiter(Mode::Auto, 500, 2_000);
            let (mut held, mut others) = (Vec::new(), Vec::new());
            let (mut active, mut throttled, mut pressed) = (false, false, false);
            for step in steps {
                match step {
                    Step::Allocate(bytes) => { limiter.allocated(bytes.into()); held.push(bytes); }
                    Step::Release => match held.pop() {
                        Some(bytes) => limiter.released(bytes.into()),
                        None => continue,
                    },
                    Step::Other(bytes) => {
                        limiter.memory().allocated(Holder::Log, bytes.into());
                        limiter.reconsider();
                        others.push(bytes);
                    }
                    Step::OtherRelease => match others.pop() {
                        Some(bytes) => {
                            limiter.memory().released(Holder::Log, bytes.into());
                            limiter.reconsider();
                        }
                        None => continue,
                    },
                    Step::Mode(mode) => limiter.set_mode(Mode::from_bits(mode.into())),
                    Step::Limit(limit) => limiter.set_limit(limit.into()),
                    Step::Budget(bytes) => limiter.set_budget(bytes.into()),
                }
                let retained: i64 = held.iter().map(|bytes| i64::from(*bytes)).sum();
                let in_use = retained + others.iter().map(|bytes| i64::from(*bytes)).sum::<i64>();
                let budget = i64::try_from(limiter.memory().budget()).unwrap();
                let state = limiter.state();
                // The rules, as the settings' documentation says them.
                let used = if budget == 0 { 0.0 } else { in_use as f64 / budget as f64 };
                let limit = state.limit as f64;
                let limits = state.limit > 0 && match state.mode {
                    Mode::Enabled => true,
                    Mode::Auto if active => used >= 0.65,
                    Mode::Auto => used >= 0.85 && retained as f64 > 1.5 * limit,
                    _ => false,
                };
                active = limits && state.mode == Mode::Auto;
                throttled = limits && if throttled { retained as f64 > limit / 2.0 } else { retained as f64 > limit };
                // What `reconsider` is told of alone sets off the giving way; a core calls it at the end of every turn.
                limiter.reconsider();
                pressed = used >= 0.85 || pressed && used >= 0.65;
                prop_assert_eq!(limiter.state().pressed, pressed);
                prop_assert_eq!(limiter.excess() > 0, pressed);
                let state = limiter.state();
                prop_assert_eq!((state.active, state.throttled), (active, throttled), "{:?}", state);
                at_rest(&limiter);
            }
        }
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p vela-limiter --release loom`.
#[cfg(loom)]
mod loom_models {
    use super::*;
    use loom::sync::Notify;
    use loom::thread::{self, JoinHandle};

    fn run(
        limiter: &Arc<MemoryLimiter>,
        work: impl Fn(&MemoryLimiter) + 'static,
    ) -> JoinHandle<()> {
        let limiter = Arc::clone(limiter);
        thread::spawn(move || work(&limiter))
    }

    /// Every interleaving with at most `preemptions` switches that nothing forced.
    fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(body);
    }

    #[test]
    fn the_counter_ends_at_zero_and_nothing_is_stuck() {
        model(4, || {
            let limiter = limiter(Mode::Enabled, 10, 0);
            let other = run(&limiter, |limiter| {
                limiter.allocated(12);
                limiter.released(12);
            });
            limiter.allocated(3);
            limiter.released(3);
            other.join().unwrap();
            assert_eq!(limiter.retained(), 0);
            at_rest(&limiter);
            let transitions = limiter.transitions();
            assert_eq!((transitions.throttled, transitions.cleared), (1, 1));
        });
    }

    #[test]
    fn two_halves_of_too_much_throttle() {
        model(4, || {
            let limiter = limiter(Mode::Enabled, 10, 0);
            let other = run(&limiter, |limiter| {
                limiter.allocated(6);
                limiter.allocated(1);
                limiter.released(1);
            });
            limiter.allocated(6);
            other.join().unwrap();
            assert_eq!(limiter.retained(), 12);
            at_rest(&limiter);
            assert!(limiter.is_throttled());
        });
    }

    #[test]
    fn the_last_release_drives_recovery_whoever_makes_it() {
        model(4, || {
            let limiter = limiter(Mode::Enabled, 10, 0);
            limiter.allocated(12);
            let other = run(&limiter, |limiter| limiter.released(4));
            let third = run(&limiter, |limiter| limiter.released(3));
            limiter.allocated(1);
            limiter.released(1);
            other.join().unwrap();
            third.join().unwrap();
            at_rest(&limiter);
            assert!(!limiter.is_throttled());
        });
    }

    /// A core that has looked as often as it was told ends up with the state that is.
    #[test]
    fn a_notification_is_never_lost() {
        model(4, || {
            let limiter = limiter(Mode::Enabled, 10, 0);
            let listener = limiter.register(|| {});
            let other = run(&limiter, |limiter| {
                limiter.allocated(12);
                limiter.released(12);
            });
            let mut known = None;
            for _ in 0..2 {
                if listener.begin() {
                    known = Some(limiter.state());
                }
            }
            other.join().unwrap();
            if listener.begin() {
                known = Some(limiter.state());
            }
            assert_eq!(known, Some(limiter.state()));
        });
    }

    /// A lost wake is a deadlock, which loom reports.
    #[test]
    fn a_sleeping_core_is_woken() {
        model(4, || {
            let limiter = limiter(Mode::Enabled, 10, 0);
            let wake = loom::sync::Arc::new(Notify::new());
            let waker = wake.clone();
            let listener = limiter.register(move || waker.notify());
            let other = run(&limiter, |limiter| limiter.allocated(12));
            loop {
                wake.wait();
                listener.begin();
                if limiter.is_throttled() {
                    break;
                }
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn who_registers_during_a_transition_learns_of_it() {
        model(4, || {
            let limiter = limiter(Mode::Enabled, 10, 0);
            let other = run(&limiter, |limiter| limiter.allocated(12));
            let listener = limiter.register(|| {});
            assert!(listener.begin());
            let mut throttled = limiter.is_throttled();
            other.join().unwrap();
            if listener.begin() {
                throttled = limiter.is_throttled();
            }
            assert!(throttled);
        });
    }

    #[test]
    fn the_mode_changes_during_a_transition() {
        for (from, to, change) in [
            (Mode::Tracking, Mode::Enabled, 12_i64),
            (Mode::Enabled, Mode::Tracking, 12),
            (Mode::Enabled, Mode::Auto, -12),
            (Mode::Tracking, Mode::Enabled, -12),
            (Mode::Auto, Mode::Enabled, -12),
        ] {
            model(4, move || {
                let limiter = limiter(from, 10, 10);
                if change < 0 {
                    limiter.allocated(20);
                }
                let other = run(&limiter, move |limiter| limiter.set_mode(to));
                let bytes = usize::try_from(change.abs()).unwrap();
                if change > 0 {
                    limiter.allocated(bytes);
                } else {
                    limiter.released(bytes);
                    limiter.released(3);
                }
                other.join().unwrap();
                assert_eq!(limiter.mode(), to);
                at_rest(&limiter);
            });
        }
    }

    #[test]
    fn the_limit_changes_during_a_transition() {
        for (limit, throttled) in [(11, true), (100, false), (0, false)] {
            model(4, move || {
                let limiter = limiter(Mode::Enabled, 20, 0);
                limiter.allocated(8);
                let other = run(&limiter, move |limiter| limiter.set_limit(limit));
                limiter.allocated(4);
                other.join().unwrap();
                assert_eq!(limiter.limit(), limit);
                at_rest(&limiter);
                assert_eq!(limiter.is_throttled(), throttled);
            });
        }
    }

    #[test]
    fn allocation_release_and_two_settings_at_once() {
        model(3, || {
            let limiter = limiter(Mode::Auto, 10, 10);
            let other = run(&limiter, |limiter| {
                limiter.allocated(16);
                limiter.released(16);
            });
            let third = run(&limiter, |limiter| limiter.set_mode(Mode::Enabled));
            limiter.set_limit(4);
            other.join().unwrap();
            third.join().unwrap();
            let state = limiter.state();
            assert_eq!((state.mode, state.limit), (Mode::Enabled, 4));
            at_rest(&limiter);
        });
    }
}
