#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::Arc;

use super::Root;
use crate::testing::{Counter, counter};

#[test]
fn counts_capacity_until_the_last_slice_is_dropped_on_any_thread() {
    let (counter, accounting) = counter();
    let mut root = Root::new(1000, accounting);
    assert_eq!(counter.alive(), 1000);
    root.writable().unwrap()[..5].copy_from_slice(b"hello");

    let hello = root.slice(5);
    let tail = hello.slice(3..);
    assert!(root.writable().is_none(), "a slice is alive");
    drop(hello);
    drop(root);
    assert_eq!(counter.alive(), 1000, "two bytes keep all of it");

    std::thread::spawn(move || assert_eq!(&tail[..], b"lo"))
        .join()
        .unwrap();
    assert_eq!(counter.alive(), 0);
}

#[test]
fn is_writable_again_when_nobody_holds_it() {
    let (counter, accounting) = counter();
    let mut root = Root::new(16, accounting);
    let slice = root.slice(99);
    assert_eq!(slice.len(), 16);
    drop(slice);
    assert!(root.writable().is_some());
    assert_eq!(
        counter
            .allocations
            .load(std::sync::atomic::Ordering::SeqCst),
        1
    );
}

#[test]
fn without_accounting_counts_nowhere() {
    let other = Arc::new(Counter::default());
    let mut root = Root::new(16, None);
    assert_eq!(root.writable().unwrap().len(), 16);
    assert_eq!(other.alive(), 0);
}
