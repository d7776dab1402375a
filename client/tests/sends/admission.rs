//! Sends against a limit: the room is given back before anybody learns of the end, and nobody waits where waiting could last for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use vela_client::admission::MESSAGE_OVERHEAD;
use vela_client::{Client, Error, Producer};

use crate::harness::{eventually, in_time, run, topic};

const SENDS: u64 = 20_000;
const PAYLOAD: u64 = 1024;
const LIMIT: u64 = 1 << 20;

async fn client(url: &str) -> Client {
    let client = Client::builder(url).memory_limit(LIMIT);
    client.build().await.unwrap()
}

/// Ends with what is queued: counts it and says that it is empty.
async fn unused(client: &Client) {
    eventually("the memory is given back", || client.memory().used() == 0).await;
}

fn value() -> Vec<u8> {
    vec![7; PAYLOAD as usize]
}

#[test]
#[ignore = "needs a broker"]
fn a_loop_that_awaits_nothing_is_held_at_the_limit() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let producer = client.producer(topic("loop")).build().await.unwrap();
        let (ended, mut results) = mpsc::unbounded_channel();
        for _ in 0..SENDS {
            let receipt = producer.send(value()).await.unwrap();
            let ended = ended.clone();
            tokio::spawn(async move { ended.send(receipt.await).unwrap() });
        }
        let mut ids = std::collections::HashSet::new();
        for _ in 0..SENDS {
            let id = in_time("a receipt", results.recv()).await.unwrap().unwrap();
            assert!(ids.insert(id), "{id} twice");
        }
        // Tasks would count a while after the room is given back, so what is counted is the room: that of 512 sends.
        assert_eq!(LIMIT / (PAYLOAD + MESSAGE_OVERHEAD), 512);
        assert!(client.memory().peak() <= LIMIT);
        unused(&client).await;
        producer.close().await.unwrap();
    });
}

/// The same by callbacks from a thread, where an end is counted before the next end can give its room back.
#[test]
#[ignore = "needs a broker"]
fn sends_of_a_thread_are_held_at_the_limit() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let producer = client.producer(topic("thread")).build().await.unwrap();
        let outstanding = Arc::new(AtomicI64::new(0));
        let done = Arc::new(AtomicU64::new(0));
        let (count, all) = (Arc::clone(&outstanding), Arc::clone(&done));
        let sender = std::thread::spawn(move || {
            let mut peak = 0;
            for _ in 0..SENDS {
                let (outstanding, done) = (Arc::clone(&count), Arc::clone(&all));
                let callback = move |result: vela_client::Result<_>| {
                    result.unwrap();
                    outstanding.fetch_sub(1, Ordering::AcqRel);
                    done.fetch_add(1, Ordering::AcqRel);
                };
                producer.send_with(value(), callback).unwrap();
                peak = peak.max(count.fetch_add(1, Ordering::AcqRel) + 1);
            }
            peak
        });
        eventually("all callbacks", || done.load(Ordering::Acquire) == SENDS).await;
        let peak = sender.join().unwrap();
        // 512 have their room; one more has given it back, and its callback is about to count.
        assert!(peak <= 513, "{peak} sends outstanding");
        assert!(client.memory().peak() <= LIMIT);
        unused(&client).await;
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_loop_that_may_not_wait_is_told_so() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let producer = client.producer(topic("refused")).block_if_queue_full(false);
        let producer = producer.build().await.unwrap();
        let (mut receipts, mut refused) = (Vec::new(), 0);
        for _ in 0..SENDS {
            match producer.send(value()).await {
                Ok(receipt) => receipts.push(receipt),
                Err(Error::MemoryBufferIsFull { limit, wanted, .. }) => {
                    assert_eq!((limit, wanted), (LIMIT, PAYLOAD + MESSAGE_OVERHEAD));
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0, "the loop is faster than any broker");
        assert_eq!(receipts.len() + refused, SENDS as usize);
        for receipt in receipts {
            in_time("a receipt", receipt).await.unwrap();
        }
        assert!(client.memory().peak() <= LIMIT);
        unused(&client).await;
    });
}

/// Fills the limit, then sends once more in each callback: there is room for it, or it is told at once; it never waits.
async fn send_in_callbacks(client: &Client, producer: &Producer<bytes::Bytes>, cold: bool) {
    let (told, found) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ends = Arc::new(AtomicUsize::new(0));
    let mut sent = 0;
    while sent < 600 {
        let inner = producer.clone();
        let (told, found) = (Arc::clone(&told), Arc::clone(&found));
        let (first, second) = (Arc::clone(&ends), Arc::clone(&ends));
        let callback = move |_| {
            // block_if_queue_full is set, and still this does not wait.
            let again = inner.send_with(value(), move |_| {
                second.fetch_add(1, Ordering::AcqRel);
            });
            match again {
                Ok(()) => found.fetch_add(1, Ordering::AcqRel),
                Err(Error::MemoryBufferIsFull { .. }) => told.fetch_add(1, Ordering::AcqRel),
                Err(error) => panic!("{error}"),
            };
            first.fetch_add(1, Ordering::AcqRel);
        };
        // Where the producer is cold nothing ends while the limit is being filled: what does not fit is not waited for.
        if cold && client.memory().used() + PAYLOAD + MESSAGE_OVERHEAD > LIMIT {
            break;
        }
        let (producer, value) = (producer.clone(), value());
        tokio::task::spawn_blocking(move || producer.send_with(value, callback))
            .await
            .unwrap_or(Ok(()))
            .unwrap_or_else(|error| panic!("{error}"));
        sent += 1;
    }
    let all = || {
        let again = found.load(Ordering::Acquire) + told.load(Ordering::Acquire);
        again == sent && ends.load(Ordering::Acquire) == sent + found.load(Ordering::Acquire)
    };
    eventually("all callbacks and those of their sends", all).await;
    assert!(
        found.load(Ordering::Acquire) > 0,
        "a send finds the room that its own end gave back"
    );
    unused(client).await;
}

#[test]
#[ignore = "needs a broker"]
fn a_send_in_a_callback_of_a_receipt_never_waits() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let producer = client
            .producer(topic("continuation"))
            .build()
            .await
            .unwrap();
        // spawn_blocking threads belong to a runtime: they are refused where they would wait, so the limit is filled by an own thread.
        let sender = producer.clone();
        let (told, found) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let ends = Arc::new(AtomicUsize::new(0));
        let counts = (Arc::clone(&told), Arc::clone(&found), Arc::clone(&ends));
        let sends = 3_000;
        let thread = std::thread::spawn(move || {
            for _ in 0..sends {
                let inner = sender.clone();
                let (told, found, ends) = (
                    Arc::clone(&counts.0),
                    Arc::clone(&counts.1),
                    Arc::clone(&counts.2),
                );
                let second = Arc::clone(&ends);
                let callback = move |result: vela_client::Result<_>| {
                    result.unwrap();
                    let again = inner.send_with(value(), move |_| {
                        second.fetch_add(1, Ordering::AcqRel);
                    });
                    match again {
                        Ok(()) => found.fetch_add(1, Ordering::AcqRel),
                        Err(Error::MemoryBufferIsFull { .. }) => {
                            told.fetch_add(1, Ordering::AcqRel)
                        }
                        Err(error) => panic!("{error}"),
                    };
                    ends.fetch_add(1, Ordering::AcqRel);
                };
                sender.send_with(value(), callback).unwrap();
            }
        });
        let all = || {
            let found = found.load(Ordering::Acquire);
            found + told.load(Ordering::Acquire) == sends
                && ends.load(Ordering::Acquire) == sends + found
        };
        eventually("all callbacks and those of their sends", all).await;
        thread.join().unwrap();
        assert!(found.load(Ordering::Acquire) > 0);
        unused(&client).await;
    });
}

/// The partitions' producers are opened by the first message, so what fills the limit waits for that.
#[test]
#[ignore = "needs a broker"]
fn a_send_in_a_callback_of_a_producer_being_opened_never_waits() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let topic = topic("cold");
        broker.create_partitions(&topic, 3);
        let producer = client
            .producer(&topic)
            .lazy_start_partitioned_producers(true);
        let producer = producer.build().await.unwrap();
        send_in_callbacks(&client, &producer, true).await;
        // And one that fails before it is on the wire: its end comes from the same place.
        let small = client
            .producer(&topic)
            .lazy_start_partitioned_producers(true);
        let small = small.batching(false).build().await.unwrap();
        let (inner, (sender, mut ended)) = (small.clone(), mpsc::unbounded_channel());
        let large = vec![1; 16 << 20];
        let sent = small.send_with(large, move |result| {
            let again = inner.send_with(value(), |_| {});
            sender.send((result, again)).unwrap();
        });
        if let Err(error) = sent {
            // It was opened faster than the message came.
            assert!(matches!(error, Error::MessageTooLarge { .. }), "{error}");
            return unused(&client).await;
        }
        let (result, again) = in_time("the callback", ended.recv()).await.unwrap();
        assert!(
            matches!(result, Err(Error::MessageTooLarge { .. })),
            "{result:?}"
        );
        again.unwrap();
        unused(&client).await;
    });
}

/// Sends into a topic while something is done to it, and answers how many were stored and what became of the others.
async fn send_during(
    client: &Client,
    producer: &Producer<bytes::Bytes>,
    during: impl FnOnce() + Send + 'static,
) -> (usize, Vec<Error>) {
    let mut during = Some(during);
    let (mut receipts, mut errors, mut stored) = (Vec::new(), Vec::new(), 0);
    let mut done = None;
    for number in 0..5_000 {
        match producer.send(value()).await {
            Ok(receipt) => receipts.push(receipt),
            Err(error) => errors.push(error),
        }
        if number == 1_000
            && let Some(during) = during.take()
        {
            done = Some(tokio::task::spawn_blocking(during));
        }
    }
    for receipt in receipts {
        match in_time("an end", receipt).await {
            Ok(_) => stored += 1,
            Err(error) => errors.push(error),
        }
    }
    in_time("what is done to the topic", done.unwrap())
        .await
        .unwrap();
    unused(client).await;
    (stored, errors)
}

#[test]
#[ignore = "needs a broker"]
fn a_topic_moved_in_mid_flight_loses_nothing() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let topic = topic("moved");
        let producer = client.producer(&topic).build().await.unwrap();
        let path = format!("/admin/v2/{}/unload", topic.replacen("://", "/", 1));
        let unload = move || {
            for _ in 0..3 {
                let (status, body) = broker.http("PUT", &path, "");
                assert!(status < 300, "{status} {body}");
            }
        };
        let (stored, errors) = send_during(&client, &producer, unload).await;
        assert_eq!((stored, errors), (5_000, Vec::new()));
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_topic_sealed_in_mid_flight_ends_every_send_and_gives_back_all_room() {
    run(async |broker| {
        let client = client(&broker.url).await;
        let topic = topic("sealed");
        broker.create_partitions(&topic, 2);
        // One partition is sealed; the other goes on.
        let producer = client
            .producer(&topic)
            .batching(false)
            .build()
            .await
            .unwrap();
        let path = format!(
            "/admin/v2/{}-partition-0/terminate",
            topic.replacen("://", "/", 1)
        );
        let terminate = move || {
            let (status, body) = broker.http("POST", &path, "");
            assert!(status < 300, "{status} {body}");
        };
        let (stored, errors) = send_during(&client, &producer, terminate).await;
        assert_eq!(stored + errors.len(), 5_000);
        assert!(stored >= 2_500, "{stored} were stored");
        for error in errors {
            assert_eq!(error, Error::TopicTerminated);
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_failure_of_one_message_fails_that_one_only() {
    run(async |broker| {
        let client = Client::builder(&broker.url).build().await.unwrap();
        let producer = client.producer(topic("one")).build().await.unwrap();
        let mut receipts = Vec::new();
        for number in 0..100 {
            let size = if number == 50 { 6 << 20 } else { 10 };
            receipts.push((number, producer.send(vec![1; size]).await));
        }
        for (number, receipt) in receipts {
            let result = match receipt {
                Ok(receipt) => in_time("a receipt", receipt).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(_) => assert_ne!(number, 50),
                Err(error) => {
                    assert_eq!(number, 50, "{error}");
                    assert!(matches!(error, Error::MessageTooLarge { .. }), "{error}");
                }
            }
        }
        unused(&client).await;
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_creation_that_failed_is_not_remembered() {
    run(async |broker| {
        let client = Client::builder(&broker.url).build().await.unwrap();
        let topic = topic("again");
        let holder = client.producer(&topic).name("n").build().await.unwrap();
        let other = Client::builder(&broker.url).build().await.unwrap();
        let refused = other.producer(&topic).name("n").build().await;
        assert!(matches!(refused, Err(Error::Broker { .. })), "{refused:?}");
        holder.close().await.unwrap();
        let producer = other.producer(&topic).name("n").build().await.unwrap();
        in_time("a receipt", producer.send_and_wait("x"))
            .await
            .unwrap();
        unused(&other).await;
    });
}

#[test]
#[ignore = "needs a broker"]
fn max_pending_messages_is_a_limit_of_its_own() {
    run(async |broker| {
        let client = Client::builder(&broker.url).build().await.unwrap();
        let producer = client.producer(topic("pending")).max_pending_messages(10);
        // A batch that nothing fills: what is pending stays.
        let producer = producer.batching_max_publish_delay(Duration::from_secs(3_600));
        let producer = producer.send_timeout(Duration::ZERO).build().await.unwrap();
        let mut receipts = Vec::new();
        for _ in 0..10 {
            receipts.push(producer.try_send("x").unwrap());
        }
        assert_eq!(
            producer.try_send("x").unwrap_err(),
            Error::ProducerQueueIsFull { pending: 10 }
        );
        producer.flush().await.unwrap();
        for receipt in receipts {
            in_time("a receipt", receipt).await.unwrap();
        }
        let last = producer.try_send("x").unwrap();
        producer.flush().await.unwrap();
        in_time("a receipt", last).await.unwrap();
        unused(&client).await;
    });
}
