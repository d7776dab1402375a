//! The first entry of a time: a binary search over the ranks of a topic's entries, so an entry is read for each of its steps, at most 64.

use vela_codec::entry::Entry;

use super::Topic;
use super::lanes::LaneSeat;
use crate::store::log::{Position, Read};

/// A search that is under way. It goes on where it stood when the entry that it needs is in memory.
pub(super) struct TimeSearch {
    /// Milliseconds since the Unix epoch.
    time: u64,
    /// The first entry that ranks are counted from.
    first: Option<Position>,
    /// The rank that is looked for is between these.
    low: u64,
    high: u64,
}

impl TimeSearch {
    /// Looks for the first entry published at `time` or later.
    pub(super) fn new(topic: &Topic, time: u64) -> Self {
        TimeSearch {
            time,
            first: topic.state.ledgers.first(),
            low: 0,
            high: topic.visible_entries(),
        }
    }

    /// The position before that entry, or the last one if all are older; `None` = an entry has to be read from disk first.
    pub(super) fn poll(&mut self, topic: &Topic, seat: &mut LaneSeat) -> Option<Position> {
        if topic.state.ledgers.first() != self.first {
            // Ledgers went meanwhile: ranks count from another entry now.
            *self = TimeSearch::new(topic, self.time);
        }
        while self.low < self.high {
            let middle = self.low + (self.high - self.low) / 2;
            let Some(position) = topic.position_at(middle) else {
                self.high = middle;
                continue;
            };
            let published = match topic.read(seat, position) {
                Read::Entry(data) => Entry::parse(&data)
                    .ok()
                    .and_then(|entry| entry.metadata_view())
                    .map(|view| view.publish_time),
                Read::Miss => return None,
                Read::Gone | Read::Corrupt => None,
            };
            if published.is_some_and(|published| published >= self.time) {
                self.high = middle;
            } else {
                self.low = middle + 1;
            }
        }
        Some(match topic.position_at(self.low) {
            Some(position) if position <= topic.confirmed => topic.state.ledgers.prev(position),
            _ => topic.confirmed,
        })
    }
}
