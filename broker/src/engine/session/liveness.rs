//! Whether a peer is still there: the keep-alive, and the question of a newcomer whether the holder of its name lives.
//!
//! Silence ends a connection only where the peer could have been heard. While a socket is not read for a reason of ours its PONG cannot be
//! seen, and nothing follows from that; a peer that has *left* meanwhile is found by the runtime, which asks the kernel about each
//! connection that it does not read. Two holds are the peer's own doing, and excuse it less:
//!
//! * Output that it does not read ([`Reason::OutboundFull`]) excuses nothing, but any byte of it that the socket takes is a sign of life.
//! * A rate holds it for what it has sent. What was read is charged in full, and a cap on the debt would give tokens away, so a debt may
//!   take years; the excuse must not. It ends when nothing was heard for [`RATE_EXCUSES`] intervals.
//!
//! Keep-alive as in Pulsar (<https://pulsar.apache.org/docs/developing-binary-protocol/#keep-alive>), where a connection that the broker does not
//! read is never dropped for silence; `connectionLivenessCheckTimeoutMillis` drops it there, read or not.

use vela_codec::encode;
use vela_limiter::Reason;

use super::throttling::ReadRule;
use super::{Session, Sessions, Stage};
use crate::engine::context::{ConnId, Context};
use crate::engine::message::{CoreId, Message, SessionRef};
use crate::engine::time::Now;

/// Keep-alive intervals without a single frame after which a rate excuses nobody any more. Five minutes by default: ten times as long as
/// clients wait for a receipt by default, so that few of those that are dropped alive still have something to send again.
const RATE_EXCUSES: u64 = 10;
/// The interval that counts for this where the keep-alive is off, in milliseconds.
const NO_INTERVAL_MS: u64 = 30_000;
/// Who is not heard is excused at least this often, in milliseconds. So a question that comes so soon after an excuse may be one that the peer
/// cannot answer either.
const EXCUSES_MS: u64 = 500;

/// What is known of a peer's life. Times in milliseconds.
#[derive(Debug)]
pub(super) struct Liveness {
    next_keep_alive: u64,
    /// A PING of the keep-alive has had no answer, and nothing has excused that.
    pinged: bool,
    probes: Vec<Probe>,
    /// When it was last heard.
    heard: u64,
    /// When its silence was last excused.
    excused: Option<u64>,
}

/// A topic wants to know whether the peer is alive.
#[derive(Debug)]
struct Probe {
    id: u64,
    from: CoreId,
    asked: u64,
    deadline: u64,
}

impl Liveness {
    /// A connection that has come now. `next_keep_alive`: when it is looked at first.
    pub(super) fn new(now: Now, next_keep_alive: u64) -> Self {
        Self {
            next_keep_alive,
            pinged: false,
            probes: Vec::new(),
            heard: now.ms,
            excused: None,
        }
    }
}

fn answer(cx: &mut Context, probe: &Probe, alive: bool) {
    let message = Message::Probed {
        probe: probe.id,
        alive,
    };
    cx.post(probe.from, message);
}

impl Session {
    /// A sign of life.
    pub(super) fn heard(&mut self, cx: &mut Context, now: Now) {
        self.liveness.heard = now.ms;
        self.liveness.pinged = false;
        for probe in self.liveness.probes.drain(..) {
            answer(cx, &probe, true);
        }
    }

    /// The socket took some of the output. If its output is what keeps it from being read, it is alive by that.
    pub(super) fn heard_by_output(&mut self, cx: &mut Context, now: Now) {
        if self.is_choked() {
            self.heard(cx, now);
        }
    }

    /// It does not read its output, and is not read therefore.
    fn is_choked(&self) -> bool {
        self.holds.throttle.is_held(Reason::OutboundFull)
    }

    /// Whether it is not read, for a reason of ours.
    fn is_unread(&self) -> bool {
        self.read_rule() == ReadRule::Stop && !self.is_choked()
    }

    /// Its silence is not its own.
    fn excuse(&mut self, cx: &Context, now: Now) {
        let interval = match u64::from(cx.settings.keep_alive_interval_seconds) * 1000 {
            0 => NO_INTERVAL_MS,
            interval => interval,
        };
        let silent = now.ms.saturating_sub(self.liveness.heard);
        let too_long =
            self.read_rule() == ReadRule::Ahead && silent > RATE_EXCUSES.saturating_mul(interval);
        if !too_long && !self.is_choked() {
            self.liveness.pinged = false;
            self.liveness.excused = Some(now.ms);
        }
    }

    /// Looks at the probes whose time is over. If nothing excuses the peer's silence, it is dead, and closing tells so. Otherwise it counts as
    /// alive; the next newcomer asks again.
    fn judge_probes(&mut self, cx: &mut Context, now: Now) {
        if self.stage == Stage::Closing {
            // The end answers them, in the same turn.
            return;
        }
        let (unread, excused) = (self.is_unread(), self.liveness.excused);
        let fails = |probe: &Probe| {
            let excused = excused.is_some_and(|at| at.saturating_add(EXCUSES_MS) >= probe.asked);
            probe.deadline <= now.ms && !unread && !excused
        };
        if self.liveness.probes.iter().any(fails) {
            return self.close(cx);
        }
        let due = |probe: &mut Probe| probe.deadline <= now.ms;
        for probe in self.liveness.probes.extract_if(.., due) {
            answer(cx, &probe, true);
        }
    }

    /// The keep-alive, if it is due. `interval` is not 0. The time of the next.
    fn keep_alive(&mut self, cx: &mut Context, interval: u64, now: Now) -> Option<u64> {
        if self.stage == Stage::Closing || self.liveness.next_keep_alive > now.ms {
            return None;
        }
        self.closed_by_broker
            .retain(|_, closed| closed.until > now.ms);
        if self.stage == Stage::Start || (self.liveness.pinged && !self.is_unread()) {
            self.close(cx);
            return None;
        }
        if self.version >= 1 {
            self.liveness.pinged = true;
            self.out.encode(encode::ping);
            self.touch(cx);
        }
        self.liveness.next_keep_alive = now.ms + interval;
        Some(self.liveness.next_keep_alive)
    }

    /// The connection is gone. To be called when its producers and consumers have left, so that the holder of a name is gone when the
    /// answer arrives.
    pub(super) fn end_probes(&mut self, cx: &mut Context) {
        for probe in self.liveness.probes.drain(..) {
            answer(cx, &probe, false);
        }
    }
}

impl Sessions {
    /// A topic asks whether the peer of a session is alive. Answered by its next sign of life, its end, or when
    /// `connectionLivenessCheckTimeoutMillis` are over.
    pub(super) fn probe(
        &mut self,
        cx: &mut Context,
        target: SessionRef,
        id: u64,
        from: CoreId,
        now: Now,
    ) {
        let timeout = u64::from(cx.settings.connection_liveness_check_timeout_millis);
        let deadline = now.ms + timeout;
        let probe = Probe {
            id,
            from,
            asked: now.ms,
            deadline,
        };
        let Some(session) = self.find(target) else {
            return answer(cx, &probe, false);
        };
        if session.stage == Stage::Closing {
            // Its end is the answer.
            return session.liveness.probes.push(probe);
        }
        if session.stage != Stage::Connected || session.version < 1 || timeout == 0 {
            return answer(cx, &probe, true);
        }
        session.liveness.probes.push(probe);
        session.out.encode(encode::ping);
        session.touch(cx);
        self.timers.set(deadline, target.slot, target.generation);
    }

    pub(in crate::engine) fn next_wakeup(&self) -> Option<u64> {
        self.timers.first()
    }

    /// What sessions have set times for: probes, the keep-alive, pauses, watchers.
    pub(in crate::engine) fn tick(&mut self, cx: &mut Context, now: Now) {
        let interval = u64::from(cx.settings.keep_alive_interval_seconds) * 1000;
        while let Some((slot, generation)) = self.timers.pop(now.ms) {
            let Some(session) = self.get(slot, generation) else {
                continue;
            };
            if session.end_pause(cx, now) {
                Self::settle(session, cx, now);
            }
            let watchers = session.tell_watchers(cx, now);
            session.judge_probes(cx, now);
            let next = match interval {
                0 => None,
                interval => session.keep_alive(cx, interval, now),
            };
            for due in watchers.into_iter().chain(next) {
                self.timers.set(due, slot, generation);
            }
        }
    }

    /// Silence of this peer is not its own: its socket is not read, or not so far that its PONG would be seen. While that is so, to be called
    /// every quarter of a second; for how long it counts, the module says.
    pub(in crate::engine) fn excused(&mut self, cx: &Context, conn: ConnId, now: Now) {
        if let Some(session) = self.get(conn.slot, conn.generation) {
            session.excuse(cx, now);
        }
    }
}
