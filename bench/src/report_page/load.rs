//! Reads what is shown: result files of `run`, and the directory of a comparison.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::html::grouped;
use super::model::{Report, Run, Sample};
use crate::error::{Context as _, Result, fail};

/// Version of the result files that are read.
const SCHEMA: u64 = 1;
/// Name of the file in which a comparison says what it did.
const COMPARISON: &str = "results.json";

/// The parts of a run's result that are shown.
#[derive(Debug, Deserialize)]
struct ResultFile {
    scenario: String,
    label: Option<String>,
    #[serde(default)]
    started: String,
    #[serde(default)]
    generator: String,
    #[serde(default)]
    command: Vec<String>,
    settings: Value,
    valid: bool,
    interrupted: bool,
    faults: Vec<String>,
    publish: Side,
    delivery: Option<Side>,
    broker: Broker,
    own: Own,
    #[serde(default)]
    series: Vec<Second>,
}

#[derive(Debug, Deserialize)]
struct Side {
    messages_per_second: f64,
    latency_us: Option<Latency>,
}

#[derive(Debug, Deserialize)]
struct Latency {
    p50: f64,
    p75: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    p9999: f64,
    max: f64,
    count: f64,
}

impl Latency {
    /// Percentile and milliseconds; the greatest latency stands at the percentile of the last message.
    fn curve(&self) -> Vec<(f64, f64)> {
        let last = 100.0 - 100.0 / self.count.max(2.0);
        let points = [
            (50.0, self.p50),
            (75.0, self.p75),
            (90.0, self.p90),
            (99.0, self.p99),
            (99.9, self.p999),
            (99.99, self.p9999),
        ];
        points
            .into_iter()
            .filter(|(percentile, _)| *percentile < last)
            .chain([(last, self.max)])
            .map(|(percentile, us)| (percentile, us / 1000.0))
            .collect()
    }
}

#[derive(Debug, Deserialize)]
struct Broker {
    cpu_seconds_per_million: Option<f64>,
    rss: Option<Most>,
    throttled: Option<Throttled>,
}

#[derive(Debug, Deserialize)]
struct Most {
    max: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Throttled {
    nonzero: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Own {
    cpu_seconds_per_million: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Second {
    t: f64,
    published_per_second: Option<f64>,
    delivered_per_second: Option<f64>,
    broker_cpu_cores: Option<f64>,
    own_cpu_cores: Option<f64>,
    broker_rss: Option<f64>,
    retained: Option<f64>,
    throttled: Option<f64>,
}

impl ResultFile {
    fn read(path: &Path) -> Result<Self> {
        let value = json_of(path)?;
        let name = path.display();
        if value.get("kind").and_then(Value::as_str) != Some("run") {
            return fail(format!(
                "{name} is not the result of a run (kind is {})",
                value.get("kind").unwrap_or(&Value::Null)
            ));
        }
        if value.get("schema").and_then(Value::as_u64) != Some(SCHEMA) {
            return fail(format!(
                "{name} has schema {}, this program reads schema {SCHEMA}",
                value.get("schema").unwrap_or(&Value::Null)
            ));
        }
        serde_json::from_value(value).context(|| format!("cannot read {name}"))
    }

    fn rate(&self) -> Option<f64> {
        self.settings
            .get("rate")
            .and_then(Value::as_f64)
            .filter(|rate| *rate > 0.0)
    }

    fn run(&self, variant: String, path: &Path) -> Run {
        let publish = self.publish.latency_us.as_ref();
        let delivery = self
            .delivery
            .as_ref()
            .and_then(|side| side.latency_us.as_ref());
        let ms = |latency: Option<&Latency>, pick: fn(&Latency) -> f64| {
            latency.map(|l| pick(l) / 1000.0)
        };
        let figures = [
            ("achieved", Some(self.publish.messages_per_second)),
            ("broker_cpu", self.broker.cpu_seconds_per_million),
            ("publish_p50", ms(publish, |l| l.p50)),
            ("publish_p99", ms(publish, |l| l.p99)),
            ("publish_p999", ms(publish, |l| l.p999)),
            ("delivery_p50", ms(delivery, |l| l.p50)),
            ("delivery_p99", ms(delivery, |l| l.p99)),
            ("rss", self.broker.rss.as_ref().and_then(|rss| rss.max)),
            ("load_cpu", self.own.cpu_seconds_per_million),
            (
                "throttled_samples",
                self.broker.throttled.as_ref().and_then(|t| t.nonzero),
            ),
        ];
        let curve = |side: &str, latency: Option<&Latency>| {
            let log = path.with_extension(format!("{side}.hlog"));
            super::hlog::curve(&log)
                .unwrap_or_else(|| latency.map(Latency::curve).unwrap_or_default())
        };
        Run {
            variant,
            rate: self.rate(),
            figures: figures
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?)))
                .collect(),
            publish: curve("publish", publish),
            delivery: curve("delivery", delivery),
            samples: self.series.iter().map(Second::sample).collect(),
            warmup: self.settings.get("warmup").and_then(Value::as_f64),
            saturated: String::new(),
        }
    }
}

impl Second {
    fn sample(&self) -> Sample {
        Sample {
            time: self.t,
            published: self.published_per_second,
            delivered: self.delivered_per_second,
            broker_cpu: self.broker_cpu_cores,
            load_cpu: self.own_cpu_cores,
            rss: self.broker_rss,
            retained: self.retained,
            throttled: self.throttled,
        }
    }
}

/// What `scripts/compare` writes.
#[derive(Debug, Deserialize)]
struct Comparison {
    scenario: String,
    complete: bool,
    planned_runs: usize,
    saturation_p99_ms: f64,
    cells: Vec<Cell>,
    runs: Vec<Listed>,
    manifest: Value,
}

#[derive(Debug, Deserialize)]
struct Cell {
    variant: String,
    rate: Option<f64>,
    valid: usize,
    saturated: Saturated,
}

#[derive(Debug, Deserialize)]
struct Saturated {
    runs: usize,
    sides: Vec<String>,
}

impl Cell {
    /// Who was saturated, and in how many of its runs if not in all; empty: nobody.
    fn saturation(&self) -> String {
        let sides = self.saturated.sides.join(" and ");
        if self.saturated.runs == 0 || self.saturated.runs == self.valid {
            return sides;
        }
        format!("{sides} ({} of {})", self.saturated.runs, self.valid)
    }
}

#[derive(Debug, Deserialize)]
struct Listed {
    variant: String,
    rate: Option<f64>,
    repetition: u32,
    state: String,
    reason: String,
    file: String,
    #[serde(default)]
    notes: Vec<String>,
}

/// Reads the directory of a comparison, or result files; a directory without a comparison stands for the result files in it.
///
/// # Errors
/// If nothing is there, or a file cannot be read or is something else.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Report> {
    if let [directory] = paths
        && directory.join(COMPARISON).exists()
    {
        return comparison(directory);
    }
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(results_in(path)?);
        } else {
            files.push(path.clone());
        }
    }
    if files.is_empty() {
        return fail(
            "there is no result to show: name result files of `vela-bench run`, or a directory of scripts/compare",
        );
    }
    single(&files)
}

/// The result files of runs in a directory, by name; other JSON files are passed over.
fn results_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let name = directory.display();
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).context(|| format!("cannot read the directory {name}"))? {
        let path = entry
            .context(|| format!("cannot read the directory {name}"))?
            .path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
            && ResultFile::read(&path).is_ok()
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn single(files: &[PathBuf]) -> Result<Report> {
    let mut report = Report::default();
    let mut scenarios: Vec<String> = Vec::new();
    let mut manifest = Vec::new();
    for path in files {
        let result = ResultFile::read(path)?;
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let name = result.label.clone().unwrap_or(stem);
        if !scenarios.contains(&result.scenario) {
            scenarios.push(result.scenario.clone());
        }
        if result.valid && !result.interrupted {
            report.runs.push(result.run(name, path));
        } else {
            report.excluded.push((name, reason(&result.faults)));
        }
        manifest.push(json!({"file": path.display().to_string(), "started": result.started, "generator": result.generator,
            "command": result.command, "settings": result.settings}));
        if report.facts.is_empty() {
            report.facts = vec![
                ("Started".into(), result.started),
                ("Load".into(), result.generator),
            ];
        }
    }
    report.title = scenarios.join(", ");
    report.manifest = json!({ "runs": manifest });
    Ok(report)
}

fn reason(faults: &[String]) -> String {
    if faults.is_empty() {
        "interrupted".into()
    } else {
        faults.join("; ")
    }
}

fn comparison(directory: &Path) -> Result<Report> {
    let path = directory.join(COMPARISON);
    let whole: Comparison = serde_json::from_value(json_of(&path)?)
        .context(|| format!("cannot read {}", path.display()))?;
    let mut report = Report {
        title: whole.scenario,
        facts: facts(&whole.manifest),
        ..Report::default()
    };
    for listed in &whole.runs {
        let at = listed
            .rate
            .map(|rate| format!(" at {}/s", grouped(rate, 0)))
            .unwrap_or_default();
        let name = format!("{}{at}, repetition {}", listed.variant, listed.repetition);
        for note in &listed.notes {
            report.notes.push(format!("{name}: {note}."));
        }
        if listed.state != "valid" {
            report
                .excluded
                .push((name, format!("{}: {}", listed.state, listed.reason)));
            continue;
        }
        let path = directory.join(&listed.file);
        let mut run = ResultFile::read(&path)?.run(listed.variant.clone(), &path);
        run.saturated = whole
            .cells
            .iter()
            .find(|cell| cell.variant == listed.variant && cell.rate == listed.rate)
            .map(Cell::saturation)
            .unwrap_or_default();
        report.runs.push(run);
    }
    if !whole.complete {
        report.notes.push(format!(
            "This comparison is not complete: {} of {} planned runs were begun.",
            whole.runs.len(),
            whole.planned_runs
        ));
    }
    report.notes.push(format!(
        "Saturated: less than 99 % of what was offered was done, or the publish p99 is above {} ms; the side whose core was 90 % busy is named.",
        grouped(whole.saturation_p99_ms, 0)
    ));
    report.manifest = whole.manifest;
    Ok(report)
}

/// The manifest's lines that every reader wants.
fn facts(manifest: &Value) -> Vec<(String, String)> {
    let text = |pointer: &str| match manifest.pointer(pointer) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let dirty = manifest.pointer("/commit/dirty").and_then(Value::as_bool) == Some(true);
    let commit = text("/commit/revision").map(|revision| {
        let short: String = revision.chars().take(12).collect();
        short + if dirty { ", with changes" } else { "" }
    });
    let cpu = text("/host/cpu").map(|cpu| match text("/host/cpus") {
        Some(count) => format!("{cpu}, {count} CPUs"),
        None => cpu,
    });
    let command = manifest
        .pointer("/command")
        .and_then(Value::as_array)
        .map(|words| {
            let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
            words.join(" ")
        });
    [
        ("Began", text("/began")),
        ("Commit", commit),
        ("Processor", cpu),
        ("Memory", text("/host/memory")),
        ("Kernel", text("/host/kernel")),
        ("System", text("/host/system")),
        ("Command", command),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
}

fn json_of(path: &Path) -> Result<Value> {
    let name = path.display();
    let text = fs::read_to_string(path).context(|| format!("cannot read {name}"))?;
    serde_json::from_str(&text).context(|| format!("{name} is not JSON"))
}
