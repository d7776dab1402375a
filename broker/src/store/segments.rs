//! Immutable objects: sealed parts of a log, put once and read in ranges.
//!
//! The third of the store's traits. The embedded log keeps its segments itself (`file/`), because it recycles their space; a distributed engine keeps
//! them as objects of a store whose PUT creates only. [`DirSegments`] is that contract on a directory, [`MemorySegments`] in memory.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::wal::WalError;

/// Longest name of an object, bytes.
pub const NAME_MAX: usize = 200;

/// A store of immutable objects. An object that is there is whole: a failed or interrupted put leaves none.
pub trait Segments: Send {
    /// Puts a new object; durable when this returns.
    ///
    /// # Errors
    /// [`WalError::Exists`] if the name is taken, whatever the content. [`WalError::TooLarge`] for a name above [`NAME_MAX`] or with other characters
    /// than letters, digits, `-`, `_` and `.`. [`WalError::Full`], [`WalError::Unavailable`] (then the outcome is unknown).
    fn put_new(&mut self, name: &str, data: &[u8]) -> Result<(), WalError>;

    /// Bytes of an object; a range that reaches beyond its end is cut there.
    ///
    /// # Errors
    /// [`WalError::Absent`], [`WalError::Unavailable`].
    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes, WalError>;

    /// Names and sizes of the objects whose names begin with `prefix`, in the order of the names.
    ///
    /// # Errors
    /// [`WalError::Unavailable`].
    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, WalError>;

    /// Deletes an object; one that is not there is deleted already.
    ///
    /// # Errors
    /// [`WalError::Unavailable`].
    fn delete(&mut self, name: &str) -> Result<(), WalError>;
}

fn check_name(name: &str) -> Result<(), WalError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(plain)
    {
        return Err(WalError::TooLarge {
            bytes: name.len(),
            max: NAME_MAX,
        });
    }
    Ok(())
}

/// [`Segments`] in memory.
#[derive(Debug, Default, Clone)]
pub struct MemorySegments {
    objects: BTreeMap<String, Bytes>,
}

impl Segments for MemorySegments {
    fn put_new(&mut self, name: &str, data: &[u8]) -> Result<(), WalError> {
        check_name(name)?;
        if self.objects.contains_key(name) {
            return Err(WalError::Exists);
        }
        self.objects
            .insert(name.to_owned(), Bytes::copy_from_slice(data));
        Ok(())
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes, WalError> {
        let object = self.objects.get(name).ok_or(WalError::Absent)?;
        let end = usize::try_from(range.end)
            .unwrap_or(usize::MAX)
            .min(object.len());
        let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(end);
        Ok(object.slice(start..end))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, WalError> {
        let found = self
            .objects
            .iter()
            .filter(|(name, _)| name.starts_with(prefix));
        Ok(found
            .map(|(name, data)| (name.clone(), data.len() as u64))
            .collect())
    }

    fn delete(&mut self, name: &str) -> Result<(), WalError> {
        self.objects.remove(name);
        Ok(())
    }
}

/// [`Segments`] as files of a directory.
#[derive(Debug)]
pub struct DirSegments {
    dir: PathBuf,
}

/// What an interrupted put may leave behind; never listed.
const UNFINISHED: &str = ".unfinished-";

impl DirSegments {
    /// Opens a directory, which is made if it is missing, and removes what interrupted puts left.
    ///
    /// # Errors
    /// [`WalError::Unavailable`] if the directory cannot be used.
    pub fn open(dir: &Path) -> Result<Self, WalError> {
        fs::create_dir_all(dir).map_err(failed)?;
        for entry in fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    fn sync_dir(&self) -> Result<(), WalError> {
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed)
    }
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` hands it over.
fn failed(error: std::io::Error) -> WalError {
    match error.kind() {
        ErrorKind::NotFound => WalError::Absent,
        ErrorKind::AlreadyExists => WalError::Exists,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => WalError::Full(error.to_string()),
        _ => WalError::Unavailable(error.to_string()),
    }
}

impl Segments for DirSegments {
    fn put_new(&mut self, name: &str, data: &[u8]) -> Result<(), WalError> {
        check_name(name)?;
        let (unfinished, whole) = (
            self.dir.join(format!("{UNFINISHED}{name}")),
            self.dir.join(name),
        );
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&unfinished)
            .map_err(failed)?;
        let written = file.write_all(data).and_then(|()| file.sync_all());
        // A link creates only, as rename would not: of two writers one fails.
        let put = written
            .and_then(|()| fs::hard_link(&unfinished, &whole))
            .map_err(failed);
        fs::remove_file(&unfinished).map_err(failed)?;
        put?;
        self.sync_dir()
    }

    fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes, WalError> {
        check_name(name).map_err(|_| WalError::Absent)?;
        let file = File::open(self.dir.join(name)).map_err(failed)?;
        let end = range.end.min(file.metadata().map_err(failed)?.len());
        let len = usize::try_from(end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let mut data = vec![0; len];
        file.read_exact_at(&mut data, range.start).map_err(failed)?;
        Ok(data.into())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, WalError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(prefix) && check_name(&name).is_ok() {
                found.push((name, entry.metadata().map_err(failed)?.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn delete(&mut self, name: &str) -> Result<(), WalError> {
        check_name(name)?;
        match fs::remove_file(self.dir.join(name)) {
            Ok(()) => self.sync_dir(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn contract(segments: &mut dyn Segments) {
        segments.put_new("a-1", b"hello world").unwrap();
        segments.put_new("a-2", b"").unwrap();
        segments.put_new("b-1", b"x").unwrap();
        assert_eq!(segments.put_new("a-1", b"other"), Err(WalError::Exists));
        assert_eq!(segments.get("a-1", 0..u64::MAX).unwrap(), "hello world");
        assert_eq!(segments.get("a-1", 6..9).unwrap(), "wor");
        assert_eq!(segments.get("a-1", 9..100).unwrap(), "ld");
        assert_eq!(segments.get("a-1", 50..100).unwrap(), "");
        assert_eq!(segments.get("c", 0..1), Err(WalError::Absent));
        let listed = segments.list("a-").unwrap();
        assert_eq!(listed, [("a-1".to_owned(), 11), ("a-2".to_owned(), 0)]);
        segments.delete("a-1").unwrap();
        segments.delete("a-1").unwrap();
        assert_eq!(segments.get("a-1", 0..1), Err(WalError::Absent));
        segments.put_new("a-1", b"again").unwrap();
        for name in [
            "",
            "../up",
            ".hidden",
            "a/b",
            "a\0b",
            &"n".repeat(NAME_MAX + 1),
        ] {
            assert!(segments.put_new(name, b"").is_err(), "{name:?}");
            assert!(segments.get(name, 0..1).is_err(), "{name:?}");
        }
    }

    #[test]
    fn memory_keeps_the_contract() {
        contract(&mut MemorySegments::default());
    }

    #[test]
    fn a_directory_keeps_the_contract_and_its_objects() {
        let dir = tempfile::tempdir().unwrap();
        contract(&mut DirSegments::open(dir.path()).unwrap());
        fs::write(dir.path().join(".unfinished-a-9"), b"half").unwrap();
        let again = DirSegments::open(dir.path()).unwrap();
        assert_eq!(again.list("").unwrap().len(), 3);
        assert_eq!(again.get("a-1", 0..10).unwrap(), "again");
        assert!(!dir.path().join(".unfinished-a-9").exists());
    }
}
