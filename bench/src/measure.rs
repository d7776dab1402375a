//! What a process costs: processor time and memory, from /proc; and clocks.

use std::fs;
use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::args::Cpus;
use crate::error::{Context as _, Failure, Result, fail};

/// Longest latency told apart, in nanoseconds; longer ones count as this.
const LATENCY_MAX: u64 = 600_000_000_000;

/// Nanoseconds of the machine's monotonic clock: comparable between processes of one machine.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    nanoseconds(ClockId::Realtime) / 1_000_000
}

/// Processor seconds this process has used, with all threads.
pub(crate) fn own_cpu_seconds() -> f64 {
    nanoseconds(ClockId::ProcessCPUTime) as f64 / 1e9
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of a number of seconds.
pub(crate) fn ns(seconds: f64) -> u64 {
    Duration::from_secs_f64(seconds).as_nanos() as u64
}

/// Processor seconds a process has used in user and kernel mode, with all its threads, ended ones too. Counted by the kernel in
/// ticks, of 10 ms as a rule.
///
/// With it comes when the process started, in ticks since the machine did: what tells a process from a later one of the same number.
pub(crate) fn cpu_seconds(pid: u32) -> Result<(f64, u64)> {
    let text = read_proc(pid, "stat")?;
    let (ticks, started) =
        cpu_ticks(&text).ok_or_else(|| Failure(format!("/proc/{pid}/stat is unreadable")))?;
    Ok((
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        started,
    ))
}

/// utime + stime, and starttime. The name, in parentheses, may hold anything, so fields count from the last `)`.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let started: u64 = fields.nth(6)?.parse().ok()?;
    Some((user + system, started))
}

/// Resident memory of a process in bytes.
pub(crate) fn rss(pid: u32) -> Result<u64> {
    let text = read_proc(pid, "status")?;
    status_bytes(&text, "VmRSS:")
        .ok_or_else(|| Failure(format!("/proc/{pid}/status has no VmRSS: did it exit?")))
}

/// Largest resident memory of this process so far, in bytes.
pub(crate) fn own_rss_max() -> Option<u64> {
    let text = read_proc(std::process::id(), "status").ok()?;
    status_bytes(&text, "VmHWM:")
}

fn status_bytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn read_proc(pid: u32, file: &str) -> Result<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}"))
        .context(|| format!("cannot measure process {pid}"))
}

/// Memory of a process over time, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RssSummary {
    pub(crate) min: u64,
    pub(crate) median: u64,
    pub(crate) max: u64,
    pub(crate) last: u64,
    pub(crate) samples: usize,
}

impl RssSummary {
    /// `None` without samples.
    pub(crate) fn of(mut samples: Vec<u64>) -> Option<Self> {
        let last = *samples.last()?;
        samples.sort_unstable();
        Some(Self {
            last,
            min: *samples.first()?,
            median: *samples.get(samples.len() / 2)?,
            max: *samples.last()?,
            samples: samples.len(),
        })
    }
}

/// What the measured window cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Cost {
    /// Length of the window.
    pub(crate) seconds: f64,
    /// Processor seconds of this program in the window.
    pub(crate) own_cpu_seconds: f64,
    /// Processor seconds of the broker in the window, if its process is known.
    pub(crate) broker_cpu_seconds: Option<f64>,
    /// Memory of the broker in the window, if its process is known.
    pub(crate) broker_rss: Option<RssSummary>,
}

/// A distribution of latencies, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct LatencySummary {
    pub(crate) messages: u64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p75: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) p9999: f64,
    pub(crate) max: f64,
}

/// Collects latencies with three significant digits.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Result<Self> {
        Histogram::new_with_bounds(1, LATENCY_MAX, 3)
            .map(Self)
            .context(|| "cannot make a histogram".into())
    }

    /// Adds `messages` of the same latency in nanoseconds.
    pub(crate) fn record(&mut self, latency_ns: u64, messages: u64) {
        self.0
            .saturating_record_n(latency_ns.clamp(1, LATENCY_MAX), messages);
    }

    /// Adds all of another collection.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.0
            .add(&other.0)
            .context(|| "cannot add histograms".into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }

    /// Takes out what there is.
    pub(crate) fn take(&mut self) -> Self {
        let taken = Self(self.0.clone());
        self.0.reset();
        taken
    }

    /// The values, in nanoseconds.
    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    pub(crate) fn summary(&self) -> LatencySummary {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        LatencySummary {
            messages: self.0.len(),
            mean: self.0.mean() / 1e3,
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: self.0.max() as f64 / 1e3,
        }
    }
}

/// Latencies of one side over a run: each is recorded once, as one of the measured window's or not.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Those of the measured window, up to the last [`Recorder::take`].
    total: Latencies,
    inside: Latencies,
    outside: Latencies,
    /// What was due or sent in this range of monotonic nanoseconds is of the measured window.
    pub(crate) measured: Range<u64>,
}

impl Recorder {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            total: Latencies::new()?,
            inside: Latencies::new()?,
            outside: Latencies::new()?,
            measured: 0..0,
        })
    }

    /// Adds `messages` that were due or sent at `time` and arrived now.
    pub(crate) fn record(&mut self, time: u64, now: u64, messages: u64) {
        let latency = now.saturating_sub(time);
        if self.measured.contains(&time) {
            self.inside.record(latency, messages);
        } else {
            self.outside.record(latency, messages);
        }
    }

    /// Takes out what was recorded since the last call, of the measured window or not.
    pub(crate) fn take(&mut self) -> Result<Latencies> {
        let mut taken = self.inside.take();
        self.total.add(&taken)?;
        if !self.outside.is_empty() {
            taken.add(&self.outside)?;
            self.outside.clear();
        }
        Ok(taken)
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        for each in [&mut self.total, &mut self.inside, &mut self.outside] {
            each.clear();
        }
    }

    /// All of the measured window.
    pub(crate) fn total(mut self) -> Result<Latencies> {
        self.take()?;
        Ok(self.total)
    }
}

/// Binds this thread, and those it starts, to processors.
pub(crate) fn pin(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    sched_setaffinity(None, &set)
        .context(|| format!("cannot run on the processors {cpus:?} of this machine"))
}

/// Binds this thread to processors, if any are named.
pub(crate) fn pin_to(cpus: Option<&Cpus>) -> Result<()> {
    cpus.map_or(Ok(()), |Cpus(list)| pin(list))
}

/// The processors this process may use and that no thread of another is bound to: on which it is not in the way. All if that leaves none.
pub(crate) fn processors_beside(pid: Option<u32>) -> Vec<usize> {
    let list = |set: &CpuSet| {
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect::<Vec<_>>()
    };
    let Ok(own) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let own = list(&own);
    let tasks = pid.and_then(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
    let bound: Vec<usize> = tasks
        .into_iter()
        .flatten()
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|thread| sched_getaffinity(rustix::thread::Pid::from_raw(thread)).ok())
        .map(|set| list(&set))
        .filter(|cpus| cpus.len() < own.len() || own.iter().any(|cpu| !cpus.contains(cpu)))
        .flatten()
        .collect();
    let left: Vec<_> = own
        .iter()
        .copied()
        .filter(|cpu| !bound.contains(cpu))
        .collect();
    if left.is_empty() { own } else { left }
}

/// Reads a list of processors.
pub(crate) fn parse_cpus(list: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last < CpuSet::MAX_CPU => {
                cpus.extend(first..=last);
            }
            _ => {
                return fail(format!(
                    "'{part}' is neither a processor below {} nor a range like 2-3",
                    CpuSet::MAX_CPU
                ));
            }
        }
    }
    Ok(cpus)
}

/// Makes sure that this process may have `files` open, as far as the system lets it.
pub(crate) fn raise_open_files(files: u64) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= files) {
        return Ok(());
    }
    // Above the hard limit needs a privilege; up to it does not.
    let wanted = Rlimit {
        current: Some(files),
        maximum: now.maximum.map(|maximum| maximum.max(files)),
    };
    setrlimit(Resource::Nofile, wanted).context(|| {
        format!(
            "{files} open files are needed, the limit is {} and cannot be raised above {}; raise it (ulimit -Hn) or ask for fewer connections",
            now.current.unwrap_or(u64::MAX),
            now.maximum.unwrap_or(u64::MAX),
        )
    })
}

/// Median of some numbers, 0 of none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 31 11 0 0 20 0 3 0 777 5";
        assert_eq!(cpu_ticks(stat), Some((42, 777)));
        assert_eq!(cpu_ticks("42 (cut) S 1"), None);
    }

    #[test]
    fn own_process_can_be_measured() {
        let pid = std::process::id();
        assert!(rss(pid).unwrap() > 100_000);
        let before = own_cpu_seconds();
        while own_cpu_seconds() < before + 0.05 {
            std::hint::black_box(0);
        }
        assert!(cpu_seconds(pid).unwrap().0 >= 0.03);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            status_bytes("Name:\tx\nVmRSS:\t  12 kB\n", "VmRSS:"),
            Some(12288)
        );
        assert_eq!(status_bytes("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn processor_lists() {
        assert_eq!(parse_cpus("0,2-3").unwrap(), [0, 2, 3]);
        for bad in ["", "x", "3-2", "99999", "1,"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_latency_is_recorded_once_and_the_window_counts_its_own() {
        let mut recorder = Recorder::new().unwrap();
        recorder.measured = 1000..2000;
        recorder.record(999, 5999, 1);
        recorder.record(1000, 7000, 2);
        assert_eq!(recorder.take().unwrap().summary().messages, 3);
        recorder.record(1999, 2999, 1);
        recorder.record(2000, 2001, 1);
        let total = recorder.total().unwrap().summary();
        assert_eq!(total.messages, 3);
        assert!((5.99..6.01).contains(&total.max), "{total:?}");
    }

    #[test]
    fn memory_summary_is_ordered() {
        let summary = RssSummary::of(vec![3, 1, 2]).unwrap();
        assert_eq!(
            (summary.min, summary.median, summary.max, summary.last),
            (1, 2, 3, 2)
        );
        assert_eq!(RssSummary::of(Vec::new()), None);
    }
}
