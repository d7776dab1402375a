//! Subscriptions and their consumers.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use super::Topic;
use super::chunks::Chunks;
use super::lanes::LaneSeat;
use super::meter::Meter;
use crate::engine::context::Context;
use crate::engine::message::{ClientKey, ClientRef, OpenConsumer};
use crate::store::log::{AckState, CursorId, Position, ReadHint, Record};

/// Delivered bytes that a consumer's session may hold unwritten before it is sent no more.
///
/// The consumers of one connection share the memory of one connection: the n-th gets an n-th of this, but at least
/// [`WINDOW_MIN`].
pub(super) const WINDOW: usize = 1 << 20;
/// The smallest such window.
pub(super) const WINDOW_MIN: usize = 64 << 10;

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
    /// What consumers that are gone were sent, messages and bytes.
    pub(super) gone_out: (u64, u64),
    /// A consumer was connected once.
    pub(super) attached: bool,
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
            gone_out: (0, 0),
            attached: false,
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
        self.attached = true;
        let index = self.consumers.insert(consumer);
        self.order.insert(at, index);
        (self.turn, self.turn_left) = (0, 0);
        index as u32
    }

    /// Takes a consumer out.
    pub(super) fn dismiss(&mut self, index: usize) -> Option<Consumer> {
        let consumer = self.consumers.get(index)?;
        let near = self.place((consumer.priority, consumer.client.incarnation));
        // Consumers of different connections may share an incarnation: theirs stand next to each other.
        let at = self.order.iter().skip(near).position(|i| *i == index);
        if let Some(at) = at {
            self.order.remove(near + at);
        }
        let gone = self.consumers.try_remove(index)?;
        self.blocked_consumers -= usize::from(gone.blocked);
        self.gone_out.0 += gone.sent.total();
        self.gone_out.1 += gone.sent_bytes.total();
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
