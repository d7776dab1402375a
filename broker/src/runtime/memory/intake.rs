//! What all cores share of the memory of inbound frames: its limiter, its settings, and what came of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use vela_codec::Sizes;
use vela_limiter::MemoryLimiter;

/// What all cores share of this.
#[derive(Debug)]
pub(in crate::runtime) struct Intake {
    pub(in crate::runtime) limiter: Arc<MemoryLimiter>,
    /// Sizes of the receive buffer.
    pub(in crate::runtime) sizes: Sizes,
    /// Whether heavy connections stop before the others.
    pub(in crate::runtime) fairness: bool,
    /// How long an unfinished frame may stand still, in milliseconds.
    pub(in crate::runtime) frame_timeout_ms: u64,
    /// Connections that retain inbound bytes, over all cores.
    pub(super) holders: AtomicUsize,
    /// Connections closed because a frame stood still.
    pub(super) stood: AtomicU64,
    /// Connections closed because others waited for the memory of a slow frame.
    pub(super) evicted: AtomicU64,
    /// Times a frame began to come by a few bytes at a time.
    pub(in crate::runtime) trickles: AtomicU64,
    /// Connections that are not read because of memory.
    pub(super) held: AtomicUsize,
    /// Times a connection began to be held by memory, and times it was let go, its end included.
    pub(super) holds: AtomicU64,
    pub(super) releases: AtomicU64,
}

impl Intake {
    pub(in crate::runtime) fn new(
        limiter: Arc<MemoryLimiter>,
        sizes: Sizes,
        fairness: bool,
        frame_timeout_ms: u64,
    ) -> Self {
        Self {
            limiter,
            sizes,
            fairness,
            frame_timeout_ms,
            holders: AtomicUsize::new(0),
            stood: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            trickles: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            holds: AtomicU64::new(0),
            releases: AtomicU64::new(0),
        }
    }

    /// Connections closed because a frame stood still, and because others waited for its memory.
    pub(in crate::runtime) fn closed(&self) -> (u64, u64) {
        (
            self.stood.load(Ordering::Relaxed),
            self.evicted.load(Ordering::Relaxed),
        )
    }

    /// Connections that are not read because of memory.
    pub(in crate::runtime) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed) as u64
    }

    /// Times a connection began to be held by memory, and times it was let go, its end included.
    pub(in crate::runtime) fn holds(&self) -> (u64, u64) {
        (
            self.holds.load(Ordering::Relaxed),
            self.releases.load(Ordering::Relaxed),
        )
    }

    pub(super) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn let_go(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.releases.fetch_add(1, Ordering::Relaxed);
    }
}
