//! The client without IO: bytes and time in, bytes and events out.

pub mod consumer;
