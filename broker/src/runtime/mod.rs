//! The runtime: sockets, disk, timers and cores around the engine. The only code that knows glommio.

mod adapter;
mod capacity;
mod clock;
mod cluster;
mod conn;
mod core;
mod disk;
mod dynamic;
mod error;
mod executor;
mod gate;
mod guests;
mod listen;
mod memory;
mod port;
mod portion;
mod ports;
mod post;
mod preflight;
mod rates;
mod raw;
mod start;
mod trickle;
mod watchdog;
mod web;

pub use error::StartError;
pub(crate) use preflight::connection_descriptors;
pub use rates::RateTable;
pub use start::run;

#[cfg(test)]
mod tests;
