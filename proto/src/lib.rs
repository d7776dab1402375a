//! The messages of the Pulsar binary protocol as Rust types, generated from `proto/pulsar.proto`.
//!
//! Enum fields are `i32`, so a value that a newer peer invented is kept instead of failing the message; the generated
//! accessor of an optional enum answers its default then. `prost` does not check that required fields are present:
//! `vela_codec::decode_command` does, with the tables of [`tables`].

pub mod tables;

#[allow(missing_docs, unreachable_pub, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/pulsar.proto.rs"));
}

pub use generated::*;
pub use prost;
