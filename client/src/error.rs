//! What can go wrong, in the words of the protocol where it has words for it.

use thiserror::Error as ThisError;
use vela_proto::ServerError;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Clonable, because one fault of a connection ends many calls.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The client's memory for messages that are on their way is used up (`memory_limit`), and this send may not wait.
    #[error(
        "the client's memory for pending messages is full: {used} of {limit} bytes are in use and {wanted} more were wanted; \
         wait for receipts, or raise memory_limit"
    )]
    MemoryBufferIsFull {
        /// Bytes in use.
        used: u64,
        /// The limit in bytes.
        limit: u64,
        /// Bytes this send is charged.
        wanted: u64,
    },
    /// The producer has as many unanswered messages as `max_pending_messages` allows, and this send may not wait.
    #[error("{pending} messages wait for their receipts, as many as max_pending_messages allows")]
    ProducerQueueIsFull {
        /// The limit in messages.
        pending: usize,
    },
    /// The call would block where blocking could keep what it waits for from happening.
    #[error(
        "{what} would block {place}; use the async API there, or call from a thread of your own"
    )]
    WouldBlock {
        /// The call.
        what: &'static str,
        /// Where it was made.
        place: &'static str,
    },
    /// The broker answered with an error.
    #[error("the broker answered {code:?}: {message}")]
    Broker {
        /// The protocol's code.
        code: ServerError,
        /// The broker's words.
        message: String,
    },
    /// A message is larger than the broker takes and may not be chunked.
    #[error(
        "a message of {size} bytes is larger than the {limit} bytes the broker takes; enable chunking or split it"
    )]
    MessageTooLarge {
        /// Bytes of the encoded message.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Nothing came within the time the caller or the configuration allows.
    #[error("{what} took longer than {millis} ms")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The time allowed.
        millis: u64,
    },
    /// The producer, consumer or client was closed.
    #[error("{0} is closed")]
    Closed(&'static str),
    /// The topic was terminated: it takes no more messages.
    #[error("the topic is terminated")]
    TopicTerminated,
    /// Another producer took the topic over.
    #[error("the producer was fenced: {0}")]
    Fenced(String),
    /// What the other side sent breaks the protocol; the connection is closed.
    #[error("the broker broke the protocol: {0}")]
    Protocol(String),
    /// The connection could not be made or was lost, and the call does not outlive it.
    #[error("connection: {0}")]
    Connection(String),
    /// A value could not be encoded or decoded by the schema.
    #[error("schema: {0}")]
    Schema(String),
    /// Credentials could not be had, or the broker did not take them.
    #[error("authentication: {0}")]
    Authentication(String),
    /// No session by TLS could be made.
    #[error("TLS: {0}")]
    Tls(String),
    /// A setting that cannot be; found when building, never later.
    #[error("{setting} = {value}: {reason}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why not, and what would be right.
        reason: String,
    },
}
