//! Who gets the next entry, by the type of the subscription.
//!
//! A dispatcher only decides. What a delivery costs, who holds what and what comes back are the same for all of them
//! ([`super::permits`], [`super::pending`], [`super::roster`]).

use super::chunks::{Chunk, Chunks};
use super::roster::{Consumer, Roster};
use super::single::Single;
use crate::engine::message::SubType;
use crate::engine::settings::Settings;
use crate::store::log::Position;

/// What a decision looks at.
#[derive(Copy, Clone, Debug)]
pub(super) struct Candidate {
    pub(super) position: Position,
    /// The part of a chunked message that it is.
    pub(super) chunk: Option<Chunk>,
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
    /// The dispatcher of a type; `None` for those that are not served.
    pub(super) fn new(sub_type: SubType) -> Option<Self> {
        match sub_type {
            SubType::Exclusive | SubType::Failover => Some(Dispatcher::Single {
                failover: sub_type == SubType::Failover,
                single: Single::default(),
            }),
            SubType::Shared => Some(Dispatcher::Shared(Chunks::default())),
            SubType::KeyShared => None,
        }
    }

    pub(super) fn sub_type(&self) -> SubType {
        match self {
            Dispatcher::Single { failover: true, .. } => SubType::Failover,
            Dispatcher::Single { .. } => SubType::Exclusive,
            Dispatcher::Shared(_) => SubType::Shared,
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
            Dispatcher::Shared(_) => true,
        }
    }

    /// Is this the consumer that is served, where there is only one?
    pub(super) fn is_served(&self, index: u32) -> bool {
        match self {
            Dispatcher::Single { single, .. } => {
                single.active() == Some(index) && single.takeover_at().is_none()
            }
            Dispatcher::Shared(_) => true,
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
        topic: &str,
        partition: i32,
        settings: &Settings,
    ) {
        if let Dispatcher::Single { failover, single } = self {
            single.join(index, consumer, topic);
            if !*failover {
                single.elect(partition, settings);
            }
        }
    }

    /// A consumer has left. Answers what waited for it and is free to go to others.
    pub(super) fn left(&mut self, index: u32) -> Vec<Position> {
        match self {
            Dispatcher::Single { single, .. } => {
                single.leave(index);
                Vec::new()
            }
            Dispatcher::Shared(chunks) => chunks.left(index),
        }
    }

    /// Can anything be handed out?
    pub(super) fn is_ready(&self, roster: &Roster) -> bool {
        match self {
            Dispatcher::Single { single, .. } => single.is_ready(roster),
            Dispatcher::Shared(_) => roster.is_ready(),
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
        };
        to.map_or(Choice::Nobody, Choice::Send)
    }

    /// An entry goes to the consumer that was chosen.
    pub(super) fn sent(&mut self, candidate: &Candidate, index: u32) {
        if let (Dispatcher::Shared(chunks), Some(chunk)) = (self, candidate.chunk) {
            chunks.sent(chunk, index);
        }
    }

    /// The first entry put aside that can go now.
    pub(super) fn aside(&self, roster: &Roster) -> Option<Position> {
        match self {
            Dispatcher::Single { .. } => None,
            Dispatcher::Shared(chunks) => chunks.parked().find_map(|(position, owner)| {
                roster
                    .get(owner)
                    .is_some_and(Consumer::available)
                    .then_some(position)
            }),
        }
    }

    /// Is this entry put aside?
    pub(super) fn is_aside(&self, position: Position) -> bool {
        match self {
            Dispatcher::Single { .. } => false,
            Dispatcher::Shared(chunks) => chunks.is_parked(position),
        }
    }

    /// An entry is put aside no longer: it goes out, or is acknowledged.
    pub(super) fn forget(&mut self, position: Position) {
        if let Dispatcher::Shared(chunks) = self {
            chunks.unpark(position);
        }
    }

    /// Forgets all entries.
    pub(super) fn rewind(&mut self) {
        match self {
            Dispatcher::Single { single, .. } => single.end_run(),
            Dispatcher::Shared(chunks) => chunks.clear(),
        }
    }

    /// A run of dispatch is over.
    pub(super) fn end_run(&mut self) {
        if let Dispatcher::Single { single, .. } = self {
            single.end_run();
        }
    }
}
