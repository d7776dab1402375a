//! Reading the recordings: one JSON object a line, one line a frame. `tests/data/captured/README.md` describes them.

use std::fs;
use std::path::PathBuf;

use prost::Message as _;
use serde_json::Value;
use vela_broker::store::log::Position;
use vela_codec::entry::Entry;
use vela_codec::proto::base_command::Type;
use vela_codec::proto::{BaseCommand, MessageIdData, MessageMetadata};
use vela_codec::{Frame, decode_command};

/// Who sent a frame.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Side {
    Client,
    Broker,
}

/// One line.
#[derive(Debug)]
pub struct Line {
    /// Counted from 1, as editors do.
    pub number: usize,
    /// The connection, counted from 0 in order of opening.
    pub conn: usize,
    pub from: Side,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    /// A frame, and when it was seen: milliseconds since the first one.
    Frame(Box<Wire>, u64),
    /// That side ended its half of the connection.
    Close,
}

/// One frame, taken apart.
#[derive(Clone, Debug)]
pub struct Wire {
    pub command: BaseCommand,
    /// What follows the command of a SEND or MESSAGE.
    pub content: Option<Content>,
    /// The whole frame, as it was on the wire; empty where only its parts are known.
    pub frame: Vec<u8>,
}

/// The message in a SEND or MESSAGE.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub metadata: MessageMetadata,
    pub payload: Vec<u8>,
}

impl Wire {
    /// Takes a whole frame apart and insists on what a decoder forgives: no fields that the schema does not know.
    pub fn parse(bytes: &[u8]) -> Wire {
        let (size, body) = bytes.split_first_chunk().expect("a size field");
        assert_eq!(
            u32::from_be_bytes(*size) as usize,
            body.len(),
            "total_size of a frame"
        );
        let frame = Frame::from_body(bytes::Bytes::copy_from_slice(body)).expect("a whole frame");
        let command = decode_command(frame.command()).expect("a command with its required fields");
        assert_eq!(
            command.encoded_len(),
            frame.command().len(),
            "fields that the schema does not know: {command:?}"
        );
        Wire {
            frame: bytes.to_vec(),
            ..Wire::of(command, frame.rest())
        }
    }

    /// A command and what follows it: nothing, or an entry with a right checksum.
    pub fn of(command: BaseCommand, rest: &[u8]) -> Wire {
        let content = (!rest.is_empty()).then(|| {
            let entry = Entry::parse(rest).expect("an entry behind the command");
            assert!(entry.checksum.is_some(), "an entry without a checksum");
            entry.verify_checksum().expect("the checksum matches");
            Content {
                metadata: entry.decode_metadata().expect("message metadata"),
                payload: entry.payload.to_vec(),
            }
        });
        Wire {
            command,
            content,
            frame: Vec::new(),
        }
    }

    pub fn kind(&self) -> Type {
        Type::try_from(self.command.r#type).expect("a known command type")
    }
}

/// Builds a frame; the inverse of [`Wire::parse`].
pub fn frame(command: &BaseCommand, content: Option<&Content>) -> Vec<u8> {
    let mut rest = bytes::BytesMut::new();
    if let Some(content) = content {
        vela_codec::entry::write(&content.metadata, &content.payload, &mut rest);
    }
    let mut out = bytes::BytesMut::new();
    vela_codec::encode::command_with_rest(command, rest.len(), &mut out);
    out.extend_from_slice(&rest);
    out.to_vec()
}

/// The position in a message id: signed numbers in unsigned fields.
pub fn position(id: &MessageIdData) -> Position {
    Position::new(id.ledger_id as i64, id.entry_id as i64)
}

pub fn directory() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/data/captured"
    ))
}

/// The names of the recordings, without `.jsonl`.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory())
        .expect("the directory of the recordings")
        .map(|entry| entry.expect("an entry of it").path())
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Reads one recording.
pub fn read(name: &str) -> Vec<Line> {
    let path = directory().join(format!("{name}.jsonl"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .enumerate()
        .map(|(index, line)| parse(index + 1, line))
        .collect()
}

fn parse(number: usize, text: &str) -> Line {
    let value: Value = serde_json::from_str(text).expect("a JSON object a line");
    let from = match value["dir"].as_str() {
        Some("c>s") => Side::Client,
        Some("s>c") => Side::Broker,
        other => panic!("line {number}: direction {other:?}"),
    };
    let kind = value["type"].as_str().expect("a type");
    let what = if kind == "TCP_CLOSE" {
        What::Close
    } else {
        let wire = Wire::parse(&hex(value["hex"].as_str().expect("the bytes of the frame")));
        assert_eq!(
            wire.kind().as_str_name(),
            kind,
            "line {number}: the frame is not what the line says"
        );
        What::Frame(Box::new(wire), value["ms"].as_u64().expect("a time"))
    };
    Line {
        number,
        conn: value["conn"].as_u64().expect("a connection") as usize,
        from,
        what,
    }
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "half a byte");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits"))
        .collect()
}
