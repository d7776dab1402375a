#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use super::{Cumulation, SMALL_READS_BEFORE_SHRINK, Sizes};
use crate::testing::counter;

const SIZES: Sizes = Sizes {
    min: 4,
    initial: 16,
    max: 64,
};

#[test]
fn reuses_its_root_unless_a_slice_is_held() {
    let (counter, accounting) = counter();
    let mut buffer = Cumulation::new(SIZES, accounting);
    assert_eq!(
        counter.alive(),
        0,
        "nothing is allocated before it is needed"
    );
    for _ in 0..3 {
        buffer.space()[..8].copy_from_slice(b"12345678");
        assert_eq!(&buffer.read(8).bytes[..], b"12345678");
    }
    assert_eq!(counter.alive(), 16);

    buffer.space();
    let held = buffer.read(8);
    assert_eq!(held.root_capacity, 16);
    buffer.space().fill(b'x');
    assert_eq!(
        &held.bytes[..],
        b"12345678",
        "what is held is never overwritten"
    );
    assert_eq!(counter.alive(), 32);

    buffer.release_idle();
    assert_eq!(counter.alive(), 16);
    drop(held);
    assert_eq!(counter.alive(), 0);
}

#[test]
fn grows_with_full_reads_and_shrinks_with_small_ones_within_bounds() {
    let mut buffer = Cumulation::new(SIZES, None);
    for expected in [16, 32, 64, 64] {
        assert_eq!(buffer.space().len(), expected);
        buffer.read(expected);
    }
    for expected in [64, 32, 16, 8, 4, 4] {
        for _ in 0..SMALL_READS_BEFORE_SHRINK {
            assert_eq!(buffer.space().len(), expected);
            buffer.read(1);
        }
    }
    // A middling read in between starts the count anew.
    let mut buffer = Cumulation::new(SIZES, None);
    for n in [1, 1, 1, 1, 1, 1, 1, 8, 1, 1, 1, 1, 1, 1, 1] {
        assert_eq!(buffer.space().len(), 16);
        buffer.read(n);
    }
}

#[test]
fn new_accounting_counts_new_roots_only() {
    let (old, accounting) = counter();
    let (new, other) = counter();
    let mut buffer = Cumulation::new(SIZES, accounting);
    buffer.space();
    let held = buffer.read(3);
    buffer.set_accounting(other);
    buffer.space();
    assert_eq!((old.alive(), new.alive()), (16, 16));
    drop(held);
    drop(buffer);
    assert_eq!((old.alive(), new.alive()), (0, 0));
}

#[test]
fn wrong_sizes_are_put_in_order() {
    let mut buffer = Cumulation::new(
        Sizes {
            min: 0,
            initial: 0,
            max: 0,
        },
        None,
    );
    assert_eq!(buffer.space().len(), 1);
    assert_eq!(buffer.read(0).bytes.len(), 0);
}
