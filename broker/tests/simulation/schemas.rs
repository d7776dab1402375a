//! Schemas over the protocol, on two cores, with a metadata store that answers when the test lets it.

use bytes::Bytes;
use vela_broker::engine::schema::{SchemaId, SchemaType, Versions};
use vela_broker::store::memory::Kept;
use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use crate::harness::client::{Client, say};
use crate::harness::{Step, World, WorldConfig};

fn world() -> World {
    World::new(WorldConfig {
        cores: 2,
        shards: 4,
        ..WorldConfig::default()
    })
}

fn avro(fields: &[&str]) -> proto::Schema {
    let fields: Vec<String> = fields
        .iter()
        .map(|field| {
            let (name, kind) = field.split_once(':').unwrap();
            match kind.strip_suffix('?') {
                Some(kind) => {
                    format!(r#"{{"name":"{name}","type":["null","{kind}"],"default":null}}"#)
                }
                None => format!(r#"{{"name":"{name}","type":"{kind}"}}"#),
            }
        })
        .collect();
    proto::Schema {
        name: "s".into(),
        schema_data: format!(
            r#"{{"type":"record","name":"R","fields":[{}]}}"#,
            fields.join(",")
        )
        .into(),
        r#type: SchemaType::Avro as i32,
        properties: Vec::new(),
    }
}

fn of(kind: SchemaType) -> proto::Schema {
    proto::Schema {
        name: "s".into(),
        r#type: kind as i32,
        ..Default::default()
    }
}

fn version(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

fn producer(topic: &str, id: u64, request_id: u64, schema: Option<proto::Schema>) -> BaseCommand {
    let mut command = say::producer(topic, id, request_id, None);
    command.producer.as_mut().unwrap().schema = schema;
    command
}

/// The version that PRODUCER_SUCCESS names, or the error.
fn open(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    id: u64,
    schema: Option<proto::Schema>,
) -> Result<Bytes, ServerError> {
    let request_id = client.request();
    client.say(world, &producer(topic, id, request_id, schema));
    outcome(client.next(world).command, request_id)
}

fn outcome(answer: BaseCommand, request_id: u64) -> Result<Bytes, ServerError> {
    if let Some(error) = answer.error {
        assert_eq!(error.request_id, request_id);
        assert!(!error.message.is_empty());
        return Err(ServerError::try_from(error.error).unwrap());
    }
    let opened = answer.producer_success.unwrap();
    assert_eq!(opened.request_id, request_id);
    Ok(opened.schema_version.unwrap())
}

fn subscribe(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    id: u64,
    schema: Option<proto::Schema>,
) -> Result<(), ServerError> {
    let request_id = client.request();
    let mut subscribe = say::subscribe(topic, &format!("s{id}"), true, id, request_id);
    subscribe.schema = schema;
    client.say(world, &say::subscribe_command(subscribe));
    match client.next(world).command.error {
        None => Ok(()),
        Some(error) => Err(ServerError::try_from(error.error).unwrap()),
    }
}

fn get_command(topic: &str, request_id: u64, version: Option<Bytes>) -> BaseCommand {
    BaseCommand {
        get_schema: Some(proto::CommandGetSchema {
            request_id,
            topic: topic.into(),
            schema_version: version,
        }),
        ..say::base(Type::GetSchema)
    }
}

fn get(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    version: Option<Bytes>,
) -> proto::CommandGetSchemaResponse {
    let request_id = client.request();
    client.say(world, &get_command(topic, request_id, version));
    let answer = client.next(world).command.get_schema_response.unwrap();
    assert_eq!(answer.request_id, request_id);
    answer
}

fn create(
    world: &mut World,
    client: &mut Client,
    topic: &str,
    schema: proto::Schema,
) -> Result<Bytes, ServerError> {
    let request_id = client.request();
    client.say(
        world,
        &BaseCommand {
            get_or_create_schema: Some(proto::CommandGetOrCreateSchema {
                request_id,
                topic: topic.into(),
                schema,
                producer_name: None,
            }),
            ..say::base(Type::GetOrCreateSchema)
        },
    );
    let answer = client.next(world).command;
    let answer = answer.get_or_create_schema_response.unwrap();
    match answer.error_code {
        None => Ok(answer.schema_version.unwrap()),
        Some(error) => Err(ServerError::try_from(error).unwrap()),
    }
}

const REFUSED: ServerError = ServerError::IncompatibleSchema;

#[test]
fn versions_count_from_0_and_the_same_schema_has_the_same() {
    let mut world = world();
    for core in 0..2 {
        let topic = world.topic_on(core, "t");
        let mut client = Client::connect(&mut world, 0);
        let (a, b) = (avro(&["a:int"]), avro(&["a:int", "b:int?"]));
        assert_eq!(
            open(&mut world, &mut client, &topic, 1, Some(a.clone())),
            Ok(version(0))
        );
        assert_eq!(
            open(&mut world, &mut client, &topic, 2, Some(b.clone())),
            Ok(version(1))
        );
        assert_eq!(
            open(&mut world, &mut client, &topic, 3, Some(a.clone())),
            Ok(version(0))
        );
        let bad = avro(&["a:int", "c:int"]);
        assert_eq!(
            open(&mut world, &mut client, &topic, 4, Some(bad)),
            Err(REFUSED)
        );
        // The id is free again; without a schema it may produce all the same.
        assert_eq!(
            open(&mut world, &mut client, &topic, 4, None),
            Ok(Bytes::new())
        );
        // Asked again, an open producer answers the same.
        assert_eq!(
            open(&mut world, &mut client, &topic, 2, None),
            Ok(version(1))
        );
        let latest = get(&mut world, &mut client, &topic, None);
        assert_eq!(latest.schema_version, Some(version(1)));
        let schema = latest.schema.unwrap();
        assert_eq!(
            (schema.r#type, &schema.schema_data),
            (b.r#type, &b.schema_data)
        );
        assert_eq!(format!("persistent://{}", schema.name), topic);
        let first = get(&mut world, &mut client, &topic, Some(version(0)));
        assert_eq!(first.schema.unwrap().schema_data, a.schema_data);
    }
}

#[test]
fn questions_have_their_errors() {
    let mut world = world();
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    let error = |answer: proto::CommandGetSchemaResponse| {
        assert!(answer.schema.is_none());
        ServerError::try_from(answer.error_code.unwrap()).unwrap()
    };
    let missing = get(&mut world, &mut client, &topic, None);
    assert_eq!(error(missing), ServerError::TopicNotFound);
    let a = avro(&["a:int"]);
    assert_eq!(
        create(&mut world, &mut client, &topic, a.clone()),
        Err(ServerError::TopicNotFound)
    );
    open(&mut world, &mut client, &topic, 1, None).unwrap();
    assert_eq!(
        create(&mut world, &mut client, &topic, a.clone()),
        Ok(version(0))
    );
    assert_eq!(
        create(&mut world, &mut client, &topic, avro(&["b:int"])),
        Err(REFUSED)
    );
    assert_eq!(
        create(&mut world, &mut client, &topic, of(SchemaType::AutoConsume)),
        Err(REFUSED)
    );
    assert_eq!(
        create(&mut world, &mut client, "a/b", a),
        Err(ServerError::InvalidTopicName)
    );
    let empty = get(&mut world, &mut client, &topic, Some(Bytes::new()));
    assert_eq!(error(empty), REFUSED);
    let unknown = get(&mut world, &mut client, &topic, Some(version(7)));
    assert_eq!(error(unknown), ServerError::TopicNotFound);
    let name = get(&mut world, &mut client, "a/b", None);
    assert_eq!(error(name), ServerError::InvalidTopicName);
    let long = Bytes::from(vec![0; 64]);
    assert!(
        get(&mut world, &mut client, &topic, Some(long))
            .schema
            .is_some()
    );
    let short = get_command(&topic, 99, Some(Bytes::from_static(b"abc")));
    client.say(&mut world, &short);
    world.run_until_idle();
    assert!(!world.conns[client.peer.0].open);
}

#[test]
fn a_consumer_says_the_schema_of_an_idle_topic_only() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    let a = avro(&["a:int"]);
    // Nobody is there, or somebody who takes anything.
    let topic = world.topic_on(1, "idle");
    let any = of(SchemaType::AutoConsume);
    subscribe(&mut world, &mut client, &topic, 1, Some(any)).unwrap();
    subscribe(&mut world, &mut client, &topic, 2, Some(a.clone())).unwrap();
    assert_eq!(
        get(&mut world, &mut client, &topic, None).schema_version,
        Some(version(0))
    );
    assert_eq!(
        subscribe(
            &mut world,
            &mut client,
            &topic,
            3,
            Some(of(SchemaType::String))
        ),
        Err(REFUSED)
    );
    // A consumer without a schema is a reader of plain bytes.
    let topic = world.topic_on(1, "plain");
    subscribe(&mut world, &mut client, &topic, 4, None).unwrap();
    assert_eq!(
        subscribe(&mut world, &mut client, &topic, 5, Some(a.clone())),
        Err(REFUSED)
    );
    // So is what is stored.
    let topic = world.topic_on(1, "stored");
    open(&mut world, &mut client, &topic, 1, None).unwrap();
    client.send(&mut world, 1, 0, "x");
    client.receipt(&mut world);
    let request_id = client.request();
    client.say(&mut world, &say::close_producer(1, request_id));
    client.success(&mut world, request_id);
    assert_eq!(
        subscribe(&mut world, &mut client, &topic, 6, Some(a.clone())),
        Err(REFUSED)
    );
    // A producer may.
    assert_eq!(
        open(&mut world, &mut client, &topic, 2, Some(a)),
        Ok(version(0))
    );
}

#[test]
fn partitions_share_their_topics_schemas() {
    let mut world = world();
    let base = "persistent://public/default/p";
    world.put_metadata("partitioned/persistent/public/default/p", b"4");
    world.run_until_idle();
    let mut client = Client::connect(&mut world, 1);
    for partition in 0..4 {
        let name = format!("{base}-partition-{partition}");
        let schema = if partition % 2 == 0 {
            avro(&["a:int"])
        } else {
            avro(&["a:int", "b:int?"])
        };
        assert_eq!(
            open(&mut world, &mut client, &name, partition, Some(schema)),
            Ok(version(partition % 2))
        );
    }
    assert_eq!(
        get(&mut world, &mut client, base, None).schema_version,
        Some(version(1))
    );
}

/// Two cores, one new schema, one moment: one version.
#[test]
fn producers_that_come_together_get_one_version() {
    let mut world = world();
    let topic = world.topic_on(0, "t");
    let mut clients: Vec<Client> = (0..2)
        .map(|core| Client::connect(&mut world, core))
        .collect();
    for client in &clients {
        for id in 0..5 {
            client.say(
                &mut world,
                &producer(&topic, id, 100 + id, Some(avro(&["a:int"]))),
            );
            client.say(
                &mut world,
                &producer(&topic, 10 + id, 200 + id, Some(avro(&["a:int", "b:int?"]))),
            );
        }
    }
    world.run_until_idle();
    let mut versions = std::collections::BTreeSet::new();
    for client in &mut clients {
        for _ in 0..10 {
            let opened = client
                .expect(&mut world, Type::ProducerSuccess)
                .command
                .producer_success
                .unwrap();
            let first = opened.request_id < 200;
            versions.insert((first, opened.schema_version.unwrap()));
        }
    }
    let versions: Vec<_> = versions.into_iter().collect();
    assert_eq!(versions, [(false, version(1)), (true, version(0))]);
}

#[test]
fn what_was_answered_survives_a_crash() {
    let mut world = world();
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    assert_eq!(
        open(&mut world, &mut client, &topic, 1, Some(avro(&["a:int"]))),
        Ok(version(0))
    );
    assert_eq!(
        open(
            &mut world,
            &mut client,
            &topic,
            2,
            Some(avro(&["a:int", "b:int?"]))
        ),
        Ok(version(1))
    );
    world.crash(|_, _| Kept::Nothing);
    let mut client = Client::connect(&mut world, 1);
    assert_eq!(
        get(&mut world, &mut client, &topic, None).schema_version,
        Some(version(1))
    );
    assert_eq!(
        open(&mut world, &mut client, &topic, 1, Some(avro(&["a:int"]))),
        Ok(version(0))
    );
    assert_eq!(
        open(&mut world, &mut client, &topic, 2, Some(avro(&["c:int"]))),
        Err(REFUSED)
    );
}

#[test]
fn policies_of_the_namespace_count() {
    let mut world = world();
    let mut client = Client::connect(&mut world, 0);
    let set = |world: &mut World, policies: &str| {
        world.put_metadata("namespace/public/default", policies.as_bytes());
        world.run_until_idle();
    };
    set(&mut world, r#"{"is_allow_auto_update_schema":false}"#);
    let topic = world.topic_on(1, "t");
    let (a, c) = (avro(&["a:int"]), avro(&["c:int"]));
    assert_eq!(
        open(&mut world, &mut client, &topic, 1, Some(a.clone())),
        Err(REFUSED)
    );
    assert_eq!(
        subscribe(&mut world, &mut client, &topic, 1, Some(a.clone())),
        Err(REFUSED)
    );
    set(
        &mut world,
        r#"{"schema_compatibility_strategy":"ALWAYS_COMPATIBLE"}"#,
    );
    assert_eq!(
        open(&mut world, &mut client, &topic, 1, Some(a.clone())),
        Ok(version(0))
    );
    assert_eq!(
        open(&mut world, &mut client, &topic, 2, Some(c)),
        Ok(version(1))
    );
    assert_eq!(
        open(
            &mut world,
            &mut client,
            &topic,
            3,
            Some(of(SchemaType::String))
        ),
        Ok(version(2))
    );
    set(&mut world, r#"{"schema_validation_enforced":true}"#);
    assert_eq!(open(&mut world, &mut client, &topic, 4, None), Err(REFUSED));
    let other = world.topic_on(1, "other");
    assert_eq!(
        open(&mut world, &mut client, &other, 4, None),
        Ok(Bytes::new())
    );
    // Consumers need none.
    subscribe(&mut world, &mut client, &topic, 7, None).unwrap();
}

/// What REST does to the store is what the next question finds, and numbers go on.
#[test]
fn a_deletion_from_outside_counts_at_once() {
    let mut world = world();
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    open(&mut world, &mut client, &topic, 1, Some(avro(&["a:int"]))).unwrap();
    let id = SchemaId::of(&vela_broker::engine::name::TopicName::parse(&topic).unwrap());
    let mut versions = Versions::read(world.metadata(&id.key()).unwrap()).unwrap();
    assert_eq!(versions.all().len(), 1);
    assert_eq!(versions.delete(), 1);
    world.put_metadata(&id.key(), &versions.write());
    world.run_until_idle();
    assert!(get(&mut world, &mut client, &topic, None).schema.is_none());
    assert!(
        get(&mut world, &mut client, &topic, Some(version(0)))
            .schema
            .is_none()
    );
    assert_eq!(
        open(&mut world, &mut client, &topic, 2, Some(avro(&["z:int"]))),
        Ok(version(2))
    );
}

/// Whoever changes the store between the read and the write of a core: the core decides anew.
#[test]
fn a_change_in_between_is_not_overwritten() {
    let mut world = world();
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    open(&mut world, &mut client, &topic, 1, None).unwrap();
    let id = SchemaId::of(&vela_broker::engine::name::TopicName::parse(&topic).unwrap());
    let mut theirs = Versions::default();
    let schema = vela_broker::engine::schema::Schema::from_wire(&avro(&["z:int"])).unwrap();
    theirs.put(schema, Default::default(), 0).unwrap();
    client.say(&mut world, &producer(&topic, 2, 50, Some(avro(&["a:int"]))));
    // Step by step, and as soon as the core wants to store its version, somebody else has.
    let mut slipped_in = false;
    for _ in 0..10_000 {
        let steps = world.steps();
        let Some(step) = steps.first().copied() else {
            break;
        };
        if !slipped_in && world.stores(&id.key()) {
            world.put_metadata(&id.key(), &theirs.write());
            slipped_in = true;
        }
        world.apply(step, usize::MAX);
    }
    assert!(slipped_in);
    assert_eq!(outcome(client.next(&mut world).command, 50), Err(REFUSED));
    assert_eq!(world.metadata(&id.key()).unwrap(), theirs.write());
}

/// A closed opening takes nothing with it, and the id is free.
#[test]
fn an_opening_that_is_closed_while_its_schema_is_looked_at_is_gone() {
    let mut world = world();
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.say(&mut world, &producer(&topic, 1, 50, Some(avro(&["a:int"]))));
    client.say(&mut world, &say::close_producer(1, 51));
    client.say(&mut world, &producer(&topic, 1, 52, Some(avro(&["a:int"]))));
    client.success(&mut world, 51);
    let opened = client
        .expect(&mut world, Type::ProducerSuccess)
        .command
        .producer_success
        .unwrap();
    assert_eq!(
        (opened.request_id, opened.schema_version),
        (52, Some(version(0)))
    );
    client.send(&mut world, 1, 0, "x");
    client.receipt(&mut world);
    client.expect_silence(&mut world);
}

/// Messages behind PRODUCER wait for its schema and come in order.
#[test]
fn sends_behind_a_producer_with_a_schema_wait_for_it() {
    let mut world = world();
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    client.say(&mut world, &producer(&topic, 1, 50, Some(avro(&["a:int"]))));
    for n in 0..20 {
        client.send(&mut world, 1, n, "x");
    }
    client.expect(&mut world, Type::ProducerSuccess);
    for n in 0..20 {
        assert_eq!(client.receipt(&mut world).0, n);
    }
}

#[test]
fn questions_about_schemas_are_answered_in_order_and_one_at_a_time() {
    let mut world = world();
    let topic = world.topic_on(1, "t");
    let mut client = Client::connect(&mut world, 0);
    let large = proto::Schema {
        schema_data: vec![b'x'; 900_000].into(),
        ..of(SchemaType::None)
    };
    open(&mut world, &mut client, &topic, 1, Some(large)).unwrap();
    // A small question, a large answer: a peer that does not read gets some of them, not all.
    world.conns[client.peer.0].stuck = true;
    for n in 0..200 {
        client.say(&mut world, &get_command(&topic, n, None));
    }
    world.run_until_idle();
    let held = world.totals_output();
    assert!(
        held < 12 << 20,
        "{held} bytes wait for a peer that does not read"
    );
    world.conns[client.peer.0].stuck = false;
    for n in 0..200 {
        let answer = client.expect(&mut world, Type::GetSchemaResponse).command;
        assert_eq!(answer.get_schema_response.unwrap().request_id, n);
    }
    let too_large = proto::Schema {
        schema_data: vec![b'x'; (1 << 20) + 1].into(),
        ..of(SchemaType::None)
    };
    assert_eq!(
        open(&mut world, &mut client, &topic, 2, Some(too_large)),
        Err(REFUSED)
    );
}

/// Everything but the metadata store goes on.
fn run_without_store(world: &mut World) {
    for _ in 0..1_000_000 {
        let steps = world.steps();
        let Some(step) = steps.into_iter().find(|step| *step != Step::Metadata) else {
            return;
        };
        world.apply(step, usize::MAX);
    }
    panic!("the world does not come to rest");
}

#[test]
fn questions_that_wait_for_the_store_are_bounded_in_number_and_in_bytes() {
    for (count, size, waiting) in [(4200, 10, 4096), (70, 1_000_000, 67)] {
        let mut world = World::new(WorldConfig {
            cores: 1,
            shards: 1,
            ..WorldConfig::default()
        });
        let mut client = Client::connect(&mut world, 0);
        for n in 0..count {
            let schema = proto::Schema {
                schema_data: vec![b'x'; size].into(),
                ..of(SchemaType::None)
            };
            client.say(&mut world, &producer(&format!("t{n}"), n, n, Some(schema)));
            run_without_store(&mut world);
        }
        client.listen(&mut world);
        let refused = client.inbox.len() as u64;
        assert_eq!(refused, count - waiting);
        for answer in std::mem::take(&mut client.inbox) {
            let error = answer.command.error.unwrap();
            assert_eq!(error.error, ServerError::ServiceNotReady as i32);
            assert!(error.message.contains("limits are"), "{}", error.message);
        }
        // Those that waited are served, and there is room again.
        world.run_until_idle();
        client.listen(&mut world);
        let opened = std::mem::take(&mut client.inbox);
        assert_eq!(opened.len() as u64, waiting);
        assert!(
            opened
                .iter()
                .all(|answer| answer.command.producer_success.is_some())
        );
        let name = format!("t{}", count - 1);
        assert_eq!(
            open(
                &mut world,
                &mut client,
                &name,
                count - 1,
                Some(of(SchemaType::None))
            ),
            Ok(version(0))
        );
    }
}

/// Properties take memory even if there is nothing in them: a frame holds hundreds of thousands of such, and versions are kept.
#[test]
fn empty_properties_count() {
    let mut world = world();
    let topic = world.topic_on(0, "t");
    let mut client = Client::connect(&mut world, 0);
    let empty = proto::KeyValue {
        key: String::new(),
        value: String::new(),
    };
    let mut many = of(SchemaType::String);
    many.properties = vec![empty.clone(); 100_000];
    assert_eq!(
        open(&mut world, &mut client, &topic, 1, Some(many.clone())),
        Err(REFUSED)
    );
    many.properties = vec![empty; 100];
    open(&mut world, &mut client, &topic, 1, Some(many)).unwrap();
}
