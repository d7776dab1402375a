//! Conversations of official clients with another broker, replayed against the engine: same commands in, same answers out.
//!
//! The recordings and their format: `tests/data/captured/README.md`. What may differ: `captured/compare.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "captured/compare.rs"]
mod compare;
mod harness;
#[path = "captured/party.rs"]
mod party;
#[path = "captured/recording.rs"]
mod recording;
#[path = "captured/replay.rs"]
mod replay;

use std::collections::BTreeSet;

use replay::{Needs, Setting};

const NEEDS: Needs = Needs {
    partitioned: &[],
    topics: &[],
    published_before: false,
    keep_alive: false,
    left: 0,
};

/// Every recording there is.
const RECORDINGS: &[(&str, Needs)] = &[
    ("go-produce-consume-ackresponse", NEEDS),
    ("py-batch-index-ack", NEEDS),
    (
        "py-connect-ping",
        Needs {
            keep_alive: true,
            ..NEEDS
        },
    ),
    ("py-cumulative-ack", Needs { left: 1, ..NEEDS }),
    ("py-errors", NEEDS),
    ("py-exclusive-ack", NEEDS),
    ("py-failover", Needs { left: 1, ..NEEDS }),
    ("py-key-shared", Needs { left: 8, ..NEEDS }),
    (
        "py-partitioned-producer",
        Needs {
            partitioned: &[(
                "persistent://public/default/cap-py-partitioned-producer-6b0d18af",
                3,
            )],
            ..NEEDS
        },
    ),
    (
        "py-pattern",
        Needs {
            topics: &[
                "persistent://public/cap/other",
                "persistent://public/cap/pat-1",
                "persistent://public/cap/pat-2",
            ],
            ..NEEDS
        },
    ),
    ("py-produce-3", NEEDS),
    ("py-produce-batch-5", NEEDS),
    ("py-produce-batch-5-lz4", NEEDS),
    (
        "py-reader-earliest",
        Needs {
            published_before: true,
            ..NEEDS
        },
    ),
    ("py-schema-json", NEEDS),
    (
        "py-seek",
        Needs {
            published_before: true,
            left: 4,
            ..NEEDS
        },
    ),
    ("py-shared-nack", NEEDS),
    ("py-unsubscribe", NEEDS),
];

/// One core, and two with the connections on either: a topic lives on one of them, so it is met both at home and from the other core.
const CORES: &[[u16; 3]] = &[[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 0], [0, 0, 1]];

/// Replays a recording as its row says, in every setting. Answers the deliberate differences met.
fn run(name: &str) -> BTreeSet<&'static str> {
    let (_, needs) = RECORDINGS
        .iter()
        .find(|(n, _)| *n == name)
        .expect("a row of the table");
    let mut met = BTreeSet::new();
    for setting in settings() {
        met.extend(replay::replay(name, needs, setting));
    }
    met
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for cores in CORES.iter().copied() {
        for bytes in [usize::MAX, 7] {
            for last_first in [false, true] {
                settings.push(Setting {
                    cores,
                    bytes,
                    last_first,
                    advertised: bytes == 7,
                });
            }
        }
    }
    settings
}

#[test]
fn the_table_names_every_recording() {
    let named: Vec<&str> = RECORDINGS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        named,
        recording::names(),
        "the table is in the order of the names"
    );
}

/// A difference that no recording shows any more does not belong in the list, nor does a reason that says nothing.
#[test]
fn every_deliberate_difference_is_met() {
    let mut met = BTreeSet::new();
    for (name, _) in RECORDINGS {
        met.extend(run(name));
    }
    for difference in compare::DIFFERENCES {
        assert!(
            met.contains(difference.what),
            "no recording shows: {}",
            difference.what
        );
        assert!(!difference.reason.is_empty(), "{}", difference.what);
    }
}

#[test]
fn one_partition_query_then_both_sides_ping_after_30_s() {
    run("py-connect-ping");
}

#[test]
fn a_producer_gets_a_name_and_three_receipts() {
    run("py-produce-3");
}

#[test]
fn a_batch_of_five_is_one_entry() {
    run("py-produce-batch-5");
}

#[test]
fn a_compressed_batch_of_five_is_one_entry() {
    run("py-produce-batch-5-lz4");
}

#[test]
fn an_exclusive_consumer_acknowledges_three_messages() {
    run("py-exclusive-ack");
}

#[test]
fn a_negative_acknowledgment_brings_the_message_back_counted() {
    run("py-shared-nack");
}

#[test]
fn behind_a_cumulative_acknowledgment_only_the_rest_comes_again() {
    run("py-cumulative-ack");
}

#[test]
fn acknowledged_parts_of_a_batch_do_not_come_again() {
    run("py-batch-index-ack");
}

#[test]
fn a_reader_from_earliest_knows_the_last_message() {
    run("py-reader-earliest");
}

#[test]
fn a_seek_closes_the_consumer_and_it_starts_where_it_wanted() {
    run("py-seek");
}

#[test]
fn a_partitioned_topic_is_as_many_topics() {
    run("py-partitioned-producer");
}

#[test]
fn a_subscription_that_was_deleted_leaves_room_for_another() {
    run("py-unsubscribe");
}

#[test]
fn a_pattern_is_a_list_of_topics_and_its_hash() {
    run("py-pattern");
}

#[test]
fn an_acknowledgment_with_a_request_is_answered() {
    run("go-produce-consume-ackresponse");
}

#[test]
fn busy_consumers_and_producers_and_missing_namespaces_are_errors() {
    run("py-errors");
}

#[test]
fn the_consumer_that_takes_over_gets_what_was_not_acknowledged() {
    run("py-failover");
}

#[test]
fn what_a_key_shared_consumer_held_goes_to_the_next_one() {
    run("py-key-shared");
}

#[test]
fn a_schema_is_kept_and_has_version_0() {
    run("py-schema-json");
}
