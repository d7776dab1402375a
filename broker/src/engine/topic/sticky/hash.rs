//! The slot that the hash of a key falls into.

use super::{LAST_SLOT, Slot};

/// The slot of a hash on the ring: modulo 65,535, from 1.
pub(super) fn ring_slot(hash: u32) -> Slot {
    (hash % u32::from(LAST_SLOT)) as Slot + 1
}

/// The slot of a hash among ranges: modulo 65,536, and 0 becomes 1.
pub(in super::super) fn range_slot(hash: u32) -> Slot {
    ((hash % (u32::from(LAST_SLOT) + 1)) as Slot).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::murmur::murmur3;

    /// Seen in Pulsar's statistics for these keys.
    #[test]
    fn slots_are_pulsars() {
        assert_eq!(range_slot(murmur3(b"key1")), 293);
        assert_eq!(ring_slot(murmur3(b"key1")), 7357);
        assert_eq!(range_slot(murmur3(b"hello")), 64_071);
        assert_eq!(ring_slot(murmur3(b"hello")), 7892);
    }

    #[test]
    fn slot_0_is_never_used() {
        for hash in [0, 65_535, 65_536, 131_070, 131_072, i32::MAX as u32] {
            assert_ne!(ring_slot(hash), 0, "{hash}");
            assert_ne!(range_slot(hash), 0, "{hash}");
        }
        assert_eq!(ring_slot(65_534), 65_535);
        assert_eq!(ring_slot(65_535), 1);
        assert_eq!(range_slot(65_536), 1);
    }
}
