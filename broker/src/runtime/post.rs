//! How cores reach each other: one mailbox per core.
//!
//! A mailbox is a bounded queue of message batches, a bounded queue of accepted sockets, and one flag
//! ([`Pending`]) with one waker for both and for the core's storage helpers. A busy core looks at every
//! turn; the waker serves an idle one.
//!
//! At the bound: a batch that finds the queue full stays with its sender, merged with what follows it, so
//! order is kept; the sender reads none of its sockets until it is rid of it. The receiver tells senders
//! that were turned away when there is room. A socket that finds its queue full waits with the acceptor.

use super::guests::Ticket;
use super::port::CoreId;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::task::Waker;
use vela_limiter::Pending;

/// Batches a mailbox holds.
const BATCHES: usize = 256;
/// Accepted sockets a mailbox holds.
const SOCKETS: usize = 1024;

/// A socket that was accepted for a core.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) ticket: Ticket,
}

/// One core as the others see it.
#[derive(Debug)]
struct Place<M> {
    mail: Sender<(CoreId, Vec<M>)>,
    sockets: Sender<Accepted>,
    mail_in: Receiver<(CoreId, Vec<M>)>,
    sockets_in: Receiver<Accepted>,
    pending: Pending,
    waker: OnceLock<Waker>,
    /// A sender was turned away and wants to know when there is room.
    starved: AtomicBool,
    /// Sockets given to this core and not closed yet.
    connections: AtomicU64,
    /// Turns of the core's loop.
    turns: AtomicU64,
    /// It had work a moment ago.
    busy: AtomicBool,
    /// Its thread, as the kernel numbers it; 0 before it runs.
    thread: AtomicI32,
    /// Times the watchdog saw it stand still.
    stalls: AtomicU64,
    /// It stands still now.
    stalled: AtomicBool,
    /// The core has nothing left to do (at shutdown).
    quiet: AtomicBool,
}

/// All mailboxes. Shared by all cores, the acceptor and the storage helpers.
#[derive(Debug)]
pub(super) struct Post<M> {
    places: Vec<Place<M>>,
    stopping: AtomicBool,
}

impl<M: Send + 'static> Post<M> {
    pub(super) fn new(cores: u16) -> Self {
        let places = (0..cores)
            .map(|_| {
                let (mail, mail_in) = bounded(BATCHES);
                let (sockets, sockets_in) = bounded(SOCKETS);
                Place {
                    mail,
                    sockets,
                    mail_in,
                    sockets_in,
                    pending: Pending::new(),
                    waker: OnceLock::new(),
                    starved: AtomicBool::new(false),
                    connections: AtomicU64::new(0),
                    turns: AtomicU64::new(0),
                    busy: AtomicBool::new(false),
                    thread: AtomicI32::new(0),
                    stalls: AtomicU64::new(0),
                    stalled: AtomicBool::new(false),
                    quiet: AtomicBool::new(false),
                }
            })
            .collect();
        Self {
            places,
            stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn cores(&self) -> u16 {
        u16::try_from(self.places.len()).unwrap_or(u16::MAX)
    }

    fn place(&self, core: CoreId) -> Option<&Place<M>> {
        self.places.get(usize::from(core))
    }

    /// Says that there is something for `core`, and wakes it unless somebody did since it last looked.
    pub(super) fn wake(&self, core: CoreId) {
        if let Some(place) = self.place(core)
            && place.pending.raise()
            // No waker: the core has not begun; it looks once it has.
            && let Some(waker) = place.waker.get()
        {
            waker.wake_by_ref();
        }
    }

    /// The kernel's number of the thread of `core`; 0 before it runs.
    pub(super) fn thread(&self, core: CoreId) -> i32 {
        self.place(core)
            .map_or(0, |place| place.thread.load(Ordering::Relaxed))
    }

    /// Wakes `core` whatever its flag says: a core that was parked by mistake has already been told, and has not looked.
    /// Each call holds a reference to the core's task until it reacts (glommio bounds them at 32,767).
    pub(super) fn pulse(&self, core: CoreId) {
        if let Some(waker) = self.place(core).and_then(|place| place.waker.get()) {
            waker.wake_by_ref();
        }
    }

    /// States whether `core` has work or had some a moment ago.
    pub(super) fn set_busy(&self, core: CoreId, busy: bool) {
        if let Some(place) = self.place(core)
            && place.busy.load(Ordering::Relaxed) != busy
        {
            place.busy.store(busy, Ordering::Relaxed);
        }
    }

    /// Whether any core has work or had some a moment ago.
    pub(super) fn any_busy(&self) -> bool {
        let busy =
            |place: &Place<M>| place.busy.load(Ordering::Relaxed) || place.pending.is_raised();
        self.places.iter().any(busy)
    }

    /// Tells how `core` is woken. Called once, by the core, before it first looks.
    pub(super) fn set_waker(&self, core: CoreId, waker: &Waker) {
        if let Some(place) = self.place(core) {
            place.waker.get_or_init(|| waker.clone());
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            place.thread.store(thread, Ordering::Relaxed);
        }
    }

    /// Gives `batch` to `to`, or gives it back if there is no room.
    ///
    /// # Errors
    /// The batch, when the mailbox is full: keep it, and try again at the next turn.
    pub(super) fn send(&self, from: CoreId, to: CoreId, batch: Vec<M>) -> Result<(), Vec<M>> {
        let Some(place) = self.place(to) else {
            tracing::error!(from, to, "mail to a core that does not exist is dropped");
            return Ok(());
        };
        match place.mail.try_send((from, batch)) {
            Ok(()) => {
                self.wake(to);
                Ok(())
            }
            Err(TrySendError::Full((_, batch)) | TrySendError::Disconnected((_, batch))) => {
                place.starved.store(true, Ordering::Release);
                Err(batch)
            }
        }
    }

    /// Gives a socket to `to`, or gives it back if too many wait there.
    pub(super) fn send_socket(&self, to: CoreId, accepted: Accepted) -> Result<(), Accepted> {
        let Some(place) = self.place(to) else {
            return Err(accepted);
        };
        place.connections.fetch_add(1, Ordering::Relaxed);
        match place.sockets.try_send(accepted) {
            Ok(()) => {
                self.wake(to);
                Ok(())
            }
            Err(TrySendError::Full(accepted) | TrySendError::Disconnected(accepted)) => {
                place.connections.fetch_sub(1, Ordering::Relaxed);
                Err(accepted)
            }
        }
    }

    /// The core with the fewest connections.
    pub(super) fn least_loaded(&self) -> CoreId {
        (0..self.cores())
            .min_by_key(|core| self.connections(*core))
            .unwrap_or(0)
    }

    pub(super) fn connections(&self, core: CoreId) -> u64 {
        self.place(core)
            .map_or(0, |place| place.connections.load(Ordering::Relaxed))
    }

    pub(super) fn connection_gone(&self, core: CoreId) {
        if let Some(place) = self.place(core) {
            place.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Called by `core` at the start of each turn, before it takes anything.
    pub(super) fn begin(&self, core: CoreId) {
        if let Some(place) = self.place(core) {
            place.turns.fetch_add(1, Ordering::Relaxed);
            place.pending.begin();
        }
    }

    /// The next batch for `core`.
    pub(super) fn take(&self, core: CoreId) -> Option<(CoreId, Vec<M>)> {
        self.place(core)?.mail_in.try_recv().ok()
    }

    /// The next socket for `core`.
    pub(super) fn take_socket(&self, core: CoreId) -> Option<Accepted> {
        self.place(core)?.sockets_in.try_recv().ok()
    }

    /// Called by `core` after it has taken: those who found its mailbox full may try again.
    pub(super) fn taken(&self, core: CoreId) {
        let Some(place) = self.place(core) else {
            return;
        };
        if place.starved.swap(false, Ordering::AcqRel) {
            (0..self.cores())
                .filter(|other| *other != core)
                .for_each(|other| self.wake(other));
        }
    }

    /// Whether something lies in the mailbox of `core`.
    pub(super) fn has_mail(&self, core: CoreId) -> bool {
        self.place(core)
            .is_some_and(|place| !place.mail_in.is_empty() || !place.sockets_in.is_empty())
    }

    pub(super) fn turns(&self, core: CoreId) -> u64 {
        self.place(core)
            .map_or(0, |place| place.turns.load(Ordering::Relaxed))
    }

    pub(super) fn stalls(&self, core: CoreId) -> u64 {
        self.place(core)
            .map_or(0, |place| place.stalls.load(Ordering::Relaxed))
    }

    pub(super) fn count_stall(&self, core: CoreId) {
        if let Some(place) = self.place(core) {
            place.stalls.fetch_add(1, Ordering::Relaxed);
            place.stalled.store(true, Ordering::Relaxed);
        }
    }

    /// A core that stood still goes on.
    pub(super) fn goes_on(&self, core: CoreId) {
        if let Some(place) = self.place(core) {
            place.stalled.store(false, Ordering::Relaxed);
        }
    }

    /// Whether `core` stands still, as the watchdog saw it.
    pub(super) fn is_stalled(&self, core: CoreId) -> bool {
        self.place(core)
            .is_some_and(|place| place.stalled.load(Ordering::Relaxed))
    }

    /// Begins the end: every core sees it at its next turn.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        (0..self.cores()).for_each(|core| self.wake(core));
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// States whether `core` has anything left to do, and wakes the others when that becomes no.
    pub(super) fn set_quiet(&self, core: CoreId, quiet: bool) {
        if let Some(place) = self.place(core)
            && place.quiet.swap(quiet, Ordering::AcqRel) != quiet
            && quiet
        {
            (0..self.cores())
                .filter(|other| *other != core)
                .for_each(|other| self.wake(other));
        }
    }

    /// Whether no core has anything left to do and no mailbox holds anything.
    pub(super) fn all_quiet(&self) -> bool {
        self.places.iter().all(|place| {
            place.quiet.load(Ordering::Acquire)
                && place.mail_in.is_empty()
                && place.sockets_in.is_empty()
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn woken(post: &Post<u32>, core: CoreId) -> Arc<Counter> {
        let counter = Arc::new(Counter::default());
        post.set_waker(core, &Waker::from(Arc::clone(&counter)));
        counter
    }

    #[test]
    fn one_wake_for_many_batches_until_the_core_looks() {
        let post = Post::new(2);
        let counter = woken(&post, 1);
        for n in 0..5 {
            post.send(0, 1, vec![n]).unwrap();
        }
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        post.begin(1);
        post.send(0, 1, vec![5]).unwrap();
        assert_eq!(counter.0.load(Ordering::SeqCst), 2);
        let taken: Vec<u32> = std::iter::from_fn(|| post.take(1))
            .flat_map(|(_, batch)| batch)
            .collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_full_mailbox_gives_the_batch_back_and_tells_when_there_is_room() {
        let post = Post::new(2);
        let sender = woken(&post, 0);
        let mut sent = 0;
        let refused = loop {
            match post.send(0, 1, vec![sent]) {
                Ok(()) => sent += 1,
                Err(batch) => break batch,
            }
        };
        assert_eq!(
            (usize::try_from(sent).unwrap(), refused),
            (BATCHES, vec![sent])
        );
        post.begin(1);
        assert_eq!(sender.0.load(Ordering::SeqCst), 0);
        post.take(1).unwrap();
        post.taken(1);
        assert_eq!(sender.0.load(Ordering::SeqCst), 1);
        post.send(0, 1, vec![sent]).unwrap();
    }

    #[test]
    fn quiet_is_all_cores_and_all_mailboxes() {
        let post = Post::new(2);
        post.set_quiet(0, true);
        assert!(!post.all_quiet());
        post.set_quiet(1, true);
        assert!(post.all_quiet());
        post.send(0, 1, vec![1]).unwrap();
        assert!(!post.all_quiet());
    }
}
