//! The three places where safe interfaces end: all `unsafe` of the runtime is here.
#![allow(unsafe_code)]

use glommio::net::TcpStream;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io_uring::{io_uring_params, io_uring_setup};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

/// The descriptor of a stream, for system calls that glommio does not offer (`sendmsg`, `shutdown`).
pub(super) fn descriptor(stream: &TcpStream) -> BorrowedFd<'_> {
    // SAFETY: the stream owns the descriptor and closes it only when dropped; the borrow cannot outlive it.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }
}

/// Gives a socket to the executor of this thread.
pub(super) fn adopt(socket: std::net::TcpStream) -> TcpStream {
    let owned: OwnedFd = socket.into();
    // SAFETY: the descriptor is an open socket, and its one owner gives it away here.
    unsafe { TcpStream::from_raw_fd(owned.into_raw_fd()) }
}

/// Makes a smallest ring and throws it away: tells whether this process may use io_uring.
pub(super) fn probe_ring() -> rustix::io::Result<()> {
    let mut params = io_uring_params::default();
    // SAFETY: the parameters are zeroed, as the call wants them; nothing is mapped or submitted.
    unsafe { io_uring_setup(1, &mut params) }.map(drop)
}
