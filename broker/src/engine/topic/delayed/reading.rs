//! Reading stretches of the log again, for what comes due next in them.

use super::super::dispatch::{Content, content};
use super::super::lanes::LaneSeat;
use super::super::subscription::Subscription;
use super::{Rule, Search};
use crate::store::log::{Position, Read, TopicState};

/// Entries that are read in one turn.
const TURN_ENTRIES: usize = 4096;

/// Reads on, if it is time to. `slot` is the topic's. True if there is more to read at once; where the log has to be read from disk, the
/// topic is looked at again when that is done.
pub(in super::super) fn read_on(
    state: &TopicState,
    seat: &mut LaneSeat,
    sub: &mut Subscription,
    slot: u32,
    rule: &Rule,
    now_ms: u64,
) -> bool {
    for _ in 0..TURN_ENTRIES {
        if !sub.delayed.searches(rule, now_ms) {
            return false;
        }
        let Some(position) = next(state, sub) else {
            // What came to be due while it was read.
            sub.delayed.promote(rule, now_ms);
            return false;
        };
        let waits = sub.pending.get(position).is_some()
            || sub.replay.contains(&position)
            || sub.dispatcher.is_aside(position)
            || sub.delayed.due.contains(&position);
        if waits {
            sub.delayed.has_read(position);
        } else {
            let hint = &mut sub.delayed.hint;
            match seat
                .lane
                .read_entry(&state.ledgers, state.id, position, hint)
            {
                Read::Entry(data) => {
                    sub.delayed.has_read(position);
                    if let Content::Messages {
                        deliver_at: Some(at),
                        ..
                    } = content(&data, false)
                    {
                        match at > rule.due(now_ms) {
                            true => sub.delayed.put_aside(position, at, rule.limit),
                            false => {
                                sub.delayed.soon.remove(&(at, position));
                                sub.delayed.due.insert(position);
                            }
                        }
                    }
                }
                Read::Miss => {
                    seat.readers.insert(slot);
                    return false;
                }
                Read::Gone => sub.delayed.has_read(position),
                Read::Corrupt => {
                    tracing::error!(topic = %state.name, %position, subscription = %sub.name, "a stored entry cannot be read");
                    return false;
                }
            }
        }
    }
    true
}

/// The next entry to read; `None` = that was all, and the search is over.
fn next(state: &TopicState, sub: &mut Subscription) -> Option<Position> {
    loop {
        let Search { left, at } = sub.delayed.search.as_ref()?;
        let Some((first, stretch)) = left.front().copied() else {
            sub.delayed.search = None;
            return None;
        };
        // `read` bounds it: nothing that was not put aside is looked for.
        let last = stretch.last.min(sub.read);
        let next = match *at < first {
            true if !sub.acks(state).is_acked(first) && state.ledgers.contains(first) => {
                Some(first)
            }
            true => sub.acks(state).next_unacked(&state.ledgers, first),
            false => sub.acks(state).next_unacked(&state.ledgers, *at),
        };
        match next.filter(|next| *next <= last) {
            Some(next) => return Some(next),
            None => {
                if let Some(search) = &mut sub.delayed.search {
                    search.left.pop_front();
                    search.at = search.at.max(stretch.last);
                }
            }
        }
    }
}
