//! Entries: what a producer sends behind its SEND, what is stored, and what a consumer gets behind its MESSAGE.
//!
//! `[0x0e02, size, broker entry metadata] [0x0e01, CRC-32C] metadata size, metadata, payload`

use bytes::{BufMut, BytesMut};
use prost::Message as _;
use thiserror::Error;
use vela_proto::{BrokerEntryMetadata, MessageMetadata};

use crate::checksum;
use crate::hot::MetadataView;
use crate::required::decode_metadata;
use crate::wire::Malformed;

/// A checksum follows.
pub const MAGIC_CHECKSUM: u16 = 0x0e01;
/// Broker entry metadata follows.
pub const MAGIC_BROKER_METADATA: u16 = 0x0e02;

/// Magic and checksum, in bytes.
const CHECKSUM_LEN: usize = 6;

/// An entry that cannot even be stored: the connection that sent it must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EntryError {
    /// Nothing, or a single byte, behind the command.
    #[error("the SEND carries {0} bytes behind its command, too few for an entry")]
    TooShort(usize),
    /// The magic of a checksum, and less than a checksum behind it.
    #[error("the checksum of the entry is cut off")]
    ChecksumCut,
}

/// The checksum sent does not match the bytes it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the entry has the checksum {computed:#010x}, but {sent:#010x} was sent")]
pub struct ChecksumMismatch {
    /// As sent.
    pub sent: u32,
    /// Of the bytes received.
    pub computed: u32,
}

/// The parts of an entry, borrowed.
///
/// As little as possible is refused: an entry whose metadata cannot be read is stored all the same, and dropped when it would be
/// delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The encoded `BrokerEntryMetadata`, if the entry has it.
    pub broker_metadata: Option<&'a [u8]>,
    /// The checksum as sent, if there is one.
    pub checksum: Option<u32>,
    /// The encoded `MessageMetadata`, or `None` if its size is cut off or says more than is there.
    pub metadata: Option<&'a [u8]>,
    /// The payload; empty if there is no metadata.
    pub payload: &'a [u8],
    /// From the checksum's magic, or else the metadata size, to the end.
    stored: &'a [u8],
    /// From the metadata size to the end: what the checksum covers.
    covered: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Takes apart what stands behind a SEND or MESSAGE command, or a stored entry.
    ///
    /// # Errors
    /// If less than two bytes are there, or the checksum is cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, EntryError> {
        let (broker_metadata, stored) = match split_magic(bytes) {
            None => return Err(EntryError::TooShort(bytes.len())),
            Some((MAGIC_BROKER_METADATA, rest)) => match split_sized(rest) {
                Some((metadata, rest)) => (Some(metadata), rest),
                // Unreadable: nothing behind it can be found.
                None => {
                    let (stored, nothing) = (bytes, bytes.get(..0).unwrap_or_default());
                    return Ok(Self {
                        broker_metadata: None,
                        checksum: None,
                        metadata: None,
                        payload: nothing,
                        stored,
                        covered: stored,
                    });
                }
            },
            Some(_) => (None, bytes),
        };
        let (checksum, covered) = match split_magic(stored) {
            Some((MAGIC_CHECKSUM, rest)) => {
                let (sum, rest) = split_u32(rest).ok_or(EntryError::ChecksumCut)?;
                (Some(sum), rest)
            }
            _ => (None, stored),
        };
        let (metadata, payload) = match split_sized(covered) {
            Some((metadata, payload)) => (Some(metadata), payload),
            None => (None, &[][..]),
        };
        Ok(Self {
            broker_metadata,
            checksum,
            metadata,
            payload,
            stored,
            covered,
        })
    }

    /// Compares the checksum sent with the bytes it covers. An entry without checksum passes.
    ///
    /// # Errors
    /// If they do not match.
    pub fn verify_checksum(&self) -> Result<(), ChecksumMismatch> {
        match self.checksum {
            None => Ok(()),
            Some(sent) => match checksum::crc32c(self.covered) {
                computed if computed == sent => Ok(()),
                computed => Err(ChecksumMismatch { sent, computed }),
            },
        }
    }

    /// Reads the metadata in place; `None` if it cannot be found or read.
    #[must_use]
    pub fn metadata_view(&self) -> Option<MetadataView<'a>> {
        MetadataView::parse(self.metadata?).ok()
    }

    /// Reads the whole metadata.
    ///
    /// # Errors
    /// If it cannot be found or read.
    pub fn decode_metadata(&self) -> Result<MessageMetadata, Malformed> {
        decode_metadata(self.metadata.ok_or(Malformed::Truncated)?)
    }

    /// Reads the broker entry metadata, if it is there and readable.
    #[must_use]
    pub fn decode_broker_metadata(&self) -> Option<BrokerEntryMetadata> {
        BrokerEntryMetadata::decode(self.broker_metadata?).ok()
    }

    /// The entry without broker entry metadata: what a client gets unless it asked for that.
    #[must_use]
    pub fn without_broker_metadata(&self) -> &'a [u8] {
        self.stored
    }

    /// The entry without broker entry metadata and checksum, for peers of protocol versions below 11.
    #[must_use]
    pub fn without_checksum(&self) -> &'a [u8] {
        self.covered
    }
}

/// Appends an entry with checksum.
pub fn write(metadata: &MessageMetadata, payload: &[u8], out: &mut BytesMut) {
    out.reserve(CHECKSUM_LEN + 4 + metadata.encoded_len() + payload.len());
    write_head(metadata, payload, out);
    out.put_slice(payload);
}

/// Appends everything of an entry with checksum that stands in front of its payload, which the caller sends behind it.
pub fn write_head(metadata: &MessageMetadata, payload: &[u8], out: &mut BytesMut) {
    let len = metadata.encoded_len();
    out.reserve(CHECKSUM_LEN + 4 + len);
    out.put_u16(MAGIC_CHECKSUM);
    let sum_at = out.len();
    out.put_u32(0);
    out.put_u32(len as u32);
    // BytesMut grows, so writing cannot fail.
    let _ = metadata.encode(out);
    let covered = out.get(sum_at + 4..).unwrap_or_default();
    let sum = checksum::append(checksum::crc32c(covered), payload);
    if let Some(space) = out.get_mut(sum_at..sum_at + 4) {
        space.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Appends broker entry metadata; the entry itself, without any, is for the caller to append.
pub fn write_broker_metadata(metadata: &BrokerEntryMetadata, out: &mut BytesMut) {
    out.put_u16(MAGIC_BROKER_METADATA);
    out.put_u32(metadata.encoded_len() as u32);
    let _ = metadata.encode(out);
}

fn split_magic(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (magic, rest) = bytes.split_first_chunk()?;
    Some((u16::from_be_bytes(*magic), rest))
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (value, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*value), rest))
}

/// A size, as many bytes, and what follows.
fn split_sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = split_u32(bytes)?;
    rest.split_at_checked(size as usize)
}

#[cfg(test)]
mod tests;
