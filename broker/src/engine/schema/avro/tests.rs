#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use serde_json::{Value, json};

use super::*;

fn avro(value: &Value) -> Avro {
    Avro::parse(value.to_string().as_bytes()).unwrap()
}

/// What Apache Pulsar 5.0.1 said about 621 pairs.
#[test]
fn pairs_are_judged_as_apache_pulsar_judges_them() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/data/schemas/avro-can-read.json"
    );
    let pairs: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(pairs.len() > 600);
    let mut wrong = Vec::new();
    for pair in &pairs {
        let (writer, reader) = (avro(&pair["writer"]), avro(&pair["reader"]));
        let said = can_read(&writer, &reader);
        if said.is_ok() != pair["can_read"].as_bool().unwrap() {
            wrong.push(format!("{pair}: {said:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn documentation_and_aliases_do_not_make_another_schema() {
    let plain = json!({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]});
    let told = json!({"type": "record", "name": "R", "doc": "x", "aliases": ["S"],
        "fields": [{"name": "a", "type": {"type": "int"}, "doc": "y", "aliases": ["b"], "order": "ascending"}]});
    assert_eq!(avro(&plain).canonical(), avro(&told).canonical());
    let others = [
        json!({"type": "record", "name": "Q", "fields": [{"name": "a", "type": "int"}]}),
        json!({"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "a", "type": "int"}]}),
        json!({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": 1}]}),
        json!({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": null}]}),
        json!({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "more": 1}]}),
        json!({"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "int", "logicalType": "date"}}]}),
    ];
    for other in others {
        assert_ne!(
            avro(&plain).canonical(),
            avro(&other).canonical(),
            "{other}"
        );
    }
}

#[test]
fn a_name_may_be_used_before_it_is_defined() {
    let forward = json!({"type": "record", "name": "n.R", "fields": [
        {"name": "a", "type": ["null", "I"]},
        {"name": "b", "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}}]});
    let parsed = avro(&forward);
    assert!(can_read(&parsed, &parsed).is_ok());
    let Kind::Record { fields, .. } = parsed.kind(parsed.root) else {
        panic!("a record");
    };
    let Kind::Union(branches) = parsed.kind(fields[0].schema) else {
        panic!("a union");
    };
    assert_eq!(branches[1], fields[1].schema);
}

#[test]
fn what_is_no_definition_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "no JSON"),
        ("abc", "no JSON"),
        ("17", "is no schema"),
        ("{}", "no type"),
        (r#""x""#, r#""x" is not defined"#),
        (r#"{"type":"object"}"#, "not defined"),
        (r#"{"type":"record","fields":[]}"#, "no name"),
        (r#"{"type":"record","name":"R"}"#, "no fields"),
        (
            r#"{"type":"record","name":"R","fields":[{"type":"int"}]}"#,
            "without a name",
        ),
        (
            r#"{"type":"record","name":"R","fields":[{"name":"a"}]}"#,
            "no type",
        ),
        (
            r#"{"type":"record","name":"a b","fields":[]}"#,
            "is no name",
        ),
        (r#"{"type":"enum","name":"E"}"#, "no symbols"),
        (r#"{"type":"enum","name":"E","symbols":["A","A"]}"#, "twice"),
        (r#"{"type":"fixed","name":"X"}"#, "no size"),
        (r#"{"type":"array"}"#, "no items"),
        (r#"{"type":"map"}"#, "no values"),
        (r#"["int","int"]"#, "holds int twice"),
        (r#"["int",["null"]]"#, "a union directly in a union"),
    ] {
        let error = Avro::parse(text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(reason), "{text}: {error}");
    }
}

#[test]
fn depth_and_size_are_bounded() {
    let mut deep = String::from("\"int\"");
    for _ in 0..2000 {
        deep = format!("{{\"type\":\"array\",\"items\":{deep}}}");
    }
    assert!(Avro::parse(deep.as_bytes()).is_err());
    let many: Vec<Value> = (0..MAX_NODES)
        .map(|n| json!({"name": format!("f{n}"), "type": "int"}))
        .collect();
    let many = json!({"type": "record", "name": "R", "fields": many});
    let error = Avro::parse(many.to_string().as_bytes()).unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
}

/// Two rings of records whose lengths share no factor: a comparison that follows every pair would go very deep.
#[test]
fn rings_of_records_end_in_an_answer() {
    let ring = |length: usize| {
        let records: Vec<Value> = (0..length)
            .map(|n| {
                json!({"name": format!("f{n}"), "type": {"type": "record", "name": format!("R{n}"),
                    "fields": [{"name": "next", "type": format!("R{}", (n + 1) % length)}]}})
            })
            .collect();
        avro(&json!({"type": "record", "name": "Top", "fields": records}))
    };
    let (a, b) = (ring(997), ring(991));
    let error = can_read(&a, &b).unwrap_err();
    assert!(error.to_string().contains("too complex"), "{error}");
    assert!(can_read(&a, &a).is_ok());
}

/// Each type is defined where nothing nests, and mentions the next: the text is 4 deep, the types are in each other 8000 deep.
#[test]
fn types_that_mention_each_other_are_written_without_the_stack() {
    let chain = |doc: &str| {
        let mut fields: Vec<_> = (0..8000)
            .map(|i| {
                let next = json!([{"name": "n", "type": format!("R{}", i + 1)}]);
                json!({"name": format!("f{i}"), "type": {"type": "record", "name": format!("R{i}"), "fields": next}})
            })
            .collect();
        fields
            .push(json!({"name": "e", "type": {"type": "record", "name": "R8000", "fields": []}}));
        avro(&json!({"type": "record", "name": "Top", "doc": doc, "fields": fields}))
    };
    let (one, other) = (chain("a"), chain("b"));
    assert_eq!(one.canonical(), other.canonical());
    let _ = can_read(&one, &other);
}

/// A namespace is inherited by every name within it.
#[test]
fn long_namespaces_are_refused() {
    let schema = |namespace: usize, types: usize| {
        let fields: Vec<_> = (0..types)
            .map(|i| json!({"name": format!("f{i}"), "type": {"type": "fixed", "name": format!("x{i}"), "size": 1}}))
            .collect();
        let schema = json!({"type": "record", "name": "R", "namespace": "n".repeat(namespace), "fields": fields});
        Avro::parse(schema.to_string().as_bytes())
    };
    assert!(schema(4000, 100).is_ok());
    assert!(schema(5000, 1).unwrap_err().to_string().contains("4096"));
    assert!(
        schema(4000, 4000)
            .unwrap_err()
            .to_string()
            .contains("8388608")
    );
}

#[test]
fn a_symbol_twice_is_refused() {
    let schema = json!({"type": "enum", "name": "E", "symbols": ["a", "b", "a"]});
    let error = Avro::parse(schema.to_string().as_bytes()).unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
}

/// Each of the writer's branches is looked for among all of the reader's, in each of the fields.
#[test]
fn unions_of_many_branches_are_too_complex_to_compare() {
    let schema = |tag: &str, branches: usize| {
        let define: Vec<_> = (0..branches)
            .map(|i| json!({"type": "record", "name": format!("{tag}{i}"), "fields": [{"name": "a", "type": "int"}]}))
            .collect();
        let mention: Vec<_> = (0..branches).map(|i| format!("{tag}{i}")).collect();
        let fields = [json!(define), json!(mention), json!(mention)]
            .into_iter()
            .zip(0..);
        let fields: Vec<_> = fields
            .map(|(union, i)| json!({"name": format!("u{i}"), "type": union}))
            .collect();
        avro(&json!({"type": "record", "name": "Top", "fields": fields}))
    };
    assert!(can_read(&schema("A", 20), &schema("B", 20)).is_ok());
    let error = can_read(&schema("A", 700), &schema("B", 700)).unwrap_err();
    assert!(error.to_string().contains("too complex"), "{error}");
}
