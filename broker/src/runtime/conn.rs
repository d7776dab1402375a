//! One connection: its socket, its decoder, and the rules of reading and writing it.
//!
//! One task per connection, spawned when it is accepted, ends by itself when the socket is gone. Each of its
//! polls does bounded work and is then behind the other tasks of the core again.

use super::core::Core;
use super::guests::Ticket;
use super::memory::{Inbound, Source};
use super::port::{ConnId, CoreEngine, Now, Output, Storage};
use super::portion::{Portion, READ_BUDGET};
use super::raw;
use super::trickle::Trickle;
use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use vela_codec::{Accounting, Cumulation, Frame, FrameDecoder};

/// Bytes one connection may send before others get their turn.
const SEND_BUDGET: usize = 1024 * 1024;
/// Pieces of one `sendmsg`.
const SLICES: usize = 64;
/// How long a closed connection's peer may take to close its side, in milliseconds.
pub(super) const LINGER_MS: u64 = 2000;

/// How a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// In use.
    Open,
    /// Our side is closed; what still comes is thrown away until the peer closes too, or until this time. (To
    /// close at once, with bytes unread, would reset the connection and could destroy our last answer.)
    Lingering(u64),
    /// The socket is of no more use; the task ends at its next poll.
    Gone,
}

pub(super) struct Conn {
    /// The engine's name for it; none once the engine was told that it is gone.
    pub(super) id: Option<ConnId>,
    pub(super) stream: TcpStream,
    pub(super) waker: Option<Waker>,
    pub(super) state: State,
    pub(super) decoder: FrameDecoder,
    /// How much of it is read before others get their turn.
    pub(super) portion: Portion,
    /// Decoded frames that the engine did not want yet: at most what one read brought.
    pub(super) queue: VecDeque<Frame>,
    /// Memory that they keep alive, in bytes.
    pub(super) queued_roots: usize,
    /// Its part in the bounds of inbound memory.
    pub(super) inbound: Inbound,
    /// Whether its unfinished frame comes by a few bytes at a time.
    pub(super) trickle: Trickle,
    /// The kernel's send buffer is full; the task waits for room.
    pub(super) write_blocked: bool,
    /// Waits for the shared tick instead of for readiness.
    pub(super) gate: Gate,
    /// Its place among the broker's connections.
    _ticket: Ticket,
}

/// Where a connection is with the read gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Reads when the socket is ready.
    Off,
    /// Reads at the tick; so many ticks in a row found nothing.
    On(u8),
}

/// What came of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// So many bytes; the buffer was not full.
    Short(usize),
    /// The buffer was full: there may be more.
    Full(usize),
    /// Nothing there.
    Empty,
    /// The peer has closed, or the socket failed.
    End,
}

/// What came of handing frames to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fed {
    /// All frames are handed over.
    All,
    /// The engine wants no more for now.
    Held,
    /// The bytes are not frames.
    Broken,
}

impl Conn {
    pub(super) fn new(id: ConnId, stream: TcpStream, ticket: Ticket, max_frame: usize) -> Self {
        Self {
            id: Some(id),
            stream,
            waker: None,
            state: State::Open,
            decoder: FrameDecoder::new(max_frame),
            portion: Portion::default(),
            queue: VecDeque::new(),
            queued_roots: 0,
            inbound: Inbound::default(),
            trickle: Trickle::default(),
            write_blocked: false,
            gate: Gate::Off,
            _ticket: ticket,
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Ends both directions; whoever waits on the socket is woken by that.
    pub(super) fn cut(&mut self) {
        self.state = State::Gone;
        // An error says that the peer was faster.
        let _ = rustix::net::shutdown(raw::descriptor(&self.stream), Shutdown::Both);
        self.wake();
    }

    /// Ends our direction and lets the peer end the other, until a time in milliseconds.
    pub(super) fn linger(&mut self, until_ms: u64) {
        if self.state != State::Open {
            return;
        }
        self.drop_inbound();
        if rustix::net::shutdown(raw::descriptor(&self.stream), Shutdown::Write).is_ok() {
            self.state = State::Lingering(until_ms);
            self.wake();
        } else {
            self.cut();
        }
    }

    /// Forgets what was received and not handed on.
    pub(super) fn drop_inbound(&mut self) {
        self.queue = VecDeque::new();
        self.queued_roots = 0;
        self.decoder = FrameDecoder::new(0);
    }

    /// One read to where it may go. With `cx` the socket is asked to wake us when there is nothing to read.
    pub(super) fn read(
        &mut self,
        cumulation: &mut Cumulation,
        source: Source,
        cx: Option<&mut Context<'_>>,
    ) -> Poll<Read> {
        let in_place = source == Source::Frame;
        let space = match source {
            Source::Frame => {
                let space = self.decoder.missing_space(1).unwrap_or_default();
                let len = space.len().min(READ_BUDGET);
                space.get_mut(..len).unwrap_or_default()
            }
            Source::Buffer(limit) => {
                let space = cumulation.space();
                let len = space.len().min(limit);
                space.get_mut(..len).unwrap_or_default()
            }
        };
        let len = space.len();
        let result = match cx {
            Some(cx) => match Pin::new(&mut self.stream).poll_read(cx, space) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => result,
            },
            None => rustix::net::recv(raw::descriptor(&self.stream), space, RecvFlags::DONTWAIT)
                .map(|(_, n)| n)
                .map_err(Into::into),
        };
        Poll::Ready(match result {
            Ok(0) => Read::End,
            Ok(n) => {
                self.portion.begin(n);
                if in_place {
                    self.decoder.advance(n);
                } else {
                    self.decoder.push(cumulation.read(n));
                }
                if n < len {
                    Read::Short(n)
                } else {
                    Read::Full(n)
                }
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Read::Empty,
                _ => Read::End,
            },
        })
    }

    /// Hands frames over while the engine wants them, first those that wait. What is left over is cut and kept,
    /// each frame in memory of its own size if it pins much more than that.
    pub(super) fn feed<E: CoreEngine>(
        &mut self,
        engine: &mut E,
        accounting: Option<&Arc<dyn Accounting>>,
        now: Now,
    ) -> Fed {
        let fed = self.hand_over(engine, accounting, now);
        self.portion.end();
        fed
    }

    fn hand_over<E: CoreEngine>(
        &mut self,
        engine: &mut E,
        accounting: Option<&Arc<dyn Accounting>>,
        now: Now,
    ) -> Fed {
        let Some(id) = self.id else {
            return Fed::Broken;
        };
        loop {
            if !engine.wants_frames(id) {
                let fed = self.keep(accounting);
                self.pass(engine, id, now);
                return fed;
            }
            if let Some(frame) = self.queue.pop_front() {
                self.queued_roots = self.queued_roots.saturating_sub(frame.root_capacity());
                engine.frame(id, frame, now);
                continue;
            }
            match self.decoder.next_frame() {
                Ok(Some(frame)) => {
                    self.portion.frame();
                    engine.frame(id, frame, now);
                }
                Ok(None) => {
                    self.decoder.settle(accounting);
                    return Fed::All;
                }
                Err(error) => {
                    self.refuse(&error);
                    return Fed::Broken;
                }
            }
        }
    }

    fn keep(&mut self, accounting: Option<&Arc<dyn Accounting>>) -> Fed {
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => {
                    self.portion.frame();
                    let frame = match frame.pins_much() {
                        true => frame.compact(accounting.cloned()),
                        false => frame,
                    };
                    // An upper bound: frames that share a root count it each, but no more than twice their own size.
                    self.queued_roots += frame.root_capacity();
                    self.queue.push_back(frame);
                }
                Ok(None) => {
                    self.decoder.settle(accounting);
                    return Fed::Held;
                }
                // The decoder says so again once the frames before it are handed over.
                Err(_) => return Fed::Held,
            }
        }
    }

    /// Hands on what may pass the publishes that wait.
    fn pass<E: CoreEngine>(&mut self, engine: &mut E, id: ConnId, now: Now) {
        while let Some(at) = engine.passing(id, &self.queue)
            && let Some(frame) = self.queue.remove(at)
        {
            self.queued_roots = self.queued_roots.saturating_sub(frame.root_capacity());
            engine.frame(id, frame, now);
        }
    }

    /// Bytes of frames that wait.
    pub(super) fn queued(&self) -> usize {
        self.queue.iter().map(Frame::len).sum()
    }

    /// Whether bytes wait in the socket. One that cannot tell has none: it is no longer in order.
    pub(super) fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(raw::descriptor(&self.stream)).is_ok_and(|bytes| bytes > 0)
    }

    fn refuse(&self, error: &vela_codec::FrameError) {
        let peer = self.stream.peer_addr().map(|peer| peer.to_string());
        tracing::warn!(
            peer = peer.as_deref().unwrap_or("unknown"),
            "connection closed: {error}"
        );
    }
}

/// What came of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// Everything.
    All,
    /// The kernel takes no more now.
    Blocked,
    /// Enough for this turn.
    More,
    /// The socket failed.
    End,
}

/// Sends what a connection has, in as few calls as its pieces allow.
pub(super) fn flush<E: CoreEngine>(conn: &mut Conn, engine: &mut E, now: Now) -> Sent {
    let Some(id) = conn.id else {
        return Sent::End;
    };
    let (mut total, mut outcome) = (0, Sent::More);
    while total < SEND_BUDGET {
        let Some(output) = engine.output(id) else {
            outcome = Sent::End;
            break;
        };
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = output.io_slices(&mut slices);
        if count == 0 {
            outcome = Sent::All;
            break;
        }
        match rustix::net::sendmsg(
            raw::descriptor(&conn.stream),
            slices.get(..count).unwrap_or_default(),
            &mut SendAncillaryBuffer::default(),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(n) if n > 0 => {
                output.consume(n);
                total += n;
            }
            // Nothing taken and no reason given: as if there were no room.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {
                outcome = Sent::Blocked;
                break;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                outcome = Sent::End;
                break;
            }
        }
    }
    if total > 0 {
        engine.sent(id, now);
    }
    outcome
}

impl<E: CoreEngine, S: Storage<E>> Core<E, S> {
    /// One poll of a connection's task. Ready: it is gone, and out of the table.
    pub(super) fn poll_conn(&mut self, key: usize, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.clock.now();
        let Some(conn) = self.conns.get_mut(key) else {
            return Poll::Ready(());
        };
        match &mut conn.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            waker => *waker = Some(cx.waker().clone()),
        }
        if conn.state == State::Open {
            self.write_when_ready(key, now, cx);
            self.read_when_ready(key, now, cx);
        }
        match self.conns.get_mut(key).map(|conn| conn.state) {
            Some(State::Open) => Poll::Pending,
            Some(State::Lingering(_)) => self.discard(key, cx),
            Some(State::Gone) | None => {
                self.forget(key);
                Poll::Ready(())
            }
        }
    }

    /// Sends what a full kernel buffer held back, once there is room.
    fn write_when_ready(&mut self, key: usize, now: Now, cx: &mut Context<'_>) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if conn.write_blocked {
            let Some(output) = conn.id.and_then(|id| self.engine.output(id)) else {
                return;
            };
            let mut first = [IoSlice::new(&[])];
            if output.io_slices(&mut first) == 0 {
                conn.write_blocked = false;
                return;
            }
            let [piece] = first;
            match Pin::new(&mut conn.stream).poll_write(cx, &piece) {
                Poll::Pending => {}
                Poll::Ready(Ok(n)) => {
                    output.consume(n);
                    conn.write_blocked = false;
                    if let Some(id) = conn.id {
                        self.engine.sent(id, now);
                        // The rest goes out with the turn, in one call.
                        self.carry.push(id);
                    }
                    self.want_turn();
                }
                Poll::Ready(Err(_)) => self.drop_conn(key, now),
            }
        }
    }

    fn read_when_ready(&mut self, key: usize, now: Now, cx: &mut Context<'_>) {
        let fair = self.engine.serves_in_small_parts();
        let Some(conn) = self.conns.get(key) else {
            return;
        };
        let part = conn.portion.bytes(fair);
        let mut budget = part;
        loop {
            let Some(conn) = self.conns.get_mut(key) else {
                return;
            };
            if conn.state != State::Open || conn.gate != Gate::Off {
                return;
            }
            let Some(source) = self.source(key, now) else {
                return;
            };
            if budget == 0 {
                // Others first: the end of the turn wakes us again.
                self.again.push(key);
                self.want_turn();
                return;
            }
            let Some((read, trickles)) = self.take_in(key, source.at_most(part), now, Some(cx))
            else {
                return;
            };
            if let Read::Short(n) | Read::Full(n) = read {
                budget = budget.saturating_sub(n);
                self.want_turn();
            }
            if !trickles {
                self.gate_after_read(key, read);
            }
        }
    }

    /// One read of a connection and all that follows from it, whatever led to it: its frames go to the engine, and their size and pace are
    /// taken note of. What came of it, and whether its frame trickles; none: there is nothing (with `cx` the socket wakes us), or it is gone.
    pub(super) fn take_in(
        &mut self,
        key: usize,
        source: Source,
        now: Now,
        cx: Option<&mut Context<'_>>,
    ) -> Option<(Read, bool)> {
        let conn = self.conns.get_mut(key)?;
        let Poll::Ready(read) = conn.read(&mut self.cumulation, source, cx) else {
            return None;
        };
        match read {
            Read::Short(_) | Read::Full(_) => self.feed(key, now),
            Read::Empty => {}
            Read::End => {
                self.drop_conn(key, now);
                return None;
            }
        }
        Some((read, self.note_trickle(key, read, now)))
    }

    /// Hands a connection's frames to the engine.
    pub(super) fn feed(&mut self, key: usize, now: Now) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        let accounting = self.memory.accounting();
        if conn.feed(&mut self.engine, accounting, now) == Fed::Broken {
            self.drop_conn(key, now);
        } else {
            self.note_inbound(key, now);
        }
    }

    /// Of connections that are not read now, ends those whose peer is gone: no read finds the end of the stream. One whose peer has
    /// ended only its side is left alone until it is found so a second time, for the hold may be over in a moment. What
    /// they sent and nobody has processed is dropped, as it is behind a read that does find the end: nothing of it was acknowledged.
    pub(super) fn drop_leavers(&mut self, keys: &[usize], now: Now) {
        let held: Vec<(usize, &TcpStream)> = keys
            .iter()
            .filter_map(|key| Some((*key, &self.conns.get(*key)?.stream)))
            .collect();
        if held.is_empty() {
            return;
        }
        let mut ends: Vec<PollFd<'_>> = held
            .iter()
            .map(|(_, stream)| PollFd::from_borrowed_fd(raw::descriptor(stream), PollFlags::RDHUP))
            .collect();
        // An error leaves them to the next look.
        let _ = poll(&mut ends, Some(&Timespec::default()));
        let found: Vec<(usize, PollFlags)> = held
            .iter()
            .zip(&ends)
            .map(|((key, _), end)| (*key, end.revents()))
            .collect();
        for (key, end) in found {
            let Some(conn) = self.conns.get_mut(key) else {
                continue;
            };
            let again = std::mem::replace(&mut conn.inbound.left, !end.is_empty());
            if end.intersects(PollFlags::HUP | PollFlags::ERR) || again && !end.is_empty() {
                self.drop_conn(key, now);
            }
        }
    }

    /// Reads what a peer still sends after we have closed, and throws it away.
    fn discard(&mut self, key: usize, cx: &mut Context<'_>) -> Poll<()> {
        let Some(conn) = self.conns.get_mut(key) else {
            return Poll::Ready(());
        };
        for _ in 0..16 {
            match Pin::new(&mut conn.stream).poll_read(cx, self.cumulation.space()) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 => {}
                Poll::Ready(_) => {
                    self.forget(key);
                    return Poll::Ready(());
                }
            }
        }
        self.again.push(key);
        self.want_turn();
        Poll::Pending
    }
}
