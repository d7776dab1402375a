//! Sessions: the broker's end of one connection each.
//!
//! A session checks what arrives, answers what it can, hands the rest to topics as messages, and writes what comes back. It never waits: an
//! answer that is not there yet comes later as a message. What it must not do is confuse two holders of one producer or consumer id, so a frame
//! that names an id whose close is still running is held, and with it everything behind it, until the close is done.

mod clients;
mod commands;
mod listing;
mod liveness;
mod lookup;
mod outbound;
mod peers;
mod publish;
mod schemas;
pub(super) mod throttling;
mod timers;
pub(super) mod turns;
mod unsupported;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use vela_codec::{Frame, encode, hot};
use vela_proto::{BaseCommand, ServerError, base_command::Type};

use self::listing::{Listing, Watchers};
use self::liveness::Liveness;
use self::throttling::Holds;
use self::timers::Timers;
use self::turns::Turns;
use super::context::{ConnId, Context};
use super::message::{ClientRef, CoreId, Delivery, Message, SessionRef};
use super::output::OutBuf;
use super::reply;
use super::time::Now;

/// Output below which delivered bytes count as written, and their consumers may be sent more.
const WRITTEN_BELOW: usize = 128 << 10;

/// How far the handshake is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Stage {
    /// Accepted; CONNECT must come.
    Start,
    /// CONNECTED was sent.
    Connected,
    /// Closing; nothing that arrives counts any more.
    Closing,
}

/// How far a producer or consumer of a session is.
#[derive(Debug)]
enum ClientState {
    /// Sent to its topic; the answer is on its way. Commands follow it there in order.
    Opening,
    /// Open. For a producer: what a repeated PRODUCER is answered with.
    Open {
        name: String,
        last_sequence_id: i64,
        schema_version: Option<u64>,
        topic_epoch: Option<u64>,
    },
    /// The client closed it; the topic has not finished.
    Closing,
}

#[derive(Debug)]
struct Client {
    incarnation: u32,
    core: CoreId,
    /// Its topic is non-persistent.
    volatile: bool,
    /// Bytes delivered to it and not yet written to the socket.
    unwritten: u32,
    state: ClientState,
}

/// A producer that the broker closed.
#[derive(Copy, Clone, Debug)]
struct ClosedByBroker {
    incarnation: u32,
    /// SENDs are dropped until this time, monotonic milliseconds.
    until: u64,
    /// The client has opened its id again: SENDs are the new one's.
    open_again: bool,
}

impl Client {
    /// The client closes it. `None` if it did so before.
    fn begin_close(&mut self) -> Option<&Self> {
        let before = std::mem::replace(&mut self.state, ClientState::Closing);
        (!matches!(before, ClientState::Closing)).then_some(self)
    }
}

/// The broker's end of one connection.
pub(super) struct Session {
    me: SessionRef,
    peer: SocketAddr,
    local: SocketAddr,
    stage: Stage,
    version: i32,
    /// What the client says it is, for statistics.
    client_version: String,
    producers: BTreeMap<u64, Client>,
    consumers: BTreeMap<u64, Client>,
    /// Producers that the broker closed: SENDs that cross the notice are dropped for a while.
    closed_by_broker: BTreeMap<u64, ClosedByBroker>,
    next_incarnation: u32,
    pending_publishes: u32,
    /// Those of them that go to non-persistent topics.
    pending_volatile: u32,
    holds: Holds,
    reading: bool,
    out: OutBuf,
    dirty: bool,
    /// Consumers with delivered bytes that are not yet written to the socket, and perhaps some that are gone.
    unwritten: Vec<u64>,
    liveness: Liveness,
    /// PARTITIONED_METADATA that topics' cores have not answered: may a missing topic be made?
    inquiries: BTreeMap<u64, bool>,
    /// One list of topics at a time: it may be long, and the question is short. Frames wait for its answer.
    listing: Option<Box<Listing>>,
    /// A question about a schema is open, for the same reason one at a time.
    asks_schema: bool,
    /// Its watchers of topic lists.
    watchers: Watchers,
    /// Some have something to tell, and the session is among those to look at.
    untold: bool,
}

impl Session {
    fn conn(&self) -> ConnId {
        ConnId {
            slot: self.me.slot,
            generation: self.me.generation,
        }
    }

    fn touch(&mut self, cx: &mut Context) {
        if !self.dirty && !self.out.is_empty() {
            self.dirty = true;
            cx.effects.dirty.push(self.conn());
        }
    }

    fn send(&mut self, cx: &mut Context, command: &BaseCommand) {
        self.out.encode(|buf| encode::command(command, buf));
        self.touch(cx);
    }

    fn send_error(
        &mut self,
        cx: &mut Context,
        request_id: u64,
        error: ServerError,
        message: impl Into<String>,
    ) {
        self.send(cx, &reply::error(request_id, error, message));
    }

    fn next_client(&mut self, id: u64) -> ClientRef {
        self.next_incarnation = self.next_incarnation.wrapping_add(1);
        ClientRef {
            session: self.me,
            incarnation: self.next_incarnation,
            id,
        }
    }

    fn client_ref(&self, client: &Client, id: u64) -> ClientRef {
        ClientRef {
            session: self.me,
            incarnation: client.incarnation,
            id,
        }
    }

    /// Ends the session: what is queued is still tried, the runtime reports the closed socket afterwards.
    fn close(&mut self, cx: &mut Context) {
        if self.stage != Stage::Closing {
            self.stage = Stage::Closing;
            self.holds.frame = None;
            cx.effects.close.push(self.conn());
        }
    }

    fn protocol_error(&mut self, cx: &mut Context) {
        cx.counters.protocol_errors += 1;
        self.close(cx);
    }
}

/// A slot of the session table.
#[derive(Default)]
struct Slot {
    generation: u32,
    session: Option<Box<Session>>,
}

/// The sessions of one core.
#[derive(Default)]
pub(super) struct Sessions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Keep-alive, probes, pauses, watchers. A time that no longer fits is skipped when it comes up.
    timers: Timers,
    /// Metadata requests under way: whose they are.
    creations: BTreeMap<u64, (SessionRef, u64, String, u32)>,
    next_token: u64,
    connected: usize,
    turns: Turns,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.connected
    }

    /// Checks what this keeps for its sessions.
    pub(super) fn audit(&self) -> Result<(), String> {
        self.timers.audit(|slot, generation| {
            let slot = self.slots.get(slot as usize);
            slot.is_some_and(|slot| slot.generation == generation && slot.session.is_some())
        })
    }

    fn get(&mut self, slot: u32, generation: u32) -> Option<&mut Session> {
        let slot = self.slots.get_mut(slot as usize)?;
        if slot.generation == generation {
            slot.session.as_deref_mut()
        } else {
            None
        }
    }

    fn find(&mut self, session: SessionRef) -> Option<&mut Session> {
        self.get(session.slot, session.generation)
    }

    pub(super) fn accept(
        &mut self,
        cx: &mut Context,
        peer: SocketAddr,
        local: SocketAddr,
        now: Now,
    ) -> ConnId {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u32
            }
        };
        let interval = u64::from(cx.settings.keep_alive_interval_seconds) * 1000;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return ConnId {
                slot: index,
                generation: 0,
            };
        };
        slot.generation = slot.generation.wrapping_add(1);
        let me = SessionRef {
            core: cx.core,
            slot: index,
            generation: slot.generation,
        };
        slot.session = Some(Box::new(Session {
            me,
            peer,
            local,
            stage: Stage::Start,
            version: 0,
            client_version: String::new(),
            producers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            closed_by_broker: BTreeMap::new(),
            next_incarnation: 0,
            pending_publishes: 0,
            pending_volatile: 0,
            holds: Holds::default(),
            reading: true,
            out: OutBuf::default(),
            dirty: false,
            unwritten: Vec::new(),
            liveness: Liveness::new(now, now.ms + interval),
            inquiries: BTreeMap::new(),
            listing: None,
            asks_schema: false,
            watchers: Watchers::new(),
            untold: false,
        }));
        if interval > 0 {
            self.timers.set(now.ms + interval, index, me.generation);
        }
        self.connected += 1;
        ConnId {
            slot: index,
            generation: me.generation,
        }
    }

    pub(super) fn output(&mut self, conn: ConnId) -> Option<&mut OutBuf> {
        self.get(conn.slot, conn.generation)
            .map(|session| &mut session.out)
    }

    /// One frame of a connection.
    pub(super) fn frame(&mut self, cx: &mut Context, conn: ConnId, frame: Frame, now: Now) {
        let Some(session) = self.get(conn.slot, conn.generation) else {
            return;
        };
        session.heard(cx, now);
        let kind = hot::command_type(frame.command()).ok();
        let cost = kind.map_or(0, turns::cost);
        if cost > 0 && cx.turn_units == 0 && session.stage == Stage::Connected {
            session.holds.frame = Some(Box::new(frame));
            session.holds.turn = true;
            session.reading = false;
            let target = session.me;
            self.turns.commands.push_back(target);
            return;
        }
        Self::handle(session, cx, frame, now);
        session.watch_output(cx, now);
        session.reading = session.wants_frames(cx.settings.publish_pacing)
            && session.read_rule() == throttling::ReadRule::Read;
        self.pace_requests(cx, conn, kind, now);
        self.reconsider_bytes(cx, now);
    }

    fn handle(session: &mut Session, cx: &mut Context, frame: Frame, now: Now) {
        let Ok(kind) = hot::command_type(frame.command()) else {
            return session.protocol_error(cx);
        };
        cx.turn_units = cx.turn_units.saturating_sub(turns::cost(kind));
        match (session.stage, kind) {
            (Stage::Closing, _) | (_, Type::Pong) => {}
            (_, Type::Ping) => {
                session.out.encode(encode::pong);
                session.touch(cx);
            }
            (Stage::Connected, Type::Send) => session.publish(cx, frame, now),
            (Stage::Connected, Type::Flow) => session.flow(cx, &frame),
            (Stage::Connected, Type::Ack) => session.ack(cx, &frame),
            _ => session.command(cx, kind, frame, now),
        }
    }

    /// The socket is gone: the session's producers and consumers leave their topics.
    pub(super) fn closed(&mut self, cx: &mut Context, conn: ConnId) {
        let Some(slot) = self.slots.get_mut(conn.slot as usize) else {
            return;
        };
        if slot.generation != conn.generation {
            return;
        }
        let Some(mut session) = slot.session.take() else {
            return;
        };
        self.free.push(conn.slot);
        self.timers.end(conn.slot, conn.generation);
        self.connected -= 1;
        session.stage = Stage::Closing;
        session.end_holds(cx);
        session.forget_watchers(cx);
        // Those whose close waits for the disk as well: nobody is left to hear of it, and their names are to be free.
        for (id, client) in std::mem::take(&mut session.producers) {
            let client_ref = session.client_ref(&client, id);
            cx.post(
                client.core,
                Message::CloseProducer {
                    client: client_ref,
                    request_id: None,
                },
            );
        }
        for (id, client) in std::mem::take(&mut session.consumers) {
            if !matches!(client.state, ClientState::Closing) {
                let client_ref = session.client_ref(&client, id);
                cx.post(
                    client.core,
                    Message::CloseConsumer {
                        client: client_ref,
                        request_id: None,
                    },
                );
            }
        }
        session.end_probes(cx);
    }

    /// Output was written: deliveries count as written, and a peer that reads again is served again.
    pub(super) fn sent(&mut self, cx: &mut Context, conn: ConnId, now: Now) {
        let Some(session) = self.get(conn.slot, conn.generation) else {
            return;
        };
        session.dirty = false;
        if session.out.is_empty() {
            session.out.release_idle();
        }
        if session.out.len() <= WRITTEN_BELOW {
            for id in session.unwritten.drain(..) {
                let Some(consumer) = session.consumers.get_mut(&id) else {
                    continue;
                };
                let bytes = std::mem::take(&mut consumer.unwritten);
                if bytes > 0 {
                    let client = ClientRef {
                        session: session.me,
                        incarnation: consumer.incarnation,
                        id,
                    };
                    cx.post(consumer.core, Message::Written { client, bytes });
                }
            }
        }
        session.heard_by_output(cx, now);
        session.holds.outbound.unblock();
        let due = session.tell_watchers(cx, now);
        session.watch_output(cx, now);
        Self::settle(session, cx, now);
        if let Some(due) = due {
            self.timers.set(due, conn.slot, conn.generation);
        }
    }

    /// A message from a topic.
    pub(super) fn message(&mut self, cx: &mut Context, message: Message, now: Now) {
        match message {
            Message::Receipt { send, position } => {
                cx.pending_bytes = cx.pending_bytes.saturating_sub(u64::from(send.bytes));
                self.reconsider_bytes(cx, now);
                let Some(session) = self.find(send.client.session) else {
                    return;
                };
                let highest = send.highest_sequence_id.unwrap_or(u64::MAX);
                session.out.encode(|buf| {
                    encode::send_receipt(
                        buf,
                        send.client.id,
                        send.sequence_id,
                        highest,
                        position.ledger as u64,
                        position.entry as u64,
                    );
                });
                if session.answered(cx, &send) {
                    Self::settle(session, cx, now);
                }
            }
            Message::Deliver { client, delivery } => {
                let Some(session) = self.find(client.session) else {
                    return;
                };
                session.deliver(cx, client, delivery);
            }
            Message::SendRefused {
                send,
                error,
                message,
            } => {
                cx.pending_bytes = cx.pending_bytes.saturating_sub(u64::from(send.bytes));
                self.reconsider_bytes(cx, now);
                let Some(session) = self.find(send.client.session) else {
                    return;
                };
                session.out.encode(|buf| {
                    encode::send_error(buf, send.client.id, send.error_sequence(), error, message);
                });
                if session.answered(cx, &send) {
                    Self::settle(session, cx, now);
                }
            }
            Message::NoSuchProducer { send } => {
                // It has no answer, and waits for none.
                cx.pending_bytes = cx.pending_bytes.saturating_sub(u64::from(send.bytes));
                self.reconsider_bytes(cx, now);
                let Some(session) = self.find(send.client.session) else {
                    return;
                };
                session.answered(cx, &send);
                session.no_such_producer(cx, send.client);
                Self::settle(session, cx, now);
            }
            Message::Acked {
                client,
                request_id,
                error,
            } => {
                let Some(session) = self.find(client.session) else {
                    return;
                };
                session
                    .out
                    .encode(|buf| encode::ack_response(buf, client.id, Some(request_id), error));
                session.touch(cx);
            }
            Message::Disconnect { session } => {
                let Some(session) = self.find(session) else {
                    return;
                };
                session.protocol_error(cx);
            }
            Message::Reply { session, command } => {
                let Some(session) = self.find(session) else {
                    return;
                };
                session.send(cx, &command);
                // Questions may be much shorter than their answers: no more of them until these are read.
                session.watch_answers(cx, now);
            }
            Message::Hold { session, reason } => self.throttle(cx, session, reason, true, now),
            Message::Release { session, reason } => self.throttle(cx, session, reason, false, now),
            Message::Probe {
                session,
                probe,
                from,
            } => self.probe(cx, session, probe, from, now),
            Message::TopicExists {
                session,
                request_id,
                topic,
                exists,
                full,
            } => self.topic_exists(cx, session, request_id, &topic, exists, full),
            Message::Topics {
                session,
                request_id: _,
                names,
            } => {
                let target = session;
                if self
                    .find(target)
                    .is_some_and(|session| session.topics(names))
                {
                    // Looked at when the turn ends.
                    self.turns.lists.push_back(target);
                }
            }
            Message::TopicChanged {
                namespace,
                name,
                created,
            } => self.topic_changed(cx, &namespace, &name, created),
            Message::SchemaAnswer { session, command } => {
                let Some(session) = self.find(session) else {
                    return;
                };
                session.asks_schema = false;
                session.send(cx, &command);
                Self::settle(session, cx, now);
            }
            other => self.client_message(cx, other, now),
        }
    }

    fn client_message(&mut self, cx: &mut Context, message: Message, now: Now) {
        let client = match &message {
            Message::ProducerOpened { client, .. }
            | Message::ProducerQueued { client, .. }
            | Message::ProducerRefused { client, .. }
            | Message::ProducerClosed { client, .. }
            | Message::ConsumerOpened { client, .. }
            | Message::ConsumerRefused { client, .. }
            | Message::ActiveConsumerChange { client, .. }
            | Message::EndOfTopic { client }
            | Message::ConsumerClosed { client, .. } => *client,
            _ => return,
        };
        let Some(session) = self.find(client.session) else {
            return;
        };
        session.client_changed(cx, client, message, now);
        Self::settle(session, cx, now);
    }

    /// Asks every session to end.
    pub(super) fn close_all(&mut self, cx: &mut Context) {
        for session in self
            .slots
            .iter_mut()
            .filter_map(|slot| slot.session.as_deref_mut())
        {
            session.close(cx);
        }
    }
}

impl Session {
    fn deliver(&mut self, cx: &mut Context, client: ClientRef, delivery: Delivery) {
        let known = self
            .consumers
            .get(&client.id)
            .is_some_and(|c| c.incarnation == client.incarnation);
        if !known || self.stage == Stage::Closing {
            return;
        }
        let before = self.out.len();
        let head = encode::MessageHead {
            consumer_id: client.id,
            ledger: delivery.position.ledger as u64,
            entry: delivery.position.entry as u64,
            partition: delivery.partition,
            redelivery_count: delivery.redelivery_count,
            ack_set: &delivery.ack_set,
            consumer_epoch: delivery.epoch,
            permits: delivery.permits,
        };
        self.out
            .encode(|buf| encode::message_head(buf, &head, delivery.data.len()));
        let cost = delivery.data.len() + crate::engine::topic::ENTRY_COST;
        self.out.push(delivery.data);
        if self.holds.outbound.is_blocked() {
            self.out.own();
        }
        cx.counters.messages_out += u64::from(delivery.permits);
        cx.counters.bytes_out += (self.out.len() - before) as u64;
        if let Some(consumer) = self.consumers.get_mut(&client.id) {
            if consumer.unwritten == 0 {
                self.unwritten.push(client.id);
            }
            consumer.unwritten = consumer.unwritten.saturating_add(cost as u32);
        }
        self.touch(cx);
    }
}
