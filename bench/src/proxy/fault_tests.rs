#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use vela_codec::encode::MessageHead;
use vela_codec::entry;
use vela_proto::prost::Message as _;
use vela_proto::{BaseCommand, CommandSend, MessageMetadata};

use super::*;
use crate::wire::Input;

/// A MESSAGE with a key and a payload.
fn message(key: &str, payload: &[u8]) -> Vec<u8> {
    let metadata = MessageMetadata {
        producer_name: "p".into(),
        partition_key: Some(key.into()),
        ..MessageMetadata::default()
    };
    let mut entry_bytes = BytesMut::new();
    entry::write(&metadata, payload, &mut entry_bytes);
    let mut out = BytesMut::new();
    let head = MessageHead {
        consumer_id: 1,
        ledger: 7,
        entry: 9,
        partition: -1,
        redelivery_count: 0,
        ack_set: &[],
        consumer_epoch: None,
        permits: 1,
    };
    encode::message_head(&mut out, &head, entry_bytes.len());
    out.extend_from_slice(&entry_bytes);
    out.to_vec()
}

fn send(producer_id: u64, sequence_id: u64) -> Vec<u8> {
    let command = BaseCommand {
        r#type: Type::Send as i32,
        send: Some(CommandSend {
            producer_id,
            sequence_id,
            ..CommandSend::default()
        }),
        ..BaseCommand::default()
    };
    let mut out = BytesMut::new();
    encode::command_with_rest(&command, 3, &mut out);
    out.extend_from_slice(b"abc");
    out.to_vec()
}

fn receipt(producer_id: u64, sequence_id: u64) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode::send_receipt(&mut out, producer_id, sequence_id, u64::MAX, 4, 100);
    out.to_vec()
}

fn frames(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut input = Input::new(bytes.len().max(16));
    let space = input.space();
    space[..bytes.len()].copy_from_slice(bytes);
    input.filled(bytes.len());
    let mut all = Vec::new();
    while let Some(frame) = input.next().unwrap() {
        all.push((frame.command.to_vec(), frame.rest.to_vec()));
    }
    all
}

/// What the client gets of these frames of the broker.
fn deliver(args: FaultArgs, sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut faults, mut link, mut out) = (Faults::new(args), Link::default(), BytesMut::new());
    for (command, rest) in frames(&sent.concat()) {
        let frame = RawFrame {
            command: &command,
            rest: &rest,
        };
        link.relay_to_client(frame, &mut faults, &mut out);
    }
    payloads(&out)
}

fn payloads(bytes: &[u8]) -> Vec<Vec<u8>> {
    frames(bytes)
        .iter()
        .map(|(_, rest)| Entry::parse(rest).unwrap().payload.to_vec())
        .collect()
}

fn letters() -> Vec<Vec<u8>> {
    // Keys x and y in turn.
    (b'a'..=b'f')
        .map(|letter| message(if letter % 2 == 1 { "x" } else { "y" }, &[letter, letter]))
        .collect()
}

fn text(payloads: &[Vec<u8>]) -> String {
    payloads.iter().map(|p| p[0] as char).collect()
}

#[test]
fn without_faults_frames_pass_byte_by_byte() {
    let sent = letters();
    let (mut faults, mut link, mut out) = (
        Faults::new(FaultArgs::default()),
        Link::default(),
        BytesMut::new(),
    );
    for (command, rest) in frames(&sent.concat()) {
        let frame = RawFrame {
            command: &command,
            rest: &rest,
        };
        assert_eq!(link.relay_to_client(frame, &mut faults, &mut out), None);
    }
    assert_eq!(out, sent.concat());
}

#[test]
fn the_chosen_message_is_dropped_or_repeated() {
    let drop = FaultArgs {
        drop: Some(2),
        ..FaultArgs::default()
    };
    assert_eq!(text(&deliver(drop, &letters())), "acdef");
    let every = FaultArgs {
        repeat: true,
        ..drop
    };
    assert_eq!(text(&deliver(every, &letters())), "ace");
    let duplicate = FaultArgs {
        duplicate: Some(6),
        ..FaultArgs::default()
    };
    assert_eq!(text(&deliver(duplicate, &letters())), "abcdeff");
}

#[test]
fn messages_of_one_key_change_places() {
    let reorder = FaultArgs {
        reorder: Some(2),
        ..FaultArgs::default()
    };
    // b waits for d; c, of another key, does not.
    assert_eq!(text(&deliver(reorder, &letters())), "acdbef");
}

#[test]
fn an_altered_byte_keeps_the_old_checksum_or_gets_a_right_one() {
    for (recompute_checksum, matches) in [(false, false), (true, true)] {
        let flip = FaultArgs {
            flip: Some(1),
            flip_byte: 1,
            recompute_checksum,
            ..FaultArgs::default()
        };
        let (mut faults, mut link, mut out) = (Faults::new(flip), Link::default(), BytesMut::new());
        let (command, rest) = frames(&message("x", b"abc")).remove(0);
        let frame = RawFrame {
            command: &command,
            rest: &rest,
        };
        assert!(link.relay_to_client(frame, &mut faults, &mut out).is_some());
        let (_, entry) = frames(&out).remove(0);
        let entry = Entry::parse(&entry).unwrap();
        assert_eq!(entry.payload, [b'a', !b'b', b'c']);
        assert_eq!(entry.verify_checksum().is_ok(), matches);
    }
}

#[test]
fn a_swallowed_send_gets_its_receipt_in_its_turn() {
    let args = FaultArgs {
        drop_send: Some(2),
        ..FaultArgs::default()
    };
    let (mut faults, mut link) = (Faults::new(args), Link::default());
    let (mut to_broker, mut to_client) = (BytesMut::new(), BytesMut::new());
    for sequence in 0..3 {
        let (command, rest) = frames(&send(5, sequence)).remove(0);
        let frame = RawFrame {
            command: &command,
            rest: &rest,
        };
        link.relay_send(frame, &mut faults, &mut to_broker, &mut to_client);
    }
    assert_eq!(to_broker, [send(5, 0), send(5, 2)].concat());
    assert!(to_client.is_empty(), "0 has to be answered before 1");
    for sequence in [0, 2] {
        let (command, rest) = frames(&receipt(5, sequence)).remove(0);
        let frame = RawFrame {
            command: &command,
            rest: &rest,
        };
        link.relay_to_client(frame, &mut faults, &mut to_client);
    }
    let answered: Vec<_> = frames(&to_client)
        .iter()
        .map(|(command, _)| Receipt::parse(command).unwrap().sequence_id)
        .collect();
    assert_eq!(answered, [0, 1, 2]);
}

#[test]
fn a_swallowed_send_with_nothing_in_front_is_answered_at_once() {
    let args = FaultArgs {
        drop_send: Some(1),
        ..FaultArgs::default()
    };
    let (mut faults, mut link) = (Faults::new(args), Link::default());
    let (mut to_broker, mut to_client) = (BytesMut::new(), BytesMut::new());
    let (command, rest) = frames(&send(5, 8)).remove(0);
    let frame = RawFrame {
        command: &command,
        rest: &rest,
    };
    link.relay_send(frame, &mut faults, &mut to_broker, &mut to_client);
    assert!(to_broker.is_empty());
    let (command, _) = frames(&to_client).remove(0);
    let command = BaseCommand::decode(command.as_slice()).unwrap();
    assert_eq!(command.send_receipt.unwrap().sequence_id, 8);
}
