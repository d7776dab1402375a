#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A record that owns what [`Record`] borrows, so that proptest can make it.
#[derive(Clone, Debug)]
struct Owned {
    kind: u8,
    ids: (u32, u32),
    numbers: (i64, i64, u64),
    text: String,
    data: Vec<u8>,
    words: Vec<i64>,
    pairs: Vec<(String, String)>,
    acks: Vec<(i64, i64, Vec<i64>, Option<u32>)>,
}

fn owned() -> impl Strategy<Value = Owned> {
    (
        1u8..=15,
        any::<(u32, u32)>(),
        any::<(i64, i64, u64)>(),
        "\\PC{0,20}",
        vec(any::<u8>(), 0..200),
        vec(any::<i64>(), 0..5),
        vec(("[a-z]{0,5}", "\\PC{0,8}"), 0..4),
        vec(
            (
                any::<i64>(),
                any::<i64>(),
                vec(any::<i64>(), 0..3),
                proptest::option::of(1u32..),
            ),
            0..6,
        ),
    )
        .prop_map(
            |(kind, ids, numbers, text, data, words, pairs, acks)| Owned {
                kind,
                ids,
                numbers,
                text,
                data,
                words,
                pairs,
                acks,
            },
        )
}

fn with<T>(o: &Owned, f: impl FnOnce(Record<'_>) -> T) -> T {
    let (topic, cursor) = o.ids;
    let at = Position::new(o.numbers.0, o.numbers.1);
    let pairs: Vec<(&str, &str)> = o
        .pairs
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    let acks: Vec<AckedId<'_>> = o
        .acks
        .iter()
        .map(|(l, e, set, batch)| AckedId {
            position: Position::new(*l, *e),
            ack_set: set.as_slice().into(),
            batch_size: if set.is_empty() { None } else { *batch },
        })
        .collect();
    let words = List::Borrowed(o.words.as_slice());
    f(match o.kind {
        1 => Record::TopicCreated {
            topic,
            name: &o.text,
            created_ms: o.numbers.2,
        },
        2 => Record::TopicDeleted { topic },
        3 => Record::LedgerOpened {
            topic,
            ledger: at.ledger,
            opened_ms: o.numbers.2,
        },
        4 => Record::Entry {
            topic,
            ledger: at.ledger,
            entry: at.entry,
            data: &o.data,
        },
        5 => Record::CursorCreated {
            topic,
            cursor,
            name: &o.text,
            mark_delete: at,
            properties: pairs.as_slice().into(),
        },
        6 => Record::CursorDeleted { topic, cursor },
        7 => Record::Acked {
            topic,
            cursor,
            ids: acks.as_slice().into(),
        },
        8 => Record::MarkDeleted {
            topic,
            cursor,
            to: at,
            ack_set: words,
        },
        9 => Record::CursorReset {
            topic,
            cursor,
            to: at,
            ack_set_of_next: words,
        },
        10 => Record::Trimmed {
            topic,
            through_ledger: at.ledger,
        },
        11 => Record::Terminated { topic, at },
        13 => Record::Sequenced {
            topic,
            ledger: at.ledger,
            entry: at.entry,
            producer: cursor,
            highest: o.numbers.2 as i64,
            data: &o.data,
        },
        14 => Record::SequenceOpened {
            topic,
            producer: cursor,
            name: &o.text,
        },
        15 => Record::SequenceClosed {
            topic,
            producer: cursor,
        },
        _ => Record::TopicProperty {
            topic,
            key: &o.text,
            value: &o.data,
        },
    })
}

proptest! {
    #[test]
    fn round_trip(o in owned()) {
        with(&o, |record| {
            let bytes = record.to_vec();
            assert_eq!(Record::decode(&bytes).as_ref(), Ok(&record));
            assert_eq!(record.topic(), o.ids.0);
            let entry = entry_of(&bytes);
            assert_eq!(entry.is_some(), matches!(o.kind, 4 | 13));
            if let Some((topic, at)) = entry {
                let begin = entry_data(&bytes, &entry_head(topic, at.ledger, at.entry));
                assert_eq!(begin.map(|begin| &bytes[begin..]), Some(record.payload()));
                let other = entry_head(topic, at.ledger, at.entry.wrapping_add(1));
                assert_eq!(entry_data(&bytes, &other), None);
                assert_eq!((topic, at.ledger, at.entry), (o.ids.0, o.numbers.0, o.numbers.1));
            }
        });
    }

    /// Damaged bytes decode to an error or to another record that itself round-trips; they never panic.
    #[test]
    fn damage(o in owned(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = with(&o, |record| record.to_vec());
        let i = at.index(bytes.len());
        bytes[i] = byte;
        if let Ok(record) = Record::decode(&bytes) {
            let again = record.to_vec();
            prop_assert_eq!(Record::decode(&again), Ok(record));
        }
        bytes.truncate(cut.index(bytes.len()));
        let _ = Record::decode(&bytes);
        if let Some((topic, at)) = entry_of(&bytes) {
            let begin = entry_data(&bytes, &entry_head(topic, at.ledger, at.entry));
            prop_assert!(begin.is_none_or(|begin| begin <= bytes.len()));
        }
    }

    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Record::decode(&bytes);
        let _ = entry_of(&bytes);
    }

    /// A record cut anywhere is refused, unless the cut is inside the payload that ends it.
    #[test]
    fn cut(o in owned(), at in any::<prop::sample::Index>()) {
        with(&o, |record| {
            let bytes = record.to_vec();
            let n = at.index(bytes.len());
            let head = bytes.len() - record.payload().len();
            assert_eq!(Record::decode(&bytes[..n]).is_ok(), n >= head);
        });
    }
}

#[test]
fn refusals() {
    assert_eq!(Record::decode(&[]), Err(Malformed::Short));
    assert_eq!(
        Record::decode(&[0, 1, 2, 3, 4]),
        Err(Malformed::UnknownKind(0))
    );
    assert_eq!(Record::decode(&[16]), Err(Malformed::UnknownKind(16)));
    let mut bytes = Record::TopicDeleted { topic: 9 }.to_vec();
    bytes.push(0);
    assert_eq!(Record::decode(&bytes), Err(Malformed::Trailing(1)));
    // A count that the bytes cannot hold is refused before anything is allocated for it.
    let mut bytes = Record::Acked {
        topic: 1,
        cursor: 1,
        ids: List::Borrowed(&[]),
    }
    .to_vec();
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Record::decode(&bytes), Err(Malformed::Short));
    let name = Record::TopicCreated {
        topic: 1,
        name: "ab",
        created_ms: 0,
    };
    let mut bytes = name.to_vec();
    bytes[9] = 0xff;
    assert_eq!(Record::decode(&bytes), Err(Malformed::NotText));
}

/// The format on disk is fixed: these bytes must decode the same in every later version.
#[test]
fn golden() {
    let entry = Record::Entry {
        topic: 0x01020304,
        ledger: 5,
        entry: 6,
        data: b"xy",
    };
    assert_eq!(
        entry.to_vec(),
        [
            4, 4, 3, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, b'x', b'y'
        ],
    );
    let sequenced = Record::Sequenced {
        topic: 0x01020304,
        ledger: 5,
        entry: 6,
        producer: 7,
        highest: 8,
        data: b"xy",
    };
    let mut bytes = entry.to_vec();
    bytes[0] = 13;
    let tail = bytes.split_off(ENTRY_HEAD);
    bytes.extend_from_slice(&[7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&tail);
    assert_eq!(sequenced.to_vec(), bytes);
    let id = AckedId {
        position: Position::new(1, -1),
        ack_set: vec![3].into(),
        batch_size: Some(2),
    };
    let acked = Record::Acked {
        topic: 1,
        cursor: 2,
        ids: vec![id].into(),
    };
    let mut bytes = vec![
        7, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
    ];
    bytes.extend_from_slice(&[0xff; 8]);
    bytes.extend_from_slice(&[1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(acked.to_vec(), bytes);
}
