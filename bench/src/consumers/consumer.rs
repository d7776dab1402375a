//! One consumer: its permits, its acknowledgements, and the commands it sends.

use bytes::BytesMut;
use vela_codec::encode;
use vela_proto::base_command::Type;
use vela_proto::command_ack::AckType;
use vela_proto::{BaseCommand, CommandAck, CommandCloseConsumer, CommandFlow, CommandUnsubscribe};

#[derive(Debug)]
pub(super) struct Consumer {
    /// Index of the connection.
    pub(super) link: usize,
    /// Index of its subscription's book.
    pub(super) book: usize,
    /// Permits to give back.
    pub(super) owed: u64,
    /// It takes so many messages per second only; 0: as many as come.
    pub(super) slow: u64,
    /// Permits given so far.
    pub(super) given: u64,
    /// The ACK in the making, used again for each.
    pub(super) ack: BaseCommand,
    pub(super) acked_at: u64,
    pub(super) closing: bool,
    pub(super) closed: bool,
}

impl Consumer {
    pub(super) fn acks(&self) -> usize {
        self.ack.ack.as_ref().map_or(0, |ack| ack.message_id.len())
    }

    /// Permits to give back now: half the queue at a time, of a slow consumer what its rate allows.
    pub(super) fn permits_due(&self, queue: u64, elapsed_ns: u64) -> u64 {
        if self.slow == 0 {
            return if self.owed * 2 >= queue { self.owed } else { 0 };
        }
        let allowed = u128::from(self.slow) * u128::from(elapsed_ns) / 1_000_000_000;
        let allowed = u64::try_from(allowed).unwrap_or(u64::MAX);
        self.owed.min(allowed.saturating_sub(self.given))
    }

    pub(super) fn give(&mut self, id: u64, permits: u64, out: &mut BytesMut) {
        flow(id, permits, out);
        self.owed -= permits.min(self.owed);
        self.given += permits;
    }

    pub(super) fn send_ack(&mut self, out: &mut BytesMut, now: u64) {
        if self.acks() > 0 {
            encode::command(&self.ack, out);
        }
        if let Some(ack) = &mut self.ack.ack {
            ack.message_id.clear();
        }
        self.acked_at = now;
    }
}

pub(super) fn new_ack(consumer_id: u64) -> BaseCommand {
    BaseCommand {
        r#type: Type::Ack as i32,
        ack: Some(CommandAck {
            consumer_id,
            ack_type: AckType::Individual as i32,
            ..CommandAck::default()
        }),
        ..BaseCommand::default()
    }
}

/// Unsubscribes or closes. The request's id is the consumer's.
pub(super) fn end(id: u64, unsubscribe: bool, out: &mut BytesMut) {
    let command = if unsubscribe {
        BaseCommand {
            r#type: Type::Unsubscribe as i32,
            unsubscribe: Some(CommandUnsubscribe {
                consumer_id: id,
                request_id: id,
                ..CommandUnsubscribe::default()
            }),
            ..BaseCommand::default()
        }
    } else {
        BaseCommand {
            r#type: Type::CloseConsumer as i32,
            close_consumer: Some(CommandCloseConsumer {
                consumer_id: id,
                request_id: id,
                ..CommandCloseConsumer::default()
            }),
            ..BaseCommand::default()
        }
    };
    encode::command(&command, out);
}

pub(super) fn flow(consumer_id: u64, permits: u64, out: &mut BytesMut) {
    encode::command(
        &BaseCommand {
            r#type: Type::Flow as i32,
            flow: Some(CommandFlow {
                consumer_id,
                message_permits: u32::try_from(permits).unwrap_or(u32::MAX),
            }),
            ..BaseCommand::default()
        },
        out,
    );
}
