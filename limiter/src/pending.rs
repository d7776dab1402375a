//! One flag that says: there is something for you.
//!
//! However many senders put however much into a queue, its one receiver is woken at most once until it
//! has begun to look. The rule has two halves, and both are needed:
//!
//! * a sender first queues, then calls [`Pending::raise`], and wakes the receiver only if that says so;
//! * the receiver calls [`Pending::begin`] *before* it drains. What is queued after that raises the flag
//!   anew; what was queued before it is seen by this drain.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag between many senders and one receiver.
#[derive(Debug)]
pub struct Pending {
    raised: AtomicBool,
}

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

impl Pending {
    /// A flag that is down.
    #[must_use]
    pub fn new() -> Self {
        Self {
            raised: AtomicBool::new(false),
        }
    }

    /// Called by a sender after it has queued something. True: this call turned the flag from down to up,
    /// so this sender has to wake the receiver.
    #[must_use]
    pub fn raise(&self) -> bool {
        // Release: whoever takes the flag down afterwards sees what was queued before it.
        !self.raised.swap(true, Ordering::AcqRel)
    }

    /// Called by the receiver before it drains. True: the flag was up.
    pub fn begin(&self) -> bool {
        // A read-modify-write, not a store: it must read the last raise to see what that sender queued.
        self.raised.swap(false, Ordering::AcqRel)
    }

    /// Whether the flag is up: a cheap look for a receiver that polls anyway.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_sender_after_a_drain_wakes() {
        let pending = Pending::new();
        assert!(pending.raise());
        assert!(!pending.raise());
        assert!(pending.is_raised());
        assert!(pending.begin());
        assert!(!pending.begin());
        assert!(pending.raise());
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p vela-limiter --release pending`.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use loom::sync::{Arc, Mutex, Notify};
    use std::collections::VecDeque;

    struct Shared {
        queue: Mutex<VecDeque<u32>>,
        pending: Pending,
        wake: Notify,
    }

    /// In every interleaving the receiver gets everything, though it sleeps whenever its queue is empty and
    /// nobody wakes it but the sender whose `raise` said so. A lost wake is a deadlock, which loom reports.
    #[test]
    fn nothing_is_left_behind_by_a_sleeping_receiver() {
        loom::model(|| {
            let shared = Arc::new(Shared {
                queue: Mutex::new(VecDeque::new()),
                pending: Pending::new(),
                wake: Notify::new(),
            });
            let senders: Vec<_> = (0..2)
                .map(|sender| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || {
                        shared.queue.lock().unwrap().push_back(sender);
                        if shared.pending.raise() {
                            shared.wake.notify();
                        }
                    })
                })
                .collect();
            let mut received = 0;
            while received < 2 {
                shared.wake.wait();
                shared.pending.begin();
                while let Some(_message) = {
                    let next = shared.queue.lock().unwrap().pop_front();
                    next
                } {
                    received += 1;
                }
            }
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }
}
