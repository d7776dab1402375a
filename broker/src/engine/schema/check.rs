//! Is a schema one of its type, and may it follow another? Rules by type, as Apache Pulsar has them (documentation, "Schema compatibility").

use std::cell::{Cell, OnceCell};

use bytes::Bytes;
use serde_json::Value;

use super::avro::{Avro, AvroError, MAX_PAIRS, can_read_within};
use super::{Schema, SchemaError, SchemaType, Strategy, native};

/// Key-value schemas within key-value schemas.
const MAX_NESTING: usize = 4;

fn invalid<T>(text: String) -> Result<T, SchemaError> {
    Err(SchemaError::Invalid(text))
}

/// Does the type have a definition in Avro's words?
pub(super) fn is_avro(kind: SchemaType) -> bool {
    matches!(
        kind,
        SchemaType::Avro | SchemaType::Json | SchemaType::Protobuf
    )
}

pub(super) fn validate(schema: &Schema) -> Result<(), SchemaError> {
    validate_within(schema, 0)
}

fn validate_within(schema: &Schema, depth: usize) -> Result<(), SchemaError> {
    let (kind, data) = (schema.kind, &schema.data);
    match kind {
        SchemaType::Avro | SchemaType::Json | SchemaType::Protobuf => match Avro::parse(data) {
            Ok(avro) if kind == SchemaType::Avro && avro.is_union() => {
                invalid("An AVRO schema that is a union is not supported".into())
            }
            Ok(_) => Ok(()),
            Err(_) if kind == SchemaType::Json && is_old_json(data) => Ok(()),
            Err(error) => invalid(format!(
                "Invalid definition of a schema of type {}: {error}",
                kind.name()
            )),
        },
        SchemaType::ProtobufNative => native::root(data).map(drop).or_else(|error| {
            invalid(format!(
                "Invalid definition of a PROTOBUF_NATIVE schema: {error}"
            ))
        }),
        SchemaType::KeyValue => {
            if depth >= MAX_NESTING {
                return invalid(format!(
                    "KEY_VALUE schemas in each other, deeper than {MAX_NESTING}"
                ));
            }
            let (key, value) = split(schema)?;
            validate_within(&key, depth + 1)?;
            validate_within(&value, depth + 1)
        }
        SchemaType::None | SchemaType::External => Ok(()),
        SchemaType::AutoConsume => invalid(format!(
            "Schema {} is a client-side schema type",
            kind.name()
        )),
        _ if data.is_empty() => Ok(()),
        // What the Python client sends.
        SchemaType::String if data == "null" => Ok(()),
        _ => invalid(format!(
            "A schema of type {} has no definition, but this one has {} bytes",
            kind.name(),
            data.len()
        )),
    }
}

/// The definitions of JSON schemas of clients before 2.1: a JSON schema document instead of Avro's.
fn is_old_json(data: &[u8]) -> bool {
    let document: Result<Value, _> = serde_json::from_slice(data);
    document.is_ok_and(|document| document.get("type").and_then(Value::as_str) == Some("object"))
}

/// A schema that is compared with many: it is read once.
pub(super) struct Compared<'a> {
    schema: &'a Schema,
    avro: OnceCell<Result<Avro, AvroError>>,
    canonical: OnceCell<String>,
    /// Pairs of types that comparing it may still look at: one budget for all it is compared with.
    left: Cell<usize>,
}

impl<'a> Compared<'a> {
    pub(super) fn new(schema: &'a Schema) -> Self {
        Compared {
            schema,
            avro: OnceCell::new(),
            canonical: OnceCell::new(),
            left: Cell::new(MAX_PAIRS),
        }
    }

    /// If it is in Avro's words.
    fn avro(&self) -> Option<&Result<Avro, AvroError>> {
        let parse = || Avro::parse(&self.schema.data);
        is_avro(self.schema.kind).then(|| self.avro.get_or_init(parse))
    }

    /// Are they one schema, as far as versions go? Definitions in Avro's words are compared by meaning, others by their bytes; properties never.
    pub(super) fn same(&self, old: &Schema) -> bool {
        if old.kind != self.schema.kind {
            return false;
        }
        if old.data == self.schema.data {
            return true;
        }
        let Some(canonical) = self.canonical() else {
            return false;
        };
        Avro::parse(&old.data).is_ok_and(|old| old.canonical() == *canonical)
    }

    /// Its meaning in Avro's words, if it has one.
    fn canonical(&self) -> Option<&String> {
        let avro = self.avro()?.as_ref().ok()?;
        Some(self.canonical.get_or_init(|| avro.canonical()))
    }

    /// The fingerprint of its meaning, if it is in Avro's words: CRC-64-AVRO of the canonical form (Avro specification, "Schema
    /// Fingerprints").
    pub(super) fn fingerprint(&self) -> Option<u64> {
        self.canonical().map(|text| crc64(text.as_bytes()))
    }

    /// May it follow `old`?
    ///
    /// # Errors
    /// [`SchemaError::Incompatible`] with the reason.
    pub(super) fn follows(&self, old: &Schema, strategy: Strategy) -> Result<(), SchemaError> {
        let mut left = self.left.get();
        let result = compatible_within(old, self.schema, self.avro(), strategy, 0, &mut left);
        self.left.set(left);
        result
    }
}

/// CRC-64-AVRO.
fn crc64(bytes: &[u8]) -> u64 {
    const EMPTY: u64 = 0xc15d_213a_a4d7_a795;
    bytes.iter().fold(EMPTY, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            (crc >> 1) ^ (EMPTY & (crc & 1).wrapping_neg())
        })
    })
}

pub(super) fn compatible(
    old: &Schema,
    new: &Schema,
    strategy: Strategy,
) -> Result<(), SchemaError> {
    compatible_within(old, new, None, strategy, 0, &mut MAX_PAIRS.clone())
}

fn compatible_within(
    old: &Schema,
    new: &Schema,
    parsed: Option<&Result<Avro, AvroError>>,
    strategy: Strategy,
    depth: usize,
    left: &mut usize,
) -> Result<(), SchemaError> {
    if strategy == Strategy::AlwaysCompatible {
        return Ok(());
    }
    let refuse = |text: String| Err(SchemaError::Incompatible(text));
    if old.kind != new.kind {
        return refuse(format!(
            "Incompatible schema: exists schema type {}, new schema type {}",
            old.kind.name(),
            new.kind.name()
        ));
    }
    if strategy == Strategy::AlwaysIncompatible {
        return refuse("Schema compatibility strategy is ALWAYS_INCOMPATIBLE".into());
    }
    match new.kind {
        SchemaType::Avro | SchemaType::Json => match parsed {
            Some(parsed) => avro(old, new, parsed, strategy, left),
            None => avro(old, new, &Avro::parse(&new.data), strategy, left),
        },
        SchemaType::ProtobufNative => match (native::root(&old.data), native::root(&new.data)) {
            (Ok(old), Ok(new)) if old == new => Ok(()),
            (Ok(old), Ok(new)) => refuse(format!(
                "Incompatible schema: the root message is {old} and may not become {new}, strategy {}",
                strategy.name()
            )),
            (Err(error), _) | (_, Err(error)) => {
                refuse(format!("A PROTOBUF_NATIVE schema cannot be read: {error}"))
            }
        },
        SchemaType::KeyValue if depth < MAX_NESTING => {
            let (old_key, old_value) = split(old)?;
            let (new_key, new_value) = split(new)?;
            compatible_within(&old_key, &new_key, None, strategy, depth + 1, left)?;
            compatible_within(&old_value, &new_value, None, strategy, depth + 1, left)
        }
        _ => Ok(()),
    }
}

fn avro(
    old: &Schema,
    new: &Schema,
    parsed: &Result<Avro, AvroError>,
    strategy: Strategy,
    left: &mut usize,
) -> Result<(), SchemaError> {
    let refuse = |text: String| Err(SchemaError::Incompatible(text));
    let was = Avro::parse(&old.data);
    let (was, is) = match (&was, parsed) {
        (Ok(was), Ok(is)) => (was, is),
        (Err(error), _) | (_, Err(error)) => {
            // A JSON schema may go from the old kind of definition to the new one and back. Two old ones say whose class they are of.
            let (was, is) = (old_json_id(&old.data), old_json_id(&new.data));
            return match (is_old_json(&old.data), is_old_json(&new.data)) {
                _ if new.kind != SchemaType::Json => {
                    refuse(format!("An AVRO schema cannot be read: {error}"))
                }
                (true, true) if was != is => refuse(format!(
                    "Incompatible schema: the JSON schema's id is {was:?} and may not become {is:?}"
                )),
                _ => Ok(()),
            };
        }
    };
    let failed = |reader: &str, writer: &str, error| {
        refuse(format!(
            "Error during schema compatibility check with strategy {}: the {reader} schema cannot read data of the {writer} one: {error}. \
             Existing schema: {}. New schema: {}",
            strategy.name(),
            beginning(&old.data),
            beginning(&new.data),
        ))
    };
    if strategy.new_reads_old()
        && let Err(error) = can_read_within(was, is, left)
    {
        return failed("new", "existing", error);
    }
    if strategy.old_reads_new()
        && let Err(error) = can_read_within(is, was, left)
    {
        return failed("existing", "new", error);
    }
    Ok(())
}

fn old_json_id(data: &[u8]) -> Option<String> {
    let document: Value = serde_json::from_slice(data).ok()?;
    Some(document.get("id")?.as_str()?.to_owned())
}

/// A definition in an error text: not longer than a person reads.
fn beginning(data: &[u8]) -> String {
    const LONGEST: usize = 1000;
    let text = String::from_utf8_lossy(data.get(..LONGEST.min(data.len())).unwrap_or_default());
    if data.len() > LONGEST {
        format!("{text}...")
    } else {
        text.into_owned()
    }
}

/// The two schemas in a key-value schema: `length, key, length, value`, lengths of 4 bytes, -1 for none; what they are is in its properties.
fn split(schema: &Schema) -> Result<(Schema, Schema), SchemaError> {
    let mut rest = schema.data.clone();
    let mut part = |role: &str| {
        let cut = || {
            SchemaError::Invalid(format!(
                "Invalid definition of a KEY_VALUE schema: its {role} is cut off"
            ))
        };
        let length = rest.first_chunk::<4>().ok_or_else(cut)?;
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        if rest.len() - 4 < length {
            return Err(cut());
        }
        let _ = rest.split_to(4);
        Ok(rest.split_to(length))
    };
    let (key, value) = (part("key")?, part("value")?);
    Ok((
        component(schema, "key", key)?,
        component(schema, "value", value)?,
    ))
}

fn component(schema: &Schema, role: &str, data: Bytes) -> Result<Schema, SchemaError> {
    let property = |name: &str| {
        let name = format!("{role}.schema.{name}");
        let mut all = schema.properties.iter();
        all.find(|(key, _)| *key == name)
            .map(|(_, value)| value.as_str())
    };
    // Without a type it is plain bytes.
    let kind = match property("type") {
        None => SchemaType::None,
        Some(name) => SchemaType::from_name(name).ok_or_else(|| {
            SchemaError::Invalid(format!(
                "Invalid definition of a KEY_VALUE schema: {role}.schema.type is {name:?}, which is no schema type"
            ))
        })?,
    };
    let properties: Value = property("properties")
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let properties = properties.as_object().into_iter().flatten();
    Ok(Schema {
        kind,
        data,
        properties: properties
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    })
}

#[cfg(test)]
fn same(old: &Schema, new: &Schema) -> bool {
    Compared::new(new).same(old)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
