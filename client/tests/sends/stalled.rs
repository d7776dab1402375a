//! Sends while the broker stands still: a socket in between that can stop passing bytes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use vela_client::admission::MESSAGE_OVERHEAD;
use vela_client::{Client, Error};

use crate::harness::{LIMIT, eventually, in_time, run, topic};

/// Passes bytes on between a client and the broker, while it may.
struct Proxy {
    url: String,
    stalled: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(broker: &str) -> Self {
        let broker = broker.trim_start_matches("pulsar://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("pulsar://{}", listener.local_addr().unwrap());
        let stalled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stalled);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&broker).await else {
                    continue;
                };
                let (client_in, client_out) = client.into_split();
                let (server_in, server_out) = server.into_split();
                tokio::spawn(pass(client_in, server_out, Arc::clone(&flag)));
                tokio::spawn(pass(server_in, client_out, Arc::clone(&flag)));
            }
        });
        Self { url, stalled }
    }

    fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Release);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    stalled: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(n) = from.read(&mut buffer).await
        && n > 0
    {
        while stalled.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

const MEMORY: u64 = 1 << 20;
const PAYLOAD: usize = 1024;

/// Futures are dropped and timed out by the hundred while nothing moves: the room they take stays taken as long as their messages are
/// queued, so no more than the limit is ever there, and all of it comes back.
#[test]
#[ignore = "needs a broker"]
fn a_storm_of_cancelled_and_timed_out_sends_stays_within_the_limit() {
    run(async |broker| {
        let proxy = Proxy::start(&broker.url).await;
        let client = Client::builder(&proxy.url)
            .memory_limit(MEMORY)
            .build()
            .await
            .unwrap();
        let producer = client.producer(topic("storm")).build().await.unwrap();
        in_time("a receipt", producer.send_and_wait("warm"))
            .await
            .unwrap();
        for round in 0..5 {
            proxy.stall(true);
            let mut kept = Vec::new();
            for number in 0..2_000_u32 {
                match producer.try_send(vec![1; PAYLOAD]) {
                    Ok(receipt) if number % 3 == 0 => kept.push(receipt),
                    // Given up at once.
                    Ok(receipt) if number % 3 == 1 => drop(receipt),
                    // Given up after a time of the caller's.
                    Ok(receipt) => {
                        let patience = Duration::from_micros(u64::from(number % 50));
                        drop(tokio::time::timeout(patience, receipt).await);
                    }
                    Err(Error::MemoryBufferIsFull { .. }) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
                assert!(client.memory().used() <= MEMORY, "round {round}");
            }
            let most = MEMORY / (PAYLOAD as u64 + MESSAGE_OVERHEAD) + 1;
            assert!(
                kept.len() as u64 <= most,
                "{} sends are pending",
                kept.len()
            );
            proxy.stall(false);
            for receipt in kept {
                in_time("a receipt", receipt).await.unwrap();
            }
            eventually("the memory is given back", || client.memory().used() == 0).await;
        }
        assert!(client.memory().peak() <= MEMORY);
        in_time("a receipt", producer.send_and_wait("after"))
            .await
            .unwrap();
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_send_times_out_while_the_broker_stands_still_and_the_next_do_not() {
    run(async |broker| {
        let proxy = Proxy::start(&broker.url).await;
        let client = Client::builder(&proxy.url).build().await.unwrap();
        let producer = client
            .producer(topic("timeout"))
            .send_timeout(Duration::from_millis(300));
        let producer = producer.build().await.unwrap();
        proxy.stall(true);
        let receipts: Vec<_> = (0..50).map(|_| producer.try_send("x").unwrap()).collect();
        for receipt in receipts {
            let error = in_time("the time-out", receipt).await.unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        eventually("the memory is given back", || client.memory().used() == 0).await;
        proxy.stall(false);
        // The late receipts of those are nobody's; a new send has its own. A slow machine may time it out too.
        let deadline = std::time::Instant::now() + LIMIT;
        while let Err(error) = in_time("an end", producer.send_and_wait("y")).await {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            assert!(std::time::Instant::now() < deadline);
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_broker_that_says_nothing_is_left() {
    run(async |broker| {
        let proxy = Proxy::start(&broker.url).await;
        let client = Client::builder(&proxy.url).keep_alive_interval(Duration::from_millis(200));
        let client = client.backoff(Duration::from_millis(10), Duration::from_millis(100));
        let client = client.build().await.unwrap();
        let producer = client
            .producer(topic("silent"))
            .send_timeout(Duration::ZERO);
        let producer = producer.build().await.unwrap();
        proxy.stall(true);
        let receipt = producer.try_send("x").unwrap();
        eventually("the connection is given up", || !producer.is_connected()).await;
        proxy.stall(false);
        in_time("a receipt over the next connection", receipt)
            .await
            .unwrap();
        eventually("the memory is given back", || client.memory().used() == 0).await;
    });
}
