//! Questions and watches.

use super::super::super::{Answer, TopicsChanged};
use super::*;

#[test]
fn partitions_and_schemas() {
    let mut bench = Bench::new();
    let call = bench.machine.partitions(0, TOPIC, false);
    let conn = bench.connect(URL);
    let (command, _) = bench.hear(conn, Type::PartitionedMetadata);
    let question = command.partition_metadata.unwrap();
    assert_eq!(question.metadata_auto_creation_enabled, Some(false));
    let answer = proto::CommandPartitionedTopicMetadataResponse {
        partitions: Some(4),
        request_id: question.request_id,
        response: Some(0),
        ..Default::default()
    };
    bench.say(
        conn,
        BaseCommand {
            partition_metadata_response: Some(answer.clone()),
            ..base(Type::PartitionedMetadataResponse)
        },
    );
    match bench.event() {
        Event::Answer {
            call: which,
            result,
        } => {
            assert_eq!((which, result), (call, Ok(Answer::Partitions(4))));
        }
        other => panic!("{other:?}"),
    }
    // The same answer again is nobody's.
    bench.say(
        conn,
        BaseCommand {
            partition_metadata_response: Some(answer),
            ..base(Type::PartitionedMetadataResponse)
        },
    );
    bench.silent();
    bench.machine.get_schema(0, TOPIC, None);
    let question = bench.hear(conn, Type::GetSchema).0.get_schema.unwrap();
    let answer = proto::CommandGetSchemaResponse {
        request_id: question.request_id,
        error_code: Some(ServerError::TopicNotFound as i32),
        error_message: Some("none".into()),
        ..Default::default()
    };
    bench.say(
        conn,
        BaseCommand {
            get_schema_response: Some(answer),
            ..base(Type::GetSchemaResponse)
        },
    );
    match bench.event() {
        Event::Answer { result, .. } => {
            assert!(matches!(
                result,
                Err(Error::Broker {
                    code: ServerError::TopicNotFound,
                    ..
                })
            ));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_watch_survives_its_connection_and_is_not_asked_of_who_offers_none() {
    let mut bench = Bench::new();
    let watch = bench.machine.watch_topics(0, "public/default", ".*", None);
    let conn = bench.connect(URL);
    assert!(matches!(bench.event(), Event::WatchFailed { watch: which, .. } if which == watch));

    bench.machine.connection_lost(0, conn, "cut");
    bench.features.supports_topic_watchers = Some(true);
    let watch = bench
        .machine
        .watch_topics(bench.now, "public/default", ".*", None);
    let conn = bench.connect(URL);
    let asked = bench
        .hear(conn, Type::WatchTopicList)
        .0
        .watch_topic_list
        .unwrap();
    assert_eq!(
        (asked.watcher_id, asked.topics_hash.clone()),
        (watch.0, None)
    );
    let success = |request_id, hash: &str| proto::CommandWatchTopicListSuccess {
        request_id,
        watcher_id: watch.0,
        topic: vec!["a".into()],
        topics_hash: hash.into(),
    };
    let say = |bench: &mut Bench, conn, success| {
        bench.say(
            conn,
            BaseCommand {
                watch_topic_list_success: Some(success),
                ..base(Type::WatchTopicListSuccess)
            },
        );
    };
    say(&mut bench, conn, success(asked.request_id, "h1"));
    match bench.event() {
        Event::Topics { change, .. } => assert_eq!(change, TopicsChanged::All(vec!["a".into()])),
        other => panic!("{other:?}"),
    }
    bench.machine.connection_lost(bench.now, conn, "cut");
    bench.pass(100);
    let conn = bench.connect(URL);
    let asked = bench
        .hear(conn, Type::WatchTopicList)
        .0
        .watch_topic_list
        .unwrap();
    assert_eq!(asked.topics_hash.as_deref(), Some("h1"));
    // Nothing has changed meanwhile.
    say(&mut bench, conn, success(asked.request_id, "h1"));
    bench.silent();
    bench.machine.close_watch(bench.now, watch);
    bench.hear(conn, Type::WatchTopicListClose);
}
