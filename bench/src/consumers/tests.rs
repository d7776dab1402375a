//! Deliveries, as a broker would send them, against what consumers must notice and answer.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use vela_codec::encode::{MessageHead, message_head};
use vela_proto::BaseCommand;

use super::*;
use crate::message::{Body, FIRST_SEQUENCE, Template};
use crate::wire::Input;

const SIZE: usize = 100;
const RUN: u32 = 1;
/// Where the payload's checksum stands behind the entry's magic, checksum and metadata is not fixed; its last byte is.
const LAST: usize = 1;

fn conduct(ordered: bool) -> Conduct {
    Conduct {
        run: Some(RUN),
        ordered,
        queue: 10,
        ack_group: 4,
        topics: vec!["t-0".to_owned(), "t-1".to_owned()].into(),
        subscriptions: vec!["s-0".to_owned(), "s-1".to_owned()].into(),
        slow_from: 1,
        slow_rate: 3,
    }
}

fn consumer(topic: u32, subscription: u32) -> ConsumerPart {
    ConsumerPart {
        link: 0,
        topic,
        subscription,
    }
}

fn consumers(ordered: bool, parts: &[ConsumerPart]) -> Consumers {
    let mut all = Consumers::new(parts, conduct(ordered)).unwrap();
    all.latencies.measured = 1000..1001;
    all
}

/// The entry that a device's message is, or a batch of them.
fn entry(run: u32, (device, sequence): (u32, u64), batch: usize) -> Vec<u8> {
    let body = Arc::new(Body::new(SIZE));
    let mut out = BytesMut::new();
    Template::new(0, "p", (run, 0), &body, batch, true, 1_700_000_000_000)
        .unwrap()
        .write(
            FIRST_SEQUENCE + sequence,
            1_700_000_000_000,
            1000,
            (device, sequence),
            &mut out,
        );
    frames(&out)[0].1.clone()
}

/// Delivers an entry to a consumer; answers what the consumer sends back.
fn deliver(
    all: &mut Consumers,
    id: u64,
    position: u64,
    redelivered: u32,
    entry: &[u8],
) -> Vec<BaseCommand> {
    let mut frame = BytesMut::new();
    let head = MessageHead {
        consumer_id: id,
        ledger: 3,
        entry: position,
        partition: -1,
        redelivery_count: redelivered,
        ack_set: &[],
        consumer_epoch: None,
        permits: 1,
    };
    message_head(&mut frame, &head, entry.len());
    frame.extend_from_slice(entry);
    let mut out = BytesMut::new();
    for (command, rest) in frames(&frame) {
        let raw = RawFrame {
            command: &command,
            rest: &rest,
        };
        all.handle(raw, &mut out, 5000).unwrap();
    }
    let answers = frames(&out);
    answers
        .iter()
        .map(|(command, _)| decode_command(command).unwrap())
        .collect()
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

/// Delivers a device's messages in this order to the first consumer.
fn sequences(all: &mut Consumers, device: u32, sequences: &[u64]) {
    for &sequence in sequences {
        deliver(all, 0, sequence, 0, &entry(RUN, (device, sequence), 1));
    }
}

#[test]
fn messages_in_order_are_counted_acknowledged_and_paid_for() {
    let mut all = consumers(true, &[consumer(0, 0)]);
    let mut answers = Vec::new();
    for i in 0..10 {
        answers.extend(deliver(&mut all, 0, i, 0, &entry(RUN, (7, i), 1)));
    }
    all.count_lost([(7, 10, 0)].into_iter());
    assert_eq!(all.verification.faults(false), Vec::<String>::new());
    assert_eq!((all.counts.received, all.counts.timely), (10, 10));
    assert_eq!(all.counts.payload_bytes, 10 * SIZE as u64);
    let latencies = all.latencies.total().unwrap().summary();
    assert_eq!(latencies.messages, 10);
    assert!((3.99..4.01).contains(&latencies.max));
    // Half of the 10 permits at a time, and 4 acknowledgements at a time.
    let flows: Vec<_> = answers.iter().filter_map(|c| c.flow.as_ref()).collect();
    assert_eq!(flows.len(), 2);
    assert!(flows.iter().all(|flow| flow.message_permits == 5));
    let acks: Vec<_> = answers.iter().filter_map(|c| c.ack.as_ref()).collect();
    assert_eq!(acks.len(), 2);
    let ids = acks.iter().flat_map(|ack| &ack.message_id);
    assert!(
        ids.map(|id| (id.ledger_id, id.entry_id))
            .eq((0..8).map(|i| (3, i)))
    );
}

#[test]
fn a_lost_message_is_named() {
    let mut all = consumers(true, &[consumer(0, 0)]);
    sequences(&mut all, 7, &[0, 1, 3]);
    sequences(&mut all, 8, &[0]);
    all.count_lost([(7, 4, 0), (8, 1, 0), (9, 1, 1)].into_iter());
    assert_eq!(all.verification.lost, 1);
    let offence = &all.verification.offences[0];
    assert_eq!(
        (offence.kind, offence.device, offence.sequence),
        (Kind::Lost, Some(7), Some(2))
    );
    assert_eq!(
        (offence.topic.as_str(), offence.subscription.as_deref()),
        ("t-0", Some("s-0"))
    );
}

#[test]
fn a_repetition_is_a_duplicate_unless_it_is_called_redelivered() {
    for ordered in [true, false] {
        let mut all = consumers(ordered, &[consumer(0, 0)]);
        sequences(&mut all, 7, &[0, 1]);
        let again = entry(RUN, (7, 0), 1);
        deliver(&mut all, 0, 0, 1, &again);
        assert_eq!(
            (all.verification.redelivered, all.verification.duplicates),
            (1, 0)
        );
        deliver(&mut all, 0, 0, 0, &again);
        assert_eq!(
            (all.verification.redelivered, all.verification.duplicates),
            (1, 1)
        );
        assert_eq!(all.counts.received, 2);
        assert_eq!(all.verification.offences[1].expected, Some(2));
    }
}

#[test]
fn order_is_asked_for_per_device_and_only_where_it_is_promised() {
    for (ordered, violations) in [(true, 1), (false, 0)] {
        let mut all = consumers(ordered, &[consumer(0, 0)]);
        sequences(&mut all, 7, &[0]);
        sequences(&mut all, 8, &[0, 1]);
        sequences(&mut all, 7, &[2, 1, 3]);
        all.count_lost([(7, 4, 0), (8, 2, 0)].into_iter());
        assert_eq!(all.verification.out_of_order, violations);
        assert_eq!((all.verification.lost, all.counts.received), (0, 6));
    }
}

#[test]
fn consumers_of_one_subscription_share_its_book() {
    let mut all = consumers(false, &[consumer(0, 0), consumer(0, 0), consumer(1, 0)]);
    for (id, sequence) in [(0, 0), (1, 1), (0, 2)] {
        deliver(&mut all, id, sequence, 0, &entry(RUN, (7, sequence), 1));
    }
    deliver(&mut all, 1, 1, 0, &entry(RUN, (7, 0), 1));
    all.count_lost([(7, 3, 0)].into_iter());
    assert_eq!((all.verification.duplicates, all.verification.lost), (1, 0));
}

#[test]
fn every_subscription_must_get_everything() {
    let mut all = consumers(true, &[consumer(0, 0), consumer(0, 1)]);
    sequences(&mut all, 7, &[0, 1]);
    all.count_lost([(7, 2, 0)].into_iter());
    assert_eq!(all.verification.lost, 2);
    assert_eq!(
        all.verification.offences[0].subscription.as_deref(),
        Some("s-1")
    );
}

#[test]
fn messages_of_a_batch_are_told_apart() {
    let mut all = consumers(true, &[consumer(0, 0)]);
    for (position, first) in [(0, 0), (1, 5)] {
        deliver(&mut all, 0, position, 0, &entry(RUN, (7, first), 5));
    }
    all.count_lost([(7, 10, 0)].into_iter());
    assert_eq!((all.counts.received, all.verification.lost), (10, 0));
}

#[test]
fn altered_bytes_are_noticed_with_and_without_the_checksum_of_the_entry() {
    let mut all = consumers(true, &[consumer(0, 0)]);
    let mut altered = entry(RUN, (7, 0), 1);
    let last = altered.len() - LAST;
    altered[last] ^= 1;
    deliver(&mut all, 0, 0, 0, &altered);
    // Its header is whole: the message is there, and altered.
    assert_eq!((all.verification.corrupt, all.counts.received), (1, 1));
    let offence = &all.verification.offences[0];
    assert_eq!(
        (offence.kind, offence.device, offence.sequence),
        (Kind::Corrupt, Some(7), Some(0))
    );
    // Without magic and checksum of the entry: the payload's own is left.
    let mut altered = entry(RUN, (7, 1), 1);
    altered[last] ^= 1;
    deliver(&mut all, 0, 1, 0, &altered[6..]);
    assert_eq!(all.verification.corrupt, 2);
    deliver(&mut all, 0, 2, 0, &entry(RUN, (7, 2), 1)[6..]);
    all.count_lost([(7, 3, 0)].into_iter());
    assert_eq!((all.verification.corrupt, all.verification.lost), (2, 0));
}

#[test]
fn any_single_altered_byte_is_noticed() {
    let whole = entry(RUN, (7, 0), 1);
    for at in 0..whole.len() {
        let mut all = consumers(true, &[consumer(0, 0)]);
        let mut altered = whole.clone();
        altered[at] ^= 1;
        deliver(&mut all, 0, 0, 0, &altered);
        assert_eq!(all.verification.corrupt, 1, "byte {at}");
    }
}

#[test]
fn leftovers_of_other_runs_do_not_count() {
    let mut all = consumers(true, &[consumer(0, 0)]);
    for i in 0..5 {
        deliver(&mut all, 0, i, 0, &entry(RUN + 1, (7, i), 1));
    }
    assert_eq!((all.counts.received, all.verification.foreign), (0, 5));
    assert!(all.verification.faults(false).is_empty());
}

#[test]
fn a_slow_consumer_gets_permits_at_its_rate_and_then_all() {
    let mut all = consumers(true, &[consumer(0, 1)]);
    let slow = &mut all.consumers[0];
    // As begin leaves it: 3 permits at once, 7 held back.
    (slow.given, slow.owed) = (3, 7);
    assert_eq!(slow.permits_due(10, 0), 0);
    assert_eq!(slow.permits_due(10, 2_000_000_000), 3);
    assert_eq!(slow.permits_due(10, 1_000_000_000_000), 7);
    all.catch_up();
    assert_eq!(all.consumers[0].permits_due(10, 0), 7);
    assert_eq!(all.counts.timely, 0);
}
