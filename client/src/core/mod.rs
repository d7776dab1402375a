//! The client without IO: bytes and time in, bytes and events out.
//!
//! One [`Machine`] is the whole client. It opens no socket, reads no clock and knows no chance but the seed it was given, so a client can
//! be run against a broker in one thread, step by step, and every run repeated. What drives it
//! - carries out [`Event::Connect`] and [`Event::Disconnect`], and answers with [`Machine::connected`] or [`Machine::connection_lost`];
//! - hands in what a socket received ([`Machine::handle_bytes`]) and writes what [`Machine::poll_transmit`] gives out;
//! - calls [`Machine::handle_timeout`] when [`Machine::poll_timeout`] says;
//! - hands [`Machine::poll_event`] on to whom it belongs.

mod backoff;
mod config;
mod connection;
pub mod consumer;
mod event;
mod lookup;
mod machine;
mod producer;
mod requests;

pub use backoff::{Backoff, BackoffConfig};
pub use config::{AuthData, MachineConfig, ProducerConfig, check_service_url};
pub use connection::{MAX_UNSENT, PROTOCOL_VERSION};
pub use event::{Answer, Event, Receipt, SendsDone, TopicsChanged};
pub use machine::{ConsumerWire, Machine};
pub use producer::{AccessMode, Batching, Refused};

/// A point in time, in nanoseconds since whatever the caller counts from; it never goes back.
pub type Nanos = u64;

/// Nanoseconds of a millisecond.
pub const MILLIS: Nanos = 1_000_000;

/// A connection of the machine, never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey(pub u64);

/// A producer of the machine, never given out twice. The same number is its id on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerKey(pub u64);

/// A consumer of the machine, never given out twice. The same number is its id on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerKey(pub u64);

/// A question asked of the machine, which ends with one [`Event::Answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey(pub u64);

/// A watch over the topics of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchKey(pub u64);

/// What travels with a send, from [`Machine::send`] to its one terminal event: the reservation, and whom to tell.
///
/// The machine never drops one: it gives each back in exactly one [`Event::Sends`].
pub trait Ticket {
    /// Nobody waits for this send any more. What is not on the wire is skipped at the next step, and its ticket given back.
    fn abandoned(&self) -> bool {
        false
    }
}

impl Ticket for () {}
impl Ticket for u64 {}
