#![allow(clippy::unwrap_used)]

use super::*;

fn avro(fields: &[(&str, &str)]) -> Schema {
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, rest)| format!(r#"{{"name":"{name}",{rest}}}"#))
        .collect();
    Schema {
        kind: SchemaType::Avro,
        data: format!(
            r#"{{"type":"record","name":"R","fields":[{}]}}"#,
            fields.join(",")
        )
        .into(),
        properties: vec![("k".into(), "v".into())],
    }
}

const INT: &str = r#""type":"int""#;
const OPTIONAL: &str = r#""type":["null","int"],"default":null"#;

#[test]
fn versions_are_counted_from_0_and_the_same_schema_has_one() {
    let mut versions = Versions::default();
    let (a, b) = (avro(&[("a", INT)]), avro(&[("a", INT), ("b", OPTIONAL)]));
    assert_eq!(
        versions.put(a.clone(), Strategy::Full, 5),
        Ok(Put::Added(0))
    );
    assert_eq!(
        versions.put(b.clone(), Strategy::Full, 6),
        Ok(Put::Added(1))
    );
    assert_eq!(
        versions.put(a.clone(), Strategy::Full, 7),
        Ok(Put::Exists(0))
    );
    assert_eq!(versions.latest().unwrap().schema, b);
    assert_eq!(versions.get(0).unwrap().added_ms, 5);
    assert_eq!(versions.get(2), None);
    assert_eq!(versions.find(&b), Some(1));
    assert_eq!(Versions::read(versions.write()), Ok(versions));
}

#[test]
fn numbers_go_on_after_a_deletion() {
    let mut versions = Versions::default();
    let a = avro(&[("a", INT)]);
    versions.put(a.clone(), Strategy::Full, 0).unwrap();
    assert_eq!(versions.delete(), 1);
    assert_eq!(versions.delete(), 2);
    assert_eq!(versions.latest(), None);
    assert_eq!(versions.get(0), None);
    // What was deleted binds nobody.
    let other = avro(&[("b", INT)]);
    assert_eq!(versions.put(other, Strategy::Full, 0), Ok(Put::Added(3)));
    assert!(versions.put(a, Strategy::Full, 0).is_err());
    assert_eq!(Versions::read(versions.write()), Ok(versions));
}

#[test]
fn transitive_strategies_look_at_all_versions() {
    let chain = [
        avro(&[("a", INT), ("b", OPTIONAL)]),
        avro(&[("a", INT)]),
        // Nobody wrote this one's b as a string yet, as far as the last version can tell.
        avro(&[
            ("a", INT),
            ("b", r#""type":["null","string"],"default":null"#),
        ]),
    ];
    for (strategy, taken) in [
        (Strategy::Backward, true),
        (Strategy::BackwardTransitive, false),
    ] {
        let mut versions = Versions::default();
        let [first, second, third] = chain.clone();
        versions.put(first, strategy, 0).unwrap();
        versions.put(second, strategy, 0).unwrap();
        assert_eq!(
            versions.put(third, strategy, 0).is_ok(),
            taken,
            "{strategy:?}"
        );
    }
}

#[test]
fn where_clients_may_not_bring_schemas_only_known_ones_pass() {
    let policy = SchemaPolicy {
        auto_update: false,
        ..SchemaPolicy::default()
    };
    let (a, b) = (avro(&[("a", INT)]), avro(&[("a", INT), ("b", OPTIONAL)]));
    let mut versions = Versions::default();
    assert!(versions.bring(a.clone(), policy, 0).is_err());
    versions.put(a.clone(), Strategy::Full, 0).unwrap();
    assert_eq!(versions.bring(a, policy, 0), Ok(Put::Exists(0)));
    assert!(versions.bring(b.clone(), policy, 0).is_err());
    // To read is another matter.
    assert!(versions.check_consumer(&b, policy).is_ok());
}

#[test]
fn consumers_must_read_what_is_there() {
    let policy = |strategy| SchemaPolicy {
        strategy,
        ..SchemaPolicy::default()
    };
    let (a, b) = (avro(&[("a", INT)]), avro(&[("a", INT), ("b", INT)]));
    let mut versions = Versions::default();
    let empty = versions
        .check_consumer(&a, policy(Strategy::Full))
        .unwrap_err();
    assert!(empty.to_string().contains("empty(BYTES)"), "{empty}");
    versions.put(b.clone(), Strategy::Full, 0).unwrap();
    use Strategy::*;
    for strategy in [
        Backward,
        Forward,
        Full,
        ForwardTransitive,
        BackwardTransitive,
    ] {
        let fits = versions.check_consumer(&a, policy(strategy)).is_ok();
        assert_eq!(fits, strategy != ForwardTransitive || fits, "{strategy:?}");
        assert!(versions.check_consumer(&b, policy(strategy)).is_ok());
    }
    let none = Schema {
        kind: SchemaType::None,
        data: Bytes::new(),
        properties: Vec::new(),
    };
    assert!(versions.check_consumer(&none, policy(Full)).is_err());
    assert!(
        versions
            .check_consumer(&none, policy(AlwaysCompatible))
            .is_ok()
    );
    assert!(
        versions
            .check_consumer(&b, policy(AlwaysIncompatible))
            .is_err()
    );
}

#[test]
fn what_a_topic_may_have_is_bounded() {
    let mut versions = Versions::default();
    let numbered = |n: usize| Schema {
        kind: SchemaType::None,
        data: n.to_string().into(),
        properties: Vec::new(),
    };
    for n in 0..MAX_VERSIONS {
        versions.put(numbered(n), Strategy::Full, 0).unwrap();
    }
    let error = versions.put(numbered(MAX_VERSIONS), Strategy::Full, 0);
    assert!(matches!(error, Err(SchemaError::TooMany(_))), "{error:?}");
    assert_eq!(
        versions.put(numbered(7), Strategy::Full, 0),
        Ok(Put::Exists(7))
    );

    let mut versions = Versions::default();
    let mut taken = 0;
    for n in 0..8u8 {
        let large = Schema {
            kind: SchemaType::None,
            data: vec![n; 1_000_000].into(),
            properties: Vec::new(),
        };
        taken += u32::from(versions.put(large, Strategy::Full, 0).is_ok());
    }
    assert_eq!(taken, 3);
    assert!(versions.write().len() <= MAX_ALL_VERSIONS);
}

#[test]
fn damaged_values_are_refused() {
    let mut versions = Versions::default();
    versions
        .put(avro(&[("a", INT)]), Strategy::Full, 0)
        .unwrap();
    let value = versions.write();
    assert!(Versions::read(value.slice(..value.len() - 1)).is_err());
    assert!(Versions::read(Bytes::from_static(b"\xff\xff\xff")).is_err());
    let wrong = Document {
        next: 1,
        versions: vec![Entry {
            version: 1,
            ..Entry::default()
        }],
    };
    assert!(Versions::read(wrong.encode_to_vec().into()).is_err());
    assert_eq!(Versions::read(Bytes::new()), Ok(Versions::default()));
}

/// With hundreds of versions, a schema that is there in other words is found by one comparison, and one that is new by none; what older
/// brokers stored has no fingerprints, and is compared.
#[test]
fn the_same_schema_is_found_by_its_fingerprint() {
    let numbered = |n: usize| avro(&[(&format!("f{n}"), INT), ("b", OPTIONAL)]);
    let mut versions = Versions::default();
    for n in 0..50 {
        versions
            .put(numbered(n), Strategy::AlwaysCompatible, 0)
            .unwrap();
    }
    let words = |schema: &Schema| Schema {
        data: Bytes::from(
            String::from_utf8_lossy(&schema.data)
                .replace(',', " , ")
                .into_bytes(),
        ),
        ..schema.clone()
    };
    let other = words(&numbered(7));
    assert_ne!(other.data, numbered(7).data);
    assert_eq!(versions.find(&other), Some(7));
    assert_eq!(versions.find(&numbered(50)), None);
    let read = Versions::read(versions.write()).unwrap();
    assert_eq!(read, versions);
    assert!(read.all().iter().all(|stored| stored.fingerprint.is_some()));
    let mut old = versions.clone();
    old.all
        .iter_mut()
        .for_each(|stored| stored.fingerprint = None);
    assert_eq!(old.find(&other), Some(7));
    // Whoever finds a fingerprint that is his own still compares.
    let mut wrong = versions.clone();
    let own = versions.all.get(7).and_then(|stored| stored.fingerprint);
    assert!(own.is_some());
    wrong
        .all
        .iter_mut()
        .for_each(|stored| stored.fingerprint = own);
    assert_eq!(wrong.find(&other), Some(7));
    assert_eq!(wrong.find(&numbered(50)), None);
}
