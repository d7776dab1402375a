//! One core's way to the disk: the logs of the shards it hosts, and the broker's metadata.
//!
//! Everything is handed to helper threads, whose outcomes are taken at every turn. What a log cannot take yet
//! waits here; the engine bounds how much that can be (writes in flight, reads wanted, one checkpoint per lane).

use super::dynamic::Dynamic;
use super::port::{Now, Storage};
use crate::config;
use crate::engine::{Engine, MetadataRequest};
use crate::store::chunk::Chunk;
use crate::store::meta::{MetaError, MetaReply, MetaRequest, MetaResult, MetaService};
use crate::store::wal::{Space, Wal, WalError, WalEvent};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Metadata changes that a core may be behind. When a core is further behind, the metadata thread waits.
const CHANGES: usize = 4096;
/// Answers to one core that may wait to be taken; it has no more requests under way than that.
const ANSWERS: usize = 4096;

/// A change of metadata as every core hears of it.
struct Change {
    key: String,
    value: Option<Bytes>,
    /// Dropped when the core has taken the change over, or never will.
    _taken: Option<Arc<Taken>>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;
/// What a key holds, and its version.
type Found = Result<Option<(Bytes, u64)>, String>;
type Done = Box<dyn FnOnce(MetaResult) + Send>;

/// Answers whoever asked for a change when the last core lets go of it.
struct Taken(Mutex<Option<(Done, MetaResult)>>);

impl Drop for Taken {
    fn drop(&mut self) {
        let answer = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((done, result)) = answer.take() {
            done(result);
        }
    }
}

/// Who hears of changes: the settings first, then every core.
struct Listeners {
    dynamic: Arc<Dynamic>,
    cores: Vec<(Sender<Change>, Wake)>,
}

impl Listeners {
    fn tell(&self, key: &str, value: Option<&Bytes>, taken: Option<Arc<Taken>>) {
        self.dynamic.changed(key, value.map(AsRef::as_ref));
        for (sender, wake) in &self.cores {
            let change = Change {
                key: key.to_owned(),
                value: value.cloned(),
                _taken: taken.clone(),
            };
            // A core that has ended does not listen any more.
            if sender.send(change).is_ok() {
                wake();
            }
        }
    }
}

/// The metadata store as all cores share it: each change is told to all of them, in one order.
pub(super) struct SharedMeta {
    service: MetaService,
    listeners: Arc<Listeners>,
}

/// One core's end of [`SharedMeta`].
pub(super) struct MetaEnd {
    shared: Arc<SharedMeta>,
    changes: Receiver<Change>,
    answers_in: Sender<(u64, Result<bool, String>)>,
    answers: Receiver<(u64, Result<bool, String>)>,
    found_in: Sender<(u64, Found)>,
    found: Receiver<(u64, Found)>,
    wake: Wake,
    under_way: usize,
}

impl SharedMeta {
    /// Shares `service` between cores, each of which is woken by its `wake`.
    pub(super) fn share(
        service: MetaService,
        dynamic: Arc<Dynamic>,
        wakes: &[Wake],
    ) -> (Arc<Self>, Vec<MetaEnd>) {
        let (cores, receivers): (Vec<_>, Vec<_>) = wakes
            .iter()
            .map(|wake| {
                let (sender, receiver) = bounded(CHANGES);
                ((sender, Arc::clone(wake)), receiver)
            })
            .unzip();
        let shared = Arc::new(Self {
            service,
            listeners: Arc::new(Listeners { dynamic, cores }),
        });
        let ends = receivers
            .into_iter()
            .zip(wakes)
            .map(|(changes, wake)| {
                let (answers_in, answers) = bounded(ANSWERS);
                let (found_in, found) = bounded(ANSWERS);
                MetaEnd {
                    shared: Arc::clone(&shared),
                    changes,
                    answers_in,
                    answers,
                    found_in,
                    found,
                    wake: Arc::clone(wake),
                    under_way: 0,
                }
            })
            .collect();
        (shared, ends)
    }

    /// For who is no core: `done` is called with what was read, with an error, or when every core goes by the change.
    pub(super) fn request(&self, request: MetaRequest, done: Done) {
        let (key, value) = match &request {
            MetaRequest::Put { key, value, .. } => (key.clone(), Some(value.clone())),
            MetaRequest::Delete { key, .. } => (key.clone(), None),
            MetaRequest::Get { .. } | MetaRequest::List { .. } | MetaRequest::NewEpoch => {
                return self.hand_in(request, done, |result, done| done(result));
            }
        };
        let listeners = Arc::clone(&self.listeners);
        self.hand_in(request, done, move |result, done| match result {
            Ok(_) => {
                let taken = Taken(Mutex::new(Some((done, result))));
                listeners.tell(&key, value.as_ref(), Some(Arc::new(taken)));
            }
            Err(_) => done(result),
        });
    }

    fn hand_in(
        &self,
        request: MetaRequest,
        done: Done,
        then: impl FnOnce(MetaResult, Done) + Send + 'static,
    ) {
        // Shared, for a request that is refused at once takes its closure along.
        let done = Arc::new(Mutex::new(Some(done)));
        let take = |done: &Mutex<Option<Done>>| {
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.take()
        };
        let later = Arc::clone(&done);
        let outcome = self.service.request(request, move |result| {
            if let Some(done) = take(&later) {
                then(result, done);
            }
        });
        if let Err(error) = outcome
            && let Some(done) = take(&done)
        {
            done(Err(error));
        }
    }
}

/// A core that ends goes by nothing any more, and nobody is to wait for it.
impl Drop for MetaEnd {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl MetaEnd {
    /// Lets go of changes that come too late.
    fn let_go(&self) {
        self.changes.try_iter().for_each(drop);
    }

    /// Hands a request in, or answers at once why not.
    fn request(&mut self, request: MetadataRequest, engine: &mut Engine, now: Now) {
        let MetadataRequest {
            token,
            key,
            value,
            expected,
        } = request;
        if self.under_way >= ANSWERS {
            let error = MetaError::Backpressure.to_string();
            engine.metadata_done(token, Err(error), now);
            return;
        }
        let job = match value.clone() {
            Some(value) => MetaRequest::Put {
                key: key.clone(),
                value,
                expected,
            },
            None => MetaRequest::Delete {
                key: key.clone(),
                expected,
            },
        };
        let (answers, wake) = (self.answers_in.clone(), Arc::clone(&self.wake));
        let listeners = Arc::clone(&self.shared.listeners);
        let done = move |result: MetaResult| {
            if result.is_ok() {
                listeners.tell(&key, value.as_ref(), None);
            }
            // There is room: a core has no more under way than fits.
            let _ = answers.try_send((token, outcome(result)));
            wake();
        };
        match self.shared.service.request(job, done) {
            Ok(()) => self.under_way += 1,
            Err(error) => engine.metadata_done(token, Err(error.to_string()), now),
        }
    }

    /// Hands in a read, or answers at once why not.
    fn read(&mut self, token: u64, key: String, engine: &mut Engine, now: Now) {
        if self.under_way >= ANSWERS {
            let error = MetaError::Backpressure.to_string();
            return engine.metadata_read(token, Err(error), now);
        }
        let (found, wake) = (self.found_in.clone(), Arc::clone(&self.wake));
        let done = move |result: MetaResult| {
            let result = match result {
                Ok(MetaReply::Value(value)) => Ok(value.map(|value| (value.value, value.version))),
                Ok(other) => Err(format!("unexpected answer {other:?}")),
                Err(error) => Err(error.to_string()),
            };
            // There is room, as for answers.
            let _ = found.try_send((token, result));
            wake();
        };
        match self.shared.service.request(MetaRequest::Get { key }, done) {
            Ok(()) => self.under_way += 1,
            Err(error) => engine.metadata_read(token, Err(error.to_string()), now),
        }
    }

    /// Changes first: an answer must not find its own change missing.
    fn poll(&mut self, engine: &mut Engine, now: Now) -> bool {
        // In this order: what is answered by now was announced before.
        let answers: Vec<_> = self.answers.try_iter().collect();
        let found: Vec<_> = self.found.try_iter().collect();
        let mut any = !answers.is_empty() || !found.is_empty();
        for change in self.changes.try_iter() {
            if change.key.starts_with(config::DYNAMIC) {
                // The newest there are: later changes among them come to nothing when their turn comes.
                engine.configure(self.shared.listeners.dynamic.engine(), now);
            } else {
                engine.metadata_changed(&change.key, change.value.as_ref());
            }
            any = true;
        }
        for (token, result) in answers {
            self.under_way = self.under_way.saturating_sub(1);
            engine.metadata_done(token, result, now);
        }
        for (token, result) in found {
            self.under_way = self.under_way.saturating_sub(1);
            engine.metadata_read(token, result, now);
        }
        any
    }
}

fn outcome(result: MetaResult) -> Result<bool, String> {
    match result {
        Ok(MetaReply::Version(_) | MetaReply::Deleted) => Ok(true),
        Err(MetaError::Conflict { .. } | MetaError::Absent(_)) => Ok(false),
        Ok(other) => Err(format!("unexpected answer {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// One lane's log and what it cannot take yet.
pub(super) struct LaneIo<W> {
    shard: u32,
    wal: W,
    writes: VecDeque<Chunk>,
    reads: VecDeque<u64>,
    checkpoint: Option<(u64, Bytes)>,
    checkpoint_out: bool,
    space: Space,
    /// What the engine knows to survive loss of power; behind what is acknowledged unless every write is synced.
    synced: u64,
    /// Writing has ended for good.
    failed: bool,
}

impl<W: Wal> LaneIo<W> {
    pub(super) fn new(wal: W) -> Self {
        Self {
            shard: wal.lane(),
            synced: wal.durable(),
            wal,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            checkpoint: None,
            checkpoint_out: false,
            space: Space::Ok,
            failed: false,
        }
    }

    /// Gives the log as much as it takes. Refusals that are final go to the engine.
    fn push(&mut self, engine: &mut Engine, now: Now) {
        while let Some(chunk) = self.writes.front() {
            // A chunk is a handle on its block: the copy is cheap.
            match self.wal.submit(chunk.clone()) {
                Ok(()) => {
                    self.writes.pop_front();
                }
                Err(WalError::Backpressure) => break,
                Err(error) => {
                    self.writes.clear();
                    self.fail(engine, error, now);
                }
            }
        }
        while let Some(seq) = self.reads.front().copied() {
            match self.wal.read(seq, seq) {
                Ok(()) => {}
                Err(WalError::Backpressure) => break,
                Err(error) => engine.chunk_read(self.shard, seq, Err(error), now),
            }
            self.reads.pop_front();
        }
        if let Some((seq, data)) = self.checkpoint.take_if(|_| !self.checkpoint_out) {
            match self.wal.put_checkpoint(seq, seq, data.clone()) {
                Ok(()) => self.checkpoint_out = true,
                // Not yet durable, or another one is being written.
                Err(WalError::Absent | WalError::Backpressure) => {
                    self.checkpoint = Some((seq, data));
                }
                Err(error) => {
                    self.no_checkpoint(&error);
                    engine.checkpoint_failed(self.shard, now);
                }
            }
        }
    }

    fn fail(&mut self, engine: &mut Engine, error: WalError, now: Now) {
        if error.heals() {
            tracing::error!(
                lane = self.shard,
                "{error}. Publishes are refused until the log goes on, which it does by itself"
            );
        } else if !std::mem::replace(&mut self.failed, true) {
            tracing::error!(
                lane = self.shard,
                "{error}. Topics of this lane take no more messages until the broker is restarted"
            );
        }
        engine.write_failed(self.shard, error, now);
    }

    fn no_checkpoint(&self, error: &WalError) {
        tracing::warn!(
            lane = self.shard,
            "checkpoint not written, the next start replays more of the log: {error}"
        );
    }

    fn event(&mut self, event: WalEvent, engine: &mut Engine, now: Now) {
        match event {
            WalEvent::Durable { upto } => {
                self.synced = self.wal.durable();
                engine.written(self.shard, upto, self.synced, now);
            }
            WalEvent::Read { seq, result, .. } => engine.chunk_read(self.shard, seq, result, now),
            WalEvent::Checkpoint { token, result } => {
                self.checkpoint_out = false;
                match result {
                    Ok(()) => {
                        engine.checkpoint_done(self.shard, token, &self.wal.segments(), now);
                    }
                    Err(error) => {
                        self.no_checkpoint(&error);
                        engine.checkpoint_failed(self.shard, now);
                    }
                }
            }
            WalEvent::Failed { error } => self.fail(engine, error, now),
            WalEvent::Space(space) => {
                if space != std::mem::replace(&mut self.space, space) {
                    match space {
                        Space::Ok => {
                            tracing::info!(lane = self.shard, "the log goes on")
                        }
                        Space::Low => tracing::warn!(
                            lane = self.shard,
                            "the next log segment cannot be made for now: publishes are refused when this one is full"
                        ),
                        Space::Full => tracing::error!(
                            lane = self.shard,
                            "the log takes nothing for now: what was published waits"
                        ),
                    }
                }
            }
            WalEvent::Sealed { .. } => {}
        }
    }

    fn is_idle(&self) -> bool {
        self.failed
            || (self.writes.is_empty()
                && self.checkpoint.is_none()
                && !self.checkpoint_out
                && self.wal.acked() + 1 >= self.wal.next_seq())
    }
}

/// [`Storage`] over logs and metadata.
pub(super) struct Disk<W> {
    lanes: Vec<LaneIo<W>>,
    meta: MetaEnd,
    events: Vec<WalEvent>,
    closed: bool,
}

impl<W: Wal> Disk<W> {
    pub(super) fn new(lanes: Vec<LaneIo<W>>, meta: MetaEnd) -> Self {
        Self {
            lanes,
            meta,
            events: Vec::new(),
            closed: false,
        }
    }

    fn lane(&mut self, shard: u32) -> Option<&mut LaneIo<W>> {
        self.lanes.iter_mut().find(|lane| lane.shard == shard)
    }
}

impl<W: Wal + 'static> Storage<Engine> for Disk<W> {
    fn carry_out(&mut self, engine: &mut Engine, now: Now) -> bool {
        let effects = engine.effects();
        for (asker, answer) in effects.admin.drain(..) {
            asker.answer(answer);
        }
        if effects.writes.is_empty()
            && effects.reads.is_empty()
            && effects.checkpoints.is_empty()
            && effects.drop_segments.is_empty()
            && effects.metadata.is_empty()
            && effects.metadata_reads.is_empty()
        {
            return false;
        }
        let writes = std::mem::take(&mut effects.writes);
        let reads = std::mem::take(&mut effects.reads);
        let checkpoints = std::mem::take(&mut effects.checkpoints);
        let drop_segments = std::mem::take(&mut effects.drop_segments);
        let metadata = std::mem::take(&mut effects.metadata);
        let metadata_reads = std::mem::take(&mut effects.metadata_reads);
        if self.closed {
            // What sessions leave behind when they are cut off is not recorded.
            return false;
        }
        for (shard, chunk) in writes {
            if let Some(lane) = self.lane(shard) {
                lane.writes.push_back(chunk);
            }
        }
        for (shard, seq) in reads {
            if let Some(lane) = self.lane(shard) {
                lane.reads.push_back(seq);
            }
        }
        for (shard, seq, data) in checkpoints {
            if let Some(lane) = self.lane(shard) {
                lane.checkpoint = Some((seq, data));
            }
        }
        for (shard, segments) in drop_segments {
            let Some(lane) = self.lane(shard) else {
                continue;
            };
            for id in segments {
                if let Err(error) = lane.wal.drop_segment(id) {
                    // It is named again after the next checkpoint.
                    tracing::debug!(lane = shard, segment = id, "segment not dropped: {error}");
                }
            }
        }
        for lane in &mut self.lanes {
            lane.push(engine, now);
        }
        for request in metadata {
            self.meta.request(request, engine, now);
        }
        for (token, key) in metadata_reads {
            self.meta.read(token, key, engine, now);
        }
        true
    }

    fn poll(&mut self, engine: &mut Engine, now: Now) -> bool {
        if self.closed {
            self.meta.let_go();
            return false;
        }
        let mut any = self.meta.poll(engine, now);
        for lane in &mut self.lanes {
            lane.wal.poll(&mut self.events);
            any |= !self.events.is_empty();
            for event in self.events.drain(..) {
                lane.event(event, engine, now);
            }
            // A sync in the background has no event of its own.
            if lane.wal.durable() != lane.synced {
                lane.synced = lane.wal.durable();
                engine.written(lane.shard, lane.wal.acked(), lane.synced, now);
            }
            if !lane.writes.is_empty() || !lane.reads.is_empty() || lane.checkpoint.is_some() {
                lane.push(engine, now);
            }
        }
        any
    }

    fn is_idle(&self) -> bool {
        self.meta.under_way == 0 && self.lanes.iter().all(LaneIo::is_idle)
    }

    fn close(&mut self) {
        self.closed = true;
        for lane in &mut self.lanes {
            if let Err(error) = lane.wal.close() {
                tracing::warn!(
                    lane = lane.shard,
                    "log not closed cleanly, the next start checks its end: {error}"
                );
            }
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
