//! Bytes on their way to one socket.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Bytes, BytesMut};

/// A payload up to this size is copied beside its neighbours; a larger one is sent from where it lies.
pub(super) const COPY_LIMIT: usize = 4096;
/// Log chunks are about as large, as a power of two of bytes: payloads in the same stretch of memory keep the same chunk alive, about.
const CHUNK_BITS: u32 = 20;
/// A buffer larger than this is given back to the allocator once it has been sent.
const KEEP_LIMIT: usize = 64 * 1024;

/// An outbound queue: small frames are gathered in one buffer, large payloads stay slices of their log chunk.
///
/// Its bound is the caller's: sessions stop reading and dispatchers stop sending while it is long.
#[derive(Default, Debug)]
pub struct OutBuf {
    queue: VecDeque<Part>,
    tail: BytesMut,
    len: usize,
    lent: Lent,
}

/// What was lent since the queue was last empty, or owned.
#[derive(Default, Debug)]
struct Lent {
    parts: usize,
    bytes: usize,
    /// About how many chunks they keep alive, and where the last of them lies.
    chunks: usize,
    last: usize,
}

/// A part of the queue.
#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// It lies in memory that it keeps alive as a whole: a log chunk, or what a connection was read into.
    lent: bool,
}

impl OutBuf {
    /// Bytes not yet consumed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when everything has been consumed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Runs an encoder on the gathering buffer.
    pub fn encode(&mut self, encoder: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        encoder(&mut self.tail);
        self.len += self.tail.len() - before;
    }

    /// Appends a payload.
    pub fn push(&mut self, payload: Bytes) {
        self.len += payload.len();
        if payload.len() <= COPY_LIMIT {
            self.tail.extend_from_slice(&payload);
        } else {
            if !self.tail.is_empty() {
                let bytes = self.tail.split().freeze();
                self.queue.push_back(Part { bytes, lent: false });
            }
            let chunk = payload.as_ptr().addr() >> CHUNK_BITS;
            self.lent.chunks += usize::from(self.lent.parts == 0 || self.lent.last != chunk);
            self.lent.last = chunk;
            self.lent.parts += 1;
            self.lent.bytes += payload.len();
            self.queue.push_back(Part {
                bytes: payload,
                lent: true,
            });
        }
    }

    /// The peer does not read, and nobody knows for how long: copies payloads if what they keep alive is far more than they are.
    pub fn own(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        // Two may be cut anywhere.
        if lent.chunks.saturating_sub(2) << CHUNK_BITS <= 2 * lent.bytes {
            self.lent = lent;
            return;
        }
        // Those in front of them were owned before.
        let parts = self.queue.iter_mut().rev().filter(|part| part.lent);
        for part in parts.take(lent.parts) {
            part.bytes = Bytes::copy_from_slice(&part.bytes);
            part.lent = false;
        }
    }

    /// Fills `slices` from the front of the queue; returns how many are in use.
    pub fn io_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self
            .queue
            .iter()
            .map(|part| part.bytes.as_ref())
            .chain(std::iter::once(self.tail.as_ref()));
        let mut used = 0;
        for (slot, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slot = IoSlice::new(part);
            used += 1;
        }
        used
    }

    /// Drops `n` bytes from the front; more than there are is all of them.
    pub fn consume(&mut self, n: usize) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(Part { bytes: front, .. }) = self.queue.front_mut() else {
                let rest = left.min(self.tail.len());
                bytes::Buf::advance(&mut self.tail, rest);
                break;
            };
            if front.len() > left {
                bytes::Buf::advance(front, left);
                break;
            }
            left -= front.len();
            self.queue.pop_front();
        }
        if self.len == 0 {
            self.queue.clear();
            self.lent = Lent::default();
            if self.tail.capacity() > KEEP_LIMIT {
                self.tail = BytesMut::new();
            } else {
                self.tail.clear();
            }
        }
    }

    /// Frees the buffers of a queue that is empty, so that an idle connection holds none.
    pub fn release_idle(&mut self) {
        if self.len == 0 {
            *self = OutBuf::default();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn drain(out: &mut OutBuf, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]), IoSlice::new(&[]), IoSlice::new(&[])];
            let used = out.io_slices(&mut slices);
            let flat: Vec<u8> = slices[..used]
                .iter()
                .flat_map(|s| s.iter().copied())
                .collect();
            let taken = step.min(flat.len());
            all.extend_from_slice(&flat[..taken]);
            out.consume(taken);
        }
        all
    }

    #[test]
    fn order_is_kept_across_copies_and_slices() {
        for step in [1, 7, 4096, 1 << 20] {
            let mut out = OutBuf::default();
            let mut expected = Vec::new();
            for i in 0..20_u8 {
                let size = if i % 3 == 0 { 5000 } else { 10 };
                out.encode(|buf| buf.extend_from_slice(&[i, i]));
                out.push(Bytes::from(vec![i; size]));
                expected.extend_from_slice(&[i, i]);
                expected.extend(std::iter::repeat_n(i, size));
            }
            assert_eq!(out.len(), expected.len());
            assert_eq!(drain(&mut out, step), expected);
            assert_eq!(out.len(), 0);
        }
    }

    #[test]
    fn consuming_too_much_empties_it() {
        let mut out = OutBuf::default();
        out.push(Bytes::from_static(b"abc"));
        out.consume(100);
        assert!(out.is_empty());
    }

    /// Small parts of many chunks are copied when the peer does not read; what is dense stays where it lies.
    #[test]
    fn what_waits_keeps_no_chunks_alive_that_are_far_larger() {
        let chunks: Vec<Bytes> = (0..20).map(|n| Bytes::from(vec![n; 1 << 20])).collect();
        let mut out = OutBuf::default();
        let mut expected = Vec::new();
        for chunk in &chunks {
            out.encode(|buf| buf.extend_from_slice(b"head"));
            out.push(chunk.slice(100..100 + COPY_LIMIT + 1));
            expected.extend_from_slice(b"head");
            expected.extend_from_slice(&chunk[..COPY_LIMIT + 1]);
        }
        out.consume(10);
        out.own();
        assert!(chunks.iter().all(Bytes::is_unique));
        assert_eq!(drain(&mut out, 333), &expected[10..]);
        let chunk = Bytes::from(vec![7; 1 << 20]);
        for at in (0..100).map(|n| n * 10_000) {
            out.push(chunk.slice(at..at + 10_000));
        }
        out.own();
        assert!(!chunk.is_unique());
    }
}
