//! Avro schemas: reading the JSON that defines one, telling whether two are the same, and whether data written with one can be read with
//! the other (Avro specification, "Schema Resolution").

mod parse;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

#[cfg(test)]
pub use self::resolve::can_read;
pub use self::resolve::{MAX_PAIRS, can_read_within};

/// Types (named ones, and each mention of another) that one schema may hold.
pub(super) const MAX_NODES: usize = 20_000;
/// Bytes of a name, its namespace included.
const MAX_NAME: usize = 4096;
/// Bytes of all full names of one schema.
const MAX_NAMES: usize = 8 << 20;

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
    ///
    /// Types that are mentioned before they are defined may stand in each other far deeper than the text does, so what is left to write is kept
    /// in a list and not on the stack.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        let mut defined = BTreeSet::new();
        let mut left = vec![Part::Node(self.root)];
        while let Some(part) = left.pop() {
            let (node, properties) = match part {
                Part::Text(part) => {
                    text.push_str(part);
                    continue;
                }
                Part::Field(field) => {
                    let default = field.default.as_ref().map(|default| json!([default]));
                    let about = json!([field.name, default, field.order, field.properties]);
                    text.push_str(&about.to_string());
                    continue;
                }
                Part::Properties(properties) => {
                    text.push_str(&json!(properties).to_string());
                    continue;
                }
                Part::Node(node) => match self.nodes.get(node) {
                    Some(Node { kind, properties }) => ((node, kind), properties),
                    None => continue,
                },
            };
            let (node, kind) = node;
            if let Kind::Record { name, .. } | Kind::Enum { name, .. } | Kind::Fixed { name, .. } =
                kind
                && !defined.insert(node)
            {
                text.push_str(&json!(name).to_string());
                continue;
            }
            let first = left.len();
            // In the order they are written.
            match kind {
                Kind::Union(branches) => {
                    left.push(Part::Text("["));
                    for branch in branches {
                        left.extend([Part::Node(*branch), Part::Text(",")]);
                    }
                    left.push(Part::Text("]"));
                }
                Kind::Array(inner) | Kind::Map(inner) => {
                    left.extend([
                        Part::Text("{"),
                        Part::Text(kind.name()),
                        Part::Text(" "),
                        Part::Node(*inner),
                        Part::Properties(properties),
                        Part::Text("}"),
                    ]);
                }
                Kind::Record { name, fields, .. } => {
                    text.push_str(&json!({"record": name}).to_string());
                    left.push(Part::Text("{"));
                    for field in fields {
                        left.extend([
                            Part::Field(field),
                            Part::Text(":"),
                            Part::Node(field.schema),
                        ]);
                    }
                    left.extend([Part::Properties(properties), Part::Text("}")]);
                }
                Kind::Enum { name, symbols, .. } => {
                    text.push_str(&json!({"enum": name, "symbols": symbols}).to_string());
                    left.push(Part::Properties(properties));
                }
                Kind::Fixed { name, size, .. } => {
                    text.push_str(&json!({"fixed": name, "size": size}).to_string());
                    left.push(Part::Properties(properties));
                }
                primitive => left.extend([
                    Part::Text("{"),
                    Part::Text(primitive.name()),
                    Part::Properties(properties),
                    Part::Text("}"),
                ]),
            }
            if let Some(new) = left.get_mut(first..) {
                new.reverse();
            }
        }
        text
    }
}

/// What is left to write of a canonical form.
enum Part<'a> {
    Text(&'static str),
    Field(&'a Field),
    Properties(&'a Map<String, Value>),
    Node(usize),
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
