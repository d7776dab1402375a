//! Deduplication: a message that a producer sends again is stored once.
//!
//! Producers are known by name. The highest sequence id of each is part of the log: the record of an entry carries it, so what recovery finds is
//! exact, whenever the broker died. A repeat is answered as Pulsar answers it (receipt with position -1:-1), in its turn among the receipts: when
//! that leaves, the original is durable. So there is no state in which the broker could not tell.
//!
//! A batch is compared by its lowest id and remembered by its highest. One that begins at or below what is known and ends above it is refused as a
//! whole: its new messages must not be answered as duplicates, nor its old ones be stored again. Of a chunked message only the last chunk counts.
//!
//! How many producers are remembered is bounded (`brokerDeduplicationMaxNumberOfProducers`): one more takes the place of the one that has been gone
//! the longest, and is refused if all are connected.

use std::collections::{BTreeMap, BTreeSet};

use vela_codec::entry::Entry;

use super::lanes::LaneSeat;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{SendId, SendKind};
use crate::engine::time::Now;
use crate::store::log::{Position, Record, SequenceId};

/// The position in the receipt of a duplicate.
pub(super) const DUPLICATE: Position = Position::new(-1, -1);
/// Between two looks at producers that have been gone for long, milliseconds.
const SWEEP_MS: u64 = 60_000;

/// What a SEND is to the log.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Judgment {
    /// Stored and not remembered: a marker, or a chunk with others behind it.
    Plain,
    /// Stored, and this is the producer's highest sequence id then.
    New(SequenceId, i64),
    /// Stored before.
    Duplicate,
    /// A batch, a part of which was stored before.
    Overlap,
}

/// The rule. Ids are compared as the signed numbers that clients make of them.
pub(super) fn judge(known: i64, lowest: u64, highest: Option<u64>, id: SequenceId) -> Judgment {
    let lowest = lowest as i64;
    let highest = highest.map_or(lowest, |highest| (highest as i64).max(lowest));
    if lowest > known {
        Judgment::New(id, highest)
    } else if highest <= known {
        Judgment::Duplicate
    } else {
        Judgment::Overlap
    }
}

/// Is this the last chunk of its message? What says nothing readable of it is.
fn is_last_chunk(data: &[u8]) -> bool {
    let metadata = Entry::parse(data).ok();
    let metadata = metadata.and_then(|entry| entry.metadata_view());
    metadata
        .and_then(|metadata| metadata.chunk_id.zip(metadata.num_chunks))
        .is_none_or(|(chunk, chunks)| chunk == chunks.saturating_sub(1))
}

/// Producers that deduplication remembers and that are not connected, by when they went.
#[derive(Default, Debug)]
pub(super) struct Gone {
    since: BTreeMap<SequenceId, u64>,
    order: BTreeSet<(u64, SequenceId)>,
}

impl Gone {
    fn put(&mut self, id: SequenceId, now_ms: u64) {
        self.take(id);
        self.since.insert(id, now_ms);
        self.order.insert((now_ms, id));
    }

    fn take(&mut self, id: SequenceId) {
        if let Some(since) = self.since.remove(&id) {
            self.order.remove(&(since, id));
        }
    }

    /// The one that has been gone the longest, and since when.
    fn first(&self) -> Option<(u64, SequenceId)> {
        self.order.first().copied()
    }
}

/// When to look next for producers that have been gone too long.
#[derive(Default)]
pub(super) struct Sweep {
    topics: BTreeSet<u32>,
    at: Option<u64>,
}

impl Sweep {
    pub(super) fn next_wakeup(&self) -> Option<u64> {
        self.at
    }

    /// The topic is gone.
    pub(super) fn forget(&mut self, slot: u32) {
        self.topics.remove(&slot);
    }

    fn watch(&mut self, slot: u32, now: Now) {
        self.topics.insert(slot);
        self.at.get_or_insert(now.ms + SWEEP_MS);
    }
}

impl Topic {
    /// What a SEND of a producer is.
    pub(super) fn judge(&self, producer: u32, send: &SendId, data: &[u8]) -> Judgment {
        let sequence = self.producers.get(producer as usize);
        let Some(id) = sequence.and_then(|producer| producer.sequence) else {
            return Judgment::Plain;
        };
        let kind = send.kind;
        if kind == SendKind::Marker || (kind == SendKind::Chunk && !is_last_chunk(data)) {
            return Judgment::Plain;
        }
        let known = self.state.sequences.highest(id).unwrap_or(-1);
        judge(known, send.sequence_id, send.highest_sequence_id, id)
    }

    /// Makes a producer known to deduplication, or finds it. `None` if there are too many and all are connected.
    pub(super) fn sequence(
        &mut self,
        seat: &mut LaneSeat,
        name: &str,
        max: u32,
    ) -> Option<SequenceId> {
        if let Some(id) = self.state.sequences.find(name) {
            self.gone.take(id);
            return Some(id);
        }
        while self.state.sequences.len() >= max.max(1) as usize {
            let (_, longest) = self.gone.first()?;
            self.forget(seat, longest);
        }
        let producer = self.state.sequences.next();
        let topic = self.state.id;
        seat.append(&Record::SequenceOpened {
            topic,
            producer,
            name,
        });
        if let Err(damage) = self.state.sequences.open(topic, producer, name, -1) {
            tracing::error!(topic = %self.name, %damage, "a producer cannot be remembered");
            return None;
        }
        Some(producer)
    }

    fn forget(&mut self, seat: &mut LaneSeat, id: SequenceId) {
        self.gone.take(id);
        if self.state.sequences.close(id).is_some() {
            seat.append(&Record::SequenceClosed {
                topic: self.state.id,
                producer: id,
            });
        }
    }
}

impl Topics {
    /// A producer has gone: from now on its place may be taken.
    pub(super) fn sequence_idle(&mut self, slot: u32, id: SequenceId) {
        let now = self.clock;
        if let Some(topic) = self.topics.get_mut(slot as usize) {
            topic.gone.put(id, now.ms);
            self.sweep.watch(slot, now);
        }
    }

    /// Deduplication of a topic is switched on or off. Off forgets everything: sequence ids may begin anew before it is on again.
    pub(super) fn switch_dedup(&mut self, cx: &mut Context, slot: u32, on: bool, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let known: Vec<SequenceId> = topic.state.sequences.iter().map(|(id, _)| id).collect();
        if !on {
            for id in known {
                topic.forget(seat, id);
            }
            for (_, producer) in &mut topic.producers {
                producer.sequence = None;
            }
            self.sweep.topics.remove(&slot);
            return;
        }
        for id in known {
            topic.gone.put(id, now.ms);
        }
        let names: Vec<(u32, String)> = topic
            .producers
            .iter()
            .map(|(index, producer)| (index as u32, producer.name.clone()))
            .collect();
        let max = cx.settings.broker_deduplication_max_number_of_producers;
        for (index, name) in names {
            let sequence = topic.sequence(seat, &name, max);
            if let Some(producer) = topic.producers.get_mut(index as usize) {
                producer.sequence = sequence;
            }
        }
        self.sweep.watch(slot, now);
        // Those that nothing can be remembered of come back, and are refused.
        self.close_producers(cx, slot, true, |producer| producer.sequence.is_none());
    }

    /// Forgets producers that have been gone too long.
    pub(super) fn sweep_sequences(&mut self, cx: &Context, now: Now) {
        if self.sweep.at.is_none_or(|at| at > now.ms) {
            return;
        }
        let timeout = cx
            .settings
            .broker_deduplication_producer_inactivity_timeout_ms;
        let mut waits = false;
        for slot in &self.sweep.topics {
            let Some(topic) = self.topics.get_mut(*slot as usize) else {
                continue;
            };
            let Some(seat) = self.lanes.get_mut(topic.lane) else {
                continue;
            };
            while let Some((since, id)) = topic.gone.first()
                && since.saturating_add(timeout) <= now.ms
            {
                topic.forget(seat, id);
            }
            waits |= topic.gone.first().is_some();
        }
        self.sweep.at = waits.then_some(now.ms + SWEEP_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_compared_by_its_lowest_and_remembered_by_its_highest_id() {
        let judge = |known, lowest, highest| judge(known, lowest, highest, 4);
        assert_eq!(judge(-1, 0, None), Judgment::New(4, 0));
        assert_eq!(judge(-1, 0, Some(9)), Judgment::New(4, 9));
        assert_eq!(judge(9, 9, None), Judgment::Duplicate);
        assert_eq!(judge(9, 0, Some(9)), Judgment::Duplicate);
        assert_eq!(judge(9, 10, Some(12)), Judgment::New(4, 12));
        assert_eq!(judge(9, 8, Some(12)), Judgment::Overlap);
        // A highest id below the lowest is no range.
        assert_eq!(judge(9, 10, Some(3)), Judgment::New(4, 10));
        // Java's -1 and what lies below it.
        assert_eq!(judge(-1, u64::MAX, None), Judgment::Duplicate);
    }

    #[test]
    fn who_has_been_gone_the_longest_is_first() {
        let mut gone = Gone::default();
        for (id, at) in [(1, 50), (2, 40), (3, 60)] {
            gone.put(id, at);
        }
        assert_eq!(gone.first(), Some((40, 2)));
        gone.put(2, 70);
        assert_eq!(gone.first(), Some((50, 1)));
        gone.take(1);
        gone.take(1);
        assert_eq!(gone.first(), Some((60, 3)));
    }
}
