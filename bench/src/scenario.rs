//! Scenarios: what a run does, as small TOML files. Those of the issue are built in.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Result, fail};
use crate::message::{HEADER_LEN, MAX_DEVICES};

/// The scenarios built in: name and text.
pub(crate) const BUILT_IN: [(&str, &str); 8] = [
    ("iot", include_str!("../scenarios/iot.toml")),
    ("fan-out", include_str!("../scenarios/fan-out.toml")),
    ("many-topics", include_str!("../scenarios/many-topics.toml")),
    (
        "backlog-drain",
        include_str!("../scenarios/backlog-drain.toml"),
    ),
    (
        "large-messages",
        include_str!("../scenarios/large-messages.toml"),
    ),
    (
        "slow-consumer",
        include_str!("../scenarios/slow-consumer.toml"),
    ),
    ("pressure", include_str!("../scenarios/pressure.toml")),
    (
        "max-throughput",
        include_str!("../scenarios/max-throughput.toml"),
    ),
];

/// Type of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SubscriptionType {
    Exclusive,
    Shared,
    /// Messages without a key: each has one of its own
    KeyShared,
}

/// Declares the keys of a scenario once: their default, their bounds, their flag.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr, $($value_name:literal)?;)+) => {
        /// What a run does.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct Settings {
            $($(#[doc = $doc])+ pub(crate) $key: $type,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }

        /// A flag for every key of a scenario.
        #[derive(Debug, Clone, Default, Args)]
        #[command(next_help_heading = "Instead of what the scenario says")]
        pub(crate) struct Overrides {
            $($(#[doc = $doc])+ #[arg(long $(, value_name = $value_name)?)] pub(crate) $key: Option<$type>,)+
        }

        impl Overrides {
            /// Puts what was given in the place of what the scenario says.
            pub(crate) fn apply(&self, settings: &mut Settings) {
                $(if let Some(value) = &self.$key {
                    settings.$key = value.clone();
                })+
            }
        }
    };
}

settings! {
    /// Number of topics
    topics: u32 = 8, "N";
    /// Start of the topics' names
    topic_prefix: String = "persistent://public/default/vela-bench".into(), "NAME";
    /// Publishing connections; 0: nothing is published
    clients: u32 = 10, "N";
    /// Keys; 0: messages without a key
    devices: u32 = 10_000, "N";
    /// Payload of a message in bytes
    size: u32 = 128, "BYTES";
    /// Messages per second in total; 0: as fast as the window allows
    rate: u64 = 20_000, "N";
    /// SENDs on their way at a time, over all clients
    window: u32 = 1024, "N";
    /// Messages in a SEND; 1: batching off
    batch: u32 = 1, "N";
    /// Subscriptions of every topic; 0: publish only
    subscriptions: u32 = 1, "N";
    /// Type of the subscriptions
    subscription_type: SubscriptionType = SubscriptionType::KeyShared, "TYPE";
    /// Consumers of each subscription of each topic
    consumers: u32 = 1, "N";
    /// Connections that the consumers share; 0: each has its own
    applications: u32 = 1, "N";
    /// Permits a consumer holds at most, in messages
    receiver_queue: u32 = 1000, "N";
    /// Most messages in an ACK
    ack_group: u32 = 1000, "N";
    /// Of the subscriptions, how many are slow
    slow_subscriptions: u32 = 0, "N";
    /// Messages per second a slow consumer takes
    slow_rate: u32 = 100, "N";
    /// Messages published before any consumer has permits
    backlog: u64 = 0, "N";
    /// Connections that send a part of a frame and fall silent
    stalled_connections: u32 = 0, "N";
    /// How much of it, in bytes
    stalled_bytes: u32 = 65_536, "BYTES";
    /// Repeated deliveries that say so do not make the run invalid
    expect_redelivered: bool = false, "BOOL";
    /// At a fixed rate: microseconds between two looks at sockets and schedule; 0: at every event
    tick_us: u32 = 200, "MICROSECONDS";
    /// Seconds of load before the measured window
    warmup: f64 = 20.0, "SECONDS";
    /// Seconds measured
    duration: f64 = 60.0, "SECONDS";
    /// Seconds without any progress after which answers count as missing
    patience: f64 = 10.0, "SECONDS";
}

impl Settings {
    /// Reads a scenario. `name` stands in errors.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self> {
        toml::from_str(text).context(|| format!("scenario {name}"))
    }

    /// The scenario as a file would state it.
    pub(crate) fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context(|| "cannot write the scenario".into())
    }

    /// A built-in scenario.
    pub(crate) fn built_in(name: &str) -> Result<Self> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::parse(name, text),
            None => {
                let known: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                fail(format!(
                    "there is no scenario '{name}'; known are {}; a file of your own is given with --file",
                    known.join(", ")
                ))
            }
        }
    }

    /// Refuses what cannot be run, with the key, its value and its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |key: &str, value: u64, from: u64, to: u64| match value {
            value if (from..=to).contains(&value) => Ok(()),
            _ => fail(format!("{key} is {value}; possible are {from} to {to}")),
        };
        within("topics", self.topics.into(), 1, 100_000)?;
        within("clients", self.clients.into(), 0, 10_000)?;
        within("devices", self.devices.into(), 0, MAX_DEVICES.into())?;
        within("size", self.size.into(), HEADER_LEN as u64, 5_000_000)?;
        within("rate", self.rate, 0, 100_000_000)?;
        within("window", self.window.into(), 1, 1_000_000)?;
        within("batch", self.batch.into(), 1, 10_000)?;
        within("subscriptions", self.subscriptions.into(), 0, 1000)?;
        within("consumers", self.consumers.into(), 1, 1000)?;
        within("applications", self.applications.into(), 0, 10_000)?;
        within("receiver_queue", self.receiver_queue.into(), 1, 1_000_000)?;
        within("ack_group", self.ack_group.into(), 1, 10_000)?;
        within(
            "slow_subscriptions",
            self.slow_subscriptions.into(),
            0,
            self.subscriptions.into(),
        )?;
        within("slow_rate", self.slow_rate.into(), 1, 1_000_000)?;
        within("backlog", self.backlog, 0, 1_000_000_000)?;
        within(
            "stalled_connections",
            self.stalled_connections.into(),
            0,
            100_000,
        )?;
        within("stalled_bytes", self.stalled_bytes.into(), 8, 4_000_000)?;
        within("tick_us", self.tick_us.into(), 0, 100_000)?;
        for (key, value) in [
            ("warmup", self.warmup),
            ("duration", self.duration),
            ("patience", self.patience),
        ] {
            if !(0.0..=1_000_000.0).contains(&value) {
                return fail(format!(
                    "{key} is {value}; possible are 0 to 1000000 seconds"
                ));
            }
        }
        if self.clients == 0 && self.subscriptions == 0 {
            return fail("clients and subscriptions are both 0: there is nothing to do");
        }
        if self.subscription_type == SubscriptionType::Exclusive && self.consumers > 1 {
            return fail(format!(
                "consumers is {}: an exclusive subscription has one; several need subscription_type shared or key-shared",
                self.consumers
            ));
        }
        if self.backlog > 0 && (self.subscriptions == 0 || self.clients == 0) {
            return fail(
                "a backlog needs clients that publish it and a subscription that keeps it",
            );
        }
        Ok(())
    }

    /// Whether each subscription sees the messages of a device in order.
    pub(crate) fn ordered(&self) -> bool {
        match self.subscription_type {
            SubscriptionType::Exclusive => true,
            SubscriptionType::Shared => false,
            // Messages without a key go to any of the consumers.
            SubscriptionType::KeyShared => self.devices > 0 || self.consumers == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_scenarios_built_in_are_sound() {
        for (name, _) in BUILT_IN {
            Settings::built_in(name).unwrap().check().unwrap();
        }
        let iot = Settings::built_in("iot").unwrap();
        assert_eq!(iot, Settings::default());
        assert_eq!((iot.devices, iot.clients, iot.topics), (10_000, 10, 8));
        assert_eq!(
            (iot.size, iot.rate, iot.window, iot.batch),
            (128, 20_000, 1024, 1)
        );
        assert_eq!((iot.warmup, iot.duration), (20.0, 60.0));
        let large = Settings::built_in("large-messages").unwrap();
        assert_eq!((large.size, large.rate, large.window), (131_072, 500, 128));
        assert!(
            Settings::built_in("x")
                .unwrap_err()
                .0
                .contains("iot, fan-out")
        );
    }

    #[test]
    fn a_key_that_is_not_known_is_refused_by_name() {
        let fault = Settings::parse("mine", "topics = 3\nratte = 5\n")
            .unwrap_err()
            .0;
        assert!(fault.contains("mine") && fault.contains("ratte"), "{fault}");
        let again = Settings::default().to_toml().unwrap();
        assert_eq!(
            Settings::parse("mine", &again).unwrap(),
            Settings::default()
        );
        let fault = Settings::parse("mine", "topics = -1\n").unwrap_err().0;
        assert!(fault.contains("topics"), "{fault}");
        assert_eq!(Settings::parse("mine", "rate = 5\n").unwrap().rate, 5);
    }

    #[test]
    fn values_out_of_bounds_are_refused_by_key_and_value() {
        for (text, key) in [
            ("topics = 0", "topics"),
            ("size = 39", "size"),
            ("window = 0", "window"),
            ("slow_subscriptions = 2", "slow_subscriptions"),
            ("warmup = -1.0", "warmup"),
            (
                "subscription_type = 'exclusive'\nconsumers = 2",
                "consumers",
            ),
            ("backlog = 5\nsubscriptions = 0", "backlog"),
        ] {
            let fault = Settings::parse("x", text).unwrap().check().unwrap_err().0;
            assert!(fault.contains(key), "{fault}");
        }
    }

    #[test]
    fn flags_override_the_file() {
        let mut settings = Settings::built_in("iot").unwrap();
        Overrides {
            rate: Some(5),
            subscription_type: Some(SubscriptionType::Shared),
            ..Overrides::default()
        }
        .apply(&mut settings);
        assert_eq!(settings.rate, 5);
        assert_eq!(settings.subscription_type, SubscriptionType::Shared);
        assert_eq!(settings.window, 1024);
    }
}
