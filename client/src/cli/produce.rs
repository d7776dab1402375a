//! `vela-client produce`.

use super::args::{Compression, Connection, Produce};
use super::progress::{Pace, Progress};
use super::value::AsBytes;
use super::{Failure, Interrupt, connect};
use crate::message::Outgoing;
use crate::{Client, CompressionType, Producer, SendFuture};
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;

/// Receipts that are waited for in the background; beyond them a send waits for the oldest.
const RECEIPTS: usize = 100_000;
/// A message of `--size`, in bytes: larger ones are refused before memory is asked for.
const LONGEST_SIZE: usize = 1 << 30;
/// A line of input, in bytes: longer ones are refused.
const LONGEST_LINE: usize = 64 << 20;

pub(super) async fn run(
    connection: &Connection,
    arguments: &Produce,
    mut interrupt: Interrupt,
) -> Result<(), Failure> {
    if arguments.messages.is_empty()
        && arguments.files.is_empty()
        && !arguments.lines
        && arguments.size.is_none()
    {
        return Err(Failure::usage(
            "nothing to send: give --messages, --files, --lines or --size",
        ));
    }
    let client = connect(connection).await?;
    let opening = producer(&client, arguments);
    let Some(producer) = interrupt.unless(opening).await else {
        return Ok(());
    };
    let producer = producer?;
    let (receipts, waiting) = mpsc::channel(RECEIPTS);
    let progress = Progress::new("produced", connection.quiet, connection.json);
    let counting = tokio::spawn(count(waiting, progress));
    let sent = send_all(&producer, arguments, &receipts, &mut interrupt).await;
    drop(receipts);
    let flushed = interrupt.unless(producer.flush()).await;
    // After an interrupt nobody waits for what is still on its way.
    if flushed.is_none() {
        client.close();
    }
    let (progress, first_failure) = counting
        .await
        .map_err(|error| Failure::new(error.to_string()))?;
    progress.finish(interrupt.came());
    if flushed.is_some() {
        let _ = producer.close().await;
    }
    sent?;
    match first_failure {
        Some(error) if !interrupt.came() => Err(Failure::new(format!(
            "{} messages failed; the first: {error}",
            progress.failed
        ))),
        _ => Ok(()),
    }
}

async fn producer(client: &Client, arguments: &Produce) -> crate::Result<Producer<Bytes>> {
    let mut builder = client
        .producer(&arguments.topic)
        .schema(AsBytes::of(&arguments.schema)?)
        .send_timeout(arguments.send_timeout)
        .compression(match arguments.compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
            Compression::Zlib => CompressionType::Zlib,
            Compression::Zstd => CompressionType::Zstd,
            Compression::Snappy => CompressionType::Snappy,
        });
    if let Some(name) = &arguments.producer_name {
        builder = builder.name(name);
    }
    builder = if arguments.disable_batching {
        builder.batching(false).chunking(arguments.chunking)
    } else {
        builder
            .batching_max_messages(arguments.batching_max_messages as usize)
            .batching_max_bytes(arguments.batching_max_bytes)
            .batching_max_publish_delay(arguments.batching_max_publish_delay)
    };
    builder.build().await
}

/// Waits for receipts in the order of sending.
async fn count(
    mut receipts: mpsc::Receiver<(SendFuture, usize)>,
    mut progress: Progress,
) -> (Progress, Option<crate::Error>) {
    let mut first_failure = None;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut pending: VecDeque<(SendFuture, usize)> = VecDeque::new();
    loop {
        while pending.len() < RECEIPTS
            && let Ok(next) = receipts.try_recv()
        {
            pending.push_back(next);
        }
        let Some((receipt, bytes)) = pending.front_mut() else {
            tokio::select! {
                next = receipts.recv() => match next {
                    Some(next) => pending.push_back(next),
                    None => break,
                },
                _ = tick.tick() => progress.tick(),
            }
            continue;
        };
        tokio::select! {
            ended = receipt => {
                match ended {
                    Ok(_) => progress.done(*bytes),
                    Err(error) => {
                        progress.failed += 1;
                        first_failure.get_or_insert(error);
                    }
                }
                pending.pop_front();
            }
            _ = tick.tick() => progress.tick(),
        }
    }
    (progress, first_failure)
}

struct Sender<'a> {
    producer: &'a Producer<Bytes>,
    arguments: &'a Produce,
    receipts: &'a mpsc::Sender<(SendFuture, usize)>,
    interrupt: &'a mut Interrupt,
    pace: Pace,
    number: u64,
}

/// Whether to go on.
enum Next {
    Go,
    Stop,
}

impl Sender<'_> {
    async fn send(&mut self, payload: Bytes) -> Result<Next, Failure> {
        if let Some(at) = self.pace.next() {
            let sleep = tokio::time::sleep_until(at.into());
            if self.interrupt.unless(sleep).await.is_none() {
                return Ok(Next::Stop);
            }
        }
        let bytes = payload.len();
        let mut message =
            Outgoing::new(payload).properties(self.arguments.properties.iter().cloned());
        if let Some(key) = &self.arguments.key {
            message = message.key(key.replace("{n}", &self.number.to_string()));
        }
        if let Some(delay) = self.arguments.deliver_after {
            message = message.deliver_after(delay);
        }
        self.number += 1;
        let Some(receipt) = self.interrupt.unless(self.producer.send(message)).await else {
            return Ok(Next::Stop);
        };
        let queued = self.receipts.send((receipt?, bytes));
        match self.interrupt.unless(queued).await {
            Some(Ok(())) => Ok(Next::Go),
            _ => Ok(Next::Stop),
        }
    }

    async fn send_lines(&mut self, input: impl AsyncBufRead + Unpin) -> Result<Next, Failure> {
        let mut input = input;
        loop {
            let mut line = Vec::new();
            let reading = input.read_until(b'\n', &mut line);
            match self.interrupt.unless(reading).await {
                None => return Ok(Next::Stop),
                Some(Ok(0)) => return Ok(Next::Go),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            if line.len() > LONGEST_LINE {
                return Err(Failure::new(format!(
                    "a line of {} bytes is longer than {LONGEST_LINE}",
                    line.len()
                )));
            }
            if matches!(self.send(line.into()).await?, Next::Stop) {
                return Ok(Next::Stop);
            }
        }
    }
}

async fn send_all(
    producer: &Producer<Bytes>,
    arguments: &Produce,
    receipts: &mpsc::Sender<(SendFuture, usize)>,
    interrupt: &mut Interrupt,
) -> Result<(), Failure> {
    let mut payloads: Vec<Bytes> = arguments
        .messages
        .iter()
        .cloned()
        .map(Bytes::from)
        .collect();
    if let Some(size) = arguments.size {
        if size > LONGEST_SIZE {
            return Err(Failure::usage(format!(
                "--size {size}: at most {LONGEST_SIZE} bytes, which no broker takes; give less"
            )));
        }
        payloads.push((0u8..=255).cycle().take(size).collect());
    }
    if !arguments.lines {
        for path in &arguments.files {
            payloads.push(
                tokio::fs::read(path)
                    .await
                    .map_err(|error| of_file(path, &error))?
                    .into(),
            );
        }
    }
    let mut sender = Sender {
        producer,
        arguments,
        receipts,
        interrupt,
        pace: Pace::new(arguments.rate),
        number: 0,
    };
    if arguments.lines {
        for path in &arguments.files {
            let file = File::open(path)
                .await
                .map_err(|error| of_file(path, &error))?;
            if matches!(sender.send_lines(BufReader::new(file)).await?, Next::Stop) {
                return Ok(());
            }
        }
        if arguments.files.is_empty()
            && matches!(
                sender
                    .send_lines(BufReader::new(tokio::io::stdin()))
                    .await?,
                Next::Stop
            )
        {
            return Ok(());
        }
    }
    let mut round = 0;
    while !payloads.is_empty() && (arguments.num_produce == 0 || round < arguments.num_produce) {
        round += 1;
        for payload in &payloads {
            if matches!(sender.send(payload.clone()).await?, Next::Stop) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn of_file(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}
