#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
use super::*;

fn apply(lane: &mut LaneState, record: Record<'_>) -> Result<(), Damage> {
    lane.apply(record, 1, 64)
}

#[test]
fn a_life() {
    let mut lane = LaneState::default();
    apply(
        &mut lane,
        Record::TopicCreated {
            topic: 0,
            name: "a",
            created_ms: 5,
        },
    )
    .unwrap();
    apply(
        &mut lane,
        Record::LedgerOpened {
            topic: 0,
            ledger: 7,
            opened_ms: 6,
        },
    )
    .unwrap();
    let properties = List::Borrowed(&[("k", "v")][..]);
    let mark_delete = Position::new(7, -1);
    apply(
        &mut lane,
        Record::CursorCreated {
            topic: 0,
            cursor: 0,
            name: "s",
            mark_delete,
            properties,
        },
    )
    .unwrap();
    for entry in 0..3 {
        apply(
            &mut lane,
            Record::Entry {
                topic: 0,
                ledger: 7,
                entry,
                data: b"xy",
            },
        )
        .unwrap();
    }
    let ids = whole_ids([Position::new(7, 0), Position::new(7, 2)]);
    apply(
        &mut lane,
        Record::Acked {
            topic: 0,
            cursor: 0,
            ids,
        },
    )
    .unwrap();
    apply(
        &mut lane,
        Record::LedgerOpened {
            topic: 0,
            ledger: 8,
            opened_ms: 6,
        },
    )
    .unwrap();
    let topic = &lane.topics[&0];
    assert_eq!(
        (topic.slowest(), topic.ledgers.bytes(), topic.next_cursor),
        (Position::new(7, 0), 6, 1)
    );
    assert_eq!(
        topic.cursors[&0].properties,
        [("k".to_owned(), "v".to_owned())]
    );
    apply(
        &mut lane,
        Record::Trimmed {
            topic: 0,
            through_ledger: 7,
        },
    )
    .unwrap();
    assert_eq!(lane.topics[&0].cursors[&0].acks.ranges().len(), 0);
    apply(
        &mut lane,
        Record::TopicProperty {
            topic: 0,
            key: "p",
            value: b"1",
        },
    )
    .unwrap();
    assert_eq!(lane.topics[&0].properties["p"], b"1");
    apply(
        &mut lane,
        Record::TopicProperty {
            topic: 0,
            key: "p",
            value: b"",
        },
    )
    .unwrap();
    apply(
        &mut lane,
        Record::Terminated {
            topic: 0,
            at: Position::new(7, 2),
        },
    )
    .unwrap();
    apply(
        &mut lane,
        Record::CursorDeleted {
            topic: 0,
            cursor: 0,
        },
    )
    .unwrap();
    // Late records of what is gone are no damage.
    apply(
        &mut lane,
        Record::Acked {
            topic: 0,
            cursor: 0,
            ids: List::Borrowed(&[]),
        },
    )
    .unwrap();
    assert_eq!(lane.topics[&0].terminated, Some(Position::new(7, 2)));
    assert!(lane.topics[&0].properties.is_empty() && lane.topics[&0].cursors.is_empty());
    apply(&mut lane, Record::TopicDeleted { topic: 0 }).unwrap();
    apply(&mut lane, Record::TopicDeleted { topic: 0 }).unwrap();
    assert_eq!(
        lane,
        LaneState {
            next_topic: 1,
            ..LaneState::default()
        }
    );
}

#[test]
fn a_cursor_is_never_ahead_of_the_last_entry() {
    let mut topic = TopicState::new(0, "a", 0);
    topic
        .create_cursor(0, "early", Position::LATEST, &[])
        .unwrap();
    assert_eq!(topic.slowest(), Position::EARLIEST);
    topic.ledgers.open(1, 0).unwrap();
    topic.ledgers.push(Position::new(1, 0), 1, 1, 64).unwrap();
    topic
        .create_cursor(1, "late", Position::LATEST, &[])
        .unwrap();
    assert!(topic.reset_cursor(0, Position::new(1, 7), &[]));
    assert_eq!(topic.slowest(), Position::new(1, 0));
    topic.ledgers.push(Position::new(1, 1), 1, 1, 94).unwrap();
    for cursor in topic.cursors.values() {
        assert_eq!(cursor.acks.backlog(&topic.ledgers, topic.ledgers.end()), 1);
    }
    assert!(!topic.reset_cursor(2, Position::EARLIEST, &[]));
}

#[test]
fn damage_is_named_and_changes_nothing() {
    let mut lane = LaneState::default();
    apply(
        &mut lane,
        Record::TopicCreated {
            topic: 0,
            name: "a",
            created_ms: 5,
        },
    )
    .unwrap();
    let before = lane.clone();
    let wrong = [
        Record::TopicCreated {
            topic: 0,
            name: "b",
            created_ms: 0,
        },
        Record::TopicCreated {
            topic: u32::MAX,
            name: "b",
            created_ms: 0,
        },
        Record::TopicDeleted { topic: 1 },
        Record::CursorDeleted {
            topic: 0,
            cursor: 0,
        },
        Record::Entry {
            topic: 0,
            ledger: 1,
            entry: 0,
            data: b"",
        },
        Record::LedgerOpened {
            topic: 0,
            ledger: -3,
            opened_ms: 0,
        },
        Record::MarkDeleted {
            topic: 0,
            cursor: 4,
            to: Position::LATEST,
            ack_set: List::Borrowed(&[]),
        },
    ];
    for record in wrong {
        let error = apply(&mut lane, record).unwrap_err();
        assert!(!error.to_string().is_empty());
        assert_eq!(lane, before);
    }
}
