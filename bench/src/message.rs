//! The messages sent: encoded once, and patched for each send.
//!
//! Every payload begins with a header that lets whoever receives it verify order, completeness and age, all big-endian:
//! send time (8 bytes, monotonic nanoseconds), sequence id (8), run (4), producer (4), device (4), sequence of the device (8), and the
//! CRC-32C of all other bytes of the payload (4). A fixed pattern follows.

use std::sync::Arc;

use bytes::BytesMut;
use vela_codec::batch::BatchWriter;
use vela_codec::{checksum, encode};
use vela_proto::base_command::Type;
use vela_proto::prost::Message as _;
use vela_proto::{BaseCommand, CommandSend, MessageMetadata, SingleMessageMetadata};

use crate::error::{Context as _, Result};

/// Bytes of the payload's header: the smallest payload.
pub(crate) const HEADER_LEN: usize = 40;
/// Bytes of the header in front of its checksum.
const HEAD_LEN: usize = HEADER_LEN - 4;

/// Length of every key: `d` and seven digits.
pub(crate) const KEY_LEN: usize = 8;
/// Devices that such a key can name.
pub(crate) const MAX_DEVICES: u32 = 10_000_000;

/// Sequence ids of all producers begin here and end at [`LAST_SEQUENCE`]: in this range each takes four bytes on the wire, so that
/// a frame keeps its length.
pub(crate) const FIRST_SEQUENCE: u64 = 1 << 21;
/// The largest sequence id of four bytes.
pub(crate) const LAST_SEQUENCE: u64 = (1 << 28) - 1;

/// From this length on, the constant end of a frame has its checksum computed once and combined, not computed again.
const COMBINE_FROM: usize = 512;

/// The header of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// When the message was sent, or was due, in nanoseconds of the sending machine's monotonic clock.
    pub(crate) time: u64,
    pub(crate) sequence: u64,
    pub(crate) run: u32,
    pub(crate) producer: u32,
    pub(crate) device: u32,
    /// Counts the device's messages, from 0.
    pub(crate) device_sequence: u64,
}

/// A payload as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    Whole(Header),
    /// Its checksum is wrong: the header may be, too.
    Altered(Header),
    /// Too short for a header.
    Short,
}

impl Payload {
    /// Reads a payload and verifies its checksum.
    pub(crate) fn read(payload: &[u8]) -> Self {
        let Some((header, sum, rest)) = Header::split(payload) else {
            return Self::Short;
        };
        let head = payload.get(..HEAD_LEN).unwrap_or_default();
        if crc32c::crc32c_append(checksum::crc32c(head), rest) == sum {
            Self::Whole(header)
        } else {
            Self::Altered(header)
        }
    }
}

impl Header {
    /// The header, its checksum, and what follows.
    fn split(payload: &[u8]) -> Option<(Self, u32, &[u8])> {
        let (time, rest) = payload.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (run, rest) = rest.split_first_chunk()?;
        let (producer, rest) = rest.split_first_chunk()?;
        let (device, rest) = rest.split_first_chunk()?;
        let (device_sequence, rest) = rest.split_first_chunk()?;
        let (sum, rest) = rest.split_first_chunk()?;
        let header = Self {
            time: u64::from_be_bytes(*time),
            sequence: u64::from_be_bytes(*sequence),
            run: u32::from_be_bytes(*run),
            producer: u32::from_be_bytes(*producer),
            device: u32::from_be_bytes(*device),
            device_sequence: u64::from_be_bytes(*device_sequence),
        };
        Some((header, u32::from_be_bytes(*sum), rest))
    }

    fn encode(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        patch(&mut head, 0, self.time.to_be_bytes());
        patch(&mut head, 8, self.sequence.to_be_bytes());
        patch(&mut head, 16, self.run.to_be_bytes());
        patch(&mut head, 20, self.producer.to_be_bytes());
        patch(&mut head, 24, self.device.to_be_bytes());
        patch(&mut head, 28, self.device_sequence.to_be_bytes());
        head
    }
}

/// The key of a device's messages.
pub(crate) fn key(device: u32) -> [u8; KEY_LEN] {
    let mut key = [b'd'; KEY_LEN];
    let mut rest = device;
    for digit in key.iter_mut().skip(1).rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// What follows the header in all payloads of one size, and its checksum.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    crc: u32,
    shift: Shift,
}

impl Body {
    /// Of payloads of `size` bytes, at least [`HEADER_LEN`].
    pub(crate) fn new(size: usize) -> Self {
        let bytes = pattern(size.saturating_sub(HEADER_LEN));
        Self {
            crc: checksum::crc32c(&bytes),
            shift: Shift::new(bytes.len()),
            bytes,
        }
    }
}

/// What follows the header in every payload, `len` bytes of it.
fn pattern(len: usize) -> Vec<u8> {
    // Not compressible by simple means, and different at every offset of a word.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Where one message of the frame has its changing parts.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Sequence id of the single message's metadata; only in a batch.
    single_sequence: Option<usize>,
    key: Option<usize>,
    header: usize,
}

/// A SEND frame of one producer.
#[derive(Debug)]
pub(crate) struct Template {
    frame: Vec<u8>,
    /// Offsets of four-byte sequence ids: of the first message, and of the last.
    first_sequence: [usize; 2],
    last_sequence: Option<[usize; 2]>,
    publish_time: usize,
    metadata_key: Option<usize>,
    checksum: usize,
    slots: Vec<Slot>,
    tail: Option<Tail>,
    body: Arc<Body>,
    run: u32,
    producer: u32,
}

/// The end of a frame that never changes.
#[derive(Debug)]
struct Tail {
    from: usize,
    crc: u32,
    shift: Shift,
}

impl Template {
    /// A SEND of `batch` messages, with a key if `keyed`.
    ///
    /// # Errors
    /// If the batch cannot be encoded.
    pub(crate) fn new(
        producer_id: u64,
        producer_name: &str,
        (run, producer): (u32, u32),
        body: &Arc<Body>,
        batch: usize,
        keyed: bool,
        now_ms: u64,
    ) -> Result<Self> {
        let mut payload = vec![0; HEADER_LEN];
        payload.extend(&body.bytes);
        let size = payload.len();
        let any_key = keyed.then(|| String::from_utf8_lossy(&key(0)).into_owned());
        let shared = Arc::clone(body);

        let batched = batch > 1;
        let count = i32::try_from(batch).context(|| format!("--batch {batch}"))?;
        let command = BaseCommand {
            r#type: Type::Send as i32,
            send: Some(CommandSend {
                producer_id,
                sequence_id: FIRST_SEQUENCE,
                num_messages: batched.then_some(count),
                highest_sequence_id: batched.then_some(FIRST_SEQUENCE),
                ..CommandSend::default()
            }),
            ..BaseCommand::default()
        };
        let single = SingleMessageMetadata {
            payload_size: i32::try_from(size).context(|| format!("--size {size}"))?,
            sequence_id: Some(FIRST_SEQUENCE),
            partition_key: any_key.clone(),
            ..SingleMessageMetadata::default()
        };
        let body = if batched {
            let mut writer = BatchWriter::new(batch, usize::MAX);
            for _ in 0..batch {
                writer
                    .push(single.clone(), &payload)
                    .context(|| "cannot encode the batch".into())?;
            }
            writer.finish().to_vec()
        } else {
            payload
        };
        let body_len = u32::try_from(body.len())
            .context(|| format!("a batch of {batch} messages of {size} bytes"))?;
        let metadata = MessageMetadata {
            producer_name: producer_name.into(),
            sequence_id: FIRST_SEQUENCE,
            publish_time: now_ms,
            partition_key: any_key,
            uncompressed_size: batched.then_some(body_len),
            num_messages_in_batch: batched.then_some(count),
            highest_sequence_id: batched.then_some(FIRST_SEQUENCE),
            ..MessageMetadata::default()
        };
        let metadata = metadata.encode_to_vec();
        let entry_len = 6 + 4 + metadata.len() + body.len();
        let mut out = BytesMut::new();
        encode::command_with_rest(&command, entry_len, &mut out);
        let entry = out.len();
        let metadata_at = entry + 6 + 4;
        out.extend_from_slice(&vela_codec::entry::MAGIC_CHECKSUM.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(metadata.len() as u32).to_be_bytes());
        out.extend_from_slice(&metadata);
        let body_at = out.len();
        out.extend_from_slice(&body);

        // Fields stand in the order of their numbers. In the command: .. 2 sequence_id [3 num_messages, 6 highest_sequence_id].
        let command_sequence = if batched {
            entry - 4 - 1 - (1 + varint_len(batch as u64)) - 4
        } else {
            entry - 4
        };
        // In the metadata: 1 producer_name, 2 sequence_id, 3 publish_time, 6 partition_key .. 24 highest_sequence_id (last).
        let name_len = producer_name.len();
        let metadata_sequence = metadata_at + 1 + varint_len(name_len as u64) + name_len + 1;
        let publish_time = metadata_sequence + 4 + 1;
        let metadata_key = publish_time + 6 + 2;
        let single_len = single.encoded_len();
        let slots = (0..batch)
            .map(|i| {
                if batched {
                    let at = body_at + i * (4 + single_len + size);
                    Slot {
                        // 2 partition_key, 3 payload_size, 8 sequence_id (last).
                        single_sequence: Some(at + 4 + single_len - 4),
                        key: keyed.then_some(at + 4 + 2),
                        header: at + 4 + single_len,
                    }
                } else {
                    Slot {
                        single_sequence: None,
                        key: None,
                        header: body_at,
                    }
                }
            })
            .collect::<Vec<_>>();
        let tail_from = slots
            .last()
            .map_or(out.len(), |slot| slot.header + HEADER_LEN);
        let tail = out
            .get(tail_from..)
            .filter(|tail| tail.len() >= COMBINE_FROM)
            .map(|tail| Tail {
                from: tail_from,
                crc: checksum::crc32c(tail),
                shift: Shift::new(tail.len()),
            });
        Ok(Self {
            frame: out.to_vec(),
            first_sequence: [command_sequence, metadata_sequence],
            last_sequence: batched.then_some([entry - 4, body_at - 4]),
            publish_time,
            checksum: entry + 2,
            metadata_key: keyed.then_some(metadata_key),
            slots,
            tail,
            body: shared,
            run,
            producer,
        })
    }

    /// Bytes of the frame.
    pub(crate) fn len(&self) -> usize {
        self.frame.len()
    }

    /// Appends the frame whose first message has this sequence id, and this sequence of its device. `time` goes into the payloads'
    /// headers.
    ///
    /// The sequence ids lie between [`FIRST_SEQUENCE`] and [`LAST_SEQUENCE`].
    pub(crate) fn write(
        &mut self,
        sequence: u64,
        now_ms: u64,
        time: u64,
        (device, device_sequence): (u32, u64),
        out: &mut BytesMut,
    ) {
        for at in self.first_sequence {
            patch(&mut self.frame, at, varint4(sequence));
        }
        if let Some(last) = self.last_sequence {
            let sequence = sequence + self.slots.len() as u64 - 1;
            for at in last {
                patch(&mut self.frame, at, varint4(sequence));
            }
        }
        patch(&mut self.frame, self.publish_time, varint6(now_ms));
        if let Some(at) = self.metadata_key {
            patch(&mut self.frame, at, key(device));
        }
        for (slot, i) in self.slots.iter().zip(0..) {
            let sequence = sequence + i;
            if let Some(at) = slot.single_sequence {
                patch(&mut self.frame, at, varint4(sequence));
            }
            if let Some(at) = slot.key {
                patch(&mut self.frame, at, key(device));
            }
            let head = Header {
                time,
                sequence,
                run: self.run,
                producer: self.producer,
                device,
                device_sequence: device_sequence + i,
            }
            .encode();
            let sum = self.body.shift.apply(checksum::crc32c(&head)) ^ self.body.crc;
            patch(&mut self.frame, slot.header, head);
            patch(&mut self.frame, slot.header + HEAD_LEN, sum.to_be_bytes());
        }
        // The checksum covers everything behind itself.
        let covered = self.checksum + 4;
        let crc = match &self.tail {
            Some(tail) => {
                let head = self.frame.get(covered..tail.from).unwrap_or_default();
                tail.shift.apply(checksum::crc32c(head)) ^ tail.crc
            }
            None => checksum::crc32c(self.frame.get(covered..).unwrap_or_default()),
        };
        patch(&mut self.frame, self.checksum, crc.to_be_bytes());
        out.extend_from_slice(&self.frame);
    }
}

fn patch<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = frame.get_mut(at..at + N) {
        place.copy_from_slice(&bytes);
    }
}

/// The varint of a value from 2^21 to 2^28 - 1.
fn varint4(value: u64) -> [u8; 4] {
    let part = |shift: u32| (value >> shift) as u8;
    [
        part(0) | 0x80,
        part(7) | 0x80,
        part(14) | 0x80,
        part(21) & 0x7f,
    ]
}

/// The varint of a value from 2^35 to 2^42 - 1: milliseconds since 1970 of the years 1971 to 2109.
fn varint6(value: u64) -> [u8; 6] {
    let part = |shift: u32| (value >> shift) as u8;
    [
        part(0) | 0x80,
        part(7) | 0x80,
        part(14) | 0x80,
        part(21) | 0x80,
        part(28) | 0x80,
        part(35) & 0x7f,
    ]
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// What appending a number of bytes does to a CRC-32C: a linear map, tabulated per byte.
struct Shift([[u32; 256]; 4]);

impl std::fmt::Debug for Shift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shift")
    }
}

impl Shift {
    fn new(len: usize) -> Self {
        let mut tables = [[0; 256]; 4];
        for (position, table) in tables.iter_mut().enumerate() {
            for (byte, value) in table.iter_mut().enumerate() {
                let crc = (byte as u32) << (8 * position);
                *value = crc32c::crc32c_combine(crc, 0, len);
            }
        }
        Self(tables)
    }

    fn apply(&self, crc: u32) -> u32 {
        self.0
            .iter()
            .zip(crc.to_le_bytes())
            .fold(0, |sum, (table, byte)| {
                sum ^ table.get(usize::from(byte)).copied().unwrap_or(0)
            })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use vela_codec::batch::BatchReader;
    use vela_codec::decode_command;
    use vela_codec::entry::Entry;

    use super::*;
    use crate::wire::Input;

    fn frame_of(template: &mut Template, sequence: u64) -> (BaseCommand, Vec<u8>) {
        let mut out = BytesMut::new();
        template.write(sequence, 1_800_000_000_123, 77, (1234, 5), &mut out);
        assert_eq!(out.len(), template.len());
        let mut input = Input::new(out.len());
        input.space()[..out.len()].copy_from_slice(&out);
        input.filled(out.len());
        let frame = input.next().unwrap().unwrap();
        (decode_command(frame.command).unwrap(), frame.rest.to_vec())
    }

    fn template(producer_id: u64, name: &str, size: usize, batch: usize, keyed: bool) -> Template {
        let body = Arc::new(Body::new(size));
        Template::new(
            producer_id,
            name,
            (9, 4),
            &body,
            batch,
            keyed,
            1_700_000_000_000,
        )
        .unwrap()
    }

    fn header(sequence: u64, device_sequence: u64) -> Header {
        Header {
            time: 77,
            sequence,
            run: 9,
            producer: 4,
            device: 1234,
            device_sequence,
        }
    }

    #[test]
    fn every_patched_frame_is_what_the_codec_would_write() {
        for (size, producer_id) in [(40, 0), (128, 7), (551, 200), (552, 1), (100_000, 1)] {
            for keyed in [false, true] {
                let mut template = template(producer_id, "standalone-3-14", size, 1, keyed);
                for sequence in [FIRST_SEQUENCE, FIRST_SEQUENCE + 12_345, LAST_SEQUENCE] {
                    let (command, entry) = frame_of(&mut template, sequence);
                    let send = command.send.unwrap();
                    assert_eq!(send.producer_id, producer_id);
                    assert_eq!(send.sequence_id, sequence);
                    let entry = Entry::parse(&entry).unwrap();
                    assert!(entry.checksum.is_some());
                    entry.verify_checksum().unwrap();
                    let metadata = entry.decode_metadata().unwrap();
                    assert_eq!(metadata.producer_name, "standalone-3-14");
                    assert_eq!(metadata.sequence_id, sequence);
                    assert_eq!(metadata.publish_time, 1_800_000_000_123);
                    assert_eq!(metadata.num_messages_in_batch, None);
                    let wanted = keyed.then_some("d0001234");
                    assert_eq!(metadata.partition_key.as_deref(), wanted);
                    assert_eq!(entry.payload.len(), size);
                    let found = Payload::read(entry.payload);
                    assert_eq!(found, Payload::Whole(header(sequence, 5)));
                }
            }
        }
    }

    #[test]
    fn every_message_of_a_batch_is_patched() {
        for (batch, keyed) in [(2, false), (100, true), (1000, false), (1000, true)] {
            let mut template = template(1, "p", 700, batch, keyed);
            let first = FIRST_SEQUENCE + 500;
            let last = first + batch as u64 - 1;
            let (command, entry) = frame_of(&mut template, first);
            let send = command.send.unwrap();
            assert_eq!(send.sequence_id, first);
            assert_eq!(send.highest_sequence_id, Some(last));
            assert_eq!(send.num_messages, Some(batch as i32));
            let entry = Entry::parse(&entry).unwrap();
            entry.verify_checksum().unwrap();
            let metadata = entry.decode_metadata().unwrap();
            assert_eq!(metadata.sequence_id, first);
            assert_eq!(metadata.highest_sequence_id, Some(last));
            assert_eq!(metadata.uncompressed_size, Some(entry.payload.len() as u32));
            let wanted = keyed.then_some("d0001234");
            assert_eq!(metadata.partition_key.as_deref(), wanted);
            let messages = BatchReader::new(entry.payload, metadata.num_messages_in_batch.unwrap())
                .collect::<std::result::Result<Vec<_>, _>>()
                .unwrap();
            assert_eq!(messages.len(), batch);
            for (message, i) in messages.iter().zip(0..) {
                assert_eq!(message.metadata.sequence_id, Some(first + i));
                assert_eq!(message.metadata.partition_key.as_deref(), wanted);
                let found = Payload::read(message.payload);
                assert_eq!(found, Payload::Whole(header(first + i, 5 + i)));
            }
        }
    }

    #[test]
    fn an_altered_payload_is_noticed_wherever_it_is() {
        let mut template = template(1, "p", 100, 1, false);
        let (_, entry) = frame_of(&mut template, FIRST_SEQUENCE);
        let mut payload = Entry::parse(&entry).unwrap().payload.to_vec();
        for at in 0..payload.len() {
            payload[at] ^= 1;
            assert!(
                matches!(Payload::read(&payload), Payload::Altered(_)),
                "{at}"
            );
            payload[at] ^= 1;
        }
        assert!(matches!(Payload::read(&payload), Payload::Whole(_)));
        assert!(matches!(Payload::read(&payload[..99]), Payload::Altered(_)));
        assert_eq!(Payload::read(&payload[..HEADER_LEN - 1]), Payload::Short);
    }
}
