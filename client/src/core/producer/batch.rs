//! Batches that are still open.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::{Batching, Nanos, Ticket, fields};
use crate::message::OutgoingMessage;

/// A message and what came with it.
pub(crate) struct Queued<S> {
    pub(crate) message: OutgoingMessage,
    pub(crate) ticket: S,
    /// When it was sent.
    pub(crate) at: Nanos,
}

/// The open batches of a producer: one, or one for each key.
pub(crate) struct Batches<S> {
    limits: Option<Batching>,
    /// In the order of their first messages.
    open: VecDeque<Vec<Queued<S>>>,
    /// Where the batch of a key stands in `open`.
    keys: FxHashMap<Bytes, usize>,
    messages: usize,
    bytes: usize,
    /// When the first of all messages came.
    since: Nanos,
}

impl<S: Ticket> Batches<S> {
    pub(crate) fn new(limits: Option<Batching>) -> Self {
        Self {
            limits,
            open: VecDeque::new(),
            keys: FxHashMap::default(),
            messages: 0,
            bytes: 0,
            since: 0,
        }
    }

    /// Whether the message goes into a batch at all.
    pub(crate) fn takes(&self, message: &OutgoingMessage) -> bool {
        self.limits.is_some() && fields::can_be_batched(message)
    }

    /// Whether it goes with what is open.
    pub(crate) fn fits(&self, message: &OutgoingMessage) -> bool {
        let Some(limits) = &self.limits else {
            return false;
        };
        self.messages == 0
            || (self.bytes + fields::batch_len(message) <= limits.max_bytes && {
                let first = self.open.front().and_then(|batch| batch.first());
                first.is_some_and(|q| q.message.schema_version == message.schema_version)
            })
    }

    pub(crate) fn push(&mut self, queued: Queued<S>) {
        if self.messages == 0 {
            self.since = queued.at;
        }
        self.messages += 1;
        self.bytes += fields::batch_len(&queued.message);
        let by_key = self.limits.is_some_and(|limits| limits.by_key);
        let at = if by_key {
            let key = queued.message.batching_key().unwrap_or_default();
            *self.keys.entry(key).or_insert(self.open.len())
        } else {
            0
        };
        match self.open.get_mut(at) {
            Some(batch) => batch.push(queued),
            None => self.open.push_back(vec![queued]),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.limits
            .is_some_and(|l| self.messages >= l.max_messages || self.bytes >= l.max_bytes)
    }

    /// When what is open must be sent.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let limits = self.limits.filter(|_| self.messages > 0)?;
        Some(self.since.saturating_add(limits.max_publish_delay))
    }

    /// Takes the batch that was opened first. All must be taken before the next message comes.
    pub(crate) fn take(&mut self) -> Option<Vec<Queued<S>>> {
        let batch = self.open.pop_front();
        if self.open.is_empty() {
            self.keys.clear();
            self.messages = 0;
            self.bytes = 0;
        }
        batch
    }

    /// Moves the tickets of messages that nobody waits for to `gone`.
    pub(crate) fn sweep(&mut self, gone: &mut Vec<S>) {
        let before = gone.len();
        for batch in &mut self.open {
            sweep(batch, gone);
        }
        // Sizes stay as they were: the batch is sealed a little earlier.
        if gone.len() > before && self.open.iter().all(Vec::is_empty) {
            self.open.clear();
            self.keys.clear();
            self.messages = 0;
            self.bytes = 0;
        }
    }
}

/// Moves the tickets of messages that nobody waits for to `gone`.
pub(crate) fn sweep<S: Ticket>(messages: &mut Vec<Queued<S>>, gone: &mut Vec<S>) {
    if messages.iter().any(|queued| queued.ticket.abandoned()) {
        gone.extend(
            messages
                .extract_if(.., |queued| queued.ticket.abandoned())
                .map(|queued| queued.ticket),
        );
    }
}
