//! Producers: receipts, batches, compression, sizes, keys and partitions.

use crate::harness::{in_time, run, topic};
use crate::traffic::*;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, UNIX_EPOCH};
use vela_client::{AccessMode, CompressionType, Error, Outgoing, RoutingMode, SubscriptionType};

#[test]
#[ignore = "needs a broker"]
fn receipts_come_in_send_order_with_rising_ids() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("receipts");
        for batched in [false, true] {
            let producer = client
                .producer(&topic)
                .batching(batched)
                .build()
                .await
                .unwrap();
            let ids = publish(&producer, &numbers(200)).await;
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
            assert_eq!(ids.iter().any(|id| id.batch_index > 0), batched);
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_batch_is_one_entry() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("batch");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let producer = batch_producer(&client, &topic, 1000).await;
        let ids = publish(&producer, &numbers(10)).await;
        let entries: HashSet<_> = ids.iter().map(|id| (id.ledger, id.entry)).collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(
            ids.iter().map(|id| id.batch_index).collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        let messages = take(&mut consumer, 10).await;
        assert_eq!(
            messages
                .iter()
                .map(|message| message.id())
                .collect::<Vec<_>>(),
            ids
        );
    });
}

#[test]
#[ignore = "needs a broker"]
fn every_payload_comes_back() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("payloads");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let sent: Vec<Bytes> = [0, 1, 100, 10_000, 300_000]
            .map(|size| vec![b'x'; size].into())
            .to_vec();
        for compression in [
            CompressionType::None,
            CompressionType::Lz4,
            CompressionType::Zlib,
            CompressionType::Zstd,
            CompressionType::Snappy,
        ] {
            for batched in [false, true] {
                let producer = client
                    .producer(&topic)
                    .compression(compression)
                    .batching(batched);
                let producer = producer.build().await.unwrap();
                publish(&producer, &sent).await;
                assert_eq!(
                    payloads(&take(&mut consumer, sent.len()).await),
                    sent,
                    "{compression:?} {batched}"
                );
                producer.close().await.unwrap();
            }
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn properties_keys_and_times_survive() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("fields");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let event = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        for batched in [false, true] {
            let producer = client
                .producer(&topic)
                .batching(batched)
                .build()
                .await
                .unwrap();
            let message = Outgoing::new(Bytes::from_static(b"v"))
                .key("k")
                .ordering_key("o");
            let message = message
                .property("a", "1")
                .property("ä", "ö")
                .event_time(event);
            producer.send_and_wait(message).await.unwrap();
            producer
                .send_and_wait(Outgoing::new(Bytes::new()).key_bytes([0, 255]))
                .await
                .unwrap();
            producer
                .send_and_wait(Outgoing::null().key("gone"))
                .await
                .unwrap();
            let messages = take(&mut consumer, 3).await;
            let first = &messages[0];
            assert_eq!(
                (first.key(), first.ordering_key().map(Bytes::as_ref)),
                (Some("k"), Some(b"o".as_ref()))
            );
            assert_eq!(
                first.properties().collect::<Vec<_>>(),
                [("a", "1"), ("ä", "ö")]
            );
            assert_eq!(first.event_time(), Some(event));
            assert_eq!(first.producer_name(), producer.name());
            assert_eq!(messages[1].key_bytes().unwrap(), [0, 255].as_slice());
            assert_eq!(messages[1].event_time(), None);
            assert!(messages[2].is_null() && messages[2].value().is_err());
            assert_eq!(messages[2].key(), Some("gone"));
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_message_that_is_too_large_fails_alone_and_chunks_carry_it() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("large");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let large = Bytes::from(vec![b'l'; 6 << 20]);
        let plain = plain_producer(&client, &topic).await;
        let refused = match plain.send(large.clone()).await {
            Ok(receipt) => in_time("the end of a large send", receipt)
                .await
                .unwrap_err(),
            Err(error) => error,
        };
        assert!(
            matches!(refused, Error::MessageTooLarge { .. }),
            "{refused}"
        );
        plain
            .send_and_wait(Bytes::from_static(b"small"))
            .await
            .unwrap();
        let chunking = client
            .producer(&topic)
            .batching(false)
            .chunking(true)
            .build()
            .await
            .unwrap();
        let id = chunking.send_and_wait(large.clone()).await.unwrap();
        assert!(id.first_chunk.is_some());
        let messages = take(&mut consumer, 2).await;
        assert_eq!(messages[0].payload(), "small");
        assert!(
            messages[1].payload() == &large,
            "{} bytes",
            messages[1].payload().len()
        );
        assert_eq!(
            (messages[1].id(), messages[1].id().first_chunk_id()),
            (id, id.first_chunk_id())
        );
        consumer.ack(&messages[1]).await.unwrap();
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn names_are_given_taken_and_freed() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("names");
        let (one, two) = (
            plain_producer(&client, &topic).await,
            plain_producer(&client, &topic).await,
        );
        assert_ne!(one.name(), two.name());
        let named = client.producer(&topic).name("n").build().await.unwrap();
        let other = broker.client().await;
        let busy = other.producer(&topic).name("n").build().await.unwrap_err();
        assert!(matches!(busy, Error::Broker { .. }), "{busy}");
        named.close().await.unwrap();
        let again = other.producer(&topic).name("n").build().await.unwrap();
        assert_eq!(again.name(), "n");
    });
}

#[test]
#[ignore = "needs a broker"]
fn an_exclusive_producer_keeps_others_out() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("exclusive");
        let holder = client
            .producer(&topic)
            .access_mode(AccessMode::Exclusive)
            .build()
            .await
            .unwrap();
        holder
            .send_and_wait(Bytes::from_static(b"mine"))
            .await
            .unwrap();
        client
            .producer(&topic)
            .build()
            .await
            .map(|_| ())
            .unwrap_err();
        client
            .producer(&topic)
            .access_mode(AccessMode::Exclusive)
            .build()
            .await
            .map(|_| ())
            .unwrap_err();
        let fencing = client
            .producer(&topic)
            .access_mode(AccessMode::ExclusiveWithFencing)
            .build()
            .await
            .unwrap();
        fencing
            .send_and_wait(Bytes::from_static(b"taken"))
            .await
            .unwrap();
        let fenced = match holder.send(Bytes::from_static(b"late")).await {
            Ok(receipt) => in_time("the end of a fenced send", receipt)
                .await
                .unwrap_err(),
            Err(error) => error,
        };
        assert!(
            matches!(
                fenced,
                Error::Fenced(_) | Error::Broker { .. } | Error::Closed(_)
            ),
            "{fenced}"
        );
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_terminated_topic_takes_no_more() {
    run(async |broker| {
        let client = broker.client().await;
        let (topic, _) = filled(&client, "terminated").await;
        let producer = plain_producer(&client, &topic).await;
        let path = topic.replacen("://", "/", 1);
        let (status, body) = broker.http("POST", &format!("/admin/v2/{path}/terminate"), "");
        assert!(status < 300, "{status} {body}");
        let ended = match producer.send(Bytes::from_static(b"late")).await {
            Ok(receipt) => in_time("the end of a late send", receipt)
                .await
                .unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(ended, Error::TopicTerminated), "{ended}");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        assert_eq!(payloads(&take(&mut consumer, 10).await), numbers(10));
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn keys_stay_in_their_partition_and_the_rest_goes_round() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("partitions");
        broker.create_partitions(&topic, 4);
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let producer = plain_producer(&client, &topic).await;
        let mut receipts = Vec::new();
        for number in 0..40 {
            let key = format!("key-{}", number % 5);
            receipts.push(
                producer
                    .send(keyed(&key, number.to_string()))
                    .await
                    .unwrap(),
            );
        }
        for receipt in receipts {
            receipt.await.unwrap();
        }
        let mut homes: HashMap<String, (i32, Vec<u32>)> = HashMap::new();
        for message in take(&mut consumer, 40).await {
            let number = std::str::from_utf8(message.payload())
                .unwrap()
                .parse()
                .unwrap();
            let home = homes.entry(message.key().unwrap().to_owned());
            let (partition, numbers) = home.or_insert((message.id().partition, Vec::new()));
            assert_eq!(*partition, message.id().partition);
            numbers.push(number);
            consumer.ack(&message).await.unwrap();
        }
        assert!(
            homes
                .values()
                .all(|(_, numbers)| numbers.len() == 8 && numbers.is_sorted()),
            "{homes:?}"
        );
        let ids = publish(&producer, &numbers(8)).await;
        let mut spread: Vec<_> = ids.iter().map(|id| id.partition).collect();
        spread.sort_unstable();
        assert_eq!(spread, [0, 0, 1, 1, 2, 2, 3, 3]);
        let single = client
            .producer(&topic)
            .routing_mode(RoutingMode::SinglePartition);
        let single = single.batching(false).build().await.unwrap();
        let ids = publish(&single, &numbers(8)).await;
        assert_eq!(
            ids.iter()
                .map(|id| id.partition)
                .collect::<HashSet<_>>()
                .len(),
            1
        );
        take(&mut consumer, 16).await;
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn many_producers_and_topics_share_a_client() {
    run(async |broker| {
        let client = broker.client().await;
        let mut tasks = Vec::new();
        for number in 0..20 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let topic = topic(&format!("many-{number}"));
                let mut consumer = subscribe(&client, &topic, SubscriptionType::Shared).await;
                let producer = client.producer(&topic).build().await.unwrap();
                publish(&producer, &numbers(100)).await;
                assert_eq!(payloads(&take(&mut consumer, 100).await), numbers(100));
                consumer.close().await.unwrap();
                producer.close().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_delayed_message_lets_others_pass() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("delayed");
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Shared).await;
        let producer = client.producer(&topic).build().await.unwrap();
        let late = Outgoing::new(Bytes::from_static(b"late")).deliver_after(Duration::from_secs(2));
        let late = producer.send(late).await.unwrap();
        let early = producer.send(Bytes::from_static(b"early")).await.unwrap();
        late.await.unwrap();
        early.await.unwrap();
        assert_eq!(payloads(&take(&mut consumer, 2).await), ["early", "late"]);
    });
}
