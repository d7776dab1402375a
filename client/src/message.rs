//! Messages on their way out, and messages received.

pub use crate::core::consumer::ReceivedMessage;
use crate::schema::Schema;
use crate::{MessageId, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, as the protocol counts time; 0 before that.
#[must_use]
pub fn millis_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The key of a message, as the protocol carries it: text, which is base64 where the key is bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageKey {
    /// The text in `partition_key`.
    pub text: String,
    /// Whether the text is base64.
    pub base64: bool,
}

impl MessageKey {
    /// A key that is text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            base64: false,
        }
    }

    /// A key that is bytes.
    #[must_use]
    pub fn bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self {
            text: BASE64.encode(bytes),
            base64: true,
        }
    }

    /// The key's bytes. Text that claims to be base64 and is not is taken as it is.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if self.base64
            && let Ok(bytes) = BASE64.decode(&self.text)
        {
            return bytes.into();
        }
        Bytes::copy_from_slice(self.text.as_bytes())
    }
}

/// A message whose value is encoded: what the client queues, batches and sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The encoded value.
    pub payload: Bytes,
    /// There is no value (which is not an empty one).
    pub null_value: bool,
    /// Its key.
    pub key: Option<MessageKey>,
    /// What Key_Shared subscriptions order by instead of the key.
    pub ordering_key: Option<Bytes>,
    /// Names and values for the application.
    pub properties: Vec<(String, String)>,
    /// When what it tells of happened, in milliseconds since 1970.
    pub event_time: Option<u64>,
    /// Deliver not before this, in milliseconds since 1970. Such a message is sent on its own, outside of batches.
    pub deliver_at: Option<u64>,
    /// Its number; the producer counts where there is none.
    pub sequence_id: Option<u64>,
    /// Clusters it is replicated to; empty: as the namespace says. `__local__`: none.
    pub replicate_to: Vec<String>,
    /// The version of the schema that its value was encoded with, if not the producer's own.
    pub schema_version: Option<Bytes>,
}

impl OutgoingMessage {
    /// A message of these bytes.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::default()
        }
    }

    /// What key-based batching goes by: the ordering key, else the key. (Partitions go by the key alone.)
    #[must_use]
    pub fn batching_key(&self) -> Option<Bytes> {
        self.ordering_key
            .clone()
            .or_else(|| self.key.as_ref().map(MessageKey::to_bytes))
    }
}

/// A value to send, and what goes with it. Built by chaining:
/// `Outgoing::new(value).key("k").property("name", "value")`. A plain value turns into one by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing<T> {
    value: Option<T>,
    rest: OutgoingMessage,
}

impl<T> Outgoing<T> {
    /// A message with this value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            value: Some(value),
            rest: OutgoingMessage::default(),
        }
    }

    /// A message without a value: to a compacted topic, "this key is gone".
    #[must_use]
    pub fn null() -> Self {
        Self {
            value: None,
            rest: OutgoingMessage {
                null_value: true,
                ..OutgoingMessage::default()
            },
        }
    }

    /// Its key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.rest.key = Some(MessageKey::text(key));
        self
    }

    /// Its key, in bytes.
    #[must_use]
    pub fn key_bytes(mut self, key: impl AsRef<[u8]>) -> Self {
        self.rest.key = Some(MessageKey::bytes(key));
        self
    }

    /// What Key_Shared subscriptions order by instead of the key.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<Bytes>) -> Self {
        self.rest.ordering_key = Some(key.into());
        self
    }

    /// Adds a property.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.rest.properties.push((name.into(), value.into()));
        self
    }

    /// Adds properties.
    #[must_use]
    pub fn properties<N: Into<String>, V: Into<String>>(
        mut self,
        properties: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = properties
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        self.rest.properties.extend(pairs);
        self
    }

    /// When what it tells of happened.
    #[must_use]
    pub fn event_time(mut self, time: SystemTime) -> Self {
        self.rest.event_time = Some(millis_of(time));
        self
    }

    /// Its number: must ascend within a producer. Without one the producer counts.
    #[must_use]
    pub fn sequence_id(mut self, sequence_id: u64) -> Self {
        self.rest.sequence_id = Some(sequence_id);
        self
    }

    /// Deliver it not before this time (Shared and Key_Shared subscriptions).
    #[must_use]
    pub fn deliver_at(mut self, time: SystemTime) -> Self {
        self.rest.deliver_at = Some(millis_of(time));
        self
    }

    /// Deliver it not before this much time has passed (Shared and Key_Shared subscriptions).
    #[must_use]
    pub fn deliver_after(self, delay: Duration) -> Self {
        let now = SystemTime::now();
        self.deliver_at(now.checked_add(delay).unwrap_or(now))
    }

    /// Replicate it to these clusters only.
    #[must_use]
    pub fn replicate_to<C: Into<String>>(mut self, clusters: impl IntoIterator<Item = C>) -> Self {
        self.rest.replicate_to = clusters.into_iter().map(Into::into).collect();
        self
    }

    /// Do not replicate it.
    #[must_use]
    pub fn disable_replication(self) -> Self {
        self.replicate_to(["__local__"])
    }

    /// Encodes the value: on the task of whoever sends, so that the cost and the size are the sender's.
    ///
    /// # Errors
    /// [`crate::Error::Schema`] if the value cannot be encoded.
    pub fn encode<S: Schema<Value = T> + ?Sized>(self, schema: &S) -> Result<OutgoingMessage> {
        let mut message = self.rest;
        if let Some(value) = &self.value {
            schema.encode_message(value, &mut message)?;
        }
        Ok(message)
    }
}

impl<T> From<T> for Outgoing<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// A received message with a value of type `T`, decoded when first asked for. Clones share it.
pub struct Message<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    message: ReceivedMessage,
    schema: Arc<dyn Schema<Value = T>>,
    value: OnceLock<Result<T>>,
}

impl<T> Clone for Message<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<T: 'static> Message<T> {
    /// A received message, to be decoded by this schema.
    #[must_use]
    pub fn new(message: ReceivedMessage, schema: Arc<dyn Schema<Value = T>>) -> Self {
        let value = OnceLock::new();
        Self {
            inner: Arc::new(Inner {
                message,
                schema,
                value,
            }),
        }
    }

    /// Its value.
    ///
    /// # Errors
    /// [`crate::Error::Schema`] if the bytes are not a value of the schema, or there is no value.
    pub fn value(&self) -> Result<&T> {
        let decode = || self.inner.schema.decode_message(&self.inner.message);
        self.inner
            .value
            .get_or_init(decode)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Its value, moved out if this is the only clone.
    ///
    /// # Errors
    /// As [`Message::value`].
    pub fn into_value(self) -> Result<T> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => match inner.value.into_inner() {
                Some(value) => value,
                None => inner.schema.decode_message(&inner.message),
            },
            Err(shared) => shared.schema.decode_message(&shared.message),
        }
    }

    /// Everything about it, undecoded.
    #[must_use]
    pub fn raw(&self) -> &ReceivedMessage {
        &self.inner.message
    }

    /// Where it lies.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.raw().id
    }

    /// Its topic, with the partition.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.raw().topic
    }

    /// The value's bytes.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.raw().payload
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.raw().is_null()
    }

    /// Its key, if it has one; of a key in bytes, their base64.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.raw().key()
    }

    /// Its key in bytes, if it has one.
    #[must_use]
    pub fn key_bytes(&self) -> Option<Bytes> {
        key_of(self.raw()).as_ref().map(MessageKey::to_bytes)
    }

    /// What Key_Shared subscriptions order by instead of the key.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&Bytes> {
        self.raw().ordering_key()
    }

    /// Its properties, in the order of the sender.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.raw().properties().iter();
        pairs.map(|pair| (pair.key.as_str(), pair.value.as_str()))
    }

    /// The property of this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        self.raw().property(name)
    }

    /// When it was published.
    #[must_use]
    pub fn publish_time(&self) -> SystemTime {
        time_of(self.raw().publish_time())
    }

    /// When what it tells of happened, if the sender said so.
    #[must_use]
    pub fn event_time(&self) -> Option<SystemTime> {
        self.raw().event_time().map(time_of)
    }

    /// Its number at its producer.
    #[must_use]
    pub fn sequence_id(&self) -> u64 {
        self.raw().sequence_id()
    }

    /// Its producer's name.
    #[must_use]
    pub fn producer_name(&self) -> &str {
        self.raw().producer_name()
    }

    /// How often the broker has delivered it before.
    #[must_use]
    pub fn redelivery_count(&self) -> u32 {
        self.raw().redelivery_count
    }

    /// The version of its schema at the broker.
    #[must_use]
    pub fn schema_version(&self) -> Option<&Bytes> {
        self.raw().schema_version()
    }
}

/// The key of a received message.
pub(crate) fn key_of(message: &ReceivedMessage) -> Option<MessageKey> {
    message.key().map(|text| MessageKey {
        text: text.to_owned(),
        base64: message.key_is_base64(),
    })
}

fn time_of(millis: u64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(millis))
        .unwrap_or(UNIX_EPOCH)
}

impl<T: 'static> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Message").field(self.raw()).finish()
    }
}

/// What names a message: an id, or a message itself. For `ack(&message)` as well as `ack(id)`.
pub trait AsMessageId {
    /// The id.
    fn message_id(&self) -> MessageId;

    /// The partition's topic it is from, if known: consumers of several topics need it where an id alone does not tell.
    fn topic_name(&self) -> Option<&str> {
        None
    }
}

impl AsMessageId for MessageId {
    fn message_id(&self) -> MessageId {
        *self
    }
}

impl AsMessageId for ReceivedMessage {
    fn message_id(&self) -> MessageId {
        self.id
    }

    fn topic_name(&self) -> Option<&str> {
        Some(&self.topic)
    }
}

impl<T: 'static> AsMessageId for Message<T> {
    fn message_id(&self) -> MessageId {
        self.id()
    }

    fn topic_name(&self) -> Option<&str> {
        Some(self.topic())
    }
}

impl<M: AsMessageId + ?Sized> AsMessageId for &M {
    fn message_id(&self) -> MessageId {
        (**self).message_id()
    }

    fn topic_name(&self) -> Option<&str> {
        (**self).topic_name()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::schema;
    use vela_proto::{KeyValue, MessageMetadata};

    fn received(payload: &'static [u8]) -> ReceivedMessage {
        ReceivedMessage {
            topic: "persistent://public/default/t".into(),
            id: MessageId::entry(1, 2),
            payload: Bytes::from_static(payload),
            metadata: Arc::new(MessageMetadata {
                producer_name: "p".into(),
                sequence_id: 7,
                publish_time: 1000,
                partition_key: Some("AP8=".into()),
                partition_key_b64_encoded: Some(true),
                properties: vec![KeyValue {
                    key: "a".into(),
                    value: "b".into(),
                }],
                ..MessageMetadata::default()
            }),
            single: None,
            redelivery_count: 0,
            encrypted: false,
        }
    }

    #[test]
    fn what_is_chained_arrives_in_the_message() {
        let message = Outgoing::new("v".to_owned())
            .key("k")
            .ordering_key("o")
            .property("a", "1")
            .properties([("b", "2")])
            .event_time(UNIX_EPOCH + Duration::from_millis(5))
            .deliver_at(UNIX_EPOCH + Duration::from_millis(6))
            .sequence_id(9)
            .disable_replication()
            .encode(&schema::Text)
            .unwrap();
        assert_eq!(message.payload, "v");
        assert_eq!(message.key, Some(MessageKey::text("k")));
        assert_eq!(message.batching_key().unwrap(), "o");
        assert_eq!(message.properties.len(), 2);
        assert_eq!(
            (message.event_time, message.deliver_at, message.sequence_id),
            (Some(5), Some(6), Some(9))
        );
        assert_eq!(message.replicate_to, ["__local__"]);
        let null = Outgoing::<String>::null()
            .key("gone")
            .encode(&schema::Text)
            .unwrap();
        assert!(null.null_value && null.payload.is_empty());
    }

    #[test]
    fn a_value_is_decoded_when_asked_for() {
        let message = Message::new(received(b"text"), Arc::new(schema::Text));
        assert_eq!(message.value().unwrap(), "text");
        assert_eq!(message.key(), Some("AP8="));
        assert_eq!(message.key_bytes().unwrap(), [0, 255].as_slice());
        assert_eq!(message.property("a"), Some("b"));
        assert_eq!(message.event_time(), None);
        assert_eq!(message.into_value().unwrap(), "text");
        let broken = Message::new(received(b"\xff"), Arc::new(schema::Text));
        broken.value().unwrap_err();
        broken.value().unwrap_err();
    }
}
