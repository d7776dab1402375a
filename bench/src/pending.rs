//! Matching receipts with sends: in order, per producer, each exactly once.

use std::collections::VecDeque;

use thiserror::Error;

use crate::wire::Receipt;

/// What makes a run invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Mismatch {
    /// Nothing of this sequence id is outstanding: its receipt came already, or it was never sent.
    #[error("a receipt for sequence id {got} came when {expected} was the oldest outstanding")]
    Unexpected { expected: u64, got: u64 },
    /// The broker took the message for a repetition, or dropped it.
    #[error("the receipt for sequence id {got} names no position: the message was not stored")]
    NotStored { got: u64 },
    /// Positions of one topic only grow.
    #[error(
        "the receipt for sequence id {sequence_id} names position {ledger}:{entry}, which is not behind that of the one before"
    )]
    PositionWentBack {
        sequence_id: u64,
        ledger: u64,
        entry: u64,
    },
}

/// A send on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// When it was due or sent.
    pub(crate) time: u64,
    /// Index of its device.
    pub(crate) device: u32,
    /// Sequence of the device, of the first message.
    pub(crate) device_sequence: u64,
}

/// What a receipt settles.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Sends before it that have no receipt; a broker answers in order, so theirs is missing.
    pub(crate) skipped: Vec<Sent>,
    pub(crate) settled: Option<Sent>,
    pub(crate) mismatch: Option<Mismatch>,
}

/// The outstanding sends of one producer. Bounded by the window, which whoever pushes keeps.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Oldest first.
    sends: VecDeque<Sent>,
    /// Sequence id of the oldest.
    oldest: u64,
    /// Sequence ids a send takes: the messages of its batch.
    step: u64,
    last_position: Option<(u64, u64)>,
}

impl Pending {
    /// The first send has sequence id `first`; each takes `step` of them, at least 1.
    pub(crate) fn new(first: u64, step: u64) -> Self {
        Self {
            sends: VecDeque::new(),
            oldest: first,
            step: step.max(1),
            last_position: None,
        }
    }

    pub(crate) fn push(&mut self, sent: Sent) {
        self.sends.push_back(sent);
    }

    /// The sends outstanding, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.sends.iter()
    }

    /// Settles a send, the oldest if all is well.
    pub(crate) fn settle(&mut self, receipt: &Receipt) -> Settlement {
        let (got, expected) = (receipt.sequence_id, self.oldest);
        let mut settlement = Settlement::default();
        if got != expected {
            let ahead = got.wrapping_sub(expected);
            let at = (ahead / self.step) as usize;
            if got < expected || ahead % self.step != 0 || at >= self.sends.len() {
                settlement.mismatch = Some(Mismatch::Unexpected { expected, got });
                return settlement;
            }
            settlement.skipped = self.sends.drain(..at).collect();
        }
        settlement.settled = self.sends.pop_front();
        if settlement.settled.is_none() {
            settlement.mismatch = Some(Mismatch::Unexpected { expected, got });
            return settlement;
        }
        self.oldest = got + self.step;
        let position = receipt
            .position
            .filter(|position| *position != (u64::MAX, u64::MAX));
        settlement.mismatch = match position {
            None => Some(Mismatch::NotStored { got }),
            Some((ledger, entry)) if self.last_position >= position => {
                Some(Mismatch::PositionWentBack {
                    sequence_id: got,
                    ledger,
                    entry,
                })
            }
            Some(_) => None,
        };
        self.last_position = self.last_position.max(position);
        settlement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(sequence_id: u64, ledger: u64, entry: u64) -> Receipt {
        Receipt {
            producer_id: 0,
            sequence_id,
            position: Some((ledger, entry)),
        }
    }

    fn sent(time: u64) -> Sent {
        Sent {
            time,
            device: 3,
            device_sequence: time,
        }
    }

    fn pending(first: u64, step: u64, sends: u64) -> Pending {
        let mut pending = Pending::new(first, step);
        (0..sends).for_each(|i| pending.push(sent(i)));
        pending
    }

    fn right(time: u64) -> Settlement {
        Settlement {
            settled: Some(sent(time)),
            ..Settlement::default()
        }
    }

    fn unexpected(expected: u64, got: u64) -> Settlement {
        Settlement {
            mismatch: Some(Mismatch::Unexpected { expected, got }),
            ..Settlement::default()
        }
    }

    #[test]
    fn receipts_settle_sends_in_order() {
        let mut pending = pending(100, 1, 2);
        assert_eq!(pending.settle(&receipt(100, 1, 0)), right(0));
        assert_eq!(pending.settle(&receipt(101, 1, 1)), right(1));
        assert_eq!(pending.iter().count(), 0);
    }

    #[test]
    fn batches_take_as_many_sequence_ids_as_messages() {
        let mut pending = pending(0, 10, 2);
        assert_eq!(pending.settle(&receipt(0, 1, 0)), right(0));
        assert_eq!(pending.settle(&receipt(1, 1, 1)), unexpected(10, 1));
        assert_eq!(pending.settle(&receipt(15, 1, 1)), unexpected(10, 15));
        assert_eq!(pending.settle(&receipt(10, 1, 1)), right(1));
    }

    #[test]
    fn repeated_and_unasked_receipts_are_refused() {
        let mut pending = pending(0, 1, 1);
        assert_eq!(pending.settle(&receipt(1, 1, 0)), unexpected(0, 1));
        assert_eq!(pending.settle(&receipt(0, 1, 0)), right(0));
        assert_eq!(pending.settle(&receipt(0, 1, 0)), unexpected(1, 0));
        assert_eq!(pending.settle(&receipt(1, 1, 0)), unexpected(1, 1));
    }

    #[test]
    fn a_skipped_receipt_is_missing_and_unexpected_when_it_comes() {
        let mut pending = pending(0, 1, 3);
        let settlement = pending.settle(&receipt(2, 1, 0));
        assert_eq!(settlement.skipped, [sent(0), sent(1)]);
        assert_eq!(
            (settlement.settled, settlement.mismatch),
            (Some(sent(2)), None)
        );
        assert_eq!(pending.settle(&receipt(1, 1, 1)), unexpected(3, 1));
    }

    #[test]
    fn a_message_that_was_not_stored_is_no_success() {
        let mut pending = pending(0, 1, 2);
        let settlement = pending.settle(&receipt(0, u64::MAX, u64::MAX));
        assert_eq!(settlement.mismatch, Some(Mismatch::NotStored { got: 0 }));
        let without = Receipt {
            producer_id: 0,
            sequence_id: 1,
            position: None,
        };
        let settlement = pending.settle(&without);
        assert_eq!(settlement.mismatch, Some(Mismatch::NotStored { got: 1 }));
    }

    #[test]
    fn positions_only_grow() {
        let mut pending = pending(0, 1, 3);
        assert_eq!(pending.settle(&receipt(0, 1, 5)).mismatch, None);
        assert!(matches!(
            pending.settle(&receipt(1, 1, 5)).mismatch,
            Some(Mismatch::PositionWentBack { .. })
        ));
        assert_eq!(pending.settle(&receipt(2, 2, 0)).mismatch, None);
    }
}
