//! Who gets the next entry, by the type of the subscription.
//!
//! A dispatcher only decides. What a delivery costs, who holds what and what comes back are the same for all of them
//! ([`super::permits`], [`super::pending`], [`super::roster`]).

use super::chunks::{Chunk, Chunks};
use super::key_shared::KeyShared;
use super::pending::Held;
use super::roster::{Consumer, Roster};
use super::single::Single;
use super::sticky::{Refused, Slot};
use crate::engine::message::{OpenConsumer, SubType};
use crate::engine::settings::Settings;
use crate::store::log::Position;

/// What a decision looks at.
#[derive(Copy, Clone, Debug)]
pub(super) struct Candidate {
    pub(super) position: Position,
    /// The part of a chunked message that it is.
    pub(super) chunk: Option<Chunk>,
    /// The hash of its key; 0 where keys do not count.
    pub(super) key_hash: u32,
}

/// What becomes of an entry.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Choice {
    /// It goes to this consumer.
    Send(u32),
    /// It waits for a consumer that cannot take it now; the dispatcher keeps it and offers it again. What lies behind it goes on.
    Aside,
    /// Nobody can take it: the subscription waits.
    Nobody,
}

/// The part of a subscription that depends on its type.
#[derive(Debug)]
pub(super) enum Dispatcher {
    /// Exclusive and Failover.
    Single { failover: bool, single: Single },
    /// Shared.
    Shared(Chunks),
    /// Key_Shared.
    KeyShared(Box<KeyShared>),
}

impl Default for Dispatcher {
    fn default() -> Self {
        Dispatcher::Single {
            failover: false,
            single: Single::default(),
        }
    }
}

impl Dispatcher {
    /// The dispatcher that this consumer wants, without consumers yet.
    ///
    /// # Errors
    /// It asks for keys that nobody can have.
    pub(super) fn new(open: &OpenConsumer, settings: &Settings) -> Result<Self, Refused> {
        Ok(match open.sub_type {
            SubType::Exclusive | SubType::Failover => {
                Single::check(open)?;
                Dispatcher::Single {
                    failover: open.sub_type == SubType::Failover,
                    single: Single::default(),
                }
            }
            SubType::Shared => Dispatcher::Shared(Chunks::default()),
            SubType::KeyShared => {
                let keys = KeyShared::new(open.key_shared.as_ref(), settings);
                keys.check(open.key_shared.as_ref())?;
                Dispatcher::KeyShared(Box::new(keys))
            }
        })
    }

    /// What sets one Key_Shared subscription apart from another, if they are.
    pub(super) fn differs(&self, other: &Dispatcher) -> Option<(String, String)> {
        match (self, other) {
            (Dispatcher::KeyShared(one), Dispatcher::KeyShared(other))
                if one.policy() != other.policy() =>
            {
                Some((one.policy().to_string(), other.policy().to_string()))
            }
            _ => None,
        }
    }

    /// May one more consumer join?
    ///
    /// # Errors
    /// It asks for keys that it cannot have.
    pub(super) fn check(&self, open: &OpenConsumer) -> Result<(), Refused> {
        match self {
            Dispatcher::KeyShared(keys) => keys.check(open.key_shared.as_ref()),
            _ => Ok(()),
        }
    }

    /// The part of Key_Shared, if it is one.
    pub(super) fn keys(&self) -> Option<&KeyShared> {
        match self {
            Dispatcher::KeyShared(keys) => Some(keys),
            _ => None,
        }
    }

    /// Do the keys of entries count?
    pub(super) fn is_keyed(&self) -> bool {
        match self {
            Dispatcher::Single { single, .. } => single.filters(),
            Dispatcher::Shared(_) => false,
            Dispatcher::KeyShared(_) => true,
        }
    }

    /// Is an entry with this hash of its key for anybody? Otherwise it is skipped, for good.
    pub(super) fn wants(&self, key_hash: u32) -> bool {
        match self {
            Dispatcher::Single { single, .. } => single.wants(key_hash),
            Dispatcher::Shared(_) | Dispatcher::KeyShared(_) => true,
        }
    }

    pub(super) fn sub_type(&self) -> SubType {
        match self {
            Dispatcher::Single { failover: true, .. } => SubType::Failover,
            Dispatcher::Single { .. } => SubType::Exclusive,
            Dispatcher::Shared(_) => SubType::Shared,
            Dispatcher::KeyShared(_) => SubType::KeyShared,
        }
    }

    /// Do consumers hold what they were sent, each message for itself? Otherwise only the cursor knows what is open.
    pub(super) fn tracks_pending(&self) -> bool {
        !matches!(self, Dispatcher::Single { .. })
    }

    /// Is this consumer one of those that get messages, now or when a change has taken effect?
    pub(super) fn is_active(&self, index: u32) -> bool {
        match self {
            Dispatcher::Single { single, .. } => single.active() == Some(index),
            Dispatcher::Shared(_) | Dispatcher::KeyShared(_) => true,
        }
    }

    /// Is this the consumer that is served, where there is only one?
    pub(super) fn is_served(&self, index: u32) -> bool {
        match self {
            Dispatcher::Single { single, .. } => {
                single.active() == Some(index) && single.takeover_at().is_none()
            }
            Dispatcher::Shared(_) | Dispatcher::KeyShared(_) => true,
        }
    }

    /// The part of Failover, if it is one.
    pub(super) fn failover(&mut self) -> Option<&mut Single> {
        match self {
            Dispatcher::Single {
                failover: true,
                single,
            } => Some(single),
            _ => None,
        }
    }

    /// A consumer has joined. `topic` is the topic's full name, `partition` its index.
    pub(super) fn joined(
        &mut self,
        index: u32,
        consumer: &Consumer,
        open: &OpenConsumer,
        topic: &str,
        partition: i32,
        settings: &Settings,
    ) {
        match self {
            Dispatcher::Single { failover, single } => {
                single.join(index, consumer, topic);
                if !*failover {
                    single.want(index, open);
                    single.elect(partition, settings);
                }
            }
            Dispatcher::Shared(_) => {}
            Dispatcher::KeyShared(keys) => keys.joined(index, consumer, open.key_shared.as_ref()),
        }
    }

    /// A consumer has left, which held these entries. Answers what is to be replayed.
    pub(super) fn left(&mut self, index: u32, held: Vec<(Position, Held)>) -> Vec<Position> {
        let positions = |held: Vec<(Position, Held)>| held.into_iter().map(|(at, _)| at);
        match self {
            Dispatcher::Single { single, .. } => {
                single.leave(index);
                positions(held).collect()
            }
            Dispatcher::Shared(chunks) => {
                let waited = chunks.left(index);
                positions(held).chain(waited).collect()
            }
            Dispatcher::KeyShared(keys) => {
                keys.left(index, held);
                Vec::new()
            }
        }
    }

    /// A run of dispatch begins.
    pub(super) fn begin_run(
        &mut self,
        roster: &Roster,
        mark_delete: Position,
        settings: &Settings,
    ) {
        if let Dispatcher::KeyShared(keys) = self {
            keys.begin_run(roster, mark_delete, settings);
        }
    }

    /// Can anything be handed out?
    pub(super) fn is_ready(&self, roster: &Roster) -> bool {
        match self {
            Dispatcher::Single { single, .. } => single.is_ready(roster),
            Dispatcher::Shared(_) | Dispatcher::KeyShared(_) => roster.is_ready(),
        }
    }

    /// Who gets an entry. An entry that is put aside is the dispatcher's from then on.
    pub(super) fn choose(
        &mut self,
        roster: &mut Roster,
        candidate: &Candidate,
        settings: &Settings,
    ) -> Choice {
        let to = match self {
            Dispatcher::Single { single, .. } => single.choose(roster, settings),
            Dispatcher::Shared(chunks) => {
                // A chunk follows the chunks before it, whoever's turn it is.
                let owner = candidate.chunk.and_then(|chunk| chunks.owner(chunk));
                match owner.and_then(|owner| roster.get(owner).map(|c| (owner, c))) {
                    Some((owner, consumer)) if consumer.available() => Some(owner),
                    Some((owner, _)) => {
                        return match chunks.park(candidate.position, owner) {
                            true => Choice::Aside,
                            false => Choice::Nobody,
                        };
                    }
                    None => roster.pick(settings.dispatcher_max_round_robin_batch_size),
                }
            }
            Dispatcher::KeyShared(keys) => return keys.choose(roster, candidate),
        };
        to.map_or(Choice::Nobody, Choice::Send)
    }

    /// An entry goes to the consumer that was chosen.
    pub(super) fn sent(&mut self, candidate: &Candidate, index: u32) {
        if let (Dispatcher::Shared(chunks), Some(chunk)) = (self, candidate.chunk) {
            chunks.sent(chunk, index);
        }
    }

    /// The slot that an entry's key falls into; 0 where keys do not count.
    pub(super) fn slot(&self, candidate: &Candidate) -> Slot {
        self.keys().map_or(0, |keys| keys.slot(candidate))
    }

    /// A consumer is to hold an entry. False if it must not, after all.
    pub(super) fn admit(&mut self, index: u32, candidate: &Candidate) -> bool {
        match self {
            Dispatcher::KeyShared(keys) => keys.admit(index, candidate),
            _ => true,
        }
    }

    /// A consumer no longer holds an entry. True if that lets something go.
    pub(super) fn released(&mut self, index: u32, slot: Slot) -> bool {
        match self {
            Dispatcher::KeyShared(keys) => keys.released(index, slot),
            _ => false,
        }
    }

    /// Takes back an entry that nobody holds. False if it belongs into the replay set.
    pub(super) fn put_back(&mut self, position: Position, slot: Slot) -> bool {
        match self {
            Dispatcher::KeyShared(keys) => {
                keys.put_back(position, slot);
                true
            }
            _ => false,
        }
    }

    /// May entries be read that never were?
    pub(super) fn reads_on(&self) -> bool {
        self.keys().is_none_or(KeyShared::reads_on)
    }

    /// Could an entry that is put aside go now? For tests: it looks at everything.
    pub(super) fn has_aside(&self, roster: &Roster) -> bool {
        match self {
            Dispatcher::Single { .. } => false,
            Dispatcher::Shared(chunks) => chunks
                .parked()
                .any(|(_, owner)| roster.get(owner).is_some_and(Consumer::available)),
            Dispatcher::KeyShared(keys) => keys.has_next(roster),
        }
    }

    /// The first entry put aside that can go now.
    pub(super) fn aside(&mut self, roster: &Roster) -> Option<Position> {
        match self {
            Dispatcher::Single { .. } => None,
            Dispatcher::Shared(chunks) => chunks.parked().find_map(|(position, owner)| {
                roster
                    .get(owner)
                    .is_some_and(Consumer::available)
                    .then_some(position)
            }),
            Dispatcher::KeyShared(keys) => keys.next(roster),
        }
    }

    /// Is this entry put aside?
    pub(super) fn is_aside(&self, position: Position) -> bool {
        match self {
            Dispatcher::Single { .. } => false,
            Dispatcher::Shared(chunks) => chunks.is_parked(position),
            Dispatcher::KeyShared(keys) => keys.waits(position),
        }
    }

    /// An entry is put aside no longer: it goes out, or is acknowledged. True if that makes room to read on.
    pub(super) fn forget(&mut self, position: Position) -> bool {
        match self {
            Dispatcher::Single { .. } => false,
            Dispatcher::Shared(chunks) => {
                chunks.unpark(position);
                false
            }
            Dispatcher::KeyShared(keys) => keys.forget(position),
        }
    }

    /// Forgets all entries.
    pub(super) fn rewind(&mut self) {
        match self {
            Dispatcher::Single { single, .. } => single.end_run(),
            Dispatcher::Shared(chunks) => chunks.clear(),
            Dispatcher::KeyShared(keys) => keys.rewind(),
        }
    }

    /// A run of dispatch is over.
    pub(super) fn end_run(&mut self) {
        if let Dispatcher::Single { single, .. } = self {
            single.end_run();
        }
    }
}
