//! A limit on bytes that many callers reserve and give back, first come first served.
//!
//! While nobody waits, a reservation is one compare-and-swap and its release one subtraction. Who finds no room
//! queues; from then on nobody overtakes, and every release grants to the front of the queue. How a caller
//! waits is its own matter: a [`Waker`] wakes a task or unparks a thread, so both stand in one queue.
//!
//! One that is larger than the whole limit is granted when nothing else is in use: it is late, but never stuck.

use crate::sync::{AtomicU64, Mutex, Ordering};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

/// Set in the state while somebody waits. The bytes in use stand above it.
const WAITING: u64 = 1;
const SHIFT: u32 = 1;
/// More than any memory holds, so that no sum of reservations overflows.
const LARGEST: u64 = 1 << 46;

/// Room was wanted and there is none, or somebody else has waited for it longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Bytes in use.
    pub used: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// Bytes wanted.
    pub wanted: u64,
}

struct Waiter {
    ticket: u64,
    bytes: u64,
    waker: Waker,
}

#[derive(Default)]
struct Queue {
    next_ticket: u64,
    /// In the order of arrival, so tickets ascend.
    waiting: VecDeque<Waiter>,
    /// Tickets that were granted and whose owners have not yet looked.
    granted: BTreeSet<u64>,
}

struct Inner {
    limit: u64,
    state: AtomicU64,
    peak: AtomicU64,
    queue: Mutex<Queue>,
}

/// The limit. Clones share it.
#[derive(Clone)]
pub struct MemoryLimit(Arc<Inner>);

impl MemoryLimit {
    /// A limit of so many bytes; 0 means none.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let limit = if limit == 0 { u64::MAX } else { limit };
        Self(Arc::new(Inner {
            limit,
            state: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            queue: Mutex::new(Queue::default()),
        }))
    }

    /// The limit in bytes; `u64::MAX` if there is none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.state.load(Ordering::Acquire) >> SHIFT
    }

    /// The most bytes that were ever in use at once.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Reserves at once.
    ///
    /// # Errors
    /// [`Full`] if there is no room, or somebody waits for it.
    pub fn try_reserve(&self, bytes: u64) -> Result<Reservation, Full> {
        let bytes = bytes.min(LARGEST);
        let mut state = self.0.state.load(Ordering::Relaxed);
        loop {
            let used = state >> SHIFT;
            if state & WAITING != 0 || !self.0.fits(used, bytes) {
                return Err(Full {
                    used,
                    limit: self.0.limit,
                    wanted: bytes,
                });
            }
            match self.0.state.compare_exchange_weak(
                state,
                state + (bytes << SHIFT),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.0.saw(used + bytes);
                    return Ok(self.reservation(bytes));
                }
                Err(now) => state = now,
            }
        }
    }

    /// Reserves when there is room, in the order of the first polls. Dropping the future before it is ready gives up its
    /// place, and gives on what it may just have been granted.
    pub fn reserve(&self, bytes: u64) -> Reserve {
        Reserve {
            limit: self.clone(),
            bytes: bytes.min(LARGEST),
            place: Place::New,
        }
    }

    /// Counts bytes whether there is room or not: for what must not wait and may not be refused.
    pub fn force_reserve(&self, bytes: u64) -> Reservation {
        let bytes = bytes.min(LARGEST);
        let before = self.0.state.fetch_add(bytes << SHIFT, Ordering::AcqRel);
        self.0.saw((before >> SHIFT) + bytes);
        self.reservation(bytes)
    }

    fn reservation(&self, bytes: u64) -> Reservation {
        Reservation {
            limit: self.clone(),
            bytes,
        }
    }
}

impl fmt::Debug for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimit")
            .field("limit", &self.limit())
            .field("used", &self.used())
            .field("peak", &self.peak())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> impl std::ops::DerefMut<Target = Queue> + '_ {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, used: u64, bytes: u64) -> bool {
        used == 0 || used.saturating_add(bytes) <= self.limit
    }

    fn saw(&self, used: u64) {
        // Most of the time a plain read of a line that rarely changes.
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    fn release(&self, bytes: u64) {
        let before = self.state.fetch_sub(bytes << SHIFT, Ordering::AcqRel);
        if before & WAITING != 0 {
            let wakers = self.grant(&mut self.lock());
            wake(wakers);
        }
    }

    /// Grants to the front of the queue what fits, and takes the mark away with the last one. The caller holds the
    /// lock and wakes after it has let go of it: a waker may run anything.
    fn grant(&self, queue: &mut Queue) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(first) = queue.waiting.front() {
            let bytes = first.bytes;
            let mut state = self.state.load(Ordering::Acquire);
            let granted = loop {
                let used = state >> SHIFT;
                if !self.fits(used, bytes) {
                    break false;
                }
                match self.state.compare_exchange_weak(
                    state,
                    state + (bytes << SHIFT),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        self.saw(used + bytes);
                        break true;
                    }
                    Err(now) => state = now,
                }
            };
            if !granted {
                return wakers;
            }
            if let Some(first) = queue.waiting.pop_front() {
                queue.granted.insert(first.ticket);
                wakers.push(first.waker);
            }
        }
        self.state.fetch_and(!WAITING, Ordering::AcqRel);
        wakers
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

/// Bytes in use. Dropping it gives them back, exactly once, and wakes who is next.
#[must_use = "dropping a reservation gives it back"]
pub struct Reservation {
    limit: MemoryLimit,
    bytes: u64,
}

impl Reservation {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.limit.0.release(self.bytes);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.bytes).finish()
    }
}

enum Place {
    New,
    Queued(u64),
    Done,
}

/// A place in the queue: see [`MemoryLimit::reserve`].
#[must_use = "futures do nothing unless polled"]
pub struct Reserve {
    limit: MemoryLimit,
    bytes: u64,
    place: Place,
}

impl Future for Reserve {
    type Output = Reservation;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reservation> {
        let this = &mut *self;
        let inner = &*this.limit.0;
        match this.place {
            Place::New => {
                if let Ok(reservation) = this.limit.try_reserve(this.bytes) {
                    this.place = Place::Done;
                    return Poll::Ready(reservation);
                }
                let (ticket, wakers, granted) = {
                    let mut queue = inner.lock();
                    let ticket = queue.next_ticket;
                    queue.next_ticket += 1;
                    queue.waiting.push_back(Waiter {
                        ticket,
                        bytes: this.bytes,
                        waker: context.waker().clone(),
                    });
                    // First the mark, then another look: a release before the mark is seen by this look, one after it
                    // looks itself.
                    inner.state.fetch_or(WAITING, Ordering::AcqRel);
                    let wakers = inner.grant(&mut queue);
                    let granted = queue.granted.remove(&ticket);
                    (ticket, wakers, granted)
                };
                this.place = if granted {
                    Place::Done
                } else {
                    Place::Queued(ticket)
                };
                wake(wakers);
                if granted {
                    return Poll::Ready(this.limit.reservation(this.bytes));
                }
                Poll::Pending
            }
            Place::Queued(ticket) => {
                let mut queue = inner.lock();
                if queue.granted.remove(&ticket) {
                    drop(queue);
                    this.place = Place::Done;
                    return Poll::Ready(this.limit.reservation(this.bytes));
                }
                if let Ok(at) = queue.waiting.binary_search_by_key(&ticket, |w| w.ticket)
                    && let Some(waiter) = queue.waiting.get_mut(at)
                {
                    waiter.waker.clone_from(context.waker());
                }
                Poll::Pending
            }
            // Polled after it was ready, which the contract of futures forbids.
            Place::Done => Poll::Pending,
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let Place::Queued(ticket) = self.place else {
            return;
        };
        let inner = &*self.limit.0;
        let mut queue = inner.lock();
        if queue.granted.remove(&ticket) {
            drop(queue);
            inner.release(self.bytes);
            return;
        }
        if let Ok(at) = queue.waiting.binary_search_by_key(&ticket, |w| w.ticket) {
            let _gone = queue.waiting.remove(at);
        }
        // Whoever stood behind a large one may fit now.
        let wakers = inner.grant(&mut queue);
        drop(queue);
        wake(wakers);
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserve")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;
