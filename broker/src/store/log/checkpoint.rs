//! The state of a lane in one piece, so that recovery need not replay the log from its beginning.

use super::fields::{
    Reader, put_blob, put_i64, put_len, put_position, put_text, put_u32, put_u64, put_words,
};
use super::ledgers::Run;
use super::record::{Malformed, TopicId};
use super::{AckState, CursorState, LaneState, Sequence, Sequences, TopicState};

const MAGIC: u32 = u32::from_le_bytes(*b"VCKP");
const VERSION: u32 = 2;
/// The first version, without the sequence ids of deduplication; still read.
const VERSION_1: u32 = 1;

/// Bytes that one range of acknowledged entries takes in a checkpoint: its first position and its last entry.
pub const RANGE_BYTES: u64 = 24;

/// The checkpoint of a lane whose state reflects every record of the chunks up to `seq`, and none behind it.
///
/// [`super::Lane::cut`] gives such a number. Store the checkpoint only when that chunk is durable: a checkpoint must not
/// know more than the log does.
pub fn encode<'a>(
    seq: u64,
    next_topic: TopicId,
    topics: impl IntoIterator<Item = &'a TopicState>,
) -> Vec<u8> {
    let mut out = Vec::new();
    put_u32(&mut out, MAGIC);
    put_u32(&mut out, VERSION);
    put_u64(&mut out, seq);
    put_u32(&mut out, next_topic);
    for topic in topics {
        // A mark before each topic instead of a count before all: the number of topics is not known here.
        out.push(1);
        put_topic(&mut out, topic);
    }
    out.push(0);
    let crc = crc32c::crc32c(&out);
    put_u32(&mut out, crc);
    out
}

/// Reads a checkpoint: the chunk number it covers, and the state. Never panics.
///
/// # Errors
/// [`Malformed`] if the bytes are damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<(u64, LaneState), Malformed> {
    let (content, stored) = bytes.split_last_chunk::<4>().ok_or(Malformed::Short)?;
    let mut r = Reader::new(content);
    let (magic, version) = (r.u32()?, r.u32()?);
    if magic != MAGIC || !(VERSION_1..=VERSION).contains(&version) {
        return Err(Malformed::Version(version));
    }
    let (stored, computed) = (u32::from_le_bytes(*stored), crc32c::crc32c(content));
    if stored != computed {
        return Err(Malformed::Checksum { stored, computed });
    }
    let seq = r.u64()?;
    let mut lane = LaneState {
        next_topic: r.u32()?,
        ..LaneState::default()
    };
    while r.u8()? != 0 {
        let topic = topic(&mut r, version)?;
        if topic.id >= lane.next_topic || lane.topics.insert(topic.id, topic).is_some() {
            return Err(Malformed::Inconsistent("topic numbers"));
        }
    }
    r.end()?;
    Ok((seq, lane))
}

fn put_topic(out: &mut Vec<u8>, topic: &TopicState) {
    put_u32(out, topic.id);
    put_text(out, &topic.name);
    put_u64(out, topic.created_ms);
    match topic.terminated {
        Some(at) => {
            out.push(1);
            put_position(out, at);
        }
        None => out.push(0),
    }
    put_len(out, topic.properties.len());
    for (key, value) in &topic.properties {
        put_text(out, key);
        put_blob(out, value);
    }
    put_u64(out, topic.ledgers.base());
    put_len(out, topic.ledgers.ledgers().len());
    for ledger in topic.ledgers.ledgers() {
        put_i64(out, ledger.id);
        put_u64(out, ledger.opened_ms);
        put_i64(out, ledger.entries);
        put_u64(out, ledger.bytes);
        put_len(out, ledger.runs.len());
        for run in &ledger.runs {
            put_u64(out, run.seq);
            put_u32(out, run.first);
            put_u32(out, run.offset);
        }
    }
    put_u32(out, topic.next_cursor);
    put_len(out, topic.cursors.len());
    for (id, cursor) in &topic.cursors {
        put_u32(out, *id);
        put_text(out, &cursor.name);
        put_len(out, cursor.properties.len());
        for (key, value) in &cursor.properties {
            put_text(out, key);
            put_text(out, value);
        }
        put_position(out, cursor.acks.mark_delete());
        put_len(out, cursor.acks.ranges().len());
        for (first, last) in cursor.acks.ranges() {
            put_position(out, first);
            put_i64(out, last.entry);
        }
        put_len(out, cursor.acks.partials().len());
        for (at, open) in cursor.acks.partials() {
            put_position(out, at);
            put_words(out, open);
        }
    }
    put_u32(out, topic.sequences.next());
    put_len(out, topic.sequences.len());
    for (id, sequence) in topic.sequences.iter() {
        put_u32(out, id);
        put_text(out, &sequence.name);
        put_i64(out, sequence.highest);
    }
}

fn topic(r: &mut Reader<'_>, version: u32) -> Result<TopicState, Malformed> {
    let id = r.u32()?;
    let name = r.text()?;
    let mut topic = TopicState::new(id, name, r.u64()?);
    if r.u8()? != 0 {
        topic.terminated = Some(r.position()?);
    }
    for _ in 0..r.count(8)? {
        topic
            .properties
            .insert(r.text()?.to_owned(), r.blob()?.to_owned());
    }
    let base = r.u64()?;
    for _ in 0..r.count(36)? {
        let (id, opened_ms, entries, bytes) = (r.i64()?, r.u64()?, r.i64()?, r.u64()?);
        let count = r.count(16)?;
        let mut runs = Vec::with_capacity(count);
        for _ in 0..count {
            runs.push(Run {
                seq: r.u64()?,
                first: r.u32()?,
                offset: r.u32()?,
            });
        }
        let restored = topic
            .ledgers
            .restore(base, id, opened_ms, entries, bytes, runs);
        restored.map_err(|_| Malformed::Inconsistent("ledgers"))?;
    }
    topic.next_cursor = r.u32()?;
    for _ in 0..r.count(36)? {
        let id = r.u32()?;
        let name = r.text()?.to_owned();
        let mut properties = Vec::new();
        for _ in 0..r.count(8)? {
            properties.push((r.text()?.to_owned(), r.text()?.to_owned()));
        }
        let mark_delete = r.position()?;
        let mut ranges = Vec::new();
        for _ in 0..r.count(RANGE_BYTES as usize)? {
            ranges.push((r.position()?, r.i64()?));
        }
        let mut partials = Vec::new();
        for _ in 0..r.count(20)? {
            partials.push((r.position()?, r.words()?));
        }
        let acks = AckState::restore(
            &topic.ledgers,
            mark_delete,
            ranges.into_iter(),
            partials.into_iter(),
        )
        .ok_or(Malformed::Inconsistent("acknowledged ranges"))?;
        let cursor = CursorState {
            name,
            properties,
            acks,
        };
        if id >= topic.next_cursor || topic.cursors.insert(id, cursor).is_some() {
            return Err(Malformed::Inconsistent("cursor numbers"));
        }
    }
    if version > VERSION_1 {
        let next = r.u32()?;
        let mut known = Vec::new();
        for _ in 0..r.count(16)? {
            let (id, name, highest) = (r.u32()?, r.text()?.to_owned(), r.i64()?);
            known.push((id, Sequence { name, highest }));
        }
        topic.sequences = Sequences::restore(next, known.into_iter())
            .ok_or(Malformed::Inconsistent("producer numbers"))?;
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )]
    use proptest::prelude::*;

    use super::super::testing::{lane_ops, run};
    use super::*;

    #[test]
    fn empty_and_foreign() {
        let bytes = encode(7, 3, []);
        assert_eq!(
            decode(&bytes),
            Ok((
                7,
                LaneState {
                    next_topic: 3,
                    ..LaneState::default()
                }
            ))
        );
        assert_eq!(decode(&[]), Err(Malformed::Short));
        let mut newer = bytes.clone();
        newer[4] = 3;
        assert_eq!(decode(&newer), Err(Malformed::Version(3)));
        // Topics the lane never numbered.
        let topic = TopicState::new(3, "t", 0);
        assert!(matches!(
            decode(&encode(7, 3, [&topic])),
            Err(Malformed::Inconsistent(_))
        ));
        assert!(matches!(
            decode(&encode(7, 4, [&topic, &topic])),
            Err(Malformed::Inconsistent(_))
        ));
    }

    proptest! {
        #[test]
        fn round_trip_and_damage(
            ops in lane_ops(80),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
            cut in any::<prop::sample::Index>(),
        ) {
            let live = run(&ops).state;
            let mut bytes = encode(42, live.next_topic, live.topics.values());
            prop_assert_eq!(decode(&bytes), Ok((42, live)));
            let n = bytes.len();
            prop_assert!(decode(&bytes[..cut.index(n)]).is_err());
            bytes[at.index(n)] ^= flip;
            prop_assert!(decode(&bytes).is_err());
            // Damage behind a right checksum (a faulty writer) is an error or some state, never a panic.
            let crc = crc32c::crc32c(&bytes[..n - 4]).to_le_bytes();
            bytes[n - 4..].copy_from_slice(&crc);
            let _ = decode(&bytes);
        }
    }
}
