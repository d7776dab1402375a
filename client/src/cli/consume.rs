//! `vela-client consume` and `vela-client read`.

use super::args::{Connection, Consume, Kind, Read, Receive};
use super::output::show;
use super::progress::{Pace, Progress};
use super::value::AsBytes;
use super::{Failure, Interrupt, connect};
use crate::message::Message;
use crate::{Consumer, Reader, StartPosition, SubscriptionType};
use bytes::Bytes;
use std::future::Future;
use std::io::{BufWriter, Stdout, Write as _};
use std::time::Duration;

/// What has been shown is written at once when nothing more comes for this long.
const IDLE: Duration = Duration::from_millis(5);

pub(super) async fn consume(
    connection: &Connection,
    arguments: &Consume,
    mut interrupt: Interrupt,
) -> Result<(), Failure> {
    let client = connect(connection).await?;
    let mut builder = client
        .consumer()
        .schema(AsBytes::of(&arguments.receive.schema)?)
        .subscription(&arguments.subscription_name)
        .subscription_type(match arguments.subscription_type {
            Kind::Exclusive => SubscriptionType::Exclusive,
            Kind::Shared => SubscriptionType::Shared,
            Kind::Failover => SubscriptionType::Failover,
            Kind::KeyShared => SubscriptionType::KeyShared,
        })
        .subscription_initial_position(arguments.subscription_position.into())
        .receiver_queue_size(arguments.receive.receiver_queue_size);
    builder = if arguments.regex {
        builder.pattern(&arguments.topic)
    } else {
        builder.topics(arguments.topic.split(','))
    };
    if let Some(name) = &arguments.consumer_name {
        builder = builder.consumer_name(name);
    }
    let Some(consumer) = interrupt.unless(builder.build()).await else {
        return Ok(());
    };
    let mut source = Subscribed {
        consumer: consumer?,
        ack: !arguments.no_ack,
    };
    let ended = receive(
        connection,
        &arguments.receive,
        interrupt,
        &mut source,
        "consumed",
    )
    .await;
    // Closing sends what was acknowledged and not yet told.
    let closed = source.consumer.close().await;
    ended?;
    Ok(closed?)
}

pub(super) async fn read(
    connection: &Connection,
    arguments: &Read,
    mut interrupt: Interrupt,
) -> Result<(), Failure> {
    let start = match (
        arguments.start_publish_time,
        arguments.start_message_id.as_str(),
    ) {
        (Some(time), _) => StartPosition::Time(time),
        (None, "earliest") => StartPosition::Earliest,
        (None, "latest") => StartPosition::Latest,
        (None, id) => StartPosition::Message {
            id: id
                .parse()
                .map_err(|error: crate::Error| Failure::usage(error.to_string()))?,
            inclusive: arguments.start_message_id_inclusive,
        },
    };
    let client = connect(connection).await?;
    let builder = client
        .reader(&arguments.topic)
        .schema(AsBytes::of(&arguments.receive.schema)?)
        .receiver_queue_size(arguments.receive.receiver_queue_size)
        .start(start);
    let Some(reader) = interrupt.unless(builder.build()).await else {
        return Ok(());
    };
    let mut source = Reading {
        reader: reader?,
        until_end: arguments.until_end,
    };
    let ended = receive(
        connection,
        &arguments.receive,
        interrupt,
        &mut source,
        "read",
    )
    .await;
    let closed = source.reader.close().await;
    ended?;
    Ok(closed?)
}

/// Where messages come from.
trait Source {
    /// The next message; none if there are no more.
    fn next(&mut self) -> impl Future<Output = crate::Result<Option<Message<Bytes>>>>;

    /// A message has been shown.
    fn done(&mut self, message: &Message<Bytes>) -> impl Future<Output = crate::Result<()>>;
}

struct Subscribed {
    consumer: Consumer<Bytes>,
    ack: bool,
}

impl Source for Subscribed {
    async fn next(&mut self) -> crate::Result<Option<Message<Bytes>>> {
        self.consumer.receive().await.map(Some)
    }

    async fn done(&mut self, message: &Message<Bytes>) -> crate::Result<()> {
        if self.ack {
            self.consumer.ack(message).await?;
        }
        Ok(())
    }
}

struct Reading {
    reader: Reader<Bytes>,
    until_end: bool,
}

impl Source for Reading {
    async fn next(&mut self) -> crate::Result<Option<Message<Bytes>>> {
        if self.until_end && !self.reader.has_message_available().await? {
            return Ok(None);
        }
        self.reader.next().await.map(Some)
    }

    async fn done(&mut self, _message: &Message<Bytes>) -> crate::Result<()> {
        Ok(())
    }
}

async fn receive(
    connection: &Connection,
    arguments: &Receive,
    interrupt: Interrupt,
    source: &mut impl Source,
    verb: &'static str,
) -> Result<(), Failure> {
    let mut receiving = Receiving {
        connection,
        arguments,
        interrupt,
        out: BufWriter::new(std::io::stdout()),
        progress: Progress::new(verb, connection.quiet, connection.json),
        pace: Pace::new(arguments.rate),
    };
    let ended = receiving.run(source).await;
    let flushed = receiving.out.flush();
    receiving.progress.finish(receiving.interrupt.came());
    ended?;
    Ok(flushed?)
}

struct Receiving<'a> {
    connection: &'a Connection,
    arguments: &'a Receive,
    interrupt: Interrupt,
    out: BufWriter<Stdout>,
    progress: Progress,
    pace: Pace,
}

impl Receiving<'_> {
    async fn run(&mut self, source: &mut impl Source) -> Result<(), Failure> {
        while self.arguments.num == 0 || self.progress.messages < self.arguments.num {
            if let Some(at) = self.pace.next() {
                let sleep = tokio::time::sleep_until(at.into());
                if self.interrupt.unless(sleep).await.is_none() {
                    return Ok(());
                }
            }
            let Some(message) = self.next(source).await? else {
                return Ok(());
            };
            let bytes = message.payload().len();
            if !self.arguments.hide_content {
                show(
                    &mut self.out,
                    &message,
                    self.arguments.output,
                    self.connection.json,
                )?;
            }
            source.done(&message).await?;
            self.progress.done(bytes);
            self.progress.tick();
        }
        Ok(())
    }

    /// The next message, unless there are no more or an interrupt comes. Meanwhile what was shown is written and progress told.
    async fn next(&mut self, source: &mut impl Source) -> Result<Option<Message<Bytes>>, Failure> {
        let Self {
            interrupt,
            out,
            progress,
            arguments,
            ..
        } = self;
        let coming = source.next();
        let mut coming = std::pin::pin!(coming);
        let waited = std::time::Instant::now();
        let mut patience = IDLE;
        loop {
            match interrupt
                .unless(tokio::time::timeout(patience, coming.as_mut()))
                .await
            {
                None => return Ok(None),
                Some(Ok(message)) => return Ok(message?),
                Some(Err(_)) => {
                    out.flush()?;
                    progress.tick();
                    patience = Duration::from_millis(200);
                }
            }
            if let Some(limit) = arguments.timeout {
                let left = limit.saturating_sub(waited.elapsed());
                if left.is_zero() {
                    let limit = humantime::format_duration(limit);
                    return Err(Failure::new(format!("no message came within {limit}")));
                }
                patience = patience.min(left);
            }
        }
    }
}
