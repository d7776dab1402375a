//! Openings that bring a schema wait for the core that answers for it.

use vela_proto::ServerError;

use super::openings::Seat;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, OpenConsumer, OpenProducer, OpenSchema};
use crate::engine::name::{Domain, TopicName};
use crate::engine::schema::SchemaId;
use crate::engine::schema::registry::{Ask, Asker, Decided, Question, got_or_created, policy};
use crate::engine::time::Now;

/// A producer or consumer whose schema is being looked at elsewhere.
pub(super) enum Opening {
    Producer(Box<OpenProducer>),
    Consumer(Box<OpenConsumer>),
}

/// Posts a question to the core that answers for the id.
pub(in crate::engine) fn post_ask(cx: &mut Context, ask: Box<Ask>) {
    let core = cx.core_of_shard(ask.id.shard(cx.shards));
    cx.post(core, Message::AskSchema(ask));
}

impl Topic {
    /// Nobody uses it and it holds nothing: a consumer may say what its schema is. (A consumer without a schema uses it, one that takes any
    /// schema does not.)
    fn is_idle(&self) -> bool {
        let mut consumers = self
            .subs
            .iter()
            .flat_map(|(_, sub)| sub.roster.iter())
            .map(|(_, consumer)| consumer);
        self.producers.is_empty()
            && self.state.ledgers.entries() == 0
            && (!self.is_volatile() || self.entries_added == 0)
            && consumers.all(|consumer| consumer.any_schema)
    }
}

impl Topics {
    fn ask_schema(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        topic: &TopicName,
        question: Question,
        opening: Opening,
    ) {
        self.wait(client, 0);
        let found = self.by_name.get(topic.as_str());
        let found = found.and_then(|slot| self.topics.get(*slot as usize));
        let of = found.map(|topic| topic.state.id);
        self.deciding.insert(client.key(), (opening, of));
        let ask = Ask {
            id: SchemaId::of(topic),
            asker: Asker::Opening {
                core: cx.core,
                client,
            },
            question,
        };
        post_ask(cx, Box::new(ask));
    }

    /// The producer, if its schema needs no looking at any more; else it waits.
    pub(super) fn with_schema(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        mut open: Box<OpenProducer>,
    ) -> Option<Box<OpenProducer>> {
        let question = match std::mem::replace(&mut open.schema, OpenSchema::Absent) {
            OpenSchema::Given(schema) => Question::Bring(schema),
            OpenSchema::Absent if policy(cx, &SchemaId::of(&open.topic)).enforced => {
                Question::Plain
            }
            settled => {
                open.schema = settled;
                return Some(open);
            }
        };
        let topic = open.topic.clone();
        self.ask_schema(cx, client, &topic, question, Opening::Producer(open));
        None
    }

    /// The consumer, if its schema needs no looking at any more; else it waits.
    pub(super) fn reading_schema(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        slot: u32,
        mut open: Box<OpenConsumer>,
    ) -> Option<Box<OpenConsumer>> {
        let schema = match std::mem::replace(&mut open.schema, OpenSchema::Absent) {
            OpenSchema::Given(schema) => schema,
            settled => {
                open.schema = settled;
                return Some(open);
            }
        };
        let found = self.topics.get(slot as usize);
        if open.durable
            && !open.create_subscription
            && open.topic.domain() == Domain::Persistent
            && found.is_none_or(|topic| !topic.sub_names.contains_key(&open.subscription))
        {
            // It will be refused, and its schema is not to stay behind.
            return Some(open);
        }
        let idle = found.is_some_and(Topic::is_idle);
        let topic = open.topic.clone();
        self.ask_schema(
            cx,
            client,
            &topic,
            Question::Consume { schema, idle },
            Opening::Consumer(open),
        );
        None
    }

    /// What became of an opening's schema.
    pub(super) fn schema_decided(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        decided: Decided,
        now: Now,
    ) {
        let Some((opening, of)) = self.deciding.remove(&client.key()) else {
            return;
        };
        if !matches!(self.clients.get(&client.key()), Some(Seat::Waiting { .. })) {
            // It was closed in the meantime.
            return;
        }
        let topic = match &opening {
            Opening::Producer(open) => &open.topic,
            Opening::Consumer(open) => &open.topic,
        };
        let found = self.by_name.get(topic.as_str());
        let found = found.and_then(|slot| self.topics.get(*slot as usize));
        let decided = match found.map(|topic| topic.state.id) {
            // Another one has its name: its schemas went with it.
            id if id != of => {
                let text = format!("Topic {topic} was deleted meanwhile: come again");
                Err((ServerError::ServiceNotReady, text))
            }
            _ => decided,
        };
        match (opening, decided) {
            (Opening::Producer(mut open), Ok(version)) => {
                open.schema = OpenSchema::Decided(version);
                self.open_producer(cx, client, open, now);
            }
            (Opening::Consumer(mut open), Ok(version)) => {
                open.schema = OpenSchema::Decided(version);
                self.open_consumer(cx, client, open, now);
            }
            (Opening::Producer(open), Err((error, message))) => {
                self.refuse_producer(cx, client, (open.request_id, error, message), now);
            }
            (Opening::Consumer(open), Err((error, message))) => {
                self.refuse_consumer(cx, client, (open.request_id, error, message), now);
            }
        }
    }

    /// GET_OR_CREATE_SCHEMA goes on if the topic is there.
    pub(super) fn schema_of_topic(&mut self, cx: &mut Context, topic: &TopicName, ask: Box<Ask>) {
        if self.by_name.contains_key(topic.as_str()) && self.fence_of(topic).is_none() {
            return post_ask(cx, ask);
        }
        let Asker::Session {
            session,
            request_id,
        } = ask.asker
        else {
            return;
        };
        let text = format!("Topic not found {topic}");
        let command = got_or_created(request_id, Err((ServerError::TopicNotFound, text)));
        let command = Box::new(command);
        cx.post(session.core, Message::SchemaAnswer { session, command });
    }
}
