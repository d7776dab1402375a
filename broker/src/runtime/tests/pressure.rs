//! Buffer memory that is short: cores give up what they keep only to be quicker, woken by whoever presses the budget.

use super::echo::*;
use super::network::eventually;
use crate::runtime::memory::Intake;
use crate::runtime::port::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vela_codec::{Frame, Sizes};
use vela_limiter::{BufferMemory, Holder, MemoryLimiter, Mode};

/// An engine without connections that holds what the test says.
struct Hoarder {
    core: usize,
    caches: Arc<[AtomicU64; 2]>,
    out: Out,
}

impl CoreEngine for Hoarder {
    type Message = ();
    type Out = Out;

    fn accept(&mut self, _: SocketAddr, _: SocketAddr, _: Now) -> ConnId {
        panic!("nobody connects")
    }

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn wants_frames(&mut self, _: ConnId) -> bool {
        false
    }

    fn frame(&mut self, _: ConnId, _: Frame, _: Now) {}
    fn closed(&mut self, _: ConnId, _: Now) {}

    fn output(&mut self, _: ConnId) -> Option<&mut Out> {
        Some(&mut self.out)
    }

    fn sent(&mut self, _: ConnId, _: Now) {}
    fn mail(&mut self, _: CoreId, _: Vec<()>, _: Now) {}
    fn tick(&mut self, _: Now) {}

    fn next_wakeup(&self) -> Option<u64> {
        None
    }

    fn end_of_turn(&mut self, _: Now) -> bool {
        false
    }

    fn shutdown(&mut self, _: Now) {}
    fn checkpoint(&mut self, _: Now) {}

    fn is_quiet(&self) -> bool {
        true
    }

    fn take_network(&mut self, into: &mut NetworkEffects<()>) {
        into.mail.resize_with(2, Vec::new);
    }

    fn buffer_memory(&self) -> Held {
        Held {
            cache: self.caches[self.core].load(Ordering::SeqCst) as usize,
            ..Held::default()
        }
    }

    fn shrink_cache(&mut self, bytes: u64) {
        let cache = &self.caches[self.core];
        let held = cache.load(Ordering::SeqCst);
        cache.store(held.saturating_sub(bytes), Ordering::SeqCst);
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }
}

#[test]
fn caches_give_way_and_never_keep_auto_active() {
    let memory = Arc::new(BufferMemory::new(1000));
    let limiter = MemoryLimiter::new(Mode::Auto, 100, Arc::clone(&memory));
    let intake = Arc::new(Intake::new(
        Arc::new(limiter),
        Sizes::default(),
        true,
        30_000,
    ));
    let caches: Arc<[AtomicU64; 2]> = Arc::default();
    let shared = Arc::clone(&caches);
    let server = Running::of(2, 0, intake, move |core| {
        let engine = Hoarder {
            core: usize::from(core),
            caches: Arc::clone(&shared),
            out: Out::default(),
        };
        (engine, NoStorage)
    });
    let limiter = &server.intake.limiter;
    let held = || -> u64 {
        caches
            .iter()
            .map(|cache| cache.load(Ordering::SeqCst))
            .sum()
    };
    let settled = |most: u64| {
        held() < most && held() == memory.held_by(Holder::Cache) && !limiter.state().pressed
    };

    for (cache, bytes) in caches.iter().zip([300, 549]) {
        cache.store(bytes, Ordering::SeqCst);
    }
    eventually("all is reported", || memory.in_use() == 849);
    assert!(!limiter.state().pressed && held() == 849);

    // One more at one core, and both hear of it.
    caches[0].fetch_add(1, Ordering::SeqCst);
    server.cluster.post.wake(0);
    eventually("they gave way", || settled(650));

    // The same for what inbound frames take, which stays: `auto` stands down all the same.
    caches[1].store(600, Ordering::SeqCst);
    server.cluster.post.wake(1);
    eventually("all is reported", || memory.in_use() == held());
    let inbound = 300;
    let begun = limiter.transitions().activated;
    limiter.allocated(inbound);
    eventually("it stood down", || {
        limiter.transitions().stood_down == begun + 1 && settled(350)
    });
    assert_eq!(limiter.retained(), inbound as u64);
    assert!(!limiter.is_throttled());
    limiter.released(inbound);
    server.stop();
}
