#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use proptest::prelude::*;

use super::*;
use crate::testing::hex;

const ALL: [CompressionType; 5] = [
    CompressionType::None,
    CompressionType::Lz4,
    CompressionType::Zlib,
    CompressionType::Zstd,
    CompressionType::Snappy,
];

#[test]
fn bombs_and_lies_are_refused() {
    let zeros = vec![0; 1_000_000];
    for kind in ALL {
        let packed = compress(kind, &zeros).unwrap();
        let limit = CompressError::TooLarge {
            announced: 1_000_000,
            limit: 999_999,
        };
        assert_eq!(
            decompress(kind, &packed, 1_000_000, 999_999).unwrap_err(),
            limit,
            "{kind:?}"
        );
        // More, or less, comes out than was announced.
        for announced in [0, 1, 999_999, 1_000_001] {
            let corrupt = CompressError::Corrupt { announced };
            assert_eq!(
                decompress(kind, &packed, announced, 5_000_000).unwrap_err(),
                corrupt,
                "{kind:?} {announced}"
            );
        }
        assert_eq!(
            decompress(kind, &packed, 1_000_000, 1_000_000).unwrap(),
            zeros,
            "{kind:?}"
        );
    }
}

/// Blocks made by hand from the formats' descriptions: raw, without a frame.
#[test]
fn lz4_and_snappy_are_raw_blocks() {
    assert_eq!(
        decompress(CompressionType::Lz4, &hex("50 68656c6c6f"), 5, 5).unwrap(),
        b"hello"
    );
    assert_eq!(
        decompress(CompressionType::Snappy, &hex("05 10 68656c6c6f"), 5, 5).unwrap(),
        b"hello"
    );
    assert_eq!(compress(CompressionType::Zlib, b"").unwrap()[0], 0x78);
    assert_eq!(
        compress(CompressionType::Zstd, b"").unwrap()[..4],
        hex("28b52ffd")
    );
}

proptest! {
    #[test]
    fn what_is_compressed_comes_back(payload in prop::collection::vec(0u8..4, 0..2000)) {
        for kind in ALL {
            let packed = compress(kind, &payload).unwrap();
            prop_assert_eq!(&decompress(kind, &packed, payload.len(), 2000).unwrap(), &payload);
        }
    }

    #[test]
    fn any_bytes_decompress_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300), announced in 0usize..500) {
        for kind in ALL {
            if let Ok(out) = decompress(kind, &bytes, announced, 500) { prop_assert_eq!(out.len(), announced) }
        }
    }
}
