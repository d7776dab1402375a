//! Topic names: parsing, partitions, and the shard a topic lives on.

use std::fmt;
use std::sync::Arc;

/// How the messages of a topic are kept.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub enum Domain {
    /// Stored in the log before the receipt is sent.
    Persistent,
    /// Handed to the consumers that are connected, never stored.
    NonPersistent,
}

impl Domain {
    fn scheme(self) -> &'static str {
        match self {
            Domain::Persistent => "persistent",
            Domain::NonPersistent => "non-persistent",
        }
    }
}

/// A parsed topic name, cheap to clone.
///
/// `domain://tenant/namespace/local`; the short forms `local` and `tenant/namespace/local` mean `persistent://public/default/local` and
/// `persistent://tenant/namespace/local`.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct TopicName {
    full: Arc<str>,
    domain: Domain,
    /// Ends of the tenant and the namespace in `full`.
    tenant_end: u32,
    namespace_end: u32,
    /// Length of `full` without `-partition-N`.
    base_len: u32,
    partition: i32,
}

/// Why a text is not a topic name.
#[derive(Debug, Clone, Eq, PartialEq, thiserror::Error)]
#[error("Invalid topic name: '{name}': {reason}")]
pub struct InvalidName {
    name: String,
    reason: &'static str,
}

const PARTITION: &str = "-partition-";

impl TopicName {
    /// Parses a full or short topic name.
    ///
    /// # Errors
    /// Another number of parts, an unknown domain, an empty part, or a character that tenants and namespaces may not hold.
    pub fn parse(text: &str) -> Result<TopicName, InvalidName> {
        let bad = |reason| InvalidName {
            name: text.chars().take(256).collect(),
            reason,
        };
        let (domain, rest) = match text.split_once("://") {
            Some(("persistent", rest)) => (Domain::Persistent, rest),
            Some(("non-persistent", rest)) => (Domain::NonPersistent, rest),
            Some(_) => return Err(bad("the domain is persistent:// or non-persistent://")),
            None => (Domain::Persistent, text),
        };
        let parts: Vec<&str> = rest.splitn(4, '/').collect();
        let (tenant, namespace, local) = match parts.as_slice() {
            [tenant, namespace, local] => (*tenant, *namespace, *local),
            [local] if !text.contains("://") => ("public", "default", *local),
            _ => {
                return Err(bad(
                    "expected domain://tenant/namespace/topic, tenant/namespace/topic, or topic",
                ));
            }
        };
        if local.trim().is_empty() {
            return Err(bad("the local name is empty"));
        }
        if !is_entity(tenant) || !is_entity(namespace) {
            return Err(bad(
                "tenant and namespace hold letters, digits and - = : . _ only",
            ));
        }
        if local.len() > MAX_LOCAL {
            return Err(bad("the local name is longer than 4096 bytes"));
        }
        let full = format!("{}://{tenant}/{namespace}/{local}", domain.scheme());
        let tenant_end = domain.scheme().len() + 3 + tenant.len();
        let namespace_end = tenant_end + 1 + namespace.len();
        let (base_len, partition) = match split_partition(&full) {
            Some((base, index)) if base.len() > namespace_end + 1 => (base.len(), index),
            _ => (full.len(), -1),
        };
        Ok(TopicName {
            full: full.into(),
            domain,
            tenant_end: tenant_end as u32,
            namespace_end: namespace_end as u32,
            base_len: base_len as u32,
            partition,
        })
    }

    /// The full name, `domain://tenant/namespace/local`.
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// The full name, shared.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.full)
    }

    /// Persistent or not.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// `tenant/namespace`.
    pub fn namespace(&self) -> &str {
        let start = self.domain.scheme().len() + 3;
        self.full
            .get(start..self.namespace_end as usize)
            .unwrap_or_default()
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        let start = self.domain.scheme().len() + 3;
        self.full
            .get(start..self.tenant_end as usize)
            .unwrap_or_default()
    }

    /// The name behind the namespace, with `-partition-N` if there is one.
    pub fn local(&self) -> &str {
        self.full
            .get(self.namespace_end as usize + 1..)
            .unwrap_or_default()
    }

    /// The index behind `-partition-`, or -1.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// The full name of the partitioned topic that this is a partition of; else the name itself.
    pub fn base(&self) -> &str {
        self.full.get(..self.base_len as usize).unwrap_or_default()
    }

    /// The shard that holds the topic, of `shards` (at least 1): a function of the name alone, so that it is the same after every restart.
    pub fn shard(&self, shards: u32) -> u32 {
        crc32c::crc32c(self.full.as_bytes()) % shards.max(1)
    }
}

/// Longest local name, bytes: a bound on what one name can hold in memory.
const MAX_LOCAL: usize = 4096;
/// Longest name of a tenant or of a namespace, bytes.
pub(crate) const MAX_ENTITY: usize = 1024;

fn is_entity(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_ENTITY
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '-' | '=' | ':' | '.' | '_'))
}

/// Splits `base-partition-N`: N is what follows the last marker, digits without leading zeros.
fn split_partition(name: &str) -> Option<(&str, i32)> {
    let at = name.rfind(PARTITION)?;
    let digits = name.get(at + PARTITION.len()..)?;
    let plain = !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'));
    if !plain {
        return None;
    }
    Some((name.get(..at)?, digits.parse().ok()?))
}

/// A name without `-partition-N`, if it has one.
pub(crate) fn base_of(name: &str) -> &str {
    split_partition(name).map_or(name, |(base, _)| base)
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed() {
        assert_eq!(
            TopicName::parse("x").unwrap().as_str(),
            "persistent://public/default/x"
        );
        assert_eq!(
            TopicName::parse("a/b/x").unwrap().as_str(),
            "persistent://a/b/x"
        );
        let name = TopicName::parse("non-persistent://a/b/x").unwrap();
        assert_eq!(
            (name.domain(), name.tenant(), name.namespace(), name.local()),
            (Domain::NonPersistent, "a", "a/b", "x")
        );
    }

    #[test]
    fn other_shapes_are_refused() {
        for text in [
            "",
            "a/b",
            "a/b/c/d",
            "topic://a/b/c",
            "persistent://a/b/c/d",
            "persistent://a/b/",
            "persistent://x",
            "a//c",
            "a/b/  ",
            "a b/c/d",
        ] {
            assert!(TopicName::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_partition_has_a_plain_index_behind_the_last_marker() {
        let name = TopicName::parse("t-partition-12").unwrap();
        assert_eq!(
            (name.base(), name.partition()),
            ("persistent://public/default/t", 12)
        );
        for text in [
            "t-partition-01",
            "t-partition-",
            "t-partition-x",
            "t-partition-1x",
            "t-partition--1",
            "t-partition-99999999999",
        ] {
            let name = TopicName::parse(text).unwrap();
            assert_eq!(
                (name.base(), name.partition()),
                (name.as_str(), -1),
                "{text}"
            );
        }
        let name = TopicName::parse("t-partition-1-partition-2").unwrap();
        assert_eq!(
            (name.base(), name.partition()),
            ("persistent://public/default/t-partition-1", 2)
        );
    }

    #[test]
    fn the_shard_depends_on_the_name_only() {
        let shard = TopicName::parse("x").unwrap().shard(7);
        assert_eq!(
            shard,
            TopicName::parse("persistent://public/default/x")
                .unwrap()
                .shard(7)
        );
        assert!(shard < 7);
        assert_eq!(TopicName::parse("x").unwrap().shard(0), 0);
    }
}
