//! Requests of the application that the broker answers: seek, last message id, unsubscribe, close.
//!
//! One that finds no connection waits for the next; one that was on its way when the connection broke is sent again.

use vela_proto::BaseCommand;

use super::{
    Call, Consumer, ConsumerAnswer, ConsumerEvent, Detached, Nanos, State, Wire, commands,
};
use crate::{Error, MessageId, StartPosition};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Seek(StartPosition),
    LastMessageId,
    HasMessage,
    Unsubscribe { force: bool },
    Close,
}

impl Consumer {
    /// Moves the subscription. The receiver queue is emptied; what was acknowledged before is void.
    pub fn seek(&mut self, now: Nanos, target: StartPosition, call: Call, wire: &mut impl Wire) {
        self.request(now, call, Request::Seek(target), wire);
    }

    /// Asks for the last message of the topic.
    pub fn last_message_id(&mut self, now: Nanos, call: Call, wire: &mut impl Wire) {
        self.request(now, call, Request::LastMessageId, wire);
    }

    /// Asks whether something is there to be read behind what was taken.
    pub fn has_message_available(&mut self, now: Nanos, call: Call, wire: &mut impl Wire) {
        if self.state != State::Closed && !self.queue.is_empty() {
            return self.answer(call, Ok(ConsumerAnswer::HasMessage(true)));
        }
        self.request(now, call, Request::HasMessage, wire);
    }

    /// Removes the subscription; with `force` even if it has other consumers. The consumer is closed then.
    pub fn unsubscribe(&mut self, now: Nanos, force: bool, call: Call, wire: &mut impl Wire) {
        self.request(now, call, Request::Unsubscribe { force }, wire);
    }

    /// Closes the consumer. Acknowledgements collected are sent before.
    pub fn close(&mut self, now: Nanos, call: Call, wire: &mut impl Wire) {
        match self.state {
            State::Closed => self.answer(call, Ok(ConsumerAnswer::Done)),
            State::Ready => self.request(now, call, Request::Close, wire),
            // The broker knows nothing of it, or will be told so by the answer to its SUBSCRIBE not being used.
            State::Detached | State::Subscribing(_) => {
                if let State::Subscribing(_) = self.state {
                    let request_id = wire.request_id();
                    wire.command(commands::close(self.id, request_id));
                }
                self.answer(call, Ok(ConsumerAnswer::Done));
                self.closed();
            }
        }
    }

    fn request(&mut self, now: Nanos, call: Call, request: Request, wire: &mut impl Wire) {
        if self.state == State::Closed {
            return self.answer(call, Err(Error::Closed("the consumer")));
        }
        self.waiting.push_back((call, request));
        self.call_waits(now, call);
        self.send_waiting(now, wire);
    }

    /// A call begins to wait for a connection, if there is none.
    pub(super) fn call_waits(&mut self, now: Nanos, call: Call) {
        if self.state != State::Ready && self.call_timeout > 0 {
            let due = now.saturating_add(self.call_timeout);
            self.overdue.push_back((due, call));
        }
    }

    /// Ends the calls that have waited too long for a connection.
    pub(super) fn end_overdue(&mut self, now: Nanos) {
        while let Some(&(due, call)) = self.overdue.front()
            && due <= now
        {
            self.overdue.pop_front();
            let waited = self.waiting.len();
            self.waiting.retain(|&(waiting, _)| waiting != call);
            if self.waiting.len() < waited || self.acks.give_up(call) {
                let error = Error::Timeout {
                    what: "a connection of the consumer",
                    millis: self.call_timeout / 1_000_000,
                };
                self.answer(call, Err(error));
            }
        }
    }

    pub(super) fn send_waiting(&mut self, _now: Nanos, wire: &mut impl Wire) {
        if self.state != State::Ready {
            return;
        }
        // A seek detaches the consumer; what is sent behind it would find nobody.
        let seeking = |(_, request): &(Call, Request)| matches!(request, Request::Seek(_));
        while !self.in_flight.values().any(seeking)
            && let Some((call, request)) = self.waiting.pop_front()
        {
            // What was acknowledged before must be known before.
            self.flush_acks(wire);
            let request_id = wire.request_id();
            wire.command(match request {
                Request::Seek(target) => {
                    self.begin_seek(target);
                    commands::seek(self.id, request_id, target)
                }
                Request::LastMessageId | Request::HasMessage => {
                    commands::last_message_id(self.id, request_id)
                }
                Request::Unsubscribe { force } => commands::unsubscribe(self.id, request_id, force),
                Request::Close => commands::close(self.id, request_id),
            });
            self.in_flight.insert(request_id, (call, request));
            self.flow(wire);
        }
    }

    fn begin_seek(&mut self, target: StartPosition) {
        self.seeking = self.current_incarnation();
        self.clear_queue();
        self.chunks.clear();
        self.joined.moved();
        self.batches.clear();
        self.nacks.clear();
        self.ack_timeouts.clear();
        self.dead_letters.detached();
        for call in self.acks.reset() {
            self.answer(call, Ok(ConsumerAnswer::Done));
        }
        self.position.seek(target);
    }

    fn current_incarnation(&self) -> Option<u64> {
        Some(self.stats.incarnations)
    }

    /// Whether messages of this incarnation are from before a seek.
    pub(super) fn is_seeking(&self) -> bool {
        self.seeking.is_some() && self.seeking == self.current_incarnation()
    }

    pub(super) fn handle_call_answer(
        &mut self,
        now: Nanos,
        request_id: u64,
        result: Result<BaseCommand, Error>,
        wire: &mut impl Wire,
    ) -> bool {
        let Some((call, request)) = self.in_flight.remove(&request_id) else {
            return false;
        };
        let answer = match request {
            Request::Seek(_) => {
                let attached = self.is_seeking();
                self.seeking = None;
                if result.is_err() && !attached {
                    // The broker had closed the consumer before it read this.
                    self.waiting.push_front((call, request));
                    self.call_waits(now, call);
                    self.send_waiting(now, wire);
                    return true;
                }
                if result.is_err() && attached {
                    // What was dropped for it must come again.
                    self.redeliver_unacknowledged(wire);
                }
                result.map(|_| ConsumerAnswer::Done)
            }
            Request::LastMessageId => result
                .and_then(last_ids)
                .map(|(last, mark_delete)| ConsumerAnswer::LastMessageId { last, mark_delete }),
            Request::HasMessage => result.and_then(last_ids).map(|(last, mark_delete)| {
                let more = last.is_some_and(|last| {
                    !self.queue.is_empty() || self.position.is_behind(&last, mark_delete.as_ref())
                });
                ConsumerAnswer::HasMessage(more)
            }),
            Request::Unsubscribe { .. } => result.map(|_| ConsumerAnswer::Done),
            // Whatever the broker says, it is over.
            Request::Close => Ok(ConsumerAnswer::Done),
        };
        let over = match request {
            Request::Unsubscribe { .. } => answer.is_ok(),
            Request::Close => true,
            _ => false,
        };
        self.answer(call, answer);
        if over {
            self.closed();
        }
        self.send_waiting(now, wire);
        self.flow(wire);
        true
    }

    /// The calls that will not be answered on the old connection are sent again on the next one.
    pub(super) fn retry_calls(&mut self, why: Detached) {
        let mut in_flight: Vec<_> = std::mem::take(&mut self.in_flight).into_iter().collect();
        in_flight.sort_by_key(|(request_id, _)| *request_id);
        for (request_id, (call, request)) in in_flight.into_iter().rev() {
            match (request, why) {
                (Request::Close, _) => {
                    self.answer(call, Ok(ConsumerAnswer::Done));
                    self.closed();
                }
                // The seek itself closed the consumer; its answer is still to come.
                (Request::Seek(_) | Request::Unsubscribe { .. }, Detached::ClosedByBroker) => {
                    self.in_flight.insert(request_id, (call, request));
                }
                _ => self.waiting.push_front((call, request)),
            }
        }
        if why == Detached::ConnectionLost {
            self.seeking = None;
        }
        // What waits to be closed needs no other connection for it.
        if self
            .waiting
            .iter()
            .any(|(_, request)| *request == Request::Close)
        {
            self.closed();
        }
    }

    /// Ends everything.
    pub(super) fn closed(&mut self) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.forget_deliveries();
        self.joined.clear();
        self.chunks.clear();
        self.batches.clear();
        self.dead_letters = Default::default();
        self.overdue.clear();
        let gone = || Error::Closed("the consumer");
        for call in self.acks.reset() {
            self.answer(call, Err(gone()));
        }
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        let waiting = std::mem::take(&mut self.waiting);
        for (call, request) in in_flight.chain(waiting) {
            let ended = match request {
                Request::Close => Ok(ConsumerAnswer::Done),
                _ => Err(gone()),
            };
            self.answer(call, ended);
        }
        self.events.push_back(ConsumerEvent::Closed);
    }
}

/// Last message and mark-delete position of an answer; nothing where there is none.
fn last_ids(command: BaseCommand) -> Result<(Option<MessageId>, Option<MessageId>), Error> {
    let Some(answer) = command.get_last_message_id_response else {
        return Err(Error::Protocol(
            "GET_LAST_MESSAGE_ID was answered with another command".to_owned(),
        ));
    };
    let last =
        Some(MessageId::from_data(&answer.last_message_id)).filter(|id| (id.entry as i64) >= 0);
    let mark_delete = answer
        .consumer_mark_delete_position
        .as_ref()
        .map(MessageId::from_data);
    Ok((last, mark_delete))
}
