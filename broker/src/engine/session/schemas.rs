//! Questions about schemas. One at a time per connection, for the answer may be much longer than the question: frames wait for it.

use vela_proto::{self as proto, ServerError};

use super::Session;
use crate::engine::context::Context;
use crate::engine::message::Message;
use crate::engine::name::TopicName;
use crate::engine::schema::registry::{Ask, Asker, Question, asked_version, got, got_or_created};
use crate::engine::schema::{Schema, SchemaId};

impl Session {
    fn asker(&self, request_id: u64) -> Asker {
        Asker::Session {
            session: self.me,
            request_id,
        }
    }

    pub(super) fn get_schema(&mut self, cx: &mut Context, question: &proto::CommandGetSchema) {
        let request_id = question.request_id;
        let version = match asked_version(question.schema_version.as_ref()) {
            Ok(version) => version,
            Err(true) => {
                let error = (
                    ServerError::IncompatibleSchema,
                    "Empty schema version".into(),
                );
                return self.send(cx, &got(request_id, None, Some(error)));
            }
            Err(false) => return self.protocol_error(cx),
        };
        let topic = match TopicName::parse(&question.topic) {
            Ok(topic) => topic,
            Err(error) => {
                let error = (ServerError::InvalidTopicName, error.to_string());
                return self.send(cx, &got(request_id, None, Some(error)));
            }
        };
        self.asks_schema = true;
        let ask = Box::new(Ask {
            id: SchemaId::of(&topic),
            asker: self.asker(request_id),
            question: Question::Get(version),
        });
        crate::engine::topic::post_ask(cx, ask);
    }

    pub(super) fn get_or_create_schema(
        &mut self,
        cx: &mut Context,
        question: &proto::CommandGetOrCreateSchema,
    ) {
        let request_id = question.request_id;
        let topic = TopicName::parse(&question.topic)
            .map_err(|error| (ServerError::InvalidTopicName, error.to_string()));
        let schema = Schema::from_wire(&question.schema)
            .map_err(|error| (ServerError::IncompatibleSchema, error.to_string()));
        let (topic, schema) = match (topic, schema) {
            (Ok(topic), Ok(schema)) => (topic, schema),
            (Err(error), _) | (_, Err(error)) => {
                return self.send(cx, &got_or_created(request_id, Err(error)));
            }
        };
        self.asks_schema = true;
        let ask = Box::new(Ask {
            id: SchemaId::of(&topic),
            asker: self.asker(request_id),
            question: Question::Bring(schema),
        });
        let core = cx.core_of_shard(topic.shard(cx.shards));
        cx.post(core, Message::SchemaOfTopic { topic, ask });
    }
}
