//! Who a frame is for, and what may cross what.

use vela_codec::proto::BaseCommand;
use vela_codec::proto::base_command::Type;

/// Who an answer is for.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub enum Party {
    Connection,
    Producer(u64),
    Consumer(u64),
}

/// What may cross what.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Class {
    /// MESSAGE.
    Delivery,
    /// An answer about a consumer that changes nothing about it.
    Answer,
    /// Anything else: in order with everything.
    Change,
    /// PING and PONG: in order among themselves.
    KeepAlive,
}

impl Class {
    pub fn of(kind: Type) -> Class {
        match kind {
            Type::Message => Class::Delivery,
            Type::AckResponse | Type::GetLastMessageIdResponse | Type::ConsumerStatsResponse => {
                Class::Answer
            }
            Type::Ping | Type::Pong => Class::KeepAlive,
            _ => Class::Change,
        }
    }

    pub fn may_cross(self, other: Class) -> bool {
        use Class::{Answer, Delivery, KeepAlive};
        matches!(
            (self, other),
            (Delivery, Answer) | (Answer, Delivery) | (KeepAlive, _) | (_, KeepAlive)
        )
    }
}

/// The request that a command is or answers.
pub fn request_id(command: &BaseCommand) -> Option<u64> {
    let c = command;
    [
        c.producer.as_ref().map(|c| c.request_id),
        c.subscribe.as_ref().map(|c| c.request_id),
        c.close_producer.as_ref().map(|c| c.request_id),
        c.close_consumer.as_ref().map(|c| c.request_id),
        c.unsubscribe.as_ref().map(|c| c.request_id),
        c.seek.as_ref().map(|c| c.request_id),
        c.get_last_message_id.as_ref().map(|c| c.request_id),
        c.ack.as_ref().and_then(|c| c.request_id),
        c.success.as_ref().map(|c| c.request_id),
        c.error.as_ref().map(|c| c.request_id),
        c.producer_success.as_ref().map(|c| c.request_id),
        c.ack_response.as_ref().and_then(|c| c.request_id),
        c.get_last_message_id_response
            .as_ref()
            .map(|c| c.request_id),
    ]
    .into_iter()
    .flatten()
    .next()
}

/// Who a command names, either side's.
pub fn named(command: &BaseCommand) -> Option<Party> {
    let c = command;
    let producer = [
        c.producer.as_ref().map(|c| c.producer_id),
        c.send.as_ref().map(|c| c.producer_id),
        c.close_producer.as_ref().map(|c| c.producer_id),
        c.send_receipt.as_ref().map(|c| c.producer_id),
        c.send_error.as_ref().map(|c| c.producer_id),
    ];
    let consumer = [
        c.subscribe.as_ref().map(|c| c.consumer_id),
        c.close_consumer.as_ref().map(|c| c.consumer_id),
        c.unsubscribe.as_ref().map(|c| c.consumer_id),
        c.seek.as_ref().map(|c| c.consumer_id),
        c.get_last_message_id.as_ref().map(|c| c.consumer_id),
        c.ack.as_ref().map(|c| c.consumer_id),
        c.flow.as_ref().map(|c| c.consumer_id),
        c.redeliver_unacknowledged_messages
            .as_ref()
            .map(|c| c.consumer_id),
        c.message.as_ref().map(|c| c.consumer_id),
        c.ack_response.as_ref().map(|c| c.consumer_id),
        c.active_consumer_change.as_ref().map(|c| c.consumer_id),
    ];
    producer
        .into_iter()
        .flatten()
        .map(Party::Producer)
        .chain(consumer.into_iter().flatten().map(Party::Consumer))
        .next()
}
