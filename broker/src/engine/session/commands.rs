//! Commands that open, close and ask: decoded in full, checked here as far as the session can tell, then handed to the topic.

use vela_codec::{Frame, decode_command};
use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use super::unsupported::{Unsupported, unsupported};
use super::{ClientState, Session, Stage};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, SeekTarget};
use crate::engine::reply;
use crate::engine::time::Now;
use crate::store::log::Position;

/// The newest protocol version this broker knows.
pub(crate) const PROTOCOL_VERSION: i32 = 21;
/// Text of CONNECTED: clients of other brokers look for the first two words.
const SERVER_VERSION: &str = concat!("Pulsar Server (Vela ", env!("CARGO_PKG_VERSION"), ")");
/// A frame that names an unusable consumer id.
const NO_CONSUMER: &str = "Consumer not found on this connection";

impl Session {
    pub(super) fn command(&mut self, cx: &mut Context, kind: Type, frame: Frame, now: Now) {
        let Ok(command) = decode_command(frame.command()) else {
            return self.protocol_error(cx);
        };
        if self.stage == Stage::Start {
            return match (kind, command.connect) {
                (Type::Connect, Some(connect)) => self.connect(cx, &connect),
                (Type::AuthResponse, _) => self.unexpected_auth(cx, command.auth_response),
                _ => self.protocol_error(cx),
            };
        }
        match kind {
            Type::Producer => {
                if let Some(producer) = command.producer {
                    self.open_producer(cx, producer, frame, now);
                }
            }
            Type::CloseProducer => {
                if let Some(close) = command.close_producer {
                    self.close_producer(cx, close.producer_id, close.request_id);
                }
            }
            Type::Subscribe => {
                if let Some(subscribe) = command.subscribe {
                    self.open_consumer(cx, subscribe, frame);
                }
            }
            Type::CloseConsumer => {
                if let Some(close) = command.close_consumer {
                    self.close_consumer(cx, close.consumer_id, close.request_id);
                }
            }
            Type::RedeliverUnacknowledgedMessages => {
                if let Some(redeliver) = command.redeliver_unacknowledged_messages {
                    self.redeliver(cx, &redeliver);
                }
            }
            Type::AuthResponse => self.unexpected_auth(cx, command.auth_response),
            _ => self.question(cx, kind, command, now),
        }
    }

    fn question(&mut self, cx: &mut Context, kind: Type, command: BaseCommand, now: Now) {
        match kind {
            Type::PartitionedMetadata => {
                if let Some(question) = command.partition_metadata {
                    self.partitioned_metadata(cx, &question);
                }
            }
            Type::Lookup => {
                if let Some(question) = command.lookup_topic {
                    self.lookup(cx, &question);
                }
            }
            Type::GetTopicsOfNamespace => {
                if let Some(question) = command.get_topics_of_namespace {
                    self.list_topics(cx, question);
                }
            }
            Type::WatchTopicList => {
                if let Some(watch) = command.watch_topic_list {
                    self.watch_topics(cx, watch, now);
                }
            }
            Type::WatchTopicListClose => {
                if let Some(close) = command.watch_topic_list_close {
                    self.close_watcher(cx, &close);
                }
            }
            Type::GetSchema => {
                if let Some(question) = command.get_schema {
                    self.get_schema(cx, &question);
                }
            }
            Type::GetOrCreateSchema => {
                if let Some(question) = command.get_or_create_schema {
                    self.get_or_create_schema(cx, &question);
                }
            }
            Type::Unsubscribe => {
                if let Some(question) = command.unsubscribe {
                    let force = question.force.unwrap_or(false);
                    self.ask_consumer(
                        cx,
                        question.consumer_id,
                        question.request_id,
                        |client, request_id| Message::Unsubscribe {
                            client,
                            request_id,
                            force,
                        },
                    );
                }
            }
            Type::Seek => {
                if let Some(question) = command.seek {
                    self.seek(cx, &question);
                }
            }
            Type::GetLastMessageId => {
                if let Some(question) = command.get_last_message_id {
                    self.ask_consumer(
                        cx,
                        question.consumer_id,
                        question.request_id,
                        |client, request_id| Message::LastMessageId { client, request_id },
                    );
                }
            }
            Type::ConsumerStats => {
                if let Some(question) = command.consumer_stats {
                    self.consumer_stats(cx, &question);
                }
            }
            _ => match unsupported(kind, &command) {
                Unsupported::Answer(answer) => self.send(cx, &answer),
                Unsupported::Silent => {}
                Unsupported::NotServed => self.protocol_error(cx),
            },
        }
    }

    fn connect(&mut self, cx: &mut Context, connect: &proto::CommandConnect) {
        self.version = connect.protocol_version.unwrap_or(0).min(PROTOCOL_VERSION);
        self.client_version = super::peers::short(&connect.client_version);
        self.stage = Stage::Connected;
        self.follow_pending_bytes(cx, cx.bytes_held);
        let watchers = cx.settings.enable_broker_topic_list_watcher
            && cx
                .settings
                .enable_broker_side_subscription_pattern_evaluation;
        let connected = BaseCommand {
            connected: Some(proto::CommandConnected {
                server_version: SERVER_VERSION.into(),
                protocol_version: Some(self.version),
                max_message_size: Some(cx.settings.max_message_size as i32),
                feature_flags: Some(proto::FeatureFlags {
                    supports_topic_watchers: Some(watchers),
                    supports_get_partitioned_metadata_without_auto_creation: Some(true),
                    supports_repl_dedup_by_lid_and_eid: Some(false),
                    supports_topic_watcher_reconcile: Some(watchers),
                    supports_scalable_topics: Some(false),
                    supports_tc_metadata_discovery: Some(false),
                    ..Default::default()
                }),
            }),
            ..reply::base(Type::Connected)
        };
        self.send(cx, &connected);
    }

    /// No authentication round is running, so nobody can answer one. An answer without credentials is not one either.
    fn unexpected_auth(&mut self, cx: &mut Context, answer: Option<proto::CommandAuthResponse>) {
        let credentials = answer.and_then(|answer| answer.response);
        if credentials.is_some_and(|c| c.auth_method_name.is_some() && c.auth_data.is_some()) {
            self.send_error(
                cx,
                reply::NO_REQUEST,
                ServerError::AuthenticationError,
                "No authentication is in progress on this connection",
            );
        }
        self.protocol_error(cx);
    }

    fn redeliver(
        &mut self,
        cx: &mut Context,
        redeliver: &proto::CommandRedeliverUnacknowledgedMessages,
    ) {
        let Some(client) = self.consumers.get(&redeliver.consumer_id) else {
            return;
        };
        if matches!(client.state, ClientState::Closing) {
            return;
        }
        let client_ref = self.client_ref(client, redeliver.consumer_id);
        let ids: Vec<Position> = redeliver.message_ids.iter().map(reply::position).collect();
        let ids = (!ids.is_empty()).then_some(ids);
        cx.post(
            client.core,
            Message::Redeliver {
                client: client_ref,
                ids,
                epoch: redeliver.consumer_epoch,
            },
        );
    }

    /// Passes a question about a consumer on to its topic.
    fn ask_consumer(
        &mut self,
        cx: &mut Context,
        id: u64,
        request_id: u64,
        message: impl FnOnce(ClientRef, u64) -> Message,
    ) {
        match self.consumers.get(&id) {
            Some(client) if !matches!(client.state, ClientState::Closing) => {
                let client_ref = self.client_ref(client, id);
                cx.post(client.core, message(client_ref, request_id));
            }
            _ => self.send_error(cx, request_id, ServerError::MetadataError, NO_CONSUMER),
        }
    }

    fn seek(&mut self, cx: &mut Context, seek: &proto::CommandSeek) {
        let target = match (&seek.message_id, seek.message_publish_time) {
            (Some(id), _) => SeekTarget::Position(reply::position(id), id.ack_set.clone()),
            (None, Some(time)) => SeekTarget::PublishTime(time),
            (None, None) => {
                let text = "SEEK needs a message id or a publish time";
                return self.send_error(cx, seek.request_id, ServerError::MetadataError, text);
            }
        };
        self.ask_consumer(
            cx,
            seek.consumer_id,
            seek.request_id,
            |client, request_id| Message::Seek {
                client,
                request_id,
                target,
            },
        );
    }

    /// An unknown consumer id ends the connection here, as it does in Pulsar 5.0.1.
    fn consumer_stats(&mut self, cx: &mut Context, stats: &proto::CommandConsumerStats) {
        if self.consumers.contains_key(&stats.consumer_id) {
            self.ask_consumer(
                cx,
                stats.consumer_id,
                stats.request_id,
                |client, request_id| Message::ConsumerStats { client, request_id },
            );
        } else {
            self.protocol_error(cx);
        }
    }
}
