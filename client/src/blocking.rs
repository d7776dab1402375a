//! The client for threads: the same, but calls wait on the thread that makes them.
//!
//! A client of this module has a small runtime of its own, so that whatever the application's threads do, what releases memory goes on. The
//! rules of admission are those of everybody: threads and tasks wait in one queue. A call that would have to wait on a thread of a
//! tokio runtime, or in the client's own callbacks, fails with [`Error::WouldBlock`] instead: it could stand in the way of what it waits for.

use crate::admission::may_block;
use crate::message::Outgoing;
use crate::{ClientBuilder, Error, MessageId, ProducerBuilder, Result, SendFuture};
use std::future::Future;
use std::sync::Arc;
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
