//! Acknowledgements on their way to the broker: collected, sent in groups, and kept until answered if answers are asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vela_proto::base_command::Type;
use vela_proto::command_ack::{AckType, ValidationError};
use vela_proto::{BaseCommand, CommandAck, MessageIdData};

use super::ackset::AckSet;
use super::message::{EntryId, index_of};
use super::{Call, Nanos, Wire};
use crate::{Error, MessageId};

/// Most entries one ACK names.
const MAX_IDS: usize = 1000;

/// Most entries a cumulative acknowledgement names one by one because chunks before it are left out. Those before them, and those
/// in an earlier ledger, whose last entry is not known here, wait for the messages of these chunks.
const MAX_BETWEEN: u64 = 10_000;

/// An entry up to which, and how far into it, everything is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cumulative {
    pub(super) entry: EntryId,
    pub(super) left: Option<AckSet>,
}

impl Cumulative {
    /// Orders them: the further entry, then fewer messages left of it.
    fn reach(&self) -> (EntryId, std::cmp::Reverse<u32>) {
        let left = self.left.as_ref().map_or(0, AckSet::count);
        (self.entry, std::cmp::Reverse(left))
    }
}

/// A call that ends when all commands that carry its acknowledgements are answered.
#[derive(Debug, Default)]
struct Group {
    commands: usize,
    calls: Vec<Call>,
    error: Option<Error>,
}

#[derive(Debug)]
struct Flight {
    group: u64,
    entries: Vec<(EntryId, Option<AckSet>)>,
    cumulative: Option<Cumulative>,
}

/// The tracker of one consumer.
#[derive(Debug)]
pub(super) struct Acks {
    consumer_id: u64,
    receipts: bool,
    /// Entries to acknowledge: whole, or all but what the set names.
    individual: BTreeMap<EntryId, Option<AckSet>>,
    cumulative: Option<Cumulative>,
    calls: Vec<Call>,
    deadline: Option<Nanos>,
    flights: HashMap<u64, Flight>,
    groups: HashMap<u64, Group>,
    next_group: u64,
    /// Whole entries under way with a receipt.
    in_flight: HashMap<EntryId, usize>,
    /// The furthest cumulative acknowledgement since the last seek.
    last_cumulative: Option<MessageId>,
    /// Chunks before it that it left out.
    left_out: BTreeSet<EntryId>,
}

impl Acks {
    pub(super) fn new(consumer_id: u64, receipts: bool) -> Self {
        Self {
            consumer_id,
            receipts,
            individual: BTreeMap::new(),
            cumulative: None,
            calls: Vec::new(),
            deadline: None,
            flights: HashMap::new(),
            groups: HashMap::new(),
            next_group: 0,
            in_flight: HashMap::new(),
            last_cumulative: None,
            left_out: BTreeSet::new(),
        }
    }

    /// Adds an entry. A set narrows one already there, a whole one replaces it.
    pub(super) fn add(&mut self, entry: EntryId, left: Option<AckSet>) {
        let slot = self.individual.entry(entry).or_insert_with(|| left.clone());
        match (slot.as_mut(), left) {
            (Some(old), Some(new)) => old.intersect(&new),
            (None, _) => {}
            (Some(_), None) => *slot = None,
        }
    }

    /// Adds all chunks of a message.
    pub(super) fn add_whole(&mut self, chunks: &[EntryId]) {
        for &chunk in chunks {
            self.add(chunk, None);
        }
    }

    /// Adds a cumulative one, if it is further than the last. The chunks `left_out` lie before it, but their messages end behind it.
    pub(super) fn add_cumulative(
        &mut self,
        id: MessageId,
        cumulative: Option<Cumulative>,
        left_out: BTreeSet<EntryId>,
    ) {
        let before = self.last_cumulative;
        if before.is_some_and(|last| position(&id) <= position(&last)) {
            return;
        }
        self.last_cumulative = Some(id);
        let left_out_before = std::mem::replace(&mut self.left_out, left_out);
        let cumulative = match self.left_out.first().copied() {
            Some(lowest) => {
                if let Some(cumulative) = cumulative {
                    self.add_between(&cumulative, lowest, before, &left_out_before);
                }
                // What lies before them all, if it was not sent.
                let sent = left_out_before.first() == Some(&lowest);
                let entry = lowest.entry.checked_sub(1).filter(|_| !sent);
                entry.map(|entry| Cumulative {
                    entry: EntryId { entry, ..lowest },
                    left: None,
                })
            }
            None => cumulative,
        };
        if let Some(cumulative) = cumulative {
            // Single ones before it are contained in it.
            self.individual = self.individual.split_off(&cumulative.entry);
            if cumulative.left.is_none() {
                self.individual.remove(&cumulative.entry);
            }
            let further = |old: &Cumulative| old.reach() < cumulative.reach();
            if self.cumulative.as_ref().is_none_or(further) {
                self.cumulative = Some(cumulative);
            }
        }
    }

    /// Acknowledges one by one what lies before the cumulative one, was not before the last, and is not left out.
    fn add_between(
        &mut self,
        cumulative: &Cumulative,
        lowest: EntryId,
        before: Option<MessageId>,
        left_out_before: &BTreeSet<EntryId>,
    ) {
        let EntryId { ledger, entry } = cumulative.entry;
        let begins = [Some(lowest), before.map(EntryId::from)];
        let begins = begins.into_iter().flatten();
        let from = begins.filter(|at| at.ledger == ledger).map(|at| at.entry);
        let from = from.fold(entry.saturating_sub(MAX_BETWEEN), u64::max);
        let between = (from..=entry).map(|entry| EntryId { ledger, entry });
        let ended = left_out_before.range(lowest..).copied();
        let whole: Vec<_> = (between.chain(ended))
            .filter(|at| *at != cumulative.entry && !self.left_out.contains(at))
            .collect();
        self.add_whole(&whole);
        if !self.left_out.contains(&cumulative.entry) {
            self.add(cumulative.entry, cumulative.left.clone());
        }
    }

    /// A call waits for what was added.
    pub(super) fn wait(&mut self, call: Call) {
        self.calls.push(call);
    }

    /// Calls that wait for a connection.
    pub(super) fn waiting(&self) -> &[Call] {
        &self.calls
    }

    /// A call waits no longer; whether it did.
    pub(super) fn give_up(&mut self, call: Call) -> bool {
        let before = self.calls.len();
        self.calls.retain(|&waiting| waiting != call);
        self.calls.len() < before
    }

    pub(super) fn len(&self) -> usize {
        self.individual.len()
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.individual.is_empty() || self.cumulative.is_some() || !self.calls.is_empty()
    }

    /// Starts the clock of the group, if it does not run.
    pub(super) fn due_by(&mut self, deadline: Nanos) {
        self.deadline.get_or_insert(deadline);
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Whether an acknowledgement of this message is under way: then it is not delivered again.
    pub(super) fn covers(&self, entry: EntryId, index: Option<u32>) -> bool {
        let cumulative = self.last_cumulative.is_some_and(|last| {
            let index = index.map_or(u32::MAX, |index| index);
            (entry.ledger, entry.entry, index) <= position(&last)
        });
        (cumulative && !self.left_out.contains(&entry))
            || matches!(self.individual.get(&entry), Some(None))
            || self.in_flight.contains_key(&entry)
    }

    /// Whether some messages of this batch wait to be acknowledged.
    pub(super) fn is_pending(&self, entry: EntryId) -> bool {
        let cumulative = self.cumulative.as_ref();
        self.individual.contains_key(&entry) || cumulative.is_some_and(|c| c.entry == entry)
    }

    /// Sends everything. The calls whose answers are not awaited are returned: they are done.
    pub(super) fn flush(&mut self, wire: &mut impl Wire) -> Vec<Call> {
        self.deadline = None;
        let calls = std::mem::take(&mut self.calls);
        let cumulative = self.cumulative.take();
        let entries = std::mem::take(&mut self.individual);
        if cumulative.is_none() && entries.is_empty() {
            return calls;
        }
        let group = self.next_group;
        self.next_group += 1;
        let mut commands = 0;
        if let Some(cumulative) = cumulative {
            self.send(wire, group, Vec::new(), Some(cumulative));
            commands += 1;
        }
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let some = entries.by_ref().take(MAX_IDS).collect();
            self.send(wire, group, some, None);
            commands += 1;
        }
        if !self.receipts {
            return calls;
        }
        self.groups.insert(
            group,
            Group {
                commands,
                calls,
                error: None,
            },
        );
        Vec::new()
    }

    fn send(
        &mut self,
        wire: &mut impl Wire,
        group: u64,
        entries: Vec<(EntryId, Option<AckSet>)>,
        cumulative: Option<Cumulative>,
    ) {
        let request_id = self.receipts.then(|| wire.request_id());
        let named = |entry: EntryId, left: Option<&AckSet>| {
            entry.wire(left.map(AckSet::to_words).unwrap_or_default())
        };
        let (ack_type, ids) = match &cumulative {
            Some(c) => (AckType::Cumulative, vec![named(c.entry, c.left.as_ref())]),
            None => {
                let ids = entries.iter().map(|(e, left)| named(*e, left.as_ref()));
                (AckType::Individual, ids.collect())
            }
        };
        wire.command(ack(self.consumer_id, ack_type, ids, request_id, None));
        if let Some(request_id) = request_id {
            for (entry, left) in &entries {
                if left.is_none() {
                    *self.in_flight.entry(*entry).or_default() += 1;
                }
            }
            let flight = Flight {
                group,
                entries,
                cumulative,
            };
            self.flights.insert(request_id, flight);
        }
    }

    fn landed(&mut self, flight: &Flight) {
        for (entry, left) in &flight.entries {
            if left.is_none()
                && let Some(count) = self.in_flight.get_mut(entry)
            {
                *count -= 1;
                if *count == 0 {
                    self.in_flight.remove(entry);
                }
            }
        }
    }

    /// The broker's answer; the calls it ends. `None` if the request is not an acknowledgement's.
    pub(super) fn answered(
        &mut self,
        request_id: u64,
        result: Result<(), Error>,
    ) -> Option<Vec<(Call, Result<(), Error>)>> {
        let flight = self.flights.remove(&request_id)?;
        self.landed(&flight);
        let Some(group) = self.groups.get_mut(&flight.group) else {
            return Some(Vec::new());
        };
        if let Err(error) = result {
            group.error.get_or_insert(error);
        }
        group.commands -= 1;
        if group.commands > 0 {
            return Some(Vec::new());
        }
        let group = self.groups.remove(&flight.group).unwrap_or_default();
        let result = group.error.map_or(Ok(()), Err);
        Some(
            group
                .calls
                .into_iter()
                .map(|call| (call, result.clone()))
                .collect(),
        )
    }

    /// The broker forgot the consumer: what it did not answer is sent again to the next incarnation.
    pub(super) fn detached(&mut self) {
        self.deadline = None;
        let mut flights: Vec<_> = std::mem::take(&mut self.flights).into_iter().collect();
        flights.sort_by_key(|(request_id, _)| *request_id);
        self.in_flight.clear();
        for (_, flight) in flights {
            for (entry, left) in flight.entries {
                self.add(entry, left);
            }
            if let Some(sent) = flight.cumulative
                && self
                    .cumulative
                    .as_ref()
                    .is_none_or(|kept| kept.reach() < sent.reach())
            {
                self.cumulative = Some(sent);
            }
        }
        // The broker knows the rest, and somebody may have moved the subscription back. Where chunks were left out, what lies between
        // them was acknowledged one by one, and may be lost.
        if self.cumulative.is_none() || !self.left_out.is_empty() {
            self.last_cumulative = None;
        }
        self.left_out.clear();
        let mut groups: Vec<_> = std::mem::take(&mut self.groups).into_iter().collect();
        groups.sort_by_key(|(group, _)| *group);
        let again = groups.into_iter().flat_map(|(_, group)| group.calls);
        let calls: Vec<_> = again.chain(std::mem::take(&mut self.calls)).collect();
        self.calls = calls;
    }

    /// A seek makes everything acknowledged before it void.
    pub(super) fn reset(&mut self) -> Vec<Call> {
        self.individual.clear();
        self.cumulative = None;
        self.last_cumulative = None;
        self.left_out.clear();
        self.deadline = None;
        let mut calls = std::mem::take(&mut self.calls);
        for (_, group) in std::mem::take(&mut self.groups) {
            calls.extend(group.calls);
        }
        self.flights.clear();
        self.in_flight.clear();
        calls
    }

    /// Tells the broker that an entry, or all of it but `left`, is damaged. Goes out at once.
    pub(super) fn invalid(
        &self,
        wire: &mut impl Wire,
        entry: EntryId,
        left: Option<&AckSet>,
        error: ValidationError,
    ) {
        let id = entry.wire(left.map(AckSet::to_words).unwrap_or_default());
        wire.command(ack(
            self.consumer_id,
            AckType::Individual,
            vec![id],
            None,
            Some(error),
        ));
    }
}

fn ack(
    consumer_id: u64,
    ack_type: AckType,
    message_id: Vec<MessageIdData>,
    request_id: Option<u64>,
    error: Option<ValidationError>,
) -> BaseCommand {
    BaseCommand {
        r#type: Type::Ack as i32,
        ack: Some(CommandAck {
            consumer_id,
            ack_type: ack_type as i32,
            message_id,
            validation_error: error.map(|error| error as i32),
            request_id,
            ..CommandAck::default()
        }),
        ..BaseCommand::default()
    }
}

/// Order of acknowledgements: a whole entry is behind each of its messages.
pub(super) fn position(id: &MessageId) -> (u64, u64, u32) {
    (id.ledger, id.entry, index_of(id).unwrap_or(u32::MAX))
}
