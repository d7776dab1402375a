//! Values as text: what is typed and shown of messages that have a schema.

use super::args::{SchemaArguments, SchemaKind};
use crate::schema::{Avro, Json, Schema, SchemaInfo, Text};
use crate::{Error, Result};
use bytes::Bytes;
use serde_json::Value;

/// A schema whose values are bytes: those of the message, or of its JSON.
pub(super) enum AsBytes {
    Plain,
    Text,
    Json(Json<Value>),
    Avro(Box<Avro<Value>>),
}

impl AsBytes {
    pub(super) fn of(arguments: &SchemaArguments) -> Result<Self> {
        let definition = || match &arguments.schema_definition {
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                Error::Schema(format!("the definition in {}: {error}", path.display()))
            }),
            None => Err(Error::Config {
                setting: "schema-definition",
                value: "missing".to_owned(),
                reason: "a schema of kind json or avro has a definition: name its file".to_owned(),
            }),
        };
        Ok(match arguments.schema_type {
            SchemaKind::Bytes => Self::Plain,
            SchemaKind::String => Self::Text,
            SchemaKind::Json => Self::Json(Json::with_definition(&definition()?)?),
            SchemaKind::Avro => Self::Avro(Box::new(Avro::with_definition(&definition()?)?)),
        })
    }
}

fn parse(value: &Bytes) -> Result<Value> {
    serde_json::from_slice(value)
        .map_err(|error| Error::Schema(format!("the value is not JSON: {error}")))
}

impl Schema for AsBytes {
    type Value = Bytes;

    fn info(&self) -> Option<SchemaInfo> {
        match self {
            Self::Plain => None,
            Self::Text => Text.info(),
            Self::Json(schema) => schema.info(),
            Self::Avro(schema) => schema.info(),
        }
    }

    fn encode(&self, value: &Bytes) -> Result<Bytes> {
        match self {
            Self::Plain => Ok(value.clone()),
            Self::Text => Text.decode(value, None).and_then(|text| Text.encode(&text)),
            Self::Json(schema) => schema.encode(&parse(value)?),
            Self::Avro(schema) => schema.encode(&parse(value)?),
        }
    }

    fn decode(&self, payload: &Bytes, version: Option<&[u8]>) -> Result<Bytes> {
        match self {
            // Shown as it is, whatever it is: a tool is there to look at what went wrong.
            Self::Plain | Self::Text | Self::Json(_) => Ok(payload.clone()),
            Self::Avro(schema) => Ok(schema.decode(payload, version)?.to_string().into()),
        }
    }

    fn wants_version(&self, version: &[u8]) -> bool {
        matches!(self, Self::Avro(schema) if schema.wants_version(version))
    }

    fn learn(&self, version: &[u8], writer: &SchemaInfo) -> Result<()> {
        match self {
            Self::Avro(schema) => schema.learn(version, writer),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn avro_is_written_and_shown_as_json() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let definition = r#"{"name":"Order","type":"record","fields":[{"name":"id","type":["null","int"]},{"name":"item","type":["null","string"]}]}"#;
        std::fs::write(file.path(), definition).unwrap();
        let arguments = |kind| SchemaArguments {
            schema_type: kind,
            schema_definition: Some(file.path().to_owned()),
        };
        let avro = AsBytes::of(&arguments(SchemaKind::Avro)).unwrap();
        let value = Bytes::from_static(br#"{"id":7,"item":"nut"}"#);
        let encoded = avro.encode(&value).unwrap();
        assert_eq!(encoded, [2, 14, 2, 6, b'n', b'u', b't'].as_slice());
        assert_eq!(avro.decode(&encoded, None).unwrap(), value);
        avro.encode(&Bytes::from_static(b"nonsense")).unwrap_err();
        let json = AsBytes::of(&arguments(SchemaKind::Json)).unwrap();
        assert_eq!(json.encode(&value).unwrap(), value);
        json.encode(&Bytes::from_static(b"{")).unwrap_err();
        AsBytes::Text
            .encode(&Bytes::from_static(b"\xff"))
            .unwrap_err();
    }
}
