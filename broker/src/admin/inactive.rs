//! Partitioned topics all of whose partitions are gone (`brokerDeleteInactivePartitionedTopicMetadataEnabled`). Partitions go by themselves, each
//! on its core, when nobody uses them; here goes what is left of their topic.

use super::Shared;
use super::answer::Refusal;
use crate::engine::admin::{Answer as Reply, Ask};
use crate::engine::metadata::{PARTITIONED, PartitionedTopic, topic_policies_key};
use crate::engine::name::{Domain, TopicName};
use std::collections::BTreeMap;
use std::time::Duration;

/// What one look saw, for the next.
#[derive(Debug, Default)]
struct Seen {
    /// Topics without partitions.
    idle: BTreeMap<String, u64>,
    /// Topics that went. A client that came at that moment may have made a partition since.
    gone: BTreeMap<String, PartitionedTopic>,
}

/// Looks for such topics for as long as the server runs.
pub(super) async fn watch(shared: Shared) {
    let mut seen = Seen::default();
    loop {
        let every = shared
            .settings()
            .broker_delete_inactive_topics_frequency_seconds;
        tokio::time::sleep(Duration::from_secs(every.max(1))).await;
        let settings = shared.settings();
        let wanted = settings.broker_delete_inactive_topics_enabled
            && settings.broker_delete_inactive_partitioned_topic_metadata_enabled;
        if wanted || !seen.gone.is_empty() {
            // An answer that does not come now comes with the next look.
            let _ = shared.look_for_idle(&mut seen, wanted).await;
        } else {
            seen.idle.clear();
        }
    }
}

impl Shared {
    async fn look_for_idle(&self, seen: &mut Seen, wanted: bool) -> Result<(), Refusal> {
        for (full, topic) in std::mem::take(&mut seen.gone) {
            if let Ok(name) = TopicName::parse(&full) {
                let _one = self.changes.lock().await;
                self.take_back(&name, &topic).await?;
            }
        }
        let before = std::mem::take(&mut seen.idle);
        if !wanted {
            return Ok(());
        }
        for (key, stored) in self.list(format!("{PARTITIONED}persistent/")).await? {
            let full = key.strip_prefix(PARTITIONED).unwrap_or_default();
            let Ok(name) = TopicName::parse(&full.replacen('/', "://", 1)) else {
                continue;
            };
            let Some(topic) = PartitionedTopic::read(&stored.value) else {
                continue;
            };
            if name.domain() != Domain::Persistent
                || topic.unfinished
                || self.has_partitions(&name, topic.count).await?
            {
                continue;
            }
            if before.get(name.as_str()) != Some(&stored.version) {
                seen.idle.insert(name.to_string(), stored.version);
                continue;
            }
            let _one = self.changes.lock().await;
            if self.partitions(&name).await?.map(|now| now.version) != Some(stored.version) {
                continue;
            }
            self.delete(key).await?;
            // Every core goes by that now: what is there was made before.
            if !self.take_back(&name, &topic).await? {
                self.delete(topic_policies_key(&name)).await?;
                self.forget_schema(&name).await?;
                seen.gone.insert(name.to_string(), topic);
            }
        }
        Ok(())
    }

    async fn has_partitions(&self, name: &TopicName, count: u32) -> Result<bool, Refusal> {
        let partition = |index| TopicName::parse(&format!("{name}-partition-{index}")).ok();
        let names: Vec<TopicName> = (0..count).filter_map(partition).collect();
        let replies = self.ask_topics(&names, || Ask::Clients).await?;
        Ok(replies.iter().any(|reply| !matches!(reply, Reply::NoTopic)))
    }

    /// Makes a topic again that has partitions all the same. True if it has.
    async fn take_back(&self, name: &TopicName, topic: &PartitionedTopic) -> Result<bool, Refusal> {
        if !self.has_partitions(name, topic.count).await? {
            return Ok(false);
        }
        self.put_partitions(name, topic, 0).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use crate::admin::tests::Http;
    use crate::config::Settings;

    #[test]
    fn a_topic_without_partitions_goes_and_others_stay() {
        let http = Http::configured(Settings {
            broker_delete_inactive_topics_frequency_seconds: 1,
            broker_delete_inactive_partitioned_topic_metadata_enabled: true,
            ..Settings::default()
        });
        let at = |topic: &str| format!("/admin/v2/persistent/t/n/{topic}");
        for topic in ["gone", "half"] {
            let partitions = at(&format!("{topic}/partitions"));
            assert_eq!(http.json("PUT", &partitions, "2").status, 204);
        }
        for partition in ["gone-partition-0", "gone-partition-1", "half-partition-0"] {
            let got = http.call("DELETE", &at(partition), "", "");
            assert_eq!(got.status, 204, "{}", got.body);
        }
        let status = |topic: &str| {
            let path = at(&format!("{topic}/partitions"));
            http.call("GET", &path, "", "").status
        };
        http.until(|| status("gone") == 404);
        assert_eq!(status("half"), 200);
    }
}
