//! Key_Shared subscriptions: what waits, for whom, and how far reading goes on meanwhile.

use bytes::BytesMut;
use vela_codec::{encode, entry};
use vela_proto::base_command::Type;
use vela_proto::command_subscribe::SubType;
use vela_proto::{
    BaseCommand, CommandSend, IntRange, KeySharedMeta, KeySharedMode, MessageMetadata, ServerError,
};

use super::consume::filled;
use crate::harness::World;
use crate::harness::client::{Client, say};

/// SUBSCRIBE of a consumer that wants these hashes. With two consumers, "low" keys are the first one's.
fn wanting(topic: &str, id: u64, request: u64, first: i32, last: i32) -> BaseCommand {
    let mut subscribe = say::subscribe(topic, "s", true, id, request);
    subscribe.sub_type = SubType::KeyShared as i32;
    subscribe.key_shared_meta = Some(KeySharedMeta {
        key_shared_mode: KeySharedMode::Sticky as i32,
        hash_ranges: vec![IntRange {
            start: first,
            end: last,
        }],
        ..Default::default()
    });
    say::subscribe_command(subscribe)
}

/// Subscribes a named consumer; the broker shares the keys out.
fn join(client: &mut Client, world: &mut World, topic: &str, id: u64, name: &str) {
    let request = client.request();
    let mut subscribe = say::subscribe(topic, "s", true, id, request);
    subscribe.sub_type = SubType::KeyShared as i32;
    subscribe.consumer_name = Some(name.into());
    client.say(world, &say::subscribe_command(subscribe));
    client.success(world, request);
}

fn send(client: &mut Client, world: &mut World, sequence: u64, key: &str, text: &str) {
    let time = world.now.wall_ms;
    world.feed(
        client.peer,
        &say::send_keyed(1, sequence, None, time, Some(key), text.as_bytes()),
    );
    client.receipt(world);
}

/// Low and high keys by their slots among ranges (Murmur3 as the protocol has it).
const LOW: &str = "key1";
const HIGH: &str = "hello";

/// Two consumers, 7 for low slots and 8 for high ones.
fn low_and_high(client: &mut Client, world: &mut World, topic: &str) {
    for (id, first, last) in [(7, 0, 29_999), (8, 30_000, 65_535)] {
        let request = client.request();
        client.say(world, &wanting(topic, id, request, first, last));
        client.success(world, request);
    }
}

fn configure(world: &mut World, change: impl Fn(&mut vela_broker::engine::Settings)) {
    change(&mut world.config.settings);
    for core in 0..world.config.cores {
        let settings = std::sync::Arc::new(world.config.settings.clone());
        let now = world.now;
        world.engine_mut(core).configure(settings, now);
    }
}

fn seen(client: &mut Client, world: &mut World) -> Vec<(u64, String)> {
    let got = client.messages(world);
    got.iter().map(|m| (m.consumer, m.text())).collect()
}

#[test]
fn reading_goes_on_as_far_as_the_look_ahead() {
    let (mut world, topic, mut client) = filled(&[]);
    configure(&mut world, |settings| {
        settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer = 2;
    });
    low_and_high(&mut client, &mut world, &topic);
    client.flow(&mut world, 8, 100);
    // 7 has no credit: four of its messages may wait, two per consumer, and nothing behind the fourth is read.
    for i in 0..4 {
        send(&mut client, &mut world, i * 2, HIGH, &format!("high{i}"));
        send(&mut client, &mut world, i * 2 + 1, LOW, &format!("low{i}"));
    }
    send(&mut client, &mut world, 8, HIGH, "high4");
    let high = |n: u64| (8, format!("high{n}"));
    let low = |n: u64| (7, format!("low{n}"));
    assert_eq!(
        seen(&mut client, &mut world),
        (0..4).map(high).collect::<Vec<_>>()
    );
    // One goes, and makes room.
    client.flow(&mut world, 7, 1);
    assert_eq!(seen(&mut client, &mut world), [low(0), high(4)]);
    for i in 4..9 {
        send(&mut client, &mut world, i * 2 + 1, LOW, &format!("low{i}"));
    }
    client.flow(&mut world, 7, 100);
    assert_eq!(
        seen(&mut client, &mut world),
        (1..9).map(low).collect::<Vec<_>>()
    );
}

#[test]
fn an_acknowledgment_of_what_waits_makes_room() {
    let (mut world, topic, mut client) = filled(&[]);
    configure(&mut world, |settings| {
        settings.key_shared_look_ahead_msg_in_replay_threshold_per_subscription = 1;
    });
    low_and_high(&mut client, &mut world, &topic);
    client.flow(&mut world, 8, 100);
    let time = world.now.wall_ms;
    world.feed(
        client.peer,
        &say::send_keyed(1, 0, None, time, Some(LOW), b"low"),
    );
    let (_, ledger, entry) = client.receipt(&mut world);
    send(&mut client, &mut world, 1, HIGH, "high");
    client.expect_silence(&mut world);
    client.ack(&mut world, 8, vec![say::id(ledger, entry)], false);
    assert_eq!(seen(&mut client, &mut world), [(8, "high".to_owned())]);
    client.flow(&mut world, 7, 100);
    client.expect_silence(&mut world);
}

#[test]
fn a_consumer_with_too_much_unacknowledged_holds_up_its_own_keys_only() {
    let (mut world, topic, mut client) = filled(&[]);
    configure(&mut world, |settings| {
        settings.max_unacked_messages_per_consumer = 2;
    });
    low_and_high(&mut client, &mut world, &topic);
    client.flow(&mut world, 7, 100);
    client.flow(&mut world, 8, 100);
    for i in 0..4 {
        send(&mut client, &mut world, i, LOW, &format!("low{i}"));
    }
    send(&mut client, &mut world, 4, HIGH, "high");
    let got = client.messages(&mut world);
    let texts: Vec<String> = got.iter().map(|m| m.text()).collect();
    assert_eq!(texts, ["low0", "low1", "high"]);
    client.ack(&mut world, 7, vec![got[0].id()], false);
    // Half is acknowledged.
    assert_eq!(client.texts(&mut world), ["low2"]);
    client.ack(&mut world, 7, vec![got[1].id()], false);
    assert_eq!(client.texts(&mut world), ["low3"]);
}

#[test]
fn a_subscription_with_too_much_unacknowledged_reads_nothing_new() {
    let (mut world, topic, mut client) = filled(&[]);
    configure(&mut world, |settings| {
        settings.max_unacked_messages_per_subscription = 2;
    });
    low_and_high(&mut client, &mut world, &topic);
    client.flow(&mut world, 7, 100);
    client.flow(&mut world, 8, 100);
    for i in 0..4 {
        send(
            &mut client,
            &mut world,
            i,
            [LOW, HIGH][i as usize % 2],
            &format!("m{i}"),
        );
    }
    let got = client.messages(&mut world);
    assert_eq!(
        got.iter().map(|m| m.text()).collect::<Vec<_>>(),
        ["m0", "m1"]
    );
    // What comes back goes out again all the same.
    client.say(&mut world, &say::redeliver(7, vec![got[0].id()], None));
    assert_eq!(client.texts(&mut world), ["m0"]);
    client.ack(&mut world, 7, vec![got[0].id()], false);
    client.ack(&mut world, 8, vec![got[1].id()], false);
    let mut rest = client.texts(&mut world);
    rest.sort_unstable();
    assert_eq!(rest, ["m2", "m3"]);
}

/// The chunks behind go to the consumer that has those before, although the key is another one's meanwhile; then it moves.
#[test]
fn a_chunked_message_is_finished_where_it_was_begun() {
    let (mut world, topic, mut client) = filled(&[]);
    join(&mut client, &mut world, &topic, 7, "old");
    client.flow(&mut world, 7, 100);
    // Keys that move to "new" are found by trying.
    for i in 0..20 {
        send(
            &mut client,
            &mut world,
            i,
            &format!("k{i}"),
            &format!("k{i}"),
        );
    }
    let first = client.messages(&mut world);
    assert_eq!(first.len(), 20);
    client.ack(&mut world, 7, first.iter().map(|m| m.id()).collect(), false);
    join(&mut client, &mut world, &topic, 8, "new");
    client.flow(&mut world, 8, 100);
    for i in 0..20 {
        send(
            &mut client,
            &mut world,
            20 + i,
            &format!("k{i}"),
            &format!("k{i}"),
        );
    }
    let second = client.messages(&mut world);
    let moves = second.iter().find(|m| m.consumer == 8).unwrap().text();
    client.say(&mut world, &say::close_consumer(8, 90));
    client.success(&mut world, 90);
    for m in second.iter().chain(&client.messages(&mut world)) {
        client.ack(&mut world, 7, vec![m.id()], false);
    }

    let chunk = |client: &mut Client, world: &mut World, sequence: u64, id: i32| {
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            sequence_id: sequence,
            publish_time: world.now.wall_ms,
            partition_key: Some(moves.clone()),
            uuid: Some("u".into()),
            chunk_id: Some(id),
            num_chunks_from_msg: Some(3),
            total_chunk_msg_size: Some(9),
            ..Default::default()
        };
        let mut stored = BytesMut::new();
        entry::write(&metadata, format!("chunk{id}").as_bytes(), &mut stored);
        let command = BaseCommand {
            r#type: Type::Send as i32,
            send: Some(CommandSend {
                producer_id: 1,
                sequence_id: sequence,
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut out = BytesMut::new();
        encode::command_with_rest(&command, stored.len(), &mut out);
        out.extend_from_slice(&stored);
        world.feed(client.peer, &out);
        client.receipt(world);
    };
    chunk(&mut client, &mut world, 40, 0);
    join(&mut client, &mut world, &topic, 8, "new");
    client.flow(&mut world, 8, 100);
    chunk(&mut client, &mut world, 41, 1);
    send(&mut client, &mut world, 42, &moves, "between");
    chunk(&mut client, &mut world, 43, 2);
    send(&mut client, &mut world, 44, &moves, "after");
    let got = client.messages(&mut world);
    let texts: Vec<_> = got.iter().map(|m| (m.consumer, m.text())).collect();
    let expected = ["chunk0", "chunk1", "between", "chunk2"];
    assert_eq!(texts, expected.map(|text| (7, text.to_owned())));
    client.ack(&mut world, 7, got.iter().map(|m| m.id()).collect(), false);
    assert_eq!(seen(&mut client, &mut world), [(8, "after".to_owned())]);
}

#[test]
fn a_seek_forgets_what_waited_and_who_held_what() {
    let (mut world, topic, mut client) = filled(&[]);
    join(&mut client, &mut world, &topic, 7, "old");
    client.flow(&mut world, 7, 5);
    for i in 0..20 {
        send(
            &mut client,
            &mut world,
            i,
            &format!("k{}", i % 10),
            &format!("{i:02}"),
        );
    }
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 5);
    join(&mut client, &mut world, &topic, 8, "new");
    client.flow(&mut world, 8, 100);
    assert!(!client.messages(&mut world).is_empty());
    let request = client.request();
    client.say(&mut world, &say::seek_id(7, request, got[0].id()));
    client.success(&mut world, request);
    client.listen(&mut world);
    client.inbox.clear();
    for (id, name) in [(9, "old"), (10, "new")] {
        join(&mut client, &mut world, &topic, id, name);
        client.flow(&mut world, id, 100);
    }
    let mut texts = client.texts(&mut world);
    texts.sort_unstable();
    let all: Vec<String> = (0..20).map(|i| format!("{i:02}")).collect();
    assert_eq!(texts, all);
}

/// SUBSCRIBE of an Exclusive consumer that wants these hashes; the mode that it names beside them says nothing.
fn exclusive(topic: &str, request: u64, mode: KeySharedMode, range: (i32, i32)) -> BaseCommand {
    let mut subscribe = say::subscribe(topic, "s", false, 7, request);
    subscribe.key_shared_meta = Some(KeySharedMeta {
        key_shared_mode: mode as i32,
        hash_ranges: vec![IntRange {
            start: range.0,
            end: range.1,
        }],
        ..Default::default()
    });
    say::subscribe_command(subscribe)
}

fn low_and_high_texts(client: &mut Client, world: &mut World, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let key = if n % 2 == 0 { LOW } else { HIGH };
        send(client, world, n, key, &n.to_string());
    }
}

#[test]
fn an_exclusive_consumer_is_sent_only_the_keys_it_names_and_pays_for_no_others() {
    for mode in [KeySharedMode::Sticky, KeySharedMode::AutoSplit] {
        let (mut world, topic, mut client) = filled(&[]);
        low_and_high_texts(&mut client, &mut world, 0..10);
        client.say(&mut world, &exclusive(&topic, 90, mode, (0, 29_999)));
        client.success(&mut world, 90);
        client.flow(&mut world, 7, 6);
        let got = client.messages(&mut world);
        let texts: Vec<String> = got.iter().map(|got| got.text()).collect();
        assert_eq!(texts, ["0", "2", "4", "6", "8"]);
        client.say(&mut world, &say::stats(7, 70));
        let stats = client.expect(&mut world, Type::ConsumerStatsResponse);
        let stats = stats.command.consumer_stats_response.unwrap();
        assert_eq!(stats.available_permits, Some(1), "6 and five messages");
        // Each for itself: what was skipped between them stays open, over a restart too.
        for got in &got {
            client.ack(&mut world, 7, vec![got.id()], false);
        }
        client.say(&mut world, &say::close_consumer(7, 91));
        client.success(&mut world, 91);
        world.restart();
        let mut client = Client::connect(&mut world, 0);
        client.producer(&mut world, &topic, 1);
        client.subscribe(&mut world, &topic, "s", false, 7);
        client.flow(&mut world, 7, 100);
        // One that names no ranges gets everything.
        assert_eq!(client.texts(&mut world), ["1", "3", "5", "7", "9"]);
        low_and_high_texts(&mut client, &mut world, 10..12);
        assert_eq!(client.texts(&mut world), ["10", "11"]);
    }
}

/// Readers of the Java client: a cursor of its own, from the earliest message on.
#[test]
fn a_reader_of_some_keys() {
    let (mut world, topic, mut client) = filled(&[]);
    low_and_high_texts(&mut client, &mut world, 0..10);
    let command = exclusive(&topic, 90, KeySharedMode::Sticky, (30_000, 65_535));
    let mut subscribe = command.subscribe.unwrap();
    subscribe.durable = Some(false);
    subscribe.start_message_id = Some(say::id(u64::MAX, u64::MAX));
    client.say(&mut world, &say::subscribe_command(subscribe));
    client.success(&mut world, 90);
    client.flow(&mut world, 7, 100);
    assert_eq!(client.texts(&mut world), ["1", "3", "5", "7", "9"]);
    // What is sent again was sent before.
    client.say(&mut world, &say::redeliver(7, Vec::new(), None));
    assert_eq!(client.texts(&mut world), ["1", "3", "5", "7", "9"]);
}

#[test]
fn the_ranges_of_an_exclusive_consumer_are_checked() {
    let (mut world, topic, mut client) = filled(&[]);
    let sticky = KeySharedMode::Sticky;
    client.say(&mut world, &exclusive(&topic, 90, sticky, (9, 5)));
    let (error, text) = client.error(&mut world, 90);
    assert_eq!(error, ServerError::ConsumerAssignError);
    assert!(text.contains("[9, 5] ends before it begins"), "{text}");
}

#[test]
fn key_shared_can_be_switched_off() {
    let (mut world, topic, mut client) = filled(&[]);
    configure(&mut world, |settings| {
        settings.subscription_key_shared_enable = false;
    });
    client.say(&mut world, &wanting(&topic, 7, 90, 0, 9));
    let (error, text) = client.error(&mut world, 90);
    assert_eq!(error, ServerError::NotAllowedError);
    assert!(text.contains("subscriptionKeySharedEnable"), "{text}");
}

/// A refused consumer leaves nothing behind, and a holder that does not answer gives its ranges up.
#[test]
fn the_holder_of_a_range_is_asked_for_a_sign_of_life() {
    let (mut world, topic, mut client) = filled(&["a"]);
    client.say(&mut world, &wanting(&topic, 7, 90, 0, 65_535));
    client.success(&mut world, 90);
    // On its own connection there is nothing to ask.
    client.say(&mut world, &wanting(&topic, 8, 91, 5, 6));
    let (error, text) = client.error(&mut world, 91);
    assert_eq!(error, ServerError::ConsumerAssignError);
    assert!(text.contains("[5, 6] overlaps [0, 65535]"), "{text}");
    let mut other = Client::connect(&mut world, 1);
    other.say(&mut world, &wanting(&topic, 8, 92, 0, 65_535));
    client.expect(&mut world, Type::Ping);
    client.say(&mut world, &say::pong());
    let (error, _) = other.error(&mut world, 92);
    assert_eq!(error, ServerError::ConsumerAssignError);
    other.say(&mut world, &wanting(&topic, 8, 93, 0, 65_535));
    other.flow(&mut world, 8, 1);
    client.expect(&mut world, Type::Ping);
    world.advance(5_000);
    other.success(&mut world, 93);
    assert_eq!(other.texts(&mut world), ["a"]);
}

/// A key that moves to another consumer while the old one holds several messages of it: it waits for the last of them.
#[test]
fn a_moved_key_waits_for_all_that_its_old_owner_holds() {
    for consistent in [true, false] {
        let prepared = || {
            let (mut world, topic, client) = filled(&[]);
            configure(&mut world, |settings| {
                settings.subscription_key_shared_use_consistent_hashing = consistent;
            });
            (world, topic, client)
        };
        // Whose keys are whose, once both are there.
        let (mut world, topic, mut client) = prepared();
        join(&mut client, &mut world, &topic, 7, "old");
        join(&mut client, &mut world, &topic, 8, "new");
        for id in [7, 8] {
            client.flow(&mut world, id, 100);
        }
        let mut moved = None;
        for number in 0..64 {
            let key = format!("k{number}");
            send(&mut client, &mut world, number, &key, &key);
            let owner = seen(&mut client, &mut world)[0].0;
            if owner == 8 {
                moved = Some(key);
                break;
            }
        }
        let moved = moved.expect("a key of the newcomer's");

        let (mut world, topic, mut client) = prepared();
        join(&mut client, &mut world, &topic, 7, "old");
        client.flow(&mut world, 7, 100);
        send(&mut client, &mut world, 0, &moved, "first");
        send(&mut client, &mut world, 1, &moved, "second");
        let held = client.messages(&mut world);
        assert_eq!(held.len(), 2);
        join(&mut client, &mut world, &topic, 8, "new");
        client.flow(&mut world, 8, 100);
        send(&mut client, &mut world, 2, &moved, "third");
        assert!(seen(&mut client, &mut world).is_empty());
        client.ack(&mut world, 7, vec![held[1].id()], false);
        assert!(
            seen(&mut client, &mut world).is_empty(),
            "the old owner still holds the first"
        );
        client.ack(&mut world, 7, vec![held[0].id()], false);
        assert_eq!(seen(&mut client, &mut world), [(8, "third".to_owned())]);
        send(&mut client, &mut world, 3, &moved, "fourth");
        assert_eq!(seen(&mut client, &mut world), [(8, "fourth".to_owned())]);
    }
}
