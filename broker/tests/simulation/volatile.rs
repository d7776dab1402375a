//! Non-persistent topics: who gets an entry, what is dropped, what is left of it all.

use vela_broker::engine::{Metadata, Settings, TerminateError, name::TopicName};
use vela_broker::store::wal::Wal;
use vela_proto::base_command::Type;
use vela_proto::command_get_topics_of_namespace::Mode;
use vela_proto::command_subscribe::SubType;
use vela_proto::{self as proto, BaseCommand, ServerError};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

const TYPES: [SubType; 4] = [
    SubType::Exclusive,
    SubType::Failover,
    SubType::Shared,
    SubType::KeyShared,
];

/// A non-persistent topic on a core.
fn topic_on(world: &World, core: u16) -> String {
    (0..)
        .map(|i| format!("non-persistent://public/default/v-{i}"))
        .find(|name| world.home(name).0 == core)
        .unwrap()
}

fn world(change: impl Fn(&mut Settings)) -> (World, String, Client) {
    let mut config = WorldConfig::default();
    change(&mut config.settings);
    let mut world = World::new(config);
    let topic = topic_on(&world, 1);
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    (world, topic, client)
}

fn join(client: &mut Client, world: &mut World, topic: &str, kind: SubType, id: u64, name: &str) {
    let request = client.request();
    let mut subscribe = say::subscribe(topic, "s", false, id, request);
    subscribe.sub_type = kind as i32;
    subscribe.consumer_name = Some(name.into());
    client.say(world, &say::subscribe_command(subscribe));
    client.success(world, request);
}

fn leave(client: &mut Client, world: &mut World, id: u64) {
    let request = client.request();
    client.say(world, &say::close_consumer(id, request));
    client.success(world, request);
}

/// Sends numbered messages and checks their receipts.
fn send(client: &mut Client, world: &mut World, numbers: std::ops::Range<u64>) {
    for n in numbers {
        client.send(world, 1, n, &n.to_string());
        assert_eq!(client.receipt(world), (n, 0, 0));
    }
}

fn seen(client: &mut Client, world: &mut World) -> Vec<(u64, String)> {
    let got = client.messages(world);
    got.iter().map(|m| (m.consumer, m.text())).collect()
}

fn dropped(world: &World) -> u64 {
    world.totals().counters.messages_dropped
}

fn stats(client: &mut Client, world: &mut World, id: u64) -> proto::CommandConsumerStatsResponse {
    client.say(world, &say::stats(id, 900));
    let answer = client.expect(world, Type::ConsumerStatsResponse);
    answer.command.consumer_stats_response.unwrap()
}

/// Two permits, four messages: two arrive, two are dropped, and nothing is in the log.
#[test]
fn credit_is_looked_at_before_every_entry() {
    for kind in TYPES {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, kind, 7, "x");
        send(&mut client, &mut world, 0..1);
        assert_eq!(dropped(&world), 1, "{kind:?}: nobody has credit yet");
        client.flow(&mut world, 7, 2);
        send(&mut client, &mut world, 1..5);
        let got = client.messages(&mut world);
        let texts: Vec<_> = got.iter().map(|m| m.text()).collect();
        assert_eq!(texts, ["1", "2"], "{kind:?}");
        for message in &got {
            assert_eq!((message.ledger, message.entry), (0, 0));
            let rest = (message.redelivery_count, message.permits, message.epoch);
            assert_eq!(rest, (0, Some(1), None));
        }
        assert_eq!(dropped(&world), 3);
        // Later credit brings nothing back.
        client.flow(&mut world, 7, 10);
        assert!(client.messages(&mut world).is_empty());
        let stats = stats(&mut client, &mut world, 7);
        assert_eq!(
            (stats.available_permits, stats.unacked_messages),
            (Some(10), Some(0))
        );
        assert_eq!(stats.msg_backlog, Some(0));
        for shard in 0..world.config.shards {
            assert!(world.wal(shard).next_seq() <= 1, "nothing is logged");
        }
        leave(&mut client, &mut world, 7);
        world.cut(client.peer);
        world.run_until_idle();
        assert_eq!(world.retained_bytes(), 0);
    }
}

#[test]
fn a_batch_larger_than_the_credit_is_owed() {
    for kind in TYPES {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, kind, 7, "x");
        client.flow(&mut world, 7, 5);
        for i in 0..2 {
            client.send_batch(&mut world, 1, i, 10, &format!("b{i}"));
            client.receipt(&mut world);
        }
        let got = client.messages(&mut world);
        assert_eq!((got.len(), got[0].permits), (1, Some(10)));
        assert_eq!(dropped(&world), 10);
        let stats = stats(&mut client, &mut world, 7);
        assert_eq!(stats.available_permits, Some(-5_i64 as u64));
        client.flow(&mut world, 7, 6);
        client.send_batch(&mut world, 1, 2, 10, "b2");
        assert_eq!(client.texts(&mut world), ["b2"]);
    }
}

#[test]
fn every_subscription_gets_its_own_and_one_without_credit_holds_nobody_up() {
    let (mut world, topic, mut client) = world(|_| {});
    for (id, name) in [(7, "a"), (8, "b")] {
        client.subscribe(&mut world, &topic, name, true, id);
    }
    client.flow(&mut world, 8, 10);
    send(&mut client, &mut world, 0..3);
    let all = |id: u64| (0..3).map(move |n| (id, n.to_string()));
    assert_eq!(
        seen(&mut client, &mut world),
        all(8).collect::<Vec<_>>(),
        "and nothing for 7"
    );
    assert_eq!(dropped(&world), 3);
}

#[test]
fn shared_consumers_take_turns_entry_by_entry() {
    let (mut world, topic, mut client) = world(|_| {});
    for (id, permits) in [(7, 3), (8, 100)] {
        join(&mut client, &mut world, &topic, SubType::Shared, id, "x");
        client.flow(&mut world, id, permits);
    }
    send(&mut client, &mut world, 0..8);
    let ids: Vec<u64> = seen(&mut client, &mut world).iter().map(|m| m.0).collect();
    assert_eq!(ids, [7, 8, 7, 8, 7, 8, 8, 8]);
    assert_eq!(dropped(&world), 0);
}

/// A key is one consumer's: if that one has no credit its messages are dropped, whoever else has some.
#[test]
fn keys_stay_with_their_consumer() {
    let (mut world, topic, mut client) = world(|_| {});
    for (id, name) in [(7, "a"), (8, "b")] {
        join(
            &mut client,
            &mut world,
            &topic,
            SubType::KeyShared,
            id,
            name,
        );
        client.flow(&mut world, id, 1000);
    }
    let mut owners = std::collections::BTreeMap::new();
    for n in 0..60_u64 {
        let key = format!("k{}", n % 10);
        let time = world.now.wall_ms;
        world.feed(
            client.peer,
            &say::send_keyed(1, n, None, time, Some(&key), key.as_bytes()),
        );
        client.receipt(&mut world);
        for (id, key) in seen(&mut client, &mut world) {
            assert_eq!(*owners.entry(key).or_insert(id), id);
        }
    }
    assert_eq!((owners.len(), dropped(&world)), (10, 0));
    let both: std::collections::BTreeSet<_> = owners.values().collect();
    assert_eq!(both.len(), 2, "{owners:?}");
    // The other one leaves, and comes back without credit: its keys go nowhere.
    leave(&mut client, &mut world, 8);
    join(&mut client, &mut world, &topic, SubType::KeyShared, 9, "b");
    for (n, (key, owner)) in (100..).zip(&owners) {
        let time = world.now.wall_ms;
        world.feed(
            client.peer,
            &say::send_keyed(1, n, None, time, Some(key), b"x"),
        );
        client.receipt(&mut world);
        let got = seen(&mut client, &mut world).len();
        assert_eq!(got, usize::from(*owner == 7), "{key}");
    }
    let theirs = owners.values().filter(|owner| **owner == 8).count();
    assert_eq!(dropped(&world), theirs as u64);
}

/// There is nothing that the one before could still be working on: a change takes effect at once.
#[test]
fn failover_does_not_wait() {
    let (mut world, topic, mut client) = world(|_| {});
    for (id, priority) in [(7, 0), (8, 1)] {
        let request = client.request();
        let mut subscribe = say::subscribe(&topic, "s", false, id, request);
        subscribe.sub_type = SubType::Failover as i32;
        subscribe.priority_level = Some(priority);
        client.say(&mut world, &say::subscribe_command(subscribe));
        client.success(&mut world, request);
        client.flow(&mut world, id, 10);
        let told = client.expect(&mut world, Type::ActiveConsumerChange);
        let told = told.command.active_consumer_change.unwrap();
        assert_eq!((told.consumer_id, told.is_active), (id, Some(id == 7)));
    }
    send(&mut client, &mut world, 0..1);
    assert_eq!(seen(&mut client, &mut world), [(7, "0".to_owned())]);
    leave(&mut client, &mut world, 7);
    let told = client.expect(&mut world, Type::ActiveConsumerChange);
    let told = told.command.active_consumer_change.unwrap();
    assert_eq!((told.consumer_id, told.is_active), (8, Some(true)));
    send(&mut client, &mut world, 1..2);
    assert_eq!(seen(&mut client, &mut world), [(8, "1".to_owned())]);
    assert_eq!(dropped(&world), 0);
}

#[test]
fn acks_seeks_and_questions() {
    for kind in TYPES {
        let (mut world, topic, mut client) = world(|_| {});
        join(&mut client, &mut world, &topic, kind, 7, "x");
        client.flow(&mut world, 7, 10);
        send(&mut client, &mut world, 0..2);
        assert_eq!(client.messages(&mut world).len(), 2);
        client.inbox.clear();
        client.ack(&mut world, 7, vec![say::id(0, 0)], false);
        client.ack(&mut world, 7, vec![say::id(5, 9)], true);
        client.say(&mut world, &say::redeliver(7, vec![], Some(1)));
        client.say(&mut world, &say::redeliver(7, vec![say::id(0, 0)], None));
        client.expect_silence(&mut world);
        client.say(&mut world, &say::seek_id(7, 70, say::id(0, 0)));
        client.success(&mut world, 70);
        client.say(&mut world, &say::seek_time(7, 71, 5));
        client.success(&mut world, 71);
        client.say(&mut world, &say::last_message_id(7, 72));
        assert_eq!(
            client.error(&mut world, 72).0,
            ServerError::UnknownError,
            "as Pulsar has it"
        );
        // It is still connected, and what is left of its credit is still there.
        send(&mut client, &mut world, 2..3);
        assert_eq!(client.texts(&mut world), ["2"]);
        let stats = stats(&mut client, &mut world, 7);
        assert_eq!(stats.available_permits, Some(7));
        client.say(&mut world, &say::unsubscribe(7, 73, false));
        client.success(&mut world, 73);
        assert_eq!(world.totals().subscriptions, 0);
    }
}

#[test]
fn subscriptions_end_with_their_last_consumer_and_topics_when_unused_for_long() {
    let (mut world, topic, mut client) = world(|_| {});
    for id in [7, 8] {
        join(&mut client, &mut world, &topic, SubType::Shared, id, "x");
    }
    leave(&mut client, &mut world, 7);
    assert_eq!(world.totals().subscriptions, 1);
    leave(&mut client, &mut world, 8);
    assert_eq!(
        (world.totals().subscriptions, world.totals().topics),
        (0, 1)
    );
    // Another type now, and of no use is the topic only when its producer has gone, too.
    join(&mut client, &mut world, &topic, SubType::KeyShared, 9, "x");
    leave(&mut client, &mut world, 9);
    for _ in 0..20 {
        world.advance(10_000);
        client.say(&mut world, &say::pong());
        world.run_until_idle();
    }
    assert_eq!(world.totals().topics, 1);
    world.cut(client.peer);
    world.run_until_idle();
    for _ in 0..13 {
        world.advance(10_000);
        world.run_until_idle();
    }
    assert_eq!(world.totals().topics, 0);
    // It begins anew.
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    assert_eq!(world.totals().topics, 1);
    world.restart();
    assert_eq!(world.totals().topics, 0);
}

#[test]
fn unused_topics_stay_where_the_setting_says_so() {
    let (mut world, _, client) = world(|settings| {
        settings.broker_delete_inactive_topics_enabled = false;
    });
    world.cut(client.peer);
    for _ in 0..20 {
        world.advance(60_000);
        world.run_until_idle();
    }
    assert_eq!(world.totals().topics, 1);
}

/// A connection whose earlier SENDs are not answered: what is too much gets a receipt with no position, in its turn.
#[test]
fn too_many_unanswered_sends_are_dropped() {
    let (mut world, topic, mut client) = world(|settings| {
        settings.max_concurrent_non_persistent_message_per_connection = 2;
    });
    join(&mut client, &mut world, &topic, SubType::Shared, 7, "x");
    client.flow(&mut world, 7, 100);
    world.run_until_idle();
    for n in 0..6 {
        client.send(&mut world, 1, n, &n.to_string());
    }
    const NONE: u64 = u64::MAX;
    for n in 0..6 {
        let id = if n < 3 { 0 } else { NONE };
        assert_eq!(client.receipt(&mut world), (n, id, id));
    }
    assert_eq!(client.texts(&mut world), ["0", "1", "2"]);
    assert_eq!(dropped(&world), 3);
    send(&mut client, &mut world, 6..7);
    assert_eq!(client.texts(&mut world), ["6"]);
}

/// A consumer whose connection takes nothing is given a window, and the rest is dropped: the publisher goes on, and the memory that is held
/// has a bound. What is held are the entries alone, not what was received with them.
#[test]
fn a_consumer_that_does_not_read_is_given_a_window() {
    for size in [3_000, 10_000, 400_000] {
        let (mut world, topic, mut client) = world(|_| {});
        let mut slow = Client::connect(&mut world, 1);
        slow.subscribe(&mut world, &topic, "s", true, 7);
        world.conns[slow.peer.0].stuck = true;
        slow.flow(&mut world, 7, 1_000_000);
        let text = "z".repeat(size);
        let count = 3_000_000 / size as u64;
        for n in 0..count {
            client.send(&mut world, 1, n, &text);
            client.receipt(&mut world);
        }
        let held = dropped(&world);
        assert!(held > count / 2, "{held} of {count} were dropped");
        let retained = world.retained_bytes();
        assert!(retained < 2 << 20, "{retained} bytes at {size}");
        world.conns[slow.peer.0].stuck = false;
        let got = slow.messages(&mut world);
        assert_eq!(got.len() as u64, count - held);
        assert!(got.iter().all(|m| m.payload.len() == size));
        // With the window free it goes on.
        client.send(&mut world, 1, count, "y");
        assert_eq!(slow.texts(&mut world), ["y"]);
        world.cut(client.peer);
        world.cut(slow.peer);
        world.run_until_idle();
        assert_eq!(world.retained_bytes(), 0);
    }
}

/// No answer waits for the disk.
#[test]
fn a_log_that_cannot_be_written_does_not_matter() {
    let (mut world, topic, mut client) = world(|_| {});
    let persistent = topic.replace("non-persistent", "persistent");
    for shard in 0..world.config.shards {
        world.break_disk(shard);
    }
    for core in 0..2 {
        // Something has to be written for the fault to show.
        let other = world.topic_on(core, "broken");
        client.say(
            &mut world,
            &say::producer(&other, 50 + u64::from(core), 500, None),
        );
    }
    client.say(&mut world, &say::producer(&persistent, 60, 501, None));
    world.run_until_idle();
    client.inbox.clear();
    for kind in TYPES {
        join(&mut client, &mut world, &topic, kind, 7, "x");
        client.flow(&mut world, 7, 10);
        send(&mut client, &mut world, 0..1);
        assert_eq!(client.texts(&mut world), ["0"]);
        client.inbox.clear();
        client.ack(&mut world, 7, vec![say::id(0, 0)], false);
        leave(&mut client, &mut world, 7);
    }
    let request = client.request();
    client.say(&mut world, &say::close_producer(1, request));
    client.success(&mut world, request);
    client.producer(&mut world, &topic, 2);
}

#[test]
fn what_does_not_exist_for_them() {
    let (mut world, topic, mut client) = world(|settings| {
        settings.broker_deduplication_enabled = true;
        settings.delayed_delivery_max_delay_in_millis = 1;
        settings.allow_auto_subscription_creation = false;
    });
    let request = client.request();
    let mut compacted = say::subscribe(&topic, "s", false, 7, request);
    compacted.read_compacted = Some(true);
    client.say(&mut world, &say::subscribe_command(compacted));
    let (error, text) = client.error(&mut world, request);
    assert_eq!(error, ServerError::NotAllowedError, "{text}");
    // The same sequence id again is another message; a reader and a consumer share a name.
    let request = client.request();
    let mut reader = say::subscribe(&topic, "s", true, 7, request);
    reader.durable = Some(false);
    client.say(&mut world, &say::subscribe_command(reader));
    client.success(&mut world, request);
    client.subscribe(&mut world, &topic, "s", true, 8);
    client.flow(&mut world, 8, 10);
    for _ in 0..2 {
        send(&mut client, &mut world, 5..6);
    }
    assert_eq!(client.texts(&mut world), ["5", "5"]);
    let ended = world.terminate(0, &topic);
    assert_eq!(ended, Some(Err(TerminateError::NotPersistent)));
}

#[test]
fn access_modes_and_their_epochs_live_in_memory() {
    let (mut world, topic, mut client) = world(|_| {});
    let request = client.request();
    client.say(&mut world, &say::close_producer(1, request));
    client.success(&mut world, request);
    for (id, epoch) in [(2, 0), (3, 1), (4, 2)] {
        let request = client.request();
        let mut command = say::producer(&topic, id, request, None);
        // Fencing: it takes the place of the one before.
        command.producer.as_mut().unwrap().producer_access_mode = Some(3);
        client.say(&mut world, &command);
        let opened = client.expect(&mut world, Type::ProducerSuccess);
        let opened = opened.command.producer_success.unwrap();
        assert_eq!(opened.topic_epoch, Some(epoch));
    }
    for shard in 0..world.config.shards {
        assert!(world.wal(shard).next_seq() <= 1, "nothing is logged");
    }
}

fn partitions(
    client: &mut Client,
    world: &mut World,
    topic: &str,
    auto: bool,
) -> (Option<u32>, Option<i32>) {
    let request = client.request();
    let question = proto::CommandPartitionedTopicMetadata {
        topic: topic.into(),
        request_id: request,
        metadata_auto_creation_enabled: Some(auto),
        ..Default::default()
    };
    let question = BaseCommand {
        partition_metadata: Some(question),
        ..say::base(Type::PartitionedMetadata)
    };
    client.say(world, &question);
    let answer = client.expect(world, Type::PartitionedMetadataResponse);
    let answer = answer.command.partition_metadata_response.unwrap();
    (answer.partitions, answer.error)
}

fn list(client: &mut Client, world: &mut World, mode: Mode) -> Vec<String> {
    let request = client.request();
    let question = proto::CommandGetTopicsOfNamespace {
        request_id: request,
        namespace: "public/default".into(),
        mode: Some(mode as i32),
        ..Default::default()
    };
    let question = BaseCommand {
        get_topics_of_namespace: Some(question),
        ..say::base(Type::GetTopicsOfNamespace)
    };
    client.say(world, &question);
    let answer = client.expect(world, Type::GetTopicsOfNamespaceResponse);
    answer
        .command
        .get_topics_of_namespace_response
        .unwrap()
        .topics
}

#[test]
fn partitions_and_lists() {
    let (mut world, topic, mut client) = world(|_| {});
    let gone = Some(ServerError::TopicNotFound as i32);
    assert_eq!(
        partitions(&mut client, &mut world, &topic, false),
        (Some(0), None)
    );
    let missing = "non-persistent://public/default/missing";
    assert_eq!(
        partitions(&mut client, &mut world, missing, true),
        (Some(0), None)
    );
    assert_eq!(partitions(&mut client, &mut world, missing, false).1, gone);
    let base = "non-persistent://public/default/parts";
    let name = TopicName::parse(base).unwrap();
    let (key, value) = Metadata::partitioned_entry(&name, 3);
    world.put_metadata(&key, &value);
    world.run_until_idle();
    assert_eq!(
        partitions(&mut client, &mut world, base, false),
        (Some(3), None)
    );
    for (name, error) in [
        (base.to_owned(), ServerError::NotAllowedError),
        (format!("{base}-partition-3"), ServerError::NotAllowedError),
        (
            format!("{missing}-partition-0"),
            ServerError::NotAllowedError,
        ),
    ] {
        let request = client.request();
        client.say(&mut world, &say::producer(&name, 20, request, None));
        assert_eq!(client.error(&mut world, request).0, error, "{name}");
    }
    let part = format!("{base}-partition-2");
    client.producer(&mut world, &part, 21);
    let persistent = world.topic_on(0, "p");
    client.producer(&mut world, &persistent, 22);
    let volatile = vec![part, topic];
    assert_eq!(list(&mut client, &mut world, Mode::NonPersistent), volatile);
    assert_eq!(
        list(&mut client, &mut world, Mode::Persistent),
        std::slice::from_ref(&persistent)
    );
    assert_eq!(
        list(&mut client, &mut world, Mode::All),
        [vec![persistent], volatile].concat()
    );
}

#[test]
fn a_first_use_may_make_a_partitioned_topic() {
    let (mut world, _, mut client) = world(|settings| {
        settings.allow_auto_topic_creation_type = vela_broker::engine::AutoTopicType::Partitioned;
        settings.default_num_partitions = 4;
    });
    let base = "non-persistent://public/default/parts";
    assert_eq!(
        partitions(&mut client, &mut world, base, true),
        (Some(4), None)
    );
    let key = "partitioned/non-persistent/public/default/parts";
    assert_eq!(world.metadata(key).as_deref(), Some(&b"4"[..]));
    client.producer(&mut world, &format!("{base}-partition-3"), 2);
}

#[test]
fn either_domain_can_be_switched_off() {
    for volatile in [true, false] {
        let mut config = WorldConfig::default();
        config.settings.enable_non_persistent_topics = !volatile;
        config.settings.enable_persistent_topics = volatile;
        let mut world = World::new(config);
        let mut client = Client::connect(&mut world, 0);
        let topics = [topic_on(&world, 0), world.topic_on(0, "p")];
        let (off, on) = match volatile {
            true => (&topics[0], &topics[1]),
            false => (&topics[1], &topics[0]),
        };
        client.producer(&mut world, on, 1);
        let request = client.request();
        client.say(&mut world, &say::producer(off, 2, request, None));
        let (error, text) = client.error(&mut world, request);
        assert_eq!(error, ServerError::NotAllowedError, "{text}");
        let subscribe = say::subscribe(off, "s", false, 7, 70);
        client.say(&mut world, &say::subscribe_command(subscribe));
        let (error, text) = client.error(&mut world, 70);
        assert_eq!(error, ServerError::NotAllowedError, "{text}");
    }
}
