//! Vela.

pub mod store;
