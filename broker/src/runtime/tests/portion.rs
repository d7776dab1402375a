//! What a read teaches of a connection, on a core that the test turns by hand.

use super::echo::*;
use super::network::eventually;
use crate::runtime::clock::Clock;
use crate::runtime::core::{Core, Setup};
use crate::runtime::guests::{Guests, Limits};
use crate::runtime::post::{Accepted, Post};
use crate::runtime::raw;
use glommio::{LocalExecutorBuilder, Placement};
use std::future::poll_fn;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::task::Poll;
use vela_limiter::Mode;

#[test]
fn a_read_at_the_tick_learns_the_size_of_frames() {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10);
    executor.make().unwrap().run(async {
        let post = Arc::new(Post::new(1));
        let setup = Setup {
            id: 0,
            clock: Clock::start(),
            tick_us: 500,
            intake: Server::intake(Mode::Tracking, 0, 30_000),
            figures: Arc::default(),
        };
        let mut core = Core::new(setup, Arc::clone(&post), Echo::new(0, 1), NoStorage);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, peer) = listener.accept().unwrap();
        let guests = Arc::new(Guests::default());
        let ticket = guests.admit(peer.ip(), Limits::default()).unwrap();
        let accepted = Accepted {
            socket,
            peer,
            local: peer,
            ticket,
        };
        assert!(post.send_socket(0, accepted).is_ok());
        let key = poll_fn(|cx| Poll::Ready(core.poll_turn(cx).0[0])).await;
        let portion = |core: &Core<Echo, NoStorage>| core.conns[key].portion.bytes(true);
        assert_eq!(portion(&core), 256 * 1024, "nothing is known yet");
        let frame = encode(&[ECHO, 0], &[1; 90]);
        client.write_all(&frame.repeat(200)).unwrap();
        eventually("all of it is there", || {
            let socket = raw::descriptor(&core.conns[key].stream);
            rustix::io::ioctl_fionread(socket).unwrap() == 200 * frame.len() as u64
        });
        let now = core.clock.now();
        let (_, bytes) = core.read_now(key, now).unwrap();
        assert_eq!(bytes, 200 * frame.len());
        assert_eq!(portion(&core), 32 * 1024, "small frames");
    });
}
