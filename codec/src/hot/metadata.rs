//! Metadata of an entry, as far as the broker looks at it.

use vela_proto::tables;

use super::{FIRST, SECOND, THIRD};
use crate::required::{check_field, check_seen};
use crate::wire::{LEN, Malformed, NESTING, Reader, VARINT, key};

/// A `MessageMetadata`, borrowed from the entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetadataView<'a> {
    /// Name of the producer.
    pub producer_name: &'a str,
    /// Sequence id of the message, or of the first of a batch.
    pub sequence_id: u64,
    /// Milliseconds since 1970, by the producer's clock.
    pub publish_time: u64,
    /// Present, whatever its value: the payload is a batch.
    pub num_messages_in_batch: Option<i32>,
    /// Number of a `MarkerType`: the entry is not for consumers.
    pub marker_type: Option<i32>,
    /// Milliseconds since 1970.
    pub deliver_at_time: Option<i64>,
    /// Key for compaction and Key_Shared.
    pub partition_key: Option<&'a str>,
    /// `partition_key` is base64 of the real key.
    pub partition_key_b64: bool,
    /// Overrides the key for Key_Shared.
    pub ordering_key: Option<&'a [u8]>,
    /// Common to all chunks of one message.
    pub uuid: Option<&'a str>,
    /// Which chunk of the message this is, from 0.
    pub chunk_id: Option<i32>,
    /// How many chunks the message has.
    pub num_chunks: Option<i32>,
    /// Bytes of the whole message the chunks make.
    pub total_chunk_msg_size: Option<i32>,
    /// Keys the payload's own key is encrypted with: more than 0 means encrypted.
    pub encryption_keys: usize,
    /// Both halves of a transaction id are present.
    pub has_txn: bool,
    /// Number of a `CompressionType`, 0 (none) if absent; may be unknown.
    pub compression: i32,
    /// Bytes of the payload before compression.
    pub uncompressed_size: u32,
    /// Milliseconds since 1970; 0 is unset.
    pub event_time: u64,
    /// Sequence id of the last message of a batch.
    pub highest_sequence_id: Option<u64>,
    /// The payload is null, not empty.
    pub null_value: bool,
    /// Cluster the entry was replicated from.
    pub replicated_from: Option<&'a str>,
    /// Version of the schema the payload was written with.
    pub schema_version: Option<&'a [u8]>,
}

impl<'a> MetadataView<'a> {
    /// Reads an encoded `MessageMetadata`.
    ///
    /// # Errors
    /// As [`decode_metadata`](crate::decode_metadata).
    pub fn parse(metadata: &'a [u8]) -> Result<Self, Malformed> {
        const PRODUCER_NAME: u32 = key(1, LEN);
        const SEQUENCE_ID: u32 = key(2, VARINT);
        const PUBLISH_TIME: u32 = key(3, VARINT);
        const REPLICATED_FROM: u32 = key(5, LEN);
        const PARTITION_KEY: u32 = key(6, LEN);
        const COMPRESSION: u32 = key(8, VARINT);
        const UNCOMPRESSED_SIZE: u32 = key(9, VARINT);
        const NUM_MESSAGES_IN_BATCH: u32 = key(11, VARINT);
        const EVENT_TIME: u32 = key(12, VARINT);
        const ENCRYPTION_KEYS: u32 = key(13, LEN);
        const SCHEMA_VERSION: u32 = key(16, LEN);
        const PARTITION_KEY_B64: u32 = key(17, VARINT);
        const ORDERING_KEY: u32 = key(18, LEN);
        const DELIVER_AT_TIME: u32 = key(19, VARINT);
        const MARKER_TYPE: u32 = key(20, VARINT);
        const TXN_LEAST: u32 = key(22, VARINT);
        const TXN_MOST: u32 = key(23, VARINT);
        const HIGHEST_SEQUENCE_ID: u32 = key(24, VARINT);
        const NULL_VALUE: u32 = key(25, VARINT);
        const UUID: u32 = key(26, LEN);
        const NUM_CHUNKS: u32 = key(27, VARINT);
        const TOTAL_CHUNK_MSG_SIZE: u32 = key(28, VARINT);
        const CHUNK_ID: u32 = key(29, VARINT);

        let mut view = Self::default();
        let mut reader = Reader::new(metadata);
        let (mut seen, mut least, mut most) = (0, false, false);
        while let Some(key) = reader.key()? {
            match key {
                PRODUCER_NAME => {
                    view.producer_name = text(&mut reader, "producer_name")?;
                    seen |= FIRST;
                }
                SEQUENCE_ID => {
                    view.sequence_id = reader.varint()?;
                    seen |= SECOND;
                }
                PUBLISH_TIME => {
                    view.publish_time = reader.varint()?;
                    seen |= THIRD;
                }
                REPLICATED_FROM => {
                    view.replicated_from = Some(text(&mut reader, "replicated_from")?)
                }
                PARTITION_KEY => view.partition_key = Some(text(&mut reader, "partition_key")?),
                COMPRESSION => view.compression = reader.varint()? as i32,
                UNCOMPRESSED_SIZE => view.uncompressed_size = reader.varint()? as u32,
                NUM_MESSAGES_IN_BATCH => view.num_messages_in_batch = Some(reader.varint()? as i32),
                EVENT_TIME => view.event_time = reader.varint()?,
                SCHEMA_VERSION => view.schema_version = Some(reader.bytes()?),
                PARTITION_KEY_B64 => view.partition_key_b64 = reader.varint()? != 0,
                ORDERING_KEY => view.ordering_key = Some(reader.bytes()?),
                DELIVER_AT_TIME => view.deliver_at_time = Some(reader.varint()? as i64),
                MARKER_TYPE => view.marker_type = Some(reader.varint()? as i32),
                TXN_LEAST => {
                    reader.varint()?;
                    least = true;
                }
                TXN_MOST => {
                    reader.varint()?;
                    most = true;
                }
                HIGHEST_SEQUENCE_ID => view.highest_sequence_id = Some(reader.varint()?),
                NULL_VALUE => view.null_value = reader.varint()? != 0,
                UUID => view.uuid = Some(text(&mut reader, "uuid")?),
                NUM_CHUNKS => view.num_chunks = Some(reader.varint()? as i32),
                TOTAL_CHUNK_MSG_SIZE => view.total_chunk_msg_size = Some(reader.varint()? as i32),
                CHUNK_ID => view.chunk_id = Some(reader.varint()? as i32),
                other => {
                    check_field(&tables::MESSAGE_METADATA, other, &mut reader, NESTING)?;
                    view.encryption_keys += usize::from(other == ENCRYPTION_KEYS);
                }
            }
        }
        check_seen(&tables::MESSAGE_METADATA, seen)?;
        view.has_txn = least && most;
        Ok(view)
    }
}

#[inline]
fn text<'a>(reader: &mut Reader<'a>, field: &'static str) -> Result<&'a str, Malformed> {
    let bytes = reader.bytes()?;
    std::str::from_utf8(bytes).map_err(|_| Malformed::Utf8 {
        message: "MessageMetadata",
        field,
    })
}
