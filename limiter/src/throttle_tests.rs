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
    fn is_paused(&self) -> bool {
        self.0.iter().any(|reason| *reason != Reason::PublishCharge)
    }
    fn is_rate(reason: Reason) -> bool {
        matches!(
            reason,
            Reason::TopicRate
                | Reason::BrokerRate
                | Reason::ResourceGroupRate
                | Reason::PublishCharge
        )
    }
}

proptest! {
    #[test]
    fn agrees_with_a_list_of_holds(steps in prop::collection::vec((0..Reason::ALL.len(), any::<bool>()), 0..200)) {
        let (mut throttle, mut model) = (Throttle::new(), Model(Vec::new()));
        let (mut counts, mut expected_counts) = (HoldCounts::default(), HoldCounts::default());
        for (index, hold) in steps {
            let reason = Reason::ALL[index];
            let was_paused = model.is_paused();
            if hold {
                let first = !model.0.contains(&reason);
                prop_assert_eq!(throttle.hold(reason, &mut counts), first);
                expected_counts.holds[index] += u64::from(first);
                model.0.push(reason);
            } else if let Some(at) = model.0.iter().position(|held| *held == reason) {
                let (reads, delivery) = (model.may_read(), model.may_deliver());
                model.0.remove(at);
                let expected = Released {
                    reads_free: !reads && model.may_read(),
                    delivery_free: !delivery && model.may_deliver(),
                    reason_free: !model.0.contains(&reason),
                };
                prop_assert_eq!(throttle.release(reason, &mut counts), expected);
                expected_counts.releases[index] += u64::from(expected.reason_free);
            }
            expected_counts.paused += u64::from(!was_paused && model.is_paused());
            expected_counts.resumed += u64::from(was_paused && !model.is_paused());
            prop_assert_eq!(counts, expected_counts);
            prop_assert_eq!(counts.paused - counts.resumed, u64::from(model.is_paused()));
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
        let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
        throttle.hold(reason, &mut counts);
        // The newer burst holds before the release of the older one arrives.
        assert!(!throttle.hold(reason, &mut counts));
        assert_eq!(throttle.release(reason, &mut counts), Released::default());
        assert!(!throttle.may_read(), "{}", reason.name());
        assert!(throttle.release(reason, &mut counts).reads_free);
        assert!(throttle.may_read());
    }
}

#[test]
fn both_release_orders_of_every_pair() {
    for first in Reason::ALL {
        for second in Reason::ALL {
            let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
            throttle.hold(first, &mut counts);
            throttle.hold(second, &mut counts);
            let one = throttle.release(first, &mut counts);
            assert!(!one.reads_free && !throttle.may_read());
            // The queue drains as soon as memory alone is left.
            assert_eq!(
                one.delivery_free,
                second == Reason::Memory && first != Reason::Memory
            );
            let two = throttle.release(second, &mut counts);
            assert!(two.reads_free && two.reason_free && throttle.may_read());
            assert_eq!(two.delivery_free, second != Reason::Memory);
        }
    }
}

#[test]
fn memory_alone_drains_the_queue_and_ends_a_frame() {
    let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
    throttle.hold(Reason::Memory, &mut counts);
    assert!(throttle.may_deliver() && throttle.may_continue() && !throttle.may_read());
    // Throttled again in mid-drain.
    throttle.hold(Reason::TopicRate, &mut counts);
    assert!(!throttle.may_deliver() && !throttle.may_continue());
    assert!(throttle.may_serve_control() && !throttle.only_rate());
    let released = throttle.release(Reason::TopicRate, &mut counts);
    assert!(released.delivery_free && !released.reads_free);
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "broker-rate"))]
fn a_release_without_a_hold_changes_nothing() {
    let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
    throttle.hold(Reason::TopicRate, &mut counts);
    assert_eq!(
        throttle.release(Reason::BrokerRate, &mut counts),
        Released::default()
    );
    assert!(throttle.is_held(Reason::TopicRate) && throttle.holds(Reason::BrokerRate) == 0);
}

#[test]
fn latches_follow_their_state_and_do_not_touch_each_other() {
    let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
    let (mut limit, mut share) = (Latch::default(), Latch::default());
    let _ = limit.set(&mut throttle, Reason::Memory, true, &mut counts);
    let _ = limit.set(&mut throttle, Reason::Memory, true, &mut counts);
    let _ = share.set(&mut throttle, Reason::Memory, true, &mut counts);
    assert_eq!(throttle.holds(Reason::Memory), 2);
    assert!(
        !limit
            .set(&mut throttle, Reason::Memory, false, &mut counts)
            .reads_free
    );
    assert_eq!(
        limit.set(&mut throttle, Reason::Memory, false, &mut counts),
        Released::default()
    );
    assert!(share.is_on() && throttle.is_held(Reason::Memory));
    assert!(
        share
            .set(&mut throttle, Reason::Memory, false, &mut counts)
            .reads_free
    );
}

#[test]
fn counts_know_each_transition_once() {
    let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
    let of = |counts: &HoldCounts, reason| (counts.holds(reason), counts.releases(reason));
    for _ in 0..3 {
        throttle.hold(Reason::TopicRate, &mut counts);
    }
    assert_eq!(of(&counts, Reason::TopicRate), (1, 0));
    throttle.hold(Reason::OutboundFull, &mut counts);
    assert_eq!((counts.paused, counts.resumed), (1, 0));
    for _ in 0..3 {
        assert_eq!(of(&counts, Reason::TopicRate), (1, 0));
        let _ = throttle.release(Reason::TopicRate, &mut counts);
    }
    assert_eq!(of(&counts, Reason::TopicRate), (1, 1));
    assert_eq!((counts.paused, counts.resumed), (1, 0));
    let _ = throttle.release(Reason::OutboundFull, &mut counts);
    assert_eq!((counts.paused, counts.resumed), (1, 1));
    throttle.hold(Reason::TopicRate, &mut counts);
    assert_eq!(of(&counts, Reason::TopicRate), (2, 1));
    assert_eq!((counts.paused, counts.resumed), (2, 1));
}

#[test]
fn a_publish_on_its_way_to_another_core_is_no_pause() {
    let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
    throttle.hold(Reason::PublishCharge, &mut counts);
    assert!(!throttle.may_deliver() && throttle.only_rate());
    assert_eq!((counts.paused, counts.holds(Reason::PublishCharge)), (0, 1));
    // The topic's rate holds before the charge is over.
    throttle.hold(Reason::TopicRate, &mut counts);
    let _ = throttle.release(Reason::PublishCharge, &mut counts);
    assert_eq!((counts.paused, counts.resumed), (1, 0));
    let _ = throttle.release(Reason::TopicRate, &mut counts);
    assert_eq!((counts.paused, counts.resumed), (1, 1));
}

#[test]
fn what_held_a_connection_ends_with_it() {
    let (mut throttle, mut counts) = (Throttle::new(), HoldCounts::default());
    throttle.hold(Reason::PendingRequests, &mut counts);
    throttle.hold(Reason::BrokerRate, &mut counts);
    throttle.hold(Reason::BrokerRate, &mut counts);
    throttle.end(&mut counts);
    assert!(throttle.may_read());
    throttle.end(&mut counts);
    for reason in Reason::ALL {
        assert_eq!(counts.holds(reason), counts.releases(reason));
    }
    assert_eq!(counts.releases(Reason::BrokerRate), 1);
    assert_eq!((counts.paused, counts.resumed), (1, 1));
}
