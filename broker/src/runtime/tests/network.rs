use super::echo::*;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// Waits for something that another thread does.
pub(super) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn frames_of_every_size_come_back_whole() {
    for tick_us in [0, 500] {
        let server = Server::start(1, tick_us);
        let mut client = server.connect();
        for size in [0, 1, 100, 4_000, 16_383, 70_000, 300_000, 5 << 20] {
            let rest: Vec<u8> = (0..size).map(|n| n as u8).collect();
            client.call(ECHO, &rest);
        }
        // The same over byte-sized pieces.
        for byte in encode(&[ECHO, 0], b"slow") {
            client.0.write_all(&[byte]).unwrap();
            std::thread::sleep(Duration::from_micros(300));
        }
        assert_eq!(client.receive().1, b"slow");
        drop(client);
        server.stop();
    }
}

#[test]
fn many_frames_in_one_write_come_back_in_order_on_every_connection() {
    let server = Server::start(2, 500);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let mut client = server.connect();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let mut all = Vec::new();
                    for n in 0..500_u32 {
                        all.extend_from_slice(&encode(&[ECHO, 0], &n.to_be_bytes()));
                    }
                    client.0.write_all(&all).unwrap();
                    for n in 0..500_u32 {
                        assert_eq!(client.receive().1, n.to_be_bytes());
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    server.stop();
}

#[test]
fn messages_between_cores_keep_their_order() {
    let server = Server::start(3, 0);
    let mut client = server.connect();
    for n in 0..2000_u32 {
        client.send(ROUND, &n.to_be_bytes());
    }
    for n in 0..2000_u32 {
        assert_eq!(client.receive().1, n.to_be_bytes());
    }
    server.stop();
}

#[test]
fn the_shared_port_spreads_and_a_core_port_does_not() {
    let server = Server::start(2, 0);
    let shared: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    eventually("spread evenly", || {
        (0..2).all(|core| server.cluster.post.connections(core) == 5)
    });
    let own: Vec<Client> = (0..6).map(|_| Client::to(server.core_addrs[1])).collect();
    eventually("all at core 1", || server.cluster.post.connections(1) == 11);
    assert_eq!(server.cluster.post.connections(0), 5);
    drop((shared, own));
    eventually("all gone", || server.connections() == 0);
    server.stop();
}

#[test]
fn a_held_connection_is_not_read_and_goes_on_where_it_stopped() {
    let server = Server::start(1, 500);
    let mut client = server.connect();
    let start = Instant::now();
    for n in 0..10_u8 {
        client.send(HOLD, &[n]);
        client.send(ECHO, &[n]);
    }
    for n in 0..10_u8 {
        for kind in [HOLD, ECHO] {
            let (command, rest) = client.receive();
            assert_eq!((command[0], rest), (kind, vec![n]));
        }
    }
    // Ten holds of 20 ms, the last of which nothing waits behind.
    assert!(start.elapsed() >= Duration::from_millis(180));
    server.stop();
}

#[test]
fn what_waits_behind_a_hold_is_bounded_by_the_socket() {
    let server = Server::start(1, 0);
    let mut client = server.connect();
    client.0.set_nonblocking(true).unwrap();
    let hold = encode(&[HOLD, 0], &[0; 1000]);
    // Each hold lasts 20 ms, so a second takes at most 50 of these frames, 50 KB. Far more is offered.
    let start = Instant::now();
    let (mut offered, mut most) = (0, 0);
    while offered <= 1 << 20 || start.elapsed() < Duration::from_millis(400) {
        match client.0.write(&hold) {
            Ok(n) => offered += n,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        most = most.max(server.retained());
        assert!(start.elapsed() < LIMIT, "{offered} bytes offered");
    }
    // One read's worth of frames, each in its own memory, and the core's buffer.
    assert!(most <= 3 * 1024 * 1024, "{most} bytes retained");
    drop(client);
    eventually("memory is free again", || server.retained() == 0);
    server.stop();
}

#[test]
fn an_answer_before_a_close_arrives_though_more_was_sent() {
    let server = Server::start(1, 0);
    for _ in 0..50 {
        let mut client = server.connect();
        client.send(CLOSE, b"bye");
        // Sent after it, and never read by the engine: must not destroy the answer.
        let _ = client.0.write_all(&encode(&[ECHO, 0], &[1; 1000]));
        assert_eq!(client.receive().1, b"bye");
        let mut end = Vec::new();
        client.0.read_to_end(&mut end).unwrap();
        assert!(end.is_empty());
    }
    eventually("all gone", || server.connections() == 0);
    server.stop();
}

#[test]
fn a_peer_that_never_closes_is_cut_off() {
    let server = Server::start(1, 0);
    let mut client = server.connect();
    client.call(CLOSE, b"x");
    eventually("cut off", || server.connections() == 0);
    drop(client);
    server.stop();
}

#[test]
fn a_slow_reader_gets_everything_and_holds_nobody_up() {
    let server = Server::start(1, 500);
    let mut slow = server.connect();
    slow.0.write_all(&encode(&[MUCH, 40], &[])).unwrap();
    let mut other = server.connect();
    for _ in 0..50 {
        other.call(ECHO, b"me");
    }
    let mut left = 40 << 20;
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        let n = slow.0.read(&mut buffer).unwrap();
        assert!(n > 0 && buffer[..n].iter().all(|byte| *byte == 7));
        left -= n;
    }
    slow.call(ECHO, b"done");
    server.stop();
}

#[test]
fn what_is_not_a_frame_ends_the_connection_and_only_that() {
    let server = Server::start(1, 0);
    let mut good = server.connect();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 100],
        &[0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let mut bad = server.connect();
        bad.0.write_all(bytes).unwrap();
        let mut end = Vec::new();
        // Closed or reset, at once, without an answer.
        let _ = bad.0.read_to_end(&mut end);
        assert!(end.is_empty());
        good.call(ECHO, b"still here");
    }
    server.stop();
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let server = Server::start(2, 500);
    for round in 0..300 {
        let mut client = server.connect();
        match round % 4 {
            0 => client.call(ECHO, b"x"),
            1 => client.send(ECHO, &[0; 100_000]),
            // Half a frame.
            2 => client.0.write_all(&[0, 0, 100]).unwrap(),
            _ => client.0.shutdown(Shutdown::Write).unwrap(),
        }
    }
    eventually("all gone", || server.connections() == 0);
    eventually("memory is free again", || server.retained() == 0);
    server.stop();
}

#[test]
fn idle_connections_own_no_buffer() {
    let server = Server::start(1, 500);
    // More than a ring has entries.
    let mut clients: Vec<Client> = (0..300).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.call(ECHO, b"hello");
    }
    eventually("no memory is held", || server.retained() == 0);
    server.stop();
}

#[test]
fn the_end_says_goodbye_to_all_and_waits_for_nobody() {
    let server = Server::start(2, 500);
    let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.call(ECHO, b"hello");
    }
    // Within the time that the end may take, though nobody leaves.
    server.stop();
    for mut client in clients {
        let mut end = Vec::new();
        client.0.read_to_end(&mut end).unwrap();
        assert!(end.is_empty());
    }
}

#[test]
fn a_core_that_stands_still_is_counted_once() {
    let server = Server::start(1, 0);
    let mut client = server.connect();
    client.0.write_all(&encode(&[STALL, 0], &[])).unwrap();
    let post = std::sync::Arc::clone(&server.cluster.post);
    eventually("it is seen to stand still", || post.is_stalled(0));
    let stalls = post.stalls(0);
    // Many looks later.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((post.stalls(0), post.is_stalled(0)), (stalls, true));
    STALL_ENDS.store(true, std::sync::atomic::Ordering::Release);
    client.receive();
    client.call(ECHO, b"goes on");
    eventually("it is seen to go on", || !post.is_stalled(0));
    server.stop();
}
