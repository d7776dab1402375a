//! What comes back is what the broker charged, whatever became of the messages: on a proxy's account, not the client's own.

use crate::harness::{Broker, eventually, in_time, run, topic};
use crate::tamper::{Account, Proxy};
use crate::traffic::*;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vela_client::{Client, Consumer, InitialPosition, Producer, SubscriptionType};
use vela_codec::entry;
use vela_proto::{CompressionType, MessageMetadata};

const QUEUE: u32 = 200;

async fn shared(client: &Client, topic: &str) -> Consumer<Bytes> {
    client
        .consumer()
        .topic(topic)
        .subscription("s")
        .subscription_type(SubscriptionType::Shared)
        .subscription_initial_position(InitialPosition::Earliest)
        .receiver_queue_size(QUEUE)
        .negative_ack_redelivery_delay(Duration::from_millis(100))
        .build()
        .await
        .unwrap()
}

/// The proxy's account and the client's agree with each other and with the broker: what was granted is the queue and what was charged,
/// less what waits for its FLOW.
async fn assert_exact(broker: &Broker, proxy: &Proxy, consumer: &Consumer<Bytes>, topic: &str) {
    let account = &proxy.account;
    let path = topic.replacen("://", "/", 1);
    eventually("the same permits everywhere", || {
        let (charged, granted) = (
            Account::get(&account.charged),
            Account::get(&account.granted),
        );
        let (_, stats) = consumer.stats().pop().unwrap();
        let (_, body) = broker.http("GET", &format!("/admin/v2/{path}/stats"), "");
        let shown: serde_json::Value = serde_json::from_str(&body).unwrap();
        let shown = &shown["subscriptions"]["s"]["consumers"][0]["availablePermits"];
        let owed = u64::from(QUEUE) + charged;
        stats.incarnations == 1
            && stats.charged == charged
            && stats.granted == granted
            && granted <= owed
            && owed - granted < u64::from(QUEUE / 2)
            && shown.as_i64() == Some(granted as i64 - charged as i64)
    })
    .await;
}

/// Batches of exactly so many, one after the other.
async fn publish_batches(producer: &Producer<Bytes>, batches: usize, size: usize) {
    let payload = Bytes::from_static(b"0123456789");
    let mut last = Vec::new();
    for _ in 0..batches {
        for _ in 0..size {
            last.push(producer.send(payload.clone()).await.unwrap());
        }
    }
    producer.flush().await.unwrap();
    for receipt in last {
        in_time("a receipt", receipt).await.unwrap();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Checksum,
    Metadata,
    Compression,
}

fn damage(kind: Damage, metadata: &MessageMetadata, rest: &Bytes) -> Bytes {
    let mut out = BytesMut::new();
    match kind {
        Damage::Checksum => {
            out.extend_from_slice(rest);
            let last = out.len() - 1;
            out[last] ^= 1;
        }
        Damage::Metadata => {
            // Under a right checksum, so that nothing else is wrong: as if the producer had sent it so.
            let mut covered = BytesMut::new();
            covered.extend_from_slice(&8u32.to_be_bytes());
            covered.extend_from_slice(&[0xff; 30]);
            out.extend_from_slice(&entry::MAGIC_CHECKSUM.to_be_bytes());
            out.extend_from_slice(&vela_codec::checksum::crc32c(&covered).to_be_bytes());
            out.extend_from_slice(&covered);
        }
        Damage::Compression => {
            let mut metadata = metadata.clone();
            metadata.compression = Some(CompressionType::Zstd as i32);
            metadata.uncompressed_size = Some(10_000);
            entry::write(&metadata, &[0xa5; 1000], &mut out);
        }
    }
    out.freeze()
}

async fn damaged_batches_do_not_stall(broker: &Broker, kind: Damage) {
    const BATCHES: usize = 1000;
    const SIZE: usize = 100;
    if kind == Damage::Metadata && !broker.is_vela {
        // Only message_permits can say what unreadable metadata cost.
        return;
    }
    let topic = topic("damaged");
    let proxy = Proxy::start(&broker.url, move |_, metadata, rest| {
        match metadata.num_messages_in_batch {
            Some(100) => damage(kind, metadata, &rest),
            _ => rest,
        }
    })
    .await;
    let direct = broker.client().await;
    let producer = direct
        .producer(&topic)
        .batching_max_messages(SIZE)
        .batching_max_publish_delay(Duration::from_secs(60))
        .build()
        .await
        .unwrap();
    let client = Client::builder(&proxy.url).build().await.unwrap();
    let mut consumer = shared(&client, &topic).await;
    publish_batches(&producer, BATCHES, SIZE).await;
    let plain = plain_producer(&direct, &topic).await;
    publish(&plain, &numbers(500)).await;
    let good = take(&mut consumer, 500).await;
    assert_eq!(payloads(&good), numbers(500));
    for message in &good {
        consumer.ack(message).await.unwrap();
    }
    let account = &proxy.account;
    let (_, stats) = consumer.stats().pop().unwrap();
    assert_eq!(stats.damaged, BATCHES as u64, "{stats:?}");
    assert_eq!(
        Account::get(&account.charged),
        (BATCHES * SIZE + 500) as u64
    );
    if broker.is_vela {
        assert_eq!(Account::get(&account.said), (BATCHES + 500) as u64);
    }
    let code = match kind {
        Damage::Checksum | Damage::Metadata => 2,
        Damage::Compression => 1,
    };
    assert_eq!(*account.errors.lock().unwrap(), vec![code; BATCHES]);
    assert_exact(broker, &proxy, &consumer, &topic).await;
    // What was damaged is acknowledged as that, and does not come again.
    let path = topic.replacen("://", "/", 1);
    eventually("an empty backlog", || {
        let (_, body) = broker.http("GET", &format!("/admin/v2/{path}/stats"), "");
        let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
        stats["subscriptions"]["s"]["msgBacklog"].as_u64() == Some(0)
    })
    .await;
}

#[test]
#[ignore = "needs a broker"]
fn a_thousand_batches_with_a_bad_checksum_do_not_stall() {
    run(async |broker| damaged_batches_do_not_stall(broker, Damage::Checksum).await);
}

#[test]
#[ignore = "needs a broker"]
fn a_thousand_batches_with_bad_metadata_do_not_stall() {
    run(async |broker| damaged_batches_do_not_stall(broker, Damage::Metadata).await);
}

#[test]
#[ignore = "needs a broker"]
fn a_thousand_batches_that_do_not_decompress_do_not_stall() {
    run(async |broker| damaged_batches_do_not_stall(broker, Damage::Compression).await);
}

/// A proxy takes `message_permits` away: what a command cost is found out from its ack set or its metadata.
#[test]
#[ignore = "needs a broker"]
fn without_message_permits_the_ladder_finds_the_same() {
    run(async |broker| {
        let topic = topic("stripped");
        let turn = AtomicU64::new(0);
        let proxy = Proxy::start(&broker.url, move |message, metadata, rest| {
            message.message_permits = None;
            // Now and then a payload is damaged as well.
            let damaged = turn.fetch_add(1, Ordering::SeqCst).is_multiple_of(7);
            if damaged && message.redelivery_count() == 0 {
                damage(Damage::Checksum, metadata, &rest)
            } else {
                rest
            }
        })
        .await;
        let direct = broker.client().await;
        let producer = batch_producer(&direct, &topic, 50).await;
        let client = Client::builder(&proxy.url).build().await.unwrap();
        let consumer = shared(&client, &topic).await;
        publish_batches(&producer, 100, 50).await;
        let plain = plain_producer(&direct, &topic).await;
        publish(&plain, &numbers(100)).await;
        // Half of what comes is acknowledged, the rest comes again as what is left of its batch.
        let mut turns = 0u64;
        let backlog = || {
            let path = topic.replacen("://", "/", 1);
            let (_, body) = broker.http("GET", &format!("/admin/v2/{path}/stats"), "");
            let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
            stats["subscriptions"]["s"]["msgBacklog"].as_u64()
        };
        let end = std::time::Instant::now() + crate::harness::LIMIT;
        loop {
            let next = tokio::time::timeout(Duration::from_millis(300), consumer.receive()).await;
            match next {
                Ok(message) => {
                    let message = message.unwrap();
                    turns += 1;
                    if turns.is_multiple_of(2) && message.redelivery_count() < 3 {
                        consumer.nack(&message).await.unwrap();
                    } else {
                        consumer.ack(&message).await.unwrap();
                    }
                }
                Err(_) if backlog() == Some(0) => break,
                Err(_) => assert!(std::time::Instant::now() < end, "{:?}", consumer.stats()),
            }
        }
        let (_, stats) = consumer.stats().pop().unwrap();
        assert!(stats.damaged > 0 && stats.charged > 5100, "{stats:?}");
        assert_exact(broker, &proxy, &consumer, &topic).await;
    });
}

/// Permits that cannot be right end the connection; nothing is returned for them, and the messages come again.
#[test]
#[ignore = "needs a broker"]
fn permits_that_cannot_be_end_the_connection() {
    run(async |broker| {
        for wrong in [0, 9, 11, u32::MAX] {
            let topic = topic("wrong");
            let lie = Arc::new(AtomicBool::new(true));
            let lying = Arc::clone(&lie);
            let proxy = Proxy::start(&broker.url, move |message, metadata, rest| {
                if metadata.num_messages_in_batch == Some(10) && lying.swap(false, Ordering::SeqCst)
                {
                    message.message_permits = Some(wrong);
                }
                rest
            })
            .await;
            let direct = broker.client().await;
            let client = Client::builder(&proxy.url).build().await.unwrap();
            let mut consumer = shared(&client, &topic).await;
            let before = Account::get(&proxy.account.connections);
            let producer = batch_producer(&direct, &topic, 10).await;
            publish(&producer, &numbers(10)).await;
            assert_eq!(payloads(&take(&mut consumer, 10).await), numbers(10));
            assert!(!lie.load(Ordering::SeqCst));
            assert!(Account::get(&proxy.account.connections) > before);
            let (_, stats) = consumer.stats().pop().unwrap();
            assert_eq!((stats.incarnations, stats.charged), (2, 10), "{wrong}");
        }
    });
}
