//! Where consumers and readers start, and how they seek.

use vela_proto::{self as proto, base_command::Type};

use super::consume::filled;
use super::restart::small;
use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

/// Seeks close the consumer; it comes back by itself.
fn seek_and_come_back(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    command: &proto::BaseCommand,
    request_id: u64,
) -> Vec<String> {
    client.say(world, command);
    world.run_until_idle();
    client.listen(world);
    assert_eq!(client.kinds(), [Type::CloseConsumer, Type::Success]);
    client.expect(world, Type::CloseConsumer);
    client.success(world, request_id);
    client.subscribe(world, topic, "s", false, 7);
    client.flow(world, 7, 100);
    client.texts(world)
}

#[test]
fn seeks_by_id_and_by_time() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    let mut times = Vec::new();
    let mut ids = Vec::new();
    for (i, text) in (0..).zip(["a", "b", "c", "d"]) {
        world.advance(1000);
        times.push(world.now.wall_ms);
        client.send(&mut world, 1, i, text);
        let (_, ledger, entry) = client.receipt(&mut world);
        ids.push(say::id(ledger, entry));
    }
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 10);
    assert_eq!(client.texts(&mut world).len(), 4);
    let mut go = |command: &proto::BaseCommand, request| {
        seek_and_come_back(&mut world, &mut client, &topic, command, request)
    };
    assert_eq!(go(&say::seek_id(7, 100, ids[2].clone()), 100), ["c", "d"]);
    assert_eq!(go(&say::seek_time(7, 101, times[1]), 101), ["b", "c", "d"]);
    assert_eq!(go(&say::seek_time(7, 102, times[1] + 1), 102), ["c", "d"]);
    assert!(go(&say::seek_time(7, 103, times[3] + 1), 103).is_empty());
    assert_eq!(go(&say::seek_time(7, 104, 0), 104).len(), 4);
    // Java's earliest and latest.
    assert_eq!(
        go(&say::seek_id(7, 105, say::id(u64::MAX, u64::MAX)), 105).len(),
        4
    );
    assert!(
        go(
            &say::seek_id(7, 106, say::id(i64::MAX as u64, i64::MAX as u64)),
            106
        )
        .is_empty()
    );
}

fn reader(
    topic: &str,
    start: proto::MessageIdData,
    id: u64,
    request_id: u64,
) -> proto::BaseCommand {
    let mut subscribe = say::subscribe(topic, &format!("reader-{id}"), false, id, request_id);
    subscribe.durable = Some(false);
    subscribe.initial_position = None;
    subscribe.start_message_id = Some(start);
    say::subscribe_command(subscribe)
}

#[test]
fn readers_start_where_they_say() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c"]);
    client.send(&mut world, 1, 3, "d");
    let (_, ledger, _) = client.receipt(&mut world);
    let starts = [
        (say::id(u64::MAX, u64::MAX), vec!["a", "b", "c", "d"]),
        (say::id(i64::MAX as u64, i64::MAX as u64), vec![]),
        (say::id(ledger, 2), vec!["c", "d"]),
    ];
    for (id, (start, expected)) in (10..).zip(starts) {
        client.say(&mut world, &reader(&topic, start, id, id));
        client.success(&mut world, id);
        client.flow(&mut world, id, 100);
        assert_eq!(client.texts(&mut world), expected);
        client.say(&mut world, &say::close_consumer(id, id + 50));
        client.success(&mut world, id + 50);
    }
    assert_eq!(
        world.totals().subscriptions,
        0,
        "a reader's cursor goes with it"
    );
}

#[test]
fn the_last_message_id() {
    let (mut world, topic, mut client) = filled(&[]);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.say(&mut world, &say::last_message_id(7, 5));
    let answer = client
        .expect(&mut world, Type::GetLastMessageIdResponse)
        .command
        .get_last_message_id_response
        .unwrap();
    assert_eq!(
        (
            answer.request_id,
            answer.last_message_id.entry_id,
            answer.last_message_id.batch_index
        ),
        (5, u64::MAX, Some(-1))
    );
    client.send(&mut world, 1, 0, "a");
    client.send_batch(&mut world, 1, 1, 10, "b");
    client.receipt(&mut world);
    let (_, ledger, entry) = client.receipt(&mut world);
    client.say(&mut world, &say::last_message_id(7, 6));
    let answer = client
        .expect(&mut world, Type::GetLastMessageIdResponse)
        .command
        .get_last_message_id_response
        .unwrap();
    let last = answer.last_message_id;
    assert_eq!(
        (
            last.ledger_id,
            last.entry_id,
            last.batch_index,
            last.partition
        ),
        (ledger, entry, Some(9), Some(-1))
    );
}

/// A small cache and small chunks, so that what is old must be read back; a topic with 200 messages a second apart.
fn old_messages() -> (World, String, Client) {
    let mut config = WorldConfig::default();
    config.lane.chunk_bytes = 4096;
    config.lane.cache_bytes = 8192;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "keeps", false, 5);
    let text = "o".repeat(1000);
    for i in 0..200 {
        client.send(&mut world, 1, i, &format!("{i:03}{text}"));
        client.receipt(&mut world);
        world.now.wall_ms += 1000;
    }
    (world, topic, client)
}

fn rollback(topic: &str, seconds: u64, id: u64, request_id: u64) -> proto::BaseCommand {
    let mut subscribe = say::subscribe(topic, &format!("reader-{id}"), false, id, request_id);
    subscribe.durable = Some(false);
    subscribe.initial_position = None;
    subscribe.start_message_id = Some(say::id(i64::MAX as u64, i64::MAX as u64));
    subscribe.start_message_rollback_duration_sec = Some(seconds);
    say::subscribe_command(subscribe)
}

#[test]
fn a_reader_starts_some_seconds_back() {
    let (mut world, topic, mut client) = old_messages();
    client.say(&mut world, &rollback(&topic, 150, 10, 70));
    client.flow(&mut world, 10, 1000);
    client.success(&mut world, 70);
    assert!(world.reads_done > 0, "nothing had to be read back");
    let texts = client.texts(&mut world);
    assert_eq!((texts.len(), &texts[0][..3]), (150, "050"));
}

/// A reader that goes while its start is still being looked for leaves no trace, least of all on whoever takes its place.
#[test]
fn a_search_for_a_subscription_that_is_gone_moves_nobody() {
    let (mut world, topic, mut client) = old_messages();
    let last = {
        client.say(&mut world, &say::last_message_id(5, 60));
        let answer = client.expect(&mut world, Type::GetLastMessageIdResponse);
        answer
            .command
            .get_last_message_id_response
            .unwrap()
            .last_message_id
    };
    client.say(&mut world, &rollback(&topic, 150, 10, 70));
    client.say(&mut world, &say::close_consumer(10, 71));
    let mut other = say::subscribe(&topic, "other", false, 11, 72);
    other.initial_position = Some(proto::command_subscribe::InitialPosition::Latest as i32);
    client.say(&mut world, &say::subscribe_command(other));
    client.flow(&mut world, 11, 1000);
    world.run_until_idle();
    client.say(&mut world, &say::last_message_id(11, 73));
    let answer = client
        .expect(&mut world, Type::GetLastMessageIdResponse)
        .command
        .get_last_message_id_response
        .unwrap();
    let mark = answer.consumer_mark_delete_position.unwrap();
    assert_eq!(
        (mark.ledger_id, mark.entry_id),
        (last.ledger_id, last.entry_id)
    );
    assert!(client.messages(&mut world).is_empty());
}

/// A reader that seeks and comes back finds its cursor; one that stays away is forgotten after a minute.
#[test]
fn a_reader_that_seeks_has_a_minute_to_come_back() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c"]);
    for comes_back in [true, false] {
        client.say(
            &mut world,
            &reader(&topic, say::id(i64::MAX as u64, i64::MAX as u64), 10, 70),
        );
        client.success(&mut world, 70);
        client.say(
            &mut world,
            &say::seek_id(10, 71, say::id(u64::MAX, u64::MAX)),
        );
        client.expect(&mut world, Type::CloseConsumer);
        client.success(&mut world, 71);
        world.now.ms += if comes_back { 29_000 } else { 0 };
        client.say(&mut world, &say::pong());
        if !comes_back {
            for _ in 0..3 {
                world.advance(20_000);
                client.say(&mut world, &say::pong());
                world.run_until_idle();
            }
            assert_eq!(world.totals().subscriptions, 0);
            return;
        }
        client.say(
            &mut world,
            &reader(&topic, say::id(i64::MAX as u64, i64::MAX as u64), 10, 72),
        );
        client.success(&mut world, 72);
        client.flow(&mut world, 10, 100);
        assert_eq!(client.texts(&mut world), ["a", "b", "c"]);
        client.say(&mut world, &say::close_consumer(10, 73));
        client.success(&mut world, 73);
    }
}

#[test]
fn a_reader_that_stands_still_keeps_no_ledgers() {
    let mut world = World::new(small());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100_000);
    client.say(
        &mut world,
        &reader(&topic, say::id(u64::MAX, u64::MAX), 8, 8),
    );
    client.success(&mut world, 8);
    client.flow(&mut world, 8, 1);
    for i in 0..200 {
        client.send(&mut world, 1, i, &format!("{i:03}{}", "w".repeat(3000)));
        client.receipt(&mut world);
        let got = client.messages(&mut world);
        let mine = got.iter().filter(|m| m.consumer == 7);
        client.ack(&mut world, 7, mine.map(|m| m.id()).collect(), false);
    }
    assert!(world.dropped_segments > 3, "{}", world.dropped_segments);
    // It goes on where there still is something, in order and to the end.
    client.flow(&mut world, 8, 1000);
    let texts = client.texts(&mut world);
    let numbers: Vec<usize> = texts
        .iter()
        .filter_map(|text| text.get(..3)?.parse().ok())
        .collect();
    let first = *numbers
        .first()
        .expect("the ledger that is written is there");
    assert!(first >= 180, "{first}");
    assert_eq!(numbers, (first..200).collect::<Vec<_>>());
}
