//! What the engine needs to know of the configuration. `crate::config` documents each setting for people.

use super::schema::Strategy;

/// Which kind of topic a first use creates.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum AutoTopicType {
    /// A plain topic.
    NonPartitioned,
    /// A partitioned topic of [`Settings::default_num_partitions`] partitions.
    Partitioned,
}

/// What a throttle does with frames that have been read.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum PublishPacing {
    /// They wait in order; the throttle is asked again after each.
    Frame,
    /// They all reach their topics; the throttle acts on the next read. What one read brought may exceed a rate or a bound, and is paid
    /// back as debt.
    Read,
}

/// The engine's part of the settings; names are Pulsar's, in Rust's spelling.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefix of generated producer names.
    pub cluster_name: String,
    /// Largest message, bytes.
    pub max_message_size: u32,
    /// Between keep-alive checks, seconds; 0 = off.
    pub keep_alive_interval_seconds: u32,
    /// How long the holder of a contested name may take to answer a PING, milliseconds; 0 = the newcomer fails at once.
    pub connection_liveness_check_timeout_millis: u32,
    /// Unanswered SENDs of a connection at which its frames wait; they go on at half of it.
    pub max_pending_publish_requests_per_connection: u32,
    /// A connection whose socket takes no more reads no requests above the high mark (PIP-434).
    pub pause_receiving_if_unwritable: bool,
    /// That mark, bytes.
    pub write_buffer_high_water_mark: u32,
    /// Output at which it goes on, bytes.
    pub write_buffer_low_water_mark: u32,
    /// How long its requests come slowly after that, milliseconds; 0 = not at all.
    pub pause_receiving_cooldown_ms: u32,
    /// Requests in each period of that time.
    pub pause_receiving_cooldown_permits: u32,
    /// The period, milliseconds.
    pub pause_receiving_cooldown_period_ms: u32,
    /// Bytes of unanswered SENDs at which connections wait, over all cores; 0 or less = no limit.
    pub max_message_publish_buffer_bytes: i64,
    /// Connections with more than their share of the unanswered SENDs wait for their own.
    pub memory_fairness: bool,
    /// What throttles do with frames that have been read.
    pub publish_pacing: PublishPacing,
    /// Publish rate of each topic, messages per second; 0 = no limit. A namespace's own rate wins.
    pub max_publish_rate_per_topic_in_messages: u64,
    /// The same in bytes per second.
    pub max_publish_rate_per_topic_in_bytes: u64,
    /// Publish rate of the whole broker, messages per second; 0 = no limit.
    pub broker_publisher_throttling_max_message_rate: u64,
    /// The same in bytes per second.
    pub broker_publisher_throttling_max_byte_rate: u64,
    /// Persistent topics are served.
    pub enable_persistent_topics: bool,
    /// Non-persistent topics are served.
    pub enable_non_persistent_topics: bool,
    /// Unanswered SENDs of a connection to non-persistent topics beyond which more are dropped.
    pub max_concurrent_non_persistent_message_per_connection: u32,
    /// Topics that nobody uses are deleted. Policies win.
    pub broker_delete_inactive_topics_enabled: bool,
    /// How often unused topics are looked for, milliseconds.
    pub broker_delete_inactive_topics_frequency_ms: u64,
    /// How long an unused topic stays, milliseconds; 0 = as long as the time between two looks.
    pub broker_delete_inactive_topics_max_inactive_duration_ms: u64,
    /// Subscriptions without backlog do not keep a topic.
    pub broker_delete_inactive_topics_when_caught_up: bool,
    /// Topics appear on first use.
    pub allow_auto_topic_creation: bool,
    /// What appears then.
    pub allow_auto_topic_creation_type: AutoTopicType,
    /// Partitions of an automatically created partitioned topic.
    pub default_num_partitions: u32,
    /// Subscriptions appear on first use.
    pub allow_auto_subscription_creation: bool,
    /// Unacknowledged messages of a Shared consumer at which delivery to it stops; 0 = off.
    pub max_unacked_messages_per_consumer: u32,
    /// The same for a whole Shared subscription; 0 = off.
    pub max_unacked_messages_per_subscription: u32,
    /// The same for the whole broker, each core having its part; 0 = off.
    pub max_unacked_messages_per_broker: u32,
    /// The part of that limit up to which a subscription reads on while the broker is at it.
    pub max_unacked_messages_per_subscription_on_broker_blocked: f64,
    /// Parts of batches can be acknowledged.
    pub acknowledgment_at_batch_index_level_enabled: bool,
    /// Entries at which a ledger is closed.
    pub managed_ledger_max_entries_per_ledger: u32,
    /// Age at which a ledger is closed, milliseconds.
    pub managed_ledger_max_ledger_rollover_time_ms: u64,
    /// Size at which a ledger is closed, bytes.
    pub managed_ledger_max_size_per_ledger: u64,
    /// Producers and consumers of one connection; 0 = no limit.
    pub max_clients_per_connection: u32,
    /// Producers of a topic at once; 0 = no limit. Policies win.
    pub max_producers_per_topic: u32,
    /// The same from one address; 0 = no limit.
    pub max_same_address_producers_per_topic: u32,
    /// Consumers of a topic at once; 0 = no limit. Policies win.
    pub max_consumers_per_topic: u32,
    /// The same from one address; 0 = no limit.
    pub max_same_address_consumers_per_topic: u32,
    /// Which schemas may follow one another. Policies win.
    pub schema_compatibility_strategy: Strategy,
    /// Topics of a namespace; 0 = no limit. Policies win.
    pub max_topics_per_namespace: u32,
    /// Consumers of a subscription at once; 0 = no limit. Policies win.
    pub max_consumers_per_subscription: u32,
    /// Subscriptions of a topic; 0 = no limit. Policies win.
    pub max_subscriptions_per_topic: u32,
    /// Producers must encrypt, whatever policies say.
    pub encryption_require_on_producer: bool,
    /// Longest delay of a message, milliseconds; 0 = no limit. A namespace's own wins.
    pub delayed_delivery_max_delay_in_millis: u64,
    /// Shared and Key_Shared subscriptions keep messages back until their time. A namespace's own policy wins.
    pub delayed_delivery_enabled: bool,
    /// How exactly, milliseconds. A namespace's own wins.
    pub delayed_delivery_tick_time_millis: u64,
    /// Messages that come due within that time are kept back, too.
    pub is_delayed_delivery_deliver_at_time_strict: bool,
    /// Delayed entries of a subscription whose times are kept in memory; the log is read again for more.
    pub delayed_delivery_max_entries_in_memory: u32,
    /// Topics tell messages apart by their sequence ids, unless policies say otherwise.
    pub broker_deduplication_enabled: bool,
    /// Producer names that deduplication remembers per topic.
    pub broker_deduplication_max_number_of_producers: u32,
    /// How long it remembers one that is not connected, milliseconds.
    pub broker_deduplication_producer_inactivity_timeout_ms: u64,
    /// Metadata of a consumer (names and values), bytes.
    pub max_consumer_metadata_size: u32,
    /// Entries a Shared consumer gets in one turn.
    pub dispatcher_max_round_robin_batch_size: u32,
    /// Patterns of topic names are applied here; else clients get whole lists and there are no watchers.
    pub enable_broker_side_subscription_pattern_evaluation: bool,
    /// Clients may watch topic lists.
    pub enable_broker_topic_list_watcher: bool,
    /// Longest pattern that is applied here, characters.
    pub subscription_pattern_max_length: u32,
    /// Exclusive and Failover: the credit is looked at before every entry, not once for a run of entries.
    pub precise_dispatcher_flow_control: bool,
    /// From a change of a Failover subscription's active consumer until it is served, milliseconds.
    pub active_consumer_failover_delay_time_millis: u64,
    /// Failover on partitions, too, chooses by a ring of hashes rather than by the partition's index.
    pub active_consumer_failover_consistent_hashing: bool,
    /// Key_Shared subscriptions are served.
    pub subscription_key_shared_enable: bool,
    /// Their keys are shared out by consistent hashing, not by halving ranges.
    pub subscription_key_shared_use_consistent_hashing: bool,
    /// Points of a consumer on the ring of hashes.
    pub subscription_key_shared_consistent_hashing_replica_points: u32,
    /// Entries that may wait for their consumers on a Key_Shared subscription while reading goes on, for each of them; 0 = no limit.
    pub key_shared_look_ahead_msg_in_replay_threshold_per_consumer: u32,
    /// The same for the subscription.
    pub key_shared_look_ahead_msg_in_replay_threshold_per_subscription: u32,
    /// Log bytes between two index checkpoints of a lane.
    pub checkpoint_interval_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cluster_name: "standalone".into(),
            max_message_size: 5 * 1024 * 1024,
            keep_alive_interval_seconds: 30,
            connection_liveness_check_timeout_millis: 5000,
            max_pending_publish_requests_per_connection: 1000,
            pause_receiving_if_unwritable: false,
            write_buffer_high_water_mark: 64 << 10,
            write_buffer_low_water_mark: 32 << 10,
            pause_receiving_cooldown_ms: 5000,
            pause_receiving_cooldown_permits: 5,
            pause_receiving_cooldown_period_ms: 10,
            max_message_publish_buffer_bytes: 0,
            memory_fairness: true,
            publish_pacing: PublishPacing::Frame,
            max_publish_rate_per_topic_in_messages: 0,
            max_publish_rate_per_topic_in_bytes: 0,
            broker_publisher_throttling_max_message_rate: 0,
            broker_publisher_throttling_max_byte_rate: 0,
            enable_persistent_topics: true,
            enable_non_persistent_topics: true,
            max_concurrent_non_persistent_message_per_connection: 1000,
            broker_delete_inactive_topics_enabled: true,
            broker_delete_inactive_topics_frequency_ms: 60_000,
            broker_delete_inactive_topics_max_inactive_duration_ms: 0,
            broker_delete_inactive_topics_when_caught_up: false,
            allow_auto_topic_creation: true,
            allow_auto_topic_creation_type: AutoTopicType::NonPartitioned,
            default_num_partitions: 1,
            allow_auto_subscription_creation: true,
            max_unacked_messages_per_consumer: 50_000,
            max_unacked_messages_per_subscription: 200_000,
            max_unacked_messages_per_broker: 0,
            max_unacked_messages_per_subscription_on_broker_blocked: 0.16,
            acknowledgment_at_batch_index_level_enabled: true,
            managed_ledger_max_entries_per_ledger: 50_000,
            managed_ledger_max_ledger_rollover_time_ms: 4 * 3600 * 1000,
            managed_ledger_max_size_per_ledger: 2 << 30,
            max_clients_per_connection: 50_000,
            max_producers_per_topic: 0,
            max_same_address_producers_per_topic: 0,
            max_consumers_per_topic: 0,
            max_same_address_consumers_per_topic: 0,
            schema_compatibility_strategy: Strategy::Full,
            max_topics_per_namespace: 0,
            max_consumers_per_subscription: 0,
            max_subscriptions_per_topic: 0,
            encryption_require_on_producer: false,
            delayed_delivery_max_delay_in_millis: 0,
            delayed_delivery_enabled: true,
            delayed_delivery_tick_time_millis: 1000,
            is_delayed_delivery_deliver_at_time_strict: false,
            delayed_delivery_max_entries_in_memory: 65_536,
            broker_deduplication_enabled: false,
            broker_deduplication_max_number_of_producers: 10_000,
            broker_deduplication_producer_inactivity_timeout_ms: 360 * 60_000,
            max_consumer_metadata_size: 1024,
            dispatcher_max_round_robin_batch_size: 20,
            enable_broker_side_subscription_pattern_evaluation: true,
            enable_broker_topic_list_watcher: true,
            subscription_pattern_max_length: 50,
            precise_dispatcher_flow_control: false,
            active_consumer_failover_delay_time_millis: 1000,
            active_consumer_failover_consistent_hashing: false,
            subscription_key_shared_enable: true,
            subscription_key_shared_use_consistent_hashing: true,
            subscription_key_shared_consistent_hashing_replica_points: 100,
            key_shared_look_ahead_msg_in_replay_threshold_per_consumer: 4000,
            key_shared_look_ahead_msg_in_replay_threshold_per_subscription: 40_000,
            checkpoint_interval_bytes: 128 << 20,
        }
    }
}

/// Where clients are told to connect.
#[derive(Clone, Debug, Default)]
pub struct ServiceAddress {
    /// Host name or address given to clients; `None` = the address they already use.
    pub advertised: Option<String>,
    /// The shared port.
    pub port: u16,
    /// A port of each core's own, by core; empty = lookups answer with the shared port.
    pub core_ports: Vec<u16>,
}
