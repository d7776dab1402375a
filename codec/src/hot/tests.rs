#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use bytes::{BufMut, BytesMut};
use proptest::prelude::*;
use prost::Message as _;
use vela_proto::*;

use super::*;
use crate::encode::varint;
use crate::testing::frame;
use crate::{decode_command, decode_metadata};

/// All that may be wrong with bytes that `prost` can read.
fn is_about_presence(error: Malformed) -> bool {
    matches!(
        error,
        Malformed::Missing { .. }
            | Malformed::UnknownEnum { .. }
            | Malformed::MissingBody(_)
            | Malformed::UnexpectedType(_)
    )
}

/// The views against `prost` and the checks of required fields: the same answer, and the same values.
fn compare_command(bytes: &[u8]) {
    let whole = decode_command(bytes);
    match (&whole, BaseCommand::decode(bytes)) {
        (Ok(command), Ok(by_prost)) => assert_eq!(*command, by_prost),
        (Err(error), by_prost) => assert!(
            by_prost.is_err() || is_about_presence(*error),
            "{error} {bytes:02x?}"
        ),
        (Ok(_), Err(error)) => panic!("accepted what prost refuses: {error} {bytes:02x?}"),
    }
    let expect = |wanted: Type| match &whole {
        Ok(command) if command.r#type() != wanted => Err(Malformed::UnexpectedType(command.r#type)),
        Ok(command) => Ok(command),
        Err(error) => Err(*error),
    };

    match (expect(Type::Send), SendView::parse(bytes)) {
        (Ok(command), Ok(view)) => {
            let send = command.send.as_ref().unwrap();
            let expected = SendView {
                producer_id: send.producer_id,
                sequence_id: send.sequence_id,
                num_messages: send.num_messages(),
                highest_sequence_id: send.highest_sequence_id,
                has_txn: send.txnid_least_bits.is_some() && send.txnid_most_bits.is_some(),
                is_chunk: send.is_chunk(),
                marker: send.marker(),
                has_message_id: send.message_id.is_some(),
            };
            assert_eq!(view, expected);
        }
        (Err(_), Err(_)) => {}
        (expected, view) => panic!("{expected:?} but {view:?} for {bytes:02x?}"),
    }
    match (expect(Type::Flow), FlowView::parse(bytes)) {
        (Ok(command), Ok(view)) => {
            let flow = command.flow.as_ref().unwrap();
            assert_eq!(
                (view.consumer_id, view.permits),
                (flow.consumer_id, flow.message_permits)
            );
        }
        (Err(_), Err(_)) => {}
        (expected, view) => panic!("{expected:?} but {view:?} for {bytes:02x?}"),
    }
    match (expect(Type::Ack), AckView::parse(bytes)) {
        (Ok(command), Ok(view)) => compare_ack(command.ack.as_ref().unwrap(), &view),
        (Err(_), Err(_)) => {}
        (expected, view) => panic!("{expected:?} but {view:?} for {bytes:02x?}"),
    }
    if whole.is_ok() {
        command_type(bytes).unwrap();
    }
}

fn compare_ack(ack: &CommandAck, view: &AckView<'_>) {
    assert_eq!(view.consumer_id, ack.consumer_id);
    assert_eq!(view.ack_type as i32, ack.ack_type);
    assert_eq!(view.request_id, ack.request_id);
    assert_eq!(
        view.has_txn,
        ack.txnid_least_bits.is_some() && ack.txnid_most_bits.is_some()
    );
    assert_eq!(view.validation_error, ack.validation_error);
    assert_eq!(view.ids_len(), ack.message_id.len());
    assert_eq!(view.ids().count(), view.ids().len());
    assert_eq!(view.ids_len(), view.ids().len());
    for (view, id) in view.ids().zip(&ack.message_id) {
        assert_eq!((view.ledger, view.entry), (id.ledger_id, id.entry_id));
        assert_eq!(
            (view.partition, view.batch_index),
            (id.partition(), id.batch_index())
        );
        assert_eq!(view.batch_size, id.batch_size);
        assert_eq!(view.ack_set.iter().collect::<Vec<_>>(), id.ack_set);
        assert_eq!(view.ack_set.is_empty(), id.ack_set.is_empty());
    }
}

fn compare_metadata(bytes: &[u8]) {
    match (decode_metadata(bytes), MessageMetadata::decode(bytes)) {
        (Ok(checked), Ok(by_prost)) => assert_eq!(checked, by_prost),
        (Err(error), by_prost) => assert!(
            by_prost.is_err() || is_about_presence(error),
            "{error} {bytes:02x?}"
        ),
        (Ok(_), Err(error)) => panic!("accepted what prost refuses: {error} {bytes:02x?}"),
    }
    match (decode_metadata(bytes), MetadataView::parse(bytes)) {
        (Ok(metadata), Ok(view)) => {
            let expected = MetadataView {
                producer_name: &metadata.producer_name,
                sequence_id: metadata.sequence_id,
                publish_time: metadata.publish_time,
                num_messages_in_batch: metadata.num_messages_in_batch,
                marker_type: metadata.marker_type,
                deliver_at_time: metadata.deliver_at_time,
                partition_key: metadata.partition_key.as_deref(),
                partition_key_b64: metadata.partition_key_b64_encoded(),
                ordering_key: metadata.ordering_key.as_deref(),
                uuid: metadata.uuid.as_deref(),
                chunk_id: metadata.chunk_id,
                num_chunks: metadata.num_chunks_from_msg,
                total_chunk_msg_size: metadata.total_chunk_msg_size,
                encryption_keys: metadata.encryption_keys.len(),
                has_txn: metadata.txnid_least_bits.is_some() && metadata.txnid_most_bits.is_some(),
                compression: metadata.compression.unwrap_or(0),
                uncompressed_size: metadata.uncompressed_size(),
                event_time: metadata.event_time(),
                highest_sequence_id: metadata.highest_sequence_id,
                null_value: metadata.null_value(),
                replicated_from: metadata.replicated_from.as_deref(),
                schema_version: metadata.schema_version.as_deref(),
            };
            assert_eq!(view, expected);
        }
        (Err(error), Err(answer)) => assert_eq!(error, answer, "{bytes:02x?}"),
        (whole, view) => panic!("{whole:?} but {view:?} for {bytes:02x?}"),
    }
}

#[test]
fn golden_views() {
    let send = SendView::parse(frame("golden-send-batch").command()).unwrap();
    assert_eq!(
        (
            send.producer_id,
            send.num_messages,
            send.highest_sequence_id
        ),
        (1, 2, Some(1))
    );
    let send = SendView::parse(frame("odd-body-first").command()).unwrap();
    assert_eq!(
        (send.producer_id, send.sequence_id, send.num_messages),
        (1, 0, 1)
    );
    let ack = frame("odd-packed-ack-set");
    let ack = AckView::parse(ack.command()).unwrap();
    let ids: Vec<_> = ack.ids().collect();
    assert_eq!(
        (ids.len(), ids[0].ledger, ids[0].entry, ids[0].partition),
        (1, 5, 6, -1)
    );
    assert_eq!(ids[0].ack_set.into_iter().collect::<Vec<_>>(), [1, -1]);
    assert_eq!(
        SendView::parse(frame("golden-ping").command()).unwrap_err(),
        Malformed::UnexpectedType(Type::Ping as i32)
    );
}

/// Nesting up to the limit is accepted and one more is not, by everybody.
#[test]
fn nesting_has_one_limit() {
    for depth in 90..110 {
        for group in [false, true] {
            let mut id = vec![8, 1, 16, 2];
            if group {
                // Groups inside groups, around nothing.
                id.extend([0xe3, 0x06].repeat(depth));
                id.extend([0xe4, 0x06].repeat(depth));
            } else {
                for _ in 0..depth {
                    let inner = id;
                    id = vec![8, 1, 16, 2];
                    nested(&mut id, 7, &inner);
                }
            }
            let mut send = vec![8, 1, 16, 0];
            nested(&mut send, 9, &id);
            let mut ack = vec![8, 1, 16, 0];
            nested(&mut ack, 3, &id);
            for (number, body) in [(6, send), (10, ack)] {
                let mut command = vec![8, number];
                nested(&mut command, u32::from(number), &body);
                compare_command(&command);
            }
        }
        // Around the body, unknown fields may nest one deeper than in it: all ids must still be found.
        let mut command = vec![8, 10];
        command.extend([0xe3, 0x06].repeat(depth));
        command.extend([0xe4, 0x06].repeat(depth));
        nested(&mut command, 10, &[8, 1, 16, 0, 26, 4, 8, 1, 16, 2]);
        compare_command(&command);
    }
}

fn nested(out: &mut Vec<u8>, number: u32, body: &[u8]) {
    let mut head = BytesMut::new();
    varint(&mut head, u64::from(number << 3 | 2));
    varint(&mut head, body.len() as u64);
    out.extend(head);
    out.extend(body);
}

/// One field as bytes: often right for its message, often not.
fn any_field(max_number: u32) -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        4 => (any::<u64>(), 0u32..64).prop_map(|(value, shift)| (0, value >> shift, vec![])),
        2 => prop::collection::vec(any::<u8>(), 0..12).prop_map(|bytes| (2, bytes.len() as u64, bytes)),
        2 => "[a-zé]{0,9}".prop_map(|text| (2, text.len() as u64, text.into_bytes())),
        2 => message_id().prop_map(|bytes| (2, bytes.len() as u64, bytes)),
        1 => any::<[u8; 8]>().prop_map(|bytes| (1, 0, bytes.to_vec())),
        1 => any::<[u8; 4]>().prop_map(|bytes| (5, 0, bytes.to_vec())),
        1 => (0u32..8).prop_map(|wire_type| (wire_type, 0, vec![])),
    ];
    (1..=max_number, value).prop_map(|(number, (wire_type, number_or_len, bytes))| {
        let mut out = BytesMut::new();
        varint(&mut out, u64::from(number << 3 | wire_type));
        if wire_type == 0 || wire_type == 2 {
            varint(&mut out, number_or_len);
        }
        out.put_slice(&bytes);
        out.to_vec()
    })
}

fn message_id() -> impl Strategy<Value = Vec<u8>> {
    let set = prop::collection::vec(any::<i64>(), 0..3);
    (
        any::<u64>(),
        any::<u64>(),
        any::<[Option<i32>; 3]>(),
        set.clone(),
        set,
        any::<bool>(),
    )
        .prop_map(
            |(
                ledger_id,
                entry_id,
                [partition, batch_index, batch_size],
                ack_set,
                packed,
                chunk,
            )| {
                let first_chunk_message_id = chunk.then(|| {
                    Box::new(MessageIdData {
                        ledger_id,
                        ..Default::default()
                    })
                });
                let id = MessageIdData {
                    ledger_id,
                    entry_id,
                    partition,
                    batch_index,
                    ack_set,
                    batch_size,
                    first_chunk_message_id,
                };
                let mut out = id.encode_to_vec();
                if !packed.is_empty() {
                    let mut words = BytesMut::new();
                    packed
                        .iter()
                        .for_each(|&word| varint(&mut words, word as u64));
                    nested(&mut out, 5, &words);
                }
                out
            },
        )
}

/// Bytes of a message: right parts in any order, with fields that may be anything among them.
fn body(right: Vec<BoxedStrategy<Vec<u8>>>, max_number: u32) -> impl Strategy<Value = Vec<u8>> {
    (
        right,
        prop::collection::vec(any_field(max_number), 0..3),
        any::<prop::sample::Index>(),
        0u8..16,
    )
        .prop_map(|(mut parts, odd, at, drop)| {
            if drop == 0 && !parts.is_empty() {
                parts.remove(at.index(parts.len()));
            }
            // Most of the time nothing is odd, so that values are compared too.
            if drop > 8 {
                parts.extend(odd);
            }
            let turn = at.index(parts.len().max(1));
            parts.rotate_left(turn);
            parts.concat()
        })
}

fn number_field(number: u32) -> BoxedStrategy<Vec<u8>> {
    (any::<u64>(), 0u32..64)
        .prop_map(move |(value, shift)| {
            let mut out = BytesMut::new();
            varint(&mut out, u64::from(number << 3));
            varint(&mut out, value >> shift);
            out.to_vec()
        })
        .boxed()
}

fn maybe(field: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    prop::option::of(field)
        .prop_map(Option::unwrap_or_default)
        .boxed()
}

fn len_field(number: u32, value: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    value
        .prop_map(move |value| {
            let mut out = Vec::new();
            nested(&mut out, number, &value);
            out
        })
        .boxed()
}

fn command_bytes() -> impl Strategy<Value = Vec<u8>> {
    let mut send: Vec<_> = [1, 2].map(number_field).to_vec();
    send.extend((3..=8).map(|number| maybe(number_field(number))));
    send.push(maybe(len_field(9, message_id().boxed())));
    let mut ack = vec![number_field(1), Just(vec![16, 1]).boxed()];
    ack.extend([4, 6, 7, 8].map(|number| maybe(number_field(number))));
    ack.extend([3, 3, 3].map(|number| maybe(len_field(number, message_id().boxed()))));
    let long =
        [1, 2].map(|number| len_field(number, "[a-z]{0,3}".prop_map(String::into_bytes).boxed()));
    ack.push(maybe(len_field(
        5,
        long.to_vec().prop_map(|parts| parts.concat()).boxed(),
    )));
    let flow: Vec<_> = [1, 2].map(number_field).to_vec();
    let bodies = prop_oneof![
        body(send, 11).prop_map(|body| (6u8, body)),
        body(ack, 10).prop_map(|body| (10u8, body)),
        body(flow, 4).prop_map(|body| (11u8, body)),
    ];
    // Sometimes the body comes twice, and is merged.
    (bodies, 0u8..10).prop_flat_map(|((number, content), times)| {
        let body = len_field(u32::from(number), Just(content).boxed());
        let mut parts = vec![Just(vec![8, number]).boxed(), body.clone()];
        if times == 0 {
            parts.push(body);
        }
        self::body(parts, 90)
    })
}

fn metadata_bytes() -> impl Strategy<Value = Vec<u8>> {
    let text = |number| len_field(number, "[a-zé]{0,9}".prop_map(String::into_bytes).boxed());
    let pair = move || {
        [1, 2]
            .map(text)
            .to_vec()
            .prop_map(|parts| parts.concat())
            .boxed()
    };
    let mut right = vec![text(1), number_field(2), number_field(3)];
    right.extend(
        [8, 9, 11, 12, 17, 19, 20, 22, 23, 24, 25, 27, 28, 29, 30, 33]
            .map(|n| maybe(number_field(n))),
    );
    right.extend([5, 6, 7, 7, 14, 16, 18, 26].map(|number| maybe(text(number))));
    right.extend([4, 4, 13, 13].map(|number| maybe(len_field(number, pair()))));
    body(right, 36)
}

/// Changes that a damaged or hostile sender makes.
fn mutated(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (
        bytes,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..4),
    )
        .prop_map(|(mut bytes, changes)| {
            for (at, byte, kind) in changes {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes[at] ^= 1 << (byte % 8),
                    2 => bytes.insert(at, byte),
                    _ => bytes.truncate(at + 1),
                }
            }
            bytes
        })
}

/// Runs long enough to meet the rare cases; `PROPTEST_CASES` makes it longer.
fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(2000),
        ..default
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn commands_are_read_as_by_prost(bytes in command_bytes()) {
        compare_command(&bytes);
    }

    #[test]
    fn changed_commands_are_read_as_by_prost(bytes in mutated(command_bytes())) {
        compare_command(&bytes);
    }

    #[test]
    fn metadata_is_read_as_by_prost(bytes in metadata_bytes()) {
        compare_metadata(&bytes);
    }

    #[test]
    fn changed_metadata_is_read_as_by_prost(bytes in mutated(metadata_bytes())) {
        compare_metadata(&bytes);
    }

    #[test]
    fn any_bytes_are_read_as_by_prost(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        compare_command(&bytes);
        compare_metadata(&bytes);
    }
}

/// The generators above are worth something only if a good part of what they make is accepted.
#[test]
fn generators_make_what_is_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut commands, mut metadata) = (0, 0);
    for _ in 0..500 {
        let bytes = command_bytes().new_tree(&mut runner).unwrap().current();
        commands += usize::from(decode_command(&bytes).is_ok());
        let bytes = metadata_bytes().new_tree(&mut runner).unwrap().current();
        metadata += usize::from(decode_metadata(&bytes).is_ok());
    }
    assert!((150..450).contains(&commands), "{commands} commands of 500");
    assert!((150..450).contains(&metadata), "{metadata} metadata of 500");
}
