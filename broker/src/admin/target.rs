//! The topic that a path names: `/admin/v2/DOMAIN/TENANT/NAMESPACE/TOPIC/...`.

use super::Shared;
use super::answer::{self, Refusal};
use super::partitioned::Partitions;
use crate::engine::admin::Answer as Reply;
use crate::engine::name::{Domain, TopicName};
use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::collections::HashMap;

/// Bytes of a subscription's name, as for clients.
const SUBSCRIPTION_MAX: usize = 4096;

/// A namespace of a path, and the domain in front of it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) domain: &'static str,
    /// `tenant/namespace`; it exists.
    pub(super) namespace: String,
    /// All parameters of the path.
    pub(super) path: HashMap<String, String>,
}

/// A topic of a path; its namespace exists, whether the topic does is not known.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: TopicName,
    /// Is it a partitioned topic?
    pub(super) partitions: Option<Partitions>,
    /// All parameters of the path.
    pub(super) path: HashMap<String, String>,
}

impl FromRequestParts<Shared> for Place {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Refusal> {
        let Path(path) = Path::<HashMap<String, String>>::from_request_parts(parts, shared)
            .await
            .map_err(|_| Refusal::from(answer::bare(StatusCode::NOT_FOUND)))?;
        let domain = path.get("domain").map(String::as_str);
        let domain = domain.or_else(|| parts.uri.path().split('/').nth(3));
        let domain = match domain {
            Some("persistent") => "persistent",
            Some("non-persistent") => "non-persistent",
            // Only lookups have it as a parameter.
            _ => {
                return Err(
                    answer::page_of(StatusCode::INTERNAL_SERVER_ERROR, "Request failed.").into(),
                );
            }
        };
        let part = |name: &str| path.get(name).map(String::as_str).unwrap_or_default();
        let (tenant, namespace) = (part("tenant"), part("namespace"));
        if !answer::is_name(tenant) || !answer::is_name(namespace) {
            return Err(answer::failed("Namespace name is not valid"));
        }
        let namespace = format!("{tenant}/{namespace}");
        if shared.namespace(&namespace).await?.is_none() {
            return Err(answer::reason(StatusCode::NOT_FOUND, "Namespace not found").into());
        }
        Ok(Self {
            domain,
            namespace,
            path,
        })
    }
}

impl FromRequestParts<Shared> for Target {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Refusal> {
        let Place {
            domain,
            namespace,
            path,
        } = Place::from_request_parts(parts, shared).await?;
        let local = path.get("topic").map(String::as_str).unwrap_or_default();
        let full = format!("{domain}://{namespace}/{local}");
        let name = TopicName::parse(&full)
            .ok()
            .filter(|_| !local.contains('/'))
            .ok_or_else(|| answer::failed("Topic name is not valid"))?;
        let subscription = path.get("subscription").map_or(0, String::len);
        if subscription > SUBSCRIPTION_MAX {
            return Err(answer::failed(&format!(
                "A subscription's name may have {SUBSCRIPTION_MAX} bytes, this one has {subscription}"
            )));
        }
        let partitions = shared.partitions(&name).await?;
        Ok(Self {
            name,
            partitions,
            path,
        })
    }
}

impl Target {
    /// A parameter of the path.
    pub(super) fn part(&self, name: &str) -> &str {
        self.path.get(name).map(String::as_str).unwrap_or_default()
    }

    /// A number of the path; 404 if it is none, for then Pulsar has no such path.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, Refusal> {
        let number = self.part(name).parse();
        number.map_err(|_| answer::bare(StatusCode::NOT_FOUND).into())
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.name.domain() == Domain::Persistent
    }

    /// The topics with messages that stand behind the name: its partitions, or itself.
    pub(super) fn topics(&self) -> Vec<TopicName> {
        match &self.partitions {
            Some(partitions) => partitions.names(&self.name),
            None => vec![self.name.clone()],
        }
    }

    /// Refuses a partitioned topic with 405.
    pub(super) fn one(&self, what: &str) -> Result<(), Refusal> {
        if self.partitions.is_none() {
            return Ok(());
        }
        Err(answer::reason(StatusCode::METHOD_NOT_ALLOWED, what).into())
    }

    /// 404 for the name that was asked for.
    pub(super) fn missing(&self) -> Refusal {
        missing(self.name.as_str())
    }

    /// An answer that is an error wherever it comes, as such.
    pub(super) fn error(&self, reply: Reply) -> Refusal {
        error(&self.name, self.part("subscription"), reply)
    }
}

pub(super) fn missing(topic: &str) -> Refusal {
    answer::reason(StatusCode::NOT_FOUND, &format!("Topic {topic} not found")).into()
}

/// What a topic's refusal is in HTTP.
pub(super) fn error(name: &TopicName, subscription: &str, reply: Reply) -> Refusal {
    let response = match reply {
        Reply::NoTopic => return missing(name.as_str()),
        Reply::NoSubscription => answer::reason(
            StatusCode::NOT_FOUND,
            &format!("Subscription {subscription} not found for topic {name}"),
        ),
        Reply::Failed(text) => answer::internal(&text),
        Reply::NotAllowed(text) => answer::reason(StatusCode::METHOD_NOT_ALLOWED, &text),
        Reply::TooLarge(text) => answer::reason(StatusCode::PAYLOAD_TOO_LARGE, &text),
        Reply::Crowded(text) => answer::reason(StatusCode::SERVICE_UNAVAILABLE, &text),
        Reply::Conflict(text) => answer::reason(StatusCode::CONFLICT, &text),
        Reply::Busy { subscription } => answer::reason(
            StatusCode::CONFLICT,
            &format!(
                "The cursor of subscription {subscription} of topic {name} is being moved; try again"
            ),
        ),
        Reply::NothingToExpire { subscription } => answer::reason(
            StatusCode::CONFLICT,
            // Two spaces, as Pulsar has it.
            &format!(
                "Expire message by timestamp not issued on topic {name} for subscription {subscription} due to ongoing \
                 message expiration not finished or subscription almost catch  up. If it's performed on a partitioned \
                 topic operation might succeeded on other partitions, please check stats of individual partition."
            ),
        ),
        Reply::Clients {
            producers,
            consumers,
        } if name.domain() == Domain::Persistent => answer::reason(
            StatusCode::PRECONDITION_FAILED,
            &format!(
                "Topic has {} clients connected Including {consumers} consumers, {producers} producers, and 0 replicators.",
                producers + consumers
            ),
        ),
        Reply::Clients {
            producers,
            consumers,
        } => answer::reason(
            StatusCode::PRECONDITION_FAILED,
            &format!(
                "Topic has {} connected producers/consumers",
                producers + consumers
            ),
        ),
        other => return super::cores::unexpected(&other),
    };
    response.into()
}
