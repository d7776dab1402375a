//! Acknowledgements, redelivery, dead letters.

use crate::harness::{run, topic};
use crate::traffic::*;
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;
use vela_client::{DeadLetterPolicy, SubscriptionType};

#[test]
#[ignore = "needs a broker"]
fn what_is_acknowledged_does_not_come_back() {
    run(async |broker| {
        let client = broker.client().await;
        for kind in [SubscriptionType::Exclusive, SubscriptionType::Shared] {
            let (topic, _) = filled(&client, "individual").await;
            let mut consumer = subscribe(&client, &topic, kind).await;
            for (number, message) in take(&mut consumer, 10).await.iter().enumerate() {
                if number % 2 == 0 {
                    consumer.ack(message).await.unwrap();
                }
            }
            consumer.close().await.unwrap();
            let mut consumer = subscribe(&client, &topic, kind).await;
            let odd: Vec<_> = numbers(10).into_iter().skip(1).step_by(2).collect();
            assert_eq!(payloads(&take(&mut consumer, 5).await), odd);
            assert!(rest(&mut consumer).await.is_empty());
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn cumulatively() {
    run(async |broker| {
        let client = broker.client().await;
        let (topic, _) = filled(&client, "cumulative").await;
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let messages = take(&mut consumer, 10).await;
        consumer.ack_cumulative(&messages[6]).await.unwrap();
        consumer.close().await.unwrap();
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        assert_eq!(payloads(&take(&mut consumer, 3).await), numbers(10)[7..]);
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_batch_counts_once_all_of_it_is_acknowledged_or_by_index() {
    run(async |broker| {
        let client = broker.client().await;
        for by_index in [false, true] {
            let topic = topic("batches");
            let make = async || {
                let consumer = client.consumer().topic(&topic).subscription("s");
                let consumer = consumer
                    .subscription_type(SubscriptionType::Shared)
                    .enable_batch_index_ack(by_index);
                consumer.build().await.unwrap()
            };
            let mut consumer = make().await;
            let producer = batch_producer(&client, &topic, 10).await;
            publish(&producer, &numbers(20)).await;
            for message in take(&mut consumer, 20).await.iter().take(14) {
                consumer.ack(message).await.unwrap();
            }
            consumer.close().await.unwrap();
            let mut consumer = make().await;
            let from = if by_index { 14 } else { 10 };
            assert_eq!(
                payloads(&take(&mut consumer, 20 - from).await),
                numbers(20)[from..]
            );
            assert!(rest(&mut consumer).await.is_empty());
        }
    });
}

#[test]
#[ignore = "needs a broker"]
fn the_count_of_a_nacked_message_rises_and_others_are_untouched() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("nack");
        let consumer = client
            .consumer()
            .topic(&topic)
            .subscription("s")
            .subscription_type(SubscriptionType::Shared);
        let mut consumer = consumer
            .negative_ack_redelivery_delay(Duration::from_millis(100))
            .build()
            .await
            .unwrap();
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &["bad".into(), "good 1".into(), "good 2".into()]).await;
        let (mut counts, mut others) = (Vec::new(), Vec::new());
        while counts.len() < 4 || others.len() < 2 {
            let message = take(&mut consumer, 1).await.remove(0);
            if message.payload() == "bad" {
                counts.push(message.redelivery_count());
                if counts.len() < 4 {
                    consumer.nack(&message).await.unwrap();
                }
            } else {
                others.push((message.payload().clone(), message.redelivery_count()));
            }
        }
        assert_eq!(counts, [0, 1, 2, 3]);
        assert_eq!(
            others,
            [
                (Bytes::from_static(b"good 1"), 0),
                (Bytes::from_static(b"good 2"), 0)
            ]
        );
    });
}

/// apache/pulsar#5969.
#[test]
#[ignore = "needs a broker"]
fn a_nack_brings_back_no_acknowledged_neighbour() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("neighbours");
        let consumer = client
            .consumer()
            .topic(&topic)
            .subscription("s")
            .subscription_type(SubscriptionType::Shared);
        let consumer = consumer
            .negative_ack_redelivery_delay(Duration::from_millis(300))
            .enable_batch_index_ack(true);
        let mut consumer = consumer.build().await.unwrap();
        let producer = batch_producer(&client, &topic, 10).await;
        publish(&producer, &numbers(100)).await;
        for (number, message) in take(&mut consumer, 100).await.iter().enumerate() {
            if number % 20 == 0 {
                consumer.nack(message).await.unwrap();
            } else {
                consumer.ack(message).await.unwrap();
            }
        }
        let again = take(&mut consumer, 5).await;
        let mut numbers: Vec<u32> = again
            .iter()
            .map(|message| {
                std::str::from_utf8(message.payload())
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 20, 40, 60, 80]);
        assert!(again.iter().all(|message| message.redelivery_count() == 1));
        for message in &again {
            consumer.ack(message).await.unwrap();
        }
        assert!(rest(&mut consumer).await.is_empty());
    });
}

#[test]
#[ignore = "needs a broker"]
fn everything_unacknowledged_comes_again_when_asked_for_or_in_time() {
    run(async |broker| {
        let client = broker.client().await;
        for (kind, timeout) in [
            (SubscriptionType::Exclusive, None),
            (SubscriptionType::Shared, None),
            (SubscriptionType::Shared, Some(Duration::from_secs(1))),
        ] {
            let topic = topic("again");
            let mut consumer = client
                .consumer()
                .topic(&topic)
                .subscription("s")
                .subscription_type(kind);
            if let Some(timeout) = timeout {
                consumer = consumer.ack_timeout(timeout);
            }
            let mut consumer = consumer.build().await.unwrap();
            let producer = plain_producer(&client, &topic).await;
            publish(&producer, &numbers(10)).await;
            for message in &take(&mut consumer, 10).await[..3] {
                consumer.ack(message).await.unwrap();
            }
            if timeout.is_none() {
                consumer.redeliver_unacknowledged_messages().await.unwrap();
            }
            let mut missing: Vec<_> = numbers(10).split_off(3);
            while !missing.is_empty() {
                let message = take(&mut consumer, 1).await.remove(0);
                missing.retain(|payload| payload != message.payload());
            }
        }
    });
}

/// apache/pulsar#6960: one message came twice into the dead letter topic.
#[test]
#[ignore = "needs a broker"]
fn each_message_is_a_dead_letter_once() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("dying");
        let dead_topic = format!("{topic}-dead");
        let mut dead = subscribe(&client, &dead_topic, SubscriptionType::Exclusive).await;
        let mut policy = DeadLetterPolicy::new(2);
        policy.dead_letter_topic = Some(dead_topic);
        let seen = std::sync::Arc::new(std::sync::Mutex::new(HashMap::<Bytes, u32>::new()));
        let mut workers = Vec::new();
        for _ in 0..3 {
            let consumer = client
                .consumer()
                .topic(&topic)
                .subscription("s")
                .subscription_type(SubscriptionType::Shared);
            let consumer = consumer
                .receiver_queue_size(10)
                .negative_ack_redelivery_delay(Duration::from_millis(100));
            let consumer = consumer
                .dead_letter_policy(policy.clone())
                .build()
                .await
                .unwrap();
            let seen = std::sync::Arc::clone(&seen);
            workers.push(tokio::spawn(async move {
                while let Ok(message) = consumer.receive().await {
                    *seen
                        .lock()
                        .unwrap()
                        .entry(message.payload().clone())
                        .or_default() += 1;
                    consumer.nack(&message).await.unwrap();
                }
            }));
        }
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(30)).await;
        let mut letters = payloads(&take(&mut dead, 30).await);
        letters.extend(payloads(&rest(&mut dead).await));
        letters.sort_unstable();
        let mut sent = numbers(30);
        sent.sort_unstable();
        assert_eq!(letters, sent);
        assert!(
            seen.lock()
                .unwrap()
                .values()
                .all(|times| (3..=4).contains(times)),
            "{seen:?}"
        );
        for worker in workers {
            worker.abort();
        }
        assert_eq!(client.memory().used(), 0);
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_message_put_off_comes_again_and_then_is_given_up() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("retry");
        let dead_topic = format!("{topic}-s-DLQ");
        let mut dead = subscribe(&client, &dead_topic, SubscriptionType::Exclusive).await;
        let consumer = client
            .consumer()
            .topic(&topic)
            .subscription("s")
            .subscription_type(SubscriptionType::Shared);
        let consumer = consumer
            .enable_retry(true)
            .dead_letter_policy(DeadLetterPolicy::new(2));
        let mut consumer = consumer.build().await.unwrap();
        let producer = plain_producer(&client, &topic).await;
        producer.send_and_wait(keyed("k", "v")).await.unwrap();
        for _ in 0..3 {
            let message = take(&mut consumer, 1).await.remove(0);
            assert_eq!(
                (message.payload().as_ref(), message.key()),
                (b"v".as_ref(), Some("k"))
            );
            consumer
                .reconsume_later(&message, Duration::from_millis(100))
                .await
                .unwrap();
        }
        let letter = take(&mut dead, 1).await.remove(0);
        assert_eq!(
            (letter.payload().as_ref(), letter.key()),
            (b"v".as_ref(), Some("k"))
        );
        assert!(letter.property("REAL_TOPIC").is_some());
        assert!(rest(&mut consumer).await.is_empty());
    });
}
