//! Termination: a topic takes no message any more, and whoever has read it to its end is told so.
//!
//! The last position is fixed at once and durable before anybody hears of it. Messages appended before are answered first: the end stands behind
//! them in the log. Producers are then closed from this side (their clients come back and are refused), and consumers with nothing left get
//! REACHED_END_OF_TOPIC: at the termination, on each FLOW, and when the last message is acknowledged.

use super::Topics;
use super::subscription::mark_delete;
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, CoreId, Message, TerminateError};
use crate::engine::name::TopicName;
use crate::store::log::Record;
use vela_proto::ServerError;

/// What producers of a finished topic are told.
pub(super) const TERMINATED: &str = "the topic was terminated";

impl super::Topic {
    /// Has a subscription nothing left that it could ever get?
    fn is_finished(&self, sub: u32) -> bool {
        self.ended
            && self.subs.get(sub as usize).is_some_and(|sub| {
                self.state
                    .ledgers
                    .next(mark_delete(&self.state, sub))
                    .is_none()
            })
    }
}

impl Topics {
    /// Ends a topic. Answered once that is durable; a topic that has ended already answers the same again.
    pub(super) fn terminate(
        &mut self,
        cx: &mut Context,
        from: CoreId,
        token: u64,
        topic: TopicName,
    ) {
        let answer = |topic, result| Message::Terminated {
            token,
            topic,
            result,
        };
        let Some(entry) = self
            .by_name
            .get(topic.as_str())
            .and_then(|slot| self.topics.get_mut(*slot as usize))
        else {
            return cx.post(from, answer(topic, Err(TerminateError::NotFound)));
        };
        if entry.is_volatile() {
            return cx.post(from, answer(topic, Err(TerminateError::NotPersistent)));
        }
        let lane = entry.lane;
        let Some(seat) = self.lanes.get_mut(lane) else {
            return;
        };
        let at = match entry.state.terminated {
            Some(at) => at,
            None if seat.is_broken() => {
                return cx.post(from, answer(topic, Err(TerminateError::Log)));
            }
            None => {
                let ledgers = &entry.state.ledgers;
                let at = ledgers.last().unwrap_or(ledgers.end());
                seat.append(&Record::Terminated {
                    topic: entry.state.id,
                    at,
                });
                entry.state.terminated = Some(at);
                at
            }
        };
        self.after_log(cx, lane, from, answer(topic, Ok(at)));
    }

    /// The end of a topic is durable: its producers go, and whoever has read everything is told.
    pub(super) fn terminated(&mut self, cx: &mut Context, topic: &TopicName) {
        let Some(slot) = self.by_name.get(topic.as_str()).copied() else {
            return;
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if std::mem::replace(&mut topic.ended, true) {
            return;
        }
        topic.mark_dirty(&mut self.dirty);
        // Those who wait first: nobody is to take the place of one that goes.
        self.refuse_queued(cx, slot, ServerError::TopicTerminatedError, |topic| {
            format!("Topic {topic} was terminated")
        });
        self.close_producers(cx, slot, true, |_| true);
    }

    /// Tells the consumers of a subscription that nothing more comes, if so.
    pub(super) fn announce_end(&mut self, cx: &mut Context, slot: u32, sub: u32) {
        let Some(topic) = self
            .topics
            .get_mut(slot as usize)
            .filter(|topic| topic.is_finished(sub))
        else {
            return;
        };
        topic.end_told.insert(sub);
        let lane = topic.lane;
        let consumers: Vec<ClientRef> = topic.subs.get(sub as usize).map_or(Vec::new(), |sub| {
            sub.roster.iter().map(|(_, c)| c.client).collect()
        });
        for client in consumers {
            // In its turn: before the answer to the ACK that made it so, and not before that is safe.
            self.after_log(
                cx,
                lane,
                client.session.core,
                Message::EndOfTopic { client },
            );
        }
    }

    /// Tells a consumer that gives credit that nothing more comes, if so.
    pub(super) fn end_on_flow(&mut self, cx: &mut Context, client: ClientRef) {
        let Some(seat) = self.consumer_seat(client) else {
            return;
        };
        if let Some(topic) = self.topics.get(seat.topic as usize)
            && topic.is_finished(seat.sub)
        {
            // Behind the answer to its SUBSCRIBE.
            self.after_log(
                cx,
                topic.lane,
                client.session.core,
                Message::EndOfTopic { client },
            );
        }
    }

    /// Looks for subscriptions of a finished topic that have reached its end by other ways than an ACK, and tells each once.
    pub(super) fn announce_ends(&mut self, cx: &mut Context, slot: u32) {
        let Some(topic) = self.topics.get_mut(slot as usize).filter(|t| t.ended) else {
            return;
        };
        let subs: Vec<u32> = topic.subs.iter().map(|(sub, _)| sub as u32).collect();
        for sub in subs {
            let Some(topic) = self.topics.get_mut(slot as usize) else {
                return;
            };
            if !topic.is_finished(sub) {
                topic.end_told.remove(&sub);
            } else if !topic.end_told.contains(&sub) {
                self.announce_end(cx, slot, sub);
            }
        }
    }
}
