//! Deduplication: what is sent again is stored once, whatever happens in between.

use bytes::BytesMut;
use vela_broker::store::memory::Kept;
use vela_codec::{encode, entry};
use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

const NONE: u64 = u64::MAX;

fn config() -> WorldConfig {
    let mut config = WorldConfig::default();
    config.settings.broker_deduplication_enabled = true;
    config.settings.checkpoint_interval_bytes = 64 << 10;
    config
}

/// Opens a named producer; its last sequence id.
fn open(world: &mut World, client: &mut Client, topic: &str, id: u64, name: &str) -> i64 {
    let request = client.request();
    client.say(world, &say::producer(topic, id, request, Some(name)));
    let answer = client.expect(world, Type::ProducerSuccess).command;
    answer.producer_success.unwrap().last_sequence_id.unwrap()
}

/// A SEND with what matters to deduplication.
fn frame(
    producer: u64,
    (lowest, highest): (u64, Option<u64>),
    chunk: Option<(i32, i32)>,
    payload: &[u8],
    publish_time: u64,
) -> BytesMut {
    let command = proto::CommandSend {
        producer_id: producer,
        sequence_id: lowest,
        highest_sequence_id: highest,
        num_messages: highest.map(|highest| (highest - lowest + 1) as i32),
        is_chunk: chunk.map(|_| true),
        ..Default::default()
    };
    let metadata = proto::MessageMetadata {
        producer_name: "somebody".into(),
        sequence_id: lowest,
        publish_time,
        chunk_id: chunk.map(|(chunk, _)| chunk),
        num_chunks_from_msg: chunk.map(|(_, chunks)| chunks),
        uuid: chunk.map(|_| "u".into()),
        ..Default::default()
    };
    let mut stored = BytesMut::new();
    entry::write(&metadata, payload, &mut stored);
    let mut out = BytesMut::new();
    let command = BaseCommand {
        send: Some(command),
        ..say::base(Type::Send)
    };
    encode::command_with_rest(&command, stored.len(), &mut out);
    out.extend_from_slice(&stored);
    out
}

/// A SEND of producer 1 with a range of sequence ids.
pub fn range((lowest, highest): (u64, u64), payload: &[u8], publish_time: u64) -> BytesMut {
    let highest = (highest > lowest).then_some(highest);
    frame(1, (lowest, highest), None, payload, publish_time)
}

fn send(
    world: &mut World,
    client: &Client,
    producer: u64,
    range: (u64, Option<u64>),
    chunk: Option<(i32, i32)>,
    text: &str,
) {
    let bytes = frame(producer, range, chunk, text.as_bytes(), world.now.wall_ms);
    world.feed(client.peer, &bytes);
}

fn one(world: &mut World, client: &Client, producer: u64, sequence: u64) {
    let text = format!("m{sequence}");
    send(world, client, producer, (sequence, None), None, &text);
}

/// Sequence id and whether it was stored, of every receipt so far.
fn receipts(world: &mut World, client: &mut Client) -> Vec<(u64, bool)> {
    world.run_until_idle();
    client.listen(world);
    let receipts = client
        .inbox
        .iter()
        .filter_map(|i| i.command.send_receipt.clone());
    let receipts = receipts
        .map(|receipt| {
            let id = receipt.message_id.unwrap();
            assert_eq!(id.ledger_id == NONE, id.entry_id == NONE);
            (receipt.sequence_id, id.ledger_id != NONE)
        })
        .collect();
    client.inbox.retain(|i| i.command.send_receipt.is_none());
    receipts
}

/// Everything that a topic holds.
fn stored(world: &mut World, topic: &str) -> Vec<String> {
    let mut reader = Client::connect(world, 0);
    let request = reader.request();
    let mut subscribe = say::subscribe(topic, "reader", false, 9, request);
    subscribe.durable = Some(false);
    subscribe.start_message_id = Some(say::id(NONE, NONE));
    reader.say(world, &say::subscribe_command(subscribe));
    reader.success(world, request);
    reader.flow(world, 9, 100_000);
    let texts = reader.texts(world);
    world.cut(reader.peer);
    texts
}

#[test]
fn a_repeat_gets_a_receipt_without_a_place_and_is_not_stored() {
    for home in [0, 1] {
        let mut world = World::new(config());
        let topic = world.topic_on(home, "t");
        let mut client = Client::connect(&mut world, 0);
        assert_eq!(open(&mut world, &mut client, &topic, 1, "p"), -1);
        for sequence in [0, 1, 2, 1, 3] {
            one(&mut world, &client, 1, sequence);
        }
        let answers = [(0, true), (1, true), (2, true), (1, false), (3, true)];
        assert_eq!(receipts(&mut world, &mut client), answers);
        // Another name has ids of its own.
        assert_eq!(open(&mut world, &mut client, &topic, 2, "q"), -1);
        one(&mut world, &client, 2, 1);
        assert_eq!(receipts(&mut world, &mut client), [(1, true)]);
        assert_eq!(stored(&mut world, &topic), ["m0", "m1", "m2", "m3", "m1"]);
    }
}

/// Known after a clean stop, and after a crash at any moment.
#[test]
fn names_and_ids_outlive_connections_crashes_and_restarts() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let mut next = 0_u64;
    for round in 0..8 {
        let mut client = Client::connect(&mut world, 0);
        let last = open(&mut world, &mut client, &topic, 1, "p");
        assert_eq!(last, next as i64 - 1);
        for sequence in next.saturating_sub(2)..next {
            one(&mut world, &client, 1, sequence);
        }
        for _ in 0..10 {
            let text = format!("m{next}").repeat(if next.is_multiple_of(3) { 300 } else { 1 });
            send(&mut world, &client, 1, (next, None), None, &text);
            next += 1;
        }
        let answers = receipts(&mut world, &mut client);
        let fresh = answers.iter().filter(|(_, stored)| *stored).count();
        assert_eq!(
            (fresh, answers.len()),
            (10, if round == 0 { 10 } else { 12 })
        );
        match round % 3 {
            0 => world.restart(),
            1 => world.crash(|_, _| Kept::Nothing),
            _ => world.cut(client.peer),
        }
    }
    assert!(world.checkpoints_done > 0);
    let texts = stored(&mut world, &topic);
    assert_eq!(texts.len(), next as usize);
    for (sequence, text) in texts.iter().enumerate() {
        assert!(text.starts_with(&format!("m{sequence}")), "{text}");
    }
}

/// While the original is on its way to the disk, its repeat waits for it; if it never gets there, both are refused.
#[test]
fn a_repeat_is_answered_when_the_original_is_safe() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    open(&mut world, &mut client, &topic, 1, "p");
    world.disk_paused = true;
    one(&mut world, &client, 1, 0);
    world.run_until_idle();
    world.cut(client.peer);
    let mut client = Client::connect(&mut world, 0);
    let request = client.request();
    client.say(&mut world, &say::producer(&topic, 1, request, Some("p")));
    one(&mut world, &client, 1, 0);
    client.expect_silence(&mut world);
    world.disk_paused = false;
    world.run_until_idle();
    let answer = client.expect(&mut world, Type::ProducerSuccess).command;
    assert_eq!(answer.producer_success.unwrap().last_sequence_id, Some(0));
    assert_eq!(receipts(&mut world, &mut client), [(0, false)]);
    world.break_disk(world.home(&topic).1);
    one(&mut world, &client, 1, 1);
    one(&mut world, &client, 1, 1);
    world.run_until_idle();
    client.listen(&mut world);
    assert_eq!(client.kinds(), [Type::SendError, Type::SendError]);
    for error in client.inbox.drain(..) {
        let error = error.command.send_error.unwrap();
        assert_eq!(error.error, ServerError::PersistenceError as i32);
    }
    world.crash(|_, _| Kept::Nothing);
    let mut client = Client::connect(&mut world, 0);
    assert_eq!(open(&mut world, &mut client, &topic, 1, "p"), 0);
    one(&mut world, &client, 1, 1);
    assert_eq!(receipts(&mut world, &mut client), [(1, true)]);
}

/// The bug report behind it (apache/pulsar#6273): new messages of a batch that overlaps must not be answered as if they were stored.
#[test]
fn batches_that_overlap_are_refused_as_a_whole() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    open(&mut world, &mut client, &topic, 1, "p");
    for (lowest, highest) in [(0, 5), (6, 8), (7, 10), (12, 15)] {
        let text = format!("{lowest}-{highest}");
        send(&mut world, &client, 1, (lowest, Some(highest)), None, &text);
    }
    world.run_until_idle();
    client.listen(&mut world);
    let error = client.expect(&mut world, Type::SendError).command;
    let error = error.send_error.unwrap();
    assert_eq!(
        (error.sequence_id, error.error),
        (10, ServerError::NotAllowedError as i32)
    );
    assert_eq!(
        receipts(&mut world, &mut client),
        [(0, true), (6, true), (12, true)]
    );
    for crash in [false, true] {
        if crash {
            world.crash(|_, _| Kept::Nothing);
        } else {
            world.cut(client.peer);
        }
        client = Client::connect(&mut world, 0);
        open(&mut world, &mut client, &topic, 1, "p");
        send(&mut world, &client, 1, (12, Some(15)), None, "12-15");
        let next = if crash { 17 } else { 16 };
        send(
            &mut world,
            &client,
            1,
            (next, None),
            None,
            &next.to_string(),
        );
        assert_eq!(
            receipts(&mut world, &mut client),
            [(12, false), (next, true)]
        );
    }
    assert_eq!(
        stored(&mut world, &topic),
        ["0-5", "6-8", "12-15", "16", "17"]
    );
}

/// All chunks of a message have its sequence id; the last one decides.
#[test]
fn of_a_chunked_message_the_last_chunk_counts() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    open(&mut world, &mut client, &topic, 1, "p");
    for _ in 0..2 {
        for chunk in 0..3 {
            send(&mut world, &client, 1, (5, None), Some((chunk, 3)), "c");
        }
    }
    let stored = [true, true, true, true, true, false].map(|stored| (5, stored));
    assert_eq!(receipts(&mut world, &mut client), stored);
    one(&mut world, &client, 1, 5);
    one(&mut world, &client, 1, 6);
    assert_eq!(receipts(&mut world, &mut client), [(5, false), (6, true)]);
}

#[test]
fn policies_switch_it_on_and_off_while_producers_are_connected() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    assert_eq!(open(&mut world, &mut client, &topic, 1, "p"), -1);
    let twice = |world: &mut World, client: &mut Client, sequence| {
        one(world, client, 1, sequence);
        one(world, client, 1, sequence);
        receipts(world, client)
    };
    let off = [(5, true), (5, true)];
    let on = [(5, true), (5, false)];
    assert_eq!(twice(&mut world, &mut client, 5), off);
    let namespace = "namespace/public/default";
    world.put_metadata(namespace, br#"{"deduplicationEnabled": true}"#);
    world.run_until_idle();
    assert_eq!(twice(&mut world, &mut client, 5), on);
    world.put_metadata(namespace, br#"{"deduplicationEnabled": false}"#);
    world.run_until_idle();
    assert_eq!(twice(&mut world, &mut client, 5), off);
    // What was known before is forgotten: the ids of a producer may have begun anew.
    world.put_metadata(namespace, br#"{"deduplicationEnabled": true}"#);
    world.run_until_idle();
    assert_eq!(twice(&mut world, &mut client, 5), on);
    // A topic's own policy wins.
    let name = topic.replacen("://", "/", 1);
    let key = format!("topic-policies/{name}");
    world.put_metadata(&key, br#"{"deduplicationEnabled": false}"#);
    world.run_until_idle();
    assert_eq!(twice(&mut world, &mut client, 5), off);
}

/// Switched off between two starts, nothing is remembered.
#[test]
fn a_start_without_it_forgets() {
    let mut world = World::new(config());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    open(&mut world, &mut client, &topic, 1, "p");
    one(&mut world, &client, 1, 5);
    receipts(&mut world, &mut client);
    for (enabled, last) in [(true, 5), (false, -1), (true, -1)] {
        world.config.settings.broker_deduplication_enabled = enabled;
        world.restart();
        world.wake_all();
        world.run_until_idle();
        let mut client = Client::connect(&mut world, 0);
        assert_eq!(open(&mut world, &mut client, &topic, 1, "p"), last);
    }
}

#[test]
fn names_are_bounded_and_the_one_gone_the_longest_makes_room() {
    let mut config = config();
    config.settings.broker_deduplication_max_number_of_producers = 3;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    for id in 0..3 {
        open(&mut world, &mut client, &topic, id, &format!("p{id}"));
        one(&mut world, &client, id, 7);
        receipts(&mut world, &mut client);
    }
    let request = client.request();
    client.say(&mut world, &say::producer(&topic, 9, request, Some("p9")));
    let (error, text) = client.error(&mut world, request);
    assert_eq!(error, ServerError::ProducerBusy);
    assert!(
        text.contains("brokerDeduplicationMaxNumberOfProducers is 3"),
        "{text}"
    );
    for id in [1, 0] {
        client.say(&mut world, &say::close_producer(id, 80 + id));
        client.success(&mut world, 80 + id);
        world.advance(10);
    }
    // The place of p1, which went first.
    assert_eq!(open(&mut world, &mut client, &topic, 9, "p9"), -1);
    assert_eq!(open(&mut world, &mut client, &topic, 0, "p0"), 7);
    client.say(&mut world, &say::close_producer(9, 99));
    client.success(&mut world, 99);
    world.crash(|_, _| Kept::Nothing);
    let mut client = Client::connect(&mut world, 0);
    assert_eq!(open(&mut world, &mut client, &topic, 2, "p2"), 7);
    assert_eq!(open(&mut world, &mut client, &topic, 0, "p0"), 7);
    assert_eq!(open(&mut world, &mut client, &topic, 1, "p1"), -1);
}

#[test]
fn who_is_gone_for_long_is_forgotten_and_who_is_connected_is_not() {
    let mut config = config();
    config
        .settings
        .broker_deduplication_producer_inactivity_timeout_ms = 120_000;
    config.settings.keep_alive_interval_seconds = 0;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    for (id, name) in [(1, "stays"), (2, "goes")] {
        open(&mut world, &mut client, &topic, id, name);
        one(&mut world, &client, id, 3);
    }
    receipts(&mut world, &mut client);
    client.say(&mut world, &say::close_producer(2, 90));
    client.success(&mut world, 90);
    let age = |world: &mut World, client: &mut Client, ms: u64| {
        for _ in 0..ms / 10_000 {
            world.advance(10_000);
            world.run_until_idle();
        }
        let last = open(world, client, &topic, 2, "goes");
        client.say(world, &say::close_producer(2, 91));
        client.success(world, 91);
        last
    };
    assert_eq!(age(&mut world, &mut client, 110_000), 3);
    assert_eq!(
        age(&mut world, &mut client, 110_000),
        3,
        "its time begins anew"
    );
    assert_eq!(age(&mut world, &mut client, 190_000), -1);
    one(&mut world, &client, 1, 3);
    assert_eq!(receipts(&mut world, &mut client), [(3, false)]);
}

/// A marker is stored whatever its id.
#[test]
fn without_it_ids_mean_nothing() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    assert_eq!(open(&mut world, &mut client, &topic, 1, "p"), -1);
    for sequence in [5, 4, 4] {
        one(&mut world, &client, 1, sequence);
    }
    assert_eq!(
        receipts(&mut world, &mut client),
        [(5, true), (4, true), (4, true)]
    );
}
