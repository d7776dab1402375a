//! The versions of one topic's schema, and what may be added to them.

use bytes::Bytes;
use prost::Message;

use super::{
    MAX_ALL_VERSIONS, MAX_VERSIONS, Schema, SchemaError, SchemaPolicy, SchemaType, Strategy, check,
};

/// One version.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct StoredSchema {
    /// Its number, from 0.
    pub version: u64,
    /// What it is.
    pub schema: Schema,
    /// When it was added, milliseconds since the Unix epoch.
    pub added_ms: u64,
    /// CRC-64-AVRO of its meaning, if it is in Avro's words: one that has another is another. `None` = not known.
    pub fingerprint: Option<u64>,
}

/// What became of a schema that was put.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Put {
    /// It was there: its version.
    Exists(u64),
    /// It is new: its version. [`Versions::write`] is to be stored.
    Added(u64),
}

impl Put {
    /// The version.
    pub fn version(self) -> u64 {
        match self {
            Put::Exists(version) | Put::Added(version) => version,
        }
    }
}

/// The versions of a topic's schema: a value of the metadata store. A topic without one has none: [`Versions::default`].
///
/// A deletion takes a number of its own, and what was before it is forgotten: numbers go on and are never given twice, unless the key itself
/// is deleted.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub struct Versions {
    next: u64,
    all: Vec<StoredSchema>,
}

#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(uint64, tag = "1")]
    next: u64,
    #[prost(message, repeated, tag = "2")]
    versions: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(int32, tag = "2")]
    kind: i32,
    #[prost(bytes = "bytes", tag = "3")]
    data: Bytes,
    #[prost(message, repeated, tag = "4")]
    properties: Vec<Pair>,
    #[prost(uint64, tag = "5")]
    added_ms: u64,
    #[prost(uint64, optional, tag = "6")]
    fingerprint: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

impl Versions {
    /// Reads a value of the metadata store.
    ///
    /// # Errors
    /// A value that is none: damaged, or of a newer broker.
    pub fn read(value: Bytes) -> Result<Versions, SchemaError> {
        let bad = |what: String| {
            SchemaError::Invalid(format!("The stored schemas cannot be read: {what}"))
        };
        let document = Document::decode(value).map_err(|e| bad(e.to_string()))?;
        let mut all = Vec::with_capacity(document.versions.len());
        for entry in document.versions {
            let kind = SchemaType::from_number(entry.kind)
                .ok_or_else(|| bad(format!("there is no type {}", entry.kind)))?;
            let properties = entry.properties.into_iter();
            all.push(StoredSchema {
                version: entry.version,
                schema: Schema {
                    kind,
                    data: entry.data,
                    properties: properties.map(|pair| (pair.key, pair.value)).collect(),
                },
                added_ms: entry.added_ms,
                fingerprint: entry.fingerprint,
            });
        }
        let ordered = all.windows(2).all(|pair| match pair {
            [a, b] => a.version < b.version,
            _ => true,
        });
        if !ordered || all.last().is_some_and(|last| last.version >= document.next) {
            return Err(bad("its versions are out of order".into()));
        }
        Ok(Versions {
            next: document.next,
            all,
        })
    }

    /// The value to store.
    pub fn write(&self) -> Bytes {
        let versions = self.all.iter().map(|stored| Entry {
            version: stored.version,
            kind: stored.schema.kind as i32,
            data: stored.schema.data.clone(),
            properties: stored
                .schema
                .properties
                .iter()
                .map(|(key, value)| Pair {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            added_ms: stored.added_ms,
            fingerprint: stored.fingerprint,
        });
        let document = Document {
            next: self.next,
            versions: versions.collect(),
        };
        document.encode_to_vec().into()
    }

    /// All since the last deletion, oldest first.
    pub fn all(&self) -> &[StoredSchema] {
        &self.all
    }

    /// The newest.
    pub fn latest(&self) -> Option<&StoredSchema> {
        self.all.last()
    }

    /// One by its number.
    pub fn get(&self, version: u64) -> Option<&StoredSchema> {
        self.all.iter().find(|stored| stored.version == version)
    }

    /// The version that is this schema, if one is.
    pub fn find(&self, schema: &Schema) -> Option<u64> {
        self.find_compared(&check::Compared::new(schema), schema)
    }

    /// By its bytes first, which is most often enough; then by its meaning, where that may be the same.
    fn find_compared(&self, compared: &check::Compared<'_>, schema: &Schema) -> Option<u64> {
        let all = || self.all.iter().rev();
        let by_bytes = |stored: &&StoredSchema| {
            stored.schema.kind == schema.kind && stored.schema.data == schema.data
        };
        if let Some(found) = all().find(by_bytes) {
            return Some(found.version);
        }
        let own = compared.fingerprint()?;
        let by_meaning = |stored: &&StoredSchema| {
            let alike = stored.fingerprint.is_none_or(|theirs| theirs == own);
            alike && compared.same(&stored.schema)
        };
        all().find(by_meaning).map(|stored| stored.version)
    }

    /// Bytes in memory, about.
    pub fn size(&self) -> usize {
        let each = |stored: &StoredSchema| stored.schema.size() + 128;
        128 + self.all.iter().map(each).sum::<usize>()
    }

    /// May this schema come next?
    ///
    /// # Errors
    /// [`SchemaError::Incompatible`] with the reason.
    pub fn check(&self, schema: &Schema, strategy: Strategy) -> Result<(), SchemaError> {
        if strategy.is_transitive() {
            let schema = check::Compared::new(schema);
            let mut all = self.all.iter();
            all.try_for_each(|old| schema.follows(&old.schema, strategy))
        } else {
            let latest = self.latest();
            latest.map_or(Ok(()), |old| schema.check(&old.schema, strategy))
        }
    }

    /// Adds a schema, whoever asks; the same schema again is its old version.
    ///
    /// # Errors
    /// A schema that is invalid, or does not fit those before it, or would be too much.
    pub fn put(
        &mut self,
        schema: Schema,
        strategy: Strategy,
        now_ms: u64,
    ) -> Result<Put, SchemaError> {
        schema.validate()?;
        let compared = check::Compared::new(&schema);
        if let Some(version) = self.find_compared(&compared, &schema) {
            return Ok(Put::Exists(version));
        }
        let fingerprint = compared.fingerprint();
        self.check(&schema, strategy)?;
        let bytes = self.size() + schema.size() + 128;
        if self.all.len() >= MAX_VERSIONS || bytes > MAX_ALL_VERSIONS {
            return Err(SchemaError::TooMany(format!(
                "The topic has {} versions of its schema, and would have {bytes} bytes of them; the limits are {MAX_VERSIONS} and {MAX_ALL_VERSIONS}. Delete its schema to begin anew",
                self.all.len()
            )));
        }
        let version = self.next;
        self.next = self.next.saturating_add(1);
        self.all.push(StoredSchema {
            version,
            schema,
            added_ms: now_ms,
            fingerprint,
        });
        Ok(Put::Added(version))
    }

    /// The schema of a producer, or of the consumer that is the first at its topic.
    ///
    /// # Errors
    /// As for [`Versions::put`]; and a new schema where the namespace takes new ones by REST calls only.
    pub fn bring(
        &mut self,
        schema: Schema,
        policy: SchemaPolicy,
        now_ms: u64,
    ) -> Result<Put, SchemaError> {
        if policy.auto_update {
            return self.put(schema, policy.strategy, now_ms);
        }
        schema.validate()?;
        match self.find(&schema) {
            Some(version) => Ok(Put::Exists(version)),
            None => Err(SchemaError::Incompatible(
                "Schema not found and schema auto updating is disabled.".into(),
            )),
        }
    }

    /// The schema of a consumer at a topic that is in use: it is looked at and not added.
    ///
    /// # Errors
    /// A schema that is invalid or cannot read what the topic holds.
    pub fn check_consumer(&self, schema: &Schema, policy: SchemaPolicy) -> Result<(), SchemaError> {
        schema.validate()?;
        if self.all.is_empty() {
            return Err(SchemaError::Incompatible(format!(
                "Failed to add schema to an active topic with empty(BYTES) schema: new schema type {}",
                schema.kind.name()
            )));
        }
        match policy.strategy {
            Strategy::Backward
            | Strategy::Forward
            | Strategy::ForwardTransitive
            | Strategy::Full => self.check(schema, Strategy::Backward),
            strategy => {
                let schema = check::Compared::new(schema);
                let mut all = self.all.iter();
                all.try_for_each(|old| schema.follows(&old.schema, strategy))
            }
        }
    }

    /// Forgets all versions. The deletion takes a number, which is answered.
    pub fn delete(&mut self) -> u64 {
        self.all.clear();
        let marker = self.next;
        self.next = self.next.saturating_add(1);
        marker
    }
}

#[cfg(test)]
#[path = "versions_tests.rs"]
mod tests;
