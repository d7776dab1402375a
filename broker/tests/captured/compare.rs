//! What an answer of the broker under test must have in common with the recorded one: everything but the two lists here.

use std::collections::{BTreeMap, BTreeSet};

use vela_broker::store::log::Position;
use vela_codec::proto::base_command::Type;
use vela_codec::proto::{BaseCommand, FeatureFlags, MessageIdData};

use super::recording::{Content, Wire, position};

/// Takes values out of a command.
type LeaveOut = fn(&mut BaseCommand);

/// Values that every broker, or every run of one, chooses for itself. That the field is there is compared all the same.
const CHOSEN: &[(&str, LeaveOut)] = &[
    (
        "ledgers and entries (their relation is compared apart)",
        |c| {
            for id in ids(c) {
                (id.ledger_id, id.entry_id) = (0, 0);
            }
        },
    ),
    ("names of producers that the broker names (likewise)", |c| {
        if let Some(success) = &mut c.producer_success {
            success.producer_name.clear();
        }
    }),
    ("texts for people", |c| {
        if let Some(error) = &mut c.error {
            error.message.clear();
        }
        for text in [
            c.partition_metadata_response
                .as_mut()
                .and_then(|r| r.message.as_mut()),
            c.lookup_topic_response
                .as_mut()
                .and_then(|r| r.message.as_mut()),
            c.ack_response.as_mut().and_then(|r| r.message.as_mut()),
        ]
        .into_iter()
        .flatten()
        {
            text.clear();
        }
    }),
    ("the broker's version and address", |c| {
        if let Some(connected) = &mut c.connected {
            connected.server_version.clear();
        }
        if let Some(url) = c
            .lookup_topic_response
            .as_mut()
            .and_then(|r| r.broker_service_url.as_mut())
        {
            url.clear();
        }
    }),
];

/// A place where Vela answers otherwise than the recorded broker, on purpose.
pub struct Difference {
    pub what: &'static str,
    pub reason: &'static str,
    /// Takes the difference out of both commands; true if it was there. Anything else that differs in the field stays.
    take: fn(recorded: &mut BaseCommand, ours: &mut BaseCommand, content: Option<&Content>) -> bool,
}

pub const DIFFERENCES: &[Difference] = &[
    Difference {
        what: "MESSAGE carries message_permits",
        reason: "PIP-491: the broker says what a delivery costs, so that both sides count alike; clients that do not know it skip it",
        take: |recorded, ours, content| {
            let (Some(recorded), Some(ours)) = (&recorded.message, &mut ours.message) else {
                return false;
            };
            let messages = content.map_or(1, |c| c.metadata.num_messages_in_batch.unwrap_or(1));
            let expected = match recorded.ack_set.as_slice() {
                [] => messages as u32,
                set => set.iter().map(|word| word.count_ones()).sum(),
            };
            recorded.message_permits.is_none()
                && ours
                    .message_permits
                    .take_if(|permits| *permits == expected)
                    .is_some()
        },
    },
    Difference {
        what: "CONNECTED does not claim topic list watchers, scalable topics, replication by ledger and entry, and discovery of transaction coordinators",
        reason: "a client uses what is claimed; Vela serves none of these",
        take: |recorded, ours, _| {
            let flags = |c: &mut BaseCommand| -> Option<FeatureFlags> {
                c.connected.as_ref().and_then(|c| c.feature_flags)
            };
            let (Some(theirs), Some(mut mine)) = (flags(recorded), flags(ours)) else {
                return false;
            };
            let mut found = false;
            for (theirs, mine) in [
                (
                    theirs.supports_topic_watchers,
                    &mut mine.supports_topic_watchers,
                ),
                (
                    theirs.supports_topic_watcher_reconcile,
                    &mut mine.supports_topic_watcher_reconcile,
                ),
                (
                    theirs.supports_scalable_topics,
                    &mut mine.supports_scalable_topics,
                ),
                (
                    theirs.supports_repl_dedup_by_lid_and_eid,
                    &mut mine.supports_repl_dedup_by_lid_and_eid,
                ),
                (
                    theirs.supports_tc_metadata_discovery,
                    &mut mine.supports_tc_metadata_discovery,
                ),
            ] {
                if theirs == Some(true) && *mine == Some(false) {
                    *mine = Some(true);
                    found = true;
                }
            }
            if let Some(connected) = &mut ours.connected {
                connected.feature_flags = Some(mine);
            }
            found
        },
    },
    Difference {
        what: "LOOKUP_RESPONSE sends the client to the address in it, if the broker was given one",
        reason: "the recorded broker was at a loopback address, which it knew not to be for others",
        take: |recorded, ours, _| {
            let (Some(recorded), Some(ours)) = (
                &recorded.lookup_topic_response,
                &mut ours.lookup_topic_response,
            ) else {
                return false;
            };
            let found = recorded.proxy_through_service_url == Some(true)
                && ours.proxy_through_service_url == Some(false)
                && ours.broker_service_url.as_deref() == Some("pulsar://broker.example:6650");
            if found {
                ours.proxy_through_service_url = Some(true);
            }
            found
        },
    },
    Difference {
        what: "no PING to the holder of a subscription on the connection that asks for it",
        reason: "the PING finds out whether the holder is gone; what just came from its connection says that it is not",
        take: |recorded, ours, _| recorded.ping.is_some() && *ours == BaseCommand::default(),
    },
];

/// Every message id in an answer.
fn ids(command: &mut BaseCommand) -> Vec<&mut MessageIdData> {
    let BaseCommand {
        send_receipt,
        message,
        get_last_message_id_response,
        ..
    } = command;
    let last = get_last_message_id_response.as_mut().map(|response| {
        [
            Some(&mut response.last_message_id),
            response.consumer_mark_delete_position.as_mut(),
        ]
    });
    [
        send_receipt.as_mut().and_then(|c| c.message_id.as_mut()),
        message.as_mut().map(|c| &mut c.message_id),
    ]
    .into_iter()
    .chain(last.into_iter().flatten())
    .flatten()
    .collect()
}

/// What the two brokers call the same thing, learned as answers come in.
#[derive(Default)]
pub struct Names {
    /// The other broker's ledgers, and ours.
    ledgers: BTreeMap<i64, i64>,
    /// The other broker's producer names, and ours.
    producers: BTreeMap<String, String>,
    /// The deliberate differences met, by [`Difference::what`].
    pub met: BTreeSet<&'static str>,
}

impl Names {
    /// One ledger there is one ledger here.
    fn ledger(&mut self, recorded: i64, ours: i64) {
        let known = *self.ledgers.entry(recorded).or_insert(ours);
        assert_eq!(
            known, ours,
            "entries of one recorded ledger, {recorded}, are in two ledgers here"
        );
    }

    pub fn position(&mut self, recorded: Position, ours: Position) {
        if recorded.ledger < 0 {
            assert_eq!(ours, recorded, "a position that means no entry");
            return;
        }
        self.ledger(recorded.ledger, ours.ledger);
        assert_eq!(
            ours.entry, recorded.entry,
            "the entry in its ledger (recorded {recorded:?})"
        );
    }

    pub fn producer(&mut self, recorded: &str, ours: &str) {
        let known = self
            .producers
            .entry(recorded.to_owned())
            .or_insert_with(|| ours.to_owned());
        assert_eq!(known, ours, "one producer has two names");
    }

    /// A recorded id as this broker knows it; ids that are no entry's mean the same everywhere.
    pub fn translate(&self, id: &mut MessageIdData) {
        let ledger = id.ledger_id as i64;
        if ledger >= 0 {
            let ours = self.ledgers.get(&ledger);
            id.ledger_id = *ours.expect("a ledger that the broker has told of") as u64;
        }
    }

    /// A recorded producer name as this broker knows it.
    pub fn translate_name(&self, name: &mut String) {
        *name = self
            .producers
            .get(name)
            .expect("a producer that is open")
            .clone();
    }

    /// What was recorded here is not said by this broker, which must be a deliberate difference.
    pub fn not_said(&mut self, recorded: &Wire) {
        let (mut theirs, mut nothing) = (recorded.command.clone(), BaseCommand::default());
        let difference = DIFFERENCES
            .iter()
            .find(|d| (d.take)(&mut theirs, &mut nothing, None))
            .unwrap_or_else(|| panic!("not said: {}", set_fields(&recorded.command)));
        self.met.insert(difference.what);
    }

    /// Compares an answer with the recorded one.
    pub fn compare(&mut self, recorded: &Wire, ours: &Wire) {
        let (mut theirs, mut mine) = (recorded.command.clone(), ours.command.clone());
        let (their_ids, my_ids) = (ids(&mut theirs), ids(&mut mine));
        if their_ids.len() == my_ids.len() {
            for (theirs, mine) in their_ids.into_iter().zip(my_ids) {
                self.position(position(theirs), position(mine));
            }
        }
        if let (Some(theirs), Some(mine)) = (&theirs.producer_success, &mine.producer_success) {
            self.producer(&theirs.producer_name, &mine.producer_name);
        }
        for difference in DIFFERENCES {
            if (difference.take)(&mut theirs, &mut mine, recorded.content.as_ref()) {
                self.met.insert(difference.what);
            }
        }
        for (_, leave_out) in CHOSEN {
            leave_out(&mut theirs);
            leave_out(&mut mine);
        }
        assert!(
            theirs == mine,
            "the answers differ\nrecorded: {}\nours:     {}",
            set_fields(&theirs),
            set_fields(&mine)
        );
        let expected = recorded.content.clone().map(|mut content| {
            self.translate_name(&mut content.metadata.producer_name);
            content
        });
        assert_eq!(
            expected, ours.content,
            "the message is not the one published"
        );
    }
}

/// A command with what is set in it.
pub fn set_fields(command: &BaseCommand) -> String {
    let kind = Type::try_from(command.r#type).map_or("?", |kind| kind.as_str_name());
    let text = format!("{command:#?}");
    let set: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|field| !field.ends_with(": None,"))
        .collect();
    format!("{kind} {}", set.join(" "))
}
