//! Subscriptions: a cursor, and what is on its way to the consumers behind it.

use std::collections::{BTreeMap, BTreeSet};

use super::Topic;
use super::delayed::Delayed;
use super::dispatcher::Dispatcher;
use super::lanes::LaneSeat;
use super::meter::Meter;
use super::pending::Pending;
use super::roster::{Consumer, Roster};
use super::sticky::Slot;
use crate::engine::context::Context;
use crate::engine::message::{ClientKey, ClientRef, OpenConsumer, SubType};
use crate::store::log::{AckState, CursorId, Position, ReadHint, Record};

/// A subscription: a cursor and who reads behind it.
pub(super) struct Subscription {
    pub(super) name: String,
    /// The durable cursor; `None` = the cursor is `own`.
    pub(super) cursor: Option<CursorId>,
    /// The cursor of a non-durable subscription.
    pub(super) own: AckState,
    /// Who gets what; its type is that of the first consumer.
    pub(super) dispatcher: Dispatcher,
    /// The consumers and their credit.
    pub(super) roster: Roster,
    /// Which of them holds what, where the type has it so.
    pub(super) pending: Pending,
    /// The last entry that was handed out for the first time.
    pub(super) read: Position,
    /// Entries to hand out again. They were pending before, so what bounds those bounds these: nothing new is read while there are any.
    pub(super) replay: BTreeSet<Position>,
    /// Entries whose time has not come.
    pub(super) delayed: Delayed,
    /// How often an entry came back: entries of `pending` and `replay` only.
    pub(super) redelivered: BTreeMap<Position, u32>,
    pub(super) hint: ReadHint,
    pub(super) replay_hint: ReadHint,
    /// Too many unacknowledged messages: nothing new is read.
    pub(super) blocked: bool,
    /// The broker's limit has stopped it: likewise.
    pub(super) stopped: bool,
    /// Unacknowledged messages as the core has counted them.
    pub(super) counted: u64,
    /// What consumers that are gone were sent, messages and bytes.
    pub(super) gone_out: (u64, u64),
    /// A seek is running.
    pub(super) resetting: bool,
    /// Who asked for it: what finishes a reset must find the subscription that began it, not another one in its slot.
    pub(super) reset_for: Option<ClientKey>,
    /// Consumers that came while a seek ran.
    pub(super) waiting: Vec<(ClientRef, Box<OpenConsumer>)>,
    /// Messages that nobody could take, on a non-persistent topic.
    pub(super) dropped: Meter,
    /// A non-durable subscription whose consumers were closed by a seek ends at this time, unless one comes back.
    pub(super) orphaned_until: Option<u64>,
}

impl Subscription {
    pub(super) fn new(name: &str, cursor: Option<CursorId>, mark_delete: Position) -> Self {
        Subscription {
            name: name.to_owned(),
            cursor,
            own: AckState::new(mark_delete),
            dispatcher: Dispatcher::default(),
            roster: Roster::default(),
            pending: Pending::default(),
            read: mark_delete,
            replay: BTreeSet::new(),
            delayed: Delayed::default(),
            redelivered: BTreeMap::new(),
            hint: ReadHint::default(),
            replay_hint: ReadHint::default(),
            blocked: false,
            stopped: false,
            counted: 0,
            gone_out: (0, 0),
            resetting: false,
            reset_for: None,
            waiting: Vec::new(),
            dropped: Meter::default(),
            orphaned_until: None,
        }
    }

    /// The type of its consumers.
    pub(super) fn sub_type(&self) -> SubType {
        self.dispatcher.sub_type()
    }

    /// Starts again behind the mark-delete position: nothing is handed out.
    pub(super) fn rewind(&mut self, mark_delete: Position) {
        self.read = mark_delete;
        self.replay.clear();
        self.delayed.clear();
        self.dispatcher.rewind();
        self.redelivered.clear();
        self.pending.clear();
        self.blocked = false;
    }

    /// An entry that nobody holds is to be handed out again.
    pub(super) fn put_back(&mut self, position: Position, slot: Slot) {
        if !self.dispatcher.put_back(position, slot) {
            self.replay.insert(position);
        }
    }

    /// Takes a consumer out. What it held, and what waited for it, is to be handed out again.
    pub(super) fn dismiss(&mut self, index: u32) -> Option<Consumer> {
        let gone = self.roster.dismiss(index)?;
        self.gone_out.0 += gone.sent.total();
        self.gone_out.1 += gone.sent_bytes.total();
        let held = self.pending.take_all(index);
        self.replay.extend(self.dispatcher.left(index, held));
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

    /// Lets the subscription go on, and one of its consumers or all of them, when enough has been acknowledged.
    pub(super) fn unblock(&mut self, cx: &Context, consumer: Option<u32>) -> bool {
        let limit = u64::from(cx.settings.max_unacked_messages_per_subscription);
        let mut freed = false;
        if self.blocked && (limit == 0 || self.pending.unacked() < (limit / 2).max(1)) {
            self.blocked = false;
            freed = true;
        }
        let limit = u64::from(cx.settings.max_unacked_messages_per_consumer);
        let who = match consumer {
            Some(consumer) => vec![consumer],
            None => self.roster.blocked(),
        };
        for consumer in who {
            if limit == 0 || self.pending.unacked_of(consumer) <= limit / 2 {
                freed |= self.roster.unblock(consumer);
            }
        }
        freed
    }

    /// Could an entry be handed out?
    pub(super) fn stands_still(
        &self,
        state: &crate::store::log::TopicState,
        confirmed: Position,
    ) -> bool {
        if self.resetting || !self.dispatcher.is_ready(&self.roster) {
            return false;
        }
        let new = || {
            let next = self.acks(state).next_unacked(&state.ledgers, self.read);
            let reads = !self.blocked && !self.stopped && self.dispatcher.reads_on();
            reads && next.is_some_and(|next| next <= confirmed)
        };
        let due = !self.blocked && self.delayed.due() > 0;
        let due = due && !self.stopped && self.dispatcher.reads_on();
        !self.replay.is_empty() || due || self.dispatcher.has_aside(&self.roster) || new()
    }

    /// Does it wait for entries to come? Somebody can be sent one, nothing keeps it from reading, and everything was read.
    pub(super) fn waits_for_entries(
        &self,
        state: &crate::store::log::TopicState,
        confirmed: Position,
    ) -> bool {
        let reads = !self.resetting
            && !self.blocked
            && !self.stopped
            && self.dispatcher.is_ready(&self.roster)
            && self.dispatcher.reads_on();
        let next = || self.acks(state).next_unacked(&state.ledgers, self.read);
        reads && next().is_none_or(|next| next > confirmed)
    }

    /// What does not add up, if anything.
    pub(super) fn audit(&self) -> Result<(), String> {
        self.roster.audit()?;
        self.pending.audit()?;
        if let Some(held) = self
            .replay
            .iter()
            .find(|at| self.pending.get(**at).is_some())
        {
            return Err(format!("{held} is held and to be replayed"));
        }
        if let Some(keys) = self.dispatcher.keys() {
            keys.audit(self.pending.held())?;
        }
        self.delayed.audit(|at| {
            self.pending.get(at).is_some()
                || self.replay.contains(&at)
                || self.dispatcher.is_aside(at)
        })?;
        let known = |at: &Position| {
            self.pending.get(*at).is_some()
                || self.replay.contains(at)
                || self.dispatcher.is_aside(*at)
        };
        if let Some(lost) = self.redelivered.keys().find(|at| !known(at)) {
            return Err(format!("{lost} is counted as redelivered and nowhere"));
        }
        Ok(())
    }
}
