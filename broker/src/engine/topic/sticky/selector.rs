//! Which consumer a slot belongs to.

use std::fmt;

use super::fixed::{Fixed, MAX_RANGES};
use super::halves::Halves;
use super::hash::{range_slot, ring_slot};
use super::ring::Ring;
use super::{Member, Slot, Slots};

/// How slots come to consumers.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(in crate::engine) enum Mode {
    /// The broker shares them out.
    #[default]
    AutoSplit,
    /// Each consumer says which it wants.
    Sticky,
}

impl Mode {
    /// As the protocol spells it.
    pub(in crate::engine) fn name(self) -> &'static str {
        match self {
            Mode::AutoSplit => "AUTO_SPLIT",
            Mode::Sticky => "STICKY",
        }
    }
}

/// What all consumers of a Key_Shared subscription have to agree on.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(in crate::engine) struct Policy {
    pub(in crate::engine) mode: Mode,
    /// A key that moves to another consumer does not wait until the old one has acknowledged what it holds.
    pub(in crate::engine) allow_out_of_order: bool,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode.name())?;
        f.write_str(if self.allow_out_of_order {
            " with out-of-order delivery"
        } else {
            " in order"
        })
    }
}

/// Why a consumer gets no slots. Everything here is Pulsar's `ConsumerAssignError`.
#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub(in super::super) enum Refused {
    #[error("a STICKY consumer must name its hash ranges; it named none")]
    NoRanges,
    #[error("a consumer may name at most {MAX_RANGES} hash ranges; it named {ranges}")]
    TooMany { ranges: usize },
    #[error("the hash range [{first}, {last}] ends before it begins")]
    Backwards { first: i32, last: i32 },
    #[error("the hash ranges [{}, {}] and [{}, {}] of the consumer overlap", left.0, left.1, right.0, right.1)]
    Overlapping { left: (i32, i32), right: (i32, i32) },
    /// Another consumer has it: whether that one is alive is for the caller to find out.
    #[error("the hash range [{}, {}] overlaps [{}, {}] of another consumer", asked.0, asked.1, held.0, held.1)]
    Taken {
        asked: (i32, i32),
        held: (i32, i32),
        holder: Member,
    },
    #[error("the hash ranges of {consumers} consumers cannot be halved any further")]
    Full { consumers: usize },
}

/// Gives every slot to at most one consumer.
#[derive(Debug)]
pub(in super::super) enum Selector {
    /// AUTO_SPLIT, `subscriptionKeySharedUseConsistentHashing` on.
    Ring(Ring),
    /// AUTO_SPLIT, off.
    Halves(Halves),
    /// STICKY.
    Fixed(Fixed),
}

impl Selector {
    /// A selector without consumers. `ring_points` = points of each consumer on the ring; `None` = ranges are halved.
    pub(in super::super) fn new(mode: Mode, ring_points: Option<u32>) -> Self {
        match (mode, ring_points) {
            (Mode::Sticky, _) => Selector::Fixed(Fixed::default()),
            (Mode::AutoSplit, Some(points)) => Selector::Ring(Ring::new(points)),
            (Mode::AutoSplit, None) => Selector::Halves(Halves::default()),
        }
    }

    /// The slot that a hash falls into.
    pub(in super::super) fn slot(&self, hash: u32) -> Slot {
        match self {
            Selector::Ring(_) => ring_slot(hash),
            Selector::Halves(_) | Selector::Fixed(_) => range_slot(hash),
        }
    }

    /// Who a slot belongs to; logarithmic.
    pub(in super::super) fn owner(&self, slot: Slot) -> Option<Member> {
        match self {
            Selector::Ring(ring) => ring.owner(slot),
            Selector::Halves(halves) => halves.owner(slot),
            Selector::Fixed(fixed) => fixed.owner(slot),
        }
    }

    /// Would a consumer get slots, or rather: may it join?
    ///
    /// # Errors
    /// It may not.
    pub(in super::super) fn check(&self, ranges: &[(i32, i32)]) -> Result<(), Refused> {
        match self {
            Selector::Ring(_) => Ok(()),
            Selector::Halves(halves) => halves.check(),
            Selector::Fixed(fixed) => fixed.check(ranges),
        }
    }

    /// Adds a consumer that was [checked](Selector::check), and returns the slots that moved to it.
    pub(in super::super) fn join(
        &mut self,
        member: Member,
        name: &str,
        ranges: &[(i32, i32)],
    ) -> Vec<Slots> {
        match self {
            Selector::Ring(ring) => ring.join(member, name),
            Selector::Halves(halves) => halves.join(member),
            Selector::Fixed(fixed) => fixed.join(member, ranges),
        }
    }

    /// Takes a consumer out and returns the slots that moved away from it.
    pub(in super::super) fn leave(&mut self, member: Member) -> Vec<Slots> {
        match self {
            Selector::Ring(ring) => ring.leave(member),
            Selector::Halves(halves) => halves.leave(member),
            Selector::Fixed(fixed) => fixed.leave(member),
        }
    }

    /// The slots with their owners, in order: `keyHashRanges` of statistics. For all consumers at once, as it walks over everything.
    pub(in super::super) fn shares(&self) -> Vec<(Slots, Member)> {
        match self {
            Selector::Ring(ring) => ring.shares(),
            Selector::Halves(halves) => halves.shares(),
            Selector::Fixed(fixed) => fixed.shares(),
        }
    }
}
