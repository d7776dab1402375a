//! The broker goes away and comes back. (cases: streamnative/pulsar-rs#164, #189, #100, #114 and #327.)

use crate::harness::{BrokerProcess, LIMIT, broker, in_time, run_alone, topic};
use crate::tls::Relay;
use crate::traffic::*;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use vela_client::{Client, SubscriptionType};

fn number_of(payload: &Bytes) -> u32 {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

/// Sends go on over kills and orderly stops; what was confirmed arrives, and each send comes to its end.
#[test]
#[ignore = "needs a broker"]
fn nothing_confirmed_is_lost_and_nothing_hangs_over_restarts() {
    if !broker().is_vela {
        return;
    }
    run_alone(async {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("data");
        let mut process = BrokerProcess::start(&path, 0, &[]);
        let url = process.broker.url.clone();
        let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
        let client = Client::builder(&url).build().await.unwrap();
        let topic = topic("restarts");
        let consumer = client
            .consumer()
            .topic(&topic)
            .subscription("s")
            .subscription_type(SubscriptionType::Shared);
        let consumer = consumer.receiver_queue_size(10).build().await.unwrap();
        let producer = client
            .producer(&topic)
            .batching_max_messages(5)
            .build()
            .await
            .unwrap();
        let (received, mut arrived) = tokio::sync::mpsc::unbounded_channel();
        let consuming = tokio::spawn(async move {
            while let Ok(message) = consumer.receive().await {
                let _ = consumer.ack(&message).await;
                if received.send(number_of(message.payload())).is_err() {
                    return;
                }
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let sending = tokio::spawn({
            let (producer, stop) = (producer.clone(), Arc::clone(&stop));
            async move {
                let mut receipts = Vec::new();
                let mut number = 0u32;
                while !stop.load(Ordering::SeqCst) {
                    for _ in 0..5 {
                        receipts.push((
                            number,
                            producer
                                .send(Bytes::from(number.to_string()))
                                .await
                                .unwrap(),
                        ));
                        number += 1;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let mut confirmed = BTreeSet::new();
                for (number, receipt) in receipts {
                    if in_time("the end of a send", receipt).await.is_ok() {
                        confirmed.insert(number);
                    }
                }
                confirmed
            }
        });
        let mut seen = BTreeSet::new();
        for round in 0..4 {
            // Something arrives before each restart, so the one before it was survived.
            for _ in 0..50 {
                seen.insert(in_time("a message", arrived.recv()).await.unwrap());
            }
            process.end(if round % 2 == 0 { "KILL" } else { "TERM" });
            let path = path.clone();
            process = tokio::task::spawn_blocking(move || BrokerProcess::start(&path, port, &[]))
                .await
                .unwrap();
        }
        for _ in 0..50 {
            seen.insert(in_time("a message", arrived.recv()).await.unwrap());
        }
        stop.store(true, Ordering::SeqCst);
        let confirmed = in_time("all sends", sending).await.unwrap();
        let end = Instant::now() + LIMIT;
        while !confirmed.is_subset(&seen) {
            assert!(
                Instant::now() < end,
                "missing: {:?}",
                confirmed.difference(&seen).take(10).collect::<Vec<_>>()
            );
            seen.insert(
                in_time("a confirmed message", arrived.recv())
                    .await
                    .unwrap(),
            );
        }
        assert!(confirmed.len() > 200, "{}", confirmed.len());
        assert_eq!(client.memory().used(), 0);
        consuming.abort();
        drop(process);
    });
}

/// A connection that goes silent is given up, and everything goes on over a new one.
#[test]
#[ignore = "needs a broker"]
fn a_silent_connection_is_given_up() {
    crate::harness::run(async |broker| {
        let relay = Relay::start(&broker.url).await;
        let client = Client::builder(&relay.url)
            .keep_alive_interval(Duration::from_secs(1))
            .build()
            .await
            .unwrap();
        let topic = topic("silent");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Shared).await;
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(3)).await;
        for message in take(&mut consumer, 3).await {
            consumer.ack(&message).await.unwrap();
        }
        relay.hold(true);
        let receipt = producer.send(Bytes::from_static(b"3")).await.unwrap();
        // Long enough for two intervals without a PONG; the new connection is silent as well until the end of this.
        tokio::time::sleep(Duration::from_secs(4)).await;
        relay.hold(false);
        in_time("a receipt", receipt).await.unwrap();
        loop {
            let message = take(&mut consumer, 1).await.remove(0);
            consumer.ack(&message).await.unwrap();
            if message.payload() == "3" {
                break;
            }
        }
        assert_eq!(client.memory().used(), 0);
    });
}

/// The credit of a small queue is returned message by message, whatever the batches.
#[test]
#[ignore = "needs a broker"]
fn a_small_queue_takes_any_number_of_batches() {
    crate::harness::run(async |broker| {
        let client = broker.client().await;
        let topic = topic("small-queue");
        let consumer = client
            .consumer()
            .topic(&topic)
            .subscription("s")
            .subscription_type(SubscriptionType::Shared);
        let consumer = consumer.receiver_queue_size(10).build().await.unwrap();
        let producer = client
            .producer(&topic)
            .batching_max_messages(5)
            .build()
            .await
            .unwrap();
        const TOTAL: usize = 100_000;
        let sending = tokio::spawn({
            let producer = producer.clone();
            async move {
                for number in 0..TOTAL {
                    producer
                        .send(Bytes::from(number.to_string()))
                        .await
                        .unwrap()
                        .detach();
                }
                producer.flush().await.unwrap();
            }
        });
        let mut seen = vec![false; TOTAL];
        for _ in 0..TOTAL {
            let message = in_time("a message", consumer.receive()).await.unwrap();
            let place = &mut seen[number_of(message.payload()) as usize];
            assert!(!std::mem::replace(place, true), "{} twice", message.id());
            consumer.ack(&message).await.unwrap();
        }
        in_time("the sender", sending).await.unwrap();
        assert_eq!(client.memory().used(), 0);
    });
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
