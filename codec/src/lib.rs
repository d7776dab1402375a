//! Frames and commands of the Pulsar binary protocol, without any IO.
//!
//! Bytes come in through a [`Cumulation`] (one receive buffer per core) and a [`FrameDecoder`] (one per connection) and leave as
//! [`Frame`]s that share the memory they were read into. That memory is counted where it is allocated, in [`Root`], and
//! nowhere else. Commands are then read either whole ([`decode_command`]) or, for the few that arrive a million times a
//! second, in place ([`hot`]). Both refuse the same frames.
//!
//! Protocol: <https://pulsar.apache.org/docs/next/developing-binary-protocol/>.

pub mod batch;
pub mod checksum;
pub mod compress;
mod cumulation;
mod decode;
pub mod encode;
pub mod entry;
pub mod hot;
mod required;
mod root;
#[cfg(test)]
mod testing;
mod wire;

pub use cumulation::{Cumulation, Received, Sizes};
pub use decode::{FRAME_PADDING, Frame, FrameDecoder, FrameError, IN_PLACE_MIN, PARTIAL_MIN};
pub use required::{check, decode_command, decode_metadata};
pub use root::{Accounting, Root};
pub use vela_proto as proto;
pub use wire::Malformed;
