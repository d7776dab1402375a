//! The housekeeper of a lane: everything about its files but reading and writing chunks.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::super::wal::{Checkpoint, Space, WalError};
use super::helpers::{Done, Shared, is_full, wal_error};
use super::manifest::{Hole, Manifest, Seal, store_checkpoint};
use super::recover::{reserve_path, spare_path};
use super::segment::{SegmentHeader, put_in_service, segment_path, zeroed};
use super::{Operation, SyncMode};

/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Room set aside for checkpoints and the manifest on a full disk, in bytes.
const RESERVE: u64 = 8 << 20;
/// Work of the housekeeper.
#[derive(Debug)]
pub(super) enum Chore {
    Open {
        id: u64,
        first_seq: u64,
    },
    Drop(Hole),
    Checkpoint {
        token: u64,
        checkpoint: Checkpoint,
    },
    Seal(Seal),
    /// A segment is full: sync it in the background.
    Sync,
    /// Try what failed for lack of room again now.
    Retry,
    /// A write failed for lack of room: say so again after a while.
    RetryLater,
}

/// Everything about a lane's files but reading and writing chunks.
pub(super) struct Housekeeper<'a> {
    shared: &'a Shared,
    manifest: Manifest,
    spares: Vec<PathBuf>,
    next_spare: u64,
    next_checkpoint: u64,
    space: Space,
    /// A segment that could not be opened yet.
    waiting: Option<(u64, u64)>,
    retry_at: Option<Instant>,
    /// Dropped segments that the manifest on disk does not know yet.
    to_drop: Vec<Hole>,
}

impl<'a> Housekeeper<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        manifest: Manifest,
        spares: Vec<PathBuf>,
        next_checkpoint: u64,
    ) -> Self {
        Self {
            shared,
            manifest,
            spares,
            next_spare: 0,
            next_checkpoint,
            space: Space::Ok,
            waiting: None,
            retry_at: None,
            to_drop: Vec::new(),
        }
    }

    /// Works until the front is gone.
    pub(super) fn run(mut self, chores: &Receiver<Chore>) {
        self.prepare();
        loop {
            let pause = self
                .retry_at
                .map_or(RETRY, |at| at.saturating_duration_since(Instant::now()));
            match chores.recv_timeout(pause) {
                Ok(chore) => self.work(chore),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.retry_at.is_some_and(|at| at <= Instant::now()) {
                self.retry_at = None;
                self.shared.report(Done::Retry);
                self.drop_segments();
                self.open_waiting();
            }
            if chores.is_empty() {
                self.prepare();
            }
        }
    }

    fn work(&mut self, chore: Chore) {
        match chore {
            Chore::Open { id, first_seq } => {
                self.waiting = Some((id, first_seq));
                self.open_waiting();
            }
            Chore::Drop(run) => {
                self.manifest.drop_run(run);
                self.to_drop.push(run);
                self.drop_segments();
            }
            Chore::Sync => self.shared.sync_dirty(),
            Chore::Checkpoint { token, checkpoint } => {
                let number = self.next_checkpoint;
                let write = || {
                    self.shared.fault(Operation::Checkpoint)?;
                    store_checkpoint(&self.shared.dir, self.shared.lane, number, &checkpoint)
                };
                let result = self.with_reserve(write);
                let result =
                    result.map_err(|e| wal_error("writing a checkpoint in", &self.shared.dir, &e));
                self.next_checkpoint += 1;
                self.shared.report(Done::Checkpoint { token, result });
            }
            Chore::Seal(seal) => {
                self.shared.sync_dirty();
                self.manifest.seal(seal);
                let result = self.store_manifest();
                let result =
                    result.map_err(|e| wal_error("sealing the lane in", &self.shared.dir, &e));
                self.shared.report(Done::Sealed { result });
            }
            Chore::Retry => {
                self.drop_segments();
                self.open_waiting();
            }
            Chore::RetryLater => self.retry_at = Some(Instant::now() + RETRY),
        }
    }

    /// Runs `write`, and once more without the reserve when there is no room. What frees segments, checkpoints and the
    /// manifest, must not itself need room that only freed segments give.
    fn with_reserve(&self, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(e) if is_full(&e) && fs::remove_file(reserve_path(&self.shared.dir)).is_ok() => {
                write()
            }
            other => other,
        }
    }

    fn store_manifest(&self) -> io::Result<()> {
        self.with_reserve(|| {
            self.shared.fault(Operation::Manifest)?;
            self.manifest.store(&self.shared.dir)
        })
    }

    /// Sets the reserve aside, if there is room.
    fn make_reserve(&self) {
        let path = reserve_path(&self.shared.dir);
        if path.exists() || self.shared.fault(Operation::NewSegment).is_err() {
            return;
        }
        let len = RESERVE.min(self.shared.segment_len);
        let unfinished = path.with_extension("tmp");
        let made = zeroed(&unfinished, len, &self.shared.stop)
            .and_then(|()| fs::rename(&unfinished, &path));
        if made.is_err() {
            // Gives the room back; without a reserve all goes on as long as there is room.
            let _ = fs::remove_file(&unfinished);
        }
    }

    /// Makes one spare ready ahead of need.
    fn prepare(&mut self) {
        if self.waiting.is_none() && !self.shared.stopping() {
            self.make_reserve();
        }
        if !self.spares.is_empty() || self.waiting.is_some() || self.shared.stopping() {
            return;
        }
        match self.make_spare() {
            Ok(path) => {
                self.spares.push(path);
                self.announce(Space::Ok);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                if self.space == Space::Ok {
                    tracing::warn!(lane = self.shared.lane, error = %e, "no room for the next log segment");
                    self.announce(Space::Low);
                }
                self.retry_at.get_or_insert(Instant::now() + RETRY);
            }
        }
    }

    fn announce(&mut self, space: Space) {
        if self.space != space {
            self.space = space;
            self.shared.report(Done::Space(space));
        }
    }

    fn make_spare(&mut self) -> io::Result<PathBuf> {
        self.shared.fault(Operation::NewSegment)?;
        let path = loop {
            self.next_spare += 1;
            let path = spare_path(&self.shared.dir, self.next_spare);
            if !path.exists() {
                break path;
            }
        };
        let unfinished = path.with_extension("zeroing");
        let made = zeroed(&unfinished, self.shared.segment_len, &self.shared.stop);
        made.and_then(|()| fs::rename(&unfinished, &path))
            .inspect_err(|_| {
                // Gives the room back; a leftover is removed at the next start.
                let _ = fs::remove_file(&unfinished);
            })?;
        Ok(path)
    }

    fn open_waiting(&mut self) {
        let Some((id, first_seq)) = self.waiting else {
            return;
        };
        let dir = &self.shared.dir;
        let header = SegmentHeader {
            lane: self.shared.lane,
            id,
            epoch: self.shared.epoch,
            first_seq,
        };
        let dsync = self.shared.sync == SyncMode::Always;
        // A spare that went missing is no reason to stop: take another.
        let spare = loop {
            match self.spares.pop() {
                Some(path)
                    if fs::metadata(&path).is_ok_and(|m| m.len() == self.shared.segment_len) =>
                {
                    break Ok(path);
                }
                Some(_) => {}
                None => break self.make_spare(),
            }
        };
        match spare.and_then(|path| put_in_service(dir, &path, &header, dsync)) {
            Ok(file) => {
                self.waiting = None;
                self.announce(Space::Ok);
                self.shared.report(Done::Opened {
                    id,
                    file: Arc::new(file),
                });
            }
            Err(e) => {
                let error = wal_error("making a segment in", dir, &e);
                if matches!(error, WalError::Full(_)) {
                    self.space = Space::Full;
                    self.retry_at.get_or_insert(Instant::now() + RETRY);
                } else {
                    self.waiting = None;
                }
                self.shared.report(Done::OpenFailed { error });
            }
        }
    }

    /// The manifest first, then the files: a file that is still there afterwards is recognised as dropped.
    fn drop_segments(&mut self) {
        if self.to_drop.is_empty() {
            return;
        }
        if let Err(e) = self.store_manifest() {
            tracing::warn!(lane = self.shared.lane, error = %e, "dropped log segments stay for now");
            self.retry_at.get_or_insert(Instant::now() + RETRY);
            return;
        }
        for run in std::mem::take(&mut self.to_drop) {
            for id in run.first_id..=run.last_id {
                self.recycle(id);
            }
        }
        self.open_waiting();
        if self.space == Space::Low && !self.spares.is_empty() {
            self.announce(Space::Ok);
        }
    }

    /// Makes a spare of a dropped segment, or removes it when there are enough.
    fn recycle(&mut self, id: u64) {
        let path = segment_path(&self.shared.dir, id);
        let spare = spare_path(&self.shared.dir, id);
        let fits = fs::metadata(&path).is_ok_and(|m| m.len() == self.shared.segment_len);
        let done = match fits && self.spares.len() < self.shared.spares_max && !spare.exists() {
            true => fs::rename(&path, &spare).map(|()| self.spares.push(spare)),
            false => fs::remove_file(&path),
        };
        if let Err(e) = done {
            tracing::warn!(file = %path.display(), error = %e, "a dropped log segment could not be removed");
        }
    }
}
