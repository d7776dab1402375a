//! The housekeeper of a lane: everything about its files but reading and writing chunks.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::super::wal::{Checkpoint, Space};
use super::helpers::{Done, Shared, is_full, wal_error};
use super::manifest::{Hole, Manifest, Seal, store_checkpoint};
use super::need::{Need, SPARES_MIN};
use super::recover::{reserve_path, spare_path};
use super::removal::Removals;
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
    /// A write failed for lack of room or of another resource: say so again after a while.
    RetryLater,
}

/// Everything about a lane's files but reading and writing chunks.
pub(super) struct Housekeeper<'a> {
    shared: &'a Shared,
    manifest: Manifest,
    /// The newest last.
    spares: Vec<PathBuf>,
    need: Need,
    removals: Removals,
    next_spare: u64,
    next_checkpoint: u64,
    space: Space,
    /// A segment that could not be opened yet.
    waiting: Option<(u64, u64)>,
    retry_at: Option<Instant>,
    /// Dropped segments that the manifest on disk does not know yet.
    to_drop: Vec<Hole>,
    /// The manifest could not be written, which was said.
    manifest_failed: bool,
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
            // What is there was worth keeping when the lane was last open.
            need: Need::new(spares.len(), Instant::now(), shared.spares_half_life),
            spares,
            removals: Removals::default(),
            next_spare: 0,
            next_checkpoint,
            space: Space::Ok,
            waiting: None,
            retry_at: None,
            to_drop: Vec::new(),
            manifest_failed: false,
        }
    }

    /// Works until the front is gone. What is still to be removed then is removed at the next start.
    pub(super) fn run(mut self, chores: &Receiver<Chore>) {
        self.prepare();
        loop {
            let due = [self.retry_at, self.removals.due(self.shared)];
            let due = due.into_iter().flatten().min();
            let pause = due.map_or(RETRY, |at| at.saturating_duration_since(Instant::now()));
            match chores.recv_timeout(pause.min(RETRY)) {
                Ok(chore) => self.work_off(chore, chores),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.retry_at.is_some_and(|at| at <= Instant::now()) {
                self.retry_at = None;
                self.shared.report(Done::Retry);
                self.drop_segments();
                self.open_waiting();
            }
            // Whoever waits for an answer comes first.
            if chores.is_empty() {
                self.prepare();
                self.shed();
            }
            if let Some(due) = self.removals.due(self.shared)
                && chores.is_empty()
            {
                // Another lane may be about to find no room.
                let free = self.shared.free_bytes();
                if self.space != Space::Ok || free < self.shared.segment_len {
                    self.removals.finish();
                } else if due <= Instant::now() {
                    self.removals.step(self.shared);
                }
            }
        }
    }

    /// Does one chore. Segments that are dropped one after another share a manifest.
    fn work_off(&mut self, chore: Chore, chores: &Receiver<Chore>) {
        let mut next = Some(chore);
        while let Some(Chore::Drop(run)) = next {
            self.manifest.drop_run(run);
            self.to_drop.push(run);
            next = chores.try_recv().ok();
        }
        self.drop_segments();
        if let Some(chore) = next {
            self.work(chore);
        }
    }

    fn work(&mut self, chore: Chore) {
        match chore {
            Chore::Open { id, first_seq } => {
                self.waiting = Some((id, first_seq));
                self.open_waiting();
            }
            // Not one of those that come here, see `work_off`.
            Chore::Drop(_) => {}
            Chore::Sync => {
                // The front hears of a failure.
                let _ = self.shared.sync_dirty();
            }
            Chore::Checkpoint { token, checkpoint } => {
                let number = self.next_checkpoint;
                let shared = self.shared;
                // What it covers is on disk before it is: a checkpoint that is ahead of the log tells of a loss.
                let result = shared.sync_dirty().and_then(|()| {
                    let stored = self.with_reserve(|_| {
                        shared.fault(Operation::Checkpoint)?;
                        store_checkpoint(&shared.dir, shared.lane, number, &checkpoint)
                    });
                    stored.map_err(|e| wal_error("writing a checkpoint in", &shared.dir, &e))
                });
                self.next_checkpoint += 1;
                self.shared.report(Done::Checkpoint { token, result });
            }
            Chore::Seal(seal) => {
                let result = self.shared.sync_dirty().and_then(|()| {
                    self.manifest.seal(seal);
                    let stored = self.store_manifest();
                    stored.map_err(|e| wal_error("sealing the lane in", &self.shared.dir, &e))
                });
                self.shared.report(Done::Sealed { result });
            }
            Chore::Retry => {
                self.drop_segments();
                self.open_waiting();
            }
            Chore::RetryLater => {
                self.retry_at = Some(Instant::now() + RETRY);
                self.make_room();
            }
        }
    }

    /// Removes at once what is kept only for later, but for the reserve and the next segments. `false` if there was nothing.
    fn make_room(&mut self) -> bool {
        let more = self.spares.len().saturating_sub(SPARES_MIN);
        for spare in self.spares.drain(..more) {
            self.removals.push(spare);
        }
        self.removals.finish()
    }

    /// Does `work`, and once more with more room when there is none.
    fn with_room<T>(&mut self, work: impl Fn(&mut Self) -> io::Result<T>) -> io::Result<T> {
        match work(self) {
            Err(e) if is_full(&e) && self.make_room() => work(self),
            other => other,
        }
    }

    /// [`Self::with_room`], and once more without the reserve. What frees segments, checkpoints and the manifest, must not itself need room
    /// that only freed segments give.
    fn with_reserve(&mut self, write: impl Fn(&mut Self) -> io::Result<()>) -> io::Result<()> {
        match self.with_room(&write) {
            Err(e) if is_full(&e) && fs::remove_file(reserve_path(&self.shared.dir)).is_ok() => {
                write(self)
            }
            other => other,
        }
    }

    fn store_manifest(&mut self) -> io::Result<()> {
        self.with_reserve(|keeper| {
            keeper.shared.fault(Operation::Manifest)?;
            keeper.manifest.store(&keeper.shared.dir)
        })
    }

    /// Sets the reserve aside, if there is room.
    fn make_reserve(&mut self) {
        let path = reserve_path(&self.shared.dir);
        if path.exists() || self.shared.fault(Operation::NewSegment).is_err() {
            return;
        }
        let len = RESERVE.min(self.shared.segment_len);
        let unfinished = path.with_extension("tmp");
        let made = self
            .with_room(|keeper| zeroed(&unfinished, len, &keeper.shared.stop))
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
        match self.with_room(Self::make_spare) {
            Ok(path) => {
                self.spares.push(path);
                self.announce(Space::Ok);
            }
            Err(_) if self.shared.stopping() => {}
            Err(e) => {
                if self.space == Space::Ok {
                    let error = wal_error("making a spare segment in", &self.shared.dir, &e);
                    tracing::warn!(
                        lane = self.shared.lane,
                        "no further log segment yet: {error}"
                    );
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

    /// Spares to keep now.
    fn spares_kept(&self) -> usize {
        if self.space != Space::Ok {
            return SPARES_MIN;
        }
        let shared = self.shared;
        let free = || shared.free_bytes();
        self.need
            .spares(Instant::now(), shared.spares_max, free, shared.segment_len)
    }

    /// Gives up spares that are not needed any more.
    fn shed(&mut self) {
        if self.spares.len() > SPARES_MIN {
            let more = self.spares.len().saturating_sub(self.spares_kept());
            for spare in self.spares.drain(..more) {
                self.removals.push(spare);
            }
        }
    }

    /// A name for a spare that nothing has yet.
    fn free_name(&mut self) -> PathBuf {
        loop {
            self.next_spare += 1;
            let path = spare_path(&self.shared.dir, self.next_spare);
            if !path.exists() {
                return path;
            }
        }
    }

    /// A spare of what was to be removed, or a new one.
    fn make_spare(&mut self) -> io::Result<PathBuf> {
        let path = self.free_name();
        if let Some(whole) = self.removals.take_whole(self.shared.segment_len) {
            match fs::rename(&whole, &path) {
                Ok(()) => return Ok(path),
                Err(_) => self.removals.push(whole),
            }
        }
        self.shared.fault(Operation::NewSegment)?;
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
                None => break self.with_room(Self::make_spare),
            }
        };
        let opened = spare.and_then(|path| {
            let fault = self.shared.fault(Operation::UseSegment);
            fault
                .and_then(|()| put_in_service(dir, &path, &header, dsync))
                .inspect_err(|_| {
                    // For the next attempt, unless it has a segment's name already.
                    if path.exists() {
                        self.spares.push(path);
                    }
                })
        });
        match opened {
            Ok(file) => {
                self.waiting = None;
                self.need.opened(Instant::now(), self.shared.spares_max);
                self.announce(Space::Ok);
                self.shared.report(Done::Opened {
                    id,
                    file: Arc::new(file),
                });
            }
            Err(e) => {
                let error = wal_error("making a segment in", dir, &e);
                if error.heals() {
                    // Asked for so soon that there was no time to look ahead: the warning still comes first.
                    if self.space == Space::Ok {
                        self.announce(Space::Low);
                    }
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
            if !std::mem::replace(&mut self.manifest_failed, true) {
                let error = wal_error("writing the manifest in", &self.shared.dir, &e);
                tracing::warn!(
                    lane = self.shared.lane,
                    "dropped log segments stay for now: {error}"
                );
            }
            self.retry_at.get_or_insert(Instant::now() + RETRY);
            return;
        }
        self.manifest_failed = false;
        let short = self.space != Space::Ok;
        let kept = self.spares_kept();
        for run in std::mem::take(&mut self.to_drop) {
            for id in run.first_id..=run.last_id {
                self.recycle(id, kept);
            }
        }
        if short {
            self.removals.finish();
        }
        self.open_waiting();
        if self.space == Space::Low && !self.spares.is_empty() {
            self.announce(Space::Ok);
        }
    }

    /// Makes a spare of a dropped segment, or has it removed when there are `kept`.
    fn recycle(&mut self, id: u64, kept: usize) {
        let path = segment_path(&self.shared.dir, id);
        let fits = fs::metadata(&path).is_ok_and(|m| m.len() == self.shared.segment_len);
        if fits && self.spares.len() < kept {
            let spare = self.free_name();
            let renamed = self.shared.fault(Operation::Recycle);
            if renamed.and_then(|()| fs::rename(&path, &spare)).is_ok() {
                return self.spares.push(spare);
            }
        }
        self.removals.push(path);
    }
}
