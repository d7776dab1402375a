//! Why one connection waits. Every reason is a *count*: a hold is undone by its own release and by no other,
//! so a late release of an old hold can never clear a newer one.

/// A reason for which a connection is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// Inbound frames retain too much memory. Re-entrant (the limit, the fair share and the admission of a partial
    /// frame hold separately). Set and cleared by the connection's core when it reads the state of the memory
    /// limiter. `maxMessagePublishBufferSizeInMB`, `inProgressRequestFrameMemoryLimitEnabled`, `--memory-fairness`.
    Memory,
    /// The connection has as many unanswered publishes as it may. One hold. Set when a publish reaches the
    /// setting, cleared when receipts bring it to half. `maxPendingPublishRequestsPerConnection`.
    PendingRequests,
    /// The core's unanswered publishes hold more bytes than the core's share. One hold. Set on every connection of
    /// the core when the sum passes the share, cleared at half of it. `maxMessagePublishBufferSizeInMB`.
    PendingBytes,
    /// A topic's publish rate is in debt. Re-entrant (several topics may hold one connection). Set by a publish,
    /// cleared by the ticket of that topic's [`RateLimiter`](crate::RateLimiter). Publish-rate policies of the
    /// topic and its namespace, `maxPublishRatePerTopicInMessages`, `maxPublishRatePerTopicInBytes`.
    TopicRate,
    /// The broker's publish rate is in debt. Re-entrant like `TopicRate`: a publish and its ticket pair up.
    /// `brokerPublisherThrottlingMaxMessageRate`, `brokerPublisherThrottlingMaxByteRate`.
    BrokerRate,
    /// The publish rate of a resource group is in debt. Re-entrant (several groups). Set by a publish, cleared by
    /// its ticket. The group's `publishRateInMsgs` and `publishRateInBytes`.
    ResourceGroupRate,
    /// The client does not read what was sent to it. One hold. Set when its outbound bytes pass the high mark,
    /// cleared at the low one. `pulsarChannelPauseReceivingRequestsIfUnwritable`, `pulsarChannelWriteBufferHighWaterMark`.
    OutboundFull,
    /// The client has begun to read again a moment ago and is served slowly. Re-entrant. Set when `OutboundFull`
    /// clears or by its rate, cleared by a timer. `pulsarChannelPauseReceivingCooldownMs`.
    OutboundCooldown,
    /// A publish to a topic of another core has not been charged to that topic's rates yet. Re-entrant. Set by the
    /// publish, cleared when that core has charged it, which takes one round trip between two cores. No setting.
    PublishCharge,
}

impl Reason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Memory,
        Self::PendingRequests,
        Self::PendingBytes,
        Self::TopicRate,
        Self::BrokerRate,
        Self::ResourceGroupRate,
        Self::OutboundFull,
        Self::OutboundCooldown,
        Self::PublishCharge,
    ];

    /// The reason's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::PendingRequests => "pending-requests",
            Self::PendingBytes => "pending-bytes",
            Self::TopicRate => "topic-rate",
            Self::BrokerRate => "broker-rate",
            Self::ResourceGroupRate => "resource-group-rate",
            Self::OutboundFull => "outbound-full",
            Self::OutboundCooldown => "outbound-cooldown",
            Self::PublishCharge => "publish-charge",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

const MEMORY: u16 = Reason::Memory.bit();
const CHARGE: u16 = Reason::PublishCharge.bit();
const RATES: u16 =
    Reason::TopicRate.bit() | Reason::BrokerRate.bit() | Reason::ResourceGroupRate.bit() | CHARGE;

/// How often connections began to be held and were let go, since the start: plain data of one core, which only grows and
/// changes only when a connection does. What has begun and not ended holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldCounts {
    holds: [u64; Reason::ALL.len()],
    releases: [u64; Reason::ALL.len()],
    /// Times a connection that nothing held began to be held. A publish's way to another core and back
    /// ([`Reason::PublishCharge`]) alone is no hold in this sense.
    pub paused: u64,
    /// Times a connection stopped being held for any reason, its end included.
    pub resumed: u64,
}

impl HoldCounts {
    /// Times a connection that was not held for `reason` began to be.
    #[must_use]
    pub fn holds(&self, reason: Reason) -> u64 {
        self.holds.get(reason as usize).copied().unwrap_or(0)
    }

    /// Times a connection was held for `reason` no longer, its end included.
    #[must_use]
    pub fn releases(&self, reason: Reason) -> u64 {
        self.releases.get(reason as usize).copied().unwrap_or(0)
    }

    fn note(&mut self, before: u16, after: u16) {
        let paused = |held: u16| held & !CHARGE != 0;
        match (paused(before), paused(after)) {
            (false, true) => self.paused += 1,
            (true, false) => self.resumed += 1,
            _ => {}
        }
    }
}

/// What a release has made possible that was not possible before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Released {
    /// The socket may be read again.
    pub reads_free: bool,
    /// Decoded frames that wait may be handed on again; memory may still stop the reads.
    pub delivery_free: bool,
    /// The connection is no longer held for this reason.
    pub reason_free: bool,
}

/// The holds of one connection. Plain data of the core that owns the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Bit of every reason whose count is not zero.
    held: u16,
    counts: [u32; Reason::ALL.len()],
}

impl Throttle {
    /// A connection that nothing holds.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Holds the connection once more for `reason`. True: it was not held for it before, which `counts` takes note of.
    pub fn hold(&mut self, reason: Reason, counts: &mut HoldCounts) -> bool {
        let (before, first) = (self.held, !self.is_held(reason));
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count = count.saturating_add(1);
        }
        self.held |= reason.bit();
        if first {
            if let Some(holds) = counts.holds.get_mut(reason as usize) {
                *holds += 1;
            }
            counts.note(before, self.held);
        }
        first
    }

    /// Undoes one hold; `counts` takes note if it was the last for `reason`. A release without a hold changes nothing (and is a fault of
    /// the caller, which debug builds report).
    pub fn release(&mut self, reason: Reason, counts: &mut HoldCounts) -> Released {
        debug_assert!(
            self.is_held(reason),
            "released {}, which is not held",
            reason.name()
        );
        let (reads, delivery, held) = (self.may_read(), self.may_deliver(), self.is_held(reason));
        let before = self.held;
        if let Some(count) = self.counts.get_mut(reason as usize) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.held &= !reason.bit();
            }
        }
        let reason_free = held && !self.is_held(reason);
        if reason_free {
            if let Some(releases) = counts.releases.get_mut(reason as usize) {
                *releases += 1;
            }
            counts.note(before, self.held);
        }
        Released {
            reads_free: !reads && self.may_read(),
            delivery_free: !delivery && self.may_deliver(),
            reason_free,
        }
    }

    /// The connection is gone: whatever held it ends with it.
    pub fn end(&mut self, counts: &mut HoldCounts) {
        for reason in self.reasons() {
            if let Some(releases) = counts.releases.get_mut(reason as usize) {
                *releases += 1;
            }
        }
        counts.note(self.held, 0);
        *self = Self::default();
    }

    /// Whether the socket may be read: nothing holds.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.held == 0
    }

    /// Whether a decoded frame may be handed on: nothing but memory holds. To be asked again after every frame.
    #[must_use]
    pub fn may_deliver(&self) -> bool {
        self.held & !MEMORY == 0
    }

    /// Whether an incomplete frame may be read to its end although reads are stopped: memory alone holds.
    #[must_use]
    pub fn may_continue(&self) -> bool {
        self.held == MEMORY
    }

    /// Whether rates hold the connection, and nothing else does.
    #[must_use]
    pub fn only_rate(&self) -> bool {
        self.held & RATES != 0 && self.held & !RATES == 0
    }

    /// Whether a decoded PING, PONG, FLOW, ACK or CLOSE may be handed on, past publishes that wait: nothing but
    /// rates and memory holds.
    #[must_use]
    pub fn may_serve_control(&self) -> bool {
        self.held & !(RATES | MEMORY) == 0
    }

    /// Whether the connection is held for `reason`.
    #[must_use]
    pub fn is_held(&self, reason: Reason) -> bool {
        self.held & reason.bit() != 0
    }

    /// How many holds there are for `reason`.
    #[must_use]
    pub fn holds(&self, reason: Reason) -> u32 {
        self.counts.get(reason as usize).copied().unwrap_or(0)
    }

    /// The reasons that hold now.
    pub fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        Reason::ALL
            .into_iter()
            .filter(|reason| self.is_held(*reason))
    }
}

/// One hold that follows a state: for a source that only knows on and off, such as the memory limiter. However
/// often the state is applied, there is at most one hold of this latch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latch {
    on: bool,
}

impl Latch {
    /// Whether the latch holds.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.on
    }

    /// Makes the hold of this latch what `on` says. What that freed is in the answer.
    pub fn set(
        &mut self,
        throttle: &mut Throttle,
        reason: Reason,
        on: bool,
        counts: &mut HoldCounts,
    ) -> Released {
        let was = std::mem::replace(&mut self.on, on);
        match (was, on) {
            (false, true) => {
                throttle.hold(reason, counts);
                Released::default()
            }
            (true, false) => throttle.release(reason, counts),
            _ => Released::default(),
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "throttle_tests.rs"]
mod tests;
