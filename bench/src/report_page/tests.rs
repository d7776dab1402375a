//! From files to a page.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn result(rate: f64, latency_ms: f64, throttled: f64) -> Value {
    let us = latency_ms * 1000.0;
    let latency = json!({"count": 100_000, "mean": us, "p50": us, "p75": us, "p90": us * 1.5, "p99": us * 2.0, "p999": us * 3.0,
        "p9999": us * 4.0, "max": us * 5.0});
    let side = json!({"messages": 100_000, "messages_per_second": rate, "latency_us": latency});
    let second = |t: f64, phase: &str| {
        json!({"t": t, "phase": phase, "published_per_second": rate, "delivered_per_second": rate, "broker_cpu_cores": 0.5,
            "own_cpu_cores": 0.2, "broker_rss": 20_000_000, "retained": 5, "throttled": throttled})
    };
    json!({"schema": 1, "kind": "run", "generator": "vela-bench", "scenario": "iot", "label": null, "started": "2026-01-31T12:00:00Z",
        "command": ["vela-bench"], "settings": {"rate": rate}, "valid": true, "interrupted": false, "faults": [], "publish": side,
        "delivery": side, "broker": {"cpu_seconds_per_million": 25.0, "rss": {"max": 20_000_000},
        "throttled": {"samples": 2, "nonzero": throttled}}, "own": {"cpu_seconds_per_million": 8.0},
        "series": [second(1.0, "warmup"), second(2.0, "measured"), second(3.0, "measured")]})
}

fn write(directory: &Path, name: &str, value: &Value) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, value.to_string()).unwrap();
    path
}

fn comparison(directory: &Path) {
    write(directory, "1-vela.json", &result(20_000.0, 0.8, 0.0));
    write(directory, "2-vela.json", &result(20_000.0, 0.9, 0.0));
    write(directory, "1-peer.json", &result(20_000.0, 9.0, 0.0));
    let run = |variant: &str, repetition: u32, state: &str, reason: &str, file: &str| json!({"variant": variant, "rate": 20_000, "repetition": repetition, "state": state, "reason": reason, "file": file, "notes": []});
    let cell = |variant: &str, sides: Value| json!({"variant": variant, "rate": 20_000, "valid": 2, "saturated": {"runs": sides.as_array().unwrap().len(), "sides": sides}});
    let whole = json!({"scenario": "iot", "complete": false, "planned_runs": 6, "saturation_p99_ms": 250,
        "cells": [cell("vela", json!([])), cell("peer", json!(["broker"]))],
        "runs": [run("vela", 1, "valid", "", "1-vela.json"), run("peer", 1, "valid", "", "1-peer.json"),
            run("vela", 2, "valid", "", "2-vela.json"), run("peer", 2, "invalid", "2 messages <lost>", "gone.json")],
        "manifest": {"began": "2026-01-31", "commit": {"revision": "0123456789abcdef", "dirty": true}, "host": {"cpu": "A <CPU>", "cpus": 2}}});
    write(directory, "results.json", &whole);
}

fn page_of(paths: &[PathBuf]) -> String {
    page::page(&load::read(paths).unwrap())
}

#[test]
fn a_comparison_shows_medians_what_is_left_out_and_who_was_saturated() {
    let directory = tempfile::tempdir().unwrap();
    comparison(directory.path());
    let page = page_of(&[directory.path().to_owned()]);
    assert!(
        page.contains("0.85<small>0.80 to 0.90</small>"),
        "median publish p50 of vela"
    );
    assert!(page.contains("<td>9.00</td>"), "publish p50 of the peer");
    assert!(page.contains(
        "peer at 20\u{202f}000/s, repetition 2</strong>: invalid: 2 messages &lt;lost&gt;"
    ));
    assert!(page.contains("3 valid runs, 1 not counted"));
    assert!(page.contains("4 of 6 planned runs were begun"));
    assert!(page.contains("<td>no</td><td>broker (1 of 2)</td>"));
    assert!(page.contains("0123456789ab, with changes") && page.contains("A &lt;CPU&gt;, 2 CPUs"));
    // Zero samples are not observed, in the table and over time.
    assert!(page.contains("<td>not observed</td>") && page.contains("Not observed in any sample"));
}

#[test]
fn the_page_needs_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    comparison(directory.path());
    let page = page_of(&[directory.path().to_owned()]);
    for outside in [
        "http://", "https://", "src=", "<link", "<script", "@import", "url(",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    // Every plot has a title and a description, and says so by references that exist once.
    assert!(page.matches("<svg viewBox").count() > 6);
    for reference in page.split("aria-labelledby=\"").skip(1) {
        for id in reference.split('"').next().unwrap().split(' ') {
            assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
        }
    }
    for tag in [
        "section", "figure", "svg", "table", "details", "div", "main",
    ] {
        let opened = page.matches(&format!("<{tag}")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn result_files_stand_side_by_side_by_name_or_label() {
    let directory = tempfile::tempdir().unwrap();
    let one = write(directory.path(), "one.json", &result(5_000.0, 1.0, 2.0));
    let mut labelled = result(5_000.0, 2.0, 0.0);
    labelled["label"] = json!("after");
    let two = write(directory.path(), "two.json", &labelled);
    let mut broken = result(5_000.0, 2.0, 0.0);
    broken["valid"] = json!(false);
    broken["faults"] = json!(["1 duplicate"]);
    let three = write(directory.path(), "three.json", &broken);
    let report = load::read(&[one, two, three]).unwrap();
    assert_eq!(report.variants(), ["one", "after"]);
    assert_eq!(
        report.excluded,
        [("three".to_owned(), "1 duplicate".to_owned())]
    );
    let page = page::page(&report);
    // One that did throttle is plotted.
    assert!(page.contains("one: Throttled by the memory limiter over time"));
    // A directory without a comparison stands for its results.
    write(directory.path(), "other.json", &json!({"kind": "publish"}));
    assert_eq!(
        load::read(&[directory.path().to_owned()])
            .unwrap()
            .runs
            .len(),
        2
    );
}

#[test]
fn what_was_not_measured_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut bare = result(5_000.0, 1.0, 0.0);
    bare["delivery"] = Value::Null;
    bare["broker"] = json!({"cpu_seconds_per_million": null, "rss": null, "throttled": null});
    bare["series"] = json!([{"t": 1.0, "phase": "measured", "published_per_second": 5.0, "delivered_per_second": null,
        "broker_cpu_cores": null, "own_cpu_cores": null, "broker_rss": null, "retained": null, "throttled": null}]);
    let page = page_of(&[write(directory.path(), "bare.json", &bare)]);
    for name in ["Broker CPU", "Delivery", "Throttled", "RSS"] {
        assert!(!page.contains(name), "{name}");
    }
    assert!(page.contains("Publish p99"));
}

#[test]
fn what_is_no_result_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "x.json", &json!({"kind": "publish"}));
    let refused = load::read(std::slice::from_ref(&path))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("x.json") && refused.contains("publish"),
        "{refused}"
    );
    let mut newer = result(1.0, 1.0, 0.0);
    newer["schema"] = json!(2);
    let path = write(directory.path(), "y.json", &newer);
    assert!(
        load::read(&[path])
            .unwrap_err()
            .to_string()
            .contains("schema 2")
    );
    let empty = tempfile::tempdir().unwrap();
    assert!(load::read(&[empty.path().to_owned()]).is_err());
}
