//! Samples as Prometheus text.

use super::{CoreSample, Sample};
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

impl Metrics {
    pub(super) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            describe_gauge!(
                "vela_retained_bytes",
                Unit::Bytes,
                "Receive memory that inbound frames keep alive"
            );
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
            gauge!("vela_retained_bytes").set(float(sample.retained_bytes));
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
