//! Producers of the machine: opening, sending, closing.

use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, CommandCloseProducer, CommandProducer, CommandProducerSuccess};

use super::super::connection::base;
use super::super::event::Event;
use super::super::lookup::{Owner, Place, Way};
use super::super::producer::fields::key_values;
use super::super::producer::{Producer, Refused, Verdict};
use super::super::requests::Request;
use super::super::{AccessMode, ConnKey, MILLIS, Nanos, ProducerConfig, ProducerKey, Ticket};
use super::{Machine, Timer, arm};
use crate::error::{Error, Result};
use crate::message::OutgoingMessage;

/// Longest name, and schema version, that a broker may give a producer, in bytes: they are in each of its messages.
const MAX_NAME: usize = 4 * 1024;

pub(super) struct ProducerSlot<S> {
    pub(super) way: Way,
    pub(super) producer: Producer<S>,
    /// It stands in its connection's list of those who have more.
    blocked: bool,
    /// It is being closed; no send is taken.
    closing: bool,
    /// It will be closed once its last send has its end; no send is taken.
    retiring: bool,
    /// The earliest timer that is set.
    armed: Nanos,
}

impl<S: Ticket> Machine<S> {
    /// Opens a producer: [`Event::ProducerOpened`] or [`Event::ProducerFailed`] follows. Sends are taken at once.
    ///
    /// # Errors
    /// If a setting cannot be.
    pub fn open_producer(&mut self, now: Nanos, config: ProducerConfig) -> Result<ProducerKey> {
        config.check()?;
        let key = ProducerKey(self.next_key());
        let way = Way::new(self.config.backoff, now, self.config.operation_timeout);
        let slot = ProducerSlot {
            way,
            producer: Producer::new(key, config),
            blocked: false,
            closing: false,
            retiring: false,
            armed: Nanos::MAX,
        };
        self.producers.insert(key, slot);
        self.set_out(now, Owner::Producer(key));
        self.arm_way(Owner::Producer(key));
        Ok(key)
    }

    /// Sends a message. What comes with it is given back in one [`Event::Sends`].
    ///
    /// # Errors
    /// If it is not taken: the producer is closed, its queue full, the message too large.
    pub fn send(
        &mut self,
        now: Nanos,
        producer: ProducerKey,
        message: OutgoingMessage,
        ticket: S,
    ) -> Result<(), Box<Refused<S>>> {
        let Some(slot) = self
            .producers
            .get_mut(&producer)
            .filter(|s| !s.closing && !s.retiring)
        else {
            return Err(Box::new(Refused {
                message,
                ticket,
                error: Error::Closed("the producer"),
            }));
        };
        slot.producer.send(now, message, ticket)?;
        self.after_producer(producer);
        Ok(())
    }

    /// Answers with an [`Event::Flushed`] of the number returned once everything that was sent until now has its end.
    ///
    /// # Errors
    /// If the producer is closed.
    pub fn flush(&mut self, producer: ProducerKey) -> Result<u64> {
        let slot = self.producers.get_mut(&producer);
        let slot = slot.ok_or(Error::Closed("the producer"))?;
        let flush = slot.producer.flush();
        self.after_producer(producer);
        Ok(flush)
    }

    /// Closes a producer: sends without receipt end with an error. [`Event::ProducerClosed`] follows, if it was not closed already.
    pub fn close_producer(&mut self, now: Nanos, producer: ProducerKey) {
        let Some(slot) = self.producers.get_mut(&producer) else {
            return;
        };
        if std::mem::replace(&mut slot.closing, true) {
            return;
        }
        slot.producer.fail_all(&Error::Closed("the producer"));
        let conn = match slot.way.place {
            Place::Attached { conn } | Place::Opening { conn } | Place::Queued { conn } => {
                Some(conn)
            }
            _ => None,
        };
        slot.producer.ready = false;
        self.collect(producer);
        match conn {
            Some(conn) => {
                let owner = Owner::Producer(producer);
                self.requests.forget(|r| {
                    r == Request::Open(owner) || r == Request::ReopenProducer(producer)
                });
                self.say_close_producer(now, conn, producer, Request::CloseProducer(producer));
                self.place(owner, Place::Attached { conn });
            }
            None => self.producer_closed(producer),
        }
    }

    /// Closes a producer once everything that was sent has its end, as when its last owner has gone.
    pub fn retire_producer(&mut self, now: Nanos, producer: ProducerKey) {
        let Some(slot) = self.producers.get_mut(&producer) else {
            return;
        };
        slot.retiring = true;
        slot.producer.seal();
        if slot.producer.pending() == 0 {
            self.close_producer(now, producer);
        } else {
            self.after_producer(producer);
        }
    }

    /// Skips sends that nobody waits for any more, as far as they are not on the wire. Of one producer, or of all.
    pub fn sweep(&mut self, producer: Option<ProducerKey>) {
        let keys = match producer {
            Some(key) => vec![key],
            None => {
                let mut all: Vec<_> = self.producers.keys().copied().collect();
                all.sort_unstable();
                all
            }
        };
        for key in keys {
            if let Some(slot) = self.producers.get_mut(&key) {
                slot.producer.sweep();
                self.collect(key);
            }
        }
    }

    /// Sends of a producer that have no end yet.
    #[must_use]
    pub fn pending(&self, producer: ProducerKey) -> usize {
        let slot = self.producers.get(&producer);
        slot.map_or(0, |slot| slot.producer.pending())
    }

    /// The highest sequence id that the broker has of this producer, as far as is known here; -1 if none.
    #[must_use]
    pub fn last_sequence_id(&self, producer: ProducerKey) -> i64 {
        let slot = self.producers.get(&producer);
        slot.map_or(-1, |slot| slot.producer.last_sequence_id)
    }

    /// The settings of a producer.
    #[must_use]
    pub fn producer_config(&self, producer: ProducerKey) -> Option<&ProducerConfig> {
        let slot = self.producers.get(&producer);
        slot.map(|slot| &slot.producer.config)
    }

    /// Whether the producer is open on a connection now.
    #[must_use]
    pub fn is_producer_connected(&self, producer: ProducerKey) -> bool {
        self.producers
            .get(&producer)
            .is_some_and(|slot| slot.producer.ready)
    }

    /// Whatever was done to a producer: its output, its timer, its events.
    pub(super) fn after_producer(&mut self, key: ProducerKey) {
        let Some(slot) = self.producers.get_mut(&key) else {
            return;
        };
        if slot.producer.has_more()
            && !slot.blocked
            && let Some(conn) = slot.way.attached()
            && let Some(connection) = self.conns.get_mut(&conn)
        {
            if connection.blocked.is_empty() {
                let (wall, at) = self.wall;
                let wall = |time: Nanos| wall_ms(wall, at, time);
                slot.producer.fill(wall, &mut connection.output);
            }
            if slot.producer.has_more() {
                slot.blocked = true;
                connection.blocked.push_back(key);
            }
            self.tell(conn);
        }
        self.arm_producer(key);
        self.collect(key);
    }

    /// Lets the producers that wait for room on a connection have it, in turn.
    pub(super) fn unblock(&mut self, conn: ConnKey) {
        let (wall, at) = self.wall;
        while let Some(connection) = self.conns.get_mut(&conn)
            && connection.output.has_room()
            && let Some(key) = connection.blocked.pop_front()
        {
            if let Some(slot) = self.producers.get_mut(&key) {
                slot.blocked = false;
                if slot.way.attached() == Some(conn) {
                    let wall = |time: Nanos| wall_ms(wall, at, time);
                    slot.producer.fill(wall, &mut connection.output);
                    if slot.producer.has_more() {
                        slot.blocked = true;
                        connection.blocked.push_back(key);
                    }
                }
                self.collect(key);
            }
        }
    }

    fn arm_producer(&mut self, key: ProducerKey) {
        if let Some(slot) = self.producers.get_mut(&key) {
            let due = slot.producer.poll_timeout();
            arm(&mut self.timers, &mut slot.armed, due, Timer::Producer(key));
        }
    }

    pub(super) fn producer_timeout(&mut self, now: Nanos, at: Nanos, key: ProducerKey) {
        let Some(slot) = self.producers.get_mut(&key) else {
            return;
        };
        if slot.armed == at {
            slot.armed = Nanos::MAX;
        }
        slot.producer.handle_timeout(now);
        self.after_producer(key);
        let slot = self.producers.get(&key);
        if slot.is_some_and(|slot| slot.retiring && slot.producer.pending() == 0) {
            self.close_producer(now, key);
        }
    }

    /// Passes on what a producer has to tell.
    fn collect(&mut self, key: ProducerKey) {
        let Some(slot) = self
            .producers
            .get_mut(&key)
            .filter(|s| s.producer.has_ends())
        else {
            return;
        };
        if slot.retiring && slot.producer.pending() == 0 {
            // Closed with the next look at the timers, which is at once.
            arm(
                &mut self.timers,
                &mut slot.armed,
                Some(0),
                Timer::Producer(key),
            );
        }
        self.events
            .extend(slot.producer.take_ends().map(Event::Sends));
        let flushed = slot.producer.take_flushed();
        self.events.extend(flushed.map(|flush| Event::Flushed {
            producer: key,
            flush,
        }));
    }

    pub(super) fn say_producer(&mut self, now: Nanos, conn: ConnKey, key: ProducerKey) {
        let Some(slot) = self.producers.get(&key) else {
            return;
        };
        let (producer, config) = (&slot.producer, &slot.producer.config);
        let owner = Owner::Producer(key);
        let name = Some(producer.name.clone()).filter(|name| !name.is_empty());
        let command = CommandProducer {
            topic: config.topic.clone(),
            producer_id: key.0,
            request_id: self.requests.add(now, conn, Request::Open(owner)),
            user_provided_producer_name: Some(!producer.name_from_broker),
            producer_name: name,
            metadata: key_values(config.properties.clone()),
            schema: config.schema.clone(),
            epoch: Some(producer.epoch),
            producer_access_mode: Some(config.access_mode.wire() as i32),
            topic_epoch: producer.topic_epoch,
            initial_subscription_name: config.initial_subscription.clone(),
            ..Default::default()
        };
        self.say(
            conn,
            &BaseCommand {
                producer: Some(command),
                ..base(Type::Producer)
            },
        );
        self.place(owner, Place::Opening { conn });
    }

    /// A PRODUCER_SUCCESS.
    pub(super) fn producer_success(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        key: ProducerKey,
        success: CommandProducerSuccess,
    ) {
        let owner = Owner::Producer(key);
        let max = self.conns.get(&conn).map_or(0, |c| c.max_message_size);
        let waits = self.waits(key);
        let Some(slot) = self.producers.get_mut(&key) else {
            // It was closed meanwhile.
            return self.say_close_producer(now, conn, key, Request::Ignored);
        };
        let version = success.schema_version.as_ref().map_or(0, |v| v.len());
        let said = success.producer_name.len().max(version);
        if said > MAX_NAME.max(slot.producer.name.len()) {
            let error = Error::Protocol(format!(
                "the broker names the producer with {said} bytes, which are in each of its messages; at most {MAX_NAME} are taken"
            ));
            self.say_close_producer(now, conn, key, Request::Ignored);
            return self.way_failed(now, owner, error);
        }
        if !success.producer_ready() && !waits {
            // Only who said so waits for its turn, for as long as it takes.
            let error = Error::Protocol("the broker lets the producer wait for its turn".into());
            self.say_close_producer(now, conn, key, Request::Ignored);
            return self.way_failed(now, owner, error);
        }
        if !success.producer_ready() {
            let request_id = success.request_id;
            self.requests.keep(conn, request_id, Request::Open(owner));
            return self.place(owner, Place::Queued { conn });
        }
        slot.way.succeeded(conn);
        let first = !slot.producer.opened_once;
        slot.producer.opened(success, max);
        if first {
            self.events.push_back(Event::ProducerOpened {
                producer: key,
                name: slot.producer.name.clone(),
                last_sequence_id: slot.producer.last_sequence_id,
                schema_version: slot.producer.schema_version.clone(),
            });
        }
        self.after_producer(key);
    }

    pub(super) fn producer_detached(&mut self, key: ProducerKey) {
        if let Some(slot) = self.producers.get_mut(&key) {
            if slot.producer.opened_once && slot.producer.ready {
                slot.producer.epoch += 1;
            }
            slot.producer.detached();
            slot.blocked = false;
            let closing = slot.closing;
            for connection in self.conns.values_mut() {
                connection.blocked.retain(|&other| other != key);
            }
            if closing {
                self.producer_closed(key);
            }
        }
    }

    pub(super) fn say_close_producer(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        key: ProducerKey,
        request: Request,
    ) {
        if !self.conns.contains_key(&conn) {
            return;
        }
        let close = CommandCloseProducer {
            producer_id: key.0,
            request_id: self.requests.add(now, conn, request),
            ..Default::default()
        };
        self.say(
            conn,
            &BaseCommand {
                close_producer: Some(close),
                ..base(Type::CloseProducer)
            },
        );
        self.tell(conn);
    }

    /// A producer is closed as asked.
    pub(super) fn producer_closed(&mut self, key: ProducerKey) {
        if let Some(mut slot) = self.producers.remove(&key) {
            slot.producer.fail_all(&Error::Closed("the producer"));
            self.last_words(key, &mut slot);
            self.events
                .push_back(Event::ProducerClosed { producer: key });
        }
    }

    /// A producer has come to its end by itself.
    pub(super) fn fail_producer(&mut self, key: ProducerKey, error: Error) {
        if let Some(mut slot) = self.producers.remove(&key) {
            slot.producer.fail_all(&error);
            self.last_words(key, &mut slot);
            self.events.push_back(if slot.closing || slot.retiring {
                Event::ProducerClosed { producer: key }
            } else {
                Event::ProducerFailed {
                    producer: key,
                    error,
                }
            });
        }
    }

    fn last_words(&mut self, key: ProducerKey, slot: &mut ProducerSlot<S>) {
        self.requests.forget(|request| {
            request == Request::Open(Owner::Producer(key))
                || request == Request::Lookup(Owner::Producer(key))
        });
        self.events
            .extend(slot.producer.take_ends().map(Event::Sends));
        let flushed = slot.producer.take_flushed();
        self.events.extend(flushed.map(|flush| Event::Flushed {
            producer: key,
            flush,
        }));
    }

    /// What a receipt or an error means for producer and connection.
    pub(super) fn judge(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        key: ProducerKey,
        verdict: Verdict,
    ) -> Result<()> {
        match verdict {
            Verdict::Fine => {}
            Verdict::CloseConnection(why) => return Err(Error::Protocol(why)),
            Verdict::Terminal(error) => {
                self.say_close_producer(now, conn, key, Request::Ignored);
                self.fail_producer(key, error);
                return Ok(());
            }
            Verdict::Reopen(_) => self.reopen(now, conn, key),
        }
        self.after_producer(key);
        Ok(())
    }

    /// Closes the producer at the broker and opens it again when that is answered, so that nothing of before comes after.
    fn reopen(&mut self, now: Nanos, conn: ConnKey, key: ProducerKey) {
        let attached = self.producers.get(&key).and_then(|s| s.way.attached());
        if attached != Some(conn) {
            return; // Under way already.
        }
        self.producer_detached(key);
        if self.producers.contains_key(&key) {
            let request = Request::ReopenProducer(key);
            self.say_close_producer(now, conn, key, request);
            self.place(Owner::Producer(key), Place::Opening { conn });
        }
    }

    /// The broker has closed what is to be opened again.
    pub(super) fn reopen_closed(&mut self, now: Nanos, key: ProducerKey) {
        let error = Error::Connection("a send failed at the broker".into());
        self.way_failed(now, Owner::Producer(key), error);
    }

    /// The broker refuses to open a producer.
    pub(super) fn producer_refused(&mut self, now: Nanos, key: ProducerKey, error: Error) {
        use vela_proto::ServerError;
        let code = match &error {
            Error::Broker { code, .. } => *code,
            _ => ServerError::UnknownError,
        };
        match code {
            ServerError::ProducerBlockedQuotaExceededException => {
                if let Some(slot) = self.producers.get_mut(&key) {
                    slot.producer.fail_all(&error);
                }
                self.collect(key);
                self.way_failed(now, Owner::Producer(key), error);
            }
            ServerError::TopicTerminatedError => self.fail_producer(key, Error::TopicTerminated),
            ServerError::ProducerFenced => {
                self.fail_producer(key, Error::Fenced(error.to_string()));
            }
            ServerError::ProducerBusy if self.waits(key) => {
                let error = Error::Connection(error.to_string());
                self.way_failed(now, Owner::Producer(key), error);
            }
            _ => self.way_failed(now, Owner::Producer(key), error),
        }
    }

    /// A producer that waits for its turn is told that others are there by waiting, not by an error.
    fn waits(&self, key: ProducerKey) -> bool {
        self.producers
            .get(&key)
            .is_some_and(|s| s.producer.config.access_mode == AccessMode::WaitForExclusive)
    }
}

fn wall_ms(wall: u64, at: Nanos, time: Nanos) -> u64 {
    if time >= at {
        wall.saturating_add((time - at) / MILLIS)
    } else {
        wall.saturating_sub((at - time) / MILLIS)
    }
}
