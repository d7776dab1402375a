//! The key of an entry.

use std::io::Write;

use vela_codec::hot::MetadataView;

use crate::engine::murmur::murmur3;

/// The key of an entry whose own cannot be made out.
const NO_KEY: &[u8] = b"NONE_KEY";

/// The hash of an entry's key: its ordering key, or else its partition key, or else `producer-sequence`.
///
/// Only the metadata of the entry counts: a batch goes where its own key says, whatever is in it. A partition key that is
/// flagged as base64 and is none counts as one fixed key.
pub(in super::super) fn key_hash(metadata: &MetadataView<'_>) -> u32 {
    if let Some(key) = metadata.ordering_key {
        return murmur3(key);
    }
    match metadata.partition_key {
        Some(key) if metadata.partition_key_b64 => {
            decode_base64(key.as_bytes()).map_or_else(|| murmur3(NO_KEY), |key| murmur3(&key))
        }
        Some(key) => murmur3(key.as_bytes()),
        None => {
            let mut key = Vec::with_capacity(metadata.producer_name.len() + 21);
            // Java prints the 64 bits as a signed number. Writing to memory does not fail.
            let _ = write!(
                key,
                "{}-{}",
                metadata.producer_name, metadata.sequence_id as i64
            );
            murmur3(&key)
        }
    }
}

/// Base64 in the basic alphabet (RFC 4648, 4), padded or not; nothing else is taken.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = text.get(..text.len() - padding)?;
    let rest = digits.len() % 4;
    if rest == 1 || (padding > 0 && (rest == 0 || padding != 4 - rest)) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = (bits << 6) | u32::from(value(*digit)?);
        }
        bits <<= 6 * (4 - group.len());
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend(bytes.iter().take(group.len() * 6 / 8));
    }
    Some(out)
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> MetadataView<'static> {
        MetadataView {
            producer_name: "producer",
            sequence_id: 7,
            ..MetadataView::default()
        }
    }

    #[test]
    fn the_ordering_key_wins_then_the_partition_key_then_the_name_of_the_message() {
        let none = metadata();
        assert_eq!(key_hash(&none), murmur3(b"producer-7"));
        let large = MetadataView {
            sequence_id: u64::MAX,
            ..none
        };
        assert_eq!(key_hash(&large), murmur3(b"producer--1"));
        let keyed = MetadataView {
            partition_key: Some("a2V5MQ=="),
            ..none
        };
        assert_eq!(key_hash(&keyed), murmur3(b"a2V5MQ=="));
        let encoded = MetadataView {
            partition_key_b64: true,
            ..keyed
        };
        assert_eq!(key_hash(&encoded), murmur3(b"key1"));
        let ordered = MetadataView {
            ordering_key: Some(b"order"),
            ..encoded
        };
        assert_eq!(key_hash(&ordered), murmur3(b"order"));
        let empty = MetadataView {
            ordering_key: Some(b""),
            ..encoded
        };
        assert_eq!(key_hash(&empty), murmur3(b""), "empty is a key");
        let broken = MetadataView {
            partition_key: Some("a2V5MQ="),
            ..encoded
        };
        assert_eq!(key_hash(&broken), murmur3(b"NONE_KEY"));
    }

    #[test]
    fn base64_of_every_length() {
        let ok: [(&str, &[u8]); 8] = [
            ("", b""),
            ("Zg==", b"f"),
            ("Zg", b"f"),
            ("Zm8=", b"fo"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmFy", b"foobar"),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
        ];
        for (text, bytes) in ok {
            assert_eq!(
                decode_base64(text.as_bytes()).as_deref(),
                Some(bytes),
                "{text}"
            );
        }
        for text in [
            "Z", "=", "Zg=", "Zg===", "Zm9v=", "Z-_v", "Zg==Zg==", "Zm 9", "Zm9v\n",
        ] {
            assert_eq!(decode_base64(text.as_bytes()), None, "{text}");
        }
    }
}
