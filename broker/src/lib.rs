//! Vela: a message broker that speaks the Apache Pulsar binary protocol, thread-per-core on io_uring.

pub mod engine;
pub mod store;
