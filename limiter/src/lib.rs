//! Vela's limiter: how much memory inbound traffic holds, and who must wait because of it. No IO, no clock:
//! whoever asks brings the time, in nanoseconds since any fixed moment.
//!
//! * [`BufferMemory`] counts what every holder of buffers keeps; [`MemoryLimiter`] decides when reading stops.
//! * [`Throttle`] says of one connection why it waits; [`RateLimiter`] holds and frees connections by rate.
//! * [`MemoryLimit`] is what a sender reserves of before it queues, first come, first served.
//! * [`FrameBudget`] and [`Budget`] admit the memory of frames that are still incomplete.

pub mod bucket;
pub mod budget;
pub mod frames;
pub mod memory;
pub mod notify;
pub mod pending;
pub mod policy;
pub mod reservation;
pub mod shared;
mod sync;
pub mod throttle;
pub mod waiters;

pub use bucket::{Pace, PublishRate, TokenBucket};
pub use budget::{Admission, Budget, over_share};
pub use frames::FrameBudget;
pub use memory::{BufferMemory, Holder};
pub use notify::Listener;
pub use pending::Pending;
pub use policy::{MemoryLimiter, Mode, ParseModeError, State, Transitions};
pub use reservation::{Full, MemoryLimit, Reservation, Reserve};
pub use shared::{SharedBucket, SharedRate};
pub use throttle::{HoldCounts, Latch, Reason, Released, Throttle};
pub use waiters::{HoldTicket, RateLimiter, Waiters};
