//! The `vela` process as a person meets it: it starts, says so, refuses with a reason, and ends when asked.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For what must come sooner or later: nobody knows how slow the machine is.
const LIMIT: Duration = Duration::from_secs(60);

fn vela() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vela"));
    // Nothing of the surroundings may change the settings.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VELA_")) {
        command.env_remove(name);
    }
    command
}

fn broker(data: &Path) -> Command {
    let mut command = vela();
    command
        .args(["--port", "0", "--web-port", "0", "--bind", "127.0.0.1"])
        .arg("--data-dir")
        .arg(data)
        .args(["--segment-size-mb", "8", "--cores", "1"]);
    command
}

struct Running {
    child: Child,
    ready: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        let mut running = Self { child, ready };
        if !running.ready.starts_with("vela is ready: ") {
            let errors = running.errors();
            panic!("not ready: {:?} {errors}", running.ready);
        }
        running
    }

    /// Host and port of a URL in the ready line.
    fn address(&self, scheme: &str) -> &str {
        let url = self
            .ready
            .split_whitespace()
            .find(|word| word.starts_with(scheme));
        url.unwrap().strip_prefix(scheme).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut text).unwrap();
        }
        text
    }

    /// Waits for the end, which must come soon.
    fn end(&mut self) -> std::process::ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already, as a rule.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a broker says that must not start.
fn refused(command: &mut Command) -> String {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = Running {
        child: child.unwrap(),
        ready: String::new(),
    };
    let status = running.end();
    let text = running.errors();
    assert_eq!(status.code(), Some(1), "{text}");
    text
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn ignores_hang_up(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 == 1
}

#[test]
fn starts_serves_and_ends_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    // What is ignored here (the tests run under nohup) is ignored by the broker: the test behind this one is about that.
    let hup = !ignores_hang_up("self");
    let signals = [Signal::TERM, Signal::INT, Signal::HUP];
    for signal in signals.into_iter().filter(|&s| hup || s != Signal::HUP) {
        let mut running = Running::start(&mut broker(dir.path()));
        let web = running.address("http://").to_owned();
        assert!(get(&web, "/admin/v2/brokers/health").ends_with("\r\nok"));
        assert!(get(&web, "/admin/v2/brokers/ready").starts_with("HTTP/1.1 200"));
        // A client that stays must not hold the end up.
        let _client = TcpStream::connect(running.address("pulsar://")).unwrap();
        running.signal(signal);
        // Not 0 if a core's end took its ten seconds.
        assert_eq!(running.end().code(), Some(0), "{}", running.errors());
        let errors = running.errors();
        assert!(errors.contains("stopped"), "{errors}");
    }
}

/// `nohup vela` must not end with the terminal.
#[test]
fn a_hang_up_that_is_ignored_at_the_start_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let plain = broker(dir.path());
    let mut command = Command::new("nohup");
    command.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut running = Running::start(command.stdin(Stdio::null()));
    assert!(ignores_hang_up(&running.child.id().to_string()));
    running.signal(Signal::HUP);
    let web = running.address("http://").to_owned();
    assert!(get(&web, "/admin/v2/brokers/health").ends_with("\r\nok"));
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), Some(0), "{}", running.errors());
}

#[test]
fn a_killed_broker_leaves_nothing_that_stops_the_next() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let mut running = Running::start(&mut broker(dir.path()));
        running.signal(Signal::KILL);
        running.end();
    }
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(&mut broker(dir.path()));
    let text = refused(&mut broker(dir.path()));
    let pid = running.child.id().to_string();
    for part in ["in use by process", &pid, "another directory"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_data_directory_that_cannot_be_one_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = refused(&mut broker(file.path()));
    assert!(
        text.contains("data directory") && text.contains("is not a directory"),
        "{text}"
    );

    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut broker(dir.path()));
    running.signal(Signal::TERM);
    running.end();
    let text = refused(broker(dir.path()).args(["--shards", "7"]));
    assert!(text.contains("1 shards, 7"), "{text}");
}

#[test]
fn a_taken_port_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (flag, setting) in [
        ("--port", "brokerServicePort"),
        ("--web-port", "webServicePort"),
        ("--core-ports", "corePorts"),
    ] {
        let text = refused(broker(dir.path()).args([flag, &port]));
        for part in [&port, setting, "taken", flag] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn one_port_for_both_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = refused(broker(dir.path()).args(["--port", "6650", "--web-port", "6650"]));
    for part in ["brokerServicePort", "webServicePort", "both 6650"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_log_newer_than_its_metadata_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut running = Running::start(&mut broker(dir.path()));
        running.signal(Signal::TERM);
        running.end();
    }
    std::fs::remove_file(dir.path().join("meta.redb")).unwrap();
    let text = refused(&mut broker(dir.path()));
    for part in ["meta.redb", "older than the log", "backup"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Starts and ends a broker in the directory.
fn used(dir: &Path) {
    let mut running = Running::start(&mut broker(dir));
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), Some(0));
}

#[test]
fn a_log_that_is_gone_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    used(dir.path());
    let lane = dir.path().join("lane-0");
    std::fs::rename(&lane, dir.path().join("elsewhere")).unwrap();
    for emptied in [false, true] {
        if emptied {
            std::fs::create_dir(&lane).unwrap();
        }
        for _ in 0..2 {
            let text = refused(&mut broker(dir.path()));
            for part in ["shard 0", "lane-0", "earlier start", "backup"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
    std::fs::remove_dir(&lane).unwrap();
    std::fs::rename(dir.path().join("elsewhere"), &lane).unwrap();
    used(dir.path());
}

/// The log is where the broker has written, so it says which file.
#[test]
fn a_file_that_is_none_is_named() {
    for file in [
        "LOCK",
        "format",
        "meta.redb",
        "lane-0/manifest",
        "lane-0/00000001.checkpoint",
        "lane-0/00000001.seg",
        "lane-0/00000009.spare",
    ] {
        let dir = tempfile::tempdir().unwrap();
        used(dir.path());
        let path = dir.path().join(file);
        // Most are there.
        let _ = std::fs::remove_file(&path);
        for found in ["a directory", "a FIFO", "a device"] {
            match found {
                "a directory" => std::fs::create_dir(&path).unwrap(),
                // Waits for somebody at the other end when it is opened.
                "a FIFO" => mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap(),
                // Never ends when it is read.
                _ => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            }
            // A spare is no loss: anything that can be removed at once is.
            let spare = file.ends_with(".spare");
            if spare && found != "a directory" {
                used(dir.path());
                assert!(path.symlink_metadata().is_err());
                continue;
            }
            let text = refused(&mut broker(dir.path()));
            assert!(text.contains(path.to_str().unwrap()), "{file}: {text}");
            assert!(spare || text.contains(found), "{file}: {text}");
            match found {
                "a directory" => std::fs::remove_dir(&path).unwrap(),
                _ => std::fs::remove_file(&path).unwrap(),
            }
        }
    }
}

/// Without descriptors the log could open no further segment, and would stop for good.
#[test]
fn connections_leave_descriptors_to_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let inner = broker(dir.path());
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, _) in inner.get_envs() {
        limited.env_remove(name);
    }
    let mut running = Running::start(&mut limited);
    let connect = |scheme| {
        let stream = TcpStream::connect(running.address(scheme)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let mut peers: Vec<TcpStream> = (0..100).map(|_| connect("pulsar://")).collect();
    let mut told = Vec::new();
    // A reset is an end as well.
    let _ = peers.last_mut().unwrap().read_to_end(&mut told);
    assert!(String::from_utf8_lossy(&told).contains("maximum number of connections"));
    let _ = connect("http://").read_to_end(&mut told);
    let open = std::fs::read_dir(format!("/proc/{}/fd", running.child.id())).unwrap();
    assert!(open.count() <= 56, "the log has none left");
    drop(peers);
    let start = Instant::now();
    let served = || {
        let mut stream = connect("http://");
        let mut answer = String::new();
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
        answer.contains("vela_connections")
    };
    while !served() {
        assert!(start.elapsed() < LIMIT, "nobody is served again");
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().code(), Some(0));
}

#[test]
fn too_little_lockable_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // The limit of this test's child only: a shell sets it and becomes the broker.
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -l 64 && exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_vela"))
        .args([
            "--port",
            "0",
            "--web-port",
            "0",
            "--cores",
            "1",
            "--data-dir",
        ])
        .arg(dir.path());
    let text = refused(&mut command);
    for part in ["64 KiB", "512 KiB", "ulimit -l"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_message_larger_than_a_segment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = refused(broker(dir.path()).args(["--max-message-size", "100000000"]));
    for part in ["maxMessageSize 100000000", "segmentSizeMb 8", "raise"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A limit that single messages exceed is allowed, and said to be one.
#[test]
fn a_publish_buffer_below_single_messages_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut small =
        Running::start(broker(dir.path()).args(["--max-message-publish-buffer-size-in-mb", "3"]));
    small.signal(Signal::TERM);
    small.child.wait().unwrap();
    let text = small.errors();
    for part in [
        "WARN",
        "maxMessagePublishBufferSizeInMB is 3 MiB",
        "set it to 7 or more",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let mut enough =
        Running::start(broker(dir.path()).args(["--max-message-publish-buffer-size-in-mb", "7"]));
    enough.signal(Signal::TERM);
    enough.child.wait().unwrap();
    let text = enough.errors();
    assert!(!text.contains("maxMessagePublishBufferSizeInMB"), "{text}");
}

#[test]
fn bad_values_are_refused_before_anything_happens() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("never");
    let output = broker(&data).args(["--tick-us", "-5"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    for part in ["tickUs", "-5", "--tick-us", "0 to 10000"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!data.exists());
    let output = broker(&data).env("VELA_SYNC", "maybe").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("VELA_SYNC") && text.contains("always, interval, never"),
        "{text}"
    );
}

#[test]
fn config_and_version_start_nothing() {
    let output = vela()
        .args(["config", "--port", "1"])
        .env("VELA_CORES", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("brokerServicePort").ends_with("flag"));
    assert!(line("cores").ends_with("environment"));
    assert!(line("webServicePort").ends_with("default"));
    let output = vela().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("vela 0."), "{text}");
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(broker(dir.path()).args(["--broker-max-connections-per-ip", "2"]));
    let address = running.address("pulsar://");
    let first = TcpStream::connect(address).unwrap();
    let _second = TcpStream::connect(address).unwrap();
    let mut third = TcpStream::connect(address).unwrap();
    third.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = Vec::new();
    third.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(
        text.contains("Reached the maximum number of connections"),
        "{text}"
    );
    // There is room again when one leaves.
    drop(first);
    let start = Instant::now();
    loop {
        let mut again = TcpStream::connect(address).unwrap();
        again
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let mut byte = [0];
        if again.read(&mut byte).is_err() {
            break; // Nothing said, not closed: it is in.
        }
        assert!(start.elapsed() < LIMIT, "never let in again");
    }
}
