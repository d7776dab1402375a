//! One producer: what it was given to send, in order, until the broker has it.
//!
//! A message goes through three places: an open batch; the queue of entries, sealed and not encoded; and, encoded, the front part of the
//! same queue, which is what was given to the connection and waits for receipts. Sequence ids are given out when an entry is encoded, so a
//! message that nobody waits for any more can be skipped until then and leaves no gap. What was encoded stays as it is, and is sent again,
//! byte for byte, after a reconnect.

pub(crate) mod batch;
mod encode;
pub(crate) mod fields;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use vela_proto as proto;
use vela_proto::ServerError;

use super::config::ProducerConfig;
use super::connection::Output;
use super::event::{Receipt, SendsDone};
use super::{MILLIS, Nanos, ProducerKey, Ticket};
use crate::error::{Error, Result};
use crate::message::OutgoingMessage;
use batch::Batches;
pub(crate) use batch::Queued;
use encode::Encoded;

/// Whether others may produce to the topic at the same time (PIP-68).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessMode {
    /// Others may.
    #[default]
    Shared,
    /// Nobody else may; opening fails if somebody does.
    Exclusive,
    /// Nobody else may; opening waits until nobody does, however long.
    WaitForExclusive,
    /// Nobody else may; whoever does is put out.
    ExclusiveWithFencing,
}

impl AccessMode {
    pub(crate) fn wire(self) -> proto::ProducerAccessMode {
        match self {
            Self::Shared => proto::ProducerAccessMode::Shared,
            Self::Exclusive => proto::ProducerAccessMode::Exclusive,
            Self::WaitForExclusive => proto::ProducerAccessMode::WaitForExclusive,
            Self::ExclusiveWithFencing => proto::ProducerAccessMode::ExclusiveWithFencing,
        }
    }
}

/// When a batch is sent: at whichever limit comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Most messages in a batch.
    pub max_messages: usize,
    /// Most bytes in a batch, before compression.
    pub max_bytes: usize,
    /// Longest wait of its first message.
    pub max_publish_delay: Nanos,
    /// A batch holds messages of one key only, as Key_Shared subscriptions need it.
    pub by_key: bool,
}

impl Default for Batching {
    fn default() -> Self {
        Self {
            max_messages: 1_000,
            max_bytes: 128 * 1024,
            max_publish_delay: MILLIS,
            by_key: false,
        }
    }
}

/// A send that was not taken: nothing of it is left in the machine.
#[derive(Debug)]
pub struct Refused<S> {
    /// What was to be sent.
    pub message: OutgoingMessage,
    /// What came with it.
    pub ticket: S,
    /// Why.
    pub error: Error,
}

/// What a frame about sends asks of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// The two ends no longer agree: close the connection, so that both start anew.
    CloseConnection(String),
    /// Close and open the producer again, and send again what has no receipt.
    Reopen(Error),
    /// The producer is at its end.
    Terminal(Error),
}

/// An entry to be.
struct Op<S> {
    serial: u64,
    /// When its first message was sent.
    created: Nanos,
    body: Body<S>,
}

enum Body<S> {
    /// Never on the wire.
    Sealed(Vec<Queued<S>>),
    /// As it goes over the wire.
    Encoded(Encoded<S>),
}

impl<S> Op<S> {
    fn into_sends(self) -> Vec<S> {
        match self.body {
            Body::Sealed(messages) => messages.into_iter().map(|queued| queued.ticket).collect(),
            Body::Encoded(encoded) => encoded.sends,
        }
    }

    fn encoded(&self) -> Option<&Encoded<S>> {
        match &self.body {
            Body::Encoded(encoded) => Some(encoded),
            Body::Sealed(_) => None,
        }
    }
}

pub(crate) struct Producer<S> {
    key: ProducerKey,
    pub(crate) config: ProducerConfig,
    /// As the broker said it.
    pub(crate) name: String,
    pub(crate) name_from_broker: bool,
    pub(crate) epoch: u64,
    pub(crate) topic_epoch: Option<u64>,
    pub(crate) schema_version: Bytes,
    pub(crate) last_sequence_id: i64,
    pub(crate) opened_once: bool,
    /// On the connection, and ready.
    pub(crate) ready: bool,
    max_message_size: usize,
    next_sequence: u64,
    batches: Batches<S>,
    ops: VecDeque<Op<S>>,
    /// The first so many of `ops` were given to the connection.
    given: usize,
    next_serial: u64,
    /// Messages without an end.
    pending: usize,
    /// Flushes and the last serial each waits for.
    flushes: VecDeque<(u64, u64)>,
    flushed: Vec<u64>,
    next_flush: u64,
    /// Where the first chunk lies of the message whose chunks are being answered.
    first_chunk: Option<(u64, u64)>,
    ends: Vec<SendsDone<S>>,
}

impl<S: Ticket> Producer<S> {
    pub(crate) fn new(key: ProducerKey, config: ProducerConfig) -> Self {
        Self {
            key,
            name: config.name.clone().unwrap_or_default(),
            name_from_broker: config.name.is_none(),
            epoch: 0,
            topic_epoch: None,
            schema_version: Bytes::new(),
            last_sequence_id: -1,
            opened_once: false,
            ready: false,
            max_message_size: 0,
            next_sequence: config.initial_sequence_id.unwrap_or(0),
            batches: Batches::new(config.batching),
            ops: VecDeque::new(),
            given: 0,
            next_serial: 0,
            pending: 0,
            flushes: VecDeque::new(),
            flushed: Vec::new(),
            next_flush: 0,
            first_chunk: None,
            ends: Vec::new(),
            config,
        }
    }

    /// Takes a message. It is in a batch or in the queue afterwards.
    pub(crate) fn send(
        &mut self,
        now: Nanos,
        message: OutgoingMessage,
        ticket: S,
    ) -> Result<(), Box<Refused<S>>> {
        if let Some(error) = self.refusal(&message) {
            return Err(Box::new(Refused {
                message,
                ticket,
                error,
            }));
        }
        self.pending += 1;
        let queued = Queued {
            message,
            ticket,
            at: now,
        };
        if self.batches.takes(&queued.message) {
            if !self.batches.fits(&queued.message) {
                self.seal();
            }
            self.batches.push(queued);
            if self.batches.is_full() {
                self.seal();
            }
        } else {
            self.seal();
            self.queue(vec![queued]);
        }
        Ok(())
    }

    fn refusal(&self, message: &OutgoingMessage) -> Option<Error> {
        let limit = self.config.max_pending_messages;
        if limit > 0 && self.pending >= limit {
            return Some(Error::ProducerQueueIsFull { pending: limit });
        }
        // What the metadata takes is known when it is encoded; this finds most of what will not do at once.
        let (size, limit) = (message.payload.len(), self.max_message_size);
        let uncompressed = self.config.compression == proto::CompressionType::None;
        (self.opened_once && !self.config.chunking && uncompressed && size > limit)
            .then_some(Error::MessageTooLarge { size, limit })
    }

    /// What is in open batches goes to the queue.
    pub(crate) fn seal(&mut self) {
        while let Some(messages) = self.batches.take() {
            self.queue(messages);
        }
    }

    fn queue(&mut self, messages: Vec<Queued<S>>) {
        let Some(first) = messages.first() else {
            return;
        };
        let op = Op {
            serial: self.next_serial,
            created: first.at,
            body: Body::Sealed(messages),
        };
        self.next_serial += 1;
        self.ops.push_back(op);
    }

    /// Answers once everything that was sent until now has its end; see [`take_flushed`](Self::take_flushed).
    pub(crate) fn flush(&mut self) -> u64 {
        self.seal();
        let flush = self.next_flush;
        self.next_flush += 1;
        match self.next_serial.checked_sub(1) {
            Some(last) => self.flushes.push_back((flush, last)),
            None => self.flushed.push(flush),
        }
        self.settle_flushes();
        flush
    }

    fn settle_flushes(&mut self) {
        let open = self.ops.front().map_or(u64::MAX, |op| op.serial);
        while let Some(&(flush, last)) = self.flushes.front()
            && last < open
        {
            self.flushes.pop_front();
            self.flushed.push(flush);
        }
    }

    /// The broker has opened the producer, here or again.
    pub(crate) fn opened(
        &mut self,
        success: proto::CommandProducerSuccess,
        max_message_size: usize,
    ) {
        self.last_sequence_id = success.last_sequence_id();
        self.name = success.producer_name;
        self.schema_version = success.schema_version.unwrap_or_default();
        self.topic_epoch = success.topic_epoch.or(self.topic_epoch);
        self.max_message_size = max_message_size;
        if !self.opened_once && self.config.initial_sequence_id.is_none() {
            let known = u64::try_from(self.last_sequence_id).ok();
            self.next_sequence = known.map_or(0, |last| last.saturating_add(1));
        }
        self.opened_once = true;
        self.ready = true;
        self.given = 0;
    }

    /// The connection is gone, or the broker has closed the producer: everything without a receipt will be sent again.
    pub(crate) fn detached(&mut self) {
        self.ready = false;
        self.given = 0;
    }

    /// Gives the connection what it has room for.
    pub(crate) fn fill(&mut self, wall: impl Fn(Nanos) -> u64, out: &mut Output) {
        while self.ready && out.has_room() {
            let Some(op) = self.ops.get_mut(self.given) else {
                break;
            };
            if let Body::Sealed(messages) = &mut op.body {
                let messages = std::mem::take(messages);
                self.encode(messages, &wall);
                continue;
            }
            if let Some(encoded) = op.encoded() {
                out.push(encoded.head.clone());
                out.push(encoded.payload.clone());
            }
            self.given += 1;
        }
    }

    /// Whether there is something for the connection.
    pub(crate) fn has_more(&self) -> bool {
        self.ready && self.given < self.ops.len()
    }

    /// Encodes the sealed entry at `given`, whose messages these are: it becomes an encoded one, several (chunks), or none.
    fn encode(&mut self, messages: Vec<Queued<S>>, wall: &impl Fn(Nanos) -> u64) {
        let (gone, messages): (Vec<_>, Vec<_>) = if messages.iter().any(|q| q.ticket.abandoned()) {
            messages.into_iter().partition(|q| q.ticket.abandoned())
        } else {
            (Vec::new(), messages)
        };
        let at = self.given;
        let Some((serial, created)) = self.ops.get(at).map(|op| (op.serial, op.created)) else {
            return;
        };
        if !gone.is_empty() {
            let sends = gone.into_iter().map(|queued| queued.ticket).collect();
            self.end(sends, Err(abandoned()));
        }
        let how = encode::How {
            producer: self.key,
            name: &self.name,
            compression: self.config.compression,
            chunk: self
                .config
                .chunking
                .then_some(self.config.chunk_max_message_size),
            schema_version: &self.schema_version,
            max_message_size: self.max_message_size,
        };
        match encode::encode(&how, &mut self.next_sequence, messages, wall) {
            Ok(entries) => {
                // In the same place: taking it out and putting it back would move a long queue twice for each message.
                let mut entries = entries.into_iter();
                match (self.ops.get_mut(at), entries.next()) {
                    (Some(op), Some(first)) => op.body = Body::Encoded(first),
                    _ => drop(self.ops.remove(at)),
                }
                for (offset, encoded) in entries.enumerate() {
                    let body = Body::Encoded(encoded);
                    let op = Op {
                        serial,
                        created,
                        body,
                    };
                    self.ops.insert(at + 1 + offset, op);
                }
            }
            Err((sends, error)) => {
                drop(self.ops.remove(at));
                self.end(sends, Err(error));
            }
        }
        self.settle_flushes();
    }

    /// A SEND_RECEIPT.
    pub(crate) fn receipt(
        &mut self,
        sequence: u64,
        highest: u64,
        ledger: u64,
        entry: u64,
    ) -> Verdict {
        let Some(encoded) = self.ops.front().and_then(Op::encoded) else {
            return Verdict::Fine; // Of something that timed out.
        };
        if sequence < encoded.sequence {
            return Verdict::Fine;
        }
        let whole = encoded.highest == encoded.sequence
            || sequence >= highest
            || highest == encoded.highest
            || highest == u64::MAX;
        if sequence > encoded.sequence || !whole {
            if !self.ready {
                return Verdict::Fine; // It will be sent again, and answered again.
            }
            return Verdict::CloseConnection(format!(
                "receipt for sequence id {sequence} while {} is the oldest without one",
                encoded.sequence
            ));
        }
        if !encoded.is_chunk {
            self.first_chunk = None;
        } else if encoded.is_first_chunk {
            self.first_chunk = Some((ledger, entry));
        }
        let receipt = Receipt {
            first_chunk: self.first_chunk,
            ledger,
            entry,
            partition: self.config.partition,
            batch_size: encoded.batch_size,
        };
        if let Ok(last) = i64::try_from(encoded.highest) {
            self.last_sequence_id = self.last_sequence_id.max(last);
        }
        self.end_at(0, Ok(receipt));
        Verdict::Fine
    }

    /// A SEND_ERROR.
    pub(crate) fn send_error(
        &mut self,
        sequence: u64,
        code: ServerError,
        message: String,
    ) -> Verdict {
        let error = Error::Broker { code, message };
        let at = self.ops.iter().position(|op| {
            op.encoded()
                .is_some_and(|e| e.sequence == sequence || e.highest == sequence)
        });
        match code {
            ServerError::TopicTerminatedError => return Verdict::Terminal(Error::TopicTerminated),
            ServerError::ProducerFenced => {
                return Verdict::Terminal(Error::Fenced(error.to_string()));
            }
            _ => {}
        }
        let Some(at) = at else {
            return Verdict::Fine; // It has had its end.
        };
        match code {
            ServerError::NotAllowedError => {
                self.fail_entry(at, error);
                Verdict::Fine
            }
            ServerError::ChecksumError => {
                let own = self.ops.get(at).and_then(Op::encoded);
                if own.is_some_and(Encoded::is_intact) {
                    Verdict::Reopen(error)
                } else {
                    self.fail_entry(at, error);
                    Verdict::Fine
                }
            }
            _ => Verdict::Reopen(error),
        }
    }

    /// Fails the message of the entry at `at`: with it go all its chunks.
    fn fail_entry(&mut self, at: usize, error: Error) {
        let Some(op) = self.ops.get(at) else { return };
        let (serial, chunked) = (op.serial, op.encoded().is_some_and(|e| e.is_chunk));
        self.end_at(at, Err(error.clone()));
        while chunked && self.ops.get(at).is_some_and(|op| op.serial == serial) {
            self.end_at(at, Err(error.clone()));
        }
    }

    /// Everything ends.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.seal();
        while !self.ops.is_empty() {
            self.end_at(0, Err(error.clone()));
        }
    }

    /// Skips what nobody waits for any more and was never on the wire.
    pub(crate) fn sweep(&mut self) {
        let mut gone = Vec::new();
        self.batches.sweep(&mut gone);
        // In one go: taking them out one by one moves the rest each time.
        self.ops.retain_mut(|op| match &mut op.body {
            Body::Sealed(messages) => {
                batch::sweep(messages, &mut gone);
                !messages.is_empty()
            }
            Body::Encoded(_) => true,
        });
        if !gone.is_empty() {
            self.end(gone, Err(abandoned()));
        }
        self.settle_flushes();
    }

    pub(crate) fn handle_timeout(&mut self, now: Nanos) {
        if self.batches.due().is_some_and(|due| due <= now) {
            self.seal();
        }
        let limit = self.config.send_timeout;
        while limit > 0
            && let Some(op) = self.ops.front()
            && op.created.saturating_add(limit) <= now
        {
            let error = Error::Timeout {
                what: "a send",
                millis: limit / MILLIS,
            };
            self.end_at(0, Err(error));
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let limit = self.config.send_timeout;
        let send = self.ops.front().filter(|_| limit > 0);
        let send = send.map(|op| op.created.saturating_add(limit));
        match (send, self.batches.due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends of sends since the last call.
    pub(crate) fn take_ends(&mut self) -> impl Iterator<Item = SendsDone<S>> {
        self.ends.drain(..)
    }

    pub(crate) fn has_ends(&self) -> bool {
        !self.ends.is_empty() || !self.flushed.is_empty()
    }

    /// Flushes that are done since the last call.
    pub(crate) fn take_flushed(&mut self) -> impl Iterator<Item = u64> {
        self.flushed.drain(..)
    }

    /// Messages that have no end yet.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    fn end_at(&mut self, at: usize, result: Result<Receipt>) {
        let Some(op) = self.ops.remove(at) else {
            return;
        };
        if at < self.given {
            self.given -= 1;
        }
        let sends = op.into_sends();
        if !sends.is_empty() {
            self.end(sends, result);
        }
        if !self.flushes.is_empty() {
            self.settle_flushes();
        }
    }

    fn end(&mut self, sends: Vec<S>, result: Result<Receipt>) {
        self.pending = self.pending.saturating_sub(sends.len());
        self.ends.push(SendsDone {
            producer: self.key,
            result,
            sends,
        });
    }
}

fn abandoned() -> Error {
    Error::Closed("the future of the send")
}
