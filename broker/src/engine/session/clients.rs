//! The session's producers and consumers: opening, closing, and what their topics say of them.

use super::{Client, ClientState, ClosedByBroker, Session};
use crate::engine::context::Context;
use crate::engine::message::{
    AccessMode, ClientRef, KeySharedMeta, Message, OpenConsumer, OpenProducer, OpenSchema, SubType,
};
use crate::engine::metadata::PartitionCheck;
use crate::engine::name::{Domain, TopicName};
use crate::engine::reply;
use crate::engine::schema::Schema;
use crate::engine::time::Now;
use vela_codec::{Frame, encode};
use vela_proto::{self as proto, BaseCommand, ServerError};

/// Schema type of a consumer that takes whatever schema the topic has.
const AUTO_CONSUME: i32 = proto::schema::Type::AutoConsume as i32;
/// Longest name of a subscription, producer or consumer, bytes, as for topics: a bound on what one name can hold in memory, and on
/// what a short question can be answered with.
const MAX_NAME: usize = 4096;
/// Since this protocol version a peer understands REACHED_END_OF_TOPIC.
const END_OF_TOPIC_VERSION: i32 = 9;
/// Most bytes of the metadata of a producer, which is kept while it is connected.
const MAX_PRODUCER_METADATA: usize = 8 << 10;
/// Producers that the broker closed and that a connection remembers for a while; of more, some are forgotten early.
const MAX_CLOSED_BY_BROKER: usize = 50_000;
/// Most bytes of the properties of a subscription.
const MAX_PROPERTIES: usize = 64 << 10;

/// Subscription names that the broker keeps for itself.
const RESERVED_SUBSCRIPTIONS: [&str; 2] = ["pulsar.repl", "pulsar.dedup"];

impl Session {
    /// Checks that PRODUCER and SUBSCRIBE share. The answer says whether the topic may be created.
    fn check_topic(
        &self,
        cx: &Context,
        text: &str,
    ) -> Result<(TopicName, bool), (ServerError, String)> {
        let name =
            TopicName::parse(text).map_err(|e| (ServerError::InvalidTopicName, e.to_string()))?;
        if !cx.metadata.has_namespace(name.namespace()) {
            let text = format!(
                "Namespace {} of topic {name} is not served here; create it or look the topic up again",
                name.namespace()
            );
            return Err((ServerError::ServiceNotReady, text));
        }
        let (served, kind, setting) = match name.domain() {
            Domain::Persistent => (
                cx.settings.enable_persistent_topics,
                "Persistent",
                "enablePersistentTopics",
            ),
            Domain::NonPersistent => (
                cx.settings.enable_non_persistent_topics,
                "Non-persistent",
                "enableNonPersistentTopics",
            ),
        };
        if !served {
            let text = format!("{kind} topics are not served here, {setting} is false: {name}");
            return Err((ServerError::NotAllowedError, text));
        }
        let auto = cx.settings.allow_auto_topic_creation && !text.ends_with(char::is_whitespace);
        match cx.metadata.check_partition(&name) {
            PartitionCheck::Plain => Ok((name, auto)),
            PartitionCheck::Partition => Ok((name, true)),
            _ if !auto => Err((
                ServerError::TopicNotFound,
                format!("Topic {name} does not exist"),
            )),
            PartitionCheck::IsPartitioned => Err((
                ServerError::NotAllowedError,
                format!(
                    "{name} is a partitioned topic; use one of its partitions, {name}-partition-0 and so on"
                ),
            )),
            PartitionCheck::NotPartitioned => Err((
                ServerError::NotAllowedError,
                format!(
                    "{name} names a partition, but {} is not a partitioned topic",
                    name.base()
                ),
            )),
            PartitionCheck::Beyond => Err((
                match name.domain() {
                    Domain::Persistent => ServerError::TopicNotFound,
                    Domain::NonPersistent => ServerError::NotAllowedError,
                },
                format!("{name} is beyond the last partition of {}", name.base()),
            )),
        }
    }

    /// May the connection have one more producer or consumer?
    fn check_clients(&self, cx: &Context) -> Result<(), (ServerError, String)> {
        let limit = cx.settings.max_clients_per_connection as usize;
        let clients = self.producers.len() + self.consumers.len();
        if limit == 0 || clients < limit {
            return Ok(());
        }
        Err((
            ServerError::NotAllowedError,
            format!(
                "The connection has {clients} producers and consumers, maxClientsPerConnection is {limit}: close some, or open another connection"
            ),
        ))
    }

    pub(super) fn open_producer(
        &mut self,
        cx: &mut Context,
        producer: proto::CommandProducer,
        frame: Frame,
        now: Now,
    ) {
        let (id, request_id) = (producer.producer_id, producer.request_id);
        match self.producers.get(&id).map(|client| &client.state) {
            Some(ClientState::Closing) => {
                self.holds.frame = Some(Box::new(frame));
                return;
            }
            Some(ClientState::Opening) => {
                return self.send_error(
                    cx,
                    request_id,
                    ServerError::ServiceNotReady,
                    format!("Producer {id} is still being created on this connection"),
                );
            }
            Some(ClientState::Open {
                name,
                last_sequence_id,
                schema_version,
                topic_epoch,
            }) => {
                let answer = reply::producer_success(
                    request_id,
                    name.clone(),
                    *last_sequence_id,
                    *schema_version,
                    *topic_epoch,
                );
                return self.send(cx, &answer);
            }
            None => {}
        }
        let (topic, create) = match self.check_topic(cx, &producer.topic) {
            Ok(checked) => checked,
            Err((error, message)) => return self.send_error(cx, request_id, error, message),
        };
        if let Err((error, message)) = self
            .check_clients(cx)
            .and_then(|()| check_producer(&producer))
        {
            return self.send_error(cx, request_id, error, message);
        }
        let schema = match open_schema(producer.schema.as_ref()) {
            Ok(schema) => schema,
            Err((error, message)) => return self.send_error(cx, request_id, error, message),
        };
        if let Err((error, message)) = check_name("Producer", producer.producer_name.as_deref())
            .and_then(|()| {
                check_name(
                    "Initial subscription",
                    producer.initial_subscription_name.as_deref(),
                )
            })
        {
            return self.send_error(cx, request_id, error, message);
        }
        let initial_subscription = producer
            .initial_subscription_name
            .filter(|name| !name.is_empty());
        if initial_subscription.is_some() && !cx.auto_subscriptions(&topic) {
            let text = "The initial subscription may not be created: allowAutoSubscriptionCreation is false";
            return self.send_error(cx, request_id, ServerError::NotAllowedError, text);
        }
        let core = cx.core_of_shard(topic.shard(cx.shards));
        let volatile = topic.domain() == Domain::NonPersistent;
        let client = self.next_client(id);
        if let Some(closed) = self.closed_by_broker.get_mut(&id) {
            closed.open_again = true;
        }
        self.producers.insert(
            id,
            Client {
                incarnation: client.incarnation,
                core,
                volatile,
                unwritten: 0,
                state: ClientState::Opening,
            },
        );
        let open = OpenProducer {
            topic,
            request_id,
            name: producer.producer_name,
            epoch: producer.epoch.unwrap_or(0),
            access: match producer.producer_access_mode {
                Some(1) => AccessMode::Exclusive,
                Some(2) => AccessMode::WaitForExclusive,
                Some(3) => AccessMode::ExclusiveWithFencing,
                _ => AccessMode::Shared,
            },
            topic_epoch: producer.topic_epoch,
            encrypted: producer.encrypted.unwrap_or(false),
            user_named: producer.user_provided_producer_name.unwrap_or(true),
            metadata: producer
                .metadata
                .into_iter()
                .map(|p| (p.key, p.value))
                .collect(),
            address: self.peer.to_string(),
            asked_ms: now.wall_ms,
            create,
            initial_subscription,
            schema,
        };
        cx.post(
            core,
            Message::OpenProducer {
                client,
                open: Box::new(open),
            },
        );
    }

    pub(super) fn close_producer(&mut self, cx: &mut Context, id: u64, request_id: u64) {
        let client = self.producers.get_mut(&id);
        let Some(client) = client.and_then(Client::begin_close) else {
            return self.send(cx, &reply::success(request_id));
        };
        let core = client.core;
        let client = ClientRef {
            session: self.me,
            incarnation: client.incarnation,
            id,
        };
        let request_id = Some(request_id);
        cx.post(core, Message::CloseProducer { client, request_id });
    }

    pub(super) fn open_consumer(
        &mut self,
        cx: &mut Context,
        subscribe: proto::CommandSubscribe,
        frame: Frame,
    ) {
        let (id, request_id) = (subscribe.consumer_id, subscribe.request_id);
        match self.consumers.get(&id).map(|client| &client.state) {
            Some(ClientState::Closing) => {
                self.holds.frame = Some(Box::new(frame));
                return;
            }
            Some(ClientState::Opening) => {
                return self.send_error(
                    cx,
                    request_id,
                    ServerError::ServiceNotReady,
                    format!("Consumer {id} is still being created on this connection"),
                );
            }
            Some(ClientState::Open { .. }) => return self.send(cx, &reply::success(request_id)),
            None => {}
        }
        let Some(sub_type) = sub_type(&subscribe) else {
            return self.protocol_error(cx);
        };
        let (topic, create_topic) = match self.check_topic(cx, &subscribe.topic) {
            Ok(checked) => checked,
            Err((error, message)) => return self.send_error(cx, request_id, error, message),
        };
        if let Err((error, message)) = self
            .check_clients(cx)
            .and_then(|()| check_subscribe(cx, &subscribe, topic.domain()))
        {
            return self.send_error(cx, request_id, error, message);
        }
        let any_schema = subscribe
            .schema
            .as_ref()
            .is_some_and(|schema| schema.r#type == AUTO_CONSUME);
        let schema = match open_schema(subscribe.schema.as_ref().filter(|_| !any_schema)) {
            Ok(schema) => schema,
            Err((error, message)) => return self.send_error(cx, request_id, error, message),
        };
        let core = cx.core_of_shard(topic.shard(cx.shards));
        let volatile = topic.domain() == Domain::NonPersistent;
        let client = self.next_client(id);
        let create_subscription = cx.auto_subscriptions(&topic);
        let siblings = u32::try_from(self.consumers.len()).unwrap_or(u32::MAX);
        self.consumers.insert(
            id,
            Client {
                incarnation: client.incarnation,
                core,
                volatile,
                unwritten: 0,
                state: ClientState::Opening,
            },
        );
        let open = OpenConsumer {
            topic,
            request_id,
            sub_type,
            key_shared: subscribe.key_shared_meta.map(|meta| KeySharedMeta {
                sticky: meta.key_shared_mode == proto::KeySharedMode::Sticky as i32,
                allow_out_of_order: meta.allow_out_of_order_delivery.unwrap_or(false),
                ranges: meta
                    .hash_ranges
                    .iter()
                    .map(|range| (range.start, range.end))
                    .collect(),
            }),
            subscription: subscribe.subscription,
            name: subscribe.consumer_name.unwrap_or_default(),
            priority: subscribe.priority_level.unwrap_or(0),
            durable: subscribe.durable.unwrap_or(true),
            start: subscribe.start_message_id.as_ref().map(reply::position),
            rollback_seconds: subscribe.start_message_rollback_duration_sec.unwrap_or(0),
            earliest: subscribe.initial_position
                == Some(proto::command_subscribe::InitialPosition::Earliest as i32),
            create_topic: create_topic && subscribe.force_topic_creation.unwrap_or(true),
            create_subscription,
            properties: subscribe
                .subscription_properties
                .into_iter()
                .map(|p| (p.key, p.value))
                .collect(),
            epoch: subscribe.consumer_epoch,
            // The limit is on the bytes of keys and values: empty ones would be as many as a frame takes.
            metadata: std::collections::BTreeMap::from_iter(
                subscribe.metadata.into_iter().map(|p| (p.key, p.value)),
            )
            .into_iter()
            .collect(),
            address: self.peer.to_string(),
            siblings,
            version: self.version,
            schema,
            any_schema,
        };
        cx.post(
            core,
            Message::OpenConsumer {
                client,
                open: Box::new(open),
            },
        );
    }

    pub(super) fn close_consumer(&mut self, cx: &mut Context, id: u64, request_id: u64) {
        let client = self.consumers.get_mut(&id);
        let Some(client) = client.and_then(Client::begin_close) else {
            return self.send(cx, &reply::success(request_id));
        };
        let core = client.core;
        let client = ClientRef {
            session: self.me,
            incarnation: client.incarnation,
            id,
        };
        let request_id = Some(request_id);
        cx.post(core, Message::CloseConsumer { client, request_id });
    }

    /// A topic says what became of a producer or consumer.
    pub(super) fn client_changed(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        message: Message,
        now: Now,
    ) {
        let id = client.id;
        let current = |map: &std::collections::BTreeMap<u64, Client>| {
            map.get(&id)
                .is_some_and(|c| c.incarnation == client.incarnation)
        };
        match message {
            Message::ProducerOpened {
                request_id,
                name,
                last_sequence_id,
                schema_version,
                topic_epoch,
                ..
            } => {
                if let Some(entry) = self
                    .producers
                    .get_mut(&id)
                    .filter(|c| c.incarnation == client.incarnation)
                    && matches!(entry.state, ClientState::Opening)
                {
                    entry.state = ClientState::Open {
                        name: name.clone(),
                        last_sequence_id,
                        schema_version,
                        topic_epoch,
                    };
                }
                self.send(
                    cx,
                    &reply::producer_success(
                        request_id,
                        name,
                        last_sequence_id,
                        schema_version,
                        topic_epoch,
                    ),
                );
            }
            Message::ProducerQueued {
                request_id, name, ..
            } if current(&self.producers) => {
                self.send(cx, &reply::producer_queued(request_id, name));
            }
            Message::ProducerRefused {
                request_id,
                error,
                message,
                ..
            } => {
                if current(&self.producers) {
                    self.producers.remove(&id);
                }
                self.send_error(cx, request_id, error, message);
            }
            Message::ProducerClosed {
                request_id,
                by_broker,
                ..
            } => {
                if current(&self.producers) {
                    self.producers.remove(&id);
                    if by_broker {
                        let until =
                            now.ms + u64::from(cx.settings.keep_alive_interval_seconds) * 1000;
                        if self.closed_by_broker.len() >= MAX_CLOSED_BY_BROKER {
                            self.closed_by_broker.pop_first();
                        }
                        let closed = ClosedByBroker {
                            incarnation: client.incarnation,
                            until,
                            open_again: false,
                        };
                        self.closed_by_broker.insert(id, closed);
                        self.tell_closed(cx, &reply::close_producer(id));
                    }
                }
                if let Some(request_id) = request_id {
                    self.out.encode(|buf| encode::success(buf, request_id));
                    self.touch(cx);
                }
            }
            Message::ConsumerOpened { request_id, .. } => {
                if let Some(entry) = self
                    .consumers
                    .get_mut(&id)
                    .filter(|c| c.incarnation == client.incarnation)
                    && matches!(entry.state, ClientState::Opening)
                {
                    entry.state = ClientState::Open {
                        name: String::new(),
                        last_sequence_id: -1,
                        schema_version: None,
                        topic_epoch: None,
                    };
                }
                self.out.encode(|buf| encode::success(buf, request_id));
                self.touch(cx);
            }
            Message::EndOfTopic { .. }
                if current(&self.consumers) && self.version >= END_OF_TOPIC_VERSION =>
            {
                self.send(cx, &reply::end_of_topic(id));
            }
            // Peers below version 12 do not know the command.
            Message::ActiveConsumerChange { active, .. }
                if current(&self.consumers) && self.version >= 12 =>
            {
                self.send(cx, &reply::active_consumer_change(id, active));
            }
            Message::ConsumerRefused {
                request_id,
                error,
                message,
                ..
            } => {
                if current(&self.consumers) {
                    self.consumers.remove(&id);
                }
                self.send_error(cx, request_id, error, message);
            }
            Message::ConsumerClosed {
                request_id,
                by_broker,
                ..
            } => {
                if current(&self.consumers)
                    && let Some(gone) = self.consumers.remove(&id)
                {
                    // The answer to a SUBSCRIBE that is still open says it; a notice before it would seem to be about another consumer.
                    if by_broker && !matches!(gone.state, ClientState::Opening) {
                        self.tell_closed(cx, &reply::close_consumer(id));
                    }
                }
                if let Some(request_id) = request_id {
                    self.out.encode(|buf| encode::success(buf, request_id));
                    self.touch(cx);
                }
            }
            _ => {}
        }
    }

    /// A SEND has met no producer. One that crosses our CLOSE_PRODUCER is dropped.
    pub(super) fn no_such_producer(&mut self, cx: &mut Context, client: ClientRef) {
        let closed = self.closed_by_broker.get(&client.id);
        if closed.is_none_or(|closed| closed.incarnation != client.incarnation) {
            self.protocol_error(cx);
        }
    }

    /// CLOSE_PRODUCER and CLOSE_CONSUMER exist since version 5; older peers lose the connection.
    fn tell_closed(&mut self, cx: &mut Context, command: &BaseCommand) {
        if self.version >= 5 {
            self.send(cx, command);
        } else {
            self.close(cx);
        }
    }
}

fn check_name(what: &str, name: Option<&str>) -> Result<(), (ServerError, String)> {
    match name.map_or(0, str::len) {
        0..=MAX_NAME => Ok(()),
        len => Err((
            ServerError::NotAllowedError,
            format!("{what} name is {len} bytes, at most {MAX_NAME} are taken; use a shorter one"),
        )),
    }
}

fn check_producer(producer: &proto::CommandProducer) -> Result<(), (ServerError, String)> {
    let size: usize = producer
        .metadata
        .iter()
        .map(|p| p.key.len() + p.value.len() + std::mem::size_of_val(p))
        .sum();
    if size > MAX_PRODUCER_METADATA {
        return Err((
            ServerError::MetadataError,
            format!(
                "Producer metadata takes {size} bytes, at most {MAX_PRODUCER_METADATA} are taken"
            ),
        ));
    }
    if let Some(epoch) = producer.topic_epoch
        && i64::try_from(epoch).is_err()
    {
        return Err((
            ServerError::NotAllowedError,
            format!("Topic epoch {epoch} is none: epochs are below 2^63"),
        ));
    }
    Ok(())
}

/// The type a SUBSCRIBE asks for; `None` if there is no such type.
fn sub_type(subscribe: &proto::CommandSubscribe) -> Option<SubType> {
    use proto::command_subscribe::SubType as Asked;
    Some(match Asked::try_from(subscribe.sub_type).ok()? {
        Asked::Exclusive => SubType::Exclusive,
        Asked::Shared => SubType::Shared,
        Asked::Failover => SubType::Failover,
        Asked::KeyShared => SubType::KeyShared,
    })
}

fn check_subscribe(
    cx: &Context,
    subscribe: &proto::CommandSubscribe,
    domain: Domain,
) -> Result<(), (ServerError, String)> {
    use proto::command_subscribe::SubType;
    let size: usize = subscribe
        .metadata
        .iter()
        .map(|p| p.key.len() + p.value.len())
        .sum();
    let limit = cx.settings.max_consumer_metadata_size as usize;
    if size > limit {
        return Err((
            ServerError::MetadataError,
            format!("Consumer metadata is {size} bytes, maxConsumerMetadataSize is {limit}"),
        ));
    }
    check_name("Subscription", Some(&subscribe.subscription))?;
    check_name("Consumer", subscribe.consumer_name.as_deref())?;
    let properties = subscribe.subscription_properties.iter();
    let size: usize = properties
        .map(|p| p.key.len() + p.value.len() + std::mem::size_of_val(p))
        .sum();
    if size > MAX_PROPERTIES {
        return Err((
            ServerError::NotAllowedError,
            format!(
                "Subscription properties take {size} bytes, at most {MAX_PROPERTIES} are taken"
            ),
        ));
    }
    let name = &subscribe.subscription;
    if name.trim().is_empty()
        || RESERVED_SUBSCRIPTIONS
            .iter()
            .any(|reserved| name.starts_with(reserved))
    {
        return Err((
            ServerError::ProducerBusy,
            format!("'{name}' cannot be a subscription name: it is blank or reserved"),
        ));
    }
    if subscribe.read_compacted == Some(true) && domain == Domain::NonPersistent {
        return Err((
            ServerError::NotAllowedError,
            "readCompacted is for persistent topics only".into(),
        ));
    }
    let sub_type = subscribe.sub_type;
    let single = sub_type == SubType::Exclusive as i32 || sub_type == SubType::Failover as i32;
    if subscribe.read_compacted == Some(true) && !single {
        return Err((
            ServerError::NotAllowedError,
            "readCompacted needs an Exclusive or Failover subscription".into(),
        ));
    }
    Ok(())
}

/// The schema of PRODUCER or SUBSCRIBE.
fn open_schema(schema: Option<&proto::Schema>) -> Result<OpenSchema, (ServerError, String)> {
    match schema.map(Schema::from_wire) {
        None => Ok(OpenSchema::Absent),
        Some(Ok(schema)) => Ok(OpenSchema::Given(schema)),
        Some(Err(error)) => Err((ServerError::IncompatibleSchema, error.to_string())),
    }
}
