//! The hot commands: SEND, FLOW, ACK.

use vela_codec::{Frame, entry::Entry, hot};
use vela_proto::{ServerError, command_ack::AckType};

use super::{ClientState, Session};
use crate::engine::context::Context;
use crate::engine::message::{AckedId, Message, SendId, SendKind};
use crate::engine::time::Now;
use crate::store::log::Position;

/// Bytes that a message takes in a batch at least: the size of its metadata, and metadata with its payload size.
const SMALLEST_IN_BATCH: u32 = 6;

impl Session {
    /// SEND: checked here, stored by the topic, answered in the order of the SENDs.
    pub(super) fn publish(&mut self, cx: &mut Context, frame: Frame, now: Now) {
        let Ok(send) = hot::SendView::parse(frame.command()) else {
            return self.protocol_error(cx);
        };
        let Some(client) = self.producers.get(&send.producer_id) else {
            // A SEND that crosses our CLOSE_PRODUCER is dropped; the client sends it again when it has reconnected.
            if self
                .closed_by_broker
                .get(&send.producer_id)
                .is_some_and(|closed| closed.until > now.ms && !closed.open_again)
            {
                return;
            }
            return self.protocol_error(cx);
        };
        if matches!(client.state, ClientState::Closing) {
            return self.protocol_error(cx);
        }
        let Ok(entry) = Entry::parse(frame.rest()) else {
            return self.protocol_error(cx);
        };
        let refused = if send.has_message_id {
            Some((
                ServerError::NotAllowedError,
                "a SEND may name its message id on a shadow topic only",
            ))
        } else if send.has_txn {
            Some((
                ServerError::NotAllowedError,
                "transactions are not enabled on this broker",
            ))
        } else if entry.verify_checksum().is_err() {
            Some((
                ServerError::ChecksumError,
                "the checksum does not match the message",
            ))
        } else {
            None
        };
        let (client_ref, core) = (self.client_ref(client, send.producer_id), client.core);
        let client_volatile = client.volatile;
        let bytes = frame.rest().len() as u32;
        self.publish_begun(cx, bytes, now);
        // Rates are charged by what the client says; a batch cannot hold more messages than fit into the largest one.
        let most = cx.settings.max_message_size / SMALLEST_IN_BATCH;
        let num_messages = (send.num_messages.max(1) as u32).min(most.max(1));
        let surplus = client_volatile
            && self.pending_volatile
                > cx.settings
                    .max_concurrent_non_persistent_message_per_connection;
        let volatile = client_volatile && !surplus;
        self.pending_volatile += u32::from(volatile);
        let awaits = cx.rate_limited && core != cx.core;
        if awaits {
            self.await_charge(cx);
        }
        cx.post(
            core,
            Message::Publish {
                send: SendId {
                    client: client_ref,
                    sequence_id: send.sequence_id,
                    highest_sequence_id: send
                        .highest_sequence_id
                        .filter(|highest| *highest >= send.sequence_id),
                    bytes,
                    kind: match (send.marker, send.is_chunk) {
                        (true, _) => SendKind::Marker,
                        (_, true) => SendKind::Chunk,
                        _ => SendKind::Message,
                    },
                    volatile,
                },
                num_messages,
                awaits,
                surplus,
                refused,
                frame,
            },
        );
    }

    /// FLOW: unknown consumers are ignored, an impossible number ends the connection.
    pub(super) fn flow(&mut self, cx: &mut Context, frame: &Frame) {
        let Ok(flow) = hot::FlowView::parse(frame.command()) else {
            return self.protocol_error(cx);
        };
        if flow.permits == 0 || flow.permits > i32::MAX as u32 {
            return self.protocol_error(cx);
        }
        if let Some(client) = self.consumers.get(&flow.consumer_id)
            && !matches!(client.state, ClientState::Closing)
        {
            let client_ref = self.client_ref(client, flow.consumer_id);
            cx.post(
                client.core,
                Message::Flow {
                    client: client_ref,
                    permits: flow.permits,
                },
            );
        }
    }

    /// ACK: unknown consumers are ignored, even with a request id.
    pub(super) fn ack(&mut self, cx: &mut Context, frame: &Frame) {
        let Ok(ack) = hot::AckView::parse(frame.command()) else {
            return self.protocol_error(cx);
        };
        let Some(client) = self.consumers.get(&ack.consumer_id) else {
            return;
        };
        if matches!(client.state, ClientState::Closing) {
            return;
        }
        let (client_ref, core) = (self.client_ref(client, ack.consumer_id), client.core);
        if ack.has_txn {
            if let Some(request_id) = ack.request_id {
                self.out.encode(|buf| {
                    let error = Some((
                        ServerError::NotAllowedError,
                        "transactions are not enabled on this broker",
                    ));
                    vela_codec::encode::ack_response(buf, ack.consumer_id, Some(request_id), error);
                });
                self.touch(cx);
            }
            return;
        }
        let ids = ack
            .ids()
            .map(|id| AckedId {
                position: Position::new(id.ledger as i64, id.entry as i64),
                ack_set: id.ack_set.iter().collect(),
            })
            .collect();
        let cumulative = ack.ack_type == AckType::Cumulative;
        cx.post(
            core,
            Message::Ack {
                client: client_ref,
                ids,
                cumulative,
                request_id: ack.request_id,
            },
        );
    }
}
