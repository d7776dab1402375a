//! What holds one connection under pressure, and what lets it go on: output that is not read, and a share of the unanswered publishes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod harness;

use harness::client::{Client, say};
use harness::{World, WorldConfig};
use vela_broker::engine::Settings;
use vela_limiter::Reason;
use vela_proto::base_command::Type;

const TOPIC: &str = "persistent://public/default/t";

fn world(settings: Settings) -> World {
    World::new(WorldConfig {
        settings,
        ..WorldConfig::default()
    })
}

fn held(world: &World, reason: Reason) -> u64 {
    world.engine(0).held()[reason as usize]
}

/// A consumer with some 200 KB of output that its peer does not read, and twenty questions behind that.
fn unread(world: &mut World) -> Client {
    let mut client = Client::connect(world, 0);
    client.producer(world, TOPIC, 1);
    for sequence in 0..50 {
        client.send(world, 1, sequence, &"z".repeat(4000));
        client.receipt(world);
    }
    client.subscribe(world, TOPIC, "s", true, 1);
    world.conns[client.peer.0].stuck = true;
    client.flow(world, 1, 1000);
    world.run_until_idle();
    assert!(world.output_len(client.peer) > 100_000);
    for request_id in 0..20 {
        client.say(world, &say::stats(1, request_id));
    }
    client.say(world, &say::ping());
    world.run_until_idle();
    client
}

fn answers(world: &mut World, client: &mut Client) -> usize {
    world.run_until_idle();
    client.listen(world);
    let kinds = client.kinds();
    let answers = kinds
        .iter()
        .filter(|kind| **kind == Type::ConsumerStatsResponse);
    answers.count()
}

#[test]
fn without_the_setting_a_peer_that_does_not_read_is_answered_up_to_the_bound() {
    let mut world = world(Settings::default());
    let mut client = unread(&mut world);
    assert_eq!(held(&world, Reason::OutboundFull), 0);
    world.conns[client.peer.0].stuck = false;
    assert_eq!(answers(&mut world, &mut client), 20);
}

/// PIP-434: what it asks waits while its socket takes no more, and comes slowly for a while after that.
#[test]
fn a_peer_that_reads_again_is_served_slowly_for_a_while() {
    let mut world = world(Settings {
        pause_receiving_if_unwritable: true,
        ..Settings::default()
    });
    let mut client = unread(&mut world);
    assert_eq!(held(&world, Reason::OutboundFull), 1);
    let waits = world.output_len(client.peer);
    world.run_until_idle();
    assert_eq!(world.output_len(client.peer), waits, "nothing is answered");
    world.conns[client.peer.0].stuck = false;
    // Five in each ten milliseconds, and the PING behind them for nothing.
    for periods in 1..=4 {
        assert_eq!(answers(&mut world, &mut client), 5 * periods);
        assert_eq!(held(&world, Reason::OutboundFull), 0);
        assert_eq!(held(&world, Reason::OutboundCooldown), 1);
        world.advance(9);
        assert_eq!(answers(&mut world, &mut client), 5 * periods, "too early");
        world.advance(1);
    }
    client.expect(&mut world, Type::Pong);
    assert_eq!(held(&world, Reason::OutboundCooldown), 0);
    // After five seconds it is as all others are.
    world.advance(5_000);
    for request_id in 20..60 {
        client.say(&mut world, &say::stats(1, request_id));
    }
    assert_eq!(answers(&mut world, &mut client), 60);
    let counts = world.engine(0).stats().counters.holds;
    assert_eq!(counts.holds(Reason::OutboundCooldown), 4);
    assert_eq!(counts.releases(Reason::OutboundCooldown), 4);
    assert_eq!(counts.holds(Reason::OutboundFull), 1);
}

#[test]
fn one_that_leaves_in_the_cooldown_leaves_no_hold() {
    let mut world = world(Settings {
        pause_receiving_if_unwritable: true,
        ..Settings::default()
    });
    let mut client = unread(&mut world);
    world.conns[client.peer.0].stuck = false;
    assert_eq!(answers(&mut world, &mut client), 5);
    world.cut(client.peer);
    world.run_until_idle();
    world.advance(100);
    assert_eq!(world.engine(0).held_connections(), 0);
}

/// Two that publish share three megabytes: the one with more than its half waits for its own receipts, the other for nobody.
#[test]
fn a_flood_waits_for_its_own_receipts_when_others_publish() {
    for fairness in [true, false] {
        let mut world = world(Settings {
            memory_fairness: fairness,
            ..Settings::default()
        });
        let mut quiet = Client::connect(&mut world, 0);
        quiet.producer(&mut world, TOPIC, 1);
        let mut noisy = Client::connect(&mut world, 0);
        noisy.producer(&mut world, TOPIC, 1);
        // Alone it has as much as it likes.
        let large = "x".repeat(1 << 20);
        for sequence in 0..8 {
            noisy.send(&mut world, 1, sequence, &large);
        }
        for _ in 0..8 {
            noisy.receipt(&mut world);
        }
        let holds = |world: &World| {
            let counts = world.engine(0).stats().counters.holds;
            counts.holds(Reason::PendingBytes)
        };
        assert_eq!(holds(&world), 0);
        quiet.send(&mut world, 1, 0, "q");
        quiet.receipt(&mut world);
        for sequence in 8..16 {
            noisy.send(&mut world, 1, sequence, &large);
        }
        quiet.send(&mut world, 1, 1, "q");
        quiet.receipt(&mut world);
        for _ in 8..16 {
            noisy.receipt(&mut world);
        }
        assert_eq!(holds(&world) > 0, fairness);
        assert_eq!(world.engine(0).held_connections(), 0);
    }
}
