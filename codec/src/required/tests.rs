#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeSet;

use bytes::BytesMut;
use prost::Message as _;
use vela_proto::base_command::Type;
use vela_proto::tables::{self, Kind, Message};
use vela_proto::{BaseCommand, ProducerAccessMode};

use super::{check, decode_command};
use crate::testing::{decode, frame, frame_bytes, frames_dir};
use crate::{Malformed, encode, hot};

fn missing(message: &'static str, field: &'static str) -> Malformed {
    Malformed::Missing { message, field }
}

const BAD_COMMANDS: [(&str, Malformed); 19] = [
    ("frame-truncated-varint", Malformed::Truncated),
    ("frame-long-varint", Malformed::Varint),
    (
        "frame-empty-command",
        Malformed::Missing {
            message: "BaseCommand",
            field: "type",
        },
    ),
    (
        "frame-unknown-type",
        Malformed::UnknownEnum {
            message: "BaseCommand",
            field: "type",
            value: 99,
        },
    ),
    (
        "frame-type-unused",
        Malformed::UnknownEnum {
            message: "BaseCommand",
            field: "type",
            value: 0,
        },
    ),
    (
        "frame-no-type",
        Malformed::Missing {
            message: "BaseCommand",
            field: "type",
        },
    ),
    ("frame-no-body", Malformed::MissingBody(18)),
    ("frame-other-body", Malformed::MissingBody(19)),
    (
        "frame-missing-required",
        Malformed::Missing {
            message: "CommandSend",
            field: "sequence_id",
        },
    ),
    (
        "frame-missing-required-nested",
        Malformed::Missing {
            message: "MessageIdData",
            field: "entryId",
        },
    ),
    (
        "frame-wrong-wire-type",
        Malformed::WireType {
            message: "CommandSend",
            field: "producer_id",
        },
    ),
    (
        "frame-bad-utf8",
        Malformed::Utf8 {
            message: "CommandConnect",
            field: "client_version",
        },
    ),
    (
        "frame-unknown-required-enum",
        Malformed::UnknownEnum {
            message: "CommandSubscribe",
            field: "subType",
            value: 9,
        },
    ),
    ("frame-body-cut", Malformed::Truncated),
    ("frame-group-open", Malformed::Group),
    ("frame-group-stray-end", Malformed::Group),
    ("frame-field-zero", Malformed::Key),
    ("frame-wire-type-seven", Malformed::Key),
    ("frame-nested-too-deep", Malformed::Nesting),
];

#[test]
fn bad_commands() {
    for (name, error) in BAD_COMMANDS {
        let frame = frame(name);
        assert_eq!(
            decode_command(frame.command()).unwrap_err(),
            error,
            "{name}"
        );
        // The reader in place refuses it too, for the same reason.
        match hot::command_type(frame.command()) {
            Ok(Type::Send) => assert_eq!(
                hot::SendView::parse(frame.command()).unwrap_err(),
                error,
                "{name}"
            ),
            Ok(_) => {}
            Err(answer) => assert_eq!(answer, error, "{name}"),
        }
    }
}

#[test]
fn odd_commands_that_are_accepted() {
    let command = decode_command(frame("odd-unknown-optional-enum").command()).unwrap();
    assert_eq!(
        command.producer.unwrap().producer_access_mode(),
        ProducerAccessMode::Shared
    );
    assert!(
        decode_command(frame("odd-unknown-fields").command())
            .unwrap()
            .ping
            .is_some()
    );
    let padded = frame("odd-padded-ping");
    assert!(decode_command(padded.command()).unwrap().ping.is_some());
    assert_eq!(padded.rest().len(), 32);
    let send = decode_command(frame("odd-body-first").command())
        .unwrap()
        .send
        .unwrap();
    assert_eq!((send.producer_id, send.sequence_id), (1, 0));
    let ack = decode_command(frame("odd-packed-ack-set").command())
        .unwrap()
        .ack
        .unwrap();
    assert_eq!(ack.message_id[0].ack_set, [1, -1]);
}

/// A frame file that no test names proves nothing.
#[test]
fn every_frame_file_is_asserted() {
    const ELSEWHERE: [&str; 27] = [
        // decode/tests.rs
        "frame-oversize",
        "frame-oversize-most",
        "frame-http",
        "frame-total-size-zero",
        "frame-total-size-two",
        "frame-total-size-four",
        "frame-cmd-size-beyond",
        "frame-cmd-size-beyond-early",
        // encode/tests.rs
        "golden-ping",
        "golden-pong",
        "golden-connect",
        "golden-connected",
        "golden-success",
        "golden-close-consumer",
        "golden-send",
        "golden-send-batch",
        "golden-message",
        // here
        "odd-unknown-optional-enum",
        "odd-unknown-fields",
        "odd-padded-ping",
        "odd-body-first",
        "odd-packed-ack-set",
        // entry/tests.rs
        "entry-empty",
        "entry-one-byte",
        "entry-checksum-cut",
        "entry-checksum-mismatch",
        "entry-metadata-beyond",
    ];
    let named: BTreeSet<String> = ELSEWHERE
        .into_iter()
        .chain(BAD_COMMANDS.map(|(name, _)| name))
        .map(str::to_owned)
        .collect();
    let files: BTreeSet<String> = std::fs::read_dir(frames_dir())
        .unwrap()
        .filter_map(|file| {
            Some(
                file.unwrap()
                    .file_name()
                    .to_str()?
                    .strip_suffix(".hex")?
                    .to_owned(),
            )
        })
        .collect();
    assert_eq!(files, named);
}

#[test]
fn recorded_frames_are_read_and_written_unchanged() {
    let text = std::fs::read_to_string(frames_dir().join("recorded.txt")).unwrap();
    let mut frames = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes = crate::testing::hex(hex);
        let frame = decode(&bytes).unwrap().unwrap();
        let command = decode_command(frame.command()).unwrap();
        assert_eq!(command.r#type().as_str_name(), name);
        assert_eq!(
            hot::command_type(frame.command()).unwrap(),
            command.r#type()
        );
        let mut out = BytesMut::new();
        encode::command_with_rest(&command, frame.rest().len(), &mut out);
        out.extend_from_slice(frame.rest());
        assert_eq!(out, bytes, "{name}");
        frames += 1;
    }
    assert!(frames > 50);
}

/// Every message of the schema reachable from a command or stored on its own.
fn all_messages() -> Vec<&'static Message> {
    let mut found: Vec<&'static Message> = vec![
        &tables::BASE_COMMAND,
        &tables::MESSAGE_METADATA,
        &tables::SINGLE_MESSAGE_METADATA,
    ];
    let mut at = 0;
    while at < found.len() {
        for field in found[at].fields {
            if let Kind::Message(nested) = field.kind
                && !found.iter().any(|known| known.name == nested.name)
            {
                found.push(nested);
            }
        }
        at += 1;
    }
    found
}

/// The required fields of a message, each encoded alone, with just the required fields inside.
fn minimal(message: &'static Message) -> Vec<(&'static str, Vec<u8>)> {
    message
        .fields
        .iter()
        .filter(|field| field.required != 0)
        .map(|field| {
            let mut out = BytesMut::new();
            let value = match &field.kind {
                Kind::Varint | Kind::Enum(_) => {
                    encode::varint(&mut out, u64::from(field.number << 3));
                    // 2 is the lowest command type, and no other enum lacks 0.
                    encode::varint(&mut out, if message.name == "BaseCommand" { 2 } else { 0 });
                    return (field.name, out.to_vec());
                }
                Kind::Message(nested) => minimal(nested)
                    .into_iter()
                    .flat_map(|(_, bytes)| bytes)
                    .collect(),
                Kind::String | Kind::Bytes => Vec::new(),
                Kind::Fixed64 => panic!("no required double exists"),
            };
            encode::varint(&mut out, u64::from(field.number << 3 | 2));
            encode::varint(&mut out, value.len() as u64);
            out.extend_from_slice(&value);
            (field.name, out.to_vec())
        })
        .collect()
}

#[test]
fn every_required_field_of_every_message_is_demanded() {
    let messages = all_messages();
    assert!(messages.len() > 90);
    let mut demanded = 0;
    for message in messages {
        let fields = minimal(message);
        let join = |skip: usize| -> Vec<u8> {
            fields
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != skip)
                .flat_map(|(_, (_, bytes))| bytes.clone())
                .collect()
        };
        check(message, &join(usize::MAX)).unwrap();
        for (at, (name, _)) in fields.iter().enumerate() {
            assert_eq!(
                check(message, &join(at)).unwrap_err(),
                missing(message.name, name)
            );
            demanded += 1;
        }
    }
    assert_eq!(demanded, 150);
}

/// Every command of the schema can be built, is demanded under its own number, and is read back by `prost`.
#[test]
fn every_type_has_its_body_under_its_own_number() {
    let mut types = 0;
    for field in tables::BASE_COMMAND.fields {
        let Kind::Message(body) = field.kind else {
            continue;
        };
        let number = field.number as i32;
        let named = Type::try_from(number).unwrap_or_else(|_| panic!("{} has no type", field.name));
        let mut command = BytesMut::new();
        encode::varint(&mut command, 8);
        encode::varint(&mut command, u64::from(field.number));
        assert_eq!(
            decode_command(&command).unwrap_err(),
            Malformed::MissingBody(number)
        );
        let content: Vec<u8> = minimal(body)
            .into_iter()
            .flat_map(|(_, bytes)| bytes)
            .collect();
        encode::varint(&mut command, u64::from(field.number << 3 | 2));
        encode::varint(&mut command, content.len() as u64);
        command.extend_from_slice(&content);
        let decoded = decode_command(&command).unwrap();
        assert_eq!(decoded.r#type(), named);
        assert_eq!(decoded.encode_to_vec(), command, "{}", field.name);
        types += 1;
    }
    assert_eq!(types, 70);
}

#[test]
fn fields_can_be_cut_nowhere() {
    for name in [
        "golden-connect",
        "golden-connected",
        "golden-close-consumer",
        "golden-send",
        "golden-message",
    ] {
        let bytes = frame_bytes(name);
        let frame = decode(&bytes).unwrap().unwrap();
        for end in 0..frame.command().len() {
            let cut = &frame.command()[..end];
            let error = decode_command(cut).unwrap_err();
            // Cut between two fields, it lacks one; cut in a field, that cannot be read.
            let readable = BaseCommand::decode(cut).is_ok();
            assert_eq!(
                readable,
                matches!(error, Malformed::Missing { .. } | Malformed::MissingBody(_)),
                "{name} {end}"
            );
        }
    }
}
