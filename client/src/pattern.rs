//! Consumers of all topics whose names match.
//!
//! The broker is asked to watch the topics (PIP-145); where it does not, and in any case now and then, it is asked for the list.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use tokio::sync::mpsc;
use vela_proto::command_get_topics_of_namespace::Mode;

use crate::client::Client;
use crate::core::{TopicsChanged, WatchKey};
use crate::driver::Watched;
use crate::error::{Error, Result};
use crate::multi::{Parts, SHORTEST_PERIOD};
use crate::topic::TopicName;

/// Which topics a pattern consumer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RegexSubscriptionMode {
    /// Persistent ones.
    #[default]
    PersistentOnly,
    /// Non-persistent ones.
    NonPersistentOnly,
    /// Both.
    AllTopics,
}

/// A pattern over the topics of one namespace.
#[derive(Debug, Clone)]
pub(crate) struct TopicPattern {
    /// `tenant/namespace`.
    pub(crate) namespace: String,
    /// As the broker is told: without `persistent://`.
    pub(crate) text: String,
    regex: Regex,
    mode: RegexSubscriptionMode,
}

impl TopicPattern {
    /// `tenant/namespace/regex`, with or without `persistent://`, or a regular expression alone for `public/default`.
    pub(crate) fn parse(pattern: &str, mode: RegexSubscriptionMode) -> Result<Self> {
        let invalid = |reason: String| Error::Config {
            setting: "topics_pattern",
            value: pattern.to_owned(),
            reason,
        };
        let local = pattern.split_once("://").map_or(pattern, |(_, rest)| rest);
        let text = if local.contains('/') {
            local.to_owned()
        } else {
            format!("public/default/{local}")
        };
        let mut parts = text.splitn(3, '/');
        let (Some(tenant), Some(namespace), Some(_)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid(
                "expected tenant/namespace/regular expression".to_owned(),
            ));
        };
        let regex = Regex::new(&format!("^(?:{text})$")).map_err(|e| invalid(e.to_string()))?;
        Ok(Self {
            namespace: format!("{tenant}/{namespace}"),
            text: text.clone(),
            regex,
            mode,
        })
    }

    fn list_mode(&self) -> Mode {
        match self.mode {
            RegexSubscriptionMode::PersistentOnly => Mode::Persistent,
            RegexSubscriptionMode::NonPersistentOnly => Mode::NonPersistent,
            RegexSubscriptionMode::AllTopics => Mode::All,
        }
    }

    /// The topic, partitions taken together, if it matches.
    fn matching(&self, topic: &str) -> Option<TopicName> {
        let topic = TopicName::parse(topic).ok()?.base();
        let (_, local) = topic.as_str().split_once("://")?;
        let wanted = match self.mode {
            RegexSubscriptionMode::PersistentOnly => topic.is_persistent(),
            RegexSubscriptionMode::NonPersistentOnly => !topic.is_persistent(),
            RegexSubscriptionMode::AllTopics => true,
        };
        // What brokers keep for themselves.
        let own = topic.local().starts_with("__") || local.contains("/__change_events");
        (wanted && !own && self.regex.is_match(local)).then_some(topic)
    }

    /// The topics that match now.
    async fn list(&self, client: &Client) -> Result<BTreeSet<String>> {
        let topics = client
            .topics_of_namespace(&self.namespace, self.list_mode())
            .await?;
        Ok(self.of(&topics))
    }

    fn of(&self, topics: &[String]) -> BTreeSet<String> {
        topics
            .iter()
            .filter_map(|topic| self.matching(topic))
            .map(|topic| topic.as_str().to_owned())
            .collect()
    }
}

/// Opens what matches and is not open, closes what is gone.
pub(crate) async fn reconcile(
    client: &Client,
    parts: &Parts,
    pattern: &TopicPattern,
    later: bool,
) -> Result<()> {
    let found = pattern.list(client).await?;
    parts.drop_ended();
    let known: BTreeSet<String> = parts.topics().into_iter().collect();
    for gone in known.difference(&found) {
        if let Ok(topic) = TopicName::parse(gone) {
            parts.remove(&topic);
        }
    }
    add(parts, found.difference(&known), later).await
}

/// One that cannot be opened does not keep the others from it; the error of the last is told.
async fn add(parts: &Parts, topics: impl Iterator<Item = &String>, later: bool) -> Result<()> {
    let mut result = Ok(());
    for topic in topics {
        let topic = TopicName::parse(topic)?;
        if let Err(error) = parts.add(&topic, false, later).await {
            tracing::debug!(topic = topic.as_str(), %error, "a topic that matches");
            result = Err(error);
        }
    }
    result
}

/// Keeps a consumer's topics what the pattern says, until the consumer is gone.
pub(crate) fn keep(
    client: &Client,
    parts: &Arc<Parts>,
    pattern: TopicPattern,
    period: Duration,
) -> tokio::task::AbortHandle {
    let (client, watched) = (client.clone(), Arc::downgrade(parts));
    let shared = Arc::clone(client.shared());
    let task = async move {
        let (mut changes, _watch) = watch(&client, &pattern);
        loop {
            let wait = tokio::time::sleep(period.max(SHORTEST_PERIOD));
            let change = tokio::select! {
                () = wait => None,
                change = changes.recv() => change,
            };
            let Some(parts) = watched.upgrade() else {
                return;
            };
            let done = match change {
                Some(Ok(TopicsChanged::Some { added, removed })) if removed.is_empty() => {
                    let known: BTreeSet<String> = parts.topics().into_iter().collect();
                    add(&parts, pattern.of(&added).difference(&known), true).await
                }
                // No watch: the list will do.
                Some(Err(error)) => {
                    tracing::debug!(pattern = pattern.text, %error, "watching topics");
                    drop(parts);
                    poll(&client, &watched, &pattern, period).await;
                    return;
                }
                None if changes.is_closed() && changes.is_empty() => {
                    drop(parts);
                    poll(&client, &watched, &pattern, period).await;
                    return;
                }
                _ => reconcile(&client, &parts, &pattern, true).await,
            };
            if let Err(error) = done {
                tracing::debug!(pattern = pattern.text, %error, "topics of the pattern");
            }
        }
    };
    shared.runtime.spawn(task).abort_handle()
}

async fn poll(
    client: &Client,
    watched: &std::sync::Weak<Parts>,
    pattern: &TopicPattern,
    period: Duration,
) {
    loop {
        let Some(parts) = watched.upgrade() else {
            return;
        };
        if let Err(error) = reconcile(client, &parts, pattern, true).await {
            tracing::debug!(pattern = pattern.text, %error, "topics of the pattern");
        }
        drop(parts);
        tokio::time::sleep(period.max(SHORTEST_PERIOD)).await;
    }
}

/// Most changes of a namespace that wait to be followed; what comes beyond is found when the list is asked for the next time.
const MAX_CHANGES: usize = 1_024;

/// Ends the watch when the task ends.
struct Watch(Client, WatchKey);

impl Drop for Watch {
    fn drop(&mut self) {
        let key = self.1;
        self.0.shared().with(|inner, now| {
            inner.watches.remove(&key);
            inner.machine.close_watch(now, key);
        });
    }
}

/// What the watch tells is read at once by the one task; each message is one change of the namespace.
fn watch(client: &Client, pattern: &TopicPattern) -> (mpsc::Receiver<Watched>, Option<Watch>) {
    let (sender, changes) = mpsc::channel(MAX_CHANGES);
    if pattern.mode != RegexSubscriptionMode::PersistentOnly {
        // Watches never tell of others.
        return (changes, None);
    }
    let key = client.shared().with(|inner, now| {
        let key =
            inner
                .machine
                .watch_topics(now, pattern.namespace.clone(), pattern.text.clone(), None);
        inner.watches.insert(key, sender);
        key
    });
    (changes, Some(Watch(client.clone(), key)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn patterns_are_of_a_namespace_and_whole_names() {
        let pattern =
            TopicPattern::parse("persistent://a/b/t-.*", RegexSubscriptionMode::default()).unwrap();
        assert_eq!((&*pattern.namespace, &*pattern.text), ("a/b", "a/b/t-.*"));
        let topics = [
            "persistent://a/b/t-1-partition-0",
            "persistent://a/b/t-1-partition-1",
            "persistent://a/b/t-2",
            "persistent://a/b/xt-2",
            "non-persistent://a/b/t-3",
            "persistent://a/b/__change_events",
        ];
        let topics: Vec<String> = topics.into_iter().map(str::to_owned).collect();
        let found: Vec<_> = pattern.of(&topics).into_iter().collect();
        assert_eq!(found, ["persistent://a/b/t-1", "persistent://a/b/t-2"]);
        let short = TopicPattern::parse("t.*", RegexSubscriptionMode::AllTopics).unwrap();
        assert_eq!(short.namespace, "public/default");
        TopicPattern::parse("a/b", RegexSubscriptionMode::AllTopics).unwrap_err();
        TopicPattern::parse("a/b/(", RegexSubscriptionMode::AllTopics).unwrap_err();
    }
}
