//! A producer as a [`Sink`].

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;

use crate::error::{Error, Result};
use crate::message::Outgoing;
use crate::producer::Producer;
use crate::send::SendFuture;

type Admission = Pin<Box<dyn Future<Output = Result<SendFuture>> + Send>>;

/// Sends what is put into it; see [`Producer::sink`]. It takes the next message when the last is admitted and fewer than `room` are without
/// receipt, and it fails with the first send that does.
pub struct ProducerSink<T> {
    producer: Producer<T>,
    room: usize,
    admission: Option<Admission>,
    /// Sent, in order, and not known to be stored.
    receipts: VecDeque<SendFuture>,
}

impl<T: 'static> ProducerSink<T> {
    pub(crate) fn new(producer: Producer<T>, room: usize) -> Self {
        Self {
            producer,
            room: room.max(1),
            admission: None,
            receipts: VecDeque::new(),
        }
    }

    fn poll_admission(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(admission) = &mut self.admission {
            let result = ready!(admission.as_mut().poll(context));
            self.admission = None;
            self.receipts.push_back(result?);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes receipts off the front until at most `left` remain.
    fn poll_receipts(&mut self, context: &mut Context<'_>, left: usize) -> Poll<Result<()>> {
        while let Some(receipt) = self.receipts.front_mut() {
            match Pin::new(receipt).poll(context) {
                Poll::Ready(result) => {
                    self.receipts.pop_front();
                    result?;
                }
                Poll::Pending if self.receipts.len() > left => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: 'static, M: Into<Outgoing<T>>> Sink<M> for ProducerSink<T> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_admission(context))?;
        let room = self.room;
        self.poll_receipts(context, room - 1)
    }

    fn start_send(mut self: Pin<&mut Self>, message: M) -> Result<()> {
        let message = self.producer.encode(message)?;
        let core = Arc::clone(&self.producer.core);
        self.admission = Some(Box::pin(async move { core.send(message).await }));
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_admission(context))?;
        self.poll_receipts(context, 0)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Sink::<M>::poll_flush(self, context)
    }
}

impl<T> fmt::Debug for ProducerSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerSink")
            .field("without_receipt", &self.receipts.len())
            .finish_non_exhaustive()
    }
}
