//! What several tests share.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;

use crate::{Accounting, Frame, FrameDecoder, FrameError};

/// Largest frame by default: 5 MiB and the padding.
pub(crate) const MAX_FRAME: usize = 5_253_120;

#[derive(Default)]
pub(crate) struct Counter {
    pub(crate) alive: AtomicUsize,
    pub(crate) allocations: AtomicUsize,
}

impl Counter {
    pub(crate) fn alive(&self) -> usize {
        self.alive.load(SeqCst)
    }
}

impl Accounting for Counter {
    fn allocated(&self, bytes: usize) {
        self.alive.fetch_add(bytes, SeqCst);
        self.allocations.fetch_add(1, SeqCst);
    }

    fn released(&self, bytes: usize) {
        let before = self.alive.fetch_sub(bytes, SeqCst);
        assert!(before >= bytes, "more released than was allocated");
    }
}

pub(crate) fn counter() -> (Arc<Counter>, Option<Arc<dyn Accounting>>) {
    let counter = Arc::new(Counter::default());
    (Arc::clone(&counter), Some(counter))
}

pub(crate) fn frames_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/frames"))
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The bytes of `tests/data/frames/{name}.hex`.
pub(crate) fn frame_bytes(name: &str) -> Vec<u8> {
    let path = frames_dir().join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    hex(&text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<String>())
}

/// What a decoder makes of these bytes alone.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    decoder.push(Bytes::copy_from_slice(bytes));
    decoder.next_frame()
}

/// The one frame of a file.
pub(crate) fn frame(name: &str) -> Frame {
    let bytes = frame_bytes(name);
    let frame = decode(&bytes).unwrap().expect("a whole frame");
    assert_eq!(
        frame.len() + 4,
        bytes.len(),
        "{name} holds exactly one frame"
    );
    frame
}
