//! How many topics a namespace has, for `maxTopicsPerNamespace`. Persistent topics count, every partition by itself; those that the broker
//! keeps for itself do not, and non-persistent ones do not.
//!
//! Topics of a namespace live on all cores. Each core tells the others how many it has whenever that changes, so what a core goes by is
//! behind by what is on its way: cores that make topics at the same moment may go beyond the limit by a few, as several brokers of Apache
//! Pulsar may.

use rustc_hash::FxHashMap;

use super::Topics;
use crate::engine::context::Context;
use crate::engine::message::{CoreId, Message};
use crate::engine::name::{Domain, TopicName};
use crate::engine::watch::is_system_topic;

/// What a client is told, in Pulsar's words.
pub(crate) const TOO_MANY: &str = "Exceed maximum number of topics in namespace.";

/// Topics by namespace.
#[derive(Default, Debug)]
pub(super) struct Counts {
    own: FxHashMap<String, u32>,
    /// What other cores have said, by core.
    others: FxHashMap<String, FxHashMap<CoreId, u32>>,
}

fn counts(name: &TopicName) -> bool {
    name.domain() == Domain::Persistent && !is_system_topic(name.local())
}

impl Counts {
    /// A topic came, or went.
    fn note(&mut self, name: &TopicName, came: bool) -> Option<u32> {
        if !counts(name) {
            return None;
        }
        let namespace = name.namespace();
        let count = self.own.get(namespace).copied().unwrap_or(0);
        let count = match came {
            true => count.saturating_add(1),
            false => count.saturating_sub(1),
        };
        match count {
            0 => self.own.remove(namespace),
            count => self.own.insert(namespace.to_owned(), count),
        };
        Some(count)
    }

    /// As recovery found it: nobody is told.
    pub(super) fn found(&mut self, name: &TopicName) {
        self.note(name, true);
    }

    fn of(&self, namespace: &str) -> u64 {
        let own = self.own.get(namespace).copied().unwrap_or(0);
        let others = self.others.get(namespace);
        let others = others.into_iter().flat_map(|cores| cores.values());
        others.fold(u64::from(own), |sum, count| sum + u64::from(*count))
    }
}

impl Topics {
    /// A topic of this core came, or went.
    pub(super) fn count(&mut self, cx: &mut Context, name: &TopicName, came: bool) {
        if let Some(count) = self.counts.note(name, came) {
            tell(cx, name.namespace(), count);
        }
    }

    /// Tells the other cores what recovery found.
    pub(in crate::engine) fn tell_counts(&self, cx: &mut Context) {
        for (namespace, count) in &self.counts.own {
            tell(cx, namespace, *count);
        }
    }

    /// Another core says how many it has.
    pub(super) fn counted(&mut self, from: CoreId, namespace: String, count: u32) {
        let cores = self.counts.others.entry(namespace);
        if count > 0 {
            cores.or_default().insert(from, count);
        } else if let std::collections::hash_map::Entry::Occupied(mut cores) = cores {
            cores.get_mut().remove(&from);
            if cores.get().is_empty() {
                cores.remove();
            }
        }
    }

    /// Would the namespace of a topic have more than it may have, if the topic were made, or so many partitions of it? One partition by itself
    /// was counted when its topic was made.
    pub(super) fn is_full(&self, cx: &Context, name: &TopicName, more: u32) -> bool {
        if !counts(name) || name.partition() >= 0 || self.by_name.contains_key(name.as_str()) {
            return false;
        }
        let limit = cx.metadata.namespace(name.namespace());
        let limit = limit.and_then(|policy| policy.max_topics);
        let limit = limit.unwrap_or(cx.settings.max_topics_per_namespace);
        limit > 0 && self.counts.of(name.namespace()) + u64::from(more) > u64::from(limit)
    }
}

fn tell(cx: &mut Context, namespace: &str, count: u32) {
    let me = cx.core;
    for core in (0..cx.cores).filter(|core| *core != me) {
        let message = Message::TopicCount {
            from: me,
            namespace: namespace.to_owned(),
            count,
        };
        cx.post(core, message);
    }
}
