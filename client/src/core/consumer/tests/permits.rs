//! Every way a permit can end.

use vela_proto::command_ack::ValidationError;
use vela_proto::{CompressionType, EncryptionKeys};

use super::build::{self, Damage};
use super::*;

/// Granted at the broker less what it charged, when nothing is held and everything was sent.
fn assert_all_back(bench: &mut Bench, charged: u64) {
    let audit = bench.audit();
    assert_eq!(audit.received, charged);
    assert_eq!(audit.held, 0);
    assert_eq!(audit.returned, charged);
    assert_eq!(audit.granted + audit.pending, 100 + charged);
}

#[test]
fn the_first_flow_is_the_whole_queue_then_halves() {
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.flowed(), 100);
    for entry in 0..49 {
        bench.deliver(entry, build::single("x"), |_| {}).unwrap();
        bench.take().unwrap();
    }
    assert_eq!(bench.flowed(), 0);
    bench.deliver(49, build::single("x"), |_| {}).unwrap();
    assert_eq!(bench.flowed(), 0);
    bench.take().unwrap();
    assert_eq!(bench.flowed(), 50);
}

#[test]
fn batches_larger_than_the_queue_come_back_one_by_one() {
    let mut bench = Bench::new(|config| config.receiver_queue_size = 10);
    assert_eq!(bench.flowed(), 10);
    bench.deliver(0, build::batch(100), |_| {}).unwrap();
    let mut back = 0;
    for _ in 0..100 {
        bench.take().unwrap();
        back += bench.flowed();
    }
    assert_eq!(back, 100);
}

#[test]
fn damage_returns_all_and_is_told() {
    for damage in [
        Damage::Payload,
        Damage::Metadata,
        Damage::MetadataSigned,
        Damage::Compression,
    ] {
        let mut bench = Bench::new(|_| {});
        assert_eq!(bench.flowed(), 100);
        for entry in 0..1000 {
            let data = build::damaged(100, damage);
            bench
                .deliver(entry, data, |command| command.message_permits = Some(100))
                .unwrap();
            assert_eq!(bench.flowed(), 100, "{damage:?}");
            let ack = bench.sent(Type::Ack).pop().unwrap().ack.unwrap();
            let error = match damage {
                Damage::Compression => ValidationError::DecompressionError,
                _ => ValidationError::ChecksumMismatch,
            };
            assert_eq!(ack.validation_error, Some(error as i32));
            assert_eq!(ack.message_id[0].entry_id, entry);
        }
        assert_eq!(bench.consumer.stats().damaged, 1000);
        assert!(bench.take().is_none());
        assert_all_back(&mut bench, 100_000);
    }
}

#[test]
fn without_message_permits_the_best_number_known_comes_back() {
    for (damage, charged) in [
        // The metadata can still be read, and its number can be right.
        (Damage::Payload, 100),
        (Damage::Compression, 100),
        (Damage::Metadata, 1),
        (Damage::MetadataSigned, 1),
    ] {
        let mut bench = Bench::new(|_| {});
        bench
            .deliver(0, build::damaged(100, damage), |_| {})
            .unwrap();
        assert_all_back(&mut bench, charged);
        bench
            .deliver(1, build::damaged(100, damage), |c| c.ack_set = vec![0xff])
            .unwrap();
        assert_all_back(&mut bench, charged + 8);
    }
}

#[test]
fn a_batch_that_breaks_off_delivers_its_good_part() {
    let mut bench = Bench::new(|_| {});
    bench
        .deliver(0, build::damaged(10, Damage::Batch), |c| {
            c.message_permits = Some(10);
        })
        .unwrap();
    let acks = bench.sent(Type::Ack);
    let ack = acks[0].ack.as_ref().unwrap();
    assert_eq!(ack.validation_error, Some(3));
    assert_eq!(ack.message_id[0].ack_set, [0b01_1111_1111]);
    let taken = bench.take_all();
    assert_eq!(taken.len(), 9);
    assert_all_back(&mut bench, 10);
    for message in &taken {
        bench.ack(&message.id, None);
    }
    bench.advance(100 * MILLI);
    assert_eq!(bench.acked(), [(0, vec![])]);
}

#[test]
fn wrong_permits_close_the_connection_and_return_nothing() {
    for (sent, set) in [
        (0, vec![]),
        (1 << 31, vec![]),
        (9, vec![]),
        (11, vec![]),
        (10, vec![0x1f]),
    ] {
        let mut bench = Bench::new(|_| {});
        bench.flowed();
        let result = bench.deliver(0, build::batch(10), |command| {
            command.message_permits = Some(sent);
            command.ack_set = set.clone();
        });
        assert!(result.is_err(), "{sent} {set:?}");
        assert_eq!(bench.flowed(), 0);
        assert_eq!(bench.audit().received, 0);
        assert!(bench.take().is_none());
    }
}

#[test]
fn acknowledged_indexes_cost_nothing_and_return_nothing() {
    let mut bench = Bench::new(|_| {});
    bench
        .deliver(0, build::batch(10), |command| {
            command.message_permits = Some(4);
            command.ack_set = vec![0b1111];
        })
        .unwrap();
    let indexes: Vec<_> = bench.take_all().iter().map(|m| m.id.batch_index).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_all_back(&mut bench, 4);
}

#[test]
fn compacted_messages_return_theirs() {
    let mut bench = Bench::new(|_| {});
    let data = build::batch_with(10, |index, single| {
        if index % 2 == 0 {
            single.compacted_out = Some(true);
        }
    });
    bench.deliver(0, data, |_| {}).unwrap();
    let taken = bench.take_all();
    assert_eq!(taken.len(), 5);
    assert_all_back(&mut bench, 10);
    for message in &taken {
        bench.ack(&message.id, None);
    }
    bench.advance(100 * MILLI);
    assert_eq!(bench.acked(), [(0, vec![])]);
}

#[test]
fn encrypted_messages_by_policy() {
    for action in [
        CryptoFailureAction::Fail,
        CryptoFailureAction::Discard,
        CryptoFailureAction::Consume,
    ] {
        let mut bench = Bench::new(|config| config.crypto_failure_action = action);
        let mut metadata = build::metadata();
        metadata.num_messages_in_batch = Some(10);
        metadata.encryption_keys.push(EncryptionKeys {
            key: "k".into(),
            ..EncryptionKeys::default()
        });
        let data = build::entry(&metadata, b"secret");
        bench.deliver(0, data, |_| {}).unwrap();
        let taken = bench.take_all();
        let acked = bench.acked();
        match action {
            CryptoFailureAction::Fail => assert!(taken.is_empty() && acked.is_empty()),
            CryptoFailureAction::Discard => assert!(taken.is_empty() && acked.len() == 1),
            CryptoFailureAction::Consume => {
                assert_eq!(taken.len(), 1);
                assert!(taken[0].encrypted && taken[0].id.batch_index == -1);
            }
        }
        assert_all_back(&mut bench, 10);
    }
}

#[test]
fn every_compression_is_read() {
    for compression in [
        CompressionType::Lz4,
        CompressionType::Zlib,
        CompressionType::Zstd,
        CompressionType::Snappy,
    ] {
        let mut bench = Bench::new(|_| {});
        bench
            .deliver(0, build::compressed_batch(10, compression), |_| {})
            .unwrap();
        let taken = bench.take_all();
        assert_eq!(taken.len(), 10);
        assert_eq!(&taken[3].payload[..], b"m3");
        assert_all_back(&mut bench, 10);
    }
}

#[test]
fn an_old_incarnation_is_owed_nothing() {
    let mut bench = Bench::new(|_| {});
    bench.deliver(0, build::batch(60), |_| {}).unwrap();
    bench.take().unwrap();
    bench.consumer.detached(0, Detached::ClosedByBroker);
    bench.flowed();
    assert!(bench.take().is_none());
    // Late, on the same connection.
    bench.deliver(1, build::batch(60), |_| {}).unwrap();
    assert_eq!(bench.flowed(), 0);
    bench.subscribe();
    assert_eq!(bench.flowed(), 100);
    assert_eq!(bench.audit().received, 0);
}

#[test]
fn pausing_keeps_the_permits() {
    let mut bench = Bench::new(|config| config.start_paused = true);
    assert_eq!(bench.flowed(), 0);
    bench.consumer.resume(&mut bench.wire);
    assert_eq!(bench.flowed(), 100);
    bench.consumer.pause();
    bench.deliver(0, build::batch(80), |_| {}).unwrap();
    assert_eq!(bench.take_all().len(), 80);
    assert_eq!(bench.flowed(), 0);
    bench.consumer.resume(&mut bench.wire);
    assert_eq!(bench.flowed(), 80);
}

#[test]
fn a_queue_of_none_asks_for_one_at_a_time() {
    let mut bench = Bench::new(|config| config.receiver_queue_size = 0);
    assert_eq!(bench.flowed(), 0);
    assert!(bench.take().is_none());
    assert_eq!(bench.flowed(), 1);
    assert!(bench.take().is_none());
    assert_eq!(bench.flowed(), 0);
    // What is damaged is replaced, since it is still wanted.
    bench
        .deliver(0, build::damaged(10, Damage::Payload), |_| {})
        .unwrap();
    assert_eq!(bench.flowed(), 10);
    bench.deliver(1, build::batch(3), |_| {}).unwrap();
    for _ in 0..3 {
        bench.take().unwrap();
        assert_eq!(bench.flowed(), 0);
    }
    assert!(bench.take().is_none());
    assert_eq!(bench.flowed(), 3);
}

#[test]
fn dead_letters_hold_no_permits() {
    let mut bench = Bench::new(|c| c.dead_letter = Some(DeadLetterPolicy::new(2)));
    bench
        .deliver(0, build::batch(3), |c| c.redelivery_count = Some(3))
        .unwrap();
    assert!(bench.take().is_none());
    assert_all_back(&mut bench, 3);
    let events = bench.events();
    let [ConsumerEvent::DeadLetters(messages)] = &events[..] else {
        panic!("{events:?}");
    };
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(&messages[2].payload[..], b"m2");
    // It comes again before it is stored: neither delivered nor given up twice.
    bench
        .deliver(0, build::batch(3), |c| c.redelivery_count = Some(3))
        .unwrap();
    assert!(bench.take().is_none());
    assert!(bench.events().is_empty());
    assert_all_back(&mut bench, 6);
    bench.consumer.acknowledge(0, &ids, None, &mut bench.wire);
    bench.advance(100 * MILLI);
    assert_eq!(bench.acked(), [(0, vec![])]);
}
