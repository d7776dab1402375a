//! What costs much takes its turns: one connection that asks for much holds nobody up.

use bytes::BytesMut;
use vela_proto::command_subscribe::SubType;
use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{Step, World, WorldConfig};

/// One core, so that a turn is a turn.
fn world() -> World {
    World::new(WorldConfig {
        cores: 1,
        shards: 1,
        ..WorldConfig::default()
    })
}

/// Ends one turn and hands out what it gave, without another.
fn turn(world: &mut World) {
    world.apply(Step::Turn(0), usize::MAX);
    while let Some(step) = world
        .steps()
        .into_iter()
        .find(|step| matches!(step, Step::Output(_) | Step::Write(_)))
    {
        world.apply(step, usize::MAX);
    }
}

fn of(client: &mut Client, world: &mut World, kind: Type) -> usize {
    client.listen(world);
    client.kinds().iter().filter(|got| **got == kind).count()
}

#[test]
fn two_hundred_subscribes_in_one_write_let_others_through() {
    let mut world = world();
    let topic = world.topic_on(0, "t");
    let mut greedy = Client::connect(&mut world, 0);
    let mut other = Client::connect(&mut world, 0);
    let mut all = BytesMut::new();
    for id in 0..200 {
        let mut subscribe = say::subscribe(&topic, "s", true, id, 1000 + id);
        subscribe.sub_type = SubType::KeyShared as i32;
        subscribe.consumer_name = Some(format!("c{id}"));
        all.extend_from_slice(&say::bytes(&say::subscribe_command(subscribe)));
    }
    world.feed(greedy.peer, &all);
    // Everything that the sockets have is read before the turn ends.
    let read = |world: &mut World| {
        while let Some(step) = world
            .steps()
            .into_iter()
            .find(|step| matches!(step, Step::Read(_) | Step::Frames(_)))
        {
            world.apply(step, usize::MAX);
        }
    };
    let (mut turns, mut before, mut most) = (0, 0, 0);
    let mut served = None;
    while before < 200 {
        read(&mut world);
        turn(&mut world);
        turns += 1;
        assert!(turns < 200, "{before} of 200 were answered");
        let now = of(&mut greedy, &mut world, Type::Success);
        most = most.max(now - before);
        before = now;
        if turns == 2 {
            let request = other.request();
            let producer = say::producer(&topic, 1, request, None);
            other.say(&mut world, &producer);
        }
        if served.is_none() && of(&mut other, &mut world, Type::ProducerSuccess) > 0 {
            served = Some((turns, before));
        }
    }
    assert!(most <= 32, "{most} were answered after one turn");
    let (turns, before) = served.expect("the other one is served as well");
    assert!(
        before < 200,
        "after {turns} turns, when {before} were answered"
    );
}

/// Their order stays, and what follows a command that waits waits behind it.
#[test]
fn commands_that_wait_stay_in_order() {
    let mut world = world();
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    let mut all = BytesMut::new();
    for id in 0..100 {
        let subscribe = say::subscribe(&topic, "s", true, id, 1000 + id);
        all.extend_from_slice(&say::bytes(&say::subscribe_command(subscribe)));
        all.extend_from_slice(&say::bytes(&say::flow(id, 1)));
    }
    all.extend_from_slice(&say::bytes(&say::ping()));
    world.feed(client.peer, &all);
    world.run_until_idle();
    client.listen(&mut world);
    let answers: Vec<u64> = client
        .inbox
        .iter()
        .filter_map(|got| Some(got.command.success.as_ref()?.request_id))
        .collect();
    assert_eq!(answers, (1000..1100).collect::<Vec<u64>>());
    assert_eq!(of(&mut client, &mut world, Type::Pong), 1);
    let books = world.engine(0).audit().unwrap();
    assert!(books.iter().all(|books| books.granted == 1), "{books:?}");
}

/// A connection that ends while its command waits leaves nothing behind.
#[test]
fn who_leaves_waits_no_more() {
    let mut world = world();
    let topic = world.topic_on(0, "t");
    let client = Client::connect(&mut world, 0);
    let mut all = BytesMut::new();
    for id in 0..100 {
        let subscribe = say::subscribe(&topic, "s", true, id, 1000 + id);
        all.extend_from_slice(&say::bytes(&say::subscribe_command(subscribe)));
    }
    world.feed(client.peer, &all);
    world.apply(Step::Read(client.peer), usize::MAX);
    world.cut(client.peer);
    world.run_until_idle();
    assert_eq!(world.totals().consumers, 0);
    let mut client = Client::connect(&mut world, 0);
    client.subscribe(&mut world, &topic, "s", true, 1);
}

fn list(request_id: u64, pattern: &str) -> BaseCommand {
    BaseCommand {
        get_topics_of_namespace: Some(proto::CommandGetTopicsOfNamespace {
            request_id,
            namespace: "public/default".into(),
            topics_pattern: Some(pattern.into()),
            ..Default::default()
        }),
        ..say::base(Type::GetTopicsOfNamespace)
    }
}

#[test]
fn a_pattern_over_many_names_is_applied_in_parts() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    let long = "x".repeat(1000);
    for n in 0..300 {
        let topic = format!("persistent://public/default/{long}{n}");
        client.producer(&mut world, &topic, n);
    }
    let request = client.request();
    client.say(&mut world, &list(request, r"public/default/x+\d*[02468]"));
    let mut turns = 0;
    while of(&mut client, &mut world, Type::GetTopicsOfNamespaceResponse) == 0 {
        let steps = world.steps();
        let step = *steps.first().expect("something goes on");
        turns += u32::from(matches!(step, Step::Turn(_)));
        world.apply(step, usize::MAX);
    }
    assert!(turns > 8, "{turns} turns");
    let answer = client.expect(&mut world, Type::GetTopicsOfNamespaceResponse);
    let answer = answer.command.get_topics_of_namespace_response.unwrap();
    assert_eq!((answer.topics.len(), answer.filtered), (150, Some(true)));
    assert!(answer.topics.is_sorted());
}

fn watch(request_id: u64, id: u64, pattern: &str) -> BaseCommand {
    BaseCommand {
        watch_topic_list: Some(proto::CommandWatchTopicList {
            request_id,
            watcher_id: id,
            namespace: "public/default".into(),
            topics_pattern: pattern.into(),
            topics_hash: None,
        }),
        ..say::base(Type::WatchTopicList)
    }
}

/// Patterns are counted by what they take compiled: large ones fill a connection's share sooner, and closing one makes room.
#[test]
fn the_patterns_of_watchers_are_bounded_by_their_bytes() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    let large = r"(\w{1,50}){1,20}";
    let mut refused = None;
    for id in 0..256 {
        let request = client.request();
        client.say(&mut world, &watch(request, id, large));
        world.run_until_idle();
        client.listen(&mut world);
        let got = client.inbox.remove(0).command;
        if let Some(error) = got.error {
            assert_eq!(error.error, ServerError::TooManyRequests as i32);
            assert!(error.message.contains("bytes"), "{}", error.message);
            refused = Some(id);
            break;
        }
        assert!(got.watch_topic_list_success.is_some(), "{got:?}");
    }
    let refused = refused.expect("256 of them are too much");
    assert!((16..=200).contains(&refused), "{refused}");
    // Another connection has its own share.
    let mut other = Client::connect(&mut world, 0);
    let request = other.request();
    other.say(&mut world, &watch(request, 1, large));
    other.expect(&mut world, Type::WatchTopicListSuccess);
    let request = client.request();
    let close = BaseCommand {
        watch_topic_list_close: Some(proto::CommandWatchTopicListClose {
            request_id: request,
            watcher_id: 0,
        }),
        ..say::base(Type::WatchTopicListClose)
    };
    client.say(&mut world, &close);
    client.success(&mut world, request);
    let request = client.request();
    client.say(&mut world, &watch(request, 999, large));
    client.expect(&mut world, Type::WatchTopicListSuccess);
}
