//! Pairs: both in the payload, or the key as the message's key.

use super::{Schema, SchemaInfo, SchemaType};
use crate::message::{MessageKey, OutgoingMessage, ReceivedMessage, key_of};
use crate::{Error, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Where the key of a pair goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyValueEncoding {
    /// In the payload, in front of the value.
    #[default]
    Inline,
    /// Into the key of the message.
    Separated,
}

/// `KEY_VALUE`: a pair of two schemas' values.
#[derive(Debug, Clone, Default)]
pub struct KeyValue<K, V> {
    key: K,
    value: V,
    encoding: KeyValueEncoding,
}

impl<K: Schema, V: Schema> KeyValue<K, V> {
    /// A pair, both in the payload.
    #[must_use]
    pub fn inline(key: K, value: V) -> Self {
        let encoding = KeyValueEncoding::Inline;
        Self {
            key,
            value,
            encoding,
        }
    }

    /// A pair, the key as the message's key.
    #[must_use]
    pub fn separated(key: K, value: V) -> Self {
        let encoding = KeyValueEncoding::Separated;
        Self {
            key,
            value,
            encoding,
        }
    }
}

impl<K: Schema, V: Schema> Schema for KeyValue<K, V> {
    type Value = (K::Value, V::Value);

    fn info(&self) -> Option<SchemaInfo> {
        let part = |info: Option<SchemaInfo>| {
            info.unwrap_or_else(|| SchemaInfo::plain("BYTES", SchemaType::None))
        };
        let (key, value) = (part(self.key.info()), part(self.value.info()));
        let mut data = BytesMut::with_capacity(8 + key.data.len() + value.data.len());
        put(&mut data, &key.data)?;
        put(&mut data, &value.data)?;
        let mut properties = Vec::new();
        for (side, info) in [("key", &key), ("value", &value)] {
            let of_schema: serde_json::Map<_, _> = info
                .properties
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().into()))
                .collect();
            properties.push((format!("{side}.schema.name"), info.name.clone()));
            properties.push((
                format!("{side}.schema.type"),
                type_name(info.kind).to_owned(),
            ));
            properties.push((
                format!("{side}.schema.properties"),
                serde_json::Value::Object(of_schema).to_string(),
            ));
        }
        let encoding = match self.encoding {
            KeyValueEncoding::Inline => "INLINE",
            KeyValueEncoding::Separated => "SEPARATED",
        };
        properties.push(("kv.encoding.type".to_owned(), encoding.to_owned()));
        Some(SchemaInfo {
            name: "KeyValue".to_owned(),
            kind: SchemaType::KeyValue,
            data: data.freeze(),
            properties,
        })
    }

    fn encode(&self, (key, value): &Self::Value) -> Result<Bytes> {
        let (key, value) = (self.key.encode(key)?, self.value.encode(value)?);
        let mut both = BytesMut::with_capacity(8 + key.len() + value.len());
        let fits = put(&mut both, &key).and_then(|()| put(&mut both, &value));
        fits.ok_or_else(|| Error::Schema("a part of the pair is larger than 2 GiB".to_owned()))?;
        Ok(both.freeze())
    }

    fn decode(&self, payload: &Bytes, _version: Option<&[u8]>) -> Result<Self::Value> {
        let mut rest = payload.clone();
        let (key, value) = (take(&mut rest)?, take(&mut rest)?);
        Ok((
            self.key.decode(&key, None)?,
            self.value.decode(&value, None)?,
        ))
    }

    fn encode_message(&self, pair: &Self::Value, message: &mut OutgoingMessage) -> Result<()> {
        match self.encoding {
            KeyValueEncoding::Inline => message.payload = self.encode(pair)?,
            KeyValueEncoding::Separated => {
                message.key = Some(MessageKey::bytes(self.key.encode(&pair.0)?));
                message.payload = self.value.encode(&pair.1)?;
            }
        }
        Ok(())
    }

    fn decode_message(&self, message: &ReceivedMessage) -> Result<Self::Value> {
        match self.encoding {
            KeyValueEncoding::Inline => self.decode(&message.payload, None),
            KeyValueEncoding::Separated => {
                let Some(key) = key_of(message) else {
                    return Err(Error::Schema(format!("message {} has no key", message.id)));
                };
                Ok((
                    self.key.decode(&key.to_bytes(), None)?,
                    self.value.decode(&message.payload, None)?,
                ))
            }
        }
    }
}

fn put(to: &mut BytesMut, part: &[u8]) -> Option<()> {
    to.put_i32(i32::try_from(part.len()).ok()?);
    to.put_slice(part);
    Some(())
}

/// A length in four bytes and as many bytes; -1, nothing, is taken as empty.
fn take(rest: &mut Bytes) -> Result<Bytes> {
    let short = || Error::Schema("a pair that ends before its parts do".to_owned());
    let length = rest.try_get_i32().map_err(|_| short())?;
    let length = usize::try_from(length).unwrap_or(0);
    if length > rest.len() {
        return Err(short());
    }
    Ok(rest.split_to(length))
}

/// The names by which properties call the kinds.
fn type_name(kind: SchemaType) -> &'static str {
    match kind {
        SchemaType::None => "BYTES",
        SchemaType::String => "STRING",
        SchemaType::Json => "JSON",
        SchemaType::Protobuf => "PROTOBUF",
        SchemaType::Avro => "AVRO",
        SchemaType::Bool => "BOOLEAN",
        SchemaType::Int8 => "INT8",
        SchemaType::Int16 => "INT16",
        SchemaType::Int32 => "INT32",
        SchemaType::Int64 => "INT64",
        SchemaType::Float => "FLOAT",
        SchemaType::Double => "DOUBLE",
        SchemaType::Date => "DATE",
        SchemaType::Time => "TIME",
        SchemaType::Timestamp => "TIMESTAMP",
        SchemaType::KeyValue => "KEY_VALUE",
        SchemaType::Instant => "INSTANT",
        SchemaType::LocalDate => "LOCAL_DATE",
        SchemaType::LocalTime => "LOCAL_TIME",
        SchemaType::LocalDateTime => "LOCAL_DATE_TIME",
        SchemaType::ProtobufNative => "PROTOBUF_NATIVE",
        SchemaType::AutoConsume => "AUTO_CONSUME",
        SchemaType::External => "EXTERNAL",
    }
}
