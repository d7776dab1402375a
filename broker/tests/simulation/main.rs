//! The broker without sockets, disks or clocks: plain behaviour tests, and a simulation from a seed.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../harness/mod.rs"]
mod harness;

mod access;
mod actor;
mod consume;
mod crossing;
mod dedup;
mod delayed;
mod failover;
mod hear;
mod inactive;
mod key_shared;
mod limits;
mod model;
mod permits;
mod producing;
mod publish;
mod rates;
mod readers;
mod restart;
mod rng;
mod runs;
mod schemas;
mod silence;
mod sim;
mod sources;
mod terminate;
mod turns;
mod volatile;
mod volatile_runs;
mod watching;
