//! Settings that change while the broker runs.
//!
//! A value that is set over HTTP lies in the metadata store under [`config::DYNAMIC`]. The metadata thread tells
//! [`Dynamic`] of the change, then every core; each core takes the settings from here and hands them to its engine.

use super::capacity;
use super::memory::small_limit;
use crate::admin::Configuration;
use crate::config::{
    self, BufferSize, CacheSize, InactiveTopicMode, Settings, Switch, TopicType, definition,
};
use crate::engine::{self, AutoTopicType};
use crate::logging;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use vela_limiter::MemoryLimiter;

/// Parts of the broker that are not in an engine and follow settings. Called on the metadata thread, one change after
/// the other; must not block.
pub(super) trait DynamicTargets: Send + Sync {
    /// These settings count now.
    fn configure(&self, settings: &Settings);
}

/// The settings of the start, what was set since then, and what results.
pub(super) struct Dynamic {
    start: Settings,
    now: Mutex<Current>,
    targets: OnceLock<Box<dyn DynamicTargets>>,
}

struct Current {
    overrides: BTreeMap<String, String>,
    settings: Arc<Settings>,
    engine: Arc<engine::Settings>,
}

impl Dynamic {
    /// The settings of the command line and what the metadata store holds, by the name of the setting.
    pub(super) fn new(start: Settings, overrides: BTreeMap<String, String>) -> Self {
        let mut settings = start.clone();
        for (name, text) in &overrides {
            set(&mut settings, name, text);
        }
        let engine = Arc::new(engine_settings(&settings));
        Self {
            start,
            now: Mutex::new(Current {
                overrides,
                settings: Arc::new(settings),
                engine,
            }),
            targets: OnceLock::new(),
        }
    }

    /// Names who else follows settings, and brings them up to date. Called once, before anything can change.
    pub(super) fn follow(&self, targets: Box<dyn DynamicTargets>) {
        let targets = self.targets.get_or_init(|| targets);
        targets.configure(&self.settings());
    }

    fn now(&self) -> MutexGuard<'_, Current> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All settings as they count now.
    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.now().settings)
    }

    /// The engine's part of them.
    pub(super) fn engine(&self) -> Arc<engine::Settings> {
        Arc::clone(&self.now().engine)
    }

    /// For HTTP.
    pub(super) fn configuration(&self) -> Configuration {
        let now = self.now();
        Configuration {
            settings: Arc::clone(&now.settings),
            overrides: now.overrides.clone(),
        }
    }

    /// The metadata of a key changed. Called on the metadata thread, in the order of the changes.
    pub(super) fn changed(&self, key: &str, value: Option<&[u8]>) {
        let Some(name) = key.strip_prefix(config::DYNAMIC) else {
            return;
        };
        let settings = {
            let mut now = self.now();
            let mut settings = Settings::clone(&now.settings);
            match value.map(String::from_utf8_lossy) {
                Some(text) => {
                    set(&mut settings, name, &text);
                    now.overrides.insert(name.to_owned(), text.into_owned());
                }
                None => {
                    now.overrides.remove(name);
                    // Without an override the start's value counts.
                    if let Some(definition) = definition(name) {
                        let _ = definition.set(&mut settings, &definition.get(&self.start));
                    }
                }
            }
            if let Some(definition) = definition(name) {
                let (value, before) = (definition.get(&settings), definition.get(&now.settings));
                if value != before {
                    tracing::info!(setting = name, value, before, "setting changed");
                }
            }
            now.engine = Arc::new(engine_settings(&settings));
            now.settings = Arc::new(settings);
            Arc::clone(&now.settings)
        };
        if let Some(targets) = self.targets.get() {
            targets.configure(&settings);
        }
    }
}

/// What follows settings beside the engines: the memory limiter, and the log lines' level.
pub(super) struct Targets {
    limiter: Arc<MemoryLimiter>,
    cores: u16,
}

impl Targets {
    /// For the settings of the start, and for those that follow.
    pub(super) fn new(limiter: Arc<MemoryLimiter>, cores: u16, start: &Settings) -> Self {
        let targets = Self { limiter, cores };
        targets.warn_of_small_limit(start);
        targets
    }

    fn warn_of_small_limit(&self, settings: &Settings) {
        let mode = settings.in_progress_request_frame_memory_limit_enabled;
        let limit = publish_buffer(settings);
        if let Some(said) = small_limit(mode, limit, self.cores, settings.max_message_size) {
            tracing::warn!("{said}");
        }
    }
}

impl DynamicTargets for Targets {
    fn configure(&self, settings: &Settings) {
        // Each takes effect at once, on every connection; what did not change is left alone.
        let limiter = &self.limiter;
        let budget = buffer_budget(settings);
        if budget != limiter.memory().budget() {
            limiter.set_budget(budget);
        }
        let (limit, mode) = (
            publish_buffer(settings),
            settings.in_progress_request_frame_memory_limit_enabled,
        );
        let before = limiter.state();
        if limit != before.limit {
            limiter.set_limit(limit);
        }
        if mode != before.mode {
            limiter.set_mode(mode);
        }
        let now = limiter.state();
        if (now.limit, now.mode) != (before.limit, before.mode) {
            self.warn_of_small_limit(settings);
        }
        logging::set_level(settings.log_level);
    }
}

/// Bytes that all buffers may take together.
pub(super) fn buffer_budget(settings: &Settings) -> u64 {
    match settings.buffer_memory {
        0 => capacity::memory() / 2,
        given => given.saturating_mul(1 << 20),
    }
}

/// The limit of inbound memory and of unanswered publishes in bytes; 0 or less: none.
pub(super) fn publish_buffer(settings: &Settings) -> i64 {
    match settings.max_message_publish_buffer_size_in_mb {
        BufferSize::Auto => i64::try_from(buffer_budget(settings) / 2).unwrap_or(i64::MAX),
        BufferSize::MiB(size) => size.saturating_mul(1 << 20),
    }
}

/// Bytes of the read cache of all cores: by default a fifth of the budget, as in Pulsar, but no more than 64 MiB. Together with the
/// log chunks and inbound memory that the limits allow, that leaves a cache far from filling the budget by itself.
pub(super) fn read_cache(settings: &Settings) -> u64 {
    const MOST: u64 = 64 << 20;
    match settings.managed_ledger_cache_size_mb {
        CacheSize::Auto => match buffer_budget(settings) {
            0 => MOST,
            budget => (budget / 5).min(MOST),
        },
        CacheSize::MiB(size) => size.saturating_mul(1 << 20),
    }
}

/// The engine's part of the settings.
fn engine_settings(settings: &Settings) -> engine::Settings {
    engine::Settings {
        cluster_name: settings.cluster_name.clone(),
        max_message_size: to_u32(settings.max_message_size),
        keep_alive_interval_seconds: to_u32(settings.keep_alive_interval_seconds),
        connection_liveness_check_timeout_millis: to_u32(
            settings.connection_liveness_check_timeout_millis,
        ),
        max_pending_publish_requests_per_connection: to_u32(
            settings.max_pending_publish_requests_per_connection,
        ),
        memory_fairness: settings.memory_fairness == Switch::On,
        pause_receiving_if_unwritable: settings
            .pulsar_channel_pause_receiving_requests_if_unwritable,
        write_buffer_high_water_mark: to_u32(settings.pulsar_channel_write_buffer_high_water_mark),
        write_buffer_low_water_mark: to_u32(settings.pulsar_channel_write_buffer_low_water_mark),
        pause_receiving_cooldown_ms: to_u32(settings.pulsar_channel_pause_receiving_cooldown_ms),
        pause_receiving_cooldown_permits: to_u32(
            settings.pulsar_channel_pause_receiving_cooldown_rate_limit_permits,
        ),
        pause_receiving_cooldown_period_ms: to_u32(
            settings.pulsar_channel_pause_receiving_cooldown_rate_limit_period_ms,
        ),
        max_publish_rate_per_topic_in_messages: settings.max_publish_rate_per_topic_in_messages,
        max_publish_rate_per_topic_in_bytes: settings.max_publish_rate_per_topic_in_bytes,
        broker_publisher_throttling_max_message_rate: settings
            .broker_publisher_throttling_max_message_rate,
        broker_publisher_throttling_max_byte_rate: settings
            .broker_publisher_throttling_max_byte_rate,
        max_message_publish_buffer_bytes: publish_buffer(settings),
        enable_persistent_topics: settings.enable_persistent_topics,
        enable_non_persistent_topics: settings.enable_non_persistent_topics,
        max_concurrent_non_persistent_message_per_connection: to_u32(
            settings.max_concurrent_non_persistent_message_per_connection,
        ),
        broker_delete_inactive_topics_enabled: settings.broker_delete_inactive_topics_enabled,
        broker_delete_inactive_topics_frequency_ms: settings
            .broker_delete_inactive_topics_frequency_seconds
            .saturating_mul(1000),
        broker_delete_inactive_topics_max_inactive_duration_ms: settings
            .broker_delete_inactive_topics_max_inactive_duration_seconds
            .saturating_mul(1000),
        broker_delete_inactive_topics_when_caught_up: settings.broker_delete_inactive_topics_mode
            == InactiveTopicMode::CaughtUp,
        allow_auto_topic_creation: settings.allow_auto_topic_creation,
        allow_auto_topic_creation_type: match settings.allow_auto_topic_creation_type {
            TopicType::NonPartitioned => AutoTopicType::NonPartitioned,
            TopicType::Partitioned => AutoTopicType::Partitioned,
        },
        default_num_partitions: settings.default_num_partitions,
        allow_auto_subscription_creation: settings.allow_auto_subscription_creation,
        max_unacked_messages_per_consumer: to_u32(settings.max_unacked_messages_per_consumer),
        max_unacked_messages_per_subscription: to_u32(
            settings.max_unacked_messages_per_subscription,
        ),
        max_unacked_messages_per_broker: to_u32(settings.max_unacked_messages_per_broker),
        max_unacked_messages_per_subscription_on_broker_blocked: settings
            .max_unacked_messages_per_subscription_on_broker_blocked,
        acknowledgment_at_batch_index_level_enabled: settings
            .acknowledgment_at_batch_index_level_enabled,
        managed_ledger_max_entries_per_ledger: to_u32(
            settings.managed_ledger_max_entries_per_ledger,
        ),
        managed_ledger_max_ledger_rollover_time_ms: settings
            .managed_ledger_max_ledger_rollover_time_minutes
            .saturating_mul(60_000),
        managed_ledger_max_size_per_ledger: settings
            .managed_ledger_max_size_per_ledger_mbytes
            .saturating_mul(1 << 20),
        max_clients_per_connection: to_u32(settings.max_clients_per_connection),
        max_producers_per_topic: to_u32(settings.max_producers_per_topic),
        max_same_address_producers_per_topic: to_u32(settings.max_same_address_producers_per_topic),
        max_consumers_per_topic: to_u32(settings.max_consumers_per_topic),
        max_same_address_consumers_per_topic: to_u32(settings.max_same_address_consumers_per_topic),
        max_consumers_per_subscription: to_u32(settings.max_consumers_per_subscription),
        max_subscriptions_per_topic: to_u32(settings.max_subscriptions_per_topic),
        max_topics_per_namespace: to_u32(settings.max_topics_per_namespace),
        schema_compatibility_strategy: settings.schema_compatibility_strategy.into(),
        encryption_require_on_producer: settings.encryption_require_on_producer,
        delayed_delivery_max_delay_in_millis: settings.delayed_delivery_max_delay_in_millis,
        delayed_delivery_enabled: settings.delayed_delivery_enabled,
        delayed_delivery_tick_time_millis: settings.delayed_delivery_tick_time_millis,
        is_delayed_delivery_deliver_at_time_strict: settings
            .is_delayed_delivery_deliver_at_time_strict,
        broker_deduplication_enabled: settings.broker_deduplication_enabled,
        broker_deduplication_max_number_of_producers: to_u32(
            settings.broker_deduplication_max_number_of_producers,
        ),
        broker_deduplication_producer_inactivity_timeout_ms: settings
            .broker_deduplication_producer_inactivity_timeout_minutes
            .saturating_mul(60_000),
        max_consumer_metadata_size: to_u32(settings.max_consumer_metadata_size),
        dispatcher_max_round_robin_batch_size: to_u32(
            settings.dispatcher_max_round_robin_batch_size,
        ),
        enable_broker_side_subscription_pattern_evaluation: settings
            .enable_broker_side_subscription_pattern_evaluation,
        enable_broker_topic_list_watcher: settings.enable_broker_topic_list_watcher,
        subscription_pattern_max_length: to_u32(settings.subscription_pattern_max_length),
        precise_dispatcher_flow_control: settings.precise_dispatcher_flow_control,
        active_consumer_failover_delay_time_millis: settings
            .active_consumer_failover_delay_time_millis,
        active_consumer_failover_consistent_hashing: settings
            .active_consumer_failover_consistent_hashing,
        subscription_key_shared_enable: settings.subscription_key_shared_enable,
        subscription_key_shared_use_consistent_hashing: settings
            .subscription_key_shared_use_consistent_hashing,
        subscription_key_shared_consistent_hashing_replica_points: to_u32(
            settings.subscription_key_shared_consistent_hashing_replica_points,
        ),
        key_shared_look_ahead_msg_in_replay_threshold_per_consumer: to_u32(
            settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer,
        ),
        key_shared_look_ahead_msg_in_replay_threshold_per_subscription: to_u32(
            settings.key_shared_look_ahead_msg_in_replay_threshold_per_subscription,
        ),
        ..engine::Settings::default()
    }
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Sets a dynamic setting from text. A text that it cannot be changes nothing, as in Pulsar; so a slip does not lift a limit.
fn set(settings: &mut Settings, name: &str, text: &str) {
    match definition(name) {
        Some(definition) if definition.dynamic => {
            if !definition.set(settings, text) {
                tracing::warn!(
                    "{name} was set to {:?}, which it cannot be: allowed is {}; it stays {:?}. Set it again, or delete it \
                     (DELETE /admin/v2/brokers/configuration/{name})",
                    shortened(text),
                    definition.allowed(),
                    definition.get(settings),
                );
            }
        }
        _ => tracing::warn!(
            "the metadata store holds a value of {:?}, which is no setting that changes while running: it is ignored",
            shortened(name)
        ),
    }
}

/// Text from the network goes into a log line: not all of it.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const RATE: &str = "config/maxPublishRatePerTopicInMessages";

    struct Seen(Arc<AtomicU64>);

    impl DynamicTargets for Seen {
        fn configure(&self, settings: &Settings) {
            self.0.store(
                settings.max_publish_rate_per_topic_in_messages,
                Ordering::SeqCst,
            );
        }
    }

    fn start() -> Settings {
        Settings {
            max_publish_rate_per_topic_in_messages: 7,
            ..Settings::default()
        }
    }

    #[test]
    fn a_change_reaches_settings_engine_and_targets_and_its_end_brings_the_start_back() {
        let dynamic = Dynamic::new(start(), BTreeMap::new());
        let seen = Arc::new(AtomicU64::new(0));
        dynamic.follow(Box::new(Seen(Arc::clone(&seen))));
        let rate = |expected: u64| {
            assert_eq!(
                dynamic.settings().max_publish_rate_per_topic_in_messages,
                expected
            );
            assert_eq!(
                dynamic.engine().max_publish_rate_per_topic_in_messages,
                expected
            );
            assert_eq!(seen.load(Ordering::SeqCst), expected);
        };
        rate(7);
        dynamic.changed(RATE, Some(b"100"));
        rate(100);
        dynamic.changed("partitioned/persistent/public/default/t", Some(b"9"));
        rate(100);
        // It cannot be that: shown, and without effect.
        dynamic.changed(RATE, Some(b"many"));
        rate(100);
        let overrides = dynamic.configuration().overrides;
        assert_eq!(
            overrides
                .get("maxPublishRatePerTopicInMessages")
                .map(String::as_str),
            Some("many")
        );
        dynamic.changed(RATE, Some(b"0"));
        rate(0);
        dynamic.changed(RATE, None);
        rate(7);
        assert!(dynamic.configuration().overrides.is_empty());
    }

    #[test]
    fn what_the_store_holds_counts_from_the_start_on() {
        let stored = [
            ("maxPublishRatePerTopicInMessages", "50"),
            ("defaultNumPartitions", "none"),
            ("dataDir", "/elsewhere"),
            ("noSuchSetting", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let dynamic = Dynamic::new(start(), BTreeMap::from(stored));
        let settings = dynamic.settings();
        assert_eq!(settings.max_publish_rate_per_topic_in_messages, 50);
        assert_eq!(settings.default_num_partitions, 1);
        assert_eq!(settings.data_dir, start().data_dir);
    }
}
