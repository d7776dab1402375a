//! Exclusive and Failover: one consumer gets everything.
//!
//! Of a Failover subscription's consumers those of the best priority level are candidates, in the order of their names. On a partition the
//! candidates take turns by its index; elsewhere (or with `activeConsumerFailoverConsistentHashing`) the one whose point on a ring of hashes
//! follows the topic's is chosen, so that topics spread over the consumers and a newcomer takes only its share.
//!
//! An Exclusive consumer may name ranges of key hashes: it is sent only entries whose key falls into them. The others are skipped at no cost in
//! permits and stay unacknowledged, for a later consumer that names other ranges or none.

use super::roster::{Consumer, Roster};
use super::sticky::{Fixed, Refused, range_slot};
use crate::engine::message::{OpenConsumer, SubType};
use crate::engine::murmur::murmur3;
use crate::engine::settings::Settings;

/// Points of a consumer on the ring.
const POINTS: u32 = 100;
/// Hashes are below this.
const RING: u32 = 1 << 31;
/// Entries that are handed out in one go at most: Pulsar's default of dispatcherMaxReadBatchSize.
const MAX_RUN: u32 = 100;

#[derive(Debug)]
struct Candidate {
    priority: i32,
    name: String,
    arrival: u64,
    index: u32,
    /// From the topic's hash on to the nearest point of the consumer.
    distance: u32,
}

/// Who is served, and from when on.
#[derive(Default, Debug)]
pub(super) struct Single {
    /// All consumers, in the order of priority, name, arrival.
    candidates: Vec<Candidate>,
    active: Option<u32>,
    /// The active consumer has changed: it is served from this time on, monotonic milliseconds.
    takeover_at: Option<u64>,
    /// Entries that may still go out on credit that was looked at already.
    run_left: u32,
    /// The key hashes that an Exclusive consumer wants; `None` = all.
    wanted: Option<Fixed>,
}

/// The key hashes that an Exclusive consumer has named, if any; both ends of a range included.
fn ranges(open: &OpenConsumer) -> Option<&[(i32, i32)]> {
    let meta = open.key_shared.as_ref();
    let meta = meta.filter(|_| open.sub_type == SubType::Exclusive)?;
    (!meta.ranges.is_empty()).then_some(meta.ranges.as_slice())
}

/// What an election has come to.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Elected {
    /// Nothing has changed.
    Same,
    /// Somebody else is active.
    Changed,
}

impl Single {
    /// The consumer that is served.
    pub(super) fn active(&self) -> Option<u32> {
        self.active
    }

    /// When the change of the active consumer takes effect, if one is on its way.
    pub(super) fn takeover_at(&self) -> Option<u64> {
        self.takeover_at
    }

    pub(super) fn set_takeover(&mut self, at: Option<u64>) {
        self.takeover_at = at;
        self.run_left = 0;
    }

    /// Are the key hashes that a consumer names such that it can have them?
    ///
    /// # Errors
    /// Too many ranges, one that is backwards, or two that overlap.
    pub(super) fn check(open: &OpenConsumer) -> Result<(), Refused> {
        ranges(open).map_or(Ok(()), |ranges| Fixed::default().check(ranges))
    }

    /// An Exclusive consumer that was [checked](Single::check) names the key hashes that it wants, or none and wants all.
    pub(super) fn want(&mut self, index: u32, open: &OpenConsumer) {
        self.wanted = ranges(open).map(|ranges| {
            let mut wanted = Fixed::default();
            wanted.join(index, ranges);
            wanted
        });
    }

    /// Does it depend on an entry's key whether it is sent?
    pub(super) fn filters(&self) -> bool {
        self.wanted.is_some()
    }

    /// Is an entry with this hash of its key to be sent?
    pub(super) fn wants(&self, key_hash: u32) -> bool {
        let slot = range_slot(key_hash);
        self.wanted
            .as_ref()
            .is_none_or(|wanted| wanted.owner(slot).is_some())
    }

    /// A consumer joins. Takes a time that grows with the number of candidates, but hashes only the newcomer's name.
    pub(super) fn join(&mut self, index: u32, consumer: &Consumer, topic: &str) {
        let newcomer = Candidate {
            priority: consumer.priority(),
            name: consumer.name.clone(),
            arrival: consumer.arrival(),
            index,
            distance: distance(&consumer.name, murmur3(topic.as_bytes())),
        };
        let key = |c: &Candidate| (c.priority, c.arrival);
        let at = self.candidates.partition_point(|c| {
            (c.priority, c.name.as_str(), key(c).1)
                < (newcomer.priority, newcomer.name.as_str(), newcomer.arrival)
        });
        self.candidates.insert(at, newcomer);
    }

    /// A consumer leaves.
    pub(super) fn leave(&mut self, index: u32) {
        self.candidates.retain(|c| c.index != index);
        if self.active == Some(index) {
            self.active = None;
            self.run_left = 0;
        }
        if self.candidates.is_empty() {
            self.takeover_at = None;
            self.wanted = None;
        }
    }

    /// Decides who is active. `partition` = the topic's index, or below 0.
    pub(super) fn elect(&mut self, partition: i32, settings: &Settings) -> Elected {
        let Some(best) = self.candidates.first().map(|c| c.priority) else {
            self.active = None;
            return Elected::Same;
        };
        let level = self.candidates.partition_point(|c| c.priority == best);
        let candidates = self.candidates.get(..level).unwrap_or_default();
        let elected = match u32::try_from(partition) {
            Ok(partition) if !settings.active_consumer_failover_consistent_hashing => {
                candidates.get(partition as usize % level.max(1))
            }
            // Of equal points the later consumer's counts.
            _ => candidates.iter().rev().min_by_key(|c| c.distance),
        };
        let elected = elected.map(|c| c.index);
        if elected == self.active {
            return Elected::Same;
        }
        self.active = elected;
        self.run_left = 0;
        Elected::Changed
    }

    /// Can an entry go out?
    pub(super) fn is_ready(&self, roster: &Roster) -> bool {
        self.active_consumer(roster)
            .is_some_and(|(_, c)| c.available() || (self.run_left > 0 && c.takes()))
    }

    fn active_consumer<'a>(&self, roster: &'a Roster) -> Option<(u32, &'a Consumer)> {
        if self.takeover_at.is_some() {
            return None;
        }
        let active = self.active?;
        roster.get(active).map(|consumer| (active, consumer))
    }

    /// Who gets the next entry.
    ///
    /// With `preciseDispatcherFlowControl` the balance is looked at before every entry, and falls below zero by a part of one entry at most.
    /// Without it, as Pulsar has it by default, credit is turned into entries by the consumer's average and those go out as a run.
    pub(super) fn choose(&mut self, roster: &Roster, settings: &Settings) -> Option<u32> {
        let (index, consumer) = self.active_consumer(roster)?;
        if !consumer.takes() {
            return None;
        }
        if settings.precise_dispatcher_flow_control {
            return consumer.available().then_some(index);
        }
        if self.run_left == 0 {
            let balance = consumer.account().balance();
            if balance <= 0 {
                return None;
            }
            let entries = (balance as f64 / consumer.account().average()).ceil();
            self.run_left = (entries as u32).clamp(1, MAX_RUN);
        }
        self.run_left -= 1;
        Some(index)
    }

    /// A run of dispatch is over: credit is looked at anew.
    pub(super) fn end_run(&mut self) {
        self.run_left = 0;
    }
}

/// How far on the ring the nearest point of a consumer is behind a hash.
fn distance(name: &str, hash: u32) -> u32 {
    let points = (0..POINTS).map(|n| murmur3(format!("{name}{n}").as_bytes()));
    points
        .map(|point| (point + RING - hash) % RING)
        .min()
        .unwrap_or(RING)
}
