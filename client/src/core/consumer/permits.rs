//! Permits: what the broker charged for each command, and its way back.
//!
//! One MESSAGE costs the consumer `P` permits at the broker, and exactly `P` must come back with FLOW: fewer, and delivery stalls
//! in the end; more, and the queue's bound is gone (PIP-491). So permits are values: a command's are created once, divided, and
//! given back once. They cannot be copied.

use super::ackset::AckSet;

/// Permits of one incarnation of the consumer at the broker. Must be given back to the [`Ledger`], or moved on.
#[derive(Debug)]
#[must_use = "permits that are dropped never go back to the broker"]
pub struct Permits {
    incarnation: u64,
    count: u32,
}

impl Permits {
    /// Takes one out, if one is left.
    pub fn take_one(&mut self) -> Option<Self> {
        self.count = self.count.checked_sub(1)?;
        Some(Self {
            incarnation: self.incarnation,
            count: 1,
        })
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// What the accounts of an incarnation say; see [`Ledger::audit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audit {
    /// Number of the incarnation, from 1; 0 before the first.
    pub incarnation: u64,
    /// Sum of all FLOW sent.
    pub granted: u64,
    /// Sum of `P` of all commands.
    pub received: u64,
    /// Permits held by messages in the receiver queue.
    pub held: u64,
    /// Permits given back, sent or not.
    pub returned: u64,
    /// Permits the next FLOW would carry.
    pub pending: u64,
}

/// The account of permits of one consumer. Each incarnation begins with an empty one.
#[derive(Debug)]
pub struct Ledger {
    /// Permits the broker has when nothing is under way.
    window: u64,
    incarnation: u64,
    granted: u64,
    received: u64,
    returned: u64,
    held: u64,
    /// Commands since the broker last had permits.
    uncovered: u32,
}

/// Commands that a broker may send when it has no permits left. What it had read from the topic by then it may well send, which is some
/// hundred entries; more would fill the receiver queue without end.
const MAX_UNCOVERED: u32 = 1_000;

/// The same in messages, of batches.
const MAX_OVERDRAFT: u64 = 1 << 22;

impl Ledger {
    /// For a receiver queue of that size.
    pub fn new(receiver_queue_size: u32) -> Self {
        Self {
            window: u64::from(receiver_queue_size.max(1)),
            incarnation: 0,
            granted: 0,
            received: 0,
            returned: 0,
            held: 0,
            uncovered: 0,
        }
    }

    /// The broker forgot the consumer: whatever is owed to the old incarnation is void.
    pub fn begin(&mut self) {
        self.incarnation += 1;
        (self.granted, self.received, self.returned, self.held) = (0, 0, 0, 0);
        self.uncovered = 0;
    }

    /// Counts a command that is about to be received.
    ///
    /// # Errors
    /// If the broker has sent far more than it had permits for.
    pub fn check_cover(&mut self) -> Result<(), BadPermits> {
        let overdraft = self.received.saturating_sub(self.granted);
        if self.received < self.granted {
            self.uncovered = 0;
            return Ok(());
        }
        self.uncovered += 1;
        if self.uncovered > MAX_UNCOVERED || overdraft > MAX_OVERDRAFT {
            return Err(BadPermits::Overdrawn {
                commands: self.uncovered,
                overdraft,
            });
        }
        Ok(())
    }

    /// A command came and cost so many.
    pub fn receive(&mut self, count: u32) -> Permits {
        self.received += u64::from(count);
        self.held += u64::from(count);
        Permits {
            incarnation: self.incarnation,
            count,
        }
    }

    /// Permits reached their end. Those of an older incarnation are void.
    pub fn give_back(&mut self, permits: Permits) {
        if permits.incarnation == self.incarnation {
            debug_assert!(self.held >= u64::from(permits.count));
            self.held -= u64::from(permits.count);
            self.returned += u64::from(permits.count);
        }
    }

    /// Whether the broker has no permits left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.received >= self.granted
    }

    /// What the broker could be given now.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.window + self.returned - self.granted
    }

    /// What to send with FLOW now: at least half of the queue, or anything if `eager`.
    pub fn flow(&mut self, eager: bool) -> Option<u32> {
        let pending = self.pending();
        if pending == 0 || (!eager && pending < (self.window / 2).max(1)) {
            return None;
        }
        // A FLOW holds 31 bits.
        let flow = u32::try_from(pending).map_or(i32::MAX as u32, |p| p.min(i32::MAX as u32));
        self.granted += u64::from(flow);
        Some(flow)
    }

    /// The numbers, after checking them against each other: `received = returned + held`, and never more granted than owed.
    ///
    /// # Errors
    /// If they disagree, which would be a fault of this client.
    pub fn audit(&self, held_by_messages: u64) -> Result<Audit, String> {
        let audit = Audit {
            incarnation: self.incarnation,
            granted: self.granted,
            received: self.received,
            held: self.held,
            returned: self.returned,
            pending: self.pending(),
        };
        if self.held == held_by_messages
            && self.received == self.returned + self.held
            && self.granted <= self.window + self.returned
        {
            Ok(audit)
        } else {
            Err(format!(
                "permits do not add up: {audit:?}, {held_by_messages} held by messages"
            ))
        }
    }
}

/// Why the permits of a command cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPermits {
    /// Zero, or more than 31 bits.
    #[error("message_permits is {0}; it must be between 1 and 2147483647")]
    OutOfRange(u32),
    /// Not the number of messages the command delivers.
    #[error("message_permits is {sent}, but the command delivers {deliverable} messages")]
    Mismatch {
        /// The field.
        sent: u32,
        /// Messages of the batch, or bits of the ack set.
        deliverable: u32,
    },
    /// Far more was sent than there were permits for.
    #[error(
        "the broker has sent {commands} entries without a permit left, and {overdraft} messages more than it had permits for"
    )]
    Overdrawn {
        /// Commands since there were permits.
        commands: u32,
        /// Messages.
        overdraft: u64,
    },
    /// More than the ack set has bits.
    #[error("message_permits is {sent}, but the ack set has {bits} bits")]
    AboveAckSet {
        /// The field.
        sent: u32,
        /// Set bits.
        bits: u32,
    },
}

/// What a command cost: `message_permits`, else the set bits of the ack set, else the batch size, else 1.
///
/// `batch_size` is `None` if the metadata cannot be read; `trusted` says that the checksum was right, so that the number sent can
/// be held against it.
pub(super) fn resolve(
    message_permits: Option<u32>,
    ack_set: Option<&AckSet>,
    batch_size: Option<u32>,
    trusted: bool,
) -> Result<u32, BadPermits> {
    let within = ack_set.map(|set| match batch_size {
        Some(size) if trusted => set.count_below(size),
        _ => set.count(),
    });
    let Some(sent) = message_permits else {
        return Ok(within.or(batch_size).unwrap_or(1));
    };
    if sent == 0 || sent > i32::MAX as u32 {
        return Err(BadPermits::OutOfRange(sent));
    }
    match (within, batch_size) {
        (Some(deliverable), Some(_)) if trusted && sent != deliverable => {
            Err(BadPermits::Mismatch { sent, deliverable })
        }
        (None, Some(deliverable)) if trusted && sent != deliverable => {
            Err(BadPermits::Mismatch { sent, deliverable })
        }
        (Some(bits), _) if sent > bits => Err(BadPermits::AboveAckSet { sent, bits }),
        _ => Ok(sent),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn set(size: u32, acked: &[u32]) -> AckSet {
        let mut set = AckSet::full(size);
        for &index in acked {
            set.clear(index);
        }
        set
    }

    #[test]
    fn the_ladder() {
        let partial = set(10, &[0, 1, 2]);
        assert_eq!(resolve(Some(7), Some(&partial), Some(10), true), Ok(7));
        assert_eq!(resolve(None, Some(&partial), Some(10), true), Ok(7));
        assert_eq!(resolve(None, None, Some(10), true), Ok(10));
        assert_eq!(resolve(None, None, None, false), Ok(1));
        assert_eq!(resolve(None, Some(&partial), None, false), Ok(7));
        assert_eq!(resolve(Some(100), None, None, false), Ok(100));
    }

    #[test]
    fn bits_beyond_the_batch_do_not_count() {
        let words = AckSet::from_words(&[-1]);
        assert_eq!(resolve(Some(10), Some(&words), Some(10), true), Ok(10));
        assert_eq!(resolve(None, Some(&words), Some(10), true), Ok(10));
    }

    #[test]
    fn zero_out_of_range_and_mismatch_are_refused() {
        let partial = set(10, &[0, 1, 2]);
        for sent in [0, 1 << 31, u32::MAX] {
            assert_eq!(
                resolve(Some(sent), None, None, false),
                Err(BadPermits::OutOfRange(sent))
            );
        }
        for sent in [1, 9, 11] {
            assert!(resolve(Some(sent), None, Some(10), true).is_err());
        }
        for sent in [6, 8, 10] {
            assert!(resolve(Some(sent), Some(&partial), Some(10), true).is_err());
        }
        assert!(resolve(Some(8), Some(&partial), None, false).is_err());
        // An unreadable entry proves nothing against the number.
        assert_eq!(resolve(Some(9), None, Some(10), false), Ok(9));
    }

    #[test]
    fn old_permits_are_void() {
        let mut ledger = Ledger::new(10);
        ledger.begin();
        assert_eq!(ledger.flow(false), Some(10));
        let old = ledger.receive(4);
        ledger.begin();
        ledger.give_back(old);
        assert_eq!(ledger.audit(0).unwrap().returned, 0);
        assert_eq!(ledger.flow(false), Some(10));
        let mut new = ledger.receive(10);
        let one = new.take_one().unwrap();
        ledger.give_back(new);
        assert_eq!(ledger.audit(1).unwrap().pending, 9);
        assert_eq!(ledger.flow(false), Some(9));
        ledger.give_back(one);
        assert_eq!(ledger.flow(false), None);
        assert_eq!(ledger.flow(true), Some(1));
        assert_eq!(ledger.audit(0).unwrap().granted, 20);
    }
}
