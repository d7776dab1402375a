//! Samples as Prometheus text. Names are Apache Pulsar's where Pulsar has the metric; others begin with `vela_`.

use super::{CoreSample, MemorySample, Sample};
use metrics::{counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use vela_limiter::{Holder, Reason};

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

/// One metric of the whole broker, under the label `cluster` if the name is Pulsar's.
struct Whole {
    name: &'static str,
    help: &'static str,
    value: fn(&Sample) -> u64,
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

const OF_BROKER: &[Whole] = &[
    Whole {
        name: "vela_retained_bytes",
        help: "Bytes of receive memory that inbound frames keep alive, by capacity",
        value: |sample| sample.memory.retained,
    },
    Whole {
        name: "vela_buffer_memory_budget_bytes",
        help: "Bytes of buffer memory that there may be in use (bufferMemory); 0: not known",
        value: |sample| sample.memory.budget,
    },
    Whole {
        name: "vela_memory_limiter_limit_bytes",
        help: "Retained bytes above which the memory limiter stops reading; 0: it is off",
        value: |sample| u64::try_from(sample.memory.limit).unwrap_or(0),
    },
    Whole {
        name: "vela_memory_limiter_active",
        help: "1 while the memory limiter enforces its limit, else 0",
        value: |sample| u64::from(sample.memory.active),
    },
    Whole {
        name: "pulsar_broker_publish_in_progress_buffer_memory_usage",
        help: "Bytes of receive memory that inbound frames keep alive, by capacity",
        value: |sample| sample.memory.retained,
    },
    Whole {
        name: "pulsar_broker_publish_in_progress_buffer_memory_throttled",
        help: "1 while the memory limiter stops the reading of connections, else 0",
        value: |sample| u64::from(sample.memory.throttled),
    },
    Whole {
        name: "pulsar_broker_throttled_connections",
        help: "Connections held now for at least one throttle reason",
        value: |sample| sample.cores.iter().map(|core| core.throttled).sum(),
    },
];

const HELD: &str = "vela_throttled_connections";
const HOLDERS: &str = "vela_buffer_memory_bytes";
const TRANSITIONS: &str = "vela_throttle_transitions_total";

fn transitions(memory: &MemorySample) -> [(&'static str, u64); 4] {
    [
        ("throttled", memory.transitions.throttled),
        ("cleared", memory.transitions.cleared),
        ("activated", memory.transitions.activated),
        ("stood-down", memory.transitions.stood_down),
    ]
}

impl Metrics {
    pub(super) fn new(cluster: &str) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            for whole in OF_BROKER {
                describe_gauge!(whole.name, whole.help);
            }
            describe_gauge!(HELD, "Connections held now, by throttle reason and core");
            describe_gauge!(HOLDERS, "Bytes of buffer memory in use, by holder");
            describe_counter!(
                TRANSITIONS,
                "Times the memory limiter stopped and resumed reading (throttled, cleared) and, in mode auto, came into \
                 force and left it (activated, stood-down)"
            );
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
            for each in OF_BROKER {
                let value = float((each.value)(sample));
                if each.name.starts_with("pulsar_") {
                    gauge!(each.name, "cluster" => self.cluster.clone()).set(value);
                } else {
                    gauge!(each.name).set(value);
                }
            }
            for (holder, bytes) in Holder::ALL.iter().zip(sample.memory.holders) {
                gauge!(HOLDERS, "holder" => holder.name()).set(float(bytes));
            }
            for (name, times) in transitions(&sample.memory) {
                counter!(TRANSITIONS, "transition" => name).absolute(times);
            }
            for (number, core) in sample.cores.iter().enumerate() {
                let number = number.to_string();
                for each in GAUGES {
                    gauge!(each.name, "core" => number.clone()).set(float((each.value)(core)));
                }
                for each in COUNTERS {
                    counter!(each.name, "core" => number.clone()).absolute((each.value)(core));
                }
                for (reason, held) in Reason::ALL.iter().zip(core.held) {
                    gauge!(HELD, "core" => number.clone(), "reason" => reason.name())
                        .set(float(held));
                }
            }
        });
        self.handle.render()
    }
}

/// Prometheus knows only floats; exact up to 2^53.
fn float(value: u64) -> f64 {
    value as f64
}
