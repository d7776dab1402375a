//! A metadata store on its own thread, so that no executor waits for its disk.

use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};

use super::super::wal::Wake;
use super::{Meta, MetaError, Versioned};

/// One operation of [`Meta`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaRequest {
    /// [`Meta::get`], answered by [`MetaReply::Value`].
    Get {
        /// The key.
        key: String,
    },
    /// [`Meta::list`], answered by [`MetaReply::List`].
    List {
        /// What the keys begin with.
        prefix: String,
    },
    /// [`Meta::put`], answered by [`MetaReply::Version`].
    Put {
        /// The key.
        key: String,
        /// The new value.
        value: Bytes,
        /// The version it must have.
        expected: Option<u64>,
    },
    /// [`Meta::delete`], answered by [`MetaReply::Deleted`].
    Delete {
        /// The key.
        key: String,
        /// The version it must have.
        expected: Option<u64>,
    },
    /// [`Meta::new_epoch`], answered by [`MetaReply::Epoch`].
    NewEpoch,
}

/// The answer to a [`MetaRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaReply {
    /// A value, or that there is none.
    Value(Option<Versioned>),
    /// Keys and values.
    List(Vec<(String, Versioned)>),
    /// The version that was set.
    Version(u64),
    /// It is gone.
    Deleted,
    /// A new epoch.
    Epoch(u64),
}

/// An answer or why there is none.
pub type MetaResult = Result<MetaReply, MetaError>;

type Callback = Box<dyn FnOnce(MetaResult) + Send>;

enum Job {
    Run(MetaRequest, Callback),
    Stop,
}

/// Owner of the thread. When it is dropped, what was requested before is still carried out; later requests are `Closed`.
#[derive(Debug)]
pub struct MetaService {
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
}

/// An executor's access to the store.
pub struct MetaClient {
    jobs: Sender<Job>,
    replies_in: Sender<(u64, MetaResult)>,
    replies: Receiver<(u64, MetaResult)>,
    wake: Wake,
}

impl std::fmt::Debug for MetaClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaClient")
            .field("waiting_replies", &self.replies.len())
            .finish_non_exhaustive()
    }
}

impl MetaService {
    /// Starts the thread. At most `requests_max` requests of all clients wait; more are refused with `Backpressure`.
    pub fn spawn(meta: Box<dyn Meta>, requests_max: usize) -> Result<Self, MetaError> {
        let (jobs, receiver) = bounded(requests_max.max(1));
        let thread = std::thread::Builder::new()
            .name("meta".into())
            .spawn(move || serve(meta, &receiver))
            .map_err(|e| MetaError::Unavailable(format!("starting the metadata thread: {e}")))?;
        Ok(Self {
            jobs,
            thread: Some(thread),
        })
    }

    /// Access for one executor. `wake` is called, on the service's thread, after each reply.
    pub fn client(&self, wake: Wake) -> MetaClient {
        // Bounded by the requests that wait and the replies the executor has not taken yet.
        let (replies_in, replies) = unbounded();
        MetaClient {
            jobs: self.jobs.clone(),
            replies_in,
            replies,
            wake,
        }
    }

    /// Hands in a request; `done` is called with the outcome on the service's thread and must not block.
    pub fn request(
        &self,
        request: MetaRequest,
        done: impl FnOnce(MetaResult) + Send + 'static,
    ) -> Result<(), MetaError> {
        send(&self.jobs, request, Box::new(done))
    }
}

impl Drop for MetaService {
    fn drop(&mut self) {
        let stopped = self.jobs.send_timeout(Job::Stop, Duration::from_secs(1));
        if let Some(thread) = self.thread.take().filter(|_| stopped.is_ok())
            && thread.join().is_err()
        {
            tracing::error!("the metadata thread panicked");
        }
    }
}

impl MetaClient {
    /// Hands in a request; the reply carries `token`. `Backpressure` when too many wait, `Closed` when the service ended.
    pub fn request(&self, token: u64, request: MetaRequest) -> Result<(), MetaError> {
        let (replies, wake) = (self.replies_in.clone(), self.wake.clone());
        let done = move |result| {
            // The client is gone: nobody wants to know any more.
            let _ = replies.send((token, result));
            wake();
        };
        send(&self.jobs, request, Box::new(done))
    }

    /// Appends the replies that came since the last call. Never blocks.
    pub fn poll(&self, replies: &mut Vec<(u64, MetaResult)>) {
        replies.extend(self.replies.try_iter());
    }
}

fn send(jobs: &Sender<Job>, request: MetaRequest, done: Callback) -> Result<(), MetaError> {
    jobs.try_send(Job::Run(request, done)).map_err(|e| match e {
        TrySendError::Full(_) => MetaError::Backpressure,
        TrySendError::Disconnected(_) => MetaError::Closed,
    })
}

fn serve(mut meta: Box<dyn Meta>, jobs: &Receiver<Job>) {
    for job in jobs {
        match job {
            Job::Run(request, done) => done(run(meta.as_mut(), request)),
            Job::Stop => break,
        }
    }
    // Requests that came in behind the stop are not silently lost.
    for job in jobs.try_iter() {
        if let Job::Run(_, done) = job {
            done(Err(MetaError::Closed));
        }
    }
}

fn run(meta: &mut dyn Meta, request: MetaRequest) -> MetaResult {
    Ok(match request {
        MetaRequest::Get { key } => MetaReply::Value(meta.get(&key)?),
        MetaRequest::List { prefix } => MetaReply::List(meta.list(&prefix)?),
        MetaRequest::Put {
            key,
            value,
            expected,
        } => MetaReply::Version(meta.put(&key, value, expected)?),
        MetaRequest::Delete { key, expected } => {
            meta.delete(&key, expected)?;
            MetaReply::Deleted
        }
        MetaRequest::NewEpoch => MetaReply::Epoch(meta.new_epoch()?),
    })
}
