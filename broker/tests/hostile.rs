//! Peers that mean harm: what they can make the broker hold, write or do is bounded, and others do not notice.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod harness;

use bytes::BytesMut;
use harness::client::{Client, say};
use harness::{World, WorldConfig};
use vela_broker::engine::Settings;
use vela_broker::engine::admin::{Answer, Ask, CursorTarget, SubscriptionAsk};
use vela_broker::store::log::Position;
use vela_proto::{self as proto, ServerError, base_command::Type};

const TOPIC: &str = "persistent://public/default/t";

fn world() -> World {
    World::new(WorldConfig::default())
}

fn unlimited() -> World {
    World::new(WorldConfig {
        settings: Settings {
            max_unacked_messages_per_consumer: 0,
            max_unacked_messages_per_subscription: 0,
            ..Settings::default()
        },
        ..WorldConfig::default()
    })
}

/// An entry may claim `i32::MAX` messages; three of them are more than 32 bits count.
#[test]
fn batches_that_claim_too_much_are_counted() {
    let mut world = unlimited();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, TOPIC, 1);
    client.subscribe(&mut world, TOPIC, "s", true, 1);
    for _ in 0..8 {
        client.flow(&mut world, 1, i32::MAX as u32);
    }
    for sequence in 0..4 {
        client.send_batch(&mut world, 1, sequence, i32::MAX, "x");
    }
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 4);
    client.say(&mut world, &say::stats(1, 99));
    let stats = client.expect(&mut world, Type::ConsumerStatsResponse);
    let stats = stats.command.consumer_stats_response.unwrap();
    assert_eq!(stats.unacked_messages, Some(4 * i32::MAX as u64));
    client.ack(&mut world, 1, got.iter().map(|m| m.id()).collect(), false);
    client.say(&mut world, &say::stats(1, 100));
    let stats = client.expect(&mut world, Type::ConsumerStatsResponse);
    let stats = stats.command.consumer_stats_response.unwrap();
    assert_eq!(stats.unacked_messages, Some(0));
}

/// Names are kept for long and repeated in answers.
#[test]
fn long_names_are_refused() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    let long = "n".repeat(4097);
    client.say(&mut world, &say::producer(TOPIC, 1, 10, Some(&long)));
    let (error, text) = client.error(&mut world, 10);
    assert_eq!(error, ServerError::NotAllowedError);
    assert!(
        text.contains("4097") && text.contains("4096") && text.len() < 200,
        "{text}"
    );
    let named = say::subscribe(TOPIC, &long, true, 2, 11);
    client.say(&mut world, &say::subscribe_command(named));
    assert_eq!(client.error(&mut world, 11).0, ServerError::NotAllowedError);
    let mut consumer = say::subscribe(TOPIC, "s", true, 2, 12);
    consumer.consumer_name = Some(long.clone());
    client.say(&mut world, &say::subscribe_command(consumer));
    assert_eq!(client.error(&mut world, 12).0, ServerError::NotAllowedError);
    let mut properties = say::subscribe(TOPIC, "s", true, 2, 13);
    properties.subscription_properties = vec![proto::KeyValue::default(); 5000];
    client.say(&mut world, &say::subscribe_command(properties));
    assert_eq!(client.error(&mut world, 13).0, ServerError::NotAllowedError);
    assert_eq!(world.totals().subscriptions, 0);
    client.subscribe(&mut world, TOPIC, &"n".repeat(4096), true, 3);
}

/// What waits behind an opening is bounded by its ids, not by its frames: one ACK may bring hundreds of thousands.
#[test]
fn acks_behind_an_opening_are_bounded() {
    let mut world = world();
    let mut holder = Client::connect(&mut world, 0);
    holder.subscribe(&mut world, TOPIC, "s", false, 1);
    let mut late = Client::connect(&mut world, 1);
    let request = say::subscribe(TOPIC, "s", false, 1, 7);
    late.say(&mut world, &say::subscribe_command(request));
    late.say(
        &mut world,
        &say::ack(1, vec![say::id(1, 1); 4000], false, None),
    );
    world.run_until_idle();
    assert!(world.is_open(late.peer));
    late.say(
        &mut world,
        &say::ack(1, vec![say::id(1, 1); 200], false, None),
    );
    world.run_until_idle();
    late.listen(&mut world);
    assert!(!world.is_open(late.peer), "{:?}", late.kinds());
    assert!(world.is_open(holder.peer));
}

/// Closing takes an opening back; the SENDs behind it still count as answered, or their connection would stop some day.
#[test]
fn sends_behind_an_opening_that_is_taken_back_are_answered() {
    let mut world = world();
    let mut holder = Client::connect(&mut world, 0);
    holder.say(&mut world, &say::producer(TOPIC, 1, 1, Some("name")));
    holder.expect(&mut world, Type::ProducerSuccess);
    let mut late = Client::connect(&mut world, 1);
    for round in 0..3_u64 {
        late.say(
            &mut world,
            &say::producer(TOPIC, 5, 10 + round, Some("name")),
        );
        for sequence in 0..600 {
            late.send(&mut world, 5, sequence, "x");
        }
        late.say(&mut world, &say::close_producer(5, 20 + round));
        late.success(&mut world, 20 + round);
        let refused = late
            .inbox
            .extract_if(.., |i| i.command.send_error.is_some())
            .count();
        assert_eq!(refused, 600);
    }
    late.producer(&mut world, TOPIC, 6);
    late.send(&mut world, 6, 0, "x");
    late.receipt(&mut world);
}

/// A list of topics is long and the question short: one at a time.
#[test]
fn lists_of_topics_are_answered_one_by_one() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    for i in 0..500 {
        let topic = format!("t{i}-{}", "y".repeat(4000));
        client.say(&mut world, &say::producer(&topic, i, i, None));
    }
    for _ in 0..500 {
        client.expect(&mut world, Type::ProducerSuccess);
    }
    world.conns[client.peer.0].stuck = true;
    let mut questions = BytesMut::new();
    for request_id in 0..60 {
        let question = proto::CommandGetTopicsOfNamespace {
            request_id,
            namespace: "public/default".into(),
            ..Default::default()
        };
        let command = proto::BaseCommand {
            get_topics_of_namespace: Some(question),
            ..say::base(Type::GetTopicsOfNamespace)
        };
        questions.extend_from_slice(&say::bytes(&command));
    }
    world.feed(client.peer, &questions);
    world.run_until_idle();
    let held = world.output_len(client.peer);
    assert!(
        held < 12 << 20,
        "{held} bytes wait for a peer that does not read"
    );
    world.conns[client.peer.0].stuck = false;
    for request_id in 0..60 {
        let list = client.expect(&mut world, Type::GetTopicsOfNamespaceResponse);
        let list = list.command.get_topics_of_namespace_response.unwrap();
        assert_eq!((list.request_id, list.topics.len()), (request_id, 500));
    }
}

/// The consumers of one connection share what its peer may leave unread.
#[test]
fn many_consumers_of_a_peer_that_does_not_read_share_its_window() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, TOPIC, 1);
    let text = "z".repeat(4000);
    for sequence in 0..400 {
        client.send(&mut world, 1, sequence, &text);
        client.receipt(&mut world);
    }
    let readers = 100;
    for id in 0..readers {
        client.subscribe(&mut world, TOPIC, &format!("s{id}"), true, id);
    }
    world.conns[client.peer.0].stuck = true;
    for id in 0..readers {
        client.flow(&mut world, id, 1000);
    }
    world.run_until_idle();
    let held = world.output_len(client.peer);
    assert!(
        held < 16 << 20,
        "{held} bytes wait for a peer that does not read"
    );
    world.conns[client.peer.0].stuck = false;
    assert_eq!(client.messages(&mut world).len(), 400 * readers as usize);
}

/// What an entry claims to hold must not decide how much an ack set may take.
#[test]
fn wide_ack_sets_are_refused() {
    let mut world = unlimited();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, TOPIC, 1);
    client.subscribe(&mut world, TOPIC, "s", true, 1);
    client.flow(&mut world, 1, 1);
    client.send_batch(&mut world, 1, 0, i32::MAX, "x");
    let got = client.messages(&mut world);
    let mut id = got[0].id();
    id.ack_set = vec![1; 1025];
    client.say(&mut world, &say::ack(1, vec![id.clone()], false, Some(50)));
    let answer = client.expect(&mut world, Type::AckResponse).command;
    assert!(answer.ack_response.unwrap().error.is_some());
    client.say(&mut world, &say::seek_id(1, 51, id.clone()));
    client.error(&mut world, 51);
    id.ack_set = vec![1; 1024];
    client.ack(&mut world, 1, vec![id.clone()], false);
    client.say(&mut world, &say::seek_id(1, 52, id));
    client.success(&mut world, 52);
}

/// Ids with wide sets are spread over records that the log takes, so that what is answered is there after a crash.
#[test]
fn many_wide_ack_sets_survive_a_restart() {
    let mut world = unlimited();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, TOPIC, 1);
    client.subscribe(&mut world, TOPIC, "s", true, 1);
    let count = 1000_u64;
    for sequence in 0..count {
        client.send_batch(&mut world, 1, sequence, 65_536, "x");
    }
    for _ in 0..10 {
        client.flow(&mut world, 1, 65_536 * count as u32 / 10);
    }
    let ids = client.messages(&mut world).into_iter().map(|message| {
        let mut id = message.id();
        id.ack_set = vec![1; 1024];
        id
    });
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids.len() as u64, count);
    // Small enough for one frame, 8 MiB as words.
    client.ack(&mut world, 1, ids, false);
    world.crash(|_, _| vela_broker::store::memory::Kept::Nothing);
    world.restart();
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, TOPIC, "s", true, 1);
    client.flow(&mut world, 1, 10_000_000);
    let got = client.messages(&mut world);
    assert_eq!(got.len() as u64, count);
    assert!(got.iter().all(|message| message.ack_set == vec![1; 1024]));
}

/// While a disk does nothing, what waits for it is bounded in number too.
#[test]
fn answers_that_wait_for_the_disk_are_bounded() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, TOPIC, 1);
    client.subscribe(&mut world, TOPIC, "s", true, 1);
    world.disk_paused = true;
    client.send(&mut world, 1, 0, "x");
    let mut asked = 0_u64;
    while asked < 100_000 && world.wants_frames(client.peer) {
        let mut acks = BytesMut::new();
        for _ in 0..1000 {
            asked += 1;
            let ack = say::ack(1, vec![say::id(0, 0)], false, Some(asked));
            acks.extend_from_slice(&say::bytes(&ack));
        }
        world.feed(client.peer, &acks);
        world.run_until_idle();
    }
    assert!(asked < 70_000, "{asked} answers wait");
    world.disk_paused = false;
    world.run_until_idle();
    client.listen(&mut world);
    let answers = client.inbox.iter();
    let answers = answers.filter(|i| i.command.ack_response.is_some()).count();
    assert_eq!(answers as u64, asked);
    assert!(world.wants_frames(client.peer));
}

/// A batch says itself how many messages it has: a cursor within one of `i32::MAX` would be a set of 256 MiB.
#[test]
fn a_cursor_does_not_go_into_a_batch_that_claims_too_much() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, TOPIC, 1);
    client.subscribe(&mut world, TOPIC, "s", true, 1);
    client.flow(&mut world, 1, 1000);
    client.send_batch(&mut world, 1, 0, 100, "x");
    client.send_batch(&mut world, 1, 1, i32::MAX, "x");
    let ids: Vec<_> = client.messages(&mut world).iter().map(|m| m.id()).collect();
    assert_eq!(ids.len(), 2);
    let mut reset = |id: &proto::MessageIdData| {
        let target = CursorTarget {
            position: Position::new(id.ledger_id as i64, id.entry_id as i64),
            batch_index: 5,
            excluded: false,
        };
        world.ask(
            TOPIC,
            Ask::Subscription {
                name: "s".into(),
                ask: SubscriptionAsk::ResetTo(target),
            },
        )
    };
    let honest = reset(&ids[0]);
    assert!(matches!(honest, Some(Answer::Done)), "{honest:?}");
    let refused = reset(&ids[1]);
    assert!(
        matches!(&refused, Some(Answer::TooLarge(text)) if text.contains("65536")),
        "{refused:?}"
    );
}
