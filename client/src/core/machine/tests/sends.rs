//! Sends: their entries, their receipts, their faults.

use super::*;
use vela_codec::batch::BatchReader;
use vela_codec::compress;
use vela_codec::entry::Entry;
use vela_proto::CompressionType;

use crate::message::MessageKey;

fn keyed(payload: &str, key: &str) -> OutgoingMessage {
    OutgoingMessage {
        key: Some(MessageKey::text(key)),
        ..OutgoingMessage::new(payload.to_owned())
    }
}

fn metadata(entry: &Bytes) -> proto::MessageMetadata {
    let entry = Entry::parse(entry).unwrap();
    entry.verify_checksum().unwrap();
    entry.decode_metadata().unwrap()
}

fn payloads(entry: &Bytes) -> Vec<(Option<u64>, String)> {
    let parsed = Entry::parse(entry).unwrap();
    let metadata = parsed.decode_metadata().unwrap();
    let batch = BatchReader::new(parsed.payload, metadata.num_messages_in_batch());
    let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
    batch
        .map(|message| message.unwrap())
        .map(|message| (message.metadata.sequence_id, text(message.payload)))
        .collect()
}

#[test]
fn a_batch_goes_when_it_is_full_or_its_time_has_come() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(batched(3));
    for ticket in 0..4 {
        bench.send(key, &format!("m{ticket}"), ticket);
    }
    let (send, entry) = bench.sent(conn);
    assert_eq!(
        (
            send.sequence_id,
            send.highest_sequence_id,
            send.num_messages
        ),
        (0, Some(2), Some(3))
    );
    let of_batch = metadata(&entry);
    assert_eq!(
        (of_batch.sequence_id, of_batch.highest_sequence_id),
        (0, Some(2))
    );
    assert_eq!(of_batch.publish_time, 1_000_000);
    assert_eq!(
        payloads(&entry),
        [
            (Some(0), "m0".into()),
            (Some(1), "m1".into()),
            (Some(2), "m2".into())
        ]
    );
    bench.silent();
    bench.pass(1);
    // Alone in its batch, it is a message of its own.
    let (send, entry) = bench.sent(conn);
    assert_eq!((send.sequence_id, send.num_messages), (3, None));
    assert_eq!(metadata(&entry).num_messages_in_batch, None);
    assert_eq!(Entry::parse(&entry).unwrap().payload, b"m3");
    bench.receipt(conn, key, 0, 10);
    let Event::Sends(done) = bench.event() else {
        panic!("no end");
    };
    let ids: Vec<_> = done
        .each()
        .map(|(ticket, id)| (ticket, id.unwrap()))
        .collect();
    let of = |index| crate::MessageId {
        batch_index: index,
        batch_size: 3,
        ..crate::MessageId::entry(7, 10)
    };
    assert_eq!(ids, [(0, of(0)), (1, of(1)), (2, of(2))]);
    bench.receipt(conn, key, 3, 11);
    assert_eq!(bench.ends(), (vec![3], Ok(11)));
}

#[test]
fn a_batch_goes_before_it_is_larger_than_it_may_be() {
    let mut bench = Bench::new();
    let batching = Batching {
        max_bytes: 1_000,
        ..Batching::default()
    };
    let (key, conn) = bench.producer(ProducerConfig {
        batching: Some(batching),
        ..batched(1)
    });
    for ticket in 0..3 {
        bench.send(key, &"x".repeat(400), ticket);
    }
    let (send, entry) = bench.sent(conn);
    assert_eq!(send.num_messages, Some(2));
    assert!(Entry::parse(&entry).unwrap().payload.len() <= 1_000);
    bench.silent();
}

#[test]
fn batches_by_key_hold_one_key_each_and_have_sequence_ids_in_a_row() {
    let mut bench = Bench::new();
    let batching = Batching {
        by_key: true,
        max_messages: 4,
        ..Batching::default()
    };
    let (key, conn) = bench.producer(ProducerConfig {
        batching: Some(batching),
        ..batched(1)
    });
    for (ticket, (payload, of)) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")]
        .into_iter()
        .enumerate()
    {
        let message = keyed(payload, of);
        bench.machine.send(0, key, message, ticket as u64).unwrap();
    }
    let (send, entry) = bench.sent(conn);
    assert_eq!((send.sequence_id, send.highest_sequence_id), (0, Some(1)));
    assert_eq!(metadata(&entry).partition_key.as_deref(), Some("a"));
    assert_eq!(
        payloads(&entry),
        [(Some(0), "1".into()), (Some(1), "3".into())]
    );
    let (send, entry) = bench.sent(conn);
    assert_eq!((send.sequence_id, send.highest_sequence_id), (2, Some(3)));
    assert_eq!(metadata(&entry).partition_key.as_deref(), Some("b"));
    bench.receipt(conn, key, 0, 1);
    assert_eq!(bench.ends().0, [0, 2]);
    bench.receipt(conn, key, 2, 2);
    assert_eq!(bench.ends().0, [1, 3]);
}

#[test]
fn a_delayed_message_goes_alone_and_in_its_place() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(batched(10));
    bench.send(key, "before", 0);
    let delayed = OutgoingMessage {
        deliver_at: Some(5),
        ..OutgoingMessage::new("delayed")
    };
    bench.machine.send(0, key, delayed, 1).unwrap();
    bench.send(key, "after", 2);
    let (first, _) = bench.sent(conn);
    let (second, entry) = bench.sent(conn);
    assert_eq!((first.sequence_id, second.sequence_id), (0, 1));
    assert_eq!(metadata(&entry).deliver_at_time, Some(5));
    bench.silent();
}

#[test]
fn compression_is_of_the_whole_payload() {
    for compression in [
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ] {
        let mut bench = Bench::new();
        let (key, conn) = bench.producer(ProducerConfig {
            compression,
            ..plain()
        });
        let text = "again and ".repeat(100);
        bench.send(key, &text, 0);
        let (_, entry) = bench.sent(conn);
        let metadata = metadata(&entry);
        assert_eq!(metadata.compression(), compression);
        let payload = Entry::parse(&entry).unwrap().payload;
        assert!(payload.len() < text.len());
        let size = metadata.uncompressed_size() as usize;
        let plain = compress::decompress(compression, payload, size, 1 << 20).unwrap();
        assert_eq!(plain, text.as_bytes());
    }
}

#[test]
fn chunks_fit_and_share_a_uuid_and_end_together() {
    let mut bench = Bench::new();
    bench.max_message_size = 1_000;
    let (key, conn) = bench.producer(ProducerConfig {
        chunking: true,
        ..plain()
    });
    let text: String = (0..2_500)
        .map(|i| char::from(b'a' + (i % 26) as u8))
        .collect();
    bench.send(key, &text, 9);
    let mut whole = Vec::new();
    let mut count = 0;
    bench.look();
    while !bench.said.is_empty() {
        let (send, entry) = bench.sent(conn);
        assert!(send.is_chunk() && send.sequence_id == 0);
        assert!(entry.len() <= 1_000, "{} bytes", entry.len());
        let metadata = metadata(&entry);
        assert_eq!(metadata.uuid.as_deref(), Some("given-0"));
        assert_eq!(metadata.chunk_id, Some(count));
        assert_eq!(metadata.total_chunk_msg_size, Some(2_500));
        whole.extend_from_slice(Entry::parse(&entry).unwrap().payload);
        count += 1;
        bench.look();
    }
    assert_eq!(whole, text.as_bytes());
    assert!(count >= 3);
    for chunk in 0..count {
        bench.look();
        assert!(bench.events.is_empty());
        bench.receipt(conn, key, 0, 20 + chunk as u64);
    }
    let Event::Sends(done) = bench.event() else {
        panic!("no end");
    };
    let (ticket, id) = done.each().next().unwrap();
    let id = id.unwrap();
    assert_eq!(
        (ticket, id.entry, id.first_chunk),
        (9, 19 + count as u64, Some((7, 20)))
    );
    // A small one is not cut.
    bench.send(key, "small", 10);
    assert!(!bench.sent(conn).0.is_chunk());
}

#[test]
fn a_message_in_chunks_fails_as_one() {
    let mut bench = Bench::new();
    bench.max_message_size = 1_000;
    let (key, conn) = bench.producer(ProducerConfig {
        chunking: true,
        ..plain()
    });
    bench.send(key, &"x".repeat(3_000), 1);
    bench.send(key, "next", 2);
    bench.look();
    bench.said.clear();
    bench.receipt(conn, key, 0, 1);
    bench.send_error(conn, key, 0, ServerError::NotAllowedError);
    let (sends, result) = bench.ends();
    assert_eq!(sends, [1]);
    assert!(matches!(
        result,
        Err(Error::Broker {
            code: ServerError::NotAllowedError,
            ..
        })
    ));
    // Receipts of the chunks behind are late.
    bench.receipt(conn, key, 0, 2);
    bench.receipt(conn, key, 1, 3);
    assert_eq!(bench.ends(), (vec![2], Ok(3)));
}

#[test]
fn an_older_receipt_is_nobodys_and_a_newer_one_ends_the_connection() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    for ticket in 0..3 {
        bench.send(key, "x", ticket);
        bench.sent(conn);
    }
    bench.receipt(conn, key, 0, 1);
    assert_eq!(bench.ends().0, [0]);
    bench.receipt(conn, key, 0, 1);
    bench.silent();
    bench.receipt(conn, key, 2, 2);
    assert!(matches!(bench.event(), Event::Disconnect { .. }));
    bench.pass(100);
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    bench.accept(conn);
    assert_eq!(bench.sent(conn).0.sequence_id, 1);
    assert_eq!(bench.sent(conn).0.sequence_id, 2);
}

#[test]
fn a_receipt_without_a_place_is_a_success_all_the_same() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    bench.send(key, "x", 0);
    bench.sent(conn);
    let mut out = BytesMut::new();
    encode::send_receipt(&mut out, key.0, 0, 0, u64::MAX, u64::MAX);
    bench.machine.handle_bytes(0, conn, out.freeze());
    assert_eq!(bench.ends(), (vec![0], Ok(u64::MAX)));
}

#[test]
fn not_allowed_fails_one_message_only() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    for ticket in 0..3 {
        bench.send(key, "x", ticket);
        bench.sent(conn);
    }
    bench.receipt(conn, key, 0, 1);
    bench.send_error(conn, key, 1, ServerError::NotAllowedError);
    bench.receipt(conn, key, 2, 2);
    assert_eq!(bench.ends(), (vec![0], Ok(1)));
    assert!(bench.ends().1.is_err());
    assert_eq!(bench.ends(), (vec![2], Ok(2)));
}

#[test]
fn what_the_broker_could_not_store_is_sent_again_by_a_producer_opened_anew() {
    for error in [ServerError::PersistenceError, ServerError::ChecksumError] {
        let mut bench = Bench::new();
        let (key, conn) = bench.producer(plain());
        for ticket in 0..2 {
            bench.send(key, "x", ticket);
            bench.sent(conn);
        }
        bench.send_error(conn, key, 0, error);
        let close = bench
            .hear(conn, Type::CloseProducer)
            .0
            .close_producer
            .unwrap();
        // A receipt of before, ahead of what is missing: it will come again.
        bench.receipt(conn, key, 1, 9);
        bench.silent();
        bench.succeed(conn, close.request_id);
        bench.pass(100);
        bench.locate(conn, URL);
        assert_eq!(bench.accept(conn).epoch(), 1);
        assert_eq!(bench.sent(conn).0.sequence_id, 0);
        assert_eq!(bench.sent(conn).0.sequence_id, 1);
        bench.receipt(conn, key, 0, 10);
        bench.receipt(conn, key, 1, 11);
        assert_eq!(bench.ends(), (vec![0], Ok(10)));
        assert_eq!(bench.ends(), (vec![1], Ok(11)));
    }
}

#[test]
fn a_terminated_topic_and_a_fence_are_the_end_for_all() {
    let cases = [
        (ServerError::TopicTerminatedError, "the topic is terminated"),
        (ServerError::ProducerFenced, "the producer was fenced"),
    ];
    for (code, text) in cases {
        let mut bench = Bench::new();
        let (key, conn) = bench.producer(plain());
        for ticket in 0..2 {
            bench.send(key, "x", ticket);
            bench.sent(conn);
        }
        bench.send_error(conn, key, 0, code);
        for ticket in 0..2 {
            let (sends, result) = bench.ends();
            assert_eq!(sends, [ticket]);
            assert!(result.unwrap_err().to_string().starts_with(text));
        }
        assert!(matches!(bench.event(), Event::ProducerFailed { .. }));
        let refused = bench
            .machine
            .send(0, key, OutgoingMessage::new("x"), 5)
            .unwrap_err();
        assert_eq!(
            (refused.ticket, refused.error),
            (5, Error::Closed("the producer"))
        );
    }
}

#[test]
fn sends_before_the_producer_is_open_wait_for_it_or_end_with_it() {
    let mut bench = Bench::new();
    let key = bench.machine.open_producer(0, batched(2)).unwrap();
    for ticket in 0..3 {
        bench.send(key, &ticket.to_string(), ticket);
    }
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let producer = bench.hear(conn, Type::Producer).0.producer.unwrap();
    bench.silent();
    // The broker knows of sequence ids up to 41: the first is 42.
    bench.produce(conn, &producer, |success| {
        success.last_sequence_id = Some(41)
    });
    let (send, _) = bench.sent(conn);
    assert_eq!((send.sequence_id, send.highest_sequence_id), (42, Some(43)));
    assert!(matches!(
        bench.event(),
        Event::ProducerOpened {
            last_sequence_id: 41,
            ..
        }
    ));

    let mut bench = Bench::new();
    let key = bench.machine.open_producer(0, batched(2)).unwrap();
    for ticket in 0..3 {
        bench.send(key, &ticket.to_string(), ticket);
    }
    let conn = bench.connect(URL);
    bench.locate(conn, URL);
    let producer = bench.hear(conn, Type::Producer).0.producer.unwrap();
    bench.refuse(conn, producer.request_id, ServerError::AuthorizationError);
    assert_eq!(bench.ends().0, [0, 1]);
    assert_eq!(bench.ends().0, [2]);
    assert!(matches!(bench.event(), Event::ProducerFailed { .. }));
    assert_eq!(bench.machine.pending(key), 0);
    // It is not remembered: another is asked for anew, on the same connection.
    bench.machine.open_producer(bench.now, batched(2)).unwrap();
    bench.locate(conn, URL);
    bench.accept(conn);
    assert!(matches!(bench.event(), Event::ProducerOpened { .. }));
}

#[test]
fn sends_time_out_each_at_its_time() {
    let mut bench = Bench::new();
    let config = ProducerConfig {
        send_timeout: 100 * MILLIS,
        ..plain()
    };
    let (key, conn) = bench.producer(config);
    bench.send(key, "a", 0);
    bench.pass(50);
    bench.send(key, "b", 1);
    bench.sent(conn);
    bench.sent(conn);
    bench.pass(49);
    bench.silent();
    bench.pass(1);
    let (sends, result) = bench.ends();
    assert_eq!(sends, [0]);
    assert_eq!(
        result.unwrap_err(),
        Error::Timeout {
            what: "a send",
            millis: 100
        }
    );
    bench.receipt(conn, key, 0, 1);
    bench.silent();
    bench.receipt(conn, key, 1, 2);
    assert_eq!(bench.ends(), (vec![1], Ok(2)));
}

#[test]
fn a_flush_ends_when_everything_before_it_has() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(batched(10));
    let flush = bench.machine.flush(key).unwrap();
    assert!(matches!(bench.event(), Event::Flushed { flush: which, .. } if which == flush));
    bench.send(key, "a", 0);
    let flush = bench.machine.flush(key).unwrap();
    bench.sent(conn);
    bench.send(key, "b", 1);
    bench.pass(1);
    bench.sent(conn);
    bench.silent();
    bench.receipt(conn, key, 0, 1);
    assert_eq!(bench.ends().0, [0]);
    assert!(matches!(bench.event(), Event::Flushed { flush: which, .. } if which == flush));
    bench.silent();
}

#[test]
fn closing_a_producer_ends_its_sends_and_then_it() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(batched(10));
    bench.send(key, "a", 0);
    bench.machine.close_producer(bench.now, key);
    assert_eq!(bench.ends(), (vec![0], Err(Error::Closed("the producer"))));
    let close = bench
        .hear(conn, Type::CloseProducer)
        .0
        .close_producer
        .unwrap();
    bench.silent();
    bench.succeed(conn, close.request_id);
    assert!(matches!(bench.event(), Event::ProducerClosed { .. }));
    // One whose connection goes first is closed with it.
    let key = bench.machine.open_producer(bench.now, plain()).unwrap();
    bench.locate(conn, URL);
    bench.accept(conn);
    bench.event();
    bench.machine.close_producer(bench.now, key);
    bench.hear(conn, Type::CloseProducer);
    bench.machine.connection_lost(bench.now, conn, "cut");
    assert!(matches!(bench.event(), Event::ProducerClosed { .. }));
    bench.pass(60_000);
    bench.silent();
}

#[test]
fn a_producer_that_retires_is_closed_behind_its_last_send() {
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(batched(10));
    bench.send(key, "a", 0);
    bench.machine.retire_producer(bench.now, key);
    let refused = bench
        .machine
        .send(bench.now, key, OutgoingMessage::new("b"), 1);
    assert_eq!(refused.unwrap_err().error, Error::Closed("the producer"));
    bench.sent(conn);
    bench.pass(100);
    bench.silent();
    bench.receipt(conn, key, 0, 1);
    assert_eq!(bench.ends(), (vec![0], Ok(1)));
    bench.machine.handle_timeout(bench.now);
    let close = bench
        .hear(conn, Type::CloseProducer)
        .0
        .close_producer
        .unwrap();
    bench.succeed(conn, close.request_id);
    assert!(matches!(bench.event(), Event::ProducerClosed { .. }));
    // One without sends goes at once, and one whose sends time out behind them.
    let (other, limit) = (plain(), 100 * MILLIS);
    let other = ProducerConfig {
        send_timeout: limit,
        ..other
    };
    let key = bench.machine.open_producer(bench.now, other).unwrap();
    bench.locate(conn, URL);
    bench.accept(conn);
    bench.event();
    bench.send(key, "c", 2);
    bench.sent(conn);
    bench.machine.retire_producer(bench.now, key);
    bench.silent();
    bench.pass(100);
    assert!(bench.ends().1.is_err());
    bench.hear(conn, Type::CloseProducer);
}

#[test]
fn limits_that_exclude_each_other_are_refused_when_built() {
    let both = ProducerConfig {
        admitted_upstream: true,
        max_pending_messages: 5,
        ..plain()
    };
    let mut bench = Bench::new();
    let error = bench.machine.open_producer(0, both).unwrap_err();
    assert!(matches!(
        error,
        Error::Config {
            setting: "max_pending_messages",
            ..
        }
    ));
    let both = ProducerConfig {
        chunking: true,
        ..batched(5)
    };
    let error = bench.machine.open_producer(0, both).unwrap_err();
    assert!(matches!(
        error,
        Error::Config {
            setting: "chunking",
            ..
        }
    ));
    bench.silent();
}

#[test]
fn a_connection_that_does_not_drain_takes_no_more_than_its_bound() {
    use super::super::super::MAX_UNSENT;
    let mut bench = Bench::new();
    let (key, conn) = bench.producer(plain());
    let other = bench.machine.open_producer(0, plain()).unwrap();
    bench.locate(conn, URL);
    bench.accept(conn);
    bench.event();
    let text = "x".repeat(100_000);
    for ticket in 0..30 {
        let producer = if ticket % 2 == 0 { key } else { other };
        bench.send(producer, &text, ticket);
    }
    let unsent = bench.machine.unsent(conn);
    assert!(unsent < MAX_UNSENT + 101_000, "{unsent} bytes");
    // As it drains, both go on, in turn.
    bench.look();
    let mut counts = BTreeMap::new();
    while !bench.said.is_empty() {
        let (send, _) = bench.sent(conn);
        *counts.entry(send.producer_id).or_insert(0) += 1;
    }
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [15, 15]);
}
