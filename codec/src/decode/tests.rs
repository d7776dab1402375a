#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{Frame, FrameDecoder, FrameError, IN_PLACE_MIN, PARTIAL_MIN};
use crate::testing::{MAX_FRAME, counter, decode, frame, frame_bytes};
use crate::{Accounting, Cumulation, Sizes};

#[test]
fn frames_that_break_framing() {
    let too_large = |frame| FrameError::TooLarge {
        frame,
        limit: MAX_FRAME,
    };
    for (name, error) in [
        ("frame-oversize", too_large(MAX_FRAME + 1)),
        ("frame-oversize-most", too_large(u32::MAX as usize + 4)),
        ("frame-http", too_large(0x4745_5420 + 4)),
        (
            "frame-total-size-zero",
            FrameError::TooSmall { total_size: 0 },
        ),
        (
            "frame-total-size-two",
            FrameError::TooSmall { total_size: 2 },
        ),
        (
            "frame-total-size-four",
            FrameError::TooSmall { total_size: 4 },
        ),
        (
            "frame-cmd-size-beyond",
            FrameError::CommandBeyondFrame {
                command_size: 6,
                total_size: 9,
            },
        ),
        (
            "frame-cmd-size-beyond-early",
            FrameError::CommandBeyondFrame {
                command_size: u32::MAX as usize,
                total_size: 0x10_0000,
            },
        ),
    ] {
        let bytes = frame_bytes(name);
        assert_eq!(decode(&bytes).unwrap_err(), error, "{name}");
        // Byte by byte, the answer comes with the last byte of the size field, and stays.
        let mut decoder = FrameDecoder::new(MAX_FRAME);
        let mut failed_at = None;
        for (at, byte) in bytes.iter().enumerate() {
            decoder.push(Bytes::copy_from_slice(&[*byte]));
            match decoder.next_frame() {
                Ok(frame) => assert!(frame.is_none() && failed_at.is_none(), "{name}"),
                Err(answer) => {
                    assert_eq!(answer, error, "{name}");
                    failed_at.get_or_insert(at + 1);
                }
            }
            decoder.settle(None);
        }
        assert_eq!(decoder.retained(), 0);
        let command_error = matches!(error, FrameError::CommandBeyondFrame { .. });
        assert_eq!(failed_at, Some(if command_error { 8 } else { 4 }), "{name}");
    }
}

#[test]
fn the_largest_frame_passes() {
    let total_size = MAX_FRAME - 4;
    let mut bytes = (total_size as u32).to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 5, 8, 18, 0x92, 1, 0]);
    bytes.resize(MAX_FRAME, 0);
    let frame = decode(&bytes).unwrap().unwrap();
    assert_eq!(
        (frame.len(), frame.command().len(), frame.rest().len()),
        (total_size, 5, total_size - 9)
    );
}

#[test]
fn a_frame_shares_what_it_was_read_into() {
    let bytes = Bytes::from([frame_bytes("golden-send"), frame_bytes("golden-ping")].concat());
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    decoder.push(bytes.clone());
    let send = decoder.next_frame().unwrap().unwrap();
    assert_eq!(
        send.rest_bytes().as_ptr(),
        bytes[16..].as_ptr(),
        "not copied"
    );
    assert_eq!(&send.rest()[send.rest().len() - 5..], b"hello");
    assert_eq!(send.root_capacity(), bytes.len());
    assert_eq!(
        decoder.next_frame().unwrap().unwrap().command(),
        [8, 18, 0x92, 1, 0]
    );
    assert!(decoder.next_frame().unwrap().is_none());
    assert!(decoder.is_between_frames());
    assert_eq!(decoder.retained(), 0);
}

#[test]
fn a_compacted_frame_lets_go_of_its_root() {
    let (counter, accounting) = counter();
    let mut buffer = Cumulation::new(Sizes::default(), accounting.clone());
    let bytes = frame_bytes("golden-send");
    buffer.space()[..bytes.len()].copy_from_slice(&bytes);
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    decoder.push(buffer.read(bytes.len()));
    let frame = decoder.next_frame().unwrap().unwrap();
    decoder.settle(accounting.as_ref());
    assert!(frame.pins_much());
    assert_eq!(frame.root_capacity(), 16_384);
    let compact = frame.compact(accounting);
    assert_eq!(
        (compact.command(), compact.rest()),
        (frame.command(), frame.rest())
    );
    assert!(!compact.pins_much());
    drop(frame);
    buffer.release_idle();
    assert_eq!(counter.alive(), compact.len());
    drop(compact);
    assert_eq!(counter.alive(), 0);
}

#[test]
fn waiting_input_lets_go_of_its_root() {
    let (counter, accounting) = counter();
    let mut buffer = Cumulation::new(Sizes::default(), accounting.clone());
    let bytes = [frame_bytes("golden-send"), frame_bytes("golden-ping")].concat();
    buffer.space()[..bytes.len()].copy_from_slice(&bytes);
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    decoder.push(buffer.read(bytes.len()));
    buffer.release_idle();
    assert_eq!(decoder.retained(), 16_384);
    decoder.compact(accounting.as_ref());
    assert_eq!(
        (decoder.retained(), counter.alive()),
        (bytes.len(), bytes.len())
    );
    decoder.compact(accounting.as_ref());
    assert_eq!(
        counter
            .allocations
            .load(std::sync::atomic::Ordering::SeqCst),
        2,
        "once is enough"
    );
    assert_eq!(
        decoder.next_frame().unwrap().unwrap().rest(),
        frame("golden-send").rest()
    );
    assert!(decoder.next_frame().unwrap().is_some() && decoder.next_frame().unwrap().is_none());
    assert_eq!((decoder.retained(), counter.alive()), (0, 0));
}

#[test]
fn input_that_was_copied_whole_is_let_go_of() {
    let (counter, accounting) = counter();
    let bytes = frame_bytes("golden-send");
    // Cut inside the size field, and inside the body.
    for cut in [2, 20] {
        let mut buffer = Cumulation::new(Sizes::default(), accounting.clone());
        let mut decoder = FrameDecoder::new(MAX_FRAME);
        for piece in [&bytes[..cut], &bytes[cut..bytes.len() - 3]] {
            buffer.space()[..piece.len()].copy_from_slice(piece);
            decoder.push(buffer.read(piece.len()));
            assert!(decoder.next_frame().unwrap().is_none());
            decoder.settle(accounting.as_ref());
            buffer.release_idle();
            assert_eq!(
                counter.alive(),
                decoder.retained(),
                "the shared root is free"
            );
        }
        assert_eq!(decoder.retained(), bytes.len() - 4);
    }
    assert_eq!(counter.alive(), 0);
}

#[test]
fn an_unfinished_frame_announces_its_size() {
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    assert_eq!(decoder.announced(), None);
    decoder.push(Bytes::from_static(&[0, 0, 0x10, 0, 0]));
    assert!(decoder.next_frame().unwrap().is_none());
    assert_eq!((decoder.announced(), decoder.missing()), (Some(4096), None));
    decoder.settle(None);
    assert_eq!(
        (decoder.announced(), decoder.missing()),
        (Some(4096), Some(4095))
    );
}

#[test]
fn a_large_frame_is_finished_in_place_in_a_root_of_its_size() {
    let (counter, accounting) = counter();
    let body = vec![7; 3 * IN_PLACE_MIN];
    let bytes = wire(&[&body]);
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    decoder.push(Bytes::copy_from_slice(&bytes[..100]));
    assert!(decoder.next_frame().unwrap().is_none());
    assert!(
        decoder.space().is_none(),
        "nothing to read into before it settled"
    );
    decoder.settle(accounting.as_ref());
    assert_eq!(
        (counter.alive(), decoder.retained()),
        (PARTIAL_MIN, PARTIAL_MIN),
        "what was announced is not allocated"
    );
    assert_eq!(decoder.missing(), Some(bytes.len() - 100));

    let (mut at, mut steps) = (100, 0);
    while let Some(space) = decoder.space() {
        let n = space.len().min(bytes.len() - 1 - at);
        space[..n].copy_from_slice(&bytes[at..at + n]);
        decoder.advance(n);
        at += n;
        steps += 1;
        assert!(decoder.next_frame().unwrap().is_none());
        assert_eq!(decoder.arrived(), Some(at - 4));
        assert!(decoder.retained() <= 2 * (at - 4));
    }
    assert_eq!(steps, 8, "a quarter, a half, 1, 2, 4, 8, 16 and 24 KiB");
    let left = bytes.len() - at;
    assert!(left < IN_PLACE_MIN, "too little for a read of its own");
    while let Some(space) = decoder.missing_space(1)
        && at < bytes.len() - 1
    {
        space[0] = bytes[at];
        decoder.advance(1);
        at += 1;
        assert!(decoder.next_frame().unwrap().is_none());
    }
    assert_eq!(decoder.missing_space(1).unwrap().len(), 1);
    decoder.push(Bytes::copy_from_slice(&bytes[bytes.len() - 1..]));
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_eq!(frame.rest(), body);
    assert_eq!(frame.root_capacity(), bytes.len() - 4);
    assert_eq!(counter.alive(), frame.root_capacity());
    drop((decoder, frame));
    assert_eq!(counter.alive(), 0);
}

#[test]
fn a_frame_that_is_only_announced_costs_next_to_nothing() {
    let (counter, accounting) = counter();
    let mut decoders: Vec<_> = (0..1000).map(|_| FrameDecoder::new(MAX_FRAME)).collect();
    for decoder in &mut decoders {
        decoder.push(Bytes::from_static(&[0, 0x50, 0, 0, 0]));
        assert!(decoder.next_frame().unwrap().is_none());
        decoder.settle(accounting.as_ref());
        assert_eq!(decoder.announced(), Some(0x50_0000));
        assert_eq!(decoder.next_capacity(), Some(PARTIAL_MIN));
    }
    assert_eq!(counter.alive(), 1000 * PARTIAL_MIN);
    drop(decoders);
    assert_eq!(counter.alive(), 0);
}

#[test]
fn a_frame_can_be_made_of_its_body() {
    let whole = frame_bytes("golden-send");
    let made = Frame::from_body(Bytes::copy_from_slice(&whole[4..])).unwrap();
    assert_eq!(made.rest(), frame("golden-send").rest());
    assert!(Frame::from_body(Bytes::from_static(&[0, 0, 0, 3, 8, 18])).is_err());
    assert!(Frame::from_body(Bytes::from_static(&[0, 0])).is_err());
}

/// Frames with a three-byte command and these rests.
fn wire(rests: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for rest in rests {
        out.extend((rest.len() as u32 + 7).to_be_bytes());
        out.extend([0, 0, 0, 3, 1, 2, 3]);
        out.extend(*rest);
    }
    out
}

/// Reads `bytes` as a broker would: in pieces of the sizes given, into a buffer shared by all connections.
fn read_all(
    bytes: &[u8],
    cuts: &[usize],
    hold: &[bool],
    accounting: Option<&Arc<dyn Accounting>>,
) -> (Vec<Vec<u8>>, Vec<Frame>) {
    let mut buffer = Cumulation::new(
        Sizes {
            min: 8,
            initial: 64,
            max: 20_000,
        },
        accounting.cloned(),
    );
    let mut decoder = FrameDecoder::new(MAX_FRAME);
    let (mut all, mut held) = (Vec::new(), Vec::new());
    let (mut at, mut turn) = (0, 0);
    while at < bytes.len() {
        let n = cuts[turn % cuts.len()].min(bytes.len() - at).max(1);
        turn += 1;
        if let Some(space) = decoder.space() {
            let n = n.min(space.len());
            space[..n].copy_from_slice(&bytes[at..at + n]);
            decoder.advance(n);
            at += n;
        } else {
            let space = buffer.space();
            let n = n.min(space.len());
            space[..n].copy_from_slice(&bytes[at..at + n]);
            decoder.push(buffer.read(n));
            at += n;
        }
        while let Some(frame) = decoder.next_frame().unwrap() {
            assert_eq!(frame.command(), [1, 2, 3]);
            all.push(frame.rest().to_vec());
            if hold[all.len() % hold.len()] {
                held.push(if all.len() % 3 == 0 {
                    frame.compact(accounting.cloned())
                } else {
                    frame
                });
            }
        }
        decoder.settle(accounting);
        if let Some(arrived) = decoder.arrived() {
            assert!(decoder.retained() <= arrived.max(PARTIAL_MIN / 2) * 2);
        }
        let pinned = decoder.input.len();
        assert_eq!(
            pinned, 0,
            "a settled decoder keeps nothing of the shared buffer"
        );
    }
    assert!(decoder.is_between_frames());
    (all, held)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_split_gives_the_same_frames_and_nothing_stays_counted(
        rests in prop::collection::vec(
            prop_oneof![prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 9000..30_000)],
            0..12,
        ),
        cuts in prop::collection::vec(prop_oneof![1usize..9, 1usize..300, 1000usize..40_000], 1..20),
        hold in prop::collection::vec(any::<bool>(), 1..5),
        order in any::<u64>(),
    ) {
        let (counter, accounting) = counter();
        let expected: Vec<&[u8]> = rests.iter().map(|rest| &rest[..]).collect();
        let (all, mut held) = read_all(&wire(&expected), &cuts, &hold, accounting.as_ref());
        prop_assert_eq!(all, rests);
        // Some on this thread, some on another, in any order.
        let mut elsewhere = Vec::new();
        let mut state = order | 1;
        while !held.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let frame = held.swap_remove((state >> 33) as usize % held.len());
            prop_assert!(counter.alive() >= frame.root_capacity());
            if state >> 63 == 0 { elsewhere.push(frame) } else { drop(frame) }
        }
        std::thread::spawn(move || drop(elsewhere)).join().unwrap();
        prop_assert_eq!(counter.alive(), 0);
    }

    #[test]
    fn without_accounting_the_frames_are_the_same(
        rests in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 0..6),
        cuts in prop::collection::vec(1usize..9_000, 1..9),
    ) {
        let expected: Vec<&[u8]> = rests.iter().map(|rest| &rest[..]).collect();
        let (all, _) = read_all(&wire(&expected), &cuts, &[false], None);
        prop_assert_eq!(all, rests);
    }

    #[test]
    fn pushing_without_draining_loses_nothing(
        rests in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
        cuts in prop::collection::vec(1usize..50, 1..8),
        settle in any::<bool>(),
    ) {
        let expected: Vec<&[u8]> = rests.iter().map(|rest| &rest[..]).collect();
        let bytes = wire(&expected);
        let mut decoder = FrameDecoder::new(MAX_FRAME);
        let mut at = 0;
        for cut in cuts.iter().cycle() {
            if at == bytes.len() { break }
            let n = (*cut).min(bytes.len() - at);
            decoder.push(Bytes::copy_from_slice(&bytes[at..at + n]));
            if settle { decoder.settle(None) }
            at += n;
        }
        let mut all = Vec::new();
        while let Some(frame) = decoder.next_frame().unwrap() { all.push(frame.rest().to_vec()) }
        prop_assert_eq!(all, rests);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (counter, accounting) = counter();
        let mut decoder = FrameDecoder::new(300);
        for piece in bytes.chunks(7) {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Ok(Some(frame)) = decoder.next_frame() {
                prop_assert_eq!(frame.len(), 4 + frame.command().len() + frame.rest().len());
            }
            decoder.settle(accounting.as_ref());
        }
        drop(decoder);
        prop_assert_eq!(counter.alive(), 0);
    }
}
