//! Murmur3, the 32-bit variant with seed 0: the hash that clients and brokers of the protocol agree on for keys and names.

/// Murmur3-32 of the bytes with the sign bit cleared: 0 to 2^31 - 1.
pub(crate) fn murmur3(bytes: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let scramble = |k: u32| k.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let (blocks, tail) = bytes.as_chunks::<4>();
    let mut hash = 0_u32;
    for block in blocks {
        hash ^= scramble(u32::from_le_bytes(*block));
        hash = hash
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        let rest = tail
            .iter()
            .rev()
            .fold(0_u32, |rest, byte| (rest << 8) | u32::from(*byte));
        hash ^= scramble(rest);
    }
    hash ^= bytes.len() as u32;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    hash & 0x7fff_ffff
}

#[cfg(test)]
mod tests {
    use super::murmur3;

    #[test]
    fn known_values() {
        // Test vectors of the public reference implementation, sign bit cleared.
        assert_eq!(murmur3(b""), 0);
        assert_eq!(murmur3(b"test"), 0xba6b_d213 & 0x7fff_ffff);
        assert_eq!(murmur3(b"Hello, world!"), 0xc036_3e43 & 0x7fff_ffff);
        assert_eq!(
            murmur3(b"The quick brown fox jumps over the lazy dog"),
            0x2e4f_f723
        );
        // Slots of a sticky Key_Shared subscription as measured on a broker.
        assert_eq!(murmur3(b"key1") % 65536, 293);
        assert_eq!(murmur3(b"hello") % 65536, 64071);
    }
}
