//! Samples as Prometheus text.

use super::{CoreSample, MemorySample, Sample};
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// The exporter: filled from a sample when it is looked at.
pub(super) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

struct PerCore {
    name: &'static str,
    help: &'static str,
    value: fn(&CoreSample) -> u64,
}

const GAUGES: &[PerCore] = &[
    PerCore {
        name: "vela_connections",
        help: "Open client connections",
        value: |core| core.connections,
    },
    PerCore {
        name: "vela_producers",
        help: "Open producers",
        value: |core| core.producers,
    },
    PerCore {
        name: "vela_consumers",
        help: "Open consumers",
        value: |core| core.consumers,
    },
    PerCore {
        name: "vela_topics",
        help: "Topics, by the core that owns them",
        value: |core| core.topics,
    },
    PerCore {
        name: "vela_subscriptions",
        help: "Subscriptions",
        value: |core| core.subscriptions,
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
        help: "Limit of retained inbound memory; 0: none",
        value: |memory| memory.limit,
    },
    OfMemory {
        name: "vela_buffer_memory_budget_bytes",
        help: "Memory for all buffers together; 0: not known",
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
];

const BUFFERS: &str = "vela_buffer_memory_bytes";

impl Metrics {
    pub(super) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            describe_gauge!(BUFFERS, Unit::Bytes, "Buffer memory in use, by holder");
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
        Self { recorder, handle }
    }

    pub(super) fn render(&self, sample: &Sample) -> String {
        with_local_recorder(&self.recorder, || {
            for each in MEMORY_GAUGES {
                gauge!(each.name).set(float((each.value)(&sample.memory)));
            }
            for each in MEMORY_COUNTERS {
                counter!(each.name).absolute((each.value)(&sample.memory));
            }
            for (holder, bytes) in sample.memory.holders {
                gauge!(BUFFERS, "holder" => holder).set(float(bytes));
            }
            for (number, core) in sample.cores.iter().enumerate() {
                for each in GAUGES {
                    gauge!(each.name, "core" => number.to_string()).set(float((each.value)(core)));
                }
                for each in COUNTERS {
                    counter!(each.name, "core" => number.to_string()).absolute((each.value)(core));
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
