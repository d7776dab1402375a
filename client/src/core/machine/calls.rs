//! Questions, and watches over the topics of a namespace.

use bytes::Bytes;
use vela_proto as proto;
use vela_proto::base_command::Type;
use vela_proto::command_get_topics_of_namespace::Mode;
use vela_proto::command_partitioned_topic_metadata_response::LookupType;
use vela_proto::{BaseCommand, ServerError};

use super::super::connection::base;
use super::super::event::{Answer, Event, TopicsChanged};
use super::super::lookup::{Owner, Place, Way};
use super::super::requests::Request;
use super::super::{CallKey, ConnKey, Nanos, Ticket, WatchKey};
use super::Machine;
use crate::error::{Error, Result};

/// A question that waits for its answer.
pub(super) struct Call {
    pub(super) way: Way,
    question: Question,
}

impl Call {
    pub(super) fn lookup_topic(&self) -> Option<&str> {
        match &self.question {
            Question::Broker { topic } => Some(topic),
            _ => None,
        }
    }
}

enum Question {
    Partitions {
        topic: String,
        create: bool,
    },
    Topics(proto::CommandGetTopicsOfNamespace),
    Schema {
        topic: String,
        version: Option<Bytes>,
    },
    Register {
        topic: String,
        schema: proto::Schema,
    },
    Broker {
        topic: String,
    },
}

/// A watch over topics.
pub(super) struct Watch {
    pub(super) way: Way,
    namespace: String,
    pattern: String,
    hash: Option<String>,
}

impl<S: Ticket> Machine<S> {
    /// Asks how many partitions a topic has: [`Answer::Partitions`]. `create`: the broker may make the topic if there is none.
    pub fn partitions(&mut self, now: Nanos, topic: impl Into<String>, create: bool) -> CallKey {
        let topic = topic.into();
        self.call(now, Question::Partitions { topic, create })
    }

    /// Asks for the topics of a namespace (`tenant/namespace`): [`Answer::Topics`].
    pub fn topics_of_namespace(
        &mut self,
        now: Nanos,
        namespace: impl Into<String>,
        mode: Mode,
        pattern: Option<String>,
        hash: Option<String>,
    ) -> CallKey {
        let question = proto::CommandGetTopicsOfNamespace {
            namespace: namespace.into(),
            mode: Some(mode as i32),
            topics_pattern: pattern,
            topics_hash: hash,
            ..Default::default()
        };
        self.call(now, Question::Topics(question))
    }

    /// Asks for a schema of a topic, the newest without `version`: [`Answer::Schema`].
    pub fn get_schema(
        &mut self,
        now: Nanos,
        topic: impl Into<String>,
        version: Option<Bytes>,
    ) -> CallKey {
        let topic = topic.into();
        self.call(now, Question::Schema { topic, version })
    }

    /// Registers a schema of a topic if the broker does not have it: [`Answer::SchemaVersion`].
    pub fn get_or_create_schema(
        &mut self,
        now: Nanos,
        topic: impl Into<String>,
        schema: proto::Schema,
    ) -> CallKey {
        let topic = topic.into();
        self.call(now, Question::Register { topic, schema })
    }

    /// Asks which broker serves a topic: [`Answer::Broker`].
    pub fn lookup(&mut self, now: Nanos, topic: impl Into<String>) -> CallKey {
        let topic = topic.into();
        self.call(now, Question::Broker { topic })
    }

    /// Watches the topics of a namespace whose names match `pattern` (PIP-145): [`Event::Topics`] tells of all at first, then of changes.
    /// `hash` is that of the list that is known already.
    pub fn watch_topics(
        &mut self,
        now: Nanos,
        namespace: impl Into<String>,
        pattern: impl Into<String>,
        hash: Option<String>,
    ) -> WatchKey {
        let key = WatchKey(self.next_key());
        let watch = Watch {
            way: Way::new(self.config.backoff, now, self.config.operation_timeout),
            namespace: namespace.into(),
            pattern: pattern.into(),
            hash,
        };
        self.watches.insert(key, watch);
        self.set_out(now, Owner::Watch(key));
        self.arm_way(Owner::Watch(key));
        key
    }

    /// Ends a watch.
    pub fn close_watch(&mut self, now: Nanos, key: WatchKey) {
        let owner = Owner::Watch(key);
        let Some(watch) = self.watches.remove(&key) else {
            return;
        };
        self.requests
            .forget(|request| request == Request::Open(owner));
        if let Some(conn) = watch.way.attached() {
            let close = proto::CommandWatchTopicListClose {
                request_id: self.requests.add(now, conn, Request::Ignored),
                watcher_id: key.0,
            };
            self.say(
                conn,
                &BaseCommand {
                    watch_topic_list_close: Some(close),
                    ..base(Type::WatchTopicListClose)
                },
            );
            self.tell(conn);
        }
    }

    fn call(&mut self, now: Nanos, question: Question) -> CallKey {
        let key = CallKey(self.next_key());
        let way = Way::new(self.config.backoff, now, self.config.operation_timeout);
        self.calls.insert(key, Call { way, question });
        self.set_out(now, Owner::Call(key));
        self.arm_way(Owner::Call(key));
        key
    }

    /// Asks, now that there is a connection.
    pub(super) fn ask(&mut self, now: Nanos, conn: ConnKey, key: CallKey) {
        let Some(call) = self.calls.get(&key) else {
            return;
        };
        let owner = Owner::Call(key);
        let request_id = self.requests.add(now, conn, Request::Open(owner));
        let command = match &call.question {
            Question::Partitions { topic, create } => BaseCommand {
                partition_metadata: Some(proto::CommandPartitionedTopicMetadata {
                    topic: topic.clone(),
                    request_id,
                    metadata_auto_creation_enabled: Some(*create),
                    ..Default::default()
                }),
                ..base(Type::PartitionedMetadata)
            },
            Question::Topics(question) => BaseCommand {
                get_topics_of_namespace: Some(proto::CommandGetTopicsOfNamespace {
                    request_id,
                    ..question.clone()
                }),
                ..base(Type::GetTopicsOfNamespace)
            },
            Question::Schema { topic, version } => BaseCommand {
                get_schema: Some(proto::CommandGetSchema {
                    request_id,
                    topic: topic.clone(),
                    schema_version: version.clone(),
                }),
                ..base(Type::GetSchema)
            },
            Question::Register { topic, schema } => BaseCommand {
                get_or_create_schema: Some(proto::CommandGetOrCreateSchema {
                    request_id,
                    topic: topic.clone(),
                    schema: schema.clone(),
                    ..Default::default()
                }),
                ..base(Type::GetOrCreateSchema)
            },
            Question::Broker { .. } => return,
        };
        self.say(conn, &command);
        self.place(owner, Place::Opening { conn });
    }

    /// The end of a question.
    pub(super) fn answer(&mut self, key: CallKey, result: Result<Answer>) {
        if self.calls.remove(&key).is_some() {
            let owner = Owner::Call(key);
            self.requests
                .forget(|r| r == Request::Open(owner) || r == Request::Lookup(owner));
            self.events.push_back(Event::Answer { call: key, result });
        }
    }

    pub(super) fn fail_watch(&mut self, key: WatchKey, error: Error) {
        if self.watches.remove(&key).is_some() {
            self.events
                .push_back(Event::WatchFailed { watch: key, error });
        }
    }

    pub(super) fn say_watch(&mut self, now: Nanos, conn: ConnKey, key: WatchKey) {
        let Some(watch) = self.watches.get(&key) else {
            return;
        };
        let offered = self
            .conns
            .get(&conn)
            .is_some_and(|c| c.features.supports_topic_watchers());
        let owner = Owner::Watch(key);
        if !offered {
            let error = Error::Broker {
                code: ServerError::NotAllowedError,
                message: "the broker offers no watches over topics".into(),
            };
            return self.fail_watch(key, error);
        }
        let command = proto::CommandWatchTopicList {
            request_id: self.requests.add(now, conn, Request::Open(owner)),
            watcher_id: key.0,
            namespace: watch.namespace.clone(),
            topics_pattern: watch.pattern.clone(),
            topics_hash: watch.hash.clone(),
        };
        self.say(
            conn,
            &BaseCommand {
                watch_topic_list: Some(command),
                ..base(Type::WatchTopicList)
            },
        );
        self.place(owner, Place::Opening { conn });
    }

    /// Answers to questions and watches.
    pub(super) fn on_answer(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        kind: Type,
        command: BaseCommand,
    ) {
        match kind {
            Type::PartitionedMetadataResponse => {
                let Some(answer) = command.partition_metadata_response else {
                    return;
                };
                let failed = answer.response() == LookupType::Failed;
                let result = if failed {
                    Err((answer.error(), answer.message.unwrap_or_default()))
                } else {
                    Ok(Answer::Partitions(answer.partitions.unwrap_or(0)))
                };
                self.answered(now, conn, answer.request_id, result);
            }
            Type::GetTopicsOfNamespaceResponse => {
                let Some(answer) = command.get_topics_of_namespace_response else {
                    return;
                };
                let (filtered, changed) = (answer.filtered(), answer.changed());
                let result = Answer::Topics {
                    topics: answer.topics,
                    filtered,
                    hash: answer.topics_hash,
                    changed,
                };
                self.answered(now, conn, answer.request_id, Ok(result));
            }
            Type::GetSchemaResponse => {
                let Some(answer) = command.get_schema_response else {
                    return;
                };
                let result = match (answer.error_code, answer.schema.clone()) {
                    (None, Some(schema)) => Ok(Answer::Schema {
                        schema,
                        version: answer.schema_version.unwrap_or_default(),
                    }),
                    (None, None) => Err((ServerError::UnknownError, "no schema in it".into())),
                    (Some(_), _) => {
                        let message = answer.error_message.clone().unwrap_or_default();
                        Err((answer.error_code(), message))
                    }
                };
                self.answered(now, conn, answer.request_id, result);
            }
            Type::GetOrCreateSchemaResponse => {
                let Some(answer) = command.get_or_create_schema_response else {
                    return;
                };
                let result = if answer.error_code.is_some() {
                    let message = answer.error_message.clone().unwrap_or_default();
                    Err((answer.error_code(), message))
                } else {
                    Ok(Answer::SchemaVersion(
                        answer.schema_version.unwrap_or_default(),
                    ))
                };
                self.answered(now, conn, answer.request_id, result);
            }
            Type::WatchTopicListSuccess => {
                if let Some(answer) = command.watch_topic_list_success
                    && let Some(Request::Open(Owner::Watch(key))) =
                        self.requests.take(conn, answer.request_id)
                    && let Some(watch) = self.watches.get_mut(&key)
                {
                    watch.way.succeeded(conn);
                    let known = watch.hash.as_ref() == Some(&answer.topics_hash);
                    watch.hash = Some(answer.topics_hash);
                    if !known {
                        self.events.push_back(Event::Topics {
                            watch: key,
                            change: TopicsChanged::All(answer.topic),
                        });
                    }
                }
            }
            Type::WatchTopicUpdate => {
                if let Some(update) = command.watch_topic_update {
                    let key = WatchKey(update.watcher_id);
                    if let Some(watch) = self.watches.get_mut(&key)
                        && watch.way.attached() == Some(conn)
                    {
                        watch.hash = Some(update.topics_hash);
                        self.events.push_back(Event::Topics {
                            watch: key,
                            change: TopicsChanged::Some {
                                added: update.new_topics,
                                removed: update.deleted_topics,
                            },
                        });
                    }
                }
            }
            _ => {}
        }
    }

    fn answered(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        request_id: u64,
        result: Result<Answer, (ServerError, String)>,
    ) {
        let Some(Request::Open(Owner::Call(key))) = self.requests.take(conn, request_id) else {
            return;
        };
        match result {
            Ok(answer) => self.answer(key, Ok(answer)),
            Err((code, message)) => {
                let error = Error::Broker { code, message };
                self.way_failed(now, Owner::Call(key), error);
            }
        }
    }
}
