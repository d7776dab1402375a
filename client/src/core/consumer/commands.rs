//! The commands a consumer sends, but for ACK.

use vela_proto::base_command::Type;
use vela_proto::command_subscribe::InitialPosition;
use vela_proto::{
    BaseCommand, CommandCloseConsumer, CommandFlow, CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages, CommandSeek, CommandSubscribe, CommandUnsubscribe,
    IntRange, KeySharedMeta, KeySharedMode, MessageIdData,
};

use super::config::{ConsumerConfig, KeySharedPolicy, SubscriptionType};
use super::message::EntryId;
use super::position::wire_start;
use crate::StartPosition;

fn of(kind: Type) -> BaseCommand {
    BaseCommand {
        r#type: kind as i32,
        ..BaseCommand::default()
    }
}

pub(super) fn subscribe(
    config: &ConsumerConfig,
    consumer_id: u64,
    request_id: u64,
    consumer_name: Option<String>,
    start_message_id: Option<MessageIdData>,
    epoch: u64,
) -> BaseCommand {
    let key_shared = match (config.subscription_type, &config.key_shared) {
        (SubscriptionType::KeyShared, Some(policy)) => Some(key_shared(policy)),
        (SubscriptionType::KeyShared, None) => Some(key_shared(&KeySharedPolicy::default())),
        // Ranges on other types filter what an exclusive consumer gets.
        (_, Some(policy)) if !policy.sticky_ranges.is_empty() => Some(key_shared(policy)),
        _ => None,
    };
    // A durable subscription knows only the two ends.
    let initial = match config.start {
        StartPosition::Earliest => InitialPosition::Earliest,
        _ => InitialPosition::Latest,
    };
    let rollback = (!config.durable && config.start_rollback_seconds > 0)
        .then_some(config.start_rollback_seconds);
    BaseCommand {
        subscribe: Some(CommandSubscribe {
            topic: config.topic.to_string(),
            subscription: config.subscription.clone(),
            sub_type: config.subscription_type.wire() as i32,
            consumer_id,
            request_id,
            consumer_name,
            priority_level: Some(config.priority_level),
            durable: Some(config.durable),
            start_message_id,
            metadata: config.properties.clone(),
            read_compacted: Some(config.read_compacted),
            schema: config.schema.clone(),
            initial_position: Some(initial as i32),
            replicate_subscription_state: config.replicate_subscription_state,
            force_topic_creation: Some(true),
            start_message_rollback_duration_sec: rollback,
            key_shared_meta: key_shared,
            subscription_properties: config.subscription_properties.clone(),
            consumer_epoch: Some(epoch),
        }),
        ..of(Type::Subscribe)
    }
}

fn key_shared(policy: &KeySharedPolicy) -> KeySharedMeta {
    let mode = if policy.sticky_ranges.is_empty() {
        KeySharedMode::AutoSplit
    } else {
        KeySharedMode::Sticky
    };
    let ranges = policy.sticky_ranges.iter().map(|&(start, end)| IntRange {
        start: i32::from(start),
        end: i32::from(end),
    });
    KeySharedMeta {
        key_shared_mode: mode as i32,
        hash_ranges: ranges.collect(),
        allow_out_of_order_delivery: Some(policy.allow_out_of_order_delivery),
        entry_bucket_dispatch: None,
    }
}

pub(super) fn flow(consumer_id: u64, message_permits: u32) -> BaseCommand {
    BaseCommand {
        flow: Some(CommandFlow {
            consumer_id,
            message_permits,
        }),
        ..of(Type::Flow)
    }
}

/// Without entries: everything not acknowledged.
pub(super) fn redeliver(consumer_id: u64, entries: &[EntryId], epoch: Option<u64>) -> BaseCommand {
    BaseCommand {
        redeliver_unacknowledged_messages: Some(CommandRedeliverUnacknowledgedMessages {
            consumer_id,
            message_ids: entries.iter().map(|entry| entry.wire(Vec::new())).collect(),
            consumer_epoch: epoch,
        }),
        ..of(Type::RedeliverUnacknowledgedMessages)
    }
}

pub(super) fn seek(consumer_id: u64, request_id: u64, target: StartPosition) -> BaseCommand {
    let (message_id, message_publish_time) = match target {
        StartPosition::Time(time) => (None, Some(time)),
        start => (Some(wire_start(start)), None),
    };
    BaseCommand {
        seek: Some(CommandSeek {
            consumer_id,
            request_id,
            message_id,
            message_publish_time,
        }),
        ..of(Type::Seek)
    }
}

pub(super) fn unsubscribe(consumer_id: u64, request_id: u64, force: bool) -> BaseCommand {
    BaseCommand {
        unsubscribe: Some(CommandUnsubscribe {
            consumer_id,
            request_id,
            force: force.then_some(true),
        }),
        ..of(Type::Unsubscribe)
    }
}

pub(super) fn close(consumer_id: u64, request_id: u64) -> BaseCommand {
    BaseCommand {
        close_consumer: Some(CommandCloseConsumer {
            consumer_id,
            request_id,
            ..CommandCloseConsumer::default()
        }),
        ..of(Type::CloseConsumer)
    }
}

pub(super) fn last_message_id(consumer_id: u64, request_id: u64) -> BaseCommand {
    BaseCommand {
        get_last_message_id: Some(CommandGetLastMessageId {
            consumer_id,
            request_id,
        }),
        ..of(Type::GetLastMessageId)
    }
}
