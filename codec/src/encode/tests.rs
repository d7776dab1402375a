#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use bytes::BytesMut;
use proptest::prelude::*;
use vela_proto::base_command::Type;
use vela_proto::*;

use super::*;
use crate::testing::{frame, frame_bytes};
use crate::{decode_command, entry};

fn base(command_type: Type) -> BaseCommand {
    BaseCommand {
        r#type: command_type as i32,
        ..Default::default()
    }
}

fn by_prost(command: &BaseCommand, rest_len: usize) -> BytesMut {
    let mut out = BytesMut::new();
    command_with_rest(command, rest_len, &mut out);
    out
}

#[test]
fn golden_frames() {
    let connect = CommandConnect {
        client_version: "t".into(),
        protocol_version: Some(21),
        ..Default::default()
    };
    let connected = CommandConnected {
        server_version: "s".into(),
        protocol_version: Some(21),
        max_message_size: Some(5_242_880),
        ..Default::default()
    };
    let success = CommandSuccess {
        request_id: 1,
        schema: None,
    };
    let close = CommandCloseConsumer {
        consumer_id: 3,
        request_id: u64::MAX,
        ..Default::default()
    };
    for (name, built) in [
        (
            "golden-ping",
            BaseCommand {
                ping: Some(CommandPing {}),
                ..base(Type::Ping)
            },
        ),
        (
            "golden-pong",
            BaseCommand {
                pong: Some(CommandPong {}),
                ..base(Type::Pong)
            },
        ),
        (
            "golden-connect",
            BaseCommand {
                connect: Some(connect),
                ..base(Type::Connect)
            },
        ),
        (
            "golden-connected",
            BaseCommand {
                connected: Some(connected),
                ..base(Type::Connected)
            },
        ),
        (
            "golden-success",
            BaseCommand {
                success: Some(success),
                ..base(Type::Success)
            },
        ),
        (
            "golden-close-consumer",
            BaseCommand {
                close_consumer: Some(close),
                ..base(Type::CloseConsumer)
            },
        ),
    ] {
        let mut out = BytesMut::new();
        command(&built, &mut out);
        assert_eq!(out, frame_bytes(name), "{name}");
        assert_eq!(
            decode_command(frame(name).command()).unwrap(),
            built,
            "{name}"
        );
    }
}

#[test]
fn golden_frames_with_an_entry() {
    let metadata = MessageMetadata {
        producer_name: "p".into(),
        sequence_id: 0,
        publish_time: 1,
        ..Default::default()
    };
    let send = CommandSend {
        producer_id: 1,
        sequence_id: 0,
        ..Default::default()
    };
    let mut rest = BytesMut::new();
    entry::write(&metadata, b"hello", &mut rest);
    let mut out = by_prost(
        &BaseCommand {
            send: Some(send.clone()),
            ..base(Type::Send)
        },
        rest.len(),
    );
    out.extend_from_slice(&rest);
    assert_eq!(out, frame_bytes("golden-send"));

    let mut rest_with_broker = BytesMut::new();
    let broker = BrokerEntryMetadata {
        broker_timestamp: Some(5),
        index: Some(4),
    };
    entry::write_broker_metadata(&broker, &mut rest_with_broker);
    rest_with_broker.extend_from_slice(&rest);
    let message_id = MessageIdData {
        ledger_id: 7,
        entry_id: 9,
        partition: Some(-1),
        ..Default::default()
    };
    let message = CommandMessage {
        consumer_id: 2,
        message_id,
        ..Default::default()
    };
    let mut out = by_prost(
        &BaseCommand {
            message: Some(message),
            ..base(Type::Message)
        },
        rest_with_broker.len(),
    );
    out.extend_from_slice(&rest_with_broker);
    assert_eq!(out, frame_bytes("golden-message"));

    let batch_send = CommandSend {
        num_messages: Some(2),
        highest_sequence_id: Some(1),
        ..send
    };
    let mut batch = crate::batch::BatchWriter::new(10, 1000);
    for (sequence_id, payload) in [(0, &b"a"[..]), (1, b"bc")] {
        let single = SingleMessageMetadata {
            sequence_id: Some(sequence_id),
            ..Default::default()
        };
        batch.push(single, payload).unwrap();
    }
    let metadata = MessageMetadata {
        uncompressed_size: Some(19),
        num_messages_in_batch: Some(2),
        highest_sequence_id: Some(1),
        ..metadata
    };
    let mut rest = BytesMut::new();
    entry::write(&metadata, &batch.finish(), &mut rest);
    let mut out = by_prost(
        &BaseCommand {
            send: Some(batch_send),
            ..base(Type::Send)
        },
        rest.len(),
    );
    out.extend_from_slice(&rest);
    assert_eq!(out, frame_bytes("golden-send-batch"));
}

#[test]
fn ping_and_pong() {
    let mut out = BytesMut::new();
    ping(&mut out);
    pong(&mut out);
    assert_eq!(
        out,
        [frame_bytes("golden-ping"), frame_bytes("golden-pong")].concat()
    );
}

fn number() -> impl Strategy<Value = u64> {
    // Numbers of every encoded length.
    (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
}

proptest! {
    #[test]
    fn receipts_and_errors(a in number(), b in number(), c in number(), d in number(), e in number(),
                           code in 0i32..26, text in ".{0,200}", with in any::<[bool; 2]>()) {
        let error_code = ServerError::try_from(code).unwrap();
        let receipt = CommandSendReceipt {
            producer_id: a, sequence_id: b, highest_sequence_id: Some(c),
            message_id: Some(MessageIdData { ledger_id: d, entry_id: e, ..Default::default() }),
        };
        let mut out = BytesMut::new();
        send_receipt(&mut out, a, b, c, d, e);
        prop_assert_eq!(out, by_prost(&BaseCommand { send_receipt: Some(receipt), ..base(Type::SendReceipt) }, 0));

        let failed = CommandSendError { producer_id: a, sequence_id: b, error: code, message: text.clone() };
        let mut out = BytesMut::new();
        send_error(&mut out, a, b, error_code, &text);
        prop_assert_eq!(out, by_prost(&BaseCommand { send_error: Some(failed), ..base(Type::SendError) }, 0));

        let response = CommandAckResponse {
            consumer_id: a, request_id: with[0].then_some(b), error: with[1].then_some(code),
            message: with[1].then(|| text.clone()), ..Default::default()
        };
        let mut out = BytesMut::new();
        ack_response(&mut out, a, with[0].then_some(b), with[1].then_some((error_code, &text)));
        prop_assert_eq!(out, by_prost(&BaseCommand { ack_response: Some(response), ..base(Type::AckResponse) }, 0));

        let mut out = BytesMut::new();
        success(&mut out, a);
        let answer = CommandSuccess { request_id: a, schema: None };
        prop_assert_eq!(out, by_prost(&BaseCommand { success: Some(answer), ..base(Type::Success) }, 0));

        let mut out = BytesMut::new();
        error(&mut out, a, error_code, &text);
        let answer = CommandError { request_id: a, error: code, message: text };
        prop_assert_eq!(out, by_prost(&BaseCommand { error: Some(answer), ..base(Type::Error) }, 0));
    }

    #[test]
    fn message_heads(consumer_id in number(), ledger in number(), entry in number(), partition in -1i32..100,
                     redelivery_count in prop_oneof![Just(0u32), any::<u32>()],
                     ack_set in prop::collection::vec(any::<i64>(), 0..4),
                     consumer_epoch in prop::option::of(number()), permits in any::<u32>(), rest_len in 0usize..6_000_000) {
        let head = MessageHead {
            consumer_id, ledger, entry, partition, redelivery_count, ack_set: &ack_set, consumer_epoch, permits,
        };
        let mut out = BytesMut::new();
        message_head(&mut out, &head, rest_len);
        let message = CommandMessage {
            consumer_id,
            message_id: MessageIdData {
                ledger_id: ledger, entry_id: entry, partition: Some(partition), ..Default::default()
            },
            redelivery_count: (redelivery_count > 0).then_some(redelivery_count),
            ack_set: ack_set.clone(),
            consumer_epoch,
            message_permits: Some(permits),
        };
        prop_assert_eq!(out, by_prost(&BaseCommand { message: Some(message), ..base(Type::Message) }, rest_len));
    }
}
