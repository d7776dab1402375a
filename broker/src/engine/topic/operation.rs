//! Questions and changes that may need entries which are not in memory: seek, rollback, the last message id.

use vela_codec::entry::Entry;
use vela_proto::ServerError;

use super::ack::MAX_WORDS;
use super::by_time::TimeSearch;
use super::joining::Expel;
use super::lanes::LaneSeat;
use super::openings::ConsumerSeat;
use super::openings::tell_refused;
use super::subscription::mark_delete;
use super::{Topic, Topics};
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, Message, SeekTarget};
use crate::engine::reply;
use crate::engine::time::Now;
use crate::store::log::{Position, Read, ReadHint, Record};

/// Operations of one topic that wait for reads; more are refused.
const MAX_OPERATIONS: usize = 1000;
const DELETED: &str = "The subscription was deleted while its position was looked for";

/// Something a topic is in the middle of.
pub(super) enum Operation {
    /// The batch size of the last entry is part of the answer.
    LastMessageId {
        client: ClientRef,
        request_id: u64,
        sub: u32,
    },
    /// Looks for the first entry of a time.
    Find {
        sub: u32,
        client: ClientRef,
        request_id: u64,
        search: TimeSearch,
        then: Then,
    },
}

/// What a search was for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Then {
    /// SEEK by time.
    Seek,
    /// A consumer that starts some seconds back.
    Rollback,
}

enum Step {
    Done,
    Waits,
}

impl Topics {
    /// SEEK: the subscription is fenced, its consumers are closed, the cursor moves, then the caller is answered.
    pub(super) fn seek(
        &mut self,
        cx: &mut Context,
        client: ClientRef,
        request_id: u64,
        target: SeekTarget,
        now: Now,
    ) {
        let Some(ConsumerSeat {
            topic: slot,
            sub: sub_slot,
            ..
        }) = self.consumer_seat(client)
        else {
            return self.no_consumer(cx, client, request_id);
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.is_volatile() {
            // There is no place to go to.
            return self.seek_answer(cx, slot, client, request_id);
        }
        if let SeekTarget::Position(_, ack_set) = &target
            && ack_set.len() > MAX_WORDS
        {
            let text = format!(
                "The ack set of SEEK has {} words, at most {MAX_WORDS} are taken",
                ack_set.len()
            );
            return self.reply_error(cx, client, request_id, ServerError::MetadataError, text);
        }
        let busy = topic.operations.len() >= MAX_OPERATIONS;
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        if sub.resetting || busy {
            return self.reply_error(
                cx,
                client,
                request_id,
                ServerError::UnknownError,
                "The subscription is being reset already",
            );
        }
        sub.resetting = true;
        sub.reset_for = Some(client.key());
        self.expel(cx, slot, sub_slot, None, Expel::Seek, now);
        match target {
            SeekTarget::Position(position, ack_set) => {
                let Some(topic) = self.topics.get_mut(slot as usize) else {
                    return;
                };
                let to = topic.seek_position(position);
                // Where another entry comes next, because the one that was meant is gone or not there, all of that one comes.
                let meant = topic.state.ledgers.next(to) == Some(position);
                let ack_set = if meant { ack_set } else { Vec::new() };
                self.reset(slot, sub_slot, to, &ack_set);
                self.finish_reset(cx, slot, sub_slot, now);
                self.seek_answer(cx, slot, client, request_id);
            }
            SeekTarget::PublishTime(time) => {
                self.find(slot, sub_slot, client, request_id, time, Then::Seek)
            }
        }
    }

    pub(super) fn start_rollback(
        &mut self,
        slot: u32,
        sub_slot: u32,
        client: ClientRef,
        request_id: u64,
        time: u64,
    ) {
        if let Some(sub) = self
            .topics
            .get_mut(slot as usize)
            .and_then(|topic| topic.subs.get_mut(sub_slot as usize))
        {
            sub.resetting = true;
            sub.reset_for = Some(client.key());
        }
        self.find(slot, sub_slot, client, request_id, time, Then::Rollback);
    }

    fn find(
        &mut self,
        slot: u32,
        sub: u32,
        client: ClientRef,
        request_id: u64,
        time: u64,
        then: Then,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let search = TimeSearch::new(topic, time);
        topic.operations.push(Operation::Find {
            sub,
            client,
            request_id,
            search,
            then,
        });
        topic.mark_dirty(&mut self.dirty);
    }

    fn seek_answer(&mut self, cx: &mut Context, slot: u32, client: ClientRef, request_id: u64) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return;
        };
        let command = Box::new(reply::success(request_id));
        self.after_log(
            cx,
            topic.log(),
            client.session.core,
            Message::Reply {
                session: client.session,
                command,
            },
        );
    }

    /// Moves a subscription's cursor.
    pub(super) fn reset(&mut self, slot: u32, sub_slot: u32, to: Position, ack_set: &[i64]) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return;
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        match sub.cursor {
            Some(cursor) => {
                seat.append(&Record::CursorReset {
                    topic: topic.state.id,
                    cursor,
                    to,
                    ack_set_of_next: ack_set.into(),
                });
                topic.state.reset_cursor(cursor, to, ack_set);
            }
            None => {
                let next = topic.state.ledgers.next(to).map(|next| (next, ack_set));
                sub.own.reset(to, next);
            }
        }
        sub.rewind(to);
    }

    /// Lets consumers in again that waited for a reset.
    pub(super) fn finish_reset(&mut self, cx: &mut Context, slot: u32, sub_slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        let Some(sub) = topic.subs.get_mut(sub_slot as usize) else {
            return;
        };
        sub.resetting = false;
        sub.reset_for = None;
        let waiting = std::mem::take(&mut sub.waiting);
        topic.mark_dirty(&mut self.dirty);
        self.reopen_waiting(cx, waiting, now);
    }

    /// GET_LAST_MESSAGE_ID.
    pub(super) fn last_message_id(&mut self, cx: &mut Context, client: ClientRef, request_id: u64) {
        let Some(ConsumerSeat {
            topic: slot, sub, ..
        }) = self.consumer_seat(client)
        else {
            return self.no_consumer(cx, client, request_id);
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.is_volatile() {
            return self.no_last_id(cx, client, request_id);
        }
        if topic.operations.len() >= MAX_OPERATIONS {
            let text = format!(
                "{MAX_OPERATIONS} requests of topic {} wait for reads; try again",
                topic.name
            );
            return self.reply_error(cx, client, request_id, ServerError::TooManyRequests, text);
        }
        topic.operations.push(Operation::LastMessageId {
            client,
            request_id,
            sub,
        });
        topic.mark_dirty(&mut self.dirty);
    }

    /// Takes every operation as far as it gets with what is in memory.
    pub(super) fn poll_operations(&mut self, cx: &mut Context, slot: u32, now: Now) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.operations.is_empty() {
            return;
        }
        for mut operation in std::mem::take(&mut topic.operations) {
            let step = match &mut operation {
                Operation::LastMessageId {
                    client,
                    request_id,
                    sub,
                } => self.poll_last(cx, slot, *client, *request_id, *sub),
                Operation::Find { .. } => self.poll_find(cx, slot, &mut operation, now),
            };
            if let Step::Waits = step
                && let Some(topic) = self.topics.get_mut(slot as usize)
            {
                if let Some(seat) = self.lanes.get_mut(topic.lane) {
                    seat.readers.insert(slot);
                }
                topic.operations.push(operation);
            }
        }
    }

    fn poll_last(
        &mut self,
        cx: &mut Context,
        slot: u32,
        client: ClientRef,
        request_id: u64,
        sub: u32,
    ) -> Step {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return Step::Done;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return Step::Done;
        };
        let last = topic.confirmed;
        let batch_index = if topic.state.ledgers.contains(last) {
            match topic.read(seat, last) {
                Read::Entry(data) => {
                    let view = Entry::parse(&data)
                        .ok()
                        .and_then(|entry| entry.metadata_view());
                    view.and_then(|view| view.num_messages_in_batch)
                        .map_or(-1, |count| count.max(1) - 1)
                }
                Read::Miss => return Step::Waits,
                Read::Gone => -1,
                Read::Corrupt => {
                    self.reply_error(
                        cx,
                        client,
                        request_id,
                        ServerError::MetadataError,
                        "the last entry cannot be read",
                    );
                    return Step::Done;
                }
            }
        } else {
            -1
        };
        let mark_delete = topic
            .subs
            .get(sub as usize)
            .map_or(Position::EARLIEST, |sub| mark_delete(&topic.state, sub));
        // A cursor before everything stands before the first entry there is, as clients see it.
        let mark_delete = match topic.state.ledgers.first() {
            Some(first) if mark_delete.ledger < 0 => first.before(),
            _ => mark_delete,
        };
        let command = Box::new(reply::last_message_id(
            request_id,
            last,
            topic.name.partition(),
            batch_index,
            mark_delete,
        ));
        cx.post(
            client.session.core,
            Message::Reply {
                session: client.session,
                command,
            },
        );
        Step::Done
    }

    /// Answers whoever looked for a place in a subscription that was deleted meanwhile.
    fn refuse_find(&mut self, cx: &mut Context, client: ClientRef, request_id: u64, then: Then) {
        let error = ServerError::MetadataError;
        match then {
            Then::Seek => self.reply_error(cx, client, request_id, error, DELETED),
            Then::Rollback => tell_refused(cx, client, (request_id, error, DELETED.into())),
        }
    }

    fn poll_find(
        &mut self,
        cx: &mut Context,
        slot: u32,
        operation: &mut Operation,
        now: Now,
    ) -> Step {
        let Operation::Find {
            sub,
            client,
            request_id,
            search,
            then,
        } = operation
        else {
            return Step::Done;
        };
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return Step::Done;
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return Step::Done;
        };
        let same = topic
            .subs
            .get(*sub as usize)
            .is_some_and(|sub| sub.reset_for == Some(client.key()));
        if !same {
            // The subscription went meanwhile; its slot may be somebody else's.
            let (client, request_id, then) = (*client, *request_id, *then);
            self.refuse_find(cx, client, request_id, then);
            return Step::Done;
        }
        let Some(to) = search.poll(topic, seat) else {
            return Step::Waits;
        };
        let (sub, client, request_id, then, lane) = (*sub, *client, *request_id, *then, topic.lane);
        self.reset(slot, sub, to, &[]);
        self.finish_reset(cx, slot, sub, now);
        match then {
            Then::Seek => self.seek_answer(cx, slot, client, request_id),
            Then::Rollback => self.after_log(
                cx,
                lane,
                client.session.core,
                Message::ConsumerOpened { client, request_id },
            ),
        }
        Step::Done
    }
}

impl Topic {
    /// The mark-delete position that makes `target` the next entry: the next existing one if it is gone, behind everything if it is beyond.
    pub(super) fn seek_position(&self, target: Position) -> Position {
        if target < Position::new(0, 0) {
            return self
                .state
                .ledgers
                .first()
                .map_or(self.confirmed, |first| self.state.ledgers.prev(first));
        }
        if target > self.confirmed {
            return self.confirmed;
        }
        self.state.ledgers.prev(target)
    }

    /// Entries that consumers can see.
    pub(super) fn visible_entries(&self) -> u64 {
        self.state
            .ledgers
            .entries_between(Position::EARLIEST, self.confirmed)
    }

    /// The entry with `rank` entries before it.
    pub(super) fn position_at(&self, mut rank: u64) -> Option<Position> {
        for ledger in self.state.ledgers.ledgers() {
            let entries = ledger.entries.max(0) as u64;
            if rank < entries {
                return Some(Position::new(ledger.id, rank as i64));
            }
            rank -= entries;
        }
        None
    }

    pub(super) fn read(&self, seat: &mut LaneSeat, position: Position) -> Read {
        seat.lane.read_entry(
            &self.state.ledgers,
            self.state.id,
            position,
            &mut ReadHint::default(),
        )
    }
}
