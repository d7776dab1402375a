//! Limits of topics and connections, and messages that must be encrypted.

use bytes::BytesMut;
use vela_broker::engine::admin::Ask;
use vela_codec::{encode, entry};
use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{World, WorldConfig};

const NAMESPACE: &str = "namespace/public/default";

fn refused(world: &mut World, client: &mut Client, topic: &str, id: u64) -> (ServerError, String) {
    let request = client.request();
    client.say(world, &say::producer(topic, id, request, None));
    client.error(world, request)
}

fn refused_consumer(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    subscription: &str,
    id: u64,
) -> (ServerError, String) {
    let request = client.request();
    let subscribe = say::subscribe(topic, subscription, true, id, request);
    client.say(world, &say::subscribe_command(subscribe));
    client.error(world, request)
}

/// The policy of the namespace wins over the setting, that of the topic over both; each says itself in the error.
#[test]
fn producers_and_consumers_of_a_topic_are_limited() {
    let mut config = WorldConfig::default();
    config.settings.max_producers_per_topic = 2;
    config.settings.max_consumers_per_topic = 3;
    config.settings.max_consumers_per_subscription = 2;
    config.settings.max_subscriptions_per_topic = 2;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    for id in 1..=2 {
        client.producer(&mut world, &topic, id);
    }
    let (error, text) = refused(&mut world, &mut client, &topic, 3);
    assert_eq!(error, ServerError::ProducerBusy);
    assert!(text.contains("maxProducersPerTopic is 2"), "{text}");
    world.put_metadata(NAMESPACE, br#"{"max_producers_per_topic": 3}"#);
    world.run_until_idle();
    client.producer(&mut world, &topic, 3);
    refused(&mut world, &mut client, &topic, 4);
    let key = format!("topic-policies/{}", topic.replacen("://", "/", 1));
    world.put_metadata(&key, br#"{"maxProducers": 0}"#);
    world.run_until_idle();
    client.producer(&mut world, &topic, 4);
    for id in 1..=2 {
        client.subscribe(&mut world, &topic, "a", true, id);
    }
    let (error, text) = refused_consumer(&mut world, &mut client, &topic, "a", 3);
    assert_eq!(error, ServerError::ConsumerBusy);
    assert!(text.contains("maxConsumersPerSubscription is 2"), "{text}");
    client.subscribe(&mut world, &topic, "b", true, 3);
    let (error, text) = refused_consumer(&mut world, &mut client, &topic, "b", 4);
    assert_eq!(error, ServerError::ConsumerBusy);
    assert!(text.contains("maxConsumersPerTopic is 3"), "{text}");
    client.say(&mut world, &say::close_consumer(1, 90));
    client.success(&mut world, 90);
    let (error, text) = refused_consumer(&mut world, &mut client, &topic, "c", 4);
    assert_eq!(error, ServerError::NotAllowedError);
    assert!(text.contains("maxSubscriptionsPerTopic is 2"), "{text}");
    client.subscribe(&mut world, &topic, "b", true, 4);
}

/// Topics of all cores count, partitions of topics that are there are no new ones, and what goes makes room.
#[test]
fn a_namespace_has_no_more_topics_than_it_may() {
    const TOO_MANY: &str = "Exceed maximum number of topics in namespace.";
    let mut config = WorldConfig::default();
    config.settings.max_topics_per_namespace = 2;
    let mut world = World::new(config);
    let topics = [world.topic_on(0, "a"), world.topic_on(1, "b")];
    let (third, other) = (world.topic_on(0, "c"), world.topic_on(1, "d"));
    let mut client = Client::connect(&mut world, 0);
    for (id, topic) in (1..).zip(&topics) {
        client.producer(&mut world, topic, id);
    }
    let refusal = (ServerError::NotAllowedError, TOO_MANY.to_owned());
    let check = |world: &mut World, client: &mut Client| {
        for topic in [&third, &other] {
            assert_eq!(refused(world, client, topic, 3), refusal);
            assert_eq!(refused_consumer(world, client, topic, "s", 3), refusal);
        }
        for (id, topic) in (11..).zip(&topics) {
            client.producer(world, topic, id);
        }
    };
    check(&mut world, &mut client);
    world.restart();
    let mut client = Client::connect(&mut world, 1);
    check(&mut world, &mut client);
    world.put_metadata(NAMESPACE, br#"{"max_topics_per_namespace": 3}"#);
    world.run_until_idle();
    client.producer(&mut world, &third, 3);
    assert_eq!(refused(&mut world, &mut client, &other, 4), refusal);
    let partitioned = "partitioned/persistent/public/default/p";
    world.put_metadata(partitioned, b"1");
    world.run_until_idle();
    client.producer(&mut world, "persistent://public/default/p-partition-0", 4);
    world.ask(&topics[0], Ask::Delete { force: true });
    world.ask(&topics[1], Ask::Delete { force: true });
    world.run_until_idle();
    client.producer(&mut world, &other, 5);
    let volatile = other.replacen("persistent", "non-persistent", 1);
    client.producer(&mut world, &volatile, 6);
}

#[test]
fn one_address_has_its_share_of_a_topic() {
    let mut config = WorldConfig::default();
    config.settings.max_same_address_producers_per_topic = 1;
    config.settings.max_same_address_consumers_per_topic = 1;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    let mut other = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.subscribe(&mut world, &topic, "a", true, 1);
    // The port does not make it another address.
    let (error, text) = refused(&mut world, &mut other, &topic, 1);
    assert_eq!(error, ServerError::ProducerBusy);
    assert!(text.contains("127.0.0.1"), "{text}");
    assert_eq!(
        refused_consumer(&mut world, &mut other, &topic, "b", 1).0,
        ServerError::ConsumerBusy
    );
    let another = world.topic_on(1, "u");
    other.producer(&mut world, &another, 1);
}

#[test]
fn a_connection_cannot_open_without_end() {
    let mut config = WorldConfig::default();
    config.settings.max_clients_per_connection = 4;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    client.producer(&mut world, &topic, 2);
    client.subscribe(&mut world, &topic, "s", true, 1);
    client.subscribe(&mut world, &topic, "s", true, 2);
    for (error, text) in [
        refused(&mut world, &mut client, &topic, 3),
        refused_consumer(&mut world, &mut client, &topic, "s", 3),
    ] {
        assert_eq!(error, ServerError::NotAllowedError);
        assert!(text.contains("maxClientsPerConnection is 4"), "{text}");
    }
    // A repeat is no new one; another connection has its own; a close makes room.
    client.producer(&mut world, &topic, 2);
    let mut other = Client::connect(&mut world, 0);
    other.producer(&mut world, &topic, 1);
    client.say(&mut world, &say::close_consumer(1, 90));
    client.success(&mut world, 90);
    client.producer(&mut world, &topic, 3);
    refused(&mut world, &mut client, &topic, 4);
}

fn send(world: &mut World, client: &Client, sequence: u64, metadata: proto::MessageMetadata) {
    let command = proto::CommandSend {
        producer_id: 1,
        sequence_id: sequence,
        is_chunk: metadata.chunk_id.map(|_| true),
        ..Default::default()
    };
    let mut stored = BytesMut::new();
    entry::write(&metadata, b"payload", &mut stored);
    let mut out = BytesMut::new();
    let command = BaseCommand {
        send: Some(command),
        ..say::base(Type::Send)
    };
    encode::command_with_rest(&command, stored.len(), &mut out);
    out.extend_from_slice(&stored);
    world.feed(client.peer, &out);
}

/// The error of the SEND, or `None` if it was stored.
fn answer(world: &mut World, client: &mut Client, sequence: u64) -> Option<ServerError> {
    let answer = client.next(world).command;
    if let Some(error) = answer.send_error {
        assert_eq!(error.sequence_id, sequence);
        return ServerError::try_from(error.error).ok();
    }
    assert_eq!(answer.send_receipt.unwrap().sequence_id, sequence);
    None
}

fn plain(sequence: u64) -> proto::MessageMetadata {
    proto::MessageMetadata {
        producer_name: "p".into(),
        sequence_id: sequence,
        publish_time: 1_000,
        ..Default::default()
    }
}

#[test]
fn encryption_is_demanded_of_producers_and_of_each_message() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    world.put_metadata(NAMESPACE, br#"{"encryption_required": true}"#);
    world.run_until_idle();
    // One that never promised it is closed and refused.
    client.expect(&mut world, Type::CloseProducer);
    let (error, text) = refused(&mut world, &mut client, &topic, 1);
    assert_eq!(error, ServerError::MetadataError);
    assert!(text.contains("Encryption is required in"), "{text}");
    let request = client.request();
    let mut command = say::producer(&topic, 1, request, None);
    command.producer.as_mut().unwrap().encrypted = Some(true);
    client.say(&mut world, &command);
    client.expect(&mut world, Type::ProducerSuccess);
    send(&mut world, &client, 0, plain(0));
    assert_eq!(
        answer(&mut world, &mut client, 0),
        Some(ServerError::MetadataError)
    );
    let keys = vec![proto::EncryptionKeys {
        key: "k".into(),
        value: vec![1].into(),
        ..Default::default()
    }];
    let metadata = proto::MessageMetadata {
        encryption_keys: keys,
        ..plain(1)
    };
    send(&mut world, &client, 1, metadata);
    assert_eq!(answer(&mut world, &mut client, 1), None);
}

#[test]
fn a_topic_limits_the_size_and_the_delay_of_a_message() {
    let mut config = WorldConfig::default();
    config.settings.delayed_delivery_max_delay_in_millis = 500;
    let mut world = World::new(config);
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.producer(&mut world, &topic, 1);
    for (sequence, at) in [(0, 1_500), (1, 1_501), (2, 10)] {
        let metadata = proto::MessageMetadata {
            deliver_at_time: Some(at),
            ..plain(sequence)
        };
        send(&mut world, &client, sequence, metadata);
        let late = (at == 1_501).then_some(ServerError::NotAllowedError);
        assert_eq!(answer(&mut world, &mut client, sequence), late);
    }
    let mut stored = BytesMut::new();
    entry::write(&plain(3), b"payload", &mut stored);
    let key = format!("topic-policies/{}", topic.replacen("://", "/", 1));
    for (less, error) in [(0, None), (1, Some(ServerError::NotAllowedError))] {
        let policy = format!(r#"{{"maxMessageSize": {}}}"#, stored.len() - less);
        world.put_metadata(&key, policy.as_bytes());
        world.run_until_idle();
        send(&mut world, &client, 3, plain(3));
        assert_eq!(answer(&mut world, &mut client, 3), error);
    }
    // Chunks may be larger.
    let chunk = proto::MessageMetadata {
        chunk_id: Some(0),
        num_chunks_from_msg: Some(2),
        ..plain(3)
    };
    send(&mut world, &client, 3, chunk);
    assert_eq!(answer(&mut world, &mut client, 3), None);
}

#[test]
fn metadata_of_a_producer_and_its_epoch_are_bounded() {
    let mut world = World::new(WorldConfig::default());
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    for large in [true, false] {
        let request = client.request();
        let mut command = say::producer(&topic, 1, request, None);
        let producer = command.producer.as_mut().unwrap();
        producer.metadata = vec![proto::KeyValue {
            key: "k".into(),
            value: "v".repeat(if large { 9_000 } else { 8_000 }),
        }];
        if !large {
            producer.topic_epoch = Some(u64::MAX);
        }
        client.say(&mut world, &command);
        let expected = match large {
            true => ServerError::MetadataError,
            false => ServerError::NotAllowedError,
        };
        assert_eq!(client.error(&mut world, request).0, expected);
    }
}
