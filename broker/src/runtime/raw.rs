//! The four places where safe interfaces end: all `unsafe` of the runtime is here.
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

/// Sets how many bytes must have come before the socket counts as readable (`SO_RCVLOWAT`), or its peer must have ended. A
/// read takes what there is all the same. False: it could not be set.
pub(super) fn set_low_water(stream: &TcpStream, bytes: usize) -> bool {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open while the stream is borrowed; the kernel reads one int, which outlives the call.
    let answer = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            std::ptr::from_ref(&bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    answer == 0
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
