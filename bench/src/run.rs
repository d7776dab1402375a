//! The command `run`: a scenario, its measurements, its verdict, and the files it leaves.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use crate::args::RunArgs;
use crate::engine::{self, Outcome, Spec};
use crate::error::{Context as _, Result};
use crate::hlog::{self, Side};
use crate::measure;
use crate::observer::Sources;
use crate::progress::Progress;
use crate::publish::run_id;
use crate::report::Report as _;
use crate::result::{Names, RunResult};
use crate::scenario::{BUILT_IN, Settings};
use crate::setup::Place;

/// Most executors without `--cpu`.
const EXECUTORS: usize = 4;

/// What was asked for: the scenario's name, or that of its file, and its settings, flags included.
///
/// # Errors
/// If there is no such scenario, or a setting cannot be.
pub(crate) fn read(args: &RunArgs) -> Result<(String, Settings)> {
    let (name, mut settings) = match (&args.scenario, &args.file) {
        (Some(name), _) => (name.clone(), Settings::built_in(name)?),
        (None, Some(path)) => {
            let name = path.display().to_string();
            let text =
                fs::read_to_string(path).context(|| format!("cannot read scenario {name}"))?;
            let settings = Settings::parse(&name, &text)?;
            (name, settings)
        }
        (None, None) => ("defaults".into(), Settings::default()),
    };
    args.overrides.apply(&mut settings);
    settings.check()?;
    // Found out now rather than when there is something to write.
    if let Some(path) = &args.out {
        let there = path.exists();
        let file = File::options().create(true).append(true).open(path);
        file.context(|| format!("cannot write the result to {}", path.display()))?;
        if !there {
            // A file is a result.
            fs::remove_file(path).context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok((name, settings))
}

/// Runs what [`read`] found; answers whether the run is valid.
pub(crate) fn run(args: &RunArgs, name: String, mut settings: Settings) -> Result<bool> {
    if args.list {
        for (name, text) in BUILT_IN {
            let about = text
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("# ");
            println!("{name:15} {about}");
        }
        return Ok(true);
    }
    if args.show {
        print!("{}", settings.to_toml()?);
        return Ok(true);
    }
    let run = run_id();
    if !args.same_topics {
        settings.topic_prefix += &format!("-{run:08x}");
    }
    let cpus = args.target.cpus().unwrap_or_else(|| {
        let mut cpus = measure::processors_beside(args.target.broker_pid);
        cpus.truncate(EXECUTORS);
        cpus
    });
    let spec = Spec {
        settings,
        place: Place {
            url: args.target.url.clone(),
            run,
            subscription: "vela-bench".into(),
            earliest: false,
        },
        any_run: false,
        messages: None,
        complete: true,
        unsubscribe: true,
        cpus: (!cpus.is_empty()).then_some(cpus),
        sources: Sources {
            pid: args.target.broker_pid,
            cgroup: args.broker_cgroup.clone(),
            metrics_url: args.metrics_url.clone(),
        },
        interruptible: true,
    };
    let mut progress = if args.quiet {
        Progress::quiet()
    } else {
        Progress::new()
    };
    let outcome = engine::run(&spec, &mut progress)?;
    let names = Names {
        scenario: name,
        label: args.label.clone(),
    };
    let result = RunResult::new(&spec, names, &outcome)?;
    if let Some(path) = &args.out {
        let mut text =
            serde_json::to_string_pretty(&result).context(|| "cannot write the result".into())?;
        text.push('\n');
        fs::write(path, text).context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(prefix) = &args.hdr {
        write_log(prefix, Side::Publish, &outcome)?;
        if spec.settings.subscriptions > 0 {
            write_log(prefix, Side::Delivery, &outcome)?;
        }
    }
    result.print(args.target.json)?;
    Ok(result.valid)
}

fn write_log(prefix: &Path, side: Side, outcome: &Outcome) -> Result<()> {
    let suffix = match side {
        Side::Publish => ".publish.hlog",
        Side::Delivery => ".delivery.hlog",
    };
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    let path = Path::new(&path);
    let file = File::create(path).context(|| format!("cannot write {}", path.display()))?;
    let seconds = |at: u64| at.saturating_sub(outcome.start_ns) as f64 / 1e9;
    let window = (seconds(outcome.from.at), seconds(outcome.to.at));
    hlog::write(
        &mut BufWriter::new(file),
        side,
        &outcome.intervals,
        outcome.started,
        window,
    )
}
