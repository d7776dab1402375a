//! The data directory: who uses it, and what it was made for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::file::write_atomically;
use super::regular;

/// Version of the layout of the data directory that this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;
const LOCK: &str = "LOCK";
const FORMAT: &str = "format";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process uses it.
    #[error(
        "the data directory {} is in use by process {pid}: stop that process or give this one another directory",
        dir.display()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The other process, as far as it is known.
        pid: String,
    },
    /// It was made by another version.
    #[error(
        "the data directory {} has format version {found}, this build reads version {FORMAT_VERSION}: \
         use the build that made it, or another directory",
        dir.display()
    )]
    Version {
        /// The directory.
        dir: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It was made for another number of shards.
    #[error(
        "the data directory {} was made with {found} shards, {wanted} are asked for: the number of shards is fixed when \
         a data directory is made. Leave the setting away or set it to {found}",
        dir.display()
    )]
    Shards {
        /// The directory.
        dir: PathBuf,
        /// Its number of shards.
        found: u32,
        /// The number asked for.
        wanted: u32,
    },
    /// The file `format` is missing or cannot be understood.
    #[error("{} is damaged or missing ({what}): restore a backup of the data directory, or use an empty one", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is something else.
    #[error(
        "the data directory {} cannot be used: it is not a directory. Name another one, or remove what is there",
        dir.display()
    )]
    NotADirectory {
        /// What was named.
        dir: PathBuf,
    },
    /// The file system refused.
    #[error(
        "the data directory cannot be used: {}: {error}. The broker needs to read and write it and all that is in it",
        path.display()
    )]
    Io {
        /// The directory, or the file in it.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

/// A data directory in use by this process alone, until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    shards: u32,
    // The lock lives as long as the open file.
    _lock: File,
}

impl DataDir {
    /// Locks the directory, making it if need be. A new one gets `shards`, or `shards_default` when none are asked for
    /// (at least 1); an existing one keeps its own and must match `shards` if given.
    pub fn open(
        path: &Path,
        shards: Option<u32>,
        shards_default: u32,
    ) -> Result<Self, DataDirError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error: io::Error| DataDirError::Io { path, error }
        };
        if path.exists() && !path.is_dir() {
            return Err(DataDirError::NotADirectory {
                dir: path.to_path_buf(),
            });
        }
        fs::create_dir_all(path).map_err(io(path))?;
        let lock = lock(path)?;
        let file = path.join(FORMAT);
        regular::check(&file).map_err(io(&file))?;
        let shards = match fs::read_to_string(&file) {
            Ok(text) => check(path, &file, &text, shards)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if path.join("lane-0").exists() {
                    let what = "the directory already holds logs".into();
                    return Err(DataDirError::Format { file, what });
                }
                let shards = shards.unwrap_or(shards_default).max(1);
                let text = format!("version={FORMAT_VERSION}\nshards={shards}\n");
                write_atomically(path, FORMAT, &[text.as_bytes()]).map_err(io(&file))?;
                shards
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(DataDirError::Format {
                    file,
                    what: "it is not text".into(),
                });
            }
            Err(e) => return Err(io(&file)(e)),
        };
        Ok(Self {
            path: path.to_path_buf(),
            shards,
            _lock: lock,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many shards, and so lanes, it has.
    pub fn shards(&self) -> u32 {
        self.shards
    }
}

fn lock(dir: &Path) -> Result<File, DataDirError> {
    let path = dir.join(LOCK);
    let io = |error: io::Error| DataDirError::Io {
        path: path.clone(),
        error,
    };
    regular::check(&path).map_err(io)?;
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // Only for the message.
            let _ = file.read_to_string(&mut pid);
            let pid = pid
                .trim()
                .parse::<u32>()
                .map_or("(unknown)".into(), |p| p.to_string());
            return Err(DataDirError::InUse {
                dir: dir.to_path_buf(),
                pid,
            });
        }
        Err(e) => return Err(io(e.into())),
    }
    file.set_len(0).map_err(io)?;
    file.rewind().map_err(io)?;
    writeln!(file, "{}", std::process::id()).map_err(io)?;
    Ok(file)
}

/// Reads the format file and compares it with what is asked for.
fn check(dir: &Path, file: &Path, text: &str, wanted: Option<u32>) -> Result<u32, DataDirError> {
    let value = |name: &str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        line.and_then(|v| v.trim().parse::<u32>().ok())
            .ok_or_else(|| DataDirError::Format {
                file: file.to_path_buf(),
                what: format!("it has no number for {name:?}"),
            })
    };
    let found = value("version")?;
    if found != FORMAT_VERSION {
        return Err(DataDirError::Version {
            dir: dir.to_path_buf(),
            found,
        });
    }
    let found = value("shards")?;
    if found == 0 {
        return Err(DataDirError::Format {
            file: file.to_path_buf(),
            what: "it states no shards".into(),
        });
    }
    match wanted {
        Some(wanted) if wanted != found => Err(DataDirError::Shards {
            dir: dir.to_path_buf(),
            found,
            wanted,
        }),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )]
    use super::*;

    #[test]
    fn the_second_user_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path(), None, 4).unwrap();
        // A second open file has its own lock, as in another process.
        let error = DataDir::open(dir.path(), None, 4).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        assert!(error.contains(dir.path().to_str().unwrap()), "{error}");
        drop(first);
        DataDir::open(dir.path(), None, 4).unwrap();
    }

    #[test]
    fn the_number_of_shards_is_fixed_at_creation() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            DataDir::open(&dir.path().join("new"), Some(3), 9)
                .unwrap()
                .shards(),
            3
        );
        let dir = dir.path().join("new");
        assert_eq!(DataDir::open(&dir, None, 9).unwrap().shards(), 3);
        let error = DataDir::open(&dir, Some(5), 9).unwrap_err().to_string();
        assert!(
            error.contains("made with 3 shards") && error.contains("5 are asked"),
            "{error}"
        );
    }

    #[test]
    fn other_formats_and_damage_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), Some(2), 1).unwrap());
        let file = dir.path().join(FORMAT);
        fs::write(&file, "version=7\nshards=2\n").unwrap();
        assert!(matches!(
            DataDir::open(dir.path(), None, 1),
            Err(DataDirError::Version { found: 7, .. })
        ));
        for damaged in [
            &b"version=1\n"[..],
            b"\xff\xfe",
            b"",
            b"version=1\nshards=0\n",
        ] {
            fs::write(&file, damaged).unwrap();
            assert!(matches!(
                DataDir::open(dir.path(), None, 1),
                Err(DataDirError::Format { .. })
            ));
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(dir.path().join("lane-0")).unwrap();
        assert!(matches!(
            DataDir::open(dir.path(), None, 1),
            Err(DataDirError::Format { .. })
        ));
    }
}
