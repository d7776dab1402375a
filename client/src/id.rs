//! The identity of a message, and where reading begins.

use crate::{Error, Result};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use vela_proto::MessageIdData;
use vela_proto::prost::Message as _;

/// Where a message lies: ledger and entry, the partition of its topic, and its place in a batch.
///
/// Ordered as the messages of one partition are; [`MessageId::EARLIEST`] before all, [`MessageId::LATEST`] behind all. Two are
/// equal when they name the same message: how large its batch is and where its chunks begin does not matter.
#[derive(Debug, Clone, Copy)]
pub struct MessageId {
    /// Ledger.
    pub ledger: u64,
    /// Entry in the ledger; the last one if the message came in chunks.
    pub entry: u64,
    /// Place in its batch; -1 if the entry is not a batch.
    pub batch_index: i32,
    /// Partition of the topic; -1 if it has none.
    pub partition: i32,
    /// Messages in the batch; 0 if the entry is not one.
    pub batch_size: i32,
    /// Ledger and entry of the first chunk, if the message came in chunks.
    pub first_chunk: Option<(u64, u64)>,
}

impl MessageId {
    /// Before every message of a topic.
    pub const EARLIEST: Self = Self::entry(u64::MAX, u64::MAX);

    /// Behind every message of a topic.
    #[allow(
        clippy::cast_sign_loss,
        reason = "the largest signed number is positive"
    )]
    pub const LATEST: Self = Self::entry(i64::MAX as u64, i64::MAX as u64);

    /// A whole entry of a topic without partitions.
    #[must_use]
    pub const fn entry(ledger: u64, entry: u64) -> Self {
        Self {
            ledger,
            entry,
            batch_index: -1,
            partition: -1,
            batch_size: 0,
            first_chunk: None,
        }
    }

    /// The same place in a partition.
    #[must_use]
    pub const fn in_partition(mut self, partition: i32) -> Self {
        self.partition = partition;
        self
    }

    /// The id of the entry it is in.
    #[must_use]
    pub const fn whole_entry(mut self) -> Self {
        self.batch_index = -1;
        self.batch_size = 0;
        self
    }

    /// The first chunk of a message that came in chunks, else itself.
    #[must_use]
    pub const fn first_chunk_id(&self) -> Self {
        match self.first_chunk {
            Some((ledger, entry)) => Self::entry(ledger, entry).in_partition(self.partition),
            None => *self,
        }
    }

    /// As commands carry it.
    #[must_use]
    pub fn to_data(&self) -> MessageIdData {
        let set = |value: i32| (value >= 0).then_some(value);
        MessageIdData {
            ledger_id: self.ledger,
            entry_id: self.entry,
            partition: set(self.partition),
            batch_index: set(self.batch_index),
            ack_set: Vec::new(),
            batch_size: (self.batch_size > 0).then_some(self.batch_size),
            first_chunk_message_id: self.first_chunk.map(|(ledger, entry)| {
                Box::new(MessageIdData {
                    ledger_id: ledger,
                    entry_id: entry,
                    partition: set(self.partition),
                    ..MessageIdData::default()
                })
            }),
        }
    }

    /// From what a command carries.
    #[must_use]
    pub fn from_data(data: &MessageIdData) -> Self {
        Self {
            ledger: data.ledger_id,
            entry: data.entry_id,
            batch_index: data.batch_index.unwrap_or(-1),
            partition: data.partition.unwrap_or(-1),
            batch_size: data.batch_size.unwrap_or(0),
            first_chunk: data
                .first_chunk_message_id
                .as_deref()
                .map(|first| (first.ledger_id, first.entry_id)),
        }
    }

    /// The bytes by which all Pulsar clients keep an id: an encoded `MessageIdData`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_data().encode_to_vec()
    }

    /// An id from [`MessageId::to_bytes`] of this or another client.
    ///
    /// # Errors
    /// [`Error::Config`] if these bytes are no message id.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |reason: String| Error::Config {
            setting: "message id",
            value: format!("{} bytes", bytes.len()),
            reason,
        };
        if bytes.is_empty() {
            return Err(invalid(
                "an id has at least a ledger and an entry".to_owned(),
            ));
        }
        let data = MessageIdData::decode(bytes).map_err(|error| invalid(error.to_string()))?;
        Ok(Self::from_data(&data))
    }

    #[allow(
        clippy::cast_possible_wrap,
        reason = "the protocol's -1 is the largest unsigned number"
    )]
    fn place(&self) -> (i64, i64, i32, i32) {
        (
            self.ledger as i64,
            self.entry as i64,
            self.batch_index,
            self.partition,
        )
    }
}

impl PartialEq for MessageId {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for MessageId {}

impl Hash for MessageId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

impl Ord for MessageId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for MessageId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for MessageId {
    /// `ledger:entry:partition:batch index`, as Pulsar's tools write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ledger, entry, batch_index, partition) = self.place();
        write!(f, "{ledger}:{entry}:{partition}:{batch_index}")
    }
}

impl FromStr for MessageId {
    type Err = Error;

    /// `ledger:entry`, `ledger:entry:partition` or `ledger:entry:partition:batch index`; also `earliest` and `latest`.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "earliest" => return Ok(Self::EARLIEST),
            "latest" => return Ok(Self::LATEST),
            _ => {}
        }
        let invalid = || Error::Config {
            setting: "message id",
            value: text.to_owned(),
            reason: "expected LEDGER:ENTRY[:PARTITION[:BATCH_INDEX]], earliest or latest"
                .to_owned(),
        };
        let mut parts = text.split(':');
        let mut next = || parts.next().map(str::parse::<i64>);
        let number = |part: Option<_>| match part {
            Some(Ok(number)) => Ok(number),
            _ => Err(invalid()),
        };
        let small = |part: Option<_>| match part {
            None => Ok(-1),
            Some(Ok(number)) => i32::try_from(number).map_err(|_| invalid()),
            Some(Err(_)) => Err(invalid()),
        };
        let (ledger, entry) = (number(next())?, number(next())?);
        let (partition, batch_index) = (small(next())?, small(next())?);
        if next().is_some() || ledger < -1 || entry < -1 || partition < -1 || batch_index < -1 {
            return Err(invalid());
        }
        #[allow(
            clippy::cast_sign_loss,
            reason = "-1 is the protocol's largest unsigned number"
        )]
        let mut id = Self::entry(ledger as u64, entry as u64).in_partition(partition);
        id.batch_index = batch_index;
        Ok(id)
    }
}

/// Where a subscription begins that is created by a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum InitialPosition {
    /// Behind the last message.
    #[default]
    Latest,
    /// At the first message there is.
    Earliest,
}

/// Where a reader begins, or where `seek` goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPosition {
    /// At the first message there is.
    Earliest,
    /// Behind the last message.
    Latest,
    /// At a message.
    Message {
        /// Its id.
        id: MessageId,
        /// Whether it is read itself; otherwise reading begins behind it.
        inclusive: bool,
    },
    /// At the first message published at this time or later, in milliseconds since 1970.
    Time(u64),
}

impl StartPosition {
    /// Behind this message.
    #[must_use]
    pub const fn after(id: MessageId) -> Self {
        Self::Message {
            id,
            inclusive: false,
        }
    }

    /// At this message.
    #[must_use]
    pub const fn at(id: MessageId) -> Self {
        Self::Message {
            id,
            inclusive: true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ids_are_in_the_order_of_their_messages() {
        let mut batch = MessageId::entry(3, 5);
        batch.batch_index = 2;
        let ascending = [
            MessageId::EARLIEST,
            MessageId::entry(2, 9),
            MessageId::entry(3, 0),
            MessageId::entry(3, 5),
            batch,
            MessageId::entry(3, 6),
            MessageId::LATEST,
        ];
        assert!(
            ascending
                .windows(2)
                .all(|pair| matches!(pair, [a, b] if a < b))
        );
    }

    #[test]
    fn bytes_are_those_of_other_clients() {
        let mut id = MessageId::entry(6, 9).in_partition(3);
        // As the official Python client serializes MessageId(partition 3, ledger 6, entry 9, batch 1).
        id.batch_index = 1;
        assert_eq!(id.to_bytes(), [8, 6, 16, 9, 24, 3, 32, 1]);
        id.batch_size = 10;
        id.first_chunk = Some((6, 7));
        let back = MessageId::from_bytes(&id.to_bytes()).unwrap();
        assert_eq!(
            (back, back.batch_size, back.first_chunk),
            (id, 10, Some((6, 7)))
        );
        assert_eq!(
            back.first_chunk_id(),
            MessageId::entry(6, 7).in_partition(3)
        );
        let minus_one = MessageId::from_bytes(&MessageId::EARLIEST.to_bytes()).unwrap();
        assert_eq!(minus_one, MessageId::EARLIEST);
        MessageId::from_bytes(&[]).unwrap_err();
        MessageId::from_bytes(&[8, 6])
            .map(|id| id.entry)
            .unwrap_or_default();
        MessageId::from_bytes(b"\xff\xff").unwrap_err();
    }

    #[test]
    fn text_goes_both_ways() {
        for text in ["3:4:-1:-1", "3:4:2:-1", "3:4:2:7", "-1:-1:-1:-1"] {
            assert_eq!(text.parse::<MessageId>().unwrap().to_string(), text);
        }
        assert_eq!("3:4".parse::<MessageId>().unwrap(), MessageId::entry(3, 4));
        assert_eq!("latest".parse::<MessageId>().unwrap(), MessageId::LATEST);
        for text in ["", "3", "3:", "a:b", "3:4:5:6:7", "3:4:99999999999", "-2:0"] {
            text.parse::<MessageId>().unwrap_err();
        }
    }
}
