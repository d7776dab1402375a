//! Bringing producers, consumers, watches and questions to their connections, and again after a fault.

use vela_proto::base_command::Type;
use vela_proto::command_lookup_topic_response::LookupType;
use vela_proto::{BaseCommand, CommandLookupTopic, CommandLookupTopicResponse};

use super::super::connection::{Address, Connection, State, base};
use super::super::consumer::Detached;
use super::super::event::{Answer, Event};
use super::super::lookup::{Owner, Place, Step, Way, is_retriable};
use super::super::requests::Request;
use super::super::{ConnKey, MILLIS, Nanos, Ticket};
use super::{Machine, Timer, arm};
use crate::error::{Error, Result};

impl<S: Ticket> Machine<S> {
    /// Sends an owner on its way from the start.
    pub(super) fn set_out(&mut self, now: Nanos, owner: Owner) {
        let needs_lookup = self.topic_of(owner).is_some();
        let Some(way) = self.way(owner) else { return };
        let assigned = way.assigned.take();
        let service = way.service.clone();
        let (url, step) = match (assigned, needs_lookup) {
            (Some(url), true) => (url, Step::Open),
            (_, true) => {
                let step = Step::Lookup {
                    authoritative: false,
                    redirects: 0,
                };
                (service.unwrap_or_else(|| self.service_url()), step)
            }
            (_, false) => (self.service_url(), Step::Open),
        };
        self.go(now, owner, url, None, step);
    }

    fn service_url(&self) -> String {
        let urls = &self.config.service_urls;
        let url = urls.get(self.service % urls.len().max(1));
        url.cloned().unwrap_or_default()
    }

    /// The topic whose broker must be found first.
    fn topic_of(&self, owner: Owner) -> Option<&str> {
        match owner {
            Owner::Producer(key) => self
                .producers
                .get(&key)
                .map(|slot| slot.producer.config.topic.as_str()),
            Owner::Call(key) => self.calls.get(&key).and_then(|call| call.lookup_topic()),
            Owner::Consumer(key) => self.consumers.get(&key).map(|slot| slot.consumer.topic()),
            Owner::Watch(_) => None,
        }
    }

    /// Goes to a broker, over a connection that is there or a new one.
    fn go(&mut self, now: Nanos, owner: Owner, url: String, proxy_to: Option<String>, step: Step) {
        let slot = match (owner, step) {
            (Owner::Producer(key), Step::Open) => key.0 % self.config.connections_per_broker,
            (Owner::Consumer(key), Step::Open) => key.0 % self.config.connections_per_broker,
            _ => 0,
        };
        let address = Address {
            url,
            proxy_to,
            slot,
        };
        let known = self.pool.get(&address).copied();
        let conn = known.unwrap_or_else(|| self.connect(now, address));
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        if connection.state == State::Ready {
            self.arrive(now, owner, conn, step);
        } else {
            connection.waiters.push(owner);
            self.place(owner, Place::Connecting { conn, step });
        }
    }

    fn connect(&mut self, now: Nanos, address: Address) -> ConnKey {
        let conn = ConnKey(self.next_key());
        let url = address.url.clone();
        self.pool.insert(address.clone(), conn);
        self.conns.insert(conn, Connection::new(now, address));
        self.events.push_back(Event::Connect { conn, url });
        self.arm_conn(conn);
        conn
    }

    pub(super) fn place(&mut self, owner: Owner, place: Place) {
        if let Some(way) = self.way(owner) {
            way.place = place;
        }
        self.arm_way(owner);
    }

    /// The connection is ready: the next step.
    fn arrive(&mut self, now: Nanos, owner: Owner, conn: ConnKey, step: Step) {
        match step {
            Step::Lookup {
                authoritative,
                redirects,
            } => self.ask_lookup(now, owner, conn, authoritative, redirects),
            Step::Open => self.open(now, owner, conn),
        }
        self.tell(conn);
    }

    fn ask_lookup(
        &mut self,
        now: Nanos,
        owner: Owner,
        conn: ConnKey,
        authoritative: bool,
        redirects: u32,
    ) {
        let Some(topic) = self.topic_of(owner).map(str::to_owned) else {
            return;
        };
        let request_id = self.requests.add(now, conn, Request::Lookup(owner));
        let lookup = CommandLookupTopic {
            topic,
            request_id,
            authoritative: Some(authoritative),
            advertised_listener_name: self.config.listener_name.clone(),
            ..Default::default()
        };
        self.say(
            conn,
            &BaseCommand {
                lookup_topic: Some(lookup),
                ..base(Type::Lookup)
            },
        );
        self.place(owner, Place::LookingUp { conn, redirects });
    }

    /// A LOOKUP_RESPONSE.
    pub(super) fn looked_up(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        owner: Owner,
        answer: CommandLookupTopicResponse,
    ) {
        let Some(connection) = self.conns.get(&conn) else {
            return;
        };
        let (through, secure) = (connection.address.url.clone(), connection.is_secure());
        let redirects = match self.way(owner).map(|way| way.place) {
            Some(Place::LookingUp {
                conn: on,
                redirects,
            }) if on == conn => redirects,
            _ => return,
        };
        let kind = answer.response();
        if kind == LookupType::Failed {
            let error = Error::Broker {
                code: answer.error(),
                message: answer.message.unwrap_or_default(),
            };
            return self.way_failed(now, owner, error);
        }
        let (authoritative, proxied) = (answer.authoritative(), answer.proxy_through_service_url());
        let url = if secure {
            answer.broker_service_url_tls
        } else {
            answer.broker_service_url
        };
        let url = url.unwrap_or_default();
        if !is_url_of(&url, secure) {
            let error = Error::Connection(format!(
                "the lookup named no broker for {}, but {:?}",
                if secure { "TLS" } else { "plain connections" },
                url.get(..MAX_URL).unwrap_or(&url),
            ));
            return self.way_failed(now, owner, error);
        }
        if kind == LookupType::Redirect {
            if redirects >= self.config.max_lookup_redirects {
                let limit = self.config.max_lookup_redirects;
                let error =
                    Error::Connection(format!("the lookup was redirected more than {limit} times"));
                return self.way_failed(now, owner, error);
            }
            let step = Step::Lookup {
                authoritative,
                redirects: redirects + 1,
            };
            return self.go(now, owner, url, None, step);
        }
        if let Owner::Call(call) = owner {
            return self.answer(call, Ok(Answer::Broker(url)));
        }
        if proxied {
            let (_, broker) = url.split_once("://").unwrap_or(("", &url));
            let broker = broker.trim_end_matches('/').to_owned();
            self.go(now, owner, through, Some(broker), Step::Open);
        } else {
            self.go(now, owner, url, None, Step::Open);
        }
    }

    /// An attempt failed: another one later, or the end.
    pub(super) fn way_failed(&mut self, now: Nanos, owner: Owner, error: Error) {
        let mut rng = self.rng.clone();
        let Some(way) = self.way(owner) else { return };
        if !is_retriable(&error, way.established) {
            return self.give_up(owner, error);
        }
        let at = now.saturating_add(way.backoff.next(&mut rng));
        way.last_error = Some(error);
        way.place = Place::Retry { at };
        self.rng = rng;
        self.detached(owner);
        self.arm_way(owner);
    }

    /// It will not be opened, or is open no more.
    pub(super) fn give_up(&mut self, owner: Owner, error: Error) {
        match owner {
            Owner::Producer(producer) => self.fail_producer(producer, error),
            Owner::Call(call) => self.answer(call, Err(error)),
            Owner::Watch(watch) => self.fail_watch(watch, error),
            Owner::Consumer(consumer) => self.fail_consumer(consumer, error),
        }
    }

    pub(super) fn way_timeout(&mut self, now: Nanos, at: Nanos, owner: Owner) {
        let millis = self.config.operation_timeout / MILLIS;
        let Some(way) = self.way(owner) else { return };
        if way.armed == at {
            way.armed = Nanos::MAX;
        }
        if way.is_over(now) {
            // What went wrong says more than that it took long.
            let error = way.last_error.take().unwrap_or(Error::Timeout {
                what: "opening",
                millis,
            });
            return self.give_up(owner, error);
        }
        if let Place::Retry { at } = way.place
            && at <= now
        {
            self.set_out(now, owner);
        }
        self.arm_way(owner);
    }

    pub(super) fn arm_way(&mut self, owner: Owner) {
        let mut timers = std::mem::take(&mut self.timers);
        if let Some(way) = self.way(owner) {
            let due = way.poll_timeout();
            arm(&mut timers, &mut way.armed, due, Timer::Way(owner));
        }
        self.timers = timers;
    }

    /// The broker has answered CONNECT.
    pub(super) fn ready(&mut self, now: Nanos, conn: ConnKey) {
        let Some(connection) = self.conns.get_mut(&conn) else {
            return;
        };
        connection.state = State::Ready;
        let waiters = std::mem::take(&mut connection.waiters);
        self.arm_conn(conn);
        for owner in waiters {
            if let Some(Place::Connecting { conn: on, step }) = self.way(owner).map(|w| w.place)
                && on == conn
            {
                self.arrive(now, owner, conn, step);
            }
        }
    }

    /// Forgets a connection; everybody on it is sent on their way again.
    pub(super) fn lose(&mut self, now: Nanos, conn: ConnKey, error: &Error) {
        let Some(connection) = self.conns.remove(&conn) else {
            return;
        };
        self.pool.remove(&connection.address);
        if connection.state != State::Ready {
            // Another service URL may do better.
            self.service = self.service.wrapping_add(1);
        }
        for (_, request) in self.requests.lost(conn) {
            self.request_failed(now, conn, request, error.clone(), false);
        }
        let mut owners: Vec<Owner> = Vec::new();
        let on = |way: &Way| way.conn() == Some(conn);
        owners.extend(
            self.producers
                .iter()
                .filter(|(_, slot)| on(&slot.way))
                .map(|(&key, _)| Owner::Producer(key)),
        );
        owners.extend(
            self.consumers
                .iter()
                .filter(|(_, slot)| on(&slot.way))
                .map(|(&key, _)| Owner::Consumer(key)),
        );
        owners.extend(
            self.calls
                .iter()
                .filter(|(_, call)| on(&call.way))
                .map(|(&key, _)| Owner::Call(key)),
        );
        owners.extend(
            self.watches
                .iter()
                .filter(|(_, watch)| on(&watch.way))
                .map(|(&key, _)| Owner::Watch(key)),
        );
        owners.sort_unstable();
        for owner in owners {
            if let Owner::Consumer(consumer) = owner {
                self.consumer_detached(now, consumer, Detached::ConnectionLost);
            }
            self.way_failed(now, owner, error.clone());
        }
    }

    /// Says a command on a connection.
    pub(super) fn say(&mut self, conn: ConnKey, command: &BaseCommand) {
        if let Some(connection) = self.conns.get_mut(&conn) {
            connection.output.command(command);
        }
    }

    fn open(&mut self, now: Nanos, owner: Owner, conn: ConnKey) {
        match owner {
            Owner::Producer(producer) => self.say_producer(now, conn, producer),
            Owner::Call(call) => self.ask(now, conn, call),
            Owner::Watch(watch) => self.say_watch(now, conn, watch),
            Owner::Consumer(consumer) => self.say_subscribe(now, conn, consumer),
        }
    }

    /// The owner is no longer on a connection.
    fn detached(&mut self, owner: Owner) {
        match owner {
            Owner::Producer(producer) => self.producer_detached(producer),
            // A consumer is told by whoever knows why.
            Owner::Consumer(_) | Owner::Call(_) | Owner::Watch(_) => {}
        }
    }

    /// The broker closes a producer or consumer that is open, and may say where to go instead.
    pub(super) fn sent_away(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        owner: Owner,
        url: Option<String>,
    ) {
        let pause = self.config.backoff.initial;
        let Some(way) = self.way(owner).filter(|way| way.conn() == Some(conn)) else {
            return;
        };
        way.assigned = url;
        // Whoever is sent from one to the next and never stays is not to run in circles as fast as the network is.
        let settled = way
            .moved_at
            .is_none_or(|at| now.saturating_sub(at) >= pause);
        way.moved_at = Some(now);
        if !matches!(way.place, Place::Attached { .. }) {
            // What was asked on the way is asked anew; an answer to it would be taken for one to that.
            self.requests
                .forget(|r| r == Request::Open(owner) || r == Request::Lookup(owner));
        }
        if let Owner::Consumer(consumer) = owner {
            self.consumer_detached(now, consumer, Detached::ClosedByBroker);
        }
        let Some(way) = self.way(owner) else { return };
        if way.assigned.is_some() && settled {
            way.place = Place::Retry { at: now };
            self.detached(owner);
            self.set_out(now, owner);
        } else {
            let error = Error::Connection("the broker closed it".into());
            self.way_failed(now, owner, error);
        }
    }

    /// The topic has moved to another cluster; what closes it here follows.
    pub(super) fn migrated(&mut self, conn: ConnKey, owner: Owner, url: Option<String>) {
        if let Some(way) = self.way(owner).filter(|way| way.conn() == Some(conn))
            && url.is_some()
        {
            way.service = url;
        }
    }

    /// Of two URLs the one that suits a connection.
    pub(super) fn suiting(
        &self,
        conn: ConnKey,
        plain: Option<String>,
        secure: Option<String>,
    ) -> Option<String> {
        let is_secure = self.conns.get(&conn)?.is_secure();
        let url = if is_secure { secure } else { plain };
        url.filter(|url| is_url_of(url, is_secure))
    }

    /// Who answers on a connection must be what was asked.
    pub(super) fn unexpected(what: &str) -> Result<()> {
        Err(Error::Protocol(format!("unexpected {what}")))
    }
}

/// Longest URL of a broker, in bytes.
const MAX_URL: usize = 1024;

/// Whether a broker may be reached so. From a connection with TLS nobody is sent to one without: credentials would go over it.
fn is_url_of(url: &str, secure: bool) -> bool {
    let tls = url.starts_with("pulsar+ssl://");
    !url.is_empty() && url.len() <= MAX_URL && (tls || !secure)
}
