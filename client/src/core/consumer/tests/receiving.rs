//! What is delivered and what is not: chunks, redelivery, dead letters, positions.

use super::build;
use super::config::SECOND;
use super::*;

pub(super) fn deliver_chunk(bench: &mut Bench, entry: u64, uuid: &str, index: i32, of: i32) {
    let data = build::chunk(uuid, index, of, of as usize * 2, b"ab");
    bench
        .deliver(entry, data, |c| c.message_permits = Some(1))
        .unwrap();
}

pub(super) fn redelivered(bench: &mut Bench) -> Vec<u64> {
    bench
        .sent(Type::RedeliverUnacknowledgedMessages)
        .into_iter()
        .flat_map(|c| c.redeliver_unacknowledged_messages.unwrap().message_ids)
        .map(|id| id.entry_id)
        .collect()
}

#[test]
fn chunks_become_one_message_and_are_acknowledged_together() {
    let mut bench = Bench::new(|config| config.receiver_queue_size = 2);
    bench.flowed();
    for index in 0..5 {
        assert!(bench.take().is_none());
        deliver_chunk(&mut bench, index, "u", index as i32, 5);
    }
    // All but the last returned theirs.
    assert_eq!(bench.flowed(), 4);
    let message = bench.take().unwrap();
    assert_eq!(bench.flowed(), 1);
    assert_eq!(&message.payload[..], b"ababababab");
    assert_eq!(message.id.first_chunk, Some((1, 0)));
    assert_eq!(message.id.entry, 4);
    bench.ack(&message.id, None);
    bench.advance(100 * MILLI);
    let entries: Vec<_> = bench.acked().into_iter().map(|(entry, _)| entry).collect();
    assert_eq!(entries, [0, 1, 2, 3, 4]);
}

#[test]
fn discarded_chunks_return_their_permits_and_are_asked_for_again() {
    let mut bench = Bench::new(|config| {
        config.max_pending_chunked_messages = 2;
        config.negative_ack_redelivery_delay = SECOND;
    });
    for (entry, uuid) in [(0, "a"), (1, "b"), (2, "c")] {
        deliver_chunk(&mut bench, entry, uuid, 0, 2);
    }
    // "a" was given up; its last chunk has nothing to complete.
    deliver_chunk(&mut bench, 3, "a", 1, 2);
    deliver_chunk(&mut bench, 4, "b", 1, 2);
    deliver_chunk(&mut bench, 5, "c", 1, 2);
    assert_eq!(bench.take_all().len(), 2);
    assert_eq!(bench.audit().returned, 6);
    bench.advance(SECOND);
    assert_eq!(redelivered(&mut bench), [0, 3]);
    deliver_chunk(&mut bench, 0, "a", 0, 2);
    deliver_chunk(&mut bench, 3, "a", 1, 2);
    assert_eq!(bench.take_all().len(), 1);
}

#[test]
fn incomplete_chunks_expire() {
    for auto in [false, true] {
        let mut bench = Bench::new(|c| c.auto_ack_oldest_chunked_message = auto);
        deliver_chunk(&mut bench, 0, "a", 0, 3);
        deliver_chunk(&mut bench, 1, "a", 1, 3);
        assert_eq!(bench.consumer.poll_timeout(), Some(60 * SECOND));
        bench.advance(60 * SECOND);
        bench.advance(SECOND);
        let acked = bench.acked().len();
        bench.advance(60 * SECOND);
        let again = redelivered(&mut bench).len();
        assert_eq!((acked, again), if auto { (2, 0) } else { (0, 2) });
        assert_eq!(bench.consumer.chunks.pending(), 0);
    }
}

#[test]
fn chunks_out_of_order_or_twice() {
    let mut bench = Bench::new(|_| {});
    deliver_chunk(&mut bench, 0, "a", 0, 3);
    deliver_chunk(&mut bench, 1, "a", 1, 3);
    // The producer sent the beginning again.
    deliver_chunk(&mut bench, 2, "a", 0, 3);
    deliver_chunk(&mut bench, 3, "a", 1, 3);
    deliver_chunk(&mut bench, 4, "a", 2, 3);
    assert_eq!(bench.take_all().len(), 1);
    // 0, 1, 3 of another.
    deliver_chunk(&mut bench, 5, "b", 0, 4);
    deliver_chunk(&mut bench, 6, "b", 1, 4);
    deliver_chunk(&mut bench, 7, "b", 3, 4);
    assert!(bench.take().is_none());
    assert_eq!(bench.audit().returned, 8);
    bench.advance(60 * SECOND);
    assert_eq!(redelivered(&mut bench), [5, 6, 7]);
    assert_eq!(bench.acked(), [(2, vec![]), (3, vec![])]);
}

#[test]
fn impossible_chunk_numbers_are_damage() {
    let mut bench = Bench::new(|_| {});
    for (entry, (index, of, total)) in [(3, 3, 4), (-1, 3, 4), (0, 3, 1)].into_iter().enumerate() {
        let data = build::chunk("u", index, of, total, b"ab");
        bench.deliver(entry as u64, data, |_| {}).unwrap();
    }
    assert_eq!(bench.consumer.stats().damaged, 3);
    assert_eq!(bench.audit().returned, 3);
}

#[test]
fn a_nack_is_sent_after_its_delay_in_a_group() {
    let mut bench = Bench::new(|c| c.negative_ack_redelivery_delay = SECOND);
    for entry in 0..3 {
        bench.deliver(entry, build::single("x"), |_| {}).unwrap();
    }
    let taken = bench.take_all();
    for message in &taken {
        bench.consumer.negative_acknowledge(0, &message.id, 0);
    }
    bench.ack(&taken[1].id, None);
    bench.advance(SECOND - 1);
    assert!(redelivered(&mut bench).is_empty());
    bench.advance(1);
    assert_eq!(redelivered(&mut bench), [0, 2]);
    assert_eq!(bench.consumer.poll_timeout(), None);
}

#[test]
fn nack_delays_grow_with_the_count() {
    let backoff = RedeliveryBackoff {
        min: SECOND,
        max: 10 * SECOND,
        multiplier: 2.0,
    };
    let delays: Vec<_> = (0..6).map(|n| backoff.delay(n) / SECOND).collect();
    assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
    let mut bench = Bench::new(|c| c.negative_ack_backoff = Some(backoff));
    bench
        .deliver(0, build::single("x"), |c| c.redelivery_count = Some(2))
        .unwrap();
    let message = bench.take().unwrap();
    let count = message.redelivery_count;
    bench.consumer.negative_acknowledge(0, &message.id, count);
    assert_eq!(bench.consumer.poll_timeout(), Some(4 * SECOND));
}

#[test]
fn a_nack_in_a_batch_brings_back_nothing_acknowledged() {
    for index_ack in [false, true] {
        let mut bench = Bench::new(|c| c.batch_index_ack = index_ack);
        bench.deliver(0, build::batch(10), |_| {}).unwrap();
        let taken: Vec<_> = (0..6).map(|_| bench.take().unwrap()).collect();
        for message in &taken[..5] {
            bench.ack(&message.id, None);
        }
        bench.consumer.negative_acknowledge(0, &taken[5].id, 0);
        bench.advance(60 * SECOND);
        assert_eq!(redelivered(&mut bench), [0]);
        let acked = bench.acked();
        assert_eq!(acked.is_empty(), !index_ack);
        // What was in the queue comes again with it, once.
        assert_eq!(bench.consumer.queued(), 0);
        bench
            .deliver(0, build::batch(10), |c| {
                c.redelivery_count = Some(1);
                if index_ack {
                    c.ack_set = acked[0].1.clone();
                    c.message_permits = Some(5);
                }
            })
            .unwrap();
        let again: Vec<_> = bench.take_all().iter().map(|m| m.id.batch_index).collect();
        assert_eq!(again, [5, 6, 7, 8, 9]);
    }
}

#[test]
fn the_ack_timeout_counts_from_taking() {
    let mut bench = Bench::new(|c| c.ack_timeout = SECOND);
    bench.deliver(0, build::single("x"), |_| {}).unwrap();
    bench.deliver(1, build::single("x"), |_| {}).unwrap();
    assert_eq!(bench.consumer.poll_timeout(), None);
    let acked = bench.take().unwrap();
    bench.advance(SECOND / 2);
    bench.take().unwrap();
    bench.ack(&acked.id, None);
    bench.advance(SECOND);
    assert_eq!(redelivered(&mut bench), [1]);
}

#[test]
fn redelivery_of_all_raises_the_epoch_on_exclusive() {
    let mut bench = Bench::new(|c| c.subscription_type = SubscriptionType::Exclusive);
    for entry in 0..3 {
        bench
            .deliver(entry, build::single("x"), |c| c.consumer_epoch = Some(0))
            .unwrap();
    }
    bench.take().unwrap();
    bench.consumer.redeliver_unacknowledged(&mut bench.wire);
    let sent = bench.sent(Type::RedeliverUnacknowledgedMessages);
    let sent = sent[0].redeliver_unacknowledged_messages.as_ref().unwrap();
    assert_eq!(sent.consumer_epoch, Some(1));
    assert!(bench.take().is_none());
    // Still under way.
    bench
        .deliver(3, build::single("x"), |c| c.consumer_epoch = Some(0))
        .unwrap();
    assert!(bench.take().is_none());
    bench
        .deliver(0, build::single("x"), |c| c.consumer_epoch = Some(1))
        .unwrap();
    assert!(bench.take().is_some());
    assert_eq!(bench.audit().returned, 5);
    // A nack there means the same.
    bench.deliver(1, build::single("x"), |_| {}).unwrap();
    let message = bench.take().unwrap();
    bench
        .consumer
        .negative_acknowledge(bench.now, &message.id, 0);
    bench.advance(60 * SECOND);
    let sent = bench.sent(Type::RedeliverUnacknowledgedMessages);
    let sent = sent[0].redeliver_unacknowledged_messages.as_ref().unwrap();
    assert_eq!((sent.message_ids.len(), sent.consumer_epoch), (0, Some(2)));
}

#[test]
fn the_last_delivery_is_given_up_when_nacked() {
    let mut bench = Bench::new(|c| c.dead_letter = Some(DeadLetterPolicy::new(2)));
    bench
        .deliver(0, build::batch(3), |c| c.redelivery_count = Some(2))
        .unwrap();
    let taken = bench.take_all();
    assert_eq!(taken.len(), 3);
    bench.events();
    bench.ack(&taken[0].id, None);
    bench.consumer.negative_acknowledge(0, &taken[1].id, 2);
    bench.advance(60 * SECOND);
    // Only that one, and nothing is asked for again: its neighbours are with the application.
    assert!(redelivered(&mut bench).is_empty());
    let events = bench.events();
    let [ConsumerEvent::DeadLetters(messages)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].id, taken[1].id);
    // It could not be stored.
    bench
        .consumer
        .dead_letters_failed(&[taken[1].id], &mut bench.wire);
    assert_eq!(redelivered(&mut bench), [0]);
}

#[test]
fn a_reader_starts_within_a_batch_and_goes_on_behind_what_it_took() {
    for inclusive in [false, true] {
        let start = MessageId {
            batch_index: 3,
            batch_size: 10,
            ..MessageId::entry(1, 5)
        };
        let mut bench = Bench::new(|config| {
            config.subscription_type = SubscriptionType::Exclusive;
            config.durable = false;
            config.start = StartPosition::Message {
                id: start,
                inclusive,
            };
        });
        bench.deliver(4, build::single("x"), |_| {}).unwrap();
        bench.deliver(5, build::batch(10), |_| {}).unwrap();
        bench.deliver(6, build::batch(10), |_| {}).unwrap();
        let first = bench.take().unwrap();
        assert_eq!(first.id.batch_index, if inclusive { 3 } else { 4 });
        let second = bench.take().unwrap();
        bench.consumer.detached(0, Detached::ConnectionLost);
        bench.consumer.subscribe(0, &mut bench.wire);
        let subscribe = bench.sent(Type::Subscribe).pop().unwrap();
        let subscribe = subscribe.subscribe.unwrap();
        let from = subscribe.start_message_id.unwrap();
        assert_eq!(
            (from.entry_id, from.batch_index),
            (5, Some(second.id.batch_index))
        );
        bench.reply(subscribe.request_id, Ok(success()));
        bench.deliver(5, build::batch(10), |_| {}).unwrap();
        let next = bench.take().unwrap();
        assert_eq!(next.id.batch_index, second.id.batch_index + 1);
    }
}

#[test]
fn what_the_broker_says_is_passed_on() {
    let mut bench = Bench::new(|_| {});
    let mut command = success();
    command.active_consumer_change = Some(vela_proto::CommandActiveConsumerChange {
        consumer_id: 7,
        is_active: Some(true),
    });
    bench.consumer.handle_command(0, &command, &mut bench.wire);
    let mut command = success();
    command.reached_end_of_topic = Some(vela_proto::CommandReachedEndOfTopic { consumer_id: 7 });
    bench.consumer.handle_command(0, &command, &mut bench.wire);
    let events = bench.events();
    assert!(matches!(
        events[..],
        [ConsumerEvent::Active(true), ConsumerEvent::EndOfTopic]
    ));
}
