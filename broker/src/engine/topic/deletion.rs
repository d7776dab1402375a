//! Topics that go: what the metadata store keeps of them goes first, then the topic itself.
//!
//! While the store is asked, the topic is fenced: it is still there, but nobody joins it and nothing of it is changed. Who comes then is told
//! to come again, as by Pulsar, and gets a topic of its own. So what is acknowledged to a newcomer - its messages, its subscription, its
//! schema - is never part of what goes. A stop in between leaves a topic without its schema and policies, which is deleted again.

use std::collections::BTreeMap;

use super::lanes::Pending;
use super::{Topic, Topics};
use crate::engine::admin::{Answer, Asker};
use crate::engine::context::{Context, MetadataRequest};
use crate::engine::message::Message;
use crate::engine::metadata;
use crate::engine::name::{Domain, TopicName};
use crate::engine::schema::SchemaId;
use crate::engine::time::Now;
use crate::store::log::Record;

/// Tokens of this part's metadata requests have this bit.
pub(in crate::engine) const TOKEN: u64 = 1 << 62;
/// What a newcomer is told.
const FENCED: &str = "is being deleted: come again";

/// The deletions of a core that wait for the metadata store.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    /// The topics by the tokens of the requests.
    waiting: BTreeMap<u64, u32>,
    next_token: u64,
    /// How many topics are fenced.
    fenced: usize,
}

impl Deletions {
    /// How many are under way.
    pub(super) fn len(&self) -> usize {
        self.fenced
    }
}

/// A topic that is on its way out.
#[derive(Debug)]
pub(super) struct Deletion {
    /// Answers of the metadata store that have not come.
    answers: usize,
    /// What the store said if it failed.
    failed: Option<String>,
    /// Who in HTTP waits for it; nobody if the topic goes because nobody uses it. Bounded as questions of HTTP are.
    askers: Vec<Asker>,
}

impl Topic {
    /// Why nobody may join it or change it now, if it is on its way out.
    pub(super) fn fence(&self) -> Option<String> {
        self.deletion
            .is_some()
            .then(|| format!("Topic {} {FENCED}", self.name))
    }
}

impl Topics {
    /// The same for a topic by its name.
    pub(super) fn fence_of(&self, name: &TopicName) -> Option<String> {
        let slot = self.by_name.get(name.as_str())?;
        self.topics.get(*slot as usize)?.fence()
    }

    /// Deletes a topic whose clients are gone or are to be closed. `asker` hears of the outcome.
    pub(super) fn delete(&mut self, cx: &mut Context, asker: Option<Asker>, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return answer(cx, asker, || Answer::NoTopic);
        };
        if let Some(deletion) = &mut topic.deletion {
            deletion.askers.extend(asker);
            return;
        }
        let keys = kept_of(cx, &topic.name);
        topic.deletion = Some(Box::new(Deletion {
            answers: keys.len(),
            failed: None,
            askers: asker.into_iter().collect(),
        }));
        self.deletions.fenced += 1;
        if keys.is_empty() {
            return self.finish_deletion(cx, slot, now);
        }
        self.close_clients(cx, slot, false, now);
        for key in keys {
            self.deletions.next_token += 1;
            let token = TOKEN | self.deletions.next_token;
            self.deletions.waiting.insert(token, slot);
            cx.effects.metadata.push(MetadataRequest {
                token,
                key,
                value: None,
                expected: None,
            });
        }
    }

    /// The metadata store answered one of the requests.
    pub(in crate::engine) fn metadata_done(
        &mut self,
        cx: &mut Context,
        token: u64,
        result: Result<bool, String>,
        now: Now,
    ) {
        let Some(slot) = self.deletions.waiting.remove(&token) else {
            return;
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(deletion) = &mut topic.deletion else {
            return;
        };
        // That there was nothing is as good.
        if let Err(text) = result {
            deletion.failed = Some(text);
        }
        deletion.answers = deletion.answers.saturating_sub(1);
        if deletion.answers == 0 {
            self.finish_deletion(cx, slot, now);
        }
    }

    fn finish_deletion(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(deletion) = topic.deletion.take() else {
            return;
        };
        self.deletions.fenced = self.deletions.fenced.saturating_sub(1);
        if let Some(text) = deletion.failed {
            // It stays, and is tried again when nobody has used it for a while longer.
            topic.unused_since = None;
            tracing::warn!(topic = %topic.name, %text, "the metadata of a topic could not be deleted: the topic stays");
            let text = format!(
                "the metadata of {} could not be deleted: {text}",
                topic.name
            );
            for asker in deletion.askers {
                answer(cx, Some(asker), || Answer::Failed(text.clone()));
            }
            return;
        }
        let (lane, id) = (topic.log(), topic.state.id);
        self.retire(cx, slot, now);
        if let Some(seat) = lane.and_then(|lane| self.lanes.get_mut(lane)) {
            seat.append(&Record::TopicDeleted { topic: id });
            seat.push_behind(Pending::Vacate { topic: slot });
        }
        self.volatile_gone(slot);
        for asker in deletion.askers {
            let done = Message::AdminAnswer {
                asker,
                answer: Box::new(Answer::Done),
            };
            let core = cx.core;
            self.after_log(cx, lane, core, done);
        }
    }
}

fn answer(cx: &mut Context, asker: Option<Asker>, answer: impl FnOnce() -> Answer) {
    if let Some(asker) = asker {
        cx.effects.admin.push((asker, answer()));
    }
}

/// What the metadata store keeps of one topic: its schemas and its own policies. What partitions have in common stays with the partitioned
/// topic. Schemas have the same name for both domains, and are left to the persistent one.
fn kept_of(cx: &Context, name: &TopicName) -> Vec<String> {
    let mut keys = Vec::new();
    if name.partition() >= 0 {
        return keys;
    }
    if name.domain() == Domain::Persistent {
        keys.push(SchemaId::of(name).key());
    }
    if cx.metadata.topic_policy(name).is_some() {
        keys.push(metadata::topic_policies_key(name));
    }
    keys
}
