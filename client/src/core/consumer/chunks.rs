//! Large messages that came in chunks, put together again.
//!
//! Bounded in number and in time. A chunk returns its permit when it comes, but for the last, whose permit the whole message holds:
//! else a message of more chunks than the receiver queue could never be completed.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::{Bytes, BytesMut};
use vela_proto::MessageMetadata;

use super::Nanos;
use super::config::MILLI;
use super::message::EntryId;

/// Longest identity, in bytes. Those of abandoned messages are kept.
const MAX_UUID: usize = 16 * 1024;

/// Most chunks of a message.
const MAX_CHUNKS: i32 = 1 << 20;

/// Most identities of abandoned messages kept.
const MAX_ABANDONED: usize = 1000;

#[derive(Debug)]
struct Partial {
    chunks: i32,
    total: usize,
    /// The chunks so far. Copied, so that no more is held than the message has.
    whole: BytesMut,
    ids: Vec<EntryId>,
    since: Nanos,
    /// Whether it comes again from the start; its payload is dropped.
    again: bool,
    /// The chunks that had come before it began again.
    before: Vec<EntryId>,
}

impl Partial {
    /// All chunks that ever came.
    fn known(&self) -> &[EntryId] {
        if self.ids.len() < self.before.len() {
            &self.before
        } else {
            &self.ids
        }
    }
}

/// What a chunk led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// More are missing.
    Kept,
    /// The message is whole: payload as compressed, and the entries of its chunks in order.
    Whole(Bytes, Vec<EntryId>),
    /// The same entry again.
    Repeated,
    /// The same chunk in another entry: the producer sent it twice.
    Copy,
    /// A chunk before it is missing. `abandoned`: it was given up here and will come again from the start.
    Orphan {
        /// Whether this client gave the message up.
        abandoned: bool,
        /// Entries of the chunks that were there.
        dropped: Vec<EntryId>,
    },
    /// Its numbers cannot be.
    Invalid(Vec<EntryId>),
}

/// The incomplete messages of one consumer.
#[derive(Debug)]
pub(super) struct Chunks {
    max_pending: usize,
    /// Largest message, in bytes.
    max_size: usize,
    expiry: Nanos,
    pending: HashMap<String, Partial>,
    /// Oldest first; may name messages that are complete by now.
    order: VecDeque<String>,
    abandoned: HashSet<String>,
    abandoned_order: VecDeque<String>,
}

impl Chunks {
    /// `max_size` is that of a message before compression, which may make it a little larger.
    pub(super) fn new(max_pending: usize, max_size: usize, expiry: Nanos) -> Self {
        Self {
            max_size: max_size.saturating_add(max_size / 4 + 1024),
            max_pending: max_pending.max(1),
            expiry,
            pending: HashMap::new(),
            order: VecDeque::new(),
            abandoned: HashSet::new(),
            abandoned_order: VecDeque::new(),
        }
    }

    /// Adds a chunk. The entries of messages given up for it are appended to `given_up`.
    pub(super) fn add(
        &mut self,
        now: Nanos,
        entry: EntryId,
        metadata: &MessageMetadata,
        payload: Bytes,
        given_up: &mut Vec<EntryId>,
    ) -> Chunk {
        let uuid = metadata.uuid().to_owned();
        let (index, chunks) = (metadata.chunk_id(), metadata.num_chunks_from_msg());
        let total = usize::try_from(metadata.total_chunk_msg_size());
        let Some(total) = total
            .ok()
            .filter(|&total| total <= self.max_size && chunks <= MAX_CHUNKS)
            .filter(|_| !uuid.is_empty() && uuid.len() <= MAX_UUID)
            .filter(|_| index >= 0 && index < chunks)
        else {
            return Chunk::Invalid(Vec::new());
        };
        if index == 0 {
            match self.pending.get(&uuid) {
                Some(partial) if partial.again => {}
                Some(partial) if partial.ids == [entry] => return Chunk::Repeated,
                Some(partial) if partial.ids.first() != Some(&entry) => return Chunk::Copy,
                // Delivered again from the start: the old parts are the same bytes.
                _ => {}
            }
            let before = self.pending.get(&uuid).map(Partial::known);
            let same = before.filter(|before| before.first() == Some(&entry));
            let before = same.map(<[_]>::to_vec).unwrap_or_default();
            self.forget(&uuid);
            if self.pending.len() >= self.max_pending {
                self.give_up_oldest(given_up);
            }
            self.unabandon(&uuid);
            self.order.push_back(uuid.clone());
            let partial = Partial {
                chunks,
                total,
                whole: BytesMut::new(),
                ids: Vec::new(),
                since: now,
                again: false,
                before,
            };
            self.pending.insert(uuid.clone(), partial);
        }
        let partial = self.pending.get_mut(&uuid);
        let Some(partial) = partial.filter(|partial| !partial.again) else {
            let abandoned = self.abandoned.contains(&uuid);
            return Chunk::Orphan {
                abandoned,
                dropped: Vec::new(),
            };
        };
        let next = i32::try_from(partial.ids.len()).unwrap_or(i32::MAX);
        if index < next {
            let same = partial.ids.get(index as usize) == Some(&entry);
            return if same { Chunk::Repeated } else { Chunk::Copy };
        }
        if index > next {
            let dropped = self.forget(&uuid);
            return Chunk::Orphan {
                abandoned: false,
                dropped,
            };
        }
        let bytes = partial.whole.len() + payload.len();
        partial.ids.push(entry);
        let consistent = partial.chunks == chunks && partial.total == total;
        if !consistent || bytes > partial.total {
            return Chunk::Invalid(self.forget(&uuid));
        }
        partial.whole.extend_from_slice(&payload);
        if index + 1 < chunks {
            return Chunk::Kept;
        }
        let Some(partial) = self.pending.remove(&uuid) else {
            return Chunk::Kept;
        };
        self.order.retain(|known| *known != uuid);
        if partial.whole.len() != partial.total {
            return Chunk::Invalid(partial.ids);
        }
        Chunk::Whole(partial.whole.freeze(), partial.ids)
    }

    /// Forgets what came of a message that begins with this entry.
    pub(super) fn forget_from(&mut self, first: EntryId) {
        let found = |partial: &Partial| partial.ids.first() == Some(&first);
        let uuid = self.pending.iter().find(|(_, partial)| found(partial));
        if let Some(uuid) = uuid.map(|(uuid, _)| uuid.clone()) {
            self.forget(&uuid);
        }
    }

    /// Forgets a message; the entries of its chunks.
    fn forget(&mut self, uuid: &str) -> Vec<EntryId> {
        self.order.retain(|known| known != uuid);
        self.pending
            .remove(uuid)
            .map(|partial| partial.ids)
            .unwrap_or_default()
    }

    fn give_up_oldest(&mut self, given_up: &mut Vec<EntryId>) {
        if let Some(uuid) = self.order.pop_front()
            && let Some(partial) = self.pending.remove(&uuid)
            && !partial.again
        {
            given_up.extend(partial.ids);
            if self.abandoned.insert(uuid.clone()) {
                self.abandoned_order.push_back(uuid);
            }
            if self.abandoned_order.len() > MAX_ABANDONED
                && let Some(oldest) = self.abandoned_order.pop_front()
            {
                self.abandoned.remove(&oldest);
            }
        }
    }

    fn unabandon(&mut self, uuid: &str) {
        if self.abandoned.remove(uuid) {
            self.abandoned_order.retain(|known| known != uuid);
        }
    }

    /// When the oldest incomplete message is given up.
    pub(super) fn next(&self) -> Option<Nanos> {
        let oldest = self.pending.get(self.order.front()?)?;
        Some(oldest.since.saturating_add(self.expiry))
    }

    /// The time of what is too old begins again, unless it is shorter than a millisecond.
    pub(super) fn postpone(&mut self, now: Nanos) {
        for _ in 0..self.order.len() {
            if self.expiry < MILLI || self.next().is_none_or(|due| due > now) {
                return;
            }
            if let Some(uuid) = self.order.pop_front() {
                if let Some(partial) = self.pending.get_mut(&uuid) {
                    partial.since = now;
                }
                self.order.push_back(uuid);
            }
        }
    }

    /// Gives up what is too old; the entries of its chunks.
    pub(super) fn expired(&mut self, now: Nanos) -> Vec<EntryId> {
        let mut given_up = Vec::new();
        while self.next().is_some_and(|due| due <= now) {
            self.give_up_oldest(&mut given_up);
        }
        given_up
    }

    /// Everything will come again. Until it does, or its time is over, it is known what had come of which message.
    pub(super) fn come_again(&mut self) {
        for partial in self.pending.values_mut() {
            partial.again = true;
            partial.whole = BytesMut::new();
        }
        self.abandoned.clear();
        self.abandoned_order.clear();
    }

    /// What came of the messages that are not whole and have chunks up to this entry.
    pub(super) fn begun_before(&self, entry: EntryId) -> impl Iterator<Item = &[EntryId]> {
        let ids = self.pending.values().map(Partial::known);
        ids.filter(move |ids| ids.first().is_some_and(|&first| first <= entry))
    }

    /// Nothing of it is wanted any more.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.order.clear();
        self.abandoned.clear();
        self.abandoned_order.clear();
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }
}
