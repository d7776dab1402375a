//! Messages to SEND frames: batches, compression, chunks.

use bytes::{Bytes, BytesMut};
use vela_codec::{batch::BatchWriter, checksum, compress, encode as frames, entry};
use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, CommandSend, CompressionType, MessageMetadata};

use super::super::{Nanos, ProducerKey};
use super::{Queued, fields};
use crate::error::Error;

/// Bytes that a chunk's metadata may grow by over that of the whole message, beside its uuid.
const CHUNK_FIELDS: usize = 40;

/// Magic, checksum and metadata size, in bytes.
const ENTRY_HEAD: usize = 10;

/// What the producer's entries have in common.
pub(crate) struct How<'a> {
    pub(crate) producer: ProducerKey,
    pub(crate) name: &'a str,
    pub(crate) compression: CompressionType,
    /// Chunks are allowed, of at most so many bytes; 0: what the broker takes.
    pub(crate) chunk: Option<usize>,
    pub(crate) schema_version: &'a Bytes,
    pub(crate) max_message_size: usize,
}

/// One SEND frame, kept until its receipt.
pub(crate) struct Encoded<S> {
    pub(crate) sequence: u64,
    pub(crate) highest: u64,
    /// Everything in front of the payload.
    pub(crate) head: Bytes,
    pub(crate) payload: Bytes,
    /// Where in `head` begins what the checksum covers.
    covered: usize,
    /// Messages in it if it is a batch, else 0.
    pub(crate) batch_size: i32,
    pub(crate) is_chunk: bool,
    pub(crate) is_first_chunk: bool,
    /// Who waits for it: all messages of a batch; of chunks, the last has it.
    pub(crate) sends: Vec<S>,
}

impl<S> Encoded<S> {
    /// Whether the bytes are still those that the checksum was computed of.
    pub(crate) fn is_intact(&self) -> bool {
        let Some((head, covered)) = self.head.split_at_checked(self.covered) else {
            return false;
        };
        let sent = head.last_chunk().map(|sum| u32::from_be_bytes(*sum));
        sent == Some(checksum::append(checksum::crc32c(covered), &self.payload))
    }
}

/// Encodes the messages of one entry. Without messages, nothing; a message in chunks gives several.
pub(crate) fn encode<S>(
    how: &How<'_>,
    next_sequence: &mut u64,
    messages: Vec<Queued<S>>,
    wall: impl Fn(Nanos) -> u64,
) -> Result<Vec<Encoded<S>>, (Vec<S>, Error)> {
    if messages.len() > 1 {
        batch(how, next_sequence, messages, wall).map(|encoded| vec![encoded])
    } else {
        // Alone it is no batch: so brokers see its key (and consumers need not open it).
        match messages.into_iter().next() {
            Some(queued) => single(how, next_sequence, queued, wall),
            None => Ok(Vec::new()),
        }
    }
}

fn take_sequence(next: &mut u64, wanted: Option<u64>) -> u64 {
    let sequence = wanted.unwrap_or(*next);
    *next = sequence.saturating_add(1);
    sequence
}

fn batch<S>(
    how: &How<'_>,
    next_sequence: &mut u64,
    messages: Vec<Queued<S>>,
    wall: impl Fn(Nanos) -> u64,
) -> Result<Encoded<S>, (Vec<S>, Error)> {
    let count = messages.len();
    let first = messages.first();
    let mut metadata =
        first.map_or_else(MessageMetadata::default, |q| fields::of_batch(&q.message));
    let len = messages.iter().map(|q| fields::batch_len(&q.message)).sum();
    let mut writer = BatchWriter::with_capacity(count, usize::MAX, len);
    let mut sends = Vec::with_capacity(count);
    let mut highest = 0;
    for (index, queued) in messages.into_iter().enumerate() {
        sends.push(queued.ticket);
        let sequence = take_sequence(next_sequence, queued.message.sequence_id);
        if index == 0 {
            metadata.sequence_id = sequence;
            metadata.publish_time = wall(queued.at);
        }
        highest = sequence;
        let (single, payload) = fields::single(queued.message, sequence);
        // There is no limit of the writer to meet but that of 32 bits, and payloads are far below.
        if writer.push(single, &payload).is_err() {
            let (size, limit) = (payload.len(), how.max_message_size);
            return Err((sends, Error::MessageTooLarge { size, limit }));
        }
    }
    metadata.num_messages_in_batch = Some(i32::try_from(count).unwrap_or(i32::MAX));
    metadata.highest_sequence_id = Some(highest);
    let payload = writer.finish().freeze();
    let payload = match complete(how, &mut metadata, payload) {
        Ok(payload) => payload,
        Err(error) => return Err((sends, error)),
    };
    let encoded = frame(how, &metadata, payload, sends);
    fits(how, encoded)
}

fn single<S>(
    how: &How<'_>,
    next_sequence: &mut u64,
    queued: Queued<S>,
    wall: impl Fn(Nanos) -> u64,
) -> Result<Vec<Encoded<S>>, (Vec<S>, Error)> {
    let sequence = take_sequence(next_sequence, queued.message.sequence_id);
    let (mut metadata, payload) = fields::alone(queued.message);
    metadata.sequence_id = sequence;
    metadata.publish_time = wall(queued.at);
    let sends = vec![queued.ticket];
    let payload = match complete(how, &mut metadata, payload) {
        Ok(payload) => payload,
        Err(error) => return Err((sends, error)),
    };
    let Some(wanted) = how.chunk else {
        return fits(how, frame(how, &metadata, payload, sends)).map(|encoded| vec![encoded]);
    };
    let uuid = format!("{}-{sequence}", how.name);
    let overhead = ENTRY_HEAD + prost_len(&metadata) + uuid.len() + CHUNK_FIELDS;
    let Some(room) = how
        .max_message_size
        .checked_sub(overhead)
        // With less, or so little that the chunks would take up a multiple of the message, it cannot be sent.
        .filter(|&room| room > 0 && (room >= overhead / 4 || room >= payload.len()))
    else {
        let (size, limit) = (overhead, how.max_message_size);
        return Err((sends, Error::MessageTooLarge { size, limit }));
    };
    let room = if wanted > 0 { room.min(wanted) } else { room };
    if payload.len() <= room {
        return fits(how, frame(how, &metadata, payload, sends)).map(|encoded| vec![encoded]);
    }
    let (total, count) = (payload.len(), payload.len().div_ceil(room));
    let (Ok(total_size), Ok(chunks)) = (i32::try_from(total), i32::try_from(count)) else {
        let limit = i32::MAX as usize;
        return Err((sends, Error::MessageTooLarge { size: total, limit }));
    };
    metadata.uuid = Some(uuid);
    metadata.num_chunks_from_msg = Some(chunks);
    metadata.total_chunk_msg_size = Some(total_size);
    let mut sends = Some(sends);
    let mut rest = payload;
    let mut entries = Vec::with_capacity(count);
    for chunk in 0..chunks {
        metadata.chunk_id = Some(chunk);
        let piece = rest.split_to(room.min(rest.len()));
        let last = chunk + 1 == chunks;
        let owner = sends.take_if(|_| last).unwrap_or_default();
        entries.push(frame(how, &metadata, piece, owner));
    }
    Ok(entries)
}

/// What is the same for all entries: name, schema, compression.
fn complete(how: &How<'_>, metadata: &mut MessageMetadata, payload: Bytes) -> Result<Bytes, Error> {
    metadata.producer_name = how.name.to_owned();
    if metadata.schema_version.is_none() && !how.schema_version.is_empty() {
        metadata.schema_version = Some(how.schema_version.clone());
    }
    metadata.uncompressed_size = u32::try_from(payload.len()).ok();
    if how.compression == CompressionType::None || payload.is_empty() {
        return Ok(payload);
    }
    metadata.compression = Some(how.compression as i32);
    let (size, limit) = (payload.len(), u32::MAX as usize);
    compress::compress(how.compression, &payload)
        .map(Bytes::from)
        .map_err(|_| Error::MessageTooLarge { size, limit })
}

fn frame<S>(
    how: &How<'_>,
    metadata: &MessageMetadata,
    payload: Bytes,
    sends: Vec<S>,
) -> Encoded<S> {
    let batch_size = metadata.num_messages_in_batch.unwrap_or(0);
    let is_chunk = metadata
        .num_chunks_from_msg
        .is_some_and(|chunks| chunks > 1);
    let send = CommandSend {
        producer_id: how.producer.0,
        sequence_id: metadata.sequence_id,
        num_messages: metadata.num_messages_in_batch,
        highest_sequence_id: metadata.highest_sequence_id,
        is_chunk: is_chunk.then_some(true),
        ..Default::default()
    };
    let command = BaseCommand {
        r#type: Type::Send as i32,
        send: Some(send),
        ..Default::default()
    };
    let metadata_len = prost_len(metadata);
    let mut head = BytesMut::with_capacity(64 + metadata_len);
    let rest = ENTRY_HEAD + metadata_len + payload.len();
    frames::command_with_rest(&command, rest, &mut head);
    let covered = head.len() + 6;
    entry::write_head(metadata, &payload, &mut head);
    Encoded {
        sequence: metadata.sequence_id,
        highest: metadata.highest_sequence_id.unwrap_or(metadata.sequence_id),
        head: head.freeze(),
        payload,
        covered,
        batch_size,
        is_chunk,
        is_first_chunk: is_chunk && metadata.chunk_id == Some(0),
        sends,
    }
}

/// The broker's limit is on metadata and payload together.
fn fits<S>(how: &How<'_>, encoded: Encoded<S>) -> Result<Encoded<S>, (Vec<S>, Error)> {
    let size = encoded.head.len() - encoded.covered + 6 + encoded.payload.len();
    let limit = how.max_message_size;
    if size > limit {
        return Err((encoded.sends, Error::MessageTooLarge { size, limit }));
    }
    Ok(encoded)
}

fn prost_len(metadata: &MessageMetadata) -> usize {
    vela_proto::prost::Message::encoded_len(metadata)
}
