//! From settings to a running broker, and to its end.

use super::capacity;
use super::clock::Clock;
use super::cluster::{Cluster, Common};
use super::disk::{Disk, LaneIo, SharedMeta};
use super::error::StartError;
use super::guests::Limits;
use super::listen::{self, Door};
use super::memory::Intake;
use super::port::CoreId;
use super::post::Post;
use super::preflight;
use super::rates::RateTable;
use crate::admin::{self, CoreSample, Sample};
use crate::config::{BufferSize, CorePorts, Settings, Switch, Sync, TopicType};
use crate::engine::{
    self, AutoTopicType, Engine, EngineConfig, Message, Metadata, ServiceAddress, SharedRates,
};
use crate::store::file::{Faults, FileOptions, FileWal, Operation, SyncMode};
use crate::store::lock::DataDir;
use crate::store::log::{Lane, LaneConfig, LaneState, recover::recover_lane};
use crate::store::meta::{Meta, MetaError, MetaService, RedbMeta};
use crate::store::wal::Wal;
use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use socket2::Socket;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vela_codec::{FRAME_PADDING, Sizes};
use vela_limiter::{BufferMemory, Holder, MemoryLimiter};

/// Namespaces that are there from the start, as in a Pulsar standalone.
const NAMESPACES: [&str; 3] = ["public/default", "public/functions", "pulsar/system"];
/// Metadata requests of all cores that may wait.
const META_REQUESTS: usize = 1024;
/// Room of a chunk beside its records' payloads, in bytes.
const CHUNK_OVERHEAD: usize = 64 * 1024;
/// Size at which a chunk is sealed, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Runs the broker until SIGTERM or SIGINT. True: it ended cleanly.
///
/// Prints one line on standard output when it takes connections:
/// `vela is ready: pulsar://HOST:PORT http://HOST:WEBPORT`.
///
/// # Errors
/// [`StartError`] if it cannot start; nothing is left running then.
pub fn run(settings: &Settings) -> Result<bool, StartError> {
    let stop = signals()?;
    raise_open_files();
    let cpus = preflight::cpus(settings.cores)?;
    let cores = u16::try_from(cpus.len()).unwrap_or(u16::MAX);
    preflight::memlock(cores, settings.io_memory_kb)?;
    preflight::uring()?;

    let ip = listen::address(&settings.bind_address)?;
    let data = open_data_dir(settings, cores)?;
    // Bound now, so that a taken port is told before the log is read; open when all is ready.
    let ports = Ports::bind(settings, ip, cores)?;

    let (meta, epochs, metadata) = open_metadata(data.path(), data.shards())?;
    let post: Arc<Post<Message>> = Arc::new(Post::new(cores));
    let lanes = open_lanes(settings, &data, &epochs, &post)?;

    let intake = intake(settings);
    let common = Common {
        cpus,
        io_memory: to_usize(settings.io_memory_kb.saturating_mul(1024)),
        tick_us: settings.tick_us,
        clock: Clock::start(),
        intake: Arc::clone(&intake),
    };
    let service = ServiceAddress {
        advertised: settings.advertised_address.clone(),
        port: ports.shared_port,
        core_ports: ports.core_ports.clone(),
    };
    let parts = parts(settings, &data, meta, metadata, service, lanes, &post);
    let cluster = Cluster::start(&common, Arc::clone(&post), parts)?;

    let ready = Arc::new(AtomicBool::new(false));
    let opened = open_doors(ports, settings, source(&cluster, &intake, &ready));
    let (web, doors, addresses) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            cluster.stop();
            return Err(error);
        }
    };
    ready.store(true, Ordering::Release);
    announce(&addresses);
    tracing::info!(
        cores,
        shards = data.shards(),
        epoch = epochs.first(),
        data = %data.path().display(),
        "takes connections at {addresses}"
    );

    let limits = Limits {
        connections: settings.broker_max_connections,
        per_address: settings.broker_max_connections_per_ip,
    };
    let accepting = listen::accept_until(&doors, &post, limits, &stop);
    if let Err(error) = &accepting {
        tracing::error!("cannot wait for connections any more: {error}");
    }
    tracing::info!("stopping");
    ready.store(false, Ordering::Release);
    drop(doors);
    let clean = cluster.stop();
    drop(web);
    if clean {
        tracing::info!("stopped");
    }
    Ok(clean && accepting.is_ok())
}

/// Starts HTTP and listens on all ports.
fn open_doors(
    ports: Ports,
    settings: &Settings,
    source: admin::Source,
) -> Result<(admin::Server, Vec<Door>, String), StartError> {
    let web = admin::start(ports.web()?, source).map_err(|cause| StartError::System {
        what: "cannot start the HTTP server",
        cause,
    })?;
    let addresses = ports.addresses(settings);
    Ok((web, ports.open()?, addresses))
}

/// The socket that becomes readable when the process is asked to end.
fn signals() -> Result<UnixStream, StartError> {
    let fail = |cause| StartError::System {
        what: "cannot set up signal handling",
        cause,
    };
    let (asked, stop) = UnixStream::pair().map_err(fail)?;
    for signal in [SIGTERM, SIGINT] {
        let asked = asked.try_clone().map_err(fail)?;
        signal_hook::low_level::pipe::register(signal, asked).map_err(fail)?;
    }
    Ok(stop)
}

/// Each connection is an open file: takes as many as the system lets us.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )
    {
        tracing::debug!("limit of open files stays as it is: {error}");
    }
}

fn open_data_dir(settings: &Settings, cores: u16) -> Result<DataDir, StartError> {
    let asked = (settings.shards > 0).then_some(settings.shards);
    Ok(DataDir::open(
        Path::new(&settings.data_dir),
        asked,
        u32::from(cores),
    )?)
}

/// Opens the metadata store and takes an epoch for each lane: ledger ids are made of it, so those of all lanes differ.
fn open_metadata(dir: &Path, shards: u32) -> Result<(MetaService, Vec<u64>, Metadata), StartError> {
    let fail = |cause: MetaError| StartError::DataDir {
        path: dir.to_path_buf(),
        cause: cause.to_string(),
    };
    let mut meta = RedbMeta::open(&dir.join("meta.redb")).map_err(fail)?;
    let epochs = (0..shards)
        .map(|_| meta.new_epoch())
        .collect::<Result<Vec<_>, _>>();
    let epochs = epochs.map_err(fail)?;
    for namespace in NAMESPACES {
        let key = format!("{}{namespace}", engine::metadata::NAMESPACE);
        match meta.put(&key, Bytes::from_static(b"{}"), Some(0)) {
            Ok(_) | Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    let mut metadata = Metadata::default();
    for prefix in [engine::metadata::NAMESPACE, engine::metadata::PARTITIONED] {
        for (key, found) in meta.list(prefix).map_err(fail)? {
            metadata.apply(&key, Some(&found.value));
        }
    }
    let service = MetaService::spawn(Box::new(meta), META_REQUESTS).map_err(fail)?;
    Ok((service, epochs, metadata))
}

type OpenLane = (FileWal, Lane, LaneState);

/// Opens and replays all lanes, each on a thread of its own.
fn open_lanes(
    settings: &Settings,
    data: &DataDir,
    epochs: &[u64],
    post: &Arc<Post<Message>>,
) -> Result<Vec<OpenLane>, StartError> {
    let shards = data.shards();
    let max_entry = to_usize(settings.max_message_size) + FRAME_PADDING;
    let open = |shard: u32, epoch: u64| -> Result<OpenLane, StartError> {
        let fail = |cause: String| StartError::DataDir {
            path: data.path().to_path_buf(),
            cause: format!("log of shard {shard}: {cause}"),
        };
        let core = core_of(shard, post.cores());
        let waker = Arc::clone(post);
        let options = FileOptions {
            segment_bytes: mebibytes(settings.segment_size_mb),
            // More than the writes a lane has in flight can be, so the log never pushes back.
            unacked_bytes_max: 4 * (max_entry.max(CHUNK_BYTES) + CHUNK_OVERHEAD),
            sync: match settings.sync {
                Sync::Always => SyncMode::Always,
                Sync::Interval => {
                    SyncMode::Interval(Duration::from_millis(settings.sync_interval_millis))
                }
                Sync::Never => SyncMode::Never,
            },
            wake: Some(Arc::new(move || waker.wake(core))),
            faults: SlowWrites::of(settings),
            ..FileOptions::default()
        };
        let (wal, mut recovery) = FileWal::open(data.path(), shard, epoch, options)
            .map_err(|error| fail(error.to_string()))?;
        if wal.chunk_len_max() < max_entry + CHUNK_OVERHEAD {
            return Err(StartError::Segment {
                segment_mb: settings.segment_size_mb,
                message: settings.max_message_size,
                largest: wal
                    .chunk_len_max()
                    .saturating_sub(CHUNK_OVERHEAD + FRAME_PADDING),
            });
        }
        let (state, last_seq) =
            recover_lane(&mut recovery).map_err(|error| fail(error.to_string()))?;
        tracing::info!(
            shard,
            topics = state.topics.len(),
            chunks = last_seq,
            "log recovered"
        );
        let lane = Lane::new(
            shard,
            epoch,
            wal.next_seq(),
            LaneConfig {
                chunk_bytes: CHUNK_BYTES,
                max_entry,
                budget_bytes: mebibytes(settings.log_buffer_mb),
                cache_bytes: mebibytes(settings.managed_ledger_cache_size_mb)
                    / shards.max(1) as usize,
                ..LaneConfig::default()
            },
        );
        Ok((wal, lane, state))
    };
    std::thread::scope(|scope| {
        let open = &open;
        let threads: Vec<_> = (0..shards)
            .zip(epochs)
            .map(|(shard, epoch)| scope.spawn(move || open(shard, *epoch)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(StartError::DataDir {
                        path: data.path().to_path_buf(),
                        cause: "reading the log failed with an internal error, see above"
                            .to_owned(),
                    })
                })
            })
            .collect()
    })
}

/// What is shared by all cores to keep to the memory of inbound frames.
fn intake(settings: &Settings) -> Arc<Intake> {
    let memory = Arc::new(BufferMemory::new(buffer_budget(settings)));
    let limiter = MemoryLimiter::new(
        settings.in_progress_request_frame_memory_limit_enabled,
        publish_buffer(settings),
        memory,
    );
    Arc::new(Intake::new(
        Arc::new(limiter),
        Sizes {
            min: to_usize(settings.broker_adaptive_recv_byte_buf_allocator_minimum_size),
            initial: to_usize(settings.broker_adaptive_recv_byte_buf_allocator_initial_size),
            max: to_usize(settings.broker_adaptive_recv_byte_buf_allocator_maximum_size),
        },
        settings.memory_fairness == Switch::On,
        settings.frame_timeout.saturating_mul(1000),
    ))
}

/// Bytes that all buffers may take together.
fn buffer_budget(settings: &Settings) -> u64 {
    match settings.buffer_memory {
        0 => capacity::memory() / 2,
        given => given.saturating_mul(1 << 20),
    }
}

/// The limit of inbound memory and of unanswered publishes in bytes; 0 or less: none.
fn publish_buffer(settings: &Settings) -> i64 {
    match settings.max_message_publish_buffer_size_in_mb {
        BufferSize::Auto => i64::try_from(buffer_budget(settings) / 2).unwrap_or(i64::MAX),
        BufferSize::MiB(size) => size.saturating_mul(1 << 20),
    }
}

/// Makes log writes slow, for tests of what a broker does on slow storage.
struct SlowWrites {
    delay: Duration,
    until: Option<Instant>,
}

impl SlowWrites {
    fn of(settings: &Settings) -> Option<Arc<dyn Faults>> {
        if settings.fault_sync_delay_millis == 0 {
            return None;
        }
        let seconds = settings.fault_sync_delay_seconds;
        tracing::warn!("log writes are slowed down on purpose: faultSyncDelayMillis is set");
        Some(Arc::new(Self {
            delay: Duration::from_millis(settings.fault_sync_delay_millis),
            until: (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds)),
        }))
    }
}

impl Faults for SlowWrites {
    fn before(&self, operation: Operation) -> std::io::Result<()> {
        if matches!(operation, Operation::Write { .. })
            && self.until.is_none_or(|until| Instant::now() < until)
        {
            std::thread::sleep(self.delay);
        }
        Ok(())
    }
}

/// The core that hosts a shard.
fn core_of(shard: u32, cores: u16) -> CoreId {
    u16::try_from(shard % u32::from(cores.max(1))).unwrap_or(0)
}

/// For each core what makes its engine and its way to the disk.
fn parts(
    settings: &Settings,
    data: &DataDir,
    meta: MetaService,
    metadata: Metadata,
    service: ServiceAddress,
    lanes: Vec<OpenLane>,
    post: &Arc<Post<Message>>,
) -> Vec<impl FnOnce() -> (Engine, Disk<FileWal>) + Send + 'static> {
    let cores = post.cores();
    let wakes: Vec<Arc<dyn Fn() + Send + std::marker::Sync>> = (0..cores)
        .map(|core| {
            let post = Arc::clone(post);
            Arc::new(move || post.wake(core)) as Arc<dyn Fn() + Send + std::marker::Sync>
        })
        .collect();
    let shared = Arc::new(engine_settings(settings));
    let mut hosted: Vec<Vec<OpenLane>> = (0..cores).map(|_| Vec::new()).collect();
    for lane in lanes {
        let core = core_of(lane.0.lane(), cores);
        if let Some(list) = hosted.get_mut(usize::from(core)) {
            list.push(lane);
        }
    }
    let shards = data.shards();
    let log_budget = mebibytes(settings.log_buffer_mb);
    let rates = Arc::new(RateTable::default());
    (0..cores)
        .zip(hosted)
        .zip(SharedMeta::share(meta, &wakes))
        .map(move |((core, hosted), meta)| {
            let config = EngineConfig {
                core,
                cores,
                shards,
                settings: Arc::clone(&shared),
                service: service.clone(),
                log_budget,
                rates: Arc::clone(&rates) as Arc<dyn SharedRates>,
            };
            let metadata = metadata.clone();
            move || {
                let (mut io, mut lanes) = (Vec::new(), Vec::new());
                for (wal, lane, state) in hosted {
                    lanes.push((wal.lane(), lane, state));
                    io.push(LaneIo::new(wal));
                }
                let engine = Engine::new(config, lanes, metadata);
                (engine, Disk::new(io, meta))
            }
        })
        .collect()
}

/// The engine's part of the settings.
fn engine_settings(settings: &Settings) -> engine::Settings {
    engine::Settings {
        cluster_name: settings.cluster_name.clone(),
        max_message_publish_buffer_bytes: publish_buffer(settings),
        max_message_size: to_u32(settings.max_message_size),
        keep_alive_interval_seconds: to_u32(settings.keep_alive_interval_seconds),
        connection_liveness_check_timeout_millis: to_u32(
            settings.connection_liveness_check_timeout_millis,
        ),
        max_pending_publish_requests_per_connection: to_u32(
            settings.max_pending_publish_requests_per_connection,
        ),
        allow_auto_topic_creation: settings.allow_auto_topic_creation,
        allow_auto_topic_creation_type: match settings.allow_auto_topic_creation_type {
            TopicType::NonPartitioned => AutoTopicType::NonPartitioned,
            TopicType::Partitioned => AutoTopicType::Partitioned,
        },
        default_num_partitions: settings.default_num_partitions,
        allow_auto_subscription_creation: settings.allow_auto_subscription_creation,
        max_unacked_messages_per_consumer: to_u32(settings.max_unacked_messages_per_consumer),
        max_unacked_messages_per_subscription: to_u32(
            settings.max_unacked_messages_per_subscription,
        ),
        managed_ledger_max_entries_per_ledger: to_u32(
            settings.managed_ledger_max_entries_per_ledger,
        ),
        managed_ledger_max_ledger_rollover_time_ms: settings
            .managed_ledger_max_ledger_rollover_time_minutes
            .saturating_mul(60_000),
        managed_ledger_max_size_per_ledger: settings
            .managed_ledger_max_size_per_ledger_mbytes
            .saturating_mul(1 << 20),
        max_consumer_metadata_size: to_u32(settings.max_consumer_metadata_size),
        dispatcher_max_round_robin_batch_size: to_u32(
            settings.dispatcher_max_round_robin_batch_size,
        ),
        ..engine::Settings::default()
    }
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn mebibytes(value: u64) -> usize {
    to_usize(value.saturating_mul(1 << 20))
}

/// What HTTP shows of memory.
fn memory_sample(intake: &Intake) -> admin::MemorySample {
    let limiter = &intake.limiter;
    let (transitions, state) = (limiter.transitions(), limiter.state());
    let (stood, evicted) = intake.closed();
    admin::MemorySample {
        retained: limiter.retained(),
        throttled: state.throttled,
        crowded: state.crowded,
        active: state.active,
        limit: u64::try_from(state.limit).unwrap_or(0),
        budget: limiter.memory().budget(),
        holders: Holder::ALL.map(|holder| (holder.name(), limiter.memory().held_by(holder))),
        throttles: transitions.throttled,
        clears: transitions.cleared,
        activations: transitions.activated,
        stand_downs: transitions.stood_down,
        held_connections: intake.held(),
        frames_stood: stood,
        frames_evicted: evicted,
    }
}

/// What HTTP shows.
fn source(
    cluster: &Cluster<Message>,
    intake: &Arc<Intake>,
    ready: &Arc<AtomicBool>,
) -> admin::Source {
    let post = Arc::clone(&cluster.post);
    let figures = cluster.figures.clone();
    let (intake, ready) = (Arc::clone(intake), Arc::clone(ready));
    Arc::new(move || Sample {
        ready: ready.load(Ordering::Acquire),
        memory: memory_sample(&intake),
        cores: (0..)
            .zip(&figures)
            .map(|(core, figures)| {
                let figures = figures.lock().map(|figures| *figures).unwrap_or_default();
                CoreSample {
                    turns: post.turns(core),
                    stalls: post.stalls(core),
                    connections: post.connections(core),
                    producers: figures.producers,
                    consumers: figures.consumers,
                    topics: figures.topics,
                    subscriptions: figures.subscriptions,
                    messages_in: figures.messages_in,
                    messages_out: figures.messages_out,
                    bytes_in: figures.bytes_in,
                    bytes_out: figures.bytes_out,
                    acks: figures.acks,
                    publish_errors: figures.publish_errors,
                    protocol_errors: figures.protocol_errors,
                }
            })
            .collect(),
    })
}

/// Ports that are bound and not open yet.
struct Ports {
    shared: Socket,
    shared_port: u16,
    web: Socket,
    web_port: u16,
    cores: Vec<Socket>,
    core_ports: Vec<u16>,
    ip: IpAddr,
}

const SHARED: (&str, &str) = ("brokerServicePort", "--port");
const WEB: (&str, &str) = ("webServicePort", "--web-port");
const CORE: (&str, &str) = ("corePorts", "--core-ports");

impl Ports {
    fn bind(settings: &Settings, ip: IpAddr, cores: u16) -> Result<Self, StartError> {
        let (shared, shared_port) = listen::bind(ip, settings.broker_service_port, SHARED)?;
        let (web, web_port) = listen::bind(ip, settings.web_service_port, WEB)?;
        let mut ports = Self {
            shared,
            shared_port,
            web,
            web_port,
            cores: Vec::new(),
            core_ports: Vec::new(),
            ip,
        };
        if let CorePorts::From(first) = settings.core_ports {
            for core in 0..cores {
                let wanted = match first {
                    0 => 0,
                    first => first
                        .checked_add(core)
                        .ok_or(StartError::CorePorts { first, cores })?,
                };
                let (socket, port) = listen::bind(ip, wanted, CORE)?;
                ports.cores.push(socket);
                ports.core_ports.push(port);
            }
        }
        Ok(ports)
    }

    fn web(&self) -> Result<std::net::TcpListener, StartError> {
        let socket = self.web.try_clone().map_err(|cause| StartError::System {
            what: "cannot open the web port",
            cause,
        })?;
        listen::open(socket, self.ip, self.web_port, WEB)
    }

    fn open(self) -> Result<Vec<Door>, StartError> {
        let mut doors = vec![Door {
            listener: listen::open(self.shared, self.ip, self.shared_port, SHARED)?,
            core: None,
        }];
        for ((core, socket), port) in (0..).zip(self.cores).zip(self.core_ports) {
            doors.push(Door {
                listener: listen::open(socket, self.ip, port, CORE)?,
                core: Some(core),
            });
        }
        Ok(doors)
    }

    fn addresses(&self, settings: &Settings) -> String {
        let host = match &settings.advertised_address {
            Some(host) => host.clone(),
            None if self.ip.is_unspecified() => "localhost".to_owned(),
            None => self.ip.to_string(),
        };
        let at = |port| match host.parse::<IpAddr>() {
            // With the brackets that an IPv6 address has in a URL.
            Ok(ip) => SocketAddr::new(ip, port).to_string(),
            Err(_) => format!("{host}:{port}"),
        };
        format!(
            "pulsar://{} http://{}",
            at(self.shared_port),
            at(self.web_port)
        )
    }
}

/// The one line on standard output, for whoever waits for it.
fn announce(addresses: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "vela is ready: {addresses}").and_then(|()| out.flush()) {
        tracing::debug!("nobody reads standard output: {error}");
    }
}
