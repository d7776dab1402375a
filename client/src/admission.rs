//! Admission: a send is charged before anything of it is queued, and its charge ends with the send itself.
//!
//! The rules, in the order in which they matter:
//! * The charge is the encoded payload plus [`MESSAGE_OVERHEAD`], so it bounds how many messages wait as well as their bytes.
//! * A caller may wait for room, first come, first served, tasks and threads in one queue. The client's own tasks never wait: what
//!   would free the room may be theirs to do. They say so by [`client_task`] and [`as_client_task`].
//! * The [`Reservation`] goes with the message. What the caller does with the future gives nothing back.
//! * It is dropped *before* the caller learns of the end, so that a send in the continuation finds the room.

use crate::{Error, MemoryLimit, Reservation, Result};
use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use vela_limiter::Full;

/// What a message in flight costs beside its payload: metadata, places in queues, the caller's handle.
pub const MESSAGE_OVERHEAD: u64 = 1024;

/// The bytes that a send of this encoded payload is charged.
#[must_use]
pub fn charge(payload: usize) -> u64 {
    u64::try_from(payload)
        .unwrap_or(u64::MAX)
        .saturating_add(MESSAGE_OVERHEAD)
}

impl From<Full> for Error {
    fn from(full: Full) -> Self {
        Self::MemoryBufferIsFull {
            used: full.used,
            limit: full.limit,
            wanted: full.wanted,
        }
    }
}

/// Admits a send of a task. `may_wait` is the setting `block_if_queue_full`.
///
/// # Errors
/// [`Error::MemoryBufferIsFull`] if there is no room and it may not wait, or the client's own tasks ask.
pub async fn admit(limit: &MemoryLimit, bytes: u64, may_wait: bool) -> Result<Reservation> {
    match limit.try_reserve(bytes) {
        Ok(reservation) => Ok(reservation),
        Err(_) if may_wait && !in_client_task() => Ok(limit.reserve(bytes).await),
        Err(full) => Err(full.into()),
    }
}

/// Admits a send of a thread: as [`admit`], but it is the thread that waits.
///
/// # Errors
/// As [`admit`]; and [`Error::WouldBlock`] if there is no room and this thread runs a tokio runtime, whose tasks it would stop.
pub fn admit_blocking(limit: &MemoryLimit, bytes: u64, may_wait: bool) -> Result<Reservation> {
    match limit.try_reserve(bytes) {
        Ok(reservation) => Ok(reservation),
        Err(full) if !may_wait || in_client_task() => Err(full.into()),
        Err(_) => {
            may_block("a blocking send")?;
            Ok(block_on(limit.reserve(bytes)))
        }
    }
}

/// Refuses to block where that could stand in the way of what would end it.
///
/// # Errors
/// [`Error::WouldBlock`] on the client's own tasks and on the threads of a tokio runtime.
pub fn may_block(what: &'static str) -> Result<()> {
    if in_client_task() {
        return Err(Error::WouldBlock {
            what,
            place: "a task of the client itself",
        });
    }
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(Error::WouldBlock {
            what,
            place: "a thread of a tokio runtime",
        });
    }
    Ok(())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks this thread until the future is ready. It needs no runtime: for futures that only wait for others.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // A wake-up in between makes this return at once; one for nothing costs a poll.
        thread::park();
    }
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether the client itself runs this: a receipt's callback, dispatch, a retry. No send waits here.
#[must_use]
pub fn in_client_task() -> bool {
    DEPTH.get() > 0
}

struct Depth;

impl Depth {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// Runs this as the client: see [`in_client_task`].
pub fn client_task<R>(run: impl FnOnce() -> R) -> R {
    let _depth = Depth::enter();
    run()
}

/// A future whose polls run as the client: see [`in_client_task`].
pub fn as_client_task<F: Future>(future: F) -> AsClientTask<F> {
    AsClientTask(Box::pin(future))
}

/// See [`as_client_task`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct AsClientTask<F>(Pin<Box<F>>);

impl<F: Future> Future for AsClientTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _depth = Depth::enter();
        self.0.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    }

    #[test]
    fn the_client_itself_never_waits() {
        let limit = MemoryLimit::new(100);
        let held = limit.try_reserve(100).unwrap();
        let full = client_task(|| admit_blocking(&limit, 1, true)).unwrap_err();
        assert!(matches!(
            full,
            Error::MemoryBufferIsFull {
                used: 100,
                limit: 100,
                wanted: 1
            }
        ));
        runtime()
            .block_on(as_client_task(admit(&limit, 1, true)))
            .unwrap_err();
        runtime().block_on(admit(&limit, 1, false)).unwrap_err();
        assert!(!in_client_task());
        drop(held);
        drop(client_task(|| admit_blocking(&limit, 1, true)).unwrap());
        assert_eq!(limit.used(), 0);
    }

    #[test]
    fn a_thread_of_a_runtime_is_told_rather_than_stopped() {
        let limit = MemoryLimit::new(100);
        let _held = limit.try_reserve(100).unwrap();
        let told = runtime()
            .block_on(async { admit_blocking(&limit, 1, true) })
            .unwrap_err();
        assert!(matches!(told, Error::WouldBlock { .. }), "{told}");
    }

    #[test]
    fn threads_and_tasks_stand_in_one_queue() {
        let limit = MemoryLimit::new(100);
        let held = limit.try_reserve(100).unwrap();
        let thread = thread::spawn({
            let limit = limit.clone();
            move || drop(admit_blocking(&limit, 100, true).unwrap())
        });
        while limit.waiting() < 1 {
            thread::yield_now();
        }
        let task = thread::spawn({
            let limit = limit.clone();
            move || runtime().block_on(async { drop(admit(&limit, 100, true).await.unwrap()) })
        });
        while limit.waiting() < 2 {
            thread::yield_now();
        }
        drop(held);
        thread.join().unwrap();
        task.join().unwrap();
        assert_eq!((limit.used(), limit.peak()), (0, 100));
    }
}
