//! Subscriptions and their consumers.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;
use vela_proto::ServerError;

use super::chunks::Chunks;
use super::lanes::LaneSeat;
use super::meter::Meter;
use super::{MAX_WAITING, ProbeFor, Seat, Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientKey, ClientRef, Message, OpenConsumer};
use crate::engine::time::Now;
use crate::store::log::{AckState, CursorId, Position, ReadHint, Record};

/// Delivered bytes that a consumer's session may hold unwritten before it is sent no more.
///
/// The consumers of one connection share the memory of one connection: the n-th gets an n-th of this, but at least
/// [`WINDOW_MIN`].
const WINDOW: usize = 1 << 20;
/// The smallest such window.
const WINDOW_MIN: usize = 64 << 10;

/// An entry that a Shared consumer holds.
#[derive(Copy, Clone, Debug)]
pub(super) struct Held {
    /// Messages of it that are not acknowledged.
    pub(super) permits: u32,
    /// Messages in it.
    pub(super) batch: u32,
}

/// A connected consumer.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) client: ClientRef,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) version: i32,
    /// 0 is served first.
    pub(super) priority: i32,
    pub(super) epoch: Option<u64>,
    pub(super) connected_ms: u64,
    /// Its SUBSCRIBE was answered: what it is sent comes behind the answer.
    pub(super) opened: bool,
    /// Messages it may still be sent; below zero after a batch that was larger. Never clamped.
    pub(super) permits: i64,
    /// Permits that came while it was blocked.
    pub(super) parked: i64,
    pub(super) blocked: bool,
    /// Shared: entries it holds and has not acknowledged, with their messages.
    pub(super) pending: BTreeMap<Position, Held>,
    /// Messages in `pending`. An entry alone may claim `i32::MAX` of them, so they do not fit in 32 bits.
    pub(super) unacked: u64,
    /// Bytes on their way through its session, and how many there may be.
    pub(super) unwritten: usize,
    pub(super) window: usize,
    pub(super) sent: Meter,
    pub(super) sent_bytes: Meter,
    pub(super) redelivered: Meter,
    pub(super) acked: Meter,
}

impl Consumer {
    /// May it be sent another entry?
    pub(super) fn available(&self) -> bool {
        self.opened && self.permits > 0 && !self.blocked && self.unwritten < self.window
    }
}

/// A subscription: a cursor and who reads behind it.
pub(super) struct Subscription {
    pub(super) name: String,
    /// The durable cursor; `None` = the cursor is `own`.
    pub(super) cursor: Option<CursorId>,
    /// The cursor of a non-durable subscription.
    pub(super) own: AckState,
    /// Shared rather than Exclusive; the first consumer decides.
    pub(super) shared: bool,
    pub(super) consumers: Slab<Consumer>,
    /// Consumers by priority, in the order they came.
    pub(super) order: Vec<usize>,
    /// Whose turn it is in `order`, and how many entries of the turn are left.
    pub(super) turn: usize,
    pub(super) turn_left: u32,
    /// The last entry that was handed out for the first time.
    pub(super) read: Position,
    /// Shared: entries to hand out again.
    pub(super) replay: BTreeSet<Position>,
    /// Shared: who gets which chunked message, and chunks that wait for their consumer.
    pub(super) chunks: Chunks,
    /// Shared: how often an entry came back.
    pub(super) redelivered: BTreeMap<Position, u32>,
    pub(super) hint: ReadHint,
    pub(super) replay_hint: ReadHint,
    /// Messages handed out and not acknowledged, all consumers.
    pub(super) unacked: u64,
    pub(super) blocked: bool,
    /// How many of the consumers are blocked: mostly none, and then nobody has to be looked at.
    pub(super) blocked_consumers: usize,
    /// A seek is running.
    pub(super) resetting: bool,
    /// Who asked for it: what finishes a reset must find the subscription that began it, not another one in its slot.
    pub(super) reset_for: Option<ClientKey>,
    /// Consumers that came while a seek ran.
    pub(super) waiting: Vec<(ClientRef, Box<OpenConsumer>)>,
    /// A non-durable subscription whose consumers were closed by a seek ends at this time, unless one comes back.
    pub(super) orphaned_until: Option<u64>,
}

impl Subscription {
    pub(super) fn new(name: &str, cursor: Option<CursorId>, mark_delete: Position) -> Self {
        Subscription {
            name: name.to_owned(),
            cursor,
            own: AckState::new(mark_delete),
            shared: false,
            consumers: Slab::new(),
            order: Vec::new(),
            turn: 0,
            turn_left: 0,
            read: mark_delete,
            replay: BTreeSet::new(),
            chunks: Chunks::default(),
            redelivered: BTreeMap::new(),
            hint: ReadHint::default(),
            replay_hint: ReadHint::default(),
            unacked: 0,
            blocked: false,
            blocked_consumers: 0,
            resetting: false,
            reset_for: None,
            waiting: Vec::new(),
            orphaned_until: None,
        }
    }

    /// Starts again behind the mark-delete position: nothing is handed out.
    pub(super) fn rewind(&mut self, mark_delete: Position) {
        self.read = mark_delete;
        self.replay.clear();
        self.chunks.clear();
        self.redelivered.clear();
        self.unacked = 0;
        self.blocked = false;
    }

    /// Where in `order` the consumers of this priority and incarnation begin, or would begin.
    fn place(&self, key: (i32, u32)) -> usize {
        self.order.partition_point(|index| {
            self.consumers
                .get(*index)
                .is_some_and(|c| (c.priority, c.client.incarnation) < key)
        })
    }

    /// Adds a consumer in its place among the others. Nobody else is looked at: subscriptions may have very many.
    pub(super) fn admit(&mut self, consumer: Consumer) -> u32 {
        let at = self.place((consumer.priority, consumer.client.incarnation));
        let index = self.consumers.insert(consumer);
        self.order.insert(at, index);
        (self.turn, self.turn_left) = (0, 0);
        index as u32
    }

    /// Takes a consumer out.
    fn dismiss(&mut self, index: usize) -> Option<Consumer> {
        let consumer = self.consumers.get(index)?;
        let near = self.place((consumer.priority, consumer.client.incarnation));
        // Consumers of different connections may share an incarnation: theirs stand next to each other.
        let at = self.order.iter().skip(near).position(|i| *i == index);
        if let Some(at) = at {
            self.order.remove(near + at);
        }
        let gone = self.consumers.try_remove(index)?;
        self.blocked_consumers -= usize::from(gone.blocked);
        (self.turn, self.turn_left) = (0, 0);
        Some(gone)
    }
}

/// Makes a durable subscription.
pub(super) fn create_durable(
    topic: &mut Topic,
    seat: &mut LaneSeat,
    name: &str,
    mark_delete: Position,
    properties: &[(&str, &str)],
) -> u32 {
    let cursor = topic.state.next_cursor;
    seat.append(&Record::CursorCreated {
        topic: topic.state.id,
        cursor,
        name,
        mark_delete,
        properties: properties.into(),
    });
    if topic
        .state
        .create_cursor(cursor, name, mark_delete, properties)
        .is_err()
    {
        tracing::error!(topic = %topic.name, subscription = name, "the cursor number was used before");
    }
    let slot = topic
        .subs
        .insert(Subscription::new(name, Some(cursor), mark_delete)) as u32;
    topic.sub_names.insert(name.to_owned(), slot);
    slot
}

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
            Seat::Consumer {
                topic: slot,
                sub: sub_slot,
                consumer,
            },
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
        let Some(Seat::Consumer {
            topic,
            sub,
            consumer,
        }) = self.clients.get(&client.key())
        else {
            return false;
        };
        let Some(topic) = self.topics.get_mut(*topic as usize) else {
            return false;
        };
        let Some(consumer) = topic
            .subs
            .get_mut(*sub as usize)
            .and_then(|sub| sub.consumers.get_mut(*consumer as usize))
        else {
            return false;
        };
        consumer.opened = true;
        topic.mark_dirty(&mut self.dirty);
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
            Some(Seat::Consumer {
                topic,
                sub,
                consumer,
            }) => {
                let (topic, sub, consumer) = (*topic, *sub, *consumer);
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
        let Some(Seat::Consumer {
            topic: slot,
            sub: sub_slot,
            consumer,
        }) = self.clients.get(&client.key())
        else {
            return self.no_consumer(cx, client, request_id);
        };
        let (slot, sub_slot, consumer) = (*slot, *sub_slot, *consumer);
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

/// How long a non-durable subscription waits for its consumer to come back from a seek, milliseconds.
pub(super) const ORPHAN_MS: u64 = 60_000;

/// Where a subscription's cursor stands.
pub(super) fn mark_delete(state: &crate::store::log::TopicState, sub: &Subscription) -> Position {
    sub.acks(state).mark_delete()
}

impl Subscription {
    /// The subscription's cursor.
    pub(super) fn acks<'a>(&'a self, state: &'a crate::store::log::TopicState) -> &'a AckState {
        self.cursor
            .and_then(|cursor| state.cursors.get(&cursor))
            .map_or(&self.own, |cursor| &cursor.acks)
    }

    /// Lets consumers and the subscription go on when enough has been acknowledged.
    pub(super) fn unblock(&mut self, cx: &Context) -> bool {
        let limit = u64::from(cx.settings.max_unacked_messages_per_subscription);
        let mut freed = false;
        if self.blocked && self.unacked < (limit / 2).max(1) {
            self.blocked = false;
            freed = true;
        }
        if self.blocked_consumers == 0 {
            return freed;
        }
        let limit = u64::from(cx.settings.max_unacked_messages_per_consumer);
        for (_, consumer) in self
            .consumers
            .iter_mut()
            .filter(|(_, c)| c.blocked && c.unacked <= limit / 2)
        {
            consumer.blocked = false;
            self.blocked_consumers -= 1;
            consumer.permits += std::mem::take(&mut consumer.parked);
            freed = true;
        }
        freed
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
