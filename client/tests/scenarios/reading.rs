//! Readers and seeking.

use crate::harness::{in_time, run, topic};
use crate::traffic::*;
use bytes::Bytes;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vela_client::{Reader, StartPosition, SubscriptionType};

async fn read(reader: &mut Reader<Bytes>, count: usize) -> Vec<Bytes> {
    let mut payloads = Vec::new();
    for _ in 0..count {
        payloads.push(
            in_time("a message", reader.next())
                .await
                .unwrap()
                .payload()
                .clone(),
        );
    }
    payloads
}

#[test]
#[ignore = "needs a broker"]
fn readers_begin_where_they_are_told() {
    run(async |broker| {
        let client = broker.client().await;
        for batched in [false, true] {
            let topic = topic("reader");
            let producer = if batched {
                batch_producer(&client, &topic, 10).await
            } else {
                plain_producer(&client, &topic).await
            };
            let ids = publish(&producer, &numbers(10)).await;
            let all = numbers(11);
            let mut readers = Vec::new();
            for (start, from) in [
                (StartPosition::Earliest, 0),
                (StartPosition::at(ids[4]), 4),
                (StartPosition::after(ids[4]), 5),
                (StartPosition::after(ids[9]), 10),
                (StartPosition::Latest, 10),
            ] {
                readers.push((
                    client.reader(&topic).start(start).build().await.unwrap(),
                    from,
                ));
            }
            publish(&producer, &all[10..]).await;
            for (reader, from) in &mut readers {
                assert_eq!(
                    read(reader, 11 - *from).await,
                    all[*from..],
                    "{batched} {from}"
                );
                assert!(!reader.has_message_available().await.unwrap());
            }
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_reader_knows_whether_there_is_more() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("more");
        let mut reader = client
            .reader(&topic)
            .start(StartPosition::Earliest)
            .build()
            .await
            .unwrap();
        assert!(!reader.has_message_available().await.unwrap());
        let producer = batch_producer(&client, &topic, 10).await;
        publish(&producer, &numbers(3)).await;
        let mut got = Vec::new();
        while reader.has_message_available().await.unwrap() {
            got.extend(read(&mut reader, 1).await);
        }
        assert_eq!(got, numbers(3));
    });
}

#[test]
#[ignore = "needs a broker"]
fn seeking_by_id_and_to_the_ends() {
    run(async |broker| {
        let client = broker.client().await;
        let (topic, ids) = filled(&client, "seek").await;
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        take(&mut consumer, 10).await;
        consumer.seek(StartPosition::Earliest).await.unwrap();
        assert_eq!(payloads(&take(&mut consumer, 10).await), numbers(10));
        consumer.seek(StartPosition::at(ids[4])).await.unwrap();
        assert_eq!(payloads(&take(&mut consumer, 6).await), numbers(10)[4..]);
        consumer.seek(StartPosition::after(ids[4])).await.unwrap();
        assert_eq!(payloads(&take(&mut consumer, 5).await), numbers(10)[5..]);
        consumer.seek(StartPosition::Latest).await.unwrap();
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &["new".into()]).await;
        assert_eq!(payloads(&take(&mut consumer, 1).await), ["new"]);
    });
}

#[test]
#[ignore = "needs a broker"]
fn seeking_by_time() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("time");
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(5)).await;
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let last = take(&mut consumer, 5).await.pop().unwrap();
        // The messages behind are from a later millisecond.
        let after = last.publish_time() + Duration::from_millis(1);
        while SystemTime::now() <= after + Duration::from_millis(2) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        publish(&producer, &numbers(8)[5..]).await;
        take(&mut consumer, 3).await;
        let millis = u64::try_from(after.duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        consumer.seek(StartPosition::Time(millis)).await.unwrap();
        assert_eq!(payloads(&take(&mut consumer, 3).await), numbers(8)[5..]);
        consumer.seek(StartPosition::Time(0)).await.unwrap();
        assert_eq!(payloads(&take(&mut consumer, 8).await), numbers(8));
    });
}

/// apache/pulsar#5278: the client forgets its queue on a seek, so must the broker.
#[test]
#[ignore = "needs a broker"]
fn many_seeks_of_a_full_queue_lose_nothing() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("seeks");
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(300)).await;
        for queue in [10, 100, 1000] {
            let consumer = client
                .consumer()
                .topic(&topic)
                .subscription(format!("s{queue}"));
            let consumer = consumer.receiver_queue_size(queue);
            let mut consumer = consumer.build().await.unwrap();
            for _ in 0..5 {
                consumer.seek(StartPosition::Earliest).await.unwrap();
                take(&mut consumer, 3).await;
            }
            consumer.seek(StartPosition::Earliest).await.unwrap();
            assert_eq!(payloads(&take(&mut consumer, 300).await), numbers(300));
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_reader_of_partitions_reads_them_all() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("parts");
        broker.create_partitions(&topic, 3);
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(30)).await;
        let mut reader = client
            .reader(&topic)
            .start(StartPosition::Earliest)
            .build()
            .await
            .unwrap();
        let mut got = read(&mut reader, 30).await;
        got.sort_unstable();
        let mut sent = numbers(30);
        sent.sort_unstable();
        assert_eq!(got, sent);
    });
}
