//! Metadata in one `redb` file.

use std::path::Path;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::super::regular;
use super::{Meta, MetaError, Versioned, check_size, check_version};

const ENTRIES: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("entries");
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
const REVISION: &str = "revision";
const EPOCH: &str = "epoch";

/// The embedded metadata store: `DATA/meta.redb`. Every change is one synced transaction.
#[derive(Debug)]
pub struct RedbMeta {
    database: Database,
}

fn failed(error: impl Into<redb::Error>) -> MetaError {
    MetaError::Unavailable(error.into().to_string())
}

impl RedbMeta {
    /// Opens or makes the file. `Unavailable`, naming the file, when it is damaged or used by another process.
    pub fn open(path: &Path) -> Result<Self, MetaError> {
        regular::check(path)
            .map_err(|e| MetaError::Unavailable(format!("{}: {e}", path.display())))?;
        let open = || {
            let database = Database::create(path).map_err(failed)?;
            let transaction = database.begin_write().map_err(failed)?;
            transaction.open_table(ENTRIES).map_err(failed)?;
            transaction.open_table(COUNTERS).map_err(failed)?;
            transaction.commit().map_err(failed)?;
            Ok(Self { database })
        };
        open().map_err(|e| match e {
            MetaError::Unavailable(what) => MetaError::Unavailable(format!(
                "{}: {what}. If the file is damaged, restore a backup of the data directory",
                path.display()
            )),
            other => other,
        })
    }

    /// Runs one transaction; nothing is changed when `change` fails.
    fn write<R>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<R, MetaError>,
    ) -> Result<R, MetaError> {
        let transaction = self.database.begin_write().map_err(failed)?;
        match change(&transaction) {
            Ok(result) => transaction.commit().map_err(failed).map(|()| result),
            Err(error) => {
                transaction.abort().map_err(failed)?;
                Err(error)
            }
        }
    }
}

/// Counts up and answers the new value.
fn next(transaction: &WriteTransaction, counter: &str) -> Result<u64, MetaError> {
    let mut counters = transaction.open_table(COUNTERS).map_err(failed)?;
    let value = counters
        .get(counter)
        .map_err(failed)?
        .map_or(0, |v| v.value())
        + 1;
    counters.insert(counter, value).map_err(failed)?;
    Ok(value)
}

fn versioned((version, value): (u64, &[u8])) -> Versioned {
    Versioned {
        value: Bytes::copy_from_slice(value),
        version,
    }
}

impl Meta for RedbMeta {
    fn get(&self, key: &str) -> Result<Option<Versioned>, MetaError> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let entries = transaction.open_table(ENTRIES).map_err(failed)?;
        Ok(entries
            .get(key)
            .map_err(failed)?
            .map(|e| versioned(e.value())))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Versioned)>, MetaError> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let entries = transaction.open_table(ENTRIES).map_err(failed)?;
        let mut found = Vec::new();
        for entry in entries.range(prefix..).map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push((key.value().to_owned(), versioned(value.value())));
        }
        Ok(found)
    }

    fn put(&mut self, key: &str, value: Bytes, expected: Option<u64>) -> Result<u64, MetaError> {
        check_size(key, &value)?;
        self.write(|transaction| {
            let mut entries = transaction.open_table(ENTRIES).map_err(failed)?;
            let found = entries.get(key).map_err(failed)?.map_or(0, |e| e.value().0);
            check_version(key, found, expected)?;
            let version = next(transaction, REVISION)?;
            entries.insert(key, (version, &value[..])).map_err(failed)?;
            Ok(version)
        })
    }

    fn delete(&mut self, key: &str, expected: Option<u64>) -> Result<(), MetaError> {
        self.write(|transaction| {
            let mut entries = transaction.open_table(ENTRIES).map_err(failed)?;
            let found = entries.get(key).map_err(failed)?.map_or(0, |e| e.value().0);
            check_version(key, found, expected)?;
            match entries.remove(key).map_err(failed)? {
                Some(_) => Ok(()),
                None => Err(MetaError::Absent(key.into())),
            }
        })
    }

    fn new_epoch(&mut self) -> Result<u64, MetaError> {
        self.write(|transaction| next(transaction, EPOCH))
    }
}
