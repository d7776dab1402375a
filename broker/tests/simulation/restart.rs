//! Ledgers, checkpoints, and what a restart finds.

use vela_broker::store::memory::Kept;
use vela_broker::store::wal::Wal;
use vela_proto::base_command::Type;

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

pub(crate) fn small() -> WorldConfig {
    let mut config = WorldConfig::default();
    config.settings.managed_ledger_max_entries_per_ledger = 10;
    config.settings.checkpoint_interval_bytes = 64 << 10;
    config.lane.chunk_bytes = 4096;
    config.lane.cache_bytes = 64 << 10;
    config.wal.segment_bytes = 64 << 10;
    config.wal.unacked_bytes_max = 1 << 20;
    config
}

#[test]
fn ledgers_roll_and_are_trimmed_when_every_cursor_has_passed() {
    let mut world = World::new(small());
    let topic = world.topic_on(1, "t");
    let (_, shard) = world.home(&topic);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.subscribe(&mut world, &topic, "slow", false, 8);
    client.flow(&mut world, 7, 100_000);
    let text = "w".repeat(3000);
    let mut ledgers = std::collections::BTreeSet::new();
    for i in 0..200 {
        client.send(&mut world, 1, i, &text);
        let (_, ledger, entry) = client.receipt(&mut world);
        ledgers.insert(ledger);
        assert_eq!(entry, i % 10);
        let got = client.messages(&mut world);
        client.ack(&mut world, 7, got.iter().map(|m| m.id()).collect(), false);
    }
    assert_eq!(ledgers.len(), 20);
    assert!(world.checkpoints_done > 3, "{}", world.checkpoints_done);
    assert_eq!(
        world.dropped_segments, 0,
        "the slow subscription holds them"
    );
    // It reads what has left the memory.
    client.flow(&mut world, 8, 100_000);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 200);
    assert!(world.reads_done > 10, "{}", world.reads_done);
    client.ack(&mut world, 8, vec![got[199].id()], true);
    for i in 200..260 {
        client.send(&mut world, 1, i, &text);
        client.receipt(&mut world);
        let got = client.messages(&mut world);
        for consumer in [7, 8] {
            client.ack(
                &mut world,
                consumer,
                got.iter()
                    .filter(|m| m.consumer == consumer)
                    .map(|m| m.id())
                    .collect(),
                false,
            );
        }
    }
    assert!(world.dropped_segments > 8, "{}", world.dropped_segments);
    let left: u64 = world
        .wal(shard)
        .segments()
        .iter()
        .map(|segment| segment.bytes)
        .sum();
    assert!(left < 400 << 10, "{left} bytes are left");
    world.restart();
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100);
    client.expect_silence(&mut world);
}

#[test]
fn a_restart_keeps_topics_subscriptions_cursors_and_batches() {
    for clean in [true, false] {
        let mut world = World::new(small());
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, 0);
        let name = client.producer(&mut world, &topic, 1);
        // Without a subscription nothing would be kept beyond the ledger.
        client.subscribe(&mut world, &topic, "s", true, 7);
        for i in 0..25 {
            client.send_batch(&mut world, 1, i, 10, &format!("m{i:02}"));
        }
        client.flow(&mut world, 7, 1000);
        let got = client.messages(&mut world);
        assert_eq!(got.len(), 25);
        // All but 3, 4 and 20; of 4 a half.
        let mut acks: Vec<_> = got
            .iter()
            .enumerate()
            .filter(|(i, _)| ![3, 4, 20].contains(i))
            .map(|(_, m)| m.id())
            .collect();
        let mut half = got[4].id();
        half.ack_set = vec![0b11111];
        acks.push(half);
        client.ack(&mut world, 7, acks, false);
        if clean {
            world.restart();
        } else {
            world.crash(|_, _| Kept::Nothing);
        }
        assert_eq!(
            (world.totals().topics, world.totals().subscriptions),
            (1, 1)
        );
        let mut client = Client::connect(&mut world, 1);
        client.subscribe(&mut world, &topic, "s", true, 7);
        client.flow(&mut world, 7, 1000);
        let got = client.messages(&mut world);
        let seen: Vec<_> = got
            .iter()
            .map(|m| (m.text(), m.permits.unwrap(), m.ack_set.clone()))
            .collect();
        let whole = Vec::<i64>::new();
        let expected = [
            ("m03".to_owned(), 10, whole.clone()),
            ("m04".to_owned(), 5, vec![0b11111]),
            ("m20".to_owned(), 10, whole),
        ];
        assert_eq!(seen, expected);
        assert_ne!(
            client.producer(&mut world, &topic, 1),
            name,
            "a generated name is never used again"
        );
        client.send(&mut world, 1, 0, "new");
        assert_eq!(client.texts(&mut world), ["new"]);
    }
}

/// A receipt is a promise; a message without one may be there or not.
#[test]
fn what_was_not_synced_was_not_acknowledged() {
    for keep in [
        Kept::Nothing,
        Kept::Prefix(4096),
        Kept::Prefix(200),
        Kept::All,
    ] {
        let mut world = World::new(small());
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, 0);
        client.producer(&mut world, &topic, 1);
        client.send(&mut world, 1, 0, "safe");
        client.receipt(&mut world);
        world.disk_paused = true;
        for i in 1..5 {
            client.send(&mut world, 1, i, "unsafe");
        }
        client.expect_silence(&mut world);
        world.crash(|_, _| keep);
        world.disk_paused = false;
        let mut client = Client::connect(&mut world, 0);
        client.subscribe(&mut world, &topic, "s", false, 7);
        client.flow(&mut world, 7, 100);
        let texts = client.texts(&mut world);
        assert_eq!(texts[0], "safe");
        match keep {
            Kept::Nothing => assert_eq!(texts.len(), 1),
            Kept::All => assert_eq!(texts.len(), 5),
            Kept::Prefix(_) => assert!(texts.len() <= 5),
        }
    }
}

#[test]
fn sixty_thousand_holes_survive() {
    let mut config = WorldConfig::default();
    config.settings.max_unacked_messages_per_consumer = 0;
    config.settings.max_unacked_messages_per_subscription = 0;
    config.settings.max_pending_publish_requests_per_connection = 0;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 1_000_000);
    for i in 0..120_000 {
        client.send(&mut world, 1, i, "h");
    }
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 120_000);
    client.inbox.clear();
    for part in got.chunks(10_000) {
        client.ack(
            &mut world,
            7,
            part.iter().skip(1).step_by(2).map(|m| m.id()).collect(),
            false,
        );
    }
    for clean in [false, true] {
        if clean {
            world.restart();
        } else {
            world.crash(|_, _| Kept::Nothing);
        }
        let mut client = Client::connect(&mut world, 0);
        client.subscribe(&mut world, &topic, "s", true, 7);
        client.flow(&mut world, 7, 1_000_000);
        let again = client.messages(&mut world);
        assert_eq!(again.len(), 60_000);
        assert!(
            again
                .iter()
                .zip(got.iter().step_by(2))
                .all(|(a, b)| (a.ledger, a.entry) == (b.ledger, b.entry))
        );
        client.say(&mut world, &say::stats(7, 5));
        let stats = client
            .expect(&mut world, Type::ConsumerStatsResponse)
            .command
            .consumer_stats_response
            .unwrap();
        assert_eq!(stats.msg_backlog, Some(60_000));
    }
}

/// A cumulative acknowledgment whose set leaves the last messages of a batch out clears nothing below its highest open message.
#[test]
fn a_cumulative_ack_of_the_end_of_a_batch_is_kept() {
    for clean in [true, false] {
        let mut world = World::new(small());
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, 0);
        client.producer(&mut world, &topic, 1);
        client.subscribe(&mut world, &topic, "s", false, 7);
        for i in 0..2 {
            client.send_batch(&mut world, 1, i, 10, "m");
        }
        client.flow(&mut world, 7, 1000);
        let got = client.messages(&mut world);
        // What is in front of it is acknowledged already.
        client.ack(&mut world, 7, vec![got[0].id()], true);
        let mut id = got[1].id();
        id.ack_set = vec![0b1_1111];
        client.ack(&mut world, 7, vec![id.clone()], true);
        // A second time it changes nothing, and loses nothing.
        client.ack(&mut world, 7, vec![id], true);
        if clean {
            world.restart();
        } else {
            world.crash(|_, _| Kept::Nothing);
        }
        let mut client = Client::connect(&mut world, 1);
        client.subscribe(&mut world, &topic, "s", false, 7);
        client.flow(&mut world, 7, 1000);
        let got = client.messages(&mut world);
        assert_eq!(got.len(), 1);
        assert_eq!(
            (got[0].permits, got[0].ack_set.clone()),
            (Some(5), vec![0b1_1111])
        );
    }
}

/// What a seek into a batch leaves out is neither delivered nor counted.
#[test]
fn a_seek_into_a_batch_counts_what_is_delivered() {
    let mut world = World::new(small());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", true, 7);
    for i in 0..5 {
        client.send_batch(&mut world, 1, i, 10, "m");
    }
    client.flow(&mut world, 7, 1000);
    let mut id = client.messages(&mut world)[0].id();
    id.ack_set = vec![0b11_1110_0000];
    let request = client.request();
    client.say(&mut world, &say::seek_id(7, request, id));
    client.success(&mut world, request);
    client.subscribe(&mut world, &topic, "s", true, 8);
    client.flow(&mut world, 8, 1000);
    let got = client.messages(&mut world);
    assert_eq!(got.iter().map(|m| m.permits.unwrap()).sum::<u32>(), 45);
    let request = client.request();
    client.say(&mut world, &say::stats(8, request));
    let stats = client.expect(&mut world, Type::ConsumerStatsResponse);
    let stats = stats.command.consumer_stats_response.unwrap();
    assert_eq!(stats.unacked_messages, Some(45));
}
