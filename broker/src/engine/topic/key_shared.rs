//! Key_Shared: the messages of a key go to one consumer, in order.
//!
//! [`super::sticky`] decides; this is what it is given and asked for. An entry that cannot go waits in the line of its key, whether it came
//! back or was just read: reading goes on past it, up to a look-ahead, so that one consumer without credit, or one key that drains, does not
//! hold the others up. At the look-ahead reading stops until something that waits can go.

use std::collections::BTreeMap;

use super::dispatcher::{Candidate, Choice};
use super::pending::Held;
use super::roster::{Consumer, Roster};
use super::sticky::{Draining, Keys, Mode, Policy, Refused, Route, Selector, Slot};
use crate::engine::message::KeySharedMeta;
use crate::engine::settings::Settings;
use crate::store::log::Position;

/// Entries that may wait where the settings know no limit at all.
const MAX_WAITING: usize = 1 << 20;

/// What a Key_Shared subscription has beside its consumers and what they hold.
#[derive(Debug)]
pub(super) struct KeyShared {
    policy: Policy,
    keys: Keys,
    /// Entries that may wait, as of the last run.
    look_ahead: usize,
}

/// The keys of a subscription, for statistics.
#[derive(Debug)]
pub(super) struct KeyStatistics {
    /// `keySharedMode`.
    pub(super) mode: &'static str,
    /// `allowOutOfOrderDelivery`.
    pub(super) allow_out_of_order: bool,
    /// Entries that wait for their consumers: `msgInReplay`.
    pub(super) waiting: usize,
    /// By the consumers' indexes; those without an entry have nothing.
    pub(super) consumers: BTreeMap<u32, ConsumerKeys>,
}

/// The keys of one consumer, for statistics.
#[derive(Default, Debug)]
pub(super) struct ConsumerKeys {
    /// `keyHashRangeArrays`.
    pub(super) ranges: Vec<(u32, u32)>,
    /// `drainingHashes`: slots that are another's as soon as this consumer has nothing of them any more.
    pub(super) draining: Vec<Draining>,
    /// `drainingHashesClearedTotal`.
    pub(super) drained: u64,
}

/// What a consumer wants.
fn policy(meta: Option<&KeySharedMeta>) -> Policy {
    match meta {
        None => Policy::default(),
        Some(meta) => Policy {
            mode: match meta.sticky {
                true => Mode::Sticky,
                false => Mode::AutoSplit,
            },
            allow_out_of_order: meta.allow_out_of_order,
        },
    }
}

/// The ranges that a consumer names.
fn ranges(meta: Option<&KeySharedMeta>) -> &[(i32, i32)] {
    meta.filter(|meta| meta.sticky)
        .map_or(&[], |meta| meta.ranges.as_slice())
}

impl KeyShared {
    /// As the first consumer wants it.
    pub(super) fn new(meta: Option<&KeySharedMeta>, settings: &Settings) -> Self {
        let policy = policy(meta);
        let ring_points = settings
            .subscription_key_shared_use_consistent_hashing
            .then_some(settings.subscription_key_shared_consistent_hashing_replica_points);
        let selector = Selector::new(policy.mode, ring_points);
        KeyShared {
            policy,
            keys: Keys::new(selector, !policy.allow_out_of_order),
            look_ahead: 0,
        }
    }

    /// What its consumers have agreed on.
    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    /// What statistics tell. It looks at every slot that is out.
    pub(super) fn statistics(&self) -> KeyStatistics {
        let mut consumers: BTreeMap<u32, ConsumerKeys> = BTreeMap::new();
        for (slots, owner) in self.keys.shares() {
            let of = consumers.entry(owner).or_default();
            of.ranges
                .push((u32::from(slots.first), u32::from(slots.last)));
        }
        for draining in self.keys.draining() {
            let of = consumers.entry(draining.holder).or_default();
            of.draining.push(draining);
        }
        for (index, drained) in self.keys.drained() {
            consumers.entry(index).or_default().drained = drained;
        }
        KeyStatistics {
            mode: self.policy.mode.name(),
            allow_out_of_order: self.policy.allow_out_of_order,
            waiting: self.keys.waiting(),
            consumers,
        }
    }

    /// May a consumer that agrees on the policy join?
    ///
    /// # Errors
    /// There are no keys for it.
    pub(super) fn check(&self, meta: Option<&KeySharedMeta>) -> Result<(), Refused> {
        self.keys.check(ranges(meta))
    }

    pub(super) fn joined(&mut self, index: u32, consumer: &Consumer, meta: Option<&KeySharedMeta>) {
        self.keys.join(index, &consumer.name, ranges(meta));
    }

    /// What a consumer held waits for whoever has its keys now.
    pub(super) fn left(&mut self, index: u32, held: Vec<(Position, Held)>) {
        let held = held.into_iter();
        self.keys
            .leave(index, held.map(|(position, held)| (position, held.slot)));
    }

    /// A run of dispatch begins: the mark-delete position may have moved, some consumers can take
    /// entries again, and settings or the number of consumers may have changed.
    pub(super) fn begin_run(
        &mut self,
        roster: &Roster,
        mark_delete: Position,
        settings: &Settings,
    ) {
        self.keys.take_through(mark_delete);
        for index in roster.risen() {
            self.keys.wake(*index);
        }
        self.look_ahead = look_ahead(roster.len(), settings);
    }

    /// The slot of an entry.
    pub(super) fn slot(&self, candidate: &Candidate) -> Slot {
        self.keys.slot(candidate.key_hash)
    }

    /// Who gets an entry: one that waits, or one that was just read and waits if it cannot go.
    pub(super) fn choose(&mut self, roster: &Roster, candidate: &Candidate) -> Choice {
        let available = |index: u32| roster.get(index).is_some_and(Consumer::available);
        if self.keys.waits(candidate.position) {
            let to = self.keys.first_of_line(candidate.position);
            return match to.filter(|index| available(*index)) {
                Some(index) => Choice::Send(index),
                None => Choice::Aside,
            };
        }
        let slot = self.slot(candidate);
        match self.keys.route(slot) {
            Route::To(index) if available(index) => Choice::Send(index),
            _ => {
                self.keys.wait(candidate.position, slot);
                Choice::Aside
            }
        }
    }

    /// A consumer is to hold an entry. False if it must not: another one holds entries of the key.
    pub(super) fn admit(&mut self, index: u32, candidate: &Candidate) -> bool {
        let slot = self.slot(candidate);
        let unfinished = candidate.chunk.map(|chunk| !chunk.is_last());
        let admitted = self.keys.admit(index, slot, unfinished);
        self.keys.pass_turn();
        admitted
    }

    /// A consumer no longer holds an entry. True if something that waits can go now.
    pub(super) fn released(&mut self, index: u32, slot: Slot) -> bool {
        self.keys.released(index, slot)
    }

    /// An entry that is not held has to go out again, or for the first time.
    pub(super) fn put_back(&mut self, position: Position, slot: Slot) {
        self.keys.wait(position, slot);
    }

    /// The next entry that waits and can go.
    pub(super) fn next(&mut self, roster: &Roster) -> Option<Position> {
        let available = |index: u32| roster.get(index).is_some_and(Consumer::available);
        self.keys.next(available).map(|(position, _, _)| position)
    }

    /// Does this entry wait?
    pub(super) fn waits(&self, position: Position) -> bool {
        self.keys.waits(position)
    }

    /// An entry waits no longer. False if it did not.
    pub(super) fn forget(&mut self, position: Position) -> bool {
        self.keys.take(position)
    }

    /// Forgets all entries.
    pub(super) fn rewind(&mut self) {
        self.keys.clear();
    }

    /// May reading go on while entries wait? As in Pulsar, the limits on unacknowledged messages count where both limits of the
    /// look-ahead are off.
    pub(super) fn reads_on(&self) -> bool {
        self.keys.waiting() < self.look_ahead
    }

    /// Could an entry that waits go now? For tests: it looks at all lines.
    pub(super) fn has_next(&self, roster: &Roster) -> bool {
        let mut ready = self.keys.ready();
        ready.any(|index| roster.get(index).is_some_and(Consumer::available))
    }

    /// What does not add up, if anything.
    pub(super) fn audit<'a>(&self, held: impl Iterator<Item = &'a Held>) -> Result<(), String> {
        self.keys.audit(held.map(|held| (held.slot, held.owner)))
    }
}

/// Entries that may wait.
fn look_ahead(consumers: usize, settings: &Settings) -> usize {
    // 0 = no limit.
    let least = |per_consumer: u32, per_subscription: u32| {
        let limits = [
            (per_consumer as usize).saturating_mul(consumers),
            per_subscription as usize,
        ];
        limits.into_iter().filter(|limit| *limit > 0).min()
    };
    least(
        settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer,
        settings.key_shared_look_ahead_msg_in_replay_threshold_per_subscription,
    )
    .or_else(|| {
        least(
            settings.max_unacked_messages_per_consumer,
            settings.max_unacked_messages_per_subscription,
        )
    })
    .map_or(MAX_WAITING, |limit| limit.min(MAX_WAITING))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]

    use super::*;

    #[test]
    fn the_look_ahead_is_the_least_of_the_limits_there_are() {
        let mut settings = Settings::default();
        assert_eq!(look_ahead(1, &settings), 4000);
        assert_eq!(look_ahead(100, &settings), 40_000);
        settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer = 0;
        assert_eq!(look_ahead(1, &settings), 40_000);
        settings.key_shared_look_ahead_msg_in_replay_threshold_per_subscription = 0;
        assert_eq!(look_ahead(1, &settings), 50_000);
        assert_eq!(look_ahead(100, &settings), 200_000);
        settings.max_unacked_messages_per_consumer = 0;
        settings.max_unacked_messages_per_subscription = 0;
        assert_eq!(look_ahead(1, &settings), MAX_WAITING);
    }

    fn candidate(entry: i64, key_hash: u32) -> Candidate {
        Candidate {
            position: Position::new(1, entry),
            chunk: None,
            key_hash,
        }
    }

    #[test]
    fn statistics_tell_ranges_and_what_drains() {
        let mut keys = KeyShared::new(None, &Settings::default());
        keys.keys.join(0, "alpha", &[]);
        let stats = keys.statistics();
        assert_eq!(
            (stats.mode, stats.allow_out_of_order),
            ("AUTO_SPLIT", false)
        );
        assert_eq!(stats.consumers[&0].ranges, [(1, 65_535)]);
        for n in 0..100 {
            assert!(keys.admit(0, &candidate(n, n as u32 * 600)));
        }
        keys.keys.join(1, "beta", &[]);
        let stats = keys.statistics();
        let [alpha, beta] = [0, 1].map(|index| &stats.consumers[&index]);
        let moved = alpha.draining.len();
        assert!((20..80).contains(&moved), "{moved}");
        assert!(beta.draining.is_empty() && beta.ranges.len() > 10);
        let owned = |range: &(u32, u32), slot: u32| (range.0..=range.1).contains(&slot);
        for draining in &alpha.draining {
            let slot = u32::from(draining.slot);
            assert!(beta.ranges.iter().any(|range| owned(range, slot)));
            assert_eq!((draining.unacked, draining.blocked), (1, 0));
        }
        for n in 0..100 {
            let slot = keys.slot(&candidate(n, n as u32 * 600));
            keys.released(0, slot);
        }
        let stats = keys.statistics();
        assert_eq!(stats.consumers[&0].drained, moved as u64);
        assert!(stats.consumers[&0].draining.is_empty());
    }
}
