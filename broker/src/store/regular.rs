//! Regular files only: opening a FIFO waits for somebody at its other end, a device may never end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Fails if something else than a regular file, or a link to one, has this name. Nothing at all is fine.
///
/// # Errors
/// [`io::ErrorKind::Other`] with a text that says what is there and what to do; it does not name the path. Or why the system does not tell.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let kind = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let found = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::other(format!(
        "{found} is in the place of this file: move it away, and put the file back from a backup of the data directory (a file LOCK is made anew)"
    )))
}

/// Opens a regular file for reading.
///
/// # Errors
/// As [`check`], [`io::ErrorKind::NotFound`] if there is none, or why it cannot be opened.
pub(super) fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// The whole of a regular file.
///
/// # Errors
/// As [`open`], or why it cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    fs::read(path)
}
