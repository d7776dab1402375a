//! Memory for frames that are still incomplete is admitted, not hoped for: first come, first served, within a
//! limit. And the question of who holds more than a fair share.

use std::collections::{BTreeMap, VecDeque};

/// The answer to a request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// The bytes are reserved.
    Granted,
    /// The owner waits; [`Budget::next_granted`] names it when its turn has come.
    Waits,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    granted: u64,
    wanted: u64,
}

/// A byte limit shared by owners (connections of one core), each of which reserves the whole frame it announced.
///
/// * Requests are served in their order. A small one does not overtake a large one, so none starves.
/// * An owner that has a reservation and needs more goes before those that have none: it ends sooner.
/// * What is larger than the whole limit is served alone.
/// * When everyone who holds memory waits for more, one of them gets it, and the same one until it releases: nobody
///   else could ever release any. So the sum passes the limit by no more than one owner's reservation.
///
/// At most one entry for each owner.
#[derive(Debug)]
pub struct Budget<O> {
    limit: u64,
    used: u64,
    accounts: BTreeMap<O, Account>,
    /// Owners with a reservation that wait for more.
    growing: VecDeque<O>,
    /// Owners without one.
    fresh: VecDeque<O>,
    /// Who was last let past the limit, until it releases.
    favourite: Option<O>,
}

impl<O: Copy + Ord> Budget<O> {
    /// Nobody holds any of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            accounts: BTreeMap::new(),
            growing: VecDeque::new(),
            fresh: VecDeque::new(),
            favourite: None,
        }
    }

    /// Reserves `bytes` for `owner`, who has none yet; for one that has, the same as [`grow`](Self::grow).
    pub fn admit(&mut self, owner: O, bytes: u64) -> Admission {
        self.grow(owner, bytes)
    }

    /// Reserves `more` bytes on top of what `owner` has or waits for.
    pub fn grow(&mut self, owner: O, more: u64) -> Admission {
        if more == 0 {
            return match self.accounts.get(&owner) {
                Some(account) if account.wanted > 0 => Admission::Waits,
                _ => Admission::Granted,
            };
        }
        let account = self.accounts.entry(owner).or_default();
        let waits = account.wanted > 0;
        account.wanted = account.wanted.saturating_add(more);
        if waits {
            return Admission::Waits;
        }
        if account.granted > 0 {
            self.growing.push_back(owner);
        } else {
            self.fresh.push_back(owner);
        }
        // Served at once only if it is the next in its turn.
        if self.next_in_turn() == Some(owner) {
            self.grant(owner);
            return Admission::Granted;
        }
        Admission::Waits
    }

    /// Gives back everything `owner` holds and takes it out of the queue: its frame is complete, or it is closed.
    /// Bytes given back. The caller then asks [`next_granted`](Self::next_granted) until it names nobody.
    pub fn release(&mut self, owner: O) -> u64 {
        let Some(account) = self.accounts.remove(&owner) else {
            return 0;
        };
        self.used = self.used.saturating_sub(account.granted);
        if self.favourite == Some(owner) {
            self.favourite = None;
        }
        if account.wanted > 0 {
            self.growing.retain(|waiting| *waiting != owner);
            self.fresh.retain(|waiting| *waiting != owner);
        }
        account.granted
    }

    /// The next owner whose request is granted by this call. To be asked until `None` after a release or a change
    /// of the limit.
    pub fn next_granted(&mut self) -> Option<O> {
        let owner = self.next_in_turn()?;
        self.grant(owner);
        Some(owner)
    }

    /// Changes the limit. Reservations stand; the caller asks [`next_granted`](Self::next_granted) until `None`.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// Bytes that may be reserved.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes reserved now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes reserved for `owner`.
    #[must_use]
    pub fn held_by(&self, owner: O) -> u64 {
        self.accounts
            .get(&owner)
            .map_or(0, |account| account.granted)
    }

    /// Whether `owner` holds or waits for anything.
    #[must_use]
    pub fn knows(&self, owner: O) -> bool {
        self.accounts.contains_key(&owner)
    }

    /// How many owners wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.growing.len() + self.fresh.len()
    }

    /// Who is to be served next, if that is possible now.
    fn next_in_turn(&self) -> Option<O> {
        let first = self.growing.front().or(self.fresh.front()).copied()?;
        if self.fits(first) {
            return Some(first);
        }
        let holders = self.accounts.len().saturating_sub(self.fresh.len());
        // Nobody is left who could end without getting more. (No holder: `first` is larger than the limit.)
        let stuck = holders == self.growing.len();
        stuck.then(|| self.favourite.unwrap_or(first))
    }

    fn fits(&self, owner: O) -> bool {
        let wanted = self
            .accounts
            .get(&owner)
            .map_or(0, |account| account.wanted);
        self.used.saturating_add(wanted) <= self.limit
    }

    /// Grants what `owner`, who is next in turn, waits for.
    fn grant(&mut self, owner: O) {
        if !self.fits(owner) {
            self.favourite = Some(owner);
        }
        let Some(account) = self.accounts.get_mut(&owner) else {
            return;
        };
        let queue = if account.granted > 0 {
            &mut self.growing
        } else {
            &mut self.fresh
        };
        // At the front, but for a favourite.
        queue.retain(|waiting| *waiting != owner);
        self.used = self.used.saturating_add(account.wanted);
        account.granted = account.granted.saturating_add(account.wanted);
        account.wanted = 0;
    }
}

/// Whether a connection that retains `owner_bytes` has to stop reading, because from 75 % of the limit on
/// (`crowded`, see [`MemoryLimiter::is_crowded`](crate::MemoryLimiter::is_crowded)) nobody may retain more than
/// `limit` / `owners`, `owners` being the connections that retain any.
///
/// To be asked again whenever bytes of the connection are released and whenever the core is notified: what others
/// do may keep memory crowded for long.
#[must_use]
pub fn over_share(owner_bytes: u64, owners: usize, limit: i64, crowded: bool) -> bool {
    let Ok(limit) = u64::try_from(limit) else {
        return false;
    };
    crowded && limit > 0 && u128::from(owner_bytes) * (owners.max(1) as u128) > u128::from(limit)
}

#[cfg(all(test, not(loom)))]
#[path = "budget_tests.rs"]
mod tests;
