//! HTTP: health, metrics, and Apache Pulsar's admin API. On a thread of its own, so
//! that no request takes time from a core.

mod answer;
mod api;
mod brokers;
mod clusters;
mod configuration;
mod cores;
mod inactive;
mod lookup;
mod messages;
mod metrics;
mod namespaces;
mod params;
mod partitioned;
mod policies;
mod rates;
mod schemas;
mod server;
mod stats;
mod store;
mod subscriptions;
mod target;
mod tenants;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod topic_tests;
mod topics;
mod urls;

use self::metrics::Metrics;
use crate::config::Settings;
use crate::engine::admin::{Asker, Request};
use crate::engine::message::CoreId;
use crate::store::meta::{MetaRequest, MetaResult};
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use vela_limiter::{HoldCounts, Reason};

pub(crate) use self::clusters::CLUSTER;
pub(crate) use self::tenants::TENANT;

/// One core, as metrics show it.
#[derive(Debug, Clone, Default)]
pub struct CoreSample {
    /// Turns of its loop since the start.
    pub turns: u64,
    /// Times it was seen standing still for a second.
    pub stalls: u64,
    /// It stands still now.
    pub stalled: bool,
    /// Sockets it has.
    pub connections: u64,
    /// Open producers.
    pub producers: u64,
    /// Open consumers.
    pub consumers: u64,
    /// Topics it owns.
    pub topics: u64,
    /// Subscriptions of these topics.
    pub subscriptions: u64,
    /// Messages published since the start.
    pub messages_in: u64,
    /// Messages dispatched since the start.
    pub messages_out: u64,
    /// Bytes published since the start.
    pub bytes_in: u64,
    /// Bytes dispatched since the start.
    pub bytes_out: u64,
    /// Message ids acknowledged since the start.
    pub acks: u64,
    /// Messages of non-persistent topics that nobody could take, since the start.
    pub messages_dropped: u64,
    /// Publishes refused since the start.
    pub publish_errors: u64,
    /// Connections closed because of what they sent, since the start.
    pub protocol_errors: u64,
    /// Connections held now, by throttle reason.
    pub held: [u64; Reason::ALL.len()],
    /// Connections held now for at least one reason.
    pub throttled: u64,
    /// Times the publish rate of a topic held a connection since the start.
    pub rate_limited: u64,
    /// The same by full name of the topic, for those with any.
    pub rate_limited_topics: Arc<[(String, u64)]>,
    /// Holds of its connections and their ends since the start; memory has its own.
    pub holds: HoldCounts,
}

/// Buffer memory and its limiter, as metrics show them.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemorySample {
    /// Bytes that inbound frames keep alive.
    pub retained: u64,
    /// No connection is read because of that.
    pub throttled: bool,
    /// Connections over their fair share are not read because of that.
    pub crowded: bool,
    /// `auto` limits at the moment.
    pub active: bool,
    /// The limit in bytes; 0: none.
    pub limit: u64,
    /// Bytes that all buffers may take; 0: not known.
    pub budget: u64,
    /// Bytes in use by holder.
    pub holders: [(&'static str, u64); 4],
    /// Times reading was stopped, since the start.
    pub throttles: u64,
    /// Times it was allowed again.
    pub clears: u64,
    /// Times `auto` began to limit.
    pub activations: u64,
    /// Times it stood down.
    pub stand_downs: u64,
    /// Connections that are not read because of memory.
    pub held_connections: u64,
    /// Times a connection began to be held by memory, since the start.
    pub holds: u64,
    /// Times it was let go, its end included.
    pub releases: u64,
    /// Connections closed because a frame made no progress.
    pub frames_stood: u64,
    /// Times a frame began to come by a few bytes at a time.
    pub trickles: u64,
    /// Connections closed because others waited for the memory of their slow frame.
    pub frames_evicted: u64,
}

/// What the broker looks like at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Whether it takes connections.
    pub ready: bool,
    /// Buffer memory and its limiter.
    pub memory: MemorySample,
    /// All cores, by number.
    pub cores: Vec<CoreSample>,
}

/// The settings at one moment.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// What the broker goes by.
    pub settings: Arc<Settings>,
    /// What was set while running, by name, as it was said.
    pub overrides: BTreeMap<String, String>,
}

/// What HTTP needs of the broker. Called on the HTTP thread, and must not block.
pub trait Broker: Send + Sync + 'static {
    /// What it looks like now.
    fn sample(&self) -> Sample;
    /// Its settings now.
    fn configuration(&self) -> Configuration;
    /// Reads or changes metadata. `done` is called once, on any thread: with what was read, with an error, or after
    /// a change when every core goes by it.
    fn metadata(&self, request: MetaRequest, done: Box<dyn FnOnce(MetaResult) + Send>);
    /// Where topics live, and where clients find them.
    fn place(&self) -> Place;
    /// Asks a core. The asker is answered once, on the core's thread.
    ///
    /// # Errors
    /// What was asked, if the core's mailbox is full: try again.
    fn ask(
        &self,
        core: CoreId,
        asker: Asker,
        request: Box<Request>,
    ) -> Result<(), (Asker, Box<Request>)>;
}

/// Where topics live, and where clients find them.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// How many cores there are.
    pub cores: CoreId,
    /// Shards of the data directory; shard `s` lives on core `s % cores`.
    pub shards: u32,
    /// Host name or address given to clients; `None`: the one they already use.
    pub advertised: Option<String>,
    /// Port of the binary protocol.
    pub port: u16,
    /// Port of HTTP.
    pub web_port: u16,
    /// A port of each core's own, by core; empty: there are none.
    pub core_ports: Vec<u16>,
}

/// An answer, or one that says why there is none.
type Answer = Result<Response, answer::Refusal>;

#[derive(Clone)]
struct Shared {
    broker: Arc<dyn Broker>,
    cluster: Arc<str>,
    metrics: Arc<Metrics>,
    /// Held by who changes something: changes that look at several keys do not cross each other.
    changes: Arc<tokio::sync::Mutex<()>>,
    /// Questions to cores under way.
    in_flight: Arc<Semaphore>,
    /// Payloads on their way out, in units of 64 KiB: a client that reads slowly or not at all keeps its answer in memory.
    payloads: Arc<Semaphore>,
    /// Request bodies, in units of 16 KiB.
    bodies: Arc<Semaphore>,
    /// How long a question to a core may take.
    limit: Duration,
}

impl Shared {
    fn settings(&self) -> Arc<Settings> {
        self.broker.configuration().settings
    }
}

/// The running HTTP server. Dropping it ends the server.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves HTTP on `listener` (set to non-blocking).
///
/// # Errors
/// If the thread or its event loop cannot be made.
pub fn start(listener: TcpListener, broker: Arc<dyn Broker>) -> io::Result<Server> {
    start_with(listener, broker, cores::LIMIT)
}

fn start_with(
    listener: TcpListener,
    broker: Arc<dyn Broker>,
    limit: Duration,
) -> io::Result<Server> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel();
    let shards = broker.place().shards;
    let shared = shared(broker, limit);
    let app = router(shared.clone());
    let limits = server::Limits::of(&shared.settings(), shards);
    let thread = std::thread::Builder::new()
        .name("vela-http".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                tokio::spawn(finish(shared.clone()));
                tokio::spawn(inactive::watch(shared));
                server::serve(listener, app, limits, stopped).await;
            });
        })?;
    Ok(Server {
        stop: Some(stop),
        thread: Some(thread),
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // Idle keep-alive connections would hold a graceful end up: the thread ends with the process instead
        // of being waited for.
        self.stop.take();
        self.thread.take();
    }
}

/// Takes up what a stop of the broker has interrupted, until it is done.
async fn finish(shared: Shared) {
    /// How soon it is tried again.
    const AGAIN: Duration = Duration::from_secs(1);
    while !matches!(shared.finish_all().await, Ok(true)) {
        tokio::time::sleep(AGAIN).await;
    }
}

fn shared(broker: Arc<dyn Broker>, limit: Duration) -> Shared {
    let cluster: Arc<str> = broker.configuration().settings.cluster_name.as_str().into();
    Shared {
        metrics: Arc::new(Metrics::new(&cluster)),
        cluster,
        broker,
        changes: Arc::default(),
        in_flight: Arc::new(Semaphore::new(cores::IN_FLIGHT)),
        payloads: Arc::new(Semaphore::new(messages::PAYLOADS)),
        bodies: Arc::new(Semaphore::new(server::BODIES_MAX / server::BODY_UNIT)),
        limit,
    }
}

fn router(shared: Shared) -> Router {
    let mut resources = Router::new()
        .route("/admin/v2/brokers/health", get(health))
        .route("/admin/v2/brokers/ready", get(ready))
        .route("/metrics", get(render))
        .merge(configuration::routes())
        .merge(rates::routes())
        .merge(brokers::routes())
        .merge(clusters::routes())
        .merge(tenants::routes())
        .merge(namespaces::routes())
        .merge(policies::routes())
        .merge(lookup::routes())
        .merge(schemas::routes());
    for domain in ["persistent", "non-persistent"] {
        let base = format!("/admin/v2/{domain}/{{tenant}}/{{namespace}}");
        resources = resources
            .merge(topics::routes(&base))
            .merge(policies::topic::routes(&base))
            .merge(partitioned::routes(&base))
            .merge(stats::routes(&base))
            .merge(subscriptions::routes(&base))
            .merge(messages::routes(&base));
    }
    let resources = resources
        .fallback(answer::unrouted)
        // Bodies are bounded before they come here.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared.clone());
    // The layer goes around a router of its own: it changes paths, which must happen before they are matched.
    Router::new()
        .fallback_service(resources)
        .layer(axum::middleware::from_fn_with_state(
            shared,
            server::read_body,
        ))
        .layer(axum::middleware::from_fn(answer::framework))
}

/// Whether the broker can do its work. Not while it stops, and not while a core makes no turn: what hangs there would
/// hang for clients as well.
async fn health(State(shared): State<Shared>) -> Response {
    let sample = shared.broker.sample();
    if !sample.ready {
        return answer::reason(
            StatusCode::SERVICE_UNAVAILABLE,
            "The broker is starting or stopping",
        );
    }
    match sample.cores.iter().position(|core| core.stalled) {
        Some(core) => answer::reason(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("Core {core} stands still; the broker's log says since when"),
        ),
        None => answer::text("ok".to_owned()),
    }
}

async fn ready(State(shared): State<Shared>) -> Response {
    if shared.broker.sample().ready {
        answer::text("ok".to_owned())
    } else {
        answer::reason(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The broker is starting or stopping",
        )
    }
}

async fn render(State(shared): State<Shared>) -> impl IntoResponse {
    let text = shared.metrics.render(&shared.broker.sample());
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}
