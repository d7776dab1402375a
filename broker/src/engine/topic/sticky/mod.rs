//! Key_Shared: which consumer a key belongs to, and what may be handed out without two consumers ever holding one key.
//!
//! Pure bookkeeping on small numbers. A key is hashed to a *slot* ([`hash`], [`key`]); a [`Selector`] gives every slot to at most one
//! consumer and says which slots move when a consumer joins or leaves; [`Keys`] remembers who holds entries of a slot and which
//! entries wait (PIP-379, draining hashes).

mod fixed;
mod halves;
mod hash;
mod key;
mod keys;
mod ring;
mod selector;

pub(super) use self::fixed::Fixed;
pub(super) use self::hash::range_slot;
pub(super) use self::key::key_hash;
pub(super) use self::keys::{Draining, Keys, Route};
pub(super) use self::selector::{Mode, Policy, Refused, Selector};

/// A consumer, by its index in the subscription.
pub(super) type Member = u32;

/// Where a key's hash falls, 1 to [`LAST_SLOT`]. 0 is kept for "none", as in Pulsar.
pub(super) type Slot = u16;

/// The largest slot.
pub(super) const LAST_SLOT: Slot = Slot::MAX;

/// Slots that stand next to each other, both ends included.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Slots {
    pub(super) first: Slot,
    pub(super) last: Slot,
}

impl Slots {
    /// Every slot there is.
    pub(super) const ALL: Slots = Slots {
        first: 1,
        last: LAST_SLOT,
    };

    /// `first..=last` where that is not empty; 0 is no slot.
    fn new(first: Slot, last: Slot) -> Option<Self> {
        let first = first.max(1);
        (first <= last).then_some(Slots { first, last })
    }
}

#[cfg(test)]
mod tests;
