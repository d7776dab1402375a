//! Avro schemas: reading the JSON that defines one, telling whether two are the same, and whether data written with one can be read with
//! the other (Avro specification, "Schema Resolution").

mod parse;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

pub use self::resolve::can_read;

/// Types (named ones, and each mention of another) that one schema may hold.
pub(super) const MAX_NODES: usize = 20_000;

/// Why a text is no Avro schema, or two cannot be compared.
#[derive(Debug, Clone, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct AvroError(pub(super) String);

/// An Avro schema. Types are numbered, so that a type may contain itself.
#[derive(Debug, Clone)]
pub struct Avro {
    nodes: Vec<Node>,
    root: usize,
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    /// Attributes that Avro gives no meaning, and logical types.
    properties: Map<String, Value>,
}

#[derive(Debug, Clone, Eq, PartialEq)]
enum Kind {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Array(usize),
    Map(usize),
    Union(Vec<usize>),
    Record {
        name: String,
        aliases: Vec<String>,
        fields: Vec<Field>,
    },
    Enum {
        name: String,
        aliases: Vec<String>,
        symbols: Vec<String>,
    },
    Fixed {
        name: String,
        aliases: Vec<String>,
        size: u64,
    },
}

#[derive(Debug, Clone, Eq, PartialEq)]
struct Field {
    name: String,
    aliases: Vec<String>,
    schema: usize,
    default: Option<Value>,
    order: String,
    properties: Map<String, Value>,
}

impl Avro {
    /// Reads a definition.
    ///
    /// # Errors
    /// Text that is no JSON or no Avro definition: unknown types, missing attributes, names that are used twice or never defined, a union in
    /// a union, or more than 20,000 types.
    pub fn parse(text: &[u8]) -> Result<Avro, AvroError> {
        parse::parse(text)
    }

    /// Is it a union? (Messages of a topic are not unions.)
    pub fn is_union(&self) -> bool {
        matches!(self.kind(self.root), Kind::Union(_))
    }

    fn kind(&self, node: usize) -> &Kind {
        // Numbers come from the parser; one beyond the end does not exist.
        self.nodes.get(node).map_or(&Kind::Null, |node| &node.kind)
    }

    /// The definition as far as it makes a difference: equal for schemas that Avro holds equal. Documentation and aliases are left out.
    pub fn canonical(&self) -> Value {
        self.write(self.root, &mut BTreeSet::new())
    }

    fn write(&self, node: usize, defined: &mut BTreeSet<usize>) -> Value {
        let Some(Node { kind, properties }) = self.nodes.get(node) else {
            return Value::Null;
        };
        let (mut object, again) = match kind {
            Kind::Union(branches) => {
                return branches
                    .iter()
                    .map(|branch| self.write(*branch, defined))
                    .collect();
            }
            Kind::Array(items) => (
                json!({"type": "array", "items": self.write(*items, defined)}),
                None,
            ),
            Kind::Map(values) => (
                json!({"type": "map", "values": self.write(*values, defined)}),
                None,
            ),
            Kind::Record { name, .. } | Kind::Enum { name, .. } | Kind::Fixed { name, .. }
                if !defined.insert(node) =>
            {
                (Value::Null, Some(name))
            }
            Kind::Record { name, fields, .. } => {
                let fields: Vec<Value> = fields
                    .iter()
                    .map(|field| {
                        json!({
                            "name": field.name,
                            "type": self.write(field.schema, defined),
                            "default": field.default.as_ref().map(|default| json!([default])),
                            "order": field.order,
                            "properties": field.properties,
                        })
                    })
                    .collect();
                (
                    json!({"type": "record", "name": name, "fields": fields}),
                    None,
                )
            }
            Kind::Enum { name, symbols, .. } => (
                json!({"type": "enum", "name": name, "symbols": symbols}),
                None,
            ),
            Kind::Fixed { name, size, .. } => {
                (json!({"type": "fixed", "name": name, "size": size}), None)
            }
            primitive => (json!({"type": primitive.name()}), None),
        };
        if let Some(name) = again {
            return Value::String(name.clone());
        }
        if !properties.is_empty()
            && let Some(object) = object.as_object_mut()
        {
            object.insert("properties".into(), Value::Object(properties.clone()));
        }
        object
    }
}

impl Kind {
    /// The type's name in a definition.
    fn name(&self) -> &'static str {
        match self {
            Kind::Null => "null",
            Kind::Boolean => "boolean",
            Kind::Int => "int",
            Kind::Long => "long",
            Kind::Float => "float",
            Kind::Double => "double",
            Kind::Bytes => "bytes",
            Kind::String => "string",
            Kind::Array(_) => "array",
            Kind::Map(_) => "map",
            Kind::Union(_) => "union",
            Kind::Record { .. } => "record",
            Kind::Enum { .. } => "enum",
            Kind::Fixed { .. } => "fixed",
        }
    }

    fn primitive(name: &str) -> Option<Kind> {
        Some(match name {
            "null" => Kind::Null,
            "boolean" => Kind::Boolean,
            "int" => Kind::Int,
            "long" => Kind::Long,
            "float" => Kind::Float,
            "double" => Kind::Double,
            "bytes" => Kind::Bytes,
            "string" => Kind::String,
            _ => return None,
        })
    }
}
