//! Applications that are careless, and brokers that are broken: small ones on 127.0.0.1 that answer as much as a test wants.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use vela_client::{Client, Error, SubscriptionType};
use vela_codec::{FrameDecoder, decode_command, encode};
use vela_proto as proto;
use vela_proto::BaseCommand;
use vela_proto::base_command::Type;

/// What a test waits for at most.
const LIMIT: Duration = Duration::from_secs(30);

/// How much of a broker it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Accepts and closes.
    Closes,
    /// Accepts and says nothing.
    Silent,
    /// Opens whatever is asked for, and answers nothing more: no receipt, no message.
    Opens,
    /// Says that the topic has so many partitions.
    Partitions(u32),
}

struct Broker {
    url: String,
    accepted: Arc<AtomicUsize>,
}

impl Broker {
    async fn start(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("pulsar://{}", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let (count, own) = (Arc::clone(&accepted), url.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::AcqRel);
                if kind != Kind::Closes {
                    tokio::spawn(serve(socket, kind, own.clone()));
                }
            }
        });
        Self { url, accepted }
    }

    async fn client(&self) -> Client {
        Client::builder(&self.url)
            .operation_timeout(Duration::from_millis(500))
            .connection_timeout(Duration::from_millis(500))
            .build()
            .await
            .unwrap()
    }
}

async fn serve(mut socket: TcpStream, kind: Kind, url: String) {
    let mut decoder = FrameDecoder::new(64 << 20);
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = socket.read(&mut buffer).await
        && n > 0
    {
        if kind == Kind::Silent {
            continue;
        }
        decoder.push(Bytes::copy_from_slice(&buffer[..n]));
        let mut out = BytesMut::new();
        while let Ok(Some(frame)) = decoder.next_frame() {
            let command = decode_command(frame.command()).unwrap();
            if let Some(answer) = answer(&command, kind, &url) {
                encode::command(&answer, &mut out);
            }
        }
        if socket.write_all(&out).await.is_err() {
            return;
        }
    }
}

fn answer(command: &BaseCommand, kind: Kind, url: &str) -> Option<BaseCommand> {
    let mut answer = BaseCommand::default();
    if command.connect.is_some() {
        answer.r#type = Type::Connected as i32;
        answer.connected = Some(proto::CommandConnected {
            server_version: "broken".into(),
            protocol_version: Some(21),
            ..Default::default()
        });
    } else if let Some(ask) = &command.partition_metadata {
        answer.r#type = Type::PartitionedMetadataResponse as i32;
        answer.partition_metadata_response = Some(proto::CommandPartitionedTopicMetadataResponse {
            request_id: ask.request_id,
            partitions: Some(match kind {
                Kind::Partitions(count) => count,
                _ => 0,
            }),
            response: Some(0),
            ..Default::default()
        });
    } else if let Some(lookup) = &command.lookup_topic {
        answer.r#type = Type::LookupResponse as i32;
        answer.lookup_topic_response = Some(proto::CommandLookupTopicResponse {
            request_id: lookup.request_id,
            broker_service_url: Some(url.into()),
            response: Some(1),
            ..Default::default()
        });
    } else if let Some(producer) = &command.producer {
        answer.r#type = Type::ProducerSuccess as i32;
        answer.producer_success = Some(proto::CommandProducerSuccess {
            request_id: producer.request_id,
            producer_name: "p".into(),
            ..Default::default()
        });
    } else if let Some(subscribe) = &command.subscribe {
        answer.r#type = Type::Success as i32;
        answer.success = Some(proto::CommandSuccess {
            request_id: subscribe.request_id,
            schema: None,
        });
    } else {
        return None;
    }
    Some(answer)
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen in {LIMIT:?}"))
}

async fn unused(client: &Client) {
    let deadline = Instant::now() + LIMIT;
    while client.memory().used() > 0 {
        assert!(
            Instant::now() < deadline,
            "{} bytes are kept",
            client.memory().used()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test());
}

async fn every_call_ends(client: Client) {
    in_time("producer", client.producer("t").build())
        .await
        .unwrap_err();
    let consumer = client.consumer().topic("t").subscription("s");
    in_time("consumer", consumer.build()).await.unwrap_err();
    let reader = client.reader("t");
    in_time("reader", reader.build()).await.unwrap_err();
    in_time("partitions", client.partitions("t"))
        .await
        .unwrap_err();
    in_time("lookup", client.lookup("t")).await.unwrap_err();
    in_time("schema", client.schema("t", None))
        .await
        .unwrap_err();
    assert_eq!(client.memory().used(), 0);
}

#[test]
fn every_call_ends_where_nobody_answers() {
    run(async || {
        let broker = Broker::start(Kind::Silent).await;
        every_call_ends(broker.client().await).await;
    });
}

#[test]
fn every_call_ends_where_there_is_no_host() {
    run(async || {
        let client = Client::builder("pulsar://no-such-host.invalid:6650")
            .operation_timeout(Duration::from_millis(500))
            .build();
        every_call_ends(client.await.unwrap()).await;
    });
}

#[test]
fn a_broker_that_closes_at_once_is_asked_ever_more_rarely() {
    run(async || {
        let broker = Broker::start(Kind::Closes).await;
        let client = broker.client().await;
        let started = Instant::now();
        in_time("producer", client.producer("t").build())
            .await
            .unwrap_err();
        // 100, 200, 400 ms: four attempts in half a second, however long that took; one more for every second of a slow machine.
        let most = 6 + started.elapsed().as_secs() as usize;
        let accepted = broker.accepted.load(Ordering::Acquire);
        assert!(accepted <= most, "{accepted} connections");
    });
}

#[test]
fn more_partitions_than_can_be_are_refused() {
    run(async || {
        let broker = Broker::start(Kind::Partitions(u32::MAX)).await;
        let client = broker.client().await;
        let error = in_time("producer", client.producer("t").build())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("4294967295"), "{error}");
        let consumer = client.consumer().topic("t").subscription("s").build();
        let error = in_time("consumer", consumer).await.unwrap_err();
        assert!(error.to_string().contains("65536"), "{error}");
    });
}

#[test]
fn what_is_dropped_while_it_opens_leaves_nothing() {
    run(async || {
        let broker = Broker::start(Kind::Silent).await;
        let client = broker.client().await;
        for _ in 0..100 {
            let opening = client.producer("t").build();
            drop(tokio::time::timeout(Duration::from_micros(50), opening).await);
            let opening = client.consumer().topic("t").subscription("s").build();
            drop(tokio::time::timeout(Duration::from_micros(50), opening).await);
        }
        assert_eq!(client.memory().used(), 0);
    });
}

/// Every other receipt of many is dropped: what is left of them is taken out in one go, not one by one.
#[test]
fn thousands_of_cancelled_sends_give_back_their_memory() {
    run(async || {
        let broker = Broker::start(Kind::Opens).await;
        let client = broker.client().await;
        for batching in [true, false] {
            // What is on its way already has its end by the time-out: the broker answers nothing.
            let producer = client
                .producer("t")
                .batching(batching)
                .send_timeout(Duration::from_secs(2));
            let producer = in_time("producer", producer.build()).await.unwrap();
            // A large one first: it takes the room of the connection, so that the rest is not on its way.
            let mut kept = vec![producer.try_send(vec![0; 2 << 20]).unwrap()];
            let mut dropped = Vec::new();
            for number in 0..50_000 {
                match producer.try_send(vec![0; 8]) {
                    Ok(receipt) if number % 2 == 0 => kept.push(receipt),
                    Ok(receipt) => dropped.push(receipt),
                    Err(error) => panic!("{number}: {error}"),
                }
            }
            drop(dropped);
            drop(kept);
            drop(producer);
            unused(&client).await;
        }
    });
}

#[test]
fn waiting_admissions_may_be_dropped_and_a_closed_client_ends_them() {
    run(async || {
        let broker = Broker::start(Kind::Opens).await;
        let client = Client::builder(&broker.url)
            .memory_limit(4096)
            .build()
            .await
            .unwrap();
        let producer = in_time("producer", client.producer("t").build())
            .await
            .unwrap();
        let held: Vec<_> = std::iter::from_fn(|| producer.try_send(vec![0; 10]).ok()).collect();
        assert!(!held.is_empty());
        let mut waiting = Vec::new();
        for _ in 0..1_000 {
            let producer = producer.clone();
            waiting.push(tokio::spawn(async move {
                producer.send(vec![0; 10]).await.map(drop)
            }));
        }
        for task in waiting.drain(..500) {
            task.abort();
        }
        client.close();
        for receipt in held {
            let error = in_time("an end", receipt).await.unwrap_err();
            assert!(matches!(error, Error::Closed(_)), "{error}");
        }
        unused(&client).await;
        // Closed twice, and used afterwards.
        client.close();
        assert!(producer.try_send("x").is_err());
        assert!(in_time("close", producer.close()).await.is_err());
        assert!(
            in_time("build", client.producer("t").build())
                .await
                .is_err()
        );
        assert!(in_time("partitions", client.partitions("t")).await.is_err());
    });
}

#[test]
fn a_client_dropped_within_its_callback_ends() {
    run(async || {
        let broker = Broker::start(Kind::Opens).await;
        let client = broker.client().await;
        let memory = client.memory().clone();
        let producer = client
            .producer("t")
            .send_timeout(Duration::from_millis(100));
        let producer = in_time("producer", producer.build()).await.unwrap();
        let (told, ended) = tokio::sync::oneshot::channel();
        let other = producer.clone();
        let callback = move |result: vela_client::Result<vela_client::MessageId>| {
            // The last that has the client.
            drop((client, other));
            told.send(result.is_err()).unwrap();
        };
        producer.send_with("x", callback).unwrap();
        drop(producer);
        assert!(in_time("the callback", ended).await.unwrap());
        assert_eq!(memory.used(), 0);
    });
}

#[test]
fn calls_of_a_consumer_end_by_their_time_out() {
    run(async || {
        let broker = Broker::start(Kind::Opens).await;
        let client = broker.client().await;
        let consumer = client.consumer().topic("t").subscription("s");
        let consumer = in_time(
            "consumer",
            consumer.subscription_type(SubscriptionType::Shared).build(),
        )
        .await
        .unwrap();
        let nothing = tokio::time::timeout(Duration::from_millis(10), consumer.receive()).await;
        assert!(nothing.is_err());
        let error = in_time("seek", consumer.seek(vela_client::StartPosition::Earliest)).await;
        assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
        in_time("unsubscribe", consumer.unsubscribe())
            .await
            .unwrap_err();
        in_time("close", consumer.close()).await.unwrap();
    });
}

/// The runtime on which a client lives ends while a thread waits for a receipt.
#[test]
fn a_thread_that_waits_is_told_that_the_runtime_has_ended() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (client, producer) = runtime.block_on(async {
        let broker = Broker::start(Kind::Opens).await;
        let client = broker.client().await;
        let producer = client.producer("t").send_timeout(Duration::ZERO);
        (
            client.clone(),
            in_time("producer", producer.build()).await.unwrap(),
        )
    });
    let receipt = producer.try_send("x").unwrap();
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(receipt.wait()).unwrap());
    runtime.shutdown_timeout(LIMIT);
    let result = ended.recv_timeout(LIMIT).expect("the end");
    assert!(matches!(result, Err(Error::Closed(_))), "{result:?}");
    assert_eq!(client.memory().used(), 0);
    assert!(producer.try_send("x").is_err());
    drop((producer, client));
}
