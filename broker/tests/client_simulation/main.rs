//! The Rust client without sockets against the broker without sockets: both in one thread, with a network between them that delays, cuts
//! and refuses by the numbers of a seed. `VELA_SIM_SEED=N` repeats one run, `VELA_SIM_SEEDS=N` makes N of them.

#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../simulation/rng.rs"]
mod rng;

mod network;
mod sends;
