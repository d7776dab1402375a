//! A message on its way out, encoded by its schema and not yet by the protocol.

use bytes::Bytes;
use vela_proto::{KeyValue, MessageMetadata, SingleMessageMetadata};

/// A message to send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The encoded value.
    pub payload: Bytes,
    /// The key: what Key_Shared subscriptions, partitions and compaction go by.
    pub key: Option<String>,
    /// `key` is base64 of a key that is not text.
    pub key_is_base64: bool,
    /// Overrides the key for Key_Shared subscriptions.
    pub ordering_key: Option<Bytes>,
    /// Free names and values.
    pub properties: Vec<(String, String)>,
    /// When what it tells of happened, in milliseconds since 1970.
    pub event_time: Option<u64>,
    /// When to deliver it to Shared and Key_Shared subscriptions, in milliseconds since 1970. Such a message is not batched.
    pub deliver_at: Option<i64>,
    /// Instead of the producer's own count. Must rise from message to message where the topic deduplicates.
    pub sequence_id: Option<u64>,
    /// Only to these clusters. Such a message is not batched.
    pub replicate_to: Vec<String>,
    /// The schema it was encoded by, if not the producer's.
    pub schema_version: Option<Bytes>,
    /// There is no value: for compaction, the key is gone.
    pub null_value: bool,
}

impl OutgoingMessage {
    /// A message of nothing but a value.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// Bytes it takes in a batch, or a little more.
    pub(crate) fn batch_len(&self) -> usize {
        const FIXED: usize = 32;
        let properties = self.properties.iter().map(|(k, v)| k.len() + v.len() + 12);
        FIXED
            + self.payload.len()
            + self.key.as_ref().map_or(0, |key| key.len() + 6)
            + self.ordering_key.as_ref().map_or(0, |key| key.len() + 6)
            + properties.sum::<usize>()
    }

    pub(crate) fn can_be_batched(&self) -> bool {
        self.deliver_at.is_none() && self.replicate_to.is_empty()
    }

    /// Everything but the payload, as one message of a batch says it.
    pub(crate) fn into_single(self, sequence_id: u64) -> (SingleMessageMetadata, Bytes) {
        let metadata = SingleMessageMetadata {
            properties: key_values(self.properties),
            partition_key_b64_encoded: self.key.as_ref().and(self.key_is_base64.then_some(true)),
            partition_key: self.key,
            event_time: self.event_time,
            ordering_key: self.ordering_key,
            sequence_id: Some(sequence_id),
            null_value: self.null_value.then_some(true),
            ..Default::default()
        };
        (metadata, self.payload)
    }

    /// Everything but the payload, as a message of its own says it.
    pub(crate) fn into_metadata(self) -> (MessageMetadata, Bytes) {
        let metadata = MessageMetadata {
            properties: key_values(self.properties),
            partition_key_b64_encoded: self.key.as_ref().and(self.key_is_base64.then_some(true)),
            partition_key: self.key,
            replicate_to: self.replicate_to,
            event_time: self.event_time,
            ordering_key: self.ordering_key,
            deliver_at_time: self.deliver_at,
            schema_version: self.schema_version,
            null_value: self.null_value.then_some(true),
            ..Default::default()
        };
        (metadata, self.payload)
    }
}

pub(crate) fn key_values(pairs: Vec<(String, String)>) -> Vec<KeyValue> {
    pairs
        .into_iter()
        .map(|(key, value)| KeyValue { key, value })
        .collect()
}
