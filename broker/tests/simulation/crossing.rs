//! What crosses: something is under way when something else takes away what it is about.

use vela_broker::engine::admin::{Answer, Ask, SubscriptionAsk};
use vela_broker::store::memory::Kept;
use vela_proto::{ServerError, base_command::Type};

use super::consume::filled;
use super::restart::small;
use crate::harness::client::{Client, say};
use crate::harness::{Step, World, WorldConfig};

/// Everything happens that can, but for steps of one kind.
fn run_without(world: &mut World, held: impl Fn(&Step) -> bool) {
    for _ in 0..100_000 {
        let steps: Vec<Step> = world.steps().into_iter().filter(|s| !held(s)).collect();
        let Some(step) = steps.first() else {
            return;
        };
        world.apply(*step, usize::MAX);
    }
    panic!("the world does not come to rest");
}

/// The connection goes while CLOSE_PRODUCER waits for a message that is not on disk: the name is free for the next one.
#[test]
fn a_name_whose_close_waits_for_the_disk_goes_with_its_connection() {
    for core in [0, 1] {
        let mut world = World::new(WorldConfig::default());
        let topic = world.topic_on(0, "t");
        let client = Client::connect(&mut world, core);
        client.say(&mut world, &say::producer(&topic, 1, 1, Some("name")));
        world.run_until_idle();
        world.disk_paused = true;
        client.send(&mut world, 1, 0, "a");
        client.say(&mut world, &say::close_producer(1, 2));
        world.run_until_idle();
        world.cut(client.peer);
        let mut next = Client::connect(&mut world, core);
        next.say(&mut world, &say::producer(&topic, 1, 3, Some("name")));
        world.run_until_idle();
        world.disk_paused = false;
        next.expect(&mut world, Type::ProducerSuccess);
        next.send(&mut world, 1, 0, "b");
        assert_eq!(next.receipt(&mut world).0, 0);
    }
}

/// SEEK into a batch that is gone, or beyond the end, says nothing about the messages of another entry.
#[test]
fn the_ack_set_of_a_seek_is_about_its_own_entry_only() {
    let (mut world, topic, mut client) = filled(&[]);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.send_batch(&mut world, 1, 0, 10, "a");
    let (_, ledger, _) = client.receipt(&mut world);
    let mut gone = say::id(ledger - 1, 4);
    gone.ack_set = vec![0b1000];
    client.say(&mut world, &say::seek_id(7, 100, gone));
    client.success(&mut world, 100);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100);
    let got = client.messages(&mut world);
    assert_eq!((got.len(), got[0].permits), (1, Some(10)), "{got:?}");
    assert!(got[0].ack_set.is_empty());
    // Beyond the end, while the next entry is on its way to the disk.
    world.disk_paused = true;
    client.send_batch(&mut world, 1, 1, 10, "b");
    world.run_until_idle();
    let mut beyond = say::id(ledger, 70);
    beyond.ack_set = vec![0b1000];
    client.say(&mut world, &say::seek_id(7, 101, beyond));
    world.run_until_idle();
    world.disk_paused = false;
    client.success(&mut world, 101);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100);
    let got = client.messages(&mut world);
    assert_eq!((got.len(), got[0].permits), (1, Some(10)), "{got:?}");
    // And where it is the entry that was meant, it counts.
    let mut within = say::id(ledger, 1);
    within.ack_set = vec![0b1000];
    client.say(&mut world, &say::seek_id(7, 102, within));
    client.success(&mut world, 102);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100);
    let got = client.messages(&mut world);
    assert_eq!((got.len(), got[0].permits), (1, Some(1)), "{got:?}");
}

/// Consumer 8: a Shared reader from the beginning.
fn read_all(world: &mut World, client: &mut Client, topic: &str) {
    let mut reads = say::subscribe(topic, "reads", true, 8, 8);
    reads.durable = Some(false);
    reads.start_message_id = Some(say::id(u64::MAX, u64::MAX));
    client.say(world, &say::subscribe_command(reads));
    client.success(world, 8);
    client.flow(world, 8, 1000);
}

/// Readers do not keep ledgers. What a Shared one holds of a ledger that is gone is acknowledged all the same, and makes room.
#[test]
fn what_is_held_of_a_ledger_that_is_gone_can_be_acknowledged() {
    let mut config = small();
    config.settings.max_unacked_messages_per_consumer = 5;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 1000);
    read_all(&mut world, &mut client, &topic);
    let mut held = Vec::new();
    for i in 0..35 {
        client.send(&mut world, 1, i, &format!("{i:02}"));
        client.receipt(&mut world);
        for got in client.messages(&mut world) {
            match got.consumer {
                7 => client.ack(&mut world, 7, vec![got.id()], false),
                _ => held.push(got.id()),
            }
        }
    }
    assert_eq!(held.len(), 5, "the consumer is blocked");
    client.ack(&mut world, 8, held, false);
    let texts = client.texts(&mut world);
    assert_eq!(texts.len(), 5, "{texts:?}");
}

/// A topic of 50 messages, one a second, of which few are in memory; `name` is subscribed to it.
fn old_messages(name: &str) -> (World, String, Client) {
    let mut config = WorldConfig::default();
    config.lane.chunk_bytes = 4096;
    config.lane.cache_bytes = 8192;
    let mut world = World::new(config);
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, name, false, 7);
    let text = "o".repeat(1000);
    for i in 0..50 {
        client.send(&mut world, 1, i, &text);
        client.receipt(&mut world);
        world.now.wall_ms += 1000;
    }
    (world, topic, client)
}

/// Deletes subscription `s` while a place in it is being looked for.
fn delete_while_looked_for(world: &mut World, topic: &str) {
    run_without(world, |step| matches!(step, Step::ReadBack(_)));
    let ask = Ask::Subscription {
        name: "s".into(),
        ask: SubscriptionAsk::Delete { force: true },
    };
    let answer = world.ask(topic, ask);
    assert!(matches!(answer, Some(Answer::Done)), "{answer:?}");
}

/// Who seeks, and whose subscription is deleted while the place is being looked for, gets an answer.
#[test]
fn a_seek_whose_subscription_is_deleted_is_answered() {
    let (mut world, topic, mut client) = old_messages("s");
    let middle = world.now.wall_ms - 25_000;
    client.say(&mut world, &say::seek_time(7, 70, middle));
    delete_while_looked_for(&mut world, &topic);
    let (error, text) = client.error(&mut world, 70);
    assert_eq!(error, ServerError::MetadataError, "{text}");
    assert!(text.contains("deleted"), "{text}");
}

/// The same of a reader that starts some time back.
#[test]
fn a_reader_whose_subscription_is_deleted_while_it_starts_is_answered() {
    let (mut world, topic, mut client) = old_messages("keeps");
    let mut reads = say::subscribe(&topic, "s", false, 8, 71);
    reads.durable = Some(false);
    reads.start_message_rollback_duration_sec = Some(20);
    client.say(&mut world, &say::subscribe_command(reads));
    delete_while_looked_for(&mut world, &topic);
    client.error(&mut world, 71);
}

/// A checkpoint ends while acknowledgments are on their way to the disk. What they let go of stays until they are safe: they may be lost, and
/// then everything comes again.
#[test]
fn no_segment_goes_for_acknowledgments_that_can_still_be_lost() {
    let mut config = small();
    config.cores = 1;
    config.shards = 1;
    let mut world = World::new(config);
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100_000);
    let text = "w".repeat(3000);
    let mut got = Vec::new();
    for i in 0..100 {
        client.send(&mut world, 1, i, &text);
        run_without(&mut world, |step| matches!(step, Step::Checkpoint(_)));
        client.receipt(&mut world);
        got.extend(client.messages(&mut world));
    }
    assert_eq!(got.len(), 100);
    // A checkpoint is under way: begun before the acknowledgment, over behind it.
    while !world.steps().contains(&Step::Checkpoint(0)) {
        client.send(&mut world, 1, 100, &text);
        run_without(&mut world, |step| matches!(step, Step::Checkpoint(_)));
    }
    world.disk_paused = true;
    let request = client.request();
    let last = got[99].id();
    client.say(&mut world, &say::ack(7, vec![last], true, Some(request)));
    run_without(&mut world, |step| matches!(step, Step::Checkpoint(_)));
    world.run_until_idle();
    assert!(world.checkpoints_done > 0);
    assert_eq!(world.dropped_segments, 0);
    world.crash(|_, _| Kept::Nothing);
    world.disk_paused = false;
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 100_000);
    let again = client.messages(&mut world);
    assert!(again.len() >= 100, "{} of 100 are left", again.len());
}

/// A cumulative acknowledgment within a batch counts however many messages the batch has.
#[test]
fn a_cumulative_ack_within_a_large_batch_counts() {
    let (mut world, topic, mut client) = filled(&["a"]);
    client.send_batch(&mut world, 1, 1, 3000, "b");
    client.receipt(&mut world);
    client.subscribe(&mut world, &topic, "s", false, 7);
    client.flow(&mut world, 7, 10_000);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 2);
    let mut half = got[1].id();
    half.ack_set = vec![-1; 47];
    half.ack_set[0] = 0;
    half.ack_set[46] = (1 << (3000 - 46 * 64)) - 1;
    client.ack(&mut world, 7, vec![half], true);
    client.say(&mut world, &say::redeliver(7, Vec::new(), None));
    let again = client.messages(&mut world);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0].permits, Some(3000 - 64));
}

/// The broker's limit has stopped a subscription; the reader that held the rest goes. The subscription goes on.
#[test]
fn a_reader_that_goes_frees_those_that_the_limit_of_the_broker_has_stopped() {
    let mut config = WorldConfig {
        cores: 1,
        shards: 1,
        ..WorldConfig::default()
    };
    config.settings.max_unacked_messages_per_broker = 100;
    config
        .settings
        .max_unacked_messages_per_subscription_on_broker_blocked = 0.16;
    let mut world = World::new(config);
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for i in 0..200 {
        client.send(&mut world, 1, i, "m");
    }
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 20);
    assert_eq!(client.messages(&mut world).len(), 20);
    read_all(&mut world, &mut client, &topic);
    assert_eq!(
        client.messages(&mut world).len(),
        80,
        "the limit is reached"
    );
    client.flow(&mut world, 7, 10);
    assert!(client.messages(&mut world).is_empty(), "it is stopped");
    client.say(&mut world, &say::close_consumer(8, 80));
    client.success(&mut world, 80);
    assert_eq!(client.messages(&mut world).len(), 10, "it goes on");
}

/// With a small `maxMessageSize` the log still takes everything that one frame can bring.
#[test]
fn acknowledgments_are_stored_where_messages_are_small() {
    let mut config = WorldConfig::default();
    config.settings.max_message_size = 1024;
    config.lane.max_entry = 1024 + 10_240;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 1000);
    for i in 0..700 {
        client.send(&mut world, 1, i, "m");
    }
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 700);
    let ids = got.iter().map(|m| m.id()).collect();
    client.ack(&mut world, 7, ids, false);
    world.crash(|_, _| Kept::Nothing);
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 1000);
    assert_eq!(client.messages(&mut world).len(), 0);
}

/// SENDs that cross the broker's CLOSE_PRODUCER are dropped without an answer. They count no longer, neither for their connection nor for the
/// core.
#[test]
fn sends_that_meet_no_producer_any_more_wait_for_nothing() {
    for core in [0, 1] {
        let mut config = WorldConfig::default();
        config.settings.max_pending_publish_requests_per_connection = 10;
        config.settings.max_message_publish_buffer_bytes = 200_000;
        let mut world = World::new(config);
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, core);
        let mut other = Client::connect(&mut world, core);
        other.producer(&mut world, &topic, 1);
        let text = "w".repeat(10_000);
        for round in 0..5 {
            client.producer(&mut world, &topic, 1);
            for i in 0..10 {
                client.send(&mut world, 1, i, &text);
            }
            // The core of the topic hears of the unload first.
            let steps = world.steps();
            assert!(steps.contains(&Step::Read(client.peer)));
            let answer = unload_before(&mut world, &topic, client.peer);
            assert!(matches!(answer, Some(Answer::Done)), "{answer:?}");
            client.expect(&mut world, Type::CloseProducer);
            client.listen(&mut world);
            assert!(
                client.inbox.is_empty(),
                "round {round}: {:?}",
                client.kinds()
            );
            assert!(world.is_open(client.peer));
            assert!(world.wants_frames(client.peer), "round {round}");
            assert!(world.wants_frames(other.peer), "round {round}");
            client.producer(&mut world, &topic, 2);
            client.send(&mut world, 2, 0, "x");
            client.receipt(&mut world);
            other.listen(&mut world);
            other.inbox.clear();
            other.producer(&mut world, &topic, 1);
            other.send(&mut world, 1, round, "x");
            other.receipt(&mut world);
            let request = client.request();
            client.say(&mut world, &say::close_producer(2, request));
            client.success(&mut world, request);
        }
    }
}

/// Unloads a topic, and has its core carry that out before it sees what a client has sent meanwhile, while the client's session does not
/// hear of it yet.
fn unload_before(world: &mut World, topic: &str, peer: crate::harness::Peer) -> Option<Answer> {
    use vela_broker::engine::admin::{Asker, Request};
    let (home, _) = world.home(topic);
    let name = vela_broker::engine::name::TopicName::parse(topic).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let message = vela_broker::engine::Message::Admin {
        asker: Asker::new(move |answer| drop(sender.send(answer))),
        request: Box::new(Request::Topic {
            name,
            ask: Ask::Unload,
        }),
    };
    let now = world.now;
    world.engine_mut(home).mail(home, vec![message], now);
    if world.conns[peer.0].core != home {
        world.apply(Step::Turn(home), usize::MAX);
    }
    while world.steps().contains(&Step::Read(peer)) {
        world.apply(Step::Read(peer), usize::MAX);
    }
    world.run_until_idle();
    receiver.try_recv().ok()
}

/// The same of SENDs right behind a PRODUCER that is refused: that ends their connection, and nobody else's.
#[test]
fn sends_behind_a_producer_that_is_refused_hold_nobody() {
    for core in [0, 1] {
        let mut config = WorldConfig::default();
        config.settings.max_producers_per_topic = 1;
        config.settings.max_message_publish_buffer_bytes = 200_000;
        let mut world = World::new(config);
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, core);
        client.producer(&mut world, &topic, 1);
        let text = "w".repeat(10_000);
        for round in 0..20 {
            let bad = Client::connect(&mut world, core);
            bad.say(&mut world, &say::producer(&topic, 1, 1, None));
            for i in 0..5 {
                bad.send(&mut world, 1, i, &text);
            }
            world.run_until_idle();
            assert!(!world.is_open(bad.peer));
            client.send(&mut world, 1, round, "x");
            client.receipt(&mut world);
        }
    }
}

/// Where a log has failed for good, acknowledgments are not kept for it, and do not end up holding their connection.
#[test]
fn acknowledgments_for_a_log_that_failed_hold_nobody() {
    let mut config = WorldConfig::default();
    config.lane.chunk_bytes = 4096;
    config.lane.budget_bytes = 64 << 10;
    let mut world = World::new(config);
    let topic = world.topic_on(0, "t");
    let sound = world.topic_on(1, "t");
    let (_, shard) = world.home(&topic);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.producer(&mut world, &sound, 2);
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 10_000);
    for i in 0..4000 {
        client.send(&mut world, 1, i, "m");
        if i % 500 == 0 {
            world.run_until_idle();
        }
    }
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 4000);
    client.listen(&mut world);
    client.inbox.clear();
    world.break_disk(shard);
    client.send(&mut world, 1, 4000, "lost");
    client.expect(&mut world, Type::SendError);
    for one in &got {
        client.say(&mut world, &say::ack(7, vec![one.id()], false, None));
    }
    world.run_until_idle();
    client.send(&mut world, 2, 0, "x");
    client.receipt(&mut world);
}

/// The same where the client has opened its producer again before the topic's core came to the SENDs of the old one.
#[test]
fn sends_of_a_closed_producer_do_not_end_the_connection_of_its_successor() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.send(&mut world, 1, 0, "a");
    let behind = |step: &Step| *step == Step::Mail(0, 1);
    run_without(&mut world, behind);
    let name = vela_broker::engine::name::TopicName::parse(&topic).unwrap();
    let message = vela_broker::engine::Message::Admin {
        asker: vela_broker::engine::admin::Asker::new(drop),
        request: Box::new(vela_broker::engine::admin::Request::Topic {
            name,
            ask: Ask::Unload,
        }),
    };
    let now = world.now;
    world.engine_mut(1).mail(1, vec![message], now);
    run_without(&mut world, behind);
    client.listen(&mut world);
    assert_eq!(client.kinds(), [Type::CloseProducer]);
    client.inbox.clear();
    client.say(&mut world, &say::producer(&topic, 1, 50, None));
    run_without(&mut world, behind);
    client.expect(&mut world, Type::ProducerSuccess);
    assert!(world.is_open(client.peer));
    client.send(&mut world, 1, 1, "b");
    assert_eq!(client.receipt(&mut world).0, 1);
    // Who closes its producer itself must not send any more.
    client.say(&mut world, &say::close_producer(1, 51));
    client.success(&mut world, 51);
    client.send(&mut world, 1, 2, "c");
    world.run_until_idle();
    assert!(!world.is_open(client.peer));
}

/// A reader that waits for a seek of others, and whose subscription is deleted before that ends, makes a subscription of its own.
#[test]
fn who_waits_for_a_reset_survives_the_deletion_of_the_subscription() {
    let mut config = WorldConfig::default();
    config.lane.chunk_bytes = 4096;
    config.lane.cache_bytes = 8192;
    let mut world = World::new(config);
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "keeps", false, 5);
    let text = "o".repeat(1000);
    for i in 0..50 {
        client.send(&mut world, 1, i, &text);
        client.receipt(&mut world);
    }
    let failover = |id: u64| {
        let mut reads = say::subscribe(&topic, "s", false, id, id);
        reads.sub_type = vela_proto::command_subscribe::SubType::Failover as i32;
        reads.durable = Some(false);
        reads.start_message_id = Some(say::id(u64::MAX, u64::MAX));
        reads.consumer_name = Some(format!("c{id}"));
        say::subscribe_command(reads)
    };
    for id in [10, 11] {
        client.say(&mut world, &failover(id));
        client.success(&mut world, id);
    }
    world.advance(2_000);
    world.run_until_idle();
    client.listen(&mut world);
    let active = client.inbox.iter().find_map(|i| {
        let change = i.command.active_consumer_change.as_ref()?;
        (change.is_active == Some(true)).then_some(change.consumer_id)
    });
    client.inbox.clear();
    let time = world.now.wall_ms;
    client.say(&mut world, &say::seek_time(active.unwrap(), 70, time));
    client.say(&mut world, &failover(12));
    run_without(&mut world, |step| matches!(step, Step::ReadBack(_)));
    let ask = Ask::Subscription {
        name: "s".into(),
        ask: SubscriptionAsk::Delete { force: true },
    };
    world.ask(&topic, ask);
    client.success(&mut world, 12);
    client.flow(&mut world, 12, 100);
    world.run_until_idle();
    world.advance(2_000);
    assert_eq!(client.messages(&mut world).len(), 50);
}
