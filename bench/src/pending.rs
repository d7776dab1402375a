//! Matching receipts with sends: in order, per producer, each exactly once.

use std::collections::VecDeque;

use thiserror::Error;

use crate::wire::Receipt;

/// What makes a run invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Mismatch {
    /// Another send's receipt.
    #[error("a receipt for sequence id {got} came when {expected} was the oldest outstanding")]
    OutOfOrder { expected: u64, got: u64 },
    /// Nothing was outstanding.
    #[error("a receipt for sequence id {got} came when nothing was outstanding")]
    Unexpected { got: u64 },
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

/// The outstanding sends of one producer. Bounded by the window, which whoever pushes keeps.
#[derive(Debug)]
pub(crate) struct Pending {
    /// When each was due or sent, oldest first.
    times: VecDeque<u64>,
    /// Sequence id of the oldest.
    oldest: u64,
    /// Sequence ids a send takes: the messages of its batch.
    step: u64,
    last_position: Option<(u64, u64)>,
}

impl Pending {
    /// The first send has sequence id `first`; each takes `step` of them. Room for `window` sends is made at once.
    pub(crate) fn new(first: u64, step: u64, window: usize) -> Self {
        Self {
            times: VecDeque::with_capacity(window),
            oldest: first,
            step,
            last_position: None,
        }
    }

    /// A send went out, or was due, at `time`.
    pub(crate) fn push(&mut self, time: u64) {
        self.times.push_back(time);
    }

    /// Sends outstanding.
    pub(crate) fn len(&self) -> usize {
        self.times.len()
    }

    /// Settles the oldest send; answers its time.
    pub(crate) fn settle(&mut self, receipt: &Receipt) -> Result<u64, Mismatch> {
        let got = receipt.sequence_id;
        let Some(&time) = self.times.front() else {
            return Err(Mismatch::Unexpected { got });
        };
        if got != self.oldest {
            return Err(Mismatch::OutOfOrder {
                expected: self.oldest,
                got,
            });
        }
        let (ledger, entry) = match receipt.position {
            Some(position) if position != (u64::MAX, u64::MAX) => position,
            _ => return Err(Mismatch::NotStored { got }),
        };
        if self.last_position >= Some((ledger, entry)) {
            return Err(Mismatch::PositionWentBack {
                sequence_id: got,
                ledger,
                entry,
            });
        }
        self.last_position = Some((ledger, entry));
        self.times.pop_front();
        self.oldest += self.step;
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt(sequence_id: u64, ledger: u64, entry: u64) -> Receipt {
        Receipt {
            producer_id: 0,
            sequence_id,
            position: Some((ledger, entry)),
        }
    }

    #[test]
    fn receipts_settle_sends_in_order() {
        let mut pending = Pending::new(100, 1, 4);
        pending.push(7);
        pending.push(8);
        assert_eq!(pending.settle(&receipt(100, 1, 0)), Ok(7));
        assert_eq!(pending.settle(&receipt(101, 1, 1)), Ok(8));
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn batches_take_as_many_sequence_ids_as_messages() {
        let mut pending = Pending::new(0, 10, 4);
        pending.push(1);
        pending.push(2);
        assert_eq!(pending.settle(&receipt(0, 1, 0)), Ok(1));
        assert_eq!(
            pending.settle(&receipt(1, 1, 1)),
            Err(Mismatch::OutOfOrder {
                expected: 10,
                got: 1
            })
        );
        assert_eq!(pending.settle(&receipt(10, 1, 1)), Ok(2));
    }

    #[test]
    fn skipped_repeated_and_unasked_receipts_are_refused() {
        let mut pending = Pending::new(0, 1, 4);
        assert_eq!(
            pending.settle(&receipt(0, 1, 0)),
            Err(Mismatch::Unexpected { got: 0 })
        );
        pending.push(1);
        pending.push(2);
        assert_eq!(
            pending.settle(&receipt(1, 1, 0)),
            Err(Mismatch::OutOfOrder {
                expected: 0,
                got: 1
            })
        );
        pending.settle(&receipt(0, 1, 0)).unwrap();
        assert_eq!(
            pending.settle(&receipt(0, 1, 0)),
            Err(Mismatch::OutOfOrder {
                expected: 1,
                got: 0
            })
        );
    }

    #[test]
    fn a_message_that_was_not_stored_is_no_success() {
        let mut pending = Pending::new(0, 1, 4);
        pending.push(1);
        assert_eq!(
            pending.settle(&receipt(0, u64::MAX, u64::MAX)),
            Err(Mismatch::NotStored { got: 0 })
        );
        let without = Receipt {
            producer_id: 0,
            sequence_id: 0,
            position: None,
        };
        assert_eq!(
            pending.settle(&without),
            Err(Mismatch::NotStored { got: 0 })
        );
    }

    #[test]
    fn positions_only_grow() {
        let mut pending = Pending::new(0, 1, 4);
        for _ in 0..3 {
            pending.push(1);
        }
        pending.settle(&receipt(0, 1, 5)).unwrap();
        assert!(matches!(
            pending.settle(&receipt(1, 1, 5)),
            Err(Mismatch::PositionWentBack { .. })
        ));
        pending.settle(&receipt(1, 2, 0)).unwrap();
    }
}
