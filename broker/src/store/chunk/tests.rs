#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]
use super::*;
use proptest::prelude::*;

fn build(pool: &BufferPool, bodies: &[Vec<u8>]) -> (Chunk, Vec<u32>) {
    let mut builder = ChunkBuilder::new(pool, 1 << 20);
    let offsets = bodies.iter().map(|b| {
        let (a, c) = b.split_at(b.len() / 2);
        builder.append(&[a, c]).unwrap()
    });
    let offsets = offsets.collect();
    (builder.seal(3, 7, 42, 40), offsets)
}

fn bodies() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_went_in_comes_out(bodies in bodies()) {
        let pool = BufferPool::new(3, 1 << 20);
        let (chunk, offsets) = build(&pool, &bodies);
        prop_assert_eq!(chunk.bytes().len() % PAGE, 0);
        prop_assert_eq!(chunk.bytes().as_ptr().align_offset(PAGE), 0);
        let parsed = Chunk::parse(chunk.bytes().clone()).unwrap();
        prop_assert!(parsed.is_whole());
        prop_assert_eq!(parsed.chunk.header(), chunk.header());
        let seen: Vec<_> = parsed.chunk.records().map(|(o, r)| (o, chunk.bytes()[r].to_vec())).collect();
        let want: Vec<_> = offsets.iter().copied().zip(bodies.iter().cloned()).collect();
        prop_assert_eq!(seen, want);
        for (offset, body) in offsets.iter().zip(&bodies) {
            prop_assert_eq!(&chunk.record(*offset).unwrap()[..], &body[..]);
        }
    }

    #[test]
    fn a_cut_anywhere_keeps_exactly_the_records_before_it(bodies in bodies(), at in any::<prop::sample::Index>()) {
        let (chunk, offsets) = build(&BufferPool::new(3, 0), &bodies);
        let cut = at.index(chunk.bytes().len());
        match Chunk::parse(chunk.bytes().slice(..cut)) {
            Err(e) => { prop_assert!(cut < HEADER_LEN); prop_assert_eq!(e, ChunkError::Short); }
            Ok(parsed) => {
                let want = offsets.iter().zip(&bodies).filter(|(o, b)| **o as usize + FRAME_LEN + b.len() <= cut).count();
                prop_assert!(!parsed.is_whole());
                prop_assert_eq!(parsed.chunk.record_count() as usize, want);
                prop_assert_eq!(parsed.chunk.records().count(), want);
            }
        }
    }

    #[test]
    fn any_changed_byte_is_noticed(bodies in bodies(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let (chunk, offsets) = build(&BufferPool::new(3, 0), &bodies);
        let mut raw = chunk.bytes().to_vec();
        let at = at.index(raw.len());
        raw[at] ^= flip;
        match Chunk::parse(raw.into()) {
            Err(_) => prop_assert!(at < HEADER_LEN),
            Ok(parsed) => {
                prop_assert!(!parsed.is_whole());
                let want = offsets.iter().zip(&bodies).filter(|(o, b)| **o as usize + FRAME_LEN + b.len() <= at).count();
                prop_assert_eq!(parsed.chunk.record_count() as usize, want);
            }
        }
    }

    #[test]
    fn garbage_never_panics(raw in prop::collection::vec(any::<u8>(), 0..9000), good_header in any::<bool>(), len in any::<u32>()) {
        let mut raw = raw;
        if good_header {
            let header = ChunkHeader { lane: 0, epoch: 1, seq: 1, durable: 0, payload_len: len >> 8, records: len, salt: 9 };
            put_at(&mut raw, 0, &header.encode());
        }
        if let Ok(parsed) = Chunk::parse(raw.into()) {
            prop_assert!(parsed.chunk.records().count() as u32 == parsed.chunk.record_count());
            let _ = parsed.chunk.record(len);
        }
    }
}

#[test]
fn old_records_behind_a_new_header_do_not_pass() {
    let pool = BufferPool::new(1, 0);
    let rows: Vec<Vec<u8>> = (0..200).map(|i| vec![i as u8; 100]).collect();
    let other: Vec<Vec<u8>> = (0..200).map(|i| vec![!i as u8; 100]).collect();
    let (old, _) = build(&pool, &other);
    let (new, _) = build(&pool, &rows);
    let mut torn = new.bytes()[..PAGE].to_vec();
    torn.extend_from_slice(&old.bytes()[PAGE..]);
    let parsed = Chunk::parse(torn.into()).unwrap();
    assert_eq!(parsed.damage.unwrap().what, ChunkError::RecordChecksum);
    assert_eq!(
        parsed.chunk.record_count(),
        ((PAGE - HEADER_LEN) / 108) as u32
    );
}

#[test]
fn zeros_behind_a_header_are_not_empty_records() {
    let (chunk, _) = build(&BufferPool::new(1, 0), &[vec![1; 5000]]);
    let mut raw = vec![0; chunk.bytes().len()];
    raw[..HEADER_LEN].copy_from_slice(&chunk.bytes()[..HEADER_LEN]);
    assert_eq!(Chunk::parse(raw.into()).unwrap().chunk.record_count(), 0);
}

#[test]
fn a_full_block_refuses_and_stays_as_it_was() {
    let mut builder = ChunkBuilder::new(&BufferPool::new(1, 0), PAGE);
    assert_eq!(
        builder.append(&[&[7; PAGE - HEADER_LEN - FRAME_LEN + 1]]),
        None
    );
    assert!(builder.is_empty());
    assert_eq!(
        builder.append(&[&[7; PAGE - HEADER_LEN - FRAME_LEN]]),
        Some(64)
    );
    assert!(!builder.fits(0));
    assert!(
        Chunk::parse(builder.seal(1, 0, 1, 0).bytes().clone())
            .unwrap()
            .is_whole()
    );
}

#[test]
fn memory_comes_back_when_the_last_slice_drops_and_the_pool_stays_bounded() {
    let pool = BufferPool::new(1, 3 * (64 << 10));
    let mut builder = ChunkBuilder::new(&pool, 1 << 20);
    let offset = builder.append(&[&[1; 50_000]]).unwrap();
    let chunk = builder.seal(1, 0, 1, 0);
    let block = (64 << 10) + PAGE;
    assert_eq!(chunk.retained(), block, "with what its alignment costs");
    let body = chunk.record(offset).unwrap();
    drop(chunk);
    assert_eq!(pool.idle_bytes(), 0);
    drop(body);
    assert_eq!(pool.idle_bytes(), block);
    let many: Vec<_> = (0..10)
        .map(|_| {
            let mut b = ChunkBuilder::new(&pool, 1 << 20);
            b.append(&[&[1; 40_000]]);
            b
        })
        .collect();
    assert_eq!(pool.idle_bytes(), 0);
    drop(many);
    assert_eq!(pool.idle_bytes(), 2 * block);
    assert_eq!((pool.shrink(1), pool.idle_bytes()), (block, block));
    assert_eq!((pool.shrink(usize::MAX), pool.idle_bytes()), (block, 0));
}

#[test]
fn memory_comes_in_sizes_that_waste_little() {
    for (len, size) in [
        (1, PAGE),
        (PAGE, PAGE),
        (PAGE + 1, 2 * PAGE),
        (64 << 10, 64 << 10),
        ((64 << 10) + 1, 72 << 10),
        (1 << 20, 1 << 20),
        ((1 << 20) + 64, 1152 << 10),
    ] {
        assert_eq!(super::pool::size_class(len), size, "of {len}");
    }
    let mut builder = ChunkBuilder::new(&BufferPool::new(1, 0), (1 << 20) + PAGE);
    builder.append(&[&[1; 1 << 20]]);
    assert_eq!(builder.seal(1, 0, 1, 0).retained(), (1152 << 10) + PAGE);
}

#[test]
fn a_small_chunk_holds_little_memory() {
    let mut builder = ChunkBuilder::new(&BufferPool::new(1, 1 << 20), 1 << 20);
    let offset = builder.append(&[b"ack"]).unwrap();
    let chunk = builder.seal(1, 0, 1, 0);
    assert_eq!(chunk.retained(), 2 * PAGE);
    let small = chunk.compact().unwrap();
    assert_eq!(small.retained(), HEADER_LEN + FRAME_LEN + 3);
    assert_eq!(small.record(offset).unwrap(), "ack");
    assert_eq!(small.records().count(), 1);
    assert!(small.compact().is_none());
}
