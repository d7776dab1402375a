//! A thread that sees cores stand still: the heartbeat makes a turn at least every 25 ms, so a second
//! without one means that a core is stuck in code, or parked by mistake, or starved of its CPU.

use super::port::CoreId;
use super::post::Post;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long a core may make no turn.
const STALL: Duration = Duration::from_secs(1);

struct Seen {
    turns: u64,
    since: Instant,
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
                        reported: false,
                    };
                    (core, seen)
                })
                .collect();
            while !done() {
                std::thread::sleep(LOOK);
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
            tracing::warn!(
                core,
                stood_ms = seen.since.elapsed().as_millis(),
                "core goes on"
            );
        }
        *seen = Seen {
            turns,
            since: Instant::now(),
            reported: false,
        };
    } else if !seen.reported && seen.since.elapsed() >= STALL {
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
