//! One consumer of one topic or partition, without IO.
//!
//! It lives longer than its place at a broker: each SUBSCRIBE begins an *incarnation* with an empty receiver queue and an account of
//! permits of its own. What outlives incarnations is what the application did: acknowledgements, what it took, where it sought to.

mod acknowledging;
mod acks;
mod ackset;
mod batches;
mod calls;
mod chunks;
mod commands;
mod config;
mod dead_letter;
mod joined;
mod message;
mod permits;
mod position;
mod receive;
mod redelivery;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use vela_proto::{BaseCommand, ServerError};

pub use ackset::AckSet;
pub use config::{
    ConsumerConfig, CryptoFailureAction, DeadLetterPolicy, KeySharedPolicy, RedeliveryBackoff,
    SubscriptionType,
};
pub use dead_letter::{
    DELAY_TIME, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME, REAL_SUBSCRIPTION, REAL_TOPIC,
    RECONSUMETIMES, origin_properties, reconsume_times,
};
pub use message::{EntryId, ReceivedMessage};
pub use permits::{Audit, BadPermits, Ledger, Permits};

use crate::{Error, MessageId};
use acks::Acks;
use batches::Batches;
use calls::Request;
use chunks::Chunks;
use dead_letter::DeadLetters;
use joined::Joined;
use position::Position;
use timers::Timers;

/// Nanoseconds of a clock that never goes back.
pub type Nanos = u64;

/// Names a call of the application until it is answered.
pub type Call = u64;

/// The connection a consumer writes to.
pub trait Wire {
    /// A request id not yet used on this connection.
    fn request_id(&mut self) -> u64;
    /// Sends a command, behind all before it.
    fn command(&mut self, command: BaseCommand);
}

/// What the other side sent breaks the protocol: the connection is to be closed, and nothing is returned for the command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("consumer {consumer}: {what}")]
pub struct Violation {
    /// Consumer.
    pub consumer: u64,
    /// What is wrong.
    pub what: String,
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Protocol(violation.to_string())
    }
}

/// Why an incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detached {
    /// The connection is gone: no request sent on it is answered any more.
    ConnectionLost,
    /// CLOSE_CONSUMER; answers may still come.
    ClosedByBroker,
}

/// What a call is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerAnswer {
    /// It is done.
    Done,
    /// The last message of the topic, if it holds any, and what the broker has for this subscription's position.
    LastMessageId {
        /// Last message.
        last: Option<MessageId>,
        /// Mark-delete position.
        mark_delete: Option<MessageId>,
    },
    /// Whether something is there to be read.
    HasMessage(bool),
}

/// What the consumer tells its owner.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// An incarnation began; `first` of this consumer.
    Subscribed {
        /// Whether it is the first.
        first: bool,
    },
    /// The broker refused the SUBSCRIBE; whether to try again is the owner's to decide.
    SubscribeFailed(Error),
    /// A call ended.
    Answer {
        /// Which.
        call: Call,
        /// How.
        result: Result<ConsumerAnswer, Error>,
    },
    /// The receiver queue was empty and is not any more.
    MessagesReady,
    /// This consumer became the active one of its Failover subscription, or ceased to be.
    Active(bool),
    /// The topic is terminated and everything was delivered.
    EndOfTopic,
    /// Messages given up. They are to be sent to the dead-letter topic and then acknowledged, or handed back with
    /// [`Consumer::dead_letters_failed`].
    DeadLetters(Vec<ReceivedMessage>),
    /// It is closed or unsubscribed; nothing comes after this.
    Closed,
}

/// Counts since the consumer was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerStats {
    /// MESSAGE commands.
    pub commands: u64,
    /// Messages put into the receiver queue.
    pub accepted: u64,
    /// Messages the application took.
    pub taken: u64,
    /// Commands whose checksum, metadata, compression or batch was damaged.
    pub damaged: u64,
    /// Commands that could not be decrypted.
    pub undecryptable: u64,
    /// Messages not delivered because they were acknowledged already, lie before the start, were compacted or are older than a redelivery.
    pub skipped: u64,
    /// Messages given up to the dead-letter topic.
    pub given_up: u64,
    /// Sum of all FLOW.
    pub granted: u64,
    /// Sum of what all commands cost.
    pub charged: u64,
    /// Incarnations begun.
    pub incarnations: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Detached,
    Subscribing(u64),
    Ready,
    Closed,
}

#[derive(Debug)]
struct Queued {
    message: ReceivedMessage,
    permit: Permits,
    /// Whether the application may hold it already.
    copy: bool,
}

/// A consumer; see the [module](self).
#[derive(Debug)]
pub struct Consumer {
    id: u64,
    config: ConsumerConfig,
    state: State,
    subscribed_before: bool,
    /// Raised by each redelivery of everything; messages of lower ones are dropped.
    epoch: u64,
    /// Whether everything was asked for again in this incarnation.
    asked_again: bool,
    /// Whether a take found nothing; what a queue of size 0 waits for.
    wanted: bool,
    paused: bool,
    queue: VecDeque<Queued>,
    /// Messages in the queue, by entry, that the application may hold already from an earlier delivery.
    copies: HashMap<EntryId, u32>,
    /// The furthest entry ever put into the queue.
    furthest: Option<EntryId>,
    ledger: Ledger,
    acks: Acks,
    batches: Batches,
    chunks: Chunks,
    joined: Joined,
    nacks: Timers,
    ack_timeouts: Timers,
    dead_letters: DeadLetters,
    position: Position,
    waiting: VecDeque<(Call, Request)>,
    in_flight: HashMap<u64, (Call, Request)>,
    /// Longest wait of a call for a connection; 0: for ever.
    call_timeout: Nanos,
    /// Calls that began to wait for a connection, and when their time is over. Each may have had its answer meanwhile.
    overdue: VecDeque<(Nanos, Call)>,
    /// The incarnation whose messages are dropped because a seek is under way.
    seeking: Option<u64>,
    events: VecDeque<ConsumerEvent>,
    stats: ConsumerStats,
}

impl Consumer {
    /// A consumer that is not subscribed yet. `id` is its number on every connection it will use.
    #[must_use]
    pub fn new(id: u64, config: ConsumerConfig) -> Self {
        Self {
            id,
            state: State::Detached,
            subscribed_before: false,
            epoch: 0,
            asked_again: false,
            wanted: false,
            paused: config.start_paused,
            queue: VecDeque::new(),
            copies: HashMap::new(),
            furthest: None,
            ledger: Ledger::new(config.receiver_queue_size),
            acks: Acks::new(id, config.ack_receipt),
            batches: Batches::new(config.max_tracked_batches),
            chunks: Chunks::new(
                config.max_pending_chunked_messages,
                config.max_uncompressed_size,
                config.expire_incomplete_chunked_message,
            ),
            joined: Joined::new(config.max_tracked_batches),
            nacks: Timers::default(),
            ack_timeouts: Timers::default(),
            dead_letters: DeadLetters::default(),
            position: Position::new(&config),
            waiting: VecDeque::new(),
            in_flight: HashMap::new(),
            call_timeout: 0,
            overdue: VecDeque::new(),
            seeking: None,
            events: VecDeque::new(),
            stats: ConsumerStats::default(),
            config,
        }
    }

    /// Sets how long a call waits for a connection before it fails with [`Error::Timeout`]; 0, as it is at first: for ever.
    #[must_use]
    pub fn call_timeout(mut self, time: Nanos) -> Self {
        self.call_timeout = time;
        self
    }

    /// Whether it is this request that subscribes it.
    pub(crate) fn is_subscribing(&self, request_id: u64) -> bool {
        self.state == State::Subscribing(request_id)
    }

    /// Sends SUBSCRIBE. To be called when the connection to the topic's owner stands, at first and after each
    /// [`detached`](Self::detached) or [`ConsumerEvent::SubscribeFailed`].
    pub fn subscribe(&mut self, _now: Nanos, wire: &mut impl Wire) {
        if self.state != State::Detached {
            return;
        }
        self.ledger.begin();
        self.stats.incarnations += 1;
        self.asked_again = false;
        let request_id = wire.request_id();
        self.state = State::Subscribing(request_id);
        let taken = self.position.taken_by_reader();
        let begun = taken.and_then(|taken| self.unended_before(taken).pop_first());
        let start = self.position.subscribe(begun);
        wire.command(commands::subscribe(
            &self.config,
            self.id,
            request_id,
            self.config.consumer_name.clone(),
            start,
            self.epoch,
        ));
    }

    /// The answer to a request of this consumer; whether it was one.
    pub fn handle_answer(
        &mut self,
        now: Nanos,
        request_id: u64,
        result: Result<BaseCommand, Error>,
        wire: &mut impl Wire,
    ) -> bool {
        if self.state == State::Subscribing(request_id) {
            match result {
                Ok(_) => self.attached(now, wire),
                Err(error) => {
                    self.state = State::Detached;
                    self.events.push_back(ConsumerEvent::SubscribeFailed(error));
                }
            }
            return true;
        }
        let acknowledged = match &result {
            Ok(command) => command.ack_response.as_ref().map_or(Ok(()), |response| {
                response.error.map_or(Ok(()), |_| {
                    Err(Error::Broker {
                        code: response.error(),
                        message: response.message().to_owned(),
                    })
                })
            }),
            Err(error) => Err(error.clone()),
        };
        if let Some(ended) = self.acks.answered(request_id, acknowledged) {
            for (call, result) in ended {
                self.answer(call, result.map(|()| ConsumerAnswer::Done));
            }
            return true;
        }
        self.handle_call_answer(now, request_id, result, wire)
    }

    fn attached(&mut self, now: Nanos, wire: &mut impl Wire) {
        self.state = State::Ready;
        self.overdue.clear();
        let first = !std::mem::replace(&mut self.subscribed_before, true);
        self.events.push_back(ConsumerEvent::Subscribed { first });
        // Acknowledgements first: what they name is not delivered again.
        self.flush_acks(wire);
        self.send_waiting(now, wire);
        self.flow(wire);
    }

    /// Forgets what the broker has delivered and will deliver again, and the permits of it.
    fn forget_deliveries(&mut self) {
        self.ledger.begin();
        self.queue.clear();
        self.copies.clear();
        self.chunks.come_again();
        self.nacks.clear();
        self.ack_timeouts.clear();
    }

    /// This incarnation is over. Its messages that were not taken will come again, its permits are void.
    pub fn detached(&mut self, now: Nanos, why: Detached) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Detached;
        self.forget_deliveries();
        self.dead_letters.detached();
        self.acks.detached();
        if self.config.batch_index_ack {
            // The broker keeps what it was told, and may have been moved back since.
            let acks = &self.acks;
            self.batches.retain(|entry| acks.is_pending(entry));
        }
        self.wanted = false;
        self.retry_calls(why);
        let calls: Vec<Call> = self.waiting.iter().map(|&(call, _)| call).collect();
        for call in calls.into_iter().chain(self.acks.waiting().to_vec()) {
            self.call_waits(now, call);
        }
    }

    /// Anything the broker sends for this consumer that is not a message nor an answer.
    pub fn handle_command(&mut self, _now: Nanos, command: &BaseCommand, wire: &mut impl Wire) {
        if let Some(change) = &command.active_consumer_change {
            self.events
                .push_back(ConsumerEvent::Active(change.is_active()));
        } else if command.reached_end_of_topic.is_some() {
            self.events.push_back(ConsumerEvent::EndOfTopic);
        }
        self.flow(wire);
    }

    /// Takes the next message. Its permit goes back; its memory and its acknowledgement are the application's now.
    pub fn take(&mut self, now: Nanos, wire: &mut impl Wire) -> Option<ReceivedMessage> {
        let Some(Queued {
            message,
            permit,
            copy,
        }) = self.queue.pop_front()
        else {
            self.wanted = true;
            self.flow(wire);
            return None;
        };
        self.wanted = false;
        self.ledger.give_back(permit);
        self.left_queue(message.entry(), copy);
        self.position.taken(message.id);
        self.stats.taken += 1;
        if let Some(timeout) = self.config.ack_timeout_of(message.redelivery_count) {
            self.ack_timeouts
                .set(message.entry(), now.saturating_add(timeout));
        }
        self.flow(wire);
        Some(message)
    }

    /// Full name of its topic or partition.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.config.topic
    }

    /// Messages that can be taken at once.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Payload bytes of the messages that can be taken at once.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queue.iter().map(|q| q.message.payload.len()).sum()
    }

    /// The broker sends nothing more than it has permits for.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Ends [`pause`](Self::pause): the permits collected since are sent.
    pub fn resume(&mut self, wire: &mut impl Wire) {
        self.paused = false;
        self.flow(wire);
    }

    /// A message is not in the queue any more.
    fn left_queue(&mut self, entry: EntryId, copy: bool) {
        if copy && let Some(count) = self.copies.get_mut(&entry) {
            *count -= 1;
            if *count == 0 {
                self.copies.remove(&entry);
            }
        }
    }

    /// Sends the permits that came together, if they are enough.
    fn flow(&mut self, wire: &mut impl Wire) {
        if self.state != State::Ready || self.paused {
            return;
        }
        let single = self.config.receiver_queue_size == 0;
        if single && !(self.wanted && self.queue.is_empty()) {
            return;
        }
        if let Some(permits) = self.ledger.flow(single) {
            self.stats.granted += u64::from(permits);
            wire.command(commands::flow(self.id, permits));
        }
    }

    fn end(&mut self, call: Option<Call>, result: Result<(), Error>) {
        if let Some(call) = call {
            self.answer(call, result.map(|()| ConsumerAnswer::Done));
        }
    }

    fn answer(&mut self, call: Call, result: Result<ConsumerAnswer, Error>) {
        self.events
            .push_back(ConsumerEvent::Answer { call, result });
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Nanos, wire: &mut impl Wire) {
        if self.acks.deadline().is_some_and(|due| due <= now) {
            self.flush_acks(wire);
        }
        self.redeliver_due(now, wire);
        self.end_overdue(now);
        self.flow(wire);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let times = [
            self.acks.deadline(),
            self.nacks.next(),
            self.ack_timeouts.next(),
            self.chunks.next(),
            self.overdue.front().map(|&(due, _)| due),
        ];
        times.into_iter().flatten().min()
    }

    /// What happened since.
    pub fn poll_event(&mut self) -> Option<ConsumerEvent> {
        self.events.pop_front()
    }

    /// Its number on its connection.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// Whether the broker knows it now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Whether it is closed for good.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Its counts.
    #[must_use]
    pub fn stats(&self) -> ConsumerStats {
        self.stats
    }

    /// The account of permits of this incarnation, checked: all that was received was returned or is held by a queued message.
    ///
    /// # Errors
    /// If it does not add up, which would be a fault of this client.
    pub fn audit(&self) -> Result<Audit, String> {
        let held = self.queue.iter().map(|q| u64::from(q.permit.count())).sum();
        self.ledger.audit(held)
    }
}

/// Whether a request that failed so may succeed when it is sent again after a while.
#[must_use]
pub fn is_retriable(error: &Error) -> bool {
    match error {
        Error::Broker { code, .. } => matches!(
            code,
            ServerError::ServiceNotReady
                | ServerError::MetadataError
                | ServerError::PersistenceError
                | ServerError::TooManyRequests
                | ServerError::UnknownError
        ),
        Error::Connection(_) | Error::Timeout { .. } => true,
        _ => false,
    }
}
