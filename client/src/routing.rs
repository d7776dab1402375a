//! Which partition a message goes to: by the hash of its key, or where there is none by turns.

use crate::message::OutgoingMessage;
use std::fmt;
use std::sync::Arc;

/// How a key becomes a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashingScheme {
    /// Java's `String.hashCode`, the default of Pulsar's Java client.
    #[default]
    JavaStringHash,
    /// Murmur3, 32 bits, seed 0: the default of clients in other languages.
    Murmur3_32Hash,
}

impl HashingScheme {
    /// The hash of a key, without its sign bit.
    #[must_use]
    pub fn hash(self, key: &str) -> u32 {
        let hash = match self {
            Self::JavaStringHash => java_string_hash(key),
            Self::Murmur3_32Hash => murmur3_32(key.as_bytes()),
        };
        hash & 0x7fff_ffff
    }
}

fn java_string_hash(text: &str) -> u32 {
    let units = text.encode_utf16();
    units.fold(0u32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(u32::from(unit))
    })
}

/// Murmur3, 32 bits, seed 0.
#[must_use]
pub fn murmur3_32(data: &[u8]) -> u32 {
    fn scramble(word: u32) -> u32 {
        word.wrapping_mul(0xcc9e_2d51)
            .rotate_left(15)
            .wrapping_mul(0x1b87_3593)
    }
    let mut words = data.chunks_exact(4);
    let mut hash = words.by_ref().fold(0u32, |hash, word| {
        let word = word
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
        (hash ^ scramble(word))
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64)
    });
    let tail = words
        .remainder()
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u32::from(*byte));
    if !words.remainder().is_empty() {
        hash ^= scramble(tail);
    }
    // The length modulo 2^32 is the algorithm's.
    #[allow(clippy::cast_possible_truncation)]
    let length = data.len() as u32;
    hash ^= length;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Chooses partitions by a rule of the application.
pub trait MessageRouter: Send + Sync {
    /// The partition of this message, below `partitions`; one that is not fails that send only.
    fn route(&self, message: &OutgoingMessage, partitions: u32) -> u32;
}

impl<F: Fn(&OutgoingMessage, u32) -> u32 + Send + Sync> MessageRouter for F {
    fn route(&self, message: &OutgoingMessage, partitions: u32) -> u32 {
        self(message, partitions)
    }
}

/// Which partition messages go to.
#[derive(Clone, Default)]
pub enum RoutingMode {
    /// With a key by its hash; without one each partition in turn. With batching the turn changes after ten times
    /// `batching_max_publish_delay`, so that batches fill.
    #[default]
    RoundRobin,
    /// With a key by its hash; without one always the same partition, drawn when the producer is made.
    SinglePartition,
    /// By a rule of the application.
    Custom(Arc<dyn MessageRouter>),
}

impl fmt::Debug for RoutingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RoundRobin => "RoundRobin",
            Self::SinglePartition => "SinglePartition",
            Self::Custom(_) => "Custom",
        })
    }
}

/// How often `batching_max_publish_delay` passes before the turn changes.
const DELAYS_PER_TURN: u64 = 10;

/// The state of one producer's routing.
#[derive(Debug, Clone)]
pub struct Router {
    mode: RoutingMode,
    hashing: HashingScheme,
    /// Nanoseconds between changes of the turn; `None`: it changes with every message.
    turn: Option<u64>,
    /// Where the first turn begins, or the single partition.
    start: u32,
    next: u32,
}

impl Router {
    /// `batching_delay` is `batching_max_publish_delay` in nanoseconds if the producer batches. `seed` is any number: it spreads
    /// producers over partitions.
    #[must_use]
    pub fn new(
        mode: RoutingMode,
        hashing: HashingScheme,
        batching_delay: Option<u64>,
        seed: u32,
    ) -> Self {
        Self {
            mode,
            hashing,
            // Never less than a millisecond, as in Pulsar's Java client.
            turn: batching_delay.map(|delay| delay.saturating_mul(DELAYS_PER_TURN).max(1_000_000)),
            start: seed,
            next: seed,
        }
    }

    /// The partition of a message at this time, in nanoseconds. `None` if a rule of the application chose one that is not there.
    pub fn route(&mut self, message: &OutgoingMessage, partitions: u32, now: u64) -> Option<u32> {
        if partitions == 0 {
            return None;
        }
        if let RoutingMode::Custom(router) = &self.mode {
            return Some(router.route(message, partitions)).filter(|chosen| *chosen < partitions);
        }
        if let Some(key) = &message.key {
            return Some(self.hashing.hash(&key.text) % partitions);
        }
        let chosen = match (&self.mode, self.turn) {
            (RoutingMode::SinglePartition, _) => self.start,
            (_, Some(turn)) => {
                let turns = now / turn % u64::from(partitions);
                // Below a u32, as partitions are.
                (self.start % partitions).wrapping_add(u32::try_from(turns).unwrap_or(0))
            }
            (_, None) => {
                let chosen = self.next;
                self.next = (chosen % partitions + 1) % partitions;
                chosen
            }
        };
        Some(chosen % partitions)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::message::MessageKey;

    fn keyed(key: &str) -> OutgoingMessage {
        OutgoingMessage {
            key: Some(MessageKey::text(key)),
            ..OutgoingMessage::default()
        }
    }

    #[test]
    fn hashes_are_those_of_other_clients() {
        let java = [
            ("hello", 99_162_322),
            ("keykeykeykeykey1", 434_058_482),
            ("keykeykey2", 42_978_643),
            ("käse", 3_410_411),
            ("😀", 1_772_899),
            ("", 0),
        ];
        for (key, hash) in java {
            assert_eq!(HashingScheme::JavaStringHash.hash(key), hash, "{key}");
        }
        let murmur = [
            ("k1", 2_110_152_746),
            ("k2", 1_479_966_664),
            ("key1", 462_881_061),
            ("key2", 1_936_800_180),
            ("key01", 39_696_932),
            ("key02", 751_761_803),
            ("käse", 1_964_702_546),
            ("", 0),
        ];
        for (key, hash) in murmur {
            assert_eq!(HashingScheme::Murmur3_32Hash.hash(key), hash, "{key}");
        }
    }

    #[test]
    fn keys_go_by_their_hash_whatever_the_mode() {
        for mode in [RoutingMode::RoundRobin, RoutingMode::SinglePartition] {
            let mut router = Router::new(mode, HashingScheme::JavaStringHash, None, 1);
            assert_eq!(router.route(&keyed("hello"), 10, 0), Some(2));
            assert_eq!(router.route(&keyed("hello"), 10, 1), Some(2));
        }
    }

    #[test]
    fn without_batching_each_partition_has_its_turn() {
        let mut router = Router::new(
            RoutingMode::RoundRobin,
            HashingScheme::default(),
            None,
            u32::MAX,
        );
        let none = OutgoingMessage::default();
        let chosen: Vec<_> = (0..6).map(|_| router.route(&none, 3, 0).unwrap()).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
        assert_eq!(router.route(&none, 2, 0), Some(0));
        assert_eq!(router.route(&none, 0, 0), None);
    }

    #[test]
    fn with_batching_the_turn_changes_after_ten_delays() {
        let millisecond = 1_000_000;
        let mut router = Router::new(
            RoutingMode::RoundRobin,
            HashingScheme::default(),
            Some(millisecond),
            2,
        );
        let none = OutgoingMessage::default();
        let chosen = [0, 9, 10, 19, 20].map(|at| router.route(&none, 3, at * millisecond).unwrap());
        assert_eq!(chosen, [2, 2, 0, 0, 1]);
    }

    #[test]
    fn a_rule_that_misses_is_told() {
        let rule = |_: &OutgoingMessage, partitions: u32| partitions;
        let mut router = Router::new(
            RoutingMode::Custom(Arc::new(rule)),
            HashingScheme::default(),
            None,
            0,
        );
        assert_eq!(router.route(&keyed("k"), 3, 0), None);
        let rule = |_: &OutgoingMessage, _: u32| 1;
        let mut router = Router::new(
            RoutingMode::Custom(Arc::new(rule)),
            HashingScheme::default(),
            None,
            0,
        );
        assert_eq!(router.route(&keyed("k"), 3, 0), Some(1));
    }
}
