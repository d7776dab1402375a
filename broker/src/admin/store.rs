//! The metadata store as requests use it.

use super::answer::{self, Refusal};
use super::{Broker, Shared};
use crate::store::meta::{MetaError, MetaReply, MetaRequest, Versioned};
use axum::http::StatusCode;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a change may take to be stored and taken over by every core.
const LIMIT: Duration = Duration::from_secs(10);

/// Why a request could not read or change metadata.
#[derive(Debug)]
pub(super) enum StoreError {
    /// The store refused.
    Meta(MetaError),
    /// No answer in time.
    Late,
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let response = match error {
            StoreError::Meta(error @ (MetaError::Backpressure | MetaError::Closed)) => {
                answer::reason(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
            }
            StoreError::Meta(error @ MetaError::TooLarge { .. }) => {
                answer::reason(StatusCode::PAYLOAD_TOO_LARGE, &error.to_string())
            }
            StoreError::Meta(error @ MetaError::Conflict { .. }) => {
                answer::reason(StatusCode::CONFLICT, &error.to_string())
            }
            StoreError::Meta(error) => answer::internal(&error.to_string()),
            StoreError::Late => answer::reason(
                StatusCode::GATEWAY_TIMEOUT,
                &format!(
                    "the change was not stored and taken over by every core within {} s; see GET /admin/v2/brokers/health",
                    LIMIT.as_secs()
                ),
            ),
        };
        response.into()
    }
}

async fn ask(broker: &Arc<dyn Broker>, request: MetaRequest) -> Result<MetaReply, StoreError> {
    let (sender, receiver) = oneshot::channel();
    broker.metadata(
        request,
        Box::new(move |result| {
            // The client may have gone.
            let _ = sender.send(result);
        }),
    );
    match tokio::time::timeout(LIMIT, receiver).await {
        Ok(Ok(result)) => result.map_err(StoreError::Meta),
        Ok(Err(_)) => Err(StoreError::Meta(MetaError::Closed)),
        Err(_) => Err(StoreError::Late),
    }
}

fn unexpected(reply: MetaReply) -> StoreError {
    StoreError::Meta(MetaError::Unavailable(format!(
        "unexpected answer {reply:?}"
    )))
}

impl Shared {
    /// The value of a key.
    pub(super) async fn get(&self, key: String) -> Result<Option<Versioned>, StoreError> {
        match ask(&self.broker, MetaRequest::Get { key }).await? {
            MetaReply::Value(value) => Ok(value),
            other => Err(unexpected(other)),
        }
    }

    /// All keys that begin with `prefix`.
    pub(super) async fn list(
        &self,
        prefix: String,
    ) -> Result<Vec<(String, Versioned)>, StoreError> {
        match ask(&self.broker, MetaRequest::List { prefix }).await? {
            MetaReply::List(list) => Ok(list),
            other => Err(unexpected(other)),
        }
    }

    /// Sets a key that has the version `expected`; any if none. False: it has another one.
    pub(super) async fn put(
        &self,
        key: String,
        value: String,
        expected: Option<u64>,
    ) -> Result<bool, StoreError> {
        self.put_any(key, Bytes::from(value), expected).await
    }

    /// Sets a key that has the version `expected`. False: it has another one.
    pub(super) async fn put_bytes(
        &self,
        key: String,
        value: Bytes,
        expected: u64,
    ) -> Result<bool, StoreError> {
        self.put_any(key, value, Some(expected)).await
    }

    async fn put_any(
        &self,
        key: String,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<bool, StoreError> {
        let request = MetaRequest::Put {
            key,
            value,
            expected,
        };
        match ask(&self.broker, request).await {
            Ok(_) => Ok(true),
            Err(StoreError::Meta(MetaError::Conflict { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a key. False: it did not exist.
    pub(super) async fn delete(&self, key: String) -> Result<bool, StoreError> {
        let request = MetaRequest::Delete {
            key,
            expected: None,
        };
        match ask(&self.broker, request).await {
            Ok(_) => Ok(true),
            Err(StoreError::Meta(MetaError::Absent(_))) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
