//! The log behind a topic as JSON.

use super::{absent, not_partitioned};
use crate::admin::answer;
use crate::admin::messages::time;
use crate::admin::params;
use crate::admin::target::Target;
use crate::admin::{Answer, Shared};
use crate::engine::admin::{Answer as Reply, Ask, CursorStats, InternalStats};
use crate::store::log::Position;
use axum::extract::State;
use serde_json::{Map, Value, json};

pub(super) async fn internal_stats(State(shared): State<Shared>, target: Target) -> Answer {
    if target.partitions.is_some() {
        return Err(target.missing());
    }
    match shared.ask(&target.name, Ask::InternalStats).await? {
        Reply::Internal(stats) => {
            let persistent = target.is_persistent();
            Ok(answer::value(&internal(&stats, persistent)))
        }
        Reply::NoTopic => Err(absent(&shared, &target).await?),
        other => Err(target.error(other)),
    }
}

pub(super) async fn partitioned_internal_stats(
    State(shared): State<Shared>,
    target: Target,
) -> Answer {
    let Some(partitions) = &target.partitions else {
        return Err(not_partitioned(&target));
    };
    let names = target.topics();
    let mut each = Map::new();
    for (name, reply) in names
        .iter()
        .zip(shared.ask_topics(&names, || Ask::InternalStats).await?)
    {
        match reply {
            Reply::Internal(stats) => {
                let stats = internal(&stats, target.is_persistent());
                each.insert(name.to_string(), stats);
            }
            Reply::NoTopic => {}
            other => return Err(target.error(other)),
        }
    }
    Ok(answer::value(
        &json!({ "metadata": partitions.json(), "partitions": each }),
    ))
}

fn position(at: Position) -> String {
    format!("{}:{}", at.ledger, at.entry)
}

fn internal(stats: &InternalStats, persistent: bool) -> Value {
    let current = stats.ledgers.last();
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| {
        all.insert(name.to_owned(), value);
    };
    put("entriesAddedCounter", stats.entries_added.into());
    put("numberOfEntries", stats.entries.into());
    put("totalSize", stats.bytes.into());
    put(
        "currentLedgerEntries",
        current.map_or(0, |ledger| ledger.entries).into(),
    );
    put(
        "currentLedgerSize",
        current.map_or(0, |ledger| ledger.bytes).into(),
    );
    if persistent {
        let opened = current.map_or(0, |ledger| ledger.opened_ms);
        put("lastLedgerCreatedTimestamp", time(opened).into());
    }
    let waiting = stats
        .cursors
        .values()
        .filter(|cursor| cursor.waiting)
        .count();
    put(
        "waitingCursorsCount",
        if persistent { waiting } else { 0 }.into(),
    );
    put("pendingAddEntriesCount", stats.pending.into());
    if persistent {
        let last = stats.last_confirmed.unwrap_or(Position::EARLIEST);
        put("lastConfirmedEntry", position(last).into());
        let state = if stats.terminated {
            "Terminated"
        } else {
            "LedgerOpened"
        };
        put("state", state.into());
        let last = stats.ledgers.len().saturating_sub(1);
        let ledgers = stats.ledgers.iter().enumerate().map(|(index, ledger)| {
            // The open ledger's size is not known yet, as Pulsar has it.
            let (entries, size) = if index == last { (0, 0) } else { (ledger.entries, ledger.bytes) };
            json!({
                "ledgerId": ledger.id, "entries": entries, "size": size, "offloaded": false, "underReplicated": false,
            })
        });
        put("ledgers", ledgers.collect());
    }
    let cursors: Map<String, Value> = stats
        .cursors
        .iter()
        .map(|(name, stats)| (params::encode(name), cursor(stats, persistent)))
        .collect();
    put("cursors", Value::Object(cursors));
    if persistent {
        let properties = stats.properties.iter();
        let properties: Map<String, Value> = properties
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
            .collect();
        put("properties", Value::Object(properties));
        put("schemaLedgers", Value::Array(Vec::new()));
        put(
            "compactedLedger",
            json!({ "ledgerId": -1, "entries": -1, "size": -1, "offloaded": false, "underReplicated": false }),
        );
    }
    Value::Object(all)
}

/// Ranges as Pulsar writes them: open below, closed above.
fn ranges(stats: &CursorStats) -> String {
    let each: Vec<String> = stats
        .ranges
        .iter()
        .map(|(first, last)| {
            let open = Position::new(first.ledger, first.entry - 1);
            format!("({}..{}]", position(open), position(*last))
        })
        .collect();
    let more = stats.ranges_total.saturating_sub(each.len() as u64);
    let more = if more > 0 {
        format!(",... {more} more")
    } else {
        String::new()
    };
    format!("[{}{more}]", each.join(","))
}

fn cursor(stats: &CursorStats, persistent: bool) -> Value {
    if !persistent {
        return json!({
            "waitingReadOp": false, "pendingReadOps": 0, "messagesConsumedCounter": 0, "cursorLedger": 0,
            "cursorLedgerLastEntry": 0, "active": false, "numberOfEntriesSinceFirstNotAckedMessage": 0,
            "totalNonContiguousDeletedMessagesRange": 0, "subscriptionHavePendingRead": false,
            "subscriptionHavePendingReplayRead": false,
        });
    }
    json!({
        "markDeletePosition": position(stats.mark_delete),
        "readPosition": position(stats.read),
        "waitingReadOp": stats.waiting,
        "pendingReadOps": 0,
        "messagesConsumedCounter": stats.consumed,
        // Cursors are part of the log, and have no ledger of their own.
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": ranges(stats),
        "lastLedgerSwitchTimestamp": time(0),
        "state": "Open",
        "active": stats.active,
        "numberOfEntriesSinceFirstNotAckedMessage": stats.since_first_unacked,
        "totalNonContiguousDeletedMessagesRange": stats.ranges_total,
        "subscriptionHavePendingRead": stats.waiting,
        "subscriptionHavePendingReplayRead": stats.replay,
        "properties": {},
    })
}
