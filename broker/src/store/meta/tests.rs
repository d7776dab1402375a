#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn redb(dir: &tempfile::TempDir) -> RedbMeta {
    RedbMeta::open(&dir.path().join("meta.redb")).unwrap()
}

fn compare_and_set(meta: &mut dyn Meta) {
    let one = meta.put("a/x", "1".into(), Some(0)).unwrap();
    let again = meta.put("a/x", "2".into(), Some(0));
    assert_eq!(
        again,
        Err(MetaError::Conflict {
            key: "a/x".into(),
            expected: 0,
            found: one
        })
    );
    let two = meta.put("a/x", "2".into(), Some(one)).unwrap();
    assert!(two > one);
    assert!(matches!(
        meta.put("a/x", "3".into(), Some(one)),
        Err(MetaError::Conflict { .. })
    ));
    assert_eq!(
        meta.get("a/x").unwrap(),
        Some(Versioned {
            value: "2".into(),
            version: two
        })
    );
    assert!(matches!(
        meta.delete("a/x", Some(one)),
        Err(MetaError::Conflict { .. })
    ));
    meta.delete("a/x", Some(two)).unwrap();
    assert_eq!(
        meta.delete("a/x", None),
        Err(MetaError::Absent("a/x".into()))
    );
    assert_eq!(meta.get("a/x").unwrap(), None);
    assert!(
        meta.put("a/x", "4".into(), Some(0)).unwrap() > two,
        "an old version must not come back"
    );
    for key in ["a/y", "a", "b", "a/\u{10ffff}", "a0"] {
        meta.put(key, Bytes::new(), None).unwrap();
    }
    let keys: Vec<_> = meta
        .list("a/")
        .unwrap()
        .into_iter()
        .map(|(k, _)| k)
        .collect();
    assert_eq!(keys, ["a/x", "a/y", "a/\u{10ffff}"]);
    assert_eq!(meta.list("").unwrap().len(), 6);
    let long = "k".repeat(KEY_LEN_MAX + 1);
    assert!(matches!(
        meta.put(&long, Bytes::new(), None),
        Err(MetaError::TooLarge { .. })
    ));
    let large = Bytes::from(vec![0; VALUE_LEN_MAX + 1]);
    assert!(matches!(
        meta.put("k", large, None),
        Err(MetaError::TooLarge { .. })
    ));
}

#[test]
fn both_stores_compare_and_set() {
    compare_and_set(&mut MemoryMeta::default());
    compare_and_set(&mut redb(&tempfile::tempdir().unwrap()));
}

#[test]
fn values_versions_and_epochs_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut meta = redb(&dir);
    let version = meta.put("k", "v".into(), None).unwrap();
    assert_eq!((meta.new_epoch(), meta.new_epoch()), (Ok(1), Ok(2)));
    drop(meta);
    let mut meta = redb(&dir);
    assert_eq!(
        meta.get("k").unwrap().unwrap(),
        Versioned {
            value: "v".into(),
            version
        }
    );
    assert_eq!(meta.new_epoch(), Ok(3));
    assert!(meta.put("k", "w".into(), Some(version)).unwrap() > version);
}

#[test]
fn a_file_that_is_no_store_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("meta.redb");
    std::fs::write(&path, vec![7u8; 100_000]).unwrap();
    let text = RedbMeta::open(&path).unwrap_err().to_string();
    assert!(
        text.contains("meta.redb") && text.contains("backup"),
        "{text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn both_stores_agree(steps in prop::collection::vec((0u8..3, 0u8..4, prop::option::of(0u64..12)), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut a, mut b) = (MemoryMeta::default(), redb(&dir));
        for (what, key, expected) in steps {
            let key = format!("k{key}");
            match what {
                0 | 1 => prop_assert_eq!(a.put(&key, key.clone().into(), expected), b.put(&key, key.clone().into(), expected)),
                _ => prop_assert_eq!(a.delete(&key, expected), b.delete(&key, expected)),
            }
        }
        prop_assert_eq!(a.list("").unwrap(), b.list("").unwrap());
    }
}

/// A store whose every call waits for a permit.
struct Slow {
    inner: MemoryMeta,
    permits: crossbeam_channel::Receiver<()>,
}

impl Meta for Slow {
    fn get(&self, key: &str) -> Result<Option<Versioned>, MetaError> {
        self.permits.recv().unwrap();
        self.inner.get(key)
    }
    fn list(&self, prefix: &str) -> Result<Vec<(String, Versioned)>, MetaError> {
        self.inner.list(prefix)
    }
    fn put(&mut self, key: &str, value: Bytes, expected: Option<u64>) -> Result<u64, MetaError> {
        self.inner.put(key, value, expected)
    }
    fn delete(&mut self, key: &str, expected: Option<u64>) -> Result<(), MetaError> {
        self.inner.delete(key, expected)
    }
    fn new_epoch(&mut self) -> Result<u64, MetaError> {
        self.inner.new_epoch()
    }
}

#[test]
fn the_service_bounds_its_queue_answers_in_order_and_wakes() {
    let (permit, permits) = crossbeam_channel::unbounded();
    let service = MetaService::spawn(
        Box::new(Slow {
            inner: MemoryMeta::default(),
            permits,
        }),
        2,
    )
    .unwrap();
    let (woken, wakes) = crossbeam_channel::unbounded();
    let client = service.client(Arc::new(move || {
        let _ = woken.send(());
    }));
    client
        .request(1, MetaRequest::Get { key: "a".into() })
        .unwrap();
    // The first is taken by the thread, two more wait, the next is refused.
    let mut accepted = 1;
    let mut refused = false;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while std::time::Instant::now() < deadline {
        match client.request(2, MetaRequest::NewEpoch) {
            Ok(()) => accepted += 1,
            Err(error) => {
                assert_eq!(error, MetaError::Backpressure);
                refused = true;
                if accepted == 3 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert_eq!((accepted, refused), (3, true));
    permit.send(()).unwrap();
    let mut replies = Vec::new();
    while replies.len() < 3 {
        wakes.recv_timeout(Duration::from_secs(60)).unwrap();
        client.poll(&mut replies);
    }
    assert_eq!(replies[0], (1, Ok(MetaReply::Value(None))));
    assert_eq!(
        replies[1..],
        [(2, Ok(MetaReply::Epoch(1))), (2, Ok(MetaReply::Epoch(2)))]
    );
    drop(service);
    assert_eq!(
        client.request(3, MetaRequest::NewEpoch),
        Err(MetaError::Closed)
    );
}
