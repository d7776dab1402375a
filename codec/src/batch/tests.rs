#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use proptest::prelude::*;

use super::*;
use crate::testing::hex;

#[test]
fn the_golden_batch() {
    let bytes = hex("00000004 1801 4000 61 00000004 1802 4001 6263");
    let messages: Vec<_> = BatchReader::new(&bytes, 2).map(Result::unwrap).collect();
    assert_eq!(
        (messages[0].metadata.sequence_id, messages[0].payload),
        (Some(0), &b"a"[..])
    );
    assert_eq!(
        (messages[1].metadata.sequence_id, messages[1].payload),
        (Some(1), &b"bc"[..])
    );
}

#[test]
fn bad_batches_end_with_one_error() {
    let truncated = |index| BatchError::Truncated { index };
    let missing = Malformed::Missing {
        message: "SingleMessageMetadata",
        field: "payload_size",
    };
    for (bytes, error) in [
        ("", truncated(0)),
        ("000000", truncated(0)),
        ("ffffffff 1801", truncated(0)),
        ("00000002 1802 61", truncated(0)),
        ("0000000b 18ffffffffffffffffff01", truncated(0)),
        ("00000004 1801 4000 61", truncated(1)),
        (
            "00000002 4000",
            BatchError::Metadata {
                index: 0,
                cause: missing,
            },
        ),
    ] {
        let bytes = hex(bytes);
        let mut reader = BatchReader::new(&bytes, i32::MAX);
        assert_eq!(reader.by_ref().find_map(Result::err), Some(error));
        assert_eq!(reader.next(), None);
    }
    assert_eq!(BatchReader::new(&[1], -5).next(), None);
}

#[test]
fn a_full_batch_stays_as_it_is() {
    let single = SingleMessageMetadata::default;
    let mut batch = BatchWriter::new(2, 20);
    batch.push(single(), b"0123456789").unwrap();
    let full = BatchError::Full {
        messages: 2,
        bytes: 20,
    };
    assert_eq!(batch.push(single(), b"x").unwrap_err(), full);
    assert_eq!(batch.messages(), 1);
    let mut batch = BatchWriter::new(2, 2000);
    batch.push(single(), b"").unwrap();
    batch.push(single(), b"").unwrap();
    assert!(batch.push(single(), b"").is_err());
    assert_eq!(
        BatchReader::new(&batch.finish(), 3)
            .filter(Result::is_ok)
            .count(),
        2
    );
}

proptest! {
    #[test]
    fn what_is_written_is_read(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..9)) {
        let mut batch = BatchWriter::new(9, 10_000);
        for payload in &payloads { batch.push(SingleMessageMetadata::default(), payload).unwrap() }
        let bytes = batch.finish();
        let read: Vec<_> = BatchReader::new(&bytes, payloads.len() as i32).map(|message| message.unwrap().payload.to_vec()).collect();
        prop_assert_eq!(read, payloads);
    }

    #[test]
    fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        prop_assert!(BatchReader::new(&bytes, i32::MAX).count() <= bytes.len() / 4 + 1);
    }
}
