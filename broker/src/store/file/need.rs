//! How many spare segments a lane is worth: about as many as it has opened of late.
//!
//! A segment that is used again costs one rename; a new one is zeroed, which takes as much of the disk as filling it does, and one that is
//! removed can stop a disk that discards. So a busy lane keeps what it drops, and an idle one gives it back (PostgreSQL sizes its recycled
//! segments so as well, between `min_wal_size` and `max_wal_size`: <https://www.postgresql.org/docs/current/wal-configuration.html>).

use std::time::{Duration, Instant};

/// Spares that are kept in any case.
pub(super) const SPARES_MIN: usize = 2;
/// Spares beyond those may have this part of the room that is free.
const FREE_SHARE: u64 = 8;

/// Segments opened, of which each counts half as much after every half-life.
#[derive(Debug)]
pub(super) struct Need {
    level: f64,
    at: Instant,
    half_life: Duration,
}

impl Need {
    /// Begins with a need of `level`.
    pub(super) fn new(level: usize, at: Instant, half_life: Duration) -> Self {
        Self {
            level: level as f64,
            at,
            half_life,
        }
    }

    /// Notes that a segment was opened. The need does not rise above `max`, or it would be long in falling.
    pub(super) fn opened(&mut self, now: Instant, max: usize) {
        self.level = (self.level(now) + 1.0).min(max as f64);
        self.at = now;
    }

    fn level(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        let half_lives = age / self.half_life.as_secs_f64().max(f64::MIN_POSITIVE);
        self.level * (-half_lives).exp2()
    }

    /// Spares to keep: as many as are needed, at most `max`; above [`SPARES_MIN`] only what has its place in a part of the room `free`.
    /// `free` and `segment_len` are bytes.
    pub(super) fn spares(
        &self,
        now: Instant,
        max: usize,
        free: impl FnOnce() -> u64,
        segment_len: u64,
    ) -> usize {
        // Casting cuts off, and a float that is no count becomes 0.
        let wanted = (self.level(now).ceil() as usize).min(max);
        if wanted <= SPARES_MIN {
            return SPARES_MIN;
        }
        let fit = free() / FREE_SHARE / segment_len.max(1);
        wanted.min(usize::try_from(fit).unwrap_or(usize::MAX).max(SPARES_MIN))
    }
}

/// Spares that have their place in `bytes`, but never fewer than [`SPARES_MIN`].
pub(super) fn spares_max(bytes: u64, segment_len: u64) -> usize {
    let fit = bytes / segment_len.max(1);
    usize::try_from(fit).unwrap_or(usize::MAX).max(SPARES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Duration = Duration::from_secs(300);
    const LEN: u64 = 64 << 20;

    fn plenty() -> u64 {
        u64::MAX
    }

    #[test]
    fn need_rises_with_use_and_falls_with_time() {
        let start = Instant::now();
        let mut need = Need::new(0, start, HALF);
        assert_eq!(need.spares(start, 32, plenty, LEN), SPARES_MIN);
        for _ in 0..10 {
            need.opened(start, 32);
        }
        assert_eq!(need.spares(start, 32, plenty, LEN), 10);
        assert_eq!(need.spares(start + HALF, 32, plenty, LEN), 5);
        assert_eq!(need.spares(start + 2 * HALF, 32, plenty, LEN), 3);
        assert_eq!(need.spares(start + 100 * HALF, 32, plenty, LEN), SPARES_MIN);
        // However long it was busy before, a lane is small again after the same time.
        for _ in 0..100_000 {
            need.opened(start + HALF, 32);
        }
        assert_eq!(need.spares(start + HALF, 32, plenty, LEN), 32);
        assert_eq!(need.spares(start + 5 * HALF, 32, plenty, LEN), SPARES_MIN);
    }

    #[test]
    fn a_lane_that_opens_steadily_keeps_what_it_opens_in_some_minutes() {
        let start = Instant::now();
        let mut need = Need::new(0, start, HALF);
        let mut now = start;
        for _ in 0..1000 {
            now += Duration::from_secs(20);
            need.opened(now, 1000);
        }
        let spares = need.spares(now, 1000, plenty, LEN);
        assert!((20..=24).contains(&spares), "{spares}");
    }

    #[test]
    fn neither_the_limit_nor_the_free_room_is_exceeded() {
        let start = Instant::now();
        let need = Need::new(100, start, HALF);
        assert_eq!(need.spares(start, 7, plenty, LEN), 7);
        assert_eq!(need.spares(start, 100, || 8 * 5 * LEN + 1, LEN), 5);
        assert_eq!(need.spares(start, 100, || 0, LEN), SPARES_MIN);
        assert_eq!(spares_max(2 << 30, LEN), 32);
        assert_eq!(spares_max(0, LEN), SPARES_MIN);
    }

    #[test]
    fn odd_times_are_harmless() {
        let start = Instant::now();
        let mut need = Need::new(9, start + HALF, Duration::ZERO);
        assert_eq!(need.spares(start, 32, plenty, LEN), 9);
        need.opened(start, 32);
        assert_eq!(need.spares(start + HALF, 32, plenty, LEN), SPARES_MIN);
    }
}
