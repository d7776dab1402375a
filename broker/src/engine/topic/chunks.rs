//! Chunked messages on a Shared subscription: all chunks of a message go to one consumer, for only that one can put them together.
//!
//! The first chunk that is handed out chooses the consumer; the others follow it. A chunk whose consumer cannot take it now is
//! parked, and what lies behind it goes on. When the consumer leaves, its chunks are free to go to another one, all of them.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;

use rustc_hash::FxHasher;
use vela_codec::hot::MetadataView;

use crate::store::log::Position;

/// Messages of a subscription whose remaining chunks have a consumer. Beyond it the oldest is forgotten: a producer that
/// died in the middle of a message must not hold a place for good.
const MAX_BOUND: usize = 1024;
/// Chunks of a subscription that wait for their consumer. At the bound the subscription waits with them.
pub(super) const MAX_PARKED: usize = 1024;

/// Which part of which chunked message an entry is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Chunk {
    /// Hash of the message's uuid: two messages that share it also share their consumer, no more.
    message: u64,
    first: bool,
    last: bool,
}

impl Chunk {
    /// The chunk that an entry is, if it is one.
    pub(super) fn of(metadata: &MetadataView<'_>) -> Option<Self> {
        let (uuid, id, count) = (metadata.uuid?, metadata.chunk_id?, metadata.num_chunks?);
        if count < 2 {
            return None;
        }
        let mut hasher = FxHasher::default();
        hasher.write(uuid.as_bytes());
        Some(Chunk {
            message: hasher.finish(),
            first: id <= 0,
            last: id >= count - 1,
        })
    }

    /// It completes its message.
    pub(super) fn is_last(self) -> bool {
        self.last
    }
}

/// Who gets the chunks that are still to come, and which wait for whom.
#[derive(Default, Debug)]
pub(super) struct Chunks {
    /// In the order of the last chunk handed out; at most [`MAX_BOUND`].
    bound: VecDeque<(u64, u32)>,
    /// At most [`MAX_PARKED`].
    parked: BTreeMap<Position, u32>,
}

impl Chunks {
    /// The consumer that has the chunks before this one. Chunks that begin a message, or whose beginning went out long ago,
    /// have none and may go to anybody.
    pub(super) fn owner(&self, chunk: Chunk) -> Option<u32> {
        if chunk.first {
            return None;
        }
        self.bound
            .iter()
            .find(|(message, _)| *message == chunk.message)
            .map(|(_, consumer)| *consumer)
    }

    /// A chunk goes to a consumer, and what follows it will.
    pub(super) fn sent(&mut self, chunk: Chunk, consumer: u32) {
        self.bound.retain(|(message, _)| *message != chunk.message);
        if !chunk.last {
            if self.bound.len() >= MAX_BOUND {
                self.bound.pop_front();
            }
            self.bound.push_back((chunk.message, consumer));
        }
    }

    /// Lets a chunk wait for its consumer. False if too many do.
    pub(super) fn park(&mut self, position: Position, consumer: u32) -> bool {
        if self.parked.len() >= MAX_PARKED && !self.parked.contains_key(&position) {
            return false;
        }
        self.parked.insert(position, consumer);
        true
    }

    /// The chunks that wait, and for whom.
    pub(super) fn parked(&self) -> impl Iterator<Item = (Position, u32)> + '_ {
        self.parked
            .iter()
            .map(|(position, consumer)| (*position, *consumer))
    }

    /// Does this chunk wait?
    pub(super) fn is_parked(&self, position: Position) -> bool {
        self.parked.contains_key(&position)
    }

    /// A chunk waits no longer.
    pub(super) fn unpark(&mut self, position: Position) {
        self.parked.remove(&position);
    }

    /// A consumer leaves. Returns the chunks that waited for it.
    pub(super) fn left(&mut self, consumer: u32) -> Vec<Position> {
        self.bound.retain(|(_, bound)| *bound != consumer);
        let free: Vec<Position> = self
            .parked()
            .filter(|(_, waits_for)| *waits_for == consumer)
            .map(|(position, _)| position)
            .collect();
        for position in &free {
            self.parked.remove(position);
        }
        free
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.bound.clear();
        self.parked.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::*;

    fn chunk(uuid: &str, id: i32, count: i32) -> Chunk {
        let metadata = MetadataView {
            uuid: Some(uuid),
            chunk_id: Some(id),
            num_chunks: Some(count),
            ..MetadataView::default()
        };
        Chunk::of(&metadata).expect("a chunk")
    }

    #[test]
    fn chunks_follow_the_first_until_the_last() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.owner(chunk("a", 0, 3)), None);
        chunks.sent(chunk("a", 0, 3), 1);
        chunks.sent(chunk("b", 0, 3), 2);
        assert_eq!(chunks.owner(chunk("a", 1, 3)), Some(1));
        assert_eq!(chunks.owner(chunk("b", 2, 3)), Some(2));
        // A first chunk that comes again may go elsewhere, and takes the others along.
        assert_eq!(chunks.owner(chunk("a", 0, 3)), None);
        chunks.sent(chunk("a", 0, 3), 2);
        assert_eq!(chunks.owner(chunk("a", 1, 3)), Some(2));
        chunks.sent(chunk("a", 2, 3), 2);
        assert_eq!(chunks.owner(chunk("a", 1, 3)), None);
    }

    #[test]
    fn a_message_in_one_piece_is_no_chunk() {
        let metadata = MetadataView {
            uuid: Some("a"),
            chunk_id: Some(0),
            num_chunks: Some(1),
            ..MetadataView::default()
        };
        assert_eq!(Chunk::of(&metadata), None);
    }

    #[test]
    fn a_leaver_frees_what_waited_for_it() {
        let mut chunks = Chunks::default();
        chunks.sent(chunk("a", 0, 4), 1);
        assert!(chunks.park(Position::new(1, 1), 1));
        assert!(chunks.park(Position::new(1, 2), 2));
        assert_eq!(chunks.left(1), [Position::new(1, 1)]);
        assert_eq!(chunks.owner(chunk("a", 1, 4)), None);
        assert_eq!(chunks.parked().count(), 1);
    }

    #[test]
    fn both_lists_are_bounded() {
        let mut chunks = Chunks::default();
        for n in 0..=MAX_BOUND {
            chunks.sent(chunk(&n.to_string(), 0, 2), n as u32);
        }
        assert_eq!(chunks.owner(chunk("0", 1, 2)), None);
        assert_eq!(chunks.owner(chunk("1", 1, 2)), Some(1));
        for n in 0..MAX_PARKED as i64 {
            assert!(chunks.park(Position::new(1, n), 1));
        }
        assert!(!chunks.park(Position::new(2, 0), 1));
        assert!(chunks.park(Position::new(1, 0), 2));
    }
}
