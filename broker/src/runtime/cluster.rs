//! All cores of one broker, from start to end.

use super::clock::Clock;
use super::core::Setup;
use super::error::StartError;
use super::executor::{self, Placing, Start};
use super::memory::Intake;
use super::port::{CoreEngine, CoreId, Figures, Storage};
use super::post::Post;
use super::watchdog;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the end may take before it is given up.
pub(super) const END_LIMIT: Duration = Duration::from_secs(10);

/// How long a core may take to begin before its thread is given up and replaced, and how often.
const BEGIN_LIMIT: Duration = Duration::from_millis(250);
const BEGIN_TRIES: u32 = 40;

/// What all cores have in common.
pub(super) struct Common {
    pub(super) cpus: Vec<usize>,
    pub(super) io_memory: usize,
    pub(super) tick_us: u64,
    pub(super) clock: Clock,
    pub(super) intake: Arc<Intake>,
}

/// Running cores.
pub(super) struct Cluster<M> {
    pub(super) post: Arc<Post<M>>,
    pub(super) figures: Vec<Arc<Mutex<Figures>>>,
    threads: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl<M: Send + 'static> Cluster<M> {
    /// Starts one core per CPU, with the engine and storage that `parts` makes on that core's thread.
    ///
    /// # Errors
    /// If one of them cannot be started; the others are ended then.
    pub(super) fn start<E, S, F>(
        common: &Common,
        post: Arc<Post<M>>,
        parts: Vec<F>,
    ) -> Result<Self, StartError>
    where
        E: CoreEngine<Message = M>,
        S: Storage<E>,
        F: FnOnce() -> (E, S) + Send + 'static,
    {
        let mut cluster = Self {
            post,
            figures: Vec::new(),
            threads: Vec::new(),
            over: Arc::new(AtomicBool::new(false)),
        };
        let over = Arc::clone(&cluster.over);
        watchdog::spawn(Arc::clone(&cluster.post), move || {
            over.load(Ordering::Acquire)
        })
        .map_err(|cause| StartError::System {
            what: "cannot start the watchdog",
            cause,
        })?;
        let (ready, outcomes) = channel();
        let mut starts: Vec<(CoreId, Placing, Start<F>)> = Vec::new();
        for ((id, cpu), parts) in (0..).zip(&common.cpus).zip(parts) {
            let figures = Arc::new(Mutex::new(Figures::default()));
            cluster.figures.push(Arc::clone(&figures));
            let setup = Setup {
                id,
                clock: common.clock,
                tick_us: common.tick_us,
                intake: Arc::clone(&common.intake),
                figures,
            };
            let placing = Placing {
                cpu: *cpu,
                io_memory: common.io_memory,
            };
            starts.push((id, placing, Arc::new(Mutex::new(Some((setup, parts))))));
        }
        let begin = |cluster: &Self, (id, placing, start): &(CoreId, Placing, Start<F>)| {
            executor::spawn(
                *id,
                Arc::clone(start),
                *placing,
                Arc::clone(&cluster.post),
                ready.clone(),
            )
            .map_err(|cause| {
                cluster.abandon();
                StartError::Executor {
                    core: *id,
                    cause: cause.to_string(),
                }
            })
        };
        for start in &starts {
            let thread = begin(&cluster, start)?;
            cluster.threads.push(thread);
        }
        let (mut waiting, mut tries) = (starts.len(), 1);
        while waiting > 0 {
            match outcomes.recv_timeout(BEGIN_LIMIT) {
                Ok(Ok(())) => waiting -= 1,
                Ok(Err(error)) => {
                    cluster.abandon();
                    return Err(error);
                }
                Err(_) if tries < BEGIN_TRIES => {
                    tries += 1;
                    for (thread, start) in cluster.threads.iter_mut().zip(&starts) {
                        if !executor::has_begun(&start.2) {
                            tracing::warn!(core = start.0, "core did not begin, once more");
                            // The thread that sleeps holds nothing; it ends should it ever wake.
                            *thread = executor::spawn(
                                start.0,
                                Arc::clone(&start.2),
                                start.1,
                                Arc::clone(&cluster.post),
                                ready.clone(),
                            )
                            .map_err(|cause| StartError::System {
                                what: "cannot start a core's thread",
                                cause,
                            })?;
                        }
                    }
                }
                // A core that has begun is only slow, for it has much to set up.
                Err(_) => {
                    let late = starts.iter().find(|start| !executor::has_begun(&start.2));
                    if let Some(late) = late {
                        cluster.abandon();
                        return Err(StartError::Executor {
                            core: late.0,
                            cause: "its thread does not run".to_owned(),
                        });
                    }
                }
            }
        }
        Ok(cluster)
    }

    /// Ends those cores that did start. A core that failed never becomes quiet, so none is waited for.
    fn abandon(&self) {
        self.post.stop();
        self.over.store(true, Ordering::Release);
    }

    /// Ends all cores: what is in flight is finished, logs are closed. False: it took too long, and something
    /// is still running.
    pub(super) fn stop(self) -> bool {
        self.post.stop();
        let started = Instant::now();
        let mut late = false;
        for (core, thread) in (0 as CoreId..).zip(self.threads) {
            while !thread.is_finished() && started.elapsed() < END_LIMIT {
                std::thread::sleep(Duration::from_millis(2));
            }
            if !thread.is_finished() {
                tracing::error!(core, "core did not end within {} s", END_LIMIT.as_secs());
                late = true;
            } else if thread.join().is_err() {
                late = true;
            }
        }
        self.over.store(true, Ordering::Release);
        !late
    }
}
