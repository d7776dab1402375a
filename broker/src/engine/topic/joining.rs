//! Who joins a subscription and who leaves it.

use super::lanes::LaneSeat;
use super::meter::Meter;
use super::openings::{ConsumerSeat, MAX_WAITING, ProbeFor, Seat};
use super::subscription::{
    Consumer, ORPHAN_MS, Subscription, WINDOW, WINDOW_MIN, create_durable, mark_delete,
};
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, OpenConsumer};
use crate::engine::time::Now;
use crate::store::log::{Position, Record};
use std::collections::BTreeMap;
use vela_proto::ServerError;

impl Topics {
    pub(super) fn open_consumer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenConsumer>,
        now: Now,
    ) {
        match self.try_open(cx, client, open, now) {
            Ok(()) => {}
            Err((request_id, error, message)) => {
                self.drop_seat(cx, client, now);
                cx.post(
                    client.session.core,
                    Message::ConsumerRefused {
                        client,
                        request_id,
                        error,
                        message,
                    },
                );
            }
        }
    }

    fn try_open(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        open: Box<OpenConsumer>,
        now: Now,
    ) -> Result<(), (u64, ServerError, String)> {
        let request_id = open.request_id;
        let refuse = move |error, message: String| Err((request_id, error, message));
        let Some(slot) = self.find_or_create(cx, &open.topic, open.create_topic, now) else {
            return refuse(
                ServerError::TopicNotFound,
                format!("Topic {} does not exist", open.topic),
            );
        };
        self.check_consumer_limits(cx, slot, &open.subscription, &open.address, now)
            .map_err(|(error, message)| (request_id, error, message))?;
        let (Some(topic), lanes) = (self.topics.get_mut(slot as usize), &mut self.lanes) else {
            return Ok(());
        };
        let Some(seat) = lanes.get_mut(topic.lane) else {
            return Ok(());
        };
        let sub_slot = match topic.sub_names.get(&open.subscription) {
            Some(sub) => *sub,
            None if open.durable && !open.create_subscription => {
                let text = format!(
                    "Subscription '{}' of {} does not exist and allowAutoSubscriptionCreation is false",
                    open.subscription, topic.name
                );
                return refuse(ServerError::SubscriptionNotFound, text);
            }
            None => topic.create_subscription(seat, &open),
        };
        let topic_name = topic.name.clone();
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return Ok(());
        };
        if sub.cursor.is_some() != open.durable {
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
        if !sub.consumers.is_empty() && sub.shared != open.shared {
            let name = |shared| if shared { "Shared" } else { "Exclusive" };
            let text = format!(
                "Subscription '{}' of {topic_name} is {} while consumers are connected, not {}",
                sub.name,
                name(sub.shared),
                name(open.shared)
            );
            return refuse(ServerError::ConsumerBusy, text);
        }
        if !open.shared
            && let Some((_, holder)) = sub.consumers.iter().next()
        {
            let text = format!(
                "Exclusive subscription '{}' of {topic_name} has a consumer",
                sub.name
            );
            let holder = holder.client.session;
            if holder == client.session {
                return refuse(ServerError::ConsumerBusy, text);
            }
            self.probe(cx, client, holder, ProbeFor::Consumer(open, text));
            return Ok(());
        }
        sub.shared = open.shared;
        sub.orphaned_until = None;
        // A cursor that others read behind stays where it is.
        let rollback = if sub.consumers.is_empty() {
            open.rollback_seconds
        } else {
            0
        };
        let consumer = sub.admit(Consumer {
            client,
            name: open.name,
            address: open.address,
            version: open.version,
            priority: open.priority,
            epoch: open.epoch,
            connected_ms: now.wall_ms,
            opened: false,
            permits: 0,
            parked: 0,
            blocked: false,
            pending: BTreeMap::new(),
            unacked: 0,
            unwritten: 0,
            window: (WINDOW / (open.siblings as usize).saturating_add(1)).max(WINDOW_MIN),
            sent: Meter::default(),
            sent_bytes: Meter::default(),
            redelivered: Meter::default(),
            acked: Meter::default(),
        });
        let lane = topic.lane;
        let waiting = self.clients.insert(
            client.key(),
            Seat::Consumer(ConsumerSeat {
                topic: slot,
                sub: sub_slot,
                consumer,
            }),
        );
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
        let Some((slot, consumer)) = self.consumer_mut(client) else {
            return false;
        };
        consumer.opened = true;
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
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        let Some(gone) = sub.dismiss(consumer as usize) else {
            return;
        };
        self.clients.remove(&gone.client.key());
        if sub.consumers.is_empty() {
            let mark_delete = mark_delete(&topic.state, sub);
            sub.rewind(mark_delete);
            if sub.cursor.is_none() {
                if seeking {
                    let until = now.ms + ORPHAN_MS;
                    sub.orphaned_until = Some(until);
                    self.orphans.insert((until, slot, sub_slot));
                } else {
                    self.drop_subscription(cx, slot, sub_slot, now);
                }
            }
        } else if sub.shared {
            sub.unacked = sub.unacked.saturating_sub(gone.unacked);
            sub.replay.extend(gone.pending.into_keys());
            sub.replay.extend(sub.chunks.left(gone.client.key()));
            sub.unblock(cx);
            topic.mark_dirty(&mut self.dirty);
        }
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
        let Some(sub) = topic.subs.try_remove(sub_slot as usize) else {
            return;
        };
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
        seeking: bool,
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
            .consumers
            .iter()
            .map(|(index, consumer)| (index as u32, consumer.client))
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
            self.remove_consumer(cx, slot, sub_slot, consumer, seeking, now);
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
        let others = sub.consumers.len() > 1;
        if others && !force {
            let text = format!(
                "Subscription '{}' of {} has {} consumers; close the others or force it",
                sub.name,
                topic.name,
                sub.consumers.len()
            );
            return self.reply_error(cx, client, request_id, ServerError::MetadataError, text);
        }
        let durable = sub.cursor;
        if others {
            self.expel(cx, slot, sub_slot, Some(client), false, now);
        }
        self.remove_consumer(cx, slot, sub_slot, consumer, false, now);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let lane = topic.lane;
        if let Some(cursor) = durable {
            if let Some(seat) = self.lanes.get_mut(lane) {
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
        if open.durable {
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
