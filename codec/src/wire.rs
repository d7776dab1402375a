//! Reading protobuf's wire format in place.

use thiserror::Error;

/// Why a command or metadata cannot be read. The connection that sent such a command must be closed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// A field ends behind the end of its message.
    #[error("a field is cut off at the end of its message")]
    Truncated,
    /// A varint of more than ten bytes or 64 bits.
    #[error("a varint is longer than 64 bits")]
    Varint,
    /// A field key with number 0, an unknown wire type, or more than 32 bits.
    #[error("a field key is not valid")]
    Key,
    /// The wire type of a known field is not that of its schema.
    #[error("field {field} of {message} has the wrong wire type")]
    WireType {
        /// Message of the schema.
        message: &'static str,
        /// Field of the schema.
        field: &'static str,
    },
    /// Text that is not UTF-8.
    #[error("field {field} of {message} is not valid UTF-8")]
    Utf8 {
        /// Message of the schema.
        message: &'static str,
        /// Field of the schema.
        field: &'static str,
    },
    /// A required field is absent.
    #[error("required field {field} of {message} is missing")]
    Missing {
        /// Message of the schema.
        message: &'static str,
        /// Field of the schema.
        field: &'static str,
    },
    /// A required enum has a value that its schema does not know.
    #[error("required field {field} of {message} has the unknown value {value}")]
    UnknownEnum {
        /// Message of the schema.
        message: &'static str,
        /// Field of the schema.
        field: &'static str,
        /// The value received.
        value: i32,
    },
    /// More than 100 messages nested in each other.
    #[error("messages are nested more than 100 deep")]
    Nesting,
    /// A group that does not end, or an end without a start.
    #[error("a group does not end where it should")]
    Group,
    /// `type` says one command and the field that must hold it is absent.
    #[error("the command of type {0} lacks its body")]
    MissingBody(i32),
    /// A command of another type than the reader is for.
    #[error("the command has type {0}, not the type expected")]
    UnexpectedType(i32),
}

/// Nesting allowed below the outermost message, as in other implementations of protobuf.
pub(crate) const NESTING: u32 = 100;

pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const LEN: u32 = 2;
const START_GROUP: u32 = 3;
const END_GROUP: u32 = 4;
const FIXED32: u32 = 5;

/// The key of a field as a number: what a match on the next field compares with.
pub(crate) const fn key(number: u32, wire_type: u32) -> u32 {
    number << 3 | wire_type
}

/// What is left of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next field's key, or `None` at the end of the message.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<Option<u32>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = u32::try_from(self.varint()?).map_err(|_| Malformed::Key)?;
        if key >> 3 == 0 || key & 7 > FIXED32 {
            return Err(Malformed::Key);
        }
        Ok(Some(key))
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            [byte @ 0..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        let mut rest = self.rest;
        for shift in (0..70).step_by(7) {
            let Some((&byte, after)) = rest.split_first() else {
                return Err(Malformed::Truncated);
            };
            rest = after;
            // The tenth byte has room for one bit.
            if shift == 63 && byte > 1 {
                return Err(Malformed::Varint);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(Malformed::Varint)
    }

    /// The value of a length-delimited field.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
        self.take(len)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn fixed64(&mut self) -> Result<(), Malformed> {
        self.take(8).map(|_| ())
    }

    /// Passes over the value of a field the schema does not know.
    pub(crate) fn skip(&mut self, key: u32, nesting: u32) -> Result<(), Malformed> {
        let inner = nesting.checked_sub(1).ok_or(Malformed::Nesting)?;
        match key & 7 {
            VARINT => self.varint().map(|_| ()),
            FIXED64 => self.fixed64(),
            FIXED32 => self.take(4).map(|_| ()),
            LEN => self.bytes().map(|_| ()),
            START_GROUP => loop {
                let next = self.key()?.ok_or(Malformed::Group)?;
                if next & 7 != END_GROUP {
                    self.skip(next, inner)?;
                } else if next >> 3 == key >> 3 {
                    return Ok(());
                } else {
                    return Err(Malformed::Group);
                }
            },
            _ => Err(Malformed::Group),
        }
    }
}
