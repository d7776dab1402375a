//! What is known about each setting.

use super::Settings;

/// What is known about one setting besides its value.
#[derive(Debug)]
pub struct Definition {
    /// The name in Pulsar's form, `brokerServicePort`.
    pub name: &'static str,
    /// The name as a Rust field, `broker_service_port`; flag and environment variable derive from it.
    pub field: &'static str,
    /// Shorter flags for the same setting.
    pub aliases: &'static [&'static str],
    /// Unit of the value, empty if it has none.
    pub unit: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Whether it may be changed while the broker runs.
    pub dynamic: bool,
    /// The smallest and largest value of a number.
    pub range: Option<(u64, u64)>,
    pub(super) allowed: fn(Option<(u64, u64)>) -> String,
    pub(super) set: fn(&mut Settings, &str, Option<(u64, u64)>) -> bool,
    pub(super) get: fn(&Settings) -> String,
}

impl Definition {
    /// The flag without its dashes: `broker-service-port`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.field.replace('_', "-")
    }

    /// The environment variable: `VELA_BROKER_SERVICE_PORT`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("VELA_{}", self.field.to_ascii_uppercase())
    }

    /// The values that are allowed, for a person.
    #[must_use]
    pub fn allowed(&self) -> String {
        let allowed = (self.allowed)(self.range);
        if self.unit.is_empty() {
            allowed
        } else {
            format!("{allowed} ({})", self.unit)
        }
    }

    /// The value in `settings`, as it would be written.
    #[must_use]
    pub fn get(&self, settings: &Settings) -> String {
        (self.get)(settings)
    }

    /// Sets the value from text; false, and nothing changed, if the text is not allowed.
    #[must_use]
    pub fn set(&self, settings: &mut Settings, text: &str) -> bool {
        (self.set)(settings, text.trim(), self.range)
    }
}
