#![allow(clippy::unwrap_used)]

use super::super::native::tests::definition;
use super::*;

fn schema(kind: SchemaType, data: impl Into<Vec<u8>>) -> Schema {
    Schema {
        kind,
        data: data.into().into(),
        properties: Vec::new(),
    }
}

fn record(name: &str, fields: &str) -> String {
    format!(r#"{{"type":"record","name":"{name}","fields":[{fields}]}}"#)
}

const A: &str = r#"{"name":"a","type":"string"}"#;
const B: &str = r#"{"name":"b","type":["null","int"],"default":null}"#;
const C: &str = r#"{"name":"c","type":"int"}"#;

/// A key-value schema whose parts have these types and definitions.
fn pair(key: (&str, &str), value: (&str, &str)) -> Schema {
    let mut data = Vec::new();
    for (_, part) in [key, value] {
        data.extend((part.len() as i32).to_be_bytes());
        data.extend(part.as_bytes());
    }
    Schema {
        properties: vec![
            ("key.schema.type".into(), key.0.into()),
            ("value.schema.type".into(), value.0.into()),
            ("kv.encoding.type".into(), "INLINE".into()),
        ],
        ..schema(SchemaType::KeyValue, data)
    }
}

#[test]
fn primitive_types_have_no_definition() {
    for kind in [
        SchemaType::String,
        SchemaType::Bool,
        SchemaType::Int8,
        SchemaType::Int64,
        SchemaType::Double,
        SchemaType::Date,
        SchemaType::Instant,
        SchemaType::LocalDateTime,
    ] {
        assert!(schema(kind, "").validate().is_ok());
        let error = schema(kind, "abc").validate().unwrap_err().to_string();
        assert!(
            error.contains(kind.name()) && error.contains("3 bytes"),
            "{error}"
        );
    }
    assert!(schema(SchemaType::String, "null").validate().is_ok());
    assert!(schema(SchemaType::Int8, "null").validate().is_err());
    assert!(schema(SchemaType::None, "abc").validate().is_ok());
    assert!(schema(SchemaType::External, "abc").validate().is_ok());
    assert!(schema(SchemaType::AutoConsume, "").validate().is_err());
}

#[test]
fn structured_types_need_a_definition() {
    for kind in [SchemaType::Avro, SchemaType::Json, SchemaType::Protobuf] {
        assert!(schema(kind, record("R", A)).validate().is_ok());
        for bad in ["", "abc", "{}", r#"{"type":"nosuch"}"#] {
            let error = schema(kind, bad).validate().unwrap_err().to_string();
            assert!(error.contains(kind.name()), "{error}");
        }
    }
    assert!(schema(SchemaType::Avro, r#""string""#).validate().is_ok());
    assert!(
        schema(SchemaType::Avro, r#"["null","int"]"#)
            .validate()
            .is_err()
    );
    assert!(
        schema(SchemaType::Json, r#"["null","int"]"#)
            .validate()
            .is_ok()
    );
    assert!(
        schema(SchemaType::ProtobufNative, definition("p.Outer", &[]))
            .validate()
            .is_ok()
    );
    assert!(schema(SchemaType::ProtobufNative, "{}").validate().is_err());
}

#[test]
fn key_value_schemas_are_looked_into() {
    let avro = record("R", A);
    assert!(pair(("STRING", ""), ("AVRO", &avro)).validate().is_ok());
    assert!(pair(("BYTES", ""), ("BYTES", "")).validate().is_ok());
    assert!(schema(SchemaType::KeyValue, [0; 8]).validate().is_ok());
    assert!(schema(SchemaType::KeyValue, [0xff; 8]).validate().is_ok());
    for bad in [
        pair(("STRING", "abc"), ("AVRO", &avro)),
        pair(("STRING", ""), ("AVRO", "{")),
        pair(("FOO", ""), ("AVRO", &avro)),
        schema(SchemaType::KeyValue, ""),
        schema(SchemaType::KeyValue, [0, 0, 0, 9, 1, 2]),
        schema(SchemaType::KeyValue, [0, 0, 0, 0, 0, 0, 0]),
    ] {
        assert!(
            matches!(bad.validate(), Err(SchemaError::Invalid(_))),
            "{bad:?}"
        );
    }
    let old = pair(("STRING", ""), ("AVRO", &avro));
    let fits = pair(("STRING", ""), ("AVRO", &record("R", &format!("{A},{B}"))));
    assert!(fits.check(&old, Strategy::Full).is_ok());
    for bad in [
        pair(("STRING", ""), ("AVRO", &record("R", &format!("{A},{C}")))),
        pair(("INT32", ""), ("AVRO", &avro)),
        pair(("STRING", ""), ("JSON", &avro)),
    ] {
        assert!(bad.check(&old, Strategy::Full).is_err(), "{bad:?}");
    }
    // One in the other, down to where it ends.
    let mut nested = pair(("STRING", ""), ("STRING", ""));
    for depth in 0..6 {
        assert_eq!(nested.validate().is_ok(), depth < MAX_NESTING, "{depth}");
        let inner = String::from_utf8(nested.data.to_vec()).unwrap();
        let mut properties = serde_json::Map::new();
        for (key, value) in nested.properties {
            properties.insert(key, value.into());
        }
        nested = pair(("STRING", ""), ("KEY_VALUE", &inner));
        let inner = (
            "value.schema.properties".to_owned(),
            Value::Object(properties).to_string(),
        );
        nested.properties.push(inner);
    }
}

#[test]
fn the_same_schema_is_told_by_what_it_means() {
    let a = schema(SchemaType::Avro, record("R", A));
    let spaced = schema(SchemaType::Avro, record("R", &A.replace(':', " : ")));
    assert!(same(&a, &spaced));
    assert!(!same(&a, &schema(SchemaType::Json, record("R", A))));
    assert!(!same(&a, &schema(SchemaType::Avro, record("R2", A))));
    let tagged = Schema {
        properties: vec![("k".into(), "v".into())],
        ..a.clone()
    };
    assert!(same(&a, &tagged));
    assert!(!same(
        &schema(SchemaType::None, "a"),
        &schema(SchemaType::None, "b")
    ));
}

#[test]
fn strategies_say_who_must_read_whom() {
    use Strategy::*;
    let a = schema(SchemaType::Avro, record("R", A));
    let b = schema(SchemaType::Avro, record("R", &format!("{A},{B}")));
    let c = schema(SchemaType::Avro, record("R", &format!("{A},{C}")));
    for strategy in [
        Backward,
        Forward,
        Full,
        BackwardTransitive,
        ForwardTransitive,
        FullTransitive,
    ] {
        assert!(b.check(&a, strategy).is_ok());
        assert!(a.check(&b, strategy).is_ok());
        // A field without default: old readers skip it, new ones miss it.
        let forward = matches!(strategy, Forward | ForwardTransitive);
        assert_eq!(c.check(&a, strategy).is_ok(), forward);
        let backward = matches!(strategy, Backward | BackwardTransitive);
        assert_eq!(a.check(&c, strategy).is_ok(), backward);
    }
    assert!(c.check(&a, AlwaysCompatible).is_ok());
    assert!(a.check(&a, AlwaysIncompatible).is_err());
    let text = c.check(&a, Full).unwrap_err().to_string();
    assert!(
        text.contains("strategy FULL") && text.contains(C) && text.contains("field c"),
        "{text}"
    );
}

#[test]
fn another_type_never_follows_unless_anything_may() {
    let a = schema(SchemaType::Avro, record("R", A));
    let json = schema(SchemaType::Json, record("R", A));
    let error = json.check(&a, Strategy::Full).unwrap_err().to_string();
    assert_eq!(
        error,
        "Incompatible schema: exists schema type AVRO, new schema type JSON"
    );
    assert!(json.check(&a, Strategy::AlwaysCompatible).is_ok());
    // Only Avro, JSON and native schemas are looked into.
    let p = schema(SchemaType::Protobuf, record("R", A));
    assert!(
        schema(SchemaType::Protobuf, record("R", C))
            .check(&p, Strategy::Full)
            .is_ok()
    );
}

#[test]
fn old_json_definitions_are_taken() {
    let old = |id: &str| {
        schema(
            SchemaType::Json,
            format!(r#"{{"type":"object","id":"{id}","properties":{{}}}}"#),
        )
    };
    let avro = schema(SchemaType::Json, record("R", A));
    assert!(old("x").validate().is_ok());
    assert!(avro.check(&old("x"), Strategy::Full).is_ok());
    assert!(old("x").check(&avro, Strategy::Full).is_ok());
    assert!(old("x").check(&old("x"), Strategy::Full).is_ok());
    assert!(old("y").check(&old("x"), Strategy::Full).is_err());
}

#[test]
fn the_root_message_of_a_native_schema_stays() {
    let schema = |root| schema(SchemaType::ProtobufNative, definition(root, &[]));
    assert!(
        schema("p.Outer")
            .check(&schema("p.Outer"), Strategy::Full)
            .is_ok()
    );
    let error = schema("p.Outer.Inner").check(&schema("p.Outer"), Strategy::Full);
    assert!(error.unwrap_err().to_string().contains("p.Outer.Inner"));
}
