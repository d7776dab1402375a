//! Topics as a whole: made, listed, deleted, unloaded, emptied.

use super::super::joining::Expel;
use super::super::operation::{Operation, Then};
use super::super::{Topic, Topics};
use super::reply;
use crate::engine::admin::{Answer, Asker};
use crate::engine::context::Context;
use crate::engine::message::Message;
use crate::engine::name::TopicName;
use crate::engine::time::Now;
use crate::store::log::{Record, TopicState};
use std::collections::BTreeMap;
use vela_proto::ServerError;

/// What the names of a topic's properties begin with in its log: other values have names of their own.
const PROPERTY: &str = "property/";
/// What clients hear whose question was under way when their topic was deleted.
/// Bytes of all properties of a topic, keys and values: as much as one request brings.
const PROPERTIES_MAX: usize = 1 << 20;
const DELETED: &str = "The topic was deleted";

impl Topics {
    /// The names of the topics of a namespace, persistent and not.
    pub(super) fn names_of(&self, namespace: &str) -> Vec<String> {
        let mut names = Vec::new();
        for scheme in ["persistent", "non-persistent"] {
            let prefix = format!("{scheme}://{namespace}/");
            let from = (
                std::ops::Bound::Included(prefix.as_str()),
                std::ops::Bound::Unbounded,
            );
            let found = self.by_name.range::<str, _>(from).map(|(name, _)| name);
            let found = found.take_while(|name| name.starts_with(&prefix));
            names.extend(found.map(|name| name.to_string()));
        }
        names
    }

    pub(super) fn create_topics(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        names: &[TopicName],
        properties: &[(String, String)],
        now: Now,
    ) {
        let changes: Vec<_> = properties
            .iter()
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect();
        let (mut existed, mut lane) = (Vec::new(), None);
        for name in names {
            if self.by_name.contains_key(name.as_str()) {
                existed.push(name.to_string());
                continue;
            }
            let Some(slot) = self.find_or_create(cx, name, true, now) else {
                let text = format!("topic {name} does not live on core {}", cx.core);
                return reply(cx, asker, Answer::Failed(text));
            };
            self.change_properties(slot, &changes);
            lane = lane.or(self.topics.get(slot as usize).and_then(|topic| topic.log()));
        }
        let answer = Answer::Created { existed };
        match lane {
            Some(lane) => self.reply_durable(cx, asker, lane, answer),
            None => reply(cx, asker, answer),
        }
    }

    /// Who is connected.
    pub(super) fn connected(&self, slot: u32) -> Answer {
        let Some(topic) = self.topics.get(slot as usize) else {
            return Answer::NoTopic;
        };
        Answer::Clients {
            producers: topic.producers.len(),
            consumers: topic.subs.iter().map(|(_, sub)| sub.roster.len()).sum(),
        }
    }

    /// Closes all producers and consumers of a topic from this side.
    pub(in crate::engine::topic) fn close_clients(
        &mut self,
        cx: &mut Context,
        slot: u32,
        coming_back: bool,
        now: Now,
    ) {
        // Those who wait first: nobody is to take the place of one that goes.
        self.refuse_queued(cx, slot, ServerError::ServiceNotReady, |topic| {
            format!("Topic {topic} was unloaded or deleted: come again")
        });
        self.close_producers(cx, slot, true, |_| true);
        let why = if coming_back {
            Expel::Unload
        } else {
            Expel::End
        };
        for sub in self.sub_slots(slot) {
            self.expel(cx, slot, sub, None, why, now);
        }
    }

    fn sub_slots(&self, slot: u32) -> Vec<u32> {
        self.topics
            .get(slot as usize)
            .map(|topic| topic.subs.iter().map(|(sub, _)| sub as u32).collect())
            .unwrap_or_default()
    }

    pub(super) fn delete_topic(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        force: bool,
        now: Now,
    ) {
        if !force
            && let answer @ Answer::Clients {
                producers,
                consumers,
            } = self.connected(slot)
            && producers + consumers > 0
        {
            return reply(cx, asker, answer);
        }
        self.delete(cx, Some(asker), slot, now);
    }

    /// Takes a topic out of the table of names, closes its clients, and refuses what is under way. Its slot stays taken.
    pub(in crate::engine::topic) fn retire(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let id = topic.state.id;
        // From here on the name is free: who comes next gets a topic of its own.
        topic.deleted = true;
        let name = topic.name.clone();
        self.by_name.remove(name.as_str());
        self.count(cx, &name, false);
        self.tell_watchers(cx, &name, false);
        self.close_clients(cx, slot, false, now);
        self.forget_rate(cx, slot, now);
        self.sweep.forget(slot);
        for sub in self.sub_slots(slot) {
            self.drop_subscription(cx, slot, sub, now);
        }
        if let Some(topic) = self.topics.get_mut(slot as usize) {
            let operations = std::mem::take(&mut topic.operations);
            let inquiries = std::mem::take(&mut topic.inquiries);
            topic.state = TopicState::new(id, topic.name.as_str(), 0);
            for inquiry in inquiries {
                reply(cx, inquiry.asker, Answer::NoTopic);
            }
            for operation in operations {
                self.refuse_operation(cx, operation);
            }
        }
    }

    fn refuse_operation(&mut self, cx: &mut Context, operation: Operation) {
        const ERROR: ServerError = ServerError::TopicNotFound;
        match operation {
            Operation::Find {
                client,
                request_id,
                then: Then::Rollback,
                ..
            } => {
                self.clients.remove(&client.key());
                cx.post(
                    client.session.core,
                    Message::ConsumerRefused {
                        client,
                        request_id,
                        error: ERROR,
                        message: DELETED.into(),
                    },
                );
            }
            Operation::Find {
                client, request_id, ..
            }
            | Operation::LastMessageId {
                client, request_id, ..
            } => self.reply_error(cx, client, request_id, ERROR, DELETED),
        }
    }

    /// Gives the slot of a deleted topic away.
    pub(in crate::engine::topic) fn vacate(&mut self, slot: u32) {
        if self
            .topics
            .get(slot as usize)
            .is_some_and(|topic| topic.deleted)
        {
            self.topics.remove(slot as usize);
        }
    }

    /// Clients are closed and come back; counters begin anew.
    pub(super) fn unload(&mut self, cx: &mut Context, asker: Asker, slot: u32, now: Now) {
        self.close_clients(cx, slot, true, now);
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        topic.inbound = Default::default();
        topic.entries_added = 0;
        topic.rate_limited = 0;
        for (_, sub) in topic.subs.iter_mut() {
            sub.gone_out = (0, 0);
        }
        let lane = topic.log();
        self.reply_durable(cx, asker, lane, Answer::Done);
    }

    /// Every subscription moves to the end; what was stored goes.
    pub(super) fn truncate(&mut self, cx: &mut Context, asker: Asker, slot: u32, now: Now) {
        if self
            .topics
            .get(slot as usize)
            .is_some_and(Topic::is_volatile)
        {
            // Nothing is stored, and nobody has anything in front of it.
            return reply(cx, asker, Answer::Done);
        }
        for sub in self.sub_slots(slot) {
            let end = self.topics.get(slot as usize).map(|topic| topic.confirmed);
            if let Some(end) = end {
                self.advance(cx, slot, sub, end, now);
            }
        }
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let lane = topic.lane;
        if let Some(seat) = self.lanes.get_mut(lane) {
            topic.empty(seat, now);
        }
        self.reply_durable(cx, asker, lane, Answer::Done);
    }

    pub(super) fn properties(&self, slot: u32) -> Answer {
        match self.topics.get(slot as usize) {
            Some(topic) => Answer::Properties(properties_of(&topic.state)),
            None => Answer::NoTopic,
        }
    }

    pub(super) fn set_properties(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        changes: &[(String, Option<String>)],
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let mut after = properties_of(&topic.state);
        for (key, value) in changes {
            match value {
                Some(value) => after.insert(key.clone(), value.clone()),
                None => after.remove(key),
            };
        }
        let after: usize = after
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if after > PROPERTIES_MAX && changes.iter().any(|(_, value)| value.is_some()) {
            let text = format!(
                "topic {} would have {after} bytes of properties; the limit is {PROPERTIES_MAX}",
                topic.name
            );
            return reply(cx, asker, Answer::TooLarge(text));
        }
        self.change_properties(slot, changes);
        match self.topics.get(slot as usize).map(|topic| topic.log()) {
            Some(lane) => self.reply_durable(cx, asker, lane, Answer::Done),
            None => reply(cx, asker, Answer::NoTopic),
        }
    }

    fn change_properties(&mut self, slot: u32, changes: &[(String, Option<String>)]) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        for (key, value) in changes {
            let key = format!("{PROPERTY}{key}");
            // An empty value removes it, so a value has a mark in front.
            let value = value.as_ref().map(|value| format!("={value}"));
            let value = value.as_deref().unwrap_or_default().as_bytes();
            if !topic.is_volatile() {
                seat.append(&Record::TopicProperty {
                    topic: topic.state.id,
                    key: &key,
                    value,
                });
            }
            topic.state.set_property(&key, value);
        }
    }
}

/// The properties that a topic was given.
pub(super) fn properties_of(state: &TopicState) -> BTreeMap<String, String> {
    let own = state.properties.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(PROPERTY)?;
        let value = value.strip_prefix(b"=")?;
        Some((key.to_owned(), String::from_utf8_lossy(value).into_owned()))
    });
    own.collect()
}

impl super::super::Topic {
    /// Closes the current ledger and removes all closed ones whose entries are durable.
    fn empty(&mut self, seat: &mut super::super::LaneSeat, now: Now) {
        let current = self.state.ledgers.current();
        let Some(entries) = current.map(|ledger| ledger.entries) else {
            return;
        };
        if entries > 0 {
            let Ok(ledger) = seat.lane.new_ledger() else {
                return;
            };
            seat.append(&Record::LedgerOpened {
                topic: self.state.id,
                ledger,
                opened_ms: now.wall_ms,
            });
            if self.state.ledgers.open(ledger, now.wall_ms).is_err() {
                return;
            }
        }
        let confirmed = self.confirmed;
        // Readers keep nothing here, as in Pulsar: they have been moved to the end like everybody, and go on behind what is gone.
        let slowest = self.state.slowest().min(confirmed);
        if let Some(through_ledger) = self.state.ledgers.trimmable(slowest) {
            self.drop_ledgers(seat, through_ledger);
        }
    }
}
