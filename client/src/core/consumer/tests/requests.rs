//! Seek, last message id, unsubscribe, close, and what becomes of them when the connection breaks.

use vela_proto::{CommandGetLastMessageIdResponse, ServerError};

use super::build;
use super::*;

fn answers(bench: &mut Bench) -> Vec<(Call, Result<ConsumerAnswer, Error>)> {
    let events = bench.events().into_iter();
    events
        .filter_map(|event| match event {
            ConsumerEvent::Answer { call, result } => Some((call, result)),
            _ => None,
        })
        .collect()
}

fn refused() -> Error {
    Error::Broker {
        code: ServerError::UnknownError,
        message: "no".to_owned(),
    }
}

const EARLIEST: StartPosition = StartPosition::Earliest;

fn seek(bench: &mut Bench, target: StartPosition, call: Call) -> u64 {
    bench
        .consumer
        .seek(bench.now, target, call, &mut bench.wire);
    let sent = bench.sent(Type::Seek).pop().expect("SEEK");
    sent.seek.unwrap().request_id
}

#[test]
fn a_seek_drops_what_came_before_it() {
    let mut bench = Bench::new(|_| {});
    for entry in 0..3 {
        bench.deliver(entry, build::single("x"), |_| {}).unwrap();
    }
    bench.take().unwrap();
    let request = seek(&mut bench, EARLIEST, 1);
    assert!(bench.take().is_none());
    // Under way before the broker read the SEEK.
    bench.deliver(3, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_none());
    assert_eq!(bench.audit().returned, 4);
    bench.consumer.detached(0, Detached::ClosedByBroker);
    bench.reply(request, Ok(success()));
    assert_eq!(answers(&mut bench), [(1, Ok(ConsumerAnswer::Done))]);
    bench.subscribe();
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_some());
}

#[test]
fn a_seek_that_leaves_the_consumer_attached_loses_no_permits() {
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.flowed(), 100);
    for entry in 0..100 {
        bench.deliver(entry, build::single("x"), |_| {}).unwrap();
    }
    let request = seek(&mut bench, EARLIEST, 1);
    bench.reply(request, Ok(success()));
    assert_eq!(bench.flowed(), 100);
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_some());
}

#[test]
fn a_refused_seek_asks_for_what_it_dropped() {
    let mut bench = Bench::new(|_| {});
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    let request = seek(&mut bench, EARLIEST, 1);
    bench.reply(request, Err(refused()));
    assert_eq!(bench.sent(Type::RedeliverUnacknowledgedMessages).len(), 1);
    assert_eq!(answers(&mut bench), [(1, Err(refused()))]);
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_some());
}

#[test]
fn a_seek_cut_off_is_sent_again() {
    let mut bench = Bench::new(|_| {});
    seek(&mut bench, EARLIEST, 1);
    bench.consumer.detached(0, Detached::ConnectionLost);
    bench.subscribe();
    let sent = bench.sent(Type::Seek).pop().unwrap().seek.unwrap();
    bench.reply(sent.request_id, Ok(success()));
    assert_eq!(answers(&mut bench), [(1, Ok(ConsumerAnswer::Done))]);
}

#[test]
fn a_seek_to_a_message_delivers_it_only_if_inclusive() {
    for inclusive in [false, true] {
        let mut bench = Bench::new(|_| {});
        bench.deliver(0, build::batch(3), |_| {}).unwrap();
        let taken = bench.take_all();
        let target = StartPosition::Message {
            id: taken[1].id,
            inclusive,
        };
        let request = seek(&mut bench, target, 1);
        bench.consumer.detached(0, Detached::ClosedByBroker);
        bench.reply(request, Ok(success()));
        bench.subscribe();
        bench.deliver(0, build::batch(3), |_| {}).unwrap();
        let again: Vec<_> = bench.take_all().iter().map(|m| m.id.batch_index).collect();
        assert_eq!(again, if inclusive { vec![1, 2] } else { vec![2] });
    }
}

fn last(bench: &mut Bench, entry: u64, batch_index: i32, mark_delete: u64) {
    let sent = bench.sent(Type::GetLastMessageId).pop().unwrap();
    let request_id = sent.get_last_message_id.unwrap().request_id;
    let mut command = success();
    command.get_last_message_id_response = Some(CommandGetLastMessageIdResponse {
        request_id,
        last_message_id: MessageIdData {
            ledger_id: 1,
            entry_id: entry,
            batch_index: Some(batch_index),
            ..MessageIdData::default()
        },
        consumer_mark_delete_position: Some(MessageIdData {
            ledger_id: 1,
            entry_id: mark_delete,
            ..MessageIdData::default()
        }),
    });
    bench.reply(request_id, Ok(command));
}

fn has_message(bench: &mut Bench, entry: u64, batch_index: i32, mark_delete: u64) -> bool {
    bench.consumer.has_message_available(0, 1, &mut bench.wire);
    if bench.consumer.queued() == 0 {
        last(bench, entry, batch_index, mark_delete);
    }
    match answers(bench).pop() {
        Some((1, Ok(ConsumerAnswer::HasMessage(more)))) => more,
        other => panic!("{other:?}"),
    }
}

#[test]
fn whether_something_is_left() {
    let none = u64::MAX;
    let mut bench = Bench::new(|c| {
        c.durable = false;
        c.start = StartPosition::Earliest;
    });
    assert!(!has_message(&mut bench, none, -1, none));
    assert!(has_message(&mut bench, 0, -1, none));
    bench.deliver(0, build::batch(2), |_| {}).unwrap();
    assert!(has_message(&mut bench, 0, 1, none));
    bench.take().unwrap();
    assert!(has_message(&mut bench, 0, 1, none));
    bench.take().unwrap();
    assert!(!has_message(&mut bench, 0, 1, none));
    assert!(has_message(&mut bench, 1, -1, none));

    let mut bench = Bench::new(|c| c.durable = false);
    assert!(!has_message(&mut bench, 5, -1, 5));
    assert!(has_message(&mut bench, 6, -1, 5));

    for inclusive in [false, true] {
        let id = MessageId {
            batch_index: -1,
            batch_size: 0,
            ..MessageId::entry(1, 5)
        };
        let mut bench = Bench::new(|c| {
            c.durable = false;
            c.start = StartPosition::Message { id, inclusive };
        });
        assert_eq!(has_message(&mut bench, 5, -1, 4), inclusive);
        assert!(has_message(&mut bench, 6, -1, 4));
    }
}

#[test]
fn closing_sends_the_acknowledgements_first() {
    let mut bench = Bench::new(|_| {});
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    let message = bench.take().unwrap();
    bench.ack(&message.id, None);
    bench.consumer.close(0, 1, &mut bench.wire);
    assert_eq!(bench.acked(), [(0, vec![])]);
    let close = bench.sent(Type::CloseConsumer).pop().unwrap();
    let request_id = close.close_consumer.unwrap().request_id;
    bench.reply(request_id, Ok(success()));
    let events = bench.events();
    assert!(matches!(
        events[..],
        [.., ConsumerEvent::Answer { .. }, ConsumerEvent::Closed]
    ));
    bench.consumer.seek(0, EARLIEST, 2, &mut bench.wire);
    let closed = Err(Error::Closed("the consumer"));
    assert_eq!(answers(&mut bench), [(2, closed)]);
}

#[test]
fn calls_wait_for_the_connection_and_end_with_the_consumer() {
    let mut bench = Bench::new(|_| {});
    bench.consumer.detached(0, Detached::ConnectionLost);
    bench.consumer.last_message_id(0, 1, &mut bench.wire);
    assert!(bench.sent(Type::GetLastMessageId).is_empty());
    bench.subscribe();
    last(&mut bench, 3, -1, 0);
    assert!(matches!(
        answers(&mut bench)[..],
        [(
            1,
            Ok(ConsumerAnswer::LastMessageId {
                last: Some(MessageId { entry: 3, .. }),
                ..
            })
        )]
    ));
    bench.consumer.detached(0, Detached::ConnectionLost);
    bench.consumer.last_message_id(0, 2, &mut bench.wire);
    bench.consumer.close(0, 3, &mut bench.wire);
    let ended = answers(&mut bench);
    assert!(matches!(ended[..], [(3, Ok(_)), (2, Err(_))]));
}

#[test]
fn unsubscribing_closes_only_if_it_succeeds() {
    let mut bench = Bench::new(|_| {});
    for ok in [false, true] {
        bench.consumer.unsubscribe(0, false, 1, &mut bench.wire);
        let sent = bench.sent(Type::Unsubscribe).pop().unwrap();
        let result = if ok { Ok(success()) } else { Err(refused()) };
        bench.reply(sent.unsubscribe.unwrap().request_id, result);
        assert_eq!(bench.consumer.is_closed(), ok);
    }
}

#[test]
fn a_refused_subscribe_can_be_repeated() {
    let mut consumer = Consumer::new(1, ConsumerConfig::new("t", "s"));
    let mut wire = TestWire::default();
    consumer.subscribe(0, &mut wire);
    assert!(consumer.handle_answer(0, 1, Err(refused()), &mut wire));
    assert!(matches!(
        consumer.poll_event(),
        Some(ConsumerEvent::SubscribeFailed(_))
    ));
    consumer.subscribe(0, &mut wire);
    assert!(consumer.handle_answer(0, 2, Ok(success()), &mut wire));
    assert!(consumer.is_ready());
}
