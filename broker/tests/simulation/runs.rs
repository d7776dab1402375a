//! The tests that make runs: many seeds, and mistakes planted to see that runs find them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::sim::{Outcome, run};
use crate::harness::Fault;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `VELA_SIM_SEED=N` runs one seed; `VELA_SIM_SEEDS=N` runs N; else a hundred that are always the same, and twenty new ones.
#[test]
fn random_runs_keep_every_promise() {
    let started = Instant::now();
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    let fresh = clock % 1_000_000_000 * 1000;
    let seeds: Vec<u64> = match (number("VELA_SIM_SEED"), number("VELA_SIM_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => {
            let from = number("VELA_SIM_FROM").unwrap_or(0);
            (from..from + count).collect()
        }
        (None, None) => (0..100).chain(fresh..fresh + 20).collect(),
    };
    println!(
        "{} seeds; those from the clock start at {fresh}",
        seeds.len()
    );
    let mut total = Outcome::default();
    let mut failed = Vec::new();
    for seed in &seeds {
        match catch_unwind(AssertUnwindSafe(|| run(*seed, Fault::None))) {
            Ok(outcome) => total.add(&outcome),
            Err(_) => {
                println!("seed {seed} failed: VELA_SIM_SEED={seed} repeats it");
                failed.push(*seed);
                if failed.len() >= 10 {
                    break;
                }
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{:.0} seeds per second; {total:?}",
        seeds.len() as f64 / seconds
    );
    assert!(failed.is_empty(), "seeds {failed:?} failed");
    if seeds.len() >= 100 {
        // Runs that never get anywhere would find nothing.
        let done = [
            total.receipts,
            total.deliveries,
            total.acks,
            total.crashes,
            total.checkpoints,
            total.seeks,
            total.reads,
            total.stats,
        ];
        assert!(done.iter().all(|n| *n > 50), "{total:?}");
        assert!(total.dropped_segments > 0, "{total:?}");
    }
}

/// Runs seeds from 0 until a planted fault was found three times, 200 at most: how many found it, of how many.
fn hunt(fault: Fault) -> (u64, u64, u64) {
    let wanted = if number("VELA_SIM_COUNT").is_some() {
        u64::MAX
    } else {
        3
    };
    let (mut found, mut struck, mut tried) = (0, 0, 0);
    while tried < 200 && found < wanted {
        match catch_unwind(AssertUnwindSafe(|| run(tried, fault))) {
            Ok(outcome) => struck += outcome.struck,
            Err(_) => found += 1,
        }
        tried += 1;
    }
    println!("{fault:?}: found by {found} of {tried} seeds; struck {struck} times unnoticed");
    (found, tried, struck)
}

/// The simulation is only worth its time if it finds mistakes of the kind it is there for.
#[test]
fn planted_faults_are_found() {
    let faults = [
        Fault::ReceiptBeforeSync,
        Fault::DropRelease,
        Fault::DropWritten,
        Fault::DoubleFlow,
        Fault::DropFlow,
        Fault::StaleFlow,
        Fault::LeakRoot,
        Fault::ReorderMail,
        Fault::EarlyDelayed,
    ];
    let missed: Vec<Fault> = faults
        .into_iter()
        .filter(|fault| hunt(*fault).0 == 0)
        .collect();
    assert!(missed.is_empty(), "no seed of 200 found {missed:?}");
}
