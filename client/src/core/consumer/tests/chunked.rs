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

fn acknowledge_through(bench: &mut Bench, id: &MessageId) {
    let (now, wire) = (bench.now, &mut bench.wire);
    bench.consumer.acknowledge_cumulative(now, id, None, wire);
}

/// Acknowledgements since the last call: cumulative ones with a minus. Entry 0 is never acknowledged so here.
fn acked_how(bench: &mut Bench) -> Vec<i64> {
    bench.advance(100 * MILLI);
    let acks = bench.sent(Type::Ack).into_iter().filter_map(|c| c.ack);
    let ids = acks.flat_map(|ack| {
        let sign = if ack.ack_type == 1 { -1 } else { 1 };
        ack.message_id
            .into_iter()
            .map(move |id| sign * id.entry_id as i64)
    });
    ids.collect()
}

#[test]
fn a_cumulative_acknowledgement_leaves_out_what_ends_behind_it() {
    for lost in [false, true] {
        let mut bench = Bench::new(|c| c.subscription_type = SubscriptionType::Exclusive);
        bench.deliver(1, build::single("x"), |_| {}).unwrap();
        // Of three producers.
        deliver_chunk(&mut bench, 2, "b", 0, 3);
        deliver_chunk(&mut bench, 3, "a", 0, 2);
        deliver_chunk(&mut bench, 4, "b", 1, 3);
        deliver_chunk(&mut bench, 5, "c", 0, 2);
        deliver_chunk(&mut bench, 6, "a", 1, 2);
        bench.deliver(7, build::batch(4), |_| {}).unwrap();
        let taken = bench.take_all();
        assert_eq!(taken.len(), 6);
        // Up to "a", of which all came, but "b" and "c" go on behind it.
        acknowledge_through(&mut bench, &taken[1].id);
        assert_eq!(acked_how(&mut bench), [-1, 3, 6]);
        acknowledge_through(&mut bench, &taken[3].id);
        assert_eq!(acked_how(&mut bench), [6, 7]);
        if lost {
            reconnect(&mut bench);
            // Known though they have to come again.
            acknowledge_through(&mut bench, &taken[4].id);
            assert_eq!(acked_how(&mut bench), [-1, 3, 6, 7]);
            deliver_chunk(&mut bench, 2, "b", 0, 3);
            deliver_chunk(&mut bench, 4, "b", 1, 3);
            deliver_chunk(&mut bench, 5, "c", 0, 2);
        }
        deliver_chunk(&mut bench, 8, "b", 2, 3);
        let message = bench.take().unwrap();
        assert_eq!(message.id.first_chunk, Some((1, 2)));
        // "c" is the only one that goes on.
        acknowledge_through(&mut bench, &message.id);
        assert_eq!(acked_how(&mut bench), [-4, 7, 8]);
        deliver_chunk(&mut bench, 9, "c", 1, 2);
        let message = bench.take().unwrap();
        acknowledge_through(&mut bench, &message.id);
        assert_eq!(acked_how(&mut bench), [-9]);
    }
}

#[test]
fn a_reader_begins_again_where_the_first_unread_message_does() {
    let mut bench = Bench::new(|c| {
        c.subscription_type = SubscriptionType::Exclusive;
        c.durable = false;
        c.start = StartPosition::Earliest;
    });
    deliver_chunk(&mut bench, 1, "a", 0, 2);
    deliver_chunk(&mut bench, 2, "b", 0, 2);
    deliver_chunk(&mut bench, 3, "c", 0, 2);
    deliver_chunk(&mut bench, 4, "a", 1, 2);
    deliver_chunk(&mut bench, 5, "b", 1, 2);
    // "b" is whole and was not read, "c" is not whole.
    let message = bench.take().unwrap();
    assert_eq!(message.id.entry, 4);
    acknowledge_through(&mut bench, &message.id);
    bench.consumer.detached(bench.now, Detached::ConnectionLost);
    bench.consumer.subscribe(bench.now, &mut bench.wire);
    let subscribe = bench
        .sent(Type::Subscribe)
        .pop()
        .unwrap()
        .subscribe
        .unwrap();
    assert_eq!(subscribe.start_message_id.unwrap().entry_id, 2);
    bench.reply(subscribe.request_id, Ok(success()));
    bench.acked();
    deliver_chunk(&mut bench, 2, "b", 0, 2);
    deliver_chunk(&mut bench, 3, "c", 0, 2);
    deliver_chunk(&mut bench, 4, "a", 1, 2);
    deliver_chunk(&mut bench, 5, "b", 1, 2);
    deliver_chunk(&mut bench, 6, "c", 1, 2);
    let again: Vec<_> = bench.take_all().iter().map(|m| m.id.entry).collect();
    assert_eq!(again, [5, 6]);
}

#[test]
fn a_begun_message_that_does_not_come_again_is_forgotten_in_time() {
    let mut bench = Bench::new(|c| c.subscription_type = SubscriptionType::Exclusive);
    deliver_chunk(&mut bench, 1, "a", 0, 2);
    bench.consumer.detached(bench.now, Detached::ConnectionLost);
    assert_eq!(bench.consumer.poll_timeout(), Some(60 * SECOND));
    bench.advance(60 * SECOND);
    // Nobody is woken for it again, connection or not.
    assert_eq!(
        (
            bench.consumer.poll_timeout(),
            bench.consumer.chunks.pending()
        ),
        (None, 0)
    );
    bench.subscribe();
    bench.advance(SECOND);
    assert!(redelivered(&mut bench).is_empty() && bench.acked().is_empty());
}

#[test]
fn a_cumulative_acknowledgement_leaves_out_nothing_of_its_own_message() {
    let mut bench = Bench::new(|c| c.subscription_type = SubscriptionType::Exclusive);
    // The id is from another process; the message is on its way here.
    deliver_chunk(&mut bench, 1, "a", 0, 3);
    deliver_chunk(&mut bench, 2, "a", 1, 3);
    let id = MessageId {
        first_chunk: Some((1, 1)),
        ..MessageId::entry(1, 3)
    };
    acknowledge_through(&mut bench, &id);
    assert_eq!(acked_how(&mut bench), [-3]);
    deliver_chunk(&mut bench, 3, "a", 2, 3);
    assert!(bench.take().is_none());
}

#[test]
fn a_batch_that_has_to_wait_ends_nothing_of_a_begun_message_before_it() {
    let mut bench = Bench::new(|c| {
        c.subscription_type = SubscriptionType::Exclusive;
        c.batch_index_ack = false;
    });
    bench.deliver(1, build::single("x"), |_| {}).unwrap();
    deliver_chunk(&mut bench, 2, "a", 0, 2);
    bench.deliver(3, build::batch(2), |_| {}).unwrap();
    let taken = bench.take_all();
    acknowledge_through(&mut bench, &taken[1].id);
    assert_eq!(acked_how(&mut bench), [-1]);
    acknowledge_through(&mut bench, &taken[2].id);
    assert_eq!(acked_how(&mut bench), [3]);
}

#[test]
fn what_had_come_of_a_message_stays_known_while_it_comes_again() {
    let mut bench = Bench::new(|c| c.subscription_type = SubscriptionType::Exclusive);
    bench.deliver(1, build::single("x"), |_| {}).unwrap();
    deliver_chunk(&mut bench, 2, "a", 0, 3);
    deliver_chunk(&mut bench, 3, "a", 1, 3);
    bench.deliver(4, build::single("x"), |_| {}).unwrap();
    let taken = bench.take_all();
    for _ in 0..2 {
        reconnect(&mut bench);
        deliver_chunk(&mut bench, 2, "a", 0, 3);
    }
    acknowledge_through(&mut bench, &taken[1].id);
    assert_eq!(acked_how(&mut bench), [-1, 4]);
    deliver_chunk(&mut bench, 3, "a", 1, 3);
    deliver_chunk(&mut bench, 5, "a", 2, 3);
    assert_eq!(bench.take().unwrap().id.entry, 5);
}

#[test]
fn chunks_left_out_of_an_earlier_ledger() {
    let mut acks = super::acks::Acks::new(7, false);
    let mut wire = TestWire::default();
    let at = |ledger, entry| EntryId { ledger, entry };
    let mut through = |id: MessageId, to: Option<EntryId>, left_out: &[EntryId]| {
        let cumulative = to.map(|entry| super::acks::Cumulative { entry, left: None });
        acks.add_cumulative(id, cumulative, left_out.iter().copied().collect());
        acks.flush(&mut wire);
        let sent = wire.sent.drain(..).filter_map(|command| command.ack);
        let named = sent.flat_map(|ack| {
            let one = |id: MessageIdData| (ack.ack_type, id.ledger_id, id.entry_id);
            ack.message_id.into_iter().map(one).collect::<Vec<_>>()
        });
        named.collect::<Vec<_>>()
    };
    // Into a batch that has to wait.
    let id = MessageId {
        batch_index: 0,
        batch_size: 2,
        ..MessageId::entry(2, 0)
    };
    assert_eq!(through(id, None, &[at(1, 5)]), [(1, 1, 4)]);
    let id = MessageId::entry(2, 3);
    let left_out = [at(1, 5), at(2, 2)];
    let sent = through(id, Some(at(2, 3)), &left_out);
    assert_eq!(sent, [(0, 2, 0), (0, 2, 1), (0, 2, 3)]);
    // The first of them ended, and the other did not.
    let id = MessageId::entry(2, 4);
    let sent = through(id, Some(at(2, 4)), &left_out[1..]);
    assert_eq!(sent, [(1, 2, 1), (0, 2, 3), (0, 2, 4)]);
    let id = MessageId::entry(2, 5);
    assert_eq!(through(id, Some(at(2, 5)), &[]), [(1, 2, 5)]);
}

#[test]
fn a_message_that_was_given_up_too_early_comes_again() {
    let mut bench = Bench::new(|c| {
        c.subscription_type = SubscriptionType::Exclusive;
        c.negative_ack_redelivery_delay = SECOND;
    });
    deliver_chunk(&mut bench, 1, "u1", 0, 3);
    bench.advance(60 * SECOND);
    deliver_chunk(&mut bench, 2, "u1", 1, 3);
    bench.advance(10 * SECOND);
    let redelivers = |bench: &mut Bench| {
        let kind = Type::RedeliverUnacknowledgedMessages;
        bench.sent(kind).len()
    };
    assert_eq!(redelivers(&mut bench), 0);
    deliver_chunk(&mut bench, 3, "u1", 2, 3);
    bench.advance(SECOND);
    assert_eq!((redelivers(&mut bench), bench.acked().len()), (1, 0));
    let message = take_chunked(&mut bench, 1, 3);
    bench.ack(&message.id, None);
    assert_eq!(acked(&mut bench), [1, 2, 3]);
}

#[test]
fn a_message_is_not_given_up_while_the_application_takes_nothing() {
    for kind in [SubscriptionType::Shared, SubscriptionType::Exclusive] {
        let mut bench = Bench::new(|c| {
            c.subscription_type = kind;
            c.receiver_queue_size = 2;
        });
        deliver_chunk(&mut bench, 1, "a", 0, 2);
        for entry in [2, 3] {
            bench.deliver(entry, build::single("x"), |_| {}).unwrap();
        }
        for _ in 0..3 {
            bench.advance(60 * SECOND);
            assert!(redelivered(&mut bench).is_empty());
        }
        assert_eq!(bench.take_all().len(), 2);
        deliver_chunk(&mut bench, 4, "a", 1, 2);
        assert_eq!(bench.take().unwrap().id.entry, 4);
    }
}
