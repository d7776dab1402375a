//! Which schemas a namespace lets follow one another.

use serde_json::Value;

/// Compatibility strategies (Pulsar documentation, "Schema compatibility").
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub enum Strategy {
    /// No schema may follow another.
    AlwaysIncompatible,
    /// Any schema may follow another.
    AlwaysCompatible,
    /// The new schema reads what the last one wrote.
    Backward,
    /// The last schema reads what the new one writes.
    Forward,
    /// Both.
    #[default]
    Full,
    /// The new schema reads what any one before wrote.
    BackwardTransitive,
    /// Every schema before reads what the new one writes.
    ForwardTransitive,
    /// Both.
    FullTransitive,
}

impl Strategy {
    const NAMES: [(Strategy, &'static str); 8] = [
        (Strategy::AlwaysIncompatible, "ALWAYS_INCOMPATIBLE"),
        (Strategy::AlwaysCompatible, "ALWAYS_COMPATIBLE"),
        (Strategy::Backward, "BACKWARD"),
        (Strategy::Forward, "FORWARD"),
        (Strategy::Full, "FULL"),
        (Strategy::BackwardTransitive, "BACKWARD_TRANSITIVE"),
        (Strategy::ForwardTransitive, "FORWARD_TRANSITIVE"),
        (Strategy::FullTransitive, "FULL_TRANSITIVE"),
    ];

    /// The strategy of a name, `FULL` and so on. `None` for `UNDEFINED` and for names that are none: the default counts then.
    pub fn from_name(name: &str) -> Option<Strategy> {
        let mut all = Self::NAMES.iter();
        all.find(|(_, own)| *own == name).map(|(found, _)| *found)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let mut all = Self::NAMES.iter();
        all.find(|(own, _)| *own == self)
            .map_or("UNDEFINED", |(_, name)| name)
    }

    /// Does a new schema have to fit all before it, not only the last?
    pub fn is_transitive(self) -> bool {
        matches!(
            self,
            Strategy::BackwardTransitive | Strategy::ForwardTransitive | Strategy::FullTransitive
        )
    }

    pub(super) fn new_reads_old(self) -> bool {
        matches!(
            self,
            Strategy::Backward
                | Strategy::BackwardTransitive
                | Strategy::Full
                | Strategy::FullTransitive
        )
    }

    pub(super) fn old_reads_new(self) -> bool {
        matches!(
            self,
            Strategy::Forward
                | Strategy::ForwardTransitive
                | Strategy::Full
                | Strategy::FullTransitive
        )
    }
}

/// What counts for the schemas of a topic.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SchemaPolicy {
    /// Which schemas may follow one another.
    pub strategy: Strategy,
    /// Producers and consumers may bring new schemas; if not, only REST calls can.
    pub auto_update: bool,
    /// Producers without a schema are refused on topics that have one.
    pub enforced: bool,
}

impl Default for SchemaPolicy {
    fn default() -> Self {
        SchemaPolicy {
            strategy: Strategy::default(),
            auto_update: true,
            enforced: false,
        }
    }
}

/// What a namespace's policies say about schemas.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SchemaRules {
    /// Which schemas may follow one another; `None` = what the broker's setting says.
    pub strategy: Option<Strategy>,
    /// Producers and consumers may bring new schemas.
    pub auto_update: bool,
    /// Producers without a schema are refused on topics that have one.
    pub enforced: bool,
}

impl Default for SchemaRules {
    fn default() -> Self {
        SchemaRules {
            strategy: None,
            auto_update: true,
            enforced: false,
        }
    }
}

impl SchemaRules {
    /// With the broker's strategy where the namespace has none.
    pub fn or(self, strategy: Strategy) -> SchemaPolicy {
        SchemaPolicy {
            strategy: self.strategy.unwrap_or(strategy),
            auto_update: self.auto_update,
            enforced: self.enforced,
        }
    }

    /// Reads a namespace's policies document; what is absent or not understood has its default.
    pub fn read(policies: &Value) -> SchemaRules {
        let flag = |name: &str, default| {
            policies
                .get(name)
                .and_then(Value::as_bool)
                .unwrap_or(default)
        };
        let strategy = policies.get("schema_compatibility_strategy");
        let old = policies.get("schema_auto_update_compatibility_strategy");
        SchemaRules {
            strategy: strategy
                .and_then(Value::as_str)
                .and_then(Strategy::from_name)
                .or_else(|| old.and_then(Value::as_str).and_then(from_old_name)),
            auto_update: flag("is_allow_auto_update_schema", true),
            enforced: flag("schema_validation_enforced", false),
        }
    }
}

/// The older policy, `schemaAutoUpdateCompatibilityStrategy`.
fn from_old_name(name: &str) -> Option<Strategy> {
    Some(match name {
        "AutoUpdateDisabled" => Strategy::AlwaysIncompatible,
        "Backward" => Strategy::Backward,
        "Forward" => Strategy::Forward,
        "Full" => Strategy::Full,
        "AlwaysCompatible" => Strategy::AlwaysCompatible,
        "BackwardTransitive" => Strategy::BackwardTransitive,
        "ForwardTransitive" => Strategy::ForwardTransitive,
        "FullTransitive" => Strategy::FullTransitive,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policies_are_read_by_their_names_and_have_defaults() {
        assert_eq!(SchemaRules::read(&json!({})), SchemaRules::default());
        let by_default = SchemaRules::default().or(Strategy::default());
        assert_eq!(by_default, SchemaPolicy::default());
        assert_eq!(SchemaPolicy::default().strategy.name(), "FULL");
        let read = SchemaRules::read(&json!({
            "schema_compatibility_strategy": "FORWARD_TRANSITIVE",
            "is_allow_auto_update_schema": false,
            "schema_validation_enforced": true,
        }));
        assert_eq!(read.strategy, Some(Strategy::ForwardTransitive));
        assert!(!read.auto_update && read.enforced);
        let undefined = json!({"schema_compatibility_strategy": "UNDEFINED", "schema_auto_update_compatibility_strategy": "Backward"});
        let strategy = SchemaRules::read(&undefined).strategy;
        assert_eq!(strategy, Some(Strategy::Backward));
    }

    #[test]
    fn names_of_strategies_go_both_ways() {
        for (strategy, name) in Strategy::NAMES {
            assert_eq!(Strategy::from_name(name), Some(strategy));
            assert_eq!(strategy.name(), name);
        }
        assert_eq!(Strategy::from_name("UNDEFINED"), None);
    }
}
