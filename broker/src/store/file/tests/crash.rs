//! `kill -9` of a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// What a crashing child writes into record `r` of chunk `seq`.
fn crash_body(seq: u64, r: u64) -> Vec<u8> {
    let len = (seq * 7919 + r * 104_729) % 9000;
    (0..len).map(|i| (seq + r + i) as u8).collect()
}

/// Chunks that a child keeps when it drops segments.
const KEPT: u64 = 20;

/// The child of [`kill`]: writes for ever, drops old segments if it is told to, and says what is acknowledged.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn crash_child() {
    let Some(data) = std::env::var_os("VELA_TEST_CRASH_DIR") else {
        return;
    };
    let epoch = std::env::var("VELA_TEST_CRASH_EPOCH")
        .unwrap()
        .parse()
        .unwrap();
    let dropping = std::env::var_os("VELA_TEST_CRASH_DROP").is_some();
    let options = FileOptions {
        spares_bytes_max: 0,
        remove_step: 16 << 10,
        remove_pause: Duration::ZERO,
        ..small()
    };
    let (mut wal, _) = open(Path::new(&data), epoch, options);
    let (mut said, until) = (0, Instant::now() + 2 * LIMIT);
    while Instant::now() < until {
        while wal.next_seq() - wal.acked() < 6 {
            let seq = wal.next_seq();
            let bodies: Vec<_> = (0..seq % 4).map(|r| crash_body(seq, r)).collect();
            let chunk = chunk(&wal, &bodies);
            wal.submit(chunk).unwrap();
        }
        wal.poll(&mut Vec::new());
        if wal.acked() > said {
            said = wal.acked();
            if dropping {
                wal.delete(said.saturating_sub(KEPT));
            }
            println!("acked {said}");
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_it_acknowledged() {
    kill(false);
}

#[test]
fn neither_does_one_that_is_killed_while_segments_are_removed() {
    kill(true);
}

fn kill(dropping: bool) {
    let data = tempfile::tempdir().unwrap();
    let mut epoch = 0;
    // Chunks that a crash cut: they were not acknowledged then.
    let mut cut = std::collections::HashSet::new();
    for round in 0..4u64 {
        epoch += 1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::file::tests::crash::crash_child",
                "--ignored",
                "--nocapture",
            ])
            .env("VELA_TEST_CRASH_DIR", data.path())
            .env("VELA_TEST_CRASH_EPOCH", epoch.to_string())
            .envs(dropping.then_some(("VELA_TEST_CRASH_DROP", "1")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut acked = 0;
        let (mut seen, limit) = (0, 40 + round * 37);
        for line in lines {
            if let Some(upto) = line.strip_prefix("acked ") {
                acked = upto.parse().unwrap();
                seen += 1;
                if seen == limit {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        assert!(seen >= limit, "the child ended before it was killed");
        epoch += 1;
        let (got, _, wal) = recover(data.path(), epoch).unwrap();
        assert!(
            got.last().unwrap().0 >= acked,
            "{} acknowledged, {:?} found",
            acked,
            got.last().map(|c| c.0)
        );
        let (first, last) = (got[0].0, got.last().unwrap().0);
        assert!(got.iter().map(|c| c.0).eq(first..=last));
        assert!(first == 1 || dropping && first + KEPT <= last, "{first}");
        for (seq, bodies) in &got {
            if bodies.len() as u64 != seq % 4 && *seq > acked {
                cut.insert(*seq);
            }
            let whole = bodies.len() as u64 == seq % 4 || cut.contains(seq);
            assert!(
                whole
                    && bodies
                        .iter()
                        .zip(0..)
                        .all(|(b, r)| *b == crash_body(*seq, r)),
                "chunk {seq}"
            );
        }
        drop(wal);
    }
}
