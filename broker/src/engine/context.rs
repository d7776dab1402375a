//! What every part of the engine may reach: settings, the way to other parts and cores, and the effects that the runtime carries out.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use vela_codec::Accounting;
use vela_limiter::HoldCounts;

use super::admin::{Answer, Asker};
use super::message::{CoreId, Message, TerminateError};
use super::metadata::Metadata;
use super::name::TopicName;
use super::settings::{ServiceAddress, Settings};
use super::time::Now;
use super::watch::WatchIndex;
use crate::store::chunk::Chunk;
use crate::store::log::Position;

/// A connection of this core, as the runtime names it.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct ConnId {
    /// The slot.
    pub slot: u32,
    /// Which connection of the slot.
    pub generation: u32,
}

/// A change of the metadata store that the engine asks for.
#[derive(Clone, Debug)]
pub struct MetadataRequest {
    /// Comes back with the answer.
    pub token: u64,
    /// The key.
    pub key: String,
    /// The new value; `None` deletes.
    pub value: Option<Bytes>,
    /// The version that must be there, 0 = the key must be absent, `None` = any.
    pub expected: Option<u64>,
}

/// What the runtime has to do. Every list is drained by the runtime at the end of a turn; its bound is what one turn can produce.
#[derive(Default, Debug)]
pub struct Effects {
    /// Connections with output, each once.
    pub dirty: Vec<ConnId>,
    /// Connections that want frames again.
    pub resumed: Vec<ConnId>,
    /// Connections to close once their output has been tried.
    pub close: Vec<ConnId>,
    /// Messages to other cores, by core.
    pub mail: Vec<Vec<Message>>,
    /// Chunks to write, by lane, in order.
    pub writes: Vec<(u32, Chunk)>,
    /// Chunks to read back, by lane.
    pub reads: Vec<(u32, u64)>,
    /// Index checkpoints: lane, the last chunk each covers, its bytes.
    pub checkpoints: Vec<(u32, u64, Bytes)>,
    /// Segments that hold nothing any more.
    pub drop_segments: Vec<(u32, Vec<u64>)>,
    /// Metadata changes.
    pub metadata: Vec<MetadataRequest>,
    /// Answers to administration.
    pub admin: Vec<(Asker, Answer)>,
    /// Metadata to read: token, key. Answered by [`Engine::metadata_read`](super::Engine::metadata_read).
    pub metadata_reads: Vec<(u64, String)>,
    /// Answers to `Engine::terminate`, by its token.
    pub terminated: Vec<(u64, Result<Position, TerminateError>)>,
}

/// Counters since the start; the runtime turns them into metrics.
#[derive(Default, Clone, Debug)]
pub struct Counters {
    /// Messages published, as counted by the producers.
    pub messages_in: u64,
    /// Payload bytes published (checksum, metadata and payload).
    pub bytes_in: u64,
    /// Messages delivered.
    pub messages_out: u64,
    /// Bytes delivered.
    pub bytes_out: u64,
    /// Messages of non-persistent topics that nobody could take: one per subscription that missed it, or that its connection sent while
    /// too many were unanswered.
    pub messages_dropped: u64,
    /// Acknowledged ids.
    pub acks: u64,
    /// SENDs refused.
    pub publish_errors: u64,
    /// Times a topic's rate held a connection.
    pub topic_rate_holds: u64,
    /// Connections closed because of what they sent.
    pub protocol_errors: u64,
    /// Holds of this core's connections, and their ends.
    pub holds: HoldCounts,
}

/// The shared part of one core's engine.
pub struct Context {
    /// This core.
    pub core: CoreId,
    /// How many there are.
    pub cores: CoreId,
    /// Shards of the data directory.
    pub shards: u32,
    /// Settings.
    pub settings: Arc<Settings>,
    /// Bytes of unanswered SENDs at which the connections of this core wait; 0 = no limit.
    pub pending_bytes_limit: u64,
    /// Bytes of SENDs of this core's connections that are not answered.
    pub pending_bytes: u64,
    /// They hold every connection of the core.
    pub bytes_held: bool,
    /// How many of its connections publish.
    pub(super) publishers: Publishers,
    /// Some publish rate limits something: each publish is charged before the next frame of its connection is handed on.
    pub rate_limited: bool,
    /// Where clients are sent.
    pub service: ServiceAddress,
    /// This core's copy of the small metadata.
    pub metadata: Metadata,
    /// Effects of this turn.
    pub effects: Effects,
    /// What copies of receive memory are counted in, as that memory is.
    pub accounting: Option<Arc<dyn Accounting>>,
    /// Counters.
    pub counters: Counters,
    /// Units that commands which cost much may still use in this turn.
    pub(super) turn_units: u32,
    /// Policies changed: rates are to be taken over at the end of the turn.
    pub(super) policies_changed: bool,
    /// Who wants to hear of new and deleted topics.
    pub(super) watch: WatchIndex,
    pub(super) local: VecDeque<Message>,
}

/// Connections of a core that have published lately: in the running second or in the one before it.
#[derive(Default, Debug)]
pub(super) struct Publishers {
    second: u64,
    now: u32,
    before: u32,
}

impl Publishers {
    /// A connection publishes; `last` is the second in which it last did, 0 before its first time.
    pub(super) fn note(&mut self, last: &mut u64, now: Now) {
        let second = now.ms / 1000 + 1;
        if *last == second {
            return;
        }
        *last = second;
        if self.second != second {
            self.before = if self.second + 1 == second {
                self.now
            } else {
                0
            };
            (self.second, self.now) = (second, 0);
        }
        self.now += 1;
    }

    fn count(&self) -> u32 {
        self.now.max(self.before)
    }
}

/// Bytes of unanswered SENDs that the publishing connections of a core share, if there are several: two chunks, one that is written and
/// one that fills meanwhile. More would only make everybody wait longer: with three, a small message beside a flood of 1 MiB ones waited
/// twice as long, for a fifth more of the flood.
const SHARED_BYTES: u64 = 2 << 20;

impl Context {
    /// Bytes of unanswered SENDs above which a connection waits for its own, so that those of others do not wait behind them.
    pub(super) fn publish_share(&self) -> u64 {
        match self.several_publish() {
            true => SHARED_BYTES / u64::from(self.publishers.count()),
            false => u64::MAX,
        }
    }

    /// Whether several connections publish and are to have equal parts.
    pub(super) fn several_publish(&self) -> bool {
        self.settings.memory_fairness && self.publishers.count() > 1
    }

    /// Takes over settings.
    pub(super) fn configure(&mut self, settings: Arc<Settings>) {
        let bytes = u64::try_from(settings.max_message_publish_buffer_bytes).unwrap_or(0);
        self.pending_bytes_limit = match bytes {
            0 => 0,
            bytes => (bytes / u64::from(self.cores.max(1))).max(1),
        };
        self.settings = settings;
        self.look_for_rates();
    }

    /// Finds out whether any publish rate is set.
    pub(super) fn look_for_rates(&mut self) {
        let settings = &self.settings;
        self.rate_limited = settings.max_publish_rate_per_topic_in_messages > 0
            || settings.max_publish_rate_per_topic_in_bytes > 0
            || settings.broker_publisher_throttling_max_message_rate > 0
            || settings.broker_publisher_throttling_max_byte_rate > 0
            || self.metadata.has_rates();
    }

    /// May a subscription of this topic appear on first use?
    pub(super) fn auto_subscriptions(&self, topic: &TopicName) -> bool {
        let own = self.metadata.topic_policy(topic);
        let own = own.and_then(|own| own.auto_subscriptions);
        let namespace = || {
            self.metadata
                .namespace(topic.namespace())?
                .auto_subscriptions
        };
        own.or_else(namespace)
            .unwrap_or(self.settings.allow_auto_subscription_creation)
    }

    /// The core that a shard lives on.
    pub fn core_of_shard(&self, shard: u32) -> CoreId {
        (shard % u32::from(self.cores.max(1))) as CoreId
    }

    /// Sends a message to a core; one for this core is handled before the turn ends.
    pub fn post(&mut self, core: CoreId, message: Message) {
        if core == self.core {
            self.local.push_back(message);
        } else if let Some(mail) = self.effects.mail.get_mut(usize::from(core)) {
            mail.push(message);
        }
    }
}
