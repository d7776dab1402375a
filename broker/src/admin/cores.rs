//! The road from a request to the cores that own topics, and back.

use super::Shared;
use super::answer::{self, Refusal};
use crate::engine::admin::{Answer as Reply, Ask, Asker, Request};
use crate::engine::message::CoreId;
use crate::engine::name::TopicName;
use axum::http::StatusCode;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Questions to cores that may be under way at once; further ones wait.
pub(super) const IN_FLIGHT: usize = 64;
/// How long a question may take, waiting included.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// How soon a full mailbox is tried again.
const RETRY: Duration = Duration::from_millis(5);

impl Shared {
    /// Asks the core that owns a topic.
    pub(super) async fn ask(&self, name: &TopicName, ask: Ask) -> Result<Reply, Refusal> {
        let name = name.clone();
        let core = self.core_of(&name);
        self.ask_core(core, Request::Topic { name, ask }).await
    }

    pub(super) fn core_of(&self, name: &TopicName) -> CoreId {
        let place = self.broker.place();
        let core = name.shard(place.shards) % u32::from(place.cores.max(1));
        CoreId::try_from(core).unwrap_or(0)
    }

    /// Asks one core, and waits for its answer.
    ///
    /// # Errors
    /// 503 if too many questions wait, 504 if there is no answer in time, 503 if the core ends.
    pub(super) async fn ask_core(&self, core: CoreId, request: Request) -> Result<Reply, Refusal> {
        let deadline = Instant::now() + self.limit;
        let permit = tokio::time::timeout_at(deadline, self.in_flight.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(answer::reason(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!(
                    "{IN_FLIGHT} requests have been waiting for cores for {} s; see GET /admin/v2/brokers/health",
                    self.limit.as_secs()
                ),
            )
            .into());
        };
        let (sender, receiver) = oneshot::channel();
        let asker = Asker::new(move |reply| {
            // The client may have gone.
            let _ = sender.send(reply);
        });
        let mut question = (asker, Box::new(request));
        while let Err(back) = self.broker.ask(core, question.0, question.1) {
            if Instant::now() >= deadline {
                return Err(self.late(core));
            }
            question = back;
            tokio::time::sleep(RETRY).await;
        }
        match tokio::time::timeout_at(deadline, receiver).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(answer::reason(
                StatusCode::SERVICE_UNAVAILABLE,
                "The broker is stopping",
            )
            .into()),
            Err(_) => Err(self.late(core)),
        }
    }

    fn late(&self, core: CoreId) -> Refusal {
        let text = format!(
            "Core {core} did not answer within {} s; whether a change was made is not known. See GET /admin/v2/brokers/health",
            self.limit.as_secs()
        );
        answer::reason(StatusCode::GATEWAY_TIMEOUT, &text).into()
    }

    /// Asks several cores at once; answers in the order of the questions.
    pub(super) async fn ask_all(
        &self,
        requests: Vec<(CoreId, Request)>,
    ) -> Result<Vec<Reply>, Refusal> {
        let mut running = JoinSet::new();
        let mut replies: Vec<Option<Reply>> = requests.iter().map(|_| None).collect();
        for (index, (core, request)) in requests.into_iter().enumerate() {
            let shared = self.clone();
            running.spawn(async move { (index, shared.ask_core(core, request).await) });
        }
        while let Some(done) = running.join_next().await {
            let (index, reply) = done.map_err(|error| answer::internal(&error.to_string()))?;
            if let Some(place) = replies.get_mut(index) {
                *place = Some(reply?);
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// Asks the same of several topics; answers in their order.
    pub(super) async fn ask_topics(
        &self,
        names: &[TopicName],
        ask: impl Fn() -> Ask,
    ) -> Result<Vec<Reply>, Refusal> {
        let requests = names.iter().map(|name| {
            let core = self.core_of(name);
            let (name, ask) = (name.clone(), ask());
            (core, Request::Topic { name, ask })
        });
        self.ask_all(requests.collect()).await
    }

    /// All topics of a namespace, persistent and not, sorted.
    pub(super) async fn topics_of(&self, namespace: &str) -> Result<Vec<String>, Refusal> {
        let cores = self.broker.place().cores;
        let request = |core| {
            let namespace = namespace.to_owned();
            (core, Request::Topics { namespace })
        };
        let mut names = Vec::new();
        for reply in self.ask_all((0..cores).map(request).collect()).await? {
            if let Reply::Names(more) = reply {
                names.extend(more);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes topics. Answers which of them were there before.
    pub(super) async fn create_topics(
        &self,
        names: Vec<TopicName>,
        properties: &[(String, String)],
    ) -> Result<Vec<String>, Refusal> {
        let place = self.broker.place();
        let mut by_shard: std::collections::BTreeMap<u32, Vec<TopicName>> = Default::default();
        for name in names {
            by_shard
                .entry(name.shard(place.shards))
                .or_default()
                .push(name);
        }
        let requests = by_shard.into_values().filter_map(|names| {
            let core = self.core_of(names.first()?);
            let properties = properties.to_vec();
            Some((core, Request::Create { names, properties }))
        });
        let mut before = Vec::new();
        for reply in self.ask_all(requests.collect()).await? {
            match reply {
                Reply::Created { existed } => before.extend(existed),
                Reply::Failed(text) => return Err(answer::internal(&text).into()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(before)
    }
}

/// What no question should lead to.
pub(super) fn unexpected(reply: &Reply) -> Refusal {
    answer::internal(&format!("unexpected answer {reply:?}")).into()
}
