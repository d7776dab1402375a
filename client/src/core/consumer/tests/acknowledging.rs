//! Acknowledgements: grouping, batches, receipts, reconnecting.

use vela_proto::{CommandAckResponse, ServerError};

use super::build;
use super::*;

fn respond(bench: &mut Bench, request_id: u64, error: Option<ServerError>) {
    let mut command = success();
    command.ack_response = Some(CommandAckResponse {
        consumer_id: 7,
        request_id: Some(request_id),
        error: error.map(|error| error as i32),
        ..CommandAckResponse::default()
    });
    bench.reply(request_id, Ok(command));
}

fn answers(bench: &mut Bench) -> Vec<(Call, bool)> {
    let events = bench.events().into_iter();
    events
        .filter_map(|event| match event {
            ConsumerEvent::Answer { call, result } => Some((call, result.is_ok())),
            _ => None,
        })
        .collect()
}

fn take_singles(bench: &mut Bench, count: u64) -> Vec<ReceivedMessage> {
    for entry in 0..count {
        bench.deliver(entry, build::single("x"), |_| {}).unwrap();
    }
    bench.take_all()
}

#[test]
fn grouped_by_time_and_by_number() {
    let mut bench = Bench::new(|c| c.ack_group_max = 3);
    let taken = take_singles(&mut bench, 5);
    bench.ack(&taken[0].id, Some(1));
    // Without receipts there is nothing to wait for.
    assert_eq!(answers(&mut bench), [(1, true)]);
    bench.ack(&taken[1].id, None);
    assert_eq!(bench.consumer.poll_timeout(), Some(100 * MILLI));
    assert!(bench.acked().is_empty());
    bench.ack(&taken[2].id, None);
    assert_eq!(bench.acked(), [(0, vec![]), (1, vec![]), (2, vec![])]);
    bench.ack(&taken[3].id, None);
    bench.advance(100 * MILLI);
    assert_eq!(bench.acked(), [(3, vec![])]);
}

#[test]
fn what_is_pending_is_not_delivered_again() {
    let mut bench = Bench::new(|_| {});
    let taken = take_singles(&mut bench, 1);
    bench.ack(&taken[0].id, None);
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_none());
    assert_eq!(bench.audit().returned, 2);
    bench.advance(100 * MILLI);
    // The broker knows now; if it delivers it again it has a reason.
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_some());
}

#[test]
fn batches_index_by_index_or_as_a_whole() {
    let mut bench = Bench::new(|c| c.ack_group_time = 0);
    bench.deliver(0, build::batch(70), |_| {}).unwrap();
    let taken = bench.take_all();
    bench.ack(&taken[1].id, None);
    assert_eq!(bench.acked(), [(0, vec![-3, 0x3f])]);
    for message in &taken {
        bench.ack(&message.id, None);
    }
    assert_eq!(bench.acked().pop(), Some((0, vec![])));

    let mut bench = Bench::new(|c| {
        c.ack_group_time = 0;
        c.batch_index_ack = false;
    });
    bench.deliver(0, build::batch(3), |_| {}).unwrap();
    let taken = bench.take_all();
    bench.ack(&taken[0].id, None);
    bench.ack(&taken[2].id, None);
    assert!(bench.acked().is_empty());
    bench.ack(&taken[1].id, None);
    assert_eq!(bench.acked(), [(0, vec![])]);
}

#[test]
fn cumulative_with_and_without_indexes() {
    for index_ack in [false, true] {
        let mut bench = Bench::new(|c| {
            c.subscription_type = SubscriptionType::Exclusive;
            c.ack_group_time = 0;
            c.batch_index_ack = index_ack;
        });
        bench.deliver(4, build::single("x"), |_| {}).unwrap();
        bench.deliver(5, build::batch(4), |_| {}).unwrap();
        let taken = bench.take_all();
        let ack = |bench: &mut Bench, index: usize| {
            let id = &taken[index].id;
            bench
                .consumer
                .acknowledge_cumulative(0, id, None, &mut bench.wire);
        };
        ack(&mut bench, 2);
        let expected = if index_ack {
            (5, vec![0b1100])
        } else {
            (4, vec![])
        };
        assert_eq!(bench.acked(), [expected]);
        // Backwards is nothing.
        ack(&mut bench, 1);
        assert!(bench.acked().is_empty());
        ack(&mut bench, 4);
        assert_eq!(bench.acked(), [(5, vec![])]);
        bench.deliver(5, build::batch(4), |_| {}).unwrap();
        assert!(bench.take().is_none());
    }
}

#[test]
fn cumulative_is_refused_where_messages_are_shared() {
    let mut bench = Bench::new(|_| {});
    let taken = take_singles(&mut bench, 1);
    let id = &taken[0].id;
    bench
        .consumer
        .acknowledge_cumulative(0, id, Some(1), &mut bench.wire);
    assert_eq!(answers(&mut bench), [(1, false)]);
}

#[test]
fn receipts_end_the_calls() {
    let mut bench = Bench::new(|c| c.ack_receipt = true);
    let taken = take_singles(&mut bench, 2);
    bench.ack(&taken[0].id, Some(1));
    bench.ack(&taken[1].id, Some(2));
    bench.advance(100 * MILLI);
    assert!(answers(&mut bench).is_empty());
    let ack = bench.sent(Type::Ack).pop().unwrap().ack.unwrap();
    assert_eq!(ack.message_id.len(), 2);
    respond(&mut bench, ack.request_id.unwrap(), None);
    assert_eq!(answers(&mut bench), [(1, true), (2, true)]);

    bench.deliver(2, build::single("x"), |_| {}).unwrap();
    let message = bench.take().unwrap();
    bench.ack(&message.id, Some(3));
    bench.advance(100 * MILLI);
    let ack = bench.sent(Type::Ack).pop().unwrap().ack.unwrap();
    let error = Some(ServerError::UnknownError);
    respond(&mut bench, ack.request_id.unwrap(), error);
    assert_eq!(answers(&mut bench), [(3, false)]);
}

#[test]
fn unanswered_ones_are_sent_again_after_reconnecting() {
    let mut bench = Bench::new(|c| c.ack_receipt = true);
    let taken = take_singles(&mut bench, 2);
    bench.ack(&taken[0].id, Some(1));
    bench.advance(100 * MILLI);
    let first = bench.sent(Type::Ack).pop().unwrap().ack.unwrap();
    bench.ack(&taken[1].id, Some(2));
    bench.consumer.detached(bench.now, Detached::ConnectionLost);
    bench.flowed();
    bench.subscribe();
    // Before the FLOW, so that they are not delivered again.
    assert_eq!(bench.wire.sent[0].r#type, Type::Ack as i32);
    let again = bench.sent(Type::Ack).pop().unwrap().ack.unwrap();
    assert_eq!(again.message_id.len(), 2);
    assert_ne!(again.request_id, first.request_id);
    // Delivered by the broker before it read the acknowledgement.
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    assert!(bench.take().is_none());
    respond(&mut bench, again.request_id.unwrap(), None);
    assert_eq!(answers(&mut bench), [(1, true), (2, true)]);
}

#[test]
fn many_go_out_in_commands_of_a_thousand() {
    let mut bench = Bench::new(|c| {
        c.ack_receipt = true;
        c.receiver_queue_size = 5000;
    });
    let taken = take_singles(&mut bench, 2500);
    bench.consumer.detached(0, Detached::ConnectionLost);
    let ids: Vec<_> = taken.iter().map(|message| message.id).collect();
    bench
        .consumer
        .acknowledge(0, &ids, Some(1), &mut bench.wire);
    bench.subscribe();
    let acks = bench.sent(Type::Ack);
    let sizes: Vec<_> = acks
        .iter()
        .map(|command| command.ack.as_ref().unwrap().message_id.len())
        .collect();
    assert_eq!(sizes, [1000, 1000, 500]);
    for command in acks {
        assert!(answers(&mut bench).is_empty());
        respond(&mut bench, command.ack.unwrap().request_id.unwrap(), None);
    }
    assert_eq!(answers(&mut bench), [(1, true)]);
}

#[test]
fn an_index_beyond_its_batch_is_refused() {
    let mut bench = Bench::new(|_| {});
    let id = MessageId {
        batch_index: 3,
        batch_size: 0,
        ..MessageId::entry(1, 0)
    };
    bench.ack(&id, Some(1));
    assert_eq!(answers(&mut bench), [(1, false)]);
}
