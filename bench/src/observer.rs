//! The broker under test, seen from outside: processor time, memory, and two of its metrics.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Context as _, Failure, Result, fail};
use crate::measure::{cpu_seconds, rss};

/// Memory that received messages keep alive, in bytes (PIP-442).
const RETAINED: &str = "pulsar_broker_publish_in_progress_buffer_memory_usage";
/// Whether reading is held back because of it.
const THROTTLED: &str = "pulsar_broker_publish_in_progress_buffer_memory_throttled";
/// How long a page of metrics may take.
const METRICS_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest page of metrics read, in bytes.
const MAX_PAGE: u64 = 64 << 20;

/// Where the broker's figures come from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    pub(crate) pid: Option<u32>,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) metrics_url: Option<String>,
}

/// A look at the broker; what cannot be known is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Look {
    /// Processor seconds so far.
    pub(crate) cpu_seconds: Option<f64>,
    /// Bytes.
    pub(crate) rss: Option<u64>,
}

/// Looks at the broker's processor time and memory, and notices a restart.
#[derive(Debug)]
pub(crate) struct Observer {
    sources: Sources,
    started: Option<u64>,
    last_cpu: f64,
}

impl Observer {
    /// # Errors
    /// If a source cannot be read now.
    pub(crate) fn new(sources: Sources) -> Result<Self> {
        let mut observer = Self {
            sources,
            started: None,
            last_cpu: 0.0,
        };
        observer.look()?;
        Ok(observer)
    }

    /// # Errors
    /// If the broker was restarted or is gone.
    pub(crate) fn look(&mut self) -> Result<Look> {
        let of_process = match self.sources.pid {
            None => None,
            Some(pid) => {
                let (cpu, started) = cpu_seconds(pid).context(|| "the broker is gone".into())?;
                if *self.started.get_or_insert(started) != started {
                    return fail(format!(
                        "the broker was restarted: process {pid} is a later one"
                    ));
                }
                Some((cpu, rss(pid)?))
            }
        };
        let cpu_seconds = match &self.sources.cgroup {
            Some(path) => Some(cgroup_cpu_seconds(path)?),
            None => of_process.map(|(cpu, _)| cpu),
        };
        if let Some(cpu) = cpu_seconds {
            if cpu < self.last_cpu {
                return fail(format!(
                    "the broker was restarted: its processor time went back from {} to {cpu} s",
                    self.last_cpu
                ));
            }
            self.last_cpu = cpu;
        }
        Ok(Look {
            cpu_seconds,
            rss: of_process.map(|(_, rss)| rss),
        })
    }
}

/// Processor seconds of a cgroup: of version 2, or of version 1's `cpuacct`.
fn cgroup_cpu_seconds(path: &Path) -> Result<f64> {
    if let Ok(text) = fs::read_to_string(path.join("cpu.stat"))
        && let Some(seconds) = usage_seconds(&text)
    {
        return Ok(seconds);
    }
    let file = path.join("cpuacct.usage");
    let text = fs::read_to_string(&file).context(|| {
        format!(
            "neither cpu.stat with usage_usec nor {} can be read",
            file.display()
        )
    })?;
    let nanoseconds: u64 = text.trim().parse().context(|| file.display().to_string())?;
    Ok(nanoseconds as f64 / 1e9)
}

fn usage_seconds(stat: &str) -> Option<f64> {
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(line.trim().parse::<u64>().ok()? as f64 / 1e6)
}

/// What a page of metrics says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Metrics {
    pub(crate) retained: Option<f64>,
    pub(crate) throttled: Option<f64>,
}

impl Metrics {
    /// Reads the page's text; of several series the sum of what is retained and the largest of what is throttled.
    fn parse(page: &str) -> Self {
        let values = |name: &'static str| {
            page.lines().filter_map(move |line| {
                let rest = line.strip_prefix(name)?;
                let value = match rest.strip_prefix('{') {
                    Some(labels) => labels.rsplit_once('}')?.1,
                    None if rest.starts_with([' ', '\t']) => rest,
                    None => return None,
                };
                value.split_ascii_whitespace().next()?.parse::<f64>().ok()
            })
        };
        Self {
            retained: values(RETAINED).reduce(|a, b| a + b),
            throttled: values(THROTTLED).reduce(f64::max),
        }
    }
}

/// Looks at the metrics once a second, in a thread of its own: a page that takes long delays nobody.
#[derive(Debug)]
pub(crate) struct Scraper {
    latest: Arc<Mutex<Option<Metrics>>>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scraper {
    /// # Errors
    /// If the page cannot be read now.
    pub(crate) fn start(url: &str) -> Result<Self> {
        let first = fetch(url)?;
        let latest = Arc::new(Mutex::new(Some(first)));
        let (end, ended) = channel();
        let (url, shared) = (url.to_owned(), Arc::clone(&latest));
        let thread = std::thread::Builder::new()
            .name("vela-bench-metrics".into())
            .spawn(move || scrape(&url, &shared, &ended))
            .context(|| "cannot make a thread".into())?;
        Ok(Self {
            latest,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// What was seen since the last call.
    pub(crate) fn take(&self) -> Option<Metrics> {
        self.latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It cannot panic; if it did, there is nothing more to see.
            let _ = thread.join();
        }
    }
}

fn scrape(url: &str, latest: &Mutex<Option<Metrics>>, ended: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_secs(1)) {
        // A page that cannot be read is a look that saw nothing.
        let seen = fetch(url).ok();
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

fn fetch(url: &str) -> Result<Metrics> {
    let mut url = url.to_owned();
    for _ in 0..4 {
        let page = get(&url).context(|| format!("cannot read the metrics at {url}"))?;
        let (head, body) = page.split_once("\r\n\r\n").unwrap_or((&page, ""));
        let mut lines = head.lines();
        let status = lines.next().unwrap_or_default();
        let code = status.split_ascii_whitespace().nth(1).unwrap_or_default();
        let location = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location")
                .then(|| value.trim().to_owned())
        });
        match (code, location) {
            ("200", _) => return Ok(Metrics::parse(body)),
            ("301" | "302" | "303" | "307" | "308", Some(to)) if to.starts_with("http://") => {
                url = to
            }
            ("301" | "302" | "303" | "307" | "308", Some(to)) => {
                let (host, _) = split_url(&url)?;
                url = format!("http://{host}{to}");
            }
            _ => {
                return fail(format!(
                    "cannot read the metrics at {url}: it answers '{status}'"
                ));
            }
        }
    }
    fail(format!(
        "cannot read the metrics at {url}: redirected too often"
    ))
}

/// Host with port, and path.
fn split_url(url: &str) -> Result<(&str, &str)> {
    let rest = url.strip_prefix("http://").ok_or_else(|| {
        Failure(format!(
            "'{url}' is not a URL of the form http://HOST:PORT/PATH"
        ))
    })?;
    Ok(match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    })
}

/// Speaks HTTP/1.0: the answer comes in one piece and ends with the connection.
fn get(url: &str) -> Result<String> {
    let (host, path) = split_url(url)?;
    let with_port = if host.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let address = with_port
        .to_socket_addrs()
        .context(|| format!("cannot resolve {host}"))?
        .next()
        .ok_or_else(|| Failure(format!("{host} has no address")))?;
    let doing = || format!("no answer from {host}");
    let mut stream = TcpStream::connect_timeout(&address, METRICS_TIMEOUT).context(doing)?;
    stream
        .set_read_timeout(Some(METRICS_TIMEOUT))
        .context(doing)?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n").as_bytes(),
        )
        .context(doing)?;
    let mut page = Vec::new();
    stream
        .take(MAX_PAGE)
        .read_to_end(&mut page)
        .context(doing)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    const PAGE: &str = "# HELP x\n# TYPE pulsar_broker_publish_in_progress_buffer_memory_usage gauge\n\
        pulsar_broker_publish_in_progress_buffer_memory_usage{cluster=\"a}b\",core=\"0\"} 100\n\
        pulsar_broker_publish_in_progress_buffer_memory_usage{core=\"1\"} 2.5e1 1700000000\n\
        pulsar_broker_publish_in_progress_buffer_memory_usage_peak 7\n\
        pulsar_broker_publish_in_progress_buffer_memory_throttled 1\n";

    #[test]
    fn metrics_are_summed_and_absent_ones_are_not_zero() {
        let expected = Metrics {
            retained: Some(125.0),
            throttled: Some(1.0),
        };
        assert_eq!(Metrics::parse(PAGE), expected);
        assert_eq!(Metrics::parse("other 1\n"), Metrics::default());
    }

    #[test]
    fn a_page_is_fetched_through_a_redirection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for answer in [
                "HTTP/1.1 302 Found\r\nLocation: /metrics/\r\n\r\n",
                "HTTP/1.1 200 OK\r\n\r\n",
                "HTTP/1.1 401 Unauthorized\r\n\r\n",
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let n = stream.read(&mut request).unwrap();
                assert!(n > 0);
                stream.write_all(answer.as_bytes()).unwrap();
                stream.write_all(PAGE.as_bytes()).unwrap();
            }
        });
        let url = format!("http://{host}/metrics");
        assert_eq!(fetch(&url).unwrap().throttled, Some(1.0));
        let fault = fetch(&url).unwrap_err().0;
        assert!(fault.contains("401"), "{fault}");
    }

    #[test]
    fn a_counter_that_goes_back_is_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let usage = |microseconds: u64| {
            let text = format!("nr_periods 0\nusage_usec {microseconds}\nuser_usec 1\n");
            fs::write(directory.path().join("cpu.stat"), text).unwrap();
        };
        usage(1_500_000);
        let mut observer = Observer::new(Sources {
            cgroup: Some(directory.path().into()),
            ..Sources::default()
        })
        .unwrap();
        usage(2_500_000);
        assert_eq!(observer.look().unwrap().cpu_seconds, Some(2.5));
        usage(100);
        assert!(observer.look().unwrap_err().0.contains("restarted"));
    }

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let mut observer = Observer::new(Sources {
            pid: Some(child.id()),
            ..Sources::default()
        })
        .unwrap();
        assert!(observer.look().unwrap().rss.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(observer.look().unwrap_err().0.contains("gone"));
    }

    #[test]
    fn cgroups_of_version_1_count_nanoseconds() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("cpuacct.usage"), "2000000000\n").unwrap();
        assert_eq!(cgroup_cpu_seconds(directory.path()).unwrap(), 2.0);
        assert!(cgroup_cpu_seconds(Path::new("/nowhere")).is_err());
    }
}
