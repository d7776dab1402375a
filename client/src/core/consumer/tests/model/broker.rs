//! A broker in small: one topic, one subscription, one consumer.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use vela_proto::CommandGetLastMessageIdResponse;

use super::super::build::{self, Damage};
use super::super::*;

/// What an entry of the topic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Single,
    Batch(u32),
    Bad(u32, Damage),
    /// Message number, chunk, of how many.
    Chunk(u32, i32, i32),
}

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) kind: Kind,
    /// What the subscription has not acknowledged.
    pub(super) left: AckSet,
    pub(super) deliveries: u32,
    pub(super) data: Bytes,
}

impl Stored {
    pub(super) fn new(kind: Kind) -> Self {
        let (size, data) = match kind {
            Kind::Single => (1, build::single("x")),
            Kind::Batch(size) => (size, build::batch(size)),
            Kind::Bad(size, damage) => (size, build::damaged(size, damage)),
            Kind::Chunk(number, index, of) => {
                let uuid = format!("u{number}");
                (1, build::chunk(&uuid, index, of, of as usize * 2, b"ab"))
            }
        };
        Self {
            kind,
            left: AckSet::full(size),
            deliveries: 0,
            data,
        }
    }

    pub(super) fn size(&self) -> u32 {
        match self.kind {
            Kind::Batch(size) | Kind::Bad(size, _) => size,
            _ => 1,
        }
    }
}

#[derive(Debug)]
pub(super) enum ToClient {
    Message(CommandMessage, Bytes),
    Reply(u64, Box<Result<BaseCommand, Error>>),
    Closed,
}

/// The broker's side.
pub(super) struct Broker {
    pub(super) config: ConsumerConfig,
    pub(super) message_permits: bool,
    pub(super) entries: Vec<Stored>,
    /// Next entry to read.
    pub(super) read: usize,
    pub(super) pending: BTreeSet<usize>,
    pub(super) replay: BTreeSet<usize>,
    pub(super) attached: bool,
    pub(super) balance: i64,
    pub(super) granted: u64,
    pub(super) charged: u64,
    pub(super) epoch: u64,
    pub(super) to_client: VecDeque<ToClient>,
}

impl Broker {
    pub(super) fn attach(&mut self) {
        self.attached = true;
        (self.balance, self.granted, self.charged) = (0, 0, 0);
    }

    pub(super) fn detach(&mut self) {
        self.attached = false;
        let pending = std::mem::take(&mut self.pending);
        self.replay.extend(pending);
    }

    /// Everything from this entry on comes; from the first, if it is the one before.
    fn begin_at(&mut self, target: u64) {
        let target = if target == u64::MAX {
            0
        } else {
            target as usize
        };
        for (entry, stored) in self.entries.iter_mut().enumerate() {
            stored.deliveries = 0;
            stored.left = if entry < target {
                AckSet::from_words(&[0])
            } else {
                AckSet::full(stored.size())
            };
        }
        self.pending.clear();
        self.replay.clear();
        self.read = target;
    }

    pub(super) fn acknowledge(&mut self, entry: usize, set: &[i64]) {
        let index_ack = self.config.batch_index_ack;
        let Some(stored) = self.entries.get_mut(entry) else {
            return;
        };
        if set.is_empty() {
            stored.left = AckSet::from_words(&[0]);
        } else if index_ack {
            stored.left.intersect(&AckSet::from_words(set));
        }
        if stored.left.is_empty() {
            self.pending.remove(&entry);
            self.replay.remove(&entry);
            stored.deliveries = 0;
        }
    }

    pub(super) fn handle(&mut self, command: BaseCommand) {
        if let Some(subscribe) = command.subscribe {
            self.attach();
            self.epoch = subscribe.consumer_epoch();
            if !self.config.durable {
                let start = subscribe.start_message_id.unwrap().entry_id;
                self.begin_at(start);
            }
            self.reply(subscribe.request_id, success());
            return;
        }
        // An acknowledgement of a consumer that is not there is not answered.
        if !self.attached {
            let request_id = match (&command.seek, &command.get_last_message_id) {
                (Some(seek), _) => seek.request_id,
                (_, Some(last)) => last.request_id,
                _ => return,
            };
            let error = Error::Broker {
                code: vela_proto::ServerError::MetadataError,
                message: "Consumer not found".to_owned(),
            };
            self.to_client
                .push_back(ToClient::Reply(request_id, Box::new(Err(error))));
            return;
        }
        if let Some(flow) = command.flow {
            assert!(flow.message_permits > 0);
            self.balance += i64::from(flow.message_permits);
            self.granted += u64::from(flow.message_permits);
        } else if let Some(ack) = command.ack {
            for id in &ack.message_id {
                let entry = id.entry_id as usize;
                if ack.ack_type == 0 {
                    self.acknowledge(entry, &id.ack_set);
                } else {
                    (0..entry).for_each(|before| self.acknowledge(before, &[]));
                    self.acknowledge(entry, &id.ack_set);
                }
            }
            if let Some(request_id) = ack.request_id {
                self.reply(request_id, success());
            }
        } else if let Some(again) = command.redeliver_unacknowledged_messages {
            self.epoch = self.epoch.max(again.consumer_epoch());
            let all = again.message_ids.is_empty();
            let named: BTreeSet<_> = again
                .message_ids
                .iter()
                .map(|id| id.entry_id as usize)
                .collect();
            for entry in std::mem::take(&mut self.pending) {
                if all || named.contains(&entry) {
                    self.replay.insert(entry);
                    self.entries[entry].deliveries += 1;
                } else {
                    self.pending.insert(entry);
                }
            }
        } else if let Some(seek) = command.seek {
            self.begin_at(seek.message_id.unwrap().entry_id);
            self.detach();
            self.to_client.push_back(ToClient::Closed);
            self.reply(seek.request_id, success());
        } else if let Some(last) = command.get_last_message_id {
            let mut answer = success();
            answer.get_last_message_id_response = Some(CommandGetLastMessageIdResponse {
                request_id: last.request_id,
                last_message_id: MessageIdData {
                    ledger_id: 1,
                    entry_id: self.entries.len() as u64 - 1,
                    ..MessageIdData::default()
                },
                consumer_mark_delete_position: None,
            });
            self.reply(last.request_id, answer);
        }
    }

    pub(super) fn reply(&mut self, request_id: u64, command: BaseCommand) {
        self.to_client
            .push_back(ToClient::Reply(request_id, Box::new(Ok(command))));
    }

    /// Sends one entry, if it may.
    pub(super) fn dispatch(&mut self) -> bool {
        if !self.attached || self.balance <= 0 {
            return false;
        }
        let entry = match self.replay.pop_first() {
            Some(entry) => entry,
            None if self.read < self.entries.len() => {
                self.read += 1;
                self.read - 1
            }
            None => return false,
        };
        let shared = self.config.subscription_type.is_shared();
        let stored = &self.entries[entry];
        if stored.left.is_empty() {
            return true;
        }
        let charge = stored.left.count();
        let partial = charge < stored.size();
        self.balance -= i64::from(charge);
        self.charged += u64::from(charge);
        self.pending.insert(entry);
        let command = CommandMessage {
            consumer_id: 7,
            message_id: MessageIdData {
                ledger_id: 1,
                entry_id: entry as u64,
                ..MessageIdData::default()
            },
            redelivery_count: shared.then_some(stored.deliveries),
            ack_set: if partial {
                stored.left.to_words()
            } else {
                Vec::new()
            },
            consumer_epoch: (!shared).then_some(self.epoch),
            message_permits: self.message_permits.then_some(charge),
        };
        self.to_client
            .push_back(ToClient::Message(command, stored.data.clone()));
        true
    }
}
