//! Entries as producers make them, and damaged ones.

use bytes::{Bytes, BytesMut};
use vela_codec::batch::BatchWriter;
use vela_codec::compress::compress;
use vela_codec::entry;
use vela_proto::{CompressionType, MessageMetadata, SingleMessageMetadata};

/// Ways to damage an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// A bit of the payload.
    Payload,
    /// The metadata cannot be read, and the checksum is wrong.
    Metadata,
    /// The metadata cannot be read, under a right checksum.
    MetadataSigned,
    /// The payload does not decompress.
    Compression,
    /// The batch ends early.
    Batch,
}

pub(super) fn metadata() -> MessageMetadata {
    MessageMetadata {
        producer_name: "p".into(),
        sequence_id: 1,
        publish_time: 1,
        ..MessageMetadata::default()
    }
}

pub(super) fn entry(metadata: &MessageMetadata, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    entry::write(metadata, payload, &mut out);
    out.freeze()
}

pub(super) fn single(payload: &str) -> Bytes {
    entry(&metadata(), payload.as_bytes())
}

fn payload_of(count: u32, change: impl Fn(u32, &mut SingleMessageMetadata)) -> Bytes {
    let mut batch = BatchWriter::new(usize::MAX, usize::MAX);
    for index in 0..count {
        let mut single = SingleMessageMetadata::default();
        change(index, &mut single);
        batch.push(single, format!("m{index}").as_bytes()).unwrap();
    }
    batch.finish().freeze()
}

pub(super) fn batch_with(count: u32, change: impl Fn(u32, &mut SingleMessageMetadata)) -> Bytes {
    let mut metadata = metadata();
    metadata.num_messages_in_batch = Some(count as i32);
    entry(&metadata, &payload_of(count, change))
}

pub(super) fn batch(count: u32) -> Bytes {
    batch_with(count, |_, _| {})
}

pub(super) fn compressed_batch(count: u32, compression: CompressionType) -> Bytes {
    let payload = payload_of(count, |_, _| {});
    let mut metadata = metadata();
    metadata.num_messages_in_batch = Some(count as i32);
    metadata.compression = Some(compression as i32);
    metadata.uncompressed_size = Some(payload.len() as u32);
    entry(&metadata, &compress(compression, &payload).unwrap())
}

pub(super) fn damaged(count: u32, damage: Damage) -> Bytes {
    match damage {
        Damage::Payload => {
            let mut bytes = BytesMut::from(&batch(count)[..]);
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            bytes.freeze()
        }
        Damage::Metadata => {
            let mut bytes = BytesMut::from(&batch(count)[..]);
            // Behind magic, checksum and size: the first tag.
            bytes[10] = 0xff;
            bytes.freeze()
        }
        Damage::MetadataSigned => {
            use bytes::BufMut as _;
            let mut covered = BytesMut::new();
            covered.put_u32(1000);
            covered.put_slice(b"nothing of the kind");
            let mut out = BytesMut::new();
            out.put_u16(entry::MAGIC_CHECKSUM);
            out.put_u32(vela_codec::checksum::crc32c(&covered));
            out.put_slice(&covered);
            out.freeze()
        }
        Damage::Compression => {
            let mut metadata = metadata();
            metadata.num_messages_in_batch = Some(count as i32);
            metadata.compression = Some(CompressionType::Zstd as i32);
            metadata.uncompressed_size = Some(count * 20);
            entry(&metadata, &vec![0xa5; count as usize * 10])
        }
        Damage::Batch => {
            let whole = payload_of(count, |_, _| {});
            let mut metadata = metadata();
            metadata.num_messages_in_batch = Some(count as i32);
            entry(&metadata, &whole[..whole.len() - 1])
        }
    }
}

pub(super) fn chunk(uuid: &str, index: i32, of: i32, total: usize, payload: &[u8]) -> Bytes {
    let mut metadata = metadata();
    metadata.uuid = Some(uuid.into());
    metadata.chunk_id = Some(index);
    metadata.num_chunks_from_msg = Some(of);
    metadata.total_chunk_msg_size = Some(total as i32);
    entry(&metadata, payload)
}
