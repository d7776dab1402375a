//! A broker that breaks the rules in one way: what the client does about it.

use vela_codec::entry;
use vela_proto::{MessageIdData, MessageMetadata};

use super::super::super::ConsumerKey;
use super::super::super::connection::MAX_UNSENT_COMMANDS;
use super::super::super::consumer::ConsumerConfig;
use super::*;

/// A consumer with a connection on which the broker has opened it.
fn consumer(bench: &mut Bench, change: impl FnOnce(&mut ConsumerConfig)) -> (ConsumerKey, ConnKey) {
    let mut config = ConsumerConfig::new(TOPIC, "s");
    change(&mut config);
    let key = bench.machine.open_consumer(bench.now, config);
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let subscribe = bench.hear(conn, Type::Subscribe).0.subscribe.unwrap();
    bench.succeed(conn, subscribe.request_id);
    bench.look();
    bench.events.clear();
    (key, conn)
}

fn message(consumer: ConsumerKey, entry_id: u64, metadata: &MessageMetadata) -> Bytes {
    let mut rest = BytesMut::new();
    entry::write(metadata, b"payload", &mut rest);
    let command = BaseCommand {
        message: Some(proto::CommandMessage {
            consumer_id: consumer.0,
            message_id: MessageIdData {
                ledger_id: 1,
                entry_id,
                ..Default::default()
            },
            ..Default::default()
        }),
        ..base(Type::Message)
    };
    let mut out = BytesMut::new();
    encode::command_with_rest(&command, rest.len(), &mut out);
    out.extend_from_slice(&rest);
    out.freeze()
}

#[test]
fn a_broker_that_delivers_without_permits_is_left() {
    let mut bench = Bench::new();
    let (key, conn) = consumer(&mut bench, |config| config.receiver_queue_size = 10);
    let metadata = MessageMetadata::default();
    for entry in 0..1_010 {
        bench
            .machine
            .handle_bytes(0, conn, message(key, entry, &metadata));
    }
    bench.look();
    assert!(
        bench.machine.is_consumer_connected(key),
        "what was read already is taken"
    );
    bench
        .machine
        .handle_bytes(0, conn, message(key, 1_010, &metadata));
    bench.look();
    let why = std::iter::from_fn(|| bench.events.pop_front()).find_map(|event| match event {
        Event::Disconnect { why, .. } => Some(why),
        _ => None,
    });
    let why = why.expect("it is left");
    assert!(why.contains("without a permit"), "{why}");
}

#[test]
fn a_broker_that_sends_without_reading_is_left() {
    let mut bench = Bench::new();
    let (_, conn) = bench.producer(plain());
    let mut pings = BytesMut::new();
    for _ in 0..100_000 {
        encode::ping(&mut pings);
    }
    let pings = pings.freeze();
    let mut rounds = 0;
    while bench.machine.unsent(conn) > 0 || rounds == 0 {
        bench.machine.handle_bytes(0, conn, pings.clone());
        rounds += 1;
        assert!(bench.machine.unsent(conn) <= MAX_UNSENT_COMMANDS);
        assert!(rounds < 1_000);
    }
}

#[test]
fn one_challenge_at_a_time_and_none_before_connect() {
    let config = MachineConfig {
        authentication: true,
        ..MachineConfig::default()
    };
    let mut bench = Bench::with(config);
    bench.machine.partitions(0, TOPIC, true);
    let Event::Connect { conn, .. } = bench.event() else {
        panic!("no connection is wanted");
    };
    bench.machine.connected(0, conn);
    bench.event();
    bench.say(conn, base(Type::AuthChallenge));
    assert!(matches!(bench.event(), Event::Disconnect { .. }));
}

#[test]
fn sent_in_circles_it_does_not_run() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    let close = BaseCommand {
        close_producer: Some(proto::CommandCloseProducer {
            producer_id: key.0,
            request_id: 0,
            assigned_broker_service_url: Some(URL.into()),
            assigned_broker_service_url_tls: None,
        }),
        ..base(Type::CloseProducer)
    };
    bench.say(conn, close.clone());
    // The first time at once, without asking where.
    bench.accept(conn);
    bench.say(conn, close);
    bench.silent();
    bench.pass(100);
    bench.accept(conn);
}

#[test]
fn an_answer_from_before_it_was_sent_away_is_nobodys() {
    let mut bench = Bench::new();
    let key = bench.machine.open_producer(0, plain()).unwrap();
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let before = bench.hear(conn, Type::Producer).0.producer.unwrap();
    let close = proto::CommandCloseProducer {
        producer_id: key.0,
        request_id: 0,
        assigned_broker_service_url: Some("pulsar://other:6650".into()),
        assigned_broker_service_url_tls: None,
    };
    bench.say(
        conn,
        BaseCommand {
            close_producer: Some(close),
            ..base(Type::CloseProducer)
        },
    );
    let other = bench.connect("pulsar://other:6650");
    bench.accept(other);
    assert!(matches!(bench.event(), Event::ProducerOpened { .. }));
    bench.produce(conn, &before, |_| {});
    // Nor does it run out of time.
    bench.pass(31_000);
    bench.send(key, "x", 1);
    bench.look();
    assert!(bench.machine.is_producer_connected(key));
}

#[test]
fn a_long_reason_is_cut_and_a_huge_name_refused() {
    let mut bench = Bench::new();
    let call = bench.machine.partitions(0, TOPIC, true);
    let conn = bench.connect(URL);
    let ask = bench
        .hear(conn, Type::PartitionedMetadata)
        .0
        .partition_metadata;
    let error = proto::CommandError {
        request_id: ask.unwrap().request_id,
        error: ServerError::AuthorizationError as i32,
        message: "\u{e4}".repeat(1 << 20),
    };
    bench.say(
        conn,
        BaseCommand {
            error: Some(error),
            ..base(Type::Error)
        },
    );
    let Event::Answer {
        call: answered,
        result,
    } = bench.event()
    else {
        panic!("no answer");
    };
    assert_eq!(answered, call);
    let Err(Error::Broker { message, .. }) = result else {
        panic!("{result:?}");
    };
    assert!(message.len() < 5_000, "{}", message.len());

    let key = bench.machine.open_producer(0, plain()).unwrap();
    bench.locate(conn, URL);
    let open = bench.hear(conn, Type::Producer).0.producer.unwrap();
    bench.produce(conn, &open, |success| {
        success.producer_name = "n".repeat(1 << 20)
    });
    bench.look();
    assert!(!bench.machine.is_producer_connected(key));
}

#[test]
fn nobody_is_sent_from_tls_to_plain() {
    let mut bench = Bench::new();
    bench.machine.config.service_urls = vec!["pulsar+ssl://service:6651".into()];
    bench.machine.open_producer(0, plain()).unwrap();
    let conn = bench.connect("pulsar+ssl://service:6651");
    let lookup = bench.hear(conn, Type::Lookup).0.lookup_topic.unwrap();
    bench.located(conn, &lookup, "pulsar://plain:6650", |answer| {
        answer.broker_service_url_tls = Some("pulsar://plain:6650".into());
    });
    bench.silent();
}

#[test]
fn only_who_said_so_waits_for_its_turn() {
    let mut bench = Bench::new();
    let key = bench.machine.open_producer(0, plain()).unwrap();
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let open = bench.hear(conn, Type::Producer).0.producer.unwrap();
    bench.produce(conn, &open, |success| success.producer_ready = Some(false));
    bench.hear(conn, Type::CloseProducer);
    bench.pass(31_000);
    let failed = std::iter::from_fn(|| bench.events.pop_front())
        .any(|event| matches!(event, Event::ProducerFailed { producer, .. } if producer == key));
    assert!(failed, "it ends by its time-out");
}

#[test]
fn calls_of_a_consumer_without_a_connection_end() {
    let mut bench = Bench::new();
    let (key, conn) = consumer(&mut bench, |config| config.ack_receipt = true);
    bench.machine.connection_lost(0, conn, "gone");
    bench.machine.with_consumer(0, key, |consumer, wire| {
        let id = crate::MessageId {
            batch_index: -1,
            ..crate::MessageId::EARLIEST
        };
        consumer.seek(0, crate::StartPosition::Earliest, 1, wire);
        consumer.has_message_available(0, 2, wire);
        consumer.acknowledge(0, &[id], Some(3), wire);
    });
    bench.pass(31_000);
    let ended: Vec<u64> = std::iter::from_fn(|| bench.events.pop_front())
        .filter_map(|event| match event {
            Event::Consumer {
                event:
                    super::super::super::consumer::ConsumerEvent::Answer {
                        call,
                        result: Err(Error::Timeout { .. }),
                    },
                ..
            } => Some(call),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [1, 2, 3]);
}

#[test]
fn chunks_that_cannot_be_are_refused_and_hold_nothing() {
    let mut bench = Bench::new();
    let (key, conn) = consumer(&mut bench, |_| {});
    for (entry, (chunks, total)) in [(i32::MAX, 100), (3, i32::MAX), (1 << 21, 100)]
        .into_iter()
        .enumerate()
    {
        let metadata = MessageMetadata {
            uuid: Some("u".into()),
            chunk_id: Some(0),
            num_chunks_from_msg: Some(chunks),
            total_chunk_msg_size: Some(total),
            ..Default::default()
        };
        let bytes = message(key, entry as u64, &metadata);
        bench.machine.handle_bytes(0, conn, bytes);
        let stats = bench.machine.consumer(key).unwrap().stats();
        assert_eq!(stats.damaged, entry as u64 + 1);
    }
}
