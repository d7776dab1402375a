//! The read gate: under light load the cost of a core is its turns, not its bytes. So after a small read a
//! connection does not ask to be woken for the next byte; it waits for a tick that all such connections share
//! and is then simply read. After some ticks without anything it goes back to being woken. A connection
//! whose reads are large is never gated, so nothing is lost at full rate.

/// Reads below this many bytes are small.
pub(super) const SMALL: usize = 16 * 1024;
/// Ticks without a byte after which a connection is woken by readiness again.
pub(super) const EMPTY_TICKS: u8 = 4;

/// The connections that wait for the next tick.
#[derive(Debug)]
pub(super) struct Ticks {
    every_us: u64,
    at_us: Option<u64>,
    keys: Vec<usize>,
}

impl Ticks {
    /// Ticks every so many microseconds; 0: no gate.
    pub(super) fn new(every_us: u64) -> Self {
        Self {
            every_us,
            at_us: None,
            keys: Vec::new(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.every_us > 0
    }

    /// A connection waits for the next tick.
    pub(super) fn add(&mut self, key: usize, now_us: u64) {
        self.keys.push(key);
        self.rearm(now_us);
    }

    /// The connections to read now, if the tick is due. They have to be added again to wait on.
    pub(super) fn due(&mut self, now_us: u64) -> Vec<usize> {
        if self.at_us.is_some_and(|at| at <= now_us) {
            self.at_us = None;
            std::mem::take(&mut self.keys)
        } else {
            Vec::new()
        }
    }

    /// Sets the next tick if somebody waits for one.
    pub(super) fn rearm(&mut self, now_us: u64) {
        if !self.keys.is_empty() && self.at_us.is_none() {
            self.at_us = Some(now_us + self.every_us);
        }
    }

    /// When the next tick is due.
    pub(super) fn next(&self) -> Option<u64> {
        self.at_us
    }

    /// A connection is gone.
    pub(super) fn forget(&mut self, key: usize) {
        self.keys.retain(|other| *other != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_wait_share_one_tick() {
        let mut ticks = Ticks::new(500);
        ticks.add(1, 1000);
        ticks.add(2, 1400);
        assert_eq!(ticks.next(), Some(1500));
        assert!(ticks.due(1499).is_empty());
        assert_eq!(ticks.due(1500), [1, 2]);
        assert_eq!(ticks.next(), None);
        ticks.add(2, 1510);
        assert_eq!(ticks.next(), Some(2010));
    }
}
