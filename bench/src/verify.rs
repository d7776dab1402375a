//! What was delivered against what was sent: per subscription, every device's messages once, complete and in order.
//!
//! Delivery is at least once: a repeated delivery that says so (its redelivery count is above 0) is told apart from one that does not.

use rustc_hash::FxHashMap;
use serde::Serialize;

/// Offences named by their topic, device and sequence; all are counted.
pub(crate) const NAMED: usize = 20;
/// Ranges of missing sequences kept per device; beyond it the oldest is given up, and is lost even if it comes later.
const MAX_GAPS: usize = 4096;

/// What can be wrong with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Duplicate,
    Lost,
    OutOfOrder,
    Corrupt,
    Redelivered,
    WrongReceipt,
    Unanswered,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Offence {
    pub(crate) kind: Kind,
    pub(crate) topic: String,
    pub(crate) subscription: Option<String>,
    pub(crate) device: Option<u32>,
    pub(crate) sequence: Option<u64>,
    pub(crate) expected: Option<u64>,
    pub(crate) detail: String,
}

/// Counts over a whole run, and the first offences.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Verification {
    /// Deliveries looked at.
    pub(crate) checked: u64,
    pub(crate) duplicates: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) corrupt: u64,
    /// Sends without receipt.
    pub(crate) unanswered: u64,
    pub(crate) wrong_receipts: u64,
    /// Delivered again, and said so.
    pub(crate) redelivered: u64,
    /// Of another run: left over in the subscription. Acknowledged, not counted.
    pub(crate) foreign: u64,
    pub(crate) offences: Vec<Offence>,
}

impl Verification {
    /// Keeps an offence if there is room for its name. The caller has counted it.
    pub(crate) fn name(&mut self, offence: impl FnOnce() -> Offence) {
        if self.offences.len() < NAMED {
            self.offences.push(offence());
        }
    }

    /// Adds what another part of the run found.
    pub(crate) fn add(&mut self, other: Self) {
        self.checked += other.checked;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.out_of_order += other.out_of_order;
        self.corrupt += other.corrupt;
        self.unanswered += other.unanswered;
        self.wrong_receipts += other.wrong_receipts;
        self.redelivered += other.redelivered;
        self.foreign += other.foreign;
        self.offences.extend(other.offences);
        self.offences.truncate(NAMED);
    }

    /// Why the run does not count, in words, one per kind. Redelivered messages are no reason if they are expected.
    pub(crate) fn faults(&self, expect_redelivered: bool) -> Vec<String> {
        let redelivered = if expect_redelivered {
            0
        } else {
            self.redelivered
        };
        [
            (
                self.duplicates,
                Kind::Duplicate,
                "delivered twice without being called redelivered",
            ),
            (self.lost, Kind::Lost, "acknowledged and not delivered"),
            (
                self.out_of_order,
                Kind::OutOfOrder,
                "delivered out of order",
            ),
            (self.corrupt, Kind::Corrupt, "altered"),
            (
                self.unanswered,
                Kind::Unanswered,
                "sent and never answered: their receipts are missing",
            ),
            (
                self.wrong_receipts,
                Kind::WrongReceipt,
                "receipts that match no outstanding send",
            ),
            (redelivered, Kind::Redelivered, "redelivered"),
        ]
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, kind, what)| {
            let first = self.offences.iter().find(|offence| offence.kind == kind);
            let first = first.map_or_else(String::new, |offence| {
                format!("; first: {}", offence.text())
            });
            format!("{count} {what}{first}")
        })
        .collect()
    }
}

impl Offence {
    /// The offence in words.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("topic {}", self.topic);
        if let Some(subscription) = &self.subscription {
            text += &format!(", subscription {subscription}");
        }
        if let Some(device) = self.device {
            text += &format!(", device {device}");
        }
        if let Some(sequence) = self.sequence {
            text += &format!(", sequence {sequence}");
        }
        if let Some(expected) = self.expected {
            text += &format!(", expected {expected}");
        }
        if !self.detail.is_empty() {
            text += &format!(" ({})", self.detail);
        }
        text
    }
}

/// Which device of which run.
pub(crate) type DeviceKey = (u32, u32);

/// What a delivery is, in the light of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The next of its device.
    Next,
    /// Not seen before; others of its device before it are missing so far, from the number given on.
    Ahead(u64),
    /// Not seen before, and one behind it was: late.
    Late(u64),
    /// Seen before.
    Again(u64),
}

#[derive(Debug, Default)]
struct Device {
    first: u64,
    next: u64,
    received: u64,
    /// Missing between first and next: half-open, ascending.
    gaps: Vec<(u64, u64)>,
}

/// All devices of one subscription of one topic.
#[derive(Debug, Default)]
pub(crate) struct Book {
    devices: FxHashMap<DeviceKey, Device>,
    /// A device seen for the first time begins with what came, not with 0.
    begins_anywhere: bool,
}

impl Book {
    /// Of devices whose first message has sequence 0, or any if `begins_anywhere`.
    pub(crate) fn new(begins_anywhere: bool) -> Self {
        Self {
            devices: FxHashMap::default(),
            begins_anywhere,
        }
    }

    /// Enters a delivery.
    pub(crate) fn enter(&mut self, key: DeviceKey, sequence: u64) -> Seen {
        let begins_anywhere = self.begins_anywhere;
        let device = self.devices.entry(key).or_insert_with(|| {
            let first = if begins_anywhere { sequence } else { 0 };
            Device {
                first,
                next: first,
                ..Device::default()
            }
        });
        let expected = device.next;
        if sequence == expected {
            device.next += 1;
            device.received += 1;
            return Seen::Next;
        }
        if sequence > expected {
            if device.gaps.len() >= MAX_GAPS {
                device.gaps.remove(0);
            }
            device.gaps.push((expected, sequence));
            device.next = sequence + 1;
            device.received += 1;
            return Seen::Ahead(expected);
        }
        let at = device
            .gaps
            .iter()
            .position(|&(from, to)| (from..to).contains(&sequence));
        let Some(at) = at else {
            return Seen::Again(expected);
        };
        let (from, to) = device.gaps.remove(at);
        if sequence + 1 < to {
            device.gaps.insert(at, (sequence + 1, to));
        }
        if from < sequence {
            device.gaps.insert(at, (from, sequence));
        }
        device.received += 1;
        Seen::Late(expected)
    }

    /// Whether this would be the device's next: what makes an unreadable header believable.
    pub(crate) fn is_next(&self, key: DeviceKey, sequence: u64) -> bool {
        match self.devices.get(&key) {
            Some(device) => device.next == sequence,
            None => sequence == 0,
        }
    }

    /// Messages missing between the first and the last of each device.
    pub(crate) fn missing_inside(&self) -> u64 {
        self.devices
            .values()
            .map(|device| (device.next - device.first).saturating_sub(device.received))
            .sum()
    }

    /// Messages of a device that are missing if `sent` were sent from 0 on, and the first of them.
    pub(crate) fn missing(&self, key: DeviceKey, sent: u64) -> (u64, Option<u64>) {
        let Some(device) = self.devices.get(&key) else {
            return (sent, (sent > 0).then_some(0));
        };
        let missing = sent.saturating_sub(device.received);
        let first = match device.gaps.first() {
            Some(&(from, _)) => Some(from),
            None => (device.next < sent).then_some(device.next),
        };
        (missing, first.filter(|_| missing > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceKey = (1, 7);

    fn entered(sequences: &[u64]) -> (Book, Vec<Seen>) {
        let mut book = Book::new(false);
        let seen = sequences.iter().map(|&s| book.enter(DEVICE, s)).collect();
        (book, seen)
    }

    #[test]
    fn complete_and_in_order_is_right() {
        let (book, seen) = entered(&[0, 1, 2]);
        assert_eq!(seen, [Seen::Next; 3]);
        assert_eq!(book.missing(DEVICE, 3), (0, None));
        assert_eq!(book.missing((1, 8), 0), (0, None));
    }

    #[test]
    fn a_repetition_is_seen_again_wherever_it_comes() {
        let (book, seen) = entered(&[0, 0, 1, 2, 1]);
        assert_eq!(
            seen,
            [
                Seen::Next,
                Seen::Again(1),
                Seen::Next,
                Seen::Next,
                Seen::Again(3)
            ]
        );
        assert_eq!(book.missing(DEVICE, 3), (0, None));
    }

    #[test]
    fn a_late_one_fills_its_gap_once() {
        let (book, seen) = entered(&[0, 4, 2, 2, 1, 3]);
        assert_eq!(
            seen,
            [
                Seen::Next,
                Seen::Ahead(1),
                Seen::Late(5),
                Seen::Again(5),
                Seen::Late(5),
                Seen::Late(5)
            ]
        );
        assert_eq!(
            (book.missing_inside(), book.missing(DEVICE, 5)),
            (0, (0, None))
        );
    }

    #[test]
    fn losses_are_found_at_the_start_inside_and_at_the_end() {
        assert_eq!(entered(&[1, 2]).0.missing(DEVICE, 3), (1, Some(0)));
        assert_eq!(entered(&[0, 2]).0.missing(DEVICE, 3), (1, Some(1)));
        assert_eq!(entered(&[0, 1]).0.missing(DEVICE, 3), (1, Some(2)));
        assert_eq!(Book::new(false).missing(DEVICE, 3), (3, Some(0)));
        assert_eq!(entered(&[0, 3, 5]).0.missing_inside(), 3);
    }

    #[test]
    fn a_reader_from_the_middle_misses_only_what_lies_between() {
        let mut book = Book::new(true);
        assert_eq!(book.enter(DEVICE, 100), Seen::Next);
        assert_eq!(book.enter(DEVICE, 102), Seen::Ahead(101));
        assert_eq!(book.missing_inside(), 1);
    }

    #[test]
    fn gaps_are_bounded() {
        let mut book = Book::new(false);
        for i in 0..3 * MAX_GAPS as u64 {
            book.enter(DEVICE, 2 * i + 1);
        }
        assert_eq!(book.missing_inside(), 3 * MAX_GAPS as u64);
        assert_eq!(book.enter(DEVICE, 0), Seen::Again(6 * MAX_GAPS as u64));
    }

    #[test]
    fn every_kind_makes_a_run_invalid_and_names_its_first() {
        let mut all = Verification {
            redelivered: 1,
            ..Verification::default()
        };
        assert!(all.faults(true).is_empty());
        assert_eq!(all.faults(false).len(), 1);
        all = Verification {
            duplicates: 1,
            lost: 2,
            out_of_order: 3,
            corrupt: 4,
            unanswered: 5,
            wrong_receipts: 6,
            ..Verification::default()
        };
        all.name(|| Offence {
            kind: Kind::Lost,
            topic: "t-3".into(),
            subscription: Some("s".into()),
            device: Some(41),
            sequence: Some(7),
            expected: None,
            detail: String::new(),
        });
        let faults = all.faults(true);
        assert_eq!(faults.len(), 6);
        let lost = "2 acknowledged and not delivered; first: topic t-3, subscription s, device 41, sequence 7";
        assert!(faults.contains(&lost.to_owned()), "{faults:?}");
        let mut sum = all.clone();
        sum.add(all);
        assert_eq!((sum.lost, sum.offences.len()), (4, 2));
    }
}
