//! Questions about the topics of a namespace: GET_TOPICS_OF_NAMESPACE, and watchers of the list (PIP-145).

use std::collections::BTreeMap;
use std::sync::Arc;

use vela_proto::{self as proto, ServerError, command_get_topics_of_namespace::Mode};

use super::{Session, Sessions, Stage, WRITTEN_BELOW};
use crate::engine::context::Context;
use crate::engine::message::{CoreId, Message};
use crate::engine::name::MAX_ENTITY;
use crate::engine::reply;
use crate::engine::time::Now;
use crate::engine::watch::{
    MAX_ALL_PATTERNS, MAX_ALL_WATCHERS, MAX_NAMES, MAX_PATTERNS, MAX_WATCHERS, PatternError,
    TopicPattern, Watcher, topics_hash,
};

/// A list of topics that is being collected.
#[derive(Debug)]
pub(super) struct Listing {
    request_id: u64,
    /// Cores that have not answered.
    missing: CoreId,
    /// Names so far; once all are here: those that are to be looked at.
    names: Vec<Arc<str>>,
    /// Those that the pattern means.
    meant: Vec<Arc<str>>,
    /// The client's hash.
    hash: Option<String>,
    answer: ListingFor,
}

#[derive(Debug)]
enum ListingFor {
    /// GET_TOPICS_OF_NAMESPACE; only the names that the pattern means.
    List(Option<TopicPattern>),
    /// WATCH_TOPIC_LIST; only the names that the watcher's pattern means.
    Watcher(u64),
}

impl Listing {
    /// Looks at names while `left` lasts. True when none are left.
    fn look(&mut self, watchers: &Watchers, left: &mut usize) -> bool {
        let pattern = match &self.answer {
            ListingFor::List(pattern) => pattern.as_ref(),
            ListingFor::Watcher(id) => watchers.get(id).map(Watcher::pattern),
        };
        let Some(pattern) = pattern else {
            self.meant = std::mem::take(&mut self.names);
            return true;
        };
        while *left > 0
            && let Some(name) = self.names.pop()
        {
            *left = left.saturating_sub(pattern.cost(&name));
            if pattern.matches(&name) {
                self.meant.push(name);
            }
        }
        self.names.is_empty()
    }
}

/// The watchers of a session, by the ids that its client chose.
pub(super) type Watchers = BTreeMap<u64, Watcher>;

/// A namespace as lists name it: `tenant/namespace`. Watchers keep it, so it has a bound: that of the names of topics.
fn is_namespace(text: &str) -> bool {
    let fits = |part: &str| (1..=MAX_ENTITY).contains(&part.len());
    matches!(text.split('/').collect::<Vec<_>>().as_slice(), [tenant, namespace] if fits(tenant) && fits(namespace))
}

impl Session {
    pub(super) fn list_topics(
        &mut self,
        cx: &mut Context,
        question: proto::CommandGetTopicsOfNamespace,
    ) {
        let request_id = question.request_id;
        if !is_namespace(&question.namespace) {
            return self.protocol_error(cx);
        }
        let settings = &cx.settings;
        let limit = settings.subscription_pattern_max_length as usize;
        let pattern = question.topics_pattern.filter(|pattern| {
            settings.enable_broker_side_subscription_pattern_evaluation
                && pattern.chars().count() <= limit
        });
        let pattern = match pattern.as_deref().map(TopicPattern::parse) {
            None => None,
            Some(Ok(pattern)) => Some(pattern),
            // The answer says that nothing was filtered, and the client does it.
            Some(Err(PatternError::NotApplied)) => None,
            Some(Err(error)) => {
                let text = error.to_string();
                return self.send_error(cx, request_id, ServerError::MetadataError, text);
            }
        };
        let (persistent, non_persistent) = match question.mode.and_then(|m| Mode::try_from(m).ok())
        {
            Some(Mode::NonPersistent) => (false, true),
            Some(Mode::All) => (true, true),
            Some(Mode::Persistent) | None => (true, false),
        };
        let listing = Listing {
            request_id,
            missing: cx.cores,
            names: Vec::new(),
            meant: Vec::new(),
            hash: question.topics_hash,
            answer: ListingFor::List(pattern),
        };
        self.collect(cx, listing, question.namespace, persistent, non_persistent);
    }

    fn collect(
        &mut self,
        cx: &mut Context,
        listing: Listing,
        namespace: String,
        persistent: bool,
        non_persistent: bool,
    ) {
        let request_id = listing.request_id;
        self.listing = Some(Box::new(listing));
        for core in 0..cx.cores {
            cx.post(
                core,
                Message::ListTopics {
                    session: self.me,
                    request_id,
                    namespace: namespace.clone(),
                    persistent,
                    non_persistent,
                },
            );
        }
    }

    /// A core's part of a list. True if it was the last one.
    pub(super) fn topics(&mut self, more: Vec<Arc<str>>) -> bool {
        let Some(listing) = &mut self.listing else {
            return false;
        };
        listing.names.extend(more);
        listing.missing = listing.missing.saturating_sub(1);
        listing.missing == 0
    }

    /// All names of the list are here: looks at them while `left` lasts. True if it was answered and frames may go on.
    pub(super) fn look_at_topics(&mut self, cx: &mut Context, left: &mut usize, now: Now) -> bool {
        let Some(mut listing) = self.listing.take() else {
            return false;
        };
        if listing.missing > 0 || !listing.look(&self.watchers, left) {
            self.listing = Some(listing);
            return false;
        }
        let Listing {
            request_id,
            meant: mut names,
            hash,
            answer,
            ..
        } = *listing;
        match answer {
            ListingFor::List(pattern) => {
                let filtered = pattern.is_some();
                names.sort_unstable();
                let new_hash = topics_hash(names.iter());
                let changed = hash.as_deref() != Some(new_hash.as_str());
                if !changed {
                    names.clear();
                }
                // Persistent topics first.
                let (first, then): (Vec<&Arc<str>>, Vec<&Arc<str>>) = names
                    .iter()
                    .partition(|name| name.starts_with("persistent"));
                let names = first.into_iter().chain(then);
                let names = names.map(|name| name.to_string()).collect();
                let answer = reply::topics(request_id, names, filtered, new_hash, changed);
                self.send(cx, &answer);
            }
            ListingFor::Watcher(id) => self.watch_begins(cx, request_id, id, names, hash, now),
        }
        true
    }

    pub(super) fn watch_topics(
        &mut self,
        cx: &mut Context,
        watch: proto::CommandWatchTopicList,
        now: Now,
    ) {
        let (request_id, id) = (watch.request_id, watch.watcher_id);
        if !is_namespace(&watch.namespace) {
            return self.protocol_error(cx);
        }
        let settings = &cx.settings;
        let limit = settings.subscription_pattern_max_length as usize;
        let refusal = if !settings.enable_broker_topic_list_watcher {
            Some("enableBrokerTopicListWatcher is false".to_owned())
        } else if !settings.enable_broker_side_subscription_pattern_evaluation {
            Some("Evaluating subscription patterns is disabled.".to_owned())
        } else if watch.topics_pattern.chars().count() > limit {
            Some(format!("Pattern longer than maximum: {limit}"))
        } else {
            None
        };
        if let Some(reason) = refusal {
            let text = format!("Unable to create topic list watcher: {reason}");
            return self.send_error(cx, request_id, ServerError::NotAllowedError, text);
        }
        if let Some(watcher) = self.watchers.get_mut(&id) {
            // The client wants to begin again from what is there (PIP-145, reconcile). It keeps its pattern.
            let before = watcher.weight();
            let snapshot = watcher.snapshot();
            cx.watch.names = cx.watch.names.saturating_sub(before - watcher.weight());
            return self.send_watched(cx, request_id, id, snapshot, watch.topics_hash, now);
        }
        let pattern = match TopicPattern::parse(&watch.topics_pattern) {
            Ok(pattern) => pattern,
            Err(error) => {
                let text = error.to_string();
                return self.send_error(cx, request_id, ServerError::InvalidTopicName, text);
            }
        };
        let full = if self.watchers.len() >= MAX_WATCHERS {
            Some(format!(
                "This connection has {MAX_WATCHERS} topic list watchers, the most it may"
            ))
        } else if cx.watch.count >= MAX_ALL_WATCHERS || cx.watch.names >= MAX_NAMES {
            Some(format!(
                "The broker has {} topic list watchers with {} topics on this core, of {MAX_ALL_WATCHERS} and {MAX_NAMES}",
                cx.watch.count, cx.watch.names
            ))
        } else if self.pattern_bytes() + pattern.bytes() > MAX_PATTERNS
            || cx.watch.patterns + pattern.bytes() > MAX_ALL_PATTERNS
        {
            Some(format!(
                "The patterns of the topic list watchers of this connection take {} bytes, of all on this core {}; with this one it would be more than {MAX_PATTERNS} or {MAX_ALL_PATTERNS}. Close some, or use simpler patterns",
                self.pattern_bytes(),
                cx.watch.patterns
            ))
        } else {
            None
        };
        if let Some(text) = full {
            return self.send_error(cx, request_id, ServerError::TooManyRequests, text);
        }
        cx.watch.add(&watch.namespace, self.me, id);
        cx.watch.patterns += pattern.bytes();
        self.watchers
            .insert(id, Watcher::new(watch.namespace.clone(), pattern));
        // Before the list, so that no change falls between the two.
        self.tell_cores(cx, &watch.namespace, true);
        let listing = Listing {
            request_id,
            missing: cx.cores,
            names: Vec::new(),
            meant: Vec::new(),
            hash: watch.topics_hash,
            answer: ListingFor::Watcher(id),
        };
        self.collect(cx, listing, watch.namespace, true, false);
    }

    fn pattern_bytes(&self) -> usize {
        self.watchers.values().map(Watcher::pattern_bytes).sum()
    }

    fn tell_cores(&self, cx: &mut Context, namespace: &str, on: bool) {
        for core in 0..cx.cores {
            let message = Message::WatchTopics {
                core: cx.core,
                namespace: namespace.to_owned(),
                on,
            };
            cx.post(core, message);
        }
    }

    fn watch_begins(
        &mut self,
        cx: &mut Context,
        request_id: u64,
        id: u64,
        names: Vec<Arc<str>>,
        hash: Option<String>,
        now: Now,
    ) {
        let Some(watcher) = self.watchers.get_mut(&id) else {
            return;
        };
        let before = watcher.weight();
        watcher.begin(names.into_iter());
        cx.watch.names = (cx.watch.names + watcher.weight()).saturating_sub(before);
        let snapshot = watcher.snapshot();
        self.send_watched(cx, request_id, id, snapshot, hash, now);
    }

    fn send_watched(
        &mut self,
        cx: &mut Context,
        request_id: u64,
        id: u64,
        (mut names, hash): (Vec<String>, String),
        known: Option<String>,
        now: Now,
    ) {
        if known.as_deref() == Some(hash.as_str()) {
            names.clear();
        }
        self.send(cx, &reply::watched_topics(request_id, id, names, hash));
        self.watch_answers(cx, now);
    }

    pub(super) fn close_watcher(
        &mut self,
        cx: &mut Context,
        close: &proto::CommandWatchTopicListClose,
    ) {
        if let Some(watcher) = self.watchers.remove(&close.watcher_id) {
            self.forget_watcher(cx, close.watcher_id, &watcher);
        }
        self.send(cx, &reply::success(close.request_id));
    }

    fn forget_watcher(&self, cx: &mut Context, id: u64, watcher: &Watcher) {
        cx.watch.remove(&watcher.namespace, self.me, id);
        cx.watch.patterns = cx.watch.patterns.saturating_sub(watcher.pattern_bytes());
        cx.watch.names = cx.watch.names.saturating_sub(watcher.weight());
        self.tell_cores(cx, &watcher.namespace, false);
    }

    /// The session ends: nobody watches any more.
    pub(super) fn forget_watchers(&mut self, cx: &mut Context) {
        for (id, watcher) in std::mem::take(&mut self.watchers) {
            self.forget_watcher(cx, id, &watcher);
        }
    }

    /// Sends what watchers have to tell while the peer reads. The answer is when to look again, monotonic milliseconds.
    pub(super) fn tell_watchers(&mut self, cx: &mut Context, now: Now) -> Option<u64> {
        if self.stage != Stage::Connected {
            return None;
        }
        let mut next: Option<u64> = None;
        let mut updates = Vec::new();
        for (id, watcher) in &mut self.watchers {
            // What does not fit now goes when the output is written.
            while self.out.len() < WRITTEN_BELOW
                && let Some(update) = {
                    let before = watcher.weight();
                    let update = watcher.take_update(now.ms, cx.watch.count);
                    cx.watch.names = (cx.watch.names + watcher.weight()).saturating_sub(before);
                    update
                }
            {
                let command = reply::topic_update(*id, update.new, update.deleted, update.hash);
                self.out
                    .encode(|buf| vela_codec::encode::command(&command, buf));
                updates.push(*id);
            }
            if let Some(due) = watcher.due().filter(|due| *due > now.ms) {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        if !updates.is_empty() {
            self.touch(cx);
        }
        next
    }
}

impl Sessions {
    /// A topic of a watched namespace was created or deleted.
    pub(super) fn topic_changed(
        &mut self,
        cx: &mut Context,
        namespace: &str,
        name: &Arc<str>,
        created: bool,
    ) {
        for (target, id) in cx.watch.of(namespace) {
            let Some(session) = self.find(target) else {
                continue;
            };
            let Some(watcher) = session.watchers.get_mut(&id) else {
                continue;
            };
            let before = watcher.weight();
            let news = watcher.changed(name, created);
            cx.watch.names = (cx.watch.names + watcher.weight()).saturating_sub(before);
            if cx.watch.names > MAX_NAMES {
                tracing::warn!(peer = %session.peer, "too many topics are watched: the connection is closed");
                session.close(cx);
            } else if news && !session.untold {
                session.untold = true;
                cx.watch.dirty.push(target);
            }
        }
    }

    /// Ends a turn: watchers tell what happened in it.
    pub(in crate::engine) fn tell_watchers(&mut self, cx: &mut Context, now: Now) {
        for target in std::mem::take(&mut cx.watch.dirty) {
            let Some(session) = self.find(target) else {
                continue;
            };
            session.untold = false;
            if let Some(due) = session.tell_watchers(cx, now) {
                self.timers.set(due, target.slot, target.generation);
            }
        }
    }
}
