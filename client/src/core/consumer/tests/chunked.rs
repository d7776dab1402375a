//! What the application says of messages that came in chunks: every chunk ends with its message, none alone.

use super::config::SECOND;
use super::receiving::{deliver_chunk, redelivered};
use super::*;

/// Delivers a message in chunks that begin at this entry, and takes it.
fn take_chunked(bench: &mut Bench, from: u64, of: i32) -> ReceivedMessage {
    let uuid = format!("u{from}");
    for (entry, index) in (from..).zip(0..of) {
        deliver_chunk(bench, entry, &uuid, index, of);
    }
    bench.take().expect("the message is whole")
}

fn reconnect(bench: &mut Bench) {
    bench.consumer.detached(bench.now, Detached::ConnectionLost);
    bench.subscribe();
}

/// Entries of the ACKs that are due by now.
fn acked(bench: &mut Bench) -> Vec<u64> {
    bench.advance(100 * MILLI);
    bench.acked().into_iter().map(|(entry, _)| entry).collect()
}

#[test]
fn a_copy_ends_as_a_whole_though_the_acknowledgement_of_the_other_was_lost() {
    let mut bench = Bench::new(|_| {});
    let first = take_chunked(&mut bench, 0, 3);
    reconnect(&mut bench);
    let second = take_chunked(&mut bench, 0, 3);
    bench.ack(&first.id, None);
    assert_eq!(acked(&mut bench), [0, 1, 2]);
    // That ACK was lost with the connection.
    reconnect(&mut bench);
    bench.ack(&second.id, None);
    assert_eq!(acked(&mut bench), [0, 1, 2]);
}

#[test]
fn a_copy_is_acknowledged_as_a_whole_however_the_first_ended() {
    // Cumulatively, and lost with the connection.
    let mut bench = Bench::new(|c| c.subscription_type = SubscriptionType::Exclusive);
    let first = take_chunked(&mut bench, 0, 3);
    let (now, wire) = (bench.now, &mut bench.wire);
    bench
        .consumer
        .acknowledge_cumulative(now, &first.id, None, wire);
    assert_eq!(acked(&mut bench), [2]);
    reconnect(&mut bench);
    bench.ack(&first.id, None);
    assert_eq!(acked(&mut bench), [0, 1, 2]);

    // Before the subscription was moved back.
    let mut bench = Bench::new(|_| {});
    let first = take_chunked(&mut bench, 0, 3);
    let second = take_chunked(&mut bench, 3, 2);
    bench.ack(&first.id, None);
    assert_eq!(acked(&mut bench), [0, 1, 2]);
    let (now, wire) = (bench.now, &mut bench.wire);
    let to = StartPosition::at(MessageId::EARLIEST);
    bench.consumer.seek(now, to, 1, wire);
    bench.ack(&first.id, None);
    bench.ack(&second.id, None);
    assert_eq!(acked(&mut bench), [0, 1, 2, 3, 4]);
}

#[test]
fn a_nack_of_a_copy_asks_for_all_chunks() {
    let mut bench = Bench::new(|c| c.negative_ack_redelivery_delay = SECOND);
    let first = take_chunked(&mut bench, 0, 3);
    bench.ack(&first.id, None);
    assert_eq!(acked(&mut bench), [0, 1, 2]);
    bench.consumer.negative_acknowledge(bench.now, &first.id, 0);
    bench.advance(SECOND);
    assert_eq!(redelivered(&mut bench), [0, 1, 2]);
}

#[test]
fn an_id_of_unknown_chunks_acknowledges_all_of_them_when_they_come() {
    for receipts in [false, true] {
        let mut bench = Bench::new(|c| c.ack_receipt = receipts);
        let id = MessageId {
            first_chunk: Some((1, 0)),
            ..MessageId::entry(1, 2)
        };
        bench.ack(&id, Some(1));
        assert_eq!(acked(&mut bench), [0; 0]);
        // That it is acknowledged cannot be said yet.
        let answers = bench.events();
        assert!(matches!(
            answers[..],
            [ConsumerEvent::Answer { call: 1, ref result }] if result.is_err() == receipts
        ));
        // Whatever becomes of the connection.
        reconnect(&mut bench);
        for entry in 0..3 {
            deliver_chunk(&mut bench, entry, "u", entry as i32, 3);
        }
        assert!(bench.take().is_none());
        assert_eq!(acked(&mut bench), [0, 1, 2]);
        assert_eq!((bench.audit().held, bench.consumer.stats().skipped), (0, 1));
        // Once: what comes after that, comes because it is wanted.
        if !receipts {
            take_chunked(&mut bench, 0, 3);
        }
    }
}

#[test]
fn a_nack_takes_an_acknowledgement_back_that_was_not_sent() {
    let mut bench = Bench::new(|c| c.negative_ack_redelivery_delay = SECOND);
    let id = MessageId {
        first_chunk: Some((1, 0)),
        ..MessageId::entry(1, 2)
    };
    bench.ack(&id, None);
    bench.consumer.negative_acknowledge(bench.now, &id, 0);
    bench.advance(SECOND);
    // The last chunk alone would complete nothing.
    assert_eq!(redelivered(&mut bench), [0; 0]);
    assert_eq!(take_chunked(&mut bench, 0, 3).id, id);
}

#[test]
fn what_is_left_of_an_acknowledged_message_ends_too() {
    // The broker read the acknowledgement between two chunks that it sent again; or only a part of it, as it went out in several commands.
    for kind in [SubscriptionType::Shared, SubscriptionType::Exclusive] {
        let mut bench = Bench::new(|c| c.subscription_type = kind);
        let message = take_chunked(&mut bench, 0, 4);
        bench.ack(&message.id, None);
        assert_eq!(acked(&mut bench), [0, 1, 2, 3]);
        deliver_chunk(&mut bench, 2, "u0", 2, 4);
        reconnect(&mut bench);
        assert_eq!(bench.acked().len(), 4);
        deliver_chunk(&mut bench, 2, "u0", 2, 4);
        deliver_chunk(&mut bench, 3, "u0", 3, 4);
        assert_eq!(acked(&mut bench), [0, 1, 2, 3]);
        assert!(bench.take().is_none());
        bench.advance(600 * SECOND);
        assert_eq!(redelivered(&mut bench), [0; 0]);
    }
}

#[test]
fn a_copy_that_is_on_its_way_is_not_kept_for_an_acknowledged_message() {
    let mut bench = Bench::new(|_| {});
    let message = take_chunked(&mut bench, 0, 3);
    reconnect(&mut bench);
    deliver_chunk(&mut bench, 0, "u0", 0, 3);
    deliver_chunk(&mut bench, 1, "u0", 1, 3);
    assert_eq!(bench.consumer.chunks.pending(), 1);
    bench.ack(&message.id, None);
    assert_eq!(bench.consumer.chunks.pending(), 0);
    deliver_chunk(&mut bench, 2, "u0", 2, 3);
    assert_eq!(acked(&mut bench), [0, 1, 2]);
    assert_eq!((bench.take().is_none(), bench.audit().held), (true, 0));
}
