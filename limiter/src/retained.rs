//! How many bytes inbound frames keep alive, over all cores.

use std::sync::atomic::{AtomicI64, Ordering};

/// Bytes of receive memory that is allocated and not yet free again, counted by *capacity*.
///
/// Lock-free: one relaxed addition when a receive allocation is made and one when its last slice is
/// dropped, on whatever core either happens. Relaxed is enough, because the number orders nothing: it
/// is only ever compared with watermarks. A reader may see the two sides of a hand-over between cores
/// in either order, so the sum is signed inside and clamped at zero outside.
#[derive(Debug, Default)]
pub struct Retained {
    bytes: AtomicI64,
}

impl Retained {
    /// A counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: AtomicI64::new(0),
        }
    }

    /// Counts an allocation of `capacity` bytes in.
    pub fn allocated(&self, capacity: usize) {
        self.bytes.fetch_add(signed(capacity), Ordering::Relaxed);
    }

    /// Counts an allocation of `capacity` bytes out again.
    pub fn released(&self, capacity: usize) {
        self.bytes.fetch_sub(signed(capacity), Ordering::Relaxed);
    }

    /// Bytes retained now, never negative.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// No allocation is larger than `isize::MAX`, so nothing is ever cut here.
fn signed(capacity: usize) -> i64 {
    i64::try_from(capacity).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::Arc;

    #[test]
    fn counts_in_and_out_over_threads() {
        let retained = Arc::new(Retained::new());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let retained = Arc::clone(&retained);
                std::thread::spawn(move || {
                    for size in 1..=1000 {
                        retained.allocated(size);
                        if size % 2 == 0 {
                            retained.released(size);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // The odd sizes of 1..=1000 stay: 500 squared, four times.
        assert_eq!(retained.bytes(), 4 * 250_000);
    }

    #[test]
    fn a_release_seen_first_reads_as_zero() {
        let retained = Retained::new();
        retained.released(10);
        assert_eq!(retained.bytes(), 0);
        retained.allocated(10);
        assert_eq!(retained.bytes(), 0);
        retained.allocated(7);
        assert_eq!(retained.bytes(), 7);
    }
}
