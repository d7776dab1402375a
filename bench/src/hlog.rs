//! Latencies over time as an HdrHistogram interval log: V2 compressed histograms in nanoseconds, one interval a second, as the tools of HdrHistogram
//! read it.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::error::{Context as _, Failure, Result};
use crate::measure::Latencies;

/// What the log's maxima are divided by: they are shown in milliseconds.
const SHOWN_IN: f64 = 1e6;

/// Which side of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Publish,
    Delivery,
}

/// Writes the intervals of one side. Those that begin before the second `from` are tagged `warmup`, those from `to` on `drain`.
pub(crate) fn write<W: Write>(
    out: &mut W,
    side: Side,
    intervals: &BTreeMap<u64, (Latencies, Latencies)>,
    started: SystemTime,
    (from, to): (f64, f64),
) -> Result<()> {
    let doing = || "cannot write the HdrHistogram log".to_owned();
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment(concat!(
            "[Logged with vela-bench ",
            env!("CARGO_PKG_VERSION"),
            "]"
        ))
        .with_start_time(started)
        .with_base_time(started)
        .with_max_value_divisor(SHOWN_IN)
        .begin_log_with(out, &mut serializer)
        .context(doing)?;
    for (&second, (publish, delivery)) in intervals {
        let histogram = match side {
            Side::Publish => publish.histogram(),
            Side::Delivery => delivery.histogram(),
        };
        let tag = match second as f64 {
            begin if begin + 0.5 < from => Some("warmup"),
            begin if begin + 0.5 >= to => Some("drain"),
            _ => None,
        };
        log.write_histogram(
            histogram,
            Duration::from_secs(second),
            Duration::from_secs(1),
            tag.and_then(Tag::new),
        )
        .map_err(|error| Failure(format!("cannot write the HdrHistogram log: {error:?}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use base64::Engine as _;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn the_log_is_read_back_with_its_tags_and_values() {
        let mut intervals = BTreeMap::new();
        for second in 0..4 {
            let (mut publish, delivery) = (Latencies::new().unwrap(), Latencies::new().unwrap());
            publish.record(1_000_000 * (second + 1), 10);
            intervals.insert(second, (publish, delivery));
        }
        let mut log = Vec::new();
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        write(&mut log, Side::Publish, &intervals, started, (1.0, 3.0)).unwrap();
        let mut seen = Vec::new();
        for entry in IntervalLogIterator::new(&log) {
            match entry.unwrap() {
                LogEntry::StartTime(at) | LogEntry::BaseTime(at) => {
                    assert_eq!(at.as_secs(), 1_700_000_000)
                }
                LogEntry::Interval(interval) => {
                    let bytes = base64::engine::general_purpose::STANDARD
                        .decode(interval.encoded_histogram())
                        .unwrap();
                    let histogram: hdrhistogram::Histogram<u64> = Deserializer::new()
                        .deserialize(&mut bytes.as_slice())
                        .unwrap();
                    let tag = interval.tag().map(|tag| tag.as_str().to_owned());
                    seen.push((
                        interval.start_timestamp().as_secs(),
                        tag,
                        histogram.len(),
                        histogram.max(),
                    ));
                }
            }
        }
        assert_eq!(seen.len(), 4);
        let tags: Vec<_> = seen.iter().map(|(_, tag, ..)| tag.as_deref()).collect();
        assert_eq!(tags, [Some("warmup"), None, None, Some("drain")]);
        for (second, _, len, max) in seen {
            assert_eq!(len, 10);
            assert!(max.abs_diff(1_000_000 * (second + 1)) <= max / 500, "{max}");
        }
    }
}
