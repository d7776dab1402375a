//! Tests of the consumer: by hand here, against a model of a broker in [`model`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod acknowledging;
mod build;
mod chunked;
mod model;
mod permits;
mod receiving;
mod requests;

use vela_proto::base_command::Type;
use vela_proto::{BaseCommand, CommandMessage, MessageIdData};

use super::config::MILLI;
use super::*;
use crate::StartPosition;

/// Keeps what was sent.
#[derive(Debug, Default)]
pub(super) struct TestWire {
    next: u64,
    pub(super) sent: Vec<BaseCommand>,
}

impl Wire for TestWire {
    fn request_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn command(&mut self, command: BaseCommand) {
        self.sent.push(command);
    }
}

pub(super) fn success() -> BaseCommand {
    BaseCommand {
        r#type: Type::Success as i32,
        ..BaseCommand::default()
    }
}

/// A consumer with its connection.
pub(super) struct Bench {
    pub(super) consumer: Consumer,
    pub(super) wire: TestWire,
    pub(super) now: Nanos,
}

impl Bench {
    /// Subscribed, with what that sent taken away.
    pub(super) fn new(change: impl FnOnce(&mut ConsumerConfig)) -> Self {
        let mut config = ConsumerConfig::new("persistent://public/default/t", "s");
        config.subscription_type = SubscriptionType::Shared;
        config.receiver_queue_size = 100;
        change(&mut config);
        let mut bench = Self {
            consumer: Consumer::new(7, config),
            wire: TestWire::default(),
            now: 0,
        };
        bench.subscribe();
        bench.events();
        bench
    }

    pub(super) fn subscribe(&mut self) {
        self.consumer.subscribe(self.now, &mut self.wire);
        let command = self.sent(Type::Subscribe).pop().expect("SUBSCRIBE");
        self.reply(command.subscribe.unwrap().request_id, Ok(success()));
    }

    pub(super) fn reply(&mut self, request_id: u64, result: Result<BaseCommand, Error>) {
        let consumer = &mut self.consumer;
        assert!(consumer.handle_answer(self.now, request_id, result, &mut self.wire));
    }

    /// Takes the commands of a kind away.
    pub(super) fn sent(&mut self, kind: Type) -> Vec<BaseCommand> {
        let (found, rest) = std::mem::take(&mut self.wire.sent)
            .into_iter()
            .partition(|command| command.r#type == kind as i32);
        self.wire.sent = rest;
        found
    }

    /// Sum of the FLOWs since the last call.
    pub(super) fn flowed(&mut self) -> u64 {
        let flows = self.sent(Type::Flow);
        flows
            .iter()
            .map(|command| u64::from(command.flow.as_ref().unwrap().message_permits))
            .sum()
    }

    pub(super) fn deliver(
        &mut self,
        entry: u64,
        data: bytes::Bytes,
        change: impl FnOnce(&mut CommandMessage),
    ) -> Result<(), Violation> {
        let mut command = CommandMessage {
            consumer_id: 7,
            message_id: MessageIdData {
                ledger_id: 1,
                entry_id: entry,
                ..MessageIdData::default()
            },
            ..CommandMessage::default()
        };
        change(&mut command);
        let result = self
            .consumer
            .handle_message(self.now, command, data, &mut self.wire);
        self.audit();
        result
    }

    pub(super) fn take(&mut self) -> Option<ReceivedMessage> {
        let message = self.consumer.take(self.now, &mut self.wire);
        self.audit();
        message
    }

    pub(super) fn take_all(&mut self) -> Vec<ReceivedMessage> {
        std::iter::from_fn(|| self.take()).collect()
    }

    pub(super) fn ack(&mut self, id: &MessageId, call: Option<Call>) {
        let ids = std::slice::from_ref(id);
        self.consumer
            .acknowledge(self.now, ids, call, &mut self.wire);
        self.audit();
    }

    pub(super) fn advance(&mut self, by: Nanos) {
        self.now += by;
        self.consumer.handle_timeout(self.now, &mut self.wire);
        self.audit();
    }

    pub(super) fn events(&mut self) -> Vec<ConsumerEvent> {
        std::iter::from_fn(|| self.consumer.poll_event()).collect()
    }

    pub(super) fn audit(&self) -> Audit {
        self.consumer.audit().unwrap()
    }

    /// Ids and ack sets of the ACKs since the last call.
    pub(super) fn acked(&mut self) -> Vec<(u64, Vec<i64>)> {
        let acks = self.sent(Type::Ack);
        acks.into_iter()
            .flat_map(|command| command.ack.unwrap().message_id)
            .map(|id| (id.entry_id, id.ack_set))
            .collect()
    }
}
