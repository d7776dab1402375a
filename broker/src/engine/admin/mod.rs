//! Administration: what HTTP asks of the topics of a core, and what they answer.
//!
//! A request comes by mailbox like any other message, so it takes its place in the order of events, and its answer is
//! handed to the runtime as an effect. What changes something is answered once it is durable.

mod answer;

pub use self::answer::{
    Answer, ConsumerStats, CursorStats, InternalStats, LedgerStats, ProducerStats, SessionInfo,
    SubscriptionStats, TopicStats,
};

use super::message::SessionRef;
use super::name::TopicName;
use crate::store::log::Position;

/// Who waits for an answer. Dropped without one, it says that there will be none.
pub struct Asker(Box<dyn FnOnce(Answer) + Send>);

impl Asker {
    /// `done` is called with the answer, on the core's thread, and must not block.
    pub fn new(done: impl FnOnce(Answer) + Send + 'static) -> Self {
        Self(Box::new(done))
    }

    /// Gives the answer. Only for the runtime: the engine leaves answers as effects.
    pub fn answer(self, answer: Answer) {
        (self.0)(answer);
    }
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}

/// A question to one core.
#[derive(Debug)]
pub enum Request {
    /// The topics of a namespace (`tenant/namespace`) that live here. Answered by [`Answer::Names`].
    Topics {
        /// The namespace.
        namespace: String,
    },
    /// Who is at the other end of these sessions of this core. Answered by [`Answer::Sessions`], in order.
    Sessions(Vec<SessionRef>),
    /// Makes topics. Answered by [`Answer::Created`].
    Create {
        /// Their names; all fall to the same shard, one of this core.
        names: Vec<TopicName>,
        /// Properties of each.
        properties: Vec<(String, String)>,
    },
    /// About one topic that lives here.
    Topic {
        /// The topic.
        name: TopicName,
        /// What about it.
        ask: Ask,
    },
}

/// A question about a topic, or a change of it. A missing topic is [`Answer::NoTopic`].
#[derive(Debug)]
pub enum Ask {
    /// Is it there, and is somebody connected? [`Answer::Clients`].
    Clients,
    /// Deletes it: refused with [`Answer::Clients`] while somebody is connected, unless `force` closes them.
    Delete {
        /// Close producers and consumers.
        force: bool,
    },
    /// [`Answer::Stats`].
    Stats,
    /// [`Answer::Internal`].
    InternalStats,
    /// The last message: [`Answer::Id`].
    LastMessageId,
    /// Closes producers and consumers, which come back, and begins to count anew.
    Unload,
    /// It takes no message any more. Answered with its last one: [`Answer::Id`]; again the same.
    Terminate,
    /// Every subscription moves to the end, and what was stored is removed.
    Truncate,
    /// [`Answer::Properties`].
    Properties,
    /// Sets properties; `None` removes one.
    SetProperties(Vec<(String, Option<String>)>),
    /// Names of all subscriptions: [`Answer::Names`].
    Subscriptions,
    /// The first message published at this time or later, milliseconds since the Unix epoch: [`Answer::Id`].
    MessageIdByTime(u64),
    /// The n-th entry, from 1, counted from the first or from the last: [`Answer::Entry`].
    Examine {
        /// Counted from the first entry.
        earliest: bool,
        /// Which one, from 1.
        number: u64,
    },
    /// One entry by its id: [`Answer::Entry`].
    Entry(Position),
    /// Expires messages published before this time on every subscription.
    ExpireAll {
        /// Milliseconds since the Unix epoch.
        before_ms: u64,
    },
    /// About one of its subscriptions.
    Subscription {
        /// Its name.
        name: String,
        /// What about it.
        ask: SubscriptionAsk,
    },
}

/// Where a cursor is to stand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CursorTarget {
    /// The next entry; [`Position::EARLIEST`] and [`Position::LATEST`] have their meaning.
    pub position: Position,
    /// The next message of that entry, if it is a batch; below 0: its first.
    pub batch_index: i32,
    /// The message named is not to be delivered itself.
    pub excluded: bool,
}

/// A question about a subscription, or a change of it. A missing one is [`Answer::NoSubscription`].
///
/// Consumers that are connected when the cursor moves are closed, and come back.
#[derive(Debug)]
pub enum SubscriptionAsk {
    /// Makes it: [`Answer::Exists`] if it is there.
    Create {
        /// Where it starts.
        at: CursorTarget,
        /// Its properties.
        properties: Vec<(String, String)>,
        /// A missing topic may be made.
        create_topic: bool,
    },
    /// Deletes it: refused with [`Answer::Clients`] while consumers are connected, unless `force` closes them.
    Delete {
        /// Close consumers.
        force: bool,
    },
    /// Acknowledges the next `n` unacknowledged entries.
    Skip(u64),
    /// Acknowledges everything.
    SkipAll,
    /// Back or forth to the first message published at this time or later, milliseconds since the Unix epoch.
    ResetToTime(u64),
    /// Back or forth to a message.
    ResetTo(CursorTarget),
    /// Acknowledges what was published before this time, milliseconds since the Unix epoch.
    /// [`Answer::NothingToExpire`] if nothing was.
    ExpireBefore(u64),
    /// Acknowledges everything up to a message, that one included if it is not `excluded`.
    ExpireTo(CursorTarget),
    /// The n-th unacknowledged entry, from 1: [`Answer::Entry`].
    Peek(u64),
    /// [`Answer::Properties`].
    Properties,
}
