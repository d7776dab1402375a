//! One core: its engine, its connections, its way to the disk, and the turn that drives them.
//!
//! A turn takes in what has arrived (mail, sockets, outcomes of the disk, due timers; connection tasks have
//! fed frames before it), lets the engine finish the turn, and carries out what the engine wants: one
//! submission to the log, one `sendmsg` per connection with output, mail, closes. Everything in it is
//! bounded, and nothing in it waits.

use super::clock::Clock;
use super::conn::{Conn, Gate, Read, Sent, State, flush};
use super::gate::Ticks;
use super::memory::{Intake, Memory};
use super::port::{ConnId, CoreEngine, CoreId, Figures, NetworkEffects, Now, Storage};
use super::post::{Accepted, Post};
use super::raw;
use super::trickle::Looks;
use slab::Slab;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Waker};
use vela_codec::Cumulation;

/// Batches of mail taken in one turn.
const MAIL_PER_TURN: usize = 256;
/// Sockets accepted in one turn.
const SOCKETS_PER_TURN: usize = 64;
/// How often a turn lets the engine react to what its own effects caused before others get their turn.
const ROUNDS: usize = 4;
/// Time between heartbeats that nothing is due at, and at the least, in microseconds. What keeps a core going that was
/// parked by mistake is the watchdog's pulse; the heart serves timers and housekeeping.
const BEAT_US: u64 = 25_000;
const BEAT_LEAST_US: u64 = 100;
/// Figures for `/metrics` look at everything the engine has. They are taken this often, in microseconds, or so much
/// less often that they cost at most this part of the core's time.
const FIGURES_US: u64 = 25_000;
const FIGURES_PART: u64 = 200;
/// Time between the beats that look at trickling frames, at the least, in microseconds.
const LOOKS_US: u64 = 2000;
/// How long after its last work a core counts as busy, in microseconds.
const BUSY_FOR_US: u64 = 50_000;
/// How long the end may wait for the engine and the log, in milliseconds.
const END_MS: u64 = 6_000;
/// How long peers have to close their side at the end, in milliseconds.
const GOODBYE_MS: u64 = 300;

/// How far a core is on its way from start to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// The engine finishes what is in flight, since this time in milliseconds.
    Finishing(u64),
    /// All cores have finished; the engine writes its checkpoint. Since when the end began.
    Recording(u64),
    /// The log is closed; peers hang up.
    Leaving,
    Ended,
}

/// The heartbeat as its task and the turn share it.
#[derive(Debug, Default)]
struct Heart {
    waker: Option<Waker>,
    last_us: u64,
    armed_us: u64,
    stopped: bool,
}

/// What a core needs to know before it starts.
pub(super) struct Setup {
    pub(super) id: CoreId,
    pub(super) clock: Clock,
    pub(super) tick_us: u64,
    pub(super) intake: Arc<Intake>,
    pub(super) figures: Arc<Mutex<Figures>>,
}

pub(super) struct Core<E: CoreEngine, S> {
    id: CoreId,
    post: Arc<Post<E::Message>>,
    pub(super) clock: Clock,
    pub(super) engine: E,
    storage: S,
    pub(super) memory: Memory,
    pub(super) cumulation: Cumulation,
    pub(super) conns: Slab<Conn>,
    /// Key in `conns` by the engine's slot.
    by_slot: Vec<Option<usize>>,
    network: NetworkEffects<E::Message>,
    /// Mail that found a mailbox full, by core.
    outbox: Vec<Vec<E::Message>>,
    /// Whether `outbox` holds anything: sockets are not read then.
    held: bool,
    /// Connections whose output is to be tried at the next turn.
    pub(super) carry: Vec<ConnId>,
    /// Connections to wake at the end of the turn: they have more to read.
    pub(super) again: Vec<usize>,
    /// Connections that are not read until the outbox is empty.
    pub(super) waiting: Vec<usize>,
    lingering: Vec<usize>,
    pub(super) ticks: Ticks,
    pub(super) looks: Looks,
    turn: Option<Waker>,
    turn_wanted: bool,
    heart: Heart,
    busy_until_us: u64,
    stage: Stage,
    figures: Arc<Mutex<Figures>>,
    figures_due_us: u64,
}

impl<E: CoreEngine, S: Storage<E>> Core<E, S> {
    pub(super) fn new(
        setup: Setup,
        post: Arc<Post<E::Message>>,
        mut engine: E,
        storage: S,
    ) -> Self {
        let cores = usize::from(post.cores());
        let looks = Looks::new(setup.intake.frame_timeout_ms);
        let memory = Memory::new(setup.intake, setup.id, &post);
        engine.count_in(memory.accounting());
        Self {
            id: setup.id,
            post,
            clock: setup.clock,
            engine,
            storage,
            cumulation: Cumulation::new(memory.sizes(), memory.accounting().cloned()),
            memory,
            conns: Slab::new(),
            by_slot: Vec::new(),
            network: NetworkEffects::default(),
            outbox: (0..cores).map(|_| Vec::new()).collect(),
            held: false,
            carry: Vec::new(),
            again: Vec::new(),
            waiting: Vec::new(),
            lingering: Vec::new(),
            ticks: Ticks::new(setup.tick_us),
            looks,
            turn: None,
            turn_wanted: false,
            heart: Heart::default(),
            busy_until_us: 0,
            stage: Stage::Running,
            figures: setup.figures,
            figures_due_us: 0,
        }
    }

    /// Asks for a turn, once, after the tasks that are ready now.
    pub(super) fn want_turn(&mut self) {
        if !mem::replace(&mut self.turn_wanted, true)
            && let Some(turn) = &self.turn
        {
            turn.wake_by_ref();
        }
    }

    /// This core's number.
    pub(super) fn number(&self) -> CoreId {
        self.id
    }

    /// Whether sockets are not read because mail to another core is stuck.
    pub(super) fn reads_held(&self) -> bool {
        self.held
    }

    /// One turn. Answers the connections that are new, each of which needs a task, and whether all is over.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> (Vec<usize>, bool) {
        if self.turn.is_none() {
            self.turn = Some(cx.waker().clone());
            self.post.set_waker(self.id, cx.waker());
        }
        self.post.begin(self.id);
        let asked = mem::take(&mut self.turn_wanted);
        let now = self.clock.now();

        let new = self.take_sockets(now);
        let mut worked = asked || !new.is_empty();
        worked |= self.follow_limiter();
        worked |= self.take_mail(now);
        worked |= self.storage.poll(&mut self.engine, now);
        if self.engine.next_wakeup().is_some_and(|due| due <= now.ms) {
            self.engine.tick(now);
            worked = true;
        }
        self.read_gated(now);
        self.look_at_trickles(now);
        self.advance_stage(now);

        let mut more = true;
        for _ in 0..ROUNDS {
            more = self.engine.end_of_turn(now);
            more |= self.carry_out(now);
            if !more {
                break;
            }
            worked = true;
        }
        self.settle_memory();
        if more || !self.carry.is_empty() {
            self.want_turn();
        }
        for key in mem::take(&mut self.again) {
            self.wake_conn(key);
        }
        let us = self.clock.us();
        if worked {
            self.busy_until_us = us + BUSY_FOR_US;
        }
        self.post.set_busy(self.id, us < self.busy_until_us);
        self.settle_heart();
        (new, self.stage == Stage::Ended && self.heart.stopped)
    }

    fn take_sockets(&mut self, now: Now) -> Vec<usize> {
        let mut new = Vec::new();
        while new.len() < SOCKETS_PER_TURN
            && let Some(accepted) = self.post.take_socket(self.id)
        {
            if self.stage == Stage::Running {
                new.push(self.accept(accepted, now));
            } else {
                self.post.connection_gone(self.id);
            }
        }
        if new.len() == SOCKETS_PER_TURN {
            self.want_turn();
        }
        new
    }

    fn accept(&mut self, accepted: Accepted, now: Now) -> usize {
        let id = self.engine.accept(accepted.peer, accepted.local, now);
        let max_frame = self.engine.max_frame();
        let conn = Conn::new(id, raw::adopt(accepted.socket), accepted.ticket, max_frame);
        let key = self.conns.insert(conn);
        let slot = id.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, None);
        }
        if let Some(entry) = self.by_slot.get_mut(slot) {
            *entry = Some(key);
        }
        key
    }

    fn take_mail(&mut self, now: Now) -> bool {
        let mut taken = 0;
        while taken < MAIL_PER_TURN
            && let Some((from, batch)) = self.post.take(self.id)
        {
            self.engine.mail(from, batch, now);
            taken += 1;
        }
        if taken > 0 {
            self.post.taken(self.id);
        }
        if taken == MAIL_PER_TURN {
            self.want_turn();
        }
        taken > 0
    }

    fn key_of(&self, id: ConnId) -> Option<usize> {
        let key = (*self.by_slot.get(id.slot as usize)?)?;
        (self.conns.get(key)?.id == Some(id)).then_some(key)
    }

    pub(super) fn wake_conn(&self, key: usize) {
        if let Some(conn) = self.conns.get(key) {
            conn.wake();
        }
    }

    /// Carries out what the engine wants. False: it wanted nothing.
    fn carry_out(&mut self, now: Now) -> bool {
        let mut any = self.storage.carry_out(&mut self.engine, now);
        let mut network = mem::take(&mut self.network);
        self.engine.take_network(&mut network);
        any |= !network.is_empty();
        self.post_mail(&mut network.mail);
        for id in network.resumed.drain(..) {
            if let Some(key) = self.key_of(id) {
                self.feed(key, now);
                self.wake_conn(key);
            }
        }
        // Of what was carried over only once per turn: a peer that takes all we have must not hold the others up.
        for id in mem::take(&mut self.carry)
            .into_iter()
            .chain(network.dirty.drain(..))
        {
            self.flush(id, now);
        }
        for id in network.close.drain(..) {
            self.close(id, now);
        }
        self.network = network;
        any
    }

    fn post_mail(&mut self, mail: &mut [Vec<E::Message>]) {
        for (kept, new) in self.outbox.iter_mut().zip(mail.iter_mut()) {
            kept.append(new);
        }
        let mut stuck = false;
        for (to, kept) in (0..).zip(self.outbox.iter_mut()) {
            if !kept.is_empty()
                && let Err(batch) = self.post.send(self.id, to, mem::take(kept))
            {
                *kept = batch;
                stuck = true;
            }
        }
        if mem::replace(&mut self.held, stuck) && !stuck {
            for key in mem::take(&mut self.waiting) {
                self.wake_conn(key);
            }
        }
    }

    fn flush(&mut self, id: ConnId, now: Now) {
        let Some(key) = self.key_of(id) else {
            return;
        };
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if conn.write_blocked {
            return;
        }
        match flush(conn, &mut self.engine, now) {
            Sent::All => {}
            Sent::More => self.carry.push(id),
            Sent::Blocked => {
                conn.write_blocked = true;
                conn.wake();
                self.engine.blocked(id, now);
            }
            Sent::End => self.drop_conn(key, now),
        }
    }

    /// Ends a connection as the engine wants it: what it has to say first, if the kernel takes it.
    fn close(&mut self, id: ConnId, now: Now) {
        self.flush(id, now);
        if let Some(key) = self.key_of(id) {
            self.engine.closed(id, now);
            self.unlink(key);
            if let Some(conn) = self.conns.get_mut(key) {
                conn.linger(now.ms + super::conn::LINGER_MS);
                self.lingering.push(key);
            }
        }
    }

    /// The socket has ended or failed: tells the engine, and lets the task end.
    pub(super) fn drop_conn(&mut self, key: usize, now: Now) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        conn.cut();
        if let Some(id) = conn.id {
            self.engine.closed(id, now);
            self.unlink(key);
        }
        self.want_turn();
    }

    /// The engine's name no longer leads to this connection.
    fn unlink(&mut self, key: usize) {
        self.release_inbound(key);
        let Some(id) = self.conns.get_mut(key).and_then(|conn| conn.id.take()) else {
            return;
        };
        if let Some(entry) = self.by_slot.get_mut(id.slot as usize) {
            *entry = None;
        }
    }

    /// Called by the connection's task as the last thing it does.
    pub(super) fn forget(&mut self, key: usize) {
        self.release_inbound(key);
        if self.conns.try_remove(key).is_some() {
            self.post.connection_gone(self.id);
            self.ticks.forget(key);
            self.again.retain(|other| *other != key);
            self.waiting.retain(|other| *other != key);
            self.lingering.retain(|other| *other != key);
            self.want_turn();
        }
    }

    /// Reads the connections that wait for the tick, if it is due.
    fn read_gated(&mut self, now: Now) {
        for key in self.ticks.due(self.clock.us()) {
            self.read_at_tick(key, now);
        }
        self.ticks.rearm(self.clock.us());
    }

    fn read_at_tick(&mut self, key: usize, now: Now) {
        let outcome = self.read_now(key, now);
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if conn.state != State::Open {
            return;
        }
        conn.gate = match (outcome, conn.gate) {
            _ if conn.trickles() => Gate::Off,
            (Some((Read::Short(_), total)), _) if total < super::gate::SMALL => Gate::On(0),
            (Some((Read::Empty, _)), Gate::On(empty)) if empty + 1 < super::gate::EMPTY_TICKS => {
                Gate::On(empty + 1)
            }
            _ => Gate::Off,
        };
        if conn.gate == Gate::Off {
            conn.wake();
        } else {
            self.ticks.add(key, self.clock.us());
        }
    }

    /// After a small read the connection waits for the tick.
    pub(super) fn gate_after_read(&mut self, key: usize, read: Read) {
        if let Read::Short(n) = read
            && n < super::gate::SMALL
            && self.ticks.is_on()
            && let Some(conn) = self.conns.get_mut(key)
            && conn.state == State::Open
        {
            conn.gate = Gate::On(0);
            self.ticks.add(key, self.clock.us());
        }
    }

    fn advance_stage(&mut self, now: Now) {
        match self.stage {
            Stage::Running if self.post.is_stopping() => {
                self.engine.shutdown(now);
                self.stage = Stage::Finishing(now.ms);
                self.want_turn();
            }
            Stage::Finishing(since) => {
                let quiet = self.is_quiet() && !self.reads_held() && self.carry.is_empty();
                self.post.set_quiet(self.id, quiet);
                if self.is_late(since, now) {
                    self.leave(now);
                } else if self.post.all_quiet() {
                    self.engine.checkpoint(now);
                    self.stage = Stage::Recording(since);
                    self.want_turn();
                }
            }
            Stage::Recording(since) if self.is_quiet() || self.is_late(since, now) => {
                self.leave(now);
            }
            Stage::Leaving if self.conns.is_empty() => {
                self.stage = Stage::Ended;
                self.want_turn();
            }
            Stage::Running | Stage::Recording(_) | Stage::Leaving | Stage::Ended => {}
        }
    }

    fn is_quiet(&self) -> bool {
        self.engine.is_quiet() && self.storage.is_idle()
    }

    fn is_late(&self, since: u64, now: Now) -> bool {
        let late = now.ms.saturating_sub(since) > END_MS;
        if late {
            tracing::warn!(
                core = self.id,
                "not everything in flight was finished in {END_MS} ms; what was acknowledged is durable"
            );
        }
        late
    }

    fn leave(&mut self, now: Now) {
        self.storage.close();
        for (key, conn) in &mut self.conns {
            if let Some(id) = conn.id.take() {
                self.engine.closed(id, now);
            }
            conn.linger(now.ms + GOODBYE_MS);
            self.lingering.push(key);
        }
        self.by_slot.clear();
        self.stage = Stage::Leaving;
        self.want_turn();
    }

    /// When the heart should beat next, in microseconds of the clock.
    fn next_beat(&self) -> u64 {
        let mut next = self.heart.last_us + BEAT_US;
        if let Some(due) = self.engine.next_wakeup() {
            next = next.min(due * 1000);
        }
        if let Some(tick) = self.ticks.next() {
            next = next.min(tick);
        }
        if let Some(look) = self.looks.next() {
            next = next.min((look * 1000).max(self.heart.last_us + LOOKS_US));
        }
        // What was due at the last beat is done by the turn that it asked for, which has to come first.
        next.max(self.heart.last_us + BEAT_LEAST_US)
    }

    /// Wakes the heart if it sleeps longer than it should.
    fn settle_heart(&mut self) {
        let next = self.next_beat();
        if (next < self.heart.armed_us || self.stage == Stage::Ended)
            && let Some(waker) = &self.heart.waker
        {
            waker.wake_by_ref();
        }
    }

    /// For the heart's task: when to wake next, in microseconds from now; none: never again.
    pub(super) fn arm_heart(&mut self, waker: &Waker) -> Option<u64> {
        if self.heart.waker.is_none() {
            self.heart.waker = Some(waker.clone());
        }
        if self.stage == Stage::Ended {
            self.heart.stopped = true;
            self.want_turn();
            return None;
        }
        let next = self.next_beat();
        self.heart.armed_us = next;
        Some(next.saturating_sub(self.clock.us()))
    }

    /// For the heart's task: it beats. There is a turn even if nothing asked for one, because a core may have
    /// been parked by mistake with tasks ready.
    pub(super) fn beat(&mut self) {
        let now_us = self.clock.us();
        let now = now_us / 1000;
        self.watch_memory(self.clock.now());
        if now_us >= self.busy_until_us {
            self.cumulation.release_idle();
        }
        for key in &self.lingering {
            if let Some(conn) = self.conns.get_mut(*key)
                && matches!(conn.state, State::Lingering(until) if until <= now)
            {
                conn.cut();
            }
        }
        self.take_figures(self.clock.us());
        if let Some(turn) = &self.turn {
            turn.wake_by_ref();
        }
        // The pause until the next beat begins now: however long this one took, the turn and the connections come first.
        self.heart.last_us = self.clock.us();
    }

    fn take_figures(&mut self, began_us: u64) {
        if began_us < self.figures_due_us {
            return;
        }
        let mut figures = self.engine.figures();
        if let Ok(mut shown) = self.figures.lock() {
            figures.rate_limited_topics = if figures.rate_limited == shown.rate_limited {
                Arc::clone(&shown.rate_limited_topics)
            } else {
                self.engine.rate_limited_topics().into()
            };
            *shown = figures;
        }
        let cost = self.clock.us().saturating_sub(began_us);
        self.figures_due_us = began_us + FIGURES_US.max(cost * FIGURES_PART);
    }
}
