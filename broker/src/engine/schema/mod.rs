//! Schemas: what a schema is, whether one may follow another, and the versions that a topic has.
//!
//! All of it but [`registry`] is pure: a REST handler uses [`Versions`] the way a core does. The versions of a topic are one value of the
//! metadata store, under [`SchemaId::key`], changed by compare-and-set.

pub mod avro;
mod check;
mod native;
mod policy;
pub mod registry;
mod versions;

use std::fmt;

use bytes::Bytes;
use vela_proto as proto;

pub use self::policy::{SchemaPolicy, SchemaRules, Strategy};
pub use self::versions::{Put, StoredSchema, Versions};
use super::name::TopicName;

/// Keys of schemas: `schema/TENANT/NAMESPACE/TOPIC`, by the name of the partitioned topic; the value is read by [`Versions::read`].
pub const SCHEMA: &str = "schema/";

/// Largest schema, bytes: definition and properties together.
pub const MAX_SCHEMA: usize = 1 << 20;
/// Most versions that a topic's schema may have since it was last deleted.
pub const MAX_VERSIONS: usize = 1000;
/// Most bytes of all versions of a topic: they are one value of the metadata store.
pub const MAX_ALL_VERSIONS: usize = 4_000_000;

/// The name under which a topic's schemas are kept: one for all partitions of a topic, persistent or not.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct SchemaId(String);

impl SchemaId {
    /// The id of a topic.
    pub fn of(topic: &TopicName) -> SchemaId {
        let base = topic.base();
        let name = base.split_once("://").map_or(base, |(_, name)| name);
        SchemaId(name.to_owned())
    }

    /// `tenant/namespace/topic`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its key in the metadata store.
    pub fn key(&self) -> String {
        format!("{SCHEMA}{}", self.0)
    }

    /// The id that a key of the metadata store is for.
    pub fn from_key(key: &str) -> Option<SchemaId> {
        key.strip_prefix(SCHEMA).map(|id| SchemaId(id.to_owned()))
    }

    /// The shard whose core answers for it: a function of the name alone.
    pub fn shard(&self, shards: u32) -> u32 {
        crc32c::crc32c(self.0.as_bytes()) % shards.max(1)
    }
}

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The type of a schema, with the numbers of the protocol.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(i32)]
#[allow(missing_docs)] // The names of the protocol.
pub enum SchemaType {
    None = 0,
    String = 1,
    Json = 2,
    Protobuf = 3,
    Avro = 4,
    Bool = 5,
    Int8 = 6,
    Int16 = 7,
    Int32 = 8,
    Int64 = 9,
    Float = 10,
    Double = 11,
    Date = 12,
    Time = 13,
    Timestamp = 14,
    KeyValue = 15,
    Instant = 16,
    LocalDate = 17,
    LocalTime = 18,
    LocalDateTime = 19,
    ProtobufNative = 20,
    AutoConsume = 21,
    External = 22,
}

impl SchemaType {
    /// All types and their names in REST documents and key-value properties.
    const NAMES: [(SchemaType, &'static str); 23] = [
        (SchemaType::None, "NONE"),
        (SchemaType::String, "STRING"),
        (SchemaType::Json, "JSON"),
        (SchemaType::Protobuf, "PROTOBUF"),
        (SchemaType::Avro, "AVRO"),
        (SchemaType::Bool, "BOOLEAN"),
        (SchemaType::Int8, "INT8"),
        (SchemaType::Int16, "INT16"),
        (SchemaType::Int32, "INT32"),
        (SchemaType::Int64, "INT64"),
        (SchemaType::Float, "FLOAT"),
        (SchemaType::Double, "DOUBLE"),
        (SchemaType::Date, "DATE"),
        (SchemaType::Time, "TIME"),
        (SchemaType::Timestamp, "TIMESTAMP"),
        (SchemaType::KeyValue, "KEY_VALUE"),
        (SchemaType::Instant, "INSTANT"),
        (SchemaType::LocalDate, "LOCAL_DATE"),
        (SchemaType::LocalTime, "LOCAL_TIME"),
        (SchemaType::LocalDateTime, "LOCAL_DATE_TIME"),
        (SchemaType::ProtobufNative, "PROTOBUF_NATIVE"),
        (SchemaType::AutoConsume, "AUTO_CONSUME"),
        (SchemaType::External, "EXTERNAL"),
    ];

    /// The type of a number of the protocol.
    pub fn from_number(number: i32) -> Option<SchemaType> {
        let mut all = Self::NAMES.iter();
        all.find(|(kind, _)| *kind as i32 == number)
            .map(|(kind, _)| *kind)
    }

    /// The type of a name as REST has it, `KEY_VALUE` and so on.
    pub fn from_name(name: &str) -> Option<SchemaType> {
        // Plain bytes have no number of their own in the protocol.
        let name = if name == "BYTES" { "NONE" } else { name };
        let mut all = Self::NAMES.iter();
        all.find(|(_, own)| *own == name).map(|(kind, _)| *kind)
    }

    /// The name that REST has for it.
    pub fn name(self) -> &'static str {
        let mut all = Self::NAMES.iter();
        all.find(|(kind, _)| *kind == self)
            .map_or("NONE", |(_, name)| name)
    }
}

/// A schema as a client or a REST call gives it.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Schema {
    /// Its type.
    pub kind: SchemaType,
    /// Its definition; empty for primitive types.
    pub data: Bytes,
    /// What the client keeps with it.
    pub properties: Vec<(String, String)>,
}

impl Schema {
    /// Takes a schema off the wire; its bytes are copied out of the frame.
    ///
    /// # Errors
    /// A type that the protocol does not have.
    pub fn from_wire(schema: &proto::Schema) -> Result<Schema, SchemaError> {
        let kind = SchemaType::from_number(schema.r#type).ok_or_else(|| {
            SchemaError::Invalid(format!("Unknown schema type {}", schema.r#type))
        })?;
        let properties = schema.properties.iter();
        let schema = Schema {
            kind,
            data: Bytes::copy_from_slice(&schema.schema_data),
            properties: properties
                .map(|p| (p.key.clone(), p.value.clone()))
                .collect(),
        };
        if schema.size() > MAX_SCHEMA {
            return Err(SchemaError::Invalid(format!(
                "The schema takes {} bytes, more than the {MAX_SCHEMA} allowed",
                schema.size()
            )));
        }
        Ok(schema)
    }

    /// As GET_SCHEMA answers it: without properties unless it needs them to be understood.
    pub fn to_wire(&self, id: &SchemaId) -> proto::Schema {
        proto::Schema {
            name: id.as_str().to_owned(),
            schema_data: self.data.clone(),
            r#type: self.kind as i32,
            properties: self
                .properties
                .iter()
                .map(|(key, value)| proto::KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
        }
    }

    /// Bytes that it takes in memory, about: a property without key or value takes some as well.
    pub fn size(&self) -> usize {
        let properties = self.properties.iter();
        let properties = properties.map(|pair| pair.0.len() + pair.1.len() + size_of_val(pair));
        self.data.len() + properties.sum::<usize>()
    }

    /// Is the definition one of its type?
    ///
    /// # Errors
    /// [`SchemaError::Invalid`], saying what is wrong with it.
    pub fn validate(&self) -> Result<(), SchemaError> {
        check::validate(self)
    }

    /// May this schema follow `old`, by themselves?
    ///
    /// # Errors
    /// [`SchemaError::Incompatible`], saying what does not fit.
    pub fn check(&self, old: &Schema, strategy: Strategy) -> Result<(), SchemaError> {
        check::compatible(old, self, strategy)
    }
}

/// Why a schema is refused. The protocol has one code for all, `IncompatibleSchema`; REST tells them apart.
#[derive(Debug, Clone, Eq, PartialEq, thiserror::Error)]
pub enum SchemaError {
    /// It is none of its type (REST: 422).
    #[error("{0}")]
    Invalid(String),
    /// It does not fit those before it (REST: 409).
    #[error("{0}")]
    Incompatible(String),
    /// The topic's schema has too many versions, or too large ones.
    #[error("{0}")]
    TooMany(String),
}

/// A version as the protocol has it: 8 bytes, big-endian.
pub fn version_bytes(version: u64) -> Bytes {
    Bytes::copy_from_slice(&version.to_be_bytes())
}

/// Reads a version: 8 bytes or more, of which the first 8 count (clients before 2.4 send 64). `None` for fewer.
pub fn read_version(bytes: &[u8]) -> Option<u64> {
    bytes
        .first_chunk::<8>()
        .map(|first| u64::from_be_bytes(*first))
}
