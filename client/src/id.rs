//! The identity of a message.

use std::fmt;

/// Where a message lies: ledger and entry, the partition of its topic, and its place in a batch.
///
/// Ordered as the messages of one partition are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// Ledger.
    pub ledger: u64,
    /// Entry in the ledger.
    pub entry: u64,
    /// Place in its batch; -1 if the entry is not a batch.
    pub batch_index: i32,
    /// Partition of the topic; -1 if it has none.
    pub partition: i32,
    /// Messages in the batch; 0 if the entry is not one.
    pub batch_size: i32,
}

impl MessageId {
    /// Before every message of a topic.
    pub const EARLIEST: Self = Self {
        ledger: u64::MAX,
        entry: u64::MAX,
        batch_index: -1,
        partition: -1,
        batch_size: 0,
    };
}

impl fmt::Display for MessageId {
    /// `ledger:entry:partition:batch index`, as Pulsar's tools write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}:{}",
            self.ledger, self.entry, self.partition, self.batch_index
        )
    }
}
