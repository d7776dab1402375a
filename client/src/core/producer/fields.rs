//! A message's fields in the places the protocol has for them.

use bytes::Bytes;
use vela_proto::{KeyValue, MessageMetadata, SingleMessageMetadata};

use crate::message::{MessageKey, OutgoingMessage};

/// Bytes it takes in a batch, or a little more.
pub(crate) fn batch_len(message: &OutgoingMessage) -> usize {
    const FIXED: usize = 32;
    let properties = message.properties.iter();
    let properties = properties.map(|(k, v)| k.len() + v.len() + 12);
    FIXED
        + message.payload.len()
        + message.key.as_ref().map_or(0, |key| key.text.len() + 6)
        + message.ordering_key.as_ref().map_or(0, |key| key.len() + 6)
        + properties.sum::<usize>()
}

/// Whether it may share an entry with others.
pub(crate) fn can_be_batched(message: &OutgoingMessage) -> bool {
    message.deliver_at.is_none() && message.replicate_to.is_empty()
}

fn split_key(key: Option<MessageKey>) -> (Option<String>, Option<bool>) {
    match key {
        Some(MessageKey { text, base64 }) => (Some(text), base64.then_some(true)),
        None => (None, None),
    }
}

/// Everything but the payload, as one message of a batch says it.
pub(crate) fn single(message: OutgoingMessage, sequence_id: u64) -> (SingleMessageMetadata, Bytes) {
    let (partition_key, partition_key_b64_encoded) = split_key(message.key);
    let metadata = SingleMessageMetadata {
        properties: key_values(message.properties),
        partition_key,
        partition_key_b64_encoded,
        event_time: message.event_time,
        ordering_key: message.ordering_key,
        sequence_id: Some(sequence_id),
        null_value: message.null_value.then_some(true),
        ..Default::default()
    };
    (metadata, message.payload)
}

/// What a batch says of itself for its first message, as other clients do: its key for Key_Shared, its schema.
pub(crate) fn of_batch(message: &OutgoingMessage) -> MessageMetadata {
    let (partition_key, partition_key_b64_encoded) = split_key(message.key.clone());
    MessageMetadata {
        partition_key,
        partition_key_b64_encoded,
        ordering_key: message.ordering_key.clone(),
        schema_version: message.schema_version.clone(),
        ..Default::default()
    }
}

/// Everything but the payload, as a message of its own says it.
pub(crate) fn alone(message: OutgoingMessage) -> (MessageMetadata, Bytes) {
    let (partition_key, partition_key_b64_encoded) = split_key(message.key);
    let metadata = MessageMetadata {
        properties: key_values(message.properties),
        partition_key,
        partition_key_b64_encoded,
        replicate_to: message.replicate_to,
        event_time: message.event_time,
        ordering_key: message.ordering_key,
        deliver_at_time: message.deliver_at.and_then(|at| i64::try_from(at).ok()),
        schema_version: message.schema_version,
        null_value: message.null_value.then_some(true),
        ..Default::default()
    };
    (metadata, message.payload)
}

pub(crate) fn key_values(pairs: Vec<(String, String)>) -> Vec<KeyValue> {
    pairs
        .into_iter()
        .map(|(key, value)| KeyValue { key, value })
        .collect()
}
