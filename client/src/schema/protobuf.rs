//! Protocol Buffers by prost.

use super::{Schema, SchemaInfo, SchemaType};
use crate::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use prost::Message;
use prost_types::FileDescriptorSet;
use std::fmt;
use std::marker::PhantomData;

/// `PROTOBUF`: the definition is that of Avro which other clients derive from the message's descriptor.
pub struct Protobuf<T> {
    info: SchemaInfo,
    values: PhantomData<fn() -> T>,
}

impl<T> Protobuf<T> {
    /// With this definition: an Avro schema in JSON.
    ///
    /// # Errors
    /// [`Error::Schema`] if it is not JSON.
    pub fn with_definition(definition: &str) -> Result<Self> {
        Ok(Self {
            info: SchemaInfo::defined(SchemaType::Protobuf, definition, "PROTOBUF")?,
            values: PhantomData,
        })
    }
}

/// `PROTOBUF_NATIVE`: the definition is the message's descriptor with all files it needs.
pub struct ProtobufNative<T> {
    info: SchemaInfo,
    values: PhantomData<fn() -> T>,
}

impl<T> ProtobufNative<T> {
    /// With an encoded `FileDescriptorSet` (as `protoc --descriptor_set_out --include_imports` and `prost-build` write it) and
    /// the full name of the message in it, such as `package.Message`.
    ///
    /// # Errors
    /// [`Error::Schema`] if these bytes are none, or there is no such message in them.
    pub fn new(descriptors: &[u8], message: &str) -> Result<Self> {
        let set = FileDescriptorSet::decode(descriptors)
            .map_err(|error| Error::Schema(format!("not a FileDescriptorSet: {error}")))?;
        let wanted = message.trim_start_matches('.');
        let file = set.file.iter().find(|file| {
            let within = match file.package() {
                "" => Some(wanted),
                package => wanted
                    .strip_prefix(package)
                    .and_then(|rest| rest.strip_prefix('.')),
            };
            within.is_some_and(|path| names(&file.message_type, path))
        });
        let Some(file) = file else {
            return Err(Error::Schema(format!(
                "there is no message {wanted} in the FileDescriptorSet of {} files",
                set.file.len()
            )));
        };
        let definition = serde_json::json!({
            "fileDescriptorSet": BASE64.encode(descriptors),
            "rootMessageTypeName": wanted,
            "rootFileDescriptorName": file.name(),
        });
        Ok(Self {
            info: SchemaInfo {
                name: wanted.rsplit('.').next().unwrap_or(wanted).to_owned(),
                kind: SchemaType::ProtobufNative,
                data: definition.to_string().into_bytes().into(),
                properties: Vec::new(),
            },
            values: PhantomData,
        })
    }
}

/// Whether a path of names leads to one of these messages.
fn names(messages: &[prost_types::DescriptorProto], path: &str) -> bool {
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    let found = messages.iter().find(|message| message.name() == first);
    found.is_some_and(|message| rest.is_none_or(|rest| names(&message.nested_type, rest)))
}

macro_rules! by_prost {
    ($($schema:ident $name:literal)*) => {$(
        impl<T: Message + Default + 'static> Schema for $schema<T> {
            type Value = T;

            fn info(&self) -> Option<SchemaInfo> {
                Some(self.info.clone())
            }

            fn encode(&self, value: &T) -> Result<Bytes> {
                Ok(value.encode_to_vec().into())
            }

            fn decode(&self, payload: &Bytes, _version: Option<&[u8]>) -> Result<T> {
                T::decode(payload.clone()).map_err(|error| Error::Schema(format!("not such a message: {error}")))
            }
        }

        impl<T> fmt::Debug for $schema<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple($name).field(&self.info.name).finish()
            }
        }
    )*};
}

by_prost! {
    Protobuf "Protobuf"
    ProtobufNative "ProtobufNative"
}
