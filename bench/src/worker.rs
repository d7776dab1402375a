//! One executor of the load: a pinned thread with glommio's rings and one task that serves all its connections.
//!
//! glommio 0.9 can park although its task is ready, if its preemption timer has just expired. There is one task here and nobody to
//! preempt it for, so that timer is set far beyond any run. [`crate::engine`] wakes an executor that stands still all the same, and replaces one
//! that never began.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use glommio::timer::Timer;
use glommio::{LocalExecutorBuilder, Placement};

use crate::consumers::{Conduct, Consumers};
use crate::error::{Context as _, Failure, Result, fail};
use crate::links::{Links, Woken};
use crate::measure::{self, Latencies, monotonic_ns};
use crate::publisher::{Pace, Publisher};
use crate::schedule::Schedule;
use crate::setup::Part;
use crate::verify::Verification;

/// Preemption is not wanted: there is one task.
const NEVER: Duration = Duration::from_secs(30 * 24 * 3600);
/// Memory glommio registers with the kernel for files, in bytes: there are none. Its least.
const IO_MEMORY: usize = 64 * 1024;
/// Entries of each ring; polls in excess of it wait in glommio's own queue.
const RING_DEPTH: usize = 1024;
/// Longest wait for events, in nanoseconds: how late the end of a phase may be noticed.
const MAX_WAIT: u64 = 10_000_000;
/// A turn that reads as much, in bytes, is followed by the next one at once.
const BUSY: usize = 64 * 1024;
/// Busy turns between two looks at glommio's rings.
const TURNS_PER_PASS: u32 = 16;
/// How long messages that were due before the end of load are still sent after it, in nanoseconds.
const LAST_SENDS: u64 = 1_000_000_000;
/// How long the end of a run waits for the broker to confirm it, in nanoseconds.
const CLOSE_PATIENCE: u64 = 5_000_000_000;

/// What all executors of a run share.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// When load begins, in monotonic nanoseconds; 0: not yet.
    pub(crate) start: AtomicU64,
    /// When measuring begins, from the start.
    pub(crate) from: AtomicU64,
    /// When load ends.
    pub(crate) to: AtomicU64,
    /// Somebody failed: all stop as they are.
    pub(crate) abort: AtomicBool,
    fault: Mutex<Option<String>>,
}

impl Control {
    /// Ends the run; the first reason counts.
    pub(crate) fn fail(&self, reason: String) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.get_or_insert(reason);
        self.abort.store(true, Relaxed);
    }

    /// Why the run was ended.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What an executor shows while it works.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) sent: AtomicU64,
    pub(crate) settled: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) timely: AtomicU64,
    pub(crate) payload_bytes: AtomicU64,
    pub(crate) outstanding: AtomicU64,
    pub(crate) undelivered: AtomicU64,
    /// Only grows: an executor whose turns stay the same stands still.
    pub(crate) turns: AtomicU64,
    /// The backlog is there, or none was asked for.
    pub(crate) ready: AtomicBool,
    /// When consumers had caught up with the backlog, in monotonic nanoseconds; 0: not yet.
    pub(crate) caught_up: AtomicU64,
}

/// Latencies of what completed within one second of the load.
#[derive(Debug)]
pub(crate) struct Interval {
    /// Counted from the start of load.
    pub(crate) second: u64,
    pub(crate) publish: Latencies,
    pub(crate) delivery: Latencies,
}

/// How an executor works, apart from its part.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) cpu: Option<usize>,
    pub(crate) conduct: Conduct,
    pub(crate) batch: u32,
    /// Messages per second of the whole run; 0: as fast as the window allows.
    pub(crate) rate: u64,
    /// With a backlog, rate 0 means that nothing is published behind it.
    pub(crate) has_backlog: bool,
    /// Nanoseconds between two turns under a paced load.
    pub(crate) tick: u64,
    /// Turns that find nothing before a connection is waited for by io_uring.
    pub(crate) patient: u32,
    pub(crate) patience: u64,
    pub(crate) unsubscribe: bool,
    /// Missing messages are waited for at the end, and lost if they do not come.
    pub(crate) complete: bool,
}

/// What an executor brings back.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) publish: Latencies,
    pub(crate) delivery: Latencies,
    pub(crate) late_max: u64,
    pub(crate) unsent: u64,
    pub(crate) verification: Verification,
}

/// The part, until the executor's thread takes it. One that is parked by mistake before it runs its task has taken nothing.
pub(crate) type Parcel = Arc<Mutex<Option<Part>>>;

/// How an executor and those who watch it are connected.
#[derive(Debug, Clone)]
pub(crate) struct Ties {
    pub(crate) control: Arc<Control>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) woken: Arc<Woken>,
    pub(crate) intervals: mpsc::Sender<Interval>,
    pub(crate) done: mpsc::Sender<Result<Done>>,
}

/// Starts the thread of an executor. Its result, or why it failed, comes through the ties.
pub(crate) fn spawn(parcel: Parcel, order: Order, ties: Ties) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("vela-bench-load".into())
        .spawn(move || {
            if let Some(cpu) = order.cpu
                && let Err(failure) = measure::pin(&[cpu])
            {
                ties.control.fail(failure.0.clone());
                let _ = ties.done.send(Err(failure));
                return;
            }
            let executor = LocalExecutorBuilder::new(Placement::Unbound)
                .io_memory(IO_MEMORY)
                .ring_depth(RING_DEPTH)
                .preempt_timer(NEVER)
                .make();
            let executor = match executor {
                Ok(executor) => executor,
                Err(error) => {
                    let failure = Failure(format!(
                        "cannot make an executor: {error}; io_uring must be allowed and `ulimit -l` be at least 512 KiB"
                    ));
                    ties.control.fail(failure.0.clone());
                    let _ = ties.done.send(Err(failure));
                    return;
                }
            };
            executor.run(async move {
                let taken = parcel.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(part) = taken else {
                    return;
                };
                // The first sleep of an executor is late by 20 to 30 ms, once: have it now.
                Timer::new(Duration::from_micros(100)).await;
                let result = work(part, &order, &ties).await;
                if let Err(failure) = &result {
                    ties.control.fail(failure.0.clone());
                }
                // If nobody listens any more, the run has ended.
                let _ = ties.done.send(result);
            });
        })
        .context(|| "cannot make a thread".into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The backlog is published, or the start waited for.
    Fill,
    Load,
    /// What is outstanding is waited for.
    Drain,
}

struct Worker<'a> {
    order: &'a Order,
    ties: &'a Ties,
    links: Links,
    publisher: Publisher,
    consumers: Consumers,
    /// By connection: whether it is an application's.
    consuming: Vec<bool>,
    share: (u64, u64),
    window: usize,
    subscriptions: u64,
    phase: Phase,
    start: u64,
    second: u64,
    /// The sum of what moves, and when it last did.
    progress: (u64, u64),
}

async fn work(part: Part, order: &Order, ties: &Ties) -> Result<Done> {
    let mut links = Links::new(Arc::clone(&ties.woken));
    let mut consuming = vec![false; part.connections.len()];
    for consumer in &part.consumers {
        if let Some(consuming) = consuming.get_mut(consumer.link) {
            *consuming = true;
        }
    }
    for connection in part.connections {
        links.add(connection)?;
    }
    let topics = Arc::clone(&order.conduct.topics);
    let consumes = !part.consumers.is_empty();
    let mut publisher = Publisher::new(
        part.producers,
        &part.devices,
        topics,
        part.window,
        order.batch,
    )?;
    if order.has_backlog {
        publisher.pace = Pace::Backlog(part.backlog);
    }
    let mut worker = Worker {
        order,
        ties,
        links,
        publisher,
        consumers: Consumers::new(&part.consumers, order.conduct.clone())?,
        consuming,
        share: part.share,
        window: part.window,
        subscriptions: if consumes {
            order.conduct.subscriptions.len() as u64
        } else {
            0
        },
        phase: Phase::Fill,
        start: 0,
        second: 0,
        progress: (0, monotonic_ns()),
    };
    // What was found until a fault is worth showing, but nothing can be said of what was on its way then.
    if let Err(Failure(fault)) = worker.serve().await {
        ties.control.fail(fault);
    }
    if !ties.control.abort.load(Relaxed) {
        worker.publisher.give_up();
        if order.complete {
            worker
                .consumers
                .count_lost(worker.publisher.settled_devices());
        }
        if consumes && let Err(Failure(fault)) = worker.end().await {
            ties.control.fail(fault);
        }
    }
    worker.send_interval()?;
    let mut verification = worker.publisher.verification;
    verification.add(worker.consumers.verification);
    Ok(Done {
        publish: worker.publisher.latencies.total()?,
        delivery: worker.consumers.latencies.total()?,
        late_max: worker.publisher.late_max,
        unsent: worker.publisher.unsent,
        verification,
    })
}

impl Worker<'_> {
    /// Until everything is sent, answered and delivered, or will not be.
    async fn serve(&mut self) -> Result<()> {
        let (mut arm, mut busy_turns) = (false, 0);
        while !self.ties.control.abort.load(Relaxed) {
            let now = monotonic_ns();
            if self.over(now)? {
                break;
            }
            let sends = self.publisher.fill(&mut self.links)?;
            self.consumers.tick(&mut self.links, now);
            self.links.flush();
            let (publisher, consumers) = (&mut self.publisher, &mut self.consumers);
            let consuming = &self.consuming;
            let patience = if arm { 0 } else { self.order.patient };
            let turn = self.links.turn(patience, |link, frame, out, now| {
                if consuming.get(link).copied().unwrap_or(false) {
                    consumers.handle(frame, out, now)
                } else {
                    publisher.handle(frame, out, now)
                }
            })?;
            self.links.flush();
            self.show();
            if let Some((index, reason)) = self.links.closed.first() {
                return fail(format!("connection {index} ended: {reason}"));
            }
            let tick = match self.phase {
                Phase::Load => self.order.tick,
                Phase::Fill | Phase::Drain => 0,
            };
            if turn.read >= BUSY || (tick == 0 && turn.read + sends > 0) {
                arm = false;
                busy_turns += 1;
                if busy_turns % TURNS_PER_PASS == 0 {
                    self.links.pass().await;
                }
                continue;
            }
            if tick == 0 && turn.hot > 0 {
                // Nothing anywhere: all are armed with the next turn, and waited for if that finds nothing either.
                arm = true;
                continue;
            }
            arm = false;
            let not_before = now + tick;
            let until = match turn.hot {
                0 => self.next_event(now).max(not_before),
                _ => not_before,
            };
            self.links.wait(not_before, until).await;
        }
        Ok(())
    }

    /// When there is something to do by the clock.
    fn next_event(&self, now: u64) -> u64 {
        let mut next = now + MAX_WAIT;
        if let Some(due) = self.publisher.next_due() {
            next = next.min(due);
        }
        if self.phase == Phase::Fill {
            let start = self.ties.control.start.load(Relaxed);
            if start > 0 {
                next = next.min(start);
            }
        }
        next
    }

    /// Moves on from phase to phase. True: nothing is left to do.
    fn over(&mut self, now: u64) -> Result<bool> {
        let control = &self.ties.control;
        let undelivered = self.undelivered();
        let moved = self.publisher.settled + self.consumers.counts.received;
        if moved != self.progress.0 {
            self.progress = (moved, now);
        }
        match self.phase {
            Phase::Fill => {
                if let Pace::Backlog(0) | Pace::Stopped = self.publisher.pace
                    && self.publisher.outstanding == 0
                {
                    self.ties.gauges.ready.store(true, Relaxed);
                }
                let start = control.start.load(Relaxed);
                if start > 0 && now >= start {
                    self.begin(start);
                    self.progress.1 = now;
                }
            }
            Phase::Load => {
                self.send_interval_if_due(now)?;
                if self.order.has_backlog
                    && self.ties.gauges.caught_up.load(Relaxed) == 0
                    && undelivered <= self.slack()
                {
                    self.ties.gauges.caught_up.store(now, Relaxed);
                }
                if now >= control.to.load(Relaxed) {
                    let to = control.to.load(Relaxed);
                    let measured = &mut self.publisher.latencies.measured;
                    measured.end = to.min(measured.end);
                    self.publisher.finish(to);
                    self.consumers.catch_up();
                    self.phase = Phase::Drain;
                }
            }
            Phase::Drain => self.send_interval_if_due(now)?,
        }
        if self.phase == Phase::Drain
            && now > control.to.load(Relaxed) + LAST_SENDS
            && self.publisher.is_behind()
        {
            self.publisher.stop();
        }
        let outstanding = self.publisher.outstanding > 0 || self.publisher.is_behind();
        let missing = match (self.phase, self.order.conduct.run) {
            (Phase::Fill, _) => 0,
            // A reader of unknown messages looks for gaps at the end.
            (Phase::Drain, None) if self.order.complete => self.consumers.missing_inside(),
            (_, None) => 0,
            (_, Some(_)) => undelivered,
        };
        if self.phase == Phase::Drain && !outstanding && missing == 0 {
            return Ok(true);
        }
        Ok((outstanding || missing > 0) && now > self.progress.1 + self.order.patience)
    }

    /// Deliveries on their way while consumers keep up.
    fn slack(&self) -> u64 {
        let in_flight =
            self.window as u64 + self.order.rate * self.share.0 / self.share.1.max(1) / 100;
        in_flight * self.subscriptions
    }

    fn undelivered(&self) -> u64 {
        (self.publisher.settled * self.subscriptions).saturating_sub(self.consumers.counts.received)
    }

    fn begin(&mut self, start: u64) {
        let control = &self.ties.control;
        let measured = control.from.load(Relaxed)..control.to.load(Relaxed);
        self.start = start;
        self.phase = Phase::Load;
        self.publisher.pace = match self.order.rate {
            0 if self.order.has_backlog => Pace::Stopped,
            0 => Pace::Window,
            rate => Pace::Rate(Schedule::share(start, rate, self.share.0, self.share.1)),
        };
        self.publisher.latencies.forget();
        self.publisher.latencies.measured = measured.clone();
        // The age of whatever a reader of unknown messages finds.
        self.consumers.latencies.measured = match self.order.conduct.run {
            Some(_) => measured,
            None => 0..u64::MAX,
        };
        self.consumers.begin(&mut self.links, start);
    }

    fn send_interval_if_due(&mut self, now: u64) -> Result<()> {
        let second = now.saturating_sub(self.start) / 1_000_000_000;
        if second > self.second {
            self.send_interval()?;
            self.second = second;
        }
        Ok(())
    }

    fn send_interval(&mut self) -> Result<()> {
        if self.phase == Phase::Fill {
            return Ok(());
        }
        let interval = Interval {
            second: self.second,
            publish: self.publisher.latencies.take()?,
            delivery: self.consumers.latencies.take()?,
        };
        // If nobody listens any more, the run has ended.
        let _ = self.ties.intervals.send(interval);
        Ok(())
    }

    fn show(&self) {
        let (gauges, counts) = (&self.ties.gauges, &self.consumers.counts);
        gauges.sent.store(self.publisher.sent, Relaxed);
        gauges.settled.store(self.publisher.settled, Relaxed);
        gauges.received.store(counts.received, Relaxed);
        gauges.timely.store(counts.timely, Relaxed);
        gauges.payload_bytes.store(counts.payload_bytes, Relaxed);
        gauges
            .outstanding
            .store(self.publisher.outstanding as u64, Relaxed);
        gauges.undelivered.store(self.undelivered(), Relaxed);
        gauges.turns.fetch_add(1, Relaxed);
    }

    /// Closes the consumers and waits until the broker confirms.
    async fn end(&mut self) -> Result<()> {
        let until = monotonic_ns() + CLOSE_PATIENCE;
        let unsubscribe = self.order.unsubscribe;
        loop {
            let all = self.consumers.close(&mut self.links, unsubscribe);
            if all && self.consumers.closed() {
                return Ok(());
            }
            if monotonic_ns() > until {
                return fail("the broker did not confirm the closing of all consumers within 5 s");
            }
            self.links.flush();
            let (publisher, consumers) = (&mut self.publisher, &mut self.consumers);
            let consuming = &self.consuming;
            let turn = self.links.turn(0, |link, frame, out, now| {
                if !consuming.get(link).copied().unwrap_or(false) {
                    publisher.handle(frame, out, now)
                } else if frame.type_is(vela_proto::base_command::Type::Message) {
                    // Deliveries still under way are not wanted any more.
                    Ok(())
                } else {
                    consumers.handle(frame, out, now)
                }
            })?;
            self.links.flush();
            if let Some((index, reason)) = self.links.closed.first() {
                return fail(format!("connection {index} ended: {reason}"));
            }
            if turn.read == 0 {
                let now = monotonic_ns();
                self.links.wait(0, now + MAX_WAIT).await;
            }
            self.ties.gauges.turns.fetch_add(1, Relaxed);
        }
    }
}
