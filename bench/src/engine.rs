//! A whole run: opens everything, starts an executor per processor, watches them and the broker, and adds up what they bring back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::consumers::{Conduct, Counts};
use crate::error::{Context as _, Failure, Result, fail};
use crate::links::Woken;
use crate::measure::{self, Cost, Latencies, RssSummary, monotonic_ns, ns, own_cpu_seconds};
use crate::observer::{Look, Metrics, Observer, Scraper, Sources};
use crate::progress::Progress;
use crate::scenario::Settings;
use crate::setup::{self, Place, Plan};
use crate::verify::Verification;
use crate::worker::{self, Control, Done, Gauges, Interval, Order, Parcel, Ties};

const SECOND: u64 = 1_000_000_000;
/// An executor whose thread has not begun after this long is replaced.
const BEGIN_WITHIN: u64 = 2 * SECOND;
/// An executor that makes no turn for this long is woken; it makes one every 10 ms.
const STILL: u64 = SECOND / 4;
/// Longest pause between two looks at everything.
const LOOK_EVERY: u64 = 20_000_000;
/// Turns in a row that find nothing before a connection is armed, under a paced load.
const PATIENT: u32 = 16;
/// From everything being ready to the start of load.
const LEAD: u64 = 5_000_000;

/// What is to be run.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) settings: Settings,
    pub(crate) place: Place,
    /// Whatever is delivered counts, not only what this run published.
    pub(crate) any_run: bool,
    /// Stop after so many deliveries instead of after a time.
    pub(crate) messages: Option<u64>,
    /// Missing messages are waited for at the end, and lost if they do not come.
    pub(crate) complete: bool,
    /// Subscriptions are removed at the end.
    pub(crate) unsubscribe: bool,
    /// One executor on each; without, one anywhere.
    pub(crate) cpus: Option<Vec<usize>>,
    pub(crate) sources: Sources,
    /// SIGINT and SIGTERM end the load, not the process: what was seen until then is told.
    pub(crate) interruptible: bool,
}

/// When in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Warmup,
    Measured,
    Drain,
}

/// What was counted at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    /// Monotonic nanoseconds.
    pub(crate) at: u64,
    pub(crate) sent: u64,
    pub(crate) settled: u64,
    pub(crate) counts: Counts,
    outstanding: u64,
    undelivered: u64,
    own_cpu: f64,
    look: Look,
}

/// A second of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Seconds since the start of load: the end of this second.
    pub(crate) t: f64,
    pub(crate) phase: Phase,
    pub(crate) sent_per_second: f64,
    pub(crate) published_per_second: f64,
    pub(crate) delivered_per_second: f64,
    pub(crate) outstanding: u64,
    pub(crate) backlog: u64,
    pub(crate) broker_cpu_cores: Option<f64>,
    pub(crate) broker_rss: Option<u64>,
    pub(crate) metrics: Metrics,
    pub(crate) own_cpu_cores: f64,
}

/// How long the consumers took to catch up.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Drain {
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    pub(crate) messages_per_second: f64,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    /// When load began.
    pub(crate) started: SystemTime,
    /// The same in monotonic nanoseconds.
    pub(crate) start_ns: u64,
    /// Begin and end of the measured window, and the end of all.
    pub(crate) from: Mark,
    pub(crate) to: Mark,
    pub(crate) end: Mark,
    pub(crate) cost: Cost,
    pub(crate) publish: Latencies,
    pub(crate) delivery: Latencies,
    /// By second of the load.
    pub(crate) intervals: BTreeMap<u64, (Latencies, Latencies)>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) drain: Option<Drain>,
    /// How late a message due in the measured window left at worst, in nanoseconds.
    pub(crate) late_max: u64,
    /// Messages that were due in the measured window and never sent.
    pub(crate) unsent: u64,
    pub(crate) verification: Verification,
    pub(crate) interrupted: bool,
    /// Why the run does not count; none: it does.
    pub(crate) faults: Vec<String>,
}

impl Spec {
    fn order(&self, plan: &Plan) -> Order {
        let settings = &self.settings;
        let run = (!self.any_run).then_some(self.place.run);
        let paced = settings.rate > 0 || settings.clients == 0;
        let per_tick = settings.rate * u64::from(settings.tick_us) / 1_000_000;
        Order {
            cpu: None,
            conduct: Conduct::new(settings, plan, run),
            batch: settings.batch,
            rate: settings.rate,
            has_backlog: settings.backlog > 0,
            tick: if paced {
                u64::from(settings.tick_us) * 1000
            } else {
                0
            },
            // With less than a message per tick, ticks would cost more than being woken.
            patient: if per_tick > 0 { PATIENT } else { 1 },
            patience: ns(settings.patience),
            unsubscribe: self.unsubscribe,
            complete: self.complete,
        }
    }
}

struct Executor {
    gauges: Arc<Gauges>,
    woken: Arc<Woken>,
    parcel: Parcel,
    order: Order,
    ties: Ties,
    /// Turns when last looked at, and when they last grew.
    turns: (u64, u64),
}

struct Run<'a> {
    spec: &'a Spec,
    interrupt: Arc<AtomicBool>,
    control: Arc<Control>,
    executors: Vec<Executor>,
    done: Receiver<Result<Done>>,
    results: Vec<Done>,
    finished: usize,
    intervals_from: Receiver<Interval>,
    intervals: BTreeMap<u64, (Latencies, Latencies)>,
    observer: Observer,
    scraper: Option<Scraper>,
    rss: Vec<u64>,
    samples: Vec<Sample>,
}

/// Carries out a run.
///
/// # Errors
/// If it cannot be set up. What goes wrong later stands in the outcome.
pub(crate) fn run(spec: &Spec, progress: &mut Progress) -> Result<Outcome> {
    spec.settings.check()?;
    if let Some(cpus) = &spec.cpus {
        measure::pin(cpus)?;
    }
    let observer = Observer::new(spec.sources.clone())?;
    let scraper = spec
        .sources
        .metrics_url
        .as_deref()
        .map(Scraper::start)
        .transpose()?;
    progress.note("opening connections");
    let mut plan = setup::open(
        &spec.settings,
        &spec.place,
        spec.cpus.as_ref().map_or(1, Vec::len),
    )?;
    let order = spec.order(&plan);
    let control = Arc::new(Control::default());
    let (intervals, intervals_from) = mpsc::channel();
    let (done_to, done) = mpsc::channel();
    let mut executors = Vec::new();
    for (i, part) in std::mem::take(&mut plan.parts).into_iter().enumerate() {
        let ties = Ties {
            control: Arc::clone(&control),
            gauges: Arc::new(Gauges::default()),
            woken: Arc::new(Woken::default()),
            intervals: intervals.clone(),
            done: done_to.clone(),
        };
        executors.push(Executor {
            gauges: Arc::clone(&ties.gauges),
            woken: Arc::clone(&ties.woken),
            parcel: Arc::new(Mutex::new(Some(part))),
            order: Order {
                cpu: spec.cpus.as_ref().and_then(|cpus| cpus.get(i).copied()),
                ..order.clone()
            },
            ties,
            turns: (0, monotonic_ns()),
        });
    }
    let interrupt = Arc::new(AtomicBool::new(false));
    if spec.interruptible {
        // Until here there was nothing to tell.
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt))
                .context(|| "cannot take signals".into())?;
        }
    }
    let run = Run {
        spec,
        interrupt,
        control,
        executors,
        done,
        results: Vec::new(),
        finished: 0,
        intervals_from,
        intervals: BTreeMap::new(),
        observer,
        scraper,
        rss: Vec::new(),
        samples: Vec::new(),
    };
    run.carry_out(&plan, progress)
}

impl Run<'_> {
    fn carry_out(mut self, plan: &Plan, progress: &mut Progress) -> Result<Outcome> {
        for executor in &self.executors {
            worker::spawn(
                Arc::clone(&executor.parcel),
                executor.order.clone(),
                executor.ties.clone(),
            )?;
        }
        self.await_ready(progress)?;
        let settings = &self.spec.settings;
        let start = monotonic_ns() + LEAD;
        let started = SystemTime::now() + Duration::from_nanos(LEAD);
        let from = start
            + ns(if self.spec.messages.is_some() {
                0.0
            } else {
                settings.warmup
            });
        // A number of messages ends the run, not a time.
        let mut to = match self.spec.messages {
            Some(_) => u64::MAX,
            None => from + ns(settings.duration),
        };
        self.control.from.store(from, Relaxed);
        self.control.to.store(to, Relaxed);
        self.control.start.store(start, Relaxed);
        let mut interrupted = false;
        let (mut begun, mut ended): (Option<Mark>, Option<Mark>) = (None, None);
        let mut last = self.mark(true);
        let mut next_second = start + SECOND;
        let mut moved = (0, start);
        while self.finished < self.executors.len() {
            let now = monotonic_ns();
            if self.interrupt.load(Relaxed) && !interrupted {
                interrupted = true;
                self.control.fail("interrupted".into());
            }
            if begun.is_none() && now >= from {
                begun = Some(self.mark(true));
            }
            if ended.is_none() {
                if let Some(end) = self.early_end(now, &mut moved) {
                    to = end;
                    self.control.to.store(to, Relaxed);
                }
                if now >= to {
                    ended = Some(self.mark(true));
                }
            }
            if now >= next_second {
                let mark = self.mark(true);
                let phase = match now {
                    // The second that has just ended.
                    now if now - SECOND / 2 < from => Phase::Warmup,
                    now if now - SECOND / 2 < to => Phase::Measured,
                    _ => Phase::Drain,
                };
                self.sample(start, phase, &last, &mark);
                last = mark;
                next_second += SECOND * ((now - next_second) / SECOND + 1);
                if let Some(sample) = self.samples.last() {
                    progress.second(
                        sample,
                        (from.saturating_sub(start), to.saturating_sub(start)),
                        self.intervals.values().next_back(),
                    );
                }
            }
            self.wake_the_still(now);
            let mut next = next_second.min(now + LOOK_EVERY);
            for moment in [from, to] {
                if moment > now {
                    next = next.min(moment);
                }
            }
            self.receive(Duration::from_nanos(next.saturating_sub(monotonic_ns())));
        }
        self.collect_intervals();
        progress.end();
        let end = self.mark(true);
        let from = begun.unwrap_or(end);
        let to = ended.unwrap_or(end);
        let drain = self.drained(start, settings);
        self.outcome(plan, (started, start), (from, to, end), drain, interrupted)
    }

    /// Until every executor has begun and the backlog, if any, is there.
    fn await_ready(&mut self, progress: &mut Progress) -> Result<()> {
        let mut asked = monotonic_ns();
        let mut said = asked;
        while self.finished == 0
            && !self
                .executors
                .iter()
                .all(|each| each.gauges.ready.load(Relaxed))
        {
            let now = monotonic_ns();
            if now > asked + BEGIN_WITHIN {
                asked = now;
                for executor in &self.executors {
                    let waits = executor
                        .parcel
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .is_some();
                    if waits {
                        worker::spawn(
                            Arc::clone(&executor.parcel),
                            executor.order.clone(),
                            executor.ties.clone(),
                        )?;
                    }
                }
            }
            if self.interrupt.load(Relaxed) {
                return fail("interrupted before the load began");
            }
            if self.spec.settings.backlog > 0 && now > said + SECOND {
                said = now;
                let settled: u64 = self
                    .executors
                    .iter()
                    .map(|each| each.gauges.settled.load(Relaxed))
                    .sum();
                progress.note(&format!(
                    "backlog: {settled} of {} messages",
                    self.spec.settings.backlog
                ));
            }
            self.wake_the_still(now);
            self.receive(Duration::from_nanos(LOOK_EVERY / 10));
        }
        Ok(())
    }

    /// Waits for the next executor to finish, at most so long.
    fn receive(&mut self, wait: Duration) {
        match self.done.recv_timeout(wait) {
            Ok(Ok(done)) => {
                self.results.push(done);
                self.finished += 1;
            }
            // Its fault stands in the control.
            Ok(Err(_)) => self.finished += 1,
            // Nobody hangs up: we hold the other end ourselves.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        self.collect_intervals();
    }

    fn collect_intervals(&mut self) {
        while let Ok(interval) = self.intervals_from.try_recv() {
            let added = match self.intervals.get_mut(&interval.second) {
                Some((publish, delivery)) => publish
                    .add(&interval.publish)
                    .and_then(|()| delivery.add(&interval.delivery)),
                None => {
                    self.intervals
                        .insert(interval.second, (interval.publish, interval.delivery));
                    Ok(())
                }
            };
            if let Err(Failure(fault)) = added {
                self.control.fail(fault);
            }
        }
    }

    /// Whether the run is to end now, before its time.
    fn early_end(&self, now: u64, moved: &mut (u64, u64)) -> Option<u64> {
        if self.control.abort.load(Relaxed) {
            return Some(now);
        }
        if self.spec.settings.backlog > 0 {
            let all = self
                .executors
                .iter()
                .all(|each| each.gauges.caught_up.load(Relaxed) > 0);
            return all.then_some(now);
        }
        let wanted = self.spec.messages?;
        let received: u64 = self
            .executors
            .iter()
            .map(|each| each.gauges.received.load(Relaxed))
            .sum();
        if received >= wanted {
            return Some(now);
        }
        if received != moved.0 {
            *moved = (received, now);
        }
        let patience = self.spec.settings.patience;
        if now > moved.1 + ns(patience) {
            self.control.fail(format!(
                "{received} of {wanted} messages came, then none came for {patience} s"
            ));
        }
        None
    }

    /// When and how fast the consumers had caught up with the backlog.
    fn drained(&self, start: u64, settings: &Settings) -> Option<Drain> {
        let caught_up = self
            .executors
            .iter()
            .map(|each| each.gauges.caught_up.load(Relaxed));
        let at = match settings.backlog {
            0 => return None,
            _ if caught_up.clone().any(|at| at == 0) => return None,
            _ => caught_up.max()?,
        };
        let seconds = at.saturating_sub(start) as f64 / 1e9;
        let behind = settings.rate as f64 * seconds;
        let messages = (settings.backlog as f64 + behind) * f64::from(settings.subscriptions);
        Some(Drain {
            messages: messages as u64,
            seconds,
            messages_per_second: messages / seconds.max(1e-9),
        })
    }

    /// Wakes executors that stand still: one that is parked by mistake stays so.
    fn wake_the_still(&mut self, now: u64) {
        for executor in &mut self.executors {
            let turns = executor.gauges.turns.load(Relaxed);
            if turns != executor.turns.0 {
                executor.turns = (turns, now);
            } else if now > executor.turns.1 + STILL {
                executor.turns.1 = now;
                executor.woken.wake();
            }
        }
    }

    /// Counts of all executors, and a look at the broker if it is wanted.
    fn mark(&mut self, look: bool) -> Mark {
        let mut mark = Mark {
            own_cpu: own_cpu_seconds(),
            ..Mark::default()
        };
        if look {
            match self.observer.look() {
                Ok(look) => mark.look = look,
                Err(Failure(fault)) => self.control.fail(fault),
            }
        }
        for Executor { gauges, .. } in &self.executors {
            mark.sent += gauges.sent.load(Relaxed);
            mark.settled += gauges.settled.load(Relaxed);
            mark.counts.received += gauges.received.load(Relaxed);
            mark.counts.timely += gauges.timely.load(Relaxed);
            mark.counts.payload_bytes += gauges.payload_bytes.load(Relaxed);
            mark.outstanding += gauges.outstanding.load(Relaxed);
            mark.undelivered += gauges.undelivered.load(Relaxed);
        }
        mark.at = monotonic_ns();
        mark
    }

    fn sample(&mut self, start: u64, phase: Phase, before: &Mark, mark: &Mark) {
        let seconds = ((mark.at - before.at) as f64 / 1e9).max(1e-9);
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        if phase == Phase::Measured {
            self.rss.extend(mark.look.rss);
        }
        self.samples.push(Sample {
            t: mark.at.saturating_sub(start) as f64 / 1e9,
            phase,
            sent_per_second: per_second(mark.sent, before.sent),
            published_per_second: per_second(mark.settled, before.settled),
            delivered_per_second: per_second(mark.counts.timely, before.counts.timely),
            outstanding: mark.outstanding,
            backlog: mark.undelivered,
            broker_cpu_cores: match (before.look.cpu_seconds, mark.look.cpu_seconds) {
                (Some(before), Some(now)) => Some((now - before) / seconds),
                _ => None,
            },
            broker_rss: mark.look.rss,
            metrics: self
                .scraper
                .as_ref()
                .and_then(Scraper::take)
                .unwrap_or_default(),
            own_cpu_cores: (mark.own_cpu - before.own_cpu) / seconds,
        });
    }

    fn outcome(
        mut self,
        plan: &Plan,
        (started, start_ns): (SystemTime, u64),
        (from, to, end): (Mark, Mark, Mark),
        drain: Option<Drain>,
        interrupted: bool,
    ) -> Result<Outcome> {
        let (mut publish, mut delivery) = (Latencies::new()?, Latencies::new()?);
        let mut verification = Verification::default();
        let (mut late_max, mut unsent) = (0, 0);
        for done in self.results {
            publish.add(&done.publish)?;
            delivery.add(&done.delivery)?;
            late_max = late_max.max(done.late_max);
            unsent += done.unsent;
            verification.add(done.verification);
        }
        let mut faults: Vec<_> = self.control.fault().into_iter().collect();
        faults.extend(verification.faults(self.spec.settings.expect_redelivered));
        self.rss.extend(from.look.rss);
        self.rss.extend(to.look.rss);
        let cost = Cost {
            seconds: (to.at - from.at) as f64 / 1e9,
            own_cpu_seconds: to.own_cpu - from.own_cpu,
            broker_cpu_seconds: match (from.look.cpu_seconds, to.look.cpu_seconds) {
                (Some(from), Some(to)) => Some(to - from),
                _ => None,
            },
            broker_rss: RssSummary::of(self.rss),
        };
        Ok(Outcome {
            producers: plan.producers,
            consumers: plan.consumers,
            started,
            start_ns,
            from,
            to,
            end,
            cost,
            publish,
            delivery,
            intervals: self.intervals,
            samples: self.samples,
            drain,
            late_max,
            unsent,
            verification,
            interrupted,
            faults,
        })
    }
}
