//! Vela's broker.

pub mod cli;
pub mod config;
pub mod logging;
pub mod runtime;
pub mod store;
