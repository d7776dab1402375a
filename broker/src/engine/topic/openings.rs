//! Producers and consumers as this core knows them, and openings that are still being decided.
//!
//! Whether a name or an exclusive subscription is free may depend on a connection elsewhere that is asked for a sign of life. Until it is
//! decided, what the newcomer sends waits here in order, and closing takes the opening back.

use std::collections::VecDeque;

use vela_proto::ServerError;

use super::Topics;
use super::subscription::Subscription;
use crate::engine::context::Context;
use crate::engine::message::{
    ClientRef, Message, OpenConsumer, OpenProducer, SeekTarget, SendId, SessionRef,
};
use crate::engine::time::Now;

/// Messages, and ids in them, that may wait behind an opening that is being decided; a client that sends more loses its connection.
pub(super) const MAX_WAITING: usize = 4096;
/// Openings that may wait for an answer about the holder; more are refused as if it were alive.
const MAX_PROBES: usize = 4096;

/// Where a consumer is.
#[derive(Copy, Clone, Debug)]
pub(super) struct ConsumerSeat {
    pub(super) topic: u32,
    pub(super) sub: u32,
    pub(super) consumer: u32,
}

/// What a [`ClientRef`] is at this core.
pub(super) enum Seat {
    Producer {
        topic: u32,
        producer: u32,
    },
    Consumer(ConsumerSeat),
    /// A producer that waits until it can have its topic for itself.
    Queued {
        topic: u32,
    },
    /// Its opening is being decided; what it sends meanwhile waits in order.
    Waiting {
        probe: u64,
        later: VecDeque<Message>,
        /// Messages in `later`, and ids and ack set words in those.
        weight: usize,
    },
}

/// What a message that waits counts for.
fn weight(message: &Message) -> usize {
    match message {
        Message::Ack { ids, .. } => ids.iter().map(|id| 1 + id.ack_set.len()).sum::<usize>() + 1,
        Message::Redeliver { ids: Some(ids), .. } => ids.len() + 1,
        Message::Seek {
            target: SeekTarget::Position(_, ack_set),
            ..
        } => ack_set.len() + 1,
        _ => 1,
    }
}

/// Why an opening is refused: the request to answer, the error, the text.
pub(super) type Refusal = (u64, ServerError, String);

/// What a liveness probe decides about.
pub(super) enum ProbeFor {
    /// The producer, and why it is refused if the holder is alive.
    Producer(Box<OpenProducer>, (ServerError, String)),
    Consumer(Box<OpenConsumer>, ServerError, String),
}

/// Tells a client that its SUBSCRIBE was refused.
pub(super) fn tell_refused(
    cx: &mut Context,
    client: ClientRef,
    (request_id, error, message): Refusal,
) {
    let refused = Message::ConsumerRefused {
        client,
        request_id,
        error,
        message,
    };
    cx.post(client.session.core, refused);
}

impl Topics {
    /// Where a consumer is, if it is one.
    pub(super) fn consumer_seat(&self, client: ClientRef) -> Option<ConsumerSeat> {
        match self.clients.get(&client.key()) {
            Some(Seat::Consumer(seat)) => Some(*seat),
            _ => None,
        }
    }

    /// The subscription of a consumer: the slot of its topic, the consumer's index, and the subscription.
    pub(super) fn subscription_of(
        &mut self,
        client: ClientRef,
    ) -> Option<(u32, u32, &mut Subscription)> {
        let seat = self.consumer_seat(client)?;
        let topic = self.topics.get_mut(seat.topic as usize)?;
        let sub = topic.subs.get_mut(seat.sub as usize)?;
        Some((seat.topic, seat.consumer, sub))
    }

    /// Has a topic looked at before the turn ends.
    pub(super) fn mark(&mut self, slot: u32) {
        if let Some(topic) = self.topics.get_mut(slot as usize) {
            topic.mark_dirty(&mut self.dirty);
        }
    }

    /// Queues a message of a client whose opening is being decided. Closing it takes the opening back.
    pub(super) fn behind_waiting(
        &mut self,
        cx: &mut Context,
        message: Message,
        now: Now,
    ) -> Option<Message> {
        let client = match &message {
            Message::Publish {
                send: SendId { client, .. },
                ..
            }
            | Message::Flow { client, .. }
            | Message::Ack { client, .. }
            | Message::CloseProducer { client, .. }
            | Message::CloseConsumer { client, .. }
            | Message::Redeliver { client, .. }
            | Message::Unsubscribe { client, .. }
            | Message::Seek { client, .. }
            | Message::LastMessageId { client, .. }
            | Message::ConsumerStats { client, .. } => *client,
            _ => return Some(message),
        };
        let Some(Seat::Waiting {
            probe,
            later,
            weight: waiting,
        }) = self.clients.get_mut(&client.key())
        else {
            return Some(message);
        };
        if matches!(
            message,
            Message::CloseProducer { .. } | Message::CloseConsumer { .. }
        ) {
            self.probes.remove(probe);
            self.deciding.remove(&client.key());
            let later = std::mem::take(later);
            self.clients.remove(&client.key());
            for message in later {
                self.answer_unopened(cx, message, now);
            }
            return Some(message);
        }
        *waiting = waiting.saturating_add(weight(&message));
        if *waiting > MAX_WAITING {
            if let Message::Publish { send, .. } = &message {
                // It is not among what waits, so nobody else takes its weight back.
                let send = *send;
                cx.post(client.session.core, Message::NoSuchProducer { send });
            }
            cx.post(
                client.session.core,
                Message::Disconnect {
                    session: client.session,
                },
            );
        } else {
            later.push_back(message);
        }
        None
    }

    /// Answers what waited behind an opening that was taken back.
    pub(super) fn answer_unopened(&mut self, cx: &mut Context, message: Message, now: Now) {
        match message {
            Message::Publish { send, .. } => cx.post(
                send.client.session.core,
                Message::SendRefused {
                    send,
                    error: ServerError::ServiceNotReady,
                    message: "the producer was closed before it was open",
                },
            ),
            // Nobody is there: questions are told so.
            message => self.message(cx, message, now),
        }
    }

    /// Makes a client wait; what waits already stays.
    pub(super) fn wait(&mut self, client: ClientRef, probe: u64) {
        let seat = match self.clients.remove(&client.key()) {
            Some(Seat::Waiting { later, weight, .. }) => Seat::Waiting {
                probe,
                later,
                weight,
            },
            _ => Seat::Waiting {
                probe,
                later: VecDeque::new(),
                weight: 0,
            },
        };
        self.clients.insert(client.key(), seat);
    }

    /// Asks whether the holder of a name or of an exclusive subscription is alive; the newcomer waits for the answer.
    pub(super) fn probe(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        holder: SessionRef,
        what: ProbeFor,
    ) {
        self.next_probe += 1;
        let probe = self.next_probe;
        self.wait(client, probe);
        let full = self.probes.len() >= MAX_PROBES;
        self.probes.insert(probe, (client, what));
        if full {
            return cx.post(cx.core, Message::Probed { probe, alive: true });
        }
        cx.post(
            holder.core,
            Message::Probe {
                session: holder,
                probe,
                from: cx.core,
            },
        );
    }

    pub(super) fn probed(&mut self, cx: &mut Context, probe: u64, alive: bool, now: Now) {
        let Some((client, what)) = self.probes.remove(&probe) else {
            return;
        };
        match what {
            ProbeFor::Producer(open, _) if !alive => self.open_producer(cx, client, open, now),
            ProbeFor::Consumer(open, ..) if !alive => self.open_consumer(cx, client, open, now),
            ProbeFor::Producer(open, (error, message)) => {
                self.refuse_producer(cx, client, (open.request_id, error, message), now);
            }
            ProbeFor::Consumer(open, error, message) => {
                self.refuse_consumer(cx, client, (open.request_id, error, message), now);
            }
        }
    }

    /// Tells a client that its PRODUCER was refused: request, error, text.
    pub(super) fn refuse_producer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        (request_id, error, message): Refusal,
        now: Now,
    ) {
        self.drop_seat(cx, client, now);
        let refused = Message::ProducerRefused {
            client,
            request_id,
            error,
            message,
        };
        cx.post(client.session.core, refused);
    }

    /// The same for SUBSCRIBE.
    pub(super) fn refuse_consumer(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        refusal: Refusal,
        now: Now,
    ) {
        self.drop_seat(cx, client, now);
        tell_refused(cx, client, refusal);
    }

    /// Forgets a client that was refused. SENDs that followed its PRODUCER meet nobody, as the protocol has it; questions get their answers.
    pub(super) fn drop_seat(&mut self, cx: &mut Context, client: ClientRef, now: Now) {
        let Some(Seat::Waiting { later, .. }) = self.clients.remove(&client.key()) else {
            return;
        };
        let sends = later.iter().filter_map(|message| match message {
            Message::Publish { send, .. } => Some(*send),
            _ => None,
        });
        let sends: Vec<SendId> = sends.collect();
        if !sends.is_empty() {
            for send in sends {
                cx.post(client.session.core, Message::NoSuchProducer { send });
            }
            return;
        }
        for message in later {
            self.message(cx, message, now);
        }
    }

    /// Lets the messages go on that waited for an opening.
    pub(super) fn replay_waiting(&mut self, cx: &mut Context, seat: Option<Seat>, now: Now) {
        if let Some(Seat::Waiting { later, .. }) = seat {
            for message in later {
                self.message(cx, message, now);
            }
        }
    }
}
