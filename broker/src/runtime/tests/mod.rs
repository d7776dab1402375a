//! The runtime proven by itself: real sockets, rings and threads around an engine that echoes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod echo;
mod memory;
mod network;
mod portion;
mod pressure;
mod stress;
mod trickle;
