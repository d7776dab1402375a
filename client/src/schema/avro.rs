//! Apache Avro: one datum without a header per message. A value is read with the definition of its writer, which the broker
//! keeps by version, and resolved to the reader's.

use super::{Schema, SchemaInfo, SchemaType};
use crate::{Error, Result};
use apache_avro::{
    AvroSchema, Schema as Definition, from_avro_datum, from_value, to_avro_datum, to_value,
};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock};

/// `AVRO`: values of a type that serde writes and reads.
pub struct Avro<T> {
    info: SchemaInfo,
    reader: Definition,
    /// What wrote the versions seen so far; a topic has at most a thousand or so.
    writers: RwLock<HashMap<Box<[u8]>, Arc<Definition>>>,
    values: PhantomData<fn() -> T>,
}

/// The name and the bytes of a type's derived definition.
pub(super) fn definition_of<T: AvroSchema>() -> (String, Vec<u8>) {
    let definition = T::get_schema();
    let data = serde_json::to_vec(&definition).unwrap_or_default();
    (name_of(&definition), data)
}

fn name_of(definition: &Definition) -> String {
    definition
        .name()
        .map_or_else(|| "AVRO".to_owned(), |name| name.name.clone())
}

fn fault(what: &str, error: &apache_avro::Error) -> Error {
    Error::Schema(format!("{what}: {error}"))
}

impl<T> Avro<T> {
    /// With this definition, in JSON.
    ///
    /// # Errors
    /// [`Error::Schema`] if it is not an Avro schema.
    pub fn with_definition(definition: &str) -> Result<Self> {
        let reader = Definition::parse_str(definition)
            .map_err(|error| fault("not an Avro schema", &error))?;
        Ok(Self::of(reader, definition.as_bytes().to_vec()))
    }

    fn of(reader: Definition, data: Vec<u8>) -> Self {
        Self {
            info: SchemaInfo {
                name: name_of(&reader),
                kind: SchemaType::Avro,
                data: data.into(),
                properties: Vec::new(),
            },
            reader,
            writers: RwLock::default(),
            values: PhantomData,
        }
    }

    fn writer(&self, version: &[u8]) -> Option<Arc<Definition>> {
        let writers = self.writers.read().unwrap_or_else(PoisonError::into_inner);
        writers.get(version).cloned()
    }
}

impl<T: AvroSchema> Avro<T> {
    /// With the definition derived from the type (`#[derive(AvroSchema)]`).
    #[must_use]
    pub fn new() -> Self {
        Self::of(T::get_schema(), definition_of::<T>().1)
    }
}

impl<T: AvroSchema> Default for Avro<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Schema for Avro<T> {
    type Value = T;

    fn info(&self) -> Option<SchemaInfo> {
        Some(self.info.clone())
    }

    fn encode(&self, value: &T) -> Result<Bytes> {
        let datum = to_value(value)
            .and_then(|value| value.resolve(&self.reader))
            .and_then(|value| to_avro_datum(&self.reader, value))
            .map_err(|error| fault("cannot be written as Avro", &error))?;
        Ok(datum.into())
    }

    fn decode(&self, payload: &Bytes, version: Option<&[u8]>) -> Result<T> {
        let writer = version.and_then(|version| self.writer(version));
        let mut rest = payload.as_ref();
        let datum = match &writer {
            Some(writer) => from_avro_datum(writer, &mut rest, Some(&self.reader)),
            None => from_avro_datum(&self.reader, &mut rest, None),
        };
        datum
            .and_then(|value| from_value(&value))
            .map_err(|error| fault("not such a value in Avro", &error))
    }

    fn wants_version(&self, version: &[u8]) -> bool {
        self.writer(version).is_none()
    }

    fn learn(&self, version: &[u8], writer: &SchemaInfo) -> Result<()> {
        let text = std::str::from_utf8(&writer.data)
            .map_err(|error| Error::Schema(format!("the writer's definition: {error}")))?;
        let definition = Definition::parse_str(text)
            .map_err(|error| fault("the writer's definition", &error))?;
        let mut writers = self.writers.write().unwrap_or_else(PoisonError::into_inner);
        writers.insert(version.into(), Arc::new(definition));
        Ok(())
    }
}

impl<T> fmt::Debug for Avro<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Avro").field(&self.info.name).finish()
    }
}
