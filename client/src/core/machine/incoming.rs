//! Frames from brokers.

use vela_codec::{Frame, decode_command, hot};
use vela_proto::base_command::Type;
use vela_proto::command_topic_migrated::ResourceType;
use vela_proto::{BaseCommand, CommandConnected, CommandSendReceipt};

use super::super::connection::State;
use super::super::event::Event;
use super::super::lookup::Owner;
use super::super::requests::Request;
use super::super::{ConnKey, ConsumerKey, Nanos, ProducerKey, Ticket};
use super::Machine;
use crate::error::{Error, Result};

impl<S: Ticket> Machine<S> {
    /// One frame.
    ///
    /// # Errors
    /// If it breaks the protocol, or the broker refuses the connection: it is to be closed.
    pub(super) fn incoming(&mut self, now: Nanos, conn: ConnKey, frame: &Frame) -> Result<()> {
        let kind = match hot::command_type(frame.command()) {
            Ok(kind) => kind,
            // A newer broker may say what is not known here; what is unreadable otherwise is found below.
            Err(vela_codec::Malformed::UnknownEnum { .. }) => return Ok(()),
            Err(error) => return Err(Error::Protocol(error.to_string())),
        };
        let mut command = decode_command(frame.command())
            .map_err(|error| Error::Protocol(format!("{kind:?}: {error}")))?;
        shorten(&mut command);
        match kind {
            Type::SendReceipt => match command.send_receipt {
                Some(receipt) => self.on_receipt(now, conn, receipt),
                None => Ok(()),
            },
            Type::Message => match command.message {
                Some(message) => self.on_message(now, conn, message, frame.rest_bytes()),
                None => Ok(()),
            },
            Type::Ping => {
                if let Some(connection) = self.conns.get_mut(&conn) {
                    connection.pong();
                }
                self.tell(conn);
                Ok(())
            }
            Type::Pong => Ok(()),
            _ => self.on_command(now, conn, kind, command),
        }
    }

    fn on_receipt(&mut self, now: Nanos, conn: ConnKey, receipt: CommandSendReceipt) -> Result<()> {
        let key = ProducerKey(receipt.producer_id);
        let Some(slot) = self.producers.get_mut(&key) else {
            return Ok(());
        };
        if slot.way.conn() != Some(conn) {
            return Ok(()); // Of a connection it has left.
        }
        let highest = receipt.highest_sequence_id();
        let (ledger, entry) = receipt
            .message_id
            .map_or((u64::MAX, u64::MAX), |id| (id.ledger_id, id.entry_id));
        let verdict = slot
            .producer
            .receipt(receipt.sequence_id, highest, ledger, entry);
        self.judge(now, conn, key, verdict)
    }

    fn on_command(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        kind: Type,
        command: BaseCommand,
    ) -> Result<()> {
        match kind {
            Type::Connected => {
                let connected = command.connected.unwrap_or_default();
                return self.on_connected(now, conn, connected);
            }
            Type::AuthChallenge => {
                let connection = self.conns.get_mut(&conn);
                let Some(connection) = connection.filter(|c| c.said_hello && !c.authenticating)
                else {
                    return Self::unexpected("AUTH_CHALLENGE");
                };
                connection.authenticating = true;
                let challenge = command.auth_challenge.and_then(|c| c.challenge);
                let challenge = challenge.and_then(|c| c.auth_data);
                let challenge = Some(challenge.unwrap_or_default());
                self.events
                    .push_back(Event::Authenticate { conn, challenge });
            }
            Type::ProducerSuccess => {
                if let Some(success) = command.producer_success
                    && let Some(Request::Open(Owner::Producer(key))) =
                        self.requests.take(conn, success.request_id)
                {
                    self.producer_success(now, conn, key, success);
                }
            }
            Type::SendError => {
                if let Some(error) = command.send_error {
                    let key = ProducerKey(error.producer_id);
                    let code = error.error();
                    if let Some(slot) = self.producers.get_mut(&key)
                        && slot.way.conn() == Some(conn)
                    {
                        let verdict =
                            slot.producer
                                .send_error(error.sequence_id, code, error.message);
                        return self.judge(now, conn, key, verdict);
                    }
                }
            }
            Type::Success => {
                if let Some(id) = command.success.as_ref().map(|success| success.request_id) {
                    match self.requests.take(conn, id) {
                        Some(Request::Consumer(key)) => {
                            self.consumer_answered(now, key, id, Ok(command));
                        }
                        Some(Request::CloseProducer(key)) => self.producer_closed(key),
                        Some(Request::ReopenProducer(key)) => self.reopen_closed(now, key),
                        _ => {}
                    }
                }
            }
            Type::AckResponse => {
                let id = command.ack_response.as_ref().and_then(|a| a.request_id);
                self.on_consumer_answer(now, conn, id, command);
            }
            Type::GetLastMessageIdResponse => {
                let answer = command.get_last_message_id_response.as_ref();
                let id = answer.map(|answer| answer.request_id);
                self.on_consumer_answer(now, conn, id, command);
            }
            Type::ActiveConsumerChange => {
                let id = command.active_consumer_change.as_ref();
                if let Some(id) = id.map(|change| change.consumer_id) {
                    self.on_consumer_command(now, conn, id, &command);
                }
            }
            Type::ReachedEndOfTopic => {
                let id = command.reached_end_of_topic.as_ref();
                if let Some(id) = id.map(|end| end.consumer_id) {
                    self.on_consumer_command(now, conn, id, &command);
                }
            }
            Type::CloseConsumer => {
                if let Some(close) = command.close_consumer {
                    let url = self.suiting(
                        conn,
                        close.assigned_broker_service_url,
                        close.assigned_broker_service_url_tls,
                    );
                    let owner = Owner::Consumer(ConsumerKey(close.consumer_id));
                    self.sent_away(now, conn, owner, url);
                }
            }
            Type::Error => {
                if let Some(error) = command.error {
                    let code = error.error();
                    let message = error.message;
                    let failure = Error::Broker { code, message };
                    let state = self.conns.get(&conn).map(|c| c.state);
                    match self.requests.take(conn, error.request_id) {
                        Some(Request::Open(Owner::Producer(key))) => {
                            self.producer_refused(now, key, failure);
                        }
                        Some(Request::Consumer(key)) => {
                            self.consumer_answered(now, key, error.request_id, Err(failure));
                        }
                        Some(request) => self.request_failed(now, conn, request, failure, false),
                        // Only the handshake can be meant.
                        None if state == Some(State::Handshake) => return Err(failure),
                        None => {}
                    }
                }
            }
            Type::LookupResponse => {
                if let Some(answer) = command.lookup_topic_response
                    && let Some(Request::Lookup(owner)) =
                        self.requests.take(conn, answer.request_id)
                {
                    self.looked_up(now, conn, owner, answer);
                }
            }
            Type::CloseProducer => {
                if let Some(close) = command.close_producer {
                    let url = self.suiting(
                        conn,
                        close.assigned_broker_service_url,
                        close.assigned_broker_service_url_tls,
                    );
                    let owner = Owner::Producer(ProducerKey(close.producer_id));
                    self.sent_away(now, conn, owner, url);
                }
            }
            Type::TopicMigrated => {
                if let Some(moved) = command.topic_migrated {
                    let producer = moved.resource_type() == ResourceType::Producer;
                    let id = moved.resource_id;
                    let url =
                        self.suiting(conn, moved.broker_service_url, moved.broker_service_url_tls);
                    let owner = if producer {
                        Owner::Producer(ProducerKey(id))
                    } else {
                        Owner::Consumer(ConsumerKey(id))
                    };
                    self.migrated(conn, owner, url);
                }
            }
            _ => self.on_answer(now, conn, kind, command),
        }
        Ok(())
    }

    fn on_consumer_answer(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        id: Option<u64>,
        command: BaseCommand,
    ) {
        if let Some(id) = id
            && let Some(Request::Consumer(key)) = self.requests.take(conn, id)
        {
            self.consumer_answered(now, key, id, Ok(command));
        }
    }

    fn on_connected(
        &mut self,
        now: Nanos,
        conn: ConnKey,
        connected: CommandConnected,
    ) -> Result<()> {
        let fallback = self.config.max_message_size;
        let Some(connection) = self.conns.get_mut(&conn) else {
            return Ok(());
        };
        if connection.state != State::Handshake || !connection.said_hello {
            return Self::unexpected("CONNECTED");
        }
        connection.protocol_version = connected.protocol_version();
        let max = connected.max_message_size.unwrap_or(0);
        connection.max_message_size = usize::try_from(max)
            .ok()
            .filter(|&max| max > 0)
            .unwrap_or(fallback);
        connection.features = connected.feature_flags.unwrap_or_default();
        self.ready(now, conn);
        Ok(())
    }
}

/// Most bytes of what a broker says of a failure. Each send that fails of it gets a copy.
const MAX_REASON: usize = 4 * 1024;

/// Cuts what a broker says of a failure to a length that can be told to many.
fn shorten(command: &mut BaseCommand) {
    let reasons = [
        command.error.as_mut().map(|e| &mut e.message),
        command.send_error.as_mut().map(|e| &mut e.message),
        (command.lookup_topic_response.as_mut()).and_then(|r| r.message.as_mut()),
        (command.partition_metadata_response.as_mut()).and_then(|r| r.message.as_mut()),
        (command.get_schema_response.as_mut()).and_then(|r| r.error_message.as_mut()),
        (command.get_or_create_schema_response.as_mut()).and_then(|r| r.error_message.as_mut()),
        (command.ack_response.as_mut()).and_then(|r| r.message.as_mut()),
    ];
    for reason in reasons.into_iter().flatten() {
        if reason.len() > MAX_REASON {
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
            reason.push('\u{2026}');
            reason.shrink_to_fit();
        }
    }
}
