//! Who may produce to a topic: access modes and the topic's epoch (PIP-68).
//!
//! Each time a producer gets a topic for itself the topic's epoch rises, and is durable before the producer hears of it. A producer that comes
//! back names the epoch it had: one that was overtaken is fenced for good.

use std::collections::VecDeque;

use vela_proto::ServerError;

use super::lanes::LaneSeat;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{AccessMode, ClientRef, Message, OpenProducer};
use crate::store::log::{Record, TopicState};

/// The topic property that holds the epoch, in decimal, as Pulsar names it.
const EPOCH: &str = "pulsar.topic.epoch";
/// Producers that may wait for one topic; more are refused.
pub(super) const MAX_QUEUED: usize = 1000;

/// The state of a topic's access.
#[derive(Default)]
pub(super) struct Access {
    /// The last one granted; `None` = nobody ever had the topic for itself.
    pub(super) epoch: Option<u64>,
    /// The one producer that is connected has the topic for itself.
    pub(super) exclusive: bool,
    /// Producers that wait for it, in the order they came. Their `name` is set.
    pub(super) queue: VecDeque<(ClientRef, Box<OpenProducer>)>,
}

/// What becomes of a producer.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// It may produce, together with others.
    Share,
    /// It gets the topic for itself, with this epoch; whoever is there has to go first.
    Own(u64),
    /// It waits for its turn.
    Queue,
    /// It may not.
    Refuse(ServerError, String),
}

impl Access {
    pub(super) fn new(state: &TopicState) -> Self {
        let epoch = state.properties.get(EPOCH);
        Access {
            epoch: epoch
                .and_then(|value| std::str::from_utf8(value).ok())
                .and_then(|value| value.parse().ok()),
            ..Access::default()
        }
    }

    /// Decides about a producer of a topic that has `connected` of them (PIP-68; order and codes as in Pulsar 5.0.1).
    pub(super) fn decide(
        &self,
        mode: AccessMode,
        topic_epoch: Option<u64>,
        connected: usize,
    ) -> Verdict {
        let owned = self.exclusive || !self.queue.is_empty();
        let refuse = |error, text: &str| Verdict::Refuse(error, text.to_owned());
        match mode {
            AccessMode::Shared if owned => refuse(
                ServerError::ProducerBusy,
                "has, or waits for, an exclusive producer",
            ),
            AccessMode::Shared => Verdict::Share,
            AccessMode::Exclusive if owned => refuse(
                ServerError::ProducerFenced,
                "has, or waits for, an exclusive producer",
            ),
            AccessMode::Exclusive if connected > 0 => refuse(
                ServerError::ProducerFenced,
                "has producers that are not exclusive",
            ),
            AccessMode::WaitForExclusive if owned || connected > 0 => match self.queue.len() {
                0..MAX_QUEUED => Verdict::Queue,
                _ => Verdict::Refuse(
                    ServerError::ProducerBusy,
                    format!("has {MAX_QUEUED} producers that wait for it, no more are taken"),
                ),
            },
            _ => match (topic_epoch, self.epoch) {
                (Some(asked), Some(current)) if asked < current => Verdict::Refuse(
                    ServerError::ProducerFenced,
                    format!("is at epoch {current}: the producer's epoch {asked} is over"),
                ),
                (Some(asked), _) => Verdict::Own(asked),
                (None, current) => Verdict::Own(current.map_or(0, |epoch| epoch.saturating_add(1))),
            },
        }
    }
}

impl Topic {
    /// Makes an epoch the topic's.
    pub(super) fn begin_epoch(&mut self, seat: &mut LaneSeat, epoch: u64) {
        self.access.exclusive = true;
        if self.access.epoch == Some(epoch) {
            return;
        }
        self.access.epoch = Some(epoch);
        if self.is_volatile() {
            return;
        }
        let value = epoch.to_string();
        seat.append(&Record::TopicProperty {
            topic: self.state.id,
            key: EPOCH,
            value: value.as_bytes(),
        });
        self.state.set_property(EPOCH, value.as_bytes());
    }
}

impl Topics {
    /// Closes every producer of a topic without a word: their next SEND ends their connection, their coming back is refused by the epoch.
    pub(super) fn fence_producers(&mut self, cx: &mut Context, slot: u32) {
        // Nobody who waits may take the place of one that goes.
        self.refuse_queued(cx, slot, ServerError::ProducerFenced, |topic| {
            format!("Another producer has fenced the waiting producers of topic {topic} out")
        });
        self.close_producers(cx, slot, false, |_| true);
    }

    /// Refuses everybody who waits for a topic.
    pub(super) fn refuse_queued(
        &mut self,
        cx: &mut Context,
        slot: u32,
        error: ServerError,
        text: impl Fn(&str) -> String,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        for (client, open) in std::mem::take(&mut topic.access.queue) {
            self.clients.remove(&client.key());
            let refused = Message::ProducerRefused {
                client,
                request_id: open.request_id,
                error,
                message: text(topic.name.as_str()),
            };
            cx.post(client.session.core, refused);
        }
    }

    /// The last producer of a topic has gone: the first that waits has it for itself now.
    pub(super) fn promote(&mut self, cx: &mut Context, slot: u32) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if !topic.producers.is_empty() {
            return;
        }
        topic.access.exclusive = false;
        if topic.access.queue.is_empty() {
            return;
        }
        let seat = topic.log().and_then(|lane| self.lanes.get(lane));
        if seat.is_some_and(LaneSeat::is_broken) {
            return self.refuse_queued(cx, slot, ServerError::PersistenceError, |topic| {
                format!("Topic {topic} cannot begin an epoch: the log cannot be written; the broker's own log names the cause")
            });
        }
        while let Some(topic) = self.topics.get_mut(slot as usize)
            && let Some((client, open)) = topic.access.queue.pop_front()
        {
            // It may have had an epoch before that is over by now.
            let verdict =
                topic
                    .access
                    .decide(AccessMode::ExclusiveWithFencing, open.topic_epoch, 0);
            let refused = match verdict {
                Verdict::Own(epoch) => match self.admit(cx, slot, client, open, Some(epoch)) {
                    Ok(()) => return,
                    Err(refused) => refused,
                },
                Verdict::Refuse(error, text) => (
                    open.request_id,
                    error,
                    format!("Topic {} {text}", topic.name),
                ),
                Verdict::Share | Verdict::Queue => return,
            };
            self.clients.remove(&client.key());
            let (request_id, error, message) = refused;
            let refused = Message::ProducerRefused {
                client,
                request_id,
                error,
                message,
            };
            cx.post(client.session.core, refused);
        }
    }

    /// A producer that waits is closed by its client, or its connection is gone.
    pub(super) fn leave_queue(&mut self, slot: u32, client: ClientRef) {
        if let Some(topic) = self.topics.get_mut(slot as usize) {
            topic
                .access
                .queue
                .retain(|(waiting, _)| waiting.key() != client.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(verdict: &Verdict) -> Option<ServerError> {
        match verdict {
            Verdict::Refuse(error, _) => Some(*error),
            _ => None,
        }
    }

    /// The table of `PIP-68`, with the codes that Pulsar 5.0.1 gives.
    #[test]
    fn modes_against_who_is_there() {
        let free = Access::default();
        let owned = Access {
            exclusive: true,
            epoch: Some(3),
            ..Access::default()
        };
        let decide = |access: &Access, mode, connected| access.decide(mode, None, connected);
        assert_eq!(decide(&free, AccessMode::Shared, 2), Verdict::Share);
        assert_eq!(
            refused(&decide(&owned, AccessMode::Shared, 1)),
            Some(ServerError::ProducerBusy)
        );
        assert_eq!(decide(&free, AccessMode::Exclusive, 0), Verdict::Own(0));
        for (access, connected) in [(&free, 1), (&owned, 1)] {
            assert_eq!(
                refused(&decide(access, AccessMode::Exclusive, connected)),
                Some(ServerError::ProducerFenced)
            );
            assert_eq!(
                decide(access, AccessMode::WaitForExclusive, connected),
                Verdict::Queue
            );
        }
        assert_eq!(
            decide(&free, AccessMode::WaitForExclusive, 0),
            Verdict::Own(0)
        );
        assert_eq!(
            decide(&owned, AccessMode::ExclusiveWithFencing, 1),
            Verdict::Own(4)
        );
    }

    #[test]
    fn an_epoch_that_is_over_is_fenced_and_a_higher_one_is_taken_over() {
        let access = Access {
            epoch: Some(3),
            ..Access::default()
        };
        for mode in [
            AccessMode::Exclusive,
            AccessMode::WaitForExclusive,
            AccessMode::ExclusiveWithFencing,
        ] {
            let decide = |epoch| access.decide(mode, Some(epoch), 0);
            assert_eq!(refused(&decide(2)), Some(ServerError::ProducerFenced));
            assert_eq!((decide(3), decide(9)), (Verdict::Own(3), Verdict::Own(9)));
        }
        assert_eq!(
            access.decide(AccessMode::Shared, Some(0), 0),
            Verdict::Share
        );
    }
}
