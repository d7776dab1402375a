//! When reading sockets stops because inbound frames keep too much memory, and when it begins again.
//!
//! The steady path is one read-modify-write of the counter and one load of the state word. All that decides is
//! in that one word (mode, limit, active, crowded, throttled, pressed), so that a transition is one compare-and-swap.
//!
//! Why nothing is ever stuck: whoever moves the counter afterwards reads the word; whoever moves the word
//! afterwards reads the counter, by a read-modify-write. Of any two such moves the later sees the earlier: if the
//! reader of the counter came first, its release is acquired by the one that moved the counter, who therefore
//! sees the new word. On x86-64 these orderings cost nothing over relaxed ones.

use crate::memory::{BufferMemory, Holder};
use crate::notify::{Listener, Listeners};
use crate::sync::{AtomicU64, Ordering};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// `auto` becomes active from this share of the buffer-memory budget (percent).
pub const ACTIVATE_PERCENT: u8 = 85;
/// `auto` stands down below this share of the buffer-memory budget (percent).
pub const STAND_DOWN_PERCENT: u8 = 65;
/// Limits above this (bytes; 128 TiB) count as this.
pub const MAX_LIMIT: i64 = (1 << LIMIT_BITS) - 1;

/// What the limiter does (`inProgressRequestFrameMemoryLimitEnabled`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nothing is counted, nothing is limited.
    Disabled,
    /// Counts, limits nothing.
    Tracking,
    /// Limits while the buffer-memory budget is under pressure.
    #[default]
    Auto,
    /// Limits always.
    Enabled,
}

impl Mode {
    /// The mode's name, as the setting takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Tracking => "tracking",
            Self::Auto => "auto",
            Self::Enabled => "enabled",
        }
    }

    const fn bits(self) -> u64 {
        match self {
            Self::Disabled => 0,
            Self::Tracking => 1,
            Self::Auto => 2,
            Self::Enabled => 3,
        }
    }

    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Disabled,
            1 => Self::Tracking,
            2 => Self::Auto,
            _ => Self::Enabled,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A mode that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseModeError(String);

impl fmt::Display for ParseModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a mode of inProgressRequestFrameMemoryLimitEnabled: use disabled, tracking, auto (or false) \
             or enabled (or true)",
            self.0
        )
    }
}

impl std::error::Error for ParseModeError {}

impl FromStr for Mode {
    type Err = ParseModeError;

    /// Case does not matter. `false` is `auto` and `true` is `enabled`: the setting once was a boolean.
    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "disabled" => Ok(Self::Disabled),
            "tracking" => Ok(Self::Tracking),
            "auto" | "false" => Ok(Self::Auto),
            "enabled" | "true" => Ok(Self::Enabled),
            // A text from the network goes into a message for a person: not all of it.
            _ => Err(ParseModeError(text.chars().take(64).collect())),
        }
    }
}

const ACTIVE: u64 = 1 << 2;
const CROWDED: u64 = 1 << 3;
const THROTTLED: u64 = 1 << 4;
const PRESSED: u64 = 1 << 5;
const LIMIT_SHIFT: u32 = 6;
const LIMIT_BITS: u32 = 47;
const GENERATION_SHIFT: u32 = LIMIT_SHIFT + LIMIT_BITS;
const GENERATION_BITS: u32 = 64 - GENERATION_SHIFT;

/// Everything the limiter decides by and has decided, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The mode.
    pub mode: Mode,
    /// Bytes that may be retained, at most [`MAX_LIMIT`]; 0: the limiter is off.
    pub limit: i64,
    /// `auto` is under pressure and limits.
    pub active: bool,
    /// 75 % of the limit were reached and half of it not yet again: connections over their fair share wait.
    pub crowded: bool,
    /// The limit was exceeded and half of it not reached again: no connection reads.
    pub throttled: bool,
    /// 85 % of the buffer-memory budget were in use and less than 65 % not yet again: what is kept only to be quicker gives way, in
    /// every mode. True whenever `active` is, so a cache alone never keeps `auto` active.
    pub pressed: bool,
    /// One more (modulo 2048) at every change.
    pub generation: u16,
}

impl State {
    fn unpack(word: u64) -> Self {
        Self {
            mode: Mode::from_bits(word),
            limit: limit_of(word),
            active: word & ACTIVE != 0,
            crowded: word & CROWDED != 0,
            throttled: word & THROTTLED != 0,
            pressed: word & PRESSED != 0,
            generation: u16::try_from(word >> GENERATION_SHIFT).unwrap_or(0),
        }
    }

    fn pack(self) -> u64 {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let limit = u64::try_from(clamp_limit(self.limit)).unwrap_or(0);
        self.mode.bits()
            | flag(self.active, ACTIVE)
            | flag(self.crowded, CROWDED)
            | flag(self.throttled, THROTTLED)
            | flag(self.pressed, PRESSED)
            | limit << LIMIT_SHIFT
            | u64::from(self.generation) << GENERATION_SHIFT
    }

    /// The state that the policy wants when `retained` bytes are alive. A fixed point of itself.
    fn decide(mut self, retained: i64, memory: &BufferMemory) -> Self {
        let high = memory.at_least(ACTIVATE_PERCENT);
        let still_high = high || memory.at_least(STAND_DOWN_PERCENT);
        self.pressed = high || self.pressed && still_high;
        let limiting = self.limit > 0
            && match self.mode {
                Mode::Disabled | Mode::Tracking => false,
                Mode::Enabled => true,
                Mode::Auto if self.active => still_high,
                Mode::Auto => high && retained > activation_mark(self.limit),
            };
        self.active = limiting && self.mode == Mode::Auto;
        let above_half = retained > self.limit / 2;
        self.throttled = limiting && (retained > self.limit || self.throttled && above_half);
        self.crowded = limiting
            && (self.throttled
                || retained >= crowded_mark(self.limit)
                || self.crowded && above_half);
        self
    }
}

fn limit_of(word: u64) -> i64 {
    i64::try_from(word >> LIMIT_SHIFT & ((1 << LIMIT_BITS) - 1)).unwrap_or(0)
}

fn clamp_limit(bytes: i64) -> i64 {
    bytes.clamp(0, MAX_LIMIT)
}

/// 1.5 L, rounded down: more than this is more than 1.5 L.
fn activation_mark(limit: i64) -> i64 {
    limit + limit / 2
}

/// 75 % of L, rounded up.
fn crowded_mark(limit: i64) -> i64 {
    limit - limit / 4
}

/// How often the limiter changed its mind since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transitions {
    /// Reading was stopped.
    pub throttled: u64,
    /// Reading was allowed again.
    pub cleared: u64,
    /// `auto` became active.
    pub activated: u64,
    /// `auto` stood down.
    pub stood_down: u64,
}

#[derive(Debug)]
struct Counts {
    throttled: AtomicU64,
    cleared: AtomicU64,
    activated: AtomicU64,
    stood_down: AtomicU64,
}

impl Counts {
    fn new() -> Self {
        Self {
            throttled: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            activated: AtomicU64::new(0),
            stood_down: AtomicU64::new(0),
        }
    }

    fn count(&self, before: State, after: State) {
        let one = |from: bool, to: bool, up: &AtomicU64, down: &AtomicU64| match (from, to) {
            (false, true) => drop(up.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(down.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        };
        one(
            before.throttled,
            after.throttled,
            &self.throttled,
            &self.cleared,
        );
        one(
            before.active,
            after.active,
            &self.activated,
            &self.stood_down,
        );
    }
}

/// The limiter of retained inbound memory, shared by all cores.
#[derive(Debug)]
pub struct MemoryLimiter {
    memory: Arc<BufferMemory>,
    word: AtomicU64,
    listeners: Listeners,
    counts: Counts,
}

impl MemoryLimiter {
    /// A limiter over the inbound bytes of `memory`. `limit`: bytes; at most [`MAX_LIMIT`]; 0 or less: off.
    #[must_use]
    pub fn new(mode: Mode, limit: i64, memory: Arc<BufferMemory>) -> Self {
        let state = State {
            mode,
            limit: clamp_limit(limit),
            active: false,
            crowded: false,
            throttled: false,
            pressed: false,
            generation: 0,
        };
        Self {
            word: AtomicU64::new(state.pack()),
            memory,
            listeners: Listeners::new(),
            counts: Counts::new(),
        }
    }

    /// Whether a root that is allocated now has to be counted: not in `disabled`. The root remembers the answer:
    /// [`released`](Self::released) is called for exactly those for which [`allocated`](Self::allocated) was.
    #[must_use]
    pub fn counts(&self) -> bool {
        Mode::from_bits(self.word.load(Ordering::Relaxed)) != Mode::Disabled
    }

    /// Counts a root of `bytes` capacity in. What is to be done about it, the next read finds in
    /// [`is_throttled`](Self::is_throttled).
    #[inline]
    pub fn allocated(&self, bytes: usize) {
        let retained = self.memory.inbound_allocated(bytes);
        let word = self.word.load(Ordering::Relaxed);
        if self.allocation_matters(word, retained) {
            self.change(|state| state);
        }
    }

    /// Counts a counted root of `bytes` capacity out again, on any core. The last release drives recovery.
    #[inline]
    pub fn released(&self, bytes: usize) {
        let retained = self.memory.inbound_released(bytes);
        let word = self.word.load(Ordering::Relaxed);
        if self.release_matters(word, retained) {
            self.change(|state| state);
        }
    }

    /// Bytes of root capacity alive now, as far as they were counted.
    #[must_use]
    pub fn retained(&self) -> u64 {
        self.memory.held_by(Holder::Inbound)
    }

    /// Whether no connection may read.
    #[inline]
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        self.word.load(Ordering::Relaxed) & THROTTLED != 0
    }

    /// Whether connections over their fair share may not read (see [`over_share`](crate::over_share)).
    #[inline]
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CROWDED != 0
    }

    /// Everything at one moment.
    #[must_use]
    pub fn state(&self) -> State {
        State::unpack(self.word.load(Ordering::Acquire))
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.state().mode
    }

    /// The limit in bytes; 0: off.
    #[must_use]
    pub fn limit(&self) -> i64 {
        self.state().limit
    }

    /// Changes the mode; every core is notified, and the limit applies (or no longer applies) at once.
    pub fn set_mode(&self, mode: Mode) {
        self.change(|state| State { mode, ..state });
    }

    /// Changes the limit (bytes; at most [`MAX_LIMIT`]; 0 or less: off), like [`set_mode`](Self::set_mode).
    pub fn set_limit(&self, bytes: i64) {
        let limit = clamp_limit(bytes);
        self.change(|state| State { limit, ..state });
    }

    /// Changes the budget of the buffer memory (bytes; 0: not known), like [`set_mode`](Self::set_mode).
    pub fn set_budget(&self, bytes: u64) {
        self.memory.set_budget(bytes);
        self.change(|state| state);
    }

    /// To be called after another holder than `Inbound` took or released memory: the budget may be under pressure now, or no
    /// longer. A few loads, mostly.
    #[inline]
    pub fn reconsider(&self) {
        let word = self.word.load(Ordering::Relaxed);
        let below = word & PRESSED != 0 && !self.memory.at_least(STAND_DOWN_PERCENT);
        let above = word & ACTIVE == 0
            && self.memory.at_least(ACTIVATE_PERCENT)
            && (word & PRESSED == 0
                || self.allocation_matters(word, i64::try_from(self.retained()).unwrap_or(0)));
        if below || above {
            self.change(|state| state);
        }
    }

    /// Bytes that have to be given up before the budget is no longer under pressure; 0 when it is not.
    #[inline]
    #[must_use]
    pub fn excess(&self) -> u64 {
        if self.word.load(Ordering::Relaxed) & PRESSED == 0 {
            return 0;
        }
        // Exactly at the mark is still too much.
        match self.memory.at_least(STAND_DOWN_PERCENT) {
            true => self.memory.above(STAND_DOWN_PERCENT) + 1,
            false => 0,
        }
    }

    /// The memory this limiter watches.
    #[must_use]
    pub fn memory(&self) -> &Arc<BufferMemory> {
        &self.memory
    }

    /// Transitions since the start.
    #[must_use]
    pub fn transitions(&self) -> Transitions {
        Transitions {
            throttled: self.counts.throttled.load(Ordering::Relaxed),
            cleared: self.counts.cleared.load(Ordering::Relaxed),
            activated: self.counts.activated.load(Ordering::Relaxed),
            stood_down: self.counts.stood_down.load(Ordering::Relaxed),
        }
    }

    /// Registers a core. `wake` is called, outside any lock, on whatever thread changes the state, at most once
    /// until the core calls [`Listener::begin`]; the core then reads [`state`](Self::state). It is called once
    /// before this returns, so that a core never misses the state it starts with.
    #[must_use]
    pub fn register(&self, wake: impl Fn() + Send + Sync + 'static) -> Listener {
        self.listeners.register(Box::new(wake))
    }

    /// Whether `retained` bytes after an allocation may change the state of `word`.
    #[inline]
    fn allocation_matters(&self, word: u64, retained: i64) -> bool {
        let mode = Mode::from_bits(word);
        if word & THROTTLED != 0 || !matches!(mode, Mode::Auto | Mode::Enabled) {
            return false;
        }
        let limit = limit_of(word);
        if limit == 0 {
            return false;
        }
        if word & CROWDED != 0 {
            return retained > limit;
        }
        if mode == Mode::Enabled || word & ACTIVE != 0 {
            return retained >= crowded_mark(limit);
        }
        // Only now can `auto` become active, so only now the budget is looked at.
        retained > activation_mark(limit) && self.memory.at_least(ACTIVATE_PERCENT)
    }

    /// Whether `retained` bytes after a release may change the state of `word`.
    #[inline]
    fn release_matters(&self, word: u64, retained: i64) -> bool {
        if word & CROWDED != 0 && retained <= limit_of(word) / 2 {
            return true;
        }
        word & PRESSED != 0 && !self.memory.at_least(STAND_DOWN_PERCENT)
    }

    /// Moves the state to what the policy wants of `edit(state)`, one compare-and-swap at a time, until it wants
    /// nothing more; then notifies.
    #[cold]
    fn change(&self, edit: impl Fn(State) -> State) {
        let mut word = self.word.load(Ordering::Acquire);
        let mut edited = false;
        loop {
            let before = State::unpack(word);
            let retained = self.memory.inbound_latest();
            let start = if edited { before } else { edit(before) };
            let after = start.decide(retained, &self.memory);
            if after == before {
                break;
            }
            let generation = (after.generation + 1) & ((1 << GENERATION_BITS) - 1);
            let next = State {
                generation,
                ..after
            }
            .pack();
            match self
                .word
                .compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    self.counts.count(before, after);
                    edited = true;
                    word = next;
                }
                Err(newer) => word = newer,
            }
        }
        if edited {
            self.listeners.notify();
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
