//! Administration of the topics of a core.

mod inquiries;
mod stats;
mod subscriptions;
mod topics;

pub(super) use self::inquiries::Inquiry;

use self::inquiries::Reading;
use super::{TOO_MANY, Topics};
use crate::engine::admin::{Answer, Ask, Asker, Request, SubscriptionAsk};
use crate::engine::context::Context;
use crate::engine::message::Message;
use crate::engine::message::TerminateError;
use crate::engine::name::TopicName;
use crate::engine::time::Now;
use crate::store::log::Position;

/// Tokens of terminations that HTTP asked for have this bit.
const BY_ADMIN: u64 = 1 << 63;

impl Topics {
    /// A question of HTTP.
    pub(crate) fn admin(&mut self, cx: &mut Context, asker: Asker, request: Request, now: Now) {
        match request {
            Request::Topics { namespace } => {
                reply(cx, asker, Answer::Names(self.names_of(&namespace)));
            }
            Request::Create { names, properties } => {
                self.create_topics(cx, asker, &names, &properties, now);
            }
            Request::Topic { name, ask } => self.ask(cx, asker, &name, ask, now),
            // Sessions are not the topics' to know.
            Request::Sessions(_) => reply(cx, asker, Answer::Sessions(Vec::new())),
        }
    }

    fn ask(&mut self, cx: &mut Context, asker: Asker, name: &TopicName, ask: Ask, now: Now) {
        let slot = match (self.by_name.get(name.as_str()), &ask) {
            (Some(slot), _) => *slot,
            (
                None,
                Ask::Subscription {
                    ask:
                        SubscriptionAsk::Create {
                            create_topic: true, ..
                        },
                    ..
                },
            ) if self.is_full(cx, name, 1) => {
                return reply(cx, asker, Answer::Conflict(TOO_MANY.into()));
            }
            (
                None,
                Ask::Subscription {
                    ask:
                        SubscriptionAsk::Create {
                            create_topic: true, ..
                        },
                    ..
                },
            ) => match self.find_or_create(cx, name, true, now) {
                Some(slot) => slot,
                None => return reply(cx, asker, Answer::NoTopic),
            },
            (None, _) => return reply(cx, asker, Answer::NoTopic),
        };
        if needs_log(&ask)
            && let Some(topic) = self.topics.get(slot as usize)
            && topic.is_volatile()
        {
            let text = format!("topic {} is non-persistent: it keeps nothing", topic.name);
            return reply(cx, asker, Answer::NotAllowed(text));
        }
        if changes(&ask)
            && let Some(text) = self.fence_of(name)
        {
            return reply(cx, asker, Answer::Conflict(text));
        }
        match ask {
            Ask::Clients => {
                let answer = self.connected(slot);
                reply(cx, asker, answer);
            }
            Ask::Delete { force } => self.delete_topic(cx, asker, slot, force, now),
            Ask::Stats => {
                let answer = self.topic_stats(slot, now);
                reply(cx, asker, answer);
            }
            Ask::InternalStats => {
                let answer = self.internal_stats(slot);
                reply(cx, asker, answer);
            }
            Ask::Subscriptions => {
                let names = self.topics.get(slot as usize).map(|topic| {
                    let names = topic.sub_names.keys().cloned();
                    names.collect()
                });
                reply(cx, asker, Answer::Names(names.unwrap_or_default()));
            }
            Ask::Unload => self.unload(cx, asker, slot, now),
            Ask::Terminate => {
                self.terminations += 1;
                let token = self.terminations;
                self.terminating.insert(token, asker);
                self.terminate(cx, cx.core, token | BY_ADMIN, name.clone());
            }
            Ask::Truncate => self.truncate(cx, asker, slot, now),
            Ask::Properties => {
                let answer = self.properties(slot);
                reply(cx, asker, answer);
            }
            Ask::SetProperties(changes) => self.set_properties(cx, asker, slot, &changes),
            Ask::LastMessageId => self.inquire(cx, asker, slot, Reading::LastMessageId),
            Ask::MessageIdByTime(time) => self.search(cx, asker, slot, time, inquiries::Then::Id),
            Ask::Examine { earliest, number } => {
                let reading = self.examine(slot, earliest, number);
                self.read_or_none(cx, asker, slot, reading);
            }
            Ask::Entry(position) => self.entry(cx, asker, slot, position),
            Ask::ExpireAll { before_ms } => {
                self.search(
                    cx,
                    asker,
                    slot,
                    before_ms,
                    inquiries::Then::Expire { subscription: None },
                );
            }
            Ask::Subscription { name, ask } => {
                self.subscription(cx, asker, slot, name, ask, now);
            }
        }
    }

    /// Answers once everything appended so far is durable; without a lane at once.
    fn reply_durable(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        lane: impl Into<Option<usize>>,
        answer: Answer,
    ) {
        let core = cx.core;
        let answer = Box::new(answer);
        self.after_log(cx, lane, core, Message::AdminAnswer { asker, answer });
    }
}

impl Topics {
    /// The outcome of a termination, if HTTP asked for it.
    pub(super) fn terminated_by_admin(
        &mut self,
        cx: &mut Context,
        token: u64,
        result: &Result<Position, TerminateError>,
    ) -> bool {
        if token & BY_ADMIN == 0 {
            return false;
        }
        if let Some(asker) = self.terminating.remove(&(token & !BY_ADMIN)) {
            let answer = match result {
                Ok(position) => Answer::Id {
                    position: *position,
                    batch: None,
                },
                Err(TerminateError::NotFound) => Answer::NoTopic,
                Err(error) => Answer::Failed(format!("the topic was not terminated: {error:?}")),
            };
            reply(cx, asker, answer);
        }
        true
    }
}

/// Is the question about entries or cursors, which a non-persistent topic has none of?
fn needs_log(ask: &Ask) -> bool {
    match ask {
        Ask::Clients
        | Ask::Delete { .. }
        | Ask::Stats
        | Ask::InternalStats
        | Ask::Subscriptions
        | Ask::Unload
        | Ask::Terminate
        | Ask::Truncate
        | Ask::Properties
        | Ask::SetProperties(_) => false,
        Ask::Subscription { ask, .. } => !matches!(
            ask,
            SubscriptionAsk::Delete { .. } | SubscriptionAsk::Properties
        ),
        Ask::LastMessageId
        | Ask::MessageIdByTime(_)
        | Ask::Examine { .. }
        | Ask::Entry(_)
        | Ask::ExpireAll { .. } => true,
    }
}

/// Does it change something of a topic that would go with it?
fn changes(ask: &Ask) -> bool {
    match ask {
        Ask::Clients
        | Ask::Delete { .. }
        | Ask::Stats
        | Ask::InternalStats
        | Ask::Subscriptions
        | Ask::Properties
        | Ask::LastMessageId
        | Ask::MessageIdByTime(_)
        | Ask::Examine { .. }
        | Ask::Entry(_) => false,
        Ask::Subscription { ask, .. } => !matches!(ask, SubscriptionAsk::Properties),
        Ask::Unload
        | Ask::Terminate
        | Ask::Truncate
        | Ask::SetProperties(_)
        | Ask::ExpireAll { .. } => true,
    }
}

/// Answers at once.
fn reply(cx: &mut Context, asker: Asker, answer: Answer) {
    cx.effects.admin.push((asker, answer));
}
