//! Values with a schema: what is written arrives, what does not fit is refused, and what an older writer wrote is still read.

use crate::harness::{in_time, run, topic};
use serde::{Deserialize, Serialize};
use std::time::{Duration, UNIX_EPOCH};
use vela_client::schema::{self, Avro, Json, KeyValue, ProtobufNative, Schema};
use vela_client::{Client, InitialPosition, SubscriptionType};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: i32,
    #[serde(default)]
    item: Option<String>,
}

/// As the official Python client derives them from records with these fields.
const WITH_ITEM: &str = r#"{"name":"Order","type":"record","fields":[{"name":"id","type":["null","int"]},{"name":"item","type":["null","string"],"default":null}]}"#;
const WITHOUT: &str =
    r#"{"name":"Order","type":"record","fields":[{"name":"id","type":["null","int"]}]}"#;
const STRANGER: &str =
    r#"{"name":"Order","type":"record","fields":[{"name":"id","type":"string"}]}"#;

async fn goes_through<S: Schema + Clone>(client: &Client, schema: S, values: Vec<S::Value>)
where
    S::Value: Clone + PartialEq + std::fmt::Debug + Send + Sync,
{
    let topic = topic("values");
    let consumer = client
        .consumer()
        .schema(schema.clone())
        .topic(&topic)
        .subscription("s");
    let consumer = consumer.build().await.unwrap();
    let producer = client
        .producer(&topic)
        .schema(schema)
        .build()
        .await
        .unwrap();
    for value in values {
        producer.send_and_wait(value.clone()).await.unwrap();
        let message = in_time("a message", consumer.receive()).await.unwrap();
        assert_eq!(message.value().unwrap(), &value);
        consumer.ack(&message).await.unwrap();
    }
}

#[test]
#[ignore = "needs a broker"]
fn values_of_every_kind_go_through() {
    run(async |broker| {
        let client = broker.client().await;
        goes_through(
            &client,
            schema::Text,
            vec!["text".to_owned(), String::new()],
        )
        .await;
        goes_through(&client, schema::Bool, vec![true, false]).await;
        goes_through(&client, schema::Int8, vec![-1, 5]).await;
        goes_through(&client, schema::Int16, vec![-1, 500]).await;
        goes_through(&client, schema::Int32, vec![i32::MIN, 5]).await;
        goes_through(&client, schema::Int64, vec![i64::MAX, -5]).await;
        goes_through(&client, schema::Float32, vec![1.5]).await;
        goes_through(&client, schema::Float64, vec![-1.25e300]).await;
        goes_through(
            &client,
            schema::Timestamp,
            vec![UNIX_EPOCH + Duration::from_millis(5)],
        )
        .await;
        goes_through(
            &client,
            schema::Instant,
            vec![UNIX_EPOCH + Duration::from_nanos(5)],
        )
        .await;
        goes_through(
            &client,
            schema::LocalDateTime,
            vec![(20_000, Duration::from_secs(5))],
        )
        .await;
        let pair = ("key".to_owned(), 7);
        goes_through(
            &client,
            KeyValue::inline(schema::Text, schema::Int32),
            vec![pair.clone()],
        )
        .await;
        goes_through(
            &client,
            KeyValue::separated(schema::Text, schema::Int32),
            vec![pair],
        )
        .await;
    });
}

#[test]
#[ignore = "needs a broker"]
fn records_grow_and_old_messages_are_read() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("growing");
        let old = client
            .producer(&topic)
            .schema(Avro::<Order>::with_definition(WITHOUT).unwrap())
            .build()
            .await
            .unwrap();
        old.send_and_wait(Order { id: 1, item: None })
            .await
            .unwrap();
        let new = client
            .producer(&topic)
            .schema(Avro::<Order>::with_definition(WITH_ITEM).unwrap())
            .build()
            .await
            .unwrap();
        let order = Order {
            id: 2,
            item: Some("nut".to_owned()),
        };
        new.send_and_wait(order.clone()).await.unwrap();
        let consumer = client
            .consumer()
            .schema(Avro::<Order>::with_definition(WITH_ITEM).unwrap())
            .topic(&topic);
        let consumer = consumer
            .subscription("s")
            .subscription_initial_position(InitialPosition::Earliest);
        let consumer = consumer.build().await.unwrap();
        let first = in_time("a message", consumer.receive()).await.unwrap();
        assert_eq!(first.value().unwrap(), &Order { id: 1, item: None });
        let second = in_time("a message", consumer.receive()).await.unwrap();
        assert_eq!(second.value().unwrap(), &order);
        assert_ne!(first.schema_version(), second.schema_version());
    });
}

#[test]
#[ignore = "needs a broker"]
fn what_does_not_fit_is_refused() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("refused");
        let json = client
            .producer(&topic)
            .schema(Json::<Order>::with_definition(WITH_ITEM).unwrap());
        let json = json.build().await.unwrap();
        let order = Order { id: 3, item: None };
        json.send_and_wait(order.clone()).await.unwrap();
        let stranger = client
            .producer(&topic)
            .schema(Json::<Order>::with_definition(STRANGER).unwrap());
        stranger.build().await.map(|_| ()).unwrap_err();
        client
            .producer(&topic)
            .schema(schema::Text)
            .build()
            .await
            .map(|_| ())
            .unwrap_err();
        let consumer = client
            .consumer()
            .schema(Json::<Order>::with_definition(WITH_ITEM).unwrap())
            .topic(&topic);
        let consumer = consumer
            .subscription("s")
            .subscription_type(SubscriptionType::Shared);
        let consumer = consumer.subscription_initial_position(InitialPosition::Earliest);
        let consumer = consumer.build().await.unwrap();
        let message = in_time("a message", consumer.receive()).await.unwrap();
        assert_eq!(message.value().unwrap(), &order);
        assert_eq!(message.payload(), r#"{"id":3,"item":null}"#);
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn protobuf_messages_go_through_with_their_descriptor() {
    use prost::Message as _;
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("protobuf");
        let field = |name: &str, number, kind: prost_types::field_descriptor_proto::Type| {
            prost_types::FieldDescriptorProto {
                name: Some(name.to_owned()),
                number: Some(number),
                label: Some(prost_types::field_descriptor_proto::Label::Optional.into()),
                r#type: Some(kind.into()),
                json_name: Some(name.to_owned()),
                ..Default::default()
            }
        };
        let set = prost_types::FileDescriptorSet {
            file: vec![prost_types::FileDescriptorProto {
                name: Some("time.proto".to_owned()),
                package: Some("times".to_owned()),
                syntax: Some("proto3".to_owned()),
                message_type: vec![prost_types::DescriptorProto {
                    name: Some("Timestamp".to_owned()),
                    field: vec![
                        field(
                            "seconds",
                            1,
                            prost_types::field_descriptor_proto::Type::Int64,
                        ),
                        field("nanos", 2, prost_types::field_descriptor_proto::Type::Int32),
                    ],
                    ..Default::default()
                }],
                ..Default::default()
            }],
        };
        let descriptors = set.encode_to_vec();
        let schema = || {
            ProtobufNative::<prost_types::Timestamp>::new(&descriptors, "times.Timestamp").unwrap()
        };
        let consumer = client
            .consumer()
            .schema(schema())
            .topic(&topic)
            .subscription("s")
            .build()
            .await
            .unwrap();
        let producer = client
            .producer(&topic)
            .schema(schema())
            .build()
            .await
            .unwrap();
        let time = prost_types::Timestamp {
            seconds: 5,
            nanos: 6,
        };
        producer.send_and_wait(time).await.unwrap();
        let message = in_time("a message", consumer.receive()).await.unwrap();
        assert_eq!(message.value().unwrap(), &time);
    });
}
