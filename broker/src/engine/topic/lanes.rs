//! The log lanes of a core, and what waits for them to become durable.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use vela_limiter::Reason;
use vela_proto::ServerError;

use super::Topics;
use crate::engine::context::Context;
use crate::engine::message::{ClientRef, CoreId, Message, SendId, SessionRef, TerminateError};
use crate::engine::reply;
use crate::engine::session::throttling::{hold, release};
use crate::engine::time::Now;
use crate::store::chunk::Chunk;
use crate::store::log::{AckedId, CursorId, Lane, Position, Record, TopicId, checkpoint};
use crate::store::wal::{Segment, WalError};

/// Ids, and words of their ack sets, in one Acked record, about: far below the largest record whatever the ids are.
const IDS_PER_RECORD: usize = 4096;
/// Answers that may wait for the disk in one lane before those who ask are held, beside the bytes of the log.
const MAX_PENDING: usize = 65_536;
/// What is said when a lane has failed for good.
const BROKEN: &str = "the log cannot be written; the broker's own log names the cause";

/// What happens once a part of the log is durable. The order of the queue is the order of the log.
#[derive(Debug)]
pub(super) enum Pending {
    /// A SEND gets its receipt.
    Receipt {
        send: SendId,
        topic: u32,
        producer: u32,
        position: Position,
    },
    /// A SEND that was refused gets its error in its turn.
    Refused {
        topic: u32,
        producer: u32,
        client: ClientRef,
        message: Box<Message>,
    },
    /// Any other answer.
    Post { core: CoreId, message: Box<Message> },
    /// Nothing in front of this names a deleted topic's slot any more.
    Vacate { topic: u32 },
    /// What has let go of these segments is in front of this.
    Drop { segments: Vec<u64> },
}

/// A log lane and its queue. The queue is bounded by the lane: what is appended and not durable is.
pub(super) struct LaneSeat {
    shard: u32,
    pub(super) lane: Lane,
    /// Un-acknowledged bytes at which sessions are held.
    budget: usize,
    pending: VecDeque<(u64, Pending)>,
    /// The chunk of the newest record.
    last_seq: u64,
    held: BTreeSet<SessionRef>,
    failure: Option<WalError>,
    pub(super) next_topic: TopicId,
    /// An index checkpoint that waits for its part of the log.
    checkpoint: Option<(u64, Bytes)>,
    /// One is being written.
    checkpointing: bool,
    last_checkpoint_len: u64,
    /// Log bytes that have to come on top before the next try, after one failed.
    checkpoint_penalty: u64,
    /// Topics that wait for a chunk to be read back.
    pub(super) readers: BTreeSet<u32>,
}

impl LaneSeat {
    pub(super) fn new(shard: u32, lane: Lane, next_topic: TopicId, budget: usize) -> Self {
        LaneSeat {
            shard,
            last_seq: lane.durable_seq(),
            lane,
            budget,
            pending: VecDeque::new(),
            held: BTreeSet::new(),
            failure: None,
            next_topic,
            checkpoint: None,
            checkpointing: false,
            last_checkpoint_len: 0,
            checkpoint_penalty: 0,
            readers: BTreeSet::new(),
        }
    }

    /// Appends a record that nobody waits for by itself.
    pub(super) fn append(&mut self, record: &Record<'_>) {
        if self.is_broken() {
            // It would only take memory, and at its bound hold whoever acknowledges, for good.
            return;
        }
        match self.lane.append(record) {
            Ok(appended) => self.last_seq = appended.seq,
            // Names and lists are bounded by the frame they came in, which is what the lane's limit is made for.
            Err(error) => tracing::error!(shard = self.shard, %error, "a log record was lost"),
        }
    }

    /// Appends acknowledged ids, in records that stay small whatever one ACK brings.
    pub(super) fn append_acks(&mut self, topic: TopicId, cursor: CursorId, ids: &[AckedId<'_>]) {
        let mut rest = ids;
        while !rest.is_empty() {
            let mut weight = 0;
            let fits = |id: &&AckedId<'_>| {
                let before = weight;
                weight += 1 + id.ack_set.len();
                before < IDS_PER_RECORD
            };
            let (part, behind) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            self.append(&Record::Acked {
                topic,
                cursor,
                ids: part.into(),
            });
            rest = behind;
        }
    }

    /// Queues what follows when chunk `seq` is durable.
    pub(super) fn push(&mut self, seq: u64, pending: Pending) {
        self.last_seq = seq;
        self.pending.push_back((seq, pending));
    }

    /// Queues what follows when everything appended so far is durable.
    pub(super) fn push_behind(&mut self, pending: Pending) {
        self.pending.push_back((self.last_seq, pending));
    }

    /// Whether those who add to the log must wait.
    pub(super) fn is_full(&self) -> bool {
        !self.is_broken() && (self.lane.is_full() || self.pending.len() >= MAX_PENDING)
    }

    /// Counts a session as held by this lane; false if it is already.
    pub(super) fn hold(&mut self, session: SessionRef) -> bool {
        self.held.insert(session)
    }

    /// Why nothing can be stored at the moment.
    pub(super) fn refusal(&self) -> Option<(ServerError, &'static str)> {
        match &self.failure {
            None => None,
            Some(WalError::Full(_)) => Some((
                ServerError::PersistenceError,
                "the disk of the data directory is full; free space, or delete what is no longer needed",
            )),
            Some(WalError::Exhausted(_)) => Some((
                ServerError::PersistenceError,
                "the broker is out of open files or memory; its own log names the cause. Try again later",
            )),
            Some(_) => Some((ServerError::PersistenceError, BROKEN)),
        }
    }

    /// Nothing will become durable any more.
    pub(super) fn is_broken(&self) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| !failure.heals())
    }

    /// Nothing becomes durable for now: errors need not wait for their turn.
    pub(super) fn is_stuck(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn everything_durable(&self) -> bool {
        !self.is_broken() && self.pending.is_empty() && self.last_seq <= self.lane.durable_seq()
    }
}

impl Topics {
    /// Posts a message once everything appended so far is durable. If that can never be, the answer says so. Without a lane it waits for
    /// nothing.
    pub(super) fn after_log(
        &mut self,
        cx: &mut Context,
        lane: impl Into<Option<usize>>,
        core: CoreId,
        message: Message,
    ) {
        let Some(lane) = lane.into() else {
            return self.answer(cx, core, message);
        };
        match self.lanes.get_mut(lane) {
            Some(seat) if seat.everything_durable() => self.answer(cx, core, message),
            Some(seat) if seat.is_broken() => self.answer_lost(cx, core, message),
            Some(seat) => {
                let asker = match &message {
                    Message::Acked { client, .. }
                    | Message::ProducerOpened { client, .. }
                    | Message::ProducerQueued { client, .. }
                    | Message::ConsumerOpened { client, .. } => Some(client.session),
                    Message::Reply { session, .. } => Some(*session),
                    _ => None,
                };
                let seq = seat.last_seq;
                let message = Box::new(message);
                seat.push(seq, Pending::Post { core, message });
                if let Some(session) = asker
                    && seat.is_full()
                    && seat.hold(session)
                {
                    cx.post(session.core, hold(session, Reason::PendingBytes));
                }
            }
            None => cx.post(core, message),
        }
    }

    /// Posts an answer whose part of the log is durable.
    fn answer(&mut self, cx: &mut Context, core: CoreId, message: Message) {
        if let Message::Terminated { topic, .. } = &message {
            self.terminated(cx, topic);
        }
        let message = match message {
            Message::ConsumerOpened { client, request_id } if !self.consumer_opened(client) => {
                Message::ConsumerRefused {
                    client,
                    request_id,
                    error: ServerError::ServiceNotReady,
                    message: "The consumer was closed while it was being opened: subscribe again"
                        .into(),
                }
            }
            message => message,
        };
        cx.post(core, message);
    }

    /// Posts what takes the place of an answer whose part of the log was lost.
    fn answer_lost(&mut self, cx: &mut Context, core: CoreId, message: Message) {
        const ERROR: ServerError = ServerError::PersistenceError;
        let message = match message {
            Message::Acked {
                client,
                request_id,
                error: None,
            } => Message::Acked {
                client,
                request_id,
                error: Some((ERROR, BROKEN)),
            },
            Message::ProducerOpened {
                client, request_id, ..
            }
            | Message::ProducerQueued {
                client, request_id, ..
            } => {
                self.close_producer(cx, client, None);
                Message::ProducerRefused {
                    client,
                    request_id,
                    error: ERROR,
                    message: BROKEN.into(),
                }
            }
            Message::ConsumerOpened { client, request_id } => {
                self.close_consumer(cx, client, None, Now::default());
                Message::ConsumerRefused {
                    client,
                    request_id,
                    error: ERROR,
                    message: BROKEN.into(),
                }
            }
            Message::AdminAnswer { asker, .. } => Message::AdminAnswer {
                asker,
                answer: Box::new(crate::engine::admin::Answer::Failed(BROKEN.into())),
            },
            Message::Terminated { token, topic, .. } => Message::Terminated {
                token,
                topic,
                result: Err(TerminateError::Log),
            },
            Message::Reply { session, command } => match &command.success {
                Some(success) => Message::Reply {
                    session,
                    command: Box::new(reply::error(success.request_id, ERROR, BROKEN)),
                },
                None => Message::Reply { session, command },
            },
            other => other,
        };
        cx.post(core, message);
    }

    fn lane_at(&self, cx: &Context, shard: u32) -> usize {
        (shard / u32::from(cx.cores.max(1))) as usize
    }

    /// The log says that chunks up to `upto` are durable.
    pub(crate) fn durable(&mut self, cx: &mut Context, shard: u32, upto: u64, synced: u64) {
        let index = self.lane_at(cx, shard);
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        seat.lane.written(upto, synced);
        if seat.failure.as_ref().is_some_and(WalError::heals) {
            seat.failure = None;
        }
        let durable = seat.lane.durable_seq();
        while let Some(seat) = self.lanes.get_mut(index)
            && let Some((seq, _)) = seat.pending.front()
            && *seq <= durable
            && let Some((_, pending)) = seat.pending.pop_front()
        {
            self.settle(cx, shard, pending);
        }
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        if !seat.held.is_empty()
            && seat.lane.unacked_bytes() <= seat.budget / 2
            && seat.pending.len() <= MAX_PENDING / 2
        {
            for session in std::mem::take(&mut seat.held) {
                cx.post(session.core, release(session, Reason::PendingBytes));
            }
        }
    }

    fn settle(&mut self, cx: &mut Context, shard: u32, pending: Pending) {
        match pending {
            Pending::Receipt {
                send,
                topic,
                producer,
                position,
            } => self.confirm(cx, send, topic, producer, position),
            Pending::Refused {
                topic,
                producer,
                client,
                message,
            } => {
                cx.post(client.session.core, *message);
                self.producer_answered(cx, client, topic, producer);
            }
            Pending::Post { core, message } => self.answer(cx, core, *message),
            Pending::Vacate { topic } => self.vacate(topic),
            Pending::Drop { segments } => cx.effects.drop_segments.push((shard, segments)),
        }
    }

    /// A write failed. A full disk, or a lack of open files, heals by itself; anything else ends the lane, and what waits for it is refused.
    pub(crate) fn write_failed(&mut self, cx: &mut Context, shard: u32, error: WalError) {
        let index = self.lane_at(cx, shard);
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        let lasting = !error.heals();
        seat.failure = Some(error);
        if !lasting {
            return;
        }
        // SENDs before openings: a client that hears that its PRODUCER was refused may use the id again at once.
        let (sends, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut seat.pending)
            .into_iter()
            .partition(|(_, pending)| matches!(pending, Pending::Receipt { .. }));
        for (_, pending) in sends.into_iter().chain(rest) {
            match pending {
                Pending::Receipt {
                    send,
                    topic,
                    producer,
                    ..
                } => {
                    let error = ServerError::PersistenceError;
                    let refused = Message::SendRefused {
                        send,
                        error,
                        message: BROKEN,
                    };
                    cx.post(send.client.session.core, refused);
                    self.producer_answered(cx, send.client, topic, producer);
                }
                Pending::Post { core, message } => self.answer_lost(cx, core, *message),
                other @ (Pending::Refused { .. } | Pending::Vacate { .. }) => {
                    self.settle(cx, shard, other)
                }
                // What let go of them is lost, perhaps.
                Pending::Drop { .. } => {}
            }
        }
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        for session in std::mem::take(&mut seat.held) {
            cx.post(session.core, release(session, Reason::PendingBytes));
        }
    }

    /// A chunk was read back, or could not be.
    pub(crate) fn chunk_read(
        &mut self,
        cx: &mut Context,
        shard: u32,
        seq: u64,
        chunk: Result<Chunk, WalError>,
    ) {
        let index = self.lane_at(cx, shard);
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        seat.lane.loaded(seq, chunk);
        for topic in std::mem::take(&mut seat.readers) {
            if let Some(topic) = self.topics.get_mut(topic as usize) {
                topic.mark_dirty(&mut self.dirty);
            }
        }
    }

    /// Seals what the turn appended, hands writes and reads to the runtime, and starts an index checkpoint when one is due.
    pub(super) fn flush_lanes(&mut self, cx: &mut Context) {
        for index in 0..self.lanes.len() {
            let Some(seat) = self.lanes.get_mut(index) else {
                continue;
            };
            let shard = seat.shard;
            seat.lane.end_tick();
            while let Some(chunk) = seat.lane.next_write() {
                cx.effects.writes.push((shard, chunk));
            }
            for seq in seat.lane.take_reads() {
                cx.effects.reads.push((shard, seq));
            }
            let due = cx
                .settings
                .checkpoint_interval_bytes
                .max(2 * seat.last_checkpoint_len);
            if seat.checkpoint.is_none()
                && !seat.checkpointing
                && seat.lane.bytes_since_checkpoint() >= due + seat.checkpoint_penalty
            {
                self.make_checkpoint(index);
            }
            self.emit_checkpoint(cx, index);
        }
    }

    fn make_checkpoint(&mut self, index: usize) {
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        // The index holds what the open chunk holds, so the chunk ends here: the checkpoint covers it whole.
        let seq = seat.lane.cut();
        let topics = self
            .topics
            .iter()
            .map(|(_, topic)| topic)
            .filter(|topic| topic.log() == Some(index) && !topic.deleted)
            .map(|topic| &topic.state);
        let mut states: Vec<_> = topics.collect();
        states.sort_unstable_by_key(|state| state.id);
        let bytes = checkpoint::encode(seq, seat.next_topic, states);
        seat.last_checkpoint_len = bytes.len() as u64;
        seat.checkpoint = Some((seq, Bytes::from(bytes)));
    }

    fn emit_checkpoint(&mut self, cx: &mut Context, index: usize) {
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        if let Some((seq, bytes)) = seat
            .checkpoint
            .take_if(|(seq, _)| *seq <= seat.lane.durable_seq())
        {
            seat.checkpointing = true;
            cx.effects.checkpoints.push((seat.shard, seq, bytes));
        }
    }

    /// Makes a checkpoint of every lane whose log is quiet: the last act of a clean stop.
    pub(crate) fn checkpoint_all(&mut self, cx: &mut Context) {
        for index in 0..self.lanes.len() {
            if self.lanes.get(index).is_some_and(|seat| {
                seat.checkpoint.is_none() && !seat.checkpointing && seat.failure.is_none()
            }) {
                self.make_checkpoint(index);
                self.emit_checkpoint(cx, index);
            }
        }
    }

    /// A checkpoint is safe: segments that it covers and that no entry lives in are dropped, as soon as all that has let go of entries
    /// (acknowledgments, deletions) is durable too. What is lost in a crash would let them live again.
    pub(crate) fn checkpoint_done(
        &mut self,
        cx: &mut Context,
        shard: u32,
        seq: u64,
        segments: &[Segment],
    ) {
        let index = self.lane_at(cx, shard);
        let Some(seat) = self.lanes.get_mut(index) else {
            return;
        };
        seat.checkpointing = false;
        seat.checkpoint_penalty = 0;
        seat.lane.checkpoint_done(seq);
        let topics = &self.topics;
        let lives = |segment: &&Segment| {
            topics.iter().any(|(_, topic)| {
                topic.lane == index
                    && !topic.deleted
                    && topic
                        .state
                        .ledgers
                        .uses_segment(segment.first_seq, segment.last_seq)
            })
        };
        let dead: Vec<u64> = segments
            .iter()
            .filter(|segment| segment.last_seq <= seq && !lives(segment))
            .map(|segment| segment.id)
            .collect();
        if dead.is_empty() {
            return;
        }
        match self.lanes.get_mut(index) {
            Some(seat) if !seat.everything_durable() => {
                seat.push_behind(Pending::Drop { segments: dead });
            }
            _ => cx.effects.drop_segments.push((shard, dead)),
        }
    }

    /// A checkpoint could not be written: the log goes on without it, and the next is made a little later.
    pub(crate) fn checkpoint_failed(&mut self, cx: &Context, shard: u32) {
        let index = self.lane_at(cx, shard);
        if let Some(seat) = self.lanes.get_mut(index) {
            seat.checkpointing = false;
            seat.checkpoint_penalty += (cx.settings.checkpoint_interval_bytes / 4).max(1);
        }
    }

    /// Bytes of chunks that are not durable, and of what is kept only to be quicker.
    pub(crate) fn chunk_memory(&self) -> (usize, usize) {
        self.lanes.iter().fold((0, 0), |(log, cache), seat| {
            (
                log + seat.lane.unacked_bytes(),
                cache + seat.lane.spare_bytes(),
            )
        })
    }

    /// Gives up so many bytes of the latter, each lane in proportion to what it has.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let (_, all) = self.chunk_memory();
        for seat in &mut self.lanes {
            // In 128 bits, rounded up: all of it is never less than what was asked for.
            let part =
                (bytes as u128 * seat.lane.spare_bytes() as u128).div_ceil(all.max(1) as u128);
            seat.lane
                .shrink(usize::try_from(part).unwrap_or(usize::MAX));
        }
    }

    /// True when everything appended is durable and answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lanes.iter().all(|seat| {
            seat.failure.is_some()
                || (seat.lane.is_idle() && seat.pending.is_empty() && !seat.checkpointing)
        })
    }
}
