//! One executor per core: a pinned thread with glommio's rings, the turn, the heartbeat, and one task per
//! connection.
//!
//! glommio 0.9 can park although tasks are ready (when its preemption timer has expired before the task
//! queues are looked at). If the heart is one of them, no timer is left to end the park. Therefore the watchdog, a thread
//! outside, wakes a core that has made no turn for a few milliseconds; no task is ever ready for ever; none is cancelled
//! or raced.

use super::core::{Core, Setup};
use super::error::StartError;
use super::port::{CoreEngine, CoreId, Storage};
use super::post::Post;
use glommio::timer::Timer;
use glommio::{LocalExecutorBuilder, Placement};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the executor looks at its rings while tasks run.
const PREEMPT: Duration = Duration::from_millis(1);
/// Entries of each ring. Readiness polls in excess of it wait in glommio's own queue. The kernel sizes the table of armed polls
/// by it and looks through a part of that table whenever the executor goes to sleep, so with few entries 10,000 idle connections cost
/// 30 us each time; this many make it a few.
const RING_DEPTH: usize = 2048;

/// How an executor is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placing {
    /// The CPU it is pinned to.
    pub(super) cpu: usize,
    /// Memory registered with the kernel, in bytes.
    pub(super) io_memory: usize,
}

/// What a core is made of, until its thread takes it. A thread can be parked by mistake before it runs its
/// first task, where nothing can wake it; it has taken nothing then, and another thread takes its place.
pub(super) type Start<F> = Arc<Mutex<Option<(Setup, F)>>>;

/// Whether the core's thread has begun.
pub(super) fn has_begun<F>(start: &Start<F>) -> bool {
    start.lock().map_or(true, |start| start.is_none())
}

/// Starts a thread for core `core`. `parts` make its engine and storage there; `ready` hears how it went.
///
/// # Errors
/// If the thread cannot be made. All else is told through `ready`.
pub(super) fn spawn<E, S, F>(
    core: CoreId,
    start: Start<F>,
    placing: Placing,
    post: Arc<Post<E::Message>>,
    ready: Sender<Result<(), StartError>>,
) -> std::io::Result<JoinHandle<()>>
where
    E: CoreEngine,
    S: Storage<E>,
    F: FnOnce() -> (E, S) + Send + 'static,
{
    std::thread::Builder::new()
        .name(format!("vela-core-{core}"))
        .spawn(move || {
            if let Err(error) = pin(placing.cpu) {
                // Slower, not wrong.
                tracing::warn!(core, cpu = placing.cpu, "core is not pinned: {error}");
            }
            let executor = LocalExecutorBuilder::new(Placement::Unbound)
                .name("vela-core")
                .io_memory(placing.io_memory)
                .ring_depth(RING_DEPTH)
                .preempt_timer(PREEMPT)
                .make();
            match executor {
                Ok(executor) => executor.run(async move {
                    let taken = start.lock().ok().and_then(|mut start| start.take());
                    if let Some((setup, parts)) = taken {
                        run(core, setup, post, parts, ready).await;
                    }
                }),
                Err(error) => {
                    let error = StartError::Executor {
                        core,
                        cause: error.to_string(),
                    };
                    // If nobody listens any more, another core has failed first.
                    let _ = ready.send(Err(error));
                }
            }
        })
}

fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

async fn run<E, S, F>(
    id: CoreId,
    setup: Setup,
    post: Arc<Post<E::Message>>,
    parts: F,
    ready: Sender<Result<(), StartError>>,
) where
    E: CoreEngine,
    S: Storage<E>,
    F: FnOnce() -> (E, S),
{
    // From now on the watchdog can kick this core.
    poll_fn(|cx| {
        post.set_waker(id, cx.waker());
        Poll::Ready(())
    })
    .await;
    // The first sleep of an executor is late by 20 to 30 ms, once: have it now.
    Timer::new(Duration::from_micros(100)).await;
    let (engine, storage) = parts();
    let core = Rc::new(RefCell::new(Core::new(setup, post, engine, storage)));
    glommio::spawn_local(heart(Rc::clone(&core))).detach();
    let _ = ready.send(Ok(()));
    poll_fn(|cx| {
        // A new task runs at once, inside its spawn: the core must not be borrowed then.
        let (new, ended) = core.borrow_mut().poll_turn(cx);
        for key in new {
            glommio::spawn_local(serve(Rc::clone(&core), key)).detach();
        }
        if ended {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// The task of one connection.
async fn serve<E: CoreEngine, S: Storage<E>>(core: Rc<RefCell<Core<E, S>>>, key: usize) {
    poll_fn(|cx| core.borrow_mut().poll_conn(key, cx)).await;
}

/// The task that beats: timers, the read gate's tick, and the end of wrong parks. At most one beat per poll, for what a
/// beat asks for is done by other tasks: one that is due again at once must not keep them from their turn.
async fn heart<E: CoreEngine, S: Storage<E>>(core: Rc<RefCell<Core<E, S>>>) {
    let mut timer = Timer::new(Duration::from_millis(1));
    poll_fn(|cx| {
        let mut core = core.borrow_mut();
        for beaten in [false, true] {
            let Some(pause_us) = core.arm_heart(cx.waker()) else {
                return Poll::Ready(());
            };
            timer.reset(Duration::from_micros(pause_us));
            match Pin::new(&mut timer).poll(cx) {
                Poll::Pending => break,
                Poll::Ready(_) if beaten => cx.waker().wake_by_ref(),
                Poll::Ready(_) => core.beat(),
            }
        }
        Poll::Pending
    })
    .await;
}
