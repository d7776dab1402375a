//! The hash of a key, and the slot it falls into.

use super::{LAST_SLOT, Slot};

const C1: u32 = 0xcc9e_2d51;
const C2: u32 = 0x1b87_3593;

fn scramble(word: u32) -> u32 {
    word.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2)
}

/// Murmur3, 32 bits for x86, seed 0, without its sign bit: what Pulsar calls the hash of a key. 0 to 2^31 - 1.
pub(in super::super) fn murmur3_32(bytes: &[u8]) -> u32 {
    let mut hash = 0_u32;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        hash ^= scramble(u32::from_le_bytes(*word));
        hash = hash
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        let mut word = [0_u8; 4];
        for (to, from) in word.iter_mut().zip(tail) {
            *to = *from;
        }
        hash ^= scramble(u32::from_le_bytes(word));
    }
    hash ^= bytes.len() as u32;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    hash & i32::MAX as u32
}

/// The slot of a hash on the ring: modulo 65,535, from 1.
pub(super) fn ring_slot(hash: u32) -> Slot {
    (hash % u32::from(LAST_SLOT)) as Slot + 1
}

/// The slot of a hash among ranges: modulo 65,536, and 0 becomes 1.
pub(super) fn range_slot(hash: u32) -> Slot {
    ((hash % (u32::from(LAST_SLOT) + 1)) as Slot).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen in Pulsar's statistics for these keys.
    #[test]
    fn hashes_and_slots_are_pulsars() {
        assert_eq!(murmur3_32(b"key1"), 0x9b97_0125 & 0x7fff_ffff);
        assert_eq!(murmur3_32(b"key1"), 462_881_061);
        assert_eq!(range_slot(murmur3_32(b"key1")), 293);
        assert_eq!(ring_slot(murmur3_32(b"key1")), 7357);
        assert_eq!(murmur3_32(b"hello"), 0x248b_fa47);
        assert_eq!(range_slot(murmur3_32(b"hello")), 64_071);
        assert_eq!(ring_slot(murmur3_32(b"hello")), 7892);
    }

    /// Public test vectors of Murmur3 with seed 0, every length of the tail.
    #[test]
    fn murmur3_vectors() {
        let masked = |hash: u32| hash & 0x7fff_ffff;
        assert_eq!(murmur3_32(b""), 0);
        assert_eq!(murmur3_32(b"test"), masked(0xba6b_d213));
        assert_eq!(murmur3_32(b"Hello, world!"), masked(0xc036_3e43));
        assert_eq!(
            murmur3_32(b"The quick brown fox jumps over the lazy dog"),
            masked(0x2e4f_f723)
        );
        assert_eq!(murmur3_32(&[0x21, 0x43, 0x65]), masked(0x7e4a_8634));
        assert_eq!(murmur3_32(&[0x21, 0x43]), masked(0xa0f7_b07a));
        assert_eq!(murmur3_32(&[0x21]), masked(0x7266_1cf4));
        assert_eq!(murmur3_32(&[0xff, 0xff, 0xff, 0xff]), masked(0x7629_3b50));
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
