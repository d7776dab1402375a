//! Producers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use vela_limiter::Reservation;
use vela_proto::CompressionType;

use crate::admission::{admit, admit_blocking, block_on, charge, in_client_task, may_block};
use crate::client::{Client, nanos};
use crate::core::{AccessMode, Batching, ProducerConfig, ProducerKey, Ticket};
use crate::error::{Error, Result};
use crate::id::MessageId;
use crate::message::{Outgoing, OutgoingMessage};
use crate::partitioned::Partitioned;
use crate::routing::{HashingScheme, RoutingMode};
use crate::schema::Schema;
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

/// Where the result of a send is left, and who waits for it.
#[derive(Default)]
struct Promise {
    gone: AtomicBool,
    cell: Mutex<Cell>,
}

#[derive(Default)]
struct Cell {
    result: Option<Result<MessageId>>,
    waker: Option<Waker>,
}

enum Done {
    Future(Arc<Promise>),
    Callback(Box<dyn FnOnce(Result<MessageId>) + Send>),
}

/// What travels with a send: what it is charged, and who wants to know its end.
pub(crate) struct SendTicket {
    reservation: Option<Reservation>,
    place: Option<OwnedSemaphorePermit>,
    done: Done,
}

impl SendTicket {
    pub(crate) fn has_callback(&self) -> bool {
        matches!(self.done, Done::Callback(_))
    }

    /// The end: first what was reserved is given back, then the caller is told.
    pub(crate) fn finish(self, result: Result<MessageId>) {
        let Self {
            reservation,
            place,
            done,
        } = self;
        drop((reservation, place));
        match done {
            Done::Callback(callback) => callback(result),
            Done::Future(promise) => {
                let waker = {
                    let mut cell = promise.cell.lock().unwrap_or_else(PoisonError::into_inner);
                    cell.result = Some(result);
                    cell.waker.take()
                };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}

impl Ticket for SendTicket {
    fn abandoned(&self) -> bool {
        match &self.done {
            Done::Future(promise) => promise.gone.load(Ordering::Acquire),
            Done::Callback(_) => false,
        }
    }
}

/// The receipt of a message that was admitted and queued.
///
/// Dropping it says that nobody waits for the message: it is skipped if it is not on its way to the broker yet, and keeps its share of
/// the memory until then. To let it go on, [`detach`](Self::detach).
#[must_use = "dropping a receipt gives up a message that is not on its way yet: await or detach it"]
pub struct SendFuture {
    promise: Arc<Promise>,
    client: Client,
    done: bool,
}

impl SendFuture {
    /// Lets the message go on without anybody waiting for it.
    pub fn detach(mut self) {
        self.done = true;
    }

    /// Waits for the receipt on this thread.
    ///
    /// # Errors
    /// As awaiting it; and [`Error::WouldBlock`] on a thread of a runtime and in the client's own callbacks.
    pub fn wait(self) -> Result<MessageId> {
        if let Some(result) = self.take() {
            return result;
        }
        may_block("waiting for a receipt")?;
        block_on(self)
    }

    fn take(&self) -> Option<Result<MessageId>> {
        let cell = &self.promise.cell;
        cell.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .result
            .take()
    }
}

impl Future for SendFuture {
    type Output = Result<MessageId>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<MessageId>> {
        let result = {
            let cell = &self.promise.cell;
            let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
            match cell.result.take() {
                Some(result) => result,
                None => {
                    match &mut cell.waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        None => cell.waker = Some(context.waker().clone()),
                    }
                    return Poll::Pending;
                }
            }
        };
        self.done = true;
        Poll::Ready(result)
    }
}

impl Drop for SendFuture {
    fn drop(&mut self) {
        // The machine has let go of its half when the send has ended.
        if !self.done && Arc::strong_count(&self.promise) > 1 {
            self.promise.gone.store(true, Ordering::Release);
            self.client.shared().sweep_soon();
        }
    }
}

impl fmt::Debug for SendFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFuture").finish_non_exhaustive()
    }
}

/// Settings of a producer, with Pulsar's names and defaults.
pub struct ProducerBuilder<T> {
    client: Client,
    topic: String,
    schema: Arc<dyn Schema<Value = T>>,
    pub(crate) settings: Settings,
}

/// What does not depend on the schema.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) config: ProducerConfig,
    pub(crate) max_pending_messages: usize,
    pub(crate) block_if_queue_full: bool,
    pub(crate) routing: RoutingMode,
    pub(crate) hashing: HashingScheme,
    pub(crate) lazy_partitions: bool,
    pub(crate) auto_update_partitions: Option<Duration>,
}

impl ProducerBuilder<Bytes> {
    pub(crate) fn new(client: Client, topic: String) -> Self {
        let settings = Settings {
            config: ProducerConfig::new(""),
            max_pending_messages: 0,
            block_if_queue_full: true,
            routing: RoutingMode::default(),
            hashing: HashingScheme::default(),
            lazy_partitions: false,
            auto_update_partitions: Some(Duration::from_secs(60)),
        };
        Self {
            client,
            topic,
            schema: Arc::new(crate::schema::Bytes),
            settings,
        }
    }
}

impl<T: 'static> ProducerBuilder<T> {
    /// How values become bytes, and what the broker is told about it.
    #[must_use]
    pub fn schema<S: Schema>(self, schema: S) -> ProducerBuilder<S::Value> {
        ProducerBuilder {
            client: self.client,
            topic: self.topic,
            schema: Arc::new(schema),
            settings: self.settings,
        }
    }

    /// Name of the producer, unique on the topic; the broker gives one if not set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.config.name = Some(name.into());
        self
    }

    /// Whether others may produce at the same time. Shared if not set.
    #[must_use]
    pub fn access_mode(mut self, mode: AccessMode) -> Self {
        self.settings.config.access_mode = mode;
        self
    }

    /// A property, shown in the broker's statistics.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let pair = (name.into(), value.into());
        self.settings.config.properties.push(pair);
        self
    }

    /// Whether messages are sent in batches. True if not set.
    #[must_use]
    pub fn batching(mut self, enabled: bool) -> Self {
        let batching = self.settings.config.batching.unwrap_or_default();
        self.settings.config.batching = enabled.then_some(batching);
        self
    }

    /// Most messages in a batch. 1000 if not set.
    #[must_use]
    pub fn batching_max_messages(self, messages: usize) -> Self {
        self.batches(|batching| batching.max_messages = messages)
    }

    /// Most bytes in a batch. 128 KiB if not set.
    #[must_use]
    pub fn batching_max_bytes(self, bytes: usize) -> Self {
        self.batches(|batching| batching.max_bytes = bytes)
    }

    /// Longest wait of a message for others to share its batch. 1 ms if not set.
    #[must_use]
    pub fn batching_max_publish_delay(self, delay: Duration) -> Self {
        self.batches(|batching| batching.max_publish_delay = nanos(delay))
    }

    /// Whether a batch holds messages of one key only, as Key_Shared subscriptions need it.
    #[must_use]
    pub fn batching_by_key(self, by_key: bool) -> Self {
        self.batches(|batching| batching.by_key = by_key)
    }

    fn batches(mut self, set: impl FnOnce(&mut Batching)) -> Self {
        let mut batching = self.settings.config.batching.unwrap_or_default();
        set(&mut batching);
        self.settings.config.batching = Some(batching);
        self
    }

    /// How payloads are compressed. Not at all if not set.
    #[must_use]
    pub fn compression(mut self, compression: CompressionType) -> Self {
        self.settings.config.compression = compression;
        self
    }

    /// Whether messages larger than the broker takes are sent in chunks. Not together with batching.
    #[must_use]
    pub fn chunking(mut self, enabled: bool) -> Self {
        self.settings.config.chunking = enabled;
        self
    }

    /// Most bytes of payload in a chunk; what the broker takes if not set.
    #[must_use]
    pub fn chunk_max_message_size(mut self, bytes: usize) -> Self {
        self.settings.config.chunk_max_message_size = bytes;
        self
    }

    /// Time until a send without receipt fails; zero: never. 30 s if not set.
    #[must_use]
    pub fn send_timeout(mut self, time: Duration) -> Self {
        self.settings.config.send_timeout = nanos(time);
        self
    }

    /// Most messages without receipt, over all partitions; 0, as if not set: only the client's memory limits them.
    #[must_use]
    pub fn max_pending_messages(mut self, messages: usize) -> Self {
        self.settings.max_pending_messages = messages;
        self
    }

    /// Whether a send waits for room where there is none, or fails with [`Error::MemoryBufferIsFull`] or
    /// [`Error::ProducerQueueIsFull`]. True if not set. In the client's own callbacks no send waits, whatever is set.
    #[must_use]
    pub fn block_if_queue_full(mut self, block: bool) -> Self {
        self.settings.block_if_queue_full = block;
        self
    }

    /// Sequence id of the first message; behind the last that the broker knows if not set.
    #[must_use]
    pub fn initial_sequence_id(mut self, sequence_id: u64) -> Self {
        self.settings.config.initial_sequence_id = Some(sequence_id);
        self
    }

    /// A subscription that is made along with the producer.
    #[must_use]
    pub fn initial_subscription_name(mut self, name: impl Into<String>) -> Self {
        self.settings.config.initial_subscription = Some(name.into());
        self
    }

    /// Which partition messages go to.
    #[must_use]
    pub fn routing_mode(mut self, mode: RoutingMode) -> Self {
        self.settings.routing = mode;
        self
    }

    /// How keys choose partitions.
    #[must_use]
    pub fn hashing_scheme(mut self, scheme: HashingScheme) -> Self {
        self.settings.hashing = scheme;
        self
    }

    /// Whether producers of partitions are opened when the first message goes there. False if not set.
    #[must_use]
    pub fn lazy_start_partitioned_producers(mut self, lazy: bool) -> Self {
        self.settings.lazy_partitions = lazy;
        self
    }

    /// How often the broker is asked for new partitions; `None`: never. 60 s if not set.
    #[must_use]
    pub fn auto_update_partitions(mut self, interval: Option<Duration>) -> Self {
        self.settings.auto_update_partitions = interval;
        self
    }

    /// Opens the producer. With [`AccessMode::WaitForExclusive`] that lasts until it is its turn.
    ///
    /// # Errors
    /// If a setting cannot be, or the broker refuses. A later attempt starts anew.
    pub async fn build(mut self) -> Result<Producer<T>> {
        let topic = TopicName::parse(&self.topic)?;
        self.settings.config.schema = self.schema.info().map(|info| info.to_proto());
        self.settings.config.check()?;
        let partitions = match topic.partition_index() {
            // A partition by its own name is a topic without partitions.
            Some(_) => 0,
            None => self.client.partitions(topic.as_str()).await?,
        };
        let limit = self.settings.max_pending_messages;
        let places = (limit > 0).then(|| Arc::new(Semaphore::new(limit)));
        let target = if partitions == 0 {
            let config = ProducerConfig {
                topic: topic.as_str().to_owned(),
                partition: topic
                    .partition_index()
                    .and_then(|index| i32::try_from(index).ok())
                    .unwrap_or(-1),
                ..self.settings.config.clone()
            };
            Target::Single(Opened::new(&self.client, config)?)
        } else {
            Target::Partitioned(Partitioned::new(
                &self.client,
                &topic,
                self.settings.clone(),
                partitions,
            )?)
        };
        // From here on dropping it closes what is open.
        let core = Arc::new(ProducerCore {
            client: self.client,
            topic,
            target,
            places,
            limit,
            block: self.settings.block_if_queue_full,
        });
        match &core.target {
            Target::Single(opened) => opened.ready().await?,
            Target::Partitioned(partitioned) => partitioned.ready().await?,
        }
        Ok(Producer {
            core,
            schema: self.schema,
        })
    }
}

impl<T> fmt::Debug for ProducerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
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
        if shared.is_closed() {
            return Err(Error::Closed("the client"));
        }
        let (sender, state) = watch::channel(ProducerState::Opening);
        let key = shared.with(|inner, now| {
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
        shared.with(|inner, now| inner.machine.close_producer(now, self.key));
    }
}

pub(crate) enum Target {
    Single(Opened),
    Partitioned(Partitioned),
}

/// A producer without its schema.
pub(crate) struct ProducerCore {
    pub(crate) client: Client,
    topic: TopicName,
    target: Target,
    /// One for each message of `max_pending_messages`.
    places: Option<Arc<Semaphore>>,
    limit: usize,
    block: bool,
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
        let ticket = admitted.ticket(Done::Future(Arc::clone(&promise)));
        self.queue(message, ticket)?;
        Ok(SendFuture {
            promise,
            client: self.client.clone(),
            done: false,
        })
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
        self.queue(message, admitted.ticket(Done::Callback(callback)))
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

struct Admitted {
    reservation: Reservation,
    place: Option<OwnedSemaphorePermit>,
}

impl Admitted {
    fn ticket(self, done: Done) -> SendTicket {
        SendTicket {
            reservation: Some(self.reservation),
            place: self.place,
            done,
        }
    }
}

/// Sends messages to a topic, all partitions of it if it has some. Clones are the same producer; it is closed with the last one.
pub struct Producer<T> {
    core: Arc<ProducerCore>,
    schema: Arc<dyn Schema<Value = T>>,
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

    /// The client it belongs to.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    fn encode(&self, message: impl Into<Outgoing<T>>) -> Result<OutgoingMessage> {
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
