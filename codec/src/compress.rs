//! Compression of payloads, as producers apply it: to a whole message or batch, before encryption and checksum.
//!
//! LZ4 and Snappy are raw blocks without a frame, ZLIB and ZSTD are ordinary streams. The broker decompresses only to peek, to
//! compact or to show a message, and never more than it allowed before it looked.

use std::io::{Read, Write};

use thiserror::Error;
use vela_proto::CompressionType;

/// Why a payload could not be compressed or decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CompressError {
    /// The announced size is above the limit; nothing was decompressed.
    #[error("payload of {announced} bytes when decompressed is above the limit of {limit} bytes")]
    TooLarge {
        /// `uncompressed_size` of the metadata, in bytes.
        announced: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// What comes out is not what was announced: damaged, or a bomb. At most the announced size was decompressed.
    #[error("payload does not decompress to exactly the {announced} bytes announced")]
    Corrupt {
        /// `uncompressed_size` of the metadata, in bytes.
        announced: usize,
    },
    /// The compressor failed.
    #[error("payload could not be compressed")]
    Failed,
}

/// Decompresses a payload to exactly `uncompressed_size` bytes, and at most `limit`.
///
/// # Errors
/// If the announced size is above the limit or not what comes out. Memory used stays near the announced size.
pub fn decompress(
    compression: CompressionType,
    payload: &[u8],
    uncompressed_size: usize,
    limit: usize,
) -> Result<Vec<u8>, CompressError> {
    let announced = uncompressed_size;
    if announced > limit {
        return Err(CompressError::TooLarge { announced, limit });
    }
    let corrupt = CompressError::Corrupt { announced };
    if compression == CompressionType::None {
        return if payload.len() == announced {
            Ok(payload.to_vec())
        } else {
            Err(corrupt)
        };
    }
    let mut out = vec![0; announced];
    let written = match compression {
        CompressionType::None => None,
        CompressionType::Lz4 => lz4_flex::block::decompress_into(payload, &mut out).ok(),
        CompressionType::Zlib => {
            let mut stream = flate2::read::ZlibDecoder::new(payload);
            // One byte more shows that the stream goes on.
            let whole = stream
                .read_exact(&mut out)
                .and_then(|()| stream.read(&mut [0]));
            whole.ok().filter(|&more| more == 0).map(|_| announced)
        }
        CompressionType::Zstd => zstd::bulk::decompress_to_buffer(payload, &mut out[..]).ok(),
        CompressionType::Snappy => match snap::raw::decompress_len(payload) {
            Ok(len) if len == announced => {
                snap::raw::Decoder::new().decompress(payload, &mut out).ok()
            }
            _ => None,
        },
    };
    if written == Some(announced) {
        Ok(out)
    } else {
        Err(corrupt)
    }
}

/// Compresses a payload at the library's ordinary level.
///
/// # Errors
/// If the payload is larger than the format can hold.
pub fn compress(compression: CompressionType, payload: &[u8]) -> Result<Vec<u8>, CompressError> {
    match compression {
        CompressionType::None => Ok(payload.to_vec()),
        CompressionType::Lz4 => Ok(lz4_flex::block::compress(payload)),
        CompressionType::Zlib => {
            let mut stream =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            stream
                .write_all(payload)
                .and_then(|()| stream.finish())
                .map_err(|_| CompressError::Failed)
        }
        CompressionType::Zstd => {
            zstd::bulk::compress(payload, 0).map_err(|_| CompressError::Failed)
        }
        CompressionType::Snappy => snap::raw::Encoder::new()
            .compress_vec(payload)
            .map_err(|_| CompressError::Failed),
    }
}

#[cfg(test)]
mod tests;
