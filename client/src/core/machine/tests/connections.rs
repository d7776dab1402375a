//! Handshakes, signs of life, and what becomes of everybody when a connection goes.

use super::super::super::AuthData;
use super::*;

#[test]
fn says_what_pulsars_clients_say_and_honours_the_answer() {
    let mut bench = Bench::new();
    bench.max_message_size = 100;
    let key = bench.machine.open_producer(0, plain()).unwrap();
    let (conn, hello) = bench.greet(URL);
    assert_eq!(hello.protocol_version, Some(21));
    assert_eq!(hello.auth_method_name, None);
    let flags = hello.feature_flags.unwrap();
    assert!(flags.supports_auth_refresh() && flags.supports_broker_entry_metadata());
    assert!(flags.supports_partial_producer());
    assert!(flags.supports_get_partitioned_metadata_without_auto_creation());
    bench.silent();
    bench.welcome(conn);
    bench.locate(conn, URL);
    bench.accept(conn);
    bench.event();
    let large = OutgoingMessage::new(vec![0; 101]);
    let refused = bench.machine.send(0, key, large, 1).unwrap_err();
    assert_eq!(
        (refused.error, refused.ticket),
        (
            Error::MessageTooLarge {
                size: 101,
                limit: 100
            },
            1
        )
    );
    // With its metadata it is too large; that is found when it is encoded.
    bench.send(key, &"x".repeat(90), 2);
    let (sends, result) = bench.ends();
    assert_eq!(sends, [2]);
    assert!(matches!(result, Err(Error::MessageTooLarge { .. })));
    bench.send(key, "small", 3);
    assert_eq!(bench.sent(conn).0.sequence_id, 1);
}

#[test]
fn credentials_are_asked_for_and_challenges_answered() {
    let mut bench = Bench::with(MachineConfig {
        authentication: true,
        ..MachineConfig::default()
    });
    bench.machine.partitions(0, TOPIC, true);
    let Event::Connect { conn, .. } = bench.event() else {
        panic!("no connection is wanted");
    };
    bench.machine.connected(0, conn);
    assert!(matches!(
        bench.event(),
        Event::Authenticate {
            challenge: None,
            ..
        }
    ));
    let auth = |data: &'static str| {
        Ok(AuthData {
            method: "token".into(),
            data: Bytes::from_static(data.as_bytes()),
        })
    };
    bench.machine.authenticate(0, conn, auth("one"));
    let hello = bench.hear(conn, Type::Connect).0.connect.unwrap();
    assert_eq!(hello.auth_method_name.as_deref(), Some("token"));
    assert_eq!(hello.auth_data.unwrap(), "one");
    bench.welcome(conn);
    bench.hear(conn, Type::PartitionedMetadata);
    let challenge = proto::CommandAuthChallenge {
        challenge: Some(proto::AuthData {
            auth_method_name: Some("token".into()),
            auth_data: Some(Bytes::from_static(b"PulsarAuthRefresh")),
        }),
        ..Default::default()
    };
    bench.say(
        conn,
        BaseCommand {
            auth_challenge: Some(challenge),
            ..base(Type::AuthChallenge)
        },
    );
    match bench.event() {
        Event::Authenticate { challenge, .. } => {
            assert_eq!(challenge.unwrap(), "PulsarAuthRefresh")
        }
        other => panic!("{other:?}"),
    }
    bench.machine.authenticate(0, conn, auth("two"));
    let response = bench
        .hear(conn, Type::AuthResponse)
        .0
        .auth_response
        .unwrap();
    assert_eq!(response.response.unwrap().auth_data.unwrap(), "two");
}

#[test]
fn a_refused_handshake_ends_what_waits_for_it() {
    let mut bench = Bench::new();
    let key = bench.machine.open_producer(0, plain()).unwrap();
    bench.send(key, "x", 1);
    let (conn, _) = bench.greet(URL);
    bench.refuse(conn, u64::MAX, ServerError::AuthenticationError);
    assert!(matches!(bench.event(), Event::Disconnect { .. }));
    let (sends, result) = bench.ends();
    assert_eq!(sends, [1]);
    let Err(Error::Broker { code, .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(code, ServerError::AuthenticationError);
    assert!(matches!(bench.event(), Event::ProducerFailed { .. }));
    bench.silent();
}

#[test]
fn silence_is_answered_with_a_ping_and_then_the_end() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    bench.pass(29_999);
    bench.silent();
    bench.pass(1);
    bench.hear(conn, Type::Ping);
    bench.say(
        conn,
        BaseCommand {
            pong: Some(proto::CommandPong {}),
            ..base(Type::Pong)
        },
    );
    bench.pass(30_000);
    bench.hear(conn, Type::Ping);
    bench.pass(29_999);
    bench.silent();
    bench.pass(1);
    assert!(matches!(bench.event(), Event::Disconnect { conn: gone, .. } if gone == conn));
    assert!(!bench.machine.is_producer_connected(key));
    bench.pass(100);
    assert!(matches!(bench.event(), Event::Connect { .. }));
}

#[test]
fn a_ping_is_answered() {
    let mut bench = Bench::new();
    let (_, conn) = bench.producer(plain());
    bench.say(
        conn,
        BaseCommand {
            ping: Some(proto::CommandPing {}),
            ..base(Type::Ping)
        },
    );
    bench.hear(conn, Type::Pong);
}

#[test]
fn a_socket_that_does_not_come_is_waited_for_ten_seconds() {
    let mut bench = Bench::new();
    bench.machine.open_producer(0, plain()).unwrap();
    let Event::Connect { conn, .. } = bench.event() else {
        panic!("no connection is wanted");
    };
    bench.pass(10_000);
    assert!(matches!(bench.event(), Event::Disconnect { conn: gone, .. } if gone == conn));
    // Another attempt, and another, until the time for opening is over.
    let mut attempts = 0;
    let error = loop {
        match bench.events.pop_front() {
            Some(Event::Connect { conn, .. }) => {
                attempts += 1;
                bench.machine.connection_lost(bench.now, conn, "refused");
            }
            Some(Event::ProducerFailed { error, .. }) => break error,
            Some(_) => {}
            None => bench.pass(10),
        }
    };
    assert_eq!(error, Error::Connection("refused".into()));
    assert!((5..20).contains(&attempts), "{attempts} attempts");
    assert_eq!(bench.now, 30_000 * MILLIS);
}

#[test]
fn several_service_urls_are_tried_in_turn() {
    let config = MachineConfig {
        service_urls: vec!["pulsar://a:1".into(), "pulsar://b:2".into()],
        ..MachineConfig::default()
    };
    let mut machine = Machine::<u64>::new(config).unwrap();
    machine.partitions(0, TOPIC, true);
    let mut urls = Vec::new();
    for _ in 0..3 {
        while let Some(event) = machine.poll_event() {
            if let Event::Connect { conn, url } = event {
                urls.push(url);
                machine.connection_lost(0, conn, "refused");
            }
        }
        machine.handle_timeout(1_000 * MILLIS);
    }
    assert_eq!(
        urls,
        ["pulsar://a:1", "pulsar://b:2", "pulsar://a:1"][..urls.len()]
    );
    assert!(urls.len() >= 2);
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    bench.send(key, "x", 1);
    bench.sent(conn);
    bench.machine.handle_bytes(
        0,
        conn,
        Bytes::from_static(&[0, 0, 0, 9, 0, 0, 0, 5, 1, 2, 3, 4, 5]),
    );
    assert!(matches!(bench.event(), Event::Disconnect { .. }));
    // Whatever comes after is nobody's.
    bench.receipt(conn, key, 0, 1);
    bench.silent();
    bench.pass(100);
    bench.connect(URL);
}

#[test]
fn closing_ends_everything_once() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(batched(10));
    bench.send(key, "x", 1);
    let call = bench.machine.partitions(0, TOPIC, true);
    bench.hear(conn, Type::PartitionedMetadata);
    bench.machine.close(bench.now);
    assert_eq!(bench.ends(), (vec![1], Err(Error::Closed("the client"))));
    assert!(matches!(bench.event(), Event::ProducerFailed { .. }));
    assert!(
        matches!(bench.event(), Event::Answer { call: which, result: Err(_) } if which == call)
    );
    assert!(matches!(bench.event(), Event::Disconnect { .. }));
    bench.silent();
}
