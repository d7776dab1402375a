//! What is said to topics, and which part of them takes it.

use vela_limiter::Reason;
use vela_proto::ServerError;

use super::Topics;
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message};
use crate::engine::reply;
use crate::engine::session::throttling;
use crate::engine::time::Now;

impl Topics {
    /// A message from a session, or from another topic's core.
    pub(in crate::engine) fn message(&mut self, cx: &mut Context, message: Message, now: Now) {
        self.clock = now;
        let Some(message) = self.behind_waiting(cx, message, now) else {
            return;
        };
        match message {
            Message::Publish {
                send,
                num_messages,
                awaits,
                surplus,
                refused,
                frame,
            } => {
                self.publish(cx, send, num_messages, surplus, refused, &frame, now);
                if awaits {
                    // Behind the holds of the rates that this publish has put into debt.
                    let session = send.client.session;
                    let free = throttling::release(session, Reason::PublishCharge);
                    cx.post(session.core, free);
                }
            }
            Message::Flow { client, permits } => {
                self.flow(client, permits);
                self.end_on_flow(cx, client);
            }
            Message::Ack {
                client,
                ids,
                cumulative,
                request_id,
            } => self.ack(cx, client, ids, cumulative, request_id, now),
            Message::Written { client, bytes } => self.written(client, bytes),
            Message::OpenProducer { client, open } => self.open_producer(cx, client, open, now),
            Message::CloseProducer { client, request_id } => {
                self.close_producer(cx, client, request_id)
            }
            Message::OpenConsumer { client, open } => self.open_consumer(cx, client, open, now),
            Message::CloseConsumer { client, request_id } => {
                self.close_consumer(cx, client, request_id, now)
            }
            Message::Redeliver { client, ids, epoch } => self.redeliver(cx, client, ids, epoch),
            Message::Unsubscribe {
                client,
                request_id,
                force,
            } => self.unsubscribe(cx, client, request_id, force, now),
            Message::Seek {
                client,
                request_id,
                target,
            } => self.seek(cx, client, request_id, target, now),
            Message::LastMessageId { client, request_id } => {
                self.last_message_id(cx, client, request_id)
            }
            Message::ConsumerStats { client, request_id } => {
                self.consumer_stats(cx, client, request_id, now)
            }
            Message::Probed { probe, alive } => self.probed(cx, probe, alive, now),
            Message::Terminate { from, token, topic } => self.terminate(cx, from, token, topic),
            Message::Terminated { token, result, .. }
                if !self.terminated_by_admin(cx, token, &result) =>
            {
                cx.effects.terminated.push((token, result));
            }
            Message::FindTopic {
                session,
                request_id,
                topic,
            } => {
                let exists = self.by_name.contains_key(topic.as_str());
                let partitions = cx.settings.default_num_partitions.max(1);
                let full = self.is_full(cx, &topic, partitions);
                cx.post(
                    session.core,
                    Message::TopicExists {
                        session,
                        request_id,
                        topic,
                        exists,
                        full,
                    },
                );
            }
            Message::ListTopics {
                session,
                request_id,
                namespace,
                persistent,
                non_persistent,
            } => {
                let names = self.list(&namespace, persistent, non_persistent);
                cx.post(
                    session.core,
                    Message::Topics {
                        session,
                        request_id,
                        names,
                    },
                );
            }
            Message::WatchTopics {
                core,
                namespace,
                on,
            } => self.watch(core, namespace, on),
            Message::TopicCount {
                from,
                namespace,
                count,
            } => self.counted(from, namespace, count),
            Message::SchemaOfTopic { topic, ask } => self.schema_of_topic(cx, &topic, ask),
            Message::SchemaDecided { client, decided } => {
                self.schema_decided(cx, client, decided, now)
            }
            _ => {}
        }
    }

    pub(super) fn reply_error(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        request_id: u64,
        error: ServerError,
        text: impl Into<String>,
    ) {
        let command = Box::new(reply::error(request_id, error, text));
        cx.post(
            client.session.core,
            Message::Reply {
                session: client.session,
                command,
            },
        );
    }

    pub(super) fn no_consumer(&mut self, cx: &mut Context, client: ClientRef, request_id: u64) {
        self.reply_error(
            cx,
            client,
            request_id,
            ServerError::MetadataError,
            "The consumer is gone",
        );
    }
}
