//! Commands of the protocol that this broker does not carry out: each gets the protocol's own error, never silence.

use vela_proto::{self as proto, BaseCommand, ServerError, base_command::Type};

use crate::engine::reply;

pub(super) enum Unsupported {
    Answer(Box<BaseCommand>),
    Silent,
    NotServed,
}

/// The protocol's own answer to a command this broker does not carry out.
pub(super) fn unsupported(kind: Type, command: &BaseCommand) -> Unsupported {
    const NO_TXN: &str = "Transactions are not enabled on this broker";
    let not_allowed = ServerError::NotAllowedError;
    let refuse = |request_id: Option<u64>, text: &str| match request_id {
        Some(request_id) => {
            Unsupported::Answer(Box::new(reply::error(request_id, not_allowed, text)))
        }
        None => Unsupported::NotServed,
    };
    match kind {
        Type::NewTxn => refuse(command.new_txn.as_ref().map(|c| c.request_id), NO_TXN),
        Type::AddPartitionToTxn => refuse(
            command.add_partition_to_txn.as_ref().map(|c| c.request_id),
            NO_TXN,
        ),
        Type::AddSubscriptionToTxn => refuse(
            command
                .add_subscription_to_txn
                .as_ref()
                .map(|c| c.request_id),
            NO_TXN,
        ),
        Type::EndTxn => refuse(command.end_txn.as_ref().map(|c| c.request_id), NO_TXN),
        Type::EndTxnOnPartition => refuse(
            command.end_txn_on_partition.as_ref().map(|c| c.request_id),
            NO_TXN,
        ),
        Type::EndTxnOnSubscription => refuse(
            command
                .end_txn_on_subscription
                .as_ref()
                .map(|c| c.request_id),
            NO_TXN,
        ),
        Type::TcClientConnectRequest => refuse(
            command
                .tc_client_connect_request
                .as_ref()
                .map(|c| c.request_id),
            NO_TXN,
        ),
        _ => unsupported_scalable(kind, command),
    }
}

fn unsupported_scalable(kind: Type, command: &BaseCommand) -> Unsupported {
    let error = Some(ServerError::NotAllowedError as i32);
    let message = Some("Scalable topics are not served by this broker".to_owned());
    let answer = match kind {
        Type::ScalableTopicLookup => command.scalable_topic_lookup.as_ref().map(|c| BaseCommand {
            scalable_topic_update: Some(proto::CommandScalableTopicUpdate {
                session_id: c.session_id,
                error,
                message,
                ..Default::default()
            }),
            ..reply::base(Type::ScalableTopicUpdate)
        }),
        Type::ScalableTopicSubscribe => {
            command
                .scalable_topic_subscribe
                .as_ref()
                .map(|c| BaseCommand {
                    scalable_topic_subscribe_response: Some(
                        proto::CommandScalableTopicSubscribeResponse {
                            request_id: c.request_id,
                            error,
                            message,
                            ..Default::default()
                        },
                    ),
                    ..reply::base(Type::ScalableTopicSubscribeResponse)
                })
        }
        Type::WatchScalableTopics => command.watch_scalable_topics.as_ref().map(|c| BaseCommand {
            watch_scalable_topics_update: Some(proto::CommandWatchScalableTopicsUpdate {
                watch_id: c.watch_id,
                error,
                message,
                ..Default::default()
            }),
            ..reply::base(Type::WatchScalableTopicsUpdate)
        }),
        Type::WatchTcAssignments => command.watch_tc_assignments.as_ref().map(|c| BaseCommand {
            watch_tc_assignments_update: Some(proto::CommandWatchTcAssignmentsUpdate {
                watch_id: c.watch_id,
                error: Some(ServerError::ServiceNotReady as i32),
                message: Some("Transactions are not enabled on this broker".into()),
                ..Default::default()
            }),
            ..reply::base(Type::WatchTcAssignmentsUpdate)
        }),
        Type::ScalableTopicClose
        | Type::WatchScalableTopicsClose
        | Type::WatchTcAssignmentsClose => return Unsupported::Silent,
        _ => None,
    };
    answer.map_or(Unsupported::NotServed, |answer| {
        Unsupported::Answer(Box::new(answer))
    })
}
