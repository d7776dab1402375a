//! The types a setting can have, and how their values are written.

use crate::engine::schema::Strategy;

/// A type of setting: text to value and back.
pub trait Value: Sized {
    /// The value that `text` says, or `None` if it is not one of the allowed ones.
    fn parse(text: &str, range: Option<(u64, u64)>) -> Option<Self>;
    /// The value as text that [`Value::parse`] reads.
    fn show(&self) -> String;
    /// The allowed values, for a person.
    fn allowed(range: Option<(u64, u64)>) -> String;
}

macro_rules! numbers {
    ($($type:ty),+) => { $(
        impl Value for $type {
            fn parse(text: &str, range: Option<(u64, u64)>) -> Option<Self> {
                let value: u64 = text.parse().ok()?;
                if let Some((low, high)) = range && !(low..=high).contains(&value) {
                    return None;
                }
                Self::try_from(value).ok()
            }

            fn show(&self) -> String {
                self.to_string()
            }

            fn allowed(range: Option<(u64, u64)>) -> String {
                let (low, high) = range.unwrap_or((0, u64::from(Self::MAX)));
                format!("{low} to {high}")
            }
        }
    )+ };
}

numbers!(u16, u32, u64);

impl Value for f64 {
    fn parse(text: &str, range: Option<(u64, u64)>) -> Option<Self> {
        let value: f64 = text.parse().ok()?;
        let (low, high) = range.unwrap_or((0, u64::MAX));
        (low as f64..=high as f64).contains(&value).then_some(value)
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn allowed(range: Option<(u64, u64)>) -> String {
        let (low, high) = range.unwrap_or((0, u64::MAX));
        format!("{low} to {high}, with decimals")
    }
}

impl Value for bool {
    fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn allowed(_: Option<(u64, u64)>) -> String {
        "true or false".to_owned()
    }
}

impl Value for String {
    fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }

    fn allowed(_: Option<(u64, u64)>) -> String {
        "any text but the empty one".to_owned()
    }
}

/// Empty text is `None`.
impl Value for Option<String> {
    fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
        Some((!text.is_empty()).then(|| text.to_owned()))
    }

    fn show(&self) -> String {
        self.clone().unwrap_or_default()
    }

    fn allowed(_: Option<(u64, u64)>) -> String {
        "any text, or empty".to_owned()
    }
}

macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$note])* $variant,)+ }

        impl Value for $name {
            fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
                $(if text.eq_ignore_ascii_case($text) {
                    return Some(Self::$variant);
                })+
                None
            }

            fn show(&self) -> String {
                match self { $(Self::$variant => $text.to_owned(),)+ }
            }

            fn allowed(_: Option<(u64, u64)>) -> String {
                [$($text),+].join(", ")
            }
        }
    };
}

choices! {
    /// Kind of a topic that is created by being named.
    TopicType {
        /// One topic.
        NonPartitioned = "non-partitioned",
        /// A topic of `defaultNumPartitions` partitions.
        Partitioned = "partitioned",
    }
}

choices! {
    /// Which topics that nobody uses are deleted.
    InactiveTopicMode {
        /// Those without subscriptions.
        NoSubscriptions = "delete_when_no_subscriptions",
        /// Those whose subscriptions have no backlog.
        CaughtUp = "delete_when_subscriptions_caught_up",
    }
}

choices! {
    /// Which schemas of a topic may follow one another.
    SchemaStrategy {
        /// As FULL.
        Undefined = "UNDEFINED",
        /// None.
        AlwaysIncompatible = "ALWAYS_INCOMPATIBLE",
        /// Any.
        AlwaysCompatible = "ALWAYS_COMPATIBLE",
        /// The new one reads what the last one wrote.
        Backward = "BACKWARD",
        /// The last one reads what the new one writes.
        Forward = "FORWARD",
        /// Both.
        Full = "FULL",
        /// The new one reads what any one before wrote.
        BackwardTransitive = "BACKWARD_TRANSITIVE",
        /// Every one before reads what the new one writes.
        ForwardTransitive = "FORWARD_TRANSITIVE",
        /// Both.
        FullTransitive = "FULL_TRANSITIVE",
    }
}

impl SchemaStrategy {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Strategy::from(self).name()
    }
}

impl From<SchemaStrategy> for Strategy {
    fn from(setting: SchemaStrategy) -> Self {
        match setting {
            SchemaStrategy::AlwaysIncompatible => Strategy::AlwaysIncompatible,
            SchemaStrategy::AlwaysCompatible => Strategy::AlwaysCompatible,
            SchemaStrategy::Backward => Strategy::Backward,
            SchemaStrategy::Forward => Strategy::Forward,
            SchemaStrategy::Undefined | SchemaStrategy::Full => Strategy::Full,
            SchemaStrategy::BackwardTransitive => Strategy::BackwardTransitive,
            SchemaStrategy::ForwardTransitive => Strategy::ForwardTransitive,
            SchemaStrategy::FullTransitive => Strategy::FullTransitive,
        }
    }
}

impl InactiveTopicMode {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InactiveTopicMode::NoSubscriptions => "delete_when_no_subscriptions",
            InactiveTopicMode::CaughtUp => "delete_when_subscriptions_caught_up",
        }
    }
}

choices! {
    /// When written means durable.
    Sync {
        /// Acknowledge only what is on stable storage.
        Always = "always",
        /// Sync in the background, at least every `syncIntervalMillis`.
        Interval = "interval",
        /// Leave it to the kernel.
        Never = "never",
    }
}

choices! {
    /// Form of the log lines.
    LogFormat {
        /// For a person.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

choices! {
    /// Severity of log lines.
    LogLevel {
        /// Only what needs a person.
        Error = "error",
        /// What may need one.
        Warn = "warn",
        /// What an operator wants to know.
        Info = "info",
        /// What helps to find a fault.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

choices! {
    /// Something that is on or off.
    Switch {
        /// It is done.
        On = "on",
        /// It is not.
        Off = "off",
    }
}

impl Value for vela_limiter::Mode {
    fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }

    fn allowed(_: Option<(u64, u64)>) -> String {
        "disabled, tracking, auto (or false), enabled (or true)".to_owned()
    }
}

/// A size in MiB, one that follows from other settings, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferSize {
    /// It follows from other settings.
    Auto,
    /// So many MiB; 0 or less: no limit.
    MiB(i64),
}

impl Value for BufferSize {
    fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "" | "auto" => Some(Self::Auto),
            number => number.parse().ok().map(Self::MiB),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::MiB(size) => size.to_string(),
        }
    }

    fn allowed(_: Option<(u64, u64)>) -> String {
        "auto, or a whole number; 0 or less turns it off".to_owned()
    }
}

/// A size that follows from another one unless it is set, in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheSize {
    /// It follows from other settings.
    Auto,
    /// So many MiB.
    MiB(u64),
}

impl Value for CacheSize {
    fn parse(text: &str, range: Option<(u64, u64)>) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "" | "auto" => Some(Self::Auto),
            _ => u64::parse(text, range).map(Self::MiB),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::MiB(size) => size.to_string(),
        }
    }

    fn allowed(range: Option<(u64, u64)>) -> String {
        format!("auto, or {}", u64::allowed(range))
    }
}

/// Whether each core listens on a port of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CorePorts {
    /// Only the shared port.
    Off,
    /// Core i listens on this port plus i; 0: each on any free port.
    From(u16),
}

impl Value for CorePorts {
    fn parse(text: &str, _: Option<(u64, u64)>) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "off" | "false" => Some(Self::Off),
            // What the bare flag means: any free ports.
            "on" | "true" => Some(Self::From(0)),
            number => number.parse().ok().map(Self::From),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::From(port) => port.to_string(),
        }
    }

    fn allowed(_: Option<(u64, u64)>) -> String {
        "off, or the first port: 0 to 65535".to_owned()
    }
}
