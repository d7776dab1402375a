//! Buffer memory: one budget, and how much of it each kind of holder keeps.

use crate::sync::{AtomicI64, AtomicU64, Ordering};

/// Who keeps buffer memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// Receive roots: the capacity that inbound frames keep alive. Moved by [`MemoryLimiter`](crate::MemoryLimiter).
    Inbound,
    /// Blocks of the log on their way to disk.
    Log,
    /// What is kept only to be quicker: durable log blocks for reads, idle ones for the next chunks. It gives way when memory is
    /// short. (A slice of a receive root would be `Inbound`: it must not count twice.)
    Cache,
    /// Bytes queued to sockets, as far as they are copies of their own.
    Outbound,
}

impl Holder {
    /// All holders, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Inbound, Self::Log, Self::Cache, Self::Outbound];

    /// The holder's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Log => "log",
            Self::Cache => "cache",
            Self::Outbound => "outbound",
        }
    }
}

/// A counter alone on its cache line: holders on different cores do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Bytes(AtomicI64);

impl Bytes {
    fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// What is never negative outside: two halves of a hand-over may be seen in either order.
    fn get(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// Bytes of buffer memory in use, by holder, and the budget they share (`--buffer-memory`). Lock-free.
#[derive(Debug)]
pub struct BufferMemory {
    inbound: Bytes,
    log: Bytes,
    cache: Bytes,
    outbound: Bytes,
    budget: AtomicU64,
}

impl BufferMemory {
    /// Nothing in use, of `budget` bytes. 0: no budget is known, and nothing is ever said to press on it.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        Self {
            inbound: Bytes::new(),
            log: Bytes::new(),
            cache: Bytes::new(),
            outbound: Bytes::new(),
            budget: AtomicU64::new(budget),
        }
    }

    /// `holder` keeps `bytes` more.
    pub fn allocated(&self, holder: Holder, bytes: usize) {
        self.counter(holder)
            .0
            .fetch_add(signed(bytes), Ordering::AcqRel);
    }

    /// `holder` keeps `bytes` less.
    pub fn released(&self, holder: Holder, bytes: usize) {
        self.counter(holder)
            .0
            .fetch_sub(signed(bytes), Ordering::AcqRel);
    }

    /// Bytes that `holder` keeps now.
    #[must_use]
    pub fn held_by(&self, holder: Holder) -> u64 {
        self.counter(holder).get()
    }

    /// Bytes in use now, by everyone.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        // Receive roots, by capacity, from their allocation to the drop of their last slice.
        let inbound = self.inbound.get();
        // Log blocks, from their first byte until they are durable and nobody reads them.
        let log = self.log.get();
        // Durable log blocks kept for reads, and idle ones.
        let cache = self.cache.get();
        // Copies queued to sockets; slices of log blocks or roots are in the terms above.
        let outbound = self.outbound.get();
        inbound
            .saturating_add(log)
            .saturating_add(cache)
            .saturating_add(outbound)
    }

    /// Bytes there may be in use; 0: not known.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Changes the budget. Through [`MemoryLimiter::set_budget`](crate::MemoryLimiter::set_budget) it takes effect at once.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Release);
    }

    /// Whether at least `percent` of a known budget are in use.
    #[must_use]
    pub fn at_least(&self, percent: u8) -> bool {
        let budget = self.budget();
        budget > 0 && u128::from(self.in_use()) * 100 >= u128::from(budget) * u128::from(percent)
    }

    /// Bytes in use above `percent` of a known budget.
    #[must_use]
    pub fn above(&self, percent: u8) -> u64 {
        match self.budget() {
            0 => 0,
            budget => {
                let mark = u128::from(budget) * u128::from(percent) / 100;
                self.in_use()
                    .saturating_sub(u64::try_from(mark).unwrap_or(u64::MAX))
            }
        }
    }

    /// Inbound bytes more; the sum after it, which is the newest there is.
    pub(crate) fn inbound_allocated(&self, bytes: usize) -> i64 {
        let bytes = signed(bytes);
        self.inbound.0.fetch_add(bytes, Ordering::AcqRel) + bytes
    }

    /// Inbound bytes less; the sum after it.
    pub(crate) fn inbound_released(&self, bytes: usize) -> i64 {
        let bytes = signed(bytes);
        self.inbound.0.fetch_sub(bytes, Ordering::AcqRel) - bytes
    }

    /// The newest inbound sum. A read-modify-write and not a load, so that it stands in one order with every
    /// allocation and release: whoever comes after it also sees what was written before it.
    pub(crate) fn inbound_latest(&self) -> i64 {
        self.inbound.0.fetch_add(0, Ordering::AcqRel)
    }

    fn counter(&self, holder: Holder) -> &Bytes {
        match holder {
            Holder::Inbound => &self.inbound,
            Holder::Log => &self.log,
            Holder::Cache => &self.cache,
            Holder::Outbound => &self.outbound,
        }
    }
}

/// No allocation is larger than `isize::MAX`, so nothing is ever cut here.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_holder_is_one_term_of_the_sum() {
        let memory = BufferMemory::new(1_000);
        for (index, holder) in Holder::ALL.into_iter().enumerate() {
            memory.allocated(holder, 10_usize.pow(u32::try_from(index).unwrap_or(0)));
        }
        assert_eq!(memory.in_use(), 1_111);
        memory.released(Holder::Cache, 40);
        assert_eq!(memory.held_by(Holder::Cache), 60);
        assert_eq!(memory.in_use(), 1_071);
        assert_eq!(memory.held_by(Holder::Inbound), 1);
        assert_eq!(memory.held_by(Holder::Log), 10);
        assert_eq!(memory.held_by(Holder::Outbound), 1_000);
    }

    #[test]
    fn percentages_include_their_mark_and_need_a_budget() {
        let memory = BufferMemory::new(200);
        memory.allocated(Holder::Log, 169);
        assert!(!memory.at_least(85));
        memory.allocated(Holder::Outbound, 1);
        assert!(memory.at_least(85));
        assert_eq!((memory.above(85), memory.above(50)), (0, 70));
        memory.set_budget(0);
        assert!(!memory.at_least(0));
        assert_eq!(memory.above(0), 0);
        memory.set_budget(u64::MAX);
        assert!(!memory.at_least(1));
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = Holder::ALL.map(Holder::name).into();
        assert_eq!(names.len(), Holder::ALL.len());
    }
}
