//! Output that a peer does not read, and what that stops: the session's own requests, nobody else's.
//!
//! Bounded always, at [`HIGH`]. With `pulsarChannelPauseReceivingRequestsIfUnwritable` (PIP-434) a session stops earlier, at
//! `pulsarChannelWriteBufferHighWaterMark`, as soon as the socket takes no more; and once the peer has caught up to the low mark, its
//! requests come slowly for a while (the cooldown), so that many peers that recover together do not all ask at once.

use vela_limiter::{Latch, Reason};
use vela_proto::base_command::Type;

use super::throttling::Holds;
use super::{Session, Sessions};
use crate::engine::context::{ConnId, Context};
use crate::engine::time::Now;

/// Output at which a session reads no further, bytes. Far above what one batch of answers needs, so that only a peer that does not
/// read meets it.
const HIGH: usize = 8 << 20;
/// Output at which it goes on.
const LOW: usize = 1 << 20;

/// How a session stands with its output.
#[derive(Default, Debug)]
pub(super) struct Outbound {
    full: Latch,
    /// The socket took no more when last tried.
    blocked: bool,
    cooldown: Option<Cooldown>,
}

/// A peer reads again since a moment ago. All times in milliseconds.
#[derive(Debug)]
struct Cooldown {
    until: u64,
    /// The running period ends then.
    period_end: u64,
    /// Requests taken in it.
    taken: u32,
    pause: Latch,
}

impl Session {
    /// Looks at how much output waits.
    pub(super) fn watch_output(&mut self, cx: &mut Context, now: Now) {
        let settings = &cx.settings;
        let early = settings.pause_receiving_if_unwritable;
        let waits = self.out.len();
        let outbound = &mut self.holds.outbound;
        let full = waits > HIGH
            || (early
                && outbound.blocked
                && waits > settings.write_buffer_high_water_mark as usize);
        let low = if early {
            let marks = settings.write_buffer_low_water_mark;
            LOW.min(marks.min(settings.write_buffer_high_water_mark) as usize)
        } else {
            LOW
        };
        if full {
            let throttle = &mut self.holds.throttle;
            let counts = &mut cx.counters.holds;
            let _ = outbound
                .full
                .set(throttle, Reason::OutboundFull, true, counts);
            // So that the release tells the runtime to go on.
            self.reading = false;
        } else if outbound.full.is_on() && waits <= low {
            let throttle = &mut self.holds.throttle;
            let counts = &mut cx.counters.holds;
            if early && settings.pause_receiving_cooldown_ms > 0 {
                let until = now.ms + u64::from(settings.pause_receiving_cooldown_ms);
                match &mut outbound.cooldown {
                    Some(cooldown) => cooldown.until = until,
                    none => {
                        *none = Some(Cooldown {
                            until,
                            period_end: 0,
                            taken: 0,
                            pause: Latch::default(),
                        });
                    }
                }
            }
            let _ = outbound
                .full
                .set(throttle, Reason::OutboundFull, false, counts);
        }
    }

    /// The same where an answer was written outside of its frame: above the high mark the session takes nothing more.
    pub(super) fn watch_answers(&mut self, cx: &mut Context, now: Now) {
        if self.out.len() > HIGH {
            self.watch_output(cx, now);
        }
    }

    /// A request was taken. In the cooldown each period allows so many; PING and PONG do not count (PIP-434). When the session has to pause:
    /// until when.
    pub(super) fn count_request(
        &mut self,
        cx: &mut Context,
        kind: Option<Type>,
        now: Now,
    ) -> Option<u64> {
        let Holds {
            throttle, outbound, ..
        } = &mut self.holds;
        let cooldown = outbound.cooldown.as_mut()?;
        if matches!(kind, Some(Type::Ping | Type::Pong)) || cooldown.pause.is_on() {
            return None;
        }
        if now.ms >= cooldown.until {
            outbound.cooldown = None;
            return None;
        }
        if now.ms >= cooldown.period_end {
            cooldown.period_end =
                now.ms + u64::from(cx.settings.pause_receiving_cooldown_period_ms.max(1));
            cooldown.taken = 0;
        }
        cooldown.taken += 1;
        if cooldown.taken < cx.settings.pause_receiving_cooldown_permits {
            return None;
        }
        let counts = &mut cx.counters.holds;
        let _ = cooldown
            .pause
            .set(throttle, Reason::OutboundCooldown, true, counts);
        self.reading = false;
        Some(cooldown.period_end)
    }

    /// Ends a pause whose period is over. True: there was one.
    pub(super) fn end_pause(&mut self, cx: &mut Context, now: Now) -> bool {
        let Holds {
            throttle, outbound, ..
        } = &mut self.holds;
        let Some(cooldown) = &mut outbound.cooldown else {
            return false;
        };
        if !cooldown.pause.is_on() || now.ms < cooldown.period_end {
            return false;
        }
        let counts = &mut cx.counters.holds;
        let _ = cooldown
            .pause
            .set(throttle, Reason::OutboundCooldown, false, counts);
        true
    }
}

impl Sessions {
    /// The socket takes no more for now.
    pub(in crate::engine) fn blocked(&mut self, cx: &mut Context, conn: ConnId, now: Now) {
        if let Some(session) = self.get(conn.slot, conn.generation) {
            session.holds.outbound.blocked = true;
            session.out.own();
            session.watch_output(cx, now);
        }
    }

    /// Counts a request that was just taken, and sets the time at which a pause ends.
    pub(super) fn pace_requests(
        &mut self,
        cx: &mut Context,
        conn: ConnId,
        kind: Option<Type>,
        now: Now,
    ) {
        if let Some(session) = self.get(conn.slot, conn.generation)
            && session.holds.outbound.cooldown.is_some()
            && let Some(at) = session.count_request(cx, kind, now)
        {
            self.timers.set(at, conn.slot, conn.generation);
        }
    }
}

impl Outbound {
    /// The socket took no more when last tried.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Some of the output went out.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }
}
