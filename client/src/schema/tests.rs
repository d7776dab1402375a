#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use std::time::{Duration, UNIX_EPOCH};

fn both_ways<S: Schema>(schema: &S, value: S::Value, bytes: &[u8])
where
    S::Value: PartialEq + std::fmt::Debug,
{
    let encoded = schema.encode(&value).unwrap();
    assert_eq!(encoded, bytes);
    assert_eq!(schema.decode(&encoded, None).unwrap(), value);
    schema
        .decode(&encoded.slice(..encoded.len() - 1), None)
        .unwrap_err();
}

#[test]
fn numbers_and_times_are_encoded_as_pulsar_encodes_them() {
    both_ways(&Bool, true, &[1]);
    both_ways(&Int8, -2, &[0xfe]);
    both_ways(&Int16, 258, &[1, 2]);
    both_ways(&Int32, -1, &[255; 4]);
    both_ways(&Int64, 1, &[0, 0, 0, 0, 0, 0, 0, 1]);
    both_ways(&Float32, 1.0, &[0x3f, 0x80, 0, 0]);
    both_ways(&Float64, -2.0, &[0xc0, 0, 0, 0, 0, 0, 0, 0]);
    let second = UNIX_EPOCH + Duration::from_secs(1);
    both_ways(&Date, second, &[0, 0, 0, 0, 0, 0, 3, 0xe8]);
    both_ways(&Timestamp, UNIX_EPOCH - Duration::from_millis(1), &[255; 8]);
    both_ways(&Time, second, &[0, 0, 0, 0, 0, 0, 3, 0xe8]);
    let nano = second + Duration::from_nanos(1);
    both_ways(&Instant, nano, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    let before = UNIX_EPOCH - Duration::from_nanos(1);
    both_ways(
        &Instant,
        before,
        &[
            255, 255, 255, 255, 255, 255, 255, 255, 0x3b, 0x9a, 0xc9, 0xff,
        ],
    );
    both_ways(&LocalDate, 2, &[0, 0, 0, 0, 0, 0, 0, 2]);
    both_ways(
        &LocalTime,
        Duration::from_nanos(258),
        &[0, 0, 0, 0, 0, 0, 1, 2],
    );
    let evening = (-1, Duration::from_nanos(3));
    both_ways(
        &LocalDateTime,
        evening,
        &[
            255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 3,
        ],
    );
    LocalTime.encode(&Duration::from_secs(86_400)).unwrap_err();
    LocalTime
        .decode(&bytes::Bytes::from_static(&[255; 8]), None)
        .unwrap_err();
}

#[test]
fn pairs_go_inline_or_apart() {
    let inline = KeyValue::inline(Text, Int16);
    let encoded = inline.encode(&("ab".to_owned(), 3)).unwrap();
    assert_eq!(
        encoded,
        [0, 0, 0, 2, b'a', b'b', 0, 0, 0, 2, 0, 3].as_slice()
    );
    assert_eq!(inline.decode(&encoded, None).unwrap(), ("ab".to_owned(), 3));
    for end in 0..encoded.len() {
        inline.decode(&encoded.slice(..end), None).unwrap_err();
    }
    let apart = KeyValue::separated(Text, Int16);
    let mut message = OutgoingMessage::default();
    apart
        .encode_message(&("ab".to_owned(), 3), &mut message)
        .unwrap();
    assert_eq!(message.payload, [0, 3].as_slice());
    assert_eq!(message.key.unwrap().to_bytes(), "ab");
    let info = apart.info().unwrap();
    assert_eq!(info.data, [0; 8].as_slice());
    assert!(
        info.properties
            .contains(&("kv.encoding.type".to_owned(), "SEPARATED".to_owned()))
    );
    assert!(
        info.properties
            .contains(&("key.schema.type".to_owned(), "STRING".to_owned()))
    );
    assert_eq!(SchemaInfo::from_proto(&info.to_proto()), info);
}

#[cfg(feature = "avro")]
mod records {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Order {
        id: i32,
        #[serde(default)]
        item: Option<String>,
    }

    /// As the official Python client derives it from a `Record` with these fields.
    const OF_PYTHON: &str = r#"{"name":"Order","type":"record","fields":[{"name":"id","type":["null","int"]},{"name":"item","type":["null","string"]}]}"#;
    const OLDER: &str = r#"{"name":"Order","type":"record","fields":[{"name":"item","type":["null","string"]},{"name":"id","type":["null","int"]}]}"#;
    const NEWER: &str = r#"{"name":"Order","type":"record","fields":[{"name":"id","type":["null","int"]},{"name":"item","type":["null","string"],"default":null}]}"#;

    #[test]
    fn json_is_plain() {
        let schema = Json::<Order>::with_definition(OF_PYTHON).unwrap();
        let order = Order { id: 1, item: None };
        let encoded = schema.encode(&order).unwrap();
        assert_eq!(encoded, r#"{"id":1,"item":null}"#);
        assert_eq!(schema.decode(&encoded, None).unwrap(), order);
        let info = schema.info().unwrap();
        assert_eq!(
            (info.name.as_str(), info.kind, info.data.as_ref()),
            ("Order", SchemaType::Json, OF_PYTHON.as_bytes())
        );
        Json::<Order>::with_definition("{").unwrap_err();
        schema
            .decode(&bytes::Bytes::from_static(b"{}"), None)
            .unwrap_err();
    }

    #[test]
    fn avro_reads_what_an_older_writer_wrote() {
        let order = Order {
            id: 7,
            item: Some("nut".to_owned()),
        };
        let newer = Avro::<Order>::with_definition(NEWER).unwrap();
        let encoded = newer.encode(&order).unwrap();
        // Branch 1 and 7 in zigzag; branch 1, length 3, text.
        assert_eq!(encoded, [2, 14, 2, 6, b'n', b'u', b't'].as_slice());
        assert_eq!(newer.decode(&encoded, None).unwrap(), order);

        let old = bytes::Bytes::from_static(&[2, 6, b'n', b'u', b't', 2, 14]);
        assert!(newer.wants_version(b"0"));
        newer.decode(&old, Some(b"0")).unwrap_err();
        let writer = SchemaInfo {
            name: "Order".to_owned(),
            kind: SchemaType::Avro,
            data: OLDER.into(),
            properties: Vec::new(),
        };
        newer.learn(b"0", &writer).unwrap();
        assert!(!newer.wants_version(b"0"));
        assert_eq!(newer.decode(&old, Some(b"0")).unwrap(), order);
        Avro::<Order>::with_definition("{}").unwrap_err();
    }
}

#[test]
fn a_native_message_is_found_by_its_name() {
    use prost::Message as _;
    let message = |name: &str, nested| prost_types::DescriptorProto {
        name: Some(name.to_owned()),
        nested_type: nested,
        ..Default::default()
    };
    let set = prost_types::FileDescriptorSet {
        file: vec![prost_types::FileDescriptorProto {
            name: Some("shop/order.proto".to_owned()),
            package: Some("shop.v1".to_owned()),
            message_type: vec![message("Order", vec![message("Line", Vec::new())])],
            ..Default::default()
        }],
    };
    let bytes = set.encode_to_vec();
    let schema =
        ProtobufNative::<prost_types::Timestamp>::new(&bytes, "shop.v1.Order.Line").unwrap();
    let info = schema.info().unwrap();
    let data: serde_json::Value = serde_json::from_slice(&info.data).unwrap();
    assert_eq!(data["rootFileDescriptorName"], "shop/order.proto");
    assert_eq!(data["rootMessageTypeName"], "shop.v1.Order.Line");
    for missing in [
        "shop.v1.Nothing",
        "Order",
        "shop.Order",
        "shop.v1.Order.Line.X",
    ] {
        ProtobufNative::<prost_types::Timestamp>::new(&bytes, missing).unwrap_err();
    }
    ProtobufNative::<prost_types::Timestamp>::new(b"\xff", "x").unwrap_err();
    let time = prost_types::Timestamp {
        seconds: 5,
        nanos: 6,
    };
    both_ways(&schema, time, &[8, 5, 16, 6]);
}
