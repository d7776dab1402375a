//! A producer by itself: what nobody waits for any more.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::cell::Cell;
use std::rc::Rc;

use super::*;

struct Token(u64, Rc<Cell<bool>>);

impl Ticket for Token {
    fn abandoned(&self) -> bool {
        self.1.get()
    }
}

fn producer(batching: Option<Batching>) -> Producer<Token> {
    let config = ProducerConfig {
        batching,
        ..ProducerConfig::new("t")
    };
    Producer::new(ProducerKey(1), config)
}

fn send(producer: &mut Producer<Token>, number: u64) -> Rc<Cell<bool>> {
    let gone = Rc::new(Cell::new(false));
    let message = OutgoingMessage::new(number.to_string());
    let token = Token(number, Rc::clone(&gone));
    assert!(producer.send(number, message, token).is_ok());
    gone
}

fn open(producer: &mut Producer<Token>) {
    let success = proto::CommandProducerSuccess {
        producer_name: "p".into(),
        ..Default::default()
    };
    producer.opened(success, 1 << 20);
}

fn ended(producer: &mut Producer<Token>) -> Vec<(u64, bool)> {
    let ends: Vec<_> = producer.take_ends().collect();
    ends.into_iter()
        .flat_map(|done| {
            let good = done.result.is_ok();
            done.sends.into_iter().map(move |token| (token.0, good))
        })
        .collect()
}

#[test]
fn what_nobody_waits_for_is_skipped_when_it_is_encoded_and_leaves_no_gap() {
    let mut producer = producer(Some(Batching::default()));
    let gone: Vec<_> = (0..5).map(|number| send(&mut producer, number)).collect();
    gone[1].set(true);
    gone[4].set(true);
    assert!(
        ended(&mut producer).is_empty(),
        "it keeps what it holds until the next step"
    );
    assert_eq!(producer.pending(), 5);
    producer.seal();
    open(&mut producer);
    let mut out = Output::default();
    producer.fill(|_| 0, &mut out);
    assert_eq!(ended(&mut producer), [(1, false), (4, false)]);
    assert_eq!(producer.receipt(0, 2, 1, 1), Verdict::Fine);
    assert_eq!(ended(&mut producer), [(0, true), (2, true), (3, true)]);
    assert_eq!(producer.pending(), 0);
}

#[test]
fn an_entry_nobody_waits_for_is_not_sent_at_all() {
    let mut producer = producer(None);
    let gone: Vec<_> = (0..3).map(|number| send(&mut producer, number)).collect();
    gone[0].set(true);
    gone[1].set(true);
    let flush = producer.flush();
    open(&mut producer);
    let mut out = Output::default();
    producer.fill(|_| 0, &mut out);
    assert_eq!(ended(&mut producer), [(0, false), (1, false)]);
    // The one that is left is the first on the wire.
    assert_eq!(producer.receipt(0, u64::MAX, 1, 1), Verdict::Fine);
    assert_eq!(ended(&mut producer), [(2, true)]);
    assert_eq!(producer.take_flushed().collect::<Vec<_>>(), [flush]);
}

#[test]
fn a_sweep_finds_what_no_step_would_come_to() {
    let mut producer = producer(Some(Batching::default()));
    let first = send(&mut producer, 0);
    producer.seal();
    let second = send(&mut producer, 1);
    let third = send(&mut producer, 2);
    first.set(true);
    second.set(true);
    producer.sweep();
    let mut ends = ended(&mut producer);
    ends.sort_unstable();
    assert_eq!(ends, [(0, false), (1, false)]);
    third.set(true);
    producer.sweep();
    assert_eq!(ended(&mut producer), [(2, false)]);
    assert_eq!((producer.pending(), producer.poll_timeout()), (0, None));
}

#[test]
fn what_is_on_the_wire_is_not_skipped_any_more() {
    let mut producer = producer(None);
    open(&mut producer);
    let gone = send(&mut producer, 0);
    let mut out = Output::default();
    producer.fill(|_| 0, &mut out);
    gone.set(true);
    producer.sweep();
    assert!(ended(&mut producer).is_empty());
    producer.detached();
    producer.sweep();
    assert!(ended(&mut producer).is_empty(), "the broker may have it");
    assert_eq!(producer.receipt(0, u64::MAX, 1, 1), Verdict::Fine);
    assert_eq!(ended(&mut producer), [(0, true)]);
}

#[test]
fn a_damaged_copy_of_our_own_is_not_sent_again() {
    let mut producer = producer(None);
    open(&mut producer);
    send(&mut producer, 0);
    let mut out = Output::default();
    producer.fill(|_| 0, &mut out);
    let intact = producer.send_error(0, ServerError::ChecksumError, String::new());
    assert!(matches!(intact, Verdict::Reopen(_)), "{intact:?}");
    if let Some(Op {
        body: Body::Encoded(encoded),
        ..
    }) = producer.ops.front_mut()
    {
        encoded.payload = Bytes::from_static(b"other");
    }
    let damaged = producer.send_error(0, ServerError::ChecksumError, String::new());
    assert_eq!(damaged, Verdict::Fine);
    assert_eq!(ended(&mut producer), [(0, false)]);
}
