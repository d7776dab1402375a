//! A thread that keeps the cores going, and sees one stand still.
//!
//! A core's heart makes a turn at least every 25 ms, every 4 ms while there is work. A core that misses its
//! beat may be parked by mistake (see the executor), its heart included: the watchdog kicks it, which ends a
//! wrong park for certain and costs nothing otherwise. A second without a turn, kicks or not, means that the
//! core is stuck in code or starved of its CPU: that is logged and counted.

use super::port::CoreId;
use super::post::Post;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the watchdog looks while some core is busy, and while none is.
const LOOK_BUSY: Duration = Duration::from_millis(5);
const LOOK_IDLE: Duration = Duration::from_millis(20);
/// Time without a turn after which a core is kicked: more than two beats of a busy core, and more than one of
/// an idle one.
const MISSED_BUSY: Duration = Duration::from_millis(10);
const MISSED_IDLE: Duration = Duration::from_millis(40);
/// How long a core may make no turn before it is reported.
const STALL: Duration = Duration::from_secs(1);

/// What the watchdog knows of one core.
struct Seen {
    turns: u64,
    since: Instant,
    kicked: Instant,
    reported: bool,
}

/// Watches all cores until `done` says so.
pub(super) fn spawn<M: Send + 'static>(
    post: Arc<Post<M>>,
    done: impl Fn() -> bool + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("vela-watchdog".to_owned())
        .spawn(move || {
            let now = Instant::now();
            let mut seen: Vec<(CoreId, Seen)> = (0..post.cores())
                .map(|core| {
                    let seen = Seen {
                        turns: post.turns(core),
                        since: now,
                        kicked: now,
                        reported: false,
                    };
                    (core, seen)
                })
                .collect();
            while !done() {
                let busy = (0..post.cores()).any(|core| post.is_busy(core));
                std::thread::sleep(if busy { LOOK_BUSY } else { LOOK_IDLE });
                for (core, seen) in &mut seen {
                    look(&post, *core, seen);
                }
            }
        })
}

fn look<M: Send + 'static>(post: &Post<M>, core: CoreId, seen: &mut Seen) {
    let turns = post.turns(core);
    let now = Instant::now();
    if turns != seen.turns {
        if seen.reported {
            tracing::warn!(
                core,
                stood_ms = now.duration_since(seen.since).as_millis(),
                "core goes on"
            );
        }
        *seen = Seen {
            turns,
            since: now,
            kicked: now,
            reported: false,
        };
        return;
    }
    let missed = match (seen.reported, post.is_busy(core)) {
        // It does not react: once a second is enough.
        (true, _) => STALL,
        (false, true) => MISSED_BUSY,
        (false, false) => MISSED_IDLE,
    };
    if now.duration_since(seen.kicked) >= missed {
        seen.kicked = now;
        post.kick(core);
    }
    if !seen.reported && now.duration_since(seen.since) >= STALL {
        seen.reported = true;
        post.count_stall(core);
        tracing::error!(
            core,
            turns,
            mail = post.has_mail(core),
            "core stands still: no turn for {} ms",
            STALL.as_millis()
        );
    }
}
