//! From settings to a running broker, and to its end.

use super::clock::Clock;
use super::cluster::{Cluster, Common};
use super::disk::{Disk, LaneIo, MetaEnd, SharedMeta};
use super::dynamic::{Dynamic, Targets, buffer_budget, publish_buffer, read_cache};
use super::error::StartError;
use super::guests::Limits;
use super::listen::{self, Door};
use super::memory::Intake;
use super::port::CoreId;
use super::ports::Ports;
use super::post::Post;
use super::preflight;
use super::rates::RateTable;
use super::web::Web;
use crate::admin::{self, Place};
use crate::config::{self, Settings, Switch, Sync};
use crate::engine::{self, Engine, EngineConfig, Message, Metadata, ServiceAddress, SharedRates};
use crate::store::file::{Faults, FileOptions, FileWal, Operation, SyncMode, lane_dir};
use crate::store::lock::DataDir;
use crate::store::log::{Lane, LaneConfig, LaneState, recover::recover_lane};
use crate::store::meta::{Meta, MetaError, MetaService, RedbMeta};
use crate::store::wal::{Wal, WalError};
use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vela_codec::{FRAME_PADDING, Sizes};
use vela_limiter::{BufferMemory, MemoryLimiter};

/// Namespaces that are there from the start, as in a Pulsar standalone.
const NAMESPACES: [&str; 3] = ["public/default", "public/functions", "pulsar/system"];
/// Their tenants.
const TENANTS: [&str; 2] = ["public", "pulsar"];
/// Key of the metadata store that says that these were made.
const FURNISHED: &str = "furnished";
/// Metadata requests of all cores that may wait.
const META_REQUESTS: usize = 1024;
/// Room of a chunk beside its records' payloads, in bytes.
const CHUNK_OVERHEAD: usize = 64 * 1024;
/// Every start takes a new epoch from the metadata store, so a log that knows a later one tells that the store was replaced.
const STALE_METADATA: &str = "the metadata (meta.redb) is older than the log: it was lost, or comes from an older backup than the rest. \
    Restore the whole data directory from one backup, or start with an empty one";
/// A lane is never without its manifest once it was opened.
const MISSING_LOG: &str = "holds no log, but did at an earlier start: it was removed, or is not in the backup. Restore the whole data \
    directory from one backup, or start with an empty one";
/// Size at which a chunk is sealed, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Runs the broker until SIGTERM, SIGINT or SIGHUP. True: it ended cleanly.
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

    let Opened {
        mut meta,
        epochs,
        used,
        overrides,
    } = open_metadata(data.path(), data.shards())?;
    let dynamic = Arc::new(Dynamic::new(settings.clone(), overrides));
    let settings = dynamic.settings();
    let settings = settings.as_ref();
    let post: Arc<Post<Message>> = Arc::new(Post::new(cores));
    let lanes = open_lanes(settings, &data, &epochs, used, &post)?;
    let metadata = load_metadata(&mut meta, data.path(), &settings.cluster_name)?;
    let meta = MetaService::spawn(Box::new(meta), META_REQUESTS)
        .map_err(|cause| StartError::metadata(data.path(), &cause))?;

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
    let targets = Targets::new(Arc::clone(&intake.limiter), cores, settings);
    dynamic.follow(Box::new(targets));
    let wakes = wakes(&post);
    let (shared, ends) = SharedMeta::share(meta, Arc::clone(&dynamic), &wakes);
    let meta = Arc::downgrade(&shared);
    // From here on the cores keep it open.
    drop(shared);
    let parts = parts(&dynamic, &data, ends, metadata, service, lanes, &post);
    let cluster = Cluster::start(&common, Arc::clone(&post), parts)?;

    let ready = Arc::new(AtomicBool::new(false));
    let web = Web {
        ready: Arc::clone(&ready),
        post: Arc::clone(&post),
        figures: cluster.figures.clone(),
        intake,
        dynamic: Arc::clone(&dynamic),
        meta,
        place: Place {
            cores,
            shards: data.shards(),
            advertised: settings.advertised_address.clone(),
            port: ports.shared_port,
            web_port: ports.web_port,
            core_ports: ports.core_ports.clone(),
        },
    };
    let opened = open_doors(ports, settings, Arc::new(web));
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

    let shards = data.shards();
    let limits = || {
        let settings = dynamic.settings();
        Limits {
            connections: settings.broker_max_connections,
            per_address: settings.broker_max_connections_per_ip,
            // Anew each time: the limit can be raised while the broker runs.
            descriptors: preflight::connection_descriptors(shards),
        }
    };
    let accepting = listen::accept_until(&doors, &post, &limits, &stop);
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
    web: Arc<Web>,
) -> Result<(admin::Server, Vec<Door>, String), StartError> {
    let web = admin::start(ports.web()?, web).map_err(|cause| StartError::System {
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
    // As a JVM does: with `nohup` the broker outlives the terminal it was started in.
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGTERM, SIGINT].into_iter().chain(hang_up) {
        let asked = asked.try_clone().map_err(fail)?;
        signal_hook::low_level::pipe::register(signal, asked).map_err(fail)?;
    }
    Ok(stop)
}

/// Whether whoever started the process had it ignore a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
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

/// What the metadata store had to say.
struct Opened {
    meta: RedbMeta,
    epochs: Vec<u64>,
    /// Whether an earlier start had opened all lanes, so that they must be there.
    used: bool,
    /// Settings that were set while running, by name.
    overrides: BTreeMap<String, String>,
}

/// Opens the metadata store and takes an epoch for each lane: ledger ids are made of it, so those of all lanes differ.
fn open_metadata(dir: &Path, shards: u32) -> Result<Opened, StartError> {
    let fail = |cause: MetaError| StartError::metadata(dir, &cause);
    let mut meta = RedbMeta::open(&dir.join("meta.redb")).map_err(fail)?;
    let epochs = (0..shards)
        .map(|_| meta.new_epoch())
        .collect::<Result<Vec<_>, _>>();
    let epochs = epochs.map_err(fail)?;
    let used = meta.get(FURNISHED).map_err(fail)?.is_some();
    let mut overrides = BTreeMap::new();
    for (key, found) in meta.list(config::DYNAMIC).map_err(fail)? {
        let name = key.strip_prefix(config::DYNAMIC).unwrap_or_default();
        let text = String::from_utf8_lossy(&found.value);
        overrides.insert(name.to_owned(), text.into_owned());
    }
    Ok(Opened {
        meta,
        epochs,
        used,
        overrides,
    })
}

/// What the cores have to know of it. All lanes are open: what is furnished only now tells the next start so.
fn load_metadata(meta: &mut RedbMeta, dir: &Path, cluster: &str) -> Result<Metadata, StartError> {
    let fail = |cause: MetaError| StartError::metadata(dir, &cause);
    furnish(meta, cluster).map_err(fail)?;
    let mut metadata = Metadata::default();
    for prefix in [
        engine::metadata::NAMESPACE,
        engine::metadata::RESOURCE_GROUP,
        engine::metadata::PARTITIONED,
    ] {
        for (key, found) in meta.list(prefix).map_err(fail)? {
            metadata.apply(&key, Some(&found.value));
        }
    }
    Ok(metadata)
}

/// Gives a new data directory what a Pulsar standalone begins with. What is deleted later stays deleted.
fn furnish(meta: &mut RedbMeta, cluster: &str) -> Result<(), MetaError> {
    if meta.get(FURNISHED)?.is_some() {
        return Ok(());
    }
    let tenant = serde_json::json!({ "adminRoles": [], "allowedClusters": [cluster] }).to_string();
    let mut keys = vec![(format!("{}{cluster}", admin::CLUSTER), "{}".to_owned())];
    for namespace in NAMESPACES {
        keys.push((
            format!("{}{namespace}", engine::metadata::NAMESPACE),
            "{}".to_owned(),
        ));
    }
    for name in TENANTS {
        keys.push((format!("{}{name}", admin::TENANT), tenant.clone()));
    }
    // Last: a start that was cut short goes on here at the next.
    keys.push((FURNISHED.to_owned(), "1".to_owned()));
    for (key, value) in keys {
        match meta.put(&key, Bytes::from(value), Some(0)) {
            Ok(_) | Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

type OpenLane = (FileWal, Lane, LaneState);

/// Opens and replays all lanes, each on a thread of its own.
fn open_lanes(
    settings: &Settings,
    data: &DataDir,
    epochs: &[u64],
    used: bool,
    post: &Arc<Post<Message>>,
) -> Result<Vec<OpenLane>, StartError> {
    let shards = data.shards();
    let max_entry = to_usize(settings.max_message_size) + FRAME_PADDING;
    let open = |shard: u32, epoch: u64| -> Result<OpenLane, StartError> {
        let fail = |cause: String| StartError::DataDir {
            path: data.path().to_path_buf(),
            cause: format!("log of shard {shard}: {cause}"),
        };
        if used && !FileWal::exists(data.path(), shard) {
            let lane = lane_dir(data.path(), shard);
            return Err(fail(format!("{} {MISSING_LOG}", lane.display())));
        }
        let core = core_of(shard, post.cores());
        let waker = Arc::clone(post);
        let options = FileOptions {
            segment_bytes: mebibytes(settings.segment_size_mb),
            spares_bytes_max: mebibytes(settings.spare_segments_max_mb) as u64,
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
        let (wal, mut recovery) =
            FileWal::open(data.path(), shard, epoch, options).map_err(|error| match error {
                WalError::Fenced => fail(STALE_METADATA.to_owned()),
                error => fail(error.to_string()),
            })?;
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
                cache_bytes: to_usize(read_cache(settings)) / shards.max(1) as usize,
                pool_bytes: idle_blocks(settings, shards),
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

/// Makes log writes slow, for tests of what a broker does on slow storage.
struct SlowWrites {
    delay: Duration,
    until: Option<Instant>,
    /// Writes wait while this file exists.
    hold: Option<PathBuf>,
}

impl SlowWrites {
    fn of(settings: &Settings) -> Option<Arc<dyn Faults>> {
        let hold = &settings.fault_sync_hold_file;
        if settings.fault_sync_delay_millis == 0 && hold.is_none() {
            return None;
        }
        let seconds = settings.fault_sync_delay_seconds;
        tracing::warn!(
            "log writes are slowed down on purpose: faultSyncDelayMillis or faultSyncHoldFile is set"
        );
        Some(Arc::new(Self {
            delay: Duration::from_millis(settings.fault_sync_delay_millis),
            until: (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds)),
            hold: hold.as_ref().map(PathBuf::from),
        }))
    }
}

impl Faults for SlowWrites {
    fn before(&self, operation: Operation) -> std::io::Result<()> {
        if !matches!(operation, Operation::Write { .. }) {
            return Ok(());
        }
        if self.until.is_none_or(|until| Instant::now() < until) {
            std::thread::sleep(self.delay);
        }
        while self.hold.as_ref().is_some_and(|file| file.exists()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Idle memory that a lane keeps for its next chunks, bytes: together no more than a sixteenth of the buffers' budget.
fn idle_blocks(settings: &Settings, shards: u32) -> usize {
    const MOST: u64 = 16 << 20;
    match buffer_budget(settings) {
        0 => to_usize(MOST),
        budget => to_usize((budget / 16 / u64::from(shards.max(1))).min(MOST)),
    }
}

/// The core that hosts a shard.
fn core_of(shard: u32, cores: u16) -> CoreId {
    u16::try_from(shard % u32::from(cores.max(1))).unwrap_or(0)
}

/// What wakes each core.
fn wakes(post: &Arc<Post<Message>>) -> Vec<Arc<dyn Fn() + Send + std::marker::Sync>> {
    (0..post.cores())
        .map(|core| {
            let post = Arc::clone(post);
            Arc::new(move || post.wake(core)) as Arc<dyn Fn() + Send + std::marker::Sync>
        })
        .collect()
}

/// For each core what makes its engine and its way to the disk.
fn parts(
    dynamic: &Dynamic,
    data: &DataDir,
    ends: Vec<MetaEnd>,
    metadata: Metadata,
    service: ServiceAddress,
    lanes: Vec<OpenLane>,
    post: &Arc<Post<Message>>,
) -> Vec<impl FnOnce() -> (Engine, Disk<FileWal>) + Send + 'static> {
    let cores = post.cores();
    let shared = dynamic.engine();
    let mut hosted: Vec<Vec<OpenLane>> = (0..cores).map(|_| Vec::new()).collect();
    for lane in lanes {
        let core = core_of(lane.0.lane(), cores);
        if let Some(list) = hosted.get_mut(usize::from(core)) {
            list.push(lane);
        }
    }
    let shards = data.shards();
    let log_budget = mebibytes(dynamic.settings().log_buffer_mb);
    let rates = Arc::new(RateTable::default());
    (0..cores)
        .zip(hosted)
        .zip(ends)
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

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn mebibytes(value: u64) -> usize {
    to_usize(value.saturating_mul(1 << 20))
}

/// The one line on standard output, for whoever waits for it.
fn announce(addresses: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "vela is ready: {addresses}").and_then(|()| out.flush()) {
        tracing::debug!("nobody reads standard output: {error}");
    }
}
