//! Messages on standard output.

use super::args::Output;
use crate::message::Message;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Writes one message.
pub(super) fn show(
    out: &mut impl Write,
    message: &Message<Bytes>,
    output: Output,
    as_json: bool,
) -> io::Result<()> {
    let nothing = Bytes::new();
    let (value, fault) = match message.value() {
        _ if message.is_null() => (&nothing, None),
        Ok(value) => (value, None),
        Err(error) => (message.payload(), Some(error.to_string())),
    };
    if as_json {
        return writeln!(out, "{}", to_json(message, value, fault));
    }
    match output {
        Output::Raw => out.write_all(value),
        Output::Hex => {
            head(out, message, fault.as_deref())?;
            writeln!(out, "{}", hex(value))
        }
        Output::Text => {
            head(out, message, fault.as_deref())?;
            writeln!(out, "{}", String::from_utf8_lossy(value))
        }
    }
}

/// `key:[…], properties:[…], content:` as `pulsar-client` writes it.
fn head(out: &mut impl Write, message: &Message<Bytes>, fault: Option<&str>) -> io::Result<()> {
    write!(out, "id:[{}], ", message.id())?;
    if let Some(key) = message.key() {
        write!(out, "key:[{key}], ")?;
    }
    let properties: Vec<_> = message
        .properties()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !properties.is_empty() {
        write!(out, "properties:[{}], ", properties.join(", "))?;
    }
    if let Some(fault) = fault {
        write!(out, "undecodable ({fault}), ")?;
    }
    write!(out, "content:")
}

fn to_json(message: &Message<Bytes>, value: &Bytes, fault: Option<String>) -> serde_json::Value {
    let raw = message.raw();
    let properties: serde_json::Map<_, _> = message
        .properties()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let mut object = json!({
        "topic": message.topic(),
        "message_id": message.id().to_string(),
        "key": message.key(),
        "properties": properties,
        "publish_time": raw.publish_time(),
        "event_time": raw.event_time(),
        "sequence_id": message.sequence_id(),
        "producer_name": message.producer_name(),
        "redelivery_count": message.redelivery_count(),
    });
    let (name, shown) = if message.is_null() {
        ("value", serde_json::Value::Null)
    } else {
        match std::str::from_utf8(value) {
            Ok(text) => ("value", text.into()),
            Err(_) => ("value_base64", BASE64.encode(value).into()),
        }
    };
    if let Some(object) = object.as_object_mut() {
        object.insert(name.to_owned(), shown);
        if let Some(fault) = fault {
            object.insert("undecodable".to_owned(), fault.into());
        }
    }
    object
}

fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use super::*;
    use crate::core::consumer::ReceivedMessage;
    use crate::{MessageId, schema};
    use std::sync::Arc;
    use vela_proto::{KeyValue, MessageMetadata};

    fn message(payload: &'static [u8]) -> Message<Bytes> {
        let raw = ReceivedMessage {
            topic: "t".into(),
            id: MessageId::entry(1, 2),
            payload: Bytes::from_static(payload),
            metadata: Arc::new(MessageMetadata {
                producer_name: "p".into(),
                partition_key: Some("k".into()),
                properties: vec![KeyValue {
                    key: "a".into(),
                    value: "b".into(),
                }],
                ..MessageMetadata::default()
            }),
            single: None,
            redelivery_count: 0,
            encrypted: false,
        };
        Message::new(raw, Arc::new(schema::Bytes))
    }

    fn shown(payload: &'static [u8], output: Output, json: bool) -> String {
        let mut out = Vec::new();
        show(&mut out, &message(payload), output, json).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn in_each_form() {
        let head = "id:[1:2:-1:-1], key:[k], properties:[a=b], content:";
        assert_eq!(shown(b"text", Output::Text, false), format!("{head}text\n"));
        assert_eq!(
            shown(b"\x00\xff", Output::Hex, false),
            format!("{head}00ff\n")
        );
        assert_eq!(shown(b"text", Output::Raw, false), "text");
        let object: serde_json::Value =
            serde_json::from_str(&shown(b"\xff", Output::Text, true)).unwrap();
        assert_eq!(object["value_base64"], "/w==");
        assert_eq!(object["properties"]["a"], "b");
        let object: serde_json::Value =
            serde_json::from_str(&shown(b"text", Output::Hex, true)).unwrap();
        assert_eq!(
            (&object["value"], &object["key"]),
            (&"text".into(), &"k".into())
        );
    }
}
