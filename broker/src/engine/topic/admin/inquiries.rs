//! Questions that need entries which may not be in memory: tried again when a chunk was read.

use super::super::Topics;
use super::super::by_time::TimeSearch;
use super::super::dispatch::stored_messages;
use super::super::joining::Expel;
use super::reply;
use crate::engine::admin::{Answer, Asker, CursorTarget};
use crate::engine::context::Context;
use crate::engine::time::Now;
use crate::store::log::{Position, Read};
use vela_codec::entry::Entry;

/// Questions of one topic that wait for reads; more are refused.
const INQUIRIES_MAX: usize = 256;
/// Messages of a batch within which a cursor can be put: as many as the ack sets of clients have bits. A batch says itself how many it has.
const WITHIN_MAX: u32 = 64 * 1024;
const CORRUPT: &str = "the stored entry cannot be read; the broker's own log says which";

/// A question that is under way.
pub(in crate::engine::topic) struct Inquiry {
    pub(super) asker: Asker,
    reading: Reading,
}

pub(super) enum Reading {
    /// The batch size of the last entry is part of the answer.
    LastMessageId,
    /// One entry.
    Entry(Position),
    /// The first entry of a time.
    Find { search: TimeSearch, then: Then },
    /// Moves a cursor to a message, whose batch size has to be known.
    Reset {
        subscription: String,
        target: CursorTarget,
    },
}

/// What a search is for.
pub(super) enum Then {
    /// The id is the answer.
    Id,
    /// The subscription's next message.
    Reset { subscription: String },
    /// What is before it is acknowledged, by one subscription or by all.
    Expire { subscription: Option<String> },
}

/// How far a question got.
enum Step {
    Answer(Answer),
    /// Answered elsewhere, or to be once something is durable.
    Move {
        to: Position,
        then: Then,
    },
    Reset {
        subscription: String,
        to: Position,
        ack_set: Vec<i64>,
    },
    Waits,
}

impl Topics {
    pub(super) fn inquire(&mut self, cx: &mut Context, asker: Asker, slot: u32, reading: Reading) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        if topic.inquiries.len() >= INQUIRIES_MAX {
            let text = format!(
                "{INQUIRIES_MAX} requests of topic {} wait for reads; try again",
                topic.name
            );
            return reply(cx, asker, Answer::Crowded(text));
        }
        topic.inquiries.push(Inquiry { asker, reading });
        topic.mark_dirty(&mut self.dirty);
    }

    pub(super) fn read_or_none(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        position: Option<Position>,
    ) {
        match position {
            Some(position) => self.inquire(cx, asker, slot, Reading::Entry(position)),
            None => reply(cx, asker, Answer::NoMessage),
        }
    }

    pub(super) fn entry(&mut self, cx: &mut Context, asker: Asker, slot: u32, position: Position) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let ledgers = &topic.state.ledgers;
        let last = topic.confirmed;
        if position > last || !ledgers.contains(position) {
            let known = ledgers.ledgers().any(|each| each.id == position.ledger);
            let answer = match known {
                true => Answer::Failed(format!(
                    "LastConfirmedEntry is {last} when reading entry {}",
                    position.entry
                )),
                false => Answer::NoMessage,
            };
            return reply(cx, asker, answer);
        }
        self.inquire(cx, asker, slot, Reading::Entry(position));
    }

    pub(super) fn search(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        time: u64,
        then: Then,
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let search = TimeSearch::new(topic, time);
        self.inquire(cx, asker, slot, Reading::Find { search, then });
    }

    /// The n-th visible entry from one end, from 1.
    pub(super) fn examine(&self, slot: u32, earliest: bool, number: u64) -> Option<Position> {
        let topic = self.topics.get(slot as usize)?;
        let entries = topic.visible_entries();
        let back = number.max(1).min(entries);
        let rank = if earliest {
            back.checked_sub(1)?
        } else {
            entries.checked_sub(back)?
        };
        topic.position_at(rank).filter(|at| *at <= topic.confirmed)
    }

    /// Takes every question as far as it gets with what is in memory.
    pub(in crate::engine::topic) fn poll_inquiries(
        &mut self,
        cx: &mut Context,
        slot: u32,
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return;
        };
        if topic.inquiries.is_empty() {
            return;
        }
        for mut inquiry in std::mem::take(&mut topic.inquiries) {
            match self.step(slot, &mut inquiry.reading) {
                Step::Answer(answer) => reply(cx, inquiry.asker, answer),
                Step::Move { to, then } => self.found(cx, inquiry.asker, slot, to, then, now),
                Step::Reset {
                    subscription,
                    to,
                    ack_set,
                } => {
                    let asker = inquiry.asker;
                    self.reset_by_admin(cx, asker, slot, &subscription, to, &ack_set, now);
                }
                Step::Waits => {
                    let Some(topic) = self.topics.get_mut(slot as usize) else {
                        return;
                    };
                    topic.inquiries.push(inquiry);
                    if let Some(seat) = self.lanes.get_mut(topic.lane) {
                        seat.readers.insert(slot);
                    }
                }
            }
        }
    }

    fn step(&mut self, slot: u32, reading: &mut Reading) -> Step {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return Step::Answer(Answer::NoTopic);
        };
        let Some(seat) = self.lanes.get_mut(topic.lane) else {
            return Step::Answer(Answer::NoTopic);
        };
        match reading {
            Reading::LastMessageId => {
                let position = topic.confirmed;
                if !topic.state.ledgers.contains(position) {
                    let batch = None;
                    let position = match topic.state.ledgers.current() {
                        Some(ledger) if ledger.entries == 0 => ledger.last(),
                        _ => position,
                    };
                    return Step::Answer(Answer::Id { position, batch });
                }
                match topic.read(seat, position) {
                    Read::Entry(data) => {
                        let view = Entry::parse(&data).ok().and_then(|e| e.metadata_view());
                        let batch = view.and_then(|view| view.num_messages_in_batch);
                        Step::Answer(Answer::Id { position, batch })
                    }
                    Read::Miss => Step::Waits,
                    Read::Gone => Step::Answer(Answer::Id {
                        position,
                        batch: None,
                    }),
                    Read::Corrupt => Step::Answer(Answer::Failed(CORRUPT.into())),
                }
            }
            Reading::Entry(position) => match topic.read(seat, *position) {
                Read::Entry(data) => Step::Answer(Answer::Entry {
                    position: *position,
                    data,
                }),
                Read::Miss => Step::Waits,
                Read::Gone => Step::Answer(Answer::NoMessage),
                Read::Corrupt => Step::Answer(Answer::Failed(CORRUPT.into())),
            },
            Reading::Reset {
                subscription,
                target,
            } => {
                let at = target.position;
                let within = target.batch_index >= 0 && topic.state.ledgers.contains(at);
                let (mut to, mut ack_set) = (topic.start(*target), Vec::new());
                if within && at <= topic.confirmed {
                    let count = match topic.read(seat, at) {
                        Read::Entry(data) => stored_messages(&data),
                        Read::Miss => return Step::Waits,
                        Read::Gone | Read::Corrupt => 1,
                    };
                    let next = i64::from(target.batch_index) + i64::from(target.excluded);
                    if next < i64::from(count) {
                        if count > WITHIN_MAX {
                            return Step::Answer(Answer::TooLarge(format!(
                                "message {at} says that it is a batch of {count}; a cursor can stand within one of at most {WITHIN_MAX}"
                            )));
                        }
                        to = topic.state.ledgers.prev(at);
                        ack_set = open_from(next.unsigned_abs(), u64::from(count));
                    } else {
                        to = at;
                    }
                }
                let subscription = std::mem::take(subscription);
                Step::Reset {
                    subscription,
                    to,
                    ack_set,
                }
            }
            Reading::Find { search, then } => {
                let Some(to) = search.poll(topic, seat) else {
                    return Step::Waits;
                };
                let then = std::mem::replace(then, Then::Id);
                Step::Move { to, then }
            }
        }
    }

    /// A search ended: everything up to `to` was published before the time.
    fn found(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        to: Position,
        then: Then,
        now: Now,
    ) {
        match then {
            Then::Id => {
                let Some(topic) = self.topics.get(slot as usize) else {
                    return reply(cx, asker, Answer::NoTopic);
                };
                let position = match topic.state.ledgers.next(to) {
                    Some(next) if next <= topic.confirmed => next,
                    _ => Position::new(to.ledger, to.entry + 1),
                };
                let batch = None;
                reply(cx, asker, Answer::Id { position, batch });
            }
            Then::Reset { subscription } => {
                self.reset_by_admin(cx, asker, slot, &subscription, to, &[], now);
            }
            Then::Expire { subscription } => {
                self.expire(cx, asker, slot, subscription.as_deref(), to, now);
            }
        }
    }

    fn expire(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        only: Option<&str>,
        to: Position,
        now: Now,
    ) {
        let Some(topic) = self.topics.get(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let lane = topic.lane;
        let subs: Vec<(String, u32, bool)> = topic
            .sub_names
            .iter()
            .filter(|(name, _)| only.is_none_or(|only| only == name.as_str()))
            .map(|(name, sub)| {
                let resetting = topic
                    .subs
                    .get(*sub as usize)
                    .is_some_and(|sub| sub.resetting);
                (name.clone(), *sub, resetting)
            })
            .collect();
        if subs.is_empty() && only.is_some() {
            return reply(cx, asker, Answer::NoSubscription);
        }
        let mut answer = Answer::Done;
        for (subscription, sub, resetting) in subs {
            let moved = !resetting && self.advance(cx, slot, sub, to, now);
            if !moved && matches!(answer, Answer::Done) {
                answer = Answer::NothingToExpire { subscription };
            }
        }
        self.reply_durable(cx, asker, lane, answer);
    }

    /// Consumers are closed, the cursor moves, and the change is durable: then the answer.
    #[allow(clippy::too_many_arguments)]
    fn reset_by_admin(
        &mut self,
        cx: &mut Context,
        asker: Asker,
        slot: u32,
        subscription: &str,
        to: Position,
        ack_set: &[i64],
        now: Now,
    ) {
        let Some(topic) = self.topics.get_mut(slot as usize) else {
            return reply(cx, asker, Answer::NoTopic);
        };
        let Some(sub_slot) = topic.sub_names.get(subscription).copied() else {
            return reply(cx, asker, Answer::NoSubscription);
        };
        let lane = topic.lane;
        if let Some(sub) = topic.subs.get_mut(sub_slot as usize) {
            if sub.resetting {
                let subscription = subscription.to_owned();
                return reply(cx, asker, Answer::Busy { subscription });
            }
            sub.resetting = true;
        }
        self.expel(cx, slot, sub_slot, None, Expel::Seek, now);
        self.reset(slot, sub_slot, to, ack_set);
        self.settle_unacked(cx, slot, sub_slot);
        self.finish_reset(cx, slot, sub_slot, now);
        self.reply_durable(cx, asker, lane, Answer::Done);
    }
}

/// The ack set (bit 1 = open) of a batch of `count` whose messages below `next` are not to be delivered.
fn open_from(next: u64, count: u64) -> Vec<i64> {
    let mut words = vec![0_i64; usize::try_from(count.div_ceil(64)).unwrap_or(0)];
    for index in next..count {
        let word = usize::try_from(index / 64).unwrap_or(usize::MAX);
        if let Some(word) = words.get_mut(word) {
            *word |= 1_i64.wrapping_shl((index % 64) as u32);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::open_from;

    #[test]
    fn an_ack_set_opens_the_end_of_a_batch() {
        assert_eq!(open_from(0, 3), [0b111]);
        assert_eq!(open_from(2, 3), [0b100]);
        assert_eq!(open_from(63, 66), [i64::MIN, 0b11]);
        assert_eq!(open_from(65, 66), [0, 0b10]);
    }
}
