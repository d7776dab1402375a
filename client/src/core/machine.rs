//! The state machine of the whole client.

mod calls;
mod consumers;
mod incoming;
mod producers;
#[cfg(test)]
mod tests;
mod ways;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use vela_codec::{Frame, Received};

use super::backoff::Rng;
use super::connection::{Address, Connection, MAX_UNSENT_COMMANDS, Overdue, State};
use super::event::Event;
use super::lookup::{Owner, Way};
use super::requests::{Request, Requests};
use super::{
    AuthData, CallKey, ConnKey, ConsumerKey, MILLIS, MachineConfig, Nanos, ProducerKey, Ticket,
    WatchKey,
};
use crate::error::{Error, Result};
use calls::{Call, Watch};
use consumers::ConsumerSlot;
pub use consumers::ConsumerWire;
use producers::ProducerSlot;

/// Whose timer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Conn(ConnKey),
    Way(Owner),
    Producer(ProducerKey),
    Consumer(ConsumerKey),
}

/// Timers that are set. Each owner remembers its earliest; those it has moved away from do nothing when they come.
type Timers = BinaryHeap<Reverse<(Nanos, Timer)>>;

/// The whole client, without IO. `S` is what travels with each send.
pub struct Machine<S> {
    config: MachineConfig,
    rng: Rng,
    /// The wall clock in milliseconds, and when it was so.
    wall: (u64, Nanos),
    next_key: u64,
    /// Which of the service URLs is used.
    service: usize,
    conns: FxHashMap<ConnKey, Connection>,
    pool: FxHashMap<Address, ConnKey>,
    requests: Requests,
    producers: FxHashMap<ProducerKey, ProducerSlot<S>>,
    consumers: FxHashMap<ConsumerKey, ConsumerSlot>,
    calls: FxHashMap<CallKey, Call>,
    watches: FxHashMap<WatchKey, Watch>,
    timers: Timers,
    events: VecDeque<Event<S>>,
}

impl<S: Ticket> Machine<S> {
    /// A client that has not done anything yet.
    ///
    /// # Errors
    /// If a setting cannot be.
    pub fn new(config: MachineConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            rng: Rng::new(config.seed),
            wall: (config.wall_ms, 0),
            next_key: 1,
            service: 0,
            conns: FxHashMap::default(),
            pool: FxHashMap::default(),
            requests: Requests::new(config.operation_timeout),
            producers: FxHashMap::default(),
            consumers: FxHashMap::default(),
            calls: FxHashMap::default(),
            watches: FxHashMap::default(),
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            config,
        })
    }

    /// Sets the wall clock, by which publish times are said: `wall_ms` milliseconds since 1970 are now.
    pub fn set_wall_clock(&mut self, now: Nanos, wall_ms: u64) {
        self.wall = (wall_ms, now);
    }

    /// The socket of a connection is connected.
    pub fn connected(&mut self, now: Nanos, conn: ConnKey) {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        connection.heard(now);
        connection.state = State::Handshake;
        if self.config.authentication {
            connection.authenticating = true;
            let challenge = None;
            self.events
                .push_back(Event::Authenticate { conn, challenge });
        } else {
            connection.hello(&self.config, None);
            self.tell(conn);
        }
    }

    /// Credentials for a connection, as [`Event::Authenticate`] asked for. An error closes it.
    pub fn authenticate(&mut self, now: Nanos, conn: ConnKey, auth: Result<AuthData>) {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        connection.authenticating = false;
        match auth {
            Ok(auth) if connection.said_hello => connection.respond(&self.config, auth),
            Ok(auth) => connection.hello(&self.config, Some(auth)),
            Err(error) => return self.disconnect(now, conn, error),
        }
        self.tell(conn);
    }

    /// A connection could not be made, or is gone.
    pub fn connection_lost(&mut self, now: Nanos, conn: ConnKey, why: impl Into<String>) {
        self.lose(now, conn, &Error::Connection(why.into()));
    }

    /// Bytes from a connection.
    pub fn handle_bytes(&mut self, now: Nanos, conn: ConnKey, bytes: impl Into<Received>) {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        connection.decoder.push(bytes);
        loop {
            let Some(connection) = self.conns.get_mut(&conn) else {
                return; // A frame before has closed it.
            };
            match connection.decoder.next_frame() {
                Ok(Some(frame)) => self.handle_frame(now, conn, &frame),
                Ok(None) => return connection.decoder.settle(None),
                Err(error) => {
                    let error = Error::Protocol(error.to_string());
                    return self.disconnect(now, conn, error);
                }
            }
        }
    }

    /// A frame from a connection, for those who cut frames themselves.
    pub fn handle_frame(&mut self, now: Nanos, conn: ConnKey, frame: &Frame) {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        connection.heard(now);
        if let Err(error) = self.incoming(now, conn, frame) {
            return self.disconnect(now, conn, error);
        }
        let unread = self.conns.get(&conn).map_or(0, |c| c.output.commands());
        if unread > MAX_UNSENT_COMMANDS {
            let error = Error::Protocol(format!(
                "the broker sends without reading: {unread} bytes of commands wait for it, {MAX_UNSENT_COMMANDS} may"
            ));
            self.disconnect(now, conn, error);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now
            && let Some(Reverse((at, timer))) = self.timers.pop()
        {
            match timer {
                Timer::Conn(conn) => self.conn_timeout(now, at, conn),
                Timer::Way(owner) => self.way_timeout(now, at, owner),
                Timer::Producer(producer) => self.producer_timeout(now, at, producer),
                Timer::Consumer(consumer) => self.consumer_timeout(now, at, consumer),
            }
        }
        while let Some((id, conn, request)) = self.requests.overdue(now) {
            let error = Error::Timeout {
                what: "an answer of the broker",
                millis: self.config.operation_timeout / MILLIS,
            };
            if let Request::Consumer(consumer) = request {
                self.consumer_answered(now, consumer, id, Err(error));
            } else {
                self.request_failed(now, conn, request, error, true);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        match (timer, self.requests.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// What has happened, in order.
    pub fn poll_event(&mut self) -> Option<Event<S>> {
        self.events.pop_front()
    }

    /// Something to write, to whichever connection has it.
    pub fn poll_transmit(&mut self) -> Option<(ConnKey, Bytes)> {
        let conn = self
            .conns
            .iter()
            .filter(|(_, connection)| connection.output.len() > 0)
            .map(|(&conn, _)| conn)
            .min()?;
        let mut out = Vec::new();
        self.transmit(conn, 1, &mut out);
        out.pop().map(|bytes| (conn, bytes))
    }

    /// Takes what a connection has to write, at least `bytes` bytes if there are as many. Answers whether anything was taken; if not, an
    /// [`Event::Transmit`] comes when there is something.
    pub fn transmit(&mut self, conn: ConnKey, bytes: usize, into: &mut Vec<Bytes>) -> bool {
        let mut taken = 0;
        while taken < bytes {
            let Some(connection) = self.conns.get_mut(&conn) else {
                break;
            };
            if connection.output.has_room() && !connection.blocked.is_empty() {
                self.unblock(conn);
                continue;
            }
            let Some(chunk) = connection.output.take() else {
                break;
            };
            taken += chunk.len();
            into.push(chunk);
        }
        taken > 0
    }

    /// Bytes of output of a connection that nobody has taken yet.
    #[must_use]
    pub fn unsent(&self, conn: ConnKey) -> usize {
        self.conns.get(&conn).map_or(0, |c| c.output.len())
    }

    /// Closes everything: every send, question and opening ends, with an error, and all connections are closed.
    pub fn close(&mut self, now: Nanos) {
        let error = Error::Closed("the client");
        let mut producers: Vec<_> = self.producers.keys().copied().collect();
        producers.sort_unstable();
        for producer in producers {
            self.fail_producer(producer, error.clone());
        }
        let mut consumers: Vec<_> = self.consumers.keys().copied().collect();
        consumers.sort_unstable();
        for consumer in consumers {
            self.fail_consumer(consumer, error.clone());
        }
        let mut calls: Vec<_> = self.calls.keys().copied().collect();
        calls.sort_unstable();
        for call in calls {
            self.answer(call, Err(error.clone()));
        }
        self.watches.clear();
        let mut conns: Vec<_> = self.conns.keys().copied().collect();
        conns.sort_unstable();
        for conn in conns {
            self.disconnect(now, conn, error.clone());
        }
    }

    fn next_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    /// Tells whoever writes that there is something to write, if they do not know.
    fn tell(&mut self, conn: ConnKey) {
        if let Some(connection) = self.conns.get_mut(&conn)
            && connection.output.tell()
        {
            self.events.push_back(Event::Transmit { conn });
        }
    }

    /// Closes a connection from this side.
    fn disconnect(&mut self, now: Nanos, conn: ConnKey, error: Error) {
        if self.conns.contains_key(&conn) {
            let why = error.to_string();
            self.events.push_back(Event::Disconnect { conn, why });
            let error = match error {
                // Those who waited for it may try again.
                Error::Protocol(why) => Error::Connection(why),
                error => error,
            };
            self.lose(now, conn, &error);
        }
    }

    fn conn_timeout(&mut self, now: Nanos, at: Nanos, conn: ConnKey) {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        if connection.armed == at {
            connection.armed = Nanos::MAX;
        }
        match connection.handle_timeout(now, &self.config) {
            Overdue::Dead(why) => {
                return self.disconnect(now, conn, Error::Connection(why.into()));
            }
            Overdue::Ping => self.tell(conn),
            Overdue::Nothing => {}
        }
        self.arm_conn(conn);
    }

    fn arm_conn(&mut self, conn: ConnKey) {
        if let Some(connection) = self.conns.get_mut(&conn) {
            let due = connection.poll_timeout(&self.config);
            arm(
                &mut self.timers,
                &mut connection.armed,
                Some(due),
                Timer::Conn(conn),
            );
        }
    }

    fn request_failed(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        request: Request,
        error: Error,
        timed_out: bool,
    ) {
        match request {
            Request::Lookup(owner) => self.way_failed(now, owner, error),
            Request::Open(owner) => {
                if let (Owner::Producer(producer), true) = (owner, timed_out) {
                    // The broker may still open it: it shall not stay.
                    self.say_close_producer(now, conn, producer, Request::Ignored);
                }
                self.way_failed(now, owner, error);
            }
            Request::CloseProducer(producer) => self.producer_closed(producer),
            Request::ReopenProducer(producer) => {
                self.way_failed(now, Owner::Producer(producer), error);
            }
            Request::Consumer(_) | Request::Ignored => {}
        }
    }

    fn way(&mut self, owner: Owner) -> Option<&mut Way> {
        match owner {
            Owner::Producer(key) => self.producers.get_mut(&key).map(|slot| &mut slot.way),
            Owner::Call(key) => self.calls.get_mut(&key).map(|call| &mut call.way),
            Owner::Watch(key) => self.watches.get_mut(&key).map(|watch| &mut watch.way),
            Owner::Consumer(key) => self.consumers.get_mut(&key).map(|slot| &mut slot.way),
        }
    }
}

/// Sets a timer if it is earlier than the one that is set.
fn arm(timers: &mut Timers, armed: &mut Nanos, due: Option<Nanos>, timer: Timer) {
    if let Some(due) = due
        && due < *armed
    {
        *armed = due;
        timers.push(Reverse((due, timer)));
    }
}
