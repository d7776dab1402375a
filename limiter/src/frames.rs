//! Admission of incomplete frames in two lanes, so that large frames that never end cannot keep small ones out.

use crate::budget::{Admission, Budget};

/// The share of the limit that only small frames may use: one part in this many.
const SMALL_PARTS: u64 = 4;

/// A [`Budget`] for small frames and one for large ones. By the size it announces first, an owner takes a lane and
/// stays in it until it releases.
///
/// Large frames may use three quarters of the limit, small ones the last quarter. Each lane alone keeps the laws of
/// [`Budget`], so the sum passes the limit by no more than one reservation of each lane.
#[derive(Debug)]
pub struct FrameBudget<O> {
    small: Budget<O>,
    large: Budget<O>,
    small_frame: u64,
}

impl<O: Copy + Ord> FrameBudget<O> {
    /// Nobody holds any of `limit` bytes. Frames of at most `small_frame` bytes are small.
    #[must_use]
    pub fn new(limit: u64, small_frame: u64) -> Self {
        let small = limit / SMALL_PARTS;
        Self {
            small: Budget::new(small),
            large: Budget::new(limit - small),
            small_frame,
        }
    }

    /// Reserves `bytes` for `owner`; for one that already has or waits for some, that much more.
    pub fn admit(&mut self, owner: O, bytes: u64) -> Admission {
        let known = self.small.knows(owner);
        if known || bytes <= self.small_frame && !self.large.knows(owner) {
            self.small.admit(owner, bytes)
        } else {
            self.large.admit(owner, bytes)
        }
    }

    /// Reserves `more` bytes on top of what `owner` has or waits for, in its lane.
    pub fn grow(&mut self, owner: O, more: u64) -> Admission {
        self.admit(owner, more)
    }

    /// See [`Budget::release`].
    pub fn release(&mut self, owner: O) -> u64 {
        // An owner is in one lane only.
        self.small.release(owner) + self.large.release(owner)
    }

    /// See [`Budget::next_granted`].
    pub fn next_granted(&mut self) -> Option<O> {
        self.small
            .next_granted()
            .or_else(|| self.large.next_granted())
    }

    /// See [`Budget::set_limit`].
    pub fn set_limit(&mut self, bytes: u64) {
        let small = bytes / SMALL_PARTS;
        self.small.set_limit(small);
        self.large.set_limit(bytes - small);
    }

    /// Bytes that may be reserved.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.small.limit() + self.large.limit()
    }

    /// Bytes reserved now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.small.used() + self.large.used()
    }

    /// Bytes reserved for `owner`.
    #[must_use]
    pub fn held_by(&self, owner: O) -> u64 {
        self.small.held_by(owner) + self.large.held_by(owner)
    }

    /// How many owners wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.small.waiting() + self.large.waiting()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn silent_large_frames_leave_room_for_small_ones() {
        let mut budget = FrameBudget::new(64 << 20, 64 << 10);
        for owner in 0..600 {
            let _ = budget.admit(owner, 5 << 20);
        }
        assert_eq!((budget.used(), budget.waiting()), (9 * (5 << 20), 591));
        for round in 0..1_000 {
            assert_eq!(budget.admit(1_000, 64 << 10), Admission::Granted, "{round}");
            assert_eq!(budget.release(1_000), 64 << 10);
        }
        assert_eq!(budget.admit(1_001, (64 << 10) + 1), Admission::Waits);
        assert!(budget.used() <= budget.limit());
    }

    #[test]
    fn an_owner_stays_in_its_lane_until_it_releases() {
        let mut budget = FrameBudget::new(400, 10);
        assert_eq!(budget.admit(1, 10), Admission::Granted);
        assert_eq!(budget.grow(1, 50), Admission::Granted);
        assert_eq!(budget.admit(2, 300), Admission::Granted);
        assert_eq!(
            budget.grow(2, 5),
            Admission::Granted,
            "stuck alone, so it passes"
        );
        assert_eq!((budget.held_by(1), budget.held_by(2)), (60, 305));
        assert_eq!(budget.admit(3, 41), Admission::Waits);
        assert_eq!(budget.admit(4, 10), Admission::Granted);
        assert_eq!(budget.release(2), 305);
        assert_eq!(budget.next_granted(), Some(3));
        assert_eq!(budget.next_granted(), None);
        for (owner, held) in [(1, 60), (3, 41), (4, 10)] {
            assert_eq!(budget.release(owner), held);
        }
        assert_eq!(budget.used(), 0);
        budget.set_limit(8);
        assert_eq!(budget.limit(), 8);
    }
}
