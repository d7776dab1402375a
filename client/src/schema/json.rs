//! JSON: values by serde, the definition a record of Avro, as all Pulsar clients have it.

use super::{Schema, SchemaInfo, SchemaType};
use crate::{Error, Result};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;

/// `JSON`: values of a type that serde writes and reads.
pub struct Json<T> {
    info: SchemaInfo,
    values: PhantomData<fn() -> T>,
}

impl<T> Json<T> {
    /// With this definition: an Avro schema in JSON, as other clients derive it from their types.
    ///
    /// # Errors
    /// [`Error::Schema`] if the definition is not JSON. Whether it is a schema, the broker says.
    pub fn with_definition(definition: &str) -> Result<Self> {
        Ok(Self {
            info: SchemaInfo::defined(SchemaType::Json, definition, "JSON")?,
            values: PhantomData,
        })
    }
}

#[cfg(feature = "avro")]
impl<T: super::AvroSchema> Json<T> {
    /// With the definition derived from the type (`#[derive(AvroSchema)]`).
    #[must_use]
    pub fn new() -> Self {
        let (name, data) = super::avro::definition_of::<T>();
        Self {
            info: SchemaInfo {
                name,
                kind: SchemaType::Json,
                data: data.into(),
                properties: Vec::new(),
            },
            values: PhantomData,
        }
    }
}

#[cfg(feature = "avro")]
impl<T: super::AvroSchema> Default for Json<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Schema for Json<T> {
    type Value = T;

    fn info(&self) -> Option<SchemaInfo> {
        Some(self.info.clone())
    }

    fn encode(&self, value: &T) -> Result<Bytes> {
        let encoded = serde_json::to_vec(value)
            .map_err(|error| Error::Schema(format!("cannot be written as JSON: {error}")))?;
        Ok(encoded.into())
    }

    fn decode(&self, payload: &Bytes, _version: Option<&[u8]>) -> Result<T> {
        serde_json::from_slice(payload)
            .map_err(|error| Error::Schema(format!("not such a value in JSON: {error}")))
    }
}

impl<T> fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Json").field(&self.info.name).finish()
    }
}
