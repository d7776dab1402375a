//! The client's own tasks: what carries out what the machine asks for, and brings it time and bytes.
//!
//! One lock is around the machine, held for as long as the machine works and never over an await. What comes out of it is carried out
//! behind the lock, and marked as the client's own doing ([`client_task`]): a send from there never waits. Callbacks of the application
//! run on a task of their own, in the order of their sends.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::admission::client_task;
use crate::auth::AuthProvider;
use crate::core::consumer::ConsumerEvent;
use crate::core::{
    Answer, AuthData, CallKey, ConnKey, ConsumerKey, Event, Machine, Nanos, ProducerKey, SendsDone,
    TopicsChanged, WatchKey,
};
use crate::error::{Error, Result};
use crate::message::millis_of;
use crate::net;
use crate::producer::ProducerState;
use crate::send::SendTicket;
use crate::tls::Connector;
use vela_limiter::MemoryLimit;

/// Told of what happens to a consumer, behind the lock, in order. It must not block.
pub(crate) trait ConsumerSink: Send + Sync {
    fn event(&self, event: ConsumerEvent);
    /// It has come to its end by itself, and no call of it will be answered any more.
    fn failed(&self, error: Error);
}

/// What is said of a watch over topics.
pub(crate) type Watched = Result<TopicsChanged>;

/// The machine, and to whom its events belong.
pub(crate) struct Inner {
    pub(crate) machine: Machine<SendTicket>,
    pub(crate) calls: FxHashMap<CallKey, oneshot::Sender<Result<Answer>>>,
    pub(crate) producers: FxHashMap<ProducerKey, watch::Sender<ProducerState>>,
    pub(crate) flushes: FxHashMap<(ProducerKey, u64), oneshot::Sender<()>>,
    pub(crate) consumers: FxHashMap<ConsumerKey, Arc<dyn ConsumerSink>>,
    pub(crate) watches: FxHashMap<WatchKey, mpsc::Sender<Watched>>,
    conns: FxHashMap<ConnKey, Arc<net::Wakers>>,
}

/// Something to do behind the lock.
enum Action {
    Sends(SendsDone<SendTicket>),
    Transmit(Arc<net::Wakers>),
    Connect(ConnKey, String, Arc<net::Wakers>),
    Disconnect(Arc<net::Wakers>, String),
    Authenticate(ConnKey, Option<Bytes>),
    Answer(oneshot::Sender<Result<Answer>>, Result<Answer>),
    Flushed(oneshot::Sender<()>),
    Consumer(Arc<dyn ConsumerSink>, ConsumerEvent),
    ConsumerFailed(Arc<dyn ConsumerSink>, Error),
    Watch(mpsc::Sender<Watched>, Watched),
}

/// What all parts of one client share.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    start: Instant,
    pub(crate) memory: MemoryLimit,
    pub(crate) runtime: Handle,
    pub(crate) auth: Option<Arc<dyn AuthProvider>>,
    pub(crate) tls: Option<Connector>,
    pub(crate) connection_timeout: Duration,
    pub(crate) seed: AtomicU64,
    timer: Notify,
    /// When the timer task wakes by itself, in nanoseconds.
    armed: AtomicU64,
    /// Somebody gave up waiting for a send.
    sweep: AtomicBool,
    closed: AtomicBool,
    /// Ends of sends whose owners want a callback. It holds what these sends reserved, so the memory limit bounds it.
    callbacks: mpsc::UnboundedSender<(SendTicket, Result<crate::MessageId>)>,
}

/// What [`Shared::start`] is given.
pub(crate) struct Parts {
    pub(crate) machine: Machine<SendTicket>,
    pub(crate) memory: MemoryLimit,
    pub(crate) auth: Option<Arc<dyn AuthProvider>>,
    pub(crate) tls: Option<Connector>,
    pub(crate) connection_timeout: Duration,
    pub(crate) seed: u64,
}

impl Shared {
    /// Starts the client's tasks on this runtime.
    pub(crate) fn start(runtime: Handle, parts: Parts) -> Arc<Self> {
        let (callbacks, mut ended) = mpsc::unbounded_channel::<(SendTicket, _)>();
        let shared = Arc::new(Self {
            inner: Mutex::new(Inner {
                machine: parts.machine,
                calls: FxHashMap::default(),
                producers: FxHashMap::default(),
                flushes: FxHashMap::default(),
                consumers: FxHashMap::default(),
                watches: FxHashMap::default(),
                conns: FxHashMap::default(),
            }),
            start: Instant::now(),
            memory: parts.memory,
            runtime: runtime.clone(),
            auth: parts.auth,
            tls: parts.tls,
            connection_timeout: parts.connection_timeout,
            seed: AtomicU64::new(parts.seed),
            timer: Notify::new(),
            armed: AtomicU64::new(Nanos::MAX),
            sweep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            callbacks,
        });
        runtime.spawn(keep_time(EndOfTime(Arc::clone(&shared))));
        runtime.spawn(async move {
            while let Some((ticket, result)) = ended.recv().await {
                client_task(|| ticket.finish(result));
            }
        });
        shared
    }

    /// Nanoseconds since the client was made.
    pub(crate) fn now(&self) -> Nanos {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Does something with the machine, then carries out what came of it.
    pub(crate) fn with<R>(self: &Arc<Self>, run: impl FnOnce(&mut Inner, Nanos) -> R) -> R {
        let mut actions = Vec::new();
        let (result, due) = {
            let mut inner = self.lock();
            let now = self.now();
            let result = run(&mut inner, now);
            inner.collect(&mut actions);
            (result, inner.machine.poll_timeout())
        };
        if let Some(due) = due {
            self.wake_at(due);
        }
        if !actions.is_empty() {
            client_task(|| self.carry_out(actions));
        }
        result
    }

    /// Looks at the machine.
    pub(crate) fn look<R>(&self, run: impl FnOnce(&Machine<SendTicket>) -> R) -> R {
        run(&self.lock().machine)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Asks something.
    pub(crate) async fn call(
        self: &Arc<Self>,
        ask: impl FnOnce(&mut Machine<SendTicket>, Nanos) -> CallKey,
    ) -> Result<Answer> {
        if self.is_closed() {
            return Err(Error::Closed("the client"));
        }
        let (sender, answer) = oneshot::channel();
        self.with(|inner, now| {
            // What is asked behind the end finds nobody who would answer; the sender is dropped then.
            if !self.is_closed() {
                let call = ask(&mut inner.machine, now);
                inner.calls.insert(call, sender);
            }
        });
        answer.await.unwrap_or(Err(Error::Closed("the client")))
    }

    /// Ends everything: each send, call and consumer is told, the connections are closed, the tasks end.
    pub(crate) fn close(self: &Arc<Self>) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.with(|inner, now| inner.machine.close(now));
            self.timer.notify_one();
        }
    }

    /// Nobody waits for some send any more; it is skipped soon if it is not on the wire.
    pub(crate) fn sweep_soon(&self) {
        if !self.sweep.swap(true, Ordering::AcqRel) {
            self.timer.notify_one();
        }
    }

    /// A number by chance, as far as the client's seed goes.
    pub(crate) fn draw(&self) -> u64 {
        let seed = self
            .seed
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A panic elsewhere has not left the machine in halves that matter more than going on.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_at(&self, due: Nanos) {
        if due < self.armed.load(Ordering::Acquire)
            && self.armed.fetch_min(due, Ordering::AcqRel) > due
        {
            self.timer.notify_one();
        }
    }

    fn carry_out(self: &Arc<Self>, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Sends(done) => self.ended(done),
                Action::Transmit(wakers) => wakers.output.notify_one(),
                Action::Connect(conn, url, wakers) => {
                    let shared = Arc::clone(self);
                    self.runtime.spawn(net::run(shared, conn, url, wakers));
                }
                Action::Disconnect(wakers, why) => {
                    tracing::debug!(%why, "connection closed");
                    wakers.close();
                }
                Action::Authenticate(conn, challenge) => self.authenticate(conn, challenge),
                // Whoever does not wait any more does not want to know.
                Action::Answer(sender, result) => drop(sender.send(result)),
                Action::Flushed(sender) => drop(sender.send(())),
                Action::Consumer(sink, event) => sink.event(event),
                Action::ConsumerFailed(sink, error) => sink.failed(error),
                // Changes come faster than they are followed: the list, which is asked for now and then, has them too.
                Action::Watch(sender, what) => drop(sender.try_send(what)),
            }
        }
    }

    fn ended(&self, done: SendsDone<SendTicket>) {
        for (ticket, result) in done.each() {
            if ticket.has_callback() {
                // The task ends with the client only, and what is left then is dropped with what it reserved.
                drop(self.callbacks.send((ticket, result)));
            } else {
                ticket.finish(result);
            }
        }
    }

    fn authenticate(self: &Arc<Self>, conn: ConnKey, challenge: Option<Bytes>) {
        let shared = Arc::clone(self);
        self.runtime.spawn(async move {
            let auth = match &shared.auth {
                Some(auth) => {
                    let data = match challenge {
                        None => auth.data().await,
                        Some(challenge) => auth.challenge(challenge).await,
                    };
                    let method = auth.method().to_owned();
                    data.map(|data| AuthData { method, data })
                }
                None => Err(Error::Authentication(
                    "the broker asks for credentials and none are set".into(),
                )),
            };
            shared.with(|inner, now| inner.machine.authenticate(now, conn, auth));
        });
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Inner {
    /// Finds out whom each event belongs to.
    fn collect(&mut self, actions: &mut Vec<Action>) {
        while let Some(event) = self.machine.poll_event() {
            let action = match event {
                Event::Sends(done) => Some(Action::Sends(done)),
                Event::Transmit { conn } => self.conns.get(&conn).cloned().map(Action::Transmit),
                Event::Connect { conn, url } => {
                    let wakers = Arc::new(net::Wakers::default());
                    self.conns.insert(conn, Arc::clone(&wakers));
                    Some(Action::Connect(conn, url, wakers))
                }
                Event::Disconnect { conn, why } => self
                    .conns
                    .remove(&conn)
                    .map(|wakers| Action::Disconnect(wakers, why)),
                Event::Authenticate { conn, challenge } => {
                    Some(Action::Authenticate(conn, challenge))
                }
                Event::ProducerOpened {
                    producer,
                    name,
                    last_sequence_id,
                    schema_version,
                } => {
                    if let Some(state) = self.producers.get(&producer) {
                        state.send_replace(ProducerState::Open {
                            name: name.into(),
                            last_sequence_id,
                            schema_version,
                        });
                    }
                    None
                }
                Event::ProducerFailed { producer, error } => {
                    if let Some(state) = self.producers.remove(&producer) {
                        state.send_replace(ProducerState::Ended(error));
                    }
                    None
                }
                Event::ProducerClosed { producer } => {
                    if let Some(state) = self.producers.remove(&producer) {
                        let error = Error::Closed("the producer");
                        state.send_replace(ProducerState::Ended(error));
                    }
                    None
                }
                Event::Flushed { producer, flush } => {
                    self.flushes.remove(&(producer, flush)).map(Action::Flushed)
                }
                Event::Answer { call, result } => self
                    .calls
                    .remove(&call)
                    .map(|sender| Action::Answer(sender, result)),
                Event::Consumer { consumer, event } => {
                    let sink = if matches!(event, ConsumerEvent::Closed) {
                        self.consumers.remove(&consumer)
                    } else {
                        self.consumers.get(&consumer).cloned()
                    };
                    sink.map(|sink| Action::Consumer(sink, event))
                }
                Event::ConsumerFailed { consumer, error } => self
                    .consumers
                    .remove(&consumer)
                    .map(|sink| Action::ConsumerFailed(sink, error)),
                Event::Topics { watch, change } => self
                    .watches
                    .get(&watch)
                    .cloned()
                    .map(|sender| Action::Watch(sender, Ok(change))),
                Event::WatchFailed { watch, error } => self
                    .watches
                    .remove(&watch)
                    .map(|sender| Action::Watch(sender, Err(error))),
            };
            actions.extend(action);
        }
    }

    /// The connection's tasks have ended.
    pub(crate) fn forget_conn(&mut self, conn: ConnKey) {
        self.conns.remove(&conn);
    }
}

/// Closes the client when its runtime ends: nobody drives it then, and whoever waits on another thread would wait for ever.
struct EndOfTime(Arc<Shared>);

impl Drop for EndOfTime {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Calls the machine when its time has come.
async fn keep_time(end: EndOfTime) {
    let shared = &end.0;
    while !shared.is_closed() {
        let due = shared.armed.load(Ordering::Acquire);
        let wake = async {
            if due == Nanos::MAX {
                std::future::pending::<()>().await;
            }
            let at = shared.start + Duration::from_nanos(due);
            tokio::time::sleep_until(at.into()).await;
        };
        let timeout = tokio::select! {
            () = wake => true,
            () = shared.timer.notified() => false,
        };
        if timeout {
            shared.armed.store(Nanos::MAX, Ordering::Release);
        }
        let sweep = shared.sweep.swap(false, Ordering::AcqRel);
        if timeout || sweep {
            let wall = millis_of(SystemTime::now());
            shared.with(|inner, now| {
                inner.machine.set_wall_clock(now, wall);
                if sweep {
                    inner.machine.sweep(None);
                }
                inner.machine.handle_timeout(now);
            });
        }
    }
}
