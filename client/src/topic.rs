//! Names of topics.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const PARTITION: &str = "-partition-";

/// A topic's name, `persistent://tenant/namespace/local` or `non-persistent://…`. The short forms `local` and
/// `tenant/namespace/local` mean `persistent://public/default/local` and `persistent://tenant/namespace/local`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName {
    full: Arc<str>,
    /// Where the tenant begins and where the namespace ends.
    tenant: usize,
    namespace_end: usize,
    /// The length without `-partition-N`, and N.
    base: usize,
    partition: Option<u32>,
}

impl TopicName {
    /// Parses a full or a short name.
    ///
    /// # Errors
    /// [`Error::Config`] for another number of parts, an unknown domain, or an empty part.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |reason: &str| Error::Config {
            setting: "topic",
            value: text.chars().take(256).collect(),
            reason: reason.to_owned(),
        };
        let (domain, rest) = match text.split_once("://") {
            Some((domain @ ("persistent" | "non-persistent"), rest)) => (domain, rest),
            Some(_) => return Err(invalid("the domain is persistent:// or non-persistent://")),
            None => ("persistent", text),
        };
        let parts: Vec<&str> = rest.splitn(4, '/').collect();
        let (tenant, namespace, local) = match parts.as_slice() {
            [tenant, namespace, local] => (*tenant, *namespace, *local),
            [local] if !text.contains("://") => ("public", "default", *local),
            _ => {
                return Err(invalid(
                    "expected domain://tenant/namespace/topic, tenant/namespace/topic, or topic",
                ));
            }
        };
        if tenant.is_empty() || namespace.is_empty() || local.trim().is_empty() {
            return Err(invalid("tenant, namespace and topic may not be empty"));
        }
        let full = format!("{domain}://{tenant}/{namespace}/{local}");
        let start = domain.len() + "://".len();
        let namespace_end = start + tenant.len() + 1 + namespace.len();
        let split = full
            .rsplit_once(PARTITION)
            .filter(|(base, _)| base.len() > namespace_end + 1);
        let index = split.and_then(|(base, index)| {
            // Only what `partition` would write: no sign, no leading zeros.
            let number: u32 = index.parse().ok()?;
            (number.to_string() == index).then_some((base.len(), number))
        });
        let (base, partition) = match index {
            Some((base, number)) => (base, Some(number)),
            None => (full.len(), None),
        };
        Ok(Self {
            full: full.into(),
            tenant: start,
            namespace_end,
            base,
            partition,
        })
    }

    /// The full name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// The full name, shared.
    #[must_use]
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.full)
    }

    /// Whether messages are stored.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.full.starts_with("persistent")
    }

    /// `tenant/namespace`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.full
            .get(self.tenant..self.namespace_end)
            .unwrap_or_default()
    }

    /// The name behind the namespace, with `-partition-N` if there is one.
    #[must_use]
    pub fn local(&self) -> &str {
        self.full.get(self.namespace_end + 1..).unwrap_or_default()
    }

    /// The number of this partition, if the name is one's.
    #[must_use]
    pub fn partition_index(&self) -> Option<u32> {
        self.partition
    }

    /// The topic this is a partition of; itself if it is none.
    #[must_use]
    pub fn base(&self) -> Self {
        match self.partition {
            None => self.clone(),
            Some(_) => Self {
                full: self.full.get(..self.base).unwrap_or_default().into(),
                partition: None,
                ..*self
            },
        }
    }

    /// A partition of this topic. Of a partition: another one of the same topic.
    #[must_use]
    pub fn partition(&self, index: u32) -> Self {
        let base = self.full.get(..self.base).unwrap_or_default();
        Self {
            full: format!("{base}{PARTITION}{index}").into(),
            partition: Some(index),
            ..*self
        }
    }

    /// The path of the name in HTTP: `persistent/tenant/namespace/local`, the local name percent-encoded.
    #[must_use]
    pub fn rest_path(&self) -> String {
        let domain = self
            .full
            .get(..self.tenant.saturating_sub("://".len()))
            .unwrap_or_default();
        format!(
            "{domain}/{}/{}",
            self.namespace(),
            percent_encode(self.local())
        )
    }
}

/// All but letters, digits, `-`, `.`, `_` and `~` as `%XX`.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    use fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

impl FromStr for TopicName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn short_names_are_completed() {
        for (text, full) in [
            ("t", "persistent://public/default/t"),
            ("a/b/c", "persistent://a/b/c"),
            ("persistent://a/b/c/d", ""),
            ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ] {
            match TopicName::parse(text) {
                Ok(name) => assert_eq!(name.as_str(), full),
                Err(_) => assert!(full.is_empty(), "{text}"),
            }
        }
        for text in [
            "",
            " ",
            "a/b",
            "http://a/b/c",
            "persistent://t",
            "persistent://a//c",
            "a/b/",
        ] {
            TopicName::parse(text).unwrap_err();
        }
    }

    #[test]
    fn partitions_are_named_and_recognised() {
        let topic = TopicName::parse("a/b/c").unwrap();
        let third = topic.partition(3);
        assert_eq!(third.as_str(), "persistent://a/b/c-partition-3");
        assert_eq!(TopicName::parse(third.as_str()).unwrap(), third);
        assert_eq!(third.base(), topic);
        assert_eq!(
            third.partition(4).as_str(),
            "persistent://a/b/c-partition-4"
        );
        assert_eq!(
            (topic.partition_index(), third.partition_index()),
            (None, Some(3))
        );
        for local in [
            "c-partition-",
            "c-partition-03",
            "c-partition-x",
            "-partition-3",
            "c-partition--1",
        ] {
            let name = TopicName::parse(&format!("a/b/{local}")).unwrap();
            assert_eq!((name.partition_index(), name.local()), (None, local));
        }
    }

    #[test]
    fn paths_are_encoded() {
        let name = TopicName::parse("non-persistent://a/b/ä %").unwrap();
        assert_eq!((name.namespace(), name.is_persistent()), ("a/b", false));
        assert_eq!(name.rest_path(), "non-persistent/a/b/%C3%A4%20%25");
    }
}
