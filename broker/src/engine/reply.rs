//! Answers that are rare enough to be built as whole commands.

use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use super::schema::version_bytes;
use crate::store::log::Position;

/// The request id of answers to nobody's request: Java's -1.
pub(crate) const NO_REQUEST: u64 = u64::MAX;

pub(crate) fn base(kind: Type) -> BaseCommand {
    BaseCommand {
        r#type: kind as i32,
        ..Default::default()
    }
}

pub(crate) fn success(request_id: u64) -> BaseCommand {
    BaseCommand {
        success: Some(proto::CommandSuccess {
            request_id,
            schema: None,
        }),
        ..base(Type::Success)
    }
}

pub(crate) fn error(
    request_id: u64,
    error: ServerError,
    message: impl Into<String>,
) -> BaseCommand {
    BaseCommand {
        error: Some(proto::CommandError {
            request_id,
            error: error as i32,
            message: message.into(),
        }),
        ..base(Type::Error)
    }
}

pub(crate) fn producer_success(
    request_id: u64,
    name: String,
    last_sequence_id: i64,
    schema_version: Option<u64>,
    topic_epoch: Option<u64>,
) -> BaseCommand {
    BaseCommand {
        producer_success: Some(proto::CommandProducerSuccess {
            request_id,
            producer_name: name,
            last_sequence_id: Some(last_sequence_id),
            // Present and empty when there is no schema.
            schema_version: Some(schema_version.map(version_bytes).unwrap_or_default()),
            topic_epoch,
            producer_ready: Some(true),
        }),
        ..base(Type::ProducerSuccess)
    }
}

/// The early answer to a producer that waits for its turn.
pub(crate) fn producer_queued(request_id: u64, name: String) -> BaseCommand {
    let mut answer = producer_success(request_id, name, -1, None, None);
    if let Some(success) = &mut answer.producer_success {
        success.producer_ready = Some(false);
    }
    answer
}

pub(crate) fn close_producer(producer_id: u64) -> BaseCommand {
    BaseCommand {
        close_producer: Some(proto::CommandCloseProducer {
            producer_id,
            request_id: NO_REQUEST,
            ..Default::default()
        }),
        ..base(Type::CloseProducer)
    }
}

pub(crate) fn end_of_topic(consumer_id: u64) -> BaseCommand {
    BaseCommand {
        reached_end_of_topic: Some(proto::CommandReachedEndOfTopic { consumer_id }),
        ..base(Type::ReachedEndOfTopic)
    }
}

pub(crate) fn close_consumer(consumer_id: u64) -> BaseCommand {
    BaseCommand {
        close_consumer: Some(proto::CommandCloseConsumer {
            consumer_id,
            request_id: NO_REQUEST,
            ..Default::default()
        }),
        ..base(Type::CloseConsumer)
    }
}

pub(crate) fn partitions(request_id: u64, partitions: u32) -> BaseCommand {
    use proto::command_partitioned_topic_metadata_response::LookupType;
    BaseCommand {
        partition_metadata_response: Some(proto::CommandPartitionedTopicMetadataResponse {
            partitions: Some(partitions),
            request_id,
            response: Some(LookupType::Success as i32),
            error: None,
            message: None,
        }),
        ..base(Type::PartitionedMetadataResponse)
    }
}

pub(crate) fn partitions_failed(
    request_id: u64,
    error: ServerError,
    message: impl Into<String>,
) -> BaseCommand {
    use proto::command_partitioned_topic_metadata_response::LookupType;
    BaseCommand {
        partition_metadata_response: Some(proto::CommandPartitionedTopicMetadataResponse {
            partitions: None,
            request_id,
            response: Some(LookupType::Failed as i32),
            error: Some(error as i32),
            message: Some(message.into()),
        }),
        ..base(Type::PartitionedMetadataResponse)
    }
}

pub(crate) fn lookup(request_id: u64, url: String, through_service_url: bool) -> BaseCommand {
    use proto::command_lookup_topic_response::LookupType;
    BaseCommand {
        lookup_topic_response: Some(proto::CommandLookupTopicResponse {
            broker_service_url: Some(url),
            response: Some(LookupType::Connect as i32),
            request_id,
            authoritative: Some(true),
            proxy_through_service_url: Some(through_service_url),
            ..Default::default()
        }),
        ..base(Type::LookupResponse)
    }
}

pub(crate) fn lookup_failed(
    request_id: u64,
    error: ServerError,
    message: impl Into<String>,
) -> BaseCommand {
    use proto::command_lookup_topic_response::LookupType;
    BaseCommand {
        lookup_topic_response: Some(proto::CommandLookupTopicResponse {
            response: Some(LookupType::Failed as i32),
            request_id,
            error: Some(error as i32),
            message: Some(message.into()),
            ..Default::default()
        }),
        ..base(Type::LookupResponse)
    }
}

/// A position as the wire carries it: signed numbers in unsigned fields.
pub(crate) fn message_id(position: Position) -> proto::MessageIdData {
    proto::MessageIdData {
        ledger_id: position.ledger as u64,
        entry_id: position.entry as u64,
        ..Default::default()
    }
}

/// The position in a message id of the wire.
pub(crate) fn position(id: &proto::MessageIdData) -> Position {
    Position::new(id.ledger_id as i64, id.entry_id as i64)
}

pub(crate) fn last_message_id(
    request_id: u64,
    last: Position,
    partition: i32,
    batch_index: i32,
    mark_delete: Position,
) -> BaseCommand {
    BaseCommand {
        get_last_message_id_response: Some(proto::CommandGetLastMessageIdResponse {
            last_message_id: proto::MessageIdData {
                partition: Some(partition),
                batch_index: Some(batch_index),
                ..message_id(last)
            },
            request_id,
            consumer_mark_delete_position: (mark_delete.ledger >= 0)
                .then(|| message_id(mark_delete)),
        }),
        ..base(Type::GetLastMessageIdResponse)
    }
}

pub(crate) fn active_consumer_change(consumer_id: u64, active: bool) -> BaseCommand {
    BaseCommand {
        active_consumer_change: Some(proto::CommandActiveConsumerChange {
            consumer_id,
            is_active: Some(active),
        }),
        ..base(Type::ActiveConsumerChange)
    }
}

pub(crate) fn topics(
    request_id: u64,
    names: Vec<String>,
    filtered: bool,
    hash: String,
    changed: bool,
) -> BaseCommand {
    BaseCommand {
        get_topics_of_namespace_response: Some(proto::CommandGetTopicsOfNamespaceResponse {
            request_id,
            topics: names,
            filtered: Some(filtered),
            topics_hash: Some(hash),
            changed: Some(changed),
        }),
        ..base(Type::GetTopicsOfNamespaceResponse)
    }
}

pub(crate) fn watched_topics(
    request_id: u64,
    watcher_id: u64,
    names: Vec<String>,
    hash: String,
) -> BaseCommand {
    BaseCommand {
        watch_topic_list_success: Some(proto::CommandWatchTopicListSuccess {
            request_id,
            watcher_id,
            topic: names,
            topics_hash: hash,
        }),
        ..base(Type::WatchTopicListSuccess)
    }
}

pub(crate) fn topic_update(
    watcher_id: u64,
    new: Vec<String>,
    deleted: Vec<String>,
    hash: String,
) -> BaseCommand {
    BaseCommand {
        watch_topic_update: Some(proto::CommandWatchTopicUpdate {
            watcher_id,
            new_topics: new,
            deleted_topics: deleted,
            topics_hash: hash,
        }),
        ..base(Type::WatchTopicUpdate)
    }
}
