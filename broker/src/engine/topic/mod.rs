//! Topics: the producers, subscriptions and log positions of the names that fall to this core.

mod access;
mod ack;
mod admin;
mod by_time;
mod chunks;
mod counts;
mod dedup;
mod delayed;
mod deletion;
mod dispatch;
mod dispatcher;
mod failover;
mod inactive;
mod joining;
mod key_shared;
mod lanes;
mod limits;
mod messages;
mod meter;
mod openings;
mod operation;
mod pending;
mod permits;
mod producer;
mod publish;
pub(super) mod rates;
mod roster;
mod schemas;
mod single;
mod stats;
mod sticky;
mod subscription;
mod terminate;
mod unacked;
mod volatile;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use self::access::Access;
use self::admin::Inquiry;
use self::counts::Counts;
pub(crate) use self::counts::TOO_MANY;
use self::dedup::{Gone, Sweep};
use self::delayed::Timers;
pub(super) use self::deletion::TOKEN as DELETION_TOKEN;
use self::deletion::{Deletion, Deletions};
pub(super) use self::dispatch::ENTRY_COST;
use self::inactive::Inactive;
use self::lanes::LaneSeat;
use self::limits::Limits;
use self::meter::Traffic;
use self::openings::{ProbeFor, Seat};
use self::operation::Operation;
use self::producer::Producer;
use self::rates::{Rates, SharedRates, TopicRate};
pub use self::roster::Books;
use self::schemas::Opening;
pub(super) use self::schemas::post_ask;
use self::subscription::{ORPHAN_MS, Subscription};
use self::unacked::CoreUnacked;
use self::volatile::Volatile;
use super::context::Context;
use super::message::{ClientKey, ClientRef, CoreId};
use super::name::{Domain, TopicName};
use super::time::Now;
use crate::store::log::{Lane, LaneState, LedgerInfo, Position, Record, TopicId, TopicState};

/// How long a ledger stays that no subscription holds, milliseconds: Pulsar's default managedLedgerMinLedgerRolloverTimeMinutes.
const UNCLAIMED_MS: u64 = 10 * 60_000;

/// A topic of this core.
pub(super) struct Topic {
    pub(super) name: TopicName,
    pub(super) state: TopicState,
    /// Index of its lane among the core's.
    pub(super) lane: usize,
    slot: u32,
    /// The last durable entry: consumers see the topic up to here.
    pub(super) confirmed: Position,
    producers: Slab<Producer>,
    /// Who may produce.
    access: Access,
    /// What settings and policies say; `None` before anybody looked.
    limits: Option<Limits>,
    /// Producers that deduplication remembers and that are not connected.
    gone: Gone,
    /// Producers by their names.
    producer_names: FxHashMap<String, u32>,
    subs: Slab<Subscription>,
    pub(super) sub_names: BTreeMap<String, u32>,
    /// Questions that need entries which are not in memory.
    operations: Vec<Operation>,
    names_made: u64,
    /// What was published since it was loaded.
    inbound: Traffic,
    /// Entries published since it was loaded.
    entries_added: u64,
    /// Questions of administration that need entries which are not in memory.
    inquiries: Vec<Inquiry>,
    /// It was deleted; its slot stays taken until nothing in the log's queue names it.
    deleted: bool,
    /// It is on its way out: nobody joins it.
    deletion: Option<Box<Deletion>>,
    /// It was terminated, and that is durable.
    ended: bool,
    /// Subscriptions whose consumers know that nothing more comes.
    end_told: BTreeSet<u32>,
    /// Since when nobody was seen to use it, monotonic milliseconds.
    unused_since: Option<u64>,
    /// Its publish rate, if it has one or had one.
    rate: Option<Box<TopicRate>>,
    /// Its resource group among the core's.
    group: Option<u32>,
    /// Times its rate held a connection.
    rate_limited: u64,
    dirty: bool,
}

impl Topic {
    fn new(name: TopicName, state: TopicState, lane: usize, slot: u32) -> Self {
        let mut topic = Topic {
            name,
            lane,
            slot,
            confirmed: state.ledgers.last().unwrap_or(Position::EARLIEST),
            producers: Slab::new(),
            access: Access::new(&state),
            limits: None,
            gone: Gone::default(),
            producer_names: FxHashMap::default(),
            subs: Slab::new(),
            sub_names: BTreeMap::new(),
            operations: Vec::new(),
            names_made: 0,
            inbound: Traffic::default(),
            entries_added: 0,
            inquiries: Vec::new(),
            deleted: false,
            deletion: None,
            ended: state.terminated.is_some(),
            end_told: BTreeSet::new(),
            unused_since: None,
            rate: None,
            group: None,
            rate_limited: 0,
            dirty: false,
            state,
        };
        for (id, cursor) in &topic.state.cursors {
            let slot = topic.subs.insert(Subscription::new(
                &cursor.name,
                Some(*id),
                cursor.acks.mark_delete(),
            )) as u32;
            topic.sub_names.insert(cursor.name.clone(), slot);
        }
        topic
    }

    /// Has the topic looked at before the turn ends.
    fn mark_dirty(&mut self, dirty: &mut Vec<u32>) {
        if !self.dirty {
            self.dirty = true;
            dirty.push(self.slot);
        }
    }

    /// Removes closed ledgers that every durable cursor has passed.
    fn trim(&mut self, seat: &mut LaneSeat, now: Now) {
        if self.state.ledgers.ledgers().len() < 2 {
            return;
        }
        // Readers do not keep what every durable subscription has passed: they go on behind it, as in Apache Pulsar. On a topic
        // that only readers use they keep what they have not read.
        let slowest = if self.state.cursors.is_empty() {
            let readers = self.subs.iter().map(|(_, sub)| sub.own.mark_delete());
            readers.fold(Position::LATEST, Position::min)
        } else {
            self.state.slowest()
        };
        if let Some(mut through_ledger) = self.state.ledgers.trimmable(slowest) {
            if self.state.cursors.is_empty() {
                // Nobody has subscribed yet: what was just published stays a while, so that a first subscriber finds it
                // even if the broker was restarted in between.
                let old = |ledger: &&LedgerInfo| {
                    ledger.opened_ms.saturating_add(UNCLAIMED_MS) <= now.wall_ms
                };
                let ledgers = self.state.ledgers.ledgers().take_while(old);
                match ledgers
                    .map(|ledger| ledger.id)
                    .take_while(|id| *id <= through_ledger)
                    .last()
                {
                    Some(id) => through_ledger = id,
                    None => return,
                }
            }
            self.drop_ledgers(seat, through_ledger);
        }
    }

    /// Removes closed ledgers up to this one. Readers that have not read them go on behind.
    fn drop_ledgers(&mut self, seat: &mut LaneSeat, through_ledger: i64) {
        seat.append(&Record::Trimmed {
            topic: self.state.id,
            through_ledger,
        });
        self.state.trim(through_ledger);
        for (_, sub) in self.subs.iter_mut().filter(|(_, sub)| sub.cursor.is_none()) {
            sub.own.trimmed(&self.state.ledgers);
        }
    }

    fn trim_if_loose(&mut self, lanes: &mut [LaneSeat], now: Now) {
        if let Some(seat) = lanes.get_mut(self.lane) {
            self.trim(seat, now);
        }
    }
}

/// The topics of one core.
pub(super) struct Topics {
    lanes: Vec<LaneSeat>,
    topics: Slab<Topic>,
    by_name: BTreeMap<Arc<str>, u32>,
    clients: FxHashMap<ClientKey, Seat>,
    probes: BTreeMap<u64, (ClientRef, ProbeFor)>,
    /// Openings whose schema is being looked at elsewhere, and the topic they are for.
    deciding: FxHashMap<ClientKey, (Opening, Option<TopicId>)>,
    /// Namespaces that cores watch, and how many watchers each has.
    watched: BTreeMap<String, BTreeMap<CoreId, u32>>,
    /// Who in HTTP waits for a termination, by running number.
    terminations: u64,
    terminating: BTreeMap<u64, super::admin::Asker>,
    next_probe: u64,
    rates: Rates,
    sweep: Sweep,
    /// The time of the last message or tick.
    clock: Now,
    /// Topics to look at before the turn ends.
    dirty: Vec<u32>,
    /// Non-durable subscriptions that wait for their consumer: deadline, topic, subscription.
    orphans: BTreeSet<(u64, u32, u32)>,
    /// Failover subscriptions whose active consumer has changed: when it is served, topic, subscription.
    takeovers: BTreeSet<(u64, u32, u32)>,
    /// Subscriptions with delayed entries.
    delays: Timers,
    /// Messages that consumers of this core's topics hold.
    unacked: CoreUnacked,
    volatile: Volatile,
    inactive: Inactive,
    deletions: Deletions,
    counts: Counts,
}

impl Topics {
    /// Takes over what recovery found. Lanes are in the order of their shards.
    pub(super) fn new(
        lanes: Vec<(u32, Lane, LaneState)>,
        budget: usize,
        rates: Arc<dyn SharedRates>,
    ) -> Self {
        let mut topics = Topics {
            lanes: Vec::new(),
            topics: Slab::new(),
            by_name: BTreeMap::new(),
            clients: FxHashMap::default(),
            probes: BTreeMap::new(),
            deciding: FxHashMap::default(),
            watched: BTreeMap::new(),
            terminations: 0,
            terminating: BTreeMap::new(),
            next_probe: 0,
            rates: Rates::new(rates),
            sweep: Sweep::default(),
            clock: Now::default(),
            dirty: Vec::new(),
            orphans: BTreeSet::new(),
            takeovers: BTreeSet::new(),
            delays: Timers::new(),
            unacked: CoreUnacked::default(),
            volatile: Volatile::default(),
            inactive: Inactive::default(),
            deletions: Deletions::default(),
            counts: Counts::default(),
        };
        for (index, (shard, lane, state)) in lanes.into_iter().enumerate() {
            topics
                .lanes
                .push(LaneSeat::new(shard, lane, state.next_topic, budget));
            for topic in state.topics.into_values() {
                match TopicName::parse(&topic.name) {
                    Ok(name) => {
                        topics.counts.found(&name);
                        topics.insert(name, topic, index);
                    }
                    Err(error) => {
                        tracing::error!(%error, "a topic of the log has an impossible name and is left alone")
                    }
                }
            }
        }
        topics
    }

    fn insert(&mut self, name: TopicName, state: TopicState, lane: usize) -> u32 {
        let entry = self.topics.vacant_entry();
        let slot = entry.key() as u32;
        self.by_name.insert(name.shared(), slot);
        entry.insert(Topic::new(name, state, lane, slot));
        slot
    }

    pub(super) fn topics(&self) -> usize {
        self.topics.len()
    }

    pub(super) fn subscriptions(&self) -> usize {
        self.topics.iter().map(|(_, topic)| topic.subs.len()).sum()
    }

    /// Producers and consumers.
    pub(super) fn clients(&self) -> (usize, usize) {
        let producers = self
            .clients
            .values()
            .filter(|seat| matches!(seat, Seat::Producer { .. }))
            .count();
        let consumers = self
            .clients
            .values()
            .filter(|seat| matches!(seat, Seat::Consumer(_)))
            .count();
        (producers, consumers)
    }

    fn find_or_create(
        &mut self,
        cx: &mut Context,
        name: &TopicName,
        create: bool,
        now: Now,
    ) -> Option<u32> {
        if let Some(slot) = self.by_name.get(name.as_str()) {
            if let Some(topic) = self.topics.get_mut(*slot as usize) {
                topic.unused_since = None;
            }
            return Some(*slot);
        }
        if !create {
            return None;
        }
        let shard = name.shard(cx.shards);
        let lane = (shard / u32::from(cx.cores.max(1))) as usize;
        if name.domain() == Domain::NonPersistent {
            return Some(self.create_volatile(cx, name, lane, now));
        }
        let seat = self.lanes.get_mut(lane)?;
        let id = seat.next_topic;
        seat.next_topic += 1;
        seat.append(&Record::TopicCreated {
            topic: id,
            name: name.as_str(),
            created_ms: now.wall_ms,
        });
        let slot = self.insert(
            name.clone(),
            TopicState::new(id, name.as_str(), now.wall_ms),
            lane,
        );
        self.configure_rate(cx, slot, now);
        self.reconsider_inactive(cx, now);
        self.count(cx, name, true);
        self.tell_watchers(cx, name, true);
        Some(slot)
    }

    /// Looks at every topic that something happened to. False when there is nothing left to look at.
    pub(super) fn dispatch_dirty(&mut self, cx: &mut Context, now: Now) -> bool {
        if self.dirty.is_empty() {
            return false;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            if let Some(topic) = self.topics.get_mut(slot as usize) {
                topic.dirty = false;
                self.poll_operations(cx, slot, now);
                self.poll_inquiries(cx, slot, now);
                self.dispatch(cx, slot, now);
                self.announce_ends(cx, slot);
            }
        }
        // Keeps the allocation; a topic that was marked meanwhile is looked at in the next round.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        !self.dirty.is_empty()
    }

    /// The books of all consumers; an error says what does not add up, or who stands still for no reason.
    pub(super) fn audit(&self) -> Result<Vec<Books>, String> {
        let mut books = Vec::new();
        let mut unacked = 0;
        for (_, topic) in &self.topics {
            let lane = self.lanes.get(topic.lane);
            let waits = topic.dirty || lane.is_some_and(|l| l.readers.contains(&topic.slot));
            for (_, sub) in &topic.subs {
                let wrong = |error: String| format!("{} of {}: {error}", sub.name, topic.name);
                sub.audit().map_err(wrong)?;
                if !waits && sub.stands_still(&topic.state, topic.confirmed) {
                    return Err(wrong(
                        "there are entries and somebody to take them, and nothing happens".into(),
                    ));
                }
                unacked += sub.pending.unacked();
                books.extend(sub.roster.books());
            }
        }
        if unacked != self.unacked.total() {
            return Err(format!(
                "{unacked} messages are out, the core has counted {}",
                self.unacked.total()
            ));
        }
        Ok(books)
    }

    pub(super) fn end_of_turn(&mut self, cx: &mut Context) {
        self.flush_lanes(cx);
    }

    pub(super) fn next_wakeup(&self) -> Option<u64> {
        let orphans = self.orphans.first().map(|(at, _, _)| *at);
        let takeovers = self.takeovers.first().map(|(at, _, _)| *at);
        let delays = self.delays.first().map(|(at, _, _)| *at);
        [
            orphans,
            takeovers,
            delays,
            self.rates.next_wakeup(),
            self.sweep.next_wakeup(),
            self.inactive.next_wakeup(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Carries out what is due: connections that waited for a rate go on, non-durable subscriptions whose consumer did not come back end.
    pub(super) fn tick(&mut self, cx: &mut Context, now: Now) {
        self.clock = now;
        self.tick_rates(cx, now);
        self.sweep_sequences(cx, now);
        self.tick_failover(cx, now);
        self.tick_delayed(now);
        self.look_for_inactive(cx, now);
        while let Some(&(at, slot, sub_slot)) = self.orphans.first() {
            if at > now.ms {
                break;
            }
            self.orphans.pop_first();
            let Some(topic) = self.topics.get_mut(slot as usize) else {
                continue;
            };
            let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
                continue;
            };
            let Some(until) = sub.orphaned_until.filter(|until| *until <= now.ms) else {
                continue;
            };
            if sub.resetting {
                // A seek that still reads decides first.
                let later = until + ORPHAN_MS;
                sub.orphaned_until = Some(later);
                self.orphans.insert((later, slot, sub_slot));
            } else {
                self.drop_subscription(cx, slot, sub_slot, now);
            }
        }
    }
}
