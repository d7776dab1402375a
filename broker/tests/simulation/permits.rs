//! Conserved permits: incarnations, batches that come back whole, limits of unacknowledged messages, holes. The books of every subscription are
//! audited after every turn of every world; here is what drives them into corners.

use vela_broker::store::memory::Kept;
use vela_proto::base_command::Type;

use super::consume::filled;
use crate::harness::client::{Client, Got, say};
use crate::harness::{World, WorldConfig};

/// Available permits and unacknowledged messages of a consumer.
fn stats(client: &mut Client, world: &mut World, consumer: u64) -> (i64, u64, bool) {
    let request = client.request();
    client.say(world, &say::stats(consumer, request));
    let answer = client.expect(world, Type::ConsumerStatsResponse).command;
    let stats = answer.consumer_stats_response.unwrap();
    (
        stats.available_permits.unwrap() as i64,
        stats.unacked_messages.unwrap(),
        stats.blocked_consumer_on_unacked_msgs.unwrap(),
    )
}

fn ids(got: &[Got]) -> Vec<vela_proto::MessageIdData> {
    got.iter().map(Got::id).collect()
}

/// BC-02, raw: SUBSCRIBE, FLOW and CLOSE_CONSUMER in one write, over and over, beside one that stays. The sum of the balances is what the
/// one that stays has.
#[test]
fn comers_and_goers_leave_no_permits_behind() {
    for core in [0, 1] {
        let (mut world, topic, mut client) = filled(&[]);
        client.subscribe(&mut world, &topic, "s", true, 7);
        client.flow(&mut world, 7, 100);
        let other = Client::connect(&mut world, core);
        for round in 0..200 {
            let request = 1000 + 2 * round;
            other.say(
                &mut world,
                &say::subscribe_command(say::subscribe(&topic, "s", true, 9, request)),
            );
            other.flow(&mut world, 9, 1000);
            other.say(&mut world, &say::close_consumer(9, request + 1));
            if round % 3 == 0 {
                // Late credit is nobody's.
                other.flow(&mut world, 9, 1000);
            }
            if round % 7 == 0 {
                world.run_until_idle();
            }
        }
        world.run_until_idle();
        let home = world.home(&topic).0;
        let books = world.engine(home).audit().unwrap();
        assert_eq!(books.len(), 1);
        assert_eq!((books[0].balance, books[0].total), (100, 100));
        assert_eq!((books[0].granted, books[0].delivered), (100, 0));
    }
}

/// BC-01: a client that returns whole batches for those it got in part has no more credit after twenty rounds than its queue.
#[test]
fn whole_returns_of_half_batches_are_bounded_by_the_queue() {
    for exact in [false, true] {
        let (mut world, topic, mut client) = filled(&[]);
        client.send_batch(&mut world, 1, 0, 60, "b");
        client.receipt(&mut world);
        client.subscribe(&mut world, &topic, "s", true, 7);
        client.flow(&mut world, 7, 1000);
        let got = client.messages(&mut world);
        client.flow(&mut world, 7, 60);
        let mut half = got[0].id();
        half.ack_set = vec![(1 << 30) - 1];
        client.ack(&mut world, 7, vec![half], false);
        for _ in 0..20 {
            client.say(&mut world, &say::redeliver(7, vec![got[0].id()], None));
            let again = client.messages(&mut world);
            assert_eq!(again[0].permits, Some(30));
            client.flow(&mut world, 7, if exact { 30 } else { 60 });
            assert_eq!(stats(&mut client, &mut world, 7), (1000, 30, false));
        }
    }
}

/// Giving something back lets a blocked consumer go on at once; acknowledging lets it go on at half the limit.
#[test]
fn a_nack_unblocks() {
    let mut config = WorldConfig::default();
    config.settings.max_unacked_messages_per_consumer = 10;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for i in 0..12 {
        client.send(&mut world, 1, i, &format!("{i}"));
    }
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 10);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 10);
    client.flow(&mut world, 7, 7);
    assert_eq!(
        stats(&mut client, &mut world, 7),
        (0, 10, true),
        "parked permits do not show"
    );
    client.say(&mut world, &say::redeliver(7, vec![got[3].id()], None));
    let again = client.messages(&mut world);
    assert_eq!(
        again
            .iter()
            .map(|m| (m.text(), m.redelivery_count))
            .collect::<Vec<_>>(),
        [("3".to_owned(), 1)]
    );
    assert_eq!(stats(&mut client, &mut world, 7), (6, 10, true));
    // Somebody else acknowledges what it holds: it is taken off the holder.
    let mut other = Client::connect(&mut world, 0);
    other.subscribe(&mut world, &topic, "s", true, 9);
    other.ack(&mut world, 9, ids(&got[4..9]), false);
    assert_eq!(client.texts(&mut world), ["10", "11"]);
    assert_eq!(stats(&mut client, &mut world, 7), (4, 7, false));
}

/// At the broker's limit a subscription that holds more than its share reads nothing new, others do; below half of it all go on.
#[test]
fn the_brokers_limit_stops_those_that_hold_much() {
    let mut config = WorldConfig::default();
    // Two cores: 50 each.
    config.settings.max_unacked_messages_per_broker = 100;
    config
        .settings
        .max_unacked_messages_per_subscription_on_broker_blocked = 0.2;
    let mut world = World::new(config);
    assert_eq!(world.config.cores, 2);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for i in 0..60 {
        client.send(&mut world, 1, i, &format!("{i}"));
    }
    for (id, name) in [(7, "much"), (8, "little")] {
        client.subscribe(&mut world, &topic, name, true, id);
    }
    client.flow(&mut world, 8, 5);
    assert_eq!(client.messages(&mut world).len(), 5);
    client.flow(&mut world, 7, 1000);
    let much = client.messages(&mut world);
    assert_eq!(much.len(), 45, "exactly up to the limit");
    // Its share is 10: who holds less reads on, up to that.
    client.flow(&mut world, 8, 1000);
    assert_eq!(
        client.messages(&mut world).len(),
        6,
        "one more than its share stops it"
    );
    client.ack(&mut world, 7, ids(&much[..31]), false);
    assert!(client.messages(&mut world).is_empty(), "25 are out");
    client.ack(&mut world, 7, ids(&much[31..32]), false);
    let more = client.messages(&mut world);
    assert!(
        more.len() >= 20,
        "below half of the limit all go on: {}",
        more.len()
    );
    // The limit goes, and with it what it held up.
    world.config.settings.max_unacked_messages_per_broker = 0;
    for core in 0..2 {
        let settings = std::sync::Arc::new(world.config.settings.clone());
        let now = world.now;
        world.engine_mut(core).configure(settings, now);
    }
    let rest = client.messages(&mut world);
    assert_eq!(much.len() + 5 + 6 + more.len() + rest.len(), 120);
}

/// With acknowledgment of batch indexes off, a part of a batch is not acknowledged, and all of it comes again.
#[test]
fn without_batch_index_acks_a_batch_is_whole() {
    for shared in [false, true] {
        let mut config = WorldConfig::default();
        config.settings.acknowledgment_at_batch_index_level_enabled = false;
        let mut world = World::new(config);
        let topic = world.topic_on(1, "t");
        let mut client = Client::connect(&mut world, 0);
        client.producer(&mut world, &topic, 1);
        client.send(&mut world, 1, 0, "a");
        client.send_batch(&mut world, 1, 1, 10, "b");
        client.subscribe(&mut world, &topic, "s", shared, 7);
        client.flow(&mut world, 7, 11);
        let got = client.messages(&mut world);
        let mut part = got[1].id();
        part.ack_set = vec![0b11111];
        // Cumulatively, what is in front of the batch goes.
        client.ack(&mut world, 7, vec![part.clone()], !shared);
        client.ack(&mut world, 7, vec![part], false);
        client.flow(&mut world, 7, 11);
        client.say(&mut world, &say::redeliver(7, vec![], None));
        let again = client.messages(&mut world);
        let last = again.last().unwrap();
        assert_eq!((last.permits, last.ack_set.len()), (Some(10), 0));
        assert_eq!(again.len(), if shared { 2 } else { 1 });
    }
}

/// Sixty thousand holes between acknowledged messages are there after the machine died, from the log alone and from a checkpoint.
#[test]
fn holes_survive_a_restart() {
    const MESSAGES: u64 = 120_000;
    let mut config = WorldConfig::default();
    config.settings.max_unacked_messages_per_consumer = 0;
    config.settings.max_unacked_messages_per_subscription = 0;
    config.wal.unacked_bytes_max = 64 << 20;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 1);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "s", true, 7);
    client.flow(&mut world, 7, 1_000_000);
    let mut even = Vec::new();
    for round in 0..MESSAGES / 1000 {
        for i in 0..1000 {
            client.send(&mut world, 1, round * 1000 + i, "x");
        }
        let got = client.messages(&mut world);
        client.inbox.clear();
        assert_eq!(got.len(), 1000);
        let odd: Vec<_> = got
            .iter()
            .filter(|m| m.entry % 2 == 1)
            .map(Got::id)
            .collect();
        even.extend(
            got.iter()
                .filter(|m| m.entry % 2 == 0)
                .map(|m| (m.ledger, m.entry)),
        );
        client.ack(&mut world, 7, odd, false);
    }
    assert_eq!(even.len(), 60_000);
    for _ in 0..2 {
        world.crash(|_, _| Kept::Nothing);
        let mut client = Client::connect(&mut world, 1);
        client.subscribe(&mut world, &topic, "s", true, 7);
        client.flow(&mut world, 7, 1_000_000);
        let got = client.messages(&mut world);
        let back: Vec<(u64, u64)> = got.iter().map(|m| (m.ledger, m.entry)).collect();
        assert!(
            back == even,
            "{} came back, {} were left",
            back.len(),
            even.len()
        );
    }
}
