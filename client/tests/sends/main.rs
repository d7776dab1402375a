//! What a producer promises of its sends, against a real broker: `cargo test -p vela-client --test sends -- --ignored`.
#![allow(
    missing_docs,
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../scenarios/harness.rs"]
mod harness;

mod admission;
mod stalled;
