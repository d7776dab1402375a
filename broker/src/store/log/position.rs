//! Where an entry stands: its ledger and its number in it.

use std::fmt;

/// The place of an entry in a topic, in Pulsar's signed convention (`MessageIdData` of the binary protocol).
///
/// `entry == -1` stands before the first entry of the ledger; only marks (a mark-delete position) carry it.
/// The order is by ledger, then by entry.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct Position {
    /// The ledger's id.
    pub ledger: i64,
    /// The entry's number in the ledger, from 0.
    pub entry: i64,
}

impl Position {
    /// Before everything a topic holds or ever held.
    pub const EARLIEST: Self = Self {
        ledger: -1,
        entry: -1,
    };
    /// After everything a topic will ever hold.
    pub const LATEST: Self = Self {
        ledger: i64::MAX,
        entry: i64::MAX,
    };

    /// The position `ledger:entry`.
    pub const fn new(ledger: i64, entry: i64) -> Self {
        Self { ledger, entry }
    }

    /// The mark-delete position that makes this entry the next one: one entry back, `ledger:-1` for entry 0.
    pub const fn before(self) -> Self {
        Self {
            ledger: self.ledger,
            entry: if self.entry > 0 { self.entry - 1 } else { -1 },
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ledger, self.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_text() {
        assert!(Position::EARLIEST < Position::new(0, -1));
        assert!(Position::new(1, 9) < Position::new(2, -1));
        assert!(Position::new(2, -1) < Position::new(2, 0));
        assert!(Position::new(i64::MAX, 0) < Position::LATEST);
        assert_eq!(Position::new(7, -1).to_string(), "7:-1");
    }

    #[test]
    fn before_steps_back_within_the_ledger() {
        assert_eq!(Position::new(3, 5).before(), Position::new(3, 4));
        assert_eq!(Position::new(3, 0).before(), Position::new(3, -1));
        assert_eq!(Position::new(3, -1).before(), Position::new(3, -1));
        assert_eq!(Position::new(3, i64::MIN).before(), Position::new(3, -1));
    }
}
