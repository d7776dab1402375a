//! Where the consumer is: what it took last, and what it must not deliver again.

use vela_proto::MessageIdData;

use super::config::ConsumerConfig;
use super::message::{EntryId, index_of, wire_id};
use crate::{MessageId, StartPosition};

/// Messages before it are not delivered; nor is it, unless inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Floor {
    id: MessageId,
    inclusive: bool,
    /// Whether entries before it are dropped too, which a durable subscription leaves to the broker.
    whole: bool,
}

/// The position of one consumer.
#[derive(Debug, Clone)]
pub(super) struct Position {
    durable: bool,
    start: StartPosition,
    floor: Option<Floor>,
    taken: Option<MessageId>,
}

impl Position {
    pub(super) fn new(config: &ConsumerConfig) -> Self {
        let mut position = Self {
            durable: config.durable,
            start: named_ends(config.start),
            floor: None,
            taken: None,
        };
        if !config.durable {
            position.set_floor();
        }
        position
    }

    fn set_floor(&mut self) {
        self.floor = match self.start {
            StartPosition::Message { id, inclusive } => Some(Floor {
                // A chunked message begins with its first chunk.
                id: if inclusive { id.first_chunk_id() } else { id },
                inclusive,
                whole: !self.durable,
            }),
            _ => None,
        };
    }

    /// The application took a message.
    pub(super) fn taken(&mut self, id: MessageId) {
        self.taken = Some(id);
    }

    /// A seek: forgets what was taken.
    pub(super) fn seek(&mut self, target: StartPosition) {
        self.start = named_ends(target);
        self.taken = None;
        self.set_floor();
    }

    /// Whether a message lies before where reading begins.
    pub(super) fn is_before(&self, entry: EntryId, index: Option<u32>) -> bool {
        let Some(floor) = self.floor else {
            return false;
        };
        let at = EntryId::from(floor.id);
        if entry != at {
            return floor.whole && entry < at;
        }
        match (index, index_of(&floor.id)) {
            (Some(index), Some(first)) => index < first || (index == first && !floor.inclusive),
            // The whole entry is named.
            _ => !floor.inclusive,
        }
    }

    /// What a reader took last.
    pub(super) fn taken_by_reader(&self) -> Option<EntryId> {
        self.taken.filter(|_| !self.durable).map(EntryId::from)
    }

    /// What a SUBSCRIBE names as its start: only the position of a reader is the client's to keep. `begun` is the first chunk before it
    /// of a message that ends behind it: reading begins there, and what was taken is dropped.
    pub(super) fn subscribe(&mut self, begun: Option<EntryId>) -> Option<MessageIdData> {
        if self.durable {
            return None;
        }
        if let Some(taken) = self.taken {
            self.floor = Some(Floor {
                id: taken,
                inclusive: false,
                whole: true,
            });
            return Some(match begun {
                Some(begun) => begun.wire(Vec::new()),
                None => wire_id(&taken),
            });
        }
        Some(wire_start(self.start))
    }

    /// Whether the topic holds something behind this position, when `last` is its last message and `mark_delete` the position
    /// the broker has for this consumer.
    pub(super) fn is_behind(&self, last: &MessageId, mark_delete: Option<&MessageId>) -> bool {
        if let Some(taken) = self.taken {
            return order(last) > order(&taken);
        }
        match self.start {
            StartPosition::Earliest => true,
            StartPosition::Message { id, inclusive } => {
                // An id without index means its whole entry.
                let (last, id) = (order(last), order(&id));
                let same = last.0 == id.0 && last.1 == id.1 && (id.2 < 0 || id.2 == last.2);
                if same { inclusive } else { last > id }
            }
            StartPosition::Latest | StartPosition::Time(_) => mark_delete.is_some_and(|at| {
                let (last, at) = (order(last), order(at));
                (last.0, last.1) > (at.0, at.1)
            }),
        }
    }
}

/// Order in the topic. The first position of a ledger is before its entry 0.
fn order(id: &MessageId) -> (u64, i64, i32) {
    (id.ledger, id.entry as i64, id.batch_index)
}

/// The two ends by their names, however they were written.
fn named_ends(start: StartPosition) -> StartPosition {
    match start {
        StartPosition::Message { id, .. } if id == MessageId::EARLIEST => StartPosition::Earliest,
        StartPosition::Message { id, .. } if id == MessageId::LATEST => StartPosition::Latest,
        other => other,
    }
}

/// As the protocol writes a start. A time begins at the first message there is: the seek to it follows, and nothing may be missed.
pub(super) fn wire_start(start: StartPosition) -> MessageIdData {
    match named_ends(start) {
        StartPosition::Earliest | StartPosition::Time(_) => wire_id(&MessageId::EARLIEST),
        StartPosition::Latest => wire_id(&MessageId::LATEST),
        StartPosition::Message { id, inclusive } => {
            wire_id(&if inclusive { id.first_chunk_id() } else { id })
        }
    }
}
