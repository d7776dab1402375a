//! Counters and rates as administration shows them.

use super::super::roster::Consumer;
use super::super::sticky::Mode;
use super::super::subscription::{Subscription, mark_delete};
use super::super::{Topic, Topics};
use super::subscriptions::properties_of;
use crate::engine::admin::{
    Answer, ConsumerStats, CursorStats, InternalStats, LedgerStats, ProducerStats,
    SubscriptionStats, TopicStats,
};
use crate::engine::message::AccessMode;
use crate::engine::time::Now;
use crate::store::log::{AckState, Ledgers, Position};

impl Topics {
    pub(super) fn topic_stats(&mut self, slot: u32, now: Now) -> Answer {
        match self.topics.get_mut(slot as usize) {
            Some(topic) => Answer::Stats(Box::new(topic.stats(now))),
            None => Answer::NoTopic,
        }
    }

    pub(super) fn internal_stats(&mut self, slot: u32) -> Answer {
        match self.topics.get(slot as usize) {
            Some(topic) => Answer::Internal(Box::new(topic.internal_stats())),
            None => Answer::NoTopic,
        }
    }
}

impl Topic {
    fn stats(&mut self, now: Now) -> TopicStats {
        let publishers = self
            .producers
            .iter_mut()
            .map(|(_, producer)| ProducerStats {
                session: producer.client.session,
                id: producer.client.id,
                name: producer.name.clone(),
                user_named: producer.open.user_named,
                access_mode: match producer.open.access {
                    AccessMode::Shared => "Shared",
                    AccessMode::Exclusive => "Exclusive",
                    AccessMode::WaitForExclusive => "WaitForExclusive",
                    AccessMode::ExclusiveWithFencing => "ExclusiveWithFencing",
                },
                metadata: producer.open.metadata.clone(),
                rate_in: producer.inbound.messages.rate(now.ms),
                throughput_in: producer.inbound.bytes.rate(now.ms),
                drop_rate: producer.dropped.rate(now.ms),
                connected_ms: producer.open.asked_ms,
            });
        let publishers: Vec<ProducerStats> = publishers.collect();
        let mut drop_rate: f64 = publishers.iter().map(|each| each.drop_rate).sum();
        let mut subscriptions = std::collections::BTreeMap::new();
        let volatile = self.is_volatile();
        for (_, sub) in self.subs.iter_mut() {
            let acks = sub.acks(&self.state);
            let ledgers = &self.state.ledgers;
            let mut stats = SubscriptionStats {
                backlog: acks.backlog(ledgers, self.confirmed),
                backlog_size: backlog_size(acks, ledgers, self.confirmed),
                ack_ranges: acks.ranges().len() as u64,
                delayed: sub.delayed.waiting(),
                delayed_memory: sub.delayed.memory() as u64,
                durable: sub.cursor.is_some(),
                properties: properties_of(&self.state, sub),
                ..SubscriptionStats::default()
            };
            sub.stats(&mut stats, now);
            if volatile {
                // As Pulsar: who is active and who has which keys is told of persistent topics only.
                stats.active_consumer = None;
                stats.key_shared_mode = None;
                stats.allow_out_of_order = false;
                for consumer in &mut stats.consumers {
                    consumer.key_ranges = None;
                    consumer.draining = Vec::new();
                    consumer.drains = false;
                    consumer.drained = 0;
                }
            }
            drop_rate += stats.drop_rate;
            subscriptions.insert(sub.name.clone(), stats);
        }
        TopicStats {
            rate_in: self.inbound.messages.rate(now.ms),
            throughput_in: self.inbound.bytes.rate(now.ms),
            drop_rate,
            messages_in: self.inbound.messages.total(),
            bytes_in: self.inbound.bytes.total(),
            storage_size: self.state.ledgers.bytes(),
            rate_limited: self.rate_limited,
            created_ms: self.state.created_ms,
            last_publish_ms: self.inbound.messages.last_wall_ms(now),
            publishers,
            waiting_publishers: self.access.queue.len() as u64,
            deduplication: self.limits.is_some_and(|limits| limits.dedup),
            epoch: self.access.epoch,
            subscriptions,
            ..TopicStats::default()
        }
    }

    fn internal_stats(&self) -> InternalStats {
        let ledgers = &self.state.ledgers;
        let listed = ledgers.ledgers().map(|ledger| LedgerStats {
            id: ledger.id,
            entries: ledger.entries,
            bytes: ledger.bytes,
            opened_ms: ledger.opened_ms,
        });
        let cursors = self.subs.iter().map(|(_, sub)| {
            let acks = sub.acks(&self.state);
            let mark_delete = mark_delete(&self.state, sub);
            let read = match ledgers.next(sub.read.max(mark_delete)) {
                Some(next) => next,
                None => {
                    let at = sub.read.max(mark_delete);
                    Position::new(at.ledger, at.entry.saturating_add(1))
                }
            };
            let stats = CursorStats {
                mark_delete,
                read,
                active: !sub.roster.is_empty(),
                waiting: sub.waits_for_entries(&self.state, self.confirmed),
                replay: !sub.replay.is_empty(),
                consumed: ledgers
                    .entries_between(Position::EARLIEST, self.confirmed)
                    .saturating_sub(acks.backlog(ledgers, self.confirmed)),
                // Up to the position that is read next, as Pulsar counts.
                since_first_unacked: ledgers
                    .entries_between(mark_delete, sub.read)
                    .saturating_add(1),
                ranges: acks.ranges().take(CursorStats::RANGES_MAX).collect(),
                ranges_total: acks.ranges().len() as u64,
            };
            (sub.name.clone(), stats)
        });
        let confirmed = Some(self.confirmed).filter(|at| at.ledger >= 0);
        InternalStats {
            entries_added: self.entries_added,
            entries: ledgers.entries(),
            bytes: ledgers.bytes(),
            pending: ledgers.entries_between(self.confirmed, Position::LATEST),
            last_confirmed: match ledgers.current() {
                Some(current) if current.entries == 0 => Some(current.last()),
                _ => confirmed,
            },
            terminated: self.state.terminated.is_some(),
            ledgers: listed.collect(),
            cursors: cursors.collect(),
            properties: super::topics::properties_of(&self.state),
        }
    }
}

impl Subscription {
    fn stats(&mut self, stats: &mut SubscriptionStats, now: Now) {
        stats.kind = match self.roster.arrivals() {
            0 => "None",
            _ => self.sub_type().name(),
        };
        let mut keys = self.dispatcher.keys().map(|keys| keys.statistics());
        if let Some(keys) = &keys {
            stats.allow_out_of_order = keys.allow_out_of_order;
            stats.key_shared_mode = Some(keys.mode);
            stats.in_replay = keys.waiting as u64;
        }
        stats.drop_rate = self.dropped.rate(now.ms);
        (stats.messages_out, stats.bytes_out) = self.gone_out;
        let consumers: Vec<u32> = self.roster.iter().map(|(index, _)| index).collect();
        for index in consumers {
            let unacked = self.pending.unacked_of(index);
            let active = self.dispatcher.is_active(index);
            let Some(consumer) = self.roster.get_mut(index) else {
                continue;
            };
            let mut each = consumer.stats(unacked, now);
            if let Some(keys) = &mut keys {
                let own = keys.consumers.remove(&index).unwrap_or_default();
                each.key_ranges = Some(own.ranges);
                // Keys of their own, or out of order, wait for nobody.
                each.drains = keys.mode == Mode::AutoSplit.name() && !keys.allow_out_of_order;
                let drains = own.draining.iter();
                each.draining = drains
                    .map(|each| (u32::from(each.slot), each.unacked, each.blocked))
                    .collect();
                each.drained = own.drained;
            }
            stats.rate_out += each.rate_out;
            stats.throughput_out += each.throughput_out;
            stats.messages_out += each.messages_out;
            stats.bytes_out += each.bytes_out;
            stats.redeliver_rate += each.redeliver_rate;
            stats.ack_rate += each.ack_rate;
            stats.last_consumed_ms = stats.last_consumed_ms.max(each.last_consumed_ms);
            stats.last_acked_ms = stats.last_acked_ms.max(each.last_acked_ms);
            if active && !self.dispatcher.tracks_pending() {
                stats.active_consumer = Some(each.name.clone());
            }
            stats.consumers.push(each);
        }
        stats.unacked = self.pending.unacked();
        stats.in_replay += (self.replay.len() + self.delayed.due()) as u64;
        stats.blocked = self.blocked;
    }
}

impl Consumer {
    fn stats(&mut self, unacked: u64, now: Now) -> ConsumerStats {
        ConsumerStats {
            session: self.client.session,
            name: self.name.clone(),
            metadata: self.metadata.clone(),
            rate_out: self.sent.rate(now.ms),
            throughput_out: self.sent_bytes.rate(now.ms),
            messages_out: self.sent.total(),
            bytes_out: self.sent_bytes.total(),
            redeliver_rate: self.redelivered.rate(now.ms),
            ack_rate: self.acked.rate(now.ms),
            permits: self.account().balance(),
            unacked,
            messages_per_entry: match self.sent.total() {
                0 => 0,
                _ => self.account().average().round() as u64,
            },
            blocked: self.is_blocked(),
            connected_ms: self.connected_ms,
            first_sent_ms: self.sent.first_wall_ms(now),
            last_consumed_ms: self.sent.last_wall_ms(now),
            last_acked_ms: self.acked.last_wall_ms(now),
            key_ranges: None,
            draining: Vec::new(),
            drains: false,
            drained: 0,
        }
    }
}

/// Bytes of the entries that are not acknowledged: of whole ledgers exactly, of a part in proportion.
fn backlog_size(acks: &AckState, ledgers: &Ledgers, confirmed: Position) -> u64 {
    let from = acks.mark_delete();
    let behind = ledgers.ledgers().map(|ledger| {
        let entries = ledger.entries.unsigned_abs();
        let (first, last) = (Position::new(ledger.id, -1), ledger.last());
        let part = ledgers.entries_between(from.max(first), confirmed.min(last));
        match entries {
            0 => 0,
            entries if part >= entries => ledger.bytes,
            entries => (u128::from(ledger.bytes) * u128::from(part) / u128::from(entries)) as u64,
        }
    });
    let total: u64 = behind.sum();
    let all = ledgers.entries_between(from, confirmed);
    match all {
        0 => 0,
        all => {
            (u128::from(total) * u128::from(acks.backlog(ledgers, confirmed)) / u128::from(all))
                as u64
        }
    }
}
