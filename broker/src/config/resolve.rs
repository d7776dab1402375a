//! Where the value of each setting comes from: flag, environment, default.

use super::{DEFINITIONS, Definition, Settings};
use std::fmt;

/// Where a value was found. The first of these that has one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// The environment variable `VELA_...`.
    Environment,
    /// Built in.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Default => "default",
        })
    }
}

/// Looks the text of a setting up in one source.
pub type Lookup<'a> = dyn Fn(&'static Definition) -> Option<String> + 'a;

/// All values and where each came from.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The values.
    pub settings: Settings,
    /// One source per entry of [`DEFINITIONS`], in that order.
    pub sources: Vec<Source>,
}

/// A setting has a value that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "setting {name} cannot be \"{value}\" (from {place}): allowed is {allowed}; correct it or leave it out, the default is {default}"
)]
pub struct SettingError {
    /// Pulsar's name of the setting.
    pub name: &'static str,
    /// The text that was found.
    pub value: String,
    /// The flag or variable that said so.
    pub place: String,
    /// What would be allowed.
    pub allowed: String,
    /// The default, as text.
    pub default: String,
}

/// Finds every setting's value: the flag's, else the environment's, else the default.
///
/// # Errors
/// [`SettingError`] for the first value that is not allowed.
pub fn resolve(flags: &Lookup<'_>, environment: &Lookup<'_>) -> Result<Effective, SettingError> {
    let defaults = Settings::default();
    let mut settings = defaults.clone();
    let mut sources = Vec::with_capacity(DEFINITIONS.len());
    for definition in DEFINITIONS {
        let found = match flags(definition) {
            Some(text) => Some((text, Source::Flag)),
            None => environment(definition).map(|text| (text, Source::Environment)),
        };
        let Some((value, source)) = found else {
            sources.push(Source::Default);
            continue;
        };
        if !definition.set(&mut settings, &value) {
            return Err(SettingError {
                name: definition.name,
                value,
                place: match source {
                    Source::Environment => {
                        format!("environment variable {}", definition.variable())
                    }
                    _ => format!("flag --{}", definition.flag()),
                },
                allowed: definition.allowed(),
                default: match definition.get(&defaults) {
                    empty if empty.is_empty() => "empty".to_owned(),
                    text => text,
                },
            });
        }
        sources.push(source);
    }
    Ok(Effective { settings, sources })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use super::*;

    fn only(
        name: &'static str,
        value: &'static str,
    ) -> impl Fn(&'static Definition) -> Option<String> {
        move |definition| (definition.name == name).then(|| value.to_owned())
    }

    #[test]
    fn a_flag_beats_the_environment_and_that_beats_the_default() {
        let none = |_: &'static Definition| None;
        let flag = only("brokerServicePort", "0");
        let environment = only("brokerServicePort", "7000");

        let both = resolve(&flag, &environment).unwrap();
        assert_eq!(
            (both.settings.broker_service_port, both.sources[0]),
            (0, Source::Flag)
        );
        let one = resolve(&none, &environment).unwrap();
        assert_eq!(
            (one.settings.broker_service_port, one.sources[0]),
            (7000, Source::Environment)
        );
        let neither = resolve(&none, &none).unwrap();
        assert_eq!(
            (neither.settings.broker_service_port, neither.sources[0]),
            (6650, Source::Default)
        );
    }

    #[test]
    fn an_error_names_setting_value_place_range_and_remedy() {
        let none = |_: &'static Definition| None;
        for (name, value, place, range) in [
            (
                "brokerServicePort",
                "70000",
                "flag --broker-service-port",
                "0 to 65535",
            ),
            (
                "brokerServicePort",
                "-1",
                "flag --broker-service-port",
                "0 to 65535",
            ),
            (
                "tickUs",
                "99999",
                "flag --tick-us",
                "0 to 10000 (microseconds)",
            ),
            (
                "sync",
                "sometimes",
                "flag --sync",
                "always, interval, never",
            ),
            ("bindAddress", "", "flag --bind-address", "any text"),
        ] {
            let error = resolve(&only(name, value), &none).unwrap_err().to_string();
            for part in [name, value, place, range, "the default is"] {
                assert!(error.contains(part), "{error:?} does not say {part:?}");
            }
        }
        let error = resolve(&none, &only("cores", "many"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("environment variable VELA_CORES"), "{error}");
    }
}
