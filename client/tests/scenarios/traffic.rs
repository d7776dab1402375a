//! Sending and receiving in a few words.

use crate::harness::{in_time, topic};
use bytes::Bytes;
use std::time::Duration;
use vela_client::{
    Client, Consumer, InitialPosition, Message, MessageId, Outgoing, Producer, SubscriptionType,
};

/// `0`, `1`, … as payloads.
pub fn numbers(count: usize) -> Vec<Bytes> {
    (0..count)
        .map(|number| Bytes::from(number.to_string()))
        .collect()
}

/// Sends these, all at once, and waits for their receipts.
pub async fn publish(producer: &Producer<Bytes>, payloads: &[Bytes]) -> Vec<MessageId> {
    let mut receipts = Vec::new();
    for payload in payloads {
        receipts.push(producer.send(payload.clone()).await.unwrap());
    }
    producer.flush().await.unwrap();
    let mut ids = Vec::new();
    for receipt in receipts {
        ids.push(in_time("a receipt", receipt).await.unwrap());
    }
    ids
}

/// A producer of single messages.
pub async fn plain_producer(client: &Client, topic: &str) -> Producer<Bytes> {
    client
        .producer(topic)
        .batching(false)
        .build()
        .await
        .unwrap()
}

/// A producer whose batches go when they are flushed, or full.
pub async fn batch_producer(client: &Client, topic: &str, messages: usize) -> Producer<Bytes> {
    let producer = client.producer(topic).batching_max_messages(messages);
    producer
        .batching_max_publish_delay(Duration::from_secs(5))
        .build()
        .await
        .unwrap()
}

/// A consumer from the first message on.
pub async fn subscribe(client: &Client, topic: &str, kind: SubscriptionType) -> Consumer<Bytes> {
    let consumer = client
        .consumer()
        .topic(topic)
        .subscription("s")
        .subscription_type(kind);
    consumer
        .subscription_initial_position(InitialPosition::Earliest)
        .build()
        .await
        .unwrap()
}

/// The next messages, so many.
pub async fn take(consumer: &mut Consumer<Bytes>, count: usize) -> Vec<Message<Bytes>> {
    let mut messages = Vec::new();
    for number in 0..count {
        let message = in_time(&format!("message {number} of {count}"), consumer.receive()).await;
        messages.push(message.unwrap());
    }
    messages
}

/// Their payloads.
pub fn payloads(messages: &[Message<Bytes>]) -> Vec<Bytes> {
    messages
        .iter()
        .map(|message| message.payload().clone())
        .collect()
}

/// What comes until nothing comes for a while: only for what nobody should ever see.
pub async fn rest(consumer: &mut Consumer<Bytes>) -> Vec<Message<Bytes>> {
    let mut messages = Vec::new();
    while let Ok(message) =
        tokio::time::timeout(Duration::from_millis(300), consumer.receive()).await
    {
        messages.push(message.unwrap());
    }
    messages
}

/// A topic with ten single messages.
pub async fn filled(client: &Client, name: &str) -> (String, Vec<MessageId>) {
    let topic = topic(name);
    let producer = plain_producer(client, &topic).await;
    let ids = publish(&producer, &numbers(10)).await;
    producer.close().await.unwrap();
    (topic, ids)
}

/// A keyed message.
pub fn keyed(key: &str, payload: impl Into<Bytes>) -> Outgoing<Bytes> {
    Outgoing::new(payload.into()).key(key)
}
