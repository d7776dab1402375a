//! Settings of the machine and of producers, with Pulsar's names and defaults. Times are nanoseconds.

use bytes::Bytes;
use vela_proto::{CompressionType, Schema};

use super::backoff::BackoffConfig;
use super::producer::{AccessMode, Batching};
use super::{MILLIS, Nanos};
use crate::error::{Error, Result};

/// Credentials as the protocol carries them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthData {
    /// `token`, `tls`, `basic`, ...
    pub method: String,
    /// What the method sends.
    pub data: Bytes,
}

/// Settings of the whole client.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// One or more `pulsar://host:port` or `pulsar+ssl://host:port`, tried in turn.
    pub service_urls: Vec<String>,
    /// Said in CONNECT.
    pub client_version: String,
    /// Which advertised address lookups ask for.
    pub listener_name: Option<String>,
    /// Credentials are asked for with [`Event::Authenticate`](super::Event::Authenticate).
    pub authentication: bool,
    /// Time for a question, and for the first opening of a producer or consumer.
    pub operation_timeout: Nanos,
    /// Time from asking for a socket to CONNECTED.
    pub connection_timeout: Nanos,
    /// Silence after which a PING is sent; after as much again the connection is given up.
    pub keep_alive_interval: Nanos,
    /// Between attempts to reconnect.
    pub backoff: BackoffConfig,
    /// Redirects that one lookup follows.
    pub max_lookup_redirects: u32,
    /// Connections to each broker, over which producers and consumers are spread.
    pub connections_per_broker: u64,
    /// Bytes of the largest message, where the broker does not say.
    pub max_message_size: usize,
    /// Seed of all chance in the machine (jitter).
    pub seed: u64,
    /// The wall clock, in milliseconds since 1970, at time 0. See also [`Machine::set_wall_clock`](super::Machine::set_wall_clock).
    pub wall_ms: u64,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            service_urls: Vec::new(),
            client_version: concat!("Vela-Rust-v", env!("CARGO_PKG_VERSION")).into(),
            listener_name: None,
            authentication: false,
            operation_timeout: 30_000 * MILLIS,
            connection_timeout: 10_000 * MILLIS,
            keep_alive_interval: 30_000 * MILLIS,
            backoff: BackoffConfig::default(),
            max_lookup_redirects: 20,
            connections_per_broker: 1,
            max_message_size: 5 * 1024 * 1024,
            seed: 0,
            wall_ms: 0,
        }
    }
}

impl MachineConfig {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// The setting, its value, and what would be right.
    pub fn check(&self) -> Result<()> {
        if self.service_urls.is_empty() {
            return Err(refuse("service_url", "", "name at least one broker"));
        }
        for url in &self.service_urls {
            check_service_url(url)?;
        }
        if self.connections_per_broker == 0 {
            return Err(refuse("connections_per_broker", "0", "at least 1"));
        }
        if self.operation_timeout == 0 || self.connection_timeout == 0 {
            return Err(refuse("operation_timeout", "0", "must be above 0"));
        }
        if self.keep_alive_interval == 0 {
            return Err(refuse("keep_alive_interval", "0", "must be above 0"));
        }
        Ok(())
    }
}

/// Checks that `url` is `pulsar://host:port` or `pulsar+ssl://host:port`.
///
/// # Errors
/// If it is not.
pub fn check_service_url(url: &str) -> Result<()> {
    let rest = url
        .strip_prefix("pulsar://")
        .or_else(|| url.strip_prefix("pulsar+ssl://"));
    let port = rest
        .and_then(|rest| rest.rsplit_once(':'))
        .filter(|(host, _)| !host.is_empty() && !host.contains(['/', ',']))
        .and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(_) => Ok(()),
        None => Err(refuse(
            "service_url",
            url,
            "expected pulsar://host:port or pulsar+ssl://host:port",
        )),
    }
}

/// Settings of one producer on one topic or partition.
#[derive(Debug, Clone)]
pub struct ProducerConfig {
    /// Full name of the topic or partition.
    pub topic: String,
    /// Index of the partition; -1 if the topic has none.
    pub partition: i32,
    /// Name; the broker gives one if absent.
    pub name: Option<String>,
    /// Whether others may produce at the same time.
    pub access_mode: AccessMode,
    /// Shown in the broker's statistics.
    pub properties: Vec<(String, String)>,
    /// Schema that the producer writes.
    pub schema: Option<Schema>,
    /// Messages are sent in batches; `None`: one by one.
    pub batching: Option<Batching>,
    /// Of the payload.
    pub compression: CompressionType,
    /// Messages larger than the broker takes are sent in chunks. Not together with `batching`.
    pub chunking: bool,
    /// Most bytes of payload in a chunk; 0: what the broker takes.
    pub chunk_max_message_size: usize,
    /// Time from sending until the receipt; 0: for ever.
    pub send_timeout: Nanos,
    /// Most messages without receipt; 0: no limit of its own.
    pub max_pending_messages: usize,
    /// Sends were admitted by somebody above, who also limits their number: this producer only accounts.
    pub admitted_upstream: bool,
    /// Sequence id of the first message; `None`: behind the last that the broker knows.
    pub initial_sequence_id: Option<u64>,
    /// A subscription made along with the producer, from the earliest message on.
    pub initial_subscription: Option<String>,
}

impl ProducerConfig {
    /// Pulsar's defaults for `topic`.
    #[must_use]
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            partition: -1,
            name: None,
            access_mode: AccessMode::Shared,
            properties: Vec::new(),
            schema: None,
            batching: Some(Batching::default()),
            compression: CompressionType::None,
            chunking: false,
            chunk_max_message_size: 0,
            send_timeout: 30_000 * MILLIS,
            max_pending_messages: 0,
            admitted_upstream: false,
            initial_sequence_id: None,
            initial_subscription: None,
        }
    }

    /// Refuses what cannot be.
    ///
    /// # Errors
    /// The setting, its value, and what would be right.
    pub fn check(&self) -> Result<()> {
        if self.chunking && self.batching.is_some() {
            return Err(refuse(
                "chunking",
                "true",
                "a batch cannot be sent in chunks: disable batching",
            ));
        }
        if self.admitted_upstream && self.max_pending_messages > 0 {
            return Err(refuse(
                "max_pending_messages",
                &self.max_pending_messages.to_string(),
                "the producer of a partition only accounts for what was admitted above it: set the limit there",
            ));
        }
        if let Some(batching) = &self.batching
            && (batching.max_messages < 1 || batching.max_bytes < 1)
        {
            return Err(refuse(
                "batching_max_messages",
                &batching.max_messages.to_string(),
                "a batch holds at least one message and one byte",
            ));
        }
        Ok(())
    }
}

pub(crate) fn refuse(setting: &'static str, value: &str, reason: &str) -> Error {
    Error::Config {
        setting,
        value: value.into(),
        reason: reason.into(),
    }
}
