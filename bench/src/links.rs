//! The connections of one executor: glommio waits for their sockets, system calls of ours move their bytes.
//!
//! One task serves them all, for a task a connection costs a turn of the executor each time one of many has something to say. A
//! connection is *hot* or *cold*. A hot one is read at every turn. A cold one is armed: glommio polls its socket through
//! io_uring and wakes us with its index. Under a paced load connections stay hot and turns come at a tick, so that the price of a turn (some
//! 30 us with glommio's timers) is paid by many messages; see [`Links::turn`] and [`Links::wait`].

use std::future::poll_fn;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_io::{AsyncRead as _, AsyncWrite as _};
use glommio::timer::Timer;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::connection::Connection;
use crate::error::{Context as _, Result};
use crate::measure::monotonic_ns;
use crate::wire::{Input, RawFrame};

struct Link {
    /// The socket, for reading and writing at once.
    socket: TcpStream,
    /// The same socket, for waiting.
    stream: glommio::net::TcpStream,
    input: Input,
    output: BytesMut,
    /// In the list of those with something to write.
    dirty: bool,
    /// The socket was full: wait until it can be written to.
    blocked: bool,
    hot: bool,
    /// Turns in a row that found nothing.
    empty: u32,
    waker: Waker,
}

/// What glommio woke since the last turn, and how to wake the task that serves it.
#[derive(Debug, Default)]
pub(crate) struct Woken {
    links: Mutex<Vec<usize>>,
    task: Mutex<Option<Waker>>,
}

impl Woken {
    /// Makes the task look at everything again. From any thread.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }

    fn push(&self, index: usize) {
        self.links
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(index);
        self.wake();
    }

    fn take(&self, into: &mut Vec<usize>) {
        into.append(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn is_empty(&self) -> bool {
        self.links
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    fn serve_with(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }
}

struct LinkWaker {
    index: usize,
    woken: Arc<Woken>,
}

impl Wake for LinkWaker {
    fn wake(self: Arc<Self>) {
        self.woken.push(self.index);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.push(self.index);
    }
}

/// What a turn did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Bytes read.
    pub(crate) read: usize,
    /// Connections that are still hot: the next turn must come by itself.
    pub(crate) hot: usize,
}

/// The connections, by index in the order they were added.
pub(crate) struct Links {
    links: Vec<Option<Link>>,
    hot: Vec<usize>,
    dirty: Vec<usize>,
    /// Reused by each turn.
    turn: Vec<usize>,
    woken: Arc<Woken>,
    /// Connections that ended, and why.
    pub(crate) closed: Vec<(usize, String)>,
}

impl Links {
    pub(crate) fn new(woken: Arc<Woken>) -> Self {
        Self {
            links: Vec::new(),
            hot: Vec::new(),
            dirty: Vec::new(),
            turn: Vec::new(),
            woken,
            closed: Vec::new(),
        }
    }

    /// Takes over a connection; answers its index. Inside an executor only.
    pub(crate) fn add(&mut self, connection: Connection) -> Result<usize> {
        let index = self.links.len();
        let doing = || format!("cannot set up connection {index}");
        let socket = connection.stream;
        socket.set_nonblocking(true).context(doing)?;
        let stream = socket2::Socket::from(socket.try_clone().context(doing)?);
        self.links.push(Some(Link {
            socket,
            stream: stream.into(),
            input: connection.input,
            output: BytesMut::new(),
            dirty: false,
            blocked: false,
            hot: true,
            empty: 0,
            waker: Waker::from(Arc::new(LinkWaker {
                index,
                woken: Arc::clone(&self.woken),
            })),
        }));
        self.hot.push(index);
        Ok(index)
    }

    /// What waits to be written to a connection, for appending. It is written with the next [`Links::flush`].
    pub(crate) fn output(&mut self, index: usize) -> Option<&mut BytesMut> {
        let link = self.links.get_mut(index)?.as_mut()?;
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(index);
        }
        Some(&mut link.output)
    }

    /// Bytes that wait to be written to a connection.
    pub(crate) fn backlog(&self, index: usize) -> usize {
        match self.links.get(index) {
            Some(Some(link)) => link.output.len(),
            _ => 0,
        }
    }

    /// Writes what was appended, as far as the sockets take it.
    pub(crate) fn flush(&mut self) {
        while let Some(index) = self.dirty.pop() {
            if let Some(Some(link)) = self.links.get_mut(index) {
                link.dirty = false;
                if !link.blocked {
                    self.write(index);
                }
            }
        }
    }

    /// Reads every hot connection once and calls `handle` with each frame: connection, frame, the connection's output, and the time it
    /// was read. A connection that had nothing for more than `patience` turns in a row is armed.
    ///
    /// # Errors
    /// The first error of `handle`, or bytes that are no frames.
    pub(crate) fn turn(
        &mut self,
        patience: u32,
        mut handle: impl FnMut(usize, RawFrame<'_>, &mut BytesMut, u64) -> Result<()>,
    ) -> Result<Turn> {
        let mut turn = std::mem::take(&mut self.turn);
        self.woken.take(&mut turn);
        for index in turn.drain(..) {
            let Some(Some(link)) = self.links.get_mut(index) else {
                continue;
            };
            if !link.hot {
                (link.hot, link.empty) = (true, 0);
                self.hot.push(index);
            }
            if link.blocked {
                self.write(index);
            }
        }
        std::mem::swap(&mut turn, &mut self.hot);
        let (mut read, mut result) = (0, Ok(()));
        for &index in &turn {
            if result.is_err() {
                break;
            }
            match self.read(index, patience, &mut handle) {
                Ok(n) => read += n,
                Err(fault) => result = Err(fault),
            }
            if let Some(Some(link)) = self.links.get(index)
                && link.hot
            {
                self.hot.push(index);
            }
        }
        turn.clear();
        self.turn = turn;
        result.map(|()| Turn {
            read,
            hot: self.hot.len(),
        })
    }

    /// Waits until `until`, or until a cold connection has something, but then at least until `not_before`.
    pub(crate) async fn wait(&self, not_before: u64, until: u64) {
        let mut timer: Option<(u64, Timer)> = None;
        poll_fn(|cx| {
            self.woken.serve_with(cx.waker());
            loop {
                let now = monotonic_ns();
                let target = if self.woken.is_empty() {
                    until
                } else {
                    not_before.min(until)
                };
                if now >= target {
                    return Poll::Ready(());
                }
                let (_, timer) = match &mut timer {
                    Some(timer) if timer.0 == target => timer,
                    timer => timer.insert((target, Timer::new(Duration::from_nanos(target - now)))),
                };
                match Future::poll(Pin::new(timer), cx) {
                    // The clock may be a little behind the timer.
                    Poll::Ready(_) => *timer = Timer::new(Duration::from_micros(10)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    /// Lets the executor look at its rings and comes back at once.
    pub(crate) async fn pass(&self) {
        let mut passed = false;
        poll_fn(|cx| {
            self.woken.serve_with(cx.waker());
            if std::mem::replace(&mut passed, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn read(
        &mut self,
        index: usize,
        patience: u32,
        handle: &mut impl FnMut(usize, RawFrame<'_>, &mut BytesMut, u64) -> Result<()>,
    ) -> Result<usize> {
        let Some(Some(link)) = self.links.get_mut(index) else {
            return Ok(0);
        };
        let read = match recv(&link.socket, link.input.space(), RecvFlags::empty()) {
            Ok((n, _)) => Ok(n),
            Err(Errno::AGAIN | Errno::INTR) if link.empty < patience => {
                link.empty += 1;
                return Ok(0);
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                let mut cx = Context::from_waker(&link.waker);
                match Pin::new(&mut link.stream).poll_read(&mut cx, link.input.space()) {
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        link.hot = false;
                        return Ok(0);
                    }
                }
            }
            Err(error) => Err(error.into()),
        };
        match read {
            Ok(0) => {
                self.close(index, "the peer closed it".into());
                Ok(0)
            }
            Ok(n) => {
                link.empty = 0;
                link.input.filled(n);
                let now = monotonic_ns();
                while let Some(frame) = link.input.next()? {
                    handle(index, frame, &mut link.output, now)?;
                }
                if !link.output.is_empty() && !link.dirty {
                    link.dirty = true;
                    self.dirty.push(index);
                }
                Ok(n)
            }
            Err(error) => {
                self.close(index, error.to_string());
                Ok(0)
            }
        }
    }

    fn write(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else {
            return;
        };
        link.blocked = false;
        while !link.output.is_empty() {
            let written = match send(&link.socket, &link.output, SendFlags::NOSIGNAL) {
                Ok(n) => Ok(n),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    let mut cx = Context::from_waker(&link.waker);
                    match Pin::new(&mut link.stream).poll_write(&mut cx, &link.output) {
                        Poll::Ready(result) => result,
                        Poll::Pending => {
                            link.blocked = true;
                            return;
                        }
                    }
                }
                Err(error) => Err(error.into()),
            };
            match written {
                Ok(n) => link.output.advance(n),
                Err(error) => {
                    self.close(index, error.to_string());
                    return;
                }
            }
        }
        // All written: the buffer begins at its start again.
        link.output.clear();
    }

    fn close(&mut self, index: usize, reason: String) {
        if let Some(link) = self.links.get_mut(index)
            && link.take().is_some()
        {
            self.closed.push((index, reason));
        }
    }
}
