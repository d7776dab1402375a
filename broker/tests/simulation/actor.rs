//! The simulated clients: what they may say, and what they make of the answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vela_proto::command_subscribe::SubType;
use vela_proto::{KeySharedMeta, KeySharedMode, MessageMetadata};

use super::model::{At, Published, Sub, key_of};
use super::rng::Rng;
use crate::harness::client::say;
use crate::harness::{Peer, World};

/// How far ahead the time of a delayed message is at most.
pub const MAX_DELAY_MS: u64 = 20_000;

#[derive(Debug)]
pub struct Producer {
    pub topic: usize,
    pub stream: u64,
    pub next_sequence: u64,
    /// Sequence id and number of what has no answer yet.
    pub unanswered: VecDeque<(u64, u64)>,
    /// The request that closes it.
    pub closing: Option<u64>,
    /// The request that opened it.
    pub opened_by: u64,
    /// A SEND of it was refused: so is all behind it.
    pub failed: bool,
}

#[derive(Debug)]
pub struct Consumer {
    pub sub: usize,
    /// Unique in the run.
    pub key: u64,
    /// The request that opens it, until it is answered.
    pub opening: Option<u64>,
    pub closing: Option<u64>,
    pub given: i64,
    pub taken: i64,
    /// Messages of batches delivered in part that were not part of the delivery: so much credit may have been taken back.
    pub suspect: i64,
    /// It was told that it is the one that is served.
    pub active: bool,
    pub epoch: u64,
    /// The last entry it got: an Exclusive one gets them in order.
    pub last: Option<At>,
    /// What it got and has not acknowledged: number of messages open (bits).
    pub holds: BTreeMap<At, u64>,
}

/// An ACK with a request.
#[derive(Debug)]
pub struct AckRequest {
    pub sub: usize,
    /// The consumer it is for.
    pub key: u64,
    /// The broker closed that consumer: an ACK that crosses the notice is ignored.
    pub optional: bool,
    pub ids: Vec<(At, u64)>,
    pub cumulative: bool,
    pub seeks: u64,
    pub certain: bool,
}

/// One connection's worth of client.
#[derive(Debug, Default)]
pub struct Actor {
    pub peer: Option<Peer>,
    pub connected: bool,
    pub producers: BTreeMap<u64, Producer>,
    /// Producers being closed whose id may be in use again: their receipts come first.
    pub old_producers: Vec<(u64, Producer)>,
    pub consumers: BTreeMap<u64, Consumer>,
    pub acks: BTreeMap<u64, AckRequest>,
    pub seeks: BTreeMap<u64, (usize, bool)>,
    /// Questions for statistics: the consumer, its permits when asked, and whether everything was at rest.
    pub stats: BTreeMap<u64, (u64, i64, bool)>,
    /// SUBSCRIBEs that were closed before they were answered.
    pub dropped_opens: BTreeSet<u64>,
    pub next_request: u64,
    pub stats_seen: u64,
}

/// What all clients share.
pub struct Shared {
    /// Credit is looked at before every entry, on all types of subscriptions.
    pub precise: bool,
    /// How much before its time a delayed message may come, milliseconds.
    pub early: u64,
    pub topics: Vec<String>,
    pub subs: Vec<Sub>,
    pub published: Published,
    pub next_key: u64,
    pub next_stream: u64,
    /// A disk is broken: until the next start, anything that needs the log may be refused.
    pub broken: bool,
    pub receipts: u64,
    pub deliveries: u64,
    pub acks_confirmed: u64,
}

pub fn full(batch: Option<i32>) -> u64 {
    match batch.unwrap_or(1) {
        64.. => u64::MAX,
        n => (1 << n) - 1,
    }
}

impl Actor {
    /// A consumer is closed, by whom ever: its ACKs may have crossed a notice of the broker.
    pub fn acks_of(&mut self, key: u64) {
        self.acks
            .values_mut()
            .filter(|ack| ack.key == key)
            .for_each(|ack| ack.optional = true);
    }

    fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    pub fn connect(&mut self, world: &mut World, rng: &mut Rng) {
        let core = rng.below(u64::from(world.config.cores)) as u16;
        let peer = world.open(core);
        world.feed(peer, &say::bytes(&say::connect()));
        self.peer = Some(peer);
    }

    /// The connection is gone, whoever ended it.
    pub fn lost(&mut self, shared: &mut Shared) {
        self.peer = None;
        self.connected = false;
        self.producers.clear();
        self.old_producers.clear();
        for consumer in std::mem::take(&mut self.consumers).into_values() {
            shared.subs[consumer.sub].left(consumer.key);
        }
        self.acks.clear();
        // A SEEK on its way may still take effect: its subscription stays loose until everything is at rest.
        self.seeks.clear();
        self.stats.clear();
        self.dropped_opens.clear();
    }

    /// If the connection is gone, takes what still arrived, and forgets it.
    pub fn listen_before_loss(&mut self, world: &mut World, shared: &mut Shared) {
        if let Some(peer) = self.peer
            && !world.is_open(peer)
        {
            self.listen(world, shared);
            self.lost(shared);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.acks.values().all(|ack| ack.optional)
            && self.seeks.is_empty()
            && self.producers.values().all(|p| p.unanswered.is_empty())
            && self.old_producers.is_empty()
            && self
                .consumers
                .values()
                .all(|c| c.opening.is_none() && c.closing.is_none())
    }

    /// Asks for every consumer's statistics. Not while a SEEK may close it, which on a Shared subscription may be anybody's: asking for one that is gone ends the connection.
    pub fn ask_stats(&mut self, world: &mut World, shared: &Shared, resting: bool) {
        let Some(peer) = self.peer else { return };
        let open = self.consumers.iter().filter(|(_, c)| {
            c.opening.is_none()
                && (resting
                    || !(shared.subs[c.sub].loose
                        || shared.subs[c.sub].shared
                        || shared.subs[c.sub].failover))
        });
        let ids: Vec<(u64, u64, i64)> = open.map(|(id, c)| (*id, c.key, c.given)).collect();
        for (id, key, given) in ids {
            let request = self.request();
            self.stats.insert(request, (key, given, resting));
            world.feed(peer, &say::bytes(&say::stats(id, request)));
        }
    }

    pub fn open_producer(&mut self, world: &mut World, shared: &mut Shared, id: u64, topic: usize) {
        let Some(peer) = self.peer else { return };
        let request = self.request();
        shared.next_stream += 1;
        let producer = Producer {
            topic,
            stream: shared.next_stream,
            next_sequence: 0,
            unanswered: VecDeque::new(),
            closing: None,
            opened_by: request,
            failed: false,
        };
        self.producers.insert(id, producer);
        world.feed(
            peer,
            &say::bytes(&say::producer(&shared.topics[topic], id, request, None)),
        );
    }

    pub fn close_producer(&mut self, world: &mut World, id: u64) {
        let Some(peer) = self.peer else { return };
        let request = self.request();
        if let Some(mut producer) = self.producers.remove(&id) {
            producer.closing = Some(request);
            self.old_producers.push((id, producer));
            world.feed(peer, &say::bytes(&say::close_producer(id, request)));
        }
    }

    pub fn send(
        &mut self,
        world: &mut World,
        shared: &mut Shared,
        rng: &mut Rng,
        id: u64,
        size: usize,
    ) {
        let Some(peer) = self.peer else { return };
        let Some(producer) = self.producers.get_mut(&id) else {
            return;
        };
        let batch = if rng.one_in(3) {
            Some(rng.range(1, 12) as i32)
        } else {
            None
        };
        let time = world.now.wall_ms;
        let due = if rng.one_in(4) {
            time + rng.range(1, MAX_DELAY_MS)
        } else {
            0
        };
        let number = shared
            .published
            .send(producer.topic, producer.stream, batch, due);
        let sequence = producer.next_sequence;
        producer.next_sequence += 1;
        producer.unanswered.push_back((sequence, number));
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(8 + size, number as u8);
        let metadata = MessageMetadata {
            producer_name: "p".into(),
            sequence_id: sequence,
            publish_time: time,
            num_messages_in_batch: batch,
            partition_key: Some(key_of(number)),
            deliver_at_time: (due > 0).then_some(due as i64),
            ..Default::default()
        };
        world.feed(peer, &say::send_metadata(id, metadata, &payload));
    }

    pub fn subscribe(&mut self, world: &mut World, shared: &mut Shared, id: u64, sub: usize) {
        let Some(peer) = self.peer else { return };
        let request = self.request();
        shared.next_key += 1;
        let model = &shared.subs[sub];
        let mut subscribe = say::subscribe(
            &shared.topics[model.topic],
            &model.name,
            model.shared,
            id,
            request,
        );
        if !model.shared {
            subscribe.consumer_epoch = Some(0);
        }
        if let Some(keys) = &model.keys {
            subscribe.sub_type = SubType::KeyShared as i32;
            subscribe.consumer_name = Some(format!("c{}", shared.next_key));
            subscribe.key_shared_meta = Some(KeySharedMeta {
                key_shared_mode: KeySharedMode::AutoSplit as i32,
                allow_out_of_order_delivery: Some(!keys.ordered),
                ..Default::default()
            });
        }
        if model.failover {
            let key = shared.next_key;
            subscribe.sub_type = SubType::Failover as i32;
            subscribe.consumer_name = Some(format!("n{}", key % 5));
            subscribe.priority_level = Some((key % 3 / 2) as i32);
        }
        world.feed(peer, &say::bytes(&say::subscribe_command(subscribe)));
        let consumer = Consumer {
            sub,
            key: shared.next_key,
            opening: Some(request),
            closing: None,
            given: 0,
            taken: 0,
            suspect: 0,
            active: false,
            epoch: 0,
            last: None,
            holds: BTreeMap::new(),
        };
        self.consumers.insert(id, consumer);
    }

    pub fn flow(&mut self, world: &mut World, id: u64, permits: u32) {
        let Some(peer) = self.peer else { return };
        if let Some(consumer) = self.consumers.get_mut(&id) {
            consumer.given += i64::from(permits);
            world.feed(peer, &say::bytes(&say::flow(id, permits)));
        }
    }

    pub fn close_consumer(&mut self, world: &mut World, shared: &mut Shared, id: u64) {
        let Some(peer) = self.peer else { return };
        if let Some(consumer) = self.consumers.remove(&id) {
            let request = self.request();
            self.dropped_opens.extend(consumer.opening);
            self.acks_of(consumer.key);
            shared.subs[consumer.sub].left(consumer.key);
            world.feed(peer, &say::bytes(&say::close_consumer(id, request)));
        }
    }

    /// Acknowledges some of what a consumer holds; `all` = everything, whole.
    pub fn ack(
        &mut self,
        world: &mut World,
        shared: &mut Shared,
        rng: &mut Rng,
        id: u64,
        all: bool,
    ) {
        let Some(peer) = self.peer else { return };
        let request = self.request();
        let Some(consumer) = self.consumers.get_mut(&id).filter(|c| !c.holds.is_empty()) else {
            return;
        };
        let sub = &mut shared.subs[consumer.sub];
        let mut ids = Vec::new();
        let mut wire = Vec::new();
        let cumulative = !all && !sub.shared && rng.one_in(3);
        if cumulative {
            let places: Vec<At> = consumer.holds.keys().copied().collect();
            let at = rng.pick(&places).unwrap();
            consumer.holds.retain(|held, _| *held > at);
            ids.push((at, 0));
            wire.push(say::id(at.0, at.1));
        } else {
            for (at, open) in &mut consumer.holds {
                if !all && rng.one_in(2) {
                    continue;
                }
                let left = if !all && rng.one_in(3) {
                    *open & rng.next()
                } else {
                    0
                };
                *open = left;
                let mut one = say::id(at.0, at.1);
                if left != 0 {
                    one.ack_set = vec![left as i64];
                }
                ids.push((*at, left));
                wire.push(one);
            }
            consumer.holds.retain(|_, open| *open != 0);
        }
        if ids.is_empty() {
            return;
        }
        ids.iter()
            .filter(|(_, open)| *open == 0)
            .for_each(|(at, _)| sub.let_go(*at));
        if cumulative {
            sub.ever_acked_upto = sub.ever_acked_upto.max(ids.last().map(|(at, _)| *at));
        } else {
            sub.ever_acked
                .extend(ids.iter().filter(|(_, open)| *open == 0).map(|(at, _)| *at));
        }
        let with_request = all || !rng.one_in(3);
        world.feed(
            peer,
            &say::bytes(&say::ack(
                id,
                wire,
                cumulative,
                with_request.then_some(request),
            )),
        );
        if with_request {
            let ack = AckRequest {
                sub: consumer.sub,
                key: consumer.key,
                optional: false,
                ids,
                cumulative,
                seeks: sub.seeks,
                certain: sub.seeks_open == 0,
            };
            self.acks.insert(request, ack);
        }
    }

    /// Asks for things again.
    pub fn redeliver(&mut self, world: &mut World, shared: &mut Shared, rng: &mut Rng, id: u64) {
        let Some(peer) = self.peer else { return };
        let Some(consumer) = self.consumers.get_mut(&id).filter(|c| c.opening.is_none()) else {
            return;
        };
        let sub = &mut shared.subs[consumer.sub];
        if sub.shared {
            let chosen: Vec<At> = consumer
                .holds
                .keys()
                .copied()
                .filter(|_| rng.one_in(2))
                .collect();
            if chosen.is_empty() {
                return;
            }
            for at in &chosen {
                consumer.holds.remove(at);
                sub.held.remove(at);
                sub.let_go(*at);
            }
            let ids = chosen.iter().map(|at| say::id(at.0, at.1)).collect();
            world.feed(peer, &say::bytes(&say::redeliver(id, ids, None)));
        } else {
            consumer.epoch += 1;
            consumer.last = None;
            // From one that is not served it means nothing.
            if !sub.failover || consumer.active {
                consumer.holds.clear();
                sub.held.clear();
            }
            world.feed(
                peer,
                &say::bytes(&say::redeliver(id, vec![], Some(consumer.epoch))),
            );
        }
    }

    pub fn seek(&mut self, world: &mut World, shared: &mut Shared, rng: &mut Rng, id: u64) {
        let Some(peer) = self.peer else { return };
        let request = self.request();
        let Some(consumer) = self.consumers.get(&id).filter(|c| c.opening.is_none()) else {
            return;
        };
        let index = consumer.sub;
        let topic = shared.subs[index].topic;
        let command = match rng.below(3) {
            0 => {
                shared.subs[index].seek(None, shared.published.sent.len() as u64, shared.next_key);
                let now = world.now.wall_ms;
                say::seek_time(id, request, rng.range(now.saturating_sub(500), now + 10))
            }
            1 => {
                shared.subs[index].seek(Some((0, 0)), 0, shared.next_key);
                say::seek_id(id, request, say::id(u64::MAX, u64::MAX))
            }
            _ => {
                let places: Vec<At> = shared
                    .published
                    .sent
                    .iter()
                    .filter(|s| s.topic == topic)
                    .filter_map(|s| s.at)
                    .collect();
                let Some(at) = rng.pick(&places) else { return };
                shared.subs[index].seek(Some(at), 0, shared.next_key);
                say::seek_id(id, request, say::id(at.0, at.1))
            }
        };
        self.seeks.insert(
            request,
            (
                index,
                matches!(&command.seek, Some(s) if s.message_id.is_none()),
            ),
        );
        world.feed(peer, &say::bytes(&command));
    }
}
