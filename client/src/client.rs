//! The client: what producers, consumers and readers share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use vela_limiter::MemoryLimit;
use vela_proto::command_get_topics_of_namespace::Mode;

use crate::auth::AuthProvider;
use crate::core::{Answer, BackoffConfig, Machine, MachineConfig};
use crate::driver::{Parts, Shared};
use crate::error::{Error, Result};
use crate::message::millis_of;
use crate::producer_builder::ProducerBuilder;
use crate::tls::TlsOptions;

/// Bytes that pending sends may take up if `memory_limit` is not set.
pub const DEFAULT_MEMORY_LIMIT: u64 = 64 << 20;

/// Most partitions of a topic that are taken for true: there is a producer or consumer for each.
pub(crate) const MAX_PARTITIONS: u32 = 65_536;

/// A client of one cluster. Clones are the same client; it is closed when the last of them, and of what was made by them, is gone.
///
/// ```no_run
/// # async fn example() -> vela_client::Result<()> {
/// let client = vela_client::Client::builder("pulsar://127.0.0.1:6650").build().await?;
/// let producer = client.producer("topic").build().await?;
/// let receipt = producer.send("hello").await?; // admitted and queued
/// println!("{}", receipt.await?); // stored
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    guard: Arc<Guard>,
}

/// Closes the client when nobody has it any more. The client's own tasks have what is in it only.
pub(crate) struct Guard {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Client {
    /// A client of the brokers at `service_url`: `pulsar://host:port` or `pulsar+ssl://host:port`, several hosts separated by commas.
    pub fn builder(service_url: impl Into<String>) -> ClientBuilder {
        ClientBuilder {
            service_url: service_url.into(),
            config: MachineConfig::default(),
            memory_limit: DEFAULT_MEMORY_LIMIT,
            auth: None,
            tls: None,
            seed: None,
        }
    }

    /// A producer to this topic, of bytes unless a schema is set.
    pub fn producer(&self, topic: impl Into<String>) -> ProducerBuilder<bytes::Bytes> {
        ProducerBuilder::new(self.clone(), topic.into())
    }

    /// A consumer, of bytes unless a schema is set. It needs a topic, several or a pattern, and a subscription.
    pub fn consumer(&self) -> crate::ConsumerBuilder<bytes::Bytes> {
        crate::ConsumerBuilder::new(self.clone())
    }

    /// A reader of this topic, of bytes unless a schema is set.
    pub fn reader(&self, topic: impl Into<String>) -> crate::ReaderBuilder<bytes::Bytes> {
        crate::ReaderBuilder::new(self.clone(), topic.into())
    }

    /// Partitions of a topic; 0 if it has none. The broker may create the topic if there is none.
    ///
    /// # Errors
    /// What the broker answers, or that it did not in time.
    pub async fn partitions(&self, topic: &str) -> Result<u32> {
        self.partitions_of(topic, true).await
    }

    pub(crate) async fn partitions_of(&self, topic: &str, create: bool) -> Result<u32> {
        let topic = crate::TopicName::parse(topic)?.as_str().to_owned();
        let ask = self
            .shared()
            .call(|machine, now| machine.partitions(now, topic, create));
        match ask.await? {
            Answer::Partitions(partitions) if partitions > MAX_PARTITIONS => {
                Err(Error::Protocol(format!(
                    "the broker says that the topic has {partitions} partitions; a client opens each, and takes at most {MAX_PARTITIONS}"
                )))
            }
            Answer::Partitions(partitions) => Ok(partitions),
            other => Err(unexpected(&other)),
        }
    }

    /// The topics of a namespace (`tenant/namespace`), each partition on its own.
    ///
    /// # Errors
    /// What the broker answers, or that it did not in time.
    pub async fn topics_of_namespace(&self, namespace: &str, mode: Mode) -> Result<Vec<String>> {
        let namespace = namespace.to_owned();
        let ask = self
            .shared()
            .call(|machine, now| machine.topics_of_namespace(now, namespace, mode, None, None));
        match ask.await? {
            Answer::Topics { topics, .. } => Ok(topics),
            other => Err(unexpected(&other)),
        }
    }

    /// The schema of a topic and its version, the newest without `version`.
    ///
    /// # Errors
    /// What the broker answers, or that it did not in time.
    pub async fn schema(
        &self,
        topic: &str,
        version: Option<bytes::Bytes>,
    ) -> Result<(crate::SchemaInfo, bytes::Bytes)> {
        let topic = crate::TopicName::parse(topic)?.as_str().to_owned();
        let ask = self
            .shared()
            .call(|machine, now| machine.get_schema(now, topic, version));
        match ask.await? {
            Answer::Schema { schema, version } => {
                Ok((crate::SchemaInfo::from_proto(&schema), version))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Registers a schema of a topic that exists, if the broker does not have it, and answers its version.
    ///
    /// # Errors
    /// What the broker answers, or that it did not in time.
    pub async fn register_schema(
        &self,
        topic: &str,
        schema: &crate::SchemaInfo,
    ) -> Result<bytes::Bytes> {
        let topic = crate::TopicName::parse(topic)?.as_str().to_owned();
        let schema = schema.to_proto();
        let ask = self
            .shared()
            .call(|machine, now| machine.get_or_create_schema(now, topic, schema));
        match ask.await? {
            Answer::SchemaVersion(version) => Ok(version),
            other => Err(unexpected(&other)),
        }
    }

    /// The URL of the broker that serves a topic.
    ///
    /// # Errors
    /// What the broker answers, or that it did not in time.
    pub async fn lookup(&self, topic: &str) -> Result<String> {
        let topic = crate::TopicName::parse(topic)?.as_str().to_owned();
        let ask = self
            .shared()
            .call(|machine, now| machine.lookup(now, topic));
        match ask.await? {
            Answer::Broker(url) => Ok(url),
            other => Err(unexpected(&other)),
        }
    }

    /// The limit on what pending sends take up.
    #[must_use]
    pub fn memory(&self) -> &MemoryLimit {
        &self.shared().memory
    }

    /// Closes everything at once: sends without receipt, calls and consumers end with [`Error::Closed`].
    pub fn close(&self) {
        self.shared().close();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.guard.shared
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

fn unexpected(answer: &Answer) -> Error {
    Error::Protocol(format!("an answer to another question: {answer:?}"))
}

/// Settings of a client, with Pulsar's names and defaults.
pub struct ClientBuilder {
    service_url: String,
    config: MachineConfig,
    memory_limit: u64,
    auth: Option<Arc<dyn AuthProvider>>,
    tls: Option<TlsOptions>,
    seed: Option<u64>,
}

impl ClientBuilder {
    /// Bytes that pending sends may take up: each its encoded value and 1 KiB. 64 MiB if not set.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// Who the client says it is.
    #[must_use]
    pub fn auth(mut self, auth: impl AuthProvider + 'static) -> Self {
        self.auth = Some(Arc::new(auth));
        self
    }

    /// How TLS is done, for `pulsar+ssl://`. Without, the certificates of the web are trusted.
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Time for each question, and for the first opening of a producer or consumer. 30 s if not set.
    #[must_use]
    pub fn operation_timeout(mut self, time: Duration) -> Self {
        self.config.operation_timeout = nanos(time);
        self
    }

    /// Time to make a connection. 10 s if not set.
    #[must_use]
    pub fn connection_timeout(mut self, time: Duration) -> Self {
        self.config.connection_timeout = nanos(time);
        self
    }

    /// Silence after which a broker is asked for a sign of life; after as much again it is given up. 30 s if not set.
    #[must_use]
    pub fn keep_alive_interval(mut self, time: Duration) -> Self {
        self.config.keep_alive_interval = nanos(time);
        self
    }

    /// Waits between attempts to reconnect. 100 ms, doubled up to 60 s, if not set.
    #[must_use]
    pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
        self.config.backoff = BackoffConfig {
            initial: nanos(initial),
            max: nanos(max),
        };
        self
    }

    /// Connections to each broker. 1 if not set.
    #[must_use]
    pub fn connections_per_broker(mut self, connections: u32) -> Self {
        self.config.connections_per_broker = u64::from(connections);
        self
    }

    /// Redirects that a lookup follows. 20 if not set.
    #[must_use]
    pub fn max_lookup_redirects(mut self, redirects: u32) -> Self {
        self.config.max_lookup_redirects = redirects;
        self
    }

    /// The advertised listener that lookups ask for.
    #[must_use]
    pub fn listener_name(mut self, name: impl Into<String>) -> Self {
        self.config.listener_name = Some(name.into());
        self
    }

    /// Seed of all chance in the client (jitter, first partition). Drawn from the surroundings if not set.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Makes the client, whose tasks run on the current runtime. Nothing is connected yet.
    ///
    /// # Errors
    /// If a setting cannot be.
    #[allow(
        clippy::unused_async,
        reason = "making a client may come to ask a broker"
    )]
    pub async fn build(self) -> Result<Client> {
        let handle = Handle::try_current().map_err(|_| Error::Config {
            setting: "runtime",
            value: "none".into(),
            reason: "a client is made on a tokio runtime, on which its tasks run".into(),
        })?;
        self.build_on(handle)
    }

    /// The same on a given runtime.
    ///
    /// # Errors
    /// If a setting cannot be.
    pub fn build_on(mut self, runtime: Handle) -> Result<Client> {
        self.config.service_urls = service_urls(&self.service_url);
        self.config.authentication = self.auth.is_some();
        self.config.wall_ms = millis_of(SystemTime::now());
        let seed = self.seed.unwrap_or_else(chance);
        self.config.seed = seed;
        self.config.check()?;
        let secure = self.service_url.starts_with("pulsar+ssl://");
        let tls = match self.tls {
            Some(tls) => Some(tls.connector()?),
            None if secure => Some(TlsOptions::new().connector()?),
            None => None,
        };
        let connection_timeout = Duration::from_nanos(self.config.connection_timeout);
        let parts = Parts {
            machine: Machine::new(self.config)?,
            memory: MemoryLimit::new(self.memory_limit),
            auth: self.auth,
            tls,
            connection_timeout,
            seed,
        };
        let shared = Shared::start(runtime, parts);
        let guard = Arc::new(Guard { shared });
        Ok(Client { guard })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("service_url", &self.service_url)
            .field("memory_limit", &self.memory_limit)
            .finish_non_exhaustive()
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `pulsar://a:1,b:2` is two.
fn service_urls(url: &str) -> Vec<String> {
    let (scheme, hosts) = url.split_once("://").unwrap_or(("", url));
    hosts
        .trim_end_matches('/')
        .split(',')
        .map(|host| {
            if scheme.is_empty() {
                host.to_owned()
            } else {
                format!("{scheme}://{host}")
            }
        })
        .collect()
}

/// A number that differs from process to process and from client to client.
fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    static CLIENTS: AtomicU64 = AtomicU64::new(0);
    let count = CLIENTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(count);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::service_urls;

    #[test]
    fn several_hosts_share_a_scheme() {
        assert_eq!(
            service_urls("pulsar://a:1,b:2/"),
            ["pulsar://a:1", "pulsar://b:2"]
        );
        assert_eq!(service_urls("pulsar+ssl://c:3"), ["pulsar+ssl://c:3"]);
        assert_eq!(service_urls("nonsense"), ["nonsense"]);
    }
}
