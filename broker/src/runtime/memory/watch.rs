//! The watch over connections: frames that stand still or come too slowly, and peers that have left.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Intake, Memory, READ_AHEAD};
use crate::runtime::conn::{Conn, State};
use crate::runtime::core::Core;
use crate::runtime::port::{CoreEngine, Now, Output, ReadRule, Storage};

/// How long a frame whose memory others wait for may fall behind its pace, in milliseconds.
const PATIENCE_MS: u64 = 2000;
/// How often each connection is looked at for a frame that stands, or a peer that has left while it is not read, in milliseconds; in
/// how many parts; and connections of a part, at the least.
const WATCH_MS: u64 = 250;
const WATCH_PARTS: usize = 10;
const WATCH_LEAST: usize = 64;

/// The pass over all connections that looks for those that stand still or are gone.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When its next part is due, and when it began, in milliseconds.
    due_ms: u64,
    pass_ms: u64,
    /// The first connection of that part.
    next: usize,
    /// Bytes of unfinished frames and of waiting output that this pass has seen so far.
    seen: (u64, usize),
    /// And those of the last.
    unfinished: u64,
    pub(super) outbound: usize,
}

impl<E: CoreEngine, S: Storage<E>> Core<E, S> {
    /// For the heartbeat: adds up waiting output, ends frames that stand still, and connections that are gone. Looks at
    /// a part of the connections each time, so that many of them hold nobody up.
    pub(in crate::runtime) fn watch_memory(&mut self, now: Now) {
        if now.ms < self.memory.watch.due_ms {
            return;
        }
        let all = self.conns.capacity();
        let from = self.memory.watch.next;
        if from == 0 {
            self.memory.watch.pass_ms = now.ms;
        }
        let to = from + all.div_ceil(WATCH_PARTS).max(WATCH_LEAST);
        self.watch_some(from..to.min(all), now);
        let watch = &mut self.memory.watch;
        if to < all {
            watch.next = to;
            watch.due_ms = now.ms + WATCH_MS / WATCH_PARTS as u64;
        } else {
            watch.next = 0;
            watch.due_ms = watch.pass_ms + WATCH_MS;
            (watch.unfinished, watch.outbound) = std::mem::take(&mut watch.seen);
        }
    }

    fn watch_some(&mut self, keys: std::ops::Range<usize>, now: Now) {
        let policy = self.memory.intake.limiter.state();
        // Unfinished frames alone could keep the limiter from ever clearing.
        let pressing = policy.throttled
            && self
                .memory
                .watch
                .unfinished
                .saturating_mul(u64::from(self.memory.cores))
                >= u64::try_from(policy.limit).unwrap_or(0) / 4;
        let (mut stood, mut slow, mut held) = (Vec::new(), Vec::new(), Vec::new());
        let mail_stuck = self.reads_held();
        for key in keys {
            let Some(conn) = self.conns.get_mut(key) else {
                continue;
            };
            let Some(id) = conn.id.filter(|_| conn.state == State::Open) else {
                continue;
            };
            let watch = &mut self.memory.watch;
            watch.seen.0 += conn.decoder.retained() as u64;
            watch.seen.1 += self.engine.output(id).map_or(0, |output| output.queued());
            let rule = self.engine.read_rule(id);
            let stops = rule != ReadRule::Read;
            let unheard = mail_stuck
                || conn.inbound.held
                || match rule {
                    ReadRule::Read => false,
                    ReadRule::Ahead => conn.may_hide_life(&self.engine),
                    ReadRule::Stop => true,
                };
            if unheard {
                self.engine.excused(id, now);
            }
            let claim = conn.inbound.claim;
            let waits = conn.inbound.listed || claim.is_some_and(|claim| !claim.granted);
            if stops || waits || conn.inbound.held || mail_stuck {
                held.push(key);
            } else {
                conn.inbound.left = false;
            }
            if conn.decoder.is_between_frames() {
                continue;
            }
            if mail_stuck || waits || stops {
                conn.excuse(now);
                continue;
            }
            if now.ms.saturating_sub(conn.inbound.moved_ms) >= self.memory.intake.frame_timeout_ms {
                stood.push(key);
                continue;
            }
            if now.ms.saturating_sub(conn.inbound.moved_ms) < 2 * WATCH_MS {
                self.engine.excused(id, now);
            }
            let pool = claim.and_then(|claim| self.memory.pools.get(claim.pool));
            let wanted = pressing || pool.is_some_and(|pool| pool.waiting() > 0);
            if self.memory.is_too_slow(conn, wanted, now) {
                slow.push(key);
            }
        }
        self.drop_leavers(&held, now);
        self.end_frames(&stood, &self.memory.intake.clone().stood, now, |intake| {
            format!(
                "its frame made no progress for frameTimeout ({} s)",
                intake.frame_timeout_ms / 1000
            )
        });
        self.end_frames(&slow, &self.memory.intake.clone().evicted, now, |_| {
            "its unfinished frame came too slowly while others waited for its memory; if that is not an attack, raise \
             maxMessagePublishBufferSizeInMB"
                .to_owned()
        });
    }

    fn end_frames(
        &mut self,
        keys: &[usize],
        count: &AtomicU64,
        now: Now,
        why: impl Fn(&Intake) -> String,
    ) {
        let Some(conn) = keys.first().and_then(|key| self.conns.get(*key)) else {
            return;
        };
        let peer = conn.stream.peer_addr().map(|peer| peer.to_string());
        tracing::warn!(
            core = self.number(),
            connections = keys.len(),
            peer = peer.as_deref().unwrap_or("unknown"),
            "connection closed: {}",
            why(&self.memory.intake)
        );
        count.fetch_add(keys.len() as u64, Ordering::Relaxed);
        for key in keys {
            if let Some(conn) = self.conns.get(*key) {
                tracing::debug!(
                    core = self.number(),
                    peer = ?conn.stream.peer_addr(),
                    inbound = ?conn.inbound,
                    announced = conn.decoder.announced(),
                    retained = conn.decoder.retained(),
                    gate = ?conn.gate,
                    "connection closed"
                );
            }
            self.drop_conn(*key, now);
        }
    }
}

impl Conn {
    /// Whether a sign of life may be there unseen although the connection is read ahead: in or behind the frame that is coming in, behind a
    /// waiting frame that nothing passes, or in the socket where enough is waiting already.
    fn may_hide_life<E: CoreEngine>(&self, engine: &E) -> bool {
        !self.decoder.is_between_frames()
            || engine.may_hide_life(&self.queue)
            || self.queued() >= READ_AHEAD && self.has_unread()
    }
}

impl Memory {
    /// Whether a frame whose memory is wanted by others has fallen behind the pace at which what it holds would be
    /// full within `frameTimeout`.
    fn is_too_slow(&self, conn: &mut Conn, wanted: bool, now: Now) -> bool {
        let inbound = &mut conn.inbound;
        if !wanted {
            inbound.pace = None;
            return false;
        }
        let (since, from) = *inbound.pace.get_or_insert((now.ms, inbound.arrived));
        if now.ms.saturating_sub(since) < PATIENCE_MS {
            return false;
        }
        let claimed = inbound.claim.map(|claim| claim.bytes);
        let holds = claimed.unwrap_or_else(|| conn.decoder.retained());
        let due = (holds as u64 * PATIENCE_MS / self.intake.frame_timeout_ms.max(1)).max(1);
        let came = inbound.arrived.saturating_sub(from) as u64;
        inbound.pace = Some((now.ms, inbound.arrived));
        came < due
    }
}
