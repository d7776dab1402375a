//! What can be typed: every flag once, with its unit, default and bounds.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::connection::host_of;
use crate::error::Failure;
use crate::measure::parse_cpus;
use crate::message::HEADER_LEN;
use crate::scenario::{Overrides, SubscriptionType};

/// A load generator for brokers that speak the Apache Pulsar binary protocol.
///
/// Exit code: 0 if the run is valid, 1 if it could not be carried out, 2 for wrong arguments, 3 if it is invalid (an answer was
/// missing, an error, or out of order; a message was lost, repeated or altered).
#[derive(Debug, Parser)]
#[command(name = "vela-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario: load, measurements and verification, with a result file
    Run(Box<RunArgs>),
    /// Publish as fast as a window of outstanding sends allows, or at a fixed rate
    Publish(PublishArgs),
    /// Subscribe, verify and acknowledge what is delivered
    Consume(ConsumeArgs),
    /// Open many connections, hold them, and tell what each costs the broker in memory
    Idle(IdleArgs),
    /// Start a broker program repeatedly and tell how long it takes until it is ready
    Start(StartArgs),
    /// Answer every send at once without doing anything: the ceiling of the load generator itself
    Sink(SinkArgs),
    /// Make one HTML page of the results of runs
    Report(crate::report_page::ReportArgs),
    /// Pass everything on between load and broker, and make faults that a run must notice
    Proxy(crate::proxy::ProxyArgs),
}

/// Where the broker is, and what of it is measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct TargetArgs {
    /// Broker to connect to
    #[arg(long, default_value = "pulsar://127.0.0.1:6650", value_name = "URL", value_parser = url)]
    pub(crate) url: String,
    /// Process of the broker on this machine: its processor time and memory are measured
    #[arg(long, value_name = "PID")]
    pub(crate) broker_pid: Option<u32>,
    /// Processors this program may use, such as 1 or 0,2-3: one executor on each [default: one executor, as inherited]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpu: Option<Cpus>,
    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

impl TargetArgs {
    /// The processors that were named.
    pub(crate) fn cpus(&self) -> Option<Vec<usize>> {
        self.cpu.as_ref().map(|Cpus(list)| list.clone())
    }
}

/// What is sent to which topics; shared by both sides of a run.
#[derive(Debug, Clone, Args)]
pub(crate) struct TopicArgs {
    /// Number of topics: the prefix followed by -0, -1 and so on
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) topics: u32,
    /// Start of the topics' names
    #[arg(
        long,
        default_value = "persistent://public/default/vela-bench",
        value_name = "NAME"
    )]
    pub(crate) topic_prefix: String,
}

/// When measuring begins and ends.
#[derive(Debug, Clone, Args)]
pub(crate) struct TimeArgs {
    /// Seconds measured
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: f64,
    /// Seconds of load before that
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) warmup: f64,
    /// Seconds without any progress after which outstanding answers or deliveries count as missing
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) patience: f64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Name of a built-in scenario
    #[arg(value_name = "SCENARIO", required_unless_present_any = ["file", "list"], conflicts_with = "file")]
    pub(crate) scenario: Option<String>,
    /// A scenario of your own, in TOML
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Name the built-in scenarios
    #[arg(long)]
    pub(crate) list: bool,
    /// Print the scenario with everything given here, and do not run it
    #[arg(long)]
    pub(crate) show: bool,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Cgroup of the broker, such as /sys/fs/cgroup/broker: its processor time is measured instead of the process's
    #[arg(long, value_name = "PATH")]
    pub(crate) broker_cgroup: Option<PathBuf>,
    /// Where the broker shows its metrics, such as http://127.0.0.1:8080/metrics; looked at each second
    #[arg(long, value_name = "URL")]
    pub(crate) metrics_url: Option<String>,
    /// Write the result to this file, as JSON
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Write PREFIX.publish.hlog and PREFIX.delivery.hlog, HdrHistogram interval logs
    #[arg(long, value_name = "PREFIX")]
    pub(crate) hdr: Option<PathBuf>,
    /// Text passed through to the result
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// No progress on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Keep the topics' names as they are: without it a run id is appended, so that runs do not meet
    #[arg(long)]
    pub(crate) same_topics: bool,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) topic: TopicArgs,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    /// Connections; each carries at least one producer, and each topic has at least one
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Payload of a message in bytes
    #[arg(long, default_value_t = 128, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(HEADER_LEN as i64..=5_000_000))]
    pub(crate) size: u32,
    /// SENDs on their way at a time, over all connections
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) window: u32,
    /// Messages in a SEND; 1 is unbatched
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
    /// Messages per second in total, whatever the broker does (open loop): latency counts from when a message was due, not from
    /// when the window let it out [default: as fast as the window allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) rate: Option<u64>,
    /// With a rate: microseconds between two looks at sockets and schedule; 0: at every event
    #[arg(long, default_value_t = 200, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) tick_us: u32,
    /// Consume in the same process too, with one consumer per topic: a round trip with delivery latency
    #[arg(long)]
    pub(crate) consume: bool,
    #[command(flatten)]
    pub(crate) subscription: SubscriptionArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SubscriptionArgs {
    /// Name of the subscription
    #[arg(long, default_value = "vela-bench", value_name = "NAME")]
    pub(crate) subscription: String,
    /// Type of the subscription
    #[arg(
        long,
        value_enum,
        default_value = "exclusive",
        value_name = "TYPE",
        ignore_case = true
    )]
    pub(crate) subscription_type: SubscriptionType,
    /// Consumers of each topic; more than 1 needs a shared or key-shared subscription
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) consumers: u32,
    /// Permits a consumer holds at most, in messages; half are given back at a time
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) receiver_queue: u32,
    /// Most messages in an ACK; the rest is acknowledged every 100 ms
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) ack_group: u32,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConsumeArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) topic: TopicArgs,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) subscription: SubscriptionArgs,
    /// A new subscription starts at the oldest message, not at the end
    #[arg(long)]
    pub(crate) earliest: bool,
    /// Stop after this many messages, and count missing ones, instead of after a time
    #[arg(long, value_name = "N")]
    pub(crate) messages: Option<u64>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Connections to open; beyond about 28000 the client side runs out of ports
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,
    /// Seconds to hold them all
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) hold: f64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StartArgs {
    /// The broker's program. It gets --bind 127.0.0.1, --port 0, --web-port 0 and --data-dir with an empty directory, and prints
    /// "vela is ready: pulsar://HOST:PORT ..." once it accepts connections
    #[arg(long, value_name = "PATH")]
    pub(crate) exec: PathBuf,
    /// Starts; the median is reported
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Seconds between ready and the measuring of memory
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) settle: f64,
    /// Seconds to wait for the ready line, and for the end after SIGTERM
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) patience: f64,
    /// Cores of the broker, passed on [default: not passed]
    #[arg(long, value_name = "N")]
    pub(crate) cores: Option<u32>,
    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Further arguments of the broker, behind --
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SinkArgs {
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(crate) port: u16,
    /// Processors the sink may use, such as 1 or 0,2-3 [default: as inherited]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpu: Option<Cpus>,
}

fn url(text: &str) -> Result<String, String> {
    match host_of(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("must be of the form pulsar://HOST:PORT (TLS is not supported)".into()),
    }
}

/// A list of processors.
#[derive(Debug, Clone)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

fn cpus(text: &str) -> Result<Cpus, String> {
    parse_cpus(text).map(Cpus).map_err(|Failure(why)| why)
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1_000_000.0).contains(&value) => Ok(value),
        _ => Err("must be a number of seconds from 0 to 1000000".into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_payload_too_small_for_its_header_is_refused() {
        assert!(Cli::try_parse_from(["vela-bench", "publish", "--size", "39"]).is_err());
        assert!(Cli::try_parse_from(["vela-bench", "publish", "--size", "40"]).is_ok());
    }

    #[test]
    fn seconds_are_finite_and_not_negative() {
        assert_eq!(seconds("0.5").unwrap(), 0.5);
        for bad in ["-1", "NaN", "inf", "x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
