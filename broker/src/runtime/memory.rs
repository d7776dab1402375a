//! Memory of inbound frames, as one core keeps to it.
//!
//! * While too much is retained ([`MemoryLimiter`]) no socket is read, and before that none of a connection that
//!   retains more than its fair share. What has been read goes on to the engine all the same, and an unfinished
//!   frame is read to its end, never beyond: both are what releases memory.
//! * A size that is announced is no memory yet: a frame's root grows with what arrives, and beyond a small free part only
//!   when the core's pool has admitted the whole frame. Who waits for that is not read.
//! * A frame that makes no progress closes its connection: after `frameTimeout`, or, while others wait for the
//!   memory that it holds, when it does not keep the pace at which it would be there in that time.
//!
//! Who waits is woken by what ends the wait (a change of the limiter's state, a release to the pool). Only the
//! watch over standing frames (`watch`) looks at the clock.

mod intake;
mod watch;

pub(super) use self::intake::Intake;
use self::watch::Watch;
use super::conn::Conn;
use super::core::Core;
use super::port::{CoreEngine, CoreId, Held, Now, ReadRule, Storage};
use super::post::Post;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vela_codec::{Accounting, FRAME_PADDING, IN_PLACE_MIN, PARTIAL_MIN, Sizes};
use vela_limiter::{
    Admission, Budget, Holder, Listener, MemoryLimiter, Mode, over_share, policy::State as Policy,
};

/// Memory that an unfinished frame has without asking, in bytes: what a pipelining client of small messages needs.
/// Less, where there are so many connections that it would come to more than a quarter of the pools.
const FREE: usize = 8 * 1024;
/// What a frame is admitted with before it is admitted whole, in bytes: those that only begin do not take the room of
/// those that come.
const FIRST_PART: usize = 128 * 1024;
/// Frames up to these sizes have pools of their own, so that they never stand behind larger ones; and the parts of
/// the whole, in eighths, that these are. The largest frames have the rest.
const CLASSES: [(usize, u64); 2] = [(128 * 1024, 1), (1088 * 1024, 3)];
/// Waiting bytes up to which a connection that a rate holds is read on, so that what else it sends is found.
const READ_AHEAD: usize = 64 * 1024;

/// What to say of a limit (bytes) that single frames exceed; none if it is not so small. Whatever the limit, one frame of each class
/// is received at a time on each core, or it never could be; so that much may be retained.
pub(super) fn small_limit(mode: Mode, limit: i64, cores: u16, max_message: u64) -> Option<String> {
    const MIB: u64 = 1 << 20;
    let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0)?;
    let classes: usize = CLASSES.iter().map(|(largest, _)| largest).sum();
    let frame = max_message.saturating_add(FRAME_PADDING as u64);
    let least = frame
        .saturating_add(classes as u64)
        .saturating_mul(cores.max(1).into());
    if limit >= least || !matches!(mode, Mode::Auto | Mode::Enabled) {
        return None;
    }
    Some(format!(
        "maxMessagePublishBufferSizeInMB is {} MiB, less than the {} MiB that single messages of up to maxMessageSize ({max_message} \
         bytes) take while they are received on {cores} cores: inbound memory can exceed the limit by that, and large messages come \
         in one at a time; set it to {} or more, or lower maxMessageSize",
        limit / MIB,
        least.div_ceil(MIB),
        least.div_ceil(MIB),
    ))
}

/// Counts roots into the limiter.
struct Counted(Arc<MemoryLimiter>);

impl Accounting for Counted {
    fn allocated(&self, bytes: usize) {
        self.0.allocated(bytes);
    }

    fn released(&self, bytes: usize) {
        self.0.released(bytes);
    }
}

/// Where the next bytes of a connection go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// To the unfinished frame, and no further than its end.
    Frame,
    /// To the core's buffer, so many at most.
    Buffer(usize),
}

impl Source {
    /// The same, but no more through the buffer than `bytes`.
    pub(super) fn at_most(self, bytes: usize) -> Self {
        match self {
            Self::Frame => Self::Frame,
            Self::Buffer(limit) => Self::Buffer(limit.min(bytes)),
        }
    }
}

/// What a connection has to do with all this.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// What was asked of a pool for its unfinished frame.
    claim: Option<Claim>,
    /// Is on the list of those that wait for the limiter.
    listed: bool,
    /// Counts among those that retain bytes.
    counts: bool,
    /// Counts among those that memory holds.
    held: bool,
    /// Bytes there are of the unfinished frame, when last seen.
    arrived: usize,
    /// When the last of them came, or reading was last impossible; milliseconds.
    moved_ms: u64,
    /// Was held when last looked at, and its peer had ended its side.
    pub(super) left: bool,
    /// Since when its pace is measured, and the bytes there were then.
    pace: Option<(u64, usize)>,
}

/// Memory asked for.
#[derive(Debug, Clone, Copy)]
struct Claim {
    /// Which pool.
    pool: usize,
    bytes: usize,
    granted: bool,
}

/// One core's part.
pub(super) struct Memory {
    intake: Arc<Intake>,
    cores: u16,
    listener: Listener,
    /// What new roots are counted in; none in `disabled`.
    accounting: Option<Arc<dyn Accounting>>,
    counted: Arc<dyn Accounting>,
    /// Connections that wait for the limiter.
    waiting: Vec<usize>,
    /// Memory of unfinished frames, by their size: small, medium, large.
    pools: [Budget<usize>; CLASSES.len() + 1],
    /// Bytes of all of them together.
    share: u64,
    /// What this core's engine was last reported to hold.
    reported: Held,
    watch: Watch,
}

impl Memory {
    pub(super) fn new<M: Send + 'static>(
        intake: Arc<Intake>,
        id: CoreId,
        post: &Arc<Post<M>>,
    ) -> Self {
        let waker = Arc::clone(post);
        let listener = intake.limiter.register(move || waker.wake(id));
        let counted: Arc<dyn Accounting> = Arc::new(Counted(Arc::clone(&intake.limiter)));
        let accounting = intake.limiter.counts().then(|| Arc::clone(&counted));
        let mut memory = Self {
            cores: post.cores(),
            listener,
            accounting,
            counted,
            waiting: Vec::new(),
            pools: std::array::from_fn(|_| Budget::new(0)),
            share: u64::MAX,
            reported: Held::default(),
            watch: Watch::default(),
            intake,
        };
        memory.size_pools(memory.intake.limiter.state());
        memory
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.intake.sizes
    }

    /// A frame began to trickle.
    pub(super) fn note_trickle(&self) {
        self.intake.trickles.fetch_add(1, Ordering::Relaxed);
    }

    /// What new roots are counted in.
    pub(super) fn accounting(&self) -> Option<&Arc<dyn Accounting>> {
        self.accounting.as_ref()
    }

    /// Unfinished frames of all cores get half of the limit, or, without one, a quarter of the budget; each pool has room for two
    /// first parts at least. A frame that is larger than its pool comes in alone, and overdraws it: see [`small_limit`].
    fn size_pools(&mut self, policy: Policy) {
        let budget = self.intake.limiter.memory().budget();
        let all = match (policy.mode, u64::try_from(policy.limit).unwrap_or(0)) {
            (Mode::Disabled, _) => u64::MAX,
            (_, 0) if budget == 0 => u64::MAX,
            (_, 0) => budget / 4,
            (_, limit) => limit / 2,
        };
        let share = all / u64::from(self.cores.max(1));
        self.share = share;
        let rest = 8 - CLASSES.iter().map(|(_, part)| part).sum::<u64>();
        let parts = CLASSES.iter().map(|(_, part)| *part).chain([rest]);
        for (pool, part) in self.pools.iter_mut().zip(parts) {
            pool.set_limit((share / 8 * part).max(2 * FIRST_PART as u64));
        }
    }

    /// What each of so many connections has without asking.
    fn free(&self, connections: usize) -> usize {
        let each = self.share / 4 / (connections.max(1) as u64);
        usize::try_from(each)
            .unwrap_or(usize::MAX)
            .clamp(PARTIAL_MIN, FREE)
    }

    /// Whether whatever frame comes next is admitted at once.
    fn is_roomy(&self) -> bool {
        self.pools.iter().all(|pool| {
            pool.waiting() == 0 && pool.used().saturating_add(FIRST_PART as u64) <= pool.limit()
        })
    }

    /// Whether a connection that retains `bytes` has to leave room to others.
    fn is_over_share(&self, bytes: usize) -> bool {
        let limiter = &self.intake.limiter;
        self.intake.fairness
            && limiter.is_crowded()
            && over_share(
                bytes as u64,
                self.intake.holders.load(Ordering::Relaxed),
                limiter.limit(),
                true,
            )
    }

    /// The connections whose turn it is now that memory was given back.
    fn granted(&mut self) -> Vec<usize> {
        let pools = self.pools.iter_mut();
        pools
            .flat_map(|pool| std::iter::from_fn(|| pool.next_granted()))
            .collect()
    }

    /// Asks for memory, so that the root of a frame of `total` bytes may have `capacity`. True: it may.
    ///
    /// A frame is admitted in two parts, the second of which is all the rest: whoever has it waits for nobody, and
    /// while all others wait a pool is overdrawn by no more than one frame.
    fn admit(&mut self, key: usize, inbound: &mut Inbound, total: usize, capacity: usize) -> bool {
        let wanted = match capacity {
            first if first <= FIRST_PART => FIRST_PART.min(total),
            _ => total,
        };
        let mut claim = inbound.claim.unwrap_or_else(|| Claim {
            pool: CLASSES.partition_point(|(largest, _)| *largest < total),
            bytes: 0,
            granted: true,
        });
        if claim.bytes < wanted
            && let Some(pool) = self.pools.get_mut(claim.pool)
        {
            let more = (wanted - claim.bytes) as u64;
            claim.granted = pool.grow(key, more) == Admission::Granted;
            claim.bytes = wanted;
        }
        inbound.claim = Some(claim);
        claim.granted
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.report(Held::default());
    }
}

impl Memory {
    /// Tells the shared counters what this core's engine holds now.
    fn report(&mut self, held: Held) {
        let memory = self.intake.limiter.memory();
        let before = std::mem::replace(&mut self.reported, held);
        if before == held {
            return;
        }
        for (holder, before, now) in [
            (Holder::Log, before.log, held.log),
            (Holder::Cache, before.cache, held.cache),
            (Holder::Outbound, before.outbound, held.outbound),
        ] {
            if now > before {
                memory.allocated(holder, now - before);
            } else if now < before {
                memory.released(holder, before - now);
            }
        }
        self.intake.limiter.reconsider();
    }
}

impl Conn {
    /// Bytes of inbound memory that this connection keeps alive.
    fn retained(&self) -> usize {
        self.decoder.retained() + self.queued_roots
    }

    /// Reading is not the peer's to wait for: its silence is ours.
    fn excuse(&mut self, now: Now) {
        self.inbound.moved_ms = now.ms;
        self.inbound.pace = None;
    }
}

impl<E: CoreEngine, S: Storage<E>> Core<E, S> {
    /// Where to read this connection's next bytes to; none: not now, and something else will wake it.
    pub(super) fn source(&mut self, key: usize, now: Now) -> Option<Source> {
        let source = self.find_source(key);
        if let Some(conn) = self.conns.get_mut(key) {
            if source.is_none() {
                conn.excuse(now);
            } else if conn.inbound.held {
                conn.inbound.held = false;
                self.memory.intake.let_go();
            }
        }
        source
    }

    fn find_source(&mut self, key: usize) -> Option<Source> {
        if self.reads_held() {
            self.waiting.push(key);
            return None;
        }
        let free = self.memory.free(self.conns.len());
        let conn = self.conns.get_mut(key)?;
        let id = conn.id?;
        let wanted = match self.engine.read_rule(id) {
            ReadRule::Read => conn.queue.is_empty() && self.engine.wants_frames(id),
            ReadRule::Ahead => conn.queued() < READ_AHEAD,
            ReadRule::Stop => false,
        };
        if !wanted {
            return None;
        }
        let tight =
            self.memory.intake.limiter.is_throttled() || self.memory.is_over_share(conn.retained());
        if let (Some(capacity), Some(missing), Some(total)) = (
            conn.decoder.next_capacity(),
            conn.decoder.missing(),
            conn.decoder.announced(),
        ) {
            // Through the buffer its end comes with the frames behind it, and it is as large as it will be.
            let (capacity, source) = if tight || missing >= IN_PLACE_MIN {
                (capacity, Source::Frame)
            } else {
                (total, Source::Buffer(self.memory.buffer_limit(free)))
            };
            if capacity <= free || self.memory.admit(key, &mut conn.inbound, total, capacity) {
                return Some(source);
            }
            // One more that waits may mean that all do, and then the first of them goes on.
            self.serve_pools();
        } else if tight {
            if !std::mem::replace(&mut conn.inbound.listed, true) {
                self.memory.waiting.push(key);
            }
        } else {
            return Some(Source::Buffer(self.memory.buffer_limit(free)));
        }
        let conn = self.conns.get_mut(key)?;
        if !std::mem::replace(&mut conn.inbound.held, true) {
            self.memory.intake.hold();
        }
        None
    }

    /// To be called when frames of a connection were handed on: takes note of what it still holds.
    pub(super) fn note_inbound(&mut self, key: usize, now: Now) {
        let free = self.memory.free(self.conns.len());
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        let arrived = conn.decoder.arrived().unwrap_or(0);
        if arrived != conn.inbound.arrived {
            if arrived < conn.inbound.arrived {
                conn.inbound.pace = None;
            }
            conn.inbound.arrived = arrived;
            conn.inbound.moved_ms = now.ms;
        }
        let counts = conn.retained() > 0;
        if std::mem::replace(&mut conn.inbound.counts, counts) != counts {
            if counts {
                self.memory.intake.holders.fetch_add(1, Ordering::Relaxed);
            } else {
                self.memory.intake.holders.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let capacity = conn.decoder.retained();
        match (conn.decoder.announced(), conn.decoder.next_capacity()) {
            (Some(total), Some(_)) if capacity > free => {
                // Bytes that are here already. Where nothing is left of the pool, no more are read until there is.
                self.memory.admit(key, &mut conn.inbound, total, capacity);
            }
            (_, None) => self.give_back(key),
            _ => {}
        }
    }

    /// The connection's unfinished frame is finished, or gone.
    fn give_back(&mut self, key: usize) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if let Some(claim) = conn.inbound.claim.take() {
            if let Some(pool) = self.memory.pools.get_mut(claim.pool) {
                pool.release(key);
            }
            self.serve_pools();
        }
    }

    /// Wakes those whose frames were admitted.
    fn serve_pools(&mut self) {
        for key in self.memory.granted() {
            if let Some(conn) = self.conns.get_mut(key) {
                if let Some(claim) = &mut conn.inbound.claim {
                    claim.granted = true;
                }
                conn.wake();
            }
        }
    }

    /// The connection is no longer used: it keeps nothing, and waits for nothing.
    pub(super) fn release_inbound(&mut self, key: usize) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        conn.drop_inbound();
        let inbound = &mut conn.inbound;
        if std::mem::take(&mut inbound.counts) {
            self.memory.intake.holders.fetch_sub(1, Ordering::Relaxed);
        }
        if std::mem::take(&mut inbound.held) {
            self.memory.intake.let_go();
        }
        if std::mem::take(&mut inbound.listed) {
            self.memory.waiting.retain(|other| *other != key);
        }
        self.give_back(key);
    }

    /// For the end of a turn: reports what the engine holds now, and while memory is short has it give up what it keeps only to be
    /// quicker. The core that presses the budget wakes the others, each of which comes here; so memory is given back by events,
    /// and a cache alone never keeps the limiter active.
    pub(super) fn settle_memory(&mut self) {
        let mut held = self.engine.buffer_memory();
        held.outbound = self.memory.watch.outbound;
        self.memory.report(held);
        let excess = self.memory.intake.limiter.excess();
        if excess > 0 && held.cache > 0 {
            self.engine.shrink_cache(excess);
            let outbound = held.outbound;
            self.memory.report(Held {
                outbound,
                ..self.engine.buffer_memory()
            });
        }
    }

    /// Follows the limiter's latest state, if it has changed: new roots are counted or not, pools have their new
    /// sizes, and whoever waited looks again.
    pub(super) fn follow_limiter(&mut self) -> bool {
        if !self.memory.listener.begin() {
            return false;
        }
        let policy = self.memory.intake.limiter.state();
        let counting = policy.mode != Mode::Disabled;
        if counting != self.memory.accounting.is_some() {
            self.memory.accounting = counting.then(|| Arc::clone(&self.memory.counted));
            self.cumulation
                .set_accounting(self.memory.accounting.clone());
        }
        self.memory.size_pools(policy);
        self.serve_pools();
        if !policy.throttled {
            for key in std::mem::take(&mut self.memory.waiting) {
                if let Some(conn) = self.conns.get_mut(key) {
                    conn.inbound.listed = false;
                    conn.wake();
                }
            }
        }
        true
    }
}

impl Memory {
    /// Bytes to read at once into the core's buffer.
    fn buffer_limit(&self, free: usize) -> usize {
        // Half, for the root of an unfinished frame is up to twice as large as what came of it.
        if self.is_roomy() {
            usize::MAX
        } else {
            free / 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_single_frames_is_named_with_the_least_one() {
        const MIB: i64 = 1 << 20;
        let message = 5 << 20;
        let said = small_limit(Mode::Auto, 3 * MIB, 2, message).unwrap_or_default();
        for part in [
            "maxMessagePublishBufferSizeInMB is 3 MiB",
            "2 cores",
            "5242880",
            "set it to 13",
        ] {
            assert!(said.contains(part), "{said:?} does not say {part:?}");
        }
        assert_eq!(small_limit(Mode::Enabled, 13 * MIB, 2, message), None);
        assert!(small_limit(Mode::Enabled, 12 * MIB, 2, message).is_some());
        assert_eq!(small_limit(Mode::Enabled, 12 * MIB, 1, message), None);
        assert_eq!(small_limit(Mode::Auto, 0, 2, message), None, "no limit");
        assert_eq!(small_limit(Mode::Tracking, MIB, 2, message), None);
    }
}
