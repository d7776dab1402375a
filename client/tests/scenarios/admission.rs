//! Sends are admitted before they are queued: whoever floods waits or is refused, memory stays bounded, and in the end nothing is held.

use crate::harness::{eventually, in_time, run, topic};
use crate::tls::Relay;
use crate::traffic::*;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vela_client::{Client, Error, Producer, RoutingMode, SubscriptionType, blocking};

const LIMIT: u64 = 1 << 20;
const SENDS: usize = 20_000;
/// A kibibyte of payload and a kibibyte of allowance each, and one.
const OUTSTANDING: u64 = LIMIT / 2048 + 1;

async fn limited(url: &str) -> Client {
    Client::builder(url)
        .memory_limit(LIMIT)
        .build()
        .await
        .unwrap()
}

fn payload() -> Bytes {
    Bytes::from(vec![b'x'; 1024])
}

#[derive(Default)]
struct Outstanding {
    now: AtomicU64,
    most: AtomicU64,
    done: AtomicU64,
    refused: AtomicU64,
}

impl Outstanding {
    fn more(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn less(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sends from a thread, nothing awaited. What was refused is counted, everything else must be sent.
fn flood(producer: &Producer<Bytes>) -> Arc<Outstanding> {
    let count = Arc::new(Outstanding::default());
    std::thread::spawn({
        let (producer, count) = (producer.clone(), Arc::clone(&count));
        move || {
            for _ in 0..SENDS {
                let in_callback = Arc::clone(&count);
                // Counted first: its end may come before the call returns.
                count.more();
                let sent = producer.send_with(payload(), move |result| {
                    result.unwrap();
                    in_callback.less();
                });
                match sent {
                    Ok(()) => {}
                    Err(Error::MemoryBufferIsFull {
                        limit: LIMIT,
                        wanted: 2048,
                        ..
                    }) => {
                        count.now.fetch_sub(1, Ordering::SeqCst);
                        count.refused.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
    count
}

impl Outstanding {
    async fn all_ended(&self) {
        let ended = || {
            self.done.load(Ordering::SeqCst) + self.refused.load(Ordering::SeqCst) == SENDS as u64
        };
        eventually("the end of all sends", ended).await;
    }
}

#[test]
#[ignore = "needs a broker"]
fn sends_of_a_tight_loop_wait_at_the_limit() {
    run(async |broker| {
        let client = limited(&broker.url).await;
        for batched in [true, false] {
            let producer = client
                .producer(topic("loop"))
                .batching(batched)
                .build()
                .await
                .unwrap();
            let count = flood(&producer);
            count.all_ended().await;
            assert_eq!(count.done.load(Ordering::SeqCst), SENDS as u64);
            // One more is counted before it is admitted, and one has ended and not yet been told so.
            let most = count.most.load(Ordering::SeqCst);
            assert!(
                most <= OUTSTANDING + 1,
                "{most} outstanding, {OUTSTANDING} allowed"
            );
            assert_eq!(client.memory().used(), 0);
            assert!(
                client.memory().peak() <= LIMIT,
                "{}",
                client.memory().peak()
            );
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn sends_of_a_task_wait_at_the_limit() {
    run(async |broker| {
        let client = limited(&broker.url).await;
        let producer = client.producer(topic("task")).build().await.unwrap();
        let mut receipts = Vec::new();
        for _ in 0..SENDS {
            receipts.push(
                in_time("admission", producer.send(payload()))
                    .await
                    .unwrap(),
            );
            assert!(client.memory().used() <= LIMIT);
        }
        for receipt in receipts {
            in_time("a receipt", receipt).await.unwrap();
        }
        assert_eq!(client.memory().used(), 0);
        assert!(
            client.memory().peak() <= LIMIT,
            "{}",
            client.memory().peak()
        );
    });
}

#[test]
#[ignore = "needs a broker"]
fn threads_wait_at_the_limit_too() {
    run(async |broker| {
        let url = broker.url.clone();
        let topic = topic("threads");
        let thread = std::thread::spawn(move || {
            let client = blocking::Client::new(Client::builder(url).memory_limit(LIMIT)).unwrap();
            let producer = client.producer(&topic).unwrap();
            let done = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (producer, done) = (producer.clone(), Arc::clone(&done));
                    std::thread::spawn(move || {
                        for _ in 0..2_000 {
                            let done = Arc::clone(&done);
                            let count = move |result: vela_client::Result<_>| {
                                result.unwrap();
                                done.fetch_add(1, Ordering::SeqCst);
                            };
                            producer.send_with(payload(), count).unwrap();
                        }
                        producer.send(payload()).unwrap();
                        // Behind the receipt of the last one of this thread.
                        producer.flush().unwrap();
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            assert_eq!(done.load(Ordering::SeqCst), 8_000);
            let memory = client.asynchronous().memory();
            assert_eq!(memory.used(), 0);
            assert!(memory.peak() <= LIMIT, "{}", memory.peak());
            producer
        });
        let joined = tokio::task::spawn_blocking(move || thread.join())
            .await
            .unwrap();
        let producer = joined.unwrap();
        let told = producer.send(payload()).unwrap_err();
        assert!(matches!(told, Error::WouldBlock { .. }), "{told}");
    });
}

#[test]
#[ignore = "needs a broker"]
fn without_leave_to_wait_they_are_refused_at_the_limit() {
    run(async |broker| {
        let relay = Relay::start(&broker.url).await;
        let client = limited(&relay.url).await;
        let producer = client
            .producer(topic("refused"))
            .block_if_queue_full(false)
            .send_timeout(Duration::ZERO);
        let producer = producer.build().await.unwrap();
        // Without an answer of the broker the loop comes to the limit, however fast the broker is.
        relay.hold(true);
        let count = flood(&producer);
        eventually("a refusal", || count.refused.load(Ordering::SeqCst) > 0).await;
        relay.hold(false);
        count.all_ended().await;
        assert!(count.done.load(Ordering::SeqCst) >= LIMIT / 2048);
        assert_eq!(client.memory().used(), 0);
        assert!(client.memory().peak() <= LIMIT);
    });
}

/// Whatever a receipt's callback does, it finds the room of its own message, and at the limit it is refused rather than stopped.
#[test]
#[ignore = "needs a broker"]
fn a_send_from_a_callback_never_hangs() {
    run(async |broker| {
        let client = Client::builder(&broker.url)
            .memory_limit(4096)
            .build()
            .await
            .unwrap();
        for cold in [false, true] {
            let topic = topic("callback");
            let producer = client
                .producer(&topic)
                .batching(false)
                .build()
                .await
                .unwrap();
            if !cold {
                producer.send_and_wait(payload()).await.unwrap();
            }
            let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
            let again = producer.clone();
            producer
                .send_with(payload(), move |result| {
                    result.unwrap();
                    // Two fit, the third does not.
                    for _ in 0..3 {
                        let told = said.clone();
                        let sent = again.send_with(payload(), move |result| {
                            let _ = told.send(result.map(|_| ()));
                        });
                        if let Err(error) = sent {
                            let _ = said.send(Err(error));
                        }
                    }
                })
                .unwrap();
            let mut ends = Vec::new();
            for _ in 0..3 {
                ends.push(
                    in_time("the end of a send from a callback", heard.recv())
                        .await
                        .unwrap(),
                );
            }
            let refused = ends
                .iter()
                .filter(|end| matches!(end, Err(Error::MemoryBufferIsFull { .. })))
                .count();
            assert!(
                ends.iter().filter(|end| end.is_ok()).count() >= 1,
                "{ends:?}"
            );
            assert_eq!(
                ends.iter().filter(|end| end.is_ok()).count() + refused,
                3,
                "{ends:?}"
            );
            eventually("nothing is held", || client.memory().used() == 0).await;
        }
    });
}

/// A broker that takes connections and says nothing stands for one that stalls.
#[test]
#[ignore = "needs a broker"]
fn giving_up_a_future_gives_nothing_back_while_its_message_is_queued() {
    run(async |broker| {
        let stall = Relay::start(&broker.url).await;
        let client = Client::builder(&stall.url)
            .memory_limit(LIMIT)
            .build()
            .await
            .unwrap();
        let topic = topic("storm");
        let mut consumer =
            subscribe(&broker.client().await, &topic, SubscriptionType::Exclusive).await;
        let producer = client
            .producer(&topic)
            .send_timeout(Duration::ZERO)
            .build()
            .await
            .unwrap();
        producer.send_and_wait(payload()).await.unwrap();
        stall.hold(true);
        let mut admitted = 0;
        for round in 0..3_000 {
            match tokio::time::timeout(Duration::from_millis(1), producer.send(payload())).await {
                // The caller is gone at once, the message is not.
                Ok(receipt) => {
                    admitted += 1;
                    drop(receipt.unwrap());
                }
                Err(_) if round > 600 => break,
                Err(_) => {}
            }
            assert!(client.memory().used() <= LIMIT);
        }
        // What is on the wire stays charged; what is not was skipped, so somewhat more were admitted than fit.
        assert!(admitted >= 1, "{admitted}");
        assert!(client.memory().peak() <= LIMIT);
        stall.hold(false);
        eventually("all is released", || client.memory().used() == 0).await;
        producer
            .send_and_wait(Bytes::from_static(b"after"))
            .await
            .unwrap();
        loop {
            let message = take(&mut consumer, 1).await.remove(0);
            if message.payload() == "after" {
                break;
            }
        }
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn every_way_to_fail_releases() {
    run(async |broker| {
        let client = limited(&broker.url).await;
        let producer = plain_producer(&client, &topic("failing")).await;
        // One that is larger than the limit of the client, and than the broker takes: admitted alone, refused alone.
        let failed = match producer.send(Bytes::from(vec![0; 8 << 20])).await {
            Ok(receipt) => in_time("the end", receipt).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(failed, Error::MessageTooLarge { .. }), "{failed}");
        assert_eq!(client.memory().used(), 0);
        producer.send_and_wait(payload()).await.unwrap();
        producer.close().await.unwrap();
        let closed = match producer.send(payload()).await {
            Ok(receipt) => in_time("the end", receipt).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(closed, Error::Closed(_)), "{closed}");
        assert_eq!(client.memory().used(), 0);
        let parts = topic("failing-parts");
        broker.create_partitions(&parts, 2);
        let lost = |_: &vela_client::OutgoingMessage, partitions: u32| partitions + 7;
        let producer = client
            .producer(&parts)
            .routing_mode(RoutingMode::Custom(Arc::new(lost)))
            .build()
            .await
            .unwrap();
        if let Ok(receipt) = producer.send(payload()).await {
            in_time("the end", receipt).await.unwrap_err();
        }
        assert_eq!(client.memory().used(), 0);
    });
}

/// Nobody overtakes: who waits longest is admitted first, whatever the sizes.
#[test]
#[ignore = "needs a broker"]
fn producers_of_a_client_share_its_limit_fairly() {
    run(async |broker| {
        let client = Client::builder(&broker.url)
            .memory_limit(64 << 10)
            .build()
            .await
            .unwrap();
        let shares = Arc::new(Mutex::new(vec![0u32; 4]));
        let mut tasks = Vec::new();
        for who in 0..4 {
            let producer = client.producer(topic("fair")).build().await.unwrap();
            let shares = Arc::clone(&shares);
            // One of them sends much larger messages than the others.
            let size = if who == 0 { 40 << 10 } else { 100 };
            tasks.push(tokio::spawn(async move {
                for _ in 0..200 {
                    producer
                        .send(Bytes::from(vec![0; size]))
                        .await
                        .unwrap()
                        .detach();
                    shares.lock().unwrap()[who] += 1;
                }
                producer.flush().await.unwrap();
            }));
        }
        for task in tasks {
            in_time("a sender", task).await.unwrap();
        }
        assert_eq!(*shares.lock().unwrap(), [200; 4]);
        eventually("all is released", || client.memory().used() == 0).await;
        assert!(client.memory().peak() <= 64 << 10);
    });
}
