//! Failover subscriptions: who is active, when a change takes effect, what the next one gets.

use vela_broker::engine::Metadata;
use vela_broker::engine::name::TopicName;
use vela_proto::base_command::Type;
use vela_proto::command_subscribe::SubType;

use super::consume::filled;
use crate::harness::World;
use crate::harness::client::{Client, say};

/// Subscribes a named Failover consumer.
fn join(client: &mut Client, world: &mut World, topic: &str, id: u64, name: &str, priority: i32) {
    let request = client.request();
    let mut subscribe = say::subscribe(topic, "s", false, id, request);
    subscribe.sub_type = SubType::Failover as i32;
    subscribe.consumer_name = Some(name.into());
    subscribe.priority_level = Some(priority);
    client.say(world, &say::subscribe_command(subscribe));
    client.success(world, request);
}

/// The ACTIVE_CONSUMER_CHANGEs so far: consumer, active.
fn changes(client: &mut Client, world: &mut World) -> Vec<(u64, bool)> {
    world.run_until_idle();
    client.listen(world);
    let (changes, rest) = std::mem::take(&mut client.inbox)
        .into_iter()
        .partition(|i| i.command.active_consumer_change.is_some());
    client.inbox = rest;
    let changes: Vec<crate::harness::Incoming> = changes;
    let change = |i: &crate::harness::Incoming| i.command.active_consumer_change.unwrap();
    changes
        .iter()
        .map(change)
        .map(|c| (c.consumer_id, c.is_active.unwrap()))
        .collect()
}

#[test]
fn the_first_consumer_is_served_after_the_delay() {
    let (mut world, topic, mut client) = filled(&["a", "b"]);
    join(&mut client, &mut world, &topic, 7, "x", 0);
    client.flow(&mut world, 7, 10);
    world.advance(999);
    assert!(client.messages(&mut world).is_empty());
    assert!(changes(&mut client, &mut world).is_empty());
    world.advance(1);
    assert_eq!(changes(&mut client, &mut world), [(7, true)]);
    assert_eq!(client.texts(&mut world), ["a", "b"]);
}

#[test]
fn what_the_active_one_left_goes_to_the_next_in_order_and_uncounted() {
    let (mut world, topic, mut client) = filled(&["a", "b", "c", "d"]);
    for (id, name) in [(7, "x"), (8, "y")] {
        join(&mut client, &mut world, &topic, id, name, 0);
        client.flow(&mut world, id, 10);
    }
    world.advance(1000);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 4);
    let active = got[0].consumer;
    let other = 15 - active;
    let mut told = changes(&mut client, &mut world);
    told.sort_unstable();
    // A newcomer that is not chosen is told at once, and again with everybody.
    told.dedup();
    assert_eq!(told, [(7, active == 7), (8, active == 8)]);
    client.ack(&mut world, active, vec![got[1].id()], true);
    client.ack(&mut world, active, vec![got[3].id()], false);
    let request = client.request();
    client.say(&mut world, &say::close_consumer(active, request));
    client.success(&mut world, request);
    assert!(client.messages(&mut world).is_empty());
    world.advance(1000);
    assert_eq!(changes(&mut client, &mut world), [(other, true)]);
    let got = client.messages(&mut world);
    let seen: Vec<_> = got
        .iter()
        .map(|m| (m.consumer, m.text(), m.redelivery_count))
        .collect();
    assert_eq!(seen, [(other, "c".to_owned(), 0)]);
}

#[test]
fn only_the_best_priority_level_is_chosen_from() {
    let (mut world, topic, mut client) = filled(&["a"]);
    join(&mut client, &mut world, &topic, 7, "a", 1);
    client.flow(&mut world, 7, 10);
    world.advance(1000);
    assert_eq!(client.texts(&mut world), ["a"]);
    // A better one takes over; nothing is sent to anybody until then.
    join(&mut client, &mut world, &topic, 8, "z", 0);
    client.flow(&mut world, 8, 10);
    client.send(&mut world, 1, 1, "b");
    client.receipt(&mut world);
    assert!(client.messages(&mut world).is_empty());
    world.advance(1000);
    let got = client.messages(&mut world);
    let seen: Vec<_> = got.iter().map(|m| (m.consumer, m.text())).collect();
    assert_eq!(seen, [(8, "a".to_owned()), (8, "b".to_owned())]);
    // A worse one changes nothing.
    join(&mut client, &mut world, &topic, 9, "b", 5);
    changes(&mut client, &mut world);
    world.advance(2000);
    assert!(changes(&mut client, &mut world).is_empty());
    client.expect_silence(&mut world);
}

#[test]
fn partitions_take_turns_among_the_names() {
    let (mut world, _, mut client) = filled(&[]);
    let name = TopicName::parse("persistent://public/default/p").unwrap();
    let (key, value) = Metadata::partitioned_entry(&name, 4);
    world.put_metadata(&key, &value);
    world.run_until_idle();
    for partition in 0..4_u64 {
        let topic = format!("persistent://public/default/p-partition-{partition}");
        for (n, name) in ["c", "a", "b"].into_iter().enumerate() {
            join(
                &mut client,
                &mut world,
                &topic,
                partition * 10 + n as u64,
                name,
                0,
            );
        }
        world.advance(1000);
        let active: Vec<u64> = changes(&mut client, &mut world)
            .into_iter()
            .filter_map(|(id, active)| active.then_some(id))
            .collect();
        // a, b, c came as 1, 2, 0.
        let ranked = [1, 2, 0][partition as usize % 3];
        assert_eq!(active, [partition * 10 + ranked]);
    }
}

#[test]
fn a_seek_closes_the_active_one_only() {
    let (mut world, topic, mut client) = filled(&["a", "b"]);
    join(&mut client, &mut world, &topic, 7, "x", 0);
    join(&mut client, &mut world, &topic, 8, "x", 1);
    client.flow(&mut world, 7, 10);
    client.flow(&mut world, 8, 10);
    world.advance(1000);
    let got = client.messages(&mut world);
    assert_eq!(got.len(), 2);
    client.ack(&mut world, 7, vec![got[1].id()], true);
    changes(&mut client, &mut world);
    let request = client.request();
    client.say(&mut world, &say::seek_id(7, request, got[1].id()));
    let closed = client.expect(&mut world, Type::CloseConsumer);
    assert_eq!(closed.command.close_consumer.unwrap().consumer_id, 7);
    client.success(&mut world, request);
    world.advance(1000);
    assert_eq!(changes(&mut client, &mut world), [(8, true)]);
    assert_eq!(client.texts(&mut world), ["b"]);
}

#[test]
fn redelivery_is_for_the_active_one() {
    let (mut world, topic, mut client) = filled(&["a", "b"]);
    join(&mut client, &mut world, &topic, 7, "x", 0);
    join(&mut client, &mut world, &topic, 8, "x", 1);
    client.flow(&mut world, 7, 10);
    client.flow(&mut world, 8, 10);
    world.advance(1000);
    assert_eq!(client.texts(&mut world), ["a", "b"]);
    changes(&mut client, &mut world);
    client.say(&mut world, &say::redeliver(8, vec![], None));
    client.expect_silence(&mut world);
    client.say(&mut world, &say::redeliver(7, vec![], None));
    assert_eq!(client.texts(&mut world), ["a", "b"]);
}

#[test]
fn without_a_delay_a_change_takes_effect_at_once() {
    let (mut world, topic, mut client) = filled(&["a"]);
    world
        .config
        .settings
        .active_consumer_failover_delay_time_millis = 0;
    for core in 0..world.config.cores {
        let settings = std::sync::Arc::new(world.config.settings.clone());
        let now = world.now;
        world.engine_mut(core).configure(settings, now);
    }
    join(&mut client, &mut world, &topic, 7, "x", 0);
    client.flow(&mut world, 7, 10);
    assert_eq!(changes(&mut client, &mut world), [(7, true)]);
    assert_eq!(client.texts(&mut world), ["a"]);
}

/// The last one leaves while a change is on its way: nothing is left of it, and who comes next waits its own time.
#[test]
fn a_change_ends_with_the_last_consumer() {
    let (mut world, topic, mut client) = filled(&["a"]);
    join(&mut client, &mut world, &topic, 7, "x", 0);
    world.advance(600);
    client.say(&mut world, &say::close_consumer(7, 90));
    client.success(&mut world, 90);
    join(&mut client, &mut world, &topic, 7, "x", 0);
    client.flow(&mut world, 7, 10);
    world.advance(999);
    assert!(client.messages(&mut world).is_empty());
    world.advance(1);
    assert_eq!(client.texts(&mut world), ["a"]);
}

/// An unload closes everybody, as in Pulsar; a seek only the one that is served.
#[test]
fn an_unload_closes_those_that_wait_too() {
    let closed = |client: &mut Client, world: &mut World| {
        world.run_until_idle();
        client.listen(world);
        let closed = std::mem::take(&mut client.inbox).into_iter();
        let mut closed: Vec<u64> = closed
            .filter_map(|i| Some(i.command.close_consumer?.consumer_id))
            .collect();
        closed.sort_unstable();
        closed
    };
    let (mut world, topic, mut client) = filled(&["a", "b"]);
    for (id, name) in [(7, "x"), (8, "y"), (9, "z")] {
        join(&mut client, &mut world, &topic, id, name, 0);
        client.flow(&mut world, id, 10);
    }
    world.advance(1000);
    let active = changes(&mut client, &mut world)
        .iter()
        .find(|(_, active)| *active)
        .unwrap()
        .0;
    assert_eq!(client.texts(&mut world), ["a", "b"]);
    let request = client.request();
    client.say(&mut world, &say::seek_id(active, request, say::id(0, 0)));
    assert_eq!(closed(&mut client, &mut world), [active]);
    world.ask(&topic, vela_broker::engine::admin::Ask::Unload);
    let others: Vec<u64> = [7, 8, 9].into_iter().filter(|id| *id != active).collect();
    assert_eq!(closed(&mut client, &mut world), others);
    // Nobody is served meanwhile, and who comes back gets what is there.
    join(&mut client, &mut world, &topic, 10, "x", 0);
    client.flow(&mut world, 10, 10);
    world.advance(1000);
    assert_eq!(client.texts(&mut world), ["a", "b"]);
}
