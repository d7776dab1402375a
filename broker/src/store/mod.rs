//! Durable state: the write-ahead log of each lane, the metadata store and the lock of the data directory.
//!
//! The broker's managed ledgers stand on three small traits, [`wal::Wal`], [`segments::Segments`] and [`meta::Meta`], so that the embedded engine
//! and a distributed one can serve the same code above.

pub mod chunk;
pub mod file;
pub mod lock;
pub mod log;
pub mod memory;
pub mod meta;
mod regular;
pub mod segments;
mod tail;
pub mod wal;
