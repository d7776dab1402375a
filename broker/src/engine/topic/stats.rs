//! CONSUMER_STATS.

use std::time::{Duration, SystemTime};

use vela_proto::{self as proto, BaseCommand, base_command::Type};

use super::Topics;
use super::openings::ConsumerSeat;
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message};
use crate::engine::reply;
use crate::engine::time::Now;

impl Topics {
    pub(super) fn consumer_stats(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        request_id: u64,
        now: Now,
    ) {
        let Some(ConsumerSeat {
            topic,
            sub,
            consumer,
        }) = self.consumer_seat(client)
        else {
            return self.no_consumer(cx, client, request_id);
        };
        let Some(topic) = self.topics.get_mut(topic as usize) else {
            return;
        };
        let Some(sub) = topic.subs.get_mut(sub as usize) else {
            return;
        };
        let backlog = sub
            .acks(&topic.state)
            .backlog(&topic.state.ledgers, topic.confirmed);
        let kind = sub.sub_type().name();
        let unacked = sub.pending.unacked_of(consumer);
        let Some(consumer) = sub.roster.get_mut(consumer) else {
            return;
        };
        let connected = SystemTime::UNIX_EPOCH + Duration::from_millis(consumer.connected_ms);
        let response = proto::CommandConsumerStatsResponse {
            request_id,
            error_code: None,
            error_message: None,
            msg_rate_out: Some(consumer.sent.rate(now.ms)),
            msg_throughput_out: Some(consumer.sent_bytes.rate(now.ms)),
            msg_rate_redeliver: Some(consumer.redelivered.rate(now.ms)),
            consumer_name: Some(consumer.name.clone()),
            available_permits: Some(consumer.account().balance() as u64),
            unacked_messages: Some(unacked),
            blocked_consumer_on_unacked_msgs: Some(consumer.is_blocked()),
            address: Some(format!("/{}", consumer.address)),
            connected_since: Some(humantime::format_rfc3339_nanos(connected).to_string()),
            r#type: Some(kind.into()),
            msg_rate_expired: Some(0.0),
            msg_backlog: Some(backlog),
            message_ack_rate: Some(consumer.acked.rate(now.ms)),
        };
        let command = Box::new(BaseCommand {
            consumer_stats_response: Some(response),
            ..reply::base(Type::ConsumerStatsResponse)
        });
        cx.post(
            client.session.core,
            Message::Reply {
                session: client.session,
                command,
            },
        );
    }
}
