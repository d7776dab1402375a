//! Lists of topics, patterns, and watchers of lists, on two cores.

use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

const NAMESPACE: &str = "public/default";
const A: &str = "persistent://public/default/a.*";

fn world() -> World {
    let mut config = WorldConfig {
        cores: 2,
        shards: 4,
        ..WorldConfig::default()
    };
    config.namespaces.push("public/other".into());
    World::new(config)
}

fn list(
    world: &mut World,
    client: &mut Client,
    pattern: Option<&str>,
    hash: Option<&str>,
) -> proto::CommandGetTopicsOfNamespaceResponse {
    let request_id = client.request();
    client.say(
        world,
        &BaseCommand {
            get_topics_of_namespace: Some(proto::CommandGetTopicsOfNamespace {
                request_id,
                namespace: NAMESPACE.into(),
                topics_pattern: pattern.map(Into::into),
                topics_hash: hash.map(Into::into),
                ..Default::default()
            }),
            ..say::base(Type::GetTopicsOfNamespace)
        },
    );
    let answer = client.expect(world, Type::GetTopicsOfNamespaceResponse);
    let answer = answer.command.get_topics_of_namespace_response.unwrap();
    assert_eq!(answer.request_id, request_id);
    answer
}

fn watch_command(
    request_id: u64,
    id: u64,
    namespace: &str,
    pattern: &str,
    hash: Option<&str>,
) -> BaseCommand {
    BaseCommand {
        watch_topic_list: Some(proto::CommandWatchTopicList {
            request_id,
            watcher_id: id,
            namespace: namespace.into(),
            topics_pattern: pattern.into(),
            topics_hash: hash.map(Into::into),
        }),
        ..say::base(Type::WatchTopicList)
    }
}

fn watch(
    world: &mut World,
    client: &mut Client,
    id: u64,
    pattern: &str,
    hash: Option<&str>,
) -> proto::CommandWatchTopicListSuccess {
    let request_id = client.request();
    client.say(
        world,
        &watch_command(request_id, id, NAMESPACE, pattern, hash),
    );
    let answer = client.expect(world, Type::WatchTopicListSuccess);
    let answer = answer.command.watch_topic_list_success.unwrap();
    assert_eq!((answer.request_id, answer.watcher_id), (request_id, id));
    answer
}

fn update(world: &mut World, client: &mut Client) -> proto::CommandWatchTopicUpdate {
    let update = client.expect(world, Type::WatchTopicUpdate);
    update.command.watch_topic_update.unwrap()
}

fn close(world: &mut World, client: &mut Client, id: u64) {
    let request_id = client.request();
    client.say(
        world,
        &BaseCommand {
            watch_topic_list_close: Some(proto::CommandWatchTopicListClose {
                request_id,
                watcher_id: id,
            }),
            ..say::base(Type::WatchTopicListClose)
        },
    );
    client.success(world, request_id);
}

fn name(local: &str) -> String {
    format!("persistent://{NAMESPACE}/{local}")
}

#[test]
fn a_pattern_filters_the_list_and_its_hash() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    for (id, local) in ["a1", "a2", "b1", "__change_events", "__mine"]
        .iter()
        .enumerate()
    {
        client.producer(&mut world, &name(local), id as u64);
    }
    let all = list(&mut world, &mut client, None, None);
    assert_eq!(
        all.topics,
        [name("__mine"), name("a1"), name("a2"), name("b1")]
    );
    assert_eq!((all.filtered, all.changed), (Some(false), Some(true)));
    let some = list(&mut world, &mut client, Some(A), None);
    assert_eq!(some.topics, [name("a1"), name("a2")]);
    assert_eq!(some.filtered, Some(true));
    let again = list(
        &mut world,
        &mut client,
        Some(A),
        some.topics_hash.as_deref(),
    );
    assert_eq!((again.topics.len(), again.changed), (0, Some(false)));
    // What the broker does not apply, the client does.
    for unapplied in ["persistent://public/default/(?!b).*", &"x".repeat(51)] {
        let all = list(&mut world, &mut client, Some(unapplied), None);
        assert_eq!((all.topics.len(), all.filtered), (4, Some(false)));
    }
}

#[test]
fn a_watcher_hears_of_topics_on_every_core() {
    let mut world = world();
    let mut watcher = Client::connect(&mut world, 0);
    let mut maker = Client::connect(&mut world, 1);
    let first = world.topic_on(0, "a0");
    maker.producer(&mut world, &first, 1);
    let begun = watch(&mut world, &mut watcher, 7, A, None);
    assert_eq!(begun.topic, std::slice::from_ref(&first));
    let mut names = vec![first];
    for (n, core) in [0, 1, 1, 0].into_iter().enumerate() {
        let topic = world.topic_on(core, &format!("a{}", n + 1));
        maker.producer(&mut world, &topic, 10 + n as u64);
        let told = update(&mut world, &mut watcher);
        assert_eq!(
            (told.watcher_id, &told.new_topics),
            (7, &vec![topic.clone()])
        );
        assert!(told.deleted_topics.is_empty());
        names.push(topic);
        names.sort();
        let listed = list(&mut world, &mut maker, Some(A), None);
        assert_eq!(listed.topics, names);
        assert_eq!(listed.topics_hash.unwrap(), told.topics_hash);
    }
    // Neither another name nor another namespace.
    maker.producer(&mut world, &name("b"), 20);
    maker.producer(&mut world, "persistent://public/other/a", 21);
    watcher.expect_silence(&mut world);
    // With the hash that is right, no list.
    let listed = list(&mut world, &mut maker, Some(A), None);
    let hash = listed.topics_hash.unwrap();
    let again = watch(&mut world, &mut watcher, 7, "another pattern", Some(&hash));
    assert!(again.topic.is_empty());
    assert_eq!(again.topics_hash, hash);
    let other = watch(&mut world, &mut watcher, 8, A, Some("00000000"));
    assert_eq!(other.topic, names);
}

#[test]
fn a_closed_watcher_hears_nothing_and_others_go_on() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    let mut other = Client::connect(&mut world, 0);
    watch(&mut world, &mut client, 1, A, None);
    watch(&mut world, &mut client, 2, A, None);
    watch(&mut world, &mut other, 1, A, None);
    close(&mut world, &mut client, 1);
    close(&mut world, &mut client, 99);
    client.producer(&mut world, &name("a1"), 1);
    assert_eq!(update(&mut world, &mut client).watcher_id, 2);
    assert_eq!(update(&mut world, &mut other).watcher_id, 1);
    // A connection that is gone watches no more, and its slot's next tenant hears nothing.
    world.hang_up(client.peer);
    world.run_until_idle();
    let mut next = Client::connect(&mut world, 0);
    next.producer(&mut world, &name("a2"), 1);
    update(&mut world, &mut other);
    next.expect_silence(&mut world);
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    for (pattern, error) in [
        ("a[", ServerError::InvalidTopicName),
        ("(?!a).*", ServerError::InvalidTopicName),
        (&"x".repeat(51), ServerError::NotAllowedError),
    ] {
        client.say(&mut world, &watch_command(60, 1, NAMESPACE, pattern, None));
        assert_eq!(client.error(&mut world, 60).0, error, "{pattern}");
    }
    // As many as a connection may, and then no more.
    for id in 0..256 {
        watch(&mut world, &mut client, id, A, None);
    }
    client.say(&mut world, &watch_command(61, 256, NAMESPACE, A, None));
    assert_eq!(client.error(&mut world, 61).0, ServerError::TooManyRequests);
    // One that is there may begin again.
    watch(&mut world, &mut client, 255, A, None);
    close(&mut world, &mut client, 0);
    watch(&mut world, &mut client, 256, A, None);
    client.say(&mut world, &watch_command(62, 1, "nonsense", A, None));
    world.run_until_idle();
    assert!(!world.conns[client.peer.0].open);
}

/// A peer that does not read is not sent more and more: what it missed comes in one piece when it reads again.
#[test]
fn a_peer_that_does_not_read_misses_nothing_and_holds_little() {
    let mut world = world();
    let mut watcher = Client::connect(&mut world, 0);
    let mut maker = Client::connect(&mut world, 1);
    watch(&mut world, &mut watcher, 1, A, None);
    world.conns[watcher.peer.0].stuck = true;
    let long = "x".repeat(3000);
    let mut names = Vec::new();
    for n in 0..200 {
        let topic = name(&format!("a{n:03}{long}"));
        maker.producer(&mut world, &topic, n);
        names.push(topic);
    }
    world.run_until_idle();
    assert!(world.totals_output() < 300_000, "{}", world.totals_output());
    world.conns[watcher.peer.0].stuck = false;
    let mut heard = Vec::new();
    let mut last = String::new();
    while heard.len() < names.len() {
        let update = update(&mut world, &mut watcher);
        heard.extend(update.new_topics);
        last = update.topics_hash;
    }
    heard.sort();
    assert_eq!(heard, names);
    let listed = list(&mut world, &mut maker, Some(A), None);
    assert_eq!(listed.topics_hash.unwrap(), last);
    watcher.expect_silence(&mut world);
}

/// Topics that appear while the list of a new watcher is on its way are in the list or told, and never lost.
#[test]
fn nothing_falls_between_the_list_and_the_updates() {
    for skip in 0..60 {
        let mut world = world();
        let mut watcher = Client::connect(&mut world, 0);
        let mut makers: Vec<Client> = (0..2)
            .map(|core| Client::connect(&mut world, core))
            .collect();
        watcher.say(&mut world, &watch_command(5, 1, NAMESPACE, A, None));
        let mut names = Vec::new();
        // Any point of the exchange: the makers speak after so many steps.
        for _ in 0..skip {
            if let Some(step) = world.steps().first().copied() {
                world.apply(step, usize::MAX);
            }
        }
        for (core, maker) in makers.iter_mut().enumerate() {
            for other in 0..2 {
                let topic = world.topic_on(other, &format!("a{core}"));
                maker.say(
                    &mut world,
                    &say::producer(&topic, u64::from(other), 9, None),
                );
                names.push(topic);
            }
        }
        world.run_until_idle();
        let begun = watcher.expect(&mut world, Type::WatchTopicListSuccess);
        let mut heard = begun.command.watch_topic_list_success.unwrap().topic;
        watcher.listen(&mut world);
        for told in std::mem::take(&mut watcher.inbox) {
            heard.extend(told.command.watch_topic_update.unwrap().new_topics);
        }
        heard.sort();
        names.sort();
        assert_eq!(heard, names, "after {skip} steps");
    }
}

#[test]
fn without_the_setting_watchers_are_neither_offered_nor_taken() {
    let mut config = WorldConfig::default();
    config.settings.enable_broker_topic_list_watcher = false;
    let mut world = World::new(config);
    let peer = world.open(0);
    world.feed(peer, &say::bytes(&say::connect()));
    world.run_until_idle();
    let connected = world.take(peer).pop().unwrap().command.connected.unwrap();
    let flags = connected.feature_flags.unwrap();
    assert_eq!(flags.supports_topic_watchers, Some(false));
    let mut client = Client::connect(&mut world, 0);
    client.say(&mut world, &watch_command(5, 1, NAMESPACE, A, None));
    assert_eq!(client.error(&mut world, 5).0, ServerError::NotAllowedError);
}

/// A watcher keeps its namespace: a name that no namespace can have is not taken.
#[test]
fn a_namespace_has_a_bound() {
    let mut world = world();
    for (length, fits) in [(1024, true), (1025, false)] {
        let mut client = Client::connect(&mut world, 0);
        let namespace = format!("public/{}", "n".repeat(length));
        client.say(&mut world, &watch_command(1, 1, &namespace, A, None));
        world.run_until_idle();
        assert_eq!(world.is_open(client.peer), fits);
        if fits {
            client.expect(&mut world, Type::WatchTopicListSuccess);
        }
    }
}
