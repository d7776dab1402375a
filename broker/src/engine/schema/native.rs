//! Protobuf-native schemas: a JSON document around a `FileDescriptorSet` that says which message is meant.

use std::collections::BTreeSet;

use prost::Message;
use serde_json::Value;

/// What is read of a `FileDescriptorSet` (descriptor.proto).
#[derive(Clone, PartialEq, Message)]
struct FileSet {
    #[prost(message, repeated, tag = "1")]
    file: Vec<FileProto>,
}

#[derive(Clone, PartialEq, Message)]
struct FileProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    package: Option<String>,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    message_type: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(message, repeated, tag = "3")]
    nested_type: Vec<Descriptor>,
}

/// The full name of the root message: `package.Outer.Inner`.
///
/// # Errors
/// What is missing or wrong, for a person.
pub(super) fn root(data: &[u8]) -> Result<String, String> {
    let document: Value = serde_json::from_slice(data).map_err(|e| format!("no JSON: {e}"))?;
    let text = |name: &str| {
        document
            .get(name)
            .and_then(Value::as_str)
            .ok_or_else(|| format!("it has no {name}"))
    };
    let (message, file_name) = (
        text("rootMessageTypeName")?,
        text("rootFileDescriptorName")?,
    );
    let set =
        from_base64(text("fileDescriptorSet")?).ok_or("its fileDescriptorSet is not in base64")?;
    let set = FileSet::decode(set.as_slice())
        .map_err(|e| format!("its fileDescriptorSet is no FileDescriptorSet: {e}"))?;
    let named = |name: &str| set.file.iter().find(|file| file.name() == name);
    let file =
        named(file_name).ok_or_else(|| format!("it does not hold the file {file_name:?}"))?;
    let names: BTreeSet<&str> = set.file.iter().map(FileProto::name).collect();
    for dependency in set.file.iter().flat_map(|file| &file.dependency) {
        if !names.contains(dependency.as_str()) {
            return Err(format!(
                "it does not hold the file {dependency:?}, which is imported"
            ));
        }
    }
    let missing = || format!("{file_name:?} has no message {message:?}");
    let path = match file.package() {
        "" => Some(message),
        package => message
            .strip_prefix(package)
            .and_then(|rest| rest.strip_prefix('.')),
    };
    let mut level = &file.message_type;
    for part in path.ok_or_else(missing)?.split('.') {
        let found = level.iter().find(|message| message.name() == part);
        level = &found.ok_or_else(missing)?.nested_type;
    }
    Ok(message.to_owned())
}

/// Standard base64, padded or not.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for group in text.as_bytes().chunks(4) {
        let mut bits: u32 = 0;
        for byte in group {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let whole = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        bits <<= 6 * (4 - group.len());
        let [_, all @ ..] = bits.to_be_bytes();
        bytes.extend(all.iter().take(whole));
    }
    Some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use super::*;

    /// A definition with one file that holds `Outer` and `Outer.Inner` in package `p`.
    pub(crate) fn definition(root: &str, imports: &[&str]) -> Vec<u8> {
        let inner = Descriptor {
            name: Some("Inner".into()),
            nested_type: Vec::new(),
        };
        let set = FileSet {
            file: vec![FileProto {
                name: Some("a.proto".into()),
                package: Some("p".into()),
                dependency: imports.iter().map(|name| (*name).into()).collect(),
                message_type: vec![Descriptor {
                    name: Some("Outer".into()),
                    nested_type: vec![inner],
                }],
            }],
        };
        let set = to_base64(&set.encode_to_vec());
        format!(
            r#"{{"fileDescriptorSet":"{set}","rootMessageTypeName":"{root}","rootFileDescriptorName":"a.proto"}}"#
        )
        .into_bytes()
    }

    fn to_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let mut three = [0; 4];
            three[1..=group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes(three);
            for digit in 0..4 {
                if digit <= group.len() {
                    text.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize] as char);
                } else {
                    text.push('=');
                }
            }
        }
        text
    }

    #[test]
    fn base64_is_read() {
        for bytes in [
            &b""[..],
            b"a",
            b"ab",
            b"abc",
            b"\xff\xfe\xfd\xfc",
            b"\0\0\0",
        ] {
            assert_eq!(from_base64(&to_base64(bytes)).unwrap(), bytes);
        }
        assert_eq!(from_base64("aGVsbG8=").unwrap(), b"hello");
        for bad in ["a", "a b=", "\u{e4}bcd", "aGVsb"] {
            assert_eq!(from_base64(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_root_message_is_found_by_its_full_name() {
        assert_eq!(root(&definition("p.Outer", &[])).unwrap(), "p.Outer");
        assert_eq!(
            root(&definition("p.Outer.Inner", &[])).unwrap(),
            "p.Outer.Inner"
        );
        for (bad, reason) in [
            (definition("p.Nobody", &[]), "no message"),
            (definition("Outer", &[]), "no message"),
            (definition("pOuter", &[]), "no message"),
            (definition("p.Outer", &["b.proto"]), "b.proto"),
            (b"abc".to_vec(), "no JSON"),
            (b"{}".to_vec(), "no rootMessageTypeName"),
            (
                br#"{"fileDescriptorSet":"!","rootMessageTypeName":"a","rootFileDescriptorName":"b"}"#
                    .to_vec(),
                "base64",
            ),
        ] {
            let error = root(&bad).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
