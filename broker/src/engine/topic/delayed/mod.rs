//! Delayed delivery: entries whose time (`deliver_at_time`) is ahead, on Shared and Key_Shared subscriptions.
//!
//! Dispatch puts such an entry aside when it first comes to it ([`Delayed::put_aside`]); it costs no permits and stays in the backlog. When its
//! time has come it is *due* and goes out like any other entry, in the order of the log among those that are due.
//!
//! Nothing of this is stored. The times are in the entries, and whether an entry is done with is the cursor's to say: who starts anew
//! behind the mark-delete position comes across everything again, after a restart as well as when the first consumer comes back.
//!
//! **Memory.** The times of the `limit` entries that are due next are kept one by one. Of what is due later than those - at the *horizon* or
//! behind it - only the [`Stretches`] of the log are kept in which it stands. Before the horizon is reached, those stretches are read
//! again ([`reading`]) and the entries that are next then take the room that has become free, half of it at least, so each entry is read about once for
//! every `limit / 2` entries that are delayed at the same time. Where more entries than that have one and the same time, they are found when it has
//! come, as fast as they are taken.

mod reading;
mod stretches;
mod timing;

use std::collections::{BTreeSet, VecDeque};

pub(super) use self::reading::read_on;
use self::stretches::{Stretch, Stretches};
pub(super) use self::timing::{Timers, limit};
use crate::store::log::{Position, ReadHint};

/// How long before the horizon the stretches behind it are read, milliseconds.
const LEAD_MS: u64 = 10_000;
/// What an entry takes that is kept with its time, bytes: a time and a position in a tree that is half full.
const BYTES_PER_TIME: usize = 56;
/// The same of one that is due.
const BYTES_PER_DUE: usize = 40;
/// The same of a stretch.
const BYTES_PER_STRETCH: usize = 80;

/// When messages are delayed, and how exactly.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Rule {
    /// Off: everything goes out at once.
    pub(super) enabled: bool,
    /// `delayedDeliveryTickTimeMillis`, at least 1.
    pub(super) tick_ms: u64,
    /// `isDelayedDeliveryDeliverAtTimeStrict`: what comes due within a tick is delayed, too.
    pub(super) strict: bool,
    /// Entries whose times are kept one by one, and entries that are due.
    pub(super) limit: usize,
}

impl Rule {
    /// Is an entry delayed that dispatch comes to at `now_ms` and that wants to be delivered at `at_ms`, both since the Unix epoch?
    pub(super) fn delays(&self, at_ms: u64, now_ms: u64) -> bool {
        let early = if self.strict { 0 } else { self.tick_ms };
        self.enabled && at_ms > now_ms.saturating_add(early)
    }

    /// Everything up to this time is due.
    fn due(&self, now_ms: u64) -> u64 {
        if self.enabled { now_ms } else { u64::MAX }
    }

    /// When to look for what is due at `at_ms`: what is due within the same eighth of a tick is looked for at once.
    fn look_at(&self, at_ms: u64) -> u64 {
        let step = (self.tick_ms / 8).max(1);
        at_ms.div_ceil(step).saturating_mul(step)
    }
}

/// Reading of stretches.
#[derive(Debug)]
struct Search {
    /// What is left to read, in order.
    left: VecDeque<(Position, Stretch)>,
    /// The last entry that was read.
    at: Position,
}

impl Search {
    /// Will this entry be read?
    fn covers(&self, position: Position) -> bool {
        let behind = self.left.partition_point(|(first, _)| *first <= position);
        let stretch = behind.checked_sub(1).and_then(|at| self.left.get(at));
        position > self.at && stretch.is_some_and(|(_, stretch)| position <= stretch.last)
    }
}

/// The delayed entries of one subscription. All times are milliseconds since the Unix epoch.
#[derive(Debug)]
pub(super) struct Delayed {
    /// Entries by their times, all before the horizon.
    soon: BTreeSet<(u64, Position)>,
    /// Their time has come.
    due: BTreeSet<Position>,
    /// Entries due from here on are in `far`; `u64::MAX` = there are none.
    horizon: u64,
    far: Stretches,
    search: Option<Search>,
    /// The horizon that was searched ahead of time; not again before it is reached.
    searched: Option<u64>,
    hint: ReadHint,
    /// When its timer fires, monotonic milliseconds.
    timer: Option<u64>,
}

impl Default for Delayed {
    fn default() -> Self {
        Delayed {
            soon: BTreeSet::new(),
            due: BTreeSet::new(),
            horizon: u64::MAX,
            far: Stretches::default(),
            search: None,
            searched: None,
            hint: ReadHint::default(),
            timer: None,
        }
    }
}

impl Delayed {
    /// Nothing is delayed, and nothing is due.
    pub(super) fn is_empty(&self) -> bool {
        self.soon.is_empty() && self.due.is_empty() && self.far.is_empty() && self.search.is_none()
    }

    /// Entries whose time has not come. One that was acknowledged meanwhile counts until then.
    pub(super) fn waiting(&self) -> u64 {
        let searched = self.search.as_ref().map_or(0, |search| {
            search.left.iter().map(|(_, stretch)| stretch.count).sum()
        });
        self.soon.len() as u64 + self.far.count() + searched
    }

    /// Entries that are due and have not gone out.
    pub(super) fn due(&self) -> usize {
        self.due.len()
    }

    /// Memory that it takes, bytes, about.
    pub(super) fn memory(&self) -> usize {
        let searched = self.search.as_ref().map_or(0, |search| search.left.len());
        self.soon.len() * BYTES_PER_TIME
            + self.due.len() * BYTES_PER_DUE
            + (self.far.len() + searched) * BYTES_PER_STRETCH
    }

    /// The most it takes, bytes.
    #[cfg(test)]
    fn memory_max(limit: usize) -> usize {
        limit * (BYTES_PER_TIME + BYTES_PER_DUE) + 2 * stretches::MAX * BYTES_PER_STRETCH
    }

    /// An entry waits for its time.
    pub(super) fn put_aside(&mut self, position: Position, at_ms: u64, limit: usize) {
        if at_ms >= self.horizon {
            return self.put_far(position);
        }
        self.soon.insert((at_ms, position));
        while self.soon.len() > limit.max(1) {
            self.shed();
        }
    }

    fn put_far(&mut self, position: Position) {
        // What will be read again is counted then.
        let read = self.search.as_ref().is_some_and(|s| s.covers(position));
        if !read {
            self.far.add(position);
        }
    }

    /// Gives up the times of the later half.
    fn shed(&mut self) {
        let middle = self.soon.iter().nth(self.soon.len() / 2);
        let (Some((first, _)), Some((middle, _))) = (self.soon.first(), middle) else {
            return;
        };
        // Those of one time stay or go together.
        let next = match middle > first {
            true => Some(*middle),
            false => {
                let behind = (first.saturating_add(1), Position::EARLIEST);
                self.soon.range(behind..).next().map(|(at, _)| *at)
            }
        };
        self.horizon = next.unwrap_or(*first);
        let later = self.soon.split_off(&(self.horizon, Position::EARLIEST));
        let mut later: Vec<Position> = later.into_iter().map(|(_, position)| position).collect();
        later.sort_unstable();
        for position in later {
            self.put_far(position);
        }
    }

    /// What has come due is due.
    pub(super) fn promote(&mut self, rule: &Rule, now_ms: u64) {
        let upto = rule.due(now_ms);
        while !self.is_full(rule)
            && let Some((at, position)) = self.soon.first().copied()
            && at <= upto
        {
            self.soon.pop_first();
            self.due.insert(position);
        }
    }

    /// The first entry that is due.
    pub(super) fn first_due(&self) -> Option<Position> {
        self.due.first().copied()
    }

    /// An entry that is due has gone out, or is done with.
    pub(super) fn take(&mut self, position: Position) {
        self.due.remove(&position);
    }

    /// Forgets everything but the timer, which then finds nothing.
    pub(super) fn clear(&mut self) {
        if !self.is_empty() {
            *self = Delayed {
                timer: self.timer,
                ..Delayed::default()
            };
        }
    }

    /// Begins to read the stretches if the horizon is near. True if there is something to read, and room for it.
    fn searches(&mut self, rule: &Rule, now_ms: u64) -> bool {
        if self.is_full(rule) {
            return false;
        }
        if self.search.is_some() {
            return true;
        }
        if self.far.is_empty() {
            self.horizon = u64::MAX;
            return false;
        }
        if self.horizon > rule.due(now_ms) {
            let near = self.horizon <= now_ms.saturating_add(LEAD_MS);
            let room = self.soon.len() <= rule.limit / 2;
            if !near || !room || self.searched == Some(self.horizon) {
                return false;
            }
        }
        self.searched = Some(self.horizon);
        self.horizon = u64::MAX;
        let left = self.far.take();
        let at = Position::EARLIEST;
        self.search = Some(Search { left, at });
        true
    }

    fn has_read(&mut self, position: Position) {
        if let Some(search) = &mut self.search {
            search.at = position;
        }
    }

    /// Is there no room for more that is due?
    pub(super) fn is_full(&self, rule: &Rule) -> bool {
        self.due.len() >= rule.limit.max(1)
    }

    /// When to look again, given that what is due was taken up: the time of the next entry, or the time to read the stretches.
    fn next_look(&self, rule: &Rule, now_ms: u64) -> Option<u64> {
        if self.is_full(rule) {
            // When some of them have gone.
            return None;
        }
        let soon = self.soon.first().map(|(at, _)| *at);
        let far = (!self.far.is_empty() && self.search.is_none()).then(|| {
            match self.searched == Some(self.horizon) {
                true => self.horizon,
                false => self.horizon.saturating_sub(LEAD_MS),
            }
        });
        // Stretches that are near, but for which there is no room yet, are looked at when something has become due.
        let far = far.map(|far| match far > now_ms {
            true => far,
            false => self.horizon.max(now_ms.saturating_add(1)),
        });
        let next = soon.into_iter().chain(far).min()?;
        Some(rule.look_at(next))
    }

    /// What does not add up, if anything. `held` = somebody holds this entry, or it waits elsewhere.
    pub(super) fn audit(&self, held: impl Fn(Position) -> bool) -> Result<(), String> {
        let soon = self.soon.iter().map(|(_, position)| *position);
        if let Some(twice) = self.due.iter().copied().chain(soon).find(|at| held(*at)) {
            return Err(format!("{twice} is delayed and out, or to be replayed"));
        }
        if let Some((at, position)) = self.soon.last().filter(|(at, _)| *at >= self.horizon) {
            let horizon = self.horizon;
            return Err(format!("{position} is due at {at}, behind {horizon}"));
        }
        if self.far.is_empty() || self.horizon < u64::MAX {
            return Ok(());
        }
        Err("there are stretches behind no horizon".into())
    }
}

#[cfg(test)]
mod tests;
