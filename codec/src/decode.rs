//! Cuts the bytes of one connection into frames.

use std::fmt;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use thiserror::Error;

use crate::cumulation::Received;
use crate::root::{Accounting, Root};

/// How much larger than the largest message a frame may be, in bytes.
pub const FRAME_PADDING: usize = 10 * 1024;

/// The size of each of the two size fields in front of a command, in bytes.
const SIZE_FIELD: usize = 4;

/// The shortest `total_size` that can hold a command: the command size, and a `BaseCommand` with nothing but its type.
const MIN_TOTAL_SIZE: usize = SIZE_FIELD + 2;

/// Missing bytes of a frame from which on [`FrameDecoder::space`] asks for a read in place. Below, it is cheaper to read a full
/// buffer, with the frames behind this one, and copy the few bytes.
pub const IN_PLACE_MIN: usize = 8 * 1024;

/// The least memory that an unfinished frame is given, in bytes, unless the frame is smaller.
pub const PARTIAL_MIN: usize = 256;

/// A frame that breaks the rules of framing. The connection has no next frame: it must be closed, without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The frame is larger than this side accepts.
    #[error(
        "frame of {frame} bytes is larger than the limit of {limit} bytes (maxMessageSize + {FRAME_PADDING}); send smaller messages or raise maxMessageSize"
    )]
    TooLarge {
        /// Bytes of the whole frame, its size field included.
        frame: usize,
        /// Largest frame accepted, in the same measure.
        limit: usize,
    },
    /// `total_size` leaves no room for a command.
    #[error(
        "frame announces {total_size} bytes, too few for a command: the peer does not speak the Pulsar protocol"
    )]
    TooSmall {
        /// The `total_size` field.
        total_size: usize,
    },
    /// The command is said to be longer than the frame.
    #[error("command of {command_size} bytes does not fit its frame of total_size {total_size}")]
    CommandBeyondFrame {
        /// The `cmd_size` field.
        command_size: usize,
        /// The `total_size` field.
        total_size: usize,
    },
}

/// One whole frame, sharing the memory it was read into.
#[derive(Clone)]
pub struct Frame {
    /// `cmd_size`, command and rest: everything behind `total_size`. At least 4 + `command_len` bytes.
    buf: Bytes,
    command_len: usize,
    root_capacity: usize,
}

impl Frame {
    /// A frame from everything behind its `total_size` field, as if it had just been received.
    ///
    /// # Errors
    /// As [`FrameDecoder::next_frame`], the limit aside.
    pub fn from_body(received: impl Into<Received>) -> Result<Self, FrameError> {
        let Received {
            bytes: buf,
            root_capacity,
        } = received.into();
        let total_size = buf.len();
        let command_size = buf.get(..SIZE_FIELD).and_then(read_size);
        let (true, Some(command_len)) = (total_size >= MIN_TOTAL_SIZE, command_size) else {
            return Err(FrameError::TooSmall { total_size });
        };
        check_command_size(command_len, total_size)?;
        Ok(Self {
            buf,
            command_len,
            root_capacity,
        })
    }

    /// The encoded `BaseCommand`.
    #[must_use]
    pub fn command(&self) -> &[u8] {
        self.buf
            .get(SIZE_FIELD..SIZE_FIELD + self.command_len)
            .unwrap_or_default()
    }

    /// Everything behind the command: of a SEND, the entry to store.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        self.buf
            .get(SIZE_FIELD + self.command_len..)
            .unwrap_or_default()
    }

    /// [`rest`](Self::rest), sharing and keeping alive the memory.
    #[must_use]
    pub fn rest_bytes(&self) -> Bytes {
        self.buf.slice(SIZE_FIELD + self.command_len..)
    }

    /// Bytes of the frame behind its `total_size` field: the value of that field.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Capacity of the root that this frame keeps alive, in bytes.
    #[must_use]
    pub fn root_capacity(&self) -> usize {
        self.root_capacity
    }

    /// Whether waiting frames should be [compacted](Self::compact): they keep more than twice their own size alive.
    #[must_use]
    pub fn pins_much(&self) -> bool {
        self.root_capacity > self.buf.len().saturating_mul(2)
    }

    /// The same frame in a root of exactly its own size, so that it no longer keeps alive what else was received with it.
    #[must_use]
    pub fn compact(&self, accounting: Option<Arc<dyn Accounting>>) -> Self {
        let mut root = Root::new(self.buf.len(), accounting);
        if let Some(space) = root.writable() {
            copy(&self.buf, space);
        }
        Self {
            buf: root.slice(self.buf.len()),
            command_len: self.command_len,
            root_capacity: root.capacity(),
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("len", &self.buf.len())
            .field("command_len", &self.command_len)
            .field("root_capacity", &self.root_capacity)
            .finish()
    }
}

/// A frame of known size of which some bytes are missing.
///
/// A size is only announced, so no memory is given for it: the root holds what has arrived and grows with it, to at most twice as much.
struct Partial {
    /// At most `total` bytes.
    root: Root,
    /// The frame's `total_size`.
    total: usize,
    filled: usize,
    /// The command size was readable and right.
    command_checked: bool,
}

impl Partial {
    fn new(total: usize, arrived: usize, accounting: Option<Arc<dyn Accounting>>) -> Self {
        Self {
            root: Root::new(partial_capacity(total, arrived), accounting),
            total,
            filled: 0,
            command_checked: false,
        }
    }

    fn missing(&self) -> usize {
        self.total.saturating_sub(self.filled)
    }

    /// The capacity that the next read needs.
    fn next_capacity(&self) -> usize {
        match self.root.capacity() {
            capacity if capacity > self.filled => capacity,
            _ => partial_capacity(self.total, self.filled),
        }
    }

    /// Moves to a root of `capacity` bytes.
    fn grow(&mut self, capacity: usize, accounting: Option<Arc<dyn Accounting>>) {
        let mut root = Root::new(capacity, accounting);
        if let (Some(to), Some(from)) = (root.writable(), self.root.writable()) {
            copy(from.get(..self.filled).unwrap_or_default(), to);
        }
        self.root = root;
    }

    fn space(&mut self) -> &mut [u8] {
        let filled = self.filled;
        self.root
            .writable()
            .and_then(|space| space.get_mut(filled..))
            .unwrap_or_default()
    }

    fn fill(&mut self, from: &[u8]) -> usize {
        let n = copy(from, self.space());
        self.filled += n;
        n
    }

    /// Takes what of `from` belongs to the frame; memory for it is there already, so it is only moved.
    fn take(&mut self, from: &[u8], accounting: Option<&Arc<dyn Accounting>>) -> usize {
        let wanted = self.missing().min(from.len());
        if wanted > self.root.capacity().saturating_sub(self.filled) {
            let capacity = partial_capacity(self.total, self.filled + wanted);
            self.grow(capacity, accounting.cloned());
        }
        self.fill(from.get(..wanted).unwrap_or_default())
    }
}

/// The memory for a frame of `total` bytes of which `arrived` are there: twice these, so that it is copied a bounded number of times.
fn partial_capacity(total: usize, arrived: usize) -> usize {
    total.min(arrived.saturating_mul(2).max(PARTIAL_MIN))
}

/// Cuts the bytes of one connection into frames, without copying those that arrive whole.
///
/// The cycle of a read: [`push`](Self::push) what came, [`next_frame`](Self::next_frame) until it answers `None`, then
/// [`settle`](Self::settle) so that an unfinished frame does not keep the shared receive buffer alive. When
/// [`space`](Self::space) answers, the read should go there and be reported by [`advance`](Self::advance) instead of `push`.
///
/// After an error every further call of `next_frame` answers the same error.
pub struct FrameDecoder {
    /// Largest frame accepted, `total_size` field included.
    max_frame: usize,
    /// Pushed and not yet cut.
    input: Bytes,
    input_root: usize,
    /// Start of a size field that did not arrive whole.
    head: [u8; SIZE_FIELD],
    head_len: usize,
    /// `total_size` of the frame whose body is next in `input`.
    total_size: Option<usize>,
    partial: Option<Partial>,
    failed: Option<FrameError>,
    accounting: Option<Arc<dyn Accounting>>,
}

impl FrameDecoder {
    /// A decoder that accepts frames of `max_frame` bytes at most, the 4 bytes of `total_size` included: the largest message plus
    /// [`FRAME_PADDING`].
    #[must_use]
    pub fn new(max_frame: usize) -> Self {
        Self {
            max_frame,
            input: Bytes::new(),
            input_root: 0,
            head: [0; SIZE_FIELD],
            head_len: 0,
            total_size: None,
            partial: None,
            failed: None,
            accounting: None,
        }
    }

    /// Where to read next if a large unfinished frame is being assembled: some or all of its missing bytes, and nothing behind them.
    /// `None` if little or nothing ([`IN_PLACE_MIN`]) is missing: read into the core's buffer then, and push.
    pub fn space(&mut self) -> Option<&mut [u8]> {
        self.missing_space(IN_PLACE_MIN)
    }

    /// Like [`space`](Self::space) for any number of missing bytes. Where the frame's root is full, it grows to
    /// [`next_capacity`](Self::next_capacity) first.
    pub fn missing_space(&mut self, min: usize) -> Option<&mut [u8]> {
        let partial = self.partial.as_mut()?;
        if partial.missing() < min.max(1) {
            return None;
        }
        let capacity = partial.next_capacity();
        if capacity > partial.root.capacity() {
            partial.grow(capacity, self.accounting.clone());
        }
        Some(partial.space())
    }

    /// The capacity that the root of the unfinished frame has once there is room in it for the next read: more than
    /// [`retained`](Self::retained) if it has to grow. Who limits memory asks before it reads.
    #[must_use]
    pub fn next_capacity(&self) -> Option<usize> {
        self.partial.as_ref().map(Partial::next_capacity)
    }

    /// Bytes still missing of the frame being assembled, if its size is known.
    #[must_use]
    pub fn missing(&self) -> Option<usize> {
        self.partial.as_ref().map(Partial::missing)
    }

    /// `n` bytes were read into [`space`](Self::space).
    pub fn advance(&mut self, n: usize) {
        if let Some(partial) = &mut self.partial {
            partial.filled = partial
                .filled
                .saturating_add(n)
                .min(partial.root.capacity())
                .min(partial.total);
        }
    }

    /// Takes bytes that were read into the core's buffer.
    ///
    /// Meant to be called when `next_frame` has answered `None`. Whatever is then still unread is joined with the new bytes in one
    /// more counted root.
    pub fn push(&mut self, received: impl Into<Received>) {
        let Received {
            bytes,
            root_capacity,
        } = received.into();
        if self.failed.is_some() {
            return; // Nothing will be read any more, so nothing is kept.
        }
        if self.input.is_empty() {
            self.input = bytes;
            self.input_root = root_capacity;
            return;
        }
        let mut root = Root::new(self.input.len() + bytes.len(), self.accounting.clone());
        if let Some((old, new)) = root
            .writable()
            .and_then(|space| space.split_at_mut_checked(self.input.len()))
        {
            copy(&self.input, old);
            copy(&bytes, new);
        }
        self.input_root = root.capacity();
        self.input = root.slice(root.capacity());
    }

    /// The next whole frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// As soon as a size field is readable that breaks the rules, before the frame has arrived. Nothing more can be read then.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.cut();
        match &result {
            Ok(Some(_)) => {}
            Ok(None) => self.let_go_of_empty_input(),
            Err(error) => self.fail(*error),
        }
        result
    }

    /// Moves an unfinished frame out of the shared receive buffer: less than a size field is kept in the decoder itself, more goes
    /// to a root of its own of at most twice the bytes that have arrived. To be called when [`next_frame`](Self::next_frame) has answered `None`.
    pub fn settle(&mut self, accounting: Option<&Arc<dyn Accounting>>) {
        let same = match (&self.accounting, accounting) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            self.accounting = accounting.cloned();
        }
        if self.failed.is_some() || self.partial.is_some() {
            return;
        }
        if let Some(total_size) = self.total_size {
            if self.input.len() >= total_size {
                return; // A whole frame waits to be taken.
            }
            let mut partial = Partial::new(total_size, self.input.len(), self.accounting.clone());
            partial.fill(&self.input);
            self.partial = Some(partial);
            self.total_size = None;
            self.input = Bytes::new();
        } else if self.head_len + self.input.len() < SIZE_FIELD {
            self.fill_head();
        }
        self.let_go_of_empty_input();
    }

    /// Moves input that is not cut yet out of the shared receive buffer, into a root of exactly its size. For a connection whose
    /// frames must wait, so that it does not keep alive much more than it has to.
    pub fn compact(&mut self, accounting: Option<&Arc<dyn Accounting>>) {
        if self.input.is_empty() || self.input_root == self.input.len() {
            return;
        }
        let mut root = Root::new(self.input.len(), accounting.cloned());
        if let Some(space) = root.writable() {
            copy(&self.input, space);
        }
        self.input = root.slice(root.capacity());
        self.input_root = root.capacity();
    }

    /// The `total_size` of the unfinished frame, once it was readable.
    #[must_use]
    pub fn announced(&self) -> Option<usize> {
        self.partial
            .as_ref()
            .map(|partial| partial.total)
            .or(self.total_size)
    }

    /// Bytes there are of the unfinished frame, once its size was readable.
    #[must_use]
    pub fn arrived(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.filled)
    }

    /// Bytes of memory this decoder itself keeps alive: the root of an unfinished frame, and the root of input not yet cut.
    #[must_use]
    pub fn retained(&self) -> usize {
        let input = if self.input.is_empty() {
            0
        } else {
            self.input_root
        };
        self.partial
            .as_ref()
            .map_or(0, |partial| partial.root.capacity())
            + input
    }

    /// Whether the last byte taken ended a frame, so that the peer may close the connection without losing anything.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.partial.is_none()
            && self.total_size.is_none()
            && self.head_len == 0
            && self.input.is_empty()
    }

    fn cut(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(partial) = &mut self.partial {
            let n = partial.take(&self.input, self.accounting.as_ref());
            self.input.advance(n);
            let total_size = partial.total;
            if !partial.command_checked && partial.filled >= SIZE_FIELD {
                let start = partial
                    .root
                    .writable()
                    .and_then(|space| space.get(..SIZE_FIELD));
                check_command_size(start.and_then(read_size).unwrap_or_default(), total_size)?;
                partial.command_checked = true;
            }
            if partial.missing() > 0 {
                return Ok(None);
            }
            let frame = Received {
                bytes: partial.root.slice(total_size),
                root_capacity: partial.root.capacity(),
            };
            self.partial = None;
            return Frame::from_body(frame).map(Some);
        }
        let Some(total_size) = self.read_total_size()? else {
            return Ok(None);
        };
        if let Some(command_size) = self.input.get(..SIZE_FIELD).and_then(read_size) {
            check_command_size(command_size, total_size)?;
        }
        if self.input.len() < total_size {
            return Ok(None);
        }
        self.total_size = None;
        let bytes = self.input.split_to(total_size);
        Frame::from_body(Received {
            bytes,
            root_capacity: self.input_root,
        })
        .map(Some)
    }

    fn read_total_size(&mut self) -> Result<Option<usize>, FrameError> {
        if let Some(total_size) = self.total_size {
            return Ok(Some(total_size));
        }
        let size = if self.head_len == 0 {
            let Some(size) = self.input.get(..SIZE_FIELD).and_then(read_size) else {
                return Ok(None);
            };
            self.input.advance(SIZE_FIELD);
            size
        } else {
            self.fill_head();
            if self.head_len < SIZE_FIELD {
                return Ok(None);
            }
            self.head_len = 0;
            u32::from_be_bytes(self.head) as usize
        };
        if size.saturating_add(SIZE_FIELD) > self.max_frame {
            return Err(FrameError::TooLarge {
                frame: size.saturating_add(SIZE_FIELD),
                limit: self.max_frame,
            });
        }
        if size < MIN_TOTAL_SIZE {
            return Err(FrameError::TooSmall { total_size: size });
        }
        self.total_size = Some(size);
        Ok(Some(size))
    }

    fn fill_head(&mut self) {
        let space = self.head.get_mut(self.head_len..).unwrap_or_default();
        let n = copy(&self.input, space);
        self.head_len += n;
        self.input.advance(n);
    }

    /// Even an empty slice keeps its root alive.
    fn let_go_of_empty_input(&mut self) {
        if self.input.is_empty() {
            self.input = Bytes::new();
            self.input_root = 0;
        }
    }

    /// Remembers the error and lets go of all memory: nothing of it will be read.
    fn fail(&mut self, error: FrameError) {
        self.failed = Some(error);
        self.partial = None;
        self.input = Bytes::new();
        self.input_root = 0;
    }
}

impl fmt::Debug for FrameDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameDecoder")
            .field("input", &self.input.len())
            .field("total_size", &self.total_size)
            .field("missing", &self.missing())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

fn check_command_size(command_size: usize, total_size: usize) -> Result<(), FrameError> {
    if command_size > total_size.saturating_sub(SIZE_FIELD) {
        return Err(FrameError::CommandBeyondFrame {
            command_size,
            total_size,
        });
    }
    Ok(())
}

fn read_size(field: &[u8]) -> Option<usize> {
    field
        .try_into()
        .ok()
        .map(|field| u32::from_be_bytes(field) as usize)
}

/// Copies as much as fits and answers how much that was.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let n = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..n), to.get_mut(..n)) {
        to.copy_from_slice(from);
    }
    n
}

#[cfg(test)]
mod tests;
