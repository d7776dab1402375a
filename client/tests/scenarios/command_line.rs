//! The program `vela-client`.

use crate::harness::{LIMIT, broker, topic};
use serde_json::Value;
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vela-client"));
    command
        .args(arguments)
        .args(["--url", &broker().url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finish(mut child: Child) -> Output {
    let end = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            panic!("vela-client did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn run(arguments: &[&str]) -> Output {
    finish(program(arguments).spawn().unwrap())
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
#[ignore = "needs a broker"]
fn what_is_produced_is_read_and_consumed() {
    let topic = topic("program");
    let produced = run(&[
        "produce", &topic, "-m", "one", "-m", "two", "-k", "k", "-p", "a=b", "--json", "-n", "2",
    ]);
    let summary = &lines(&produced)[0]["summary"];
    assert_eq!(
        (&summary["messages"], &summary["failed"]),
        (&4.into(), &0.into())
    );
    assert!(String::from_utf8_lossy(&produced.stderr).contains("4 messages"));

    let read = run(&[
        "read",
        &topic,
        "-m",
        "earliest",
        "--until-end",
        "-n",
        "0",
        "--json",
        "--quiet",
    ]);
    assert!(read.stderr.is_empty(), "{read:?}");
    let read = lines(&read);
    let values: Vec<_> = read[..4]
        .iter()
        .map(|message| message["value"].as_str().unwrap())
        .collect();
    assert_eq!(values, ["one", "two", "one", "two"]);
    assert_eq!(
        (&read[0]["key"], &read[0]["properties"]["a"]),
        (&"k".into(), &"b".into())
    );
    assert_eq!(read[4]["summary"]["messages"], 4);

    for rest in [["one", "two"], ["one", "two"]] {
        let consumed = run(&["consume", &topic, "-s", "s", "-p", "earliest", "-n", "2"]);
        assert!(consumed.status.success(), "{consumed:?}");
        let text = String::from_utf8_lossy(&consumed.stdout).into_owned();
        let contents: Vec<_> = text
            .lines()
            .map(|line| line.rsplit_once("content:").unwrap().1)
            .collect();
        assert_eq!(contents, rest);
    }
    let after = read[1]["message_id"].as_str().unwrap();
    let read = run(&["read", &topic, "-m", after, "-n", "1", "--output", "hex"]);
    assert!(
        String::from_utf8_lossy(&read.stdout).ends_with("content:6f6e65\n"),
        "{read:?}"
    );
}

#[test]
#[ignore = "needs a broker"]
fn lines_of_standard_input_are_messages() {
    let topic = topic("lines");
    let mut child = program(&["produce", &topic, "--lines"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"a\nb\n\nlast")
        .unwrap();
    assert!(finish(child).status.success());
    let read = run(&[
        "read",
        &topic,
        "-m",
        "earliest",
        "-n",
        "0",
        "--until-end",
        "--json",
    ]);
    let values: Vec<_> = lines(&read)
        .iter()
        .filter_map(|line| Some(line.get("value")?.as_str()?.to_owned()))
        .collect();
    assert_eq!(values, ["a", "b", "", "last"]);
}

#[test]
#[ignore = "needs a broker"]
fn schemas_are_kept_and_values_shown() {
    let topic = topic("typed");
    let definition = tempfile::NamedTempFile::new().unwrap();
    let order =
        r#"{"name":"Order","type":"record","fields":[{"name":"id","type":["null","int"]}]}"#;
    std::fs::write(definition.path(), order).unwrap();
    let schema = [
        "--schema-type",
        "avro",
        "--schema-definition",
        definition.path().to_str().unwrap(),
    ];
    let typed = |arguments: &[&str]| run(&[arguments, &schema].concat());
    assert!(
        typed(&["produce", &topic, "-m", r#"{"id":7}"#])
            .status
            .success()
    );
    assert!(
        !typed(&["produce", &topic, "-m", "nonsense"])
            .status
            .success()
    );
    let read = typed(&["read", &topic, "-m", "earliest", "-n", "1", "--json"]);
    assert_eq!(lines(&read)[0]["value"], r#"{"id":7}"#);
    let refused = run(&["produce", &topic, "-m", "text", "--schema-type", "string"]);
    assert!(!refused.status.success(), "{refused:?}");
}

#[test]
#[ignore = "needs a broker"]
fn failures_have_their_own_codes() {
    let topic = topic("codes");
    assert_eq!(run(&["produce", &topic]).status.code(), Some(2));
    assert_eq!(
        run(&["consume", "http://a/b/c", "-s", "s"]).status.code(),
        Some(2)
    );
    let late = run(&["consume", &topic, "-s", "s", "--timeout", "300ms"]);
    assert_eq!(late.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&late.stderr).contains("no message"),
        "{late:?}"
    );
}

#[test]
#[ignore = "needs a broker"]
fn an_interrupt_ends_it_with_a_summary() {
    let topic = topic("interrupted");
    let child = program(&[
        "consume", &topic, "-s", "s", "-p", "earliest", "-n", "0", "--json",
    ])
    .spawn()
    .unwrap();
    let pid = child.id().to_string();
    assert!(
        run(&[
            "produce", &topic, "--size", "10", "-n", "5", "--rate", "1000"
        ])
        .status
        .success()
    );
    // It has its messages when the broker counts no backlog any more.
    let path = topic.replacen("://", "/", 1);
    let end = Instant::now() + LIMIT;
    loop {
        let (status, body) = broker().http("GET", &format!("/admin/v2/{path}/stats"), "");
        let stats: Value = serde_json::from_str(&body).unwrap_or_default();
        if status == 200
            && stats["subscriptions"]["s"]["msgBacklog"] == 0
            && stats["msgInCounter"] == 5
        {
            break;
        }
        assert!(Instant::now() < end, "{status} {body}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let summary = lines(&finish(child)).pop().unwrap();
    assert_eq!(
        (
            &summary["summary"]["messages"],
            &summary["summary"]["interrupted"]
        ),
        (&5.into(), &true.into())
    );
}
