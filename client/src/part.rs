//! One consumer of the machine, as the rim sees it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use tokio::sync::{oneshot, watch};

use crate::client::Client;
use crate::core::consumer::{
    Call, Consumer, ConsumerAnswer, ConsumerConfig, ConsumerEvent, ConsumerStats, ReceivedMessage,
};
use crate::core::{ConsumerKey, ConsumerWire, Nanos};
use crate::driver::ConsumerSink;
use crate::error::{Error, Result};
use crate::id::MessageId;
use crate::inbox::Inbox;

/// What is known of a part.
#[derive(Debug, Clone)]
pub(crate) enum PartState {
    Opening,
    Open,
    Ended(Error),
}

/// Given the messages that a part gives up.
pub(crate) trait DeadLetterSink: Send + Sync {
    fn give_up(&self, part: &Arc<Part>, messages: Vec<ReceivedMessage>);
}

type Answers = HashMap<Call, oneshot::Sender<Result<ConsumerAnswer>>>;

/// A consumer of one topic or partition.
pub(crate) struct Part {
    client: Client,
    key: OnceLock<ConsumerKey>,
    pub(crate) topic: Arc<str>,
    /// Whether it is among the ready ones of its inbox.
    pub(crate) listed: AtomicBool,
    inbox: Arc<Inbox>,
    /// Whether its end is the end of the whole.
    essential: bool,
    state: watch::Sender<PartState>,
    active: AtomicBool,
    end_of_topic: AtomicBool,
    answers: Mutex<Answers>,
    next_call: AtomicU64,
    dead_letters: Option<Arc<dyn DeadLetterSink>>,
}

/// The machine's events for a part. It does not keep the part: the consumer does.
struct Sink(Weak<Part>);

impl ConsumerSink for Sink {
    fn event(&self, event: ConsumerEvent) {
        if let Some(part) = self.0.upgrade() {
            part.event(event);
        }
    }

    fn failed(&self, error: Error) {
        if let Some(part) = self.0.upgrade() {
            part.end(error);
        }
    }
}

impl Part {
    /// Opens a consumer in the machine. [`ready`](Self::ready) waits until it is subscribed.
    pub(crate) fn open(
        client: &Client,
        config: ConsumerConfig,
        inbox: &Arc<Inbox>,
        essential: bool,
        dead_letters: Option<Arc<dyn DeadLetterSink>>,
    ) -> Result<Arc<Self>> {
        let shared = client.shared();
        let part = Arc::new(Self {
            client: client.clone(),
            key: OnceLock::new(),
            topic: Arc::clone(&config.topic),
            listed: AtomicBool::new(false),
            inbox: Arc::clone(inbox),
            essential,
            state: watch::Sender::new(PartState::Opening),
            active: AtomicBool::new(false),
            end_of_topic: AtomicBool::new(false),
            answers: Mutex::new(HashMap::new()),
            next_call: AtomicU64::new(0),
            dead_letters,
        });
        let sink: Arc<dyn ConsumerSink> = Arc::new(Sink(Arc::downgrade(&part)));
        shared.with(|inner, now| {
            if shared.is_closed() {
                return;
            }
            let key = inner.machine.open_consumer(now, config);
            inner.consumers.insert(key, sink);
            // Set once, here.
            let _ = part.key.set(key);
        });
        if part.key.get().is_none() {
            return Err(Error::Closed("the client"));
        }
        Ok(part)
    }

    fn event(self: &Arc<Self>, event: ConsumerEvent) {
        match event {
            ConsumerEvent::Subscribed { .. } => {
                self.state.send_if_modified(|state| {
                    let opening = matches!(state, PartState::Opening);
                    if opening {
                        *state = PartState::Open;
                    }
                    opening
                });
            }
            // The machine's own affair.
            ConsumerEvent::SubscribeFailed(_) => {}
            ConsumerEvent::Answer { call, result } => {
                let waiting = self.lock_answers().remove(&call);
                if let Some(waiting) = waiting {
                    // Whoever does not wait any more does not want to know.
                    let _ = waiting.send(result);
                }
            }
            ConsumerEvent::MessagesReady => self.inbox.ready(self),
            ConsumerEvent::Active(active) => {
                tracing::debug!(topic = %self.topic, active, "the active consumer has changed");
                self.active.store(active, Ordering::Release);
            }
            ConsumerEvent::EndOfTopic => self.end_of_topic.store(true, Ordering::Release),
            ConsumerEvent::DeadLetters(messages) => {
                if let Some(sink) = &self.dead_letters {
                    sink.give_up(self, messages);
                }
            }
            ConsumerEvent::Closed => self.end(Error::Closed("the consumer")),
        }
    }

    fn end(&self, error: Error) {
        self.state.send_replace(PartState::Ended(error.clone()));
        let waiting = std::mem::take(&mut *self.lock_answers());
        for (_, answer) in waiting {
            let _ = answer.send(Err(error.clone()));
        }
        if self.essential {
            self.inbox.end(error);
        }
    }

    fn lock_answers(&self) -> std::sync::MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until it is subscribed for the first time.
    pub(crate) async fn ready(&self) -> Result<()> {
        let mut state = self.state.subscribe();
        let known = state
            .wait_for(|state| !matches!(state, PartState::Opening))
            .await;
        match known.as_deref() {
            Ok(PartState::Ended(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Closed("the client")),
        }
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<Error> {
        match &*self.state.borrow() {
            PartState::Ended(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Does something with the consumer; `None` if it is gone.
    pub(crate) fn with<R>(
        &self,
        run: impl FnOnce(&mut Consumer, Nanos, &mut ConsumerWire<'_>) -> R,
    ) -> Option<R> {
        let key = *self.key.get()?;
        self.client.shared().with(|inner, now| {
            inner
                .machine
                .with_consumer(now, key, |consumer, wire| run(consumer, now, wire))
        })
    }

    pub(crate) fn take(&self) -> Option<ReceivedMessage> {
        self.with(|consumer, now, wire| consumer.take(now, wire))?
    }

    /// Asks something of the consumer and waits for its answer, over reconnects if need be.
    pub(crate) async fn call(
        &self,
        ask: impl FnOnce(&mut Consumer, Nanos, Call, &mut ConsumerWire<'_>),
    ) -> Result<ConsumerAnswer> {
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.lock_answers().insert(call, sender);
        let asked = self.with(|consumer, now, wire| ask(consumer, now, call, wire));
        if asked.is_none() {
            self.lock_answers().remove(&call);
            return Err(self.ended().unwrap_or(Error::Closed("the consumer")));
        }
        answer.await.unwrap_or(Err(Error::Closed("the consumer")))
    }

    pub(crate) async fn acknowledge(&self, ids: &[MessageId], receipt: bool) -> Result<()> {
        if receipt {
            let asked = self
                .call(|consumer, now, call, wire| consumer.acknowledge(now, ids, Some(call), wire));
            return asked.await.map(drop);
        }
        self.acknowledge_unasked(ids)
    }

    /// Acknowledges without waiting for anything.
    pub(crate) fn acknowledge_unasked(&self, ids: &[MessageId]) -> Result<()> {
        self.with(|consumer, now, wire| consumer.acknowledge(now, ids, None, wire))
            .ok_or_else(|| self.ended().unwrap_or(Error::Closed("the consumer")))
    }

    pub(crate) async fn close(&self) -> Result<()> {
        if self.ended().is_some() {
            return Ok(());
        }
        let closed = self.call(|consumer, now, call, wire| consumer.close(now, call, wire));
        match closed.await {
            Ok(_) | Err(Error::Closed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        let connected = self.key.get().map(|&key| {
            self.client
                .shared()
                .look(|machine| machine.is_consumer_connected(key))
        });
        connected.unwrap_or(false)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    pub(crate) fn has_reached_end(&self) -> bool {
        self.end_of_topic.load(Ordering::Acquire)
    }

    /// Counts, after the account of permits was checked; `None` if the consumer is gone.
    pub(crate) fn stats(&self) -> Option<ConsumerStats> {
        self.with(|consumer, _, _| {
            debug_assert_eq!(consumer.audit().map(drop), Ok(()));
            consumer.stats()
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Nobody waits for the answer.
        self.with(|consumer, now, wire| consumer.close(now, Call::MAX, wire));
    }
}
