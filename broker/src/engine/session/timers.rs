//! The times at which sessions have something to do. They go with their session: those who connect and leave, however fast, leave nothing
//! behind.

use std::collections::BTreeSet;

/// Times of one core's sessions, in milliseconds of the monotonic clock.
#[derive(Default)]
pub(super) struct Timers {
    /// (time, slot, generation).
    due: BTreeSet<(u64, u32, u32)>,
    /// The times of the session in each slot: a few.
    of: Vec<Vec<u64>>,
}

impl Timers {
    /// Sets a time for a session that is there.
    pub(super) fn set(&mut self, at: u64, slot: u32, generation: u32) {
        let index = slot as usize;
        if self.of.len() <= index {
            self.of.resize_with(index + 1, Vec::new);
        }
        if let Some(times) = self.of.get_mut(index)
            && self.due.insert((at, slot, generation))
        {
            times.push(at);
        }
    }

    /// The next time.
    pub(super) fn first(&self) -> Option<u64> {
        self.due.first().map(|(at, _, _)| *at)
    }

    /// Takes out one that has come: the session's slot and generation.
    pub(super) fn pop(&mut self, now_ms: u64) -> Option<(u32, u32)> {
        let &(at, slot, generation) = self.due.first().filter(|(at, _, _)| *at <= now_ms)?;
        self.due.pop_first();
        if let Some(times) = self.of.get_mut(slot as usize) {
            times.retain(|time| *time != at);
        }
        Some((slot, generation))
    }

    /// The session has ended.
    pub(super) fn end(&mut self, slot: u32, generation: u32) {
        let times = self.of.get_mut(slot as usize).map(std::mem::take);
        for at in times.unwrap_or_default() {
            self.due.remove(&(at, slot, generation));
        }
    }

    /// Whether the books agree, and every time belongs to a session.
    pub(super) fn audit(&self, lives: impl Fn(u32, u32) -> bool) -> Result<(), String> {
        let listed: usize = self.of.iter().map(Vec::len).sum();
        if listed != self.due.len() {
            return Err(format!(
                "{} times are set, {listed} are listed",
                self.due.len()
            ));
        }
        match self.due.iter().find(|(_, slot, at)| !lives(*slot, *at)) {
            Some(of) => Err(format!("a time is set for a session that is gone: {of:?}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_in_order_and_go_with_their_session() {
        let mut timers = Timers::default();
        for (at, slot) in [(30, 0), (10, 1), (20, 0), (20, 0), (20, 1)] {
            timers.set(at, slot, 7);
        }
        assert_eq!((timers.first(), timers.pop(9)), (Some(10), None));
        assert_eq!(timers.pop(10), Some((1, 7)));
        assert_eq!(timers.audit(|_, generation| generation == 7), Ok(()));
        assert!(timers.audit(|slot, _| slot == 0).is_err());
        timers.end(0, 7);
        assert_eq!(timers.audit(|slot, _| slot == 1), Ok(()));
        // The next session in the slot has times of its own.
        timers.set(15, 0, 8);
        assert_eq!(
            [timers.pop(99), timers.pop(99), timers.pop(99)],
            [Some((0, 8)), Some((1, 7)), None]
        );
        assert!(timers.of.iter().all(Vec::is_empty));
    }

    #[test]
    fn sessions_that_come_and_go_leave_nothing() {
        let mut timers = Timers::default();
        for generation in 0..10_000 {
            timers.set(30_000 + u64::from(generation), 0, generation);
            timers.end(0, generation);
        }
        assert_eq!((timers.due.len(), timers.of.len()), (0, 1));
    }
}
