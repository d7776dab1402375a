//! Messages that were redelivered too often.
//!
//! Kept apart from permits: a message waiting to be handed over holds memory, its permit has long gone back.

use std::collections::{HashMap, HashSet};

use vela_proto::KeyValue;

use super::message::{EntryId, ReceivedMessage, index_of};
use crate::MessageId;

/// Property: the topic a dead-lettered or retried message was first sent to.
pub const REAL_TOPIC: &str = "REAL_TOPIC";
/// Property: its identity there.
pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
/// Property: the same under the name older clients look for.
pub const ORIGIN_MESSAGE_IDY_TIME: &str = "ORIGIN_MESSAGE_IDY_TIME";
/// Property: the subscription that gave it up.
pub const REAL_SUBSCRIPTION: &str = "REAL_SUBSCRIPTION";
/// Property: how often it was sent to the retry topic.
pub const RECONSUMETIMES: &str = "RECONSUMETIMES";
/// Property: milliseconds it waited in the retry topic the last time.
pub const DELAY_TIME: &str = "DELAY_TIME";

type Key = (EntryId, Option<u32>);

/// The messages of one consumer that are, or may be, given up.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    /// Delivered for the last time; given up if negatively acknowledged once more.
    candidates: HashMap<EntryId, Vec<ReceivedMessage>>,
    nacked: HashSet<Key>,
    /// On their way to the dead-letter topic.
    handed_over: HashSet<Key>,
}

fn key(id: &MessageId) -> Key {
    (EntryId::from(*id), index_of(id))
}

impl DeadLetters {
    /// Keeps a message that is delivered for the last time.
    pub(super) fn keep(&mut self, message: ReceivedMessage) {
        self.candidates
            .entry(message.entry())
            .or_default()
            .push(message);
    }

    pub(super) fn holds(&self, entry: EntryId) -> bool {
        self.candidates.contains_key(&entry)
    }

    /// Marks one for being given up when its time comes.
    pub(super) fn nack(&mut self, id: &MessageId) {
        if self.holds(EntryId::from(*id)) {
            self.nacked.insert(key(id));
        }
    }

    /// Gives up the marked messages of an entry, or all of them.
    pub(super) fn give_up(&mut self, entry: EntryId, all: bool) -> Vec<ReceivedMessage> {
        let Some(messages) = self.candidates.remove(&entry) else {
            return Vec::new();
        };
        let (given_up, kept): (Vec<_>, Vec<_>) = messages
            .into_iter()
            .partition(|message| self.nacked.remove(&key(&message.id)) || all);
        if !kept.is_empty() {
            self.candidates.insert(entry, kept);
        }
        for message in &given_up {
            self.handed_over.insert(key(&message.id));
        }
        given_up
    }

    /// A message goes over without being delivered any more.
    pub(super) fn hand_over(&mut self, id: &MessageId) {
        self.handed_over.insert(key(id));
    }

    pub(super) fn is_handed_over(&self, entry: EntryId, index: Option<u32>) -> bool {
        !self.handed_over.is_empty() && self.handed_over.contains(&(entry, index))
    }

    /// It was acknowledged, by the application or after it was stored as a dead letter, or could not be stored.
    pub(super) fn forget(&mut self, id: &MessageId) {
        let key = key(id);
        self.handed_over.remove(&key);
        self.nacked.remove(&key);
        if let Some(messages) = self.candidates.get_mut(&key.0) {
            messages.retain(|message| index_of(&message.id) != key.1);
            if messages.is_empty() {
                self.candidates.remove(&key.0);
            }
        }
    }

    /// The broker delivers everything again.
    pub(super) fn detached(&mut self) {
        self.candidates.clear();
        self.nacked.clear();
    }
}

/// Properties of a message on its way to the retry or the dead-letter topic: its own, and where it came from.
///
/// `reconsume_times` and `delay_millis` are for the retry topic. A message that was retried keeps the origin it has.
#[must_use]
pub fn origin_properties(
    message: &ReceivedMessage,
    subscription: &str,
    reconsume_times: Option<u32>,
    delay_millis: Option<u64>,
) -> Vec<KeyValue> {
    let mut properties = message.properties().to_vec();
    let mut set = |key: &str, value: String, keep: bool| {
        match properties.iter_mut().find(|pair| pair.key == key) {
            Some(pair) if !keep => pair.value = value,
            Some(_) => {}
            None => properties.push(KeyValue {
                key: key.to_owned(),
                value,
            }),
        };
    };
    let id = message.id.to_string();
    set(REAL_TOPIC, message.topic.to_string(), true);
    set(REAL_SUBSCRIPTION, subscription.to_owned(), true);
    set(ORIGIN_MESSAGE_IDY_TIME, id.clone(), true);
    set(ORIGIN_MESSAGE_ID, id, true);
    if let Some(times) = reconsume_times {
        set(RECONSUMETIMES, times.to_string(), false);
    }
    if let Some(delay) = delay_millis {
        set(DELAY_TIME, delay.to_string(), false);
    }
    properties
}

/// How often a message was sent to the retry topic.
#[must_use]
pub fn reconsume_times(message: &ReceivedMessage) -> u32 {
    message
        .property(RECONSUMETIMES)
        .and_then(|times| times.parse().ok())
        .unwrap_or(0)
}
