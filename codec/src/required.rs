//! Whole commands, checked for everything the schema demands.

use prost::Message as _;
use vela_proto::base_command::Type;
use vela_proto::tables::{self, Field, Kind, Message};
use vela_proto::{BaseCommand, MessageMetadata};

use crate::wire::{FIXED64, LEN, Malformed, NESTING, Reader, VARINT};

/// Reads a whole command.
///
/// Unknown fields are passed over, and an unknown value of an optional enum is kept as a number, for which the accessor of the
/// field answers the default.
///
/// # Errors
/// If the bytes are not a `BaseCommand`, a required field is missing anywhere in it, a required enum has an unknown value, or the
/// body that `type` announces is absent. The connection must be closed without an answer then.
pub fn decode_command(command: &[u8]) -> Result<BaseCommand, Malformed> {
    check_command(command)?;
    // The check above accepts nothing that this refuses; a test holds the two together.
    BaseCommand::decode(command).map_err(|_| Malformed::Truncated)
}

/// Reads the metadata of an entry, with the same care as [`decode_command`].
///
/// # Errors
/// If the bytes are not a `MessageMetadata` with all its required fields.
pub fn decode_metadata(metadata: &[u8]) -> Result<MessageMetadata, Malformed> {
    check(&tables::MESSAGE_METADATA, metadata)?;
    MessageMetadata::decode(metadata).map_err(|_| Malformed::Truncated)
}

/// Checks that `bytes` are the given message, with all required fields in it and in the messages nested in it.
///
/// # Errors
/// If they are not.
pub fn check(message: &'static Message, bytes: &[u8]) -> Result<(), Malformed> {
    check_message(message, bytes, NESTING)
}

pub(crate) fn check_command(command: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(command);
    let mut command_type = None;
    // Bit n: field n is present. Numbers of the schema end at 81.
    let mut present = 0u128;
    while let Some(key) = reader.key()? {
        if key == TYPE_KEY {
            command_type = Some(read_type(&mut reader)?);
        } else {
            check_field(&tables::BASE_COMMAND, key, &mut reader, NESTING)?;
            present |= 1u128.checked_shl(key >> 3).unwrap_or_default();
        }
    }
    let number = command_type.ok_or(MISSING_TYPE)? as i32;
    let body = u32::try_from(number)
        .ok()
        .and_then(|number| 1u128.checked_shl(number))
        .unwrap_or_default();
    if present & body == 0 {
        return Err(Malformed::MissingBody(number));
    }
    Ok(())
}

/// Key of `BaseCommand.type`.
pub(crate) const TYPE_KEY: u32 = crate::wire::key(1, VARINT);

/// The error of a command without a type.
pub(crate) const MISSING_TYPE: Malformed = Malformed::Missing {
    message: "BaseCommand",
    field: "type",
};

/// The value of `BaseCommand.type`, whose key was just read.
#[inline]
pub(crate) fn read_type(reader: &mut Reader<'_>) -> Result<Type, Malformed> {
    let value = reader.varint()? as i32;
    Type::try_from(value).map_err(|_| Malformed::UnknownEnum {
        message: "BaseCommand",
        field: "type",
        value,
    })
}

fn check_message(message: &'static Message, bytes: &[u8], nesting: u32) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    let mut seen = 0;
    while let Some(key) = reader.key()? {
        seen |= check_field(message, key, &mut reader, nesting)?;
    }
    check_seen(message, seen)
}

/// Checks that all bits of required fields are among those seen.
#[inline]
pub(crate) fn check_seen(message: &'static Message, seen: u64) -> Result<(), Malformed> {
    if seen & message.required == message.required {
        Ok(())
    } else {
        Err(missing(message, seen))
    }
}

#[cold]
fn missing(message: &'static Message, seen: u64) -> Malformed {
    let field = message
        .fields
        .iter()
        .find(|field| field.required & !seen != 0)
        .map_or("", |field| field.name);
    Malformed::Missing {
        message: message.name,
        field,
    }
}

/// Checks one field whose key was just read, and passes over it. Answers the field's bit if it is required.
pub(crate) fn check_field(
    message: &'static Message,
    key: u32,
    reader: &mut Reader<'_>,
    nesting: u32,
) -> Result<u64, Malformed> {
    let Some(field) = message.field(key >> 3) else {
        reader.skip(key, nesting)?;
        return Ok(0);
    };
    let wire_type = key & 7;
    match (&field.kind, wire_type) {
        (Kind::Varint, VARINT) => {
            reader.varint()?;
        }
        (Kind::Enum(known), VARINT) => {
            let value = reader.varint()? as i32;
            if field.required != 0 && !known.contains(&value) {
                return Err(Malformed::UnknownEnum {
                    message: message.name,
                    field: field.name,
                    value,
                });
            }
        }
        (Kind::Varint | Kind::Enum(_), LEN) if field.repeated => {
            let mut packed = Reader::new(reader.bytes()?);
            while !packed.is_empty() {
                packed.varint()?;
            }
        }
        (Kind::Fixed64, FIXED64) => reader.fixed64()?,
        (Kind::Bytes, LEN) => {
            reader.bytes()?;
        }
        (Kind::String, LEN) => {
            text(message, field, reader.bytes()?)?;
        }
        (Kind::Message(nested), LEN) => {
            let inner = nesting.checked_sub(1).ok_or(Malformed::Nesting)?;
            check_message(nested, reader.bytes()?, inner)?;
        }
        _ => {
            return Err(Malformed::WireType {
                message: message.name,
                field: field.name,
            });
        }
    }
    Ok(field.required)
}

fn text<'a>(message: &Message, field: &Field, bytes: &'a [u8]) -> Result<&'a str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed::Utf8 {
        message: message.name,
        field: field.name,
    })
}

#[cfg(test)]
mod tests;
