//! How long a broker takes from exec to ready, and what it weighs then.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::args::StartArgs;
use crate::connection::{Address, Connection};
use crate::error::{Context as _, Failure, Result, fail};
use crate::measure::{self, median};
use crate::report::{Report, Table, mebibytes};

/// What the ready line begins with; the URL follows.
const READY: &str = "vela is ready: ";

/// The result: medians of the runs.
#[derive(Debug, Clone, Serialize)]
struct StartReport {
    kind: &'static str,
    runs: usize,
    ready_ms: f64,
    connected_ms: f64,
    stop_ms: f64,
    idle_rss: u64,
    /// Every run, in the order they were made.
    each: Vec<Run>,
}

/// One start.
#[derive(Debug, Clone, Copy, Serialize)]
struct Run {
    /// From exec to the ready line.
    ready_ms: f64,
    /// From exec to the answer to CONNECT.
    connected_ms: f64,
    /// From SIGTERM to the end of the process.
    stop_ms: f64,
    /// Resident memory some seconds after ready, in bytes.
    idle_rss: u64,
}

impl Report for StartReport {
    fn rows(&self, table: &mut Table) {
        table.row("starts", format!("{} (medians)", self.runs));
        table.row("exec to ready line", format!("{:.1} ms", self.ready_ms));
        table.row("exec to CONNECTED", format!("{:.1} ms", self.connected_ms));
        table.row("SIGTERM to end", format!("{:.1} ms", self.stop_ms));
        table.row("idle RSS", mebibytes(self.idle_rss));
    }
}

/// Starts, measures and stops the broker, run by run.
pub(crate) fn run(args: &StartArgs) -> Result<bool> {
    let each = (0..args.runs)
        .map(|_| one(args))
        .collect::<Result<Vec<_>>>()?;
    let of = |value: fn(&Run) -> f64| median(&mut each.iter().map(value).collect::<Vec<_>>());
    let report = StartReport {
        kind: "start",
        runs: each.len(),
        ready_ms: of(|run| run.ready_ms),
        connected_ms: of(|run| run.connected_ms),
        stop_ms: of(|run| run.stop_ms),
        idle_rss: of(|run| run.idle_rss as f64) as u64,
        each,
    };
    report.print(args.json)?;
    Ok(true)
}

/// A broker that does not outlive its measurement.
struct Broker(Child);

impl Drop for Broker {
    fn drop(&mut self) {
        // Already ended and waited for, as a rule; both fail then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one(args: &StartArgs) -> Result<Run> {
    let program = args.exec.display();
    let data = tempfile::Builder::new()
        .prefix("vela-bench-")
        .tempdir()
        .context(|| "cannot make a data directory".into())?;
    let mut command = Command::new(&args.exec);
    command
        .args(["--bind", "127.0.0.1", "--port", "0", "--web-port", "0"])
        .arg("--data-dir")
        .arg(data.path());
    if let Some(cores) = args.cores {
        command.args(["--cores", &cores.to_string()]);
    }
    command
        .args(&args.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let began = Instant::now();
    let child = command
        .spawn()
        .context(|| format!("cannot start {program}"))?;
    let mut broker = Broker(child);
    let patience = Duration::from_secs_f64(args.patience);
    let url = await_ready(&mut broker, patience).context(|| program.to_string())?;
    let ready_ms = milliseconds(began);
    let connection = Connection::open(&Address::resolve(&url)?, 4096)?;
    let connected_ms = milliseconds(began);
    drop(connection);
    thread::sleep(Duration::from_secs_f64(args.settle));
    let idle_rss = measure::rss(broker.0.id())?;
    let stopping = Instant::now();
    stop(&mut broker, patience).context(|| program.to_string())?;
    Ok(Run {
        ready_ms,
        connected_ms,
        stop_ms: milliseconds(stopping),
        idle_rss,
    })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Reads the broker's output until the ready line; a thread goes on reading so that the broker never waits for us.
fn await_ready(broker: &mut Broker, patience: Duration) -> Result<String> {
    let Some(output) = broker.0.stdout.take() else {
        return fail("its output cannot be read");
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            if let Some(url) = url_of(&line) {
                // Nobody waits for a second one.
                let _ = sender.try_send(url.to_owned());
            }
        }
    });
    receiver.recv_timeout(patience).map_err(|error| {
        Failure(match error {
            mpsc::RecvTimeoutError::Timeout => {
                format!("no line '{READY}pulsar://...' within {patience:?}")
            }
            mpsc::RecvTimeoutError::Disconnected => {
                format!("it closed its output without a line '{READY}pulsar://...'")
            }
        })
    })
}

fn url_of(line: &str) -> Option<&str> {
    line.strip_prefix(READY)?
        .split_ascii_whitespace()
        .find(|word| word.starts_with("pulsar://"))
}

fn stop(broker: &mut Broker, patience: Duration) -> Result<()> {
    kill_process(Pid::from_child(&broker.0), Signal::TERM)
        .context(|| "cannot be stopped".into())?;
    let until = Instant::now() + patience;
    while Instant::now() < until {
        match broker.0.try_wait() {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => thread::sleep(Duration::from_millis(1)),
            Err(error) => return fail(format!("cannot be waited for: {error}")),
        }
    }
    fail(format!("still runs {patience:?} after SIGTERM; killed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_url() {
        let line = "vela is ready: pulsar://127.0.0.1:45678 http://127.0.0.1:8080";
        assert_eq!(url_of(line), Some("pulsar://127.0.0.1:45678"));
        assert_eq!(url_of("vela is getting ready"), None);
    }
}
