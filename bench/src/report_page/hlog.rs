//! Whole distributions from HdrHistogram interval logs: smoother curves than a handful of percentiles.

use std::fs;
use std::path::Path;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

/// Points of a curve for each step by a nine.
const PER_NINE: u32 = 20;

/// Percentiles and milliseconds of the measured window of a log in nanoseconds; `None` if there is no log, or none that can be read.
/// Intervals with a tag lie outside of the window.
pub(crate) fn curve(path: &Path) -> Option<Vec<(f64, f64)>> {
    points(&fs::read(path).ok()?)
}

fn points(log: &[u8]) -> Option<Vec<(f64, f64)>> {
    let mut sum = Histogram::<u64>::new(3).ok()?;
    for entry in IntervalLogIterator::new(log) {
        if let LogEntry::Interval(interval) = entry.ok()?
            && interval.tag().is_none()
        {
            let bytes = base64(interval.encoded_histogram())?;
            let part: Histogram<u64> = Deserializer::new()
                .deserialize(&mut bytes.as_slice())
                .ok()?;
            sum.add(part).ok()?;
        }
    }
    if sum.is_empty() {
        return None;
    }
    let nines = (sum.len() as f64).log10();
    let steps = (nines * f64::from(PER_NINE)).floor() as u32;
    let mut curve: Vec<_> = (0..=steps)
        .map(|step| 1.0 - 10_f64.powf(-f64::from(step) / f64::from(PER_NINE)))
        .map(|quantile| {
            (
                quantile * 100.0,
                sum.value_at_quantile(quantile) as f64 / 1e6,
            )
        })
        .collect();
    curve.push((
        100.0 - 100.0 / (sum.len() as f64).max(2.0),
        sum.max() as f64 / 1e6,
    ));
    Some(curve)
}

/// Decodes standard base64; `None` if it is none.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut held) = (0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, SystemTime};

    use hdrhistogram::serialization::V2DeflateSerializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

    use super::*;

    #[test]
    fn base64_of_all_lengths() {
        for (text, bytes) in [
            ("", ""),
            ("TQ==", "M"),
            ("TWE=", "Ma"),
            ("TWFu", "Man"),
            ("Pz8/Pg==", "???>"),
        ] {
            assert_eq!(base64(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        assert_eq!(base64("T*=="), None);
    }

    #[test]
    fn a_log_becomes_a_curve_of_its_measured_window() {
        let mut log = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut writer = IntervalLogWriterBuilder::new()
            .with_base_time(SystemTime::UNIX_EPOCH)
            .begin_log_with(&mut log, &mut serializer)
            .unwrap();
        let second = Duration::from_secs(1);
        for (interval, ms, tag) in [(0, 900, Tag::new("warmup")), (1, 1, None), (2, 2, None)] {
            let mut histogram = Histogram::<u64>::new(3).unwrap();
            histogram.record_n(ms * 1_000_000, 500).unwrap();
            writer
                .write_histogram(&histogram, second * interval, second, tag)
                .unwrap();
        }
        drop(writer);
        let curve = points(&log).unwrap();
        let (first, last) = (curve.first().unwrap(), curve.last().unwrap());
        assert!(
            first.0.abs() < 1e-9 && (first.1 - 1.0).abs() < 0.01,
            "{first:?}"
        );
        assert!(
            (last.0 - 99.9).abs() < 1e-9 && (last.1 - 2.0).abs() < 0.01,
            "{last:?}"
        );
        assert!(curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
        assert_eq!(points(b"no log"), None);
        assert_eq!(points(b""), None);
    }
}
