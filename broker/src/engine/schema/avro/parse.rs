//! Reading Avro definitions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Avro, AvroError, Field, Kind, MAX_NAME, MAX_NAMES, MAX_NODES, Node};

/// Attributes of a type that have a meaning of their own.
const TYPE_WORDS: [&str; 11] = [
    "type",
    "name",
    "namespace",
    "doc",
    "aliases",
    "fields",
    "symbols",
    "size",
    "items",
    "values",
    "default",
];
/// The same for a field.
const FIELD_WORDS: [&str; 6] = ["name", "type", "doc", "aliases", "default", "order"];

struct Parser {
    nodes: Vec<Node>,
    names: BTreeMap<String, usize>,
    /// Mentions of names that were not defined yet: the namespace they were made in.
    open: Vec<(usize, String, String)>,
    /// Bytes of full names so far.
    name_bytes: usize,
}

fn bad<T>(text: impl Into<String>) -> Result<T, AvroError> {
    Err(AvroError(text.into()))
}

/// The beginning of a value, for error texts.
fn short(value: &Value) -> String {
    value.to_string().chars().take(120).collect()
}

pub(super) fn parse(text: &[u8]) -> Result<Avro, AvroError> {
    let value: Value =
        serde_json::from_slice(text).map_err(|e| AvroError(format!("no JSON: {e}")))?;
    let mut parser = Parser {
        nodes: Vec::new(),
        names: BTreeMap::new(),
        open: Vec::new(),
        name_bytes: 0,
    };
    let root = parser.schema(&value, "")?;
    let forwards = parser.close()?;
    let follow = |node: usize| forwards.get(&node).copied().unwrap_or(node);
    for node in &mut parser.nodes {
        match &mut node.kind {
            Kind::Array(node) | Kind::Map(node) => *node = follow(*node),
            Kind::Union(branches) => branches.iter_mut().for_each(|node| *node = follow(*node)),
            Kind::Record { fields, .. } => fields
                .iter_mut()
                .for_each(|field| field.schema = follow(field.schema)),
            _ => {}
        }
    }
    let avro = Avro {
        nodes: parser.nodes,
        root: follow(root),
    };
    check_unions(&avro)?;
    Ok(avro)
}

/// A union holds each type once, named types once by name, and no union.
fn check_unions(avro: &Avro) -> Result<(), AvroError> {
    for node in &avro.nodes {
        let Kind::Union(branches) = &node.kind else {
            continue;
        };
        let mut seen = BTreeSet::new();
        for branch in branches {
            let kind = avro.kind(*branch);
            let name = match kind {
                Kind::Union(_) => return bad("a union directly in a union"),
                Kind::Record { name, .. } | Kind::Enum { name, .. } | Kind::Fixed { name, .. } => {
                    name.as_str()
                }
                other => other.name(),
            };
            if !seen.insert(name) {
                return bad(format!("a union holds {name} twice"));
            }
        }
    }
    Ok(())
}

impl Parser {
    fn push(&mut self, kind: Kind, properties: Map<String, Value>) -> Result<usize, AvroError> {
        if self.nodes.len() >= MAX_NODES {
            return bad(format!("more than {MAX_NODES} types"));
        }
        self.nodes.push(Node { kind, properties });
        Ok(self.nodes.len() - 1)
    }

    /// Mentions that came before their definitions: which node each stands for.
    fn close(&mut self) -> Result<BTreeMap<usize, usize>, AvroError> {
        let mut forwards = BTreeMap::new();
        for (node, name, namespace) in std::mem::take(&mut self.open) {
            match self.find(&name, &namespace) {
                Some(defined) => forwards.insert(node, defined),
                None => return bad(format!("the type \"{name}\" is not defined")),
            };
        }
        Ok(forwards)
    }

    fn find(&self, name: &str, namespace: &str) -> Option<usize> {
        let near = full_name(name, namespace);
        self.names
            .get(&near)
            .or_else(|| self.names.get(name))
            .copied()
    }

    /// Counts a full name: namespaces are inherited, so a short text may mean long names, many times.
    fn take_name(&mut self, bytes: usize) -> Result<(), AvroError> {
        self.name_bytes = self.name_bytes.saturating_add(bytes);
        if bytes > MAX_NAME {
            return bad(format!(
                "a name of {bytes} bytes, with its namespace; the limit is {MAX_NAME}"
            ));
        }
        if self.name_bytes > MAX_NAMES {
            return bad(format!(
                "names of more than {MAX_NAMES} bytes, with their namespaces"
            ));
        }
        Ok(())
    }

    /// Full name, its namespace, and aliases with their namespaces.
    fn names(
        &mut self,
        object: &Map<String, Value>,
        namespace: &str,
    ) -> Result<(String, String, Vec<String>), AvroError> {
        let Some(name) = object.get("name").and_then(Value::as_str) else {
            return bad(format!(
                "no name: {}",
                short(&Value::Object(object.clone()))
            ));
        };
        let own = object.get("namespace").and_then(Value::as_str);
        self.take_name(name.len() + own.unwrap_or(namespace).len())?;
        let full = full_name(name, own.unwrap_or(namespace));
        let (space, local) = full.rsplit_once('.').unwrap_or(("", &full));
        check_name(local)?;
        if Kind::primitive(&full).is_some() {
            return bad(format!("{full} is a type of Avro's own"));
        }
        let aliases = texts(object.get("aliases"));
        for alias in &aliases {
            self.take_name(alias.len() + space.len())?;
        }
        let aliases = aliases
            .iter()
            .map(|alias| full_name(alias, space))
            .collect();
        let space = space.to_owned();
        Ok((full, space, aliases))
    }

    // Bounded by the depth that the JSON parser takes, 128.
    fn schema(&mut self, value: &Value, namespace: &str) -> Result<usize, AvroError> {
        match value {
            Value::String(name) => self.mention(name, namespace),
            Value::Array(branches) => {
                let branches = branches
                    .iter()
                    .map(|branch| self.schema(branch, namespace))
                    .collect::<Result<Vec<_>, _>>()?;
                self.push(Kind::Union(branches), Map::new())
            }
            Value::Object(object) => self.object(object, namespace),
            other => bad(format!("{} is no schema", short(other))),
        }
    }

    fn mention(&mut self, name: &str, namespace: &str) -> Result<usize, AvroError> {
        if let Some(kind) = Kind::primitive(name) {
            return self.push(kind, Map::new());
        }
        self.take_name(name.len() + namespace.len())?;
        if let Some(node) = self.find(name, namespace) {
            return Ok(node);
        }
        let node = self.push(Kind::Null, Map::new())?;
        self.open
            .push((node, name.to_owned(), namespace.to_owned()));
        Ok(node)
    }

    fn object(&mut self, object: &Map<String, Value>, namespace: &str) -> Result<usize, AvroError> {
        let properties = others(object, &TYPE_WORDS);
        let Some(kind) = object.get("type") else {
            return bad(format!(
                "no type: {}",
                short(&Value::Object(object.clone()))
            ));
        };
        let Value::String(kind) = kind else {
            // A type within a type's attribute: the inner one counts.
            return self.schema(kind, namespace);
        };
        match kind.as_str() {
            "record" | "error" => self.record(object, properties, namespace),
            "enum" => {
                let (name, _, aliases) = self.names(object, namespace)?;
                let mut symbols: Vec<String> = Vec::new();
                let mut seen = BTreeSet::new();
                for symbol in list(object, "symbols", &name)? {
                    match symbol.as_str() {
                        Some(symbol) if !seen.insert(symbol) => {
                            return bad(format!("enum {name} has the symbol {symbol} twice"));
                        }
                        Some(symbol) if symbols.len() < MAX_NODES => symbols.push(symbol.into()),
                        _ => return bad(format!("enum {name} has a symbol {}", short(symbol))),
                    }
                }
                let kind = Kind::Enum {
                    name: name.clone(),
                    aliases,
                    symbols,
                };
                self.define(name, kind, properties)
            }
            "fixed" => {
                let (name, _, aliases) = self.names(object, namespace)?;
                let Some(size) = object.get("size").and_then(Value::as_u64) else {
                    return bad(format!("fixed {name} has no size"));
                };
                let kind = Kind::Fixed {
                    name: name.clone(),
                    aliases,
                    size,
                };
                self.define(name, kind, properties)
            }
            "array" => match object.get("items") {
                Some(items) => {
                    let items = self.schema(items, namespace)?;
                    self.push(Kind::Array(items), properties)
                }
                None => bad("an array has no items"),
            },
            "map" => match object.get("values") {
                Some(values) => {
                    let values = self.schema(values, namespace)?;
                    self.push(Kind::Map(values), properties)
                }
                None => bad("a map has no values"),
            },
            name => match Kind::primitive(name) {
                Some(kind) => self.push(kind, properties),
                None => self.mention(name, namespace),
            },
        }
    }

    fn define(
        &mut self,
        name: String,
        kind: Kind,
        properties: Map<String, Value>,
    ) -> Result<usize, AvroError> {
        let node = self.push(kind, properties)?;
        match self.names.insert(name.clone(), node) {
            None => Ok(node),
            Some(_) => bad(format!("{name} is defined twice")),
        }
    }

    fn record(
        &mut self,
        object: &Map<String, Value>,
        properties: Map<String, Value>,
        namespace: &str,
    ) -> Result<usize, AvroError> {
        let (name, inner, aliases) = self.names(object, namespace)?;
        let kind = Kind::Record {
            name: name.clone(),
            aliases,
            fields: Vec::new(),
        };
        let node = self.define(name.clone(), kind, properties)?;
        let mut fields = Vec::new();
        let mut seen = BTreeSet::new();
        for field in list(object, "fields", &name)? {
            let Some(field) = field.as_object() else {
                return bad(format!("record {name} has a field {}", short(field)));
            };
            let Some(field_name) = field.get("name").and_then(Value::as_str) else {
                return bad(format!("record {name} has a field without a name"));
            };
            check_name(field_name)?;
            if !seen.insert(field_name) {
                return bad(format!("record {name} has the field {field_name} twice"));
            }
            let Some(schema) = field.get("type") else {
                return bad(format!("field {field_name} of {name} has no type"));
            };
            fields.push(Field {
                name: field_name.to_owned(),
                aliases: texts(field.get("aliases")),
                schema: self.schema(schema, &inner)?,
                default: field.get("default").cloned(),
                order: field
                    .get("order")
                    .and_then(Value::as_str)
                    .unwrap_or("ascending")
                    .to_ascii_lowercase(),
                properties: others(field, &FIELD_WORDS),
            });
        }
        if let Some(Kind::Record { fields: slot, .. }) =
            self.nodes.get_mut(node).map(|node| &mut node.kind)
        {
            *slot = fields;
        }
        Ok(node)
    }
}

fn others(object: &Map<String, Value>, known: &[&str]) -> Map<String, Value> {
    let own = object
        .iter()
        .filter(|(key, _)| !known.contains(&key.as_str()));
    own.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let values = value.and_then(Value::as_array);
    let texts = values.into_iter().flatten().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

fn list<'a>(
    object: &'a Map<String, Value>,
    attribute: &str,
    name: &str,
) -> Result<&'a Vec<Value>, AvroError> {
    match object.get(attribute).and_then(Value::as_array) {
        Some(list) => Ok(list),
        None => bad(format!("{name} has no {attribute}")),
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}.{name}")
    }
}

fn check_name(name: &str) -> Result<(), AvroError> {
    let mut chars = name.chars();
    let fine = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && chars.all(|c| c.is_alphanumeric() || c == '_');
    if fine {
        Ok(())
    } else {
        bad(format!(
            "\"{}\" is no name: names hold letters, digits and _",
            name.chars().take(120).collect::<String>()
        ))
    }
}
