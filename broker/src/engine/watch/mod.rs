//! Lists of topics as clients see them: which topics a pattern means, the hash of a list, and who wants to hear of changes (PIP-145).

mod pattern;
mod watchers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::pattern::{PatternError, TopicPattern};
pub(in crate::engine) use self::watchers::Watcher;
use super::message::SessionRef;
use super::name::base_of;

/// Watchers of one connection; more are refused.
pub(in crate::engine) const MAX_WATCHERS: usize = 256;
/// Watchers of one core; more are refused.
pub(in crate::engine) const MAX_ALL_WATCHERS: usize = 8192;
/// Names that the watchers of one core follow, over all of them. A new watcher beyond that is refused; one that grows beyond it loses its
/// connection, and its client begins anew.
pub(in crate::engine) const MAX_NAMES: usize = 4_000_000;

/// Bytes of the patterns of the watchers of one connection; more are refused.
pub(in crate::engine) const MAX_PATTERNS: usize = 8 << 20;
/// Bytes of the patterns of all watchers of one core; more are refused.
pub(in crate::engine) const MAX_ALL_PATTERNS: usize = 64 << 20;

/// Who watches on this core.
#[derive(Debug, Default)]
pub(in crate::engine) struct WatchIndex {
    by_namespace: BTreeMap<String, BTreeSet<(SessionRef, u64)>>,
    /// Watchers in all.
    pub(in crate::engine) count: usize,
    /// Names that they follow and changes that they have not told, in all.
    pub(in crate::engine) names: usize,
    /// Bytes of their patterns.
    pub(in crate::engine) patterns: usize,
    /// Sessions with changes to tell before the turn ends.
    pub(in crate::engine) dirty: Vec<SessionRef>,
}

impl WatchIndex {
    pub(in crate::engine) fn add(&mut self, namespace: &str, session: SessionRef, watcher: u64) {
        let watchers = self.by_namespace.entry(namespace.to_owned()).or_default();
        if watchers.insert((session, watcher)) {
            self.count += 1;
        }
    }

    pub(in crate::engine) fn remove(&mut self, namespace: &str, session: SessionRef, watcher: u64) {
        if let Some(watchers) = self.by_namespace.get_mut(namespace) {
            if watchers.remove(&(session, watcher)) {
                self.count = self.count.saturating_sub(1);
            }
            if watchers.is_empty() {
                self.by_namespace.remove(namespace);
            }
        }
    }

    /// The watchers of a namespace.
    pub(in crate::engine) fn of(&self, namespace: &str) -> Vec<(SessionRef, u64)> {
        let watchers = self.by_namespace.get(namespace);
        watchers.into_iter().flatten().copied().collect()
    }
}

/// Topics that a broker keeps for itself, by their local names; lists leave them out.
pub fn is_system_topic(local: &str) -> bool {
    let local = base_of(local);
    matches!(
        local,
        "__change_events"
            | "__transaction_buffer_snapshot"
            | "__transaction_buffer_snapshot_indexes"
            | "__transaction_buffer_snapshot_segments"
            | "transaction_coordinator_assign"
    ) || local.starts_with("__transaction_log_")
        || local.ends_with("__transaction_pending_ack")
}

/// The hash of a topic list: CRC-32C over the names in order, joined by commas, as hex digits of its little-endian bytes. `names` must be
/// sorted.
pub fn topics_hash<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> String {
    let mut crc = 0;
    for (index, name) in names.enumerate() {
        if index > 0 {
            crc = crc32c::crc32c_append(crc, b",");
        }
        crc = crc32c::crc32c_append(crc, name.as_bytes());
    }
    let bytes: [u8; 4] = crc.to_le_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(names: &[&str]) -> String {
        let names: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
        topics_hash(names.iter())
    }

    /// Values that Apache Pulsar 5.0.1 gave.
    #[test]
    fn lists_have_the_hashes_that_clients_know() {
        assert_eq!(hash(&[]), "00000000");
        assert_eq!(hash(&["persistent://public/default/a"]), "e4a876e3");
        assert_eq!(
            hash(&[
                "persistent://public/default/a",
                "persistent://public/default/b"
            ]),
            "c7559e98"
        );
    }

    #[test]
    fn system_topics_are_known_by_their_exact_names() {
        for name in [
            "__change_events",
            "__change_events-partition-3",
            "__transaction_log_7",
            "t-sub__transaction_pending_ack",
            "transaction_coordinator_assign-partition-0",
        ] {
            assert!(is_system_topic(name), "{name}");
        }
        for name in ["__foo", "a__change_events", "__change_events2", "t"] {
            assert!(!is_system_topic(name), "{name}");
        }
    }
}
