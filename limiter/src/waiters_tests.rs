#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::bucket::SECOND;
use crate::throttle::{HoldCounts, Reason, Throttle};
use proptest::prelude::*;

fn limiter(messages: u64) -> RateLimiter<PublishRate, u32> {
    RateLimiter::new(PublishRate::new(0, messages, 0))
}

/// Ten tokens a second; one read brings two frames of 20; the release of that burst is delayed until a new frame
/// has put the connection into debt again.
#[test]
fn a_delayed_release_of_an_old_burst_leaves_the_connection_held_while_it_is_in_debt() {
    let mut limiter = limiter(10);
    let mut throttle = Throttle::new();
    let _ticket = limiter.charge(0, 1, 20, 0).unwrap();
    throttle.hold(Reason::BrokerRate, &mut HoldCounts::default());
    assert_eq!(
        limiter.charge(0, 1, 20, 0),
        None,
        "one pending release, not two"
    );
    assert_eq!(limiter.pace().messages.as_ref().unwrap().balance(0), -30);
    assert_eq!(limiter.waiters().len(), 1);

    // Replenished: -30 to 1 takes 3.1 s.
    assert_eq!(limiter.wait(0), Some(3_100_000_000));
    assert_eq!(limiter.release(3_099_999_999), None);
    let now = 3_100_000_000;
    let (connection, late) = limiter.release(now).unwrap();
    assert_eq!((connection, limiter.release(now)), (1, None));

    // The order to release is still on its way when a frame that was read before is charged: a second hold.
    let newer = limiter.charge(now, 1, 20, 0).unwrap();
    assert_ne!(newer, late);
    throttle.hold(Reason::BrokerRate, &mut HoldCounts::default());
    // Now the old order arrives.
    assert!(
        !throttle
            .release(Reason::BrokerRate, &mut HoldCounts::default())
            .reads_free
    );
    assert!(throttle.is_held(Reason::BrokerRate) && !throttle.may_read());
    assert_eq!(limiter.pace().messages.as_ref().unwrap().balance(now), -19);
    // And the newer hold ends by its own, when the debt is paid.
    let now = now + limiter.wait(now).unwrap();
    let (_, own) = limiter.release(now).unwrap();
    assert_eq!(own, newer);
    assert!(
        throttle
            .release(Reason::BrokerRate, &mut HoldCounts::default())
            .reads_free
    );
    assert_eq!(limiter.wait(now), None);
}

/// The same with the two orders reversed: the newer release arrives first.
#[test]
fn the_order_in_which_releases_arrive_does_not_matter() {
    let mut limiter = limiter(10);
    let mut throttle = Throttle::new();
    let mut late = Vec::new();
    let mut now = 0;
    for _ in 0..2 {
        assert!(limiter.charge(now, 1, 20, 0).is_some());
        throttle.hold(Reason::TopicRate, &mut HoldCounts::default());
        now += limiter.wait(now).unwrap();
        late.push(limiter.release(now).unwrap());
    }
    assert!(limiter.charge(now, 1, 20, 0).is_some());
    throttle.hold(Reason::TopicRate, &mut HoldCounts::default());
    for _ in late.into_iter().rev() {
        let _ = throttle.release(Reason::TopicRate, &mut HoldCounts::default());
        assert!(!throttle.may_read(), "in debt");
    }
    now += limiter.wait(now).unwrap();
    assert!(limiter.release(now).is_some());
    assert!(
        throttle
            .release(Reason::TopicRate, &mut HoldCounts::default())
            .reads_free
    );
}

/// Five producers, each 600 messages in one frame, then one message a time: 3,005 in all, and every one charged.
#[test]
fn bursts_of_five_producers_are_charged_in_full() {
    let mut limiter = limiter(600);
    let mut charged = 0_u64;
    for producer in 0..5 {
        let ticket = limiter.charge(0, producer, 600, 0);
        charged += 600;
        assert!(
            ticket.is_some(),
            "the first burst empties the bucket, the others add debt"
        );
    }
    assert_eq!(
        limiter.pace().messages.as_ref().unwrap().balance(0),
        600 - 3_000
    );
    // No producer goes on while there is debt, and each does once it is paid.
    let mut now = 0;
    while now < 4 * SECOND {
        assert_eq!(limiter.release(now), None);
        now += SECOND / 10;
    }
    now = limiter.wait(0).unwrap();
    assert!((4 * SECOND..4 * SECOND + SECOND / 20).contains(&now));
    let mut order = Vec::new();
    while order.len() < 5 {
        while let Some((producer, _ticket)) = limiter.release(now) {
            order.push(producer);
            assert!(
                limiter.charge(now, producer, 1, 0).is_none(),
                "the balance is above zero"
            );
            charged += 1;
        }
        now += limiter.wait(now).unwrap_or(0);
    }
    assert_eq!((order, charged), (vec![0, 1, 2, 3, 4], 3_005));
}

#[test]
fn a_rate_is_shared_by_turns() {
    let mut limiter = limiter(10);
    let mut served = [0_u64; 4];
    for connection in 0..4 {
        assert!(limiter.charge(0, connection, 10, 0).is_some());
    }
    let mut now = 0;
    // Everyone released sends a frame that empties the bucket again.
    while now < 400 * SECOND {
        now += limiter.wait(now).unwrap();
        while let Some((connection, _ticket)) = limiter.release(now) {
            assert!(limiter.charge(now, connection, 10, 0).is_some());
            served[usize::try_from(connection).unwrap()] += 10;
        }
    }
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(most - least <= 10, "{served:?}");
    let total: u64 = served.iter().sum();
    assert!((3_930..=4_080).contains(&total), "{total}");
}

#[test]
fn a_changed_limit_is_looked_at_at_once() {
    let mut limiter = limiter(10);
    assert!(limiter.charge(0, 1, 1_000, 0).is_some());
    assert!(limiter.charge(0, 2, 1_000, 0).is_some());
    limiter.set(0, 5, 0);
    assert_eq!(limiter.release(0), None);
    limiter.set(0, 20, 0);
    assert_eq!(limiter.wait(0), Some(0));
    assert_eq!(limiter.release(0).unwrap().0, 1);
    assert!(limiter.charge(0, 1, 5_000, 0).is_some());
    assert_eq!(limiter.release(0), None);
    limiter.set(0, 0, 0);
    assert_eq!(limiter.release(0).unwrap().0, 2);
    assert_eq!(limiter.release(0).unwrap().0, 1);
    assert_eq!((limiter.release(0), limiter.wait(0)), (None, None));
}

#[test]
fn a_closed_connection_leaves_no_ticket() {
    let mut limiter = limiter(10);
    let first = limiter.charge(0, 1, 100, 0).unwrap();
    assert!(limiter.charge(0, 2, 1, 0).is_some());
    assert_eq!(limiter.remove(1), Some(first));
    assert_eq!(limiter.remove(1), None);
    assert_eq!(limiter.waiters().len(), 1);
    limiter.set(0, 0, 0);
    assert_eq!(limiter.release(0).unwrap().0, 2);
    assert_eq!(limiter.release(0), None);
}

#[test]
fn the_shared_rate_has_waiters_on_every_core() {
    let rate = Arc::new(SharedRate::new(0, 10, 0));
    let mut cores = [(); 2].map(|()| RateLimiter::<_, u32>::new(Arc::clone(&rate)));
    assert!(cores[0].charge(0, 1, 10, 0).is_some());
    assert!(cores[1].charge(0, 2, 10, 0).is_some());
    assert_eq!(
        cores[0].release(SECOND),
        None,
        "the other core's debt counts"
    );
    rate.set(SECOND, 11, 0);
    for core in &mut cores {
        assert!(core.release(SECOND).is_some() && core.waiters().is_empty());
    }
    assert_eq!(cores[0].shared().wait(SECOND), 0);
}

proptest! {
    /// Holds and releases arrive at the connections after any delay and in any order among connections; connections
    /// close while they wait. Whoever waits is held, nobody else is held in the end, and no ticket leaks.
    #[test]
    fn tickets_pair_holds_and_releases(
        steps in prop::collection::vec((0..4_u8, 0..6_u32, 0..400_000_000_u64, 0..12_u64), 1..200)
    ) {
        let mut limiter = limiter(20);
        let mut open: BTreeMap<u32, Throttle> = (0..6).map(|connection| (connection, Throttle::new())).collect();
        // Orders to release that are under way.
        let mut under_way: Vec<u32> = Vec::new();
        let mut now = 0;
        for (kind, connection, elapsed, messages) in steps {
            now += elapsed;
            match kind {
                0 | 1 => if open.contains_key(&connection) {
                    let waited = limiter.waiters().is_waiting(connection);
                    let ticket = limiter.charge(now, connection, messages, 0);
                    prop_assert!(!(waited && ticket.is_some()));
                    if ticket.is_some() {
                        open.get_mut(&connection).unwrap().hold(Reason::TopicRate, &mut HoldCounts::default());
                    }
                    let balance = limiter.pace().messages.as_ref().unwrap().balance(now);
                    prop_assert!(balance > 0 || limiter.waiters().is_waiting(connection));
                },
                2 => while let Some((connection, _ticket)) = limiter.release(now) {
                    under_way.push(connection);
                },
                _ => if messages == 0 {
                    limiter.remove(connection);
                    open.remove(&connection);
                } else if !under_way.is_empty() {
                    let at = usize::try_from(messages).unwrap() % under_way.len();
                    let connection = under_way.swap_remove(at);
                    if let Some(throttle) = open.get_mut(&connection) {
                        let _ = throttle.release(Reason::TopicRate, &mut HoldCounts::default());
                    }
                },
            }
            for (connection, throttle) in &open {
                let holds = under_way.iter().filter(|other| *other == connection).count()
                    + usize::from(limiter.waiters().is_waiting(*connection));
                prop_assert_eq!(throttle.holds(Reason::TopicRate), u32::try_from(holds).unwrap());
            }
        }
        limiter.set(now, 0, 0);
        while let Some((connection, _ticket)) = limiter.release(now) {
            under_way.push(connection);
        }
        for connection in under_way {
            if let Some(throttle) = open.get_mut(&connection) {
                let _ = throttle.release(Reason::TopicRate, &mut HoldCounts::default());
            }
        }
        prop_assert!(open.values().all(Throttle::may_read));
        prop_assert!(limiter.waiters.by_ticket.is_empty() && limiter.waiters.by_connection.is_empty());
    }
}
