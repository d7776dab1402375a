//! The broker that the scenarios run against: the one named by `PULSAR_URL` and `PULSAR_WEB_URL`, else a Vela started from `VELA_BIN` or
//! from what was built last.

use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vela_client::Client;

/// For whatever a broker owes: far beyond what a busy machine takes.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A whole scenario.
const SCENARIO_LIMIT: Duration = Duration::from_secs(150);

/// Where a broker is reached.
#[derive(Debug, Clone)]
pub struct Broker {
    /// `pulsar://host:port`.
    pub url: String,
    /// `http://host:port`.
    pub web: String,
    /// Whether it is a Vela: it says `message_permits`, and a test may look into its metrics.
    pub is_vela: bool,
}

/// A broker of one's own. It is killed with its owner, or with this process: a shell holds it, and kills it when our end of its
/// standard input goes.
pub struct BrokerProcess {
    pub broker: Broker,
    shell: Child,
    leash: Option<ChildStdin>,
}

const LEASH: &str = r#""$@" & pid=$!; read -r how; kill "-${how:-KILL}" $pid; wait $pid"#;

fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("VELA_BIN") {
        let named = PathBuf::from(named);
        assert!(
            named.is_file(),
            "VELA_BIN is {}, where no broker is: build one with scripts/test binary",
            named.display()
        );
        return named;
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/x86_64-unknown-linux-gnu");
    let built = ["ci", "release", "debug"].map(|profile| target.join(profile).join("vela"));
    let found = built.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no broker in {}: build one with scripts/test binary, or set PULSAR_URL and PULSAR_WEB_URL", target.display()))
}

impl BrokerProcess {
    /// Starts a broker on this data directory. Port 0: a free one.
    pub fn start(data: &Path, port: u16, arguments: &[&str]) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", LEASH, "sh"])
            .arg(binary())
            .args([
                "broker",
                "--bind",
                "127.0.0.1",
                "--web-port",
                "0",
                "--cores",
                "1",
            ])
            .args(["--port", &port.to_string()])
            .arg("--data-dir")
            .arg(data)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let leash = shell.stdin.take();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let urls = line
            .strip_prefix("vela is ready: ")
            .unwrap_or_else(|| panic!("the broker did not start: {line:?}"));
        let (url, web) = urls.trim().split_once(' ').unwrap();
        let broker = Broker {
            url: url.to_owned(),
            web: web.to_owned(),
            is_vela: true,
        };
        Self {
            broker,
            shell,
            leash,
        }
    }

    /// Ends it: `KILL`, or `TERM` for an orderly stop.
    pub fn end(mut self, signal: &str) {
        self.signal(signal);
    }

    fn signal(&mut self, signal: &str) {
        if let Some(mut leash) = self.leash.take() {
            let _ = writeln!(leash, "{signal}");
        }
        let _ = self.shell.wait();
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// The broker of all scenarios that do not need one of their own.
pub fn broker() -> &'static Broker {
    static BROKER: OnceLock<(Broker, Option<(BrokerProcess, TempDir)>)> = OnceLock::new();
    let made = BROKER.get_or_init(|| {
        match (std::env::var("PULSAR_URL"), std::env::var("PULSAR_WEB_URL")) {
            (Ok(url), Ok(web)) => {
                let broker = Broker {
                    url,
                    web,
                    is_vela: false,
                };
                (broker, None)
            }
            (Ok(_), Err(_)) => panic!("PULSAR_URL needs PULSAR_WEB_URL as well"),
            _ => {
                let data = tempfile::tempdir().unwrap();
                let process = BrokerProcess::start(&data.path().join("data"), 0, &[]);
                (process.broker.clone(), Some((process, data)))
            }
        }
    });
    &made.0
}

/// Runs a scenario, and fails it if it takes too long.
pub fn run<F: Future<Output = ()>>(scenario: impl FnOnce(&'static Broker) -> F) {
    let broker = broker();
    run_alone(scenario(broker));
}

/// Runs a scenario that brings its own broker.
pub fn run_alone(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let in_time = runtime.block_on(async { tokio::time::timeout(SCENARIO_LIMIT, scenario).await });
    // Whatever hangs in it must not keep the test from failing.
    runtime.shutdown_timeout(Duration::from_secs(5));
    assert!(
        in_time.is_ok(),
        "the scenario did not end within {SCENARIO_LIMIT:?}"
    );
}

impl Broker {
    /// A client with the defaults.
    pub async fn client(&self) -> Client {
        Client::builder(&self.url).build().await.unwrap()
    }

    /// A request to the web port: status and body.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let host = self.web.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned());
        (status, body.unwrap_or_default())
    }

    /// Makes a topic of this many partitions.
    pub fn create_partitions(&self, topic: &str, partitions: u32) {
        let path = topic.replacen("://", "/", 1);
        let (status, body) = self.http(
            "PUT",
            &format!("/admin/v2/{path}/partitions"),
            &partitions.to_string(),
        );
        assert!(status < 300, "{status} {body}");
    }
}

/// A topic of this scenario's own.
pub fn topic(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros();
    format!("persistent://public/default/rust-{name}-{now:x}-{number}")
}

/// Polls for a state.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for what must come.
pub async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}
