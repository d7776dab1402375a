//! From a topic to the broker that serves it, and again when it moves.

use super::*;
use proto::command_lookup_topic_response::LookupType;

const BROKER: &str = "pulsar://broker:6650";

#[test]
fn a_redirect_is_followed_with_what_it_says() {
    let mut bench = Bench::new();
    bench.machine.open_producer(0, plain()).unwrap();
    let first = bench.connect(URL);
    let lookup = bench.hear(first, Type::Lookup).0.lookup_topic.unwrap();
    assert!(!lookup.authoritative());
    bench.located(first, &lookup, "pulsar://other:1", |answer| {
        answer.response = Some(LookupType::Redirect as i32);
    });
    let second = bench.connect("pulsar://other:1");
    let lookup = bench.hear(second, Type::Lookup).0.lookup_topic.unwrap();
    assert!(lookup.authoritative());
    bench.located(second, &lookup, BROKER, |_| {});
    let third = bench.connect(BROKER);
    let producer = bench.accept(third);
    assert_eq!(producer.topic, TOPIC);
    assert!(matches!(bench.event(), Event::ProducerOpened { .. }));
}

#[test]
fn redirects_do_not_go_on_for_ever() {
    let mut bench = Bench::with(MachineConfig {
        max_lookup_redirects: 3,
        ..MachineConfig::default()
    });
    bench.machine.lookup(0, TOPIC);
    let conn = bench.connect(URL);
    for _ in 0..=3 {
        let lookup = bench.hear(conn, Type::Lookup).0.lookup_topic.unwrap();
        bench.located(conn, &lookup, URL, |answer| {
            answer.response = Some(LookupType::Redirect as i32);
        });
    }
    bench.silent();
    bench.pass(100);
    bench.hear(conn, Type::Lookup);
}

#[test]
fn behind_a_proxy_the_service_url_is_used_and_the_broker_named() {
    let mut bench = Bench::new();
    bench.machine.open_producer(0, plain()).unwrap();
    let conn = bench.connect(URL);
    let lookup = bench.hear(conn, Type::Lookup).0.lookup_topic.unwrap();
    bench.located(conn, &lookup, BROKER, |answer| {
        answer.proxy_through_service_url = Some(true);
    });
    let (proxied, hello) = bench.greet(URL);
    assert_eq!(hello.proxy_to_broker_url.as_deref(), Some("broker:6650"));
    bench.welcome(proxied);
    bench.accept(proxied);
}

#[test]
fn connections_to_a_broker_are_shared() {
    let mut bench = Bench::new();
    let (_, conn) = bench.producer(plain());
    bench.machine.open_producer(0, plain()).unwrap();
    bench.locate(conn, URL);
    bench.accept(conn);
    assert!(matches!(bench.event(), Event::ProducerOpened { .. }));
    bench.silent();
}

#[test]
fn a_broker_that_is_not_ready_is_asked_again_and_a_topic_that_is_not_there_is_not() {
    let mut bench = Bench::new();
    bench.machine.open_producer(0, plain()).unwrap();
    let conn = bench.connect(URL);
    for error in [ServerError::ServiceNotReady, ServerError::MetadataError] {
        let lookup = bench.hear(conn, Type::Lookup).0.lookup_topic.unwrap();
        bench.located(conn, &lookup, URL, |answer| {
            answer.response = Some(LookupType::Failed as i32);
            answer.error = Some(error as i32);
        });
        bench.silent();
        bench.pass(250);
    }
    let lookup = bench.hear(conn, Type::Lookup).0.lookup_topic.unwrap();
    bench.located(conn, &lookup, URL, |answer| {
        answer.response = Some(LookupType::Failed as i32);
        answer.error = Some(ServerError::TopicNotFound as i32);
    });
    match bench.event() {
        Event::ProducerFailed { error, .. } => {
            assert!(matches!(
                error,
                Error::Broker {
                    code: ServerError::TopicNotFound,
                    ..
                }
            ));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_that_does_not_come_is_asked_for_again_until_the_time_is_over() {
    let mut bench = Bench::with(MachineConfig {
        operation_timeout: 1_000 * MILLIS,
        ..MachineConfig::default()
    });
    let call = bench.machine.partitions(0, TOPIC, true);
    let conn = bench.connect(URL);
    bench.hear(conn, Type::PartitionedMetadata);
    bench.pass(1_000);
    match bench.event() {
        Event::Answer {
            call: which,
            result,
        } => {
            assert_eq!(which, call);
            assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_producer_sent_away_goes_where_it_is_told_without_asking() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    bench.send(key, "x", 1);
    let before = bench.sent(conn);
    let close = proto::CommandCloseProducer {
        producer_id: key.0,
        request_id: u64::MAX,
        assigned_broker_service_url: Some(BROKER.into()),
        ..Default::default()
    };
    bench.say(
        conn,
        BaseCommand {
            close_producer: Some(close),
            ..base(Type::CloseProducer)
        },
    );
    let other = bench.connect(BROKER);
    let producer = bench.accept(other);
    assert_eq!(producer.epoch(), 1);
    assert_eq!(producer.producer_name.as_deref(), Some("given"));
    assert!(!producer.user_provided_producer_name());
    let again = bench.sent(other);
    assert_eq!(before, again, "byte for byte");
    bench.receipt(other, key, 0, 5);
    assert_eq!(bench.ends(), (vec![1], Ok(5)));
}

#[test]
fn a_topic_that_migrated_is_looked_up_at_the_other_cluster() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    let moved = proto::CommandTopicMigrated {
        resource_id: key.0,
        resource_type: proto::command_topic_migrated::ResourceType::Producer as i32,
        broker_service_url: Some("pulsar://green:6650".into()),
        broker_service_url_tls: None,
    };
    bench.say(
        conn,
        BaseCommand {
            topic_migrated: Some(moved),
            ..base(Type::TopicMigrated)
        },
    );
    bench.silent();
    let close = proto::CommandCloseProducer {
        producer_id: key.0,
        request_id: u64::MAX,
        ..Default::default()
    };
    bench.say(
        conn,
        BaseCommand {
            close_producer: Some(close),
            ..base(Type::CloseProducer)
        },
    );
    bench.pass(100);
    let green = bench.connect("pulsar://green:6650");
    bench.locate(green, "pulsar://green:6650");
    bench.accept(green);
}

#[test]
fn waiting_for_its_turn_has_no_time_limit() {
    use super::super::super::AccessMode;
    let mut bench = Bench::new();
    let config = ProducerConfig {
        access_mode: AccessMode::WaitForExclusive,
        ..plain()
    };
    let key = bench.machine.open_producer(0, config).unwrap();
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let producer = bench.hear(conn, Type::Producer).0.producer.unwrap();
    bench.produce(conn, &producer, |success| {
        success.producer_ready = Some(false)
    });
    // An hour, with signs of life.
    for _ in 0..200 {
        bench.pass(20_000);
        bench.say(
            conn,
            BaseCommand {
                ping: Some(proto::CommandPing {}),
                ..base(Type::Ping)
            },
        );
        bench.hear(conn, Type::Pong);
    }
    bench.silent();
    bench.produce(conn, &producer, |success| success.topic_epoch = Some(3));
    assert!(matches!(bench.event(), Event::ProducerOpened { producer, .. } if producer == key));
    bench.machine.connection_lost(bench.now, conn, "cut");
    bench.pass(100);
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let producer = bench.accept(conn);
    assert_eq!((producer.topic_epoch, producer.epoch()), (Some(3), 1));
}

#[test]
fn an_established_producer_is_tried_again_for_ever() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    bench.machine.connection_lost(0, conn, "cut");
    let mut attempts = 0;
    // A day: the waits double up to a minute.
    while bench.now < 86_400_000 * MILLIS {
        bench.pass(1_000);
        while let Some(event) = bench.events.pop_front() {
            match event {
                Event::Connect { conn, .. } => {
                    attempts += 1;
                    bench.machine.connection_lost(bench.now, conn, "refused");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!((1_400..1_700).contains(&attempts), "{attempts}");
    assert_eq!(bench.machine.pending(key), 0);
}
