//! What clients are told of the topics there are: lists of a namespace, and changes of them.

use std::ops::Bound;
use std::sync::Arc;

use super::Topics;
use crate::engine::context::Context;
use crate::engine::message::{CoreId, Message};
use crate::engine::name::{Domain, TopicName};
use crate::engine::watch::is_system_topic;

impl Topics {
    /// The topics of a namespace on this core, without those that the broker keeps for itself.
    pub(super) fn list(
        &self,
        namespace: &str,
        persistent: bool,
        non_persistent: bool,
    ) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for (domain, wanted) in [
            ("persistent", persistent),
            ("non-persistent", non_persistent),
        ] {
            if !wanted {
                continue;
            }
            let prefix = format!("{domain}://{namespace}/");
            let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
            let names = self.by_name.range::<str, _>(from).map(|(name, _)| name);
            let names = names
                .take_while(|name| name.starts_with(&prefix))
                .filter(|name| !name.get(prefix.len()..).is_some_and(is_system_topic));
            found.extend(names.cloned());
        }
        found
    }

    /// A core has one watcher more, or less, of a namespace.
    pub(super) fn watch(&mut self, core: CoreId, namespace: String, on: bool) {
        if on {
            let cores = self.watched.entry(namespace).or_default();
            *cores.entry(core).or_default() += 1;
            return;
        }
        let Some(cores) = self.watched.get_mut(&namespace) else {
            return;
        };
        if let Some(count) = cores.get_mut(&core) {
            *count -= 1;
            if *count == 0 {
                cores.remove(&core);
            }
        }
        if cores.is_empty() {
            self.watched.remove(&namespace);
        }
    }

    /// A topic of this core was created, or is gone: whoever watches its namespace hears of it. To be called for every topic that is put
    /// into the table of names or taken out of it.
    pub(super) fn tell_watchers(&mut self, cx: &mut Context, name: &TopicName, created: bool) {
        if self.watched.is_empty()
            || name.domain() != Domain::Persistent
            || is_system_topic(name.local())
        {
            return;
        }
        let Some(cores) = self.watched.get(name.namespace()) else {
            return;
        };
        for core in cores.keys() {
            cx.post(
                *core,
                Message::TopicChanged {
                    namespace: name.namespace().to_owned(),
                    name: name.shared(),
                    created,
                },
            );
        }
    }
}
