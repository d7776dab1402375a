//! Vela's limiter: how much memory inbound traffic holds, and who must wait because of it. No IO.

pub mod pending;
pub mod retained;

pub use pending::Pending;
pub use retained::Retained;
