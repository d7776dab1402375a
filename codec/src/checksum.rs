//! The checksum of entries: CRC-32C (Castagnoli), in hardware where the processor has it.

/// CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of what `crc` was computed of, followed by `bytes`.
#[must_use]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn is_castagnoli() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(super::append(super::crc32c(b"1234"), b"56789"), 0xE306_9283);
    }
}
