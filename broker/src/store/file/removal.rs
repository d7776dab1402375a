//! Files of a lane on their way out.
//!
//! Removing a segment of 64 MiB at once stops a disk whose file system discards for many milliseconds, in which no chunk becomes durable. So
//! files are shortened from their end, a step at a time and with a pause behind each. A file gets a name of its own first: whatever length it is
//! left with, it is never taken for a segment or a spare, and the next start removes it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::Operation;
use super::helpers::Shared;

/// Ending of a file that is being removed.
pub(super) const REMOVING_SUFFIX: &str = ".removing";
/// Files that may wait. For one more the oldest goes at once.
const WAITING_MAX: usize = 1024;

/// The file whose turn it is.
#[derive(Debug)]
struct Begun {
    path: PathBuf,
    file: File,
    len: u64,
}

/// What is to be removed, oldest first.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// Whole files under their old names. All are spares, or segments that the manifest on disk calls dropped.
    waiting: VecDeque<PathBuf>,
    begun: Option<Begun>,
    /// Number of the last name given.
    named: u64,
    /// When the last step ended.
    stepped: Option<Instant>,
}

impl Removals {
    /// Takes a file in.
    pub(super) fn push(&mut self, path: PathBuf) {
        if self.waiting.len() >= WAITING_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            remove(&oldest);
        }
        self.waiting.push_back(path);
    }

    /// Gives a file of `len` bytes back that was not touched yet.
    pub(super) fn take_whole(&mut self, len: u64) -> Option<PathBuf> {
        let whole = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.len() == len);
        let at = self.waiting.iter().rposition(whole)?;
        self.waiting.remove(at)
    }

    /// When the next step is due; `None` if there is nothing to do.
    pub(super) fn due(&self, shared: &Shared) -> Option<Instant> {
        if self.begun.is_none() && self.waiting.is_empty() {
            return None;
        }
        let due = self.stepped.map(|at| at + shared.remove_pause);
        Some(due.unwrap_or_else(Instant::now))
    }

    /// Does one step: frees no more than [`Shared::remove_step`] bytes.
    pub(super) fn step(&mut self, shared: &Shared) {
        if let Err(e) = self.shorten(shared) {
            tracing::warn!(lane = shared.lane, error = %e, "a log segment is removed at once, it could not be shortened");
            if let Some(begun) = self.begun.take() {
                remove(&begun.path);
            }
        }
        self.stepped = Some(Instant::now());
    }

    fn shorten(&mut self, shared: &Shared) -> io::Result<()> {
        let Some(begun) = &mut self.begun else {
            let Some(path) = self.waiting.pop_front() else {
                return Ok(());
            };
            self.named += 1;
            let begun = begin(shared, &path, self.named).inspect_err(|_| remove(&path))?;
            self.begun = Some(begun);
            return Ok(());
        };
        shared.fault(Operation::Remove)?;
        begun.len = begun.len.saturating_sub(shared.remove_step.max(1));
        if begun.len > 0 {
            begun.file.set_len(begun.len)?;
            // What one commit of the file system frees is what is discarded in one go.
            return begun.file.sync_data();
        }
        if let Some(begun) = self.begun.take() {
            remove(&begun.path);
        }
        Ok(())
    }

    /// Removes everything now; `false` if there was nothing.
    pub(super) fn finish(&mut self) -> bool {
        let begun = self.begun.take().map(|b| b.path);
        let any = begun.is_some() || !self.waiting.is_empty();
        begun.iter().for_each(|path| remove(path));
        self.waiting.drain(..).for_each(|path| remove(&path));
        any
    }
}

fn begin(shared: &Shared, path: &Path, number: u64) -> io::Result<Begun> {
    shared.fault(Operation::Remove)?;
    let name = shared.dir.join(format!("{number:08}{REMOVING_SUFFIX}"));
    fs::rename(path, &name)?;
    let open = || {
        let file = OpenOptions::new().write(true).open(&name)?;
        let len = file.metadata()?.len();
        Ok((file, len))
    };
    let (file, len) = open().inspect_err(|_: &io::Error| remove(&name))?;
    Ok(Begun {
        path: name,
        file,
        len,
    })
}

/// Removes a file; one that is left is removed at the next start.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(file = %path.display(), error = %e, "a log segment that is not needed could not be removed");
        }
        _ => {}
    }
}
