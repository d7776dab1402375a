//! Statistics of topics as JSON, with the names that Pulsar gives them.

mod internal;
mod sum;

use self::internal::{internal_stats, partitioned_internal_stats};
use self::sum::sum;
use crate::admin::answer::{self, Refusal};
use crate::admin::messages::time;
use crate::admin::params::Params;
use crate::admin::target::Target;
use crate::admin::{Answer, Shared};
use crate::engine::admin::{
    Answer as Reply, Ask, ConsumerStats, ProducerStats, Request, SessionInfo, SubscriptionStats,
    TopicStats,
};
use crate::engine::message::{CoreId, SessionRef};
use crate::store::log::RANGE_BYTES;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn routes(base: &str) -> Router<Shared> {
    let at = |path: &str| format!("{base}/{{topic}}/{path}");
    Router::new()
        .route(&at("stats"), get(stats))
        .route(&at("partitioned-stats"), get(partitioned_stats))
        .route(&at("internalStats"), get(internal_stats))
        .route(
            &at("partitioned-internalStats"),
            get(partitioned_internal_stats),
        )
}

type Peers = BTreeMap<SessionRef, SessionInfo>;

/// What a request wants to see.
struct View<'a> {
    publishers: bool,
    consumers: bool,
    persistent: bool,
    owner: &'a str,
    peers: &'a Peers,
}

impl Shared {
    /// Who is at the other end of the connections that statistics name.
    async fn peers(&self, stats: &[&TopicStats]) -> Result<Peers, Refusal> {
        let mut sessions: BTreeMap<CoreId, BTreeSet<SessionRef>> = BTreeMap::new();
        for stats in stats {
            let producers = stats.publishers.iter().map(|each| each.session);
            let subscriptions = stats.subscriptions.values();
            let consumers = subscriptions.flat_map(|sub| sub.consumers.iter().map(|c| c.session));
            for session in producers.chain(consumers) {
                sessions.entry(session.core).or_default().insert(session);
            }
        }
        let lists: Vec<(CoreId, Vec<SessionRef>)> = sessions
            .into_iter()
            .map(|(core, sessions)| (core, sessions.into_iter().collect()))
            .collect();
        let requests = lists
            .iter()
            .map(|(core, sessions)| (*core, Request::Sessions(sessions.clone())));
        let replies = self.ask_all(requests.collect()).await?;
        let mut peers = Peers::new();
        for ((_, sessions), reply) in lists.into_iter().zip(replies) {
            if let Reply::Sessions(infos) = reply {
                let known = sessions.into_iter().zip(infos);
                peers.extend(known.filter_map(|(session, info)| Some((session, info?))));
            }
        }
        Ok(peers)
    }
}

async fn stats(
    State(shared): State<Shared>,
    target: Target,
    params: Params,
    headers: HeaderMap,
) -> Answer {
    if target.partitions.is_some() {
        return Err(target.missing());
    }
    let stats = match shared.ask(&target.name, Ask::Stats).await? {
        Reply::Stats(stats) => stats,
        Reply::NoTopic => return Err(absent(&shared, &target).await?),
        other => return Err(target.error(other)),
    };
    let peers = shared.peers(&[&stats]).await?;
    let urls = shared.urls(&headers);
    let view = View {
        publishers: !params.flag("excludePublishers"),
        consumers: !params.flag("excludeConsumers"),
        persistent: target.is_persistent(),
        owner: &urls.broker_id,
        peers: &peers,
    };
    Ok(answer::value(&Value::Object(view.topic(&stats, true))))
}

/// A partition that could be there is missing in another way than a topic that could not.
async fn absent(shared: &Shared, target: &Target) -> Result<Refusal, Refusal> {
    Ok(match shared.parent(&target.name).await? {
        Some(_) => answer::reason(
            StatusCode::NOT_FOUND,
            "Topic partitions were not yet created",
        )
        .into(),
        None => target.missing(),
    })
}

fn not_partitioned(target: &Target) -> Refusal {
    let text = format!("Partitioned Topic {} not found", target.name);
    answer::reason(StatusCode::NOT_FOUND, &text).into()
}

async fn partitioned_stats(
    State(shared): State<Shared>,
    target: Target,
    params: Params,
    headers: HeaderMap,
) -> Answer {
    let Some(partitions) = &target.partitions else {
        return Err(not_partitioned(&target));
    };
    let names = target.topics();
    let mut found: Vec<(String, Box<TopicStats>)> = Vec::new();
    for (name, reply) in names
        .iter()
        .zip(shared.ask_topics(&names, || Ask::Stats).await?)
    {
        match reply {
            Reply::Stats(stats) => found.push((name.to_string(), stats)),
            Reply::NoTopic => {}
            other => return Err(target.error(other)),
        }
    }
    let all: Vec<&TopicStats> = found.iter().map(|(_, stats)| stats.as_ref()).collect();
    let peers = shared.peers(&all).await?;
    let urls = shared.urls(&headers);
    let view = View {
        publishers: !params.flag("excludePublishers"),
        consumers: !params.flag("excludeConsumers"),
        persistent: target.is_persistent(),
        owner: &urls.broker_id,
        peers: &peers,
    };
    let each: Map<String, Value> = found
        .iter()
        .map(|(name, stats)| (name.clone(), Value::Object(view.topic(stats, true))))
        .collect();
    let mut sum = view.topic(&sum(&all), false);
    // A sum has no peers: their entries say what can be added.
    for publisher in sum
        .get_mut("publishers")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        strip(
            publisher,
            &[
                "accessMode",
                "producerName",
                "address",
                "connectedSince",
                "clientVersion",
                "metadata",
            ],
        );
    }
    let subscriptions = sum.get_mut("subscriptions").and_then(Value::as_object_mut);
    for (_, subscription) in subscriptions.into_iter().flatten() {
        strip(subscription, &["activeConsumerName"]);
        let consumers = subscription
            .get_mut("consumers")
            .and_then(Value::as_array_mut);
        for consumer in consumers.into_iter().flatten() {
            strip(
                consumer,
                &["address", "connectedSince", "clientVersion", "metadata"],
            );
        }
    }
    sum.insert("metadata".into(), partitions.json());
    let per_partition = params.flag_or("perPartition", true);
    let each = if per_partition { each } else { Map::new() };
    sum.insert("partitions".into(), Value::Object(each));
    Ok(answer::value(&Value::Object(sum)))
}

fn strip(object: &mut Value, names: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        for name in names {
            object.remove(*name);
        }
    }
}

/// Named texts as an object.
fn texts(named: &[(String, String)]) -> Value {
    let named = named.iter();
    let named: Map<String, Value> = named
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect();
    Value::Object(named)
}

/// Bytes per message of the last window.
fn average(throughput: f64, rate: f64) -> f64 {
    if rate > 0.0 { throughput / rate } else { 0.0 }
}

impl View<'_> {
    fn topic(&self, stats: &TopicStats, owned: bool) -> Map<String, Value> {
        let subs = stats.subscriptions.values();
        let (mut rate_out, mut throughput_out, mut messages_out, mut bytes_out) = (0.0, 0.0, 0, 0);
        let (mut backlog_size, mut ranges) = (0, 0);
        for sub in subs {
            rate_out += sub.rate_out;
            throughput_out += sub.throughput_out;
            messages_out += sub.messages_out;
            bytes_out += sub.bytes_out;
            // What the slowest one holds back.
            backlog_size = backlog_size.max(sub.backlog_size);
            ranges += sub.ack_ranges;
        }
        let limit = if self.persistent { -1 } else { 0 };
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| {
            all.insert(name.to_owned(), value);
        };
        put("msgRateIn", stats.rate_in.into());
        put("msgThroughputIn", stats.throughput_in.into());
        put("msgRateOut", rate_out.into());
        put("msgThroughputOut", throughput_out.into());
        put("bytesInCounter", stats.bytes_in.into());
        put("msgInCounter", stats.messages_in.into());
        put("systemTopicBytesInCounter", 0.into());
        put("bytesOutCounter", bytes_out.into());
        put("msgOutCounter", messages_out.into());
        put("bytesOutInternalCounter", 0.into());
        put(
            "averageMsgSize",
            average(stats.throughput_in, stats.rate_in).into(),
        );
        put("msgChunkPublished", stats.chunked.into());
        put("storageSize", stats.storage_size.into());
        put("backlogSize", backlog_size.into());
        put("backlogQuotaLimitSize", limit.into());
        put("backlogQuotaLimitTime", limit.into());
        put(
            "oldestBacklogMessageAgeSeconds",
            if owned { limit } else { 0 }.into(),
        );
        put("publishRateLimitedTimes", stats.rate_limited.into());
        for name in [
            "earliestMsgPublishTimeInBacklogs",
            "offloadedStorageSize",
            "lastOffloadLedgerId",
            "lastOffloadSuccessTimeStamp",
            "lastOffloadFailureTimeStamp",
            "ongoingTxnCount",
            "abortedTxnCount",
            "committedTxnCount",
        ] {
            put(name, 0.into());
        }
        let publishers: Vec<Value> = match self.publishers {
            true => stats
                .publishers
                .iter()
                .map(|each| self.publisher(each))
                .collect(),
            false => Vec::new(),
        };
        let subscriptions: Map<String, Value> = stats
            .subscriptions
            .iter()
            .map(|(name, sub)| (name.clone(), self.subscription(sub)))
            .collect();
        let (publishers, subscriptions) = (Value::from(publishers), Value::Object(subscriptions));
        let replication = Value::Object(Map::new());
        if self.persistent {
            put("publishers", publishers.clone());
        }
        put("waitingPublishers", stats.waiting_publishers.into());
        if self.persistent {
            put("subscriptions", subscriptions.clone());
            put("replication", replication.clone());
            if owned {
                let deduplication = if stats.deduplication {
                    "Enabled"
                } else {
                    "Disabled"
                };
                put("deduplicationStatus", deduplication.into());
            }
        }
        if let Some(epoch) = stats.epoch.filter(|_| self.persistent) {
            put("topicEpoch", epoch.into());
        }
        put("nonContiguousDeletedMessagesRanges", ranges.into());
        put(
            "nonContiguousDeletedMessagesRangesSerializedSize",
            ranges.saturating_mul(RANGE_BYTES).into(),
        );
        let delayed = stats.subscriptions.values().map(|sub| sub.delayed_memory);
        put(
            "delayedMessageIndexSizeInBytes",
            delayed.sum::<u64>().into(),
        );
        put(
            "compaction",
            json!({
                "lastCompactionRemovedEventCount": 0,
                "lastCompactionSucceedTimestamp": 0,
                "lastCompactionFailedTimestamp": 0,
                "lastCompactionDurationTimeInMills": 0,
            }),
        );
        if owned {
            put("ownerBroker", self.owner.into());
        }
        let (created, published) = match self.persistent {
            true => (stats.created_ms, stats.last_publish_ms),
            false => (0, 0),
        };
        put("topicCreationTimeStamp", created.into());
        put("lastPublishTimeStamp", published.into());
        if !self.persistent {
            put("msgDropRate", stats.drop_rate.into());
            put("publishers", publishers);
            put("subscriptions", subscriptions);
            put("replication", replication);
        }
        all
    }

    fn peer(&self, session: SessionRef) -> SessionInfo {
        self.peers.get(&session).cloned().unwrap_or_default()
    }

    fn publisher(&self, stats: &ProducerStats) -> Value {
        let peer = self.peer(stats.session);
        let mut value = json!({
            "accessMode": stats.access_mode,
            "msgRateIn": stats.rate_in,
            "msgThroughputIn": stats.throughput_in,
            "averageMsgSize": average(stats.throughput_in, stats.rate_in),
            "chunkedMessageRate": 0.0,
            "producerId": stats.id,
            "supportsPartialProducer": false,
            "producerName": stats.name,
            "address": format!("/{}", peer.address),
            "connectedSince": time(stats.connected_ms),
            "clientVersion": peer.client_version,
            "metadata": texts(&stats.metadata),
        });
        if !self.persistent
            && let Some(object) = value.as_object_mut()
        {
            object.insert("msgDropRate".into(), stats.drop_rate.into());
        }
        value
    }

    fn subscription(&self, stats: &SubscriptionStats) -> Value {
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| {
            all.insert(name.to_owned(), value);
        };
        put("msgRateOut", stats.rate_out.into());
        put("msgThroughputOut", stats.throughput_out.into());
        put("bytesOutCounter", stats.bytes_out.into());
        put("msgOutCounter", stats.messages_out.into());
        put("msgRateRedeliver", stats.redeliver_rate.into());
        put("messageAckRate", stats.ack_rate.into());
        put("chunkedMessageRate", 0.0.into());
        put("msgBacklog", stats.backlog.into());
        put("backlogSize", stats.backlog_size.into());
        put("earliestMsgPublishTimeInBacklog", 0.into());
        put("oldestBacklogMessageAgeSeconds", (-1).into());
        put(
            "msgBacklogNoDelayed",
            stats.backlog.saturating_sub(stats.delayed).into(),
        );
        put("blockedSubscriptionOnUnackedMsgs", stats.blocked.into());
        put("msgDelayed", stats.delayed.into());
        put("msgInReplay", stats.in_replay.into());
        put("unackedMessages", stats.unacked.into());
        put("type", stats.kind.into());
        if let Some(active) = &stats.active_consumer {
            put("activeConsumerName", active.as_str().into());
        }
        put("msgRateExpired", 0.0.into());
        put("msgExpired", 0.into());
        put("totalMsgExpired", 0.into());
        put("lastExpireTimestamp", 0.into());
        put("lastConsumedFlowTimestamp", 0.into());
        put("lastConsumedTimestamp", stats.last_consumed_ms.into());
        put("lastAckedTimestamp", stats.last_acked_ms.into());
        put("lastMarkDeleteAdvancedTimestamp", 0.into());
        let consumers: Vec<Value> = match self.consumers {
            true => stats
                .consumers
                .iter()
                .map(|each| self.consumer(each))
                .collect(),
            false => Vec::new(),
        };
        put("consumers", consumers.into());
        put("isDurable", stats.durable.into());
        put("isReplicated", false.into());
        put("allowOutOfOrderDelivery", stats.allow_out_of_order.into());
        if let Some(mode) = stats.key_shared_mode {
            put("keySharedMode", mode.into());
        }
        let draining = stats
            .consumers
            .iter()
            .flat_map(|consumer| &consumer.draining);
        let unacked: u64 = draining
            .clone()
            .map(|(_, unacked, _)| u64::from(*unacked))
            .sum();
        let drained: u64 = stats
            .consumers
            .iter()
            .map(|consumer| consumer.drained)
            .sum();
        put("drainingHashesCount", draining.count().into());
        put("drainingHashesClearedTotal", drained.into());
        put("drainingHashesUnackedMessages", unacked.into());
        put(
            "nonContiguousDeletedMessagesRanges",
            stats.ack_ranges.into(),
        );
        put(
            "nonContiguousDeletedMessagesRangesSerializedSize",
            stats.ack_ranges.saturating_mul(RANGE_BYTES).into(),
        );
        put(
            "delayedMessageIndexSizeInBytes",
            stats.delayed_memory.into(),
        );
        put("subscriptionProperties", texts(&stats.properties));
        for name in [
            "filterProcessedMsgCount",
            "filterAcceptedMsgCount",
            "filterRejectedMsgCount",
            "filterRescheduledMsgCount",
            "dispatchThrottledMsgEventsBySubscriptionLimit",
            "dispatchThrottledBytesEventsBySubscriptionLimit",
            "dispatchThrottledMsgEventsByTopicLimit",
            "dispatchThrottledBytesEventsByTopicLimit",
            "dispatchThrottledMsgEventsByBrokerLimit",
            "dispatchThrottledBytesEventsByBrokerLimit",
        ] {
            put(name, 0.into());
        }
        if !self.persistent {
            put("msgDropRate", stats.drop_rate.into());
        }
        put("replicated", false.into());
        put("durable", stats.durable.into());
        Value::Object(all)
    }

    fn consumer(&self, stats: &ConsumerStats) -> Value {
        let peer = self.peer(stats.session);
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| {
            all.insert(name.to_owned(), value);
        };
        put("msgRateOut", stats.rate_out.into());
        put("msgThroughputOut", stats.throughput_out.into());
        put("bytesOutCounter", stats.bytes_out.into());
        put("msgOutCounter", stats.messages_out.into());
        put("msgRateRedeliver", stats.redeliver_rate.into());
        put("messageAckRate", stats.ack_rate.into());
        put("chunkedMessageRate", 0.0.into());
        put("consumerName", stats.name.as_str().into());
        put("availablePermits", stats.permits.into());
        put("unackedMessages", stats.unacked.into());
        put("avgMessagesPerEntry", stats.messages_per_entry.into());
        put("blockedConsumerOnUnackedMsgs", stats.blocked.into());
        let draining: u64 = stats
            .draining
            .iter()
            .map(|(_, unacked, _)| u64::from(*unacked))
            .sum();
        put("drainingHashesCount", stats.draining.len().into());
        put("drainingHashesClearedTotal", stats.drained.into());
        put("drainingHashesUnackedMessages", draining.into());
        if stats.drains {
            let each = stats.draining.iter().map(|(hash, unacked, blocked)| {
                json!({ "hash": hash, "unackMsgs": unacked, "blockedAttempts": blocked })
            });
            put("drainingHashes", each.collect());
        }
        put("address", format!("/{}", peer.address).into());
        put("connectedSince", time(stats.connected_ms).into());
        put("clientVersion", peer.client_version.into());
        put("lastAckedTimestamp", stats.last_acked_ms.into());
        put("lastConsumedTimestamp", stats.last_consumed_ms.into());
        put("firstMessagesSentTimestamp", stats.first_sent_ms.into());
        put("lastConsumedFlowTimestamp", 0.into());
        put("firstConsumedFlowTimestamp", 0.into());
        if let Some(ranges) = &stats.key_ranges {
            let ranges = ranges.iter().map(|(from, to)| json!([from, to]));
            put("keyHashRangeArrays", ranges.collect());
        }
        put("metadata", texts(&stats.metadata));
        put("lastAckedTime", time(stats.last_acked_ms).into());
        put("lastConsumedTime", time(stats.last_consumed_ms).into());
        Value::Object(all)
    }
}
