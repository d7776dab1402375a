//! Publish rates on a virtual clock: what was read is charged in full, debt holds later reads, every hold has its own release.

use vela_limiter::{HoldCounts, Reason};
use vela_proto::base_command::Type;

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

fn world(configure: impl FnOnce(&mut WorldConfig)) -> World {
    let mut config = WorldConfig::default();
    configure(&mut config);
    World::new(config)
}

fn set(world: &mut World, change: impl Fn(&mut vela_broker::engine::Settings)) {
    change(&mut world.config.settings);
    for core in 0..world.config.cores {
        let settings = std::sync::Arc::new(world.config.settings.clone());
        let now = world.now;
        world.engine_mut(core).configure(settings, now);
    }
    world.wake_all();
    world.run_until_idle();
}

/// Receipts that have arrived by now.
fn receipts(world: &mut World, client: &mut Client) -> usize {
    world.run_until_idle();
    client.listen(world);
    let before = client.inbox.len();
    client
        .inbox
        .retain(|incoming| incoming.command.send_receipt.is_none());
    before - client.inbox.len()
}

fn held(world: &World, core: u16, reason: Reason) -> u64 {
    world.engine(core).held()[reason as usize]
}

fn counts(world: &World, core: u16) -> HoldCounts {
    world.engine(core).stats().counters.holds
}

#[test]
fn a_topic_rate_lets_a_burst_through_and_then_its_rate() {
    let mut world = world(|config| config.settings.max_publish_rate_per_topic_in_messages = 10);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, "t", 1);
    for n in 0..100 {
        client.send(&mut world, 1, n, "x");
    }
    let burst = receipts(&mut world, &mut client);
    assert!(
        (10..=11).contains(&burst),
        "a bucket's worth at once, not {burst}"
    );
    assert_eq!(held(&world, 0, Reason::TopicRate), 1);
    assert_eq!(counts(&world, 0).holds(Reason::TopicRate), 1);
    assert_eq!(counts(&world, 0).releases(Reason::TopicRate), 0);
    let mut sum = burst;
    for second in 1..=8_usize {
        for _ in 0..1000 {
            world.advance(1);
            sum += receipts(&mut world, &mut client);
        }
        let right = 10 + 10 * second;
        assert!(
            sum.abs_diff(right) <= 1,
            "{sum} after {second} s, not {right}"
        );
    }
    // It was let go for each of the later messages, or for a few of them at a time, and is held again.
    let counts = counts(&world, 0);
    let (holds, releases) = (
        counts.holds(Reason::TopicRate),
        counts.releases(Reason::TopicRate),
    );
    assert_eq!(holds, releases + 1);
    assert!((20..=81).contains(&releases), "{releases} releases");
    assert_eq!((counts.paused, counts.resumed), (holds, releases));
    let name = "persistent://public/default/t".to_owned();
    let hits: Vec<_> = (0..2)
        .flat_map(|core| world.engine(core).rate_limited_topics())
        .collect();
    assert_eq!(hits, [(name, holds)]);
    // What ends with the connection counts as let go.
    world.cut(client.peer);
    world.run_until_idle();
    let counts = self::counts(&world, 0);
    assert_eq!((counts.paused, counts.resumed), (holds, holds));
    assert_eq!(counts.releases(Reason::TopicRate), holds);
}

#[test]
fn a_publish_to_another_core_is_held_for_its_charge_and_is_no_pause() {
    let mut world = world(|config| {
        config.cores = 2;
        config.shards = 2;
        config.settings.max_publish_rate_per_topic_in_messages = 1000;
    });
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for n in 0..10 {
        client.send(&mut world, 1, n, "x");
    }
    assert_eq!(receipts(&mut world, &mut client), 10);
    let counts = counts(&world, 0);
    assert_eq!(counts.holds(Reason::PublishCharge), 10);
    assert_eq!(counts.releases(Reason::PublishCharge), 10);
    assert_eq!(counts.holds(Reason::TopicRate), 0);
    assert_eq!((counts.paused, counts.resumed), (0, 0));
}

#[test]
fn a_rate_that_is_removed_or_raised_lets_its_waiters_go_at_once() {
    for rate in [0, 1_000_000] {
        let mut world = world(|config| config.settings.max_publish_rate_per_topic_in_messages = 10);
        let mut client = Client::connect(&mut world, 0);
        client.producer(&mut world, "t", 1);
        for n in 0..500 {
            client.send(&mut world, 1, n, "x");
        }
        assert!(receipts(&mut world, &mut client) < 20);
        set(&mut world, |settings| {
            settings.max_publish_rate_per_topic_in_messages = rate
        });
        let rest = receipts(&mut world, &mut client);
        assert!(rest >= 480, "{rest} receipts after the rate became {rate}");
        assert_eq!(held(&world, 0, Reason::TopicRate), 0);
    }
}

#[test]
fn ping_flow_and_ack_pass_publishes_that_a_rate_holds() {
    let mut world = world(|config| config.settings.max_publish_rate_per_topic_in_messages = 10);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, "t", 1);
    client.subscribe(&mut world, "other", "s", true, 7);
    let mut feeder = Client::connect(&mut world, 0);
    feeder.producer(&mut world, "other", 1);
    feeder.send(&mut world, 1, 0, "m");
    world.run_until_idle();
    for n in 0..60 {
        client.send(&mut world, 1, n, "x");
    }
    assert!(receipts(&mut world, &mut client) < 20);
    client.flow(&mut world, 7, 1);
    client.say(&mut world, &say::ping());
    world.run_until_idle();
    client.listen(&mut world);
    let kinds = client.kinds();
    assert!(kinds.contains(&Type::Pong), "{kinds:?}");
    assert!(kinds.contains(&Type::Message), "{kinds:?}");
    assert_eq!(
        held(&world, 0, Reason::TopicRate),
        1,
        "and the publishes still wait"
    );
}

/// What is left of a hold may be a rate alone. Nothing else wakes the socket then: the session has to, or a PING waits as long as the rate.
#[test]
fn a_hold_that_shrinks_to_a_rate_is_read_ahead_at_once() {
    let mut world = world(|config| {
        config.settings.max_publish_rate_per_topic_in_messages = 1;
        config.settings.max_pending_publish_requests_per_connection = 1;
    });
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, "t", 1);
    world.disk_paused = true;
    client.send_batch(&mut world, 1, 0, 1000, "x");
    world.run_until_idle();
    assert_eq!(held(&world, 0, Reason::PendingRequests), 1);
    client.say(&mut world, &say::ping());
    world.run_until_idle();
    client.listen(&mut world);
    assert_eq!(
        client.kinds(),
        [],
        "it is not read: its SEND has no receipt"
    );
    world.disk_paused = false;
    world.run_until_idle();
    assert_eq!(held(&world, 0, Reason::PendingRequests), 0);
    assert_eq!(held(&world, 0, Reason::TopicRate), 1);
    client.listen(&mut world);
    assert_eq!(client.kinds(), [Type::SendReceipt, Type::Pong]);
}

#[test]
fn the_broker_rate_is_shared_by_all_cores() {
    let mut world = world(|config| {
        config.cores = 2;
        config.shards = 2;
        config.settings.broker_publisher_throttling_max_message_rate = 100;
    });
    let mut clients = Vec::new();
    for core in 0..2 {
        let topic = world.topic_on(core, "t");
        let mut client = Client::connect(&mut world, core);
        client.producer(&mut world, &topic, 1);
        for n in 0..2000 {
            client.send(&mut world, 1, n, "x");
        }
        clients.push(client);
    }
    let mut by_core = [0, 0];
    for _ in 0..10_000 {
        world.advance(1);
        for (core, client) in clients.iter_mut().enumerate() {
            by_core[core] += receipts(&mut world, client);
        }
    }
    let sum: usize = by_core.iter().sum();
    assert!(
        sum.abs_diff(1100) <= 22,
        "{sum} in 10 s and a burst, at 100 per second"
    );
    assert!(
        by_core.iter().all(|count| *count > 200),
        "{by_core:?}: both have their share"
    );
}

#[test]
fn several_publishes_over_the_rate_are_all_charged_and_leave_one_release() {
    // Frames of a read that has been done all go on; the debt is paid before the next read.
    let mut world = world(|config| {
        config.settings.max_publish_rate_per_topic_in_messages = 10;
        config.settings.publish_pacing = vela_broker::engine::PublishPacing::Read;
    });
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, "t", 1);
    let time = world.now.wall_ms;
    let mut both = say::send(1, 0, Some(20), time, b"a").to_vec();
    both.extend_from_slice(&say::send(1, 20, Some(20), time, b"b"));
    world.feed(client.peer, &both);
    assert_eq!(receipts(&mut world, &mut client), 2);
    assert_eq!(held(&world, 0, Reason::TopicRate), 1);
    // 40 charged against 10: 30 in debt, so 3 seconds and a token.
    let mut waited = 0;
    while held(&world, 0, Reason::TopicRate) == 1 {
        world.advance(1);
        world.run_until_idle();
        waited += 1;
        assert!(waited < 10_000);
    }
    assert!((3000..=3200).contains(&waited), "held for {waited} ms");
    // A new burst at once holds again, and nothing of the old one releases it early.
    client.send_batch(&mut world, 1, 40, 20, "c");
    assert_eq!(receipts(&mut world, &mut client), 1);
    assert_eq!(held(&world, 0, Reason::TopicRate), 1);
    world.advance(1000);
    world.run_until_idle();
    assert_eq!(held(&world, 0, Reason::TopicRate), 1, "still in debt");
}

#[test]
fn two_topics_with_their_own_rates_hold_one_connection_until_both_allow() {
    let mut world = world(|config| {
        config.namespaces.push("public/slow".into());
        config.settings.max_publish_rate_per_topic_in_messages = 50;
    });
    let policy = br#"{"publishMaxMessageRate":{"standalone":{"publishThrottlingRateInMsg":10,"publishThrottlingRateInByte":0}}}"#;
    world.put_metadata("namespace/public/slow", policy);
    world.run_until_idle();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, "persistent://public/slow/t", 1);
    client.producer(&mut world, "fast", 2);
    for n in 0..400 {
        client.send(&mut world, 1, n, "x");
        client.send(&mut world, 2, n, "x");
    }
    let mut sum = receipts(&mut world, &mut client);
    for _ in 0..10_000 {
        world.advance(1);
        sum += receipts(&mut world, &mut client);
    }
    // One connection, in order: the slower topic sets the pace of both.
    assert!(sum.abs_diff(2 * 110) <= 6, "{sum} in 10 s");
}

#[test]
fn a_resource_group_limits_the_topics_of_its_namespaces_together() {
    let mut world = world(|config| {
        config.cores = 2;
        config.shards = 2;
    });
    world.put_metadata(
        "resource-group/g",
        br#"{"publishRateInMsgs":100,"publishRateInBytes":0}"#,
    );
    world.put_metadata(
        "namespace/public/default",
        br#"{"resource_group_name":"g"}"#,
    );
    world.run_until_idle();
    let mut clients: Vec<Client> = (0..2)
        .map(|core| {
            let topic = world.topic_on(core, "t");
            let mut client = Client::connect(&mut world, core);
            client.producer(&mut world, &topic, 1);
            for n in 0..1500 {
                client.send(&mut world, 1, n, "x");
            }
            client
        })
        .collect();
    let mut sum = 0;
    for _ in 0..5000 {
        world.advance(1);
        for client in &mut clients {
            sum += receipts(&mut world, client);
        }
    }
    assert!(
        sum.abs_diff(600) <= 12,
        "{sum} in 5 s and a burst, at 100 per second"
    );
}

#[test]
fn large_batches_of_five_producers_are_all_charged_and_all_delivered_once() {
    let mut world = world(|config| config.settings.max_publish_rate_per_topic_in_messages = 500);
    let mut producers: Vec<Client> = (0..5)
        .map(|_| {
            let mut client = Client::connect(&mut world, 0);
            client.producer(&mut world, "t", 1);
            client
        })
        .collect();
    let mut reader = Client::connect(&mut world, 0);
    reader.subscribe(&mut world, "t", "s", true, 1);
    reader.flow(&mut world, 1, 10_000);
    for client in &mut producers {
        client.send_batch(&mut world, 1, 0, 600, "batch");
        client.send(&mut world, 1, 600, "single");
    }
    let mut messages = 0;
    let mut ms = 0;
    while messages < 3005 {
        world.run_until_idle();
        for got in reader.messages(&mut world) {
            messages += got.permits.unwrap();
        }
        world.advance(10);
        ms += 10;
        assert!(ms < 60_000, "{messages} of 3,005 after a minute");
    }
    assert_eq!(messages, 3005);
    // 3,005 less a bucket of 500 at 500 per second.
    assert!(ms >= 5000, "{ms} ms: a burst was not charged");
}
