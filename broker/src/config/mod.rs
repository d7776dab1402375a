//! Every setting of the broker, each said once: name, type, default, unit, range, meaning.
//!
//! A setting carries the name Apache Pulsar gives it in `broker.conf`; Vela's own follow the same form.
//! It is set by a flag in kebab case (`--max-message-size`), else by an environment variable
//! (`VELA_MAX_MESSAGE_SIZE`), else it has its default: see [`resolve`]. A dynamic one may be set while the broker runs,
//! which goes before all of these, also after a restart, until it is deleted: see [`DYNAMIC`].

mod definition;
mod resolve;
mod value;

pub use definition::Definition;
pub use resolve::{Effective, Lookup, SettingError, Source, resolve};
pub use value::{
    BufferSize, CacheSize, CorePorts, InactiveTopicMode, LogFormat, LogLevel, SchemaStrategy,
    Switch, Sync, TopicType, Value,
};

use vela_limiter::Mode;

/// Keys of the metadata store with values that were set while running: `config/NAME`, the value is the text as it was given.
pub const DYNAMIC: &str = "config/";

macro_rules! range {
    () => {
        None
    };
    ($low:literal, $high:literal) => {
        Some(($low, $high))
    };
}

macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty = $default:expr,
        $name:literal $(in $low:literal..=$high:literal)? $(as $unit:literal)? $(aka $alias:literal)? $(, $dynamic:ident)?;
    )+) => {
        /// The value of every setting. Plain data: the engine gets it as it is.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Settings {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        /// All settings in the order in which they are shown.
        pub static DEFINITIONS: &[Definition] = &[
            $( Definition {
                name: $name,
                field: stringify!($field),
                aliases: &[$($alias)?],
                unit: concat!($($unit)?),
                doc: concat!($($doc),+),
                dynamic: matches!(concat!($(stringify!($dynamic))?).as_bytes(), b"dynamic"),
                range: range!($($low, $high)?),
                allowed: <$type as Value>::allowed,
                set: |settings, text, range| match <$type as Value>::parse(text, range) {
                    Some(value) => { settings.$field = value; true }
                    None => false,
                },
                get: |settings| settings.$field.show(),
            }, )+
        ];
    };
}

settings! {
    /// Port of the binary protocol. 0 takes any free port.
    broker_service_port: u16 = 6650,
    "brokerServicePort" in 0..=65535 aka "port";

    /// Port of HTTP: admin API and metrics. 0 takes any free port.
    web_service_port: u16 = 8080,
    "webServicePort" in 0..=65535 aka "web-port";

    /// HTTP connections that are served at once. Further ones wait to be accepted.
    max_http_server_connections: u64 = 2048,
    "maxHttpServerConnections" in 1..=1000000 as "connections";

    /// How long an HTTP connection may be idle, and how long the headers of a request, its body, or reading a part of the answer may take.
    http_server_idle_timeout: u64 = 30_000,
    "httpServerIdleTimeout" in 100..=86400000 as "milliseconds";

    /// Largest headers of an HTTP request.
    http_max_request_header_size: u64 = 8192,
    "httpMaxRequestHeaderSize" in 8192..=1048576 as "bytes";

    /// Largest body of an HTTP request. All bodies at once take at most 64 MiB.
    http_max_request_size: u64 = 1_048_576,
    "httpMaxRequestSize" in 1024..=67108864 as "bytes";

    /// Address that both ports listen on.
    bind_address: String = "0.0.0.0".to_owned(),
    "bindAddress" aka "bind";

    /// Host name or address that lookups answer with. Empty: the address the client connected to.
    advertised_address: Option<String> = None,
    "advertisedAddress";

    /// Name of the cluster this broker is.
    cluster_name: String = "standalone".to_owned(),
    "clusterName";

    /// Largest payload of one message. A frame may be 10 KiB larger.
    max_message_size: u64 = 5_242_880,
    "maxMessageSize" in 1024..=1073741824 as "bytes";

    /// How often an idle connection is pinged; a connection silent for twice as long is closed.
    keep_alive_interval_seconds: u64 = 30,
    "keepAliveIntervalSeconds" in 1..=86400 as "seconds";

    /// How long a probe of an older connection may take before its producer or consumer name is given away. 0 turns the probe off.
    connection_liveness_check_timeout_millis: u64 = 5000,
    "connectionLivenessCheckTimeoutMillis" in 0..=3600000 as "milliseconds", dynamic;

    /// Publishes of one connection that may wait for their receipt before its socket is read no further.
    max_pending_publish_requests_per_connection: u64 = 1000,
    "maxPendingPublishRequestsPerConnection" in 1..=10000000 as "messages", dynamic;

    /// Read no requests of a connection whose socket takes no more, from pulsarChannelWriteBufferHighWaterMark on. Without it that happens at 8 MiB of waiting output.
    pulsar_channel_pause_receiving_requests_if_unwritable: bool = false,
    "pulsarChannelPauseReceivingRequestsIfUnwritable";

    /// Waiting output of a connection at which its requests are not read, if pulsarChannelPauseReceivingRequestsIfUnwritable is on.
    pulsar_channel_write_buffer_high_water_mark: u64 = 65_536,
    "pulsarChannelWriteBufferHighWaterMark" in 1..=8388608 as "bytes";

    /// Waiting output of a connection at which its requests are read again, if pulsarChannelPauseReceivingRequestsIfUnwritable is on.
    pulsar_channel_write_buffer_low_water_mark: u64 = 32_768,
    "pulsarChannelWriteBufferLowWaterMark" in 0..=1048576 as "bytes";

    /// How long such a connection is served slowly when its requests are read again. 0: not at all.
    pulsar_channel_pause_receiving_cooldown_ms: u64 = 5000,
    "pulsarChannelPauseReceivingCooldownMs" in 0..=3600000 as "milliseconds";

    /// Requests that are taken of it in each pulsarChannelPauseReceivingCooldownRateLimitPeriodMs of that time.
    pulsar_channel_pause_receiving_cooldown_rate_limit_permits: u64 = 5,
    "pulsarChannelPauseReceivingCooldownRateLimitPermits" in 1..=1000000 as "requests";

    /// Length of such a period.
    pulsar_channel_pause_receiving_cooldown_rate_limit_period_ms: u64 = 10,
    "pulsarChannelPauseReceivingCooldownRateLimitPeriodMs" in 1..=3600000 as "milliseconds";

    /// Messages that the producers of one topic may publish per second, unless its namespace has a rate of its own. 0: no limit.
    max_publish_rate_per_topic_in_messages: u64 = 0,
    "maxPublishRatePerTopicInMessages" in 0..=2147483647 as "messages/second", dynamic;

    /// Bytes that the producers of one topic may publish per second, unless its namespace has a rate of its own. 0: no limit.
    max_publish_rate_per_topic_in_bytes: u64 = 0,
    "maxPublishRatePerTopicInBytes" in 0..=9223372036854775807 as "bytes/second", dynamic;

    /// Messages that all producers of this broker together may publish per second. 0: no limit.
    broker_publisher_throttling_max_message_rate: u64 = 0,
    "brokerPublisherThrottlingMaxMessageRate" in 0..=2147483647 as "messages/second", dynamic;

    /// Bytes that all producers of this broker together may publish per second. 0: no limit.
    broker_publisher_throttling_max_byte_rate: u64 = 0,
    "brokerPublisherThrottlingMaxByteRate" in 0..=9223372036854775807 as "bytes/second", dynamic;

    /// Serve persistent topics.
    enable_persistent_topics: bool = true,
    "enablePersistentTopics";

    /// Serve non-persistent topics.
    enable_non_persistent_topics: bool = true,
    "enableNonPersistentTopics";

    /// Messages of one connection to non-persistent topics that may wait for their receipt; more are dropped.
    max_concurrent_non_persistent_message_per_connection: u64 = 1000,
    "maxConcurrentNonPersistentMessagePerConnection" in 0..=10000000 as "messages", dynamic;

    /// Delete topics that nobody uses, unless a policy of their own or of their namespace says otherwise.
    broker_delete_inactive_topics_enabled: bool = true,
    "brokerDeleteInactiveTopicsEnabled", dynamic;

    /// How often unused topics are looked for.
    broker_delete_inactive_topics_frequency_seconds: u64 = 60,
    "brokerDeleteInactiveTopicsFrequencySeconds" in 1..=31536000 as "seconds", dynamic;

    /// How long a topic must have been unused to be deleted. 0: brokerDeleteInactiveTopicsFrequencySeconds.
    broker_delete_inactive_topics_max_inactive_duration_seconds: u64 = 0,
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds" in 0..=31536000 as "seconds", dynamic;

    /// Delete partitioned topics, too, when all their partitions are gone.
    broker_delete_inactive_partitioned_topic_metadata_enabled: bool = false,
    "brokerDeleteInactivePartitionedTopicMetadataEnabled", dynamic;

    /// Which topics nobody uses, of those without producers and consumers.
    broker_delete_inactive_topics_mode: InactiveTopicMode = InactiveTopicMode::NoSubscriptions,
    "brokerDeleteInactiveTopicsMode", dynamic;

    /// Create a topic when a client first names it.
    allow_auto_topic_creation: bool = true,
    "allowAutoTopicCreation", dynamic;

    /// The kind of topic that is created then.
    allow_auto_topic_creation_type: TopicType = TopicType::NonPartitioned,
    "allowAutoTopicCreationType", dynamic;

    /// Partitions of a partitioned topic that is created then.
    default_num_partitions: u32 = 1,
    "defaultNumPartitions" in 1..=100000 as "partitions", dynamic;

    /// Whether DELETE of a namespace with force=true deletes its topics too, whoever is connected.
    force_delete_namespace_allowed: bool = false,
    "forceDeleteNamespaceAllowed", dynamic;

    /// Whether DELETE of a tenant with force=true deletes its namespaces too.
    force_delete_tenant_allowed: bool = false,
    "forceDeleteTenantAllowed", dynamic;

    /// Create a subscription when a consumer first names it.
    allow_auto_subscription_creation: bool = true,
    "allowAutoSubscriptionCreation", dynamic;

    /// Unacknowledged messages at which a consumer gets no more. 0 turns the limit off.
    max_unacked_messages_per_consumer: u64 = 50_000,
    "maxUnackedMessagesPerConsumer" in 0..=1000000000 as "messages", dynamic;

    /// Unacknowledged messages at which a shared subscription gets no more. 0 turns the limit off.
    max_unacked_messages_per_subscription: u64 = 200_000,
    "maxUnackedMessagesPerSubscription" in 0..=1000000000 as "messages", dynamic;

    /// Unacknowledged messages of the whole broker, split over its cores, at which subscriptions that hold much get no more. 0 turns the limit off.
    max_unacked_messages_per_broker: u64 = 0,
    "maxUnackedMessagesPerBroker" in 0..=1000000000 as "messages", dynamic;

    /// The part of that limit that a subscription may hold while the broker is at it.
    max_unacked_messages_per_subscription_on_broker_blocked: f64 = 0.16,
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked" in 0..=1, dynamic;

    /// Take acknowledgments of parts of batches. Off: a batch is acknowledged as a whole or not at all.
    acknowledgment_at_batch_index_level_enabled: bool = true,
    "acknowledgmentAtBatchIndexLevelEnabled", dynamic;

    /// Entries after which a ledger is closed and the next begun.
    managed_ledger_max_entries_per_ledger: u64 = 50_000,
    "managedLedgerMaxEntriesPerLedger" in 1..=1000000000 as "entries";

    /// Age after which a ledger is closed and the next begun.
    managed_ledger_max_ledger_rollover_time_minutes: u64 = 240,
    "managedLedgerMaxLedgerRolloverTimeMinutes" in 1..=5256000 as "minutes";

    /// Bytes after which a ledger is closed and the next begun.
    managed_ledger_max_size_per_ledger_mbytes: u64 = 2048,
    "managedLedgerMaxSizePerLedgerMbytes" in 1..=1048576 as "MiB";

    /// Memory of the whole broker that caches log chunks for reads; while bufferMemory is short it gives way. auto: a fifth of bufferMemory, at most 64.
    managed_ledger_cache_size_mb: CacheSize = CacheSize::Auto,
    "managedLedgerCacheSizeMB" in 1..=1048576 as "MiB";

    /// Accepted for compatibility, without effect: the cache holds chunks of the log as they were written or read back, never slices of receive memory, so there is nothing that a copy would free.
    managed_ledger_cache_copy_entries: bool = false,
    "managedLedgerCacheCopyEntries", dynamic;

    /// Connections this broker accepts at once. 0: no limit.
    broker_max_connections: u64 = 0,
    "brokerMaxConnections" in 0..=10000000 as "connections", dynamic;

    /// Connections this broker accepts at once from one address. 0: no limit.
    broker_max_connections_per_ip: u64 = 0,
    "brokerMaxConnectionsPerIp" in 0..=10000000 as "connections", dynamic;

    /// Producers and consumers that one connection may have open at once. 0: no limit.
    max_clients_per_connection: u64 = 50_000,
    "maxClientsPerConnection" in 0..=10000000 as "clients", dynamic;

    /// Producers that one topic may have at once, unless a policy says otherwise. 0: no limit.
    max_producers_per_topic: u64 = 0,
    "maxProducersPerTopic" in 0..=10000000 as "producers", dynamic;

    /// Producers from one address that one topic may have at once. 0: no limit.
    max_same_address_producers_per_topic: u64 = 0,
    "maxSameAddressProducersPerTopic" in 0..=10000000 as "producers", dynamic;

    /// Consumers that one topic may have at once, unless a policy says otherwise. 0: no limit.
    max_consumers_per_topic: u64 = 0,
    "maxConsumersPerTopic" in 0..=10000000 as "consumers", dynamic;

    /// Consumers from one address that one topic may have at once. 0: no limit.
    max_same_address_consumers_per_topic: u64 = 0,
    "maxSameAddressConsumersPerTopic" in 0..=10000000 as "consumers", dynamic;

    /// Consumers that one subscription may have at once, unless a policy says otherwise. 0: no limit.
    max_consumers_per_subscription: u64 = 0,
    "maxConsumersPerSubscription" in 0..=10000000 as "consumers", dynamic;

    /// Subscriptions that one topic may have, unless a policy says otherwise. 0: no limit.
    max_subscriptions_per_topic: u64 = 0,
    "maxSubscriptionsPerTopic" in 0..=10000000 as "subscriptions", dynamic;

    /// Topics that one namespace may have, unless a policy says otherwise: persistent ones, every partition counts. 0: no limit.
    max_topics_per_namespace: u64 = 0,
    "maxTopicsPerNamespace" in 0..=10000000 as "topics", dynamic;

    /// Which schemas of a topic may follow one another, unless a policy says otherwise.
    schema_compatibility_strategy: SchemaStrategy = SchemaStrategy::Full,
    "schemaCompatibilityStrategy";

    /// Refuse producers that do not encrypt, and messages that are not encrypted, on every topic.
    encryption_require_on_producer: bool = false,
    "encryptionRequireOnProducer", dynamic;

    /// Longest delay that a message may ask for, unless its namespace says otherwise. 0: no limit.
    delayed_delivery_max_delay_in_millis: u64 = 0,
    "delayedDeliveryMaxDelayInMillis" in 0..=9223372036854775807 as "milliseconds", dynamic;

    /// Keep messages back on shared and key_shared subscriptions until the time that their producer has set, unless a namespace's policy says otherwise. Off: they are delivered at once.
    delayed_delivery_enabled: bool = true,
    "delayedDeliveryEnabled", dynamic;

    /// How exactly that time is kept. A message is delivered at most an eighth of this late, and at once if its time comes within this.
    delayed_delivery_tick_time_millis: u64 = 1000,
    "delayedDeliveryTickTimeMillis" in 1..=3600000 as "milliseconds", dynamic;

    /// Keep messages back as well whose time comes within delayedDeliveryTickTimeMillis: none is delivered early.
    is_delayed_delivery_deliver_at_time_strict: bool = false,
    "isDelayedDeliveryDeliverAtTimeStrict", dynamic;

    /// Store a message that a producer sends again under the same sequence id once, unless a policy says otherwise.
    broker_deduplication_enabled: bool = false,
    "brokerDeduplicationEnabled", dynamic;

    /// Producer names that deduplication remembers per topic. One more takes the place of the one that has been gone the longest, and is refused if all are connected.
    broker_deduplication_max_number_of_producers: u64 = 10_000,
    "brokerDeduplicationMaxNumberOfProducers" in 1..=10000000 as "producers", dynamic;

    /// How long deduplication remembers a producer that is not connected. A start of the broker begins this time anew.
    broker_deduplication_producer_inactivity_timeout_minutes: u64 = 360,
    "brokerDeduplicationProducerInactivityTimeoutMinutes" in 1..=5256000 as "minutes", dynamic;

    /// Accepted for compatibility, without effect: sequence ids are a part of the log itself, so no snapshot of them can be behind it.
    broker_deduplication_entries_interval: u64 = 1000,
    "brokerDeduplicationEntriesInterval" in 1..=2147483647 as "entries", dynamic;

    /// Accepted for compatibility, without effect, as brokerDeduplicationEntriesInterval.
    broker_deduplication_snapshot_interval_seconds: u64 = 120,
    "brokerDeduplicationSnapshotIntervalSeconds" in 0..=2147483647 as "seconds", dynamic;

    /// Largest metadata of a consumer, its keys and values together.
    max_consumer_metadata_size: u64 = 1024,
    "maxConsumerMetadataSize" in 0..=1048576 as "bytes", dynamic;

    /// Entries a shared subscription gives one consumer before it turns to the next.
    dispatcher_max_round_robin_batch_size: u64 = 20,
    "dispatcherMaxRoundRobinBatchSize" in 1..=100000 as "entries", dynamic;

    /// Patterns of topic names are applied by the broker. If not, clients get whole lists, and there are no watchers of topic lists.
    enable_broker_side_subscription_pattern_evaluation: bool = true,
    "enableBrokerSideSubscriptionPatternEvaluation", dynamic;

    /// Clients with a pattern are told when topics are created and deleted, instead of asking again and again.
    enable_broker_topic_list_watcher: bool = true,
    "enableBrokerTopicListWatcher", dynamic;

    /// Longest pattern of topic names that the broker applies.
    subscription_pattern_max_length: u64 = 50,
    "subscriptionPatternMaxLength" in 1..=1000 as "characters", dynamic;
    /// Look at the credit of an exclusive or failover consumer before every entry. Off: credit is turned into a run of entries by the average messages per entry, and may be overdrawn by that run.
    precise_dispatcher_flow_control: bool = false,
    "preciseDispatcherFlowControl", dynamic;

    /// Time from a change of a failover subscription's active consumer until the new one is served. 0: at once.
    active_consumer_failover_delay_time_millis: u64 = 1000,
    "activeConsumerFailoverDelayTimeMillis" in 0..=3600000 as "milliseconds", dynamic;

    /// Choose the active consumer of a failover subscription by a ring of hashes on partitions, too, not by the partition's index.
    active_consumer_failover_consistent_hashing: bool = false,
    "activeConsumerFailoverConsistentHashing", dynamic;

    /// Serve key-shared subscriptions.
    subscription_key_shared_enable: bool = true,
    "subscriptionKeySharedEnable", dynamic;

    /// Share the keys of a key-shared subscription out by consistent hashing. Off: each newcomer gets half of the largest range. Holds for subscriptions that get their first consumer afterwards.
    subscription_key_shared_use_consistent_hashing: bool = true,
    "subscriptionKeySharedUseConsistentHashing", dynamic;

    /// Points of each consumer on the ring of hashes. More share keys out more evenly and make joining and leaving dearer.
    subscription_key_shared_consistent_hashing_replica_points: u64 = 100,
    "subscriptionKeySharedConsistentHashingReplicaPoints" in 1..=10000 as "points", dynamic;

    /// Entries of a key-shared subscription that may wait for their consumers while reading goes on past them, for each consumer. About 150 bytes each. 0: no limit of its own.
    key_shared_look_ahead_msg_in_replay_threshold_per_consumer: u64 = 4000,
    "keySharedLookAheadMsgInReplayThresholdPerConsumer" in 0..=1000000 as "entries", dynamic;

    /// The same for the whole subscription. 0: no limit of its own; if both are 0, the limits on unacknowledged messages count.
    key_shared_look_ahead_msg_in_replay_threshold_per_subscription: u64 = 40000,
    "keySharedLookAheadMsgInReplayThresholdPerSubscription" in 0..=1000000 as "entries", dynamic;

    /// Directory that holds the log and the metadata.
    data_dir: String = "./data".to_owned(),
    "dataDir";

    /// When a publish or acknowledgement counts as done: on disk (always), on disk at the latest after syncIntervalMillis (interval), or handed to the kernel (never).
    sync: Sync = Sync::Always,
    "sync";

    /// Longest time between two syncs with sync=interval.
    sync_interval_millis: u64 = 100,
    "syncIntervalMillis" in 1..=60000 as "milliseconds";

    /// CPU cores to run on, the first ones the process is allowed. 0: all of them.
    cores: u16 = 0,
    "cores" in 0..=1024 as "cores";

    /// Log streams of a new data directory; fixed when it is created. 0: one per core.
    shards: u32 = 0,
    "shards" in 0..=1024 as "shards";

    /// Listen on one port more per core, which lookups answer with: off, or the first port. 0 takes any free ports.
    core_ports: CorePorts = CorePorts::Off,
    "corePorts";

    /// How long a lightly loaded connection's bytes may wait to be read together with others. 0: lowest latency, highest cost per message.
    tick_us: u64 = 500,
    "tickUs" in 0..=10000 as "microseconds";

    /// Size of one segment file of the log.
    segment_size_mb: u64 = 64,
    "segmentSizeMb" in 8..=4096 as "MiB";

    /// Dropped segment files that one shard keeps to use them again instead of making new ones: as many as it used in the last minutes, up to this, and no more than an eighth of the free disk. Two are always kept.
    spare_segments_max_mb: u64 = 2048,
    "spareSegmentsMaxMb" in 0..=1048576 as "MiB";

    /// Bytes of one shard's log that may wait to be durable before publishes have to wait.
    log_buffer_mb: u64 = 64,
    "logBufferMb" in 8..=65536 as "MiB";

    /// Memory for all buffers together: inbound frames, log chunks, read cache, output. 0: half of what the control group or the machine has.
    buffer_memory: u64 = 0,
    "bufferMemory" in 0..=1073741824 as "MiB", dynamic;

    /// Limit of the memory that inbound frames keep alive, and of the bytes of unanswered publishes: above it sockets are not read, at half of it they are again. auto: half of bufferMemory.
    max_message_publish_buffer_size_in_mb: BufferSize = BufferSize::Auto,
    "maxMessagePublishBufferSizeInMB" as "MiB", dynamic;

    /// What that limit does to inbound frames: nothing and uncounted (disabled), nothing (tracking), applies while bufferMemory is 85 % used (auto), applies (enabled).
    in_progress_request_frame_memory_limit_enabled: Mode = Mode::Auto,
    "inProgressRequestFrameMemoryLimitEnabled", dynamic;

    /// From 75 % of that limit, stop connections that retain more than their share of it before all others; and where several connections publish, let none have more than its share of 2 MiB per core unanswered.
    memory_fairness: Switch = Switch::On,
    "memoryFairness";

    /// How long a frame that has begun to arrive may make no progress before its connection is closed.
    frame_timeout: u64 = 30,
    "frameTimeout" in 1..=86400 as "seconds";

    /// Smallest size of a core's receive buffer.
    broker_adaptive_recv_byte_buf_allocator_minimum_size: u64 = 1024,
    "brokerAdaptiveRecvByteBufAllocatorMinimumSize" in 64..=67108864 as "bytes";

    /// Its first size.
    broker_adaptive_recv_byte_buf_allocator_initial_size: u64 = 16_384,
    "brokerAdaptiveRecvByteBufAllocatorInitialSize" in 64..=67108864 as "bytes";

    /// Its largest size: the most that one read brings, and the most that a waiting small frame can keep alive.
    broker_adaptive_recv_byte_buf_allocator_maximum_size: u64 = 1_048_576,
    "brokerAdaptiveRecvByteBufAllocatorMaximumSize" in 1024..=67108864 as "bytes";

    /// A test aid, to see the broker on slow storage: every log write of the first faultSyncDelaySeconds takes this much longer.
    fault_sync_delay_millis: u64 = 0,
    "faultSyncDelayMillis" in 0..=60000 as "milliseconds";

    /// How long faultSyncDelayMillis applies, from the start. 0: always.
    fault_sync_delay_seconds: u64 = 0,
    "faultSyncDelaySeconds" in 0..=86400 as "seconds";

    /// A test aid, to see the broker while storage does nothing at all: log writes wait while this file exists. Empty: none.
    fault_sync_hold_file: Option<String> = None,
    "faultSyncHoldFile";

    /// Memory each core registers with the kernel for ring I/O; it counts three times against the memlock limit.
    io_memory_kb: u64 = 64,
    "ioMemoryKb" in 64..=1048576 as "KiB";

    /// Form of the broker's own log lines on standard error.
    log_format: LogFormat = LogFormat::Text,
    "logFormat";

    /// Least severe level that is logged.
    log_level: LogLevel = LogLevel::Info,
    "logLevel", dynamic;
}

/// The definition of a setting by its Pulsar name.
#[must_use]
pub fn definition(name: &str) -> Option<&'static Definition> {
    DEFINITIONS
        .iter()
        .find(|definition| definition.name == name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_flags_and_variables_are_unique_and_derive_from_each_other() {
        let mut seen = HashSet::new();
        for definition in DEFINITIONS {
            // camelCase of the field is the name, but for Pulsar's capital "MB".
            let camel: String = definition
                .field
                .split('_')
                .enumerate()
                .map(|(index, word)| match index {
                    0 => word.to_owned(),
                    _ => word.replacen(&word[..1], &word[..1].to_uppercase(), 1),
                })
                .collect();
            assert_eq!(camel.to_lowercase(), definition.name.to_lowercase());
            assert!(seen.insert(definition.flag()), "{}", definition.name);
            for alias in definition.aliases {
                assert!(seen.insert((*alias).to_owned()), "{alias}");
            }
            assert!(definition.doc.trim().len() > 10, "{}", definition.name);
        }
    }

    #[test]
    fn every_default_is_itself_an_allowed_value() {
        let defaults = Settings::default();
        for definition in DEFINITIONS {
            let mut settings = defaults.clone();
            let text = definition.get(&defaults);
            assert!(
                definition.set(&mut settings, &text),
                "{} = {text}",
                definition.name
            );
            assert_eq!(settings, defaults, "{}", definition.name);
        }
    }

    #[test]
    fn dynamic_is_read_from_the_table() {
        assert!(definition("brokerMaxConnections").unwrap().dynamic);
        assert!(!definition("dataDir").unwrap().dynamic);
    }
}
