//! The way of a producer, consumer, watch or question to the connection it needs: which broker, which connection, and when to try again.

use super::backoff::{Backoff, BackoffConfig};
use super::{CallKey, ConnKey, ConsumerKey, Nanos, ProducerKey, WatchKey};
use crate::error::Error;
use vela_proto::ServerError;

/// Whoever needs a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    Producer(ProducerKey),
    Consumer(ConsumerKey),
    Watch(WatchKey),
    Call(CallKey),
}

/// What is to be done on a connection once it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// LOOKUP.
    Lookup { authoritative: bool, redirects: u32 },
    /// PRODUCER, SUBSCRIBE, or the question.
    Open,
}

/// Where somebody is on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: until `at`, then from the start.
    Retry { at: Nanos },
    /// The connection is being made.
    Connecting { conn: ConnKey, step: Step },
    /// LOOKUP is asked.
    LookingUp { conn: ConnKey, redirects: u32 },
    /// It is being opened.
    Opening { conn: ConnKey },
    /// The broker said that opening will take its time (WaitForExclusive).
    Queued { conn: ConnKey },
    /// It is there.
    Attached { conn: ConnKey },
}

/// The way of one owner.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) place: Place,
    pub(crate) backoff: Backoff,
    /// It was open once: from then on it is tried again for ever.
    pub(crate) established: bool,
    /// Until then the first opening must succeed.
    pub(crate) give_up_at: Nanos,
    /// What the last attempt failed with.
    pub(crate) last_error: Option<Error>,
    /// The broker named the next one itself: no lookup, once.
    pub(crate) assigned: Option<String>,
    /// When a broker last sent it elsewhere.
    pub(crate) moved_at: Option<Nanos>,
    /// The topic has moved to another cluster: look up there.
    pub(crate) service: Option<String>,
    /// The earliest timer that is set.
    pub(crate) armed: Nanos,
}

impl Way {
    pub(crate) fn new(backoff: BackoffConfig, now: Nanos, timeout: Nanos) -> Self {
        Self {
            place: Place::Retry { at: now },
            backoff: Backoff::new(backoff),
            established: false,
            give_up_at: now.saturating_add(timeout),
            last_error: None,
            assigned: None,
            moved_at: None,
            service: None,
            armed: Nanos::MAX,
        }
    }

    /// The connection it is on, or waits for.
    pub(crate) fn conn(&self) -> Option<ConnKey> {
        match self.place {
            Place::Retry { .. } => None,
            Place::Connecting { conn, .. }
            | Place::LookingUp { conn, .. }
            | Place::Opening { conn }
            | Place::Queued { conn }
            | Place::Attached { conn } => Some(conn),
        }
    }

    pub(crate) fn attached(&self) -> Option<ConnKey> {
        match self.place {
            Place::Attached { conn } => Some(conn),
            _ => None,
        }
    }

    /// Is the first opening under way, with a time limit?
    fn is_limited(&self) -> bool {
        !self.established && !matches!(self.place, Place::Queued { .. } | Place::Attached { .. })
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let retry = match self.place {
            Place::Retry { at } => Some(at),
            _ => None,
        };
        let limit = self.is_limited().then_some(self.give_up_at);
        match (retry, limit) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether the time for the first opening is over.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        self.is_limited() && self.give_up_at <= now
    }

    /// It works.
    pub(crate) fn succeeded(&mut self, conn: ConnKey) {
        self.place = Place::Attached { conn };
        self.established = true;
        self.last_error = None;
        self.backoff.reset();
    }
}

/// Whether trying again may help.
pub(crate) fn is_retriable(error: &Error, established: bool) -> bool {
    let Error::Broker { code, .. } = error else {
        let passing = matches!(
            error,
            Error::Connection(_) | Error::Timeout { .. } | Error::Protocol(_)
        );
        return established || passing;
    };
    let terminal = matches!(
        code,
        ServerError::TopicNotFound
            | ServerError::TopicTerminatedError
            | ServerError::ProducerFenced
            | ServerError::InvalidTopicName
    );
    let fatal_at_first = matches!(
        code,
        ServerError::AuthenticationError
            | ServerError::AuthorizationError
            | ServerError::ConsumerBusy
            | ServerError::UnsupportedVersionError
            | ServerError::SubscriptionNotFound
            | ServerError::ProducerBusy
            | ServerError::IncompatibleSchema
            | ServerError::ConsumerAssignError
            | ServerError::NotAllowedError
            | ServerError::ProducerBlockedQuotaExceededException
    );
    !terminal && (established || !fatal_at_first)
}
