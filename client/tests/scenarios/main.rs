//! What official clients do with a broker, done by this one: against a Vela (`VELA_BIN`, or the one built last), or against any
//! broker at `PULSAR_URL` and `PULSAR_WEB_URL`. Run by `scripts/test client`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod acknowledging;
mod admission;
mod command_line;
mod harness;
mod permits;
mod publishing;
mod reading;
mod restarting;
mod schemas;
mod subscribing;
mod tamper;
mod tls;
mod traffic;
