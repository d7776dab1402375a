//! Whose silence ends a connection: the peer's own, and not that of one whose socket the broker does not read.

use vela_limiter::Reason;
use vela_proto::{ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{Peer, World, WorldConfig};

/// A topic, the producer `me` of it, and somebody else who may want the name.
fn held_name(config: WorldConfig) -> (World, String, Client, Client) {
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut holder = Client::connect(&mut world, 0);
    let newcomer = Client::connect(&mut world, 1);
    holder.say(&mut world, &say::producer(&topic, 1, 10, Some("me")));
    holder.expect(&mut world, Type::ProducerSuccess);
    (world, topic, holder, newcomer)
}

/// Time passes in seconds, and each time the runtime says that the peer could not be heard.
fn unheard(world: &mut World, peer: Peer, seconds: u32) {
    for _ in 0..seconds {
        world.excuse(peer);
        world.advance(1_000);
        world.run_until_idle();
    }
}

/// The runtime does not read the holder of a name, so its PONG cannot come: it is alive, for all that is known.
#[test]
fn a_holder_that_is_not_read_is_not_taken_for_dead() {
    let (mut world, topic, mut holder, mut newcomer) = held_name(WorldConfig::default());
    for request in 11..14 {
        newcomer.say(&mut world, &say::producer(&topic, 1, request, Some("me")));
        holder.expect(&mut world, Type::Ping);
        match request {
            // Up to the end, in the middle, and only before it was asked.
            11 => unheard(&mut world, holder.peer, 4),
            12 => {
                world.advance(2_000);
                unheard(&mut world, holder.peer, 1);
                world.advance(1_000);
            }
            _ => {
                world.advance(4_000);
                world.run_until_idle();
            }
        }
        newcomer.expect_silence(&mut world);
        world.advance(1_000);
        world.run_until_idle();
        if request < 13 {
            let (error, _) = newcomer.error(&mut world, request);
            assert_eq!(error, ServerError::ProducerBusy);
            assert!(world.is_open(holder.peer));
            // Out of the way of the next question.
            world.advance(1_000);
        }
    }
    newcomer.expect(&mut world, Type::ProducerSuccess);
    assert!(!world.is_open(holder.peer), "nothing excused it any more");
}

/// A holder that is gone makes room at once, read or not.
#[test]
fn a_holder_that_leaves_while_it_is_not_read_makes_room() {
    let (mut world, topic, mut holder, mut newcomer) = held_name(WorldConfig::default());
    newcomer.say(&mut world, &say::producer(&topic, 1, 11, Some("me")));
    holder.expect(&mut world, Type::Ping);
    unheard(&mut world, holder.peer, 2);
    newcomer.expect_silence(&mut world);
    world.cut(holder.peer);
    newcomer.expect(&mut world, Type::ProducerSuccess);
}

/// Also one that waits for the disk when it is asked: what it says then is heard when it is read again.
#[test]
fn a_holder_whose_publishes_wait_is_asked_and_heard_later() {
    for alive in [true, false] {
        let mut config = WorldConfig::default();
        config.settings.max_pending_publish_requests_per_connection = 1;
        let (mut world, topic, mut holder, mut newcomer) = held_name(config);
        world.disk_paused = true;
        holder.send(&mut world, 1, 0, "x");
        world.run_until_idle();
        newcomer.say(&mut world, &say::producer(&topic, 1, 11, Some("me")));
        holder.expect(&mut world, Type::Ping);
        newcomer.expect_silence(&mut world);
        if alive {
            world.advance(5_000);
            world.run_until_idle();
            assert_eq!(newcomer.error(&mut world, 11).0, ServerError::ProducerBusy);
        } else {
            world.cut(holder.peer);
            world.disk_paused = false;
            newcomer.expect(&mut world, Type::ProducerSuccess);
        }
    }
}

/// Memory and the like hold a connection through no doing of its own, so for as long as they do. A rate does by what the peer has sent, and
/// may do so for years: nobody is silent for so long, held or not.
#[test]
fn a_rate_excuses_silence_for_ten_intervals_and_memory_for_ever() {
    for by_rate in [false, true] {
        let mut world = World::new(WorldConfig {
            settings: vela_broker::engine::Settings {
                max_publish_rate_per_topic_in_messages: 1,
                ..Default::default()
            },
            ..WorldConfig::default()
        });
        let mut client = Client::connect(&mut world, 0);
        if by_rate {
            client.producer(&mut world, "t", 1);
            client.send_batch(&mut world, 1, 0, i32::MAX, "x");
            client.receipt(&mut world);
            assert_eq!(world.engine(0).held()[Reason::TopicRate as usize], 1);
        }
        unheard(&mut world, client.peer, 300);
        assert!(world.is_open(client.peer), "by_rate: {by_rate}");
        unheard(&mut world, client.peer, 700);
        assert_eq!(world.is_open(client.peer), !by_rate);
    }
}

/// The bound is one on silence: whoever is heard now and then may be held for as long as its rate wants.
#[test]
fn whoever_is_heard_while_a_rate_holds_it_stays() {
    let mut world = World::new(WorldConfig {
        settings: vela_broker::engine::Settings {
            max_publish_rate_per_topic_in_messages: 1,
            ..Default::default()
        },
        ..WorldConfig::default()
    });
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, "t", 1);
    client.send_batch(&mut world, 1, 0, i32::MAX, "x");
    for _ in 0..10 {
        unheard(&mut world, client.peer, 280);
        client.say(&mut world, &say::pong());
        world.run_until_idle();
    }
    assert!(world.is_open(client.peer));
}

/// Output that a peer does not read stops its own requests; that it is not read for this is its own doing. One that reads slowly is alive.
#[test]
fn a_peer_that_does_not_read_its_output_is_silent() {
    for reads in [true, false] {
        let mut world = World::new(WorldConfig {
            settings: vela_broker::engine::Settings {
                pause_receiving_if_unwritable: true,
                write_buffer_high_water_mark: 4 << 10,
                write_buffer_low_water_mark: 1 << 10,
                ..Default::default()
            },
            ..WorldConfig::default()
        });
        let mut feeder = Client::connect(&mut world, 0);
        let mut client = Client::connect(&mut world, 0);
        feeder.producer(&mut world, "t", 1);
        client.subscribe(&mut world, "t", "s", true, 7);
        world.conns[client.peer.0].stuck = true;
        client.flow(&mut world, 7, 1000);
        for sequence in 0..100 {
            feeder.send(&mut world, 1, sequence, &"z".repeat(1000));
        }
        world.run_until_idle();
        let full = |world: &World| world.engine(0).held()[Reason::OutboundFull as usize];
        assert_eq!(full(&world), 1);
        for _ in 0..100 {
            if reads {
                world.apply(crate::harness::Step::Output(client.peer), 100);
                world.run_until_idle();
            }
            unheard(&mut world, client.peer, 1);
        }
        assert_eq!(world.is_open(client.peer), reads);
        assert_eq!(full(&world), u64::from(reads));
    }
}

/// Two newcomers ask at different times, and the core looks at both at once, late: the first answer is the second's too.
#[test]
fn a_holder_found_dead_is_dead_for_all_who_ask() {
    let (mut world, topic, mut holder, mut newcomer) = held_name(WorldConfig::default());
    let other = world.topic_on(1, "u");
    holder.say(&mut world, &say::producer(&other, 2, 20, Some("me")));
    holder.expect(&mut world, Type::ProducerSuccess);
    newcomer.say(&mut world, &say::producer(&topic, 1, 11, Some("me")));
    holder.expect(&mut world, Type::Ping);
    world.advance(1_000);
    newcomer.say(&mut world, &say::producer(&other, 2, 12, Some("me")));
    holder.expect(&mut world, Type::Ping);
    world.advance(20_000);
    newcomer.expect(&mut world, Type::ProducerSuccess);
    newcomer.expect(&mut world, Type::ProducerSuccess);
    assert!(!world.is_open(holder.peer));
}
