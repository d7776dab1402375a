//! Vela: a message broker that speaks the Apache Pulsar binary protocol, thread-per-core on io_uring.

pub mod admin;
pub mod cli;
pub mod config;
pub mod engine;
pub mod logging;
pub mod runtime;
pub mod store;
