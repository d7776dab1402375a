//! Why the broker does not start: what, why, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::store::meta::MetaError;

/// Start-up failed; nothing is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// io_uring may not be used.
    #[error("io_uring, which Vela is built on, is not available: {cause}. {remedy}")]
    Uring {
        /// What the kernel said.
        cause: String,
        /// What to do.
        remedy: String,
    },
    /// Not enough lockable memory.
    #[error(
        "locked memory is limited to {present_kb} KiB, but {cores} cores with ioMemoryKb {io_memory_kb} need {needed_kb} KiB: raise the limit (`ulimit -l {needed_kb}`; LimitMEMLOCK={needed_kb}K in a systemd unit; `--ulimit memlock={needed}` for a container), or run with fewer --cores or a smaller --io-memory-kb"
    )]
    Memlock {
        /// The limit, in KiB.
        present_kb: u64,
        /// What is needed, in KiB.
        needed_kb: u64,
        /// The same in bytes.
        needed: u64,
        /// Cores to run on.
        cores: u16,
        /// The setting.
        io_memory_kb: u64,
    },
    /// An executor could not be made.
    #[error(
        "core {core} could not be started: {cause}. Check the limits of locked memory (`ulimit -l`), open files (`ulimit -n`) and threads (`ulimit -u`)"
    )]
    Executor {
        /// The core.
        core: u16,
        /// What was said.
        cause: String,
    },
    /// A port is in use.
    #[error(
        "port {port} ({setting}) on {address} is taken: another process listens there, perhaps another broker. Stop it, or set {flag} to another port; {flag} 0 takes any free one"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// Name of the setting.
        setting: &'static str,
        /// Address that was to be listened on.
        address: String,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// Two ports are the same.
    #[error(
        "brokerServicePort and webServicePort are both {port}: set --port or --web-port to another port; 0 takes any free one"
    )]
    SamePort {
        /// The port.
        port: u16,
    },
    /// A port cannot be listened on for another reason.
    #[error("cannot listen on {address} port {port} ({setting}): {cause}. {remedy}")]
    Listen {
        /// The port.
        port: u16,
        /// Name of the setting.
        setting: &'static str,
        /// Address that was to be listened on.
        address: String,
        /// What the kernel said.
        cause: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The bind address is not one.
    #[error(
        "bindAddress \"{address}\" is not an IP address of this machine: {cause}. Use 0.0.0.0 for all IPv4 addresses, [::] for all, 127.0.0.1 for this machine only"
    )]
    BindAddress {
        /// The setting.
        address: String,
        /// What went wrong.
        cause: io::Error,
    },
    /// The data directory cannot be used.
    #[error("data directory {} cannot be used: {cause}", path.display())]
    DataDir {
        /// The setting.
        path: PathBuf,
        /// What is wrong and what to do.
        cause: String,
    },
    /// The data directory is in use, or was made for something else.
    #[error(transparent)]
    Directory(#[from] crate::store::lock::DataDirError),
    /// A message of the largest size would not fit a log segment.
    #[error(
        "maxMessageSize {message} does not fit a log segment of segmentSizeMb {segment_mb}, which takes messages of {largest} bytes at most: raise segmentSizeMb or lower maxMessageSize"
    )]
    Segment {
        /// The setting.
        segment_mb: u64,
        /// The setting, in bytes.
        message: u64,
        /// The largest message that would fit, in bytes.
        largest: usize,
    },
    /// Core ports would go beyond the last port.
    #[error(
        "corePorts {first} leaves no room for {cores} ports below 65536: choose a lower first port, or 0 for any free ones"
    )]
    CorePorts {
        /// The setting.
        first: u16,
        /// How many are needed.
        cores: u16,
    },
    /// More cores than there are.
    #[error(
        "cores is {asked}, but this process may run on {allowed} CPUs only: ask for fewer, or widen the affinity mask or cpuset"
    )]
    Cores {
        /// The setting.
        asked: u16,
        /// CPUs in the affinity mask.
        allowed: usize,
    },
    /// Anything else the system refused.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What was said.
        cause: io::Error,
    },
}

impl StartError {
    /// The metadata store of the data directory at `path` failed.
    pub(super) fn metadata(path: &Path, cause: &MetaError) -> Self {
        Self::DataDir {
            path: path.to_path_buf(),
            cause: cause.to_string(),
        }
    }
}
