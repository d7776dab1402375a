//! The program as a user starts it: a short `iot` against a real broker, and what it refuses.
//!
//! The broker is the one built beside it (`cargo test --workspace` builds it), or that of `VELA_BIN`. Nothing here depends on how fast
//! anything is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_vela-bench");

/// The broker's program, if there is one.
fn broker_program() -> Option<PathBuf> {
    let named = std::env::var_os("VELA_BIN").map(PathBuf::from);
    let beside = Path::new(BENCH).with_file_name("vela");
    [named, Some(beside)]
        .into_iter()
        .flatten()
        .find(|path| path.exists())
}

struct Broker {
    child: Child,
    url: String,
    web: String,
    _data: tempfile::TempDir,
}

impl Broker {
    fn start(program: &Path) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(program)
            .args([
                "broker",
                "--bind",
                "127.0.0.1",
                "--port",
                "0",
                "--web-port",
                "0",
                "--cores",
                "1",
                "--data-dir",
            ])
            .arg(data.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines
            .find_map(|line| {
                line.unwrap()
                    .strip_prefix("vela is ready: ")
                    .map(str::to_owned)
            })
            .expect("a ready line");
        let word = |scheme: &str| {
            ready
                .split(' ')
                .find(|word| word.starts_with(scheme))
                .unwrap()
                .to_owned()
        };
        let (url, web) = (word("pulsar://"), word("http://"));
        // It goes on writing; somebody has to read.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            url,
            web,
            _data: data,
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(BENCH).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_short_iot_is_valid_and_leaves_its_files() {
    let Some(program) = broker_program() else {
        eprintln!("skipped: no broker at VELA_BIN or beside {BENCH}");
        return;
    };
    let broker = Broker::start(&program);
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (out, hdr, pid, metrics) = (
        file("result.json"),
        file("log"),
        broker.child.id().to_string(),
        format!("{}/metrics", broker.web),
    );
    let run = bench(&[
        "run",
        "iot",
        "--url",
        &broker.url,
        "--broker-pid",
        &pid,
        "--metrics-url",
        &metrics,
        "--out",
        &out,
        "--hdr",
        &hdr,
        "--rate",
        "2000",
        "--devices",
        "500",
        "--warmup",
        "0.5",
        "--duration",
        "2",
        "--patience",
        "60",
        "--label",
        "test",
    ]);
    assert!(
        run.status.success(),
        "{}\n{}",
        text(&run.stdout),
        text(&run.stderr)
    );
    let result: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(
        (&result["schema"], &result["valid"], &result["label"]),
        (&1.into(), &true.into(), &"test".into())
    );
    assert_eq!(result["settings"]["devices"], 500);
    assert_eq!(result["faults"].as_array().unwrap().len(), 0);
    let publish = &result["publish"];
    let sent = publish["sent"].as_u64().unwrap();
    assert!(sent > 0);
    assert_eq!(publish["acknowledged"], sent);
    let verification = &result["verification"];
    assert_eq!(verification["checked"], sent);
    for kind in [
        "duplicates",
        "lost",
        "out_of_order",
        "corrupt",
        "unanswered",
        "wrong_receipts",
    ] {
        assert_eq!(verification[kind], 0, "{kind}");
    }
    assert_eq!(
        result["delivery"]["latency_us"]["count"],
        publish["latency_us"]["count"]
    );
    assert!(result["broker"]["rss"]["max"].as_u64().unwrap() > 0);
    assert!(result["broker"]["cpu_seconds"].is_number());
    assert!(!result["series"].as_array().unwrap().is_empty());
    for side in ["publish", "delivery"] {
        let log = std::fs::read_to_string(format!("{hdr}.{side}.hlog")).unwrap();
        assert!(
            log.contains("#[StartTime:") && log.contains(",HISTF"),
            "{log}"
        );
    }
}

#[test]
fn the_raw_commands_work_against_a_broker() {
    let Some(program) = broker_program() else {
        eprintln!("skipped: no broker at VELA_BIN or beside {BENCH}");
        return;
    };
    let broker = Broker::start(&program);
    let common = [
        "--url",
        &broker.url,
        "--topics",
        "2",
        "--patience",
        "60",
        "--json",
    ];
    // A subscription that keeps what is published.
    let consume = |more: &[&str]| {
        let run = bench(&[&["consume"], &common[..], more].concat());
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        (run.status.code(), report)
    };
    let (code, _) = consume(&["--warmup", "0", "--duration", "0.1"]);
    assert_eq!(code, Some(0));
    let more = [
        "--rate",
        "1000",
        "--connections",
        "2",
        "--warmup",
        "0",
        "--duration",
        "1",
        "--batch",
        "5",
    ];
    let run = bench(&[&["publish"], &common[..], &more[..]].concat());
    assert!(
        run.status.success(),
        "{}\n{}",
        text(&run.stdout),
        text(&run.stderr)
    );
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let messages = report["receipt_us"]["messages"].as_u64().unwrap();
    assert!(messages > 0);
    let (code, report) = consume(&["--messages", &messages.to_string()]);
    assert_eq!((code, &report["fault"]), (Some(0), &Value::Null));
    assert!(report["received"].as_u64().unwrap() >= messages);
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml");
    std::fs::write(&path, "topics = 2\nratte = 5\n").unwrap();
    let run = bench(&["run", "--file", path.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(2));
    let said = text(&run.stderr);
    assert!(
        said.contains("ratte") && said.contains("mine.toml"),
        "{said}"
    );
}

#[test]
fn scenarios_are_named_and_shown() {
    let list = text(&bench(&["run", "--list"]).stdout);
    assert!(
        list.contains("iot") && list.contains("max-throughput"),
        "{list}"
    );
    let shown = text(&bench(&["run", "iot", "--show", "--rate", "7"]).stdout);
    assert!(
        shown.contains("rate = 7") && shown.contains("devices = 10000"),
        "{shown}"
    );
    for wrong in [
        &["run", "nowhere"][..],
        &["run", "iot", "--url", "http://127.0.0.1:1"],
        &["run", "iot", "--cpu", "x"],
        &["run", "iot", "--out", "/nowhere/result.json"],
    ] {
        assert_eq!(bench(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(bench(&["run"]).status.code(), Some(2));
}
