//! How values become bytes, and what the broker is told about it.
//!
//! A [`Schema`] encodes and decodes, and its [`SchemaInfo`] goes with PRODUCER and SUBSCRIBE, so that the broker refuses who does not
//! understand the topic's values. Encodings and definitions are those of all Pulsar clients.

#[cfg(feature = "avro")]
mod avro;
mod json;
mod key_value;
mod primitive;
mod protobuf;

#[cfg(feature = "avro")]
pub use apache_avro::{AvroSchema, Schema as AvroDefinition};
#[cfg(feature = "avro")]
pub use avro::Avro;
pub use json::Json;
pub use key_value::{KeyValue, KeyValueEncoding};
pub use primitive::{
    Bool, Date, Float32, Float64, Instant, Int8, Int16, Int32, Int64, LocalDate, LocalDateTime,
    LocalTime, Time, Timestamp,
};
pub use protobuf::{Protobuf, ProtobufNative};
pub use vela_proto::schema::Type as SchemaType;

use crate::message::{OutgoingMessage, ReceivedMessage};
use crate::{Error, Result};

/// What the broker is told of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaInfo {
    /// Its name; brokers only show it.
    pub name: String,
    /// Which kind of schema it is.
    pub kind: SchemaType,
    /// Its definition, for kinds that have one.
    pub data: bytes::Bytes,
    /// Names and values, in order.
    pub properties: Vec<(String, String)>,
}

impl SchemaInfo {
    /// A schema without definition.
    #[must_use]
    pub fn plain(name: &str, kind: SchemaType) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            data: bytes::Bytes::new(),
            properties: Vec::new(),
        }
    }

    /// A schema whose definition is one of Avro in JSON. Its name is the definition's, else `unnamed`.
    ///
    /// # Errors
    /// [`Error::Schema`] if the definition is not JSON. Whether it is a schema, the broker says.
    fn defined(kind: SchemaType, definition: &str, unnamed: &str) -> Result<Self> {
        let parsed: serde_json::Value = serde_json::from_str(definition)
            .map_err(|error| Error::Schema(format!("the definition is not JSON: {error}")))?;
        let name = parsed.get("name").and_then(|name| name.as_str());
        Ok(Self {
            data: bytes::Bytes::copy_from_slice(definition.as_bytes()),
            ..Self::plain(name.unwrap_or(unnamed), kind)
        })
    }

    /// As commands carry it.
    #[must_use]
    pub fn to_proto(&self) -> vela_proto::Schema {
        vela_proto::Schema {
            name: self.name.clone(),
            schema_data: self.data.clone(),
            r#type: self.kind.into(),
            properties: self
                .properties
                .iter()
                .map(|(key, value)| vela_proto::KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
        }
    }

    /// From what a command carries. A kind this client does not know is [`SchemaType::None`].
    #[must_use]
    pub fn from_proto(schema: &vela_proto::Schema) -> Self {
        Self {
            name: schema.name.clone(),
            kind: SchemaType::try_from(schema.r#type).unwrap_or(SchemaType::None),
            data: schema.schema_data.clone(),
            properties: schema
                .properties
                .iter()
                .map(|pair| (pair.key.clone(), pair.value.clone()))
                .collect(),
        }
    }
}

/// Encodes and decodes the values of a topic.
pub trait Schema: Send + Sync + 'static {
    /// The type of the values.
    type Value;

    /// What the broker is told; `None`: nothing, the values are plain bytes to it.
    fn info(&self) -> Option<SchemaInfo>;

    /// The bytes of a value.
    ///
    /// # Errors
    /// [`Error::Schema`] if it cannot be encoded.
    fn encode(&self, value: &Self::Value) -> Result<bytes::Bytes>;

    /// The value of these bytes. `version` is the one its writer used, as the broker numbers them.
    ///
    /// # Errors
    /// [`Error::Schema`] if they are not a value of the schema.
    fn decode(&self, payload: &bytes::Bytes, version: Option<&[u8]>) -> Result<Self::Value>;

    /// Encodes a value into a message; a schema that keeps a part of its values elsewhere does so here.
    ///
    /// # Errors
    /// As [`Schema::encode`].
    fn encode_message(&self, value: &Self::Value, message: &mut OutgoingMessage) -> Result<()> {
        message.payload = self.encode(value)?;
        Ok(())
    }

    /// Decodes a received message.
    ///
    /// # Errors
    /// As [`Schema::decode`], and if the message has no value.
    fn decode_message(&self, message: &ReceivedMessage) -> Result<Self::Value> {
        if message.is_null() {
            return Err(Error::Schema(format!(
                "message {} has no value",
                message.id
            )));
        }
        self.decode(
            &message.payload,
            message.schema_version().map(AsRef::as_ref),
        )
    }

    /// Whether values can only be decoded with the definition their writer used: then [`Schema::learn`] is called with
    /// it before a message of that version is handed out.
    fn wants_version(&self, _version: &[u8]) -> bool {
        false
    }

    /// The definition of a version, as the broker has it.
    ///
    /// # Errors
    /// [`Error::Schema`] if it cannot be understood.
    fn learn(&self, _version: &[u8], _writer: &SchemaInfo) -> Result<()> {
        Ok(())
    }
}

/// No schema: values are bytes. The topic may have any schema.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bytes;

impl Schema for Bytes {
    type Value = bytes::Bytes;

    fn info(&self) -> Option<SchemaInfo> {
        None
    }

    fn encode(&self, value: &bytes::Bytes) -> Result<bytes::Bytes> {
        Ok(value.clone())
    }

    fn decode(&self, payload: &bytes::Bytes, _version: Option<&[u8]>) -> Result<bytes::Bytes> {
        Ok(payload.clone())
    }
}

/// `STRING`: text in UTF-8.
#[derive(Debug, Clone, Copy, Default)]
pub struct Text;

impl Schema for Text {
    type Value = String;

    fn info(&self) -> Option<SchemaInfo> {
        Some(SchemaInfo::plain("String", SchemaType::String))
    }

    fn encode(&self, value: &String) -> Result<bytes::Bytes> {
        Ok(bytes::Bytes::copy_from_slice(value.as_bytes()))
    }

    fn decode(&self, payload: &bytes::Bytes, _version: Option<&[u8]>) -> Result<String> {
        match std::str::from_utf8(payload) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(Error::Schema(format!("not text: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests;
