//! Questions about one topic: how many partitions, which broker.

use vela_proto::{self as proto, ServerError};

use super::{Session, Sessions};
use crate::engine::TOO_MANY;
use crate::engine::context::{Context, MetadataRequest};
use crate::engine::message::{Message, SessionRef};
use crate::engine::metadata::{Metadata, PartitionCheck, may_be_partitioned};
use crate::engine::name::TopicName;
use crate::engine::reply;
use crate::engine::settings::AutoTopicType;

/// Questions of one connection that topics have not answered yet; more are refused.
const MAX_INQUIRIES: usize = 1000;

impl Session {
    pub(super) fn partitioned_metadata(
        &mut self,
        cx: &mut Context,
        question: &proto::CommandPartitionedTopicMetadata,
    ) {
        let request_id = question.request_id;
        let name = match TopicName::parse(&question.topic) {
            Ok(name) => name,
            Err(e) => {
                return self.send(
                    cx,
                    &reply::partitions_failed(
                        request_id,
                        ServerError::InvalidTopicName,
                        e.to_string(),
                    ),
                );
            }
        };
        if !cx.metadata.has_namespace(name.namespace()) {
            let text = format!("Namespace {} does not exist", name.namespace());
            return self.send(
                cx,
                &reply::partitions_failed(request_id, ServerError::TopicNotFound, text),
            );
        }
        match cx.metadata.check_partition(&name) {
            PartitionCheck::IsPartitioned => {
                let count = cx.metadata.partitions(name.base()).unwrap_or(0);
                return self.send(cx, &reply::partitions(request_id, count));
            }
            PartitionCheck::Partition => return self.send(cx, &reply::partitions(request_id, 0)),
            PartitionCheck::Beyond => {
                let text = format!("{name} is beyond the last partition of {}", name.base());
                return self.send(
                    cx,
                    &reply::partitions_failed(request_id, ServerError::TopicNotFound, text),
                );
            }
            PartitionCheck::Plain | PartitionCheck::NotPartitioned => {}
        }
        let auto = question.metadata_auto_creation_enabled.unwrap_or(true)
            && cx.settings.allow_auto_topic_creation;
        let partitioned = cx.settings.allow_auto_topic_creation_type == AutoTopicType::Partitioned
            && may_be_partitioned(&name);
        if auto && !partitioned {
            return self.send(cx, &reply::partitions(request_id, 0));
        }
        // Whether the topic is there already is its own core's to say.
        if self.inquiries.len() >= MAX_INQUIRIES {
            let text = format!("{MAX_INQUIRIES} questions of this connection are still open");
            return self.send(
                cx,
                &reply::partitions_failed(request_id, ServerError::TooManyRequests, text),
            );
        }
        self.inquiries.insert(request_id, auto);
        let core = cx.core_of_shard(name.shard(cx.shards));
        cx.post(
            core,
            Message::FindTopic {
                session: self.me,
                request_id,
                topic: name,
            },
        );
    }

    pub(super) fn lookup(&mut self, cx: &mut Context, question: &proto::CommandLookupTopic) {
        let request_id = question.request_id;
        let name = match TopicName::parse(&question.topic) {
            Ok(name) => name,
            Err(e) => {
                return self.send(
                    cx,
                    &reply::lookup_failed(request_id, ServerError::InvalidTopicName, e.to_string()),
                );
            }
        };
        if !cx.metadata.has_namespace(name.namespace()) {
            let text = format!("Namespace {} does not exist", name.namespace());
            return self.send(
                cx,
                &reply::lookup_failed(request_id, ServerError::TopicNotFound, text),
            );
        }
        let host = match &cx.service.advertised {
            Some(host) => host.clone(),
            None => self.local.ip().to_string(),
        };
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host
        };
        let owner = cx.core_of_shard(name.shard(cx.shards));
        let core_port = cx.service.core_ports.get(usize::from(owner)).copied();
        let url = format!("pulsar://{host}:{}", core_port.unwrap_or(cx.service.port));
        // Without an address of our own to give, the address that the client already reached is the one that works for it.
        let through = core_port.is_none() && cx.service.advertised.is_none();
        self.send(cx, &reply::lookup(request_id, url, through));
    }
}

impl Sessions {
    /// A topic's core says whether the topic is there; a missing one may become a partitioned topic.
    pub(super) fn topic_exists(
        &mut self,
        cx: &mut Context,
        session: SessionRef,
        request_id: u64,
        topic: &TopicName,
        exists: bool,
        full: bool,
    ) {
        let token = self.next_token;
        let Some(session) = self.find(session) else {
            return;
        };
        let create = match session.inquiries.remove(&request_id) {
            Some(create) => create,
            None => return,
        };
        if exists {
            return session.send(cx, &reply::partitions(request_id, 0));
        }
        if !create {
            return session.send(
                cx,
                &reply::partitions_failed(request_id, ServerError::TopicNotFound, ""),
            );
        }
        if full {
            let refused =
                reply::partitions_failed(request_id, ServerError::NotAllowedError, TOO_MANY);
            return session.send(cx, &refused);
        }
        let count = cx.settings.default_num_partitions.max(1);
        let (key, value) = Metadata::partitioned_entry(topic, count);
        let me = session.me;
        self.next_token += 1;
        self.creations
            .insert(token, (me, request_id, topic.base().to_owned(), count));
        cx.effects.metadata.push(MetadataRequest {
            token,
            key,
            value: Some(value),
            expected: Some(0),
        });
    }

    /// The metadata store answered. `Ok(false)` = somebody else was first.
    pub(crate) fn metadata_done(
        &mut self,
        cx: &mut Context,
        token: u64,
        result: Result<bool, String>,
    ) {
        let Some((session, request_id, base, count)) = self.creations.remove(&token) else {
            return;
        };
        let current = cx.metadata.partitions(&base);
        let Some(session) = self.find(session) else {
            return;
        };
        let answer = match result {
            Ok(true) => reply::partitions(request_id, count),
            Ok(false) => match current {
                Some(count) => reply::partitions(request_id, count),
                None => reply::partitions_failed(
                    request_id,
                    ServerError::ServiceNotReady,
                    "The topic is being created; ask again",
                ),
            },
            Err(text) => reply::partitions_failed(request_id, ServerError::MetadataError, text),
        };
        session.send(cx, &answer);
    }
}
