//! No core stands still with work pending: the executor's wrong parks must always end by the heartbeat.

use super::echo::*;
use crate::runtime::port::{ConnId, CoreEngine, Now};
use std::time::Duration;

/// Thousands of short runs over more cores than CPUs, with mailboxes, timers and sockets mixed, so that threads
/// are preempted at every point. Each run must end before the client's time is over.
#[test]
fn thousands_of_short_runs_never_hang() {
    let server = Server::start(4, 300);
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let addr = server.core_addrs[n];
            std::thread::spawn(move || {
                let mut client = Client::to(addr);
                for runs in 0..1000 {
                    match runs % 16 {
                        0 => client.call(HOLD, b"timer"),
                        1 => client = Client::to(addr),
                        2 => std::thread::sleep(Duration::from_micros(700)),
                        3..10 => client.call(ROUND, b"all cores"),
                        _ => client.call(ECHO, b"this core"),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    server.stop();
}

/// Mailboxes that fill up in a circle: every core floods the next. Nothing is lost, nothing waits for ever.
#[test]
fn full_mailboxes_in_a_circle_drain() {
    let server = Server::start(3, 0);
    let threads: Vec<_> = (0..3)
        .map(|n| {
            let mut client = Client::to(server.core_addrs[n]);
            std::thread::spawn(move || {
                let mut writer = Client(client.0.try_clone().unwrap());
                let sender = std::thread::spawn(move || {
                    for n in 0..20_000_u32 {
                        writer.send(ROUND, &n.to_be_bytes());
                    }
                });
                for n in 0..20_000_u32 {
                    assert_eq!(client.receive().1, n.to_be_bytes());
                }
                sender.join().unwrap();
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    server.stop();
}

/// The double itself refuses what a correct runtime never does.
#[test]
#[should_panic(expected = "closed once")]
fn the_double_sees_a_second_close() {
    let now = Now { ms: 0, wall_ms: 0 };
    let mut echo = Echo::new(0, 1);
    let addr = "127.0.0.1:1".parse().unwrap();
    let conn: ConnId = echo.accept(addr, addr, now);
    echo.closed(conn, now);
    echo.closed(conn, now);
}
