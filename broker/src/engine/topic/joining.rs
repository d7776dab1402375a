//! Who joins a subscription and who leaves it.

use super::dispatcher::Dispatcher;
use super::lanes::LaneSeat;
use super::openings::{ConsumerSeat, MAX_WAITING, ProbeFor, Refusal, Seat};
use super::roster::Consumer;
use super::sticky::Refused;
use super::subscription::{ORPHAN_MS, Subscription, create_durable, mark_delete};
use super::{TOO_MANY, Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, OpenConsumer, SubType};
use crate::engine::time::Now;
use crate::store::log::{Position, Record};
use vela_proto::ServerError;

/// Why consumers are closed from this side.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Expel {
    /// The cursor is moved: they come back. Those of a Failover subscription that are not served stay.
    Seek,
    /// The topic is unloaded: all of them come back.
    Unload,
    /// The subscription ends.
    End,
}

impl Topics {
    pub(super) fn open_consumer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenConsumer>,
        now: Now,
    ) {
        if let Err(refusal) = self.try_open(cx, client, open, now) {
            self.refuse_consumer(cx, client, refusal, now);
        }
    }

    fn try_open(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenConsumer>,
        now: Now,
    ) -> Result<(), Refusal> {
        let request_id = open.request_id;
        let refuse = move |error, message: String| Err((request_id, error, message));
        if open.sub_type == SubType::KeyShared && !cx.settings.subscription_key_shared_enable {
            let text = "Key_Shared subscriptions are switched off: subscriptionKeySharedEnable";
            return refuse(ServerError::NotAllowedError, text.into());
        }
        let dispatcher = match Dispatcher::new(&open, &cx.settings) {
            Ok(dispatcher) => dispatcher,
            Err(refused) => {
                let text = format!(
                    "Subscription '{}' of {}: {refused}",
                    open.subscription, open.topic
                );
                return refuse(ServerError::ConsumerAssignError, text);
            }
        };
        if open.create_topic && self.is_full(cx, &open.topic, 1) {
            return refuse(ServerError::NotAllowedError, TOO_MANY.into());
        }
        let Some(slot) = self.find_or_create(cx, &open.topic, open.create_topic, now) else {
            return refuse(
                ServerError::TopicNotFound,
                format!("Topic {} does not exist", open.topic),
            );
        };
        if let Some(text) = self.topics.get(slot as usize).and_then(Topic::fence) {
            return refuse(ServerError::ServiceNotReady, text);
        }
        self.check_consumer_limits(cx, slot, &open.subscription, &open.address, now)
            .map_err(|(error, message)| (request_id, error, message))?;
        let limits = self
            .topics
            .get(slot as usize)
            .and_then(|topic| topic.limits);
        let limits = limits.unwrap_or_default();
        if !limits.subscription_types.allow(open.sub_type) {
            let text = format!(
                "Topic {} takes no {} subscriptions: subscriptionTypesEnabled",
                open.topic,
                open.sub_type.name()
            );
            return refuse(ServerError::NotAllowedError, text);
        }
        let Some(open) = self.reading_schema(cx, client, slot, open) else {
            return Ok(());
        };
        let (Some(topic), lanes) = (self.topics.get_mut(slot as usize), &mut self.lanes) else {
            return Ok(());
        };
        let Some(seat) = lanes.get_mut(topic.lane) else {
            return Ok(());
        };
        let sub_slot = match topic.sub_names.get(&open.subscription) {
            Some(sub) => *sub,
            None if open.durable && !open.create_subscription && !topic.is_volatile() => {
                let text = format!(
                    "Subscription '{}' of {} does not exist and allowAutoSubscriptionCreation is false",
                    open.subscription, topic.name
                );
                return refuse(ServerError::SubscriptionNotFound, text);
            }
            None => topic.create_subscription(seat, &open),
        };
        let topic_name = topic.name.clone();
        let volatile = topic.is_volatile();
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return Ok(());
        };
        if sub.cursor.is_some() != open.durable && !volatile {
            let (is, asked) = if open.durable {
                ("non-durable", "durable")
            } else {
                ("durable", "non-durable")
            };
            return refuse(
                ServerError::NotAllowedError,
                format!(
                    "Subscription '{}' of {topic_name} is {is}, not {asked}",
                    sub.name
                ),
            );
        }
        if sub.resetting && sub.waiting.len() >= MAX_WAITING {
            let text = format!(
                "Subscription '{}' of {topic_name} is being reset and {MAX_WAITING} consumers wait for it; try again",
                sub.name
            );
            return refuse(ServerError::ServiceNotReady, text);
        }
        if sub.resetting {
            sub.waiting.push((client, open));
            self.wait(client, 0);
            return Ok(());
        }
        if !sub.roster.is_empty() && sub.sub_type() != open.sub_type {
            let text = format!(
                "Subscription '{}' of {topic_name} is {} while consumers are connected, not {}",
                sub.name,
                sub.sub_type().name(),
                open.sub_type.name()
            );
            return refuse(ServerError::ConsumerBusy, text);
        }
        if let Some((is, asked)) = sub.dispatcher.differs(&dispatcher)
            && !sub.roster.is_empty()
        {
            let text = format!(
                "Subscription '{}' of {topic_name} is Key_Shared {is} while consumers are connected, not {asked}",
                sub.name
            );
            return refuse(ServerError::ConsumerBusy, text);
        }
        if !sub.roster.is_empty()
            && let Err(refused) = sub.dispatcher.check(&open)
        {
            let text = format!("Subscription '{}' of {topic_name}: {refused}", sub.name);
            let error = ServerError::ConsumerAssignError;
            if let Refused::Taken { holder, .. } = refused
                && let Some(holder) = sub.roster.get(holder)
                && holder.client.session != client.session
            {
                let holder = holder.client.session;
                self.probe(cx, client, holder, ProbeFor::Consumer(open, error, text));
                return Ok(());
            }
            return refuse(error, text);
        }
        let holder = sub.roster.first().map(|first| first.client.session);
        if let Some(holder) = holder
            && open.sub_type == SubType::Exclusive
        {
            let text = format!(
                "Exclusive subscription '{}' of {topic_name} has a consumer",
                sub.name
            );
            if holder == client.session {
                return refuse(ServerError::ConsumerBusy, text);
            }
            let error = ServerError::ConsumerBusy;
            self.probe(cx, client, holder, ProbeFor::Consumer(open, error, text));
            return Ok(());
        }
        let keyed = open.sub_type == SubType::KeyShared;
        if sub.roster.is_empty() && (keyed || sub.sub_type() != open.sub_type) {
            sub.dispatcher = dispatcher;
        }
        sub.orphaned_until = None;
        // A cursor that others read behind stays where it is.
        let rollback = if sub.roster.is_empty() && !volatile {
            open.rollback_seconds
        } else {
            0
        };
        let consumer = sub.roster.admit(Consumer::new(client, &open, now.wall_ms));
        if let Some(newcomer) = sub.roster.get(consumer) {
            let partition = topic_name.partition();
            sub.dispatcher.joined(
                consumer,
                newcomer,
                &open,
                topic_name.as_str(),
                partition,
                &cx.settings,
            );
        }
        let lane = topic.log();
        let waiting = self.clients.insert(
            client.key(),
            Seat::Consumer(ConsumerSeat {
                topic: slot,
                sub: sub_slot,
                consumer,
            }),
        );
        self.elect(cx, slot, sub_slot, Some(client), now);
        if rollback > 0 {
            let since = now.wall_ms.saturating_sub(rollback.saturating_mul(1000));
            self.start_rollback(slot, sub_slot, client, request_id, since);
        } else {
            self.after_log(
                cx,
                lane,
                client.session.core,
                Message::ConsumerOpened { client, request_id },
            );
        }
        self.replay_waiting(cx, waiting, now);
        Ok(())
    }

    /// A consumer's SUBSCRIBE is answered now; messages may follow. False if it was closed in the meantime.
    pub(super) fn consumer_opened(&mut self, client: ClientRef) -> bool {
        let Some((slot, consumer, sub)) = self.subscription_of(client) else {
            return false;
        };
        sub.roster.open(consumer);
        self.mark(slot);
        true
    }

    /// Takes a consumer out of its subscription; what it held goes to the others.
    pub(super) fn remove_consumer(
        &mut self,
        cx: &mut Context,
        slot: u32,
        sub_slot: u32,
        consumer: u32,
        seeking: bool,
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        // What does not keep anything does not wait for anybody.
        let waits = seeking && !topic.is_volatile();
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        let Some(gone) = sub.dismiss(consumer) else {
            return;
        };
        self.clients.remove(&gone.client.key());
        if sub.roster.is_empty() {
            let mark_delete = mark_delete(&topic.state, sub);
            sub.rewind(mark_delete);
            if sub.cursor.is_none() {
                if waits {
                    let until = now.ms + ORPHAN_MS;
                    sub.orphaned_until = Some(until);
                    self.orphans.insert((until, slot, sub_slot));
                } else {
                    self.drop_subscription(cx, slot, sub_slot, now);
                }
            }
        } else {
            sub.unblock(cx, None);
            topic.mark_dirty(&mut self.dirty);
            self.elect(cx, slot, sub_slot, None, now);
        }
        self.settle_unacked(cx, slot, sub_slot);
    }

    /// Forgets a subscription. Consumers that waited for it to be reset open it anew.
    pub(super) fn drop_subscription(
        &mut self,
        cx: &mut Context,
        slot: u32,
        sub_slot: u32,
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        // What it had out counts no more, which may let others go on.
        sub.pending.clear();
        self.settle_unacked(cx, slot, sub_slot);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(mut sub) = topic.subs.try_remove(sub_slot as usize) else {
            return;
        };
        sub.stop_timer(&mut self.delays, slot, sub_slot);
        self.unacked.forget((slot, sub_slot), &sub);
        topic.sub_names.remove(&sub.name);
        topic.trim_if_loose(&mut self.lanes, now);
        self.reopen_waiting(cx, sub.waiting, now);
    }

    /// Takes up the openings that a reset kept waiting.
    pub(super) fn reopen_waiting(
        &mut self,
        cx: &mut Context,
        waiting: Vec<(ClientRef, Box<OpenConsumer>)>,
        now: Now,
    ) {
        for (client, open) in waiting {
            if matches!(self.clients.get(&client.key()), Some(Seat::Waiting { .. })) {
                self.open_consumer(cx, client, open, now);
            }
        }
    }

    /// CLOSE_CONSUMER, or the connection is gone.
    pub(super) fn close_consumer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        request_id: Option<u64>,
        now: Now,
    ) {
        match self.clients.get(&client.key()) {
            Some(Seat::Consumer(seat)) => {
                let ConsumerSeat {
                    topic,
                    sub,
                    consumer,
                } = *seat;
                self.remove_consumer(cx, topic, sub, consumer, false, now);
            }
            _ => {
                self.clients.remove(&client.key());
            }
        }
        if request_id.is_some() {
            cx.post(
                client.session.core,
                Message::ConsumerClosed {
                    client,
                    request_id,
                    by_broker: false,
                },
            );
        }
    }

    /// Closes consumers of a subscription from this side, all or all but one.
    pub(super) fn expel(
        &mut self,
        cx: &mut Context,
        slot: u32,
        sub_slot: u32,
        except: Option<ClientRef>,
        why: Expel,
        now: Now,
    ) {
        let Some(sub) = self
            .topics
            .get(slot as usize)
            .and_then(|topic| topic.subs.get(sub_slot as usize))
        else {
            return;
        };
        let gone: Vec<(u32, ClientRef)> = sub
            .roster
            .iter()
            .filter(|(index, _)| why != Expel::Seek || sub.dispatcher.is_active(*index))
            .map(|(index, consumer)| (index, consumer.client))
            .filter(|(_, client)| except.is_none_or(|kept| kept.key() != client.key()))
            .collect();
        for (consumer, client) in gone {
            cx.post(
                client.session.core,
                Message::ConsumerClosed {
                    client,
                    request_id: None,
                    by_broker: true,
                },
            );
            self.remove_consumer(cx, slot, sub_slot, consumer, why != Expel::End, now);
        }
    }

    /// UNSUBSCRIBE: the cursor goes, and with it what nobody else holds.
    pub(super) fn unsubscribe(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        request_id: u64,
        force: bool,
        now: Now,
    ) {
        let Some(ConsumerSeat {
            topic: slot,
            sub: sub_slot,
            consumer,
        }) = self.consumer_seat(client)
        else {
            return self.no_consumer(cx, client, request_id);
        };
        let Some(topic) = self.topics.get(slot as usize) else {
            return;
        };
        let Some(sub) = topic.subs.get(sub_slot as usize) else {
            return;
        };
        let others = sub.roster.len() > 1;
        if others && !force {
            let text = format!(
                "Subscription '{}' of {} has {} consumers; close the others or force it",
                sub.name,
                topic.name,
                sub.roster.len()
            );
            return self.reply_error(cx, client, request_id, ServerError::MetadataError, text);
        }
        let durable = sub.cursor;
        if others {
            self.expel(cx, slot, sub_slot, Some(client), Expel::End, now);
        }
        self.remove_consumer(cx, slot, sub_slot, consumer, false, now);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let lane = topic.log();
        if let Some(cursor) = durable {
            if let Some(seat) = self.lanes.get_mut(topic.lane) {
                seat.append(&Record::CursorDeleted {
                    topic: topic.state.id,
                    cursor,
                });
            }
            topic.state.delete_cursor(cursor);
            self.drop_subscription(cx, slot, sub_slot, now);
        }
        cx.post(
            client.session.core,
            Message::ConsumerClosed {
                client,
                request_id: None,
                by_broker: false,
            },
        );
        let command = Box::new(crate::engine::reply::success(request_id));
        self.after_log(
            cx,
            lane,
            client.session.core,
            Message::Reply {
                session: client.session,
                command,
            },
        );
    }
}

impl Topic {
    fn create_subscription(&mut self, seat: &mut LaneSeat, open: &OpenConsumer) -> u32 {
        let start = if open.durable { None } else { open.start };
        let latest = self.confirmed;
        let mark_delete = match start {
            Some(Position::EARLIEST) => Position::EARLIEST,
            Some(start) if start.ledger >= 0 && start.entry >= 0 && start <= self.confirmed => {
                self.state.ledgers.prev(start)
            }
            Some(start) if start != Position::LATEST && start < Position::new(0, 0) => {
                Position::EARLIEST
            }
            _ if open.earliest => Position::EARLIEST,
            _ => latest,
        };
        if open.durable && !self.is_volatile() {
            let properties: Vec<(&str, &str)> = open
                .properties
                .iter()
                .map(|(k, v)| (k.as_str(), v.as_str()))
                .collect();
            create_durable(self, seat, &open.subscription, mark_delete, &properties)
        } else {
            let slot = self
                .subs
                .insert(Subscription::new(&open.subscription, None, mark_delete))
                as u32;
            self.sub_names.insert(open.subscription.clone(), slot);
            slot
        }
    }
}
