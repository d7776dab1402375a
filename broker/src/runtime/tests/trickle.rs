//! Frames that come by a few bytes at a time, and peers that leave while nothing is read of them.

use super::echo::*;
use super::network::eventually;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vela_limiter::Mode;

fn trickles(server: &Server) -> u64 {
    server.intake.trickles.load(Ordering::Relaxed)
}

/// Sends single bytes of a frame until the broker lets the kernel wait for more of them at once.
fn trickle(server: &Server, client: &mut Client, whole: &[u8]) -> usize {
    let before = trickles(server);
    let mut sent = 20;
    client.0.write_all(&whole[..sent]).unwrap();
    eventually("the broker sees that it trickles", || {
        if sent < whole.len() - 1000 {
            client.0.write_all(&whole[sent..=sent]).unwrap();
            sent += 1;
        }
        trickles(server) > before
    });
    sent
}

#[test]
fn a_frame_that_trickles_comes_whole_and_what_follows_it_at_once() {
    for tick_us in [0, 500] {
        let server = Server::start(1, tick_us);
        let mut client = server.connect();
        let body: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        let whole = encode(&[ECHO, 0], &body);
        let sent = trickle(&server, &mut client, &whole);
        client.0.write_all(&whole[sent..]).unwrap();
        assert!(client.receive().1 == body);
        // Less than what the kernel was to wait for.
        client.call(ECHO, b"a");
        // One whose last bytes are fewer than that.
        let whole = encode(&[ECHO, 0], &body[..3000]);
        let sent = trickle(&server, &mut client, &whole);
        for byte in &whole[sent..] {
            client.0.write_all(&[*byte]).unwrap();
        }
        assert!(client.receive().1 == body[..3000]);
        client.call(ECHO, b"b");
        server.stop();
    }
}

#[test]
fn a_trickling_frame_that_ends_is_noticed() {
    let server = Server::with(1, 500, Server::intake(Mode::Auto, 64 << 20, 2_000));
    let whole = encode(&[ECHO, 0], &[1; 200_000]);
    let mut standing = server.connect();
    trickle(&server, &mut standing, &whole);
    let mut leaving = server.connect();
    trickle(&server, &mut leaving, &whole);
    drop(leaving);
    assert_eq!(standing.0.read(&mut [0]).unwrap_or(0), 0, "closed");
    eventually("both are gone", || server.connections() == 0);
    eventually("no memory is held", || server.retained() == 0);
    server.stop();
}

/// Every frame of a pool has its first part, and none can have the rest: what wakes the one that goes on is the last that asks in vain.
#[test]
fn a_pool_that_all_wait_for_goes_on() {
    // Frames of a megabyte have a pool of 1152 KiB, so eight first parts leave no room for a rest.
    let server = Server::with(1, 500, Server::intake(Mode::Auto, 6 << 20, 600_000));
    let body = vec![5; 1 << 20];
    let whole = encode(&[ECHO, 0], &body);
    let part = 130 * 1024;
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.0.write_all(&whole[..40 * 1024]).unwrap();
    }
    eventually("all have begun", || server.retained() >= 8 * 40 * 1024);
    for client in &mut clients {
        client.0.write_all(&whole[40 * 1024..part]).unwrap();
    }
    let writers: Vec<_> = clients
        .iter()
        .map(|client| {
            let (mut stream, whole) = (client.0.try_clone().unwrap(), whole.clone());
            std::thread::spawn(move || stream.write_all(&whole[part..]))
        })
        .collect();
    for client in &mut clients {
        assert!(client.receive().1 == body);
    }
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    assert_eq!(server.intake.closed(), (0, 0));
    drop(clients);
    eventually("no memory is held", || server.retained() == 0);
    server.stop();
}

/// A connection whose frame waits for the memory of others is not read; that its peer has left is seen all the same.
#[test]
fn one_that_leaves_while_memory_holds_it_is_noticed() {
    let server = Server::with(1, 500, Server::intake(Mode::Auto, 2 << 20, 600_000));
    let whole = encode(&[ECHO, 0], &vec![5; 1 << 20]);
    let mut first = server.connect();
    first.0.write_all(&whole[..900 * 1024]).unwrap();
    eventually("it is read", || server.retained() >= 900 * 1024);
    let mut others: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for other in &mut others {
        // Few enough for the socket: behind bytes that it cannot take no end is seen.
        other.0.write_all(&whole[..40 * 1024]).unwrap();
    }
    eventually("they wait", || server.intake.held() >= 3);
    // The first one keeps its pace, so that nobody is to make room.
    let mut stream = first.0.try_clone().unwrap();
    let rest = whole.clone();
    let beat = std::thread::spawn(move || {
        for piece in rest[900 * 1024..rest.len() - 10].chunks(1024) {
            if stream.write_all(piece).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    drop(others);
    eventually("the others are gone", || server.connections() == 1);
    beat.join().unwrap();
    drop(first);
    eventually("no memory is held", || server.retained() == 0);
    server.stop();
}
