//! A message as it comes out of the consumer.

use std::sync::Arc;

use bytes::Bytes;
use vela_proto::{KeyValue, MessageIdData, MessageMetadata, SingleMessageMetadata};

use crate::MessageId;

/// Ledger and entry: what the broker redelivers and, without batch-index acknowledgement, acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId {
    /// Ledger.
    pub ledger: u64,
    /// Entry in the ledger.
    pub entry: u64,
}

impl EntryId {
    pub(super) fn wire(self, ack_set: Vec<i64>) -> MessageIdData {
        MessageIdData {
            ledger_id: self.ledger,
            entry_id: self.entry,
            ack_set,
            ..MessageIdData::default()
        }
    }
}

impl From<MessageId> for EntryId {
    fn from(id: MessageId) -> Self {
        Self {
            ledger: id.ledger,
            entry: id.entry,
        }
    }
}

/// A message for the application. Its payload shares memory with what was received; its permit does not go with it.
#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    /// Topic or partition it came from.
    pub topic: Arc<str>,
    /// Where it lies; for a chunked message, its last chunk.
    pub id: MessageId,
    /// The payload, decompressed; as sent if `encrypted`.
    pub payload: Bytes,
    /// Metadata of the entry.
    pub metadata: Arc<MessageMetadata>,
    /// Metadata of the message within its batch.
    pub single: Option<SingleMessageMetadata>,
    /// How often the broker delivered it before.
    pub redelivery_count: u32,
    /// Whether the payload is still encrypted (`CryptoFailureAction::Consume`).
    pub encrypted: bool,
}

impl ReceivedMessage {
    /// Its partition key as text.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match &self.single {
            Some(single) => single.partition_key.as_deref(),
            None => self.metadata.partition_key.as_deref(),
        }
    }

    /// Whether the key is bytes in base64.
    #[must_use]
    pub fn key_is_base64(&self) -> bool {
        match &self.single {
            Some(single) => single.partition_key_b64_encoded(),
            None => self.metadata.partition_key_b64_encoded(),
        }
    }

    /// The key that orders it in Key_Shared, if it has one of its own.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&Bytes> {
        match &self.single {
            Some(single) => single.ordering_key.as_ref(),
            None => self.metadata.ordering_key.as_ref(),
        }
    }

    /// Its properties.
    #[must_use]
    pub fn properties(&self) -> &[KeyValue] {
        match &self.single {
            Some(single) => &single.properties,
            None => &self.metadata.properties,
        }
    }

    /// A property by name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        let found = self.properties().iter().find(|pair| pair.key == name);
        found.map(|pair| pair.value.as_str())
    }

    /// When the producer sent it, in milliseconds since 1970.
    #[must_use]
    pub fn publish_time(&self) -> u64 {
        self.metadata.publish_time
    }

    /// What the application set as its time, in milliseconds since 1970.
    #[must_use]
    pub fn event_time(&self) -> Option<u64> {
        let time = match &self.single {
            Some(single) => single.event_time,
            None => self.metadata.event_time,
        };
        time.filter(|&time| time > 0)
    }

    /// The producer's number of it.
    #[must_use]
    pub fn sequence_id(&self) -> u64 {
        self.single
            .as_ref()
            .and_then(|single| single.sequence_id)
            .unwrap_or(self.metadata.sequence_id)
    }

    /// Whether it has no value at all, as opposed to an empty one.
    #[must_use]
    pub fn is_null(&self) -> bool {
        match &self.single {
            Some(single) => single.null_value(),
            None => self.metadata.null_value(),
        }
    }

    /// Name of its producer.
    #[must_use]
    pub fn producer_name(&self) -> &str {
        &self.metadata.producer_name
    }

    /// Version of the schema it was written with.
    #[must_use]
    pub fn schema_version(&self) -> Option<&Bytes> {
        self.metadata.schema_version.as_ref()
    }

    pub(super) fn entry(&self) -> EntryId {
        self.id.into()
    }
}

/// The place in the batch, or `None` for a message that is not in one.
pub(super) fn index_of(id: &MessageId) -> Option<u32> {
    u32::try_from(id.batch_index).ok()
}

/// An identity as sent with SEEK and SUBSCRIBE.
pub(super) fn wire_id(id: &MessageId) -> MessageIdData {
    MessageIdData {
        first_chunk_message_id: None,
        batch_size: None,
        ..id.to_data()
    }
}
