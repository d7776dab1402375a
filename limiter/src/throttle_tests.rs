#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use proptest::prelude::*;

/// The rules as the design says them, over a list of holds.
struct Model(Vec<Reason>);

impl Model {
    fn may_read(&self) -> bool {
        self.0.is_empty()
    }
    fn may_deliver(&self) -> bool {
        self.0.iter().all(|reason| *reason == Reason::Memory)
    }
    fn is_rate(reason: Reason) -> bool {
        matches!(
            reason,
            Reason::TopicRate | Reason::BrokerRate | Reason::ResourceGroupRate
        )
    }
}

proptest! {
    #[test]
    fn agrees_with_a_list_of_holds(steps in prop::collection::vec((0..8_usize, any::<bool>()), 0..200)) {
        let (mut throttle, mut model) = (Throttle::new(), Model(Vec::new()));
        for (index, hold) in steps {
            let reason = Reason::ALL[index];
            if hold {
                let first = !model.0.contains(&reason);
                prop_assert_eq!(throttle.hold(reason), first);
                model.0.push(reason);
            } else if let Some(at) = model.0.iter().position(|held| *held == reason) {
                let (reads, delivery) = (model.may_read(), model.may_deliver());
                model.0.remove(at);
                let expected = Released {
                    reads_free: !reads && model.may_read(),
                    delivery_free: !delivery && model.may_deliver(),
                    reason_free: !model.0.contains(&reason),
                };
                prop_assert_eq!(throttle.release(reason), expected);
            }
            prop_assert_eq!(throttle.may_read(), model.may_read());
            prop_assert_eq!(throttle.may_deliver(), model.may_deliver());
            prop_assert_eq!(throttle.may_continue(), !model.may_read() && model.may_deliver());
            prop_assert_eq!(throttle.only_rate(), !model.may_read() && model.0.iter().all(|reason| Model::is_rate(*reason)));
            prop_assert_eq!(
                throttle.may_serve_control(),
                model.0.iter().all(|reason| Model::is_rate(*reason) || *reason == Reason::Memory)
            );
            for reason in Reason::ALL {
                let holds = model.0.iter().filter(|held| **held == reason).count();
                prop_assert_eq!(throttle.holds(reason), u32::try_from(holds).unwrap());
                prop_assert_eq!(throttle.is_held(reason), holds > 0);
            }
            let mut held = model.0.clone();
            held.sort_unstable();
            held.dedup();
            prop_assert_eq!(throttle.reasons().collect::<Vec<_>>(), held);
        }
    }
}

#[test]
fn a_late_release_of_an_old_burst_leaves_a_newer_hold() {
    for reason in Reason::ALL {
        let mut throttle = Throttle::new();
        throttle.hold(reason);
        // The newer burst holds before the release of the older one arrives.
        assert!(!throttle.hold(reason));
        assert_eq!(throttle.release(reason), Released::default());
        assert!(!throttle.may_read(), "{}", reason.name());
        assert!(throttle.release(reason).reads_free);
        assert!(throttle.may_read());
    }
}

#[test]
fn both_release_orders_of_every_pair() {
    for first in Reason::ALL {
        for second in Reason::ALL {
            let mut throttle = Throttle::new();
            throttle.hold(first);
            throttle.hold(second);
            let one = throttle.release(first);
            assert!(!one.reads_free && !throttle.may_read());
            // The queue drains as soon as memory alone is left.
            assert_eq!(
                one.delivery_free,
                second == Reason::Memory && first != Reason::Memory
            );
            let two = throttle.release(second);
            assert!(two.reads_free && two.reason_free && throttle.may_read());
            assert_eq!(two.delivery_free, second != Reason::Memory);
        }
    }
}

#[test]
fn memory_alone_drains_the_queue_and_ends_a_frame() {
    let mut throttle = Throttle::new();
    throttle.hold(Reason::Memory);
    assert!(throttle.may_deliver() && throttle.may_continue() && !throttle.may_read());
    // Throttled again in mid-drain.
    throttle.hold(Reason::TopicRate);
    assert!(!throttle.may_deliver() && !throttle.may_continue());
    assert!(throttle.may_serve_control() && !throttle.only_rate());
    let released = throttle.release(Reason::TopicRate);
    assert!(released.delivery_free && !released.reads_free);
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "broker-rate"))]
fn a_release_without_a_hold_changes_nothing() {
    let mut throttle = Throttle::new();
    throttle.hold(Reason::TopicRate);
    assert_eq!(throttle.release(Reason::BrokerRate), Released::default());
    assert!(throttle.is_held(Reason::TopicRate) && throttle.holds(Reason::BrokerRate) == 0);
}

#[test]
fn latches_follow_their_state_and_do_not_touch_each_other() {
    let mut throttle = Throttle::new();
    let (mut limit, mut share) = (Latch::default(), Latch::default());
    let _ = limit.set(&mut throttle, Reason::Memory, true);
    let _ = limit.set(&mut throttle, Reason::Memory, true);
    let _ = share.set(&mut throttle, Reason::Memory, true);
    assert_eq!(throttle.holds(Reason::Memory), 2);
    assert!(!limit.set(&mut throttle, Reason::Memory, false).reads_free);
    assert_eq!(
        limit.set(&mut throttle, Reason::Memory, false),
        Released::default()
    );
    assert!(share.is_on() && throttle.is_held(Reason::Memory));
    assert!(share.set(&mut throttle, Reason::Memory, false).reads_free);
}
