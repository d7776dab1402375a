//! Metadata: small values under keys, changed by versioned compare-and-set.
//!
//! Tenants, namespaces, policies, partitions, schemas and properties of subscriptions live here. A [`Meta`] may block on
//! disk; executors use it through a [`MetaService`].

use std::collections::BTreeMap;

use bytes::Bytes;

mod redb;
mod service;
#[cfg(test)]
mod tests;

pub use self::redb::RedbMeta;
pub use self::service::{MetaClient, MetaReply, MetaRequest, MetaResult, MetaService};

/// The longest key, in bytes.
pub const KEY_LEN_MAX: usize = 4 << 10;
/// The largest value, in bytes.
pub const VALUE_LEN_MAX: usize = 4 << 20;

/// A value and its version. Versions are unique over all keys and rise with every change: a key that was deleted and
/// made anew never has an old version again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Its version, at least 1.
    pub version: u64,
}

/// Why a metadata operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// The key has another version than expected: somebody was faster. Read again and decide anew.
    #[error("metadata {key:?} has version {found}, not {expected} (0: it does not exist)")]
    Conflict {
        /// The key.
        key: String,
        /// The version asked for; 0: the key must not exist.
        expected: u64,
        /// The version it has; 0: it does not exist.
        found: u64,
    },
    /// There is nothing to delete.
    #[error("metadata {0:?} does not exist")]
    Absent(String),
    /// The key or the value is too large.
    #[error("metadata {key:?} takes {bytes} bytes, more than the {max} allowed")]
    TooLarge {
        /// The key (its beginning).
        key: String,
        /// Its size, or its value's.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Storage failed; whether the change happened is unknown.
    #[error("the metadata store is not available: {0}")]
    Unavailable(String),
    /// Too many requests wait; try again after the next replies.
    #[error("the metadata store has too many requests waiting")]
    Backpressure,
    /// The service has ended.
    #[error("the metadata store is closed")]
    Closed,
}

/// A metadata store. Every change is durable when the call returns.
pub trait Meta: Send {
    /// The value of a key.
    fn get(&self, key: &str) -> Result<Option<Versioned>, MetaError>;

    /// All keys that begin with `prefix`, in byte order, with their values.
    fn list(&self, prefix: &str) -> Result<Vec<(String, Versioned)>, MetaError>;

    /// Sets a key and answers its new version. With `expected` it must have that version, or not exist for `Some(0)`;
    /// otherwise `Conflict`. `None` sets it whatever it was.
    fn put(&mut self, key: &str, value: Bytes, expected: Option<u64>) -> Result<u64, MetaError>;

    /// Deletes a key. With `expected` it must have that version, otherwise `Conflict`. `Absent` when it does not exist.
    fn delete(&mut self, key: &str, expected: Option<u64>) -> Result<(), MetaError>;

    /// A number that was never given before and is above all that were; durable before it is returned. From 1.
    fn new_epoch(&mut self) -> Result<u64, MetaError>;
}

fn check_size(key: &str, value: &[u8]) -> Result<(), MetaError> {
    let short = || key.chars().take(80).collect();
    if key.len() > KEY_LEN_MAX {
        return Err(MetaError::TooLarge {
            key: short(),
            bytes: key.len(),
            max: KEY_LEN_MAX,
        });
    }
    if value.len() > VALUE_LEN_MAX {
        return Err(MetaError::TooLarge {
            key: short(),
            bytes: value.len(),
            max: VALUE_LEN_MAX,
        });
    }
    Ok(())
}

/// The compare half of compare-and-set.
fn check_version(key: &str, found: u64, expected: Option<u64>) -> Result<(), MetaError> {
    match expected {
        Some(expected) if expected != found => Err(MetaError::Conflict {
            key: key.into(),
            expected,
            found,
        }),
        _ => Ok(()),
    }
}

/// Metadata in memory, for tests and the simulator.
#[derive(Debug, Clone, Default)]
pub struct MemoryMeta {
    entries: BTreeMap<String, Versioned>,
    revision: u64,
    epoch: u64,
}

impl MemoryMeta {
    fn version(&self, key: &str) -> u64 {
        self.entries.get(key).map_or(0, |e| e.version)
    }
}

impl Meta for MemoryMeta {
    fn get(&self, key: &str) -> Result<Option<Versioned>, MetaError> {
        Ok(self.entries.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Versioned)>, MetaError> {
        let from = self
            .entries
            .range(prefix.to_owned()..)
            .take_while(|(k, _)| k.starts_with(prefix));
        Ok(from.map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn put(&mut self, key: &str, value: Bytes, expected: Option<u64>) -> Result<u64, MetaError> {
        check_size(key, &value)?;
        check_version(key, self.version(key), expected)?;
        self.revision += 1;
        let version = self.revision;
        self.entries
            .insert(key.into(), Versioned { value, version });
        Ok(version)
    }

    fn delete(&mut self, key: &str, expected: Option<u64>) -> Result<(), MetaError> {
        check_version(key, self.version(key), expected)?;
        self.entries
            .remove(key)
            .map(drop)
            .ok_or_else(|| MetaError::Absent(key.into()))
    }

    fn new_epoch(&mut self) -> Result<u64, MetaError> {
        self.epoch += 1;
        Ok(self.epoch)
    }
}
