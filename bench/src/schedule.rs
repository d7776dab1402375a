//! When a message is due in an open loop.
//!
//! A generator that waits for answers before it sends again leaves out exactly the messages that would have waited longest
//! ("coordinated omission"). Here the times are fixed before the run: message i is due i / rate seconds after the start, and its
//! latency counts from then, however late the window or the socket let it out.

/// Due times of a fixed rate, in nanoseconds, without rounding drift.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// Events in 1000 seconds.
    rate: u64,
    next: u64,
    /// What `next` was rounded down by, in 1/rate nanoseconds.
    fraction: u64,
}

impl Schedule {
    /// `rate` events per second from `start` on.
    #[cfg(test)]
    pub(crate) fn new(start: u64, rate: u64) -> Self {
        Self::share(start, rate, 1, 1)
    }

    /// `part` of `whole` parts of `rate` events per second from `start` on, rounded to a thousandth of an event per second.
    pub(crate) fn share(start: u64, rate: u64, part: u64, whole: u64) -> Self {
        let millis = u128::from(rate) * 1000 * u128::from(part) / u128::from(whole.max(1));
        Self {
            rate: u64::try_from(millis).unwrap_or(u64::MAX).max(1),
            next: start,
            fraction: 0,
        }
    }

    /// Takes the next event if it is due by `now`; answers when it was due.
    pub(crate) fn take(&mut self, now: u64) -> Option<u64> {
        (self.next <= now).then(|| self.step(1))
    }

    /// Takes the next `count` events as one, if the last of them is due by `now`; answers when that was due.
    pub(crate) fn take_group(&mut self, count: u64, now: u64) -> Option<u64> {
        if count <= 1 {
            return self.take(now);
        }
        let mut ahead = self.clone();
        ahead.step(count - 1);
        let due = ahead.take(now)?;
        *self = ahead;
        Some(due)
    }

    /// When the last of the next `count` events is due.
    pub(crate) fn group_due(&self, count: u64) -> u64 {
        let mut ahead = self.clone();
        ahead.step(count.saturating_sub(1));
        ahead.next
    }

    /// Events due from the next one on, before `end`.
    pub(crate) fn left_before(&self, end: u64) -> u64 {
        let span = u128::from(end.saturating_sub(self.next)) * u128::from(self.rate);
        u64::try_from(span.div_ceil(1_000_000_000_000)).unwrap_or(u64::MAX)
    }

    fn step(&mut self, count: u64) -> u64 {
        let due = self.next;
        // At most 10 000 (a batch) times 10^12: within 64 bits.
        let advance = count * 1_000_000_000_000 + self.fraction;
        self.next += advance / self.rate;
        self.fraction = advance % self.rate;
        due
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::measure::Latencies;

    #[test]
    fn a_second_holds_exactly_the_rate() {
        for rate in [1, 3, 7, 999, 1_000_003, 100_000_000] {
            let mut schedule = Schedule::new(5, rate);
            let mut taken = 0;
            while schedule.take(5 + 999_999_999).is_some() {
                taken += 1;
            }
            assert_eq!(taken, rate);
            assert_eq!(schedule.group_due(1), 5 + 1_000_000_000);
        }
    }

    #[test]
    fn shares_add_up() {
        let mut parts: Vec<_> = [1, 2, 4]
            .map(|part| Schedule::share(0, 20_000, part, 7))
            .into();
        let taken: usize = parts
            .iter_mut()
            .map(|part| std::iter::from_fn(|| part.take(9_999_999_999)).count())
            .sum();
        assert!(taken.abs_diff(200_000) <= 3, "{taken}");
    }

    #[test]
    fn what_is_left_is_what_would_be_taken() {
        let mut schedule = Schedule::new(0, 20_000);
        for end in [0, 1, 49_999, 50_000, 50_001, 1_000_000] {
            let mut ahead = schedule.clone();
            let taken = std::iter::from_fn(|| ahead.take(end.max(1) - 1)).count() as u64;
            let left = schedule.left_before(end);
            assert!(
                end == 0 && left == 0 || left == taken,
                "{end}: {left}, {taken}"
            );
        }
        assert_eq!(schedule.take(0), Some(0));
        assert_eq!(schedule.left_before(50_000), 0);
    }

    #[test]
    fn groups_are_due_with_their_last_event() {
        let mut schedule = Schedule::new(0, 1000);
        assert_eq!(schedule.group_due(10), 9_000_000);
        assert_eq!(schedule.take_group(10, 8_999_999), None);
        assert_eq!(schedule.take_group(10, 9_000_000), Some(9_000_000));
        assert_eq!(schedule.group_due(1), 10_000_000);
    }

    /// A broker that answers in 1 ms, but stands still for one second of ten. Of 10 000 messages, 1000 come due in the pause and
    /// wait half a second on average: p90 is untouched, p99 near 0.9 s. Counting from the actual send would see one slow message.
    #[test]
    fn messages_due_in_a_pause_count_their_wait() {
        const MS: u64 = 1_000_000;
        let pause = 5_000 * MS..6_000 * MS;
        let mut schedule = Schedule::new(0, 1000);
        let (mut corrected, mut naive) = (Latencies::new().unwrap(), Latencies::new().unwrap());
        let mut now = 0;
        while now < 10_000 * MS {
            // A window of one: nothing goes out before the answer came.
            let Some(due) = schedule.take(now) else {
                now = schedule.group_due(1);
                continue;
            };
            let sent = now;
            let answered = if pause.contains(&sent) {
                pause.end + MS / 100
            } else {
                sent + MS / 100
            };
            corrected.record(answered - due, 1);
            naive.record(answered - sent, 1);
            now = answered;
        }
        let (corrected, naive) = (corrected.summary(), naive.summary());
        assert_eq!(corrected.messages, 10_000);
        assert!(corrected.p50 < 20.0, "{corrected:?}");
        assert!(
            (850_000.0..950_000.0).contains(&corrected.p99),
            "{corrected:?}"
        );
        assert!(corrected.max > 990_000.0, "{corrected:?}");
        assert!(
            naive.p999 < 20.0,
            "what the correction is there for: {naive:?}"
        );
    }
}
