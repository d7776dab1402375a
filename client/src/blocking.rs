//! The client for threads: the same, but calls wait on the thread that makes them.
//!
//! A client of this module has a small runtime of its own, so that whatever the application's threads do, what releases memory goes on. The
//! rules of admission are those of everybody: threads and tasks wait in one queue. A call that would have to wait on a thread of a
//! tokio runtime, or in the client's own callbacks, fails with [`Error::WouldBlock`] instead: it could stand in the way of what it waits for.

use crate::admission::may_block;
use crate::message::{AsMessageId, Message, Outgoing};
use crate::{
    ClientBuilder, ConsumerBuilder, Error, MessageId, ProducerBuilder, ReaderBuilder, Result,
    SendFuture, StartPosition,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// The runtime of a blocking client; it may be dropped anywhere.
#[derive(Debug)]
struct Own(Option<Runtime>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where calls are waited for.
#[derive(Debug, Clone)]
struct Place {
    handle: Handle,
    /// Kept for as long as somebody needs it.
    _own: Option<Arc<Own>>,
}

impl Place {
    fn wait<T>(&self, what: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
        may_block(what)?;
        self.handle.block_on(future)
    }
}

/// A client whose calls wait on the calling thread. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
    place: Place,
}

impl Client {
    /// Makes a client with a runtime of its own.
    ///
    /// # Errors
    /// If a setting cannot be, or there can be no threads.
    pub fn new(builder: ClientBuilder) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("vela-client")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| Error::Config {
            setting: "runtime",
            value: "2 threads".to_owned(),
            reason: error.to_string(),
        })?;
        let handle = runtime.handle().clone();
        let client = builder.build_on(handle.clone())?;
        let place = Place {
            handle,
            _own: Some(Arc::new(Own(Some(runtime)))),
        };
        Ok(Self { client, place })
    }

    /// Waits for the calls of a client that runs on this runtime, which must not be a single-threaded one that nobody runs.
    #[must_use]
    pub fn on(client: crate::Client, runtime: Handle) -> Self {
        let place = Place {
            handle: runtime,
            _own: None,
        };
        Self { client, place }
    }

    /// The client itself, with its asynchronous calls and its builders.
    #[must_use]
    pub fn asynchronous(&self) -> &crate::Client {
        &self.client
    }

    /// A producer of bytes with the default settings.
    ///
    /// # Errors
    /// As [`ProducerBuilder::build`]; [`Error::WouldBlock`].
    pub fn producer(&self, topic: &str) -> Result<Producer<bytes::Bytes>> {
        self.build_producer(self.client.producer(topic))
    }

    /// A producer with these settings.
    ///
    /// # Errors
    /// As [`ProducerBuilder::build`]; [`Error::WouldBlock`].
    pub fn build_producer<T: 'static>(&self, builder: ProducerBuilder<T>) -> Result<Producer<T>> {
        let producer = self.place.wait("opening a producer", builder.build())?;
        Ok(Producer {
            producer,
            place: self.place.clone(),
        })
    }

    /// A consumer with these settings.
    ///
    /// # Errors
    /// As [`ConsumerBuilder::build`]; [`Error::WouldBlock`].
    pub fn build_consumer<T: 'static>(&self, builder: ConsumerBuilder<T>) -> Result<Consumer<T>> {
        let consumer = self.place.wait("opening a consumer", builder.build())?;
        Ok(Consumer {
            consumer,
            place: self.place.clone(),
        })
    }

    /// A reader with these settings.
    ///
    /// # Errors
    /// As [`ReaderBuilder::build`]; [`Error::WouldBlock`].
    pub fn build_reader<T: 'static>(&self, builder: ReaderBuilder<T>) -> Result<Reader<T>> {
        let reader = self.place.wait("opening a reader", builder.build())?;
        Ok(Reader {
            reader,
            place: self.place.clone(),
        })
    }
}

/// A producer whose calls wait on the calling thread. Clones are the same producer.
#[derive(Debug)]
pub struct Producer<T> {
    producer: crate::Producer<T>,
    place: Place,
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Self {
            producer: self.producer.clone(),
            place: self.place.clone(),
        }
    }
}

impl<T: 'static> Producer<T> {
    /// Sends a message and waits until it is stored.
    ///
    /// # Errors
    /// As [`crate::Producer::send_and_wait`]; [`Error::WouldBlock`].
    pub fn send(&self, message: impl Into<Outgoing<T>>) -> Result<MessageId> {
        may_block("a blocking send")?;
        self.producer.send_blocking(message)?.wait()
    }

    /// Sends a message; waits for room only. Its receipt can be waited for by [`SendFuture::wait`].
    ///
    /// # Errors
    /// As [`crate::Producer::send_blocking`].
    pub fn send_async(&self, message: impl Into<Outgoing<T>>) -> Result<SendFuture> {
        self.producer.send_blocking(message)
    }

    /// Sends a message if there is room at once.
    ///
    /// # Errors
    /// As [`crate::Producer::try_send`].
    pub fn try_send(&self, message: impl Into<Outgoing<T>>) -> Result<SendFuture> {
        self.producer.try_send(message)
    }

    /// Sends a message and calls back with what became of it; waits for room only.
    ///
    /// # Errors
    /// As [`crate::Producer::send_with`].
    pub fn send_with(
        &self,
        message: impl Into<Outgoing<T>>,
        callback: impl FnOnce(Result<MessageId>) + Send + 'static,
    ) -> Result<()> {
        self.producer.send_with(message, callback)
    }

    /// Waits until all that was sent has come to its end.
    ///
    /// # Errors
    /// As [`crate::Producer::flush`]; [`Error::WouldBlock`].
    pub fn flush(&self) -> Result<()> {
        self.place.wait("a flush", self.producer.flush())
    }

    /// Waits for what was sent, then closes the producer.
    ///
    /// # Errors
    /// As [`crate::Producer::close`]; [`Error::WouldBlock`].
    pub fn close(&self) -> Result<()> {
        self.place.wait("closing a producer", self.producer.close())
    }

    /// The producer itself, with its asynchronous calls.
    #[must_use]
    pub fn asynchronous(&self) -> &crate::Producer<T> {
        &self.producer
    }
}

/// A consumer whose calls wait on the calling thread. Clones are the same consumer.
#[derive(Debug)]
pub struct Consumer<T> {
    consumer: crate::Consumer<T>,
    place: Place,
}

impl<T> Clone for Consumer<T> {
    fn clone(&self) -> Self {
        Self {
            consumer: self.consumer.clone(),
            place: self.place.clone(),
        }
    }
}

impl<T: 'static> Consumer<T> {
    /// The next message.
    ///
    /// # Errors
    /// As [`crate::Consumer::receive`]; [`Error::WouldBlock`].
    pub fn receive(&self) -> Result<Message<T>> {
        self.place.wait("receiving", self.consumer.receive())
    }

    /// The next message, or none if none comes for this long.
    ///
    /// # Errors
    /// As [`Consumer::receive`].
    pub fn receive_timeout(&self, patience: Duration) -> Result<Option<Message<T>>> {
        self.place
            .wait("receiving", within(patience, self.consumer.receive()))
    }

    /// Acknowledges a message.
    ///
    /// # Errors
    /// As [`crate::Consumer::ack`]; [`Error::WouldBlock`].
    pub fn ack(&self, message: impl AsMessageId) -> Result<()> {
        self.place.wait("acknowledging", self.consumer.ack(message))
    }

    /// Acknowledges a message and all before it.
    ///
    /// # Errors
    /// As [`crate::Consumer::ack_cumulative`]; [`Error::WouldBlock`].
    pub fn ack_cumulative(&self, message: impl AsMessageId) -> Result<()> {
        self.place
            .wait("acknowledging", self.consumer.ack_cumulative(message))
    }

    /// Asks for a message again, after a while.
    ///
    /// # Errors
    /// As [`crate::Consumer::nack`]; [`Error::WouldBlock`].
    pub fn nack(&self, message: &Message<T>) -> Result<()> {
        self.place
            .wait("a negative acknowledgement", self.consumer.nack(message))
    }

    /// Goes on elsewhere.
    ///
    /// # Errors
    /// As [`crate::Consumer::seek`]; [`Error::WouldBlock`].
    pub fn seek(&self, position: StartPosition) -> Result<()> {
        self.place.wait("seeking", self.consumer.seek(position))
    }

    /// Removes the subscription.
    ///
    /// # Errors
    /// As [`crate::Consumer::unsubscribe`]; [`Error::WouldBlock`].
    pub fn unsubscribe(&self) -> Result<()> {
        self.place
            .wait("unsubscribing", self.consumer.unsubscribe())
    }

    /// Closes the consumer; the subscription stays.
    ///
    /// # Errors
    /// As [`crate::Consumer::close`]; [`Error::WouldBlock`].
    pub fn close(&self) -> Result<()> {
        self.place.wait("closing a consumer", self.consumer.close())
    }

    /// The consumer itself, with its asynchronous calls.
    #[must_use]
    pub fn asynchronous(&self) -> &crate::Consumer<T> {
        &self.consumer
    }
}

/// A reader whose calls wait on the calling thread.
#[derive(Debug)]
pub struct Reader<T> {
    reader: crate::Reader<T>,
    place: Place,
}

impl<T: 'static> Reader<T> {
    /// The next message.
    ///
    /// # Errors
    /// As [`crate::Reader::next`]; [`Error::WouldBlock`].
    pub fn read(&mut self) -> Result<Message<T>> {
        self.place.wait("reading", self.reader.next())
    }

    /// The next message, or none if none comes for this long.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read_timeout(&mut self, patience: Duration) -> Result<Option<Message<T>>> {
        self.place
            .wait("reading", within(patience, self.reader.next()))
    }

    /// Whether there is a message that was not read.
    ///
    /// # Errors
    /// As [`crate::Reader::has_message_available`]; [`Error::WouldBlock`].
    pub fn has_message_available(&self) -> Result<bool> {
        self.place
            .wait("a question", self.reader.has_message_available())
    }

    /// Closes the reader.
    ///
    /// # Errors
    /// As [`crate::Reader::close`]; [`Error::WouldBlock`].
    pub fn close(&self) -> Result<()> {
        self.place.wait("closing a reader", self.reader.close())
    }

    /// The reader itself, with its asynchronous calls.
    #[must_use]
    pub fn asynchronous(&mut self) -> &mut crate::Reader<T> {
        &mut self.reader
    }
}

async fn within<T>(
    patience: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    match tokio::time::timeout(patience, future).await {
        Ok(output) => output.map(Some),
        Err(_) => Ok(None),
    }
}
