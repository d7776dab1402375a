//! Entries, which are most of a log: their heads are made and looked at without going through [`Record`](super::Record).

use super::super::Position;
use super::super::sequences::SequenceId;
use super::TopicId;
use super::encoding::{ENTRY, SEQUENCED};

/// Length of an entry's head in bytes.
pub const ENTRY_HEAD: usize = 21;

/// Length in bytes of the head of an entry with a sequence id: an entry's head, producer and highest id.
pub const SEQUENCED_HEAD: usize = ENTRY_HEAD + 12;

/// The head of an entry record; the entry's bytes follow it.
#[inline]
pub fn entry_head(topic: TopicId, ledger: i64, entry: i64) -> [u8; ENTRY_HEAD] {
    let [t0, t1, t2, t3] = topic.to_le_bytes();
    let [l0, l1, l2, l3, l4, l5, l6, l7] = ledger.to_le_bytes();
    let [e0, e1, e2, e3, e4, e5, e6, e7] = entry.to_le_bytes();
    [
        ENTRY, t0, t1, t2, t3, l0, l1, l2, l3, l4, l5, l6, l7, e0, e1, e2, e3, e4, e5, e6, e7,
    ]
}

/// The head of the record of an entry with a sequence id; the entry's bytes follow it.
#[inline]
pub fn sequenced_head(
    topic: TopicId,
    at: Position,
    producer: SequenceId,
    highest: i64,
) -> [u8; SEQUENCED_HEAD] {
    let mut head = [0; SEQUENCED_HEAD];
    let fields = entry_head(topic, at.ledger, at.entry)
        .into_iter()
        .chain(producer.to_le_bytes())
        .chain(highest.to_le_bytes());
    for (byte, field) in head.iter_mut().zip(fields) {
        *byte = field;
    }
    if let Some(kind) = head.first_mut() {
        *kind = SEQUENCED;
    }
    head
}

/// Where in the body of a record the bytes of a certain entry begin, given what [`entry_head`] makes of it; `None` if the record is not that entry.
#[inline]
pub fn entry_data(body: &[u8], head: &[u8; ENTRY_HEAD]) -> Option<usize> {
    let (kind, rest) = body.split_first()?;
    let (_, wanted) = head.split_first()?;
    match *kind {
        _ if !rest.starts_with(wanted) => None,
        ENTRY => Some(ENTRY_HEAD),
        SEQUENCED if body.len() >= SEQUENCED_HEAD => Some(SEQUENCED_HEAD),
        _ => None,
    }
}

/// Whose entry a record is, read from its head without decoding the rest: `None` for every other kind.
#[inline]
pub fn entry_of(bytes: &[u8]) -> Option<(TopicId, Position)> {
    let (head, _) = bytes.split_first_chunk::<ENTRY_HEAD>()?;
    let (kind, rest) = head.split_first()?;
    if !matches!(*kind, ENTRY | SEQUENCED) {
        return None;
    }
    let (topic, rest) = rest.split_first_chunk::<4>()?;
    let (ledger, rest) = rest.split_first_chunk::<8>()?;
    let (entry, _) = rest.split_first_chunk::<8>()?;
    Some((
        u32::from_le_bytes(*topic),
        Position::new(i64::from_le_bytes(*ledger), i64::from_le_bytes(*entry)),
    ))
}
