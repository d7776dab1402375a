//! Connections that are no load, in one thread: nonblocking sockets on epoll, large reads, one write per turn and connection.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use bytes::{Buf as _, BytesMut};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::connection::Connection;
use crate::error::{Context as _, Result};
use crate::measure::monotonic_ns;
use crate::wire::{Input, RawFrame};

/// Bytes asked for in one read of a connection at first.
pub(crate) const READ_SIZE: usize = 16 * 1024;
/// Events taken in one turn.
const EVENTS: usize = 1024;
/// Token of the listening socket.
const LISTENER: u64 = u64::MAX;

struct Link {
    stream: TcpStream,
    input: Input,
    output: BytesMut,
    /// In the list of those with something to write.
    dirty: bool,
    /// The socket was full: wait until it can be written to.
    blocked: bool,
}

/// The connections, by index in the order they were added; accepted ones take indexes too.
pub(crate) struct Net {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    links: Vec<Option<Link>>,
    dirty: Vec<usize>,
    listener: Option<TcpListener>,
    /// Connections that ended since the caller last took them, and why.
    pub(crate) closed: Vec<(usize, String)>,
}

impl Net {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)
                .context(|| "cannot make an epoll instance".into())?,
            events: Vec::with_capacity(EVENTS),
            links: Vec::new(),
            dirty: Vec::new(),
            listener: None,
            closed: Vec::new(),
        })
    }

    /// Takes over a connection; answers its index.
    pub(crate) fn add(&mut self, connection: Connection) -> Result<usize> {
        self.add_stream(connection.stream, connection.input)
    }

    /// Accepts connections from now on.
    pub(crate) fn listen(&mut self, listener: TcpListener) -> Result<()> {
        listener
            .set_nonblocking(true)
            .context(|| "cannot set up the listening socket".into())?;
        self.watch(&listener, LISTENER)?;
        self.listener = Some(listener);
        Ok(())
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

    /// Waits for events, at most `timeout` nanoseconds, and calls `handle` with each frame: connection, frame, the connection's
    /// output, and the time it was read.
    ///
    /// # Errors
    /// The first error of `handle`.
    pub(crate) fn poll(
        &mut self,
        timeout: u64,
        mut handle: impl FnMut(usize, RawFrame<'_>, &mut BytesMut, u64) -> Result<()>,
    ) -> Result<()> {
        let timeout = Timespec {
            tv_sec: (timeout / 1_000_000_000) as i64,
            tv_nsec: (timeout % 1_000_000_000) as i64,
        };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let waited = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        );
        let mut result = match waited {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context(|| "cannot wait for events".into()),
        };
        for &event in &events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == LISTENER {
                self.accept();
                continue;
            }
            let index = token as usize;
            if flags.contains(EventFlags::OUT) {
                self.write(index);
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                result = result.and_then(|()| self.read(index, &mut handle));
            }
        }
        self.events = events;
        result
    }

    fn add_stream(&mut self, stream: TcpStream, input: Input) -> Result<usize> {
        let index = self.links.len();
        stream
            .set_nonblocking(true)
            .context(|| format!("cannot set up connection {index}"))?;
        self.watch(&stream, index as u64)?;
        self.links.push(Some(Link {
            stream,
            input,
            output: BytesMut::new(),
            dirty: false,
            blocked: false,
        }));
        Ok(index)
    }

    fn watch(&self, socket: impl AsFd, token: u64) -> Result<()> {
        epoll::add(
            &self.epoll,
            socket,
            EventData::new_u64(token),
            EventFlags::IN,
        )
        .context(|| "cannot watch a socket".into())
    }

    fn accept(&mut self) {
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) {
            // Without it a connection is slow, not wrong.
            let _ = stream.set_nodelay(true);
            // One that cannot be watched is dropped, that is closed: its peer notices.
            let _ = self.add_stream(stream, Input::new(READ_SIZE));
        }
    }

    fn read(
        &mut self,
        index: usize,
        handle: &mut impl FnMut(usize, RawFrame<'_>, &mut BytesMut, u64) -> Result<()>,
    ) -> Result<()> {
        let Some(Some(link)) = self.links.get_mut(index) else {
            return Ok(());
        };
        match recv(&link.stream, link.input.space(), RecvFlags::empty()) {
            Ok((0, _)) => self.close(index, "the peer closed it".into()),
            Ok((n, _)) => {
                link.input.filled(n);
                let now = monotonic_ns();
                while let Some(frame) = link.input.next()? {
                    handle(index, frame, &mut link.output, now)?;
                }
                if !link.output.is_empty() && !link.dirty {
                    link.dirty = true;
                    self.dirty.push(index);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => self.close(index, error.to_string()),
        }
        Ok(())
    }

    fn write(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else {
            return;
        };
        let mut full = false;
        while !link.output.is_empty() {
            match send(&link.stream, &link.output, SendFlags::NOSIGNAL) {
                Ok(n) => link.output.advance(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    full = true;
                    break;
                }
                Err(error) => {
                    let reason = error.to_string();
                    self.close(index, reason);
                    return;
                }
            }
        }
        if !full {
            // All written: the buffer begins at its start again.
            link.output.clear();
        }
        if full != link.blocked {
            link.blocked = full;
            let flags = if full {
                EventFlags::IN | EventFlags::OUT
            } else {
                EventFlags::IN
            };
            let data = EventData::new_u64(index as u64);
            if let Err(error) = epoll::modify(&self.epoll, &link.stream, data, flags) {
                self.close(index, error.to_string());
            }
        }
    }

    /// Drops a connection; that takes its socket out of the epoll instance too.
    fn close(&mut self, index: usize, reason: String) {
        if let Some(link) = self.links.get_mut(index)
            && link.take().is_some()
        {
            self.closed.push((index, reason));
        }
    }
}
