//! What the connections of a core may ask for in one turn.
//!
//! Most commands cost next to nothing. Some cost much by what is behind them - a consumer more on a Key_Shared subscription, a pattern that is
//! applied to all topics -, and thousands of them fit into one read. So each turn has a number of units for such commands. When they are
//! used up, the next such command waits, and its connection with it; turn by turn those who wait longest go first. Everybody else is served
//! in between.

use std::collections::VecDeque;

use vela_proto::base_command::Type;

use super::Sessions;
use crate::engine::context::Context;
use crate::engine::message::SessionRef;
use crate::engine::time::Now;

/// Units of one turn: sixteen SUBSCRIBEs.
pub(in crate::engine) const UNITS: u32 = 64;
/// Names that patterns are applied to in one turn, in bytes of names; patterns that are large count several times.
const NAME_BYTES: usize = 32 << 10;

/// What a command costs, in units.
pub(super) fn cost(kind: Type) -> u32 {
    match kind {
        Type::Subscribe | Type::GetTopicsOfNamespace | Type::WatchTopicList => 4,
        Type::Producer
        | Type::CloseConsumer
        | Type::Unsubscribe
        | Type::Seek
        | Type::GetSchema
        | Type::GetOrCreateSchema => 2,
        Type::Lookup | Type::PartitionedMetadata | Type::CloseProducer => 1,
        _ => 0,
    }
}

/// Who waits for a turn. Each session is in a list once: a command that waits is the only one of its connection.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those with a command that waits.
    pub(super) commands: VecDeque<SessionRef>,
    /// Those whose list of topics is being looked at.
    pub(super) lists: VecDeque<SessionRef>,
}

impl Sessions {
    /// The turn is over; the next one has its own units. True if somebody waits for it.
    pub(in crate::engine) fn next_turn(&mut self, cx: &mut Context, now: Now) -> bool {
        cx.turn_units = UNITS;
        for _ in 0..self.turns.commands.len() {
            if cx.turn_units == 0 {
                break;
            }
            let Some(target) = self.turns.commands.pop_front() else {
                break;
            };
            if let Some(session) = self.find(target) {
                session.holds.turn = false;
                Self::settle(session, cx, now);
            }
        }
        let mut left = NAME_BYTES;
        while left > 0
            && let Some(target) = self.turns.lists.pop_front()
        {
            let Some(session) = self.find(target) else {
                continue;
            };
            if session.look_at_topics(cx, &mut left, now) {
                Self::settle(session, cx, now);
            } else {
                // The others first.
                self.turns.lists.push_back(target);
            }
        }
        !self.turns.commands.is_empty() || !self.turns.lists.is_empty()
    }
}
