//! Consumers of the machine: each is a state machine of its own, which is brought to its broker here and given what comes for it.

use bytes::Bytes;
use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, CommandCloseConsumer, CommandMessage};

use super::super::connection::{Output, base};
use super::super::consumer::{Consumer, ConsumerConfig, ConsumerEvent, Detached, Wire};
use super::super::event::Event;
use super::super::lookup::{Owner, Place, Way};
use super::super::requests::{Request, Requests};
use super::super::{ConnKey, ConsumerKey, Nanos, Ticket};
use super::{Machine, Timer, arm};
use crate::error::{Error, Result};

pub(super) struct ConsumerSlot {
    pub(super) way: Way,
    pub(super) consumer: Consumer,
    /// The earliest timer that is set.
    armed: Nanos,
}

/// What a consumer writes to: its connection, or nothing while it has none.
pub struct ConsumerWire<'a> {
    requests: &'a mut Requests,
    output: Option<&'a mut Output>,
    conn: ConnKey,
    consumer: ConsumerKey,
    now: Nanos,
}

impl Wire for ConsumerWire<'_> {
    fn request_id(&mut self) -> u64 {
        let request = Request::Consumer(self.consumer);
        self.requests.add(self.now, self.conn, request)
    }

    fn command(&mut self, command: BaseCommand) {
        if let Some(output) = &mut self.output {
            output.command(&command);
        }
    }
}

impl<S: Ticket> Machine<S> {
    /// Opens a consumer: [`Event::Consumer`] with [`ConsumerEvent::Subscribed`], or [`Event::ConsumerFailed`] follows.
    pub fn open_consumer(&mut self, now: Nanos, config: ConsumerConfig) -> ConsumerKey {
        let key = ConsumerKey(self.next_key());
        let slot = ConsumerSlot {
            way: Way::new(self.config.backoff, now, self.config.operation_timeout),
            consumer: Consumer::new(key.0, config).call_timeout(self.config.operation_timeout),
            armed: Nanos::MAX,
        };
        self.consumers.insert(key, slot);
        self.set_out(now, Owner::Consumer(key));
        self.arm_way(Owner::Consumer(key));
        key
    }

    /// Does something with a consumer and what it writes to; its events come by [`poll_event`](Self::poll_event). `None` if the consumer
    /// is closed.
    pub fn with_consumer<R>(
        &mut self,
        now: Nanos,
        key: ConsumerKey,
        run: impl FnOnce(&mut Consumer, &mut ConsumerWire<'_>) -> R,
    ) -> Option<R> {
        let slot = self.consumers.get_mut(&key)?;
        let on = match slot.way.place {
            Place::Attached { conn } | Place::Opening { conn } => Some(conn),
            _ => None,
        };
        let output = on.and_then(|conn| self.conns.get_mut(&conn));
        let mut wire = ConsumerWire {
            requests: &mut self.requests,
            output: output.map(|connection| &mut connection.output),
            conn: on.unwrap_or(ConnKey(0)),
            consumer: key,
            now,
        };
        let result = run(&mut slot.consumer, &mut wire);
        self.after_consumer(now, key);
        Some(result)
    }

    /// A consumer, to look at.
    #[must_use]
    pub fn consumer(&self, key: ConsumerKey) -> Option<&Consumer> {
        self.consumers.get(&key).map(|slot| &slot.consumer)
    }

    /// Whether the consumer is subscribed on a connection now.
    #[must_use]
    pub fn is_consumer_connected(&self, key: ConsumerKey) -> bool {
        let slot = self.consumers.get(&key);
        slot.is_some_and(|slot| slot.way.attached().is_some())
    }

    /// Ends a consumer without a word to the broker, as a client does that is closed.
    pub(super) fn fail_consumer(&mut self, key: ConsumerKey, error: Error) {
        if self.consumers.remove(&key).is_some() {
            let (owner, request) = (Owner::Consumer(key), Request::Consumer(key));
            self.requests
                .forget(|r| r == Request::Lookup(owner) || r == request);
            self.events.push_back(Event::ConsumerFailed {
                consumer: key,
                error,
            });
        }
    }

    pub(super) fn say_subscribe(&mut self, now: Nanos, conn: ConnKey, key: ConsumerKey) {
        self.place(Owner::Consumer(key), Place::Opening { conn });
        self.with_consumer(now, key, |consumer, wire| consumer.subscribe(now, wire));
    }

    /// A MESSAGE.
    ///
    /// # Errors
    /// If its permits cannot be right: the connection is to be closed.
    pub(super) fn on_message(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        message: CommandMessage,
        rest: Bytes,
    ) -> Result<()> {
        let key = ConsumerKey(message.consumer_id);
        if !self.is_on(conn, key) {
            return Ok(());
        }
        self.with_consumer(now, key, |consumer, wire| {
            consumer.handle_message(now, message, rest, wire)
        })
        .unwrap_or(Ok(()))
        .map_err(Error::from)
    }

    /// Anything else for a consumer that is no answer.
    pub(super) fn on_consumer_command(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        id: u64,
        command: &BaseCommand,
    ) {
        let key = ConsumerKey(id);
        if self.is_on(conn, key) {
            self.with_consumer(now, key, |consumer, wire| {
                consumer.handle_command(now, command, wire);
            });
        }
    }

    /// An answer to something a consumer asked.
    pub(super) fn consumer_answered(
        &mut self,
        now: Nanos,
        key: ConsumerKey,
        request_id: u64,
        result: Result<BaseCommand>,
    ) {
        let timed_out = matches!(result, Err(Error::Timeout { .. }));
        if timed_out
            && let Some(slot) = self.consumers.get(&key)
            && slot.consumer.is_subscribing(request_id)
            && let Place::Opening { conn } = slot.way.place
        {
            // The broker may still subscribe it: it shall not stay.
            let close = CommandCloseConsumer {
                consumer_id: key.0,
                request_id: self.requests.add(now, conn, Request::Ignored),
                ..Default::default()
            };
            self.say(
                conn,
                &BaseCommand {
                    close_consumer: Some(close),
                    ..base(Type::CloseConsumer)
                },
            );
        }
        self.with_consumer(now, key, |consumer, wire| {
            consumer.handle_answer(now, request_id, result, wire);
        });
    }

    pub(super) fn consumer_detached(&mut self, now: Nanos, key: ConsumerKey, why: Detached) {
        if let Some(slot) = self.consumers.get_mut(&key) {
            slot.consumer.detached(now, why);
            self.after_consumer(now, key);
        }
    }

    pub(super) fn consumer_timeout(&mut self, now: Nanos, at: Nanos, key: ConsumerKey) {
        let Some(slot) = self.consumers.get_mut(&key) else {
            return;
        };
        if slot.armed == at {
            slot.armed = Nanos::MAX;
        }
        self.with_consumer(now, key, |consumer, wire| {
            consumer.handle_timeout(now, wire);
        });
    }

    fn is_on(&self, conn: ConnKey, key: ConsumerKey) -> bool {
        let slot = self.consumers.get(&key);
        slot.is_some_and(|slot| slot.way.conn() == Some(conn))
    }

    /// Whatever was done to a consumer: its output, its timer, its events.
    fn after_consumer(&mut self, now: Nanos, key: ConsumerKey) {
        while let Some(slot) = self.consumers.get_mut(&key)
            && let Some(event) = slot.consumer.poll_event()
        {
            match event {
                ConsumerEvent::SubscribeFailed(error) => {
                    self.way_failed(now, Owner::Consumer(key), error);
                    continue;
                }
                ConsumerEvent::Subscribed { .. } => {
                    if let Some(conn) = slot.way.conn() {
                        slot.way.succeeded(conn);
                    }
                }
                ConsumerEvent::Closed => {
                    self.consumers.remove(&key);
                    let owner = Owner::Consumer(key);
                    self.requests.forget(|r| r == Request::Lookup(owner));
                }
                _ => {}
            }
            self.events.push_back(Event::Consumer {
                consumer: key,
                event,
            });
        }
        let Some(slot) = self.consumers.get_mut(&key) else {
            return;
        };
        let due = slot.consumer.poll_timeout();
        arm(&mut self.timers, &mut slot.armed, due, Timer::Consumer(key));
        if let Some(conn) = slot.way.conn() {
            self.tell(conn);
        }
    }
}
