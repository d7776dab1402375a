//! Consumers: permits, subscription types, acknowledgment, redelivery, seeking, readers.

use vela_proto::{ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

/// A world with a topic on core 1 and a client on core 0 that has published `texts`.
pub fn filled(texts: &[&str]) -> (World, String, Client) {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for (i, text) in (0..).zip(texts) {
        client.send(&mut world, 1, i, text);
        client.receipt(&mut world);
    }
    (world, topic, client)
}

#[test]
fn as_many_as_permits_allow() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c", "d", "e"]);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.expect_silence(&mut world);
    client.flow(&mut world, 7, 2);
    assert_eq!(client.texts(&mut world), ["a", "b"]);
    client.flow(&mut world, 7, 1);
    client.flow(&mut world, 7, 1);
    assert_eq!(client.texts(&mut world), ["c", "d"]);
    client.flow(&mut world, 7, 100);
    assert_eq!(client.texts(&mut world), ["e"]);
}

/// One permit buys a batch of ten, and the nine too many are owed.
#[test]
fn a_batch_larger_than_the_credit_is_owed() {
    for shared in [false, true] {
        let (mut world, topic, mut client) = filled(&[]);
        for i in 0..3 {
            client.send_batch(&mut world, 1, i, 10, &format!("b{i}"));
        }
        client.subscribe(&mut world, &topic, "s", shared, 7);
        client.flow(&mut world, 7, 1);
        let got = client.messages(&mut world);
        assert_eq!((got.len(), got[0].permits), (1, Some(10)));
        client.flow(&mut world, 7, 9);
        client.say(&mut world, &say::stats(7, 70));
        let stats = client
            .expect(&mut world, Type::ConsumerStatsResponse)
            .command
            .consumer_stats_response
            .unwrap();
        assert_eq!(stats.available_permits, Some(0), "-9 and 9");
        assert!(client.messages(&mut world).is_empty());
        client.flow(&mut world, 7, 1);
        assert_eq!(client.texts(&mut world), ["b1"]);
        client.flow(&mut world, 7, 10);
        assert_eq!(client.texts(&mut world), ["b2"]);
    }
}

/// SUBSCRIBE and FLOW in one write, on the same core and on two.
#[test]
fn a_flow_right_behind_its_subscribe_counts() {
    for core in [0, 1] {
        let (mut world, topic, _) = filled(&["a", "b"]);
        let mut client = Client::connect(&mut world, core);
        client.say(
            &mut world,
            &say::subscribe_command(say::subscribe(&topic, "s", false, 7, 5)),
        );
        client.flow(&mut world, 7, 10);
        client.success(&mut world, 5);
        assert_eq!(client.texts(&mut world), ["a", "b"]);
    }
}

#[test]
fn the_subscribe_is_answered_before_its_messages() {
    let (mut world, topic, _) = filled(&["a"]);
    let mut client = Client::connect(&mut world, 0);
    client.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", false, 7, 5)),
    );
    client.flow(&mut world, 7, 10);
    world.run_until_idle();
    client.listen(&mut world);
    assert_eq!(client.kinds(), [Type::Success, Type::Message]);
}

/// A consumer id that is closed and opened again in one write is a new consumer with no permits of the old.
#[test]
fn a_consumer_id_is_used_again_in_one_write() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c"]);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 1);
    assert_eq!(client.texts(&mut world), ["a"]);
    client.flow(&mut world, 7, 1);
    client.say(&mut world, &say::close_consumer(7, 50));
    client.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", false, 7, 51)),
    );
    client.flow(&mut world, 7, 2);
    let texts = client.texts(&mut world);
    assert_eq!(texts.last().map(String::as_str), Some("b"), "{texts:?}");
    client.success(&mut world, 50);
    client.success(&mut world, 51);
    client.expect_silence(&mut world);
}

#[test]
fn an_exclusive_subscription_takes_one_consumer() {
    let (mut world, topic, mut client) = filled(&["a"]);
    client.subscribe(&mut world, &topic, "s", false, 7);
    // Another one of the same connection, another type, another connection.
    client.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", false, 8, 60)),
    );
    assert_eq!(client.error(&mut world, 60).0, ServerError::ConsumerBusy);
    let mut other = Client::connect(&mut world, 1);
    other.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", true, 8, 61)),
    );
    assert_eq!(other.error(&mut world, 61).0, ServerError::ConsumerBusy);
    other.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", false, 8, 62)),
    );
    client.expect(&mut world, Type::Ping);
    client.say(&mut world, &say::pong());
    assert_eq!(other.error(&mut world, 62).0, ServerError::ConsumerBusy);
    // A dead holder gives way, and the FLOW that waited counts.
    other.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", false, 8, 63)),
    );
    other.flow(&mut world, 8, 1);
    client.expect(&mut world, Type::Ping);
    world.advance(5_000);
    other.success(&mut world, 63);
    assert_eq!(other.texts(&mut world), ["a"]);
    assert!(!world.is_open(client.peer));
}

#[test]
fn a_shared_subscription_takes_turns_of_twenty() {
    let texts: Vec<String> = (0..60).map(|i| format!("{i:02}")).collect();
    let (mut world, topic, mut client) =
        filled(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let mut other = Client::connect(&mut world, 1);
    client.subscribe(&mut world, &topic, "s", true, 7);
    other.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 100);
    other.flow(&mut world, 7, 100);
    let (mine, theirs) = (client.texts(&mut world), other.texts(&mut world));
    assert_eq!(mine.len() + theirs.len(), 60);
    let mut all: Vec<String> = mine.iter().chain(&theirs).cloned().collect();
    all.sort_unstable();
    assert_eq!(all, texts, "each message once");
}

#[test]
fn redelivery_counts_rise_with_nacks_and_not_with_disconnects() {
    let (mut world, topic, mut client) = filled(&["a", "b"]);
    let mut other = Client::connect(&mut world, 1);
    other.subscribe(&mut world, &topic, "s", true, 7);
    other.flow(&mut world, 7, 10);
    let mut got = other.messages(&mut world);
    assert_eq!(
        got.iter().map(|m| m.redelivery_count).collect::<Vec<_>>(),
        [0, 0]
    );
    for count in 1..4 {
        other.say(&mut world, &say::redeliver(7, vec![got[0].id()], None));
        got = other.messages(&mut world);
        assert_eq!(
            got.iter()
                .map(|m| (m.text(), m.redelivery_count))
                .collect::<Vec<_>>(),
            [("a".to_owned(), count)]
        );
    }
    client.subscribe(&mut world, &topic, "s", true, 9);
    client.flow(&mut world, 9, 10);
    assert!(client.messages(&mut world).is_empty());
    world.cut(other.peer);
    let got = client.messages(&mut world);
    let seen: Vec<_> = got.iter().map(|m| (m.text(), m.redelivery_count)).collect();
    assert_eq!(seen, [("a".to_owned(), 3), ("b".to_owned(), 0)]);
    client.ack(&mut world, 9, got.iter().map(|m| m.id()).collect(), false);
    client.say(&mut world, &say::redeliver(9, vec![], None));
    client.expect_silence(&mut world);
}

/// Exclusive: everything unacknowledged comes again, with the new epoch.
#[test]
fn redelivery_on_an_exclusive_subscription_starts_at_the_mark_delete_position() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c"]);
    let mut subscribe = say::subscribe(&topic, "s", false, 7, 5);
    subscribe.consumer_epoch = Some(0);
    client.say(&mut world, &say::subscribe_command(subscribe));
    client.success(&mut world, 5);
    client.flow(&mut world, 7, 10);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 3);
    client.ack(&mut world, 7, vec![got[1].id()], false);
    client.say(&mut world, &say::redeliver(7, vec![], Some(1)));
    let again = client.messages(&mut world);
    assert_eq!(
        again
            .iter()
            .map(|m| (m.text(), m.epoch))
            .collect::<Vec<_>>(),
        [("a".to_owned(), Some(1)), ("c".to_owned(), Some(1))]
    );
}

#[test]
fn a_batch_acknowledged_in_part_comes_again_with_the_rest() {
    for shared in [false, true] {
        let (mut world, topic, mut client) = filled(&[]);
        client.send_batch(&mut world, 1, 0, 10, "b");
        client.receipt(&mut world);
        client.subscribe(&mut world, &topic, "s", shared, 7);
        client.flow(&mut world, 7, 10);
        let got = client.messages(&mut world);
        let mut part = got[0].id();
        part.ack_set = vec![0b1111110000];
        client.ack(&mut world, 7, vec![part.clone()], false);
        part.ack_set = vec![0b1111101111];
        client.ack(&mut world, 7, vec![part], false);
        client.say(&mut world, &say::redeliver(7, vec![got[0].id()], None));
        client.flow(&mut world, 7, 10);
        let again = client.messages(&mut world);
        assert_eq!(
            (again.len(), again[0].permits, again[0].ack_set.clone()),
            (1, Some(5), vec![0b1111100000])
        );
        let mut rest = got[0].id();
        rest.ack_set = vec![0b0000011111];
        client.ack(&mut world, 7, vec![rest], false);
        client.say(&mut world, &say::redeliver(7, vec![], None));
        client.expect_silence(&mut world);
        client.say(&mut world, &say::stats(7, 70));
        let stats = client
            .expect(&mut world, Type::ConsumerStatsResponse)
            .command
            .consumer_stats_response
            .unwrap();
        assert_eq!(
            (stats.unacked_messages, stats.msg_backlog),
            (Some(0), Some(0))
        );
    }
}

#[test]
fn cumulative_acks_move_the_mark() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c", "d"]);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 10);
    let got = client.messages(&mut world);
    client.ack(&mut world, 7, vec![got[2].id()], true);
    // Behind the mark, and beyond the end.
    client.say(&mut world, &say::ack(7, vec![got[0].id()], true, Some(90)));
    let answer = client
        .expect(&mut world, Type::AckResponse)
        .command
        .ack_response
        .unwrap();
    assert_eq!(answer.error, Some(ServerError::UnknownError as i32));
    client.say(
        &mut world,
        &say::ack(7, vec![say::id(got[3].ledger, 1000)], true, Some(91)),
    );
    let answer = client
        .expect(&mut world, Type::AckResponse)
        .command
        .ack_response
        .unwrap();
    assert_eq!(answer.error, Some(ServerError::UnknownError as i32));
    client.say(&mut world, &say::close_consumer(7, 92));
    client.success(&mut world, 92);
    client.subscribe(&mut world, &topic, "s", false, 8);
    client.flow(&mut world, 8, 10);
    assert_eq!(client.texts(&mut world), ["d"]);
}

#[test]
fn unsubscribing() {
    let (mut world, topic, mut client) = filled(&["a"]);
    let mut other = Client::connect(&mut world, 1);
    client.subscribe(&mut world, &topic, "s", true, 7);
    other.subscribe(&mut world, &topic, "s", true, 7);
    client.say(&mut world, &say::unsubscribe(7, 80, false));
    assert_eq!(client.error(&mut world, 80).0, ServerError::MetadataError);
    client.say(&mut world, &say::unsubscribe(7, 81, true));
    client.success(&mut world, 81);
    client.expect_silence(&mut world);
    other.expect(&mut world, Type::CloseConsumer);
    assert_eq!(
        (world.totals().subscriptions, world.totals().consumers),
        (0, 0)
    );
    client.say(&mut world, &say::unsubscribe(7, 82, false));
    assert_eq!(client.error(&mut world, 82).0, ServerError::MetadataError);
    // The name is free, and starts anew.
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 10);
    assert_eq!(client.texts(&mut world), ["a"]);
}

/// A consumer whose client does not read is sent no more than its window; the broker's memory stays bounded.
#[test]
fn a_client_that_does_not_read_is_sent_a_window_only() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    let text = "z".repeat(100_000);
    for i in 0..100 {
        client.send(&mut world, 1, i, &text);
        client.receipt(&mut world);
    }
    let mut slow = Client::connect(&mut world, 1);
    slow.subscribe(&mut world, &topic, "s", false, 7);
    world.conns[slow.peer.0].stuck = true;
    slow.flow(&mut world, 7, 1000);
    world.run_until_idle();
    let waits = world.output_len(slow.peer);
    assert!((1 << 20..2 << 20).contains(&waits), "{waits} bytes wait");
    world.conns[slow.peer.0].stuck = false;
    assert_eq!(slow.texts(&mut world).len(), 100);
}

/// The limit of unacknowledged messages stops a consumer, acknowledging half of it lets it go on; parked permits count then.
#[test]
fn unacknowledged_messages_stop_a_shared_consumer() {
    let mut config = WorldConfig::default();
    config.settings.max_unacked_messages_per_consumer = 10;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for i in 0..30 {
        client.send(&mut world, 1, i, &format!("{i}"));
    }
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 15);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 10);
    client.flow(&mut world, 7, 10);
    assert!(client.messages(&mut world).is_empty());
    client.ack(
        &mut world,
        7,
        got[..4].iter().map(|m| m.id()).collect(),
        false,
    );
    assert!(client.messages(&mut world).is_empty());
    client.ack(
        &mut world,
        7,
        got[4..5].iter().map(|m| m.id()).collect(),
        false,
    );
    assert_eq!(
        client.messages(&mut world).len(),
        5,
        "up to the limit again"
    );
}

/// What was asked right behind a SUBSCRIBE that is refused is answered all the same.
#[test]
fn questions_behind_a_refused_subscribe_are_answered() {
    let (mut world, topic, mut holder) = filled(&["a"]);
    holder.subscribe(&mut world, &topic, "s", false, 7);
    let mut client = Client::connect(&mut world, 1);
    client.say(
        &mut world,
        &say::subscribe_command(say::subscribe(&topic, "s", false, 8, 62)),
    );
    client.say(&mut world, &say::last_message_id(8, 63));
    holder.expect(&mut world, Type::Ping);
    holder.say(&mut world, &say::pong());
    let mut answered: Vec<u64> = (0..2)
        .map(|_| {
            client
                .expect(&mut world, Type::Error)
                .command
                .error
                .unwrap()
                .request_id
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, [62, 63]);
}
