//! MESSAGE commands: what each cost is settled first, then where each of its permits goes.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use vela_codec::batch::BatchReader;
use vela_codec::compress::{CompressError, decompress};
use vela_codec::entry::Entry;
use vela_proto::command_ack::ValidationError;
use vela_proto::{CommandMessage, CompressionType, MessageMetadata};

use super::ackset::AckSet;
use super::batches::Left;
use super::chunks::Chunk;
use super::config::{CryptoFailureAction, SECOND};
use super::permits::{BadPermits, Permits, resolve};
use super::{
    Consumer, ConsumerEvent, EntryId, Nanos, Queued, ReceivedMessage, State, Violation, Wire,
};
use crate::MessageId;

/// Most messages of a batch; a larger one counts as damaged. Each takes some hundred bytes here, for the few it has in a batch.
const MAX_BATCH: u32 = 1 << 20;
/// Least bytes a message takes in a batch, without its content.
const MIN_BATCHED: usize = 6;
/// How often the wait for the predecessors of a chunk doubles, and its end.
const ORPHAN_DOUBLINGS: u32 = 6;
const ORPHAN_DELAY_MAX: Nanos = 600 * SECOND;

/// One command while it is worked on.
struct Delivery {
    entry: EntryId,
    partition: i32,
    redelivery_count: u32,
    /// Whether the entry was in the queue before: the application may hold some of it.
    again: bool,
    ack_set: Option<AckSet>,
    metadata: Arc<MessageMetadata>,
    /// What the command still owns; the rest belongs to messages in the queue.
    permits: Permits,
    given_up: Vec<ReceivedMessage>,
}

impl Delivery {
    fn id(&self, batch_index: i32, batch_size: i32) -> MessageId {
        MessageId {
            first_chunk: None,
            ledger: self.entry.ledger,
            entry: self.entry.entry,
            batch_index,
            partition: self.partition,
            batch_size,
        }
    }
}

impl Consumer {
    /// A MESSAGE for this consumer, with what stands behind the command.
    ///
    /// # Errors
    /// If its permits cannot be right. Nothing of it was delivered or returned then; the connection is to be closed.
    pub fn handle_message(
        &mut self,
        now: Nanos,
        command: CommandMessage,
        rest: Bytes,
        wire: &mut impl Wire,
    ) -> Result<(), Violation> {
        // Nothing is owed for what an incarnation that is gone was sent.
        if self.state != State::Ready {
            return Ok(());
        }
        let was_empty = self.queue.is_empty();
        let result = self.receive(now, command, &rest, wire);
        if was_empty && !self.queue.is_empty() {
            self.events.push_back(ConsumerEvent::MessagesReady);
        }
        if result.is_ok() {
            self.flow(wire);
        }
        result
    }

    fn receive(
        &mut self,
        now: Nanos,
        command: CommandMessage,
        rest: &Bytes,
        wire: &mut impl Wire,
    ) -> Result<(), Violation> {
        self.stats.commands += 1;
        let covered = self.ledger.check_cover();
        let entry = EntryId {
            ledger: command.message_id.ledger_id,
            entry: command.message_id.entry_id,
        };
        covered.map_err(|bad| self.violation(entry, bad))?;
        let ack_set = (!command.ack_set.is_empty()).then(|| AckSet::from_words(&command.ack_set));
        let parsed = Entry::parse(rest).ok();
        let trusted = parsed.as_ref().is_some_and(|e| e.verify_checksum().is_ok());
        let metadata = parsed.as_ref().and_then(|e| e.decode_metadata().ok());
        let size = metadata.as_ref().map(batch_size);
        let known = match (&metadata, &parsed) {
            (Some(m), Some(e)) if trusted || is_plausible(m, e.payload, &self.config) => size,
            _ => None,
        };
        let charged = resolve(command.message_permits, ack_set.as_ref(), known, trusted)
            .map_err(|bad| self.violation(entry, bad))?;
        self.stats.charged += u64::from(charged);
        let permits = self.ledger.receive(charged);

        let (Some(metadata), Some(parsed), true) = (metadata, parsed, trusted) else {
            self.damaged(entry, ValidationError::ChecksumMismatch, wire);
            self.ledger.give_back(permits);
            return Ok(());
        };
        let stale = command
            .consumer_epoch
            .is_some_and(|epoch| epoch < self.epoch && !self.config.subscription_type.is_shared());
        if stale || self.is_seeking() || self.acks.covers(entry, None) {
            self.stats.skipped += u64::from(charged);
            self.ledger.give_back(permits);
            return Ok(());
        }
        let mut delivery = Delivery {
            entry,
            partition: command.message_id.partition(),
            redelivery_count: command.redelivery_count(),
            again: self.furthest.is_some_and(|furthest| entry <= furthest),
            ack_set,
            metadata: Arc::new(metadata),
            permits,
            given_up: Vec::new(),
        };
        let payload = rest.slice_ref(parsed.payload);
        let result = self.open(now, &mut delivery, payload, wire);
        // Whatever the command still owns goes back, once, here.
        self.ledger.give_back(delivery.permits);
        self.given_up(delivery.given_up);
        result
    }

    fn violation(&self, entry: EntryId, bad: BadPermits) -> Violation {
        Violation {
            consumer: self.id,
            what: format!("message {}:{}: {bad}", entry.ledger, entry.entry),
        }
    }

    /// Decrypts, joins and decompresses, as far as the message needs it.
    fn open(
        &mut self,
        now: Nanos,
        delivery: &mut Delivery,
        payload: Bytes,
        wire: &mut impl Wire,
    ) -> Result<(), Violation> {
        let metadata = Arc::clone(&delivery.metadata);
        let encrypted = !metadata.encryption_keys.is_empty();
        if encrypted {
            match self.config.crypto_failure_action {
                CryptoFailureAction::Consume => {}
                action => {
                    self.stats.undecryptable += 1;
                    if action == CryptoFailureAction::Discard {
                        let error = ValidationError::DecryptionError;
                        self.acks.invalid(wire, delivery.entry, None, error);
                    }
                    return Ok(());
                }
            }
        }
        let (payload, chunks) = if metadata.num_chunks_from_msg() > 1 {
            match self.join(now, delivery, payload, wire) {
                Some((payload, chunks)) => (payload, Some(chunks)),
                None => return Ok(()),
            }
        } else {
            (payload, None)
        };
        if encrypted {
            return self.single(now, delivery, payload, chunks, true, wire);
        }
        let payload = match self.decompress(&metadata, payload) {
            Ok(payload) => payload,
            Err(error) => {
                self.damaged(delivery.entry, error, wire);
                for &chunk in chunks.iter().flatten() {
                    self.acks.invalid(wire, chunk, None, error);
                }
                return Ok(());
            }
        };
        match metadata.num_messages_in_batch {
            Some(count) if chunks.is_none() => self.batch(now, delivery, &payload, count, wire),
            _ => self.single(now, delivery, payload, chunks, false, wire),
        }
    }

    fn decompress(
        &self,
        metadata: &MessageMetadata,
        payload: Bytes,
    ) -> Result<Bytes, ValidationError> {
        let raw = metadata.compression.unwrap_or(0);
        let compression =
            CompressionType::try_from(raw).map_err(|_| ValidationError::DecompressionError)?;
        if compression == CompressionType::None {
            return Ok(payload);
        }
        let size = metadata.uncompressed_size() as usize;
        match decompress(
            compression,
            &payload,
            size,
            self.config.max_uncompressed_size,
        ) {
            Ok(payload) => Ok(payload.into()),
            Err(CompressError::TooLarge { .. }) => Err(ValidationError::UncompressedSizeCorruption),
            Err(_) => Err(ValidationError::DecompressionError),
        }
    }

    /// Adds a chunk; the whole message when it was the last.
    fn join(
        &mut self,
        now: Nanos,
        delivery: &Delivery,
        payload: Bytes,
        wire: &mut impl Wire,
    ) -> Option<(Bytes, Vec<EntryId>)> {
        let mut given_up = Vec::new();
        let (entry, metadata) = (delivery.entry, &delivery.metadata);
        let chunk = self
            .chunks
            .add(now, entry, metadata, payload, &mut given_up);
        self.abandon_chunks(now, given_up, wire);
        match chunk {
            Chunk::Whole(payload, entries) => {
                for &entry in &entries {
                    self.nacks.remove(entry);
                }
                return Some((payload, entries));
            }
            Chunk::Kept | Chunk::Repeated => {}
            Chunk::Copy => {
                self.acks.add(entry, None);
                self.collect_acks(now, wire);
            }
            Chunk::Orphan { abandoned, dropped } => {
                self.stats.skipped += 1;
                let entries = dropped.into_iter().chain([entry]);
                // What came of an acknowledged message is what the acknowledgement did not reach in time, or not at all.
                if !abandoned && let Some(whole) = self.joined.ended_with(entry) {
                    self.acks.add_whole(&whole);
                    for entry in entries {
                        self.acks.add(entry, None);
                    }
                    self.collect_acks(now, wire);
                } else if self.config.subscription_type.is_shared() {
                    // Its predecessors may be on their way again, or be gone: asked for ever more rarely.
                    let count = delivery.redelivery_count;
                    let delay = self.config.nack_delay(count) << count.min(ORPHAN_DOUBLINGS);
                    let due = now.saturating_add(delay.min(ORPHAN_DELAY_MAX));
                    for entry in entries {
                        self.nacks.set_earlier(entry, due);
                    }
                } else if !abandoned && !self.asked_again {
                    // In order of the topic, what is missing was before; it will not come.
                    for entry in entries {
                        self.acks.add(entry, None);
                    }
                    self.collect_acks(now, wire);
                } else if abandoned && metadata.chunk_id() + 1 == metadata.num_chunks_from_msg() {
                    // All of it is there after all. Everything has to come again for it.
                    let due = now.saturating_add(self.config.nack_delay(0));
                    self.nacks.set_earlier(entry, due);
                }
            }
            Chunk::Invalid(dropped) => {
                for other in dropped.into_iter().filter(|&other| other != entry) {
                    self.acks
                        .invalid(wire, other, None, ValidationError::BatchDeSerializeError);
                }
                self.damaged(entry, ValidationError::BatchDeSerializeError, wire);
            }
        }
        None
    }

    fn single(
        &mut self,
        now: Nanos,
        delivery: &mut Delivery,
        payload: Bytes,
        chunks: Option<Vec<EntryId>>,
        encrypted: bool,
        wire: &mut impl Wire,
    ) -> Result<(), Violation> {
        let mut id = delivery.id(-1, 0);
        let first = chunks.as_ref().and_then(|ids| ids.first());
        id.first_chunk = first.map(|first| (first.ledger, first.entry));
        if self.position.is_before(delivery.entry, None) {
            self.stats.skipped += 1;
            if self.config.durable {
                self.acks
                    .add_whole(&chunks.unwrap_or_else(|| vec![delivery.entry]));
                self.collect_acks(now, wire);
            }
            return Ok(());
        }
        if let Some(chunks) = chunks {
            if self.joined.take_unknown(delivery.entry) {
                self.stats.skipped += 1;
                self.acks.add_whole(&chunks);
                self.joined.ended(delivery.entry, chunks);
                self.collect_acks(now, wire);
                return Ok(());
            }
            self.joined.delivered(delivery.entry, chunks);
        }
        let message = ReceivedMessage {
            topic: Arc::clone(&self.config.topic),
            id,
            payload,
            metadata: Arc::clone(&delivery.metadata),
            single: None,
            redelivery_count: delivery.redelivery_count,
            encrypted,
        };
        self.accept(delivery, message)
    }

    fn batch(
        &mut self,
        now: Nanos,
        delivery: &mut Delivery,
        payload: &Bytes,
        count: i32,
        wire: &mut impl Wire,
    ) -> Result<(), Violation> {
        let entry = delivery.entry;
        let Ok(size) = u32::try_from(count.max(0)) else {
            return Ok(());
        };
        if size == 0 {
            self.damaged(entry, ValidationError::BatchDeSerializeError, wire);
            return Ok(());
        }
        // What is not there cannot be tracked: the number of messages is bounded by the bytes.
        if payload.len() / MIN_BATCHED < size as usize || size > MAX_BATCH {
            self.damaged(entry, ValidationError::BatchDeSerializeError, wire);
            return Ok(());
        }
        self.batches
            .delivered(entry, size, delivery.ack_set.as_ref());
        let compacted: HashSet<u32> = (delivery.metadata.compacted_batch_indexes.iter())
            .filter_map(|&index| u32::try_from(index).ok())
            .collect();
        let (mut accepted, mut acknowledged, mut broken) = (false, false, false);
        let mut reader = BatchReader::new(payload, count);
        for index in 0..size {
            let Some(Ok(message)) = reader.next() else {
                broken = true;
                for index in index..size {
                    self.batches.skip(entry, index);
                }
                break;
            };
            if !self.batches.contains(entry, index) {
                let sent = |set: &AckSet| set.contains(index);
                if delivery.ack_set.as_ref().is_none_or(sent) {
                    acknowledged = true;
                    self.stats.skipped += 1;
                }
                continue;
            }
            if self.acks.covers(entry, Some(index)) || self.is_handed_over(entry, index) {
                self.stats.skipped += 1;
                continue;
            }
            if message.metadata.compacted_out()
                || compacted.contains(&index)
                || self.position.is_before(entry, Some(index))
            {
                self.stats.skipped += 1;
                self.batches.skip(entry, index);
                continue;
            }
            let message = ReceivedMessage {
                topic: Arc::clone(&self.config.topic),
                id: delivery.id(index as i32, count),
                payload: payload.slice_ref(message.payload),
                metadata: Arc::clone(&delivery.metadata),
                single: Some(message.metadata),
                redelivery_count: delivery.redelivery_count,
                encrypted: false,
            };
            self.accept(delivery, message)?;
            accepted = true;
        }
        match self.batches.left(entry) {
            Left::Nothing if broken => {
                self.damaged(entry, ValidationError::BatchDeSerializeError, wire);
            }
            // Nothing of it is left for the application: acknowledged before, compacted, or before the start.
            Left::Nothing if !accepted => self.acks.add(entry, None),
            Left::Some(left) if broken => {
                self.stats.damaged += 1;
                if self.config.batch_index_ack {
                    let error = ValidationError::BatchDeSerializeError;
                    self.acks.invalid(wire, entry, Some(&left), error);
                }
            }
            // The broker does not know of an acknowledgement that was made here: lost on its way.
            Left::Some(left) if acknowledged && self.config.batch_index_ack => {
                self.acks.add(entry, Some(left));
            }
            _ => {}
        }
        self.collect_acks(now, wire);
        Ok(())
    }

    fn is_handed_over(&self, entry: EntryId, index: u32) -> bool {
        self.dead_letters.is_handed_over(entry, Some(index))
    }

    /// Puts a message into the receiver queue with a permit of the command, or gives it up.
    fn accept(
        &mut self,
        delivery: &mut Delivery,
        message: ReceivedMessage,
    ) -> Result<(), Violation> {
        if let Some(policy) = &self.config.dead_letter
            && message.redelivery_count >= policy.max_redeliver_count
        {
            let index = super::message::index_of(&message.id);
            if self.dead_letters.is_handed_over(delivery.entry, index) {
                self.stats.skipped += 1;
                return Ok(());
            }
            if message.redelivery_count > policy.max_redeliver_count {
                self.dead_letters.hand_over(&message.id);
                delivery.given_up.push(message);
                return Ok(());
            }
            self.dead_letters.keep(message.clone());
        }
        let Some(permit) = delivery.permits.take_one() else {
            return Err(Violation {
                consumer: self.id,
                what: format!(
                    "message {}:{} delivers more messages than it took permits for",
                    delivery.entry.ledger, delivery.entry.entry
                ),
            });
        };
        self.stats.accepted += 1;
        if delivery.again {
            *self.copies.entry(delivery.entry).or_default() += 1;
        }
        self.furthest = self.furthest.max(Some(delivery.entry));
        self.queue.push_back(Queued {
            message,
            permit,
            copy: delivery.again,
        });
        Ok(())
    }

    fn damaged(&mut self, entry: EntryId, error: ValidationError, wire: &mut impl Wire) {
        self.stats.damaged += 1;
        self.batches.forget(entry);
        self.acks.invalid(wire, entry, None, error);
    }
}

/// Messages of the entry as its metadata says; what the broker charges for the whole of it.
fn batch_size(metadata: &MessageMetadata) -> u32 {
    u32::try_from(metadata.num_messages_in_batch()).map_or(1, |size| size.max(1))
}

/// Whether a number of messages out of damaged metadata can be right: so many bytes must be there.
fn is_plausible(
    metadata: &MessageMetadata,
    payload: &[u8],
    config: &super::ConsumerConfig,
) -> bool {
    let size = batch_size(metadata) as usize;
    let bytes = match metadata.compression.unwrap_or(0) {
        0 => payload.len(),
        _ => metadata.uncompressed_size() as usize,
    };
    size == 1 || size <= bytes.min(config.max_uncompressed_size) / MIN_BATCHED
}
