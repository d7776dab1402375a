//! A thread that keeps cores going, and sees those that stand still.
//!
//! glommio may park an executor although tasks are ready: when preemption is pending the moment it looks, it looks no
//! further. If the ready tasks are the turn, and the heart whose timer has just fired, nothing inside that executor will
//! ever wake it. So the pulse comes from outside: a core that made no turn since the last look is woken from here, every
//! few milliseconds while there is work. A core that still makes none for a second is stuck in code or starved of its
//! CPU: that is logged and counted.

use super::port::CoreId;
use super::post::Post;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the watchdog looks while a core has work, and when none has.
const LOOK_BUSY: Duration = Duration::from_millis(4);
const LOOK_IDLE: Duration = Duration::from_millis(50);
/// How long a core may make no turn.
const STALL: Duration = Duration::from_secs(1);

struct Seen {
    turns: u64,
    since: Instant,
    pulsed: Instant,
    reported: bool,
}

/// Watches all cores until `done` says so, and counts and logs each stall once.
pub(super) fn spawn<M: Send + 'static>(
    post: Arc<Post<M>>,
    done: impl Fn() -> bool + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("vela-watchdog".to_owned())
        .spawn(move || {
            let mut seen: Vec<(CoreId, Seen)> = (0..post.cores())
                .map(|core| {
                    let seen = Seen {
                        turns: post.turns(core),
                        since: Instant::now(),
                        pulsed: Instant::now(),
                        reported: false,
                    };
                    (core, seen)
                })
                .collect();
            while !done() {
                std::thread::sleep(if post.any_busy() {
                    LOOK_BUSY
                } else {
                    LOOK_IDLE
                });
                for (core, seen) in &mut seen {
                    look(&post, *core, seen);
                }
            }
        })
}

fn look<M: Send + 'static>(post: &Post<M>, core: CoreId, seen: &mut Seen) {
    let turns = post.turns(core);
    if turns != seen.turns {
        if seen.reported {
            post.goes_on(core);
            tracing::warn!(
                core,
                stood_ms = seen.since.elapsed().as_millis(),
                "core goes on"
            );
        }
        *seen = Seen {
            turns,
            since: Instant::now(),
            pulsed: Instant::now(),
            reported: false,
        };
        return;
    }
    // A core that does not react for long is not parked: once in a while is enough, for pulses it does not take add up.
    if !seen.reported || seen.pulsed.elapsed() >= STALL {
        seen.pulsed = Instant::now();
        post.pulse(core);
    }
    if !seen.reported && seen.since.elapsed() >= STALL {
        seen.reported = true;
        post.count_stall(core);
        tracing::error!(
            core,
            turns,
            mail = post.has_mail(core),
            thread = thread_state(post.thread(core)),
            "core stands still: no turn for {} ms",
            STALL.as_millis()
        );
    }
}

/// What the kernel says a thread is doing: the first thing to know about a core that stands still.
fn thread_state(thread: i32) -> String {
    let dir = format!("/proc/self/task/{thread}");
    let read = |name: &str| std::fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default();
    let stat = read("stat");
    // The state stands behind the name, which is in brackets and may hold anything.
    let state = stat.rsplit(')').next().unwrap_or_default();
    match state.trim_start().chars().next() {
        Some('R') => "waits for its CPU or runs on it".to_owned(),
        Some('S') => format!("sleeps in {}", read("wchan")),
        Some('D') => format!("waits for a device in {}", read("wchan")),
        Some(other) => format!("state {other}"),
        None => "unknown".to_owned(),
    }
}
