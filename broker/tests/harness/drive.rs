//! What can happen next, and making it happen: the part of the world that carries out what the engines ask for.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use vela_broker::engine::{ConnId, CoreId, Message};
use vela_broker::store::wal::{Space, Wal, WalError, WalEvent};
use vela_codec::{Accounting, decode_command};

use super::{Asked, Core, Fault, Incoming, Peer, Step, World};
use vela_broker::engine::ReadRule;

/// Waiting bytes up to which a connection that a rate holds is read, as in the runtime.
const READ_AHEAD: usize = 64 * 1024;

impl World {
    /// Everything that could happen next.
    pub fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, conn) in self.conns.iter_mut().enumerate() {
            if !conn.open {
                continue;
            }
            let engine = &mut self.cores[usize::from(conn.core)].engine;
            if conn.close_asked {
                steps.push(Step::Close(Peer(index)));
                continue;
            }
            if !conn.frames.is_empty() && !conn.left_over && engine.wants_frames(conn.id) {
                steps.push(Step::Frames(Peer(index)));
            } else if !conn.to_broker.is_empty() && !conn.asleep {
                let queued = conn.frames.iter().map(vela_codec::Frame::len);
                let read = match engine.read_rule(conn.id) {
                    ReadRule::Read => conn.frames.is_empty() && engine.wants_frames(conn.id),
                    ReadRule::Ahead => queued.sum::<usize>() < READ_AHEAD,
                    ReadRule::Stop => false,
                };
                if read {
                    steps.push(Step::Read(Peer(index)));
                } else {
                    conn.asleep = true;
                }
            }
            if conn.dirty && !conn.stuck {
                steps.push(Step::Output(Peer(index)));
            }
        }
        let cores = self.config.cores;
        for core in 0..cores {
            if self.cores[usize::from(core)].awake {
                steps.push(Step::Turn(core));
            }
            if !self.cores[usize::from(core)].notices.is_empty() {
                steps.push(Step::Notice(core));
            }
            for to in 0..cores {
                if !self.mail[usize::from(core * cores + to)].is_empty() {
                    steps.push(Step::Mail(core, to));
                }
            }
        }
        for (index, shard) in (0..).zip(&self.shards) {
            let pending = shard.wal.pending_writes().len();
            if pending > 0 && !shard.broken && !self.disk_paused && shard.wal.space() != Space::Full
            {
                steps.push(Step::Write(index));
                if pending > 1 {
                    steps.push(Step::WriteYounger(index));
                }
            }
            if !shard.reads.is_empty() {
                steps.push(Step::ReadBack(index));
            }
            if !shard.checkpoints.is_empty() {
                steps.push(Step::Checkpoint(index));
            }
        }
        if !self.requests.is_empty() {
            steps.push(Step::Metadata);
        }
        steps
    }

    /// Makes one step happen. `size` says how much of it, where that can be said: bytes read or written, frames, a batch of mail.
    pub fn apply(&mut self, step: Step, size: usize) {
        self.step_count += 1;
        match step {
            Step::Read(peer) => self.read(peer, size),
            Step::Frames(peer) => self.hand_frames(peer),
            Step::Turn(core) => self.turn(core),
            Step::Mail(from, to) => self.deliver(from, to),
            Step::Output(peer) => self.write_out(peer, size),
            Step::Close(peer) => {
                self.write_out(peer, size);
                self.hang_up(peer);
            }
            Step::Write(shard) => {
                self.shards[shard as usize].wal.complete_one();
                self.poll_wal(shard);
            }
            Step::WriteYounger(shard) => {
                self.shards[shard as usize].wal.complete_at(1);
                self.poll_wal(shard);
            }
            Step::ReadBack(shard) => self.read_back(shard),
            Step::Checkpoint(shard) => self.put_checkpoint(shard),
            Step::Metadata => self.answer_metadata(),
            Step::Notice(core) => {
                let core = &mut self.cores[usize::from(core)];
                if let Some((key, value)) = core.notices.pop_front() {
                    core.engine.metadata_changed(&key, value.as_ref());
                    core.awake = true;
                }
            }
        }
    }

    /// Does whatever there is to do until nothing is left.
    pub fn run_until_idle(&mut self) {
        for _ in 0..1_000_000 {
            let steps = self.steps();
            if steps.is_empty() {
                return;
            }
            for step in steps {
                if self.is_possible(step) {
                    self.apply(step, usize::MAX);
                }
            }
        }
        panic!("the world does not come to rest");
    }

    /// A step may have made another one that was listed with it pointless.
    fn is_possible(&mut self, step: Step) -> bool {
        match step {
            Step::Read(peer) | Step::Frames(peer) | Step::Output(peer) | Step::Close(peer) => {
                self.conns[peer.0].open
            }
            // The oldest first: a test that does not care wants the ordinary order.
            Step::WriteYounger(_) => false,
            _ => true,
        }
    }

    fn read(&mut self, peer: Peer, size: usize) {
        let accounting: Arc<dyn Accounting> = self.retained.clone();
        let conn = &mut self.conns[peer.0];
        let cumulation = &mut self.cores[usize::from(conn.core)].cumulation;
        if let Some(space) = conn.decoder.space() {
            let n = space.len().min(conn.to_broker.len()).min(size.max(1));
            space[..n].copy_from_slice(&conn.to_broker[..n]);
            conn.decoder.advance(n);
            conn.to_broker.advance(n);
        } else {
            let space = cumulation.space();
            let n = space.len().min(conn.to_broker.len()).min(size.max(1));
            space[..n].copy_from_slice(&conn.to_broker[..n]);
            let received = cumulation.read(n);
            conn.to_broker.advance(n);
            conn.decoder.push(received);
        }
        let mut failed = false;
        loop {
            match conn.decoder.next_frame() {
                Ok(Some(frame)) => conn.frames.push_back(frame),
                Ok(None) => break,
                Err(_) => {
                    failed = true;
                    break;
                }
            }
        }
        conn.decoder.settle(Some(&accounting));
        self.hand_frames(peer);
        if failed && self.conns[peer.0].open {
            self.hang_up(peer);
        }
    }

    /// Hands decoded frames on while the session takes them. What stays behind is made as small as it is.
    fn hand_frames(&mut self, peer: Peer) {
        let accounting: Arc<dyn Accounting> = self.retained.clone();
        let now = self.now;
        let conn = &mut self.conns[peer.0];
        let core = &mut self.cores[usize::from(conn.core)];
        while core.engine.wants_frames(conn.id)
            && let Some(frame) = conn.frames.pop_front()
        {
            self.chances += 1;
            if self.config.fault == Fault::LeakRoot && self.chances.is_multiple_of(64) {
                self.struck += 1;
                self.leaked.push(frame.clone());
            }
            core.engine.frame(conn.id, frame, now);
            core.awake = true;
        }
        while let Some(at) = core.engine.passing(conn.id, &conn.frames)
            && let Some(frame) = conn.frames.remove(at)
        {
            core.engine.frame(conn.id, frame, now);
            core.awake = true;
        }
        conn.left_over = !conn.frames.is_empty();
        for frame in &mut conn.frames {
            if frame.pins_much() {
                *frame = frame.compact(Some(accounting.clone()));
            }
        }
    }

    fn deliver(&mut self, from: CoreId, to: CoreId) {
        let now = self.now;
        if let Some(batch) = self.mail[usize::from(from * self.config.cores + to)].pop_front() {
            let core = &mut self.cores[usize::from(to)];
            core.engine.mail(from, batch, now);
            core.awake = true;
        }
    }

    fn write_out(&mut self, peer: Peer, size: usize) {
        let now = self.now;
        let conn = &mut self.conns[peer.0];
        let engine = &mut self.cores[usize::from(conn.core)].engine;
        let mut left = size.max(1);
        while left > 0
            && let Some(out) = engine.output(conn.id)
            && !out.is_empty()
        {
            let mut slices = [IoSlice::new(&[]); 4];
            let used = out.io_slices(&mut slices);
            let mut taken = BytesMut::new();
            for slice in &slices[..used] {
                let n = slice.len().min(left);
                taken.extend_from_slice(&slice[..n]);
                left -= n;
            }
            out.consume(taken.len());
            conn.from_broker.push(taken.freeze());
            while let Some(frame) = conn
                .from_broker
                .next_frame()
                .expect("the broker's framing is right")
            {
                let command =
                    decode_command(frame.command()).expect("the broker's commands are whole");
                conn.received.push_back(Incoming {
                    command,
                    rest: Bytes::copy_from_slice(frame.rest()),
                });
            }
            conn.from_broker.settle(None);
        }
        engine.sent(conn.id, now);
        // `sent` took the mark back; what is left goes out at the next step.
        conn.dirty = engine.output(conn.id).is_some_and(|out| !out.is_empty());
        self.cores[usize::from(conn.core)].awake = true;
    }

    fn turn(&mut self, index: CoreId) {
        let mut now = self.now;
        if self.config.fault == Fault::EarlyDelayed {
            now.wall_ms += 2_000;
        }
        let core = &mut self.cores[usize::from(index)];
        core.awake = core.engine.end_of_turn(now);
        if let Err(error) = core.engine.audit() {
            panic!("the books of core {index} do not add up: {error}");
        }
        let effects = std::mem::take(core.engine.effects());
        let lanes = effects.mail.len();
        core.engine.effects().mail = (0..lanes).map(|_| Vec::new()).collect();
        for id in effects.dirty {
            if let Some(peer) = self.peer_of(index, id) {
                self.conns[peer].dirty = true;
                if self.conns[peer].stuck {
                    self.cores[usize::from(index)].engine.blocked(id, now);
                }
            }
        }
        for id in effects.resumed {
            if let Some(peer) = self.peer_of(index, id) {
                self.conns[peer].asleep = false;
                self.conns[peer].left_over = false;
            }
        }
        for id in effects.close {
            if let Some(peer) = self.peer_of(index, id) {
                self.conns[peer].close_asked = true;
            }
        }
        for (to, mut batch) in effects.mail.into_iter().enumerate() {
            self.spoil_mail(&mut batch);
            if !batch.is_empty() {
                self.mail[usize::from(index * self.config.cores) + to].push_back(batch);
            }
        }
        self.terminated.extend(effects.terminated);
        for (asker, answer) in effects.admin {
            asker.answer(answer);
        }
        for (shard, chunk) in effects.writes {
            self.shards[shard as usize].queue.push_back(chunk);
            self.submit(shard);
        }
        for (shard, seq) in effects.reads {
            self.shards[shard as usize].reads.push_back(seq);
        }
        for (shard, seq, bytes) in effects.checkpoints {
            self.shards[shard as usize]
                .checkpoints
                .push_back((seq, bytes));
        }
        for (shard, segments) in effects.drop_segments {
            for id in segments {
                if self.shards[shard as usize].wal.drop_segment(id).is_ok() {
                    self.dropped_segments += 1;
                }
            }
        }
        self.requests.extend(
            effects
                .metadata
                .into_iter()
                .map(|request| (index, Asked::Change(request))),
        );
        let reads = effects.metadata_reads.into_iter();
        self.requests
            .extend(reads.map(|(token, key)| (index, Asked::Read(token, key))));
    }

    fn peer_of(&self, core: CoreId, id: ConnId) -> Option<usize> {
        self.conns
            .iter()
            .rposition(|conn| conn.open && conn.core == core && conn.id == id)
    }

    fn spoil_mail(&mut self, batch: &mut Vec<Message>) {
        match self.config.fault {
            Fault::DropRelease | Fault::DropWritten => {
                let releases = self.config.fault == Fault::DropRelease;
                batch.retain(|message| {
                    let hit = match message {
                        Message::Release { .. } => releases,
                        Message::Written { .. } => !releases,
                        _ => false,
                    };
                    self.chances += u64::from(hit);
                    let drop = hit && (!releases || self.chances.is_multiple_of(2));
                    self.struck += u64::from(drop);
                    !drop
                });
            }
            Fault::DoubleFlow | Fault::DropFlow | Fault::StaleFlow => {
                let mail = std::mem::take(batch);
                for message in mail {
                    let Message::Flow {
                        mut client,
                        permits,
                    } = message
                    else {
                        batch.push(message);
                        continue;
                    };
                    self.chances += 1;
                    let hit = self.chances.is_multiple_of(3);
                    self.struck += u64::from(hit);
                    let copies = match self.config.fault {
                        Fault::DoubleFlow if hit => 2,
                        Fault::DropFlow if hit => 0,
                        _ => 1,
                    };
                    if self.config.fault == Fault::StaleFlow && hit {
                        client.incarnation += 1;
                    }
                    let flows = (0..copies).map(|_| Message::Flow { client, permits });
                    batch.extend(flows);
                }
            }
            Fault::ReorderMail if batch.len() > 1 => {
                self.chances += 1;
                if self.chances.is_multiple_of(3) {
                    let at = (self.chances as usize / 3) % (batch.len() - 1);
                    batch.swap(at, at + 1);
                    self.struck += 1;
                }
            }
            _ => {}
        }
    }

    /// Hands chunks to the log while it takes them.
    fn submit(&mut self, index: u32) {
        let now = self.now;
        let core = (index % u32::from(self.config.cores)) as usize;
        let shard = &mut self.shards[index as usize];
        while let Some(chunk) = shard.queue.front() {
            let seq = chunk.seq();
            match shard.wal.submit(chunk.clone()) {
                Ok(()) => {
                    shard.queue.pop_front();
                    if self.config.fault == Fault::ReceiptBeforeSync {
                        self.struck += 1;
                        self.cores[core].engine.durable(index, seq, now);
                        self.cores[core].awake = true;
                    }
                }
                Err(WalError::Backpressure) => break,
                Err(error) => {
                    shard.queue.clear();
                    self.cores[core].engine.write_failed(index, error, now);
                    self.cores[core].awake = true;
                    break;
                }
            }
        }
    }

    fn poll_wal(&mut self, index: u32) {
        let now = self.now;
        let core = &mut self.cores[(index % u32::from(self.config.cores)) as usize];
        let mut events = Vec::new();
        self.shards[index as usize].wal.poll(&mut events);
        for event in events {
            core.awake = true;
            match event {
                WalEvent::Durable { upto } => core.engine.durable(index, upto, now),
                WalEvent::Read { seq, result, .. } => {
                    self.reads_done += 1;
                    core.engine.chunk_read(index, seq, result, now);
                }
                WalEvent::Checkpoint { token, result } => {
                    result.expect("checkpoints in memory do not fail");
                    self.checkpoints_done += 1;
                    let segments = self.shards[index as usize].wal.segments();
                    core.engine.checkpoint_done(index, token, &segments, now);
                }
                WalEvent::Failed { error } => {
                    self.shards[index as usize].broken |= !error.heals();
                    core.engine.write_failed(index, error, now);
                }
                WalEvent::Space(_) | WalEvent::Sealed { .. } => {}
            }
        }
        self.submit(index);
    }

    fn read_back(&mut self, index: u32) {
        let now = self.now;
        let shard = &mut self.shards[index as usize];
        let Some(seq) = shard.reads.pop_front() else {
            return;
        };
        match shard.wal.read(seq, seq) {
            Ok(()) => {
                shard.wal.complete_read();
                self.poll_wal(index);
            }
            Err(error) => {
                let core = &mut self.cores[(index % u32::from(self.config.cores)) as usize];
                core.engine.chunk_read(index, seq, Err(error), now);
                core.awake = true;
            }
        }
    }

    fn put_checkpoint(&mut self, index: u32) {
        let shard = &mut self.shards[index as usize];
        let Some((seq, bytes)) = shard.checkpoints.pop_front() else {
            return;
        };
        match shard.wal.put_checkpoint(seq, seq, bytes) {
            Ok(()) => {
                shard.wal.complete_checkpoint();
                self.poll_wal(index);
            }
            // Only a planted fault makes the engine state more than the log holds.
            Err(error) => assert_ne!(
                self.config.fault,
                Fault::None,
                "a checkpoint of chunk {seq} was refused: {error}"
            ),
        }
    }

    fn answer_metadata(&mut self) {
        let Some((core, asked)) = self.requests.pop_front() else {
            return;
        };
        let now = self.now;
        let request = match asked {
            Asked::Change(request) => request,
            Asked::Read(token, key) => {
                let found = self.metadata.get(&key);
                let found = found.map(|(version, value)| (value.clone(), *version));
                let core = &mut self.cores[usize::from(core)];
                core.hear();
                core.engine.metadata_read(token, Ok(found), now);
                core.awake = true;
                return;
            }
        };
        let version = self
            .metadata
            .get(&request.key)
            .map_or(0, |(version, _)| *version);
        let done = request.expected.is_none_or(|expected| expected == version);
        if done {
            match &request.value {
                Some(value) => {
                    // Never a number that the key had before, as in the store.
                    self.revision += 1;
                    self.metadata
                        .insert(request.key.clone(), (self.revision, value.clone()));
                }
                None => {
                    self.metadata.remove(&request.key);
                }
            }
            for core in &mut self.cores {
                core.notices
                    .push_back((request.key.clone(), request.value.clone()));
            }
        }
        let core = &mut self.cores[usize::from(core)];
        core.hear();
        core.engine.metadata_done(request.token, Ok(done), now);
        core.awake = true;
    }
}

impl Core {
    /// What was announced before an answer is heard before it.
    fn hear(&mut self) {
        while let Some((key, value)) = self.notices.pop_front() {
            self.engine.metadata_changed(&key, value.as_ref());
        }
    }
}
