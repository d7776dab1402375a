//! One watcher: the names it has, and the changes that its client has not been told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{TopicPattern, topics_hash};

/// Bytes of names in one update; a change of more is several.
const UPDATE_BYTES: usize = 1 << 20;
/// Names, of all watchers of the core, per millisecond of rest after an update: the hash is made over the whole list, and long lists that change
/// often must not take the core's time.
const NAMES_PER_MS: usize = 500;

/// What a client is told.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::engine) struct Update {
    pub(in crate::engine) new: Vec<String>,
    pub(in crate::engine) deleted: Vec<String>,
    pub(in crate::engine) hash: String,
}

/// WATCH_TOPIC_LIST of a session.
#[derive(Debug)]
pub(in crate::engine) struct Watcher {
    pub(in crate::engine) namespace: String,
    pattern: TopicPattern,
    names: BTreeSet<Arc<str>>,
    /// Changes that the client has not been told: true = created.
    untold: BTreeMap<Arc<str>, bool>,
    /// Changes that came before the list was there. `None` once it is.
    early: Option<Vec<(Arc<str>, bool)>>,
    /// No update before this time, monotonic milliseconds.
    rests_until: u64,
}

impl Watcher {
    pub(in crate::engine) fn new(namespace: String, pattern: TopicPattern) -> Self {
        Watcher {
            namespace,
            pattern,
            names: BTreeSet::new(),
            untold: BTreeMap::new(),
            early: Some(Vec::new()),
            rests_until: 0,
        }
    }

    /// Bytes of its pattern.
    pub(in crate::engine) fn pattern_bytes(&self) -> usize {
        self.pattern.bytes()
    }

    /// Its pattern.
    pub(in crate::engine) fn pattern(&self) -> &TopicPattern {
        &self.pattern
    }

    /// Names that it holds, several times where it does so.
    pub(in crate::engine) fn weight(&self) -> usize {
        self.names.len() + self.untold.len() + self.early.as_ref().map_or(0, Vec::len)
    }

    /// A topic of its namespace was created or deleted. True if there is something to tell.
    pub(in crate::engine) fn changed(&mut self, name: &Arc<str>, created: bool) -> bool {
        if !self.pattern.matches(name) {
            return false;
        }
        if let Some(early) = &mut self.early {
            early.push((Arc::clone(name), created));
            return false;
        }
        let news = if created {
            self.names.insert(Arc::clone(name))
        } else {
            self.names.remove(name)
        };
        if news && self.untold.remove(name).is_none() {
            self.untold.insert(Arc::clone(name), created);
        }
        !self.untold.is_empty()
    }

    /// The list is there: every topic of the namespace that its pattern means, when it was asked for.
    pub(in crate::engine) fn begin(&mut self, all: impl Iterator<Item = Arc<str>>) {
        self.names = all.collect();
        for (name, created) in self.early.take().unwrap_or_default() {
            if created {
                self.names.insert(name);
            } else {
                self.names.remove(&name);
            }
        }
    }

    /// All names and their hash; what was not told is told by this.
    pub(in crate::engine) fn snapshot(&mut self) -> (Vec<String>, String) {
        self.untold.clear();
        let names = self.names.iter().map(|name| name.to_string()).collect();
        (names, topics_hash(self.names.iter()))
    }

    /// When there is something to tell, monotonic milliseconds. `None` when there is nothing.
    pub(in crate::engine) fn due(&self) -> Option<u64> {
        (!self.untold.is_empty()).then_some(self.rests_until)
    }

    /// What is to be told, at most about 1 MiB of it. `watchers` = how many there are on this core: they rest for each other, so that all
    /// together take no more of the core's time than one.
    pub(in crate::engine) fn take_update(
        &mut self,
        now_ms: u64,
        watchers: usize,
    ) -> Option<Update> {
        if self.untold.is_empty() || self.rests_until > now_ms {
            return None;
        }
        let mut update = Update {
            new: Vec::new(),
            deleted: Vec::new(),
            hash: topics_hash(self.names.iter()),
        };
        let mut bytes = 0;
        while bytes < UPDATE_BYTES
            && let Some((name, created)) = self.untold.pop_first()
        {
            bytes += name.len();
            let names = if created {
                &mut update.new
            } else {
                &mut update.deleted
            };
            names.push(name.to_string());
        }
        if self.untold.is_empty() {
            let names = self.names.len().saturating_mul(watchers.max(1));
            self.rests_until = now_ms + (names / NAMES_PER_MS) as u64;
        }
        Some(update)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn name(local: &str) -> Arc<str> {
        Arc::from(format!("persistent://t/n/{local}"))
    }

    fn watcher(names: &[&str]) -> Watcher {
        let pattern = TopicPattern::parse("persistent://t/n/a.*").unwrap();
        let mut watcher = Watcher::new("t/n".into(), pattern);
        let names = names.iter().map(|local| name(local));
        let meant: Vec<_> = names
            .filter(|name| watcher.pattern().matches(name))
            .collect();
        watcher.begin(meant.into_iter());
        watcher
    }

    #[test]
    fn only_what_the_pattern_means_is_told_and_only_once() {
        let mut watcher = watcher(&["a1", "b1"]);
        let one = topics_hash([name("a1")].iter());
        assert_eq!(watcher.snapshot(), (vec![name("a1").to_string()], one));
        assert!(!watcher.changed(&name("b2"), true));
        assert!(!watcher.changed(&name("a1"), true), "it is there already");
        assert!(!watcher.changed(&name("a9"), false), "it was never there");
        assert!(watcher.changed(&name("a2"), true));
        assert!(watcher.changed(&name("a1"), false));
        let update = watcher.take_update(0, 1).unwrap();
        assert_eq!(update.new, [name("a2").to_string()]);
        assert_eq!(update.deleted, [name("a1").to_string()]);
        assert_eq!(update.hash, topics_hash([name("a2")].iter()));
        assert_eq!(watcher.take_update(0, 1), None);
    }

    #[test]
    fn what_comes_and_goes_between_two_updates_is_not_told() {
        let mut watcher = watcher(&["a1"]);
        assert!(watcher.changed(&name("a2"), true));
        assert!(!watcher.changed(&name("a2"), false));
        assert!(watcher.changed(&name("a1"), false));
        assert!(!watcher.changed(&name("a1"), true));
        assert_eq!(watcher.take_update(0, 1), None);
        assert_eq!(watcher.weight(), 1);
    }

    #[test]
    fn changes_before_the_list_is_whole_are_applied_to_it() {
        let pattern = TopicPattern::parse("t/n/a.*").unwrap();
        let mut watcher = Watcher::new("t/n".into(), pattern);
        watcher.changed(&name("a3"), true);
        watcher.changed(&name("a1"), false);
        watcher.changed(&name("b"), true);
        assert_eq!(watcher.weight(), 2);
        watcher.begin([name("a1"), name("a2")].into_iter());
        let (names, _) = watcher.snapshot();
        assert_eq!(names, [name("a2").to_string(), name("a3").to_string()]);
        assert_eq!(watcher.take_update(0, 1), None);
    }

    #[test]
    fn large_changes_come_in_parts_and_long_lists_rest_between_updates() {
        let mut watcher = watcher(&[]);
        let long = "x".repeat(1000);
        for n in 0..3000 {
            watcher.changed(&name(&format!("a{long}{n:04}")), true);
        }
        let mut told = 0;
        let mut parts = 0;
        while let Some(update) = watcher.take_update(10, 1) {
            told += update.new.len();
            parts += 1;
        }
        assert_eq!((told, parts), (3000, 3));
        watcher.changed(&name("a"), true);
        assert_eq!(watcher.due(), Some(16));
        assert_eq!(watcher.take_update(15, 1), None);
        assert!(watcher.take_update(16, 1).is_some());
        assert_eq!(watcher.due(), None);
    }

    /// 256 watchers of one long list would hash it 256 times as often as one.
    #[test]
    fn watchers_rest_for_each_other() {
        let mut watcher = watcher(&[]);
        for n in 0..3000 {
            watcher.changed(&name(&format!("a{n}")), true);
        }
        assert!(watcher.take_update(10, 256).is_some());
        watcher.changed(&name("a"), true);
        assert_eq!(watcher.due(), Some(10 + 3000 * 256 / 500));
    }
}
