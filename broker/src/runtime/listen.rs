//! Ports, and the thread that accepts on them.
//!
//! The accepting thread only waits and hands sockets on; it runs no broker logic. The shared port's sockets
//! go to the core with the fewest connections, those of a core's own port to that core. No SO_REUSEPORT: with
//! it a second broker would silently share the port, and few connections would be spread badly.

use super::error::StartError;
use super::guests::{Guests, Limits};
use super::port::CoreId;
use super::post::{Accepted, Post};
use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vela_codec::encode;
use vela_proto::ServerError;

/// Connections the kernel keeps for us to accept.
const BACKLOG: i32 = 1024;
/// How long the acceptor waits after it could not accept or hand on a socket.
const PAUSE: Duration = Duration::from_millis(5);
/// Least time between two log lines about that.
const QUIET: Duration = Duration::from_secs(10);

/// The address of the setting `bindAddress`.
///
/// # Errors
/// [`StartError::BindAddress`] if it is neither an IP address nor a name of one.
pub(super) fn address(bind: &str) -> Result<IpAddr, StartError> {
    let plain = bind.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = plain.parse() {
        return Ok(ip);
    }
    let fail = |cause| StartError::BindAddress {
        address: bind.to_owned(),
        cause,
    };
    (plain, 0)
        .to_socket_addrs()
        .map_err(fail)?
        .next()
        .map(|found| found.ip())
        .ok_or_else(|| fail(io::Error::from(io::ErrorKind::NotFound)))
}

/// The name of a setting and the flag that sets it.
pub(super) type Setting = (&'static str, &'static str);

/// Takes a port, without listening yet; 0 is any free one. Answers which it is.
///
/// # Errors
/// [`StartError::PortTaken`] and its neighbours, naming port and setting.
pub(super) fn bind(ip: IpAddr, port: u16, setting: Setting) -> Result<(Socket, u16), StartError> {
    let at = SocketAddr::new(ip, port);
    let bind = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // A restart must not wait for the last run's connections to time out.
        socket.set_reuse_address(true)?;
        if at.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&at.into())?;
        let bound = socket
            .local_addr()?
            .as_socket()
            .map_or(port, |at| at.port());
        Ok((socket, bound))
    };
    bind().map_err(|cause| refused(ip, port, setting, cause))
}

/// Listens on a bound port.
///
/// # Errors
/// As [`bind`]: somebody else may have been faster.
pub(super) fn open(
    socket: Socket,
    ip: IpAddr,
    port: u16,
    setting: Setting,
) -> Result<TcpListener, StartError> {
    socket
        .listen(BACKLOG)
        .and_then(|()| socket.set_nonblocking(true))
        .map_err(|cause| refused(ip, port, setting, cause))?;
    Ok(socket.into())
}

fn refused(ip: IpAddr, port: u16, (setting, flag): Setting, cause: io::Error) -> StartError {
    let address = ip.to_string();
    match cause.kind() {
        io::ErrorKind::AddrInUse => StartError::PortTaken {
            port,
            setting,
            address,
            flag,
        },
        io::ErrorKind::AddrNotAvailable => StartError::BindAddress { address, cause },
        kind => StartError::Listen {
            port,
            setting,
            address,
            cause,
            remedy: match kind {
                io::ErrorKind::PermissionDenied => {
                    "Ports below 1024 need the capability CAP_NET_BIND_SERVICE: choose a higher one or grant it"
                }
                _ => "Choose another address or port",
            },
        },
    }
}

/// [`bind`] and [`open`] in one.
#[cfg(test)]
pub(super) fn listen(ip: IpAddr, port: u16) -> Result<TcpListener, StartError> {
    let setting = ("brokerServicePort", "--port");
    let (socket, port) = bind(ip, port, setting)?;
    open(socket, ip, port, setting)
}

/// A listening socket and the core its connections go to; none: the least loaded one.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) core: Option<CoreId>,
}

/// Accepts and hands on, until `stop` becomes readable.
///
/// # Errors
/// If waiting itself fails, which no running system does.
pub(super) fn accept_until<M: Send + 'static>(
    doors: &[Door],
    post: &Post<M>,
    limits: &dyn Fn() -> Limits,
    stop: &UnixStream,
) -> io::Result<()> {
    let mut complaint = Complaint::default();
    let guests = Arc::new(Guests::default());
    loop {
        let mut waits: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        waits.extend(
            doors
                .iter()
                .map(|door| PollFd::new(&door.listener, PollFlags::IN)),
        );
        match poll(&mut waits, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = waits
            .iter()
            .map(|wait| !wait.revents().is_empty())
            .collect();
        if ready.first() == Some(&true) {
            return Ok(());
        }
        for (door, _) in doors
            .iter()
            .zip(ready.iter().skip(1))
            .filter(|(_, ready)| **ready)
        {
            if !accept_some(door, post, (&guests, limits), &mut complaint, stop)? {
                return Ok(());
            }
        }
    }
}

/// Accepts what one door has, at most a backlog's worth. False: the end has come.
fn accept_some<M: Send + 'static>(
    door: &Door,
    post: &Post<M>,
    (guests, limits): (&Arc<Guests>, &dyn Fn() -> Limits),
    complaint: &mut Complaint,
    stop: &UnixStream,
) -> io::Result<bool> {
    for _ in 0..64 {
        let (socket, peer) = match door.listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(true),
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => continue,
                _ => {
                    // Mostly: too many open files. The connection stays in the backlog.
                    complaint.say(|| format!("cannot accept connections: {error}. If it is the limit of open files, raise it (`ulimit -n`)"));
                    return pause(stop);
                }
            },
        };
        let limits = limits();
        let free = limits.descriptors;
        if free > 0 && u64::try_from(socket.as_raw_fd()).is_ok_and(|descriptor| descriptor >= free)
        {
            complaint.say(|| format!("connection of {peer} refused: descriptors from {free} on are kept for the log. Raise the limit of open files (`ulimit -n`)"));
            turn_away(socket);
            continue;
        }
        let ticket = match guests.admit(peer.ip(), limits) {
            Ok(ticket) => ticket,
            Err((limit, value)) => {
                complaint.say(|| format!("connection of {peer} refused: {limit} is {value}"));
                turn_away(socket);
                continue;
            }
        };
        let prepared = socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_nodelay(true))
            .and_then(|()| socket.local_addr());
        // Only a socket that is gone again refuses these.
        let Ok(local) = prepared else {
            continue;
        };
        let mut accepted = Accepted {
            socket,
            peer,
            local,
            ticket,
        };
        while let Err(back) =
            post.send_socket(door.core.unwrap_or_else(|| post.least_loaded()), accepted)
        {
            complaint
                .say(|| "a core is too busy to take its new connections; they wait".to_owned());
            accepted = back;
            if !pause(stop)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Says why before it hangs up, as Pulsar does: an ERROR without a request.
fn turn_away(mut socket: TcpStream) {
    let mut text = BytesMut::new();
    encode::error(
        &mut text,
        u64::MAX,
        ServerError::NotAllowedError,
        "Reached the maximum number of connections",
    );
    // Best effort: a fresh socket has room for this much, and its peer may be gone.
    let _ = socket
        .set_nonblocking(true)
        .and_then(|()| socket.write_all(&text))
        .and_then(|()| socket.shutdown(Shutdown::Write));
}

/// Waits a little. False: the end has come.
fn pause(stop: &UnixStream) -> io::Result<bool> {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(PAUSE.subsec_nanos()),
    };
    let mut waits = [PollFd::new(stop, PollFlags::IN)];
    match poll(&mut waits, Some(&timeout)) {
        Ok(ready) => Ok(ready == 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Says the same thing not too often.
#[derive(Debug, Default)]
struct Complaint {
    last: Option<Instant>,
}

impl Complaint {
    fn say(&mut self, what: impl FnOnce() -> String) {
        if self.last.is_none_or(|last| last.elapsed() >= QUIET) {
            self.last = Some(Instant::now());
            tracing::warn!("{}", what());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_taken_port_is_named_with_its_setting_and_the_way_out() {
        let first = listen(LOCAL, 0).unwrap();
        let port = first.local_addr().unwrap().port();
        let error = listen(LOCAL, port).unwrap_err().to_string();
        for part in [
            &port.to_string(),
            "brokerServicePort",
            "taken",
            "--port 0",
            "127.0.0.1",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // Free at once when the first listener is gone.
        drop(first);
        listen(LOCAL, port).unwrap();
    }

    #[test]
    fn a_bad_address_is_refused() {
        assert!(address("0.0.0.0").unwrap().is_unspecified());
        assert!(address("[::1]").unwrap().is_loopback());
        assert!(address("localhost").unwrap().is_loopback());
        let error = address("no such address").unwrap_err().to_string();
        assert!(
            error.contains("no such address") && error.contains("0.0.0.0"),
            "{error}"
        );
        let error = listen("192.0.2.1".parse().unwrap(), 0)
            .unwrap_err()
            .to_string();
        assert!(error.contains("192.0.2.1"), "{error}");
    }
}
