//! What the simulated clients make of what the broker says, and what they hold it to.

use vela_proto::{self as proto, ServerError, base_command::Type};

use super::actor::{Actor, Shared, full};
use crate::harness::client::{Got, say};
use crate::harness::{Incoming, Peer, World};

impl Actor {
    /// Takes what has arrived.
    pub fn listen(&mut self, world: &mut World, shared: &mut Shared) {
        let Some(peer) = self.peer else { return };
        for incoming in world.take(peer) {
            self.incoming(world, shared, peer, &incoming);
        }
    }

    fn incoming(
        &mut self,
        world: &mut World,
        shared: &mut Shared,
        peer: Peer,
        incoming: &Incoming,
    ) {
        let command = &incoming.command;
        match Type::try_from(command.r#type).unwrap() {
            Type::Connected => self.connected = true,
            Type::Ping => world.feed(peer, &say::bytes(&say::pong())),
            Type::ProducerSuccess => {}
            Type::SendReceipt => {
                let receipt = command.send_receipt.as_ref().unwrap();
                let id = receipt.message_id.as_ref().unwrap();
                let (producer, number) =
                    self.answered(receipt.producer_id, receipt.sequence_id, true);
                shared
                    .published
                    .seen(number, producer, (id.ledger_id, id.entry_id));
                shared.published.sent[number as usize].receipt = true;
                shared.receipts += 1;
            }
            Type::SendError => {
                let error = command.send_error.as_ref().unwrap();
                assert_eq!(
                    error.error,
                    ServerError::PersistenceError as i32,
                    "{error:?}"
                );
                let id = error.producer_id;
                let known = self.producers.contains_key(&id)
                    || self.old_producers.iter().any(|(old, _)| *old == id);
                if shared.broken && !known {
                    // Its PRODUCER was refused before it.
                    return;
                }
                if let Some(producer) = self.producers.get_mut(&id) {
                    producer.failed = true;
                }
                let (_, number) = self.answered(error.producer_id, error.sequence_id, false);
                // What was handed to a disk that broke may be there, and may not.
                shared.published.sent[number as usize].refused = !shared.broken;
            }
            Type::Success => self.success(shared, command.success.as_ref().unwrap().request_id),
            Type::Error => {
                let error = command.error.as_ref().unwrap();
                if shared.broken {
                    return self.refused_by_broken_disk(shared, error.request_id);
                }
                let id = self
                    .consumers
                    .iter()
                    .find(|(_, c)| c.opening == Some(error.request_id))
                    .map(|(id, _)| *id);
                match id {
                    Some(id) => {
                        let sought = shared.subs[self.consumers[&id].sub].loose
                            && error.error == ServerError::ServiceNotReady as i32;
                        assert!(
                            sought || error.error == ServerError::ConsumerBusy as i32,
                            "{error:?}"
                        );
                        self.consumers.remove(&id);
                    }
                    // A SEEK or a question that met a consumer which was closed meanwhile, or a SEEK beside another one.
                    None => match self.seeks.remove(&error.request_id) {
                        Some((sub, _)) => shared.subs[sub].seeks_open -= 1,
                        None => {
                            let known = self.stats.remove(&error.request_id).is_some()
                                || self.dropped_opens.remove(&error.request_id);
                            assert!(known, "{error:?}");
                        }
                    },
                }
            }
            Type::CloseConsumer => {
                let id = command.close_consumer.as_ref().unwrap().consumer_id;
                // One that is being opened is not closed by the broker: this is about the one before it.
                if self.consumers.get(&id).is_some_and(|c| c.opening.is_some()) {
                    return;
                }

                if let Some(consumer) = self.consumers.remove(&id) {
                    self.acks_of(consumer.key);
                    shared.subs[consumer.sub].left(consumer.key);
                    let sub = &shared.subs[consumer.sub];
                    assert!(
                        sub.loose,
                        "the broker closed a consumer of {} without a SEEK",
                        sub.name
                    );
                }
            }
            Type::ActiveConsumerChange => {
                let change = command.active_consumer_change.as_ref().unwrap();
                let consumer = self.consumers.get_mut(&change.consumer_id);
                // As with messages, one that comes before the SUCCESS may be about a predecessor.
                if let Some(consumer) = consumer.filter(|c| c.opening.is_none()) {
                    assert!(shared.subs[consumer.sub].failover);
                    consumer.active = change.is_active.unwrap();
                    if consumer.active {
                        // It starts at the mark-delete position.
                        consumer.last = None;
                    }
                }
            }
            Type::Message => self.message(world, shared, incoming),
            Type::AckResponse => self.ack_response(shared, command.ack_response.as_ref().unwrap()),
            Type::ConsumerStatsResponse => {
                self.stats_response(shared, command.consumer_stats_response.as_ref().unwrap())
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    /// An ERROR while a disk is broken: whatever it answers has not happened.
    fn refused_by_broken_disk(&mut self, shared: &mut Shared, request: u64) {
        self.producers
            .retain(|_, producer| producer.opened_by != request);
        self.old_producers
            .retain(|(_, producer)| producer.opened_by != request);
        self.consumers
            .retain(|_, consumer| consumer.opening != Some(request));
        if let Some((sub, _)) = self.seeks.remove(&request) {
            shared.subs[sub].seeks_open -= 1;
        }
        self.stats.remove(&request);
        self.dropped_opens.remove(&request);
    }

    /// Finds what a receipt or refusal answers: topic and number.
    fn answered(&mut self, producer_id: u64, sequence_id: u64, in_order: bool) -> (usize, u64) {
        let old = self
            .old_producers
            .iter_mut()
            .find(|(id, _)| *id == producer_id)
            .map(|(_, p)| p);
        let producer = old
            .or_else(|| self.producers.get_mut(&producer_id))
            .expect("an answer to an open producer");
        // A refusal for want of room may overtake receipts that still wait.
        let at = producer
            .unanswered
            .iter()
            .position(|(sequence, _)| *sequence == sequence_id);
        let at = at.unwrap_or_else(|| {
            panic!("an answer to SEND {sequence_id} of producer {producer_id}, which has none open")
        });
        assert!(
            !in_order || at == 0,
            "the receipt of {sequence_id} comes before that of {:?}",
            producer.unanswered[0]
        );
        let (_, number) = producer.unanswered.remove(at).unwrap();
        (producer.topic, number)
    }

    fn success(&mut self, shared: &mut Shared, request: u64) {
        if let Some(at) = self
            .old_producers
            .iter()
            .position(|(_, p)| p.closing == Some(request))
        {
            let (_, producer) = self.old_producers.remove(at);
            assert!(
                producer.unanswered.is_empty(),
                "closed before {:?} were answered",
                producer.unanswered
            );
            return;
        }
        if let Some((sub, by_time)) = self.seeks.remove(&request) {
            let published = shared.published.sent.len() as u64;
            let sub = &mut shared.subs[sub];
            sub.seeks_open -= 1;
            if by_time {
                sub.skipped_numbers = published;
            }
            return;
        }
        if let Some(consumer) = self
            .consumers
            .values_mut()
            .find(|c| c.opening == Some(request))
        {
            consumer.opening = None;
        }
        // Else the SUCCESS of a close, or of a SUBSCRIBE that was closed right behind.
    }

    fn message(&mut self, world: &World, shared: &mut Shared, incoming: &Incoming) {
        let got = Got::from(incoming).unwrap();
        let permits = got.permits.expect("message_permits is always written");
        // What comes to a consumer that is being closed, or from before it was opened anew, was sent to its predecessor.
        let Some(consumer) = self
            .consumers
            .get_mut(&got.consumer)
            .filter(|c| c.opening.is_none())
        else {
            return;
        };
        // Where credit was turned into a run of entries, the run may overdraw it: 100 entries of 12 messages.
        let overdraft = if shared.precise || shared.subs[consumer.sub].shared {
            0
        } else {
            1200
        };
        assert!(
            consumer.taken < consumer.given + overdraft,
            "delivered without credit: {} of {}",
            consumer.taken,
            consumer.given
        );
        consumer.taken += i64::from(permits);
        consumer.suspect += i64::from(got.batch.unwrap_or(1)) - i64::from(permits);
        let whole = full(got.batch);
        let open = got
            .ack_set
            .first()
            .map_or(whole, |word| *word as u64 & whole);
        assert_eq!(open.count_ones(), permits, "permits of {got:?}");
        let sub = &mut shared.subs[consumer.sub];
        let number = u64::from_le_bytes(got.payload[..8].try_into().unwrap());
        assert_eq!(got.batch, shared.published.sent[number as usize].batch);
        let at = (got.ledger, got.entry);
        shared.published.seen(number, sub.topic, at);
        if !sub.shared && got.epoch.unwrap_or(0) < consumer.epoch {
            return;
        }
        assert!(
            sub.shared || consumer.last.is_none_or(|last| last < at),
            "{at:?} comes behind {:?} on {}, where one consumer gets everything in order",
            consumer.last,
            sub.name
        );
        consumer.last = Some(at);
        let due = shared.published.sent[number as usize].due;
        let now = world.now.wall_ms;
        assert!(
            !sub.shared || due <= now + shared.early,
            "message {number} is due at {due} and comes at {now} on {}",
            sub.name
        );
        sub.delivery(number, at, consumer.key, open, due > 0);
        consumer.holds.insert(at, open);
        shared.deliveries += 1;
    }

    fn ack_response(&mut self, shared: &mut Shared, response: &proto::CommandAckResponse) {
        let request = self
            .acks
            .remove(&response.request_id.unwrap())
            .expect("an answer to an ACK");
        let sub = &mut shared.subs[request.sub];
        if response.error.is_some() || !request.certain || request.seeks != sub.seeks {
            return;
        }
        shared.acks_confirmed += 1;
        for (at, open) in request.ids {
            if request.cumulative {
                sub.acked_upto = sub.acked_upto.max(Some(at));
            } else if open == 0 {
                sub.acked.insert(at);
            } else {
                *sub.open.entry(at).or_insert(u64::MAX) &= open;
            }
        }
    }

    fn stats_response(&mut self, shared: &Shared, stats: &proto::CommandConsumerStatsResponse) {
        let (key, given, resting) = self
            .stats
            .remove(&stats.request_id)
            .expect("statistics nobody asked for");
        let Some(consumer) = self.consumers.values().find(|c| c.key == key) else {
            return;
        };
        self.stats_seen += 1;
        // Permits that come while a consumer is blocked are parked and do not show.
        if stats.blocked_consumer_on_unacked_msgs == Some(false) {
            let balance = stats.available_permits.unwrap() as i64;
            let due = given - consumer.taken;
            assert!(
                (due - consumer.suspect..=due).contains(&balance),
                "{balance} permits of {consumer:?}"
            );
        }
        let sub = &shared.subs[consumer.sub];
        if sub.shared && !sub.loose && resting {
            let held: u32 = consumer.holds.values().map(|open| open.count_ones()).sum();
            assert_eq!(
                stats.unacked_messages,
                Some(u64::from(held)),
                "unacknowledged messages of {consumer:?}"
            );
        }
    }
}
