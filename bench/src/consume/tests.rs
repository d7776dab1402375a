//! Deliveries, as a broker would send them, against what a consumer must notice and answer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use vela_codec::encode::{MessageHead, message_head};

use super::*;
use crate::message::{FIRST_SEQUENCE, Template};
use crate::wire::Input;

const SIZE: usize = 100;

fn consumers(kind: SubscriptionType, count: u64) -> Consumers {
    let args = SubscriptionArgs {
        subscription: "s".into(),
        subscription_type: kind,
        consumers: 1,
        receiver_queue: 10,
        ack_group: 4,
    };
    let each = (0..count).map(|id| Consumer::new(id, id as usize));
    Consumers::new(each.collect(), &args, Some(1)).unwrap()
}

/// The entry that a producer of a run sends with this sequence id.
fn entry(run: u32, producer: u32, sequence: u64, batch: usize) -> Vec<u8> {
    let mut out = BytesMut::new();
    Template::new(0, "p", (run, producer), SIZE, batch, 1_700_000_000_000)
        .unwrap()
        .write(sequence, 1_700_000_000_000, 1000, &mut out);
    let mut input = Input::new(out.len());
    input.space()[..out.len()].copy_from_slice(&out);
    input.filled(out.len());
    input.next().unwrap().unwrap().rest.to_vec()
}

/// Delivers an entry to a consumer; answers what the consumer sends back.
fn deliver(
    consumers: &mut Consumers,
    consumer_id: u64,
    position: u64,
    redelivery_count: u32,
    permits: u32,
    entry: &[u8],
) -> Result<Vec<BaseCommand>> {
    let mut frame = BytesMut::new();
    let head = MessageHead {
        consumer_id,
        ledger: 3,
        entry: position,
        partition: -1,
        redelivery_count,
        ack_set: &[],
        consumer_epoch: None,
        permits,
    };
    message_head(&mut frame, &head, entry.len());
    frame.extend_from_slice(entry);
    let mut out = BytesMut::new();
    for raw in frames(&frame) {
        let raw = RawFrame {
            command: &raw.0,
            rest: &raw.1,
        };
        consumers.handle(raw, &mut out, 5000)?;
    }
    Ok(frames(&out)
        .iter()
        .map(|(command, _)| decode_command(command).unwrap())
        .collect())
}

fn frames(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut input = Input::new(bytes.len().max(1));
    input.space()[..bytes.len()].copy_from_slice(bytes);
    input.filled(bytes.len());
    let mut frames = Vec::new();
    while let Some(frame) = input.next().unwrap() {
        frames.push((frame.command.to_vec(), frame.rest.to_vec()));
    }
    frames
}

fn plain(consumers: &mut Consumers, consumer: u64, sequence: u64) -> Result<Vec<BaseCommand>> {
    let entry = entry(1, 0, sequence, 1);
    deliver(consumers, consumer, sequence, 0, 1, &entry)
}

#[test]
fn messages_in_order_are_counted_acknowledged_and_paid_for() {
    let mut all = consumers(SubscriptionType::Exclusive, 1);
    all.measure(1000..1001);
    let mut answers = Vec::new();
    for i in 0..10 {
        answers.extend(plain(&mut all, 0, FIRST_SEQUENCE + i).unwrap());
    }
    assert_eq!(all.counts.received, 10);
    assert_eq!(all.counts.payload_bytes, 10 * SIZE as u64);
    assert_eq!(all.missing(), 0);
    assert_eq!(all.latencies.summary().messages, 10);
    assert!((3.99..4.01).contains(&all.latencies.summary().max));
    // Half of the 10 permits at a time, and 4 acknowledgements at a time.
    let flows: Vec<_> = answers.iter().filter_map(|c| c.flow.as_ref()).collect();
    assert_eq!(flows.len(), 2);
    assert!(flows.iter().all(|flow| flow.message_permits == 5));
    let acks: Vec<_> = answers.iter().filter_map(|c| c.ack.as_ref()).collect();
    assert_eq!(acks.len(), 2);
    let ids = acks.iter().flat_map(|ack| &ack.message_id);
    assert!(
        ids.map(|id| (id.ledger_id, id.entry_id))
            .eq((0..8).map(|i| (3, FIRST_SEQUENCE + i)))
    );
}

#[test]
fn an_exclusive_consumer_notices_a_lost_message() {
    let mut all = consumers(SubscriptionType::Exclusive, 1);
    plain(&mut all, 0, FIRST_SEQUENCE).unwrap();
    let fault = plain(&mut all, 0, FIRST_SEQUENCE + 2).unwrap_err();
    assert!(fault.0.contains("1 lost"), "{fault}");
}

#[test]
fn a_repetition_is_noticed_unless_it_is_called_one() {
    for kind in [
        SubscriptionType::Exclusive,
        SubscriptionType::Shared,
        SubscriptionType::KeyShared,
    ] {
        let mut all = consumers(kind, 1);
        plain(&mut all, 0, FIRST_SEQUENCE).unwrap();
        let again = entry(1, 0, FIRST_SEQUENCE, 1);
        deliver(&mut all, 0, 1, 1, 1, &again).unwrap();
        assert_eq!((all.counts.received, all.counts.redelivered), (1, 1));
        assert!(deliver(&mut all, 0, 1, 0, 1, &again).is_err());
    }
}

#[test]
fn consumers_that_share_may_leave_each_other_gaps() {
    let mut all = consumers(SubscriptionType::Shared, 2);
    for i in [0, 2, 4] {
        plain(&mut all, 0, FIRST_SEQUENCE + i).unwrap();
    }
    assert_eq!(all.missing(), 2);
    for i in [1, 3] {
        plain(&mut all, 1, FIRST_SEQUENCE + i).unwrap();
    }
    assert_eq!(all.missing(), 0);
}

#[test]
fn messages_of_a_batch_are_told_apart() {
    let mut all = consumers(SubscriptionType::Exclusive, 1);
    let mut answers = Vec::new();
    for (position, i) in [(0, 0), (1, 5)] {
        let batch = entry(1, 0, FIRST_SEQUENCE + i, 5);
        answers.extend(deliver(&mut all, 0, position, 0, 5, &batch).unwrap());
    }
    assert_eq!(all.counts.received, 10);
    let permits: u32 = answers
        .iter()
        .filter_map(|c| c.flow.as_ref())
        .map(|flow| flow.message_permits)
        .sum();
    assert_eq!(permits, 10);
}

#[test]
fn altered_bytes_are_noticed_with_and_without_checksum() {
    let mut all = consumers(SubscriptionType::Exclusive, 1);
    let mut altered = entry(1, 0, FIRST_SEQUENCE, 1);
    let last = altered.len() - 1;
    altered[last] ^= 1;
    assert!(deliver(&mut all, 0, 0, 0, 1, &altered).is_err());
    // Without magic and checksum: the pattern is left to compare with.
    assert!(deliver(&mut all, 0, 0, 0, 1, &altered[6..]).is_err());
    altered[last] ^= 1;
    deliver(&mut all, 0, 0, 0, 1, &altered[6..]).unwrap();
}

#[test]
fn leftovers_of_other_runs_do_not_count() {
    let mut all = consumers(SubscriptionType::Exclusive, 1);
    let answers = deliver(&mut all, 0, 0, 0, 5, &entry(2, 0, FIRST_SEQUENCE + 7, 5)).unwrap();
    assert_eq!((all.counts.received, all.counts.foreign), (0, 5));
    assert_eq!(answers[0].flow.as_ref().unwrap().message_permits, 5);
}
