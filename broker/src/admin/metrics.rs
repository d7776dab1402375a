//! Samples as Prometheus text. Names are Apache Pulsar's where Pulsar has the metric; others begin with `vela_`.

use super::{CoreSample, MemorySample, Sample};
use metrics::{counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::fmt::Write;
use vela_limiter::Reason;

/// The exporter: filled from a sample when it is looked at.
pub(super) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// The `cluster` label of Pulsar's metrics.
    cluster: String,
}

/// One metric with a value per core. The help says the unit.
struct PerCore {
    name: &'static str,
    help: &'static str,
    value: fn(&CoreSample) -> u64,
}

const GAUGES: &[PerCore] = &[
    PerCore {
        name: "vela_connections",
        help: "Open client connections, by core",
        value: |core| core.connections,
    },
    PerCore {
        name: "vela_producers",
        help: "Open producers, by core",
        value: |core| core.producers,
    },
    PerCore {
        name: "vela_consumers",
        help: "Open consumers, by core",
        value: |core| core.consumers,
    },
    PerCore {
        name: "vela_topics",
        help: "Topics, by the core that owns them",
        value: |core| core.topics,
    },
    PerCore {
        name: "vela_subscriptions",
        help: "Subscriptions, by the core that owns their topics",
        value: |core| core.subscriptions,
    },
    PerCore {
        name: "vela_core_stalled",
        help: "1 while the core has made no turn for a second, else 0",
        value: |core| u64::from(core.stalled),
    },
];

const COUNTERS: &[PerCore] = &[
    PerCore {
        name: "vela_messages_in_total",
        help: "Messages published",
        value: |core| core.messages_in,
    },
    PerCore {
        name: "vela_messages_out_total",
        help: "Messages dispatched to consumers",
        value: |core| core.messages_out,
    },
    PerCore {
        name: "vela_bytes_in_total",
        help: "Bytes of messages published",
        value: |core| core.bytes_in,
    },
    PerCore {
        name: "vela_bytes_out_total",
        help: "Bytes of messages dispatched to consumers",
        value: |core| core.bytes_out,
    },
    PerCore {
        name: "vela_acks_total",
        help: "Message ids acknowledged",
        value: |core| core.acks,
    },
    PerCore {
        name: "vela_messages_dropped_total",
        help: "Messages of non-persistent topics that a subscription could give to nobody, or that their connection sent too many of",
        value: |core| core.messages_dropped,
    },
    PerCore {
        name: "vela_publish_errors_total",
        help: "Publishes refused",
        value: |core| core.publish_errors,
    },
    PerCore {
        name: "vela_publish_rate_limit_times_total",
        help: "Times the publish rate of a topic held a connection",
        value: |core| core.rate_limited,
    },
    PerCore {
        name: "vela_protocol_errors_total",
        help: "Connections closed because of what they sent",
        value: |core| core.protocol_errors,
    },
    PerCore {
        name: "vela_core_turns_total",
        help: "Turns of the core's loop",
        value: |core| core.turns,
    },
    PerCore {
        name: "vela_core_stalls_total",
        help: "Times the core made no turn for a second",
        value: |core| core.stalls,
    },
];

/// One metric of memory, under the label `cluster` if the name is Pulsar's.
struct OfMemory {
    name: &'static str,
    help: &'static str,
    value: fn(&MemorySample) -> u64,
}

const MEMORY_GAUGES: &[OfMemory] = &[
    OfMemory {
        name: "vela_retained_bytes",
        help: "Receive memory that inbound frames keep alive, in bytes of root capacity",
        value: |memory| memory.retained,
    },
    OfMemory {
        name: "pulsar_broker_publish_in_progress_buffer_memory_usage",
        help: "Receive memory that inbound frames keep alive, in bytes of root capacity",
        value: |memory| memory.retained,
    },
    OfMemory {
        name: "pulsar_broker_publish_in_progress_buffer_memory_throttled",
        help: "1 while no connection is read because inbound frames retain too much memory",
        value: |memory| memory.throttled.into(),
    },
    OfMemory {
        name: "vela_memory_crowded",
        help: "1 while connections over their fair share of inbound memory are not read",
        value: |memory| memory.crowded.into(),
    },
    OfMemory {
        name: "vela_memory_auto_active",
        help: "1 while mode auto limits",
        value: |memory| memory.active.into(),
    },
    OfMemory {
        name: "vela_memory_limit_bytes",
        help: "Limit of retained inbound memory, bytes; 0: none",
        value: |memory| memory.limit,
    },
    OfMemory {
        name: "vela_buffer_memory_budget_bytes",
        help: "Memory for all buffers together, bytes; 0: not known",
        value: |memory| memory.budget,
    },
    OfMemory {
        name: "vela_memory_held_connections",
        help: "Connections that are not read because of memory",
        value: |memory| memory.held_connections,
    },
];

const MEMORY_COUNTERS: &[OfMemory] = &[
    OfMemory {
        name: "vela_memory_throttles_total",
        help: "Times reading was stopped because of inbound memory",
        value: |memory| memory.throttles,
    },
    OfMemory {
        name: "vela_memory_clears_total",
        help: "Times reading was allowed again",
        value: |memory| memory.clears,
    },
    OfMemory {
        name: "vela_memory_auto_activations_total",
        help: "Times mode auto began to limit",
        value: |memory| memory.activations,
    },
    OfMemory {
        name: "vela_memory_auto_stand_downs_total",
        help: "Times mode auto stood down",
        value: |memory| memory.stand_downs,
    },
    OfMemory {
        name: "vela_frame_timeouts_total",
        help: "Connections closed because a frame made no progress",
        value: |memory| memory.frames_stood,
    },
    OfMemory {
        name: "vela_frame_evictions_total",
        help: "Connections closed because others waited for the memory of their slow frame",
        value: |memory| memory.frames_evicted,
    },
    OfMemory {
        name: "vela_frame_trickles_total",
        help: "Times a frame began to come by a few bytes at a time",
        value: |memory| memory.trickles,
    },
];

const BUFFERS: &str = "vela_buffer_memory_bytes";
const HELD: &str = "vela_throttled_connections";
const THROTTLED: &str = "pulsar_broker_throttled_connections";
const HOLDS: &str = "vela_throttle_holds_total";
const RELEASES: &str = "vela_throttle_releases_total";
/// Apache Pulsar's `pulsar.broker.connection.rate_limit.count` (PIP-264) as OpenTelemetry's Prometheus exporter writes it.
const OPERATIONS: &str = "pulsar_broker_connection_rate_limit_count_total";
const OPERATION: &str = "pulsar_connection_rate_limit_operation_name";
const RATE_LIMIT_TIMES: &str = "pulsar_publish_rate_limit_times";

/// Connections held for `reason`, over all cores. Memory is not the engines' reason but the runtime's.
fn held(sample: &Sample, reason: Reason) -> u64 {
    if reason == Reason::Memory {
        return sample.memory.held_connections;
    }
    let held = |core: &CoreSample| core.held.get(reason as usize).copied().unwrap_or(0);
    sample.cores.iter().map(held).sum()
}

/// Times connections began to be held for `reason`, and times they were let go, over all cores.
fn holds(sample: &Sample, reason: Reason) -> (u64, u64) {
    if reason == Reason::Memory {
        return (sample.memory.holds, sample.memory.releases);
    }
    let cores = || sample.cores.iter().map(|core| &core.holds);
    (
        cores().map(|holds| holds.holds(reason)).sum(),
        cores().map(|holds| holds.releases(reason)).sum(),
    )
}

/// Values of Pulsar's label for the operation, and how often each was done.
fn operations(sample: &Sample) -> [(&'static str, u64); 4] {
    let cores = || sample.cores.iter().map(|core| &core.holds);
    let memory = &sample.memory;
    // Pulsar counts as throttled only those with too many unanswered publishes.
    let (throttled, unthrottled) = holds(sample, Reason::PendingRequests);
    [
        (
            "paused",
            cores().map(|holds| holds.paused).sum::<u64>() + memory.holds,
        ),
        (
            "resumed",
            cores().map(|holds| holds.resumed).sum::<u64>() + memory.releases,
        ),
        ("throttled", throttled),
        ("unthrottled", unthrottled),
    ]
}

/// Writes Pulsar's per-topic count of rate limits. Not in the recorder, which would keep a topic for ever.
fn write_rate_limit_times(out: &mut String, cluster: &str, sample: &Sample) {
    let topics = || {
        let cores = sample.cores.iter();
        cores.flat_map(|core| core.rate_limited_topics.iter())
    };
    if topics().next().is_none() {
        return;
    }
    let cluster = label(cluster);
    // Writing to a String does not fail.
    let _ = writeln!(
        out,
        "# HELP {RATE_LIMIT_TIMES} Times the publish rate of the topic held a connection, since the topic was loaded"
    );
    let _ = writeln!(out, "# TYPE {RATE_LIMIT_TIMES} gauge");
    for (topic, times) in topics() {
        let path = topic.split_once("://").map_or(&**topic, |(_, path)| path);
        let namespace = label(
            path.rsplit_once('/')
                .map_or(path, |(namespace, _)| namespace),
        );
        let topic = label(topic);
        let _ = writeln!(
            out,
            "{RATE_LIMIT_TIMES}{{cluster=\"{cluster}\",namespace=\"{namespace}\",topic=\"{topic}\"}} {times}"
        );
    }
}

/// The value of a label as the text format wants it.
fn label(value: &str) -> String {
    let value = value.replace('\\', "\\\\");
    value.replace('"', "\\\"").replace('\n', "\\n")
}

impl Metrics {
    pub(super) fn new(cluster: &str) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            describe_gauge!(
                THROTTLED,
                "Connections held now for a throttle reason; one that memory holds as well counts twice"
            );
            describe_gauge!(HELD, "Connections held now, by throttle reason");
            describe_counter!(
                HOLDS,
                "Times a connection began to be held, by throttle reason"
            );
            describe_counter!(
                RELEASES,
                "Times a connection was no longer held, its end included, by throttle reason"
            );
            describe_counter!(
                OPERATIONS,
                "Times reading a connection was paused and resumed for a throttle reason, memory counted apart; throttled and unthrottled: those for too many unanswered publishes"
            );
            describe_gauge!(BUFFERS, "Bytes of buffer memory in use, by holder");
            for gauge in MEMORY_GAUGES {
                describe_gauge!(gauge.name, gauge.help);
            }
            for counter in MEMORY_COUNTERS {
                describe_counter!(counter.name, counter.help);
            }
            for gauge in GAUGES {
                describe_gauge!(gauge.name, gauge.help);
            }
            for counter in COUNTERS {
                describe_counter!(counter.name, counter.help);
            }
        });
        let handle = recorder.handle();
        Self {
            recorder,
            handle,
            cluster: cluster.to_owned(),
        }
    }

    pub(super) fn render(&self, sample: &Sample) -> String {
        with_local_recorder(&self.recorder, || {
            for each in MEMORY_GAUGES {
                let value = float((each.value)(&sample.memory));
                if each.name.starts_with("pulsar_") {
                    gauge!(each.name, "cluster" => self.cluster.clone()).set(value);
                } else {
                    gauge!(each.name).set(value);
                }
            }
            for each in MEMORY_COUNTERS {
                counter!(each.name).absolute((each.value)(&sample.memory));
            }
            for (holder, bytes) in sample.memory.holders {
                gauge!(BUFFERS, "holder" => holder).set(float(bytes));
            }
            for reason in Reason::ALL {
                gauge!(HELD, "reason" => reason.name()).set(float(held(sample, reason)));
                let (holds, releases) = holds(sample, reason);
                counter!(HOLDS, "reason" => reason.name()).absolute(holds);
                counter!(RELEASES, "reason" => reason.name()).absolute(releases);
            }
            for (operation, times) in operations(sample) {
                counter!(OPERATIONS, "cluster" => self.cluster.clone(), OPERATION => operation)
                    .absolute(times);
            }
            let throttled: u64 = sample.cores.iter().map(|core| core.throttled).sum();
            gauge!(THROTTLED, "cluster" => self.cluster.clone())
                .set(float(throttled + sample.memory.held_connections));
            for (number, core) in sample.cores.iter().enumerate() {
                let number = number.to_string();
                for each in GAUGES {
                    gauge!(each.name, "core" => number.clone()).set(float((each.value)(core)));
                }
                for each in COUNTERS {
                    counter!(each.name, "core" => number.clone()).absolute((each.value)(core));
                }
            }
        });
        let mut out = self.handle.render();
        write_rate_limit_times(&mut out, &self.cluster, sample);
        out
    }
}

/// Prometheus knows only floats; exact up to 2^53.
fn float(value: u64) -> f64 {
    value as f64
}
