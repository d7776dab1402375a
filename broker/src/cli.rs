//! The command line: `vela [broker] [--setting value]...`, `vela config [--json]`.

use crate::config::{self, DEFINITIONS, Definition, Effective, SettingError};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Run the broker.
    Broker(Effective),
    /// Show the effective settings, as JSON if true.
    Config(Effective, bool),
}

/// The command line's grammar. Flags come from the table of settings.
#[must_use]
pub fn command() -> Command {
    let flags = DEFINITIONS.iter().map(|definition| {
        let mut help = definition.doc.trim().to_owned();
        if !definition.unit.is_empty() {
            help.push_str(&format!(" [{}]", definition.unit));
        }
        let default = definition.get(&config::Settings::default());
        if !default.is_empty() {
            help.push_str(&format!(" [default: {default}]"));
        }
        help.push_str(&format!(" [env: {}]", definition.variable()));
        let arg = Arg::new(definition.name)
            .long(definition.flag())
            .visible_aliases(definition.aliases)
            .value_name("VALUE")
            .help(help)
            .global(true)
            // A repeated flag: the last one counts, as in most tools.
            .overrides_with(definition.name)
            .action(ArgAction::Set);
        // Switches may stand alone: `--core-ports`, `--allow-auto-topic-creation`.
        if default == "true" || default == "false" || definition.name == "corePorts" {
            arg.num_args(0..=1).default_missing_value("true")
        } else {
            arg.allow_hyphen_values(true)
        }
    });
    Command::new("vela")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A message broker that speaks the Apache Pulsar binary protocol")
        .args(flags)
        .subcommand(Command::new("broker").about("Run the broker (what plain `vela` does)"))
        .subcommand(
            Command::new("config")
                .about("Show every setting: its value, and where the value comes from")
                .arg(
                    Arg::new("json")
                        .long("json")
                        .help("Show them as JSON")
                        .action(ArgAction::SetTrue),
                ),
        )
}

/// Reads settings from `matches` and `environment`.
///
/// # Errors
/// [`SettingError`] if a value is not allowed.
pub fn interpret(
    matches: &ArgMatches,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Invocation, SettingError> {
    let (name, inner) = matches.subcommand().unwrap_or(("broker", matches));
    let flags = |definition: &'static Definition| {
        inner
            .get_one::<String>(definition.name)
            .or_else(|| matches.get_one::<String>(definition.name))
            .cloned()
    };
    let variables = |definition: &'static Definition| environment(&definition.variable());
    let effective = config::resolve(&flags, &variables)?;
    Ok(match name {
        "config" => Invocation::Config(effective, inner.get_flag("json")),
        _ => Invocation::Broker(effective),
    })
}

/// What to say of variables of the environment that look like settings and are none, one line each: a typing error there would
/// otherwise change nothing and say nothing.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = |name: &str| DEFINITIONS.iter().any(|d| d.variable() == name);
    let mut lines: Vec<_> = names
        .filter(|name| name.starts_with("VELA_") && !known(name))
        .map(|name| format!("environment variable {name} is no setting and has no effect: `vela config --json` names those that are"))
        .collect();
    lines.sort();
    lines
}

/// The table that `vela config` prints.
#[must_use]
pub fn table(effective: &Effective) -> String {
    let width = DEFINITIONS
        .iter()
        .map(|definition| definition.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for (definition, source) in DEFINITIONS.iter().zip(&effective.sources) {
        let value = definition.get(&effective.settings);
        let value = if value.is_empty() { "(empty)" } else { &value };
        let unit = match definition.unit {
            "" => String::new(),
            unit => format!(" {unit}"),
        };
        text.push_str(&format!(
            "{:width$}  {:<28}  {source}\n",
            definition.name,
            format!("{value}{unit}")
        ));
    }
    text
}

/// The same as a JSON object: name to value, source, unit, and whether it is dynamic.
#[must_use]
pub fn json(effective: &Effective) -> String {
    let mut settings = serde_json::Map::new();
    for (definition, source) in DEFINITIONS.iter().zip(&effective.sources) {
        settings.insert(
            definition.name.to_owned(),
            serde_json::json!({
                "value": definition.get(&effective.settings),
                "source": source.to_string(),
                "unit": definition.unit,
                "dynamic": definition.dynamic,
                "flag": format!("--{}", definition.flag()),
                "variable": definition.variable(),
            }),
        );
    }
    format!("{:#}", serde_json::Value::Object(settings))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

    use super::*;
    use crate::config::{CorePorts, Source};

    #[test]
    fn a_variable_that_is_no_setting_is_named() {
        let names = ["VELA_PROT", "VELA_CORES", "PATH"];
        let lines = unknown_variables(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("VELA_PROT"), "{lines:?}");
    }

    fn run(line: &str, environment: &dyn Fn(&str) -> Option<String>) -> Invocation {
        let matches = command()
            .try_get_matches_from(line.split_whitespace())
            .unwrap();
        interpret(&matches, environment).unwrap()
    }

    fn settings(line: &str) -> config::Settings {
        match run(line, &|_| None) {
            Invocation::Broker(effective) | Invocation::Config(effective, _) => effective.settings,
        }
    }

    #[test]
    fn the_grammar_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_broker_is_what_plain_vela_runs() {
        for line in [
            "vela --port 0",
            "vela broker --port 0",
            "vela --port 0 broker",
            "vela --port 5 --port 0",
            "vela --broker-service-port=0",
        ] {
            match run(line, &|_| None) {
                Invocation::Broker(effective) => {
                    assert_eq!(effective.settings.broker_service_port, 0, "{line}");
                }
                Invocation::Config(..) => panic!("{line} is not config"),
            }
        }
    }

    #[test]
    fn short_names_and_switches() {
        let all = settings(
            "vela --web-port 1 --bind 127.0.0.1 --data-dir /d --cores 2 --core-ports --allow-auto-topic-creation false",
        );
        assert_eq!(all.web_service_port, 1);
        assert_eq!(all.bind_address, "127.0.0.1");
        assert_eq!(all.data_dir, "/d");
        assert_eq!(all.cores, 2);
        assert_eq!(all.core_ports, CorePorts::From(0));
        assert!(!all.allow_auto_topic_creation);
        assert_eq!(
            settings("vela --core-ports 7000").core_ports,
            CorePorts::From(7000)
        );
    }

    #[test]
    fn config_shows_value_and_source_of_every_setting() {
        let environment = |name: &str| (name == "VELA_CLUSTER_NAME").then(|| "blue".to_owned());
        let Invocation::Config(effective, true) = run("vela config --json --port 7", &environment)
        else {
            panic!("not config --json");
        };
        assert_eq!(effective.sources[0], Source::Flag);
        let text = table(&effective);
        assert_eq!(text.lines().count(), DEFINITIONS.len());
        assert!(text.lines().any(|line| line.starts_with("clusterName")
            && line.contains("blue")
            && line.ends_with("environment")));
        let parsed: serde_json::Value = serde_json::from_str(&json(&effective)).unwrap();
        assert_eq!(parsed["brokerServicePort"]["value"], "7");
        assert_eq!(parsed["brokerServicePort"]["source"], "flag");
        assert_eq!(parsed["tickUs"]["source"], "default");
    }

    #[test]
    fn a_bad_value_is_refused_before_anything_starts() {
        let matches = command()
            .try_get_matches_from(["vela", "--port", "-3"])
            .unwrap();
        let error = interpret(&matches, &|_| None).unwrap_err();
        assert_eq!(
            (error.name, error.value.as_str()),
            ("brokerServicePort", "-3")
        );
    }
}
