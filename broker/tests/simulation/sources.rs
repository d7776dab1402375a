//! The promise that the engine, the codec and the limiter do no IO, read no clock, draw no random number and take no lock, as a test.

use std::path::{Path, PathBuf};

/// What those sources must not name. `tokio` and the like stand for themselves.
const FORBIDDEN: [&str; 24] = [
    "glommio",
    "tokio",
    "async_std",
    "Instant::now",
    "SystemTime::now",
    "time::Instant",
    "chrono",
    "std::fs",
    "File::",
    "std::process",
    "std::env::",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "thread::",
    "Mutex",
    "RwLock",
    "Condvar",
    "rand::",
    "getrandom",
    "RandomState",
    "HashMap::new",
    "rustix",
];

/// Code without line comments, up to the tests at the bottom of the file.
fn code(text: &str) -> String {
    let ends = [
        "#[cfg(test)]\nmod ",
        "#[cfg(test)]\n#[allow",
        "#[cfg(all(test",
    ];
    let end = ends.iter().filter_map(|end| text.find(end)).min();
    let text = text.get(..end.unwrap_or(text.len())).unwrap_or(text);
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// What one file may name all the same, and why.
const ALLOWED: [(&str, &str); 3] = [
    // The list of listeners: locked to register one, and on a change of the limiter's state; never while one is called, never on the
    // way of a message.
    ("limiter/src/notify.rs", "Mutex"),
    // The same lock, or loom's.
    ("limiter/src/sync.rs", "Mutex"),
    // The queue of those who found no room: locked while somebody waits and to begin waiting, never where there is room, never while
    // one is woken.
    ("limiter/src/reservation.rs", "Mutex"),
];

fn offences(path: &Path, text: &str) -> Vec<&'static str> {
    let code = code(text);
    FORBIDDEN
        .into_iter()
        .filter(|word| code.contains(word))
        .filter(|word| {
            !ALLOWED
                .iter()
                .any(|(file, allowed)| path.ends_with(file) && word == allowed)
        })
        .collect()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs")
            && !path.to_string_lossy().contains("test")
        {
            found.push(path);
        }
    }
}

#[test]
fn engine_codec_limiter_and_log_are_pure() {
    let broker = Path::new(env!("CARGO_MANIFEST_DIR"));
    let roots = [
        "src/engine",
        "src/store/log",
        "../codec/src",
        "../limiter/src",
    ];
    let mut bad = Vec::new();
    for root in roots {
        let mut found = Vec::new();
        sources(&broker.join(root), &mut found);
        assert!(!found.is_empty(), "no sources in {root}");
        for path in found {
            let text = std::fs::read_to_string(&path).unwrap();
            bad.extend(
                offences(&path, &text)
                    .into_iter()
                    .map(|word| format!("{}: {word}", path.display())),
            );
        }
    }
    assert!(
        bad.is_empty(),
        "these sources must be pure:\n{}",
        bad.join("\n")
    );
}

#[test]
fn the_scan_finds_what_it_looks_for() {
    assert_eq!(
        offences(Path::new("any.rs"), "let t = std::time::Instant::now();"),
        ["Instant::now", "time::Instant"]
    );
    assert_eq!(
        offences(
            Path::new("any.rs"),
            "fn f() { let m = Mutex::new(1); } // fine"
        ),
        ["Mutex"]
    );
    assert!(
        offences(
            Path::new("any.rs"),
            "// a Mutex would be wrong here\nuse std::net::SocketAddr;"
        )
        .is_empty()
    );
    assert!(
        offences(
            Path::new("any.rs"),
            "fn f() {}\n#[cfg(test)]\nmod tests {\n use std::fs;\n}"
        )
        .is_empty()
    );
}
