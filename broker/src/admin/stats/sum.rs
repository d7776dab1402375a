//! The statistics of a partitioned topic: those of its partitions, added.

use crate::engine::admin::{ProducerStats, SubscriptionStats, TopicStats};

/// Statistics of partitions, added.
pub(super) fn sum(all: &[&TopicStats]) -> TopicStats {
    let mut sum = TopicStats {
        created_ms: all.iter().map(|each| each.created_ms).min().unwrap_or(0),
        ..TopicStats::default()
    };
    for each in all {
        sum.rate_in += each.rate_in;
        sum.drop_rate += each.drop_rate;
        sum.throughput_in += each.throughput_in;
        sum.messages_in += each.messages_in;
        sum.bytes_in += each.bytes_in;
        sum.storage_size += each.storage_size;
        sum.rate_limited += each.rate_limited;
        sum.last_publish_ms = sum.last_publish_ms.max(each.last_publish_ms);
        sum.chunked |= each.chunked;
        sum.waiting_publishers += each.waiting_publishers;
        let mut unnamed = 0;
        for publisher in &each.publishers {
            // Producers of one name are one producer with a part on each partition. Without a name each part got one of ours:
            // they are taken in their order, as Pulsar does.
            let mut known = sum.publishers.iter_mut();
            let known = if publisher.user_named {
                known.find(|known| known.user_named && known.name == publisher.name)
            } else {
                unnamed += 1;
                known.filter(|known| !known.user_named).nth(unnamed - 1)
            };
            match known {
                Some(known) => {
                    known.rate_in += publisher.rate_in;
                    known.throughput_in += publisher.throughput_in;
                    known.drop_rate += publisher.drop_rate;
                }
                None => sum.publishers.push(ProducerStats {
                    id: 0,
                    ..publisher.clone()
                }),
            }
        }
        for (name, sub) in &each.subscriptions {
            add(sum.subscriptions.entry(name.clone()).or_default(), sub);
        }
    }
    sum
}

fn add(sum: &mut SubscriptionStats, each: &SubscriptionStats) {
    let first = sum.kind.is_empty();
    if first || sum.kind == "None" {
        sum.kind = each.kind;
    }
    if first {
        sum.durable = each.durable;
        sum.allow_out_of_order = each.allow_out_of_order;
        sum.key_shared_mode = each.key_shared_mode;
        sum.properties.clone_from(&each.properties);
    }
    sum.rate_out += each.rate_out;
    sum.drop_rate += each.drop_rate;
    sum.throughput_out += each.throughput_out;
    sum.messages_out += each.messages_out;
    sum.bytes_out += each.bytes_out;
    sum.redeliver_rate += each.redeliver_rate;
    sum.ack_rate += each.ack_rate;
    sum.backlog += each.backlog;
    sum.backlog_size += each.backlog_size;
    sum.delayed += each.delayed;
    sum.delayed_memory += each.delayed_memory;
    sum.in_replay += each.in_replay;
    sum.unacked += each.unacked;
    sum.blocked |= each.blocked;
    sum.ack_ranges += each.ack_ranges;
    for consumer in &each.consumers {
        match sum
            .consumers
            .iter_mut()
            .find(|known| known.name == consumer.name)
        {
            Some(known) => {
                known.rate_out += consumer.rate_out;
                known.throughput_out += consumer.throughput_out;
                known.messages_out += consumer.messages_out;
                known.bytes_out += consumer.bytes_out;
                known.redeliver_rate += consumer.redeliver_rate;
                known.ack_rate += consumer.ack_rate;
                known.permits += consumer.permits;
                known.unacked += consumer.unacked;
                known.blocked |= consumer.blocked;
            }
            None => sum.consumers.push(consumer.clone()),
        }
    }
}
