//! Connections that wait for a rate. Each hold has one ticket, and the ticket is what undoes it: the queue gives
//! it out when the connection begins to wait and once more when it may go on. A connection that is already
//! waiting gets no second ticket, so several frames over the limit leave one release behind, not many.

use crate::bucket::{Pace, PublishRate};
use crate::shared::SharedRate;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pairs one hold of a connection with its one release. Not copied: it exists at most twice, as the order to hold
/// and as the order to release.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a hold without its release never ends"]
pub struct HoldTicket(u64);

impl HoldTicket {
    /// The number both orders carry; unique within its queue.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0
    }
}

/// Waiting connections, first come, first released. At most one place for each connection.
#[derive(Debug)]
pub struct Waiters<C> {
    by_ticket: BTreeMap<u64, C>,
    by_connection: BTreeMap<C, u64>,
    next: u64,
}

impl<C> Default for Waiters<C> {
    fn default() -> Self {
        Self {
            by_ticket: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<C: Copy + Ord> Waiters<C> {
    /// Nobody waits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `connection` at the end. The ticket says: hold it once. `None`: it already waits here, its hold stands.
    pub fn hold(&mut self, connection: C) -> Option<HoldTicket> {
        if self.is_waiting(connection) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.by_ticket.insert(number, connection);
        self.by_connection.insert(connection, number);
        Some(HoldTicket(number))
    }

    /// Takes the first out. The ticket says: release it once.
    pub fn release(&mut self) -> Option<(C, HoldTicket)> {
        let (number, connection) = self.by_ticket.pop_first()?;
        self.by_connection.remove(&connection);
        Some((connection, HoldTicket(number)))
    }

    /// Forgets a connection that was closed, or whose last producer here was. The ticket, if it waited, releases it.
    pub fn remove(&mut self, connection: C) -> Option<HoldTicket> {
        let number = self.by_connection.remove(&connection)?;
        self.by_ticket.remove(&number);
        Some(HoldTicket(number))
    }

    /// Whether `connection` waits.
    #[must_use]
    pub fn is_waiting(&self, connection: C) -> bool {
        self.by_connection.contains_key(&connection)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_ticket.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }
}

/// A rate and the connections that wait for it, on one core. For the broker-wide rate each core has one of these,
/// over the same [`SharedRate`].
#[derive(Debug)]
pub struct RateLimiter<P, C> {
    pace: P,
    waiters: Waiters<C>,
}

impl<P: Pace, C: Copy + Ord> RateLimiter<P, C> {
    /// Nobody waits for `pace`.
    #[must_use]
    pub fn new(pace: P) -> Self {
        Self {
            pace,
            waiters: Waiters::new(),
        }
    }

    /// Charges a publish of `connection` in full. With a ticket: hold the connection once for this limiter, and see
    /// to it that [`release`](Self::release) is asked in [`wait`](Self::wait) nanoseconds. The publish goes on.
    pub fn charge(
        &mut self,
        now: u64,
        connection: C,
        messages: u64,
        bytes: u64,
    ) -> Option<HoldTicket> {
        if self.pace.consume(now, messages, bytes) {
            self.waiters.hold(connection)
        } else {
            None
        }
    }

    /// The next connection that may go on, if the balance suffices. The caller releases it, lets it hand on what it
    /// has queued, which may charge again, and then asks once more: so a rate is shared fairly.
    pub fn release(&mut self, now: u64) -> Option<(C, HoldTicket)> {
        if self.waiters.is_empty() || self.pace.wait(now) > 0 {
            return None;
        }
        self.waiters.release()
    }

    /// Nanoseconds until [`release`](Self::release) has something to give; `None`: nobody waits.
    #[must_use]
    pub fn wait(&self, now: u64) -> Option<u64> {
        (!self.waiters.is_empty()).then(|| self.pace.wait(now))
    }

    /// Forgets a connection that was closed, or whose last producer here was. The ticket, if it waited, releases it.
    pub fn remove(&mut self, connection: C) -> Option<HoldTicket> {
        self.waiters.remove(connection)
    }

    /// The rate.
    #[must_use]
    pub fn pace(&self) -> &P {
        &self.pace
    }

    /// Who waits.
    #[must_use]
    pub fn waiters(&self) -> &Waiters<C> {
        &self.waiters
    }
}

impl<C: Copy + Ord> RateLimiter<PublishRate, C> {
    /// Changes the limits (per second; 0: none). The caller then asks [`release`](Self::release) until it has
    /// nothing to give, and sets its timer anew from [`wait`](Self::wait).
    pub fn set(&mut self, now: u64, messages: u64, bytes: u64) {
        self.pace.set(now, messages, bytes);
    }
}

impl<C: Copy + Ord> RateLimiter<Arc<SharedRate>, C> {
    /// The rate that all cores share. After it was changed every core asks [`release`](Self::release) until it has
    /// nothing to give.
    #[must_use]
    pub fn shared(&self) -> &Arc<SharedRate> {
        &self.pace
    }
}

#[cfg(all(test, not(loom)))]
#[path = "waiters_tests.rs"]
mod tests;
