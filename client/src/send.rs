//! What travels with a send, and the receipt its caller gets.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::OwnedSemaphorePermit;
use vela_limiter::Reservation;

use crate::admission::{block_on, may_block};
use crate::client::Client;
use crate::core::Ticket;
use crate::error::Result;
use crate::id::MessageId;

/// What admission gave a send.
pub(crate) struct Admitted {
    pub(crate) reservation: Reservation,
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

/// Where the result of a send is left, and who waits for it.
#[derive(Default)]
pub(crate) struct Promise {
    gone: AtomicBool,
    cell: Mutex<Cell>,
}

#[derive(Default)]
struct Cell {
    result: Option<Result<MessageId>>,
    waker: Option<Waker>,
}

pub(crate) enum Done {
    Future(Arc<Promise>),
    Callback(Box<dyn FnOnce(Result<MessageId>) + Send>),
}

/// What travels with a send: what it is charged, and who wants to know its end.
pub(crate) struct SendTicket {
    reservation: Option<Reservation>,
    place: Option<OwnedSemaphorePermit>,
    done: Done,
}

impl SendTicket {
    /// A send that is admitted, and who wants to know its end.
    pub(crate) fn new(admitted: Admitted, done: Done) -> Self {
        Self {
            reservation: Some(admitted.reservation),
            place: admitted.place,
            done,
        }
    }

    pub(crate) fn has_callback(&self) -> bool {
        matches!(self.done, Done::Callback(_))
    }

    /// The end: first what was reserved is given back, then the caller is told.
    pub(crate) fn finish(self, result: Result<MessageId>) {
        let Self {
            reservation,
            place,
            done,
        } = self;
        drop((reservation, place));
        match done {
            Done::Callback(callback) => callback(result),
            Done::Future(promise) => {
                let waker = {
                    let mut cell = promise.cell.lock().unwrap_or_else(PoisonError::into_inner);
                    cell.result = Some(result);
                    cell.waker.take()
                };
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}

impl Ticket for SendTicket {
    fn abandoned(&self) -> bool {
        match &self.done {
            Done::Future(promise) => promise.gone.load(Ordering::Acquire),
            Done::Callback(_) => false,
        }
    }
}

/// The receipt of a message that was admitted and queued.
///
/// Dropping it says that nobody waits for the message: it is skipped if it is not on its way to the broker yet, and keeps its share of
/// the memory until then. To let it go on, [`detach`](Self::detach).
#[must_use = "dropping a receipt gives up a message that is not on its way yet: await or detach it"]
pub struct SendFuture {
    promise: Arc<Promise>,
    client: Client,
    done: bool,
}

impl SendFuture {
    pub(crate) fn new(promise: Arc<Promise>, client: Client) -> Self {
        let done = false;
        Self {
            promise,
            client,
            done,
        }
    }

    /// Lets the message go on without anybody waiting for it.
    pub fn detach(mut self) {
        self.done = true;
    }

    /// Waits for the receipt on this thread.
    ///
    /// # Errors
    /// As awaiting it; and [`Error::WouldBlock`](crate::Error::WouldBlock) on a thread of a runtime and in the client's own callbacks.
    pub fn wait(self) -> Result<MessageId> {
        if let Some(result) = self.take() {
            return result;
        }
        may_block("waiting for a receipt")?;
        block_on(self)
    }

    fn take(&self) -> Option<Result<MessageId>> {
        let cell = &self.promise.cell;
        cell.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .result
            .take()
    }
}

impl Future for SendFuture {
    type Output = Result<MessageId>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<MessageId>> {
        let result = {
            let cell = &self.promise.cell;
            let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
            match cell.result.take() {
                Some(result) => result,
                None => {
                    match &mut cell.waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        None => cell.waker = Some(context.waker().clone()),
                    }
                    return Poll::Pending;
                }
            }
        };
        self.done = true;
        Poll::Ready(result)
    }
}

impl Drop for SendFuture {
    fn drop(&mut self) {
        // The machine has let go of its half when the send has ended.
        if !self.done && Arc::strong_count(&self.promise) > 1 {
            self.promise.gone.store(true, Ordering::Release);
            self.client.shared().sweep_soon();
        }
    }
}

impl fmt::Debug for SendFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFuture").finish_non_exhaustive()
    }
}
