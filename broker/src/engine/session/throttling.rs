//! What keeps a session waiting, and what lets it go on.
//!
//! Each reason is counted on the session ([`Throttle`]), so a late release of an old hold never clears a newer one. Memory is not
//! among them: the runtime, which owns sockets and receive buffers, stops *reading* for it, and what has been read goes on.

use std::collections::VecDeque;

use vela_codec::{Frame, hot};
use vela_limiter::{Latch, Reason, Throttle};
use vela_proto::base_command::Type;

use super::outbound::Outbound;
use super::{Session, Sessions, Stage};
use crate::engine::context::{ConnId, Context};
use crate::engine::message::{Message, SendId, SessionRef};
use crate::engine::settings::PublishPacing;
use crate::engine::time::Now;

/// What holds a session.
#[derive(Default, Debug)]
pub(super) struct Holds {
    pub(super) throttle: Throttle,
    pending_requests: Latch,
    pending_bytes: Latch,
    over_share: Latch,
    /// Bytes of its SENDs that are not answered.
    unanswered: u64,
    /// The second in which it last published.
    published: u64,
    pub(super) outbound: Outbound,
    /// The frame waits for the next turn.
    pub(super) turn: bool,
    /// A frame that must wait for a close of the same id, or for the next turn.
    pub(super) frame: Option<Box<Frame>>,
}

/// Whether a connection's socket is to be read.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ReadRule {
    /// Yes.
    Read,
    /// A publish rate holds the connection: so far ahead as is needed to find PING, FLOW, ACK and CLOSE between the publishes.
    Ahead,
    /// No.
    Stop,
}

/// Whether a PONG may stand among frames that wait for a rate: it has passed all SENDs, and passes nothing else.
pub(in crate::engine) fn may_hide_life(frames: &VecDeque<Frame>) -> bool {
    let is_send = |frame: &Frame| hot::command_type(frame.command()) == Ok(Type::Send);
    !frames.iter().all(is_send)
}

impl Session {
    /// Is a question open that the next frames wait for?
    fn awaits_answer(&self) -> bool {
        self.listing.is_some() || self.asks_schema
    }

    /// Does the session take the next frame?
    pub(super) fn wants_frames(&self, pacing: PublishPacing) -> bool {
        self.stage != Stage::Closing
            && self.holds.frame.is_none()
            && !self.awaits_answer()
            && (pacing == PublishPacing::Read || self.holds.throttle.may_deliver())
    }

    /// Which of the waiting frames goes on although the session wants none: while nothing but a rate holds it, PING, PONG, FLOW, ACK and
    /// CLOSE_CONSUMER pass the SENDs in front of them. They pass nothing else, so that commands that depend on each other keep their order.
    fn passing(&self, frames: &VecDeque<Frame>) -> Option<usize> {
        if self.stage != Stage::Connected
            || self.holds.frame.is_some()
            || self.awaits_answer()
            || !self.holds.throttle.only_rate()
        {
            return None;
        }
        let kind = |frame: &Frame| hot::command_type(frame.command());
        let at = frames
            .iter()
            .position(|frame| kind(frame) != Ok(Type::Send))?;
        let free = matches!(
            kind(frames.get(at)?),
            Ok(Type::Ping | Type::Pong | Type::Flow | Type::Ack | Type::CloseConsumer)
        );
        free.then_some(at)
    }

    /// May its socket be read?
    pub(super) fn read_rule(&self) -> ReadRule {
        if self.stage == Stage::Closing || self.holds.frame.is_some() || self.awaits_answer() {
            ReadRule::Stop
        } else if self.holds.throttle.may_read() {
            ReadRule::Read
        } else if self.holds.throttle.only_rate() {
            ReadRule::Ahead
        } else {
            ReadRule::Stop
        }
    }

    /// The connection is gone, and with it what held it.
    pub(super) fn end_holds(&mut self, cx: &mut Context) {
        self.holds.throttle.end(&mut cx.counters.holds);
    }

    /// One more SEND is unanswered.
    pub(super) fn publish_begun(&mut self, cx: &mut Context, bytes: u32, now: Now) {
        self.pending_publishes += 1;
        cx.pending_bytes += u64::from(bytes);
        self.holds.unanswered += u64::from(bytes);
        cx.publishers.note(&mut self.holds.published, now);
        if self.holds.unanswered > cx.publish_share() {
            let holds = &mut self.holds;
            let _ = holds.over_share.set(
                &mut holds.throttle,
                Reason::PendingBytes,
                true,
                &mut cx.counters.holds,
            );
        }
        let limit = cx.settings.max_pending_publish_requests_per_connection;
        if limit > 0 && self.pending_publishes >= limit {
            let holds = &mut self.holds;
            let _ = holds.pending_requests.set(
                &mut holds.throttle,
                Reason::PendingRequests,
                true,
                &mut cx.counters.holds,
            );
        }
    }

    /// Holds itself until the topic's core has charged the publish and says whether it may go on.
    pub(super) fn await_charge(&mut self, cx: &mut Context) {
        self.holds
            .throttle
            .hold(Reason::PublishCharge, &mut cx.counters.holds);
    }

    /// One SEND has its answer. True if the session may go on because of it.
    pub(super) fn answered(&mut self, cx: &mut Context, send: &SendId) -> bool {
        self.pending_publishes = self.pending_publishes.saturating_sub(1);
        if send.volatile {
            self.pending_volatile = self.pending_volatile.saturating_sub(1);
        }
        self.holds.unanswered = self.holds.unanswered.saturating_sub(u64::from(send.bytes));
        self.touch(cx);
        let share = self.release_share(cx);
        self.release_requests(cx) || share
    }

    /// Goes on at three quarters of its share. True if it may because of that.
    fn release_share(&mut self, cx: &mut Context) -> bool {
        let holds = &mut self.holds;
        if !holds.over_share.is_on() || holds.unanswered > cx.publish_share() / 4 * 3 {
            return false;
        }
        let counts = &mut cx.counters.holds;
        let free = holds
            .over_share
            .set(&mut holds.throttle, Reason::PendingBytes, false, counts);
        free.reason_free
    }

    /// Goes on when few enough SENDs are unanswered: half of the limit, or any number when there is none. True if it may because of that.
    fn release_requests(&mut self, cx: &mut Context) -> bool {
        let limit = cx.settings.max_pending_publish_requests_per_connection;
        let few = limit == 0 || self.pending_publishes <= limit / 2;
        if self.holds.pending_requests.is_on() && few {
            let holds = &mut self.holds;
            let free = holds.pending_requests.set(
                &mut holds.throttle,
                Reason::PendingRequests,
                false,
                &mut cx.counters.holds,
            );
            return free.reason_free;
        }
        false
    }

    /// Follows the core's pending publish bytes.
    pub(super) fn follow_pending_bytes(&mut self, cx: &mut Context, held: bool) {
        let holds = &mut self.holds;
        let _ = holds.pending_bytes.set(
            &mut holds.throttle,
            Reason::PendingBytes,
            held,
            &mut cx.counters.holds,
        );
        if held {
            // So that the release tells the runtime to go on.
            self.reading = false;
        }
    }
}

impl Sessions {
    pub(in crate::engine) fn wants_frames(&mut self, cx: &Context, conn: ConnId) -> bool {
        self.get(conn.slot, conn.generation)
            .is_some_and(|session| session.wants_frames(cx.settings.publish_pacing))
    }

    pub(in crate::engine) fn passing(
        &mut self,
        conn: ConnId,
        frames: &VecDeque<Frame>,
    ) -> Option<usize> {
        self.get(conn.slot, conn.generation)?.passing(frames)
    }

    pub(in crate::engine) fn read_rule(&mut self, conn: ConnId) -> ReadRule {
        self.get(conn.slot, conn.generation)
            .map_or(ReadRule::Stop, |session| session.read_rule())
    }

    /// A topic or a lane holds a session, or takes one hold back.
    pub(super) fn throttle(
        &mut self,
        cx: &mut Context,
        target: SessionRef,
        reason: Reason,
        hold: bool,
        now: Now,
    ) {
        let Some(session) = self.find(target) else {
            return;
        };
        if hold {
            session.holds.throttle.hold(reason, &mut cx.counters.holds);
            session.reading = false;
        } else {
            let _ = session
                .holds
                .throttle
                .release(reason, &mut cx.counters.holds);
            Self::settle(session, cx, now);
        }
    }

    /// Looks at the bytes of unanswered SENDs: above the core's share every connection of the core waits; at half of it, or when the
    /// limit is gone or higher now, they go on.
    pub(in crate::engine) fn reconsider_bytes(&mut self, cx: &mut Context, now: Now) {
        let limit = cx.pending_bytes_limit;
        if cx.bytes_held && (limit == 0 || cx.pending_bytes <= limit / 2) {
            self.hold_bytes(cx, false);
            for slot in &mut self.slots {
                if let Some(session) = slot.session.as_deref_mut() {
                    Self::settle(session, cx, now);
                }
            }
        } else if !cx.bytes_held && limit > 0 && cx.pending_bytes > limit {
            self.hold_bytes(cx, true);
        }
    }

    /// The same for the number of each connection's unanswered SENDs, when its limit has changed.
    pub(in crate::engine) fn reconsider_requests(&mut self, cx: &mut Context, now: Now) {
        for slot in &mut self.slots {
            if let Some(session) = slot.session.as_deref_mut()
                && session.release_requests(cx)
            {
                Self::settle(session, cx, now);
            }
        }
    }

    fn hold_bytes(&mut self, cx: &mut Context, held: bool) {
        cx.bytes_held = held;
        for slot in &mut self.slots {
            // The handshake is done in any case; CONNECT takes the hold over.
            if let Some(session) = slot.session.as_deref_mut()
                && session.stage != Stage::Start
            {
                session.follow_pending_bytes(cx, held);
            }
        }
    }

    /// Lets a held frame go on and tells the runtime when frames or bytes are wanted again.
    pub(super) fn settle(session: &mut Session, cx: &mut Context, now: Now) {
        if session.stage != Stage::Closing
            && !session.holds.turn
            && session.holds.throttle.may_deliver()
            && !session.awaits_answer()
            && let Some(frame) = session.holds.frame.take()
        {
            Self::handle(session, cx, *frame, now);
        }
        session.watch_answers(cx, now);
        let rule = session.read_rule();
        let wants = session.wants_frames(cx.settings.publish_pacing) && rule == ReadRule::Read;
        // What is left may be a rate only, where more held before: then it is read ahead from now on.
        if wants && !session.reading || rule == ReadRule::Ahead {
            cx.effects.resumed.push(session.conn());
        }
        session.reading = wants;
    }
}

/// A hold or its release, as a message.
pub(in crate::engine) fn hold(session: SessionRef, reason: Reason) -> Message {
    Message::Hold { session, reason }
}

/// The release of one hold.
pub(in crate::engine) fn release(session: SessionRef, reason: Reason) -> Message {
    Message::Release { session, reason }
}
