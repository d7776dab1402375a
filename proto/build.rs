//! Compiles `proto/pulsar.proto` in pure Rust: no `protoc` is needed to build Vela.
//!
//! Two files come out: the message types (by `prost`), and `tables.rs`, a table of every field's number, kind and label,
//! which the codec uses to check what `prost` does not check.

use std::fmt::Write as _;
use std::io::Error;
use std::path::PathBuf;

// Numbers of FieldDescriptorProto.Label and FieldDescriptorProto.Type, fixed by protobuf.
const LABEL_REQUIRED: i32 = 2;
const LABEL_REPEATED: i32 = 3;
const TYPE_DOUBLE: i32 = 1;
const TYPE_STRING: i32 = 9;
const TYPE_MESSAGE: i32 = 11;
const TYPE_BYTES: i32 = 12;
const TYPE_ENUM: i32 = 14;
// int64, uint64, int32, bool, uint32.
const TYPES_VARINT: [i32; 5] = [3, 4, 5, 8, 13];

fn main() -> Result<(), Error> {
    println!("cargo:rerun-if-changed=proto/pulsar.proto");
    let descriptors = protox::compile(["proto/pulsar.proto"], ["proto"]).map_err(Error::other)?;

    let mut enums = Vec::new();
    let mut out = String::new();
    for file in &descriptors.file {
        for item in &file.enum_type {
            enums.push((
                format!(".pulsar.proto.{}", item.name()),
                numbers(item.value.iter().map(|v| v.number())),
            ));
        }
        for message in &file.message_type {
            for item in &message.enum_type {
                let name = format!(".pulsar.proto.{}.{}", message.name(), item.name());
                enums.push((name, numbers(item.value.iter().map(|v| v.number()))));
            }
        }
    }
    for message in descriptors.file.iter().flat_map(|file| &file.message_type) {
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let mut required = 0u32;
        let mut lines = String::new();
        for field in fields {
            let kind = match field.r#type.unwrap_or_default() {
                TYPE_DOUBLE => "Kind::Fixed64".to_owned(),
                TYPE_STRING => "Kind::String".to_owned(),
                TYPE_BYTES => "Kind::Bytes".to_owned(),
                TYPE_MESSAGE => {
                    let name = field.type_name().rsplit('.').next().unwrap_or_default();
                    format!("Kind::Message(&{})", constant(name))
                }
                TYPE_ENUM => {
                    let found = enums.iter().find(|(name, _)| name == field.type_name());
                    let (_, numbers) = found
                        .ok_or_else(|| Error::other(format!("no enum {}", field.type_name())))?;
                    format!("Kind::Enum(&[{numbers}])")
                }
                kind if TYPES_VARINT.contains(&kind) => "Kind::Varint".to_owned(),
                kind => {
                    return Err(Error::other(format!(
                        "field {} has unhandled type {kind}",
                        field.name()
                    )));
                }
            };
            let label = field.label.unwrap_or_default();
            let bit = if label == LABEL_REQUIRED {
                required += 1;
                1u64 << (required - 1)
            } else {
                0
            };
            writeln!(
                lines,
                "    Field {{ number: {}, name: {:?}, kind: {kind}, repeated: {}, required: {bit} }},",
                field.number(),
                field.name(),
                label == LABEL_REPEATED,
            )
            .map_err(Error::other)?;
        }
        let (name, all) = (message.name(), (1u64 << required) - 1);
        writeln!(
            out,
            "/// Fields of `{name}`.\npub static {}: Message = Message {{ name: {name:?}, required: {all}, fields: &[\n{lines}] }};",
            constant(name),
        )
        .map_err(Error::other)?;
    }
    let dir = std::env::var_os("OUT_DIR").ok_or_else(|| Error::other("OUT_DIR is not set"))?;
    std::fs::write(PathBuf::from(dir).join("tables.rs"), out)?;

    // Bytes fields are cheap to clone: schemas and authentication data are handed around.
    prost_build::Config::new()
        .bytes(["."])
        .compile_fds(descriptors)
}

fn numbers(values: impl Iterator<Item = i32>) -> String {
    values
        .map(|number| number.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

/// `CommandSendReceipt` becomes `COMMAND_SEND_RECEIPT`.
fn constant(name: &str) -> String {
    let mut out = String::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && after_lower {
            out.push('_');
        }
        after_lower = !c.is_ascii_uppercase();
        out.push(c.to_ascii_uppercase());
    }
    out
}
