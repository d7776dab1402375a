//! What the parts of a consumer - one for each topic or partition - have ready, given out fairly.
//!
//! Messages stay in their part's receiver queue, whose permits bound it, until they are taken: nothing is stored here but who has some.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::core::consumer::ReceivedMessage;
use crate::error::{Error, Result};
use crate::part::Part;

#[derive(Default)]
struct State {
    /// Parts that have messages, each once; the next to give one is in front.
    ready: VecDeque<Arc<Part>>,
    /// Messages taken and put back, because what they need to be read was not there yet.
    stash: VecDeque<ReceivedMessage>,
    /// Whoever waits.
    wakers: Vec<Waker>,
    /// Why nothing comes any more.
    ended: Option<Error>,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// A part has messages.
    pub(crate) fn ready(&self, part: &Arc<Part>) {
        if !part.listed.swap(true, Ordering::AcqRel) {
            let mut state = self.lock();
            state.ready.push_back(Arc::clone(part));
            Self::wake(state);
        }
    }

    /// Nothing comes any more; what is there still does.
    pub(crate) fn end(&self, why: Error) {
        let mut state = self.lock();
        state.ended.get_or_insert(why);
        Self::wake(state);
    }

    pub(crate) fn ended(&self) -> Option<Error> {
        self.lock().ended.clone()
    }

    /// Puts a message back, to be the next.
    pub(crate) fn put_back(&self, message: ReceivedMessage) {
        self.lock().stash.push_front(message);
    }

    /// The position has changed: what was put back is void.
    pub(crate) fn clear_stash(&self) {
        self.lock().stash.clear();
    }

    /// Takes the next message there is. Parts take turns.
    pub(crate) fn try_take(&self) -> Option<ReceivedMessage> {
        loop {
            let part = {
                let mut state = self.lock();
                if let Some(message) = state.stash.pop_front() {
                    return Some(message);
                }
                state.ready.pop_front()?
            };
            // Cleared first: whatever comes from now on lists it again.
            part.listed.store(false, Ordering::Release);
            if let Some(message) = part.take() {
                self.ready(&part);
                return Some(message);
            }
        }
    }

    /// Takes the next message with `take`, or leaves the waker.
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        take: impl Fn() -> Option<ReceivedMessage>,
    ) -> Poll<Result<ReceivedMessage>> {
        if let Some(message) = take() {
            return Poll::Ready(Ok(message));
        }
        {
            let mut state = self.lock();
            if !state.wakers.iter().any(|w| w.will_wake(context.waker())) {
                state.wakers.push(context.waker().clone());
            }
        }
        // Once more, for what came in between.
        match take() {
            Some(message) => Poll::Ready(Ok(message)),
            None => match self.ended() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}
