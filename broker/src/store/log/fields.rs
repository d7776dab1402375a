//! Little-endian fields of records and checkpoints: written to a vector, read off untrusted bytes.

use super::Position;
use super::record::Malformed;

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Lengths are 32 bits. No frame or chunk reaches 4 GiB; a list that did would be cut by [`Reader::end`] at recovery.
pub(super) fn put_len(out: &mut Vec<u8>, len: usize) {
    put_u32(out, u32::try_from(len).unwrap_or(u32::MAX));
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn put_blob(out: &mut Vec<u8>, blob: &[u8]) {
    put_len(out, blob.len());
    out.extend_from_slice(blob);
}

pub(super) fn put_position(out: &mut Vec<u8>, position: Position) {
    put_i64(out, position.ledger);
    put_i64(out, position.entry);
}

pub(super) fn put_words(out: &mut Vec<u8>, words: &[i64]) {
    put_len(out, words.len());
    for word in words {
        put_i64(out, *word);
    }
}

/// Reads fields off the front of untrusted bytes.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[b]| b)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    /// A list's length, refused if so many items of at least `item` bytes cannot follow: damage must not allocate.
    pub(super) fn count(&mut self, item: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / item {
            Err(Malformed::Short)
        } else {
            Ok(count)
        }
    }

    pub(super) fn blob(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.blob()?).map_err(|_| Malformed::NotText)
    }

    pub(super) fn position(&mut self) -> Result<Position, Malformed> {
        Ok(Position {
            ledger: self.i64()?,
            entry: self.i64()?,
        })
    }

    pub(super) fn words(&mut self) -> Result<Vec<i64>, Malformed> {
        let count = self.count(8)?;
        let bytes = self.take(count * 8)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| i64::from_le_bytes(*word)).collect())
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Trailing(self.rest.len()))
        }
    }
}
