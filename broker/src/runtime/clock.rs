//! The two clocks of the process.

use super::port::Now;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads the clocks; copies agree with each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock at zero.
    pub(super) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Microseconds since the start.
    pub(super) fn us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The time as the engine sees it.
    pub(super) fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            ms: self.us() / 1000,
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
