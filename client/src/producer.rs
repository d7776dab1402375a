//! Producers.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use crate::admission::{admit, admit_blocking, block_on, charge, in_client_task, may_block};
use crate::client::Client;
use crate::core::{ProducerConfig, ProducerKey};
use crate::error::{Error, Result};
use crate::id::MessageId;
use crate::message::{Outgoing, OutgoingMessage};
use crate::partitioned::Partitioned;
use crate::schema::Schema;
use crate::send::{Admitted, Done, Promise, SendFuture, SendTicket};
use crate::sink::ProducerSink;
use crate::topic::TopicName;

/// What is known of a producer.
#[derive(Debug, Clone)]
pub(crate) enum ProducerState {
    Opening,
    Open {
        name: Arc<str>,
        last_sequence_id: i64,
        schema_version: Bytes,
    },
    Ended(Error),
}

/// One producer of the machine.
pub(crate) struct Opened {
    client: Client,
    pub(crate) key: ProducerKey,
    pub(crate) state: watch::Receiver<ProducerState>,
}

impl Opened {
    pub(crate) fn new(client: &Client, config: ProducerConfig) -> Result<Self> {
        let shared = client.shared();
        let (sender, state) = watch::channel(ProducerState::Opening);
        let key = shared.with(|inner, now| {
            if shared.is_closed() {
                return Err(Error::Closed("the client"));
            }
            let key = inner.machine.open_producer(now, config)?;
            inner.producers.insert(key, sender);
            Ok::<_, Error>(key)
        })?;
        Ok(Self {
            client: client.clone(),
            key,
            state,
        })
    }

    /// Until it is open.
    pub(crate) async fn ready(&self) -> Result<()> {
        let mut state = self.state.clone();
        let known = state
            .wait_for(|state| !matches!(state, ProducerState::Opening))
            .await;
        match known.as_deref() {
            Ok(ProducerState::Ended(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Closed("the client")),
        }
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<Error> {
        match &*self.state.borrow() {
            ProducerState::Ended(error) => Some(error.clone()),
            _ => None,
        }
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        let (sender, done) = tokio::sync::oneshot::channel();
        self.client.shared().with(|inner, _| {
            let flush = inner.machine.flush(self.key)?;
            inner.flushes.insert((self.key, flush), sender);
            Ok::<_, Error>(())
        })?;
        done.await.map_err(|_| Error::Closed("the producer"))
    }

    pub(crate) async fn close(&self) {
        let shared = self.client.shared();
        shared.with(|inner, now| inner.machine.close_producer(now, self.key));
        let mut state = self.state.clone();
        // An error says that the client is gone, and the producer with it.
        drop(
            state
                .wait_for(|state| matches!(state, ProducerState::Ended(_)))
                .await,
        );
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let shared = self.client.shared();
        shared.with(|inner, now| inner.machine.retire_producer(now, self.key));
    }
}

pub(crate) enum Target {
    Single(Opened),
    Partitioned(Partitioned),
}

/// A producer without its schema.
pub(crate) struct ProducerCore {
    pub(crate) client: Client,
    pub(crate) topic: TopicName,
    pub(crate) target: Target,
    /// One for each message of `max_pending_messages`.
    pub(crate) places: Option<Arc<Semaphore>>,
    pub(crate) limit: usize,
    pub(crate) block: bool,
}

impl ProducerCore {
    /// Admits a send: on the caller's task, before any lock and any queue.
    async fn admit(&self, message: &OutgoingMessage, may_wait: bool) -> Result<Admitted> {
        let bytes = charge(message.payload.len());
        let reservation = admit(self.client.memory(), bytes, may_wait).await?;
        let place = match &self.places {
            None => None,
            Some(places) => match Arc::clone(places).try_acquire_owned() {
                Ok(place) => Some(place),
                Err(_) if may_wait && !in_client_task() => {
                    let place = Arc::clone(places).acquire_owned().await;
                    Some(place.map_err(|_| Error::Closed("the producer"))?)
                }
                Err(_) => return Err(self.queue_is_full()),
            },
        };
        Ok(Admitted { reservation, place })
    }

    /// The same on a thread.
    fn admit_blocking(&self, message: &OutgoingMessage, may_wait: bool) -> Result<Admitted> {
        let bytes = charge(message.payload.len());
        let reservation = admit_blocking(self.client.memory(), bytes, may_wait)?;
        let place = match &self.places {
            None => None,
            Some(places) => match Arc::clone(places).try_acquire_owned() {
                Ok(place) => Some(place),
                Err(_) if may_wait && !in_client_task() => {
                    may_block("a blocking send")?;
                    let place = block_on(Arc::clone(places).acquire_owned());
                    Some(place.map_err(|_| Error::Closed("the producer"))?)
                }
                Err(_) => return Err(self.queue_is_full()),
            },
        };
        Ok(Admitted { reservation, place })
    }

    fn queue_is_full(&self) -> Error {
        Error::ProducerQueueIsFull {
            pending: self.limit,
        }
    }

    fn queue(&self, message: OutgoingMessage, ticket: SendTicket) -> Result<()> {
        match &self.target {
            Target::Single(opened) => {
                let sent = self
                    .client
                    .shared()
                    .with(|inner, now| inner.machine.send(now, opened.key, message, ticket));
                match sent {
                    Ok(()) => Ok(()),
                    Err(refused) => Err(match (opened.ended(), refused.error) {
                        (Some(why), Error::Closed(_)) => why,
                        (_, error) => error,
                    }),
                }
            }
            Target::Partitioned(partitioned) => partitioned.send(message, ticket),
        }
    }

    fn promise(&self, message: OutgoingMessage, admitted: Admitted) -> Result<SendFuture> {
        let promise = Arc::new(Promise::default());
        let ticket = SendTicket::new(admitted, Done::Future(Arc::clone(&promise)));
        self.queue(message, ticket)?;
        Ok(SendFuture::new(promise, self.client.clone()))
    }

    pub(crate) async fn send(&self, message: OutgoingMessage) -> Result<SendFuture> {
        let admitted = self.admit(&message, self.block).await?;
        self.promise(message, admitted)
    }

    /// Accounts for the message and sends it, whatever room there is: for what releases memory elsewhere.
    fn send_accounted(&self, message: OutgoingMessage) -> Result<SendFuture> {
        let bytes = charge(message.payload.len());
        let reservation = self.client.memory().force_reserve(bytes);
        let place = None;
        self.promise(message, Admitted { reservation, place })
    }

    pub(crate) fn try_send(&self, message: OutgoingMessage) -> Result<SendFuture> {
        let admitted = self.admit_blocking(&message, false)?;
        self.promise(message, admitted)
    }

    pub(crate) fn send_blocking(&self, message: OutgoingMessage) -> Result<SendFuture> {
        let admitted = self.admit_blocking(&message, self.block)?;
        self.promise(message, admitted)
    }

    fn send_with(
        &self,
        message: OutgoingMessage,
        callback: Box<dyn FnOnce(Result<MessageId>) + Send>,
    ) -> Result<()> {
        let admitted = self.admit_blocking(&message, self.block)?;
        self.queue(message, SendTicket::new(admitted, Done::Callback(callback)))
    }

    async fn flush(&self) -> Result<()> {
        match &self.target {
            Target::Single(opened) => opened.flush().await,
            Target::Partitioned(partitioned) => partitioned.flush().await,
        }
    }

    async fn close(&self) {
        match &self.target {
            Target::Single(opened) => opened.close().await,
            Target::Partitioned(partitioned) => partitioned.close().await,
        }
    }
}

/// Sends messages to a topic, all partitions of it if it has some. Clones are the same producer; when the last one is dropped it
/// is closed, once what was sent has its end.
pub struct Producer<T> {
    pub(crate) core: Arc<ProducerCore>,
    pub(crate) schema: Arc<dyn Schema<Value = T>>,
}

impl<T: 'static> Producer<T> {
    /// Sends a message: it is encoded, admitted - which may wait for room - and queued. What comes back is its receipt to be.
    ///
    /// # Errors
    /// If the value cannot be encoded, there is no room and it may not wait, or the producer is closed.
    pub async fn send(&self, message: impl Into<Outgoing<T>>) -> Result<SendFuture> {
        self.core.send(self.encode(message)?).await
    }

    /// Sends a message and waits until it is stored.
    ///
    /// # Errors
    /// As [`send`](Self::send), or what became of the message.
    pub async fn send_and_wait(&self, message: impl Into<Outgoing<T>>) -> Result<MessageId> {
        self.send(message).await?.await
    }

    /// The same as [`send`](Self::send), but never waits.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::MemoryBufferIsFull`] or [`Error::ProducerQueueIsFull`] where there is no room.
    pub fn try_send(&self, message: impl Into<Outgoing<T>>) -> Result<SendFuture> {
        self.core.try_send(self.encode(message)?)
    }

    /// Sends a message that is encoded already, accounted for and never refused for want of room: dead letters.
    pub(crate) fn send_accounted(&self, message: OutgoingMessage) -> Result<SendFuture> {
        self.core.send_accounted(message)
    }

    /// Sends from a thread outside of async, which waits for room where `block_if_queue_full` is set.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::WouldBlock`] if it had to wait on a thread of a runtime.
    pub fn send_blocking(&self, message: impl Into<Outgoing<T>>) -> Result<SendFuture> {
        self.core.send_blocking(self.encode(message)?)
    }

    /// Sends and calls back with what became of the message, in the order of sending. Waits for room as
    /// [`send_blocking`](Self::send_blocking) does; sends issued in the callback never wait.
    ///
    /// # Errors
    /// As [`send_blocking`](Self::send_blocking); the callback is not called then.
    pub fn send_with(
        &self,
        message: impl Into<Outgoing<T>>,
        callback: impl FnOnce(Result<MessageId>) + Send + 'static,
    ) -> Result<()> {
        let message = self.encode(message)?;
        self.core.send_with(message, Box::new(callback))
    }

    /// Waits until everything that was sent before has its end.
    ///
    /// # Errors
    /// If the producer is closed.
    pub async fn flush(&self) -> Result<()> {
        self.core.flush().await
    }

    /// Waits for what was sent, then closes the producer.
    ///
    /// # Errors
    /// If it was closed already.
    pub async fn close(&self) -> Result<()> {
        let flushed = self.flush().await;
        self.core.close().await;
        flushed
    }

    /// Name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.core.topic.as_str()
    }

    /// Name of the producer; of a partitioned topic, that of its first partition's.
    #[must_use]
    pub fn name(&self) -> String {
        let name = |opened: &Opened| match &*opened.state.borrow() {
            ProducerState::Open { name, .. } => name.to_string(),
            _ => String::new(),
        };
        match &self.core.target {
            Target::Single(opened) => name(opened),
            Target::Partitioned(partitioned) => {
                partitioned.first().as_deref().map(name).unwrap_or_default()
            }
        }
    }

    /// The version under which the broker has the schema; empty without, and of a partitioned topic.
    #[must_use]
    pub fn schema_version(&self) -> Bytes {
        match &self.core.target {
            Target::Single(opened) => match &*opened.state.borrow() {
                ProducerState::Open { schema_version, .. } => schema_version.clone(),
                _ => Bytes::new(),
            },
            Target::Partitioned(_) => Bytes::new(),
        }
    }

    /// The highest sequence id known to be stored; -1 if none. Of a partitioned topic, the highest of all partitions.
    #[must_use]
    pub fn last_sequence_id(&self) -> i64 {
        let shared = self.core.client.shared();
        let at_open = |opened: &Opened| match &*opened.state.borrow() {
            ProducerState::Open {
                last_sequence_id, ..
            } => *last_sequence_id,
            _ => -1,
        };
        let last = |opened: &Opened| {
            let now = shared.look(|machine| machine.last_sequence_id(opened.key));
            now.max(at_open(opened))
        };
        match &self.core.target {
            Target::Single(opened) => last(opened),
            Target::Partitioned(partitioned) => {
                let all = partitioned.opened();
                all.iter().map(|opened| last(opened)).max().unwrap_or(-1)
            }
        }
    }

    /// Whether the producer is connected now; of a partitioned topic, to all partitions that are in use.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let shared = self.core.client.shared();
        let connected =
            |opened: &Opened| shared.look(|machine| machine.is_producer_connected(opened.key));
        match &self.core.target {
            Target::Single(opened) => connected(opened),
            Target::Partitioned(partitioned) => {
                partitioned.opened().iter().all(|opened| connected(opened))
            }
        }
    }

    /// Partitions of the topic, as far as is known; 0 if it has none.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        match &self.core.target {
            Target::Single(_) => 0,
            Target::Partitioned(partitioned) => partitioned.count(),
        }
    }

    /// A [`Sink`](futures_sink::Sink) of messages, of which `room` may be without receipt; flushing it waits for all receipts.
    #[must_use]
    pub fn sink(&self, room: usize) -> ProducerSink<T> {
        ProducerSink::new(self.clone(), room)
    }

    /// The client it belongs to.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    pub(crate) fn encode(&self, message: impl Into<Outgoing<T>>) -> Result<OutgoingMessage> {
        message.into().encode(&*self.schema)
    }
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            schema: Arc::clone(&self.schema),
        }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("topic", &self.core.topic)
            .finish_non_exhaustive()
    }
}

impl From<Vec<u8>> for Outgoing<Bytes> {
    fn from(value: Vec<u8>) -> Self {
        Self::new(value.into())
    }
}

impl From<&'static str> for Outgoing<Bytes> {
    fn from(value: &'static str) -> Self {
        Self::new(Bytes::from_static(value.as_bytes()))
    }
}

impl From<String> for Outgoing<Bytes> {
    fn from(value: String) -> Self {
        Self::new(value.into())
    }
}

impl From<&str> for Outgoing<String> {
    fn from(value: &str) -> Self {
        Self::new(value.to_owned())
    }
}
