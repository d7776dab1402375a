//! Consumers: types of subscription, where they begin, and who gets what.

use crate::harness::{in_time, run, topic};
use crate::traffic::*;
use std::collections::HashMap;
use std::time::Duration;
use vela_client::{Error, InitialPosition, SubscriptionType};

#[test]
#[ignore = "needs a broker"]
fn an_exclusive_subscription_has_one_consumer() {
    run(async |broker| {
        let (client, other) = (broker.client().await, broker.client().await);
        let topic = topic("one");
        let first = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        let busy = other
            .consumer()
            .topic(&topic)
            .subscription("s")
            .build()
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(&busy, Error::Broker { .. }), "{busy}");
        other
            .consumer()
            .topic(&topic)
            .subscription("another")
            .build()
            .await
            .unwrap();
        first.close().await.unwrap();
        subscribe(&other, &topic, SubscriptionType::Exclusive).await;
    });
}

#[test]
#[ignore = "needs a broker"]
fn the_initial_position_decides_where_a_new_subscription_begins_and_nothing_later() {
    run(async |broker| {
        let client = broker.client().await;
        let (topic, _) = filled(&client, "initial").await;
        let late = client
            .consumer()
            .topic(&topic)
            .subscription("late")
            .build()
            .await
            .unwrap();
        let mut early = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        assert_eq!(payloads(&take(&mut early, 10).await), numbers(10));
        late.close().await.unwrap();
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &["10".into()]).await;
        let late = client.consumer().topic(&topic).subscription("late");
        let mut late = late
            .subscription_initial_position(InitialPosition::Earliest)
            .build()
            .await
            .unwrap();
        assert_eq!(payloads(&take(&mut late, 1).await), ["10"]);
    });
}

#[test]
#[ignore = "needs a broker"]
fn closing_keeps_a_subscription_and_unsubscribing_removes_it() {
    run(async |broker| {
        let client = broker.client().await;
        let (topic, _) = filled(&client, "leaving").await;
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        for message in take(&mut consumer, 4).await {
            consumer.ack(&message).await.unwrap();
        }
        consumer.close().await.unwrap();
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        assert_eq!(payloads(&take(&mut consumer, 6).await), numbers(10)[4..]);
        consumer.unsubscribe().await.unwrap();
        let mut consumer = subscribe(&client, &topic, SubscriptionType::Exclusive).await;
        assert_eq!(payloads(&take(&mut consumer, 10).await), numbers(10));
    });
}

#[test]
#[ignore = "needs a broker"]
fn shared_consumers_get_each_message_once() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("shared");
        let one = subscribe(&client, &topic, SubscriptionType::Shared).await;
        let two = subscribe(&client, &topic, SubscriptionType::Shared).await;
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(200)).await;
        let mut counts = [0, 0];
        let mut seen = vec![0; 200];
        for _ in 0..200 {
            let (who, message) = in_time("a message", async {
                tokio::select! {
                    message = one.receive() => (0, message.unwrap()),
                    message = two.receive() => (1, message.unwrap()),
                }
            })
            .await;
            counts[who] += 1;
            let number: usize = std::str::from_utf8(message.payload())
                .unwrap()
                .parse()
                .unwrap();
            seen[number] += 1;
            if who == 0 {
                one.ack(&message).await.unwrap()
            } else {
                two.ack(&message).await.unwrap()
            }
        }
        assert!(seen.iter().all(|times| *times == 1), "{seen:?}");
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    });
}

#[test]
#[ignore = "needs a broker"]
fn failover_hands_over_what_is_not_acknowledged() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("failover");
        let make = async |name: &str| {
            let consumer = client
                .consumer()
                .topic(&topic)
                .subscription("s")
                .consumer_name(name);
            consumer
                .subscription_type(SubscriptionType::Failover)
                .build()
                .await
                .unwrap()
        };
        let mut consumers = vec![make("a").await, make("b").await];
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(10)).await;
        // Which of the two is active is the broker's choice.
        let (index, message) = in_time("a message", async {
            tokio::select! {
                message = consumers[0].receive() => (0, message.unwrap()),
                message = consumers[1].receive() => (1, message.unwrap()),
            }
        })
        .await;
        let mut active = consumers.remove(index);
        let mut other = consumers.remove(0);
        let mut messages = vec![message];
        messages.extend(take(&mut active, 9).await);
        assert_eq!(payloads(&messages), numbers(10));
        active.ack_cumulative(&messages[3]).await.unwrap();
        active.close().await.unwrap();
        assert_eq!(payloads(&take(&mut other, 6).await), numbers(10)[4..]);
    });
}

#[test]
#[ignore = "needs a broker"]
fn keys_keep_their_order_and_their_consumer() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("keys");
        let mut consumers = Vec::new();
        for _ in 0..3 {
            consumers.push(subscribe(&client, &topic, SubscriptionType::KeyShared).await);
        }
        let producer = client
            .producer(&topic)
            .batching_by_key(true)
            .build()
            .await
            .unwrap();
        let mut receipts = Vec::new();
        for number in 0..300 {
            receipts.push(
                producer
                    .send(keyed(&format!("key-{}", number % 10), number.to_string()))
                    .await
                    .unwrap(),
            );
        }
        for receipt in receipts {
            receipt.await.unwrap();
        }
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        for (who, consumer) in consumers.into_iter().enumerate() {
            let sender = sender.clone();
            tokio::spawn(async move {
                while let Ok(message) = consumer.receive().await {
                    consumer.ack(&message).await.unwrap();
                    let number: u32 = std::str::from_utf8(message.payload())
                        .unwrap()
                        .parse()
                        .unwrap();
                    if sender
                        .send((who, message.key().unwrap().to_owned(), number))
                        .is_err()
                    {
                        return;
                    }
                }
            });
        }
        let mut of_key: HashMap<String, (usize, Vec<u32>)> = HashMap::new();
        for _ in 0..300 {
            let (who, key, number) = in_time("a message", received.recv()).await.unwrap();
            let (holder, numbers) = of_key.entry(key).or_insert((who, Vec::new()));
            assert_eq!(*holder, who);
            numbers.push(number);
        }
        assert!(
            of_key
                .values()
                .all(|(_, numbers)| numbers.len() == 30 && numbers.is_sorted()),
            "{of_key:?}"
        );
    });
}

#[test]
#[ignore = "needs a broker"]
fn several_topics_and_patterns_are_one_consumer() {
    run(async |broker| {
        let client = broker.client().await;
        let base = topic("pattern");
        let names: Vec<_> = (0..3).map(|number| format!("{base}-{number}")).collect();
        let producers = [
            plain_producer(&client, &names[0]).await,
            plain_producer(&client, &names[1]).await,
        ];
        let several = client
            .consumer()
            .topics([&names[0], &names[1]])
            .subscription("several");
        let mut several = several.build().await.unwrap();
        let pattern = client
            .consumer()
            .pattern(format!("{base}-.*"))
            .subscription("pattern");
        let pattern = pattern.pattern_auto_discovery_period(Duration::from_secs(1));
        let pattern = pattern.subscription_initial_position(InitialPosition::Earliest);
        let mut pattern = pattern.build().await.unwrap();
        for producer in &producers {
            publish(producer, &numbers(5)).await;
        }
        for consumer in [&mut several, &mut pattern] {
            let messages = take(consumer, 10).await;
            for name in &names[..2] {
                let of_topic: Vec<_> = messages
                    .iter()
                    .filter(|message| message.topic() == name)
                    .collect();
                assert_eq!(of_topic.len(), 5);
            }
            for message in &messages {
                consumer.ack(message).await.unwrap();
            }
        }
        let later = plain_producer(&client, &names[2]).await;
        publish(&later, &numbers(3)).await;
        let messages = take(&mut pattern, 3).await;
        assert!(messages.iter().all(|message| message.topic() == names[2]));
        assert_eq!(payloads(&messages), numbers(3));
    });
}

#[test]
#[ignore = "needs a broker"]
fn names_are_completed_and_missing_namespaces_refused() {
    run(async |broker| {
        let client = broker.client().await;
        let full = topic("short");
        let short = full.rsplit('/').next().unwrap();
        let mut consumer = subscribe(&client, short, SubscriptionType::Exclusive).await;
        let producer = plain_producer(&client, &full).await;
        publish(&producer, &numbers(1)).await;
        assert_eq!(take(&mut consumer, 1).await[0].topic(), full);
        let client =
            vela_client::Client::builder(&broker.url).operation_timeout(Duration::from_secs(3));
        let client = client.build().await.unwrap();
        client
            .producer("nobody/nowhere/t")
            .build()
            .await
            .map(|_| ())
            .unwrap_err();
        client
            .producer("http://a/b/c")
            .build()
            .await
            .map(|_| ())
            .unwrap_err();
    });
}

#[test]
#[ignore = "needs a broker"]
fn a_non_persistent_topic_delivers_to_who_is_there() {
    run(async |broker| {
        let client = broker.client().await;
        let topic = topic("volatile").replacen("persistent", "non-persistent", 1);
        let mut consumer = client
            .consumer()
            .topic(&topic)
            .subscription("s")
            .build()
            .await
            .unwrap();
        let producer = plain_producer(&client, &topic).await;
        publish(&producer, &numbers(10)).await;
        assert_eq!(payloads(&take(&mut consumer, 10).await), numbers(10));
    });
}

/// apache/pulsar#5278 and others: what the broker counts as credit is the queue again when everything is through, whatever happened.
#[test]
#[ignore = "needs a broker"]
fn credit_is_exact_after_batches_acks_nacks_and_redelivery() {
    run(async |broker| {
        let client = broker.client().await;
        for kind in [SubscriptionType::Shared, SubscriptionType::Exclusive] {
            let topic = topic("credit");
            let consumer = client
                .consumer()
                .topic(&topic)
                .subscription("s")
                .subscription_type(kind);
            let consumer = consumer
                .receiver_queue_size(100)
                .enable_batch_index_ack(true);
            let mut consumer = consumer
                .negative_ack_redelivery_delay(Duration::from_millis(100))
                .build()
                .await
                .unwrap();
            let producer = batch_producer(&client, &topic, 10).await;
            publish(&producer, &numbers(500)).await;
            let mut left: Vec<bool> = vec![true; 500];
            let mut turn = 0;
            while left.iter().any(|left| *left) {
                let message = take(&mut consumer, 1).await.remove(0);
                let number: usize = std::str::from_utf8(message.payload())
                    .unwrap()
                    .parse()
                    .unwrap();
                turn += 1;
                if kind == SubscriptionType::Shared && turn % 3 == 0 {
                    consumer.nack(&message).await.unwrap();
                } else {
                    left[number] = false;
                    consumer.ack(&message).await.unwrap();
                }
            }
            let path = topic.replacen("://", "/", 1);
            let end = std::time::Instant::now() + crate::harness::LIMIT;
            loop {
                let (_, body) = broker.http("GET", &format!("/admin/v2/{path}/stats"), "");
                let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
                let subscription = &stats["subscriptions"]["s"];
                let permits = subscription["consumers"][0]["availablePermits"]
                    .as_i64()
                    .unwrap();
                let backlog = subscription["msgBacklog"].as_i64().unwrap();
                // FLOW goes out when half the queue is free, so up to a half is still to come.
                if backlog == 0 && (51..=100).contains(&permits) {
                    break;
                }
                assert!(
                    std::time::Instant::now() < end,
                    "{kind:?}: {permits} permits, backlog {backlog}"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            assert!(rest(&mut consumer).await.is_empty());
        }
    });
}
