//! Batches: the payload of an entry that holds several messages. The broker opens one only to peek, to compact or to show it.

use bytes::{BufMut, BytesMut};
use prost::Message as _;
use thiserror::Error;
use vela_proto::{SingleMessageMetadata, tables};

use crate::required::check;
use crate::wire::Malformed;

/// A batch that cannot be read, or a message that does not fit one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Fewer bytes than announced.
    #[error("message {index} of the batch is cut off")]
    Truncated {
        /// Position in the batch, from 0.
        index: usize,
    },
    /// The metadata of a message cannot be read.
    #[error("metadata of message {index} of the batch: {cause}")]
    Metadata {
        /// Position in the batch, from 0.
        index: usize,
        /// Why.
        cause: Malformed,
    },
    /// The batch is full.
    #[error("the batch has reached its limit of {messages} messages or {bytes} bytes")]
    Full {
        /// Most messages allowed.
        messages: usize,
        /// Most bytes allowed.
        bytes: usize,
    },
}

/// One message of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchMessage<'a> {
    /// Its metadata.
    pub metadata: SingleMessageMetadata,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Reads an uncompressed batch, message by message. It ends after the first error.
#[derive(Debug, Clone)]
pub struct BatchReader<'a> {
    rest: &'a [u8],
    index: usize,
    count: usize,
}

impl<'a> BatchReader<'a> {
    /// A reader of the first `count` messages: the metadata's `num_messages_in_batch`, of which a negative value counts as 0.
    ///
    /// The number is the sender's word; it costs nothing until as many messages are really there.
    #[must_use]
    pub fn new(payload: &'a [u8], count: i32) -> Self {
        Self {
            rest: payload,
            index: 0,
            count: usize::try_from(count).unwrap_or(0),
        }
    }

    fn read(&mut self) -> Result<BatchMessage<'a>, BatchError> {
        let truncated = BatchError::Truncated { index: self.index };
        let (size, rest) = self.rest.split_first_chunk().ok_or(truncated)?;
        let (metadata, rest) = rest
            .split_at_checked(u32::from_be_bytes(*size) as usize)
            .ok_or(truncated)?;
        let metadata = check(&tables::SINGLE_MESSAGE_METADATA, metadata)
            .and_then(|()| {
                SingleMessageMetadata::decode(metadata).map_err(|_| Malformed::Truncated)
            })
            .map_err(|cause| BatchError::Metadata {
                index: self.index,
                cause,
            })?;
        let size = usize::try_from(metadata.payload_size).map_err(|_| truncated)?;
        let (payload, rest) = rest.split_at_checked(size).ok_or(truncated)?;
        self.rest = rest;
        self.index += 1;
        Ok(BatchMessage { metadata, payload })
    }
}

impl<'a> Iterator for BatchReader<'a> {
    type Item = Result<BatchMessage<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.count {
            return None;
        }
        let message = self.read();
        if message.is_err() {
            self.count = 0;
        }
        Some(message)
    }
}

/// Builds a batch within limits.
#[derive(Debug)]
pub struct BatchWriter {
    out: BytesMut,
    messages: usize,
    max_messages: usize,
    max_bytes: usize,
}

impl BatchWriter {
    /// An empty batch of at most `max_messages` messages and `max_bytes` bytes.
    #[must_use]
    pub fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self::with_capacity(max_messages, max_bytes, 0)
    }

    /// The same with room for `capacity` bytes from the start.
    #[must_use]
    pub fn with_capacity(max_messages: usize, max_bytes: usize, capacity: usize) -> Self {
        Self {
            out: BytesMut::with_capacity(capacity),
            messages: 0,
            max_messages,
            max_bytes,
        }
    }

    /// Appends a message; its metadata's `payload_size` is set here.
    ///
    /// # Errors
    /// If it does not fit any more. The batch is as before then.
    pub fn push(
        &mut self,
        mut metadata: SingleMessageMetadata,
        payload: &[u8],
    ) -> Result<(), BatchError> {
        let full = BatchError::Full {
            messages: self.max_messages,
            bytes: self.max_bytes,
        };
        metadata.payload_size = i32::try_from(payload.len()).map_err(|_| full)?;
        let size = metadata.encoded_len();
        let len = 4 + size + payload.len();
        if self.messages >= self.max_messages || len > self.max_bytes.saturating_sub(self.out.len())
        {
            return Err(full);
        }
        self.out.reserve(len);
        self.out.put_u32(size as u32);
        // BytesMut grows, so writing cannot fail.
        let _ = metadata.encode(&mut self.out);
        self.out.put_slice(payload);
        self.messages += 1;
        Ok(())
    }

    /// Messages so far.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// The payload.
    #[must_use]
    pub fn finish(self) -> BytesMut {
        self.out
    }
}

#[cfg(test)]
mod tests;
