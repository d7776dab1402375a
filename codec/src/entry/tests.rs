#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use proptest::prelude::*;

use super::*;
use crate::testing::frame;

#[test]
fn entries_that_close_the_connection() {
    for (name, error) in [
        ("entry-empty", EntryError::TooShort(0)),
        ("entry-one-byte", EntryError::TooShort(1)),
        ("entry-checksum-cut", EntryError::ChecksumCut),
    ] {
        assert_eq!(
            Entry::parse(frame(name).rest()).unwrap_err(),
            error,
            "{name}"
        );
    }
}

#[test]
fn entries_that_are_stored_without_a_look() {
    let frame = frame("entry-metadata-beyond");
    let entry = Entry::parse(frame.rest()).unwrap();
    assert_eq!(
        (entry.metadata, entry.checksum, entry.payload),
        (None, None, &[][..])
    );
    assert_eq!(entry.without_broker_metadata(), frame.rest());
    entry.verify_checksum().unwrap();
    assert!(entry.metadata_view().is_none() && entry.decode_metadata().is_err());
    // Right checksum, no metadata at all; too short for a size; broker entry metadata that is cut off.
    for bytes in [
        &[0x0e, 0x01, 0, 0, 0, 0][..],
        &[0, 0],
        &[0, 0, 0],
        &[0x0e, 0x02],
        &[0x0e, 0x02, 0, 0, 0, 9, 1],
    ] {
        let entry = Entry::parse(bytes).unwrap();
        assert_eq!(entry.metadata, None);
        assert_eq!(entry.without_broker_metadata(), bytes);
        entry.verify_checksum().unwrap();
    }
    // Metadata that lacks required fields.
    let entry = Entry::parse(&[0, 0, 0, 2, 0x10, 1, 9]).unwrap();
    assert_eq!(
        (entry.metadata, entry.payload),
        (Some(&[0x10, 1][..]), &[9][..])
    );
    assert!(entry.metadata_view().is_none());
}

#[test]
fn all_parts_of_a_delivered_entry() {
    let frame = frame("golden-message");
    let entry = Entry::parse(frame.rest()).unwrap();
    let broker = entry.decode_broker_metadata().unwrap();
    assert_eq!((broker.broker_timestamp, broker.index), (Some(5), Some(4)));
    assert_eq!(entry.checksum, Some(0x92cd_300c));
    entry.verify_checksum().unwrap();
    let metadata = entry.metadata_view().unwrap();
    assert_eq!(
        (
            metadata.producer_name,
            metadata.sequence_id,
            metadata.publish_time
        ),
        ("p", 0, 1)
    );
    assert_eq!(entry.payload, b"hello");
    assert_eq!(
        entry.without_broker_metadata(),
        crate::testing::frame("golden-send").rest()
    );
    assert_eq!(
        entry.without_checksum(),
        &entry.without_broker_metadata()[6..]
    );
}

#[test]
fn a_damaged_entry_is_found() {
    let frame = frame("entry-checksum-mismatch");
    let error = Entry::parse(frame.rest())
        .unwrap()
        .verify_checksum()
        .unwrap_err();
    assert_eq!(error.sent, 0x92cd_300c);
    assert_ne!(error.computed, error.sent);
}

proptest! {
    #[test]
    fn what_is_written_is_read(name in ".{0,20}", sequence_id in any::<u64>(), payload in prop::collection::vec(any::<u8>(), 0..300),
                               broker in prop::option::of(any::<u64>()), flip in any::<prop::sample::Index>()) {
        let metadata = MessageMetadata { producer_name: name, sequence_id, publish_time: 3, ..Default::default() };
        let mut out = BytesMut::new();
        if let Some(index) = broker {
            write_broker_metadata(&BrokerEntryMetadata { broker_timestamp: None, index: Some(index) }, &mut out);
        }
        let from = out.len();
        write(&metadata, &payload, &mut out);
        let entry = Entry::parse(&out).unwrap();
        prop_assert_eq!(entry.decode_broker_metadata().and_then(|broker| broker.index), broker);
        prop_assert_eq!(entry.decode_metadata().unwrap(), metadata);
        prop_assert_eq!(entry.payload, &payload[..]);
        prop_assert!(entry.verify_checksum().is_ok());
        // Any changed byte behind the magic shows.
        let at = from + 2 + flip.index(out.len() - from - 2);
        out[at] ^= 0x10;
        prop_assert!(Entry::parse(&out).unwrap().verify_checksum().is_err());
    }

    #[test]
    fn any_bytes_are_an_entry_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..60), magic in 0u8..4) {
        if bytes.len() > 2 && magic > 0 { bytes[0] = 0x0e; bytes[1] = magic }
        if let Ok(entry) = Entry::parse(&bytes) {
            let _ = entry.verify_checksum();
            let _ = entry.metadata_view();
            prop_assert!(bytes.ends_with(entry.without_checksum()));
        } else {
            prop_assert!(bytes.len() < 2 || bytes[0] == 0x0e);
        }
    }
}
