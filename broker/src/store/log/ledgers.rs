//! Where a topic's entries are: its ledgers, and for each the places in the log.

use std::collections::VecDeque;

use super::{Position, state::Damage};

/// Entries of one topic that stand in one chunk: where the first of them is. The following ones are found by reading on.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Run {
    /// The chunk's number.
    pub seq: u64,
    /// The first entry of the run.
    pub first: u32,
    /// Where in the chunk that entry's record begins, in bytes.
    pub offset: u32,
}

/// One ledger: a stretch of entries numbered from 0 without holes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LedgerInfo {
    /// The ledger's id; ids rise within a topic.
    pub id: i64,
    /// Entries in it.
    pub entries: i64,
    /// Bytes of those entries as published.
    pub bytes: u64,
    /// Wall clock when it was opened, milliseconds since 1970.
    pub opened_ms: u64,
    /// Where the entries are, in order.
    pub runs: Vec<Run>,
    /// Entries the topic ever had in ledgers before this one. Differences of ranks count entries over any distance.
    base: u64,
}

impl LedgerInfo {
    /// The position of the last entry; `id:-1` while there is none.
    pub const fn last(&self) -> Position {
        Position::new(self.id, self.entries - 1)
    }
}

/// When a ledger is closed and the next one opened (`managedLedgerMaxEntriesPerLedger`, `managedLedgerMaxSizePerLedgerMbytes`,
/// `managedLedgerMaxLedgerRolloverTimeMinutes`).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RollPolicy {
    /// Roll at so many entries.
    pub entries: u64,
    /// Roll at so many bytes.
    pub bytes: u64,
    /// Roll a ledger that has entries at this age, milliseconds.
    pub age_ms: u64,
}

impl Default for RollPolicy {
    fn default() -> Self {
        Self {
            entries: 50_000,
            bytes: 2 << 30,
            age_ms: 4 * 3_600_000,
        }
    }
}

/// Where to look for an entry.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Location {
    /// The chunk.
    pub seq: u64,
    /// Where the record of entry `first` begins in it, bytes.
    pub offset: u32,
    /// The first entry of this topic there.
    pub first: i64,
    /// The entries from `first` up to this one (not included) are in this chunk.
    pub end: i64,
}

/// What a trim removed.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Trimmed {
    /// Ledgers removed.
    pub ledgers: u64,
    /// Entries removed.
    pub entries: u64,
    /// Bytes removed.
    pub bytes: u64,
}

/// The ledgers of one topic, oldest first. Only the last one may be empty: an empty ledger is forgotten when the next opens.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ledgers {
    ledgers: VecDeque<LedgerInfo>,
    entries: u64,
    bytes: u64,
}

impl Ledgers {
    /// A topic without ledgers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a ledger; the one before is closed, and forgotten if it is empty.
    ///
    /// # Errors
    /// [`Damage::LedgerOrder`] if `id` is not above every id before it; nothing changes then.
    pub fn open(&mut self, id: i64, opened_ms: u64) -> Result<(), Damage> {
        let mut base = 0;
        if let Some(last) = self.ledgers.back() {
            if id <= last.id {
                return Err(Damage::LedgerOrder {
                    ledger: id,
                    last: last.id,
                });
            }
            base = last.base.saturating_add(last.entries.unsigned_abs());
            if last.entries == 0 {
                self.ledgers.pop_back();
            }
        } else if id < 0 {
            return Err(Damage::LedgerOrder {
                ledger: id,
                last: -1,
            });
        }
        self.ledgers.push_back(LedgerInfo {
            id,
            entries: 0,
            bytes: 0,
            opened_ms,
            runs: Vec::new(),
            base,
        });
        Ok(())
    }

    /// The newest ledger, where the next entry goes.
    pub fn current(&self) -> Option<&LedgerInfo> {
        self.ledgers.back()
    }

    /// The position the next entry gets in the newest ledger.
    pub fn next_position(&self) -> Option<Position> {
        self.ledgers
            .back()
            .map(|ledger| Position::new(ledger.id, ledger.entries))
    }

    /// Notes an entry of `len` bytes whose record begins at `offset` in chunk `seq`.
    ///
    /// # Errors
    /// [`Damage::EntryOrder`] if it is not the next entry of the newest ledger; nothing changes then.
    #[inline]
    pub fn push(&mut self, at: Position, len: u32, seq: u64, offset: u32) -> Result<(), Damage> {
        let Some(ledger) = self.ledgers.back_mut() else {
            return Err(Damage::EntryOrder {
                entry: at,
                expected: None,
            });
        };
        let expected = Position::new(ledger.id, ledger.entries);
        let (true, Ok(first)) = (at == expected, u32::try_from(at.entry)) else {
            return Err(Damage::EntryOrder {
                entry: at,
                expected: Some(expected),
            });
        };
        if ledger.runs.last().is_none_or(|run| run.seq != seq) {
            ledger.runs.push(Run { seq, first, offset });
        }
        ledger.entries += 1;
        ledger.bytes += u64::from(len);
        self.entries += 1;
        self.bytes += u64::from(len);
        Ok(())
    }

    /// The last entry there is; `None` without entries.
    pub fn last(&self) -> Option<Position> {
        self.ledgers
            .iter()
            .rev()
            .find(|ledger| ledger.entries > 0)
            .map(LedgerInfo::last)
    }

    /// The first entry there is; `None` without entries.
    pub fn first(&self) -> Option<Position> {
        self.ledgers
            .front()
            .filter(|ledger| ledger.entries > 0)
            .map(|ledger| Position::new(ledger.id, 0))
    }

    /// The mark-delete position of a cursor that has acknowledged everything there is: the last position of the newest
    /// ledger, `ledger:-1` if that is empty, [`Position::EARLIEST`] without ledgers.
    pub fn end(&self) -> Position {
        self.ledgers
            .back()
            .map_or(Position::EARLIEST, LedgerInfo::last)
    }

    /// The first entry there is behind `after`, over ledger ends and gaps.
    #[inline]
    pub fn next(&self, after: Position) -> Option<Position> {
        // Most readers are in the newest ledger.
        if let Some(last) = self.ledgers.back()
            && after.ledger >= last.id
        {
            if after.ledger > last.id {
                return None;
            }
            let entry = after.entry.saturating_add(1).max(0);
            return (entry < last.entries).then_some(Position::new(last.id, entry));
        }
        let at = self
            .ledgers
            .partition_point(|ledger| ledger.id < after.ledger);
        let ledger = self.ledgers.get(at)?;
        if ledger.id == after.ledger {
            let entry = after.entry.saturating_add(1).max(0);
            if entry < ledger.entries {
                return Some(Position::new(ledger.id, entry));
            }
            let following = self.ledgers.get(at + 1)?;
            return (following.entries > 0).then_some(Position::new(following.id, 0));
        }
        (ledger.entries > 0).then_some(Position::new(ledger.id, 0))
    }

    /// The mark-delete position that makes `before` the next entry: `ledger:entry-1`, `ledger:-1` for entry 0.
    pub fn prev(&self, before: Position) -> Position {
        before.before()
    }

    /// Whether there is such an entry.
    #[inline]
    pub fn contains(&self, at: Position) -> bool {
        at.entry >= 0
            && self
                .find(at.ledger)
                .is_some_and(|ledger| at.entry < ledger.entries)
    }

    /// Entries behind `from` up to and with `to`.
    pub fn entries_between(&self, from: Position, to: Position) -> u64 {
        self.rank(to).saturating_sub(self.rank(from))
    }

    /// Entries behind `at`.
    pub fn entries_after(&self, at: Position) -> u64 {
        self.entries_between(at, Position::LATEST)
    }

    /// Entries in all ledgers.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes of the entries in all ledgers, as published.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the entry is; `None` if there is none.
    #[inline]
    pub fn locate(&self, at: Position) -> Option<Location> {
        let ledger = self.find(at.ledger)?;
        if at.entry < 0 || at.entry >= ledger.entries {
            return None;
        }
        // Tail readers want the last run.
        let behind = match ledger.runs.last() {
            Some(run) if i64::from(run.first) <= at.entry => ledger.runs.len(),
            _ => ledger
                .runs
                .partition_point(|run| i64::from(run.first) <= at.entry),
        };
        let run = ledger.runs.get(behind.checked_sub(1)?)?;
        let end = ledger
            .runs
            .get(behind)
            .map_or(ledger.entries, |next| i64::from(next.first));
        Some(Location {
            seq: run.seq,
            offset: run.offset,
            first: i64::from(run.first),
            end,
        })
    }

    /// Whether the newest ledger is due to be closed. An empty one never is.
    pub fn should_roll(&self, policy: &RollPolicy, now_ms: u64) -> bool {
        self.ledgers.back().is_some_and(|ledger| {
            let entries = ledger.entries.unsigned_abs();
            entries > 0
                && (entries >= policy.entries.min(u64::from(u32::MAX))
                    || ledger.bytes >= policy.bytes
                    || now_ms.saturating_sub(ledger.opened_ms) >= policy.age_ms)
        })
    }

    /// Removes the closed ledgers up to `through_ledger`. The newest ledger always stays.
    pub fn trim(&mut self, through_ledger: i64) -> Trimmed {
        let mut trimmed = Trimmed::default();
        while self.ledgers.len() > 1 {
            let Some(gone) = self
                .ledgers
                .pop_front_if(|ledger| ledger.id <= through_ledger)
            else {
                break;
            };
            trimmed.ledgers += 1;
            trimmed.entries += gone.entries.unsigned_abs();
            trimmed.bytes += gone.bytes;
        }
        self.entries = self.entries.saturating_sub(trimmed.entries);
        self.bytes = self.bytes.saturating_sub(trimmed.bytes);
        trimmed
    }

    /// The last ledger that could be trimmed if everything up to `slowest` is acknowledged ([`Position::LATEST`] if no
    /// cursor holds anything back).
    pub fn trimmable(&self, slowest: Position) -> Option<i64> {
        let closed = self.ledgers.len().checked_sub(1)?;
        let done = self
            .ledgers
            .partition_point(|ledger| ledger.last() <= slowest)
            .min(closed);
        self.ledgers
            .get(done.checked_sub(1)?)
            .map(|ledger| ledger.id)
    }

    /// Whether any entry stands in the chunks `first_seq..=last_seq`.
    pub fn uses_segment(&self, first_seq: u64, last_seq: u64) -> bool {
        // Chunk numbers rise over ledgers and runs; an empty newest ledger has no run and sorts last.
        let at = self
            .ledgers
            .partition_point(|ledger| ledger.runs.last().is_some_and(|run| run.seq < first_seq));
        self.ledgers.get(at).is_some_and(|ledger| {
            let run = ledger.runs.partition_point(|run| run.seq < first_seq);
            ledger.runs.get(run).is_some_and(|run| run.seq <= last_seq)
        })
    }

    /// The ledgers, oldest first.
    pub fn ledgers(&self) -> impl ExactSizeIterator<Item = &LedgerInfo> {
        self.ledgers.iter()
    }

    /// Entries the topic ever had in ledgers that are gone.
    pub(super) fn base(&self) -> u64 {
        self.ledgers.front().map_or(0, |ledger| ledger.base)
    }

    /// Appends a ledger read from a checkpoint; `base` counts for the first one.
    ///
    ///
    /// # Errors
    /// [`Damage`] if its id, or its runs, contradict themselves or what is there.
    pub(super) fn restore(
        &mut self,
        base: u64,
        id: i64,
        opened_ms: u64,
        entries: i64,
        bytes: u64,
        runs: Vec<Run>,
    ) -> Result<(), Damage> {
        self.open(id, opened_ms)?;
        let first = self.ledgers.len() == 1 && self.entries == 0;
        let fits = (0..=i64::from(u32::MAX)).contains(&entries)
            && runs.is_empty() == (entries == 0)
            && runs.first().is_none_or(|run| run.first == 0)
            && runs.last().is_none_or(|run| i64::from(run.first) < entries)
            && runs.is_sorted_by(|a, b| a.first < b.first && a.seq < b.seq);
        let Some(ledger) = self.ledgers.back_mut().filter(|_| fits) else {
            return Err(Damage::LedgerRuns { ledger: id });
        };
        if first {
            ledger.base = base;
        }
        (ledger.entries, ledger.bytes, ledger.runs) = (entries, bytes, runs);
        self.entries = self.entries.saturating_add(entries.unsigned_abs());
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    #[inline]
    fn find(&self, id: i64) -> Option<&LedgerInfo> {
        match self.ledgers.back() {
            Some(last) if last.id == id => Some(last),
            _ => self
                .ledgers
                .binary_search_by_key(&id, |ledger| ledger.id)
                .ok()
                .and_then(|at| self.ledgers.get(at)),
        }
    }

    /// Entries the topic ever had up to and with `at`.
    fn rank(&self, at: Position) -> u64 {
        let ledger = match self.ledgers.back() {
            Some(last) if last.id <= at.ledger => last,
            _ => {
                let behind = self
                    .ledgers
                    .partition_point(|ledger| ledger.id <= at.ledger);
                let Some(ledger) = behind.checked_sub(1).and_then(|i| self.ledgers.get(i)) else {
                    // Before everything that is left.
                    return self.ledgers.front().map_or(0, |ledger| ledger.base);
                };
                ledger
            }
        };
        let within = if ledger.id < at.ledger {
            ledger.entries
        } else {
            at.entry.saturating_add(1).clamp(0, ledger.entries)
        };
        ledger.base.saturating_add(within.unsigned_abs())
    }
}

#[cfg(test)]
mod tests;
